//! A gateway pair with an etcd: nothing flushed goes with its gateway, no tenure that is over answers, snapshots come back, and nothing is written that the other gateway
//! does not read.

use super::{Edit, Layer, Mutation, Test, file, lib};

const RULE: &str = "crates/control/src/pair.rs";
const ROSTER: &str = "crates/control/src/pair/roster.rs";
const SEAT: &str = "crates/etcd/src/seat.rs";

const UNIT: Test = lib(Layer::Property, "holdfast-control", &["pair::"]);
const STORIES: Test = file(Layer::Story, "holdfast-control", &["--test", "stories"], &[]);
const ANSWERS: Test = lib(Layer::Unit, "holdfast-gateway", &["set::head::durable::"]);
const TAKEOVER: Test = lib(Layer::Unit, "holdfast-gateway", &["pair::takeover::"]);
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
        bug: "the answer to a keep-alive that lay in a socket while the process stood still brings its tenure back",
        rule: "R3",
        edits: &[Edit {
            file: RULE,
            old: "        if self.may_answer(now).is_ok() {\n            self.until",
            new: "        if now >= sent {\n            self.until",
        }],
        tests: &[UNIT],
        smoke: false,
    },
    Mutation {
        name: "pair-takes-anothers-sets",
        bug: "a pair takes over the sets of whatever cluster is in its store, also those that a person recovered elsewhere",
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
        bug: "an answer leaves although the tenure is over: the head that was looked at seconds ago is still ours",
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
        bug: "a flush of a pair is answered before the store has what it covers, and goes with the gateway",
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
        bug: "a lease that lives counts as the seat, although its key was deleted and another gateway has it",
        rule: "R3",
        edits: &[Edit {
            file: SEAT,
            old: "            None => Kept::Lost(\"its key is gone\".into()),",
            new: "            None => Kept::For(seconds(ttl)),",
        }],
        tests: &[CONTRACT],
        smoke: false,
    },
    Mutation {
        name: "pair-level-by-one-word",
        bug: "a pair is at what one gateway's build knows, before the other one has said anything",
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
        bug: "a gateway whose build knows less than the pair is at gets the seat, and does not open the sets' heads",
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
        bug: "a takeover lets go of the snapshots that the head lists: the next sweep deletes what only they name",
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
];
