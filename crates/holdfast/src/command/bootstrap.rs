//! `holdfast cluster bootstrap`: creates a cluster from a plan. Steps that are done already are skipped.
//!
//! 1. Ask every gateway for its identity. If no cluster exists yet, all must answer: a silent gateway might belong to
//!    one.
//! 2. Adopt gateways without a member id: ids from 1 in the plan's order; existing ids are kept. They are on disk
//!    before step 3.
//! 3. Start the cluster group at the first gateway. Repeating this has no further effect.
//! 4. If the cluster exists already, new gateways join. A known name on an unknown disk needs a decision of the user.
//! 5. Create sets, then volumes. Wait until each set is served.
//!
//! After a crash between two steps, run it again.

use super::cluster;
use super::connect::incomplete;
use super::set_calls::{create_set, create_volume, status};
use super::text::created_text;
use crate::cli::{Common, address, stores_text};
use crate::client::{ClusterClient, Effect, request_id};
use crate::exit::CliError;
use crate::output;
use holdfast_api::{CLUSTER_MEMBERS_MAX, hex128, member_of, v1};
use holdfast_tls::Dialer;
use holdfast_tls::files::{self, SETTINGS_BYTES_MAX};
use holdfast_types::{ByteSize, MemberId, Name, SECTOR_BYTES, limits};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;
use tokio::time::Instant;

/// The plan of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Its gateways; a new cluster numbers its members in this order.
    pub gateways: Vec<PlanGateway>,
    /// Its sets.
    #[serde(default)]
    pub sets: Vec<PlanSet>,
}

/// One gateway of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanGateway {
    /// As in its own settings.
    pub name: Name,
    /// As in its own settings.
    pub region: Name,
    /// Its admin address, HOST:PORT.
    pub api: String,
}

/// One set of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanSet {
    /// Its name.
    pub name: Name,
    /// Its store.
    pub store: String,
    /// Volumes and their sizes.
    pub volumes: BTreeMap<Name, ByteSize>,
}

impl Plan {
    /// Reads and checks a plan.
    pub fn load(path: &Path) -> Result<Self, CliError> {
        let about = || path.display().to_string();
        let next = "`holdfast cluster bootstrap --help` shows the format of a plan";
        let text = files::read_text(path, SETTINGS_BYTES_MAX)
            .map_err(|error| CliError::usage(format!("{}: cannot be read", about())).because(&error).next(next))?;
        let plan: Plan = toml::from_str(&text).map_err(|error| CliError::usage(about()).because(&error).next(next))?;
        plan.check().map_err(|problem| CliError::usage(format!("{}: {problem}", about())).next(next))?;
        Ok(plan)
    }

    /// Checks what serde cannot.
    pub fn check(&self) -> Result<(), String> {
        if self.gateways.is_empty() || self.gateways.len() > CLUSTER_MEMBERS_MAX {
            return Err(format!("found {} gateways, expected 1 to {CLUSTER_MEMBERS_MAX}", self.gateways.len()));
        }
        let (mut names, mut doors, mut sets) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for gateway in &self.gateways {
            address(&gateway.api).map_err(|problem| format!("gateway {}: api: {problem}", gateway.name))?;
            if !names.insert(&gateway.name) || !doors.insert(&gateway.api) {
                return Err(format!("gateway {} ({}): found twice, expected once", gateway.name, gateway.api));
            }
        }
        for set in &self.sets {
            stores_text(&set.store).map_err(|problem| format!("set {}: store: {problem}", set.name))?;
            if !sets.insert(&set.name) {
                return Err(format!("set {}: found twice, expected once", set.name));
            }
            if set.volumes.len() > limits::VOLUMES_PER_SET_MAX {
                return Err(format!(
                    "set {}: found {} volumes, expected at most {}",
                    set.name,
                    set.volumes.len(),
                    limits::VOLUMES_PER_SET_MAX
                ));
            }
            for (name, size) in &set.volumes {
                check_size(*size).map_err(|problem| format!("volume {}/{name}: {problem}", set.name))?;
            }
        }
        Ok(())
    }
}

/// A volume's size must be whole sectors and within the limit.
pub fn check_size(size: ByteSize) -> Result<(), String> {
    let max = limits::VOLUME_SECTORS_MAX * SECTOR_BYTES;
    let good = size.0 > 0 && size.0 <= max && size.0.is_multiple_of(SECTOR_BYTES);
    if good {
        Ok(())
    } else {
        Err(format!("found {size}, expected a multiple of {SECTOR_BYTES}B, above 0 and at most {}", ByteSize(max)))
    }
}

/// One step: checked, and carried out if it was missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// `gateway g1`, `cluster`, `set demo`, `volume demo/vol1`.
    pub subject: String,
    /// What was found or done.
    pub what: String,
    /// Whether something was done.
    pub changed: bool,
}

/// Result of a bootstrap.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// The cluster.
    pub cluster_id: String,
    /// In order.
    pub steps: Vec<Step>,
    /// Gateways of the plan that did not answer.
    pub unreachable: Vec<String>,
    /// Gateways whose disk differs from that of the member with their name, with that member.
    pub replaced: Vec<(String, u64)>,
    /// Set and the gateway that serves it.
    pub serving: BTreeMap<String, String>,
}

impl Report {
    fn changed(&self) -> bool {
        self.steps.iter().any(|step| step.changed)
    }
}

/// `holdfast cluster bootstrap`.
pub async fn run(common: &Common, config: &Path) -> Result<(), CliError> {
    let plan = Plan::load(config)?;
    let mut show = |step: &Step| {
        if common.output == output::Format::Table {
            output::say(&format!("{} {:<24} {}", if step.changed { "+" } else { "=" }, step.subject, step.what));
        }
    };
    let report = carry_out(&common.dialer, &plan, common.timeout(), &mut show).await?;
    let changes = report.steps.iter().filter(|step| step.changed).count();
    output::show(common.output, &report, || match changes {
        0 => "The cluster matches the plan; nothing was changed.".to_string(),
        _ => format!("Done: {changes} of {} steps changed something.", report.steps.len()),
    })?;
    unfinished(&report).map_or(Ok(()), |error| {
        Err(if report.changed() { error.after_a_change("this run has changed something") } else { error })
    })
}

/// What a person has to do about the rest of the plan.
fn unfinished(report: &Report) -> Option<CliError> {
    if let Some((name, member)) = report.replaced.first() {
        let member = MemberId(*member);
        let error =
            CliError::refused(format!("gateway {name} has a different disk from {member}, the member with that name"));
        let next = format!("to add it as a new member use `holdfast gateway replace {member} --by ADDRESS`");
        return Some(error.next(next));
    }
    if report.unreachable.is_empty() {
        return None;
    }
    let error =
        CliError::unreachable(format!("no answer from {}; everything else is done", report.unreachable.join(", ")));
    Some(error.next("run it again when they are running"))
}

/// Carries out `plan` within `total`.
pub async fn carry_out(
    dialer: &Dialer,
    plan: &Plan,
    total: Duration,
    progress: &mut (dyn FnMut(&Step) + Send),
) -> Result<Report, CliError> {
    carry_out_as(dialer, plan, None, total, progress).await
}

/// Like `carry_out`, with an id for a new cluster.
pub async fn carry_out_as(
    dialer: &Dialer,
    plan: &Plan,
    cluster_id: Option<&str>,
    total: Duration,
    progress: &mut (dyn FnMut(&Step) + Send),
) -> Result<Report, CliError> {
    let addresses: Vec<String> = plan.gateways.iter().map(|gateway| gateway.api.clone()).collect();
    let mut work =
        Work { dialer, plan, api: ClusterClient::new(dialer, &addresses, total), report: Report::default(), progress };
    match work.all(cluster_id).await {
        Err(error) if work.report.changed() => Err(error.after_a_change(EARLIER_STEPS)),
        Err(error) => Err(error),
        Ok(()) => Ok(work.report),
    }
}

/// What a run that ends early has behind it.
const EARLIER_STEPS: &str = "the steps before it are done";

/// Gateways that answered, by their position in the plan.
type Nodes = BTreeMap<usize, v1::Node>;

/// Time limit for the answer of one gateway in one round.
const LOOK_TIMEOUT: Duration = Duration::from_secs(3);

struct Work<'a> {
    dialer: &'a Dialer,
    plan: &'a Plan,
    api: ClusterClient,
    report: Report,
    progress: &'a mut (dyn FnMut(&Step) + Send),
}

impl Work<'_> {
    fn step(&mut self, subject: impl Into<String>, what: impl Into<String>, changed: bool) {
        let step = Step { subject: subject.into(), what: what.into(), changed };
        (self.progress)(&step);
        self.report.steps.push(step);
    }

    async fn all(&mut self, cluster_id: Option<&str>) -> Result<(), CliError> {
        let nodes = self.look().await?;
        match nodes.values().any(|node| node.initialised) {
            false => self.found(nodes, cluster_id).await?,
            true => self.complete(nodes).await?,
        }
        let plan = self.plan;
        for set in &plan.sets {
            self.set(set).await?;
        }
        Ok(())
    }

    /// Step 1: ask the gateways.
    async fn look(&mut self) -> Result<Nodes, CliError> {
        loop {
            let (nodes, silent) = self.look_once().await?;
            let formed = nodes.values().any(|node| node.initialised);
            if silent.is_empty() || formed {
                self.report.unreachable = silent.iter().map(|(name, _)| name.clone()).collect();
                for (name, why) in &silent {
                    self.step(format!("gateway {name}"), format!("no answer, skipped: {why}"), false);
                }
                return Ok(nodes);
            }
            if Instant::now() >= self.api.deadline() {
                let list: Vec<String> = silent.iter().map(|(name, why)| format!("{name} ({why})")).collect();
                let error = CliError::unreachable(format!(
                    "a new cluster needs the answers of all its gateways; no answer from {}",
                    list.join(", ")
                ));
                return Err(error.next("start them with `holdfast gateway run`, then run this again"));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn look_once(&mut self) -> Result<(Nodes, Vec<(String, String)>), CliError> {
        let left = self.api.deadline().saturating_duration_since(Instant::now());
        let mut asked = tokio::task::JoinSet::new();
        for (at, gateway) in self.plan.gateways.iter().enumerate() {
            let mut api = ClusterClient::new(self.dialer, std::slice::from_ref(&gateway.api), left.min(LOOK_TIMEOUT));
            asked.spawn(async move { (at, cluster::node(&mut api).await) });
        }
        let (mut nodes, mut silent) = (Nodes::new(), Vec::new());
        while let Some(joined) = asked.join_next().await {
            let (at, answer) = joined.map_err(|error| CliError::failed("asking the gateways").because(&error))?;
            let gateway = &self.plan.gateways[at];
            match answer {
                Ok(node) => {
                    expect_named(gateway, &node)?;
                    nodes.insert(at, node);
                }
                Err(error) => silent.push((gateway.name.to_string(), error.message)),
            }
        }
        silent.sort();
        Ok((nodes, silent))
    }

    /// Steps 2 and 3: no cluster yet, and all gateways answered.
    async fn found(&mut self, mut nodes: Nodes, wanted: Option<&str>) -> Result<(), CliError> {
        // A recovery goes on with the key that the sets have.
        if wanted.is_none() {
            fit_keys(&nodes)?;
        }
        let given: BTreeSet<&str> =
            nodes.values().map(|node| node.cluster_id.as_str()).filter(|id| !id.is_empty()).collect();
        if given.len() > 1 {
            let list: Vec<String> =
                nodes.values().map(|node| format!("{} in {:?}", node.name, node.cluster_id)).collect();
            let error = CliError::refused(format!("the gateways belong to different clusters: {}", list.join(", ")));
            return Err(error.next("give gateways of another cluster an empty data_dir, if their data is not needed"));
        }
        let drawn = || hex128(rand::random::<u128>().max(1));
        let cluster_id = given.first().copied().or(wanted).map_or_else(drawn, str::to_string);
        let mut taken: BTreeSet<u64> = nodes.values().map(|node| node.member).filter(|&member| member != 0).collect();
        for at in 0..self.plan.gateways.len() {
            let Some(node) = nodes.get_mut(&at) else { continue };
            let subject = format!("gateway {}", node.name);
            if node.member != 0 {
                // This is repeated: an earlier run may have ended before group 0 had started there.
                let mut only = self.api.only(&self.plan.gateways[at].api);
                *node = cluster::adopt(&mut only, &cluster_id, node.member, &node.disk).await?;
                let what = format!("is {} already", MemberId(node.member));
                self.step(subject, what, false);
                continue;
            }
            let free = (1..).find(|id| !taken.contains(id)).unwrap_or(1);
            taken.insert(free);
            let mut only = self.api.only(&self.plan.gateways[at].api);
            *node = cluster::adopt(&mut only, &cluster_id, free, &node.disk).await?;
            self.step(subject, format!("adopted as {}", MemberId(free)), true);
        }
        let members: Vec<v1::Member> = nodes.values().map(member_of).collect();
        let request = v1::InitClusterRequest { cluster_id: cluster_id.clone(), members, request_id: request_id() };
        let mut first = self.api.only(&self.plan.gateways[0].api);
        let call = async |mut client: crate::client::Client| client.init_cluster(request.clone()).await;
        let reply = first.call("start the cluster", Effect::Changes, call).await?;
        let what = format!("{} with {} members", cluster_id, nodes.len());
        self.step(
            "cluster",
            if reply.already { format!("{what}, started already") } else { format!("{what}, started") },
            !reply.already,
        );
        self.report.cluster_id = cluster_id;
        Ok(())
    }

    /// Step 4: the cluster exists.
    async fn complete(&mut self, nodes: Nodes) -> Result<(), CliError> {
        let status = cluster::status(&mut self.api).await?;
        self.report.cluster_id = status.cluster_id.clone();
        self.step(
            "cluster",
            format!("{} exists already, with {} members", status.cluster_id, status.members.len()),
            false,
        );
        self.registered(&status, &nodes).await?;
        for (at, node) in nodes {
            let subject = format!("gateway {}", node.name);
            if !node.cluster_id.is_empty() && node.cluster_id != status.cluster_id {
                let message = format!(
                    "gateway {}: found in cluster {}, expected {}",
                    node.name, node.cluster_id, status.cluster_id
                );
                return Err(CliError::refused(message).next("check the plan's addresses"));
            }
            let known = status.members.iter().filter_map(|member| member.member.as_ref());
            let same_name = known.clone().find(|member| member.name == node.name);
            if node.member != 0 && known.clone().any(|member| member.disk == node.disk) {
                self.step(subject, format!("is {} already", MemberId(node.member)), false);
            } else if let Some(other) = same_name.filter(|member| member.disk != node.disk) {
                self.step(
                    subject,
                    format!("has a different disk from {}, the member with that name: skipped", MemberId(other.id)),
                    false,
                );
                self.report.replaced.push((node.name.clone(), other.id));
            } else {
                cluster::fit_key(&node, status.members.iter().filter_map(|member| member.node.as_ref()))?;
                let mut only = self.api.only(&self.plan.gateways[at].api);
                let member = cluster::admit(&mut self.api, &mut only, &node, None).await?;
                self.step(subject, format!("joined as {member}"), true);
            }
        }
        Ok(())
    }

    /// Completes an interrupted earlier run that adopted gateways without registering them. All gateways are needed,
    /// since ids only grow.
    async fn registered(&mut self, status: &v1::ClusterStatusReply, nodes: &Nodes) -> Result<(), CliError> {
        let known = |node: &v1::Node| {
            let disks = status.members.iter().filter_map(|member| member.member.as_ref()).map(|member| &member.disk);
            disks.into_iter().any(|disk| *disk == node.disk)
        };
        let ours = |node: &&v1::Node| node.member != 0 && node.cluster_id == status.cluster_id;
        let Some(unknown) = nodes.values().filter(ours).find(|node| !known(node)) else { return Ok(()) };
        if nodes.len() < self.plan.gateways.len() {
            let error = CliError::unreachable(format!(
                "gateway {} was adopted as {} but is not registered: an earlier bootstrap was interrupted, and not all gateways answer now",
                unknown.name,
                MemberId(unknown.member)
            ));
            return Err(error.next("start all of them, then run this again"));
        }
        let members: Vec<v1::Member> = nodes.values().filter(ours).map(member_of).collect();
        let (cluster_id, request_id) = (status.cluster_id.clone(), request_id());
        let request = v1::InitClusterRequest { cluster_id, members, request_id };
        let call = async |mut client: crate::client::Client| client.init_cluster(request.clone()).await;
        self.api.call("complete the cluster", Effect::Changes, call).await?;
        self.step("cluster", "registered the gateways that an interrupted run had adopted", true);
        Ok(())
    }

    /// Step 5: one set with its volumes.
    async fn set(&mut self, set: &PlanSet) -> Result<(), CliError> {
        let name = set.name.as_str();
        let (summary, created) = create_set(&mut self.api, name, &set.store, None).await?;
        self.step(format!("set {name}"), format!("{} in {}", created_text(created), summary.store), created);
        for (volume, size) in &set.volumes {
            let created = create_volume(&mut self.api, name, volume.as_str(), *size).await?;
            let what = format!("{} with {size}", created_text(created));
            self.step(format!("volume {name}/{volume}"), what, created);
        }
        let status = status(&mut self.api, name, false).await?;
        let leader = status.leader.ok_or_else(|| incomplete("the set's leader"))?;
        self.step(format!("set {name}"), format!("served by {}", leader.name), false);
        self.report.serving.insert(name.to_string(), leader.name);
        Ok(())
    }
}

/// A new cluster has one key, and none that is weak by its derivation (KEYRING-W1 at each gateway).
fn fit_keys(nodes: &Nodes) -> Result<(), CliError> {
    for node in nodes.values() {
        cluster::fit_key(node, nodes.values().take(1))?;
    }
    let why = |node: &v1::Node| Some(node.keys.as_ref()?.not_for_new.clone()).filter(|why| !why.is_empty());
    let weak = nodes.values().find_map(|node| Some((node.name.clone(), why(node)?)));
    weak.map_or(Ok(()), |(name, why)| Err(CliError::refused(format!("gateway {name}: {why}"))))
}

/// Checks that a gateway has the name and region of the plan.
pub fn expect_named(gateway: &PlanGateway, node: &v1::Node) -> Result<(), CliError> {
    if node.name == gateway.name.as_str() && node.region == gateway.region.as_str() {
        return Ok(());
    }
    let found = format!(
        "{}: found gateway {} in region {}, expected {} in {}",
        gateway.api, node.name, node.region, gateway.name, gateway.region
    );
    Err(CliError::usage(found).next("correct the plan or the settings of the gateway"))
}

#[cfg(test)]
#[path = "bootstrap_tests.rs"]
mod tests;
