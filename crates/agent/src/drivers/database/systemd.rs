//! PostgreSQL as a systemd unit, controlled through `systemctl`.
//!
//! UNIT-U1  Only the agent starts it. A unit that is enabled, that another unit starts, or that restarts by itself is
//!     refused before its start: it would come up on a host whose lease has ended. Actions that restart the machine
//!     (`FailureAction=` and its like) start no unit that is disabled.
//! UNIT-U2  It has ended only once no start of it waits or runs either: a queued start would come up later, beside the
//!     next primary.
//! UNIT-U3  PostgreSQL's processes are found and signalled as always (DB-D1). systemd is asked about the rest: starts,
//!     and processes that have not become PostgreSQL yet.
//! UNIT-U4  A question or an order that systemd does not answer says nothing of PostgreSQL: at a shutdown of a busy
//!     machine systemd may be slow, or hang. A stop in good order then goes on with a signal, for which half of its
//!     time is kept, and a start goes on, each until its own limit.

use crate::config::AgentConfig;
use crate::machine::Stop;
use crate::process::{self, Server, ran, run, system, unlooked};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::process::Command;

/// Time limit of one question, or of an order that is not waited for. systemd itself answers in some ten milliseconds.
const ASK_LIMIT: Duration = Duration::from_secs(5);

/// Time limit from the stop order until the unit has ended, with all its processes killed.
const END_LIMIT: Duration = Duration::from_secs(5);

/// Pause between two questions.
const ASK_PAUSE: Duration = Duration::from_millis(20);

/// Like `ASK_PAUSE`, during a start, and after a stop in good order: each question is a process.
const START_PAUSE: Duration = Duration::from_millis(100);

/// An active unit shows a process of PostgreSQL's at the data directory within this time.
const APPEAR_LIMIT: Duration = Duration::from_secs(5);

/// Properties of a unit that other units start.
const STARTERS: [&str; 7] =
    ["WantedBy", "RequiredBy", "UpheldBy", "BoundBy", "TriggeredBy", "OnFailureOf", "OnSuccessOf"];

/// Exit codes and signals after which systemd starts a unit again, whatever its `Restart=` says.
const FORCED: &str = "RestartForceExitStatus";

/// What systemd is asked for, beside the starters. It tells nothing of a property that its version does not know.
const ASKED: &str = "Id,LoadState,ActiveState,SubState,UnitFileState,Restart,RestartForceExitStatus,Result,Job";

fn asked() -> String {
    format!("{ASKED},{}", STARTERS.join(","))
}

/// State of a unit, from systemd.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unit {
    name: String,
    says: BTreeMap<String, String>,
}

impl Unit {
    /// From the lines of `systemctl show`.
    fn parse(name: &str, shown: &str) -> Self {
        let pairs = shown.lines().filter_map(|line| line.split_once('='));
        Self { name: name.into(), says: pairs.map(|(key, value)| (key.into(), value.trim().into())).collect() }
    }

    fn says(&self, key: &str) -> &str {
        self.says.get(key).map_or("", String::as_str)
    }

    /// No job of it waits, in particular no start.
    fn idle(&self) -> bool {
        matches!(self.says("Job"), "" | "0")
    }

    /// UNIT-U2.
    pub fn gone(&self) -> bool {
        self.idle() && matches!(self.says("ActiveState"), "inactive" | "failed")
    }

    /// Its start has succeeded, and it has not ended. A unit of a service without processes is active as well.
    pub fn is_active(&self) -> bool {
        matches!(self.says("ActiveState"), "active" | "reloading")
    }

    /// Its state as text.
    pub fn state(&self) -> String {
        let job = if self.idle() { "" } else { ", a job of it waits or runs" };
        format!("{} ({}){job}, result {}", self.says("ActiveState"), self.says("SubState"), self.says("Result"))
    }

    /// Whether only the agent starts it (UNIT-U1).
    ///
    /// # Errors
    /// What else starts it, and the remedy.
    pub fn fit(&self) -> Result<(), String> {
        let manual = "; on Debian also \"manual\" in the cluster's start.conf (/etc/postgresql/VERSION/NAME), then `systemctl daemon-reload`";
        self.fit_as("database.unit", manual)
    }

    /// As [`Unit::fit`], for the unit of another service. Its processes are known by its control group (CGROUP-C1), and
    /// that has the unit's own name: by an alias none of them would be found, and none would have SIGKILL.
    ///
    /// # Errors
    /// As there; or this is not the unit's own name.
    pub fn fit_as_service(&self) -> Result<(), String> {
        self.fit_as("service.unit", "")?;
        let (unit, id) = (&self.name, self.says("Id"));
        if id == unit {
            return Ok(());
        }
        Err(format!(
            "unit {unit}: found that its own name is {id:?}, expected the same: its processes are known by a control group of that name; set service.unit to it"
        ))
    }

    /// As [`Unit::fit`], for the unit of this setting. `more`: how else it is kept from starting by itself.
    ///
    /// # Errors
    /// As there.
    pub fn fit_as(&self, setting: &str, more: &str) -> Result<(), String> {
        let unit = &self.name;
        let load = self.says("LoadState");
        if load != "loaded" {
            return Err(format!("unit {unit}: found LoadState={load}, expected loaded: see {setting}"));
        }
        let restart = self.says("Restart");
        if restart != "no" {
            return Err(format!(
                "unit {unit}: found Restart={restart}, expected no: it would come up on a host whose lease has ended; `systemctl edit {unit}`, [Service], Restart=no"
            ));
        }
        let forced = self.says(FORCED);
        if !forced.is_empty() {
            return Err(format!(
                "unit {unit}: found {FORCED}={forced}, expected none: after such an end it would come up on a host whose lease has ended, whatever Restart= says; `systemctl edit {unit}`, [Service], {FORCED}= (empty)"
            ));
        }
        let mut starters = Vec::new();
        let file = self.says("UnitFileState");
        if file.starts_with("enabled") {
            starters.push(format!("UnitFileState={file}"));
        }
        for key in STARTERS {
            let by = self.says(key);
            if !by.is_empty() {
                starters.push(format!("{key}={by}"));
            }
        }
        if starters.is_empty() {
            return Ok(());
        }
        Err(format!(
            "unit {unit}: found {}, expected a unit that nothing but the agent starts: `systemctl disable {unit}`, and no other unit that wants it, upholds it, or has it in OnFailure= or OnSuccess={more}",
            starters.join(", ")
        ))
    }
}

/// The driver.
#[derive(Debug)]
pub struct Systemd {
    program: PathBuf,
    unit: String,
    /// Those of its PostgreSQL; `None` for another service.
    processes: Option<Server>,
}

impl Systemd {
    /// For these settings.
    pub fn new(config: &AgentConfig) -> Self {
        Self { processes: Some(Server::of(&config.database)), ..Self::of_unit(&config.database.unit) }
    }

    /// For a unit that is no PostgreSQL.
    pub fn of_unit(unit: &str) -> Self {
        Self { program: system("systemctl").as_std().get_program().into(), unit: unit.into(), processes: None }
    }

    /// With another program in place of `systemctl`.
    #[cfg(test)]
    pub fn with_program(mut self, program: PathBuf) -> Self {
        self.program = program;
        self
    }

    fn ctl(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(args).arg(&self.unit).env("LC_ALL", "C");
        command
    }

    /// Asks for its state.
    ///
    /// # Errors
    /// No answer: nothing is known of it.
    pub async fn look(&self) -> Result<Unit, String> {
        let shown = run(self.ctl(&["show", "--property", &asked()]), ASK_LIMIT).await?;
        let unit = Unit::parse(&self.unit, &shown);
        if unit.says("LoadState").is_empty() || unit.says("ActiveState").is_empty() {
            return Err(format!("systemctl show {}: found {shown:?}, expected LoadState and ActiveState", self.unit));
        }
        Ok(unit)
    }

    fn processes(&self) -> Result<bool, String> {
        let Some(processes) = &self.processes else { return Ok(false) };
        process::postgres_runs(processes).map_err(|error| unlooked(&error))
    }

    /// Gives the start, and waits for nothing.
    ///
    /// # Errors
    /// systemd did not take it. It may have it all the same.
    pub async fn order_start(&self) -> Result<(), String> {
        // systemd would refuse a unit that failed too often within a short time. The agent has its own limit.
        let _ = ran(self.ctl(&["reset-failed"]), ASK_LIMIT).await;
        // The agent waits for its readiness itself.
        run(self.ctl(&["start", "--no-block"]), ASK_LIMIT).await.map(drop)
    }

    /// Orders its end, and waits for nothing: this replaces a start that waits.
    ///
    /// # Errors
    /// As [`Systemd::order_start`].
    pub async fn order_end(&self) -> Result<(), String> {
        run(self.ctl(&["stop", "--no-block"]), ASK_LIMIT).await.map(drop)
    }

    /// Gives the start, and waits for the first process of PostgreSQL's for as long as systemd is at it, `limit` at
    /// most.
    ///
    /// # Errors
    /// Why not.
    pub async fn start(&self, limit: Duration) -> Result<(), String> {
        self.order_start().await?;
        let begun = Instant::now();
        let (mut asked, mut active) = (None::<Instant>, None::<Instant>);
        loop {
            if self.processes()? {
                return Ok(());
            }
            if asked.is_none_or(|at| at.elapsed() >= START_PAUSE) {
                asked = Some(Instant::now());
                let unit = match self.look().await {
                    Ok(unit) => unit,
                    // UNIT-U4: the start was ordered, and goes on.
                    Err(_) if begun.elapsed() < limit => continue,
                    Err(why) => return Err(why),
                };
                // Checked once more: it may have come up between the two checks.
                if unit.gone() && !self.processes()? {
                    return Err(format!(
                        "PostgreSQL ended at once: unit {} is {}: `journalctl -u {}` says why",
                        self.unit,
                        unit.state(),
                        self.unit
                    ));
                }
                match unit.says("ActiveState") {
                    "active" => {
                        active.get_or_insert_with(Instant::now);
                    }
                    _ => active = None,
                }
                if active.is_some_and(|since| since.elapsed() >= APPEAR_LIMIT) {
                    return Err(format!(
                        "unit {} is active, and no process of PostgreSQL works at {}: see database.unit and database.data",
                        self.unit,
                        self.processes.as_ref().map_or(Path::new(""), |processes| processes.data.as_path()).display()
                    ));
                }
            }
            if begun.elapsed() >= limit {
                return Err(format!("unit {}: PostgreSQL not seen within {} s", self.unit, limit.as_secs()));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Stops it in good order; clients are disconnected.
    ///
    /// # Errors
    /// Not within `limit`, or systemd did not take the order. It may have it all the same.
    pub async fn stop(&self, limit: Duration) -> Result<(), String> {
        let begun = Instant::now();
        // UNIT-U4: without an answer the order is given as well, and needs some of the time.
        let asked = tokio::time::timeout(limit / 2, self.look()).await;
        if !asked.is_ok_and(|unit| unit.is_ok_and(|unit| unit.gone())) {
            run(self.ctl(&["stop"]), limit.saturating_sub(begun.elapsed())).await?;
        }
        Ok(())
    }

    /// Waits until it has ended (UNIT-U2). Asks at least once, and again if there is no answer (UNIT-U4).
    ///
    /// # Errors
    /// It was not seen to have ended within `limit`.
    pub async fn ended(&self, limit: Duration) -> Result<(), String> {
        let begun = Instant::now();
        loop {
            let why = match self.look().await {
                Ok(unit) if unit.gone() => return Ok(()),
                Ok(unit) => format!("unit {} is {} after a stop", self.unit, unit.state()),
                Err(why) => why,
            };
            if begun.elapsed() >= limit {
                return Err(why);
            }
            tokio::time::sleep(START_PAUSE).await;
        }
    }

    /// Ends the unit after PostgreSQL's processes were killed: cancels a start that waits or runs, and kills processes
    /// that have not become PostgreSQL yet (UNIT-U2). [`Stop::Immediate`] has no time to wait: a unit counts as ended
    /// if systemd is ending it and all of its processes were killed.
    ///
    /// # Errors
    /// It was not seen to have ended.
    pub async fn end(&self, how: Stop) -> Result<(), String> {
        let begun = Instant::now();
        let mut unit = self.look().await?;
        while !unit.gone() && unit.says("LoadState") != "not-found" {
            if begun.elapsed() >= END_LIMIT {
                return Err(format!(
                    "unit {} is {} {} ms after it was killed",
                    self.unit,
                    unit.state(),
                    begun.elapsed().as_millis()
                ));
            }
            if unit.says("ActiveState") != "deactivating" {
                // Replaces a start that waits.
                self.order_end().await?;
            }
            // If there is nothing to kill, `systemctl` fails; that is no error here.
            let _ = ran(self.ctl(&["kill", "--signal=SIGKILL"]), ASK_LIMIT).await;
            unit = self.look().await?;
            if how == Stop::Immediate && unit.says("ActiveState") == "deactivating" {
                break;
            }
            if !unit.gone() {
                tokio::time::sleep(ASK_PAUSE).await;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(lines: &str) -> Unit {
        let usual = "LoadState=loaded\nActiveState=inactive\nSubState=dead\nUnitFileState=disabled\nRestart=no\nRestartForceExitStatus=\nResult=success\nJob=\nWantedBy=\n";
        Unit::parse("pg.service", &format!("{usual}{lines}"))
    }

    #[test]
    fn a_unit_that_comes_up_by_itself_is_refused_with_what_to_do() {
        assert_eq!(unit("").fit(), Ok(()));
        // A unit without a section [Install], and one that systemd has no file of.
        assert_eq!(unit("UnitFileState=static").fit(), Ok(()));
        assert_eq!(unit("UnitFileState=").fit(), Ok(()));
        for (lines, words) in [
            ("UnitFileState=enabled", "systemctl disable pg.service"),
            (
                "UnitFileState=enabled-runtime\nWantedBy=postgresql.service",
                "found UnitFileState=enabled-runtime, WantedBy=postgresql.service",
            ),
            ("TriggeredBy=pg.socket", "found TriggeredBy=pg.socket"),
            ("UpheldBy=app.service", "found UpheldBy=app.service"),
            ("OnFailureOf=app.service", "found OnFailureOf=app.service"),
            ("OnSuccessOf=backup.service", "found OnSuccessOf=backup.service"),
            ("Restart=on-failure", "found Restart=on-failure, expected no"),
            ("RestartForceExitStatus=3 KILL", "found RestartForceExitStatus=3 KILL, expected none"),
            ("LoadState=not-found", "found LoadState=not-found, expected loaded: see database.unit"),
            ("LoadState=masked", "found LoadState=masked"),
        ] {
            let why = unit(lines).fit().unwrap_err();
            assert!(why.contains(words), "{lines}: {why}");
        }
    }

    /// An answer has only what was asked for.
    #[test]
    fn systemd_is_asked_for_all_that_would_start_it() {
        let asked = asked();
        for key in STARTERS.into_iter().chain(["UnitFileState", "Restart", FORCED]) {
            assert!(asked.split(',').any(|one| one == key), "{key}: {asked}");
        }
    }

    /// CGROUP-C1: an agent whose settings named an alias of the unit found no process to kill at the end of its lease,
    /// and its watchdog's helper found none either.
    #[test]
    fn a_service_is_named_by_its_units_own_name() {
        assert_eq!(unit("Id=pg.service").fit_as_service(), Ok(()));
        let why = unit("Id=mail.service").fit_as_service().unwrap_err();
        assert!(why.contains("its own name is \"mail.service\"") && why.contains("service.unit"), "{why}");
        assert!(unit("").fit_as_service().is_err(), "systemd always tells it");
        let why = unit("Id=pg.service\nRestart=always").fit_as_service().unwrap_err();
        assert!(why.contains("found Restart=always"), "{why}");
        // PostgreSQL's processes are known by their data directory.
        assert_eq!(unit("Id=postgresql@15-main.service").fit(), Ok(()));
    }

    #[test]
    fn a_start_that_waits_is_not_gone() {
        assert!(unit("").gone());
        assert!(unit("ActiveState=failed").gone());
        assert!(!unit("Job=4711").gone());
        for state in ["active", "activating", "deactivating", "reloading"] {
            assert!(!unit(&format!("ActiveState={state}")).gone(), "{state}");
        }
    }
}
