//! Deletion of sets: nothing is removed, forgotten or reported free too early, and nothing comes back.

use crate::bug::{Edit, Layer, Mutation, Test, file, lib};

const DELETION: &str = "crates/control/src/cluster/deletion.rs";

const STEPS: Test = lib(Layer::Unit, "holdfast-control", &["cluster::deletion::"]);
const STORIES: Test = file(Layer::Story, "holdfast-control", &["--test", "stories"], &[]);
const ENDED: Test = lib(Layer::Cluster, "holdfast-raft", &["end_group_tests::"]);
/// The same course with each seed; the seeds are fixed.
const SCENE: Test =
    file(Layer::Simulation, "holdfast-sim", &["--test", "scenes"], &["of_a_set_that_is_deleted_under_faults"]);

const BURIAL: Test = lib(Layer::Unit, "holdfast-set", &["tombstone::"]);

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "one-store-keeps-the-key",
        bug: "a store that was away keeps the wrapped key of a deleted set, while the objects in the other stores are deleted",
        rule: "R10",
        edits: &[Edit {
            file: "crates/set/src/tombstone.rs",
            old: "    if !within(&at, several.mend_heads(set)).await? ||",
            new: "    if !within(&at, several.mend_heads(set)).await.unwrap_or(true) && several.copies() == 0 ||",
        }],
        tests: &[BURIAL],
        smoke: false,
    },
    Mutation {
        name: "key-forgotten-before-the-fence",
        bug: "a deleted set's key and objects are deleted while a majority may still serve the set",
        rule: "R2",
        edits: &[Edit {
            file: DELETION,
            old: "            if !deletion.fenced(members.iter().copied()) {",
            new: "            if members.is_empty() {",
        }],
        tests: &[STEPS, STORIES],
        smoke: false,
    },
    Mutation {
        name: "fence-of-the-voters-before",
        bug: "the first reported list of voters counts, not the newest: a change of voters during a deletion is missed",
        rule: "R2",
        edits: &[Edit {
            file: DELETION,
            old: "|known| told.is_better_than(known)",
            new: "|known| known.is_better_than(told)",
        }],
        tests: &[STEPS],
        smoke: false,
    },
    Mutation {
        name: "deletion-forgets-who-was-away",
        bug: "the record of a deletion is removed before a gateway that was away has closed the group: the gateway never learns of it, and its late objects stay",
        rule: "R7",
        edits: &[Edit {
            file: DELETION,
            old: "members.iter().all(|id| ended.contains(id) && deletion.ended.contains(id))",
            new: "members.iter().any(|id| ended.contains(id) && deletion.ended.contains(id))",
        }],
        tests: &[STEPS, STORIES],
        smoke: false,
    },
    Mutation {
        name: "ended-group-starts-again",
        bug: "a gateway whose group 0 is behind starts the group of a deleted set with the empty log that the deletion left",
        rule: "R2",
        edits: &[Edit {
            file: "crates/raft/src/start_group.rs",
            old: "        if end_marker::is_over(self.snapshots_dir(), id).map_err(io)? {",
            new: "        if end_marker::is_over(self.snapshots_dir(), id).is_err() {",
        }],
        tests: &[ENDED],
        smoke: false,
    },
    Mutation {
        name: "late-objects-of-a-deleted-set-stay",
        bug: "the store is not checked again after a gateway that was away has closed a deleted set: its late objects stay",
        rule: "R7",
        edits: &[Edit {
            file: "crates/gateway/src/node/deletion.rs",
            old: "        if !deletion.store_left && !self.empty_once(deletion).await? {",
            new: "        if deletion.stage < DeletionStage::Emptied && !deletion.store_left && !self.empty_once(deletion).await? {",
        }],
        tests: &[Test::Scenario("set-delete"), SCENE],
        smoke: false,
    },
    Mutation {
        name: "deletes-without-a-tombstone",
        bug: "the objects of a set that another cluster has recovered are deleted with the set of the old cluster",
        rule: "R7",
        edits: &[Edit {
            file: "crates/set/src/tombstone.rs",
            old: "    if !stands {",
            new: "    if !stands && at.is_empty() {",
        }],
        tests: &[lib(Layer::Unit, "holdfast-set", &["tombstone::"])],
        smoke: false,
    },
    Mutation {
        name: "lost-clone-forgotten",
        bug: "a set is deleted although a clone that is not recovered yet needs its objects: that clone can never be read again",
        rule: "R10",
        edits: &[Edit {
            file: "crates/control/src/cluster/deletion.rs",
            old: "    if let Some(clone) = found.lost_clone {\n",
            new: "    if let Some(clone) = found.lost_clone.filter(|_| false) {\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-control", &["cluster::deletion::"])],
        smoke: false,
    },
    Mutation {
        name: "one-head-decides",
        bug: "one answer \"not found\" to a HEAD, which a proxy may have made, decides that a snapshot does not come back",
        rule: "R7",
        edits: &[
            Edit {
                file: "crates/set/src/recovery/snapshots.rs",
                old: "&& missed < MISSING_TRIES => {",
                new: "&& missed > MISSING_TRIES => {",
            },
            Edit {
                file: "crates/set/src/recovery/snapshots.rs",
                old: "                Ok(body) if bytes == 0 || body.len() as u64 == bytes => return Ok(None),\n",
                new: "",
            },
        ],
        tests: &[lib(Layer::Unit, "holdfast-set", &["recovery::tests::neither_a_stale"])],
        smoke: false,
    },
    Mutation {
        name: "unread-snapshot-is-none",
        bug: "the voters of an ended group come from its log alone if its snapshot cannot be read: they may be older ones",
        rule: "END-E3",
        edits: &[Edit {
            file: "crates/raft/src/end_group.rs",
            old: "        let stored = snapshot_file::load(dir, id, self.config().sealing.as_ref())?;",
            new: "        let stored = snapshot_file::load(dir, id, self.config().sealing.as_ref()).ok().flatten();",
        }],
        tests: &[lib(Layer::Unit, "holdfast-raft", &["what_cannot_be_read_is_not_taken_for_missing"])],
        smoke: false,
    },
    Mutation {
        name: "lost-voters-outlast-known-ones",
        bug: "a deletion waits for every gateway because one has lost its log, although others tell the voters of the same entry",
        rule: "DELETE-D2",
        edits: &[Edit {
            file: "crates/control/src/cluster/state.rs",
            old: "(self.at, !lost(self)) > (known.at, !lost(known))",
            new: "self.at > known.at && (lost(self) || !lost(self))",
        }],
        tests: &[STEPS],
        smoke: false,
    },
    Mutation {
        name: "known-voters-of-old-for-lost-ones",
        bug: "voters of before those that a gateway has lost count: a majority of the later ones may go on",
        rule: "DELETE-D2",
        edits: &[Edit {
            file: "crates/control/src/cluster/state.rs",
            old: "(self.at, !lost(self)) > (known.at, !lost(known))",
            new: "(!lost(self), self.at) > (!lost(known), known.at)",
        }],
        tests: &[STEPS],
        smoke: false,
    },
    Mutation {
        name: "lost-voters-are-none",
        bug: "a member that has lost its log reports no voters when the set is deleted: older ones may pass for the newest",
        rule: "END-E3",
        edits: &[Edit {
            file: "crates/raft/src/end_group.rs",
            old: "let all = [lost, left, in_log, in_snapshot()];",
            new: "let all = [lost.filter(|_| false), left, in_log, in_snapshot()];",
        }],
        tests: &[lib(Layer::Cluster, "holdfast-raft", &["end_group_tests::e3_"])],
        smoke: false,
    },
    Mutation {
        name: "voters-from-a-damaged-log",
        bug: "a member whose log is damaged reports the voters that are left in it when the set is deleted",
        rule: "END-E3",
        edits: &[Edit {
            file: "crates/raft/src/end_group.rs",
            old: "            Some(Quarantine { stage: quarantine::Stage::Out, record }) => return Err(bad(record.to_string())),",
            new: "            Some(Quarantine { stage: quarantine::Stage::Out, .. }) => None,",
        }],
        tests: &[lib(Layer::Cluster, "holdfast-raft", &["end_group_tests::e3_"])],
        smoke: false,
    },
    Mutation {
        name: "forgotten-and-still-counted",
        bug: "what a deleted set had in memory still counts as used: each deletion leaves less room, at last none",
        rule: "CACHE-C4",
        edits: &[Edit {
            file: "crates/cache/src/lib.rs",
            old: "        self.inner.memory.evict_all();",
            new: "        self.inner.memory.clear();",
        }],
        tests: &[lib(Layer::Unit, "holdfast-cache", &["tests::what_is_forgotten_takes_no_room"])],
        smoke: false,
    },
];
