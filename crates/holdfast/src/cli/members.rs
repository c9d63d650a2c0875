//! Arguments of the commands that change who takes part: `holdfast gateway list`, `add`, `remove`, `replace`, `drain`, `undrain`, `update`.

use super::{address, with_codes};
use clap::Subcommand;

/// Those of `holdfast gateway` that are for a running cluster.
#[derive(Debug, Subcommand)]
pub enum MembersCommand {
    /// Show the gateways: what each is there for, what it may do, what it leads, how far it is
    #[command(after_long_help = with_codes(LIST))]
    List,
    /// Let a running gateway into the cluster, which serves on meanwhile
    #[command(after_long_help = with_codes(ADD))]
    Add {
        /// Admin address of the new gateway
        #[arg(value_name = "HOST:PORT", value_parser = address)]
        address: String,
        /// Return once it is registered, before it has caught up
        #[arg(long)]
        no_wait: bool,
    },
    /// Take a gateway out of the cluster for ever, which serves on meanwhile
    #[command(after_long_help = with_codes(REMOVE))]
    Remove {
        /// Name or member, as `gateway list` shows it
        #[arg(value_name = "GATEWAY")]
        gateway: String,
        /// Also where the others could bear less than before; never where something acknowledged could be lost
        #[arg(long)]
        force: bool,
        /// Do not ask
        #[arg(long)]
        yes: bool,
        /// Return once it is leaving, before it is out
        #[arg(long)]
        no_wait: bool,
    },
    /// Put a running gateway in the place of another, also of a lost one: it joins and catches up first, then the other one goes
    #[command(after_long_help = with_codes(REPLACE))]
    Replace {
        /// Name or member of the one that goes, as `gateway list` shows it
        #[arg(value_name = "OLD")]
        old: String,
        /// Admin address of the new gateway
        #[arg(long, value_name = "HOST:PORT", value_parser = address)]
        by: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
        /// Return once it is registered, before it has caught up
        #[arg(long)]
        no_wait: bool,
    },
    /// Move leadership off a gateway and keep it off, before it is stopped for a while
    #[command(after_long_help = with_codes(DRAIN))]
    Drain {
        /// Name or member, as `gateway list` shows it
        #[arg(value_name = "GATEWAY")]
        gateway: String,
        /// Also where the others could not go on without it: it must then not be stopped
        #[arg(long)]
        force: bool,
        /// Return at once, while it still leads
        #[arg(long)]
        no_wait: bool,
    },
    /// Let a drained gateway lead again
    #[command(after_long_help = with_codes(UNDRAIN))]
    Undrain {
        /// Name or member, as `gateway list` shows it
        #[arg(value_name = "GATEWAY")]
        gateway: String,
    },
    /// Tell the cluster that a gateway has other addresses now
    #[command(after_long_help = with_codes(UPDATE))]
    Update {
        /// Name or member, as `gateway list` shows it
        #[arg(value_name = "GATEWAY")]
        gateway: String,
        /// Admin address where it runs now; its other addresses are those that it says itself
        #[arg(long, value_name = "HOST:PORT", value_parser = address)]
        address: String,
    },
}

const LIST: &str = "\
Examples:
  holdfast gateway list
  holdfast gateway list --output json | jq -r '.gateways[] | select(.leads == []) | .name'

A region is shown to people only: nothing is placed by it. `holdfast switchover SET --to GATEWAY`
puts a set where its owner is, and it stays there as long as that gateway leads it.
";

const ADD: &str = "\
Examples:
  holdfast gateway add 10.0.0.4:7400

It must be running (holdfast gateway run) with a data_dir of its own that no member ever used. It learns every group from its leader, and becomes
a voter of each once it has nearly all. Whether it is a gateway or a witness, its settings say (role = \"witness\").
";

const REMOVE: &str = "\
Examples:
  holdfast gateway remove g4
  holdfast gateway remove m2 --yes

Leadership moves off it first; then it leaves every set's group, then the cluster, and its process ends. Its member id and its disk are never used again.
";

const REPLACE: &str = "\
Examples:
  holdfast gateway replace g2 --by 10.0.0.4:7400      another machine takes its place
  holdfast gateway replace m2 --by 10.0.0.2:7400      g2 came back with an empty disk, under its old name
  holdfast gateway replace g2 --by 10.0.0.4:7400 --yes --timeout 5m

Asks first: the member id and the disk of the one that goes are never used again. A disk that was lost is never the same member again: its gateway
joins as a new one.
";

const DRAIN: &str = "\
Examples:
  holdfast gateway drain g2                           then stop it, do what is to be done, start it
  holdfast gateway undrain g2

One gateway after the other: `drain` refuses where the others could not go on without it.
";

const UNDRAIN: &str = "\
Examples:
  holdfast gateway undrain g2
  holdfast switchover demo --to g2                    once it is ready: no set comes back by itself
";

const UPDATE: &str = "\
Example:
  holdfast gateway update g2 --address 10.0.9.2:7400      its machine has moved; its disk is the same
";
