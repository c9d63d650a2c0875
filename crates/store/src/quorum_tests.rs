//! Three stores in memory, some of which fail, hang, forget or deliver wrong bytes.

use super::state::BEHIND_MAX;
use super::store::LIST_STRAGGLERS;
use super::*;
use crate::{BoxFuture, Disposition, Head, Health, ListPage, Object, ObjectStore, StoreError, Version, keys};
use crate::{Faults, Faulty, Memory, RetryPolicy, Retrying};
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

const HEAD: &str = "sets/1/head";

type One = Arc<Retrying<Faulty<Memory>>>;

fn stores(n: usize) -> Vec<One> {
    let policy = RetryPolicy { attempts_max: 2, backoff_first_ms: 1, backoff_max_ms: 2, ..RetryPolicy::default() };
    (0..n)
        .map(|at| Arc::new(Retrying::new(Faulty::new(Memory::new(), at as u64 + 1, Faults::default()), policy.clone())))
        .collect()
}

fn quorum(stores: &[One], w: usize) -> Arc<Quorum> {
    Quorum::new(stores.iter().map(|store| (store.clone() as Arc<dyn ObjectStore>, None)).collect(), w)
}

fn text(text: impl Into<String>) -> Bytes {
    Bytes::from(text.into())
}

fn down(store: &One, down: bool) {
    store.within().set(Faults { down, ..Faults::default() });
}

async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    for _ in 0..2000 {
        if done().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("{what} did not come about");
}

#[tokio::test]
async fn an_object_counts_once_w_have_it_and_not_before() {
    let stores = stores(3);
    let all = quorum(&stores, 2);
    down(&stores[0], true);
    all.put_new("sets/1/seg/x", text("x")).await.expect("two of three");
    assert_eq!(stores[1].get("sets/1/seg/x").await, Ok(text("x")));
    assert_eq!(stores[2].get("sets/1/seg/x").await, Ok(text("x")));
    until("the note", async || all.standings(0)[0].backlog.objects == 1).await;
    down(&stores[1], true);
    let error = all.put_new("sets/1/seg/y", text("y")).await.expect_err("one of three");
    assert_eq!(error.disposition(), Disposition::Unknown, "{error}");
    down(&stores[1], false);
    all.put_new("sets/1/seg/y", text("y")).await.expect("the same again");
    // Nobody has to wait for the store that is away.
    assert_eq!(all.get("sets/1/seg/y").await, Ok(text("y")));
}

#[tokio::test]
async fn one_that_hangs_is_waited_for_by_nobody_and_keeps_few() {
    let stores = stores(3);
    stores[2].within().set(Faults { slow: 1000, slow_by: Duration::from_secs(3600), ..Faults::default() });
    let all = quorum(&stores, 2);
    for at in 0..20 {
        all.put_new(&format!("sets/1/seg/{at}"), text("x")).await.expect("two of three");
    }
    assert_eq!(all.replicas[2].behind.available_permits(), 0);
    let noted = all.standings(0)[2].backlog.objects;
    assert_eq!(noted, 20 - BEHIND_MAX as u64, "the others are noted for the repair");
    until("the end of what nobody waits for", async || Arc::strong_count(&all.replicas[2]) == 2 + BEHIND_MAX).await;
}

/// A caller with several PUTs polls one of them at a time: a place that another one gets must not be lost meanwhile.
#[tokio::test]
async fn puts_that_nobody_looks_at_keep_no_places() {
    let stores = stores(2);
    let all = quorum(&stores, 2);
    let mut taken = Vec::new();
    for replica in &all.replicas {
        taken.push(replica.behind.clone().acquire_many_owned(BEHIND_MAX as u32).await.expect("free"));
    }
    let keys: Vec<String> = (0..BEHIND_MAX).map(|at| format!("sets/1/seg/{at}")).collect();
    let mut waiting: Vec<_> = keys.iter().map(|key| all.put_new(key, text("x"))).collect();
    for one in &mut waiting {
        let once = std::future::poll_fn(|cx| std::task::Poll::Ready(one.as_mut().poll(cx).is_pending()));
        assert!(once.await, "no place is free");
    }
    drop(taken);
    let put = tokio::time::timeout(Duration::from_secs(20), all.put_new("sets/1/seg/x", text("x"))).await;
    put.expect("those who wait and are not looked at are not in the way").expect("both");
    for one in waiting {
        one.await.expect("and they are done as well");
    }
}

#[tokio::test]
async fn what_one_has_not_another_has() {
    let stores = stores(3);
    let all = quorum(&stores, 2);
    stores[2].put_new("sets/1/seg/x", text("0123")).await.expect("put");
    assert_eq!(all.get_range("sets/1/seg/x", 1..3).await, Ok(text("12")));
    assert_eq!(ObjectStore::head(&all, "sets/1/seg/x").await.expect("head").bytes, 4);
    let error = all.get("sets/1/seg/none").await.expect_err("nowhere");
    assert_eq!(error.disposition(), Disposition::NotFound);
    down(&stores[0], true);
    let error = all.get("sets/1/seg/none").await.expect_err("perhaps there");
    assert!(error.may_pass(), "R7: a store that does not answer may have it: {error}");
    assert_eq!(all.get("sets/1/seg/x").await, Ok(text("0123")));
}

#[tokio::test]
async fn a_silent_first_store_is_passed_over_and_a_doubted_object_is_read_elsewhere() {
    let stores = stores(3);
    let all = quorum(&stores, 2);
    for (at, store) in stores.iter().enumerate() {
        store.put_new("sets/1/seg/x", text(format!("copy {at}"))).await.expect("put");
    }
    assert_eq!(all.get("sets/1/seg/x").await, Ok(text("copy 0")));
    stores[0].within().set(Faults { slow: 1000, slow_by: Duration::from_secs(3600), ..Faults::default() });
    assert_eq!(all.get("sets/1/seg/x").await, Ok(text("copy 1")));
    let object = id(1);
    let key = keys::segment(SET, object);
    down(&stores[0], false);
    for (at, store) in stores.iter().enumerate() {
        store.put_new(&key, text(format!("copy {at}"))).await.expect("put");
    }
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push(all.get(&key).await.expect("get"));
        all.doubt(object);
    }
    seen.sort();
    assert_eq!(seen, ["copy 0", "copy 1", "copy 2"].map(text), "each store is asked once");
}

fn hangs(store: &One) {
    store.within().set(Faults { slow: 1000, slow_by: Duration::from_secs(3600), ..Faults::default() });
}

#[tokio::test]
async fn a_store_that_hangs_costs_one_read_and_not_each() {
    let stores = stores(3);
    let all = quorum(&stores, 2);
    all.put_new("sets/1/seg/x", text("x")).await.expect("put");
    all.swap(HEAD, None, text("1")).await.expect("first");
    until("a copy in each", async || stores[2].get("sets/1/seg/x").await.is_ok()).await;
    hangs(&stores[0]);
    all.get("sets/1/seg/x").await.expect("from another");
    let asked = stores[0].within().counts().slowed;
    for _ in 0..10 {
        all.get("sets/1/seg/x").await.expect("from another");
    }
    assert_eq!(stores[0].within().counts().slowed, asked, "found out once");
    // A look that ends without a store's answer shows that the store is no faster: here it was not measured before.
    down(&stores[0], false);
    let slow = || Faults { slow: 1000, slow_by: Duration::from_millis(20), ..Faults::default() };
    stores[..2].iter().for_each(|store| store.within().set(slow()));
    hangs(&stores[2]);
    let all = quorum(&stores, 2);
    all.get(HEAD).await.expect("the head");
    assert_ne!(all.order("sets/1/seg/x")[0].index, 2, "the one that never answered is not the fastest");
}

/// The first store hangs; the second lacks what the third has.
#[tokio::test]
async fn a_store_that_hangs_keeps_no_other_from_being_filled() {
    let stores = stores(3);
    let all = quorum(&stores, 2);
    all.swap(HEAD, None, text("1")).await.expect("first");
    let keys: Vec<String> = (1..=20).map(|at| keys::segment(SET, id(at))).collect();
    for key in &keys[1..] {
        stores[2].put_new(key, text("good")).await.expect("put");
    }
    hangs(&stores[0]);
    let turn = async {
        assert_eq!(all.mend_heads(SET).await, Ok(false), "one is silent");
        keys.iter().for_each(|key| assert!(all.lacks(1, key, 4, id(ROOT), false)));
        let (mut copied, mut nowhere) = (0, 0);
        for wanted in all.wanted(1, |root| root == id(ROOT), 100) {
            match all.copy(1, &wanted, &opens).await {
                Ok(written) => copied += usize::from(written > 0),
                Err(error) => {
                    assert!(matches!(error, RepairError::Nowhere { .. }), "{error}");
                    nowhere += 1;
                }
            }
        }
        (copied, nowhere)
    };
    let turn = tokio::time::timeout(Duration::from_secs(20), turn).await;
    assert_eq!(turn.expect("it ends"), (19, 1));
}

#[tokio::test]
async fn deletion_is_done_when_all_have_done_it_and_listings_are_joined() {
    let stores = stores(3);
    let all = quorum(&stores, 2);
    for (at, key) in ["sets/1/seg/a", "sets/1/seg/b", "sets/1/seg/c"].into_iter().enumerate() {
        stores[at].put_new(key, text("x")).await.expect("put");
    }
    let listed = |page: ListPage| page.objects.into_iter().map(|listed| listed.key).collect::<Vec<_>>();
    let page = all.list("sets/1/seg/", None).await.expect("list");
    assert_eq!(listed(page), ["sets/1/seg/a", "sets/1/seg/b", "sets/1/seg/c"]);
    down(&stores[1], true);
    assert!(all.delete("sets/1/seg/a").await.expect_err("one is away").may_pass());
    let page = all.list("sets/1/seg/", Some("sets/1/seg/a")).await.expect("list");
    assert_eq!(listed(page), ["sets/1/seg/c"], "a hint, by those that answer");
    down(&stores[1], false);
    all.delete("sets/1/seg/a").await.expect("all");
}

/// A listing that one store delays contains what w stores have, and nobody waits for long.
#[tokio::test]
async fn a_listing_does_not_wait_for_a_store_that_hangs() {
    let stores = stores(3);
    for at in [0, 2] {
        stores[at].put_new("sets/1/seg/a", text("x")).await.expect("put");
    }
    stores[0].within().set(Faults { slow: 1000, slow_by: Duration::from_secs(3600), ..Faults::default() });
    let all = quorum(&stores, 2);
    let page = tokio::time::timeout(Duration::from_secs(1800), all.list("sets/1/seg/", None)).await;
    assert_eq!(page.expect("within an hour").expect("list").objects.len(), 1);
    // If one more store hangs, too few are left to show what w stores have: both are waited for.
    stores[1].within().set(Faults { slow: 1000, slow_by: Duration::from_secs(3600), ..Faults::default() });
    let list = tokio::time::timeout(LIST_STRAGGLERS * 2, all.list("sets/1/seg/", None)).await;
    assert!(list.is_err(), "{list:?}");
}

#[tokio::test]
async fn each_store_says_what_it_has_of_a_set() {
    let stores = stores(3);
    let all = quorum(&stores, 2);
    all.swap(HEAD, None, text("head")).await.expect("begun");
    down(&stores[1], true);
    let elsewhere: Vec<One> = vec![stores[0].clone(), stores[1].clone(), self::stores(1).remove(0)];
    let seats = quorum(&elsewhere, 2).seats(SET).await.expect("one list");
    let seen: Vec<SeatSeen> = seats.into_iter().map(|(_, seen)| seen).collect();
    assert!(matches!(seen[..], [SeatSeen::Here, SeatSeen::Unread(_), SeatSeen::Nothing]), "{seen:?}");
}

#[tokio::test]
async fn pages_of_a_joined_listing_leave_nothing_out() {
    let stores = stores(2);
    let all = quorum(&stores, 2);
    let mut expected = Vec::new();
    // One store lists more objects than a page holds, and the other gets further at once.
    for at in 0..2500 {
        let key = format!("sets/1/seg/{at:05}");
        stores[usize::from(at % 50 == 0)].put_new(&key, text("x")).await.expect("put");
        expected.push(key);
    }
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = all.list("sets/1/seg/", after.as_deref()).await.expect("list");
        found.extend(page.objects.into_iter().map(|listed| listed.key));
        after = page.more;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(found, expected);
}

#[tokio::test]
async fn the_head_begins_only_with_all_stores_and_is_swapped_with_two() {
    let stores = stores(3);
    let all = quorum(&stores, 2);
    down(&stores[2], true);
    assert_eq!(all.get(HEAD).await.expect_err("none").disposition(), Disposition::NotFound);
    let error = all.swap(HEAD, None, text("1")).await.expect_err("QUORUM-Q3");
    assert_eq!(error.disposition(), Disposition::Retry, "{error}");
    down(&stores[2], false);
    let one = all.swap(HEAD, None, text("1")).await.expect("first");
    assert_eq!(all.swap(HEAD, None, text("1")).await, Ok(one.clone()), "R12: the same bytes again");
    assert_eq!(all.swap(HEAD, None, text("x")).await.expect_err("there is one").disposition(), Disposition::Conflict);
    down(&stores[0], true);
    let two = all.swap(HEAD, Some(&one), text("2")).await.expect("two of three");
    assert_eq!(all.get(HEAD).await, Ok(text("2")));
    down(&stores[0], false);
    down(&stores[1], true);
    assert_eq!(all.get(HEAD).await, Ok(text("2")), "the other majority shows it, and decides it there");
    let error = all.swap(HEAD, Some(&one), text("y")).await.expect_err("old");
    assert_eq!(error.disposition(), Disposition::Conflict);
    all.swap(HEAD, Some(&two), text("3")).await.expect("third");
    down(&stores[0], true);
    assert!(all.get(HEAD).await.expect_err("one of three").may_pass());
}

/// Hundreds of swaps by several writers while stores fail, come back and lose answers: the result is a chain without a
/// fork.
#[tokio::test]
async fn no_swap_of_the_head_is_lost() {
    let seed: u64 = std::env::var("HOLDFAST_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(rand::random);
    println!("HOLDFAST_SEED={seed}");
    let policy = RetryPolicy { attempts_max: 2, backoff_first_ms: 1, backoff_max_ms: 2, ..RetryPolicy::default() };
    let stores: Vec<One> = (0..3)
        .map(|at| {
            Arc::new(Retrying::new(
                Faulty::new(Memory::new(), seed.wrapping_add(at), Faults::default()),
                policy.clone(),
            ))
        })
        .collect();
    quorum(&stores, 2).swap(HEAD, None, text("0:begin")).await.expect("first");
    let faults = || Faults { fail_before: 100, fail_after: 100, own_conflict: 50, ..Faults::default() };
    stores.iter().for_each(|store| store.within().set(faults()));
    let writer = async |name: u64| {
        let mine = quorum(&stores, 2);
        let (mut done, mut perhaps) = (Vec::new(), Vec::new());
        for turn in 0..60_u64 {
            if turn % 7 == 3 && name == 0 {
                stores.iter().for_each(|store| store.within().set(faults()));
                stores[(turn / 7) as usize % 3].within().set(Faults { down: true, ..Faults::default() });
            }
            let Ok(object) = mine.get_object(HEAD).await else { continue };
            let before = String::from_utf8(object.body.to_vec()).expect("text");
            let count: u64 = before.split(':').next().and_then(|n| n.parse().ok()).expect("number");
            let next = format!("{}:{name}.{turn}<{}", count + 1, before.split('<').next().expect("itself"));
            match mine.swap(HEAD, Some(&object.version), text(next.clone())).await {
                Ok(_) => done.push(next),
                Err(error) if error.disposition() == Disposition::Unknown => perhaps.push(next),
                Err(_) => {}
            }
        }
        (done, perhaps)
    };
    let (a, b, c) = tokio::join!(writer(0), writer(1), writer(2));
    stores.iter().for_each(|store| store.within().set(Faults::default()));
    let mut last = String::from_utf8(quorum(&stores, 2).get(HEAD).await.expect("head").to_vec()).expect("text");
    let (mut done, mut perhaps) = (a.0, a.1);
    done.extend(b.0.into_iter().chain(c.0));
    perhaps.extend(b.1.into_iter().chain(c.1));
    // Backwards along the chain of replaced versions: every successful swap must be in it.
    let mut chain = Vec::new();
    while let Some((_, before)) = last.clone().split_once('<') {
        chain.push(last.clone());
        let parent = done.iter().chain(&perhaps).find(|one| one.split('<').next() == Some(before));
        match parent {
            Some(parent) => last = parent.clone(),
            None => break,
        }
    }
    assert!(last.ends_with("<0:begin"), "the chain breaks off at {last}; seed {seed}");
    for one in &done {
        assert!(chain.contains(one), "{one} was answered as done and is lost; seed {seed}");
    }
    assert!(done.len() > 10, "only {} swaps came through", done.len());
}

const SET: holdfast_types::SetId = holdfast_types::GroupId(1);

fn id(random: u128) -> holdfast_types::ObjectId {
    use holdfast_types::{MemberId, ObjectId, Term};
    ObjectId { term: Term(1), member: MemberId(1), boot: 1, random }
}

const ROOT: u128 = 99;

/// Bytes that begin with "bad" do not open.
fn opens(_: &str, body: &Bytes) -> Result<(), String> {
    if body.starts_with(b"bad") { Err("not what was written".to_owned()) } else { Ok(()) }
}

/// One turn: every object that is noted and named, at every store. Returns how many objects were copied and how many
/// were not.
async fn repair(all: &Quorum) -> (usize, usize) {
    let _ = all.mend_heads(SET).await;
    let (mut copied, mut not) = (0, 0);
    for at in 0..all.copies() {
        for wanted in all.wanted(at, |root| root == id(ROOT), 100) {
            match all.copy(at, &wanted, &opens).await {
                Ok(written) => copied += usize::from(written > 0),
                Err(_) => not += 1,
            }
        }
    }
    (copied, not)
}

async fn head_is_whole(all: &Quorum) {
    until("the heads are alike", async || {
        let _ = repair(all).await;
        !all.heads_differ()
    })
    .await;
}

#[tokio::test]
async fn a_repair_copies_what_is_named_and_nothing_else() {
    let stores = stores(3);
    let all = quorum(&stores, 2);
    let one = all.swap(HEAD, None, text("1")).await.expect("first");
    down(&stores[1], true);
    let (named, other) = (keys::segment(SET, id(1)), keys::segment(SET, id(2)));
    all.put_new(&named, text("named")).await.expect("put");
    all.put_new(&other, text("nobody names it")).await.expect("put");
    all.swap(HEAD, Some(&one), text("2")).await.expect("swap");
    until("both notes", async || all.standings(0)[1].backlog.objects == 2).await;
    let mut unnamed = all.unnamed(None);
    unnamed.sort();
    assert_eq!(unnamed, [named.clone(), other.clone()]);
    all.named(&named, 5, id(ROOT));
    assert_eq!(repair(&all).await, (0, 1), "it is away");
    down(&stores[1], false);
    head_is_whole(&all).await;
    assert_eq!(stores[1].get(&named).await, Ok(text("named")));
    assert_eq!(stores[1].get(&other).await.expect_err("not copied").disposition(), Disposition::NotFound);
    // A root that is no longer kept names nothing.
    all.lacks(1, &other, 0, id(3), false);
    assert_eq!(repair(&all).await, (0, 0));
}

#[tokio::test]
async fn a_copy_that_does_not_open_is_not_spread_but_replaced() {
    let stores = stores(3);
    let all = quorum(&stores, 2);
    let key = keys::segment(SET, id(1));
    for (at, copy) in ["bad", "good"].into_iter().enumerate() {
        stores[at].put_new(&key, text(copy)).await.expect("put");
    }
    // The first store's copy is the nearest, however long a look takes there.
    all.replicas[1].speed.not_within(Duration::from_secs(30));
    all.lacks(2, &key, 4, id(ROOT), false);
    assert_eq!(repair(&all).await, (1, 0));
    assert_eq!(stores[2].get(&key).await, Ok(text("good")));
    assert_eq!(all.standings(0)[0].backlog.objects, 1, "and what did not open is noted");
    assert_eq!(repair(&all).await, (1, 0));
    assert_eq!(stores[0].get(&key).await, Ok(text("good")));
    // An object that was reported as damaged but opens is left unchanged.
    all.lacks(0, &key, 0, id(ROOT), true);
    assert_eq!((repair(&all).await, all.standings(0)[0].backlog.objects), ((0, 0), 0));
    // An object of another length is replaced.
    stores[0].delete(&key).await.expect("delete");
    stores[0].put_new(&key, text("goo")).await.expect("put");
    all.lacks(0, &key, 4, id(ROOT), true);
    assert_eq!(repair(&all).await, (1, 0));
    assert_eq!(stores[0].get(&key).await, Ok(text("good")));
}

#[tokio::test]
async fn what_no_store_has_whole_keeps_nothing_else_from_being_copied() {
    let stores = stores(3);
    let all = quorum(&stores, 2);
    let (gone, bad, good) = (keys::segment(SET, id(1)), keys::segment(SET, id(2)), keys::segment(SET, id(3)));
    stores[0].put_new(&bad, text("bad")).await.expect("put");
    stores[0].put_new(&good, text("good")).await.expect("put");
    for key in [&gone, &bad, &good] {
        all.lacks(1, key, 0, id(ROOT), false);
    }
    assert_eq!(repair(&all).await, (1, 2));
    assert_eq!(stores[1].get(&good).await, Ok(text("good")));
    let backlog = all.standings(0)[1].backlog;
    assert_eq!((backlog.objects, backlog.stuck), (2, 2));
}

#[tokio::test]
async fn a_store_that_lost_its_entry_begins_anew_and_counts_again() {
    let stores = stores(3);
    let all = quorum(&stores, 2);
    let one = all.swap(HEAD, None, text("1")).await.expect("first");
    let two = all.swap(HEAD, Some(&one), text("2")).await.expect("second");
    stores[1].delete(HEAD).await.expect("delete");
    down(&stores[0], true);
    assert!(all.swap(HEAD, Some(&two), text("3")).await.expect_err("QUORUM-Q2: it counts for nothing").may_pass());
    let _ = repair(&all).await;
    assert_eq!(stores[1].get(HEAD).await.expect_err("not while one is silent").disposition(), Disposition::NotFound);
    down(&stores[0], false);
    head_is_whole(&all).await;
    down(&stores[2], true);
    assert_eq!(all.get(HEAD).await, Ok(text("2")));
    let three = all.swap(HEAD, Some(&two), text("3")).await.expect("it counts again");
    down(&stores[2], false);
    head_is_whole(&all).await;
    // Damaged as well as missing, and again: each is another restart.
    let entry = stores[1].get_object(HEAD).await.expect("entry");
    let mut spoilt = entry.body.to_vec();
    spoilt[40] ^= 1;
    stores[1].swap(HEAD, Some(&entry.version), spoilt.into()).await.expect("spoil");
    head_is_whole(&all).await;
    down(&stores[0], true);
    assert_eq!(all.get(HEAD).await, Ok(text("3")));
    all.swap(HEAD, Some(&three), text("4")).await.expect("it counts again");
}

/// A store whose swaps, after the first few, wait until they are released.
#[derive(Debug)]
struct Gate {
    within: One,
    pass: tokio::sync::Semaphore,
}

impl ObjectStore for Gate {
    fn place(&self) -> &str {
        self.within.place()
    }
    fn put_new<'a>(&'a self, key: &'a str, body: Bytes) -> BoxFuture<'a, Result<(), StoreError>> {
        self.within.put_new(key, body)
    }
    fn get_object<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Object, StoreError>> {
        self.within.get_object(key)
    }
    fn get_range<'a>(&'a self, key: &'a str, range: Range<u64>) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        self.within.get_range(key, range)
    }
    fn head<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Head, StoreError>> {
        ObjectStore::head(&*self.within, key)
    }
    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), StoreError>> {
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
        Box::pin(async move {
            self.pass.acquire().await.expect("never closed").forget();
            self.within.swap(key, expected, body).await
        })
    }
}

/// A history that the model finds in 8 steps, through the whole quorum store: a vote at a store that then loses its
/// entry, and the vote that completes it after the store was mended.
#[tokio::test]
async fn a_commit_that_was_under_way_while_an_entry_was_mended_is_not_lost() {
    let stores = stores(3);
    let all = quorum(&stores, 2);
    let one = all.swap(HEAD, None, text("1")).await.expect("first");
    head_is_whole(&all).await;
    // The promise passes at all stores; the accept passes at the first store only.
    let passes = [2, 1, 1];
    let gates: Vec<Arc<Gate>> = (0..3)
        .map(|at| Arc::new(Gate { within: stores[at].clone(), pass: tokio::sync::Semaphore::new(passes[at]) }))
        .collect();
    let writer = Quorum::new(gates.iter().map(|gate| (gate.clone() as Arc<dyn ObjectStore>, None)).collect(), 2);
    let commit = tokio::spawn(async move { writer.swap(HEAD, Some(&one), text("second")).await });
    let accepted = async |at: usize| {
        let entry = stores[at].get_object(HEAD).await;
        entry.is_ok_and(|entry| entry.body.windows(6).any(|part| part == b"second"))
    };
    until("the first has accepted", async || accepted(0).await).await;
    stores[0].delete(HEAD).await.expect("delete");
    head_is_whole(&all).await;
    let looks = async || {
        let mut found = Vec::new();
        for silent in &stores {
            down(silent, true);
            found.push(all.get(HEAD).await.expect("two of three"));
            down(silent, false);
        }
        found
    };
    // The vote reaches the second store now. If it accepted, the writer would be told that it succeeded.
    [0, 1].into_iter().for_each(|at: usize| gates[at].pass.add_permits(100));
    until("the second is asked", async || gates[1].pass.available_permits() < 100).await;
    for _ in 0..50 {
        tokio::time::sleep(Duration::from_millis(2)).await;
        if commit.is_finished() {
            break;
        }
    }
    let (told, found) = (commit.is_finished(), looks().await);
    assert!(!told || found == vec![text("second"); 3], "done, and lost: {found:?}");
    gates[2].pass.add_permits(100);
    let done = commit.await.expect("ends");
    let found = looks().await;
    assert!(done.is_err() || found == vec![text("second"); 3], "{done:?}, and lost: {found:?}");
}

#[tokio::test]
async fn stores_in_another_order_or_with_another_quorum_are_found() {
    let stores = stores(3);
    quorum(&stores, 2).swap(HEAD, None, text("1")).await.expect("first");
    let turned: Vec<One> = [1, 2, 0].map(|at| stores[at].clone()).into();
    let error = quorum(&turned, 2).get(HEAD).await.expect_err("another order");
    assert_eq!(error.disposition(), Disposition::Denied, "{error}");
    assert!(error.to_string().contains("store 2 of 3"), "{error}");
    assert!(quorum(&stores, 3).get(HEAD).await.is_err());
    let twice: Vec<One> = [0, 1, 1].map(|at| stores[at].clone()).into();
    assert_eq!(quorum(&twice, 2).get(HEAD).await, Ok(text("1")), "two of them are where they should be");
}

#[path = "quorum/head_tests.rs"]
mod heads;
