//! The first content of the build folder of mutants: dependencies that cargo has built for the tree already. They take
//! minutes to build, and are the same, because the same packages are selected (`WHOLE` in `tool`).

use crate::binary::root;
use crate::say::note;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// Copies what is built of the dependencies, if `build` is new. Fails when a file cannot be copied.
pub(super) fn seed(build: &Path) -> Result<()> {
    let to = build.join("debug");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let from = target.join("debug");
    if to.exists() || !from.exists() {
        return Ok(());
    }
    // Renamed at the end: half a copy would stay for good.
    let half = build.join("debug.half");
    match std::fs::remove_dir_all(&half) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e).context(half.display().to_string()),
        _ => {}
    }
    let mut files = 0;
    for part in [".fingerprint", "build", "deps"] {
        let (from, to) = (from.join(part), half.join(part));
        std::fs::create_dir_all(&to).with_context(|| to.display().to_string())?;
        for name in names(&from)?.iter().filter(|name| !is_ours(name)) {
            copy(&from.join(name), &to.join(name), &mut files)?;
        }
    }
    std::fs::rename(&half, &to).with_context(|| to.display().to_string())?;
    note(format!("{files} files of dependencies taken from {}", from.display()));
    Ok(())
}

/// A crate of this workspace: with a mutant or without, it is built here.
fn is_ours(name: &str) -> bool {
    let name = name.strip_prefix("lib").unwrap_or(name);
    name.starts_with("holdfast") || name.starts_with("xtask")
}

fn names(dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten() {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    Ok(names)
}

/// Copies a file or a folder with the times of the files: cargo compares them.
fn copy(from: &Path, to: &Path, files: &mut usize) -> Result<()> {
    if from.is_dir() {
        std::fs::create_dir_all(to).with_context(|| to.display().to_string())?;
        return names(from)?.iter().try_for_each(|name| copy(&from.join(name), &to.join(name), files));
    }
    *files += 1;
    std::fs::copy(from, to).with_context(|| from.display().to_string())?;
    let modified = std::fs::metadata(from)?.modified()?;
    let copied = std::fs::File::options().append(true).open(to).with_context(|| to.display().to_string())?;
    copied.set_modified(modified).with_context(|| to.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dependencies_are_taken() {
        let names =
            ["libholdfast_seal-1.rlib", "holdfast_seal-1", "xtask-2", "libc-3.d", "serde-4", "librustix-5.rlib"];
        assert_eq!(names.map(is_ours), [true, true, true, false, false, false]);
    }

    #[test]
    fn a_copy_keeps_the_times_of_its_files() {
        let dir = root().join(format!("target/mutants-seed-test-{}", std::process::id()));
        let (from, to) = (dir.join("from"), dir.join("to"));
        std::fs::create_dir_all(from.join("inner")).unwrap();
        let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
        let file = std::fs::File::create(from.join("inner/file")).unwrap();
        file.set_modified(old).unwrap();
        let mut files = 0;
        copy(&from, &to, &mut files).unwrap();
        let copied = std::fs::metadata(to.join("inner/file")).unwrap().modified().unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!((files, copied), (1, old));
    }
}
