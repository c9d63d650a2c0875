//! A growable byte buffer that begins on a block boundary, as O_DIRECT wants it.

/// Block size in bytes: batches are padded to it, and O_DIRECT transfers are aligned to it.
pub const BLOCK_BYTES: usize = 4096;

/// Bytes that begin at an address divisible by [`BLOCK_BYTES`]. Over-allocates by one block instead of using `unsafe`.
#[derive(Debug, Default)]
pub struct AlignedBuf {
    /// Allocated and initialised bytes; the used ones begin at `start`. Never grown in place, since that could move the
    /// start.
    storage: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBuf {
    /// An empty buffer with room for `capacity` bytes.
    pub fn with_capacity(capacity: usize) -> Self {
        let storage = vec![0; capacity.next_multiple_of(BLOCK_BYTES) + BLOCK_BYTES];
        let start = storage.as_ptr().align_offset(BLOCK_BYTES);
        Self { storage, start, len: 0 }
    }

    /// `len` zero bytes.
    pub fn zeroed(len: usize) -> Self {
        let mut buf = Self::with_capacity(len);
        buf.len = len;
        buf
    }

    /// Bytes that fit without reallocation.
    pub fn capacity(&self) -> usize {
        self.storage.len().saturating_sub(BLOCK_BYTES)
    }

    /// Bytes in use.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is in use.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Forgets the contents, keeps the room.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Appends `bytes`.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        self.reserve_total(end);
        self.storage[self.start + self.len..self.start + end].copy_from_slice(bytes);
        self.len = end;
    }

    /// Makes the length `len`; new bytes are zero.
    pub fn resize(&mut self, len: usize) {
        self.reserve_total(len);
        if len > self.len {
            self.storage[self.start + self.len..self.start + len].fill(0);
        }
        self.len = len;
    }

    /// Makes the length `len`, at most the capacity. New bytes are whatever was there before: the caller MUST overwrite
    /// them.
    pub(crate) fn expose(&mut self, len: usize) {
        assert!(len <= self.capacity(), "R9: {len} bytes in a buffer of {}", self.capacity());
        self.len = len;
    }

    /// Pads with zeroes up to the next multiple of `to` bytes.
    pub fn pad_to(&mut self, to: usize) {
        self.resize(self.len.next_multiple_of(to));
    }

    fn reserve_total(&mut self, len: usize) {
        if len <= self.capacity() {
            return;
        }
        let mut larger = Self::with_capacity(len.max(2 * self.capacity()));
        larger.storage[larger.start..larger.start + self.len].copy_from_slice(self);
        larger.len = self.len;
        *self = larger;
    }
}

impl std::ops::Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.storage[self.start..self.start + self.len]
    }
}

impl std::ops::DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.storage[self.start..self.start + self.len]
    }
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stays_aligned_while_it_grows_and_pads_with_zeroes() {
        let mut buf = AlignedBuf::default();
        let mut model = Vec::new();
        for round in 1..200usize {
            let bytes = vec![round as u8; round * 37];
            buf.extend_from_slice(&bytes);
            model.extend_from_slice(&bytes);
            assert_eq!(buf.as_ptr().align_offset(BLOCK_BYTES), 0);
        }
        assert_eq!(&buf[..], &model[..]);
        assert_eq!(AsRef::<[u8]>::as_ref(&buf), &model[..]);
        assert!(!buf.is_empty());
        buf.clear();
        assert!(buf.is_empty());
        buf.extend_from_slice(b"x");
        buf.pad_to(BLOCK_BYTES);
        assert_eq!(buf.len(), BLOCK_BYTES);
        assert!(buf[1..].iter().all(|byte| *byte == 0), "stale bytes must not show through the padding");
    }
}
