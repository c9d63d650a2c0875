//! Serving that follows the owner of a set.

use crate::bug::{Edit, Layer, Mutation, Test, lib};

const FOLLOWING: &str = "crates/control/src/following.rs";
const LOCATED: &str = "crates/control/src/set/located.rs";
const PLANNED: &str = "crates/gateway/src/node/planned.rs";
const DOES: &str = "crates/gateway/src/node/following.rs";

const MOVES: Test = lib(Layer::Property, "holdfast-control", &["leadership_is_never_passed_back_and_forth"]);
const CASES: Test = lib(Layer::Unit, "holdfast-control", &["following::"]);
const PLACE: Test = lib(Layer::Unit, "holdfast-control", &["the_place_is_that_of_the_present_owner"]);
const VOTERS: Test = lib(Layer::Unit, "holdfast-gateway", &["voters_follow_an_owner_only_if_the_policy_names_no_home"]);

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "following-as-near",
        bug: "leadership is handed to a voter that is as near as the leader, and back",
        rule: "FOLLOW-F1",
        edits: &[Edit {
            file: FOLLOWING,
            old: "if nearest <= Nearness::of(&me.locality, place) {",
            new: "if nearest < Nearness::of(&me.locality, place) {",
        }],
        tests: &[MOVES],
        smoke: false,
    },
    Mutation {
        name: "following-a-young-leadership",
        bug: "leadership moves again right after a failover or another move",
        rule: "FOLLOW-F2",
        edits: &[Edit { file: FOLLOWING, old: "if view.led < calm {", new: "if view.led > Duration::MAX {" }],
        tests: &[CASES, MOVES],
        smoke: false,
    },
    Mutation {
        name: "following-to-a-witness",
        bug: "leadership is handed to a voter that cannot serve",
        rule: "FOLLOW-F1",
        edits: &[Edit {
            file: FOLLOWING,
            old: "let able = view.voters.iter().filter(|voter| voter.id != view.me && voter.serves && voter.close);",
            new: "let able = view.voters.iter().filter(|voter| voter.id != view.me && voter.close);",
        }],
        tests: &[CASES, MOVES],
        smoke: false,
    },
    Mutation {
        name: "following-while-busy",
        bug: "leadership moves in the middle of a rollback, or under the client of a plain export",
        rule: "FOLLOW-F3",
        edits: &[Edit {
            file: FOLLOWING,
            old: "Some(busy) => return Choice::Stay(Stay::Busy(busy)),",
            new: "Some(_) => {}",
        }],
        tests: &[CASES],
        smoke: false,
    },
    Mutation {
        name: "following-all-at-once",
        bug: "all sets whose owners stand in a region go at once to the gateway that comes back there",
        rule: "FOLLOW-F4",
        edits: &[Edit {
            file: FOLLOWING,
            old: "now >= TURN && self.given.len() < TURNS_MAX",
            new: "now >= TURN && self.given.len() < usize::MAX",
        }],
        tests: &[CASES],
        smoke: false,
    },
    Mutation {
        name: "following-by-a-new-leader-at-once",
        bug: "a new leader of group 0 gives turns beside those of the last one",
        rule: "FOLLOW-F4",
        edits: &[Edit {
            file: FOLLOWING,
            old: "now >= TURN && self.given.len() < TURNS_MAX",
            new: "now >= Duration::ZERO && self.given.len() < TURNS_MAX",
        }],
        tests: &[CASES],
        smoke: false,
    },
    Mutation {
        name: "following-to-one-that-was-drained-meanwhile",
        bug: "leadership goes to a voter that was drained, or lags, since its turn was asked for",
        rule: "FOLLOW-F1",
        edits: &[Edit {
            file: DOES,
            old: "able && sight.place.as_ref() == place",
            new: "(able || place.is_some()) && sight.place.as_ref() == place",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["a_move_that_waited_for_its_turn_is_looked_at_again"])],
        smoke: false,
    },
    Mutation {
        name: "place-of-an-earlier-grant",
        bug: "a late word of an earlier owner says where the present one stands",
        rule: "SET-S17",
        edits: &[Edit { file: LOCATED, old: "if current != Some(epoch) {", new: "if current.is_none() {" }],
        tests: &[PLACE],
        smoke: false,
    },
    Mutation {
        name: "place-of-another-owner",
        bug: "a new owner has the place of the one before",
        rule: "SET-S17",
        edits: &[Edit {
            file: LOCATED,
            old: "is_none_or(|lease| lease.owner != *owner)",
            new: "is_none_or(|lease| lease.owner == *owner)",
        }],
        tests: &[PLACE],
        smoke: false,
    },
    Mutation {
        name: "voters-follow-into-a-forbidden-region",
        bug: "the voters of a set follow its owner into a region where none may be",
        rule: "ADR 0055",
        edits: &[Edit {
            file: PLANNED,
            old: "policy.home.is_none() && !policy.forbidden.contains(region)",
            new: "policy.home.is_none()",
        }],
        tests: &[VOTERS],
        smoke: false,
    },
];
