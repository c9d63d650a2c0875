//! Processes: programs with a time limit, and finding and ending what belongs to one PostgreSQL.

mod said;

use rustix::process::{Pid, Signal, kill_process};
use said::Said;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::process::{Child, Command};

/// What is kept of what a program says, in bytes.
pub const SAID_BYTES_MAX: usize = 16 << 10;

/// How long the end of a program's output is waited for after its own: what it left in the background may keep the pipe for ever. What lies in the pipe by then is
/// read in any case.
const AFTERWORDS: Duration = Duration::from_millis(100);

/// Pause between two looks at processes that are ending.
const LOOK_PAUSE: Duration = Duration::from_millis(10);

/// How often a process that is just becoming another program is looked at before nothing is known of it, and the pause between; it takes less than a millisecond.
const BECOMING_LOOKS_MAX: u32 = 50;
const BECOMING_PAUSE: Duration = Duration::from_millis(1);

/// In the flags of a process's `stat`: one of the kernel's own (PF_KTHREAD), or one that is ending (PF_EXITING, which has let go of its memory first and goes
/// on being found by where it works until it has let go of its files): neither has arguments.
const NO_MEMORY: u64 = 0x0020_0000 | 0x4;

/// Where the kernel shows processes.
const PROC: &str = "/proc";

/// Programs that were killed and are still there, by their whole command line: they stand in the kernel, for as long as a device does not answer.
static LEFT: Mutex<BTreeMap<String, (Child, Instant)>> = Mutex::new(BTreeMap::new());

/// Why there is no [`Ran`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotRan {
    /// It could not be started, or not be looked at: nothing is known of what it was to find out.
    Unable(String),
    /// It did not end in time.
    Late(String),
}

impl fmt::Display for NotRan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (NotRan::Unable(why) | NotRan::Late(why)) = self;
        f.write_str(why)
    }
}

impl From<NotRan> for String {
    fn from(not: NotRan) -> Self {
        not.to_string()
    }
}

/// How a program ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    /// Exit code, `None` after a signal.
    pub code: Option<i32>,
    /// Its output.
    pub out: String,
    /// Its words of error.
    pub err: String,
}

fn shown(command: &Command) -> String {
    let command = command.as_std();
    let mut text = command.get_program().to_string_lossy().into_owned();
    for arg in command.get_args() {
        let _ = write!(text, " {}", arg.to_string_lossy());
    }
    text
}

/// An earlier one of the same command line that was killed and is still there; since when.
fn left_since(name: &str) -> Option<Instant> {
    let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
    left.retain(|_, (child, _)| matches!(child.try_wait(), Ok(None)));
    left.get(name).map(|(_, since)| *since)
}

/// The command lines of those for which `is` holds, of the programs that were killed and hang in the kernel. Waits for nothing.
pub fn hanging(is: impl Fn(&str) -> bool) -> Vec<String> {
    let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
    left.retain(|_, (child, _)| matches!(child.try_wait(), Ok(None)));
    left.keys().filter(|name| is(name)).cloned().collect()
}

/// Runs `command` for at most `limit`, then kills it; whatever its exit code is. While an earlier one of the same command line hangs in the kernel, no further one
/// is started: that would hang as well, and each would stay.
///
/// # Errors
/// It could not be started, or took too long.
pub async fn ran(mut command: Command, limit: Duration) -> Result<Ran, NotRan> {
    let name = shown(&command);
    if let Some(since) = left_since(&name) {
        let since = since.elapsed().as_secs();
        return Err(NotRan::Late(format!(
            "{name}: not started: an earlier one hangs in the kernel, killed {since} s ago"
        )));
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().map_err(|error| NotRan::Unable(format!("{name}: {error}")))?;
    let (out, err) = (Said::of(child.stdout.take()), Said::of(child.stderr.take()));
    let waited = tokio::time::timeout(limit, child.wait()).await;
    let (out, err) = tokio::join!(out.whole(), err.whole());
    match waited {
        Ok(Ok(status)) => Ok(Ran { code: status.code(), out, err }),
        Ok(Err(error)) => Err(NotRan::Unable(format!("{name}: {error}"))),
        Err(_) => {
            let late = NotRan::Late(format!("{name}: not within {} ms; {err}", limit.as_millis()));
            let _ = child.start_kill();
            // Hardly waited for: a process in an uninterruptible wait on a dead device ends when the device is let go of.
            if tokio::time::timeout(AFTERWORDS, child.wait()).await.is_err() {
                let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
                left.insert(name, (child, Instant::now()));
            }
            Err(late)
        }
    }
}

/// As [`ran`]; any exit code but 0 is an error.
///
/// # Errors
/// Those too.
pub async fn run(command: Command, limit: Duration) -> Result<String, String> {
    run_explained(command, limit, "", |_| String::new()).await
}

/// The same; `late`, if it is not empty, is what a program that took too long may have been at, and `failed` makes words of what one that failed said; either goes
/// with the error.
///
/// # Errors
/// As [`run`].
pub async fn run_explained(
    command: Command,
    limit: Duration,
    late: &str,
    failed: fn(&Ran) -> String,
) -> Result<String, String> {
    let name = shown(&command);
    let ran = ran(command, limit).await.map_err(|not| match not {
        NotRan::Late(why) if !late.is_empty() => format!("{why} ({late})"),
        not => not.to_string(),
    })?;
    match ran.code {
        Some(0) => Ok(ran.out),
        code => {
            let ended = code.map_or_else(|| "was killed".to_string(), |code| format!("exit code {code}"));
            let more = Some(failed(&ran)).filter(|more| !more.is_empty());
            let more = more.map_or_else(String::new, |more| format!(" ({more})"));
            Err(format!("{name}: {ended}: {}{more}", if ran.err.is_empty() { ran.out } else { ran.err }))
        }
    }
}

/// A program of the system's, found also where root's paths are left out of PATH.
pub fn system(program: &str) -> Command {
    let full = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(|dir| Path::new(dir).join(program));
    full.iter().find(|path| path.is_file()).map_or_else(|| Command::new(program), Command::new)
}

/// What a process shows, `None` for one that has ended meanwhile.
fn of_living<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Ok(found) => Ok(Some(found)),
        // The second: of a process that has ended and was not reaped yet.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => Ok(None),
        // Of another user, seen by one who is not root: none of ours.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(None),
        Err(error) => Err(error),
    }
}

fn pids(proc: &Path) -> io::Result<Vec<i32>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(proc)? {
        found.extend(entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    Ok(found)
}

/// A field of a process's `stat`, counted from behind its name: 0 the state, 1 the parent, 6 the flags.
fn stat_field(proc: &Path, pid: i32, field: usize) -> Option<String> {
    let text = std::fs::read_to_string(proc.join(pid.to_string()).join("stat")).ok()?;
    // The second field is the program's name in brackets and may hold blanks.
    text.rsplit_once(')')?.1.split_whitespace().nth(field).map(str::to_string)
}

fn parent(proc: &Path, pid: i32) -> Option<i32> {
    stat_field(proc, pid, 1)?.parse().ok()
}

/// Whether a process has memory of its own: it lives, is not ending, and is none of the kernel's.
fn has_memory(proc: &Path, pid: i32) -> bool {
    let lives = stat_field(proc, pid, 0).is_some_and(|state| !matches!(state.as_str(), "Z" | "X"));
    let flags = stat_field(proc, pid, 6).and_then(|flags| flags.parse::<u64>().ok());
    lives && flags.is_some_and(|flags| flags & NO_MEMORY == 0)
}

/// The arguments (`cmdline`) or the environment (`environ`) of a process; `None` of one that has ended. In the middle of an exec, where a process has its new memory
/// and nothing is written there yet, it shows neither: then those that it has after it.
fn words_of(proc: &Path, pid: i32, what: &str) -> io::Result<Option<Vec<u8>>> {
    let read = |what: &str| of_living(std::fs::read(proc.join(pid.to_string()).join(what)));
    for _ in 0..BECOMING_LOOKS_MAX {
        let before = read("cmdline")?;
        let words = read(what)?;
        // An environment can be empty where no exec is under way; arguments never are.
        let settled =
            || Ok::<_, io::Error>(before.as_ref().is_some_and(|args| !args.is_empty()) && before == read("cmdline")?);
        if words.as_ref().is_none_or(|words| !words.is_empty())
            || !has_memory(proc, pid)
            || what != "cmdline" && settled()?
        {
            return Ok(words);
        }
        std::thread::sleep(BECOMING_PAUSE);
    }
    Err(io::Error::other(format!("process {pid} shows no arguments: neither running a program nor ended")))
}

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

/// Whether a program of this name is PostgreSQL's server. Some packages of before version 16 start it by its older name.
fn is_server(name: &str) -> bool {
    matches!(name, "postgres" | "postmaster")
}

/// Whether these arguments of a shell's are those of one that becomes the server of `data`: the server's program is among them.
fn becomes_server(args: &[u8], data: &Path) -> bool {
    let mut words = args.split(|byte| *byte == 0).filter_map(|arg| std::str::from_utf8(arg).ok());
    words.any(|arg| Path::new(arg).file_name().is_some_and(|name| is_server(&name.to_string_lossy())))
        && names_data(args, data)
}

/// The processes of the PostgreSQL whose data directory is `data`: each server process works there, or was told to (`-D`) and has only its configuration to read
/// before it goes there, or is still the shell that becomes it; and what it started itself there, such as an archive command. Reads nothing from the device below `data`.
///
/// # Errors
/// It could not be looked (no more file descriptors): that says nothing of what there is.
pub fn of_postgres(data: &Path) -> io::Result<BTreeSet<i32>> {
    of_postgres_in(Path::new(PROC), data)
}

fn of_postgres_in(proc: &Path, data: &Path) -> io::Result<BTreeSet<i32>> {
    let (mut found, mut others) = (BTreeSet::new(), Vec::new());
    for pid in pids(proc)? {
        let of = proc.join(pid.to_string());
        let works_there = of_living(std::fs::read_link(of.join("cwd")))?.is_some_and(|cwd| cwd == data);
        let Some(name) = of_living(std::fs::read_to_string(of.join("comm")))? else { continue };
        let is_server = is_server(name.trim_end());
        let is_shell = matches!(name.trim_end(), "sh" | "dash" | "bash");
        if works_there && is_server {
            found.insert(pid);
        } else if works_there {
            others.push(pid);
        } else if is_server || is_shell {
            let Some(args) = words_of(proc, pid, "cmdline")? else { continue };
            if is_server && names_data(&args, data) || is_shell && becomes_server(&args, data) {
                found.insert(pid);
            }
        }
    }
    while let Some(at) = others.iter().position(|pid| parent(proc, *pid).is_some_and(|parent| found.contains(&parent)))
    {
        found.insert(others.swap_remove(at));
    }
    Ok(found)
}

/// Processes with `name=value` in their environment: what a program started, and what that started, until one of them changes it.
///
/// # Errors
/// It could not be looked.
pub fn of_mark(name: &str, value: &str) -> io::Result<Vec<i32>> {
    let (mark, mut found) = (format!("{name}={value}"), Vec::new());
    for pid in pids(Path::new(PROC))? {
        let environment = words_of(Path::new(PROC), pid, "environ")?.unwrap_or_default();
        if environment.split(|byte| *byte == 0).any(|word| word == mark.as_bytes()) {
            found.push(pid);
        }
    }
    Ok(found)
}

/// The words for not having been able to look.
pub fn unlooked(error: &io::Error) -> String {
    format!("could not look for processes of PostgreSQL: {error}")
}

/// The first of them: the one whose parent is none of them.
pub fn postmaster(of: &BTreeSet<i32>) -> Option<i32> {
    of.iter().copied().find(|pid| parent(Path::new(PROC), *pid).is_some_and(|parent| !of.contains(&parent)))
}

/// Processes with `word` at the beginning of one of their arguments, and this name.
pub fn of_name(name: &str, word: &str) -> Vec<i32> {
    let fits = |pid: &i32| {
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let args = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        comm.trim_end() == name && args.split(|byte| *byte == 0).any(|arg| arg.starts_with(word.as_bytes()))
    };
    pids(Path::new(PROC)).unwrap_or_default().into_iter().filter(fits).collect()
}

/// Sends a signal. A process that is gone is no error.
pub fn signal(pid: i32, what: Signal) {
    if let Some(pid) = Pid::from_raw(pid).filter(|_| pid > 1) {
        let _ = kill_process(pid, what);
    }
}

/// SIGKILL to all of that PostgreSQL, also to what comes up meanwhile, until none is left. Blocks.
///
/// # Errors
/// Some are left after `limit`: they wait on the device. Or it could not be looked whether any is.
pub fn kill_postgres(data: &Path, limit: Duration) -> Result<(), String> {
    kill_postgres_in(Path::new(PROC), data, limit)
}

fn kill_postgres_in(proc: &Path, data: &Path, limit: Duration) -> Result<(), String> {
    let begun = Instant::now();
    loop {
        let left = match of_postgres_in(proc, data) {
            Ok(left) if left.is_empty() => return Ok(()),
            Ok(left) => left,
            Err(error) if begun.elapsed() >= limit => return Err(unlooked(&error)),
            Err(_) => {
                std::thread::sleep(LOOK_PAUSE);
                continue;
            }
        };
        left.iter().for_each(|pid| signal(*pid, Signal::KILL));
        if begun.elapsed() >= limit {
            return Err(format!(
                "{} processes of PostgreSQL are left {} ms after SIGKILL",
                left.len(),
                limit.as_millis()
            ));
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

/// The last `lines` lines of a file, for an error's words.
pub fn tail(path: &Path, lines: usize) -> String {
    let text = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text[text.len().saturating_sub(SAID_BYTES_MAX)..]).into_owned();
    let all: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    all[all.len().saturating_sub(lines)..].join(" | ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.arg("-c").arg(script);
        command
    }

    #[tokio::test]
    async fn programs_end_in_time_and_say_why_they_failed() {
        assert_eq!(run(sh("echo hello"), Duration::from_secs(10)).await.unwrap(), "hello");
        let error = run(sh("echo no room >&2; exit 3"), Duration::from_secs(10)).await.unwrap_err();
        assert!(error.contains("exit code 3: no room"), "{error}");
        let begun = Instant::now();
        let error = run(sh("sleep 60"), Duration::from_millis(100)).await.unwrap_err();
        assert!(error.contains("not within 100 ms"), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(30));
        let said = |ran: &Ran| format!("it said {:?}", ran.out);
        let late = run_explained(sh("sleep 61"), Duration::from_millis(100), "it sleeps", said).await.unwrap_err();
        assert!(late.contains("not within 100 ms") && late.ends_with("(it sleeps)"), "{late}");
        let failing = sh("echo no room >&2; echo why; exit 3");
        let failed = run_explained(failing, Duration::from_secs(10), "it sleeps", said).await.unwrap_err();
        assert!(failed.ends_with("3: no room (it said \"why\")") && !failed.contains("it sleeps"), "{failed}");
    }

    #[tokio::test]
    async fn what_a_program_leaves_in_the_background_is_not_waited_for() {
        let begun = Instant::now();
        assert_eq!(run(sh("sleep 60 & echo started"), Duration::from_secs(30)).await.unwrap(), "started");
        assert!(begun.elapsed() < Duration::from_secs(20));
    }

    #[tokio::test]
    async fn a_server_is_found_by_where_it_works_and_ended_with_what_it_started() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().canonicalize().unwrap();
        // The name of a process is that of its file.
        let program = data.join("postgres");
        std::os::unix::fs::symlink("/bin/sh", &program).unwrap();
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

    /// "Could not look" is not "nothing is there": who is told that none is left lets the lease go.
    #[test]
    fn what_cannot_be_looked_at_is_not_gone() {
        let dir = tempfile::tempdir().unwrap();
        let (data, limit) = (Path::new("/nothing/works/here"), Duration::from_millis(20));
        assert!(kill_postgres_in(&dir.path().join("proc"), data, limit).unwrap_err().contains("could not look"));
        assert_eq!(kill_postgres_in(dir.path(), data, limit), Ok(()), "nobody is there");
        // A process of which not all can be read.
        std::fs::create_dir_all(dir.path().join("7/comm")).unwrap();
        std::os::unix::fs::symlink(data, dir.path().join("7/cwd")).unwrap();
        assert!(of_postgres_in(dir.path(), data).is_err());
        assert!(kill_postgres_in(dir.path(), data, limit).is_err());
        // One that has ended meanwhile.
        std::fs::remove_dir_all(dir.path().join("7/comm")).unwrap();
        assert_eq!(of_postgres_in(dir.path(), data).unwrap(), BTreeSet::new());
    }

    /// In the middle of an exec a process shows no arguments. Not to be taken for one that is not there: "none is left" lets the lease go.
    #[test]
    fn what_just_becomes_the_server_is_not_gone() {
        let (dir, data) = (tempfile::tempdir().unwrap(), Path::new("/srv/pg/data"));
        let of = dir.path().join("7");
        std::fs::create_dir(&of).unwrap();
        let shows = |file: &str, text: &str| std::fs::write(of.join(file), text).unwrap();
        std::os::unix::fs::symlink("/", of.join("cwd")).unwrap();
        shows("comm", "postgres\n");
        shows("cmdline", "");
        shows("stat", "7 (postgres) R 1 7 7 0 -1 4194304 0");
        let why = of_postgres_in(dir.path(), data).unwrap_err().to_string();
        assert!(why.contains("process 7 shows no arguments"), "{why}");
        assert!(words_of(dir.path(), 7, "cmdline").is_err());
        // Ended and not reaped; ending; one of the kernel's own.
        for stat in [
            "7 (postgres) R 1 7 7 0 -1 4194308 0",
            "7 (postgres) Z 1 7 7 0 -1 4194304 0",
            "7 (postgres) S 2 0 0 0 -1 2129984 0",
        ] {
            shows("stat", stat);
            assert_eq!(of_postgres_in(dir.path(), data).unwrap(), BTreeSet::new(), "{stat}");
        }
        shows("cmdline", "postgres\0-D\0/srv/pg/data\0");
        assert_eq!(of_postgres_in(dir.path(), data).unwrap(), BTreeSet::from([7]));
    }

    /// Looked at without a pause through many an exec: the old program's or the new one's, never none.
    #[tokio::test]
    async fn arguments_are_seen_through_an_exec() {
        for exec in 0..200 {
            let mut command = sh("exec \"$0\" \"$@\"");
            command.args(["sh", "-c", "read _"]).stdin(Stdio::piped());
            let mut child = command.spawn().unwrap();
            let (pid, begun) = (child.id().unwrap().cast_signed(), Instant::now());
            loop {
                let words = words_of(Path::new(PROC), pid, "cmdline").unwrap().unwrap();
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

    /// PostgreSQL reads its configuration before it goes into its data directory.
    #[tokio::test]
    async fn a_server_is_found_before_it_works_in_its_data_directory() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().canonicalize().unwrap().join("data");
        std::fs::create_dir(&data).unwrap();
        let program = dir.path().join("postgres");
        std::os::unix::fs::symlink("/bin/sh", &program).unwrap();
        let mut command = Command::new(&program);
        // One that starts nothing: what it forks counts as well, until it runs another program.
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

    /// One that hangs in the kernel is imitated by one that was not killed: it is kept as if it had been, and does not end.
    #[tokio::test]
    async fn what_hangs_in_the_kernel_is_not_started_again_and_again() {
        let command = || sh("exec sleep 61.125");
        let mut hung = command();
        hung.kill_on_drop(true);
        let name = shown(&command());
        let child = hung.spawn().unwrap();
        let pid = child.id().unwrap().cast_signed();
        let begun = Instant::now();
        while of_name("sleep", "61.125").is_empty() && begun.elapsed() < Duration::from_secs(20) {
            tokio::time::sleep(LOOK_PAUSE).await;
        }
        LEFT.lock().unwrap().insert(name.clone(), (child, Instant::now()));
        for _ in 0..10 {
            let why = run(command(), Duration::from_millis(1)).await.unwrap_err();
            assert!(why.contains("an earlier one hangs"), "{why}");
        }
        assert_eq!(of_name("sleep", "61.125"), [pid], "one, not eleven");
        assert_eq!(hanging(|command| command == name), std::slice::from_ref(&name));
        signal(pid, Signal::KILL);
        let begun = Instant::now();
        while left_since(&name).is_some() && begun.elapsed() < Duration::from_secs(20) {
            tokio::time::sleep(LOOK_PAUSE).await;
        }
        let why = run(command(), Duration::from_millis(50)).await.unwrap_err();
        assert!(why.contains("not within 50 ms"), "started anew: {why}");
    }
}
