//! Checks of the documents: links have targets, and every crate and dependency is explained.

use super::Source;
use crate::binary::root;
use anyhow::Result;

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

/// README.md has a line for each crate; docs/dependencies.md one for each outside dependency of the workspace.
pub(super) fn explained(sources: &[Source]) -> Result<Vec<String>> {
    let text = |path: &str| sources.iter().find(|s| s.path == path).map_or("", |s| s.text.as_str());
    let mut problems = Vec::new();
    for entry in std::fs::read_dir(root().join("crates"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !text("README.md").contains(&format!("| `{name}` |")) {
            problems.push(format!("README.md: no line for crates/{name} in the table of crates"));
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
    fn dependencies_of_a_manifest() {
        let text = "[workspace.dependencies]\n# ours\nholdfast-types = { path = \"x\" }\nanyhow = \"1\"\n\n[workspace.lints]\nx = 1";
        assert_eq!(workspace_dependencies(text), ["anyhow"]);
    }
}
