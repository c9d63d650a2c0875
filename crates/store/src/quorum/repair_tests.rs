//! Notes over time, and the order in which they are handled.

use super::*;
use crate::keys;
use crate::{BoxFuture, Head, ListPage, Memory, Object, ObjectStore, StoreError, Version};
use futures_util::FutureExt;
use holdfast_types::SetId;
use holdfast_types::sync::LockExt;
use holdfast_types::{GroupId, MemberId, Term};

const SET: SetId = GroupId(1);

fn id(random: u128) -> ObjectId {
    ObjectId { term: Term(1), member: MemberId(1), boot: 1, random }
}

fn three() -> Arc<Quorum> {
    Quorum::new((0..3).map(|_| (Arc::new(Memory::new()) as Arc<dyn ObjectStore>, None)).collect(), 2)
}

fn lets_pass(all: &Quorum, time: Duration) {
    for replica in &all.replicas {
        let mut missing = replica.missing.locked();
        let earlier = |at: Instant| at.checked_sub(time).expect("the clock goes back so far");
        missing.compared = missing.compared.map(earlier);
        for note in missing.keys.values_mut() {
            note.since = earlier(note.since);
            note.failed = note.failed.map(earlier);
        }
    }
}

/// Filling a store takes longer than notes wait for a root, while the root changes.
#[test]
fn what_a_comparison_noted_is_not_forgotten_when_its_root_is_replaced() {
    let all = three();
    let (first, second, third) = (id(101), id(102), id(103));
    let key = keys::segment(SET, id(1));
    all.compare_begins(1);
    assert!(all.lacks(1, &key, 7, first, false));
    all.compared(1, true);
    lets_pass(&all, UNNAMED_FOR + Duration::from_secs(1));
    let judged = Instant::now();
    assert!(all.wanted(1, |root| root == second, 100).is_empty());
    assert_eq!(
        all.unnamed(Some(judged)),
        std::slice::from_ref(&key),
        "looked at again, though the second root was looked at before"
    );
    all.named(&key, 7, second);
    assert_eq!(all.wanted(1, |root| root == second, 100).len(), 1);
    // The same without a turn in between.
    lets_pass(&all, UNNAMED_FOR + Duration::from_secs(1));
    all.let_go(|root| root == third);
    assert_eq!(all.unnamed(None), [key]);
}

#[test]
fn a_store_whose_notes_were_dropped_is_not_shown_as_complete() {
    let all = three();
    all.compared(1, true);
    all.replicas[1].note_missing(&keys::segment(SET, id(1)), 7);
    lets_pass(&all, UNNAMED_FOR - Duration::from_secs(60));
    assert_eq!(all.unnamed(None).len(), 1);
    all.compared(1, true);
    lets_pass(&all, Duration::from_secs(61));
    assert!(all.unnamed(None).is_empty(), "no root came to name it");
    let backlog = all.replicas[1].backlog();
    assert_eq!((backlog.objects, backlog.compared), (0, false), "some other kept root may name it");
    assert!(!all.must_compare(1), "not at once again");
    lets_pass(&all, UNNAMED_FOR);
    assert!(all.must_compare(1));
    all.compare_begins(1);
    all.compared(1, true);
    assert!(all.replicas[1].backlog().compared);
}

#[tokio::test]
async fn a_hundred_objects_that_no_store_has_starve_nothing() {
    let all = three();
    let good = keys::segment(SET, id(1000));
    all.replicas[0].store.put_new(&good, Bytes::from_static(b"good")).await.expect("put");
    for at in 1..=100 {
        all.lacks(1, &keys::segment(SET, id(at)), 4, id(9999), false);
    }
    all.lacks(1, &good, 4, id(9999), false);
    // Each turn skips a few and ends, and then so many seconds pass that the first ones are due again.
    for _ in 0..20 {
        for wanted in all.wanted(1, |_| true, 8) {
            let _ = all.copy(1, &wanted, &|_, _| Ok(())).await;
        }
        lets_pass(&all, AGAIN_AFTER / 2);
    }
    all.replicas[1].store.get(&good).await.expect("copied");
    let backlog = all.replicas[1].backlog();
    assert_eq!((backlog.objects, backlog.stuck), (100, 100));
    // Of those that failed, the one that waited longest comes first.
    lets_pass(&all, AGAIN_AFTER);
    let first = all.wanted(1, |_| true, 1);
    let _ = all.copy(1, &first[0], &|_, _| Ok(())).await;
    lets_pass(&all, AGAIN_AFTER);
    assert_ne!(all.wanted(1, |_| true, 1), first);
}

/// Until the checkpoint ends, no root names the objects that it had put in a store that was emptied.
#[test]
fn a_store_that_lost_its_entry_within_a_checkpoint_is_complete_after_the_next_root() {
    let all = three();
    let compare = || {
        all.compare_begins(1);
        all.compared(1, true);
        all.replicas[1].backlog().compared
    };
    let (first, second) = (Some(id(101)), Some(id(102)));
    all.root_is(first, true);
    assert!(compare());
    all.replicas[1].head_lost(true);
    assert!(!compare());
    all.root_is(first, true);
    assert!(!compare(), "the checkpoint goes on");
    all.root_is(second, true);
    assert!(all.must_compare(1), "now a root names it");
    assert!(compare());
    // If no checkpoint is under way there is nothing to wait for.
    all.replicas[1].head_lost(true);
    all.root_is(second, false);
    assert!(all.must_compare(1) && compare());
}

#[test]
fn a_store_that_another_gateway_mended_is_compared() {
    let all = three();
    let compare = || {
        all.compare_begins(1);
        all.compared(1, true);
        !all.must_compare(1)
    };
    assert!(compare());
    all.replicas[1].restarts(1, 0);
    assert!(!all.must_compare(1), "the restart that it had all the time");
    all.replicas[1].restarts(1, 1);
    assert!(all.must_compare(1), "it was lost meanwhile");
    assert!(compare());
    all.replicas[1].restarts(1, 1);
    all.replicas[1].restarts(1, 0);
    assert!(!all.must_compare(1), "a late answer of a store says nothing new");
}

#[test]
fn a_comparison_that_began_before_another_was_asked_for_counts_for_nothing() {
    let all = three();
    all.compare_begins(1);
    all.replicas[1].head_lost(true);
    all.compared(1, true);
    assert!(!all.replicas[1].backlog().compared && all.must_compare(1), "what was listed before may be gone");
    all.compare_begins(1);
    all.compared_in_part(1);
    assert!(
        !all.replicas[1].backlog().compared && !all.must_compare(1),
        "a root that was not read is tried again later"
    );
    lets_pass(&all, UNREAD_AGAIN);
    assert!(all.must_compare(1));
}

/// MOVE-V3: the store may still lack what the last comparison left out, and a list of stores ends by this answer.
#[test]
fn a_comparison_that_has_not_ended_makes_no_store_complete() {
    type Leaves = fn(&Quorum);
    let more_than_can_be_noted: Leaves = |all| all.compared(1, false);
    let root_unread: Leaves = |all| all.compared_in_part(1);
    for leaves_out in [more_than_can_be_noted, root_unread] {
        let all = three();
        all.compare_begins(1);
        leaves_out(&all);
        lets_pass(&all, UNREAD_AGAIN);
        assert!(all.must_compare(1) && !all.replicas[1].backlog().compared);
        all.compare_begins(1);
        assert!(!all.replicas[1].backlog().compared, "it is under way");
        assert!(all.must_compare(1), "it is due again if the store does not list");
        all.compare_begins(1);
        all.compared(1, true);
        assert!(!all.must_compare(1) && all.replicas[1].backlog().compared);
    }
}

/// A store that executes DELETEs after it has answered them, as can happen if one was sent a second time because the
/// first got no answer (R12).
#[derive(Debug, Default)]
struct Behind {
    within: Memory,
    deleted: std::sync::Mutex<Vec<String>>,
}

impl Behind {
    fn catch_up(&self) {
        for key in self.deleted.locked().drain(..) {
            self.within.delete(&key).now_or_never().expect("at once").expect("deleted");
        }
    }
}

impl ObjectStore for Behind {
    fn place(&self) -> &str {
        self.within.place()
    }
    fn put_new<'a>(&'a self, key: &'a str, body: Bytes) -> BoxFuture<'a, Result<(), StoreError>> {
        self.within.put_new(key, body)
    }
    fn get_object<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Object, StoreError>> {
        self.within.get_object(key)
    }
    fn get_range<'a>(&'a self, key: &'a str, range: std::ops::Range<u64>) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        self.within.get_range(key, range)
    }
    fn head<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Head, StoreError>> {
        self.within.head(key)
    }
    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), StoreError>> {
        self.deleted.locked().push(key.to_owned());
        self.within.delete(key)
    }
    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a str>) -> BoxFuture<'a, Result<ListPage, StoreError>> {
        self.within.list(prefix, after)
    }
    fn swap<'a>(
        &'a self,
        key: &'a str,
        expected: Option<&'a Version>,
        body: Bytes,
    ) -> BoxFuture<'a, Result<Version, StoreError>> {
        self.within.swap(key, expected, body)
    }
}

/// The key is named: nothing that is under way to the store may delete what the repair writes there.
#[tokio::test]
async fn a_spoilt_copy_is_replaced_and_nothing_comes_after_it() {
    let behind = Arc::new(Behind::default());
    let stores: [Arc<dyn ObjectStore>; 3] = [Arc::new(Memory::new()), behind.clone(), Arc::new(Memory::new())];
    let all = Quorum::new(stores.into_iter().map(|store| (store, None)).collect(), 2);
    let check = |_: &str, body: &Bytes| if body == "good" { Ok(()) } else { Err("does not open".to_owned()) };
    let key = keys::segment(SET, id(1));
    all.replicas[0].store.put_new(&key, Bytes::from_static(b"good")).await.expect("put");
    for (found, damaged) in [(&b"evil"[..], true), (b"longer", false), (b"", false)] {
        behind.within.delete(&key).await.expect("emptied");
        behind.within.put_new(&key, Bytes::from_static(found)).await.expect("put");
        all.lacks(1, &key, 4, id(9), damaged);
        let wanted = all.wanted(1, |_| true, 8);
        assert_eq!(all.copy(1, &wanted[0], &check).await.expect("copied"), 4);
        behind.catch_up();
        assert_eq!(behind.get(&key).await.expect("there"), "good", "{found:?}");
        assert!(all.wanted(1, |_| true, 8).is_empty());
    }
}
