//! `cargo xtask sim`: runs seeds of the cluster simulation. docs/proof/simulation.md explains it and its output.

use crate::binary::{cargo, root};
use crate::say::line;
use anyhow::{Context, Result};
use holdfast_chore::proof::{self, Verdict};
use holdfast_chore::reached;
use std::io::BufRead;
use std::process::Stdio;

/// Options on the command line.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Run this seed; with --seeds, --seconds or --hours: start at this seed
    #[arg(long)]
    seed: Option<u64>,
    /// Run this many seeds
    #[arg(long)]
    seeds: Option<u64>,
    /// Run seeds for this many seconds
    #[arg(long)]
    seconds: Option<u64>,
    /// Run seeds for this many hours
    #[arg(long)]
    hours: Option<f64>,
    /// Make faults for this many simulated seconds in each seed
    #[arg(long, default_value_t = 20)]
    length: u64,
    /// Number of seeds that run at the same time
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Print the log of a single seed as it grows
    #[arg(long, short)]
    verbose: bool,
    /// Continue after a failed seed
    #[arg(long)]
    keep_going: bool,
    /// Print failed seeds and the summary only
    #[arg(long, short)]
    quiet: bool,
    /// Put this bug between the gateways and their simulated environment; an unknown name lists all bugs
    #[arg(long, value_name = "BUG")]
    broken: Option<String>,
    /// Give the set several stores
    #[arg(long)]
    several: bool,
    /// Use hosts with the real code of attach as owners
    #[arg(long)]
    attach: bool,
    /// Let the journal's disks fill up from time to time
    #[arg(long)]
    full: bool,
    /// Use hosts with the real code of agent and attach, and with a database, as owners
    #[arg(long, conflicts_with = "attach")]
    agents: bool,
    /// Move sets to other gateways from time to time
    #[arg(long)]
    placing: bool,
    /// Use the usual rates, sizes and clocks, and not those that each seed draws
    #[arg(long, conflicts_with = "guided")]
    usual: bool,
    /// Prefer seeds whose settings reached more rare states before
    #[arg(long)]
    guided: bool,
}

impl Args {
    /// The modes that are switched on.
    fn modes(&self) -> impl Iterator<Item = String> {
        let modes = [
            (self.several, "--several"),
            (self.attach, "--attach"),
            (self.full, "--full"),
            (self.agents, "--agents"),
            (self.placing, "--placing"),
            (self.usual, "--usual"),
        ];
        modes.into_iter().filter(|(on, _)| *on).map(|(_, word)| word.to_string())
    }
}

/// Builds the simulation and runs it. Fails when it does not build, or when a seed fails.
pub fn chore(args: &Args) -> Result<()> {
    let mut words = vec!["run".to_string(), "--quiet".into(), "-p".into(), "holdfast-sim".into(), "--".into()];
    words.extend(arguments(args));
    let (name, file) = reached::variable("seeds");
    let mut child = cargo().args(words).env(name, file).current_dir(root()).stdout(Stdio::piped()).spawn()?;
    let (mut said, mut failed) = (String::new(), String::new());
    for text in std::io::BufReader::new(child.stdout.take().context("no stdout")?).lines() {
        let text = text?;
        // The log of a seed is long. Keep the two summary lines, and the first line that reports a failure.
        if text.starts_with("in all: ") || text.contains(" of processors") {
            said.push_str(&text);
            said.push('\n');
        }
        if failed.is_empty() && text.starts_with("seed ") && text.contains(": FAILED: ") {
            failed.clone_from(&text);
        }
        line(text);
    }
    let ended = child.wait()?;
    // A run with a bug in it proves a check and says nothing about the product.
    if args.broken.is_none()
        && let Some(mut run) = proof::simulation(&said)
    {
        // That of the simulation itself, which has the code of the gateways in it.
        (run.under, run.profile) = (under(args), "dev".into());
        if run.verdict == Verdict::Broken && !failed.is_empty() {
            run.note = proof::ended_at(&failed);
        }
        run.note();
    }
    anyhow::ensure!(ended.success(), "the simulation ended with {ended}");
    Ok(())
}

/// Seconds for each mode in `test --all`.
const MODE_SECONDS: u64 = 600;

/// Runs the modes of `test --all` one after the other, with seeds from `seed` on.
pub fn each_mode(seed: u64) -> Vec<(String, Result<()>)> {
    modes_of_the_long_run(seed)
        .into_iter()
        .map(|args| (format!("simulation: {}", under(&args)), chore(&args)))
        .collect()
}

/// The options of each mode, in their order: each kind of owner and each further fault is in one of them.
fn modes_of_the_long_run(seed: u64) -> [Args; 5] {
    let plain = Args {
        seed: Some(seed),
        seeds: None,
        seconds: Some(MODE_SECONDS),
        hours: None,
        length: 4,
        jobs: 2,
        verbose: false,
        keep_going: true,
        quiet: true,
        broken: None,
        several: false,
        attach: false,
        full: false,
        agents: false,
        placing: false,
        usual: false,
        guided: true,
    };
    [
        plain.clone(),
        Args { several: true, ..plain.clone() },
        Args { attach: true, full: true, ..plain.clone() },
        Args { agents: true, ..plain.clone() },
        Args { placing: true, ..plain },
    ]
}

/// The conditions of a run in words: `one store, 4 s of faults`, `attached sets and full disks, 20 s of faults`.
fn under(args: &Args) -> String {
    let modes = [
        (args.several, "three stores"),
        (args.attach, "attached sets"),
        (args.agents, "hosts with agents"),
        (args.full, "full disks"),
        (args.placing, "sets that move"),
        (args.usual, "the usual shape"),
    ];
    let modes: Vec<&str> = modes.into_iter().filter(|(on, _)| *on).map(|(_, words)| words).collect();
    let modes = if modes.is_empty() { "one store".to_owned() } else { modes.join(" and ") };
    format!("{modes}, {} s of faults", args.length)
}

fn arguments(args: &Args) -> Vec<String> {
    let broken = args.broken.iter().map(|bug| format!("--broken={bug}"));
    let many = args.seeds.is_some() || args.seconds.is_some() || args.hours.is_some() || args.seed.is_none();
    let mut words = vec![if many { "many" } else { "one" }.to_string(), format!("--length={}", args.length)];
    words.extend(args.seed.map(|seed| format!("--seed={seed}")));
    if many {
        words.push(format!("--jobs={}", args.jobs));
        words.extend(args.seeds.map(|seeds| format!("--seeds={seeds}")));
        words.extend(args.seconds.map(|seconds| format!("--seconds={seconds}")));
        words.extend(args.hours.map(|hours| format!("--hours={hours}")));
        words.extend(args.keep_going.then(|| "--keep-going".to_string()));
        words.extend(args.quiet.then(|| "--quiet".to_string()));
        words.extend(args.guided.then(|| "--guided".to_string()));
    } else {
        words.extend(args.verbose.then(|| "--verbose".to_string()));
    }
    words.extend(broken);
    words.extend(args.modes());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_is_one_process_and_anything_else_is_many() {
        let none = Args {
            seed: None,
            seeds: None,
            seconds: None,
            hours: None,
            length: 20,
            jobs: 2,
            verbose: true,
            keep_going: false,
            quiet: false,
            broken: None,
            several: false,
            attach: false,
            full: false,
            agents: false,
            placing: false,
            usual: false,
            guided: false,
        };
        assert_eq!(arguments(&Args { seed: Some(7), ..none.clone() }), ["one", "--length=20", "--seed=7", "--verbose"]);
        let some = Args { seed: Some(7), seeds: Some(3), ..none.clone() };
        assert_eq!(arguments(&some), ["many", "--length=20", "--seed=7", "--jobs=2", "--seeds=3"]);
        let agents = Args { seeds: Some(3), agents: true, full: true, ..none.clone() };
        assert_eq!(arguments(&agents), ["many", "--length=20", "--jobs=2", "--seeds=3", "--full", "--agents"]);
        let guided = Args { seeds: Some(3), guided: true, ..none.clone() };
        assert_eq!(arguments(&guided), ["many", "--length=20", "--jobs=2", "--seeds=3", "--guided"]);
        assert_eq!(arguments(&none), ["many", "--length=20", "--jobs=2"]);
        assert_eq!(under(&none), "one store, 20 s of faults");
        assert_eq!(under(&agents), "hosts with agents and full disks, 20 s of faults");
    }

    /// A mode that the long run leaves out has no fresh seeds at all.
    #[test]
    fn the_long_run_has_each_mode() {
        let words: Vec<String> = modes_of_the_long_run(7).iter().flat_map(arguments).collect();
        for mode in ["--several", "--attach", "--full", "--agents", "--placing"] {
            assert!(words.iter().any(|word| word == mode), "{mode}: {words:?}");
        }
    }
}
