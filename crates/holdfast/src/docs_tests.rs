//! The documents: each command that a reader may copy is a command line of this program, and the settings and the plan
//! on the first page are accepted.

use super::*;
use crate::command::bootstrap::Plan;
use clap::error::ErrorKind;
use holdfast_gateway::config::GatewayConfig;
use std::path::Path;

/// Where pages are: files, and folders with all below them. Chores (`cargo xtask`) are tried by their own programs.
const PAGES: &[&str] = &["README.md", "CONTRIBUTING.md", "docs", "deploy"];

/// Also tells what was done, with letters for numbers.
const MEASURED: &str = "performance.md";

const START: &str = "docs/start.md";

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn page(path: &str) -> String {
    std::fs::read_to_string(top().join(path)).unwrap()
}

/// Paths of all pages, from the top of the tree.
fn pages() -> Vec<String> {
    let mut pages = Vec::new();
    let mut places: Vec<String> = PAGES.iter().map(|place| (*place).to_owned()).collect();
    while let Some(place) = places.pop() {
        if !top().join(&place).is_dir() {
            if place.ends_with(".md") && !place.ends_with(MEASURED) {
                pages.push(place);
            }
            continue;
        }
        for entry in std::fs::read_dir(top().join(&place)).unwrap() {
            places.push(format!("{place}/{}", entry.unwrap().file_name().to_str().unwrap()));
        }
    }
    pages
}

/// Lines of a page's code: between fences, or indented by four. A line that ends in `\` goes on.
fn code(text: &str) -> Vec<String> {
    let (mut lines, mut fenced, mut goes_on) = (Vec::<String>::new(), false, false);
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if fenced || line.starts_with("    ") {
            let (piece, next) = line.strip_suffix('\\').map_or((line, false), |piece| (piece, true));
            match lines.last_mut().filter(|_| goes_on) {
                Some(last) => last.push_str(piece),
                None => lines.push(piece.to_owned()),
            }
            goes_on = next;
        }
    }
    lines
}

/// What stands before this program where it is not the first word: a prompt, a pipe, another program that runs it.
const BEFORE: &[&str] = &["$ holdfast ", "| holdfast ", "-- holdfast ", "sudo holdfast "];

/// The words of a command of this program, up to what the shell does with it, or what is said beside it.
fn words(line: &str) -> Option<Vec<String>> {
    let later = || BEFORE.iter().find_map(|before| Some(line.split_once(before)?.1));
    let command = line.trim_start().strip_prefix("holdfast ").or_else(later)?;
    // A drawing, or a function of the shell that gets the command.
    if command.starts_with('─') || command.contains("$@") {
        return None;
    }
    let ends = [" #", " | ", " > ", " &"].iter().filter_map(|end| command.find(end)).min();
    let (mut words, mut quote, mut inside) = (Vec::<String>::new(), None, false);
    for c in command[..ends.unwrap_or(command.len())].chars() {
        match quote {
            Some(open) if c == open => quote = None,
            None if c == '\'' || c == '"' => quote = Some(c),
            None if c == ' ' => inside = false,
            _ => {
                if !inside {
                    words.push(String::new());
                }
                inside = true;
                words.last_mut().unwrap().push(c);
            }
        }
    }
    Some(words)
}

/// Whoever copies a command from a page must not be told that there is no such option.
#[test]
fn every_command_of_the_documents_is_one_of_this_program() {
    let (mut tried, mut wrong) = (0, Vec::new());
    for path in pages() {
        for line in code(&page(&path)) {
            let Some(words) = words(&line) else { continue };
            tried += 1;
            match Cli::try_parse_from(std::iter::once("holdfast".to_owned()).chain(words)) {
                Err(error) if error.kind() != ErrorKind::DisplayHelp => wrong.push(format!("{path}: {line}: {error}")),
                _ => {}
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(tried > 90, "found {tried} commands, expected more");
}

/// The text between a line with `cat > FILE <<END` and `END`.
fn written(text: &str, file: &str) -> String {
    let (_, rest) = text.split_once(&format!("cat > {file} <<END\n")).unwrap_or_else(|| panic!("{START}: no {file}"));
    rest.split_once("\nEND\n").unwrap().0.to_owned()
}

#[test]
fn the_first_page_writes_settings_that_a_gateway_accepts() {
    let text = page(START);
    let settings = written(&text, "/etc/holdfast/gateway.toml").replace("$NAME", "g1").replace("$ADDRESS", "10.0.0.1");
    let config = GatewayConfig::parse(&settings).unwrap();
    config.validate().unwrap();
    let unit = page("deploy/systemd/holdfast-gateway.service");
    let key = config.key.file.unwrap();
    let (folder, name) = (key.parent().unwrap(), key.file_name().unwrap().to_str().unwrap());
    assert_eq!(folder, Path::new("/run/credentials/holdfast-gateway.service"));
    assert!(unit.contains(&format!("\nLoadCredential={name}:/etc/holdfast/cluster.key\n")), "{name}");
    let plan = written(&text, "cluster.toml");
    toml::from_str::<Plan>(&plan).unwrap().check().unwrap();
}
