//! Arguments of `holdfast set stores`, which shows and changes the stores of a set in use.

use super::values::store_url;
use crate::duration;
use clap::{ArgAction, Args, Subcommand};
use holdfast_types::Name;
use std::time::Duration;

/// `holdfast set stores`.
#[derive(Debug, Subcommand)]
pub enum StoresCommand {
    /// Show the stores of a set: what each one lacks, the progress of a change, and the arguments for a recovery
    #[command(after_long_help = SHOW)]
    Show {
        /// The set
        set: Name,
    },
    /// Change the stores of a set to the given list
    #[command(after_long_help = CHANGE)]
    Change {
        /// The set
        set: Name,
        /// A store of the new list, also one that stays; repeat it for each store, in order
        #[arg(long = "store", value_name = "URL", value_parser = store_url, required = true, action = ArgAction::Append)]
        stores: Vec<String>,
        #[command(flatten)]
        quorum: QuorumArgs,
        #[command(flatten)]
        how: HowArgs,
    },
    /// Add stores to a set
    #[command(after_long_help = ADD)]
    Add {
        /// The set
        set: Name,
        /// The new stores; they follow the present ones in the list
        #[arg(value_name = "URL", value_parser = store_url, required = true)]
        urls: Vec<String>,
        #[command(flatten)]
        quorum: QuorumArgs,
        #[command(flatten)]
        how: HowArgs,
    },
    /// Remove a store, also a dead one, when the others have all its data
    #[command(visible_alias = "remove", after_long_help = DRAIN)]
    Drain {
        /// The set
        set: Name,
        /// The stores to remove, as `set stores show` names them
        #[arg(value_name = "URL", value_parser = store_url, required = true)]
        urls: Vec<String>,
        #[command(flatten)]
        quorum: QuorumArgs,
        #[command(flatten)]
        how: HowArgs,
    },
    /// Replace a store, also a dead one, by a new one
    #[command(after_long_help = REPLACE)]
    Replace {
        /// The set
        set: Name,
        /// The store to remove, as `set stores show` names it
        #[arg(value_name = "OLD", value_parser = store_url)]
        old: String,
        /// The store to add in its place
        #[arg(value_name = "NEW", value_parser = store_url)]
        new: String,
        #[command(flatten)]
        how: HowArgs,
    },
    /// Abandon a change and keep the old stores; possible while the new ones are being filled
    #[command(after_long_help = ABANDON)]
    Abandon {
        /// The set
        set: Name,
        /// Check whether it can be done, and change nothing
        #[arg(long)]
        dry_run: bool,
    },
}

/// Write quorum of the new list.
#[derive(Clone, Copy, Debug, Args)]
pub struct QuorumArgs {
    /// How many stores of the new list must confirm an object: more than half, fewer than all [default: the smallest
    /// majority]
    #[arg(long, value_name = "COUNT")]
    pub write_quorum: Option<usize>,
}

/// How a change is started and waited for.
#[derive(Clone, Copy, Debug, Args)]
pub struct HowArgs {
    /// Check whether it can be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Wait until the change is complete, at most for TIME [default: 1d]; --timeout does not limit this
    #[arg(long, value_name = "TIME", value_parser = duration::parse, num_args = 0..=1, require_equals = true, default_missing_value = "1d", conflicts_with = "dry_run")]
    pub wait: Option<Duration>,
    /// Do not ask for confirmation before a store is removed
    #[arg(long)]
    pub yes: bool,
}

/// Shown below the help of all of them.
pub const STORES: &str = "\
The set stays in use during a change. A change runs in the background, also when leadership moves,
in these phases:
  filling   New objects are written to the old and the new stores. Existing objects are copied
            from the old to the new stores. The old list is valid; `abandon` returns to it.
  ending    The change is decided and cannot be abandoned. All objects are compared once more,
            then the new list becomes valid.
  (none)    Done. Objects of the set that remain in a removed store are not needed. Nothing
            deletes them: delete them yourself.

There is one change at a time. During a change every upload needs the write quorum of the old and
of the new list. If one is missing, the journal grows, as when a store is down. The stores of a
clone, and of a set that has a clone, cannot be changed. After a change, `cluster recover` needs
the new list. Write it down: `set stores show` prints it.
";

const SHOW: &str = "\
Examples:
  holdfast set stores show demo
  holdfast set stores show demo --output json | jq -r .from_store

CHANGE says which stores stay, join or leave in a change. MISSING and HEALTH come from the gateway
that serves the set.
";

const CHANGE: &str = "\
Examples:
  holdfast set stores change demo --store s3://a/p --store s3://b/p --store s3://c/p --dry-run
  holdfast set stores change demo --store s3://a/p --store s3://b/p --store s3://c/p --wait
      from one store to three, with a write quorum of two
  holdfast set stores change demo --store s3://new/p --yes
      moves the set to one other store

Each new store must be reachable with the credentials of the gateways, and must have no objects
below PREFIX/sets/NUMBER/ (the number of this set): use a separate prefix for each cluster.
Repeating the command during the change or after it changes nothing and ends with 0.
";

const ADD: &str = "\
Examples:
  holdfast set stores add demo s3://d/p s3://e/p --write-quorum 3
  holdfast set stores add demo s3://b/p s3://c/p --wait=30m

A list of two stores is refused: the set could not survive the loss of either. Add two stores at
once to a set with one store.
";

const DRAIN: &str = "\
Examples:
  holdfast set stores drain demo s3://e/p
  holdfast set stores drain demo s3://b/p s3://c/p --yes --wait
      from three stores to one

One of three stores cannot be drained alone, because a list of two stores is refused: `replace`
it, or drain two. A dead store can be drained: the others have its objects, as long as a write
quorum of the stores answers.
";

const REPLACE: &str = "\
Examples:
  holdfast set stores replace demo s3://west/p s3://north/p
  holdfast set stores replace demo s3://west/p s3://north/p --yes --wait=150m

The new store takes the position of the old one in the list, and the write quorum stays the same.
A bucket that was emptied, with an unchanged URL, needs no command: it is filled again
automatically.
";

const ABANDON: &str = "\
Examples:
  holdfast set stores abandon demo

Refused in the phase `ending`. Objects that were copied to the new stores stay there. Delete them
before you use these stores for this set again.
";
