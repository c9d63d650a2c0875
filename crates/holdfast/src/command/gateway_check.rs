//! `holdfast gateway run --check`: whether a gateway could start with its settings and with the files that they name.
//! Tells everything that is wrong at once. Starts nothing and changes nothing. docs/operating/settings.md describes it.

use super::gateway::{self, EXPLAINED};
use crate::cli::{Common, GatewayRunArgs};
use crate::exit::CliError;
use crate::{output, serve};
use holdfast_gateway::checks::check_credentials_file;
use holdfast_gateway::config::{self, ConfigError, GatewayConfig, Problem};
use holdfast_gateway::node::cluster_keys;
use holdfast_gateway::node_key::{self, NodeKeyError};
use holdfast_tls::Role;
use holdfast_tls::files::{self, SETTINGS_BYTES_MAX};
use serde::Serialize;
use std::io::ErrorKind;
use std::path::Path;

/// Where systemd has the credentials of the units that run.
const CREDENTIALS: &str = "/run/credentials";

/// One thing that keeps a gateway from its start.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Wrong {
    /// The line of the file, from 1; none if the value is not from there.
    line: Option<usize>,
    /// The setting or section, if it is known.
    setting: Option<String>,
    /// What was found, and what was expected.
    found: String,
    /// What to do.
    next: String,
}

impl Wrong {
    /// Of a setting whose file or value cannot be used. `advice` is for an error without its own.
    fn of(setting: &str, error: CliError, advice: &str) -> Self {
        let next = error.next.unwrap_or_else(|| advice.to_string());
        Self { line: None, setting: Some(setting.to_string()), found: format!("{setting}: {}", error.message), next }
    }

    /// Of the file or the arguments as a whole.
    fn whole(error: CliError) -> Self {
        let next = error.next.unwrap_or_else(|| EXPLAINED.to_string());
        Self { line: None, setting: None, found: error.message, next }
    }
}

/// What `--output json` prints if something is wrong.
#[derive(Serialize)]
struct Report<'a> {
    valid: bool,
    wrong: &'a [Wrong],
}

/// Runs the check.
pub async fn run(common: &Common, args: &GatewayRunArgs) -> Result<(), CliError> {
    let (wrong, config) = examine(args).await;
    let file = gateway::from(args);
    let Some(config) = config.filter(|_| wrong.is_empty()) else {
        output::show(common.output, &Report { valid: false, wrong: &wrong }, || table(&file, &wrong))?;
        let mistakes = if wrong.len() == 1 { "mistake" } else { "mistakes" };
        let error = CliError::usage(format!("{file}: found {} {mistakes}, expected none", wrong.len()));
        return Err(error.next("each is told above, with what to do"));
    };
    let text = toml::to_string(&config).map_err(|error| CliError::failed("the settings").because(&error))?;
    output::show(common.output, &config, || format!("# The settings are valid:\n{text}"))
}

fn table(file: &str, wrong: &[Wrong]) -> String {
    let lines = wrong.iter().map(|one| {
        let line = one.line.map_or(String::new(), |line| format!(" line {line}"));
        format!("{file}{line}: {}\n  {}\n", one.found, one.next)
    });
    lines.collect()
}

/// All that is wrong, and the settings, if they can be read at all.
async fn examine(args: &GatewayRunArgs) -> (Vec<Wrong>, Option<GatewayConfig>) {
    let text = match args.config.as_deref().map(|path| files::read_text(path, SETTINGS_BYTES_MAX)) {
        None => String::new(),
        Some(Ok(text)) => text,
        Some(Err(error)) => {
            // The table names the file.
            let error = CliError::usage("cannot be read").because(&error);
            return (vec![Wrong::whole(error)], None);
        }
    };
    if let Err(mistakes) = config::read(&text) {
        let wrong = mistakes.into_iter().map(|mistake| {
            let (line, found) = (Some(mistake.line), mistake.what);
            Wrong { line, setting: None, found, next: EXPLAINED.to_string() }
        });
        return (wrong.collect(), None);
    }
    let config = match gateway::unchecked(args) {
        Ok(config) => config,
        Err(error) => return (vec![Wrong::whole(error)], None),
    };
    if !config.core_dumps {
        serve::without_core_dumps();
    }
    let mut wrong = match config.validate() {
        Ok(()) => Vec::new(),
        Err(ConfigError::Invalid { problems }) => {
            problems.iter().map(|problem| of_value(problem, &text, &config)).collect()
        }
        Err(error) => vec![Wrong::whole(CliError::usage("").because(&error))],
    };
    if let Some(found) = gateway::wrong_filter(&config) {
        wrong.push(of_setting("log", found, &text, &config));
    }
    let of_files = of_files(&config, &wrong).await;
    wrong.extend(of_files);
    (wrong, Some(config))
}

/// A value that is out of range, or contradicts another one.
fn of_value(problem: &Problem, text: &str, config: &GatewayConfig) -> Wrong {
    // Some names have a word behind them.
    let setting = problem.field.split(' ').next().unwrap_or_default();
    of_setting(setting, problem.to_string(), text, config)
}

fn of_setting(setting: &str, found: String, text: &str, config: &GatewayConfig) -> Wrong {
    let line = config::lines(text).get(setting).copied().filter(|_| is_from(text, setting, config));
    Wrong { line, setting: Some(setting.to_string()), found, next: EXPLAINED.to_string() }
}

/// Whether the value of a setting is that of the file, not of an option.
fn is_from(text: &str, setting: &str, config: &GatewayConfig) -> bool {
    let value = |config: &GatewayConfig| -> Option<toml::Value> {
        let mut table = toml::Table::try_from(config).ok()?;
        match setting.split_once('.') {
            None => table.remove(setting),
            Some((section, field)) => table.get_mut(section)?.as_table_mut()?.remove(field),
        }
    };
    GatewayConfig::parse(text).is_ok_and(|of_file| value(&of_file) == value(config))
}

/// Files that cannot be used. What a section's own values have wrong is told once: its files are left out then.
async fn of_files(config: &GatewayConfig, known: &[Wrong]) -> Vec<Wrong> {
    let told = |section: &str| {
        let settings = known.iter().filter_map(|wrong| wrong.setting.as_deref());
        settings.filter_map(|setting| setting.split('.').next()).any(|found| found == section)
    };
    let mut wrong = Vec::new();
    wrong.extend(data_dir(&config.data_dir));
    if !told("key") && !told("key_previous") {
        wrong.extend(keys(config).await);
    }
    if !told("tls")
        && let Err(error) = config.tls.load(Role::Gateway)
    {
        let advice = "docs/operating/tls.md says what each file must be";
        wrong.push(Wrong::of("tls", CliError::usage("").because(&error), advice));
    }
    if !told("store")
        && let Some(path) = &config.store.credentials_file
        && let Err(problem) = check_credentials_file(path)
    {
        let error = CliError::usage(path.display().to_string()).because(&problem);
        let advice = "docs/operating/stores.md has the format of this file; its mode is 0600";
        wrong.push(Wrong::of("store.credentials_file", error, advice));
    }
    if !told("etcd")
        && let Err((what, error)) = config.etcd.load()
    {
        wrong.push(Wrong::of("etcd", CliError::usage(what).because(&error), "docs/operating/etcd.md has the files"));
    }
    if !told("traces")
        && let Err((what, error)) = config.traces.load(config.name.as_str())
    {
        wrong.push(Wrong::of(
            "traces",
            CliError::usage(what).because(&error),
            "docs/operating/monitoring.md has traces",
        ));
    }
    if !told("audit") {
        wrong.extend(config.audit.log.as_deref().and_then(audit_log));
    }
    wrong
}

/// The start makes a directory that is not there.
fn data_dir(path: &Path) -> Option<Wrong> {
    let found = std::fs::metadata(path).ok().filter(|found| !found.is_dir())?;
    let kind = if found.is_file() { "a file" } else { "something else" };
    let error = CliError::usage(format!("{}: found {kind}, expected a directory, or nothing yet", path.display()));
    Some(Wrong::of("data_dir", error, "name a directory of this gateway's own, on a local file system"))
}

/// The start makes a file that is not there, but no directory.
fn audit_log(path: &Path) -> Option<Wrong> {
    const ADVICE: &str = "name a file in a directory that exists and that the gateway's user may write to";
    let wrong = |error: CliError| Some(Wrong::of("audit.log", error, ADVICE));
    let named = path.display();
    match std::fs::metadata(path) {
        Ok(found) if found.is_file() => None,
        Ok(_) => wrong(CliError::usage(format!("{named}: expected a regular file, or none yet"))),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let above = path.parent().unwrap_or(Path::new("/"));
            let there = std::fs::metadata(above).is_ok_and(|found| found.is_dir());
            let text = format!("{}: found no directory, expected one for the log", above.display());
            if there { None } else { wrong(CliError::usage(text)) }
        }
        Err(error) => wrong(CliError::usage(named.to_string()).because(&error)),
    }
}

/// The cluster key: whether it opens, and whether it is the one of this data directory.
async fn keys(config: &GatewayConfig) -> Option<Wrong> {
    const ADVICE: &str = "docs/operating/keys.md has the sources of the key";
    let handed_over = config.key.file.as_deref().filter(|file| file.starts_with(CREDENTIALS));
    let keys = match cluster_keys(config).await {
        Ok(keys) => keys,
        Err(error) => {
            let mut error = CliError::usage("").because(&error);
            if handed_over.is_some_and(|file| matches!(file.try_exists(), Ok(false))) {
                error = error.next("systemd makes this file when it starts the unit: check with --key-file KEYFILE");
            }
            return Some(Wrong::of("key", error, ADVICE));
        }
    };
    match node_key::check(&config.data_dir, &keys) {
        Err(error @ NodeKeyError::OtherKey { .. }) => {
            Some(Wrong::of("key", CliError::usage("").because(&error), ADVICE))
        }
        // Whoever may not look into the data directory can check the rest.
        Ok(()) | Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::os::unix::fs::PermissionsExt;

    /// What a check with this file and these options finds. `DIR` is the file's folder.
    async fn found(dir: &Path, text: &str, line: &str) -> Vec<Wrong> {
        let path = dir.join("g1.toml");
        std::fs::write(&path, text.replace("DIR", dir.to_str().unwrap())).unwrap();
        let fixed = ["holdfast", "gateway", "run", "--check", "--config", path.to_str().unwrap()];
        let cli = crate::cli::Cli::try_parse_from(fixed.into_iter().chain(line.split_whitespace())).unwrap();
        match cli.command {
            crate::cli::Command::Gateway(crate::cli::GatewayCommand::Run(args)) => examine(&args).await.0,
            other => panic!("{other:?}"),
        }
    }

    fn put(dir: &Path, name: &str, bytes: &[u8], mode: u32) {
        std::fs::write(dir.join(name), bytes).unwrap();
        std::fs::set_permissions(dir.join(name), PermissionsExt::from_mode(mode)).unwrap();
    }

    const GOOD: &str = "data_dir = \"DIR/data\"\nnbd_unix = \"/run/nbd\"\n\n[key]\nfile = \"DIR/key\"\n";

    #[tokio::test]
    async fn nothing_is_wrong_with_what_can_start() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), "key", &[7; 32], 0o600);
        put(dir.path(), "s3", b"[east]\naws_access_key_id = A\naws_secret_access_key = B\n", 0o600);
        let text = format!("{GOOD}\n[store]\ncredentials_file = \"DIR/s3\"\n\n[audit]\nlog = \"DIR/audit.log\"\n");
        let wrong = found(dir.path(), &text, "").await;
        assert!(wrong.is_empty(), "{wrong:?}");
        assert!(!dir.path().join("data").exists() && !dir.path().join("audit.log").exists(), "nothing was made");
    }

    #[tokio::test]
    async fn each_wrong_line_is_told() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), "key", &[7; 32], 0o600);
        let lines = |wrong: &[Wrong]| wrong.iter().map(|one| one.line).collect::<Vec<_>>();
        let typos = found(dir.path(), &format!("nmae = \"g1\"\n{GOOD}\n[uplaod]\nbytes = \"1GiB\"\n"), "").await;
        assert_eq!(lines(&typos), [Some(1), Some(8)], "{typos:?}");
        let filter = found(dir.path(), &format!("log = \"a=b=c\"\n{GOOD}"), "").await;
        assert!(filter.len() == 1 && filter[0].line == Some(1), "{filter:?}");
        let text = format!("rtt_ms = 2000\n{GOOD}\n[journal]\nbound = \"1MiB\"\nreserve = \"0B\"\n");
        let values = found(dir.path(), &text, "").await;
        for (setting, line) in [("rtt_ms", 1), ("journal.bound", 9), ("journal.reserve", 10)] {
            let told = values.iter().any(|one| one.line == Some(line) && one.setting.as_deref() == Some(setting));
            assert!(told, "{setting}: {values:?}");
        }
        assert!(values.iter().all(|one| one.found.contains("expected") && !one.next.is_empty()), "{values:?}");
        // What an option says is on no line of the file.
        let option = found(dir.path(), &format!("rtt_ms = 20\n{GOOD}"), "--rtt-ms 2000").await;
        assert!(option.iter().any(|one| one.setting.as_deref() == Some("rtt_ms")), "{option:?}");
        assert!(option.iter().all(|one| one.line.is_none()), "{option:?}");
    }

    /// Whoever mends one thing after the other restarts a gateway as often.
    #[tokio::test]
    async fn all_files_that_cannot_be_used_are_told_at_once() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), "key", &[7; 32], 0o644);
        put(dir.path(), "s3", b"[default]\nwhat\n", 0o600);
        put(dir.path(), "data", b"", 0o600);
        let text = format!(
            "{GOOD}\n[tls]\nca = \"DIR/ca.pem\"\ncertificate = \"DIR/g1.pem\"\nkey = \"DIR/g1.key\"\n\n[store]\n\
             credentials_file = \"DIR/s3\"\n\n[audit]\nlog = \"DIR/none/audit.log\"\n\n[etcd]\n\
             endpoints = [\"https://e:2379\"]\nca = \"DIR/etcd.pem\"\n\n[traces]\n\
             endpoint = \"https://c:4317\"\nca = \"DIR/collector.pem\"\n"
        );
        let wrong = found(dir.path(), &text, "").await;
        let settings: Vec<&str> = wrong.iter().filter_map(|one| one.setting.as_deref()).collect();
        let expected = ["data_dir", "key", "tls", "store.credentials_file", "etcd", "traces", "audit.log"];
        assert_eq!(settings, expected, "{wrong:?}");
        assert!(wrong[1].found.contains("0644"), "{wrong:?}");
        assert!(wrong[3].found.contains("line 2"), "{wrong:?}");
        assert!(wrong.iter().all(|one| !one.next.is_empty()), "{wrong:?}");
        let shown = table("g1.toml", &wrong);
        assert_eq!(shown.lines().count(), 2 * wrong.len(), "{shown}");
        let json = serde_json::to_value(Report { valid: false, wrong: &wrong }).unwrap();
        assert_eq!(json["valid"], false, "{json}");
        assert_eq!(json["wrong"][2]["setting"], "tls", "{json}");
    }

    #[tokio::test]
    async fn a_key_that_only_a_running_unit_has_is_told_as_such() {
        let dir = tempfile::tempdir().unwrap();
        let text = GOOD.replace("DIR/key", "/run/credentials/no-such-unit.service/cluster.key");
        let wrong = found(dir.path(), &text, "").await;
        assert!(wrong.len() == 1 && wrong[0].next.contains("--key-file"), "{wrong:?}");
    }
}
