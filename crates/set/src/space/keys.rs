//! Finds out, at the set's leader, which objects need which data key while there is more than one (ADR 0023). Group 0's
//! leader acts on it (DATAKEY-Z3).

use crate::mapping::{MapError, Mapping};
use crate::references::Shelf;
use crate::server::SetServer;
use crate::set_key::KeyReport;
use holdfast_control::keys::data::{Holder, Needs, Ring};
use holdfast_control::set::{RootRef, SetState};
use holdfast_types::{ObjectId, Term};
use holdfast_volume::map::KeyUse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

/// Time before a requested checkpoint that did not happen is requested again.
const ASK_AGAIN: Duration = Duration::from_secs(120);

/// Facts learned about roots.
#[derive(Debug, Default)]
pub(super) struct KeysOfRoots {
    /// Keys that each root needs, by its object: a root never changes.
    known: BTreeMap<ObjectId, BTreeSet<u32>>,
    /// How much of the current root is under which key.
    uses: Option<(ObjectId, BTreeMap<u32, KeyUse>)>,
    /// Term and time of the request for a checkpoint that makes the head name one of this leader.
    asked: Option<(Term, Instant)>,
}

/// Every root that can still be read, and its purpose; an empty text for the current one.
fn holders(state: &SetState) -> Vec<(String, RootRef)> {
    let current = state.current_root().map(|root| (String::new(), root));
    let snapshots = state.snapshots.iter().map(|(name, snapshot)| (format!("snapshot {name}"), snapshot.root));
    let pins = state.pins().map(|(_, pin)| (format!("its clone, set {}", pin.clone), pin.root));
    let dropped = state.dropped.iter().map(|(object, bytes)| {
        ("a checkpoint that is not examined yet".to_string(), RootRef { object: *object, bytes: *bytes })
    });
    current.into_iter().chain(snapshots).chain(pins).chain(dropped).collect()
}

impl KeysOfRoots {
    /// There is only one key: forgets what was learned, and withdraws the report.
    pub(super) fn clear(&mut self, server: &SetServer, mapping: &Mapping) {
        mapping.key.tell(None);
        if std::mem::take(self).uses.is_some() {
            metrics::gauge!("holdfast_data_key_older_bytes", "set" => server.name.to_string()).set(0.0);
        }
    }

    /// Examines the roots of `state` for the keys of `ring` that they need, and reports the result. `ring` is not newer
    /// than `state`.
    ///
    /// # Errors
    /// A root could not be read: its keys are unknown, and nothing is reported.
    pub(super) async fn look(
        &mut self,
        term: Term,
        ring: &Ring,
        state: &SetState,
        server: &SetServer,
        mapping: &Mapping,
        roots: &mut Shelf,
    ) -> Result<(), MapError> {
        let named = holders(state);
        self.known.retain(|object, _| named.iter().any(|(_, root)| root.object == *object));
        let mut found = Vec::new();
        for (what, at) in named {
            let keys = match self.known.get(&at.object) {
                Some(keys) => keys.clone(),
                None => match mapping.known_once(at).await {
                    Ok(root) => root.keys_needed(),
                    // A dropped root that is lost: the sweep finds its objects by a listing.
                    Err(e) if e.is_lost() && state.dropped.contains_key(&at.object) => BTreeSet::new(),
                    // The needed keys are unknown then, and no key is removed.
                    Err(e) => return Err(e),
                },
            };
            self.known.insert(at.object, keys.clone());
            found.push(Holder { what, keys });
        }
        let current = match state.current_root() {
            Some(at) => Some(roots.root(at).await?),
            None => None,
        };
        let root_key = current.as_ref().map_or(0, |root| root.key_id());
        let head = &server.head;
        let settled = state.rolled_back.is_none() && head.links_settled(state, term) && head.committed_in(term);
        let newest = ring.newest();
        let old = |holder: &Holder| holder.keys.iter().copied().filter(|key| *key < newest).collect::<Vec<_>>();
        let named = found.iter().filter(|holder| !holder.what.is_empty());
        let held = named.flat_map(|holder| old(holder).into_iter().map(|key| (key, holder.what.clone()))).collect();
        let needs = Needs::of(root_key, &found, settled);
        // Everything else is done: request a checkpoint, so that the head names one of this leader.
        let last = !Needs { settled: true, ..needs.clone() }.may_go(ring).is_empty();
        let asked = self.asked.filter(|(in_term, at)| *in_term == term && at.elapsed() < ASK_AGAIN);
        if last && !head.committed_in(term) && asked.is_none() {
            self.asked = Some((term, Instant::now()));
            head.want_checkpoint();
        }
        let uses = match (state.current_root(), current) {
            (Some(at), Some(root)) => match self.uses.take().filter(|(known, _)| *known == at.object) {
                Some((_, uses)) => uses,
                None => root.key_uses(),
            },
            _ => BTreeMap::new(),
        };
        self.uses = state.current_root().map(|at| (at.object, uses.clone()));
        let older = uses.iter().filter(|(key, _)| **key < newest).map(|(_, usage)| usage.stored_bytes).sum::<u64>();
        metrics::gauge!("holdfast_data_key_older_bytes", "set" => server.name.to_string()).set(older as f64);
        mapping.key.tell(Some(KeyReport { needs, uses, held }));
        Ok(())
    }
}
