//! Settings that change while a gateway runs: which ones, what a file that is read again changes, what is in use.
//!
//! - **SETTINGS-L1** A file that cannot be used changes nothing, and this is told until one can.
//! - **SETTINGS-L2** What needs a restart stays as it was at the start. Others are taken only if they are valid
//!   together with that.

use super::{AuditConfig, GatewayConfig};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::sync::watch;

/// Settings that are taken without a restart. Their users ask for them each time.
const LIVE: &[&str] = &[
    "log",
    "lease_ttl_ms",
    "placing.enabled",
    "placing.replace_after_ms",
    "placing.follow_owner_ms",
    "cache.keep_uploaded",
    "upload.interval_ms",
    "upload.bytes",
    "upload.compression",
    "upload.parallel",
    "space.target_percent",
    "space.move_bytes_per_second",
    "space.move_requests_per_second",
    "space.repair_bytes_per_second",
    "space.grace_ms",
    "space.deletes_per_second",
    "space.sweep_interval_ms",
    "scrub.bytes_per_second",
    "scrub.interval_ms",
    "store.allowed",
    AUDIT_LOG,
    "audit.rotate",
];

/// The doors have an audit log from their start on, or none.
const AUDIT_LOG: &str = "audit.log";

/// Settings by name, `name` or `section.field`. Those without a value are left out.
type Values = BTreeMap<String, toml::Value>;

/// What settings that were read again change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Taken: `name before -> after`.
    pub applied: Vec<String>,
    /// Names of those that differ from the start and need a restart.
    pub restart: Vec<String>,
}

/// The settings in use. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Live(Arc<watch::Sender<State>>);

#[derive(Debug)]
pub(crate) struct State {
    start: Arc<GatewayConfig>,
    pub(crate) now: Arc<GatewayConfig>,
    trouble: Option<String>,
    read_unix_s: u64,
}

impl Live {
    /// Those of a start, read at `now_unix_s` (seconds).
    pub fn new(config: GatewayConfig, now_unix_s: u64) -> Self {
        let start = Arc::new(config);
        let state = State { now: start.clone(), start, trouble: None, read_unix_s: now_unix_s };
        Self(Arc::new(watch::Sender::new(state)))
    }

    /// The settings in use: those of the start, with what a reload has changed.
    pub fn now(&self) -> Arc<GatewayConfig> {
        self.0.borrow().now.clone()
    }

    /// Why the last reload changed nothing, or not all of it.
    pub fn trouble(&self) -> Option<String> {
        self.0.borrow().trouble.clone()
    }

    /// When the settings in use were read, as Unix time in seconds.
    pub fn read_unix_s(&self) -> u64 {
        self.0.borrow().read_unix_s
    }

    /// Takes settings that were read again at `now_unix_s` (seconds).
    ///
    /// # Errors
    /// They cannot be used, and nothing has changed.
    pub fn take(&self, read: Result<GatewayConfig, String>, now_unix_s: u64) -> Result<Changes, String> {
        let (start, before) = {
            let state = self.0.borrow();
            (state.start.clone(), state.now.clone())
        };
        match read.and_then(|read| plan(&start, &before, &read)) {
            Ok((config, changes)) => {
                self.0.send_modify(|state| {
                    (state.now, state.trouble, state.read_unix_s) = (Arc::new(config), None, now_unix_s);
                });
                Ok(changes)
            }
            Err(why) => {
                self.trouble_is(why.clone());
                Err(why)
            }
        }
    }

    /// The audit log cannot move to where `wanted` says: the settings in use have where it is, `at`, again. Told until
    /// the next reload. Nothing if other settings have come meanwhile: they are tried next.
    pub(crate) fn audit_stays(&self, wanted: &AuditConfig, at: &AuditConfig, why: String) {
        // Nobody has to look at the settings for it.
        self.0.send_if_modified(|state| {
            if state.now.audit == *wanted {
                let now = GatewayConfig { audit: at.clone(), ..(*state.now).clone() };
                (state.now, state.trouble) = (Arc::new(now), Some(why));
            }
            false
        });
    }

    fn trouble_is(&self, why: String) {
        // Nobody has to look at the settings for it.
        self.0.send_if_modified(|state| {
            state.trouble = Some(why);
            false
        });
    }

    /// Hears of each change.
    pub(crate) fn changes(&self) -> watch::Receiver<State> {
        self.0.subscribe()
    }
}

/// The settings to use from now on, and what they change.
fn plan(
    start: &GatewayConfig,
    before: &GatewayConfig,
    read: &GatewayConfig,
) -> Result<(GatewayConfig, Changes), String> {
    let (start, before, read) = (values(start)?, values(before)?, values(read)?);
    let audited = start.contains_key(AUDIT_LOG) == read.contains_key(AUDIT_LOG);
    let live = |name: &str| LIVE.contains(&name) && (audited || name != AUDIT_LOG);
    let names: BTreeSet<&String> = start.keys().chain(before.keys()).chain(read.keys()).collect();
    let (mut merged, mut changes) = (start.clone(), Changes::default());
    for name in names {
        let (was, is) = (before.get(name), read.get(name));
        if !live(name) {
            if start.get(name) != is {
                changes.restart.push(name.clone());
            }
            // An audit log that has moved stays where it is.
            if let Some(log) = was.filter(|_| name == AUDIT_LOG) {
                merged.insert(name.clone(), log.clone());
            }
            continue;
        }
        match is {
            Some(value) => merged.insert(name.clone(), value.clone()),
            None => merged.remove(name),
        };
        if was != is {
            changes.applied.push(format!("{name} {} -> {}", shown(was), shown(is)));
        }
    }
    let config = config_of(merged)?;
    config.validate().map_err(|error| match changes.restart.is_empty() {
        true => error.to_string(),
        false => format!("{error}; {} would need a restart first", changes.restart.join(", ")),
    })?;
    Ok((config, changes))
}

fn shown(value: Option<&toml::Value>) -> String {
    value.map_or("(left out)".to_string(), ToString::to_string)
}

fn values(config: &GatewayConfig) -> Result<Values, String> {
    let table = toml::Table::try_from(config).map_err(|error| error.to_string())?;
    let mut values = Values::new();
    for (name, value) in table {
        match value {
            toml::Value::Table(section) => {
                values.extend(section.into_iter().map(|(field, value)| (format!("{name}.{field}"), value)));
            }
            value => {
                values.insert(name, value);
            }
        }
    }
    Ok(values)
}

fn config_of(values: Values) -> Result<GatewayConfig, String> {
    let mut table = toml::Table::new();
    for (name, value) in values {
        let Some((section, field)) = name.split_once('.') else {
            table.insert(name, value);
            continue;
        };
        let entry = table.entry(section).or_insert_with(|| toml::Value::Table(toml::Table::new()));
        if let Some(section) = entry.as_table_mut() {
            section.insert(field.to_string(), value);
        }
    }
    table.try_into().map_err(|error: toml::de::Error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::known;
    use holdfast_types::ByteSize;
    use std::path::{Path, PathBuf};

    fn changed(change: impl FnOnce(&mut GatewayConfig)) -> GatewayConfig {
        let mut config = GatewayConfig::example();
        change(&mut config);
        config
    }

    #[test]
    fn what_can_be_taken_is_taken_and_the_rest_is_named() {
        let live = Live::new(GatewayConfig::example(), 5);
        assert_eq!(live.take(Ok(GatewayConfig::example()), 6), Ok(Changes::default()));
        let read = changed(|config| {
            config.upload.interval_ms = 5000;
            config.log = Some("debug".into());
            config.rtt_ms = 7;
            config.cache.memory = ByteSize(64 << 20);
        });
        let changes = live.take(Ok(read), 7).unwrap();
        assert_eq!(changes.applied, ["log (left out) -> \"debug\"", "upload.interval_ms 15000 -> 5000"]);
        assert_eq!(changes.restart, ["cache.memory", "rtt_ms"]);
        let now = live.now();
        assert_eq!((now.upload.interval_ms, now.log.as_deref()), (5000, Some("debug")));
        assert_eq!((now.rtt_ms, now.cache.memory), (1, GatewayConfig::example().cache.memory), "as at the start");
        assert_eq!((live.read_unix_s(), live.trouble()), (7, None));
        // Back again: what is left out has its default.
        let changes = live.take(Ok(GatewayConfig::example()), 8).unwrap();
        assert_eq!((changes.applied.len(), changes.restart.len()), (2, 0));
        assert_eq!(*live.now(), GatewayConfig::example());
    }

    #[test]
    fn a_file_that_cannot_be_used_changes_nothing_and_says_so_until_one_can() {
        let live = Live::new(GatewayConfig::example(), 5);
        live.take(Ok(changed(|config| config.lease_ttl_ms = 4000)), 6).unwrap();
        assert_eq!(live.take(Err("line 3: unknown field".into()), 7), Err("line 3: unknown field".into()));
        assert_eq!((live.now().lease_ttl_ms, live.read_unix_s()), (4000, 6));
        assert_eq!(live.trouble().as_deref(), Some("line 3: unknown field"));
        live.take(Ok(GatewayConfig::example()), 8).unwrap();
        assert_eq!((live.now().lease_ttl_ms, live.trouble()), (3000, None));
    }

    /// The journal's bound needs a restart, and more than a quarter of it is not valid beside it.
    #[test]
    fn what_is_valid_only_with_a_setting_that_needs_a_restart_is_not_taken() {
        let live = Live::new(GatewayConfig::example(), 5);
        let read = changed(|config| {
            config.journal.bound = ByteSize(32 << 30);
            config.upload.bytes = ByteSize(4 << 30);
            config.scrub.bytes_per_second = ByteSize(5 << 20);
        });
        read.validate().unwrap();
        let why = live.take(Ok(read), 6).unwrap_err();
        assert!(why.contains("upload.bytes") && why.contains("journal.bound would need a restart"), "{why}");
        assert_eq!(*live.now(), GatewayConfig::example(), "nothing of it");
    }

    /// The doors are made with an audit log or without one.
    #[test]
    fn an_audit_log_can_move_but_not_begin_or_end() {
        let with = |file: Option<&str>| changed(|config| config.audit.log = file.map(PathBuf::from));
        let live = Live::new(with(None), 5);
        let changes = live.take(Ok(with(Some("/a"))), 6).unwrap();
        assert_eq!((changes.applied.len(), changes.restart), (0, vec!["audit.log".to_string()]));
        assert_eq!(live.now().audit.log, None);
        let live = Live::new(with(Some("/a")), 5);
        let changes = live.take(Ok(with(Some("/b"))), 6).unwrap();
        assert_eq!(changes.applied, ["audit.log \"/a\" -> \"/b\""]);
        let changes = live.take(Ok(with(None)), 7).unwrap();
        assert_eq!((changes.applied.len(), changes.restart), (0, vec!["audit.log".to_string()]));
        assert_eq!(live.now().audit.log, Some("/b".into()), "it stays where it is");
    }

    /// The settings in use are those of the log that is written: a pair's next tenure starts with them.
    #[test]
    fn an_audit_log_that_cannot_move_is_in_use_where_it_is() {
        let with = |file: &str| changed(|config| config.audit.log = Some(PathBuf::from(file)));
        let (live, at) = (Live::new(with("/a"), 5), with("/a").audit);
        live.take(Ok(with("/b")), 6).unwrap();
        // It has failed for settings that are not in use any more: nothing is wrong with the others.
        live.audit_stays(&with("/c").audit, &at, "no /c".into());
        assert_eq!((live.now().audit.log.clone(), live.trouble()), (Some("/b".into()), None));
        live.audit_stays(&with("/b").audit, &at, "no /b".into());
        assert_eq!((live.now().audit.log.clone(), live.trouble()), (Some("/a".into()), Some("no /b".into())));
        // The same file is another try.
        assert_eq!(live.take(Ok(with("/b")), 7).unwrap().applied.len(), 1);
        assert_eq!(live.trouble(), None);
    }

    /// Code that asks the settings of the start for one of them sees no reload. `audit` looks from there on.
    #[test]
    fn nobody_asks_the_settings_of_the_start_for_them() {
        let all = |name: &str| ["placing", "space", "scrub"].contains(&name);
        let asked: BTreeSet<String> = LIVE
            .iter()
            .filter(|name| !name.starts_with("audit."))
            .map(|name| match name.split_once('.') {
                Some((section, _)) if all(section) => format!("node.config.{section}."),
                _ => format!("node.config.{name}"),
            })
            .collect();
        let (mut places, mut files) = (vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")], 0);
        while let Some(place) = places.pop() {
            if place.is_dir() {
                places.extend(std::fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().path()));
                continue;
            }
            files += 1;
            // Calls may be divided over lines.
            let text: String = std::fs::read_to_string(&place).unwrap().split_whitespace().collect();
            let found: Vec<&String> = asked.iter().filter(|asked| text.contains(asked.as_str())).collect();
            assert!(found.is_empty(), "{}: {found:?}, expected node.live()", place.display());
        }
        assert!(files > 50, "{files} files");
    }

    #[test]
    fn each_of_them_is_a_setting() {
        for name in LIVE {
            known(name).unwrap_or_else(|why| panic!("{name}: {why}"));
        }
    }
}
