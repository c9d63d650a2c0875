//! Healing of damaged groups (R9, docs/adr/0011-healing.md): who to ask is kept on disk, since group 0 itself may be what is damaged;
//! a quarantined group is asked back in until its leader has taken this member out of it. What quarantine means is `raft`'s.

use crate::node::{Node, NodeError};
use crate::registration;
use holdfast_raft::RaftNode;
use holdfast_types::{GroupId, MemberId};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The file's name inside the data directory: member id → `HOST:PORT` of its peer door.
const BOOK: &str = "peers.json";

/// Between two rounds of asking. The others are not to be kept busy by it.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Between two questions whether this member is one still, while group 0 itself is what it was not let into. Each is an entry of group 0.
const MEMBER_STILL: Duration = Duration::from_secs(5);

/// How often the same refusal is said again, at most.
const SAY_AGAIN: Duration = Duration::from_secs(30);

/// Notes who the members are; durable on return.
///
/// # Errors
/// When the disk refuses.
pub fn save_book(data_dir: &Path, peers: &BTreeMap<MemberId, String>) -> io::Result<()> {
    let entries: BTreeMap<u64, &str> = peers.iter().map(|(id, addr)| (id.0, addr.as_str())).collect();
    let beside = data_dir.join("peers.json.new");
    let mut file = std::fs::File::create(&beside)?;
    file.write_all(&serde_json::to_vec_pretty(&entries).map_err(io::Error::other)?)?;
    file.sync_all()?;
    std::fs::rename(&beside, data_dir.join(BOOK))?;
    std::fs::File::open(data_dir)?.sync_all()
}

/// Who the members were when it was last noted; empty where that was never, or is not readable: a hint is all that it is.
pub fn load_book(data_dir: &Path) -> BTreeMap<MemberId, String> {
    let path = data_dir.join(BOOK);
    let read = match std::fs::read(&path) {
        Ok(bytes) => serde_json::from_slice::<BTreeMap<u64, String>>(&bytes).map_err(|e| e.to_string()),
        Err(e) => Err(e.to_string()),
    };
    match read {
        Ok(entries) => entries.into_iter().map(|(id, addr)| (MemberId(id), addr)).collect(),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "no list of the other gateways on this disk");
            BTreeMap::new()
        }
    }
}

/// Whether this is damage that peers can heal, and of which group.
pub fn healable(error: &NodeError) -> Option<GroupId> {
    match error {
        NodeError::Raft(holdfast_raft::NodeError::Damaged { group, .. }) => Some(*group),
        _ => None,
    }
}

/// Whom to ask: the members as group 0 names them, else those of the book. A member that learns group 0 anew knows nobody from it; were it removed
/// before it has, nobody would tell it (found by simulation, seed 82).
pub fn peers(node: &Node) -> BTreeMap<MemberId, String> {
    let members = node.cluster.state().members;
    let known: BTreeMap<MemberId, String> = members.into_values().map(|m| (m.id, m.peer_addr)).collect();
    if known.is_empty() { load_book(&node.config.data_dir) } else { known }
}

/// Asks the other gateways until this member is out of the quarantined `group` and may start it as a newcomer. False when the
/// gateway stops first.
///
/// Where that is group 0, nothing else here would hear that the member was removed meanwhile, and whoever was removed is let in by nobody: so it
/// asks that as well, and ends (found by simulation, seed 200).
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
                tracing::info!(%group, %since, "R9: out of the group since that entry; its log here is dropped, it is learnt anew from the leader");
                return true;
            }
            Err(error) => {
                let text = error.to_string();
                if said.as_ref().is_none_or(|(last, at)| *last != text || at.elapsed() > SAY_AGAIN) {
                    tracing::warn!(%group, %error, "not let in again yet; tried again");
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
        assert!(load_book(dir.path()).is_empty(), "a bad hint is none");
        Ok(())
    }
}
