//! Admin API: messages and service generated from `proto/admin.proto`, conversions to our types, and the error model.
//!
//! Owns: the wire form of the admin API, the list of its calls ([`METHODS`]), refusals and their encoding
//! ([`Refusal`]), the comparison of two lists of volumes and of the gateways' allowed stores. Does not own: any other
//! decision, any connection, any retry (the caller's), the peer protocol (raft's). Depends on: types.

pub mod compared;
mod conv;
mod places;
mod refusal;
mod secret;

pub use conv::{
    FieldError, disk_from_text, expires_soon, hex128, host_port, member_of, name, owner, request_id, role_name, token,
};
pub use places::{different_places, different_places_of};
pub use refusal::{Disposition, LEADER_API_KEY, REFUSAL_KEY, Refusal, RefusalCode};

/// Generated from `proto/admin.proto`; its comments are the reference.
#[expect(missing_docs, reason = "generated; proto/admin.proto has the documentation")]
#[allow(clippy::doc_markdown, clippy::doc_lazy_continuation)]
pub mod v1 {
    tonic::include_proto!("holdfast.admin.v1");
}

/// One call of the admin API.
#[derive(Clone, Copy, Debug)]
pub struct Method {
    /// Its name, as in the path `/holdfast.admin.v1.Admin/NAME`.
    pub name: &'static str,
    /// The message that it takes.
    pub request: &'static str,
    /// The fields of that message.
    pub fields: &'static [&'static str],
}

/// All calls of the admin API, in the order of `proto/admin.proto`.
pub const METHODS: &[Method] = include!(concat!(env!("OUT_DIR"), "/methods.rs"));

/// Largest message in bytes: a status of some hundred members and sets takes a fraction of it.
pub const ADMIN_MESSAGE_BYTES_MAX: usize = 4 << 20;

/// Most members of one cluster: bounds each status answer and fan-out.
pub const CLUSTER_MEMBERS_MAX: usize = 32;
