//! Golden stories: `stories/*.story` hold commands and, below `----`, their answers. `HOLDFAST_GOLDEN_UPDATE=1`
//! rewrites the answers; review the diff like code.
#![expect(clippy::disallowed_methods, reason = "the runner reads and, when asked, rewrites the story files")]

mod world;

use std::fmt::Write;
use std::path::Path;

/// Runs a story's commands and returns the whole file with the actual answers.
fn retell(text: &str) -> String {
    let mut world = world::World::default();
    let mut told = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line == "----" {
            // Old answers end at the first empty line; the new ones were written at their command.
            lines.by_ref().find(|line| line.is_empty());
            continue;
        }
        writeln!(told, "{line}").unwrap();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let mut answers = vec![world.run(line)];
        for more in lines.by_ref() {
            if more == "----" {
                break;
            }
            writeln!(told, "{more}").unwrap();
            answers.push(world.run(more));
        }
        lines.by_ref().find(|line| line.is_empty());
        writeln!(told, "----\n{}\n", answers.concat().trim_end()).unwrap();
    }
    format!("{}\n", told.trim_end())
}

#[test]
fn stories_come_out_as_written() {
    let update = std::env::var_os("HOLDFAST_GOLDEN_UPDATE").is_some_and(|value| value == "1");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("stories");
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "story"));
    paths.sort();
    assert!(paths.len() >= 10, "only {} stories found", paths.len());
    let mut wrong = Vec::new();
    for path in paths {
        let found = std::fs::read_to_string(&path).unwrap();
        let expected = retell(&found);
        if found == expected {
            continue;
        }
        if update {
            std::fs::write(&path, expected).unwrap();
            continue;
        }
        let mut lines = found.lines().zip(expected.lines()).enumerate();
        if let Some((number, (found, now))) = lines.find(|(_, (found, now))| found != now) {
            wrong.push(format!("{}:{}\n  written  {found}\n  answered {now}", path.display(), number + 1));
        }
        if found.lines().count() != expected.lines().count() {
            wrong.push(format!("{}: the number of lines differs", path.display()));
        }
    }
    assert!(wrong.is_empty(), "stories with other answers than expected:\n{}", wrong.join("\n"));
}
