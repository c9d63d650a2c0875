//! Tests that have nothing to ask on this machine say so: cargo counts them as passed, `cargo xtask test` does not.

use holdfast_types::sync::LockExt;
use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::Path;
use std::sync::Mutex;

/// Where `cargo xtask test` wants to read of them: a file, a line for each.
const NOTED_IN: &str = "HOLDFAST_TEST_SKIPPED";

/// The test harness runs tests on threads of their names; or all of them, one after the other, on this one.
const NO_TEST: &str = "main";

/// Tests of this process that are noted: one that misses two programs is one test.
static NOTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

fn this_test() -> String {
    std::thread::current().name().unwrap_or(NO_TEST).to_string()
}

/// Says that the calling test is passed over, and why. To be called on the test's own thread.
///
/// # Panics
/// When it cannot be noted.
pub fn skipped(why: &str) {
    println!("skipped: {why}");
    if let Some(path) = std::env::var_os(NOTED_IN) {
        note(Path::new(&path), &NOTED, &this_test(), why);
    }
}

/// The same for want of what `cargo xtask setup` installs.
///
/// # Panics
/// Where `CI` is set, too: there everything has to be that it installs.
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
    // One write: test binaries that run beside one another append to the same file.
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
