//! A gateway pair with an etcd: nothing flushed goes with its gateway, and no tenure that is over answers.

use super::{Edit, Layer, Mutation, Test, file, lib};

const RULE: &str = "crates/control/src/pair.rs";
const SEAT: &str = "crates/etcd/src/seat.rs";

const UNIT: Test = lib(Layer::Property, "holdfast-control", &["pair::"]);
const STORIES: Test = file(Layer::Story, "holdfast-control", &["--test", "stories"], &[]);
const ANSWERS: Test = lib(Layer::Unit, "holdfast-gateway", &["set::head::durable::"]);
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
            file: "crates/gateway/src/set/head/durable.rs",
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
            file: "crates/gateway/src/set/head/durable.rs",
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
];
