//! An etcd beside the cluster, told of each grant, for tools that follow etcd (ADR 0027).
//!
//! ```text
//!   gateway that leads the set ─▶ Mirror::show ─▶ grant: is what lies there older? ─▶ client: written if unchanged since it was read ─▶ etcd
//! ```
//! Nothing here decides anything for Holdfast: no grant waits for an etcd, and none is read from it.
//!
//! Owns: the form of what is written, and when it replaces what is there. Does not own: when there is something to tell (the gateway's).

mod client;
mod grant;
mod mirror;

pub use client::{EtcdError, EtcdOptions};
pub use grant::{Grant, Held};
pub use mirror::{Mirror, Shown};

#[allow(clippy::all, clippy::pedantic, missing_docs)]
mod proto {
    tonic::include_proto!("etcdserverpb");
}
