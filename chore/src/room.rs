//! Disk space. A run of everything writes some 60 GiB of clusters, one after the other, and a machine may have a
//! quarter of that.
//! After each scenario only the files that people read are kept. The free space is printed with each step.

use crate::say::note;
use anyhow::{Context, Result};
use std::path::Path;

/// Size of the largest file that [`thin_out`] keeps, in bytes. Logs and summaries are smaller; journals, caches and
/// objects of a store are larger.
const KEPT_MAX: u64 = 16 << 20;

/// With less free space than this, in bytes, a run of everything warns: the build takes 10 GiB, the largest scenario
/// 12.
pub const WANTED: u64 = 24 << 30;

/// Free bytes on the file system of `path`. Fails when the file system does not report it.
pub fn free(path: &Path) -> Result<u64> {
    let stat = rustix::fs::statvfs(path).with_context(|| path.display().to_string())?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Prints the free space on the file system of `path`.
pub fn say_free(path: &Path) {
    match free(path) {
        Ok(bytes) => note(format!("{:.1} GiB of disk free", bytes as f64 / (1u64 << 30) as f64)),
        Err(e) => note(format!("free space unknown: {e:#}")),
    }
}

/// Keeps logs, summaries and settings in a scenario's folder and deletes the rest. Returns the freed bytes. Fails when
/// something cannot be read or deleted.
pub fn thin_out(dir: &Path) -> Result<u64> {
    let mut given = 0;
    for entry in std::fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let (entry, path) = entry.map(|e| {
            let path = e.path();
            (e, path)
        })?;
        // Does not follow links: deletes the link, not its target.
        let meta = entry.metadata()?;
        if meta.is_dir() {
            given += thin_out(&path)?;
            // Fails, and the folder stays, if a file in it was kept.
            let _ = std::fs::remove_dir(&path);
        } else if !meta.is_file() || meta.len() > KEPT_MAX || !readable(&path) {
            std::fs::remove_file(&path).with_context(|| path.display().to_string())?;
            given += if meta.is_file() { meta.len() } else { 0 };
        }
    }
    Ok(given)
}

/// Whether people read such a file, judged by its extension.
fn readable(path: &Path) -> bool {
    let kind = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
    ["log", "json", "jsonl", "toml", "txt", "csv", "svg", "html"].contains(&kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_stay_and_journals_go() {
        let dir = std::env::temp_dir().join(format!("holdfast-thin-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        let (node, store) = (dir.join("cluster/g1"), dir.join("cluster/store/sets"));
        for made in [&node, &store] {
            std::fs::create_dir_all(made).expect("a folder");
        }
        std::fs::write(dir.join("cluster.log"), "said").expect("a log");
        std::fs::write(node.join("00000001.hfj"), [0; 4096]).expect("a journal file");
        std::fs::write(store.join("object"), [0; 10]).expect("an object");
        let large = std::fs::File::create(node.join("large.log")).expect("a log that got out of hand");
        large.set_len(KEPT_MAX + 1).expect("its length");
        std::os::unix::fs::symlink("/nowhere", node.join("link")).expect("a link");

        assert_eq!(thin_out(&dir).expect("thinned out"), 4096 + 10 + KEPT_MAX + 1);
        assert_eq!(std::fs::read(dir.join("cluster.log")).expect("the log"), b"said");
        assert!(!node.exists() && !store.exists(), "emptied folders go as well");
        std::fs::remove_dir_all(&dir).expect("tidied up");
    }

    #[test]
    fn free_space_is_found_where_we_are() {
        assert!(free(Path::new(".")).expect("a figure") > 0);
    }
}
