//! The table: each path of the agent's HTTP door, and who may ask for it with a certificate (HEALTH-H3). The routes are
//! made of it: a path without a line does not exist.
//!
//! Health checks are for everybody. Whoever has no certificate that suffices needs the agents' token for the rest.

use crate::listen::Asker;
use crate::proof;
use holdfast_tls::Role::{self, Admin as A, Host as H, Operator as O, Viewer as V};
use holdfast_tls::{Caller, HttpClient};

/// What is behind a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// A health check.
    Check,
    /// For the proof of a token: says nothing about this host.
    Challenge,
    Metrics,
    History,
    Status,
    /// Patroni's document of this host.
    Host,
    /// Patroni's document of all hosts of the set.
    Cluster,
    /// Patroni's document of settings, to read.
    Config,
    /// It changes something, or may.
    Command,
}

/// One path.
#[derive(Debug)]
pub(super) struct Rule {
    pub path: &'static str,
    pub what: What,
    /// With which roles it needs no token. A host: of this set (TLS-T4).
    roles: &'static [Role],
}

const fn check(path: &'static str) -> Rule {
    Rule { path, what: What::Check, roles: &[] }
}

const fn reads(path: &'static str, what: What) -> Rule {
    // Agents compare their hosts.
    Rule { path, what, roles: &[V, O, A, H] }
}

const fn changes(path: &'static str, roles: &'static [Role]) -> Rule {
    Rule { path, what: What::Command, roles }
}

/// See the module.
pub(super) const RULES: &[Rule] = &[
    check("/"),
    check("/primary"),
    check("/master"),
    check("/leader"),
    check("/read-write"),
    check("/replica"),
    check("/standby-leader"),
    check("/standby_leader"),
    check("/asynchronous"),
    check("/async"),
    check("/read-only"),
    check("/sync"),
    check("/synchronous"),
    check("/quorum"),
    check("/read-only-sync"),
    check("/read-only-synchronous"),
    check("/read-only-quorum"),
    check("/health"),
    check("/readiness"),
    check("/liveness"),
    Rule { path: proof::PATH, what: What::Challenge, roles: &[] },
    reads("/metrics", What::Metrics),
    reads("/history", What::History),
    reads("/status", What::Status),
    reads("/patroni", What::Host),
    reads("/cluster", What::Cluster),
    reads("/config", What::Config),
    changes("/switchover", &[O, A]),
    changes("/switchover/cancel", &[O, A]),
    changes("/failover", &[O, A]),
    changes("/pause", &[O, A]),
    changes("/resume", &[O, A]),
    changes("/restart", &[O, A]),
    // Of the primary's agent, in its own name.
    changes("/claim", &[H]),
];

/// Whether a caller gets what it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    Yes,
    /// With the agents' token.
    WithToken,
    No,
}

/// The rule of a path; `None`: there is no such path.
pub(super) fn rule(path: &str) -> Option<&'static Rule> {
    RULES.iter().find(|rule| rule.path == path)
}

impl Rule {
    fn lets(&self, caller: &Caller, set: &str) -> bool {
        caller.roles.iter().any(|role| self.roles.contains(role) && (*role != H || caller.may_use(set)))
    }
}

/// Whether this caller gets what is behind `path`, at an agent of `set`. `plain_checks`: of a door with TLS that
/// answers health checks without it. A path that does not exist is a health check that is not found.
pub(super) fn pass(who: &Asker, path: &str, plain_checks: bool, set: &str) -> Pass {
    let rule = rule(path);
    let what = rule.map_or(What::Check, |rule| rule.what);
    let client = match who {
        Asker::Local => return Pass::Yes,
        Asker::Remote(_) if what == What::Command => return Pass::WithToken,
        Asker::Remote(_) => return Pass::Yes,
        Asker::Met(_, client) => client,
    };
    match (client, what) {
        (HttpClient::Plain, What::Check) if plain_checks => Pass::Yes,
        (HttpClient::Plain, _) => Pass::No,
        (_, What::Check | What::Challenge) => Pass::Yes,
        (HttpClient::Named(caller), _) if rule.is_some_and(|rule| rule.lets(caller, set)) => Pass::Yes,
        _ => Pass::WithToken,
    }
}

/// Whether this caller may claim the set in the name of this host. At a door with TLS it needs that host's certificate,
/// and the host must be a peer, whatever token comes with it. Otherwise each host of the cluster could have others take
/// a free set. Leaving the certificate out helps nobody: agents with TLS show theirs.
///
/// # Errors
/// What was found and what was expected.
pub(super) fn speaks_for(who: &Asker, host: &str, is_peer: bool) -> Result<(), String> {
    let caller = match who {
        Asker::Local | Asker::Remote(_) => return Ok(()),
        Asker::Met(_, HttpClient::Named(caller)) => caller,
        Asker::Met(_, HttpClient::Plain | HttpClient::Unnamed) => {
            return Err(format!("found a claim of {host} without a certificate, expected that of {host}"));
        }
    };
    if !caller.may_own(host) {
        let (found, owners) = (&caller.name, caller.owners_text());
        return Err(format!("found a claim of {host} with the certificate {found}, expected one of {owners}"));
    }
    if is_peer { Ok(()) } else { Err(format!("found a claim of {host}, expected one of a host under [peers]")) }
}

/// Who gives a command that is carried out, for the log.
pub(super) fn by(who: &Asker) -> String {
    match who {
        Asker::Local => "the agent's socket".to_string(),
        Asker::Met(from, HttpClient::Named(caller)) => format!("certificate {} from {from}", caller.name),
        Asker::Remote(from) | Asker::Met(from, HttpClient::Plain | HttpClient::Unnamed) => {
            format!("the agents' token from {from}")
        }
    }
}

/// Why this caller is refused, and what to do.
pub(super) fn refusal(who: &Asker, path: &str, set: &str) -> String {
    let rule = rule(path);
    let needs =
        "need the token of http.token_file: give it with --token-file, or run the command as root on the agent's host";
    let (from, client) = match who {
        Asker::Local => return format!("commands from this host over TCP {needs}"),
        Asker::Remote(from) => return format!("commands from {} over TCP {needs}", from.ip()),
        Asker::Met(from, client) => (from.ip(), client),
    };
    let roles: Vec<&str> = rule.map_or(&[][..], |rule| rule.roles).iter().map(|role| role.name()).collect();
    let roles = roles.join(", ");
    match client {
        HttpClient::Plain => format!(
            "found a request for {path} from {from} without TLS, expected one with TLS (http.tls): use https, or give the command --tls-ca, --tls-certificate and --tls-key"
        ),
        HttpClient::Unnamed => format!(
            "found no certificate from {from}, expected one of {roles} for {path}, or the token of http.token_file"
        ),
        HttpClient::Named(caller) => {
            let (name, has, sets) = (&caller.name, caller.roles_text(), caller.sets_text());
            format!(
                "found role {has} (sets: {sets}) of certificate {name}, expected one of {roles} of set {set} for {path}, or the token of http.token_file (--token-file)"
            )
        }
    }
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
