//! Whether batches are written by io_uring.
//!
//! It saves a switch to the journal's thread only where the kernel gives neither the write nor a flush behind it to a
//! thread of its own (ADR 0072).

use crate::config::JournalIo;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What is known of the journal's folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Files take O_DIRECT. Without it the kernel gives each such write to a thread of its own.
    pub direct: bool,
    /// A write with RWF_DSYNC is durable.
    pub dsync: bool,
    /// ext4. XFS gives most writes to a thread of the kernel, because of the time of the last change (before Linux
    /// 7.0, and later unless it is mounted with `lazytime`).
    pub ext4: bool,
    /// A durable write needs no flush behind it: the disk has no volatile cache, or takes writes that pass it (FUA). A
    /// flush is waited for by a thread of the kernel.
    pub no_flush: bool,
}

/// Whether to write by io_uring, or why not although the setting allows it.
pub(crate) fn wants_ring(io: JournalIo, facts: Facts) -> Result<bool, &'static str> {
    match io {
        JournalIo::Thread => Ok(false),
        _ if !facts.direct => Err("the file system refuses O_DIRECT"),
        _ if !facts.dsync => Err("the file system keeps no RWF_DSYNC"),
        JournalIo::Uring => Ok(true),
        JournalIo::Auto if !facts.ext4 => Err("the file system is not ext4"),
        JournalIo::Auto if !facts.no_flush => Err("each durable write needs a flush on this disk"),
        JournalIo::Auto => Ok(true),
    }
}

/// Whether the disk below `dir` needs no flush behind a durable write. False if that is not known.
pub(crate) fn needs_no_flush(dir: &Path) -> bool {
    let Ok(metadata) = std::fs::metadata(dir) else { return false };
    let (major, minor) = (rustix::fs::major(metadata.dev()), rustix::fs::minor(metadata.dev()));
    // A partition has no queue of its own; its disk is the folder above it.
    ["queue", "../queue"].iter().any(|queue| {
        let read = |name| std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/{queue}/{name}"));
        no_flush(&read("write_cache").unwrap_or_default(), &read("fua").unwrap_or_default())
    })
}

/// By the files `write_cache` and `fua` of a block device's queue, as sysfs has them.
fn no_flush(write_cache: &str, fua: &str) -> bool {
    write_cache.trim() == "write through" || fua.trim() == "1"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_asks_for_all_that_makes_it_worth_while() {
        let best = Facts { direct: true, dsync: true, ext4: true, no_flush: true };
        let less = [
            Facts { direct: false, ..best },
            Facts { dsync: false, ..best },
            Facts { ext4: false, ..best },
            Facts { no_flush: false, ..best },
        ];
        let answers = |io| less.map(|facts| wants_ring(io, facts).ok());
        assert_eq!(answers(JournalIo::Thread), [Some(false); 4]);
        assert_eq!(answers(JournalIo::Uring), [None, None, Some(true), Some(true)], "durable or not at all");
        assert_eq!(answers(JournalIo::Auto), [None; 4]);
        let on_best = [JournalIo::Thread, JournalIo::Uring, JournalIo::Auto].map(|io| wants_ring(io, best));
        assert_eq!(on_best, [Ok(false), Ok(true), Ok(true)]);
    }

    #[test]
    fn a_disk_of_which_nothing_is_known_needs_flushes() {
        assert!(no_flush("write through\n", "0\n") && no_flush("write back\n", "1\n"));
        assert!(!no_flush("write back\n", "0\n") && !no_flush("", ""));
    }
}
