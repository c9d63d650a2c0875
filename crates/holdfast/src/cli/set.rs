//! `holdfast set`.

use super::limits::{LimitArgs, OF_SET};
use super::paths::SnapshotArg;
use super::placing::{PLACE, PlaceArgs, PolicyArgs};
use super::stores::{STORES, StoresCommand};
use super::values::{VolumeArg, schedule, store_url};
use clap::{ArgAction, Args, Subcommand};
use holdfast_types::Name;

const CREATE: &str = "\
Examples:
  holdfast set create demo --store s3://bucket/prefix --volume vol1=100GiB --volume vol2=100GiB
  holdfast set create demo --store file:///srv/store --volume vol1=1GiB
  holdfast set create demo --store s3://a/p --store s3://b/p --store s3://c/p --volume vol1=1GiB
      three stores; an object counts as stored once two of them have it. Other commands name them together, in this order: \"w=2 s3://a/p s3://b/p s3://c/p\"
  holdfast set create demo --store 's3://bucket/p?region=auto&profile=r2' --volume vol1=1GiB
      with the credentials of that profile in each gateway's store.credentials_file
  holdfast set create demo --store s3://bucket/prefix --volume vol1=1GiB --home eu-west
      survives the loss of a region; as many voters as that allows are in eu-west
";

const CHECKPOINT: &str = "\
Examples:
  holdfast set checkpoint demo
  holdfast set checkpoint demo --timeout 10m --output json | jq .checkpoint_index

Writers are not blocked. When it ends with 0, everything that was acknowledged before the call is
in the store: `holdfast cluster recover` can restore it even if every gateway is lost.
";

const LIST: &str = "\
One line for each set:
  SET       its name
  GROUP     number of its Raft group, which is also its number in the store, below PREFIX/sets/
  STORE     its store; with several stores all of them, after the write quorum (w=2). c=N counts
            changes of the list. `set stores show` prints the arguments for a recovery
  CLONE OF  the set and the snapshot that it was cloned from; this column is left out if no set is
            a clone

Below: a line for each set whose stores are being changed, with the progress. Then the deletions
in progress, as long as they wait for a gateway:
  STAGE        stopping its Raft group; deleting keys and objects; name is free
  WAITING FOR  gateways that have not stopped its group; a gateway that is down does it when it is
               back
  ERROR        why the deletion does not proceed

Examples:
  holdfast set list
  holdfast set list --output json | jq -r '.sets[] | \"\\(.id) \\(.name)\"'
";

const SHOW: &str = "\
The view of its leader. With --any-view the view of any gateway, without the space in the store.
  served by          the gateway that leads the set, and its region
  owner              owner of the lease, its gateway, and the remaining time to live
  epoch              epoch of the last grant of the lease; it grows with each grant
  log                Raft term; index of the last applied entry, and of the last entry
  checkpoint         everything up to this log index is in the store; 0 before the first
                     checkpoint, and after a recovery until the next checkpoint
  not uploaded       bytes that are only in the journals of the gateways
  store health       ok, or the problem, since when, and whether an operator must act
  scrub              verification in the background: see `holdfast set scrub`
  members            voters of its Raft group
  limit              limit of all its clients together: see `holdfast set limit`
  policy             its requirements for voters: see `holdfast set place`
  placing, voter     what the present voters survive, and where each of them is
  violated           requirements of the policy that are not met, and since when
  moves              the next voters of the set, and why
  clone              each clone, with its snapshot and the log index of the snapshot
  store N            with several stores: missing objects and health of each
  retired objects    objects that are no longer needed and are still in the store

Space in bytes, as of the last checkpoint. A clone does not count what it shares with its origin:
  provisioned        sum of the volumes' sizes
  written            data of the volumes before compression; and data in the journal since then
  stored             segments and map pages of the checkpoint, compressed; then including
                     snapshots and clones, each object counted once
  live               the compressed part of the checkpoint's segments that volumes refer to, of
                     all
  garbage            the other part, which nothing refers to. Then objects that wait for deletion,
                     and old checkpoints that have not been searched for such objects yet

Snapshots (PROVISIONED and WRITTEN as above, at the time of the snapshot):
  UNIQUE  bytes in the store that only this snapshot refers to, which its deletion frees; 0B while
          a clone uses it

Volumes: see `holdfast volume list`.

Examples:
  holdfast set show demo
  holdfast set show demo --output json | jq .space
";

const DELETE: &str = "\
From the answer on, the set cannot be used: its exports are gone and its lease has ended. Then its
keys are destroyed, so that no remaining copy of its data can be decrypted, its objects are
deleted from the store, and every gateway deletes its data from its disks. When the command ends
with 0, the name is free. A gateway that is down deletes its data when it is back; `holdfast set
list` shows it until then. A deletion cannot be undone.

Refused while the set has an owner or connected clients (override with --force), and while it has
snapshots (override with --with-snapshots). With both options the set's gateways are not asked, so
that a set without a leader can be deleted.

Examples:
  holdfast set delete demo
  holdfast set delete demo --with-snapshots --yes --timeout 30m
  holdfast set delete demo --force --with-snapshots --no-wait
";

const SCRUB: &str = "\
Examples:
  holdfast set scrub demo --start
  holdfast set scrub demo

The set's leader reads all objects with at most [scrub] bytes_per_second (a setting, default 1MiB;
0B disables scrubs, and --start is refused). It pauses while the store fails or the journal fills
up, and slows down while the set is busy. A scrub starts by itself [scrub] interval_ms (default 30
days) after the end of the last one.

Exit code 8, also with --start, means that damage is known. The first 100 damaged places are shown
with volume, sectors of 512 bytes and object. Damage stays listed until a complete scrub no longer
finds it. Only the gateway that found it knows it: after a leader change the list starts empty.

`holdfast verify` reads a set at full speed and contacts no gateway.
";

const SCHEDULE: &str = "\
A rule is an interval and a number of snapshots to keep. 15mx8 takes a snapshot in every quarter
of an hour (UTC, by the gateways' clocks) and keeps the first snapshot of each of the last 8
quarters that have one. A snapshot can satisfy several rules. Its name is like
auto-20261120T083000Z. A missed snapshot is taken late, once. Manual snapshots are never deleted.
`off` stops the schedule and deletes nothing.

Examples:
  holdfast set schedule demo 15mx8,1hx24,1dx30
  holdfast set schedule demo off
";

const CLONE: &str = "\
Examples:
  holdfast snapshot create demo@monday
  holdfast set clone demo@monday try
  holdfast volume export try/vol1 try.img

The new set has the volumes of the snapshot, and lies in the same store. No data is copied: the
clone reads what it has not written itself from the objects of the snapshot. These objects stay as
long as the clone exists, even if the snapshot is deleted. `holdfast set show` shows both sides.
";

/// `holdfast set`.
#[derive(Debug, Subcommand)]
pub enum SetCommand {
    /// Create a set and its volumes; what exists already is left as it is
    #[command(after_long_help = CREATE)]
    Create {
        /// Name of the set
        name: Name,
        /// Object store of the set; repeat it for several stores, which each get all data
        #[arg(long = "store", value_name = "URL", value_parser = store_url, required = true, action = ArgAction::Append)]
        stores: Vec<String>,
        /// With several stores: how many must confirm an object, more than half of them [default: the smallest
        /// majority]
        #[arg(long, value_name = "COUNT")]
        write_quorum: Option<usize>,
        /// A volume and its size; volumes are thin-provisioned; may be repeated
        #[arg(long = "volume", value_name = "NAME=SIZE", required = true, action = ArgAction::Append)]
        volumes: Vec<VolumeArg>,
        /// Its policy.
        #[command(flatten)]
        policy: PolicyArgs,
    },
    /// List the sets
    #[command(after_long_help = LIST)]
    List,
    /// Show one set: its gateway, its owner, its volumes and its space in the store
    #[command(after_long_help = SHOW)]
    Show {
        /// The set
        set: Name,
        /// Show the view of any gateway, which may be outdated; works without a majority
        #[arg(long)]
        any_view: bool,
    },
    /// Show the stores of a set; add, drain and replace stores while the set is in use
    #[command(subcommand, after_long_help = STORES)]
    Stores(StoresCommand),
    /// Show why these gateways vote for the set; change which loss it survives and where its voters may be
    #[command(after_long_help = PLACE)]
    Place(PlaceArgs),
    /// Limit how fast the clients of a set may go, or show the limit
    #[command(after_long_help = OF_SET)]
    Limit {
        /// The set
        set: Name,
        /// The limit.
        #[command(flatten)]
        limit: LimitArgs,
    },
    /// Delete a set: its volumes, keys and objects, and its data on the gateways' disks
    #[command(after_long_help = DELETE)]
    Delete(DeleteArgs),
    /// Upload everything that was acknowledged so far to the store
    #[command(after_long_help = CHECKPOINT)]
    Checkpoint {
        /// The set
        set: Name,
    },
    /// Show or start the scrub of a set, which reads all its objects in the background and reports damage
    #[command(after_long_help = SCRUB)]
    Scrub {
        /// The set
        set: Name,
        /// Start it now, unless it is running
        #[arg(long)]
        start: bool,
    },
    /// Take snapshots of a set at fixed times, and delete old ones
    #[command(after_long_help = SCHEDULE)]
    Schedule {
        /// The set
        set: Name,
        /// Rules such as 15mx8,1hx24,1dx30 (units s, m, h, d, w), or off
        #[arg(value_name = "RULES", value_parser = schedule)]
        schedule: String,
    },
    /// Create a new writable set from a snapshot of another set; takes the same short time for any size
    #[command(after_long_help = CLONE)]
    Clone {
        /// The snapshot, SET@SNAPSHOT
        snapshot: SnapshotArg,
        /// Name of the new set
        name: Name,
    },
}

/// `holdfast set delete`.
#[derive(Debug, Args)]
pub struct DeleteArgs {
    /// The set
    pub set: Name,
    /// Delete it even if it has an owner or connected clients: ends the lease and closes the connections
    #[arg(long)]
    pub force: bool,
    /// Delete its snapshots too
    #[arg(long)]
    pub with_snapshots: bool,
    /// Do not wait until the name is free
    #[arg(long)]
    pub no_wait: bool,
    /// Do not ask for confirmation
    #[arg(long)]
    pub yes: bool,
}
