//! The time table of a run, printed at its end.

use crate::say::line;
use std::cmp::Reverse;
use std::time::{Duration, Instant};

/// How many single tests and scenarios the table lists.
const NAMED: usize = 10;

/// Durations so far.
#[derive(Debug)]
pub struct Times {
    begun: Instant,
    /// Parts, one after the other. Together they make up nearly the whole run.
    parts: Vec<Span>,
    /// Test programs and scenarios within the parts. Some run at the same time.
    singles: Vec<Span>,
}

#[derive(Debug)]
struct Span {
    name: String,
    took: Duration,
}

impl Times {
    /// Starts now.
    pub fn begin() -> Self {
        Self { begun: Instant::now(), parts: Vec::new(), singles: Vec::new() }
    }

    /// Runs one part and measures it.
    pub fn part<T>(&mut self, name: &str, run: impl FnOnce(&mut Self) -> T) -> T {
        let begun = Instant::now();
        let result = run(self);
        self.parts.push(Span { name: name.into(), took: begun.elapsed() });
        result
    }

    /// Adds the duration of one test program or scenario.
    pub fn single(&mut self, name: &str, took: Duration) {
        self.singles.push(Span { name: name.into(), took });
    }

    /// Name and seconds of each single test program or scenario.
    pub fn singles(&self) -> Vec<(String, f64)> {
        self.singles.iter().map(|span| (span.name.clone(), span.took.as_secs_f64())).collect()
    }

    /// Prints both tables.
    pub fn say(&self) {
        self.lines(self.begun.elapsed()).iter().for_each(line);
    }

    fn lines(&self, total: Duration) -> Vec<String> {
        let row = |span: &Span| format!("{:8.0} s  {}", span.took.as_secs_f64(), span.name);
        let mut lines = vec![format!("Where the time went: {:.1} min", total.as_secs_f64() / 60.0)];
        lines.extend(self.parts.iter().map(row));
        let mut longest: Vec<&Span> = self.singles.iter().collect();
        longest.sort_by_key(|span| Reverse(span.took));
        longest.truncate(NAMED);
        if !longest.is_empty() {
            lines.push(format!("The longest of {} programs of tests and scenarios:", self.singles.len()));
            lines.extend(longest.into_iter().map(row));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_in_their_order_and_of_the_singles_the_longest_first() {
        let mut times = Times::begin();
        let inside = times.part("build", |_| 7);
        assert_eq!(inside, 7);
        times.part("tests", |times| {
            for seconds in 1..=12 {
                times.single(&format!("test {seconds}"), Duration::from_secs(seconds));
            }
        });
        for part in &mut times.parts {
            part.took = Duration::from_secs(60);
        }
        let lines = times.lines(Duration::from_secs(90));
        let expected = ["Where the time went: 1.5 min", "      60 s  build", "      60 s  tests"];
        assert_eq!(lines[..3], expected);
        assert_eq!(lines[3], "The longest of 12 programs of tests and scenarios:");
        assert_eq!(lines[4], "      12 s  test 12");
        assert_eq!(lines.len(), 4 + NAMED, "found {lines:?}");
        assert_eq!(lines[13], "       3 s  test 3");
    }

    #[test]
    fn a_run_without_tests_names_none() {
        assert_eq!(Times::begin().lines(Duration::from_secs(6)), ["Where the time went: 0.1 min"]);
    }
}
