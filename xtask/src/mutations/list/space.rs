//! What may be moved, and what may be deleted: the only thing that loses data for good.

use super::{Edit, Layer, Mutation, Test, lib};

const REAP: &str = "crates/volume/src/space/reap.rs";
const GARBAGE: &str = "crates/volume/src/space/garbage.rs";
const FOLD: &str = "crates/volume/src/space/fold.rs";

const HISTORIES: Test = lib(Layer::Property, "holdfast-volume", &["the_store_holds_what_the_state_names"]);
const SPACE: Test = lib(Layer::Unit, "holdfast-volume", &["space::"]);

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "old-leader-deletes",
        bug: "a leader that was paused deletes what it had decided to delete, without looking whether it still leads",
        rule: "R7",
        edits: &[
            Edit { file: REAP, old: "        if leading != Some(self.term) {", new: "        if false {" },
            Edit { file: REAP, old: "        if age >= valid {", new: "        if false {" },
        ],
        tests: &[HISTORIES, SPACE],
        smoke: false,
    },
    Mutation {
        name: "orphan-of-this-term",
        bug: "an object is swept as an orphan while the entry that would name it is on its way",
        rule: "R7",
        edits: &[Edit {
            file: GARBAGE,
            old: "        object.term < self.term && !self.named.contains(&object)",
            new: "        !self.named.contains(&object)",
        }],
        tests: &[HISTORIES, SPACE],
        smoke: false,
    },
    Mutation {
        name: "no-grace-for-readers",
        bug: "a retired object is deleted at once, although a reader may still follow an older root",
        rule: "R7",
        edits: &[Edit {
            file: REAP,
            old: "            if now.saturating_since(seen) >= grace {",
            new: "            if true {",
        }],
        tests: &[HISTORIES, SPACE],
        smoke: false,
    },
    Mutation {
        name: "moved-over-a-newer-write",
        bug: "collection copies an extent that this checkpoint replaces",
        rule: "R4",
        edits: &[Edit {
            file: FOLD,
            old: "            if piece.source == Source::Map {",
            new: "            if true {",
        }],
        tests: &[HISTORIES, SPACE],
        smoke: false,
    },
];
