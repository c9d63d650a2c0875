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
];
