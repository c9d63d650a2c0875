//! The probes in the sources: `reached!("lease: another term's vote ends it")` (ADR 0039).

use super::Source;
use std::collections::BTreeMap;

/// A longer name makes the table hard to read.
const NAME_MAX: usize = 90;

/// A probe in the sources.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Probe {
    pub name: String,
    /// Its file, from the top of the tree.
    pub file: String,
}

/// The text before a probe's name. Built from halves, so that it does not find itself.
const BEFORE: &str = concat!("reached", "!(");

/// All probes of the product, sorted, and what is wrong with them.
pub(super) fn all(sources: &[Source]) -> (Vec<Probe>, Vec<String>) {
    let (mut probes, mut problems) = (Vec::new(), Vec::new());
    for source in sources.iter().filter(|s| is_of_the_product(&s.path)) {
        for (at, _) in source.text.match_indices(BEFORE) {
            let line = source.text[..at].rsplit('\n').next().unwrap_or_default();
            if line.contains("//") {
                continue;
            }
            match name(&source.text[at + BEFORE.len()..]) {
                Ok(name) => probes.push(Probe { name: name.to_owned(), file: source.path.clone() }),
                Err(why) => problems.push(format!("{}:{}: {why}", source.path, source.text[..at].lines().count())),
            }
        }
    }
    let mut files: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    probes.iter().for_each(|probe| files.entry(&probe.name).or_default().push(&probe.file));
    for (name, files) in files.into_iter().filter(|(_, files)| files.len() > 1) {
        problems.push(format!(
            "{name:?} is the name of {} probes ({}): give each its own",
            files.len(),
            files.join(", ")
        ));
    }
    probes.sort();
    (probes, problems)
}

/// What is wrong with the probes in the sources.
pub(super) fn named(sources: &[Source]) -> Vec<String> {
    all(sources).1
}

fn is_of_the_product(path: &str) -> bool {
    path.starts_with("crates/")
        && path.ends_with(".rs")
        && path.contains("/src/")
        && !path.starts_with("crates/reached/")
}

/// The name of a probe, from the text behind its `(`.
fn name(rest: &str) -> Result<&str, String> {
    let name = rest.trim_start().strip_prefix('"').and_then(|rest| rest.split_once('"')).map(|(name, _)| name);
    let name = name.ok_or("found a probe without a name, expected its name in quotes")?;
    let fine = |c: char| c.is_ascii() && !c.is_ascii_control() && !"\"\\|".contains(c);
    if name.len() > NAME_MAX || !name.chars().all(fine) {
        return Err(format!(
            "found the probe {name:?}, expected at most {NAME_MAX} ASCII characters without quotes, backslashes and |"
        ));
    }
    match name.split_once(": ") {
        Some((room, what)) if !room.is_empty() && !what.is_empty() => Ok(name),
        _ => Err(format!("found the probe {name:?}, expected \"room: what happened\"")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> (Vec<String>, Vec<String>) {
        let text = text.replace("PROBE", BEFORE);
        let paths = ["crates/set/src/gate.rs", "crates/set/tests/gate.rs", "xtask/src/main.rs"];
        let sources = paths.map(|path| Source { path: path.into(), text: text.clone() });
        let (probes, problems) = all(&sources);
        (probes.into_iter().map(|probe| probe.name).collect(), problems)
    }

    #[test]
    fn probes_are_read_from_sources_of_the_product() {
        let (names, problems) =
            found("  x => { holdfast_reached::PROBE\"gate: closed\"); return Err(Closed) }\n// PROBE\n");
        assert_eq!((names, problems), (vec!["gate: closed".to_owned()], vec![]));
    }

    #[test]
    fn a_bad_name_and_a_name_that_is_there_twice_are_reported() {
        for bad in ["PROBE name);", "PROBE\"closed\");", "PROBE\"gate: a|b\");", "PROBE\": closed\");"] {
            assert_eq!(found(bad).1.len(), 1, "{bad}");
        }
        let (names, problems) = found("PROBE\"gate: closed\");\nPROBE\"gate: closed\");\n");
        assert_eq!(names.len(), 2);
        assert!(problems.len() == 1 && problems[0].contains("2 probes"), "{problems:?}");
    }
}
