//! One node's disk for Jepsen's fault `unsynced`: the disk of [`crate::power`], mounted at a folder. It takes commands
//! on standard input, one per line, answers each by one line, and ends when the input ends.
//!
//! ```text
//!   lie   from now on it acknowledges syncs and mostly does not sync -> lies
//!   off   the power is off: nothing can be read or written         -> off
//!   busy  the same, as soon as there is unsynced data              -> off
//!   on    unsynced data is kept, lost or torn, by the seed         -> {"kept":0,"lost":12,"torn":1,"names":0}
//! ```

use crate::chaos::seed::Seeded;
use crate::power::mount::Mounted;
use anyhow::{Context, Result};
use std::io::{BufRead, Write};
use std::path::Path;
use std::time::Duration;

/// How long `busy` waits for unsynced data: a held lease alone writes an entry every second.
const BUSY: Duration = Duration::from_secs(2);

/// Serves a disk at `at` until standard input ends. Fails when it cannot be mounted, or a line is not one of these
/// commands.
pub fn serve(at: &Path, seed: u64) -> Result<()> {
    let mut chance = Seeded::new(seed, 0);
    let mut disk = Mounted::new(at)?;
    let mut out = std::io::stdout().lock();
    let mut say = |what: &str| -> Result<()> {
        writeln!(out, "{what}")?;
        Ok(out.flush()?)
    };
    say("ready")?;
    for line in std::io::stdin().lock().lines() {
        match line.context("standard input")?.trim() {
            "lie" => {
                disk.lie();
                say("lies")?;
            }
            "off" => {
                Mounted::switch_off(std::slice::from_ref(&disk));
                say("off")?;
            }
            "busy" => {
                disk.switch_off_busy(BUSY);
                say("off")?;
            }
            "on" => {
                let of = disk.switch_on(&mut chance)?;
                let (kept, lost, torn, names) = (of.kept, of.lost, of.torn, of.names);
                say(&format!("{{\"kept\":{kept},\"lost\":{lost},\"torn\":{torn},\"names\":{names}}}"))?;
            }
            other => anyhow::bail!("found {other:?}, expected lie, off, busy or on"),
        }
    }
    Ok(())
}
