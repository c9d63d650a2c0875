//! Volumes that shrink or are deleted: discarded data stays discarded, and no other data is lost.

use crate::bug::{Edit, Layer, Mutation, Test, lib, scene};

const MACHINE: &str = "crates/volume/src/machine.rs";
const VOLUMES: &str = "crates/control/src/set/volumes.rs";

const HISTORIES: Test = lib(Layer::Property, "holdfast-volume", &["the_store_holds_what_the_state_names"]);
const MACHINES: Test = lib(Layer::Property, "holdfast-volume", &["machine::"]);
/// A fixed case: fails for any random input.
const LATE_COPY: Test = lib(Layer::Unit, "holdfast-control", &["a_late_copy_of_a_shrink_takes_nothing"]);
const STATE: Test = lib(Layer::Property, "holdfast-control", &["set::volumes::"]);

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "discarded-data-comes-back",
        bug: "a volume that was shrunk and grows again shows what it held before, and a deleted one keeps its space for ever",
        rule: "R3",
        edits: &[Edit {
            file: MACHINE,
            old: "        self.active.insert(volume, from, sectors, Source::Zero);\n",
            new: "        let _ = (volume, sectors);\n",
        }],
        tests: &[MACHINES, HISTORIES],
        smoke: false,
    },
    Mutation {
        name: "outside-answered-as-written",
        bug: "a write that fell outside of its volume is acknowledged though it had no effect",
        rule: "R1",
        edits: &[Edit {
            file: MACHINE,
            old: "        if outside.is_empty() {",
            new: "        if outside.len() < usize::MAX {",
        }],
        tests: &[MACHINES],
        smoke: false,
    },
    Mutation {
        name: "abandoned-change-lets-the-volume-go",
        bug: "a client connects to a volume whose change is on its way in the log, since the caller of the change has gone",
        rule: "RESIZE-U1",
        edits: &[Edit {
            file: "crates/gateway/src/admin/volumes.rs",
            old: "self.to_its_end(move |door| async move { door.carry_out(&set, seen, change).await }).await",
            new: "self.carry_out(&set, seen, change).await",
        }],
        tests: &[scene(&["commands_that_come_too_late_are_refused_and_change_nothing"])],
        smoke: false,
    },
    Mutation {
        name: "unknown-change-lets-the-volume-go",
        bug: "a client connects to a volume whose change has no outcome yet, and loses its name to it",
        rule: "RESIZE-U1",
        edits: &[Edit {
            file: "crates/set/src/server/volumes.rs",
            old: "group.applied().index < last",
            new: "group.applied().index > last",
        }],
        tests: &[lib(Layer::Unit, "holdfast-set", &["a_volume_is_held_until_a_change_without_an_outcome_is_applied"])],
        smoke: false,
    },
    Mutation {
        name: "late-shrink",
        bug: "a late copy of a request on a volume acts a second time",
        rule: "R12",
        edits: &[Edit {
            file: VOLUMES,
            old: "        if self.space_requests.contains(&request) {\n            return Ok(SetAnswer::VolumeChangedBefore);",
            new: "        if self.space_requests.len() > usize::MAX / 2 {\n            return Ok(SetAnswer::VolumeChangedBefore);",
        }],
        tests: &[LATE_COPY, STATE],
        smoke: false,
    },
    Mutation {
        name: "shrink-unseen",
        bug: "a rollback is undone to a safety snapshot that contains data which a shrink has discarded since",
        rule: "R4",
        edits: &[Edit { file: VOLUMES, old: "        if discarded.is_some() {", new: "        if false {" }],
        tests: &[STATE],
        smoke: false,
    },
    Mutation {
        name: "volume-id-again",
        bug: "a new volume gets the id of a deleted one: old snapshots and late requests then refer to it",
        rule: "R4",
        edits: &[Edit {
            file: VOLUMES,
            old: "let volume = VolumeId(self.next_volume);",
            new: "let volume = VolumeId(self.volumes.keys().map(|id| id.0).max().unwrap_or(0) + 1);",
        }],
        tests: &[STATE],
        smoke: false,
    },
    Mutation {
        name: "volume-id-again-after-a-recovery",
        bug: "a recovered set forgets the ids of volumes that were deleted before",
        rule: "R4",
        edits: &[Edit {
            file: "crates/control/src/set/restored.rs",
            old: "restored.next_volume.max(above).max(1)",
            new: "above.max(1)",
        }],
        tests: &[lib(Layer::Unit, "holdfast-control", &["set::restored::"])],
        smoke: false,
    },
    Mutation {
        name: "epochs-of-a-former-life",
        bug: "the epochs of a recovered set are not higher than those before the recovery",
        rule: "R6",
        edits: &[Edit {
            file: "crates/control/src/set/restored.rs",
            old: "let mut state = Self::new(base_epoch);",
            new: "let mut state = Self::new(Epoch(base_epoch.0 >> INDEX_BITS));",
        }],
        tests: &[lib(Layer::Unit, "holdfast-control", &["set::restored::"])],
        smoke: false,
    },
    Mutation {
        name: "shrink-under-a-new-owner",
        bug: "a shrink or deletion that was requested before another owner took the set is executed under the new owner",
        rule: "R2",
        edits: &[Edit {
            file: VOLUMES,
            old: "        if self.epoch == seen {",
            new: "        if self.epoch >= seen {",
        }],
        tests: &[STATE],
        smoke: false,
    },
];
