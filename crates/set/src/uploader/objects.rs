//! Uploads of objects: their buffers, what is cached of them, and PUTs that are repeated until they succeed.

use super::state::{RETRY_PAUSE_MAX, UploadError, Uploader};
use crate::reader::{Fetched, Odd};
use crate::references::key_kind;
use crate::server::SetError;
use crate::set_key::SealingKey;
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use holdfast_control::set::{SetCommand, StoredKind};
use holdfast_raft::ProposeError;
use holdfast_store::{ObjectStore, keys};
use holdfast_types::limits::EXTENT_BYTES_MAX;
use holdfast_types::sync::LockExt;
use holdfast_types::{Lba, ObjectId, Term, VolumeId};
use holdfast_volume::map::{LeafPack, PackBuilder, PartialRoot};
use holdfast_volume::segment::{ExtentPlace, SegmentBuilder, Stretch};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

impl Uploader {
    pub(super) fn new_segment(&self, term: Term) -> SegmentBuilder {
        let body = self.bodies().pop().unwrap_or_default();
        SegmentBuilder::over(self.sealing().sealer(self.new_object(term)), self.settings.codec, body)
    }

    /// The key of the current checkpoint.
    pub(super) fn sealing(&self) -> SealingKey {
        let sealing = self.current.sealing.locked();
        sealing.clone().unwrap_or_else(|| self.mapping.key.sealing())
    }

    /// The target store of the current checkpoint.
    pub(super) fn place(&self) -> Arc<dyn ObjectStore> {
        let place = self.current.place.locked();
        place.clone().unwrap_or_else(|| self.mapping.store.clone())
    }

    pub(super) fn bodies(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.current.bodies.locked()
    }

    /// Reuses the buffer only if it has no other holder, such as a background request or the disk cache.
    fn done_with(&self, body: Bytes) {
        let mut bodies = self.bodies();
        // Those that are written concurrently, and the one that is filled meanwhile.
        if bodies.len() <= self.settings.parallel && body.is_unique() {
            bodies.push(Vec::from(body));
        }
    }

    /// The parts of an object that go into the disk cache: all if enabled, otherwise none.
    pub(super) fn kept(&self, parts: impl Iterator<Item = Stretch>) -> Vec<Stretch> {
        if self.settings.keep_uploaded { parts.collect() } else { Vec::new() }
    }

    /// `keep`: the parts that also go into the disk cache. They are valid there even if the upload fails (R7).
    pub(super) async fn put_segment(
        &self,
        term: Term,
        object: ObjectId,
        body: Bytes,
        raw_bytes: u64,
        keep: Vec<Stretch>,
    ) -> Result<(), UploadError> {
        let stored_bytes = body.len() as u64;
        let put = self.put(term, StoredKind::Segment, object, body.clone());
        let (put, ()) = tokio::join!(put, self.mapping.keep_sealed(object, &body, keep));
        put?;
        self.done_with(body);
        let note = SetCommand::SegmentCommitted { term, object, stored_bytes, raw_bytes };
        // Repeating the note has no effect (R12): an unknown outcome costs a repetition, not the checkpoint.
        while let Err(e) = self.server.command("a segment's note", &note).await {
            if !matches!(e, SetError::Propose(ProposeError::Unknown { .. }))
                || self.server.leading_ready() != Some(term)
            {
                return Err(e.into());
            }
        }
        metrics::counter!("holdfast_uploaded_bytes_total", "set" => self.server.name.to_string())
            .increment(stored_bytes);
        Ok(())
    }

    /// Repeats the PUT until it succeeds: the same bytes under the same key, so a retry is always safe (R12).
    pub(super) async fn put(
        &self,
        term: Term,
        kind: StoredKind,
        object: ObjectId,
        body: Bytes,
    ) -> Result<(), UploadError> {
        // Recorded before sending: the object may arrive in the store even if this checkpoint fails (SPACE-G4).
        self.server.given_up().made(object);
        let key = keys::object(self.mapping.key.set, key_kind(kind), object);
        let (mut pause, place) = (Duration::from_millis(100), self.place());
        loop {
            let outcome = tokio::select! {
                outcome = place.put_new(&key, body.clone()) => outcome,
                () = self.stop.cancelled() => return Err(UploadError::Stopping),
            };
            match outcome {
                Ok(()) => return Ok(()),
                // Also waits for errors that last until an operator acts (rights, keys, clock, space): the bytes are
                // kept, so that nothing is sealed and sent twice.
                Err(e) if e.may_pass() => {
                    tracing::warn!(key, error = %e, "the store did not accept an object; retrying");
                    metrics::counter!("holdfast_store_retries_total").increment(1);
                    if self.server.leading_ready() != Some(term) {
                        return Err(UploadError::Superseded);
                    }
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        () = self.stop.cancelled() => return Err(UploadError::Stopping),
                    }
                    pause = (pause * 2).min(RETRY_PAUSE_MAX);
                }
                Err(e) => return Err(e.into()),
            }
        }
    }

    pub(super) async fn put_leaves(&self, term: Term, packs: Vec<LeafPack>) -> Result<(), UploadError> {
        let mut puts = stream::iter(packs)
            .map(|pack| async move {
                let keep = self.kept(pack.parts.into_iter().map(Stretch::from));
                let put = self.put(term, StoredKind::Pages, pack.object, pack.body.clone());
                let (put, ()) = tokio::join!(put, self.mapping.keep_sealed(pack.object, &pack.body, keep));
                put
            })
            .buffer_unordered(self.settings.parallel.max(1));
        while puts.try_next().await?.is_some() {}
        Ok(())
    }

    pub(super) async fn put_pack(
        &self,
        term: Term,
        root: &mut PartialRoot,
        pack: PackBuilder,
    ) -> Result<(), UploadError> {
        let (object, keep) = (pack.object(), self.kept(pack.places().map(Stretch::from)));
        let body = pack.finish();
        root.add_pack(object, body.len() as u64);
        let put = self.put(term, StoredKind::Pages, object, body.clone());
        let (put, ()) = tokio::join!(put, self.mapping.keep_sealed(object, &body, keep));
        put
    }
}

type Placed = Vec<(VolumeId, Lba, ExtentPlace)>;

/// Opens extents, compresses them and seals them into a segment, and returns their places.
///
/// # Errors
/// [`Odd`]: the segment is given up.
pub(super) fn seal_batch(mut open: SegmentBuilder, batch: Fetched) -> Result<(SegmentBuilder, Placed), Odd> {
    let batch = batch.check()?;
    // One extent after the other in the same memory, from opening to sealing: it stays in the processor's cache.
    let mut room = Vec::with_capacity(EXTENT_BYTES_MAX);
    let mut placed = Vec::with_capacity(batch.extents().len());
    for (number, extent) in batch.extents().iter().enumerate() {
        let (volume, lba) = (extent.volume, extent.lba);
        let place = batch.with(number, &mut room, |raw| open.push(volume, lba, raw))?;
        placed.push((volume, lba, place));
    }
    Ok((open, placed))
}
