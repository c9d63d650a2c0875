//! Bugs of the kinds that once survived all tests: each is held by two layers where that is possible
//! (docs/proof/survivors.md).

use crate::bug::{Edit, Layer, Mutation, SIMULATION, Test, file, lib, scene};

const HISTORIES: Test = file(
    Layer::Property,
    "holdfast-sim",
    &["--test", "histories"],
    &["volumes_read_as_written_and_the_store_holds_what_is_named"],
);

/// Answers of a device once another life has the set.
const TAKEN: Test = lib(Layer::Story, "holdfast-set", &["device::tests::taken::"]);

const LOOKS: Test = lib(Layer::Unit, "holdfast-set", &["head::tests::looks::"]);

const LEASE_RPC: &str = "crates/attach/src/keeper/lease_rpc.rs";

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "look-counts-from-its-answer",
        bug: "a read of the head counts from its answer on: answers leave for seconds after another life has begun",
        rule: "HEAD-H1",
        edits: &[Edit {
            file: "crates/set/src/head.rs",
            old: "        let sent = boot_now();\n        self.looks.send(sent);\n        let looked = self.look_once().await;\n",
            new: "        let looked = self.look_once().await;\n        let sent = boot_now();\n        self.looks.send(sent);\n",
        }],
        tests: &[LOOKS],
        smoke: false,
    },
    Mutation {
        name: "commit-counts-from-its-answer",
        bug: "a commit of the head counts as a look from its answer on",
        rule: "HEAD-H1",
        edits: &[Edit {
            file: "crates/set/src/head/commit.rs",
            old: "                Ok(_) => {\n                    // The head it replaced was this life's, or there was none.\n",
            new: "                Ok(_) => {\n                    let sent = boot_now();\n",
        }],
        tests: &[LOOKS],
        smoke: false,
    },
    Mutation {
        name: "joint-lease-of-one-quorum",
        bug: "in a joint membership one quorum is enough for a read lease: the other part may have another leader",
        rule: "R3",
        edits: &[Edit {
            file: "crates/raft/src/acks.rs",
            old: "    let first = parts.next()??;\n    parts.try_fold(first, |all, part| Some(all.earlier_of(part?)))",
            new: "    parts.by_ref().flatten().reduce(Acked::earlier_of)",
        }],
        tests: &[
            lib(Layer::Unit, "holdfast-raft", &["acks::tests::r3_"]),
            scene(&["a_gateway_that_was_alone_serves_with_a_quorum_once_it_has_company"]),
        ],
        smoke: false,
    },
    Mutation {
        name: "written-without-a-look",
        bug: "a write, a trim or a zeroing is answered although the store's head names another life",
        rule: "HEAD-H1",
        edits: &[Edit {
            file: "crates/set/src/device.rs",
            old: "        self.still_ours().await?;\n        self.server().traced.end(",
            new: "        self.server().traced.end(",
        }],
        tests: &[TAKEN, HISTORIES],
        smoke: false,
    },
    Mutation {
        name: "flushed-without-a-look",
        bug: "a flush is answered although the store's head names another life",
        rule: "HEAD-H1",
        edits: &[Edit {
            file: "crates/set/src/device.rs",
            old: "            self.still_ours().await?;\n            self.check(self.server().may_write())\n",
            new: "            self.check(self.server().may_write())\n",
        }],
        tests: &[TAKEN, HISTORIES],
        smoke: false,
    },
    Mutation {
        name: "submitted-in-any-term",
        bug: "a sequencer's entries are taken in a later term of its gateway than that of the grant",
        rule: "SEQ-S1",
        edits: &[Edit {
            file: "crates/set/src/sequencer.rs",
            old: "group.submit(Some(term), payload, reply)",
            new: "group.submit(Some(term).filter(|_| false), payload, reply)",
        }],
        tests: &[lib(Layer::Unit, "holdfast-set", &["sequencer::"]), SIMULATION],
        smoke: false,
    },
    Mutation {
        name: "stopped-group-answered-with-an-error",
        bug: "a write that a stopped group does not take is answered with an error: a file system takes it for a broken disk",
        rule: "R8",
        edits: &[Edit {
            file: "crates/set/src/sequencer.rs",
            old: "            let _ = answer.send(Err(WriteFailure::Gone));\n        }\n        self.fail(&mut queue, WriteFailure::Gone);",
            new: "            let _ = answer.send(Err(WriteFailure::Fenced));\n        }\n        self.fail(&mut queue, WriteFailure::Fenced);",
        }],
        tests: &[lib(Layer::Unit, "holdfast-set", &["sequencer::"]), HISTORIES],
        smoke: false,
    },
    Mutation {
        name: "trim-is-no-change",
        bug: "attach sends a trim beside a write that it overlaps: sent again, it takes away what was written after it",
        rule: "ATTACH-M1",
        edits: &[Edit {
            file: "crates/attach/src/machine/table.rs",
            old: "CommandOut::Write { .. } | CommandOut::Zero { .. } | CommandOut::Trim { .. })",
            new: "CommandOut::Write { .. } | CommandOut::Zero { .. })",
        }],
        tests: &[lib(Layer::Story, "holdfast-attach", &["machine::"]), SIMULATION],
        smoke: false,
    },
    Mutation {
        name: "learns-again-before-its-log-is-gone",
        bug: "a readmission is noted before the log is dropped: if that fails, a damaged log takes part",
        rule: "QUARANTINE-Q3",
        edits: &[Edit {
            file: "crates/raft/src/readmit.rs",
            old: "            log.drop_group().await.map_err(io)?;\n            let next = Quarantine { stage: Stage::Rejoining { since }, ..note.clone() };\n            quarantine::save(dir, id, &next).map_err(io)?;\n",
            new: "            let next = Quarantine { stage: Stage::Rejoining { since }, ..note.clone() };\n            quarantine::save(dir, id, &next).map_err(io)?;\n            log.drop_group().await.map_err(io)?;\n",
        }],
        tests: &[
            lib(Layer::Cluster, "holdfast-raft", &["heal_tests::q3_"]),
            scene(&["a_readmission_that_is_cut_short_is_asked_for_again"]),
        ],
        smoke: false,
    },
    Mutation {
        name: "ended-before-its-log-is-gone",
        bug: "a group counts as ended before its log is dropped: if that fails, the log stays for ever",
        rule: "END-E1",
        edits: &[Edit {
            file: "crates/raft/src/end_group.rs",
            old: "            self.log().group(id).drop_group().await.map_err(io)?;\n            end_marker::save(&dir, id, Stage::Ended, &ended).map_err(io)?;\n",
            new: "            end_marker::save(&dir, id, Stage::Ended, &ended).map_err(io)?;\n            self.log().group(id).drop_group().await.map_err(io)?;\n",
        }],
        tests: &[
            lib(Layer::Cluster, "holdfast-raft", &["end_group_tests::e1_"]),
            scene(&["of_a_set_whose_deletion_is_cut_short_nothing_is_left"]),
        ],
        smoke: false,
    },
    Mutation {
        name: "stopped-before-the-note",
        bug: "a group is stopped before the note of its end is durable: if that fails, the group runs nowhere and starts again",
        rule: "END-E1",
        edits: &[Edit {
            file: "crates/raft/src/end_group.rs",
            old: "            end_marker::save(&dir, id, Stage::Ending, &known).map_err(io)?;\n            self.stop_group(id).await;\n",
            new: "            self.stop_group(id).await;\n            end_marker::save(&dir, id, Stage::Ending, &known).map_err(io)?;\n",
        }],
        tests: &[lib(Layer::Cluster, "holdfast-raft", &["end_group_tests::e1_"])],
        smoke: false,
    },
    Mutation {
        name: "state-of-a-leader-before-the-removal",
        bug: "a member that learns a group again takes a state snapshot of a leader of before its removal",
        rule: "QUARANTINE-Q4",
        edits: &[Edit {
            file: "crates/raft/src/server.rs",
            old: "        of_before(self.node.floor(group.id()), head.vote.as_ref(), from)?;\n        group.promise",
            new: "        group.promise",
        }],
        tests: &[lib(Layer::Cluster, "holdfast-raft", &["floor_tests::"])],
        smoke: false,
    },
    Mutation {
        name: "state-damaged-on-its-way",
        bug: "a state snapshot that was changed on its way is installed",
        rule: "R9",
        edits: &[Edit {
            file: "crates/raft/src/snapshot_pieces.rs",
            old: "    if found != head.crc {",
            new: "    if found != head.crc && data.is_empty() {",
        }],
        tests: &[
            lib(Layer::Unit, "holdfast-raft", &["snapshot_pieces::", "floor_tests::"]),
            scene(&["a_state_snapshot_that_is_damaged_on_its_way_is_sent_again"]),
        ],
        smoke: false,
    },
    Mutation {
        name: "known-group-counts-as-younger",
        bug: "a group of which the journal has lost the vote is begun anew, as if the loss could not be of it",
        rule: "QUARANTINE-Q5",
        edits: &[Edit {
            file: "crates/raft/src/quarantine.rs",
            old: "    state.damaged.is_some() && state.unknown && empty\n",
            new: "    state.damaged.is_some() && empty\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-raft", &["quarantine::"])],
        smoke: false,
    },
    Mutation {
        name: "younger-than-an-earlier-process",
        bug: "a set that was created while an earlier process of this disk was registered counts as younger than this one",
        rule: "QUARANTINE-Q5",
        edits: &[Edit {
            file: "crates/gateway/src/node/younger.rs",
            old: "is_some_and(|last| is_own(last.boot, last.nonce));",
            new: "is_some_and(|last| is_own(last.boot, last.nonce) || last.boot > 0);",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["node::younger::"])],
        smoke: false,
    },
    Mutation {
        name: "life-of-an-earlier-process",
        bug: "a life that an earlier process of this disk has used counts as drawn by this one",
        rule: "QUARANTINE-Q5",
        edits: &[Edit {
            file: "crates/gateway/src/lives.rs",
            old: "known && self.earlier.is_none_or(|earlier| counter > earlier)",
            new: "known && self.earlier.is_none_or(|earlier| counter > earlier || counter > 0)",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["lives::tests::a_life_is_of_the_process_that_drew_it"])],
        smoke: false,
    },
    Mutation {
        name: "new-set-is-healed-first",
        bug: "two of three gateways that have lost a journal file cannot begin a new set: each waits to be healed",
        rule: "QUARANTINE-Q5",
        edits: &[Edit {
            file: "crates/gateway/src/node/starts.rs",
            old: "let prepared = if younger {",
            new: "let prepared = if younger && id.0 == 0 {",
        }],
        tests: &[scene(&["files_that_are_gone_unreadable_or_rotten"])],
        smoke: false,
    },
    Mutation {
        name: "oldest-life-is-not-compared",
        bug: "a disk of which the oldest life that it remembers has the registered number, and is another life, speaks for the member",
        rule: "CLUSTER-C3",
        edits: &[Edit {
            file: "crates/raft/src/lives.rs",
            old: "is_some_and(|(oldest, _)| *oldest <= seen)",
            new: "is_some_and(|(oldest, _)| *oldest < seen)",
        }],
        tests: &[lib(Layer::Unit, "holdfast-raft", &["lives::"])],
        smoke: false,
    },
    Mutation {
        name: "purged-ahead-of-its-entry",
        bug: "on a full disk a purge goes ahead of the entry that it names: the log goes on behind another leader's entry",
        rule: "JOURNAL-J5",
        edits: &[Edit {
            file: "crates/journal/src/write.rs",
            old: "is_some_and(|entry| entry.term == upto.term);",
            new: "is_some_and(|entry| entry.term <= upto.term);",
        }],
        tests: &[file(
            Layer::Unit,
            "holdfast-journal",
            &["--test", "journal"],
            &["a_purge_of_what_is_not_on_the_disk_yet"],
        )],
        smoke: false,
    },
    Mutation {
        name: "committed-before-its-entry",
        bug: "the note that an entry is committed comes to the disk before the entry: after a crash another leader's is applied",
        rule: "LOG-L1",
        edits: &[Edit {
            file: "crates/log/src/writer.rs",
            old: "if !chunk.ops.is_empty() && jobs.iter().all(|job| job.ops.is_empty()) {",
            new: "if !chunk.ops.is_empty() {",
        }],
        tests: &[file(
            Layer::Crash,
            "holdfast-log",
            &["--test", "log"],
            &["what_is_noted_as_committed_is_on_the_disk"],
        )],
        smoke: false,
    },
    Mutation {
        name: "any-root-of-that-checkpoint",
        bug: "a commit counts as done although the head names another root for the same entry: its objects are deleted as garbage",
        rule: "HEAD-H2",
        edits: &[Edit {
            file: "crates/set/src/head/commit.rs",
            old: "if found.covered == head.covered && found.content == head.content {",
            new: "if found.covered == head.covered {",
        }],
        tests: &[lib(Layer::Unit, "holdfast-set", &["head::tests::what_is_covered_never_goes_back"])],
        smoke: false,
    },
    Mutation {
        name: "status-behind-the-end",
        bug: "a client that knows the size of before a shrink is told that what was discarded are holes of its device",
        rule: "MACHINE-M2",
        edits: &[Edit {
            file: "crates/set/src/device.rs",
            old: "            self.still_inside(offset, len)?;\n            Ok(out)\n",
            new: "            Ok(out)\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-set", &["device::tests::ends::"])],
        smoke: false,
    },
    Mutation {
        name: "read-behind-the-end",
        bug: "a read that was on its way while its volume shrank is answered with what was discarded",
        rule: "MACHINE-M2",
        edits: &[Edit {
            file: "crates/set/src/device.rs",
            old: "        self.still_inside(offset, u64::from(len))?;\n",
            new: "",
        }],
        tests: &[lib(Layer::Unit, "holdfast-set", &["device::tests::ends::"]), HISTORIES],
        smoke: false,
    },
    Mutation {
        name: "waits-only-if-all-is-unsaved",
        bug: "in a pair, a read is answered at once if a part of it is in the store: a takeover loses the rest, which was read",
        rule: "PAIR-P4",
        edits: &[Edit {
            file: "crates/set/src/device.rs",
            old: "pieces.iter().any(|piece| piece.source != Source::Map)",
            new: "pieces.iter().all(|piece| piece.source != Source::Map)",
        }],
        tests: &[lib(Layer::Unit, "holdfast-set", &["device::tests::kept_back::"])],
        smoke: false,
    },
    Mutation {
        name: "left-store-keeps-the-key",
        bug: "a store that a set has left, and that was away, keeps the wrapped key of the deleted set; its objects are deleted",
        rule: "R10",
        edits: &[Edit {
            file: "crates/set/src/tombstone.rs",
            old: " || !within(&at, several.mend_left_heads(set)).await? {",
            new: " {",
        }],
        tests: &[lib(Layer::Unit, "holdfast-set", &["tombstone::"])],
        smoke: false,
    },
    Mutation {
        name: "shut-down-is-passed-on",
        bug: "attach hands the answer that a server shuts down to the file system, and goes on",
        rule: "ATTACH-M5",
        edits: &[Edit {
            file: "crates/attach/src/machine/state.rs",
            old: "if matches!(outcome, Err(Errno::Io | Errno::Shutdown)) {",
            new: "if matches!(outcome, Err(Errno::Io)) {",
        }],
        tests: &[lib(
            Layer::Story,
            "holdfast-attach",
            &["machine::state::tests::only_a_final_word_or_an_error_answer"],
        )],
        smoke: false,
    },
    Mutation {
        name: "token-used-before-it-is-kept",
        bug: "attach uses a new token before it is in the file: if it dies in between, the next process has a token that no gateway accepts, and the devices are lost",
        rule: "TOKEN-P1",
        edits: &[
            Edit {
                file: LEASE_RPC,
                old: "    shared.act(|machine, now, out| machine.granted_without(now, request, grant, volumes.len(), lost, out));\n",
                new: "",
            },
            Edit {
                file: LEASE_RPC,
                old: "    if let Some((file, owner)) = kept {\n",
                new: "    let (used, gone) = (grant.clone(), lost.clone());\n    shared.act(|machine, now, out| machine.granted_without(now, request, used, volumes.len(), gone, out));\n    if let Some((file, owner)) = kept {\n",
            },
        ],
        tests: &[lib(Layer::Unit, "holdfast-attach", &["a_token_is_in_the_file_before_it_is_used"])],
        smoke: false,
    },
    Mutation {
        name: "sockets-outlive-their-incarnation",
        bug: "the sockets of a lost gateway stay open: a write in its receive buffer is carried out after its replay, over a later write",
        rule: "ATTACH-M2",
        edits: &[Edit {
            file: "crates/attach/src/shared.rs",
            old: "if inner.era.incarnation <= incarnation {",
            new: "if inner.era.incarnation < incarnation {",
        }],
        tests: &[lib(Layer::Unit, "holdfast-attach", &["the_sockets_of_a_lost_incarnation_close_at_once"])],
        smoke: false,
    },
    Mutation {
        name: "checkpoint-outlives-a-rollback",
        bug: "the copy of a checkpoint under way stays after a rollback: the head names what was there before, and a recovery brings it back",
        rule: "SET-S12",
        edits: &[Edit {
            file: "crates/volume/src/machine.rs",
            old: "        self.copy = None;\n        self.sealed.take()",
            new: "        self.sealed.take()",
        }],
        tests: &[lib(Layer::Unit, "holdfast-volume", &["machine::tests::rollbacks::"])],
        smoke: false,
    },
    Mutation {
        name: "slots-forget-what-lives",
        bug: "a connection of a later epoch does not wait for the end of one of the earlier epoch in its slot",
        rule: "SLOT-S1",
        edits: &[Edit {
            file: "crates/front/src/slots.rs",
            old: "volume.slots.retain(|_, slot| !slot.living.is_empty());",
            new: "volume.slots.clear();",
        }],
        tests: &[lib(Layer::Unit, "holdfast-front", &["slots::tests::s1_"])],
        smoke: false,
    },
    Mutation {
        name: "asked-again-after-the-end",
        bug: "reads that waited for the store are asked for again on a connection whose set is no longer served",
        rule: "CONN-C2",
        edits: &[Edit {
            file: "crates/front/src/conn.rs",
            old: "due(next) else { return Ok(false) };\n            if self.signals.is_closed() {",
            new: "due(next) else { return Ok(false) };\n            if self.running.len() > self.requests_max {",
        }],
        tests: &[lib(Layer::Story, "holdfast-front", &["tests::faults::c2_"])],
        smoke: false,
    },
    Mutation {
        name: "short-read-is-passed-on",
        bug: "a client gets fewer bytes than it has asked for, and takes what comes next for the rest",
        rule: "R9",
        edits: &[Edit {
            file: "crates/front/src/conn.rs",
            old: "                if found != len {",
            new: "                if found > len {",
        }],
        tests: &[lib(Layer::Story, "holdfast-front", &["tests::serving::a_read_that_the_device_answers_too_short"])],
        smoke: false,
    },
];
