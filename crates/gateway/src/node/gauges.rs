//! Gauges of a gateway that are read from its state when metrics are requested.

use super::Node;
use super::shown::Shown;
use holdfast_cache::Cache;
use holdfast_log::LogUsage;
use holdfast_types::sync::{LockExt, RwLockExt};

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
        self.record_settings_gauges();
        if let Some(raft) = self.raft() {
            metrics::gauge!("holdfast_groups_healing").set(raft.healing().len() as f64);
            metrics::counter!("holdfast_groups_healed_total").absolute(raft.healed());
            let (calls, beats) = raft.beats();
            metrics::counter!("holdfast_heartbeat_calls_total").absolute(calls);
            metrics::counter!("holdfast_heartbeats_together_total").absolute(beats);
        }
        self.record_placing_gauges();
        let Some(adopted) = self.adopted() else { return };
        let usage = adopted.raft.log().usage();
        record_journal_gauges(&usage);
        metrics::gauge!("holdfast_journal_clear_files").set(adopted.raft.log().clear_files() as f64);
        for (peer, trip) in adopted.raft.round_trips() {
            metrics::gauge!("holdfast_peer_round_trip_seconds", "peer" => peer.to_string()).set(trip.as_secs_f64());
        }
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
            let (extents, backlog, limit) = set.host.with(|m| (m.extents(), m.backlog_bytes(), m.state().limits.set));
            let name = set.name.to_string();
            metrics::gauge!("holdfast_index_extents", "set" => name.clone()).set(extents as f64);
            metrics::gauge!("holdfast_backlog_bytes", "set" => name.clone()).set(backlog as f64);
            let connections = set.serving().map_or(0, |s| s.connected());
            metrics::gauge!("holdfast_connections", "set" => name.clone()).set(connections as f64);
            metrics::gauge!("holdfast_limit_iops", "set" => name.clone()).set(f64::from(limit.iops));
            metrics::gauge!("holdfast_limit_bytes_per_second", "set" => name.clone()).set(limit.bytes_per_s as f64);
            let (waits, time) = set.throttled();
            metrics::counter!("holdfast_limit_waits_total", "set" => name.clone()).absolute(waits);
            metrics::counter!("holdfast_limit_wait_seconds_total", "set" => name.clone()).absolute(time.as_secs());
            let rtt = set.timing().rtt().as_secs_f64();
            metrics::gauge!("holdfast_set_round_trip_seconds", "set" => name.clone()).set(rtt);
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

    fn record_settings_gauges(&self) {
        let good = f64::from(u8::from(self.settings.trouble().is_none()));
        metrics::gauge!("holdfast_settings_last_reload_successful").set(good);
        let read = self.settings.read_unix_s() as f64;
        metrics::gauge!("holdfast_settings_last_reload_success_timestamp_seconds").set(read);
    }

    fn record_certificate_gauges(&self) {
        let Some(tls) = &self.tls else { return };
        let expiry = tls.expiry();
        let own = ("own", expiry.own, expiry.own_warned);
        for (kind, ends, warned) in [own, ("authority", expiry.authority, expiry.authority_warned)] {
            if let Some((ends, warned)) = ends.zip(warned) {
                metrics::gauge!("holdfast_certificate_warned_timestamp_seconds", "kind" => kind).set(warned as f64);
                metrics::gauge!("holdfast_certificate_expires_timestamp_seconds", "kind" => kind).set(ends as f64);
            }
        }
        let unusable = f64::from(u8::from(tls.trouble().is_some()));
        metrics::gauge!("holdfast_certificate_files_unusable").set(unusable);
    }
}

fn record_journal_gauges(usage: &LogUsage) {
    let yes = |is: bool| f64::from(u8::from(is));
    metrics::gauge!("holdfast_journal_used_bytes").set(usage.used_bytes as f64);
    metrics::gauge!("holdfast_journal_bound_bytes").set(usage.bound_bytes as f64);
    metrics::gauge!("holdfast_journal_failed").set(yes(usage.failed.is_some()));
    metrics::gauge!("holdfast_journal_stalled").set(yes(usage.stalled.is_some()));
    metrics::gauge!("holdfast_journal_blocked").set(yes(usage.blocked.is_some()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use metrics_exporter_prometheus::PrometheusBuilder;

    /// A gateway with a failed journal stays up, and its writes are quick: nothing else would have an alert.
    #[test]
    fn each_trouble_of_a_journal_has_its_gauge() {
        let why = || Some("why".to_string());
        for (usage, shown) in [
            (LogUsage::default(), ["0", "0", "0"]),
            (LogUsage { failed: why(), ..LogUsage::default() }, ["1", "0", "0"]),
            (LogUsage { stalled: why(), ..LogUsage::default() }, ["0", "1", "0"]),
            (LogUsage { blocked: why(), ..LogUsage::default() }, ["0", "0", "1"]),
        ] {
            let recorder = PrometheusBuilder::new().build_recorder();
            metrics::with_local_recorder(&recorder, || record_journal_gauges(&usage));
            let page = recorder.handle().render();
            for (trouble, value) in ["failed", "stalled", "blocked"].into_iter().zip(shown) {
                let line = format!("holdfast_journal_{trouble} {value}");
                assert!(page.lines().any(|found| found == line), "{line}: {page}");
            }
        }
    }
}
