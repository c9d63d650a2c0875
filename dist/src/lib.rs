//! What is handed on: .deb, .rpm, tarball, OCI image, a list of what they are made of (SBOM), checksums. And the test
//! that installs, uses, upgrades and purges them ([ADR 0060](../../../docs/adr/0060-packages.md)).
//!
//! ```text
//!  holdfast ─▶ program (stripped) ─┐             ┌▶ dpkg-deb ─▶ .deb
//!           ─▶ completions, pages ─┼▶ layout ────┼▶ rpmbuild ─▶ .rpm
//!  deploy/  ─▶ units, samples ─────┤  (stage)    ├▶ tar ──────▶ .tar.gz
//!  cargo metadata ─▶ SBOM, notices ┘             └▶ tar, JSON ▶ OCI image, over the C library's own package
//! ```
//! Two runs over the same commit give the same bytes: times come from the commit, names are sorted, owners and modes
//! are fixed.
//!
//! Owns: what is in a package, and where. Does not own: the files in `deploy/`. It depends on no crate of the product.

mod deb;
mod image;
mod inputs;
mod layout;
mod make;
mod notices;
mod program;
mod release;
mod rpm;
mod sbom;
mod stage;
mod sums;
mod tarball;
#[cfg(test)]
mod tests;
mod trial;

use anyhow::Result;
use clap::Parser;
use holdfast_chore::{ends, say, undo};
use std::process::ExitCode;

/// Chores of the Holdfast repository that make and test packages
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", arg_required_else_help = true)]
enum Chore {
    /// Make the packages: .deb, .rpm, tarball, OCI image, SBOM, checksums
    Dist(make::Args),
    /// Test the packages: pack twice and compare; install, use, upgrade and purge them in a Debian of their own
    Packages(trial::Args),
    /// Undo the changes of an interrupted chore; the chores start this themselves
    #[command(name = undo::REAPER_ARG, hide = true)]
    Reaper,
}

/// Runs the program.
pub fn main() -> ExitCode {
    holdfast_chore::status(run(Chore::parse()))
}

/// Runs a chore, and then checks the exits and logs of its processes.
fn run(chore: Chore) -> Result<()> {
    let result = match chore {
        Chore::Dist(args) => make::chore(&args),
        Chore::Packages(args) => trial::chore(&args),
        Chore::Reaper => {
            undo::reap();
            return Ok(());
        }
    };
    let wrong = ends::look_through_the_rest();
    if result.is_err() {
        wrong.iter().for_each(say::note);
    }
    result.and_then(|()| ends::fine(&wrong))
}
