//! Volumes that shrink and go: what is discarded stays so, and nothing else goes with it.

use super::{Edit, Layer, Mutation, Test, lib};

const MACHINE: &str = "crates/volume/src/machine.rs";
const VOLUMES: &str = "crates/control/src/set/volumes.rs";

const HISTORIES: Test = lib(Layer::Property, "holdfast-volume", &["the_store_holds_what_the_state_names"]);
const MACHINES: Test = lib(Layer::Property, "holdfast-volume", &["machine::"]);
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
        name: "late-shrink",
        bug: "a late copy of a request on a volume acts a second time",
        rule: "R12",
        edits: &[Edit {
            file: VOLUMES,
            old: "        if self.space_requests.contains(&request) {\n            return Ok(SetAnswer::VolumeChangedBefore);",
            new: "        if self.space_requests.len() > usize::MAX / 2 {\n            return Ok(SetAnswer::VolumeChangedBefore);",
        }],
        tests: &[STATE, HISTORIES],
        smoke: false,
    },
    Mutation {
        name: "shrink-unseen",
        bug: "a rollback is undone to a safety snapshot that shows what a shrink has discarded since",
        rule: "R4",
        edits: &[Edit { file: VOLUMES, old: "        if discarded.is_some() {", new: "        if false {" }],
        tests: &[STATE],
        smoke: false,
    },
];
