//! The devices of an imported ZFS pool, and what each of them holds.

use crate::process::{NotRan, Ran, ran};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;
use tokio::process::Command;

/// Arguments of `zpool` for a list of a pool's devices, before the pool's name.
pub const LIST: [&str; 4] = ["list", "-v", "-H", "-P"];

/// Part of the error text of `zpool` about a pool that is not imported. Only this text means that: a program that fails
/// for another reason has not looked.
const NO_POOL: &str = "no such pool";

/// Whether this error text of `zpool` says that the pool is not imported. The program ran with [`in_english`].
pub fn says_absent(why: &str) -> bool {
    why.contains(NO_POOL)
}

/// Its error text is compared.
pub fn in_english(command: &mut Command) -> &mut Command {
    command.env("LC_ALL", "C")
}

/// Whether the pool is imported, by the end of `zpool list` for it.
///
/// # Errors
/// It does not say.
pub fn is_imported(listed: &Ran) -> Result<bool, String> {
    match listed.code {
        Some(0) => Ok(true),
        Some(_) if says_absent(&listed.err) => Ok(false),
        code => {
            let ended = code.map_or_else(|| "was killed".to_string(), |code| format!("exit code {code}"));
            Err(format!("zpool list: {ended}: {}", if listed.err.is_empty() { &listed.out } else { &listed.err }))
        }
    }
}

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

/// Asks `zpool` for the devices of this pool. `None` if the pool is not imported, and only then.
///
/// # Errors
/// There was no answer, or an error that says nothing about the pool.
pub async fn of_pool(mut zpool: Command, pool: &str, limit: Duration) -> Result<Option<Vec<Vdev>>, NotRan> {
    in_english(&mut zpool).args(LIST).arg(pool);
    let listed = ran(zpool, limit).await?;
    Ok(is_imported(&listed).map_err(NotRan::Unable)?.then(|| parse(&listed.out)))
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

    /// A `zpool` that finds no memory, or no descriptor, has not looked for the pool: its device must stay.
    #[tokio::test]
    async fn only_the_words_no_such_pool_mean_that_there_is_none() {
        let asked = async |script: &str| {
            let mut zpool = Command::new("sh");
            zpool.arg("-c").arg(script);
            of_pool(zpool, "tank", Duration::from_secs(60)).await
        };
        // In another language the text would be another one.
        let absent = "[ \"$LC_ALL\" = C ] && echo \"cannot open 'tank': no such pool\" >&2; exit 1";
        assert_eq!(asked(absent).await, Ok(None));
        assert_eq!(asked("printf 'tank\\t1G\\n\\t/dev/nbd0\\t1G\\n'").await.unwrap().unwrap().len(), 1);
        for (script, said) in [
            ("echo 'internal error: out of memory' >&2; exit 1", "exit code 1: internal error: out of memory"),
            ("echo 'cannot open: pool I/O is currently suspended'; exit 1", "I/O is currently suspended"),
            ("kill -9 $$", "was killed"),
        ] {
            let not = asked(script).await;
            assert!(matches!(&not, Err(NotRan::Unable(why)) if why.contains(said)), "{script}: {not:?}");
        }
    }
}
