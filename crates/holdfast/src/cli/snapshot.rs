//! Arguments of `holdfast snapshot`.

use super::paths::SnapshotArg;
use clap::Subcommand;
use holdfast_types::Name;

const CREATE: &str = "\
A snapshot contains all volumes of a set at one point in time, after the call starts and before it
returns. Writes acknowledged before the call are in it. It needs space only for later changes,
independent of the volumes' size. A set has at most 128 snapshots, including scheduled and pending
ones.

Every gateway exports it over NBD, read-only and without a lease. `holdfast snapshot token` prints
the addresses with the token.

Examples:
  holdfast snapshot create demo@monday
  holdfast volume export demo/vol1@monday monday.img
";

const LIST: &str = "\
One line for each snapshot, from the set's leader:
  SNAPSHOT  its name
  STATE     pending: waits for its checkpoint and cannot be read yet; ready; scheduled: ready, and
            taken by the snapshot schedule, which will delete it
  POSITION  tTERM/INDEX: the last log entry in the snapshot; it contains all writes up to it and
            none after. t0/0 after a recovery: the position was in another log
  CREATED   how long ago it was requested, by the gateway's clock then and this machine's clock
            now
  VOLUMES   names of the set's volumes at that time; empty while it is pending

For the space of each snapshot see UNIQUE in `holdfast set show`.

Examples:
  holdfast snapshot list demo
  holdfast snapshot list demo --output json | jq -r '.snapshots[] | select(.pending) | .name'
";

const TOKEN: &str = "\
Prints the NBD address of each volume of the snapshot, with the token that opens it. Every gateway
serves it, read-only and without a lease; the address is that of the set's leader. The token
allows reading the whole snapshot: protect it like the data. It is valid until the snapshot is
deleted, or the set's data key is rotated; then get a new one. `holdfast volume export` and
`holdfast standby` get the token by themselves.

Examples:
  holdfast snapshot token demo@monday
  nbdcopy \"$(holdfast snapshot token demo@monday --output json | jq -r '.exports[0]')\" monday.img
";

const DELETE: &str = "\
Asks for confirmation. Data that only this snapshot refers to is deleted from the store after the
grace period for readers (space.grace_ms). This cannot be undone. A snapshot that does not exist
is no error.

Examples:
  holdfast snapshot delete demo@monday
  holdfast snapshot delete demo@monday --yes
";

const DIFF: &str = "\
For incremental backups: lists the changes that turn images of the volumes at EARLIER into images
at LATER. It reads the map only, no data. Ranges that garbage collection moved in between are
listed although their content is the same.

First come the volumes, matched by id, since names can change. RELATION is how to prepare the
image, SIZE AFTER is its new length:
  gone  only in EARLIER: delete its image
  same  keep its image of EARLIER, and truncate or extend it with zeroes (the volume may have been
        renamed, see RENAMED FROM)
  new   start with zeroes
  anew  start with zeroes: EARLIER has a different volume with this name, whose content must not
        stay
Store images by id. If you store them by name, prepare all images before you write to any of them:
two volumes may have exchanged their names.

Then come the ranges to write, in bytes: `zero` reads as zeroes in LATER; read `data` from the
export SET/VOLUME@LATER. Ranges that are not listed stay unchanged.

With --output json each line is one JSON value, with `kind` = `volume`, then `range`, and `end`
once. Without the `end` line the list is incomplete and must not be used.

Examples:
  holdfast snapshot diff demo monday tuesday
  holdfast snapshot diff demo monday tuesday --output json > tuesday.diff
  tail -n 1 tuesday.diff | jq -e 'select(.kind == \"end\")'
  jq -r 'select(.kind == \"range\" and .id == 3) | \"\\(.offset) \\(.length) \\(.content)\"' tuesday.diff
";

const ROLLBACK: &str = "\
All volumes of the set, including their sizes, return to their state in the snapshot. Before that,
a safety snapshot of the present state is taken, and the answer names it: roll back to it to undo
this. Writes since the snapshot are then only in the safety snapshot.

Refused while the set has an owner. With --force its lease is ended first: the owner is fenced,
and must attach and mount again.

Examples:
  holdfast snapshot rollback demo@monday
  holdfast snapshot rollback demo@monday --force --yes --timeout 5m
";

/// `holdfast snapshot`.
#[derive(Debug, Subcommand)]
pub enum SnapshotCommand {
    /// Create a snapshot of a set; ends when it is in the store
    #[command(after_long_help = CREATE)]
    Create {
        /// The set and the snapshot's name
        #[arg(value_name = "SET@NAME")]
        snapshot: SnapshotArg,
    },
    /// List the snapshots of a set, oldest first
    #[command(after_long_help = LIST)]
    List {
        /// The set
        set: Name,
    },
    /// Print the NBD addresses of a snapshot, with the token that opens them
    #[command(after_long_help = TOKEN)]
    Token {
        /// The set and the snapshot's name
        #[arg(value_name = "SET@NAME")]
        snapshot: SnapshotArg,
    },
    /// Roll a set back to one of its snapshots; takes a safety snapshot first
    #[command(after_long_help = ROLLBACK)]
    Rollback {
        /// The set and the snapshot's name
        #[arg(value_name = "SET@NAME")]
        snapshot: SnapshotArg,
        /// End the lease of the present owner
        #[arg(long)]
        force: bool,
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
    },
    /// List the differences between two snapshots: volumes and changed ranges
    #[command(after_long_help = DIFF)]
    Diff {
        /// The set
        set: Name,
        /// The earlier snapshot
        earlier: Name,
        /// The later snapshot
        later: Name,
    },
    /// Delete a snapshot
    #[command(after_long_help = DELETE)]
    Delete {
        /// The set and the snapshot's name
        #[arg(value_name = "SET@NAME")]
        snapshot: SnapshotArg,
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
    },
}
