//! The disk of the read cache.

use crate::bug::{Edit, Layer, Mutation, lib};

const RING: &str = "crates/cache/src/ring.rs";

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "region-written-while-read",
        bug: "a reader of the cache's disk does not notice that the region was written again meanwhile",
        rule: "R9",
        edits: &[Edit {
            file: RING,
            old: "if !state.is_still(&spot) {",
            new: "if !state.is_still(&spot) && record.is_empty() {",
        }],
        tests: &[lib(Layer::Unit, "holdfast-cache", &["ring::tests::a_region_that_was_written_while_it_was_read"])],
        smoke: false,
    },
    Mutation {
        name: "another-record-of-the-ring",
        bug: "whatever lies at the place of a record on the cache's disk is taken for it",
        rule: "R9",
        edits: &[Edit {
            file: RING,
            old: "if !record.starts_with(&key_bytes(key)) {",
            new: "if record.len() < key_bytes(key).len() {",
        }],
        tests: &[lib(Layer::Unit, "holdfast-cache", &["ring::tests::another_keys_record"])],
        smoke: false,
    },
    Mutation {
        name: "table-outlives-its-records",
        bug: "the cache's disk writes records over others, and their table still names those",
        rule: "RING-G4",
        edits: &[Edit {
            file: RING,
            old: "self.file.write(&mut [IoSlice::new(&ZEROES)], begin)",
            new: "self.file.write(&mut [], begin)",
        }],
        tests: &[lib(Layer::Unit, "holdfast-cache", &["ring::tests::a_table_goes_before_its_records"])],
        smoke: false,
    },
    Mutation {
        name: "full-disk-of-the-cache-goes-on",
        bug: "a write to the cache's disk that failed counts as written",
        rule: "RING-G2",
        edits: &[Edit {
            file: RING,
            old: "                self.turn_off(\"writes\", &error);
                break;
            }
            self.tell();",
            new: "                tracing::debug!(%error, \"cache disk\");
            }
            self.tell();",
        }],
        tests: &[lib(Layer::Unit, "holdfast-cache", &["tests::a_full_disk_is_turned_off"])],
        smoke: false,
    },
    Mutation {
        name: "space-of-a-cache-disk-that-is-off",
        bug: "a write to the cache's disk that was under way when reads turned it off keeps its space",
        rule: "RING-G2",
        edits: &[Edit { file: RING, old: "if !self.is_on() {", new: "if !self.is_on() && self.bytes() == 0 {" }],
        tests: &[lib(Layer::Unit, "holdfast-cache", &["ring::tests::a_write_that_ends_after_the_disk_was_turned_off"])],
        smoke: false,
    },
    Mutation {
        name: "cache-disk-in-the-order-of-places",
        bug: "after a restart the regions of the cache's disk count as filled in the order of their places",
        rule: "RING-G4",
        edits: &[Edit {
            file: RING,
            old: "heads.sort_unstable();",
            new: "heads.sort_unstable_by_key(|(_, region, _)| *region);",
        }],
        tests: &[lib(Layer::Unit, "holdfast-cache", &["ring::tests::a_restart_takes_the_regions"])],
        smoke: false,
    },
    Mutation {
        name: "cache-disk-for-everyone",
        bug: "the file on the cache's disk can be read by other users",
        rule: "R10",
        edits: &[Edit { file: "crates/cache/src/ring/file.rs", old: "0o600", new: "0o644" }],
        tests: &[lib(Layer::Unit, "holdfast-cache", &["ring::tests::nobody_else_may_read"])],
        smoke: false,
    },
];
