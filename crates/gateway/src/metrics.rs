//! What each metric of a gateway means: for `/metrics`, and for the page that people read.

use metrics::{describe_counter, describe_gauge, describe_histogram};

/// What a metric does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Only grows; begins anew with the process.
    Counter,
    /// Goes up and down.
    Gauge,
    /// A distribution.
    Histogram,
}

/// All of them, by name.
const METRICS: &[(Kind, &str, &str)] = &[
    (
        Kind::Gauge,
        "holdfast_backlog_bytes",
        "Bytes that are in the journal and that no checkpoint has brought to the store.",
    ),
    (
        Kind::Counter,
        "holdfast_cache_admitted_bytes_total",
        "Sealed bytes that were fetched for readers and put on the cache's disk.",
    ),
    (
        Kind::Counter,
        "holdfast_cache_answers_total",
        "Answers of the read cache, by kind (extents, pages) and tier (memory, disk, store, shared with another reader; journal: not asked of the cache).",
    ),
    (
        Kind::Counter,
        "holdfast_cache_disk_errors_total",
        "Reads of the cache's disk that failed or took too long; the store was asked.",
    ),
    (
        Kind::Counter,
        "holdfast_cache_disk_rejected_total",
        "Bytes from the cache's disk that did not open; the store was asked.",
    ),
    (Kind::Gauge, "holdfast_cache_disk_up", "1 while the cache has a disk."),
    (Kind::Counter, "holdfast_cache_failures_total", "Fetches into the cache that failed."),
    (
        Kind::Counter,
        "holdfast_cache_kept_bytes_total",
        "Sealed bytes that were put on the cache's disk unasked: uploaded here, or brought in as a follower.",
    ),
    (
        Kind::Counter,
        "holdfast_cache_left_out_bytes_total",
        "Sealed bytes that were fetched for a scan and not put on the cache's disk.",
    ),
    (Kind::Gauge, "holdfast_cache_memory_bytes", "Bytes in the cache's memory."),
    (Kind::Gauge, "holdfast_cache_memory_entries", "Entries in the cache's memory."),
    (
        Kind::Counter,
        "holdfast_cache_rewritten_bytes_total",
        "Sealed bytes that were read from the older part of the cache's disk, and written there again so that they stay.",
    ),
    (Kind::Counter, "holdfast_checkpoints_total", "Checkpoints that were completed here."),
    (
        Kind::Counter,
        "holdfast_clock_suspicions_total",
        "Jumps and gaps of the clock; each voids the read leases until a quorum has answered.",
    ),
    (Kind::Gauge, "holdfast_connections", "NBD connections to a set that is served here."),
    (
        Kind::Gauge,
        "holdfast_data_key_older_bytes",
        "Bytes of a set's current state that are under older data keys, while its data key is changed.",
    ),
    (
        Kind::Counter,
        "holdfast_deleted_set_objects_total",
        "Objects of deleted sets that were removed from their stores.",
    ),
    (
        Kind::Counter,
        "holdfast_door_refused_total",
        "Connections at the admin, peer and HTTP doors that were closed because there were as many as may be, by door.",
    ),
    (Kind::Counter, "holdfast_etcd_failures_total", "Grants that etcd could not be told."),
    (Kind::Counter, "holdfast_etcd_grants_told_total", "Grants that etcd was told."),
    (Kind::Counter, "holdfast_etcd_newer_total", "Grants that etcd knew a newer one of."),
    (Kind::Counter, "holdfast_groups_healed_total", "Damaged groups that were learnt anew from their peers."),
    (Kind::Gauge, "holdfast_groups_healing", "Damaged groups that wait for that."),
    (Kind::Gauge, "holdfast_index_extents", "Extents of a set's journal index."),
    (Kind::Gauge, "holdfast_journal_blocked", "1 while the journal frees no file because of a bad record."),
    (Kind::Gauge, "holdfast_journal_bound_bytes", "Most bytes that the journal may take."),
    (
        Kind::Counter,
        "holdfast_journal_corrupt_records_total",
        "Synced records of the journal that did not read back (R9).",
    ),
    (Kind::Gauge, "holdfast_journal_live_bytes", "Bytes of the journal that a group still needs."),
    (Kind::Gauge, "holdfast_journal_stalled", "1 while the journal waits for room on its disk."),
    (Kind::Counter, "holdfast_journal_unread_total", "Records that did not read back while the gateway ran."),
    (Kind::Gauge, "holdfast_journal_used_bytes", "Bytes that the journal takes."),
    (Kind::Histogram, "holdfast_journal_write_seconds", "One write of the journal with its sync."),
    (Kind::Counter, "holdfast_map_pages_given_up_total", "Damaged map pages that nothing needed any more."),
    (Kind::Gauge, "holdfast_nbd_connections", "NBD connections that are open."),
    (Kind::Counter, "holdfast_nbd_request_bytes_total", "Bytes that clients read and wrote."),
    (Kind::Counter, "holdfast_nbd_request_errors_total", "Requests that were answered with an error."),
    (Kind::Histogram, "holdfast_nbd_request_seconds", "From a request's last byte to its answer."),
    (
        Kind::Gauge,
        "holdfast_pair_answers_for_seconds",
        "In a gateway pair: how long this gateway may answer if the etcd confirms its seat no more.",
    ),
    (
        Kind::Histogram,
        "holdfast_pair_flush_seconds",
        "In a gateway pair: how long a flush, or a write that waits like one, waited for the store.",
    ),
    (Kind::Gauge, "holdfast_pair_holder", "In a gateway pair: 1 while this gateway has the seat."),
    (
        Kind::Counter,
        "holdfast_pair_keepalive_failures_total",
        "In a gateway pair: keep-alives that the etcd did not answer.",
    ),
    (Kind::Counter, "holdfast_pair_tenures_total", "In a gateway pair: times that this gateway won the seat."),
    (Kind::Gauge, "holdfast_raft_applied_index", "Last entry of a group that was applied here."),
    (Kind::Gauge, "holdfast_raft_leader", "1 at the gateway that leads the group."),
    (Kind::Gauge, "holdfast_raft_term", "The group's term, as known here."),
    (Kind::Counter, "holdfast_read_ahead_extents_total", "Extents that were fetched before anybody asked for them."),
    (
        Kind::Counter,
        "holdfast_read_ahead_left_out_total",
        "Reads ahead that were left out: too many under way, or the store in trouble.",
    ),
    (Kind::Counter, "holdfast_schedule_failures_total", "Scheduled snapshots that failed."),
    (Kind::Counter, "holdfast_scheduled_snapshots_total", "Scheduled snapshots that were taken."),
    (Kind::Counter, "holdfast_scrub_bytes_total", "Bytes that the scrub has read."),
    (
        Kind::Gauge,
        "holdfast_scrub_complete_seconds",
        "Unix time at which the last complete scrub of a set ended; 0: none did.",
    ),
    (Kind::Counter, "holdfast_scrub_damage_found_total", "Damaged places that the scrub has found."),
    (Kind::Gauge, "holdfast_scrub_damaged", "Damaged places that are known now."),
    (Kind::Gauge, "holdfast_scrub_running", "1 while a set is scrubbed."),
    (Kind::Counter, "holdfast_sets_fenced_total", "Sets that were taken over by a recovery, as this gateway noticed."),
    (Kind::Gauge, "holdfast_snapshots", "Snapshots of a set."),
    (Kind::Counter, "holdfast_space_damaged_total", "Segments and pages that collection could not read."),
    (Kind::Counter, "holdfast_space_deleted_total", "Objects that were deleted from the store."),
    (
        Kind::Gauge,
        "holdfast_space_dropped_roots",
        "Deleted snapshots and old checkpoints whose objects are not looked through yet.",
    ),
    (Kind::Gauge, "holdfast_space_garbage_bytes", "Bytes of segments that no volume shows, as of the last checkpoint."),
    (
        Kind::Gauge,
        "holdfast_space_given_up_objects",
        "Objects that checkpoints of this leader began to write and that it does not know to be named yet; those of the one under way too.",
    ),
    (
        Kind::Counter,
        "holdfast_space_held_total",
        "Checkpoints that moved less than they had to because of the limits in [space].",
    ),
    (Kind::Gauge, "holdfast_space_listed_bytes", "Bytes of a set that a listing of the store showed last."),
    (Kind::Gauge, "holdfast_space_listed_objects", "Objects of a set that a listing of the store showed last."),
    (
        Kind::Gauge,
        "holdfast_space_live_bytes",
        "Bytes of segments that volumes show (not: snapshots alone), their share of each segment.",
    ),
    (Kind::Counter, "holdfast_space_moved_bytes_total", "Bytes that collection has copied, before compression."),
    (
        Kind::Counter,
        "holdfast_space_refused_total",
        "Deletions that were not carried out: another leader or another life of the set.",
    ),
    (Kind::Gauge, "holdfast_space_retired_objects", "Objects that wait for their deletion."),
    (Kind::Counter, "holdfast_space_retired_total", "Objects that were given up for deletion."),
    (Kind::Gauge, "holdfast_space_stored_bytes", "Bytes of the segments that the last checkpoint names."),
    (Kind::Histogram, "holdfast_store_attempt_seconds", "One attempt of a request to the store."),
    (Kind::Counter, "holdfast_store_attempts_total", "Attempts of requests to the store, by op and outcome."),
    (Kind::Counter, "holdfast_store_errors_total", "Attempts that failed, by kind of trouble."),
    (Kind::Counter, "holdfast_store_failovers_total", "Of several stores: reads that went on to another one."),
    (Kind::Gauge, "holdfast_store_missing_bytes", "Of several stores: bytes that one lacks, as the leader knows."),
    (Kind::Gauge, "holdfast_store_missing_objects", "Of several stores: objects that one lacks, as the leader knows."),
    (Kind::Gauge, "holdfast_store_needs_operator", "1 while the store needs a person. Page on it."),
    (
        Kind::Counter,
        "holdfast_store_repaired_total",
        "Of several stores: objects that were copied to one that lacked them.",
    ),
    (
        Kind::Gauge,
        "holdfast_store_replica_trouble_since_seconds",
        "Of several stores: Unix time of one's first failure in a row; 0 while all is well.",
    ),
    (Kind::Counter, "holdfast_store_retries_total", "Objects that the store did not take and that were tried again."),
    (
        Kind::Counter,
        "holdfast_store_spoilt_total",
        "Answers of the store that were not what was written, and were asked for anew (R9).",
    ),
    (
        Kind::Gauge,
        "holdfast_store_trouble_since_seconds",
        "Unix time of the store's first failure in a row; 0 while all is well.",
    ),
    (Kind::Counter, "holdfast_uploaded_bytes_total", "Bytes of segments that were uploaded."),
    (Kind::Counter, "holdfast_warm_bytes_total", "Bytes that a follower read from the store for its cache, roots too."),
    (
        Kind::Counter,
        "holdfast_warm_checkpoints_total",
        "Checkpoints of another gateway that a follower compared with the one before and went through for its cache.",
    ),
    (
        Kind::Counter,
        "holdfast_warm_left_out_bytes_total",
        "Bytes of such checkpoints that were not brought in when the step ended: too many at once, not read, or leadership moved (then they may come with the next).",
    ),
    (Kind::Counter, "holdfast_warm_requests_total", "Requests to the store that a follower made for its cache."),
];

/// Tells the recorder.
pub(crate) fn describe() {
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
    use std::collections::BTreeSet;
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

    /// In the sources of what runs in a gateway's process.
    #[test]
    fn every_metric_has_words() {
        let mut named = BTreeSet::new();
        for room in ["gateway", "store", "log", "raft", "etcd"] {
            let mut files = Vec::new();
            sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(room).join("src"), &mut files);
            for file in files.iter().filter(|file| !file.ends_with("metrics.rs")) {
                let text = std::fs::read_to_string(file).expect("a source");
                for macro_name in ["counter!(", "gauge!(", "histogram!("] {
                    for part in text.split(macro_name).skip(1) {
                        let name = part.trim_start().strip_prefix('"').and_then(|rest| rest.split('"').next());
                        named.extend(name.filter(|name| name.starts_with("holdfast_")).map(str::to_owned));
                    }
                }
            }
        }
        let known: BTreeSet<String> = METRICS.iter().map(|(_, name, _)| name.to_string()).collect();
        assert!(named.len() > 40, "the sources were not read: {named:?}");
        assert_eq!(named, known, "each metric needs a line in metrics.rs, and each line a metric");
    }

    #[test]
    fn golden_page() {
        let mut page = "# Metrics of a gateway\n\nAt `http_listen`, `/metrics`, for Prometheus. Counters begin anew with the process. Labels: `set`, `group`, `op`, `kind`, \
            `tier`, `store`, `outcome`, `door` where they apply. An agent and a standby have their own (`/metrics` of each says what they are). Histograms are in seconds, in buckets from 0.1 ms to 30 s \
            that are the same at every gateway, so that those of several may be added up; what was measured is in them a second later at most.\n\n\
            To be told at night: `holdfast_store_needs_operator` 1, `holdfast_journal_stalled` 1, `holdfast_scrub_damaged` above 0, `/healthz` other than 200 for a minute, \
            no gateway with `holdfast_raft_leader` 1 for a group.\n\n| metric | kind | what |\n| --- | --- | --- |\n"
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
