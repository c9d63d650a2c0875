//! Which fresh seed runs next, by what earlier seeds have reached (ADR 0039). A seed alone decides its settings, so
//! none are changed here: of two seeds in a row, the one runs whose settings have reached more rare probes. So such
//! settings run more often. Every fourth pair is not compared, so that no setting dies out.
//!
//! ```text
//!   target/reached{-before,}/seeds*.jsonl ─▶ probes of each seed ─▶ worth of each setting ─▶ one of two seeds
//! ```

use crate::shape::Shape;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A setting that fewer seeds have had counts as unknown.
const LEAST: usize = 8;
/// One of so many pairs is not compared.
const UNSEEN: u64 = 4;
/// Beside the folder of this run: the counts of the run before (`holdfast_chore::reached`).
const BEFORE: &str = "reached-before";

/// The probes that each seed has reached.
type Reached = BTreeMap<u64, BTreeSet<String>>;

/// See the module. By default nothing is known, and seeds come one after the other.
#[derive(Debug, Default)]
pub struct Guide {
    /// For each setting, how much of what is rare its seeds have reached, relative to all seeds.
    worth: BTreeMap<String, f64>,
    /// Seeds that this rests on.
    seeds: usize,
    pairs: u64,
}

/// The settings of a seed, as its shape lists them.
fn settings(seed: u64) -> Vec<String> {
    Shape::of(seed).to_string().split(", ").map(str::to_string).collect()
}

/// The seed of a run that has drawn its settings.
fn seed_of(by: &str) -> Option<u64> {
    let drawn = !by.contains("--scene") && !by.contains("--usual");
    by.strip_prefix("--seed ")?.split(' ').next()?.parse().ok().filter(|_| drawn)
}

/// Adds the lines of a file. Another process may be writing its last one.
fn add(reached: &mut Reached, text: &str) {
    for line in text.lines() {
        let Ok(line) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        if let (Some(probe), Some(seed)) = (line["probe"].as_str(), line["by"].as_str().and_then(seed_of)) {
            reached.entry(seed).or_default().insert(probe.to_string());
        }
    }
}

/// Adds the counts of all seeds in a folder, if it is there.
fn add_folder(reached: &mut Reached, folder: &Path) {
    let Ok(files) = std::fs::read_dir(folder) else { return };
    for file in files.flatten() {
        let name = file.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("seeds")
            && name.ends_with(".jsonl")
            && let Ok(text) = std::fs::read_to_string(file.path())
        {
            add(reached, &text);
        }
    }
}

impl Guide {
    /// From the counts of this run and of the one before. Without the variable [`holdfast_reached::FILE`] nothing is
    /// known.
    pub fn read() -> Self {
        let Some(file) = std::env::var_os(holdfast_reached::FILE) else { return Self::default() };
        let Some(folder) = Path::new(&file).parent() else { return Self::default() };
        let mut reached = Reached::new();
        add_folder(&mut reached, &folder.with_file_name(BEFORE));
        add_folder(&mut reached, folder);
        Self::of(&reached)
    }

    fn of(reached: &Reached) -> Self {
        let mut seeds_of: BTreeMap<&str, usize> = BTreeMap::new();
        reached.values().flatten().for_each(|probe| *seeds_of.entry(probe).or_default() += 1);
        // A probe that few seeds reach counts more, one that all reach hardly anything.
        let rarity = |probe: &String| seeds_of.get(probe.as_str()).map_or(0.0, |seeds| 1.0 / *seeds as f64);
        let mut sums: BTreeMap<String, (usize, f64)> = BTreeMap::new();
        let mut all = 0.0;
        for (seed, probes) in reached {
            let value = probes.iter().map(rarity).sum::<f64>();
            all += value;
            for setting in settings(*seed) {
                let (seeds, sum) = sums.entry(setting).or_default();
                (*seeds, *sum) = (*seeds + 1, *sum + value);
            }
        }
        let mean = all / reached.len().max(1) as f64;
        let known = sums.into_iter().filter(|(_, (seeds, _))| *seeds >= LEAST && mean > 0.0);
        let worth = known.map(|(setting, (seeds, sum))| (setting, sum / seeds as f64 / mean)).collect();
        Self { worth, seeds: reached.len(), pairs: 0 }
    }

    /// What is to be expected of a seed: 1 of the average one.
    fn score(&self, seed: u64) -> f64 {
        let settings = settings(seed);
        let worth = settings.iter().map(|setting| self.worth.get(setting).copied().unwrap_or(1.0));
        worth.sum::<f64>() / settings.len().max(1) as f64
    }

    /// The next seed to run, from `from` on and below `last`; moves `from` on.
    pub fn next(&mut self, from: &mut u64, last: u64) -> Option<u64> {
        let first = *from;
        if first >= last {
            return None;
        }
        *from += 1;
        let second = *from;
        if self.worth.is_empty() || second >= last {
            return Some(first);
        }
        *from += 1;
        self.pairs += 1;
        let looks = !self.pairs.is_multiple_of(UNSEEN);
        Some(if looks && self.score(second) > self.score(first) { second } else { first })
    }

    /// What it rests on, and the settings that are worth most; `None` if it knows nothing.
    pub fn said(&self) -> Option<String> {
        let mut best: Vec<(&String, &f64)> = self.worth.iter().collect();
        best.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        let best: Vec<String> = best.iter().take(3).map(|(setting, worth)| format!("{setting} ({worth:.2})")).collect();
        let (seeds, best) = (self.seeds, best.join(", "));
        (!best.is_empty()).then(|| format!("guided by {seeds} earlier seeds; most rare states with: {best}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = "journals of 3072 KiB";

    fn has(seed: u64) -> bool {
        settings(seed).iter().any(|setting| setting == SMALL)
    }

    /// The lines of some seeds: all reach a probe, and those with a small journal a further one.
    fn lines(seeds: u64) -> String {
        let line = |probe: &str, seed: u64| {
            format!("{{\"probe\":\"{probe}\",\"count\":1,\"by\":\"--seed {seed} --length 4 --several\"}}\n")
        };
        let of = |seed: u64| line("a: always", seed) + &if has(seed) { line("b: rare", seed) } else { String::new() };
        (0..seeds).map(of).collect()
    }

    #[test]
    fn seeds_with_a_setting_that_reaches_what_is_rare_are_taken_more_often() {
        let mut reached = Reached::new();
        add(&mut reached, &(lines(400) + "{\"probe\":\"half a li"));
        let mut guide = Guide::of(&reached);
        assert!(guide.worth[SMALL] > 1.5, "{:?}", guide.worth);
        let (mut from, mut taken) = (1_000, Vec::new());
        while let Some(seed) = guide.next(&mut from, 3_000) {
            taken.push(seed);
        }
        assert_eq!(taken.len(), 1_000, "one of two");
        let share = |seeds: &[u64]| seeds.iter().filter(|seed| has(**seed)).count() as f64 / seeds.len() as f64;
        let all: Vec<u64> = (1_000..3_000).collect();
        assert!(share(&taken) > 1.3 * share(&all), "{} of {}", share(&taken), share(&all));
        assert!(taken.iter().any(|seed| !has(*seed)), "the others go on");
        assert!(guide.said().is_some_and(|said| said.contains(SMALL)), "{:?}", guide.said());
    }

    #[test]
    fn without_counts_seeds_come_one_after_the_other() {
        let (mut guide, mut from) = (Guide::default(), 7);
        let taken: Vec<u64> = std::iter::from_fn(|| guide.next(&mut from, 10)).collect();
        assert_eq!((taken, guide.said()), (vec![7, 8, 9], None));
    }

    #[test]
    fn runs_that_drew_no_settings_say_nothing_about_them() {
        assert_eq!(seed_of("--seed 12 --length 4 --attach"), Some(12));
        for by in ["--seed 12 --length 4 --usual", "--seed 12 --scene alone", "histories --first 200", ""] {
            assert_eq!(seed_of(by), None, "{by}");
        }
    }
}
