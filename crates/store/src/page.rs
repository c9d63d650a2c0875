//! The order that every page of a listing must have. Loops over pages rely on it: they end, and they conclude that an
//! object which was not shown is not listed.
//!
//! PAGE-O1  The keys of a page are strictly ascending in byte order, and all of them come after the requested marker.
//!     Any other page is an error, never a result: a store that ignores `start-after` shows its first page for ever,
//!     and one that lists in another order silently skips keys.
//! PAGE-O2  A page that says that there is more names a marker beyond the requested one.

use crate::error::{At, Cause, Disorder, Op, StoreError};
use crate::object_store::ListPage;
use std::sync::Arc;

/// PAGE-O1, for keys in the order in which the store sent them.
///
/// # Errors
/// [`StoreError::Listing`].
pub(crate) fn must_ascend<'a>(
    at: impl Fn() -> Box<At>,
    after: Option<&'a str>,
    keys: impl IntoIterator<Item = &'a str>,
) -> Result<(), StoreError> {
    let (mut before, mut first) = (after, true);
    for key in keys {
        if let Some(before) = before.filter(|before| key <= *before) {
            let of = if first { Disorder::IgnoresMarker } else { Disorder::Unsorted };
            // A store chooses these keys: they may be long.
            let shown = |key: &str| key.chars().take(200).collect();
            return Err(StoreError::Listing { at: at(), of, found: shown(key), before: shown(before) });
        }
        (before, first) = (Some(key), false);
    }
    Ok(())
}

/// PAGE-O1 and PAGE-O2 of a page of the store `place`.
///
/// # Errors
/// [`StoreError::Listing`], or Unavailable for a page without progress.
pub(crate) fn admit(
    place: &Arc<str>,
    prefix: &str,
    after: Option<&str>,
    page: ListPage,
) -> Result<ListPage, StoreError> {
    let at = || At::new(place, Op::List, prefix);
    must_ascend(at, after, page.objects.iter().map(|listed| listed.key.as_str()))?;
    match &page.more {
        Some(more) if after.is_some_and(|after| more.as_str() <= after) => Err(without_progress(at())),
        _ => Ok(page),
    }
}

/// PAGE-O2. It may pass: a listing during deletions may have such a page.
pub(crate) fn without_progress(at: Box<At>) -> StoreError {
    let cause = Cause::text("the store says that there is more after a page without progress");
    StoreError::Unavailable { at, attempts: 1, cause }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object_store::Listed;
    use crate::{Disposition, Kind};

    fn page(keys: &[&str], more: Option<&str>) -> ListPage {
        let objects = keys.iter().map(|key| Listed { key: (*key).to_owned(), bytes: 1 }).collect();
        ListPage { objects, more: more.map(str::to_owned) }
    }

    fn admitted(after: Option<&str>, keys: &[&str], more: Option<&str>) -> Result<ListPage, StoreError> {
        admit(&Arc::from("s3://bucket/"), "sets/", after, page(keys, more))
    }

    #[test]
    fn pages_that_ascend_beyond_the_marker_are_admitted() {
        for (after, keys, more) in [
            (None, &[][..], None),
            (None, &["a", "a-b", "a/b", "b"], Some("b")),
            (Some("a"), &["a0"], None),
            (Some("a"), &[], Some("b")),
        ] {
            assert_eq!(admitted(after, keys, more), Ok(page(keys, more)));
        }
    }

    #[test]
    fn other_pages_are_errors_that_name_the_fault() {
        for (after, keys, says) in [
            (Some("b"), &["a", "b", "c"][..], "ignores start-after"),
            (Some("b"), &["b"], "ignores start-after"),
            (None, &["b", "a"], "not sorted"),
            (None, &["a", "a"], "not sorted"),
            (Some("a"), &["b", "a"], "not sorted"),
        ] {
            let error = admitted(after, keys, None).expect_err(says);
            assert!(error.to_string().contains(says), "{says:?} in {error}");
            assert_eq!((error.disposition(), error.kind()), (Disposition::Denied, Some(Kind::Unsupported)));
            assert!(error.to_string().contains("s3://bucket/"), "{error}");
        }
        for more in ["a", "b"] {
            let error = admitted(Some("b"), &[], Some(more)).expect_err("no progress");
            assert!(error.to_string().contains("without progress"), "{error}");
        }
    }
}
