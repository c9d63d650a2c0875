//! Who may make which call at the admin door, and what is noted of it.

use crate::bug::{Edit, Layer, Mutation, Test, file, lib};

const GUARD: &str = "crates/gateway/src/access/guard.rs";

const ACCESS: Test = lib(Layer::Unit, "holdfast-gateway", &["access::"]);

const RULES: &str = "crates/agent/src/http/rules.rs";

/// The HTTP door of an agent.
const AGENT_DOOR: Test = lib(Layer::Unit, "holdfast-agent", &["http::"]);

/// `holdfast dev`.
const DEV: Test = file(Layer::Unit, "holdfast", &["--bin", "holdfast"], &["a_secure_directory_"]);

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "role-not-checked-at-the-admin-door",
        bug: "the admin door takes any certificate of the cluster for any call: a host can delete the sets of others",
        rule: "ACCESS-A1",
        edits: &[Edit {
            file: GUARD,
            old: "    checked.map_err(|why| denied(format!(\"{}: {why}: {REMEDY}\", rule.method)))?;\n",
            new: "    let _ = checked;\n",
        }],
        tests: &[ACCESS],
        smoke: false,
    },
    Mutation {
        name: "operator-sets-a-schedule",
        bug: "an operator sets a schedule that keeps nothing, and the snapshots expire",
        rule: "ACCESS-A1",
        edits: &[Edit {
            file: "crates/gateway/src/access/rules.rs",
            old: "changes(\"SetSchedule\", &[A]),",
            new: "changes(\"SetSchedule\", &[O, A]),",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["only_an_administrator_can_make_snapshots_go"])],
        smoke: false,
    },
    Mutation {
        name: "host-takes-a-lease-as-another-one",
        bug: "a host takes a lease under any owner's name: it fences another host, in that one's name",
        rule: "ACCESS-A2",
        edits: &[Edit {
            file: "crates/gateway/src/access/named.rs",
            old: "!self.owner.is_empty() && !caller.may_own(&self.owner)",
            new: "!self.owner.is_empty() && self.owner == caller.owners_text() && !caller.may_own(&self.owner)",
        }],
        tests: &[ACCESS],
        smoke: false,
    },
    Mutation {
        name: "audit-forgets-refusals",
        bug: "a call that was refused for its certificate leaves no line in the audit log",
        rule: "ACCESS-A3",
        edits: &[Edit {
            file: GUARD,
            old: "let noted = self.refused || self.rule.noted;",
            new: "let noted = !self.refused && self.rule.noted;",
        }],
        tests: &[ACCESS],
        smoke: false,
    },
    Mutation {
        name: "audit-washed-out-by-refusals",
        bug: "each refused call leaves a line: a host that is refused pushes all others out of the audit log",
        rule: "ACCESS-A4",
        edits: &[Edit {
            file: "crates/gateway/src/access/refused.rs",
            old: "        if !self.is_over(now) {\n",
            new: "        if now < self.written {\n",
        }],
        tests: &[ACCESS],
        smoke: false,
    },
    Mutation {
        name: "audit-forgets-who-does-not-wait",
        bug: "a call whose caller has gone leaves no line in the audit log, although it may have taken effect",
        rule: "ACCESS-A3",
        edits: &[Edit {
            file: GUARD,
            old: "if !noted || self.rule.repeated && self.outcome == Some(Code::Unavailable) {",
            new: "if !noted || self.outcome.is_none_or(|code| self.rule.repeated && code == Code::Unavailable) {",
        }],
        tests: &[ACCESS],
        smoke: false,
    },
    Mutation {
        name: "allowed-stores-by-a-part-of-the-name",
        bug: "a set may be put into a bucket whose name contains that of an allowed one",
        rule: "ACCESS-A2",
        edits: &[Edit {
            file: "crates/store/src/allowed.rs",
            old: "at.bucket == place.bucket\n",
            new: "at.bucket.contains(&*place.bucket)\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-store", &["allowed::"])],
        smoke: false,
    },
    Mutation {
        name: "allowed-stores-not-checked",
        bug: "a set is put into a store outside of the allowed places",
        rule: "ACCESS-A2",
        edits: &[Edit {
            file: "crates/gateway/src/admin/mod.rs",
            old: "        for store in &named.stores {\n",
            new: "        for store in named.stores.iter().take(0) {\n",
        }],
        tests: &[ACCESS],
        smoke: false,
    },
    Mutation {
        name: "secure-cluster-without-tokens",
        bug: "`holdfast dev --secure` lets every host with a certificate use every set, without a token",
        rule: "R10",
        edits: &[Edit {
            file: "crates/holdfast/src/dev/secure.rs",
            old: "config.plain_exports = false;",
            new: "config.plain_exports = true;",
        }],
        tests: &[DEV],
        smoke: false,
    },
    Mutation {
        name: "secure-directory-forgets",
        bug: "a secure directory that is started again without --secure gets a certificate for any owner",
        rule: "R10",
        edits: &[Edit {
            file: "crates/holdfast/src/dev/layout.rs",
            old: "args.secure || gateways.iter().all(|gateway| secure::is_on(&gateway.config));",
            new: "args.secure;",
        }],
        tests: &[DEV],
        smoke: false,
    },
    Mutation {
        name: "secure-keys-for-everybody",
        bug: "every user of the machine can enter the folder with the authority's key",
        rule: "R10",
        edits: &[Edit {
            file: "crates/holdfast/src/dev/layout.rs",
            old: "std::fs::set_permissions(dir, Permissions::from_mode(OWN_FOLDER))",
            new: "std::fs::set_permissions(dir, Permissions::from_mode(OWN_FOLDER | 0o055))",
        }],
        tests: &[DEV],
        smoke: false,
    },
    Mutation {
        name: "agent-does-not-verify-its-peer",
        bug: "an agent believes any host of the cluster that listens at another host's address",
        rule: "PEER-N1",
        edits: &[Edit {
            file: "crates/agent/src/client.rs",
            old: "Some(host) if !peer.may_own(host) => Err(io::Error::new(",
            new: "Some(host) if host.is_empty() && !peer.may_own(host) => Err(io::Error::new(",
        }],
        tests: &[AGENT_DOOR],
        smoke: false,
    },
    Mutation {
        name: "plain-request-changes-something",
        bug: "an agent with TLS takes commands without it: whoever is on the way reads the token that comes along",
        rule: "HEALTH-H3",
        edits: &[Edit {
            file: RULES,
            old: "(HttpClient::Plain, _) => Pass::No,",
            new: "(HttpClient::Plain, _) => Pass::WithToken,",
        }],
        tests: &[AGENT_DOOR],
        smoke: false,
    },
    Mutation {
        name: "plain-check-tells-names",
        bug: "a health check in plain text tells everybody on the way which set is here",
        rule: "HEALTH-H3",
        edits: &[Edit {
            file: "crates/agent/src/http.rs",
            old: "match door.pass(&who, \"/status\") {",
            new: "match door.pass(&who, \"/health\") {",
        }],
        tests: &[AGENT_DOOR],
        smoke: false,
    },
    Mutation {
        name: "command-of-who-hangs-up-is-not-told",
        bug: "whoever has the agents' token moves PostgreSQL without a line in the log, by hanging up before the answer",
        rule: "R10",
        edits: &[Edit {
            file: "crates/agent/src/http.rs",
            old: "    tracing::info!(path = uri.path(), by, \"a command was accepted\");\n",
            new: "",
        }],
        tests: &[lib(Layer::Unit, "holdfast-agent", &["a_command_is_in_the_log_before_it_is_carried_out"])],
        smoke: false,
    },
    Mutation {
        name: "claim-in-the-name-of-another-host",
        bug: "a host has another one take the set, in the name of a third",
        rule: "HEALTH-H3",
        edits: &[Edit {
            file: RULES,
            old: "    if !caller.may_own(host) {\n",
            new: "    if host.is_empty() && !caller.may_own(host) {\n",
        }],
        tests: &[AGENT_DOOR],
        smoke: false,
    },
    Mutation {
        name: "claim-without-a-certificate",
        bug: "a host leaves its certificate out and has another one take the set, by the token, in the name of a third",
        rule: "HEALTH-H3",
        edits: &[Edit {
            file: RULES,
            old: "Asker::Local | Asker::Remote(_) => return Ok(()),",
            new: "Asker::Local | Asker::Remote(_) | Asker::Met(_, HttpClient::Unnamed) => return Ok(()),",
        }],
        tests: &[AGENT_DOOR],
        smoke: false,
    },
    Mutation {
        name: "host-of-another-set-is-taken",
        bug: "a host whose certificate names other sets reads and claims this one at its agents",
        rule: "HEALTH-H3",
        edits: &[Edit {
            file: RULES,
            old: "(*role != H || caller.may_use(set))",
            new: "(*role != H || caller.may_use(set) || !set.is_empty())",
        }],
        tests: &[AGENT_DOOR],
        smoke: false,
    },
    Mutation {
        name: "made-up-tokens-are-answered",
        bug: "whoever makes up a token learns which sets and volumes exist, how large they are and who has them",
        rule: "R10",
        edits: &[Edit {
            file: "crates/set/src/device.rs",
            old: "        self.admit_token(name, set.as_deref())?;\n",
            new: "",
        }],
        tests: &[lib(Layer::Unit, "holdfast-set", &["device::"])],
        smoke: false,
    },
    Mutation {
        name: "sockets-of-attach-for-others",
        bug: "the group of a host's user may read and write the volumes that it has attached",
        rule: "R10",
        edits: &[Edit {
            file: "crates/attach/src/dir.rs",
            old: "Permissions::from_mode(0o600)",
            new: "Permissions::from_mode(0o660)",
        }],
        tests: &[lib(Layer::Unit, "holdfast-attach", &["dir::"])],
        smoke: false,
    },
    Mutation {
        name: "plain-exports-not-shown",
        bug: "the status of a cluster does not show that a gateway opens volumes without a token",
        rule: "R10",
        edits: &[Edit {
            file: "crates/holdfast/src/command/status.rs",
            old: "chain(node.plain_exports.then(",
            new: "chain((node.plain_exports && !node.disk.is_empty()).then(",
        }],
        tests: &[file(
            Layer::Unit,
            "holdfast",
            &["--bin", "holdfast"],
            &["an_nbd_port_that_asks_for_no_token_is_shown"],
        )],
        smoke: false,
    },
    Mutation {
        name: "checks-without-demanded-tls",
        bug: "a gateway that demands TLS of its HTTP clients answers their health checks without it",
        rule: "HTTP-D2",
        edits: &[Edit {
            file: "crates/gateway/src/http/secured.rs",
            old: "HttpClient::Plain if is_check && mode == HttpTls::Checks => return Answer::Code,",
            new: "HttpClient::Plain if is_check && mode != HttpTls::Off => return Answer::Code,",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["http::secured::"])],
        smoke: false,
    },
    Mutation {
        name: "names-of-sets-are-guessed",
        bug: "a client without a certificate learns by guessing which sets there are, where TLS is required",
        rule: "R10",
        edits: &[Edit {
            file: "crates/gateway/src/http/secured.rs",
            old: "mode != HttpTls::Required || uses(client, set)",
            new: "mode != HttpTls::Required || !set.is_empty() || uses(client, set)",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["http::"])],
        smoke: false,
    },
    Mutation {
        name: "standby-tells-names-to-any-host",
        bug: "the HTTP door of a standby tells the names of its set to the hosts of other sets",
        rule: "STANDBY-U11",
        edits: &[Edit {
            file: "crates/standby/src/http.rs",
            old: "        Role::Host => may_use,\n",
            new: "        Role::Host => may_use || !may_use,\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-standby", &["http::"])],
        smoke: false,
    },
];
