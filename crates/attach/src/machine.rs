//! State machine of an attached set: which gateway serves it, which requests are unanswered, when it is lost or ended.
//!
//! ```text
//!  acquiring ─granted─▶ connecting ─all connected─▶ serving ─lost─▶ reconnecting ─continued, all connected─▶ serving
//!                                                      │                 │
//!                                                      └─ an error answer, or the lease is another's ─▶ fenced
//!                                                      └─ detach: drained, released ─▶ detached
//! ```
//!
//! ATTACH-M1  At most one unanswered write covers a sector; a later one that overlaps it waits for its answer. So a
//!     replay writes data that is already there or that must come next, in any order, and never takes a sector back to
//!     an older write.
//! ATTACH-M2  A request is sent under one incarnation at a time. Before the next incarnation begins, all sockets of the
//!     last one are shut, and the lease was continued under a new epoch (R6): data that is still in a receive buffer of
//!     the old gateway can never be carried out.
//! ATTACH-M3  After a loss all unanswered requests are sent again in their original order before any new one is sent.
//! ATTACH-M4  An answer counts only in the incarnation in which the request was last sent.
//! ATTACH-M5  Fenced is final: all unanswered and all new requests are answered with EIO, and nothing is sent any more
//!     (R8).
//! ATTACH-M6  The lease is lost to another owner only by a gateway's definite answer. Silence, refusals to serve and
//!     closed connections do not count.
//! ATTACH-M7  A request's age alone never ends a connection: a store may be slow for minutes (R8). An old request only
//!     makes us ask the gateway whether it is there; no answer to *that* question is a loss.
//! ATTACH-M8  A volume that was deleted, shrunk or renamed under its device fails alone and for good: its requests are
//!     answered with EIO, and it is never connected again. The other volumes go on. Once no volume is left, the set has
//!     ended like a fenced one.
//!
//! Owns: phases, incarnations, the table of unanswered requests, times. Does not own: sockets, the clock, randomness.
//! Times come in as arguments; request ids are counted up from a random base.

mod state;
mod table;

use holdfast_nbd::Errno;
use holdfast_nbd::client::RequestOut;
use holdfast_nbd::server::{ReadPart, ReplyTo};
use holdfast_types::{Epoch, Name, RequestId, Token};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

pub use holdfast_nbd::Extent;
pub use state::{Lost, Machine, View};
pub use table::{Bounds, Intake};

/// A moment of the process's own monotonic clock, in milliseconds since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(pub u64);

impl Moment {
    /// Time since `earlier`; zero if that is later.
    pub fn since(self, earlier: Moment) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    /// The time after this interval.
    pub fn plus(self, time: Duration) -> Moment {
        Moment(self.0.saturating_add(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)))
    }
}

/// Phase of an attached set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Asks for the lease.
    Acquiring,
    /// Holds the lease and connects for the first time.
    Connecting,
    /// Requests are carried out.
    Serving,
    /// The gateway was lost: requests wait.
    Reconnecting,
    /// Another owner holds the set: every request fails from now on.
    Fenced,
    /// Ordered to end: unanswered requests are waited for.
    Detaching,
    /// Ended; the lease was given back.
    Detached,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Phase::Acquiring => "acquiring",
            Phase::Connecting => "connecting",
            Phase::Serving => "serving",
            Phase::Reconnecting => "reconnecting",
            Phase::Fenced => "fenced",
            Phase::Detaching => "detaching",
            Phase::Detached => "detached",
        })
    }
}

/// A volume as a grant describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeFacts {
    /// Its number in the set, which no other volume ever has.
    pub id: u32,
    /// Its name.
    pub name: Name,
    /// Its size in bytes.
    pub size: u64,
}

impl VolumeFacts {
    /// Reason why a device of this volume cannot continue with the volumes of a later grant; `None` if it can. New
    /// volumes do not matter, and a grown volume is still the same ([`Self::grown_in`]).
    pub fn lost_in(&self, granted: &[VolumeFacts]) -> Option<String> {
        let same = |other: &&VolumeFacts| other.id == self.id;
        match granted.iter().find(same) {
            None => Some(format!("volume {} is gone", self.name)),
            Some(other) if other.name != self.name => Some(format!("volume {} is {} now", self.name, other.name)),
            Some(other) if other.size < self.size => {
                holdfast_reached::reached!("attach: a volume is smaller than before");
                let (found, expected) = (other.size, self.size);
                Some(format!("volume {}: found {found} bytes, expected {expected} as before", self.name))
            }
            Some(_) => None,
        }
    }

    /// Reason why a device of this volume cannot continue after these shrinks, if they are later than `since`:
    /// discarded data is gone, whatever the volume's present size. The device had its size at `since` already, so a
    /// shrink before that does not affect it.
    pub fn cut_in(&self, cuts: &[Cut], since: Epoch) -> Option<String> {
        let ours = cuts.iter().filter(|cut| cut.volume == self.id);
        let less = ours.filter(|cut| cut.at > since && cut.size < self.size);
        let deepest = less.map(|cut| cut.size).min()?;
        holdfast_reached::reached!("attach: a volume was cut and is large again");
        let (name, expected) = (&self.name, self.size);
        Some(format!("volume {name}: found it cut to {deepest} bytes meanwhile, expected {expected} all the time"))
    }

    /// The new size if this volume has grown, according to a gateway; `None` if it has not, or if it may be another
    /// volume. A smaller size is handled by ATTACH-M8.
    pub fn grown_in(&self, named: &[VolumeFacts]) -> Option<u64> {
        let same = |other: &&VolumeFacts| other.id == self.id && other.name == self.name;
        named.iter().find(same).map(|other| other.size).filter(|size| *size > self.size)
    }
}

/// A shrink of a volume, as reported by a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The volume's number in the set.
    pub volume: u32,
    /// Its place: later than a grant of a lower epoch.
    pub at: Epoch,
    /// The remaining size in bytes.
    pub size: u64,
}

/// Shrinks in an answer of a gateway, beside the volumes that it lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cuts {
    /// Both are as of this place in the log, numbered as [`Cut::at`].
    pub as_of: Epoch,
    /// The last ones, as far as the gateway remembers them.
    pub cuts: Vec<Cut>,
}

/// A lease as a gateway granted it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Its epoch.
    pub epoch: Epoch,
    /// Opens connections, renews, continues.
    pub token: Token,
    /// Time to live without a renewal.
    pub ttl: Duration,
    /// Name of the gateway that serves it.
    pub gateway: String,
    /// Admin address of the gateway that answered, `HOST:PORT`.
    pub api: String,
    /// NBD address of the serving gateway, `HOST:PORT`.
    pub nbd: String,
}

/// One of the set's connections, in one incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lane {
    /// Grows with every reconnect of the set.
    pub incarnation: u64,
    /// Index of the volume.
    pub volume: usize,
    /// Which of the volume's connections.
    pub slot: u8,
}

/// Recipient of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The client's connection on this host.
    pub client: u64,
    /// Its request.
    pub to: ReplyTo,
    /// DF of a read, REQ_ONE of a block status.
    pub narrow: bool,
    /// Length in bytes.
    pub len: u64,
}

/// Result of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Done; without data.
    Done,
    /// Data of a read.
    Read(Vec<ReadPart>),
    /// Allocated ranges.
    Status(Vec<Extent>),
}

/// An output of the machine; carried out in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask the gateways for the lease until one grants it, or definitely refuses.
    Acquire {
        /// Identity of the request (R12).
        request: RequestId,
        /// Take it even if another owner holds it.
        force: bool,
    },
    /// Ask the gateways to continue the lease until one does, or definitely refuses.
    Continue {
        /// Identity of the request (R12).
        request: RequestId,
        /// The last token held.
        token: Token,
    },
    /// Renew once, and report the outcome.
    Renew {
        /// Returned with the outcome.
        number: u64,
        /// The epoch held.
        epoch: Epoch,
        /// Its token.
        token: Token,
        /// The gateway to ask.
        api: String,
    },
    /// Connect one lane.
    Connect {
        /// The lane.
        lane: Lane,
        /// The address, `HOST:PORT`.
        nbd: String,
        /// The token to use.
        token: Token,
    },
    /// Close every connection of this incarnation and of earlier ones, at once.
    Shut {
        /// The last one to close.
        incarnation: u64,
    },
    /// Send a request.
    Send {
        /// On this lane.
        lane: Lane,
        /// The request; its cookie is its number in the table.
        out: RequestOut,
        /// Payload of a write.
        data: bytes::Bytes,
    },
    /// Answer a client.
    Answer {
        /// The recipient.
        ticket: Ticket,
        /// The result.
        outcome: Result<Reply, Errno>,
    },
    /// There is room for further requests of this volume.
    Room {
        /// Index of the volume.
        volume: usize,
    },
    /// Give the lease back, then report [`Machine::released`].
    Release {
        /// The epoch held.
        epoch: Epoch,
        /// Its token.
        token: Token,
    },
    /// Find out the set's present owner, for people.
    LookWho,
    /// The phase changed: publish it.
    Show,
}
