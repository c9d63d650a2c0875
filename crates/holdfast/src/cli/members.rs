//! Arguments of the membership commands: `holdfast gateway list`, `add`, `remove`, `replace`, `drain`, `undrain`,
//! `update`.

use super::values::address;
use clap::Subcommand;

/// The commands of `holdfast gateway` for a running cluster.
#[derive(Debug, Subcommand)]
pub enum MembersCommand {
    /// List the gateways: role, membership, votes, lag and leadership of each
    #[command(after_long_help = LIST)]
    List,
    /// Add a running gateway to the cluster, without downtime
    #[command(after_long_help = ADD)]
    Add {
        /// Admin address of the new gateway
        #[arg(value_name = "HOST:PORT", value_parser = address)]
        address: String,
        /// Return when it is registered, before it has caught up
        #[arg(long)]
        no_wait: bool,
    },
    /// Remove a gateway from the cluster permanently, without downtime
    #[command(after_long_help = REMOVE)]
    Remove {
        /// Name or member id, as `gateway list` shows it
        #[arg(value_name = "GATEWAY")]
        gateway: String,
        /// Remove it even if the cluster can then survive fewer failures; still refused if acknowledged writes could be
        /// lost
        #[arg(long)]
        force: bool,
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
        /// Return when the removal has begun, before it is complete
        #[arg(long)]
        no_wait: bool,
    },
    /// Replace a gateway, also a lost one: the new one joins and catches up, then the old one is removed
    #[command(after_long_help = REPLACE)]
    Replace {
        /// Name or member id of the old gateway, as `gateway list` shows it
        #[arg(value_name = "OLD")]
        old: String,
        /// Admin address of the new gateway
        #[arg(long, value_name = "HOST:PORT", value_parser = address)]
        by: String,
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
        /// Return when it is registered, before it has caught up
        #[arg(long)]
        no_wait: bool,
    },
    /// Move leadership off a gateway and keep it off, before maintenance
    #[command(after_long_help = DRAIN)]
    Drain {
        /// Name or member id, as `gateway list` shows it
        #[arg(value_name = "GATEWAY")]
        gateway: String,
        /// Drain it even if the other gateways cannot work without it; do not stop it then
        #[arg(long)]
        force: bool,
        /// Return at once, before leadership has moved
        #[arg(long)]
        no_wait: bool,
        /// Show what would move where, and why something would stay, and change nothing
        #[arg(long, conflicts_with = "no_wait")]
        dry_run: bool,
    },
    /// Allow a drained gateway to lead again
    #[command(after_long_help = UNDRAIN)]
    Undrain {
        /// Name or member id, as `gateway list` shows it
        #[arg(value_name = "GATEWAY")]
        gateway: String,
    },
    /// Register the present addresses and the locality of a gateway
    #[command(after_long_help = UPDATE)]
    Update {
        /// Name or member id, as `gateway list` shows it
        #[arg(value_name = "GATEWAY")]
        gateway: String,
        /// Its present admin address; the gateway reports its other addresses and its locality itself
        #[arg(long, value_name = "HOST:PORT", value_parser = address)]
        address: String,
    },
}

const LIST: &str = "\
Examples:
  holdfast gateway list
  holdfast gateway list --output json | jq -r '.gateways[] | select(.leads == []) | .name'

REGION has the zone and the host as well, if they have names, as the cluster knows them.
MEMBERSHIP is active, drained or leaving. VOTES counts the Raft groups in which the gateway votes,
of all groups: a set votes on some of the gateways only (`holdfast set place`), and of the cluster's
own group three or five gateways vote, all others follow it. BEHIND is its lag in log entries.
`holdfast switchover SET --to GATEWAY` moves a set near its owner, to one of its voters; it stays
there until that gateway loses leadership.
";

const ADD: &str = "\
Examples:
  holdfast gateway add 10.0.0.4:7400

The new gateway must be running (holdfast gateway run) with an empty data_dir. It copies the log
of the cluster's Raft group from its leader, and follows it; it becomes a voter there if three or
five gateways do not vote yet. Then it does the same for each set that has fewer than three voters
or, a little later, moves to it. Its settings decide whether it is a gateway or a witness
(role = \"witness\"), and where it stands (locality).
";

const REMOVE: &str = "\
Examples:
  holdfast gateway remove g4
  holdfast gateway remove m2 --yes

Leadership moves off the gateway first. Then it leaves every Raft group and the cluster, and its
process exits. Its member id and its disk are never accepted again; to reuse the machine, give its
gateway an empty data_dir and add it.
";

const REPLACE: &str = "\
Examples:
  holdfast gateway replace g2 --by 10.0.0.4:7400      another machine takes its place
  holdfast gateway replace m2 --by 10.0.0.2:7400      g2 again, with an empty disk
  holdfast gateway replace g2 --by 10.0.0.4:7400 --yes --timeout 5m

Asks for confirmation: the member id and the disk of the old gateway are never accepted again. A
gateway that lost its disk always joins as a new member.
";

const DRAIN: &str = "\
Examples:
  holdfast gateway drain g2 --dry-run                 what would move where, and what would stay
  holdfast gateway drain g2                           then stop it, do the maintenance, start it
  holdfast gateway undrain g2

Drain one gateway at a time: `drain` is refused if the other gateways cannot work without it.
";

const UNDRAIN: &str = "\
Examples:
  holdfast gateway undrain g2
  holdfast switchover demo --to g2                    when it is ready

Sets move back by themselves only to be near their owner or their home.
";

const UPDATE: &str = "\
Example:
  holdfast gateway update g2 --address 10.0.9.2:7400      same disk, new address
";
