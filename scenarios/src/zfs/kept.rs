//! Keeps logs of earlier runs. A run begins with an empty `target/zfs`, but files of a run that a page cites must be
//! available after the next part has run.
//!
//! ```text
//!   target/zfs ── before it is emptied ─▶ target/zfs-earlier/00007-watchdog   readable files, without disks and journals
//! ```

use super::Part;
use crate::room;
use crate::say::note;
use anyhow::{Context, Result};
use clap::ValueEnum;
use std::path::{Path, PathBuf};

/// File with the part's name in a run's folder.
const PART: &str = "part.txt";

/// Runs to keep besides the last one: enough for two of each part.
const RUNS_MAX: usize = 20;

/// Total bytes to keep. A run's logs have some MiB; a larger run is kept while it is the latest.
const BYTES_MAX: u64 = 512 << 20;

/// A kept run.
#[derive(Debug, PartialEq)]
struct Run {
    /// They are numbered in their order.
    number: u32,
    path: PathBuf,
    bytes: u64,
}

/// Notes the part in a run's folder.
pub fn begin(dir: &Path, part: &str) -> Result<()> {
    Ok(std::fs::write(dir.join(PART), format!("{part}\n"))?)
}

/// Moves the readable files of the run in `dir` to a new folder below `place`, and deletes the oldest surplus ones
/// there. Moves nothing if `dir` has no such files. After an error a part of the files may remain in `dir`.
pub fn keep(dir: &Path, place: &Path) -> Result<()> {
    if !dir.try_exists()? {
        return Ok(());
    }
    room::thin_out(dir)?;
    if std::fs::read_dir(dir)?.next().is_none() {
        return Ok(());
    }
    std::fs::create_dir_all(place)?;
    let number = runs(place)?.last().map_or(1, |last| last.number.saturating_add(1));
    let kept = place.join(format!("{number:05}-{}", part_of(dir)));
    std::fs::rename(dir, &kept).with_context(|| format!("{} as {}", dir.display(), kept.display()))?;
    note(format!("logs of the run before: {}", kept.display()));
    for run in too_many(&runs(place)?) {
        std::fs::remove_dir_all(&run.path).with_context(|| run.path.display().to_string())?;
    }
    Ok(())
}

/// The part's name on the command line; none if a build did not note it, or noted an unknown one.
fn part_of(dir: &Path) -> String {
    let text = std::fs::read_to_string(dir.join(PART)).unwrap_or_default();
    let part = Part::from_str(text.trim(), false).ok();
    let name = part.and_then(|part| part.to_possible_value());
    name.map_or_else(|| "unknown".to_owned(), |name| name.get_name().to_owned())
}

/// The kept runs, oldest first. Ignores folders with other names.
fn runs(place: &Path) -> Result<Vec<Run>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(place).with_context(|| place.display().to_string())? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let number = name.split_once('-').and_then(|(number, _)| number.parse::<u32>().ok());
        if let Some(number) = number
            && path.is_dir()
        {
            let bytes = bytes_in(&path)?;
            found.push(Run { number, path, bytes });
        }
    }
    found.sort_by_key(|run| run.number);
    Ok(found)
}

fn bytes_in(dir: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let entry = entry?;
        let meta = entry.metadata()?;
        bytes += if meta.is_dir() { bytes_in(&entry.path())? } else { meta.len() };
    }
    Ok(bytes)
}

/// The oldest of `runs` (in order) that exceed the limits; never the latest.
fn too_many(runs: &[Run]) -> &[Run] {
    let mut bytes = 0_u64;
    let latest = runs.iter().rev().take(RUNS_MAX);
    let fit = latest.take_while(|run| {
        bytes = bytes.saturating_add(run.bytes);
        bytes <= BYTES_MAX
    });
    let fit = fit.count().max(1);
    &runs[..runs.len().saturating_sub(fit)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(number: u32, bytes: u64) -> Run {
        Run { number, path: format!("{number}").into(), bytes }
    }

    #[test]
    fn the_oldest_go_beyond_either_bound_and_the_latest_stays() {
        let number = |runs: &[Run]| too_many(runs).iter().map(|run| run.number).collect::<Vec<_>>();
        assert!(number(&[]).is_empty());
        assert!(number(&[run(1, BYTES_MAX + 1)]).is_empty());
        assert_eq!(number(&[run(1, 0), run(2, BYTES_MAX + 1)]), [1]);
        assert_eq!(number(&[run(1, 1), run(2, BYTES_MAX / 2), run(3, BYTES_MAX / 2)]), [1]);
        let many: Vec<Run> = (1..=u32::try_from(RUNS_MAX + 2).unwrap()).map(|number| run(number, 0)).collect();
        assert_eq!(number(&many), [1, 2]);
    }

    #[test]
    fn logs_of_the_run_before_are_kept_and_its_disks_are_not() {
        let top = std::env::temp_dir().join(format!("holdfast-zfs-kept-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&top);
        let (dir, place) = (top.join("zfs"), top.join("zfs-earlier"));
        keep(&dir, &place).unwrap();
        assert!(!place.exists(), "there was no run");
        for part in ["watchdog", "agents", "of another build"] {
            std::fs::create_dir_all(dir.join("a")).unwrap();
            std::fs::write(dir.join("a/script.log"), format!("said in {part}")).unwrap();
            std::fs::write(dir.join("program.img"), [0; 4096]).unwrap();
            begin(&dir, part).unwrap();
            keep(&dir, &place).unwrap();
            assert!(!dir.exists(), "{part}");
        }
        let kept = runs(&place).unwrap();
        let names: Vec<_> = kept.iter().filter_map(|run| run.path.file_name()?.to_str()).collect();
        assert_eq!(names, ["00001-watchdog", "00002-agents", "00003-unknown"]);
        assert_eq!(std::fs::read_to_string(kept[0].path.join("a/script.log")).unwrap(), "said in watchdog");
        assert!(!kept[0].path.join("program.img").exists());
        assert_eq!(kept[0].bytes, 16 + 9, "script.log and part.txt");
        std::fs::remove_dir_all(&top).unwrap();
    }
}
