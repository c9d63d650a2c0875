//! Storage of data: the journal's format, the index and the map, seals, the store.

use crate::bug::{Edit, Layer, Mutation, Test, file, lib};

const WRITE: &str = "crates/journal/src/write.rs";
const HEAD: &str = "crates/volume/src/head.rs";
const MACHINE: &str = "crates/volume/src/machine.rs";
const SEAL: &str = "crates/seal/src/object.rs";
const ENTRY: &str = "crates/volume/src/entry.rs";
const BLOCK: &str = "crates/volume/src/entry/block.rs";

const CRASHES: Test =
    file(Layer::Crash, "holdfast-journal", &["--test", "journal"], &["what_was_acknowledged_survives_any_crash"]);
const CORRUPTION: Test = file(Layer::Crash, "holdfast-journal", &["--test", "journal"], &["corruption::"]);
const REPLAYS: Test = lib(Layer::Property, "holdfast-volume", &["replay_from_any_snapshot_is_the_straight_run"]);
const MACHINES: Test = lib(Layer::Unit, "holdfast-volume", &["machine::"]);
const HEADS: Test = lib(Layer::Unit, "holdfast-volume", &["head::"]);
const SEALED: Test = lib(Layer::Unit, "holdfast-volume", &["what_is_sealed_stays_as_it_was_at_the_begin"]);
const EXTENTS: Test = lib(Layer::Unit, "holdfast-volume", &["segment::"]);
const RETRIES: Test = lib(Layer::Unit, "holdfast-store", &["retry::"]);

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "fdatasync-dropped",
        bug: "a batch is acknowledged after the write and before the sync",
        rule: "R1",
        edits: &[Edit {
            file: WRITE,
            old: "            file.write_synced_at(buf, at)
",
            new: "            file.write_at(buf, at)
",
        }],
        tests: &[CRASHES],
        smoke: false,
    },
    Mutation {
        name: "idle-mark-counted-as-synced",
        bug: "the batch behind an idle marker syncs only itself, and the next ones call the marker synced",
        rule: "R9",
        edits: &[Edit {
            file: WRITE,
            old: "        } else if self.current.synced == at {
",
            new: "        } else if true {
",
        }],
        tests: &[file(Layer::Unit, "holdfast-journal", &["--test", "journal"], &["the_batch_behind_an_idle_marker"])],
        smoke: false,
    },
    Mutation {
        name: "last-index-of-a-record-taken",
        bug: "a record of the journal with the largest index is replayed: the next index overflows, and the gateway ends at each start",
        rule: "R9",
        edits: &[Edit {
            file: "crates/journal/src/format.rs",
            old: "if index == u64::MAX {",
            new: "if index == u64::MAX && len == u32::MAX {",
        }],
        tests: &[lib(Layer::Unit, "holdfast-journal", &["a_record_with_no_index_behind_it_is_refused"])],
        smoke: false,
    },
    Mutation {
        name: "folder-not-synced",
        bug: "a new journal file is used before its name is durable",
        rule: "R1",
        edits: &[Edit {
            file: WRITE,
            old: "    disk.sync_dir().map_err(|error| failed(\"sync of the folder\", error))?;
",
            new: "",
        }],
        tests: &[CRASHES],
        smoke: false,
    },
    Mutation {
        name: "header-not-synced",
        bug: "a new journal file gets its name before its header is durable",
        rule: "R1",
        edits: &[Edit {
            file: WRITE,
            old: "    file.sync_data().map_err(|error| failed(\"sync of the header\", error))?;
",
            new: "",
        }],
        tests: &[CRASHES],
        smoke: false,
    },
    Mutation {
        name: "live-file-dropped",
        bug: "a journal file is deleted while it has records that exist nowhere else",
        rule: "R1",
        edits: &[
            Edit {
                file: WRITE,
                old: "let empty = self.ledger.bytes(number) == 0;",
                new: "let empty = self.ledger.bytes(number) < self.params.file_bytes / 2;",
            },
            Edit {
                file: WRITE,
                old:
                    "        assert_eq!(self.ledger.bytes(number), 0, \"JOURNAL-J5: file {number} holds live records\");
",
                new: "",
            },
        ],
        tests: &[CRASHES],
        smoke: false,
    },
    Mutation {
        name: "rot-taken-for-a-torn-tail",
        bug: "a damaged batch that was synced is cut off like one that was not synced",
        rule: "R9",
        edits: &[Edit {
            file: "crates/journal/src/replay.rs",
            old: "let known = synced > offset;",
            new: "let known = synced > offset && batch.first_torn().is_none();",
        }],
        tests: &[CORRUPTION],
        smoke: false,
    },
    Mutation {
        name: "foreign-record-served",
        bug: "a read of the journal returns any record at the place, without a check",
        rule: "R9",
        edits: &[Edit {
            file: "crates/journal/src/read.rs",
            old: "if (header.kind, header.group, header.id, header.len as usize) == (kind, group, id, len) {",
            new: "if header.len as usize == len {",
        }],
        tests: &[CORRUPTION, CRASHES, lib(Layer::Unit, "holdfast-journal", &[])],
        smoke: false,
    },
    Mutation {
        name: "overwritten-extent-left-out",
        bug: "data that is overwritten after the begin of a checkpoint is missing in it",
        rule: "R4",
        edits: &[Edit {
            file: MACHINE,
            old: "            self.active.insert(op.volume, op.lba, op.sectors, source);
",
            new: "            self.active.insert(op.volume, op.lba, op.sectors, source);
            if let Some((_, sealed)) = &mut self.sealed {
                Arc::make_mut(sealed).insert(op.volume, op.lba, op.sectors, Source::Map);
            }
",
        }],
        tests: &[SEALED, REPLAYS, MACHINES],
        smoke: false,
    },
    Mutation {
        name: "unfinished-checkpoint-forgotten",
        bug: "the begin of a checkpoint drops data that an earlier one had sealed and not uploaded",
        rule: "R1",
        edits: &[Edit {
            file: MACHINE,
            old: "            memtable.merge_under(&older);
",
            new: "            let _ = older;
",
        }],
        tests: &[REPLAYS, MACHINES],
        smoke: false,
    },
    Mutation {
        name: "purged-at-the-begin",
        bug: "the snapshot covers a checkpoint that has only begun, so the log is purged before the store has the data",
        rule: "R1",
        edits: &[Edit {
            file: MACHINE,
            old: "        self.copy = Some((at, self.state.clone()));
        self.data_bytes = 0;
",
            new: "        self.copy = Some((at, self.state.clone()));
        self.snapshot = self.copy.clone();
        self.data_bytes = 0;
",
        }],
        tests: &[REPLAYS, MACHINES],
        smoke: false,
    },
    Mutation {
        name: "state-of-the-end",
        bug: "a state snapshot combines the root from a checkpoint's begin with the state from its end",
        rule: "R4",
        edits: &[Edit {
            file: MACHINE,
            old: "self.snapshot = Some((upto, SetState::after_checkpoint(&copy, root, upto)));",
            new: "let right = SetState::after_checkpoint(&copy, root, upto);
            let (begin, checkpoint) = (right.begin, right.checkpoint);
            self.snapshot = Some((upto, SetState { begin, checkpoint, ..self.state.clone() }));",
        }],
        tests: &[REPLAYS, MACHINES],
        smoke: false,
    },
    Mutation {
        name: "trim-left-out",
        bug: "a checkpoint keeps the old data of a trimmed range",
        rule: "R4",
        edits: &[Edit {
            file: "crates/volume/src/plan.rs",
            old: "matches!(piece.source, Source::Zero)).map",
            new: "matches!(piece.source, Source::Map)).map",
        }],
        tests: &[lib(Layer::Property, "holdfast-volume", &["plan::"])],
        smoke: false,
    },
    Mutation {
        name: "data-not-checked",
        bug: "the checksum of an operation's data is not checked on read",
        rule: "R9",
        edits: &[Edit {
            file: "crates/volume/src/entry/block.rs",
            old: "    check_crc(\"block\", at, crc32c::crc32c(&block[8..]), u32_at(fixed, 4))?;
",
            new: "",
        }],
        tests: &[lib(Layer::Property, "holdfast-volume", &["entry::"])],
        smoke: false,
    },
    Mutation {
        name: "place-not-sealed",
        bug: "the place of an extent is not bound into its seal: one can be served for another",
        rule: "R10",
        edits: &[Edit {
            file: SEAL,
            old: "    out.extend_from_slice(&place.to_le_bytes());
",
            new: "    let _ = place;
",
        }],
        tests: &[lib(Layer::Unit, "holdfast-seal", &["object::"])],
        smoke: true,
    },
    Mutation {
        name: "block-not-sealed-to-its-place",
        bug: "the place of a block in its extent is not bound into its seal: one can be served for another",
        rule: "R9",
        edits: &[
            Edit {
                file: SEAL,
                old: "    bytes[4..8].copy_from_slice(&within.to_le_bytes());
",
                new: "    let _ = within;
",
            },
            Edit {
                file: SEAL,
                old: "    out.extend_from_slice(&within.to_le_bytes());
",
                new: "    out.extend_from_slice(&[0; 4]);
    let _ = within;
",
            },
        ],
        tests: &[lib(Layer::Unit, "holdfast-seal", &["object::"]), EXTENTS],
        smoke: false,
    },
    Mutation {
        name: "one-nonce-for-an-extent",
        bug: "all blocks of an extent are sealed under one nonce",
        rule: "R10",
        edits: &[
            Edit {
                file: SEAL,
                old: "                ExtentPart::Block(block) => u32::from(*block),
",
                new: "                ExtentPart::Block(_) => 0,
",
            },
            Edit {
                file: SEAL,
                old: "        assert!(self.used.insert(numbers), \"R10: sealed twice under one nonce: {part}\");
",
                new: "        self.used.insert(numbers);
",
            },
        ],
        tests: &[lib(Layer::Unit, "holdfast-seal", &["object::"]), EXTENTS],
        smoke: false,
    },
    Mutation {
        name: "lengths-not-sealed",
        bug: "the lengths of an extent's blocks are stored without a seal, and believed",
        rule: "R9",
        edits: &[
            Edit {
                file: "crates/volume/src/segment.rs",
                old: "            self.sealer.seal_extent_into(number, ExtentPart::Lengths, aad, &plain, &mut self.content);
",
                new: "            self.content.extend_from_slice(&[&plain[..], &[0; TAG_BYTES]].concat());
",
            },
            Edit {
                file: "crates/volume/src/segment/open.rs",
                old: "let plain = self.opener.open_extent(number, ExtentPart::Lengths, aad(self.entry), sealed)?;",
                new: "let plain = sealed[..bytes - TAG_BYTES].to_vec();",
            },
        ],
        tests: &[EXTENTS],
        smoke: false,
    },
    Mutation {
        name: "length-of-a-block-believed",
        bug: "the length of a block is not compared with what a block can have",
        rule: "R9",
        edits: &[Edit {
            file: "crates/volume/src/segment/blocks.rs",
            old: "Some(found) if (1..=most).contains(&found) =>",
            new: "Some(found) if found <= most.max(usize::from(u16::MAX)) =>",
        }],
        tests: &[EXTENTS],
        smoke: false,
    },
    Mutation {
        name: "another-block-of-the-fetch",
        bug: "of blocks that came in together, any one is served for the one that was asked for",
        rule: "R3",
        edits: &[Edit {
            file: "crates/cache/src/several.rs",
            old: "find(|(there, _)| there == key)",
            new: "find(|(there, _)| there.number == key.number)",
        }],
        tests: &[lib(Layer::Unit, "holdfast-cache", &["load::"])],
        smoke: false,
    },
    Mutation {
        name: "conflict-taken-for-ours",
        bug: "a different object under the same key counts as a successful PUT",
        rule: "R12",
        edits: &[Edit {
            file: "crates/store/src/retry.rs",
            old: "Ok(Some(object)) if object.body == body => return Ok(()),",
            new: "Ok(Some(object)) if object.body.len() <= body.len() => return Ok(()),",
        }],
        tests: &[RETRIES],
        smoke: false,
    },
    Mutation {
        name: "unknown-taken-for-failed",
        bug: "a conditional PUT whose answer was lost is reported as rejected",
        rule: "R12",
        edits: &[Edit {
            file: "crates/store/src/retry.rs",
            old: "                self.failed(Box::new(Cause { kind: error.kind(), ..*cause }), true)",
            new: "                drop(cause);
                error",
        }],
        tests: &[RETRIES],
        smoke: false,
    },
    Mutation {
        name: "short-range-served",
        bug: "a body that the store truncated is returned",
        rule: "R9",
        edits: &[Edit {
            file: "crates/store/src/retry.rs",
            old: "if body.len() as u64 == expected {",
            new: "if body.len() as u64 <= expected {",
        }],
        tests: &[RETRIES],
        smoke: false,
    },
    Mutation {
        name: "rest-of-an-overwritten-write",
        bug: "the rest of a write after an overwritten part reads as the start of that write",
        rule: "R3",
        edits: &[Edit {
            file: "crates/volume/src/index.rs",
            old: "Self { skip: self.skip + count as u16, ..rest }",
            new: "Self { skip: self.skip, ..rest }",
        }],
        tests: &[lib(Layer::Property, "holdfast-volume", &["index::"]), MACHINES],
        smoke: false,
    },
    Mutation {
        name: "told-again-as-written",
        bug: "an entry that was applied partly is reported as written when it is sent again",
        rule: "R12",
        edits: &[Edit {
            file: MACHINE,
            old: "Admit::Duplicate if self.partly == Some(writes.epoch) => {",
            new: "Admit::Duplicate if self.partly == Some(Epoch(u64::MAX)) => {",
        }],
        tests: &[MACHINES],
        smoke: false,
    },
    Mutation {
        name: "replaced-life-goes-on",
        bug: "a head of a later generation of the set does not fence gateways of an earlier one",
        rule: "R6",
        edits: &[Edit {
            file: HEAD,
            old: "            _ => Standing::Taken,",
            new: "            _ => Standing::Older,",
        }],
        tests: &[HEADS],
        smoke: false,
    },
    Mutation {
        name: "head-goes-back",
        bug: "a checkpoint that is older than the head replaces it",
        rule: "R4",
        edits: &[Edit { file: HEAD, old: "c.upto.index >= next.upto.index", new: "c.upto.index == next.upto.index" }],
        tests: &[HEADS],
        smoke: false,
    },
    Mutation {
        name: "keyring-in-clear-believed",
        bug: "the keyring beside a head is used without a check that it belongs to the head",
        rule: "R10",
        edits: &[Edit {
            file: HEAD,
            old: "    if keyring != clear {",
            new: "    if keyring.wrapped_key.len() != clear.wrapped_key.len() {",
        }],
        tests: &[HEADS],
        smoke: false,
    },
    Mutation {
        name: "data-key-of-another-set",
        bug: "a data key that was wrapped for another set opens",
        rule: "R10",
        edits: &[Edit {
            file: "crates/seal/src/key.rs",
            old: "        if found_set != set {",
            new: "        if found_set.0 == u64::MAX {",
        }],
        tests: &[lib(Layer::Unit, "holdfast-seal", &["key::"])],
        smoke: false,
    },
    Mutation {
        name: "journal-place-not-sealed",
        bug: "the place of a record in its journal file is not bound into its seal",
        rule: "R9",
        edits: &[Edit {
            file: "crates/seal/src/node.rs",
            old: "    nonce[..8].copy_from_slice(&offset.to_le_bytes());\n",
            new: "    let _ = offset;\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-seal", &["node::"])],
        smoke: false,
    },
    Mutation {
        name: "entry-nonce-used-twice",
        bug: "all units of an operation's data are sealed under one nonce",
        rule: "R10",
        edits: &[Edit {
            file: "crates/seal/src/entry.rs",
            old: "    nonce[4..8].copy_from_slice(&unit.to_le_bytes());\n",
            new: "    let _ = unit;\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-seal", &["entry::"])],
        smoke: false,
    },
    Mutation {
        name: "one-key-for-all-entries",
        bug: "the data of all entries is sealed under one key, and so under the same nonces",
        rule: "R10",
        edits: &[Edit {
            file: "crates/set/src/random.rs",
            old: "    EntryKey::new(bytes)\n",
            new: "    EntryKey::new(bytes.map(|byte| byte | 255))\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-set", &["sequencer::"])],
        smoke: false,
    },
    Mutation {
        name: "entry-place-not-sealed",
        bug: "the place of an operation is not bound into the seal of its data: it can be served for another",
        rule: "R9",
        edits: &[Edit {
            file: BLOCK,
            old: "        out[28..36].copy_from_slice(&self.lba.0.to_le_bytes());\n",
            new: "",
        }],
        tests: &[lib(Layer::Unit, "holdfast-volume", &["entry::"])],
        smoke: false,
    },
    Mutation {
        name: "tag-of-another-entry-taken",
        bug: "the number of an entry is not bound into the seal of its data: a block of another entry is served",
        rule: "R9",
        edits: &[Edit {
            file: BLOCK,
            old: "        out[16..24].copy_from_slice(&self.seq.0.to_le_bytes());\n",
            new: "",
        }],
        tests: &[lib(Layer::Unit, "holdfast-volume", &["entry::"])],
        smoke: false,
    },
    Mutation {
        name: "frame-of-another-group-applied",
        bug: "an entry that was made for another set's log is applied",
        rule: "R4",
        edits: &[Edit {
            file: ENTRY,
            old: "        && writes.set != expected\n",
            new: "        && writes.set.0 == u64::MAX\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-volume", &["entry::"])],
        smoke: false,
    },
    Mutation {
        name: "entry-key-on-disk-in-clear",
        bug: "the front of an entry, with the key of its data, is written to the journal as it is",
        rule: "R10",
        edits: &[Edit {
            file: ENTRY,
            old: "        Ok((head, ops)) if head.key.is_some() => front_bytes(ops),",
            new: "        Ok((head, _)) if head.key.is_some() => 0,",
        }],
        tests: &[lib(Layer::Unit, "holdfast-volume", &["entry::"])],
        smoke: false,
    },
    Mutation {
        name: "word-of-sealed-bytes-believed",
        bug: "a record that says of all its bytes that they came sealed is believed: forged ones are served",
        rule: "R9",
        edits: &[Edit {
            file: "crates/journal/src/format.rs",
            old: "            let opened = tag.is_some_and(|tag| {",
            new: "            let opened = own == 0 || tag.is_some_and(|tag| {",
        }],
        tests: &[lib(Layer::Unit, "holdfast-journal", &["what_came_sealed_is_kept"])],
        smoke: false,
    },
    Mutation {
        name: "header-of-another-entry",
        bug: "of several entries that are read together, the operations of all are opened with the header of the first",
        rule: "ENTRY-E1",
        edits: &[Edit {
            file: "crates/set/src/reader.rs",
            old: ".filter(|head| self.places[*head].index == index);",
            new: ".filter(|head| *head < self.places.len());",
        }],
        tests: &[lib(Layer::Unit, "holdfast-set", &["reader::"])],
        smoke: false,
    },
    Mutation {
        name: "extent-before-kept",
        bug: "a checkpoint opens all extents of a batch into one buffer, and seals the first of them with each",
        rule: "R4",
        edits: &[Edit { file: "crates/set/src/reader/fetched.rs", old: "        room.clear();\n", new: "" }],
        tests: &[lib(Layer::Unit, "holdfast-set", &["reader::"])],
        smoke: false,
    },
    Mutation {
        name: "whole-operations-for-a-few-sectors",
        bug: "a checkpoint holds whole operations of which it uses a few sectors: a batch of 1 MiB takes a GiB of memory",
        rule: "R8",
        edits: &[Edit {
            file: "crates/set/src/reader/fetched.rs",
            old: "        if call.is_dense() {\n",
            new: "        if call.is_dense() || true {\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-set", &["reader::"])],
        smoke: false,
    },
    Mutation {
        name: "damage-between-two-places",
        bug: "damage between two places of an entry that are read together fails both, and no later look finds a bad place",
        rule: "R9",
        edits: &[Edit {
            file: "crates/log/src/group.rs",
            old: "let Ok(whole) = read_from_disk(catalog, group, ReadPlace { index, offset, len }) else { return one_by_one() };",
            new: "let whole = read_from_disk(catalog, group, ReadPlace { index, offset, len })?;",
        }],
        tests: &[file(Layer::Unit, "holdfast-log", &["--test", "log"], &["places_close_to_each_other"])],
        smoke: false,
    },
    Mutation {
        name: "key-of-zeroes-taken",
        bug: "a kernel that gives zeroes for random bytes makes entries that all replicas refuse: all of them stop",
        rule: "R10",
        edits: &[Edit {
            file: ENTRY,
            old: "        assert!(*key.bytes() != [0; ENTRY_KEY_BYTES], \"R10: the key of an entry is zeroes, expected random bytes\");
",
            new: "",
        }],
        tests: &[lib(Layer::Unit, "holdfast-volume", &["entry::"])],
        smoke: false,
    },
];
