//! The stage, what stands below it, and what faults do to both: one begins, several may last, and the end puts everything right. Each is judged by
//! what it did: packets that were dropped, blocks that were lost, readings of a clock.
//!
//! Owns: making faults and undoing them. Does not own: when they come (Jepsen), what is asked at the door (`postgres`).

use super::clocks;
use super::disks::Disk;
use super::fault::{Fault, Needs, Outage, Parting, Wrong, draw};
use super::ground::Ground;
use super::store;
use super::trouble::Trouble;
use crate::chaos::seed::Seeded;
use crate::gateways::{self, GATEWAYS};
use crate::process::wait_until;
use crate::say::note;
use crate::stage::{LIMIT, Stage, node};
use anyhow::{Context, Result};
use std::fmt;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a host that was stopped or cut off may take until it stands by; then it is booted anew, as its operator would do.
const RECOVERS: Duration = Duration::from_secs(45);

/// Of the packets that come in at a gateway, from gateways and hosts.
const LOSS: &str = "0.2";

/// Lines in a gateway's log, by which the check of the logs knows what was done to it (jepsen/src/jepsen/holdfast/logs.clj).
const DARK: &str = "jepsen: the disk of this node is about to be switched off";
const LIGHT: &str = "jepsen: the disk of this node is on again";
const SPOILT: &str = "jepsen: the journal of this node is about to be spoilt";

/// What the door says of a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// Transactions must succeed from now on.
    pub served: bool,
    /// It happened.
    pub hit: bool,
    /// To whom, or what it came to.
    pub what: String,
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let served = if self.served { "served" } else { "unserved" };
        write!(f, "{served} {} {}", if self.hit { "hit" } else { "missed" }, self.what)
    }
}

/// What has to be put right, and is judged then.
#[derive(Debug)]
enum Lasting {
    /// Connections that rules cut.
    Cut,
    /// Packets that rules drop by chance.
    Lost,
    /// Pieces that each gateway's neighbour had held back before.
    Late(Vec<u64>),
    Store(store::Begun),
    Clock(clocks::Turned),
    /// Gateways whose disks are off.
    Dark(Vec<usize>),
}

/// Packets that were dropped, over all nodes and by chance at each gateway.
#[derive(Clone, Debug, Default)]
struct Packets {
    cut: u64,
    lost: Vec<u64>,
}

/// Everything. Fields are dropped in this order.
pub struct Scene {
    pub stage: Stage,
    ground: Ground,
    dir: PathBuf,
    chance: Seeded,
    trouble: Trouble,
    lasting: Vec<Lasting>,
    /// The gateway whose journal was spoilt: one in a run, since two that have forgotten something are outside of what is promised.
    pub spoilt: Option<usize>,
}

impl Scene {
    /// Brings it up, with what the faults need.
    ///
    /// # Errors
    /// When something does not come up.
    pub fn start(bin: &Path, dir: &Path, needs: Needs, tools: &Path, seed: u64) -> Result<Self> {
        let net = Stage::net(dir)?;
        let ground = Ground::make(needs, tools, seed, &net, dir)?;
        let stage = Stage::on(net, bin, dir, ground.below(dir))?;
        let chance = Seeded::new(seed, 1);
        Ok(Self {
            stage,
            ground,
            dir: dir.into(),
            chance,
            trouble: Trouble::default(),
            lasting: Vec::new(),
            spoilt: None,
        })
    }

    /// Makes a fault. Where it is not to happen `really`, everything is as if it did, and its end has to notice.
    ///
    /// # Errors
    /// When it cannot be made; or cannot be missed, since it is judged at once.
    pub fn begin(&mut self, fault: Fault, really: bool) -> Result<Said> {
        let later =
            matches!(fault, Fault::Partition(_) | Fault::Loss | Fault::Delay | Fault::Store(_) | Fault::Clock(_));
        anyhow::ensure!(
            really || later,
            "found a fault that is judged at once, expected one that is judged when it ends"
        );
        let (what, hit) = match fault {
            Fault::KillHost | Fault::CutHost | Fault::PauseHost | Fault::Switchover => self.host(fault)?,
            Fault::KillGateway | Fault::CutGateway | Fault::PauseGateway => self.gateway(fault)?,
            Fault::RestartGateways => {
                let ran = (0..GATEWAYS).all(|gateway| self.stage.gateways.is_on(gateway));
                (0..GATEWAYS).try_for_each(|gateway| self.kill(gateway))?;
                ("all gateways".into(), ran)
            }
            Fault::Partition(parting) => (self.part(parting, really)?, true),
            Fault::Loss => (self.lose(really)?, true),
            Fault::Delay => {
                let before = self.ground.late()?.begin(really)?;
                self.lasting.push(Lasting::Late(before));
                ("30 to 70 ms each way".into(), true)
            }
            Fault::Unsynced => {
                let one = draw(&mut self.chance, GATEWAYS);
                (self.switch_off(vec![one])?, true)
            }
            Fault::UnsyncedAll => (self.switch_off((0..GATEWAYS).collect())?, true),
            Fault::Store(outage) => (self.outage(outage, really)?, true),
            Fault::Clock(wrong) => (self.turn_clocks(wrong, really)?, true),
            Fault::Corrupt => self.corrupt()?,
        };
        Ok(Said { served: self.trouble.served(), hit, what })
    }

    /// Puts everything right; what came of what lasted, and who is primary then. The next fault finds everybody there.
    ///
    /// # Errors
    /// When something does not come back within its limit; what could not be put right is tried again by the next end.
    pub fn end(&mut self) -> Result<Said> {
        // Read before the rules are taken away, and needed only after that.
        let packets = self.packets();
        self.stage.net.heal()?;
        let (mut told, mut hit, mut failed) = (Vec::new(), true, None);
        for what in std::mem::take(&mut self.lasting) {
            match self.mend(&what, &packets) {
                Ok((said, did)) => {
                    told.push(said);
                    hit &= did;
                }
                Err(e) => {
                    self.lasting.push(what);
                    failed = failed.or(Some(e));
                }
            }
        }
        for gateway in 0..GATEWAYS {
            self.bring_back(gateway)?;
        }
        for host in &mut self.stage.hosts {
            if host.is_on() {
                host.proceed();
            } else {
                host.boot()?;
            }
        }
        failed.map_or(Ok(()), Err)?;
        self.stage.caught_up_but(self.spoilt)?;
        told.push(self.settle()?);
        self.trouble = Trouble { away: self.spoilt.into_iter().collect(), ..Trouble::default() };
        Ok(Said { served: self.trouble.served(), hit, what: told.join("; ") })
    }

    /// Waits until one host is primary and the other stands by; says so.
    fn settle(&mut self) -> Result<String> {
        let stage = &mut self.stage;
        // A host that comes back may say for a moment what it was before.
        let settled = wait_until(RECOVERS, || {
            let primaries = [stage.hosts[0].is_primary(), stage.hosts[1].is_primary()];
            primaries[0] != primaries[1] && stage.hosts[usize::from(primaries[0])].asks("/readiness") == 200
        });
        let primary = stage.primary()?;
        let (name, other) = (stage.hosts[primary].name, &mut stage.hosts[1 - primary]);
        if settled {
            return Ok(format!("{name} is primary"));
        }
        other.kill()?;
        other.boot()?;
        other.stands_by(LIMIT)?;
        Ok(format!("{name} is primary; {} did not stand by and was booted anew", other.name))
    }

    /// A fault of the host that is primary.
    fn host(&mut self, fault: Fault) -> Result<(String, bool)> {
        let primary = self.stage.primary()?;
        let (name, other) = (self.stage.hosts[primary].name, self.stage.hosts[1 - primary].name);
        self.trouble.moved = true;
        Ok(match fault {
            Fault::KillHost => {
                let (_, had) = self.stage.hosts[primary].kill()?;
                (format!("{name}, {had} processes"), had > 0)
            }
            Fault::CutHost => {
                self.cuts();
                self.stage.net.isolate(node(primary))?;
                (name.into(), true)
            }
            Fault::PauseHost => {
                let stopped = self.stage.hosts[primary].pause()?;
                (format!("{name}, {stopped} processes"), stopped > 0)
            }
            // A refusal is an answer: something stands against it now. It is no fault.
            _ => match self.stage.hosts[primary].holdfast(&["agent", "switchover", "--to", other, "--yes"]) {
                Ok(_) => (format!("{name} to {other}"), true),
                Err(e) => (format!("not done: {e:#}"), false),
            },
        })
    }

    /// A fault of the gateway that serves.
    fn gateway(&mut self, fault: Fault) -> Result<(String, bool)> {
        let primary = self.stage.primary()?;
        let gateway = self.stage.serving(primary)?;
        let ran = self.stage.gateways.is_on(gateway);
        self.trouble.away.insert(gateway);
        match fault {
            Fault::KillGateway => self.kill(gateway)?,
            Fault::CutGateway => {
                self.cuts();
                self.stage.net.isolate(gateway)?;
            }
            _ => self.stage.gateways.pause(gateway)?,
        }
        Ok((gateways::name(gateway), ran))
    }

    fn kill(&mut self, gateway: usize) -> Result<()> {
        self.trouble.away.insert(gateway);
        self.stage.gateways.kill(gateway)
    }

    /// Rules that cut are counted once, however many faults made them.
    fn cuts(&mut self) {
        if !self.lasting.iter().any(|what| matches!(what, Lasting::Cut)) {
            self.lasting.push(Lasting::Cut);
        }
    }

    fn part(&mut self, parting: Parting, really: bool) -> Result<String> {
        let primary = self.stage.primary()?;
        // Attach may know of nobody just now: then chance says who is meant.
        let serving = match self.stage.serving(primary) {
            Ok(serving) => serving,
            Err(_) => draw(&mut self.chance, GATEWAYS),
        };
        let shape = parting.shape(serving, &mut self.chance);
        self.cuts();
        if really {
            self.trouble.deaf.extend(shape.deaf());
            self.stage.net.part(shape)?;
        }
        Ok(format!("{} serves; {shape}", gateways::name(serving)))
    }

    fn lose(&mut self, really: bool) -> Result<String> {
        self.lasting.push(Lasting::Lost);
        if really {
            self.trouble.lossy = true;
            (0..GATEWAYS).try_for_each(|gateway| self.stage.net.lose(gateway, LOSS))?;
        }
        Ok(format!("{LOSS} of what comes in at each gateway"))
    }

    fn outage(&mut self, outage: Outage, really: bool) -> Result<String> {
        let (begun, what) = self.ground.store()?.begin(outage, really)?;
        self.trouble.store_away |= really;
        self.lasting.push(Lasting::Store(begun));
        Ok(what)
    }

    fn turn_clocks(&mut self, wrong: Wrong, really: bool) -> Result<String> {
        let (turned, what) = self.ground.clocks()?.begin(wrong, really, &mut self.chance)?;
        self.lasting.push(Lasting::Clock(turned));
        Ok(what)
    }

    /// A power cut of the machines of these gateways.
    fn switch_off(&mut self, gateways: Vec<usize>) -> Result<String> {
        let told: Vec<String> = gateways.iter().map(|gateway| gateways::name(*gateway)).collect();
        self.ground.disks()?;
        gateways.iter().try_for_each(|gateway| self.mark(*gateway, DARK))?;
        let disks = self.ground.disks()?.iter_mut().enumerate();
        let of = disks.filter(|(gateway, _)| gateways.contains(gateway)).map(|(_, disk)| disk);
        let mut of: Vec<&mut Disk> = of.collect();
        // The first one's moment is chosen.
        self.chance.shuffle(&mut of);
        let off = Disk::switch_off(of);
        let killed = gateways.iter().try_for_each(|gateway| self.kill(*gateway));
        self.lasting.push(Lasting::Dark(gateways));
        off?;
        killed?;
        Ok(told.join(" "))
    }

    /// Flips a bit of what one gateway has in its journal, while it is down. It stays down until the end.
    fn corrupt(&mut self) -> Result<(String, bool)> {
        if let Some(done) = self.spoilt {
            return Ok((format!("done already, at {}", gateways::name(done)), false));
        }
        let gateway = draw(&mut self.chance, GATEWAYS);
        self.mark(gateway, SPOILT)?;
        self.kill(gateway)?;
        self.spoilt = Some(gateway);
        let journal = self.ground.data(&self.dir, gateway).join("journal");
        let what = flip(&journal, &mut self.chance)?;
        Ok((format!("{}: {what}", gateways::name(gateway)), true))
    }

    /// Puts one thing right: what it came to, and whether it happened.
    fn mend(&mut self, what: &Lasting, packets: &Result<Packets>) -> Result<(String, bool)> {
        let counted = || packets.as_ref().map_err(|e| anyhow::anyhow!("packets were not counted: {e:#}"));
        match what {
            Lasting::Cut => {
                let cut = counted()?.cut;
                Ok((format!("{cut} packets dropped"), cut > 0))
            }
            Lasting::Lost => {
                let lost = &counted()?.lost;
                let told: Vec<String> = lost.iter().map(u64::to_string).collect();
                Ok((format!("packets lost: {}", told.join(" ")), lost.iter().all(|n| *n > 0)))
            }
            Lasting::Late(before) => self.ground.late()?.end(before),
            Lasting::Store(begun) => self.ground.store()?.end(begun),
            Lasting::Clock(turned) => self.ground.clocks()?.end(turned),
            Lasting::Dark(gateways) => {
                let (mut told, mut hit) = (Vec::new(), false);
                for gateway in gateways {
                    // Whoever has a file open keeps the disk from being mounted anew.
                    self.stage.gateways.kill(*gateway)?;
                    let disk = self.ground.disks()?.get_mut(*gateway).context("no such disk")?;
                    let left = disk.switch_on()?;
                    self.mark(*gateway, LIGHT)?;
                    hit |= left.found();
                    told.push(format!("{} {left}", gateways::name(*gateway)));
                }
                Ok((told.join("; "), hit))
            }
        }
    }

    fn packets(&self) -> Result<Packets> {
        let mut packets = Packets::default();
        for node in 0..self.stage.net.nodes() {
            let dropped = self.stage.net.dropped(node)?;
            packets.cut += dropped.cut;
            if node < GATEWAYS {
                packets.lost.push(dropped.lost);
            }
        }
        Ok(packets)
    }

    /// A gateway goes on, or is started again. One whose journal was spoilt may end, and is started by whatever looks after it; it may also stay away
    /// (R9), and is told.
    fn bring_back(&mut self, gateway: usize) -> Result<()> {
        let spoilt = self.spoilt == Some(gateway);
        let stage = &mut self.stage;
        if spoilt && !stage.gateways.lives(gateway) {
            stage.gateways.kill(gateway)?;
        }
        match stage.gateways.heal_one(&stage.net, gateway) {
            Err(e) if spoilt => {
                note(format!("{}, whose journal was spoilt, stays away: {e:#}", gateways::name(gateway)));
                Ok(())
            }
            other => other,
        }
    }

    /// Writes a line into a gateway's log, where its own lines go as well.
    fn mark(&self, gateway: usize, line: &str) -> Result<()> {
        let log = self.stage.gateways.log(gateway);
        let mut file = std::fs::File::options().append(true).open(&log).with_context(|| log.display().to_string())?;
        Ok(writeln!(file, "{line}")?)
    }
}

/// Flips a bit in one of the files of a journal; says which.
fn flip(journal: &Path, chance: &mut Seeded) -> Result<String> {
    let entries = std::fs::read_dir(journal).with_context(|| journal.display().to_string())?;
    let mut files: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    files.retain(|path| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("journal-"))
    });
    // Chance decides, not the order of a folder.
    files.sort();
    chance.shuffle(&mut files);
    for path in files {
        let bytes = std::fs::read(&path)?;
        let Some((at, bit)) = bit_of(&bytes, chance) else { continue };
        let file = std::fs::File::options().write(true).open(&path)?;
        file.write_all_at(&[bytes[at] ^ bit], at as u64)?;
        file.sync_all()?;
        let name = path.file_name().unwrap_or_default().display();
        return Ok(format!("{name} at {at}: {} is now {}", bytes[at], bytes[at] ^ bit));
    }
    anyhow::bail!("{}: found no file with anything in it", journal.display())
}

/// A place of what was written to a file that is zero-filled ahead, and a bit of the byte there.
fn bit_of(bytes: &[u8], chance: &mut Seeded) -> Option<(usize, u8)> {
    let written = bytes.iter().rposition(|byte| *byte != 0)? + 1;
    let from = draw(chance, written);
    let at = (from..written).find(|at| bytes[*at] != 0)?;
    Some((at, 1 << draw(chance, 8)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_door_says_first_what_the_checkers_go_by() {
        let said = Said { served: true, hit: false, what: "g1 hears nobody".into() };
        assert_eq!(said.to_string(), "served missed g1 hears nobody");
        assert_eq!(Said { served: false, hit: true, ..said }.to_string(), "unserved hit g1 hears nobody");
    }

    #[test]
    fn marks_are_those_that_the_check_of_the_logs_knows() {
        let logs = include_str!("../../../../jepsen/src/jepsen/holdfast/logs.clj");
        for mark in [DARK, LIGHT, SPOILT] {
            assert!(logs.contains(&format!("\"{mark}\"")), "logs.clj does not know {mark:?}");
        }
    }

    #[test]
    fn a_bit_is_flipped_where_something_was_written() {
        let mut chance = Seeded::new(5, 0);
        assert_eq!(bit_of(&[0; 64], &mut chance), None);
        let mut bytes = vec![0u8; 64];
        (bytes[3], bytes[20]) = (7, 9);
        let drawn: Vec<(usize, u8)> = (0..100).filter_map(|_| bit_of(&bytes, &mut chance)).collect();
        assert_eq!(drawn.len(), 100);
        assert!(drawn.iter().all(|(at, bit)| [3, 20].contains(at) && bit.count_ones() == 1), "{drawn:?}");
        assert!([3, 20].iter().all(|place| drawn.iter().any(|(at, _)| at == place)), "{drawn:?}");
    }
}
