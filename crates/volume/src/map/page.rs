//! One page of the map, in memory and encoded.
//!
//! Encoded as version 1, or version 2 where the page hides ranges of its set's base (numbers are varints, see `wire`):
//!
//! ```text
//!   "HFP" version(1)  volume  page number
//!   count of objects, then each: id as steps from the one before            sorted, so mostly 3 + 16 bytes
//!   count of extents, then each, in order of place:
//!     flags(1)        bits 0-1 codec
//!                     bit 2 SAME_OBJECT     the object of the extent before
//!                     bit 3 NEXT            the sealed extent right behind the one before, in the same object
//!                     bit 4 SAME_EXTENT     the same sealed extent as before: only a cut lies between
//!                     bit 5 ADJACENT        begins where the one before ends
//!                     bit 6 WHOLE           all of the sealed extent: no skip, no raw length
//!     [gap]           unless ADJACENT: sectors since the end of the one before
//!     sectors
//!     [object]        unless SAME_OBJECT, NEXT or SAME_EXTENT: place in the table of objects
//!     [number step, offset]                 unless NEXT or SAME_EXTENT
//!     [bytes before sealing]                unless SAME_EXTENT
//!     [raw sectors]                         unless WHOLE or SAME_EXTENT
//!     [skip]                                unless WHOLE
//!   version 2: the ranges that are hidden, in sectors of the page (see `ranges`)
//! ```
//! Extents of one checkpoint that are adjacent on the volume are adjacent in their segment, so most take 4 to 5 bytes.

use super::ranges::Ranges;
use super::{
    MapError, MapExtent, MapPiece, NO_OBJECT, OBJECT_WIRE_BYTES_MAX, OBJECT_WIRE_BYTES_MIN, PAGE_BYTES_MAX,
    PAGE_NUMBER_MAX, PAGE_SECTORS, put_object, read_object,
};
use crate::wire::{self, Reader, WireError};
use holdfast_types::{Lba, ObjectId, Sectors, VolumeId};
use std::collections::BTreeMap;

mod extent;

use extent::{EXTENT_WIRE_BYTES_MAX, EXTENT_WIRE_BYTES_MIN, Stored, put_extent, read_extent};

const MAGIC: &[u8] = b"HFP\x01";
/// For pages that hide ranges; pages of sets without a base never do.
const MAGIC_HIDING: &[u8] = b"HFP\x02";

const _: () = assert!(PAGE_SECTORS <= u32::MAX as u64);
const _: () = assert!(PAGE_SECTORS as usize * (EXTENT_WIRE_BYTES_MAX + OBJECT_WIRE_BYTES_MAX) < PAGE_BYTES_MAX);

/// Sectors of each segment that some map still refers to.
pub type Live = BTreeMap<ObjectId, Sectors>;

/// The map of [`PAGE_SECTORS`] sectors of one volume.
#[derive(Clone, Debug)]
pub struct Page {
    volume: VolumeId,
    number: u32,
    /// Every object that an extent refers to, possibly also unused ones and duplicates.
    objects: Vec<ObjectId>,
    extents: BTreeMap<u32, Stored>,
    /// In a set with a base: ranges that read as zeroes whatever the base holds. No extent lies in them.
    hidden: Ranges,
}

/// Equal if the content is equal; the order of the lists of objects does not matter.
impl PartialEq for Page {
    fn eq(&self, other: &Self) -> bool {
        self.volume == other.volume
            && self.number == other.number
            && self.hidden == other.hidden
            && self.extents().eq(other.extents())
    }
}

impl Eq for Page {}

impl Page {
    /// A page that maps nothing.
    ///
    /// # Panics
    /// R9: when the number is above the largest possible page number.
    pub fn new(volume: VolumeId, number: u32) -> Self {
        assert!(number <= PAGE_NUMBER_MAX, "R9: page {number} of {volume}, of at most {PAGE_NUMBER_MAX}");
        Self { volume, number, objects: Vec::new(), extents: BTreeMap::new(), hidden: Ranges::default() }
    }

    /// Its volume.
    pub fn volume(&self) -> VolumeId {
        self.volume
    }

    /// Its number in the volume.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// First sector that it covers.
    pub fn lba(&self) -> Lba {
        Lba(u64::from(self.number) * PAGE_SECTORS)
    }

    /// First sector behind the page.
    pub fn end(&self) -> Lba {
        Lba(self.lba().0 + PAGE_SECTORS)
    }

    /// Whether it maps and hides nothing: the root omits such a page.
    pub fn is_empty(&self) -> bool {
        self.extents.is_empty() && self.hidden.is_empty()
    }

    /// Whether it hides all of the base up to `end` and does nothing else: a root expresses that without a page.
    pub fn only_hides(&self, end: Lba) -> bool {
        let (_, to) = self.clip(self.lba(), Sectors(end.0.saturating_sub(self.lba().0)));
        self.extents.is_empty() && self.hidden.covers(0, to)
    }

    /// How many extents it has.
    pub fn len(&self) -> usize {
        self.extents.len()
    }

    /// Approximate memory in bytes, as the weight in a cache.
    pub fn memory_bytes(&self) -> usize {
        // Tree nodes are about two thirds full.
        size_of::<Self>()
            + self.objects.len() * size_of::<ObjectId>()
            + self.extents.len() * size_of::<(u32, Stored)>() * 3 / 2
            + self.hidden.len() * size_of::<(u32, u32)>() * 3 / 2
    }

    /// All extents, in order of place.
    pub fn extents(&self) -> impl Iterator<Item = MapExtent> + '_ {
        self.extents.iter().map(|(start, stored)| self.to_extent(*start, stored))
    }

    /// Sectors of each segment that this page refers to (MAP-M4).
    pub fn live(&self) -> Live {
        let mut by_place = vec![0u64; self.objects.len()];
        for stored in self.extents.values() {
            if let Some(sectors) = by_place.get_mut(stored.object as usize) {
                *sectors += u64::from(stored.sectors);
            }
        }
        let mut live = Live::new();
        for (object, sectors) in self.objects.iter().zip(by_place) {
            if sectors > 0 {
                live.entry(*object).or_default().0 += sectors;
            }
        }
        live
    }

    /// The pieces of a range in order, without gap or overlap.
    ///
    /// # Panics
    /// R9: when the range is not within the page. The answer would be short, and the rest would read as other data.
    pub fn lookup(&self, lba: Lba, sectors: Sectors) -> Vec<MapPiece> {
        let (from, to) = self.clip(lba, sectors);
        let inside = u64::from(to - from) == sectors.0;
        assert!(
            inside,
            "R9: lookup of {sectors} sectors at {lba} in page {} of {}, expected a range within it",
            self.number, self.volume
        );
        let mut pieces = Vec::new();
        let mut at = from;
        // The extent before the range may reach into it.
        let first = self.extents.range(..from).next_back().map_or(from, |(start, _)| *start);
        for (start, stored) in self.extents.range(first..to) {
            let (begin, end) = ((*start).max(from), (start + u32::from(stored.sectors)).min(to));
            if begin >= end {
                continue;
            }
            if begin > at {
                pieces.push(self.zero(at, begin));
            }
            pieces.push(MapPiece::Stored(self.to_extent(begin, &stored.part(begin - start, end - begin))));
            at = end;
        }
        if at < to {
            pieces.push(self.zero(at, to));
        }
        pieces
    }

    /// [`Page::lookup`] in a set with a base that shows up to `end`: unmapped parts up to there are
    /// [`MapPiece::Below`].
    ///
    /// # Panics
    /// As [`Page::lookup`].
    pub fn lookup_over(&self, lba: Lba, sectors: Sectors, end: Lba) -> Vec<MapPiece> {
        let mut pieces = Vec::new();
        for piece in self.lookup(lba, sectors) {
            let MapPiece::Zero { lba, sectors } = piece else {
                pieces.push(piece);
                continue;
            };
            let (from, to) = self.clip(lba, sectors);
            let mut at = from;
            for (hidden, until) in self.hidden.within(from, to) {
                self.push_below(&mut pieces, at, hidden, end);
                super::push_zero(
                    &mut pieces,
                    Lba(self.lba().0 + u64::from(hidden)),
                    Lba(self.lba().0 + u64::from(until)),
                );
                at = until;
            }
            self.push_below(&mut pieces, at, to, end);
        }
        pieces
    }

    fn push_below(&self, pieces: &mut Vec<MapPiece>, from: u32, to: u32, end: Lba) {
        let place = |at: u32| Lba(self.lba().0 + u64::from(at));
        super::push_below(pieces, place(from), place(to), end);
    }

    /// Maps the extent's range to the store; older mappings of the range are dropped. Takes only the part of the extent
    /// within the page.
    ///
    /// # Panics
    /// R9: when the extent is invalid. Extents come from a segment's builder, or from a page or table that checked
    /// them.
    pub fn overlay(&mut self, extent: &MapExtent) {
        let place = extent.place;
        assert!(place.check().is_ok(), "R9: {:?} of {}", place, extent.object);
        let within = extent.sectors.0 > 0 && extent.skip.0 + extent.sectors.0 <= place.sectors().0;
        assert!(within, "R9: {} sectors behind {} of {:?}", extent.sectors, extent.skip, place);
        assert!(extent.skip.0 <= extent.lba.0, "R9: {} behind {} sectors of its extent", extent.lba, extent.skip);
        let (from, to) = self.clip(extent.lba, extent.sectors);
        if from == to {
            return;
        }
        self.clear(from, to);
        self.hidden.remove(from, to);
        let cut = self.lba().0 + u64::from(from) - extent.lba.0;
        let stored = Stored {
            object: self.intern(extent.object),
            number: place.number,
            offset: place.offset,
            sealed_len: place.sealed_len,
            raw_sectors: place.sectors().0 as u16,
            sectors: (to - from) as u16,
            skip: (extent.skip.0 + cut) as u16,
            codec: place.codec,
        };
        self.extents.insert(from, stored);
    }

    /// Makes the part of the range that lies within the page read as zeroes.
    pub fn unmap(&mut self, lba: Lba, sectors: Sectors) {
        let (from, to) = self.clip(lba, sectors);
        if from < to {
            self.clear(from, to);
        }
    }

    /// [`Page::unmap`] in a set with a base: also hides the base in that range (BASE-O1).
    pub fn hide(&mut self, lba: Lba, sectors: Sectors) {
        let (from, to) = self.clip(lba, sectors);
        if from < to {
            self.clear(from, to);
            self.hidden.insert(from, to);
        }
    }

    /// Drops its hidden ranges: the root hides the whole page, or there is no base.
    pub fn hide_nothing(&mut self) {
        self.hidden.clear();
    }

    /// Redirects all that the page still maps to `from` to `to`, which holds the same content. Returns the number of
    /// sectors. A range that maps anything else by now was overwritten, and stays.
    pub fn redirect(&mut self, from: &MapExtent, to: &MapExtent) -> Sectors {
        let mut moved = 0;
        let (start, end) = self.clip(from.lba, from.sectors);
        let lba = Lba(self.lba().0 + u64::from(start));
        for piece in self.lookup(lba, Sectors(u64::from(end - start))) {
            let MapPiece::Stored(found) = piece else { continue };
            let same = found.object == from.object
                && found.place == from.place
                && found.lba.0 - from.lba.0 == found.skip.0.wrapping_sub(from.skip.0);
            let covered = found.lba >= to.lba && found.end() <= to.end();
            if same && covered {
                let skip = Sectors(to.skip.0 + (found.lba.0 - to.lba.0));
                self.overlay(&MapExtent { lba: found.lba, sectors: found.sectors, skip, ..*to });
                moved += found.sectors.0;
            }
        }
        Sectors(moved)
    }

    /// The part of the range within the page, in sectors from the page's first.
    fn clip(&self, lba: Lba, sectors: Sectors) -> (u32, u32) {
        let (start, end) = (self.lba().0, self.end().0);
        let from = lba.0.clamp(start, end) - start;
        let to = lba.0.saturating_add(sectors.0).clamp(start, end) - start;
        (from as u32, to as u32)
    }

    fn zero(&self, from: u32, to: u32) -> MapPiece {
        MapPiece::Zero { lba: Lba(self.lba().0 + u64::from(from)), sectors: Sectors(u64::from(to - from)) }
    }

    fn to_extent(&self, start: u32, stored: &Stored) -> MapExtent {
        MapExtent {
            lba: Lba(self.lba().0 + u64::from(start)),
            sectors: Sectors(stored.sectors.into()),
            // Indexes are made by `intern` and `decode` only; the list shrinks in `forget_objects` only.
            object: self.objects[stored.object as usize],
            place: stored.place(),
            skip: Sectors(stored.skip.into()),
        }
    }

    /// Removes `from..to`; extents that reach into it are cut.
    fn clear(&mut self, from: u32, to: u32) {
        let first = self.extents.range(..from).next_back().map_or(from, |(start, _)| *start);
        let touched: Vec<(u32, Stored)> =
            self.extents.range(first..to).map(|(start, stored)| (*start, *stored)).collect();
        for (start, stored) in touched {
            let end = start + u32::from(stored.sectors);
            if end <= from {
                continue;
            }
            self.extents.remove(&start);
            if start < from {
                self.extents.insert(start, stored.part(0, from - start));
            }
            if end > to {
                self.extents.insert(to, stored.part(to - start, end - to));
            }
        }
    }

    /// The object's index in the list. Extents arrive segment by segment, so it is nearly always the last one.
    fn intern(&mut self, object: ObjectId) -> u32 {
        if self.objects.last() != Some(&object) {
            if self.objects.len() > 2 * self.extents.len() + 64 {
                self.forget_objects();
            }
            self.objects.push(object);
        }
        (self.objects.len() - 1) as u32
    }

    /// Drops unused and duplicate objects: the list of a long-lived page must stay bounded.
    fn forget_objects(&mut self) {
        let (objects, places) = self.used_objects();
        for stored in self.extents.values_mut() {
            stored.object = places[stored.object as usize];
        }
        self.objects = objects;
    }

    /// The used objects, sorted, and the new index of each present index.
    fn used_objects(&self) -> (Vec<ObjectId>, Vec<u32>) {
        let sorted: Vec<ObjectId> = self.live().into_keys().collect();
        // An unused object gets any index; nothing refers to it.
        let place = |object: &ObjectId| sorted.binary_search(object).unwrap_or(0) as u32;
        let places = self.objects.iter().map(place).collect();
        (sorted, places)
    }

    /// Checks MAP-M1 over the whole page.
    ///
    /// # Panics
    /// When it does not hold.
    #[cfg(test)]
    pub(super) fn self_check(&self) {
        let mut end = 0;
        for (start, stored) in &self.extents {
            assert!(*start >= end, "MAP-M1: {start} < {end}");
            assert!(stored.sectors > 0, "MAP-M1: empty at {start}");
            assert!(stored.skip + stored.sectors <= stored.raw_sectors, "MAP-M1: {stored:?}");
            assert!(u64::from(stored.skip) <= self.lba().0 + u64::from(*start), "MAP-M1: {stored:?} at {start}");
            assert!(stored.place().check().is_ok(), "MAP-M1: {stored:?}");
            assert!((stored.object as usize) < self.objects.len(), "MAP-M1: {stored:?}");
            end = start + u32::from(stored.sectors);
        }
        assert!(u64::from(end) <= PAGE_SECTORS, "MAP-M1: {end}");
        for (start, stored) in &self.extents {
            let hidden = self.hidden.within(*start, start + u32::from(stored.sectors)).next();
            assert!(hidden.is_none(), "BASE-O1: hidden range {hidden:?} has an extent");
        }
    }

    /// The page's bytes, before sealing.
    pub fn encode(&self) -> Vec<u8> {
        let (objects, places) = self.used_objects();
        let mut out = Vec::with_capacity(32 + objects.len() * 20 + self.extents.len() * 12);
        out.extend_from_slice(if self.hidden.is_empty() { MAGIC } else { MAGIC_HIDING });
        wire::put(&mut out, self.volume.0.into());
        wire::put(&mut out, self.number.into());
        wire::put(&mut out, objects.len() as u64);
        let mut before = NO_OBJECT;
        for object in &objects {
            put_object(&mut out, before, *object);
            before = *object;
        }
        wire::put(&mut out, self.extents.len() as u64);
        let (mut end, mut last): (u32, Option<Stored>) = (0, None);
        for (start, stored) in &self.extents {
            let stored = Stored { object: places[stored.object as usize], ..*stored };
            put_extent(&mut out, &stored, start - end, last.as_ref());
            (end, last) = (start + u32::from(stored.sectors), Some(stored));
        }
        if !self.hidden.is_empty() {
            self.hidden.put(&mut out);
        }
        out
    }

    /// Reads what [`Page::encode`] wrote.
    ///
    /// # Errors
    /// [`MapError`] for anything that breaks MAP-M1, or is not in bounds (MAP-M2).
    pub fn decode(bytes: &[u8]) -> Result<Self, MapError> {
        let wire = |error| MapError::Wire { what: "page", error };
        let mut reader = Reader::new(bytes);
        let (mut page, hides) = Self::decode_head(&mut reader).map_err(wire)?;
        let count = reader.count("count of extents", EXTENT_WIRE_BYTES_MIN, PAGE_SECTORS).map_err(wire)?;
        let mut extents = Vec::with_capacity(count);
        let (mut end, mut last): (u32, Option<Stored>) = (0, None);
        for _ in 0..count {
            let (start, stored) =
                read_extent(&mut reader, end, last.as_ref(), page.objects.len(), page.lba().0).map_err(wire)?;
            let (volume, number) = (page.volume, page.number);
            stored.place().check().map_err(|error| MapError::Place { volume, number, error })?;
            extents.push((start, stored));
            (end, last) = (start + u32::from(stored.sectors), Some(stored));
        }
        if hides {
            page.hidden = Self::read_hidden(&mut reader, &extents).map_err(wire)?;
        }
        reader.end().map_err(wire)?;
        // Sorted, so the tree is built in bulk, with full nodes.
        page.extents = extents.into_iter().collect();
        Ok(page)
    }

    /// At least one range, and none overlaps an extent: the encoding is canonical.
    fn read_hidden(reader: &mut Reader<'_>, extents: &[(u32, Stored)]) -> Result<Ranges, WireError> {
        let at = reader.at();
        let hidden = Ranges::read(reader, PAGE_SECTORS as u32)?;
        let inside =
            |(start, stored): &(u32, Stored)| hidden.within(*start, start + u32::from(stored.sectors)).next().is_some();
        if hidden.is_empty() || extents.iter().any(inside) {
            let (field, found) = ("hidden ranges beside extents", hidden.len() as u64);
            return Err(WireError::Range { field, at, found, least: 1, most: PAGE_SECTORS });
        }
        Ok(hidden)
    }

    /// With whether hidden ranges follow the extents.
    fn decode_head(reader: &mut Reader<'_>) -> Result<(Self, bool), WireError> {
        let field = "magic and version of the page";
        let hides = reader.magic(field, MAGIC_HIDING).is_ok();
        if !hides {
            reader.magic(field, MAGIC)?;
        }
        let volume = VolumeId(reader.number("volume", 0, u32::MAX.into())? as u32);
        let number = reader.number("page number", 0, PAGE_NUMBER_MAX.into())? as u32;
        let count = reader.count("count of objects", OBJECT_WIRE_BYTES_MIN, PAGE_SECTORS)?;
        let mut objects = Vec::with_capacity(count);
        let mut before = NO_OBJECT;
        for _ in 0..count {
            before = read_object(reader, before)?;
            objects.push(before);
        }
        Ok((Self { volume, number, objects, extents: BTreeMap::new(), hidden: Ranges::default() }, hides))
    }
}
