//! A change of the cluster key: what must hold before it begins, and what is still to be done. Decided from what every gateway says of
//! itself; nothing here is replicated. A change of a set's data key is [`data`]'s.
//!
//! ```text
//!   every gateway has both keys ─▶ each set's data keys, in group 0 ─▶ each gateway's node.key ─▶ each set's head in its store ─▶ old key goes
//! ```
//! KEY-Y1  Nothing is wrapped by the new key before every gateway has said that it has it.
//! KEY-Y2  A gateway that has both keys opens everything after any number of steps, in any order: a change that was cut short harms nobody,
//!     and the same request again does what is left.
//! KEY-Y3  Once nothing is left, the new key alone opens everything.
//!
//! Keys are named by their fingerprints, never by anything else.

pub mod data;

use holdfast_types::{MemberId, Name, SetId};
use std::collections::BTreeMap;
use std::fmt;

/// The keys that one gateway has at hand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AtHand {
    /// `[key]` of its settings: what it wraps with.
    pub current: u64,
    /// `[key_previous]`: what it still opens with.
    pub previous: Option<u64>,
    /// What wraps its `node.key`; `None` where it has no such file.
    pub node: Option<u64>,
}

/// One gateway of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gateway {
    /// Its name.
    pub name: Name,
    /// What it said, or why it said nothing.
    pub keys: Result<AtHand, String>,
}

/// One set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// Its name.
    pub name: Name,
    /// What wraps its data keys in group 0; `None` where that does not read.
    pub wrapped_by: Option<u64>,
    /// What wraps them in the head in its store, as its leader last saw it; `None` where nobody has seen it.
    pub head: Option<u64>,
}

/// Who has which keys, and what wraps what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Every member.
    pub gateways: BTreeMap<MemberId, Gateway>,
    /// Every set.
    pub sets: BTreeMap<SetId, Set>,
}

/// Why a change of the cluster key does not begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Objection {
    /// A gateway that did not answer.
    Silent {
        /// Which.
        name: Name,
        /// Why.
        why: String,
    },
    /// A gateway that wraps with another key.
    OtherKey {
        /// Which.
        name: Name,
        /// Its key.
        found: u64,
        /// The new key.
        expected: u64,
        /// It has the new key as the previous one: the two are the wrong way round.
        reversed: bool,
    },
    /// A gateway that could not open what is not yet wrapped by the new key.
    NoOldKey {
        /// Which.
        name: Name,
        /// What it lacks.
        lacks: u64,
        /// For what.
        of: Name,
    },
    /// A set whose key does not read.
    Unreadable {
        /// Which.
        set: Name,
    },
}

impl fmt::Display for Objection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Objection::Silent { name, why } => write!(f, "gateway {name} does not say which keys it has: {why}"),
            Objection::OtherKey { name, found, expected, reversed } => {
                write!(f, "gateway {name}: found {found:016x} as [key], expected {expected:016x}")?;
                if *reversed {
                    f.write_str(", which it has as [key_previous]: not every gateway has the new settings yet")
                } else {
                    Ok(())
                }
            }
            Objection::NoOldKey { name, lacks, of } => {
                write!(
                    f,
                    "gateway {name} has not got {lacks:016x}, which set {of} is still wrapped by: name it in [key_previous]"
                )
            }
            Objection::Unreadable { set } => write!(f, "the wrapped key of set {set} does not read"),
        }
    }
}

/// One thing that is still to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Wrap a set's data keys anew, in group 0.
    Set(SetId),
    /// Wrap a gateway's `node.key` anew.
    Node(MemberId),
    /// A set's leader replaces its head.
    Head(SetId),
}

/// Why a change to `target` must not begin or go on (KEY-Y1, KEY-Y2); empty where it may.
pub fn objections(view: &View, target: u64) -> Vec<Objection> {
    let mut found = Vec::new();
    for gateway in view.gateways.values() {
        let name = gateway.name.clone();
        let keys = match &gateway.keys {
            Ok(keys) => keys,
            Err(why) => {
                found.push(Objection::Silent { name, why: why.clone() });
                continue;
            }
        };
        if keys.current != target {
            let reversed = keys.previous == Some(target);
            found.push(Objection::OtherKey { name, found: keys.current, expected: target, reversed });
            continue;
        }
        let lacking = |key: &u64| *key != target && keys.previous != Some(*key);
        let set = view.sets.values().find_map(|s| s.wrapped_by.filter(lacking).map(|key| (key, s.name.clone())));
        if let Some((lacks, of)) = set {
            found.push(Objection::NoOldKey { name, lacks, of });
        }
    }
    let unreadable = view.sets.values().filter(|set| set.wrapped_by.is_none());
    found.extend(unreadable.map(|set| Objection::Unreadable { set: set.name.clone() }));
    found
}

/// What is still to be done until nothing needs another key than `target` (KEY-Y3), in order.
pub fn left(view: &View, target: u64) -> Vec<Step> {
    let sets = view.sets.iter().filter(|(_, set)| set.wrapped_by != Some(target)).map(|(id, _)| Step::Set(*id));
    let nodes = view.gateways.iter().filter(|(_, gateway)| match &gateway.keys {
        Ok(keys) => keys.node.is_some_and(|by| by != target),
        Err(_) => true,
    });
    let heads = view.sets.iter().filter(|(_, set)| set.head != Some(target)).map(|(id, _)| Step::Head(*id));
    sets.chain(nodes.map(|(id, _)| Step::Node(*id))).chain(heads).collect()
}

#[cfg(test)]
mod tests;
