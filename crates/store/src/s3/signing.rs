//! The keys that sign requests: fixed keys, a profile of a file that is read again when it changes, or credentials of a
//! cloud that are asked for again before they end.
//!
//! ```text
//!   a request ── the last look is old? ── look ── as it was ─────────────────▶ the keys that are known
//!                                          └───── changed: read ── whole ────▶ its keys, from this request on
//!                                                             └─── not whole ─▶ the keys that are known; told
//!   its keys are refused ── read, whatever the look would say ── other keys? ─▶ the request once more, with those
//!
//!   a request ── keys of a cloud: hold ───────────────────────▶ the keys that are known
//!             ├─ end soon: somebody asks beside it ───────────▶ the keys that are known
//!             └─ none, or ended: it waits, SEARCH_WAIT at most ▶ new ones, else those that are known, else refused
//! ```
//! CREDS-K1  Keys are replaced only by other keys: if the file is missing, half-written or without the profile, the
//!     known keys stay in use.
//! CREDS-K2  At most one thread reads the file, however slow the file system is, and no request waits for it longer
//!     than [`LOOK_LIMIT`]. At most one search asks a cloud, and no request waits for it longer than [`SEARCH_WAIT`].
//! CREDS-K3  A provider of a cloud that is set up and fails ends the search: the next one may be another identity. Only
//!     one that is not set up is passed over.
//! CREDS-K4  Metadata servers are asked directly, never through a proxy: a proxy would hand out its own machine's role.

use super::chain::{Chain, Found};
use super::cloud::Cloud;
use crate::credentials::{DEFAULT_PROFILE, KeySource, Keys, parse};
use crate::health::Health;
use crate::options::StoreOptions;
use crate::renewal::Need;
use crate::url_error::StoreUrlError;
use crate::url_error::{CREDENTIALS_BYTES_MAX, CredentialsProblem};
use aws_sdk_s3::Client;
use aws_sdk_s3::config::{Builder, Credentials, IdentityCache, Region};
use holdfast_host::unix_ms;
use holdfast_tls::files::check_live;
use holdfast_types::sync::{LockExt, RwLockExt};
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// How long a request waits for the file. A local file needs a thousandth of it.
const LOOK_LIMIT: Duration = Duration::from_secs(1);

/// How long a request waits for credentials of a cloud: less than an attempt may take (`store.read_timeout_ms`).
const SEARCH_WAIT: Duration = Duration::from_secs(8);

/// Keys, and the client that signs with them.
#[derive(Debug)]
pub(super) struct Signing {
    /// Signs with these keys and no others.
    pub client: Client,
    keys: Keys,
    /// Counts the keys of this store.
    number: u64,
}

impl Signing {
    /// `region`: none if the base has it.
    fn new(base: &Builder, keys: Keys, region: Option<String>, number: u64) -> Self {
        let token = keys.token.as_ref().map(|token| token.reveal().to_owned());
        let credentials = Credentials::new(&keys.id, keys.secret.reveal(), token, None, "holdfast");
        // The connections belong to the base, and are kept.
        let mut config = base.clone().credentials_provider(credentials);
        if let Some(region) = region {
            config = config.region(Region::new(region));
        }
        Self { client: Client::from_conf(config.build()), keys, number }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Signer {
    /// Everything of a client except the keys.
    base: Builder,
    /// None: a cloud has not answered yet.
    now: RwLock<Option<Arc<Signing>>>,
    from: Source,
}

/// Where the keys come from.
#[derive(Debug)]
enum Source {
    Given,
    File(Watched),
    Cloud(Cloud),
}

/// What a signer asks a cloud for.
pub(super) struct Asking<'a> {
    /// The region that is named for the store.
    pub region: Option<String>,
    /// The store's; none for AWS itself.
    pub endpoint: Option<&'a str>,
    pub options: &'a StoreOptions,
}

/// The file that the keys come from.
#[derive(Debug)]
struct Watched {
    path: PathBuf,
    profile: String,
    /// Interval between two checks.
    every: Duration,
    /// The store of the keys, for the log.
    place: Arc<str>,
    health: Option<Arc<Health>>,
    /// CREDS-K2.
    turns: Arc<Semaphore>,
    seen: Mutex<FileState>,
}

#[derive(Debug)]
struct FileState {
    /// When the last check began.
    looked: Instant,
    /// When the last read began.
    read: Instant,
    /// State of the file when it was last read completely, whatever its content.
    stamp: Option<Stamp>,
    /// The problem found then.
    problem: Option<CredentialsProblem>,
    /// The problem that was reported.
    told: Option<String>,
}

/// The marks of a state of the file. A change that none of them shows is found when the keys are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    file: (u64, u64),
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(meta: &Metadata) -> Self {
        Self {
            file: (meta.dev(), meta.ino()),
            bytes: meta.len(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        }
    }
}

fn unreadable(error: &std::io::Error) -> CredentialsProblem {
    CredentialsProblem::Unreadable { found: error.to_string() }
}

/// The present state of the file.
fn stamp(path: &Path) -> Result<Stamp, CredentialsProblem> {
    let meta = std::fs::metadata(path).map_err(|e| unreadable(&e))?;
    // A pipe could block, and would be empty at the second read.
    if !meta.is_file() {
        return Err(CredentialsProblem::NoFile);
    }
    if meta.len() > CREDENTIALS_BYTES_MAX {
        return Err(CredentialsProblem::TooLarge { found_bytes: meta.len() });
    }
    Ok(Stamp::of(&meta))
}

/// The whole file. Reads only as much as shows that the file is too long, whatever its length was before.
fn bounded(file: impl Read) -> Result<Vec<u8>, CredentialsProblem> {
    let mut bytes = Vec::new();
    file.take(CREDENTIALS_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|e| unreadable(&e))?;
    match bytes.len() as u64 {
        found_bytes if found_bytes > CREDENTIALS_BYTES_MAX => Err(CredentialsProblem::TooLarge { found_bytes }),
        _ => Ok(bytes),
    }
}

/// The content, and the state of the file meanwhile.
fn read(path: &Path) -> Result<(Stamp, String), CredentialsProblem> {
    stamp(path)?;
    let file = File::open(path).map_err(|e| unreadable(&e))?;
    let like = || file.metadata().map(|meta| Stamp::of(&meta)).map_err(|e| unreadable(&e));
    let before = like()?;
    check_live(&file).map_err(|error| CredentialsProblem::Exposed { found: error.to_string() })?;
    let bytes = bounded(&file)?;
    if like()? != before {
        return Err(CredentialsProblem::Changing);
    }
    let text = String::from_utf8(bytes).map_err(|_| CredentialsProblem::NoText)?;
    Ok((before, text))
}

/// The present keys of a source. Reads the file, if there is one: may block.
///
/// # Errors
/// The file cannot be used.
pub(crate) fn present(source: KeySource) -> Result<Keys, StoreUrlError> {
    match source {
        KeySource::Given(keys) => Ok(keys),
        KeySource::Profile { path, name } => {
            let found = read(&path).and_then(|(_, text)| parse(&text, &name));
            found.map_err(|problem| StoreUrlError::CredentialsFile { path, problem })
        }
        KeySource::Chain { .. } => {
            Err(StoreUrlError::NoCredentials { tried: "the providers of a cloud were not asked".to_owned() })
        }
    }
}

/// Whether a file of access keys can be used: whole, in the format, and of nobody else. It may lack the default
/// profile, because URLs of stores may name others. Reads the file: may block.
pub fn check_credentials_file(path: &Path) -> Result<(), CredentialsProblem> {
    let (_, text) = read(path)?;
    match parse(&text, DEFAULT_PROFILE) {
        Ok(_) | Err(CredentialsProblem::NoProfile { .. }) => Ok(()),
        Err(problem) => Err(problem),
    }
}

impl Watched {
    fn seen(&self) -> MutexGuard<'_, FileState> {
        self.seen.locked()
    }

    fn is_due(&self) -> bool {
        self.seen().looked.elapsed() >= self.every
    }

    /// The keys of the file, if it was read and they must be used from now on.
    fn look(&self, whatever: bool) -> Option<Keys> {
        let began = Instant::now();
        let known = {
            let mut seen = self.seen();
            seen.looked = began;
            seen.stamp
        };
        if !whatever && known.is_some() && stamp(&self.path).ok() == known {
            // The problem remains, or a file that once did not answer was read in the end.
            let problem = self.seen().problem.clone();
            self.tell(problem.map(|problem| problem.to_string()));
            return None;
        }
        self.seen().read = began;
        let (stamp, outcome) = match read(&self.path) {
            Ok((stamp, text)) => (Some(stamp), parse(&text, &self.profile)),
            Err(problem) => (None, Err(problem)),
        };
        let problem = outcome.as_ref().err().cloned();
        {
            let mut seen = self.seen();
            seen.stamp = stamp;
            seen.problem = problem.clone();
        }
        // The file is being written: the next check finds it complete, or reports it.
        if problem != Some(CredentialsProblem::Changing) {
            self.tell(problem.map(|problem| problem.to_string()));
        }
        outcome.ok()
    }

    /// CREDS-K1: reports a problem, or its end: in the log once, and in the store's trouble as long as it lasts.
    fn tell(&self, why: Option<String>) {
        let before = std::mem::replace(&mut self.seen().told, why.clone());
        let (store, file, profile) = (&*self.place, self.path.display(), &*self.profile);
        match (&before, &why) {
            (_, Some(why)) if before.as_ref() != Some(why) => {
                tracing::warn!(store, %file, profile, %why, "the credentials file cannot be used: requests are signed with its earlier keys");
            }
            (Some(_), None) => tracing::info!(store, %file, profile, "the credentials file can be used again"),
            _ => {}
        }
        if let Some(health) = &self.health {
            let text = why.map(|why| {
                format!(
                    "credentials file {file}, profile [{profile}]: {why}; until that is put right, requests are signed with the keys that it had before"
                )
            });
            health.credentials_file(unix_ms(), text.as_deref());
        }
    }
}

impl Drop for Watched {
    /// Nobody checks the file any more, so nobody else would end the trouble.
    fn drop(&mut self) {
        let told = self.seen().told.take();
        if let (Some(_), Some(health)) = (told, &self.health) {
            health.credentials_file(unix_ms(), None);
        }
    }
}

impl Signer {
    /// A signer with the present keys; reads the file, if there is one. A cloud is asked by the first request. `base`
    /// is a client without keys.
    ///
    /// # Errors
    /// The file cannot be used, or proxy or certificates cannot.
    pub(super) fn open(
        base: Builder,
        source: KeySource,
        asking: Asking<'_>,
        place: &Arc<str>,
        health: Option<Arc<Health>>,
    ) -> Result<Arc<Self>, StoreUrlError> {
        // The SDK would keep keys without an expiry for a quarter of an hour. Our keys are in memory, so nothing needs
        // to be cached.
        let base = base.identity_cache(IdentityCache::no_cache());
        let Asking { region, endpoint, options } = asking;
        let (keys, from) = match source {
            KeySource::Given(keys) => (Some(keys), Source::Given),
            KeySource::Profile { path, name: profile } => {
                let began = Instant::now();
                let found = read(&path).and_then(|(stamp, text)| Ok((stamp, parse(&text, &profile)?)));
                let (stamp, keys) = match found {
                    Ok(found) => found,
                    Err(problem) => return Err(StoreUrlError::CredentialsFile { path, problem }),
                };
                let seen = FileState { looked: began, read: began, stamp: Some(stamp), problem: None, told: None };
                let (place, turns, seen) = (place.clone(), Arc::new(Semaphore::new(1)), Mutex::new(seen));
                let every = options.credentials_look;
                (Some(keys), Source::File(Watched { path, profile, every, place, health, turns, seen }))
            }
            KeySource::Chain { profile, alone } => {
                let chain = Chain::new(profile, alone, region, endpoint, options)?;
                (None, Source::Cloud(Cloud::new(chain, place.clone(), health)))
            }
        };
        let now = RwLock::new(keys.map(|keys| Arc::new(Signing::new(&base, keys, None, 1))));
        Ok(Arc::new(Self { base, now, from }))
    }

    fn now(&self) -> Option<Arc<Signing>> {
        self.now.reading().clone()
    }

    /// The number of the present keys, 0 if there are none.
    fn number(&self) -> u64 {
        self.now().map_or(0, |now| now.number)
    }

    /// The source of the keys and their id, for a person.
    pub(super) fn about(&self) -> Option<String> {
        let key = |now: Arc<Signing>| now.keys.id.clone();
        match &self.from {
            Source::Given => Some(format!("access keys that are set, key {}", self.now().map(key)?)),
            Source::File(watched) => {
                let (file, profile) = (watched.path.display(), &watched.profile);
                Some(format!("{file}, profile [{profile}], key {}", self.now().map(key)?))
            }
            Source::Cloud(cloud) => cloud.about(),
        }
    }

    /// The keys for the next request.
    ///
    /// # Errors
    /// There are none, and why.
    pub(super) async fn signing(self: &Arc<Self>) -> Result<Arc<Signing>, String> {
        match &self.from {
            Source::Given => {}
            Source::File(watched) if watched.is_due() => {
                // While one caller checks the file, the others continue with the known keys.
                if let Ok(turn) = watched.turns.clone().try_acquire_owned() {
                    self.look(watched, turn, false).await;
                }
            }
            Source::File(_) => {}
            Source::Cloud(cloud) => match cloud.need() {
                Need::Nothing | Need::Rest => {}
                Need::Renew => {
                    if let Ok(turn) = cloud.turns.clone().try_acquire_owned() {
                        drop(self.search(turn));
                    }
                }
                Need::Wait => self.searched(cloud, || cloud.need() == Need::Wait).await,
            },
        }
        let none = || match &self.from {
            Source::Cloud(cloud) => cloud.why(),
            Source::Given | Source::File(_) => "found no keys".to_owned(),
        };
        self.now().ok_or_else(none)
    }

    /// Other keys to sign with, after the keys of `refused` were refused.
    pub(super) async fn instead_of(self: &Arc<Self>, refused: &Signing) -> Option<Arc<Signing>> {
        let asked = Instant::now();
        if self.number() == refused.number {
            match &self.from {
                Source::Given => return None,
                Source::File(watched) => {
                    let turn = timeout(LOOK_LIMIT, watched.turns.clone().acquire_owned()).await.ok()?.ok()?;
                    // Of many requests that were refused together, one reads the file.
                    let read_since = watched.seen().read >= asked;
                    if !read_since {
                        self.look(watched, turn, true).await;
                    }
                }
                Source::Cloud(cloud) => {
                    self.searched(cloud, || cloud.may_ask() && self.number() == refused.number).await;
                }
            }
        }
        self.now().filter(|now| now.number != refused.number)
    }

    /// Waits for an answer of the cloud, but not for long. Of many that wait together, one asks: `still` says whether
    /// it is needed when its turn has come.
    async fn searched(self: &Arc<Self>, cloud: &Cloud, still: impl Fn() -> bool) {
        let waiting = async {
            let Ok(turn) = cloud.turns.clone().acquire_owned().await else { return };
            if still() {
                // What is too late for this request is used for later ones.
                let _ = self.search(turn).await;
            }
        };
        let _ = timeout(SEARCH_WAIT, waiting).await;
    }

    /// Asks the cloud in a task of its own.
    fn search(self: &Arc<Self>, turn: OwnedSemaphorePermit) -> JoinHandle<()> {
        let signer = self.clone();
        tokio::spawn(async move {
            let _turn = turn;
            if let Source::Cloud(cloud) = &signer.from {
                cloud.search(|found| signer.sign_as(found)).await;
            }
        })
    }

    fn sign_as(&self, found: &Found) {
        let mut now = self.now.writing();
        let number = now.as_ref().map_or(0, |now| now.number) + 1;
        *now = Some(Arc::new(Signing::new(&self.base, found.keys.clone(), found.region.clone(), number)));
    }

    /// Checks the file on a thread that may block. A result that is too late for this request is used for later ones.
    async fn look(self: &Arc<Self>, watched: &Watched, turn: OwnedSemaphorePermit, whatever: bool) {
        let signer = self.clone();
        let looking = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            if let Source::File(watched) = &signer.from
                && let Some(keys) = watched.look(whatever)
            {
                signer.adopt(watched, keys);
            }
        });
        if timeout(LOOK_LIMIT, looking).await.is_err() {
            watched.tell(Some(format!("no answer within {} ms: is its file system there?", LOOK_LIMIT.as_millis())));
        }
    }

    fn adopt(&self, watched: &Watched, keys: Keys) {
        let mut now = self.now.writing();
        if now.as_ref().is_some_and(|now| now.keys == keys) {
            return;
        }
        let number = now.as_ref().map_or(0, |now| now.number) + 1;
        *now = Some(Arc::new(Signing::new(&self.base, keys, None, number)));
        let (store, file, profile) = (&*watched.place, watched.path.display(), &*watched.profile);
        tracing::info!(store, %file, profile, "the credentials file has new keys: requests are signed with them from now on");
    }
}

#[cfg(test)]
#[path = "signing_tests.rs"]
mod tests;
