//! One suite for every store: a fake is trusted only if it passes the same tests as the real one.

use crate::support::{self, Versitygw};
use bytes::Bytes;
use futures_util::future::join_all;
use holdfast_store::{
    CHECK_LIMIT, Directory, Disposition, Faults, Faulty, Memory, OBJECT_BYTES_MAX, ObjectStore, Retrying, StoreError,
    Version, open,
};
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

type Store = Arc<dyn ObjectStore>;

struct Suite {
    store: Store,
    /// More objects than one page of a listing holds.
    many: usize,
    /// Whether an outcome may stay unknown: then a race may have no winner that knows it.
    may_stay_unknown: bool,
}

fn text(text: impl Into<String>) -> Bytes {
    Bytes::from(text.into())
}

fn pattern(len: usize) -> Bytes {
    (0..len).map(|i| (i * 31 % 251) as u8).collect::<Vec<u8>>().into()
}

fn fails_as<T: Debug>(result: Result<T, StoreError>, disposition: Disposition) -> StoreError {
    let error = result.expect_err("must fail");
    assert_eq!(error.disposition(), disposition, "{error}");
    error
}

impl Suite {
    async fn run(self) {
        self.what_is_written_is_read().await;
        self.what_is_missing_is_not_found().await;
        self.a_key_keeps_its_first_content().await;
        self.ranges_must_exist().await;
        self.deletion_can_be_repeated().await;
        self.listings_are_ordered_and_paged().await;
        self.swaps_compare_versions().await;
        self.of_many_writers_one_wins().await;
        self.of_many_swappers_one_wins().await;
        self.no_swap_is_lost().await;
        self.impossible_requests_are_refused().await;
        holdfast_store::check(&*self.store, rand::random(), CHECK_LIMIT).await.expect("check");
        let left = self.store.list("check/", None).await.expect("list");
        assert_eq!((left.objects.len(), left.more), (0, None), "what a check writes it deletes");
    }

    async fn what_is_written_is_read(&self) {
        for len in [0, 1, 4096, 3 << 20] {
            let key = format!("written/{len}");
            let body = pattern(len);
            self.store.put_new(&key, body.clone()).await.expect("put");
            assert_eq!(self.store.get(&key).await.expect("get"), body);
            let object = self.store.get_object(&key).await.expect("get object");
            assert_eq!(object.body, body);
            let head = self.store.head(&key).await.expect("head");
            assert_eq!((head.bytes, &head.version), (len as u64, &object.version));
            let len = len as u64;
            for range in [0..len, 0..len / 2, len / 3..len, len.saturating_sub(1)..len, len / 2..len / 2] {
                let part = self.store.get_range(&key, range.clone()).await.expect("range");
                assert_eq!(part, body.slice(range.start as usize..range.end as usize), "{key} {range:?}");
            }
        }
    }

    async fn what_is_missing_is_not_found(&self) {
        fails_as(self.store.get("missing/x").await, Disposition::NotFound);
        fails_as(self.store.get_object("missing/x").await, Disposition::NotFound);
        fails_as(self.store.get_range("missing/x", 0..1).await, Disposition::NotFound);
        fails_as(self.store.head("missing/x").await, Disposition::NotFound);
        self.store.delete("missing/x").await.expect("nothing to delete");
        let page = self.store.list("missing/", None).await.expect("list");
        assert_eq!((page.objects.len(), page.more), (0, None));
    }

    async fn a_key_keeps_its_first_content(&self) {
        self.store.put_new("first/x", text("first")).await.expect("put");
        self.store.put_new("first/x", text("first")).await.expect("the same bytes again are our own (R12)");
        for other in ["second", "firsT", ""] {
            let error = fails_as(self.store.put_new("first/x", text(other)).await, Disposition::Conflict);
            let StoreError::Exists { found_bytes, expected_bytes, .. } = error else { panic!("{error}") };
            assert_eq!((found_bytes, expected_bytes), (5, other.len() as u64));
        }
        assert_eq!(self.store.get("first/x").await.expect("get"), text("first"));
    }

    async fn ranges_must_exist(&self) {
        self.store.put_new("range/x", pattern(100)).await.expect("put");
        for range in [0..101, 99..101, 100..101, 500..600] {
            let error = fails_as(self.store.get_range("range/x", range.clone()).await, Disposition::Corrupt);
            let StoreError::Length { found_bytes, expected_bytes, .. } = error else { panic!("{error}") };
            assert_eq!(expected_bytes, range.end);
            // A store that refuses the whole range need not report the object's length.
            assert!(found_bytes == 100 || (found_bytes == 0 && range.start >= 100), "{found_bytes} for {range:?}");
        }
        let longest = OBJECT_BYTES_MAX as u64 + 1;
        fails_as(self.store.get_range("range/x", 0..longest).await, Disposition::Corrupt);
    }

    async fn deletion_can_be_repeated(&self) {
        self.store.put_new("deleted/x", text("x")).await.expect("put");
        self.store.put_new("deleted/y", text("y")).await.expect("put");
        self.store.delete("deleted/x").await.expect("delete");
        self.store.delete("deleted/x").await.expect("delete again");
        fails_as(self.store.get("deleted/x").await, Disposition::NotFound);
        assert_eq!(self.store.get("deleted/y").await.expect("get"), text("y"));
    }

    async fn all(&self, prefix: &str, after: Option<&str>) -> (Vec<String>, usize) {
        let (mut keys, mut pages) = (Vec::new(), 0);
        let mut after = after.map(str::to_owned);
        loop {
            let page = self.store.list(prefix, after.as_deref()).await.expect("list");
            pages += 1;
            for object in page.objects {
                let number = object.key.rsplit('n').next().and_then(|n| n.parse::<u64>().ok());
                assert_eq!(number.map(|n| n % 3), Some(object.bytes), "length of {}", object.key);
                keys.push(object.key);
            }
            match page.more {
                Some(more) => after = Some(more),
                None => return (keys, pages),
            }
        }
    }

    async fn listings_are_ordered_and_paged(&self) {
        let mut keys: Vec<String> = (0..self.many).map(|n| format!("listed/a/n{n:05}")).collect();
        // Neighbours of the slash in byte order: there, walking directories and sorting keys give different orders.
        keys.extend(["listed/a-n00001", "listed/a.n00002", "listed/a0n00003", "listed/a/b/n00004"].map(str::to_owned));
        for chunk in keys.chunks(32) {
            let puts = chunk.iter().map(|key| async move {
                let number: usize = key.rsplit('n').next().and_then(|n| n.parse().ok()).expect("number");
                self.store.put_new(key, pattern(number % 3)).await
            });
            assert!(join_all(puts).await.iter().all(Result::is_ok));
        }
        keys.sort();
        let (found, pages) = self.all("listed/", None).await;
        assert_eq!(found, keys);
        assert!(self.many < 100 || pages > 1, "{pages} pages of {} objects", self.many);

        let below: Vec<String> = keys.iter().filter(|key| key.starts_with("listed/a/n0000")).cloned().collect();
        assert_eq!(self.all("listed/a/n0000", None).await.0, below);
        let middle = &keys[keys.len() / 2];
        let rest: Vec<String> = keys.iter().filter(|key| *key > middle).cloned().collect();
        assert_eq!(self.all("listed/", Some(middle)).await.0, rest);
        let absent = "listed/a/n00001x";
        let rest: Vec<String> = keys.iter().filter(|key| key.as_str() > absent).cloned().collect();
        assert_eq!(self.all("listed/", Some(absent)).await.0, rest);
        assert_eq!(self.all("listed/", Some("listed/zzz")).await.0, Vec::<String>::new());
        assert_eq!(self.all("listed/", Some("a")).await.0, keys, "`after` may come before the prefix");
    }

    /// A swap that found another version. If answers get lost it may not know that: its first attempt may have been
    /// done and been replaced since.
    fn changed(&self, result: Result<Version, StoreError>, there: Option<&Version>, wanted: Option<&Version>) {
        match result.expect_err("another version is there") {
            StoreError::Changed { found, expected, .. } => {
                assert_eq!((found.as_ref(), expected.as_ref()), (there, wanted));
            }
            error => assert!(self.may_stay_unknown && error.disposition() == Disposition::Unknown, "{error}"),
        }
    }

    async fn swaps_compare_versions(&self) {
        let (store, key) = (&self.store, "swapped/x");
        store.put_new("swapped/other", text("other")).await.expect("put");
        let old = store.head("swapped/other").await.expect("head").version;
        self.changed(store.swap(key, Some(&old), text("0")).await, None, Some(&old));
        fails_as(store.head(key).await, Disposition::NotFound);

        let first = store.swap(key, None, text("1")).await.expect("create");
        assert_eq!(store.head(key).await.expect("head").version, first);
        self.changed(store.swap(key, None, text("2")).await, Some(&first), None);

        let second = store.swap(key, Some(&first), text("two")).await.expect("swap");
        assert_ne!(first, second);
        self.changed(store.swap(key, Some(&first), text("3")).await, Some(&second), Some(&first));
        let again = store.swap(key, Some(&first), text("two")).await.expect("our own bytes are there (R12)");
        assert_eq!(again, second);
        let object = store.get_object(key).await.expect("get");
        assert_eq!((object.body, object.version), (text("two"), second));
    }

    async fn of_many_writers_one_wins(&self) {
        for round in 0..12 {
            let key = format!("race/put/{round}");
            let writes = (0..8).map(|writer| {
                let (store, key) = (self.store.clone(), key.clone());
                tokio::spawn(async move { store.put_new(&key, text(format!("writer {writer}"))).await })
            });
            let results = join_all(writes).await;
            let results: Vec<_> = results.into_iter().map(|joined| joined.expect("joined")).collect();
            let winners: Vec<usize> = (0..8).filter(|writer| results[*writer].is_ok()).collect();
            for error in results.iter().filter_map(|result| result.as_ref().err()) {
                let lost = error.disposition() == Disposition::Conflict;
                assert!(lost || (self.may_stay_unknown && error.disposition() == Disposition::Unknown), "{error}");
            }
            let there = self.store.get(&key).await.expect("one of them was written");
            match winners.as_slice() {
                [winner] => assert_eq!(there, text(format!("writer {winner}"))),
                [] => assert!(self.may_stay_unknown, "no winner"),
                _ => panic!("several winners: {winners:?}"),
            }
        }
    }

    async fn of_many_swappers_one_wins(&self) {
        let key = "race/swap";
        let mut version = self.store.swap(key, None, text("start")).await.expect("create");
        for round in 0..12 {
            let swaps = (0..8).map(|writer| {
                let (store, version) = (self.store.clone(), version.clone());
                let body = text(format!("round {round} writer {writer}"));
                tokio::spawn(async move { store.swap(key, Some(&version), body).await })
            });
            let results = join_all(swaps).await;
            let results: Vec<_> = results.into_iter().map(|joined| joined.expect("joined")).collect();
            let winners: Vec<usize> = (0..8).filter(|writer| results[*writer].is_ok()).collect();
            let there = self.store.get_object(key).await.expect("get");
            match winners.as_slice() {
                [winner] => assert_eq!(there.body, text(format!("round {round} writer {winner}"))),
                [] => assert!(self.may_stay_unknown, "no winner: {results:?}"),
                _ => panic!("several winners: {winners:?}"),
            }
            assert_ne!(there.version, version, "somebody won");
            version = there.version;
        }
    }

    /// Each swapper adds tokens to a list, and looks up those with an unknown outcome. In the end every token is there
    /// once.
    async fn no_swap_is_lost(&self) {
        const EACH: usize = 8;
        let key = "race/list";
        self.store.swap(key, None, text("begin")).await.expect("create");
        let swappers = (0..4).map(|writer| {
            let store = self.store.clone();
            tokio::spawn(async move {
                for number in 0..EACH {
                    let token = format!(" {writer}:{number}:{:016x}", rand::random::<u64>());
                    loop {
                        let object = store.get_object(key).await.expect("get");
                        let list = String::from_utf8(object.body.to_vec()).expect("text");
                        if list.contains(&token) {
                            break;
                        }
                        match store.swap(key, Some(&object.version), text(list + &token)).await {
                            Ok(_) => break,
                            Err(error) => {
                                let known = [Disposition::Conflict, Disposition::Unknown, Disposition::Retry];
                                assert!(known.contains(&error.disposition()), "{error}");
                            }
                        }
                    }
                }
            })
        });
        for joined in join_all(swappers).await {
            joined.expect("joined");
        }
        let list = self.store.get(key).await.expect("get");
        let list = String::from_utf8(list.to_vec()).expect("text");
        let tokens: Vec<&str> = list.split(' ').skip(1).collect();
        let distinct: BTreeSet<&str> = tokens.iter().copied().collect();
        assert_eq!((tokens.len(), distinct.len()), (4 * EACH, 4 * EACH), "{list}");
    }

    async fn impossible_requests_are_refused(&self) {
        let store = &self.store;
        for key in ["", "/x", "../x", "a/../../x", "a//b", "a/", ".holdfast/x", "a\0b", "ü"] {
            fails_as(store.put_new(key, text("x")).await, Disposition::Denied);
            fails_as(store.get(key).await, Disposition::Denied);
            fails_as(store.get_object(key).await, Disposition::Denied);
            fails_as(store.get_range(key, 0..1).await, Disposition::Denied);
            fails_as(store.head(key).await, Disposition::Denied);
            fails_as(store.delete(key).await, Disposition::Denied);
            fails_as(store.swap(key, None, text("x")).await, Disposition::Denied);
        }
        fails_as(store.list("../", None).await, Disposition::Denied);
        let large = Bytes::from(vec![0; OBJECT_BYTES_MAX + 1]);
        fails_as(store.put_new("large", large.clone()).await, Disposition::Denied);
        fails_as(store.swap("large", None, large).await, Disposition::Denied);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory() {
    Suite { store: Arc::new(Memory::new()), many: 100, may_stay_unknown: false }.run().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directory() {
    let dir = tempfile::tempdir().expect("temporary directory");
    // Below a directory that does not exist yet, with a blank in its name.
    let path = dir.path().join("new one/objects");
    let store = open(&format!("file://{}", path.display()), &Default::default()).expect("open");
    Suite { store, many: 40, may_stay_unknown: false }.run().await;
    let outside: Vec<_> = std::fs::read_dir(dir.path().join("new one")).expect("list").collect();
    assert_eq!(outside.len(), 1, "nothing was written beside the store: {outside:?}");
}

/// Two processes on one directory see each other only through the file system.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directory_opened_twice() {
    #[derive(Debug)]
    struct Either(Directory, Directory);
    impl Either {
        fn one(&self) -> &Directory {
            if rand::random() { &self.0 } else { &self.1 }
        }
    }
    impl ObjectStore for Either {
        fn place(&self) -> &str {
            self.0.place()
        }
        fn put_new<'a>(&'a self, key: &'a str, body: Bytes) -> holdfast_store::BoxFuture<'a, Result<(), StoreError>> {
            self.one().put_new(key, body)
        }
        fn get_object<'a>(
            &'a self,
            key: &'a str,
        ) -> holdfast_store::BoxFuture<'a, Result<holdfast_store::Object, StoreError>> {
            self.one().get_object(key)
        }
        fn get_range<'a>(
            &'a self,
            key: &'a str,
            range: std::ops::Range<u64>,
        ) -> holdfast_store::BoxFuture<'a, Result<Bytes, StoreError>> {
            self.one().get_range(key, range)
        }
        fn head<'a>(&'a self, key: &'a str) -> holdfast_store::BoxFuture<'a, Result<holdfast_store::Head, StoreError>> {
            self.one().head(key)
        }
        fn delete<'a>(&'a self, key: &'a str) -> holdfast_store::BoxFuture<'a, Result<(), StoreError>> {
            self.one().delete(key)
        }
        fn list<'a>(
            &'a self,
            prefix: &'a str,
            after: Option<&'a str>,
        ) -> holdfast_store::BoxFuture<'a, Result<holdfast_store::ListPage, StoreError>> {
            self.one().list(prefix, after)
        }
        fn swap<'a>(
            &'a self,
            key: &'a str,
            expected: Option<&'a Version>,
            body: Bytes,
        ) -> holdfast_store::BoxFuture<'a, Result<Version, StoreError>> {
            self.one().swap(key, expected, body)
        }
    }
    let dir = tempfile::tempdir().expect("temporary directory");
    let both = Either(Directory::open(dir.path()).expect("open"), Directory::open(dir.path()).expect("open"));
    Suite { store: Arc::new(both), many: 40, may_stay_unknown: false }.run().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faulty_memory() {
    let faults = Faults {
        fail_before: 100,
        fail_after: 100,
        slow: 100,
        slow_by: Duration::from_millis(1),
        truncate: 100,
        missing_once: 100,
        own_conflict: 50,
        full: 50,
        // Left out are: refusals, which nobody repeats below the callers; outdated listings, which the suite's
        // expectations exclude; and flipped bits, which only the reader of an object can detect.
        ..Faults::default()
    };
    for seed in 0..8 {
        let faulty = Arc::new(Retrying::new(Faulty::new(Memory::new(), seed, faults.clone()), support::quick()));
        Suite { store: faulty.clone(), many: 100, may_stay_unknown: true }.run().await;
        let counts = faulty.within().counts();
        let each = [
            counts.failed_before,
            counts.failed_after,
            counts.slowed,
            counts.truncated,
            counts.missed,
            counts.own_conflicts,
            counts.refused,
        ];
        assert!(each.iter().all(|count| *count > 5), "seed {seed} played too little: {counts:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s3() {
    let server = match Versitygw::start() {
        Ok(server) => server,
        Err(reason) => return holdfast_testkit::missing(&reason),
    };
    server.create_bucket("suite");
    for url in ["s3://suite", "s3://suite/with/prefix"] {
        let store = open(url, &server.options()).expect("open");
        Suite { store, many: 1020, may_stay_unknown: false }.run().await;
    }
}
