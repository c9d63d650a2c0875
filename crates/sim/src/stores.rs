//! Several stores of a set, if the seed gives it several (ADR 0018): faults of one of them, and rules for all.
//!
//! ```text
//!   down, slow, failing, lost answers ── on all ways to one store, or on one gateway's; until a little later
//!   late ─────────────────────────────── requests or answers of one store, by up to seconds: carried out all the same
//!   away ─────────────────────────────── down until everything heals; one store at most
//!   emptied ──────────────────────────── objects and entry gone. No other one is emptied, or away for long, before this one is whole again
//! ```
//! SIMSTORE-D1  Any w stores with their entry show a checkpoint at least as new as the one that the group knows: a
//!     recovery from them loses nothing that was purged from the journals.
//! SIMSTORE-D2  Each object that a retained root names is in w stores; in w − 1 while an emptied one is incomplete.
//! SIMSTORE-D3  After the healing each object is in all of them, with equal content, and every entry has the same
//!     value.

mod acts;

use crate::rng::Rng;
use crate::store::Server;
use crate::world::MS;
use anyhow::{Context, Result, anyhow, bail};
use bytes::Bytes;
use holdfast_control::set::{RootRef, StoredKind};
use holdfast_set::head;
use holdfast_set::mapping::SetKey;
use holdfast_set::references::key_kind;
use holdfast_store::keys;
use holdfast_types::ObjectId;
use holdfast_volume::map::{LeafRef, open_leaf, open_top};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Seeds in thousandths with several stores by themselves: none, so that the course of seeds does not change.
const SEVERAL: u64 = 0;

const STORES: usize = 3;

const WRITE_QUORUM: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    Down,
    Cut,
    Faults,
    Slow,
    Late,
    Away,
    Empty,
}

const ALL: &[Trouble] = &[
    Trouble::Down,
    Trouble::Cut,
    Trouble::Faults,
    Trouble::Slow,
    Trouble::Late,
    Trouble::Away,
    Trouble::Empty,
    // Twice: the main purpose of this module.
    Trouble::Empty,
];

/// Content of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredEntry {
    Gone,
    Mark,
    Blank,
    Value { ballot: (u64, u128), value: Bytes },
}

/// Parsed as in docs/formats.md, without the product's code.
pub fn entry_of(object: Option<&Bytes>) -> Option<StoredEntry> {
    let Some(object) = object else { return Some(StoredEntry::Gone) };
    let small = |at: usize| Some(u32::from_le_bytes(object.get(at..at + 4)?.try_into().ok()?));
    let number = |at: usize| Some(u64::from_le_bytes(object.get(at..at + 8)?.try_into().ok()?));
    let token = |at: usize| Some(u128::from_le_bytes(object.get(at..at + 16)?.try_into().ok()?));
    let (n, flags) = (*object.strip_prefix(b"HFR\x01")?.get(1)?, *object.get(7)?);
    if flags & 4 != 0 {
        return Some(StoredEntry::Mark);
    }
    if flags & 1 == 0 {
        return Some(StoredEntry::Blank);
    }
    let at = 76 + if flags & 2 != 0 { 4 * usize::from(n) } else { 0 };
    let value = object.get(at..at + small(72)? as usize)?;
    Some(StoredEntry::Value { ballot: (number(32)?, token(40)?), value: object.slice_ref(value) })
}

/// See the module.
pub struct Depot {
    pub servers: Vec<Server>,
    rng: Rng,
    mix: Vec<Trouble>,
    /// When something goes wrong next; none: nothing is to.
    next_at: Option<u64>,
    pause: u64,
    later: Vec<(u64, usize)>,
    /// Down until everything heals.
    away: Option<usize>,
    /// Emptied, and not whole yet.
    emptied: Option<usize>,
    key: Option<SetKey>,
    /// Entry of the newest checked state, and the newest known checkpoint.
    applied: u64,
    checkpoint: u64,
    named: BTreeMap<ObjectId, BTreeSet<String>>,
    /// Up to where values of entries cover.
    covers: BTreeMap<Bytes, u64>,
    /// Number of servers in the set's first list; others come with a change of its stores, which has its own checks.
    listed: Option<usize>,
}

impl Depot {
    /// For a seed. `several`: regardless of the seed.
    pub fn new(seed: u64, several: bool) -> Self {
        // A separate generator: the course of seeds with one store must not change.
        let mut rng = Rng::new(seed, 30);
        let drawn = rng.chance(SEVERAL);
        let count = if drawn || several { STORES } else { 1 };
        let servers: Vec<Server> = (0..count).map(|at| Server::new(seed, at)).collect();
        if count > 1 {
            for server in &servers {
                // Near, in the next country, on another continent.
                server.set_delay(rng.pick(&[(MS, 8 * MS), (15 * MS, 30 * MS), (80 * MS, 160 * MS)]));
            }
        }
        let (key, named, covers) = (None, BTreeMap::new(), BTreeMap::new());
        let (mix, later) = (Vec::new(), Vec::new());
        let (next_at, away, emptied) = (None, None, None);
        let (applied, checkpoint) = (0, 0);
        let listed = None;
        Self {
            servers,
            rng,
            mix,
            next_at,
            pause: 1,
            later,
            away,
            emptied,
            key,
            applied,
            checkpoint,
            named,
            covers,
            listed,
        }
    }

    /// Grows to `count` servers, the first `listed` of which are the set's first list.
    pub fn grow(&mut self, seed: u64, count: usize, listed: usize) {
        let more = self.servers.len()..count;
        self.servers.extend(more.map(|at| Server::new(seed, at)));
        self.listed = Some(listed);
    }

    /// The newest checkpoint known to any gateway.
    pub fn known_checkpoint(&self) -> u64 {
        self.checkpoint
    }

    /// Of store `at`, where there are several.
    pub fn url(&self, dir: &Path, at: usize) -> String {
        format!("file://{}/store{}", dir.display(), at + 1)
    }

    /// Whether the set has several stores.
    pub fn several(&self) -> bool {
        self.servers.len() > 1 && self.listed.is_none()
    }

    /// URLs for a new set. Checked and created, but not used: the gateways' ways to the stores are simulated.
    pub fn text(&self, dir: &Path) -> String {
        if let Some(listed) = self.listed {
            let urls: Vec<String> = (0..listed).map(|at| self.url(dir, at)).collect();
            return if listed == 1 { urls[0].clone() } else { format!("w={} {}", listed / 2 + 1, urls.join(" ")) };
        }
        if !self.several() {
            return format!("file://{}/store", dir.display());
        }
        let urls: Vec<String> =
            (1..=self.servers.len()).map(|at| format!("file://{}/store{at}", dir.display())).collect();
        format!("w={WRITE_QUORUM} {}", urls.join(" "))
    }

    /// Carries out everything that has arrived by `now`.
    pub fn advance(&self, now: u64) {
        self.servers.iter().for_each(|server| server.advance(now));
    }

    fn entries(&self, key: &SetKey) -> Result<Vec<StoredEntry>> {
        let entry = |server: &Server| entry_of(server.object(&keys::head(key.set)).as_ref());
        self.servers
            .iter()
            .map(entry)
            .collect::<Option<Vec<_>>>()
            .context("SIMSTORE-D1: something else lies in an entry's place")
    }

    /// The entry up to which a head covers.
    pub fn covers(&mut self, key: &SetKey, value: &Bytes) -> Result<u64> {
        if let Some(known) = self.covers.get(value) {
            return Ok(*known);
        }
        let head = head::open(key, value).map_err(|e| anyhow!("R9: an entry's value: {e}"))?;
        let upto = head.covered.map_or(0, |covered| covered.upto.index.0);
        self.covers.insert(value.clone(), upto);
        while self.covers.len() > 64 {
            self.covers.pop_first();
        }
        Ok(upto)
    }

    /// SIMSTORE-D1.
    fn check_entries(&mut self, key: &SetKey) -> Result<()> {
        let entries = self.entries(key)?;
        for one in 0..entries.len() {
            for other in one + 1..entries.len() {
                let of = |at: usize| match &entries[at] {
                    StoredEntry::Gone | StoredEntry::Mark => None,
                    StoredEntry::Blank => Some(None),
                    StoredEntry::Value { ballot, value } => Some(Some((*ballot, value.clone()))),
                };
                // A store without its entry does not count: a recovery from these two is refused.
                let (Some(a), Some(b)) = (of(one), of(other)) else { continue };
                let covered = match a.into_iter().chain(b).max_by_key(|(ballot, _)| *ballot) {
                    Some((_, value)) => self.covers(key, &value)?,
                    None => 0,
                };
                if covered < self.checkpoint {
                    bail!(
                        "SIMSTORE-D1: stores {} and {} lead a recovery to entry {covered}; the group has a checkpoint up to {}, and purged its journals",
                        one + 1,
                        other + 1,
                        self.checkpoint
                    );
                }
            }
        }
        Ok(())
    }

    /// The keys of everything that a root names, itself included; `None` if no store has it.
    fn named_by(&mut self, key: &SetKey, root: RootRef) -> Result<Option<BTreeSet<String>>> {
        if let Some(named) = self.named.get(&root.object) {
            return Ok(Some(named.clone()));
        }
        let name = keys::root(key.set, root.object);
        let Some(bytes) = self.servers.iter().find_map(|server| server.object(&name)) else { return Ok(None) };
        let top = open_top(&key.opener(root.object), &bytes).map_err(|e| anyhow!("R9: {name}: {e}"))?;
        let leaf = |leaf: &LeafRef| {
            let pack = keys::map_pack(key.set, leaf.at.object);
            let bytes = self.servers.iter().find_map(|server| server.object(&pack))?;
            let place = leaf.at.range();
            open_leaf(&key.opener(leaf.at.object), leaf, bytes.get(place.start as usize..place.end as usize)?).ok()
        };
        let opened = top.complete(leaf).map_err(|e| anyhow!("R9: {name}: {e}"))?;
        let key_of = |kind: StoredKind, object| keys::object(key.set, key_kind(kind), object);
        let mut named: BTreeSet<String> = opened.names().map(|stored| key_of(stored.kind, stored.object)).collect();
        named.insert(name);
        self.named.insert(root.object, named.clone());
        Ok(Some(named))
    }

    /// The stores with each object that these roots name.
    pub fn copies(&mut self, key: &SetKey, roots: &[RootRef]) -> Result<BTreeMap<String, Vec<usize>>> {
        let mut copies = BTreeMap::new();
        for root in roots {
            let Some(named) = self.named_by(key, *root)? else {
                bail!("SIMSTORE-D2: root {} is named, and in no store", keys::root(key.set, root.object))
            };
            for object in named {
                let has = (0..self.servers.len()).filter(|at| self.servers[*at].has(&object)).collect();
                copies.insert(object, has);
            }
        }
        self.named.retain(|object, _| roots.iter().any(|root| root.object == *object));
        Ok(copies)
    }
}
