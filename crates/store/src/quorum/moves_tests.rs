//! Stores are replaced by others, while some fail and some processes do not know of it.

use super::super::*;
use super::*;
use crate::{BoxFuture, Head, ListPage, ObjectStore};
use crate::{Faults, Faulty, Memory, RetryPolicy, Retrying};
use holdfast_types::{GroupId, Placement};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

const SET: SetId = GroupId(1);
const HEAD: &str = "sets/1/head";

type One = Arc<Retrying<Faulty<Memory>>>;

fn stores(seed: u64) -> Vec<One> {
    let policy = RetryPolicy { attempts_max: 2, backoff_first_ms: 1, backoff_max_ms: 2, ..RetryPolicy::default() };
    let one = |at| Retrying::new(Faulty::new(Memory::new(), seed.wrapping_add(at), Faults::default()), policy.clone());
    (0..5).map(|at| Arc::new(one(at))).collect()
}

/// Opens the stores that the text names: `file:///0` to `file:///4`.
fn over(stores: &[One], text: &str) -> Arc<Quorum> {
    let one = |url: &str| {
        let at: usize = url.rsplit('/').next().and_then(|at| at.parse().ok()).expect("a number");
        Ok((stores[at].clone() as Arc<dyn ObjectStore>, None))
    };
    Arc::new(Quorum::over(&Placement::parse(text), one).expect("a placement"))
}

fn list(at: &[usize]) -> String {
    let urls: Vec<String> = at.iter().map(|at| format!("file:///{at}")).collect();
    if at.len() == 1 { urls[0].clone() } else { format!("w={} {}", at.len() / 2 + 1, urls.join(" ")) }
}

/// Lists before and after: more than a majority stays, some stay, none stays; one store to several and back.
const CHANGES: [(&[usize], &[usize]); 6] = [
    (&[0, 1, 2], &[1, 2, 3]),
    (&[0, 1, 2], &[2, 3, 4]),
    (&[0], &[1, 2, 3]),
    (&[0], &[0, 1, 2]),
    (&[0, 1, 2], &[0]),
    (&[0, 1, 2, 3, 4], &[4, 2, 0]),
];

fn text(text: impl Into<String>) -> Bytes {
    Bytes::from(text.into())
}

fn down(store: &One, down: bool) {
    store.within().set(Faults { down, ..Faults::default() });
}

async fn read(all: &Arc<Quorum>) -> String {
    String::from_utf8(all.get(HEAD).await.expect("head").to_vec()).expect("text")
}

#[test]
fn a_last_value_comes_back_as_it_was_written_and_a_head_is_none() {
    for head in [None, Some(text("")), Some(text("a head"))] {
        let moved = Moved { to: "c=2 file:///x".into(), head };
        let object = moved.encode(7);
        assert_eq!(Moved::decode(&object).as_ref(), Some(&moved));
        assert_ne!(moved.encode(8), object, "no two have the same bytes");
        for cut in 0..object.len() {
            assert_eq!(Moved::decode(&object.slice(..cut)), None, "cut at {cut}");
        }
        for at in 0..object.len() {
            let mut bad = object.to_vec();
            bad[at] ^= 4;
            assert_eq!(Moved::decode(&Bytes::from(bad)), None, "byte {at}");
        }
    }
    assert_eq!(moved_to(&text("a head")), None);
}

#[tokio::test]
async fn a_change_of_stores_takes_the_head_along() {
    for (from, to) in CHANGES {
        let stores = stores(1);
        let (from, to) = (list(from), format!("c=2 {}", list(to)));
        println!("{from} to {to}");
        let old = over(&stores, &from);
        let one = old.swap(HEAD, None, text("1")).await.expect("first");
        let both = over(&stores, &format!("{from} => {to}"));
        assert_eq!(read(&both).await, "1");
        assert!(!both.list_ended(SET).await.expect("looks"));
        let two = both.swap(HEAD, Some(&one), text("2")).await.expect("the first list counts");
        let conflict = both.end_list(SET, &one).await.expect_err("another head is there");
        assert_eq!(conflict.disposition(), Disposition::Conflict, "{conflict}");
        both.end_list(SET, &two).await.expect("ends");
        both.end_list(SET, &two).await.expect("had ended");
        assert_eq!(read(&both).await, "2");
        // A process that does not know of it finds where the head went, and replaces nothing.
        let last = old.get_object(HEAD).await.expect("the last value");
        assert_eq!(moved_to(&last.body), Some(to.clone()));
        let late = old.swap(HEAD, Some(&two), text("late")).await.expect_err("over");
        assert_eq!(late.disposition(), Disposition::Conflict, "{late}");
        let new = over(&stores, &to);
        let at = new.get_object(HEAD).await.expect("begun");
        assert_eq!(at.body, text("2"));
        let three = new.swap(HEAD, Some(&at.version), text("3")).await.expect("the next list counts");
        assert_eq!(read(&both).await, "3");
        both.let_go_of_head(SET).await.expect("lets go");
        let last = old.get(HEAD).await.expect("the last value");
        assert_eq!(Moved::decode(&last), Some(Moved { to: to.clone(), head: None }), "LIST-L3");
        both.swap(HEAD, Some(&three), text("4")).await.expect("goes on");
        assert_eq!(read(&new).await, "4");
        // The last of them gets it a little later.
        let mut all = false;
        for _ in 0..2000 {
            all = all || both.mend_heads(SET).await.expect("looks");
        }
        assert!(all, "all have it");
    }
}

/// LIST-L4.
#[tokio::test]
async fn an_object_counts_once_both_lists_have_it() {
    let stores = stores(2);
    let both = over(&stores, "w=2 file:///0 file:///1 file:///2 | c=2 w=2 file:///2 file:///3 file:///4");
    assert_eq!(both.standings(0).iter().map(|s| s.part).collect::<Vec<_>>(), {
        use Part::{Joins, Leaves, Stays};
        [Leaves, Leaves, Stays, Joins, Joins]
    });
    for (away, counts) in [([0, 3], true), ([0, 1], false), ([3, 4], false), ([2, 2], true), ([2, 3], false)] {
        away.iter().for_each(|at| down(&stores[*at], true));
        let key = keys::segment(SET, ObjectId { term: Term(1), member: MemberId(1), boot: 1, random: rand::random() });
        assert_eq!(both.put_new(&key, text("x")).await.is_ok(), counts, "without {away:?}");
        both.list("sets/1/seg/", None).await.expect("a listing is a hint");
        stores.iter().for_each(|store| down(store, false));
    }
}

/// Filling may take days, and the new list does not count yet.
#[tokio::test]
async fn stores_that_are_to_be_and_hang_keep_nobody_from_the_head() {
    let stores = stores(7);
    over(&stores, "file:///0").swap(HEAD, None, text("1")).await.expect("first");
    let both = over(&stores, "file:///0 | c=2 w=2 file:///1 file:///2 file:///3");
    for store in &stores[1..4] {
        store.within().set(Faults { slow: 1000, slow_by: Duration::from_secs(3600), ..Faults::default() });
    }
    let looked = tokio::time::timeout(Duration::from_secs(30), both.get(HEAD)).await;
    assert_eq!(looked.expect("at once").expect("the first list's"), text("1"));
}

/// The end of a list and the beginning of the next are two steps, and a store may be lost permanently between them.
#[tokio::test]
async fn a_next_list_begins_with_w_of_its_stores_once_all_had_an_entry() {
    let stores = stores(8);
    let place = "file:///0 => c=2 w=2 file:///1 file:///2 file:///3";
    let one = over(&stores, "file:///0").swap(HEAD, None, text("1")).await.expect("first");
    down(&stores[3], true);
    over(&stores, place).end_list(SET, &one).await.expect_err("one of them has no entry yet");
    assert_eq!(read(&over(&stores, "file:///0")).await, "1", "it was not ended");
    down(&stores[3], false);
    let next = over(&stores, place);
    next.registers[1].lay_out_all(&next.registers[1].key(SET)).await.expect("entries");
    let last = Moved { to: next.registers[1].text.clone(), head: Some(text("1")) }.encode(7);
    stores[0].swap(HEAD, Some(&one), last).await.expect("the last value, and no more");
    for gone in [true, false] {
        down(&stores[3], gone);
        assert_eq!(read(&over(&stores, place)).await, "1");
    }
}

/// The old stores may be emptied or lost before every gateway has closed them.
#[tokio::test]
async fn once_the_next_list_has_begun_nothing_is_asked_of_the_first() {
    for gone in [true, false] {
        let stores = stores(6);
        let one = over(&stores, "w=2 file:///0 file:///1 file:///2").swap(HEAD, None, text("1")).await.expect("first");
        let place = "w=2 file:///0 file:///1 file:///2 => c=2 w=2 file:///2 file:///3 file:///4";
        over(&stores, place).end_list(SET, &one).await.expect("ends");
        for store in &stores[..2] {
            store.delete(HEAD).await.expect("delete");
            down(store, gone);
        }
        let late = over(&stores, place);
        let at = late.get_object(HEAD).await.expect("the next list's");
        late.swap(HEAD, Some(&at.version), text("2")).await.expect("it goes on there");
        assert_eq!(read(&over(&stores, "c=2 w=2 file:///2 file:///3 file:///4")).await, "2");
        let key = keys::segment(SET, ObjectId { term: Term(1), member: MemberId(1), boot: 1, random: 5 });
        late.put_new(&key, text("x")).await.expect("it counts in the next list");
        late.delete(&key).await.expect("and is deleted there");
    }
}

use holdfast_types::{MemberId, ObjectId, Term};

/// A process that knows a wrong list of stores goes nowhere: if a store names another list than the known one, that is
/// not followed.
#[tokio::test]
async fn a_list_that_nobody_has_named_is_not_followed() {
    let stores = stores(3);
    let one = over(&stores, "w=2 file:///0 file:///1 file:///2").swap(HEAD, None, text("1")).await.expect("first");
    let here = over(&stores, "w=2 file:///0 file:///1 file:///2 => c=2 file:///3");
    here.end_list(SET, &one).await.expect("ends");
    let other = over(&stores, "w=2 file:///0 file:///1 file:///2 => c=2 file:///4");
    assert_eq!(moved_to(&other.get(HEAD).await.expect("the last value")).as_deref(), Some("c=2 file:///3"));
    assert!(!other.list_ended(SET).await.expect("not for this one"));
    let error = other.end_list(SET, &one).await.expect_err("it was ended for another list");
    assert_eq!(error.disposition(), Disposition::Denied, "{error}");
    // An abandoned list does not count, even if most of its stores are those of the list that counts.
    let begun = over(&stores, "w=2 file:///2 file:///3 file:///4").swap("sets/2/head", None, text("1")).await;
    let counts = over(&stores, "w=2 file:///2 file:///3 file:///4 => c=2 w=2 file:///2 file:///3 file:///0");
    counts.end_list(GroupId(2), &begun.expect("first")).await.expect("ends");
    let late = over(&stores, "w=2 file:///2 file:///3 file:///4 | c=2 w=2 file:///2 file:///3 file:///1");
    let last = late.get("sets/2/head").await.expect("the last value");
    assert_eq!(moved_to(&last).as_deref(), Some("c=2 w=2 file:///2 file:///3 file:///0"));
    // A change is one step.
    let skips = Placement::parse("file:///0 | c=3 file:///1");
    assert!(Quorum::over(&skips, |_| unreachable!("it is not opened")).is_err());
}

/// LIST-L3 comes only after LIST-L2. If the new stores lost everything, that is reported, and they are not begun again
/// with nothing.
#[tokio::test]
async fn a_next_list_that_lost_its_head_is_not_begun_again() {
    let stores = stores(4);
    let one = over(&stores, "file:///0").swap(HEAD, None, text("1")).await.expect("first");
    let both = over(&stores, "file:///0 => c=2 file:///1");
    both.let_go_of_head(SET).await.expect("nothing to let go of yet");
    assert_eq!(read(&both).await, "1");
    both.end_list(SET, &one).await.expect("ends");
    both.let_go_of_head(SET).await.expect("lets go");
    stores[1].delete(&keys::head_of(SET, 2, "c=2 file:///1")).await.expect("delete");
    let error = both.get(HEAD).await.expect_err("gone");
    assert_eq!(error.disposition(), Disposition::Denied, "{error}");
}

/// Writers that know one list, both, or the next one, and several processes that end the first, while stores fail, come
/// back and lose answers: the result is a chain without a fork.
#[tokio::test]
async fn no_swap_of_the_head_is_lost_while_the_stores_are_changed() {
    let seed: u64 = std::env::var("HOLDFAST_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(rand::random);
    println!("HOLDFAST_SEED={seed}");
    for (change, (from, to)) in CHANGES.into_iter().enumerate() {
        let stores = stores(seed.wrapping_add(change as u64 * 10));
        let (old, new) = (list(from), format!("c=2 {}", list(to)));
        let both = format!("{old} => {new}");
        over(&stores, &old).swap(HEAD, None, text("0:begin")).await.expect("first");
        // One store alone cannot distinguish a 412 for its own PUT, which another writer replaced at once, from a
        // refusal (ADR 0008): the other test covers that.
        let faults = || Faults { fail_before: 60, fail_after: 60, ..Faults::default() };
        stores.iter().for_each(|store| store.within().set(faults()));
        let writer = async |name: u64, place: &str| {
            let mine = over(&stores, place);
            let (mut done, mut perhaps, mut not) = (Vec::new(), Vec::new(), Vec::new());
            for turn in 0..80_u64 {
                if turn % 7 == 3 && name == 0 {
                    stores.iter().for_each(|store| store.within().set(faults()));
                    stores[(turn / 7) as usize % 5].within().set(Faults { down: true, ..Faults::default() });
                }
                let Ok(object) = mine.get_object(HEAD).await else { continue };
                if moved_to(&object.body).is_some() {
                    continue;
                }
                let before = String::from_utf8(object.body.to_vec()).expect("text");
                let count: u64 = before.split(':').next().and_then(|n| n.parse().ok()).expect("number");
                let next = format!("{}:{name}.{turn}<{}", count + 1, before.split('<').next().expect("itself"));
                match mine.swap(HEAD, Some(&object.version), text(next.clone())).await {
                    Ok(_) => done.push(next),
                    Err(error) if error.disposition() == Disposition::Unknown => perhaps.push(next),
                    Err(error) => not.push((next, error)),
                }
            }
            (done, perhaps, not)
        };
        let ender = async |pauses: u32| {
            let mine = over(&stores, &both);
            for turn in 0..200_u32 {
                tokio::time::sleep(Duration::from_millis(u64::from(pauses))).await;
                if turn < 4 {
                    continue;
                }
                let Ok(object) = mine.get_object(HEAD).await else { continue };
                if mine.end_list(SET, &object.version).await.is_ok() && mine.let_go_of_head(SET).await.is_ok() {
                    return;
                }
            }
        };
        let (a, b, c, d, (), ()) =
            tokio::join!(writer(0, &old), writer(1, &both), writer(2, &both), writer(3, &new), ender(3), ender(4));
        stores.iter().for_each(|store| store.within().set(Faults::default()));
        let last = over(&stores, &both);
        let at = last.get_object(HEAD).await.expect("head");
        last.end_list(SET, &at.version).await.expect("nobody is at work any more");
        let mut last = read(&over(&stores, &new)).await;
        let all = [a, b, c, d];
        let done: Vec<&String> = all.iter().flat_map(|(done, ..)| done).collect();
        let sent = || all.iter().flat_map(|(done, perhaps, _)| done.iter().chain(perhaps));
        let mut chain = Vec::new();
        while let Some((_, before)) = last.clone().split_once('<') {
            chain.push(last.clone());
            match sent().find(|one| one.split('<').next() == Some(before)) {
                Some(parent) => last = parent.clone(),
                None => break,
            }
        }
        let before = last.split_once('<').map_or("", |(_, before)| before);
        let denied = all.iter().flat_map(|(.., not)| not).find(|(one, _)| one.split('<').next() == Some(before));
        assert!(
            last.ends_with("<0:begin"),
            "{both}: the chain breaks off at {last}, before which {denied:?}; seed {seed}"
        );
        for one in &done {
            assert!(chain.contains(*one), "{both}: {one} was answered as done and is lost; seed {seed}");
        }
        assert!(done.len() > 10, "{both}: only {} swaps came through; seed {seed}", done.len());
    }
}

/// A store whose first answer is outdated: at that moment nothing was there.
#[derive(Debug)]
struct Early {
    within: One,
    early: AtomicBool,
}

impl ObjectStore for Early {
    fn place(&self) -> &str {
        self.within.place()
    }
    fn put_new<'a>(&'a self, key: &'a str, body: Bytes) -> BoxFuture<'a, Result<(), StoreError>> {
        self.within.put_new(key, body)
    }
    fn get_object<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Object, StoreError>> {
        if self.early.swap(false, Ordering::AcqRel) {
            return Box::pin(async move { Memory::new().get_object(key).await });
        }
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
        self.within.swap(key, expected, body)
    }
}

/// LIST-L3 is reported only for stores that have no head, not for a look between the beginning of the next list and the
/// removal of the head from the first.
#[tokio::test]
async fn a_look_at_the_next_list_before_it_began_is_made_again() {
    let stores = stores(9);
    let place = "file:///0 => c=2 file:///1";
    let one = over(&stores, "file:///0").swap(HEAD, None, text("1")).await.expect("first");
    let both = over(&stores, place);
    both.end_list(SET, &one).await.expect("ends");
    both.let_go_of_head(SET).await.expect("lets go");
    let one = |url: &str| {
        let within = stores[usize::from(url.ends_with('1'))].clone();
        let early = AtomicBool::new(url.ends_with('1'));
        Ok((Arc::new(Early { within, early }) as Arc<dyn ObjectStore>, None))
    };
    let late = Arc::new(Quorum::over(&Placement::parse(place), one).expect("a placement"));
    assert_eq!(read(&late).await, "1");
}
