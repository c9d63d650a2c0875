//! The list of the other gateways, on disk: it is needed if group 0 itself is damaged at the next start.

use super::Node;
use holdfast_types::MemberId;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

/// The file's name inside the data directory. It maps member ids to the `HOST:PORT` of their peer listeners.
const BOOK: &str = "peers.json";

/// Writes the list of members; durable on return.
///
/// # Errors
/// The disk failed.
pub fn save(data_dir: &Path, peers: &BTreeMap<MemberId, String>) -> io::Result<()> {
    let entries: BTreeMap<u64, &str> = peers.iter().map(|(id, addr)| (id.0, addr.as_str())).collect();
    let beside = data_dir.join("peers.json.new");
    let mut file = std::fs::File::create(&beside)?;
    file.write_all(&serde_json::to_vec_pretty(&entries).map_err(io::Error::other)?)?;
    file.sync_all()?;
    std::fs::rename(&beside, data_dir.join(BOOK))?;
    std::fs::File::open(data_dir)?.sync_all()
}

/// The members as last written; empty if there is no readable list. The list is only a hint.
pub fn load(data_dir: &Path) -> BTreeMap<MemberId, String> {
    let path = data_dir.join(BOOK);
    let read = match std::fs::read(&path) {
        Ok(bytes) => serde_json::from_slice::<BTreeMap<u64, String>>(&bytes).map_err(|e| e.to_string()),
        // A gateway that knows no other one yet.
        Err(e) if e.kind() == io::ErrorKind::NotFound => return BTreeMap::new(),
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

/// The gateways to ask: the members from group 0, or else those of the list on disk. A member that copies group 0 again
/// does not know the others from it yet. If it were removed before that, nobody would tell it (found by simulation,
/// seed 82).
pub fn peers(node: &Node) -> BTreeMap<MemberId, String> {
    let members = node.cluster.state().members;
    let known: BTreeMap<MemberId, String> = members.into_values().map(|m| (m.id, m.peer_addr)).collect();
    if known.is_empty() { load(&node.config.data_dir) } else { known }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_book_of_peers_comes_back() -> Result<(), Box<dyn std::error::Error>> {
        let dir = tempfile::tempdir()?;
        assert!(load(dir.path()).is_empty());
        let peers = BTreeMap::from([(MemberId(1), "a:1".to_string()), (MemberId(7), "b:2".to_string())]);
        save(dir.path(), &peers)?;
        assert_eq!(load(dir.path()), peers);
        let text = std::fs::read_to_string(dir.path().join(BOOK))?;
        assert_eq!(text, "{\n  \"1\": \"a:1\",\n  \"7\": \"b:2\"\n}", "docs/formats.md");
        std::fs::write(dir.path().join(BOOK), b"no")?;
        assert!(load(dir.path()).is_empty(), "an unreadable list counts as empty");
        Ok(())
    }
}
