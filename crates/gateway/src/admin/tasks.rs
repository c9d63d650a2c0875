//! Tasks of group 0's leader that use the calls of the admin API.

use super::{keys, placing};
use crate::node::{Adopted, Node};
use std::sync::Arc;

/// Starts them: changes of data keys, and the choice of sets' voters.
pub fn start_tasks(node: Arc<Node>, adopted: Adopted) {
    tokio::spawn(keys::data::run(node.clone(), adopted.clone()));
    tokio::spawn(placing::run(node, adopted));
}
