//! A store in memory, for tests and simulations: no I/O, lost with the process.

use crate::error::{At, Op, StoreError};
use crate::{BoxFuture, Head, ListPage, Listed, OBJECT_BYTES_MAX, Object, ObjectStore, Version, keys};
use bytes::Bytes;
use holdfast_types::sync::LockExt;
use std::collections::BTreeMap;
use std::future::ready;
use std::ops::{Bound, Range};
use std::sync::{Arc, Mutex};

/// Objects in one page of a listing: few, so that tests get several pages.
const LIST_PAGE_OBJECTS: usize = 7;

/// See the module.
#[derive(Debug)]
pub struct Memory {
    place: Arc<str>,
    objects: Mutex<BTreeMap<String, Bytes>>,
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

/// The check of every store before a write.
pub(crate) fn admit(at: impl Fn() -> Box<At>, key: &str, body: &Bytes) -> Result<(), StoreError> {
    keys::check(key)?;
    if body.len() > OBJECT_BYTES_MAX {
        return Err(StoreError::TooLarge { at: at(), found_bytes: body.len() as u64 });
    }
    Ok(())
}

/// The check of every store before the read of a range: `None` for an empty range.
pub(crate) fn admit_range(
    at: impl Fn() -> Box<At>,
    key: &str,
    range: &Range<u64>,
) -> Result<Option<usize>, StoreError> {
    keys::check(key)?;
    let bytes = range.end.saturating_sub(range.start);
    match usize::try_from(bytes) {
        Ok(0) => Ok(None),
        Ok(len) if len <= OBJECT_BYTES_MAX => Ok(Some(len)),
        _ => Err(StoreError::TooLarge { at: at(), found_bytes: bytes }),
    }
}

impl Memory {
    /// An empty store.
    pub fn new() -> Self {
        Self { place: Arc::from("memory"), objects: Mutex::default() }
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.objects.locked().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.objects.locked().is_empty()
    }

    fn at(&self, op: Op, key: &str) -> Box<At> {
        At::new(&self.place, op, key)
    }

    fn put_new_now(&self, key: &str, body: Bytes) -> Result<(), StoreError> {
        admit(|| self.at(Op::Put, key), key, &body)?;
        let mut objects = self.objects.locked();
        if let Some(found) = objects.get(key)
            && *found != body
        {
            let (found_bytes, expected_bytes) = (found.len() as u64, body.len() as u64);
            return Err(StoreError::Exists { at: self.at(Op::Put, key), found_bytes, expected_bytes });
        }
        objects.insert(key.to_owned(), body);
        Ok(())
    }

    fn find(&self, op: Op, key: &str) -> Result<Bytes, StoreError> {
        keys::check(key)?;
        self.objects.locked().get(key).cloned().ok_or_else(|| StoreError::NotFound { at: self.at(op, key) })
    }

    fn get_range_now(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        let Some(len) = admit_range(|| self.at(Op::Range, key), key, &range)? else { return Ok(Bytes::new()) };
        let body = self.find(Op::Range, key)?;
        if range.end > body.len() as u64 {
            let (found_bytes, expected_bytes) = (body.len() as u64, range.end);
            return Err(StoreError::Length { at: self.at(Op::Range, key), found_bytes, expected_bytes });
        }
        let start = range.start as usize;
        Ok(body.slice(start..start + len))
    }

    fn list_now(&self, prefix: &str, after: Option<&str>) -> Result<ListPage, StoreError> {
        keys::check_prefix(prefix)?;
        let from = after.filter(|after| *after >= prefix).map_or(Bound::Included(prefix), Bound::Excluded);
        let objects = self.objects.locked();
        let mut found =
            objects.range::<str, _>((from, Bound::Unbounded)).take_while(|(key, _)| key.starts_with(prefix));
        let page: Vec<Listed> = found
            .by_ref()
            .take(LIST_PAGE_OBJECTS)
            .map(|(key, body)| Listed { key: key.clone(), bytes: body.len() as u64 })
            .collect();
        let more = found.next().and_then(|_| page.last()).map(|last| last.key.clone());
        Ok(ListPage { objects: page, more })
    }

    fn swap_now(&self, key: &str, expected: Option<&Version>, body: Bytes) -> Result<Version, StoreError> {
        admit(|| self.at(Op::Swap, key), key, &body)?;
        let version = Version::of(&body);
        let mut objects = self.objects.locked();
        let found = objects.get(key).map(|body| Version::of(body));
        if found.as_ref() != expected && found.as_ref() != Some(&version) {
            return Err(StoreError::Changed { at: self.at(Op::Swap, key), found, expected: expected.cloned() });
        }
        objects.insert(key.to_owned(), body);
        Ok(version)
    }
}

impl ObjectStore for Memory {
    fn place(&self) -> &str {
        &self.place
    }

    fn put_new<'a>(&'a self, key: &'a str, body: Bytes) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(ready(self.put_new_now(key, body)))
    }

    fn get_object<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Object, StoreError>> {
        let found = self.find(Op::Get, key).map(|body| Object { version: Version::of(&body), body });
        Box::pin(ready(found))
    }

    fn get_range<'a>(&'a self, key: &'a str, range: Range<u64>) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        Box::pin(ready(self.get_range_now(key, range)))
    }

    fn head<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Head, StoreError>> {
        let found = self.find(Op::Head, key);
        Box::pin(ready(found.map(|body| Head { bytes: body.len() as u64, version: Version::of(&body) })))
    }

    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(ready(keys::check(key).map_err(StoreError::Key).map(|()| {
            self.objects.locked().remove(key);
        })))
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a str>) -> BoxFuture<'a, Result<ListPage, StoreError>> {
        Box::pin(ready(self.list_now(prefix, after)))
    }

    fn swap<'a>(
        &'a self,
        key: &'a str,
        expected: Option<&'a Version>,
        body: Bytes,
    ) -> BoxFuture<'a, Result<Version, StoreError>> {
        Box::pin(ready(self.swap_now(key, expected, body)))
    }
}
