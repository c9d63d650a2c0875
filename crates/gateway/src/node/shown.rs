//! Gauges of groups, sets and stores that are gone: set to 0, so that no alert goes on (ADR 0061).

use std::collections::BTreeSet;

/// Gauges of a group. An alert asks for a leader of the groups that have a term.
const OF_GROUPS: [&str; 4] =
    ["holdfast_raft_leader", "holdfast_raft_term", "holdfast_raft_applied_index", "holdfast_journal_live_bytes"];

/// Gauges of a set. Those of the scrub are set by its task, which ends with the set.
const OF_SETS: [&str; 10] = [
    "holdfast_index_extents",
    "holdfast_backlog_bytes",
    "holdfast_connections",
    "holdfast_limit_iops",
    "holdfast_limit_bytes_per_second",
    "holdfast_set_round_trip_seconds",
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
    pub(super) groups: BTreeSet<String>,
    pub(super) sets: BTreeSet<String>,
    pub(super) stores: BTreeSet<(String, String)>,
}

impl Shown {
    /// Sets to 0 what is shown no more.
    pub(super) fn replace(&mut self, now: Shown) {
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
