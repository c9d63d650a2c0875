//! The admin API behind its guard.

use super::AdminDoor;
use crate::access::{Guard, Guarded};
use crate::audit::Audit;
use crate::node::Node;
use holdfast_api::ADMIN_MESSAGE_BYTES_MAX;
use holdfast_api::v1::admin_server::AdminServer;
use std::sync::Arc;

/// The service that a listener serves. Clones share the guard, and what it counts.
pub(crate) type GuardedAdmin = Guarded<AdminServer<AdminDoor>>;

/// The only way to the admin API from outside of the process (ACCESS-A1).
pub(crate) fn guarded_admin(node: Arc<Node>, audit: Option<Audit>) -> GuardedAdmin {
    let guard = Guard::admin(node.tls.as_ref().map(|tls| tls.revocations().clone()), audit);
    let door = AdminServer::new(AdminDoor::new(node))
        .max_decoding_message_size(ADMIN_MESSAGE_BYTES_MAX)
        .max_encoding_message_size(ADMIN_MESSAGE_BYTES_MAX);
    Guarded::new(door, guard)
}
