//! The floor: three processes that do the least there is to do for a durable write on three disks (`bench/floor`). It
//! is no store: no consensus, index, encryption or recovery. It says how far a path can go on this machine.

use crate::binary::root;
use crate::cluster::free_ports;
use crate::cmd::cmd;
use crate::nbd::Uri;
use crate::process::{Proc, Signal};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time until a process has written its journal's zeroes.
const READY_LIMIT: Duration = Duration::from_secs(60);
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// Its processes, and its export: 4 GiB, one connection at a time.
pub struct Floor {
    processes: Vec<Proc>,
    pub uri: Uri,
}

impl Floor {
    /// Starts two followers, then the leader. Journals and the export's image are in `dir`, and are kept. Fails when it
    /// cannot be compiled, or when a process does not start.
    pub fn start(dir: &Path) -> Result<Self> {
        let program = program(dir)?;
        let first = free_ports(3)?;
        let ports = [first, first + 1, first + 2];
        let mut processes = Vec::new();
        for (name, port) in [("f1", ports[1]), ("f2", ports[2])] {
            processes.push(started(&program, dir, name, &["follow".into(), port.to_string()], &[])?);
        }
        let peers = [ports[1].to_string(), ports[2].to_string()];
        processes.push(started(&program, dir, "f0", &["lead".into(), ports[0].to_string()], &peers)?);
        let uri = Uri { addr: format!("127.0.0.1:{}", ports[0]), export: "floor".into() };
        Ok(Self { processes, uri })
    }

    /// Numbers of its processes.
    pub fn pids(&self) -> Vec<u32> {
        self.processes.iter().map(Proc::pid).collect()
    }

    /// Ends its processes, the leader first. Fails when one does not end.
    pub fn stop(self) -> Result<()> {
        self.processes.into_iter().rev().try_for_each(|mut process| process.stop(Signal::TERM, STOP_LIMIT))
    }
}

/// Compiles it: a second or two, without cargo, since it uses nothing but the standard library.
fn program(dir: &Path) -> Result<PathBuf> {
    let program = dir.join("floor");
    if !program.is_file() {
        let source = root().join("bench/floor/floor.rs");
        cmd("rustc").args(["-O", "--edition", "2024", "-o"]).arg(&program).arg(source).run().context("the floor")?;
    }
    Ok(program)
}

fn started(program: &Path, dir: &Path, name: &str, first: &[String], last: &[String]) -> Result<Proc> {
    let log = dir.join(format!("{name}.log"));
    let _ = std::fs::remove_file(&log);
    let command = cmd(program).args(first).arg(dir.join(name)).args(last).into_command();
    let mut process = Proc::spawn(&format!("floor {name}"), command, &log)?;
    let ready = || std::fs::read_to_string(&log).is_ok_and(|said| said.contains("ready"));
    process.ready_when("ready", READY_LIMIT, ready)?;
    Ok(process)
}
