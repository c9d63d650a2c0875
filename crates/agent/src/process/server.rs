//! How one PostgreSQL of this host is recognised: its data directory, the users that may run it, and its program.

use crate::config::DatabaseConfig;
use rustix::process::geteuid;
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The list of this host's users.
const PASSWD: &str = "/etc/passwd";

/// What the kernel appends to the path of a program whose file was removed.
const DELETED: &str = " (deleted)";

/// One PostgreSQL of this host.
///
/// A server refuses to run as another user than the owner of its data directory. So its user distinguishes it from
/// other processes of its name. Its program is a second sign, beside the name of a process: either is enough, because
/// another server would be started beside one that was not found.
#[derive(Clone, Debug)]
pub struct Server {
    /// Its data directory.
    pub data: PathBuf,
    program: Option<PathBuf>,
    /// Real uids; `None` if the user is not known: then the processes of all users count.
    users: Option<BTreeSet<u32>>,
}

impl Server {
    /// Of these settings. Reads the list of users of this host, and asks no directory service.
    pub fn of(settings: &DatabaseConfig) -> Self {
        let passwd = std::fs::read(PASSWD).unwrap_or_default();
        let uid = uid_in(&String::from_utf8_lossy(&passwd), &settings.user);
        Self {
            data: settings.data.clone(),
            program: settings.bin_dir.join("postgres").canonicalize().ok(),
            // A process of root may become the server.
            users: uid.map(|uid| [uid, 0, geteuid().as_raw()].into()),
        }
    }

    /// With these users alone.
    #[cfg(test)]
    pub fn for_test(data: &Path, users: Option<&[u32]>) -> Self {
        Self { data: data.into(), program: None, users: users.map(|users| users.iter().copied().collect()) }
    }

    /// Whether its user is known. If not, processes of all users count that look like it.
    pub fn has_user(&self) -> bool {
        self.users.is_some()
    }

    /// Whether a process of this user can belong to it.
    pub fn may_run_as(&self, uid: u32) -> bool {
        self.users.as_ref().is_none_or(|users| users.contains(&uid))
    }

    /// Whether a process runs its program, by whatever name.
    pub(super) fn is_run_by(&self, proc: &Path, pid: i32) -> bool {
        let Some(program) = &self.program else { return false };
        let shown = std::fs::read_link(proc.join(pid.to_string()).join("exe"));
        shown.is_ok_and(|shown| {
            shown == *program || shown.to_str().and_then(|shown| shown.strip_suffix(DELETED)) == program.to_str()
        })
    }

    /// The number of the user that its data directory belongs to, if that user's processes are not looked for: a server
    /// there would not be found. Reads from the device.
    pub fn unknown_owner(&self) -> Option<u32> {
        let owner = std::fs::metadata(&self.data).ok()?.uid();
        (!self.may_run_as(owner)).then_some(owner)
    }

    /// Whether its data directory belongs to a user whose processes are looked for. Reads from the device.
    ///
    /// # Errors
    /// It does not, or its owner could not be read.
    pub fn owns_its_data(&self, user: &str) -> Result<(), String> {
        let data = self.data.display();
        let owner = std::fs::metadata(&self.data).map_err(|error| format!("{data}: {error}"))?.uid();
        if self.may_run_as(owner) {
            return Ok(());
        }
        Err(format!(
            "{data}: found that it belongs to the user with number {owner}, expected {user} (database.user): PostgreSQL would not start, or not be found; \
             give it to {user} (chown -R), or correct database.user"
        ))
    }
}

/// The number of a user, by the text of the list of users.
fn uid_in(passwd: &str, user: &str) -> Option<u32> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == user).then(|| fields.nth(1)?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_its_whole_name() {
        let passwd =
            "root:x:0:0:root:/root:/bin/sh\npostgres2:x:7:7::/:/bin/sh\npostgres:x:105:113:PostgreSQL:/:/bin/sh\n";
        assert_eq!(uid_in(passwd, "postgres"), Some(105));
        assert_eq!(uid_in(passwd, "postgre"), None);
        assert_eq!(uid_in("postgres:x\n", "postgres"), None);
    }

    #[test]
    fn data_of_another_user_is_refused_before_its_server_is_missed() {
        let dir = tempfile::tempdir().unwrap();
        let own = geteuid().as_raw();
        Server::for_test(dir.path(), Some(&[own])).owns_its_data("pg").unwrap();
        Server::for_test(dir.path(), None).owns_its_data("pg").unwrap();
        let why = Server::for_test(dir.path(), Some(&[own + 1])).owns_its_data("pg").unwrap_err();
        assert!(why.contains("expected pg (database.user)") && why.contains("chown -R"), "{why}");
        assert_eq!(Server::for_test(dir.path(), Some(&[own + 1])).unknown_owner(), Some(own));
        assert_eq!(Server::for_test(dir.path(), Some(&[own])).unknown_owner(), None);
        assert_eq!(Server::for_test(&dir.path().join("none"), Some(&[own + 1])).unknown_owner(), None);
    }
}
