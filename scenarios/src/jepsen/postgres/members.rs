//! Operations of an administrator on a healthy cluster (restart each gateway, drain one, replace one with a lost disk),
//! and forbidden ones on their disks: restore an old copy, use one twice. Of the last two a process must be refused,
//! and the answer at the door shows whether it was.
//!
//! Owns: the operations and their reversal. Does not own: their times (`scene`).

use super::changed::Changed;
use super::fault::draw;
use super::scene::{Lasting, Scene};
use crate::cluster::member_called;
use crate::cmd::{cmd, tail_of};
use crate::gateways::{self, GATEWAYS};
use crate::process::wait_until;
use crate::stage::LIMIT;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Limit of a command that only moves leadership.
const COMMAND: Duration = Duration::from_secs(20);

/// Limit until a gateway that must be refused is: it exits, or reports that it fetches what it has forgotten.
const REFUSED: Duration = Duration::from_secs(20);

/// Log lines that a fault reports.
const LINES: usize = 2;

impl Scene {
    /// Ends each gateway by SIGTERM and starts it again, the next one once it has caught up.
    pub(super) fn upgrade(&mut self) -> Result<(String, bool)> {
        let mut order: Vec<usize> = (0..GATEWAYS).filter(|gateway| self.spoilt != Some(*gateway)).collect();
        self.chance.shuffle(&mut order);
        if !order.iter().all(|gateway| self.stage.gateways.is_on(*gateway)) {
            return Ok(("not all gateways run".into(), false));
        }
        for gateway in &order {
            self.stage.gateways.end(*gateway)?;
            self.bring_back(*gateway)?;
            self.stage.caught_up_but(self.spoilt)?;
        }
        let told: Vec<String> = order.into_iter().map(gateways::name).collect();
        Ok((format!("{}, each started anew", told.join(" ")), true))
    }

    /// Every other time the serving gateway.
    pub(super) fn drain(&mut self) -> Result<(String, bool)> {
        let primary = self.stage.primary()?;
        let gateway = match self.stage.serving(primary) {
            Ok(serving) if self.chance.chance(50) => serving,
            _ => draw(&mut self.chance, GATEWAYS),
        };
        let name = gateways::name(gateway);
        let done = self.stage.gateways.holdfast(&["gateway", "drain", &name], COMMAND);
        // Also where the outcome is not known.
        self.lasting.push(Lasting::Changed(Changed::Drained(gateway)));
        // A refusal is an answer, but no fault.
        Ok(match done {
            Ok(_) => (name, true),
            Err(e) => (format!("{name} was not drained: {e:#}"), false),
        })
    }

    /// A gateway loses its disk.
    pub(super) fn empty(&mut self) -> Result<(String, bool)> {
        if self.spoilt.is_some() || !self.all_on() {
            // If another one is away, taking this one's disk would lose a majority.
            return Ok(("not all gateways run".into(), false));
        }
        let gateway = draw(&mut self.chance, GATEWAYS);
        let member = self.member(gateway)?;
        self.kill(gateway)?;
        self.lasting.push(Lasting::Changed(Changed::Emptied { gateway, member }));
        clear(&self.ground.data(&self.dir, gateway))?;
        Ok((format!("{} was m{member}", gateways::name(gateway)), true))
    }

    /// Copies a gateway's disk.
    pub(super) fn keep_copy(&mut self) -> Result<(String, bool)> {
        if let Some(done) = self.spoilt {
            return Ok((format!("done already, at {}", gateways::name(done)), false));
        }
        let gateway = draw(&mut self.chance, GATEWAYS);
        let copy = self.beside(gateway, "old");
        self.kill(gateway)?;
        copy_of(&self.ground.data(&self.dir, gateway), &copy)?;
        self.bring_back(gateway)?;
        self.trouble.away.remove(&gateway);
        self.spoilt = Some(gateway);
        self.lasting.push(Lasting::Changed(Changed::Copied { gateway, copy }));
        Ok((format!("{}: its disk was copied", gateways::name(gateway)), true))
    }

    /// Starts a second process on a copy of a gateway's disk.
    pub(super) fn start_twin(&mut self) -> Result<(String, bool)> {
        if let Some(done) = self.spoilt {
            return Ok((format!("done already, at {}", gateways::name(done)), false));
        }
        let gateway = draw(&mut self.chance, GATEWAYS);
        let (member, copy) = (self.member(gateway)?, self.beside(gateway, gateways::TWIN));
        self.spoilt = Some(gateway);
        self.stage.gateways.pause(gateway)?;
        let copied = copy_of(&self.ground.data(&self.dir, gateway), &copy);
        self.stage.gateways.heal_one(&self.stage.net, gateway)?;
        copied?;
        let (twin, log) = self.stage.gateways.twin(&self.stage.net, gateway)?;
        self.lasting.push(Lasting::Changed(Changed::Twin { gateway, member, twin, copy, log }));
        Ok((format!("{} runs twice", gateways::name(gateway)), true))
    }

    /// Reverses one change: its result, and whether the fault happened.
    pub(super) fn change_back(&mut self, changed: &mut Changed) -> Result<(String, bool)> {
        match changed {
            Changed::Drained(gateway) => {
                let name = gateways::name(*gateway);
                self.stage.gateways.holdfast(&["gateway", "undrain", &name], COMMAND)?;
                Ok((format!("{name} stands by"), true))
            }
            Changed::Emptied { gateway, member } => self.replace(*gateway, *member),
            Changed::Copied { gateway, copy } => self.put_back(*gateway, copy),
            Changed::Twin { gateway, member, twin, copy, log } => {
                let (name, twin_runs) = (gateways::name(*gateway), twin.ended().is_none());
                let original_runs = self.stage.gateways.lives(*gateway);
                let by = self.refused_by_others(*gateway, *member)?;
                let begun = std::fs::read_to_string(&*log).unwrap_or_default().lines().count() > 1;
                twin.stop(crate::process::Signal::KILL, COMMAND)?;
                remove(copy)?;
                let outcome = outcome(!(twin_runs && original_runs) || by > 0);
                let told = format!(
                    "twice {name}: {outcome} (the twin {}, the original {}, refused {by} times by the others)",
                    runs(twin_runs),
                    runs(original_runs)
                );
                // A program that fails at once is no twin.
                Ok((told, begun))
            }
        }
    }

    fn replace(&mut self, gateway: usize, member: u64) -> Result<(String, bool)> {
        let name = gateways::name(gateway);
        // An earlier try may have got this far.
        if self.member(gateway).ok().is_none_or(|now| now == member) {
            let (old, by) = (format!("m{member}"), gateways::api(gateway));
            self.stage.gateways.holdfast(&["gateway", "replace", &old, "--by", &by, "--yes"], LIMIT)?;
        }
        // Whichever gateway is asked may be a moment behind.
        let mut now = member;
        let known = wait_until(COMMAND, || {
            now = self.member(gateway).unwrap_or(member);
            now != member
        });
        Ok((format!("{name} was m{member}, is m{now}"), known))
    }

    fn put_back(&mut self, gateway: usize, copy: &Path) -> Result<(String, bool)> {
        let (name, data) = (gateways::name(gateway), self.ground.data(&self.dir, gateway));
        self.stage.gateways.kill(gateway)?;
        if copy.is_dir() {
            remove(&data)?;
            std::fs::rename(copy, &data).with_context(|| data.display().to_string())?;
        }
        let log = self.stage.gateways.log(gateway);
        let before = std::fs::metadata(&log).map_or(0, |log| log.len());
        // It may exit before it listens; then it is not on.
        self.bring_back(gateway)?;
        let gateways = &mut self.stage.gateways;
        let refused = wait_until(REFUSED, || {
            !gateways.is_on(gateway) || !gateways.lives(gateway) || since(&log, before).contains("heal")
        });
        Ok((format!("restored {name}: {} ({})", outcome(refused), tail_of(&log, LINES)), true))
    }

    /// How often the others refused a life of this member. A refused process may keep running: its answers do not
    /// count.
    fn refused_by_others(&self, gateway: usize, member: u64) -> Result<usize> {
        let said = format!("m{member} is not who it says");
        let mut by = 0;
        for other in (0..GATEWAYS).filter(|other| *other != gateway) {
            let log = self.stage.gateways.log(other);
            let text = std::fs::read(&log).with_context(|| log.display().to_string())?;
            by += String::from_utf8_lossy(&text).lines().filter(|line| line.contains(&said)).count();
        }
        Ok(by)
    }

    fn member(&self, gateway: usize) -> Result<u64> {
        let status = self.stage.gateways.holdfast(&["cluster", "status"], COMMAND)?;
        member_called(&status, &gateways::name(gateway))
    }

    /// A folder beside a gateway's data.
    fn beside(&self, gateway: usize, what: &str) -> PathBuf {
        self.ground.data(&self.dir, gateway).with_extension(what)
    }
}

/// The text that jepsen/src/jepsen/holdfast/hosts.clj expects.
fn outcome(refused: bool) -> &'static str {
    if refused { "refused" } else { "not refused" }
}

fn runs(runs: bool) -> &'static str {
    if runs { "runs" } else { "ended" }
}

fn since(log: &Path, before: u64) -> String {
    let bytes = std::fs::read(log).unwrap_or_default();
    let from = usize::try_from(before).unwrap_or(0).min(bytes.len());
    String::from_utf8_lossy(&bytes[from..]).into_owned()
}

fn copy_of(from: &Path, to: &Path) -> Result<()> {
    remove(to)?;
    cmd("cp").arg("-a").arg(from).arg(to).out().map(drop)
}

fn remove(folder: &Path) -> Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other.with_context(|| folder.display().to_string()),
    }
}

/// Empties the folder, which may be a mount point, without removing it.
fn clear(folder: &Path) -> Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        let gone = if entry.file_type()?.is_dir() {
            std::fs::remove_dir_all(entry.path())
        } else {
            std::fs::remove_file(entry.path())
        };
        gone.with_context(|| entry.path().display().to_string())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_that_the_check_of_impostors_reads() {
        let hosts = include_str!("../../../../jepsen/src/jepsen/holdfast/hosts.clj");
        let pattern = r##"#"(restored|twice) (g\d): (refused|not refused)""##;
        assert!(hosts.contains(pattern), "hosts.clj does not read {pattern}");
        assert_eq!([outcome(true), outcome(false)], ["refused", "not refused"]);
    }

    #[test]
    fn a_disk_is_copied_as_it_is_and_emptied_without_its_folder() {
        let dir = std::env::temp_dir().join(format!("holdfast-members-{}", std::process::id()));
        remove(&dir).expect("removed");
        let (data, copy) = (dir.join("g1"), dir.join("g1.old"));
        std::fs::create_dir_all(data.join("journal")).expect("folders");
        std::fs::write(data.join("journal/journal-01"), b"one").expect("written");
        std::fs::write(data.join("identity"), b"two").expect("written");
        std::fs::create_dir_all(copy.join("stale")).expect("folders");
        copy_of(&data, &copy).expect("copied");
        assert_eq!(std::fs::read(copy.join("journal/journal-01")).expect("a file"), b"one");
        assert!(!copy.join("stale").exists());
        clear(&data).expect("emptied");
        assert_eq!(std::fs::read_dir(&data).expect("the folder").count(), 0);
        remove(&dir).expect("removed");
    }
}
