//! Whether batches are written by io_uring.
//!
//! It spares a switch to the journal's thread, which pays where the kernel begins such a write at once, without a
//! thread of its own (measured in ADR 0074).

use crate::config::JournalIo;

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
}

/// Whether to write by io_uring, or why not although the setting allows it.
pub(crate) fn wants_ring(io: JournalIo, facts: Facts) -> Result<bool, &'static str> {
    match io {
        JournalIo::Thread => Ok(false),
        _ if !facts.direct => Err("the file system refuses O_DIRECT"),
        _ if !facts.dsync => Err("the file system keeps no RWF_DSYNC"),
        JournalIo::Uring => Ok(true),
        JournalIo::Auto if !facts.ext4 => Err("the file system is not ext4"),
        JournalIo::Auto => Ok(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_asks_for_all_that_makes_it_worth_while() {
        let best = Facts { direct: true, dsync: true, ext4: true };
        let less = [Facts { direct: false, ..best }, Facts { dsync: false, ..best }, Facts { ext4: false, ..best }];
        let answers = |io| less.map(|facts| wants_ring(io, facts).ok());
        assert_eq!(answers(JournalIo::Thread), [Some(false); 3]);
        assert_eq!(answers(JournalIo::Uring), [None, None, Some(true)], "durable or not at all");
        assert_eq!(answers(JournalIo::Auto), [None; 3]);
        let on_best = [JournalIo::Thread, JournalIo::Uring, JournalIo::Auto].map(|io| wants_ring(io, best));
        assert_eq!(on_best, [Ok(false), Ok(true), Ok(true)]);
    }
}
