//! The admin door as code: messages and service generated from `proto/admin.proto`, conversions to our own types, and the error model.
//!
//! Owns: the wire form of the admin door, the reasons for a refusal and how each travels ([`Refusal`]), what two lists of volumes say of each other.
//! Does not own: any other decision, any connection, any retry (the caller's), the peer protocol (raft's). Depends on: types.

pub mod compared;
mod conv;
mod refusal;
mod secret;

pub use conv::{FieldError, disk_from_text, hex128, host_port, member_of, name, owner, request_id, role_name, token};
pub use refusal::{Disposition, LEADER_API_KEY, REFUSAL_KEY, Refusal, RefusalCode};

/// What `proto/admin.proto` says; its comments are the reference.
#[expect(missing_docs, reason = "generated; the words stand in proto/admin.proto")]
#[allow(clippy::doc_markdown, clippy::doc_lazy_continuation)]
pub mod v1 {
    tonic::include_proto!("holdfast.admin.v1");
}

/// Largest message of the admin door in bytes: a status of some hundred members and sets fits many times.
pub const ADMIN_MESSAGE_BYTES_MAX: usize = 4 << 20;

/// Members of one cluster at most: bounds every status answer and every fan-out.
pub const CLUSTER_MEMBERS_MAX: usize = 32;
