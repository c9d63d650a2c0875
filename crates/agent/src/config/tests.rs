use super::*;
use holdfast_testkit::golden::{Written, kept};
use holdfast_tls::files::SETTINGS_BYTES_MAX;
use std::path::Path;

/// The sample as it lies in the repository; `UPDATE_GOLDEN=1 cargo test -p holdfast-agent config` rewrites it.
const SAMPLE: &str = "agent.sample.toml";

#[test]
fn the_sample_file_is_the_generated_one() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(SAMPLE);
    let made = sample().unwrap();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(kept, made, "{SAMPLE} is stale: UPDATE_GOLDEN=1 cargo test -p holdfast-agent config");
}

#[test]
fn the_sample_reads_as_the_example_and_is_valid() {
    let read = AgentConfig::parse(&sample().unwrap()).unwrap();
    assert_eq!(read, AgentConfig::example());
    read.validate().unwrap();
}

/// A settings file of an earlier release starts an agent of this one.
#[test]
fn the_samples_of_earlier_releases_are_valid() {
    let read = |bytes: &[u8]| {
        let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
        let config = AgentConfig::parse(text).map_err(|error| error.to_string())?;
        config.validate().map_err(|error| error.to_string())
    };
    kept(env!("CARGO_MANIFEST_DIR"), "agent.toml", Written::Free(sample().unwrap().as_bytes()), &Ok(()), read);
}

/// A sample value behind a `#` must be one that the field takes: a person will remove the `#`.
#[test]
fn every_commented_value_of_the_sample_can_be_taken() {
    let made = sample().unwrap();
    let is_setting =
        |line: &&str| line.starts_with("# ") && line.split_once(" = ").is_some_and(|(key, _)| !key[2..].contains(' '));
    let commented: Vec<&str> = made.lines().filter(is_setting).collect();
    assert!(commented.len() >= 7, "{commented:?}");
    for line in commented {
        let config = AgentConfig::parse(&made.replacen(line, &line[2..], 1)).unwrap();
        assert_ne!(config, AgentConfig::example(), "{line}");
        if line.contains("/tls/") {
            assert!(config.validate().unwrap_err().to_string().contains("tls: found 1 files, expected all of"));
        } else if line.starts_with("# tls = ") {
            assert!(config.validate().unwrap_err().to_string().contains("http.tls: found checks, expected the three"));
        } else {
            config.validate().unwrap();
        }
    }
}

#[test]
fn every_section_and_field_is_documented() {
    let values = toml::Table::try_from(AgentConfig::example()).unwrap();
    let made = sample().unwrap();
    for (name, value) in &values {
        assert!(made.contains(&format!("\n{name} = ")) || made.contains(&format!("\n[{name}]\n")), "{name}");
        for field in value.as_table().into_iter().flatten().map(|(field, _)| field) {
            assert!(made.contains(&format!("\n{field} = ")), "{name}.{field}");
        }
    }
}

#[test]
fn unknown_fields_and_bad_values_are_named() {
    let error = AgentConfig::parse("prioritty = 1").unwrap_err();
    assert!(error.to_string().contains("prioritty"), "{error}");
    let mut config = AgentConfig::example();
    config.priority = 0;
    (config.watchdog.kind, config.watchdog.mode) = (WatchdogKind::Off, WatchdogMode::Automatic);
    (config.database.kind, config.database.unit) = (DatabaseKind::Systemd, "postgresql@15-main".into());
    config.lease.stop_margin_ms = 2000;
    config.database.user = "root".into();
    config.database.data = "/elsewhere".into();
    config.pool.kind = PoolKind::Ext4;
    config.peers.0.insert("db1".into(), "nowhere".into());
    let text = config.validate().unwrap_err().to_string();
    for part in [
        "priority: found 0",
        "lease.stop_margin_ms: found 2000",
        "database.user",
        "database.data",
        "\"nowhere\"",
        "this host itself",
        "watchdog.mode: found a device without the helper",
        "database.unit: found \"postgresql@15-main\", expected a unit's whole name",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// The agent has its audit log open, and a pool with an open file is not released.
#[test]
fn the_audit_log_is_not_in_the_data_directory() {
    for kind in [PoolKind::Zfs, PoolKind::Ext4, PoolKind::None] {
        let mut config = AgentConfig::example();
        config.pool.kind = kind;
        config.pool.name = Some("tank".into());
        config.audit.log = Some(config.database.data.join("log/audit.log"));
        let text = config.validate().unwrap_err().to_string();
        assert!(text.contains("expected a file outside of database.data"), "{kind:?}: {text}");
        // What to do: builds before took it, on ZFS.
        let own = config.dir.join("audit.log").display().to_string();
        assert!(text.contains(&format!("Set it to {own}, and move the file there")), "{kind:?}: {text}");
        config.audit.log = Some("/var/log/audit.log".into());
        let text = config.validate().err().map(|error| error.to_string()).unwrap_or_default();
        assert!(!text.contains("audit.log"), "{kind:?}: {text}");
    }
}

/// Without files nobody is let believe that the door has TLS; with them it has, unless a person says otherwise.
#[test]
fn the_http_door_has_tls_if_there_are_certificates() {
    let files = "ca = \"/t/ca.pem\"\ncertificate = \"/t/db1.pem\"\nkey = \"/t/db1.key\"";
    for (lines, mode) in [
        ("", HttpTls::Off),
        (files, HttpTls::Required),
        (&*format!("{files}\n[http]\ntls = \"checks\""), HttpTls::Checks),
        (&*format!("{files}\n[http]\ntls = \"off\""), HttpTls::Off),
    ] {
        let config = AgentConfig::parse(&format!("[tls]\n{lines}\n")).unwrap();
        config.validate().unwrap();
        assert_eq!(config.http_tls(), mode, "{lines}");
    }
}

/// Only a reboot gets rid of a suspended ZFS pool. A setting outranks the default.
#[test]
fn a_host_on_zfs_that_cannot_let_go_reboots_unless_told_otherwise() {
    let zfs = "kind = \"zfs\"\nname = \"tank\"";
    let (retry, reboot) = ("fence_action = \"retry\"", "fence_action = \"reboot\"");
    for (kind, said, reboots, by) in [
        (zfs, "", true, Some("the default for a ZFS pool")),
        (zfs, reboot, true, Some("as set")),
        (zfs, retry, false, None),
        ("", "", false, None),
        ("kind = \"ext4\"", "", false, None),
        ("kind = \"xfs\"", "", false, None),
        ("kind = \"none\"", "", false, None),
        ("kind = \"ext4\"", reboot, true, Some("as set")),
    ] {
        let config = AgentConfig::parse(&format!("[pool]\n{kind}\n{said}\n")).unwrap();
        config.validate().unwrap();
        assert_eq!(config.policy().fence_reboot, reboots, "{kind} {said}");
        assert_eq!(config.policy().ends_users, reboots && kind == zfs, "{kind} {said}");
        assert_eq!(config.pool.reboots_by(), by, "{kind} {said}");
    }
}

/// An import that is ended while ZFS still checks the pool for activity would be started again for ever.
#[test]
fn multihost_is_for_zfs_and_leaves_its_import_time() {
    let mut config = AgentConfig::example();
    config.pool.multihost = true;
    config.pool.kind = PoolKind::Ext4;
    let text = config.validate().unwrap_err().to_string();
    assert!(text.contains("pool.multihost: found true") && !text.contains("import_timeout_s"), "{text}");
    (config.pool.kind, config.pool.name) = (PoolKind::Zfs, Some("tank".into()));
    config.validate().unwrap();
    config.pool.import_timeout_s = 29;
    let text = config.validate().unwrap_err().to_string();
    assert!(text.contains("pool.import_timeout_s: found 29, expected 30 or more with pool.multihost"), "{text}");
    config.pool.multihost = false;
    config.validate().unwrap();
}

#[test]
fn a_file_of_settings_is_read_with_a_bound() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agent.toml");
    let mut text = sample().unwrap();
    text.push_str(&"\n".repeat(SETTINGS_BYTES_MAX as usize - text.len()));
    std::fs::write(&path, &text).unwrap();
    assert_eq!(AgentConfig::load(&path).unwrap(), AgentConfig::example());
    text.push('\n');
    std::fs::write(&path, &text).unwrap();
    let error = AgentConfig::load(&path).unwrap_err();
    let ConfigError::Read { source, .. } = error else {
        panic!("found {error}, expected that the file cannot be read")
    };
    assert_eq!(source.to_string(), "found at least 1048577 bytes, expected at most 1048576");
}

/// The examples in deploy/ are valid settings.
#[test]
fn the_examples_are_valid() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/examples/two-site");
    for site in ["west", "east"] {
        let config = AgentConfig::load(&root.join(format!("agent-{site}.toml"))).unwrap();
        assert_eq!((config.set, config.database.follows), (format!("pg-{site}"), true));
    }
}

/// The section of a service stands in the sample too, commented out: without the `#` ahead of its lines it is valid.
#[test]
fn the_section_of_a_service_can_be_taken_from_the_sample() {
    let made = sample().unwrap();
    let (_, off) = made.split_once("\n#[service]\n").expect("a section that is commented out");
    // What begins with "# " is a comment, and stays one.
    let taken = |line: &str| match line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')) {
        Some(value) => format!("{value}\n"),
        None => format!("{line}\n"),
    };
    let taken: String = off.lines().map(taken).collect();
    let config = AgentConfig::parse(&format!("[pool]\nmount = \"/srv/nfs\"\n[service]\n{taken}")).unwrap();
    config.validate().unwrap();
    let service = config.service.clone().unwrap();
    assert_eq!(service.kind, ServiceKind::Systemd);
    assert_eq!(service.unit, ServiceConfig::default().unit);
    // Its limits are those of the machine, in place of PostgreSQL's.
    assert_eq!(config.policy().timeouts.start.as_secs(), service.start_timeout_s);
    assert_eq!(config.policy().workload.to_string(), "service nfs");
    assert_eq!(AgentConfig::default().policy().workload.to_string(), "PostgreSQL");
}

/// An agent that is meant for another service looks for no PostgreSQL, and never for both.
#[test]
fn a_file_says_what_runs_on_the_set_exactly_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agent.toml");
    let load = |text: &str| {
        std::fs::write(&path, text).unwrap();
        AgentConfig::load(&path).map_err(|error| error.to_string())
    };
    let service = "[pool]\nmount = \"/srv/nfs\"\n[service]\ncheck = \"true\"\n";
    let config = load(service).unwrap();
    assert_eq!((config.data(), config.limits().checkpoint_s), (Path::new("/srv/nfs"), 0));
    load("[database]\n").unwrap();
    let expected = "expected exactly one: [database] for PostgreSQL (the line alone means all defaults), [service] for anything else";
    for (text, found) in [("[pool]\nkind = \"ext4\"\n", "neither"), (&*format!("{service}[database]\n"), "both")] {
        let why = load(text).unwrap_err();
        assert!(why.contains(&format!("database, service: found {found}, {expected}")), "{why}");
    }
}

#[test]
fn what_a_service_needs_is_named() {
    let of = |lines: &str| {
        let config = AgentConfig::parse(&format!("[pool]\nmount = \"/srv/nfs\"\n[service]\n{lines}\n")).unwrap();
        config.validate().err().map(|error| error.to_string()).unwrap_or_default()
    };
    let check = "check = \"true\"";
    assert_eq!(of(check), "");
    for (lines, words) in [
        ("", "service.check: found none, expected a command"),
        ("kind = \"command\"", "service.start: found none, expected a command"),
        ("unit = \"nfs\"", "service.unit: found \"nfs\", expected the whole name of a service"),
        // It would be killed with all services in it.
        ("unit = \"system.slice\"", "service.unit: found \"system.slice\", expected"),
        ("unit = \"..\"", "service.unit: found \"..\", expected"),
        ("unit = \"../nfs.service\"", "service.unit: found \"../nfs.service\", expected"),
        ("unit = \".service\"", "service.unit: found \".service\", expected"),
        ("name = \"an nfs\"", "service.name: found \"an nfs\", expected letters"),
        ("data = \"/elsewhere\"", "service.data: found /elsewhere, expected a directory below pool.mount, /srv/nfs"),
        ("probe_ms = 1", "service.probe_ms: found 1, expected 100 to 60000"),
    ] {
        let why = of(lines);
        assert!(why.contains(words), "{lines}: {why}");
    }
    // Where the agent mounts nothing, nobody else says where it is.
    let text = format!("[pool]\nkind = \"zfs\"\nname = \"tank\"\n[service]\n{check}\n");
    let why = AgentConfig::parse(&text).unwrap().validate().unwrap_err().to_string();
    assert!(why.contains("service.data: found none, expected the absolute path"), "{why}");
    AgentConfig::parse(&format!("{text}data = \"/tank/nfs\"\n")).unwrap().validate().unwrap();
}

/// The example of an NFS server is valid, on both kinds of file system.
#[test]
fn the_examples_of_a_service_are_valid() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/examples/nfs");
    for (file, data) in [("agent-xfs.toml", "/srv/nfs"), ("agent-zfs.toml", "/tank/nfs")] {
        let config = AgentConfig::load(&root.join(file)).unwrap();
        assert_eq!(
            (config.data(), config.workload().to_string()),
            (Path::new(data), "service nfs".to_string()),
            "{file}"
        );
    }
}

/// R10: names of sets and hosts are in traces.
#[test]
fn traces_go_to_a_collector_here_or_over_tls() {
    let of = |lines: &str| {
        let config = AgentConfig::parse(&format!("[traces]\n{lines}\n")).unwrap();
        config.validate().err().map(|error| error.to_string()).unwrap_or_default()
    };
    for good in ["endpoint = \"http://[::1]:4317\"", "endpoint = \"https://c:4317\"\nca = \"/ca.pem\""] {
        assert_eq!(of(good), "", "{good}");
    }
    for (bad, expected) in [("http://10.0.0.9:4317", "expected https://"), ("https://c:4317", "traces.ca")] {
        let why = of(&format!("endpoint = {bad:?}"));
        assert!(why.contains(&format!("traces.endpoint: found {bad:?}")) && why.contains(expected), "{why}");
    }
}
