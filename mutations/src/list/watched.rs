//! What people are told of a cluster: the doctor, bundles for support, and what alerts ask for.

use crate::bug::{Edit, Layer, Mutation, Test, file, lib};

const REDACT: &str = "crates/holdfast/src/command/support/redact.rs";

const REDACTED: Test = file(Layer::Unit, "holdfast", &["--bin", "holdfast"], &["command::support::"]);
const BUNDLE: Test = file(Layer::Unit, "holdfast", &["--test", "program"], &["support::no_secret_gets_into_a_bundle"]);
const FILES: Test = file(Layer::Unit, "holdfast", &["--bin", "holdfast"], &["command::doctor::files::"]);
const JOURNAL: Test = file(Layer::Unit, "holdfast-log", &["--test", "log"], &["only_a_lack_that_passes_is_waited_for"]);
const DISK: Test = file(Layer::Unit, "holdfast", &["--bin", "holdfast"], &["command::doctor::disk::"]);

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "bundle-as-gathered",
        bug: "a bundle for support has what was gathered, secrets included",
        rule: "R10",
        edits: &[Edit {
            file: "crates/holdfast/src/command/support.rs",
            old: "file.write_all(redactor.text(&entry.text).as_bytes())?;",
            new: "file.write_all([redactor.text(\"\").as_bytes(), entry.text.as_bytes()].concat().as_slice())?;",
        }],
        tests: &[BUNDLE],
        smoke: false,
    },
    Mutation {
        name: "bundle-with-known-secrets",
        bug: "a bundle has a passphrase that was logged, though its file is named in the settings",
        rule: "R10",
        edits: &[Edit { file: REDACT, old: "for secret in &self.known {", new: "for secret in &self.known[..0] {" }],
        tests: &[REDACTED, BUNDLE],
        smoke: false,
    },
    Mutation {
        name: "bundle-with-passwords-of-urls",
        bug: "a bundle has the password in the URL of an endpoint",
        rule: "R10",
        edits: &[Edit {
            file: REDACT,
            old: "out.push_str(&long_runs(&user_info(&named(line))));",
            new: "out.push_str(&long_runs(&named(line)));",
        }],
        tests: &[REDACTED, BUNDLE],
        smoke: false,
    },
    Mutation {
        name: "bundle-with-secrets-in-json",
        bug: "a bundle has a passphrase with a quote in it, since JSON writes it with a backslash",
        rule: "R10",
        edits: &[Edit {
            file: REDACT,
            old: "known.flat_map(forms).collect();",
            new: "known.flat_map(|secret| forms(secret).into_iter().take(1)).collect();",
        }],
        tests: &[REDACTED],
        smoke: false,
    },
    Mutation {
        name: "bundle-with-arguments",
        bug: "a bundle has the token that a program is given as one of a list of arguments",
        rule: "R10",
        edits: &[Edit {
            file: REDACT,
            old: "is_between(c) || is_option && c == ',';",
            new: "is_between(c) || is_option && c == '\\0';",
        }],
        tests: &[REDACTED],
        smoke: false,
    },
    Mutation {
        name: "bundle-with-arguments-of-key-command",
        bug: "a bundle has what key.command is given, such as a script with a password",
        rule: "R10",
        edits: &[Edit { file: REDACT, old: "out.push_str(program);", new: "out.push_str(&list[..end]);" }],
        tests: &[REDACTED, BUNDLE],
        smoke: false,
    },
    Mutation {
        name: "bundle-waits-for-a-pipe",
        bug: "a bundle waits for ever for a pipe that settings name as a file with a key",
        rule: "R10",
        edits: &[Edit {
            file: "crates/holdfast/src/command/support/known.rs",
            old: "match file.metadata()?.is_file() {",
            new: "match file.metadata()?.len() < u64::MAX {",
        }],
        tests: &[REDACTED],
        smoke: false,
    },
    Mutation {
        name: "doctor-waits-for-a-disk",
        bug: "the doctor says nothing at all if the disk of a gateway hangs",
        rule: "R8",
        edits: &[Edit {
            file: "crates/holdfast/src/command/doctor/files.rs",
            old: "match tokio::time::timeout(limit, looking).await {",
            new: "match Ok::<_, tokio::time::error::Elapsed>(looking.await) {",
        }],
        tests: &[FILES],
        smoke: false,
    },
    Mutation {
        name: "doctor-journal-in-memory",
        bug: "the doctor finds nothing wrong with a data directory that a restart empties",
        rule: "R1",
        edits: &[Edit {
            file: "crates/holdfast/src/command/doctor/disk.rs",
            old: "const VOLATILE: [&str; 2] = [\"tmpfs\", \"ramfs\"];",
            new: "const VOLATILE: [&str; 1] = [\"ramfs\"];",
        }],
        tests: &[DISK],
        smoke: false,
    },
    Mutation {
        name: "failing-disk-taken-for-a-full-one",
        bug: "a journal whose next file meets an error of the disk waits for room for ever: its gateway leads on, and nobody takes over",
        rule: "LOG-L2",
        edits: &[Edit {
            file: "crates/journal/src/error.rs",
            old: "match is_full(&error) || lacks {",
            new: "match is_full(&error) || lacks || error.raw_os_error().is_some() {",
        }],
        tests: &[JOURNAL],
        smoke: false,
    },
    Mutation {
        name: "lack-of-descriptors-ends-the-journal",
        bug: "a moment without file descriptors ends a gateway's journal until it is started again",
        rule: "LOG-L2",
        edits: &[Edit {
            file: "crates/journal/src/error.rs",
            old: "const NO_DESCRIPTOR: [i32; 2] = [23, 24];",
            new: "const NO_DESCRIPTOR: [i32; 2] = [0, 0];",
        }],
        tests: &[JOURNAL],
        smoke: false,
    },
    Mutation {
        name: "lack-of-descriptors-told-as-a-full-disk",
        bug: "a gateway without file descriptors says that its journal waits for room on its disk, which has plenty",
        rule: "LOG-L2",
        edits: &[Edit {
            file: "crates/log/src/writer.rs",
            old: "let what = if is_full(error) {",
            new: "let what = if is_full(error) || error.raw_os_error().is_some() {",
        }],
        tests: &[JOURNAL],
        smoke: false,
    },
    Mutation {
        name: "dashboard-adds-clusters-up",
        bug: "a dashboard shows the connections of two clusters' sets of the same name as one number",
        rule: "ADR 0061",
        edits: &[Edit {
            file: "deploy/grafana/holdfast-gateways.json",
            old: "sum by (cluster, set) (holdfast_connections",
            new: "sum by (set) (holdfast_connections",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["dashboards_keep_clusters_apart"])],
        smoke: false,
    },
    Mutation {
        name: "removed-new-file-ends-the-journal",
        bug: "somebody removes a file that a journal is filling, to free space, and the journal fails, although nothing was in it",
        rule: "LOG-L2",
        edits: &[Edit {
            file: "crates/log/src/disk.rs",
            old: "if error.kind() == io::ErrorKind::NotFound && !path.try_exists().unwrap_or(true) {",
            new: "if error.kind() == io::ErrorKind::NotFound && path.as_os_str().is_empty() {",
        }],
        tests: &[lib(Layer::Unit, "holdfast-log", &["a_file_that_is_removed_while_it_is_filled_is_made_anew"])],
        smoke: false,
    },
    Mutation {
        name: "removed-spare-file-ends-the-journal",
        bug: "somebody removes a journal's ready files to free space, and the journals of all gateways where this was done fail",
        rule: "LOG-L2",
        edits: &[Edit {
            file: "crates/log/src/disk.rs",
            old: "Err(_) if gone =>",
            new: "Err(_) if gone && ready.is_empty() =>",
        }],
        tests: &[lib(Layer::Unit, "holdfast-log", &["a_ready_file_that_is_gone_is_not_missed"])],
        smoke: false,
    },
    Mutation {
        name: "failed-journal-waits-for-room",
        bug: "a journal that failed on a full disk says for ever that it waits for room, and that it goes on by itself",
        rule: "LOG-L2",
        edits: &[Edit {
            file: "crates/log/src/node.rs",
            old: "self.shared.queue.stalled().filter(|_| failed.is_none()),",
            new: "self.shared.queue.stalled(),",
        }],
        tests: &[file(
            Layer::Unit,
            "holdfast-log",
            &["--test", "log"],
            &["a_journal_that_has_failed_waits_for_nothing"],
        )],
        smoke: false,
    },
    Mutation {
        name: "failed-journal-has-no-alert",
        bug: "a gateway whose journal has failed looks well to whoever watches the metrics",
        rule: "LOG-L2",
        edits: &[Edit {
            file: "crates/gateway/src/node/gauges.rs",
            old: "set(yes(usage.failed.is_some()));",
            new: "set(yes(false));",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["each_trouble_of_a_journal_has_its_gauge"])],
        smoke: false,
    },
    Mutation {
        name: "doctor-takes-silence-for-health",
        bug: "the doctor says that policies and allowed stores are well to a host that the gateways tell nothing of them",
        rule: "ACCESS-A7",
        edits: &[Edit {
            file: "crates/holdfast/src/command/doctor/cluster.rs",
            old: "if untold.is_empty() || finding.verdict != Verdict::Ok {",
            new: "if untold.is_empty() || finding.verdict != Verdict::Bad {",
        }],
        tests: &[file(Layer::Unit, "holdfast", &["--bin", "holdfast"], &["command::doctor::cluster::"])],
        smoke: false,
    },
    Mutation {
        name: "older-build-taken-for-a-bound-certificate",
        bug: "the doctor asks for another certificate where a gateway of an older build tells less than the others",
        rule: "ACCESS-A7",
        edits: &[Edit {
            file: "crates/holdfast/src/command/doctor/cluster.rs",
            old: "if untold.len() < nodes(status).count() {",
            new: "if untold.len() > nodes(status).count() {",
        }],
        tests: &[file(Layer::Unit, "holdfast", &["--bin", "holdfast"], &["command::doctor::cluster::"])],
        smoke: false,
    },
    Mutation {
        name: "deleted-set-has-an-alert",
        bug: "a set that was deleted counts as one without a leader once the gateway that led it starts anew, until all others do so, too",
        rule: "ADR 0061",
        edits: &[Edit {
            file: "crates/gateway/src/node/shown.rs",
            old: "for group in self.groups.difference(&now.groups) {",
            new: "for group in self.groups.iter().take(0) {",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["what_is_gone_has_no_alert_any_more"])],
        smoke: false,
    },
    Mutation {
        name: "former-leader-alerts-for-ever",
        bug: "leadership moves in an outage of a store: the former leader asks it nothing more, and tells of the outage until it leads again",
        rule: "ADR 0061",
        edits: &[Edit {
            file: "crates/gateway/src/admin/stores.rs",
            old: "    health.now = health.now.filter(lately);\n",
            new: "",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["trouble_of_a_set_that_others_lead_is_told"])],
        smoke: false,
    },
    Mutation {
        name: "former-leader-stays-cold",
        bug: "leadership moves in an outage of a store: the former leader takes the store for one in trouble until it leads again, and warms its cache no more",
        rule: "ADR 0033",
        edits: &[Edit {
            file: "crates/set/src/mapping.rs",
            old: "const SPARED_MS: u64 = 120_000;",
            new: "const SPARED_MS: u64 = u64::MAX / 2;",
        }],
        tests: &[lib(Layer::Unit, "holdfast-set", &["a_store_is_spared_for_a_while"])],
        smoke: false,
    },
    Mutation {
        name: "key-of-a-unit-is-missing",
        bug: "the doctor takes a key that systemd hands over for a missing one until the unit runs, and says how to make a new one",
        rule: "ADR 0061",
        edits: &[Edit {
            file: "crates/holdfast/src/command/doctor/files.rs",
            old: "file.starts_with(CREDENTIALS) && ",
            new: "!file.starts_with(CREDENTIALS) && ",
        }],
        tests: &[FILES],
        smoke: false,
    },
    Mutation {
        name: "passphrase-of-a-unit-is-missing",
        bug: "the doctor takes a passphrase, or a token for Vault, that systemd hands over for a missing one until the unit runs",
        rule: "ADR 0061",
        edits: &[Edit {
            file: "crates/holdfast/src/command/doctor/files.rs",
            old: "[&key.file, &key.passphrase_file, &key.vault_token_file]",
            new: "[&key.file, &key.file, &key.file]",
        }],
        tests: &[FILES],
        smoke: false,
    },
    Mutation {
        name: "host-shown-to-hosts-alone",
        bug: "an administrator's certificate in the environment keeps `attach --status` and `--detach` from looking at their own host",
        rule: "ADR 0045",
        edits: &[Edit {
            file: "crates/holdfast/src/command.rs",
            old: "if !args.status && !args.detach && !args.abandon => ",
            new: "if !args.set.as_str().is_empty() => ",
        }],
        tests: &[file(
            Layer::Unit,
            "holdfast",
            &["--bin", "holdfast"],
            &["command::tests::only_what_talks_as_a_host_needs_the_certificate_of_one"],
        )],
        smoke: false,
    },
    Mutation {
        name: "page-with-an-option-that-is-gone",
        bug: "the first page has a command with an option that does not exist",
        rule: "ADR 0061",
        edits: &[Edit {
            file: "docs/start.md",
            old: "cluster bootstrap --config cluster.toml",
            new: "cluster bootstrap --plan cluster.toml",
        }],
        tests: &[file(Layer::Unit, "holdfast", &["--bin", "holdfast"], &["cli::docs::"])],
        smoke: false,
    },
];
