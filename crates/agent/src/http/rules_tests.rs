use super::*;
use holdfast_tls::make::{Wanted, certificates};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

/// Of the set "demo" at the agent db1.
const SET: &str = "demo";

fn from() -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 9], 5))
}

/// Certificates of each role, as a door reads them. `other` may use another set only.
fn callers(dir: &Path) -> Vec<(&'static str, Asker)> {
    let of = |name: &str, role| Wanted::new(name, role);
    let other = Wanted { sets: vec!["elsewhere".into()], ..of("other", H) };
    let all = [of("ann", A), of("oda", O), of("vic", V), of("db2", H), other, of("g1", Role::Gateway)];
    certificates(dir, &all, 30).unwrap();
    let met = |client| Asker::Met(from(), client);
    let named = |name: &'static str| {
        let caller = Caller::of(&der(&dir.join(format!("{name}.pem")))).unwrap();
        (name, met(HttpClient::Named(Arc::new(caller))))
    };
    vec![
        ("plain", met(HttpClient::Plain)),
        ("unnamed", met(HttpClient::Unnamed)),
        named("ann"),
        named("oda"),
        named("vic"),
        named("db2"),
        named("other"),
        named("g1"),
        ("without TLS", Asker::Remote(from())),
        ("local", Asker::Local),
    ]
}

/// The bytes of a certificate in PEM.
fn der(path: &Path) -> Vec<u8> {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let text = std::fs::read_to_string(path).unwrap();
    let body: String = text.lines().filter(|line| !line.starts_with('-')).collect();
    let (mut bits, mut held, mut bytes) = (0_u32, 0, Vec::new());
    for letter in body.bytes().filter(|letter| *letter != b'=') {
        let at = LETTERS.iter().position(|known| *known == letter).unwrap();
        (bits, held) = ((bits << 6) | u32::try_from(at).unwrap(), held + 6);
        if held >= 8 {
            held -= 8;
            bytes.push(u8::try_from((bits >> held) & 0xff).unwrap());
        }
    }
    bytes
}

/// HEALTH-H3, path by path: those that get it without a token, then those that get it with one.
#[test]
fn each_caller_gets_its_paths_and_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let callers = callers(dir.path());
    let with = |path: &str, pass: Pass, plain_checks: bool| -> Vec<&'static str> {
        let gets = |who: &Asker| super::pass(who, path, plain_checks, SET) == pass;
        callers.iter().filter(|(_, who)| gets(who)).map(|(name, _)| *name).collect()
    };
    let all: Vec<&str> = callers.iter().map(|(name, _)| *name).collect();
    let secured: Vec<&str> = all.iter().filter(|name| **name != "plain").copied().collect();
    for rule in RULES {
        let path = rule.path;
        let (yes, token) = match (rule.what, path) {
            (What::Check | What::Challenge, _) => (secured.clone(), vec![]),
            (What::Metrics | What::History | What::Status | What::Host | What::Cluster | What::Config, _) => {
                (vec!["ann", "oda", "vic", "db2", "without TLS", "local"], vec!["unnamed", "other", "g1"])
            }
            (What::Command, "/claim") => {
                (vec!["db2", "local"], vec!["unnamed", "ann", "oda", "vic", "other", "g1", "without TLS"])
            }
            (What::Command, _) => {
                (vec!["ann", "oda", "local"], vec!["unnamed", "vic", "db2", "other", "g1", "without TLS"])
            }
        };
        assert_eq!(with(path, Pass::Yes, false), yes, "{path}");
        assert_eq!(with(path, Pass::WithToken, false), token, "{path}");
        assert_eq!(with(path, Pass::No, false), ["plain"], "{path}");
        // A setting opens health checks to plain text, and nothing else.
        let plain = super::pass(&Asker::Met(from(), HttpClient::Plain), path, true, SET);
        assert_eq!(plain == Pass::Yes, rule.what == What::Check, "{path}");
        assert_ne!(plain, Pass::WithToken, "{path}");
    }
    assert_eq!(with("/nothing", Pass::No, false), ["plain"]);
}

#[test]
fn no_path_has_two_lines() {
    let mut paths: Vec<&str> = RULES.iter().map(|rule| rule.path).collect();
    paths.sort_unstable();
    paths.dedup();
    assert_eq!(paths.len(), RULES.len());
}

/// A host that is lost claims nothing in the name of another one, and not by leaving its certificate out either.
#[test]
fn a_claim_is_made_in_the_name_of_the_certificate() {
    let dir = tempfile::tempdir().unwrap();
    for (name, who) in callers(dir.path()) {
        let without = matches!(who, Asker::Local | Asker::Remote(_));
        assert_eq!(speaks_for(&who, "db2", true).is_ok(), without || name == "db2", "{name}");
        assert_eq!(speaks_for(&who, "db2", false).is_ok(), without, "{name}: of a host of another set");
    }
}

#[test]
fn the_log_says_who_gave_a_command() {
    let dir = tempfile::tempdir().unwrap();
    for (name, who) in callers(dir.path()) {
        let expected = match name {
            "local" => "the agent's socket".to_string(),
            "plain" | "unnamed" | "without TLS" => "the agents' token from 10.0.0.9:5".to_string(),
            name => format!("certificate {name} from 10.0.0.9:5"),
        };
        assert_eq!(by(&who), expected);
    }
}

#[test]
fn a_refusal_says_what_was_found_and_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    for (name, who) in callers(dir.path()) {
        let words = refusal(&who, "/pause", SET);
        let expected = match name {
            "plain" => "without TLS, expected one with TLS (http.tls): use https",
            "unnamed" => "found no certificate from 10.0.0.9, expected one of operator, admin for /pause",
            "other" => {
                "found role host (sets: elsewhere) of certificate other, expected one of operator, admin of set demo"
            }
            "without TLS" => "commands from 10.0.0.9 over TCP need the token",
            _ => "the token of http.token_file",
        };
        assert!(words.contains(expected), "{name}: {words}");
    }
}
