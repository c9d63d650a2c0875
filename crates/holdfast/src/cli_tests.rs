use super::values::store_url;
use super::*;
use crate::output;
use clap::CommandFactory;
use holdfast_types::MemberId;
use std::path::Path;
use std::time::Duration;

/// All help pages; `UPDATE_GOLDEN=1 cargo test -p holdfast golden` rewrites the file. Read its diff like a diff of
/// code.
const GOLDEN: &str = "tests/golden/help.txt";

/// Splits a line as a shell does, as far as the examples need it: words, some of them in single quotes.
fn parse(line: &str) -> Result<Cli, clap::Error> {
    let words = line.split_whitespace().map(|word| word.trim_matches('\''));
    Cli::try_parse_from(std::iter::once("holdfast").chain(words))
}

fn good(line: &str) -> Cli {
    parse(line).unwrap_or_else(|error| panic!("{line}: {error}"))
}

fn pages(command: &mut clap::Command, name: &str, out: &mut String) {
    out.push_str(&format!("==== {name}\n{}\n", command.render_long_help().to_string().trim_end()));
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_string()).collect();
    for sub in names {
        let Some(found) = command.find_subcommand_mut(&sub) else { continue };
        pages(found, &format!("{name} {sub}"), out);
    }
}

fn all_pages() -> String {
    let mut command = Cli::command().term_width(100);
    command.build();
    let mut made = String::new();
    pages(&mut command, "holdfast", &mut made);
    made.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

#[test]
fn golden_help() {
    let made = all_pages();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(GOLDEN);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == made, "{GOLDEN} is stale: UPDATE_GOLDEN=1 cargo test -p holdfast golden");
}

#[test]
fn the_definition_is_sound() {
    Cli::command().debug_assert();
}

/// The examples are what people copy: each line that begins with `  holdfast` must parse.
#[test]
fn every_example_in_the_help_parses() {
    let mut tried = 0;
    for line in all_pages().lines().filter_map(|line| line.strip_prefix("  holdfast ")) {
        // Up to the explanation beside it, a pipe or a redirection.
        let words =
            line.split("   ").next().unwrap_or("").split(" | ").next().unwrap_or("").split(" > ").next().unwrap_or("");
        if let Err(error) = parse(words) {
            panic!("holdfast {words}: {error}");
        }
        tried += 1;
    }
    assert!(tried > 20, "{tried}");
}

/// Gateways accept the export names that the help of `lease` shows.
#[test]
fn the_words_on_leased_exports_are_true() {
    let export = |conn: &str, incarnation: &str| {
        let name = format!("demo/vol1?token={}&conn={conn}&gen={incarnation}", "a".repeat(32));
        name.parse::<holdfast_attach::requests::ExportName>().map(|name| name.session.map(|session| session.slot))
    };
    assert!(lease::LEASE.contains("0 to 63") && lease::LEASE.contains("SET/VOLUME?token=TOKEN&conn=N&gen=N"));
    assert_eq!(export("0", "1"), Ok(Some(0)));
    assert_eq!(export("63", "1795440000"), Ok(Some(63)));
    export("64", "1").unwrap_err();
    let page = all_pages();
    let lease = page.split("==== ").find(|page| page.starts_with("holdfast lease\n")).unwrap_or_default();
    for word in ["conn ", "gen ", "%3Ftoken="] {
        assert!(lease.contains(word), "{word:?} in {lease}");
    }
}

/// All pages use the same heading for the same thing, so that a reader finds it again.
#[test]
fn settings_are_explained_by_config_wherever_there_are_any() {
    for line in ["gateway config", "gateway sample-config", "agent config", "standby config"] {
        good(line);
    }
}

#[test]
fn common_arguments_stand_before_or_after_the_command() {
    for line in [
        "--api a:1,b:2 --output json cluster status",
        "cluster status --api a:1,b:2 --output json",
        "cluster --api a:1,b:2 status --output=json",
    ] {
        let common = good(line).common;
        assert_eq!(
            (common.api, common.output),
            (vec!["a:1".to_string(), "b:2".to_string()], output::Format::Json),
            "{line}"
        );
    }
}

#[test]
fn times_have_a_default_by_command() {
    let common = good("dev --dir x").common;
    assert_eq!((common.timeout(), common.dev_timeout()), (Duration::from_secs(30), Duration::from_secs(60)));
    let common = good("dev --dir x --timeout 5s").common;
    assert_eq!((common.timeout(), common.dev_timeout()), (Duration::from_secs(5), Duration::from_secs(5)));
}

/// What docs/operating/attach.md says about the kernel devices of a process that was killed.
#[test]
fn kernel_devices_wait_for_five_minutes_unless_told_otherwise() {
    let dead_timeout = |line: &str| match good(line).command {
        Command::Attach(args) => args.dead_timeout,
        _ => panic!("another command"),
    };
    assert_eq!(dead_timeout("attach demo"), Duration::from_secs(300));
    assert_eq!(dead_timeout("attach demo --dead-timeout 2m"), Duration::from_secs(120));
    assert!(parse("attach demo --dead-timeout 0s").is_err());
}

#[test]
fn volumes_may_be_given_several_times() {
    let Command::Set(SetCommand::Create { volumes, .. }) =
        good("set create demo --store s3://b/p --volume a=1GiB --volume b=2TiB").command
    else {
        panic!("another command");
    };
    let shown: Vec<String> = volumes.iter().map(|volume| format!("{}={}", volume.name, volume.size)).collect();
    assert_eq!(shown, ["a=1GiB", "b=2TiB"]);
}

#[test]
fn members_are_read_as_they_are_shown() {
    assert_eq!(member("m2"), Ok(MemberId(2)));
    assert_eq!(member("2"), Ok(MemberId(2)));
    for bad in ["", "m", "m0", "g2", "m-1"] {
        assert!(member(bad).is_err(), "{bad}");
    }
}

#[test]
fn stores() {
    let several = "w=2 s3://east s3://west/p file:///south";
    for good in ["s3://bucket", "s3://bucket/a/b", "file:///srv/store", several] {
        assert_eq!(store_url(good).as_deref(), Ok(good));
    }
    for bad in [
        "",
        "bucket",
        "s3://",
        "s3:///x",
        "file://",
        "file://host/x",
        "file:///",
        "http://x/y",
        "w=1 s3://east s3://west",
    ] {
        assert!(store_url(bad).is_err(), "{bad}");
    }
}

#[test]
fn stores_that_were_changed_are_read_where_a_set_may_be_in_them() {
    for good in [
        "s3://bucket",
        "w=2 s3://east s3://west/p file:///south",
        "c=2 s3://bucket/p",
        "c=3 w=2 s3://east s3://west/p file:///south",
        "s3://bucket => c=2 w=2 s3://east s3://west/p file:///south",
        "s3://bucket | c=2 s3://other",
    ] {
        assert_eq!(stores_text(good).as_deref(), Ok(good));
    }
    for bad in [
        "",
        "bucket",
        "c=1 s3://bucket",
        "c=2 http://x/y",
        "c=2 w=1 s3://east s3://west",
        "s3://bucket/p | ",
        " => c=2 s3://bucket",
        "s3://bucket => c=2 nowhere",
        "s3://bucket/a | c=2 s3://b/p => c=3 s3://c/p",
        "w=1 s3://east s3://west => c=2 s3://bucket",
    ] {
        assert!(stores_text(bad).is_err(), "{bad}");
    }
    for line in [
        "set stores",
        "set stores change demo",
        "set stores change demo --store c=2",
        "set stores add demo",
        "set stores replace demo s3://a/p",
        "set stores drain demo s3://a/p --wait=25h",
        "set stores drain demo s3://a/p --wait --dry-run",
    ] {
        assert!(parse(line).is_err(), "{line}");
    }
    let wait = |line: &str| match good(line).command {
        Command::Set(SetCommand::Stores(StoresCommand::Drain { urls, how, .. })) => (urls.len(), how.wait),
        _ => panic!("another command"),
    };
    assert_eq!(wait("set stores drain demo s3://a/p s3://b/p"), (2, None));
    assert_eq!(wait("set stores drain demo --wait s3://a/p"), (1, Some(Duration::from_secs(86_400))));
    assert_eq!(wait("set stores remove demo s3://a/p --wait=5m"), (1, Some(Duration::from_secs(300))));
}

#[test]
fn wrong_lines_are_usage_errors() {
    for line in [
        "",
        "gateway",
        "set create demo --store s3://b/p",
        "set create demo --volume a=1GiB",
        "dev",
        "dev --dir x --gateways 0",
        "dev --dir x --gateways 10",
        "dev --dir x --volume vol1",
        "dev --dir x --nbd-port 65530000",
        "lease acquire demo",
        "lease acquire demo --owner a?b",
        "lease continue demo --owner db1",
        "lease renew demo",
        "set schedule demo 15x8",
        "set limit demo --iops 5",
        "set limit demo --bytes 1KiB",
        "set limit demo --burst 1ms",
        "certificate revoke --serial zz",
        "switchover demo",
        "gateway run --set journal",
        "gateway run --nbd-listen 10809",
        "--output xml cluster status",
    ] {
        assert!(parse(line).is_err(), "{line}");
    }
}
