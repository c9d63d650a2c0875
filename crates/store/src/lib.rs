//! Object stores: the permanent place of segments, map pages and roots.
//!
//! Owns: the [`ObjectStore`] contract and the stores that keep it (S3, a local directory, memory), what a failed
//! request means and when it is asked again ([`retry`]), all object keys ([`keys`]), and a store that fails on purpose
//! for tests ([`Faulty`]); requests to key services over the same connections ([`service`]). Nothing else in Holdfast
//! names the AWS SDK.
//! Does not own: what is inside an object, which objects must exist (the replicated state says so, R7), how many
//! stores must have one, or when one may be deleted. Depends on types, folder, host, and on tls for files with secrets.
//!
//! ```text
//!   open("s3://...")    --> Retrying --> s3: one attempt each --> HTTP
//!   open("file:///...") --> Directory                             one process or several, one file system
//!   tests               --> Retrying --> Faulty --> Memory
//! ```
//!
//! STORE-S1  An object that was written by `put_new` is never changed by this crate; a key names one content for ever
//!     (R7).
//! STORE-S2  `Ok` from a write means that it is durable as far as the store promises it: synced, or answered with 200.
//! STORE-S3  An error says whether the request can have happened ([`Disposition::Unknown`], R12). All others mean: it
//!     has not.
//! STORE-S4  A read answers the bytes that were asked for, all of them, or an error.

#![warn(missing_docs)]

mod allowed;
mod check;
mod credentials;
mod direct;
mod directory;
mod error;
mod faulty;
pub mod health;
pub mod keys;
mod kind;
mod memory;
mod object_store;
mod open;
mod opening;
mod options;
mod page;
mod quorum;
mod renewal;
pub mod retry;
mod s3;
pub mod service;
mod several;
mod switch;
mod url_error;
mod version;

pub use allowed::{NotAllowed, check_allowed};
pub use check::{CHECK_LIMIT, CheckError, CheckReport, check};
pub use directory::Directory;
pub use error::{At, Cause, Disorder, Disposition, OBJECT_BYTES_MAX, Op, StoreError};
pub use faulty::{FaultCounts, Faults, Faulty};
pub use health::{Health, Standing, Trouble};
pub use kind::Kind;
pub use memory::Memory;
pub use object_store::{BoxFuture, Head, ListPage, Listed, Object, ObjectStore};
pub use open::{open, open_observed};
pub use opening::open_aside;
pub use options::{Location, Proxies, Secret, StoreOptions};
#[doc(hidden)]
pub use quorum::fuzz;
pub use quorum::{
    Backlog, Observed, Part, Quorum, RepairError, ReplicaStanding, SeatSeen, Wanted, head_of_several, moved_to,
};
pub use retry::{RetryPolicy, Retrying};
pub use s3::check_credentials_file;
pub use several::{FIRST_CONFIGURATION, STORES_MAX, Stores};
pub use switch::Switch;
pub use url_error::{CredentialsProblem, StoreUrlError};
pub use version::Version;
