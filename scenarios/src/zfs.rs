//! `cargo xtask zfs`: PostgreSQL on ZFS on the kernel's nbd, in virtual machines, over three gateways, under faults.
//!
//! ```text
//!   zfs (the machine's namespace): builds the guest's image once, and the program
//!     └─ unshare --net ─ zfs again: bridge, S3 server, ledger
//!          ├─ n1 n2 n3  gateways g1, g2, g3, on the host
//!          └─ n4 n5     guests a, b (QEMU): attach, /dev/nbd0..2, a stripe of three or a mirror of two sets, PostgreSQL 15, agent
//! ```
//! Times under emulation are several times those of a real machine: they are printed to show which phase is long, and
//! are not checked.

mod agents;
mod args;
mod base64;
mod cut_off;
mod devices;
mod events;
mod expired;
mod guest;
mod guest_agent;
mod guest_logs;
mod held;
mod intruder;
mod kept;
mod lab;
mod last_words;
mod mirror;
mod multihost;
mod off_set;
mod pool;
mod report;
mod second_device;
mod standby;
mod watchdog;

use crate::binary::{fresh_dir_after, profile_of, root};
use crate::cmd::cmd;
use crate::cmd::missing;
use crate::net;
use crate::proof::{self, Run as Proof, Verdict};
use crate::say::{Failed, line, note, step};
use crate::setup::{self, For};
use anyhow::{Context, Result};
pub use args::Args;
use args::Part;
use guest::Parts;
use lab::Lab;
use report::Report;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

/// Required programs. Root is required too; the image's builder installs its own programs.
const NEEDS: &[&str] = &["ip", "iptables", "unshare", "nsenter"];

/// Runs the chore. Fails when anything does not work, or an acknowledged commit is lost.
pub fn chore(args: &Args) -> Result<()> {
    let image = args.image.clone().unwrap_or_else(|| root().join("target/zfs-image"));
    if let Some(dir) = &args.inside {
        return inside(args, dir, &image);
    }
    anyhow::ensure!(setup::is_root(), "this makes network namespaces and builds a disk image: run it as root");
    if !args.no_setup {
        setup::setup(For::Tests)?;
    }
    if let Some(why) = missing(NEEDS).or_else(net::why_not) {
        anyhow::bail!("{why}");
    }
    if args.part == Part::Mirror
        && let Some(why) = missing(mirror::NEEDS)
    {
        anyhow::bail!("{why}");
    }
    let dir = fresh_dir_after("zfs", |dir| kept::keep(dir, &root().join("target/zfs-earlier")))?;
    build_image(&image, &dir)?;
    let bin = args.build.binary("dev")?;
    let again = cmd("unshare").args(["--net", "--"]).arg(std::env::current_exe()?).arg("zfs");
    let part = clap::ValueEnum::to_possible_value(&args.part).context("a part")?;
    let again = again.args(["--part", part.get_name(), "--load", &args.load.to_string()]);
    let again = again.args(["--scale", &args.scale.to_string(), "--sockets", &args.sockets.to_string()]);
    let again = again.arg("--bin").arg(&bin).arg("--image").arg(&image).arg("--inside").arg(&dir);
    kept::begin(&dir, part.get_name())?;
    let begun = Instant::now();
    let ran = again.show();
    noted(&dir, (part.get_name(), profile_of(&bin)), begun.elapsed().as_secs(), ran.is_ok());
    line(format!("Logs: {}", dir.display()));
    ran.map_err(|_| Failed.into())
}

/// Records the run for `cargo xtask proof`. A run without figures has shown nothing.
fn noted(dir: &Path, (part, profile): (&str, String), seconds: u64, held: bool) {
    let read = std::fs::read(dir.join(report::FILE)).ok();
    let figures = read.and_then(|text| serde_json::from_slice::<serde_json::Value>(&text).ok());
    let verdict = match (&figures, held) {
        (Some(_), true) => Verdict::Held,
        (Some(_), false) => Verdict::Broken,
        (None, _) => Verdict::Unknown,
    };
    let figure = |name: &str| figures.as_ref().and_then(|figures| figures[name].as_u64()).unwrap_or_default();
    let mut proof = Proof::now("PostgreSQL on ZFS in virtual machines", seconds, verdict);
    (proof.under, proof.faults, proof.profile) = (part.to_owned(), figure("faults"), profile);
    if verdict == Verdict::Broken {
        // Empty if the process ended without an error message: `proof --keep` then asks for a reason.
        let failed = figures.as_ref().and_then(|figures| figures["failed"].as_str());
        proof.note = failed.unwrap_or_default().to_owned();
    }
    proof.did("commits", figure("commits_acknowledged")).note();
}

/// Number of acknowledged commits in the ledgers of a run's folder.
fn commits(dir: &Path) -> u64 {
    let files = |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let ledgers = files(dir).flat_map(|folder| files(&folder).collect::<Vec<_>>());
    let ledgers = ledgers.filter(|file| file.extension().is_some_and(|extension| extension == "ledger"));
    ledgers.map(|file| std::fs::read_to_string(file).unwrap_or_default().lines().count() as u64).sum()
}

/// Builds the image if it is missing or was built by other versions of the scripts.
fn build_image(image: &Path, dir: &Path) -> Result<()> {
    let scripts = root().join("deploy/vm");
    let texts = ["build.sh", "init"].map(|file| std::fs::read_to_string(scripts.join(file)));
    let [build, init] = texts;
    let stamp = format!("{}{}", build?, init?);
    let (built, files) = (image.join("built"), ["vmlinuz", "initrd.gz", "rootfs.img"]);
    let there = files.iter().all(|file| image.join(file).is_file());
    if there && std::fs::read_to_string(&built).is_ok_and(|text| text == stamp) {
        note(format!("guest image: {}", std::fs::read_to_string(image.join("modules.version"))?.trim()));
        return Ok(());
    }
    step("Building the guest's image (compiles ZFS: minutes, once)");
    let log = dir.join("build.log");
    let said = std::fs::File::create(&log)?;
    let mut command = cmd("nice").args(["-n", "15"]).arg(scripts.join("build.sh")).arg(image).into_command();
    command.stdout(said.try_clone()?).stderr(said);
    let status = command.status().context("deploy/vm/build.sh")?;
    anyhow::ensure!(status.success(), "the image was not built: {}", crate::cmd::tail_of(&log, 8));
    std::fs::write(built, stamp)?;
    Ok(())
}

/// The program without debug information, as a disk image of whole sectors.
fn program(bin: &Path, dir: &Path, image: &Path) -> Result<Parts> {
    let disk = dir.join("program.img");
    if !cmd("strip").arg("-o").arg(&disk).arg(bin).succeeds() {
        std::fs::copy(bin, &disk)?;
    }
    let mut file = std::fs::File::options().append(true).open(&disk)?;
    let bytes = file.metadata()?.len();
    let rest = usize::try_from(bytes.next_multiple_of(4096) - bytes)?;
    file.write_all(&vec![0; rest])?;
    Ok(Parts { image: image.into(), program: disk, bytes })
}

fn inside(args: &Args, dir: &Path, image: &Path) -> Result<()> {
    let begun = Instant::now();
    let bin = args.build.bin.clone().context("no program")?;
    let parts = program(&bin, dir, image)?;
    let version = std::fs::read_to_string(image.join("modules.version")).unwrap_or_default();
    let mut report = Report::begin(version.trim(), args.scale, args.sockets);
    let mut lab = Lab::start(&bin, dir, parts)?;
    let ran = run(args, &mut lab, &mut report);
    let stopped = lab.stop();
    let failed = ran.as_ref().err().or(stopped.as_ref().err());
    report.failed = failed.map(|error| proof::ended_at(&format!("{error:#}")));
    report.took_s = begun.elapsed().as_secs();
    report.commits_acknowledged = commits(dir);
    report.save(dir)?;
    line(report.table());
    // A gateway that has exited by itself explains the other failures. The guests have ended by now.
    stopped.and(ran).map_err(|error| anyhow::anyhow!("{error:#}; {}", guest_logs::places(dir)))
}

/// Adds the name of `part` to an error, so that the record of a run of all parts names it.
fn of<T>(part: Part, result: Result<T>) -> Result<T> {
    result.with_context(|| {
        let named = clap::ValueEnum::to_possible_value(&part);
        format!("part {}", named.as_ref().map_or("unknown", |named| named.get_name()))
    })
}

fn run(args: &Args, lab: &mut Lab, report: &mut Report) -> Result<()> {
    let part = args.part;
    if !matches!(part, Part::Mirror | Part::OffSet | Part::SecondDevice) {
        let mut a = of(Part::Devices, devices::make(lab, report, args))?;
        if part.runs(Part::Devices) {
            of(Part::Devices, devices::grow(lab, report, args, &a))?;
            of(Part::Devices, devices::faults(lab, report, args, &a))?;
        }
        if part.runs(Part::Standby) {
            of(Part::Standby, standby::act(lab, report, args, &a))?;
        }
        of(Part::Devices, devices::let_go(report, &a))?;
        if part.runs(Part::Devices) {
            of(Part::Devices, intruder::act(lab, report, &a, args.sockets))?;
            of(Part::Devices, expired::act(report, &a, args.sockets))?;
        }
        if part.runs(Part::Watchdog) {
            // The same guests with another init process.
            a.kill()?;
            of(Part::Watchdog, watchdog::acts(lab, report, args))?;
            if part == Part::Watchdog {
                return Ok(());
            }
            (a, _) = lab.boot(0)?;
        }
        if part.runs(Part::Agents) || matches!(part, Part::CutOff | Part::Multihost) {
            let mut pair = of(Part::Agents, agents::pair(lab, report, a))?;
            if part.runs(Part::Agents) {
                pair = of(Part::Agents, agents::acts(lab, report, args, pair))?;
                of(Part::Agents, held::act(lab, report, &pair.0, &pair.1))?;
            }
            let (mut primary, mut standby) = ((pair.0, 0), (pair.1, 1));
            if part.runs(Part::CutOff) {
                of(Part::CutOff, cut_off::act(lab, report, (&primary.0, primary.1), &standby.0))?;
                std::mem::swap(&mut primary, &mut standby);
            }
            // Last, because it changes the pool and the time of a takeover.
            if part.runs(Part::Multihost) {
                of(Part::Multihost, multihost::acts(lab, report, args, primary, standby))?;
            }
        }
    }
    if part.runs(Part::Mirror) {
        of(Part::Mirror, mirror::acts(lab, report, args))?;
    }
    if part.runs(Part::OffSet) {
        of(Part::OffSet, off_set::acts(lab, report, args))?;
    }
    if part.runs(Part::SecondDevice) {
        of(Part::SecondDevice, second_device::acts(lab, report, args))?;
    }
    Ok(())
}
