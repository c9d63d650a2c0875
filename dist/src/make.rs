//! `cargo xtask dist`: gathers what goes into the packages, and makes each format.

use crate::inputs::Inputs;
use crate::program::{self, Program};
use crate::release::Release;
use crate::{deb, image, notices, rpm, sbom, sums, tarball};
use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use holdfast_chore::binary::{fresh_dir, root};
use holdfast_chore::say::{line, note, step};
use holdfast_chore::setup::{self, For};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Options on the command line.
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = "Examples:
  cargo xtask dist                       all formats, in target/dist/out
  cargo xtask dist --twice               builds and packs twice, in different folders, and compares every byte
  cargo xtask dist --only deb --dirty    a package to try a change with")]
pub struct Args {
    /// Make only these
    #[arg(long, value_enum, value_delimiter = ',', value_name = "FORMAT,..")]
    only: Vec<What>,
    /// The version; default: that of Cargo.toml at its tag, otherwise with the commit's time and name behind it
    #[arg(long, value_name = "VERSION")]
    version: Option<String>,
    /// Pack although files differ from the commit; the version says so
    #[arg(long)]
    dirty: bool,
    /// Build and pack twice, and compare
    #[arg(long, conflicts_with = "bin")]
    twice: bool,
    /// Pack this `holdfast` program and build none
    #[arg(long, env = "HOLDFAST_BIN", value_name = "PATH")]
    bin: Option<PathBuf>,
    /// Install nothing
    #[arg(long)]
    no_setup: bool,
}

/// A format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum What {
    /// The Debian package
    Deb,
    /// The package for Fedora, RHEL and their relatives
    Rpm,
    /// The tarball
    Tar,
    /// The OCI image
    Image,
}

/// Gathers what goes into the packages, for a built program, below `work`. Fails when a tool is missing or fails.
pub fn gather(release: &Release, built: &Path, work: &Path, formats: &[What]) -> Result<Inputs> {
    let program = Program::prepare(release, built, &work.join("program"))?;
    let crates = sbom::crates(release)?;
    note(format!("{} crates are linked", crates.len()));
    let base = formats.contains(&What::Image).then(|| image::lower_layer(&work.join("base"))).transpose()?;
    let (sbom, notices) = (sbom::document(release, &crates)?, notices::text(&crates)?);
    Ok(Inputs { release: release.clone(), program, sbom, notices, base })
}

/// Makes the formats, the SBOM and `SHA256SUMS` in `out`. Returns the paths. Fails when a tool is missing or fails.
pub fn all(inputs: &Inputs, formats: &[What], work: &Path, out: &Path) -> Result<Vec<PathBuf>> {
    for folder in [work, out] {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    let mut made = Vec::new();
    for format in formats {
        step(format!("Packing: {format:?} of {}", inputs.release.version));
        made.push(match format {
            What::Deb => deb::build(inputs, work, out)?,
            What::Rpm => rpm::build(inputs, work, out)?,
            What::Tar => tarball::build(inputs, work, out)?,
            What::Image => {
                let base = inputs.base.as_deref().context("no lower layer was gathered for the image")?;
                image::build(inputs, base, work, out)?
            }
        });
    }
    let sbom = out.join(inputs.release.file(".cdx.json"));
    std::fs::write(&sbom, &inputs.sbom)?;
    made.push(sbom);
    write_sums(out)?;
    Ok(made)
}

/// Writes `SHA256SUMS` for all other files of the folder.
fn write_sums(out: &Path) -> Result<()> {
    let names: Vec<String> = digests(out)?.into_keys().filter(|name| name != "SHA256SUMS").collect();
    std::fs::write(out.join("SHA256SUMS"), sums::list(out, &names)?).context("SHA256SUMS")
}

/// The digest of each file of a folder.
fn digests(folder: &Path) -> Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        found.insert(entry.file_name().to_string_lossy().into_owned(), sums::of_file(&entry.path())?);
    }
    Ok(found)
}

/// Compares two folders of packages, byte by byte. Fails when a file is in one only, or differs; the error names all of
/// them.
pub fn same(one: &Path, two: &Path) -> Result<()> {
    let (first, second) = (digests(one)?, digests(two)?);
    let names: std::collections::BTreeSet<&String> = first.keys().chain(second.keys()).collect();
    let differ: Vec<&str> =
        names.into_iter().filter(|name| first.get(*name) != second.get(*name)).map(String::as_str).collect();
    ensure!(
        differ.is_empty(),
        "packed twice, and these differ: {} (compare the two in {} and {}, with diffoscope for example)",
        differ.join(", "),
        one.display(),
        two.display()
    );
    ensure!(!first.is_empty(), "{}: found no files, expected packages", one.display());
    Ok(())
}

/// Runs the chore. Fails when something does not build or pack, or two runs differ.
pub fn chore(args: &Args) -> Result<()> {
    if !args.no_setup {
        setup::setup(For::Packages)?;
    }
    let release = Release::of_tree(args.dirty)?;
    let release = args.version.as_deref().map_or(Ok(release.clone()), |version| release.named(version))?;
    let formats = if args.only.is_empty() { What::value_variants().to_vec() } else { args.only.clone() };
    let dir = fresh_dir("dist")?;
    let (out, again) = (dir.join("out"), dir.join("again"));
    note(format!("version {}, time of all files {}", release.version, release.date_json()?));
    let built = match &args.bin {
        Some(bin) => bin.canonicalize().with_context(|| bin.display().to_string())?,
        None => program::build(&release, "dist-build")?,
    };
    let inputs = gather(&release, &built, &dir.join("work"), &formats)?;
    let mut made = all(&inputs, &formats, &dir.join("work"), &out)?;
    if args.twice {
        step("The same again, in other folders");
        let built = program::build(&release, "dist-build-again")?;
        let work = dir.join("work-in-another-place");
        let inputs = gather(&release, &built, &work, &formats)?;
        all(&inputs, &formats, &work, &again)?;
        same(&out, &again)?;
        note("both are equal, byte by byte");
    }
    let debug = out.join(release.file(".debug"));
    program::debug_file(&release, &built, &debug)?;
    made.push(debug);
    write_sums(&out)?;
    for path in made {
        let size = std::fs::metadata(&path)?.len();
        let path = path.strip_prefix(root()).unwrap_or(&path);
        line(format!("{:>8.1} MiB  {}", size as f64 / f64::from(1 << 20), path.display()));
    }
    line("The checksums are in SHA256SUMS, beside them.");
    Ok(())
}
