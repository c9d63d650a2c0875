//! Descriptions of a gateway's metrics, for `/metrics` and for docs/operating/metrics.md.

use metrics::{counter, describe_counter, describe_gauge, describe_histogram};

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Only grows; starts at 0 with the process.
    Counter,
    /// Goes up and down.
    Gauge,
    /// A distribution.
    Histogram,
}

/// All metrics, sorted by name.
const METRICS: &[(Kind, &str, &str)] = &[
    (
        Kind::Counter,
        "holdfast_audit_dropped_total",
        "Lines of the audit log that were dropped because too many waited to be written.",
    ),
    (Kind::Counter, "holdfast_audit_errors_total", "Lines of the audit log that could not be written."),
    (Kind::Gauge, "holdfast_backlog_bytes", "Bytes in the journal that are not uploaded yet."),
    (
        Kind::Counter,
        "holdfast_cache_admitted_bytes_total",
        "Sealed bytes that were fetched for readers and written to the cache's disk.",
    ),
    (
        Kind::Counter,
        "holdfast_cache_answers_total",
        "Answers of the read cache, by kind (extents, pages) and tier (memory, disk, store; shared: waited for another reader's fetch; journal: answered from the journal without the cache).",
    ),
    (
        Kind::Counter,
        "holdfast_cache_disk_errors_total",
        "Reads of the cache's disk that failed or took too long. The store was asked instead.",
    ),
    (
        Kind::Counter,
        "holdfast_cache_disk_rejected_total",
        "Entries from the cache's disk that failed to open. The store was asked instead.",
    ),
    (
        Kind::Gauge,
        "holdfast_cache_disk_up",
        "1 while the cache has a disk; 0 until it is open, and after it has failed or was full.",
    ),
    (Kind::Counter, "holdfast_cache_failures_total", "Fetches into the cache that failed."),
    (
        Kind::Counter,
        "holdfast_cache_kept_bytes_total",
        "Sealed bytes that were written to the cache's disk before any reader asked: uploaded here, or read in advance as a follower.",
    ),
    (
        Kind::Counter,
        "holdfast_cache_left_out_bytes_total",
        "Sealed bytes that were fetched for a scan and not written to the cache's disk.",
    ),
    (Kind::Gauge, "holdfast_cache_memory_bytes", "Bytes in the cache's memory."),
    (Kind::Gauge, "holdfast_cache_memory_entries", "Entries in the cache's memory."),
    (
        Kind::Counter,
        "holdfast_cache_rewritten_bytes_total",
        "Sealed bytes that were read from the older part of the cache's disk and written there again to keep them.",
    ),
    (
        Kind::Gauge,
        "holdfast_certificate_expires_timestamp_seconds",
        "Unix time when the gateway's TLS certificate expires, or an authority between that is warned of before (kind `own`), and the last of the authorities that it trusts (`authority`).",
    ),
    (
        Kind::Gauge,
        "holdfast_certificate_files_unusable",
        "1 while the changed TLS files cannot be used, so that those read before stay in use.",
    ),
    (
        Kind::Gauge,
        "holdfast_certificate_warned_timestamp_seconds",
        "Unix time from which that is warned of: 30 days ahead, or in the last third of its life if that is shorter.",
    ),
    (Kind::Counter, "holdfast_checkpoints_total", "Checkpoints that this gateway completed."),
    (
        Kind::Counter,
        "holdfast_clock_suspicions_total",
        "Jumps and gaps of the clock. Each voids the read leases until a quorum has answered.",
    ),
    (Kind::Gauge, "holdfast_connections", "NBD connections to a set that this gateway serves."),
    (
        Kind::Gauge,
        "holdfast_data_key_older_bytes",
        "Bytes of a set's current state that use older data keys, while its data key is being changed.",
    ),
    (
        Kind::Counter,
        "holdfast_deleted_set_objects_total",
        "Objects of deleted sets that were removed from their stores.",
    ),
    (
        Kind::Counter,
        "holdfast_door_refused_total",
        "Connections to the admin, peer and HTTP listeners that were closed because the connection limit was reached, by door.",
    ),
    (
        Kind::Histogram,
        "holdfast_entry_bytes",
        "Bytes of one entry of writes. Writes that wait for earlier entries share one.",
    ),
    (Kind::Histogram, "holdfast_entry_ops", "Writes, trims and zeroes in one entry."),
    (Kind::Counter, "holdfast_etcd_failures_total", "Grants that could not be written to etcd."),
    (Kind::Counter, "holdfast_etcd_grants_mirrored_total", "Grants that were written to etcd."),
    (Kind::Counter, "holdfast_etcd_newer_total", "Grants that were not written because etcd already had a newer one."),
    (
        Kind::Histogram,
        "holdfast_follow_pause_seconds",
        "Moves of a set's leadership to a voter nearer to its owner: from the drain until another gateway leads.",
    ),
    (Kind::Counter, "holdfast_groups_healed_total", "Damaged groups that were copied again from their peers."),
    (Kind::Gauge, "holdfast_groups_healing", "Damaged groups that wait for healing."),
    (
        Kind::Counter,
        "holdfast_heartbeat_calls_total",
        "Calls that carried heartbeats of several groups to one gateway.",
    ),
    (Kind::Counter, "holdfast_heartbeats_together_total", "Heartbeats in such calls."),
    (Kind::Gauge, "holdfast_index_extents", "Extents of a set's journal index."),
    (Kind::Gauge, "holdfast_journal_blocked", "1 while the journal cannot free files because of a bad record."),
    (Kind::Gauge, "holdfast_journal_bound_bytes", "Maximum size of the journal."),
    (Kind::Gauge, "holdfast_journal_clear_files", "Journal files that are not sealed."),
    (
        Kind::Counter,
        "holdfast_journal_corrupt_records_total",
        "Synced journal records that could not be read back at startup (R9).",
    ),
    (
        Kind::Gauge,
        "holdfast_journal_failed",
        "1 once the journal has failed: the gateway writes nothing more until it is started again.",
    ),
    (Kind::Gauge, "holdfast_journal_live_bytes", "Bytes of the journal that a group still needs."),
    (
        Kind::Gauge,
        "holdfast_journal_stalled",
        "1 while the journal waits for free space on its disk, for file descriptors or for memory.",
    ),
    (
        Kind::Counter,
        "holdfast_journal_unread_total",
        "Journal records that could not be read back while the gateway was running.",
    ),
    (Kind::Gauge, "holdfast_journal_used_bytes", "Size of the journal."),
    (Kind::Histogram, "holdfast_journal_write_seconds", "Duration of one journal write, including its sync."),
    (
        Kind::Gauge,
        "holdfast_limit_bytes_per_second",
        "Bytes per second that all clients of a set together are limited to; 0: not limited.",
    ),
    (
        Kind::Gauge,
        "holdfast_limit_iops",
        "Requests per second that all clients of a set together are limited to; 0: not limited.",
    ),
    (
        Kind::Counter,
        "holdfast_limit_wait_seconds_total",
        "Time that requests have waited for a limit of their volume or set.",
    ),
    (Kind::Counter, "holdfast_limit_waits_total", "Requests that have waited for a limit of their volume or set."),
    (Kind::Counter, "holdfast_map_pages_given_up_total", "Damaged map pages that nothing needed any more."),
    (Kind::Gauge, "holdfast_nbd_connections", "Open NBD connections."),
    (Kind::Counter, "holdfast_nbd_request_bytes_total", "Bytes read and written by clients."),
    (Kind::Counter, "holdfast_nbd_request_errors_total", "Requests that were answered with an error."),
    (Kind::Histogram, "holdfast_nbd_request_seconds", "Time from a request's last byte to its answer."),
    (
        Kind::Gauge,
        "holdfast_pair_answers_for_seconds",
        "In a gateway pair: how long this gateway may still answer without another confirmation of its seat by the etcd.",
    ),
    (
        Kind::Histogram,
        "holdfast_pair_flush_seconds",
        "In a gateway pair: how long a flush, or a write that must be flushed, waited for the store.",
    ),
    (Kind::Gauge, "holdfast_pair_holder", "In a gateway pair: 1 while this gateway has the seat."),
    (
        Kind::Counter,
        "holdfast_pair_keepalive_failures_total",
        "In a gateway pair: keep-alives that the etcd did not answer.",
    ),
    (Kind::Counter, "holdfast_pair_tenures_total", "In a gateway pair: how often this gateway won the seat."),
    (
        Kind::Gauge,
        "holdfast_peer_round_trip_seconds",
        "Round trip to another gateway: 12.5th percentile of recent heartbeats from this gateway.",
    ),
    (
        Kind::Counter,
        "holdfast_placing_moves_total",
        "Moves of sets' voters that this gateway decided as leader of group 0.",
    ),
    (
        Kind::Gauge,
        "holdfast_placing_violations",
        "Parts of a set's policy that are violated, at the leader of group 0; 0 at the other gateways.",
    ),
    (
        Kind::Counter,
        "holdfast_plaintext_total",
        "Calls (what `call`) and connections to the door between gateways (`peer connection`) without TLS, while `[tls] transition` is set.",
    ),
    (Kind::Gauge, "holdfast_raft_applied_index", "Index of the group's last entry that was applied here."),
    (Kind::Gauge, "holdfast_raft_leader", "1 on the gateway that leads the group."),
    (Kind::Gauge, "holdfast_raft_term", "The group's term as known here; 0 once this gateway has left the group."),
    (Kind::Counter, "holdfast_read_ahead_extents_total", "Extents that were fetched by read-ahead."),
    (
        Kind::Counter,
        "holdfast_read_ahead_left_out_total",
        "Read-aheads that were skipped: too many in progress, or a problem of the store.",
    ),
    (Kind::Counter, "holdfast_schedule_failures_total", "Scheduled snapshots that failed."),
    (Kind::Counter, "holdfast_scheduled_snapshots_total", "Scheduled snapshots that were taken."),
    (Kind::Counter, "holdfast_scrub_bytes_total", "Bytes that the scrub has read."),
    (
        Kind::Gauge,
        "holdfast_scrub_complete_timestamp_seconds",
        "Unix time when the last complete scrub of a set ended; 0: no scrub was completed.",
    ),
    (Kind::Counter, "holdfast_scrub_damage_found_total", "Damaged places found by the scrub."),
    (Kind::Gauge, "holdfast_scrub_damaged", "Currently known damaged places."),
    (Kind::Gauge, "holdfast_scrub_running", "1 while a set is being scrubbed."),
    (
        Kind::Gauge,
        "holdfast_set_round_trip_seconds",
        "The round trip that the heartbeats, elections and leases of a set are made for, as known here.",
    ),
    (Kind::Counter, "holdfast_sets_fenced_total", "Sets that this gateway found taken over by a recovery."),
    (
        Kind::Gauge,
        "holdfast_settings_last_reload_success_timestamp_seconds",
        "Unix time when the settings in use were read: at the start, or by the last reload that succeeded.",
    ),
    (
        Kind::Gauge,
        "holdfast_settings_last_reload_successful",
        "0 while the last reload of the settings has failed, so that those read before stay in use.",
    ),
    (Kind::Gauge, "holdfast_snapshots", "Snapshots of a set."),
    (Kind::Counter, "holdfast_space_damaged_total", "Segments and pages that garbage collection could not read."),
    (Kind::Counter, "holdfast_space_deleted_total", "Objects that were deleted from the store."),
    (
        Kind::Gauge,
        "holdfast_space_dropped_roots",
        "Deleted snapshots and old checkpoints whose objects still have to be checked for garbage.",
    ),
    (Kind::Gauge, "holdfast_space_garbage_bytes", "Bytes of segments that no volume uses, as of the last checkpoint."),
    (
        Kind::Gauge,
        "holdfast_space_given_up_objects",
        "Objects that this leader's checkpoints began to write and that are not known to be referenced yet, including those of the running checkpoint.",
    ),
    (
        Kind::Counter,
        "holdfast_space_held_total",
        "Checkpoints that moved less than necessary because of the limits in [space].",
    ),
    (Kind::Gauge, "holdfast_space_listed_bytes", "Bytes of a set in the last listing of the store."),
    (Kind::Gauge, "holdfast_space_listed_objects", "Objects of a set in the last listing of the store."),
    (
        Kind::Gauge,
        "holdfast_space_live_bytes",
        "Bytes of segments that volumes use, as their share of each segment. Data that only snapshots use does not count.",
    ),
    (
        Kind::Counter,
        "holdfast_space_moved_bytes_total",
        "Bytes that garbage collection has copied, before compression.",
    ),
    (
        Kind::Counter,
        "holdfast_space_refused_total",
        "Deletions that were not carried out because of another leader or another life of the set.",
    ),
    (Kind::Gauge, "holdfast_space_retired_objects", "Objects that wait to be deleted."),
    (Kind::Counter, "holdfast_space_retired_total", "Objects that were marked for deletion."),
    (Kind::Gauge, "holdfast_space_stored_bytes", "Bytes of the segments that the last checkpoint references."),
    (Kind::Histogram, "holdfast_store_attempt_seconds", "Duration of one attempt of a store request."),
    (Kind::Counter, "holdfast_store_attempts_total", "Attempts of store requests, by op and outcome."),
    (Kind::Counter, "holdfast_store_errors_total", "Failed attempts, by kind of error."),
    (Kind::Counter, "holdfast_store_failovers_total", "With several stores: reads that were retried at another store."),
    (
        Kind::Gauge,
        "holdfast_store_missing_bytes",
        "With several stores: bytes that one store lacks, as known by the leader.",
    ),
    (
        Kind::Gauge,
        "holdfast_store_missing_objects",
        "With several stores: objects that one store lacks, as known by the leader.",
    ),
    (Kind::Gauge, "holdfast_store_needs_operator", "1 while the store needs an operator. Alert on it."),
    (
        Kind::Counter,
        "holdfast_store_repaired_total",
        "With several stores: objects that were copied to a store that lacked them.",
    ),
    (
        Kind::Gauge,
        "holdfast_store_replica_trouble_since_timestamp_seconds",
        "With several stores: Unix time of the first failure in the current series of failures of one store; 0 while it works.",
    ),
    (
        Kind::Counter,
        "holdfast_store_retries_total",
        "Uploads of objects that the store did not accept and that were retried.",
    ),
    (
        Kind::Counter,
        "holdfast_store_spoilt_total",
        "Answers of the store with damaged content, which were requested again (R9).",
    ),
    (
        Kind::Gauge,
        "holdfast_store_trouble_since_timestamp_seconds",
        "Unix time of the first failure in the current series of failures; 0 while the store works.",
    ),
    (
        Kind::Counter,
        "holdfast_traces_dropped_total",
        "Spans of traces that were dropped because too many waited, or because the collector did not take them.",
    ),
    (Kind::Counter, "holdfast_uploaded_bytes_total", "Bytes of uploaded segments."),
    (
        Kind::Counter,
        "holdfast_warm_bytes_total",
        "Bytes, including roots, that a follower read from the store for its cache.",
    ),
    (
        Kind::Counter,
        "holdfast_warm_checkpoints_total",
        "Checkpoints of another gateway that a follower compared with the previous one and processed for its cache.",
    ),
    (
        Kind::Counter,
        "holdfast_warm_left_out_bytes_total",
        "Bytes of such checkpoints that a follower did not read into its cache by the end of the step: over the limit, not readable, or leadership moved (the next checkpoint may include them).",
    ),
    (Kind::Counter, "holdfast_warm_requests_total", "Store requests that a follower made for its cache."),
];

/// The counters without labels. They are shown as 0 from the start: `increase()` does not count the step from nothing
/// to 1, and so an alert would miss the first one.
const FROM_ZERO: &[&str] = &[
    "holdfast_audit_dropped_total",
    "holdfast_audit_errors_total",
    "holdfast_cache_disk_errors_total",
    "holdfast_clock_suspicions_total",
    "holdfast_deleted_set_objects_total",
    "holdfast_groups_healed_total",
    "holdfast_heartbeat_calls_total",
    "holdfast_heartbeats_together_total",
    "holdfast_journal_corrupt_records_total",
    "holdfast_nbd_request_errors_total",
    "holdfast_pair_keepalive_failures_total",
    "holdfast_pair_tenures_total",
    "holdfast_placing_moves_total",
    "holdfast_read_ahead_extents_total",
    "holdfast_read_ahead_left_out_total",
    "holdfast_sets_fenced_total",
    "holdfast_store_failovers_total",
    "holdfast_store_retries_total",
    "holdfast_store_spoilt_total",
    "holdfast_traces_dropped_total",
];

/// Registers the descriptions with the recorder.
pub(crate) fn describe() {
    for name in FROM_ZERO {
        counter!(*name).increment(0);
    }
    for (kind, name, help) in METRICS {
        match kind {
            Kind::Counter => describe_counter!(*name, *help),
            Kind::Gauge => describe_gauge!(*name, *help),
            Kind::Histogram => describe_histogram!(*name, *help),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};
    use std::path::{Path, PathBuf};

    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operating/metrics.md");

    fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).expect("a directory of sources") {
            let path = entry.expect("an entry").path();
            match path.is_dir() {
                true => sources(&path, found),
                false if path.extension().is_some_and(|e| e == "rs") => found.push(path),
                false => {}
            }
        }
    }

    /// Checks the sources of the crates that run in a gateway's process.
    #[test]
    fn every_metric_has_words() {
        let (mut named, mut bare) = (BTreeSet::new(), BTreeSet::new());
        for room in ["front", "cache", "set", "gateway", "pair", "store", "log", "raft", "etcd", "traces"] {
            let mut files = Vec::new();
            sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(room).join("src"), &mut files);
            for file in files.iter().filter(|file| !file.ends_with("metrics.rs")) {
                let text = std::fs::read_to_string(file).expect("a source");
                for macro_name in ["counter!(", "gauge!(", "histogram!("] {
                    for part in text.split(macro_name).skip(1) {
                        let ends = part.trim_start().strip_prefix('"').and_then(|rest| rest.split_once('"'));
                        let Some((name, rest)) = ends.filter(|(name, _)| name.starts_with("holdfast_")) else {
                            continue;
                        };
                        named.insert(name.to_owned());
                        if macro_name == "counter!(" && rest.starts_with(')') {
                            bare.insert(name.to_owned());
                        }
                    }
                }
            }
        }
        let known: BTreeSet<String> = METRICS.iter().map(|(_, name, _)| name.to_string()).collect();
        assert!(named.len() > 40, "the sources were not read: {named:?}");
        assert_eq!(named, known, "each metric needs a line in metrics.rs, and each line needs a metric");
        assert_eq!(bare.iter().collect::<Vec<_>>(), FROM_ZERO, "counters without labels");
    }

    /// What Prometheus asks of names: base units, and the unit at the end. `promtool check metrics` sees the rest, in
    /// the scenario `dashboards`.
    #[test]
    fn names_are_as_prometheus_asks() {
        for (kind, name, help) in METRICS {
            assert_eq!(name.ends_with("_total"), *kind == Kind::Counter, "{name}");
            let is_time = help.starts_with("Unix time") || help.contains(": Unix time");
            assert_eq!(name.ends_with("_timestamp_seconds"), is_time, "{name}: {help}");
            for part in name.split('_') {
                assert!(!["ms", "milliseconds", "minutes", "percent", "kib", "mib"].contains(&part), "{name}");
            }
        }
    }

    /// Alert rules and dashboards: every metric of a gateway that they name exists.
    #[test]
    fn what_is_watched_exists() {
        let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
        let mut seen = BTreeSet::new();
        for file in ["prometheus/holdfast.rules.yml", "grafana/holdfast-gateways.json", "grafana/holdfast-hosts.json"] {
            let text = std::fs::read_to_string(deploy.join(file)).expect(file);
            let of_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            let names = text.split(|c| !of_name(c)).filter(|word| word.starts_with("holdfast_"));
            for name in
                names.filter(|name| !["holdfast_agent_", "holdfast_standby_"].iter().any(|of| name.starts_with(of)))
            {
                let ends = ["_bucket", "_count", "_sum"].iter().find_map(|end| name.strip_suffix(end));
                let is = |name: &str| METRICS.iter().any(|(_, known, _)| *known == name);
                let exists = is(name) || ends.is_some_and(is) || name == "holdfast_build_info";
                assert!(exists, "{file}: there is no metric {name}");
                seen.insert(name.to_owned());
            }
        }
        assert!(seen.len() > 30, "the files were not read: {seen:?}");
    }

    /// Several clusters in one Prometheus have groups, and may have sets, of the same name: each query of a dashboard
    /// is of the chosen clusters, and adds or compares nothing across them.
    #[test]
    fn dashboards_keep_clusters_apart() {
        let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
        let (chosen, mut queries) = ("{cluster=~\"$cluster\"", 0);
        for file in ["grafana/holdfast-gateways.json", "grafana/holdfast-hosts.json"] {
            let text = std::fs::read_to_string(deploy.join(file)).expect(file);
            let board: serde_json::Value = serde_json::from_str(&text).expect(file);
            let list = |value: &serde_json::Value| value.as_array().cloned().unwrap_or_default();
            let variables = list(&board["templating"]["list"]);
            let [_, cluster, set] = &variables[..] else { panic!("{file}: {variables:?}") };
            assert!(
                cluster["name"] == "cluster" && cluster["allValue"] == ".*",
                "{file}: without the label: {cluster}"
            );
            assert!(set["query"].as_str().is_some_and(|query| query.contains(chosen)), "{file}: {set}");
            for target in list(&board["panels"]).iter().flat_map(|panel| list(&panel["targets"])) {
                let query = target["expr"].as_str().expect("a query");
                let of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
                let rest: String = query.split(chosen).map(|part| part.trim_end_matches(of_name)).collect();
                let is_metric = |word: &&str| {
                    ["holdfast_", "process_"].iter().any(|of| word.starts_with(of)) || ["up", "ALERTS"].contains(word)
                };
                let found = rest.split(|c: char| !of_name(c)).find(is_metric);
                assert_eq!(found, None, "{file}: of all clusters: {query}");
                for over in [" by (", " on ("] {
                    assert!(query.split(over).skip(1).all(|labels| labels.starts_with("cluster")), "{file}: {query}");
                }
                queries += 1;
            }
        }
        assert!(queries > 30, "the dashboards were not read: {queries}");
    }

    /// Each alert has a test in which it fires, and a section of the runbooks, which its `runbook_url` names and which
    /// says what to look at, what to do, and when to call for help. No section is left over.
    #[test]
    fn each_alert_has_a_test_and_a_runbook() {
        let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let read = |path: &str| std::fs::read_to_string(top.join(path)).expect(path);
        let rules = read("deploy/prometheus/holdfast.rules.yml");
        let tests = read("deploy/prometheus/holdfast.rules.test.yml");
        let page = read("docs/operating/runbooks.md");
        let sections: BTreeMap<&str, &str> =
            page.split("\n## ").skip(1).filter_map(|section| section.split_once('\n')).collect();
        let mut alerts = BTreeSet::new();
        for rule in rules.split("- alert: ").skip(1) {
            let alert = rule.lines().next().unwrap_or_default().trim();
            assert!(tests.contains(&format!("alertname=\"{alert}\"")), "no test has {alert} fire");
            let section = sections.get(alert).copied().unwrap_or_default();
            for part in ["\n```\n", "\n**Do**", "\n**Call for help**"] {
                assert!(section.contains(part), "runbooks.md, {alert}: expected {part:?} in {section:?}");
            }
            let url = format!("\n          runbook_url: \"docs/operating/runbooks.md#{}\"\n", alert.to_lowercase());
            assert!(rule.contains(&url), "holdfast.rules.yml, {alert}: expected {url:?}");
            alerts.insert(alert);
        }
        assert!(alerts.len() > 30, "the rules were not read: {alerts:?}");
        let left: Vec<&str> = sections.keys().copied().filter(|name| !alerts.contains(name)).collect();
        assert!(left.is_empty(), "docs/operating/runbooks.md: sections without an alert: {left:?}");
    }

    #[test]
    fn golden_page() {
        let mut page = "# Metrics of a gateway\n\n\
            At `http_listen`, `/metrics`, for Prometheus. [Monitoring](monitoring.md) has alert rules and dashboards. Counters\n\
            restart at 0 with the process; those without labels are there from the start. Labels, if they apply: `set`, `group`,\n\
            `op`, `kind`, `tier`, `store`, `outcome`, `door`, `peer`. Histograms of seconds have buckets from 0.1 ms to 30 s, of\n\
            bytes from 1 KiB to 1 MiB, of other counts from 1 to 1024. They are the same at every gateway, so the histograms of\n\
            several gateways can be added up. A measurement appears in them within a second.\n\n\
            A gateway, an agent and a standby also have `holdfast_build_info` (label `version`) and the usual `process_*`: processor\n\
            time, start time, memory, threads, file descriptors. The other metrics of an agent and of a standby are described at\n\
            their `/metrics`.\n\n\
            | metric | kind | what |\n| --- | --- | --- |\n"
            .to_string();
        for (kind, name, help) in METRICS {
            page.push_str(&format!("| `{name}` | {} | {help} |\n", format!("{kind:?}").to_lowercase()));
        }
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(PAGE, &page).expect("the page");
        }
        let found = std::fs::read_to_string(PAGE).unwrap_or_default();
        assert!(found == page, "docs/operating/metrics.md: UPDATE_GOLDEN=1 writes it anew");
    }
}
