//! Two owners of one set.
//!
//! A writes through a plain export as fast as it can, and reconnects whenever its connection is closed. B takes the
//! lease by force and writes the same block. After B has the grant, none of A's writes may succeed (R2), and B's data
//! must stay (R6). Then C does the same to B, whose session has a token.

use super::blocks::BLOCK;
use super::{Lab, TAKEOVER_LIMIT};
use crate::cluster::{Cluster, SET, VOLUME};
use crate::nbd::{Client, Uri, pattern, tag_of};
use crate::process::{SetOnDrop, wait_until};
use crate::say::note;
use anyhow::{Context, Result};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(10);

/// The block that all owners write.
const AT: u64 = 7 * BLOCK as u64;

/// Results of one owner's writes.
#[derive(Debug, Default)]
struct Story {
    /// When each successful write was sent.
    succeeded: Vec<Instant>,
    /// When each failed attempt began, and the answer.
    refused: Vec<(Instant, String)>,
}

pub(super) fn run(lab: &Lab) -> Result<()> {
    let mut cluster = lab.cluster("256MiB")?;
    let (serving, plain) = cluster.connect(TAKEOVER_LIMIT)?;
    let uri = cluster.gateways[serving].nbd.clone();
    drop(plain);
    let (b, by_a) = usurp(&cluster, &uri, "host-b", 1_000_000)?;
    note(format!("plain export A: {} writes before, {} attempts refused after B's grant", by_a.0, by_a.1));
    let (c, by_b) = usurp(&cluster, &b.uri, "host-c", 2_000_000)?;
    note(format!("session B: {} writes before, {} attempts refused after C's grant", by_b.0, by_b.1));

    cluster.holdfast(&["lease", "release", SET, "--token", &c.token])?;
    let (_, mut again) = cluster.connect(TAKEOVER_LIMIT).context("a plain export after the release")?;
    let seen = tag_of(&again.read(AT, BLOCK as u32)?, AT)?;
    anyhow::ensure!(seen == 2_000_000, "R6: found write {seen}, expected C's");
    again.disconnect();
    cluster.stop()?;
    Ok(())
}

/// A grant: its token and where its bearer connects.
struct Grant {
    token: String,
    uri: Uri,
    /// Parts that a refusal must name: owner, gateway, and the beginning of a time.
    named: String,
}

/// Lets the owner behind `old` write, takes the lease by force for `owner`, and writes `tag`. Returns the new grant,
/// and how many of the old owner's writes succeeded before and were refused afterwards.
fn usurp(cluster: &Cluster, old: &Uri, owner: &str, tag: u64) -> Result<(Grant, (usize, usize))> {
    let (stop, written, tried) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _stops = SetOnDrop(&stop);
        let hammer = scope.spawn(|| hammer(old, tag - 1_000_000, &stop, &written, &tried));
        let made = (|| {
            let busy = wait_until(PATIENCE, || written.load(Ordering::Relaxed) > 100);
            anyhow::ensure!(busy, "the first owner does not get to write");
            let polite = cluster.holdfast(&["lease", "acquire", SET, "--owner", owner]);
            let refusal = polite.err().context("a held lease was given away without force")?.to_string();
            note(format!("asking politely: {}", words(&refusal)));

            let said = cluster.holdfast(&["lease", "acquire", SET, "--owner", owner, "--ttl", "1m", "--force"])?;
            let granted = Instant::now();
            let token = said["token"].as_str().context("no token")?.to_owned();
            let addr = said["lease"]["gateway_nbd"].as_str().context("no gateway_nbd")?.to_owned();
            let gateway = said["lease"]["gateway"].as_u64().context("no gateway")?;
            let named = format!("held by {owner} at gateway m{gateway} since 20");
            let uri = Uri { addr, export: format!("{SET}/{VOLUME}?token={token}&conn=0&gen=1") };
            let mut client = Client::connect(&uri, PATIENCE).context("the new owner's session")?;
            client.write(AT, &pattern(tag, AT, BLOCK)).context("the new owner's write")?;
            client.flush()?;
            // The old owner continues to write for a while.
            let before = tried.load(Ordering::Relaxed);
            let insisted = wait_until(PATIENCE, || tried.load(Ordering::Relaxed) > before + 50);
            anyhow::ensure!(insisted, "the old owner did not get to try again");
            let seen = tag_of(&client.read(AT, BLOCK as u32)?, AT)?;
            anyhow::ensure!(seen == tag, "R2: found write {seen}, expected the new owner's {tag}");
            client.disconnect();
            let uri = Uri { export: uri.export.replace("gen=1", "gen=2"), ..uri };
            Ok((Grant { token, uri, named }, granted))
        })();
        stop.store(true, Ordering::Relaxed);
        let story = hammer.join().map_err(|_| anyhow::anyhow!("the old owner's thread panicked"))?;
        let (grant, granted) = made?;
        let late = story.succeeded.iter().filter(|sent| **sent > granted).count();
        anyhow::ensure!(late == 0, "R2: {late} writes of the old owner, sent after the grant to {owner}, succeeded");
        let after: Vec<&String> =
            story.refused.iter().filter(|(at, _)| *at > granted).map(|(_, words)| words).collect();
        anyhow::ensure!(!after.is_empty(), "none of the old owner's attempts was refused after the grant to {owner}");
        // A plain export is told the holder, its gateway and the time; a session with an invalid token need not be.
        let told = old.export.contains("token=") || after.iter().any(|w| w.contains(&grant.named));
        anyhow::ensure!(told, "expected a refusal with {:?}, the last is {:?}", grant.named, after.last());
        Ok((grant, (story.succeeded.len(), after.len())))
    })
}

/// The message in an error that the command line printed as JSON.
fn words(error: &str) -> String {
    let json = error.find('{').and_then(|at| serde_json::from_str::<serde_json::Value>(&error[at..]).ok());
    json.and_then(|j| j["error"]["message"].as_str().map(str::to_owned)).unwrap_or_else(|| error.to_owned())
}

fn hammer(uri: &Uri, first_tag: u64, stop: &AtomicBool, written: &AtomicU64, tried: &AtomicU64) -> Story {
    let mut story = Story::default();
    let mut tag = first_tag;
    let mut client: Option<Client> = None;
    while !stop.load(Ordering::Relaxed) {
        let begun = Instant::now();
        tag += 1;
        let outcome = match client.take().map_or_else(|| Client::connect(uri, PATIENCE), Ok) {
            Err(e) => Err(e),
            Ok(mut open) => {
                let outcome = open.write(AT, &pattern(tag, AT, BLOCK));
                // After an error the old owner connects again, to be told who holds the set.
                if outcome.is_ok() {
                    client = Some(open);
                }
                outcome
            }
        };
        tried.fetch_add(1, Ordering::Relaxed);
        match outcome {
            Ok(()) => {
                written.fetch_add(1, Ordering::Relaxed);
                story.succeeded.push(begun);
            }
            Err(e) => story.refused.push((begun, e.to_string())),
        }
    }
    story
}
