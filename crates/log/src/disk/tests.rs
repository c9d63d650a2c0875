//! The real disk in a folder of the test's.

use super::*;

#[test]
fn only_a_refusal_switches_a_kind_of_writes_off() {
    let works = |errno: Errno| is_taken(Err(errno.into()));
    assert!(is_taken(Ok(())).expect("it worked"));
    for refusal in [Errno::INVAL, Errno::OPNOTSUPP, Errno::NOSYS] {
        assert!(!works(refusal).expect("refused"), "{refusal}");
    }
    assert!(works(Errno::NOSPC).expect("no refusal"), "a start on a full disk");
    assert!(works(Errno::DQUOT).expect("no refusal"));
    for says_nothing in [Errno::IO, Errno::MFILE] {
        assert_eq!(works(says_nothing).expect_err("no answer").raw_os_error(), Some(says_nothing.raw_os_error()));
    }
}

/// With `data_dir` made by hand, others may enter it.
#[test]
fn nobody_else_may_hold_the_lock_of_a_journal() {
    let dir = tempfile::tempdir().expect("a folder");
    let lock = dir.path().join(LOCK_NAME);
    let mode = || std::fs::metadata(&lock).expect("a lock").permissions().mode() & 0o777;
    drop(RealDisk::open(dir.path(), 1 << 20, 4).expect("opens"));
    assert_eq!(mode(), 0o600);
    std::fs::set_permissions(&lock, Permissions::from_mode(0o644)).expect("as an earlier version made it");
    drop(RealDisk::open(dir.path(), 1 << 20, 4).expect("opens"));
    assert_eq!(mode(), 0o600);
}

#[test]
fn a_synced_write_is_read_back_with_and_without_the_kernels_help() {
    let dir = tempfile::tempdir().expect("a folder");
    let disk = RealDisk::open(dir.path(), 1 << 20, 4).expect("opens");
    let mut file = disk.create("begin-1", 1 << 20).expect("room");
    let block = BLOCK_BYTES as u64;
    for (byte, dsync) in [(1_u8, file.dsync), (2, false)] {
        file.dsync = dsync;
        let mut data = AlignedBuf::zeroed(3 * BLOCK_BYTES);
        data.fill(byte);
        let at = u64::from(byte) * 4 * block;
        file.write_synced_at(&data, at).expect("written");
        let mut read = AlignedBuf::zeroed(5 * BLOCK_BYTES);
        file.read_at(&mut read, at - block).expect("read");
        let (before, written) = read.split_at(BLOCK_BYTES);
        let (written, behind) = written.split_at(3 * BLOCK_BYTES);
        assert_eq!(written, &data[..], "with the kernel's help: {dsync}");
        assert!(before.iter().chain(behind).all(|byte| *byte == 0), "nothing beside it");
    }
}

/// JOURNAL-J4: a process that was killed may have left a write to the kernel. All that a test can see of the wait
/// is the time of the last change.
#[test]
fn an_open_waits_for_writes_that_were_begun() {
    let dir = tempfile::tempdir().expect("a folder");
    let disk = RealDisk::open(dir.path(), 1 << 20, 4).expect("opens");
    if !disk.folder.dsync {
        return holdfast_testkit::skipped("nothing is begun on this file system");
    }
    let mut data = AlignedBuf::zeroed(BLOCK_BYTES);
    data.fill(7);
    disk.create("journal-1", 1 << 20).expect("room").write_synced_at(&data, 0).expect("written");
    let path = dir.path().join("journal-1");
    let long_ago = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1);
    OpenOptions::new().write(true).open(&path).expect("opens").set_modified(long_ago).expect("set");
    let changed = || std::fs::metadata(&path).expect("there").modified().expect("a time") != long_ago;
    assert!(!changed());
    let file = disk.open("journal-1").expect("opens");
    assert!(changed(), "it was opened without a wait");
    assert_eq!(file.bytes(), 1 << 20);
    let mut read = AlignedBuf::zeroed(BLOCK_BYTES);
    file.read_at(&mut read, 0).expect("read");
    assert_eq!(&read[..], &data[..], "nothing else has changed");
}

/// The contract of [`Disk::create`]: a failed call leaves nothing behind and may be repeated.
#[test]
fn a_file_that_was_not_begun_is_ready_still() {
    let dir = tempfile::tempdir().expect("a folder");
    let disk = RealDisk::open(dir.path(), 1 << 20, 4).expect("opens");
    disk.create("no such folder/begin-1", 1 << 20).err().expect("there is no place for it");
    let begun = std::time::Instant::now();
    loop {
        let mut known = disk.folder.ready.locked().names.clone();
        let mut there = names(dir.path()).expect("lists");
        there.retain(|name| name.starts_with("ready-"));
        known.sort_unstable();
        there.sort_unstable();
        // The filling thread creates a file before it announces it.
        if known == there && known.len() >= READY_WANTED {
            return;
        }
        assert!(begun.elapsed().as_secs() < 20, "on the disk are {there:?}, known are {known:?}");
        std::thread::yield_now();
    }
}

/// LOG-L2: files that somebody removed to free space end no journal.
#[test]
fn a_ready_file_that_is_gone_is_not_missed() {
    let dir = tempfile::tempdir().expect("a folder");
    let disk = RealDisk::open(dir.path(), 1 << 20, 4).expect("opens");
    let ready = || disk.folder.ready.locked().names.clone();
    let begun = std::time::Instant::now();
    while ready().len() < READY_WANTED {
        assert!(begun.elapsed().as_secs() < 20, "ready are {:?}", ready());
        std::thread::yield_now();
    }
    for name in ready() {
        std::fs::remove_file(dir.path().join(name)).expect("removed");
    }
    disk.create("begin-1", 1 << 20).expect("another one is made");
}

/// LOG-L2: nor do files that were being filled, which hold nothing.
#[test]
fn a_file_that_is_removed_while_it_is_filled_is_made_anew() {
    let dir = tempfile::tempdir().expect("a folder");
    let bytes = 4 << 20;
    let disk = RealDisk::open(dir.path(), bytes, 4).expect("opens");
    let path = |name: &str| dir.path().join(name);
    let named = |filled| disk.folder.named(&path("fill-700"), "ready-700".to_string(), filled);
    assert_eq!(named(Ok(())).expect("it is gone, and the disk works"), None);
    let error = || io::Error::from(io::ErrorKind::NotFound);
    assert_eq!(named(Err(error())).expect("it was gone before it was opened"), None);
    std::fs::write(path("fill-700"), "").expect("written");
    assert!(named(Err(error())).is_err() && !path("fill-700").exists(), "it is there: the disk has failed");
    assert!(named(Err(Errno::IO.into())).is_err(), "whether it is there or not");
    // While the journal begins files, somebody removes some that are being filled: fewer than are too many.
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let remover = scope.spawn(|| {
            let mut left = REMOVED_MAX - 1;
            while left > 0 && !done.load(std::sync::atomic::Ordering::Acquire) {
                for name in names(dir.path()).expect("lists") {
                    let removed = name.starts_with("fill-") && std::fs::remove_file(path(&name)).is_ok();
                    left = left.saturating_sub(u32::from(removed));
                }
            }
        });
        for number in 0..6 {
            let begun = disk.create(&format!("begin-{number}"), bytes);
            done.store(begun.is_err() || number == 5, std::sync::atomic::Ordering::Release);
            begun.expect("another one is made");
        }
        remover.join().expect("removes");
    });
    let why = disk.folder.all_removed(7).to_string();
    assert!(why.contains("fill-7") && why.contains("stop what removes files there"), "{why}");
}
