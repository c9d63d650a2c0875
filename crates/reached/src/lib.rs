//! Probes: `reached!("lease: another term's vote ends it")` counts how often a rare state is reached (ADR 0039).
//!
//! Owns: the macro, the counters of this process, the lines that it adds to a file. Does not own: the list of all
//! probes and the table of all runs (`cargo xtask reached` reads both from files). Depends on nothing.
//!
//! A build without debug assertions (release, demo) has no probes: the macro expands to an empty block there.
//! Otherwise a probe is a static counter and costs one relaxed addition. It reads no clock, draws no random number and
//! answers nothing, so that pure crates may use it and simulated runs stay the same.
//!
//! A process writes counts only where the environment variable [`FILE`] names a file. By default it adds a line when a
//! probe is reached for the first time, because test programs and killed gateways have no end at which to write. A
//! program that calls `hold_back` writes all counts at its end by `write` and nothing before.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The environment variable with the file to which counts are added, as JSON lines.
pub const FILE: &str = "HOLDFAST_REACHED";

/// Counts that this place was reached. The text is `room: what happened`, and unique in the tree. With a condition:
/// that it was reached and the condition was true. The condition must have no effect: a release build does not evaluate
/// it.
#[cfg(debug_assertions)]
#[macro_export]
macro_rules! reached {
    ($probe:literal) => {{
        static SITE: $crate::Site = $crate::Site::new($probe);
        SITE.reach();
    }};
    ($probe:literal, $condition:expr) => {
        if $condition {
            $crate::reached!($probe);
        }
    };
}

/// Nothing: this build has no debug assertions.
#[cfg(not(debug_assertions))]
#[macro_export]
macro_rules! reached {
    ($probe:literal $(, $condition:expr)?) => {{}};
}

/// One probe in the code. Made by [`reached!`] only.
#[derive(Debug)]
pub struct Site {
    probe: &'static str,
    count: AtomicU64,
}

/// All probes that were reached in this process, in the order in which they were first reached.
static SITES: Mutex<Vec<&'static Site>> = Mutex::new(Vec::new());

/// Set by [`hold_back`].
static HELD_BACK: AtomicBool = AtomicBool::new(false);

impl Site {
    /// A probe that was not reached yet.
    pub const fn new(probe: &'static str) -> Self {
        Self { probe, count: AtomicU64::new(0) }
    }

    /// Counts. The first time in a process, the probe also adds itself to the list.
    pub fn reach(&'static self) {
        if self.count.fetch_add(1, Relaxed) == 0 {
            self.register();
        }
    }

    #[cold]
    fn register(&'static self) {
        SITES.lock().unwrap_or_else(PoisonError::into_inner).push(self);
        if !HELD_BACK.load(Relaxed)
            && let Some(mut file) = at_once()
        {
            // One write for each line: several processes append to the file. A probe must not end a process.
            drop(file.write_all(line(self.probe, 1, "").as_bytes()));
        }
    }
}

/// The file for lines that are written at once. It stays open: a process may lose the right to open it.
fn at_once() -> Option<&'static File> {
    static AT_ONCE: OnceLock<Option<File>> = OnceLock::new();
    AT_ONCE.get_or_init(|| appended(Path::new(&std::env::var_os(FILE)?)).ok()).as_ref()
}

fn appended(path: &Path) -> std::io::Result<File> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    OpenOptions::new().create(true).append(true).open(path)
}

/// A line of JSON. The texts need no escapes: `cargo xtask tidy` refuses probes with quotes or backslashes.
fn line(probe: &str, count: u64, by: &str) -> String {
    let by = if by.is_empty() { String::new() } else { format!(",\"by\":\"{by}\"") };
    format!("{{\"probe\":\"{probe}\",\"count\":{count}{by}}}\n")
}

/// From now on this process writes nothing at once, only by `write`. Call it before the first probe can be reached.
pub fn hold_back() {
    HELD_BACK.store(true, Relaxed);
}

/// The probes that were reached in this process, sorted by name, and how often each was.
pub fn counts() -> Vec<(&'static str, u64)> {
    let sites = SITES.lock().unwrap_or_else(PoisonError::into_inner);
    let mut counts: Vec<_> = sites.iter().map(|site| (site.probe, site.count.load(Relaxed))).collect();
    counts.sort_unstable();
    counts
}

/// Adds all counts of this process to `KIND.jsonl`, beside the file that [`FILE`] names; does nothing without this
/// variable. `by` says how to repeat the run. It has no quotes and no backslashes.
///
/// # Errors
/// When the file cannot be written.
pub fn write(kind: &str, by: &str) -> std::io::Result<()> {
    let Some(file) = std::env::var_os(FILE) else { return Ok(()) };
    let lines: String = counts().into_iter().map(|(probe, count)| line(probe, count, by)).collect();
    if lines.is_empty() {
        return Ok(());
    }
    appended(&Path::new(&file).with_file_name(format!("{kind}.jsonl")))?.write_all(lines.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn twice() {
        reached!("test: reached twice");
    }

    fn generic<T>(_: T) {
        reached!("test: a generic function has one counter");
    }

    fn if_odd(number: u32) {
        reached!("test: reached with an odd number", number % 2 == 1);
        reached!("test: never reached", number > 9);
    }

    #[test]
    fn reached_probes_are_counted_and_the_others_are_not_listed() {
        twice();
        twice();
        generic(1);
        generic("one");
        (1..=5).for_each(if_odd);
        let expected: &[_] = &[
            ("test: a generic function has one counter", 2),
            ("test: reached twice", 2),
            ("test: reached with an odd number", 3),
        ];
        // A build without debug assertions counts nothing.
        assert_eq!(counts(), if cfg!(debug_assertions) { expected } else { &[] });
    }

    #[test]
    fn a_line_is_json() {
        assert_eq!(line("lease: it ended", 3, ""), "{\"probe\":\"lease: it ended\",\"count\":3}\n");
        assert_eq!(line("a: b", 1, "--seed 7"), "{\"probe\":\"a: b\",\"count\":1,\"by\":\"--seed 7\"}\n");
    }
}
