//! Which link a recorded connection belongs to, and what was found on each.

use super::record::Stream;
use crate::gateways::{self, GATEWAYS};
use crate::hosts::HTTP;
use crate::net::{HUB, address};
use crate::stage::{PORT, node};
use anyhow::Result;
use std::collections::BTreeMap;
use std::net::SocketAddrV4;

/// A link between two kinds of processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Link {
    NbdClient,
    Attach,
    Peers,
    GatewaysAdmin,
    GatewayHttp,
    Commands,
    Hosts,
    Agents,
    Health,
    Store,
    /// PostgreSQL's own clients: no link of Holdfast.
    Database,
    Other,
}

/// What is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Secret {
    Pattern,
    Token,
    /// The beginning of any token in the name of an export: attach keeps that of its lease to itself.
    TokenOfExport,
    SetName,
}

impl Secret {
    pub const ALL: [Self; 4] = [Self::Pattern, Self::Token, Self::TokenOfExport, Self::SetName];

    fn name(self) -> &'static str {
        match self {
            Self::Pattern => "pattern",
            Self::Token => "token",
            Self::TokenOfExport => "export with a token",
            Self::SetName => "name of the set",
        }
    }
}

/// Where an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Hub,
    Gateway,
    Host,
    Elsewhere,
}

fn place(at: SocketAddrV4) -> Place {
    let at = at.ip().to_string();
    let any = |mut nodes: std::ops::Range<usize>| nodes.any(|node| address(node) == at);
    if at == HUB {
        Place::Hub
    } else if any(0..GATEWAYS) {
        Place::Gateway
    } else if any(node(0)..node(2)) {
        Place::Host
    } else {
        Place::Elsewhere
    }
}

impl Link {
    /// On these something must have been sent; otherwise nothing was shown.
    const USED: [Self; 10] = [
        Self::NbdClient,
        Self::Attach,
        Self::Peers,
        Self::GatewaysAdmin,
        Self::GatewayHttp,
        Self::Commands,
        Self::Hosts,
        Self::Agents,
        Self::Health,
        Self::Store,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::NbdClient => "NBD client of others - gateway",
            Self::Attach => "attach - gateway (NBD)",
            Self::Peers => "gateway - gateway (gRPC and append frames)",
            Self::GatewaysAdmin => "gateway - gateway (admin door)",
            Self::GatewayHttp => "metrics - gateway (HTTP)",
            Self::Commands => "command - gateway (admin door)",
            Self::Hosts => "agent, attach - gateway (admin door)",
            Self::Agents => "agent - agent (HTTP)",
            Self::Health => "HAProxy, command - agent (HTTP)",
            Self::Store => "gateway - S3",
            Self::Database => "clients - PostgreSQL",
            Self::Other => "anything else",
        }
    }

    /// The link of a connection between these ends; the store listens at this port.
    fn of(one: SocketAddrV4, other: SocketAddrV4, store: u16) -> Self {
        for (server, client) in [(one, other), (other, one)] {
            let port = server.port();
            match (port, place(server), place(client)) {
                (7401, Place::Gateway, Place::Gateway) => return Self::Peers,
                (7400, Place::Gateway, Place::Gateway) => return Self::GatewaysAdmin,
                (7400, Place::Gateway, Place::Hub) => return Self::Commands,
                (7400, Place::Gateway, Place::Host) => return Self::Hosts,
                (gateways::HTTP, Place::Gateway, Place::Hub) => return Self::GatewayHttp,
                (10809, Place::Gateway, Place::Hub) => return Self::NbdClient,
                (10809, Place::Gateway, Place::Host) => return Self::Attach,
                (HTTP, Place::Host, Place::Host) => return Self::Agents,
                (HTTP, Place::Host, Place::Hub) => return Self::Health,
                (5432, Place::Host, _) => return Self::Database,
                (_, Place::Hub, Place::Gateway) if port == store => return Self::Store,
                (_, Place::Hub, _) if port == PORT || port == PORT + 2 => return Self::Database,
                _ => {}
            }
        }
        Self::Other
    }
}

/// What crossed one link.
#[derive(Clone, Debug, Default)]
struct Crossed {
    streams: u64,
    bytes: u64,
    missing: u64,
    found: BTreeMap<Secret, u64>,
}

/// What crossed all of them.
#[derive(Clone, Debug)]
pub struct Crossings(BTreeMap<Link, Crossed>);

fn count(bytes: &[u8], word: &[u8]) -> u64 {
    let Some(&first) = word.first() else { return 0 };
    let (mut rest, mut found) = (bytes, 0);
    while let Some(at) = rest.iter().position(|byte| *byte == first) {
        rest = &rest[at..];
        found += u64::from(rest.starts_with(word));
        rest = &rest[1..];
    }
    found
}

impl Crossings {
    /// Looks for the words of each secret.
    pub fn of(streams: &[Stream], store: u16, words: &[(Secret, Vec<u8>)]) -> Self {
        let mut all = BTreeMap::<Link, Crossed>::new();
        for stream in streams.iter().filter(|stream| !stream.bytes.is_empty()) {
            let crossed = all.entry(Link::of(stream.from, stream.to, store)).or_default();
            crossed.streams += 1;
            crossed.bytes += stream.bytes.len() as u64;
            crossed.missing += stream.missing;
            for (secret, word) in words {
                *crossed.found.entry(*secret).or_default() += count(&stream.bytes, word);
            }
        }
        Self(all)
    }

    fn found(&self, link: Link, secret: Secret) -> u64 {
        self.0.get(&link).and_then(|crossed| crossed.found.get(&secret)).copied().unwrap_or_default()
    }

    /// A row for each link.
    pub fn table(&self) -> String {
        let mut table = comfy_table::Table::new();
        table.load_style(comfy_table::presets::UTF8_FULL_CONDENSED);
        table.set_header(
            ["LINK", "STREAMS", "BYTES", "NOT RECORDED"]
                .map(String::from)
                .into_iter()
                .chain(Secret::ALL.map(|secret| secret.name().to_uppercase())),
        );
        for (link, crossed) in &self.0 {
            let counts = [crossed.streams, crossed.bytes, crossed.missing].map(|count| count.to_string());
            let found = Secret::ALL.map(|secret| self.found(*link, secret).to_string());
            table.add_row(std::iter::once(link.name().to_string()).chain(counts).chain(found));
        }
        table.to_string()
    }

    /// Whether enough was recorded to say anything. Fails when nothing crossed a link, or more than a hundredth of a
    /// link was not recorded.
    pub fn judge_record(&self) -> Result<()> {
        for link in Link::USED {
            anyhow::ensure!(self.0.contains_key(&link), "nothing crossed {}: nothing was shown", link.name());
        }
        for (link, crossed) in &self.0 {
            let (name, missing) = (link.name(), crossed.missing);
            anyhow::ensure!(missing * 100 <= crossed.bytes, "{name}: {missing} bytes were not recorded");
        }
        Ok(())
    }

    /// Of a cluster in plain text: everything is found where it must be, so that the search itself works. The token of
    /// attach's lease is looked for by what is before it in the name of its export. That of the agents must cross
    /// nowhere: whoever gives a command proves that it has it (PROOF-P1). Fails when something is not found, or the
    /// agents' token is.
    pub fn judge_plain(&self) -> Result<()> {
        for (link, secret) in [
            (Link::Attach, Secret::Pattern),
            (Link::Peers, Secret::Pattern),
            (Link::NbdClient, Secret::Token),
            (Link::Commands, Secret::Token),
            (Link::NbdClient, Secret::TokenOfExport),
            (Link::Attach, Secret::TokenOfExport),
            (Link::Attach, Secret::SetName),
            (Link::Commands, Secret::SetName),
            (Link::GatewayHttp, Secret::SetName),
            (Link::Hosts, Secret::SetName),
            (Link::Agents, Secret::SetName),
            (Link::Health, Secret::SetName),
        ] {
            let (link_name, name) = (link.name(), secret.name());
            anyhow::ensure!(self.found(link, secret) > 0, "in plain text, {link_name} shows no {name}: found nothing");
        }
        for link in [Link::Agents, Link::Health] {
            let (times, name) = (self.found(link, Secret::Token), link.name());
            anyhow::ensure!(times == 0, "PROOF-P1: {name} shows a token, {times} times");
        }
        Ok(())
    }

    /// Of a secured cluster (R10). Fails when something is found.
    pub fn judge_secured(&self) -> Result<()> {
        for link in self.0.keys().filter(|link| **link != Link::Database) {
            for secret in Secret::ALL {
                let (times, name) = (self.found(*link, secret), secret.name());
                anyhow::ensure!(times == 0, "R10: {} shows the {name} in clear, {times} times", link.name());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddrV4 {
        text.parse().unwrap()
    }

    fn stream(from: &str, to: &str, text: &str) -> Stream {
        Stream { from: at(from), to: at(to), bytes: text.into(), missing: 0 }
    }

    fn words() -> [(Secret, Vec<u8>); 4] {
        let all = ["PPP", "TTT", "?token=", "SSS"].map(|word| word.as_bytes().to_vec());
        let [pattern, token, export, set] = all;
        [(Secret::Pattern, pattern), (Secret::Token, token), (Secret::TokenOfExport, export), (Secret::SetName, set)]
    }

    #[test]
    fn connections_belong_to_links_in_both_directions() {
        for (one, other, link) in [
            ("10.98.0.11:40000", "10.98.0.12:7401", Link::Peers),
            ("10.98.0.11:40000", "10.98.0.12:7400", Link::GatewaysAdmin),
            ("10.98.0.1:40000", "10.98.0.13:7400", Link::Commands),
            ("10.98.0.15:40000", "10.98.0.13:7400", Link::Hosts),
            ("10.98.0.1:40000", "10.98.0.13:7403", Link::GatewayHttp),
            ("10.98.0.1:40000", "10.98.0.11:10809", Link::NbdClient),
            ("10.98.0.14:40000", "10.98.0.11:10809", Link::Attach),
            ("10.98.0.14:40000", "10.98.0.15:8008", Link::Agents),
            ("10.98.0.1:40000", "10.98.0.15:8008", Link::Health),
            ("10.98.0.12:40000", "10.98.0.1:11400", Link::Store),
            ("10.98.0.1:40000", "10.98.0.15:5432", Link::Database),
            ("10.98.0.1:40000", "10.98.0.1:5000", Link::Database),
            ("10.98.0.14:40000", "10.98.0.1:11400", Link::Other),
            ("10.98.0.16:40000", "10.98.0.11:7401", Link::Other),
        ] {
            assert_eq!([Link::of(at(one), at(other), 11400), Link::of(at(other), at(one), 11400)], [link, link]);
        }
    }

    #[test]
    fn what_is_found_is_counted_and_judged() {
        assert_eq!([count(b"aabab", b"ab"), count(b"ab", b"abc"), count(b"", b"a"), count(b"a", b"")], [2, 0, 0, 0]);
        let words = words();
        let crossed = |link: (&str, &str), text: &str| Crossings::of(&[stream(link.0, link.1, text)], 1, &words);
        let peers = ("10.98.0.11:40000", "10.98.0.12:7401");
        let agents = ("10.98.0.14:40000", "10.98.0.15:8008");
        assert!(crossed(peers, "sealed").judge_secured().is_ok());
        for text in ["-PPP-", "-TTT", "SSS-", "S/V?token=1"] {
            let error = crossed(peers, text).judge_secured().unwrap_err().to_string();
            assert!(error.starts_with("R10: gateway - gateway (gRPC"), "{error}");
        }
        assert!(crossed(agents, "sealed").judge_secured().is_ok());
        assert!(crossed(agents, "SSS").judge_secured().is_err(), "agents have TLS, too");
        assert!(crossed(("10.9.9.9:1", "10.9.9.8:2"), "PPP").judge_secured().is_err(), "an unknown link counts");
        assert!(crossed(peers, "PPP").judge_plain().is_err() && crossed(peers, "PPP").judge_record().is_err());
        assert!(crossed(peers, "PPP").table().contains("append frames"));
    }

    /// What an open cluster shows (R10), and what it does not (PROOF-P1).
    #[test]
    fn an_open_cluster_shows_all_but_the_agents_token() {
        let words = words();
        let judged = |of_attach: &str, of_agents: &str| {
            let [gateway, host] = ["10.98.0.11", "10.98.0.14"];
            let streams = [
                stream("10.98.0.11:40000", "10.98.0.12:7401", "PPP"),
                stream("10.98.0.1:40000", &format!("{gateway}:7400"), "TTT SSS"),
                stream("10.98.0.1:40000", &format!("{gateway}:7403"), "SSS"),
                stream("10.98.0.1:40000", &format!("{gateway}:10809"), "?token=TTT"),
                stream(&format!("{host}:40000"), &format!("{gateway}:10809"), of_attach),
                stream(&format!("{host}:40000"), &format!("{gateway}:7400"), "SSS"),
                stream(&format!("{host}:40000"), "10.98.0.15:8008", of_agents),
                stream("10.98.0.1:40000", "10.98.0.15:8008", "SSS"),
            ];
            Crossings::of(&streams, 1, &words).judge_plain()
        };
        let attach = "PPP SSS?token=1";
        judged(attach, "SSS").unwrap();
        let error = judged(attach, "SSS TTT").unwrap_err().to_string();
        assert!(error.starts_with("PROOF-P1: agent - agent"), "{error}");
        judged(attach, "-").unwrap_err();
        let error = judged("PPP SSS", "SSS").unwrap_err().to_string();
        assert!(error.ends_with("attach - gateway (NBD) shows no export with a token: found nothing"), "{error}");
    }
}
