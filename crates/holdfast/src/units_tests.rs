//! The units in deploy/: this program's command line must accept their commands, and systemd must accept the whole
//! units.

use super::*;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Stdio;

/// Directory of the units, from the top of the tree.
const DIRS: &[&str] = &["deploy/systemd", "deploy/examples/standby"];

/// The path of this program in the units.
const PROGRAM: &str = "/usr/bin/holdfast";

/// Replaces programs that are not on this machine, because systemd checks that they exist.
const STAND_IN: &str = "/bin/true";

/// What a person writes into the options file of the attach unit.
const OPTIONS: &str = "HOLDFAST_ATTACH_OPTIONS";

struct Unit {
    name: String,
    text: String,
}

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All units, by name.
fn units() -> Vec<Unit> {
    let mut units = Vec::new();
    for dir in DIRS {
        for entry in std::fs::read_dir(top().join(dir)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "service") {
                let name = path.file_name().unwrap().to_str().unwrap().to_string();
                units.push(Unit { name, text: std::fs::read_to_string(&path).unwrap() });
            }
        }
    }
    units.sort_by(|a, b| a.name.cmp(&b.name));
    units
}

impl Unit {
    /// The words of each line that names a program to run, with the name of the setting.
    fn commands(&self) -> Vec<(&str, Vec<&str>)> {
        let lines = self.text.lines().filter(|line| !line.starts_with('#'));
        assert!(lines.clone().all(|line| !line.ends_with('\\')), "{}: a line that goes on is not read here", self.name);
        let settings = lines.filter_map(|line| line.split_once('=')).filter(|(key, _)| key.starts_with("Exec"));
        settings.map(|(key, command)| (key, command.split_whitespace().collect())).collect()
    }

    /// The arguments that this program is started with, and its path, for an instance `demo` with these options in its
    /// file.
    fn arguments(&self, options: &str) -> Option<Vec<String>> {
        let commands = self.commands();
        let starts: Vec<_> = commands.iter().filter(|(key, _)| *key == "ExecStart").collect();
        assert_eq!(starts.len(), 1, "{}: found {starts:?}, expected one ExecStart", self.name);
        let (program, arguments) = starts[0].1.split_first().unwrap();
        let of_options = format!("${OPTIONS}");
        let expanded = arguments.iter().flat_map(|word| match *word {
            "%i" => vec!["demo".to_string()],
            // systemd splits it in the same way: without quotes or braces, the value becomes one argument per word.
            word if word == of_options => options.split_whitespace().map(str::to_string).collect(),
            word => {
                assert!(!word.contains(['%', '$']), "{}: {word} is not read here", self.name);
                vec![word.to_string()]
            }
        });
        (*program == PROGRAM).then(|| expanded.collect())
    }
}

fn parse(unit: &Unit, options: &str) -> Option<String> {
    let arguments = unit.arguments(options)?;
    let parsed = Cli::try_parse_from(std::iter::once("holdfast".to_string()).chain(arguments.iter().cloned()));
    parsed.unwrap_or_else(|error| panic!("{}: {arguments:?}: {error}", unit.name));
    Some(arguments[..2].join(" "))
}

#[test]
fn what_units_start_is_a_command_line_of_this_program() {
    let page = std::fs::read_to_string(top().join("docs/operating/attach.md")).unwrap();
    let documented = page.lines().find_map(|line| line.strip_prefix(OPTIONS)?.strip_prefix('=')).unwrap();
    let mut started = Vec::new();
    for unit in units() {
        assert_eq!(parse(&unit, ""), parse(&unit, documented), "{}", unit.name);
        started.extend(parse(&unit, "").map(|command| format!("{}: {command}", unit.name)));
    }
    let expected = [
        "holdfast-agent.service: agent run",
        "holdfast-attach@.service: attach demo",
        "holdfast-gateway.service: gateway run",
        "holdfast-standby.service: standby run",
    ];
    assert_eq!(started, expected);
}

/// By default systemd gives up after five starts within ten seconds. But what prevents a start may pass: another
/// program that uses the port, or a ZFS that does not answer yet.
#[test]
fn a_service_that_is_always_restarted_is_not_given_up() {
    let restarted: Vec<Unit> = units().into_iter().filter(|unit| unit.text.contains("\nRestart=always")).collect();
    assert!(restarted.iter().any(|unit| unit.name == "holdfast-agent.service"));
    for unit in restarted {
        let seconds = unit.text.lines().find_map(|line| line.strip_prefix("RestartSec=")?.parse::<u32>().ok());
        let unlimited = unit.text.contains("\nStartLimitIntervalSec=0\n");
        assert!(unlimited || seconds.is_some_and(|seconds| seconds > 2), "{}: StartLimitIntervalSec", unit.name);
    }
}

/// At a shutdown systemd kills an agent after TimeoutStopSec. Then PostgreSQL has not been stopped in good order, or
/// the lease is not given back. The settings' defaults must fit; docs/operating/agent.md says so of others.
#[test]
fn the_agent_has_time_to_let_go_of_everything() {
    let units = units();
    let unit = |name: &str| &units.iter().find(|unit| unit.name == name).unwrap().text;
    let agent = unit("holdfast-agent.service");
    let seconds = agent.lines().find_map(|line| line.strip_prefix("TimeoutStopSec=")?.parse::<u64>().ok()).unwrap();
    let config = holdfast_agent::config::AgentConfig::default();
    let needed =
        config.database.stop_timeout_s + config.pool.export_timeout_s + config.attach.detach_timeout_ms.div_ceil(1000);
    assert!(seconds > needed, "found TimeoutStopSec={seconds}, expected more than {needed}");
    // PostgreSQL, attach and the watchdog's helper get no signal with the agent.
    assert!(agent.contains("\nKillMode=process\n"), "{agent}");
    // The agent stops PostgreSQL: told to end only after the agent, PostgreSQL could not be stopped by it.
    for text in [agent, unit("holdfast-postgresql.service")] {
        let ordered = text.lines().filter(|line| line.starts_with("After=") || line.starts_with("Before="));
        assert!(ordered.clone().all(|line| line == "After=network-online.target"), "{:?}", ordered.collect::<Vec<_>>());
    }
}

/// R8: a gateway that is killed while it hands over leaves its sets to an election. The chart is Kubernetes' unit.
#[test]
fn a_gateway_has_time_to_hand_over() {
    let units = units();
    let unit = &units.iter().find(|unit| unit.name == "holdfast-gateway.service").unwrap().text;
    let chart = std::fs::read_to_string(top().join("deploy/helm/holdfast/templates/gateways.yaml")).unwrap();
    for (text, key) in [(unit, "TimeoutStopSec="), (&chart, "terminationGracePeriodSeconds: ")] {
        let seconds = text.lines().find_map(|line| line.trim_start().strip_prefix(key)?.parse::<u64>().ok()).unwrap();
        let needed = crate::serve::STOP_TIMEOUT.as_secs();
        assert!(seconds > needed, "found {key}{seconds}, expected more than {needed}");
    }
}

/// Where one of these is forgotten nobody notices, until a core dump lies there or a reload fails.
#[test]
fn each_unit_keeps_secrets_out_of_core_dumps_and_reads_its_certificates_again() {
    let all = units();
    for (name, _) in EXPOSURE_MAX {
        let unit = all.iter().find(|unit| unit.name == name).unwrap();
        for line in ["LimitCORE=0", "ExecReload=/bin/kill -HUP $MAINPID"] {
            assert!(unit.text.lines().any(|found| found == line), "{name}: {line}");
        }
    }
}

/// The complaints of `systemd-analyze verify` about a unit of that name; `None` without that program.
fn verified(dir: &Path, name: &str, text: &str) -> Option<Result<(), String>> {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    let mut command = std::process::Command::new("systemd-analyze");
    // Only complaints about this unit count, not about units of this machine or missing manual pages.
    command.args(["--man=no", "--recursive-errors=no", "verify"]).arg(&path).stdin(Stdio::null());
    let output = match command.output() {
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        output => output.unwrap(),
    };
    let said = format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    Some(if output.status.success() { Ok(()) } else { Err(said) })
}

#[test]
fn systemd_has_nothing_against_them() {
    let dir = tempfile::tempdir().unwrap();
    let units = units();
    assert_eq!(units.len(), 5, "{:?}", units.iter().map(|unit| &unit.name).collect::<Vec<_>>());
    for unit in &units {
        let programs: Vec<&str> = unit.commands().into_iter().filter_map(|(_, words)| words.first().copied()).collect();
        let missing = programs.into_iter().filter(|program| !Path::new(program).exists());
        let text = missing
            .fold(unit.text.clone(), |text, program| text.replace(&format!("={program} "), &format!("={STAND_IN} ")));
        match verified(dir.path(), &unit.name, &text) {
            None => return holdfast_testkit::skipped("systemd-analyze is not on PATH"),
            Some(found) => assert_eq!(found, Ok(()), "{}", unit.name),
        }
        // Checks that the program finds a mistake at all.
        let wrong = format!("{text}\n[Service]\nNoSuchSetting=yes\n");
        let found = verified(dir.path(), &unit.name, &wrong).unwrap().unwrap_err();
        assert!(found.contains("NoSuchSetting"), "{}: {found}", unit.name);
    }
}

/// What `systemd-analyze security` says of each unit of this program, in tenths: 0 is the best, 100 the worst.
const EXPOSURE_MAX: [(&str, u32); 4] = [
    ("holdfast-agent.service", 50),
    ("holdfast-attach@.service", 50),
    ("holdfast-gateway.service", 20),
    ("holdfast-standby.service", 50),
];

/// Whether a unit is at most that exposed; `None` without that program.
fn exposed(dir: &Path, name: &str, text: &str, tenths_max: u32) -> Option<Result<(), String>> {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    let mut command = std::process::Command::new("systemd-analyze");
    command.args(["security", "--offline=true", "--no-pager", &format!("--threshold={tenths_max}")]).arg(&path);
    let output = match command.stdin(Stdio::null()).output() {
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        output => output.unwrap(),
    };
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    // Without the sum it was not looked at at all.
    Some(if output.status.success() && said.contains("Overall exposure level") { Ok(()) } else { Err(said) })
}

#[test]
fn each_has_the_rights_that_it_needs_and_few_more() {
    let dir = tempfile::tempdir().unwrap();
    let units = units();
    for (name, tenths_max) in EXPOSURE_MAX {
        let unit = units.iter().find(|unit| unit.name == name).unwrap_or_else(|| panic!("{name}: not there"));
        match exposed(dir.path(), name, &unit.text, tenths_max) {
            None => return holdfast_testkit::skipped("systemd-analyze is not on PATH"),
            Some(found) => assert_eq!(found, Ok(()), "{name}: expected at most {tenths_max} tenths"),
        }
        // Checks that the program finds more rights at all.
        let root = format!("{}\n[Service]\nUser=root\nNoNewPrivileges=no\nCapabilityBoundingSet=~\n", unit.text);
        exposed(dir.path(), name, &root, tenths_max).unwrap().expect_err(name);
    }
}
