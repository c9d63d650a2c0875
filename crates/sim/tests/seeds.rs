//! Seeds of the simulation, as many as fit into the time.

mod run;

use run::{Tier, tier};
use std::io::Write;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// Seeds of one kind, from the run's first seed on (`run::seed`), a new range each time.
struct Course {
    /// Options of the run.
    modes: &'static str,
    /// Seconds of faults in each seed.
    length: &'static str,
    /// The first seed, relative to the run's first one.
    from: u64,
    /// How many at most.
    seeds: u64,
    gate: Share,
    all: Share,
}

/// A course's share of a run.
#[derive(Clone, Copy)]
struct Share {
    /// After this many seconds no further seed is begun, or after `HOLDFAST_SIM_SECONDS` if less. 0: not run.
    seconds: u64,
    /// Fewer seeds than this in all of that time are too few to pass; 0 for a course that only uses what is left of
    /// [`WHOLE`]. Two busy CPUs, of which this gets a fifth, do that many.
    least: u64,
}

const fn share(seconds: u64, least: u64) -> Share {
    Share { seconds, least }
}

/// Many short runs, and some long ones with consequences of consequences: docs/proof/simulation.md compares them. Where
/// probes are counted, the first and the last course run one of two seeds (`--guided`). Sets in three stores; attached
/// sets, sometimes with full disks; hosts with agents; in a long run only, sets that move. The last course continues
/// the first if time is left, in a long run only. 78 s in the gate. This program runs alone there
/// (xtask/src/suite.rs), with both processors.
const COURSES: [Course; 7] = [
    Course { modes: "--guided", length: "4", from: 0, seeds: 2400, gate: share(30, 18), all: share(240, 170) },
    Course { modes: "", length: "20", from: 0, seeds: 100, gate: share(18, 2), all: share(110, 10) },
    Course { modes: "--several", length: "4", from: 0, seeds: 100, gate: share(10, 2), all: share(60, 10) },
    Course { modes: "--attach --full", length: "4", from: 0, seeds: 100, gate: share(10, 2), all: share(60, 10) },
    Course { modes: "--agents", length: "4", from: 0, seeds: 60, gate: share(10, 2), all: share(50, 8) },
    Course { modes: "--placing", length: "4", from: 0, seeds: 100, gate: share(0, 0), all: share(40, 5) },
    Course {
        modes: "--guided",
        length: "4",
        from: 2400,
        seeds: 880,
        gate: share(0, 0),
        all: share(WHOLE.as_secs(), 0),
    },
];

/// Limit of all courses together: less than ten minutes, with the running seeds at the end.
const WHOLE: Duration = Duration::from_secs(570);

fn sim(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_holdfast-sim")).args(args).output().expect("starts")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Limit in seconds for each course, if set.
fn seconds_at_most() -> Option<u64> {
    let said = std::env::var("HOLDFAST_SIM_SECONDS").ok()?;
    let seconds = said.parse::<u64>();
    Some(seconds.unwrap_or_else(|_| panic!("HOLDFAST_SIM_SECONDS: found {said:?}, expected a number of seconds")))
}

/// How many seeds a course has run, by its last line.
fn seeds_run(said: &str) -> Option<u64> {
    let last = said.lines().rev().find(|line| line.contains(" seeds (") && line.ends_with(" s of processors"))?;
    last.split(' ').next()?.parse().ok()
}

impl Course {
    fn share(&self) -> Share {
        match tier() {
            Tier::Gate => self.gate,
            Tier::All => self.all,
        }
    }

    /// Runs it: whether no seed failed, and what is wrong with their number. `at_most`: seconds.
    fn run(&self, first: u64, at_most: u64) -> (bool, Option<String>) {
        let share = self.share();
        let time = at_most.min(share.seconds);
        let [first, seeds, seconds] = [first + self.from, self.seeds, time].map(|number| number.to_string());
        let range = ["--seed", &first, "--seeds", &seeds, "--seconds", &seconds];
        let words = ["many", "--quiet", "--jobs", "2", "--length", self.length].into_iter().chain(range);
        let words: Vec<&str> = words.chain(self.modes.split_whitespace()).collect();
        let run = sim(&words);
        // Past the test harness, which would hide it: the seeds, and their counts of each fault.
        let mut out = std::io::stderr().lock();
        out.write_all(&run.stdout).and_then(|()| out.flush()).expect("written");
        let fine = run.status.success();
        // A course ends at the first failed seed, and in less time fewer seeds are normal.
        let done = seeds_run(&text(&run)).unwrap_or(0);
        let little = fine && time == share.seconds && done < share.least;
        let (sort, least) = (format!("--length {} {}", self.length, self.modes), share.least);
        let why = format!("{sort}: found {done} of {seeds} seeds run within {seconds} s, expected {least} at least");
        (fine, little.then_some(why))
    }
}

#[test]
fn no_seed_breaks_a_rule() {
    let (begun, at_most, first) = (Instant::now(), seconds_at_most(), run::seed());
    let (mut fine, mut little) = (kept_seeds_hold(), Vec::new());
    for course in COURSES.iter().filter(|course| course.share().seconds > 0) {
        // A caller that limits the time only wants to know whether a seed fails.
        if !fine && at_most.is_some() {
            break;
        }
        let left = match course.share() {
            Share { least: 0, .. } => WHOLE.saturating_sub(begun.elapsed()).as_secs(),
            Share { seconds, .. } => seconds,
        };
        if left == 0 {
            // Past the test harness as well.
            let said =
                writeln!(std::io::stderr(), "seeds {} and up: no time is left of {WHOLE:?}", first + course.from);
            said.expect("written");
            continue;
        }
        let (held, why) = course.run(first, at_most.map_or(left, |at_most| at_most.min(left)));
        fine &= held;
        little.extend(why);
    }
    assert!(fine, "a seed failed; the lines above say how to repeat it");
    assert!(
        little.is_empty(),
        "too little coverage to be a pass; no rule was broken. This machine was too busy, or seeds take longer than they did:\n{}",
        little.join("\n")
    );
}

/// The seeds that have failed once, before any other one: two at a time, some seconds.
fn kept_seeds_hold() -> bool {
    let kept = run::corpus(false);
    let holds = &|kept: &run::CorpusSeed| {
        let run = sim(&[&["one", "--seed", kept.seed], &kept.options[..]].concat());
        if !run.status.success() {
            // Past the test harness.
            let said = writeln!(std::io::stderr(), "{}{} failed again", text(&run), kept.known());
            said.expect("written");
        }
        run.status.success()
    };
    let held = std::thread::scope(|scope| {
        let halves = kept.chunks(kept.len().div_ceil(2).max(1));
        let running: Vec<_> =
            halves.map(|half| scope.spawn(move || half.iter().filter(|kept| holds(kept)).count())).collect();
        running.into_iter().map(|half| half.join().expect("no panic")).sum::<usize>()
    });
    held == kept.len()
}
