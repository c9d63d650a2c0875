//! What a running PostgreSQL says of itself, for clients of Patroni's REST API (ADR 0062).

use serde::{Deserialize, Serialize};

/// The question. Answered from memory alone: nothing of it lies on the device (DB-D3). A function that fails in
/// recovery stands in a branch that is not taken there.
pub const TOLD: &str = "select json_build_object(\
    'postmaster_start_time', \
        to_char(pg_postmaster_start_time() at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') || '+00:00', \
    'started_unix_s', extract(epoch from pg_postmaster_start_time()), \
    'server_version', current_setting('server_version_num')::int, \
    'in_recovery', pg_is_in_recovery(), \
    'timeline', case when pg_is_in_recovery() \
        then coalesce((select received_tli from pg_stat_wal_receiver), 0) \
        else ('x' || substr(pg_walfile_name(pg_current_wal_flush_lsn()), 1, 8))::bit(32)::int end, \
    'location', case when not pg_is_in_recovery() \
        then pg_wal_lsn_diff(pg_current_wal_flush_lsn(), '0/0')::bigint end, \
    'received_location', pg_wal_lsn_diff(pg_last_wal_receive_lsn(), '0/0')::bigint, \
    'replayed_location', pg_wal_lsn_diff(pg_last_wal_replay_lsn(), '0/0')::bigint, \
    'replayed_timestamp', \
        to_char(pg_last_xact_replay_timestamp() at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') || '+00:00', \
    'replayed_unix_s', extract(epoch from pg_last_xact_replay_timestamp()), \
    'replay_paused', case when pg_is_in_recovery() then pg_is_wal_replay_paused() else false end, \
    'streams', exists (select from pg_stat_wal_receiver where status = 'streaming'), \
    'restores', coalesce(current_setting('restore_command', true), '') <> '', \
    'pending_restart', coalesce((select bool_or(pending_restart) from pg_settings), false), \
    'replication', (select json_agg(json_build_object('usename', usename, 'application_name', application_name, \
        'client_addr', client_addr, 'state', state, 'sync_state', sync_state, 'sync_priority', sync_priority)) \
        from pg_stat_replication))";

/// The question for the identifier of the database system. The server reads it from its control file.
pub const IDENTIFIER: &str = "select system_identifier from pg_control_system()";

/// The answer to [`TOLD`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerView {
    /// Start of the server, as Patroni writes it: `2024-08-28 19:39:26.352526+00:00`.
    pub postmaster_start_time: String,
    /// Like `postmaster_start_time`, in seconds since 1970.
    pub started_unix_s: f64,
    /// Version, such as 160004.
    pub server_version: u32,
    /// It is in recovery: a standby.
    pub in_recovery: bool,
    /// Timeline that it writes or receives, 0 if that is not known.
    pub timeline: u32,
    /// End of its WAL that is flushed, in bytes; of a server that takes writes.
    pub location: Option<u64>,
    /// End of the WAL that it has received, in bytes; of one that streams.
    pub received_location: Option<u64>,
    /// End of the WAL that it has replayed, in bytes; of one that is, or was, in recovery.
    pub replayed_location: Option<u64>,
    /// Time of the last commit that it has replayed.
    pub replayed_timestamp: Option<String>,
    /// Like `replayed_timestamp`, in seconds since 1970.
    pub replayed_unix_s: Option<f64>,
    /// Its replay is paused.
    pub replay_paused: bool,
    /// It receives WAL over a connection.
    pub streams: bool,
    /// It has a `restore_command`.
    pub restores: bool,
    /// A setting waits for a restart.
    pub pending_restart: bool,
    /// Its WAL senders.
    pub replication: Option<serde_json::Value>,
    /// Identifier of the database system; "" if that is not known.
    pub system_identifier: String,
}

impl ServerView {
    /// Reads the answer to [`TOLD`]; `None` if it has another form.
    pub fn parse(answer: &str) -> Option<Self> {
        let parsed = serde_json::from_str(answer);
        if let Err(error) = &parsed {
            tracing::debug!(%error, answer, "found another answer than the one expected");
        }
        parsed.ok()
    }

    /// How it follows another server, in Patroni's words; `None` for one that takes writes, or has nothing to follow.
    pub fn replication_state(&self) -> Option<&'static str> {
        match (self.in_recovery, self.streams, self.restores) {
            (true, true, _) => Some("streaming"),
            (true, false, true) => Some("in archive recovery"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As psql prints it: an aggregate has line breaks.
    #[test]
    fn the_answer_of_a_server_is_read() {
        let primary = "{\"postmaster_start_time\" : \"2026-08-28 19:39:26.352526+00:00\", \
            \"started_unix_s\" : 1787945966.352526, \"server_version\" : 150014, \"in_recovery\" : false, \
            \"timeline\" : 2, \"location\" : 67395656, \"received_location\" : null, \"replayed_location\" : null, \
            \"replayed_timestamp\" : null, \"replayed_unix_s\" : null, \"replay_paused\" : false, \
            \"streams\" : false, \"restores\" : true, \"pending_restart\" : true, \
            \"replication\" : [{\"usename\" : \"r\"}, \n {\"usename\" : \"s\"}]}";
        let view = ServerView::parse(primary).unwrap();
        assert_eq!((view.server_version, view.timeline, view.location), (150_014, 2, Some(67_395_656)));
        assert_eq!((view.replication_state(), view.pending_restart), (None, true));
        assert_eq!(view.replication.unwrap()[1]["usename"], "s");
        assert_eq!(ServerView::parse("psql: error"), None);
    }

    #[test]
    fn a_standby_streams_or_reads_an_archive() {
        let of = |in_recovery, streams, restores| {
            ServerView { in_recovery, streams, restores, ..ServerView::default() }.replication_state()
        };
        assert_eq!(of(true, true, true), Some("streaming"));
        assert_eq!(of(true, false, true), Some("in archive recovery"));
        assert_eq!(of(true, false, false), None);
        assert_eq!(of(false, false, true), None);
    }
}
