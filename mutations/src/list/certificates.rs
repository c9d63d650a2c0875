//! Certificates that are revoked: who is still let in, and who can revoke whom.

use crate::bug::{Edit, Layer, Mutation, Test, file, lib};

const REVOKED: &str = "crates/tls/src/revoked.rs";

const REVOCATION_CACHE: &str = "crates/tls/src/revocation_cache.rs";

const STATE: &str = "crates/control/src/cluster/revoked.rs";

const STATE_TEST: Test = lib(Layer::Unit, "holdfast-control", &["whoever_revokes_is_left_over"]);

const OPEN_TEST: Test = lib(Layer::Unit, "holdfast-tls", &["an_open_connection_of_a_revoked_certificate_ends"]);

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "revoked-by-both-only",
        bug: "a certificate that is revoked by its serial number opens connections, unless its name is revoked, too",
        rule: "REVOKE-V1",
        edits: &[Edit {
            file: REVOKED,
            old: "if self.serials.contains(&one.serial) || self.names.contains(&one.name) {",
            new: "if self.serials.contains(&one.serial) && self.names.contains(&one.name) {",
        }],
        tests: &[lib(Layer::Unit, "holdfast-tls", &["a_revoked_certificate_opens_no_door"])],
        smoke: false,
    },
    Mutation {
        name: "name-beside-another-pair",
        bug: "a certificate whose common name stands beside another pair of its set is not revoked by its name",
        rule: "REVOKE-V1",
        edits: &[Edit { file: "crates/tls/src/der.rs", old: "while !set.is_empty() {", new: "if !set.is_empty() {" }],
        tests: &[lib(Layer::Unit, "holdfast-tls", &["a_common_name_beside_another_pair_is_found"])],
        smoke: false,
    },
    Mutation {
        name: "authorities-between-left-out",
        bug: "certificates by an authority between, as step-ca and cert-manager make them, open no door",
        rule: "TLS-T1",
        edits: &[Edit {
            file: "crates/tls/src/load.rs",
            old: "Configs::new(ca, own, key, revocations)",
            new: "Configs::new(ca, own[..1].to_vec(), key, revocations)",
        }],
        tests: &[lib(Layer::Unit, "holdfast-tls", &["certificates_of_other_authorities_work_as_they_come"])],
        smoke: false,
    },
    Mutation {
        name: "short-certificates-always-warned-of",
        bug: "a certificate that lives a day, as step-ca's, is warned of from its first hour to its last",
        rule: "LIVE-C1",
        edits: &[Edit {
            file: "crates/tls/src/expiry.rs",
            old: "WARN_AHEAD.min(ends.saturating_sub(begins) / WARN_PART)",
            new: "WARN_AHEAD",
        }],
        tests: &[lib(Layer::Unit, "holdfast-tls", &["what_expires_soon_is_warned_of"])],
        smoke: false,
    },
    Mutation {
        name: "authority-between-ends-untold",
        bug: "an authority between ends untold while the certificates that it makes live for a day",
        rule: "LIVE-C1",
        edits: &[Edit {
            file: "crates/tls/src/expiry.rs",
            old: "let warned = all().filter(|(_, life)| now >= life.warned).min_by_key(|(_, life)| life.ends);",
            new: "let warned = all().min_by_key(|(_, life)| life.ends);",
        }],
        tests: &[lib(
            Layer::Unit,
            "holdfast-tls",
            &["an_authority_between_that_ends_soon_is_told_beside_a_shorter_certificate"],
        )],
        smoke: false,
    },
    Mutation {
        name: "authority-between-hides-the-certificate",
        bug: "while an authority between is warned of, a certificate that is not renewed ends untold",
        rule: "LIVE-C1",
        edits: &[Edit {
            file: "crates/tls/src/expiry.rs",
            old: "let own = warned.or_else(|| all().min_by_key(|(_, life)| life.warned));",
            new: "let own = all().min_by_key(|(_, life)| life.warned).or(warned);",
        }],
        tests: &[lib(
            Layer::Unit,
            "holdfast-tls",
            &["an_authority_between_that_ends_soon_is_told_beside_a_shorter_certificate"],
        )],
        smoke: false,
    },
    Mutation {
        name: "quiet-at-the-end",
        bug: "the log is quiet for a day after each warning: of a certificate that lives a day it does not say that it has expired",
        rule: "LIVE-C1",
        edits: &[Edit {
            file: "crates/tls/src/expiry.rs",
            old: "self.quiet = Some((expiry, instant + expiry.quiet(now)));",
            new: "self.quiet = Some((expiry, instant + Duration::from_secs(DAY).max(expiry.quiet(now))));",
        }],
        tests: &[lib(Layer::Unit, "holdfast-tls", &["the_log_speaks_more_often_near_the_end_and_at_it"])],
        smoke: false,
    },
    Mutation {
        name: "quiet-after-a-renewal",
        bug: "what was said of a certificate keeps the log quiet about the next one",
        rule: "LIVE-C1",
        edits: &[Edit {
            file: "crates/tls/src/expiry.rs",
            old: "of == expiry && instant < until",
            new: "(of == expiry || instant < until) && instant < until",
        }],
        tests: &[lib(Layer::Unit, "holdfast-tls", &["the_log_speaks_more_often_near_the_end_and_at_it"])],
        smoke: false,
    },
    Mutation {
        name: "unusable-certificate-ends-the-agent",
        bug: "an agent that is restarted beside PostgreSQL while its certificate is written ends: the watchdog ends PostgreSQL",
        rule: "LISTEN-L3",
        edits: &[Edit {
            file: "crates/agent/src/run/opened.rs",
            old: "    if listen::is_first(host).await {",
            new: "    if listen::is_first(host).await || tls.is_some() {",
        }],
        tests: &[lib(
            Layer::Unit,
            "holdfast-agent",
            &["an_agent_with_something_to_do_goes_on_without_its_certificate"],
        )],
        smoke: false,
    },
    Mutation {
        name: "unusable-certificate-leaves-devices",
        bug: "an attach that is killed after a renewal of its certificate went wrong ends at its next start: its devices fail in the end, and nobody starts it again",
        rule: "LIVE-C4",
        edits: &[Edit {
            file: "crates/attach/src/keeper/resume.rs",
            old: "let Left::Devices(lease) = left else {",
            new: "let Some(Left::Devices(lease)) = why.is_empty().then_some(left) else {",
        }],
        tests: &[lib(Layer::Unit, "holdfast-attach", &["devices_wait_for_tls_files_that_cannot_be_used"])],
        smoke: false,
    },
    Mutation {
        name: "attach-asks-for-tls-files-first",
        bug: "an attach ends for TLS files that cannot be used before it looks for devices that wait for it",
        rule: "LIVE-C4",
        edits: &[Edit {
            file: "crates/holdfast/src/cli/common.rs",
            old: "self.certificate_by(|files| files.load_or_later(role))",
            new: "self.certificate_by(|files| files.load(role))",
        }],
        tests: &[file(
            Layer::Unit,
            "holdfast",
            &["--test", "program"],
            &["extras::an_attach_looks_for_devices_before_its_tls_files"],
        )],
        smoke: false,
    },
    Mutation {
        name: "late-certificate-never-read",
        bug: "TLS files that could not be used at the start are never used: the agent reaches no gateway until it is restarted",
        rule: "LIVE-C4",
        edits: &[Edit {
            file: "crates/tls/src/live.rs",
            old: "self.current.send_replace(Current { loaded: Some(loaded), trouble: None });",
            new: "let any = self.current.borrow().loaded.is_some();
                self.current.send_replace(Current { loaded: any.then_some(loaded), trouble: None });",
        }],
        tests: &[lib(Layer::Unit, "holdfast-tls", &["files_that_cannot_be_used_at_the_start_are_used_once_they_can"])],
        smoke: false,
    },
    Mutation {
        name: "interrupted-renewal-stays",
        bug: "a renewal that was interrupted is refused ever after: key and certificate do not fit together",
        rule: "LIVE-C2",
        edits: &[Edit {
            file: "crates/tls/src/renew.rs",
            old: "for left in [&next_key, &next_certificate] {",
            new: "for left in [&next_key; 0] {",
        }],
        tests: &[lib(Layer::Unit, "holdfast-tls", &["a_renewal_that_was_interrupted_is_made_again"])],
        smoke: false,
    },
    Mutation {
        name: "open-connection-is-not-revoked",
        bug: "a connection that is open stays so after its peer's certificate was revoked",
        rule: "REVOKE-V2",
        edits: &[Edit {
            file: REVOKED,
            old: "Some(ending) => ending.as_mut().poll(cx).is_ready(),",
            new: "Some(ending) => false && ending.as_mut().poll(cx).is_ready(),",
        }],
        tests: &[OPEN_TEST],
        smoke: false,
    },
    Mutation {
        name: "writer-is-not-revoked",
        bug: "a gateway that only writes goes on sending to a peer whose certificate was revoked",
        rule: "REVOKE-V2",
        edits: &[Edit {
            file: REVOKED,
            old: "if self.list.has_changed().unwrap_or(false) {",
            new: "if self.list.has_changed().is_err() {",
        }],
        tests: &[OPEN_TEST],
        smoke: false,
    },
    Mutation {
        name: "dials-a-revoked-gateway",
        bug: "gateways connect to a gateway whose certificate was revoked, and send it what is written",
        rule: "REVOKE-V1",
        edits: &[Edit {
            file: "crates/tls/src/stream.rs",
            old: "Ok(Box::new(revocations.follow(secured, own)?))",
            new: "Ok(Box::new((Revocations::default(), revocations).0.follow(secured, own)?))",
        }],
        tests: &[lib(Layer::Unit, "holdfast-tls", &["a_gateway_does_not_connect_to_a_revoked_one"])],
        smoke: false,
    },
    Mutation {
        name: "call-of-a-revoked-certificate",
        bug: "a call on a connection that was open before is made although the certificate was revoked",
        rule: "REVOKE-V1",
        edits: &[Edit {
            file: "crates/gateway/src/access/guard.rs",
            old: "    revocations.check(&caller.identity()).map_err(|why| denied(format!(\"{}: {why}\", rule.method)))?;\n",
            new: "    let _ = revocations.check(&caller.identity());\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["a_revoked_certificate_makes_no_call"])],
        smoke: false,
    },
    Mutation {
        name: "sets-not-checked-at-nbd",
        bug: "a host that is bound to its set opens the volumes of other sets at the NBD door",
        rule: "TLS-T4",
        edits: &[Edit {
            file: "crates/front/src/line.rs",
            old: "Some(caller) => caller.may_open(set.as_str()),",
            new: "Some(caller) => caller.may_open(set.as_str()).or(Ok(())),",
        }],
        tests: &[lib(Layer::Unit, "holdfast-front", &["a_host_opens_its_own_sets_only"])],
        smoke: false,
    },
    Mutation {
        name: "administrator-revokes-itself",
        bug: "the last administrator revokes its own certificate, and nobody can take it back",
        rule: "CLUSTER-C5",
        edits: &[Edit {
            file: STATE,
            old: "        if what.covers(by) {\n",
            new: "        if what.covers(by) && self.revoked.contains_key(what) {\n",
        }],
        tests: &[STATE_TEST],
        smoke: false,
    },
    Mutation {
        name: "two-administrators-revoke-each-other",
        bug: "of two administrators who revoke each other at the same moment, none is left",
        rule: "CLUSTER-C5",
        edits: &[Edit {
            file: STATE,
            old: "        if self.is_revoked(by) {\n",
            new: "        if self.is_revoked(by) && self.revoked.contains_key(what) {\n",
        }],
        tests: &[STATE_TEST],
        smoke: false,
    },
    Mutation {
        name: "majority-of-gateways-revoked",
        bug: "a revocation shuts a majority of the gateways out, and nothing can be committed to take it back",
        rule: "CLUSTER-C5",
        edits: &[Edit {
            file: "crates/gateway/src/admin/certificates.rs",
            old: "    if left * 2 <= members {\n",
            new: "    if left * 2 <= members && !force {\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["a_gateway_is_not_shut_out_by_mistake_and_a_majority_never"])],
        smoke: false,
    },
    Mutation {
        name: "silent-gateways-are-not-counted",
        bug: "a certificate that a majority of the gateways uses is revoked, since these did not answer in time",
        rule: "CLUSTER-C5",
        edits: &[Edit {
            file: "crates/gateway/src/admin/certificates.rs",
            old: "(answer <= in_use.silent.len()).then(",
            new: "(answer == usize::MAX).then(",
        }],
        tests: &[lib(
            Layer::Unit,
            "holdfast-gateway",
            &["a_gateway_that_does_not_answer_is_not_shut_out_by_mistake_either"],
        )],
        smoke: false,
    },
    Mutation {
        name: "plain-text-at-a-door-with-tls",
        bug: "a call without a certificate is made by everybody at a door that takes only TLS",
        rule: "ACCESS-A1",
        edits: &[Edit {
            file: "crates/gateway/src/access/guard.rs",
            old: "let in_plain = either.is_some() && over_tls.is_none();",
            new: "let in_plain = over_tls.is_none();",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["a_call_without_a_rule_or_a_certificate_is_not_made"])],
        smoke: false,
    },
    Mutation {
        name: "no-roles-while-both-are-taken",
        bug: "while a cluster comes to TLS, a host's certificate may do everything at the admin door",
        rule: "ACCESS-A1",
        edits: &[Edit {
            file: "crates/gateway/src/access/guard.rs",
            old: "let in_plain = either.is_some() && over_tls.is_none();",
            new: "let in_plain = either.is_some();",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["a_door_that_takes_both_still_checks_who_has_a_certificate"])],
        smoke: false,
    },
    Mutation {
        name: "operator-gets-a-token",
        bug: "an operator fails a set over to an owner of its own choice and gets the token, which writes",
        rule: "ACCESS-A2",
        edits: &[Edit {
            file: "crates/gateway/src/access/named.rs",
            old: "Role::Operator if self.grants => Err(",
            new: "Role::Operator if self.grants && self.destroys => Err(",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["an_operator_gets_no_token"])],
        smoke: false,
    },
    Mutation {
        name: "silence-empties-the-list",
        bug: "an agent whose gateways do not answer forgets which certificates are revoked",
        rule: "REVOKE-V3",
        edits: &[Edit {
            file: REVOCATION_CACHE,
            old: "        if answered.len() * 2 > count {\n",
            new: "        if answered.len() * 2 > count || answered.is_empty() {\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-tls", &["what_a_gateway_has_named_is_not_forgotten_by_silence"])],
        smoke: false,
    },
    Mutation {
        name: "one-gateway-empties-the-list",
        bug: "one gateway that is cut off, and names nobody, takes what the others have named off an agent's list",
        rule: "REVOKE-V3",
        edits: &[Edit {
            file: REVOCATION_CACHE,
            old: "        if answered.len() * 2 > count {\n",
            new: "        if !answered.is_empty() && count > 0 {\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-tls", &["what_a_gateway_has_named_is_not_forgotten_by_silence"])],
        smoke: false,
    },
    Mutation {
        name: "part-of-a-list-is-taken",
        bug: "an answer that lost a part of the list on its way shortens an agent's list",
        rule: "REVOKE-V3",
        edits: &[Edit {
            file: REVOCATION_CACHE,
            old: "            return Err(\"found a part of its list, expected the whole\".to_string());\n",
            new: "            tracing::debug!(\"a part of the list\");\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-tls", &["a_part_of_a_list_is_no_list"])],
        smoke: false,
    },
    Mutation {
        name: "restart-empties-the-list",
        bug: "an agent that is restarted while no gateway answers takes certificates that were revoked before",
        rule: "REVOKE-V4",
        edits: &[Edit {
            file: REVOCATION_CACHE,
            old: "                kept.words = words;\n",
            new: "                drop(words);\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-tls", &["a_restart_forgets_nothing_while_no_gateway_answers"])],
        smoke: false,
    },
    Mutation {
        name: "unreadable-list-is-empty",
        bug: "an agent whose list of revoked certificates is damaged takes all certificates",
        rule: "REVOKE-V4",
        edits: &[Edit {
            file: REVOCATION_CACHE,
            old: "                kept.unread = true;\n",
            new: "                kept.unread = false;\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-tls", &["a_list_that_cannot_be_read_is_not_empty"])],
        smoke: false,
    },
    Mutation {
        name: "host-trusts-a-revoked-gateway",
        bug: "a host goes on reading and writing at a gateway whose certificate was revoked",
        rule: "REVOKE-V2",
        edits: &[Edit {
            file: "crates/tls/src/dial.rs",
            old: "        self.0.revocations().follow(secured, own)\n",
            new: "        Revocations::default().follow(secured, own)\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-tls", &["a_host_leaves_a_server_whose_certificate_is_revoked"])],
        smoke: false,
    },
    Mutation {
        name: "agent-trusts-a-revoked-host",
        bug: "an agent goes on asking the agent of a host whose certificate was revoked",
        rule: "REVOKE-V2",
        edits: &[Edit {
            file: "crates/tls/src/dial.rs",
            old: "        Ok((self.0.revocations().follow(secured, own)?, peer))\n",
            new: "        Ok((Revocations::default().follow(secured, own)?, peer))\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-tls", &["a_host_leaves_a_server_whose_certificate_is_revoked"])],
        smoke: false,
    },
    Mutation {
        name: "http-door-of-the-revoked",
        bug: "a revoked operator gives commands to agents over a connection that is open",
        rule: "REVOKE-V2",
        edits: &[Edit {
            file: "crates/tls/src/http.rs",
            old: "Box::new(acceptor.revocations().follow(secured, Some(own))?);",
            new: "Box::new((crate::Revocations::default(), acceptor).0.follow(secured, Some(own))?);",
        }],
        tests: &[lib(Layer::Unit, "holdfast-agent", &["a_revoked_certificate_gives_no_command"])],
        smoke: false,
    },
    Mutation {
        name: "list-lost-by-a-reboot",
        bug: "the attach of a rebooted host begins without a list, although its agent has one",
        rule: "REVOKE-V4",
        edits: &[Edit {
            file: "crates/agent/src/attach_process.rs",
            old: "            std::fs::rename(&next, dir.join(REVOKED_FILE))\n",
            new: "            std::fs::remove_file(&next)\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-agent", &["it_begins_with_the_agents_list_of_revoked_certificates"])],
        smoke: false,
    },
    Mutation {
        name: "damaged-list-handed-over",
        bug: "the damaged list of an agent takes the place of the whole one of its attach, which then dials a revoked gateway",
        rule: "REVOKE-V4",
        edits: &[Edit {
            file: "crates/agent/src/attach_process.rs",
            old: "            RevocationCache::check(&from)?;\n",
            new: "            let _ = RevocationCache::check(&from);\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-agent", &["it_begins_with_the_agents_list_of_revoked_certificates"])],
        smoke: false,
    },
    Mutation {
        name: "slow-list-costs-the-lease",
        bug: "a gateway that is slow to tell which certificates are revoked loses the connection that renews the lease",
        rule: "ATTACH-M7",
        edits: &[Edit {
            file: "crates/attach/src/revoked.rs",
            old: "doors.ask_beside(&address,",
            new: "doors.ask(&address,",
        }],
        tests: &[lib(Layer::Unit, "holdfast-attach", &["a_gateway_that_is_slow_to_tell_keeps_its_connection"])],
        smoke: false,
    },
];
