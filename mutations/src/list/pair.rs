//! A gateway pair with an etcd: flushed data survives its gateway, an ended tenure answers nothing, snapshots come
//! back, and nothing is written that the other gateway cannot read.

use crate::bug::{Edit, Layer, Mutation, Test, file, lib};

const RULE: &str = "crates/control/src/pair.rs";
const ROSTER: &str = "crates/control/src/pair/roster.rs";
const SEAT: &str = "crates/etcd/src/seat.rs";

const UNIT: Test = lib(Layer::Property, "holdfast-control", &["pair::"]);
const STORIES: Test = file(Layer::Story, "holdfast-control", &["--test", "stories"], &[]);
const ANSWERS: Test = lib(Layer::Unit, "holdfast-set", &["head::durable::"]);
const TAKEOVER: Test = lib(Layer::Unit, "holdfast-pair", &["takeover::"]);
const CONTRACT: Test = file(Layer::Unit, "holdfast-etcd", &["--test", "seat"], &[]);
const SCENARIO: Test = Test::Scenario("etcd-pair");

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "pair-serves-the-whole-ttl",
        bug: "a holder answers for as long as the etcd keeps its lease by the holder's own clock, which may run slower",
        rule: "R3",
        edits: &[Edit { file: RULE, old: "    ttl / TTL_PARTS * SERVE_PARTS\n", new: "    ttl\n" }],
        tests: &[UNIT, STORIES, SCENARIO],
        smoke: false,
    },
    Mutation {
        name: "pair-comes-back-from-overdue",
        bug: "the answer to a keep-alive that waited in a socket while the process was paused renews its tenure",
        rule: "R3",
        edits: &[Edit {
            file: RULE,
            old: "        if self.may_answer(now).is_ok() {\n            let until",
            new: "        if now.into().now >= sent {\n            let until",
        }],
        tests: &[UNIT],
        smoke: false,
    },
    Mutation {
        name: "pair-takes-anothers-sets",
        bug: "a pair takes over the sets of any cluster in its store, also those that were recovered elsewhere",
        rule: "R2",
        edits: &[Edit {
            file: RULE,
            old: "if adopt == Some(found) { Whose::GivenUp }",
            new: "if adopt.is_none_or(|adopt| adopt == found) { Whose::GivenUp }",
        }],
        tests: &[UNIT, STORIES, SCENARIO],
        smoke: false,
    },
    Mutation {
        name: "pair-answers-without-its-seat",
        bug: "an answer is sent after the tenure has ended, because the head that was read seconds ago is still its own",
        rule: "R3",
        edits: &[Edit {
            file: "crates/set/src/head/durable.rs",
            old: "pair.may_answer().map_err(|ended| ended.to_string())",
            new: "pair.may_answer().or(Ok::<_, String>(()))",
        }],
        tests: &[ANSWERS, SCENARIO],
        smoke: false,
    },
    Mutation {
        name: "pair-flush-does-not-wait",
        bug: "a pair answers a flush before the store has the data: the data is lost with the gateway",
        rule: "R1",
        edits: &[Edit {
            file: "crates/set/src/head/durable.rs",
            old: "        let Some(upto) = unsaved(host) else { return };",
            new: "        let Some(upto) = unsaved(host).filter(|upto| upto.0 == 0) else { return };",
        }],
        tests: &[SCENARIO],
        smoke: false,
    },
    Mutation {
        name: "pair-key-not-looked-at",
        bug: "a live lease counts as the seat, although its key was deleted and another gateway has the seat",
        rule: "R3",
        edits: &[Edit {
            file: SEAT,
            old: "            None => KeepAliveResult::Lost(\"its key is gone\".into()),",
            new: "            None => KeepAliveResult::For(seconds(ttl)),",
        }],
        tests: &[CONTRACT],
        smoke: false,
    },
    Mutation {
        name: "pair-level-by-one-word",
        bug: "a pair uses the feature level of one gateway before the other one has reported its own",
        rule: "R11",
        edits: &[Edit {
            file: ROSTER,
            old: ".filter(|_| gateways.len() > 1)",
            new: ".filter(|_| !gateways.is_empty())",
        }],
        tests: &[UNIT],
        smoke: false,
    },
    Mutation {
        name: "pair-seat-for-an-older-build",
        bug: "a gateway with a lower feature level than the pair gets the seat, and cannot open the sets' heads",
        rule: "R11",
        edits: &[Edit {
            file: ROSTER,
            old: "if knows < self.level {",
            new: "if knows.saturating_add(1) < self.level {",
        }],
        tests: &[UNIT],
        smoke: false,
    },
    Mutation {
        name: "pair-takeover-drops-snapshots",
        bug: "a takeover forgets the snapshots that the head lists: the next sweep deletes objects that only they name",
        rule: "R7",
        edits: &[Edit {
            file: "crates/pair/src/takeover.rs",
            old: "        let raised = match recovery::raise(&found, id.cluster()",
            new: "        let mut found = found;\n        found.head.links.snapshots = Default::default();\n        let raised = match recovery::raise(&found, id.cluster()",
        }],
        tests: &[TAKEOVER, SCENARIO],
        smoke: false,
    },
    Mutation {
        name: "pair-answers-before-the-head-lists",
        bug: "the end of a snapshot is answered before the set's head says so: a takeover brings it back, and a gateway that was replaced answers as well",
        rule: "R1",
        edits: &[Edit {
            file: "crates/gateway/src/admin/snapshot.rs",
            old: "        while !is_listed(set) {",
            new: "        while false && !is_listed(set) {",
        }],
        tests: &[TAKEOVER],
        smoke: false,
    },
    Mutation {
        name: "tenure-outlives-a-step-back",
        bug: "the holder's boot clock goes back, and it answers for longer than the etcd keeps its seat",
        rule: "PAIR-P1",
        edits: &[Edit {
            file: RULE,
            old: "} else if !reading.counts(self.sent) {",
            new: "} else if reading.went_back.is_none() && !reading.counts(self.sent) {",
        }],
        tests: &[UNIT],
        smoke: false,
    },
];
