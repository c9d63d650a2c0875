//! Medians, and how busy the machine was during a measurement.

/// The median of `values`; for an even number of them, the mean of the two in the middle. `None` if there are none.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let mid = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[mid]),
        _ => Some(f64::midpoint(sorted[mid - 1], sorted[mid])),
    }
}

/// Load average and pressure (share of the last 10 s in which some task waited) as one line.
pub fn machine() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("?");
    let pressure = |what: &str| {
        let text = std::fs::read_to_string(format!("/proc/pressure/{what}")).unwrap_or_default();
        let some = text.lines().find(|l| l.starts_with("some")).unwrap_or_default().to_owned();
        some.split(' ').find_map(|f| f.strip_prefix("avg10=").map(str::to_owned)).unwrap_or_else(|| "?".into())
    };
    format!(
        "load {load}, waiting for cpu {} % io {} % memory {} %",
        pressure("cpu"),
        pressure("io"),
        pressure("memory")
    )
}

/// Busy and total time of this machine's processors so far. Two readings show whether a slow step between them computed
/// or waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Processors {
    worked: u64,
    all: u64,
}

impl Processors {
    /// Current values; zero where the kernel does not report them.
    pub fn now() -> Self {
        Self::of(&std::fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    /// Parses the first line of `/proc/stat`: `cpu`, user, nice, system, idle, iowait, ... (user includes guests).
    fn of(text: &str) -> Self {
        let line = text.lines().find_map(|line| line.strip_prefix("cpu ")).unwrap_or_default();
        let times: Vec<u64> = line.split_whitespace().take(8).map_while(|time| time.parse().ok()).collect();
        let all = times.iter().sum();
        let idle: u64 = times.iter().skip(3).take(2).sum();
        Self { worked: all - idle, all }
    }

    /// Share of busy time since `earlier`, in percent.
    pub fn percent_since(self, earlier: Self) -> u64 {
        let (worked, all) = (self.worked.saturating_sub(earlier.worked), self.all.saturating_sub(earlier.all));
        (worked * 100).checked_div(all).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn processors_are_asked_for_what_they_did_between_two_looks() {
        let first = Processors::of("cpu  10 0 10 70 10 0 0 0 0 0\ncpu0 1 2\n");
        let later = Processors::of("cpu  40 0 20 110 30 0 0 0 9 9\n");
        assert_eq!(later.percent_since(first), 40);
        assert_eq!(Processors::of("").percent_since(first), 0, "where the kernel does not say");
    }
}
