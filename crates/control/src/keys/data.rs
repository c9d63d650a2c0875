//! Change of a set's data key: the next step, and when an old key may be removed. Input: group 0, the reports of all
//! gateways, and the leader's report of its roots; nothing here is replicated.
//!
//! ```text
//!   new key in the ring ─▶ every gateway has reported it ─▶ it seals from now on ─▶ garbage collection writes the rest again
//!     ─▶ no readable object needs an old key ─▶ old keys are removed from the ring, and from the head in the store
//! ```
//! DATAKEY-Z1  A key seals nothing before every gateway that may serve the set has reported that it has it. So each new
//!     leader can read its predecessor's objects. A gateway that gets a place in the set later learns of that from
//!     group 0's log, after the key (VOTERS-V1).
//! DATAKEY-Z2  A gateway that has seen an object under a key seals under no lower key: a root's key is never lower than
//!     that of the root that it was built on.
//! DATAKEY-Z3  A key is removed only if it is lower than that of the current root, no retained or unprocessed dropped
//!     root needs it, and the head in the store names no other root. By DATAKEY-Z2 this stays true, so a stale report
//!     does no harm.
//! DATAKEY-Z4  Numbers of keys only grow, and are never reused.

use holdfast_types::Name;
use std::collections::BTreeSet;
use std::fmt;

/// Most data keys of a set at once. Each takes 108 bytes in group 0 and in the head, and one more attempt at objects
/// that do not open.
pub const DATA_KEYS_MAX: usize = 8;

/// The data keys of a set, as group 0 has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ring {
    /// Their numbers.
    pub keys: BTreeSet<u32>,
    /// The sealing key, as far as every gateway has it (DATAKEY-Z1).
    pub seals: u32,
}

impl Ring {
    /// The newest key.
    pub fn newest(&self) -> u32 {
        self.keys.last().copied().unwrap_or(0)
    }

    /// Whether anything is left of a change.
    pub fn is_changing(&self) -> bool {
        self.keys.len() > 1
    }
}

/// Why no new key is made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoNewKey {
    /// The newest key is not in use yet.
    #[error(
        "data key {newest} is new, and not every gateway has confirmed that it has it: wait for that (holdfast key list)"
    )]
    Beginning {
        /// The newest.
        newest: u32,
    },
    /// Too many are needed still.
    #[error(
        "the set has {found} data keys, and no more than {max} are kept at once: holdfast key list shows what needs the old ones"
    )]
    TooMany {
        /// Found.
        found: usize,
        /// At most.
        max: usize,
    },
    /// There is no number left.
    #[error("the numbers of data keys are used up at {newest}")]
    Last {
        /// The newest.
        newest: u32,
    },
}

/// The number of the next key (DATAKEY-Z4).
pub fn next_key(ring: &Ring) -> Result<u32, NoNewKey> {
    let newest = ring.newest();
    if ring.seals < newest {
        return Err(NoNewKey::Beginning { newest });
    }
    if ring.keys.len() >= DATA_KEYS_MAX {
        return Err(NoNewKey::TooMany { found: ring.keys.len(), max: DATA_KEYS_MAX });
    }
    newest.checked_add(1).ok_or(NoNewKey::Last { newest })
}

/// A root that the set's leader knows, and the keys that it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Description, for display.
    pub what: String,
    /// Every key of the root and its objects.
    pub keys: BTreeSet<u32>,
}

/// The report of a set's leader, for one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// The key of the current root; 0 where there is none.
    pub root: u32,
    /// Keys that are needed by the current root, by roots of snapshots and clones, and by unprocessed dropped roots.
    pub needed: BTreeSet<u32>,
    /// The head in the store names the current root or a later one of this leader, and nothing that the set has
    /// released.
    pub settled: bool,
}

impl Needs {
    /// From a leader's view: the current root's key, and all holders of keys, the current root among them.
    pub fn of<'a>(root: u32, holders: impl IntoIterator<Item = &'a Holder>, settled: bool) -> Self {
        Self { root, needed: holders.into_iter().flat_map(|holder| holder.keys.iter().copied()).collect(), settled }
    }

    /// The keys of the ring that may be removed (DATAKEY-Z3).
    pub fn may_go(&self, ring: &Ring) -> BTreeSet<u32> {
        if !self.settled {
            return BTreeSet::new();
        }
        ring.keys.iter().copied().filter(|key| *key < self.root && !self.needed.contains(key)).collect()
    }
}

/// A gateway's report of a set's data keys, or why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// Which gateway.
    pub name: Name,
    /// The keys that it has opened.
    pub has: Result<BTreeSet<u32>, String>,
}

/// A condition that a change waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waits {
    /// A gateway that has not reported the new key.
    Gateway {
        /// Which.
        name: Name,
        /// Why.
        why: String,
    },
    /// The set's leader, which reports the needed keys.
    Leader,
}

impl fmt::Display for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Waits::Gateway { name, why } => write!(f, "gateway {name}: {why}"),
            Waits::Leader => f.write_str("the set has no leader, or its leader has not checked its roots yet"),
        }
    }
}

/// The next step for one set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing now: the leader still works off what needs the old keys.
    Nothing,
    /// This key is sealed under from now on (DATAKEY-Z1).
    Seal(u32),
    /// These go (DATAKEY-Z3).
    Drop(BTreeSet<u32>),
    /// Nothing before these have spoken.
    Waits(Vec<Waits>),
}

/// The next step for a set's data keys.
pub fn next(ring: &Ring, gateways: &[Said], leader: Option<&Needs>) -> Next {
    if !ring.is_changing() {
        return Next::Nothing;
    }
    let newest = ring.newest();
    if ring.seals < newest {
        let lacks = |said: &Said| {
            let why = match &said.has {
                Ok(has) if has.contains(&newest) => return None,
                Ok(_) => format!("has not got data key {newest} yet"),
                Err(why) => format!("does not say whether it has data key {newest}: {why}"),
            };
            Some(Waits::Gateway { name: said.name.clone(), why })
        };
        let waits: Vec<Waits> = gateways.iter().filter_map(lacks).collect();
        return if waits.is_empty() { Next::Seal(newest) } else { Next::Waits(waits) };
    }
    let Some(needs) = leader else { return Next::Waits(vec![Waits::Leader]) };
    let gone = needs.may_go(ring);
    if gone.is_empty() { Next::Nothing } else { Next::Drop(gone) }
}

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;
