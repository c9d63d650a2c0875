//! Requests at the S3 server, counted from its own access log: one line for each answered request.
//!
//! The first fields are those of Amazon's access logs: owner, bucket, time (two words), address, requester, request,
//! operation, key, URI, status, error, bytes sent, size of the object. For a PUT the last is the length of its body.

use super::figures::per_gib;
use anyhow::{Context, Result};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Requests of one operation on one kind of object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sum {
    pub requests: u64,
    /// Answered with an error; S3 bills them all the same.
    pub failed: u64,
    /// Bytes of the accepted bodies.
    pub put_bytes: u64,
}

/// Requests by operation and kind of object, such as `PutObject seg`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Counts(BTreeMap<String, Sum>);

impl Counts {
    /// Reads whole lines of the log; skips lines that are no requests.
    pub fn of(text: &str) -> Self {
        let mut counts = Self::default();
        for line in text.lines() {
            let fields: Vec<&str> = line.split(' ').collect();
            let (Some(operation), Some(key), Some(status)) = (fields.get(7), fields.get(8), fields.get(10)) else {
                continue;
            };
            let (Some(operation), Ok(status)) = (operation.strip_prefix("s3_"), status.parse::<u16>()) else {
                continue;
            };
            let sum = counts.0.entry(format!("{operation} {}", kind_of(key))).or_default();
            sum.requests += 1;
            if status / 100 == 2 {
                let size = || fields.get(13).and_then(|size| size.parse::<u64>().ok());
                sum.put_bytes += if operation == "PutObject" { size().unwrap_or(0) } else { 0 };
            } else {
                sum.failed += 1;
            }
        }
        counts
    }

    fn sum(&self, wanted: impl Fn(&str) -> bool) -> Sum {
        self.0.iter().filter(|(name, _)| wanted(name)).fold(Sum::default(), |mut all, (_, one)| {
            all.requests += one.requests;
            all.failed += one.failed;
            all.put_bytes += one.put_bytes;
            all
        })
    }

    /// All of them.
    pub fn requests(&self) -> u64 {
        self.sum(|_| true).requests
    }

    /// PUTs of every kind of object.
    pub fn puts(&self) -> Sum {
        self.sum(|name| name.starts_with("PutObject "))
    }

    /// Requests of one operation on one kind of object.
    pub fn one(&self, name: &str) -> Sum {
        self.0.get(name).copied().unwrap_or_default()
    }

    /// PUTs for each GiB of `written`.
    pub fn puts_per_gib(&self, written: u64) -> Option<f64> {
        per_gib(self.puts().requests, written)
    }

    /// One line for display.
    pub fn short(&self) -> String {
        let one = |(name, sum): (&String, &Sum)| format!("{} {name}", sum.requests);
        let all: Vec<String> = self.0.iter().map(one).collect();
        if all.is_empty() { "none".into() } else { all.join(", ") }
    }
}

/// Kind of an object by its key: `seg`, `map`, `root`, `head`; `-` without a key.
fn kind_of(key: &str) -> &str {
    let mut parts = key.split('/').skip_while(|part| *part != "sets");
    parts.nth(2).unwrap_or(if key == "-" { key } else { "other" })
}

/// The log of a server.
#[derive(Debug)]
pub struct Door {
    log: PathBuf,
}

/// A place in the log.
#[derive(Clone, Copy, Debug)]
pub struct Mark(usize);

impl Door {
    /// The log that a server writes to `log`.
    pub fn new(log: &Path) -> Self {
        Self { log: log.into() }
    }

    /// The end of the log now, for [`Door::since`]. Fails when the log cannot be read.
    pub fn mark(&self) -> Result<Mark> {
        Ok(Mark(self.whole_lines()?.len()))
    }

    /// Requests answered since `mark`. Fails when the log cannot be read.
    pub fn since(&self, mark: Mark) -> Result<Counts> {
        let text = self.whole_lines()?;
        Ok(Counts::of(&String::from_utf8_lossy(text.get(mark.0..).unwrap_or_default())))
    }

    /// Some hundred bytes per request: the longest row makes a few MiB.
    fn whole_lines(&self) -> Result<Vec<u8>> {
        let mut text = std::fs::read(&self.log).with_context(|| self.log.display().to_string())?;
        let end = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        text.truncate(end);
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(operation: &str, key: &str, status: u16, size: u64) -> String {
        format!(
            "owner bucket [23/November/2026:01:10:35 +0000] 127.0.0.1 who ID s3_{operation} {key} /bucket/{key}?x-id={operation} {status} - 0 {size} 63 63 - \
             agent/1 a b - host SigV4 - AuthHeader s3 - arn Yes\n"
        )
    }

    #[test]
    fn requests_are_counted_by_operation_and_kind() {
        let text = [
            "log starts 2026-11-23 01:10:28 +0000 UTC m=+0.07\n".to_owned(),
            line("PutObject", "e2e/sets/1/seg/0002-aa", 200, 1000),
            line("PutObject", "e2e/sets/1/seg/0002-bb", 200, 500),
            line("PutObject", "e2e/sets/1/root/0002-cc", 412, 100),
            line("PutObject", "e2e/sets/1/head", 200, 7),
            line("GetObject", "e2e/sets/1/head", 200, 459),
            line("ListObjectsV2", "-", 200, 0),
        ];
        let counts = Counts::of(&text.concat());
        assert_eq!(counts.requests(), 6);
        assert_eq!(counts.puts(), Sum { requests: 4, failed: 1, put_bytes: 1507 });
        assert_eq!(counts.one("PutObject seg"), Sum { requests: 2, failed: 0, put_bytes: 1500 });
        assert_eq!(counts.one("GetObject head").put_bytes, 0);
        assert_eq!(counts.one("ListObjectsV2 -").requests, 1);
        assert_eq!(counts.puts_per_gib(1 << 29), Some(8.0));
        assert!(counts.short().contains("2 PutObject seg"));
        assert_eq!(Counts::default().short(), "none");
    }

    #[test]
    fn a_line_that_is_being_written_waits_for_its_end() -> Result<()> {
        let log = std::env::temp_dir().join(format!("holdfast-door-{}.log", std::process::id()));
        let first = line("GetObject", "e2e/sets/1/head", 200, 1);
        std::fs::write(&log, &first)?;
        let door = Door::new(&log);
        let mark = door.mark()?;
        let second = line("PutObject", "e2e/sets/1/seg/0002-aa", 200, 1000);
        std::fs::write(&log, format!("{first}{}", &second[..40]))?;
        assert_eq!(door.since(mark)?.requests(), 0);
        std::fs::write(&log, format!("{first}{second}"))?;
        assert_eq!(door.since(mark)?.puts().put_bytes, 1000);
        std::fs::remove_file(&log)?;
        Ok(())
    }

    #[test]
    fn kinds() {
        assert_eq!(kind_of("e2e/sets/1/map/00-ab"), "map");
        assert_eq!(kind_of("sets/1/head"), "head");
        assert_eq!(kind_of("bare/0001"), "other");
        assert_eq!(kind_of("-"), "-");
    }
}
