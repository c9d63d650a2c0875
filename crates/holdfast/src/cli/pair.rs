//! Arguments of `holdfast pair`.

use clap::Subcommand;
use std::path::PathBuf;

/// `holdfast pair`.
#[derive(Debug, Subcommand)]
pub enum PairCommand {
    /// Show which gateway holds the pair's seat, and whether it answers
    #[command(after_long_help = STATUS)]
    Status {
        /// Configuration file of either gateway of the pair
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
}

const STATUS: &str = "\
Examples:
  holdfast pair status --config g1.toml
  holdfast pair status --config g1.toml --output json | jq -r .holder.api

A pair is configured by [pair] in the settings of its two gateways (holdfast gateway
sample-config), which both run `holdfast gateway run`. The seat is an etcd key with a lease: the
gateway that holds it serves. It is free for a moment during a takeover, and while no gateway of
the pair runs. BUILDS are the feature levels that the gateways reported last. LEVEL is the lowest
of them, and limits the format of new objects; it is 1 before two gateways have reported.
";
