//! Encoding of a root as one object. Version 2, or 3 if the set has a base (numbers are varints, see `wire`):
//!
//! ```text
//!   "HFR" version(1)  term and index of the log entry that it covers everything up to
//!   count of segments, then each, sorted:  id (steps)  stored bytes  raw sectors  live sectors
//!   count of page packs, then each, sorted:  id (steps)  stored bytes, 0 where they are not known
//!   count of volumes, then each, sorted:  id (step from the one before)  count of pages, then each, sorted:
//!     2 × pages left out before it, + 1 if it stands right behind the page before, in the same pack
//!     [place in the list of packs (step), number, offset]   unless it does
//!     bytes before sealing
//!   version 3: the base (see `base`)
//!   version 4, while a data key is changed: whether there is a base, then it; which data keys objects are under (see `under`)
//! ```

use super::super::base::Base;
use super::super::places::{put_pages, read_next_object, read_pages};
use super::super::under::Under;
use super::super::{MapError, NO_OBJECT, OBJECT_WIRE_BYTES_MIN, PAGE_NUMBER_MAX, put_object};
use super::{Root, SegmentUse};
use crate::wire::{self, Reader, WireError};
use holdfast_types::limits::VOLUMES_PER_SET_MAX;
use holdfast_types::{LogId, LogIndex, ObjectId, SECTOR_BYTES, Sectors, Term, VolumeId};
use std::collections::BTreeMap;
use std::sync::Arc;

const MAGIC: &[u8] = b"HFR\x02";
/// For a root with a base.
const MAGIC_BASE: &[u8] = b"HFR\x03";
/// For a root with objects under an older data key than its own.
const MAGIC_KEYS: &[u8] = b"HFR\x04";
/// A volume's id and count of pages.
const VOLUME_WIRE_BYTES_MIN: usize = 2;
/// A pack's id and its bytes.
const PACK_WIRE_BYTES_MIN: usize = OBJECT_WIRE_BYTES_MIN + 1;
/// A segment's id and three numbers.
const SEGMENT_WIRE_BYTES_MIN: usize = OBJECT_WIRE_BYTES_MIN + 3;

impl Root {
    /// The root encoded as one object, before sealing.
    pub fn encode(&self) -> Vec<u8> {
        let (packs, lengths): (Vec<ObjectId>, Vec<u64>) =
            self.page_packs().map(|(object, usage)| (object, usage.stored_bytes)).unzip();
        let mut out = Vec::with_capacity(64 + self.segments.len() * 30 + packs.len() * 20);
        let magic = match (self.under.lists_any(), self.base.is_some()) {
            (true, _) => MAGIC_KEYS,
            (false, true) => MAGIC_BASE,
            (false, false) => MAGIC,
        };
        out.extend_from_slice(magic);
        wire::put(&mut out, self.upto.term.0);
        wire::put(&mut out, self.upto.index.0);
        wire::put(&mut out, self.segments.len() as u64);
        let mut before = NO_OBJECT;
        for (object, usage) in self.segments() {
            put_object(&mut out, before, object);
            wire::put(&mut out, usage.stored_bytes);
            wire::put(&mut out, usage.raw_sectors.0);
            wire::put(&mut out, usage.live_sectors.0);
            before = object;
        }
        wire::put(&mut out, packs.len() as u64);
        before = NO_OBJECT;
        for (object, stored_bytes) in packs.iter().zip(lengths) {
            put_object(&mut out, before, *object);
            wire::put(&mut out, stored_bytes);
            before = *object;
        }
        let mut volumes: BTreeMap<VolumeId, usize> = BTreeMap::new();
        for ((volume, _), placed) in &self.leaves {
            *volumes.entry(*volume).or_default() += placed.leaf.len();
        }
        wire::put(&mut out, volumes.len() as u64);
        let mut volume_before = 0;
        for (volume, count) in volumes {
            wire::put_step(&mut out, volume_before, volume.0.into());
            volume_before = volume.0.into();
            let leaves = self.leaves.range((volume, 0)..=(volume, u32::MAX));
            put_pages(&mut out, &packs, 0, count, leaves.flat_map(|(_, placed)| placed.leaf.iter()));
        }
        if self.under.lists_any() {
            wire::put(&mut out, self.base.is_some().into());
        }
        if let Some(base) = &self.base {
            base.put(&mut out);
        }
        if self.under.lists_any() {
            self.under.put(&mut out);
        }
        out
    }

    /// Reads what [`Root::encode`] wrote.
    ///
    /// # Errors
    /// [`MapError`] for anything out of order or of bounds (MAP-M2).
    pub fn decode(bytes: &[u8]) -> Result<Self, MapError> {
        Self::decode_wire(bytes).map_err(|error| MapError::Wire { what: "root", error })
    }

    fn decode_wire(bytes: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(bytes);
        let field = "magic and version of the root";
        let keys = reader.magic(field, MAGIC_KEYS).is_ok();
        let over = !keys && reader.magic(field, MAGIC_BASE).is_ok();
        if !keys && !over {
            reader.magic(field, MAGIC)?;
        }
        let term = Term(reader.number("term", 0, u64::MAX)?);
        let index = LogIndex(reader.number("index", 0, u64::MAX)?);
        let mut root = Self::new(LogId { term, index });
        let count = reader.count("count of segments", SEGMENT_WIRE_BYTES_MIN, u64::MAX)?;
        let mut before = NO_OBJECT;
        for place in 0..count {
            let object = read_next_object(&mut reader, before, place)?;
            let stored_bytes = reader.number("stored bytes", 0, i64::MAX as u64)?;
            let raw = reader.number("raw sectors", 0, i64::MAX as u64 / SECTOR_BYTES)?;
            let live = reader.number("live sectors", 0, raw)?;
            let usage = SegmentUse { stored_bytes, raw_sectors: Sectors(raw), live_sectors: Sectors(live) };
            root.objects.segments.set(object, usage);
            before = object;
        }
        let count = reader.count("count of page packs", PACK_WIRE_BYTES_MIN, u64::MAX)?;
        let mut packs = Vec::with_capacity(count);
        before = NO_OBJECT;
        for place in 0..count {
            before = read_next_object(&mut reader, before, place)?;
            packs.push(before);
            let stored_bytes = reader.number("stored bytes of a page pack", 0, i64::MAX as u64)?;
            if stored_bytes > 0 {
                root.add_pack(before, stored_bytes);
            }
        }
        let count = reader.count("count of volumes", VOLUME_WIRE_BYTES_MIN, VOLUMES_PER_SET_MAX as u64)?;
        let mut volume = 0;
        for place in 0..count {
            let least = if place == 0 { 0 } else { volume + 1 };
            volume = reader.step("volume", volume, least, u32::MAX.into())?;
            let of = VolumeId(volume as u32);
            read_pages(&mut reader, &packs, 0, PAGE_NUMBER_MAX, |number, page| root.set_page(of, number, Some(page)))?;
        }
        if over || keys && reader.number("whether there is a base", 0, 1)? == 1 {
            root.base = Some(Arc::new(Base::read(&mut reader)?));
        }
        if keys {
            root.objects.under = Under::read(&mut reader)?;
        }
        reader.end()?;
        root.objects.forget_keys_of_others();
        // A pack without pages carries no information, and is not written again.
        let empty = root.packs.iter().filter(|(_, usage)| usage.live_pages == 0).map(|(object, _)| object);
        empty.collect::<Vec<_>>().into_iter().for_each(|object| root.objects.packs.remove(object));
        Ok(root)
    }
}
