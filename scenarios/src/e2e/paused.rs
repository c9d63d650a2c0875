//! A serving gateway stopped with SIGSTOP for longer than its lease, and continued.
//!
//! ```text
//!  A ── write 1, answered ─┬─ SIGSTOP g1 ─ write 2 → g1's receive buffer ─────────── read → g1 ── SIGCONT ─▶ what does g1 answer?
//!                          └────────────── B through g2: write 3, answered ──┘
//! ```
//! The read is sent after write 3 was answered, so an answer other than 3 is stale (R3). Write 2 must not be there, and
//! must not be answered with success (R6). The expected outcome: the connection closes without an answer (R8).

use super::blocks::BLOCK;
use super::{Lab, TAKEOVER_LIMIT};
use crate::cluster::Cluster;
use crate::nbd::{Client, NbdError, pattern, tag_of};
use crate::say::note;
use anyhow::{Context, Result, bail};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

pub(super) fn run(lab: &Lab) -> Result<()> {
    let mut cluster = lab.cluster("256MiB")?;
    for round in 0..if lab.long { 10 } else { 2 } {
        let (serving, mut a) = cluster.connect(TAKEOVER_LIMIT)?;
        // Other blocks each time; with and without a write on the plain connection.
        let outcome = pause_round(&mut cluster, serving, &mut a, round * 64 * BLOCK as u64);
        // Whatever happened, continue all gateways.
        cluster.proceed(serving);
        note(format!("round {}: {} paused; {}", round + 1, cluster.name(serving), outcome?));
    }
    cluster.stop()?;
    Ok(())
}

fn pause_round(cluster: &mut Cluster, serving: usize, a: &mut Client, at: u64) -> Result<String> {
    let block = |tag| pattern(tag, at, BLOCK);
    a.write(at, &block(1))?;
    a.flush()?;
    let begun = Instant::now();
    cluster.pause(serving)?;
    let late_write = a.send_write(at, &block(2))?;

    let others = cluster.others(serving);
    let (next, took) = cluster.first_to_serve(&others, begun, TAKEOVER_LIMIT)?;
    let mut b = Client::connect(&cluster.gateways[next].nbd, PATIENCE)?;
    let seen = tag_of(&b.read(at, BLOCK as u32)?, at)?;
    anyhow::ensure!(seen == 1, "through {}: found write {seen}, expected 1", cluster.name(next));
    b.write(at, &block(3))?;
    b.flush()?;

    let stale_read = a.send_read(at, BLOCK as u32)?;
    cluster.proceed(serving);
    let mut answers = Vec::new();
    let end = loop {
        match a.receive() {
            Ok(reply) if reply.cookie == late_write => match reply.result {
                Ok(_) => bail!("R6: the write that lay in the stopped gateway was answered with success"),
                Err(errno) => answers.push(format!("write: errno {errno}")),
            },
            Ok(reply) if reply.cookie == stale_read => match reply.result {
                Ok(bytes) => {
                    let tag = tag_of(&bytes, at)?;
                    anyhow::ensure!(tag == 3, "R3: stale read: found write {tag}, expected 3");
                    answers.push("read: up to date".into());
                }
                Err(errno) => answers.push(format!("read: errno {errno}")),
            },
            Ok(reply) => bail!("an answer to {}", reply.cookie),
            Err(NbdError::Gone(e)) if e.kind() == std::io::ErrorKind::WouldBlock => {
                bail!("the continued gateway neither answers nor closes within {PATIENCE:?} (R8)")
            }
            Err(NbdError::Gone(_)) => break "connection closed",
            Err(e) => return Err(e.into()),
        }
        if answers.len() == 2 {
            break "both answered";
        }
    };
    let seen = tag_of(&b.read(at, BLOCK as u32)?, at)?;
    anyhow::ensure!(seen == 3, "R6: after the gateway continued: found write {seen}, expected 3");
    b.disconnect();
    let (_, mut fresh) = cluster.connect(TAKEOVER_LIMIT).context("after the pause")?;
    let seen = tag_of(&fresh.read(at, BLOCK as u32)?, at)?;
    anyhow::ensure!(seen == 3, "R6: read anew: found write {seen}, expected 3");
    fresh.disconnect();
    Ok(format!(
        "{} took over after {:.0} ms; {end} ({})",
        cluster.name(next),
        took.as_secs_f64() * 1e3,
        answers.join(", ")
    ))
}
