//! The ring on real files and pipes.

use super::*;
use rustix::fs::{OFlags, fcntl_setfl};
use std::io::{PipeReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

/// A ring, unless this machine forbids it.
fn ring() -> Option<Ring> {
    match Ring::open() {
        Ok(ring) => Some(ring),
        Err(error) => {
            holdfast_testkit::skipped(&format!("no io_uring here: {error}"));
            None
        }
    }
}

fn data(len: usize) -> AlignedBuf {
    let mut data = AlignedBuf::zeroed(len);
    for (at, byte) in data.iter_mut().enumerate() {
        *byte = (at / 7) as u8;
    }
    data
}

/// A pipe that takes no more, and how many bytes are in it.
fn full_pipe() -> (PipeReader, Arc<File>, usize) {
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    fcntl_setfl(&writer, OFlags::NONBLOCK).expect("a flag");
    let mut filled = 0;
    while let Ok(written) = writer.write(&[0; 4096]) {
        filled += written;
    }
    fcntl_setfl(&writer, OFlags::empty()).expect("a flag");
    (reader, Arc::new(File::from(OwnedFd::from(writer))), filled)
}

/// R9: an error is one of the sync, and final. A short write is none; nor is a refusal to wait, or a write that was
/// cancelled because its thread has ended or the kernel has none for it.
#[test]
fn only_a_whole_write_is_a_success() {
    let error = |verdict| match verdict {
        Verdict::Ended(Err(error)) => error,
        other => panic!("no error: {other:?}"),
    };
    assert!(matches!(judged(8192, 8192), Verdict::Ended(Ok(()))));
    assert!(matches!(judged(4096, 8192), Verdict::Short(4096)));
    assert_eq!(error(judged(0, 8192)).kind(), io::ErrorKind::WriteZero);
    for errno in [Errno::INTR, Errno::AGAIN, Errno::CANCELED] {
        let result = -errno.raw_os_error();
        assert!(matches!(judged(result, 8192), Verdict::Refused), "{errno}");
    }
    for errno in [Errno::IO, Errno::NOSPC, Errno::PERM] {
        let found = error(judged(-errno.raw_os_error(), 8192));
        assert_eq!(found.raw_os_error(), Some(errno.raw_os_error()), "{errno}");
    }
}

/// Where a filter forbids to enter a ring, a start must not wait for it.
#[test]
fn only_what_may_pass_is_waited_for() {
    for errno in [Errno::INTR, Errno::AGAIN, Errno::BUSY, Errno::NOMEM] {
        assert!(may_pass(&errno.into()), "{errno}");
    }
    for errno in [Errno::PERM, Errno::NOSYS, Errno::INVAL, Errno::BADF] {
        assert!(!may_pass(&errno.into()), "{errno}");
    }
}

#[test]
fn a_write_that_was_begun_is_there_at_its_end() {
    let Some(ring) = ring() else { return };
    let file = Arc::new(tempfile::tempfile().expect("a file"));
    assert!(ring.ended(true).is_none(), "there is no write to wait for");
    for (number, len) in [(0, 4096), (1, 3 * 4096)] {
        let at = number * 4096;
        ring.begin(&file, data(len), at);
        let (back, result) = ring.ended(true).expect("it has ended");
        result.expect("written");
        assert_eq!(&back[..], &data(len)[..], "the buffer comes back");
        let mut read = vec![0; len];
        file.read_exact_at(&mut read, at).expect("reads");
        assert_eq!(read, &data(len)[..]);
        assert!(ring.ended(true).is_none(), "told once");
    }
    let readable = tempfile::NamedTempFile::new().expect("a file");
    let readable = Arc::new(File::open(readable.path()).expect("opens"));
    ring.begin(&readable, data(4096), 0);
    let (_, result) = ring.ended(true).expect("it has ended");
    assert_eq!(result.expect_err("it may not be written").raw_os_error(), Some(Errno::BADF.raw_os_error()));
}

/// A pipe takes no more than it has room for.
#[test]
fn a_short_write_is_continued_where_it_ended() {
    let Some(ring) = ring() else { return };
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    let len = 160 << 10;
    let read = std::thread::spawn(move || {
        let mut read = vec![0; len];
        reader.read_exact(&mut read).map(|()| read)
    });
    let file = Arc::new(File::from(OwnedFd::from(writer)));
    ring.begin(&file, data(len), 0);
    let (_, result) = ring.ended(true).expect("it has ended");
    result.expect("written");
    let read = read.join().expect("no panic").expect("reads");
    assert!(read == data(len)[..], "all of it, in order");
}

/// The end of a runtime ends the thread that began a write; the journal's thread waits for it.
#[test]
fn a_write_outlives_the_thread_that_began_it() {
    let Some(ring) = ring() else { return };
    let (mut reader, file, filled) = full_pipe();
    std::thread::scope(|scope| {
        scope.spawn(|| ring.begin(&file, data(8192), 0));
    });
    assert!(ring.ended(false).is_none(), "there is no room");
    let read = std::thread::spawn(move || {
        let mut read = vec![0; filled + 8192];
        reader.read_exact(&mut read).map(|()| read)
    });
    let (_, result) = ring.ended(true).expect("it has ended");
    result.expect("written");
    let read = read.join().expect("no panic").expect("reads");
    assert!(read[filled..] == data(8192)[..], "once, and all of it");
}

/// A request that the kernel refused at first.
#[test]
fn what_is_stuck_is_written_once_somebody_waits() {
    let Some(ring) = ring() else { return };
    let file = Arc::new(tempfile::tempfile().expect("a file"));
    {
        let mut state = ring.state.locked();
        let flight = Flight { number: 1, data: data(4096), file: file.clone(), offset: 0, done: 0, by: By::Kernel };
        state.flight = Some(flight);
        state.queue();
        assert!(!ring.is_stuck(), "somebody has the ring");
    }
    assert!(ring.is_stuck());
    assert!(ring.ended(false).is_none());
    ring.ended(true).expect("it has ended").1.expect("written");
    assert!(!ring.is_stuck());
    let mut read = vec![0; 4096];
    file.read_exact_at(&mut read, 0).expect("reads");
    assert_eq!(read, &data(4096)[..]);
}

/// LOG-L2: at a limit of tasks the kernel cancels each write for which it needs a thread. That says nothing of the
/// disk, and the journal has a thread.
#[test]
fn what_the_kernel_refuses_twice_is_written_by_whoever_waits() {
    let Some(ring) = ring() else { return };
    let file = Arc::new(tempfile::tempfile().expect("a file"));
    let by = By::Kernel.next().next();
    {
        let mut state = ring.state.locked();
        // Of the twelve KiB the kernel has written four.
        state.flight =
            Some(Flight { number: 1, data: data(12 << 10), file: file.clone(), offset: 4096, done: 4096, by });
        state.request();
        assert!(state.ring.submission().is_empty(), "the kernel is not asked for it any more");
    }
    assert!(ring.is_stuck(), "the task calls the thread");
    assert!(ring.ended(false).is_none());
    let (back, result) = ring.ended(true).expect("it has ended");
    result.expect("written");
    assert_eq!(&back[..], &data(12 << 10)[..], "the buffer comes back");
    assert!(!ring.is_stuck() && ring.ended(true).is_none(), "told once");
    let mut read = vec![0; 16 << 10];
    file.read_exact_at(&mut read, 0).expect("reads");
    let (before, written) = read.split_at(8192);
    assert!(before.iter().all(|byte| *byte == 0), "what is durable is not written again");
    assert_eq!(written, &data(12 << 10)[4096..]);
    // An error of that write is one of the sync, and final.
    let readable = tempfile::NamedTempFile::new().expect("a file");
    let readable = Arc::new(File::open(readable.path()).expect("opens"));
    ring.state.locked().flight = Some(Flight { number: 1, data: data(4096), file: readable, offset: 0, done: 0, by });
    let (_, result) = ring.ended(true).expect("it has ended");
    assert_eq!(result.expect_err("it may not be written").raw_os_error(), Some(Errno::BADF.raw_os_error()));
}

/// R1: an answer to an earlier request says nothing of this one.
#[test]
fn the_end_of_another_write_is_not_taken_for_this_ones() {
    let Some(ring) = ring() else { return };
    let file = Arc::new(tempfile::tempfile().expect("a file"));
    ring.begin(&file, data(4096), 0);
    {
        let mut state = ring.state.locked();
        state.leak();
        state.ring.submit_and_wait(1).expect("it has ended");
    }
    let (_reader, full, _) = full_pipe();
    ring.begin(&full, data(4096), 0);
    let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| ring.ended(false).is_some()));
    assert!(told.is_err(), "told as ended: {told:?}");
}

/// The journal's task sleeps until the kernel wakes it.
#[tokio::test]
async fn the_end_of_a_write_wakes_a_task() {
    let Some(ring) = ring() else { return };
    let (ring, file) = (Arc::new(ring), Arc::new(tempfile::tempfile().expect("a file")));
    let ends = Ends::of(ring.clone()).expect("a runtime with I/O");
    for round in 0..20 {
        ring.begin(&file, data(8192), round * 8192);
        assert!(!ring.is_stuck());
        loop {
            ends.next().await.expect("the runtime lives");
            if let Some((_, result)) = ring.ended(false) {
                break result.expect("written");
            }
        }
    }
}
