//! An etcd beside the cluster: a mirror of each grant, for tools that follow etcd (ADR 0027); and the seat and roster
//! of a gateway pair (ADR 0031).
//!
//! ```text
//!   gateway that leads the set ─▶ Mirror::show ─▶ grant: is what lies there older? ─▶ client: written if unchanged since it was read ─▶ etcd
//! ```
//! The mirror decides nothing for Holdfast: no grant waits for an etcd, and none is read from it. The seat of a gateway
//! pair does decide (ADR 0031): its holder serves. `holdfast_control::pair` derives from the answers here until when,
//! and what the roster must say.
//!
//! Owns: the format of what is written, when it replaces what is there, and the calls by which a seat is taken, kept
//! and given up. Does not own: the decision when to write, and any clock (both are the gateway's).

mod client;
mod grant;
mod mirror;
mod roster;
mod seat;

pub use client::{EtcdError, EtcdOptions};
pub use grant::{Grant, Held};
pub use mirror::{Mirror, Shown};
pub use roster::{RosterKey, RosterText};
pub use seat::{Holder, KeepAliveResult, Occupant, Seat, Tenancy};

#[allow(clippy::all, clippy::pedantic, missing_docs)]
mod proto {
    tonic::include_proto!("etcdserverpb");
}
