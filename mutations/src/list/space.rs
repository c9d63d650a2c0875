//! Moves and deletions of objects: only a deletion loses data for good.

use crate::bug::{Edit, Layer, Mutation, Test, file, lib};

const REAP: &str = "crates/volume/src/space/reap.rs";
const ROOT: &str = "crates/volume/src/map/root.rs";
const LEAVES: &str = "crates/volume/src/map/top/write.rs";
const PARTIAL: &str = "crates/volume/src/map/top/partial.rs";
const NAMES: &str = "crates/volume/src/map/names.rs";
const OBJECTS: &str = "crates/volume/src/map/objects.rs";
const TABLE: &str = "crates/volume/src/map/table.rs";
const GARBAGE: &str = "crates/volume/src/space/garbage.rs";
const GIVEN_UP: &str = "crates/volume/src/space/given_up.rs";
const FOLD: &str = "crates/volume/src/space/fold.rs";
const ROLLBACK: &str = "crates/control/src/set/rollback.rs";
const CONTROL_SPACE: &str = "crates/control/src/set/space.rs";
const PINNED: &str = "crates/control/src/set/pins.rs";
const COLLECT: &str = "crates/set/src/uploader/collect.rs";

const HISTORIES: Test = lib(Layer::Property, "holdfast-volume", &["the_store_holds_what_the_state_names"]);
const NAMED: Test = lib(Layer::Property, "holdfast-volume", &["map::names::"]);
const TABLES: Test = lib(Layer::Property, "holdfast-volume", &["map::table::"]);
const TOPS: Test = lib(Layer::Property, "holdfast-volume", &["map::top::"]);
const ROLLBACKS: Test = lib(Layer::Unit, "holdfast-control", &["set::rollback::"]);
const KEPT: Test = lib(Layer::Unit, "holdfast-control", &["set::space::"]);
const SPACE: Test = lib(Layer::Unit, "holdfast-volume", &["space::"]);
const PINS: Test = lib(Layer::Unit, "holdfast-control", &["set::pins::"]);
const MOVES: Test = lib(Layer::Unit, "holdfast-set", &["uploader::collect::"]);
const BASES: Test = lib(Layer::Property, "holdfast-volume", &["map::base::"]);
const CLONES: Test = file(
    Layer::Property,
    "holdfast-sim",
    &["--test", "histories"],
    &["volumes_read_as_written_and_the_store_holds_what_is_named"],
);

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "pin-keeps-nothing",
        bug: "a clone's object is deleted by its origin: a pinned root does not count as kept",
        rule: "R7",
        edits: &[Edit {
            file: CONTROL_SPACE,
            old: "self.snapshots.values().map(|snapshot| snapshot.root).chain(self.pins.values().map(|pin| pin.root))",
            new: "self.snapshots.values().map(|snapshot| snapshot.root)",
        }],
        tests: &[PINS, CLONES],
        smoke: false,
    },
    Mutation {
        name: "pin-let-go-too-early",
        bug: "the pin of a clone is released while the clone is still being made",
        rule: "R7",
        edits: &[Edit {
            file: "crates/control/src/cluster/clones.rs",
            old: "if cluster.next_set > self.clone.0 => PinStanding::Over",
            new: "if cluster.next_set >= self.clone.0 => PinStanding::Over",
        }],
        tests: &[PINS, CLONES],
        smoke: false,
    },
    Mutation {
        name: "head-loses-a-pin",
        bug: "a gateway that was cut off writes a head without the pins of a newer leader: a recovery sweeps the clone's objects",
        rule: "R7",
        edits: &[Edit {
            file: PINNED,
            old: "if stored.pins_at.index > known.pins_at.index {",
            new: "if stored.pins_at.index > known.pins_at.index && stored.pins.len() < known.pins.len() {",
        }],
        tests: &[PINS, CLONES],
        smoke: false,
    },
    Mutation {
        name: "head-gets-a-pin-back",
        bug: "a gateway that was cut off writes a head with pins that a newer leader has released: their objects are deleted, and a recovery needs them",
        rule: "R7",
        edits: &[Edit {
            file: PINNED,
            old: "if stored.pins_at.index > known.pins_at.index {",
            new: "if stored.pins_at.index > known.pins_at.index && stored.pins.len() > known.pins.len() {",
        }],
        tests: &[PINS, CLONES],
        smoke: false,
    },
    Mutation {
        name: "trim-shows-the-base",
        bug: "ranges that a clone trimmed show the origin's content again",
        rule: "R3",
        edits: &[Edit {
            file: FOLD,
            old: "(Source::Zero, Some(_)) => page.hide(piece.lba, piece.sectors)",
            new: "(Source::Zero, Some(_)) => page.unmap(piece.lba, piece.sectors)",
        }],
        tests: &[BASES, CLONES],
        smoke: false,
    },
    Mutation {
        name: "old-leader-deletes",
        bug: "a leader that was paused deletes objects without a check that it still leads",
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
        bug: "an object is swept as an orphan while the entry that names it is not yet committed",
        rule: "R7",
        edits: &[Edit {
            file: GARBAGE,
            old: "let over = object.term < self.term || self.given_up.objects.contains(&object);",
            new: "let over = true;",
        }],
        tests: &[HISTORIES, SPACE],
        smoke: false,
    },
    Mutation {
        name: "given-up-too-early",
        bug: "objects of a checkpoint are swept before a later one has ended: its end may not be committed yet, or the head names its root",
        rule: "R7",
        edits: &[Edit {
            file: GIVEN_UP,
            old: "began.term == term && began.index < ended.index;",
            new: "began.term == term;",
        }],
        tests: &[HISTORIES, SPACE],
        smoke: false,
    },
    Mutation {
        name: "given-up-though-named",
        bug: "after a checkpoint whose end was not seen, objects that the next root names are swept together with the others",
        rule: "R7",
        edits: &[Edit {
            file: GARBAGE,
            old: "        over && !self.named.contains(&object) && !self.spared.contains(&object)",
            new: "        over && !(object.term < self.term && self.named.contains(&object)) && !self.spared.contains(&object)",
        }],
        tests: &[HISTORIES, SPACE],
        smoke: false,
    },
    Mutation {
        name: "failed-checkpoint-stays",
        bug: "objects of a failed checkpoint stay until the next election: each retry of the same leader leaks all data that waits in its journal",
        rule: "R7",
        edits: &[Edit {
            file: GARBAGE,
            old: "let over = object.term < self.term || self.given_up.objects.contains(&object);",
            new: "let over = object.term < self.term;",
        }],
        tests: &[HISTORIES, SPACE, CLONES],
        smoke: false,
    },
    Mutation {
        name: "retired-before-it-is-over",
        bug: "apply accepts a leader's claim that a running checkpoint has ended: objects that its root will name are retired",
        rule: "R7",
        edits: &[Edit {
            file: CONTROL_SPACE,
            old: "if before && under_way.is_none_or(|at| at.index > ended.index) {",
            new: "if before {",
        }],
        tests: &[KEPT],
        smoke: false,
    },
    Mutation {
        name: "changed-leaf-not-written",
        bug: "a root names the old version of a leaf after a page of it was replaced: the old page's objects are deleted, and the new page is lost",
        rule: "R7",
        edits: &[Edit {
            file: ROOT,
            old: "        Arc::make_mut(&mut placed.leaf).set(number, &page);\n        placed.at = None;",
            new: "        Arc::make_mut(&mut placed.leaf).set(number, &page);",
        }],
        tests: &[TOPS, HISTORIES, CLONES],
        smoke: false,
    },
    Mutation {
        name: "leaves-retired-before-their-root",
        bug: "a pack of leaves is deleted with the first objects of a dropped root: after a restart the root cannot be read, and its other objects are never deleted",
        rule: "R7",
        edits: &[Edit {
            file: GARBAGE,
            old: "        let left = self.left.objects();",
            new: "        let own = self.leaves.iter().map(|leaf| StoredObject { kind: StoredKind::Pages, object: *leaf });\n        let left = self.left.objects().chain(own);",
        }],
        tests: &[TOPS],
        smoke: false,
    },
    Mutation {
        name: "only-shared-leaves-are-kept",
        bug: "objects of a dropped root are kept only if a kept root shares the leaf: other objects that both roots name are deleted",
        rule: "R7",
        edits: &[Edit { file: NAMES, old: "|segment| other.segments.get(segment).is_some());", new: "|_| false);" }],
        tests: &[NAMED, HISTORIES],
        smoke: false,
    },
    Mutation {
        name: "sums-of-before",
        bug: "the totals of a leaf are those from before a segment changed: top and leaf of the root disagree, and the root cannot be read",
        rule: "R7",
        edits: &[Edit { file: TABLE, old: "        self.summary = OnceLock::new();\n", new: "" }],
        tests: &[TABLES, TOPS, HISTORIES],
        smoke: false,
    },
    Mutation {
        name: "leaf-pack-not-named",
        bug: "a root does not name the packs of its own leaves: they are swept",
        rule: "R7",
        edits: &[Edit {
            file: OBJECTS,
            old: "of_pages.chain(self.leaf_packs.iter().map(|(object, bytes)| (*object, *bytes))).collect()",
            new: "of_pages.collect()",
        }],
        tests: &[TOPS, HISTORIES, CLONES],
        smoke: false,
    },
    Mutation {
        name: "leaves-under-an-older-key",
        bug: "a leaf written under an older data key stays: objects that it does not list are assumed to use the newer key",
        rule: "R10",
        edits: &[Edit { file: LEAVES, old: "        self.leave_packs(&older);", new: "        let _ = &older;" }],
        tests: &[TOPS, CLONES],
        smoke: false,
    },
    Mutation {
        name: "away-is-nothing",
        bug: "a page whose leaf is not in memory counts as missing: it reads as zeroes, and the next checkpoint loses it",
        rule: "R4",
        edits: &[Edit {
            file: PARTIAL,
            old: "Some(found) => PageAt::Leaf(self.leaf_ref(key, found.at)),",
            new: "Some(_) => PageAt::Nowhere,",
        }],
        tests: &[TOPS, CLONES],
        smoke: false,
    },
    Mutation {
        name: "older-leaf-comes-back",
        bug: "a leaf changed by a checkpoint is replaced by the version that was read ahead for its next page: the earlier changes are lost",
        rule: "R4",
        edits: &[Edit {
            file: PARTIAL,
            old: "        let Some((key, at)) = self.away_at(leaf) else { return Ok(()) };",
            new: "        let LeafOf::Pages { volume, first, .. } = leaf.of else { return Ok(()) };\n        let key = self.key(volume, first);\n        let at = PagesAt { at: leaf.at, pages: found.pages_in(Lba(0), Sectors(u64::MAX)).len() as u64 };",
        }],
        tests: &[TOPS, CLONES],
        smoke: false,
    },
    Mutation {
        name: "partial-root-not-counted",
        bug: "a leader uses the stored counts of page packs without comparing them with the leaves: a pack with a count that is too low is deleted",
        rule: "R7",
        edits: &[Edit {
            file: PARTIAL,
            old: "        self.top.compared(self.counts.compare(&self.root.packs))?;\n",
            new: "",
        }],
        tests: &[TOPS],
        smoke: false,
    },
    Mutation {
        name: "no-grace-for-readers",
        bug: "a retired object is deleted at once, although a reader may still follow an older root",
        rule: "R7",
        edits: &[Edit {
            file: REAP,
            old: "            if now.saturating_since(seen.at) >= grace {",
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
    Mutation {
        name: "checkpoint-undoes-rollback",
        bug: "a checkpoint that began before a rollback ends after it, and its root brings the old content back",
        rule: "R4",
        edits: &[Edit { file: ROLLBACK, old: "        self.begin = None;\n", new: "" }],
        tests: &[ROLLBACKS, HISTORIES],
        smoke: false,
    },
    Mutation {
        name: "rollback-loses-a-write",
        bug: "a set is rolled back although something was written after its safety snapshot",
        rule: "R4",
        edits: &[Edit {
            file: ROLLBACK,
            old: "        if self.last_change > safe.upto.index || self.volumes != safe.volumes {",
            new: "        if self.volumes != safe.volumes {",
        }],
        tests: &[ROLLBACKS, HISTORIES],
        smoke: false,
    },
    Mutation {
        name: "retired-while-the-head-lags",
        bug: "after a rollback, objects are deleted that the store's head still names",
        rule: "R7",
        edits: &[Edit {
            file: CONTROL_SPACE,
            old: "        if let Some(at) = self.rolled_back {",
            new: "        if let Some(at) = self.rolled_back.filter(|_| false) {",
        }],
        tests: &[ROLLBACKS, HISTORIES],
        smoke: false,
    },
    Mutation {
        name: "deleted-by-name",
        bug: "a late copy of a snapshot's deletion deletes a newer snapshot of the same name",
        rule: "R12",
        edits: &[Edit {
            file: CONTROL_SPACE,
            old: "is_some_and(|snapshot| snapshot.request == made_by)",
            new: "is_some()",
        }],
        tests: &[ROLLBACKS],
        smoke: false,
    },
    Mutation {
        name: "kept-root-dropped",
        bug: "a checkpoint drops the previous root although a snapshot keeps it",
        rule: "R7",
        edits: &[Edit {
            file: CONTROL_SPACE,
            old: "            && base != root\n            && !self.kept_by_name().any(|kept| kept == base)\n",
            new: "            && base != root\n",
        }],
        tests: &[KEPT, HISTORIES],
        smoke: false,
    },
    Mutation {
        name: "segment-on-its-way-retired",
        bug: "a segment that the running checkpoint will name is retired",
        rule: "R7",
        edits: &[Edit {
            file: CONTROL_SPACE,
            old: "if kept.contains(object) || dropped || noted || young {",
            new: "if kept.contains(object) || dropped || (noted && young) || young {",
        }],
        tests: &[KEPT, HISTORIES],
        smoke: false,
    },
    Mutation {
        name: "wrong-clock-clears",
        bug: "snapshots with a time in the future count, and replace those that the schedule must keep",
        rule: "R7",
        edits: &[Edit {
            file: "crates/control/src/set/schedule.rs",
            old: "one.finished && one.at_unix_ms <= now_unix_ms",
            new: "one.finished && now_unix_ms > 0",
        }],
        tests: &[
            lib(Layer::Unit, "holdfast-control", &["set::schedule::tests::c3"]),
            lib(Layer::Property, "holdfast-control", &["set::schedule::"]),
        ],
        smoke: false,
    },
    Mutation {
        name: "one-flipped-bit-spares-a-segment",
        bug: "a segment to be emptied is not fetched again if a bit was flipped in transit: its garbage and its data key stay until the next term",
        rule: "R9",
        edits: &[Edit { file: COLLECT, old: "if tries == DAMAGED_TRIES {", new: "if tries <= DAMAGED_TRIES {" }],
        tests: &[MOVES, CLONES],
        smoke: false,
    },
    Mutation {
        name: "rollback-keeps-its-garbage",
        bug: "what a rollback brings back, garbage or data under an older key, is not collected until somebody writes",
        rule: "R7",
        edits: &[Edit {
            file: COLLECT,
            old: "            self.collection.held.store(true, Ordering::Relaxed);\n            self.spared().clear();\n",
            new: "            self.spared().clear();\n",
        }],
        tests: &[MOVES, CLONES],
        smoke: false,
    },
    Mutation {
        name: "spared-across-a-rollback",
        bug: "a segment that was spared before a rollback is spared in the root that comes back: its garbage and its data key stay until the next term",
        rule: "R7",
        edits: &[Edit {
            file: COLLECT,
            old: "            self.spared().clear();\n            return Ok(collected);",
            new: "            return Ok(collected);",
        }],
        tests: &[MOVES, CLONES],
        smoke: false,
    },
];
