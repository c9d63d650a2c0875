//! The meaning of a failed request, and what to do about it.

use crate::keys::KeyError;
use crate::kind::Kind;
use crate::url_error::StoreUrlError;
use crate::version::Version;
use std::fmt;
use std::sync::Arc;

/// Largest object in bytes that a store reads or writes: the size of four segments. An object is held in memory as a
/// whole, and a store is not trusted to keep an answer small.
pub const OBJECT_BYTES_MAX: usize = 4 * holdfast_types::limits::SEGMENT_BYTES_TARGET;

/// What the caller should do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// It did not happen; a later attempt may succeed. The store is down, slow, full or throttling (R8: keep serving).
    Retry,
    /// No such object *here*.
    NotFound,
    /// It did not happen: there is another content or version.
    Conflict,
    /// It may have happened (R12): repeat it with the same bytes, or read the object.
    Unknown,
    /// It did not happen, and will not happen before a person changes something: rights, keys, clock, bucket, the
    /// request itself.
    Denied,
    /// The object is there, but it is not what was written (R9): try another copy.
    Corrupt,
}

/// The kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// `put_new`
    Put,
    /// `get`, `get_object`
    Get,
    /// `get_range`
    Range,
    /// `head`
    Head,
    /// `list`
    List,
    /// `delete`
    Delete,
    /// `swap`
    Swap,
    /// Opening the store.
    Open,
}

impl Op {
    /// For metrics and messages.
    pub fn name(self) -> &'static str {
        match self {
            Op::Put => "put",
            Op::Get => "get",
            Op::Range => "get range of",
            Op::Head => "head",
            Op::List => "list",
            Op::Delete => "delete",
            Op::Swap => "swap",
            Op::Open => "open",
        }
    }

    /// Whether a lost answer means an unknown outcome.
    pub fn writes(self) -> bool {
        matches!(self, Op::Put | Op::Swap | Op::Delete)
    }
}

/// A request: its kind, key and store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct At {
    /// [`crate::ObjectStore::place`].
    pub store: Arc<str>,
    /// The kind of request.
    pub op: Op,
    /// The key, or the prefix of a listing.
    pub key: String,
}

impl At {
    pub(crate) fn new(store: &Arc<str>, op: Op, key: &str) -> Box<Self> {
        Box::new(Self { store: store.clone(), op, key: key.chars().take(600).collect() })
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} at {}", self.op.name(), self.key, self.store)
    }
}

/// The answer, if there was one. It is text, so that all waiters can share the error.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cause {
    /// HTTP status.
    pub status: Option<u16>,
    /// The store's code, such as `SlowDown`.
    pub code: Option<String>,
    /// The message.
    pub message: String,
    /// Kind of trouble, if no answer tells it.
    pub(crate) kind: Option<Kind>,
}

impl Cause {
    pub(crate) fn text(message: impl Into<String>) -> Box<Self> {
        Box::new(Self { message: message.into(), ..Self::default() })
    }

    pub(crate) fn of_kind(kind: Kind, message: impl Into<String>) -> Box<Self> {
        Box::new(Self { message: message.into(), kind: Some(kind), ..Self::default() })
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(status) = self.status {
            write!(f, "HTTP {status} ")?;
        }
        if let Some(code) = &self.code {
            write!(f, "{code}: ")?;
        }
        f.write_str(if self.message.is_empty() { "no further words" } else { &self.message })
    }
}

fn shown(version: Option<&Version>) -> String {
    version.map_or_else(|| "no object".to_owned(), |v| format!("version {v}"))
}

/// How the order of a listing is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disorder {
    /// It begins again with keys that should be skipped.
    IgnoresMarker,
    /// Its keys do not ascend.
    Unsorted,
}

impl fmt::Display for Disorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Disorder::IgnoresMarker => "it ignores start-after",
            Disorder::Unsorted => "it is not sorted",
        })
    }
}

fn region_hint(region: Option<&str>) -> String {
    match region {
        Some(region) => format!(
            "the bucket is in region {region:?}: write ?region={region} in the store's URL, or set store.region or AWS_REGION to it"
        ),
        None => {
            "the bucket is in another region: correct ?region=NAME in the store's URL, store.region or AWS_REGION, \
                 or the endpoint"
                .to_owned()
        }
    }
}

fn tries(attempts: u32) -> String {
    if attempts == 1 { "1 attempt".to_owned() } else { format!("{attempts} attempts") }
}

/// A request to a store failed. The type is small, with its parts boxed, because it is far more often part of a
/// signature than an actual value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// There is no such object here.
    #[error("{at}: found no object")]
    NotFound {
        /// The request.
        at: Box<At>,
    },
    /// `put_new` found an object with another content.
    #[error("{at}: found another object of {found_bytes} bytes, expected none or our own {expected_bytes} bytes")]
    Exists {
        /// The request.
        at: Box<At>,
        /// Length of the existing object.
        found_bytes: u64,
        /// Length of our object.
        expected_bytes: u64,
    },
    /// `swap` found another version.
    #[error("{at}: found {}, expected {}; read it again before the next swap", shown(.found.as_ref()), shown(.expected.as_ref()))]
    Changed {
        /// The request.
        at: Box<At>,
        /// The version that is there.
        found: Option<Version>,
        /// The version that the caller expected.
        expected: Option<Version>,
    },
    /// A write may or may not have happened.
    #[error("{at}: outcome unknown after {} ({cause}); ask again with the same bytes, or read it", tries(*.attempts))]
    Unknown {
        /// The request.
        at: Box<At>,
        /// Number of attempts.
        attempts: u32,
        /// Why the outcome is unknown.
        cause: Box<Cause>,
    },
    /// The store did not do it, for a transient reason.
    #[error("{at}: not done after {} ({cause}); try again later", tries(*.attempts))]
    Unavailable {
        /// The request.
        at: Box<At>,
        /// Number of attempts.
        attempts: u32,
        /// The last reason.
        cause: Box<Cause>,
    },
    /// The store refuses the request.
    #[error("{at}: refused ({cause}); {hint}")]
    Denied {
        /// The request.
        at: Box<At>,
        /// The store's answer.
        cause: Box<Cause>,
        /// What a person should check.
        hint: &'static str,
    },
    /// The bucket is in another region than the one that requests are signed for.
    #[error("{at}: refused ({cause}); {}", region_hint(.region.as_deref()))]
    WrongRegion {
        /// The request.
        at: Box<At>,
        /// The store's answer.
        cause: Box<Cause>,
        /// The bucket's region, if the store named it.
        region: Option<String>,
    },
    /// The bucket does not exist.
    #[error("{at}: found no bucket {bucket:?} ({cause}); create it, or correct the store's URL or endpoint")]
    BucketMissing {
        /// The request.
        at: Box<At>,
        /// The requested name.
        bucket: String,
        /// The store's answer.
        cause: Box<Cause>,
    },
    /// The store's clock and ours differ by more than signatures allow.
    #[error(
        "{at}: refused because clocks differ: the store's clock shows {found}, ours {expected}; set this host's clock (NTP)"
    )]
    ClockSkew {
        /// The request.
        at: Box<At>,
        /// The store's time, as it wrote it.
        found: String,
        /// Ours.
        expected: String,
    },
    /// The object does not have the length that it was written with.
    #[error("{at}: found {found_bytes} bytes, expected {expected_bytes}; the object is damaged, read another copy")]
    Length {
        /// The request.
        at: Box<At>,
        /// The length found.
        found_bytes: u64,
        /// The length that the caller relies on.
        expected_bytes: u64,
    },
    /// A listing is in the wrong order: nothing may be concluded from it, in particular not that an object is missing.
    #[error(
        "{at}: found a listing that cannot be used: {of} (it has {found:?} after {before:?}), expected keys in ascending byte order, all after the marker; \
         use a store that lists as Amazon S3 does in its general purpose buckets"
    )]
    Listing {
        /// The request.
        at: Box<At>,
        /// What is wrong.
        of: Disorder,
        /// The key in the wrong place.
        found: String,
        /// The key or marker after which it must come.
        before: String,
    },
    /// More than [`crate::OBJECT_BYTES_MAX`].
    #[error("{at}: found {found_bytes} bytes, expected at most {}; not an object of ours", OBJECT_BYTES_MAX)]
    TooLarge {
        /// The request.
        at: Box<At>,
        /// Length of the object.
        found_bytes: u64,
    },
    /// The key is invalid.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The store's URL or options cannot be used.
    #[error(transparent)]
    Url(StoreUrlError),
}

impl StoreError {
    /// What to do about it.
    pub fn disposition(&self) -> Disposition {
        match self {
            StoreError::NotFound { .. } => Disposition::NotFound,
            StoreError::Exists { .. } | StoreError::Changed { .. } => Disposition::Conflict,
            StoreError::Unknown { .. } => Disposition::Unknown,
            StoreError::Unavailable { .. } => Disposition::Retry,
            StoreError::Denied { .. }
            | StoreError::WrongRegion { .. }
            | StoreError::BucketMissing { .. }
            | StoreError::ClockSkew { .. }
            | StoreError::Listing { .. }
            | StoreError::Key(_)
            | StoreError::Url(_) => Disposition::Denied,
            StoreError::TooLarge { at, .. } if at.op.writes() => Disposition::Denied,
            StoreError::Length { .. } | StoreError::TooLarge { .. } => Disposition::Corrupt,
        }
    }

    /// Whether the same request may work later, by itself or after a person has acted. False for results such as "not
    /// found" and for requests that cannot be sent.
    pub fn may_pass(&self) -> bool {
        match self.disposition() {
            Disposition::Retry | Disposition::Unknown => true,
            Disposition::Denied => self.kind().is_some(),
            Disposition::NotFound | Disposition::Conflict | Disposition::Corrupt => false,
        }
    }

    /// Whether the store refuses only this object and may deliver others: it is in a storage class that cannot be read,
    /// or rights or its encryption key are missing.
    pub fn is_of_object(&self) -> bool {
        let StoreError::Denied { at, cause, .. } = self else { return false };
        let of_object = |code: &str| matches!(code, "InvalidObjectState" | "AccessDenied") || code.starts_with("KMS.");
        matches!(at.op, Op::Get | Op::Range) && cause.code.as_deref().is_some_and(of_object)
    }

    /// The cause, if the store gave one.
    pub(crate) fn cause(&self) -> Box<Cause> {
        match self {
            StoreError::Unknown { cause, .. }
            | StoreError::Unavailable { cause, .. }
            | StoreError::Denied { cause, .. }
            | StoreError::WrongRegion { cause, .. }
            | StoreError::BucketMissing { cause, .. } => cause.clone(),
            other => Cause::text(other.to_string()),
        }
    }
}
