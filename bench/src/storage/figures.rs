//! Arithmetic of the figures, and parsers for the output of other programs.

use std::time::Duration;

pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;

/// A figure, or a dash.
pub fn shown(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.digits$}"))
}

/// `part` per `whole`; nothing if the whole is 0.
pub fn ratio(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0 && part.is_finite()).then(|| part / whole)
}

/// How many of `count` there are for each GiB of `bytes`.
pub fn per_gib(count: u64, bytes: u64) -> Option<f64> {
    ratio(count as f64, bytes as f64 / GIB as f64)
}

/// `count` events in `time`, per hour.
pub fn per_hour(count: u64, time: Duration) -> Option<f64> {
    ratio(count as f64, time.as_secs_f64() / 3600.0)
}

/// MiB a second.
pub fn mib_per_second(bytes: u64, seconds: f64) -> Option<f64> {
    ratio(bytes as f64 / MIB as f64, seconds)
}

/// Sum of a metric over its label sets on a page of `/metrics`; only lines with `label`. `None` if there are none.
pub fn metric(page: &str, name: &str, label: &str) -> Option<f64> {
    let of = |line: &str| {
        let rest = line.strip_prefix(name)?;
        let ours = rest.starts_with([' ', '{']) && rest.contains(label);
        if ours { rest.rsplit(' ').next()?.parse::<f64>().ok() } else { None }
    };
    page.lines().filter_map(of).fold(None, |sum, value| Some(sum.unwrap_or(0.0) + value))
}

/// One checkpoint in a gateway's log.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Checkpoint {
    pub bytes: u64,
    /// From its begin to its end in the log: segments, map, root, head.
    pub took: Duration,
}

/// The checkpoints in a log, in order.
pub fn checkpoints(log: &str) -> Vec<Checkpoint> {
    let of = |line: &str| {
        let fields = line.split_once(" checkpoint set=")?.1;
        let field = |name: &str| fields.split(' ').find_map(|f| f.strip_prefix(name));
        Some(Checkpoint { bytes: field("bytes=")?.parse().ok()?, took: duration(field("took=")?)? })
    };
    log.lines().filter_map(of).collect()
}

/// A duration as Rust prints it: `1.5s`, `351.49ms`, `12µs`.
fn duration(text: &str) -> Option<Duration> {
    let at = text.find(|c: char| !(c.is_ascii_digit() || c == '.'))?;
    let (number, unit) = text.split_at(at);
    let scale = match unit {
        "s" => 1.0,
        "ms" => 1e-3,
        "µs" => 1e-6,
        "ns" => 1e-9,
        _ => return None,
    };
    Duration::try_from_secs_f64(number.parse::<f64>().ok()? * scale).ok()
}

/// fio's report on its writes in one run.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Fio {
    pub bytes: u64,
    pub seconds: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub p999_ms: f64,
    pub longest_ms: f64,
}

/// Parses fio's JSON; `None` if it is not fio's output.
pub fn fio(said: &str) -> Option<Fio> {
    // fio may print a warning before its JSON.
    let report: serde_json::Value = serde_json::from_str(&said[said.find('{')?..]).ok()?;
    let writes = &report["jobs"][0]["write"];
    let ms = |ns: &serde_json::Value| ns.as_f64().map(|ns| ns / 1e6);
    let percentile = |p: &str| ms(&writes["clat_ns"]["percentile"][p]);
    Some(Fio {
        bytes: writes["io_bytes"].as_u64()?,
        seconds: writes["runtime"].as_f64()? / 1e3,
        p50_ms: percentile("50.000000")?,
        p99_ms: percentile("99.000000")?,
        p999_ms: percentile("99.900000")?,
        longest_ms: ms(&writes["clat_ns"]["max"])?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: Option<f64>, expected: f64) -> bool {
        found.is_some_and(|found| (found - expected).abs() < 1e-9)
    }

    #[test]
    fn ratios_have_a_whole() {
        assert!(near(ratio(3.0, 2.0), 1.5));
        assert_eq!(ratio(3.0, 0.0), None);
        assert_eq!(ratio(f64::NAN, 1.0), None);
        assert!(near(per_gib(96, GIB + GIB / 2), 64.0));
        assert_eq!(per_gib(96, 0), None);
        assert!(near(per_hour(5, Duration::from_secs(600)), 30.0));
        assert!(near(mib_per_second(3 * MIB, 1.5), 2.0));
    }

    #[test]
    fn metrics_are_summed_over_labels() {
        let page = "# TYPE a_total counter\na_total{set=\"x\",op=\"w\"} 2\na_total{set=\"y\",op=\"w\"} 3\na_total{op=\"r\"} 100\n\
                    a_total_more 7\nb 1.5\n";
        assert!(near(metric(page, "a_total", "op=\"w\""), 5.0));
        assert!(near(metric(page, "a_total", ""), 105.0));
        assert!(near(metric(page, "b", ""), 1.5));
        assert_eq!(metric(page, "c", ""), None);
    }

    #[test]
    fn checkpoints_are_read_from_a_log() {
        let log = "2026-11-23T01:10:35.6Z  INFO holdfast_gateway::set::uploader: checkpoint set=demo upto=t2-i157 extents=384 \
                   bytes=50331648 segments_took=351.494951ms took=1.5s\n\
                   2026-11-23T01:10:36.6Z  INFO x: collected set=demo segments=2 copied_bytes=5\n";
        let expected = Checkpoint { bytes: 50_331_648, took: Duration::from_millis(1500) };
        assert_eq!(checkpoints(log), [expected]);
        assert_eq!(duration("12µs"), Some(Duration::from_micros(12)));
        assert_eq!(duration("1.25ms"), Some(Duration::from_micros(1250)));
        assert_eq!(duration("12"), None);
        assert_eq!(duration("1h"), None);
    }

    #[test]
    fn a_report_of_fio_is_read() {
        let said = "a warning\n{\"jobs\":[{\"write\":{\"io_bytes\":4096,\"runtime\":1500,\"clat_ns\":{\"max\":3000000,\"percentile\":\
                    {\"50.000000\":1000000,\"99.000000\":2000000,\"99.900000\":2500000}}}}]}";
        let found = fio(said).expect("a report");
        assert_eq!((found.bytes, found.p99_ms, found.longest_ms), (4096, 2.0, 3.0));
        assert!((found.seconds - 1.5).abs() < 1e-9);
        assert_eq!(fio("{}"), None);
        assert_eq!(fio("nothing"), None);
    }
}
