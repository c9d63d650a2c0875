//! Checks whether a gateway may start with a configuration.

use super::{GatewayConfig, GatewayRole, KeyConfig, Mistake, NbdTls, PairDurability};
use holdfast_control::pair::{TTL_MAX, TTL_MIN};
use holdfast_control::set::SEGMENT_NOTES_MAX;
use holdfast_store::check_allowed;
use holdfast_tls::HttpTls;
use holdfast_types::{ByteSize, limits};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Minimum number of files within the bound: one filling, one ready, two being freed.
const JOURNAL_FILES_MIN: u64 = 4;

/// A checkpoint seals everything that a set has in the journal, and it can name only a limited number of segments. A
/// checkpoint that needed more could never complete. Half of that number is kept for what garbage collection moves with
/// the checkpoint, and for segments that are not full.
const JOURNAL_BOUND_MAX: u64 = (SEGMENT_NOTES_MAX * limits::SEGMENT_BYTES_TARGET) as u64 / 2;
const _: () = assert!(JOURNAL_BOUND_MAX == 128 * GIB);

/// Minimum duration of a lease, in round trips: a renewal is an entry of the log and may meet an election.
const LEASE_ROUND_TRIPS_MIN: u32 = 20;

/// One problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The field as in TOML, `section.field`.
    pub field: &'static str,
    /// Its value.
    pub found: String,
    /// The requirement.
    pub expected: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: found {}, expected {}", self.field, self.found, self.expected)
    }
}

/// A configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The file is not a configuration.
    #[error("{} {}", path.display(), mistakes.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Parse {
        /// The file.
        path: PathBuf,
        /// All known mistakes.
        mistakes: Vec<Mistake>,
    },
    /// Values that are out of range or contradict each other.
    #[error("configuration: {}", problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Invalid {
        /// All problems.
        problems: Vec<Problem>,
    },
}

struct Problems(Vec<Problem>);

impl Problems {
    fn need(&mut self, holds: bool, field: &'static str, found: impl fmt::Display, expected: impl Into<String>) {
        if !holds {
            self.0.push(Problem { field, found: found.to_string(), expected: expected.into() });
        }
    }

    fn size(&mut self, field: &'static str, found: ByteSize, min: u64, max: u64) {
        let expected = format!("{} to {}", ByteSize(min), ByteSize(max));
        self.need((min..=max).contains(&found.0), field, found, expected);
    }

    fn number(&mut self, field: &'static str, found: u64, min: u64, max: u64) {
        self.need((min..=max).contains(&found), field, found, format!("{min} to {max}"));
    }
}

/// All problems of `config`, in the order of its fields.
pub(super) fn problems(config: &GatewayConfig) -> Vec<Problem> {
    let mut out = Problems(Vec::new());
    let place = config.data_dir.display();
    out.need(!config.data_dir.as_os_str().is_empty(), "data_dir", "nothing", "a directory");
    out.need(
        config.data_dir.as_os_str().is_empty() || config.data_dir.is_absolute(),
        "data_dir",
        place,
        "an absolute path",
    );
    addresses(config, &mut out);
    out.number("rtt_ms", config.rtt_ms.into(), 1, 1000);
    out.number("rtt_floor_ms", config.rtt_floor_ms.into(), 1, config.rtt_ms.max(1).into());
    out.number("rtt_calm_ms", config.rtt_calm_ms, 5000, 86_400_000);
    let ttl_min = LEASE_ROUND_TRIPS_MIN.saturating_mul(config.rtt_ms).max(1000);
    out.number("lease_ttl_ms", config.lease_ttl_ms.into(), ttl_min.into(), 600_000);
    out.number("worker_threads", config.worker_threads.into(), 0, 64);
    journal(config, &mut out);
    placing(config, &mut out);
    cache(config, &mut out);
    in_flight(config, &mut out);
    upload(config, &mut out);
    space(config, &mut out);
    out.size("scrub.bytes_per_second", config.scrub.bytes_per_second, 0, GIB);
    out.number("scrub.interval_ms", config.scrub.interval_ms, 1000, 31_536_000_000);
    store(config, &mut out);
    keys(config, &mut out);
    tls(config, &mut out);
    store_endpoint(config, &mut out);
    audit(config, &mut out);
    traces(config, &mut out);
    etcd(config, &mut out);
    pair(config, &mut out);
    out.0
}

fn placing(config: &GatewayConfig, out: &mut Problems) {
    let replace = config.placing.replace_after_ms;
    let good = replace == 0 || (60_000..=86_400_000).contains(&replace);
    out.need(good, "placing.replace_after_ms", replace, "60000 to 86400000, or 0 for never");
    let follow = config.placing.follow_owner_ms;
    let good = follow == 0 || (5_000..=86_400_000).contains(&follow);
    out.need(good, "placing.follow_owner_ms", follow, "5000 to 86400000, or 0 for never");
    if let Some(locality) = &config.locality {
        let same = config.region == GatewayConfig::default().region || config.region == locality.region;
        out.need(
            same,
            "region",
            &config.region,
            format!("{}, as in locality, or no region beside it", locality.region),
        );
    }
}

fn cache(config: &GatewayConfig, out: &mut Problems) {
    // A quarter of it is for map pages, and no cache works with less than 8 MiB.
    out.size("cache.memory", config.cache.memory, 32 * MIB, 1 << 50);
    out.size("cache.read_ahead", config.cache.read_ahead, 0, 64 * MIB);
    out.size("cache.warm_bytes_per_second", config.cache.warm_bytes_per_second, 0, GIB);
    let disk = config.cache.disk;
    out.need(disk.0 == 0 || disk.0 >= 64 * MIB, "cache.disk", disk, "0B, or 64MiB and more");
}

fn in_flight(config: &GatewayConfig, out: &mut Problems) {
    let flight = &config.in_flight;
    out.number("in_flight.connections", flight.connections.into(), 1, 65_536);
    out.number("in_flight.connection_requests", flight.connection_requests.into(), 1, 4096);
    out.number("in_flight.gateway_requests", flight.gateway_requests.into(), 1, 1 << 24);
    out.size("in_flight.connection_bytes", flight.connection_bytes, limits::REQUEST_BYTES_MAX.into(), 1 << 40);
    out.size("in_flight.gateway_bytes", flight.gateway_bytes, flight.connection_bytes.0, 1 << 50);
}

fn upload(config: &GatewayConfig, out: &mut Problems) {
    out.number("upload.interval_ms", config.upload.interval_ms, 100, 3_600_000);
    out.size("upload.bytes", config.upload.bytes, MIB, (config.journal.bound.0 / 4).max(MIB));
    out.number("upload.parallel", config.upload.parallel.into(), 1, 64);
    if let Some(bytes) = config.upload.whole_root {
        out.size("upload.whole_root", bytes, 0, 16 * MIB);
    }
}

fn space(config: &GatewayConfig, out: &mut Problems) {
    out.number("space.target_percent", config.space.target_percent.into(), 105, 1000);
    out.size("space.move_bytes_per_second", config.space.move_bytes_per_second, 0, 1024 * GIB);
    out.number("space.move_requests_per_second", config.space.move_requests_per_second.into(), 0, 10_000);
    out.size("space.repair_bytes_per_second", config.space.repair_bytes_per_second, 0, 1024 * GIB);
    out.number("space.grace_ms", config.space.grace_ms, 100, 86_400_000);
    out.number("space.deletes_per_second", config.space.deletes_per_second.into(), 1, 10_000);
    out.number("space.sweep_interval_ms", config.space.sweep_interval_ms, 1000, 604_800_000);
}

fn store(config: &GatewayConfig, out: &mut Problems) {
    out.number("store.read_timeout_ms", config.store.read_timeout_ms, 100, 120_000);
    out.number("store.write_timeout_ms", config.store.write_timeout_ms, 100, 120_000);
    out.number("store.let_go_ms", config.store.let_go_ms, 1000, 3_600_000);
    if let Some(path) = &config.store.credentials_file {
        out.need(path.is_absolute(), "store.credentials_file", format!("{path:?}"), "an absolute path");
    }
    for place in &config.store.allowed {
        // A place that lies within itself is one.
        if let Err(error) = check_allowed(place, std::slice::from_ref(place)) {
            out.need(false, "store.allowed", format!("{place:?}"), error.to_string());
        }
    }
}

fn audit(config: &GatewayConfig, out: &mut Problems) {
    out.size("audit.rotate", config.audit.rotate, MIB, 16 * GIB);
    if let Some(path) = &config.audit.log {
        out.need(path.is_absolute(), "audit.log", format!("{path:?}"), "an absolute path");
    }
}

fn traces(config: &GatewayConfig, out: &mut Problems) {
    let traces = &config.traces;
    if let Some(endpoint) = &traces.endpoint
        && let Err(expected) = holdfast_traces::check(endpoint, traces.ca.is_some())
    {
        out.need(false, "traces.endpoint", format!("{endpoint:?}"), expected);
    }
    out.number("traces.sample", traces.sample.into(), 0, 1000);
    out.number("traces.slow_ms", traces.slow_ms, 1, 60_000);
}

fn tls(config: &GatewayConfig, out: &mut Problems) {
    let tls = [&config.tls.ca, &config.tls.certificate, &config.tls.key];
    let named = tls.iter().filter(|path| path.is_some()).count();
    out.need(
        named == 0 || named == tls.len(),
        "tls",
        format!("{named} files"),
        "all of ca, certificate and key, or none",
    );
    out.need(
        named == 0 || !config.plaintext_network || config.tls.transition.is_some(),
        "plaintext_network",
        "true beside [tls]",
        "only one of them: with [tls], all traffic between gateways is encrypted",
    );
    if let Some(transition) = config.tls.transition {
        out.need(named > 0, "tls.transition", transition.as_str(), "ca, certificate and key beside it");
    }
    let nbd = config.tls.nbd.unwrap_or(NbdTls::Off);
    out.need(named > 0 || nbd == NbdTls::Off, "tls.nbd", nbd.as_str(), "ca, certificate and key beside it, or off");
    let http = config.tls.http_mode();
    out.need(named > 0 || http == HttpTls::Off, "tls.http", http.as_str(), "ca, certificate and key beside it, or off");
}

fn store_endpoint(config: &GatewayConfig, out: &mut Problems) {
    if let Some(endpoint) = &config.store.endpoint {
        let good =
            url::Url::parse(endpoint).is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        out.need(good, "store.endpoint", format!("{endpoint:?}"), "http://HOST:PORT or https://HOST:PORT");
    }
}

fn etcd(config: &GatewayConfig, out: &mut Problems) {
    let etcd = &config.etcd;
    out.number("etcd.endpoints (how many)", etcd.endpoints.len() as u64, 0, 16);
    for endpoint in &etcd.endpoints {
        let url = url::Url::parse(endpoint);
        let good = url.is_ok_and(|url| {
            matches!(url.scheme(), "http" | "https")
                && url.has_host()
                && url.port_or_known_default().is_some()
                && url.path() == "/"
        });
        out.need(good, "etcd.endpoints", format!("{endpoint:?}"), "http://HOST:PORT or https://HOST:PORT");
    }
    let prefix = &etcd.prefix;
    let good = prefix.starts_with('/') && prefix.len() <= 256 && !prefix.chars().any(char::is_control);
    out.need(good, "etcd.prefix", format!("{prefix:?}"), "a text that begins with /, 256 bytes at most");
    out.need(
        etcd.certificate.is_some() == etcd.key.is_some(),
        "etcd",
        "one of certificate and key",
        "both of them, or none",
    );
}

fn pair(config: &GatewayConfig, out: &mut Problems) {
    let pair = &config.pair;
    if pair.name.is_none() {
        return;
    }
    let why = "at least one: the pair's seat is a key of that etcd";
    out.need(!config.etcd.endpoints.is_empty(), "etcd.endpoints", "none beside pair.name", why);
    out.number("pair.stores (how many)", pair.stores.len() as u64, 1, 16);
    for store in &pair.stores {
        // The head is the fence, so there must be exactly one store for it.
        let good = !store.contains(char::is_whitespace) && url::Url::parse(store).is_ok();
        out.need(good, "pair.stores", format!("{store:?}"), "the URL of one store");
        let allowed = check_allowed(store, &config.store.allowed).is_ok();
        out.need(allowed, "pair.stores", format!("{store:?}"), "a store within one of store.allowed");
    }
    out.number("pair.ttl_ms", pair.ttl_ms.into(), TTL_MIN.as_millis() as u64, TTL_MAX.as_millis() as u64);
    out.need(pair.ttl_ms.is_multiple_of(1000), "pair.ttl_ms", pair.ttl_ms, "whole seconds");
    if let Some(adopt) = &pair.adopt {
        let good = holdfast_api::disk_from_text("pair.adopt", adopt).is_ok();
        out.need(good, "pair.adopt", format!("{adopt:?}"), "the id of a cluster, 32 hex digits");
    }
    // A plain connection that reconnects by itself would continue without the data that was lost with the gateway
    // (PAIR-P5).
    let plain = config.plain_exports && pair.durability == PairDurability::Flush;
    out.need(!plain, "plain_exports", "true in a pair with durability \"flush\"", "false, or durability \"write\"");
    let role = config.role == GatewayRole::Gateway;
    out.need(role, "role", config.role.as_str(), "gateway: a pair has no witness");
}

fn keys(config: &GatewayConfig, out: &mut Problems) {
    const ONE: &str = "one of file, passphrase_file, passphrase_env, command, vault, kms";
    let (now, before) = (config.key.sources(), config.key_previous.sources());
    out.need(now == 1, "key", format!("{now} sources"), format!("exactly {ONE}"));
    out.need(before <= 1, "key_previous", format!("{before} sources"), format!("at most {ONE}"));
    out.need(
        before == 0 || config.key != config.key_previous,
        "key_previous",
        "the same as in [key]",
        "another key, or none",
    );
    envelope(config, "key", &config.key, out);
    envelope(config, "key_previous", &config.key_previous, out);
    for (field, key) in [("key.passphrase_kdf", &config.key), ("key_previous.passphrase_kdf", &config.key_previous)] {
        let Some(text) = &key.passphrase_kdf else { continue };
        let of_passphrase = key.passphrase_file.is_some() || key.passphrase_env.is_some();
        out.need(of_passphrase, field, format!("{text:?}"), "a passphrase beside it: a key file needs none");
        if let Err(error) = text.parse::<holdfast_seal::Argon2id>() {
            out.need(false, field, format!("{text:?}"), error.to_string());
        }
    }
}

/// What belongs to an envelope, and nothing without one. `section` is that of `key`.
fn envelope(config: &GatewayConfig, section: &'static str, key: &KeyConfig, out: &mut Problems) {
    let needless = |given: bool, of: bool, what: &str| (given && !of).then(|| what.to_string());
    let any = !key.command.is_empty() || key.vault.is_some() || key.kms.is_some();
    let of_vault = key.vault_token_file.is_some() || key.vault_ca.is_some();
    let alone = [
        needless(key.envelope.is_some(), any, "envelope without command, vault or kms"),
        needless(of_vault, key.vault.is_some(), "vault_token_file or vault_ca without vault"),
        needless(key.kms_endpoint.is_some(), key.kms.is_some(), "kms_endpoint without kms"),
    ];
    for found in alone.into_iter().flatten() {
        out.need(false, section, found, "both of them, or none");
    }
    let token = key.vault.is_none() || key.vault_token_file.is_some();
    out.need(token, section, "vault without vault_token_file", "both of them");
    if let Some(Err(wrong)) = key.envelope(&config.store).map(|envelope| envelope.check()) {
        out.need(false, section, format!("{} {}", wrong.setting, wrong.found), wrong.expected);
    }
}

fn journal(config: &GatewayConfig, out: &mut Problems) {
    let journal = &config.journal;
    out.size("journal.file", journal.file, 16 * MIB, GIB);
    out.size("journal.bound", journal.bound, JOURNAL_FILES_MIN.saturating_mul(journal.file.0), JOURNAL_BOUND_MAX);
    out.size("journal.reserve", journal.reserve, 4 * MIB, journal.bound.0 / 2);
    out.size("journal.tail", journal.tail, 8 * MIB, 1 << 40);
}

fn addresses(config: &GatewayConfig, out: &mut Problems) {
    let listeners: [(&str, Option<SocketAddr>, &str, &Option<String>); 4] = [
        ("api_listen", Some(config.api_listen), "advertise.api", &config.advertise.api),
        ("peer_listen", Some(config.peer_listen), "advertise.peer", &config.advertise.peer),
        ("nbd_listen", config.nbd_listen, "advertise.nbd", &config.advertise.nbd),
        ("http_listen", config.http_listen, "advertise.http", &config.advertise.http),
    ];
    for (at, (field, listen, advertised, address)) in listeners.iter().enumerate() {
        let Some(listen) = listen else { continue };
        out.need(listen.port() != 0, field, listen, "a port that others can know, not 0");
        let any = listen.ip().is_unspecified();
        out.need(
            !any || address.is_some(),
            advertised,
            "nothing",
            format!("HOST:PORT, since {field} is every address ({listen})"),
        );
        let earlier = listeners.iter().take(at).find(|(_, other, ..)| *other == Some(*listen));
        out.need(
            earlier.is_none(),
            field,
            listen,
            format!("another address than {}'s", earlier.map_or("", |(name, ..)| name)),
        );
    }
    for (field, address) in
        listeners.iter().filter_map(|(.., field, address)| address.as_ref().map(|address| (*field, address)))
    {
        out.need(holdfast_api::host_port(address).is_some(), field, format!("{address:?}"), "HOST:PORT");
    }
    for (field, listen) in [("api_listen", config.api_listen), ("peer_listen", config.peer_listen)] {
        let only_tls = config.tls.any() && config.tls.transition.is_none();
        let allowed = listen.ip().is_loopback() || config.plaintext_network || only_tls;
        out.need(
            allowed,
            field,
            listen,
            "a loopback address, [tls], or plaintext_network = true on a network of your own",
        );
    }
    let any_nbd = config.nbd_listen.is_some() || config.nbd_unix.is_some();
    out.need(any_nbd, "nbd_listen", "nothing", "an address here or a path in nbd_unix");
}
