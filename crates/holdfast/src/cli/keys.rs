//! Arguments of `holdfast key`.

use clap::Subcommand;
use holdfast_types::Name;
use std::path::PathBuf;

/// Shown below the help of all of them.
pub const KEY: &str = "\
Each set has data keys, which encrypt all its objects in the store. The cluster key wraps
(encrypts) the data keys. Keys are destroyed:
  all keys of a set       by `holdfast set delete`; its objects cannot be decrypted any more
  an old data key         after `holdfast key rotate-data`, when no snapshot, clone or object
                          needs it
  the old cluster key     by you, after `holdfast key rotate-cluster`: destroy its file or
                          passphrase

Old copies of a set's head object (in a bucket with versioning) or of a data directory (a backup)
contain data keys wrapped by the cluster key of that time. To destroy a set there too, delete
those copies, or rotate the cluster key and destroy the old one.

Examples:
  holdfast key list
  holdfast set delete demo
";

/// `holdfast key`.
#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Show which cluster key wraps which data keys, which keys each gateway has, and whether the previous key is still
    /// needed
    #[command(visible_alias = "show", after_long_help = LIST)]
    List,
    /// Wrap all data keys with a new cluster key, which every gateway must have already; no downtime, and no data is
    /// rewritten
    #[command(after_long_help = ROTATE)]
    RotateCluster,
    /// Give a set a new data key: rewrites all its data under the new key in the background, then destroys the old key
    #[command(after_long_help = ROTATE_DATA)]
    RotateData {
        /// The set
        set: Name,
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
    },
    /// Print new parameters with a random salt that derive a key from a passphrase, for the settings of every gateway;
    /// contacts no gateway
    #[command(after_long_help = KDF)]
    Kdf,
    /// Make a new cluster key that is stored only encrypted by Vault or AWS KMS; contacts no gateway
    #[command(after_long_help = ENVELOPE)]
    Envelope {
        /// Settings of a gateway whose key names `envelope`, and `vault` or `kms`; the envelope is written there
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
}

const LIST: &str = "\
Examples:
  holdfast key list
  holdfast key list --output json | jq -r '.left[]'

Keys are shown by fingerprint (16 hex digits). As long as the last line lists anything as not yet
wrapped by the new key, the previous key is still needed.
";

const ROTATE: &str = "\
First give every gateway both keys:
  [key]
  file = \"/etc/holdfast/new.key\"          # (umask 077; set -C; head -c 32 /dev/urandom > new.key)
  [key_previous]
  file = \"/etc/holdfast/cluster.key\"      # the present key
and restart them one after the other (holdfast gateway drain, restart, undrain). Then:

Examples:
  holdfast key rotate-cluster
  holdfast key list

Each of the two may be a key file, a passphrase or an envelope (`holdfast key envelope`). A new
passphrase needs passphrase_kdf with at least m=65536 (`holdfast key kdf`).

If a gateway lacks a key or does not answer, the command names it and changes nothing. If the
command is interrupted, keep both keys and run it again. When it has ended with 0, remove
[key_previous] from the settings, move the old key away, and restart the gateways one after the
other. Destroy the old key only when all of them have started without it. Recovery from the stores
then needs the new key.
";

const ROTATE_DATA: &str = "\
Examples:
  holdfast key rotate-data demo
  holdfast key list                            progress: what is still under an old key

The command returns when every gateway has the new key and new data is encrypted with it. The rest
runs in the background and survives the loss of gateways: garbage collection rewrites data under
an old key, limited by [space] move_bytes_per_second and move_requests_per_second. The old key is
destroyed when nothing needs it any more. Snapshots and clones made before the rotation need it
until they are deleted. There is nothing else to do and nothing to keep.
";

const KDF: &str = "\
Example:
  holdfast key kdf
  argon2id:m=65536,t=3,p=4:5f0c...            add it as passphrase_kdf to [key] of every gateway,
                                              next to passphrase_file or passphrase_env

A new cluster needs this line. In a cluster without it, or with less than m=65536, adding it changes
the cluster key: follow `holdfast key rotate-cluster`, with the present line, or the passphrase
alone, in [key_previous].
";

const ENVELOPE: &str = "\
Examples:
  holdfast key envelope --config /etc/holdfast/gateway.toml
  holdfast key envelope --config new.toml --output json | jq -r .key

With, for example:
  [key]
  envelope = \"/etc/holdfast/cluster.envelope\"
  vault = \"https://vault.example:8200/v1/transit/keys/holdfast\"
  vault_token_file = \"/etc/holdfast/vault-token\"

Draws a key, has it wrapped, writes the envelope (it refuses to replace a file), opens it once, and
prints the key's fingerprint. Copy the envelope to every gateway, and to the place where you would
look for it in a recovery. In a running cluster, go on with `holdfast key rotate-cluster`. The key
itself is written nowhere: if Vault or KMS loses its own key, all data is lost.

An envelope for `command` is made with the matching encryption command, for example:
  head -c 32 /dev/urandom | gpg --encrypt -r holdfast > cluster.envelope
";
