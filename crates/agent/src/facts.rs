//! What the hosts of a set have to have in common. Compared while the primary lives: after a takeover it is too late.
//!
//! FACTS-F1  Each agent shows its own facts in `/status`, asks the other agents for theirs, and compares. A fact that
//!     one side does not know is not compared.
//! FACTS-F2  A difference forbids nothing: the primary may be lost, and a person knows more. A difference that could
//!     damage data is reported as an error, also in the log.

mod gather;

pub(crate) use gather::keep;

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// Difference of two hosts' clocks that is accepted, in milliseconds, beyond the duration of the question.
const CLOCK_MS_MAX: u64 = 1000;

/// Facts of one host; "" or nothing for an unknown fact.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// Version of the server's program in `database.bin_dir`, such as 15.14.
    pub postgresql: String,
    /// Version of the C library, which is the version of its collations (`pg_collation_actual_version`).
    pub libc: String,
    /// The ICU library that the server's program uses, such as libicui18n.so.72.
    pub icu: String,
    /// Name of `database.user`.
    pub user: String,
    /// Its number.
    pub uid: Option<u32>,
    /// `database.bin_dir`.
    pub bin_dir: String,
    /// Version of the module zfs, where `pool.kind` is "zfs".
    pub zfs: String,
    /// The pool features that it knows.
    pub zfs_features: BTreeSet<String>,
    /// The host's clock when it answered, Unix milliseconds.
    pub unix_ms: u64,
}

/// Possible consequence of a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Weight {
    /// None.
    Note,
    /// A takeover may fail.
    Takeover,
    /// A takeover may damage data.
    Damage,
}

impl Weight {
    /// All of them.
    pub const ALL: [Weight; 3] = [Weight::Note, Weight::Takeover, Weight::Damage];
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Weight::Note => "note",
            Weight::Takeover => "takeover",
            Weight::Damage => "damage",
        })
    }
}

/// One difference between this host and another one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Difference {
    /// Its possible consequence.
    pub weight: Weight,
    /// The other host.
    pub host: String,
    /// The fact, such as `postgresql`.
    pub fact: String,
    /// What was found, what it means, and what to do.
    pub words: String,
}

/// What the agent shows.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// Of this host; `None` before they were gathered, and in a simulation.
    pub own: Option<Facts>,
    /// Differences to the hosts that answered last.
    pub differences: Vec<Difference>,
}

fn major(version: &str) -> &str {
    let mut parts = version.split('.');
    let first = parts.next().unwrap_or_default();
    // Before version 10 these were the first two numbers.
    let end = match parts.next() {
        Some(second) if first.parse::<u32>().is_ok_and(|first| first < 10) => first.len() + 1 + second.len(),
        _ => first.len(),
    };
    version.get(..end).unwrap_or(version)
}

/// Both are known, and they differ.
fn differ(ours: &str, theirs: &str) -> bool {
    !ours.is_empty() && !theirs.is_empty() && ours != theirs
}

/// Differences between this host, `name`, and the other one, `host`. `took_ms`: duration of its answer.
pub fn compare(name: &str, ours: &Facts, host: &str, theirs: &Facts, took_ms: u64) -> Vec<Difference> {
    let mut found = Vec::new();
    let mut say = |weight, fact: &str, words: String| {
        found.push(Difference { weight, host: host.into(), fact: fact.into(), words });
    };
    let pair = |a: &str, b: &str| format!("{a} on {name}, {b} on {host}");
    let (a, b) = (&ours.postgresql, &theirs.postgresql);
    if differ(major(a), major(b)) {
        let words = "a data directory belongs to one major version, and another one does not start on it: install the same version";
        say(Weight::Damage, "postgresql", format!("PostgreSQL {}: {words}", pair(a, b)));
    } else if differ(a, b) {
        say(Weight::Note, "postgresql", format!("PostgreSQL {}: install the same minor version", pair(a, b)));
    }
    let sorts = "text may sort in another order there, so that indexes on text are wrong after a takeover, and wrong rows get in: install the same release of \
                 the operating system; if PostgreSQL has moved in spite of it, REINDEX and ALTER DATABASE ... REFRESH COLLATION VERSION";
    for (fact, what, a, b) in
        [("libc", "C library", &ours.libc, &theirs.libc), ("icu", "ICU library", &ours.icu, &theirs.icu)]
    {
        if differ(a, b) {
            say(Weight::Damage, fact, format!("{what} {}: {sorts}", pair(a, b)));
        }
    }
    if let (Some(a), Some(b)) = (ours.uid, theirs.uid)
        && a != b
    {
        let (user, numbers) = (&ours.user, pair(&a.to_string(), &b.to_string()));
        let words = "the files on the set belong to one of them: PostgreSQL does not start on the other host; give the user the same number (usermod -u)";
        say(Weight::Takeover, "uid", format!("number of user {user}: {numbers}: {words}"));
    }
    if differ(&ours.bin_dir, &theirs.bin_dir) {
        let both = pair(&ours.bin_dir, &theirs.bin_dir);
        say(Weight::Note, "bin_dir", format!("database.bin_dir {both}: expected the same"));
    }
    zfs(ours, theirs, &pair, &mut say);
    let apart = ours.unix_ms.abs_diff(theirs.unix_ms);
    if ours.unix_ms != 0 && theirs.unix_ms != 0 && apart > CLOCK_MS_MAX + took_ms {
        let words = "no lease depends on it, but logs, histories and scheduled switchovers do: see that both hosts keep time (NTP)";
        say(Weight::Note, "clock", format!("the clocks of {name} and {host} are {} s apart: {words}", apart / 1000));
    }
    found
}

fn zfs(ours: &Facts, theirs: &Facts, pair: &dyn Fn(&str, &str) -> String, say: &mut dyn FnMut(Weight, &str, String)) {
    if differ(&ours.zfs, &theirs.zfs) {
        say(Weight::Note, "zfs", format!("ZFS {}: install the same version", pair(&ours.zfs, &theirs.zfs)));
    }
    let (a, b) = (&ours.zfs_features, &theirs.zfs_features);
    if a.is_empty() || b.is_empty() || a == b {
        return;
    }
    let only = |some: &BTreeSet<String>, others: &BTreeSet<String>| {
        let missing: Vec<&str> = some.difference(others).map(String::as_str).collect();
        if missing.is_empty() { "none".to_string() } else { missing.join(", ") }
    };
    let words = "a pool that uses one of them is not imported on the other host: install the same version of ZFS, and do not `zpool upgrade` before";
    say(
        Weight::Takeover,
        "zfs-features",
        format!("pool features known {} only: {words}", pair(&only(a, b), &only(b, a))),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            postgresql: "15.14".into(),
            libc: "2.36".into(),
            icu: "libicui18n.so.72".into(),
            user: "postgres".into(),
            uid: Some(105),
            bin_dir: "/usr/lib/postgresql/15/bin".into(),
            zfs: "2.1.11-1".into(),
            zfs_features: ["lz4_compress", "zstd_compress"].map(String::from).into(),
            unix_ms: 1_700_000_000_000,
        }
    }

    fn of(theirs: &Facts) -> Vec<(Weight, String, String)> {
        let found = compare("db1", &facts(), "db2", theirs, 40);
        assert!(found.iter().all(|one| one.host == "db2"));
        found.into_iter().map(|one| (one.weight, one.fact, one.words)).collect()
    }

    /// Each fact alone: its weight, and both values in its text.
    #[test]
    fn each_difference_is_named_with_its_weight() {
        assert_eq!(of(&facts()), []);
        type Case = (&'static str, Weight, &'static str, fn(&mut Facts));
        let cases: [Case; 10] = [
            ("postgresql", Weight::Damage, "16.1 on db2", |facts| facts.postgresql = "16.1".into()),
            ("postgresql", Weight::Note, "15.2 on db2", |facts| facts.postgresql = "15.2".into()),
            ("libc", Weight::Damage, "2.36 on db1, 2.31 on db2", |facts| facts.libc = "2.31".into()),
            ("icu", Weight::Damage, "REINDEX", |facts| facts.icu = "libicui18n.so.67".into()),
            ("uid", Weight::Takeover, "105 on db1, 26 on db2", |facts| facts.uid = Some(26)),
            ("bin_dir", Weight::Note, "/usr/pgsql-15/bin on db2", |facts| facts.bin_dir = "/usr/pgsql-15/bin".into()),
            ("zfs", Weight::Note, "2.2.2-1 on db2", |facts| facts.zfs = "2.2.2-1".into()),
            ("zfs-features", Weight::Takeover, "zstd_compress on db1, none on db2", |facts| {
                facts.zfs_features.remove("zstd_compress");
            }),
            ("clock", Weight::Note, "1 s apart", |facts| facts.unix_ms += 1041),
            ("clock", Weight::Note, "2 s apart", |facts| facts.unix_ms -= 2000),
        ];
        for (fact, weight, words, change) in cases {
            let mut theirs = facts();
            change(&mut theirs);
            let found = of(&theirs);
            assert_eq!(found.len(), 1, "{fact}: {found:?}");
            assert_eq!((found[0].0, found[0].1.as_str()), (weight, fact));
            assert!(found[0].2.contains(words), "{}", found[0].2);
        }
        let mut late = facts();
        late.unix_ms += 1040;
        assert_eq!(of(&late), [], "the answer took so long");
    }

    /// FACTS-F1: an agent of another build may show fewer facts, and a program may be missing.
    #[test]
    fn what_is_not_known_does_not_differ() {
        assert_eq!(of(&Facts::default()), []);
        let told: Facts = serde_json::from_str("{}").unwrap();
        assert_eq!(told, Facts::default());
    }

    #[test]
    fn the_major_version_is_the_first_number_since_10() {
        for (version, first) in [("15.14", "15"), ("17beta1", "17beta1"), ("9.6.24", "9.6"), ("10", "10"), ("", "")] {
            assert_eq!(major(version), first);
        }
    }
}
