//! Simulated drivers for the agent's code: processes that it starts and signals, a pool, a database. They note the
//! agent's requests; the host ([`super::station`]) carries them out in the same millisecond or the next.

use super::bug::Bug;
use super::database::Database;
use super::pool::Pool;
use crate::sync::lock;
use holdfast_agent::machine::{AttachEnd, AttachPhase, AttachView, DatabaseView, Found, LeaseView, Role, Stop};
use holdfast_agent::watchdog::Sign;
use holdfast_agent::{AttachLook, AttachStatus, Gateways, Host, NotDone};
use holdfast_types::MonoTime;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Time between two checks of a request.
const LOOK_PAUSE: Duration = Duration::from_millis(10);
/// Limits as in the real drivers: for attach before it is killed; after SIGKILL; for an immediate stop.
const HARD_DETACH_LIMIT: Duration = Duration::from_secs(2);
const KILL_LIMIT: Duration = Duration::from_secs(5);
const IMMEDIATE_LIMIT: Duration = Duration::from_millis(150);
/// For a pool, and the same where its device may be dead.
const POOL_LIMIT: Duration = Duration::from_secs(10);
const HARD_EXPORT_LIMIT: Duration = Duration::from_secs(1);
const WRITE_LIMIT: Duration = Duration::from_secs(10);

/// A signal to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    Term,
    Kill,
}

/// The attach process, as its driver sees it.
#[derive(Default)]
pub struct FakeAttach {
    /// To be started, by force or not.
    pub wanted: Option<bool>,
    /// It runs.
    pub runs: bool,
    pub signal: Option<Signal>,
    /// How it ended since its start.
    pub end: Option<AttachEnd>,
    /// It ended cleanly.
    pub clean: bool,
    /// It was started or found, and not detached since.
    expected: bool,
}

/// See the module.
pub struct FakeDrivers {
    pub attach: FakeAttach,
    pub pool: Pool,
    pub database: Database,
    /// The agent's last sign of life since the machine's boot.
    pub sign: Option<Sign>,
    /// The watchdog's helper was started since the machine's boot.
    pub helper: bool,
    pub reboot: Option<String>,
    pub role: Role,
    pub lines: Vec<String>,
}

impl FakeDrivers {
    /// The machine lost power: this remains for the next boot.
    pub fn lose_power(&mut self, pool: Pool) {
        self.database.lost_power();
        (self.attach, self.pool, self.sign, self.helper) = (FakeAttach::default(), pool, None, false);
        (self.reboot, self.role) = (None, Role::Standby);
    }

    pub fn new(pool: Pool, database: Database) -> Self {
        Self {
            attach: FakeAttach::default(),
            pool,
            database,
            sign: None,
            helper: false,
            reboot: None,
            role: Role::Standby,
            lines: Vec::new(),
        }
    }
}

/// The agent's host.
pub struct FakeHost {
    pub name: String,
    pub drivers: Arc<Mutex<FakeDrivers>>,
    pub gateways: Gateways,
    /// The run directory of attach.
    pub attach_dir: PathBuf,
    pub detach_limit: Duration,
    pub stop_limit: Duration,
    pub bug: Option<Bug>,
}

impl FakeHost {
    fn drivers(&self) -> MutexGuard<'_, FakeDrivers> {
        lock(&self.drivers)
    }

    /// Checks until there is a result or the time is over.
    async fn wait<T>(&self, limit: Duration, look: impl Fn(&mut FakeDrivers) -> Option<T>) -> Option<T> {
        let begun = Instant::now();
        loop {
            let seen = look(&mut self.drivers());
            if seen.is_some() || begun.elapsed() >= limit {
                return seen;
            }
            sleep(LOOK_PAUSE).await;
        }
    }

    async fn pool(&self, limit: Duration, begin: impl FnOnce(&mut Pool) + Send) -> Result<(), String> {
        begin(&mut self.drivers().pool);
        let late = || format!("the pool did not answer within {} ms", limit.as_millis());
        self.wait(limit, |drivers| drivers.pool.outcome()).await.unwrap_or_else(|| Err(late()))
    }

    /// How attach shows itself.
    fn status(&self) -> Option<AttachView> {
        let status = AttachStatus::read(&self.attach_dir)?;
        Some(status.view())
    }

    async fn gone(&self, limit: Duration) -> bool {
        self.wait(limit, |drivers| (!drivers.attach.runs && drivers.attach.wanted.is_none()).then_some(()))
            .await
            .is_some()
    }
}

impl Host for FakeHost {
    async fn found(&self) -> Result<Found, String> {
        let mut drivers = self.drivers();
        let attach = drivers.attach.runs;
        drivers.attach.expected = attach;
        Ok(Found { attach, mounted: drivers.pool.imported(), database: drivers.database.is_there() })
    }

    async fn lease(&self) -> LeaseView {
        if self.bug == Some(Bug::TakesUnasked) {
            return LeaseView::Free;
        }
        self.gateways.lease().await
    }

    async fn attach(&self, force: bool) -> Result<(), String> {
        let force = force || self.bug == Some(Bug::TakesUnasked);
        let mut drivers = self.drivers();
        if drivers.attach.runs {
            return Err("an attach process runs there already".into());
        }
        // Left by an earlier process.
        drop(std::fs::remove_file(self.attach_dir.join("status.json")));
        drivers.attach = FakeAttach { wanted: Some(force), expected: true, ..FakeAttach::default() };
        Ok(())
    }

    async fn attach_look(&self) -> AttachLook {
        let (expected, end) = {
            let drivers = self.drivers();
            (drivers.attach.expected, drivers.attach.end.clone())
        };
        match end {
            _ if !expected => AttachLook::None,
            Some(end) => AttachLook::Ended(end),
            None => AttachLook::Runs(self.status().unwrap_or(AttachView {
                phase: AttachPhase::Acquiring,
                epoch: 0,
                renewed: None,
                ttl: None,
                fenced_by: String::new(),
                lost: Vec::new(),
            })),
        }
    }

    async fn detach(&self, hard: bool) -> Result<(), String> {
        {
            let mut drivers = self.drivers();
            drivers.attach.expected = false;
            drivers.attach.signal = Some(Signal::Term);
        }
        let limit = if hard { HARD_DETACH_LIMIT } else { self.detach_limit };
        let politely = self.gone(limit).await;
        if !politely {
            self.drivers().attach.signal = Some(Signal::Kill);
            let gone = self.gone(KILL_LIMIT).await;
            if !hard || !gone {
                return Err(format!("attach did not end within {} ms and was killed", limit.as_millis()));
            }
        }
        let (end, clean) = {
            let attach = &mut self.drivers().attach;
            (attach.end.take(), attach.clean)
        };
        match end {
            Some(end) if !hard && !clean => Err(format!("attach ended: {end:?}")),
            _ => Ok(()),
        }
    }

    async fn import(&self, _force: bool) -> Result<(), String> {
        // By force always, as the real drivers do.
        self.pool(POOL_LIMIT, |pool| pool.import(true)).await
    }

    async fn export(&self, hard: bool) -> Result<(), NotDone> {
        let limit = if hard { HARD_EXPORT_LIMIT } else { POOL_LIMIT };
        {
            let drivers = self.drivers();
            if drivers.database.is_there() && (!hard || drivers.pool.is_kept_by_users()) {
                return Err(NotDone::Failed("the database is there: the pool is in use".into()));
            }
        }
        Ok(self.pool(limit, |pool| pool.export(hard)).await?)
    }

    async fn arm(&self) -> Result<(), String> {
        Err("there is no watchdog device".into())
    }

    async fn start_database(&self) -> Result<(), NotDone> {
        let mut drivers = self.drivers();
        if !drivers.pool.is_well() {
            return Err(NotDone::Failed("there is no data directory that can be read".into()));
        }
        drivers.lines.push(format!("the database of {} is started", self.name));
        Ok(drivers.database.start()?)
    }

    async fn stop_database(&self, how: Stop) -> Result<(), String> {
        if self.bug == Some(Bug::NeverStops) && how != Stop::Fast {
            return Ok(());
        }
        {
            let mut drivers = self.drivers();
            if drivers.database.is_there() {
                drivers.lines.push(format!("the database of {} is stopped: {how:?}", self.name));
            }
            drivers.database.stop(how);
        }
        let limit = match how {
            Stop::Fast => self.stop_limit,
            Stop::Immediate => IMMEDIATE_LIMIT + KILL_LIMIT,
            Stop::Kill => KILL_LIMIT,
        };
        let gone = self.wait(limit, |drivers| (!drivers.database.is_there()).then_some(())).await;
        gone.ok_or_else(|| format!("processes of the database are left after {} ms: {how:?}", limit.as_millis()))
    }

    async fn probe(&self) -> Option<DatabaseView> {
        Some(self.drivers().database.look())
    }

    async fn checkpoint(&self) -> Result<(), String> {
        sleep(LOOK_PAUSE).await;
        if self.drivers().database.is_ready() { Ok(()) } else { Err("the database takes no orders".into()) }
    }

    async fn first_write(&self) -> Result<(), String> {
        if !self.drivers().database.want() {
            return Err("the database takes no commits".into());
        }
        let done = self.wait(WRITE_LIMIT, |drivers| match drivers.database.has_done() {
            Some(false) => None,
            done => Some(done.is_some()),
        });
        match done.await {
            Some(true) => Ok(()),
            Some(false) => Err("the database ended meanwhile".into()),
            None => Err(format!("no commit within {} ms", WRITE_LIMIT.as_millis())),
        }
    }

    fn hook_role(&self, role: Role, epoch: u64) {
        let mut drivers = self.drivers();
        drivers.role = role;
        drivers.lines.push(format!("{} is {role:?} (e{epoch})", self.name));
    }

    fn hook_event(&self, line: &str, _role: Role, _epoch: u64) {
        self.drivers().lines.push(format!("history of {}: {line}", self.name));
    }

    fn reboot(&self, why: &str) {
        self.drivers().reboot = Some(why.into());
    }

    fn alive(&self, may_run_until: Option<MonoTime>, ttl_ms: u64, guarded: bool) {
        let at = Some(MonoTime(crate::libc::boot()));
        self.drivers().sign = Some(Sign { at, may_run_until, ttl_ms, guarded });
    }

    fn left_alone(&self, may_run_until: Option<MonoTime>, ttl_ms: u64, guarded: bool) {
        self.drivers().sign = Some(Sign { at: None, may_run_until, ttl_ms, guarded });
    }
}
