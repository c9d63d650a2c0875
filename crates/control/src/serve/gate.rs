//! Gate before every read and write of a set: may this gateway serve the set now?
//!
//! The gate stores events and answers from all of them. Events of different sources (apply, Raft's metrics, the clock)
//! may arrive in any order, so no event is dropped because another is missing: each carries its term where it has one,
//! and the answer compares terms.

use super::Timing;
use holdfast_types::{Epoch, LogId, MemberId, MonoTime, Reading, Term};
use std::time::Duration;

/// An event for the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GateEvent {
    /// This gateway is the leader of `term`.
    TermStarted {
        /// Its term.
        term: Term,
    },
    /// The first entry of `term` was applied here, whoever is its leader.
    FirstEntryApplied {
        /// Its term.
        term: Term,
    },
    /// A grant was applied here.
    GrantApplied {
        /// The entry's log id.
        id: LogId,
        /// The epoch granted.
        epoch: Epoch,
        /// The gateway named in it.
        gateway: MemberId,
    },
    /// A release was applied here.
    LeaseReleased {
        /// The epoch that ended.
        epoch: Epoch,
    },
    /// `transfer_leader` is about to be called. MUST be reported before the call: from then on followers may vote for
    /// another member at once, and the read lease is void. Final for the term, even if the transfer fails.
    TransferStarted,
    /// This gateway leads no longer. Final for the term.
    LeadershipLost,
    /// [`super::ClockWatch`] suspects the clock.
    ClockSuspicion,
    /// A quorum acknowledged heartbeats, and promised by that to vote for nobody else for a while. This is the newest
    /// word of the voters that decide now: what others promised before they became the voters counts no more. MUST be
    /// told in the order in which it was found out.
    QuorumAcked {
        /// When they were *sent*, or later.
        sent: MonoTime,
        /// How long this gateway may read because of it, by its own clock: what the answers promise, not what this
        /// gateway's times are (ADR 0058).
        until: MonoTime,
    },
    /// No quorum of the voters that decide now has acknowledged anything in this term.
    NoQuorum,
    /// Whether this gateway is the group's only voter, so that no other can be elected. `false` MUST be reported before
    /// a change of members is proposed.
    SoleVoter(bool),
}

impl GateEvent {
    /// A quorum answered what was sent at `sent`, and each of it promises what these times say.
    pub fn acked(timing: &Timing, sent: MonoTime) -> Self {
        Self::QuorumAcked { sent, until: sent.saturating_add(timing.read_lease()) }
    }
}

/// Why a gateway may not serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WhyNot {
    /// It does not lead.
    #[error("this gateway does not lead the set")]
    NotLeader,
    /// It leads, but has not applied the first entry of its term: its state may be behind.
    #[error("the first entry of term {term} has not been applied yet")]
    FirstEntryPending {
        /// Its term.
        term: Term,
    },
    /// The last grant, if any, is of an earlier term: serving goes on only under a new epoch (R6).
    #[error("no lease has been granted in term {term} yet")]
    NoGrant {
        /// Its term.
        term: Term,
    },
    /// The current grant names another gateway.
    #[error("the set is granted at gateway {gateway} under epoch {epoch}")]
    GrantElsewhere {
        /// Which.
        gateway: MemberId,
        /// Under which epoch.
        epoch: Epoch,
    },
    /// The current grant was released.
    #[error("the lease of epoch {epoch} was released")]
    Released {
        /// Its epoch.
        epoch: Epoch,
    },
    /// It hands over its leadership.
    #[error("leadership of term {term} is being handed over")]
    TransferStarted {
        /// Its term.
        term: Term,
    },
    /// No quorum has answered recently enough. Temporary, or followed by `CutOff`.
    #[error("no quorum of gateways has answered recently enough")]
    NoReadLease,
    /// No quorum has answered for a long time: clients must go elsewhere.
    #[error("no quorum of gateways has answered for {without:?}, expected at most {max:?}")]
    CutOff {
        /// For how long there has been no read lease.
        without: Duration,
        /// The election timeout.
        max: Duration,
    },
}

impl WhyNot {
    /// Whether the reason may pass: then the connection stays and the request waits. Otherwise the connection is closed
    /// unanswered (R8).
    pub fn may_pass(&self) -> bool {
        match self {
            WhyNot::FirstEntryPending { .. } | WhyNot::NoReadLease => true,
            WhyNot::NotLeader
            | WhyNot::NoGrant { .. }
            | WhyNot::GrantElsewhere { .. }
            | WhyNot::Released { .. }
            | WhyNot::TransferStarted { .. }
            | WhyNot::CutOff { .. } => false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Grant {
    id: LogId,
    epoch: Epoch,
    gateway: MemberId,
    released: bool,
}

/// One set's gate at one gateway.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServeGate {
    me: MemberId,
    timing: Timing,
    /// The latest term in which this gateway was leader; it still is if `leading`.
    term: Term,
    leading: bool,
    transfer_started: bool,
    /// When `term` was reported: acknowledgements of heartbeats sent before prove nothing about it. (They may be of an
    /// earlier term of this gateway, and a vote since then carries no lease.)
    term_started: MonoTime,
    first_applied: Option<Term>,
    grant: Option<Grant>,
    /// The end of what a quorum of the present voters has promised.
    promised: Option<MonoTime>,
    suspected: Option<MonoTime>,
    /// [`Reading::went_back`] of the latest reading.
    went_back: Option<MonoTime>,
    sole_voter: bool,
    /// Lower bound of the moment from which there is no read lease, as far as `promised` does not show it.
    without_since: MonoTime,
}

impl ServeGate {
    /// A closed gate of gateway `me`.
    pub fn new(me: MemberId, timing: Timing, now: MonoTime) -> Self {
        Self {
            me,
            timing,
            term: Term(0),
            leading: false,
            transfer_started: false,
            term_started: now,
            first_applied: None,
            grant: None,
            promised: None,
            suspected: None,
            went_back: None,
            sole_voter: false,
            without_since: now,
        }
    }

    /// The set has other times. They decide when this gateway is cut off; its read lease is what was promised.
    pub fn set_timing(&mut self, timing: Timing) {
        self.timing = timing;
    }

    /// Takes in a reading of the clock, and returns its moment. MUST be called for every moment that this gate is asked
    /// about, before it is asked.
    ///
    /// If the clock went back, the read lease is void, and so is every acknowledgement of what was sent before: nobody
    /// knows how much of the promised time has passed (R3). The next heartbeat that a quorum answers renews it.
    pub fn read_clock(&mut self, reading: Reading) -> MonoTime {
        if reading.went_back != self.went_back {
            holdfast_reached::reached!("gate: the boot clock went back");
            self.went_back = reading.went_back;
            self.event(reading.now, GateEvent::ClockSuspicion);
        }
        reading.now
    }

    /// Takes in an event at `now`.
    pub fn event(&mut self, now: MonoTime, event: GateEvent) {
        match event {
            GateEvent::TermStarted { term } => self.start_term(now, term),
            GateEvent::FirstEntryApplied { term } => self.first_applied = self.first_applied.max(Some(term)),
            GateEvent::GrantApplied { id, epoch, gateway } => self.take_grant(id, epoch, gateway),
            GateEvent::LeaseReleased { epoch } => {
                if let Some(grant) = self.grant.as_mut().filter(|grant| grant.epoch == epoch) {
                    grant.released = true;
                }
            }
            GateEvent::TransferStarted => self.transfer_started = true,
            GateEvent::LeadershipLost => {
                self.end_read_lease(now);
                self.leading = false;
            }
            GateEvent::ClockSuspicion => {
                self.end_read_lease(now);
                self.suspected = self.suspected.max(Some(now));
            }
            GateEvent::QuorumAcked { sent, until } => {
                holdfast_reached::reached!(
                    "gate: an acknowledgement of before a suspicion",
                    self.suspected.is_some_and(|at| sent <= at)
                );
                holdfast_reached::reached!("gate: an acknowledgement of before the term", sent < self.term_started);
                let fresh = sent >= self.term_started && self.suspected.is_none_or(|suspected| sent > suspected);
                holdfast_reached::reached!(
                    "gate: an acknowledgement is so late that its lease is over",
                    fresh && now >= until
                );
                holdfast_reached::reached!(
                    "gate: a quorum answers again after the cut-off",
                    fresh && self.cut_off(now) && self.serving().is_ok()
                );
                if fresh {
                    self.promised = Some(until);
                }
            }
            GateEvent::NoQuorum => {
                holdfast_reached::reached!("gate: the present voters have promised nothing", self.promised.is_some());
                self.end_read_lease(now);
            }
            GateEvent::SoleVoter(sole) => {
                if self.sole_voter && !sole && self.leading {
                    holdfast_reached::reached!("gate: a sole voter gets company while it leads");
                    self.without_since = self.without_since.max(now);
                }
                self.sole_voter = sole;
            }
        }
    }

    /// A repeated event of the same term must not undo a transfer or a loss.
    fn start_term(&mut self, now: MonoTime, term: Term) {
        holdfast_reached::reached!("gate: the start of a term is told again", term <= self.term);
        if term > self.term {
            self.term = term;
            self.leading = true;
            self.transfer_started = false;
            self.term_started = now;
            self.promised = None;
            // The new leader gets an election timeout to hear from its quorum.
            self.without_since = now;
        }
    }

    /// The latest grant counts, by its place in the log.
    fn take_grant(&mut self, id: LogId, epoch: Epoch, gateway: MemberId) {
        holdfast_reached::reached!(
            "gate: an older grant comes after a newer one",
            self.grant.is_some_and(|grant| id <= grant.id)
        );
        if self.grant.is_none_or(|grant| id > grant.id) {
            self.grant = Some(Grant { id, epoch, gateway, released: false });
        }
    }

    /// The epoch to serve under: leader, first entry of the term applied, current grant for this gateway in this term,
    /// no transfer. Ignores time.
    ///
    /// # Errors
    /// The first reason against it.
    pub fn serving(&self) -> Result<Epoch, WhyNot> {
        let term = self.term;
        if !self.leading {
            return Err(WhyNot::NotLeader);
        }
        if self.transfer_started {
            holdfast_reached::reached!("gate: asked while leadership is handed over");
            return Err(WhyNot::TransferStarted { term });
        }
        holdfast_reached::reached!(
            "gate: a later entry is applied before the loss is told",
            self.first_applied > Some(term)
        );
        holdfast_reached::reached!(
            "gate: the first entry of the term is still to be applied",
            self.first_applied < Some(term)
        );
        match self.first_applied {
            // A later leader's entry was applied here: the loss of leadership was not reported yet.
            Some(applied) if applied > term => return Err(WhyNot::NotLeader),
            Some(applied) if applied == term => {}
            _ => return Err(WhyNot::FirstEntryPending { term }),
        }
        let Some(grant) = self.grant else { return Err(WhyNot::NoGrant { term }) };
        if grant.gateway != self.me {
            holdfast_reached::reached!("gate: the grant names another gateway");
            return Err(WhyNot::GrantElsewhere { gateway: grant.gateway, epoch: grant.epoch });
        }
        if grant.id.term != term {
            holdfast_reached::reached!("gate: the grant is of an earlier term");
            return Err(WhyNot::NoGrant { term });
        }
        if grant.released {
            holdfast_reached::reached!("gate: the lease was released");
            return Err(WhyNot::Released { epoch: grant.epoch });
        }
        Ok(grant.epoch)
    }

    /// Whether a read that has its data may be answered at `now`, and under which epoch it was served. Ask after the
    /// data is there, right before the answer leaves (R3).
    ///
    /// # Errors
    /// The first reason against it.
    pub fn may_read(&self, now: MonoTime) -> Result<Epoch, WhyNot> {
        let epoch = self.serving()?;
        holdfast_reached::reached!("gate: a read finds no read lease", !self.has_read_lease(now));
        if self.has_read_lease(now) { Ok(epoch) } else { Err(self.without_lease(now)) }
    }

    /// Whether a write may be accepted at `now`, and under which epoch.
    ///
    /// Needs no read lease: a write is answered only once committed and applied under its epoch, which a deposed leader
    /// cannot achieve (R1, R2). So a delayed heartbeat delays no write. Being cut off does refuse writes: the client
    /// should try elsewhere.
    ///
    /// # Errors
    /// The first reason against it.
    pub fn may_write(&self, now: MonoTime) -> Result<Epoch, WhyNot> {
        let epoch = self.serving()?;
        holdfast_reached::reached!("gate: a write after the cut-off", self.cut_off(now));
        if self.cut_off(now) { Err(self.without_lease(now)) } else { Ok(epoch) }
    }

    /// No read lease for longer than the election timeout: close NBD connections and refuse new ones with a redirect.
    pub fn cut_off(&self, now: MonoTime) -> bool {
        matches!(self.without_lease_for(now), Some(without) if without > self.timing.cut_off_after())
    }

    /// End of the read lease. `None`: there is none, or no other member can be elected (sole voter).
    pub fn read_lease_until(&self) -> Option<MonoTime> {
        self.promised.filter(|_| self.leading)
    }

    fn has_read_lease(&self, now: MonoTime) -> bool {
        self.leading && (self.sole_voter || self.read_lease_until().is_some_and(|until| now < until))
    }

    /// `None` with a read lease.
    fn without_lease_for(&self, now: MonoTime) -> Option<Duration> {
        if self.has_read_lease(now) {
            return None;
        }
        let since = self.read_lease_until().map_or(self.without_since, |until| until.max(self.without_since));
        Some(now.saturating_since(since))
    }

    fn without_lease(&self, now: MonoTime) -> WhyNot {
        match self.without_lease_for(now) {
            Some(without) if without > self.timing.cut_off_after() => {
                WhyNot::CutOff { without, max: self.timing.cut_off_after() }
            }
            _ => WhyNot::NoReadLease,
        }
    }

    /// Voids all acknowledgements so far.
    fn end_read_lease(&mut self, now: MonoTime) {
        let ended = match self.read_lease_until() {
            Some(until) => until.min(now),
            None if self.leading && self.sole_voter => now,
            None => self.without_since,
        };
        self.without_since = self.without_since.max(ended);
        self.promised = None;
    }
}
