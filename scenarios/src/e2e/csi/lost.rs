//! A node is lost, and its volume goes on elsewhere, by the lease alone: nothing is detached, and nobody is forced.
//!
//! ```text
//!   node1 writes ── frozen ── … its lease ends … ── node2 stages, reads, writes ── node1 wakes: its writes fail
//!                                                       node2 killed ── node1 stages again, reads all
//! ```

use super::calls::{Answer, Csi, FAILED_PRECONDITION, block, field, number};
use super::{BYTES, Driver, GONE_WITHIN, sets};
use crate::cluster::{Cluster, SET};
use crate::cmd::cmd;
use crate::e2e::Lab;
use crate::process::{Signal, signal, wait_until};
use crate::say::note;
use crate::setup;
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::time::{Duration, Instant};

pub(in crate::e2e) const NEEDS: &[&str] = &["curl", "nbdfuse"];

/// The claim, and what the driver makes of it.
const CLAIM: &str = "pvc-lost";
const LOST_SET: &str = "csi-pvc-lost";
const ID: &str = "csi-pvc-lost/data";

/// From the loss of a node until its volume is staged on another: the lease of 3 s, and the start of a device.
/// Kubernetes itself waits minutes before it asks.
const STAGED_WITHIN: Duration = Duration::from_secs(20);

/// Limit for a write on a node that was lost: it fails once the node has heard that the lease is another's.
const FAILS_WITHIN: &str = "60";

/// Bytes of one piece of data.
const PIECE: usize = 64 << 10;

/// A node service, what it has attached, and how Kubernetes calls it.
struct Node<'a> {
    name: &'static str,
    driver: Driver,
    csi: Csi,
    lab: &'a Lab,
}

impl<'a> Node<'a> {
    fn start(lab: &'a Lab, cluster: &Cluster, name: &'static str) -> Result<Self> {
        let driver = Driver::start(lab, cluster, name)?;
        let csi = Csi::new(&driver.socket, &lab.dir.join(format!("calls-{name}")))?;
        Ok(Self { name, driver, csi, lab })
    }

    /// Where the pod has the device.
    fn target(&self) -> PathBuf {
        self.driver.dir.join("pods/data")
    }

    fn staging(&self) -> String {
        self.driver.dir.join("staging").display().to_string()
    }

    fn stage(&self) -> Result<()> {
        let fields = [field(1, ID.as_bytes()), field(3, self.staging().as_bytes()), field(4, &block())].concat();
        self.csi.call("Node/NodeStageVolume", &fields)?.good(&format!("stage on {}", self.name)).map(drop)
    }

    fn publish(&self) -> Result<Answer> {
        let target = self.target().display().to_string();
        let fields = [field(1, ID.as_bytes()), field(4, target.as_bytes()), field(5, &block())].concat();
        self.csi.call("Node/NodePublishVolume", &fields)
    }

    /// Stages and publishes.
    fn take(&self) -> Result<()> {
        self.stage()?;
        self.publish()?.good(&format!("publish on {}", self.name)).map(drop)
    }

    /// Unpublishes and unstages.
    fn leave(&self) -> Result<()> {
        let target = self.target().display().to_string();
        let fields = [field(1, ID.as_bytes()), field(2, target.as_bytes())].concat();
        self.csi.call("Node/NodeUnpublishVolume", &fields)?.good(&format!("unpublish on {}", self.name))?;
        let fields = [field(1, ID.as_bytes()), field(2, self.staging().as_bytes())].concat();
        self.csi.call("Node/NodeUnstageVolume", &fields)?.good(&format!("unstage on {}", self.name)).map(drop)
    }

    /// The process that has the volume's device.
    fn attach(&self) -> Result<u32> {
        let dir = self.driver.dir.join("n").join(LOST_SET).join("attach");
        let shown = cmd(&self.driver.bin).args(["attach", LOST_SET, "--status", "--output", "json", "--dir"]).arg(dir);
        let shown: serde_json::Value = serde_json::from_str(&shown.out()?)?;
        u32::try_from(shown["pid"].as_u64().context("no pid in the status of attach")?).context("a pid")
    }

    /// Writes a piece of this byte to the pod's device, past every cache. Ends in time, whatever the device does.
    fn write(&self, byte: u8) -> Result<()> {
        let file = self.lab.dir.join(format!("piece-{byte}"));
        std::fs::write(&file, vec![byte; PIECE])?;
        let command = cmd("timeout").args(["-s", "KILL", FAILS_WITHIN, "dd", "bs=64k", "count=1", "oflag=direct"]);
        let command = command.arg(format!("if={}", file.display())).arg(format!("of={}", self.target().display()));
        command.args(["conv=notrunc,fsync", "status=none"]).run()
    }

    /// The piece that the pod reads.
    fn read(&self) -> Result<Vec<u8>> {
        let file = self.lab.dir.join("read");
        let command = cmd("timeout").args(["-s", "KILL", FAILS_WITHIN, "dd", "bs=64k", "count=1", "iflag=direct"]);
        let command = command.arg(format!("if={}", self.target().display())).arg(format!("of={}", file.display()));
        command.args(["status=none"]).run()?;
        Ok(std::fs::read(&file)?)
    }

    fn must_read(&self, byte: u8, when: &str) -> Result<()> {
        let found = self.read()?;
        let good = found.len() == PIECE && found.iter().all(|one| *one == byte);
        anyhow::ensure!(good, "{} {when}: found {:?}…, expected {byte}", self.name, found.first());
        Ok(())
    }
}

/// Kills what a machine that loses its power would lose, without a word to anybody.
fn kill(node: &mut Node<'_>) -> Result<()> {
    let attach = node.attach()?;
    node.driver.process.signal(Signal::KILL);
    signal(attach, Signal::KILL);
    node.driver.process.wait(Duration::from_secs(10)).map(drop)
}

/// Freezes or wakes a node: its driver, and the process of its volume.
fn freeze(node: &mut Node<'_>, attach: u32, how: Signal) {
    node.driver.process.signal(how);
    signal(attach, how);
}

/// Stages on `to`, and says how long after `since` the volume is there.
fn moves(to: &Node<'_>, since: Instant, what: &str) -> Result<()> {
    to.take()?;
    let took = since.elapsed();
    anyhow::ensure!(took < STAGED_WITHIN, "{what}: staged on {} after {took:?}, expected {STAGED_WITHIN:?}", to.name);
    note(format!("{what}: the volume is on {} after {:.1} s", to.name, took.as_secs_f64()));
    Ok(())
}

pub(in crate::e2e) fn run(lab: &Lab) -> Result<()> {
    setup::must_be_able_to_mount()?;
    let cluster = lab.cluster("64MiB")?;
    let (mut first, mut second) = (Node::start(lab, &cluster, "node1")?, Node::start(lab, &cluster, "node2")?);
    let bytes = BYTES.parse::<u64>().context("the size of a volume")?;
    let wanted = [field(1, CLAIM.as_bytes()), field(2, &number(1, bytes)), field(3, &block())].concat();
    let made = first.csi.call("Controller/CreateVolume", &wanted)?.good("create")?;
    anyhow::ensure!(made.windows(ID.len()).any(|part| part == ID.as_bytes()), "found {made:?}, expected {ID}");

    first.take()?;
    first.write(1)?;
    let attach = first.attach()?;
    let lost = Instant::now();
    freeze(&mut first, attach, Signal::STOP);
    let moved = moves(&second, lost, "a node is frozen").and_then(|()| {
        second.must_read(1, "after the move")?;
        second.write(2)
    });
    // Before anything else: nothing that is frozen ends.
    freeze(&mut first, attach, Signal::CONT);
    moved?;

    // STAGED-S1, R2: the pod of node1 still has its device.
    anyhow::ensure!(first.write(3).is_err(), "node1 came back, and its write was answered with success");
    let refused = first.publish()?;
    let told = refused.code == FAILED_PRECONDITION && refused.text.contains("node2");
    anyhow::ensure!(
        told,
        "publish on node1: found {} {:?}, expected {FAILED_PRECONDITION}",
        refused.code,
        refused.text
    );
    second.must_read(2, "beside a node that came back")?;
    first.leave()?;

    let lost = Instant::now();
    kill(&mut second)?;
    moves(&first, lost, "a node is killed")?;
    first.must_read(2, "after the second move")?;
    // The machine starts again, and Kubernetes cleans up.
    second.driver.restart(lab, &cluster)?;
    second.leave()?;
    first.write(4)?;
    first.must_read(4, "after the other one has come back")?;
    first.leave()?;
    // It may have the volume again. This also removes what its killed process has left: nbdfuse and a loop device.
    second.take()?;
    second.must_read(4, "which is back")?;
    second.leave()?;
    first.csi.call("Controller/DeleteVolume", &field(1, ID.as_bytes()))?.good("delete")?;
    let gone = wait_until(GONE_WITHIN, || sets(&cluster).is_ok_and(|sets| sets == [SET]));
    anyhow::ensure!(gone, "the deleted volume's set is still there: {:?}", sets(&cluster));
    end(first)?;
    end(second)?;
    cluster.stop()?;
    Ok(())
}

fn end(mut node: Node<'_>) -> Result<()> {
    let left = node.driver.left()?;
    anyhow::ensure!(left.is_empty(), "still attached on {}: {}", node.name, left.join(", "));
    node.driver.process.stop(Signal::TERM, Duration::from_secs(20))
}
