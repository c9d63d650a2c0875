//! Local images: read and written in order, as runs of data and of zeroes. Each runs in its own thread, with a bounded
//! number of pieces between it and the network. The digest covers all bytes including zeroes, as `sha256sum` of a raw
//! image.

use super::state::hex;
use bytes::{Bytes, BytesMut};
use rustix::fs::{SeekFrom, seek};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use tokio::sync::mpsc;

/// Bytes of data in one piece: the largest write in one log entry (R5).
pub const PIECE_BYTES: usize = 1 << 20;
/// Zeroes are detected in aligned blocks of this length; shorter runs are sent as data.
const ZERO_BYTES: usize = 64 << 10;
/// Block size of holes in file systems.
const BLOCK_BYTES: u64 = 4096;
/// Most zeroes in one piece.
pub const ZEROES_MAX: u64 = 1 << 30;
/// Interval of marks: positions with a digest, at which an interrupted copy can resume.
pub const MARK_BYTES: u64 = 64 << 20;

static ZEROES: [u8; ZERO_BYTES] = [0; ZERO_BYTES];

/// Content of a piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Bytes.
    Data(Bytes),
    /// A number of zeroes.
    Zeroes(u64),
}

impl Content {
    /// In bytes.
    pub fn bytes(&self) -> u64 {
        match self {
            Content::Data(data) => data.len() as u64,
            Content::Zeroes(len) => *len,
        }
    }
}

/// A part of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where it begins.
    pub offset: u64,
    /// Its content.
    pub content: Content,
    /// SHA-256 of the image up to the end of the piece, if that is a mark.
    pub mark: Option<String>,
}

/// Running SHA-256.
pub struct Hash {
    hash: Sha256,
    /// Bytes seen.
    pub bytes: u64,
    marked: u64,
}

impl Default for Hash {
    fn default() -> Self {
        Self::new()
    }
}

impl Hash {
    /// The digest of no bytes.
    pub fn new() -> Self {
        Self { hash: Sha256::new(), bytes: 0, marked: 0 }
    }

    /// Adds the next content.
    pub fn content(&mut self, content: &Content) {
        match content {
            Content::Data(data) => self.hash.update(data),
            Content::Zeroes(len) => {
                let mut left = *len;
                while left > 0 {
                    let step = left.min(ZERO_BYTES as u64);
                    self.hash.update(&ZEROES[..step as usize]);
                    left -= step;
                }
            }
        }
        self.bytes += content.bytes();
    }

    /// The digest so far.
    pub fn text(&self) -> String {
        hex(&self.hash.clone().finalize())
    }

    /// The digest, once per [`MARK_BYTES`].
    pub fn mark(&mut self) -> Option<String> {
        let due = self.bytes / MARK_BYTES > self.marked / MARK_BYTES;
        due.then(|| {
            self.marked = self.bytes;
            self.text()
        })
    }
}

/// Result of reading an image.
pub struct Whole {
    /// Its length in bytes.
    pub bytes: u64,
    /// Bytes of data in it, as they were sent.
    pub data_bytes: u64,
    /// SHA-256 of all of it.
    pub sha256: String,
}

/// Progress of an earlier copy: bytes and their digest.
pub type Done = (u64, String);

/// Why an image cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// Error of the operating system.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Another image, or it was changed.
    #[error(
        "its first {bytes} bytes differ from those of the interrupted copy: found SHA-256 {found}, expected {expected}"
    )]
    Changed { bytes: u64, found: String, expected: String },
    /// Its length changed while it was read.
    #[error("its length changed while it was read: found {found} bytes, expected {expected}")]
    Shorter { found: u64, expected: u64 },
    /// It does not fit into the volume.
    #[error("it is longer than the volume of {volume_bytes} bytes")]
    TooLong { volume_bytes: u64 },
    /// The copy has ended.
    #[error("the copy has ended")]
    NotTaken,
}

/// An image to read.
pub enum Source {
    /// A file, possibly with holes, and its length.
    File(File, u64),
    /// A stream of bytes.
    Stream(Box<dyn Read + Send>),
}

impl Source {
    /// Whether a hole starts at `at`, and the length of the hole or data; 0 at the end.
    fn next(&self, at: u64) -> io::Result<(bool, u64)> {
        let Source::File(file, len) = self else { return Ok((false, PIECE_BYTES as u64)) };
        if at >= *len {
            return Ok((false, 0));
        }
        // Rounded to whole blocks, so that writes are aligned to sectors.
        match seek(file, SeekFrom::Data(at)) {
            Ok(data) if data >= *len => Ok((true, len - at)),
            Ok(data) if data / BLOCK_BYTES * BLOCK_BYTES > at => Ok((true, data / BLOCK_BYTES * BLOCK_BYTES - at)),
            Ok(_) => {
                let hole = seek(file, SeekFrom::Hole(at)).unwrap_or(*len);
                Ok((false, hole.max(at + 1).next_multiple_of(BLOCK_BYTES).min(*len) - at))
            }
            // A hole up to the end.
            Err(error) if error == rustix::io::Errno::NXIO => Ok((true, len - at)),
            // A file system without holes.
            Err(_) => Ok((false, len - at)),
        }
    }

    fn read(&mut self, at: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut got = 0;
        while got < buffer.len() {
            let more = match self {
                Source::File(file, _) => file.read_at(&mut buffer[got..], at + got as u64),
                Source::Stream(stream) => stream.read(&mut buffer[got..]),
            };
            match more {
                Ok(0) => break,
                Ok(more) => got += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(got)
    }

    /// Reads the image in order, and sends everything after `done` to `to`.
    pub fn run(mut self, done: &Done, volume_bytes: u64, to: &mpsc::Sender<Piece>) -> Result<Whole, SourceError> {
        let mut out = Out { hash: Hash::new(), zeroes: 0, data_bytes: 0, done: done.clone(), to };
        loop {
            let at = out.hash.bytes + out.zeroes;
            let (hole, len) = self.next(at)?;
            // Also for a stream, or a file that grew: one byte beyond the volume is enough.
            if at + if hole { len } else { 0 } > volume_bytes {
                return Err(SourceError::TooLong { volume_bytes });
            }
            // Never across the resume position.
            let len = if at < done.0 { len.min(done.0 - at) } else { len };
            if len == 0 {
                break;
            }
            if hole {
                out.zeroes(len)?;
                continue;
            }
            let mut buffer = BytesMut::zeroed(len.min(PIECE_BYTES as u64) as usize);
            let got = self.read(at, &mut buffer)?;
            if got == 0 {
                if let Source::File(_, expected) = &self {
                    // The file was truncated: the missing part must not be taken for zeroes.
                    let (found, expected) = (at, *expected);
                    return Err(SourceError::Shorter { found, expected });
                }
                break;
            }
            if at + got as u64 > volume_bytes {
                return Err(SourceError::TooLong { volume_bytes });
            }
            buffer.truncate(got);
            out.data(buffer.freeze())?;
        }
        out.flush()?;
        if let Source::File(file, expected) = &self {
            // A truncated file looks like a hole up to the end.
            let (found, expected) = (file.metadata()?.len(), *expected);
            if found != expected {
                return Err(SourceError::Shorter { found, expected });
            }
        }
        if out.hash.bytes < done.0 {
            let (bytes, found, expected) = (done.0, format!("{} bytes in all", out.hash.bytes), done.1.clone());
            return Err(SourceError::Changed { bytes, found, expected });
        }
        Ok(Whole { bytes: out.hash.bytes, data_bytes: out.data_bytes, sha256: out.hash.text() })
    }
}

/// Merges runs of zeroes, and sends everything in order.
struct Out<'a> {
    hash: Hash,
    /// Not sent yet.
    zeroes: u64,
    data_bytes: u64,
    done: Done,
    to: &'a mpsc::Sender<Piece>,
}

impl Out<'_> {
    fn give(&mut self, content: Content) -> Result<(), SourceError> {
        let offset = self.hash.bytes;
        self.hash.content(&content);
        let mark = self.hash.mark();
        if offset < self.done.0 {
            let (bytes, expected) = &self.done;
            if self.hash.bytes == *bytes && self.hash.text() != *expected {
                let (bytes, found, expected) = (*bytes, self.hash.text(), expected.clone());
                return Err(SourceError::Changed { bytes, found, expected });
            }
            return Ok(());
        }
        if let Content::Data(data) = &content {
            self.data_bytes += data.len() as u64;
        }
        self.to.blocking_send(Piece { offset, content, mark }).map_err(|_| SourceError::NotTaken)
    }

    fn flush(&mut self) -> Result<(), SourceError> {
        match std::mem::take(&mut self.zeroes) {
            0 => Ok(()),
            len => self.give(Content::Zeroes(len)),
        }
    }

    fn zeroes(&mut self, mut len: u64) -> Result<(), SourceError> {
        while len > 0 {
            // Not across the resume position, nor beyond the limit of a piece.
            let at = self.hash.bytes + self.zeroes;
            let step = len.min(ZEROES_MAX - self.zeroes);
            let step = if at < self.done.0 { step.min(self.done.0 - at) } else { step };
            self.zeroes += step;
            len -= step;
            if self.zeroes == ZEROES_MAX || at + step == self.done.0 {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn data(&mut self, mut data: Bytes) -> Result<(), SourceError> {
        while !data.is_empty() {
            let mut len = 0;
            let zero = all_zero(&data[..data.len().min(ZERO_BYTES)]);
            // Consecutive blocks of the same kind.
            while len < data.len() {
                let block = &data[len..data.len().min(len + ZERO_BYTES)];
                if all_zero(block) != zero {
                    break;
                }
                len += block.len();
            }
            let part = data.split_to(len);
            if zero {
                self.zeroes(len as u64)?;
            } else {
                self.flush()?;
                self.give(Content::Data(part))?;
            }
        }
        Ok(())
    }
}

fn all_zero(bytes: &[u8]) -> bool {
    // 64 bytes at a time without branches: several times faster.
    bytes.chunks(64).all(|some| some.iter().fold(0, |all, byte| all | byte) == 0)
}

/// Target of an image.
pub enum Sink {
    /// A new file: runs of zeroes stay holes.
    Sparse(File),
    /// A target with old content, such as a block device.
    Dense(File),
    /// A stream, written in order.
    Stream(Box<dyn Write + Send>),
}

impl Sink {
    fn write(&mut self, offset: u64, content: &Content) -> io::Result<()> {
        match (self, content) {
            (Sink::Sparse(_), Content::Zeroes(_)) => Ok(()),
            (Sink::Sparse(file) | Sink::Dense(file), Content::Data(data)) => file.write_all_at(data, offset),
            (Sink::Stream(stream), Content::Data(data)) => stream.write_all(data),
            (sink, Content::Zeroes(len)) => {
                let (mut at, end) = (offset, offset + len);
                while at < end {
                    let part = &ZEROES[..(end - at).min(ZERO_BYTES as u64) as usize];
                    match sink {
                        Sink::Dense(file) => file.write_all_at(part, at)?,
                        Sink::Stream(stream) => stream.write_all(part)?,
                        Sink::Sparse(_) => {}
                    }
                    at += part.len() as u64;
                }
                Ok(())
            }
        }
    }

    /// Syncs everything written so far.
    fn sync(&mut self) -> io::Result<()> {
        match self {
            Sink::Sparse(file) | Sink::Dense(file) => file.sync_all(),
            Sink::Stream(stream) => stream.flush(),
        }
    }

    /// Writes the content in order, starting at the position of `hash`. Calls `marked` at each resume position.
    pub fn run(
        mut self,
        mut hash: Hash,
        from: &mut mpsc::Receiver<Content>,
        mut marked: impl FnMut(u64, String) -> Result<(), io::Error>,
    ) -> io::Result<Hash> {
        hash.marked = hash.bytes;
        while let Some(content) = from.blocking_recv() {
            self.write(hash.bytes, &content)?;
            hash.content(&content);
            if let Some(mark) = hash.mark() {
                self.sync()?;
                marked(hash.bytes, mark)?;
            }
        }
        self.sync()?;
        Ok(hash)
    }
}

#[cfg(test)]
#[path = "image_tests.rs"]
mod tests;
