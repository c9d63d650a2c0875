//! The processes of one PostgreSQL, known by its data directory: found, signalled, waited for.

use super::table::{Looked, PROC, name_of, parent, pids, place_of, signal, words_of};
use holdfast_host::mounts::device_under;
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
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

/// Whether these arguments of a shell's are those of one that becomes the server of `data`: the server's program is among them.
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
fn is_elsewhere(proc: &Path, pid: i32, data: &Path) -> bool {
    let (own, of) = (proc.join("self"), proc.join(pid.to_string()));
    let namespaces = || Some((own.join("ns/pid").read_link().ok()?, of.join("ns/pid").read_link().ok()?));
    let tables = || Some((std::fs::read(own.join("mountinfo")).ok()?, std::fs::read(of.join("mountinfo")).ok()?));
    namespaces().is_some_and(|(ours, theirs)| ours != theirs)
        && tables().is_some_and(|(ours, theirs)| lies_elsewhere(data, &ours, &theirs))
}

/// What a process shows of whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// A process of the server's, or what becomes it.
    Server,
    /// It works in the data directory.
    WorksThere,
    Nothing,
}

fn seen(proc: &Path, pid: i32, data: &Path, looks: u32) -> io::Result<Seen> {
    let works_there = place_of(proc, pid)?.is_some_and(|place| place == data);
    let Some(name) = name_of(proc, pid)? else { return Ok(Seen::Nothing) };
    let is_server = is_server(&name);
    let is_shell = matches!(name.as_slice(), b"sh" | b"dash" | b"bash");
    if works_there {
        return Ok(if is_server { Seen::Server } else { Seen::WorksThere });
    }
    if !is_server && !is_shell {
        return Ok(Seen::Nothing);
    }
    let Some(args) = words_of(proc, pid, "cmdline", looks)? else { return Ok(Seen::Nothing) };
    let is_told = is_server && names_data(&args, data) || is_shell && becomes_server(&args, data);
    Ok(if is_told { Seen::Server } else { Seen::Nothing })
}

/// The processes of the PostgreSQL whose data directory is `data`: each server process works there, or was told to (`-D`) and has only its configuration to read
/// before it goes there, or is still the shell that becomes it; and what it started itself there, such as an archive command. Not those of a container that have
/// another directory under that path. Reads nothing from the device below `data`.
pub fn look_for_postgres(data: &Path) -> Looked {
    look_in(Path::new(PROC), data)
}

fn look_in(proc: &Path, data: &Path) -> Looked {
    let (mut looked, mut others) = (Looked::default(), Vec::new());
    for pid in pids(proc, &mut looked.missed) {
        match seen(proc, pid, data, looked.looks()) {
            Ok(Seen::Server) if !is_elsewhere(proc, pid, data) => {
                looked.found.insert(pid);
            }
            Ok(Seen::WorksThere) => others.push(pid),
            Ok(Seen::Server | Seen::Nothing) => {}
            Err(error) => looked.misses(pid, &error),
        }
    }
    let found = &mut looked.found;
    while let Some(at) = others.iter().position(|pid| parent(proc, *pid).is_some_and(|parent| found.contains(&parent)))
    {
        found.insert(others.swap_remove(at));
    }
    looked
}

/// All of them ([`look_for_postgres`]); an error where others may have been missed.
///
/// # Errors
/// Not all processes of the host could be looked at (no more file descriptors): that says nothing of what there is.
pub fn of_postgres(data: &Path) -> io::Result<BTreeSet<i32>> {
    look_for_postgres(data).whole()
}

/// Whether any of them is there.
///
/// # Errors
/// As [`of_postgres`], where none was found.
pub fn postgres_runs(data: &Path) -> io::Result<bool> {
    look_for_postgres(data).any()
}

/// The words for not having been able to look.
pub fn unlooked(error: &io::Error) -> String {
    format!("could not look for processes of PostgreSQL: {error}")
}

/// The first of them: the one whose parent is none of them.
pub fn postmaster(of: &BTreeSet<i32>) -> Option<i32> {
    of.iter().copied().find(|pid| parent(Path::new(PROC), *pid).is_some_and(|parent| !of.contains(&parent)))
}

/// SIGKILL to all of that PostgreSQL that can be found, also to what comes up meanwhile, until none is left. Blocks.
///
/// # Errors
/// Some are left after `limit`: they wait on the device. Or it could not be looked whether any is.
pub fn kill_postgres(data: &Path, limit: Duration) -> Result<(), String> {
    kill_postgres_in(Path::new(PROC), data, limit)
}

fn kill_postgres_in(proc: &Path, data: &Path, limit: Duration) -> Result<(), String> {
    let begun = Instant::now();
    loop {
        let Looked { found, missed } = look_in(proc, data);
        // Also where another process could not be looked at: that may be anybody's.
        found.iter().for_each(|pid| signal(*pid, Signal::KILL));
        if found.is_empty() && missed.is_none() {
            return Ok(());
        }
        if begun.elapsed() >= limit {
            let left =
                format!("{} processes of PostgreSQL are left {} ms after SIGKILL", found.len(), limit.as_millis());
            return Err(match missed {
                None => left,
                Some(error) if found.is_empty() => unlooked(&error),
                Some(error) => format!("{left}, and it {}", unlooked(&error)),
            });
        }
        std::thread::sleep(LOOK_PAUSE);
    }
}

/// Waits until none of that PostgreSQL is left; says whether that was seen.
pub async fn postgres_gone(data: &Path, limit: Duration) -> bool {
    let begun = Instant::now();
    while !of_postgres(data).is_ok_and(|left| left.is_empty()) {
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
    use std::path::PathBuf;
    use std::process::Stdio;
    use tokio::process::Command;

    /// A process as the kernel shows it, in a folder that stands in for /proc; what it is named, and where it works.
    fn shown(proc: &Path, pid: &str, name: &[u8], place: &Path) -> PathBuf {
        let of = proc.join(pid);
        std::fs::create_dir(&of).unwrap();
        std::fs::write(of.join("comm"), [name, b"\n"].concat()).unwrap();
        symlink(place, of.join("cwd")).unwrap();
        of
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
        while of_postgres(&data).unwrap().len() < 2 && begun.elapsed() < Duration::from_secs(20) {
            tokio::time::sleep(LOOK_PAUSE).await;
        }
        let found = of_postgres(&data).unwrap();
        assert_eq!(found.len(), 2, "the server and what it started, not the bystander");
        assert_eq!(postmaster(&found), server.id().map(u32::cast_signed));
        let there = data.clone();
        let ended = tokio::task::spawn_blocking(move || kill_postgres(&there, Duration::from_secs(10))).await.unwrap();
        ended.unwrap();
        assert!(bystander.try_wait().unwrap().is_none());
        bystander.kill().await.unwrap();
        server.wait().await.unwrap();
    }

    /// A failed inspection must not count as "no process": after "none is left" the agent gives the lease back.
    #[test]
    fn what_cannot_be_looked_at_is_not_gone() {
        let dir = tempfile::tempdir().unwrap();
        let (data, limit) = (Path::new("/nothing/works/here"), Duration::from_millis(20));
        assert!(kill_postgres_in(&dir.path().join("proc"), data, limit).unwrap_err().contains("could not look"));
        assert_eq!(kill_postgres_in(dir.path(), data, limit), Ok(()), "nobody is there");
        // A process of which not all can be read.
        std::fs::create_dir_all(dir.path().join("7/comm")).unwrap();
        symlink(data, dir.path().join("7/cwd")).unwrap();
        assert!(look_in(dir.path(), data).whole().is_err());
        assert!(kill_postgres_in(dir.path(), data, limit).is_err());
        // One that has ended meanwhile.
        std::fs::remove_dir_all(dir.path().join("7/comm")).unwrap();
        assert_eq!(look_in(dir.path(), data).whole().unwrap(), BTreeSet::new());
    }

    /// Whoever may start a process on this host could keep PostgreSQL from being ended with its lease else.
    #[test]
    fn what_can_be_found_is_ended_beside_what_cannot_be_looked_at() {
        let (dir, data) = (tempfile::tempdir().unwrap(), Path::new("/srv/pg/data"));
        let mut server = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let pid = server.id().cast_signed();
        shown(dir.path(), &pid.to_string(), b"postgres", data);
        std::fs::create_dir_all(dir.path().join("7/comm")).unwrap();
        symlink("/", dir.path().join("7/cwd")).unwrap();
        let found = look_in(dir.path(), data).found;
        let why = kill_postgres_in(dir.path(), data, Duration::ZERO).unwrap_err();
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

    /// The kernel cuts a name at fifteen bytes, in the middle of a character if need be.
    #[test]
    fn a_name_that_is_no_text_hides_nobody() {
        let (dir, data) = (tempfile::tempdir().unwrap(), Path::new("/srv/pg/data"));
        shown(dir.path(), "7", b"postgres", data);
        shown(dir.path(), "8", b"aaaaaaaaaaaaaa\xc3", Path::new("/"));
        // An archive command of 7's.
        let archive = shown(dir.path(), "9", b"archive-archiv\xc3", data);
        std::fs::write(archive.join("stat"), b"9 (archive-archiv\xc3) S 7 7 7 0 -1 4194304 0").unwrap();
        assert_eq!(look_in(dir.path(), data).whole().unwrap(), BTreeSet::from([7, 9]));
    }

    /// The kernel does not show a path of more than four KiB. In one of it works somebody else.
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
        let looked = seen(Path::new(PROC), pid, Path::new("/srv/pg/data"), 1);
        there.kill().unwrap();
        there.wait().unwrap();
        assert_eq!(place, Err(Some(rustix::io::Errno::NAMETOOLONG.raw_os_error())));
        assert_eq!(looked.unwrap(), Seen::Nothing);
    }

    /// In the middle of an exec a process shows no arguments. Not to be taken for one that is not there: "none is left" lets the lease go.
    #[test]
    fn what_just_becomes_the_server_is_not_gone() {
        let (dir, data) = (tempfile::tempdir().unwrap(), Path::new("/srv/pg/data"));
        let of = shown(dir.path(), "7", b"postgres", Path::new("/"));
        let shows = |file: &str, text: &str| std::fs::write(of.join(file), text).unwrap();
        shows("cmdline", "");
        shows("stat", "7 (postgres) R 1 7 7 0 -1 4194304 0");
        let why = look_in(dir.path(), data).whole().unwrap_err().to_string();
        assert!(why.contains("process 7: shows no arguments"), "{why}");
        assert!(words_of(dir.path(), 7, "cmdline", 1).is_err());
        // Ended and not reaped; ending; one of the kernel's own.
        for stat in [
            "7 (postgres) R 1 7 7 0 -1 4194308 0",
            "7 (postgres) Z 1 7 7 0 -1 4194304 0",
            "7 (postgres) S 2 0 0 0 -1 2129984 0",
        ] {
            shows("stat", stat);
            assert_eq!(look_in(dir.path(), data).whole().unwrap(), BTreeSet::new(), "{stat}");
        }
        shows("cmdline", "postgres\0-D\0/srv/pg/data\0");
        assert_eq!(look_in(dir.path(), data).whole().unwrap(), BTreeSet::from([7]));
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
        while of_postgres(&data).unwrap().is_empty() && begun.elapsed() < Duration::from_secs(20) {
            tokio::time::sleep(LOOK_PAUSE).await;
        }
        assert_eq!(of_postgres(&data).unwrap(), BTreeSet::from([server.id().unwrap().cast_signed()]));
        let there = data.clone();
        let ended = tokio::task::spawn_blocking(move || kill_postgres(&there, Duration::from_secs(10))).await.unwrap();
        ended.unwrap();
        server.wait().await.unwrap();
        assert!(other.try_wait().unwrap().is_none(), "another data directory's");
        other.kill().await.unwrap();
    }

    #[test]
    fn a_shell_that_becomes_the_server_is_told_by_its_arguments() {
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
    fn a_path_is_another_place_where_another_device_lies_under_it() {
        let elsewhere = |theirs: &str| lies_elsewhere(Path::new("/srv/pg/data"), HOST.as_bytes(), theirs.as_bytes());
        assert!(elsewhere(CONTAINER) && elsewhere("90 80 0:61 / / rw - overlay overlay rw\n"));
        assert!(!elsewhere(HOST) && !elsewhere(LENT));
        assert!(!elsewhere("") && !elsewhere("?\n"), "it does not say");
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
        let found = || look_in(dir.path(), data).whole().unwrap();
        for pid in ["7", "8", "9", "10", "11"] {
            shown(dir.path(), pid, b"postgres", data);
        }
        // Processes that it started are ended with it.
        let archive = shown(dir.path(), "12", b"archive", data);
        std::fs::write(archive.join("stat"), "12 (archive) S 8 8 8 0 -1 4194304 0").unwrap();
        shows("8", "pid:[2]", CONTAINER);
        assert_eq!(found(), BTreeSet::from([7, 8, 9, 10, 11, 12]), "of ourselves nothing is known");
        shows("self", "pid:[1]", HOST);
        // Process numbers of the host's, whatever it has mounted; a container that has the host's files.
        shows("9", "pid:[1]", CONTAINER);
        shows("10", "pid:[3]", LENT);
        // And a process whose mount table cannot be read.
        shows("11", "pid:[4]", CONTAINER);
        std::fs::remove_file(dir.path().join("11/mountinfo")).unwrap();
        assert_eq!(found(), BTreeSet::from([7, 9, 10, 11]));
    }
}
