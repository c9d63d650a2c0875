//! When a host of PostgreSQL takes the lease, and for how long PostgreSQL may run under it.

use super::{Edit, Layer, Mutation, Test, lib};

const MACHINE: &str = "crates/agent/src/machine.rs";
const WAY: &str = "crates/agent/src/machine/way.rs";
const DRIVERS: &str = "crates/agent/src/drivers.rs";

const STORIES: Test = lib(Layer::Story, "holdfast-agent", &["machine::story_tests::"]);
const LOOKS: Test = lib(Layer::Unit, "holdfast-agent", &["drivers::tests::"]);

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "lease-as-long-as-anothers",
        bug: "the length of another host's lease is taken for that of one's own: PostgreSQL runs beyond its end",
        rule: "A3",
        edits: &[Edit {
            file: MACHINE,
            old: "            if *owner == self.policy.name {\n                // Not another's",
            new: "            if true {\n                // Not another's",
        }],
        tests: &[STORIES],
        smoke: false,
    },
    Mutation {
        name: "failed-takeovers-use-the-hour-up",
        bug: "a takeover that never came to a start of PostgreSQL counts for the hour: then nobody takes over",
        rule: "A8",
        edits: &[Edit { file: WAY, old: "        self.counts = true;", new: "        self.takeovers.push_back(now);" }],
        tests: &[STORIES],
        smoke: false,
    },
    Mutation {
        name: "takeovers-count-nothing",
        bug: "a set whose PostgreSQL starts nowhere goes to and fro between its hosts for ever",
        rule: "A8",
        edits: &[Edit {
            file: WAY,
            old: "            self.takeovers.push_back(now);",
            new: "            self.takeovers.clear();",
        }],
        tests: &[STORIES],
        smoke: false,
    },
    Mutation {
        name: "lease-without-the-required-watchdog",
        bug: "a host that has no watchdog device and requires one takes the lease, and gives it back, over and over",
        rule: "A7",
        edits: &[Edit { file: DRIVERS, old: "_ if !self.watchdog_required => Ok(()),", new: "_ if true => Ok(())," }],
        tests: &[LOOKS],
        smoke: false,
    },
    Mutation {
        name: "lease-beside-a-hung-import",
        bug: "a host whose import of the pool hangs in the kernel takes the lease, and gives it back, over and over",
        rule: "R8",
        edits: &[Edit { file: DRIVERS, old: "match self.hangs.as_str() {", new: "match \"\" {" }],
        tests: &[LOOKS],
        smoke: false,
    },
    Mutation {
        name: "start-command-waited-for",
        bug: "a start by command that ends only once PostgreSQL is ready is waited for, however long recovery takes: then it counts as failed, and PostgreSQL is killed",
        rule: "A1",
        edits: &[Edit {
            file: "crates/agent/src/drivers/database.rs",
            old: "                    Err(_) if self.runs()? => return Ok(()),\n",
            new: "",
        }],
        tests: &[lib(Layer::Unit, "holdfast-agent", &["drivers::database::tests::a_start_that_waits"])],
        smoke: false,
    },
];
