//! `holdfast set limit` and `holdfast volume limit`.

use clap::Args;
use holdfast_types::ByteSize;
use std::time::Duration;

pub(super) const OF_SET: &str = "\
Without options: shows the limit. With options: changes it; what is not given stays. It is for all
clients of all volumes of the set together; `holdfast volume limit` is for those of one volume, and
a request waits for both. Clients that are connected are limited at once. A request that has to wait
is answered later, never with an error. Unused capacity is saved, up to --burst seconds of it.

Flushes are not counted, but wait behind a request of their connection that waits. Clients of
snapshots are not limited. A write or read of any size counts as one request. Set the limit again
after a recovery from the store, and after a takeover of a pair.

Examples:
  holdfast set limit demo
  holdfast set limit demo --iops 5000 --bytes 100MiB
  holdfast set limit demo --burst 10s
  holdfast set limit demo --off
";

pub(super) const OF_VOLUME: &str = "\
Without options: shows the limit. With options: changes it; what is not given stays. It is for all
clients of the volume together, beside that of the set: see `holdfast set limit`. It stays when the
volume is renamed or resized.

Examples:
  holdfast volume limit demo/vol1
  holdfast volume limit demo/vol1 --iops 500
  holdfast volume limit demo/vol1 --iops 0 --bytes 20MiB
  holdfast volume limit demo/vol1 --off
";

/// A limit of clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub struct LimitArgs {
    /// Requests per second, at least 10; 0: not limited
    #[arg(long, value_name = "COUNT", value_parser = super::values::iops)]
    pub iops: Option<u32>,
    /// Bytes per second that are read and written, at least 1MiB; 0B: not limited
    #[arg(long, value_name = "SIZE", value_parser = super::values::bytes_per_second)]
    pub bytes: Option<ByteSize>,
    /// Burst: unused capacity is saved for up to this time, 100ms to 10m [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = super::values::burst)]
    pub burst: Option<Duration>,
    /// Remove the limit
    #[arg(long, conflicts_with_all = ["iops", "bytes", "burst"])]
    pub off: bool,
}
