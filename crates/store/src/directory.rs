//! A directory as a store: the built-in default, for one machine or a shared file system.
//!
//! ```text
//!   DIR/sets/1/seg/<object>   an object, complete and synced from the moment that it has this name
//!   DIR/.holdfast/new-<n>     being written; left behind by a crash, removed when it is a day old
//!   DIR/.holdfast/swap.lock   held (flock) while an object is swapped, by any process
//! ```
//!
//! Order of a write, so that a power cut leaves either nothing or the whole object:
//!
//! 1. Write the temporary file and fsync it.
//! 2. Sync each directory above the object's whose name may be new, once per process.
//! 3. Link the file to its name, which fails if the name is taken (a swap renames over it, under the lock).
//! 4. Sync the directory.
//!
//! An error in 4 leaves the outcome unknown; before that nothing has happened.

use crate::direct::{self, DIRECT_BYTES_MIN};
use crate::error::{At, Cause, Op, StoreError};
use crate::health::Kind as Trouble;
use crate::memory::{admit, admit_range};
use crate::{BoxFuture, Head, ListPage, Listed, OBJECT_BYTES_MAX, Object, ObjectStore, Version, keys};
use bytes::Bytes;
use holdfast_types::sync::LockExt;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Our own directory; no key begins with a dot.
const OWN: &str = ".holdfast";
/// Who may open the lock for swaps, at most: whoever may can hold it, and each swap would wait for ever. Gateways may
/// share a directory by their group.
const LOCK_MODE: u32 = 0o660;
/// A temporary file that was not touched for this long belongs to no running writer.
const TEMPORARY_AGE_MAX: Duration = Duration::from_secs(24 * 3600);
/// Objects in one page of a listing. Each page reads the directory again, so pages are few and large.
const LIST_PAGE_OBJECTS: usize = 16 * 1024;
/// Limit of concurrent file operations in one directory. A file system that hangs (NFS) keeps a thread for each, and
/// the process has 32 threads for blocking work, reads of the journal among them.
const AT_ONCE: usize = 8;
/// Like `AT_ONCE`, for all directories together: half of the threads.
const AT_ONCE_ALL: usize = 16;
/// How long a request waits for its turn. Shorter than any attempt, so that it is known not to have happened.
const TURN_LIMIT: Duration = Duration::from_secs(2);

static ALL: Semaphore = Semaphore::const_new(AT_ONCE_ALL);
/// By path: several sets may keep their objects in one directory.
static TURNS: Mutex<BTreeMap<PathBuf, Arc<Semaphore>>> = Mutex::new(BTreeMap::new());

/// See the module. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Directory {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    /// The resolved path, after it was prepared: the process may change its working directory, and the path may be a
    /// link.
    ready: OnceLock<PathBuf>,
    place: Arc<str>,
    /// Directories whose names this process has synced.
    synced: Mutex<BTreeSet<PathBuf>>,
    turns: Arc<Semaphore>,
    turn_limit: Duration,
    /// Opening creates nothing: for readers, possibly of a read-only directory.
    existing: bool,
    /// The file system refused direct writes.
    through_cache: AtomicBool,
}

impl Directory {
    /// Opens the directory, creates it if missing, and removes temporary files that a crash left a day ago or earlier.
    ///
    /// # Errors
    /// It cannot be created or written to.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let store = Self::later(path);
        store.shared.make_ready()?;
        Ok(store)
    }

    /// Opens an existing store, and changes nothing.
    ///
    /// # Errors
    /// There is none.
    pub fn existing(path: &Path) -> Result<Self, StoreError> {
        let store = Self::with(path, true);
        store.shared.make_ready()?;
        Ok(store)
    }

    /// Like [`Directory::open`], but opened by the first operation: a file system that hangs or is missing does not
    /// block a caller that only names it (R8).
    pub fn later(path: &Path) -> Self {
        Self::with(path, false)
    }

    fn with(path: &Path, existing: bool) -> Self {
        let place: Arc<str> = Arc::from(format!("file://{}", path.display()));
        let turns = {
            let mut known = TURNS.locked();
            known.entry(path.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(AT_ONCE))).clone()
        };
        let (path, ready, synced) = (path.to_owned(), OnceLock::new(), Mutex::default());
        let (turn_limit, through_cache) = (TURN_LIMIT, AtomicBool::new(false));
        Self { shared: Arc::new(Shared { path, ready, place, synced, turns, turn_limit, existing, through_cache }) }
    }

    /// Runs file I/O on a thread that may block. The work continues when the caller stops waiting, and keeps its turn
    /// until it ends.
    async fn run<T: Send + 'static>(
        &self,
        op: Op,
        key: &str,
        work: impl FnOnce(&Shared) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let shared = self.shared.clone();
        let mut task = JoinSet::new();
        // A task of its own waits for the turn and uses it at once: a semaphore gives its permit to the longest waiter,
        // whether it is polled or not. A caller that has several requests and polls another one meanwhile would keep
        // the permit for ever. While the task waits, it ends with its caller.
        task.spawn(async move {
            // The directory's own turn first: a directory that hangs must not hold turns that others need.
            let turn = async { (shared.turns.clone().acquire_owned().await, ALL.acquire().await) };
            let turn = tokio::time::timeout(shared.turn_limit, turn).await.ok()?;
            let done = tokio::task::spawn_blocking(move || {
                let _turn = turn;
                shared.make_ready()?;
                work(&shared)
            });
            Some(done.await)
        });
        let at = At::new(&self.shared.place, op, key);
        match task.join_next().await {
            Some(Ok(Some(Ok(done)))) => done,
            Some(Ok(None)) => {
                let text = format!(
                    "{AT_ONCE} file operations are under way here and none has ended for {} ms: the file system does not answer",
                    self.shared.turn_limit.as_millis()
                );
                Err(StoreError::Unavailable { at, attempts: 1, cause: Cause::of_kind(Trouble::NoAnswer, text) })
            }
            _ => {
                let cause = Cause::text("the work was abandoned while the process stops");
                Err(if op.writes() {
                    StoreError::Unknown { at, attempts: 1, cause }
                } else {
                    StoreError::Unavailable { at, attempts: 1, cause }
                })
            }
        }
    }
}

/// The error of an operation that has not happened.
fn not_done(at: Box<At>, error: &io::Error) -> StoreError {
    use io::ErrorKind as Kind;
    let cause = Cause::text(error.to_string());
    match error.kind() {
        Kind::NotFound => StoreError::NotFound { at },
        Kind::PermissionDenied | Kind::ReadOnlyFilesystem => {
            StoreError::Denied { at, cause, hint: "let the gateway's user write to the directory" }
        }
        Kind::NotADirectory | Kind::IsADirectory => {
            StoreError::Denied { at, cause, hint: "a key must not continue another one with a slash" }
        }
        Kind::StorageFull | Kind::QuotaExceeded => {
            let cause = Cause::of_kind(Trouble::Full, error.to_string());
            StoreError::Unavailable { at, attempts: 1, cause }
        }
        _ => StoreError::Unavailable { at, attempts: 1, cause },
    }
}

/// The object has its name, but a power cut might still take it away.
fn unsynced(at: Box<At>, error: &io::Error) -> StoreError {
    let cause = Cause::text(format!("the directory could not be synced: {error}"));
    StoreError::Unknown { at, attempts: 1, cause }
}

fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

fn remove_leftovers(root: &Path) -> io::Result<()> {
    for entry in fs::read_dir(root.join(OWN))? {
        let entry = entry?;
        if !entry.file_name().to_string_lossy().starts_with("new-") {
            continue;
        }
        // If the clock was set back, a file looks young, and is only kept longer.
        let modified = entry.metadata().and_then(|meta| meta.modified()).ok();
        let age = modified.and_then(|modified| SystemTime::now().duration_since(modified).ok());
        if age.is_some_and(|age| age > TEMPORARY_AGE_MAX) {
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(())
}

/// A temporary file; deleted when dropped.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        // After a rename there is nothing left to remove; a leftover is removed when it is old enough.
        let _ = fs::remove_file(&self.0);
    }
}

impl Shared {
    fn at(&self, op: Op, key: &str) -> Box<At> {
        At::new(&self.place, op, key)
    }

    /// The error of an operation that has not happened. "Not here" is reported for an object only while the store
    /// itself is there: objects in an unmounted file system are not lost.
    fn not_done(&self, at: Box<At>, error: &io::Error) -> StoreError {
        match not_done(at, error) {
            StoreError::NotFound { at } if !self.is_there() => self.gone(at),
            other => other,
        }
    }

    fn is_there(&self) -> bool {
        self.root().join(OWN).is_dir()
    }

    fn gone(&self, at: Box<At>) -> StoreError {
        let text =
            format!("{} is gone, or is no store (it has no {OWN}): is its file system mounted?", self.path.display());
        StoreError::Unavailable { at, attempts: 1, cause: Cause::of_kind(Trouble::BucketMissing, text) }
    }

    /// Creates what is missing. Done once; several threads may do it at the same time.
    fn make_ready(&self) -> Result<(), StoreError> {
        if self.ready.get().is_some() {
            return Ok(());
        }
        let at = || self.at(Op::Open, OWN);
        // "Not here" is reported for objects only.
        let failed = |error: io::Error| match not_done(at(), &error) {
            StoreError::NotFound { at } => {
                StoreError::Unavailable { at, attempts: 1, cause: Cause::text(error.to_string()) }
            }
            other => other,
        };
        if self.existing {
            if !self.path.join(OWN).is_dir() {
                let cause = Cause::text(format!("{} is not there, or has no {OWN}", self.path.display()));
                let hint = "check the path; if it is right: is its file system mounted?";
                return Err(StoreError::Denied { at: at(), cause, hint });
            }
            let root = self.path.canonicalize().map_err(failed)?;
            self.ready.get_or_init(|| root);
            return Ok(());
        }
        // R1, R7: data in the store is in no journal any more.
        holdfast_folder::make(&self.path.join(OWN)).map_err(failed)?;
        let root = self.path.canonicalize().map_err(failed)?;
        remove_leftovers(&root).map_err(failed)?;
        make_lock(&root.join(OWN).join("swap.lock")).map_err(failed)?;
        for dir in [root.join(OWN), root.clone()] {
            sync_dir(&dir).map_err(failed)?;
        }
        self.ready.get_or_init(|| root);
        Ok(())
    }

    fn root(&self) -> &Path {
        self.ready.get().unwrap_or(&self.path)
    }

    /// The file of a checked key: `keys::check` refuses every key that could lead out of the directory.
    fn path(&self, key: &str) -> Result<PathBuf, StoreError> {
        keys::check(key)?;
        Ok(self.root().join(key))
    }

    fn write_temporary(&self, body: &[u8]) -> io::Result<Temporary> {
        let new = || Temporary(self.root().join(OWN).join(format!("new-{:032x}", rand::random::<u128>())));
        if body.len() >= DIRECT_BYTES_MIN && !self.through_cache.load(Ordering::Relaxed) {
            let temporary = new();
            if direct::create(&temporary.0, body)? {
                return Ok(temporary);
            }
            self.through_cache.store(true, Ordering::Relaxed);
        }
        let temporary = new();
        let mut file = File::options().write(true).create_new(true).open(&temporary.0)?;
        file.write_all(body)?;
        file.sync_all()?;
        Ok(temporary)
    }

    /// Makes sure that the directory of `path` exists, and that it survives a power cut.
    fn make_parents(&self, path: &Path) -> io::Result<()> {
        let Some(parent) = path.parent() else { return Ok(()) };
        if self.synced.locked().contains(parent) {
            return Ok(());
        }
        fs::create_dir_all(parent)?;
        // Another process may have created them, and may not have synced them yet.
        let mut dir = parent;
        while dir != self.root() {
            let Some(above) = dir.parent() else { break };
            sync_dir(above)?;
            dir = above;
        }
        self.synced.locked().insert(parent.to_owned());
        Ok(())
    }

    /// Gives the temporary file its name with `name`; repeats it once if somebody removed the directory meanwhile.
    fn give_name(&self, path: &Path, name: impl Fn(&Path) -> io::Result<()>) -> io::Result<()> {
        self.make_parents(path)?;
        match name(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.synced.locked().clear();
                self.make_parents(path)?;
                name(path)
            }
            other => other,
        }
    }

    fn sync_parent(&self, at: Box<At>, path: &Path) -> Result<(), StoreError> {
        sync_dir(path.parent().unwrap_or(self.root())).map_err(|error| unsynced(at, &error))
    }

    fn put_new(&self, op: Op, key: &str, body: &Bytes) -> Result<(), StoreError> {
        let at = || self.at(op, key);
        admit(at, key, body)?;
        let path = self.path(key)?;
        let temporary = self.write_temporary(body).map_err(|error| self.not_done(at(), &error))?;
        match self.give_name(&path, |path| fs::hard_link(&temporary.0, path)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let found = self.read(op, key).map_err(|error| self.taken(at(), &path, error))?;
                if found != *body {
                    let (found_bytes, expected_bytes) = (found.len() as u64, body.len() as u64);
                    return Err(StoreError::Exists { at: at(), found_bytes, expected_bytes });
                }
                // It is our own object. Its writer had synced the file, but perhaps not the directory yet.
            }
            Err(error) => return Err(self.not_done(at(), &error)),
        }
        self.sync_parent(at(), &path)
    }

    /// The name is taken, but there is no object to read.
    fn taken(&self, at: Box<At>, path: &Path, error: StoreError) -> StoreError {
        match error {
            StoreError::NotFound { .. } if path.is_dir() => self.not_done(at, &io::ErrorKind::IsADirectory.into()),
            StoreError::NotFound { .. } => {
                let cause = Cause::text("the name was taken, and was free again when looked at");
                StoreError::Unavailable { at, attempts: 1, cause }
            }
            other => other,
        }
    }

    fn read(&self, op: Op, key: &str) -> Result<Bytes, StoreError> {
        let failed = |error: io::Error| self.not_done(self.at(op, key), &error);
        let mut file = File::open(self.path(key)?).map_err(failed)?;
        let meta = file.metadata().map_err(failed)?;
        if !meta.is_file() {
            return Err(StoreError::NotFound { at: self.at(op, key) });
        }
        if meta.len() > OBJECT_BYTES_MAX as u64 {
            return Err(StoreError::TooLarge { at: self.at(op, key), found_bytes: meta.len() });
        }
        let mut body = Vec::with_capacity(meta.len() as usize);
        (&mut file).take(OBJECT_BYTES_MAX as u64).read_to_end(&mut body).map_err(failed)?;
        Ok(Bytes::from(body))
    }

    fn get_range(&self, key: &str, range: &Range<u64>) -> Result<Bytes, StoreError> {
        let at = || self.at(Op::Range, key);
        let Some(len) = admit_range(at, key, range)? else { return Ok(Bytes::new()) };
        let file = File::open(self.path(key)?).map_err(|error| self.not_done(at(), &error))?;
        let meta = file.metadata().map_err(|error| self.not_done(at(), &error))?;
        if !meta.is_file() {
            return Err(StoreError::NotFound { at: at() });
        }
        if meta.len() < range.end {
            return Err(StoreError::Length { at: at(), found_bytes: meta.len(), expected_bytes: range.end });
        }
        let mut body = vec![0; len];
        file.read_exact_at(&mut body, range.start).map_err(|error| self.not_done(at(), &error))?;
        Ok(Bytes::from(body))
    }

    fn delete(&self, key: &str) -> Result<(), StoreError> {
        let path = self.path(key)?;
        match fs::remove_file(&path) {
            Ok(()) => self.sync_parent(self.at(Op::Delete, key), &path),
            Err(error) => match self.not_done(self.at(Op::Delete, key), &error) {
                StoreError::NotFound { .. } => Ok(()),
                error => Err(error),
            },
        }
    }

    fn swap(&self, key: &str, expected: Option<&Version>, body: &Bytes) -> Result<Version, StoreError> {
        let at = || self.at(Op::Swap, key);
        admit(at, key, body)?;
        let path = self.path(key)?;
        let lock = File::open(self.root().join(OWN).join("swap.lock")).map_err(|error| self.not_done(at(), &error))?;
        // Released when the file is closed, also by a crash.
        lock.lock().map_err(|error| self.not_done(at(), &error))?;
        let found = match self.read(Op::Swap, key) {
            Ok(body) => Some(Version::of(&body)),
            Err(StoreError::NotFound { .. }) => None,
            Err(error) => return Err(error),
        };
        let version = Version::of(body);
        if found.as_ref() == Some(&version) {
            // Our own, from a call whose answer was lost.
            return self.sync_parent(at(), &path).map(|()| version);
        }
        if found.as_ref() != expected {
            return Err(StoreError::Changed { at: at(), found, expected: expected.cloned() });
        }
        if expected.is_none() {
            // Not with a rename: a put_new, which takes no lock, may come between.
            return match self.put_new(Op::Swap, key, body) {
                Err(StoreError::Exists { at, .. }) => {
                    let found = match self.read(Op::Swap, key) {
                        Ok(body) => Some(Version::of(&body)),
                        Err(StoreError::NotFound { .. }) => None,
                        Err(error) => return Err(error),
                    };
                    Err(StoreError::Changed { at, found, expected: None })
                }
                other => other.map(|()| version),
            };
        }
        let temporary = self.write_temporary(body).map_err(|error| self.not_done(at(), &error))?;
        let renamed = self.give_name(&path, |path| fs::rename(&temporary.0, path));
        renamed.map_err(|error| self.not_done(at(), &error))?;
        self.sync_parent(at(), &path)?;
        Ok(version)
    }

    fn list(&self, prefix: &str, after: Option<&str>) -> Result<ListPage, StoreError> {
        keys::check_prefix(prefix)?;
        if !self.is_there() {
            return Err(self.gone(self.at(Op::List, prefix)));
        }
        let mut first = First { prefix, after, smallest: BinaryHeap::new(), more: false };
        let top = prefix.rsplit_once('/').map_or("", |(dir, _)| dir);
        self.walk(top, &mut first).map_err(|error| self.not_done(self.at(Op::List, prefix), &error))?;
        let objects: Vec<Listed> =
            first.smallest.into_sorted_vec().into_iter().map(|(key, bytes)| Listed { key, bytes }).collect();
        let more = objects.last().filter(|_| first.more).map(|last| last.key.clone());
        Ok(ListPage { objects, more })
    }

    /// Offers every object below `dir` (a key without its last part, or empty) to `first`.
    fn walk(&self, dir: &str, first: &mut First<'_>) -> io::Result<()> {
        let entries = match fs::read_dir(self.root().join(dir)) {
            // It was never written to, or was removed meanwhile: it holds no object.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(());
            }
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            let key = if dir.is_empty() { name.to_owned() } else { format!("{dir}/{name}") };
            if keys::check(&key).is_err() {
                continue;
            }
            let kind = entry.file_type()?;
            if kind.is_dir() {
                let below = format!("{key}/");
                if below.starts_with(first.prefix) || first.prefix.starts_with(&below) {
                    self.walk(&key, first)?;
                }
            } else if kind.is_file() && first.wants(&key) {
                let bytes = match entry.metadata() {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    meta => meta?.len(),
                };
                first.offer(key, bytes);
            }
        }
        Ok(())
    }
}

/// The first of the requested objects in key order: directories are read in no order.
struct First<'a> {
    prefix: &'a str,
    after: Option<&'a str>,
    smallest: BinaryHeap<(String, u64)>,
    more: bool,
}

impl First<'_> {
    fn wants(&mut self, key: &str) -> bool {
        key.starts_with(self.prefix) && self.after.is_none_or(|after| key > after)
    }

    fn offer(&mut self, key: String, bytes: u64) {
        self.smallest.push((key, bytes));
        if self.smallest.len() > LIST_PAGE_OBJECTS {
            self.smallest.pop();
            self.more = true;
        }
    }
}

impl ObjectStore for Directory {
    fn place(&self) -> &str {
        &self.shared.place
    }

    fn put_new<'a>(&'a self, key: &'a str, body: Bytes) -> BoxFuture<'a, Result<(), StoreError>> {
        let owned = key.to_owned();
        Box::pin(self.run(Op::Put, key, move |shared| shared.put_new(Op::Put, &owned, &body)))
    }

    fn get_object<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Object, StoreError>> {
        let owned = key.to_owned();
        Box::pin(self.run(Op::Get, key, move |shared| {
            let body = shared.read(Op::Get, &owned)?;
            Ok(Object { version: Version::of(&body), body })
        }))
    }

    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        // Without the hash that the version needs.
        let owned = key.to_owned();
        Box::pin(self.run(Op::Get, key, move |shared| shared.read(Op::Get, &owned)))
    }

    fn get_range<'a>(&'a self, key: &'a str, range: Range<u64>) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        let owned = key.to_owned();
        Box::pin(self.run(Op::Range, key, move |shared| shared.get_range(&owned, &range)))
    }

    fn head<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Head, StoreError>> {
        let owned = key.to_owned();
        Box::pin(self.run(Op::Head, key, move |shared| {
            let body = shared.read(Op::Head, &owned)?;
            Ok(Head { bytes: body.len() as u64, version: Version::of(&body) })
        }))
    }

    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), StoreError>> {
        let owned = key.to_owned();
        Box::pin(self.run(Op::Delete, key, move |shared| shared.delete(&owned)))
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a str>) -> BoxFuture<'a, Result<ListPage, StoreError>> {
        let (owned, after) = (prefix.to_owned(), after.map(str::to_owned));
        Box::pin(self.run(Op::List, prefix, move |shared| shared.list(&owned, after.as_deref())))
    }

    fn swap<'a>(
        &'a self,
        key: &'a str,
        expected: Option<&'a Version>,
        body: Bytes,
    ) -> BoxFuture<'a, Result<Version, StoreError>> {
        let (owned, expected) = (key.to_owned(), expected.cloned());
        Box::pin(self.run(Op::Swap, key, move |shared| shared.swap(&owned, expected.as_ref(), &body)))
    }
}

/// Makes the lock for swaps, or takes from others what an earlier version gave them.
fn make_lock(path: &Path) -> io::Result<()> {
    let lock = File::options().create(true).append(true).mode(LOCK_MODE).open(path)?;
    let mode = lock.metadata()?.permissions().mode();
    // Only its owner can.
    let _ = lock.set_permissions(fs::Permissions::from_mode(mode & LOCK_MODE));
    Ok(())
}

#[cfg(test)]
#[path = "directory_tests.rs"]
mod tests;
