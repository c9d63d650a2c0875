//! Arguments of `holdfast verify`.

use super::store::{KeyArgs, StoreArgs};
use super::values::stores_text;
use clap::Args;
use holdfast_set::verify::{LISTED, LISTED_MAX};
use holdfast_types::Name;

/// `holdfast verify`.
#[derive(Debug, Args)]
#[command(after_long_help = VERIFY)]
pub struct VerifyArgs {
    /// Sets to check [default: all sets in the store]
    pub sets: Vec<Name>,
    /// The store; for a set with several stores, or whose stores were changed, the text that `set stores show` printed
    /// for a recovery
    #[arg(long, value_name = "URL", value_parser = stores_text)]
    pub store: String,
    #[command(flatten)]
    pub key: KeyArgs,
    #[command(flatten)]
    pub access: StoreArgs,
    /// Check only a random share of the map pages, such as 1%
    #[arg(long, value_name = "PERCENT", value_parser = share)]
    pub sample: Option<u32>,
    /// With several stores: read the copies in each store, one store after the other [default: for each object the copy
    /// that answers first]
    #[arg(long)]
    pub each_store: bool,
    /// Check the same pages as an earlier run that printed this seed
    #[arg(long, requires = "sample")]
    pub seed: Option<u64>,
    /// Most damaged places per set that `--output json` lists; the others are counted
    #[arg(long, value_name = "COUNT", default_value_t = LISTED, value_parser = clap::value_parser!(u32).range(1..=i64::from(LISTED_MAX)))]
    pub list_max: u32,
}

const VERIFY: &str = "\
Examples:
  holdfast verify --store s3://bucket/prefix --key-file cluster.key
  holdfast verify demo --store s3://bucket/prefix --key-file cluster.key --sample 1%
  holdfast verify --store file:///srv/store --passphrase-file pass --output json | jq '.sets[].damaged[]'

It reads everything that the last checkpoint of each set refers to: the head, the root and its
leaves, the map pages, and all encrypted extents that reads of the set can reach. This includes
snapshots in the head, and for a clone the data of its origin. --sample limits it to a share of
the map pages and their extents. It does not read unreferenced objects (orphans, objects waiting
for deletion, old checkpoints), extents that were overwritten or trimmed completely, and data that
is only in the gateways' journals. Damage there is not found, and does not affect reads from the
store.

Gateways may be running; if they replace objects meanwhile, run it again. Each damaged range is
listed with the volume, sectors of 512 bytes, the object and the bytes in it, and as
`VOLUME@SNAPSHOT` (the newest one) if only snapshots refer to it. If a map page is damaged, its
whole range of 32 MiB is listed; if a `leaf` of a large map is damaged, its whole range of 4 GiB,
whether it was written or not. A damaged leaf without a volume makes nothing unreadable, but
prevents further checkpoints. A table shows the first 100 damaged places of a set; --output json
lists up to --list-max, and `damaged_total` is their number. With --each-store, objects that are
missing or damaged in one of several stores are listed with that store; the repair copies them
from another store. A store that does not answer is reported at the end, and the others are read.
If one of several stores is outdated, the head must be written before it can be read: with
read-only credentials this fails with the error of the store.
";

/// Reads `1%` or `0.5%` as millionths.
fn share(text: &str) -> Result<u32, String> {
    let bad = || format!("found {text:?}, expected a share above 0% and up to 100%, such as 1%");
    let percent: f64 = text.strip_suffix('%').and_then(|number| number.parse().ok()).ok_or_else(bad)?;
    if percent > 0.0 && percent <= 100.0 { Ok(((percent * 10_000.0) as u32).max(1)) } else { Err(bad()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares() {
        assert_eq!((share("1%"), share("100%"), share("0.5%")), (Ok(10_000), Ok(1_000_000), Ok(5_000)));
        for bad in ["1", "0%", "101%", "-1%", "x%", "%"] {
            assert!(share(bad).is_err(), "{bad}");
        }
    }
}
