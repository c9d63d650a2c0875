//! The receive buffer of a connection: large enough for many small requests per system call, exact for large payloads, and never
//! larger than what was paid for.

use super::limits::INPUT_SLACK_BYTES;
use bytes::{Bytes, BytesMut};

/// Size of an ordinary buffer in bytes. Small writes that share one keep it alive; it is what they are charged for.
pub(super) const CHUNK_BYTES: usize = (32 << 10) + INPUT_SLACK_BYTES as usize;
/// A buffer up to this size is kept for the next request of the same size.
const KEEP_BYTES_MAX: usize = (128 << 10) + INPUT_SLACK_BYTES as usize;
/// With less room than this, and next to nothing to carry over, a new buffer is taken rather than read in crumbs.
const ROOM_BYTES_MIN: usize = 4 << 10;
/// A payload below this length is copied out rather than keep its buffer alive.
const COPY_BYTES_MAX: usize = 2 << 10;

#[derive(Debug, Default)]
pub(super) struct Input {
    pub(super) bytes: BytesMut,
    /// Size of the allocation behind `bytes`.
    allocated: usize,
    /// Length of the last payload: the next one is often as long.
    expected: usize,
}

impl Input {
    /// Room for at least `more` bytes behind those that are there.
    pub(super) fn make_room(&mut self, more: usize) {
        let room = self.bytes.capacity() - self.bytes.len();
        let crumbs = self.bytes.len() < 32 && room < ROOM_BYTES_MIN;
        if room >= more && !crumbs {
            return;
        }
        let whole = self.bytes.len() + more;
        let slack = INPUT_SLACK_BYTES as usize;
        let ordinary = CHUNK_BYTES.max((self.expected + slack).min(KEEP_BYTES_MAX));
        let wanted = if whole > ordinary { whole + slack } else { ordinary };
        let keep = self.allocated <= KEEP_BYTES_MAX.max(wanted) && self.allocated >= wanted;
        if keep && self.bytes.try_reclaim(wanted - self.bytes.len()) {
            return;
        }
        let mut fresh = BytesMut::with_capacity(wanted);
        fresh.extend_from_slice(&self.bytes);
        self.allocated = wanted;
        self.bytes = fresh;
    }

    /// A payload that was just split off, in a form that is worth keeping, and the bytes of memory that it keeps.
    pub(super) fn keep(&mut self, payload: Bytes) -> (Bytes, u64) {
        self.expected = payload.len();
        if payload.len() < COPY_BYTES_MAX {
            let len = payload.len() as u64;
            return (Bytes::copy_from_slice(&payload), len);
        }
        let kept = self.allocated.max(payload.len()) as u64;
        (payload, kept)
    }

    /// What a payload of `len` bytes will keep, before its buffer is there.
    pub(super) fn cost_of(len: usize) -> u64 {
        CHUNK_BYTES.max(len + INPUT_SLACK_BYTES as usize) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lone_small_request_takes_no_new_buffer() {
        let mut input = Input::default();
        input.make_room(28);
        input.bytes.extend_from_slice(&[1; 28 + 4096]);
        let place = input.bytes.as_ptr();
        for _ in 0..100 {
            let request = input.bytes.split_to(28 + 4096).freeze();
            drop(request);
            input.make_room(28);
            input.bytes.extend_from_slice(&[1; 28 + 4096]);
            assert!(input.bytes.capacity() <= CHUNK_BYTES);
        }
        let offset = (input.bytes.as_ptr() as usize).wrapping_sub(place as usize);
        assert!(offset < CHUNK_BYTES, "the same allocation is used again");
    }

    #[test]
    fn large_payloads_get_a_buffer_of_their_own_and_the_next_one_uses_it_again() {
        let mut input = Input::default();
        input.make_room(28);
        input.bytes.extend_from_slice(&[1; CHUNK_BYTES]);
        let _ = input.bytes.split_to(28);
        let missing = (64 << 10) - input.bytes.len();
        input.make_room(missing);
        assert_eq!(input.bytes.capacity(), (64 << 10) + INPUT_SLACK_BYTES as usize);
        input.bytes.extend_from_slice(&vec![2; missing]);
        let payload = input.bytes.split_to(64 << 10).freeze();
        let place = payload.as_ptr();
        assert_eq!(input.keep(payload.clone()), (payload.clone(), (64 << 10) + 64));
        drop(payload);
        input.make_room(28);
        assert_eq!(input.bytes.as_ptr(), place);
        assert!(input.bytes.capacity() >= 28 + (64 << 10), "header and payload of the next fit as they are");
    }

    #[test]
    fn a_huge_buffer_is_not_kept() {
        let mut input = Input::default();
        input.make_room(32 << 20);
        assert!(input.bytes.capacity() >= 32 << 20);
        input.bytes.extend_from_slice(&vec![0; (32 << 20) + 64]);
        let _ = input.bytes.split_to((32 << 20) + 64);
        input.make_room(28);
        assert_eq!(input.bytes.capacity(), CHUNK_BYTES);
    }

    #[test]
    fn payloads_of_a_kind_arrive_whole_in_buffers_of_their_own() {
        let mut input = Input::default();
        let mut held = Vec::new();
        for round in 0..4 {
            input.make_room(28);
            let room = input.bytes.capacity();
            assert!(round == 0 || room >= 28 + (64 << 10), "room for header and payload at once");
            input.bytes.extend_from_slice(&[3; 28]);
            let _ = input.bytes.split_to(28);
            input.make_room(64 << 10);
            input.bytes.extend_from_slice(&[3; 64 << 10]);
            let payload = input.bytes.split_to(64 << 10).freeze();
            held.push(input.keep(payload));
        }
        input.keep(Bytes::new());
        input.make_room(4096);
        assert_eq!(input.bytes.capacity(), CHUNK_BYTES, "and no longer than that");
    }

    #[test]
    fn small_payloads_are_copied_out() {
        let mut input = Input::default();
        input.make_room(512);
        input.bytes.extend_from_slice(&[7; 512]);
        let payload = input.bytes.split_to(512).freeze();
        let (kept, cost) = input.keep(payload.clone());
        assert_ne!(kept.as_ptr(), payload.as_ptr());
        assert_eq!((kept, cost), (payload, 512));
    }
}
