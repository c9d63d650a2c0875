//! Tidy: checks that the compiler does not make. Reads the tracked files and `cargo metadata`; writes nothing.

mod arrows;
mod circles;
mod docs;
mod functions;
mod labels;
mod probes;
mod source;
mod text;
mod versions;
mod widths;

use crate::binary::root;
use crate::cmd::cmd;
use crate::say::Count;
use anyhow::{Result, bail};
pub use probes::Probe;
use source::Source;

/// Runs every check. Fails only when the tree cannot be read.
pub fn check(count: &mut Count) -> Result<()> {
    let sources = sources()?;
    count.check("tidy: crate arrows", arrows::check());
    count.check("tidy: no new import circles of modules", report(circles::none_new(&sources)));
    count.check("tidy: openraft and the AWS SDK are named in one crate each", report(text::borders(&sources)));
    count.check("tidy: file length", report(text::lengths(&sources)));
    count.check("tidy: function length", report(functions::lengths(&sources)));
    count.check("tidy: width of prose", report(widths::narrow(&sources)));
    count.check("tidy: nothing left over", report(text::leftovers(&sources)));
    count.check("tidy: no settings of tests arm a machine's watchdog", report(text::unarmed(&sources)));
    count.check("tidy: no settings of tests reboot a machine", report(text::unrebooted(&sources)));
    count.check("tidy: pure crates stay pure", report(text::purity(&sources)));
    count.check("tidy: no doc tests, because nobody runs them", report(text::doc_tests(&sources)));
    count.check("tidy: labels of rules are unique", report(labels::unique(&sources)));
    count.check("tidy: probes have unique names", report(probes::named(&sources)));
    count.check("tidy: links in documents", report(docs::links(&sources)));
    count.check("tidy: links to headings", report(docs::places(&sources)));
    count.check("tidy: every page is on the list of pages", report(docs::listed(&sources)));
    count.check("tidy: every page is in the book once", report(docs::chapters(&sources)));
    count.check("tidy: the Jepsen test's dependencies agree", report(versions::agree(&sources)));
    count.check("tidy: every crate and every outside dependency is explained", report(docs::explained(&sources)?));
    Ok(())
}

/// All probes of the product, sorted by name. Fails when the tree cannot be read.
pub fn all_probes() -> Result<Vec<Probe>> {
    Ok(probes::all(&sources()?).0)
}

/// Tracked and new files, without those that git ignores.
fn sources() -> Result<Vec<Source>> {
    let list = cmd("git").dir(root()).args(["ls-files", "--cached", "--others", "--exclude-standard"]).out()?;
    let mut found = Vec::new();
    for path in list.lines() {
        // Skips deleted files that are still tracked, and files that are not text.
        if let Ok(text) = std::fs::read_to_string(root().join(path)) {
            found.push(Source { path: path.into(), text });
        }
    }
    Ok(found)
}

fn report(problems: Vec<String>) -> Result<()> {
    if problems.is_empty() {
        return Ok(());
    }
    bail!("\n    {}", problems.join("\n    "))
}
