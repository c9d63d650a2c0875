//! The way of a write from its connection to the group and of its answer back: who submits it, and who answers.

use crate::bug::{Edit, Layer, Mutation, Test, lib};

const SEQUENCER: &str = "crates/set/src/sequencer.rs";
const QUEUE: &str = "crates/set/src/sequencer/queue.rs";

const SEQUENCES: Test = lib(Layer::Unit, "holdfast-set", &["sequencer::"]);

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "answered-before-an-earlier-entry",
        bug: "an entry that comes back before an earlier one has that one answered as written, too: it may be refused yet",
        rule: "SEQ-S5",
        edits: &[Edit {
            file: QUEUE,
            old: "self.flights.front_mut()?.came.take()?",
            new: "self.flights.front_mut()?.came.take().unwrap_or(Ok(Vec::new()))",
        }],
        tests: &[SEQUENCES],
        smoke: false,
    },
    Mutation {
        name: "two-tasks-submit-at-once",
        bug: "an entry is taken while the one before it is still on its way to the group: it may get there first, and every replica refuses both",
        rule: "SEQ-S1",
        edits: &[Edit { file: QUEUE, old: "!self.submitting && may_leave(", new: "may_leave(" }],
        tests: &[SEQUENCES],
        smoke: false,
    },
    Mutation {
        name: "released-and-forgotten",
        bug: "a write that its connection does not submit itself, because something is in flight, is left to nobody: it waits until that is back",
        rule: "R8",
        edits: &[Edit {
            file: SEQUENCER,
            old: "if !(alone && self.submitter.submits_now(&self.shared)) {",
            new: "if alone && !self.submitter.submits_now(&self.shared) {",
        }],
        tests: &[SEQUENCES],
        smoke: false,
    },
    Mutation {
        name: "entry-on-its-way-dropped",
        bug: "an epoch ends while a connection's task submits an entry, and nobody goes on with the call to the group",
        rule: "R8",
        edits: &[Edit {
            file: SEQUENCER,
            old: "None if queue.failed.is_some() && !queue.submitting => Next::End,",
            new: "None if queue.failed.is_some() => Next::End,",
        }],
        tests: &[SEQUENCES],
        smoke: false,
    },
    Mutation {
        name: "full-journal-passed-by",
        bug: "what a connection submits itself does not ask for the journal's pace: a full journal does not hold it back",
        rule: "R8",
        edits: &[Edit { file: SEQUENCER, old: "if self.admission.pace() != Pace::Go {", new: "if false {" }],
        tests: &[SEQUENCES],
        smoke: false,
    },
    Mutation {
        name: "held-for-ever",
        bug: "a connection that has begun its writes does not say so to the device: they wait until others come",
        rule: "CONN-C10",
        edits: &[Edit {
            file: "crates/front/src/conn/burst.rs",
            old: "        self.0.release();",
            new: "        let _ = &self.0;",
        }],
        tests: &[lib(Layer::Unit, "holdfast-front", &["serving::"])],
        smoke: false,
    },
    Mutation {
        name: "dropped-proposals-hang",
        bug: "who has proposed an entry hears nothing if the group drops it: its operations wait for ever",
        rule: "R12",
        edits: &[Edit {
            file: "crates/raft/src/consensus.rs",
            old: "            told(Err(dropped()));",
            new: "            drop(told);",
        }],
        tests: &[lib(Layer::Unit, "holdfast-raft", &["consensus::"]), SEQUENCES],
        smoke: false,
    },
];
