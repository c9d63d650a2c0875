//! The devices of an imported ZFS pool, and what each of them holds.

use crate::process::{NotRan, ran};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;
use tokio::process::Command;

/// Arguments of `zpool` for a list of a pool's devices, before the pool's name.
pub const LIST: [&str; 4] = ["list", "-v", "-H", "-P"];

/// What a device of a pool holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Data and metadata of the pool.
    Data,
    /// The intent log (SLOG): synchronous writes that are not in the pool yet.
    Log,
    /// Metadata and small blocks.
    Special,
    /// The tables of deduplication.
    Dedup,
    /// Copies of blocks that were read (L2ARC).
    Cache,
    /// Nothing: a hot spare that waits.
    Spare,
}

impl Class {
    /// The class that begins with a heading of this name.
    fn of_heading(name: &str) -> Option<Self> {
        Some(match name {
            "log" | "logs" => Self::Log,
            "special" => Self::Special,
            "dedup" => Self::Dedup,
            "cache" => Self::Cache,
            "spare" | "spares" => Self::Spare,
            _ => return None,
        })
    }

    /// Whether a loss of the device can lose data.
    pub fn is_needed(self) -> bool {
        !matches!(self, Self::Cache | Self::Spare)
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Data => "data",
            Self::Log => "log",
            Self::Special => "special",
            Self::Dedup => "dedup",
            Self::Cache => "cache",
            Self::Spare => "spare",
        })
    }
}

/// A device of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vdev {
    /// What it holds.
    pub class: Class,
    /// Its path, as the pool knows it.
    pub path: PathBuf,
}

/// The devices in the output of `zpool list -v -H -P`. Each class but the data has a heading: a line with nothing but
/// dashes after its name. A device that ZFS does not find has a number in place of its path, and is left out.
pub fn parse(listed: &str) -> Vec<Vdev> {
    let (mut class, mut found) = (Class::Data, Vec::new());
    for line in listed.lines() {
        let mut words = line.split_whitespace();
        let Some(name) = words.next() else { continue };
        if name.starts_with('/') {
            found.push(Vdev { class, path: PathBuf::from(name) });
        } else if words.all(|word| word == "-") {
            class = Class::of_heading(name).unwrap_or(class);
        }
    }
    found
}

/// Asks `zpool` for the devices of this pool. `None` if the pool is not imported.
///
/// # Errors
/// There was no answer.
pub async fn of_pool(mut zpool: Command, pool: &str, limit: Duration) -> Result<Option<Vec<Vdev>>, NotRan> {
    zpool.args(LIST).arg(pool);
    let listed = ran(zpool, limit).await?;
    Ok((listed.code == Some(0)).then(|| parse(&listed.out)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The output of ZFS 2.1: data first, then the other classes under their headings.
    #[test]
    fn devices_are_listed_with_what_they_hold() {
        let listed = "tank\t9.5G\t1M\t9.5G\t-\t-\t0%\t0%\t1.00x\tONLINE\t-\n\
            \tmirror-0\t9.5G\t1M\t9.5G\t-\t-\t0%\t0.01%\t-\tONLINE\n\
            \t/dev/nbd0\t-\t-\t-\t-\t-\t-\t-\t-\tONLINE\n\
            \t/dev/nbd1p1\t-\t-\t-\t-\t-\t-\t-\t-\tONLINE\n\
            dedup      -      -      -        -         -      -      -      -         -\n\
            \t/dev/sdb\t1G\t0\t1G\t-\t-\t0%\t0%\t-\tONLINE\n\
            special      -      -      -        -         -      -      -      -         -\n\
            \tmirror-1\t1G\t0\t1G\t-\t-\t0%\t0%\t-\tONLINE\n\
            \t/dev/sdc\t-\t-\t-\t-\t-\t-\t-\t-\tONLINE\n\
            logs      -      -      -        -         -      -      -      -         -\n\
            \t/dev/loop4\t1G\t0\t1G\t-\t-\t0%\t0%\t-\tONLINE\n\
            cache      -      -      -        -         -      -      -      -         -\n\
            \t/dev/vdd1\t1G\t0\t1G\t-\t-\t0%\t0%\t-\tONLINE\n\
            \t11325419870416537433\t-\t-\t-\t-\t-\t-\t-\t-\tUNAVAIL\n\
            spare      -      -      -        -         -      -      -      -         -\n\
            \t/dev/vde\t-\t-\t-\t-\t-\t-\t-\t-\tAVAIL\n";
        let found = parse(listed);
        let shown: Vec<_> = found.iter().map(|vdev| (vdev.class.to_string(), vdev.path.to_str().unwrap())).collect();
        let shown: Vec<_> = shown.iter().map(|(class, path)| (class.as_str(), *path)).collect();
        let expected = [
            ("data", "/dev/nbd0"),
            ("data", "/dev/nbd1p1"),
            ("dedup", "/dev/sdb"),
            ("special", "/dev/sdc"),
            ("log", "/dev/loop4"),
            ("cache", "/dev/vdd1"),
            ("spare", "/dev/vde"),
        ];
        assert_eq!(shown, expected);
        let needed = found.iter().filter(|vdev| vdev.class.is_needed()).count();
        assert_eq!(needed, 5, "all but the cache device and the spare");
        // A pool may have the name of a class.
        let named = parse("logs\t9.5G\t1M\t9.5G\t-\t-\t0%\t0%\t1.00x\tONLINE\t-\n\t/dev/nbd0\t9.5G\n");
        assert_eq!(named, [Vdev { class: Class::Data, path: "/dev/nbd0".into() }]);
    }
}
