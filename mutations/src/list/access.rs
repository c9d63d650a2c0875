//! Who may make which call at the admin door, and what is noted of it.

use crate::bug::{Edit, Layer, Mutation, Test, file, lib};

const GUARD: &str = "crates/gateway/src/access/guard.rs";

const ACCESS: Test = lib(Layer::Unit, "holdfast-gateway", &["access::"]);

const RULES: &str = "crates/agent/src/http/rules.rs";

const AGENT_AUDIT: &str = "crates/agent/src/http/audit.rs";

/// The HTTP door of an agent.
const AGENT_DOOR: Test = lib(Layer::Unit, "holdfast-agent", &["http::"]);

/// `holdfast cluster recover`.
const RECOVER: Test = file(Layer::Unit, "holdfast", &["--bin", "holdfast"], &["gateways_that_refuse_the_stores_"]);

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
        name: "allowed-in-every-region",
        bug: "a set is put into a store of another region than the one that the allowed place names",
        rule: "ACCESS-A2",
        edits: &[Edit {
            file: "crates/store/src/allowed.rs",
            old: "place.is_none_or(|region| at == Some(region))",
            new: "place.is_none_or(|region| at.is_none_or(|at| at == region || !at.is_empty()))",
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
        name: "gateways-allow-different-stores",
        bug: "a set is put anywhere while the gateway without a list of allowed stores leads, whatever the others allow",
        rule: "ACCESS-A8",
        edits: &[Edit {
            file: "crates/gateway/src/admin/checks.rs",
            old: "        if told.is_empty() {\n",
            new: "        if told.len() < usize::MAX {\n",
        }],
        tests: &[lib(
            Layer::Unit,
            "holdfast-gateway",
            &["no_set_is_put_into_a_store_while_the_gateways_allow_different_ones"],
        )],
        smoke: false,
    },
    Mutation {
        name: "new-stores-not-compared",
        bug: "a set that exists is put into other stores while the gateways allow different ones",
        rule: "ACCESS-A8",
        edits: &[Edit {
            file: "crates/gateway/src/admin/placement.rs",
            old: "                self.places_agree().await?;\n",
            new: "",
        }],
        tests: &[lib(
            Layer::Unit,
            "holdfast-gateway",
            &["no_set_is_put_into_a_store_while_the_gateways_allow_different_ones"],
        )],
        smoke: false,
    },
    Mutation {
        name: "store-kept-for-the-lists",
        bug: "no store is taken from a set while the gateways allow different ones, although nothing is put anywhere",
        rule: "ACCESS-A8",
        edits: &[Edit {
            file: "crates/gateway/src/admin/placement.rs",
            old: "            if !new.is_empty() {\n",
            new: "            {\n",
        }],
        tests: &[lib(
            Layer::Unit,
            "holdfast-gateway",
            &["no_set_is_put_into_a_store_while_the_gateways_allow_different_ones"],
        )],
        smoke: false,
    },
    Mutation {
        name: "recovery-compares-only-the-plan",
        bug: "`cluster recover` into a cluster with more gateways than the plan names fences the old ones before it finds out that another gateway allows different stores",
        rule: "ACCESS-A8",
        edits: &[Edit {
            file: "crates/holdfast/src/command/recover.rs",
            old: "filter(|node| these.iter().all(|one| one.disk != node.disk)).collect()",
            new: "filter(|node| these.iter().all(|one| one.disk == node.disk)).collect()",
        }],
        tests: &[file(
            Layer::Unit,
            "holdfast",
            &["--bin", "holdfast"],
            &["a_gateway_of_the_cluster_that_the_plan_does_not_name_is_compared_too"],
        )],
        smoke: false,
    },
    Mutation {
        name: "recovery-raises-what-is-then-refused",
        bug: "`cluster recover` fences the old gateways before it finds out that the new ones allow different stores",
        rule: "ACCESS-A8",
        edits: &[Edit {
            file: "crates/holdfast/src/command/recover.rs",
            old: "    if !different.is_empty() {\n",
            new: "    if different.len() == usize::MAX {\n",
        }],
        tests: &[RECOVER],
        smoke: false,
    },
    Mutation {
        name: "recovery-raises-what-lies-elsewhere",
        bug: "`cluster recover` fences the old gateways before it finds out that the new ones do not allow the store",
        rule: "ACCESS-A2",
        edits: &[Edit {
            file: "crates/holdfast/src/command/recover.rs",
            old: "            let checked = check_allowed(store, places);\n",
            new: "            let checked = check_allowed(store, &places[places.len()..]);\n",
        }],
        tests: &[RECOVER],
        smoke: false,
    },
    Mutation {
        name: "untold-group-has-no-name",
        bug: "`gateway list` with a host's certificate shows empty names for the sets that are not told to it",
        rule: "ACCESS-A7",
        edits: &[Edit {
            file: "crates/holdfast/src/command/gateway_list.rs",
            old: "group_name(group.group, &group.set);",
            new: "group_name(group.group, &group.set).replace(&format!(\"g{}\", group.group), &group.set);",
        }],
        tests: &[file(Layer::Unit, "holdfast", &["--bin", "holdfast"], &["command::gateway_list::"])],
        smoke: false,
    },
    Mutation {
        name: "untold-clone-is-none",
        bug: "a host that may not know a clone of its set is told that the clone was deleted or is being made",
        rule: "ACCESS-A7",
        edits: &[Edit {
            file: "crates/gateway/src/admin/concealed.rs",
            old: "            clone.name = UNTOLD_SET.to_string();\n",
            new: "            clone.name.clear();\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["concealed::"])],
        smoke: false,
    },
    Mutation {
        name: "host-reads-all-names",
        bug: "a host that is bound to its set reads the names of all sets, and where their owners stand",
        rule: "ACCESS-A7",
        edits: &[Edit {
            file: "crates/gateway/src/admin/concealed.rs",
            old: "caller.filter(|caller| !caller.sees_all())",
            new: "caller.filter(|caller| !caller.sees_all() && caller.may_use(\"\"))",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["concealed::", "a_host_of_one_set_is_told_no_other_name"])],
        smoke: false,
    },
    Mutation {
        name: "host-is-told-all-names-by-a-call",
        bug: "a call tells a host that is bound to its set everything that it tells an administrator",
        rule: "ACCESS-A7",
        edits: &[Edit {
            file: "crates/gateway/src/admin/mod.rs",
            old: ".for_caller(caller.as_ref())))",
            new: ".for_caller(caller.as_ref().filter(|caller| caller.sees_all()))))",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["a_host_of_one_set_is_told_no_other_name"])],
        smoke: false,
    },
    Mutation {
        name: "host-reads-snapshots-of-others-in-keys",
        bug: "what the state of a gateway says of data keys tells a host names of other sets' snapshots",
        rule: "ACCESS-A7",
        edits: &[Edit { file: "crates/gateway/src/admin/concealed.rs", old: "        self.keys = None;\n", new: "" }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["concealed::"])],
        smoke: false,
    },
    Mutation {
        name: "certificates-of-one-name-look-alike",
        bug: "refusals of a stolen certificate hide those of its owner's, since the audit log counts by the name",
        rule: "ACCESS-A4",
        edits: &[Edit {
            file: GUARD,
            old: "caller.map_or(\"\", |caller| caller.serial.as_str())",
            new: "caller.map_or(\"\", |caller| caller.name.as_str())",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["two_certificates_of_one_name_are_told_apart"])],
        smoke: false,
    },
    Mutation {
        name: "audit-forgets-refused-peers",
        bug: "a call between gateways by a copy of a disk, or of another cluster, leaves no line in the audit log",
        rule: "ACCESS-A3",
        edits: &[Edit { file: GUARD, old: "refusal.is_none_or(|code|", new: "refusal.is_some_and(|code|" }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["refusals_between_gateways_leave_a_line"])],
        smoke: false,
    },
    Mutation {
        name: "audit-forgets-refused-appends",
        bug: "who wants to append by the certificate of a host is refused, and leaves no line in the audit log",
        rule: "ACCESS-A3",
        edits: &[Edit {
            file: "crates/raft/src/append_receiver.rs",
            old: "            if status.code() == Code::PermissionDenied {\n",
            new: "            if status.code() == Code::Unauthenticated {\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-raft", &["a_door_learns_who_is_a_member"])],
        smoke: false,
    },
    Mutation {
        name: "open-snapshots-not-shown",
        bug: "the status of a cluster does not show that a gateway opens snapshots without a token",
        rule: "R10",
        edits: &[Edit {
            file: "crates/holdfast/src/command/status.rs",
            old: "let snapshots = node.open_snapshots.then(",
            new: "let snapshots = (node.open_snapshots && !node.disk.is_empty()).then(",
        }],
        tests: &[file(Layer::Unit, "holdfast", &["--bin", "holdfast"], &["snapshots_that_need_no_token_are_shown"])],
        smoke: false,
    },
    Mutation {
        name: "names-over-plain-http-not-told",
        bug: "nobody is told that metrics name all sets to other machines, although the gateway has a certificate",
        rule: "R10",
        edits: &[Edit {
            file: "crates/gateway/src/config.rs",
            old: "let plain = reached && self.tls.any() &&",
            new: "let plain = reached && self.tls.http.is_some() && self.tls.any() &&",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["names_in_plain_text_are_told_of"])],
        smoke: false,
    },
    Mutation {
        name: "secure-cluster-without-tokens",
        bug: "`holdfast dev --secure` lets every host with a certificate use every set, without a token",
        rule: "R10",
        edits: &[Edit {
            file: "crates/holdfast/src/command/dev/secure.rs",
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
            file: "crates/holdfast/src/command/dev/layout.rs",
            old: "args.secure || gateways.iter().all(|gateway| secure::is_on(&gateway.config));",
            new: "args.secure;",
        }],
        tests: &[DEV],
        smoke: false,
    },
    Mutation {
        name: "secure-host-uses-any-set",
        bug: "the host's certificate of a secure development cluster opens the sets of all others",
        rule: "TLS-T4",
        edits: &[Edit {
            file: "crates/holdfast/src/command/dev/layout.rs",
            old: "Wanted { sets, ..Wanted::new(HOST, Role::Host) }",
            new: "Wanted { hosts: sets, ..Wanted::new(HOST, Role::Host) }",
        }],
        tests: &[DEV],
        smoke: false,
    },
    Mutation {
        name: "secure-keys-for-everybody",
        bug: "every user of the machine can enter the folder with the authority's key",
        rule: "R10",
        edits: &[Edit {
            file: "crates/holdfast/src/command/dev/layout.rs",
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
            old: "let plain = node.plain_exports.then(",
            new: "let plain = (node.plain_exports && !node.disk.is_empty()).then(",
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
    Mutation {
        name: "agents-audit-forgets-commands",
        bug: "the commands that an agent carries out leave no line in its audit log",
        rule: "HEALTH-H6",
        edits: &[Edit {
            file: "crates/agent/src/http.rs",
            old: "command.filter(|_| request.method() == Method::POST);",
            new: "command.filter(|_| request.method() == Method::PUT);",
        }],
        tests: &[AGENT_DOOR],
        smoke: false,
    },
    Mutation {
        name: "agents-audit-forgets-who-does-not-wait",
        bug: "a command whose caller has gone leaves no line, although it may have moved PostgreSQL",
        rule: "HEALTH-H6",
        edits: &[Edit {
            file: AGENT_AUDIT,
            old: "        let facts = self.noted.0.locked();\n        let repeated",
            new: "        if self.code.is_none() {\n            return;\n        }\n        let facts = self.noted.0.locked();\n        let repeated",
        }],
        tests: &[AGENT_DOOR],
        smoke: false,
    },
    Mutation {
        name: "agents-audit-washed-out",
        bug: "strangers whose commands are refused push the lines of all others out of an agent's audit log",
        rule: "HEALTH-H6",
        edits: &[Edit {
            file: AGENT_AUDIT,
            old: "        if self.lines >= REFUSED_MAX {\n",
            new: "        if self.lines > u32::MAX - REFUSED_MAX {\n",
        }],
        tests: &[AGENT_DOOR],
        smoke: false,
    },
];
