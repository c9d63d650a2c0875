//! Environment of a run of the tests: `HOLDFAST_SEED` and `HOLDFAST_TIER`; and the seeds that have failed once.

mod tier;

use std::io::Write;
pub use tier::{Tier, tier};

/// The first seed of this run: `HOLDFAST_SEED`, or the Unix time in seconds, so that two runs an hour apart share no
/// seed. Printed past the test harness, which would hide it.
pub fn seed() -> u64 {
    let seed = match std::env::var("HOLDFAST_SEED") {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("HOLDFAST_SEED: found {text:?}, expected a number")),
        Err(_) => std::time::UNIX_EPOCH.elapsed().map_or(1, |time| time.as_secs()),
    };
    let said = writeln!(std::io::stderr(), "first seed {seed}: HOLDFAST_SEED={seed} runs the same seeds again");
    said.expect("written");
    seed
}

/// Seeds that have failed once.
const CORPUS: &str = include_str!("../../corpus.txt");

/// One of them.
pub struct CorpusSeed {
    pub seed: &'static str,
    /// Options of `holdfast-sim one`, or of `histories` with that word before them.
    pub options: Vec<&'static str>,
    what: &'static str,
    mended: &'static str,
}

impl CorpusSeed {
    fn read(line: &'static str) -> Option<Self> {
        let [seed, options, what, mended] = line.split('|').map(str::trim).collect::<Vec<_>>()[..] else { return None };
        seed.parse::<u64>().ok().filter(|_| !what.is_empty() && !mended.is_empty())?;
        Some(Self { seed, options: options.split_whitespace().collect(), what, mended })
    }

    /// For a message: the line of the file.
    pub fn known(&self) -> String {
        let options = self.options.join(" ");
        format!(
            "seed {} {options} of crates/sim/corpus.txt (before: {}; mended: {})",
            self.seed, self.what, self.mended
        )
    }
}

/// The seeds that have failed once: those of histories, or the others.
pub fn corpus(of_histories: bool) -> Vec<CorpusSeed> {
    let lines = CORPUS.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    let read = |line| {
        CorpusSeed::read(line).unwrap_or_else(|| {
            panic!("crates/sim/corpus.txt: found {line:?}, expected: seed | options | what was wrong | commit, or open")
        })
    };
    lines.map(read).filter(|kept| (kept.options.first() == Some(&"histories")) == of_histories).collect()
}
