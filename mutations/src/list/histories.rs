//! Bugs that only whole histories show: between uploader, head, sweeps and deletion of a real gateway.

use crate::bug::{Edit, Layer, Mutation, Test, file, lib};

const SPACE: &str = "crates/set/src/space.rs";
const CHOOSE: &str = "crates/volume/src/space/choose.rs";
const UPLOADER: &str = "crates/set/src/uploader.rs";
const MAP_UPLOAD: &str = "crates/set/src/uploader/map.rs";
const LISTED: &str = "crates/control/src/set/listed.rs";

const HISTORIES: Test = file(
    Layer::Property,
    "holdfast-sim",
    &["--test", "histories"],
    &["volumes_read_as_written_and_the_store_holds_what_is_named"],
);

const LISTS: Test = lib(Layer::Unit, "holdfast-control", &["set::listed::"]);

/// In three stores.
const SEVERAL: Test = file(Layer::Property, "holdfast-sim", &["--test", "histories"], &["in_several_stores_too"]);

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "difference-by-names",
        bug: "volumes of two snapshots are compared by name: zeroes in a volume that was created again are not reported",
        rule: "R4",
        edits: &[Edit {
            file: "crates/api/src/compared.rs",
            old: "match (by_id.get(&volume.id), by_name",
            new: "match (by_name.get(volume.name.as_str()), by_name",
        }],
        tests: &[lib(Layer::Unit, "holdfast-api", &["compared::"]), HISTORIES],
        smoke: false,
    },
    Mutation {
        name: "difference-without-zeroes",
        bug: "ranges that were trimmed or cut off by a shrink are not reported as a difference of two snapshots",
        rule: "R4",
        edits: &[Edit {
            file: "crates/volume/src/map/diff.rs",
            old: "if !same(left, right, one_base) {",
            new: "if !same(left, right, one_base) && !matches!(right, MapPiece::Zero { .. }) {",
        }],
        tests: &[lib(Layer::Property, "holdfast-volume", &["map::diff::"]), HISTORIES],
        smoke: false,
    },
    Mutation {
        name: "snapshots-keys-not-asked",
        bug: "a data key is dropped although a snapshot's root needs it",
        rule: "R10",
        edits: &[Edit {
            file: "crates/set/src/space/keys.rs",
            old: "current.into_iter().chain(snapshots).chain(pins).chain(dropped).collect()",
            new: "current.into_iter().chain(snapshots.take(0)).chain(pins).chain(dropped).collect()",
        }],
        tests: &[HISTORIES],
        smoke: false,
    },
    Mutation {
        name: "older-keys-not-listed",
        bug: "a root under a new data key does not record that it refers to data under an older key",
        rule: "R10",
        edits: &[Edit {
            file: "crates/volume/src/map/keys.rs",
            old: "self.under.older.entry(object).or_insert(before);",
            new: "let _ = object;",
        }],
        tests: &[HISTORIES],
        smoke: false,
    },
    Mutation {
        name: "one-store-is-enough",
        bug: "with several stores, an object counts as stored when one of them has it",
        rule: "R7",
        edits: &[Edit {
            file: "crates/store/src/quorum/store.rs",
            old: "            if self.enough(&done) {\n                return Ok(());",
            new: "            if done.contains(&true) {\n                return Ok(());",
        }],
        tests: &[SEVERAL],
        smoke: false,
    },
    Mutation {
        name: "snapshots-not-asked",
        bug: "objects of a dropped root are retired although a snapshot's root names them too",
        rule: "R7",
        edits: &[Edit {
            file: SPACE,
            old: "            for root in kept {\n                // An unreadable kept root",
            new: "            for root in kept.into_iter().take(1) {\n                // An unreadable kept root",
        }],
        tests: &[HISTORIES],
        smoke: false,
    },
    Mutation {
        name: "sweep-overlooks-snapshots",
        bug: "a sweep treats objects that only a snapshot names as orphans",
        rule: "R7",
        edits: &[Edit {
            file: SPACE,
            old: "        for kept in state.kept_roots() {\n            let root = self.kept_root(state, kept).await?;",
            new: "        for kept in state.kept_roots().into_iter().take(1) {\n            let root = self.kept_root(state, kept).await?;",
        }],
        tests: &[HISTORIES],
        smoke: false,
    },
    Mutation {
        name: "small-set-never-rests",
        bug: "the pack of a small map counts as half garbage for ever: an idle set makes checkpoints without end",
        rule: "R7",
        edits: &[Edit {
            file: CHOOSE,
            old: "    if pack_bytes_max(pages, live) < before {",
            new: "    if pack_bytes_max(pages, live) < before || before > 0 {",
        }],
        tests: &[HISTORIES],
        smoke: false,
    },
    Mutation {
        name: "trim-not-in-the-map",
        bug: "a checkpoint does not change pages that were only trimmed: the trimmed data comes back",
        rule: "R3",
        edits: &[Edit {
            file: MAP_UPLOAD,
            old: "        for unmap in unmaps(memtable) {",
            new: "        for unmap in unmaps(memtable).take(0) {",
        }],
        tests: &[HISTORIES],
        smoke: false,
    },
    Mutation {
        name: "head-left-behind",
        bug: "a checkpoint ends before the head names it: a recovery would start from objects that are deleted",
        rule: "R7",
        edits: &[Edit {
            file: UPLOADER,
            old: "        self.commit_head(term, at, at_unix_ms, root_ref).await?;\n",
            new: "        if self.mapping.store.several().is_some() {\n            self.commit_head(term, at, at_unix_ms, root_ref).await?;\n        }\n",
        }],
        tests: &[HISTORIES],
        smoke: false,
    },
    Mutation {
        name: "listed-snapshot-retired",
        bug: "objects of a deleted snapshot are deleted while the set's head still lists the snapshot: a recovery restores a snapshot without its objects",
        rule: "R7",
        edits: &[Edit {
            file: LISTED,
            old: "known && stored.lists_as(list) && stored.as_of >= *since",
            new: "known || stored.lists_as(list) && stored.as_of >= *since",
        }],
        tests: &[LISTS, HISTORIES],
        smoke: false,
    },
    Mutation {
        name: "snapshot-listed-late",
        bug: "the head lists a snapshot only some time after it was acknowledged: if all gateways are lost, the snapshot is lost",
        rule: "R1",
        edits: &[Edit {
            file: LISTED,
            old: "ahead.filter(|(begin, _)| under_way == Some(*begin))",
            new: "ahead.filter(|(begin, _)| under_way.is_none() && begin.index.0 == 0)",
        }],
        tests: &[LISTS, HISTORIES],
        smoke: false,
    },
    Mutation {
        name: "head-gets-a-snapshot-back",
        bug: "a gateway that was cut off writes a head with a snapshot that a newer leader has deleted together with its objects",
        rule: "R7",
        edits: &[Edit {
            file: LISTED,
            old: "Some(Noted { list, .. }) if list.as_of >= stored.as_of => list.clone(),",
            new: "Some(Noted { list, .. }) => list.clone(),",
        }],
        tests: &[LISTS, HISTORIES],
        smoke: false,
    },
    Mutation {
        name: "recovered-snapshots-unnamed",
        bug: "the snapshots of a recovered set are not part of its state: a sweep of the new life deletes what only they name",
        rule: "R7",
        edits: &[Edit {
            file: LISTED,
            old: "(self.snapshots, self.schedule) = (snapshots, schedule);",
            new: "self.schedule = schedule;",
        }],
        tests: &[LISTS, HISTORIES],
        smoke: false,
    },
    Mutation {
        name: "acknowledged-in-an-untold-term",
        bug: "a former leader that is elected again answers reads by what its gate knows of its earlier term",
        rule: "R3",
        edits: &[
            Edit {
                file: "crates/set/src/gate.rs",
                old: "        if acked.is_some_and(|(term, _)| Some(term) != told) {\n            // A term",
                new: "        if acked.is_some_and(|(term, _)| Some(term) < told) {\n            // A term",
            },
            Edit {
                file: "crates/set/src/gate.rs",
                old: "Some((of, Acked { sent, until, .. })) if of == term =>",
                new: "Some((of, Acked { sent, until, .. })) if of >= term =>",
            },
        ],
        tests: &[HISTORIES],
        smoke: false,
    },
    Mutation {
        name: "alone-by-an-old-list",
        bug: "a gateway takes itself for the only voter by members that it read before a change of them was announced",
        rule: "R3",
        edits: &[Edit {
            file: "crates/set/src/gate.rs",
            old: "alone && !under_way && announced == by_now",
            new: "alone && !under_way && announced <= by_now",
        }],
        tests: &[lib(Layer::Unit, "holdfast-set", &["gate::"])],
        smoke: false,
    },
    Mutation {
        name: "alone-by-a-list-of-a-change",
        bug: "a gateway takes itself for the only voter by members that it read while a change of them had not come to the log yet, once that change has ended",
        rule: "R3",
        edits: &[Edit {
            file: "crates/set/src/gate.rs",
            old: "u64::from(under_way || self.members.under_way)",
            new: "u64::from(under_way)",
        }],
        tests: &[lib(Layer::Unit, "holdfast-set", &["gate::"])],
        smoke: false,
    },
    Mutation {
        name: "incomplete-snapshot-comes-back",
        bug: "a recovery restores a snapshot with missing objects: it cannot be read, and no garbage is collected as long as it exists",
        rule: "R9",
        edits: &[Edit {
            file: "crates/set/src/recovery/snapshots.rs",
            old: "left_out.extend(reason.map(",
            new: "left_out.extend(reason.filter(|_| false).map(",
        }],
        tests: &[lib(Layer::Unit, "holdfast-set", &["recovery::"])],
        smoke: false,
    },
];
