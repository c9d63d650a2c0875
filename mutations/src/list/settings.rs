//! Settings of a gateway: what a check tells, and what a running gateway takes.

use crate::bug::{Edit, Layer, Mutation, Test, file, lib};

const LIVE: Test = lib(Layer::Unit, "holdfast-gateway", &["config::live::"]);
const CHECK: Test = file(Layer::Unit, "holdfast", &["--bin", "holdfast"], &["gateway_check::"]);

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "failed-reload-not-told",
        bug: "a settings file that cannot be used is told by one line of the log alone: metric and warning say that all is well",
        rule: "SETTINGS-L1",
        edits: &[Edit {
            file: "crates/gateway/src/config/live.rs",
            old: "                self.trouble_is(why.clone());\n",
            new: "",
        }],
        tests: &[LIVE],
        smoke: false,
    },
    Mutation {
        name: "reload-takes-half-of-the-rest",
        bug: "a reload puts settings that need a restart into use for those who ask again: half of the gateway has the new journal's bound",
        rule: "SETTINGS-L2",
        edits: &[Edit {
            file: "crates/gateway/src/config/live.rs",
            old: "(start.clone(), Changes::default())",
            new: "(read.clone(), Changes::default())",
        }],
        tests: &[LIVE],
        smoke: false,
    },
    Mutation {
        name: "audit-log-ends-by-a-reload",
        bug: "a reload without audit.log counts as taken: the log says that the audit ended, and it goes on",
        rule: "SETTINGS-L2",
        edits: &[Edit {
            file: "crates/gateway/src/config/live.rs",
            old: "(audited || name != AUDIT_LOG)",
            new: "(audited || name == AUDIT_LOG)",
        }],
        tests: &[LIVE],
        smoke: false,
    },
    Mutation {
        name: "reload-passes-over-the-audit-log",
        bug: "a reload takes a file whose audit.log cannot be opened: the rest of it is in use, and a pair's gateway that stands by fails at its takeover",
        rule: "SETTINGS-L1",
        edits: &[Edit {
            file: "crates/holdfast/src/command/gateway.rs",
            old: "        && log != before\n",
            new: "        && log == before\n",
        }],
        tests: &[file(Layer::Unit, "holdfast", &["--bin", "holdfast"], &["a_reload_finds_an_audit_log"])],
        smoke: false,
    },
    Mutation {
        name: "drain-forecast-by-the-start",
        bug: "the forecast of a drain asks the settings of the start: after a reload that ends placing it shows moves that nobody makes",
        rule: "SETTINGS-L2",
        edits: &[Edit {
            file: "crates/gateway/src/admin/drain_plan.rs",
            old: "self.node.live().placing.rules()",
            new: "self.node.config.placing.rules()",
        }],
        tests: &[LIVE],
        smoke: false,
    },
    Mutation {
        name: "failed-move-undoes-a-later-reload",
        bug: "a move of the audit log that fails late puts the settings of a reload that came meanwhile back, and calls them wrong",
        rule: "SETTINGS-L1",
        edits: &[Edit {
            file: "crates/gateway/src/config/live.rs",
            old: "            if state.now.audit == *wanted {\n",
            new: "            if state.now.audit == *wanted || !why.is_empty() {\n",
        }],
        tests: &[LIVE],
        smoke: false,
    },
    Mutation {
        name: "scrub-waits-by-an-earlier-limit",
        bug: "a limit of the scrub that was too low by mistake is waited for, for weeks, after a reload has raised it",
        rule: "SETTINGS-L2",
        edits: &[Edit {
            file: "crates/set/src/scrub/brake.rs",
            old: "sleep(left.min(PAY_STEP))",
            new: "sleep(left.max(PAY_STEP))",
        }],
        tests: &[lib(Layer::Unit, "holdfast-set", &["a_piece_waits_by_the_limit_as_it_is_now"])],
        smoke: false,
    },
    Mutation {
        name: "limit-mended-too-late",
        bug: "a limit of collection that was too low by mistake is waited for, for days, after a reload has raised it",
        rule: "SETTINGS-L2",
        edits: &[Edit {
            file: "crates/volume/src/space/budget.rs",
            old: "            *self = Self::new(limits);",
            new: "            self.limits = limits;",
        }],
        tests: &[lib(Layer::Unit, "holdfast-volume", &["another_limit_counts_at_once"])],
        smoke: false,
    },
    Mutation {
        name: "check-names-a-wrong-line",
        bug: "`gateway run --check` names a line of the file for a value that an option has given",
        rule: "SETTINGS-L1",
        edits: &[Edit {
            file: "crates/holdfast/src/command/gateway_check.rs",
            old: "filter(|_| is_from(text, setting, config))",
            new: "filter(|_| is_from(text, setting, config) || !setting.is_empty())",
        }],
        tests: &[CHECK],
        smoke: false,
    },
    Mutation {
        name: "check-passes-over-access-keys",
        bug: "`gateway run --check` calls settings valid whose file of access keys cannot be used: no set is served",
        rule: "SETTINGS-L1",
        edits: &[Edit {
            file: "crates/holdfast/src/command/gateway_check.rs",
            old: "    if !told(\"store\")\n",
            new: "    if told(\"store\")\n",
        }],
        tests: &[CHECK],
        smoke: false,
    },
];
