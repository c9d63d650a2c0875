//! A change of a set's stores is asked for, or abandoned (ADR 0018). What group 0 orders, and the set's leader carries through, is not done here; this looks
//! at the stores that are to be, before anybody relies on them.

use super::AdminDoor;
use super::member::invalid;
use super::stores::{OPEN_LIMIT, open_within};
use crate::node::Adopted;
use holdfast_api::{Refusal, RefusalCode, v1};
use holdfast_control::cluster::{ClusterAnswer, ClusterCommand};
use holdfast_store::{Stores, keys};
use holdfast_types::{Placement, PlacementPhase, SetId, Term};
use std::time::Duration;

/// One new store may take so long to say that it has nothing of the set.
const LOOK_LIMIT: Duration = Duration::from_secs(10);

fn precondition(message: String) -> Refusal {
    Refusal::new(RefusalCode::Precondition, message)
}

/// What is to be, as it follows from what is and what is asked for.
fn wished(request: &v1::ChangeStoresRequest, now: &Placement) -> Result<Placement, Refusal> {
    let name = &request.set;
    if request.abandon {
        return match &now.next {
            Some((PlacementPhase::Ending, _)) => Err(precondition(format!(
                "set {name}: the change is decided and goes to its end; once it is done, `holdfast set stores change` goes back"
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
        self.alone(&self.node.changing_sets, change).await
    }

    async fn change_stores_alone(
        &self,
        request: v1::ChangeStoresRequest,
        adopted: &Adopted,
        term: Term,
    ) -> Result<v1::ChangeStoresReply, Refusal> {
        let name = holdfast_api::name("set", &request.set)?;
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
                "set {name} lies in {before}, expected {}: somebody else changed it meanwhile; look at it again",
                request.expected
            )));
        }
        let changed = placement != before;
        if changed && let Some((_, to)) = &wished.next {
            self.look_at_new(id, &now.stores, to).await?;
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

    /// Each store that is new must be there, and have nothing of a set of that number: what lies there would be taken for garbage of this one.
    async fn look_at_new(&self, set: SetId, from: &str, to: &str) -> Result<(), Refusal> {
        let bad = |e: holdfast_store::StoreUrlError| invalid(format!("stores: {e}"));
        let (from, to) = (Stores::parse(from).map_err(bad)?, Stores::parse(to).map_err(bad)?);
        for url in to.urls().iter().filter(|url| !from.urls().contains(url)) {
            let store = open_within(url, OPEN_LIMIT).await?;
            let prefix = keys::of_set(set);
            let listed = tokio::time::timeout(LOOK_LIMIT, store.list(&prefix, None)).await;
            let page = match listed {
                Ok(Ok(page)) => page,
                Ok(Err(error)) => return Err(precondition(format!("store {url}: {error}"))),
                Err(_) => {
                    return Err(precondition(format!(
                        "store {url} does not answer within {} s: a store is added while it is well",
                        LOOK_LIMIT.as_secs()
                    )));
                }
            };
            if let Some(found) = page.objects.first() {
                return Err(precondition(format!(
                    "store {url} has {} already, expected nothing below {prefix}: another cluster's, or what was left there by an earlier change. Give the set another \
                     prefix there, or empty that one first",
                    found.key
                )));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(outcome(&request, done), Ok(done.into()), "asked again when it is done");
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
}
