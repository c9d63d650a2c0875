//! A change of a set's data key: what is done next, and when an old key may go. Decided from what group 0 has, what each gateway says that it has, and what the
//! set's leader says of its roots; nothing here is replicated.
//!
//! ```text
//!   new key in the ring ─▶ every gateway has said that it has it ─▶ sealed under from now on ─▶ the rest is written anew, by collection
//!     ─▶ nothing that can still be read needs an old key ─▶ that goes: out of the ring, and out of the head in the store
//! ```
//! DATAKEY-Z1  Nothing is sealed under a key before every gateway has said that it has it. So whoever comes to lead can read what the one before has written.
//! DATAKEY-Z2  Whoever has seen something sealed under a key seals under no lower one: a root is never under a lower key than the root that it was built on.
//! DATAKEY-Z3  A key goes only where it is lower than that of the current root, no root that is kept or waits to be looked through needs it, and the head in the store
//!     names nothing else. By DATAKEY-Z2 that stays true whatever comes later, so it does no harm if the word of it is old.
//! DATAKEY-Z4  Numbers of keys grow, and none comes back.

use holdfast_types::Name;
use std::collections::BTreeSet;
use std::fmt;

/// The data keys of a set that there may be at once. Each is 108 bytes in group 0 and in the head, and an attempt more at what it does not open.
pub const DATA_KEYS_MAX: usize = 8;

/// The data keys of a set, as group 0 has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ring {
    /// Their numbers.
    pub keys: BTreeSet<u32>,
    /// Which one things are sealed under, as far as every gateway has it (DATAKEY-Z1).
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
    /// The last one is not in use yet.
    #[error(
        "data key {newest} is new, and not every gateway has said that it has it: wait for that (holdfast key list)"
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
///
/// # Errors
/// [`NoNewKey`].
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

/// A root of the set that its leader knows of, and the keys that it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// What it is, for people.
    pub what: String,
    /// Every key that the root, or what it names, is under.
    pub keys: BTreeSet<u32>,
}

/// What the leader of a set says of one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// The key of the current root; 0 where there is none.
    pub root: u32,
    /// The keys that the current root, the roots of snapshots, those that clones show, and those that were dropped and not looked through yet need.
    pub needed: BTreeSet<u32>,
    /// The head in the store names the current root or a later one of this leader, and nothing that the set has let go of.
    pub settled: bool,
}

impl Needs {
    /// Of what a leader knows: the current root's own key, and everything that holds keys, the current root among it.
    pub fn of<'a>(root: u32, holders: impl IntoIterator<Item = &'a Holder>, settled: bool) -> Self {
        Self { root, needed: holders.into_iter().flat_map(|holder| holder.keys.iter().copied()).collect(), settled }
    }

    /// DATAKEY-Z3, for the keys that it speaks of.
    pub fn may_go(&self, ring: &Ring) -> BTreeSet<u32> {
        if !self.settled {
            return BTreeSet::new();
        }
        ring.keys.iter().copied().filter(|key| *key < self.root && !self.needed.contains(key)).collect()
    }
}

/// What a gateway says of a set's data keys, or why it says nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// Which gateway.
    pub name: Name,
    /// The keys that it has opened.
    pub has: Result<BTreeSet<u32>, String>,
}

/// Something that a change waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waits {
    /// A gateway that has not said that it has the new key.
    Gateway {
        /// Which.
        name: Name,
        /// Why.
        why: String,
    },
    /// The set's leader, which says what needs which key.
    Leader,
}

impl fmt::Display for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Waits::Gateway { name, why } => write!(f, "gateway {name}: {why}"),
            Waits::Leader => f.write_str("nobody leads the set, or its leader has not looked yet"),
        }
    }
}

/// What is to be done for one set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing, for now: what needs the old keys is the leader's to work off.
    Nothing,
    /// This key is sealed under from now on (DATAKEY-Z1).
    Seal(u32),
    /// These go (DATAKEY-Z3).
    Drop(BTreeSet<u32>),
    /// Nothing before these have spoken.
    Waits(Vec<Waits>),
}

/// What is done next about a set's data keys.
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
