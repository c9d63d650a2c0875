//! The contract of a store.

use crate::error::StoreError;
use crate::version::Version;
use bytes::Bytes;
use std::any::Any;
use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;

/// The result of a store's methods: a future that works behind `dyn`.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What a store reports about an object without its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Length in bytes.
    pub bytes: u64,
    /// For [`ObjectStore::swap`].
    pub version: Version,
}

/// An object and its version, read in one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// The content.
    pub body: Bytes,
    /// For [`ObjectStore::swap`].
    pub version: Version,
}

/// One object of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The whole key, in the form that the other methods take.
    pub key: String,
    /// Length in bytes.
    pub bytes: u64,
}

/// Part of a listing, in the byte order of the keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListPage {
    /// The objects. May be empty although `more` is set.
    pub objects: Vec<Listed>,
    /// The value of `after` for the next page; `None` at the end.
    pub more: Option<String>,
}

/// A place that keeps immutable objects by key.
///
/// Contract. One test suite (`tests/store/contract.rs`) checks it for every implementation:
///
/// - Keys MUST be of the form that `keys::check` accepts; others are refused without asking the store. No key may
///   continue another with a `/` (`a` and `a/b`): a directory cannot hold both.
/// - Every call ends in bounded time. Dropping its future leaves the outcome of a write unknown (R12).
/// - Concurrent calls are allowed and expected.
pub trait ObjectStore: Send + Sync + fmt::Debug {
    /// The store's place, as a person would write it. Contains no secret.
    fn place(&self) -> &str;

    /// The source of the keys that requests are signed with, and their id and end, for a person; no secret. None: it
    /// needs none, or has none yet.
    fn credentials(&self) -> Option<String> {
        None
    }

    /// Writes `key` unless an object is there. Durable on `Ok` (STORE-S2).
    ///
    /// Idempotent for the same bytes: if an object with exactly these bytes is found, that is success, since it is our
    /// own from an attempt whose answer was lost (R12). Of several callers with different bytes, one wins.
    ///
    /// # Errors
    /// Conflict: another content is there. Unknown: it may have been written; repeat it with the same bytes.
    fn put_new<'a>(&'a self, key: &'a str, body: Bytes) -> BoxFuture<'a, Result<(), StoreError>>;

    /// The object with its version.
    ///
    /// # Errors
    /// NotFound means "not here": the caller must decide whether the object is lost.
    fn get_object<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Object, StoreError>>;

    /// Exactly the bytes of `range`. An empty range is answered without asking the store.
    ///
    /// # Errors
    /// Corrupt: the object ends before `range` does.
    fn get_range<'a>(&'a self, key: &'a str, range: Range<u64>) -> BoxFuture<'a, Result<Bytes, StoreError>>;

    /// Length and version.
    ///
    /// # Errors
    /// NotFound: it is not here.
    fn head<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Head, StoreError>>;

    /// Deletes the object. Succeeds if there is none. Never conditional, because not all stores support that.
    ///
    /// # Errors
    /// Unknown: it may have happened; repeat it.
    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Objects whose keys begin with `prefix` and come after `after` in byte order, in that order (PAGE-O1). A listing
    /// may be outdated: it never proves that an object exists or does not exist (R7).
    ///
    /// # Errors
    /// The store's error.
    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a str>) -> BoxFuture<'a, Result<ListPage, StoreError>>;

    /// Replaces the object if it still has version `expected` (`None`: if there is none) and returns the new version.
    ///
    /// `body` MUST contain something that was never written under this key before, such as 128 random bits: a version
    /// may be just a hash of the content, and if exactly `body` is found there, that counts as the success of this very
    /// call.
    ///
    /// Conflict: this call has not replaced it; there is another version. Unknown: it may have been replaced, and
    /// perhaps another writer has replaced it again: read it and look for the token.
    fn swap<'a>(
        &'a self,
        key: &'a str,
        expected: Option<&'a Version>,
        body: Bytes,
    ) -> BoxFuture<'a, Result<Version, StoreError>>;

    /// The object's bytes.
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        Box::pin(async move { Ok(self.get_object(key).await?.body) })
    }

    /// The store inside a wrapper, for a caller that looks for one implementation (`several`).
    fn concrete(&self) -> Option<Box<dyn Any>> {
        None
    }
}
