//! The list of revoked certificates at a process that has no part in group 0: an agent, a standby, an attach (ADR
//! 0049).
//!
//! ```text
//!   gateways ◀─ each second ─ RevocationCache ─▶ Revocations: doors, and what dials
//!                                    └─────────▶ FILE, for the next start
//! ```
//! - **REVOKE-V3** No answer, or one that is not whole, is not an empty list: what a gateway has named is forgotten
//!   only once it does not name it any more, or once more than half of the gateways that are asked do not. So neither a
//!   gateway that is cut off nor one whose certificate is revoked takes anything off the list.
//! - **REVOKE-V4** The list outlives the process. A file that is there and cannot be read is not an empty list: until
//!   more than half of the gateways have told theirs, a door takes no certificate. What dials does: a gateway has to be
//!   asked.

use crate::dial::Dialer;
use crate::files;
use crate::revoked::{Revocations, Revoked};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::task::{JoinHandle, JoinSet};

/// Most entries of the list of one gateway; as group 0.
pub const LIST_MAX: usize = 1024;

/// Most entries of all gateways together: of a whole cluster with full lists.
const ENTRIES_MAX: usize = 32 * LIST_MAX;

/// Most bytes of an entry; as group 0.
const TEXT_BYTES_MAX: usize = 512;

/// Most bytes of the file.
const FILE_BYTES_MAX: u64 = 32 << 20;

/// Pause between two rounds of questions.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// Time limit of one question. A gateway that does not answer holds the others up for so long.
const ASK_LIMIT: Duration = Duration::from_secs(2);

/// What one gateway says.
#[derive(Clone, Debug, Default)]
pub struct RevocationReply {
    /// [`Revoked::digest`] of its whole list.
    pub digest: String,
    /// Its list; empty if it is the one that was known.
    pub list: Revoked,
}

/// The list of a gateway as it was told last; also in the file.
#[derive(Clone, Serialize, Deserialize)]
struct Word {
    /// Of the rest: a file that lost a part of it is not taken for a shorter list.
    digest: String,
    serials: BTreeSet<String>,
    names: BTreeSet<String>,
}

impl Word {
    fn len(&self) -> usize {
        self.serials.len() + self.names.len()
    }
}

/// The words of gateways, by their addresses.
type Words = BTreeMap<String, Word>;

/// The digest of each gateway's word.
type Digests = BTreeMap<String, String>;

/// Which words these are.
fn digests(words: &Words) -> Digests {
    words.iter().map(|(address, word)| (address.clone(), word.digest.clone())).collect()
}

/// See the module.
pub struct RevocationCache {
    revocations: Revocations,
    file: PathBuf,
    words: Words,
    /// REVOKE-V4.
    unread: bool,
    /// What the file has, as [`digests`]; empty without a file, `None` if it cannot be read.
    stored: Option<Digests>,
    /// What is being written to it: the disk may hang.
    storing: Option<(Digests, JoinHandle<io::Result<()>>)>,
    /// The last write failed, and that was logged.
    failing: bool,
    /// Gateways whose last question failed, and that was logged.
    silent: BTreeSet<String>,
}

impl RevocationCache {
    /// Reads the file. What is on it counts from now on: call this before a door opens and before anything is dialled.
    /// `None`: the process has no certificate.
    pub fn open(dialer: &Dialer, file: PathBuf) -> Option<Self> {
        let revocations = dialer.revocations()?;
        let mut kept = Self {
            revocations,
            file,
            words: Words::new(),
            unread: false,
            stored: None,
            storing: None,
            failing: false,
            silent: BTreeSet::new(),
        };
        match read(&kept.file) {
            Ok(words) => {
                kept.stored = Some(digests(&words));
                kept.words = words;
            }
            Err(error) => {
                kept.unread = true;
                let file = kept.file.display();
                tracing::error!(
                    %file,
                    %error,
                    "the list of revoked certificates cannot be read: no certificate is taken here until more than half of the gateways tell it. \
                     Of a pair only one answers: there the file may be deleted while this process is stopped, which forgets the list"
                );
            }
        }
        kept.revocations.replace(kept.list());
        Some(kept)
    }

    /// Whether the list in this file is whole, or there is none.
    ///
    /// # Errors
    /// It cannot be read, or lost a part.
    pub fn check(file: &Path) -> io::Result<()> {
        read(file).map(drop)
    }

    /// Asks the gateways at these addresses, which may change, again and again. `ask` asks the one at an address, and
    /// says the digest of what it told last.
    pub async fn follow<F>(
        mut self,
        addresses: impl Fn() -> Vec<String> + Send + Sync,
        ask: impl Fn(String, String) -> F + Send + Sync,
    ) -> Infallible
    where
        F: Future<Output = Result<RevocationReply, String>> + Send + 'static,
    {
        loop {
            self.round(addresses(), &ask).await;
            tokio::time::sleep(ASK_EVERY).await;
        }
    }

    /// One question to each. What one says counts at once.
    async fn round<F>(&mut self, addresses: Vec<String>, ask: impl Fn(String, String) -> F)
    where
        F: Future<Output = Result<RevocationReply, String>> + Send + 'static,
    {
        let (mut asked, mut answered, count) = (JoinSet::new(), BTreeSet::new(), addresses.len());
        for address in addresses {
            let known = self.words.get(&address).map(|word| word.digest.clone()).unwrap_or_default();
            let asking = ask(address.clone(), known);
            asked.spawn(async move {
                let told = tokio::time::timeout(ASK_LIMIT, asking).await;
                (address, told.unwrap_or_else(|_| Err(format!("nothing within {ASK_LIMIT:?}"))))
            });
        }
        while let Some(ended) = asked.join_next().await {
            let (address, told) = match ended {
                Ok(done) => done,
                // A panic is a broken invariant and must not be lost.
                Err(ended) => match ended.try_into_panic() {
                    Ok(panic) => std::panic::resume_unwind(panic),
                    Err(_) => continue,
                },
            };
            match told.and_then(|told| self.take(&address, told)) {
                Ok(()) => {
                    self.silent.remove(&address);
                    self.count();
                    answered.insert(address);
                }
                Err(why) if self.silent.insert(address.clone()) => {
                    tracing::info!(address, why, "a gateway does not tell which certificates are revoked");
                }
                Err(_) => {}
            }
        }
        // REVOKE-V3: a revocation has reached more than half, so one of these.
        if answered.len() * 2 > count {
            self.words.retain(|address, _| answered.contains(address));
            self.unread = false;
            self.count();
        }
        self.store().await;
    }

    /// The word of one gateway (REVOKE-V3).
    fn take(&mut self, address: &str, told: RevocationReply) -> Result<(), String> {
        if self.words.get(address).is_some_and(|word| word.digest == told.digest) {
            return Ok(());
        }
        let RevocationReply { digest, list } = told;
        if list.digest() != digest {
            return Err("found a part of its list, expected the whole".to_string());
        }
        let is_long = |one: &String| one.len() > TEXT_BYTES_MAX;
        if list.len() > LIST_MAX || list.serials.iter().chain(&list.names).any(is_long) {
            let found = list.len();
            return Err(format!("found {found} entries, expected at most {LIST_MAX} of {TEXT_BYTES_MAX} bytes"));
        }
        let others: usize = self.words.iter().filter(|(known, _)| *known != address).map(|(_, word)| word.len()).sum();
        if others + list.len() > ENTRIES_MAX {
            return Err(format!("found more than {ENTRIES_MAX} entries of all gateways together"));
        }
        let Revoked { serials, names, .. } = list;
        self.words.insert(address.to_string(), Word { digest, serials, names });
        Ok(())
    }

    /// What all of them name.
    fn list(&self) -> Revoked {
        let mut list = Revoked { unread: self.unread, ..Revoked::default() };
        for word in self.words.values() {
            list.serials.extend(word.serials.iter().cloned());
            list.names.extend(word.names.iter().cloned());
        }
        list
    }

    fn count(&self) {
        self.revocations.replace(self.list());
    }

    /// Has the file written if it has something else. Nothing waits for the disk.
    async fn store(&mut self) {
        if let Some((words, storing)) = self.storing.take() {
            if !storing.is_finished() {
                self.storing = Some((words, storing));
                return;
            }
            let done = storing.await.unwrap_or_else(|ended| Err(io::Error::other(ended)));
            match &done {
                Ok(()) => self.stored = Some(words),
                Err(error) if !self.failing => {
                    let file = self.file.display();
                    tracing::error!(%file, %error, "the list of revoked certificates cannot be written: a restart forgets what is new on it");
                }
                Err(_) => {}
            }
            self.failing = done.is_err();
        }
        let words = digests(&self.words);
        // A file that could not be read is left to people until it is known what is on the list.
        if !self.unread && self.stored.as_ref() != Some(&words) {
            let (file, content) = (self.file.clone(), self.words.clone());
            self.storing = Some((words, tokio::task::spawn_blocking(move || write(&file, &content))));
        }
    }
}

/// Empty: there is no file yet.
fn read(path: &Path) -> io::Result<Words> {
    let text = match files::read_text(path, FILE_BYTES_MAX) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Words::new()),
        Err(error) => return Err(error),
    };
    let words: Words = serde_json::from_str(&text).map_err(io::Error::other)?;
    for (address, word) in &words {
        let list = Revoked { serials: word.serials.clone(), names: word.names.clone(), unread: false };
        if list.digest() != word.digest {
            let why = format!("found a part of the list of {address}, expected the whole");
            return Err(io::Error::new(ErrorKind::InvalidData, why));
        }
    }
    Ok(words)
}

/// Replaces the file: after a power cut it is the one or the other.
fn write(path: &Path, words: &Words) -> io::Result<()> {
    let next = path.with_extension("next");
    let text = serde_json::to_string(words).map_err(io::Error::other)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::from(ErrorKind::FileTooLarge));
    }
    let mut file = File::create(&next)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&next, path)?;
    match path.parent() {
        Some(above) if !above.as_os_str().is_empty() => File::open(above)?.sync_all(),
        _ => Ok(()),
    }
}

#[cfg(test)]
#[path = "revocation_cache_tests.rs"]
mod tests;
