//! Processes by name, and whom they come from.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Each process with its parent.
pub(super) fn parents(proc: &Path) -> BTreeMap<i32, i32> {
    let pids = std::fs::read_dir(proc)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let parent = |pid: i32| {
        let stat = std::fs::read(proc.join(pid.to_string()).join("stat")).ok()?;
        // The name stands in brackets and may hold blanks.
        String::from_utf8_lossy(&stat).rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    pids.map(|pid: i32| (pid, parent(pid).unwrap_or_default())).collect()
}

/// Whether this process, or one of its ancestors, is among these.
pub(super) fn comes_from(pid: i32, of: &BTreeSet<i32>, parents: &BTreeMap<i32, i32>) -> bool {
    let mut at = pid;
    // Numbers of processes are used again: a chain could be a circle.
    for _ in 0..64 {
        if of.contains(&at) {
            return true;
        }
        match parents.get(&at) {
            Some(parent) if *parent > 1 => at = *parent,
            _ => return false,
        }
    }
    false
}

/// A process by name and number, and what it does.
pub(super) fn named_process(proc: &Path, pid: i32, what: &str) -> String {
    let name = std::fs::read(proc.join(pid.to_string()).join("comm")).unwrap_or_default();
    format!("{} (pid {pid}) {what}", String::from_utf8_lossy(&name).trim_end())
}
