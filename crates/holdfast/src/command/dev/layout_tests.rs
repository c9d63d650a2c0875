use super::*;
use clap::Parser;
use std::os::unix::fs::PermissionsExt;

fn args(dir: &Path, line: &str) -> DevArgs {
    let fixed = ["holdfast", "dev", "--dir", dir.to_str().unwrap()];
    match crate::cli::Cli::try_parse_from(fixed.into_iter().chain(line.split_whitespace())).unwrap().command {
        crate::cli::Command::Dev(args) => args,
        other => panic!("{other:?}"),
    }
}

fn prepare(dir: &Path, line: &str) -> Result<Layout, CliError> {
    Layout::prepare(&args(dir, line))
}

fn configs(layout: &Layout) -> Vec<GatewayConfig> {
    layout.gateways.iter().map(|gateway| gateway.config.clone()).collect()
}

#[test]
fn a_new_directory_gets_all_that_is_needed() {
    let dir = tempfile::tempdir().unwrap();
    let layout = prepare(dir.path(), "").unwrap();
    assert_eq!(layout.gateways.iter().map(DevGateway::name).collect::<Vec<_>>(), ["g1", "g2", "g3"]);
    let set = &layout.plan.sets[0];
    assert_eq!((set.name.as_str(), set.volumes.len()), ("demo", 1));
    assert!(set.store.starts_with("file:///") && set.store.ends_with("/store"), "{}", set.store);
    let mut ports = BTreeSet::new();
    for config in configs(&layout) {
        assert!(config.plain_exports);
        assert_eq!(config.key.file.as_deref(), Some(&*layout.dir.join("cluster.key")));
        let all = [config.api_listen, config.peer_listen, config.nbd_listen.unwrap(), config.http_listen.unwrap()];
        assert!(all.iter().all(|address| PORTS.contains(&address.port())));
        ports.extend(all);
    }
    assert_eq!(ports.len(), 12, "no port twice");
    let key = std::fs::metadata(layout.dir.join("cluster.key")).unwrap();
    assert_eq!((key.permissions().mode() & 0o777, key.len()), (0o600, 65));
    assert_eq!(Plan::load(&layout.dir.join("cluster.toml")), Ok(layout.plan.clone()), "as for `cluster bootstrap`");
}

#[test]
fn the_second_start_finds_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let (first, key) = {
        let layout = prepare(dir.path(), "--gateways 2 --volume a=64MiB --set s1").unwrap();
        ((configs(&layout), layout.plan.clone()), std::fs::read(dir.path().join("cluster.key")).unwrap())
    };
    // A person's comment and change.
    let file = dir.path().join("g1.toml");
    let edited = std::fs::read_to_string(&file).unwrap().replace("rtt_ms = 1", "# far away\nrtt_ms = 9");
    std::fs::write(&file, &edited).unwrap();
    for line in ["", "--gateways 2 --volume a=64MiB --set s1"] {
        let again = prepare(dir.path(), line).unwrap();
        let mut expected = first.clone();
        expected.0[0].rtt_ms = 9;
        assert_eq!((configs(&again), again.plan.clone()), expected, "{line}");
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), edited);
    assert_eq!(std::fs::read(dir.path().join("cluster.key")).unwrap(), key);
}

#[test]
fn what_is_added_is_added_and_what_differs_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    prepare(dir.path(), "--gateways 1 --volume a=64MiB").unwrap();
    let layout = prepare(dir.path(), "--volume b=1GiB").unwrap();
    assert_eq!(layout.plan.sets[0].volumes.len(), 2);
    drop(layout);
    let layout = prepare(dir.path(), "--set other").unwrap();
    assert_eq!(layout.plan.sets.iter().map(|set| set.name.as_str()).collect::<Vec<_>>(), ["demo", "other"]);
    drop(layout);
    for (line, expected) in [
        ("--gateways 3", "--gateways: found 3, expected 1"),
        ("--store s3://b/p", "--store: found s3://b/p, expected file://"),
        ("--volume a=65MiB", "--volume a: found 65MiB, expected 64MiB"),
        ("--volume c=1B", "--volume c: found 1B, expected a multiple of 512B"),
    ] {
        let error = prepare(dir.path(), line).unwrap_err();
        assert_eq!(error.exit, crate::exit::Exit::Usage);
        assert!(error.message.contains(expected), "expected {expected:?} in {:?}", error.message);
    }
}

#[test]
fn nbd_ports_follow_one_another_and_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let first = free_pair();
    let nbd =
        |layout: &Layout| configs(layout).iter().map(|config| config.nbd_listen.unwrap().port()).collect::<Vec<_>>();
    let layout = prepare(dir.path(), &format!("--gateways 2 --nbd-port {first}")).unwrap();
    assert_eq!(nbd(&layout), [first, first + 1]);
    drop(layout);
    assert_eq!(nbd(&prepare(dir.path(), "").unwrap()), [first, first + 1]);
    let other = free_pair();
    assert_eq!(nbd(&prepare(dir.path(), &format!("--nbd-port {other}")).unwrap()), [other, other + 1]);
    assert_eq!(nbd(&prepare(dir.path(), "").unwrap()), [other, other + 1]);
}

#[test]
fn a_directory_of_before_gets_a_certificate_for_any_owner() {
    let dir = tempfile::tempdir().unwrap();
    let tls = dir.path().join("tls");
    make::certificates(&tls, &[Wanted::new("host", Role::Host)], 30).unwrap();
    let layout = prepare(dir.path(), "--gateways 1").unwrap();
    let [certificate, key] = layout.tls.as_ref().unwrap().host.clone();
    assert_eq!(certificate, layout.dir.join("tls/any-host.pem"));
    assert!(certificate.exists() && key.exists());
    assert!(tls.join("host.pem").exists(), "nothing of a person's is removed");
}

/// A new directory, and what is in it after `--secure`.
fn secured(above: &Path) -> Layout {
    let layout = prepare(&above.join("new"), "--gateways 2 --secure").unwrap();
    for config in configs(&layout) {
        assert!(!config.plain_exports && !config.plaintext_network && !config.core_dumps);
        assert_eq!(config.snapshot_exports, SnapshotExports::Token);
        assert_eq!(config.tls.nbd_mode(), NbdTls::Required);
        assert_eq!(config.tls.http_mode(), holdfast_tls::HttpTls::Required);
        assert_eq!(config.store.allowed, [layout.plan.sets[0].store.clone()]);
        assert_eq!(config.audit.log, Some(layout.dir.join(format!("{}.audit.log", config.name))));
        assert!(config.tls.load(Role::Gateway).unwrap().is_some());
    }
    layout
}

#[test]
fn a_secure_directory_has_a_certificate_for_each_role_and_no_key_that_others_can_read() {
    let above = tempfile::tempdir().unwrap();
    let layout = secured(above.path());
    let tls = layout.tls.clone().unwrap();
    let host = Some(tls.host.clone());
    let all = [(Some(tls.admin), Role::Admin), (tls.operator, Role::Operator), (tls.viewer, Role::Viewer)];
    for (files, role) in all.into_iter().chain([(host, Role::Host)]) {
        let [certificate, key] = files.unwrap();
        let files = holdfast_tls::TlsFiles { ca: Some(tls.ca.clone()), certificate: Some(certificate), key: Some(key) };
        let names = files.load(role).unwrap().unwrap().shown().names;
        let bound = names.iter().any(|name| name == "holdfast://set/demo");
        assert_eq!(bound, role == Role::Host, "TLS-T4: {role} {names:?}");
    }
    assert_eq!(tls.host[0].file_name().unwrap(), "db1.pem", "the host's name is the owner");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for folder in [layout.dir.clone(), layout.dir.join("tls")] {
        assert_eq!(mode(&folder), 0o700, "{}", folder.display());
    }
    let keys = std::fs::read_dir(layout.dir.join("tls")).unwrap().map(|entry| entry.unwrap().path());
    let keys: Vec<PathBuf> = keys.filter(|path| path.extension().is_some_and(|end| end == "key")).collect();
    assert_eq!(keys.len(), 7, "authority, two gateways, admin, operator, viewer, host: {keys:?}");
    for key in keys.iter().chain([&layout.dir.join("cluster.key")]) {
        assert_eq!(mode(key), 0o600, "{}", key.display());
    }
}

#[test]
fn a_secure_directory_stays_so_and_another_one_becomes_so() {
    let above = tempfile::tempdir().unwrap();
    let first = configs(&secured(above.path()));
    let again = prepare(&above.path().join("new"), "").unwrap();
    assert_eq!(configs(&again), first);
    assert!(again.tls.as_ref().unwrap().is_secure() && !again.dir.join("tls/any-host.pem").exists());
    drop(again);
    let more = prepare(&above.path().join("new"), "--set other --store file:///srv/other").unwrap();
    let stores: Vec<String> = more.plan.sets.iter().map(|set| set.store.clone()).collect();
    assert!(configs(&more).iter().all(|config| config.store.allowed == stores), "a set of the plan can be made");
    let tls = more.tls.clone().unwrap();
    let [certificate, key] = tls.host.map(Some);
    let host = holdfast_tls::TlsFiles { ca: Some(tls.ca), certificate, key }.load(Role::Host).unwrap().unwrap();
    for uri in ["holdfast://set/demo", "holdfast://set/other"] {
        assert!(host.shown().names.iter().any(|name| name == uri), "{uri}: {:?}", host.shown().names);
    }

    let plain = above.path().join("plain");
    prepare(&plain, "--gateways 1 --tls").unwrap();
    let layout = prepare(&plain, "--secure --gateway-set tls.nbd=optional").unwrap();
    let mode = std::fs::metadata(layout.dir.join("tls")).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o700, "it has the authority's key");
    let config = &configs(&layout)[0];
    assert!(!config.plain_exports && layout.tls.as_ref().unwrap().is_secure());
    assert_eq!(config.tls.nbd, Some(NbdTls::Optional), "what a person gives counts more");
}

/// Two consecutive free ports.
fn free_pair() -> u16 {
    loop {
        let port = rand::random_range(PORTS);
        let free = [port, port + 1].map(|port| TcpListener::bind(loopback(port)).is_ok());
        if free == [true, true] {
            return port;
        }
    }
}

#[test]
fn one_at_a_time_and_no_port_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let layout = prepare(dir.path(), "--gateways 1").unwrap();
    assert!(prepare(dir.path(), "").unwrap_err().message.contains("locked by another `holdfast dev`"));
    let api = layout.gateways[0].config.api_listen;
    drop(layout);
    let _taken = TcpListener::bind(api).unwrap();
    let error = prepare(dir.path(), "").unwrap_err();
    assert!(error.message.contains(&format!("api_listen of gateway g1: {api}")), "{}", error.message);
}
