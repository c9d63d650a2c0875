//! The program of the last release before this tree: `rolling-upgrade` begins with it, unless another one is given.
//!
//! ```text
//!  git describe HEAD^ ─▶ v0.1.0 ─▶ git archive ─▶ target/older/tree ─▶ cargo build ─▶ target/older/holdfast-v0.1.0-COMMIT
//! ```
//! The program is kept by the commit of its tag, so that it is built once. What it was built from is removed.

use crate::binary::{cargo, root};
use crate::cmd::{Cmd, cmd};
use crate::say::{note, step};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Why there is none, if nothing failed.
pub(super) const NONE: &str =
    "no release before this commit has a tag (v*), and no program of an older build was given (--older-bin PATH)";

/// The program of the last tagged release, built with `profile` if it is not there yet. `None` if there is no such tag.
/// Fails when git fails, or the release does not build.
pub(super) fn of_last_release(profile: &str) -> Result<Option<PathBuf>> {
    let git = |args: &[&str]| cmd("git").args(args).dir(root()).out().map(|said| said.trim().to_owned());
    let Some(tag) = last_tag(git)? else { return Ok(None) };
    let commit = git(&["rev-parse", "--short=12", &format!("{tag}^{{commit}}")])?;
    let folder = root().join("target/older");
    let kept = folder.join(format!("holdfast-{}-{commit}", tag.replace('/', "-")));
    if !kept.is_file() {
        build(&tag, profile, &folder, &kept).with_context(|| format!("holdfast of {tag} ({commit})"))?;
    }
    Ok(Some(kept))
}

/// The last release tag before HEAD. On a commit that has a tag itself, that is the release before it. `None` if there
/// is none, or if git knows no commit before HEAD, as in a shallow clone.
fn last_tag(git: impl Fn(&[&str]) -> Result<String>) -> Result<Option<String>> {
    let Ok(before) = git(&["rev-parse", "--verify", "HEAD^"]) else { return Ok(None) };
    if git(&["tag", "--list", "v*", "--merged", &before])?.is_empty() {
        return Ok(None);
    }
    git(&["describe", "--tags", "--abbrev=0", "--match", "v*", &before]).map(Some)
}

/// Builds the program of `tag` as the tests build this tree's, and puts it at `kept`.
fn build(tag: &str, profile: &str, folder: &Path, kept: &Path) -> Result<()> {
    step(format!("Building holdfast of {tag} ({profile} profile)"));
    let begun = Instant::now();
    let (tree, archive, target) = (folder.join("tree"), folder.join("tree.tar"), folder.join("build"));
    remove(&tree)?;
    std::fs::create_dir_all(&tree).with_context(|| tree.display().to_string())?;
    cmd("git").args(["archive", "--format=tar", "--output"]).arg(&archive).arg(tag).dir(root()).run()?;
    cmd("tar").arg("-xf").arg(&archive).arg("-C").arg(&tree).run()?;
    let command = Cmd::of(cargo())
        .args(["build", "--locked", "--quiet", "-p", "holdfast", "--bin", "holdfast", "--profile", profile])
        .dir(&tree)
        .env("CARGO_TARGET_DIR", &target)
        // Built once: neither incremental builds nor debug info are of use, and both take disk space.
        .env("CARGO_INCREMENTAL", "0")
        .env("CARGO_PROFILE_DEV_DEBUG", "0");
    command.show()?;
    // Renamed at the end: half a copy would stay for good.
    let half = kept.with_extension("half");
    std::fs::copy(target.join("debug/holdfast"), &half).with_context(|| half.display().to_string())?;
    std::fs::rename(&half, kept).with_context(|| kept.display().to_string())?;
    remove(&tree)?;
    remove(&target)?;
    std::fs::remove_file(&archive).with_context(|| archive.display().to_string())?;
    note(format!("{:.0} s; kept as {}", begun.elapsed().as_secs_f64(), kept.display()));
    Ok(())
}

fn remove(folder: &Path) -> Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e).context(folder.display().to_string()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tag where git gives these answers, and fails for all other commands.
    fn tag(answers: &[(&str, &str)]) -> Result<Option<String>> {
        last_tag(|args| {
            let asked = args.join(" ");
            let answer = answers.iter().find(|(command, _)| *command == asked).map(|(_, answer)| (*answer).to_owned());
            answer.with_context(|| format!("git {asked} fails"))
        })
    }

    #[test]
    fn the_older_release_is_that_before_this_commit() {
        let before = ("rev-parse --verify HEAD^", "c2");
        let tags = |found| ("tag --list v* --merged c2", found);
        let described = ("describe --tags --abbrev=0 --match v* c2", "v0.1.0");
        assert_eq!(tag(&[before, tags("v0.0.1\nv0.1.0"), described]).unwrap().as_deref(), Some("v0.1.0"));
        assert_eq!(tag(&[before, tags("")]).unwrap(), None, "nothing was released");
        assert_eq!(tag(&[]).unwrap(), None, "a shallow clone");
        // That it cannot be read does not mean that there is none.
        assert!(tag(&[before]).is_err());
        assert!(tag(&[before, tags("v0.1.0")]).is_err());
    }
}
