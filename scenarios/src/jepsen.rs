//! `cargo xtask jepsen`: runs the Jepsen test in `jepsen/`, each workload under seven nemeses (or the requested ones),
//! and prints one table. docs/proof/jepsen.md explains the output.
//!
//! ```text
//!   jepsen   installs programs, builds holdfast and the judge, gets the jars, checks them, lets the judges be tested (judges.rs)
//!     └─ unshare ─ java    one for each run: processes, mounts and network are its own and end with it
//!     └─ unshare ─ jepsen --inside ─ java   for `append`: PostgreSQL on the set is brought up first (postgres.rs)
//!          └─ store/ (Jepsen's folder of the run), logs/NAME.log, one line of the table
//! ```
//!
//! Owns: the list of runs, what a run with a lie must find, the exit code. Does not own: the checks (jepsen/src).
//!
//! Exit codes, the first that applies: 1 a history is invalid, 3 a lie was not found, 4 a run did not start or has no
//! verdict, 2 a run did too little to mean anything, 0 all passed.

mod disk;
mod jars;
mod judges;
mod postgres;

use crate::binary::{Build, fresh_dir, profile_of, root};
use crate::cmd::missing;
use crate::cmd::{cmd, on_path, show, tail_of};
use crate::net;
use crate::process::wait_until;
use crate::proof;
use crate::say::{line, note, step};
use crate::setup::{self, For};
use crate::stage;
use anyhow::{Context, Result};
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

const WORKLOADS: &[&str] = &["register", "lease", "order", "flush-kill", APPEND];

/// The workload on PostgreSQL, and its nemeses.
const APPEND: &str = "append";
const APPEND_NEMESES: &[&str] = &["mix", "mix-2", "kill-host", "cut-host", "pause-host", "switchover", "kill-gateway"];

/// Seconds of each fault there, and of the pause between two faults: a takeover takes some seconds.
const APPEND_TIMES: [&str; 4] = ["--hold", "10", "--interval", "6"];

const NEMESES: &[&str] =
    &["mix", "mix-2", "kill-primary", "partition-primary", "partition-halves", "pause-primary", "restart-all"];

/// Nemeses that make many faults in turn and so need a longer run.
const MIXES: &[&str] = &["mix", "mix-2"];
const MIX_TIMES: u64 = 2;

/// Faults for which the set's store is a separate S3 server.
const OF_S3: &[&str] = &["mix-2", "s3-down", "s3-slow", "s3-503"];

/// Extra time of a run: to start, to end, to judge.
const SPARE: Duration = Duration::from_secs(300);

/// Exit code of a stage that did not start; no verdict of Jepsen uses it.
const NOT_RUN: i32 = 250;

/// A program, its Debian package, and its purpose.
const PROGRAMS: &[(&str, &str, &str)] = &[
    ("java", "default-jre-headless", "Jepsen runs on it"),
    ("go", "golang-go", "builds Porcupine, the second judge"),
    ("cc", "gcc", "builds what makes a gateway's clocks wrong"),
    ("ip", "iproute2", "network namespaces"),
    ("iptables", "iptables", "partitions"),
    ("sudo", "sudo", "Jepsen puts it before each command, as root too"),
    ("gnuplot", "gnuplot-nox", "Jepsen's plots"),
    ("dot", "graphviz", "Elle draws its findings; without it the verdict is unknown"),
];

/// All processes, mounts and interfaces of a run end with it. Bash stays as the first process, to reap children. `ip
/// netns exec` gives each gateway its own mount namespace; mounts are shared, because otherwise a disk that is
/// unmounted here would stay mounted there.
const INSIDE: &str = "ip link set lo up && mount --make-rshared / && mkdir -p /etc/netns /run/netns \
    && mount -t tmpfs tmpfs /etc/netns && mount -t tmpfs tmpfs /run/netns || exit 90
    rc=0; \"$@\" || rc=$?; exit $rc";

/// A deliberate error of the client or the nemesis, and the checkers that must all find it.
struct Lie {
    workload: &'static str,
    lie: &'static str,
    nemesis: &'static str,
    /// Names as in a run's row: `workload/knossos` is one of several judges of a workload. With a question mark, its
    /// verdict must be "unknown".
    found_by: &'static [&'static str],
    /// Minimum length: a shorter run cannot show it.
    least_seconds: u64,
}

const fn lie(workload: &'static str, lie: &'static str, found_by: &'static [&'static str]) -> Lie {
    Lie { workload, lie, nemesis: "kill-primary", found_by, least_seconds: 0 }
}

/// Independent judges of the same history: each must find the error.
const BOTH: &[&str] = &["workload/knossos", "workload/porcupine"];

const LIES: &[Lie] = &[
    lie("register", "stale-read", BOTH),
    lie("register", "lost-write", BOTH),
    lie("register", "early-ack", BOTH),
    lie("flush-kill", "lost-write", &["workload"]),
    // Few requests are in flight when a gateway is killed; one that is cut off accepts requests for another second.
    Lie { nemesis: "partition-primary", ..lie("flush-kill", "early-ack", &["workload"]) },
    // A cluster that lost synced data reports that, or does not answer any more.
    Lie { nemesis: "unsynced-all", ..lie("flush-kill", "lying-disk", &["workload"]) },
    lie("order", "lost-write", &["workload/read-backs"]),
    lie("order", "late-write", &["workload/read-backs"]),
    lie("order", "torn-snapshot", &["workload/snapshots", "workload/between-writers"]),
    lie("lease", "old-epoch", &["workload/epochs", "workload/porcupine"]),
    lie("lease", "old-grant", &["workload/epochs", "workload/porcupine"]),
    lie("register", "leave-dead", &["alive"]),
    lie("register", "idle", &["coverage?"]),
    // The run must be longer than the limit on outages that every run has.
    Lie { nemesis: "pause-all", least_seconds: 60, ..lie("flush-kill", "outage", &["availability"]) },
    Lie { nemesis: "clock-drift,clock-jump", ..lie("register", "miss", &["coverage?"]) },
    Lie { nemesis: "s3-503", ..lie("register", "miss", &["coverage?"]) },
    Lie { nemesis: "switchover", ..lie(APPEND, "stale-read", &["workload/elle"]) },
    Lie { nemesis: "switchover", ..lie(APPEND, "lost-write", &["workload/elle"]) },
    Lie { nemesis: "switchover", ..lie(APPEND, "lost-commit", &["workload/ledger"]) },
    Lie { nemesis: "partition-primary,loss,clock-drift,s3-503", ..lie(APPEND, "miss", &["coverage?"]) },
];

/// Options on the command line.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Seconds of faults and requests in each run (mix, mix-2: twice as long)
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Run only these workloads: register, lease, order, flush-kill, append
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    workload: Vec<String>,
    /// Run only these nemeses: mix, mix-2, kill-primary, partition-halves, s3-down, ..., for append also kill-host, ...
    /// (an unknown name prints all)
    #[arg(long, value_name = "NAME", value_delimiter = ' ')]
    nemesis: Vec<String>,
    /// Seed of the first run, increased by one for each further run; default: a new one, which is printed
    #[arg(long)]
    seed: Option<u64>,
    /// Instead make runs with deliberate errors, which the checkers must find
    #[arg(long)]
    lies: bool,
    /// The program to which `upgrade` upgrades each gateway, and from which it goes back the next time; default: only
    /// restart them
    #[arg(long, value_name = "PATH")]
    other_binary: Option<PathBuf>,
    /// A file with a Java class path that contains Jepsen, for a machine that cannot reach Clojars
    #[arg(long, env = "HOLDFAST_JEPSEN_CLASSPATH", value_name = "FILE")]
    classpath: Option<PathBuf>,
    #[command(flatten)]
    build: Build,
    /// Set by the chore itself when it runs in its own network namespace: the folder for all files
    #[arg(long, hide = true, value_name = "DIR")]
    inside: Option<PathBuf>,
    /// Set by the chore itself: the folder with the tools of the faults
    #[arg(long, hide = true, value_name = "DIR", requires = "inside")]
    tools: Option<PathBuf>,
    /// Set by the tests: serve a node's disk, mounted here
    #[arg(long, hide = true, value_name = "DIR")]
    disk: Option<PathBuf>,
    /// Set by the chore itself: the command to run on the stage
    #[arg(last = true, hide = true, requires = "inside")]
    command: Vec<OsString>,
}

/// One run.
#[derive(Debug)]
struct Run {
    workload: String,
    nemesis: String,
    seconds: u64,
    lie: Option<&'static Lie>,
}

impl std::fmt::Debug for Lie {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.lie)
    }
}

/// The result of a run, ordered by the precedence of exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Fine,
    TooLittle,
    Unjudged,
    NotFound,
    Invalid,
}

impl Verdict {
    fn exit_code(self) -> i32 {
        match self {
            Self::Fine => 0,
            Self::Invalid => 1,
            Self::TooLittle => 2,
            Self::NotFound => 3,
            Self::Unjudged => 4,
        }
    }

    /// From the exit code of Jepsen's command line and the row that it printed.
    fn of(lie: Option<&Lie>, code: Option<i32>, row: &str) -> Self {
        let red = row.rsplit_once('(').and_then(|(_, rest)| rest.split_once(')')).map_or("", |(red, _)| red);
        let red: Vec<&str> = red.split(", ").collect();
        match (lie, code) {
            (None, Some(0)) => Self::Fine,
            (None, Some(1)) => Self::Invalid,
            (None, Some(2)) => Self::TooLittle,
            (Some(lie), Some(1 | 2)) if lie.found_by.iter().all(|by| red.iter().any(|r| is_or_part_of(r, by))) => {
                Self::Fine
            }
            (Some(_), Some(0..=2)) => Self::NotFound,
            _ => Self::Unjudged,
        }
    }
}

/// Whether a name in a row is the checker `by` or a part of it that failed. A part with verdict "unknown"
/// (`workload/final?`) has found nothing.
fn is_or_part_of(red: &str, by: &str) -> bool {
    red == by || (!red.ends_with('?') && red.strip_prefix(by).is_some_and(|part| part.starts_with('/')))
}

/// Runs the chore. Ends the process with an exit code of [the module](self). If there is no verdict, the reason is
/// printed.
pub fn chore(args: &Args) -> Result<()> {
    if let Some(dir) = &args.inside {
        let wanted = postgres::Wanted {
            bin: args.build.bin.as_deref().context("no program")?,
            dir,
            nemesis: args.nemesis.first().context("no nemesis")?,
            tools: args.tools.as_deref().context("no tools")?,
            seed: args.seed.context("no seed")?,
        };
        let code = postgres::inside(&wanted, &args.command).unwrap_or_else(|e| {
            line(format!("error: {e:#}"));
            NOT_RUN
        });
        std::process::exit(code);
    }
    if let Some(at) = &args.disk {
        return disk::serve(at, args.seed.unwrap_or_default());
    }
    let worst = all(args).unwrap_or_else(|e| {
        line(format!("error: {e:#}"));
        Verdict::Unjudged
    });
    // The exit code says more than pass or fail.
    std::process::exit(worst.exit_code());
}

fn all(args: &Args) -> Result<Verdict> {
    let runs = runs(args);
    anyhow::ensure!(setup::is_root(), "this makes network namespaces: run it as root (sudo -E cargo xtask jepsen)");
    programs(args.classpath.is_none())?;
    if runs.iter().any(|run| run.workload == APPEND) {
        setup::must_be_able_to_mount()?;
        setup::setup(For::Failover)?;
        if let Some(why) = missing(stage::NEEDS).or_else(net::why_not) {
            anyhow::bail!("append: {why}");
        }
    }
    if runs.iter().any(|run| run.nemesis.split([',', '+']).any(|fault| OF_S3.contains(&fault))) {
        setup::versitygw();
        anyhow::ensure!(
            on_path("versitygw"),
            "faults of the store need versitygw on PATH (go install github.com/versity/versitygw/cmd/versitygw@latest), or --nemesis without {}",
            OF_S3.join(", ")
        );
    }
    let dir = fresh_dir("jepsen")?;
    std::fs::create_dir_all(dir.join("logs"))?;
    let bin = args.build.binary("release")?;
    let other =
        args.other_binary.as_deref().map(|path| path.canonicalize().with_context(|| path.display().to_string()));
    let other = other.transpose()?;
    build_tools(&dir)?;
    let path = jars::class_path(args.classpath.as_deref(), &dir)?;
    judges::must_pass(&path, &dir)?;
    let given = Given { dir: &dir, bin: &bin, other: other.as_deref(), path: &path };
    let first = args.seed.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        u64::from(now.map_or(1, |d| d.subsec_nanos())) % 1_000_000
    });
    let mut rows = Vec::new();
    let mut worst = Verdict::Fine;
    for (run, seed) in runs.iter().zip(first..) {
        let lie = run.lie.map_or_else(String::new, |l| format!(" --lie {}", l.lie));
        step(format!(
            "{} of {}: {} under {}{lie}, {} s, seed {seed}",
            rows.len() + 1,
            runs.len(),
            run.workload,
            run.nemesis,
            run.seconds
        ));
        let (verdict, row) = one(run, seed, given)?;
        note(match (verdict, run.lie) {
            (Verdict::Fine, None) => "valid".into(),
            (Verdict::Fine, Some(l)) => format!("found, by {}", l.found_by.join(" and ")),
            (Verdict::NotFound, Some(l)) => format!("NOT FOUND by {}", l.found_by.join(" and ")),
            (other, _) => format!("{other:?}"),
        });
        worst = worst.max(verdict);
        if let Some(run) = proof::jepsen(&row) {
            run.built(profile_of(given.bin)).note();
        }
        rows.push(row);
        std::fs::write(dir.join("results.md"), rows.join("\n") + "\n")?;
    }
    table(&rows);
    line(format!("The same as Markdown: {}", dir.join("results.md").display()));
    Ok(worst)
}

fn runs(args: &Args) -> Vec<Run> {
    let wanted = |given: &[String], name: &str| given.is_empty() || given.iter().any(|g| g == name);
    if args.lies {
        let lies = LIES.iter().filter(|l| wanted(&args.workload, l.workload));
        let of = |l: &'static Lie| Run {
            workload: l.workload.into(),
            nemesis: l.nemesis.into(),
            seconds: args.seconds.max(l.least_seconds),
            lie: Some(l),
        };
        return lies.map(of).collect();
    }
    let or = |given: &[String], usual: &[&str]| {
        if given.is_empty() { usual.iter().map(ToString::to_string).collect() } else { given.to_vec() }
    };
    let mut runs = Vec::new();
    for workload in or(&args.workload, WORKLOADS) {
        let usual = if workload == APPEND { APPEND_NEMESES } else { NEMESES };
        // A fault without a workload selects the workloads that have it. A fault with a workload that does not have it
        // is an error.
        let meant = |nemesis: &String| !args.workload.is_empty() || fits(&workload, nemesis);
        for nemesis in or(&args.nemesis, usual).into_iter().filter(meant) {
            let seconds = if MIXES.contains(&nemesis.as_str()) { args.seconds * MIX_TIMES } else { args.seconds };
            runs.push(Run { workload: workload.clone(), nemesis, seconds, lie: None });
        }
    }
    runs
}

/// Whether a workload has a fault. Some faults exist for both kinds of workload, under the same name.
fn fits(workload: &str, nemesis: &str) -> bool {
    if workload == APPEND { nemesis == "none" || postgres::knows(nemesis) } else { !postgres::is_own(nemesis) }
}

/// Installs missing programs and prints which.
fn programs(maven: bool) -> Result<()> {
    let mut missing: Vec<_> = PROGRAMS.iter().filter(|(program, ..)| !on_path(program)).collect();
    if maven && !on_path("mvn") {
        missing.push(&("mvn", "maven", "gets Jepsen's jars"));
    }
    if missing.is_empty() {
        return Ok(());
    }
    for (program, package, why) in &missing {
        note(format!("missing: {program:9} of {package:22} {why}"));
    }
    let names: Vec<&str> = missing.iter().map(|(_, package, _)| *package).collect();
    let by_hand = format!("install by hand: {}", names.join(" "));
    anyhow::ensure!(on_path("apt-get"), "this machine has no apt-get; {by_hand} (the names are Debian's)");
    step(format!("apt-get install {}", names.join(" ")));
    let apt = || cmd("apt-get").env("DEBIAN_FRONTEND", "noninteractive").args(["-q", "-y", "-o", "Dpkg::Use-Pty=0"]);
    apt().arg("update").run().context("apt-get update")?;
    apt().args(["install", "--no-install-recommends", "--no-upgrade"]).args(&names).run().context(by_hand)
}

/// Builds the second judge and the tools of the faults in `dir`.
fn build_tools(dir: &Path) -> Result<()> {
    for tool in ["porcupine", "between"] {
        // go.sum has the digest of the only module that they need.
        let go = cmd("go").dir(root().join("jepsen").join(tool)).env("GOFLAGS", "-mod=readonly -buildvcs=false");
        go.args(["build", "-o"])
            .arg(dir.join(tool))
            .arg(".")
            .run()
            .with_context(|| format!("{tool} does not build"))?;
    }
    let source = root().join("jepsen/clock/clock.c");
    for (name, how) in [("clock.so", &["-shared", "-fPIC"][..]), ("clock", &["-DTOOL"])] {
        let cc = cmd("cc").args(["-O2", "-Wall", "-Wextra"]).args(how).arg("-o").arg(dir.join(name)).arg(&source);
        cc.run().with_context(|| format!("{name} does not build"))?;
    }
    Ok(())
}

/// Inputs of all runs.
#[derive(Clone, Copy, Debug)]
struct Given<'a> {
    dir: &'a Path,
    bin: &'a Path,
    /// The other program, for `upgrade`.
    other: Option<&'a Path>,
    /// Java's class path.
    path: &'a str,
}

fn one(run: &Run, seed: u64, given: Given<'_>) -> Result<(Verdict, String)> {
    let Given { dir, bin, other, path } = given;
    let name =
        format!("{}-{}{}", run.workload, run.nemesis, run.lie.map_or_else(String::new, |l| format!("-{}", l.lie)));
    let log = dir.join("logs").join(format!("{name}.log").replace([',', '+'], "_"));
    // unshare ends when we end, in whichever way. Then the first process inside ends, and with it all others.
    let run_alone = ["--net", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc"];
    let java = cmd("setpriv").args(["--pdeathsig", "KILL", "unshare"]);
    let java = if run.workload == APPEND {
        // It undoes its own changes, mounts and loop devices too, however it ends.
        let stage = dir.join("stage");
        if stage.exists() {
            std::fs::remove_dir_all(&stage)?;
        }
        let java = java.args(["--net", "--"]).arg(std::env::current_exe()?).arg("jepsen").arg("--inside").arg(stage);
        let java = java.args(["--nemesis", &run.nemesis, "--seed", &seed.to_string(), "--tools"]).arg(dir);
        java.arg("--bin").arg(bin).arg("--")
    } else {
        java.args(run_alone).args(["bash", "-c", INSIDE, "jepsen"])
    };
    let mut java = java
        .args(["java", "-Xmx3g", "-Djava.awt.headless=true", "-cp"])
        .arg(format!("{}:{path}", root().join("jepsen/src").display()))
        .args(["clojure.main", "-m", "jepsen.holdfast.cli", "test", "--concurrency", "12"])
        .args(["--workload", &run.workload, "--nemesis", &run.nemesis])
        .args(["--time-limit", &run.seconds.to_string(), "--seed", &seed.to_string()])
        .dir(dir);
    java = if run.workload == APPEND {
        java.args(APPEND_TIMES)
    } else {
        let java = java.arg("--netns").arg("--binary").arg(bin).arg("--porcupine").arg(dir.join("porcupine"));
        let java = java.arg("--between").arg(dir.join("between")).arg("--clock").arg(dir);
        let java = java.arg("--disks").arg(std::env::current_exe()?);
        let java = java.arg("--dir").arg(dir.join("nodes"));
        if let Some(other) = other { java.arg("--other-binary").arg(other) } else { java }
    };
    if let Some(l) = run.lie {
        java = java.args(["--lie", l.lie]);
    }
    let mut java = java.into_command();
    let shown = show(&java);
    let mut child =
        java.stdout(File::create(&log)?).stderr(File::options().append(true).open(&log)?).spawn().context(shown)?;
    let mut status = None;
    let ended = wait_until(Duration::from_secs(run.seconds) + SPARE, || {
        status = child.try_wait().ok().flatten();
        status.is_some()
    });
    if !ended {
        child.kill()?;
        child.wait()?;
    }
    let text = std::fs::read(&log)?;
    let text = String::from_utf8_lossy(&text);
    let said = text.lines().find_map(|l| l.strip_prefix("SUMMARY ")).map(str::to_owned);
    let verdict = Verdict::of(run.lie, status.and_then(|s| s.code()), said.as_deref().unwrap_or_default());
    if verdict == Verdict::Unjudged {
        note(if ended { tail_of(&log, 6) } else { "did not end in time".into() });
    }
    note(format!("see {}", log.display()));
    Ok((verdict, said.unwrap_or_else(|| row_without(run, seed))))
}

/// The row of a run that printed none.
fn row_without(run: &Run, seed: u64) -> String {
    let lie = run.lie.map_or("", |l| l.lie);
    format!("| {} | {} | {lie} | {} | {seed} | | | | | | **no verdict** |", run.workload, run.nemesis, run.seconds)
}

fn table(rows: &[String]) {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::UTF8_FULL_CONDENSED);
    table.set_header([
        "workload",
        "nemesis",
        "lie",
        "s",
        "seed",
        "succeeded",
        "unknown",
        "faults",
        "silence, s",
        "unserved, s",
        "verdict",
    ]);
    for row in rows {
        table.add_row(row.trim().trim_matches('|').split('|').map(|cell| cell.trim().replace("**", "")));
    }
    line(table.to_string());
    note(
        "silence: the longest without a success while a majority could talk; unserved: all silences above 1 s, faults included",
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_is_what_jepsen_said_and_a_lie_must_be_found_by_its_own_checker() {
        let of = |lie: Option<usize>, code, row| Verdict::of(lie.map(|i| &LIES[i]), code, row);
        assert_eq!(of(None, Some(0), "| valid |"), Verdict::Fine);
        assert_eq!(of(None, Some(1), "| **invalid** (workload) |"), Verdict::Invalid);
        assert_eq!(of(None, Some(2), "| **unknown** (coverage) |"), Verdict::TooLittle);
        assert_eq!(of(None, Some(255), ""), Verdict::Unjudged);
        assert_eq!(of(None, None, ""), Verdict::Unjudged);
        let both = "| **invalid** (alive, workload/knossos, workload/porcupine) |";
        assert_eq!(of(Some(0), Some(1), both), Verdict::Fine);
        assert_eq!(of(Some(0), Some(1), "| **invalid** (workload/knossos) |"), Verdict::NotFound, "of two judges one");
        assert_eq!(of(Some(0), Some(1), "| **invalid** (alive) |"), Verdict::NotFound);
        assert_eq!(of(Some(0), Some(0), "| valid |"), Verdict::NotFound);
    }

    #[test]
    fn a_lie_is_found_by_a_checker_or_a_part_of_it_that_says_no() {
        let of = |lie: &str, row| {
            let lie = LIES.iter().find(|l| l.lie == lie).expect(lie);
            Verdict::of(Some(lie), Some(1), &format!("| **invalid** ({row}) |"))
        };
        assert_eq!(of("lying-disk", "coverage?, workload/final"), Verdict::Fine);
        assert_eq!(of("lying-disk", "workload"), Verdict::Fine);
        assert_eq!(of("lying-disk", "coverage?, workload/final?"), Verdict::NotFound, "it does not know");
        assert_eq!(of("lying-disk", "workload?"), Verdict::NotFound);
        assert_eq!(of("lying-disk", "availability, workloads/x"), Verdict::NotFound);
        assert_eq!(of("idle", "coverage?"), Verdict::Fine);
        assert_eq!(of("outage", "availability, coverage?"), Verdict::Fine);
    }

    #[test]
    fn a_lie_that_takes_long_to_show_has_the_time() {
        let within = lie_args(&["--seconds", "30"]);
        let seconds =
            |lie: &str| within.iter().find(|run| run.lie.is_some_and(|l| l.lie == lie)).map(|run| run.seconds);
        assert_eq!((seconds("stale-read"), seconds("outage")), (Some(30), Some(60)));
        assert!(lie_args(&["--seconds", "90"]).iter().all(|run| run.seconds == 90));
    }

    fn lie_args(more: &[&str]) -> Vec<Run> {
        runs(&parsed(["--lies"].iter().chain(more)))
    }

    fn parsed<'a>(words: impl IntoIterator<Item = &'a &'a str>) -> Args {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: Args,
        }
        let words = words.into_iter().copied();
        <Line as clap::Parser>::parse_from(std::iter::once("jepsen").chain(words)).args
    }

    #[test]
    fn a_fault_goes_to_the_workloads_that_have_it() {
        let of = |line: &str| -> Vec<String> {
            let words: Vec<&str> = line.split_whitespace().collect();
            runs(&parsed(&words)).into_iter().map(|run| format!("{} {}", run.workload, run.nemesis)).collect()
        };
        assert_eq!(of("--nemesis kill-host+kill-gateway"), ["append kill-host+kill-gateway"]);
        assert_eq!(of("--nemesis kill-primary").len(), WORKLOADS.len() - 1);
        assert_eq!(of("--nemesis mix").len(), WORKLOADS.len());
        for both in ["mix-2", "switchover", "partition-halves", "unsynced-all,clock-drift", "s3-slow+loss"] {
            assert_eq!(of(&format!("--nemesis {both}")).len(), WORKLOADS.len(), "{both}");
        }
        assert_eq!(of("--nemesis kill+partition-halves").len(), WORKLOADS.len() - 1);
        assert_eq!(of("--nemesis kill-host+partition-halves"), ["append kill-host+partition-halves"]);
        assert_eq!(of("--workload append").len(), APPEND_NEMESES.len());
        // Said by Jepsen, with the names that there are.
        assert_eq!(of("--workload append --nemesis kill-primary"), ["append kill-primary"]);
    }

    #[test]
    fn the_worst_run_decides_the_exit_code() {
        let all = [Verdict::Fine, Verdict::TooLittle, Verdict::Unjudged, Verdict::NotFound, Verdict::Invalid];
        assert_eq!(all.iter().max().map(|v| v.exit_code()), Some(1));
        assert_eq!(all[..4].iter().max().map(|v| v.exit_code()), Some(3));
        assert_eq!(all[..3].iter().max().map(|v| v.exit_code()), Some(4));
        assert_eq!(all[..2].iter().max().map(|v| v.exit_code()), Some(2));
    }
}
