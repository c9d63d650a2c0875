//! The rows of the table: the measurements.

use crate::cmd::{Cmd, cmd};
use anyhow::{Context, Result};
use serde::Serialize;
use std::path::Path;
use std::time::Duration;

/// NBD connections of the attach path.
pub const CONNECTIONS: u32 = 4;

/// One figure.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Value {
    /// In the row's unit; higher is better in every row.
    pub value: f64,
    /// Requests that fio has made; 0 for pgbench.
    pub requests: f64,
    /// Median of the requests' latency, in milliseconds.
    pub p50_ms: Option<f64>,
    /// 99th percentile of the requests' latency, in milliseconds.
    pub p99_ms: Option<f64>,
    /// 99th percentile of the syncs' latency, in milliseconds.
    pub sync_p99_ms: Option<f64>,
    /// Processor time of all the target's servers for one request, in microseconds; without the client's.
    pub cpu_us: Option<f64>,
}

impl Value {
    /// A figure without more.
    pub fn of(value: f64) -> Self {
        Self { value, ..Self::default() }
    }
}

/// Sizes and durations.
#[derive(Clone, Debug)]
pub struct Scale {
    /// Seconds of each fio row.
    pub fio_s: u64,
    /// Seconds of each pgbench row.
    pub pgbench_s: u64,
    /// pgbench's scale.
    pub pgbench_scale: u32,
    /// MiB of fio's data, in a file of the file system and raw behind it.
    pub fio_mib: u64,
    /// MiB of the file system.
    pub fs_mib: u64,
    quick: bool,
}

impl Scale {
    /// For real measurements.
    pub const FULL: Self =
        Self { fio_s: 8, pgbench_s: 15, pgbench_scale: 20, fio_mib: 512, fs_mib: 3584, quick: false };
    /// For a quick test that the benchmark runs.
    pub const QUICK: Self = Self { fio_s: 2, pgbench_s: 4, pgbench_scale: 5, fio_mib: 128, fs_mib: 1536, quick: true };

    /// MiB of the volume: the file system and, behind it, space for the raw rows.
    pub fn volume_mib(&self) -> u64 {
        self.fs_mib + self.fio_mib
    }

    /// MiB of a gateway's memory cache: the file and the raw rows' data fit, as they fit nbdkit's page cache.
    pub fn cache_mib(&self) -> u64 {
        self.fio_mib * 2
    }

    /// Settings of PostgreSQL: buffers larger than the data, so that reads show the CPU cost of the path and not page
    /// cache effects.
    pub fn postgres(&self) -> String {
        let buffers = if self.quick { 256 } else { 768 };
        format!(
            "shared_buffers = '{buffers}MB'\nmax_wal_size = '1GB'\ncheckpoint_timeout = '15min'\nautovacuum = off\n"
        )
    }

    /// Settings that are printed and stored with the figures.
    pub fn settings(&self, rounds: u32, profile: &str) -> Vec<(String, String)> {
        let cpus = std::thread::available_parallelism().map_or(0, std::num::NonZeroUsize::get);
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let list: [(&str, String); 9] = [
            ("rounds", rounds.to_string()),
            ("holdfast", profile.into()),
            ("machine", format!("{cpus} CPUs, Linux {}", kernel.trim())),
            (
                "fio",
                format!(
                    "{} s a row, {} MiB, O_DIRECT, ext4 mounted noatime; raw rows by fio's nbd engine",
                    self.fio_s, self.fio_mib
                ),
            ),
            ("pgbench", format!("{} s a row, scale {}, 16 clients, 4 threads", self.pgbench_s, self.pgbench_scale)),
            ("postgresql", self.postgres().trim().replace('\n', ", ")),
            ("attach", format!("nbdfuse -C {}, losetup --direct-io=on", CONNECTIONS)),
            ("gateways", format!("as `holdfast dev` sets them, but cache.memory={}MiB", self.cache_mib())),
            ("store of c and d", "the embedded one, on the same disk".into()),
        ];
        list.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()
    }
}

/// One line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Short name in results.json.
    pub key: &'static str,
    pub title: &'static str,
    pub unit: &'static str,
    pub work: Work,
}

/// How a row is measured.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// fio on a file of the mounted file system.
    File(&'static [&'static str]),
    /// fio's nbd engine on the volume behind the file system; not for the local disk.
    Raw(&'static [&'static str]),
    /// pgbench, with more arguments and with `PGOPTIONS`.
    Pgbench(&'static [&'static str], &'static str),
}

const fn row(key: &'static str, title: &'static str, unit: &'static str, work: Work) -> Row {
    Row { key, title, unit, work }
}

const ROWS: &[Row] = &[
    row("file-write-qd1", "ext4: 4 KiB random write, QD 1", "IOPS", Work::File(&["--rw=randwrite", "--bs=4k"])),
    row(
        "file-write-sync-qd1",
        "ext4: 4 KiB random write + fdatasync, QD 1",
        "IOPS",
        Work::File(&["--rw=randwrite", "--bs=4k", "--fdatasync=1"]),
    ),
    row(
        "file-write-qd32",
        "ext4: 4 KiB random write, QD 32",
        "IOPS",
        Work::File(&["--rw=randwrite", "--bs=4k", "--iodepth=32"]),
    ),
    row(
        "file-read-hot-qd32",
        "ext4: 4 KiB random read, hot, QD 32",
        "IOPS",
        Work::File(&["--rw=randread", "--bs=4k", "--iodepth=32"]),
    ),
    row(
        "file-seq-write",
        "ext4: 128 KiB sequential write, QD 8",
        "MiB/s",
        Work::File(&["--rw=write", "--bs=128k", "--iodepth=8"]),
    ),
    row(
        "file-seq-read",
        "ext4: 128 KiB sequential read, QD 8",
        "MiB/s",
        Work::File(&["--rw=read", "--bs=128k", "--iodepth=8"]),
    ),
    row("raw-write-qd1", "NBD: 4 KiB random write, QD 1", "IOPS", Work::Raw(&["--rw=randwrite", "--bs=4k"])),
    row(
        "raw-write-flush-qd1",
        "NBD: 4 KiB random write + flush, QD 1",
        "IOPS",
        Work::Raw(&["--rw=randwrite", "--bs=4k", "--fsync=1"]),
    ),
    row(
        "raw-write-qd32",
        "NBD: 4 KiB random write, QD 32",
        "IOPS",
        Work::Raw(&["--rw=randwrite", "--bs=4k", "--iodepth=32"]),
    ),
    row(
        "raw-seq-write",
        "NBD: 128 KiB sequential write, QD 8",
        "MiB/s",
        Work::Raw(&["--rw=write", "--bs=128k", "--iodepth=8"]),
    ),
    row(
        "raw-read-hot-qd32",
        "NBD: 4 KiB random read, hot, QD 32",
        "IOPS",
        Work::Raw(&["--rw=randread", "--bs=4k", "--iodepth=32"]),
    ),
    row(
        "pgbench-sync-on",
        "pgbench TPC-B, synchronous_commit on",
        "tps",
        Work::Pgbench(&[], "-c synchronous_commit=on"),
    ),
    row(
        "pgbench-sync-off",
        "pgbench TPC-B, synchronous_commit off",
        "tps",
        Work::Pgbench(&[], "-c synchronous_commit=off"),
    ),
    row("pgbench-select", "pgbench, select only", "tps", Work::Pgbench(&["-S"], "")),
];

/// The rows whose key contains `text`.
pub fn rows(text: &str) -> Vec<Row> {
    ROWS.iter().filter(|r| r.key.contains(text)).copied().collect()
}

/// Runs one fio row for `seconds` on `mib` MiB at `place`. Fails when fio does, or when its report cannot be read.
pub fn fio(place: &Place<'_>, args: &[&str], mib: u64, seconds: u64) -> Result<Value> {
    let said = place
        .fio()
        .args(args)
        .arg(format!("--size={mib}M"))
        .args(["--time_based", &format!("--runtime={seconds}")])
        .out()?;
    read(&said, args)
}

/// Writes the whole range once, so that every row overwrites and reads existing data.
pub fn fill(place: &Place<'_>, mib: u64) -> Result<()> {
    place.fio().args(["--rw=write", "--bs=1M", "--iodepth=4", "--end_fsync=1"]).arg(format!("--size={mib}M")).run()
}

/// Reads the whole range once before a hot read.
pub fn warm(place: &Place<'_>, mib: u64) -> Result<()> {
    place.fio().args(["--rw=read", "--bs=128k", "--iodepth=4"]).arg(format!("--size={mib}M")).run()
}

/// The target of fio.
#[derive(Debug)]
pub enum Place<'a> {
    File(&'a Path),
    Raw {
        uri: String,
        offset_mib: u64,
    },
    /// The same through TLS, with the certificate in `home`.
    Tls {
        uri: String,
        home: &'a Path,
        offset_mib: u64,
    },
}

impl Place<'_> {
    fn fio(&self) -> Cmd {
        let program = match self {
            Self::File(_) | Self::Raw { .. } => cmd("fio"),
            // libnbd reads certificates of the home of any user but root. fio writes no file here.
            Self::Tls { home, .. } => {
                let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups", "fio"];
                cmd("setpriv").args(nobody).env("HOME", home).dir("/")
            }
        };
        let base =
            program.args(["--name=row", "--thread", "--output-format=json", "--randrepeat=0", "--refill_buffers=1"]);
        match self {
            Self::File(path) => {
                base.args(["--ioengine=libaio", "--direct=1"]).arg(format!("--filename={}", path.display()))
            }
            Self::Raw { uri, offset_mib } | Self::Tls { uri, offset_mib, .. } => {
                base.args(["--ioengine=nbd"]).arg(format!("--uri={uri}")).arg(format!("--offset={offset_mib}M"))
            }
        }
    }
}

fn read(said: &str, args: &[&str]) -> Result<Value> {
    // fio may print a warning before its JSON.
    let json = said.find('{').map(|at| &said[at..]).context("fio printed no JSON")?;
    let report: serde_json::Value = serde_json::from_str(json)?;
    let side = if args.iter().any(|a| a.contains("read")) { "read" } else { "write" };
    let part = &report["jobs"][0][side];
    let value = if args.contains(&"--bs=128k") {
        part["bw_bytes"].as_f64().map(|b| b / f64::from(1 << 20))
    } else {
        part["iops"].as_f64()
    };
    let percentile = |of: &serde_json::Value, name: &str| of["percentile"][name].as_f64().map(|ns| ns / 1e6);
    Ok(Value {
        value: value.context("fio's JSON has no figure")?,
        requests: part["total_ios"].as_f64().unwrap_or_default(),
        p50_ms: percentile(&part["clat_ns"], "50.000000"),
        p99_ms: percentile(&part["clat_ns"], "99.000000"),
        sync_p99_ms: percentile(&report["jobs"][0]["sync"]["lat_ns"], "99.000000"),
        cpu_us: None,
    })
}

/// Time of one pgbench row.
pub fn pgbench_time(scale: &Scale) -> Duration {
    Duration::from_secs(scale.pgbench_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fio_reports_are_read() -> Result<()> {
        let said = "note: a warning\n{\"jobs\":[{\"write\":{\"iops\":12.5,\"bw_bytes\":2097152,\
                    \"clat_ns\":{\"percentile\":{\"99.000000\":1500000}}}}]}";
        let found = read(said, &["--rw=randwrite", "--bs=4k"])?;
        assert!((found.value - 12.5).abs() < 1e-9);
        assert_eq!(found.p99_ms, Some(1.5));
        assert!((read(said, &["--rw=write", "--bs=128k"])?.value - 2.0).abs() < 1e-9);
        assert!(read("{}", &["--rw=read"]).is_err());
        Ok(())
    }

    #[test]
    fn keys_are_distinct() {
        let keys: std::collections::BTreeSet<&str> = ROWS.iter().map(|r| r.key).collect();
        assert_eq!(keys.len(), ROWS.len());
    }
}
