//! A simulated disk that loses unsynced data: the file tree of one machine, and the states that a power cut may leave.
//!
//! ```text
//!  write, truncate ──▶ current content ── sync of the file ──▶ durable content
//!  create, rename, unlink, link ──▶ current names ── sync of a folder ──▶ durable names
//!  cut ──▶ keeps a prefix of the name changes; each block written since its file's last sync becomes new, old, or a mixture by sectors
//! ```
//! Stricter than ext4, as POSIX allows: syncing a file does not make its name durable. In memory, without I/O or clock;
//! the caller supplies randomness.

use crate::chaos::seed::Seeded;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::sync::Arc;

/// Number of a file or folder.
pub type Ino = u64;

/// The top folder.
pub const ROOT: Ino = 1;

/// Size of a block in bytes: the unit that is lost or kept.
pub const BLOCK: u64 = 4096;

/// Size of a sector in bytes: the unit within a torn block.
const SECTOR: usize = 512;

/// Longest file in bytes; a longer one fails as if the device were full.
const FILE_BYTES_MAX: u64 = 1 << 40;

/// At most this many name changes, and blocks of one file, are unsynced; older ones become durable, as a kernel writes
/// them back after a while.
const NAMES_WAITING_MAX: usize = 4096;
const BLOCKS_WAITING_MAX: usize = 1 << 16;

/// A lying disk executes one in this many syncs, like a disk that ignores flushes and writes its cache back now and
/// then.
const TRUE_SYNC_ONE_IN: u64 = 64;

/// Number of removed names between two searches for files without a name.
const SWEEP_EVERY: u32 = 256;

/// Why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// No such name or number.
    Missing,
    /// The name exists already.
    Exists,
    /// A file where a folder is needed.
    NotFolder,
    /// A folder where a file is needed.
    IsFolder,
    /// The folder is not empty.
    NotEmpty,
    /// Beyond [`FILE_BYTES_MAX`].
    Full,
    /// The power is off.
    Off,
}

type Result<T> = std::result::Result<T, Refused>;

type Block = Arc<[u8; BLOCK as usize]>;

#[derive(Debug, Default)]
struct File {
    len: u64,
    /// Blocks that are not all zeros.
    blocks: BTreeMap<u64, Block>,
    /// For blocks changed since the last sync: their content at that sync.
    before: BTreeMap<u64, Option<Block>>,
    /// The length at the last sync, if it changed since.
    len_before: Option<u64>,
}

#[derive(Debug)]
enum Body {
    File(File),
    Folder(BTreeMap<OsString, Ino>),
}

#[derive(Debug)]
struct Node {
    body: Body,
    mode: u32,
    opens: u32,
}

/// A name that changed.
#[derive(Debug)]
struct Change {
    folder: Ino,
    name: OsString,
    before: Option<Ino>,
    after: Option<Ino>,
}

/// Attributes of a file or folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    pub ino: Ino,
    pub folder: bool,
    /// In bytes.
    pub len: u64,
    pub mode: u32,
}

/// The effect of a cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Blocks with unsynced content: kept, lost, torn.
    pub kept: u64,
    pub lost: u64,
    pub torn: u64,
    /// Creations, renames and removals that were undone.
    pub names: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Disk {
    nodes: BTreeMap<Ino, Node>,
    next: Ino,
    /// Unsynced name changes, oldest first; the changes of one entry happen together.
    names: VecDeque<Vec<Change>>,
    removals: u32,
    off: bool,
    /// Whether the disk acknowledges syncs without syncing, which the tests must detect.
    lies: bool,
    /// Number of requested syncs since it lies.
    asked: u64,
}

impl Disk {
    fn lies_now(&mut self) -> bool {
        self.asked += u64::from(self.lies);
        self.lies && !self.asked.is_multiple_of(TRUE_SYNC_ONE_IN)
    }

    /// From now on it acknowledges syncs and executes only one in many.
    pub fn lie(&mut self) {
        self.lies = true;
    }

    /// An empty one.
    pub fn new() -> Self {
        let root = Node { body: Body::Folder(BTreeMap::new()), mode: 0o755, opens: 0 };
        Self {
            nodes: BTreeMap::from([(ROOT, root)]),
            next: ROOT + 1,
            names: VecDeque::new(),
            removals: 0,
            off: false,
            lies: false,
            asked: 0,
        }
    }

    /// Whether there is unsynced data that a cut could lose.
    pub fn has_unsynced(&self) -> bool {
        self.nodes.values().any(|node| matches!(&node.body, Body::File(file) if !file.before.is_empty()))
    }

    /// Switches the disk off: all operations fail.
    pub fn switch_off(&mut self) {
        self.off = true;
    }

    fn node(&self, ino: Ino) -> Result<&Node> {
        if self.off { Err(Refused::Off) } else { self.nodes.get(&ino).ok_or(Refused::Missing) }
    }

    fn node_mut(&mut self, ino: Ino) -> Result<&mut Node> {
        if self.off { Err(Refused::Off) } else { self.nodes.get_mut(&ino).ok_or(Refused::Missing) }
    }

    fn folder(&self, ino: Ino) -> Result<&BTreeMap<OsString, Ino>> {
        match &self.node(ino)?.body {
            Body::Folder(names) => Ok(names),
            Body::File(_) => Err(Refused::NotFolder),
        }
    }

    fn file(&self, ino: Ino) -> Result<&File> {
        match &self.node(ino)?.body {
            Body::File(file) => Ok(file),
            Body::Folder(_) => Err(Refused::IsFolder),
        }
    }

    fn file_mut(&mut self, ino: Ino) -> Result<&mut File> {
        match &mut self.node_mut(ino)?.body {
            Body::File(file) => Ok(file),
            Body::Folder(_) => Err(Refused::IsFolder),
        }
    }

    /// Its attributes.
    pub fn facts(&self, ino: Ino) -> Result<Facts> {
        let node = self.node(ino)?;
        let (folder, len) = match &node.body {
            Body::File(file) => (false, file.len),
            Body::Folder(names) => (true, names.len() as u64),
        };
        Ok(Facts { ino, folder, len, mode: node.mode })
    }

    /// The number of a name.
    pub fn lookup(&self, folder: Ino, name: &OsStr) -> Result<Ino> {
        self.folder(folder)?.get(name).copied().ok_or(Refused::Missing)
    }

    /// All names of a folder.
    pub fn list(&self, folder: Ino) -> Result<Vec<(OsString, Facts)>> {
        self.folder(folder)?.iter().map(|(name, ino)| Ok((name.clone(), self.facts(*ino)?))).collect()
    }

    /// Creates a file or folder.
    pub fn create(&mut self, folder: Ino, name: &OsStr, is_folder: bool, mode: u32) -> Result<Ino> {
        if self.folder(folder)?.contains_key(name) {
            return Err(Refused::Exists);
        }
        let ino = self.next;
        self.next += 1;
        let body = if is_folder { Body::Folder(BTreeMap::new()) } else { Body::File(File::default()) };
        self.nodes.insert(ino, Node { body, mode: mode & 0o7777, opens: 0 });
        self.rename_all(vec![Change { folder, name: name.into(), before: None, after: Some(ino) }]);
        Ok(ino)
    }

    /// Adds a name to a file.
    pub fn link(&mut self, ino: Ino, folder: Ino, name: &OsStr) -> Result<()> {
        self.file(ino)?;
        if self.folder(folder)?.contains_key(name) {
            return Err(Refused::Exists);
        }
        self.rename_all(vec![Change { folder, name: name.into(), before: None, after: Some(ino) }]);
        Ok(())
    }

    /// Removes a name.
    pub fn remove(&mut self, folder: Ino, name: &OsStr, is_folder: bool) -> Result<()> {
        let ino = self.lookup(folder, name)?;
        match (&self.node(ino)?.body, is_folder) {
            (Body::Folder(_), false) => return Err(Refused::IsFolder),
            (Body::File(_), true) => return Err(Refused::NotFolder),
            (Body::Folder(names), true) if !names.is_empty() => return Err(Refused::NotEmpty),
            _ => {}
        }
        self.rename_all(vec![Change { folder, name: name.into(), before: Some(ino), after: None }]);
        self.removals += 1;
        if self.removals >= SWEEP_EVERY {
            self.sweep();
        }
        Ok(())
    }

    /// Renames; replaces an existing target unless `keep` is set.
    pub fn rename(&mut self, from: (Ino, &OsStr), to: (Ino, &OsStr), keep: bool) -> Result<()> {
        let ino = self.lookup(from.0, from.1)?;
        let there = self.folder(to.0)?.get(to.1).copied();
        if let Some(there) = there {
            if keep {
                return Err(Refused::Exists);
            }
            match (&self.node(there)?.body, &self.node(ino)?.body) {
                (Body::Folder(names), Body::Folder(_)) if !names.is_empty() => return Err(Refused::NotEmpty),
                (Body::Folder(_), Body::File(_)) => return Err(Refused::IsFolder),
                (Body::File(_), Body::Folder(_)) => return Err(Refused::NotFolder),
                _ => {}
            }
        }
        if there == Some(ino) {
            return Ok(());
        }
        self.rename_all(vec![
            Change { folder: from.0, name: from.1.into(), before: Some(ino), after: None },
            Change { folder: to.0, name: to.1.into(), before: there, after: Some(ino) },
        ]);
        self.removals += 1;
        Ok(())
    }

    fn rename_all(&mut self, changes: Vec<Change>) {
        for change in &changes {
            self.set_name(change.folder, &change.name, change.after);
        }
        self.names.push_back(changes);
        if self.names.len() > NAMES_WAITING_MAX {
            self.names.pop_front();
        }
    }

    fn set_name(&mut self, folder: Ino, name: &OsStr, ino: Option<Ino>) {
        if let Some(Node { body: Body::Folder(names), .. }) = self.nodes.get_mut(&folder) {
            match ino {
                Some(ino) => drop(names.insert(name.into(), ino)),
                None => drop(names.remove(name)),
            }
        }
    }

    /// Drops files that have no name, neither now nor after a cut, and that are not open.
    fn sweep(&mut self) {
        self.removals = 0;
        let mut named = BTreeSet::from([ROOT]);
        for node in self.nodes.values() {
            if let Body::Folder(names) = &node.body {
                named.extend(names.values());
            }
        }
        let waiting = self.names.iter().flatten();
        named.extend(waiting.flat_map(|change| [Some(change.folder), change.before, change.after]).flatten());
        self.nodes.retain(|ino, node| node.opens > 0 || named.contains(ino));
    }

    /// Counts one more open handle.
    pub fn open(&mut self, ino: Ino) -> Result<()> {
        self.node_mut(ino)?.opens += 1;
        Ok(())
    }

    /// Counts one open handle less.
    pub fn close(&mut self, ino: Ino) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.opens = node.opens.saturating_sub(1);
        }
    }

    /// Reads up to `len` bytes from `offset` on.
    pub fn read(&self, ino: Ino, offset: u64, len: u64) -> Result<Vec<u8>> {
        let file = self.file(ino)?;
        let end = offset.saturating_add(len).min(file.len);
        let mut bytes = Vec::with_capacity(usize::try_from(end.saturating_sub(offset)).unwrap_or(0));
        let mut at = offset;
        while at < end {
            let (block, begin) = (at / BLOCK, (at % BLOCK) as usize);
            let take = (BLOCK as usize - begin).min(usize::try_from(end - at).unwrap_or(usize::MAX));
            match file.blocks.get(&block) {
                Some(content) => bytes.extend_from_slice(&content[begin..begin + take]),
                None => bytes.resize(bytes.len() + take, 0),
            }
            at += take as u64;
        }
        Ok(bytes)
    }

    /// Writes; durable at once if `sync` is set (O_DSYNC).
    pub fn write(&mut self, ino: Ino, offset: u64, bytes: &[u8], sync: bool) -> Result<()> {
        let file = self.file_mut(ino)?;
        let end = offset.checked_add(bytes.len() as u64).filter(|end| *end <= FILE_BYTES_MAX).ok_or(Refused::Full)?;
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let (block, begin) = (at / BLOCK, (at % BLOCK) as usize);
            let (now, later) = rest.split_at((BLOCK as usize - begin).min(rest.len()));
            let mut content = file.blocks.get(&block).map_or([0; BLOCK as usize], |old| **old);
            content[begin..begin + now.len()].copy_from_slice(now);
            file.put(block, Some(content));
            (at, rest) = (at + now.len() as u64, later);
        }
        if end > file.len {
            file.resize(end);
        }
        if sync || file.before.len() > BLOCKS_WAITING_MAX {
            self.sync(ino)?;
        }
        Ok(())
    }

    /// Extends a file with zeros, or shortens it.
    pub fn truncate(&mut self, ino: Ino, len: u64) -> Result<()> {
        let file = self.file_mut(ino)?;
        if len > FILE_BYTES_MAX {
            return Err(Refused::Full);
        }
        let first_gone = len.div_ceil(BLOCK);
        let gone: Vec<u64> = file.blocks.range(first_gone..).map(|(block, _)| *block).collect();
        gone.into_iter().for_each(|block| file.put(block, None));
        if let Some(last) = file.blocks.get(&(len / BLOCK)).filter(|_| !len.is_multiple_of(BLOCK)) {
            let mut content = **last;
            content[(len % BLOCK) as usize..].fill(0);
            file.put(len / BLOCK, Some(content));
        }
        file.resize(len);
        Ok(())
    }

    /// Sets permissions; a cut keeps them.
    pub fn set_mode(&mut self, ino: Ino, mode: u32) -> Result<()> {
        self.node_mut(ino)?.mode = mode & 0o7777;
        Ok(())
    }

    /// Syncs a file (fsync).
    pub fn sync(&mut self, ino: Ino) -> Result<()> {
        let lies = self.lies_now();
        let file = self.file_mut(ino)?;
        if !lies {
            file.before.clear();
            file.len_before = None;
        }
        Ok(())
    }

    /// Syncs a folder (fsync): makes its names durable, together with earlier changes in folders from which they were
    /// moved.
    pub fn sync_folder(&mut self, folder: Ino) -> Result<()> {
        self.folder(folder)?;
        if self.lies_now() {
            return Ok(());
        }
        let mut folders = BTreeSet::from([folder]);
        let mut waiting = VecDeque::new();
        for changes in self.names.drain(..).rev() {
            if changes.iter().any(|change| folders.contains(&change.folder)) {
                folders.extend(changes.iter().map(|change| change.folder));
            } else {
                waiting.push_front(changes);
            }
        }
        self.names = waiting;
        Ok(())
    }

    /// The power is back: chooses a state that a cut may leave. No file is open.
    pub fn cut(&mut self, chance: &mut Seeded) -> Losses {
        let mut losses = Losses::default();
        // A lying disk returns completely to its last real sync: only the acknowledged data can reveal that.
        let back = self.lies;
        // In one of four cuts no name change survives: otherwise the first change, often a folder that was never
        // synced, would nearly always survive.
        let none = back || chance.below(4) == 0;
        let kept = if none { 0 } else { chance.below(self.names.len() as u64 + 1) as usize };
        for changes in self.names.split_off(kept).into_iter().rev() {
            losses.names += 1;
            for change in changes.into_iter().rev() {
                self.set_name(change.folder, &change.name, change.before);
            }
        }
        self.names.clear();
        for node in self.nodes.values_mut() {
            node.opens = 0;
            if let Body::File(file) = &mut node.body {
                file.cut(chance, back, &mut losses);
            }
        }
        self.off = false;
        self.sweep();
        losses
    }
}

impl File {
    fn put(&mut self, block: u64, content: Option<[u8; BLOCK as usize]>) {
        let content = content.filter(|bytes| bytes.iter().any(|byte| *byte != 0)).map(Arc::new);
        if content.is_none() && !self.blocks.contains_key(&block) {
            return;
        }
        let old = match content {
            Some(content) => self.blocks.insert(block, content),
            None => self.blocks.remove(&block),
        };
        self.before.entry(block).or_insert(old);
    }

    fn resize(&mut self, len: u64) {
        if len != self.len {
            self.len_before.get_or_insert(self.len);
            self.len = len;
        }
    }

    fn cut(&mut self, chance: &mut Seeded, back: bool, losses: &mut Losses) {
        for (block, old) in std::mem::take(&mut self.before) {
            let left = match if back { 0 } else { chance.below(4) } {
                0 | 1 => {
                    losses.lost += 1;
                    old
                }
                2 => {
                    losses.kept += 1;
                    continue;
                }
                _ => {
                    losses.torn += 1;
                    let mut mixed = old.map_or([0; BLOCK as usize], |old| *old);
                    let new = self.blocks.get(&block).map_or([0; BLOCK as usize], |new| **new);
                    for (sector, new) in mixed.chunks_mut(SECTOR).zip(new.chunks(SECTOR)) {
                        if chance.chance(50) {
                            sector.copy_from_slice(new);
                        }
                    }
                    Some(Arc::new(mixed))
                }
            };
            match left {
                Some(content) => drop(self.blocks.insert(block, content)),
                None => drop(self.blocks.remove(&block)),
            }
        }
        if let Some(before) = self.len_before.take()
            && (back || chance.chance(50))
        {
            self.len = before;
        }
        // Data beyond the end is gone: a file that is extended later has zeros there.
        self.blocks.split_off(&self.len.div_ceil(BLOCK));
        if let Some(last) = self.blocks.get_mut(&(self.len / BLOCK)).filter(|_| !self.len.is_multiple_of(BLOCK)) {
            Arc::make_mut(last)[(self.len % BLOCK) as usize..].fill(0);
        }
    }
}

#[cfg(test)]
#[path = "disk_tests.rs"]
mod tests;
