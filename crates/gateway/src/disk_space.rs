//! Whether the journal's disk has the room that the journal was given.

use std::io;
use std::path::Path;

/// What the disk of the journal in `dir` lacks of `bound` bytes, if anything; for people. The files that the journal has already count as room.
///
/// A disk that does not say counts as one with room: who runs out of it is told then ([`holdfast_log::LogUsage::stalled`]).
pub(crate) fn lacking(dir: &Path, bound: u64) -> Option<String> {
    let known = free(dir).and_then(|free| Ok((free, held(dir)?)));
    match known {
        Ok((free, held)) => shortfall(free, held, bound),
        Err(error) => {
            tracing::debug!(dir = %dir.display(), %error, "the room on the journal's disk is not known");
            None
        }
    }
}

fn free(dir: &Path) -> io::Result<u64> {
    let found = rustix::fs::statvfs(dir)?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

fn held(dir: &Path) -> io::Result<u64> {
    let mut bytes = 0_u64;
    for entry in std::fs::read_dir(dir)? {
        bytes = bytes.saturating_add(entry?.metadata()?.len());
    }
    Ok(bytes)
}

fn shortfall(free: u64, held: u64, bound: u64) -> Option<String> {
    let has = free.saturating_add(held);
    let mib = |bytes: u64| bytes >> 20;
    (has < bound).then(|| {
        format!(
            "the journal may grow to {} MiB (journal.bound), and its disk has {} MiB for it ({} free, {} in its files): when the disk is full, writers wait. \
             Free some, or lower journal.bound",
            mib(bound),
            mib(has),
            mib(free),
            mib(held)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_smaller_than_the_bound_is_named_with_both_numbers() {
        assert_eq!(shortfall(6 << 30, 2 << 30, 8 << 30), None, "what the journal has counts");
        let said = shortfall(1 << 30, 1 << 30, 8 << 30).unwrap_or_default();
        assert!(said.contains("8192 MiB") && said.contains("2048 MiB"), "{said}");
    }

    #[test]
    fn a_real_folder_is_measured() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        std::fs::write(dir.path().join("journal-1"), [7; 5000])?;
        assert_eq!(held(dir.path())?, 5000);
        assert!(free(dir.path())? > 0);
        assert_eq!(lacking(dir.path(), 0), None);
        assert!(lacking(dir.path(), u64::MAX).is_some());
        assert_eq!(lacking(&dir.path().join("no such folder"), u64::MAX), None, "not known");
        Ok(())
    }
}
