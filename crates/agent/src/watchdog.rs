//! Stops PostgreSQL when the agent cannot: a second process, `holdfast agent watchdog`, without a runtime and without
//! sockets.
//!
//! ```text
//!   agent ──(ten times a second)──▶ RUN_DIR/watchdog ──▶ helper ──SIGKILL──▶ PostgreSQL, attach, nbdfuse
//!                                   attach/status.json ──┘   └─ a byte, ten times a second ─▶ /dev/watchdog
//! ```
//! WATCHDOG-W1  PostgreSQL may run until `ahead` before the later of two times: the agent's last word, and the end of
//!     the lease by attach's own last renewal (attach outlives the agent). I/O that waits in the device ends only once
//!     the device fails. So the helper acts before the lease ends, and after the agent would have. It ends the device
//!     that early only where something waits in it.
//! WATCHDOG-W2  Whatever the lease says, PostgreSQL may not run for longer than `timeout_ms` without a sign of life of
//!     an agent. One exception: the agent was told to end in a pause and left it running; then it may run until the
//!     next agent's first sign. A full file system is no reason to give none (REWRITE-F2).
//! WATCHDOG-W3  The machine's watchdog (`guard`) is fed only while WATCHDOG-W1 and WATCHDOG-W2 hold, or nothing is left
//!     of PostgreSQL.
//!
//! Owns: the sign file, that process. Does not own: any decision to start something. A helper that fails makes failover
//! less safe for the database; the gateways still protect the data (R2).

mod device;
mod guard;
mod helper;

use crate::attach_process;
use crate::clock;
use crate::config::AgentConfig;
use crate::machine::AttachPhase;
pub use device::looked_at as device_looked_at;
use guard::Shown;
pub use helper::run;
use holdfast_host::lock::is_locked;
use holdfast_host::rewritten::{self, Rewritten};
use holdfast_types::MonoTime;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Time between two looks while the machine's watchdog counts down and is not fed.
const URGENT_PAUSE: Duration = Duration::from_millis(20);

/// How long the helper may take to open the machine's watchdog. The helper is started within a second if it is not
/// there, and tries once a second, on a busy machine later. A takeover that fails for this costs more than the wait.
const ARM_LIMIT: Duration = Duration::from_secs(10);

/// In the file of the signs, in place of [`Sign::at`]: there is none.
const LEFT_ALONE: u64 = u64::MAX;

/// A sign of life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sign {
    /// When it was given; `None` by an agent that ended and left PostgreSQL running: no further sign is expected.
    pub at: Option<MonoTime>,
    /// Until when PostgreSQL may run; `None` if it does not run.
    pub may_run_until: Option<MonoTime>,
    /// How long the lease lasts, in milliseconds.
    pub ttl_ms: u64,
    /// The machine's watchdog must count down.
    pub guarded: bool,
}

impl Sign {
    /// As other processes read it.
    fn shown(self) -> Self {
        let shown = |at: Option<MonoTime>| at.map(|at| MonoTime(clock::shown(at)));
        Self { at: shown(self.at), may_run_until: shown(self.may_run_until), ..self }
    }

    /// As this process reads it. `None`: it was given before the machine's clock went back, nobody knows how long ago,
    /// and the sign before it counts.
    fn told(self) -> Option<Self> {
        let at = match self.at {
            Some(at) => Some(clock::told(at.0)?),
            None => None,
        };
        let may_run_until = self.may_run_until.map(|until| clock::told_limit(until.0));
        Some(Self { at, may_run_until, ..self })
    }

    fn text(self) -> String {
        let at = self.at.map_or(LEFT_ALONE, |at| at.0);
        let until = self.may_run_until.map_or(0, |until| until.0);
        format!("{at} {until} {} {}\n", self.ttl_ms, u64::from(self.guarded))
    }

    fn parse(text: &str) -> Option<Self> {
        let numbers: Option<Vec<u64>> = text.split_once('\n')?.0.split(' ').map(|word| word.parse().ok()).collect();
        let [at, until, ttl_ms, guarded] = <[u64; 4]>::try_from(numbers?).ok()?;
        let at = (at != LEFT_ALONE).then_some(MonoTime(at));
        let may_run_until = (until > 0).then_some(MonoTime(until));
        Some(Self { at, may_run_until, ttl_ms, guarded: guarded == 1 })
    }

    /// Until when PostgreSQL may run, also by attach's own last renewal; `None` if it does not run.
    fn until(self, lease_until: Option<MonoTime>) -> Option<MonoTime> {
        self.may_run_until.map(|until| lease_until.map_or(until, |lease| until.max(lease)))
    }
}

/// Where the agent gives its signs.
#[derive(Debug)]
pub struct Signs {
    file: Rewritten,
    complained: AtomicBool,
}

impl Signs {
    /// In this run directory.
    pub fn new(run_dir: &Path) -> Self {
        Self { file: Rewritten::new(run_dir.join("watchdog")), complained: AtomicBool::new(false) }
    }

    /// Writes a sign of life.
    pub fn give(&self, sign: Sign) {
        match self.file.write(sign.shown().text().as_bytes()) {
            Ok(()) => self.complained.store(false, Ordering::Relaxed),
            Err(error) if !self.complained.swap(true, Ordering::Relaxed) => {
                tracing::error!(path = %self.file.path().display(), %error, "cannot give a sign of life: the watchdog will stop PostgreSQL");
            }
            Err(_) => {}
        }
    }

    fn last(&self) -> Option<Sign> {
        Sign::parse(&String::from_utf8(rewritten::read(self.file.path()).ok()?).ok()?).and_then(Sign::told)
    }
}

/// The lock of the helper.
pub const HELPER_LOCK: &str = "watchdog.lock";

/// The lock of the agent.
pub const AGENT_LOCK: &str = "agent.lock";

/// Waits until the helper reports that the machine's watchdog counts down; the agent's signs ask for it.
///
/// # Errors
/// It cannot be opened, and why; or no helper answers.
pub async fn armed(run_dir: &Path) -> Result<(), String> {
    let begun = std::time::Instant::now();
    loop {
        // Without a helper, the status file is from an earlier one.
        let helper = is_locked(run_dir, HELPER_LOCK).unwrap_or(false);
        match Shown::read(run_dir).filter(|_| helper) {
            Some(Shown::Armed(_)) => return Ok(()),
            Some(Shown::Refused(why)) => return Err(why),
            None if begun.elapsed() >= ARM_LIMIT => {
                return Err(silent_for(ARM_LIMIT, helper));
            }
            None => tokio::time::sleep(URGENT_PAUSE).await,
        }
    }
}

/// The error if the device's state was not reported for this long. `helper`: whether a helper runs.
fn silent_for(limit: Duration, helper: bool) -> String {
    let what = if helper {
        "one runs; it hangs, or it began with other settings and knows no device: then it ends once its agent has ended and everything was released"
    } else {
        "none runs"
    };
    format!(
        "found no report of the watchdog's helper about the device for {} s ({what}), expected one: see watchdog.log in run_dir",
        limit.as_secs()
    )
}

/// PostgreSQL must end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kill {
    /// Why.
    pub why: String,
    /// End the device too, even if nothing waits in it any more: the lease has ended, or no agent is there to give it
    /// back.
    pub device: bool,
}

/// The settings that the helper follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// WATCHDOG-W2: after this time without a sign of life PostgreSQL must end.
    pub timeout: Duration,
    /// `lease.stop_margin_ms`: the agent begins to stop PostgreSQL this long before the lease ends (AGENT-A3).
    pub stop_margin: Duration,
}

impl Limits {
    /// Of these settings.
    pub fn of(config: &AgentConfig) -> Self {
        Self {
            timeout: Duration::from_millis(config.watchdog.timeout_ms),
            stop_margin: Duration::from_millis(config.lease.stop_margin_ms),
        }
    }

    /// How long before the end of a lease of `ttl_ms` the helper acts: half of the agent's own margin. By default the
    /// rest is enough for one look, the signals, and the kernel's release of a dead device.
    fn ahead(self, ttl_ms: u64) -> Duration {
        self.stop_margin.min(Duration::from_millis(ttl_ms) / 2) / 2
    }
}

/// Pure. Why PostgreSQL must end; `None` if it may go on, or does not run. `lease_until`: the end of the lease by
/// attach's own last renewal.
fn judge(now: MonoTime, sign: Sign, lease_until: Option<MonoTime>, limits: Limits) -> Option<Kill> {
    let until = sign.until(lease_until)?;
    if now > until {
        let why = format!("the lease ended {} ms ago", now.saturating_since(until).as_millis());
        return Some(Kill { why, device: true });
    }
    let left = until.saturating_since(now);
    if left < limits.ahead(sign.ttl_ms) {
        let why = format!("the lease ends in {} ms and was not renewed", left.as_millis());
        return Some(Kill { why, device: false });
    }
    let silent = now.saturating_since(sign.at?);
    if silent > limits.timeout {
        let why = format!("the agent gave no sign of life for {} ms", silent.as_millis());
        return Some(Kill { why, device: true });
    }
    None
}

/// Reason why PostgreSQL must end `now`, if there is one (WATCHDOG-W1, WATCHDOG-W2), as the helper finds at one look.
/// `attach_dir` is attach's run directory.
pub fn why_kill(now: MonoTime, sign: Sign, attach_dir: &Path, limits: Limits) -> Option<Kill> {
    judge(now, sign, lease_until(attach_dir, sign.ttl_ms), limits)
}

/// Whether the helper is not needed any more: no agent, no attach that an agent left running, no PostgreSQL.
fn over(now: MonoTime, last: Option<Sign>, timeout: Duration, attached: bool) -> bool {
    match last {
        None => true,
        Some(Sign { at: None, .. }) => !attached,
        // The agent released everything: the next agent's helper may begin, with other settings.
        Some(Sign { may_run_until: None, .. }) if !attached => true,
        Some(Sign { at: Some(at), .. }) => now.saturating_since(at) > timeout,
    }
}

/// Whether a helper that outlived its agent may leave the next agent to a new helper: that agent has nothing yet, or
/// released everything. An agent may restart between two looks at its lock, and this helper has the settings and the
/// build of before.
fn may_be_replaced(last: Option<Sign>, attached: bool) -> bool {
    last.is_some_and(|sign| sign.may_run_until.is_none() && !sign.guarded) && !attached
}

/// Until when attach's own last renewal lets PostgreSQL run; `None` if attach reports none. `ttl_ms`: the length of
/// leases by the agent, which counts only if attach does not report its own: an agent that has just adopted PostgreSQL
/// does not know it yet.
fn lease_until(attach_dir: &Path, ttl_ms: u64) -> Option<MonoTime> {
    let status = attach_process::Status::read(attach_dir).filter(|status| status.phase() != AttachPhase::Fenced)?;
    let ttl_ms = status.lease_ttl_ms.filter(|ttl_ms| *ttl_ms > 0).unwrap_or(ttl_ms);
    Some(status.renewed()?.saturating_add(Duration::from_millis(ttl_ms)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_host::lock::lock;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn the_error_without_a_report_names_whether_a_helper_runs() {
        let said = |helper| silent_for(Duration::from_secs(10), helper);
        assert_eq!(
            said(false),
            "found no report of the watchdog's helper about the device for 10 s (none runs), expected one: see watchdog.log in run_dir"
        );
        assert!(said(true).contains("(one runs; ") && said(true).contains("other settings"), "{}", said(true));
        assert!(said(true).contains("it hangs"), "{}", said(true));
    }

    const LIMITS: Limits = Limits { timeout: Duration::from_secs(10), stop_margin: Duration::from_millis(300) };

    fn at(seconds: u64) -> MonoTime {
        MonoTime(seconds * 1_000_000_000)
    }

    fn ahead_of(moment: MonoTime, ms: u64) -> MonoTime {
        MonoTime(moment.0 - ms * 1_000_000)
    }

    fn why(kill: Option<Kill>) -> String {
        kill.map_or(String::new(), |kill| kill.why)
    }

    #[test]
    fn postgresql_may_run_while_lease_and_agent_live() {
        let sign = Sign { at: Some(at(100)), may_run_until: Some(at(103)), ttl_ms: 3000, guarded: false };
        assert_eq!(judge(at(102), sign, None, LIMITS), None);
        assert_eq!(why(judge(at(104), sign, None, LIMITS)), "the lease ended 1000 ms ago");
        // After the agent's own stop, and before the lease ends.
        assert_eq!(judge(ahead_of(at(103), 150), sign, None, LIMITS), None);
        let soon = judge(ahead_of(at(103), 149), sign, None, LIMITS);
        assert!(soon.is_some_and(|kill| kill.why.contains("ends in 149 ms") && !kill.device));
        let wide = Limits { stop_margin: Duration::from_secs(60), ..LIMITS };
        assert_eq!(judge(ahead_of(at(103), 750), sign, None, wide), None, "a quarter of the lease at most");
        assert!(judge(ahead_of(at(103), 749), sign, None, wide).is_some());
        // The agent is gone, attach renews.
        assert_eq!(judge(at(109), sign, Some(at(111)), LIMITS), None);
        assert!(why(judge(at(111), sign, Some(at(113)), LIMITS)).contains("no sign of life"));
        assert_eq!(judge(at(999), Sign { may_run_until: None, ..sign }, None, LIMITS), None);
    }

    #[test]
    fn a_postgresql_left_alone_ends_with_its_lease_only() {
        let sign = Sign { at: None, may_run_until: Some(at(103)), ttl_ms: 3000, guarded: false };
        assert_eq!(Sign::parse(&sign.text()), Some(sign));
        assert_eq!(judge(at(999), sign, Some(at(1001)), LIMITS), None);
        assert_eq!(why(judge(at(104), sign, None, LIMITS)), "the lease ended 1000 ms ago");
        // The helper stays as long as there is something to guard, then it ends.
        let over = |last, attached| over(at(999), Some(last), LIMITS.timeout, attached);
        assert!(!over(sign, true));
        assert!(over(sign, false));
        assert!(over(Sign { at: Some(at(100)), ..sign }, true));
        // The helper does not wait for an agent that released everything. It waits for one that was killed while
        // PostgreSQL ran.
        let stopped = Sign { at: Some(at(998)), may_run_until: None, ..sign };
        assert!(over(stopped, false));
        assert!(!over(stopped, true));
        assert!(!over(Sign { may_run_until: Some(at(1001)), ..stopped }, false));
    }

    #[test]
    fn the_next_agent_gets_its_own_helper_if_nothing_is_held() {
        let sign = Sign { at: Some(at(100)), may_run_until: None, ttl_ms: 3000, guarded: false };
        assert!(may_be_replaced(Some(sign), false));
        for (last, attached, why) in [
            (Some(sign), true, "attach runs"),
            (Some(Sign { guarded: true, ..sign }), false, "the machine's watchdog counts"),
            (Some(Sign { may_run_until: Some(at(103)), ..sign }), false, "PostgreSQL may run"),
            (Some(Sign { at: None, may_run_until: Some(at(103)), ..sign }), false, "left running in a pause"),
            (None, false, "nothing is known"),
        ] {
            assert!(!may_be_replaced(last, attached), "{why}");
        }
    }

    #[test]
    fn the_lease_lasts_from_its_renewal_by_the_clock_of_leases() {
        let dir = tempfile::tempdir().unwrap();
        let (renewed, shown) = (clock::now().0.saturating_sub(at(60).0), clock::unix_ms());
        let show = |phase: &str| {
            let text = format!(
                r#"{{"phase":"{phase}","pid":1,"lease_renewed_at":{shown},"lease_renewed_boot_ns":{renewed}}}"#
            );
            std::fs::write(dir.path().join("status.json"), text).unwrap();
        };
        show("serving");
        assert_eq!(lease_until(dir.path(), 3000), Some(MonoTime(renewed + at(3).0)));
        show("fenced");
        assert_eq!(lease_until(dir.path(), 3000), None);
        // Attach knows best how long its lease lasts.
        show(r#"serving","lease_ttl_ms":1000,"about":""#);
        assert_eq!(lease_until(dir.path(), 3000), Some(MonoTime(renewed + at(1).0)));
    }

    #[test]
    fn a_sign_that_is_cut_short_is_not_read() {
        let sign = Sign { at: Some(MonoTime(1)), may_run_until: Some(MonoTime(22)), ttl_ms: 333, guarded: true };
        assert_eq!(sign.text(), "1 22 333 1\n");
        assert_eq!(Sign::parse(&sign.text()), Some(sign));
        for cut in ["1 22 333 1", "1 22 333\n", "1 22 33", "1 22\n", ""] {
            assert_eq!(Sign::parse(cut), None, "{cut}");
        }
        let nothing = Sign { at: None, may_run_until: None, ..sign };
        assert_eq!(nothing.text(), "18446744073709551615 0 333 1\n");
        assert_eq!(Sign::parse(&nothing.text()), Some(nothing));
    }

    /// REWRITE-F2: a healthy PostgreSQL was ended because /run was full.
    #[test]
    fn signs_are_given_on_a_full_file_system() {
        let dir = tempfile::tempdir().unwrap();
        let signs = Signs::new(dir.path());
        let sign = |at: u64| Sign {
            at: Some(MonoTime(at)),
            may_run_until: Some(MonoTime(2 * at)),
            ttl_ms: 3000,
            guarded: true,
        };
        signs.give(sign(1_000_000));
        // No new file can be made.
        std::fs::create_dir(dir.path().join("watchdog.next")).unwrap();
        // Also shorter ones than before.
        for at in [1_000_001, 9, 1_000_002, 10] {
            signs.give(sign(at));
            assert_eq!(signs.last(), Some(sign(at)));
        }
    }

    /// WATCHDOG-W2: a sign that cannot be dated is none. PostgreSQL is not killed for it either: the one before counts.
    #[test]
    fn a_sign_of_before_the_clock_went_back_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let (signs, past) = (Signs::new(dir.path()), Some(MonoTime(2)));
        let sign = Sign { at: None, may_run_until: past, ttl_ms: 3000, guarded: false };
        signs.give(sign);
        assert_eq!(signs.last(), Some(sign));
        let to_come = clock::now().saturating_add(Duration::from_secs(3600));
        signs.give(Sign { at: Some(to_come), ..sign });
        assert_eq!(signs.last(), None);
    }

    /// The lease of a paused host ended in an outage. A person may work on the files: only PostgreSQL is ended.
    #[test]
    fn a_host_left_alone_in_a_pause_keeps_its_device() {
        use std::process::{Child, Command};
        let ended = |child: &mut Child| {
            let begun = std::time::Instant::now();
            while begun.elapsed() < Duration::from_secs(20) {
                if child.try_wait().unwrap().is_some() {
                    return true;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            false
        };
        for (at, keeps) in [(None, true), (Some(MonoTime(1)), false)] {
            let dir = tempfile::tempdir().unwrap();
            let mut config = AgentConfig { run_dir: dir.path().into(), ..AgentConfig::default() };
            config.watchdog.kind = crate::config::WatchdogKind::Helper;
            config.database.data = dir.path().join("data");
            let (attach_dir, postgres) = (dir.path().join("attach"), dir.path().join("postgres"));
            std::fs::create_dir_all(&attach_dir).unwrap();
            std::fs::create_dir_all(&config.database.data).unwrap();
            // A link, not a copy: a fresh file cannot be executed while a child of another test still has it open for
            // writing.
            std::os::unix::fs::symlink("/bin/sleep", &postgres).unwrap();
            let mut attach = Command::new("/bin/sleep").arg("1000").spawn().unwrap();
            let _held = lock(&attach_dir, "attach.lock").unwrap();
            std::fs::write(attach_dir.join("attach.lock"), attach.id().to_string()).unwrap();
            let mut server = Command::new(&postgres).arg("1000").current_dir(&config.database.data).spawn().unwrap();
            let signs = Signs::new(dir.path());
            signs.give(Sign { at, may_run_until: Some(MonoTime(1)), ttl_ms: 3000, guarded: false });
            let helper = std::thread::spawn(move || run(&config));
            assert!(ended(&mut server), "PostgreSQL is ended in any case");
            if !keeps {
                assert!(ended(&mut attach), "without a pause the device goes too");
            }
            // Nothing is guarded any more, and no agent is there: the helper ends, after the look in which it ended
            // PostgreSQL.
            signs.give(Sign { at: Some(MonoTime(1)), may_run_until: None, ttl_ms: 3000, guarded: false });
            helper.join().unwrap().unwrap();
            assert_eq!(attach.try_wait().unwrap().is_none(), keeps, "at {at:?}");
            let _ = attach.kill();
            let _ = attach.wait();
        }
    }

    #[test]
    fn one_helper_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!is_locked(dir.path(), HELPER_LOCK).unwrap());
        let held = lock(dir.path(), HELPER_LOCK).unwrap();
        assert!(is_locked(dir.path(), HELPER_LOCK).unwrap());
        assert!(lock(dir.path(), HELPER_LOCK).is_err());
        drop(held);
        assert!(!is_locked(dir.path(), HELPER_LOCK).unwrap());
    }

    /// Any user who could open the file could hold its lock, and would count as the helper.
    #[test]
    fn nobody_else_may_hold_a_lock() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(HELPER_LOCK);
        drop(lock(dir.path(), HELPER_LOCK).unwrap());
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    /// The helper checks the agent's lock ten times a second, the agent the helper's: neither may prevent the other's
    /// start.
    #[test]
    fn a_check_of_a_lock_does_not_block_it() {
        let dir = tempfile::tempdir().unwrap();
        let (looks, over) = (AtomicU32::new(0), AtomicBool::new(false));
        let failed = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let _ = is_locked(dir.path(), AGENT_LOCK);
                    looks.fetch_add(1, Ordering::Relaxed);
                }
            });
            let mut failed = None;
            while failed.is_none() && looks.load(Ordering::Relaxed) < 10_000 {
                failed = lock(dir.path(), AGENT_LOCK).err();
            }
            over.store(true, Ordering::Relaxed);
            failed
        });
        assert_eq!(failed, None);
    }
}
