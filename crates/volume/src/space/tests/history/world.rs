//! Three gateways, one log, one store, as simple as possible; all decisions come from the code under test.

use crate::entry::{EntryBuilder, EntryPayload, OpKind, decode, encode_control, read_piece};
use crate::index::Source;
use crate::machine::SetMachine;
use crate::map::{
    LeafShape, Live, MapExtent, MapPiece, PackBuilder, Page, PageRef, Root, open_leaf, open_page, open_top,
    page_number, page_numbers, seal_root, split_by_page,
};
use crate::object::tests::{opener, sealer};
use crate::plan::{plan, unmaps};
use crate::segment::{Codec, SegmentBuilder, open_extent, read_table};
use crate::space::{
    Confirmed, GivenUp, Move, Reaper, Spared, fold_page, open_run, packs_to_collect, pages_of, pieces_to_move, runs,
    segments_to_collect,
};
use bytes::Bytes;
use holdfast_control::set::{
    RetireOf, RootRef, SetAnswer, SetCommand, SetRefusal, SetState, StoredKind, StoredObject, VolumeChange,
};
use holdfast_types::{
    Epoch, Lba, LogId, MemberId, MonoTime, Name, ObjectId, Owner, RequestId, SECTOR_BYTES, Sectors, Term, Token,
    VolumeId, WriteSeq,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
pub const NODES: usize = 3;
pub const PAGES: u64 = 3;
pub const PAGE: u64 = crate::map::PAGE_SECTORS;
/// Sectors in use of each page, from its start: a few extents.
pub const USED: u64 = 600;
/// How long a confirmation counts; an election takes longer.
pub const VALID: Duration = Duration::from_secs(1);
pub const GRACE: Duration = Duration::from_secs(60);
/// The sectors that are not zero.
pub type Content = BTreeMap<(VolumeId, u64), u64>;

/// A small generator: the same seed, the same history.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

/// State of a gateway that leads, or believes to.
pub struct Led {
    pub term: Term,
    pub reaper: Reaper,
    pub confirmed: Option<Confirmed>,
    /// The checkpoint under way, and its root once uploaded.
    pub job: Option<(LogId, Option<RootRef>)>,
    /// Judged, to be proposed.
    pub queue: Vec<(RetireOf, Vec<StoredObject>)>,
    /// Objects of its checkpoints that it does not know to have ended.
    pub given_up: GivenUp,
    /// A late end of a checkpoint, whose proposer has begun another since.
    pub late: Option<SetCommand>,
}

pub struct Node {
    pub machine: SetMachine,
    /// Number of log entries that it has applied, and the id of the last.
    pub applied: usize,
    pub last: LogId,
    pub led: Option<Led>,
}

pub struct World {
    pub log: Vec<(LogId, Option<Bytes>)>,
    pub nodes: Vec<Node>,
    pub leader: usize,
    pub term: Term,
    pub now: MonoTime,
    pub store: BTreeMap<(StoredKind, ObjectId), Bytes>,
    /// Everything committed, applied at once.
    pub truth: SetState,
    pub live: Content,
    pub at: BTreeMap<LogId, Content>,
    /// Running reads: their start, and their root.
    pub readers: Vec<(MonoTime, RootRef)>,
    /// Root in the set's head in the store, and the term of the leader that wrote it.
    pub head: Option<(LogId, RootRef, Term)>,
    /// Requests with a copy still in flight.
    pub late: Vec<SetCommand>,
    /// Number of further objects that the store accepts of the present upload, which then fails.
    pub room: u64,
    /// Objects that were sent and have not arrived: they still may.
    sent: Vec<(StoredKind, ObjectId, Bytes)>,
    checked: BTreeSet<ObjectId>,
    drawn: u128,
    pub moved: u64,
    pub deleted: u64,
    pub rolled_back: u64,
    pub discarded: u64,
    /// Objects of failed checkpoints that were retired in their own term.
    pub given_up: u64,
    /// Whether to write a root in leaves, decided for each: roots may change between both forms.
    pub in_leaves: fn(u128) -> bool,
    pub leaves: u64,
}

fn fresh() -> Node {
    let machine = SetMachine::new(SetState::new(Epoch(0)));
    Node { machine, applied: 0, last: LogId::default(), led: None }
}

impl World {
    pub fn new(in_leaves: fn(u128) -> bool) -> Self {
        let mut world = Self {
            in_leaves,
            leaves: 0,
            log: Vec::new(),
            nodes: (0..NODES).map(|_| fresh()).collect(),
            leader: 0,
            term: Term(0),
            now: MonoTime(1 << 40),
            store: BTreeMap::new(),
            truth: SetState::new(Epoch(0)),
            live: Content::new(),
            at: BTreeMap::new(),
            readers: Vec::new(),
            head: None,
            late: Vec::new(),
            room: u64::MAX,
            sent: Vec::new(),
            given_up: 0,
            checked: BTreeSet::new(),
            drawn: 0,
            moved: 0,
            deleted: 0,
            rolled_back: 0,
            discarded: 0,
        };
        world.takeover(0);
        for n in 0..2 {
            let name = Name::new(format!("v{n}")).unwrap();
            let change = VolumeChange::Create { name, size: Sectors(PAGES * PAGE) };
            let created = world.command(0, &SetCommand::ChangeVolume { change, request: RequestId(1 << 90 | n) });
            assert!(matches!(created, Some(SetAnswer::VolumeChanged { .. })));
        }
        world
    }

    fn random(&mut self) -> u128 {
        self.drawn += 1;
        self.drawn
    }

    fn append(&mut self, payload: Option<Bytes>) -> Option<SetAnswer> {
        let id = LogId::new(self.term.0, self.log.len() as u64 + 1);
        if let Some(payload) = &payload {
            match decode(payload).unwrap() {
                EntryPayload::Control(command) => {
                    let answer = self.truth.apply(id, &command);
                    if let (SetAnswer::RolledBack { now: true }, SetCommand::Rollback { to, .. }) = (&answer, &command)
                    {
                        self.live = self.at[&self.truth.snapshots[&to.name].upto].clone();
                        self.at.insert(id, self.live.clone());
                        self.rolled_back += 1;
                    }
                    if let SetAnswer::VolumeChanged { volume, discarded: Some(from) } = answer {
                        self.live.retain(|(of, lba), _| *of != volume || *lba < from.0);
                        self.discarded += 1;
                    }
                    if matches!(command, SetCommand::CheckpointBegin { .. }) {
                        self.at.insert(id, self.live.clone());
                    }
                }
                EntryPayload::Writes(view) => {
                    self.truth.admit_write(id, view.epoch, view.seq);
                }
            }
            self.truth.self_check();
        }
        self.log.push((id, payload));
        self.catch_up(self.leader, usize::MAX)
    }

    /// The node applies up to `most` further entries; returns the answer of the last.
    pub fn catch_up(&mut self, node: usize, most: usize) -> Option<SetAnswer> {
        let mut answer = None;
        let until = self.log.len().min(self.nodes[node].applied.saturating_add(most));
        for at in self.nodes[node].applied..until {
            let (id, payload) = self.log[at].clone();
            let n = &mut self.nodes[node];
            answer = payload.map(|payload| n.machine.apply(id, &payload).unwrap().answer);
            (n.applied, n.last) = (at + 1, id);
        }
        answer
    }

    /// The term in which the node believes to lead, with an applied entry of it.
    pub fn leading_ready(&self, node: usize) -> Option<Term> {
        let n = &self.nodes[node];
        n.led.as_ref().map(|led| led.term).filter(|term| n.last.term == *term)
    }

    pub fn is_leader(&self, node: usize) -> bool {
        node == self.leader && self.nodes[node].led.as_ref().is_some_and(|led| led.term == self.term)
    }

    /// Proposes a command; has no effect at a former leader.
    pub fn command(&mut self, node: usize, command: &SetCommand) -> Option<SetAnswer> {
        self.is_leader(node).then(|| self.append(Some(encode_control(command).unwrap()))).flatten()
    }

    /// Elects `node`. Its log has everything, but it may not have applied all, and no entry of its own term.
    pub fn takeover(&mut self, node: usize) {
        self.now = self.now.saturating_add(VALID);
        self.term = Term(self.term.0 + 1);
        self.leader = node;
        self.nodes[node].led = Some(Led {
            term: self.term,
            reaper: Reaper::new(),
            confirmed: None,
            job: None,
            queue: Vec::new(),
            given_up: GivenUp::default(),
            late: None,
        });
        if self.nodes[node].applied == self.log.len() {
            self.log.push((LogId::new(self.term.0, self.log.len() as u64 + 1), None));
            self.grant();
        } else {
            self.log.push((LogId::new(self.term.0, self.log.len() as u64 + 1), None));
        }
    }

    /// The leader applies everything and acquires the lease: from here on it writes.
    pub fn grant(&mut self) {
        let n = self.random();
        let command = SetCommand::Acquire {
            owner: Owner::new("db").unwrap(),
            gateway: MemberId(1),
            token: Token(n),
            ttl_ms: 3000,
            request: RequestId(n),
            judged_expired: None,
            force: true,
            plain: false,
            at_unix_ms: 0,
        };
        self.command(self.leader, &command);
    }

    /// A process restarts from its snapshot and the log behind it.
    pub fn restart(&mut self, node: usize) {
        let (machine, applied, last) = match self.nodes[node].machine.snapshot() {
            Some((upto, bytes)) => (SetMachine::from_snapshot(upto, &bytes).unwrap(), upto.index.0 as usize, upto),
            None => (SetMachine::new(SetState::new(Epoch(0))), 0, LogId::default()),
        };
        self.nodes[node] = Node { machine, applied, last, led: None };
        if node == self.leader {
            self.takeover((node + 1) % NODES);
        }
    }

    pub fn write(&mut self, volume: VolumeId, lba: u64, sectors: u64, kind: OpKind) {
        self.catch_up(self.leader, usize::MAX);
        if self.truth.lease.is_none() || self.nodes[self.leader].last.term != self.term {
            return;
        }
        let stamp = self.random() as u64;
        let data = match kind {
            OpKind::Write => (0..sectors).flat_map(|n| sector(stamp * 1000 + n)).collect(),
            _ => Bytes::new(),
        };
        let mut entry = EntryBuilder::new(self.truth.epoch, WriteSeq(self.truth.last_seq.0 + 1));
        assert!(entry.try_push(kind, volume, Lba(lba), Sectors(sectors), data));
        if self.append(Some(entry.finish())) != Some(SetAnswer::Written) {
            return;
        }
        for n in 0..sectors {
            match kind {
                OpKind::Write => self.live.insert((volume, lba + n), stamp * 1000 + n),
                _ => self.live.remove(&(volume, lba + n)),
            };
        }
    }

    /// A volume is changed or deleted; sometimes a copy of the request arrives late.
    pub fn change(&mut self, change: VolumeChange, again: bool) {
        let request = RequestId(1 << 90 | self.random());
        let command = SetCommand::ChangeVolume { change, request };
        self.catch_up(self.leader, usize::MAX);
        if let Some(SetAnswer::Refused(refusal)) = self.command(self.leader, &command) {
            let full_or_gone = matches!(refusal, SetRefusal::NameTaken { .. } | SetRefusal::NoSuchVolume { .. });
            assert!(full_or_gone, "{refusal}");
        }
        self.late.extend(again.then_some(command));
    }

    /// The set's head names the checkpoint's root from now on, as the last step before its end. A former leader does
    /// that too if it does not know, but never over a newer checkpoint.
    pub fn commit_head(&mut self, node: usize, at: LogId, root: RootRef) -> bool {
        let n = &self.nodes[node];
        let Some(term) = n.led.as_ref().map(|led| led.term) else { return false };
        let begun = n.machine.begun().is_some_and(|(begun, _)| begun == at);
        let newer = self.head.is_some_and(|(upto, _, _)| upto.index >= at.index);
        if !begun || newer {
            return false;
        }
        self.head = Some((at, root, term));
        true
    }

    fn put(&mut self, kind: StoredKind, object: ObjectId, body: Bytes) {
        if let Some(led) = &mut self.nodes[object.member.0 as usize - 1].led {
            led.given_up.made(object);
        }
        if self.room == 0 {
            self.sent.push((kind, object, body));
            return;
        }
        self.room -= 1;
        assert!(self.store.insert((kind, object), body).is_none(), "R7: {object} twice");
    }

    /// An object that was sent long ago arrives, whatever became of its sender.
    pub fn land(&mut self) {
        for (kind, object, body) in std::mem::take(&mut self.sent) {
            assert!(self.store.insert((kind, object), body).is_none(), "R7: {object} twice");
        }
    }

    fn get(&self, kind: StoredKind, object: ObjectId) -> &Bytes {
        self.store.get(&(kind, object)).unwrap_or_else(|| panic!("{kind:?} {object} is needed and gone"))
    }

    /// Whether a whole root is readable. For gateways that may believe in a deleted one.
    pub fn has_root(&self, at: RootRef) -> bool {
        let Some(body) = self.store.get(&(StoredKind::Root, at.object)) else { return false };
        let leaves = open_top(&opener(at.object), body).unwrap().leaves();
        leaves.iter().all(|leaf| self.store.contains_key(&(StoredKind::Pages, leaf.at.object)))
    }

    pub fn root(&self, at: RootRef) -> Root {
        let opened = open_top(&opener(at.object), self.get(StoredKind::Root, at.object)).unwrap();
        let leaf = |leaf: &crate::map::LeafRef| {
            let pack = self.get(StoredKind::Pages, leaf.at.object);
            let sealed = &pack[leaf.at.range().start as usize..leaf.at.range().end as usize];
            Some(open_leaf(&opener(leaf.at.object), leaf, sealed).unwrap())
        };
        opened.complete(leaf).unwrap()
    }

    fn page(&self, place: &PageRef, volume: VolumeId, number: u32) -> Page {
        let pack = self.get(StoredKind::Pages, place.object);
        let sealed = &pack[place.range().start as usize..place.range().end as usize];
        open_page(&opener(place.object), place, volume, number, sealed).unwrap()
    }

    fn new_object(&mut self, node: usize, term: Term) -> ObjectId {
        ObjectId { term, member: MemberId(node as u64 + 1), boot: 1, random: self.random() }
    }

    /// Everything between begin and end, like the uploader. `None`: not every object arrived.
    pub fn upload(&mut self, node: usize, at: LogId) -> Option<RootRef> {
        let sent = self.sent.len();
        let term = self.nodes[node].led.as_ref()?.term;
        let (sealed_at, memtable) = self.nodes[node].machine.sealed().filter(|(sealed, _)| *sealed == at)?;
        let base = self.nodes[node].machine.state().checkpoint.map(|c| self.root(c.root));
        let base = base.unwrap_or_else(|| Root::new(sealed_at));
        let mut root = base.clone();
        root.upto = at;
        // Small segments of this checkpoint, so that there are several.
        let mut batch = Vec::new();
        for planned in plan(&memtable) {
            let mut lba = planned.lba;
            let mut raw = Vec::new();
            for (sectors, place) in &planned.parts {
                let (offset, len) = place.byte_range();
                let entry = self.log[place.index.0 as usize - 1].1.clone().unwrap();
                let bytes = entry.slice(offset as usize..offset as usize + len);
                raw.extend_from_slice(&read_piece(planned.volume, lba, *sectors, place, &entry, &bytes).unwrap());
                lba.0 += sectors.0;
            }
            batch.push((planned.volume, planned.lba, raw));
        }
        let mut extents: BTreeMap<(VolumeId, u32), Vec<MapExtent>> = BTreeMap::new();
        for (volume, extent) in self.put_segments(node, term, &mut root, batch) {
            for number in page_numbers(extent.lba, extent.sectors) {
                extents.entry((volume, number)).or_default().push(extent);
            }
        }
        let moves = self.collect(node, term, &mut root, &base, &memtable);
        let mut touched: BTreeSet<(VolumeId, u32)> = extents.keys().chain(moves.keys()).copied().collect();
        for unmap in unmaps(&memtable) {
            touched.extend(base.pages_in(unmap.volume, unmap.lba, unmap.sectors).map(|(n, _)| (unmap.volume, n)));
        }
        let packs = packs_to_collect(&base, 150);
        touched.extend(base.pages_in_packs(&packs).map(|(volume, number, _)| (volume, number)));
        let mut pack: Option<PackBuilder> = None;
        for (volume, number) in touched {
            let old = base.page(volume, number).map(|place| self.page(&place, volume, number));
            let before = old.as_ref().map_or_else(Live::new, Page::live);
            let of = |map: &BTreeMap<(VolumeId, u32), Vec<MapExtent>>| map.get(&(volume, number)).cloned();
            let old = old.unwrap_or_else(|| Page::new(volume, number));
            let taken = moves.get(&(volume, number)).map_or(&[][..], Vec::as_slice);
            let page = fold_page(old, &memtable, &of(&extents).unwrap_or_default(), taken, None);
            let place = if page.is_empty() {
                None
            } else {
                let object = self.new_object(node, term);
                Some(pack.get_or_insert_with(|| PackBuilder::new(sealer(object))).push(&page))
            };
            root.replace_page(volume, number, place, &before, &page.live()).unwrap();
            if let Some(full) = pack.take_if(|pack| pack.pages() == 3) {
                self.put_pack(&mut root, full);
            }
        }
        if let Some(last) = pack {
            self.put_pack(&mut root, last);
        }
        root.drop_dead_segments();
        if (self.in_leaves)(self.drawn) {
            // As small as possible: nearly every change is in another leaf.
            let shape = LeafShape { pages: 2, objects: 2, packs: 3, whole_bytes: 0 };
            let packs = root.write_leaves(&shape, || {
                self.drawn += 1;
                sealer(ObjectId { term, member: MemberId(node as u64 + 1), boot: 1, random: self.drawn })
            });
            for pack in packs {
                self.leaves += pack.parts.len() as u64;
                self.put(StoredKind::Pages, pack.object, pack.body);
            }
        } else {
            root.make_whole();
        }
        let object = self.new_object(node, term);
        let body = seal_root(&root, sealer(object));
        let root_ref = RootRef { object, bytes: body.len() as u64 };
        self.put(StoredKind::Root, object, body);
        (self.sent.len() == sent).then_some(root_ref)
    }

    fn put_pack(&mut self, root: &mut Root, pack: PackBuilder) {
        let object = pack.object();
        let body = pack.finish();
        root.add_pack(object, body.len() as u64);
        self.put(StoredKind::Pages, object, body);
    }

    fn put_segments(
        &mut self,
        node: usize,
        term: Term,
        root: &mut Root,
        batch: Vec<(VolumeId, Lba, Vec<u8>)>,
    ) -> Vec<(VolumeId, MapExtent)> {
        let mut placed = Vec::new();
        for chunk in batch.chunks(3) {
            let object = self.new_object(node, term);
            let mut builder = SegmentBuilder::new(sealer(object), Codec::None);
            for (volume, lba, raw) in chunk {
                placed.push((*volume, MapExtent::whole(object, *lba, builder.push(*volume, *lba, raw))));
            }
            let raw = Sectors(builder.raw_bytes() / SECTOR_BYTES);
            let body = builder.finish();
            root.add_segment(object, body.len() as u64, raw);
            self.put(StoredKind::Segment, object, body);
        }
        placed
    }

    fn collect(
        &mut self,
        node: usize,
        term: Term,
        root: &mut Root,
        base: &Root,
        memtable: &crate::index::Memtable,
    ) -> BTreeMap<(VolumeId, u32), Vec<Move>> {
        let mut moves: BTreeMap<(VolumeId, u32), Vec<Move>> = BTreeMap::new();
        for victim in segments_to_collect(base, 130, 1 << 20, &Spared::default()) {
            let segment = self.get(StoredKind::Segment, victim).clone();
            let mut found = Vec::new();
            for (volume, number) in pages_of(&read_table(&opener(victim), &segment).unwrap()) {
                let Some(place) = base.page(volume, number) else { continue };
                found.extend(runs(volume, pieces_to_move(&self.page(&place, volume, number), victim, memtable)));
            }
            let copies =
                found.iter().map(|run| (run.volume, run.lba(), open_run(&opener(victim), &segment, run).unwrap()));
            let copies: Vec<_> = copies.collect();
            let placed = self.put_segments(node, term, root, copies);
            for (run, (volume, to)) in found.into_iter().zip(placed) {
                self.moved += to.sectors.0;
                moves.entry((volume, page_number(to.lba))).or_default().push(Move { from: run.from, to });
            }
        }
        moves
    }

    /// Content of a root. Every object that it names must exist.
    pub fn content_of(&self, at: RootRef) -> Content {
        let root = self.root(at);
        let mut content = Content::new();
        for (volume, number, place) in root.pages() {
            let page = self.page(&place, volume, number);
            for extent in page.extents() {
                self.extent_into(volume, &extent, &mut content);
            }
        }
        content
    }

    fn extent_into(&self, volume: VolumeId, extent: &MapExtent, content: &mut Content) {
        let segment = self.get(StoredKind::Segment, extent.object);
        let range = extent.place.range();
        let sealed = &segment[range.start as usize..range.end as usize];
        let raw = open_extent(&opener(extent.object), &extent.place, volume, extent.sealed_lba(), sealed).unwrap();
        stamps_into(volume, extent.lba, &raw[extent.raw_range()], content);
    }

    /// Content by the leader's lookups.
    pub fn content_of_leader(&self) -> Content {
        let machine = &self.nodes[self.leader].machine;
        let root = machine.state().checkpoint.map(|c| self.root(c.root));
        let mut content = Content::new();
        for volume in machine.state().volumes.keys().copied() {
            for page in 0..PAGES {
                for piece in machine.lookup(volume, Lba(page * PAGE), Sectors(USED)) {
                    match piece.source {
                        Source::Zero => {}
                        Source::Journal(place) => {
                            let (offset, len) = place.byte_range();
                            let entry = self.log[place.index.0 as usize - 1].1.clone().unwrap();
                            let bytes = entry.slice(offset as usize..offset as usize + len);
                            let raw = read_piece(volume, piece.lba, piece.sectors, &place, &entry, &bytes).unwrap();
                            stamps_into(volume, piece.lba, &raw, &mut content);
                        }
                        Source::Map => {
                            let root = root.as_ref().expect("a map needs a checkpoint");
                            for (number, lba, sectors) in split_by_page(piece.lba, piece.sectors) {
                                let Some(place) = root.page(volume, number) else { continue };
                                for found in self.page(&place, volume, number).lookup(lba, sectors) {
                                    if let MapPiece::Stored(extent) = found {
                                        self.extent_into(volume, &extent, &mut content);
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
        content
    }

    /// Every retained root, and every root of a running read, has all of its objects; a root that was not checked
    /// before has the content of its entry.
    pub fn check_roots(&mut self) {
        let mut roots: Vec<(RootRef, LogId)> = self.truth.snapshots.values().map(|s| (s.root, s.upto)).collect();
        roots.extend(self.truth.checkpoint.map(|c| (c.root, c.upto)));
        for (at, upto) in roots {
            if self.checked.insert(at.object) {
                assert!(self.content_of(at) == self.at[&upto], "R4: found other content in the root of {upto}");
            }
            self.check_names(at);
        }
        // A recovery would begin there.
        if let Some((upto, at, _)) = self.head {
            if self.checked.insert(at.object) {
                assert!(
                    self.content_of(at) == self.at[&upto],
                    "HEAD-H3: found other content in the head's root of {upto}"
                );
            }
            self.check_names(at);
        }
        self.readers.retain(|(since, _)| self.now.saturating_since(*since) < GRACE);
        for (_, at) in self.readers.clone() {
            self.check_names(at);
        }
    }

    fn check_names(&self, at: RootRef) {
        for named in self.root(at).names() {
            self.get(named.kind, named.object);
        }
    }
}

fn stamps_into(volume: VolumeId, lba: Lba, raw: &[u8], content: &mut Content) {
    for (n, bytes) in raw.chunks(SECTOR_BYTES as usize).enumerate() {
        let stamp = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        assert!(bytes.chunks(8).all(|part| part == &bytes[..8]), "a torn sector");
        content.insert((volume, lba.0 + n as u64), stamp);
    }
}

fn sector(stamp: u64) -> Vec<u8> {
    stamp.to_le_bytes().repeat(SECTOR_BYTES as usize / 8)
}
