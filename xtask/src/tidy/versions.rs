//! The Jepsen test's dependencies are listed three times: for Leiningen (`jepsen/project.clj`), the Clojure command
//! line (`jepsen/deps.edn`) and
//! Maven (`jepsen/pom.xml`). `jepsen/jars.sha256` has the digests. Only one of the lists is used here, so this check
//! finds differences.

use super::Source;
use std::collections::BTreeMap;

/// `GROUP/ARTIFACT` → version.
type Versions = BTreeMap<String, String>;

/// Groups from Clojars: their jars are pinned by version, not by digest.
const CLOJARS: &[&str] = &["jepsen", "elle"];

/// Checks that project.clj and deps.edn have the same dependencies, that pom.xml has the same versions and no further
/// direct dependency, and that each jar of Maven Central has a digest.
pub(super) fn agree(sources: &[Source]) -> Vec<String> {
    let text = |name: &str| sources.iter().find(|s| s.path == format!("jepsen/{name}")).map_or("", |s| s.text.as_str());
    let (project, deps, pom) = (leiningen(text("project.clj")), clojure(text("deps.edn")), text("pom.xml"));
    let mut problems = Vec::new();
    if project.is_empty() || deps.is_empty() || maven(pom).is_empty() {
        problems
            .push("jepsen: found no dependencies in project.clj, deps.edn or pom.xml; expected some in each".into());
    }
    differences(("project.clj", &project), ("deps.edn", &deps), &mut problems);
    let managed: Versions = maven(pom).into_iter().filter_map(|(name, version)| Some((name, version?))).collect();
    for (name, version) in &project {
        if managed.get(name).is_some_and(|found| found != version) {
            problems
                .push(format!("jepsen/pom.xml: {name}: found {}, expected {version} as in project.clj", managed[name]));
        }
    }
    let direct = pom.split("<dependencyManagement>").next().unwrap_or_default();
    for (name, _) in maven(direct) {
        if !project.contains_key(&name) {
            problems.push(format!("jepsen/project.clj: {name} is not there, and pom.xml has it"));
        }
        if !managed.contains_key(&name) {
            problems.push(format!("jepsen/pom.xml: {name} has no version"));
        }
    }
    let digests: Vec<&str> = text("jars.sha256")
        .lines()
        .filter(|l| !l.starts_with('#'))
        .filter_map(|l| l.split_whitespace().nth(1))
        .collect();
    let central = managed.iter().filter(|(name, _)| !CLOJARS.iter().any(|g| name.split('/').next() == Some(g)));
    let jars: Vec<String> =
        central.map(|(name, version)| format!("{}-{version}.jar", name.rsplit('/').next().unwrap_or(name))).collect();
    for jar in jars.iter().filter(|j| !digests.contains(&j.as_str())) {
        problems.push(format!("jepsen/jars.sha256: no digest of {jar}, which pom.xml names"));
    }
    for digest in digests.iter().filter(|d| !jars.iter().any(|j| j == *d)) {
        problems.push(format!("jepsen/jars.sha256: {digest} is not what pom.xml names"));
    }
    problems
}

fn differences(left: (&str, &Versions), right: (&str, &Versions), problems: &mut Vec<String>) {
    for (name, version) in left.1 {
        match right.1.get(name) {
            None => problems.push(format!("jepsen/{}: {name} is not there, and {} has it", right.0, left.0)),
            Some(found) if found != version => {
                problems
                    .push(format!("jepsen/{}: {name}: found {found}, expected {version} as in {}", right.0, left.0));
            }
            Some(_) => {}
        }
    }
    for name in right.1.keys().filter(|name| !left.1.contains_key(*name)) {
        problems.push(format!("jepsen/{}: {name} is not there, and {} has it", left.0, right.0));
    }
}

/// `NAME` alone is short for `NAME/NAME`.
fn full(name: &str) -> String {
    if name.contains('/') { name.into() } else { format!("{name}/{name}") }
}

/// `:dependencies [[GROUP/ARTIFACT "VERSION" ...] ...]`.
fn leiningen(text: &str) -> Versions {
    let section = text.split(":dependencies").nth(1).unwrap_or_default();
    let each = section.split('[').filter_map(|piece| piece.split_once(" \""));
    let each =
        each.filter(|(name, _)| !name.is_empty() && !name.contains(|c: char| c.is_whitespace() || "\":]".contains(c)));
    each.filter_map(|(name, rest)| Some((full(name), rest.split_once('"')?.0.to_owned()))).collect()
}

/// `GROUP/ARTIFACT {:mvn/version "VERSION" ...}`.
fn clojure(text: &str) -> Versions {
    const MARK: &str = "{:mvn/version \"";
    let of = |(at, _): (usize, &str)| {
        let name = text[..at].split_whitespace().next_back()?.trim_start_matches('{');
        Some((full(name), text[at + MARK.len()..].split_once('"')?.0.to_owned()))
    };
    text.match_indices(MARK).filter_map(of).collect()
}

/// Each `<dependency>`, with its version if it has one.
fn maven(text: &str) -> Vec<(String, Option<String>)> {
    let of = |block: &str| {
        // An exclusion has a name too; skip it.
        let own = block.split("</dependency>").next()?.split("<exclusions>").next()?;
        let field = |tag: &str| Some(own.split_once(&format!("<{tag}>"))?.1.split_once('<')?.0.to_owned());
        Some((format!("{}/{}", field("groupId")?, field("artifactId")?), field("version")))
    };
    text.split("<dependency>").skip(1).filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROJECT: &str = r#"(defproject x "0.1.0" :dependencies [[a/b "1"] [jepsen "2" :exclusions [c/d]] [e/f "3"]] :main m :jvm-opts ["-Xmx3g" "-D"])"#;
    const DEPS: &str =
        r#"{:deps {a/b {:mvn/version "1"} jepsen/jepsen {:mvn/version "2" :exclusions [c/d]} e/f {:mvn/version "3"}}}"#;
    const POM: &str = "<dependency><groupId>a</groupId><artifactId>b</artifactId></dependency>
        <dependency><groupId>jepsen</groupId><artifactId>jepsen</artifactId><version>2</version>
          <exclusions><exclusion><groupId>c</groupId><artifactId>d</artifactId></exclusion></exclusions></dependency>
        <dependencyManagement><dependency><groupId>a</groupId><artifactId>b</artifactId><version>1</version></dependency></dependencyManagement>";
    const JARS: &str = "# digests\n00  b-1.jar\n";

    fn found(project: &str, deps: &str, pom: &str, jars: &str) -> Vec<String> {
        let of = |name: &str, text: &str| Source { path: format!("jepsen/{name}"), text: text.into() };
        agree(&[of("project.clj", project), of("deps.edn", deps), of("pom.xml", pom), of("jars.sha256", jars)])
    }

    #[test]
    fn the_same_three_times_is_fine() {
        assert_eq!(found(PROJECT, DEPS, POM, JARS), Vec::<String>::new());
    }

    #[test]
    fn each_difference_is_found() {
        let one = |project: &str, deps: &str, pom: &str, jars: &str, expected: &str| {
            let problems = found(project, deps, pom, jars);
            assert!(problems.iter().any(|p| p.contains(expected)), "{problems:?}");
        };
        let other = |text: &str, from: &str, to: &str| {
            assert!(text.contains(from));
            text.replacen(from, to, 1)
        };
        one(&other(PROJECT, r#""3""#, r#""4""#), DEPS, POM, JARS, "deps.edn: e/f: found 3, expected 4");
        one(PROJECT, &other(DEPS, r#"e/f {:mvn/version "3"}"#, ""), POM, JARS, "deps.edn: e/f is not there");
        one(&other(PROJECT, r#"[e/f "3"]"#, ""), DEPS, POM, JARS, "project.clj: e/f is not there");
        one(
            PROJECT,
            DEPS,
            &other(POM, "<version>2<", "<version>9<"),
            JARS,
            "pom.xml: jepsen/jepsen: found 9, expected 2",
        );
        one(PROJECT, DEPS, &other(POM, "<version>1</version>", ""), JARS, "pom.xml: a/b has no version");
        one(PROJECT, DEPS, &other(POM, "<artifactId>b<", "<artifactId>z<"), JARS, "project.clj: a/z is not there");
        one(PROJECT, DEPS, POM, "00  b-2.jar", "no digest of b-1.jar");
        one(PROJECT, DEPS, POM, "00  b-2.jar", "b-2.jar is not what pom.xml names");
        one("", "", "", "", "found no dependencies");
    }
}
