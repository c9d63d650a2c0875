//! Arguments of `holdfast lease`.

use super::{owner, with_codes};
use crate::duration;
use clap::Subcommand;
use holdfast_types::{Name, Owner};
use std::time::Duration;

/// The end of the help of all of them.
pub const LEASE: &str = "\
An export under a lease is SET/VOLUME?token=TOKEN&conn=SLOT&gen=N:
  token  what `lease acquire` or `lease continue` printed: a secret. Whoever shows it may write.
  conn   which of the volume's connections this is, 0 to 63. One connection: 0. Connections side by side need a number each.
  gen    which life of that connection: 1, then 2, and so on. Each new connection of a conn needs a higher gen than the last one, also after a clean end:
         the older one is ended first, so that nothing it had on its way is done after what the newer one does. A gen that is not higher is refused
         (libnbd: `server policy prevents NBD_OPT_GO`; the gateway's log says why). Numbers may be left out; `date +%s` will do. Under a new epoch (after
         acquire, continue) it begins anew.

A person needs them only for an NBD client of their own: `holdfast attach` chooses both, and connects anew by itself. Every connection counts, that of
nbdinfo too. A client that opens several connections by one name is to open one (nbdcopy --connections=1). In an address of NBD the ? is written %3F.

Examples:
  holdfast lease acquire demo --owner db1
  nbdcopy --connections=1 a.img \"nbd://10.0.0.1:10809/demo/vol1%3Ftoken=TOKEN&conn=0&gen=1\"
  nbdcopy --connections=1 \"nbd://10.0.0.1:10809/demo/vol1%3Ftoken=TOKEN&conn=0&gen=2\" b.img
";

/// `holdfast lease`.
#[derive(Debug, Subcommand)]
pub enum LeaseCommand {
    /// Show who holds a set, where, and since when
    Show {
        /// The set
        set: Name,
    },
    /// Take a set's lease and print its token
    #[command(after_long_help = with_codes(ACQUIRE))]
    Acquire {
        /// The set
        set: Name,
        /// Who will hold it, such as a host's name
        #[arg(long, value_parser = owner)]
        owner: Owner,
        /// How long it lasts without a renewal; every write renews it [default: the gateway's]
        #[arg(long, value_name = "TIME", value_parser = duration::parse)]
        ttl: Option<Duration>,
        /// Take it from whoever holds it: each of its writes is refused from then on
        #[arg(long)]
        force: bool,
    },
    /// Go on with a lease at the gateway that leads its set now, and print the new token
    #[command(after_long_help = with_codes(CONTINUE))]
    Continue {
        /// The set
        set: Name,
        /// Who holds it: as it was taken
        #[arg(long, value_parser = owner)]
        owner: Owner,
        /// The token that `lease acquire` or the last `lease continue` printed
        #[arg(long, env = "HOLDFAST_TOKEN", hide_env_values = true)]
        token: String,
    },
    /// Show that the holder is alive, so that the lease lasts on
    #[command(after_long_help = with_codes(RENEW))]
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
    /// Give a lease back
    #[command(after_long_help = with_codes("Example:\n  HOLDFAST_TOKEN=... holdfast lease release demo\n\nWithout its token a lease is ended by `holdfast failover`.\n"))]
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

After leadership of a set has moved, its lease is continued where it went, under a new epoch and a
new token; the older token ends when the newer one is first used. Under the new epoch gen begins
anew (`holdfast lease --help`). A lease that was released, that another owner took, or that a
plain export holds is not continued.
";

const RENEW: &str = "\
Example:
  HOLDFAST_TOKEN=... holdfast lease renew demo

A lease may be judged expired when nothing was heard of its holder for its time to live; every
write renews it as well. Renew three times as often as that. `holdfast attach` does it by itself.
";

const ACQUIRE: &str = "\
Examples:
  holdfast lease acquire demo --owner db1
  holdfast lease acquire demo --owner db1 --ttl 1m --output json | jq -r .token

The token is a secret. A connection shows it in the name of its export; `holdfast lease --help` says what conn and gen are there.
";
