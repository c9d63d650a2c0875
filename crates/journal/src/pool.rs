//! Buffers of reads, which are used again. Fresh memory of their size is mapped and cleared page by page, and then a
//! read overwrites all of it.

use crate::AlignedBuf;
use holdfast_types::sync::LockExt;
use std::sync::Mutex;

/// Shorter buffers come from the allocator, which has memory of that size at hand.
const BYTES_MIN: usize = 32 << 10;
/// Longer ones are rare: this is one call of a checkpoint, twice over.
const BYTES_MAX: usize = 1 << 20;
/// Bytes of all buffers that wait to be used again, at most.
const WAITING_BYTES_MAX: usize = 4 << 20;

/// The pool of this process.
pub(crate) static POOL: Pool = Pool::new();

/// Buffers that wait to be used again.
#[derive(Debug)]
pub(crate) struct Pool {
    waiting: Mutex<Vec<AlignedBuf>>,
}

/// A buffer for one read. It goes back to its pool when it is dropped.
#[derive(Debug)]
pub(crate) struct ReadBuf {
    buf: AlignedBuf,
    pool: &'static Pool,
}

impl Pool {
    const fn new() -> Self {
        Self { waiting: Mutex::new(Vec::new()) }
    }

    /// A buffer of `len` bytes. They are of an earlier read: the caller MUST overwrite all of them before it shows any.
    pub(crate) fn take(&'static self, len: usize) -> ReadBuf {
        // A much longer one would be kept in memory by what is read into it.
        let fits = |buf: &AlignedBuf| (len..=len + len / 4).contains(&buf.capacity());
        let mut waiting = self.waiting.locked();
        let found = waiting.iter().rposition(fits).map(|at| waiting.swap_remove(at));
        drop(waiting);
        let mut buf = found.unwrap_or_else(|| AlignedBuf::with_capacity(len));
        buf.expose(len);
        ReadBuf { buf, pool: self }
    }
}

impl Drop for ReadBuf {
    fn drop(&mut self) {
        let buf = std::mem::take(&mut self.buf);
        if !(BYTES_MIN..=BYTES_MAX).contains(&buf.capacity()) {
            return;
        }
        let mut waiting = self.pool.waiting.locked();
        let bytes: usize = waiting.iter().map(AlignedBuf::capacity).sum();
        if bytes + buf.capacity() <= WAITING_BYTES_MAX {
            waiting.push(buf);
        }
    }
}

impl ReadBuf {
    /// Bytes that it takes.
    pub(crate) fn capacity(&self) -> usize {
        self.buf.capacity()
    }
}

impl std::ops::Deref for ReadBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.buf
    }
}

impl std::ops::DerefMut for ReadBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.buf
    }
}

impl AsRef<[u8]> for ReadBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BLOCK_BYTES;

    fn pool() -> &'static Pool {
        Box::leak(Box::new(Pool::new()))
    }

    #[test]
    fn a_buffer_is_used_again_by_a_read_of_about_its_length() {
        let pool = pool();
        let buf = pool.take(100_000);
        assert_eq!((buf.len(), buf.as_ptr().align_offset(BLOCK_BYTES)), (100_000, 0));
        let place = buf.as_ptr();
        drop(buf);
        for other in [50_000, 200_000] {
            assert_ne!(pool.take(other).as_ptr(), place, "{other} bytes");
        }
        let again = pool.take(98_000);
        assert_eq!((again.len(), again.as_ptr()), (98_000, place));
        assert_ne!(pool.take(98_000).as_ptr(), place, "it is in use");
    }

    #[test]
    fn what_waits_is_bounded() {
        let pool = pool();
        let waiting = || pool.waiting.locked().iter().map(AlignedBuf::capacity).sum::<usize>();
        for len in [1, BYTES_MIN - BLOCK_BYTES, BYTES_MAX + 1] {
            drop(pool.take(len));
            assert_eq!(waiting(), 0, "{len} bytes");
        }
        let in_use: Vec<ReadBuf> = (0..100).map(|_| pool.take(100_000)).collect();
        drop(in_use);
        assert!((WAITING_BYTES_MAX / 2..=WAITING_BYTES_MAX).contains(&waiting()), "{}", waiting());
    }
}
