//! Calls about the scrub, which reads a set's objects in the background.

use super::AdminDoor;
use holdfast_api::{Refusal, RefusalCode, v1};
use holdfast_set::server::SetServer;

/// Progress of the scrub on this gateway.
pub(super) fn scrub_message(set: &SetServer) -> v1::Scrub {
    let shown = set.scrub.shown();
    let known = shown.book.known();
    let place = |place: holdfast_set::scrub::book::Place| v1::DamagedPlace {
        part: place.part,
        key: place.key,
        snapshot: place.snapshot.map(|name| name.to_string()).unwrap_or_default(),
        clone: place.clone.map_or(0, |clone| clone.0),
        volume: place.volume,
        lba: place.lba,
        sectors: place.sectors,
        reason: place.reason,
        store: place.store.unwrap_or_default(),
    };
    let round = shown.book.round.as_ref();
    v1::Scrub {
        running: round.is_some(),
        waits: if round.is_some() { shown.waits.to_string() } else { String::new() },
        begun_unix_ms: round.map_or(0, |round| round.begun_unix_ms),
        pages_done: round.map_or(0, |round| round.pages),
        pages: shown.pages,
        extents: round.map_or(0, |round| round.extents),
        bytes: round.map_or(0, |round| round.bytes),
        bytes_per_second: shown.bytes_per_second,
        complete_unix_ms: shown.book.complete_unix_ms,
        damaged_total: known.total,
        damaged: known.places.into_iter().map(place).collect(),
        store: if round.is_some() { shown.store.clone().unwrap_or_default() } else { String::new() },
    }
}

impl AdminDoor {
    pub(super) async fn scrub_set(&self, request: v1::ScrubSetRequest) -> Result<v1::Scrub, Refusal> {
        let set = self.led_set(&request.set)?;
        if request.start {
            if self.node.live().scrub.bytes_per_second.0 == 0 {
                let message = format!("scrub.bytes_per_second is 0B at {}: the scrub is off", self.node.config.name);
                return Err(Refusal::new(RefusalCode::Precondition, message));
            }
            set.scrub.start();
        }
        Ok(scrub_message(&set))
    }
}
