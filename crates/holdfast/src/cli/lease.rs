//! Arguments of `holdfast lease`.

use super::values::owner;
use crate::duration;
use clap::Subcommand;
use holdfast_types::{Name, Owner};
use std::time::Duration;

/// Shown below the help of all of them.
pub const LEASE: &str = "\
The NBD export name of a volume under a lease is SET/VOLUME?token=TOKEN&conn=N&gen=N:
  token  printed by `lease acquire` and `lease continue`. It is a secret: it allows writing.
  conn   number of the connection to this volume, 0 to 63. Parallel connections need different
         numbers; for a single connection use 0.
  gen    incarnation of that connection: 1 for the first, and a higher number each time the same
         conn connects again, also after a clean disconnect. The gateway first ends the older
         connection, so that none of its requests is executed after a request of the newer one. A
         gen that is not higher is refused (libnbd: `server policy prevents NBD_OPT_GO`; the
         gateway's log gives the reason). Gaps are allowed: `date +%s` works. After `lease
         acquire` or `lease continue` (a new epoch), gen may start at 1 again.

Only direct NBD clients need conn and gen: `holdfast attach` sets both and reconnects by itself.
Every connection counts, also that of nbdinfo. A client that opens several connections with one
name must open one only (nbdcopy --connections=1). In an NBD URI, write ? as %3F.

Examples:
  holdfast lease acquire demo --owner db1
  nbdcopy --connections=1 a.img \"nbd://10.0.0.1:10809/demo/vol1%3Ftoken=TOKEN&conn=0&gen=1\"
  nbdcopy --connections=1 \"nbd://10.0.0.1:10809/demo/vol1%3Ftoken=TOKEN&conn=0&gen=2\" b.img
";

/// `holdfast lease`.
#[derive(Debug, Subcommand)]
pub enum LeaseCommand {
    /// Show the owner of a set, its gateway, and since when
    Show {
        /// The set
        set: Name,
    },
    /// Acquire the lease of a set and print its token
    #[command(after_long_help = ACQUIRE)]
    Acquire {
        /// The set
        set: Name,
        /// Name of the new owner, such as a host name
        #[arg(long, value_parser = owner)]
        owner: Owner,
        /// Time to live without a renewal; every write renews the lease [default: the gateway's setting]
        #[arg(long, value_name = "TIME", value_parser = duration::parse)]
        ttl: Option<Duration>,
        /// Take it from the present owner, whose further writes are refused
        #[arg(long)]
        force: bool,
    },
    /// Continue a lease at the gateway that leads its set now, and print the new token
    #[command(after_long_help = CONTINUE)]
    Continue {
        /// The set
        set: Name,
        /// The owner, as named in `lease acquire`
        #[arg(long, value_parser = owner)]
        owner: Owner,
        /// The token that `lease acquire` or the last `lease continue` printed
        #[arg(long, env = "HOLDFAST_TOKEN", hide_env_values = true)]
        token: String,
    },
    /// Renew a lease
    #[command(after_long_help = RENEW)]
    Renew {
        /// The set
        set: Name,
        /// The token that `lease acquire` or the last `lease continue` printed
        #[arg(long, env = "HOLDFAST_TOKEN", hide_env_values = true)]
        token: String,
        /// Epoch of the grant [default: that of the current one]
        #[arg(long)]
        epoch: Option<u64>,
    },
    /// Release a lease
    #[command(
        after_long_help = "Example:\n  HOLDFAST_TOKEN=... holdfast lease release demo\n\nTo end a lease without its token, use `holdfast failover`.\n"
    )]
    Release {
        /// The set
        set: Name,
        /// The token that `lease acquire` or the last `lease continue` printed
        #[arg(long, env = "HOLDFAST_TOKEN", hide_env_values = true)]
        token: String,
        /// Epoch of the grant [default: that of the current one]
        #[arg(long)]
        epoch: Option<u64>,
    },
}

const CONTINUE: &str = "\
Examples:
  HOLDFAST_TOKEN=... holdfast lease continue demo --owner db1
  HOLDFAST_TOKEN=... holdfast lease continue demo --owner db1 --output json | jq -r .token

After leadership of a set has moved, this continues the lease at the new leader, with a new epoch
and a new token. The old token becomes invalid when the new one is first used. With the new epoch,
gen may start at 1 again (`holdfast lease --help`). A lease cannot be continued if it was
released, if another owner acquired the set, or if a plain export holds it.
";

const RENEW: &str = "\
Example:
  HOLDFAST_TOKEN=... holdfast lease renew demo

A lease can expire when it is not renewed for its time to live. Every write renews it as well.
Renew it three times per time to live. `holdfast attach` does this by itself.
";

const ACQUIRE: &str = "\
Examples:
  holdfast lease acquire demo --owner db1
  holdfast lease acquire demo --owner db1 --ttl 1m --output json | jq -r .token

The token is a secret. NBD clients send it in the export name; `holdfast lease --help` explains
the export name.
";
