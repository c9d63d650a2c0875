//! Object stores: where segments, map pages and roots go to stay.
//!
//! Owns: the [`ObjectStore`] contract and the stores that keep it (S3, a local directory, memory), what a failed
//! request means and when it is asked again ([`retry`]), all object keys ([`keys`]), and a store that fails on purpose
//! for tests ([`Faulty`]). Nothing else in Holdfast names the AWS SDK.
//! Does not own: what is inside an object, which objects must exist (the replicated state says so, R7), how many
//! stores must have one, or when one may be deleted. Depends on `types` only.
//!
//! ```text
//!   open("s3://...")    --> Retrying --> s3: one attempt each --> HTTP
//!   open("file:///...") --> Directory                             one process or several, one file system
//!   tests               --> Retrying --> Faulty --> Memory
//! ```
//!
//! S1  An object that was written by `put_new` is never changed by this crate; a key names one content for ever (R7).
//! S2  `Ok` from a write means that it is durable as far as the store promises it: synced, or answered with 200.
//! S3  An error says whether the request can have happened ([`Disposition::Unknown`], R12). All others mean: it has not.
//! S4  A read answers the bytes that were asked for, all of them, or an error.

#![warn(missing_docs)]

mod check;
mod credentials;
mod directory;
mod error;
mod faulty;
pub mod health;
pub mod keys;
mod memory;
mod opening;
mod options;
mod quorum;
pub mod retry;
mod s3;
mod several;
mod switch;
mod version;

use bytes::Bytes;
use holdfast_types::Placement;
use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;

pub use check::{CHECK_LIMIT, CheckError, CheckReport, check};
pub use credentials::CredentialsProblem;
pub use directory::Directory;
pub use error::{At, Cause, Disposition, Op, StoreError};
pub use faulty::{FaultCounts, Faults, Faulty};
pub use health::{Health, Kind, Standing, Trouble};
pub use memory::Memory;
pub use opening::open_aside;
pub use options::{Location, Secret, StoreOptions, StoreUrlError};
pub use quorum::{
    Backlog, Observed, Part, Quorum, RepairError, ReplicaStanding, SeatSeen, Wanted, head_of_several, moved_to,
};
pub use retry::{RetryPolicy, Retrying};
pub use several::{FIRST_CONFIGURATION, STORES_MAX, Stores};
pub use switch::Switch;
pub use version::Version;

/// What a store's methods return: a future that can be held behind `dyn`.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Largest object in bytes that a store reads or writes: four segments' worth. A store is not trusted to keep an
/// answer small, and an object is held in memory as a whole.
pub const OBJECT_BYTES_MAX: usize = 4 * holdfast_types::limits::SEGMENT_BYTES_TARGET;

/// What is known about an object without reading it.
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
    /// What to give as `after` to get the next page; `None` at the end.
    pub more: Option<String>,
}

/// A place that keeps immutable objects by key.
///
/// Contract, held to by one suite (`tests/store/contract.rs`) that runs on every implementation:
///
/// - Keys MUST be of the form that [`keys::check`] accepts; others are refused without asking the store. No key may
///   continue another with a `/` (`a` and `a/b`): a directory cannot hold both.
/// - Every call ends in bounded time. Dropping its future leaves the outcome of a write unknown (R12).
/// - Concurrent calls are allowed and expected.
pub trait ObjectStore: Send + Sync + fmt::Debug {
    /// Where this is, as a person would write it. Holds no secret.
    fn place(&self) -> &str;

    /// Writes `key` unless something is there. Durable on `Ok` (S2).
    ///
    /// Idempotent for the same bytes: meeting an object with exactly these bytes is success, since it is our own from
    /// an attempt whose answer was lost (R12). Of several callers with different bytes one wins.
    ///
    /// # Errors
    /// Conflict when another content is there. Unknown when it may have been written: ask again with the same bytes.
    fn put_new<'a>(&'a self, key: &'a str, body: Bytes) -> BoxFuture<'a, Result<(), StoreError>>;

    /// The object with its version.
    ///
    /// # Errors
    /// NotFound means "not here": whether the object is lost is for the caller to judge.
    fn get_object<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Object, StoreError>>;

    /// The bytes of `range`, exactly. An empty range is answered without asking the store.
    ///
    /// # Errors
    /// Corrupt when the object ends before `range` does.
    fn get_range<'a>(&'a self, key: &'a str, range: Range<u64>) -> BoxFuture<'a, Result<Bytes, StoreError>>;

    /// Length and version.
    ///
    /// # Errors
    /// NotFound when it is not here.
    fn head<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Head, StoreError>>;

    /// Deletes the object. Success when there is none. Never conditional: stores differ in whether they honour that.
    ///
    /// # Errors
    /// Unknown when it may have happened: ask again.
    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Objects whose keys begin with `prefix` and come after `after` in byte order. A listing may be stale and is never
    /// the proof that an object exists or does not (R7).
    ///
    /// # Errors
    /// As the store says.
    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a str>) -> BoxFuture<'a, Result<ListPage, StoreError>>;

    /// Replaces the object if it is still at version `expected` (`None`: if there is none) and answers the new version.
    ///
    /// `body` MUST contain something that was never written under this key before, such as 128 random bits: a version
    /// may be a mere hash of the content, and finding exactly `body` there is taken as this very call's success.
    ///
    /// # Errors
    /// Conflict: it was not replaced by this call, another version is there. Unknown: it may have been replaced, and
    /// then perhaps been replaced again by another: read it and look for the token.
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

    /// The several stores that this is at present, where it is not one.
    fn several(&self) -> Option<Arc<Quorum>> {
        None
    }
}

/// Opens the stores that `url` names ([`Stores`]): `s3://BUCKET[/PREFIX]` or `file:///DIRECTORY`, or several of them with their write quorum.
///
/// Opening asks nothing of an S3 store, so that a gateway starts while its store is down (R8); [`check()`] does. A file that its keys come from is read
/// ([`open_aside`] is for who must not wait for that). A directory is created when it is missing.
///
/// # Errors
/// When the URL or the options cannot be used, or the directory cannot be.
pub fn open(url: &str, options: &StoreOptions) -> Result<Arc<dyn ObjectStore>, StoreError> {
    let placement = Placement::parse(url);
    if let Some(one) = alone(&placement)? {
        return match Location::parse(&one).map_err(StoreError::Url)? {
            Location::Directory(path) if options.existing => Ok(Arc::new(Directory::existing(&path)?)),
            Location::Directory(path) => Ok(Arc::new(Directory::open(&path)?)),
            Location::S3(target) => Ok(Arc::new(open_s3(&target, options, None)?)),
        };
    }
    Ok(Arc::new(Arc::new(Quorum::over(&placement, |url| Ok((open(url, options)?, None)))?)))
}

/// The URL, where the placement is one store that always was the set's only one.
fn alone(placement: &Placement) -> Result<Option<String>, StoreError> {
    let stores = Stores::parse(&placement.stores).map_err(StoreError::Url)?;
    Ok(stores.single().filter(|_| placement.next.is_none()).map(str::to_owned))
}

/// As [`open`], and `health` is told of every attempt. A directory is opened by its first operation: one that hangs holds up nobody. Of several stores each has a health of its own, under the same label.
///
/// # Errors
/// As [`open`].
pub fn open_observed(
    url: &str,
    options: &StoreOptions,
    health: Arc<Health>,
) -> Result<Arc<dyn ObjectStore>, StoreError> {
    let placement = Placement::parse(url);
    if let Some(one) = alone(&placement)? {
        return match Location::parse(&one).map_err(StoreError::Url)? {
            Location::Directory(path) => {
                // Callers that wait ask again by themselves; a file system that does not answer is not asked more often than they do.
                let once = RetryPolicy { attempts_max: 1, ..options.retry.clone() };
                Ok(Arc::new(Retrying::new(Directory::later(&path), once).observed(health)))
            }
            Location::S3(target) => Ok(Arc::new(open_s3(&target, options, Some(health.clone()))?.observed(health))),
        };
    }
    let one = |url: &str| {
        let own = Arc::new(Health::new(health.label()));
        Ok((open_observed(url, options, own.clone())?, Some(own)))
    };
    Ok(Arc::new(Arc::new(Quorum::over(&placement, one)?)))
}

/// `health` is told of the file with the keys; of requests by whoever asks for it.
fn open_s3(
    target: &options::S3Target,
    options: &StoreOptions,
    health: Option<Arc<Health>>,
) -> Result<Retrying<s3::S3>, StoreError> {
    let options = options.clone().filled_from(|name| std::env::var(name).ok());
    let policy = options.retry.clone();
    Ok(Retrying::new(s3::S3::connect(target, &options, health)?, policy))
}
