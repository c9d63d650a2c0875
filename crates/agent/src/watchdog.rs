//! Stops PostgreSQL when the agent cannot: a second process, `holdfast agent watchdog`, without a runtime and without sockets.
//!
//! ```text
//!   agent ──(ten times a second)──▶ RUN_DIR/watchdog ──▶ helper ──SIGKILL──▶ PostgreSQL, attach, nbdfuse
//!                                   attach/status.json ──┘   └─ a byte, ten times a second ─▶ /dev/watchdog
//! ```
//! WATCHDOG-W1  PostgreSQL may run until `ahead` before the later of what the agent said last and what attach's own last renewal gives: attach outlives the agent. What waits
//!     in the device goes only once that fails, so the helper acts before the lease ends, and after the agent would have; the device it ends so early only where
//!     something does wait.
//! WATCHDOG-W2  It may not run for longer than `timeout_ms` without a sign of life of an agent, whatever the lease is; but where the agent was told to end in a
//!     pause and left it running, until a next agent gives its first sign.
//! WATCHDOG-W3  The machine's watchdog (`guard`) is fed only while WATCHDOG-W1 and WATCHDOG-W2 hold, or nothing is left of PostgreSQL.
//!
//! Owns: the sign file, that process. Does not own: any decision to start something. A helper that fails costs what the agent was for;
//! data is the gateways' to guard (R2).

mod device;
mod guard;

use crate::attach_process;
use crate::config::{AgentConfig, WatchdogMode};
use crate::{clock, process};
use device::Device;
pub use device::looked_at as device_looked_at;
use guard::{Guard, Shown, Wish};
use holdfast_host::lock::{is_locked, lock};
use rustix::process::getppid;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Between two looks. Below a second: the guard reckons with its nanoseconds.
const LOOK_PAUSE: Duration = Duration::from_millis(100);
const _: () = assert!(LOOK_PAUSE.as_secs() == 0);

/// The same while the machine's watchdog counts and is not fed.
const URGENT_PAUSE: Duration = Duration::from_millis(20);

/// For the helper to open the machine's watchdog. It is started within a second where it is not there, and tries once a second, on a busy machine later:
/// a takeover that fails for it costs more than the wait.
const ARM_LIMIT: Duration = Duration::from_secs(10);

/// For what has its SIGKILL to be gone, where it waits for nothing.
const DIE_LIMIT: Duration = Duration::from_millis(20);

/// For one round of SIGKILL.
const KILL_LIMIT: Duration = Duration::from_secs(1);

/// [`Sign::at_ns`] of an agent that ended and left PostgreSQL running: none is expected any more.
pub const LEFT_ALONE: u64 = u64::MAX;

/// A sign of life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sign {
    /// When, in nanoseconds of CLOCK_BOOTTIME, or [`LEFT_ALONE`].
    pub at_ns: u64,
    /// Until when PostgreSQL may run, likewise; 0 where it does not run.
    pub may_run_until_ns: u64,
    /// How long the lease lasts, in milliseconds.
    pub ttl_ms: u64,
    /// The machine's watchdog has to count.
    pub guarded: bool,
}

impl Sign {
    fn text(self) -> String {
        format!("{} {} {} {}\n", self.at_ns, self.may_run_until_ns, self.ttl_ms, u64::from(self.guarded))
    }

    /// An agent of an earlier build says nothing of the machine's watchdog: helpers outlive agents.
    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.strip_suffix('\n')?.split(' ').map(|word| word.parse::<u64>().ok());
        let (at_ns, may_run_until_ns, ttl_ms) = (numbers.next()??, numbers.next()??, numbers.next()??);
        Some(Self { at_ns, may_run_until_ns, ttl_ms, guarded: numbers.next().is_some_and(|number| number == Some(1)) })
    }
}

/// Where the agent gives its signs.
#[derive(Debug)]
pub struct Signs {
    path: PathBuf,
    complained: AtomicBool,
}

impl Signs {
    /// In this run directory.
    pub fn new(run_dir: &Path) -> Self {
        Self { path: run_dir.join("watchdog"), complained: AtomicBool::new(false) }
    }

    /// Gives one.
    pub fn give(&self, sign: Sign) {
        // A helper of an earlier build writes `watchdog.new`, at the same time.
        let new = self.path.with_extension("sign.new");
        let written = std::fs::write(&new, sign.text()).and_then(|()| std::fs::rename(&new, &self.path));
        match written {
            Ok(()) => self.complained.store(false, Ordering::Relaxed),
            Err(error) if !self.complained.swap(true, Ordering::Relaxed) => {
                tracing::error!(path = %self.path.display(), %error, "no sign of life can be given: the watchdog will stop PostgreSQL");
            }
            Err(_) => {}
        }
    }

    fn last(&self) -> Option<Sign> {
        Sign::parse(&std::fs::read_to_string(&self.path).ok()?)
    }
}

/// The lock of the helper.
pub const HELPER_LOCK: &str = "watchdog.lock";

/// The lock of the agent.
pub const AGENT_LOCK: &str = "agent.lock";

/// Waits until the helper says that the machine's watchdog counts; the agent's signs ask it to.
///
/// # Errors
/// It cannot be had, and why; or no helper answers.
pub async fn armed(run_dir: &Path) -> Result<(), String> {
    let begun = std::time::Instant::now();
    loop {
        // What is shown without a helper is an earlier one's.
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

/// What to say where nothing was said of the device for so long: `helper` is whether there is one.
fn silent_for(limit: Duration, helper: bool) -> String {
    let what = if helper {
        "one runs; it hangs, or knows no device, having begun under other settings or as an earlier build: such a one ends once its agent has ended and everything was let go of"
    } else {
        "none runs"
    };
    format!(
        "the watchdog's helper said nothing of the device for {} s ({what}): see watchdog.log in run_dir",
        limit.as_secs()
    )
}

/// What the helper has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    /// All is well.
    Well,
    /// PostgreSQL has to go.
    Kill(Kill),
}

/// PostgreSQL has to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kill {
    /// Why.
    pub why: String,
    /// Its device too, whether or not anything is left that waits for it: the lease has ended, or nobody is there to give it back.
    pub device: bool,
}

/// What the helper goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// WATCHDOG-W2: without a sign of life for longer PostgreSQL has to go, in nanoseconds.
    pub timeout_ns: u64,
    /// `lease.stop_margin_ms`: the agent begins to stop PostgreSQL so long before the lease ends (AGENT-A3), in nanoseconds.
    pub stop_margin_ns: u64,
}

impl Limits {
    /// Of these settings.
    pub fn of(config: &AgentConfig) -> Self {
        let ns = |ms: u64| ms.saturating_mul(1_000_000);
        Self { timeout_ns: ns(config.watchdog.timeout_ms), stop_margin_ns: ns(config.lease.stop_margin_ms) }
    }

    /// How long before the end of a lease of `ttl_ms` the helper acts: half of what the agent takes for itself. A look, the signals and what the kernel takes to
    /// let go of a dead device fit into the rest by default.
    fn ahead_ns(self, ttl_ms: u64) -> u64 {
        self.stop_margin_ns.min(ttl_ms.saturating_mul(1_000_000) / 2) / 2
    }
}

/// Pure: `lease_until_ns` is what attach's own last renewal gives.
fn judge(now_ns: u64, sign: Sign, lease_until_ns: u64, limits: Limits) -> Verdict {
    if sign.may_run_until_ns == 0 {
        return Verdict::Well;
    }
    let until = sign.may_run_until_ns.max(lease_until_ns);
    if now_ns > until {
        let why = format!("the lease ended {} ms ago", (now_ns - until) / 1_000_000);
        return Verdict::Kill(Kill { why, device: true });
    }
    let left = until - now_ns;
    if left < limits.ahead_ns(sign.ttl_ms) {
        let why = format!("the lease ends in {} ms and was not renewed", left / 1_000_000);
        return Verdict::Kill(Kill { why, device: false });
    }
    let silent = now_ns.saturating_sub(sign.at_ns);
    if silent > limits.timeout_ns {
        let why = format!("the agent gave no sign of life for {} ms", silent / 1_000_000);
        return Verdict::Kill(Kill { why, device: true });
    }
    Verdict::Well
}

/// Why PostgreSQL has to go at `now_ns`, if it has to (WATCHDOG-W1, WATCHDOG-W2): what the helper sees at one look. `attach_dir` is the run directory of attach.
pub fn why_kill(now_ns: u64, sign: Sign, attach_dir: &Path, limits: Limits) -> Option<Kill> {
    match judge(now_ns, sign, lease_until_ns(attach_dir, sign.ttl_ms), limits) {
        Verdict::Well => None,
        Verdict::Kill(kill) => Some(kill),
    }
}

/// Whether the helper is not needed any more: no agent, no attach that an agent left running, no PostgreSQL.
fn over(now_ns: u64, last: Option<Sign>, timeout_ns: u64, attached: bool) -> bool {
    match last {
        None => true,
        Some(Sign { at_ns: LEFT_ALONE, .. }) => !attached,
        // It let go of all: the next agent's helper may begin under other settings.
        Some(Sign { may_run_until_ns: 0, .. }) if !attached => true,
        Some(sign) => now_ns.saturating_sub(sign.at_ns) > timeout_ns,
    }
}

/// Whether one that outlived its agent may leave the next agent to a helper of its own: that one has nothing yet, or let go of all. A restart of the agent may be
/// over between two looks at its lock, and this one goes by the settings, and is the build, of before.
fn may_be_replaced(last: Option<Sign>, attached: bool) -> bool {
    last.is_some_and(|sign| sign.may_run_until_ns == 0 && !sign.guarded) && !attached
}

/// Until when attach's own last renewal lets PostgreSQL run, 0 where it says none.
fn lease_until_ns(attach_dir: &Path, ttl_ms: u64) -> u64 {
    let Some(status) = attach_process::Status::read(attach_dir).filter(|status| status.phase != "fenced") else {
        return 0;
    };
    if let Some(renewed) = status.renewed() {
        return renewed.0.saturating_add(ttl_ms.saturating_mul(1_000_000));
    }
    // By the time of day, as an attach of an earlier build says it; a clock that was set makes it wrong in either direction, within
    // WATCHDOG-W2; without bound where an agent of this build left such an attach alone in a pause.
    let Some(renewed) = status.lease_renewed_at else { return 0 };
    let left = renewed.saturating_add(ttl_ms).saturating_sub(clock::unix_ms());
    if left == 0 { 0 } else { clock::now().0.saturating_add(left.saturating_mul(1_000_000)) }
}

/// Watches over the agent of these settings, and over those that follow it while something is held, until it is gone and nothing is left of its PostgreSQL. Blocks.
///
/// # Errors
/// Another helper is there.
pub fn run(config: &AgentConfig) -> Result<(), String> {
    // The agent that started it: a process whose parent has ended has another one.
    let agent = getppid();
    let _lock = lock(&config.run_dir, HELPER_LOCK)?;
    let device = match config.watchdog.mode {
        WatchdogMode::Automatic | WatchdogMode::Required => Some(Device(config.watchdog.device.clone())),
        WatchdogMode::Off => None,
    };
    let mut guard = Guard::new(&config.run_dir, device);
    let signs = Signs::new(&config.run_dir);
    let attach_dir = config.run_dir.join("attach");
    let limits = Limits::of(config);
    let timeout_ns = limits.timeout_ns;
    let processes = process::Server::of(&config.database);
    let (mut last, mut killing) = (None::<Sign>, false);
    loop {
        let now_ns = clock::now().0;
        last = signs.last().or(last);
        let sign = last.unwrap_or(Sign { at_ns: 0, may_run_until_ns: 0, ttl_ms: 0, guarded: false });
        let lease_ns = lease_until_ns(&attach_dir, sign.ttl_ms);
        let verdict = judge(now_ns, sign, lease_ns, limits);
        let mut clear = true;
        match &verdict {
            Verdict::Kill(Kill { why, device }) => {
                // What cannot be looked at may be there.
                let there = !process::of_postgres(&processes).is_ok_and(|left| left.is_empty());
                // In a pause device and pool are a person's, who may be at work on the files: an outage is no reason to take them away.
                let left_alone = last.is_some_and(|sign| sign.at_ns == LEFT_ALONE);
                if there || *device && !left_alone && attach_process::may_run(&attach_dir) {
                    if !killing {
                        let what =
                            if left_alone { "PostgreSQL is ended" } else { "PostgreSQL and its device are ended" };
                        tracing::error!(why, "{what}");
                    }
                    killing = true;
                    // Each of them has its signal, and does nothing more, before the device begins to fail.
                    let first = process::kill_postgres(&processes, if *device { Duration::ZERO } else { DIE_LIMIT });
                    // WATCHDOG-W3: nothing is left to reset the machine for, however long its device takes to go. Looked at anew each time: an agent that goes on may start another one.
                    let fed = Wish { wanted: sign.guarded, ttl_ms: sign.ttl_ms, until_ns: None };
                    let mut meanwhile = || {
                        if process::of_postgres(&processes).is_ok_and(|left| left.is_empty()) {
                            guard.look(clock::now().0, fed);
                        }
                    };
                    if !left_alone && (*device || first.is_err()) {
                        // Those that wait on the device end only once it answers, if with an error.
                        attach_process::kill(config, &mut meanwhile);
                    }
                    clear = first.is_ok() || process::kill_postgres(&processes, KILL_LIMIT).is_ok();
                    if left_alone && !clear {
                        attach_process::kill(config, &mut meanwhile);
                    }
                }
            }
            Verdict::Well => killing = false,
        }
        // WATCHDOG-W3
        let gone = sign.may_run_until_ns == 0 || verdict != Verdict::Well && clear;
        let until_ns = (!gone).then(|| match verdict {
            Verdict::Well => sign.may_run_until_ns.max(lease_ns),
            Verdict::Kill(_) => 0,
        });
        let wish = Wish { wanted: sign.guarded, ttl_ms: sign.ttl_ms, until_ns };
        // By the clock as it is now: killing takes time.
        let now_ns = clock::now().0;
        guard.look(now_ns, wish);
        let alone = matches!(is_locked(&config.run_dir, AGENT_LOCK), Ok(false));
        let over = alone && over(now_ns, last, timeout_ns, attach_process::may_run(&attach_dir))
            || getppid() != agent && may_be_replaced(last, attach_process::may_run(&attach_dir));
        if over && process::of_postgres(&processes).is_ok_and(|left| left.is_empty()) {
            guard.let_go();
            return Ok(());
        }
        std::thread::sleep(if guard.is_urgent(now_ns, wish) { URGENT_PAUSE } else { LOOK_PAUSE });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn whether_there_is_a_helper_is_said_where_it_says_nothing() {
        let said = |helper| silent_for(Duration::from_secs(10), helper);
        assert_eq!(
            said(false),
            "the watchdog's helper said nothing of the device for 10 s (none runs): see watchdog.log in run_dir"
        );
        assert!(said(true).contains("(one runs; ") && said(true).contains("other settings"), "{}", said(true));
        assert!(said(true).contains("it hangs"), "{}", said(true));
    }

    const S: u64 = 1_000_000_000;
    const MS: u64 = 1_000_000;
    const LIMITS: Limits = Limits { timeout_ns: 10 * S, stop_margin_ns: 300 * MS };

    #[test]
    fn postgresql_may_run_while_lease_and_agent_live() {
        let sign = Sign { at_ns: 100 * S, may_run_until_ns: 103 * S, ttl_ms: 3000, guarded: false };
        assert_eq!(judge(102 * S, sign, 0, LIMITS), Verdict::Well);
        assert!(
            matches!(judge(104 * S, sign, 0, LIMITS), Verdict::Kill(kill) if kill.why.contains("lease ended 1000 ms"))
        );
        // After the agent's own stop, and before the end.
        assert_eq!(judge(103 * S - 150 * MS, sign, 0, LIMITS), Verdict::Well);
        let soon = judge(103 * S - 149 * MS, sign, 0, LIMITS);
        assert!(matches!(soon, Verdict::Kill(kill) if kill.why.contains("ends in 149 ms") && !kill.device));
        let wide = Limits { stop_margin_ns: 60 * S, ..LIMITS };
        assert_eq!(judge(103 * S - 750 * MS, sign, 0, wide), Verdict::Well, "a quarter of the lease at most");
        assert!(matches!(judge(103 * S - 749 * MS, sign, 0, wide), Verdict::Kill(_)));
        // The agent is gone, attach renews.
        assert_eq!(judge(109 * S, sign, 111 * S, LIMITS), Verdict::Well);
        assert!(
            matches!(judge(111 * S, sign, 113 * S, LIMITS), Verdict::Kill(kill) if kill.why.contains("no sign of life"))
        );
        assert_eq!(judge(999 * S, Sign { may_run_until_ns: 0, ..sign }, 0, LIMITS), Verdict::Well);
    }

    #[test]
    fn what_an_agent_left_alone_ends_with_its_lease_only() {
        let sign = Sign { at_ns: LEFT_ALONE, may_run_until_ns: 103 * S, ttl_ms: 3000, guarded: false };
        assert_eq!(Sign::parse(&sign.text()), Some(sign));
        assert_eq!(judge(999 * S, sign, 1001 * S, LIMITS), Verdict::Well);
        assert!(
            matches!(judge(104 * S, sign, 0, LIMITS), Verdict::Kill(kill) if kill.why.contains("lease ended 1000 ms"))
        );
        // The helper stays as long as there is something to guard, and ends with it.
        assert!(!over(999 * S, Some(sign), 10 * S, true));
        assert!(over(999 * S, Some(sign), 10 * S, false));
        assert!(over(999 * S, Some(Sign { at_ns: 100 * S, ..sign }), 10 * S, true));
        // An agent that let go of everything is not waited for; one that was killed under PostgreSQL is.
        let stopped = Sign { at_ns: 998 * S, may_run_until_ns: 0, ..sign };
        assert!(over(999 * S, Some(stopped), 10 * S, false));
        assert!(!over(999 * S, Some(stopped), 10 * S, true));
        assert!(!over(999 * S, Some(Sign { may_run_until_ns: 1001 * S, ..stopped }), 10 * S, false));
    }

    #[test]
    fn the_next_agent_gets_a_helper_of_its_own_where_nothing_is_held() {
        let sign = Sign { at_ns: 100 * S, may_run_until_ns: 0, ttl_ms: 3000, guarded: false };
        assert!(may_be_replaced(Some(sign), false));
        for (last, attached, why) in [
            (Some(sign), true, "attach runs"),
            (Some(Sign { guarded: true, ..sign }), false, "the machine's watchdog counts"),
            (Some(Sign { may_run_until_ns: 103 * S, ..sign }), false, "PostgreSQL may run"),
            (Some(Sign { at_ns: LEFT_ALONE, may_run_until_ns: 103 * S, ..sign }), false, "left running in a pause"),
            (None, false, "nothing is known"),
        ] {
            assert!(!may_be_replaced(last, attached), "{why}");
        }
    }

    #[test]
    fn the_lease_lasts_from_its_renewal_by_the_clock_of_leases() {
        let dir = tempfile::tempdir().unwrap();
        let (renewed, shown) = (clock::now().0.saturating_sub(60 * S), clock::unix_ms());
        let text =
            format!(r#"{{"phase":"serving","pid":1,"lease_renewed_at":{shown},"lease_renewed_boot_ns":{renewed}}}"#);
        std::fs::write(dir.path().join("status.json"), text).unwrap();
        assert_eq!(lease_until_ns(dir.path(), 3000), renewed + 3 * S);
    }

    #[test]
    fn a_sign_that_is_cut_short_is_none() {
        let sign = Sign { at_ns: 1, may_run_until_ns: 22, ttl_ms: 333, guarded: true };
        assert_eq!(Sign::parse(&sign.text()), Some(sign));
        assert_eq!(Sign::parse("1 22 33"), None);
        // Of an earlier build.
        assert_eq!(Sign::parse("1 22 333\n"), Some(Sign { guarded: false, ..sign }));
        assert_eq!(Sign::parse("1 22\n"), None);
    }

    /// The lease of a paused host ended in an outage. A person may be at work on the files: only PostgreSQL goes.
    #[test]
    fn what_was_left_alone_in_a_pause_keeps_its_device() {
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
        for (at_ns, keeps) in [(LEFT_ALONE, true), (1, false)] {
            let dir = tempfile::tempdir().unwrap();
            let mut config = AgentConfig { run_dir: dir.path().into(), ..AgentConfig::default() };
            config.watchdog.kind = crate::config::WatchdogKind::Helper;
            config.database.data = dir.path().join("data");
            let (attach_dir, postgres) = (dir.path().join("attach"), dir.path().join("postgres"));
            std::fs::create_dir_all(&attach_dir).unwrap();
            std::fs::create_dir_all(&config.database.data).unwrap();
            // A link, not a copy: what was just written cannot be run while a child of another test still has it open.
            std::os::unix::fs::symlink("/bin/sleep", &postgres).unwrap();
            let mut attach = Command::new("/bin/sleep").arg("1000").spawn().unwrap();
            let _held = lock(&attach_dir, "attach.lock").unwrap();
            std::fs::write(attach_dir.join("attach.lock"), attach.id().to_string()).unwrap();
            let mut server = Command::new(&postgres).arg("1000").current_dir(&config.database.data).spawn().unwrap();
            let signs = Signs::new(dir.path());
            signs.give(Sign { at_ns, may_run_until_ns: 1, ttl_ms: 3000, guarded: false });
            let helper = std::thread::spawn(move || run(&config));
            assert!(ended(&mut server), "PostgreSQL is ended in any case");
            if !keeps {
                assert!(ended(&mut attach), "without a pause the device goes too");
            }
            // Nothing is guarded any more, and no agent is there: the helper ends, after the look in which it ended PostgreSQL.
            signs.give(Sign { at_ns: 1, may_run_until_ns: 0, ttl_ms: 3000, guarded: false });
            helper.join().unwrap().unwrap();
            assert_eq!(attach.try_wait().unwrap().is_none(), keeps, "at {at_ns}");
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

    /// Anybody who could open the file could hold its lock, and would pass for the helper.
    #[test]
    fn nobody_else_may_hold_a_lock() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(HELPER_LOCK);
        let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        drop(lock(dir.path(), HELPER_LOCK).unwrap());
        assert_eq!(mode(), 0o600);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        drop(lock(dir.path(), HELPER_LOCK).unwrap());
        assert_eq!(mode(), 0o600, "one of an earlier build");
    }

    /// The helper looks at the agent's lock ten times a second, the agent at the helper's: neither may keep the other from its start.
    #[test]
    fn who_only_looks_at_a_lock_keeps_nobody_out() {
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
