//! The processes of one PostgreSQL, recognised by its data directory: found, signalled, waited for.
//!
//! POSTGRES-P1  A process of another user belongs to the server only if the server started it: no user can imitate a
//!     PostgreSQL, or a process that cannot be inspected. If a process of the server's own user, or of root, cannot be
//!     inspected, the search is not complete.

use super::server::Server;
use super::table::{PROC, ProcessSearch, name_of, parent, pids, place_of, signal, user_of, words_of};
use holdfast_host::mounts::device_under;
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Pause between two looks at processes that are ending.
const LOOK_PAUSE: Duration = Duration::from_millis(10);

/// Whether these arguments name `data` as the data directory.
fn names_data(args: &[u8], data: &Path) -> bool {
    let mut args = args.split(|byte| *byte == 0).filter_map(|arg| std::str::from_utf8(arg).ok());
    while let Some(arg) = args.next() {
        let named = match arg.strip_prefix("-D") {
            Some("") => args.next(),
            other => other,
        };
        if named.is_some_and(|named| Path::new(named) == data) {
            return true;
        }
    }
    false
}

/// Whether a program of this name is PostgreSQL's server. Some packages before version 16 start it under its older
/// name.
fn is_server(name: &[u8]) -> bool {
    matches!(name, b"postgres" | b"postmaster")
}

/// Whether a program of this name may become the server: a shell, or the program that changes the user.
fn is_shell(name: &[u8]) -> bool {
    matches!(name, b"sh" | b"dash" | b"bash" | b"setpriv")
}

/// Whether a shell with these arguments becomes the server of `data`: the server's program is among them.
fn becomes_server(args: &[u8], data: &Path) -> bool {
    let mut words = args.split(|byte| *byte == 0).filter_map(|arg| std::str::from_utf8(arg).ok());
    words.any(|arg| Path::new(arg).file_name().is_some_and(|name| is_server(name.as_encoded_bytes())))
        && names_data(args, data)
}

/// Pure: whether `data` lies on another device in their mount table than in ours. Unknown if a table does not show it.
fn lies_elsewhere(data: &Path, ours: &[u8], theirs: &[u8]) -> bool {
    device_under(ours, data).zip(device_under(theirs, data)).is_some_and(|(ours, theirs)| ours != theirs)
}

/// Whether `data` means another directory for this process: a process in a container, which has its own process numbers
/// and its own files under that path. If this cannot be read, it counts as ours.
pub fn is_elsewhere(proc: &Path, pid: i32, data: &Path) -> bool {
    let (own, of) = (proc.join("self"), proc.join(pid.to_string()));
    let namespaces = || Some((own.join("ns/pid").read_link().ok()?, of.join("ns/pid").read_link().ok()?));
    let tables = || Some((std::fs::read(own.join("mountinfo")).ok()?, std::fs::read(of.join("mountinfo")).ok()?));
    namespaces().is_some_and(|(ours, theirs)| ours != theirs)
        && tables().is_some_and(|(ours, theirs)| lies_elsewhere(data, &ours, &theirs))
}

/// What a process shows about its owner.
#[derive(Debug)]
enum ProcessKind {
    /// It is one of the server's, or becomes the server.
    Server,
    /// It works in the data directory, or runs the server's program elsewhere: the server's if the server started it.
    WorksThere,
    /// Its working directory cannot be read, which matters only if the server started it.
    Veiled(io::Error),
    /// It has nothing to do with the server.
    Nothing,
}

/// Inspects a process (POSTGRES-P1).
fn seen(proc: &Path, pid: i32, of: &Server, looks: u32) -> io::Result<ProcessKind> {
    let Some(user) = user_of(proc, pid)? else { return Ok(ProcessKind::Nothing) };
    let place = place_of(proc, pid);
    let started = |place: io::Result<Option<PathBuf>>| match place {
        Ok(Some(place)) if place == of.data => ProcessKind::WorksThere,
        Ok(_) => ProcessKind::Nothing,
        Err(error) => ProcessKind::Veiled(error),
    };
    if !of.may_run_as(user) {
        return Ok(started(place));
    }
    let Some(name) = name_of(proc, pid)? else { return Ok(ProcessKind::Nothing) };
    let is_server = is_server(&name) || of.is_run_by(proc, pid);
    if is_server && matches!(&place, Ok(Some(place)) if *place == of.data) {
        return Ok(ProcessKind::Server);
    }
    if !is_server && !is_shell(&name) {
        return Ok(started(place));
    }
    let Some(args) = words_of(proc, pid, "cmdline", looks)? else { return Ok(ProcessKind::Nothing) };
    let is_told = is_server && names_data(&args, &of.data) || !is_server && becomes_server(&args, &of.data);
    match place {
        _ if is_told => Ok(ProcessKind::Server),
        // The arguments of a server's process say what it does, not in which directory.
        Err(error) if is_server => Err(error),
        // A backend of a server whose configuration has another `data_directory`.
        Ok(Some(_)) if is_server => Ok(ProcessKind::WorksThere),
        place => Ok(started(place)),
    }
}

/// The processes of this PostgreSQL. A server process works in its data directory; or has it as an argument (`-D`) and
/// reads its configuration before it goes there; or is still the shell that becomes it. Descendants that work there
/// count too, such as an archive command. Not counted: processes of a container with another directory under that path,
/// and those of another user (POSTGRES-P1). Reads nothing from the device below the data directory.
pub fn look_for_postgres(of: &Server) -> ProcessSearch {
    look_in(Path::new(PROC), of)
}

fn look_in(proc: &Path, of: &Server) -> ProcessSearch {
    let (mut looked, mut others, data) = (ProcessSearch::default(), Vec::new(), &of.data);
    for pid in pids(proc, &mut looked.missed) {
        match seen(proc, pid, of, looked.looks()) {
            Ok(ProcessKind::Server) if !is_elsewhere(proc, pid, data) => {
                looked.found.insert(pid);
            }
            Ok(ProcessKind::WorksThere) => others.push((pid, None)),
            Ok(ProcessKind::Veiled(error)) => others.push((pid, Some(error))),
            Ok(ProcessKind::Server | ProcessKind::Nothing) => {}
            Err(error) => looked.misses(pid, &error),
        }
    }
    add_started(proc, others, &mut looked);
    looked
}

/// Adds those of the others that the server started, and their descendants.
fn add_started(proc: &Path, others: Vec<(i32, Option<io::Error>)>, looked: &mut ProcessSearch) {
    let none = looked.found.is_empty();
    let mut born = Vec::new();
    // Without a server no process is its child. For a process that works there an error still matters.
    for (pid, veil) in others.into_iter().filter(|(_, veil)| veil.is_none() || !none) {
        match parent(proc, pid) {
            Ok(Some(by)) => born.push((pid, by, veil)),
            Ok(None) => {}
            Err(error) => looked.misses(pid, &error),
        }
    }
    while let Some(at) = born.iter().position(|(_, by, _)| looked.found.contains(by)) {
        let (pid, _, veil) = born.swap_remove(at);
        match veil {
            None => {
                looked.found.insert(pid);
            }
            Some(error) => looked.misses(pid, &error),
        }
    }
}

/// All processes of this PostgreSQL ([`look_for_postgres`]).
///
/// # Errors
/// Not all processes of the host could be inspected (no more file descriptors): there may be more.
pub fn of_postgres(of: &Server) -> io::Result<BTreeSet<i32>> {
    look_for_postgres(of).whole()
}

/// Whether there is any process of this PostgreSQL.
///
/// # Errors
/// As [`of_postgres`], where none was found.
pub fn postgres_runs(of: &Server) -> io::Result<bool> {
    look_for_postgres(of).any()
}

/// Text for a search that was not complete.
pub fn unlooked(error: &io::Error) -> String {
    format!("could not look for processes of PostgreSQL: {error}")
}

/// The first process: its parent is none of them.
pub fn postmaster(of: &BTreeSet<i32>) -> Option<i32> {
    of.iter().copied().find(|pid| matches!(parent(Path::new(PROC), *pid), Ok(Some(parent)) if !of.contains(&parent)))
}

/// Sends SIGKILL to all processes of that PostgreSQL that can be found, also to new ones, until none is left. Blocks.
///
/// # Errors
/// Some are left after `limit`: they wait for the device. Or not all processes could be inspected.
pub fn kill_postgres(of: &Server, limit: Duration) -> Result<(), String> {
    kill_postgres_in(Path::new(PROC), of, limit)
}

fn kill_postgres_in(proc: &Path, of: &Server, limit: Duration) -> Result<(), String> {
    let begun = Instant::now();
    loop {
        let ProcessSearch { found, missed } = look_in(proc, of);
        // Also if another process could not be inspected: that may belong to anybody.
        found.iter().for_each(|pid| signal(*pid, Signal::KILL));
        if found.is_empty() && missed.is_none() {
            return Ok(());
        }
        if begun.elapsed() >= limit {
            let left = format!("{} processes of PostgreSQL are left after SIGKILL", found.len());
            return Err(match missed {
                None => left,
                Some(error) if found.is_empty() => unlooked(&error),
                Some(error) => format!("{left}; {}", unlooked(&error)),
            });
        }
        std::thread::sleep(LOOK_PAUSE);
    }
}

/// As [`kill_postgres`], without a thread of its own: those of the runtime may all hang, on a disk or on names of peers
/// that are asked for, and the lease is about to end. Kills nothing any more once it is dropped.
///
/// # Errors
/// As there.
pub async fn kill_postgres_here(of: &Server, limit: Duration) -> Result<(), String> {
    let begun = Instant::now();
    while begun.elapsed() < limit {
        if kill_postgres(of, Duration::ZERO).is_ok() {
            return Ok(());
        }
        tokio::time::sleep(LOOK_PAUSE).await;
    }
    kill_postgres(of, Duration::ZERO)
}

/// Waits until no process of that PostgreSQL is left; returns whether that was seen.
pub async fn postgres_gone(of: &Server, limit: Duration) -> bool {
    let begun = Instant::now();
    while !of_postgres(of).is_ok_and(|left| left.is_empty()) {
        if begun.elapsed() >= limit {
            return false;
        }
        tokio::time::sleep(LOOK_PAUSE).await;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::symlink;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Stdio;
    use tokio::process::Command;

    /// The user of PostgreSQL.
    const MANAGER: u32 = 105;
    /// Another user.
    const STRANGER: u32 = 1000;

    fn user(uid: u32) -> String {
        format!("Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
    }

    fn pg(data: &Path) -> Server {
        Server::for_test(data, Some(&[MANAGER]))
    }

    /// With any user.
    fn anyones(data: &Path) -> Server {
        Server::for_test(data, None)
    }

    /// A process as the kernel shows it, in a directory in place of /proc; its name, and its working directory.
    fn shown(proc: &Path, pid: &str, name: &[u8], place: &Path) -> PathBuf {
        let of = proc.join(pid);
        std::fs::create_dir(&of).unwrap();
        std::fs::write(of.join("comm"), [name, b"\n"].concat()).unwrap();
        std::fs::write(of.join("status"), user(MANAGER)).unwrap();
        symlink(place, of.join("cwd")).unwrap();
        of
    }

    /// A process in the data directory may be the server's child: if its parent cannot be read, that is not known.
    #[test]
    fn a_process_whose_parent_cannot_be_read_may_be_the_servers() {
        let dir = tempfile::tempdir().unwrap();
        let (proc, data) = (dir.path().join("proc"), dir.path().join("data"));
        std::fs::create_dir(&proc).unwrap();
        let of = shown(&proc, "71", b"cp", &data);
        assert!(!look_in(&proc, &pg(&data)).any().unwrap(), "it has ended");
        std::fs::create_dir(of.join("stat")).unwrap();
        assert!(look_in(&proc, &pg(&data)).any().is_err());
    }

    #[tokio::test]
    async fn a_server_is_found_by_where_it_works_and_ended_with_what_it_started() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().canonicalize().unwrap();
        // The name of a process is that of its file.
        let program = data.join("postgres");
        symlink("/bin/sh", &program).unwrap();
        let mut command = Command::new(&program);
        command.arg("-c").arg("sleep 600 & wait").current_dir(&data);
        let mut server = command.spawn().unwrap();
        let mut bystander = Command::new("sleep").arg("600").current_dir(&data).spawn().unwrap();
        let begun = Instant::now();
        while of_postgres(&anyones(&data)).unwrap().len() < 2 && begun.elapsed() < Duration::from_secs(20) {
            tokio::time::sleep(LOOK_PAUSE).await;
        }
        let found = of_postgres(&anyones(&data)).unwrap();
        assert_eq!(found.len(), 2, "the server and what it started, not the bystander");
        assert_eq!(postmaster(&found), server.id().map(u32::cast_signed));
        let there = data.clone();
        let ended = tokio::task::spawn_blocking(move || kill_postgres(&anyones(&there), Duration::from_secs(10)))
            .await
            .unwrap();
        ended.unwrap();
        assert!(bystander.try_wait().unwrap().is_none());
        bystander.kill().await.unwrap();
        server.wait().await.unwrap();
    }

    /// A failed inspection must not count as "no process": after "none is left" the agent gives the lease back.
    #[test]
    fn a_process_that_cannot_be_inspected_is_not_gone() {
        let dir = tempfile::tempdir().unwrap();
        let (data, limit) = (Path::new("/nothing/works/here"), Duration::from_millis(20));
        assert!(kill_postgres_in(&dir.path().join("proc"), &pg(data), limit).unwrap_err().contains("could not look"));
        assert_eq!(kill_postgres_in(dir.path(), &pg(data), limit), Ok(()), "nobody is there");
        // A process that can be read in part only.
        std::fs::create_dir_all(dir.path().join("7/comm")).unwrap();
        std::fs::write(dir.path().join("7/status"), user(MANAGER)).unwrap();
        symlink(data, dir.path().join("7/cwd")).unwrap();
        assert!(look_in(dir.path(), &pg(data)).whole().is_err());
        assert!(kill_postgres_in(dir.path(), &pg(data), limit).is_err());
        // It has ended meanwhile.
        std::fs::remove_dir_all(dir.path().join("7/comm")).unwrap();
        assert_eq!(look_in(dir.path(), &pg(data)).whole().unwrap(), BTreeSet::new());
    }

    /// Otherwise any user of this host could keep PostgreSQL from being ended with its lease.
    #[test]
    fn processes_are_ended_even_if_others_cannot_be_inspected() {
        let (dir, data) = (tempfile::tempdir().unwrap(), Path::new("/srv/pg/data"));
        let mut server = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let pid = server.id().cast_signed();
        shown(dir.path(), &pid.to_string(), b"postgres", data);
        std::fs::create_dir_all(dir.path().join("7/comm")).unwrap();
        std::fs::write(dir.path().join("7/status"), user(MANAGER)).unwrap();
        symlink("/", dir.path().join("7/cwd")).unwrap();
        let found = look_in(dir.path(), &pg(data)).found;
        let why = kill_postgres_in(dir.path(), &pg(data), Duration::ZERO).unwrap_err();
        let (begun, mut ended) = (Instant::now(), None);
        while ended.is_none() && begun.elapsed() < Duration::from_secs(20) {
            ended = server.try_wait().unwrap();
            std::thread::sleep(LOOK_PAUSE);
        }
        let _ = server.kill();
        let _ = server.wait();
        assert_eq!(found, BTreeSet::from([pid]));
        assert_eq!(ended.and_then(|status| status.signal()), Some(Signal::KILL.as_raw()));
        assert!(why.contains("1 processes of PostgreSQL are left") && why.contains("process 7: "), "{why}");
    }

    /// POSTGRES-P1: another user's `ln -s /bin/sh postgres`, or a process that shows nothing, does not prevent a
    /// takeover.
    #[test]
    fn a_process_of_another_user_is_not_the_server_unless_the_server_started_it() {
        let (dir, data) = (tempfile::tempdir().unwrap(), Path::new("/srv/pg/data"));
        let strangers = |pid: &str, name: &[u8], place: &Path| {
            let of = shown(dir.path(), pid, name, place);
            std::fs::write(of.join("status"), user(STRANGER)).unwrap();
            of
        };
        let link = strangers("8", b"postgres", Path::new("/"));
        std::fs::write(link.join("cmdline"), "postgres\0-c\0sleep 999\0-D\0/srv/pg/data\0").unwrap();
        strangers("9", b"postgres", data);
        let unseen = strangers("10", b"postgres", data);
        std::fs::remove_file(unseen.join("comm")).unwrap();
        std::fs::create_dir(unseen.join("comm")).unwrap();
        std::fs::remove_file(unseen.join("cwd")).unwrap();
        std::fs::write(unseen.join("cwd"), "no link").unwrap();
        std::fs::write(unseen.join("stat"), "10 (postgres) S 1 7 7 0 -1 4194304 0").unwrap();
        assert_eq!(look_in(dir.path(), &pg(data)).whole().unwrap(), BTreeSet::new());
        shown(dir.path(), "7", b"postgres", data);
        // An archive command with rights of its own.
        let archive = strangers("11", b"sudo", data);
        std::fs::write(archive.join("stat"), "11 (sudo) S 7 7 7 0 -1 4194304 0").unwrap();
        assert_eq!(look_in(dir.path(), &pg(data)).whole().unwrap(), BTreeSet::from([7, 11]));
        assert!(
            look_in(dir.path(), &anyones(data)).missed.is_some(),
            "the user of PostgreSQL is not known: a process of any user may be the server"
        );
    }

    /// Root without CAP_SYS_PTRACE reads names and arguments, but not the working directory.
    #[test]
    fn a_server_whose_place_cannot_be_seen_is_not_gone() {
        let (dir, data) = (tempfile::tempdir().unwrap(), Path::new("/srv/pg/data"));
        let veiled = |pid: &str, name: &[u8], args: &str, parent: &str| {
            let of = shown(dir.path(), pid, name, data);
            std::fs::remove_file(of.join("cwd")).unwrap();
            std::fs::write(of.join("cwd"), "no link").unwrap();
            std::fs::write(of.join("cmdline"), args).unwrap();
            std::fs::write(of.join("stat"), format!("{pid} (x) S {parent} 7 7 0 -1 4194304 0")).unwrap();
        };
        veiled("6", b"bash", "-bash\0", "1");
        veiled("5", b"cron", "cron\0", "1");
        assert!(!look_in(dir.path(), &pg(data)).any().unwrap(), "neither is a server, nor started by one");
        veiled("8", b"postgres", "postgres: checkpointer \0", "7");
        assert!(look_in(dir.path(), &pg(data)).any().is_err(), "its data directory is not known");
        std::fs::remove_dir_all(dir.path().join("8")).unwrap();
        veiled("7", b"postgres", "postgres\0-D\0/srv/pg/data\0", "1");
        assert_eq!(look_in(dir.path(), &pg(data)).whole().unwrap(), BTreeSet::from([7]));
        veiled("9", b"archive", "archive\0", "7");
        assert!(look_in(dir.path(), &pg(data)).whole().is_err(), "it may work in the data directory");
    }

    /// A configuration with another `data_directory`: the first process is known by `-D`, the others work elsewhere.
    #[test]
    fn backends_that_work_elsewhere_are_the_servers() {
        let (dir, data, other) = (tempfile::tempdir().unwrap(), Path::new("/srv/pg/data"), Path::new("/var/lib/pg"));
        for (pid, args, parent) in [
            ("7", "postgres\0-D\0/srv/pg/data\0", "1"),
            ("8", "postgres: checkpointer \0", "7"),
            ("9", "postgres\0-D\0/srv/others\0", "1"),
            ("10", "postgres: checkpointer \0", "9"),
        ] {
            let of = shown(dir.path(), pid, b"postgres", other);
            std::fs::write(of.join("cmdline"), args).unwrap();
            std::fs::write(of.join("stat"), format!("{pid} (postgres) S {parent} 7 7 0 -1 4194304 0")).unwrap();
        }
        assert_eq!(look_in(dir.path(), &pg(data)).whole().unwrap(), BTreeSet::from([7, 8]));
    }

    /// The kernel cuts a name at fifteen bytes, in the middle of a character if need be.
    #[test]
    fn a_name_that_is_not_utf8_hides_no_process() {
        let (dir, data) = (tempfile::tempdir().unwrap(), Path::new("/srv/pg/data"));
        shown(dir.path(), "7", b"postgres", data);
        shown(dir.path(), "8", b"aaaaaaaaaaaaaa\xc3", Path::new("/"));
        // An archive command of process 7.
        let archive = shown(dir.path(), "9", b"archive-archiv\xc3", data);
        std::fs::write(archive.join("stat"), b"9 (archive-archiv\xc3) S 7 7 7 0 -1 4194304 0").unwrap();
        assert_eq!(look_in(dir.path(), &pg(data)).whole().unwrap(), BTreeSet::from([7, 9]));
    }

    /// The kernel does not show a path of more than four KiB. Another process works in one.
    #[test]
    fn a_place_too_long_to_be_shown_is_not_the_data_directory() {
        let dir = tempfile::tempdir().unwrap();
        let mut far = std::fs::File::open(dir.path()).unwrap();
        for _ in 0..20 {
            let next = format!("/proc/self/fd/{}/{}", far.as_raw_fd(), "d".repeat(250));
            std::fs::create_dir(&next).unwrap();
            far = std::fs::File::open(next).unwrap();
        }
        let place = format!("/proc/self/fd/{}", far.as_raw_fd());
        let mut there = std::process::Command::new("sleep").arg("600").current_dir(place).spawn().unwrap();
        let pid = there.id().cast_signed();
        let place = std::fs::read_link(format!("{PROC}/{pid}/cwd")).map_err(|error| error.raw_os_error());
        let looked = seen(Path::new(PROC), pid, &anyones(Path::new("/srv/pg/data")), 1);
        there.kill().unwrap();
        there.wait().unwrap();
        assert_eq!(place, Err(Some(rustix::io::Errno::NAMETOOLONG.raw_os_error())));
        assert!(matches!(looked.unwrap(), ProcessKind::Nothing));
    }

    /// During an exec a process shows no arguments. It must not count as gone: the lease would be given back.
    #[test]
    fn a_process_that_just_becomes_the_server_is_not_gone() {
        let (dir, data) = (tempfile::tempdir().unwrap(), Path::new("/srv/pg/data"));
        let of = shown(dir.path(), "7", b"postgres", Path::new("/"));
        let shows = |file: &str, text: &str| std::fs::write(of.join(file), text).unwrap();
        shows("cmdline", "");
        shows("stat", "7 (postgres) R 1 7 7 0 -1 4194304 0");
        let why = look_in(dir.path(), &pg(data)).whole().unwrap_err().to_string();
        assert!(why.contains("process 7: shows no arguments"), "{why}");
        assert!(words_of(dir.path(), 7, "cmdline", 1).is_err());
        // Ending; ended and not reaped; a process of the kernel.
        for stat in [
            "7 (postgres) R 1 7 7 0 -1 4194308 0",
            "7 (postgres) Z 1 7 7 0 -1 4194304 0",
            "7 (postgres) S 2 0 0 0 -1 2129984 0",
        ] {
            shows("stat", stat);
            assert_eq!(look_in(dir.path(), &pg(data)).whole().unwrap(), BTreeSet::new(), "{stat}");
        }
        shows("cmdline", "postgres\0-D\0/srv/pg/data\0");
        assert_eq!(look_in(dir.path(), &pg(data)).whole().unwrap(), BTreeSet::from([7]));
    }

    /// PostgreSQL reads its configuration before it goes into its data directory.
    #[tokio::test]
    async fn a_server_is_found_before_it_works_in_its_data_directory() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().canonicalize().unwrap().join("data");
        std::fs::create_dir(&data).unwrap();
        let program = dir.path().join("postgres");
        symlink("/bin/sh", &program).unwrap();
        let mut command = Command::new(&program);
        // A process that starts nothing: its forks count as well, until they run another program.
        command.args(["-c", "read _", "-D"]).arg(&data).current_dir("/").stdin(Stdio::piped()).kill_on_drop(true);
        let mut server = command.spawn().unwrap();
        let mut elsewhere = Command::new(&program);
        elsewhere.args(["-c", "read _", "-D"]).arg(dir.path().join("other")).current_dir("/");
        elsewhere.stdin(Stdio::piped()).kill_on_drop(true);
        let mut other = elsewhere.spawn().unwrap();
        let begun = Instant::now();
        while of_postgres(&anyones(&data)).unwrap().is_empty() && begun.elapsed() < Duration::from_secs(20) {
            tokio::time::sleep(LOOK_PAUSE).await;
        }
        assert_eq!(of_postgres(&anyones(&data)).unwrap(), BTreeSet::from([server.id().unwrap().cast_signed()]));
        let there = data.clone();
        let ended = tokio::task::spawn_blocking(move || kill_postgres(&anyones(&there), Duration::from_secs(10)))
            .await
            .unwrap();
        ended.unwrap();
        server.wait().await.unwrap();
        assert!(other.try_wait().unwrap().is_none(), "another data directory's");
        other.kill().await.unwrap();
    }

    #[test]
    fn a_shell_that_becomes_the_server_is_recognised_by_its_arguments() {
        let data = Path::new("/srv/pg/data");
        let script = "sh\0-c\0exec \"$0\" \"$@\"\0";
        for (args, becomes) in [
            ("/usr/lib/postgresql/15/bin/postgres\0-D\0/srv/pg/data\0-p\x005432\0", true),
            ("/usr/lib/postgresql/15/bin/postgres\0-D\0/srv/other\0", false),
            ("/usr/lib/postgresql/15/bin/pg_controldata\0-D\0/srv/pg/data\0", false),
        ] {
            assert_eq!(becomes_server(format!("{script}{args}").as_bytes(), data), becomes, "{args}");
        }
    }

    #[test]
    fn data_directories_are_named_in_either_way() {
        let data = Path::new("/srv/pg/data");
        for (args, named) in [
            (&b"postgres\0-D\0/srv/pg/data\0-p\x005432\0"[..], true),
            (b"/usr/bin/postgres\0-D/srv/pg/data/\0", true),
            (b"postgres\0-D\0/srv/pg/data2\0", false),
            (b"postgres: checkpointer \0", false),
            (b"postgres\0-D\0", false),
        ] {
            assert_eq!(names_data(args, data), named, "{}", String::from_utf8_lossy(args));
        }
    }

    const HOST: &str = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n40 22 7:0 / /srv/pg rw - ext4 /dev/loop0 rw\n";
    /// A container with its own image and volume, and one that shares the host's files.
    const CONTAINER: &str =
        "90 80 0:61 / / rw - overlay overlay rw\n91 90 8:1 /v/1 /srv/pg/data rw - ext4 /dev/sda1 rw\n";
    const LENT: &str = "90 80 0:61 / / rw - overlay overlay rw\n91 90 7:0 /data /srv/pg/data rw - ext4 /dev/loop0 rw\n";

    #[test]
    fn a_path_on_another_device_is_another_place() {
        let elsewhere = |theirs: &str| lies_elsewhere(Path::new("/srv/pg/data"), HOST.as_bytes(), theirs.as_bytes());
        assert!(elsewhere(CONTAINER) && elsewhere("90 80 0:61 / / rw - overlay overlay rw\n"));
        assert!(!elsewhere(HOST) && !elsewhere(LENT));
        assert!(!elsewhere("") && !elsewhere("?\n"), "the table does not show it");
    }

    #[test]
    fn the_postgresql_of_a_container_is_not_ours() {
        let (dir, data) = (tempfile::tempdir().unwrap(), Path::new("/srv/pg/data"));
        let shows = |of: &str, namespace: &str, table: &str| {
            let of = dir.path().join(of);
            std::fs::create_dir_all(of.join("ns")).unwrap();
            symlink(namespace, of.join("ns/pid")).unwrap();
            std::fs::write(of.join("mountinfo"), table).unwrap();
        };
        let found = || look_in(dir.path(), &pg(data)).whole().unwrap();
        for pid in ["7", "8", "9", "10", "11"] {
            shown(dir.path(), pid, b"postgres", data);
        }
        // Processes that it started are ended with it.
        let archive = shown(dir.path(), "12", b"archive", data);
        std::fs::write(archive.join("stat"), "12 (archive) S 8 8 8 0 -1 4194304 0").unwrap();
        shows("8", "pid:[2]", CONTAINER);
        assert_eq!(found(), BTreeSet::from([7, 8, 9, 10, 11, 12]), "the own namespace is not known");
        shows("self", "pid:[1]", HOST);
        // A process with the host's process numbers, and a container with the host's files.
        shows("9", "pid:[1]", CONTAINER);
        shows("10", "pid:[3]", LENT);
        // A process whose mount table cannot be read.
        shows("11", "pid:[4]", CONTAINER);
        std::fs::remove_file(dir.path().join("11/mountinfo")).unwrap();
        assert_eq!(found(), BTreeSet::from([7, 9, 10, 11]));
    }
}
