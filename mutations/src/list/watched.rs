//! What people are told of a cluster: the doctor, and bundles for support.

use crate::bug::{Edit, Layer, Mutation, Test, file};

const REDACT: &str = "crates/holdfast/src/command/support/redact.rs";

const REDACTED: Test = file(Layer::Unit, "holdfast", &["--bin", "holdfast"], &["command::support::"]);
const BUNDLE: Test = file(Layer::Unit, "holdfast", &["--test", "program"], &["support::no_secret_gets_into_a_bundle"]);
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
];
