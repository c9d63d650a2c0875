//! Reads ahead of a reader that goes through a volume in order or in equal steps, and for NBD's CACHE, into the cache. Who is such a reader is decided by
//! `volume::ahead`; here are the tasks that read. They are hints: each one may be left out, given up, or fail without a word.

use crate::host::SetHost;
use crate::mapping::Mapping;
use holdfast_cache::Demand;
use holdfast_control::set::RootRef;
use holdfast_types::sync::LockExt;
use holdfast_types::{Lba, Sectors, VolumeId};
use holdfast_volume::ahead::Streams;
use holdfast_volume::index::Source;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Semaphore;

/// Tasks under way at once; what comes beyond is left out.
const TASKS_MAX: usize = 4;

/// How long one may take. Readers wait for what it fetches as if they had asked themselves.
const TASK_LIMIT: Duration = Duration::from_secs(10);

/// What one CACHE request brings in at most, in sectors (8 MiB): the client learns nothing of the rest, and it need not.
const CACHE_MAX: u64 = 16_384;

/// Where the content of a range is named.
#[derive(Clone)]
pub(super) enum Of {
    /// The volume as it is now.
    Now(Arc<SetHost>),
    /// As a kept root has it.
    Root(RootRef),
}

/// Reads ahead for the readers of one set, or of one export of a snapshot.
pub(super) struct Ahead {
    streams: Mutex<Streams>,
    tasks: Arc<Semaphore>,
}

impl Ahead {
    /// At most `window` beyond a read.
    pub(super) fn new(window: Sectors) -> Self {
        Self { streams: Mutex::new(Streams::new(window)), tasks: Arc::new(Semaphore::new(TASKS_MAX)) }
    }

    /// A client reads this now; whether it is a scan.
    pub(super) fn reads(
        &self,
        mapping: &Arc<Mapping>,
        of: &Of,
        volume: VolumeId,
        lba: Lba,
        sectors: Sectors,
    ) -> Demand {
        let seen = self.streams.locked().read(volume, lba, sectors);
        let demand = if seen.scans { Demand::Scan } else { Demand::Point };
        if !seen.next.is_empty() {
            self.bring(mapping, of, volume, seen.next, demand);
        }
        demand
    }

    /// A client will read this soon.
    pub(super) fn will_read(&self, mapping: &Arc<Mapping>, of: &Of, volume: VolumeId, lba: Lba, sectors: Sectors) {
        // By name, whatever was read before.
        self.bring(mapping, of, volume, vec![(lba, Sectors(sectors.0.min(CACHE_MAX)))], Demand::Point);
    }

    fn bring(&self, mapping: &Arc<Mapping>, of: &Of, volume: VolumeId, ranges: Vec<(Lba, Sectors)>, demand: Demand) {
        // Not in the way of who has to wait for the store as it is.
        if mapping.in_trouble() {
            return;
        }
        let Ok(permit) = self.tasks.clone().try_acquire_owned() else {
            metrics::counter!("holdfast_read_ahead_left_out_total").increment(1);
            return;
        };
        let (mapping, of) = (mapping.clone(), of.clone());
        tokio::spawn(async move {
            let bring = async {
                for (lba, sectors) in ranges {
                    let brought = match &of {
                        Of::Root(root) => mapping.warm(*root, volume, lba, sectors, demand).await,
                        Of::Now(host) => warm_now(&mapping, host, volume, lba, sectors, demand).await,
                    };
                    match brought {
                        Ok(extents) => metrics::counter!("holdfast_read_ahead_extents_total").increment(extents),
                        // Whoever reads it meets the same, and says so.
                        Err(error) => tracing::debug!(%volume, %lba, %error, "not read ahead"),
                    }
                }
            };
            drop(tokio::time::timeout(TASK_LIMIT, bring).await);
            drop(permit);
        });
    }
}

/// What the map has of the range; the journal is here already. Beyond the end of the volume there is nothing.
async fn warm_now(
    mapping: &Mapping,
    host: &SetHost,
    volume: VolumeId,
    lba: Lba,
    sectors: Sectors,
    demand: Demand,
) -> Result<u64, crate::mapping::MapError> {
    let size = host.with(|m| m.state().volumes.get(&volume).map_or(0, |v| v.size.0));
    let sectors = Sectors(sectors.0.min(size.saturating_sub(lba.0)));
    let (pieces, Some(root)) = host.lookup(volume, lba, sectors) else { return Ok(0) };
    let mut brought = 0;
    for piece in pieces.iter().filter(|piece| piece.source == Source::Map) {
        brought += mapping.warm(root, volume, piece.lba, piece.sectors, demand).await?;
    }
    Ok(brought)
}
