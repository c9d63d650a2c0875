//! The health of the stores of the sets that run here: for status, `/healthz` and the metrics.

use crate::node::Node;
use holdfast_api::{Refusal, RefusalCode, v1};
use holdfast_host::unix_ms;
use holdfast_set::server::SetServer;
use holdfast_set::space::RETIRED_FULL;
use holdfast_store::{ObjectStore, Part, ReplicaStanding, Standing, StoreError, StoreOptions, Trouble};
use holdfast_types::Placement;
use holdfast_types::sync::RwLockExt;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Trouble with a store that this gateway has met within so many milliseconds is told, whoever leads the set.
const LATELY_MS: u64 = 120_000;

fn trouble_message(trouble: &Trouble, ended_unix_ms: u64) -> v1::StoreTrouble {
    v1::StoreTrouble {
        kind: trouble.kind.name().to_string(),
        error: trouble.error.clone(),
        since_unix_ms: trouble.since_unix_ms,
        last_unix_ms: trouble.last_unix_ms,
        failures: trouble.failures,
        needs_operator: trouble.kind.needs_operator(),
        ended_unix_ms,
    }
}

fn trouble_messages(standing: &Standing) -> (Option<v1::StoreTrouble>, Option<v1::StoreTrouble>) {
    let last = standing.last.as_ref().map(|(trouble, ended)| trouble_message(trouble, *ended));
    (standing.now.as_ref().map(|trouble| trouble_message(trouble, 0)), last)
}

fn part_text(part: Part) -> &'static str {
    match part {
        Part::Stays => "stays",
        Part::Joins => "joins",
        Part::Leaves => "leaves",
    }
}

fn replica_message(replica: &ReplicaStanding, changing: bool) -> v1::StoreReplica {
    let (now, last) = trouble_messages(&replica.standing);
    v1::StoreReplica {
        store: replica.place.clone(),
        now,
        last,
        missing_objects: replica.backlog.objects,
        missing_bytes: replica.backlog.bytes,
        head_behind: replica.backlog.head,
        compared: replica.backlog.compared,
        stuck_objects: replica.backlog.stuck,
        part: if changing { part_text(replica.part).to_string() } else { String::new() },
    }
}

/// The health of `set`'s stores, as seen by this gateway.
pub(crate) fn store_health(set: &SetServer) -> v1::StoreHealth {
    let (mut now, mut last) = trouble_messages(&set.health.standing(unix_ms()));
    let several = set.head.store().several();
    let placement = set.switch.text();
    let changing = Placement::parse(&placement).next.is_some();
    let standings = several.as_ref().map_or_else(Vec::new, |several| several.standings(unix_ms()));
    let replicas: Vec<v1::StoreReplica> = standings.iter().map(|one| replica_message(one, changing)).collect();
    let worse = |a: &v1::StoreTrouble| (a.needs_operator, a.last_unix_ms);
    let (together, _) = trouble_messages(&set.head.store_standing());
    now = replicas.iter().filter_map(|replica| replica.now.clone()).chain(together).chain(now).max_by_key(worse);
    last = replicas.iter().filter_map(|replica| replica.last.clone()).chain(last).max_by_key(|last| last.ended_unix_ms);
    v1::StoreHealth {
        set: set.name.to_string(),
        backlog_bytes: set.host.with(|m| m.backlog_bytes()),
        now,
        last,
        write_quorum: several.map_or(0, |several| u32::try_from(several.write_quorum()).unwrap_or(u32::MAX)),
        replicas,
        retired_objects: set.host.with(|m| m.state().retired.len() as u64),
        retired_objects_max: RETIRED_FULL as u64,
        placement,
        placement_waits: set.migration.said().map(|said| said.waits).unwrap_or_default(),
    }
}

/// What of it is told to whoever is to act, by a warning or an alert: of a set that this gateway leads, all. Of another
/// set it asks the store for little, or for nothing. So what failed while it led would be told until it leads again,
/// and what a store lacked then is the next leader's to know.
fn alarming(mut health: v1::StoreHealth, leads: bool, now_unix_ms: u64) -> v1::StoreHealth {
    if leads {
        return health;
    }
    let lately = |trouble: &v1::StoreTrouble| now_unix_ms.saturating_sub(trouble.last_unix_ms) <= LATELY_MS;
    health.now = health.now.filter(lately);
    for replica in &mut health.replicas {
        replica.now = replica.now.take().filter(lately);
        (replica.missing_objects, replica.missing_bytes, replica.head_behind) = (0, 0, false);
    }
    health
}

impl Node {
    fn running_sets(&self) -> Vec<Arc<SetServer>> {
        self.sets.reading().values().cloned().collect()
    }

    /// The health of each set that runs here.
    pub(crate) fn store_healths(&self) -> Vec<v1::StoreHealth> {
        self.running_sets().iter().map(|set| store_health(set)).collect()
    }

    /// Of each set that runs here, what is [`alarming`].
    fn alarming_stores(&self) -> Vec<v1::StoreHealth> {
        let told = |set: &Arc<SetServer>| alarming(store_health(set), set.group.leading_term().is_some(), unix_ms());
        self.running_sets().iter().map(told).collect()
    }

    /// Problems of stores and of their content, one line each. None of them makes this gateway unfit to serve: the
    /// journal still takes writes (R8).
    pub(crate) fn store_warnings(&self) -> Vec<String> {
        let healths = self.alarming_stores();
        let mut lines = Vec::new();
        for health in &healths {
            lines.extend(health.now.as_ref().map(|now| line(health, now)));
            lines.extend(health.replicas.iter().filter(|r| lacks(r)).map(|replica| {
                format!(
                    "set {}: {} lacks {} objects of {:.1} MiB{}; they are being copied from the other stores{}",
                    health.set,
                    replica.store,
                    replica.missing_objects,
                    replica.missing_bytes as f64 / f64::from(1 << 20),
                    if replica.head_behind { ", and the heads differ" } else { "" },
                    match replica.stuck_objects {
                        0 => String::new(),
                        stuck => format!(
                            "; {stuck} of them have no readable copy in any other store: see `holdfast verify --each-store`"
                        ),
                    }
                )
            }));
            if health.retired_objects >= health.retired_objects_max {
                lines.push(format!(
                    "set {}: {} objects wait to be deleted, which needs every store; until then no further objects are retired and no space is freed",
                    health.set, health.retired_objects
                ));
            }
        }
        for set in self.running_sets() {
            let total = set.scrub.known().total;
            if total > 0 {
                lines.push(format!("set {}: the scrub found {total} damaged places (R9)", set.name));
            }
            if let Some(why) = set.host.unfinished() {
                lines.push(format!("set {}: the last checkpoint failed and is being retried: {why}", set.name));
            }
        }
        lines
    }

    /// The same as gauges. Returns of which stores, beside their set, where a set has several.
    pub(crate) fn record_store_gauges(&self) -> BTreeSet<(String, String)> {
        let mut shown = BTreeSet::new();
        for health in self.alarming_stores() {
            let (set, now) = (health.set, health.now);
            for replica in health.replicas {
                shown.insert((set.clone(), replica.store.clone()));
                let since = replica.now.as_ref().map_or(0.0, |now| now.since_unix_ms as f64 / 1e3);
                let labels = [("set", set.clone()), ("store", replica.store)];
                metrics::gauge!("holdfast_store_replica_trouble_since_timestamp_seconds", &labels).set(since);
                metrics::gauge!("holdfast_store_missing_objects", &labels).set(replica.missing_objects as f64);
                metrics::gauge!("holdfast_store_missing_bytes", &labels).set(replica.missing_bytes as f64);
            }
            let since = now.as_ref().map_or(0.0, |now| now.since_unix_ms as f64 / 1e3);
            let acts = now.as_ref().is_some_and(|now| now.needs_operator);
            metrics::gauge!("holdfast_store_trouble_since_timestamp_seconds", "set" => set.clone()).set(since);
            metrics::gauge!("holdfast_store_needs_operator", "set" => set).set(f64::from(u8::from(acts)));
        }
        shown
    }
}

fn lacks(replica: &v1::StoreReplica) -> bool {
    replica.missing_objects > 0
}

fn line(health: &v1::StoreHealth, now: &v1::StoreTrouble) -> String {
    let lasted = unix_ms().saturating_sub(now.since_unix_ms) / 1000;
    let who = if now.needs_operator { "an operator must act" } else { "tried again" };
    format!(
        "set {}: store {} for {lasted} s, {} failures in a row, {who}: {}; {:.1} MiB wait in the journal",
        health.set,
        now.kind,
        now.failures,
        now.error,
        health.backlog_bytes as f64 / f64::from(1 << 20)
    )
}

/// Maximum time to open a new set's store: a directory is created and synced, and its file system may hang.
pub(super) const OPEN_LIMIT: Duration = Duration::from_secs(10);

/// Maximum number of directories that the process opens at once. Each one blocks a thread until its file system
/// answers.
const OPENING_MAX: usize = 2;
static OPENING: Semaphore = Semaphore::const_new(OPENING_MAX);

/// The refusal for a store that could not be opened: busy if the error may pass, else invalid.
pub(super) fn not_opened(error: &StoreError, words: String) -> Refusal {
    Refusal::new(if error.may_pass() { RefusalCode::Busy } else { RefusalCode::Invalid }, words)
}

/// Opens the stores of a new set. Gives up on a store that hangs; its thread is blocked until the file system answers.
pub(super) async fn open_within(
    url: &str,
    options: StoreOptions,
    limit: Duration,
) -> Result<Arc<dyn ObjectStore>, Refusal> {
    if !url.contains("file:") {
        // No request is sent, but the file with its keys is read.
        let opened = holdfast_store::open_aside(url, move |url| holdfast_store::open(url, &options)).await;
        return opened.map_err(|e| not_opened(&e, format!("store: {e}")));
    }
    let bad = |e: StoreError| Refusal::new(RefusalCode::Invalid, format!("store: {e}"));
    let until = Instant::now() + limit;
    let Ok(Ok(place)) = tokio::time::timeout_at(until, OPENING.acquire()).await else {
        let message = "store: directories of earlier requests do not answer yet: are their file systems mounted?";
        return Err(Refusal::new(RefusalCode::Busy, message));
    };
    let owned = url.to_owned();
    let opened = holdfast_log::spawn_blocking(move || {
        let _place = place;
        holdfast_store::open(&owned, &options)
    });
    match tokio::time::timeout_at(until, opened).await {
        Ok(Ok(opened)) => opened.map_err(bad),
        Ok(Err(_)) => Err(Refusal::new(RefusalCode::Busy, "this gateway stops")),
        Err(_) => {
            let message =
                format!("store: {url} does not answer within {} s: is its file system mounted?", limit.as_secs());
            Err(Refusal::new(RefusalCode::Precondition, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::path::Path;
    use std::task::Poll;

    /// Simulates a file system that does not answer: opening a pipe for writing blocks while nobody reads it.
    fn hangs(dir: &Path) -> std::path::PathBuf {
        let pipe = dir.join(".holdfast").join("swap.lock");
        fs::create_dir(dir.join(".holdfast")).expect("create");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
        pipe
    }

    fn url(dir: &Path) -> String {
        format!("file://{}", dir.display())
    }

    /// An outage during which leadership moved: the former leader does not ask the store any more, and would have
    /// somebody called for ever.
    #[test]
    fn trouble_of_a_set_that_others_lead_is_told_while_it_is_new() {
        let trouble =
            |last_unix_ms| v1::StoreTrouble { last_unix_ms, needs_operator: true, ..v1::StoreTrouble::default() };
        let replica = |last_unix_ms| v1::StoreReplica {
            now: Some(trouble(last_unix_ms)),
            missing_objects: 3,
            missing_bytes: 3 << 20,
            head_behind: true,
            ..v1::StoreReplica::default()
        };
        let (old, new) = (1_000, 1_000 + LATELY_MS);
        let met = |at| v1::StoreHealth {
            now: Some(trouble(at)),
            replicas: vec![replica(old), replica(new)],
            ..v1::StoreHealth::default()
        };
        let now = old + LATELY_MS + 1;
        assert_eq!(alarming(met(old), true, now), met(old), "the leader goes on asking");
        assert_eq!(alarming(met(new), false, now).now, Some(trouble(new)));
        let told = alarming(met(old), false, now);
        assert_eq!(told.now, None);
        assert_eq!(told.replicas.iter().map(|one| one.now.clone()).collect::<Vec<_>>(), [None, Some(trouble(new))]);
        assert!(told.replicas.iter().all(|one| !lacks(one) && one.missing_bytes == 0 && !one.head_behind));
    }

    #[tokio::test]
    async fn directories_that_hang_when_they_are_opened_keep_few_threads() {
        let dirs: Vec<_> = (0..OPENING_MAX).map(|_| tempfile::tempdir().expect("temporary directory")).collect();
        let pipes: Vec<_> = dirs.iter().map(|dir| hangs(dir.path())).collect();
        let mut refusals = Vec::new();
        let whole = tempfile::tempdir().expect("temporary directory");
        for dir in dirs.iter().chain([&whole]) {
            let opened = open_within(&url(dir.path()), StoreOptions::default(), Duration::from_millis(50)).await;
            refusals.push(opened.err().map(|e| e.code));
        }
        // Release the blocked threads, so that a failing test ends.
        let _readers: Vec<_> =
            pipes.iter().map(|pipe| File::options().read(true).write(true).open(pipe).expect("pipe")).collect();
        let expected = [RefusalCode::Precondition, RefusalCode::Precondition, RefusalCode::Busy].map(Some);
        assert_eq!(refusals, expected, "hanging stores are given up, and no further ones are opened");
        let ended = tokio::time::timeout(Duration::from_secs(60), OPENING.acquire_many(OPENING_MAX as u32)).await;
        drop(ended.expect("the threads are free again").expect("open"));
        let opened = open_within(&url(whole.path()), StoreOptions::default(), Duration::from_secs(60)).await;
        opened.expect("and this is opened");
    }

    /// The only blocking thread is busy: work for it waits, and work on the runtime's own thread would run at once.
    #[test]
    fn the_keys_of_a_bucket_are_read_where_that_may_take_its_time() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let keys = dir.path().join("credentials");
        fs::write(&keys, "[east]\naws_access_key_id = id\naws_secret_access_key = secret\n").expect("write");
        fs::set_permissions(&keys, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("chmod");
        let options = StoreOptions {
            endpoint: Some("http://127.0.0.1:1".to_owned()),
            credentials_file: Some(keys),
            ..StoreOptions::default()
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build();
        runtime.expect("runtime").block_on(async {
            let (free, taken) = std::sync::mpsc::channel::<()>();
            let _busy = tokio::task::spawn_blocking(move || taken.recv());
            let mut opening = std::pin::pin!(open_within("s3://bucket/pre?profile=east", options, OPEN_LIMIT));
            let waits = std::future::poll_fn(|cx| Poll::Ready(opening.as_mut().poll(cx).is_pending())).await;
            free.send(()).expect("the thread waits for it");
            assert!(waits, "it was opened on the runtime's own thread");
            opening.await.expect("opened");
        });
    }
}
