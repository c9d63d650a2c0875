//! `holdfast switchover` and `holdfast failover`.

use super::values::owner;
use crate::duration;
use clap::Args;
use holdfast_types::{Name, Owner};
use std::time::Duration;

/// `holdfast switchover`.
#[derive(Debug, Args)]
#[command(
    after_long_help = "Example:\n  holdfast switchover demo --to g2\n\nRequests in flight are answered first. Attach processes reconnect by themselves; connections without a token are closed.\n"
)]
pub struct SwitchoverArgs {
    /// The set
    pub set: Name,
    /// Name of the gateway to move it to
    #[arg(long, value_name = "GATEWAY")]
    pub to: Name,
}

/// `holdfast failover`.
#[derive(Debug, Args)]
#[command(after_long_help = FAILOVER)]
pub struct FailoverArgs {
    /// The set
    pub set: Name,
    /// Name of the gateway to move it to
    #[arg(long, value_name = "GATEWAY")]
    pub candidate: Name,
    /// Grant the lease to this new owner [default: nobody holds it afterwards]
    #[arg(long, value_parser = owner)]
    pub owner: Option<Owner>,
    /// Time to live of the new owner's lease without a renewal [default: the gateway's setting]
    #[arg(long, value_name = "TIME", value_parser = duration::parse, requires = "owner")]
    pub ttl: Option<Duration>,
    /// Reason, for the log
    #[arg(long, default_value = "")]
    pub reason: String,
    /// Do not ask for confirmation
    #[arg(long)]
    pub yes: bool,
}

const FAILOVER: &str = "\
Examples:
  holdfast failover demo --candidate g2
      asks for confirmation; afterwards nobody holds the set
  holdfast failover demo --candidate g2 --owner db2 --yes --output json
      for scripts: the result contains the new owner's token

The present owner is fenced: all its further writes are refused. No acknowledged write is lost.
Use `holdfast switchover` while the old gateway works.
";
