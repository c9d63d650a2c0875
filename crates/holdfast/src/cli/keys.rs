//! Arguments of `holdfast key`.

use super::with_codes;
use clap::Subcommand;
use holdfast_types::Name;

/// The end of the help of all of them.
pub const KEY: &str = "\
The cluster key wraps the data keys of the sets; all that a set has in its store is sealed under those. They are forgotten, for good:
  all keys of a set     with the set, by `holdfast set delete`: nothing of it opens any more
  an older data key     after `holdfast key rotate-data`, once nothing that can be read needs it
  an older cluster key  after `holdfast key rotate-cluster`, by you: destroy its file or passphrase

Copies that others made of a set's head (in a bucket with versions) or of a data directory (a backup) have the wrapped data keys of their time, and open
with the cluster key of that time. To forget a set there too delete those copies, or change the cluster key and destroy the older one.

Examples:
  holdfast key list
  holdfast set delete demo
";

/// `holdfast key`.
#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Show which cluster key wraps what, which keys each gateway has, and whether one may go
    #[command(visible_alias = "show", after_long_help = with_codes(LIST))]
    List,
    /// Wrap everything by a new cluster key, which every gateway has at hand already; the cluster serves on, and no data is written anew
    #[command(after_long_help = with_codes(ROTATE))]
    RotateCluster,
    /// Give a set another data key: everything of it is written anew under that in the background, and then the old key is destroyed
    #[command(after_long_help = with_codes(ROTATE_DATA))]
    RotateData {
        /// The set
        set: Name,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Print how a key comes from a passphrase, with a new random salt, for the settings of every gateway; asks no gateway
    #[command(after_long_help = with_codes(KDF))]
    Kdf,
}

const LIST: &str = "\
Examples:
  holdfast key list
  holdfast key list --output json | jq -r '.left[]'

Keys are named by fingerprints: 16 hex digits that tell them apart and nothing else. While anything is listed as not done, the previous key is still needed.
";

const ROTATE: &str = "\
Every gateway needs both keys first:
  [key]
  file = \"/etc/holdfast/new.key\"          # head -c 32 /dev/urandom > new.key
  [key_previous]
  file = \"/etc/holdfast/cluster.key\"      # the one so far
and a restart, one after the other (holdfast gateway drain, restart, undrain). Then:

Examples:
  holdfast key rotate-cluster
  holdfast key list

A gateway that lacks a key, or does not answer, is named, and nothing changes. Cut short in the middle, both keys are needed until the same
command has ended. Then take [key_previous] out of the settings, and destroy the old key: recovery from the stores needs the new one.
";

const ROTATE_DATA: &str = "\
Examples:
  holdfast key rotate-data demo
  holdfast key list                            how much is under which data key, and what else needs an old one

It returns once every gateway has the new key and the set is sealed under it. The rest goes on by itself, also through the loss of gateways: collection writes
anew what is under an old key, within [space] move_bytes_per_second and move_requests_per_second. An old key goes, for good, once nothing that can be read needs it:
snapshots and clones from before keep it until they are deleted. Nothing else is to be done, and nothing is to be kept.
";

const KDF: &str = "\
Example:
  holdfast key kdf
  argon2id:m=19456,t=2,p=1:5f0c...            as passphrase_kdf beside passphrase_file or passphrase_env in [key], the same at every gateway

For a cluster that has no such line the passphrase's key changes with it: that is a change of the cluster key (holdfast key rotate-cluster), with the
passphrase alone in [key_previous].
";
