//! Starts or abandons a change of a set's stores (ADR 0018). Group 0 orders the change, and the set's leader carries it
//! out. This file checks the new stores before anything relies on them.

use super::AdminDoor;
use super::member::{invalid, precondition};
use super::stores::not_opened;
use crate::node::Adopted;
use bytes::Bytes;
use holdfast_api::{Refusal, RefusalCode, v1};
use holdfast_control::cluster::{ClusterAnswer, ClusterCommand};
use holdfast_store::{Disposition, ObjectStore, StoreError, Stores, keys};
use holdfast_types::{Placement, PlacementPhase, SetId, Term};
use std::time::Duration;

/// How long one new store may take to show that it has no data of the set.
const LOOK_LIMIT: Duration = Duration::from_secs(10);

/// The new placement, from the current one and the request.
fn wished(request: &v1::ChangeStoresRequest, now: &Placement) -> Result<Placement, Refusal> {
    let name = &request.set;
    if request.abandon {
        return match &now.next {
            Some((PlacementPhase::Ending, _)) => Err(precondition(format!(
                "set {name}: the change is decided and cannot be stopped; once it is done, `holdfast set stores change` can go back"
            ))),
            _ => Ok(Placement { stores: now.stores.clone(), next: None }),
        };
    }
    let bad = |e: holdfast_store::StoreUrlError| invalid(format!("stores: {e}"));
    let current = Stores::parse(&now.stores).map_err(bad)?;
    let quorum = (request.write_quorum > 0).then_some(request.write_quorum as usize);
    let to = Stores::new(request.stores.clone(), quorum).map_err(bad)?;
    to.check_new().map_err(bad)?;
    if now.next.is_none() && (to.urls(), to.write_quorum()) == (current.urls(), current.write_quorum()) {
        return Ok(now.clone());
    }
    let to = to.after(&current).map_err(bad)?.to_string();
    match &now.next {
        Some((_, under_way)) if *under_way == to => Ok(now.clone()),
        Some((_, under_way)) => Err(precondition(format!(
            "set {name}: its stores are being changed to {under_way}; one change at a time. `holdfast set stores show {name}` says how far it is, `holdfast set stores \
             abandon {name}` goes back while they are being filled"
        ))),
        None => Ok(Placement { next: Some((PlacementPhase::Filling, to)), ..now.clone() }),
    }
}

impl AdminDoor {
    pub(super) async fn change_stores(
        &self,
        request: v1::ChangeStoresRequest,
    ) -> Result<v1::ChangeStoresReply, Refusal> {
        self.led_cluster()?;
        let change =
            move |door: Self, adopted, term| async move { door.change_stores_alone(request, &adopted, term).await };
        self.alone(&self.node.turns.sets, change).await
    }

    async fn change_stores_alone(
        &self,
        request: v1::ChangeStoresRequest,
        adopted: &Adopted,
        term: Term,
    ) -> Result<v1::ChangeStoresReply, Refusal> {
        let name = holdfast_api::name("set", &request.set)?;
        if self.node.config.pair.name.is_some() {
            // A takeover looks for sets only in the stores of its settings (ADR 0031).
            let message = format!(
                "set {name}: the sets of a gateway pair must stay in the stores of its settings; copy its volumes into another set instead"
            );
            return Err(precondition(message));
        }
        let state = self.node.cluster.state();
        let Some((id, entry)) = state.set_named(&name) else {
            return Err(Refusal::new(RefusalCode::NotFound, format!("there is no set {name}")));
        };
        let before = entry.store_url.clone();
        let now = Placement::parse(&before);
        let wished = wished(&request, &now)?;
        let placement = wished.to_string();
        if !request.expected.is_empty() && request.expected != before && placement != before {
            return Err(precondition(format!(
                "set {name} lies in {before}, expected {}: it was changed meanwhile; check it again",
                request.expected
            )));
        }
        let changed = placement != before;
        if changed && let Some((_, to)) = &wished.next {
            if let Some(clone) = state.lost_clone_of(id) {
                let message = format!(
                    "set {name} keeps data of set number {}, a clone that has not been recovered yet: the clone is in the same stores \
                     and could not be recovered after a change of stores. Recover it first (`holdfast cluster recover`)",
                    clone.0
                );
                return Err(precondition(message));
            }
            let new = new_places(&now.stores, to)?;
            // Where none is new to the set, nothing is put anywhere.
            if !new.is_empty() {
                self.places_agree().await?;
            }
            self.look_at_new(id, &new, request.check_only).await?;
        }
        if changed && !request.check_only {
            let command = ClusterCommand::PlaceSet { set: id, expected: before.clone(), placement: placement.clone() };
            match self.cluster_command_in(adopted, term, &command).await? {
                ClusterAnswer::Placed => {}
                other => return Err(Refusal::new(RefusalCode::Unknown, format!("unexpected answer {other:?}"))),
            }
        }
        Ok(v1::ChangeStoresReply { before, placement, changed })
    }

    /// Checks that each new store exists, behaves as sets need it, and has no data of a set with this number, except
    /// from an earlier change of this set. Any other data would be treated as garbage of this set. Then marks the store
    /// as belonging to this set, unless `only_look` is set.
    async fn look_at_new(&self, set: SetId, urls: &[String], only_look: bool) -> Result<(), Refusal> {
        let note = format!("{:032x}\n", self.node.cluster.state().cluster_id);
        let mut new = Vec::new();
        for url in urls {
            let opened = self.node.open_place(url, set).await;
            new.push((url.clone(), opened.map_err(|e| not_opened(&e, format!("store {url}: {e}")))?));
        }
        // Also if `only_look` is set: the caller asked for it, and the check leaves nothing behind.
        let problems = self.check_each(&new).await;
        if let Some((url, error)) = problems.iter().min_by_key(|(_, error)| error.is_undecided()) {
            let well = if error.is_undecided() { "; a store can be added only while it works" } else { "" };
            return Err(precondition(format!("store {url}: {error}{well}")));
        }
        for (url, store) in &new {
            let looked = tokio::time::timeout(LOOK_LIMIT, look_at(&**store, set, &note, only_look)).await;
            match looked {
                Ok(Ok(None)) => {}
                Ok(Ok(Some(found))) => {
                    return Err(precondition(format!(
                        "store {url} has {found} already, expected nothing below {}: data of another cluster, or data that the set left there. \
                         Give the set another prefix there, or empty that one first",
                        keys::of_set(set)
                    )));
                }
                Ok(Err(error)) => return Err(precondition(format!("store {url}: {error}"))),
                Err(_) => {
                    return Err(precondition(format!(
                        "store {url} does not answer within {} s: a store can be added only while it works",
                        LOOK_LIMIT.as_secs()
                    )));
                }
            }
        }
        Ok(())
    }
}

/// The stores of the list `to` that the list `from` does not have.
fn new_places(from: &str, to: &str) -> Result<Vec<String>, Refusal> {
    let bad = |e: holdfast_store::StoreUrlError| invalid(format!("stores: {e}"));
    let (from, to) = (Stores::parse(from).map_err(bad)?, Stores::parse(to).map_err(bad)?);
    Ok(to.urls().iter().filter(|url| !from.urls().contains(url)).cloned().collect())
}

/// The first key that the store lists below `prefix`. A page may be empty although more follows: the loop reads to the
/// end before it reports that there is none.
async fn first_of(store: &dyn ObjectStore, prefix: &str) -> Result<Option<String>, StoreError> {
    let mut after: Option<String> = None;
    loop {
        let page = store.list(prefix, after.as_deref()).await?;
        if let Some(first) = page.objects.into_iter().next() {
            return Ok(Some(first.key));
        }
        after = page.more;
        if after.is_none() {
            return Ok(None);
        }
    }
}

/// The first object in the store that does not belong to the set of the cluster in `note`; if there is none, writes the
/// note.
async fn look_at(
    store: &dyn ObjectStore,
    set: SetId,
    note: &str,
    only_look: bool,
) -> Result<Option<String>, StoreError> {
    let found = first_of(store, &keys::of_set(set)).await?;
    let key = keys::joined(set);
    let ours = match store.get(&key).await {
        Ok(there) => there == note.as_bytes(),
        Err(error) if error.disposition() == Disposition::NotFound => false,
        Err(error) => return Err(error),
    };
    if ours || only_look {
        return Ok(found.filter(|_| !ours));
    }
    if found.is_some() {
        return Ok(found);
    }
    // A conflict is the note of another cluster, which the listing did not show.
    match store.put_new(&key, Bytes::from(note.to_owned())).await {
        Ok(()) => Ok(None),
        Err(error) if error.disposition() == Disposition::Conflict => Ok(Some(key)),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_store::{Faults, Faulty};

    const NOW: &str = "w=2 file:///a file:///b file:///c";

    fn ask(stores: &[&str]) -> v1::ChangeStoresRequest {
        let stores = stores.iter().map(|url| (*url).to_owned()).collect();
        v1::ChangeStoresRequest { set: "demo".into(), stores, ..Default::default() }
    }

    fn outcome(request: &v1::ChangeStoresRequest, now: &str) -> Result<String, RefusalCode> {
        wished(request, &Placement::parse(now)).map(|to| to.to_string()).map_err(|refusal| refusal.code)
    }

    #[test]
    fn what_is_asked_for_is_the_next_list_and_asked_again_the_same() {
        let request = ask(&["file:///b", "file:///c", "file:///d"]);
        let begun = format!("{NOW} | c=2 w=2 file:///b file:///c file:///d");
        assert_eq!(outcome(&request, NOW), Ok(begun.clone()));
        assert_eq!(outcome(&request, &begun), Ok(begun.clone()));
        let decided = begun.replace(" | ", " => ");
        assert_eq!(outcome(&request, &decided), Ok(decided.clone()));
        let done = "c=2 w=2 file:///b file:///c file:///d";
        assert_eq!(outcome(&request, done), Ok(done.into()), "asked again after it is done");
        assert_eq!(outcome(&ask(&["file:///a", "file:///b", "file:///c"]), NOW), Ok(NOW.into()), "where it is");
        assert_eq!(outcome(&ask(&["file:///x", "file:///b", "file:///c"]), &begun), Err(RefusalCode::Precondition));
        assert_eq!(outcome(&ask(&["file:///x", "file:///b"]), NOW), Err(RefusalCode::Invalid), "it could lose none");
        assert_eq!(outcome(&ask(&["file:///x"]), "file:///a"), Ok("file:///a | c=2 file:///x".into()));
    }

    #[test]
    fn it_is_abandoned_while_stores_are_being_filled_and_not_after() {
        let abandon = v1::ChangeStoresRequest { abandon: true, ..ask(&[]) };
        assert_eq!(outcome(&abandon, "file:///a | c=2 file:///b"), Ok("file:///a".into()));
        assert_eq!(outcome(&abandon, "file:///a"), Ok("file:///a".into()));
        assert_eq!(outcome(&abandon, "file:///a => c=2 file:///b"), Err(RefusalCode::Precondition));
    }

    #[tokio::test]
    async fn a_new_store_has_nothing_of_that_number_but_what_an_earlier_change_left() {
        let (set, note) = (holdfast_types::GroupId(4), "cluster a\n");
        let store = holdfast_store::Memory::new();
        assert_eq!(look_at(&store, set, note, true).await.expect("looks"), None);
        assert_eq!(store.len(), 0, "only looked at");
        assert_eq!(look_at(&store, set, note, false).await.expect("looks"), None);
        store.put_new("sets/4/seg/x", Bytes::from_static(b"left there")).await.expect("put");
        assert_eq!(look_at(&store, set, note, false).await.expect("looks"), None, "our own");
        let other = look_at(&store, set, "cluster b\n", false).await.expect("looks");
        assert_eq!(other.as_deref(), Some("sets/4/joined"), "another cluster's set of that number");
        assert!(look_at(&store, set, "cluster b\n", true).await.expect("looks").is_some());
        let store = holdfast_store::Memory::new();
        store.put_new("sets/4/head", Bytes::from_static(b"a head")).await.expect("put");
        assert_eq!(look_at(&store, set, note, false).await.expect("looks").as_deref(), Some("sets/4/head"));
        store.put_new("sets/41/head", Bytes::from_static(b"another number's")).await.expect("put");
        assert_eq!(store.len(), 2);
        // An empty first page does not mean that there is nothing.
        let faults = Faults { empty_first_page: true, ..Faults::default() };
        let store = Faulty::new(store, 1, faults);
        assert_eq!(look_at(&store, set, note, true).await.expect("looks").as_deref(), Some("sets/4/head"));
    }
}
