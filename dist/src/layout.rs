//! What is in a package, and where: one table for all formats.

use crate::program::Produced;
use crate::release::Release;
use anyhow::{Context, Result};
use holdfast_chore::binary::root;
use std::path::Path;

/// A format that the table differs for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Debian and its relatives.
    Deb,
    /// Fedora, RHEL and their relatives.
    Rpm,
    /// A tarball, unpacked where one likes.
    Tar,
}

/// Where the content of an entry comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The program.
    Program,
    /// A file of the tree, by its path from the top.
    Tree(String),
    /// A text.
    Text(String),
    /// An empty folder.
    Folder,
}

/// How the package manager treats an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Plain,
    /// An administrator may change it: an upgrade keeps the changed file.
    Config,
    Doc,
}

/// A file or an empty folder of a package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its path, from the top and without a first slash.
    pub to: String,
    pub source: Source,
    pub kind: Kind,
    /// Compressed by gzip; its name then ends in `.gz`.
    pub gzip: bool,
}

/// The folder of settings and keys: for root, and for the gateway's group.
pub const SETTINGS: &str = "etc/holdfast";

/// The folder of the documents.
pub const DOCS: &str = "usr/share/doc/holdfast";

/// Units and the gateway's user, with their folders in the tree.
const UNITS: [&str; 4] = [
    "deploy/systemd/holdfast-gateway.service",
    "deploy/systemd/holdfast-agent.service",
    "deploy/systemd/holdfast-attach@.service",
    "deploy/examples/standby/holdfast-standby.service",
];

/// Examples from the tree, beside those of [`EXAMPLES`]. This unit has a path of one version of PostgreSQL in it.
const SINGLE_EXAMPLES: [&str; 3] =
    ["deploy/haproxy/haproxy.cfg", "deploy/pgbouncer/pgbouncer.ini", "deploy/systemd/holdfast-postgresql.service"];

/// Whole folders of examples.
const EXAMPLES: &str = "deploy/examples";

/// Alert rules and dashboards, put beside them.
const MONITORING: [&str; 2] = ["deploy/prometheus", "deploy/grafana"];

/// The pages: messages of the program and comments in units name them by their path in the tree.
const PAGES: &str = "docs";

fn entry(to: impl Into<String>, source: Source, kind: Kind) -> Entry {
    Entry { to: to.into(), source, kind, gzip: false }
}

fn doc(name: &str, source: Source) -> Entry {
    entry(format!("{DOCS}/{name}"), source, Kind::Doc)
}

/// The entries of a format, sorted by path. Fails when the tree cannot be read.
pub fn entries(format: Format, release: &Release, produced: &Produced, notices: &str) -> Result<Vec<Entry>> {
    let tree = |path: &str| Source::Tree(path.to_owned());
    let text = |text: &str| Source::Text(text.to_owned());
    let mut all = vec![entry("usr/bin/holdfast", Source::Program, Kind::Plain)];
    for unit in UNITS {
        all.push(entry(format!("usr/lib/systemd/system/{}", name_of(unit)), tree(unit), Kind::Plain));
    }
    all.push(entry("usr/lib/sysusers.d/holdfast.conf", tree("deploy/systemd/holdfast.conf"), Kind::Plain));
    all.push(entry("etc/logrotate.d/holdfast", tree("deploy/package/logrotate"), Kind::Config));
    if format == Format::Deb {
        let to = "etc/needrestart/conf.d/holdfast.conf";
        all.push(entry(to, tree("deploy/package/needrestart"), Kind::Config));
    }
    if format != Format::Tar {
        all.push(entry(SETTINGS, Source::Folder, Kind::Plain));
    }
    all.extend(completions(format, produced));
    for (name, page) in &produced.pages {
        let to = format!("usr/share/man/man1/{name}");
        all.push(Entry { to, source: text(page), kind: Kind::Doc, gzip: true });
    }
    for (name, sample) in &produced.samples {
        all.push(doc(&format!("examples/{name}"), text(sample)));
    }
    for path in SINGLE_EXAMPLES {
        all.push(doc(&format!("examples/{}", name_of(path)), tree(path)));
    }
    for path in files_below(EXAMPLES)? {
        all.push(doc(&path["deploy/".len()..], tree(&path)));
    }
    for folder in MONITORING {
        for path in files_below(folder)? {
            all.push(doc(&format!("examples/{}", &path["deploy/".len()..]), tree(&path)));
        }
    }
    for path in files_below(PAGES)?.into_iter().filter(|path| path.ends_with(".md")) {
        all.push(doc(&path, tree(&path)));
    }
    all.push(Entry { gzip: true, ..doc("THIRD-PARTY.txt", text(notices)) });
    all.extend(papers(format, release)?);
    all.sort_by(|a, b| a.to.cmp(&b.to));
    Ok(all)
}

/// Licence, history and the page of the project, as each format wants them.
fn papers(format: Format, release: &Release) -> Result<Vec<Entry>> {
    let tree = |path: &str| Source::Tree(path.to_owned());
    let changes = doc("changelog", tree("CHANGELOG.md"));
    Ok(match format {
        Format::Deb => {
            let history = Source::Text(release.history()?);
            vec![
                Entry { gzip: true, ..changes },
                Entry { gzip: true, ..doc("changelog.Debian", history) },
                doc("copyright", tree("deploy/package/deb/copyright")),
            ]
        }
        Format::Rpm => vec![changes, doc("LICENSE", tree("LICENSE"))],
        Format::Tar => vec![changes, doc("LICENSE", tree("LICENSE")), doc("README.md", tree("README.md"))],
    })
}

/// Completions, where each distribution's shells look for them.
fn completions(format: Format, produced: &Produced) -> Vec<Entry> {
    let zsh = if format == Format::Deb { "vendor-completions" } else { "site-functions" };
    [
        ("usr/share/bash-completion/completions/holdfast".to_owned(), &produced.bash),
        (format!("usr/share/zsh/{zsh}/_holdfast"), &produced.zsh),
        ("usr/share/fish/vendor_completions.d/holdfast.fish".to_owned(), &produced.fish),
    ]
    .map(|(to, text)| entry(to, Source::Text(text.clone()), Kind::Plain))
    .into()
}

fn name_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The files below a folder of the tree, sorted.
fn files_below(folder: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut left = vec![folder.to_owned()];
    while let Some(folder) = left.pop() {
        let path: &Path = folder.as_ref();
        for entry in std::fs::read_dir(root().join(path)).with_context(|| folder.clone())? {
            let entry = entry?;
            let name = entry.file_name().into_string().map_err(|name| anyhow::anyhow!("{folder}: {name:?}"))?;
            let to = format!("{folder}/{name}");
            if entry.file_type()?.is_dir() { left.push(to) } else { found.push(to) }
        }
    }
    found.sort();
    Ok(found)
}
