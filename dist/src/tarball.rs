//! Tar archives that are the same for the same files, and the tarball for those who use no package manager.

use crate::inputs::Inputs;
use crate::layout::{Entry, Format, entries};
use crate::release::Release;
use crate::{stage, sums};
use anyhow::{Context, Result};
use holdfast_chore::cmd::Cmd;
use std::path::{Path, PathBuf};

/// GNU tar with everything fixed that it would take from the machine: order, times, owners.
pub fn tar(release: &Release) -> Cmd {
    let time = format!("--mtime=@{}", release.epoch);
    release.tool("tar").args(["--format=gnu", "--sort=name", "--numeric-owner", &time])
}

/// Compresses a file; returns the path with `.gz`.
pub fn gzip(release: &Release, file: &Path) -> Result<PathBuf> {
    release.tool("gzip").args(["-9", "-n"]).arg(file).run()?;
    let mut name = file.as_os_str().to_owned();
    name.push(".gz");
    Ok(name.into())
}

/// Makes the tarball: one folder with `bin`, `lib`, `share` and `etc`, the SBOM, and checksums of all of it.
pub fn build(inputs: &Inputs, work: &Path, out: &Path) -> Result<PathBuf> {
    let release = &inputs.release;
    let name = release.file("");
    let folder = work.join(&name);
    let all = entries(Format::Tar, release, &inputs.program.produced, &inputs.notices)?;
    let all: Vec<Entry> = all.into_iter().map(below_usr).collect();
    let staged = stage::write(release, &all, &inputs.program.stripped, &folder)?;
    std::fs::write(folder.join("sbom.cdx.json"), &inputs.sbom)?;
    let mut files: Vec<String> = staged.into_iter().filter(|one| !one.folder).map(|one| one.path).collect();
    files.push("sbom.cdx.json".to_owned());
    files.sort();
    std::fs::write(folder.join("SHA256SUMS"), sums::list(&folder, &files)?)?;
    stage::settle(&folder, release.epoch)?;
    let archive = out.join(release.file(".tar"));
    tar(release).args(["--owner=0", "--group=0", "-C"]).arg(work).arg("-cf").arg(&archive).arg(&name).run()?;
    gzip(release, &archive).context("the tarball")
}

/// `usr/bin/holdfast` is `bin/holdfast` here: one unpacks it below `/usr/local`, or anywhere.
fn below_usr(entry: Entry) -> Entry {
    let to = entry.to.strip_prefix("usr/").unwrap_or(&entry.to).to_owned();
    Entry { to, ..entry }
}
