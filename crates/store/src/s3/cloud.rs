//! Credentials of a cloud that a store signs with: when they are asked for, and what is told of it.

use super::chain::{Chain, Found};
use crate::health::Health;
use crate::renewal::{Need, Renewal};
use holdfast_host::unix_ms;
use holdfast_types::sync::LockExt;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// How long one search may take, with all providers. A program that a profile names is then left to itself.
const SEARCH_LIMIT: Duration = Duration::from_secs(60);

/// Searches in vain, in a row, until it is told as trouble while the known keys still hold: a single answer that was
/// lost is none.
const VAIN_TOLD: u32 = 3;

/// See the module.
#[derive(Debug)]
pub(super) struct Cloud {
    chain: Chain,
    /// The store of the keys, for the log.
    place: Arc<str>,
    health: Option<Arc<Health>>,
    /// At most one search at a time.
    pub turns: Arc<Semaphore>,
    seen: Mutex<CloudState>,
}

#[derive(Debug, Default)]
struct CloudState {
    renewal: Renewal,
    known: Option<Found>,
    /// The result of the last search, if it was in vain.
    why: Option<String>,
    told: bool,
}

impl Cloud {
    pub(super) fn new(chain: Chain, place: Arc<str>, health: Option<Arc<Health>>) -> Self {
        Self { chain, place, health, turns: Arc::new(Semaphore::new(1)), seen: Mutex::default() }
    }

    pub(super) fn need(&self) -> Need {
        self.seen.locked().renewal.need(unix_ms())
    }

    pub(super) fn may_ask(&self) -> bool {
        self.seen.locked().renewal.may_ask(unix_ms())
    }

    /// The source of the keys that are known, for a person.
    pub(super) fn about(&self) -> Option<String> {
        self.seen.locked().known.as_ref().map(Found::about)
    }

    /// Why there are no keys.
    pub(super) fn why(&self) -> String {
        let why = self.seen.locked().why.clone();
        why.unwrap_or_else(|| "the providers of credentials have not answered yet".to_owned())
    }

    /// Asks the providers. `adopt` is called with what is to be signed with from now on, if it is news. The caller has
    /// the turn.
    pub(super) async fn search(&self, adopt: impl FnOnce(&Found)) {
        let outcome = timeout(SEARCH_LIMIT, self.chain.ask()).await;
        let late = || Err(format!("found no credentials: no answer within {} s", SEARCH_LIMIT.as_secs()));
        let chance = rand::random();
        match outcome.unwrap_or_else(|_| late()) {
            Ok(found) => self.found(unix_ms(), chance, found, adopt),
            Err(why) => self.failed(unix_ms(), chance, why),
        }
    }

    fn found(&self, now: u64, chance: u32, found: Found, adopt: impl FnOnce(&Found)) {
        let news = self.seen.locked().known.as_ref().is_none_or(|known| known.keys != found.keys);
        if news {
            // Before anybody is told that there are keys.
            adopt(&found);
            let store = &*self.place;
            tracing::info!(store, credentials = %found.about(), "requests are signed with these credentials from now on");
        }
        let mut seen = self.seen.locked();
        seen.renewal.found(now, found.ends, news, chance);
        seen.known = Some(found);
        seen.why = None;
        if std::mem::take(&mut seen.told)
            && let Some(health) = &self.health
        {
            health.credentials_file(now, None);
        }
    }

    /// The known keys stay in use (CREDS-K1).
    fn failed(&self, now: u64, chance: u32, why: String) {
        let mut seen = self.seen.locked();
        seen.renewal.failed(now, chance);
        let again = seen.why.as_ref() == Some(&why);
        let about = seen.known.as_ref().map(Found::about);
        if !again {
            match &about {
                Some(known) => {
                    tracing::warn!(store = &*self.place, %why, %known, "no new credentials: requests are signed with the known ones; retrying");
                }
                None => tracing::warn!(store = &*self.place, %why, "no credentials yet; retrying"),
            }
        }
        // Without any, each request fails and says so.
        if let (Some(known), Some(health)) = (about, &self.health)
            && seen.renewal.vain() >= VAIN_TOLD
        {
            let text = format!("no new credentials: {why}; until there are, requests are signed with {known}");
            health.credentials_file(now, Some(text.as_str()));
            seen.told = true;
        }
        seen.why = Some(why);
    }
}

impl Drop for Cloud {
    /// Nobody asks any more, so nobody else would end the trouble.
    fn drop(&mut self) {
        if self.seen.locked().told
            && let Some(health) = &self.health
        {
            health.credentials_file(unix_ms(), None);
        }
    }
}
