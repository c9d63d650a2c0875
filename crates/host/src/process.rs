//! Metrics of the own process, as text for `/metrics`: the names that every client of Prometheus uses for them
//! (`process_*`), and `holdfast_build_info`.

use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};
use std::fmt::Write as _;

/// Units of time in `/proc/PID/stat` per second: USER_HZ, which is 100 on every architecture that we build for.
const TICKS_PER_SECOND: f64 = 100.0;

/// What the kernel says of this process.
#[derive(Default)]
struct ProcStats {
    /// `/proc/self/stat`, `/proc/self/status` and `/proc/stat`; empty if it could not be read.
    stat: String,
    status: String,
    system: String,
    cpu_seconds: Option<f64>,
    open_fds: Option<f64>,
    max_fds: Option<f64>,
}

/// The metrics of this process, a build of `version`. What the kernel does not say is left out.
pub fn page(version: &str) -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    // One of them is this look at the directory.
    let open = std::fs::read_dir("/proc/self/fd").map(|entries| entries.count().saturating_sub(1));
    let seen = ProcStats {
        stat: read("/proc/self/stat"),
        status: read("/proc/self/status"),
        system: read("/proc/stat"),
        cpu_seconds: Some(cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9),
        open_fds: open.ok().map(|count| count as f64),
        max_fds: getrlimit(Resource::Nofile).current.map(|count| count as f64),
    };
    text(&seen, version)
}

fn text(seen: &ProcStats, version: &str) -> String {
    let kib = |name: &str| number(&seen.status, name).map(|kib| kib * 1024.0);
    let metrics = [
        ("process_cpu_seconds_total", "counter", "Processor time of the process.", seen.cpu_seconds),
        ("process_max_fds", "gauge", "Maximum number of open file descriptors.", seen.max_fds),
        ("process_open_fds", "gauge", "Open file descriptors.", seen.open_fds),
        ("process_resident_memory_bytes", "gauge", "Memory in RAM.", kib("VmRSS:")),
        ("process_start_time_seconds", "gauge", "Unix time when the process started.", started(seen)),
        ("process_threads", "gauge", "Threads of the process.", number(&seen.status, "Threads:")),
        ("process_virtual_memory_bytes", "gauge", "Address space.", kib("VmSize:")),
    ];
    let mut out = String::new();
    for (name, kind, help, value) in metrics {
        if let Some(value) = value {
            let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n");
        }
    }
    let name = "holdfast_build_info";
    let _ = write!(out, "# HELP {name} Version of this program.\n# TYPE {name} gauge\n");
    let _ = writeln!(out, "{name}{{version=\"{version}\"}} 1");
    out
}

/// The number after the first line's beginning `name`.
fn number(text: &str, name: &str) -> Option<f64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Unix time of the process's start, in seconds.
fn started(seen: &ProcStats) -> Option<f64> {
    // The second field, the program's name, may contain blanks and parentheses. After it comes the third one.
    let (_, fields) = seen.stat.rsplit_once(')')?;
    let ticks: f64 = fields.split_whitespace().nth(22 - 3)?.parse().ok()?;
    Some(number(&seen.system, "btime")? + ticks / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_understood() {
        let zeroes = "0 ".repeat(18);
        let seen = ProcStats {
            stat: format!("7 (a )b) S {zeroes}250 1 1"),
            status: "Name:\tx\nVmSize:\t   3 kB\nVmRSS:\t   2 kB\nThreads:\t5\n".into(),
            system: "cpu 1 2\nbtime 1000\n".into(),
            cpu_seconds: Some(1.5),
            open_fds: Some(4.0),
            max_fds: None,
        };
        let text = text(&seen, "1.2.3");
        for line in [
            "process_cpu_seconds_total 1.5",
            "process_open_fds 4",
            "process_resident_memory_bytes 2048",
            "process_start_time_seconds 1002.5",
            "process_threads 5",
            "process_virtual_memory_bytes 3072",
            "holdfast_build_info{version=\"1.2.3\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
        assert!(!text.contains("process_max_fds"), "an unlimited number has no value");
    }

    #[test]
    fn what_cannot_be_read_is_left_out() {
        let text = text(&ProcStats::default(), "1");
        assert!(!text.contains("process_") && text.ends_with("holdfast_build_info{version=\"1\"} 1\n"), "{text}");
    }

    #[test]
    fn this_process_has_them_all() {
        let page = page("1");
        for name in ["cpu_seconds_total", "open_fds", "resident_memory_bytes", "start_time_seconds", "threads"] {
            assert!(page.contains(&format!("\nprocess_{name} ")), "{name}: {page}");
        }
        let started = number(&page, "process_start_time_seconds").unwrap();
        let now = crate::unix_ms() as f64 / 1e3;
        // `btime` is in whole seconds.
        assert!(started < now + 2.0 && now - started < 3600.0, "{started}, now {now}");
    }
}
