//! A host of PostgreSQL: its clock, its local disk, and its processes: agent and attach (the real code, each on its own
//! runtime), the watchdog's helper (with the real judgement), a database. They go on while another one is killed or
//! hangs; a machine without power has none.

use super::agent::{Agent, IN_GOOD_ORDER, Plan, Seat};
use super::asked::Orders;
use super::attaching::{Attaching, By, Outcome};
use super::database::Database;
use super::fake_drivers::{FakeDrivers, Signal};
use super::lent::Lent;
use super::pool::Pool;
use crate::attached::wires::{self, TTL};
use crate::libc;
use crate::model::Broken;
use crate::net::{Door, Net};
use crate::rng::Rng;
use crate::sync::lock;
use crate::time::{Clock, MachineTime};
use crate::world::MS;
use holdfast_agent::AttachStatus;
use holdfast_agent::machine::{AttachEnd, Role, Stop};
use holdfast_agent::watchdog::{Kill, Limits, why_kill};
use holdfast_attach::{AttachError, Ended};
use holdfast_types::MonoTime;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Interval of the watchdog's helper, by the host's clock.
const LOOK_PAUSE: u64 = 100 * MS;
/// Most that the helper, and the simulation's own check of the lease, may be late.
const LATE_MAX: u64 = 160 * MS;
/// An agent, or a machine, that has been active for this long has done all that was due.
const SETTLED: u64 = 300 * MS;
/// Interval between two checks of the lease that a database runs under.
const LEASE_EVERY: u64 = 10 * MS;

/// See the module.
pub struct Station {
    index: usize,
    pub name: String,
    pub at: usize,
    pub time: MachineTime,
    plan: Plan,
    powered: bool,
    /// When its power returns.
    boot_at: u64,
    woke_at: u64,
    drivers: Arc<Mutex<FakeDrivers>>,
    agent: Option<Agent>,
    agent_at: u64,
    attach: Option<Attaching>,
    look_at: u64,
    /// By its clock, and when it was checked.
    renewed: Option<u64>,
    lease_at: u64,
    /// To take the lease by force.
    pub orders: Orders,
    /// Its attach was started by force.
    forcing: bool,
    dir: PathBuf,
    net: Net,
    rng: Rng,
}

impl Station {
    pub fn new(index: usize, seed: u64, plan: &Plan, net: &Net, dir: PathBuf) -> Self {
        let mut rng = Rng::new(seed, 400 + index as u64);
        let (name, at) = plan.hosts[index].clone();
        let drift_ppm = rng.range(0, 2 * plan.drift_ppm) as i64 - plan.drift_ppm as i64;
        let drift_ppm = if plan.slow { -400_000 } else { drift_ppm };
        let clock = Clock::new(rng.range(0, 3_600) * 1000 * MS, drift_ppm);
        let of_database = Rng::new(seed, 450 + index as u64);
        let database = Database::new(&name, of_database, plan.bug);
        let drivers = FakeDrivers::new(Pool::new(index, plan.suspends), database);
        Self {
            index,
            name,
            at,
            time: MachineTime::new(clock),
            plan: plan.clone(),
            powered: true,
            boot_at: 0,
            woke_at: 0,
            drivers: Arc::new(Mutex::new(drivers)),
            agent: None,
            agent_at: 0,
            attach: None,
            look_at: 0,
            renewed: None,
            lease_at: 0,
            orders: Orders::default(),
            forcing: false,
            dir,
            net: net.clone(),
            rng,
        }
    }

    /// Whether it has power and is neither stopped nor asleep.
    pub fn runs(&self, now: u64) -> bool {
        self.powered && !self.time.is_stopped(now)
    }

    /// Whether load balancers send clients there, and the database takes commits.
    pub fn is_primary(&self) -> bool {
        let drivers = lock(&self.drivers);
        self.agent.is_some() && drivers.role == Role::Primary && drivers.database.is_ready()
    }

    /// Whether a database runs there that could still answer.
    pub fn serves(&self, now: u64) -> bool {
        self.runs(now) && lock(&self.drivers).database.lives()
    }

    /// Its attach was told to take the lease by force.
    pub fn is_forcing(&self) -> bool {
        self.forcing
    }

    /// Whether all its device requests are answered.
    pub fn is_quiet(&self) -> bool {
        lock(&self.drivers).database.is_quiet()
    }

    /// The database reads everything again.
    pub fn sweep(&self) {
        lock(&self.drivers).database.sweep = true;
    }

    /// Number of completed passes.
    pub fn swept(&self) -> u64 {
        lock(&self.drivers).database.swept
    }

    /// Whether agent and machine have been active for long enough to be on time.
    pub fn is_attended(&self, now: u64) -> bool {
        let goes_on = self.agent.as_ref().is_some_and(|agent| agent.has_gone_on(now, SETTLED));
        goes_on && self.runs(now) && self.woke_at + SETTLED <= now
    }

    // ---- faults

    /// Ends all its faults; it has power.
    pub fn wake(&mut self, now: u64) {
        if self.time.is_stopped(now) {
            self.woke_at = now;
        }
        self.time.wake(now);
        self.boot_at = self.boot_at.min(now);
        self.agent_at = self.agent_at.min(now);
        if let Some(agent) = self.agent.as_mut().filter(|agent| agent.hung_until > now) {
            (agent.hung_until, agent.since) = (now, now);
        }
        lock(&self.drivers).database.hang(now);
    }

    /// The power is off for this long.
    pub fn cut_power(&mut self, now: u64, for_ms: u64) {
        self.time.enter(now);
        self.net.power(self.at, false);
        self.net.close(self.at);
        (self.agent, self.attach) = (None, None);
        lock(&self.drivers).lose_power(Pool::new(self.index, self.plan.suspends));
        (self.powered, self.boot_at) = (false, now + for_ms * MS);
        self.time.forget();
    }

    fn boot(&mut self, now: u64, log: &mut Vec<String>) {
        log.push(format!("{} boots", self.name));
        // Removed with the machine's power; may be missing already.
        drop(std::fs::remove_dir_all(self.dir.join("run")));
        // A new count since the boot; the wall's goes on.
        let clock = &mut self.time.clock;
        let before = clock.at(now);
        clock.offset = self.rng.range(0, 3_600) * 1000 * MS;
        clock.wall += before as i64 - clock.at(now) as i64;
        clock.asleep = 0;
        self.net.power(self.at, true);
        (self.powered, self.agent_at, self.look_at, self.lease_at, self.renewed) = (true, now, 0, 0, None);
        self.woke_at = now;
    }

    /// The agent is killed, and started again some time later.
    pub fn kill_agent(&mut self, now: u64, after_ms: u64) {
        self.time.enter(now);
        self.net.shut(self.at, Door::Agent);
        self.agent = None;
        self.agent_at = now + after_ms * MS;
        lock(&self.drivers).role = Role::Standby;
    }

    /// The agent is told to end, as by its service.
    pub fn end_agent(&mut self) {
        if let Some(agent) = &self.agent {
            agent.end();
        }
    }

    /// The agent is stopped for this long.
    pub fn hang_agent(&mut self, now: u64, for_ms: u64) {
        if let Some(agent) = &mut self.agent {
            (agent.hung_until, agent.since) = (now + for_ms * MS, now + for_ms * MS);
        }
    }

    pub fn crash_database(&mut self) {
        lock(&self.drivers).database.crash();
    }

    pub fn hang_database(&mut self, until: u64) {
        lock(&self.drivers).database.hang(until);
    }

    pub fn kill_attach(&mut self, now: u64) {
        if self.attach.is_some() {
            self.attach_gone(now, AttachEnd::Failed("it was killed or vanished".into()), false);
        }
    }

    // ---- activity

    fn attach_dir(&self) -> PathBuf {
        self.dir.join("run").join("attach")
    }

    /// Runs it up to now. `taken`: gateways know that another owner was granted the set after that epoch, or that it
    /// was ended by hand.
    pub fn tick(&mut self, lent: &mut Lent<'_>, taken: impl Fn(u64) -> bool) -> Result<(), Broken> {
        let now = lent.now;
        if !self.powered {
            if now < self.boot_at {
                return Ok(());
            }
            self.boot(now, lent.log);
        }
        if self.time.is_stopped(now) {
            return Ok(());
        }
        if self.time.goes_on(now) {
            self.woke_at = now;
        }
        self.time.enter(now);
        self.run_agent(lent)?;
        self.carry_out(lent)?;
        if let Some(attach) = &mut self.attach {
            attach.slice(now);
        }
        self.hear_attach(lent, taken)?;
        self.watch(lent);
        {
            let mut drivers = lock(&self.drivers);
            drivers.pool.tick(self.attach.as_ref(), lent);
            if drivers.database.tick(self.attach.as_ref(), lent)? {
                lent.log.push(format!("the database of {} ends: it has no device", self.name));
            }
            lent.log.append(&mut drivers.lines);
        }
        self.judge(now)?;
        let reboot = lock(&self.drivers).reboot.take();
        if let Some(why) = reboot {
            lent.log.push(format!("{} reboots: {why}", self.name));
            lent.stats.reboots += 1;
            let for_ms = self.rng.range(300, 2_500);
            self.cut_power(now, for_ms);
        }
        Ok(())
    }

    fn run_agent(&mut self, lent: &mut Lent<'_>) -> Result<(), Broken> {
        let now = lent.now;
        if self.agent.is_none() && now >= self.agent_at {
            lent.log.push(format!("the agent of {} starts", self.name));
            let seat = Seat { index: self.index, name: &self.name, at: self.at, dir: &self.dir, net: &self.net };
            let agent = Agent::start(now, &seat, &self.plan, lent.gateways, &self.drivers);
            self.agent = Some(agent.map_err(|e| format!("no runtime: {e}"))?);
        }
        let Some(agent) = self.agent.as_mut().filter(|agent| agent.hung_until <= now) else { return Ok(()) };
        if let Some(how) = agent.run(now) {
            lent.log.push(format!("the agent of {} ended: {how}", self.name));
            if how != IN_GOOD_ORDER {
                return Err(format!("the agent of {} ended by itself: {how}", self.name));
            }
            let after = self.rng.range(50, 2_000);
            self.kill_agent(now, after);
        }
        Ok(())
    }

    /// Carries out the agent's requests to attach.
    fn carry_out(&mut self, lent: &mut Lent<'_>) -> Result<(), Broken> {
        let (signal, wanted) = {
            let attach = &mut lock(&self.drivers).attach;
            (attach.signal.take(), attach.wanted.take())
        };
        match (signal, &mut self.attach) {
            (Some(Signal::Kill), Some(_)) => self.kill_attach(lent.now),
            (Some(Signal::Term), Some(attach)) => attach.end(),
            _ => {}
        }
        // An attach that is to be started and ended at once never existed.
        let Some(force) = wanted.filter(|_| signal.is_none()) else { return Ok(()) };
        if force && !self.orders.settled(lent.now) {
            return Err(format!("HOSTS-T1: {} takes the lease by force, and nobody told it to", self.name));
        }
        self.forcing = force;
        let (place, dir) = ((self.name.as_str(), self.at), self.dir.join("run").join("attach"));
        let options = wires::options(&mut self.rng, place, &self.net, dir, force, lent.gateways);
        let options = options.map_err(|e| e.to_string())?;
        lent.log.push(format!("{} attaches: force {force}, {} connections", self.name, options.connections));
        let attach = Attaching::start(lent.now, self.at, &self.net, options);
        self.attach = Some(attach.map_err(|e| format!("no runtime: {e}"))?);
        lock(&self.drivers).attach.runs = true;
        Ok(())
    }

    fn attach_gone(&mut self, now: u64, end: AttachEnd, clean: bool) {
        self.time.enter(now);
        self.attach = None;
        let mut drivers = lock(&self.drivers);
        (drivers.attach.runs, drivers.attach.end, drivers.attach.clean) = (false, Some(end), clean);
        drivers.database.device_gone();
        drivers.pool.failed();
    }

    /// Handles the output of attach and its devices.
    fn hear_attach(&mut self, lent: &mut Lent<'_>, taken: impl Fn(u64) -> bool) -> Result<(), Broken> {
        let Some(attach) = &mut self.attach else { return Ok(()) };
        if let Some(epoch) = attach.began() {
            lent.log.push(format!("{} is attached with epoch {epoch}", self.name));
            lent.stats.attached += 1;
            // Another host was attached and reported meanwhile: this one continues without knowing.
            if epoch > lent.model.latest_epoch() {
                lent.model.granted(epoch)?;
            }
        }
        let (told, there) = (attach.is_told(), attach.is_there());
        let ended = attach.ended();
        let (answers, epoch) = (attach.answers(&self.name, lent.model, taken)?, attach.epoch);
        {
            let mut drivers = lock(&self.drivers);
            for (by, asked, outcome) in answers {
                let failed = matches!(outcome, Outcome::Failed);
                lent.stats.fenced += u64::from(failed);
                match by {
                    By::Pool(serial) => drivers.pool.done(serial, asked, outcome, epoch, lent)?,
                    By::Database(serial) => {
                        if drivers.database.done(serial, asked, outcome, lent)? {
                            lent.log.push(format!("the database of {} ends: its device failed", self.name));
                        }
                    }
                }
                if failed {
                    drivers.pool.failed();
                }
            }
        }
        let Some(ended) = ended else { return Ok(()) };
        let (end, said) = match &ended {
            Ok(Ended::Detached) => (AttachEnd::Failed("it was detached".into()), "detached".to_string()),
            Ok(Ended::Fenced { by }) => (AttachEnd::Fenced(by.clone().unwrap_or_default()), "fenced".to_string()),
            Err(AttachError::Refused(refusal)) => (AttachEnd::Refused(refusal.to_string()), refusal.to_string()),
            Err(error) => (AttachEnd::Failed(error.to_string()), error.to_string()),
        };
        lent.log.push(format!("attach of {} ended: {said}", self.name));
        let fine = told || !there && matches!(ended, Err(AttachError::Refused(_) | AttachError::Unreachable { .. }));
        if !fine {
            return Err(format!("R8: the attach of {} ended by itself: {said}", self.name));
        }
        self.attach_gone(lent.now, end, matches!(ended, Ok(Ended::Detached)));
        Ok(())
    }

    /// The watchdog's helper looks.
    fn watch(&mut self, lent: &mut Lent<'_>) {
        let clock = libc::boot();
        if clock < self.look_at {
            return;
        }
        self.look_at = clock + LOOK_PAUSE;
        let (sign, there) = {
            let drivers = lock(&self.drivers);
            (drivers.sign.filter(|_| drivers.helper), drivers.database.is_there())
        };
        let Some(sign) = sign else { return };
        let limits = Limits {
            timeout: Duration::from_millis(self.plan.timeout_ms),
            stop_margin: Duration::from_millis(self.plan.stop_margin_ms),
        };
        let kill = why_kill(MonoTime(clock), sign, &self.attach_dir(), limits);
        let Some(Kill { why, device }) = kill else { return };
        let left_alone = sign.at.is_none();
        if there || device && self.attach.is_some() && !left_alone {
            lent.log.push(format!("the watchdog of {} ends the database and its device: {why}", self.name));
            lent.stats.watched += 1;
        }
        let waits = {
            let mut drivers = lock(&self.drivers);
            drivers.database.stop(Stop::Kill);
            drivers.database.is_there()
        };
        if !left_alone && (device || waits) {
            self.kill_attach(lent.now);
        }
    }

    /// AGENT-A3, and WATCHDOG-W1 without an agent: no database outlives its lease by this host's clock. WATCHDOG-W2:
    /// nor a silent agent.
    fn judge(&mut self, now: u64) -> Result<(), Broken> {
        let sign = {
            let drivers = lock(&self.drivers);
            if !drivers.database.lives() {
                return Ok(());
            }
            drivers.sign
        };
        let (clock, settled) = (libc::boot(), self.woke_at + SETTLED <= now);
        if let Some(at) = sign.and_then(|sign| sign.at).filter(|_| settled) {
            let (silent, limit) = (clock.saturating_sub(at.0) / MS, self.plan.timeout_ms);
            if silent > limit + LATE_MAX / MS {
                return Err(format!(
                    "WATCHDOG-W2: the database of {} runs, and its agent has been silent for {silent} ms of {limit}",
                    self.name
                ));
            }
        }
        if now >= self.lease_at {
            self.lease_at = now + LEASE_EVERY;
            self.renewed = AttachStatus::read(&self.attach_dir()).and_then(|status| status.renewed()).map(|at| at.0);
        }
        let Some(renewed) = self.renewed.filter(|_| settled) else { return Ok(()) };
        let age = clock.saturating_sub(renewed);
        let (attended, ttl) = (self.is_attended(now), TTL.as_millis() as u64 * MS);
        let late = if attended { 0 } else { LATE_MAX };
        if age > ttl + late {
            let rule = if attended { "AGENT-A3" } else { "WATCHDOG-W1" };
            let (age, ttl) = (age / MS, ttl / MS);
            return Err(format!(
                "{rule}: the database of {} runs, and its lease of {ttl} ms was renewed {age} ms ago",
                self.name
            ));
        }
        Ok(())
    }
}
