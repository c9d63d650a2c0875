//! The kernel's table of processes. Names are bytes: the kernel cuts them in the middle of a character. A process that
//! cannot be inspected does not keep others from being found: any user of the host may start such a process.

use super::server::Server;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, geteuid, kill_process};
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The kernel's process table as files.
pub(super) const PROC: &str = "/proc";

/// How often a process that is just becoming another program is inspected. It takes less than a millisecond.
const BECOMING_LOOKS_MAX: u32 = 50;

/// Pause between two of these looks.
const BECOMING_PAUSE: Duration = Duration::from_millis(1);

/// The unit of times in a process's `stat`: a hundredth of a second.
const TICK_NS: u64 = 10_000_000;

/// Flags in a process's `stat` of processes without arguments: the kernel's own (PF_KTHREAD), and those that are ending
/// (PF_EXITING: memory is released first, and the working directory is shown until the files are released).
const NO_MEMORY: u64 = 0x0020_0000 | 0x4;

/// The result of a search among all processes of the host.
#[derive(Debug, Default)]
pub struct ProcessSearch {
    /// The processes found.
    pub found: BTreeSet<i32>,
    /// The error of the first process that could not be inspected: there may be more processes than were found.
    pub missed: Option<io::Error>,
}

impl ProcessSearch {
    /// All matching processes.
    ///
    /// # Errors
    /// Not all processes could be inspected.
    pub fn whole(self) -> io::Result<BTreeSet<i32>> {
        match self.missed {
            None => Ok(self.found),
            Some(error) => Err(error),
        }
    }

    /// Whether there is any.
    ///
    /// # Errors
    /// None was found, and not all processes could be inspected.
    pub fn any(self) -> io::Result<bool> {
        if self.found.is_empty() { self.whole().map(|_| false) } else { Ok(true) }
    }

    pub(super) fn misses(&mut self, pid: i32, error: &io::Error) {
        let what_to_do = match error.kind() {
            io::ErrorKind::PermissionDenied => ": the agent needs the capability CAP_SYS_PTRACE to look at it",
            _ => "",
        };
        self.missed.get_or_insert_with(|| io::Error::new(error.kind(), format!("process {pid}: {error}{what_to_do}")));
    }

    /// How often the next process is inspected at most: many processes that show nothing must not delay a search, and
    /// with it a SIGKILL.
    pub(super) fn looks(&self) -> u32 {
        if self.missed.is_none() { BECOMING_LOOKS_MAX } else { 1 }
    }
}

/// The content of a file about a process; `None` if the process has ended.
fn of_living<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Ok(found) => Ok(Some(found)),
        // A process that has ended and was not reaped yet.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => Ok(None),
        // A process that may not be inspected may be anything: root lacks CAP_SYS_PTRACE, or a security module forbids
        // it.
        Err(error) => Err(error),
    }
}

/// The error if /proc hides processes. With `hidepid` it leaves out those that the reader may not inspect, also the
/// first process, which every host has. Only root has to see all of them.
fn hidden(found: &[i32], root: bool) -> Option<io::Error> {
    (root && !found.contains(&1)).then(|| {
        io::Error::other(
            "/proc: found no process 1, expected all processes of the host: give the agent CAP_SYS_PTRACE, or mount /proc without hidepid",
        )
    })
}

pub(super) fn pids(proc: &Path, missed: &mut Option<io::Error>) -> Vec<i32> {
    let mut found = Vec::new();
    match std::fs::read_dir(proc) {
        Ok(entries) => {
            for entry in entries {
                match entry {
                    Ok(entry) => found.extend(entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok())),
                    Err(error) => *missed = Some(error),
                }
            }
        }
        Err(error) => *missed = Some(error),
    }
    if proc == Path::new(PROC) && missed.is_none() {
        *missed = hidden(&found, geteuid().is_root());
    }
    found
}

/// A field of a process's `stat`, counted from the one after its name: 0 the state, 1 the parent, 6 the flags, 19 the
/// start. `None` if the process has ended.
fn stat_field(proc: &Path, pid: i32, field: usize) -> io::Result<Option<String>> {
    let Some(text) = of_living(std::fs::read(proc.join(pid.to_string()).join("stat")))? else { return Ok(None) };
    // The second field is the program's name in brackets and may hold blanks.
    let text = String::from_utf8_lossy(&text);
    Ok(text.rsplit_once(')').and_then(|(_, fields)| fields.split_whitespace().nth(field).map(str::to_string)))
}

/// The parent of a process; `None` if it has ended.
pub(super) fn parent(proc: &Path, pid: i32) -> io::Result<Option<i32>> {
    Ok(stat_field(proc, pid, 1)?.and_then(|parent| parent.parse().ok()))
}

/// Whether a process has its own memory: it lives, is not ending, and does not belong to the kernel.
fn has_memory(proc: &Path, pid: i32) -> io::Result<bool> {
    let lives = stat_field(proc, pid, 0)?.is_some_and(|state| !matches!(state.as_str(), "Z" | "X"));
    let flags = stat_field(proc, pid, 6)?.and_then(|flags| flags.parse::<u64>().ok());
    Ok(lives && flags.is_some_and(|flags| flags & NO_MEMORY == 0))
}

/// The user that started a process (its real uid, which a set-uid program does not change); `None` if it has ended.
/// Every user may read it for every process.
pub(super) fn user_of(proc: &Path, pid: i32) -> io::Result<Option<u32>> {
    let Some(text) = of_living(std::fs::read(proc.join(pid.to_string()).join("status")))? else { return Ok(None) };
    let text = String::from_utf8_lossy(&text);
    let uid = text.lines().find_map(|line| line.strip_prefix("Uid:")?.split_whitespace().next()?.parse().ok());
    uid.map(Some).ok_or_else(|| io::Error::other("its status shows no Uid"))
}

/// The name of a process; `None` if it has ended.
pub(super) fn name_of(proc: &Path, pid: i32) -> io::Result<Option<Vec<u8>>> {
    let name = of_living(std::fs::read(proc.join(pid.to_string()).join("comm")))?;
    Ok(name.map(|name| name.trim_ascii_end().to_vec()))
}

/// The working directory of a process; `None` if it has ended, or if the path is longer than the kernel shows. No path
/// in the settings is that long.
pub(super) fn place_of(proc: &Path, pid: i32) -> io::Result<Option<PathBuf>> {
    match std::fs::read_link(proc.join(pid.to_string()).join("cwd")) {
        Err(error) if error.raw_os_error() == Some(Errno::NAMETOOLONG.raw_os_error()) => Ok(None),
        place => of_living(place),
    }
}

/// The arguments (`cmdline`) or the environment (`environ`) of a process; `None` if it has ended. In the middle of an
/// exec the process has new memory with neither of them in it: then it is inspected again, at most `looks` times, for
/// those that it has afterwards.
pub(super) fn words_of(proc: &Path, pid: i32, what: &str, looks: u32) -> io::Result<Option<Vec<u8>>> {
    let read = |what: &str| of_living(std::fs::read(proc.join(pid.to_string()).join(what)));
    for left in (0..looks).rev() {
        let before = read("cmdline")?;
        let words = read(what)?;
        // An environment may be empty without an exec under way; arguments never are.
        let settled =
            || Ok::<_, io::Error>(before.as_ref().is_some_and(|args| !args.is_empty()) && before == read("cmdline")?);
        if words.as_ref().is_none_or(|words| !words.is_empty())
            || !has_memory(proc, pid)?
            || what != "cmdline" && settled()?
        {
            return Ok(words);
        }
        if left > 0 {
            std::thread::sleep(BECOMING_PAUSE);
        }
    }
    Err(io::Error::other("shows no arguments: neither running a program nor ended"))
}

/// Processes with `name=value` in their environment: the descendants of a program that was started with it, until one
/// of them changes it. A process that cannot be inspected is ignored if it began before `since_ns` of CLOCK_BOOTTIME,
/// or if its user may not run this PostgreSQL.
pub fn of_mark(of: &Server, name: &str, value: &str, since_ns: u64) -> ProcessSearch {
    of_mark_in(Path::new(PROC), of, &format!("{name}={value}"), since_ns)
}

fn of_mark_in(proc: &Path, of: &Server, mark: &str, since_ns: u64) -> ProcessSearch {
    let (mut looked, root) = (ProcessSearch::default(), geteuid().is_root());
    for pid in pids(proc, &mut looked.missed) {
        match words_of(proc, pid, "environ", looked.looks()) {
            Ok(Some(words)) if words.split(|byte| *byte == 0).any(|word| word == mark.as_bytes()) => {
                looked.found.insert(pid);
            }
            Ok(_) => {}
            // Without root all descendants have the agent's own user, and can be inspected.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !root => {}
            Err(error) => match may_be_marked(proc, pid, of, since_ns) {
                Ok(false) => {}
                Ok(true) => looked.misses(pid, &error),
                Err(error) => looked.misses(pid, &error),
            },
        }
    }
    looked
}

/// Whether a process that cannot be inspected may descend from a program that was started for this PostgreSQL at
/// `since_ns`.
fn may_be_marked(proc: &Path, pid: i32, of: &Server, since_ns: u64) -> io::Result<bool> {
    let Some(user) = user_of(proc, pid)? else { return Ok(false) };
    let Some(ticks) = stat_field(proc, pid, 19)?.and_then(|ticks| ticks.parse::<u64>().ok()) else { return Ok(true) };
    // The kernel rounds down to a tick.
    let began_by = ticks.saturating_add(1).saturating_mul(TICK_NS);
    Ok(of.may_run_as(user) && began_by >= since_ns)
}

/// Processes with `word` at the beginning of one of their arguments, and this name. Those that cannot be inspected are
/// left out: nothing may be concluded from an absence.
pub fn of_name(name: &str, word: &str) -> Vec<i32> {
    let proc = Path::new(PROC);
    let fits = |pid: &i32| {
        let args = std::fs::read(proc.join(pid.to_string()).join("cmdline")).unwrap_or_default();
        name_of(proc, *pid).is_ok_and(|found| found.as_deref() == Some(name.as_bytes()))
            && args.split(|byte| *byte == 0).any(|arg| arg.starts_with(word.as_bytes()))
    };
    pids(proc, &mut None).into_iter().filter(fits).collect()
}

/// Sends a signal. It is no error if the process has ended.
pub fn signal(pid: i32, what: Signal) {
    if let Some(pid) = Pid::from_raw(pid).filter(|_| pid > 1) {
        let _ = kill_process(pid, what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;
    use std::time::Instant;
    use tokio::process::Command;

    fn anyones() -> Server {
        Server::for_test(Path::new("/srv/pg/data"), None)
    }

    #[test]
    fn processes_that_were_found_exist_even_if_others_could_not_be_inspected() {
        let missed = || Some(io::Error::other("no"));
        assert!(ProcessSearch { found: BTreeSet::from([7]), missed: missed() }.any().unwrap());
        assert!(ProcessSearch { found: BTreeSet::from([7]), missed: missed() }.whole().is_err());
        assert!(ProcessSearch { found: BTreeSet::new(), missed: missed() }.any().is_err(), "it may be there");
        assert!(!ProcessSearch::default().any().unwrap());
    }

    /// A process that may not be inspected has not ended.
    #[test]
    fn only_an_end_is_an_end() {
        for (errno, ended) in [
            (Errno::NOENT, true),
            (Errno::SRCH, true),
            (Errno::ACCESS, false),
            (Errno::PERM, false),
            (Errno::MFILE, false),
        ] {
            assert_eq!(of_living::<()>(Err(errno.into())).is_ok(), ended, "{errno}");
        }
        let mut looked = ProcessSearch::default();
        looked.misses(7, &Errno::ACCESS.into());
        assert!(looked.any().unwrap_err().to_string().contains("CAP_SYS_PTRACE"));
        assert!(hidden(&[7, 9], true).unwrap().to_string().contains("hidepid"));
        assert!(hidden(&[1, 7], true).is_none() && hidden(&[7], false).is_none());
    }

    /// If its state cannot be read, a process without arguments has not ended either.
    #[test]
    fn a_state_that_cannot_be_read_is_not_an_end() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("7/stat")).unwrap();
        std::fs::write(dir.path().join("7/cmdline"), "").unwrap();
        assert!(words_of(dir.path(), 7, "cmdline", 1).is_err());
        assert!(parent(dir.path(), 7).is_err());
        assert_eq!(parent(dir.path(), 8).unwrap(), None);
    }

    #[test]
    fn a_process_belongs_to_the_user_that_started_it() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("7")).unwrap();
        // A set-uid program of root's, started by user 1000.
        std::fs::write(dir.path().join("7/status"), "Name:\tpostgres\nUid:\t1000\t0\t0\t0\n").unwrap();
        assert_eq!(user_of(dir.path(), 7).unwrap(), Some(1000));
        assert_eq!(user_of(dir.path(), 8).unwrap(), None);
        let own = std::process::id().cast_signed();
        assert_eq!(user_of(Path::new(PROC), own).unwrap(), Some(rustix::process::getuid().as_raw()));
    }

    /// During an exec the arguments of the old or of the new program are found, never none.
    #[tokio::test]
    async fn arguments_are_seen_through_an_exec() {
        for exec in 0..200 {
            let mut command = Command::new("sh");
            command.args(["-c", "exec \"$0\" \"$@\"", "sh", "-c", "read _"]).stdin(Stdio::piped());
            let mut child = command.spawn().unwrap();
            let (pid, begun) = (child.id().unwrap().cast_signed(), Instant::now());
            loop {
                let words = words_of(Path::new(PROC), pid, "cmdline", BECOMING_LOOKS_MAX).unwrap().unwrap();
                assert!(!words.is_empty(), "exec {exec}");
                if words == b"sh\0-c\0read _\0" {
                    break;
                }
                assert!(begun.elapsed() < Duration::from_secs(20), "exec {exec}: {}", String::from_utf8_lossy(&words));
            }
            drop(child.stdin.take());
            child.wait().await.unwrap();
        }
    }

    /// Leftovers of a start are ended even if another process of the host cannot be inspected, and the result is not
    /// "none is left".
    #[test]
    fn a_mark_is_found_beside_a_process_that_cannot_be_inspected() {
        let dir = tempfile::tempdir().unwrap();
        for (pid, name) in [("7", &b"sh"[..]), ("8", b"sh"), ("9", b"aaaaaaaaaaaaaa\xc3")] {
            let of = dir.path().join(pid);
            std::fs::create_dir(&of).unwrap();
            std::fs::write(of.join("cmdline"), b"").unwrap();
            std::fs::write(of.join("environ"), b"").unwrap();
            let stat = [pid.as_bytes(), b" (", name, b") R 1 7 7 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 500 0"].concat();
            std::fs::write(of.join("stat"), stat).unwrap();
            std::fs::write(of.join("status"), "Uid:\t1000\t1000\t1000\t1000\n").unwrap();
        }
        std::fs::write(dir.path().join("8/environ"), b"HOME=/\0START=1 2\0").unwrap();
        let looked = of_mark_in(dir.path(), &anyones(), "START=1 2", 0);
        assert_eq!(looked.found, BTreeSet::from([8]));
        let why = looked.whole().unwrap_err().to_string();
        assert!(why.contains("shows no arguments"), "{why}");
        // It began five seconds after the boot: before a later start. Or it belongs to another user.
        let s = 1_000_000_000;
        let of = |users: &[u32]| Server::for_test(Path::new("/srv/pg/data"), Some(users));
        for (users, since, whole) in [(1000, 6 * s, true), (1000, 5 * s, false), (105, 5 * s, true), (1000, 0, false)] {
            let looked = of_mark_in(dir.path(), &of(&[users]), "START=1 2", since);
            assert_eq!(looked.whole().is_ok(), whole, "{users} since {since}");
        }
        // A name that is not UTF-8 changes nothing.
        std::fs::remove_dir_all(dir.path().join("7")).unwrap();
        let why = of_mark_in(dir.path(), &anyones(), "START=1 2", 0).whole().unwrap_err().to_string();
        assert!(why.starts_with("process 9: shows no arguments"), "{why}");
        std::fs::remove_dir_all(dir.path().join("9")).unwrap();
        assert_eq!(of_mark_in(dir.path(), &anyones(), "START=1 2", 0).whole().unwrap(), BTreeSet::from([8]));
    }

    #[test]
    fn many_processes_that_show_nothing_do_not_delay_a_search() {
        let dir = tempfile::tempdir().unwrap();
        for pid in 100..300 {
            let of = dir.path().join(pid.to_string());
            std::fs::create_dir(&of).unwrap();
            let (stat, status) = ("7 (sh) R 1 7 7 0 -1 4194304 0", "Uid:\t0\t0\t0\t0\n");
            for (file, text) in [("cmdline", ""), ("environ", ""), ("stat", stat), ("status", status)] {
                std::fs::write(of.join(file), text).unwrap();
            }
        }
        let begun = Instant::now();
        assert!(of_mark_in(dir.path(), &anyones(), "START=1", 0).missed.is_some());
        // All looks at each of them would take more than ten seconds.
        assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    }
}
