//! Processes that have the pool open and end by themselves once PostgreSQL is stopped: they are waited for, and do not
//! stand against a switchover.
//!
//! `pgbackrest archive-push` leaves a process of its own behind (`archive-push:async`), whose parent is process 1. It
//! pushes the segments that it has found in `pg_wal`, and ends. While PostgreSQL writes, there is nearly always one.
//! Children of PostgreSQL are not meant: they are known by their parent.

use crate::process::Server;
use std::collections::BTreeSet;
use std::path::Path;

/// The kernel cuts the name of a process after so many bytes.
const NAME_BYTES_MAX: usize = 15;

/// Archivers of WAL: the name of the process, and the beginning of one of its arguments, where it has other commands
/// that take hours.
const ARCHIVERS: [(&str, &str); 5] = [
    ("pgbackrest", "archive-push"),
    ("wal-g", "wal-push"),
    ("wal-e", "wal-push"),
    ("barman-wal-archive", ""),
    ("barman-cloud-wal-archive", ""),
];

/// Clients of PostgreSQL that end with their connection.
const CLIENTS: [(&str, &str); 3] = [("pg_basebackup", ""), ("pg_dump", ""), ("pg_dumpall", "")];

/// Those of the user of this PostgreSQL, or of root. One that cannot be looked at is left out: it counts as one that
/// stays.
pub fn found(proc: &Path, server: &Server) -> BTreeSet<i32> {
    let entries = std::fs::read_dir(proc).into_iter().flatten();
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|pid| leaves(&proc.join(i32::to_string(pid)), server)).collect()
}

/// Whether this process is one of them.
fn leaves(of: &Path, server: &Server) -> bool {
    let name = std::fs::read(of.join("comm")).unwrap_or_default();
    let name = name.strip_suffix(b"\n").unwrap_or(&name);
    let known = |known: &&(&str, &str)| {
        let whole = known.0.as_bytes();
        name == &whole[..whole.len().min(NAME_BYTES_MAX)]
    };
    let Some((_, word)) = ARCHIVERS.iter().chain(&CLIENTS).find(known) else { return false };
    let args = std::fs::read(of.join("cmdline")).unwrap_or_default();
    args.split(|byte| *byte == 0).any(|arg| arg.starts_with(word.as_bytes()))
        && user(of).is_some_and(|user| server.may_run_as(user))
}

/// The user that started a process.
pub fn user(of: &Path) -> Option<u32> {
    let status = std::fs::read(of.join("status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    status.lines().find_map(|line| line.strip_prefix("Uid:")?.split_whitespace().next()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archivers_of_the_databases_user_leave_and_others_stay() {
        let dir = tempfile::tempdir().unwrap();
        let shown = |pid: i32, name: &str, args: &str, uid: u32| {
            let of = dir.path().join(pid.to_string());
            std::fs::create_dir(&of).unwrap();
            std::fs::write(of.join("comm"), format!("{name}\n")).unwrap();
            std::fs::write(of.join("cmdline"), args.replace(' ', "\0")).unwrap();
            std::fs::write(of.join("status"), format!("Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")).unwrap();
        };
        shown(10, "pgbackrest", "pgbackrest --stanza=main archive-push:async /srv/pg/data/pg_wal", 105);
        shown(11, "barman-cloud-wa", "/usr/bin/python3 /usr/bin/barman-cloud-wal-archive x", 105);
        shown(12, "pg_basebackup", "pg_basebackup -D /srv/pg/copy", 105);
        // For hours, by somebody else, a shell of the same user, and one whose name only begins so.
        shown(20, "pgbackrest", "pgbackrest --stanza=main backup", 105);
        shown(21, "pgbackrest", "pgbackrest --stanza=main archive-push:async", 1000);
        shown(22, "bash", "bash archive-push", 105);
        shown(23, "pgbackrest2", "pgbackrest2 archive-push:async", 105);
        // One that has ended meanwhile.
        std::fs::create_dir(dir.path().join("24")).unwrap();
        let server = Server::for_test(Path::new("/srv/pg/data"), Some(&[105]));
        assert_eq!(found(dir.path(), &server), BTreeSet::from([10, 11, 12]));
    }
}
