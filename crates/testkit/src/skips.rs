//! Reports of tests that cannot run on this machine: cargo counts them as passed, `cargo xtask test` does not.

use holdfast_types::sync::LockExt;
use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::Path;
use std::sync::Mutex;

/// Variable with the file for these reports, one line each; set by `cargo xtask test`.
const NOTED_IN: &str = "HOLDFAST_TEST_SKIPPED";

/// The test harness runs tests on threads with their names, or all of them, one after the other, on this one.
const NO_TEST: &str = "main";

/// Reported tests of this process: one that lacks two programs counts once.
static NOTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

fn this_test() -> String {
    std::thread::current().name().unwrap_or(NO_TEST).to_string()
}

/// Reports that the calling test is skipped, and why. Call it on the test's own thread.
///
/// # Panics
/// When it cannot be noted.
pub fn skipped(why: &str) {
    println!("skipped: {why}");
    if let Some(path) = std::env::var_os(NOTED_IN) {
        note(Path::new(&path), &NOTED, &this_test(), why);
    }
}

/// Like `skipped`, for something that `cargo xtask setup` installs.
///
/// # Panics
/// Also if `CI` is set: CI has everything that setup installs.
pub fn missing(what: &str) {
    let name = this_test();
    assert!(
        std::env::var_os("CI").is_none(),
        "{name} has nothing to ask, which CI does not pass over: {what} (cargo xtask setup)"
    );
    skipped(what);
}

fn note(path: &Path, noted: &Mutex<BTreeSet<String>>, name: &str, why: &str) {
    let first = noted.locked().insert(name.to_string());
    if !first && name != NO_TEST {
        return;
    }
    // One write: test binaries that run in parallel append to the same file.
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    let written = file.and_then(|mut file| file.write_all(format!("{name}: {why}\n").as_bytes()));
    written.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_is_noted_once_whatever_it_misses() {
        let dir = tempfile::tempdir().unwrap();
        let (path, noted) = (dir.path().join("skipped"), Mutex::default());
        for (name, why) in [("one", "no etcd"), ("two", "no fio"), ("one", "no etcdctl"), ("main", "a"), ("main", "b")]
        {
            note(&path, &noted, name, why);
        }
        let found = std::fs::read_to_string(path).unwrap();
        assert_eq!(found, "one: no etcd\ntwo: no fio\nmain: a\nmain: b\n");
    }

    #[test]
    fn a_test_knows_its_name() {
        let name = this_test();
        assert!(name == NO_TEST || name == "skips::tests::a_test_knows_its_name", "{name}");
    }
}
