//! What the program is made of: a CycloneDX 1.5 document (<https://cyclonedx.org/docs/1.5/json/>), from `cargo
//! metadata`.
//!
//! It lists the crates that are linked: normal dependencies, without those of tests, build scripts and macros.

use crate::release::Release;
use crate::sums;
use anyhow::{Context, Result};
use holdfast_chore::binary::{cargo, root};
use holdfast_chore::cmd::Cmd;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// A crate that is linked into the program.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Crate {
    pub name: String,
    pub version: String,
    /// An SPDX expression.
    pub license: Option<String>,
    /// Where its sources are.
    pub folder: PathBuf,
    /// SHA-256 of its archive, of Cargo.lock. Our own crates have none.
    pub checksum: Option<String>,
    /// The crates that it uses, as [`Crate::purl`] names them.
    pub uses: Vec<String>,
}

impl Crate {
    /// Its name in all ecosystems (<https://github.com/package-url/purl-spec>).
    pub fn purl(&self) -> String {
        purl(&self.name, &self.version)
    }
}

fn purl(name: &str, version: &str) -> String {
    // A `+` in a version has a meaning in URLs.
    format!("pkg:cargo/{name}@{}", version.replace('+', "%2B"))
}

/// The crates of the program in this tree, sorted. Fails when cargo says nothing, or something that is not understood.
pub fn crates(release: &Release) -> Result<Vec<Crate>> {
    let target = format!("{}-unknown-linux-gnu", release.arch.rpm);
    let asked = ["metadata", "--format-version=1", "--locked", "--filter-platform", &target];
    let said = Cmd::of(cargo()).args(asked).dir(root()).out()?;
    let lock = std::fs::read_to_string(root().join("Cargo.lock")).context("Cargo.lock")?;
    linked(&serde_json::from_str::<Value>(&said).context("cargo metadata")?, &lock)
}

fn linked(metadata: &Value, lock: &str) -> Result<Vec<Crate>> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let packages: BTreeMap<String, Value> =
        list(&metadata["packages"]).into_iter().map(|one| (text(&one["id"]), one)).collect();
    let nodes: BTreeMap<String, Value> =
        list(&metadata["resolve"]["nodes"]).into_iter().map(|one| (text(&one["id"]), one)).collect();
    let sums = checksums(lock);
    let first = packages.iter().find(|(_, one)| one["name"] == "holdfast" && one["source"].is_null());
    let first = first.context("cargo metadata names no package holdfast of this tree")?.0.clone();
    let (mut found, mut seen, mut left) = (Vec::new(), BTreeSet::from([first.clone()]), vec![first]);
    while let Some(id) = left.pop() {
        let package = packages.get(&id).with_context(|| format!("cargo metadata: no package {id}"))?;
        let node = nodes.get(&id).with_context(|| format!("cargo metadata: no node {id}"))?;
        let mut uses = Vec::new();
        for dependency in list(&node["deps"]) {
            let to = text(&dependency["pkg"]);
            let other = packages.get(&to).with_context(|| format!("cargo metadata: no package {to}"))?;
            let normal = list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
            let targets = list(&other["targets"]);
            let is_macro = targets.iter().any(|target| list(&target["kind"]).contains(&json!("proc-macro")));
            if !normal || is_macro {
                continue;
            }
            uses.push(purl(&text(&other["name"]), &text(&other["version"])));
            if seen.insert(to.clone()) {
                left.push(to);
            }
        }
        uses.sort();
        let (name, version) = (text(&package["name"]), text(&package["version"]));
        let folder = PathBuf::from(text(&package["manifest_path"])).parent().map(PathBuf::from).unwrap_or_default();
        let license = package["license"].as_str().map(str::to_owned);
        let checksum = sums.get(&(name.clone(), version.clone())).cloned();
        found.push(Crate { name, version, license, folder, checksum, uses });
    }
    found.sort();
    Ok(found)
}

/// The checksums in a Cargo.lock, by name and version.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let mut found = BTreeMap::new();
    for package in lock.split("[[package]]").skip(1) {
        let of = |key: &str| {
            let mut lines = package.lines();
            let value = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \"")?.strip_suffix('"'));
            value.map(str::to_owned)
        };
        if let (Some(name), Some(version), Some(sum)) = (of("name"), of("version"), of("checksum")) {
            found.insert((name, version), sum);
        }
    }
    found
}

/// The document. Fails when the time cannot be formatted.
pub fn document(release: &Release, crates: &[Crate]) -> Result<String> {
    let component = |one: &Crate| {
        let mut component = json!({
            "type": "library", "bom-ref": one.purl(), "name": one.name, "version": one.version, "purl": one.purl(),
        });
        if let Some(license) = &one.license {
            // Old crates write a slash for OR.
            component["licenses"] = json!([{ "expression": license.replace('/', " OR ") }]);
        }
        if let Some(sum) = &one.checksum {
            component["hashes"] = json!([{ "alg": "SHA-256", "content": sum }]);
        }
        component
    };
    let components: Vec<Value> = crates.iter().filter(|one| one.name != "holdfast").map(component).collect();
    let uses = |one: &Crate| json!({ "ref": one.purl(), "dependsOn": one.uses });
    let dependencies: Vec<Value> = crates.iter().map(uses).collect();
    let of_program = crates.iter().find(|one| one.name == "holdfast").context("no crate holdfast")?;
    let mut document = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": release.date_json()?,
            "component": {
                "type": "application", "bom-ref": of_program.purl(), "name": "holdfast", "version": release.version,
                "purl": of_program.purl(), "licenses": [{ "license": { "id": "Apache-2.0" } }],
            },
        },
        "components": components,
        "dependencies": dependencies,
    });
    document["serialNumber"] = json!(serial(&document.to_string()));
    Ok(format!("{}\n", serde_json::to_string_pretty(&document)?))
}

/// A UUID of version 8 (RFC 9562, section 5.8) from the content: a drawn one would differ with each run.
fn serial(content: &str) -> String {
    let digest = sums::of_bytes(content.as_bytes());
    format!(
        "urn:uuid:{}-{}-8{}-a{}-{}",
        &digest[..8],
        &digest[8..12],
        &digest[12..15],
        &digest[15..18],
        &digest[18..30]
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::release::Arch;

    fn package(name: &str, kind: &str, source: Option<&str>) -> Value {
        json!({
            "id": format!("{name}#1"), "name": name, "version": "1.0.0+up", "license": "MIT/Apache-2.0",
            "source": source, "manifest_path": format!("/src/{name}/Cargo.toml"), "targets": [{ "kind": [kind] }],
        })
    }

    fn metadata() -> Value {
        let dep = |name: &str, kind: Value| json!({ "pkg": format!("{name}#1"), "dep_kinds": [{ "kind": kind }] });
        let node = |name: &str, deps: Vec<Value>| json!({ "id": format!("{name}#1"), "deps": deps });
        let outside = Some("registry");
        json!({
            "packages": [
                package("holdfast", "bin", None), package("bytes", "lib", outside), package("cc", "lib", outside),
                package("macros", "proc-macro", outside), package("tempfile", "lib", outside),
                package("other", "lib", outside),
            ],
            "resolve": { "nodes": [
                node("holdfast", vec![
                    dep("bytes", Value::Null), dep("cc", json!("build")), dep("macros", Value::Null),
                    dep("tempfile", json!("dev")),
                ]),
                node("bytes", vec![]), node("cc", vec![]), node("macros", vec![dep("other", Value::Null)]),
                node("tempfile", vec![]), node("other", vec![]),
            ] },
        })
    }

    const LOCK: &str = "
[[package]]
name = \"bytes\"
version = \"1.0.0+up\"
checksum = \"aabb\"
dependencies = [
 \"name\",
]

[[package]]
name = \"holdfast\"
version = \"1.0.0+up\"
";

    #[test]
    fn what_is_linked_is_listed_and_nothing_else() {
        let found = linked(&metadata(), LOCK).unwrap();
        let names: Vec<&str> = found.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["bytes", "holdfast"], "nothing of tests, build scripts and macros");
        assert_eq!(found[0].checksum.as_deref(), Some("aabb"));
        assert_eq!(found[1].checksum, None);
        assert_eq!(found[1].uses, ["pkg:cargo/bytes@1.0.0%2Bup"]);
    }

    #[test]
    fn the_document_is_the_same_each_time() {
        let release = Release { version: "0.1.0".into(), epoch: 0, arch: Arch { debian: "amd64", rpm: "x86_64" } };
        let crates = linked(&metadata(), LOCK).unwrap();
        let text = document(&release, &crates).unwrap();
        assert_eq!(text, document(&release, &crates).unwrap());
        let read: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read["components"].as_array().unwrap().len(), 1);
        assert_eq!(read["components"][0]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(read["metadata"]["timestamp"], "1970-01-01T00:00:00Z");
        let serial = read["serialNumber"].as_str().unwrap();
        assert_eq!(serial.len(), "urn:uuid:".len() + 36, "{serial}");
        assert_eq!(read["dependencies"][1]["dependsOn"][0], "pkg:cargo/bytes@1.0.0%2Bup");
    }
}
