//! A few rounds of `cargo xtask power`, and one on disks that acknowledge syncs without syncing, which must be
//! detected.

use super::{Lab, TAKEOVER_LIMIT};
use crate::chaos::seed::Seeded;
use crate::cluster::{Cluster, Options};
use crate::nbd::pattern;
use crate::power::mount::Mounted;
use crate::power::{Run, lie_found, run};
use crate::say::note;
use crate::setup;
use anyhow::{Context, Result};

pub(super) const NEEDS: &[&str] = &["nbdfuse", "/usr/lib/postgresql/15/bin/postgres"];

pub(super) fn run_few(lab: &Lab) -> Result<()> {
    setup::must_be_able_to_mount()?;
    let seed = crate::seed::of_run()?;
    note(format!("cargo xtask power --seed {seed}"));
    let rounds = if lab.long { 50 } else { 3 };
    run(&Run { bin: &lab.bin, dir: &lab.dir, rounds, seed, lie: false })?;
    // Enough cuts that at least one of them loses something.
    lie_found(run(&Run { bin: &lab.bin, dir: &lab.dir.join("lie"), rounds: 5, seed, lie: true }))
}

/// Number of cuts on new machines. If the product did not sync the names of new folders, half of the cuts would lose
/// them.
const FIRST_CUTS: u64 = 8;

/// The disk is mounted as the cluster's folder: the gateway's and the store's folders are new names in it.
pub(super) fn first_cut(lab: &Lab) -> Result<()> {
    setup::must_be_able_to_mount()?;
    let seed = crate::seed::of_run()?;
    note(format!("seed {seed}"));
    let mut chance = Seeded::new(seed, 0);
    let (mut names, mut blocks) = (0, 0);
    for round in 1..=FIRST_CUTS {
        let dir = lab.dir.join(format!("round{round}/cluster"));
        let mut disk = [Mounted::new(&dir)?];
        let options = Options {
            bin: lab.bin.clone(),
            dir,
            gateways: 1,
            store: None,
            size: "64MiB".into(),
            // In memory here.
            settings: [
                "journal.bound=\"512MiB\"",
                "journal.reserve=\"64MiB\"",
                "journal.file=\"16MiB\"",
                "upload.bytes=\"8MiB\"",
            ]
            .map(String::from)
            .into(),
            env: Vec::new(),
        };
        let mut cluster = Cluster::start(options)?;
        let (_, mut client) = cluster.connect(TAKEOVER_LIMIT)?;
        let written = pattern(round, 0, 4096);
        client.write(0, &written)?;
        client.flush()?;
        Mounted::switch_off(&disk);
        let stopped = cluster.kill_all()?;
        drop(client);
        let losses = disk[0].switch_on(&mut chance)?;
        (names, blocks) = (names + losses.names, blocks + losses.lost + losses.torn);
        let after = || format!("round {round}, seed {seed}: after the cut, which undid {} names", losses.names);
        let mut cluster = stopped.start().with_context(after)?;
        let (_, mut client) = cluster.connect(TAKEOVER_LIMIT).with_context(after)?;
        let found = client.read(0, 4096).with_context(after)?;
        anyhow::ensure!(found == written, "R1: {}: flushed data is missing", after());
        client.disconnect();
        cluster.stop()?;
    }
    note(format!("{FIRST_CUTS} cuts undid {names} names, and lost or tore {blocks} blocks; flushed data is there"));
    Ok(())
}
