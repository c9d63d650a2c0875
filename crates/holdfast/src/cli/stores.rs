//! Arguments of `holdfast set stores`: where a set lies, and the change of it while it serves.

use super::{store_url, with_codes};
use crate::duration;
use clap::{ArgAction, Args, Subcommand};
use holdfast_types::Name;
use std::time::Duration;

/// `holdfast set stores`.
#[derive(Debug, Subcommand)]
pub enum StoresCommand {
    /// Show the stores of a set: what each has, how far a change of them is, and what a recovery is told
    #[command(after_long_help = with_codes(SHOW))]
    Show {
        /// The set
        set: Name,
    },
    /// Put a set into other stores: the whole list that is to be
    #[command(after_long_help = with_codes(CHANGE))]
    Change {
        /// The set
        set: Name,
        /// A store that the set is to be in, once for each, in their order; those that stay too
        #[arg(long = "store", value_name = "URL", value_parser = store_url, required = true, action = ArgAction::Append)]
        stores: Vec<String>,
        #[command(flatten)]
        quorum: QuorumArgs,
        #[command(flatten)]
        how: HowArgs,
    },
    /// Put a set into more stores than it is in
    #[command(after_long_help = with_codes(ADD))]
    Add {
        /// The set
        set: Name,
        /// The new stores, behind those that are there
        #[arg(value_name = "URL", value_parser = store_url, required = true)]
        urls: Vec<String>,
        #[command(flatten)]
        quorum: QuorumArgs,
        #[command(flatten)]
        how: HowArgs,
    },
    /// Let a store go, once everything that it has is in the others; also one that is dead
    #[command(visible_alias = "remove", after_long_help = with_codes(DRAIN))]
    Drain {
        /// The set
        set: Name,
        /// The stores that go, as `set stores show` names them
        #[arg(value_name = "URL", value_parser = store_url, required = true)]
        urls: Vec<String>,
        #[command(flatten)]
        quorum: QuorumArgs,
        #[command(flatten)]
        how: HowArgs,
    },
    /// Put a new store in the place of another, also of a dead one
    #[command(after_long_help = with_codes(REPLACE))]
    Replace {
        /// The set
        set: Name,
        /// The store that goes, as `set stores show` names it
        #[arg(value_name = "OLD", value_parser = store_url)]
        old: String,
        /// The store that comes in its place
        #[arg(value_name = "NEW", value_parser = store_url)]
        new: String,
        #[command(flatten)]
        how: HowArgs,
    },
    /// Go back to the stores that are, while those that were to be are being filled
    #[command(after_long_help = with_codes(ABANDON))]
    Abandon {
        /// The set
        set: Name,
        /// Look whether it can be done, and change nothing
        #[arg(long)]
        dry_run: bool,
    },
}

/// How many of the stores that are to be must have an object.
#[derive(Clone, Copy, Debug, Args)]
pub struct QuorumArgs {
    /// How many of the stores that are to be must have an object before it counts: more than half, fewer than all [default: the smallest majority]
    #[arg(long, value_name = "COUNT")]
    pub write_quorum: Option<usize>,
}

/// How a change is begun, and waited for.
#[derive(Clone, Copy, Debug, Args)]
pub struct HowArgs {
    /// Look whether it can be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Return once the set is in the new stores alone; after TIME at the latest, a day where none is given. This is not part of --timeout
    #[arg(long, value_name = "TIME", value_parser = duration::parse, num_args = 0..=1, require_equals = true, default_missing_value = "1440m", conflicts_with = "dry_run")]
    pub wait: Option<Duration>,
    /// Do not ask before a store is let go
    #[arg(long)]
    pub yes: bool,
}

/// Of all of them together.
pub const STORES: &str = "\
The set serves on meanwhile, and whoever uses it sees nothing of it. A change goes like this, by itself, whoever leads the set:
  filling   What is written goes to the old and the new stores. The new ones are filled from the old ones; the old ones count. `abandon` goes back.
  ending    Decided: everything is compared once more, then the new stores count, and the others let go of the set's keys. No way back from here
            but another change.
  (none)    Done. What the set left in a store that it is not in any more is not needed, and deleted by nobody: empty that place.

One change at a time. Until it is done every write needs a write quorum of the old stores and one of the new ones; with fewer the journal grows, as when
a store is away. A set that is a clone, or has one, keeps its stores.
Afterwards a recovery is told the new list. Write it down: `set stores show` prints it.
";

const SHOW: &str = "\
Examples:
  holdfast set stores show demo
  holdfast set stores show demo --output json | jq -r .from_store

PART says which stores stay, join or leave in a change. LACKS is known to the gateway that serves the set.
";

const CHANGE: &str = "\
Examples:
  holdfast set stores change demo --store s3://a/p --store s3://b/p --store s3://c/p --dry-run
  holdfast set stores change demo --store s3://a/p --store s3://b/p --store s3://c/p --wait
      one store becomes three, two of which must have an object
  holdfast set stores change demo --store s3://new/p --yes
      the set moves from wherever it is to one other store

Each store that is new must answer, and have nothing below PREFIX/sets/NUMBER/ of this set's number: give each cluster a prefix of its own. It needs the
credentials that the gateways have. Asked again while it is under way, or when it is done, it changes nothing and ends with 0.
";

const ADD: &str = "\
Examples:
  holdfast set stores add demo s3://d/p s3://e/p --write-quorum 3
  holdfast set stores add demo s3://b/p s3://c/p --wait=30m

Two stores are refused: neither could be away. So a set with one store gets two more at once.
";

const DRAIN: &str = "\
Examples:
  holdfast set stores drain demo s3://e/p
  holdfast set stores drain demo s3://b/p s3://c/p --yes --wait
      three stores become one

Of three stores one alone cannot go, since two are refused: `replace` it, or drain two. A dead store is not asked: the others have what it has, as long
as a write quorum of the stores answers.
";

const REPLACE: &str = "\
Examples:
  holdfast set stores replace demo s3://west/p s3://north/p
  holdfast set stores replace demo s3://west/p s3://north/p --yes --wait=150m

The new one has the place of the old one in the order, and the write quorum stays. A bucket that was emptied under the same URL needs none of this: it is
filled by itself.
";

const ABANDON: &str = "\
Examples:
  holdfast set stores abandon demo

Refused once the change is decided. What was copied into the new stores stays there, and keeps them from being new again: empty them first.
";
