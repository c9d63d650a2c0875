//! Applies `holdfast snapshot diff` to images of one snapshot's volumes: the result must equal those of the other, byte
//! for byte.
//!
//! ```text
//!  volumes written at random ─▶ snapshot a, its images ─▶ writes, trims; one grows, one shrinks, one shrinks and grows again, two exchange their names,
//!    one is deleted, one is deleted and made anew, one is new ─▶ snapshot b, its images
//!    ─▶ a's images by name, brought to b by the difference: b's images ─▶ and back: a's
//! ```

use super::Lab;
use crate::cluster::{Cluster, SET};
use crate::nbd::pattern;
use crate::process::wait_until;
use crate::say::note;
use crate::seed::Seeded;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const SECTOR: u64 = 512;
/// Most sectors of one write.
const WRITE_SECTORS: u64 = 256;
const PATIENCE: Duration = Duration::from_secs(30);
const LIMIT: Duration = Duration::from_secs(120);

/// Volumes of the first snapshot, in MiB. A page of the map is 32 MiB: some have several, and end in the middle of one.
const FIRST: [(&str, u64); 8] =
    [("vol1", 80), ("grown", 16), ("again", 72), ("cut", 40), ("anew", 24), ("left", 8), ("right", 8), ("gone", 8)];

/// Expected result of `snapshot diff` for each volume, in both directions.
const THERE: [(&str, &str); 10] = [
    ("gone", "anew"),
    ("gone", "gone"),
    ("same", "vol1"),
    ("same", "grown"),
    ("same", "again"),
    ("same", "cut"),
    ("anew", "anew"),
    ("same", "left"),
    ("same", "right"),
    ("new", "fresh"),
];
const BACK: [(&str, &str); 10] = [
    ("gone", "anew"),
    ("gone", "fresh"),
    ("same", "vol1"),
    ("same", "grown"),
    ("same", "again"),
    ("same", "cut"),
    ("anew", "anew"),
    ("same", "left"),
    ("same", "right"),
    ("new", "gone"),
];

pub(super) fn run(lab: &Lab) -> Result<()> {
    let seed = crate::seed::of_run()?;
    note(format!("HOLDFAST_SEED={seed} writes the same"));
    let mut dice = Seeded::new(seed, 1);
    let settings = ["upload.interval_ms=500", "space.grace_ms=1000", "space.sweep_interval_ms=2000"];
    let size = format!("{}MiB", FIRST[0].1);
    let cluster = Cluster::start(lab.options(&size, &settings))?;
    let ready = wait_until(LIMIT, || volume(&cluster, &["grow", "demo/vol1", "--size", &size]).is_ok());
    anyhow::ensure!(ready, "vol1 cannot be grown");
    for (name, mib) in FIRST {
        if name != "vol1" {
            volume(&cluster, &["create", &of(name), "--size", &format!("{mib}MiB")])?;
        }
        scatter(&cluster, &mut dice, name, 0..mib * MIB, 8 + mib)?;
    }
    cluster.holdfast(&["snapshot", "create", &format!("{SET}@a"), "--timeout", "90s"])?;
    let a = images(lab, &cluster, "a")?;
    change(&cluster, &mut dice)?;
    cluster.holdfast(&["snapshot", "create", &format!("{SET}@b"), "--timeout", "90s"])?;
    let b = images(lab, &cluster, "b")?;

    let there = Diff::ask(&cluster, "a", "b")?;
    there.says(&THERE)?;
    there.says_renamed("left", "right")?;
    let made = there.carry_out(&cluster, &a, &lab.dir.join("a-to-b"))?;
    same_images(&made, &b).context("from a to b")?;
    // The important case: the deleted volume's image must not be used for the new volume with the same name.
    let (wrong, right) = (lab.dir.join("wrong"), b.join("anew"));
    std::fs::copy(a.join("anew"), &wrong)?;
    File::options().write(true).open(&wrong)?.set_len(std::fs::metadata(&right)?.len())?;
    there.patch(&cluster, "anew", &wrong)?;
    anyhow::ensure!(first_difference(&wrong, &right)?.is_some(), "nothing of the deleted volume could be left over");
    note(format!("from a to b: {} MiB to take, {} MiB of zeroes: the same bytes", there.data / MIB, there.zero / MIB));

    let back = Diff::ask(&cluster, "b", "a")?;
    back.says(&BACK)?;
    back.says_renamed("right", "left")?;
    let made = back.carry_out(&cluster, &b, &lab.dir.join("b-to-a"))?;
    same_images(&made, &a).context("from b back to a")?;
    note(format!("and back: {} MiB to take, {} MiB of zeroes: the same bytes", back.data / MIB, back.zero / MIB));
    let nothing = Diff::ask(&cluster, "b", "b")?;
    anyhow::ensure!(nothing.ranges.is_empty(), "a snapshot is not like itself: {:?}", nothing.ranges);
    cluster.stop()?;
    for folder in ["a", "b", "a-to-b", "b-to-a"] {
        std::fs::remove_dir_all(lab.dir.join(folder)).context("the images go")?;
    }
    std::fs::remove_file(wrong)?;
    Ok(())
}

/// All possible changes of volumes.
fn change(cluster: &Cluster, dice: &mut Seeded) -> Result<()> {
    scatter(cluster, dice, "vol1", 0..80 * MIB, 60)?;
    let mut client = cluster.open(&of("vol1"), PATIENCE)?;
    for _ in 0..20 {
        let sectors = 1 + dice.below(2048);
        client.trim(dice.below(80 * MIB / SECTOR - sectors) * SECTOR, (sectors * SECTOR) as u32)?;
    }
    // A whole page, then a part of it again.
    client.trim(32 * MIB, 32 * MIB as u32)?;
    client.disconnect();
    scatter(cluster, dice, "vol1", 33 * MIB..40 * MIB, 4)?;

    volume(cluster, &["grow", &of("grown"), "--size", "72MiB"])?;
    // Across the old end, and far behind it; most of the new space is never written.
    scatter(cluster, dice, "grown", 15 * MIB..20 * MIB, 6)?;
    scatter(cluster, dice, "grown", 40 * MIB..48 * MIB, 3)?;

    shrink(cluster, "again", "9MiB")?;
    volume(cluster, &["grow", &of("again"), "--size", "72MiB"])?;
    scatter(cluster, dice, "again", 20 * MIB..36 * MIB, 6)?;
    shrink(cluster, "cut", "17MiB")?;

    delete(cluster, "anew")?;
    volume(cluster, &["create", &of("anew"), "--size", "40MiB"])?;
    scatter(cluster, dice, "anew", 0..40 * MIB, 6)?;
    delete(cluster, "gone")?;
    volume(cluster, &["create", &of("fresh"), "--size", "12MiB"])?;
    scatter(cluster, dice, "fresh", 0..12 * MIB, 6)?;

    // Without clients: one that has just left may still be connected for a moment.
    for (from, to) in [("left", "aside"), ("right", "left"), ("aside", "right")] {
        let renamed = wait_until(PATIENCE, || volume(cluster, &["rename", &of(from), to]).is_ok());
        anyhow::ensure!(renamed, "{from} is not renamed to {to}");
    }
    scatter(cluster, dice, "left", 0..8 * MIB, 3)
}

/// Output of the command.
struct Diff {
    /// The two snapshots.
    of: [String; 2],
    volumes: Vec<Value>,
    ranges: Vec<Value>,
    data: u64,
    zero: u64,
}

impl Diff {
    fn ask(cluster: &Cluster, earlier: &str, later: &str) -> Result<Self> {
        let lines = cluster.holdfast_lines(&["snapshot", "diff", SET, earlier, later, "--timeout", "60s"])?;
        let of_kind =
            |kind: &str| -> Vec<Value> { lines.iter().filter(|line| line["kind"] == kind).cloned().collect() };
        let (volumes, ranges) = (of_kind("volume"), of_kind("range"));
        let end = lines.last().filter(|last| last["kind"] == "end").context("a difference without an end")?;
        anyhow::ensure!(volumes.len() + ranges.len() + 1 == lines.len(), "lines of other kinds: {lines:?}");
        let sum = |content: &str| -> u64 {
            ranges.iter().filter(|one| one["content"] == content).filter_map(|one| one["length"].as_u64()).sum()
        };
        let (data, zero) = (sum("data"), sum("zero"));
        anyhow::ensure!(end["data_bytes"] == data && end["zero_bytes"] == zero, "{end}: found {data} and {zero}");
        Ok(Self { of: [earlier.to_string(), later.to_string()], volumes, ranges, data, zero })
    }

    fn says(&self, expected: &[(&str, &str)]) -> Result<()> {
        let relation = |line: &Value| -> (String, String) {
            let text = |key: &str| line[key].as_str().unwrap_or_default().to_string();
            (text("relation"), text("volume"))
        };
        let found: BTreeSet<(String, String)> = self.volumes.iter().map(relation).collect();
        let expected: BTreeSet<(String, String)> =
            expected.iter().map(|(relation, name)| (relation.to_string(), name.to_string())).collect();
        anyhow::ensure!(found == expected, "what became of the volumes: found {found:?}, expected {expected:?}");
        Ok(())
    }

    /// These two have exchanged their names.
    fn says_renamed(&self, one: &str, other: &str) -> Result<()> {
        for (now, then) in [(one, other), (other, one)] {
            let found = self.volumes.iter().find(|line| line["volume"] == now && line["relation"] == "same");
            let found = found.with_context(|| format!("the output lacks {now}"))?;
            anyhow::ensure!(found["renamed_from"] == then, "{found}: expected to be renamed from {then}");
        }
        Ok(())
    }

    /// Applies a diff as `holdfast snapshot diff --help` explains, from one folder of images to another.
    fn carry_out(&self, cluster: &Cluster, images: &Path, into: &Path) -> Result<PathBuf> {
        std::fs::create_dir_all(into)?;
        for line in self.volumes.iter().filter(|line| line["relation"] != "gone") {
            let name = line["volume"].as_str().context("a volume without a name")?;
            let size = line["size_after"].as_u64().context("a volume without a size")?;
            let image = into.join(name);
            match line["relation"].as_str() {
                Some("same") => {
                    let was = line["renamed_from"].as_str().unwrap_or(name);
                    std::fs::copy(images.join(was), &image)?;
                }
                Some("new" | "anew") => drop(File::create(&image)?),
                other => bail!("{name}: found relation {other:?}"),
            }
            File::options().write(true).open(&image)?.set_len(size)?;
            self.patch(cluster, name, &image)?;
        }
        Ok(into.to_path_buf())
    }

    /// Writes the ranges of a volume into an image.
    fn patch(&self, cluster: &Cluster, name: &str, image: &Path) -> Result<()> {
        let file = File::options().write(true).open(image)?;
        let mut client = cluster.open(&format!("{}@{}", of(name), self.of[1]), PATIENCE)?;
        for range in self.ranges.iter().filter(|range| range["volume"] == name) {
            let number = |key: &str| range[key].as_u64().with_context(|| format!("no {key} in {range}"));
            let (from, length) = (number("offset")?, number("length")?);
            for at in (from..from + length).step_by(MIB as usize) {
                let len = MIB.min(from + length - at);
                let bytes = match range["content"].as_str() {
                    Some("zero") => vec![0; len as usize],
                    Some("data") => client.read(at, len as u32)?,
                    other => bail!("found content {other:?}"),
                };
                file.write_all_at(&bytes, at)?;
            }
        }
        client.disconnect();
        Ok(())
    }
}

/// Exports all volumes of a snapshot into a folder, by name.
fn images(lab: &Lab, cluster: &Cluster, snapshot: &str) -> Result<PathBuf> {
    let folder = lab.dir.join(snapshot);
    std::fs::create_dir_all(&folder)?;
    let listed = cluster.holdfast(&["snapshot", "list", SET])?;
    let found = listed["snapshots"].as_array().and_then(|all| all.iter().find(|one| one["name"] == snapshot));
    let volumes = found.and_then(|one| one["volumes"].as_array()).context("a snapshot without volumes")?;
    for one in volumes {
        let name = one["name"].as_str().context("a volume without a name")?;
        let image = folder.join(name);
        let path = image.to_str().context("a path that is no text")?;
        volume(cluster, &["export", &format!("{}@{snapshot}", of(name)), path, "--timeout", "60s"])?;
    }
    Ok(folder)
}

/// Both folders have the same files, with the same bytes.
fn same_images(found: &Path, expected: &Path) -> Result<()> {
    let names = |folder: &Path| -> Result<BTreeSet<String>> {
        let entries = std::fs::read_dir(folder)?;
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    };
    let (there, all) = (names(found)?, names(expected)?);
    anyhow::ensure!(there == all, "found images {there:?}, expected {all:?}");
    for name in &all {
        if let Some(difference) = first_difference(&found.join(name), &expected.join(name))? {
            bail!("R4: the image of {name} is another one: {difference}");
        }
    }
    Ok(())
}

/// The first difference between two files, as text.
fn first_difference(found: &Path, expected: &Path) -> Result<Option<String>> {
    let (left, right) = (File::open(found)?, File::open(expected)?);
    let (size, other) = (left.metadata()?.len(), right.metadata()?.len());
    if size != other {
        return Ok(Some(format!("{size} bytes long, expected {other}")));
    }
    let mut buffers = [vec![0; MIB as usize], vec![0; MIB as usize]];
    for at in (0..size).step_by(MIB as usize) {
        let len = MIB.min(size - at) as usize;
        let [a, b] = &mut buffers;
        left.read_exact_at(&mut a[..len], at)?;
        right.read_exact_at(&mut b[..len], at)?;
        if let Some(place) = (0..len).find(|place| a[*place] != b[*place]) {
            return Ok(Some(format!("byte {}: found {}, expected {}", at + place as u64, a[place], b[place])));
        }
    }
    Ok(None)
}

/// Writes of random lengths at random places in the range.
fn scatter(cluster: &Cluster, dice: &mut Seeded, name: &str, range: Range<u64>, count: u64) -> Result<()> {
    let mut client = cluster.open(&of(name), PATIENCE)?;
    for _ in 0..count {
        let sectors = 1 + dice.below(WRITE_SECTORS);
        let at = range.start + dice.below((range.end - range.start) / SECTOR - sectors) * SECTOR;
        client.write(at, &pattern(dice.next(), at, (sectors * SECTOR) as usize))?;
    }
    client.flush()?;
    client.disconnect();
    Ok(())
}

fn shrink(cluster: &Cluster, name: &str, size: &str) -> Result<()> {
    volume(cluster, &["shrink", &of(name), "--size", size, "--discard-data", "--force"]).map(drop)
}

fn delete(cluster: &Cluster, name: &str) -> Result<()> {
    volume(cluster, &["delete", &of(name), "--yes", "--force"]).map(drop)
}

fn volume(cluster: &Cluster, args: &[&str]) -> Result<Value> {
    cluster.holdfast(&[&["volume"], args].concat())
}

fn of(volume: &str) -> String {
    format!("{SET}/{volume}")
}
