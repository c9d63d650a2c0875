//! The machine and the targets of its actions: lanes, clients, and the keeper, which does all slow work.
//!
//! LOCKS-H1  Actions are carried out under the machine's lock, in the machine's order: the first decision is queued
//!     first.
//! LOCKS-H2  Order of locks: the machine's, then a lane's or a client's. No caller takes the machine's while holding
//!     one of those.

use crate::client_replies::ClientReplies;
use crate::lane::Line;
use crate::machine::{Action, Lane, Machine, Moment, VolumeFacts};
use crate::outbox::Outbox;
use holdfast_types::sync::{LockExt, RwLockExt};
use holdfast_types::{Epoch, MonoTime, Name, SteadyClock};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

const NS_PER_MS: u64 = 1_000_000;

/// The sockets of one incarnation: they close when it is cancelled.
#[derive(Debug)]
struct Era {
    incarnation: u64,
    stop: CancellationToken,
}

struct Inner {
    machine: Machine,
    lanes: BTreeMap<(usize, u8), Arc<Outbox<Line>>>,
    clients: BTreeMap<u64, Arc<Outbox<ClientReplies>>>,
    next_client: u64,
    era: Era,
    scratch: Vec<Action>,
}

/// What all tasks of an attached set share.
pub(crate) struct Shared {
    pub(crate) set: Name,
    /// The machine's clock of leases, in nanoseconds.
    boot_ns: fn() -> u64,
    /// What was read of it: if it goes back, all timers here go on from where they were.
    read: Mutex<SteadyClock>,
    /// Start of this process, by that clock.
    begun_ns: u64,
    inner: Mutex<Inner>,
    volumes: RwLock<Vec<(VolumeFacts, Arc<Notify>)>>,
    /// Later shrinks have a higher epoch than this; 0: not known.
    cuts_seen: AtomicU64,
    /// Actions that take time or need other processes.
    keeper: mpsc::UnboundedSender<Action>,
}

impl Shared {
    pub(crate) fn new(
        set: Name,
        machine: Machine,
        boot_ns: fn() -> u64,
    ) -> (Arc<Self>, mpsc::UnboundedReceiver<Action>) {
        let (keeper, told) = mpsc::unbounded_channel();
        let inner = Inner {
            machine,
            lanes: BTreeMap::new(),
            clients: BTreeMap::new(),
            next_client: 0,
            era: Era { incarnation: 0, stop: CancellationToken::new() },
            scratch: Vec::new(),
        };
        let (inner, volumes) = (Mutex::new(inner), RwLock::default());
        let cuts_seen = AtomicU64::new(0);
        let mut read = SteadyClock::new();
        let begun_ns = read.read(MonoTime(boot_ns())).now.0;
        let read = Mutex::new(read);
        (Arc::new(Self { set, boot_ns, read, begun_ns, inner, volumes, cuts_seen, keeper }), told)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.locked()
    }

    /// Now, by this process and by the machine, in nanoseconds. They differ once the machine's clock has gone back.
    fn read(&self) -> (u64, u64) {
        let mut read = self.read.locked();
        let machine = (self.boot_ns)();
        (read.read(MonoTime(machine)).now.0, machine)
    }

    /// Present time, in milliseconds of this process. Never runs backwards.
    pub(crate) fn now(&self) -> Moment {
        Moment(self.read().0.saturating_sub(self.begun_ns) / NS_PER_MS)
    }

    /// A moment by the machine's clock as it is now, for other processes of this machine.
    pub(crate) fn boot_ns(&self, at: Moment) -> u64 {
        let (now, machine) = self.read();
        let at = self.begun_ns.saturating_add(at.0.saturating_mul(NS_PER_MS));
        machine.saturating_sub(now.saturating_sub(at))
    }

    /// The volumes, known once the lease was granted. Afterwards they only grow.
    pub(crate) fn set_volumes(&self, facts: &[VolumeFacts]) {
        let mut volumes = self.volumes.writing();
        if volumes.is_empty() {
            volumes.extend(facts.iter().map(|facts| (facts.clone(), Arc::new(Notify::new()))));
        }
    }

    pub(crate) fn all_facts(&self) -> Vec<VolumeFacts> {
        let volumes = self.volumes.reading();
        volumes.iter().map(|(facts, _)| facts.clone()).collect()
    }

    pub(crate) fn facts(&self, volume: usize) -> VolumeFacts {
        self.volumes.reading()[volume].0.clone()
    }

    /// A volume's present size: requests up to there are accepted.
    pub(crate) fn size(&self, volume: usize) -> u64 {
        self.volumes.reading()[volume].0.size
    }

    /// From now on requests up to the new end are accepted, and new clients see it. Never shrinks.
    pub(crate) fn grow(&self, volume: usize, size: u64) {
        let mut volumes = self.volumes.writing();
        if let Some((facts, _)) = volumes.get_mut(volume) {
            facts.size = facts.size.max(size);
        }
    }

    /// The place in the log up to which shrinks were checked. No device has a size from a later place (GROWTH-G5), so
    /// read this after the sizes. `None` before the first grant, because an earlier process, whose devices these may
    /// be, has not stored it.
    pub(crate) fn cuts_seen(&self) -> Option<Epoch> {
        Some(Epoch(self.cuts_seen.load(Ordering::Acquire))).filter(|seen| *seen > Epoch(0))
    }

    /// Shrinks up to here were checked: devices that continue have lost nothing.
    pub(crate) fn saw_cuts(&self, upto: Epoch) {
        self.cuts_seen.fetch_max(upto.0, Ordering::AcqRel);
    }

    /// Notified when a volume may have room again.
    pub(crate) fn room(&self, volume: usize) -> Arc<Notify> {
        self.volumes.reading()[volume].1.clone()
    }

    pub(crate) fn has_room(&self, volume: usize) -> bool {
        self.lock().machine.has_room(volume)
    }

    /// Reads the machine.
    pub(crate) fn look<R>(&self, look: impl FnOnce(&Machine) -> R) -> R {
        look(&self.lock().machine)
    }

    /// Gives the machine an input and carries out its actions.
    pub(crate) fn act(&self, tell: impl FnOnce(&mut Machine, Moment, &mut Vec<Action>)) {
        let now = self.now();
        let mut inner = self.lock();
        let mut out = std::mem::take(&mut inner.scratch);
        tell(&mut inner.machine, now, &mut out);
        for action in out.drain(..) {
            self.perform(&mut inner, action);
        }
        inner.scratch = out;
    }

    fn perform(&self, inner: &mut Inner, action: Action) {
        match action {
            Action::Send { lane, out, data } => {
                let line = inner.lanes.get(&(lane.volume, lane.slot));
                // A lane that is gone by now is lost; its own task is about to report that.
                let Some(line) = line else { return };
                let unfit = line.with(|line| if line.lane == lane { line.send(&out, data).err() } else { None });
                debug_assert!(unfit.is_none(), "our gateways speak extended headers");
            }
            Action::Answer { ticket, outcome } => {
                // CLIENT-F2.
                let Some(replies) = inner.clients.get(&ticket.client) else { return };
                replies.with(|replies| replies.answer(&ticket, outcome));
            }
            Action::Room { volume } => self.room(volume).notify_waiters(),
            Action::Shut { incarnation } => {
                if inner.era.incarnation <= incarnation {
                    inner.era.stop.cancel();
                    inner.lanes.clear();
                }
            }
            other => {
                let _ = self.keeper.send(other);
            }
        }
    }

    /// The token that closes the sockets of `incarnation`; `None` if that has ended.
    pub(crate) fn era(&self, incarnation: u64) -> Option<CancellationToken> {
        let mut inner = self.lock();
        if incarnation != inner.machine.incarnation() {
            return None;
        }
        if inner.era.incarnation < incarnation {
            inner.era = Era { incarnation, stop: CancellationToken::new() };
        }
        Some(inner.era.stop.clone())
    }

    /// A lane is connected: requests may be sent on it from now on.
    pub(crate) fn connected(&self, lane: Lane, line: Arc<Outbox<Line>>) {
        let now = self.now();
        let mut inner = self.lock();
        if lane.incarnation != inner.machine.incarnation() {
            return;
        }
        inner.lanes.insert((lane.volume, lane.slot), line);
        let mut out = Vec::new();
        inner.machine.connected(now, lane, &mut out);
        for action in out {
            self.perform(&mut inner, action);
        }
    }

    pub(crate) fn join(&self, replies: Arc<Outbox<ClientReplies>>) -> u64 {
        let mut inner = self.lock();
        inner.next_client += 1;
        let id = inner.next_client;
        inner.clients.insert(id, replies);
        id
    }

    /// CLIENT-F2.
    pub(crate) fn leave(&self, client: u64) {
        self.act(|machine, _, out| machine.forget(client, out));
        self.lock().clients.remove(&client);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Bounds, Grant, Lost};
    use holdfast_host::boot_ns;
    use holdfast_types::{RequestId, Token};
    use std::time::Duration;

    #[test]
    fn a_moment_is_by_the_clock_of_leases_and_never_later_than_it_was() {
        let machine = Machine::new(RequestId(1), 1, Bounds::default());
        let (shared, _actions) = Shared::new(Name::new("demo").unwrap(), machine, boot_ns);
        let before = boot_ns();
        let told = shared.boot_ns(shared.now());
        let after = boot_ns();
        assert!(told <= after && told + NS_PER_MS > before, "{before} {told} {after}");
        // The machine was suspended for a minute: that minute counts.
        let mut later = Arc::into_inner(shared).unwrap();
        let minute = later.begun_ns.min(60_000 * NS_PER_MS);
        later.begun_ns -= minute;
        assert!(later.now() >= Moment(minute / NS_PER_MS));
    }

    /// ATTACH-M2: a socket that stays open may have a write in the old gateway's receive buffer. It would be carried
    /// out after its replay, over a later write.
    #[test]
    fn the_sockets_of_a_lost_incarnation_close_at_once() {
        let machine = Machine::new(RequestId(1), 1, Bounds::default());
        let (shared, _actions) = Shared::new(Name::new("demo").unwrap(), machine, boot_ns);
        shared.set_volumes(&[VolumeFacts { id: 1, name: Name::new("vol1").unwrap(), size: 1 << 30 }]);
        let grant = |epoch: u64| Grant {
            epoch: Epoch(epoch),
            token: Token(u128::from(epoch)),
            ttl: Duration::from_secs(3),
            gateway: "g1".into(),
            api: "127.0.0.1:1".into(),
            nbd: "127.0.0.1:2".into(),
        };
        shared.act(|machine, now, out| {
            machine.begin(now, false, out);
            machine.granted(now, RequestId(2), grant(1), 1, out);
        });
        let first = shared.era(1).unwrap();
        assert!(!first.is_cancelled());
        shared.act(|machine, now, out| machine.lost(now, 1, &Lost::Connection("reset".into()), out));
        assert!(first.is_cancelled(), "after a loss");
        shared.act(|machine, now, out| {
            machine.tick(now.plus(Duration::from_secs(1)), out);
            machine.granted(now, RequestId(3), grant(2), 1, out);
        });
        assert!(shared.era(1).is_none(), "no further socket of it is made");
        let second = shared.era(2).unwrap();
        assert!(!second.is_cancelled());
        shared.act(|machine, _, out| machine.refused(RequestId(3), "another owner", out));
        assert!(second.is_cancelled(), "once another owner has the set");
    }

    /// A machine's clock that goes back stops no timer, and other processes are told by the clock that they read.
    #[test]
    fn moments_go_on_when_the_machines_clock_goes_back() {
        static MACHINE: AtomicU64 = AtomicU64::new(500_000 * NS_PER_MS);
        let machine = Machine::new(RequestId(1), 1, Bounds::default());
        let clock = || MACHINE.load(Ordering::Relaxed);
        let (shared, _actions) = Shared::new(Name::new("demo").unwrap(), machine, clock);
        MACHINE.store(502_000 * NS_PER_MS, Ordering::Relaxed);
        let renewed = shared.now();
        assert_eq!((renewed, shared.boot_ns(renewed)), (Moment(2_000), 502_000 * NS_PER_MS));
        MACHINE.store(100_000 * NS_PER_MS, Ordering::Relaxed);
        assert_eq!(shared.now(), renewed);
        MACHINE.store(101_000 * NS_PER_MS, Ordering::Relaxed);
        assert_eq!(shared.now(), Moment(3_000), "it does not wait until the clock is where it was");
        // A nanosecond passed as the clock went back.
        assert_eq!(shared.boot_ns(renewed), 100_000 * NS_PER_MS - 1);
    }
}
