//! The host id that ZFS stores in a pool to tell hosts apart.
//!
//! HOSTID-H1  A pool with `multihost=on` is protected by writes that carry this id. Without an id, ZFS imports no such
//!     pool. With the same id on two hosts, each takes the other's writes for its own, and notices nothing.

use crate::seams::Dial;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::Duration;

/// The id of a host without one.
pub const NONE: &str = "00000000";

/// The command that creates one.
pub const GENERATE: &str = "`zgenhostid -f` on each such host gives it an id of its own; if the kernel module spl has the parameter spl_hostid, remove that";

/// Another host's agent: its name, and its host id or the reason why that is unknown.
pub type PeerHostId = (String, Result<String, String>);

/// The id of a host, whose system lies below `root`, as ZFS sees it: the module's parameter, else the file.
///
/// # Errors
/// The id exists but cannot be read.
pub fn read_in(root: &Path) -> Result<String, String> {
    let (parameter, file) = (root.join("sys/module/spl/parameters/spl_hostid"), root.join("etc/hostid"));
    let there = |path: &Path| match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("{}: {error}", path.display())),
    };
    if let Some(text) = there(&parameter)? {
        let text = String::from_utf8_lossy(&text);
        let id: u64 = text
            .trim()
            .parse()
            .map_err(|_| format!("{}: found {:?}, expected a number", parameter.display(), text.trim()))?;
        // ZFS uses the lower half.
        let id = id & u64::from(u32::MAX);
        if id != 0 {
            return Ok(format!("{id:08x}"));
        }
    }
    let id = there(&file)?.and_then(|bytes| bytes.first_chunk().copied().map(u32::from_ne_bytes)).unwrap_or(0);
    Ok(format!("{id:08x}"))
}

/// Whether this host, with the id `own`, may import a pool with `multihost=on`, given the other hosts' ids (HOSTID-H1).
/// A host with an unknown id is no obstacle: it may be the lost one.
///
/// # Errors
/// The reason, and the remedy.
pub fn may_import(own: &str, others: &[PeerHostId]) -> Result<(), String> {
    if own == NONE {
        return Err(format!(
            "the host id of this host is not set, expected a unique one for a pool with multihost (pool.multihost): {GENERATE}"
        ));
    }
    let same: Vec<&str> =
        others.iter().filter(|(_, told)| told.as_deref() == Ok(own)).map(|(name, _)| name.as_str()).collect();
    if same.is_empty() {
        return Ok(());
    }
    Err(format!(
        "the host id of this host, {own}, is that of {} too, expected a unique one for a pool with multihost (pool.multihost): {GENERATE}",
        same.join(" and ")
    ))
}

/// Asks the agents of the other hosts of `set` for their ids, concurrently, for at most `limit`. An answer under
/// another name than expected is ignored: otherwise a line of `[peers]` that leads back to this host would make it
/// refuse its own id.
pub async fn ask(dial: &Dial, set: &str, peers: &BTreeMap<String, String>, limit: Duration) -> Vec<PeerHostId> {
    let mut asked = tokio::task::JoinSet::new();
    for (name, address) in peers.clone() {
        let (dial, set) = (dial.clone(), set.to_string());
        asked.spawn(async move {
            let answer = crate::client::ask_over(&dial, &address, "/status", None, None, limit).await;
            let told = answer.map_err(|error| error.to_string()).and_then(|answer| {
                let view: crate::View =
                    serde_json::from_str(&answer.body).map_err(|error| format!("{address}: no agent: {error}"))?;
                if (view.name.as_str(), view.set.as_str()) != (name.as_str(), set.as_str()) {
                    return Err(format!(
                        "{address}: found {} of set {}, expected {name} of set {set}",
                        view.name, view.set
                    ));
                }
                Ok(view.pool.host_id)
            });
            (name, told)
        });
    }
    asked.join_all().await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(name: &str, id: &str) -> PeerHostId {
        (name.into(), Ok(id.into()))
    }

    #[test]
    fn the_id_is_the_modules_or_the_files() {
        let root = tempfile::tempdir().unwrap();
        let (sys, etc) = (root.path().join("sys/module/spl/parameters"), root.path().join("etc"));
        std::fs::create_dir_all(&sys).unwrap();
        std::fs::create_dir_all(&etc).unwrap();
        let read = || read_in(root.path());
        assert_eq!(read().unwrap(), NONE, "neither");
        std::fs::write(etc.join("hostid"), 0x0ff1_ce01_u32.to_ne_bytes()).unwrap();
        assert_eq!(read().unwrap(), "0ff1ce01");
        std::fs::write(sys.join("spl_hostid"), "0\n").unwrap();
        assert_eq!(read().unwrap(), "0ff1ce01", "not set for the module");
        std::fs::write(sys.join("spl_hostid"), "3735928559\n").unwrap();
        assert_eq!(read().unwrap(), "deadbeef", "the module's comes first");
        std::fs::write(sys.join("spl_hostid"), "much").unwrap();
        assert!(read().unwrap_err().contains("expected a number"));
        std::fs::remove_file(sys.join("spl_hostid")).unwrap();
        std::fs::write(etc.join("hostid"), [1, 2]).unwrap();
        assert_eq!(read().unwrap(), NONE, "cut short");
        // An id that cannot be read is not the same as no id.
        std::fs::remove_file(etc.join("hostid")).unwrap();
        std::fs::create_dir(etc.join("hostid")).unwrap();
        assert!(read().unwrap_err().contains("etc/hostid"));
    }

    #[test]
    fn no_id_and_one_that_two_hosts_have_are_refused_with_what_to_do() {
        let silent = || ("db4".to_string(), Err("no route".to_string()));
        let none = may_import(NONE, &[told("db2", "00000001"), silent()]).unwrap_err();
        assert!(none.contains("not set") && none.contains("zgenhostid"), "{none}");
        let same = may_import("00000001", &[told("db2", "00000002"), told("db3", "00000001"), silent()]).unwrap_err();
        assert!(same.contains("is that of db3 too") && same.contains("zgenhostid"), "{same}");
        assert_eq!(may_import("00000003", &[told("db2", "00000002"), told("db3", ""), silent()]), Ok(()));
        // Another host without an id is not this host's problem.
        assert_eq!(may_import("00000003", &[told("db2", NONE)]), Ok(()));
    }
}
