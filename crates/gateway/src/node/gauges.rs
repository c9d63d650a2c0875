//! Gauges of a gateway that are read from its state when metrics are requested.

use super::Node;
use holdfast_cache::Cache;
use holdfast_types::sync::{LockExt, RwLockExt};
use std::collections::BTreeSet;

/// Gauges of a group. An alert asks for a leader of the groups that have a term.
const OF_GROUPS: [&str; 4] =
    ["holdfast_raft_leader", "holdfast_raft_term", "holdfast_raft_applied_index", "holdfast_journal_live_bytes"];

/// Gauges of a set. Those of the scrub are set by its task, which ends with the set.
const OF_SETS: [&str; 7] = [
    "holdfast_index_extents",
    "holdfast_backlog_bytes",
    "holdfast_connections",
    "holdfast_store_trouble_since_timestamp_seconds",
    "holdfast_store_needs_operator",
    "holdfast_scrub_running",
    "holdfast_scrub_damaged",
];

/// Gauges of one store of a set with several.
const OF_STORES: [&str; 3] = [
    "holdfast_store_replica_trouble_since_timestamp_seconds",
    "holdfast_store_missing_objects",
    "holdfast_store_missing_bytes",
];

/// Of what the gauges were shown last: groups, sets, and stores beside their set. A gauge keeps its value. So where a
/// set was deleted, or has left this gateway, or has other stores, an alert would go on until a restart.
#[derive(Debug, Default)]
pub(super) struct Shown {
    groups: BTreeSet<String>,
    sets: BTreeSet<String>,
    stores: BTreeSet<(String, String)>,
}

impl Shown {
    /// Sets to 0 what is shown no more.
    fn replace(&mut self, now: Shown) {
        for group in self.groups.difference(&now.groups) {
            OF_GROUPS.into_iter().for_each(|gauge| metrics::gauge!(gauge, "group" => group.clone()).set(0.0));
        }
        for set in self.sets.difference(&now.sets) {
            OF_SETS.into_iter().for_each(|gauge| metrics::gauge!(gauge, "set" => set.clone()).set(0.0));
        }
        for (set, store) in self.stores.difference(&now.stores) {
            let labels = [("set", set.clone()), ("store", store.clone())];
            OF_STORES.into_iter().for_each(|gauge| metrics::gauge!(gauge, &labels).set(0.0));
        }
        *self = now;
    }
}

impl Node {
    /// The cache that its sets share.
    pub(crate) fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Updates the gauges from the current state.
    pub fn record_gauges(&self) {
        // One request after the other: of two at once, the older look would take what is new for gone.
        let mut shown = self.shown.locked();
        self.cache.publish("extents");
        let mut now = Shown { stores: self.record_store_gauges(), ..Shown::default() };
        self.record_certificate_gauges();
        if let Some(raft) = self.raft() {
            metrics::gauge!("holdfast_groups_healing").set(raft.healing().len() as f64);
            metrics::counter!("holdfast_groups_healed_total").absolute(raft.healed());
        }
        self.record_placing_gauges();
        let Some(adopted) = self.adopted() else { return };
        let usage = adopted.raft.log().usage();
        metrics::gauge!("holdfast_journal_used_bytes").set(usage.used_bytes as f64);
        metrics::gauge!("holdfast_journal_bound_bytes").set(usage.bound_bytes as f64);
        metrics::gauge!("holdfast_journal_clear_files").set(adopted.raft.log().clear_files() as f64);
        let yes = |is: bool| f64::from(u8::from(is));
        metrics::gauge!("holdfast_journal_stalled").set(yes(usage.stalled.is_some()));
        metrics::gauge!("holdfast_journal_blocked").set(yes(usage.blocked.is_some()));
        for group in adopted.raft.groups() {
            let status = group.status();
            let id = group.id().0.to_string();
            metrics::gauge!("holdfast_raft_term", "group" => id.clone()).set(status.leadership.term.0 as f64);
            metrics::gauge!("holdfast_raft_leader", "group" => id.clone())
                .set(f64::from(u8::from(status.leadership.mine)));
            let applied = status.applied.map_or(0, |a| a.index.0);
            metrics::gauge!("holdfast_raft_applied_index", "group" => id.clone()).set(applied as f64);
            metrics::gauge!("holdfast_journal_live_bytes", "group" => id.clone()).set(status.live_bytes as f64);
            now.groups.insert(id);
        }
        let sets: Vec<_> = self.sets.reading().values().cloned().collect();
        for set in sets {
            let (extents, backlog) = set.host.with(|m| (m.extents(), m.backlog_bytes()));
            let name = set.name.to_string();
            metrics::gauge!("holdfast_index_extents", "set" => name.clone()).set(extents as f64);
            metrics::gauge!("holdfast_backlog_bytes", "set" => name.clone()).set(backlog as f64);
            let connections = set.serving().map_or(0, |s| s.connected());
            metrics::gauge!("holdfast_connections", "set" => name.clone()).set(connections as f64);
            now.sets.insert(name);
        }
        shown.replace(now);
    }

    /// Of each set, also where this gateway does not lead group 0: there it is 0, not what it was when it did.
    fn record_placing_gauges(&self) {
        let sets = self.cluster.state().sets;
        let violated = self.planned.locked().gauges(sets.into_iter().map(|(id, entry)| (id, entry.name)));
        for (set, count) in violated {
            metrics::gauge!("holdfast_placing_violations", "set" => set.to_string()).set(count as f64);
        }
    }

    fn record_certificate_gauges(&self) {
        let Some(tls) = &self.tls else { return };
        let expiry = tls.expiry();
        for (kind, ends) in [("own", expiry.own), ("authority", expiry.authority)] {
            if let Some(ends) = ends {
                metrics::gauge!("holdfast_certificate_expires_timestamp_seconds", "kind" => kind).set(ends as f64);
            }
        }
        let unusable = f64::from(u8::from(tls.trouble().is_some()));
        metrics::gauge!("holdfast_certificate_files_unusable").set(unusable);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use metrics_exporter_prometheus::PrometheusBuilder;

    fn shown(groups: &[&str], sets: &[&str], stores: &[(&str, &str)]) -> Shown {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_string()).collect();
        let pairs = stores.iter().map(|(set, store)| ((*set).to_string(), (*store).to_string()));
        Shown { groups: names(groups), sets: names(sets), stores: pairs.collect() }
    }

    fn each(gauges: &[&'static str], of: [&'static str; 2]) -> impl Iterator<Item = (&'static str, &'static str)> {
        gauges.iter().flat_map(move |gauge| of.map(|of| (*gauge, of)))
    }

    /// A set was deleted, and another one has given up a store that had failed.
    #[test]
    fn what_is_gone_has_no_alert_any_more() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let mut last = shown(&["5", "6"], &["demo", "gone"], &[("demo", "s3://a"), ("demo", "s3://b")]);
        metrics::with_local_recorder(&recorder, || {
            for (gauge, group) in each(&OF_GROUPS, ["5", "6"]) {
                metrics::gauge!(gauge, "group" => group).set(7.0);
            }
            for (gauge, set) in each(&OF_SETS, ["demo", "gone"]) {
                metrics::gauge!(gauge, "set" => set).set(7.0);
            }
            for (gauge, store) in each(&OF_STORES, ["s3://a", "s3://b"]) {
                metrics::gauge!(gauge, &[("set", "demo"), ("store", store)]).set(7.0);
            }
            last.replace(shown(&["5"], &["demo"], &[("demo", "s3://a")]));
        });
        let page = recorder.handle().render();
        let says = |line: String| assert!(page.lines().any(|found| found == line), "{line}: {page}");
        for gauge in OF_GROUPS {
            says(format!("{gauge}{{group=\"5\"}} 7"));
            says(format!("{gauge}{{group=\"6\"}} 0"));
        }
        for gauge in OF_SETS {
            says(format!("{gauge}{{set=\"demo\"}} 7"));
            says(format!("{gauge}{{set=\"gone\"}} 0"));
        }
        for gauge in OF_STORES {
            says(format!("{gauge}{{set=\"demo\",store=\"s3://a\"}} 7"));
            says(format!("{gauge}{{set=\"demo\",store=\"s3://b\"}} 0"));
        }
    }
}
