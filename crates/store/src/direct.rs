//! Writes large files past the page cache (O_DIRECT). An object is written once and seldom read from here again: what
//! was uploaded is in the gateway's own cache. A copy in the page cache costs more processor time than sealing.

use rustix::fs::OFlags;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Shorter files are written through the page cache.
pub(crate) const DIRECT_BYTES_MIN: usize = 1 << 20;

/// Bytes of one write at most, and of the buffer.
const WRITE_BYTES: usize = 1 << 20;
/// Addresses, offsets and lengths of such writes are multiples of this. Every disk's block divides it.
const BLOCK_BYTES: usize = 4096;

/// Creates the file `path` with `body`, and syncs it. False if the file system takes no such writes; then the file may
/// be there, with some of the body.
///
/// # Errors
/// The file exists, or the disk's error.
pub(crate) fn create(path: &Path, body: &[u8]) -> io::Result<bool> {
    let mut options = File::options();
    let opened = options.write(true).create_new(true).custom_flags(OFlags::DIRECT.bits() as i32).open(path);
    let written = opened.and_then(|file| write(&file, body).map(|()| file));
    match written {
        Ok(file) => {
            file.sync_all()?;
            Ok(true)
        }
        Err(error) if is_refused(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

fn is_refused(error: &io::Error) -> bool {
    let refusals = [Errno::INVAL, Errno::OPNOTSUPP].map(|errno| Some(errno.raw_os_error()));
    refusals.contains(&error.raw_os_error())
}

/// Writes the body's whole blocks from where they are, if it begins at a block's boundary in memory, as large
/// allocations usually do. The rest, or else all of it, goes through a buffer.
fn write(file: &File, body: &[u8]) -> io::Result<()> {
    let aligned = body.as_ptr().align_offset(BLOCK_BYTES) == 0;
    let (here, copied) = body.split_at(if aligned { body.len() / BLOCK_BYTES * BLOCK_BYTES } else { 0 });
    let mut offset = 0;
    for part in here.chunks(WRITE_BYTES) {
        file.write_all_at(part, offset)?;
        offset += part.len() as u64;
    }
    write_copied(file, copied, offset)?;
    // The last block was filled up.
    file.set_len(body.len() as u64)
}

/// Writes `bytes` at a multiple of [`BLOCK_BYTES`] of the file, through a buffer. Fills up the last block with zeroes.
fn write_copied(file: &File, bytes: &[u8], mut offset: u64) -> io::Result<()> {
    let mut room = vec![0; bytes.len().min(WRITE_BYTES).next_multiple_of(BLOCK_BYTES) + BLOCK_BYTES];
    let begin = room.as_ptr().align_offset(BLOCK_BYTES);
    for part in bytes.chunks(WRITE_BYTES) {
        let whole = part.len().next_multiple_of(BLOCK_BYTES);
        let buffer = &mut room[begin..begin + whole];
        buffer[..part.len()].copy_from_slice(part);
        buffer[part.len()..].fill(0);
        file.write_all_at(buffer, offset)?;
        offset += whole as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Wherever the body lies in memory: at a block's boundary it is not copied.
    #[test]
    fn a_file_has_its_bytes_and_no_more() {
        let dir = tempfile::tempdir().expect("temporary directory");
        for len in [0, 1, BLOCK_BYTES, WRITE_BYTES - 1, WRITE_BYTES, WRITE_BYTES + 1, 3 * WRITE_BYTES + 5000] {
            for shift in [0, 1, 512] {
                let path = dir.path().join(format!("{len}-{shift}"));
                let mut room = vec![0; len + 2 * BLOCK_BYTES];
                let begin = room.as_ptr().align_offset(BLOCK_BYTES) + shift;
                room.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 31 + at / 4096) as u8);
                let body = &room[begin..begin + len];
                if !create(&path, body).expect("written") {
                    println!("skipped: this file system takes no direct writes");
                    return;
                }
                assert!(fs::read(&path).expect("a file") == body, "{len} bytes, {shift} behind a boundary");
                create(&path, body).expect_err("it exists");
            }
        }
    }

    #[test]
    fn only_a_refusal_sends_writes_another_way() {
        for errno in [Errno::INVAL, Errno::OPNOTSUPP] {
            assert!(is_refused(&errno.into()));
        }
        for errno in [Errno::NOSPC, Errno::IO, Errno::EXIST, Errno::DQUOT] {
            assert!(!is_refused(&errno.into()));
        }
    }
}
