//! The installed program at work: `holdfast dev` as the gateway's user, inside the tree, and a client from outside.

use super::tree::Tree;
use anyhow::{Context, Result, bail, ensure};
use holdfast_chore::cmd::{cmd, tail_of};
use holdfast_chore::process::{Proc, Signal, wait_until};
use std::io::BufRead;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// Time for a gateway to start and to serve. Much longer than it takes on an idle machine.
const SERVES_WITHIN: Duration = Duration::from_secs(60);

/// Time to stop.
const STOPS_WITHIN: Duration = Duration::from_secs(30);

/// Bytes of the volume, and of the file that is written to it.
const VOLUME: &str = "vol1=64MiB";
const WRITTEN: usize = 4 << 20;

/// A gateway with one volume. It ends when this is dropped.
pub struct Running {
    dev: Proc,
    /// The volume for NBD clients.
    uri: String,
    log: PathBuf,
}

impl Running {
    /// Starts it; its data is in `/var/lib/holdfast/dev` of the tree. Its log is in `dir`. Fails when it does not serve
    /// in time, with the end of its log.
    pub fn start(tree: &Tree, dir: &Path) -> Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
        let words =
            ["/usr/bin/holdfast", "dev", "--output", "json", "--dir", "/var/lib/holdfast/dev", "--gateways", "1"];
        let command = tree.as_user(&words)?.args(["--nbd-port", &port, "--set", "demo", "--volume", VOLUME]);
        let log = dir.join("dev.log");
        let (dev, out) = Proc::spawn_piped("holdfast dev", command.into_command(), &log)?;
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            let mut lines = std::io::BufReader::new(out).lines();
            let _ = tell.send(lines.next());
            // A full pipe would block the program.
            lines.for_each(drop);
        });
        let line = match told.recv_timeout(SERVES_WITHIN) {
            Ok(Some(line)) => line?,
            _ => bail!("holdfast dev announced nothing: {}", tail_of(&log, 8)),
        };
        let said: serde_json::Value =
            serde_json::from_str(&line).with_context(|| format!("holdfast dev said {line}"))?;
        let uri = said["nbd"][0].as_str().with_context(|| format!("holdfast dev said {line}, expected an address"))?;
        let mut running = Self { dev, uri: uri.to_owned(), log };
        let serves =
            wait_until(SERVES_WITHIN, || running.dev.ended().is_some() || cmd("nbdinfo").arg(&running.uri).succeeds());
        running.must_run()?;
        ensure!(serves, "{} is not served after {SERVES_WITHIN:?}: {}", running.uri, tail_of(&running.log, 8));
        Ok(running)
    }

    /// Fails with the end of its log if it has ended.
    pub fn must_run(&mut self) -> Result<()> {
        self.dev.must_run()
    }

    /// Writes the beginning of the volume, flushed.
    pub fn write(&self, dir: &Path) -> Result<()> {
        let file = dir.join("written");
        std::fs::write(&file, content())?;
        cmd("nbdcopy").arg("--flush").arg(&file).arg(&self.uri).run()
    }

    /// Reads the volume, and compares its beginning with what was written. Fails when it differs.
    pub fn read(&self, dir: &Path) -> Result<()> {
        let file = dir.join("read");
        // Of an earlier read; a client might leave holes where zeroes are.
        let _ = std::fs::remove_file(&file);
        cmd("nbdcopy").arg(&self.uri).arg(&file).run()?;
        let found = std::fs::read(&file)?;
        ensure!(found.len() >= WRITTEN, "read {} bytes of the volume, expected at least {WRITTEN}", found.len());
        let differs = found.iter().zip(content()).position(|(found, written)| *found != written);
        ensure!(differs.is_none(), "byte {} differs from what was written", differs.unwrap_or_default());
        Ok(())
    }

    /// Stops it by SIGTERM, as systemd does. Fails when it does not end.
    pub fn stop(&mut self) -> Result<()> {
        self.dev.stop(Signal::TERM, STOPS_WITHIN)
    }
}

/// Bytes that are no pattern of a block's length.
fn content() -> Vec<u8> {
    let mut state: u32 = 1;
    let next = || {
        // A linear congruential generator (Numerical Recipes); its upper byte is used.
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    std::iter::repeat_with(next).take(WRITTEN).collect()
}
