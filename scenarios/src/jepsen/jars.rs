//! The Java class path: from Maven by `jepsen/pom.xml`, or given. Every jar that is listed in `jepsen/jars.sha256` must
//! have that digest.

use crate::binary::root;
use crate::cmd::cmd;
use crate::say::{note, step};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::path::Path;

/// The version is pinned here, because only this command line uses it.
const PLUGIN: &str = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:build-classpath";

/// Returns a class path that contains Jepsen. Fails when Maven cannot get the jars, or a digest differs.
pub fn class_path(given: Option<&Path>, dir: &Path) -> Result<String> {
    let text = if let Some(file) = given {
        std::fs::read_to_string(file).with_context(|| file.display().to_string())?
    } else {
        step("Getting Jepsen's jars (Maven Central, Clojars)");
        let out = dir.join("classpath.txt");
        // Strict: Maven rejects a download whose checksum differs from the repository's.
        let maven = cmd("mvn").args(["-q", "-B", "--strict-checksums", "-f"]).arg(root().join("jepsen/pom.xml"));
        maven.arg(PLUGIN).arg(format!("-Dmdep.outputFile={}", out.display())).run().context(
            "Maven cannot download Jepsen's jars; if Clojars cannot be reached, give a class path with --classpath FILE",
        )?;
        std::fs::read_to_string(&out).with_context(|| out.display().to_string())?
    };
    let text = text.trim();
    let jars: Vec<&str> = text.split(':').filter(|p| p.ends_with(".jar")).collect();
    anyhow::ensure!(!text.is_empty(), "the class path is empty");
    let pinned = parse(&std::fs::read_to_string(root().join("jepsen/jars.sha256"))?);
    let found = if jars.is_empty() { String::new() } else { cmd("sha256sum").arg("--").args(&jars).out()? };
    let found = parse(&found);
    let fresh = check(&pinned, &found)?;
    note(format!("{} jars have the digests of jepsen/jars.sha256", found.len() - fresh.len()));
    if !fresh.is_empty() {
        let file = dir.join("jars-without-digest.sha256");
        let lines: Vec<String> = fresh.iter().map(|(jar, digest)| format!("{digest}  {jar}\n")).collect();
        std::fs::write(&file, lines.concat())?;
        note(format!("{} jars are not in it; to pin them, append {}", fresh.len(), file.display()));
    }
    Ok(text.to_owned())
}

/// `DIGEST  PATH` lines as file name → digest.
fn parse(text: &str) -> BTreeMap<String, String> {
    let lines = text.lines().filter(|l| !l.starts_with('#')).filter_map(|l| l.split_once("  "));
    lines.map(|(digest, path)| (path.rsplit('/').next().unwrap_or(path).to_owned(), digest.to_owned())).collect()
}

/// Returns the jars that are not pinned.
fn check(pinned: &BTreeMap<String, String>, found: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>> {
    let mut fresh = BTreeMap::new();
    for (jar, digest) in found {
        match pinned.get(jar) {
            Some(expected) => anyhow::ensure!(
                expected == digest,
                "{jar}: found SHA-256 {digest}, expected {expected} (jepsen/jars.sha256); delete it from the local Maven repository and try again"
            ),
            None => drop(fresh.insert(jar.clone(), digest.clone())),
        }
    }
    Ok(fresh)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_jar_is_refused_and_an_unknown_one_is_named() {
        let pinned = parse("# a comment\naa  one-1.jar\nbb  two-2.jar\n");
        let fresh = check(&pinned, &parse("aa  /some/where/one-1.jar\ncc  /some/where/three-3.jar\n"));
        assert_eq!(fresh.ok().map(|f| f.into_keys().collect::<Vec<_>>()), Some(vec!["three-3.jar".to_owned()]));
        assert!(check(&pinned, &parse("xx  /some/where/two-2.jar\n")).is_err());
    }
}
