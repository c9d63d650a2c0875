//! Images on this machine: read in order as runs of data and of zeroes, and written so. Each in a thread of its own, with a bounded number of
//! pieces between it and the network. The digest is that of all bytes in order, zeroes included: what `sha256sum` says of a raw image.

use super::state::hex;
use bytes::{Bytes, BytesMut};
use rustix::fs::{SeekFrom, seek};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use tokio::sync::mpsc;

/// Bytes of data that travel together: what the gateway takes as one entry (R5).
pub const PIECE_BYTES: usize = 1 << 20;
/// A run of zeroes inside data counts from this length on, and at multiples of it: a smaller one is sent as it is.
const ZERO_BYTES: usize = 64 << 10;
/// What file systems keep holes in, in bytes.
const BLOCK_BYTES: u64 = 4096;
/// Zeroes of one piece at most.
pub const ZEROES_MAX: u64 = 1 << 30;
/// The digest up to here is noted at multiples of it: where an interrupted copy may go on.
pub const MARK_BYTES: u64 = 64 << 20;

static ZEROES: [u8; ZERO_BYTES] = [0; ZERO_BYTES];

/// What a piece holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Bytes.
    Data(Bytes),
    /// So many zeroes.
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
    /// What it holds.
    pub content: Content,
    /// SHA-256 of the image up to the piece's end, where that may be a place to go on from.
    pub mark: Option<String>,
}

/// SHA-256 of what was seen so far.
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
    /// Of nothing.
    pub fn new() -> Self {
        Self { hash: Sha256::new(), bytes: 0, marked: 0 }
    }

    /// Takes in what comes next.
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

/// What came of reading an image.
pub struct Whole {
    /// Its length in bytes.
    pub bytes: u64,
    /// Bytes of data in it, as they were sent.
    pub data_bytes: u64,
    /// SHA-256 of all of it.
    pub sha256: String,
}

/// Where an earlier copy got to: bytes, and their digest.
pub type Done = (u64, String);

/// Why an image cannot be read on.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The operating system says so.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It is another image, or was changed since.
    #[error(
        "its first {bytes} bytes are not those of the interrupted copy: found SHA-256 {found}, expected {expected}"
    )]
    Changed { bytes: u64, found: String, expected: String },
    /// It was cut off, or grew, while it was read.
    #[error("it had {expected} bytes and has {found} now: it was changed while it was read")]
    Shorter { found: u64, expected: u64 },
    /// The rest would not fit.
    #[error("it is longer than the volume, which has {volume_bytes} bytes")]
    TooLong { volume_bytes: u64 },
    /// The copy has ended.
    #[error("nobody takes it any more")]
    NotTaken,
}

/// An image to read.
pub enum Source {
    /// A file whose holes the file system knows, and its length.
    File(File, u64),
    /// Anything that gives bytes in order.
    Stream(Box<dyn Read + Send>),
}

impl Source {
    /// What comes next at `at`: up to so many bytes of data, or of a hole. 0 at the end.
    fn next(&self, at: u64) -> io::Result<(bool, u64)> {
        let Source::File(file, len) = self else { return Ok((false, PIECE_BYTES as u64)) };
        if at >= *len {
            return Ok((false, 0));
        }
        // Whole blocks, whatever the file system says: what is sent begins and ends at sectors.
        match seek(file, SeekFrom::Data(at)) {
            Ok(data) if data >= *len => Ok((true, len - at)),
            Ok(data) if data / BLOCK_BYTES * BLOCK_BYTES > at => Ok((true, data / BLOCK_BYTES * BLOCK_BYTES - at)),
            Ok(_) => {
                let hole = seek(file, SeekFrom::Hole(at)).unwrap_or(*len);
                Ok((false, hole.max(at + 1).next_multiple_of(BLOCK_BYTES).min(*len) - at))
            }
            // Nothing but a hole up to the end.
            Err(error) if error == rustix::io::Errno::NXIO => Ok((true, len - at)),
            // A file system that does not know holes.
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

    /// Reads all of it, in order, and gives what lies behind `done` to `to`.
    pub fn run(mut self, done: &Done, volume_bytes: u64, to: &mpsc::Sender<Piece>) -> Result<Whole, SourceError> {
        let mut out = Out { hash: Hash::new(), zeroes: 0, data_bytes: 0, done: done.clone(), to };
        loop {
            let at = out.hash.bytes + out.zeroes;
            let (hole, len) = self.next(at)?;
            // Also a file that grew since, or a stream: one byte beyond the volume is enough to know.
            if at + if hole { len } else { 0 } > volume_bytes {
                return Err(SourceError::TooLong { volume_bytes });
            }
            // Never across the place to go on from.
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
                    // Somebody cut it off meanwhile: what is missing must not pass for zeroes.
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
            // A hole up to the end is what a file system says of a file that was cut off as well.
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

/// Gathers runs of zeroes, and gives everything on in order.
struct Out<'a> {
    hash: Hash,
    /// Not given on yet.
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
            // Not across the place to go on from, nor beyond what one piece may hold.
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
            // Blocks alike, up to the next of the other kind.
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
    // A few at a time, without a branch for each: several times faster.
    bytes.chunks(64).all(|some| some.iter().fold(0, |all, byte| all | byte) == 0)
}

/// Where an image is written to.
pub enum Sink {
    /// A new file, all zeroes: runs of zeroes stay holes.
    Sparse(File),
    /// Something that may hold other bytes, such as a block device.
    Dense(File),
    /// In order, and nothing else.
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

    /// Everything written so far is on the disk.
    fn sync(&mut self) -> io::Result<()> {
        match self {
            Sink::Sparse(file) | Sink::Dense(file) => file.sync_all(),
            Sink::Stream(stream) => stream.flush(),
        }
    }

    /// Writes what comes, in order from where `hash` is; `marked` hears of each place that an interrupted copy may go on from.
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
