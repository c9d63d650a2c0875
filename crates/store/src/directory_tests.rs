use super::*;
use crate::error::Disposition;

fn opened() -> (tempfile::TempDir, Directory) {
    let dir = tempfile::tempdir().expect("temporary directory");
    let store = Directory::open(dir.path()).expect("open");
    (dir, store)
}

fn body(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

fn own_files(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir.join(OWN)).expect("own");
    let mut names: Vec<_> = entries.map(|e| e.expect("entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn objects_outlive_the_process() {
    let (dir, store) = opened();
    store.put_new("a/b/c", body("x")).await.expect("put");
    drop(store);
    let store = Directory::open(dir.path()).expect("open");
    assert_eq!(store.get("a/b/c").await, Ok(body("x")));
    assert_eq!(fs::read(dir.path().join("a/b/c")).expect("a plain file"), b"x");
}

#[tokio::test]
async fn nothing_temporary_is_left_or_listed() {
    let (dir, store) = opened();
    store.put_new("k", body("x")).await.expect("put");
    store.put_new("k", body("y")).await.expect_err("conflict");
    let version = store.swap("s", None, body("1")).await.expect("swap");
    store.swap("s", Some(&version), body("2")).await.expect("swap");
    store.swap("s", Some(&version), body("3")).await.expect_err("changed");
    assert_eq!(own_files(dir.path()), ["swap.lock"]);
    let page = store.list("", None).await.expect("list");
    let keys: Vec<_> = page.objects.iter().map(|object| object.key.as_str()).collect();
    assert_eq!(keys, ["k", "s"]);
}

/// Whoever holds it stops all swaps, and with them the generation of each set.
#[test]
fn nobody_else_may_hold_the_lock_for_swaps() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let lock = dir.path().join(OWN).join("swap.lock");
    let others = || fs::metadata(&lock).expect("a lock").permissions().mode() & 0o007;
    Directory::open(dir.path()).expect("open");
    assert_eq!(others(), 0);
    fs::set_permissions(&lock, fs::Permissions::from_mode(0o644)).expect("as an earlier version made it");
    Directory::open(dir.path()).expect("open");
    assert_eq!(others(), 0);
}

/// A failed read proves nothing: the result "changed, and nothing is there" would be a conclusion.
#[tokio::test]
async fn a_swap_of_what_cannot_be_read_concludes_nothing() {
    let (dir, store) = opened();
    let version = store.swap("s", None, body("1")).await.expect("swap");
    fs::remove_file(dir.path().join("s")).expect("remove");
    std::os::unix::fs::symlink("s", dir.path().join("s")).expect("a link to itself");
    for expected in [None, Some(&version)] {
        let error = store.swap("s", expected, body("2")).await.expect_err("it cannot be read");
        assert!(matches!(error, StoreError::Unavailable { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn what_a_crash_left_is_removed_when_it_is_old() {
    let (dir, store) = opened();
    drop(store);
    let own = dir.path().join(OWN);
    for name in ["new-old", "new-young"] {
        fs::write(own.join(name), "half").expect("write");
    }
    let long_ago = SystemTime::now() - TEMPORARY_AGE_MAX - Duration::from_secs(60);
    File::options().write(true).open(own.join("new-old")).and_then(|f| f.set_modified(long_ago)).expect("set time");
    Directory::open(dir.path()).expect("open");
    assert_eq!(own_files(dir.path()), ["new-young", "swap.lock"], "a young one may be another process's");
}

#[tokio::test]
async fn a_directory_that_was_removed_meanwhile_is_made_again() {
    let (dir, store) = opened();
    store.put_new("a/b/1", body("x")).await.expect("put");
    fs::remove_dir_all(dir.path().join("a")).expect("remove");
    store.put_new("a/b/2", body("x")).await.expect("put");
    assert_eq!(store.get("a/b/2").await, Ok(body("x")));
}

#[tokio::test]
async fn a_key_that_continues_another_is_refused() {
    let (_dir, store) = opened();
    store.put_new("a", body("x")).await.expect("put");
    let error = store.put_new("a/b", body("x")).await.expect_err("nested");
    assert_eq!(error.disposition(), Disposition::Denied, "{error}");
    store.put_new("d/e", body("x")).await.expect("put");
    let error = store.put_new("d", body("x")).await.expect_err("a directory is there");
    assert_eq!(error.disposition(), Disposition::Denied, "{error}");
    assert_eq!(store.get("d").await.expect_err("a directory is no object").disposition(), Disposition::NotFound);
    assert_eq!(store.get("a/b").await.expect_err("no such object").disposition(), Disposition::Denied);
}

#[tokio::test]
async fn foreign_files_are_neither_listed_nor_reachable() {
    let (dir, store) = opened();
    fs::write(dir.path().join("not a key"), "x").expect("write");
    fs::write(dir.path().join(".hidden"), "x").expect("write");
    store.put_new("k", body("x")).await.expect("put");
    let page = store.list("", None).await.expect("list");
    assert_eq!(page.objects, [Listed { key: "k".into(), bytes: 1 }]);
    for key in [".hidden", "not a key", ".holdfast/swap.lock"] {
        assert_eq!(store.get(key).await.expect_err(key).disposition(), Disposition::Denied);
        assert_eq!(store.delete(key).await.expect_err(key).disposition(), Disposition::Denied);
    }
}

#[tokio::test]
async fn a_file_where_the_directory_should_be_is_named() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let file = dir.path().join("file");
    fs::write(&file, "x").expect("write");
    let error = Directory::open(&file).expect_err("a file").to_string();
    assert!(error.contains(&format!("file://{}", file.display())), "{error}");
}

#[tokio::test]
async fn an_object_cut_short_behind_our_back_is_found() {
    let (dir, store) = opened();
    store.put_new("k", body("0123456789")).await.expect("put");
    fs::write(dir.path().join("k"), "0123").expect("cut");
    let error = store.get_range("k", 2..8).await.expect_err("short");
    assert!(matches!(error, StoreError::Length { found_bytes: 4, expected_bytes: 8, .. }), "{error}");
}

#[test]
fn io_errors_mean_what_the_table_says() {
    use io::ErrorKind as Kind;
    let table = [
        (Kind::NotFound, Disposition::NotFound),
        (Kind::PermissionDenied, Disposition::Denied),
        (Kind::ReadOnlyFilesystem, Disposition::Denied),
        (Kind::StorageFull, Disposition::Retry),
        (Kind::QuotaExceeded, Disposition::Retry),
        (Kind::Interrupted, Disposition::Retry),
        (Kind::Other, Disposition::Retry),
    ];
    for (kind, disposition) in table {
        let at = At::new(&Arc::from("x"), Op::Put, "k");
        assert_eq!(not_done(at.clone(), &kind.into()).disposition(), disposition, "{kind:?}");
        assert_eq!(unsynced(at, &kind.into()).disposition(), Disposition::Unknown);
    }
}

#[tokio::test]
async fn pages_of_a_large_directory_join_up() {
    let (dir, store) = opened();
    store.put_new("p/first", body("")).await.expect("put");
    // Directly in the file system, for speed.
    let many = LIST_PAGE_OBJECTS + 100;
    for number in 0..many {
        File::create(dir.path().join(format!("p/n{number:06}"))).expect("create");
    }
    let first = store.list("p/n", None).await.expect("list");
    assert_eq!(first.objects.len(), LIST_PAGE_OBJECTS);
    let second = store.list("p/n", first.more.as_deref()).await.expect("list");
    assert_eq!((second.objects.len(), second.more), (100, None));
    assert_eq!(second.objects.last().map(|object| object.key.clone()), Some(format!("p/n{:06}", many - 1)));
}

/// Tests that use the turns of the whole process run one after the other.
static ONE_AT_A_TIME: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

#[tokio::test]
async fn a_directory_that_hangs_keeps_its_own_turns_and_no_other_threads() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let (_dir, mut store) = opened();
    let (_other_dir, other) = opened();
    Arc::get_mut(&mut store.shared).expect("not shared yet").turn_limit = Duration::from_secs(2);
    let (release, held) = std::sync::mpsc::channel::<()>();
    let held = Arc::new(Mutex::new(held));
    let (begun, mut has_begun) = tokio::sync::mpsc::unbounded_channel();
    let mut hanging = Vec::new();
    for _ in 0..AT_ONCE {
        let (store, held, begun) = (store.clone(), held.clone(), begun.clone());
        hanging.push(tokio::spawn(async move {
            let work = move |_: &Shared| {
                begun.send(()).expect("begun");
                held.lock().expect("lock").recv().map_err(|_| unreachable!("the test holds it"))
            };
            store.run(Op::Get, "hangs", work).await
        }));
    }
    drop(begun);
    for _ in 0..AT_ONCE {
        has_begun.recv().await.expect("all have their turn");
    }
    let error = store.put_new("k", body("x")).await.expect_err("no turn is free");
    assert_eq!((error.disposition(), error.kind()), (Disposition::Retry, Some(Trouble::NoAnswer)), "{error}");
    // A caller that gave up waiting for the answer has not freed the thread.
    hanging.pop().expect("one").abort();
    assert_eq!(store.get("k").await.expect_err("still none").disposition(), Disposition::Retry);
    other.put_new("k", body("y")).await.expect("another directory has turns of its own");
    for _ in 0..AT_ONCE {
        release.send(()).expect("release");
    }
    for one in hanging {
        one.await.expect("ends").expect("done");
    }
    store.put_new("k", body("x")).await.expect("and now it works");
}

/// A caller with several requests polls one of them at a time: a turn that another one gets must not be lost meanwhile.
#[tokio::test]
async fn requests_that_nobody_looks_at_keep_no_turns() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let (_dir, mut store) = opened();
    Arc::get_mut(&mut store.shared).expect("not shared yet").turn_limit = Duration::from_secs(20);
    let (release, held) = std::sync::mpsc::channel::<()>();
    let held = Arc::new(Mutex::new(held));
    let (begun, mut has_begun) = tokio::sync::mpsc::unbounded_channel();
    for _ in 0..AT_ONCE {
        let (store, held, begun) = (store.clone(), held.clone(), begun.clone());
        tokio::spawn(async move {
            let work = move |_: &Shared| {
                begun.send(()).expect("begun");
                held.lock().expect("lock").recv().map_err(|_| unreachable!("the test holds it"))
            };
            store.run(Op::Get, "holds its turn", work).await
        });
    }
    drop(begun);
    for _ in 0..AT_ONCE {
        has_begun.recv().await.expect("all have their turn");
    }
    let mut waiting: Vec<_> = (0..AT_ONCE).map(|_| store.get("k")).collect();
    for one in &mut waiting {
        let once = std::future::poll_fn(|cx| std::task::Poll::Ready(one.as_mut().poll(cx).is_pending()));
        assert!(once.await, "no turn is free");
    }
    for _ in 0..AT_ONCE {
        release.send(()).expect("release");
    }
    store.put_new("k", body("x")).await.expect("those who wait and are not looked at are not in the way");
    drop(waiting);
}

/// Behaves like a file system that does not respond: a pipe without a reader blocks whoever opens it for writing.
#[tokio::test]
async fn a_directory_that_hangs_when_it_is_opened_holds_up_nobody_else() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let pipe = dir.path().join(OWN).join("swap.lock");
    fs::create_dir(dir.path().join(OWN)).expect("create");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
    let url = format!("file://{}", dir.path().display());
    let policy = crate::RetryPolicy { read_timeout_ms: 1_000, operation_timeout_ms: 3_000, ..Default::default() };
    let options = crate::StoreOptions { retry: policy, ..Default::default() };
    let health = Arc::new(crate::Health::new("hangs".to_owned()));
    let opened = tokio::task::spawn_blocking(move || crate::open_observed(&url, &options, health));
    let opened = tokio::time::timeout(Duration::from_secs(20), opened).await;
    let read = match &opened {
        Ok(Ok(Ok(store))) => Some(store.get("k").await),
        _ => None,
    };
    // Releases the blocked requests, so that a failing test ends.
    let _reader = File::options().read(true).write(true).open(&pipe).expect("pipe");
    let error = read.expect("opened at once").expect_err("it does not answer");
    assert_ne!(error.disposition(), Disposition::NotFound, "{error}");
    let Ok(Ok(Ok(store))) = opened else { unreachable!("looked at above") };
    // The blocked requests have ended, and the directory is prepared: the pipe is as good as a file here.
    let turns = TURNS.lock().expect("lock").get(dir.path()).expect("known").clone();
    let ended = tokio::time::timeout(Duration::from_secs(60), turns.acquire_many(AT_ONCE as u32)).await;
    drop(ended.expect("the operations end").expect("open"));
    // This checks that it answers again, not how soon: on a busy machine a second can pass before it gets a thread.
    let answers = async {
        loop {
            match store.get("k").await.expect_err("no such object").disposition() {
                Disposition::NotFound => return,
                found => assert_eq!(found, Disposition::Retry),
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), answers).await.expect("it answers again");
}
