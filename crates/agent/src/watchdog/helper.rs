//! The helper process: looks at the agent's signs, ends PostgreSQL if it must, and feeds the machine's watchdog.

use super::device::Device;
use super::guard::{Guard, LOOK_PAUSE, Wish};
use super::{
    AGENT_LOCK, HELPER_LOCK, Kill, Limits, Sign, Signs, URGENT_PAUSE, judge, lease_until, may_be_replaced, over,
};
use crate::config::{AgentConfig, WatchdogMode};
use crate::process::Processes;
use crate::{attach_process, clock};
use holdfast_host::lock::{is_locked, lock};
use holdfast_types::MonoTime;
use rustix::process::{Pid, getppid};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long killed processes may take to disappear, if they do not wait for a device.
const DIE_LIMIT: Duration = Duration::from_millis(20);

/// Limit of one round of SIGKILL.
const KILL_LIMIT: Duration = Duration::from_secs(1);

/// Watches the agent of these settings, and the agents that follow it while something is held, until no agent and
/// nothing of its PostgreSQL is left. Blocks.
///
/// # Errors
/// Another helper runs.
pub fn run(config: &AgentConfig) -> Result<(), String> {
    // Our parent is the agent that started us. A process whose parent has ended has another parent.
    let agent = getppid();
    let _lock = lock(&config.run_dir, HELPER_LOCK)?;
    let mut helper = Helper::new(config, agent);
    while let Some(pause) = helper.look() {
        std::thread::sleep(pause);
    }
    Ok(())
}

struct Helper<'a> {
    config: &'a AgentConfig,
    /// The agent that started this process.
    agent: Option<Pid>,
    attach_dir: PathBuf,
    limits: Limits,
    processes: Processes,
    signs: Signs,
    guard: Guard<Device>,
    /// The last sign that could be read.
    last: Option<Sign>,
    /// The end of PostgreSQL was logged.
    killing: bool,
    /// During that end: when the whole control group of a service had SIGKILL.
    struck: Option<Instant>,
}

impl<'a> Helper<'a> {
    fn new(config: &'a AgentConfig, agent: Option<Pid>) -> Self {
        let device = match config.watchdog.mode {
            WatchdogMode::Automatic | WatchdogMode::Required => Some(Device(config.watchdog.device.clone())),
            WatchdogMode::Off => None,
        };
        Self {
            config,
            agent,
            attach_dir: config.run_dir.join("attach"),
            limits: Limits::of(config),
            processes: Processes::of(config),
            signs: Signs::new(&config.run_dir),
            guard: Guard::new(&config.run_dir, device),
            last: None,
            killing: false,
            struck: None,
        }
    }

    /// Looks once, and does what is due. Returns the pause until the next look, `None` if the helper is not needed any
    /// more.
    fn look(&mut self) -> Option<Duration> {
        let now = clock::now();
        self.last = self.signs.last().or(self.last);
        let nothing = Sign { at: Some(MonoTime(0)), may_run_until: None, ttl_ms: 0, guarded: false };
        let sign = self.last.unwrap_or(nothing);
        let lease_until = lease_until(&self.attach_dir, sign.ttl_ms);
        // WATCHDOG-W3
        let until = match judge(now, sign, lease_until, self.limits) {
            Some(kill) if self.end(&kill, sign) => None,
            // Not fed any more.
            Some(_) => Some(MonoTime(0)),
            None => {
                (self.killing, self.struck) = (false, None);
                sign.until(lease_until)
            }
        };
        let wish = Wish { wanted: sign.guarded, ttl_ms: sign.ttl_ms, until_ns: until.map(|until| until.0) };
        // Reads the clock again: killing takes time.
        let now = clock::now();
        self.guard.look(now.0, wish);
        if self.is_over(now) && self.none_is_left() {
            self.guard.let_go();
            return None;
        }
        Some(if self.guard.is_urgent(now.0, wish) { URGENT_PAUSE } else { LOOK_PAUSE })
    }

    fn none_is_left(&self) -> bool {
        self.processes.none_is_left()
    }

    fn is_over(&self, now: MonoTime) -> bool {
        let attached = || attach_process::may_run(&self.attach_dir);
        let alone = matches!(is_locked(&self.config.run_dir, AGENT_LOCK), Ok(false));
        alone && over(now, self.last, self.limits.timeout, attached())
            || getppid() != self.agent && may_be_replaced(self.last, attached())
    }

    /// Ends PostgreSQL, and its device if that is due. Returns whether nothing of PostgreSQL is left.
    fn end(&mut self, kill: &Kill, sign: Sign) -> bool {
        let Kill { why, device } = kill;
        // Processes that cannot be inspected may be there.
        let there = !self.none_is_left();
        // In a pause device and pool are an operator's, who may be at work on the files: an outage is no reason to take
        // them away.
        let left_alone = self.last.is_some_and(|sign| sign.at.is_none());
        if !there && (!*device || left_alone || !attach_process::may_run(&self.attach_dir)) {
            return true;
        }
        if !self.killing {
            let runs = self.config.workload();
            let what = if left_alone { "is ended" } else { "and its device are ended" };
            tracing::error!(why, "{runs} {what}");
        }
        self.killing = true;
        if sign.guarded {
            // The machine is reset if anything is left when the lease ends: no last command of a unit has time then.
            self.struck = None;
        }
        let Self { config, processes, guard, struck, .. } = self;
        // Each of them has its signal, and does nothing more, before the device begins to fail.
        let first = processes.kill(if *device { Duration::ZERO } else { DIE_LIMIT }, struck);
        // WATCHDOG-W3: with nothing left there is no reason to reset the machine, however long its device takes to go.
        // Inspected anew each time: an agent that goes on may start another one.
        let fed = Wish { wanted: sign.guarded, ttl_ms: sign.ttl_ms, until_ns: None };
        let mut meanwhile = || {
            if processes.none_is_left() {
                guard.look(clock::now().0, fed);
            }
        };
        if !left_alone && (*device || first.is_err()) {
            // Processes that wait for the device end only once it answers, if only with an error.
            attach_process::kill(config, &mut meanwhile);
        }
        if sign.guarded {
            *struck = None;
        }
        let clear = first.is_ok() || processes.kill(KILL_LIMIT, struck).is_ok();
        if left_alone && !clear {
            attach_process::kill(config, &mut meanwhile);
        }
        clear
    }
}

#[cfg(test)]
mod tests {
    use super::super::device::Dog;
    use super::*;
    use std::cell::Cell;
    use std::fs::File;
    use std::process::Command;
    use std::rc::Rc;

    /// A watchdog that counts how often it is fed.
    struct Fed(Rc<Cell<u32>>);

    impl Dog for Fed {
        fn set_timeout(&mut self, seconds: u32) -> Result<u32, String> {
            Ok(seconds)
        }

        fn feed(&mut self) -> Result<(), String> {
            self.0.set(self.0.get() + 1);
            Ok(())
        }

        fn let_go(self: Box<Self>) -> Result<(), String> {
            Ok(())
        }
    }

    /// GUARD-G1: a look may take long. Here attach's status cannot be read at once, so the time goes by in which the
    /// device may be fed. By the time at the begin of the look it would be fed, and fire after the lease has ended.
    #[test]
    fn a_look_that_takes_long_does_not_feed_the_device_too_late() {
        let dir = tempfile::tempdir().unwrap();
        let config = AgentConfig { run_dir: dir.path().into(), ..AgentConfig::default() };
        let (mut helper, fed) = (Helper::new(&config, getppid()), Rc::new(Cell::new(0)));
        // Two thirds of a lease of 30 s.
        helper.guard = Guard::<Device>::opened(dir.path(), Box::new(Fed(fed.clone())), 20);
        let (attach, signs) = (dir.path().join("attach"), Signs::new(dir.path()));
        let status = attach.join("status.json");
        std::fs::create_dir(&attach).unwrap();
        assert!(Command::new("mkfifo").arg(&status).status().unwrap().success());
        // Who reads it waits for as long as it is open for writing.
        let held = File::options().read(true).write(true).open(&status).unwrap();
        let begun = clock::now();
        let late = begun.saturating_add(Duration::from_millis(600));
        let until = late.saturating_add(Duration::from_secs(20));
        let sign = Sign { at: Some(begun), may_run_until: Some(until), ttl_ms: 30_000, guarded: true };
        signs.give(sign);
        let holder = std::thread::spawn(move || {
            while clock::now() < late {
                std::thread::sleep(Duration::from_millis(5));
            }
            drop(held);
        });
        assert!(helper.look().is_some(), "it goes on");
        holder.join().unwrap();
        assert_eq!(fed.get(), 0, "it would fire after the lease has ended");
        // With enough of the lease left it is fed.
        std::fs::remove_file(&status).unwrap();
        let now = clock::now();
        signs.give(Sign { at: Some(now), may_run_until: Some(now.saturating_add(Duration::from_secs(30))), ..sign });
        assert!(helper.look().is_some(), "it goes on");
        assert_eq!(fed.get(), 1);
    }
}
