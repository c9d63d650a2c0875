//! The list of known bugs: what each one changes, which rule it breaks, and which tests must find it, fastest first.

mod access;
mod agent;
mod agent_files;
mod appends;
mod bounds;
mod cache_disk;
mod certificates;
mod cluster;
mod control;
mod csi;
mod data;
mod deletion;
mod doors;
mod following;
mod gateway;
mod group_0;
mod histories;
mod keys;
mod limits;
mod packages;
mod page;
mod pair;
mod patroni;
mod places;
mod placing;
mod planted;
mod raft;
mod reports;
mod ring;
mod sequencer;
mod set;
mod settings;
mod space;
mod stores;
mod survivors;
mod timing;
mod volumes;
mod watched;

use crate::bug::Mutation;

/// All bugs, by crate.
pub(super) const MUTATIONS: &[&[Mutation]] = &[
    control::MUTATIONS,
    data::MUTATIONS,
    raft::MUTATIONS,
    appends::MUTATIONS,
    gateway::MUTATIONS,
    doors::MUTATIONS,
    access::MUTATIONS,
    certificates::MUTATIONS,
    bounds::MUTATIONS,
    cache_disk::MUTATIONS,
    agent::MUTATIONS,
    agent_files::MUTATIONS,
    space::MUTATIONS,
    set::MUTATIONS,
    stores::MUTATIONS,
    volumes::MUTATIONS,
    deletion::MUTATIONS,
    pair::MUTATIONS,
    histories::MUTATIONS,
    cluster::MUTATIONS,
    keys::MUTATIONS,
    limits::MUTATIONS,
    places::MUTATIONS,
    placing::MUTATIONS,
    group_0::MUTATIONS,
    planted::MUTATIONS,
    following::MUTATIONS,
    timing::MUTATIONS,
    survivors::MUTATIONS,
    packages::MUTATIONS,
    watched::MUTATIONS,
    patroni::MUTATIONS,
    page::MUTATIONS,
    csi::MUTATIONS,
    reports::MUTATIONS,
    ring::MUTATIONS,
    sequencer::MUTATIONS,
    settings::MUTATIONS,
];

/// Rules without a bug, because the code does not exist yet. Shown on the page.
pub(super) const NOT_YET: &str = "
Taken out: what the journal holds of the time before a rollback is still found after it. Nothing can see it: a rollback is refused unless all of that is in
a checkpoint (SET-S12), so there is nothing left to forget.

Holes that the list has shown, closed by a test each: a vote right after a start was asked of nobody over the door between gateways
(`voter-under-embargo`), a snapshot of the leader was never started from again (`snapshot-not-synced-first`), no older one was put over a newer
(`snapshot-goes-back`), the recovered set of the test had no deleted volume (`volume-id-again-after-a-recovery`).
Two more had no scenario that could see them (`paused-gateway` reads after the pause, and none waits for an unknown outcome with a later write behind it):
`lease-checked-before-the-read` and `goes-on-after-an-unknown` are decisions of their own now, with a unit test each.
";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::binary::root;
    use crate::bug::{Layer, Test};
    use std::collections::BTreeSet;

    /// Keeps the list up to date: every text to replace is in the tree exactly once, and edits of one bug do not undo
    /// each other.
    #[test]
    fn every_bug_can_be_put_in() {
        let mut wrong = Vec::new();
        for mutation in MUTATIONS.iter().copied().flatten() {
            for edit in mutation.edits {
                let outcome = std::fs::read_to_string(root().join(edit.file)).map_err(anyhow::Error::from);
                match outcome.and_then(|text| edit.apply(&text)) {
                    Ok(changed) => assert!(changed.contains(edit.new), "{}", mutation.name),
                    Err(e) => wrong.push(format!("{}: {}: {e:#}", mutation.name, edit.file)),
                }
                assert_ne!(edit.old, edit.new, "{}", mutation.name);
            }
        }
        assert!(wrong.is_empty(), "the sources have changed; change the list:\n{}", wrong.join("\n"));
    }

    #[test]
    fn the_list_is_long_enough_and_names_are_unique() {
        let all: Vec<&Mutation> = MUTATIONS.iter().copied().flatten().collect();
        assert!(all.len() >= 25, "only {}", all.len());
        let names: BTreeSet<&str> = all.iter().map(|mutation| mutation.name).collect();
        assert_eq!(names.len(), all.len(), "a name twice");
        for mutation in &all {
            assert!(!mutation.edits.is_empty() && !mutation.tests.is_empty(), "{}", mutation.name);
            // A test that finds a bug only by chance would make the smoke run fail without a reason.
            let fixed = |test: &Test| matches!(test.layer(), Layer::Model | Layer::Story | Layer::Unit);
            let certain = mutation.tests.first().is_some_and(fixed);
            assert!(!mutation.smoke || certain, "{}: the smoke run asks fixed cases", mutation.name);
        }
        assert!(all.iter().filter(|mutation| mutation.smoke).count() >= 3);
    }
}
