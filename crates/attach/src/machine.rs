//! State machine of an attached set: which gateway serves it, which requests are unanswered, when it is lost or over.
//!
//! ```text
//!  acquiring ─granted─▶ connecting ─all connected─▶ serving ─lost─▶ reconnecting ─continued, all connected─▶ serving
//!                                                      │                 │
//!                                                      └─ an error answer, or the lease is another's ─▶ fenced
//!                                                      └─ detach: drained, released ─▶ detached
//! ```
//!
//! ATTACH-M1  At most one unanswered write covers a sector: a later one that overlaps it is held back until it is answered. So a replay puts
//!     back what is there already or what must come, in any order, and never takes a sector back to an older write.
//! ATTACH-M2  A request is sent under one generation at a time. Before another one begins, all sockets of the last are shut, and the lease was continued
//!     under a new epoch (R6): what still stands in a receive buffer of the old gateway can never be carried out.
//! ATTACH-M3  After a loss everything unanswered is sent again in its original order before anything new is sent.
//! ATTACH-M4  An answer counts only in the generation that the request was sent in last.
//! ATTACH-M5  Fenced is for good: everything unanswered and everything that comes is answered with EIO, nothing is sent any more (R8).
//! ATTACH-M6  The lease is lost to another owner only by a gateway's final word. Silence, refusals to serve and closed connections are none.
//! ATTACH-M7  A request's age alone never ends a connection: a store may be slow for minutes (R8). Old requests only make us ask the gateway
//!     whether it is there, and its silence to *that* is a loss.
//! ATTACH-M8  A volume that is not what its device was made of any more (deleted, shrunk, renamed) fails alone and for good: its requests are answered with
//!     EIO and it is connected to no more, whatever becomes of it; the others go on. Without any volume left the set is over like a fenced one.
//!
//! Owns: phases, generations, the table of unanswered requests, times. Does not own: sockets, the clock, randomness: moments come in
//! as arguments, request ids are counted up from a random base.

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
    /// How long ago `earlier` was; zero where it was not.
    pub fn since(self, earlier: Moment) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    /// So much later.
    pub fn plus(self, time: Duration) -> Moment {
        Moment(self.0.saturating_add(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)))
    }
}

/// Where an attached set stands.
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
    /// Another owner holds the set: every request fails, for good.
    Fenced,
    /// Asked to end: what is unanswered is waited for.
    Detaching,
    /// Over; the lease was given back.
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
    /// Its number in the set, which no other volume ever has; 0 where it is not known.
    pub id: u32,
    /// Its name.
    pub name: Name,
    /// Its size in bytes.
    pub size: u64,
}

impl VolumeFacts {
    /// What keeps a device of this volume from going on with what a later grant names; `None` where nothing does. Volumes that came since are no
    /// matter, and one that grew is what it was ([`Self::grown_in`]).
    pub fn lost_in(&self, granted: &[VolumeFacts]) -> Option<String> {
        let same = |other: &&VolumeFacts| if self.id == 0 { other.name == self.name } else { other.id == self.id };
        match granted.iter().find(same) {
            None => Some(format!("volume {} is gone", self.name)),
            Some(other) if other.name != self.name => Some(format!("volume {} is {} now", self.name, other.name)),
            Some(other) if other.size < self.size => {
                let (found, expected) = (other.size, self.size);
                Some(format!("volume {}: found {found} bytes, expected {expected} as before", self.name))
            }
            Some(_) => None,
        }
    }

    /// What keeps a device of this volume from going on after these shrinks, as far as they are later than `since`: what was discarded is gone, whatever size the volume
    /// has by now. The device had its size at `since` already: of a shrink before it grew it knows nothing, and loses nothing by it.
    pub fn cut_in(&self, cuts: &[Cut], since: Epoch) -> Option<String> {
        let ours = cuts.iter().filter(|cut| self.id != 0 && cut.volume == self.id);
        let less = ours.filter(|cut| cut.at > since && cut.size < self.size);
        let deepest = less.map(|cut| cut.size).min()?;
        let (name, expected) = (&self.name, self.size);
        Some(format!("volume {name}: found it cut to {deepest} bytes meanwhile, expected {expected} all the time"))
    }

    /// The size that this volume has grown to by what a gateway names; `None` where it has not, or is not surely the same one. Smaller is not followed: ATTACH-M8.
    pub fn grown_in(&self, named: &[VolumeFacts]) -> Option<u64> {
        let same = |other: &&VolumeFacts| self.id != 0 && other.id == self.id && other.name == self.name;
        named.iter().find(same).map(|other| other.size).filter(|size| *size > self.size)
    }
}

/// A shrink of a volume, as a gateway tells of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The volume's number in the set.
    pub volume: u32,
    /// When: it is later than a grant of a lower epoch.
    pub at: Epoch,
    /// What it left, in bytes.
    pub size: u64,
}

/// Shrinks as an answer of a gateway tells of them, beside the volumes that it names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cuts {
    /// Both are as of this place in the log, in the numbers of [`Cut::at`]. `None` at a gateway of an older build, which tells of no shrinks.
    pub as_of: Option<Epoch>,
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
    /// Where the serving gateway serves NBD, `HOST:PORT`.
    pub nbd: String,
}

/// Which of the set's connections, in which generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lane {
    /// Grows with every reconnect of the set.
    pub generation: u64,
    /// Index of the volume.
    pub volume: usize,
    /// Which of the volume's connections.
    pub slot: u8,
}

/// Whom an answer goes to.
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

/// What a request came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Done; nothing to hand over.
    Done,
    /// What was read.
    Read(Vec<ReadPart>),
    /// What is allocated.
    Status(Vec<Extent>),
}

/// Something to carry out, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask the gateways for the lease until one grants it, or finally does not.
    Acquire {
        /// Identity of the request (R12).
        request: RequestId,
        /// Take it even if another owner holds it.
        force: bool,
    },
    /// Ask the gateways to continue the lease until one does, or finally does not.
    Continue {
        /// Identity of the request (R12).
        request: RequestId,
        /// The token held last.
        token: Token,
    },
    /// Renew once, and say how that went.
    Renew {
        /// Comes back with the outcome.
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
        /// Which.
        lane: Lane,
        /// Where to, `HOST:PORT`.
        nbd: String,
        /// With this token.
        token: Token,
    },
    /// Close every connection of this generation and of those before, at once.
    Shut {
        /// The last one to close.
        generation: u64,
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
        /// Whom.
        ticket: Ticket,
        /// What.
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
    /// Find out who holds the set now, for people.
    LookWho,
    /// The phase changed: show it.
    Show,
}
