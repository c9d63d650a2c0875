//! The gate of one set at this gateway: `control::serve::ServeGate` with the facts of this node told to it.

use crate::host::GrantSeen;
use crate::pace::JournalPace;
use crate::sequencer::{Admission, Pace};
use holdfast_control::serve::{GateEvent, ServeGate, Timing, WhyNot};
use holdfast_raft::{Group, boot_now};
use holdfast_types::sync::LockExt;
use holdfast_types::{Epoch, Term};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

struct Inner {
    gate: ServeGate,
    /// The term that the gate was last told of. An acknowledgement of another term proves nothing about it (R3).
    told: Option<Term>,
}

/// The gate before every read and write of a set here. Told the same fact twice, it stays as it is.
pub struct Gate {
    group: Group,
    timing: Timing,
    inner: Mutex<Inner>,
    sole_voter: AtomicBool,
    members_change: AtomicBool,
}

impl Gate {
    /// A closed gate.
    pub fn new(group: Group, timing: Timing) -> Self {
        let gate = ServeGate::new(group.me(), timing, boot_now());
        Self {
            group,
            timing,
            inner: Mutex::new(Inner { gate, told: None }),
            sole_voter: AtomicBool::new(false),
            members_change: AtomicBool::new(false),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.locked()
    }

    /// The epoch under which a write may be taken in now.
    ///
    /// # Errors
    /// Why not.
    pub fn may_write(&self) -> Result<Epoch, WhyNot> {
        self.inner().gate.may_write(boot_now())
    }

    /// The epoch under which a read may be answered now (R3): comparisons only, no round trip.
    ///
    /// # Errors
    /// Why not.
    pub fn may_read(&self) -> Result<Epoch, WhyNot> {
        let acked = self.group.quorum_acked();
        let mut inner = self.inner();
        let now = boot_now();
        match acked {
            Some((term, at)) if Some(term) == inner.told => inner.gate.event(now, GateEvent::QuorumAcked(at)),
            // A term that this gate has not been told of: what it would allow is of the past.
            Some(_) => return Err(WhyNot::NotLeader),
            None => {}
        }
        inner.gate.may_read(now)
    }

    /// Tells what this node knows now. `lease_epoch`: of the lease as applied, `None` where the set is free.
    pub fn tell(&self, leading: Option<Term>, applied: Term, grant: Option<GrantSeen>, lease_epoch: Option<Epoch>) {
        let acked = self.group.quorum_acked();
        let mut inner = self.inner();
        let now = boot_now();
        let Inner { gate, told } = &mut *inner;
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
        if let Some((term, at)) = acked
            && Some(term) == leading
        {
            gate.event(now, GateEvent::QuorumAcked(at));
        }
    }

    /// No quorum for longer than an election takes.
    pub fn cut_off(&self) -> bool {
        self.inner().gate.cut_off(boot_now())
    }

    /// Before leadership is handed over: nothing more is served in this term.
    pub fn transfer_started(&self) {
        self.inner().gate.event(boot_now(), GateEvent::TransferStarted);
    }

    /// The clock is not to be believed (see `control::serve::ClockWatch`).
    pub fn clock_suspected(&self) {
        self.inner().gate.event(boot_now(), GateEvent::ClockSuspicion);
    }

    /// Looks whether nobody else could be elected.
    pub fn look_at_members(&self) {
        let members = self.group.status().members;
        let alone = members.len() == 1 && members.iter().all(|m| m.voter && m.member == self.group.me());
        // Between the announcement of a change and its sight, the members look as they did: the announcement wins.
        let announced = self.members_change.load(Ordering::Acquire);
        self.tell_sole_voter(alone && !announced);
    }

    /// A change of members is about to be proposed, or has come to its end. While one is under way this gateway never
    /// takes itself for the only voter, whatever the members look like (R3).
    pub fn announce_members_change(&self, under_way: bool) {
        self.members_change.store(under_way, Ordering::Release);
        if under_way {
            self.tell_sole_voter(false);
        }
    }

    fn tell_sole_voter(&self, sole: bool) {
        self.sole_voter.store(sole, Ordering::Release);
        self.inner().gate.event(boot_now(), GateEvent::SoleVoter(sole));
    }

    /// Whether nobody else could be elected, as far as told.
    pub fn is_sole_voter(&self) -> bool {
        self.sole_voter.load(Ordering::Acquire)
    }
}

/// The pace of an epoch's writers: the journal's, and no entry is proposed while the quorum is silent. Such an entry would be
/// refused and end the epoch; a hiccup shall only delay it (R8). What lasts is ended by the cut-off.
pub struct GatedPace {
    /// The journal's pace.
    pub journal: Arc<JournalPace>,
    /// The set's gate.
    pub gate: Arc<Gate>,
}

impl Admission for GatedPace {
    fn pace(&self) -> Pace {
        match self.gate.may_read() {
            Err(WhyNot::NoReadLease) => Pace::Full(self.gate.timing.heartbeat() / 4),
            _ => self.journal.pace(),
        }
    }
}
