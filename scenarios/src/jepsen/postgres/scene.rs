//! The stage, the components below it, and the effect of faults on both: one fault begins, several may last, and the
//! end repairs everything. Each fault is judged by its effect: dropped packets, lost blocks, readings of a clock.
//!
//! Owns: making faults and undoing them. Does not own: their times (Jepsen), the requests at the door (`postgres`).

use super::changed::Changed;
use super::clocks;
use super::disks::Disk;
use super::fault::{Fault, Needs, Outage, Parting, Wrong, draw};
use super::ground::Ground;
use super::spoil;
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
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time for a stopped or cut-off host to become standby; then it is rebooted, as its operator would do.
const RECOVERS: Duration = Duration::from_secs(45);

/// Share of incoming packets of a gateway, from gateways and hosts.
const LOSS: &str = "0.2";

/// Lines in a gateway's log that tell the check of logs which faults it had (jepsen/src/jepsen/holdfast/logs.clj).
const DARK: &str = "jepsen: the disk of this node is about to be switched off";
const LIGHT: &str = "jepsen: the disk of this node is on again";
const SPOILT: &str = "jepsen: the journal of this node is about to be spoilt";

/// The door's answer on a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// Transactions must succeed from now on.
    pub served: bool,
    /// Whether it happened.
    pub hit: bool,
    /// Its target, or its effect.
    pub what: String,
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let served = if self.served { "served" } else { "unserved" };
        write!(f, "{served} {} {}", if self.hit { "hit" } else { "missed" }, self.what)
    }
}

/// A fault that has to be undone, and is judged then.
#[derive(Debug)]
pub(super) enum Lasting {
    /// Connections cut by rules.
    Cut,
    /// Packets dropped by rules at random.
    Lost,
    /// Pieces that each gateway's relay had delayed before.
    Late(Vec<u64>),
    Store(store::Begun),
    Clock(clocks::Turned),
    /// Gateways whose disks are off.
    Dark(Vec<usize>),
    /// Members, or their disks.
    Changed(Changed),
}

impl Lasting {
    /// Whether this is put right once all gateways are back.
    fn wants_all(&self) -> bool {
        matches!(self, Lasting::Changed(changed) if changed.wants_all())
    }
}

/// Result of undoing the faults.
#[derive(Debug)]
struct Mended {
    said: Vec<String>,
    hit: bool,
    failed: Option<anyhow::Error>,
}

/// Dropped packets, over all nodes, and at random at each gateway.
#[derive(Clone, Debug, Default)]
struct Packets {
    cut: u64,
    lost: Vec<u64>,
}

/// Everything. Fields are dropped in this order.
pub struct Scene {
    pub stage: Stage,
    pub(super) ground: Ground,
    pub(super) dir: PathBuf,
    pub(super) chance: Seeded,
    pub(super) trouble: Trouble,
    pub(super) lasting: Vec<Lasting>,
    /// The gateway with a damaged journal, or with a twin: one per run, since two gateways with forgotten data are
    /// outside of the promise.
    pub spoilt: Option<usize>,
}

impl Scene {
    /// Starts it, with the components that the faults need. Fails when something does not come up.
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

    /// Makes a fault. Unless `really`, pretends to: then its end has to notice that nothing happened. Fails when it
    /// cannot be made; or cannot be pretended, since it is judged at once.
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
                let ran = self.all_on();
                (0..GATEWAYS).try_for_each(|gateway| self.kill(gateway))?;
                ("all gateways".into(), ran)
            }
            Fault::PauseAll => {
                self.trouble.away.extend(0..GATEWAYS);
                (0..GATEWAYS).try_for_each(|gateway| self.stage.gateways.pause(gateway))?;
                ("all gateways".into(), self.all_on())
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
            Fault::Corrupt => self.spoil(spoil::flip)?,
            Fault::Truncate => self.spoil(spoil::cut_off)?,
            Fault::Upgrade => self.upgrade()?,
            Fault::Drain => self.drain()?,
            Fault::Replace => self.empty()?,
            Fault::Restored => self.keep_copy()?,
            Fault::Twice => self.start_twin()?,
        };
        // After a fault that took a gateway away for a moment: could the others do without it then?
        let served = if fault.takes_one() { self.trouble.bears_one_more() } else { self.trouble.served() };
        Ok(Said { served, hit, what })
    }

    /// Undoes everything; returns the effect of lasting faults, and the primary. The next fault finds everything
    /// running. Fails when something does not come back in time; the next end tries again.
    pub fn end(&mut self) -> Result<Said> {
        // Read before the rules are removed, needed only after that.
        let packets = self.packets();
        self.stage.net.heal()?;
        let lasting = std::mem::take(&mut self.lasting).into_iter();
        let (first, last): (Vec<_>, Vec<_>) = lasting.partition(|what| !what.wants_all());
        let mut mended = Mended { said: Vec::new(), hit: true, failed: None };
        self.put_right(first, &packets, &mut mended);
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
        self.put_right(last, &packets, &mut mended);
        let Mended { mut said, hit, failed } = mended;
        failed.map_or(Ok(()), Err)?;
        self.stage.caught_up_but(self.spoilt)?;
        said.push(self.settle()?);
        self.trouble = Trouble { away: self.spoilt.into_iter().collect(), ..Trouble::default() };
        Ok(Said { served: self.trouble.served(), hit, what: said.join("; ") })
    }

    fn put_right(&mut self, lasting: Vec<Lasting>, packets: &Result<Packets>, mended: &mut Mended) {
        for mut what in lasting {
            match self.mend(&mut what, packets) {
                Ok((said, did)) => {
                    mended.said.push(said);
                    mended.hit &= did;
                }
                Err(e) => {
                    self.lasting.push(what);
                    mended.failed.get_or_insert(e);
                }
            }
        }
    }

    /// Waits until one host is primary and the other standby; reports both.
    fn settle(&mut self) -> Result<String> {
        let stage = &mut self.stage;
        // A returning host may still report its old role for a moment.
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

    /// A fault of the primary's host.
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
            // A refusal is an answer, since something prevents it now; but no fault.
            _ => match self.stage.hosts[primary].holdfast(&["agent", "switchover", "--to", other, "--yes"]) {
                Ok(_) => (format!("{name} to {other}"), true),
                Err(e) => (format!("not done: {e:#}"), false),
            },
        })
    }

    /// A fault of the serving gateway.
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

    pub(super) fn kill(&mut self, gateway: usize) -> Result<()> {
        self.trouble.away.insert(gateway);
        self.stage.gateways.kill(gateway)
    }

    pub(super) fn all_on(&self) -> bool {
        (0..GATEWAYS).all(|gateway| self.stage.gateways.is_on(gateway))
    }

    /// Cutting rules are counted once, however many faults made them.
    fn cuts(&mut self) {
        if !self.lasting.iter().any(|what| matches!(what, Lasting::Cut)) {
            self.lasting.push(Lasting::Cut);
        }
    }

    fn part(&mut self, parting: Parting, really: bool) -> Result<String> {
        let primary = self.stage.primary()?;
        // Attach may have no gateway just now: then the target is random.
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
        // The first one's time is chosen.
        self.chance.shuffle(&mut of);
        let off = Disk::switch_off(of);
        let killed = gateways.iter().try_for_each(|gateway| self.kill(*gateway));
        self.lasting.push(Lasting::Dark(gateways));
        off?;
        killed?;
        Ok(told.join(" "))
    }

    /// Damages the journal of one gateway while it is down. It stays down until the end.
    fn spoil(&mut self, how: fn(&Path, &mut Seeded) -> Result<String>) -> Result<(String, bool)> {
        if let Some(done) = self.spoilt {
            return Ok((format!("done already, at {}", gateways::name(done)), false));
        }
        let gateway = draw(&mut self.chance, GATEWAYS);
        self.mark(gateway, SPOILT)?;
        self.kill(gateway)?;
        self.spoilt = Some(gateway);
        let journal = self.ground.data(&self.dir, gateway).join("journal");
        let what = how(&journal, &mut self.chance)?;
        Ok((format!("{}: {what}", gateways::name(gateway)), true))
    }

    /// Undoes one fault: its effect, and whether it happened.
    fn mend(&mut self, what: &mut Lasting, packets: &Result<Packets>) -> Result<(String, bool)> {
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
                for gateway in gateways.iter() {
                    // A process with an open file prevents mounting the disk again.
                    self.stage.gateways.kill(*gateway)?;
                    let disk = self.ground.disks()?.get_mut(*gateway).context("no such disk")?;
                    let left = disk.switch_on()?;
                    self.mark(*gateway, LIGHT)?;
                    hit |= left.found();
                    told.push(format!("{} {left}", gateways::name(*gateway)));
                }
                Ok((told.join("; "), hit))
            }
            Lasting::Changed(changed) => self.change_back(changed),
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

    /// Resumes or restarts a gateway. One with a damaged journal or a copied disk may exit, and is restarted by its
    /// supervisor; it may also stay out (R9), which is reported.
    pub(super) fn bring_back(&mut self, gateway: usize) -> Result<()> {
        let spoilt = self.spoilt == Some(gateway);
        let stage = &mut self.stage;
        if spoilt && !stage.gateways.lives(gateway) {
            stage.gateways.kill(gateway)?;
        }
        match stage.gateways.heal_one(&stage.net, gateway) {
            Err(e) if spoilt => {
                note(format!(
                    "{}, whose journal or disk is not what it was, stays away: {e:#}",
                    gateways::name(gateway)
                ));
                Ok(())
            }
            other => other,
        }
    }

    /// Writes a line into a gateway's log.
    fn mark(&self, gateway: usize, line: &str) -> Result<()> {
        let log = self.stage.gateways.log(gateway);
        let mut file = std::fs::File::options().append(true).open(&log).with_context(|| log.display().to_string())?;
        Ok(writeln!(file, "{line}")?)
    }
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
}
