//! Values that come in several at a time: the disk keeps some of them in one entry, and the store some entries in one
//! piece. These are the blocks, stretches and extents of a segment (ADR 0042).

use crate::key::BlockKey;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use std::sync::Arc;

/// Values with their keys.
pub type Several<V> = Arc<[(BlockKey, V)]>;

/// What a load brought. All callers of one flight get it.
#[derive(Debug)]
pub(crate) struct Loaded<V> {
    /// The values that its own caller asked for, or all that were fetched.
    pub(crate) values: Several<V>,
    /// The disk's entry, if they are from it: other callers want other values of it.
    pub(crate) sealed: Option<Bytes>,
}

/// What a caller asks for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// What the store has in one piece: it is fetched by one caller at a time.
    pub whole: BlockKey,
    /// The disk's entry, by its first value.
    pub entry: BlockKey,
    /// The values. All are in that entry.
    pub values: &'a [BlockKey],
}

/// What was fetched, taken apart.
#[derive(Clone, Debug)]
pub struct Fetched<V> {
    /// The disk's entries, sealed, each in two pieces, of which the first may be empty. They may be slices of what was
    /// fetched: only what is stored is copied.
    pub entries: Vec<(BlockKey, [Bytes; 2])>,
    /// All values, opened.
    pub values: Vec<(BlockKey, V)>,
}

/// Where values come from, and how they are opened (CACHE-C2).
pub trait Source<V> {
    /// Why a value cannot be had.
    type Error;

    /// Opens the wanted values, in their order, of a sealed entry from disk. Authenticates them, and no others.
    ///
    /// # Errors
    /// The entry is damaged. It is dropped, and fetched.
    fn open(&self, entry: &Bytes) -> Result<Vec<V>, Self::Error>;

    /// Gets the whole from the store, sealed.
    fn fetch(&self) -> BoxFuture<'_, Result<Bytes, Self::Error>>;

    /// Opens all that was fetched.
    ///
    /// # Errors
    /// The store's bytes are damaged.
    fn take_apart(&self, whole: Bytes) -> Result<Fetched<V>, Self::Error>;
}

/// The values of these keys, if all are there.
pub(crate) fn pick<V: Clone>(found: &Several<V>, keys: &[BlockKey]) -> Option<Vec<V>> {
    let of = |key: &BlockKey| found.iter().find(|(there, _)| there == key).map(|(_, value)| value.clone());
    keys.iter().map(of).collect()
}
