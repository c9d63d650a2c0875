use super::*;
use crate::exit::Exit;
use clap::Parser;

/// The settings that result from the arguments in `line` and this file.
fn settings_of(file: &str, line: &str) -> Result<GatewayConfig, CliError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("g1.toml");
    std::fs::write(&path, file).unwrap();
    let fixed = ["holdfast", "gateway", "run", "--config", path.to_str().unwrap()];
    let cli = crate::cli::Cli::try_parse_from(fixed.into_iter().chain(line.split_whitespace())).unwrap();
    match cli.command {
        crate::cli::Command::Gateway(crate::cli::GatewayCommand::Run(args)) => settings(&args),
        other => panic!("{other:?}"),
    }
}

const FILE: &str = "name = \"g7\"\nnbd_listen = \"127.0.0.1:1000\"\n[journal]\nbound = \"512MiB\"\nreserve = \"64MiB\"\n[key]\nfile = \"/k\"\n";

#[test]
fn the_last_word_counts() {
    let config = settings_of(FILE, "--set upload.bytes=128MiB --set rtt_ms=5").unwrap();
    assert_eq!((config.name.as_str(), config.rtt_ms), ("g7", 5));
    assert_eq!(config.journal.bound, "512MiB".parse().unwrap());
    let config = settings_of(
        FILE,
        "--set upload.bytes=128MiB --set rtt_ms=5 --rtt-ms 6 --name g8 --nbd-listen 127.0.0.1:1001 --plain-exports",
    )
    .unwrap();
    assert_eq!((config.name.as_str(), config.rtt_ms, config.plain_exports), ("g8", 6, true));
    assert_eq!(config.nbd_address().as_deref(), Some("127.0.0.1:1001"));
}

/// A gateway whose file closes snapshots does not open them to everybody for a trial with volumes.
#[test]
fn plain_exports_open_snapshots_unless_the_settings_say_otherwise() {
    let closed = FILE.replace("nbd_listen", "snapshot_exports = \"token\"\nnbd_listen");
    let line = "--set upload.bytes=128MiB --plain-exports";
    let of = |file: &str, line: &str| {
        let config = settings_of(file, line).unwrap();
        (config.plain_exports, config.snapshot_exports)
    };
    assert_eq!(of(FILE, line), (true, config::SnapshotExports::Open));
    assert_eq!(of(&closed, line), (true, config::SnapshotExports::Token));
    assert_eq!(of(FILE, &format!("{line} --set snapshot_exports=token")), (true, config::SnapshotExports::Token));
    assert_eq!(of(FILE, "--set upload.bytes=128MiB"), (false, config::SnapshotExports::Token));
}

/// SETTINGS-L1: otherwise the rest of the file would be in use, and a pair's gateway that stands by would end at its
/// takeover.
#[test]
fn a_reload_finds_an_audit_log_that_cannot_be_written_before_anything_changes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("g1.toml");
    let write = |ttl: u32, log: &str| {
        let log = dir.path().join(log);
        let text = format!("lease_ttl_ms = {ttl}\n{FILE}[upload]\nbytes = \"64MiB\"\n[audit]\nlog = {log:?}\n");
        std::fs::write(&path, text).unwrap();
    };
    let line = ["holdfast", "gateway", "run", "--config", path.to_str().unwrap()];
    let cli = crate::cli::Cli::try_parse_from(line).unwrap();
    let crate::cli::Command::Gateway(crate::cli::GatewayCommand::Run(args)) = cli.command else { panic!("a run") };
    write(3000, "a.log");
    let live = Live::new(settings(&args).unwrap(), 0);
    write(4000, "none/b.log");
    assert!(!take(&live, read_again(&args, &live)));
    assert_eq!(live.now().lease_ttl_ms, 3000, "nothing of it");
    let why = live.trouble().unwrap();
    assert!(why.contains("audit.log") && why.contains("none/b.log"), "{why}");
    write(4000, "b.log");
    assert!(take(&live, read_again(&args, &live)));
    assert_eq!((live.now().lease_ttl_ms, live.trouble()), (4000, None));
}

#[test]
fn set_takes_values_with_and_without_quotes() {
    let line = "--set upload.bytes=64MiB --set upload.compression=zstd --set upload.parallel=8 --set nbd_unix=/run/x --set region=\"eu\"";
    let config = settings_of(FILE, line).unwrap();
    assert_eq!((config.upload.parallel, config.upload.compression), (8, config::Compression::Zstd));
    assert_eq!((config.region.as_str(), config.nbd_unix.as_deref()), ("eu", Some(Path::new("/run/x"))));
}

#[test]
fn a_key_file_on_the_line_replaces_the_other_source() {
    let file = FILE.replace("file = \"/k\"", "passphrase_env = \"X\"");
    let config = settings_of(&file, "--set upload.bytes=64MiB --key-file /other").unwrap();
    assert_eq!(config.key, config::KeyConfig { file: Some("/other".into()), ..Default::default() });
}

#[test]
fn what_is_wrong_is_a_usage_error_that_names_the_field() {
    for (file, line, field) in [
        (FILE, "", "upload.bytes: found 256MiB"),
        (FILE, "--set jurnal.bound=1GiB", "unknown field `jurnal`"),
        (FILE, "--set journal.bound=1GB", "found \"1GB\""),
        (FILE, "--set name.first=x", "name is not a section"),
        (FILE, "--set upload.bytes=64MiB --api-listen 0.0.0.0:7400", "plaintext_network"),
        ("name = ", "", "is no TOML"),
        ("nbd_unix = \"/x\"", "", "key: found 0 sources"),
    ] {
        let error = settings_of(file, line).unwrap_err();
        assert_eq!(error.exit, Exit::Usage);
        assert!(error.message.contains(field), "expected {field:?} in {:?}", error.message);
    }
    // The file, the arguments, and what the user meant.
    let error = settings_of(&FILE.replace("bound", "buond"), "").unwrap_err();
    assert!(
        error
            .message
            .ends_with("g1.toml line 4: unknown field `buond` in [journal]; the nearest known one is journal.bound"),
        "{}",
        error.message
    );
    let error = settings_of(FILE, "--set rtt_ms=5 --set journal.bond=1GiB --set region=eu").unwrap_err();
    assert_eq!(
        error.message,
        "--set journal.bond: unknown field `bond` in [journal]; the nearest known one is journal.bound"
    );
    assert!(error.next.is_some_and(|next| next.contains("sample-config")));
    let missing =
        settings(&GatewayRunArgs { config: Some("/nonexistent/g1.toml".into()), ..Default::default() }).unwrap_err();
    assert_eq!(missing.exit, Exit::Usage);
}

#[test]
fn a_gateway_whose_parent_has_ended_does_not_start() {
    // No process has this id: it is above the kernel's limit.
    let error = end_with_parent(u32::MAX - 1).unwrap_err();
    let _ = rustix::process::set_parent_process_death_signal(None);
    assert!(error.message.contains("it has ended"), "{}", error.message);
}

#[test]
fn a_file_is_read_with_a_bound() {
    let error = settings_of(&"\n".repeat(SETTINGS_BYTES_MAX as usize + 1), "").unwrap_err();
    assert_eq!(error.exit, Exit::Usage);
    assert!(error.message.contains("found at least 1048577 bytes, expected at most 1048576"), "{}", error.message);
}
