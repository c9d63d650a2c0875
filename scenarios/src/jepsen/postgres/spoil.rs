//! Damage to the journal of a stopped gateway: a flipped bit, a truncated file.

use super::fault::draw;
use crate::chaos::seed::Seeded;
use anyhow::{Context, Result};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Files of a journal, sorted by name, so that a random choice is reproducible.
fn files_of(journal: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(journal).with_context(|| journal.display().to_string())?;
    let mut files: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    files.retain(|path| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("journal-"))
    });
    files.sort();
    anyhow::ensure!(!files.is_empty(), "{}: found no file of a journal", journal.display());
    Ok(files)
}

/// Flips a bit in a file of a journal; returns the file.
pub(super) fn flip(journal: &Path, chance: &mut Seeded) -> Result<String> {
    let mut files = files_of(journal)?;
    chance.shuffle(&mut files);
    for path in files {
        let bytes = std::fs::read(&path)?;
        let Some((at, bit)) = bit_of(&bytes, chance) else { continue };
        let file = std::fs::File::options().write(true).open(&path)?;
        file.write_all_at(&[bytes[at] ^ bit], at as u64)?;
        file.sync_all()?;
        let name = path.file_name().unwrap_or_default().display();
        return Ok(format!("{name} at {at}: {} is now {}", bytes[at], bytes[at] ^ bit));
    }
    anyhow::bail!("{}: found no file with anything in it", journal.display())
}

/// Truncates a file of a journal within its written part, an older file if there is one; returns file and place.
pub(super) fn cut_off(journal: &Path, chance: &mut Seeded) -> Result<String> {
    let mut files = files_of(journal)?;
    if files.len() > 1 {
        files.pop();
    }
    let path = &files[draw(chance, files.len())];
    let bytes = std::fs::read(path)?;
    let at = written(&bytes).map_or(0, |written| draw(chance, written));
    let file = std::fs::File::options().write(true).open(path)?;
    file.set_len(at as u64)?;
    file.sync_all()?;
    let name = path.file_name().unwrap_or_default().display();
    Ok(format!("{name} of {} bytes, written to byte {}: cut to {at}", bytes.len(), written(&bytes).unwrap_or(0)))
}

/// End of the written part of a file that is zero-filled ahead.
fn written(bytes: &[u8]) -> Option<usize> {
    bytes.iter().rposition(|byte| *byte != 0).map(|last| last + 1)
}

/// A place in the written part, and a bit of the byte there.
fn bit_of(bytes: &[u8], chance: &mut Seeded) -> Option<(usize, u8)> {
    let written = written(bytes)?;
    let from = draw(chance, written);
    let at = (from..written).find(|at| bytes[*at] != 0)?;
    Some((at, 1 << draw(chance, 8)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bit_is_flipped_where_something_was_written() {
        let mut chance = Seeded::new(5, 0);
        assert_eq!(bit_of(&[0; 64], &mut chance), None);
        let mut bytes = vec![0u8; 64];
        (bytes[3], bytes[20]) = (7, 9);
        let drawn: Vec<(usize, u8)> = (0..100).filter_map(|_| bit_of(&bytes, &mut chance)).collect();
        assert_eq!(drawn.len(), 100);
        assert!(drawn.iter().all(|(at, bit)| [3, 20].contains(at) && bit.count_ones() == 1), "{drawn:?}");
        assert!([3, 20].iter().all(|place| drawn.iter().any(|(at, _)| at == place)), "{drawn:?}");
    }

    #[test]
    fn a_file_is_cut_within_what_was_written_and_the_newest_only_if_there_is_no_other() {
        let dir = std::env::temp_dir().join(format!("holdfast-spoil-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).expect("a folder");
        let mut chance = Seeded::new(5, 0);
        cut_off(&dir, &mut chance).expect_err("nothing to cut");
        let mut bytes = vec![0u8; 64];
        bytes[20] = 9;
        let size = |name: &str| std::fs::metadata(dir.join(name)).expect("a file").len();
        std::fs::write(dir.join("journal-01"), &bytes).expect("written");
        std::fs::write(dir.join("other"), &bytes).expect("written");
        cut_off(&dir, &mut chance).expect("the only one");
        assert!(size("journal-01") <= 20, "{}", size("journal-01"));
        for _ in 0..20 {
            std::fs::write(dir.join("journal-01"), &bytes).expect("written");
            std::fs::write(dir.join("journal-02"), &bytes).expect("written");
            cut_off(&dir, &mut chance).expect("the older one");
            assert!(size("journal-01") <= 20, "{}", size("journal-01"));
            assert_eq!((size("journal-02"), size("other")), (64, 64));
        }
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}
