//! `holdfast set place`, and the options of a set's policy.

use clap::{ArgAction, Args};
use holdfast_types::Name;

pub(super) const PLACE: &str = "\
Without options: shows the policy, the voters of the set and why these, and what is violated.
With options: changes the policy; what is not given stays. The voters follow one by one while the
set is in use. A policy that the gateways cannot meet is refused, with what is missing. If a policy
can no longer be met, it is shown as violated; the set stays in service.

A gateway says where it stands by the setting `locality`; `holdfast gateway update` applies a later
change.

Examples:
  holdfast set place demo
  holdfast set place demo --survive region --voters 5 --home eu-west
  holdfast set place demo --forbid-region us-east
  holdfast set place demo --survive auto --no-home --allow-region us-east
";

/// What a set asks of its voters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub struct PolicyArgs {
    /// Largest failure that the set survives. auto (the default): as large as the gateways allow
    #[arg(long, value_name = "LEVEL", value_parser = ["auto", "host", "zone", "region"])]
    pub survive: Option<String>,
    /// Number of voters, 3 or 5; a set without policy has 3
    #[arg(long, value_name = "COUNT", value_parser = voters)]
    pub voters: Option<u32>,
    /// Region that gets as many voters as --survive allows
    #[arg(long, value_name = "REGION")]
    pub home: Option<Name>,
    /// Region where no voter may be; may be repeated
    #[arg(long = "forbid-region", value_name = "REGION", action = ArgAction::Append)]
    pub forbid: Vec<Name>,
}

fn voters(text: &str) -> Result<u32, String> {
    match text {
        "3" => Ok(3),
        "5" => Ok(5),
        _ => Err(format!("found {text:?}, expected 3 or 5")),
    }
}

/// `holdfast set place`.
#[derive(Debug, Args)]
pub struct PlaceArgs {
    /// The set
    pub set: Name,
    /// The policy.
    #[command(flatten)]
    pub policy: PolicyArgs,
    /// Remove the home region
    #[arg(long, conflicts_with = "home")]
    pub no_home: bool,
    /// Allow a forbidden region again; may be repeated
    #[arg(long = "allow-region", value_name = "REGION", action = ArgAction::Append)]
    pub allow: Vec<Name>,
}
