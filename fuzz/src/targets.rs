//! All targets.

mod agent;
mod api;
mod config;
mod control;
mod head;
mod journal;
mod map;
mod nbd;
mod nbd_client;
mod raft;
mod sealed;
mod store;
mod tls;
mod volume;

use crate::target::{Bound, Target};

/// Room for what a decoder sets up whatever the input is, and a list of small items for each byte.
const USUAL: Bound = Bound { base: 64 << 10, each: 64 };

/// Serde takes up to 1 MiB at once for a list of that claimed length; maps in maps do so more than once.
const SERDE: Bound = Bound { base: 4 << 20, each: 256 };

/// An extent of a page takes two bytes; here it is in a list and a tree, encoded, decoded again, and looked up. Roots
/// and leaves are of the same kind.
const PAGE: Bound = Bound { base: 64 << 10, each: 256 };

/// A field takes four bytes, is read three times, and each time is in a list and a table.
const TOML: Bound = Bound { base: 4 << 20, each: 1024 };

const fn target(
    name: &'static str,
    about: &'static str,
    bytes_max: usize,
    run: fn(&[u8]) -> bool,
    seeds: fn() -> Vec<Vec<u8>>,
) -> Target {
    Target { name, about, bytes_max, bound: USUAL, run, seeds }
}

const fn within(bound: Bound, target: Target) -> Target {
    Target { bound, ..target }
}

/// All targets, by the room of their decoders.
pub const TARGETS: &[Target] = &[
    target("nbd-server-handshake", "options of an NBD client", 4096, nbd::handshake, nbd::handshakes),
    target("nbd-server-requests", "requests of an NBD client", 4096, nbd::requests, nbd::all_requests),
    target("nbd-export-name", "the name of an export", 1024, nbd::export_name, nbd::export_names),
    target(
        "nbd-client-handshake",
        "option replies of an NBD server",
        4096,
        nbd_client::handshake,
        nbd_client::handshakes,
    ),
    target("nbd-client-replies", "replies of an NBD server", 8192, nbd_client::replies, nbd_client::all_replies),
    within(SERDE, target("peer-frames", "append frames and their answers", 4096, raft::frames, raft::all_frames)),
    within(
        SERDE,
        target("peer-messages", "calls between gateways and their answers", 4096, raft::messages, raft::all_messages),
    ),
    within(
        SERDE,
        target("state-files", "state snapshots and notes on the node's disk", 4096, raft::files, raft::all_files),
    ),
    within(
        journal::BOUND,
        target("journal-files", "two files of a journal", journal::BYTES_MAX, journal::files, journal::all_files),
    ),
    within(
        SERDE,
        target(
            "log-entries",
            "entries of a set's log, and what applying them does",
            8192,
            volume::entries,
            volume::all_entries,
        ),
    ),
    within(
        SERDE,
        target("set-state", "a snapshot of a set's replicated state", 4096, volume::states, volume::all_states),
    ),
    within(
        volume::EXTENT,
        target("segments", "a segment: its table and its extents", 8192, volume::segments, volume::all_segments),
    ),
    within(PAGE, target("map-pages", "a page of a map", 4096, map::pages, map::all_pages)),
    within(
        PAGE,
        target("map-roots", "a root of a map: whole, or the top of one in leaves", 4096, map::roots, map::all_roots),
    ),
    within(PAGE, target("map-leaves", "a leaf of a root", 4096, map::leaves, map::all_leaves)),
    within(PAGE, target("map-packs", "a pack of pages, and the pages in it", 4096, map::packs, map::all_packs)),
    within(SERDE, target("heads", "the head of a set, and its keyring in clear", 4096, head::heads, head::all_heads)),
    within(SERDE, target("cluster-state", "state and commands of group 0", 4096, control::cluster, control::all)),
    target("store-urls", "stores, placements and keys as texts", 2048, store::urls, store::all_urls),
    target("store-slots", "the slots of a head in several stores", 2048, store::slots, store::all_slots),
    within(
        SERDE,
        target("admin-messages", "calls of the admin API and their answers", 4096, api::messages, api::all_messages),
    ),
    within(
        SERDE,
        target(
            "agent-http",
            "answers in place of an agent's, and proofs of its token",
            4096,
            agent::messages,
            agent::all_messages,
        ),
    ),
    target("certificates", "the names in a client's certificate", 4096, tls::certificates, tls::all_certificates),
    within(
        TOML,
        target(
            "settings",
            "settings files of gateway, agent and standby",
            8192,
            config::settings,
            config::all_settings,
        ),
    ),
];
