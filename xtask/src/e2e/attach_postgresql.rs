//! PostgreSQL on ext4 on `holdfast attach`: gateways are killed under pgbench and writers with a ledger, and nobody above the device sees an error.

use super::{Lab, TAKEOVER_LIMIT};
use crate::binary::public_dir;
use crate::cluster::{SET, VOLUME};
use crate::cmd::{cmd, tail_of};
use crate::hosts;
use crate::ledger::Ledger;
use crate::pg::Postgres;
use crate::process::{Signal, wait_until};
use crate::say::note;
use crate::setup;
use crate::undo::{Guard, Undo};
use anyhow::{Context, Result};

const SETTINGS: &str = "shared_buffers = 64MB\nmax_connections = 30\n";
const WRITERS: usize = 4;
const PGBENCH: [&str; 4] = ["-c", "4", "-j", "1"];

/// Commits that are waited for after each kill.
const COMMITS: u64 = 100;

pub(super) fn run(lab: &Lab) -> Result<()> {
    setup::must_be_able_to_mount()?;
    let mut cluster = lab.cluster("1GiB")?;
    let (open, _guard) = public_dir("attach-pg")?;
    let (dir, mount) = (open.join("attach"), open.join("mnt"));
    let apis = cluster.apis();
    let (mut attach, device) = hosts::attach(&lab.bin, (SET, VOLUME), &apis, &dir, "db1")?;
    cmd("mkfs.ext4").arg("-q").arg(&device).run()?;
    std::fs::create_dir_all(&mount)?;
    let mounted = Guard::new(Undo::Umount(mount.clone()))?;
    cmd("mount").arg(&device).arg(&mount).run()?;

    let mut pg = Postgres::new(&mount.join("data"), &open.join("sockets"), &lab.dir.join("postgres.log"))?;
    pg.initdb(SETTINGS)?;
    pg.start()?;
    pg.pgbench_init(1)?;
    let mut ledger = Ledger::create(&pg, &lab.dir.join("ledger"), WRITERS)?;
    let pgbench_log = lab.dir.join("pgbench.log");
    let mut pgbench = pg.pgbench_forever(&PGBENCH, &pgbench_log)?;
    let writers = ledger.start(&pg)?;
    let rounds = if lab.long { 100 } else { 4 };
    let look = || hosts::status(&dir).context("attach shows no status");
    let mut worst = 0;
    for round in 0..=rounds {
        // Round 0 is only the load before the first kill.
        let mut said = "load".to_owned();
        if round > 0 {
            let before = look()?;
            let serving = (0..cluster.gateways.len()).find(|index| before["gateway"] == cluster.name(*index).as_str());
            let serving = serving.with_context(|| format!("no gateway is called {}", before["gateway"]))?;
            cluster.kill(serving)?;
            let anew = || {
                look().is_ok_and(|now| {
                    now["phase"] == "serving" && now["reconnects"].as_u64() > before["reconnects"].as_u64()
                })
            };
            anyhow::ensure!(wait_until(TAKEOVER_LIMIT, anew), "round {round}: not reconnected: {}", look()?);
            let now = look()?;
            let outage = now["last_outage_ms"].as_u64().context("no last_outage_ms")?;
            worst = worst.max(outage);
            said = format!("round {round}: {} killed, {} after {outage} ms", before["gateway"], now["gateway"]);
            cluster.restart(serving)?;
        }
        let so_far = writers.acknowledged();
        let on = wait_until(TAKEOVER_LIMIT, || writers.acknowledged() >= so_far + COMMITS || !writers.all_writing());
        anyhow::ensure!(on && writers.all_writing(), "{said}: a writer of PostgreSQL had an error, or nothing goes on");
        pgbench.must_run()?;
        cluster.caught_up(TAKEOVER_LIMIT)?;
        note(format!("{said}; {} commits", writers.acknowledged()));
    }
    pgbench.must_run()?;
    let lost_clients = std::fs::read_to_string(&pgbench_log)?.contains("aborted");
    anyhow::ensure!(!lost_clients, "a client of pgbench had an error: {}", tail_of(&pgbench_log, 4));
    pgbench.stop(Signal::INT, TAKEOVER_LIMIT)?;
    ledger.join(writers)?;
    let verdict = ledger.check(&pg)?;
    anyhow::ensure!(
        verdict.lost == 0 && verdict.invented == 0 && verdict.in_doubt_found == 0,
        "R1: of {} acknowledged commits {} are lost; {} invented, {} in doubt where no session was lost",
        verdict.acknowledged,
        verdict.lost,
        verdict.invented,
        verdict.in_doubt_found
    );
    pg.pgbench_balances()?;
    pg.amcheck()?;
    pg.stop(Signal::INT)?;
    drop(mounted);
    cmd("e2fsck").args(["-f", "-n"]).arg(&device).run()?;
    attach.stop(Signal::TERM, TAKEOVER_LIMIT)?;
    note(format!(
        "{rounds} gateways killed, no error; requests waited {worst} ms at most; {} commits, all there",
        verdict.acknowledged
    ));
    cluster.stop().map(drop)
}
