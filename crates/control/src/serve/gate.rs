//! The gate before every read and write of a set: may this gateway serve it, now?
//!
//! The gate is told facts and keeps them; each question is answered from all of them. Facts of different sources (apply, Raft's
//! metrics, the clock) may come in any order, so none of them is forgotten because another has not come yet: each names its
//! term where it has one, and a question compares.

use super::Timing;
use holdfast_types::{Epoch, LogId, MemberId, MonoTime, Term};
use std::time::Duration;

/// A fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GateEvent {
    /// This gateway is the leader of `term`.
    TermStarted {
        /// Its term.
        term: Term,
    },
    /// The first entry of `term` was applied here, whoever leads it.
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
    /// `transfer_leader` is about to be called. MUST be told before the call: from it on, followers may vote for another at
    /// once, and the read lease means nothing. Final for the term, even if the transfer fails.
    TransferStarted,
    /// This gateway leads no longer. Final for the term.
    LeadershipLost,
    /// [`super::ClockWatch`] suspects the clock.
    ClockSuspicion,
    /// A quorum acknowledged a heartbeat of ours that was *sent* at this moment.
    QuorumAcked(MonoTime),
    /// Whether this gateway is the group's only voter, so that nobody else can be elected. `false` MUST be told before a
    /// change of members is proposed.
    SoleVoter(bool),
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
    /// It gives its leadership away.
    #[error("leadership of term {term} is being handed over")]
    TransferStarted {
        /// Its term.
        term: Term,
    },
    /// No quorum has answered recently enough. Passes, or becomes `CutOff`.
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
    /// Worth waiting for at this gateway: the connection stays, the request waits. Otherwise the connection is closed
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
    /// The latest term that this gateway was told to lead, and still leads if `leading`.
    term: Term,
    leading: bool,
    transfer_started: bool,
    /// When `term` was told of: acknowledgements sent before it prove nothing about it. (They may be of an earlier term of
    /// ours, and a vote given since then carries no lease.)
    term_started: MonoTime,
    first_applied: Option<Term>,
    grant: Option<Grant>,
    /// Send time of the latest heartbeat that a quorum acknowledged.
    acked: Option<MonoTime>,
    suspected: Option<MonoTime>,
    sole_voter: bool,
    /// Lower bound of the moment since which there is no read lease, for all that `acked` does not tell.
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
            acked: None,
            suspected: None,
            sole_voter: false,
            without_since: now,
        }
    }

    /// Takes in a fact that was learnt at `now`.
    pub fn event(&mut self, now: MonoTime, event: GateEvent) {
        match event {
            // The same term told again must not undo a transfer or a loss.
            GateEvent::TermStarted { term } => {
                if term > self.term {
                    self.term = term;
                    self.leading = true;
                    self.transfer_started = false;
                    self.term_started = now;
                    self.acked = None;
                    // The new leader gets an election timeout to hear its quorum.
                    self.without_since = now;
                }
            }
            GateEvent::FirstEntryApplied { term } => self.first_applied = self.first_applied.max(Some(term)),
            GateEvent::GrantApplied { id, epoch, gateway } => {
                if self.grant.is_none_or(|grant| id > grant.id) {
                    self.grant = Some(Grant { id, epoch, gateway, released: false });
                }
            }
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
            GateEvent::QuorumAcked(sent) => {
                let fresh = sent >= self.term_started && self.suspected.is_none_or(|suspected| sent > suspected);
                if fresh {
                    self.acked = self.acked.max(Some(sent));
                }
            }
            GateEvent::SoleVoter(sole) => {
                if self.sole_voter && !sole && self.leading {
                    self.without_since = self.without_since.max(now);
                }
                self.sole_voter = sole;
            }
        }
    }

    /// Leader, first entry of the term applied, current grant here and of this term, no transfer: the epoch to serve under.
    /// Says nothing about time.
    ///
    /// # Errors
    /// With the first reason that stands against it.
    pub fn serving(&self) -> Result<Epoch, WhyNot> {
        let term = self.term;
        if !self.leading {
            return Err(WhyNot::NotLeader);
        }
        if self.transfer_started {
            return Err(WhyNot::TransferStarted { term });
        }
        match self.first_applied {
            // A later leader's entry was applied here: the loss of our own leadership has only not been told yet.
            Some(applied) if applied > term => return Err(WhyNot::NotLeader),
            Some(applied) if applied == term => {}
            _ => return Err(WhyNot::FirstEntryPending { term }),
        }
        let Some(grant) = self.grant else { return Err(WhyNot::NoGrant { term }) };
        if grant.gateway != self.me {
            return Err(WhyNot::GrantElsewhere { gateway: grant.gateway, epoch: grant.epoch });
        }
        if grant.id.term != term {
            return Err(WhyNot::NoGrant { term });
        }
        if grant.released {
            return Err(WhyNot::Released { epoch: grant.epoch });
        }
        Ok(grant.epoch)
    }

    /// May a read that has its data be answered at `now`, and under which epoch was it served? To be asked after the data is
    /// there and right before the answer leaves (R3).
    ///
    /// # Errors
    /// With the first reason that stands against it.
    pub fn may_read(&self, now: MonoTime) -> Result<Epoch, WhyNot> {
        let epoch = self.serving()?;
        if self.has_read_lease(now) { Ok(epoch) } else { Err(self.without_lease(now)) }
    }

    /// May a write be taken in at `now`, and under which epoch?
    ///
    /// It asks for no read lease: a write is answered only once committed and applied under its epoch, which a deposed leader
    /// cannot bring about (R1, R2). So a hiccup of the heartbeats delays no write. Being cut off does end it: the client
    /// should try elsewhere.
    ///
    /// # Errors
    /// With the first reason that stands against it.
    pub fn may_write(&self, now: MonoTime) -> Result<Epoch, WhyNot> {
        let epoch = self.serving()?;
        if self.cut_off(now) { Err(self.without_lease(now)) } else { Ok(epoch) }
    }

    /// No read lease for longer than the election timeout: close NBD connections and refuse new ones with a redirect.
    pub fn cut_off(&self, now: MonoTime) -> bool {
        matches!(self.without_lease_for(now), Some(without) if without > self.timing.cut_off_after())
    }

    /// Until when the read lease lasts. `None`: there is none at all, or nobody else could be elected (sole voter).
    pub fn read_lease_until(&self) -> Option<MonoTime> {
        self.acked.filter(|_| self.leading).map(|sent| sent.saturating_add(self.timing.read_lease()))
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

    /// Whatever was acknowledged so far counts no longer.
    fn end_read_lease(&mut self, now: MonoTime) {
        let ended = match self.read_lease_until() {
            Some(until) => until.min(now),
            None if self.leading && self.sole_voter => now,
            None => self.without_since,
        };
        self.without_since = self.without_since.max(ended);
        self.acked = None;
    }
}
