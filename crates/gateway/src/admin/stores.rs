//! How the stores of the sets that run here have answered: for status, `/healthz` and the metrics.

use crate::node::Node;
use crate::set::server::{SetServer, unix_ms};
use holdfast_api::v1;
use holdfast_store::Trouble;
use std::sync::{Arc, PoisonError};

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

/// How `set`'s store has answered this gateway.
pub(crate) fn store_health(set: &SetServer) -> v1::StoreHealth {
    let standing = set.health.standing(unix_ms());
    v1::StoreHealth {
        set: set.name.to_string(),
        backlog_bytes: set.host.with(|m| m.data_bytes()),
        now: standing.now.map(|trouble| trouble_message(&trouble, 0)),
        last: standing.last.map(|(trouble, ended)| trouble_message(&trouble, ended)),
    }
}

impl Node {
    fn running_sets(&self) -> Vec<Arc<SetServer>> {
        self.sets.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// One for each set that runs here.
    pub(crate) fn store_healths(&self) -> Vec<v1::StoreHealth> {
        self.running_sets().iter().map(|set| store_health(set)).collect()
    }

    /// What is wrong with stores and what is in them, a line for each set. None of it makes this gateway unfit to serve: the journal goes on taking writes (R8).
    pub(crate) fn store_warnings(&self) -> Vec<String> {
        let healths = self.store_healths();
        let stores = healths.iter().filter_map(|health| Some(line(health, health.now.as_ref()?)));
        let sets = self.running_sets();
        let scrubs = sets.iter().filter_map(|set| Some((set, set.scrub.known().total)).filter(|(_, total)| *total > 0));
        let found = scrubs.map(|(set, total)| format!("set {}: the scrub found {total} damaged places (R9)", set.name));
        stores.chain(found).collect()
    }

    /// The same as gauges.
    pub(crate) fn record_store_gauges(&self) {
        for health in self.store_healths() {
            let (set, now) = (health.set, health.now);
            let since = now.as_ref().map_or(0.0, |now| now.since_unix_ms as f64 / 1e3);
            let acts = now.as_ref().is_some_and(|now| now.needs_operator);
            metrics::gauge!("holdfast_store_trouble_since_seconds", "set" => set.clone()).set(since);
            metrics::gauge!("holdfast_store_needs_operator", "set" => set).set(f64::from(u8::from(acts)));
        }
    }
}

fn line(health: &v1::StoreHealth, now: &v1::StoreTrouble) -> String {
    let lasted = unix_ms().saturating_sub(now.since_unix_ms) / 1000;
    let who = if now.needs_operator { "somebody must act" } else { "tried again" };
    format!(
        "set {}: store {} for {lasted} s, {} failures in a row, {who}: {}; {:.1} MiB wait in the journal",
        health.set,
        now.kind,
        now.failures,
        now.error,
        health.backlog_bytes as f64 / f64::from(1 << 20)
    )
}
