//! When a PostgreSQL host takes the lease, and for how long PostgreSQL may run under it.

use crate::bug::{Edit, Layer, Mutation, Test, lib};

const MACHINE: &str = "crates/agent/src/machine.rs";
const TAKEOVER: &str = "crates/agent/src/machine/takeover.rs";
const DRIVERS: &str = "crates/agent/src/drivers.rs";

const STORIES: Test = lib(Layer::Story, "holdfast-agent", &["machine::story_tests::"]);
const LOOKS: Test = lib(Layer::Unit, "holdfast-agent", &["drivers::tests::"]);
const PROCESSES: Test = lib(Layer::Unit, "holdfast-agent", &["process::"]);

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "lease-as-long-as-anothers",
        bug: "an agent takes the length of another host's lease for its own: PostgreSQL runs after its lease has ended",
        rule: "AGENT-A3",
        edits: &[Edit {
            file: MACHINE,
            old: "            if *owner == self.policy.name {\n                // Only our own",
            new: "            if true {\n                // Only our own",
        }],
        tests: &[STORIES],
        smoke: false,
    },
    Mutation {
        name: "failed-takeovers-use-the-hour-up",
        bug: "a takeover that never started PostgreSQL counts toward the limit per hour: then no host takes over",
        rule: "AGENT-A8",
        edits: &[Edit {
            file: TAKEOVER,
            old: "        self.takeover.counts = true;",
            new: "        self.takeover.within_hour.push_back(now);",
        }],
        tests: &[STORIES],
        smoke: false,
    },
    Mutation {
        name: "takeovers-count-nothing",
        bug: "a set whose PostgreSQL starts on no host moves between its hosts for ever",
        rule: "AGENT-A8",
        edits: &[Edit {
            file: TAKEOVER,
            old: "            self.takeover.within_hour.push_back(now);",
            new: "            self.takeover.within_hour.clear();",
        }],
        tests: &[STORIES],
        smoke: false,
    },
    Mutation {
        name: "lease-without-the-required-watchdog",
        bug: "a host that requires a watchdog and has no watchdog device takes and releases the lease again and again",
        rule: "AGENT-A7",
        edits: &[Edit { file: DRIVERS, old: "_ if !self.watchdog_required => Ok(()),", new: "_ if true => Ok(())," }],
        tests: &[LOOKS],
        smoke: false,
    },
    Mutation {
        name: "lease-beside-a-hung-import",
        bug: "a host whose pool import hangs in the kernel takes and releases the lease again and again",
        rule: "R8",
        edits: &[Edit { file: DRIVERS, old: "match self.hangs.as_str() {", new: "match \"\" {" }],
        tests: &[LOOKS],
        smoke: false,
    },
    Mutation {
        name: "start-command-waited-for",
        bug: "the agent waits for a start command that ends only when PostgreSQL is ready: after a long recovery the start counts as failed, and PostgreSQL is killed",
        rule: "AGENT-A1",
        edits: &[Edit {
            file: "crates/agent/src/drivers/database/commands.rs",
            old: "                Err(_) if self.runs()? => return Ok(()),\n",
            new: "",
        }],
        tests: &[lib(Layer::Unit, "holdfast-agent", &["drivers::database::tests::a_start_that_waits"])],
        smoke: false,
    },
    Mutation {
        name: "devices-of-a-killed-attach-left",
        bug: "a primary whose attach was killed leaves its devices in the kernel: processes that use them hang, and the host cannot take over again",
        rule: "AGENT-A2",
        edits: &[Edit {
            file: MACHINE,
            old: "            _ => self.fence(now, reason, out),",
            new: "            _ => {\n                self.present.attached = false;\n                self.fence(now, reason, out);\n            }",
        }],
        tests: &[STORIES],
        smoke: false,
    },
    Mutation {
        name: "one-process-hides-all",
        bug: "if one process of the host cannot be inspected, PostgreSQL's processes get no SIGKILL",
        rule: "AGENT-A3",
        edits: &[Edit {
            file: "crates/agent/src/process/postgres.rs",
            old: "        let Looked { found, missed } = look_in(proc, of);",
            new: "        let Looked { mut found, missed } = look_in(proc, of);\n        if missed.is_some() {\n            found.clear();\n        }",
        }],
        tests: &[PROCESSES],
        smoke: false,
    },
    Mutation {
        name: "container-taken-for-ours",
        bug: "the PostgreSQL of a container, whose data directory has the same path, is killed",
        rule: "AGENT-A1",
        edits: &[Edit {
            file: "crates/agent/src/process/postgres.rs",
            old: "Ok(Seen::Server) if !is_elsewhere(proc, pid, data) => {",
            new: "Ok(Seen::Server) => {",
        }],
        tests: &[PROCESSES],
        smoke: false,
    },
    Mutation {
        name: "mount-with-a-blank-not-seen",
        bug: "a file system mounted at a path with a space counts as not mounted: its device is removed while in use",
        rule: "AGENT-A2",
        edits: &[Edit {
            file: "crates/host/src/mounts.rs",
            old: "        at: PathBuf::from(OsString::from_vec(unescaped(fields.get(4)?))),",
            new: "        at: PathBuf::from(OsString::from_vec(fields.get(4)?.to_vec())),",
        }],
        tests: &[lib(Layer::Unit, "holdfast-host", &["mounts::"])],
        smoke: false,
    },
    Mutation {
        name: "started-off-the-set",
        bug: "PostgreSQL is started with its WAL on a disk of the host: acknowledged commits are lost with the host",
        rule: "ONSET-L1",
        edits: &[Edit {
            file: "crates/agent/src/drivers/placement.rs",
            old: "            if is_link && !scratch::NAMES",
            new: "            if false && is_link && !scratch::NAMES",
        }],
        tests: &[lib(Layer::Unit, "holdfast-agent", &["drivers::placement::"])],
        smoke: false,
    },
    Mutation {
        name: "switchover-that-resets",
        bug: "one process that has the pool open turns a planned switchover into fencing, and on ZFS into a reboot of the machine",
        rule: "AGENT-A9",
        edits: &[Edit {
            file: "crates/agent/src/machine/step_down.rs",
            old: "            (Then::HandedOver { to, .. }, Step::Export) if in_use => {",
            new: "            (Then::HandedOver { to, .. }, Step::Export) if in_use && false => {",
        }],
        tests: &[STORIES],
        smoke: false,
    },
];
