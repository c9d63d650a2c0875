//! Limits of volumes and sets: kept, told to those who are connected, and no trap for who comes again.

use crate::bug::{Edit, Layer, Mutation, lib};

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "burst-without-end",
        bug: "a limit lets every request begin at once: a busy volume takes what it can, whatever was set",
        rule: "LIMIT-L1",
        edits: &[Edit {
            file: "crates/front/src/bucket.rs",
            old: "now.max(self.owed.saturating_sub(self.burst))",
            new: "now.max(self.burst.saturating_sub(self.owed))",
        }],
        tests: &[lib(Layer::Property, "holdfast-front", &["bucket::tests::no_window_has_more"])],
        smoke: false,
    },
    Mutation {
        name: "idle-time-not-saved-up",
        bug: "what a limit has allowed and nobody used is lost: a database that writes in bursts gets a fraction of its limit",
        rule: "LIMIT-L2",
        edits: &[Edit {
            file: "crates/front/src/bucket.rs",
            old: "now.max(self.owed.saturating_sub(self.burst))",
            new: "now.max(self.owed)",
        }],
        tests: &[lib(Layer::Unit, "holdfast-front", &["bucket::tests::a_burst_begins_at_once"])],
        smoke: false,
    },
    Mutation {
        name: "place-in-a-limit-kept",
        bug: "a client that gives up while it waits for a limit, and comes again, waits longer each time, in the end for ever",
        rule: "CONN-C9",
        edits: &[Edit {
            file: "crates/front/src/throttle.rs",
            old: "                throttle.give_back(bytes, taken);\n",
            new: "                throttle.give_back(bytes, Taken { changes: taken.changes + 1, ..taken });\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-front", &["throttle::tests::a_request_that_waits_gets_other_limits"])],
        smoke: false,
    },
    Mutation {
        name: "share-of-the-set-taken-early",
        bug: "requests that wait for the limit of their volume have taken their share of the set's before: other volumes wait",
        rule: "CONN-C9",
        edits: &[Edit {
            file: "crates/front/src/throttle.rs",
            old: "self.throttles.both().into_iter().enumerate() {",
            new: "self.throttles.both().into_iter().enumerate().rev() {",
        }],
        tests: &[lib(Layer::Unit, "holdfast-front", &["throttle::tests::what_waits_for_its_volume"])],
        smoke: false,
    },
    Mutation {
        name: "end-not-seen-while-limited",
        bug: "a connection that waits for a limit does not notice that its client is gone, and keeps its slot for minutes",
        rule: "CONN-C7",
        edits: &[Edit {
            file: "crates/front/src/throttle.rs",
            old: "reset(begins.min(now + LOOK))",
            new: "reset(begins.max(now + LOOK))",
        }],
        tests: &[lib(Layer::Unit, "holdfast-front", &["what_waits_for_a_limit_ends_with_its_socket"])],
        smoke: false,
    },
    Mutation {
        name: "large-writes-not-limited",
        bug: "a write whose data has not arrived with its header passes its limit: only small writes are limited",
        rule: "CONN-C9",
        edits: &[Edit {
            file: "crates/front/src/conn/incoming.rs",
            old: "if !self.admitted && throttled.poll(cx, Some(payload as u64)).is_pending() {",
            new: "if self.admitted && throttled.poll(cx, Some(payload as u64)).is_pending() {",
        }],
        tests: &[lib(Layer::Unit, "holdfast-front", &["who_waits_for_a_limit_holds_nothing"])],
        smoke: false,
    },
    Mutation {
        name: "limit-for-later-connections-only",
        bug: "a limit that is set while a noisy client is connected does nothing until it connects again",
        rule: "SET-S18",
        edits: &[Edit { file: "crates/set/src/server/follow.rs", old: "        self.follow_limits();\n", new: "" }],
        tests: &[lib(Layer::Unit, "holdfast-set", &["a_limit_is_for_all_connections_whenever_they_came"])],
        smoke: false,
    },
    Mutation {
        name: "limit-outlives-its-volume",
        bug: "the limit of a deleted volume stays in the set's state for ever",
        rule: "SET-S18",
        edits: &[Edit {
            file: "crates/control/src/set/volumes.rs",
            old: "                self.limits.put(Some(*volume), Limit::NONE);\n",
            new: "",
        }],
        tests: &[lib(Layer::Unit, "holdfast-control", &["a_limit_is_that_of_its_volume_and_ends_with_it"])],
        smoke: false,
    },
];
