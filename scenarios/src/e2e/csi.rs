//! The CSI driver against `csi-sanity`, the test by the people of the Container Storage Interface, and the chart
//! against `helm`. [`lost`]: a node is lost.
//!
//! The kernel's nbd is not needed: volumes are loop devices over nbdfuse (`--device nbdfuse`).

mod calls;
pub(super) mod lost;

use super::Lab;
use crate::binary::root;
use crate::cluster::{Cluster, SET};
use crate::cmd::{cmd, tail_of};
use crate::process::{Proc, Signal, wait_until};
use crate::say::note;
use crate::setup;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub(super) const NEEDS: &[&str] = &["csi-sanity", "nbdfuse"];
pub(super) const CHART_NEEDS: &[&str] = &["helm"];

/// Sizes of the test's volumes in bytes. Small: each gets a file system.
const BYTES: &str = "67108864";
const GROWN_BYTES: &str = "134217728";

/// Limit of one run of the test.
const SANITY_LIMIT: Duration = Duration::from_secs(15 * 60);

/// Limit until the deleted sets are gone.
const GONE_WITHIN: Duration = Duration::from_secs(120);

/// The driver as one process, and whatever it has attached.
struct Driver {
    bin: PathBuf,
    node: String,
    /// Short: a socket for each volume lies below it.
    dir: PathBuf,
    socket: PathBuf,
    process: Proc,
}

impl Driver {
    /// The driver of a node with this name.
    fn start(lab: &Lab, cluster: &Cluster, node: &str) -> Result<Self> {
        // As long as it was without the node's name: paths of sockets have 107 bytes at most.
        let dir = PathBuf::from(format!("/run/hf{}{node}", std::process::id()));
        std::fs::create_dir_all(&dir)?;
        let socket = dir.join("csi.sock");
        let process = Self::spawn(lab, cluster, node, &dir, &socket)?;
        let mut driver = Self { bin: lab.bin.clone(), node: node.to_owned(), dir, socket, process };
        driver.serves()?;
        Ok(driver)
    }

    /// A new process in the place of one that has ended.
    fn restart(&mut self, lab: &Lab, cluster: &Cluster) -> Result<()> {
        // Left by the process before: it must not pass for that of the new one.
        let _ = std::fs::remove_file(&self.socket);
        self.process = Self::spawn(lab, cluster, &self.node, &self.dir, &self.socket)?;
        self.serves()
    }

    fn spawn(lab: &Lab, cluster: &Cluster, node: &str, dir: &Path, socket: &Path) -> Result<Proc> {
        let store = lab.dir.join("store");
        std::fs::create_dir_all(&store)?;
        let command = cmd(&lab.bin).args(["csi", "--serve", "all", "--device", "nbdfuse", "--node", node]);
        let command = command.arg("--endpoint").arg(socket).arg("--dir").arg(dir.join("n"));
        let command = command.arg("--store").arg(format!("file://{}", store.display()));
        let command =
            command.args(["--timeout", "60s", "--locality", "region=local"]).arg("--api").arg(cluster.apis().join(","));
        Proc::spawn("holdfast csi", command.into_command(), &lab.dir.join(format!("csi-{node}.log")))
    }

    fn serves(&mut self) -> Result<()> {
        let socket = self.socket.clone();
        self.process.ready_when("serving", Duration::from_secs(30), || socket.exists())
    }

    /// Sets with something attached.
    fn left(&self) -> Result<Vec<String>> {
        let mut left = Vec::new();
        let Ok(entries) = std::fs::read_dir(self.dir.join("n")) else { return Ok(left) };
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let status = cmd(&self.bin).args(["attach", &name, "--status", "--dir"]).arg(entry.path().join("attach"));
            if status.succeeds() {
                left.push(name);
            }
        }
        Ok(left)
    }

    /// Runs the test, with volumes of this kind.
    fn sanity(&mut self, lab: &Lab, kind: &str) -> Result<()> {
        let at = |name: &str| self.dir.join(name).display().to_string();
        let log = lab.dir.join(format!("csi-sanity-{kind}.log"));
        let command = cmd("csi-sanity").args(["-csi.endpoint", &format!("unix:{}", self.socket.display())]);
        let command = command.args(["-csi.mountdir", &at("mount"), "-csi.stagingdir", &at("staging")]);
        let command = command.args(["-csi.testvolumesize", BYTES, "-csi.testvolumeexpandsize", GROWN_BYTES]);
        let command = command.args(["-csi.testvolumeaccesstype", kind, "-ginkgo.no-color"]);
        let begun = Instant::now();
        let mut sanity = Proc::spawn("csi-sanity", command.into_command(), &log)?;
        let status = sanity.wait(SANITY_LIMIT)?;
        self.process.must_run()?;
        anyhow::ensure!(status.success(), "csi-sanity with {kind}: {status}: {}", tail_of(&log, 40));
        let said = std::fs::read_to_string(&log)?;
        let count = said.lines().rev().find(|line| line.contains(" Passed")).unwrap_or("no summary");
        note(format!("csi-sanity with {kind}, {:.0} s: {}", begun.elapsed().as_secs_f64(), count.trim()));
        Ok(())
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        for set in self.left().unwrap_or_default() {
            let dir = self.dir.join("n").join(&set).join("attach");
            let _ = cmd(&self.bin).args(["attach", &set, "--detach", "--timeout", "10s", "--dir"]).arg(dir).succeeds();
        }
        clear(&self.dir);
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Removes loop devices and mounts below a folder, which a failed scenario may leave.
fn clear(dir: &Path) {
    for device in std::fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        let file = std::fs::read_to_string(device.path().join("loop/backing_file")).unwrap_or_default();
        if Path::new(file.trim_end()).starts_with(dir) {
            let _ = cmd("losetup").arg("--detach").arg(Path::new("/dev").join(device.file_name())).succeeds();
        }
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4)).filter(|at| Path::new(at).starts_with(dir));
    for point in points.collect::<Vec<_>>().into_iter().rev() {
        let _ = cmd("umount").args(["--lazy", point]).succeeds();
    }
}

/// Names of all sets.
fn sets(cluster: &Cluster) -> Result<Vec<String>> {
    let listed = cluster.holdfast(&["set", "list"])?;
    let sets = listed["sets"].as_array().context("a list of sets")?;
    Ok(sets.iter().filter_map(|set| set["name"].as_str().map(str::to_owned)).collect())
}

/// What the liveness probe of the chart says of the driver at this socket.
fn alive(socket: &Path) -> Result<bool> {
    let text = std::fs::read_to_string(root().join("deploy/helm/holdfast/templates/_helpers.tpl"))?;
    let (_, text) = text.split_once("    - |-\n").context("a probe in the chart")?;
    let (text, _) = text.split_once("initialDelaySeconds:").context("the end of the probe")?;
    let text = text.replace("/csi/csi.sock", &socket.display().to_string());
    Ok(cmd("perl").args(["-MIO::Socket::UNIX", "-e", &text]).succeeds())
}

pub(super) fn run(lab: &Lab) -> Result<()> {
    setup::must_be_able_to_mount()?;
    let cluster = lab.cluster("64MiB")?;
    let mut driver = Driver::start(lab, &cluster, "node1")?;
    anyhow::ensure!(alive(&driver.socket)?, "the driver serves, and the chart's probe says that it does not");
    driver.process.signal(Signal::STOP);
    let hangs = !alive(&driver.socket)?;
    driver.process.signal(Signal::CONT);
    anyhow::ensure!(hangs, "the driver is stopped, and the chart's probe says that it serves");
    for kind in ["mount", "block"] {
        driver.sanity(lab, kind)?;
        let left = driver.left()?;
        anyhow::ensure!(left.is_empty(), "the test has ended, and these are still attached: {}", left.join(", "));
    }
    let mut found = Vec::new();
    let gone = wait_until(GONE_WITHIN, || {
        found = sets(&cluster).unwrap_or_else(|error| vec![format!("{error:#}")]);
        found == [SET]
    });
    anyhow::ensure!(gone, "the test has deleted its volumes, and these sets are there: {}", found.join(", "));
    driver.process.stop(Signal::TERM, Duration::from_secs(20))?;
    drop(driver);
    cluster.stop()?;
    Ok(())
}

/// The Kubernetes that the chart is rendered for. A helm that was built by `go install` takes it for an older one than
/// the chart's `kubeVersion`.
const KUBERNETES: [&str; 2] = ["--kube-version", "1.32.0"];

fn template(chart: &Path, settings: &[&str]) -> Result<String> {
    let mut command = cmd("helm").args(["template", "hf"]).args(KUBERNETES).arg(chart);
    for setting in settings {
        command = command.args(["--set", setting]);
    }
    command.out()
}

/// Values that the chart must refuse, and a word of the refusal: what it does not know, what Kubernetes or a gateway
/// would refuse later, and what cannot work together.
const REFUSED: [(&str, &str); 27] = [
    ("gateways.replcias=5", "replcias"),
    ("gateways.replicas=4", "/gateways/replicas"),
    ("gateways.disk.size=lots", "/gateways/disk/size"),
    ("gateways.disk=null", "missing property 'disk'"),
    ("gateways.resources.request.cpu=1", "'request' not allowed"),
    ("gateways.localities={eu}", "/gateways/localities/0"),
    ("gateways.keySecret=", "/gateways/keySecret"),
    ("gateways.antiAffinity.nodes=some", "/gateways/antiAffinity/nodes"),
    ("gateways.antiAffinity.nodes=preferred,gateways.antiAffinity.required=true", "/gateways/antiAffinity"),
    ("gateways.updateStrategy=Recreate", "/gateways/updateStrategy"),
    ("gateways.settings=tls.http = \"off\"", "/gateways/settings"),
    ("gateways.settings=rtt_ms = 5\nname = \"g1\"", "/gateways/settings"),
    ("gateways.settings=rtt_ms = 5\n[tls]\nnbd = \"off\"", "/gateways/settings"),
    // Plain text is set as well.
    ("tls.gateways=tls-gateways", "/gateways/settings"),
    ("tls.gateways=tls-gateways,serviceMonitor.enabled=true", "/tls/monitor"),
    ("tls.http=checks", "/tls/gateways"),
    ("tls.http=maybe", "/tls/http"),
    ("gateways.plaintextNetwork=false", "/tls/gateways"),
    ("gateways.enabled=false", "/csi/api"),
    ("csi.api={nowhere}", "/csi/api/0"),
    ("csi.store=", "/csi/store"),
    ("csi.nodeGroups[0].name=All", "/csi/nodeGroups/0/name"),
    ("csi.tolerations[0].operator=Any", "/csi/tolerations/0/operator"),
    ("csi.kubeletDir=/var/lib/kubelet/", "/csi/kubeletDir"),
    ("storageClass.parameters.voters=4", "/storageClass/parameters/voters"),
    ("serviceMonitor.interval=often", "/serviceMonitor/interval"),
    ("serviceMonitor.cluster=a b", "/serviceMonitor/cluster"),
];

/// What values change in the chart, and what they do not.
fn changes(chart: &Path) -> Result<()> {
    let with = |more: &[&str]| {
        let base = ["csi.store=s3://bucket/prefix", "tls.gateways=tls-gateways", "tls.monitor=tls-monitor"];
        template(chart, &[&base[..], &["serviceMonitor.enabled=true"], more].concat())
    };
    let (checks, required, off) = (with(&[])?, with(&["tls.http=required"])?, with(&["tls.http=off"])?);
    let secured = ["\n      scheme: https\n", "keySecret: {name: tls-monitor, key: monitor.key}\n"];
    for (http, text, scheme) in [("checks", &checks, "HTTP"), ("required", &required, "HTTPS"), ("off", &off, "HTTP")] {
        let told = text.matches(&format!("    tls.http = \"{http}\"\n")).count();
        let asked = text.matches(&format!("port: http, scheme: {scheme}}}\n")).count();
        anyhow::ensure!(told == 3 && asked == 3, "tls.http, 3 gateways and 3 probes: {text}");
        let scraped = secured.iter().filter(|line| text.contains(**line)).count();
        let expected = if http == "off" { 0 } else { secured.len() };
        anyhow::ensure!(scraped == expected, "the scrape with {http}: {text}");
    }
    // All gateways have one template of pods: what changes it restarts all.
    let sum = |text: &str| text.lines().find(|line| line.contains("checksum/settings: ")).map(str::to_owned);
    let more = with(&["gateways.replicas=5", "gateways.disk.size=200Gi"])?;
    anyhow::ensure!(sum(&checks).is_some() && sum(&checks) == sum(&more), "a larger number restarts all: {more}");
    for setting in ["gateways.settings=rtt_ms = 50", "gateways.localities={region=eu}"] {
        let other = with(&[setting])?;
        anyhow::ensure!(sum(&checks) != sum(&other), "no gateway is restarted for {setting}");
    }
    let rule = "requiredDuringSchedulingIgnoredDuringExecution:\n            - topologyKey: kubernetes.io/hostname\n";
    let one = with(&["gateways.antiAffinity.nodes=preferred"])?;
    anyhow::ensure!(checks.contains(rule) && !one.contains("requiredDuringScheduling"), "one node: {one}");
    Ok(())
}

/// The chart: checked, rendered whole and in parts; values that cannot work are refused.
pub(super) fn chart(lab: &Lab) -> Result<()> {
    let chart = root().join("deploy/helm/holdfast");
    let (store, plain) = ("csi.store=s3://bucket/prefix", "gateways.plaintextNetwork=true");
    cmd("helm").args(["lint", "--strict", "--set", store, "--set", plain]).args(KUBERNETES).arg(&chart).run()?;
    let whole = template(&chart, &[store, plain, "serviceMonitor.enabled=true", "snapshotClass.enabled=true"])?;
    std::fs::write(lab.dir.join("whole.yml"), &whole)?;
    let kinds = [
        "StatefulSet",
        "PodDisruptionBudget",
        "Service",
        "ConfigMap",
        "Deployment",
        "DaemonSet",
        "CSIDriver",
        "StorageClass",
        "VolumeSnapshotClass",
        "ClusterRole",
        "ServiceMonitor",
    ];
    for kind in kinds {
        anyhow::ensure!(whole.contains(&format!("kind: {kind}\n")), "the chart has no {kind}");
    }
    let driver = template(&chart, &[store, "gateways.enabled=false", "csi.api={10.0.0.1:7400}"])?;
    anyhow::ensure!(!driver.contains("kind: StatefulSet\n") && driver.contains("10.0.0.1:7400"), "{driver}");
    let gateways = template(&chart, &["csi.enabled=false", "tls.gateways=tls-gateways"])?;
    anyhow::ensure!(!gateways.contains("kind: DaemonSet\n"), "{gateways}");
    let of_class = template(&chart, &[plain, "storageClass.parameters.store=s3://bucket/prefix"])?;
    anyhow::ensure!(of_class.contains("store: \"s3://bucket/prefix\"\n"), "{of_class}");
    // The provisioner of Kubernetes makes no volume for a node without a place, if places count.
    let place = ["csi.nodeGroups[0].name=all", "csi.nodeGroups[0].locality=region=eu"];
    let placed = template(&chart, &[&[store, plain][..], &place].concat())?;
    let count = |text: &str, counts: bool| text.contains(&format!("--feature-gates=Topology={counts}\n"));
    anyhow::ensure!(count(&placed, true) && count(&whole, false), "places count: {placed}");
    changes(&chart)?;
    for (value, word) in REFUSED {
        let said = template(&chart, &[store, plain, value]).err().map(|why| format!("{why:#}"));
        let told = said.as_ref().is_some_and(|why| why.contains(word));
        anyhow::ensure!(told, "--set {value}: found {said:?}, expected a refusal with {word:?}");
    }
    note(format!("{} values that cannot work are refused", REFUSED.len()));
    Ok(())
}
