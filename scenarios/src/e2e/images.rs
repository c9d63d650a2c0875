//! A random sparse image is imported into a volume and exported again. The command is killed and resumed; a gateway is
//! killed unnoticed.
//!
//! ```text
//!  image ─▶ import, kill -9 ─▶ import goes on, kill -9 of the serving gateway ─▶ the digest of the image
//!    ─▶ snapshot ─▶ export, kill -9 ─▶ export goes on ─▶ the same digest, the same bytes, holes are holes
//!    ─▶ the image changes: a stale state file is refused ─▶ from a pipe, into a volume that held other data
//!    ─▶ a qcow2 image in and out, by the commands of `docs/operating/volumes.md` as they stand there
//! ```

use super::{Lab, TAKEOVER_LIMIT};
use crate::binary::root;
use crate::cluster::{Cluster, SET};
use crate::cmd::cmd;
use crate::nbd::pattern;
use crate::process::{Proc, Signal, wait_until};
use crate::say::note;
use crate::seed::Seeded;
use anyhow::{Context, Result};
use serde_json::Value;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// Not whole sectors, on purpose.
const IMAGE: u64 = 448 * MIB + 777;
/// Larger than the image; each export is read to its end and more than once.
const VOLUME: u64 = 512 * MIB;
/// Size of the image that becomes a qcow2, which has whole sectors.
const SMALL: u64 = 96 * MIB;
const LIMIT: Duration = Duration::from_secs(180);

pub(super) fn run(lab: &Lab) -> Result<()> {
    let seed = crate::seed::of_run()?;
    note(format!("HOLDFAST_SEED={seed} makes the same image"));
    let size = format!("{}MiB", VOLUME / MIB);
    let mut cluster = Cluster::start(lab.options(&size, &["snapshot_exports=token"]))?;
    let image = lab.dir.join("image");
    make(&image, seed, IMAGE)?;
    let digest = sha256(&image)?;
    import(lab, &mut cluster, &image, &digest)?;
    export(lab, &mut cluster, &image, &digest)?;
    pipe(lab, &mut cluster, &image, &digest)?;
    qcow2(lab, &cluster, seed)?;
    cluster.stop()?;
    for file in ["image", "out"] {
        std::fs::remove_file(lab.dir.join(file)).context("the images go")?;
    }
    Ok(())
}

fn import(lab: &Lab, cluster: &mut Cluster, image: &Path, digest: &str) -> Result<()> {
    let state = lab.dir.join("import.state");
    let args = ["volume", "import", text(image)?, "demo/vol1", "--state", text(&state)?, "--timeout", "60s"];
    // The volume has other data: none of it may remain.
    let (_, mut client) = cluster.connect(TAKEOVER_LIMIT)?;
    for at in (0..VOLUME).step_by(16 << 20) {
        client.write(at, &pattern(9, at, 4096))?;
    }
    client.disconnect();
    // Other data is not replaced without a flag; an import that was begun continues without one.
    let refused = fails(lab, cluster, &args)?;
    anyhow::ensure!(refused.contains("--overwrite"), "a volume that holds data was imported into: {refused}");
    kill_midway(lab, cluster, &[&args[..], &["--overwrite"]].concat(), &state)?;
    let mut going = spawn(lab, cluster, &args)?;
    let before = done(&state);
    let further = wait_until(LIMIT, || done(&state) > before || going.ended().is_some());
    anyhow::ensure!(further && going.ended().is_none(), "the import ended before a gateway could be killed");
    let serving = leader(cluster)?;
    cluster.kill(serving)?;
    anyhow::ensure!(going.wait(LIMIT)?.success(), "the import through a kill failed; its words are in the folder");
    cluster.restart(serving)?;
    cluster.caught_up(LIMIT)?;
    anyhow::ensure!(!state.exists(), "the state file is left");
    let said = last_json(lab)?;
    anyhow::ensure!(said["resumed_from"].as_u64() > Some(0), "it did not resume: {said}");
    anyhow::ensure!(said["sha256"] == digest, "the digest of the import: {said}, expected {digest}");
    note(format!("imported through kill -9 of the command at {} MiB and of {}", before / MIB, cluster.name(serving)));
    Ok(())
}

fn export(lab: &Lab, cluster: &mut Cluster, image: &Path, digest: &str) -> Result<()> {
    cluster.holdfast(&["snapshot", "create", "demo@image", "--timeout", "120s"])?;
    let (out, state) = (lab.dir.join("out"), lab.dir.join("export.state"));
    let part = lab.dir.join("out.part");
    let args = ["volume", "export", "demo/vol1@image", text(&out)?, "--state", text(&state)?, "--timeout", "60s"];
    kill_midway(lab, cluster, &args, &state)?;
    anyhow::ensure!(!out.exists(), "an export that was killed has the name of a whole one");
    // The command reads existing data again instead of trusting it: here someone changes it.
    let broken = File::options().write(true).open(&part)?;
    let mut byte = [0];
    File::open(&part)?.read_exact_at(&mut byte, 5)?;
    broken.write_all_at(&[byte[0] ^ 1], 5)?;
    let refused = fails(lab, cluster, &args)?;
    anyhow::ensure!(refused.contains("SHA-256"), "a changed image was accepted as the exported data: {refused}");
    broken.write_all_at(&byte, 5)?;
    let said = cluster.holdfast(&args)?;
    anyhow::ensure!(said["resumed_from"].as_u64() > Some(0), "it did not resume: {said}");
    anyhow::ensure!(!part.exists(), "the part is left");
    // The volume is larger than the image: zeroes behind it.
    let plain = File::options().write(true).open(image)?;
    plain.set_len(VOLUME)?;
    let whole = sha256(image)?;
    anyhow::ensure!(
        said["sha256"] == whole.as_str() && sha256(&out)? == whole,
        "the digest of the export: {said}, expected {whole}"
    );
    let used = std::fs::metadata(&out)?.blocks() * 512;
    anyhow::ensure!(used < IMAGE * 3 / 4, "{} MiB on the disk for an image of holes", used / MIB);
    plain.set_len(IMAGE)?;
    anyhow::ensure!(sha256(image)? == digest, "the image is what it was");
    note(format!("exported through kill -9: the same bytes, {} MiB of {} on the disk", used / MIB, VOLUME / MIB));
    Ok(())
}

fn pipe(lab: &Lab, cluster: &mut Cluster, image: &Path, digest: &str) -> Result<()> {
    // A state file of another image is refused, whatever its length.
    let state = lab.dir.join("other.state");
    let state_arg = text(&state)?;
    let args = ["volume", "import", text(image)?, "demo/vol1", "--overwrite", "--state", state_arg, "--timeout", "60s"];
    kill_midway(lab, cluster, &args, &state)?;
    let plain = File::options().write(true).read(true).open(image)?;
    let mut bytes = [0; 8];
    plain.read_exact_at(&mut bytes, 0)?;
    plain.write_all_at(&[!bytes[0]], 0)?;
    let refused = fails(lab, cluster, &args)?;
    anyhow::ensure!(refused.contains("SHA-256"), "another image was taken for the interrupted one: {refused}");
    plain.write_all_at(&bytes, 0)?;
    std::fs::remove_file(&state)?;
    // A killed command leaves a lease: the next one waits for its end.
    let doors: Vec<&str> = cluster.gateways.iter().map(|gateway| gateway.api.as_str()).collect();
    let command = format!(
        "cat {} | {} volume import - demo/vol1 --overwrite --timeout 60s --output json --api {}",
        image.display(),
        lab.bin.display(),
        doors.join(",")
    );
    let said: Value = serde_json::from_str(&cmd("sh").args(["-c", &command]).out()?)?;
    anyhow::ensure!(said["sha256"] == digest, "the digest of the import from a pipe: {said}, expected {digest}");
    let export = format!(
        "{} volume export demo/vol1 - --timeout 60s --output json --api {} | head -c {IMAGE} | sha256sum",
        lab.bin.display(),
        doors.join(",")
    );
    let found = cmd("sh").args(["-c", &export]).out()?;
    anyhow::ensure!(found.starts_with(digest), "the digest of the export to a pipe: {found}, expected {digest}");
    note("another image is not taken for it; through pipes, in and out");
    Ok(())
}

/// Runs the commands of the page, as users do: a change on the page changes this test.
fn qcow2(lab: &Lab, cluster: &Cluster, seed: u64) -> Result<()> {
    let folder = lab.dir.join("qcow2");
    std::fs::create_dir(&folder)?;
    std::os::unix::fs::symlink(std::path::absolute(&lab.bin)?, folder.join("holdfast"))?;
    make(&folder.join("disk.raw"), seed, SMALL)?;
    let image = |args: &[&str]| cmd("qemu-img").args(args).dir(&folder).out();
    image(&["convert", "-f", "raw", "-O", "qcow2", "disk.raw", "disk.qcow2"])?;
    // A fresh volume: for another one the command would ask.
    cluster.holdfast(&["volume", "delete", "demo/vol1", "--yes", "--force"])?;
    cluster.holdfast(&["volume", "create", "demo/vol1", "--size", "96MiB"])?;
    let said = documented(cluster, &folder, "nbdcopy -- [ qemu-nbd ")?;
    let digest = sha256(&folder.join("disk.raw"))?;
    anyhow::ensure!(said.trim_end().ends_with(&digest), "the import of a qcow2 image: {said}, expected {digest}");
    cluster.holdfast(&["snapshot", "create", "demo@monday", "--timeout", "120s"])?;
    documented(cluster, &folder, "holdfast volume export demo/vol1@monday monday.img && ")?;
    by_token(cluster, &folder)?;
    let whole = sha256(&folder.join("monday.img"))?;
    anyhow::ensure!(whole == digest, "the export of it: found {whole}, expected {digest}");
    image(&["compare", "-f", "qcow2", "-F", "qcow2", "disk.qcow2", "monday.qcow2"])?;
    std::fs::remove_dir_all(&folder).context("the qcow2 images go")?;
    note("a qcow2 image through a pipe, and another one of the same content from the export, as documented");
    Ok(())
}

/// A third-party client reads the snapshot by the export name that `holdfast snapshot token` prints, at every gateway,
/// and by no other name (R10).
fn by_token(cluster: &Cluster, folder: &Path) -> Result<()> {
    let said = cluster.holdfast(&["snapshot", "token", "demo@monday"])?;
    let token = said["token"].as_str().context("no token")?;
    let export = |token: &str| format!("demo/vol1@monday%3Ftoken={token}");
    anyhow::ensure!(said["exports"][0].as_str().is_some_and(|uri| uri.ends_with(&export(token))), "{said}");
    let wrong = export(&"0".repeat(32));
    for gateway in &cluster.gateways {
        let uri = |name: &str| gateway.nbd.with_export(name);
        let copied = || cmd("nbdcopy").args([&uri(&export(token)).to_string(), "token.img"]).dir(folder).run();
        // A follower applies the snapshot a moment after the leader has answered.
        anyhow::ensure!(wait_until(LIMIT, || copied().is_ok()), "not read with its token: {:?}", copied());
        anyhow::ensure!(sha256(&folder.join("token.img"))? == sha256(&folder.join("monday.img"))?, "another content");
        for closed in ["demo/vol1@monday", &wrong, "demo/vol1@tuesday", "none/vol1@monday"] {
            let refused =
                cmd("nbdinfo").arg(uri(closed).to_string()).run().err().context("opened without its token")?;
            anyhow::ensure!(format!("{refused:#}").contains("server replied with error"), "{closed}: {refused:#}");
        }
    }
    note("a snapshot is read with its token at every gateway, and not without");
    Ok(())
}

/// Runs the only command on the page that begins like this, in the folder; returns its output.
fn documented(cluster: &Cluster, folder: &Path, begin: &str) -> Result<String> {
    const PAGE: &str = "docs/operating/volumes.md";
    let page = std::fs::read_to_string(root().join(PAGE)).context(PAGE)?;
    let commands: Vec<&str> = page.lines().map(str::trim).filter(|line| line.starts_with(begin)).collect();
    anyhow::ensure!(commands.len() == 1, "{PAGE}: found {} commands `{begin}...`, expected one", commands.len());
    let doors: Vec<&str> = cluster.gateways.iter().map(|gateway| gateway.api.as_str()).collect();
    let path = std::env::var("PATH").unwrap_or_default();
    let shell = cmd("sh").args(["-c", commands[0]]).dir(folder).env("HOLDFAST_API", doors.join(","));
    shell.env("PATH", format!("{}:{path}", std::path::absolute(folder)?.display())).out()
}

/// Data of random lengths at random places; the rest are holes.
fn make(path: &Path, seed: u64, image: u64) -> Result<()> {
    let mut dice = Seeded::new(seed, 1);
    let file = File::create(path)?;
    file.set_len(image)?;
    let mut at = dice.below(3 * MIB);
    while at < image {
        let len = (1 + dice.below(6 * MIB)).min(image - at);
        let mut bytes = Vec::with_capacity(len as usize + 8);
        while bytes.len() < len as usize {
            bytes.extend_from_slice(&dice.next().to_le_bytes());
        }
        file.write_all_at(&bytes[..len as usize], at)?;
        // Sometimes right behind the last one, sometimes far from it.
        at += len + dice.below(2) * dice.below(16 * MIB);
    }
    file.write_all_at(b"the end", image - 7)?;
    Ok(())
}

/// Starts the command, and kills it as soon as its state file shows progress.
fn kill_midway(lab: &Lab, cluster: &Cluster, args: &[&str], state: &Path) -> Result<()> {
    let mut going = spawn(lab, cluster, args)?;
    let begun = wait_until(LIMIT, || done(state) > 0 || going.ended().is_some());
    anyhow::ensure!(begun && going.ended().is_none(), "it ended before it could be killed: {args:?}");
    going.signal(Signal::KILL);
    going.wait(LIMIT)?;
    anyhow::ensure!(done(state) > 0, "the state file is gone with the command");
    Ok(())
}

fn spawn(lab: &Lab, cluster: &Cluster, args: &[&str]) -> Result<Proc> {
    let doors: Vec<&str> = cluster.gateways.iter().map(|gateway| gateway.api.as_str()).collect();
    let command = cmd(&lab.bin).args(args).args(["--output", "json", "--api", &doors.join(",")]);
    Proc::spawn("holdfast volume", command.into_command(), &log(lab))
}

/// Runs the command, which must fail; returns the error text.
fn fails(lab: &Lab, cluster: &Cluster, args: &[&str]) -> Result<String> {
    let mut going = spawn(lab, cluster, args)?;
    let status = going.wait(LIMIT)?;
    let said = crate::cmd::tail_of(&log(lab), 1);
    anyhow::ensure!(!status.success(), "{args:?} succeeded, expected a refusal: {said}");
    Ok(said)
}

fn log(lab: &Lab) -> PathBuf {
    lab.dir.join("copies.log")
}

/// The result that a command has printed last.
fn last_json(lab: &Lab) -> Result<Value> {
    let text = std::fs::read_to_string(log(lab))?;
    let line = text.lines().rfind(|line| line.starts_with("{\"")).context("no result in the log")?;
    Ok(serde_json::from_str(line)?)
}

/// The gateway that leads the set.
fn leader(cluster: &Cluster) -> Result<usize> {
    let shown = cluster.holdfast(&["set", "show", SET, "--any-view"])?;
    let name = shown["leader"]["name"].as_str().context("a set without a leader")?;
    let found = (0..cluster.gateways.len()).find(|index| cluster.name(*index) == name);
    found.with_context(|| format!("no gateway is called {name}"))
}

/// Bytes that the state file counts as done.
fn done(state: &Path) -> u64 {
    let text = std::fs::read(state).unwrap_or_default();
    let value: Value = serde_json::from_slice(&text).unwrap_or_default();
    value["done_bytes"].as_u64().unwrap_or(0)
}

fn sha256(path: &Path) -> Result<String> {
    let said = cmd("sha256sum").arg(path).out()?;
    Ok(said.split(' ').next().unwrap_or_default().to_string())
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path that is no text")
}
