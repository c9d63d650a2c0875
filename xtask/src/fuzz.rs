//! `cargo xtask fuzz`: builds the fuzz targets with libFuzzer, runs each for a time, and prints a table.
//! docs/proof/fuzzing.md explains it.
//!
//! Owns: the engine's build, its runs, their folders, what is read from its output. Does not own: the targets (package
//! `fuzz`).

use crate::binary::{Build, cargo, root};
use crate::cmd::{Cmd, on_path};
use crate::say::{Count, line, note, step};
use anyhow::{Context, Result, anyhow, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The package of the targets, and the name of its program without the engine.
const FUZZ: &str = "holdfast-fuzz";
/// The name of its program with the engine, and of the profile for it.
const ENGINE: &str = "fuzz-engine";
const PROFILE: &str = "fuzz";
/// Names the target to the engine; as in `fuzz/src/lib.rs`.
const TARGET: &str = "HOLDFAST_FUZZ_TARGET";

/// Seconds for each target in `test --all`.
const PART_SECONDS: u64 = 60;
/// One input may take so many seconds, and the whole process so many MiB: a hang or a leak is a finding.
const INPUT_SECONDS: u32 = 10;
const MEMORY_MIB: u32 = 1024;
/// Lines of the engine's output that are shown with a finding.
const TOLD_LINES: usize = 12;

/// Options on the command line.
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = "Examples:
  cargo xtask fuzz                                 each target for a minute
  cargo xtask fuzz peer-frames --seconds 3600      one target for an hour
  cargo run --bin holdfast-fuzz -- replay TARGET FILE    runs a finding again, without the engine")]
pub struct Args {
    /// Run only these targets; default: all
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
    /// Run each for this many seconds
    #[arg(long, default_value_t = PART_SECONDS)]
    seconds: u64,
    /// List the targets and exit
    #[arg(long)]
    list: bool,
}

/// A target, as the program without the engine lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    name: String,
    bytes_max: String,
    about: String,
}

/// What the engine said of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RunStats {
    runs: u64,
    /// Places of the code that were reached.
    coverage: u64,
    /// Inputs that are kept, since each reaches something that the others do not.
    corpus: u64,
}

/// Runs the chosen targets. Fails when there is no such target, the programs do not build, or there is a finding.
pub fn chore(args: &Args) -> Result<()> {
    if args.list {
        targets(&program()?)?.iter().for_each(|target| line(format!("{:<22} {}", target.name, target.about)));
        return Ok(());
    }
    run(&args.targets, args.seconds)?.close()
}

/// Runs each target for a minute. Fails when the programs do not build. Findings are in the count.
pub fn each() -> Result<Count> {
    run(&[], PART_SECONDS)
}

fn run(wanted: &[String], seconds: u64) -> Result<Count> {
    let mut count = Count::default();
    let program = program()?;
    let targets = chosen(targets(&program)?, wanted)?;
    let triple = triple()?;
    if let Some(why) = not_buildable(&triple) {
        count.skip("fuzz", &why);
        return Ok(count);
    }
    let engine = engine(&triple)?;
    let mut rows = vec![row("target", "runs", "coverage", "corpus", "findings")];
    for target in &targets {
        step(format!("fuzz: {} for {seconds} s", target.name));
        let folder = root().join("target/fuzz-runs").join(&target.name);
        let (corpus, found) = (folder.join("corpus"), folder.join("findings"));
        std::fs::create_dir_all(&found).with_context(|| found.display().to_string())?;
        Cmd::of(Command::new(&program)).args(["seeds", &target.name]).arg(&corpus).run()?;
        let before = findings(&found)?;
        let output = fuzz(&engine, target, seconds, &corpus, &found)?;
        let said = String::from_utf8_lossy(&output.stderr);
        let new: Vec<PathBuf> = findings(&found)?.into_iter().filter(|file| !before.contains(file)).collect();
        let RunStats { runs, coverage, corpus } = told(&said);
        let number = new.len();
        rows.push(row(
            &target.name,
            &runs.to_string(),
            &coverage.to_string(),
            &corpus.to_string(),
            &number.to_string(),
        ));
        count.check(&format!("fuzz: {}", target.name), judged(target, &output, &said, &new));
    }
    rows.iter().for_each(line);
    Ok(count)
}

fn row(target: &str, runs: &str, coverage: &str, corpus: &str, findings: &str) -> String {
    format!("{target:<22} {runs:>12} {coverage:>9} {corpus:>7} {findings:>9}")
}

/// The program without the engine, in the tests' profile: most of it is built by now.
fn program() -> Result<PathBuf> {
    Build { bin: None, profile: None }.program(FUZZ, FUZZ, "dev")
}

fn targets(program: &Path) -> Result<Vec<Target>> {
    let said = Cmd::of(Command::new(program)).arg("list").out()?;
    said.lines().map(|text| listed(text).with_context(|| format!("found {text:?}, expected a target"))).collect()
}

fn listed(text: &str) -> Option<Target> {
    let mut fields = text.split('\t').map(str::to_owned);
    Some(Target { name: fields.next()?, bytes_max: fields.next()?, about: fields.next()? })
}

fn chosen(all: Vec<Target>, wanted: &[String]) -> Result<Vec<Target>> {
    if let Some(name) = wanted.iter().find(|name| all.iter().all(|target| target.name != **name)) {
        let names: Vec<&str> = all.iter().map(|target| target.name.as_str()).collect();
        bail!("no target {name:?}; there are {}", names.join(", "));
    }
    Ok(all.into_iter().filter(|target| wanted.is_empty() || wanted.contains(&target.name)).collect())
}

/// The machine that rustc builds for. Named to cargo, so that it builds build scripts and macros apart.
fn triple() -> Result<String> {
    let said = Cmd::of(Command::new("rustc")).arg("-vV").dir(root()).out()?;
    let host = said.lines().find_map(|text| text.strip_prefix("host: "));
    Ok(host.context("rustc -vV names no host")?.to_owned())
}

/// Why the engine cannot be built here.
fn not_buildable(triple: &str) -> Option<String> {
    if std::env::var_os("CXX").is_none() && !["c++", "g++", "clang++"].iter().any(|program| on_path(program)) {
        return Some("the engine needs a C++ compiler: none of c++, g++, clang++ is installed".into());
    }
    let fetched = Cmd::of(cargo()).args(["fetch", "--locked", "--target", triple]).dir(root()).run();
    fetched.err().map(|error| format!("the engine's crate cannot be downloaded: {error:#}"))
}

/// Builds the program with the engine. Our own crates get coverage counters (`fuzz/instrumented.sh`), others do not.
fn engine(triple: &str) -> Result<PathBuf> {
    step("Building fuzz-engine (fuzz profile)");
    let folder = root().join("target/fuzz");
    Cmd::of(cargo())
        .args(["build", "--locked", "-p", FUZZ, "--bin", ENGINE, "--features", "engine", "--profile", PROFILE])
        .args(["--target", triple])
        .arg("--target-dir")
        .arg(&folder)
        .env("RUSTC_WORKSPACE_WRAPPER", root().join("fuzz/instrumented.sh"))
        .dir(root())
        .show()?;
    let engine = folder.join(triple).join(PROFILE).join(ENGINE);
    ensure!(engine.is_file(), "{}: cargo built no such program", engine.display());
    Ok(engine)
}

fn fuzz(engine: &Path, target: &Target, seconds: u64, corpus: &Path, found: &Path) -> Result<Output> {
    let mut command = Command::new(engine);
    command
        .arg(corpus)
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-max_len={}", target.bytes_max))
        .arg(format!("-timeout={INPUT_SECONDS}"))
        .arg(format!("-rss_limit_mb={MEMORY_MIB}"))
        .arg(format!("-artifact_prefix={}/", found.display()))
        .args(["-print_final_stats=1", "-verbosity=1"])
        .env(TARGET, &target.name)
        .current_dir(root())
        .stdin(Stdio::null());
    command.output().with_context(|| format!("cannot start {}", engine.display()))
}

/// Files that the engine leaves for a panic, a hang, or too much memory. (What was slow is no finding.)
fn findings(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        if !entry.file_name().to_string_lossy().starts_with("slow-unit-") {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

/// The counts in the engine's output: those of the last line of progress, and of the statistics at the end.
fn told(said: &str) -> RunStats {
    let behind = |text: &str, word: &str| {
        let number = text.split(word).nth(1)?.trim_start();
        number.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    let last = |word: &str| said.lines().rev().find_map(|text| behind(text, word)).unwrap_or(0);
    RunStats { runs: last("stat::number_of_executed_units:"), coverage: last(" cov:"), corpus: last(" corp:") }
}

fn judged(target: &Target, output: &Output, said: &str, new: &[PathBuf]) -> Result<()> {
    if output.status.success() && new.is_empty() {
        return Ok(());
    }
    for file in new {
        note(format!("again: cargo run --bin {FUZZ} -- replay {} {}", target.name, file.display()));
        note(format!("once it is mended, keep it: cp {} fuzz/corpus/{}/", file.display(), target.name));
    }
    let why = said.lines().find(|text| text.contains("panicked at") || text.contains("ERROR: libFuzzer"));
    let after = said.lines().skip_while(|text| Some(*text) != why).take(2).collect::<Vec<_>>().join(" ");
    let told = if after.is_empty() { holdfast_chore::cmd::tail(said, TOLD_LINES) } else { after };
    Err(anyhow!("{}: {} new findings, {told}", output.status, new.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    const SAID: &str = "INFO: Running with entropic power schedule (0xFF, 100).
#2\tINITED cov: 12 ft: 13 corp: 1/1b exec/s: 0 rss: 41Mb
#8192\tpulse  cov: 811 ft: 2033 corp: 120/34Kb lim: 4096 exec/s: 4096 rss: 52Mb
#60123\tDONE   cov: 820 ft: 2100 corp: 131/36Kb lim: 4096 exec/s: 1000 rss: 60Mb
Done 60123 runs in 60 second(s)
stat::number_of_executed_units: 60123
stat::peak_rss_mb:              60
";

    #[test]
    fn counts_are_read_from_what_the_engine_says() {
        assert_eq!(told(SAID), RunStats { runs: 60_123, coverage: 820, corpus: 131 });
        assert_eq!(told("nothing"), RunStats::default());
    }

    fn target(name: &str) -> Target {
        Target { name: name.into(), bytes_max: "4096".into(), about: "bytes".into() }
    }

    #[test]
    fn targets_are_listed_and_chosen() {
        assert_eq!(listed("a\t4096\tbytes"), Some(target("a")));
        assert_eq!(listed("a 4096"), None);
        let all = || vec![target("a"), target("b")];
        assert_eq!(chosen(all(), &[]).unwrap(), all());
        assert_eq!(chosen(all(), &["b".into()]).unwrap(), [target("b")]);
        let error = chosen(all(), &["c".into()]).unwrap_err().to_string();
        assert_eq!(error, "no target \"c\"; there are a, b");
    }

    #[test]
    fn a_panic_is_told_with_its_words() {
        let ended = |raw| Output { status: ExitStatus::from_raw(raw), stdout: Vec::new(), stderr: Vec::new() };
        assert!(judged(&target("a"), &ended(0), SAID, &[]).is_ok());
        let said =
            format!("{SAID}thread 'main' panicked at nbd/src/wire.rs:9:5:\nattempt to add with overflow\n==7==\n");
        let error = judged(&target("a"), &ended(77 << 8), &said, &[]).unwrap_err().to_string();
        assert!(error.contains("wire.rs:9:5: attempt to add with overflow") && !error.contains("==7=="), "{error}");
        assert!(judged(&target("a"), &ended(0), SAID, &["crash-1".into()]).is_err());
    }
}
