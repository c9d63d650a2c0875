//! Opens a set's stores.

use crate::directory::Directory;
use crate::error::StoreError;
use crate::health::Health;
use crate::object_store::ObjectStore;
use crate::options::{Location, S3Target, StoreOptions};
use crate::quorum::Quorum;
use crate::retry::{RetryPolicy, Retrying};
use crate::s3;
use crate::several::Stores;
use holdfast_types::Placement;
use std::sync::Arc;

/// Opens the stores in `url` ([`Stores`]): `s3://BUCKET[/PREFIX]`, `file:///DIRECTORY`, or several of them with their
/// write quorum.
///
/// Opening sends no request to an S3 store, so that a gateway starts while its store is down (R8);
/// [`check()`](crate::check()) does. It reads the credentials file; use [`open_aside`](crate::open_aside) if the caller
/// must not block on that. A missing directory is created.
///
/// # Errors
/// The URL or the options cannot be used, or the directory cannot be created.
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

/// The URL, if the placement is a single store that has always been the set's only one.
fn alone(placement: &Placement) -> Result<Option<String>, StoreError> {
    let stores = Stores::parse(&placement.stores).map_err(StoreError::Url)?;
    Ok(stores.single().filter(|_| placement.next.is_none()).map(str::to_owned))
}

/// Like [`open`], and reports every attempt to `health`. A directory is opened by its first operation, so one that
/// hangs blocks nobody. With several stores, each has a health of its own, under the same label.
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
                // Callers that wait retry by themselves; a file system that does not answer must not get more requests.
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

/// The credentials file is reported to `health` here; the caller of a request reports the request.
fn open_s3(
    target: &S3Target,
    options: &StoreOptions,
    health: Option<Arc<Health>>,
) -> Result<Retrying<s3::S3>, StoreError> {
    let options = options.clone().filled_from(|name| std::env::var(name).ok());
    let policy = options.retry.clone();
    Ok(Retrying::new(s3::S3::connect(target, &options, health)?, policy))
}
