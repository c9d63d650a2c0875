//! A few rounds of `cargo xtask power`, and one on disks that lie about their syncs, which has to be noticed.

use super::Lab;
use crate::power::{Run, lie_found, run};
use crate::say::note;
use crate::setup;
use anyhow::Result;

pub(super) const NEEDS: &[&str] = &["nbdfuse", "/usr/lib/postgresql/15/bin/postgres"];

pub(super) fn run_few(lab: &Lab) -> Result<()> {
    setup::must_be_able_to_mount()?;
    let seed = u64::from(std::process::id());
    note(format!("cargo xtask power --seed {seed}"));
    let rounds = if lab.long { 50 } else { 3 };
    run(&Run { bin: &lab.bin, dir: &lab.dir, rounds, seed, lie: false })?;
    // Cuts enough that one of them finds something to lose.
    lie_found(run(&Run { bin: &lab.bin, dir: &lab.dir.join("lie"), rounds: 5, seed, lie: true }))
}
