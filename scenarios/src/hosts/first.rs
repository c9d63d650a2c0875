//! First use of a set: creates a file system with a PostgreSQL in it, and releases the set.

use super::Way;
use crate::cmd::cmd;
use crate::pg::Postgres;
use crate::process::{Proc, Signal};
use crate::undo::{Guard, Undo};
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The set to fill.
#[derive(Clone, Debug)]
pub struct First<'a> {
    pub bin: &'a Path,
    pub set: &'a str,
    pub volume: &'a str,
    /// Admin addresses of the gateways.
    pub gateways: Vec<String>,
    /// Run directory of attach, and its log beside it.
    pub dir: PathBuf,
    /// Where to mount: PostgreSQL's data directory is below.
    pub mount: PathBuf,
    pub way: Way,
    /// Size of the file system, as mkfs wants it; all of the volume if none.
    pub size: Option<&'a str>,
    pub pg: &'a Postgres,
    /// PostgreSQL's settings besides those of the agent's command line.
    pub settings: &'a str,
    /// Clients from there are let in without a password.
    pub network: Option<&'a str>,
    /// Environment variables of attach: its certificate. Its owner is called `first`.
    pub env: &'a [(String, String)],
}

/// Runs `holdfast attach` for `owner`, in `dir`, until its device of `volume` exists. Returns the process and the
/// device. Fails when it does not exist within a minute.
pub fn attach(
    bin: &Path,
    (set, volume): (&str, &str),
    gateways: &[String],
    dir: &Path,
    owner: &str,
) -> Result<(Proc, PathBuf)> {
    attach_with(bin, (set, volume), gateways, dir, owner, &[])
}

/// The same with these environment variables.
fn attach_with(
    bin: &Path,
    (set, volume): (&str, &str),
    gateways: &[String],
    dir: &Path,
    owner: &str,
    env: &[(String, String)],
) -> Result<(Proc, PathBuf)> {
    let command = cmd(bin).args(["attach", set, "--owner", owner, "--device", "nbdfuse"]);
    let mut command = command.args(["--api", &gateways.join(","), "--dir"]).arg(dir);
    for (key, value) in env {
        command = command.env(key, value);
    }
    let mut attach = Proc::spawn("holdfast attach", command.into_command(), &dir.with_extension("log"))?;
    let (mut device, pid) = (None, attach.pid());
    attach.ready_when("ready", Duration::from_secs(60), || {
        // A killed one leaves its status.
        let shown = status(dir).filter(|status| status["pid"] == pid && status["ready"] == true);
        device = shown.and_then(|status| {
            let volumes = status["volumes"].as_array()?.clone();
            let volume = volumes.into_iter().find(|found| found["name"] == *volume)?;
            Some(PathBuf::from(volume["device"].as_str()?))
        });
        device.is_some()
    })?;
    Ok((attach, device.context("no device")?))
}

/// Status of an attach.
pub fn status(dir: &Path) -> Option<Value> {
    serde_json::from_slice(&std::fs::read(dir.join("status.json")).ok()?).ok()
}

/// Attaches, creates the file system and PostgreSQL's data directory, and detaches.
pub fn fill(first: &First<'_>) -> Result<()> {
    // initdb writes no paths: the mount point does not matter.
    let initdb = || first.pg.initdb(first.settings);
    prepare(first, || initdb().and_then(|()| first.network.map_or(Ok(()), |network| first.pg.trust(network))))
}

/// The same with a data directory that `make` creates.
pub fn prepare(first: &First<'_>, make: impl FnOnce() -> Result<()>) -> Result<()> {
    let First { bin, set, volume, gateways, dir, mount, way, size, env, .. } = first;
    let (mut attach, device) = attach_with(bin, (set, volume), gateways, dir, "first", env)?;
    cmd(format!("mkfs.{}", way.fs())).arg("-q").arg(&device).args(*size).run()?;
    std::fs::create_dir_all(mount)?;
    let guard = Guard::new(Undo::Umount(mount.clone()))?;
    cmd("mount").arg(&device).arg(mount).run()?;
    let made = make();
    drop(guard);
    made?;
    attach.stop(Signal::TERM, Duration::from_secs(30))
}
