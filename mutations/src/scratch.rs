//! The copy of the tree into which a bug is put.

use super::bug::Mutation;
use crate::binary::root;
use crate::cmd::cmd;
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A copy of every file of the tree, below `target/`. One process at a time locks it.
pub(super) struct Copied {
    tree: PathBuf,
    files: BTreeSet<PathBuf>,
    _lock: std::fs::File,
}

/// The copy into which known bugs are put. It is built in the tree's own build folder.
pub(super) struct Scratch(Copied);

/// Deletes cargo's fingerprints of our own crates. Copy and tree share one build folder and the same crate names, so
/// cargo could take a build with a bug, or an old one, for fresh.
fn forget_own_builds() {
    let notes = root().join("target/debug/.fingerprint");
    for entry in std::fs::read_dir(notes).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let ours = ["holdfast", "xtask"].iter().any(|own| name.to_string_lossy().starts_with(own));
        if ours && let Err(error) = std::fs::remove_dir_all(entry.path()) {
            eprintln!(
                "{}: {error}: remove it by hand, or the next build may be of another tree",
                entry.path().display()
            );
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        forget_own_builds();
    }
}

impl Copied {
    /// Makes the copy in `tree` equal to the tree, uncommitted changes included. Fails when another run holds it, or a
    /// file cannot be copied.
    pub(super) fn open(tree: PathBuf) -> Result<Self> {
        let copied = Self::locked(tree)?;
        copied.restore()?;
        Ok(copied)
    }

    /// The copy in `tree` as an earlier run has left it.
    ///
    /// # Errors
    /// When another run holds it.
    pub(super) fn locked(tree: PathBuf) -> Result<Self> {
        std::fs::create_dir_all(&tree).with_context(|| tree.display().to_string())?;
        let lock = std::fs::File::create(tree.with_extension("lock"))?;
        lock.try_lock().with_context(|| format!("{}: another run uses it; wait until it ends", tree.display()))?;
        let listed =
            cmd("git").args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).dir(root()).out()?;
        let files = listed.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from);
        let files = files.filter(|name| root().join(name).is_file()).collect();
        Ok(Self { tree, files, _lock: lock })
    }

    pub(super) fn tree(&self) -> &Path {
        &self.tree
    }

    /// Names of all its files, relative to the tree.
    pub(super) fn files(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(PathBuf::as_path)
    }

    /// Makes the copy equal to the tree.
    ///
    /// # Errors
    /// When a file cannot be read or written.
    pub(super) fn restore(&self) -> Result<()> {
        self.restore_but(&BTreeMap::new())
    }

    /// Makes the copy equal to the tree, but for these files, which get these texts. Writes only files that differ,
    /// because builds depend on the times of the files.
    ///
    /// # Errors
    /// When a file cannot be read or written.
    pub(super) fn restore_but(&self, other: &BTreeMap<PathBuf, String>) -> Result<()> {
        for name in &self.files {
            let (from, to) = (root().join(name), self.tree.join(name));
            let expected = match other.get(name) {
                Some(text) => text.clone().into_bytes(),
                None => std::fs::read(&from).with_context(|| from.display().to_string())?,
            };
            if !std::fs::read(&to).is_ok_and(|found| found == expected) {
                if let Some(dir) = to.parent() {
                    std::fs::create_dir_all(dir)?;
                }
                std::fs::write(&to, expected).with_context(|| to.display().to_string())?;
            }
            // Some tests ask whether a script may be run.
            let mode = std::fs::metadata(&from).with_context(|| from.display().to_string())?.permissions();
            std::fs::set_permissions(&to, mode).with_context(|| to.display().to_string())?;
        }
        self.remove_others(&self.tree)
    }

    /// Removes files that are not in the tree: deleted ones, and files left by a test.
    fn remove_others(&self, dir: &Path) -> Result<()> {
        for entry in std::fs::read_dir(dir)? {
            let path = entry?.path();
            let Ok(name) = path.strip_prefix(&self.tree) else { continue };
            if path.is_dir() {
                if name != Path::new("target") {
                    self.remove_others(&path)?;
                }
            } else if !self.files.contains(name) {
                std::fs::remove_file(&path).with_context(|| path.display().to_string())?;
            }
        }
        Ok(())
    }
}

impl Scratch {
    /// As [`Copied::open`].
    pub(super) fn open() -> Result<Self> {
        let copied = Copied::open(root().join("target/mutations"))?;
        // Left by a run that was killed.
        forget_own_builds();
        Ok(Self(copied))
    }

    pub(super) fn tree(&self) -> &Path {
        self.0.tree()
    }

    pub(super) fn restore(&self) -> Result<()> {
        self.0.restore()
    }

    /// Puts the bug in.
    ///
    /// # Errors
    /// When a text to replace does not occur exactly once.
    pub(super) fn apply(&self, mutation: &Mutation) -> Result<()> {
        for edit in mutation.edits {
            let path = self.tree().join(edit.file);
            let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            let text = edit.apply(&text).with_context(|| format!("{}: {}", mutation.name, edit.file))?;
            std::fs::write(&path, text).with_context(|| path.display().to_string())?;
        }
        Ok(())
    }
}
