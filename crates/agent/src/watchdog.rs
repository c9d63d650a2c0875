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
pub use device::looked_at as device_looked_at;
use guard::Shown;
pub use helper::run;
use holdfast_host::lock::is_locked;
use holdfast_host::rewritten::{self, Rewritten};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Time between two looks while the machine's watchdog counts down and is not fed.
const URGENT_PAUSE: Duration = Duration::from_millis(20);

/// How long the helper may take to open the machine's watchdog. The helper is started within a second if it is not
/// there, and tries once a second, on a busy machine later. A takeover that fails for this costs more than the wait.
const ARM_LIMIT: Duration = Duration::from_secs(10);

/// [`Sign::at_ns`] of an agent that ended and left PostgreSQL running: no further sign is expected.
pub const LEFT_ALONE: u64 = u64::MAX;

/// A sign of life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sign {
    /// When, in nanoseconds of CLOCK_BOOTTIME, or [`LEFT_ALONE`].
    pub at_ns: u64,
    /// Until when PostgreSQL may run, likewise; 0 if it does not run.
    pub may_run_until_ns: u64,
    /// How long the lease lasts, in milliseconds.
    pub ttl_ms: u64,
    /// The machine's watchdog must count down.
    pub guarded: bool,
}

impl Sign {
    fn text(self) -> String {
        format!("{} {} {} {}\n", self.at_ns, self.may_run_until_ns, self.ttl_ms, u64::from(self.guarded))
    }

    /// An agent of an earlier build does not write this field; a helper may outlive its agent.
    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split_once('\n')?.0.split(' ').map(|word| word.parse::<u64>().ok());
        let (at_ns, may_run_until_ns, ttl_ms) = (numbers.next()??, numbers.next()??, numbers.next()??);
        Some(Self { at_ns, may_run_until_ns, ttl_ms, guarded: numbers.next().is_some_and(|number| number == Some(1)) })
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
        match self.file.write(sign.text().as_bytes()) {
            Ok(()) => self.complained.store(false, Ordering::Relaxed),
            Err(error) if !self.complained.swap(true, Ordering::Relaxed) => {
                tracing::error!(path = %self.file.path().display(), %error, "no sign of life can be given: the watchdog will stop PostgreSQL");
            }
            Err(_) => {}
        }
    }

    fn last(&self) -> Option<Sign> {
        Sign::parse(&String::from_utf8(rewritten::read(self.file.path()).ok()?).ok()?)
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
        "one runs; it hangs, or it began with other settings or as an earlier build and knows no device: then it ends once its agent has ended and everything was released"
    } else {
        "none runs"
    };
    format!(
        "found no report of the watchdog's helper about the device for {} s ({what}), expected one: see watchdog.log in run_dir",
        limit.as_secs()
    )
}

/// The helper's next step.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    /// Nothing.
    Well,
    /// End PostgreSQL.
    Kill(Kill),
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
    /// WATCHDOG-W2: after this time without a sign of life PostgreSQL must end, in nanoseconds.
    pub timeout_ns: u64,
    /// `lease.stop_margin_ms`: the agent begins to stop PostgreSQL this long before the lease ends (AGENT-A3), in
    /// nanoseconds.
    pub stop_margin_ns: u64,
}

impl Limits {
    /// Of these settings.
    pub fn of(config: &AgentConfig) -> Self {
        let ns = |ms: u64| ms.saturating_mul(1_000_000);
        Self { timeout_ns: ns(config.watchdog.timeout_ms), stop_margin_ns: ns(config.lease.stop_margin_ms) }
    }

    /// How long before the end of a lease of `ttl_ms` the helper acts: half of the agent's own margin. By default the
    /// rest is enough for one look, the signals, and the kernel's release of a dead device.
    fn ahead_ns(self, ttl_ms: u64) -> u64 {
        self.stop_margin_ns.min(ttl_ms.saturating_mul(1_000_000) / 2) / 2
    }
}

/// Pure. `lease_until_ns`: the end of the lease by attach's own last renewal.
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

/// Reason why PostgreSQL must end at `now_ns`, if there is one (WATCHDOG-W1, WATCHDOG-W2), as the helper finds at one
/// look. `attach_dir` is attach's run directory.
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
        // The agent released everything: the next agent's helper may begin, with other settings.
        Some(Sign { may_run_until_ns: 0, .. }) if !attached => true,
        Some(sign) => now_ns.saturating_sub(sign.at_ns) > timeout_ns,
    }
}

/// Whether a helper that outlived its agent may leave the next agent to a new helper: that agent has nothing yet, or
/// released everything. An agent may restart between two looks at its lock, and this helper has the settings and the
/// build of before.
fn may_be_replaced(last: Option<Sign>, attached: bool) -> bool {
    last.is_some_and(|sign| sign.may_run_until_ns == 0 && !sign.guarded) && !attached
}

/// Until when attach's own last renewal lets PostgreSQL run; 0 if attach reports none.
fn lease_until_ns(attach_dir: &Path, ttl_ms: u64) -> u64 {
    let Some(status) = attach_process::Status::read(attach_dir).filter(|status| status.phase != "fenced") else {
        return 0;
    };
    if let Some(renewed) = status.renewed() {
        return renewed.0.saturating_add(ttl_ms.saturating_mul(1_000_000));
    }
    // An attach of an earlier build reports wall-clock time. A clock that was set makes it wrong in either direction,
    // by at most WATCHDOG-W2's limit; without limit if an agent of this build left such an attach running in a pause.
    let Some(renewed) = status.lease_renewed_at else { return 0 };
    let left = renewed.saturating_add(ttl_ms).saturating_sub(clock::unix_ms());
    if left == 0 { 0 } else { clock::now().0.saturating_add(left.saturating_mul(1_000_000)) }
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
        // After the agent's own stop, and before the lease ends.
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
    fn a_postgresql_left_alone_ends_with_its_lease_only() {
        let sign = Sign { at_ns: LEFT_ALONE, may_run_until_ns: 103 * S, ttl_ms: 3000, guarded: false };
        assert_eq!(Sign::parse(&sign.text()), Some(sign));
        assert_eq!(judge(999 * S, sign, 1001 * S, LIMITS), Verdict::Well);
        assert!(
            matches!(judge(104 * S, sign, 0, LIMITS), Verdict::Kill(kill) if kill.why.contains("lease ended 1000 ms"))
        );
        // The helper stays as long as there is something to guard, then it ends.
        assert!(!over(999 * S, Some(sign), 10 * S, true));
        assert!(over(999 * S, Some(sign), 10 * S, false));
        assert!(over(999 * S, Some(Sign { at_ns: 100 * S, ..sign }), 10 * S, true));
        // The helper does not wait for an agent that released everything. It waits for one that was killed while
        // PostgreSQL ran.
        let stopped = Sign { at_ns: 998 * S, may_run_until_ns: 0, ..sign };
        assert!(over(999 * S, Some(stopped), 10 * S, false));
        assert!(!over(999 * S, Some(stopped), 10 * S, true));
        assert!(!over(999 * S, Some(Sign { may_run_until_ns: 1001 * S, ..stopped }), 10 * S, false));
    }

    #[test]
    fn the_next_agent_gets_its_own_helper_if_nothing_is_held() {
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
    fn a_sign_that_is_cut_short_is_not_read() {
        let sign = Sign { at_ns: 1, may_run_until_ns: 22, ttl_ms: 333, guarded: true };
        assert_eq!(Sign::parse(&sign.text()), Some(sign));
        assert_eq!(Sign::parse("1 22 33"), None);
        // From an earlier build.
        assert_eq!(Sign::parse("1 22 333\n"), Some(Sign { guarded: false, ..sign }));
        assert_eq!(Sign::parse("1 22\n"), None);
    }

    /// REWRITE-F2: a healthy PostgreSQL was ended because /run was full.
    #[test]
    fn signs_are_given_on_a_full_file_system() {
        let dir = tempfile::tempdir().unwrap();
        let signs = Signs::new(dir.path());
        let sign = |at_ns| Sign { at_ns, may_run_until_ns: 2 * at_ns, ttl_ms: 3000, guarded: true };
        signs.give(sign(1_000_000));
        // No new file can be made, under the name of this build or of an earlier one.
        for name in ["watchdog.next", "watchdog.sign.new"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        // Also shorter ones than before.
        for at_ns in [1_000_001, 9, 1_000_002, 10] {
            signs.give(sign(at_ns));
            assert_eq!(signs.last(), Some(sign(at_ns)));
        }
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
        for (at_ns, keeps) in [(LEFT_ALONE, true), (1, false)] {
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
            signs.give(Sign { at_ns, may_run_until_ns: 1, ttl_ms: 3000, guarded: false });
            let helper = std::thread::spawn(move || run(&config));
            assert!(ended(&mut server), "PostgreSQL is ended in any case");
            if !keeps {
                assert!(ended(&mut attach), "without a pause the device goes too");
            }
            // Nothing is guarded any more, and no agent is there: the helper ends, after the look in which it ended
            // PostgreSQL.
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

    /// Any user who could open the file could hold its lock, and would count as the helper.
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
