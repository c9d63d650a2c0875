//! Healing of damaged groups (R9, docs/adr/0011-healing.md). The list of the other gateways is kept on disk, since
//! group 0 itself may be damaged. For a quarantined group, this member asks its peers until the group's leader has
//! removed it from the group. `raft` defines quarantine.

use crate::node::{Node, NodeError};
use crate::registration;
use holdfast_raft::RaftNode;
use holdfast_types::{GroupId, MemberId};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The file's name inside the data directory. It maps member ids to the `HOST:PORT` of their peer listeners.
const BOOK: &str = "peers.json";

/// Pause between two rounds of requests, to keep the load on the peers low.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// How often to ask whether this gateway is still a member, while group 0 itself is quarantined. Each question is an
/// entry of group 0.
const MEMBER_STILL: Duration = Duration::from_secs(5);

/// Minimum time before the same refusal is logged again.
const SAY_AGAIN: Duration = Duration::from_secs(30);

/// Writes the list of members; durable on return.
///
/// # Errors
/// The disk failed.
pub fn save_book(data_dir: &Path, peers: &BTreeMap<MemberId, String>) -> io::Result<()> {
    let entries: BTreeMap<u64, &str> = peers.iter().map(|(id, addr)| (id.0, addr.as_str())).collect();
    let beside = data_dir.join("peers.json.new");
    let mut file = std::fs::File::create(&beside)?;
    file.write_all(&serde_json::to_vec_pretty(&entries).map_err(io::Error::other)?)?;
    file.sync_all()?;
    std::fs::rename(&beside, data_dir.join(BOOK))?;
    std::fs::File::open(data_dir)?.sync_all()
}

/// The members as last written; empty if there is no readable list. The list is only a hint.
pub fn load_book(data_dir: &Path) -> BTreeMap<MemberId, String> {
    let path = data_dir.join(BOOK);
    let read = match std::fs::read(&path) {
        Ok(bytes) => serde_json::from_slice::<BTreeMap<u64, String>>(&bytes).map_err(|e| e.to_string()),
        Err(e) => Err(e.to_string()),
    };
    match read {
        Ok(entries) => entries.into_iter().map(|(id, addr)| (MemberId(id), addr)).collect(),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "the list of the other gateways on this disk cannot be read");
            BTreeMap::new()
        }
    }
}

/// The group, if this is damage that peers can heal.
pub fn healable(error: &NodeError) -> Option<GroupId> {
    match error {
        NodeError::Raft(holdfast_raft::NodeError::Damaged { group, .. }) => Some(*group),
        _ => None,
    }
}

/// The gateways to ask: the members from group 0, or else those of the list on disk. A member that copies group 0 again
/// does not know the others from it yet. If it were removed before that, nobody would tell it (found by simulation,
/// seed 82).
pub fn peers(node: &Node) -> BTreeMap<MemberId, String> {
    let members = node.cluster.state().members;
    let known: BTreeMap<MemberId, String> = members.into_values().map(|m| (m.id, m.peer_addr)).collect();
    if known.is_empty() { load_book(&node.config.data_dir) } else { known }
}

/// Asks the other gateways until this member is removed from the quarantined `group` and may start it as a newcomer.
/// Returns false if the gateway stops first.
///
/// If the group is group 0, this gateway cannot learn in any other way that it was removed, and peers never readmit a
/// removed member. So it asks about that too, and stops (found by simulation, seed 200).
pub async fn readmit(node: &Arc<Node>, raft: &RaftNode, group: GroupId) -> bool {
    let mut said: Option<(String, std::time::Instant)> = None;
    let mut asked_whether: Option<tokio::time::Instant> = None;
    loop {
        let peers = peers(node);
        let asked = tokio::select! {
            () = node.stop.cancelled() => return false,
            asked = raft.readmit(group, &peers) => asked,
        };
        match asked {
            Ok(since) => {
                tracing::info!(%group, %since, "R9: removed from the group at that entry; its log here is dropped and copied again from the leader");
                return true;
            }
            Err(error) => {
                let text = error.to_string();
                if said.as_ref().is_none_or(|(last, at)| *last != text || at.elapsed() > SAY_AGAIN) {
                    tracing::warn!(%group, %error, "not readmitted yet; trying again");
                    said = Some((text, std::time::Instant::now()));
                }
                if group == GroupId::CLUSTER && asked_whether.is_none_or(|at| at.elapsed() > MEMBER_STILL) {
                    asked_whether = Some(tokio::time::Instant::now());
                    let refused = tokio::select! {
                        () = node.stop.cancelled() => return false,
                        refused = registration::refused(node, raft) => refused,
                    };
                    if refused {
                        return false;
                    }
                }
            }
        }
        tokio::select! {
            () = node.stop.cancelled() => return false,
            () = tokio::time::sleep(ASK_AGAIN) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_book_of_peers_comes_back() -> Result<(), Box<dyn std::error::Error>> {
        let dir = tempfile::tempdir()?;
        assert!(load_book(dir.path()).is_empty());
        let peers = BTreeMap::from([(MemberId(1), "a:1".to_string()), (MemberId(7), "b:2".to_string())]);
        save_book(dir.path(), &peers)?;
        assert_eq!(load_book(dir.path()), peers);
        std::fs::write(dir.path().join(BOOK), b"no")?;
        assert!(load_book(dir.path()).is_empty(), "an unreadable list counts as empty");
        Ok(())
    }
}
