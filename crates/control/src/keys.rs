//! Change of the cluster key: its preconditions, and the remaining steps. Input: the reports of all gateways; nothing
//! here is replicated. For a change of a set's data key see [`data`].
//!
//! ```text
//!   every gateway has both keys ─▶ each set's data keys, in group 0 ─▶ each gateway's node.key ─▶ each set's head in its store ─▶ old key goes
//! ```
//! KEY-Y1  The new key wraps nothing before every gateway has reported that it has it.
//! KEY-Y2  A gateway with both keys opens everything after any number of steps, in any order. An interrupted change
//!     does no harm; repeating the request completes it.
//! KEY-Y3  Once no step remains, the new key alone opens everything.
//!
//! Keys are named by their fingerprints, never by anything else.

pub mod data;

use holdfast_types::{MemberId, Name, SetId};
use std::collections::BTreeMap;
use std::fmt;

/// The keys of one gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AtHand {
    /// `[key]` of its settings: wraps.
    pub current: u64,
    /// `[key_previous]`: still opens.
    pub previous: Option<u64>,
    /// The key that wraps its `node.key`; `None` if it has no such file.
    pub node: Option<u64>,
}

/// One gateway of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gateway {
    /// Its name.
    pub name: Name,
    /// Its report, or why there is none.
    pub keys: Result<AtHand, String>,
}

/// One set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// Its name.
    pub name: Name,
    /// The key that wraps its data keys in group 0; `None` if that is unreadable.
    pub wrapped_by: Option<u64>,
    /// The key that wraps them in the head in its store, as its leader last saw it; `None` if no gateway has seen it.
    pub head: Option<u64>,
}

/// The keys of all gateways, and the wrapping keys of all sets.
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
        /// It has the new key as the previous one: the two are swapped.
        reversed: bool,
    },
    /// A gateway without an old key that still wraps something.
    NoOldKey {
        /// Which.
        name: Name,
        /// The missing key.
        lacks: u64,
        /// The set that it wraps.
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
                    "gateway {name} does not have key {lacks:016x}, which still wraps the key of set {of}: name it in [key_previous]"
                )
            }
            Objection::Unreadable { set } => write!(f, "the wrapped key of set {set} cannot be read"),
        }
    }
}

/// One remaining step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Wrap a set's data keys anew, in group 0.
    Set(SetId),
    /// Wrap a gateway's `node.key` anew.
    Node(MemberId),
    /// A set's leader replaces its head.
    Head(SetId),
}

/// Reasons against beginning or continuing a change to `target` (KEY-Y1, KEY-Y2); empty if there are none.
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

/// The remaining steps, in order, until only `target` is needed (KEY-Y3).
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
