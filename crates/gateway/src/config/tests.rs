use super::*;
use holdfast_testkit::golden::{Written, kept};
use holdfast_tls::files::SETTINGS_BYTES_MAX;

/// The sample file of the repository. `UPDATE_GOLDEN=1 cargo test -p holdfast-gateway config` rewrites it.
const SAMPLE: &str = "gateway.sample.toml";

fn problems_of(change: impl FnOnce(&mut GatewayConfig)) -> String {
    let mut config = GatewayConfig::example();
    change(&mut config);
    match config.validate() {
        Ok(()) => String::new(),
        Err(error) => error.to_string(),
    }
}

/// Without a setting nobody reads data without a token.
#[test]
fn exports_are_closed_by_default() {
    let config = GatewayConfig::default();
    assert_eq!((config.plain_exports, config.snapshot_exports), (false, SnapshotExports::Token));
}

#[test]
fn the_sample_file_is_the_generated_one() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(SAMPLE);
    let made = sample().unwrap();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(kept, made, "{SAMPLE} is stale: UPDATE_GOLDEN=1 cargo test -p holdfast-gateway config");
}

#[test]
fn the_sample_reads_as_the_example_and_is_valid() {
    let read = GatewayConfig::parse(&sample().unwrap()).unwrap();
    assert_eq!(read, GatewayConfig::example());
    read.validate().unwrap();
}

/// A settings file of an earlier release starts a gateway of this one.
#[test]
fn the_samples_of_earlier_releases_are_valid() {
    let read = |bytes: &[u8]| {
        let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
        let config = GatewayConfig::parse(text).map_err(|error| error.to_string())?;
        config.validate().map_err(|error| error.to_string())
    };
    kept(env!("CARGO_MANIFEST_DIR"), "gateway.toml", Written::Free(sample().unwrap().as_bytes()), &Ok(()), read);
}

/// A sample value behind a `#` must be valid for its field, because users will remove the `#`.
#[test]
fn every_commented_value_of_the_sample_can_be_taken() {
    let made = sample().unwrap();
    let is_setting =
        |line: &&str| line.starts_with("# ") && line.split_once(" = ").is_some_and(|(key, _)| !key[2..].contains(' '));
    let commented: Vec<&str> = made.lines().filter(is_setting).collect();
    assert!(commented.len() >= 9, "{commented:?}");
    for line in commented {
        let config = GatewayConfig::parse(&made.replacen(line, &line[2..], 1)).unwrap();
        assert_ne!(config, GatewayConfig::example(), "{line}");
        let of_envelope = [
            ("# envelope", "key: found envelope without command, vault or kms"),
            ("# vault =", "key: found 2 sources"),
            ("# vault_", "key: found vault_token_file or vault_ca without vault"),
            ("# kms =", "key: found 2 sources"),
            ("# kms_", "key: found kms_endpoint without kms"),
        ];
        if let Some((_, found)) = of_envelope.iter().find(|(begin, _)| line.starts_with(*begin)) {
            let error = config.validate().unwrap_err().to_string();
            assert!(error.contains(found), "{line}: {error}");
            continue;
        }
        if line.contains("passphrase_kdf") {
            assert!(config.validate().unwrap_err().to_string().contains("expected a passphrase beside it"));
        } else if line.starts_with("# file") {
            // The key of [key_previous] is the sample's key.
            assert!(config.validate().unwrap_err().to_string().contains("key_previous: found the same as in [key]"));
        } else if line.contains("passphrase") {
            assert!(config.validate().unwrap_err().to_string().contains("key: found 2 sources"));
        } else if line.contains("/tls/") {
            assert!(config.validate().unwrap_err().to_string().contains("tls: found 1 files, expected all of"));
        } else if line.ends_with("nbd = \"required\"") {
            assert!(config.validate().unwrap_err().to_string().contains("tls.nbd: found required, expected ca,"));
        } else if line.ends_with("transition = \"accept\"") {
            assert!(config.validate().unwrap_err().to_string().contains("tls.transition: found accept, expected ca,"));
        } else if line.ends_with("http = \"checks\"") {
            assert!(config.validate().unwrap_err().to_string().contains("tls.http: found checks, expected ca,"));
        } else if line.contains("/etcd/client") {
            assert!(config.validate().unwrap_err().to_string().contains("etcd: found one of certificate and key"));
        } else if line.starts_with("# name") {
            let error = config.validate().unwrap_err().to_string();
            assert!(error.contains("etcd.endpoints: found none beside pair.name, expected at least one"), "{error}");
        } else {
            config.validate().unwrap();
        }
    }
}

#[test]
fn a_pair_needs_an_etcd_stores_and_devices_that_end() {
    let with = |text: &str| {
        problems_of(|config| {
            config.etcd.endpoints = vec!["http://10.0.0.5:2379".into()];
            config.pair = toml::from_str(&format!("name = \"db\"\n{text}")).unwrap();
        })
    };
    assert_eq!(
        with("stores = [\"s3://bucket/pair\"]\nttl_ms = 3000\nadopt = \"00112233445566778899aabbccddeeff\""),
        ""
    );
    for (text, found) in [
        ("", "pair.stores (how many): found 0, expected 1 to 16"),
        ("stores = [\"w=2 s3://a s3://b s3://c\"]", "expected the URL of one store"),
        ("stores = [\"s3://b/p\"]\nttl_ms = 2000", "pair.ttl_ms: found 2000, expected 3000 to 600000"),
        ("stores = [\"s3://b/p\"]\nttl_ms = 3500", "pair.ttl_ms: found 3500, expected whole seconds"),
        ("stores = [\"s3://b/p\"]\nadopt = \"7\"", "pair.adopt: found \"7\""),
    ] {
        let error = with(text);
        assert!(error.contains(found), "{text}: {error}");
    }
    let plain = |durability| {
        problems_of(|config| {
            config.etcd.endpoints = vec!["http://10.0.0.5:2379".into()];
            (config.pair.name, config.plain_exports) = (Some(Name::new("db").unwrap()), true);
            (config.pair.stores, config.pair.durability) = (vec!["s3://b/p".into()], durability);
        })
    };
    assert!(plain(PairDurability::Flush).contains("plain_exports: found true in a pair"));
    assert_eq!(plain(PairDurability::Write), "");
}

#[test]
fn files_for_an_etcd_are_read_with_a_bound() {
    let dir = tempfile::tempdir().unwrap();
    let ca = dir.path().join("ca.pem");
    let mut etcd = GatewayConfig::example().etcd;
    (etcd.endpoints, etcd.ca) = (vec!["https://10.0.0.1:2379".into()], Some(ca.clone()));
    std::fs::write(&ca, vec![b'\n'; PEM_BYTES_MAX as usize]).unwrap();
    etcd.load().unwrap();
    std::fs::write(&ca, vec![b'\n'; PEM_BYTES_MAX as usize + 1]).unwrap();
    let (setting, error) = etcd.load().map(|_| ()).unwrap_err();
    assert!(setting.starts_with("etcd.ca "), "{setting}");
    assert_eq!(error.to_string(), "found at least 1048577 bytes, expected at most 1048576");
}

#[test]
fn the_key_for_an_etcd_is_not_read_where_others_can() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let (certificate, key) = (dir.path().join("client.pem"), dir.path().join("client.key"));
    let mut etcd = GatewayConfig::example().etcd;
    (etcd.endpoints, etcd.ca) = (vec!["https://10.0.0.1:2379".into()], None);
    (etcd.certificate, etcd.key) = (Some(certificate.clone()), Some(key.clone()));
    for path in [&certificate, &key] {
        std::fs::write(path, "text").unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644)).unwrap();
    }
    let (setting, error) = etcd.load().map(|_| ()).unwrap_err();
    assert!(setting.starts_with("etcd.key "), "SECRET-F2: {setting}");
    assert!(error.to_string().contains("found mode 0644") && error.to_string().contains("chmod 600"), "{error}");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
    let identity = etcd.load().unwrap().unwrap().identity;
    assert_eq!(identity, Some((b"text".to_vec(), b"text".to_vec())));
}

#[test]
fn a_file_of_settings_is_read_with_a_bound() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("gateway.toml");
    let mut text = sample().unwrap();
    text.push_str(&"\n".repeat(SETTINGS_BYTES_MAX as usize - text.len()));
    std::fs::write(&path, &text).unwrap();
    assert_eq!(GatewayConfig::load(&path).unwrap(), GatewayConfig::example());
    text.push('\n');
    std::fs::write(&path, &text).unwrap();
    let error = GatewayConfig::load(&path).unwrap_err();
    let ConfigError::Read { source, .. } = error else { panic!("expected that it is not read: {error}") };
    assert_eq!(source.to_string(), "found at least 1048577 bytes, expected at most 1048576");
}

#[test]
fn an_etcd_member_is_a_url_and_the_prefix_a_path() {
    let of = |text: &str| {
        let mut config = GatewayConfig::example();
        config.etcd = toml::from_str(text).unwrap();
        config.validate().map_err(|error| error.to_string())
    };
    of("endpoints = [\"http://10.0.0.1:2379\", \"https://e2:2379/\"]\nprefix = \"/a/b/\"").unwrap();
    for endpoint in ["10.0.0.1:2379", "e1", "ftp://e1:2379", "http://e1:2379/v3"] {
        let error = of(&format!("endpoints = [{endpoint:?}]")).unwrap_err();
        assert!(error.contains(&format!("etcd.endpoints: found {endpoint:?}, expected http://HOST:PORT")), "{error}");
    }
    let error = of("prefix = \"holdfast\"").unwrap_err();
    assert!(error.contains("etcd.prefix: found \"holdfast\", expected a text that begins with /"), "{error}");
}

#[test]
fn every_section_and_field_is_documented() {
    let values = toml::Table::try_from(GatewayConfig::example()).unwrap();
    let made = sample().unwrap();
    for (name, value) in &values {
        assert!(made.contains(&format!("\n{name} = ")) || made.contains(&format!("\n[{name}]\n")), "{name}");
        for field in value.as_table().into_iter().flatten().map(|(field, _)| field) {
            assert!(made.contains(&format!("\n{field} = ")), "{name}.{field}");
        }
    }
}

#[test]
fn unknown_fields_are_named() {
    for (text, field) in [("nbd_port = 1", "nbd_port"), ("[journal]\nsize = \"1GiB\"", "size"), ("[ssl]", "ssl")] {
        let error = GatewayConfig::parse(text).unwrap_err().to_string();
        assert!(error.contains(&format!("unknown field `{field}`")), "{error}");
    }
}

#[test]
fn the_bare_default_lacks_what_only_a_person_knows() {
    let error = GatewayConfig::default().validate().unwrap_err().to_string();
    assert_eq!(
        error,
        "configuration: nbd_listen: found nothing, expected an address here or a path in nbd_unix; \
         key: found 0 sources, expected exactly one of file, passphrase_file, passphrase_env, command, vault, kms"
    );
}

#[test]
fn an_envelope_and_its_keeper_belong_together() {
    let of = |text: &str| problems_of(|config| config.key = toml::from_str(text).unwrap());
    const VAULT: &str = "vault = \"https://vault.example:8200/v1/transit/keys/holdfast\"\n";
    const ARN: &str = "kms = \"arn:aws:kms:eu-central-1:111122223333:key/1\"\n";
    for good in [
        "command = [\"/usr/bin/gpg\", \"--decrypt\"]",
        "command = [\"/usr/bin/gpg\", \"--decrypt\"]\nenvelope = \"/e\"",
        &format!("{VAULT}envelope = \"/e\"\nvault_token_file = \"/t\"\nvault_ca = \"/ca\""),
        &format!("{ARN}envelope = \"/e\"\nkms_endpoint = \"http://127.0.0.1:1\""),
    ] {
        assert_eq!(of(good), "", "{good}");
    }
    for (bad, found) in [
        ("command = [\"gpg\"]".to_string(), "key: found command \"gpg\", expected a program by its absolute path"),
        (format!("{VAULT}vault_token_file = \"/t\""), "key: found envelope nothing, expected the file"),
        (format!("{VAULT}envelope = \"/e\""), "key: found vault without vault_token_file"),
        (format!("{ARN}{VAULT}envelope = \"/e\"\nvault_token_file = \"/t\""), "key: found 2 sources"),
        (format!("{ARN}envelope = \"/e\"\nkms_endpoint = \"http://kms.example\""), "key: found kms_endpoint "),
        ("kms = \"1234\"\nenvelope = \"/e\"".to_string(), "key: found kms \"1234\", expected arn:aws:kms:"),
    ] {
        assert!(of(&bad).contains(found), "expected {found:?} in {:?}", of(&bad));
    }
    let previous = problems_of(|config| config.key_previous = toml::from_str("command = [\"gpg\"]").unwrap());
    assert!(previous.contains("key_previous: found command"), "{previous}");
}

#[test]
fn allowed_places_are_stores_and_hold_those_of_a_pair() {
    let with = |places: &[&str]| {
        let places: Vec<String> = places.iter().map(ToString::to_string).collect();
        problems_of(|config| config.store.allowed = places)
    };
    assert_eq!(with(&["s3://bucket/", "s3://bucket/p/?endpoint=http://10.0.0.1:9000", "file:///srv/"]), "");
    for bad in ["bucket", "file:///", "s3://", "w=2 file:///a file:///b file:///c", "file:///srv/a%2f..%2f..%2fetc"] {
        assert!(with(&[bad]).contains("store.allowed: found"), "{bad}");
    }
    let pair = problems_of(|config| {
        config.etcd.endpoints = vec!["http://10.0.0.5:2379".into()];
        config.pair = toml::from_str("name = \"db\"\nstores = [\"s3://other/pair\"]").unwrap();
        config.store.allowed = vec!["s3://bucket/".into()];
    });
    assert!(pair.contains("pair.stores: found \"s3://other/pair\", expected a store within one of"), "{pair}");
    assert!(problems_of(|config| config.audit.log = Some("audit.log".into())).contains("expected an absolute path"));
    assert!(problems_of(|config| config.audit.rotate = ByteSize(1)).contains("audit.rotate: found 1B"));
}

/// R10: names of sets are in traces.
#[test]
fn traces_go_to_a_collector_here_or_over_tls() {
    let with = |text: &str| problems_of(|config| config.traces = toml::from_str(text).unwrap());
    for good in [
        "",
        "endpoint = \"http://127.0.0.1:4317\"\nsample = 0",
        "endpoint = \"https://c.example:4317\"\nca = \"/ca.pem\"",
    ] {
        assert_eq!(with(good), "", "{good}");
    }
    for (bad, found) in [
        ("endpoint = \"http://10.0.0.9:4317\"", "traces.endpoint: found \"http://10.0.0.9:4317\", expected https://"),
        (
            "endpoint = \"https://c.example:4317\"",
            "expected the certificate of the authority in traces.ca beside https",
        ),
        ("sample = 1001", "traces.sample: found 1001, expected 0 to 1000"),
        ("slow_ms = 0", "traces.slow_ms: found 0, expected 1 to 60000"),
    ] {
        assert!(with(bad).contains(found), "expected {found:?} in {:?}", with(bad));
    }
}

#[test]
fn relations_between_fields() {
    assert_eq!(problems_of(|_| {}), "");
    let mib = |count: u64| ByteSize(count * MIB);
    let cases: Vec<(&str, String)> = vec![
        ("data_dir: found here/data, expected an absolute path", problems_of(|c| c.data_dir = "here/data".into())),
        ("rtt_ms: found 0, expected 1 to 1000", problems_of(|c| c.rtt_ms = 0)),
        ("rtt_floor_ms: found 2, expected 1 to 1", problems_of(|c| c.rtt_floor_ms = 2)),
        ("rtt_calm_ms: found 10, expected 5000 to 86400000", problems_of(|c| c.rtt_calm_ms = 10)),
        ("worker_threads: found 65, expected 0 to 64", problems_of(|c| c.worker_threads = 65)),
        ("lease_ttl_ms: found 3000, expected 4000 to 600000", problems_of(|c| c.rtt_ms = 200)),
        ("journal.bound: found 128MiB, expected 256MiB", problems_of(|c| c.journal.bound = mib(128))),
        ("journal.bound: found 129GiB, expected 256MiB to 128GiB", problems_of(|c| c.journal.bound = mib(129 << 10))),
        ("journal.reserve: found 5GiB, expected 4MiB to 4GiB", problems_of(|c| c.journal.reserve = mib(5120))),
        ("upload.bytes: found 3GiB, expected 1MiB to 2GiB", problems_of(|c| c.upload.bytes = mib(3072))),
        ("upload.whole_root: found 17MiB, expected 0B to 16MiB", problems_of(|c| c.upload.whole_root = Some(mib(17)))),
        (
            "space.repair_bytes_per_second: found 2TiB, expected 0B to 1TiB",
            problems_of(|c| c.space.repair_bytes_per_second = mib(2 << 20)),
        ),
        ("cache.disk: found 1MiB, expected 0B, or 64MiB and more", problems_of(|c| c.cache.disk = mib(1))),
        (
            "cache.warm_bytes_per_second: found 2GiB, expected 0B to 1GiB",
            problems_of(|c| c.cache.warm_bytes_per_second = mib(2048)),
        ),
        (
            "in_flight.connection_bytes: found 16MiB, expected 32MiB",
            problems_of(|c| c.in_flight.connection_bytes = mib(16)),
        ),
        (
            "in_flight.gateway_requests: found 0, expected 1 to 16777216",
            problems_of(|c| c.in_flight.gateway_requests = 0),
        ),
        ("in_flight.gateway_bytes: found 32MiB, expected 64MiB", problems_of(|c| c.in_flight.gateway_bytes = mib(32))),
        ("api_listen: found 127.0.0.1:0, expected a port", problems_of(|c| c.api_listen = local(0))),
        (
            "peer_listen: found 127.0.0.1:7400, expected another address than api_listen's",
            problems_of(|c| c.peer_listen = local(7400)),
        ),
        (
            "advertise.api: found \"gateway\", expected HOST:PORT",
            problems_of(|c| c.advertise.api = Some("gateway".into())),
        ),
        ("store.endpoint: found \"s3.example\"", problems_of(|c| c.store.endpoint = Some("s3.example".into()))),
        (
            "store.credentials_file: found \"keys\", expected an absolute path",
            problems_of(|c| c.store.credentials_file = Some("keys".into())),
        ),
        ("store.let_go_ms: found 999, expected 1000 to 3600000", problems_of(|c| c.store.let_go_ms = 999)),
        ("key: found 2 sources", problems_of(|c| c.key.passphrase_env = Some("X".into()))),
    ];
    for (expected, found) in cases {
        assert!(found.contains(expected), "expected {expected:?} in {found:?}");
    }
}

#[test]
fn traffic_off_the_machine_needs_a_word_and_an_address() {
    let everywhere = SocketAddr::from(([0, 0, 0, 0], 7400));
    let found = problems_of(|c| c.api_listen = everywhere);
    assert!(found.contains("plaintext_network = true") && found.contains("advertise.api: found nothing"), "{found}");
    let named = |c: &mut GatewayConfig| {
        c.api_listen = everywhere;
        c.plaintext_network = true;
        c.advertise.api = Some("g1.example:7400".into());
    };
    assert_eq!(problems_of(named), "");
    // Plain text has to be wished for also while a cluster comes to TLS, and only then beside TLS.
    let coming = |transition: Option<TlsTransition>, plaintext_network: bool| {
        problems_of(|c| {
            named(c);
            c.plaintext_network = plaintext_network;
            c.tls.transition = transition;
            for (file, name) in [(&mut c.tls.ca, "ca"), (&mut c.tls.certificate, "pem"), (&mut c.tls.key, "key")] {
                *file = Some(name.into());
            }
        })
    };
    for transition in [TlsTransition::Accept, TlsTransition::Use] {
        assert_eq!(coming(Some(transition), true), "");
        assert!(coming(Some(transition), false).contains("or plaintext_network = true"));
    }
    assert_eq!(coming(None, false), "");
    assert!(coming(None, true).contains("plaintext_network: found true beside [tls]"));
}

/// A certificate is no help where metrics need none.
#[test]
fn names_in_plain_text_are_told_of() {
    let told = |listen: &str, tls: bool, http: Option<HttpTls>| {
        let mut config = GatewayConfig { http_listen: Some(listen.parse().unwrap()), ..GatewayConfig::example() };
        config.tls.ca = tls.then(|| "/tls/ca.pem".into());
        config.tls.http = http;
        config.names_in_plain().is_some()
    };
    let (others, here) = ("10.0.0.1:7402", "127.0.0.1:7402");
    assert!(told(others, true, None) && told(others, true, Some(HttpTls::Off)));
    assert!(!told(here, true, None) && !told(others, false, None), "on this machine, and where all is plain text");
    assert!(!told(others, true, Some(HttpTls::Checks)) && !told(others, true, Some(HttpTls::Required)));
}

#[test]
fn addresses_as_others_reach_them() {
    let mut config = GatewayConfig::example();
    assert_eq!(config.api_address(), "127.0.0.1:7400");
    assert_eq!(config.nbd_address().as_deref(), Some("127.0.0.1:10809"));
    config.advertise.nbd = Some("g1.example:1".into());
    assert_eq!(config.nbd_address().as_deref(), Some("g1.example:1"));
    config.nbd_listen = None;
    assert_eq!((config.nbd_address(), config.peer_address().as_str()), (None, "127.0.0.1:7401"));
}
