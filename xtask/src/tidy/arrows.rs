//! Crate arrows: which of our crates may depend on which, and on which outside crates. Checked with `cargo metadata`.

use crate::binary::{cargo, root};
use crate::cmd::Cmd;
use anyhow::{Result, bail};
use serde::Deserialize;

/// A crate and the crates of ours on which it may depend. ARCHITECTURE.md explains why.
const ARROWS: &[(&str, &[&str])] = &[
    ("types", &[]),
    ("folder", &[]),
    ("reached", &[]),
    ("settings", &[]),
    ("host", &[]),
    ("locked", &[]),
    ("seal", &["types", "locked"]),
    ("journal", &["types", "seal", "reached"]),
    ("control", &["types", "reached"]),
    ("nbd", &["types"]),
    ("api", &["types"]),
    ("tls", &["types"]),
    ("store", &["types", "folder", "host", "tls"]),
    ("envelope", &["store", "tls"]),
    ("etcd", &[]),
    ("traces", &[]),
    ("log", &["types", "journal", "folder", "reached"]),
    ("volume", &["types", "seal", "control", "reached"]),
    ("raft", &["types", "folder", "log", "tls", "reached"]),
    ("front", &["types", "host", "nbd", "tls", "reached"]),
    ("cache", &["types"]),
    (
        "set",
        &[
            "types", "folder", "host", "locked", "seal", "control", "volume", "nbd", "store", "raft", "log", "tls",
            "envelope", "etcd", "traces", "front", "cache", "reached",
        ],
    ),
    (
        "gateway",
        &[
            "types", "settings", "folder", "host", "seal", "control", "volume", "store", "raft", "log", "api", "tls",
            "envelope", "etcd", "traces", "front", "cache", "set",
        ],
    ),
    ("pair", &["types", "host", "control", "volume", "store", "raft", "api", "etcd", "set", "gateway"]),
    ("attach", &["types", "host", "nbd", "api", "tls", "reached"]),
    ("csi", &["types", "host", "api", "attach", "reached"]),
    ("agent", &["types", "settings", "host", "api", "tls", "traces"]),
    ("standby", &["types", "settings", "host", "tls", "agent"]),
    (
        "holdfast",
        &[
            "types", "host", "folder", "locked", "api", "tls", "agent", "attach", "csi", "standby", "set", "gateway",
            "pair",
        ],
    ),
    ("testkit", &["types", "journal"]),
    (
        "sim",
        &[
            "types", "control", "log", "store", "tls", "raft", "api", "nbd", "seal", "volume", "front", "cache", "set",
            "gateway", "attach", "agent", "testkit", "reached",
        ],
    ),
    (
        "fuzz",
        &[
            "types", "seal", "journal", "control", "volume", "nbd", "store", "tls", "raft", "api", "gateway", "agent",
            "standby", "testkit",
        ],
    ),
    ("chore", &[]),
    ("scenarios", &["chore"]),
    ("dist", &["chore"]),
    ("bench", &["chore", "scenarios"]),
    ("large-map", &["types", "seal", "control", "volume", "store", "set"]),
    ("mutations", &["chore"]),
    ("xtask", &["chore"]),
];

/// Crates that only tests may use, and crates that are tests themselves.
const FOR_TESTS: &[&str] = &["testkit", "sim", "fuzz"];

/// Pure crates: no I/O, no clock, no randomness, no tasks. They may not depend on a crate that brings in one of these.
pub(super) const PURE: &[&str] = &["types", "seal", "journal", "control", "volume", "nbd"];

const IMPURE: &[&str] =
    &["tokio", "rustix", "rand", "getrandom", "reqwest", "hyper", "tonic", "axum", "libc", "futures-util"];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    /// `null` for a normal dependency, else `dev` or `build`.
    kind: Option<String>,
    /// Behind a feature. For a crate of tests: the feature `testing`, which only tests of other crates switch on.
    #[serde(default)]
    optional: bool,
}

/// Names of our own packages in `cargo metadata`, without the prefix.
pub(super) fn room(package: &str) -> &str {
    package.strip_prefix("holdfast-").unwrap_or(package)
}

pub(super) fn check() -> Result<()> {
    let asked = Cmd::of(cargo()).args(["metadata", "--no-deps", "--format-version=1", "--locked"]);
    let out = asked.dir(root()).out()?;
    let metadata: Metadata = serde_json::from_str(&out)?;
    let problems = problems(&metadata);
    if problems.is_empty() { Ok(()) } else { bail!("\n    {}", problems.join("\n    ")) }
}

fn problems(metadata: &Metadata) -> Vec<String> {
    let mut problems = Vec::new();
    for package in &metadata.packages {
        let from = room(&package.name);
        let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == from) else {
            problems.push(format!(
                "{}: unknown crate; add it to xtask/src/tidy/arrows.rs with the crates on which it may depend",
                package.name
            ));
            continue;
        };
        for dependency in &package.dependencies {
            let to = room(&dependency.name);
            let ours = metadata.packages.iter().any(|p| p.name == dependency.name);
            let test_only = dependency.kind.as_deref() == Some("dev") || dependency.optional && FOR_TESTS.contains(&to);
            let fine = if ours {
                allowed.contains(&to) && (!FOR_TESTS.contains(&to) || FOR_TESTS.contains(&from))
                    || test_only && FOR_TESTS.contains(&to)
            } else if test_only {
                true
            } else {
                !(PURE.contains(&from) && IMPURE.contains(&to))
                    && (from == "raft" || !to.starts_with("openraft"))
                    && (from == "store" || !to.starts_with("aws-"))
            };
            if !fine {
                problems.push(format!("{from} -> {to}: this arrow is not allowed"));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(from: &str, to: &str, kind: Option<&str>) -> Vec<String> {
        let names = ["holdfast-types", "holdfast-nbd", "holdfast-raft", "holdfast-testkit", "holdfast-log"];
        let mut packages: Vec<Package> =
            names.map(|name| Package { name: name.into(), dependencies: Vec::new() }).into_iter().collect();
        for package in &mut packages {
            if package.name == from {
                package.dependencies.push(Dependency {
                    name: to.into(),
                    kind: kind.map(str::to_owned),
                    optional: false,
                });
            }
        }
        problems(&Metadata { packages })
    }

    #[test]
    fn arrows_point_down_only() {
        assert!(found("holdfast-raft", "holdfast-log", None).is_empty());
        assert_eq!(found("holdfast-log", "holdfast-raft", None), ["log -> raft: this arrow is not allowed"]);
        assert!(found("holdfast-raft", "openraft", None).is_empty());
        assert_eq!(found("holdfast-log", "openraft", None).len(), 1);
        assert_eq!(found("holdfast-raft", "aws-sdk-s3", None).len(), 1);
        assert_eq!(found("holdfast-nbd", "tokio", None).len(), 1);
        assert!(found("holdfast-nbd", "tokio", Some("dev")).is_empty());
        assert!(found("holdfast-log", "holdfast-testkit", Some("dev")).is_empty());
        assert_eq!(found("holdfast-log", "holdfast-testkit", None).len(), 1);
    }
}
