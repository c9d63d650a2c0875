//! The stores of a living set are changed.

use super::{Edit, Layer, Mutation, Test, file, lib};

const MOVES: &str = "crates/store/src/quorum/moves.rs";
const QUORUM: &str = "crates/store/src/quorum.rs";
const MOVER: &str = "crates/gateway/src/set/mover.rs";
const PLACEMENT: &str = "crates/types/src/placement.rs";

const LISTS: Test = lib(Layer::Property, "holdfast-store", &["quorum::moves::tests::"]);
const STEPS: Test = lib(Layer::Unit, "holdfast-control", &["cluster::placement::"]);
const FILLED: Test = lib(Layer::Unit, "holdfast-gateway", &["set::mover::"]);
const MOVED: Test = file(Layer::Simulation, "holdfast-sim", &["--test", "seeds"], &["the_stores_of_a_set_are_changed"]);

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "list-ended-over-another-head",
        bug: "a list of stores is ended whatever its head is by then: a checkpoint that others made meanwhile goes along uncompared",
        rule: "L1",
        edits: &[
            Edit { file: MOVES, old: "if head.version != *expected {", new: "if false && head.version != *expected {" },
            Edit {
                file: MOVES,
                old: "first.swap_register(&first.key(set), Some(expected), last.encode(rand::random())).await?;",
                new: "first.swap_register(&first.key(set), Some(&head.version), last.encode(rand::random())).await?;",
            },
        ],
        tests: &[LISTS],
        smoke: false,
    },
    Mutation {
        name: "object-counts-in-one-list",
        bug: "while stores are changed an object counts once the stores of one list have it",
        rule: "L4",
        edits: &[Edit {
            file: QUORUM,
            old: "self.counting().iter().all(|register| register.count(done) >= register.w)",
            new: "self.counting().iter().any(|register| register.count(done) >= register.w)",
        }],
        tests: &[LISTS, MOVED],
        smoke: false,
    },
    Mutation {
        name: "unknown-list-followed",
        bug: "a store that says that the set has moved is believed, wherever to",
        rule: "L2",
        edits: &[Edit { file: MOVES, old: "if moved.to != next.text {", new: "if false && moved.to != next.text {" }],
        tests: &[LISTS],
        smoke: false,
    },
    Mutation {
        name: "decided-change-abandoned",
        bug: "a change of stores is abandoned although the set's leader may have ended the list by then",
        rule: "P1",
        edits: &[Edit {
            file: PLACEMENT,
            old: "(Some((PlacementPhase::Filling, _)), None) => next.stores == self.stores,",
            new: "(Some(_), None) if next.stores == self.stores => true,",
        }],
        tests: &[STEPS],
        smoke: false,
    },
    Mutation {
        name: "list-ended-before-it-was-filled",
        bug: "the new stores count before they were compared with what is kept",
        rule: "V3",
        edits: &[Edit {
            file: MOVER,
            old: "one.backlog.compared && one.backlog.named == 0 && one.standing.now.is_none();",
            new: "one.standing.now.is_none();",
        }],
        tests: &[FILLED, MOVED],
        smoke: false,
    },
];
