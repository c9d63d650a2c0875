//! A moment without file descriptors: the journal waits, and continues. In a process of its own, because the limit
//! applies to the whole process.

use bytes::Bytes;
use holdfast_log::{Entry, GroupLog, LogConfig, NodeLog};
use holdfast_types::{GroupId, LogId};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(20);

fn append(log: &GroupLog, index: u64) -> mpsc::Receiver<io::Result<()>> {
    let (sender, receiver) = mpsc::channel();
    let entry = Entry { id: LogId::new(1, index), payload: Bytes::from(vec![7; 1 << 20]) };
    log.append(vec![entry], move |result| sender.send(result).expect("the test waits"));
    receiver
}

fn files(dir: &Path, with: &str) -> Vec<PathBuf> {
    let all = std::fs::read_dir(dir).expect("lists").map(|entry| entry.expect("an entry").path());
    let mut found: Vec<PathBuf> =
        all.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(with))).collect();
    found.sort_unstable();
    found
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_moment_without_file_descriptors_is_waited_for() {
    let dir = tempfile::TempDir::new().expect("a folder");
    let config = LogConfig {
        file_bytes: 16 << 20,
        bound_bytes: 160 << 20,
        reserve_bytes: 32 << 20,
        tail_bytes: 1 << 20,
        ..LogConfig::new(dir.path())
    };
    let (node, _) = NodeLog::open(config).expect("opens");
    let log = node.group(GroupId(1));
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    append(&log, 0).recv().expect("called back").expect("durable");
    until("two files are ready", || files(dir.path(), "ready-").len() >= 2 && files(dir.path(), "fill-").is_empty());
    let oldest = files(dir.path(), "journal-").remove(0);

    // Open files stay open; no other file can be opened.
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(3), ..before }).expect("lowered");
    std::fs::File::open("/dev/null").expect_err("no file descriptor is left");
    // This fits into the file that was begun ahead; the next file cannot be begun.
    for index in 1..20 {
        append(&log, index).recv().expect("called back").expect("durable: a file was begun ahead");
    }
    until("it says that it waits", || node.usage().stalled.is_some() || node.usage().failed.is_some());
    runtime.block_on(log.purge(LogId::new(1, 19))).expect("durable");
    until("the oldest file is dropped", || !oldest.exists() || node.usage().failed.is_some());
    assert_eq!(node.usage().failed, None, "nothing was lost: no sync failed");
    until("it says why", || node.usage().stalled.is_some_and(|why| why.contains("open files")));
    // This needs more space than there is.
    let waiting: Vec<_> = (20..60).map(|index| append(&log, index)).collect();
    until("appends wait", || node.usage().stalled.is_some());

    setrlimit(Resource::Nofile, before).expect("raised");
    for (receiver, index) in waiting.into_iter().zip(20..) {
        let done = receiver.recv_timeout(LIMIT);
        let usage = node.usage();
        done.unwrap_or_else(|_| panic!("entry {index} waits still: {usage:?}")).expect("durable in the end");
    }
    until("it waits no more", || node.usage().stalled.is_none());
    assert_eq!(node.usage().failed, None);
    node.close();
    assert!(files(dir.path(), "begin-").is_empty() && files(dir.path(), "fill-").is_empty());
}
