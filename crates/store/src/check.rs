//! Does a store do what we rely on? Asked by a person, and before a set is created on it.

use crate::ObjectStore;
use crate::error::{At, Cause, Disposition, Op, StoreError};
use bytes::Bytes;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What [`check`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckReport {
    /// The store.
    pub place: String,
    /// How long a small write took.
    pub put: Duration,
    /// How long a small read took.
    pub get: Duration,
}

/// Writes, conditionally overwrites, reads, lists and deletes two objects under `check/`, named by `nonce`, which must
/// be drawn anew. A store that ignores If-None-Match or If-Match is found here: with it, two gateways could overwrite
/// one another's objects.
///
/// # Errors
/// The first thing that does not work, as a person should read it.
pub async fn check(store: &dyn ObjectStore, nonce: u128) -> Result<CheckReport, StoreError> {
    let once = format!("check/{nonce:032x}/once");
    let swapped = format!("check/{nonce:032x}/swapped");
    let result = run(store, &once, &swapped).await;
    // What is left behind by a failed check is harmless and named as ours; its error says more than theirs.
    for key in [&once, &swapped] {
        let deleted = store.delete(key).await;
        if result.is_ok() {
            deleted?;
        }
    }
    result
}

async fn run(store: &dyn ObjectStore, once: &str, swapped: &str) -> Result<CheckReport, StoreError> {
    let place: Arc<str> = Arc::from(store.place());
    let broken = |op, key: &str, found: &str, hint| StoreError::Denied {
        at: At::new(&place, op, key),
        cause: Cause::text(found),
        hint,
    };
    let body = Bytes::from(format!("holdfast store check {once}"));
    let other = Bytes::from(format!("holdfast store check {once}, another"));

    let began = Instant::now();
    store.put_new(once, body.clone()).await?;
    let put = began.elapsed();
    let hint = "use a store that honours If-None-Match: * on PUT";
    match store.put_new(once, other.clone()).await {
        Err(error) if error.disposition() == Disposition::Conflict => {}
        Err(error) => return Err(error),
        Ok(()) => return Err(broken(Op::Put, once, "a second writer was let through", hint)),
    }

    let began = Instant::now();
    let found = store.get(once).await?;
    let get = began.elapsed();
    if found != body {
        return Err(broken(Op::Get, once, "what was read is not what was written", hint));
    }
    let end = body.len() as u64;
    if store.get_range(once, 9..end).await? != body.slice(9..) {
        return Err(broken(Op::Range, once, "a range is not that part of the object", "use a store with range reads"));
    }

    let first = store.swap(swapped, None, body).await?;
    store.swap(swapped, Some(&first), other.clone()).await?;
    let late = Bytes::from(format!("holdfast store check {once}, late"));
    let hint = "use a store that honours If-Match on PUT";
    let swap = store.swap(swapped, Some(&first), late).await;
    match swap.map_err(|error| (error.disposition(), error)) {
        // Either way, what is there tells.
        Err((Disposition::Conflict | Disposition::Unknown, _)) if store.get(swapped).await? == other => {}
        Err((_, error)) => return Err(error),
        Ok(_) => return Err(broken(Op::Swap, swapped, "a swap from an old version was let through", hint)),
    }

    let parent = once.trim_end_matches("once");
    let page = store.list(parent, None).await?;
    if page.objects.iter().filter(|object| object.key == once || object.key == swapped).count() != 2 {
        let hint = "use a store whose listings show what was written";
        return Err(broken(Op::List, parent, "the listing lacks what was just written", hint));
    }
    Ok(CheckReport { place: store.place().to_owned(), put, get })
}
