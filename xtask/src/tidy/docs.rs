//! Checks of the documents: links have targets, pages are found, and every crate and dependency is explained.

use super::Source;
use crate::binary::root;
use anyhow::Result;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Relative links in Markdown files must lead to a file or folder of the tree.
pub(super) fn links(sources: &[Source]) -> Vec<String> {
    let mut problems = Vec::new();
    for source in sources.iter().filter(|s| s.path.ends_with(".md")) {
        let here = root().join(&source.path);
        let Some(dir) = here.parent() else { continue };
        for (number, line) in source.text.lines().enumerate() {
            for target in targets(line) {
                let file = target.split('#').next().unwrap_or_default();
                if !file.is_empty() && !dir.join(file).exists() {
                    problems.push(format!("{}:{}: no such file: {target}", source.path, number + 1));
                }
            }
        }
    }
    problems
}

/// Targets of inline links, without those outside of the tree.
fn targets(line: &str) -> Vec<&str> {
    let ends = line.match_indices("](").filter_map(|(at, _)| line[at + 2..].split(')').next());
    ends.filter(|t| !t.contains("://") && !t.starts_with("mailto:")).collect()
}

/// Pages that docs/README.md lists by their folder.
const BY_FOLDER: &str = "docs/adr/";

/// A link to `FILE.md#PLACE` must lead to a heading of that page.
pub(super) fn places(sources: &[Source]) -> Vec<String> {
    let pages: Vec<&Source> = sources.iter().filter(|s| s.path.ends_with(".md")).collect();
    let found: BTreeMap<PathBuf, BTreeSet<String>> =
        pages.iter().map(|page| (PathBuf::from(&page.path), headings(&page.text))).collect();
    let mut problems = Vec::new();
    for page in pages {
        for (number, line) in page.text.lines().enumerate() {
            for target in targets(line) {
                let Some((file, place)) = target.split_once('#') else { continue };
                let path = if file.is_empty() { PathBuf::from(&page.path) } else { beside(&page.path, file) };
                if found.get(&path).is_some_and(|places| !places.contains(place)) {
                    problems.push(format!("{}:{}: no such heading: {target}", page.path, number + 1));
                }
            }
        }
    }
    problems
}

/// The path of `file`, named in `page`, from the top of the tree.
fn beside(page: &str, file: &str) -> PathBuf {
    let mut path = PathBuf::from(page);
    path.pop();
    for part in file.split('/') {
        match part {
            "." => {}
            ".." => {
                path.pop();
            }
            part => path.push(part),
        }
    }
    path
}

/// The places of a page, as links name them: its headings in small letters, with `-` for each space and without other
/// signs. The second heading of a name has `-1` behind it.
fn headings(text: &str) -> BTreeSet<String> {
    let (mut places, mut fenced) = (BTreeSet::new(), false);
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        let heading = line.trim_start_matches('#');
        if fenced || heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        let name: String = kept.map(|c| if c == ' ' { '-' } else { c }).flat_map(char::to_lowercase).collect();
        let again = (1..).map(|number| format!("{name}-{number}"));
        let free = std::iter::once(name.clone()).chain(again).find(|name| !places.contains(name));
        places.extend(free);
    }
    places
}

/// The list of pages.
const INDEX: &str = "docs/README.md";

/// The chapters of the book, as mdBook reads them.
const SUMMARY: &str = "docs/SUMMARY.md";

/// The pages of docs/.
fn pages(sources: &[Source]) -> impl Iterator<Item = &str> {
    let paths = sources.iter().map(|s| s.path.as_str());
    paths.filter(|p| p.starts_with("docs/") && p.ends_with(".md") && *p != SUMMARY)
}

/// docs/README.md has a link to each page: what nothing leads to is read by nobody.
pub(super) fn listed(sources: &[Source]) -> Vec<String> {
    let index = sources.iter().find(|s| s.path == INDEX).map_or("", |s| s.text.as_str());
    let files = index.lines().flat_map(targets).filter_map(|target| target.split('#').next());
    let links: BTreeSet<PathBuf> = files.map(|file| beside(INDEX, file)).collect();
    let missing = pages(sources).filter(|p| *p != INDEX && !p.starts_with(BY_FOLDER) && !links.contains(Path::new(p)));
    missing.map(|page| format!("{INDEX}: no link to {page}")).collect()
}

/// docs/SUMMARY.md has each page of docs/ once and nothing else: mdBook leaves out what it does not name.
pub(super) fn chapters(sources: &[Source]) -> Vec<String> {
    let summary = sources.iter().find(|s| s.path == SUMMARY).map_or("", |s| s.text.as_str());
    let mut named: BTreeMap<PathBuf, u32> = BTreeMap::new();
    for target in summary.lines().flat_map(targets) {
        *named.entry(beside(SUMMARY, target)).or_default() += 1;
    }
    let mut problems = Vec::new();
    for page in pages(sources) {
        match named.remove(Path::new(page)) {
            Some(1) => {}
            times => problems.push(format!("{SUMMARY}: {page}: found {} times, expected once", times.unwrap_or(0))),
        }
    }
    problems.extend(named.keys().map(|path| format!("{SUMMARY}: no such page of docs/: {}", path.display())));
    problems
}

/// ARCHITECTURE.md has a line for each crate; docs/dependencies.md one for each outside dependency of the workspace.
pub(super) fn explained(sources: &[Source]) -> Result<Vec<String>> {
    let text = |path: &str| sources.iter().find(|s| s.path == path).map_or("", |s| s.text.as_str());
    let mut problems = Vec::new();
    for entry in std::fs::read_dir(root().join("crates"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !text("ARCHITECTURE.md").contains(&format!("| `{name}` |")) {
            problems.push(format!("ARCHITECTURE.md: no line for crates/{name} in the table of crates"));
        }
    }
    for name in workspace_dependencies(text("Cargo.toml")) {
        if !text("docs/dependencies.md").contains(&format!("`{name}`")) {
            problems.push(format!("docs/dependencies.md: says nothing about {name}"));
        }
    }
    Ok(problems)
}

fn workspace_dependencies(manifest: &str) -> Vec<&str> {
    let section = manifest.split("[workspace.dependencies]").nth(1).unwrap_or_default();
    let section = section.split("\n[").next().unwrap_or_default();
    let names =
        section.lines().filter(|l| !l.starts_with('#')).filter_map(|l| l.split_once(" = ")).map(|(name, _)| name);
    names.filter(|name| !name.starts_with("holdfast-")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_in_a_line() {
        assert_eq!(targets("see [a](docs/a.md) and [b](https://b.org) and [c](d.md#e)"), ["docs/a.md", "d.md#e"]);
        assert!(targets("no link (here)").is_empty());
    }

    #[test]
    fn a_link_to_nowhere_is_found() {
        let source = |text: &str| vec![Source { path: "x.md".into(), text: text.into() }];
        assert_eq!(links(&source("[a](no/such/file.md)")).len(), 1);
        assert!(links(&source("[a](Cargo.toml)")).is_empty());
    }

    #[test]
    fn a_link_to_no_heading_is_found() {
        let text = "# One page\n## `add`, and more: it's\n```\n# no heading\n```\n## Twice\n## Twice\n";
        let expected = ["one-page", "add-and-more-its", "twice", "twice-1"];
        assert_eq!(headings(text), BTreeSet::from(expected.map(String::from)));
        let page = |path: &str, text: &str| Source { path: path.into(), text: text.into() };
        let of = |link: &str| places(&[page("docs/a.md", link), page("b.md", "# Here\n")]).len();
        let found = ["[b](../b.md#here)", "[b](../b.md#there)", "[a](#here)", "[c](../c.rs#here)"].map(of);
        assert_eq!(found, [0, 1, 1, 0]);
    }

    #[test]
    fn a_page_that_nothing_leads_to_is_found() {
        let page = |path: &str, text: &str| Source { path: path.into(), text: text.into() };
        let pages = ["docs/a.md", "docs/b/c.md", "docs/adr/0001.md", "docs/d.md"].map(|path| page(path, ""));
        let index = page("docs/README.md", "[a](a.md#x), [c](b/c.md)\n");
        let found = listed(&pages.into_iter().chain([index]).collect::<Vec<_>>());
        assert_eq!(found, ["docs/README.md: no link to docs/d.md"]);
    }

    #[test]
    fn a_page_that_is_not_in_the_book_once_is_found() {
        let page = |path: &str, text: &str| Source { path: path.into(), text: text.into() };
        let pages = ["docs/README.md", "docs/a.md", "docs/b/c.md", "docs/d.md", "e.md"].map(|path| page(path, ""));
        let text = "# Summary\n\n[All](README.md)\n\n- [a](a.md)\n- [c](b/c.md)\n- [c](b/c.md)\n- [e](../e.md)\n";
        let found = chapters(&pages.into_iter().chain([page(SUMMARY, text)]).collect::<Vec<_>>());
        let expected = [
            "docs/SUMMARY.md: docs/b/c.md: found 2 times, expected once",
            "docs/SUMMARY.md: docs/d.md: found 0 times, expected once",
            "docs/SUMMARY.md: no such page of docs/: e.md",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn dependencies_of_a_manifest() {
        let text = "[workspace.dependencies]\n# ours\nholdfast-types = { path = \"x\" }\nanyhow = \"1\"\n\n[workspace.lints]\nx = 1";
        assert_eq!(workspace_dependencies(text), ["anyhow"]);
    }
}
