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
            file: "crates/raft/src/network.rs",
            old: "    times.min().flatten()",
            new: "    times.max().flatten()",
        }],
        tests: &[
            lib(Layer::Unit, "holdfast-raft", &["network::tests::r3_"]),
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
            old: "        self.still_ours().await?;\n        outcome\n",
            new: "        outcome\n",
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
            old: "group.submit(Some(term), payload)",
            new: "group.submit(Some(term).filter(|_| false), payload)",
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
            old: "                    let _ = answer.send(Err(WriteFailure::Gone));\n                }\n                shared.fail(WriteFailure::Gone);",
            new: "                    let _ = answer.send(Err(WriteFailure::Fenced));\n                }\n                shared.fail(WriteFailure::Fenced);",
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
            old: "        of_before(self.node.floor(group.id()), head.vote.as_ref(), from)?;\n        let _room",
            new: "        let _room",
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
];
