//! The gate of one set at this gateway: feeds `control::serve::ServeGate` with the facts of this node. It refuses a
//! stale leader early. Reads rely on it (R3); for writes apply decides (`SetState::admit_write`, R2).

use crate::host::GrantSeen;
use crate::pace::JournalPace;
use crate::sequencer::{Admission, Pace};
use holdfast_control::serve::{GateEvent, ServeGate, Timing, WhyNot};
use holdfast_raft::{Acked, Group, boot_reading};
use holdfast_types::sync::LockExt;
use holdfast_types::{Epoch, MonoTime, Term};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

struct Inner {
    gate: ServeGate,
    /// The last term reported to the gate. An acknowledgement of another term proves nothing about it (R3).
    told: Option<Term>,
    /// The set's present times.
    timing: Timing,
}

impl Inner {
    /// Now, of which the gate is told: the clock may have gone back.
    fn now(&mut self) -> MonoTime {
        self.gate.read_clock(boot_reading())
    }

    fn event(&mut self, event: GateEvent) {
        let now = self.now();
        self.gate.event(now, event);
    }

    /// What the voters have promised to the leader of `term`, which is this gateway.
    fn promised(&mut self, now: MonoTime, acked: Option<(Term, Acked)>, term: Term) {
        let event = match acked {
            Some((of, Acked { sent, until })) if of == term => GateEvent::QuorumAcked { sent, until },
            // Of another term: it is told soon.
            Some(_) => return,
            None => GateEvent::NoQuorum,
        };
        self.gate.event(now, event);
    }
}

/// The gate before every read and write of a set here. Reporting the same fact twice has no effect.
pub struct Gate {
    group: Group,
    /// The longest that the set may have.
    longest: Timing,
    inner: Mutex<Inner>,
    sole_voter: AtomicBool,
    members_change: AtomicBool,
}

impl Gate {
    /// Creates a closed gate.
    pub fn new(group: Group, timing: Timing) -> Self {
        let reading = boot_reading();
        let mut gate = ServeGate::new(group.me(), timing, reading.now);
        gate.read_clock(reading);
        Self {
            group,
            longest: timing,
            inner: Mutex::new(Inner { gate, told: None, timing }),
            sole_voter: AtomicBool::new(false),
            members_change: AtomicBool::new(false),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.locked()
    }

    /// The epoch under which a write may be accepted now.
    ///
    /// # Errors
    /// The reason why not.
    pub fn may_write(&self) -> Result<Epoch, WhyNot> {
        let mut inner = self.inner();
        let now = inner.now();
        inner.gate.may_write(now)
    }

    /// The epoch under which a read may be answered now (R3): comparisons only, no round trip.
    ///
    /// # Errors
    /// The reason why not.
    pub fn may_read(&self) -> Result<Epoch, WhyNot> {
        let mut inner = self.inner();
        let acked = self.quorum(&inner);
        let now = inner.now();
        let told = inner.told;
        holdfast_reached::reached!(
            "gate: an acknowledgement of a term that it was not told",
            acked.is_some_and(|(term, _)| Some(term) != told)
        );
        if acked.is_some_and(|(term, _)| Some(term) != told) {
            // A term that was not reported to the gate yet: its answer would be about the past.
            return Err(WhyNot::NotLeader);
        }
        if let Some(term) = told {
            inner.promised(now, acked, term);
        }
        inner.gate.may_read(now)
    }

    /// What a quorum of the present voters has promised. Asked under the gate's lock: an older answer told after a
    /// newer one could be that of other voters.
    fn quorum(&self, _: &Inner) -> Option<(Term, Acked)> {
        self.group.quorum_promised(self.longest.read_lease())
    }

    /// The set has other times.
    pub fn set_timing(&self, timing: Timing) {
        let mut inner = self.inner();
        inner.timing = timing;
        inner.gate.set_timing(timing);
    }

    /// Between two looks of a writer that waits for the quorum.
    fn pause(&self) -> Duration {
        self.inner().timing.heartbeat() / 4
    }

    /// Reports what this node knows now. `lease_epoch`: the epoch of the applied lease, `None` if the set is free.
    pub fn tell(&self, leading: Option<Term>, applied: Term, grant: Option<GrantSeen>, lease_epoch: Option<Epoch>) {
        let mut inner = self.inner();
        let acked = self.quorum(&inner);
        let now = inner.now();
        let Inner { gate, told, .. } = &mut *inner;
        match leading {
            None => gate.event(now, GateEvent::LeadershipLost),
            Some(term) => gate.event(now, GateEvent::TermStarted { term }),
        }
        *told = leading;
        gate.event(now, GateEvent::FirstEntryApplied { term: applied });
        if let Some(GrantSeen { id, epoch, gateway }) = grant {
            gate.event(now, GateEvent::GrantApplied { id, epoch, gateway });
            if lease_epoch != Some(epoch) {
                gate.event(now, GateEvent::LeaseReleased { epoch });
            }
        }
        if let Some(term) = leading {
            inner.promised(now, acked, term);
        }
    }

    /// Whether there was no quorum for longer than an election takes.
    pub fn cut_off(&self) -> bool {
        let mut inner = self.inner();
        let now = inner.now();
        inner.gate.cut_off(now)
    }

    /// Called before a transfer of leadership: nothing more is served in this term.
    pub fn transfer_started(&self) {
        self.inner().event(GateEvent::TransferStarted);
    }

    /// The clock is not reliable (see `control::serve::ClockWatch`).
    pub fn clock_suspected(&self) {
        self.inner().event(GateEvent::ClockSuspicion);
    }

    /// Checks whether no other member could be elected.
    pub fn look_at_members(&self) {
        let members = self.group.status().members;
        let alone = members.len() == 1 && members.iter().all(|m| m.voter && m.member == self.group.me());
        // After a change was announced, the members may look unchanged for a while: the announcement takes precedence.
        let announced = self.members_change.load(Ordering::Acquire);
        holdfast_reached::reached!("gate: a change of members is announced and not seen yet", alone && announced);
        self.tell_sole_voter(alone && !announced);
    }

    /// Announces that a change of members is about to be proposed, or has ended. During a change this gateway never
    /// takes itself for the only voter, whatever members it sees (R3).
    pub fn announce_members_change(&self, under_way: bool) {
        self.members_change.store(under_way, Ordering::Release);
        if under_way {
            self.tell_sole_voter(false);
        }
    }

    fn tell_sole_voter(&self, sole: bool) {
        self.sole_voter.store(sole, Ordering::Release);
        self.inner().event(GateEvent::SoleVoter(sole));
    }

    /// Whether no other member could be elected, as far as known.
    pub fn is_sole_voter(&self) -> bool {
        self.sole_voter.load(Ordering::Acquire)
    }
}

/// The pace of an epoch's writers: the journal's pace, and no proposals while the quorum is silent. Such an entry would
/// be refused and end the epoch; a short interruption must only delay it (R8). A lasting one ends with the cut-off.
pub struct GatedPace {
    /// The journal's pace.
    pub journal: Arc<JournalPace>,
    /// The set's gate.
    pub gate: Arc<Gate>,
}

impl Admission for GatedPace {
    fn pace(&self) -> Pace {
        match self.gate.may_read() {
            Err(WhyNot::NoReadLease) => Pace::Full(self.gate.pause()),
            _ => self.journal.pace(),
        }
    }
}
