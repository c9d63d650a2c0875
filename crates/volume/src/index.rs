//! Journal index: the place in the log of the newest data of each sector that no checkpoint has brought to the store
//! yet.
//!
//! ```text
//!   lookup:   active memtable  ->  sealed memtable  ->  map (or zeroes, where no checkpoint exists yet)
//! ```
//! A [`Memtable`] is a sorted list of extents per volume. It holds places, no data.
//!
//! INDEX-I1  Extents of one volume do not overlap, and none is empty.
//! INDEX-I2  A lookup finds the last insert of each sector.
//! INDEX-I3  Neighbours that form one extent are merged when the second is inserted: zeroes beside zeroes, and parts of
//!     the same op whose data is contiguous in the journal.
//! INDEX-I4  An insert costs O(log n + extents touched), whatever the length of the range.
//! INDEX-I5  The counters of extents and data bytes match the extents.
//!
//! One extent is 24 bytes: 8 of key and 16 of value (asserted below), plus the tree's overhead.

pub use crate::entry::JournalRef;
use crate::entry::{ENTRY_GRID_BYTES, WRITE_SECTORS_MAX};
use holdfast_types::limits::ENTRY_BYTES_MAX;
use holdfast_types::{Lba, LogIndex, SECTOR_BYTES, Sectors, VolumeId};
use std::collections::BTreeMap;

/// Source of a piece's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// The journal, at this place.
    Journal(JournalRef),
    /// Reads as zeroes.
    Zero,
    /// Nothing newer here: look in the checkpoint's map.
    Map,
}

impl Source {
    /// The source `count` sectors further on in the same piece.
    fn advance(self, count: u64) -> Self {
        match self {
            // Inside one op, so within 32 bits.
            Source::Journal(at) => Source::Journal(JournalRef { skip: at.skip + count as u32, ..at }),
            other => other,
        }
    }

    /// Whether a piece of `next` directly behind `sectors` of `self` continues it (INDEX-I3).
    fn continues(self, sectors: u64, next: Source) -> bool {
        match (self, next) {
            (Source::Journal(a), Source::Journal(b)) => {
                a.index == b.index
                    && a.header_offset == b.header_offset
                    && a.op_sectors == b.op_sectors
                    && u64::from(a.skip) + sectors == u64::from(b.skip)
            }
            (Source::Zero, Source::Zero) | (Source::Map, Source::Map) => true,
            _ => false,
        }
    }
}

/// A range of one volume with one source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Piece {
    /// First sector.
    pub lba: Lba,
    /// Length.
    pub sectors: Sectors,
    /// Source of the content.
    pub source: Source,
}

impl Piece {
    /// First sector behind the piece.
    pub fn end(&self) -> Lba {
        Lba(self.lba.0 + self.sectors.0)
    }
}

/// Appends `piece`, or extends the last piece if it continues that.
pub(crate) fn push_piece(pieces: &mut Vec<Piece>, piece: Piece) {
    if let Some(last) = pieces.last_mut()
        && last.end() == piece.lba
        && last.source.continues(last.sectors.0, piece.source)
    {
        last.sectors.0 += piece.sectors.0;
        return;
    }
    pieces.push(piece);
}

/// An extent in memory, without its first sector, which is its key. All fields of a journal ref except the index fit 16
/// bits (asserted below), so a million extents take 24 MB. No op has 0 sectors, so 0 stands for zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    /// The log index; for zeroes the length, which only the volume's size bounds.
    word: u64,
    /// The op's block, in units of [`ENTRY_GRID_BYTES`] (ENTRY-E2).
    header: u16,
    op_sectors: u16,
    skip: u16,
    sectors: u16,
}

const _: () = assert!(size_of::<u64>() + size_of::<Extent>() == 24);
const _: () = assert!(WRITE_SECTORS_MAX <= u16::MAX as u64);
const _: () = assert!(ENTRY_BYTES_MAX / ENTRY_GRID_BYTES <= u16::MAX as usize);

impl Extent {
    const fn zero(sectors: u64) -> Self {
        Self { word: sectors, header: 0, op_sectors: 0, skip: 0, sectors: 0 }
    }

    /// `None` for [`Source::Map`]: that is the absence of an extent.
    fn new(sectors: u64, source: Source) -> Option<Self> {
        match source {
            Source::Map => None,
            Source::Zero => Some(Self::zero(sectors)),
            Source::Journal(at) => {
                // Refs come from ops that `decode` accepted; one outside its op would serve foreign bytes.
                assert!(u64::from(at.op_sectors) <= WRITE_SECTORS_MAX, "R5: op of {} sectors", at.op_sectors);
                let inside = u64::from(at.skip).checked_add(sectors).is_some_and(|end| end <= u64::from(at.op_sectors));
                assert!(inside, "R9: {sectors} sectors at {} of an op of {}", at.skip, at.op_sectors);
                let unit = ENTRY_GRID_BYTES as u32;
                assert!(at.header_offset.is_multiple_of(unit), "ENTRY-E2: block at {}", at.header_offset);
                assert!(at.header_offset < ENTRY_BYTES_MAX as u32, "ENTRY-E3: block at {}", at.header_offset);
                Some(Self {
                    word: at.index.0,
                    header: (at.header_offset / unit) as u16,
                    op_sectors: at.op_sectors as u16,
                    skip: at.skip as u16,
                    sectors: sectors as u16,
                })
            }
        }
    }

    fn is_zero(&self) -> bool {
        self.op_sectors == 0
    }

    fn sectors(&self) -> u64 {
        if self.is_zero() { self.word } else { u64::from(self.sectors) }
    }

    fn source(&self) -> Source {
        if self.is_zero() {
            return Source::Zero;
        }
        Source::Journal(JournalRef {
            index: LogIndex(self.word),
            header_offset: u32::from(self.header) * ENTRY_GRID_BYTES as u32,
            op_sectors: u32::from(self.op_sectors),
            skip: u32::from(self.skip),
        })
    }

    /// The extent with another length. Only [`Extent::continues`] makes it longer, so it still lies inside its op.
    fn with_sectors(&self, sectors: u64) -> Self {
        if self.is_zero() { Self::zero(sectors) } else { Self { sectors: sectors as u16, ..*self } }
    }

    /// The extent without its first `count` sectors; it has more than that.
    fn without_first(&self, count: u64) -> Self {
        let rest = self.with_sectors(self.sectors() - count);
        if self.is_zero() { rest } else { Self { skip: self.skip + count as u16, ..rest } }
    }

    /// [`Source::continues`] for extents.
    fn continues(&self, next: &Extent) -> bool {
        if self.is_zero() || next.is_zero() {
            return self.is_zero() && next.is_zero();
        }
        self.word == next.word
            && self.header == next.header
            && self.op_sectors == next.op_sectors
            && u32::from(self.skip) + u32::from(self.sectors) == u32::from(next.skip)
    }

    /// Sectors of data that the extent refers to.
    fn data_sectors(&self) -> u64 {
        u64::from(self.sectors)
    }
}

type Extents = BTreeMap<u64, Extent>;

/// The writes between two checkpoints: a map from sectors to places in the journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memtable {
    volumes: BTreeMap<VolumeId, Extents>,
    extents: usize,
    data_sectors: u64,
    first_index: Option<LogIndex>,
}

impl Memtable {
    /// An empty memtable.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes `source` the content of the range, over older content (INDEX-I2). [`Source::Map`] removes the range. An
    /// empty range changes nothing.
    ///
    /// # Panics
    /// When the range ends beyond 64 bits, or a journal ref does not lie inside its op: callers check places first.
    pub fn insert(&mut self, volume: VolumeId, lba: Lba, sectors: Sectors, source: Source) {
        if sectors.0 == 0 {
            return;
        }
        let (start, end) = (lba.0, lba.0 + sectors.0);
        let new = Extent::new(sectors.0, source);
        if let Source::Journal(at) = source {
            self.first_index = Some(self.first_index.map_or(at.index, |first| first.min(at.index)));
        }
        let extents = self.volumes.entry(volume).or_default();
        let mut tally = Tally::default();
        insert_extent(extents, start, end, new, &mut tally);
        if extents.is_empty() {
            self.volumes.remove(&volume);
        }
        self.extents = self.extents + tally.extents_added - tally.extents_gone;
        self.data_sectors = self.data_sectors + tally.data_added - tally.data_gone;
    }

    /// The pieces of a range in order, without gap or overlap; [`Source::Map`] where this memtable has nothing.
    pub fn lookup(&self, volume: VolumeId, lba: Lba, sectors: Sectors) -> Vec<Piece> {
        self.pieces(volume, lba, sectors).collect()
    }

    /// [`Memtable::lookup`] one piece at a time.
    pub fn pieces(&self, volume: VolumeId, lba: Lba, sectors: Sectors) -> Pieces<'_> {
        let (start, end) = (lba.0, lba.0.saturating_add(sectors.0));
        let mut known = None;
        if start < end
            && let Some(extents) = self.volumes.get(&volume)
        {
            // Only the last extent that begins before the range can reach into it.
            let first = extents.range(..start).next_back().filter(|(at, extent)| *at + extent.sectors() > start);
            let from = first.map_or(start, |(at, _)| *at);
            known = Some(extents.range(from..end));
        }
        Pieces { known, ahead: None, at: start, end }
    }

    /// All extents, sorted by volume and place.
    pub fn iter(&self) -> impl Iterator<Item = (VolumeId, Piece)> + '_ {
        self.volumes.iter().flat_map(|(volume, extents)| extents.iter().map(|pair| (*volume, to_piece(pair))))
    }

    /// All extents of one volume, sorted by place.
    pub fn iter_volume(&self, volume: VolumeId) -> impl Iterator<Item = Piece> + '_ {
        self.volumes.get(&volume).into_iter().flat_map(|extents| extents.iter().map(to_piece))
    }

    /// The volumes with extents, in order.
    pub fn volumes(&self) -> impl Iterator<Item = VolumeId> + '_ {
        self.volumes.keys().copied()
    }

    /// Merges `older` under this memtable: the result has the extents of both, and this one's where both have some.
    /// O(extents of both), one pass.
    pub fn merge_under(&mut self, older: &Memtable) {
        self.extents += older.extents;
        self.data_sectors += older.data_sectors;
        for (volume, below) in &older.volumes {
            let above = self.volumes.entry(*volume).or_default();
            if above.is_empty() {
                *above = below.clone();
                continue;
            }
            // May exceed the sum of both: an extent that is covered in its middle becomes two.
            let before = above.len() + below.len();
            let (merged, data_covered) = merge(above, below);
            *above = merged;
            self.extents = self.extents + above.len() - before;
            self.data_sectors -= data_covered;
        }
        self.first_index = match (self.first_index, older.first_index) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }

    /// Number of extents; it determines the index's memory.
    pub fn extents(&self) -> usize {
        self.extents
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.extents == 0
    }

    /// Bytes of journal data that lookups can still return; overwritten data and zeroes do not count.
    pub fn data_bytes(&self) -> u64 {
        self.data_sectors * SECTOR_BYTES
    }

    /// A lower bound of the log indexes that lookups return: the lowest that was ever inserted.
    pub fn first_index(&self) -> Option<LogIndex> {
        self.first_index
    }

    /// Checks INDEX-I1, INDEX-I3 and INDEX-I5 over the whole structure, for tests.
    ///
    /// # Panics
    /// When one of them does not hold.
    #[cfg(test)]
    pub(crate) fn self_check(&self) {
        for (volume, extents) in &self.volumes {
            assert!(!extents.is_empty(), "INDEX-I5: {volume} without extents");
            let mut last: Option<(u64, Extent)> = None;
            for (at, extent) in extents {
                assert!(extent.sectors() > 0, "INDEX-I1: empty extent at {at}");
                if let Some((before, left)) = last {
                    assert!(before + left.sectors() <= *at, "INDEX-I1: {before}+{} > {at}", left.sectors());
                    let touching = before + left.sectors() == *at;
                    assert!(!(touching && left.continues(extent)), "INDEX-I3: {before} goes on at {at}");
                }
                last = Some((*at, *extent));
            }
        }
        assert_eq!(self.extents, self.volumes.values().map(BTreeMap::len).sum::<usize>(), "INDEX-I5");
        let data = self.volumes.values().flat_map(BTreeMap::values).map(Extent::data_sectors);
        assert_eq!(self.data_sectors, data.sum::<u64>(), "INDEX-I5");
    }
}

fn to_piece((at, extent): (&u64, &Extent)) -> Piece {
    Piece { lba: Lba(*at), sectors: Sectors(extent.sectors()), source: extent.source() }
}

/// Changes of the counters by one insert.
#[derive(Default)]
struct Tally {
    extents_added: usize,
    extents_gone: usize,
    data_added: u64,
    data_gone: u64,
}

impl Tally {
    fn add(&mut self, extent: &Extent) {
        self.extents_added += 1;
        self.data_added += extent.data_sectors();
    }

    fn gone(&mut self, extent: &Extent) {
        self.extents_gone += 1;
        self.data_gone += extent.data_sectors();
    }
}

/// INDEX-I4: one look at the last extent before `end` handles the two common cases: an empty range, and the same block
/// again.
fn insert_extent(extents: &mut Extents, start: u64, end: u64, new: Option<Extent>, tally: &mut Tally) {
    let Some((at, last)) = extents.range_mut(..end).next_back() else {
        return put(extents, start, new, tally);
    };
    let (at, old) = (*at, *last);
    if at + old.sectors() <= start {
        return put(extents, start, new, tally);
    }
    if let Some(new) = new
        && at == start
        && old.sectors() == new.sectors()
        && !may_merge(&new)
    {
        tally.gone(&old);
        tally.add(&new);
        *last = new;
        return;
    }
    clear(extents, start, end, tally);
    put(extents, start, new, tally);
}

/// Whether an extent could continue a neighbour. A whole op, which is what apply inserts, cannot.
fn may_merge(extent: &Extent) -> bool {
    extent.is_zero() || extent.skip > 0 || extent.sectors < extent.op_sectors
}

/// Clears the range: cuts extents that reach into it, removes extents inside.
fn clear(extents: &mut Extents, start: u64, end: u64, tally: &mut Tally) {
    let mut behind = None;
    if let Some((at, left)) = extents.range_mut(..start).next_back()
        && at + left.sectors() > start
    {
        tally.gone(left);
        if at + left.sectors() > end {
            behind = Some(left.without_first(end - at));
        }
        *left = left.with_sectors(start - at);
        tally.add(left);
    }
    for (at, gone) in extents.extract_if(start..end, |_, _| true) {
        tally.gone(&gone);
        if at + gone.sectors() > end {
            behind = Some(gone.without_first(end - at));
        }
    }
    if let Some(behind) = behind {
        tally.add(&behind);
        extents.insert(end, behind);
    }
}

/// Inserts an extent into an empty range and merges it with its neighbours where it continues them (INDEX-I3).
fn put(extents: &mut Extents, start: u64, new: Option<Extent>, tally: &mut Tally) {
    let Some(mut new) = new else { return };
    if may_merge(&new) {
        let end = start + new.sectors();
        if let Some(right) = extents.get(&end).copied()
            && new.continues(&right)
        {
            tally.gone(&right);
            extents.remove(&end);
            new = new.with_sectors(new.sectors() + right.sectors());
        }
        if let Some((at, left)) = extents.range_mut(..start).next_back()
            && at + left.sectors() == start
            && left.continues(&new)
        {
            tally.gone(left);
            *left = left.with_sectors(left.sectors() + new.sectors());
            tally.add(left);
            // `left` has absorbed `new`, which is counted there; the right neighbour was subtracted above.
            return;
        }
    }
    tally.add(&new);
    extents.insert(start, new);
}

/// Merges two sorted lists in one pass: all of `above`, and the uncovered parts of `below`. Also returns the covered
/// data in sectors.
fn merge(above: &Extents, below: &Extents) -> (Extents, u64) {
    let mut data_covered = 0;
    let mut out: Vec<(u64, Extent)> = Vec::with_capacity(above.len() + below.len());
    let mut push = |at: u64, extent: Extent| {
        if let Some((before, left)) = out.last_mut()
            && *before + left.sectors() == at
            && left.continues(&extent)
        {
            *left = left.with_sectors(left.sectors() + extent.sectors());
            return;
        }
        out.push((at, extent));
    };
    let mut over = above.iter().peekable();
    for (&at, &extent) in below {
        let (mut at, mut rest) = (at, extent);
        loop {
            // `over` is at the first extent above that ends behind `at`.
            while let Some((&top, &cover)) = over.peek().copied()
                && top + cover.sectors() <= at
            {
                push(top, cover);
                over.next();
            }
            let end = at + rest.sectors();
            let Some((&top, cover)) = over.peek().copied() else {
                push(at, rest);
                break;
            };
            if top >= end {
                push(at, rest);
                break;
            }
            if top > at {
                push(at, rest.with_sectors(top - at));
            }
            let cover_end = top + cover.sectors();
            if !rest.is_zero() {
                data_covered += cover_end.min(end) - top.max(at);
            }
            if cover_end >= end {
                break;
            }
            rest = rest.without_first(cover_end - at);
            at = cover_end;
        }
    }
    for (&top, &cover) in over {
        push(top, cover);
    }
    // Sorted already, so the tree is built in bulk, with full nodes.
    (out.into_iter().collect(), data_covered)
}

/// The pieces of a range, in order.
#[derive(Clone, Debug)]
pub struct Pieces<'a> {
    known: Option<std::collections::btree_map::Range<'a, u64, Extent>>,
    ahead: Option<(u64, Extent)>,
    at: u64,
    end: u64,
}

impl Iterator for Pieces<'_> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        if self.at >= self.end {
            return None;
        }
        if self.ahead.is_none() {
            self.ahead = self.known.as_mut().and_then(|range| range.next()).map(|(at, extent)| (*at, *extent));
        }
        let start = self.at;
        let (until, source) = match self.ahead {
            None => (self.end, Source::Map),
            Some((at, _)) if at > start => (at, Source::Map),
            Some((at, extent)) => {
                self.ahead = None;
                ((at + extent.sectors()).min(self.end), extent.source().advance(start - at))
            }
        };
        self.at = until;
        Some(Piece { lba: Lba(start), sectors: Sectors(until - start), source })
    }
}

#[cfg(test)]
mod tests;
