//! Where a cluster key comes from, and where it is in memory.

use crate::bug::{Edit, Layer, Mutation, Test, file, lib};

const FILES: &str = "crates/tls/src/files.rs";
const KDF: &str = "crates/seal/src/kdf.rs";
const KEYRING: &str = "crates/set/src/keyring.rs";
const SET_KEY: &str = "crates/set/src/set_key.rs";
const CHANGE: &str = "crates/gateway/src/admin/keys.rs";
const SHAPE: &str = "crates/envelope/src/shape.rs";
const COMMAND: &str = "crates/envelope/src/command.rs";
const LOCKED: &str = "crates/locked/src/lib.rs";

const SECRETS: Test = lib(Layer::Unit, "holdfast-tls", &["files::tests::"]);
const PASSPHRASES: Test = lib(Layer::Unit, "holdfast-seal", &["kdf::tests::"]);
const SET_KEYS: Test = lib(Layer::Unit, "holdfast-set", &["set_key::tests::"]);
const KEYRINGS: Test = lib(Layer::Unit, "holdfast-set", &["keyring::tests::"]);
const CHANGES: Test = lib(Layer::Unit, "holdfast-gateway", &["admin::keys::tests::"]);
const SHAPES: Test = lib(Layer::Unit, "holdfast-envelope", &["shape::tests::"]);
const COMMANDS: Test = lib(Layer::Unit, "holdfast-envelope", &["command::tests::"]);
const CORE_DUMPS: Test =
    file(Layer::Unit, "holdfast", &["--test", "program"], &["keys::commands_with_secrets_write_no_core_dump"]);
const PAGES: Test = lib(Layer::Unit, "holdfast-locked", &["tests::"]);

const NODE_KEY: &str = "crates/gateway/src/node_key.rs";
const STORE_ACCESS: &str = "crates/holdfast/src/command/store_access.rs";
const STORE_ACCESSES: Test = file(Layer::Unit, "holdfast", &["--bin", "holdfast"], &["command::store_access::tests::"]);
const DEV_SECURE: &str = "crates/holdfast/src/command/dev/secure.rs";
const DEV: Test = file(Layer::Unit, "holdfast", &["--bin", "holdfast"], &["a_secure_directory_"]);
const CLUSTER: &str = "crates/holdfast/src/command/cluster.rs";
const CLUSTERS: Test = file(Layer::Unit, "holdfast", &["--bin", "holdfast"], &["command::cluster::tests::"]);
const NODE: &str = "crates/gateway/src/node.rs";
const TAKEOVER: &str = "crates/pair/src/takeover.rs";
const TAKEOVERS: Test = lib(Layer::Unit, "holdfast-pair", &["takeover::tests::"]);
const NODE_KEYS: Test = lib(Layer::Unit, "holdfast-gateway", &["node_key::tests::"]);

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "keys-opened-again-and-again",
        bug: "a gateway opens the data keys of each of its sets twice a second, although group 0 has not changed them",
        rule: "ADR 0023",
        edits: &[Edit {
            file: SET_KEY,
            old: "if self.held(is_known) {",
            new: "if self.held(is_known) && seals == 0 {",
        }],
        tests: &[SET_KEYS],
        smoke: false,
    },
    Mutation {
        name: "removed-key-stays-in-memory",
        bug: "a data key that was taken out of a set stays in the memory of its gateways until the next change",
        rule: "ADR 0023",
        edits: &[Edit {
            file: SET_KEY,
            old: "held.gone.iter().any(|(_, _, since)| is_over(since))",
            new: "held.gone.len() > 64 && held.gone.iter().any(|(_, _, since)| is_over(since))",
        }],
        tests: &[SET_KEYS],
        smoke: false,
    },
    Mutation {
        name: "wrong-key-costs-the-journal",
        bug: "a gateway with a wrong cluster key advises to move its data directory away",
        rule: "R1",
        edits: &[Edit {
            file: NODE_KEY,
            old: "SealError::WrongClusterKey { .. } => Self::OtherKey { path, source },",
            new: "SealError::WrappedDisk { .. } => Self::OtherKey { path, source },",
        }],
        tests: &[NODE_KEYS],
        smoke: false,
    },
    Mutation {
        name: "unread-key-to-be-made-anew",
        bug: "a key file that cannot be read is to be made anew, over the only copy of the key",
        rule: "R1",
        edits: &[Edit {
            file: KEYRING,
            old: "ErrorKind::PermissionDenied => LET_READ,",
            new: "ErrorKind::PermissionDenied => missing,",
        }],
        tests: &[KEYRINGS],
        smoke: false,
    },
    Mutation {
        name: "key-is-fetched-at-a-takeover",
        bug: "a gateway of a pair opens its cluster key again at each takeover, when Vault or KMS may be away",
        rule: "R8",
        edits: &[Edit {
            file: NODE,
            old: "Some(keys) => keys,",
            new: "Some(_) => Arc::new(cluster_keys(&config).await?),",
        }],
        tests: &[TAKEOVERS],
        smoke: false,
    },
    Mutation {
        name: "seat-is-held-with-a-wrong-key",
        bug: "a gateway of a pair that can open none of the sets keeps the seat, and nobody serves them",
        rule: "R8",
        edits: &[Edit { file: TAKEOVER, old: "if all.is_empty()", new: "if all.len() > 1 && let" }],
        tests: &[TAKEOVERS],
        smoke: false,
    },
    Mutation {
        name: "recovery-without-the-previous-key",
        bug: "a cluster that is lost in the middle of a change of keys cannot be recovered: some heads are under the other key",
        rule: "R1",
        edits: &[Edit {
            file: STORE_ACCESS,
            old: "return Ok((config.key.source(&config.store), config.key_previous.source(&config.store)));",
            new: "return Ok((config.key.source(&config.store), KeySource::default()));",
        }],
        tests: &[STORE_ACCESSES],
        smoke: false,
    },
    Mutation {
        name: "secure-cluster-dumps-core",
        bug: "`holdfast dev --secure` leaves core dumps on",
        rule: "LOCKED-M1",
        edits: &[Edit {
            file: DEV_SECURE,
            old: "    config.core_dumps = false;",
            new: "    config.core_dumps = true;",
        }],
        tests: &[DEV],
        smoke: false,
    },
    Mutation {
        name: "member-with-another-key",
        bug: "a gateway with another cluster key joins, and runs no set",
        rule: "R10",
        edits: &[Edit {
            file: CLUSTER,
            old: "let Some((name, expected)) = first else { return Ok(()) };",
            new: "let Some((name, expected)) = first.filter(|_| new.member != 0) else { return Ok(()) };",
        }],
        tests: &[CLUSTERS],
        smoke: false,
    },
    Mutation {
        name: "root-is-refused-a-credential",
        bug: "a check of settings or a recovery by root refuses the key where the gateway's unit puts it",
        rule: "SECRET-F1",
        edits: &[Edit {
            file: FILES,
            old: "    within && !path.components()",
            new: "    ours.is_some() && within && !path.components()",
        }],
        tests: &[SECRETS],
        smoke: false,
    },
    Mutation {
        name: "key-file-open-to-a-group",
        bug: "a key file that the members of a group can read is used",
        rule: "SECRET-F1",
        edits: &[Edit { file: FILES, old: "{ 0o037 } else { 0o077 };", new: "{ 0o037 } else { 0o007 };" }],
        tests: &[SECRETS],
        smoke: false,
    },
    Mutation {
        name: "key-file-of-another-user",
        bug: "a key file of another user, who may replace it at any time, is used",
        rule: "SECRET-F1",
        edits: &[Edit {
            file: FILES,
            old: "if owner != me && owner != 0 && me != 0 {",
            new: "if owner != me && owner != 0 && me == u32::MAX {",
        }],
        tests: &[SECRETS],
        smoke: false,
    },
    Mutation {
        name: "passphrase-of-little-memory",
        bug: "a new key may be derived with so little memory that guesses are cheap",
        rule: "KEYRING-W1",
        edits: &[Edit {
            file: KDF,
            old: "self.salt != shared && self.memory_kib >= NEW_MEMORY_KIB_MIN;",
            new: "self.salt != shared;",
        }],
        tests: &[PASSPHRASES],
        smoke: false,
    },
    Mutation {
        name: "first-set-under-the-shared-salt",
        bug: "the first set of a new cluster is wrapped by a passphrase with the salt that all clusters share",
        rule: "KEYRING-W1",
        edits: &[Edit {
            file: KEYRING,
            old: "None => self.current.check_new().map(|()| &self.current.key),",
            new: "None => Ok(&self.current.key),",
        }],
        tests: &[KEYRINGS],
        smoke: false,
    },
    Mutation {
        name: "change-to-a-weak-key",
        bug: "a change of the cluster key leads to a passphrase with the salt that all clusters share",
        rule: "KEYRING-W1",
        edits: &[Edit {
            file: CHANGE,
            old: "if steps.is_empty() { Ok(()) } else { weak }",
            new: "if steps.is_empty() { weak } else { Ok(()) }",
        }],
        tests: &[CHANGES],
        smoke: false,
    },
    Mutation {
        name: "old-cluster-gets-no-set",
        bug: "a cluster that was made with the shared salt gets no further set",
        rule: "R8",
        edits: &[Edit {
            file: KEYRING,
            old: "Some(by) => self.get(by).ok_or(NotForNew::Unknown(by)),",
            new: "Some(by) => self.current.check_new().and(self.get(by).ok_or(NotForNew::Unknown(by))),",
        }],
        tests: &[KEYRINGS],
        smoke: false,
    },
    Mutation {
        name: "key-over-a-network-in-clear",
        bug: "Vault or KMS may be asked for the cluster key without TLS on another machine",
        rule: "ENVELOPE-V1",
        edits: &[Edit {
            file: SHAPE,
            old: "url.scheme() == \"https\" || url.scheme() == \"http\" && local",
            new: "url.scheme() == \"https\" || url.scheme() == \"http\" && (local || url.has_host())",
        }],
        tests: &[SHAPES],
        smoke: false,
    },
    Mutation {
        name: "key-of-a-command-that-failed",
        bug: "what a command has printed before it failed is taken for the key",
        rule: "ENVELOPE-V2",
        edits: &[Edit {
            file: COMMAND,
            old: "if !left.status.success() {",
            new: "if !left.status.success() && left.printed.is_empty() {",
        }],
        tests: &[COMMANDS],
        smoke: false,
    },
    Mutation {
        name: "command-prints-without-a-bound",
        bug: "a command may print more than any key has, and its first part is taken for the key",
        rule: "ENVELOPE-V2",
        edits: &[Edit {
            file: COMMAND,
            old: "len if len > OUTPUT_BYTES_MAX => {",
            new: "len if len > 2 * OUTPUT_BYTES_MAX => {",
        }],
        tests: &[COMMANDS],
        smoke: false,
    },
    Mutation {
        name: "many-words-end-a-command",
        bug: "a command that prints many lines on its standard error is killed, and the gateway does not start",
        rule: "ENVELOPE-V2",
        edits: &[Edit {
            file: COMMAND,
            old: "tokio::io::copy(&mut from, &mut tokio::io::sink()).await.map(drop)",
            new: "Ok(())",
        }],
        tests: &[COMMANDS],
        smoke: false,
    },
    Mutation {
        name: "daemon-of-a-command-is-waited-for",
        bug: "a gateway does not start because its command has left a daemon behind",
        rule: "ENVELOPE-V2",
        edits: &[Edit {
            file: COMMAND,
            old: "timeout(LEFT_OPEN, &mut piped)",
            new: "timeout(LEFT_OPEN * 3600, &mut piped)",
        }],
        tests: &[COMMANDS],
        smoke: false,
    },
    Mutation {
        name: "arguments-of-a-command-in-an-error",
        bug: "the arguments of a command, one of which may be a password, are in an error",
        rule: "ENVELOPE-V3",
        edits: &[Edit {
            file: SHAPE,
            old: "Err(wrong(format!(\"{program:?}\")))",
            new: "Err(wrong(format!(\"{argv:?}\")))",
        }],
        tests: &[SHAPES],
        smoke: false,
    },
    Mutation {
        name: "key-in-a-core-dump",
        bug: "the page of a key is part of a core dump",
        rule: "LOCKED-M1",
        edits: &[Edit {
            file: LOCKED,
            old: "madvise(page, len, Advice::LinuxDontDump)",
            new: "madvise(page, len, Advice::LinuxDoDump)",
        }],
        tests: &[PAGES],
        smoke: false,
    },
    Mutation {
        name: "key-can-be-swapped",
        bug: "the page of a key is not locked in memory, and nobody is told",
        rule: "LOCKED-M1",
        edits: &[Edit { file: LOCKED, old: "[mlock(page, len), ", new: "[mlock(page, 0), " }],
        tests: &[PAGES],
        smoke: false,
    },
    Mutation {
        name: "process-dumps-core",
        bug: "a gateway can be traced by other processes of its user, and writes core dumps to a pipe",
        rule: "LOCKED-M1",
        edits: &[Edit {
            file: LOCKED,
            old: "set_dumpable_behavior(DumpableBehavior::NotDumpable)",
            new: "set_dumpable_behavior(DumpableBehavior::Dumpable)",
        }],
        tests: &[PAGES],
        smoke: false,
    },
    Mutation {
        name: "agents-unit-dumps-core",
        bug: "by its unit an agent and what it starts may write core dumps, with keys in them",
        rule: "LOCKED-M1",
        edits: &[Edit { file: "deploy/systemd/holdfast-agent.service", old: "LimitCORE=0\n", new: "" }],
        tests: &[file(Layer::Unit, "holdfast", &["--bin", "holdfast"], &["each_unit_keeps_secrets_out_of_core_dumps"])],
        smoke: false,
    },
    Mutation {
        name: "agent-dumps-core",
        bug: "an agent writes core dumps with its token and the key of its certificate",
        rule: "LOCKED-M1",
        edits: &[Edit {
            file: "crates/holdfast/src/command/agent.rs",
            old: "    serve::without_own_core_dumps();\n",
            new: "",
        }],
        tests: &[CORE_DUMPS],
        smoke: false,
    },
    Mutation {
        name: "certificates-dump-core",
        bug: "a command that has the key of the cluster's authority in its memory writes core dumps",
        rule: "LOCKED-M1",
        edits: &[Edit {
            file: "crates/holdfast/src/command/certificates.rs",
            old: "    serve::without_core_dumps();\n",
            new: "",
        }],
        tests: &[CORE_DUMPS],
        smoke: false,
    },
    Mutation {
        name: "authority-key-open-to-others",
        bug: "certificates are made with an authority's key that every user of the machine can read",
        rule: "SECRET-F1",
        edits: &[Edit {
            file: "crates/tls/src/make.rs",
            old: "files::read_secret_text(&key_path, PEM_BYTES_MAX) {",
            new: "files::read_text(&key_path, PEM_BYTES_MAX).map_err(SecretError::Io) {",
        }],
        tests: &[lib(Layer::Unit, "holdfast-tls", &["bad_files_are_named"])],
        smoke: false,
    },
    Mutation {
        name: "second-authority-advised",
        bug: "of an authority's key with a wrong mode the advice is to move it away: a second authority is made",
        rule: "SECRET-F1",
        edits: &[Edit {
            file: "crates/holdfast/src/command/certificate.rs",
            old: "    let TlsError::Exposed { path, .. } = error else { return None };\n",
            new: "    let TlsError::File { path, .. } = error else { return None };\n",
        }],
        tests: &[file(
            Layer::Unit,
            "holdfast",
            &["--test", "program"],
            &["keys::an_authoritys_key_that_others_can_read_is_kept_and_gets_another_mode"],
        )],
        smoke: false,
    },
    Mutation {
        name: "certificate-key-open-to-others",
        bug: "a certificate is used whose key every user of the machine can read",
        rule: "SECRET-F2",
        edits: &[Edit { file: FILES, old: "    check_live(&file)?;\n", new: "" }],
        tests: &[lib(Layer::Unit, "holdfast-tls", &["bad_files_are_named"])],
        smoke: false,
    },
    Mutation {
        name: "agents-token-open-to-others",
        bug: "an agent uses a token that every user of its host can read, and so can move PostgreSQL with",
        rule: "SECRET-F1",
        edits: &[Edit {
            file: "crates/agent/src/run/opened.rs",
            old: "files::read_secret_text(path, SECRET_BYTES_MAX).map_err(|error| dir_error(path)(error.into()))?;",
            new: "files::read_text(path, SECRET_BYTES_MAX).map_err(dir_error(path))?;",
        }],
        tests: &[lib(Layer::Unit, "holdfast-agent", &["a_token_is_read_with_a_bound"])],
        smoke: false,
    },
    Mutation {
        name: "access-keys-open-to-others",
        bug: "requests to a store are signed with keys from a file that every user of the machine can read or replace",
        rule: "SECRET-F1",
        edits: &[Edit {
            file: "crates/store/src/s3/signing.rs",
            old: "    check_live(&file).map_err(|error| CredentialsProblem::Exposed { found: error.to_string() })?;\n",
            new: "    let _ = check_live(&file);\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-store", &["a_file_that_others_can_read_is_told"])],
        smoke: false,
    },
    Mutation {
        name: "etcd-key-open-to-others",
        bug: "the key with which a gateway speaks to an etcd is used, whoever can read it",
        rule: "SECRET-F2",
        edits: &[Edit {
            file: "crates/gateway/src/config.rs",
            old: "match files::read_key(path, PEM_BYTES_MAX) {",
            new: "match files::read_text(path, PEM_BYTES_MAX) {",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["the_key_for_an_etcd_is_not_read_where_others_can"])],
        smoke: false,
    },
    Mutation {
        name: "clear-journal-is-believed",
        bug: "a journal file in clear is read where files are sealed: who can write to the disk forges what a gateway serves",
        rule: "JOURNAL-J10",
        edits: &[Edit {
            file: "crates/journal/src/recover.rs",
            old: "sealing.filter(|sealing| header.key.is_none() && sealing.refuses_clear())",
            new: "sealing.filter(|sealing| header.key.is_some() && !sealing.new_files && sealing.refuses_clear())",
        }],
        tests: &[file(Layer::Unit, "holdfast-journal", &["--test", "journal"], &["j10_"])],
        smoke: false,
    },
    Mutation {
        name: "clear-snapshot-is-believed",
        bug: "a state snapshot in clear is read where files are sealed",
        rule: "JOURNAL-J10",
        edits: &[Edit {
            file: "crates/raft/src/snapshot_file.rs",
            old: "sealing.filter(|sealing| magic == MAGIC && sealing.refuses_clear())",
            new: "sealing.filter(|sealing| magic == SEALED_MAGIC && !sealing.new_files && sealing.refuses_clear())",
        }],
        tests: &[lib(Layer::Unit, "holdfast-raft", &["snapshot_file::"])],
        smoke: false,
    },
    Mutation {
        name: "files-in-clear-always-allowed",
        bug: "a gateway that seals reads files in clear whatever journal.read_clear says",
        rule: "JOURNAL-J10",
        edits: &[Edit {
            file: "crates/gateway/src/node/start.rs",
            old: "reads_clear: settings.read_clear,",
            new: "reads_clear: settings.seal,",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["node::start::tests::"])],
        smoke: false,
    },
    Mutation {
        name: "files-in-clear-are-not-told",
        bug: "nobody is told that files in clear are read beside sealed ones",
        rule: "JOURNAL-J10",
        edits: &[Edit {
            file: NODE,
            old: "let both = settings.seal && settings.read_clear;",
            new: "let both = false;",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["files_in_clear_beside_sealed_ones_are_told"])],
        smoke: false,
    },
];
