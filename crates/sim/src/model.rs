//! Model of permitted reads: a set has one order of writes, and every crash and takeover leaves a prefix of it.
//!
//! Writes are numbered when they are submitted; sessions follow one another, and a session submits nothing before it
//! has read everything ([`Model::resolve`]). So the numbers are the order of R4. A session's first reading must show
//! the content before it, plus a prefix of the writes under way with every answered one: R1, R4, R5 and R6 in one
//! comparison. Other reads are checked against R3: not older than what was known when they were sent, no write that was
//! never submitted, none that was found lost.

mod cut;
mod scratch;

use holdfast_nbd::server::ReadPart;
use scratch::Scratch;
use std::collections::BTreeMap;

/// Volumes of the set.
pub const VOLUMES: usize = 2;
/// Blocks of a volume that are written. One more is behind them ([`Scratch`]).
pub const BLOCKS: usize = 24;
/// Bytes of a block.
pub const BLOCK_BYTES: usize = 4096;
const SECTOR_BYTES: usize = 512;

/// A write's number; 0: never written.
pub type Id = u64;
/// Volume and block.
pub type Place = (usize, usize);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Not seen yet.
    Open,
    /// It took effect.
    Landed,
    /// It did not take effect, and never can.
    Lost,
}

#[derive(Clone, Debug)]
struct Write {
    epoch: u64,
    handed_at: u64,
    /// When it was first answered or read.
    known_at: Option<u64>,
    volume: usize,
    first: usize,
    blocks: usize,
    answered: bool,
    fate: Fate,
}

/// Description of a broken rule.
pub type Broken = String;

/// See the module.
#[derive(Default)]
pub struct Model {
    writes: BTreeMap<Id, Write>,
    next: Id,
    /// As of the last resolution, and by every answer since.
    base: BTreeMap<(usize, usize), Id>,
    /// In the order of the hand-in, since the last resolution.
    open: Vec<Id>,
    /// Per block: from this stamp on, nothing older may be read.
    floors: BTreeMap<(usize, usize), Vec<(u64, Id)>>,
    stamp: u64,
    latest_epoch: u64,
    resolved_epoch: u64,
    last_answered: Id,
    /// The order of writes is not known from outside: see `cut`.
    loose: bool,
    pub answered: u64,
    pub reads: u64,
    /// A further block of each volume.
    pub scratch: [Scratch; VOLUMES],
}

/// The bytes of an answer to a read.
pub fn bytes_of(parts: Vec<ReadPart>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in parts {
        match part {
            ReadPart::Data(data) => bytes.extend_from_slice(&data),
            ReadPart::Zeroes(len) => bytes.resize(bytes.len() + len as usize, 0),
        }
    }
    bytes
}

/// The bytes of write `id` for the block at `block`.
pub fn fill(out: &mut Vec<u8>, id: Id, volume: usize, block: usize) {
    for sector in 0..BLOCK_BYTES / SECTOR_BYTES {
        let mut bytes = [0u8; SECTOR_BYTES];
        bytes[..8].copy_from_slice(&id.to_le_bytes());
        bytes[8..16].copy_from_slice(&(((volume * BLOCKS + block) * 8 + sector) as u64 + 1).to_le_bytes());
        for (at, byte) in bytes.iter_mut().enumerate().skip(16) {
            *byte = (id as usize * 7 + at + sector) as u8;
        }
        out.extend_from_slice(&bytes);
    }
}

/// The write in a block. Fails when it is torn (R5), of another place, or damaged (R9).
pub fn id_of(bytes: &[u8], volume: usize, block: usize) -> Result<Id, Broken> {
    let id = bytes.first_chunk::<8>().map_or(0, |id| u64::from_le_bytes(*id));
    let mut expected = Vec::with_capacity(BLOCK_BYTES);
    match id {
        0 => expected.resize(BLOCK_BYTES, 0),
        id => fill(&mut expected, id, volume, block),
    }
    if bytes == expected {
        return Ok(id);
    }
    let ids: Vec<u64> = bytes
        .chunks(SECTOR_BYTES)
        .map(|sector| sector.first_chunk::<8>().map_or(0, |id| u64::from_le_bytes(*id)))
        .collect();
    Err(format!("R5, R9: block {block} of volume {volume} is of no one write: its sectors are of {ids:?}"))
}

impl Model {
    /// For a set with a known order of writes, or an unknown one (`loose`: see `cut`).
    pub fn new(loose: bool) -> Self {
        Self { loose, ..Self::default() }
    }

    /// A moment after all before.
    pub fn stamp(&mut self) -> u64 {
        self.stamp += 1;
        self.stamp
    }

    /// An epoch was granted. Errors: R6: not above all before.
    pub fn granted(&mut self, epoch: u64) -> Result<(), Broken> {
        let before = self.latest_epoch;
        self.latest_epoch = before.max(epoch);
        if epoch > before { Ok(()) } else { Err(format!("R6: epoch {epoch} was granted after epoch {before}")) }
    }

    /// The latest epoch known to anyone.
    pub fn latest_epoch(&self) -> u64 {
        self.latest_epoch
    }

    /// The latest known write in the order: every write before it took effect too. Without a known order, the present
    /// stamp.
    pub fn last_answered(&self) -> Id {
        if self.loose { self.stamp } else { self.last_answered }
    }

    /// The latest write so far.
    pub fn last_handed_in(&self) -> Id {
        self.next
    }

    /// Checks the content of a snapshot that was requested when write `least` was answered, and existed before any
    /// write after `most` was submitted. Errors: R4: it is no prefix of the order, or ends too early or too late.
    pub fn snapshot(&self, least: Id, most: Id, found: &BTreeMap<(usize, usize), Id>) -> Result<(), Broken> {
        let newest = found.values().max().copied().unwrap_or(0);
        if newest > most {
            return Err(format!("R4: it shows write {newest}, but was there before any after {most} was handed in"));
        }
        if self.loose {
            return self.snapshot_cut(least, found);
        }
        let upto = newest.max(least);
        let mut content = BTreeMap::new();
        for (id, write) in self.writes.range(..=upto).filter(|(_, write)| write.fate != Fate::Lost) {
            content.extend((write.first..write.first + write.blocks).map(|block| ((write.volume, block), *id)));
        }
        if same(&content, found) {
            return Ok(());
        }
        let differ = differ(found, &content);
        Err(format!("R4: it is not the prefix up to write {upto}; place, found, expected: {differ:?}"))
    }

    /// Whether writes of `epoch` can still take effect: no later session has read.
    pub fn is_current(&self, epoch: u64) -> bool {
        epoch == self.latest_epoch && epoch == self.resolved_epoch
    }

    /// A write is submitted. In an epoch that is not current it must never be seen.
    pub fn hand_in(&mut self, epoch: u64, volume: usize, first: usize, blocks: usize) -> Id {
        self.next += 1;
        let id = self.next;
        let (current, handed_at) = (self.is_current(epoch), self.stamp());
        let fate = if current { Fate::Open } else { Fate::Lost };
        self.writes
            .insert(id, Write { epoch, handed_at, known_at: None, volume, first, blocks, answered: false, fate });
        if current {
            self.open.push(id);
        }
        id
    }

    /// A write was answered with success. Errors: R1, R2: it is known to be lost.
    pub fn answered(&mut self, id: Id) -> Result<(), Broken> {
        let stamp = self.stamp();
        self.answered += 1;
        self.last_answered = self.last_answered.max(id);
        let Some(write) = self.writes.get_mut(&id) else { return Ok(()) };
        write.answered = true;
        write.known_at.get_or_insert(stamp);
        if write.fate == Fate::Lost {
            return Err(format!(
                "R1, R2: write {id} (volume {}, blocks {}+{}) was answered with success, but was handed in too late or is not there",
                write.volume, write.first, write.blocks
            ));
        }
        let (volume, first, blocks) = (write.volume, write.first, write.blocks);
        for block in first..first + blocks {
            self.raise((volume, block), stamp, id);
        }
        Ok(())
    }

    fn raise(&mut self, block: (usize, usize), stamp: u64, id: Id) {
        let floor = self.floors.entry(block).or_default();
        if floor.last().is_none_or(|(_, known)| *known < id) {
            floor.push((stamp, id));
        }
    }

    /// A read sent at `asked` found `id` in a block. Errors: R3, or a write that was never submitted.
    pub fn read(&mut self, asked: u64, volume: usize, block: usize, id: Id) -> Result<(), Broken> {
        let stamp = self.stamp();
        self.reads += 1;
        let place = format!("block {block} of volume {volume} reads as of write {id}");
        let floor = self.floors.get(&(volume, block)).map_or(&[][..], Vec::as_slice);
        let known = floor.iter().rev().find(|(at, _)| *at < asked).map_or(0, |(_, id)| *id);
        if id < known {
            return Err(format!("R3: {place}, but write {known} was known before the read was asked"));
        }
        if id == 0 {
            return Ok(());
        }
        let Some(write) = self.writes.get_mut(&id) else {
            return Err(format!("R9: {place}, which nobody handed in"));
        };
        if write.volume != volume || !(write.first..write.first + write.blocks).contains(&block) {
            return Err(format!("R9: {place}, which was handed in for another place"));
        }
        if write.fate == Fate::Lost {
            return Err(format!("R2, R4: {place}, which was not there when a later epoch began"));
        }
        write.known_at.get_or_insert(stamp);
        self.raise((volume, block), stamp, id);
        Ok(())
    }

    /// The first reading in the session of `epoch`: all blocks. Errors: R1, R4, R5, R6: it is not the content before
    /// plus a prefix of the writes under way.
    pub fn resolve(&mut self, epoch: u64, found: &BTreeMap<(usize, usize), Id>) -> Result<(), Broken> {
        if self.loose {
            return self.resolve_cut(epoch, found);
        }
        let least =
            self.open.iter().rposition(|id| self.writes.get(id).is_some_and(|w| w.answered)).map_or(0, |at| at + 1);
        let mut content = self.base.clone();
        let mut fits = None;
        for n in 0..=self.open.len() {
            if n > 0
                && let Some(write) = self.writes.get(&self.open[n - 1])
            {
                for block in write.first..write.first + write.blocks {
                    content.insert((write.volume, block), self.open[n - 1]);
                }
            }
            if n >= least && same(&content, found) {
                fits = Some(n);
                break;
            }
        }
        let Some(n) = fits else { return Err(self.misfit(epoch, least, found)) };
        let stamp = self.stamp();
        for (at, id) in std::mem::take(&mut self.open).into_iter().enumerate() {
            if let Some(write) = self.writes.get_mut(&id) {
                write.fate = if at < n { Fate::Landed } else { Fate::Lost };
            }
        }
        for (block, id) in &content {
            self.raise(*block, stamp, *id);
        }
        self.base = content;
        self.resolved_epoch = epoch;
        Ok(())
    }

    fn misfit(&self, epoch: u64, least: usize, found: &BTreeMap<(usize, usize), Id>) -> Broken {
        let of = |map: &BTreeMap<(usize, usize), Id>| -> Vec<String> {
            let all = (0..VOLUMES).flat_map(|v| (0..BLOCKS).map(move |b| (v, b)));
            all.filter(|at| self.base.get(at).unwrap_or(&0) != found.get(at).unwrap_or(&0))
                .map(|at| format!("{}/{}={}", at.0, at.1, map.get(&at).unwrap_or(&0)))
                .collect()
        };
        let under_way: Vec<String> = self
            .open
            .iter()
            .filter_map(|id| self.writes.get(id).map(|w| (id, w)))
            .map(|(id, w)| format!("{id}{}:{}/{}+{}", if w.answered { "!" } else { "" }, w.volume, w.first, w.blocks))
            .collect();
        format!(
            "R1, R4: the first reading in epoch {epoch} is not what was there with a prefix of what was under way. \
             Where it differs from before: found {:?}, before {:?}. Under way (! answered, the first {least} must be there): {under_way:?}",
            of(found),
            of(&self.base)
        )
    }
}

/// Places with different content, with both contents.
fn differ(a: &BTreeMap<Place, Id>, b: &BTreeMap<Place, Id>) -> Vec<(Place, Id, Id)> {
    let all = (0..VOLUMES).flat_map(|v| (0..BLOCKS).map(move |block| (v, block)));
    let of = |map: &BTreeMap<Place, Id>, at| map.get(&at).copied().unwrap_or(0);
    all.map(|at| (at, of(a, at), of(b, at))).filter(|(_, a, b)| a != b).collect()
}

fn same(a: &BTreeMap<(usize, usize), Id>, b: &BTreeMap<(usize, usize), Id>) -> bool {
    let all = (0..VOLUMES).flat_map(|v| (0..BLOCKS).map(move |block| (v, block)));
    all.into_iter().all(|at| a.get(&at).unwrap_or(&0) == b.get(&at).unwrap_or(&0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun() -> Model {
        let mut model = Model::default();
        model.granted(5).expect("the first");
        model.resolve(5, &BTreeMap::new()).expect("empty");
        model
    }

    #[test]
    fn a_takeover_may_show_any_prefix_that_holds_what_was_answered_and_nothing_else() {
        for (shown, fine) in [(0, false), (1, true), (2, true), (3, true)] {
            let mut model = begun();
            let ids: Vec<Id> = (0..3).map(|at| model.hand_in(5, 0, at, 1)).collect();
            model.answered(ids[0]).expect("handed in");
            model.granted(6).expect("later");
            let found = (0..shown).map(|at| ((0, at), ids[at])).collect();
            assert_eq!(model.resolve(6, &found).is_ok(), fine, "{shown} of 3");
        }
        let mut model = begun();
        let ids: Vec<Id> = (0..3).map(|at| model.hand_in(5, at % 2, at, 1)).collect();
        let gap = BTreeMap::from([((0, 0), ids[0]), ((0, 2), ids[2])]);
        assert!(model.resolve(6, &gap).is_err(), "the second is missing: no prefix");
    }

    #[test]
    fn what_was_lost_or_overwritten_may_not_be_read() {
        let mut model = begun();
        let first = model.hand_in(5, 0, 3, 2);
        model.answered(first).expect("handed in");
        let asked = model.stamp();
        let second = model.hand_in(5, 0, 3, 1);
        model.read(asked, 0, 3, first).expect("the second may not be there yet");
        model.read(asked, 0, 3, second).expect("or be");
        let asked = model.stamp();
        assert!(model.read(asked, 0, 3, first).is_err(), "R3: it was seen");
        model.granted(9).expect("later");
        model.resolve(9, &BTreeMap::from([((0, 3), second), ((0, 4), first)])).expect("fits");
        let late = model.hand_in(5, 0, 7, 1);
        assert!(model.answered(late).is_err(), "R2: of an epoch that has ended");
        let asked = model.stamp();
        assert!(model.read(asked, 0, 7, late).is_err());
        assert!(model.read(asked, 1, 3, second).is_err(), "another place");
        assert!(model.granted(9).is_err(), "R6");
    }

    #[test]
    fn a_snapshot_shows_a_prefix_between_what_was_answered_before_and_handed_in_after() {
        let mut model = begun();
        let ids: Vec<Id> = (0..4).map(|at| model.hand_in(5, at % 2, at, 1)).collect();
        model.answered(ids[1]).expect("handed in");
        let shows = |shown: &[usize]| shown.iter().map(|at| ((at % 2, *at), ids[*at])).collect();
        let fine = |shown: &[usize]| model.snapshot(ids[1], ids[2], &shows(shown)).is_ok();
        assert!(fine(&[0, 1]) && fine(&[0, 1, 2]));
        assert!(!fine(&[0]), "the second was answered before");
        assert!(!fine(&[1]) && !fine(&[0, 2]), "no prefix");
        assert!(!fine(&[0, 1, 2, 3]), "the last was handed in after");
    }

    #[test]
    fn a_block_says_which_write_it_is_of() {
        let mut bytes = Vec::new();
        fill(&mut bytes, 77, 1, 5);
        assert_eq!(id_of(&bytes, 1, 5), Ok(77));
        assert!(id_of(&bytes, 0, 5).is_err());
        assert_eq!(id_of(&[0; BLOCK_BYTES], 0, 0), Ok(0));
        let mut other = Vec::new();
        fill(&mut other, 78, 1, 5);
        bytes[512..1024].copy_from_slice(&other[512..1024]);
        assert!(id_of(&bytes, 1, 5).is_err(), "R5");
    }
}
