//! The gate of one set at this gateway: feeds `control::serve::ServeGate` with the facts of this node. It refuses a
//! stale leader early. Reads rely on it (R3); for writes apply decides (`SetState::admit_write`, R2).

use crate::host::GrantSeen;
use crate::pace::JournalPace;
use crate::sequencer::{Admission, Pace};
use holdfast_control::serve::{GateEvent, ServeGate, Timing, WhyNot};
use holdfast_raft::{Acked, Group, boot_reading};
use holdfast_types::sync::LockExt;
use holdfast_types::{Epoch, MemberId, MonoTime, Term};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

struct Inner {
    gate: ServeGate,
    /// The last term reported to the gate. An acknowledgement of another term proves nothing about it (R3).
    told: Option<Term>,
    /// Whether the gate takes this gateway for the only voter.
    sole_voter: bool,
    members: MembersChange,
    /// The set's present times.
    timing: Timing,
}

/// Changes of the members that were announced.
#[derive(Clone, Copy, Default)]
struct MembersChange {
    under_way: bool,
    /// How many beginnings and ends have been announced so far.
    announced: u64,
}

impl Inner {
    /// A closed gate.
    fn new(me: MemberId, timing: Timing) -> Self {
        let reading = boot_reading();
        let mut gate = ServeGate::new(me, timing, reading.now);
        gate.read_clock(reading);
        Self { gate, told: None, sole_voter: false, members: MembersChange::default(), timing }
    }

    /// Now, of which the gate is told: the clock may have gone back.
    fn now(&mut self) -> MonoTime {
        self.gate.read_clock(boot_reading())
    }

    fn event(&mut self, event: GateEvent) {
        let now = self.now();
        self.gate.event(now, event);
    }

    fn tell_sole_voter(&mut self, sole: bool) {
        self.sole_voter = sole;
        self.event(GateEvent::SoleVoter(sole));
    }

    /// See [`Gate::announce_members_change`].
    fn announce_members_change(&mut self, under_way: bool) {
        self.members.announced += u64::from(under_way || self.members.under_way);
        self.members.under_way = under_way;
        if under_way {
            self.tell_sole_voter(false);
        }
    }

    /// Whether this gateway was the only member in a list that was read when so much had been `announced`. A list from
    /// before a beginning or an end proves nothing any more, and between these the members may look unchanged.
    fn members_seen(&mut self, alone: bool, announced: u64) {
        let MembersChange { under_way, announced: by_now } = self.members;
        holdfast_reached::reached!("gate: a change of members is announced and not seen yet", alone && under_way);
        self.tell_sole_voter(alone && !under_way && announced == by_now);
    }

    /// What the voters have promised to the leader of `term`, which is this gateway.
    fn promised(&mut self, now: MonoTime, acked: Option<(Term, Acked)>, term: Term) {
        let event = match acked {
            Some((of, Acked { sent, until, .. })) if of == term => GateEvent::QuorumAcked { sent, until },
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
}

impl Gate {
    /// Creates a closed gate.
    pub fn new(group: Group, timing: Timing) -> Self {
        let inner = Mutex::new(Inner::new(group.me(), timing));
        Self { group, longest: timing, inner }
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
        let announced = self.inner().members.announced;
        let members = self.group.status().members;
        let alone = members.len() == 1 && members.iter().all(|m| m.voter && m.member == self.group.me());
        self.inner().members_seen(alone, announced);
    }

    /// Announces that a change of members is about to be proposed, or has ended. During a change this gateway never
    /// takes itself for the only voter, whatever members it sees (R3).
    pub fn announce_members_change(&self, under_way: bool) {
        self.inner().announce_members_change(under_way);
    }

    /// Whether no other member could be elected, as far as known.
    pub fn is_sole_voter(&self) -> bool {
        self.inner().sole_voter
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

#[cfg(test)]
mod tests {
    use super::*;

    fn inner() -> Inner {
        Inner::new(MemberId(1), Timing::from_rtt(Duration::from_millis(1)))
    }

    #[test]
    fn the_only_member_is_the_sole_voter_unless_a_change_is_under_way() {
        let mut inner = inner();
        inner.members_seen(true, inner.members.announced);
        assert!(inner.sole_voter);
        inner.announce_members_change(true);
        assert!(!inner.sole_voter);
        inner.members_seen(true, inner.members.announced);
        assert!(!inner.sole_voter, "the change is not seen yet");
        inner.announce_members_change(false);
        inner.members_seen(true, inner.members.announced);
        assert!(inner.sole_voter, "it came to nothing");
        inner.members_seen(false, inner.members.announced);
        assert!(!inner.sole_voter);
    }

    /// Red without the count: the members are read, a change is announced, carried out and ended, and only then the
    /// gate is told what was read.
    #[test]
    fn members_from_before_an_announcement_prove_nothing() {
        let mut inner = inner();
        let announced = inner.members.announced;
        inner.announce_members_change(true);
        inner.members_seen(true, announced);
        assert!(!inner.sole_voter, "the change is under way");
        inner.announce_members_change(false);
        inner.members_seen(true, announced);
        assert!(!inner.sole_voter, "there may be another voter by now");
        inner.members_seen(true, inner.members.announced);
        assert!(inner.sole_voter);
    }

    /// Red if only beginnings count: the members are read while a change is announced and not carried out yet, and the
    /// gate is told of them after its end.
    #[test]
    fn members_from_the_middle_of_a_change_prove_nothing_after_it() {
        let mut inner = inner();
        inner.announce_members_change(true);
        let announced = inner.members.announced;
        inner.announce_members_change(false);
        inner.members_seen(true, announced);
        assert!(!inner.sole_voter, "there may be another voter by now");
        // Each round without a change tells of an end again. No look is lost by that.
        let announced = inner.members.announced;
        inner.announce_members_change(false);
        inner.members_seen(true, announced);
        assert!(inner.sole_voter);
    }
}
