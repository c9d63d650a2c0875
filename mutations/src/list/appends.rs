//! When a follower answers an append (ADR 0072).

use crate::bug::{Edit, Layer, Mutation, lib};

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "append-answered-before-the-disk",
        bug: "a follower acknowledges an append that waits for its disk: a write is confirmed that only the leader has",
        rule: "R1",
        edits: &[Edit {
            file: "crates/raft/src/log_store.rs",
            old: "        let number = self.tickets.begin(carried);\n",
            new: "        let number = self.tickets.begin(carried);\n        self.tickets.settle(number, true);\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-raft", &["stored_tests::r1_a_ticket_is_told"])],
        smoke: false,
    },
    Mutation {
        name: "append-answered-for-another",
        bug: "the disk's word about one append answers the next one too, which it does not have yet",
        rule: "R1",
        edits: &[Edit {
            file: "crates/raft/src/stored.rs",
            old: "partition_point(|(of, _)| *of <= number);",
            new: "partition_point(|(of, _)| *of <= number + 1);",
        }],
        tests: &[lib(Layer::Unit, "holdfast-raft", &["stored::tests::"])],
        smoke: false,
    },
    Mutation {
        name: "append-answered-after-an-error",
        bug: "a follower acknowledges an append that its journal has refused or lost",
        rule: "R9",
        edits: &[Edit {
            file: "crates/raft/src/log_store.rs",
            old: "            let durable = result.is_ok();\n",
            new: "            let durable = true;\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-raft", &["stored_tests::r9_a_ticket_is_not_told"])],
        smoke: false,
    },
    Mutation {
        name: "copied-entry-keeps-its-ticket",
        bug: "the ticket of a request goes to a copy of its entry, which another way may bring to the disk",
        rule: "STORED-T1",
        edits: &[Edit {
            file: "crates/raft/src/config.rs",
            old: "impl Clone for Payload {
    fn clone(&self) -> Self {
        Self::new(self.0.clone())
    }
}",
            new: "impl Clone for Payload {
    fn clone(&self) -> Self {
        Self(self.0.clone(), self.1.as_ref().map(|_| crate::stored::ticket().0))
    }
}",
        }],
        tests: &[lib(Layer::Unit, "holdfast-raft", &["stored_tests::a_copy_of_an_entry_has_no_ticket"])],
        smoke: false,
    },
    Mutation {
        name: "follower-answers-through-its-core",
        bug: "a follower whose disk has an append answers only after two more hops, when openraft's core gets to it",
        rule: "R8",
        edits: &[Edit {
            file: "crates/raft/src/appender.rs",
            old: "            *place = Some(ticket);\n",
            new: "            let _ = (place, ticket);\n",
        }],
        tests: &[lib(Layer::Cluster, "holdfast-raft", &["a_follower_answers_while_its_core_is_busy"])],
        smoke: false,
    },
    Mutation {
        name: "follower-answers-behind-its-core",
        bug: "where the journal's task calls back, on a worker, openraft's core runs before the task that answers the leader",
        rule: "R8",
        edits: &[Edit {
            file: "crates/raft/src/log_store.rs",
            old: "            if last_woken_runs_first() {\n",
            new: "            if false && last_woken_runs_first() {\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-raft", &["the_answer_to_the_leader_is_first"])],
        smoke: false,
    },
    Mutation {
        name: "answer-of-an-ending-core-dropped",
        bug: "a follower whose core ends drops a call that joins it: openraft panics in the next call",
        rule: "R8",
        edits: &[Edit {
            file: "crates/raft/src/appender.rs",
            old: "if word.is_ok() && runs() {",
            new: "if word.is_ok() && (runs() || true) {",
        }],
        tests: &[lib(Layer::Unit, "holdfast-raft", &["the_answer_of_a_core_that_has_stopped_is_waited_for"])],
        smoke: false,
    },
];
