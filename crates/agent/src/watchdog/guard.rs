//! When the helper opens, feeds and closes the machine's watchdog device. [`super::device`] talks to the device itself.
//!
//! - GUARD-G1  While PostgreSQL may be running, the device is fed only if it then fires before the lease could end for
//!   others. To open it and to set its timeout feed it too.
//! - GUARD-G2  The open device has a timeout of at most two thirds of a lease. If it takes no such timeout, it is
//!   closed at once, and under `required` nothing is started.
//! - GUARD-G3  The device is closed only once the agent does not want it any more and nothing of PostgreSQL is left. A
//!   helper that dies closes nothing.
//!
//! The device's timeout alone would fire too late: it counts from the last feed. So the last renewal of the lease
//! counts, and feeding stops `timeout` ahead of the lease's end. By then AGENT-A3 has begun to stop PostgreSQL, which
//! has time to end; once it is gone the device is fed again.

use super::device::{Dog, Kennel};
use holdfast_host::rewritten::{self, Rewritten};
use std::path::Path;
use std::time::Duration;

/// Time between two looks of the helper. Below a second: [`Guard::is_urgent`] computes with its nanoseconds.
pub const LOOK_PAUSE: Duration = Duration::from_millis(100);
const _: () = assert!(LOOK_PAUSE.as_secs() == 0);

/// File below the run directory with the device's state, for the agent and for people.
const SHOWN: &str = "watchdog.device";

/// Its content while the device is not used. The file stays: it can be written on a full file system then (REWRITE-F2),
/// and an agent waits for a state before it starts PostgreSQL.
const OFF: &str = "off\n";

/// Margin before the end of a lease: how late the kernel and this process may be.
const SLACK_NS: u64 = 50_000_000;

/// Pause between two attempts to open the device.
const RETRY_NS: u64 = 1_000_000_000;

const S: u64 = 1_000_000_000;

/// State of the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown {
    /// It counts down, and fires after this many seconds without a feed.
    Armed(u32),
    /// The reason why it does not.
    Refused(String),
}

impl Shown {
    fn text(&self) -> String {
        match self {
            Shown::Armed(seconds) => format!("armed {seconds}\n"),
            Shown::Refused(why) => format!("refused {}\n", why.replace('\n', " ")),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        match text.split_once('\n')?.0.split_once(' ')? {
            ("armed", seconds) => seconds.parse().ok().map(Shown::Armed),
            ("refused", why) => Some(Shown::Refused(why.to_string())),
            _ => None,
        }
    }

    /// The state that a helper wrote into this run directory, if any.
    pub fn read(run_dir: &Path) -> Option<Self> {
        Self::parse(&String::from_utf8(rewritten::read(&run_dir.join(SHOWN)).ok()?).ok()?)
    }
}

/// Pure (GUARD-G2): the timeout in seconds for leases of this length. With two thirds of a lease the device is fed in
/// the first third after each renewal. Attach renews six times in a lease, so one late renewal does no harm.
///
/// # Errors
/// The lease is too short: the device counts in whole seconds.
fn timeout_s(ttl_ms: u64) -> Result<u32, String> {
    match u32::try_from(ttl_ms.saturating_mul(2) / 3000).unwrap_or(u32::MAX) {
        0 => Err(format!(
            "found a lease of {ttl_ms} ms, expected 1500 ms at least: a watchdog device counts in seconds, and has to fire before the lease ends (attach.args, --ttl)"
        )),
        seconds => Ok(seconds),
    }
}

/// Pure (GUARD-G1). `until_ns`: the end of the lease, `None` if nothing of PostgreSQL is left.
fn may_feed(now_ns: u64, until_ns: Option<u64>, timeout_s: u32) -> bool {
    let fires = now_ns.saturating_add(u64::from(timeout_s) * S).saturating_add(SLACK_NS);
    until_ns.is_none_or(|until| fires <= until)
}

/// Pure (GUARD-G1): whether the device may be given the timeout for leases of this length, which feeds it. A length for
/// which it has none is reported, not obeyed.
fn may_set(now_ns: u64, wish: Wish) -> bool {
    timeout_s(wish.ttl_ms).map_or(true, |timeout_s| may_feed(now_ns, wish.until_ns, timeout_s))
}

/// The agent's wish and the limit from the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// The host is, or is about to become, primary.
    pub wanted: bool,
    /// How long its leases last, in milliseconds.
    pub ttl_ms: u64,
    /// Until when PostgreSQL may run; `None` if nothing of it is left.
    pub until_ns: Option<u64>,
}

/// The device while it is open.
struct Open {
    dog: Box<dyn Dog>,
    /// Seconds without a feed after which it fires.
    timeout: u32,
    /// The requested timeout: some devices take a shorter one. Not requested again: that would feed the device
    /// (GUARD-G1).
    asked: u32,
}

/// The device, open or not.
pub struct Guard<K: Kennel> {
    kennel: Option<K>,
    shown_at: Rewritten,
    open: Option<Open>,
    shown: Option<Shown>,
    /// The file has this state. Otherwise it is written again at the next look.
    kept: bool,
    retry_ns: u64,
}

impl<K: Kennel> Guard<K> {
    /// Nothing is opened yet; without a kennel nothing ever is. What an earlier helper wrote counts no more.
    pub fn new(run_dir: &Path, kennel: Option<K>) -> Self {
        let shown_at = Rewritten::new(run_dir.join(SHOWN));
        let cleared = match &kennel {
            Some(_) => shown_at.write(OFF.as_bytes()).or_else(|_| shown_at.remove()),
            None => shown_at.remove(),
        };
        if let Err(error) = cleared {
            tracing::warn!(path = %shown_at.path().display(), %error, "cannot remove the state of an earlier helper");
        }
        Self { kennel, shown_at, open: None, shown: None, kept: true, retry_ns: 0 }
    }

    fn show(&mut self, shown: Option<Shown>) {
        let anew = self.shown != shown;
        if !anew && self.kept {
            return;
        }
        match &shown {
            Some(Shown::Armed(seconds)) if anew => tracing::info!(seconds, "the machine's watchdog is armed"),
            Some(Shown::Refused(why)) if anew => tracing::error!(why, "the machine's watchdog cannot be used"),
            _ => {}
        }
        let text = shown.as_ref().map_or_else(|| OFF.to_string(), Shown::text);
        // In a file of its own: the agent writes its signs at the same time.
        let done = self.shown_at.write(text.as_bytes());
        self.kept = done.is_ok();
        if let Err(error) = done
            && anew
        {
            tracing::error!(path = %self.shown_at.path().display(), %error, "cannot write the watchdog's state");
        }
        self.shown = shown;
    }

    /// Opens it with the timeout for leases of this length (GUARD-G2).
    fn open(kennel: &K, ttl_ms: u64) -> Result<Open, String> {
        let wanted = timeout_s(ttl_ms)?;
        let mut dog = kennel.open()?;
        let why = match dog.set_timeout(wanted) {
            Ok(got) if (1..=wanted).contains(&got) => return Ok(Open { dog, timeout: got, asked: wanted }),
            Ok(got) => format!(
                "found a timeout of {got} s, expected {wanted} s at most with leases of {ttl_ms} ms: longer leases (attach.args, --ttl), or another device"
            ),
            Err(why) => why,
        };
        Err(dog.let_go().err().map_or(why.clone(), |and| format!("{why}; {and}")))
    }

    /// Opens, feeds or closes the device as wanted.
    pub fn look(&mut self, now_ns: u64, wish: Wish) {
        let Some(kennel) = &self.kennel else { return };
        match (&mut self.open, wish.wanted) {
            // A helper before this one may have left it counting, and it is about to fire.
            (None, true) if now_ns >= self.retry_ns && may_set(now_ns, wish) => {
                self.retry_ns = now_ns.saturating_add(RETRY_NS);
                match Self::open(kennel, wish.ttl_ms) {
                    Ok(open) => {
                        let shown = Shown::Armed(open.timeout);
                        self.open = Some(open);
                        self.show(Some(shown));
                    }
                    Err(why) => self.show(Some(Shown::Refused(why))),
                }
            }
            // The length of the leases has changed. The timeout that the device took counts; a device that takes no
            // shorter one is fed for a shorter time (GUARD-G1).
            (Some(open), true)
                if now_ns >= self.retry_ns
                    && may_set(now_ns, wish)
                    && timeout_s(wish.ttl_ms).is_ok_and(|wanted| wanted != open.asked) =>
            {
                self.retry_ns = now_ns.saturating_add(RETRY_NS);
                if let Ok(wanted) = timeout_s(wish.ttl_ms)
                    && let Ok(taken) = open.dog.set_timeout(wanted)
                {
                    (open.timeout, open.asked) = (taken, wanted);
                    self.show(Some(Shown::Armed(taken)));
                }
            }
            (Some(_), false) if wish.until_ns.is_none() => self.let_go(),
            (None, false) => self.show(None),
            _ => {}
        }
        let Some(Open { dog, timeout, .. }) = &mut self.open else { return };
        if may_feed(now_ns, wish.until_ns, *timeout) {
            let shown = dog.feed().map_or_else(Shown::Refused, |()| Shown::Armed(*timeout));
            self.show(Some(shown));
        }
    }

    /// Ends the count. If the caller ends itself, it must keep GUARD-G3.
    pub fn let_go(&mut self) {
        let Some(open) = self.open.take() else { return };
        match open.dog.let_go() {
            Ok(()) => {
                tracing::info!("the machine's watchdog is disarmed");
                self.show(None);
            }
            Err(why) => self.show(Some(Shown::Refused(why))),
        }
    }

    /// The next look must be soon: the lease is about to end, and PostgreSQL may be gone at any moment. Also if the
    /// last feed would come before a normal look: the device would fire earlier by that much, and PostgreSQL would have
    /// less time to end.
    pub fn is_urgent(&self, now_ns: u64, wish: Wish) -> bool {
        let next_ns = now_ns.saturating_add(u64::from(LOOK_PAUSE.subsec_nanos()));
        self.open.as_ref().is_some_and(|open| !may_feed(next_ns, wish.until_ns, open.timeout))
    }
}

#[cfg(test)]
#[path = "guard_tests.rs"]
mod tests;
