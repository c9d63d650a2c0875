//! The ring on real files and pipes.

use super::*;
use rustix::io::Errno;
use std::io::Read;
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

/// R9: an error is one of the sync, and final. A short write is none, and a refusal to wait is none either, once.
#[test]
fn only_a_whole_write_is_a_success() {
    let error = |verdict| match verdict {
        Verdict::Ended(Err(error)) => error,
        other => panic!("no error: {other:?}"),
    };
    assert!(matches!(judged(8192, 8192, false), Verdict::Ended(Ok(()))));
    assert!(matches!(judged(4096, 8192, false), Verdict::Short(4096)));
    assert_eq!(error(judged(0, 8192, false)).kind(), io::ErrorKind::WriteZero);
    for errno in [Errno::INTR, Errno::AGAIN] {
        let result = -errno.raw_os_error();
        assert!(matches!(judged(result, 8192, false), Verdict::Refused), "{errno}");
        assert_eq!(error(judged(result, 8192, true)).raw_os_error(), Some(errno.raw_os_error()));
    }
    for errno in [Errno::IO, Errno::NOSPC, Errno::CANCELED] {
        let found = error(judged(-errno.raw_os_error(), 8192, false));
        assert_eq!(found.raw_os_error(), Some(errno.raw_os_error()), "{errno}");
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
