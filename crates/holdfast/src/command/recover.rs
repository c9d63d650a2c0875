//! `holdfast cluster recover`: a new cluster from the data in a store.
//!
//! 1. Survey: read the sets from the stores and the identities of the plan's gateways. Nothing is changed before
//!    everything is known and allowed.
//! 2. Raise the generation in each set's head for the new cluster: from then on the store fences every older generation
//!    of the set. This is refused for a store that ignores conditional PUTs, which cannot fence.
//! 3. Wait until an old gateway that still runs has noticed.
//! 4. Create the new cluster (as `bootstrap` does), and start each set from its head.
//!
//! Each step detects what an earlier run has done: a head records the cluster that it was raised for, and until the
//! first checkpoint also the gateway. A run with other gateways raises it again and thereby fences the earlier run.

use super::connect::incomplete;
use super::console::tell;
use super::store_access::{MOVED, checkpoint_text, of_recovery, survey};
use super::text::time;
use super::{bootstrap, cluster, set_calls, store};
use crate::cli::{Common, RecoverArgs};
use crate::client::{Client, ClusterClient, Effect, request_id};
use crate::exit::CliError;
use crate::output;
use bootstrap::Plan;
use holdfast_api::{different_places_of, hex128, v1};
use holdfast_gateway::checks::check_allowed;
use holdfast_set::head::NOTICED_AFTER;
use holdfast_set::recovery::snapshots::LeftOut;
use holdfast_set::recovery::{self, Found, Leaves, Obstacle, RecoveryError};
use holdfast_types::SetId;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

mod snapshots;

/// Default time limit: includes creating a cluster, the wait, and a slow store.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Most surveys, if heads are replaced meanwhile. Surveys after the first one are short.
const LOOKS_MAX: u32 = 3;

/// What has happened once a generation is raised.
const TAKEN: &str = "sets are taken over already, and their old gateways are fenced: run it again";

/// One set, as restored.
#[derive(Debug, Serialize)]
struct Restored {
    set: String,
    id: u64,
    store: String,
    generation: u64,
    /// Log index in the old generation; absent if nothing was ever uploaded.
    index: Option<u64>,
    term: Option<u64>,
    /// The generation in whose log that index is.
    index_generation: Option<u64>,
    /// Writes acknowledged before this time are recovered.
    at_unix_ms: Option<u64>,
    volumes: Vec<Volume>,
    /// Names of the recovered snapshots.
    snapshots: Vec<String>,
    /// Snapshots that this run left out, with the missing objects.
    snapshots_left_out: Vec<LeftOut>,
    snapshot_schedule: String,
    /// Whether this run raised it, not an earlier one.
    raised: bool,
    served_by: String,
}

#[derive(Debug, Serialize)]
struct Volume {
    name: String,
    size_bytes: u64,
}

/// Answers of the gateways of the plan.
struct Gateways {
    /// In the plan's order.
    nodes: Vec<v1::Node>,
    /// The cluster that they belong to already.
    cluster: Option<String>,
}

/// Result of a survey, which changes nothing.
struct SurveyResult {
    found: Vec<Found>,
    gateways: Gateways,
    cluster: String,
    /// Sets that are not raised for this cluster yet.
    raise: Vec<SetId>,
    /// Per set, the snapshots that cannot be recovered.
    left_out: BTreeMap<SetId, Vec<LeftOut>>,
}

/// `holdfast cluster recover`.
pub async fn run(common: &Common, args: &RecoverArgs) -> Result<(), CliError> {
    let total = common.timeout.unwrap_or(TIMEOUT);
    let plan = Plan::load(&args.config)?;
    if let Some(set) = plan.sets.first() {
        let error = CliError::usage(format!("{}: found set {}, expected no sets", args.config.display(), set.name));
        return Err(error.next("remove the sets from the plan: they are recovered from the store"));
    }
    let SurveyResult { found, gateways, cluster, raise, mut left_out } =
        look_until_it_stands(common, args, &plan, total).await?;
    if !raise.is_empty() {
        if !args.i_know_the_old_cluster_is_gone {
            let sets = found.iter().filter_map(|f| Some((f, left_out.get(&f.set)?.as_slice())));
            let error = CliError::refused(format!(
                "the old cluster may still exist, and writes after the checkpoints above would be lost. {}Nothing was changed",
                snapshots::planned(sets)
            ));
            return Err(error.next(
                "if a majority of the old gateways' disks exists, start those gateways; otherwise add --i-know-the-old-cluster-is-gone",
            ));
        }
        check_room(common, &plan, &found, &raise, &gateways, total).await?;
        let stores: Vec<String> = found.iter().filter(|f| raise.contains(&f.set)).map(|f| f.url.clone()).collect();
        check_places(&all_nodes(common, &plan, &gateways, total).await?, &stores)?;
        store::check_before_raise(common, &args.access, &stores).await?;
    }
    let found = raise_all(common, found, &raise, &cluster, &gateways).await?;
    let mut show = |step: &bootstrap::Step| {
        tell(common, &format!("{} {:<24} {}", if step.changed { "+" } else { "=" }, step.subject, step.what));
    };
    let told = |error: CliError| if raise.is_empty() { error } else { error.after_a_change(TAKEN) };
    bootstrap::carry_out_as(&common.dialer, &plan, Some(&cluster), total, &mut show).await.map_err(told)?;
    let addresses: Vec<String> = plan.gateways.iter().map(|gateway| gateway.api.clone()).collect();
    let mut api = ClusterClient::new(&common.dialer, &addresses, total);
    let mut restored = Vec::new();
    for found in &found {
        let left_out = left_out.remove(&found.set).unwrap_or_default();
        let done = restore(&mut api, found, raise.contains(&found.set), left_out).await;
        let changed = !raise.is_empty() || !restored.is_empty();
        restored.push(done.map_err(|error| if changed { error.after_a_change(TAKEN) } else { error })?);
    }
    let json = serde_json::json!({ "cluster_id": cluster, "sets": restored });
    output::show(common.output, &json, || table(&found, &restored))
}

/// Surveys until no head changes meanwhile: checking snapshots can take minutes, and a live gateway may replace a head
/// in that time. A repeated survey checks only new snapshots.
async fn look_until_it_stands(
    common: &Common,
    args: &RecoverArgs,
    plan: &Plan,
    total: Duration,
) -> Result<SurveyResult, CliError> {
    let mut known = BTreeMap::new();
    let look = async || look_at_all(common, args, plan, total, &mut known).await;
    until_it_stands(look, replaced, |text| tell(common, text)).await
}

/// Names of the sets to be raised whose heads have changed since the survey.
async fn replaced(looked: &SurveyResult) -> Result<Vec<String>, CliError> {
    let mut names = Vec::new();
    for found in looked.found.iter().filter(|found| looked.raise.contains(&found.set)) {
        let is_replaced = found.is_replaced().await;
        if is_replaced.map_err(|error| of_recovery(&RecoveryError::from(error)))? {
            names.push(found.head.name.to_string());
        }
    }
    Ok(names)
}

/// Repeats `look` until nothing is `replaced`, at most [`LOOKS_MAX`] times. After that the raise refuses a changed
/// head.
async fn until_it_stands<L>(
    mut look: impl AsyncFnMut() -> Result<L, CliError>,
    replaced: impl AsyncFn(&L) -> Result<Vec<String>, CliError>,
    mut say: impl FnMut(&str),
) -> Result<L, CliError> {
    let mut looks = 1;
    loop {
        let looked = look().await?;
        let names = replaced(&looked).await?;
        if names.is_empty() || looks >= LOOKS_MAX {
            return Ok(looked);
        }
        looks += 1;
        let names = names.join(", ");
        say(&format!(
            "the head in the store changed during the survey ({names}): old gateways or another recovery are running; repeating the survey"
        ));
    }
}

/// Step 1. Snapshots in `known` are not checked again.
async fn look_at_all(
    common: &Common,
    args: &RecoverArgs,
    plan: &Plan,
    total: Duration,
    known: &mut BTreeMap<SetId, recovery::snapshots::CheckedRoots>,
) -> Result<SurveyResult, CliError> {
    let (mut found, bad) = survey(&args.key, &args.access, &args.from_store).await?;
    if let Some((set, why)) = bad.first() {
        let error = CliError::refused(format!("set {set} cannot be opened: {why}"));
        return Err(error.next(if why.contains(MOVED) {
            "use the new stores of the set; the data here is old. Nothing was changed"
        } else if why.contains("name all stores of the set") {
            "give all its stores in one --from-store, in that order"
        } else {
            "use the cluster key that it was created with; `holdfast verify` reports damage"
        }));
    }
    if found.is_empty() {
        let error = CliError::refused(format!("found no set in {}", args.from_store.join(", ")));
        return Err(
            error.next("check the URL: it must be the one that `holdfast set list` showed, including the prefix")
        );
    }
    for (at, one) in found.iter().enumerate() {
        // Both would be fenced, and one of them not restored.
        if let Some(other) = found[..at].iter().find(|o| o.set == one.set || o.head.name == one.head.name) {
            let error = CliError::refused(format!(
                "set {} ({}) of {} and set {} ({}) of {} cannot be in one cluster; nothing was changed",
                other.set, other.head.name, other.url, one.set, one.head.name, one.url
            ));
            return Err(
                error.next("give only one of the two in --from-store; recover the other one into a separate cluster")
            );
        }
    }
    check_origins(&found)?;
    for found in &found {
        tell(common, &format!("set {}: {}", found.head.name, checkpoint_text(found)));
    }
    for found in &found {
        check_stored(common, found, args.fill_empty_stores).await?;
    }
    let gateways = look(common, plan, total).await?;
    let cluster = choose(&found, &gateways)?;
    let raise: Vec<SetId> = found.iter().filter(|f| hex128(f.head.life.cluster) != cluster).map(|f| f.set).collect();
    let mut left_out: BTreeMap<SetId, Vec<LeftOut>> = BTreeMap::new();
    for one in found.iter_mut().filter(|f| raise.contains(&f.set)) {
        left_out.insert(one.set, snapshots::look(common, one, known.entry(one.set).or_default()).await?);
    }
    Ok(SurveyResult { found, gateways, cluster, raise, left_out })
}

/// Checks that the set can be opened after it is raised, and that all its stores belong to it.
async fn check_stored(common: &Common, found: &Found, fill: bool) -> Result<(), CliError> {
    let (name, mut silent) = (&found.head.name, Vec::new());
    let obstacle = recovery::obstacle(found, Leaves::Read, &mut silent).await.map_err(|error| of_recovery(&error))?;
    for error in silent {
        tell(common, &format!("set {name}: continuing without a store: {error}"));
    }
    match obstacle {
        Some(Obstacle::Root(why)) => {
            let error =
                CliError::refused(format!("set {name}: the root that its head refers to cannot be read: {why}"));
            Err(error.next("nothing was changed; check lifecycle rules and object versions of the bucket, and run `holdfast verify`"))
        }
        Some(Obstacle::Nothing(places)) if !fill => {
            let error = CliError::refused(format!("set {name}: found no objects of it in {}", places.join(", ")));
            Err(error.next(
                "check that URL; nothing was changed. If the store belongs to the set and was emptied, add --fill-empty-stores",
            ))
        }
        Some(Obstacle::Nothing(places)) => {
            tell(common, &format!("set {name}: {} will be filled from the other stores", places.join(", ")));
            Ok(())
        }
        None => Ok(()),
    }
}

/// A clone reads objects of its origin: it cannot be recovered without the origin and its pin (ADR 0028).
fn check_origins(found: &[Found]) -> Result<(), CliError> {
    for clone in found {
        let Some(of) = &clone.head.links.clone_of else { continue };
        let what = format!("set {} is a clone of set {} (snapshot {})", clone.head.name, of.origin, of.snapshot);
        let Some(origin) = found.iter().find(|origin| origin.set == of.origin && origin.url == clone.url) else {
            let error = CliError::refused(format!("{what}, which is not found in {}; nothing was changed", clone.url));
            return Err(error.next(
                "run it again, since a listing may be outdated; `holdfast verify` reports what is left of the clone",
            ));
        };
        let pin = origin.head.links.pins.get(&of.request);
        if pin.is_none_or(|pin| pin.clone != clone.set || pin.root != of.root) {
            let error = CliError::refused(format!(
                "{what}, {}, which has no pin for it; nothing was changed",
                origin.head.name
            ));
            return Err(
                error.next("run it again, since the head may be outdated; otherwise restore the clone from a backup")
            );
        }
    }
    Ok(())
}

/// Asks all gateways of the plan: all must answer, because their state decides the next steps.
async fn look(common: &Common, plan: &Plan, total: Duration) -> Result<Gateways, CliError> {
    let mut nodes = Vec::new();
    for gateway in &plan.gateways {
        let mut api = ClusterClient::new(&common.dialer, std::slice::from_ref(&gateway.api), total);
        let node = cluster::node(&mut api).await?;
        bootstrap::expect_named(gateway, &node)?;
        nodes.push(node);
    }
    let mut clusters: Vec<String> = nodes.iter().map(|n| n.cluster_id.clone()).filter(|id| !id.is_empty()).collect();
    clusters.sort();
    clusters.dedup();
    if clusters.len() > 1 {
        let error = CliError::refused(format!("the gateways belong to different clusters: {}", clusters.join(", ")));
        return Err(error.next("give the new gateways empty data directories"));
    }
    Ok(Gateways { nodes, cluster: clusters.pop() })
}

/// The new cluster's id: that of the gateways, or that of an earlier run with one of these gateways, or a new one.
fn choose(found: &[Found], gateways: &Gateways) -> Result<String, CliError> {
    if let Some(cluster) = &gateways.cluster {
        return Ok(cluster.clone());
    }
    let ours = |found: &&Found| gateways.nodes.iter().any(|node| node.disk == hex128(found.head.raised_for));
    let mut begun: Vec<u128> = found.iter().filter(ours).map(|f| f.head.life.cluster).collect();
    begun.sort_unstable();
    begun.dedup();
    match begun.as_slice() {
        [] => Ok(hex128(rand::random::<u128>().max(1))),
        [cluster] => Ok(hex128(*cluster)),
        _ => Err(CliError::refused("earlier runs with these gateways have raised the sets for different clusters")
            .next("give the new gateways empty data directories, then run it again")),
    }
}

/// Checks that the cluster can accept the sets, before anything is raised.
async fn check_room(
    common: &Common,
    plan: &Plan,
    found: &[Found],
    raise: &[SetId],
    gateways: &Gateways,
    total: Duration,
) -> Result<(), CliError> {
    if !gateways.nodes.iter().any(|node| node.initialised) {
        return Ok(());
    }
    let addresses: Vec<String> = plan.gateways.iter().map(|gateway| gateway.api.clone()).collect();
    let call = async |mut client: Client| client.list_sets(v1::ListSetsRequest {}).await;
    let there =
        ClusterClient::new(&common.dialer, &addresses, total).call("list the sets", Effect::Reads, call).await?.sets;
    for new in found.iter().filter(|f| raise.contains(&f.set)) {
        let clash = there.iter().find(|set| set.id >= new.set.0 || set.name == new.head.name.as_str());
        if let Some(clash) = clash {
            let error = CliError::refused(format!(
                "set {} (number {}) cannot join the plan's cluster, which has set {} (number {})",
                new.head.name, new.set.0, clash.name, clash.id
            ));
            return Err(error.next("recover into new gateways with empty data directories"));
        }
    }
    Ok(())
}

/// The gateways that are compared before a set is put into a store (ACCESS-A8): those of the plan, and the others of a
/// cluster that they have already, as far as these answer.
async fn all_nodes(
    common: &Common,
    plan: &Plan,
    gateways: &Gateways,
    total: Duration,
) -> Result<Vec<v1::Node>, CliError> {
    let mut all = gateways.nodes.clone();
    if all.iter().any(|node| node.initialised) {
        let addresses: Vec<String> = plan.gateways.iter().map(|gateway| gateway.api.clone()).collect();
        let status = cluster::status(&mut ClusterClient::new(&common.dialer, &addresses, total)).await?;
        let others = not_in(&all, status);
        all.extend(others);
    }
    Ok(all)
}

/// The gateways of a cluster that answer and are none of these.
fn not_in(these: &[v1::Node], status: v1::ClusterStatusReply) -> Vec<v1::Node> {
    let answering = status.members.into_iter().filter_map(|member| member.node);
    answering.filter(|node| these.iter().all(|one| one.disk != node.disk)).collect()
}

/// Checks that the gateways put sets into these stores, before anything is raised: afterwards the old gateways are
/// fenced, and a set that is refused would be served by nobody (ACCESS-A2, ACCESS-A8).
fn check_places(nodes: &[v1::Node], stores: &[String]) -> Result<(), CliError> {
    let next = "nothing was changed; set `[store] allowed` to the same list at all gateways of the plan and of their \
                cluster, restart them, and run it again";
    let different = different_places_of(nodes.iter().map(|node| (node.name.as_str(), node)));
    if !different.is_empty() {
        let told: Vec<String> = different.iter().map(|[names, places]| format!("{names}: {places}")).collect();
        let message = format!("the gateways have different lists of allowed stores: {}", told.join("; "));
        return Err(CliError::refused(message).next(next));
    }
    for node in nodes {
        let places = node.allowed_stores.as_ref().map(|allowed| allowed.places.as_slice()).unwrap_or_default();
        for store in stores {
            let checked = check_allowed(store, places);
            checked.map_err(|error| CliError::refused(format!("gateway {}: {error}", node.name)).next(next))?;
        }
    }
    Ok(())
}

/// Steps 2 and 3.
async fn raise_all(
    common: &Common,
    found: Vec<Found>,
    raise: &[SetId],
    cluster: &str,
    gateways: &Gateways,
) -> Result<Vec<Found>, CliError> {
    let cluster = holdfast_api::disk_from_text("cluster_id", cluster)
        .map_err(|error| CliError::failed("the new cluster's id").because(&error))?;
    let first = gateways.nodes.first().ok_or_else(|| incomplete("a gateway"))?;
    let disk = holdfast_api::disk_from_text("disk", &first.disk)
        .map_err(|error| CliError::failed(format!("gateway {}", first.name)).because(&error))?;
    let (mut all, mut begun) = (Vec::new(), false);
    for found in found {
        if !raise.contains(&found.set) {
            all.push(found);
            continue;
        }
        let raised = recovery::raise(&found, cluster, disk).await.map_err(|error| match begun {
            true => of_recovery(&error).after_a_change(TAKEN),
            false => of_recovery(&error),
        })?;
        begun = true;
        tell(common, &format!("+ set {}: generation {} in the store", raised.head.name, raised.head.life.generation));
        all.push(raised);
    }
    // Also after an interrupted run, which may not have waited.
    if !raise.is_empty() || all.iter().any(|found| found.head.raised_for != 0) {
        tell(common, &format!("waiting {NOTICED_AFTER:?}, until old gateways that may still run have noticed"));
        tokio::time::sleep(NOTICED_AFTER).await;
    }
    Ok(all)
}

/// Step 4, one set.
async fn restore(
    api: &mut ClusterClient,
    found: &Found,
    raised: bool,
    snapshots_left_out: Vec<LeftOut>,
) -> Result<Restored, CliError> {
    let request = v1::RestoreSetRequest {
        store: found.url.clone(),
        set: found.set.0,
        generation: found.head.life.generation,
        request_id: request_id(),
    };
    let call = async |mut client: Client| client.restore_set(request.clone()).await;
    let name = found.head.name.as_str();
    let reply = api.call(&format!("restore set {name}"), Effect::Changes, call).await?;
    let summary = reply.set.ok_or_else(|| incomplete("the set"))?;
    let status = set_calls::status(api, name, false).await?;
    let leader = status.leader.ok_or_else(|| incomplete("the set's leader"))?;
    let covered = found.head.covered;
    Ok(Restored {
        set: summary.name,
        id: summary.id,
        store: summary.store,
        generation: found.head.life.generation,
        index: covered.map(|c| c.upto.index.0),
        term: covered.map(|c| c.upto.term.0),
        index_generation: covered.map(|c| c.generation),
        at_unix_ms: covered.map(|c| c.at_unix_ms),
        volumes: status.volumes.into_iter().map(|v| Volume { name: v.name, size_bytes: v.size_bytes }).collect(),
        snapshots: snapshots::names(found),
        snapshots_left_out,
        snapshot_schedule: status.snapshot_schedule,
        raised,
        served_by: leader.name,
    })
}

fn table(found: &[Found], restored: &[Restored]) -> String {
    let rows = found.iter().zip(restored).map(|(found, set)| {
        [
            set.set.clone(),
            set.generation.to_string(),
            set.index.map_or(String::new(), |index| index.to_string()),
            set.at_unix_ms.map_or(String::new(), time),
            set.volumes.len().to_string(),
            match set.snapshots_left_out.len() {
                0 => set.snapshots.len().to_string(),
                out => format!("{} of {}", set.snapshots.len(), set.snapshots.len() + out),
            },
            set.served_by.clone(),
            found.url.clone(),
        ]
    });
    let header =
        ["SET", "GENERATION", "RESTORED TO INDEX", "ACKNOWLEDGED BEFORE", "VOLUMES", "SNAPSHOTS", "SERVED BY", "STORE"];
    output::table(header, rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of surveys, and the messages, if these heads were replaced during the first surveys.
    async fn looks(replaced_in: &[&[&str]]) -> (u32, Vec<String>) {
        let (mut looks, mut said) = (0, Vec::new());
        let look = async || {
            looks += 1;
            Ok::<u32, CliError>(looks)
        };
        let replaced = async |look: &u32| {
            let names = replaced_in.get(*look as usize - 1).copied().unwrap_or_default();
            Ok::<Vec<String>, CliError>(names.iter().map(|name| (*name).to_string()).collect())
        };
        let stood = until_it_stands(look, replaced, |text| said.push(text.to_string())).await.unwrap();
        (stood, said)
    }

    /// ACCESS-A8, ACCESS-A2: what the gateways would refuse afterwards is refused before anything is raised.
    #[test]
    fn gateways_that_refuse_the_stores_are_found_before_anything_is_raised() {
        let node = |name: &str, places: &[&str]| {
            let places = places.iter().map(ToString::to_string).collect();
            let allowed_stores = Some(v1::AllowedStores { places });
            v1::Node { name: name.to_string(), allowed_stores, ..v1::Node::default() }
        };
        let stores = ["s3://aaa/sets/".to_string()];
        let found = |nodes: &[v1::Node]| check_places(nodes, &stores).err().map(|error| error.message);
        let older = v1::Node { name: "g3".to_string(), ..v1::Node::default() };
        assert_eq!(found(&[node("g1", &["s3://aaa/"]), node("g2", &["s3://aaa/"]), older]), None);
        assert_eq!(found(&[node("g1", &[]), node("g2", &[])]), None, "they allow every place");
        let different = found(&[node("g1", &["s3://aaa/"]), node("g2", &[])]).expect("different lists");
        assert!(different.contains("g2: anywhere; g1: s3://aaa/"), "{different}");
        let elsewhere = found(&[node("g1", &["s3://bbb/"]), node("g2", &["s3://bbb/"])]).expect("not allowed");
        assert!(elsewhere.contains("gateway g1") && elsewhere.contains("s3://aaa/sets/"), "{elsewhere}");
    }

    /// ACCESS-A8: the plan names three gateways of a cluster of four. The fourth is compared as well once a set is to
    /// be restored, and the old gateways would be fenced by then.
    #[test]
    fn a_gateway_of_the_cluster_that_the_plan_does_not_name_is_compared_too() {
        let node = |disk: &str, places: &[&str]| {
            let allowed_stores = Some(v1::AllowedStores { places: places.iter().map(ToString::to_string).collect() });
            v1::Node { name: format!("g{disk}"), disk: disk.to_string(), allowed_stores, ..v1::Node::default() }
        };
        let named = [node("1", &["s3://aaa/"]), node("2", &["s3://aaa/"])];
        let member = |node: Option<v1::Node>| v1::MemberStatus { node, ..v1::MemberStatus::default() };
        let found = |fourth: Option<v1::Node>| {
            let members = named.iter().cloned().map(|node| member(Some(node))).chain([member(fourth)]).collect();
            let others = not_in(&named, v1::ClusterStatusReply { members, ..v1::ClusterStatusReply::default() });
            let all: Vec<v1::Node> = named.iter().cloned().chain(others).collect();
            (all.len(), check_places(&all, &["s3://aaa/sets/".to_string()]).err().map(|error| error.message))
        };
        let (compared, different) = found(Some(node("4", &[])));
        assert!(compared == 3 && different.as_ref().is_some_and(|why| why.contains("g4: anywhere")), "{different:?}");
        assert_eq!(found(Some(node("4", &["s3://aaa/"]))), (3, None));
        assert_eq!(found(None), (2, None), "one that does not answer is not compared");
    }

    /// A set is raised only if its head has not changed since the survey: otherwise the raise would be refused, or a
    /// new snapshot would be missed.
    #[tokio::test]
    async fn a_head_that_was_replaced_meanwhile_is_surveyed_again() {
        assert_eq!(looks(&[]).await, (1, Vec::new()));
        let (stood, said) = looks(&[&["demo", "logs"]]).await;
        assert_eq!((stood, said.len()), (2, 1));
        assert!(said[0].contains("changed during the survey (demo, logs)"), "{said:?}");
        assert_eq!(looks(&[&["demo"], &[], &["demo"]]).await.0, 2, "an unchanged head needs no further survey");
        // The number of surveys is limited.
        let each: [&[&str]; 9] = [&["demo"]; 9];
        let (stood, said) = looks(&each).await;
        assert_eq!((stood, said.len()), (LOOKS_MAX, LOOKS_MAX as usize - 1));
    }
}
