//! Settings, keys and certificates of a gateway, and of an agent.

use super::disk;
use super::finding::Finding;
use holdfast_agent::config::{AgentConfig, Device, PoolKind, WatchdogMode};
use holdfast_gateway::config::{GatewayConfig, KeyConfig};
use holdfast_gateway::node::cluster_keys;
use holdfast_gateway::node_key;
use holdfast_tls::{Expiry, Role, Tls, TlsError};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::task::JoinError;

/// Time limit of the look at a disk.
const DISK_LIMIT: Duration = Duration::from_secs(60);

const DAY: i64 = 24 * 3600;

const SETTINGS: &str = "settings";

/// Where systemd has the credentials of the units that run.
const CREDENTIALS: &str = "/run/credentials";

/// All checks of a gateway's files. `None`: its settings cannot be used.
pub async fn gateway(path: &Path) -> (Vec<Finding>, Option<GatewayConfig>) {
    let config = match GatewayConfig::load(path) {
        Ok(config) => config,
        Err(error) => return (vec![unusable(&error, "gateway")], None),
    };
    let mut found = vec![Finding::ok(SETTINGS, format!("{}: valid", path.display()))];
    let (dir, needed) = (config.data_dir.clone(), config.journal.bound.0.saturating_add(config.cache.disk.0));
    let looking = tokio::task::spawn_blocking(move || disk::findings(&dir, needed));
    let (of_disk, answers) = within(DISK_LIMIT, &config.data_dir, looking).await;
    found.extend(of_disk);
    found.push(match answers {
        true => key(&config).await,
        false => Finding::unknown("cluster key", "the node's key is on that disk", ""),
    });
    found.extend(certificates(config.tls.load(Role::Gateway)));
    (found, Some(config))
}

/// What was found about the disk of `dir`, and whether it answers. One that hangs must not keep the doctor, or a
/// bundle, from telling it.
async fn within(
    limit: Duration,
    dir: &Path,
    looking: impl Future<Output = Result<Vec<Finding>, JoinError>>,
) -> (Vec<Finding>, bool) {
    const CHECK: &str = "data directory";
    match tokio::time::timeout(limit, looking).await {
        Ok(Ok(found)) => (found, true),
        Ok(Err(error)) => (vec![Finding::unknown(CHECK, error.to_string(), "")], true),
        Err(_) => {
            let found = format!("{}: no answer within {limit:?}", dir.display());
            let next = "the disk hangs, or a sync takes more than a second: look at `dmesg`, and use another disk";
            (vec![Finding::bad(CHECK, found, next)], false)
        }
    }
}

fn unusable(error: &(dyn std::error::Error + 'static), whose: &str) -> Finding {
    let text = crate::exit::CliError::usage("").because(error).message;
    let explained = match whose {
        "agent" => "agent config",
        _ => "gateway sample-config",
    };
    Finding::bad(SETTINGS, text, format!("`holdfast {explained}` explains every setting"))
}

async fn key(config: &GatewayConfig) -> Finding {
    const CHECK: &str = "cluster key";
    if let Some(file) = files_of_keys(config).find(|file| not_handed_over(file)) {
        let next = if config.key.file.as_deref() == Some(file) {
            "start the unit, or `holdfast gateway run --config FILE --key-file KEYFILE --check` for the key itself"
        } else {
            "start the unit: if the key does not open, its log says so (`journalctl -u holdfast-gateway`)"
        };
        return Finding::unknown(CHECK, format!("{}: systemd makes it when it starts the unit", file.display()), next);
    }
    let text = |error: &(dyn std::error::Error + 'static)| crate::exit::CliError::usage("").because(error).message;
    match cluster_keys(config).await {
        Err(error) => Finding::bad(CHECK, text(&error), "docs/operating/keys.md has the sources of the key"),
        Ok(keys) => match node_key::check(&config.data_dir, &keys) {
            Ok(()) => Finding::ok(CHECK, "it opens, and fits this data directory"),
            Err(error @ node_key::NodeKeyError::OtherKey { .. }) => Finding::bad(CHECK, text(&error), ""),
            Err(error) => Finding::unknown(CHECK, text(&error), "run this as root, or as the gateway's user"),
        },
    }
}

/// Files that a secret of the key, or of the previous one, is read from.
fn files_of_keys(config: &GatewayConfig) -> impl Iterator<Item = &Path> {
    fn of(key: &KeyConfig) -> [&Option<PathBuf>; 3] {
        [&key.file, &key.passphrase_file, &key.vault_token_file]
    }
    [&config.key, &config.key_previous].into_iter().flat_map(of).filter_map(|file| file.as_deref())
}

/// Whether the file is a credential of a unit that does not run. A person must not be told to make a new key then.
fn not_handed_over(file: &Path) -> bool {
    file.starts_with(CREDENTIALS) && matches!(file.try_exists(), Ok(false))
}

/// The certificate files, and when they expire.
fn certificates(loaded: Result<Option<Tls>, TlsError>) -> Vec<Finding> {
    const CHECK: &str = "certificates";
    match loaded {
        Err(error) => {
            let text = crate::exit::CliError::usage("").because(&error).message;
            vec![Finding::bad(CHECK, text, "docs/operating/tls.md says what each file must be")]
        }
        Ok(None) => vec![Finding::warning(
            CHECK,
            "none: no TLS",
            "without [tls], whoever reaches the ports can do everything; docs/operating/tls.md",
        )],
        Ok(Some(tls)) => expiries(tls.expiry(), i64::try_from(holdfast_host::unix_ms() / 1000).unwrap_or(i64::MAX)),
    }
}

fn expiries(expiry: Expiry, now: i64) -> Vec<Finding> {
    let one = |check: &'static str, what: &str, ends: Option<u64>, warned: Option<u64>| {
        let soon = warned.and_then(|warned| i64::try_from(warned).ok()).is_some_and(|warned| now >= warned);
        let next = match what {
            "" => "`holdfast certificate renew` makes a new one, which is used without a restart",
            _ => "whoever makes the certificates (cert-manager, step-ca) has to renew it, and then the certificate",
        };
        let Some(ends) = ends.and_then(|ends| i64::try_from(ends).ok()) else {
            return Finding::unknown(check, "its end cannot be read", "`openssl x509 -enddate -noout -in FILE`");
        };
        match (ends - now).div_euclid(DAY) {
            days @ ..0 => Finding::bad(check, format!("{what}expired {} days ago", -days), next),
            days if soon => Finding::warning(check, format!("{what}expires in {days} days"), next),
            days => Finding::ok(check, format!("{what}valid for {days} days")),
        }
    };
    let what = if expiry.own_is_between { "the authority that comes with it: " } else { "" };
    let own = one("certificate", what, expiry.own, expiry.own_warned);
    vec![own, one("authority", "", expiry.authority, expiry.authority_warned)]
}

/// All checks of an agent's files. `None`: its settings cannot be used.
pub fn agent(path: &Path) -> (Vec<Finding>, Option<AgentConfig>) {
    let config = match AgentConfig::load(path) {
        Ok(config) => config,
        Err(error) => return (vec![unusable(&error, "agent")], None),
    };
    let mut found = vec![Finding::ok(SETTINGS, format!("{}: valid", path.display()))];
    found.push(programs(&config));
    if config.watchdog.mode != WatchdogMode::Off {
        found.push(watchdog(config.watchdog.mode, &config.watchdog.device));
    }
    found.extend(certificates(config.tls.load(Role::Host)));
    (found, Some(config))
}

/// Whether an agent with these settings needs the kernel's nbd.
pub fn needs_nbd(config: &AgentConfig) -> bool {
    matches!(config.attach.device, Device::Auto | Device::Kernel)
}

/// Programs that the agent runs.
fn programs(config: &AgentConfig) -> Finding {
    const CHECK: &str = "programs";
    let by_name: &[&str] = match config.pool.kind {
        PoolKind::Zfs => &["zpool", "zfs"],
        PoolKind::Ext4 => &["mount", "umount", "fsck.ext4"],
        PoolKind::Xfs => &["mount", "umount"],
        PoolKind::None => &[],
    };
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs: Vec<_> = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(Into::into)).collect();
    let missing =
        by_name.iter().filter(|name| !dirs.iter().any(|dir| dir.join(name).is_file())).map(|name| name.to_string());
    let of_postgresql = ["postgres", "psql"].map(|name| config.database.bin_dir.join(name));
    // What another service needs, its commands and its unit know.
    let of_postgresql = if config.service.is_some() { &[][..] } else { &of_postgresql[..] };
    let gone = of_postgresql.iter().filter(|path| !path.is_file()).map(|path| path.display().to_string());
    let missing: Vec<String> = missing.chain(gone).collect();
    match missing.is_empty() {
        true if config.service.is_some() => Finding::ok(CHECK, "those of the pool".to_string()),
        true => {
            Finding::ok(CHECK, format!("PostgreSQL in {}, and those of the pool", config.database.bin_dir.display()))
        }
        false => Finding::bad(
            CHECK,
            format!("not found: {}", missing.join(", ")),
            "install them, or correct database.bin_dir and pool.kind",
        ),
    }
}

fn watchdog(mode: WatchdogMode, device: &Path) -> Finding {
    const CHECK: &str = "watchdog";
    let next = "load its module (`modprobe softdog` where the machine has none), or set watchdog.mode";
    match (device.try_exists(), mode) {
        (Ok(true), _) => Finding::ok(CHECK, device.display().to_string()),
        (Ok(false), WatchdogMode::Required) => {
            Finding::bad(CHECK, format!("{} does not exist, and is required", device.display()), next)
        }
        (Ok(false), _) => Finding::warning(CHECK, format!("{} does not exist", device.display()), next),
        (Err(error), _) => Finding::unknown(CHECK, format!("{}: {error}", device.display()), "run this as root"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::*;

    fn verdict<'a>(found: &'a [Finding], check: &str) -> &'a Finding {
        found.iter().find(|finding| finding.check == check).unwrap_or_else(|| panic!("{check}: {found:?}"))
    }

    #[tokio::test]
    async fn a_gateway_with_wrong_files_is_told_each_of_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gateway.toml");
        let (found, config) = gateway(&path).await;
        assert!(config.is_none() && found[0].verdict == Verdict::Bad, "{found:?}");
        let (data, key) = (dir.path().join("data"), dir.path().join("key"));
        let text = format!("nbd_unix = \"/run/nbd.sock\"\ndata_dir = {data:?}\n[key]\nfile = {key:?}\n");
        std::fs::write(&path, text).unwrap();
        let (found, config) = gateway(&path).await;
        assert!(config.is_some(), "{found:?}");
        assert_eq!(verdict(&found, "settings").verdict, Verdict::Ok);
        assert_eq!(verdict(&found, "disk sync").verdict, Verdict::Unknown, "there is no data directory yet");
        let said = verdict(&found, "cluster key");
        assert!(said.verdict == Verdict::Bad && said.found.contains(&key.display().to_string()), "{said:?}");
        assert_eq!(verdict(&found, "certificates").verdict, Verdict::Warning, "no TLS");
    }

    /// deploy/systemd/holdfast-gateway.service hands the key over, and the doctor is asked before the first start.
    #[tokio::test]
    async fn a_key_that_systemd_hands_over_later_is_no_missing_key() {
        let later = Some("/run/credentials/holdfast-test-that-never-runs.service/secret".into());
        let mut config = GatewayConfig::example();
        config.key.file.clone_from(&later);
        let said = key(&config).await;
        assert!(said.verdict == Verdict::Unknown && said.next.contains("--key-file"), "{said:?}");
        // The unit's file has drop-ins for a passphrase and for a token of Vault as well.
        let passphrase = KeyConfig { passphrase_file: later.clone(), ..KeyConfig::default() };
        let token = KeyConfig { vault_token_file: later.clone(), ..KeyConfig::default() };
        let previous = KeyConfig { file: later, ..KeyConfig::default() };
        let nothing = KeyConfig::default();
        for (now, before) in [(passphrase, &nothing), (token, &nothing), (nothing.clone(), &previous)] {
            (config.key, config.key_previous) = (now, before.clone());
            let said = key(&config).await;
            assert!(said.verdict == Verdict::Unknown && said.next.contains("journalctl"), "{said:?}");
        }
        let dir = tempfile::tempdir().unwrap();
        for elsewhere in [dir.path().join("cluster.key"), dir.path().join("run/credentials/cluster.key")] {
            assert!(!not_handed_over(&elsewhere), "{}", elsewhere.display());
        }
    }

    #[tokio::test]
    async fn a_disk_that_hangs_is_told() {
        let looking = within(Duration::from_millis(1), Path::new("/srv/holdfast"), std::future::pending());
        let (found, answers) = tokio::time::timeout(Duration::from_secs(20), looking).await.unwrap();
        assert!(!answers && found[0].verdict == Verdict::Bad, "{found:?}");
        assert_eq!(found[0].found, "/srv/holdfast: no answer within 1ms");
    }

    #[test]
    fn certificates_are_judged_by_their_days() {
        let at = |own: i64| {
            let (own, own_warned) = (u64::try_from(own).ok(), u64::try_from(own - 30 * DAY + 1).ok());
            expiries(Expiry { own, own_warned, ..Expiry::default() }, 100 * DAY)
        };
        assert_eq!(at(100 * DAY - 1)[0].verdict, Verdict::Bad);
        assert_eq!(at(129 * DAY)[0].verdict, Verdict::Warning);
        let found = at(130 * DAY);
        assert_eq!((found[0].verdict, found[1].verdict), (Verdict::Ok, Verdict::Unknown));
        let day = u64::try_from(DAY).ok();
        let between = Expiry { own: day, own_warned: day, own_is_between: true, ..Expiry::default() };
        let found = expiries(between, 3 * DAY).swap_remove(0);
        assert_eq!(found.found, "the authority that comes with it: expired 2 days ago");
        assert!(!found.next.contains("holdfast certificate renew"), "{found:?}");
    }

    #[test]
    fn an_agent_needs_its_programs_and_a_required_watchdog() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = AgentConfig::example();
        config.pool.kind = PoolKind::None;
        config.database.bin_dir = dir.path().to_path_buf();
        let found = programs(&config);
        assert!(found.verdict == Verdict::Bad && found.found.ends_with("/psql"), "{found:?}");
        for name in ["postgres", "psql"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        assert_eq!(programs(&config).verdict, Verdict::Ok);
        let device = dir.path().join("watchdog");
        assert_eq!(watchdog(WatchdogMode::Required, &device).verdict, Verdict::Bad);
        assert_eq!(watchdog(WatchdogMode::Automatic, &device).verdict, Verdict::Warning);
        std::fs::write(&device, "").unwrap();
        assert_eq!(watchdog(WatchdogMode::Required, &device).verdict, Verdict::Ok);
    }
}
