//! Health of a store over time, for people: the trouble, since when, and whether someone must act.
//!
//! It records every attempt, not every call: a call may continue for minutes before it gives up. The caller passes the
//! time.
//!
//! ```text
//!   attempt failed ── trouble of that request: since the first failure, as the last one said
//!   attempt done ──── ends the trouble of that request, and of its kin (all reads; all writes) unless it says something of that request alone
//!   object missing or damaged ── until nobody has met it for [`OBJECT_TROUBLE_MS`]
//!   credentials file not to be used ── until it is: the keys that it had may still work
//! ```

use crate::error::{Cause, Op, StoreError};
pub use crate::kind::Kind;
use holdfast_types::sync::LockExt;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// A missing or damaged object that was not met again for this long is no longer shown.
pub const OBJECT_TROUBLE_MS: u64 = 600_000;

/// Trouble that needs a person is shown first if it occurred at most this long before the newest trouble. If it is
/// older, its request has not been repeated, and the newer trouble is more informative.
pub const LEADS_MS: u64 = 30_000;

/// Characters of an error's text that are kept.
const TEXT_CHARS_MAX: usize = 600;

impl StoreError {
    /// The kind of trouble; `None` if the store worked correctly: the object was absent, another object was there, or
    /// the store was not asked at all.
    pub fn kind(&self) -> Option<Kind> {
        match self {
            StoreError::NotFound { .. }
            | StoreError::Exists { .. }
            | StoreError::Changed { .. }
            | StoreError::Key(_)
            | StoreError::Url(_) => None,
            StoreError::Unknown { cause, .. } | StoreError::Unavailable { cause, .. } => {
                Some(of_cause(cause, Kind::Failing))
            }
            StoreError::Denied { cause, .. } | StoreError::WrongRegion { cause, .. } => {
                Some(of_cause(cause, Kind::Denied))
            }
            StoreError::BucketMissing { .. } => Some(Kind::BucketMissing),
            StoreError::ClockSkew { .. } => Some(Kind::Clock),
            StoreError::Listing { .. } => Some(Kind::Unsupported),
            StoreError::Length { .. } => Some(Kind::Damaged),
            StoreError::TooLarge { at, .. } => (!at.op.writes()).then_some(Kind::Damaged),
        }
    }
}

fn of_cause(cause: &Cause, otherwise: Kind) -> Kind {
    if let Some(kind) = cause.kind {
        return kind;
    }
    match (cause.code.as_deref().unwrap_or_default(), cause.status.unwrap_or(0)) {
        ("QuotaExceeded" | "XMinioStorageFull", _) | (_, 507) => Kind::Full,
        ("SlowDown" | "Throttling" | "ThrottlingException" | "RequestLimitExceeded" | "TooManyRequests", _)
        | (_, 429) => Kind::Throttled,
        (
            "ExpiredToken"
            | "InvalidToken"
            | "InvalidTokenId"
            | "TokenRefreshRequired"
            | "InvalidAccessKeyId"
            | "SignatureDoesNotMatch"
            | "XAdminUserNotFound",
            _,
        ) => Kind::Credentials,
        ("NotImplemented", _) | (_, 501) => Kind::Unsupported,
        ("RequestTimeout" | "IncompleteBody" | "BadDigest" | "XAmzContentSHA256Mismatch", _) => Kind::Broken,
        _ => otherwise,
    }
}

/// Trouble, while it lasts or after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Kind of the last failure.
    pub kind: Kind,
    /// The last failure as text, with advice.
    pub error: String,
    /// The first failure in a row: wall clock in Unix milliseconds.
    pub since_unix_ms: u64,
    /// Time of the last failure.
    pub last_unix_ms: u64,
    /// Number of failures in a row.
    pub failures: u64,
}

/// Present and last trouble of a store, for display.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Present trouble. If there are several: one that needs a person and occurred within [`LEADS_MS`] of the newest,
    /// otherwise the newest.
    pub now: Option<Trouble>,
    /// The last trouble that has ended, and the time of its end.
    pub last: Option<(Trouble, u64)>,
}

#[derive(Debug, Default)]
struct State {
    requests: BTreeMap<&'static str, (Op, Trouble)>,
    object: Option<(String, Trouble)>,
    keys: Option<Trouble>,
    last: Option<(Trouble, u64)>,
}

/// See the module. One per set and gateway.
#[derive(Debug)]
pub struct Health {
    label: String,
    state: Mutex<State>,
}

impl Health {
    /// Health of the store of the set `label`.
    pub fn new(label: impl Into<String>) -> Self {
        Self { label: label.into(), state: Mutex::default() }
    }

    /// The label.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// One attempt of `op` ended; `failure` is `None` if the store worked correctly.
    pub fn attempt(&self, now_unix_ms: u64, op: Op, failure: Option<&StoreError>) {
        match failure.and_then(|error| Some((error, error.kind()?))) {
            Some((error, kind)) => self.failed(now_unix_ms, op, kind, error),
            None => self.done(now_unix_ms, op),
        }
    }

    fn failed(&self, now: u64, op: Op, kind: Kind, error: &StoreError) {
        metrics::counter!("holdfast_store_errors_total", "set" => self.label.clone(), "kind" => kind.name())
            .increment(1);
        let mut state = self.state.locked();
        let known = state.requests.get(op.name()).map(|(_, trouble)| (trouble.kind, trouble.since_unix_ms));
        if kind.needs_operator() && known.is_none_or(|(before, _)| before != kind) {
            tracing::error!(set = %self.label, kind = kind.name(), %error, "the store needs an operator; requests are retried until then");
        }
        let fresh = Trouble { kind, error: text(error), since_unix_ms: now, last_unix_ms: now, failures: 0 };
        let (_, trouble) = state.requests.entry(op.name()).or_insert((op, fresh));
        *trouble = Trouble {
            kind,
            error: text(error),
            since_unix_ms: trouble.since_unix_ms,
            last_unix_ms: now,
            failures: trouble.failures.saturating_add(1),
        };
    }

    fn done(&self, now: u64, op: Op) {
        let mut state = self.state.locked();
        if state.requests.is_empty() {
            return;
        }
        let over = |known: &Op, trouble: &Trouble| {
            *known == op || (known.writes() == op.writes() && trouble.kind.ends_with_kin())
        };
        let State { requests, last, .. } = &mut *state;
        requests.retain(|_, (known, trouble)| {
            let ends = over(known, trouble);
            if ends {
                end(&self.label, last, trouble, now);
            }
            !ends
        });
    }

    /// Notes an object that is missing although it must be there (`Missing`), or that differs from what was written
    /// (`Damaged`).
    pub fn object(&self, now_unix_ms: u64, key: &str, kind: Kind, error: &dyn std::fmt::Display) {
        metrics::counter!("holdfast_store_errors_total", "set" => self.label.clone(), "kind" => kind.name())
            .increment(1);
        let mut state = self.state.locked();
        let known = state.object.as_ref().filter(|(known, _)| known == key).map(|(_, trouble)| trouble);
        let (since_unix_ms, failures) = known.map_or((now_unix_ms, 1), |t| (t.since_unix_ms, t.failures + 1));
        let error = text(error);
        state.object =
            Some((key.to_owned(), Trouble { kind, error, since_unix_ms, last_unix_ms: now_unix_ms, failures }));
    }

    /// Notes why the credentials file cannot be used, or that it can. Called after each check of the file.
    pub(crate) fn credentials_file(&self, now_unix_ms: u64, why: Option<&str>) {
        let mut state = self.state.locked();
        let State { keys, last, .. } = &mut *state;
        let Some(why) = why else {
            if let Some(trouble) = keys.take() {
                *last = Some((trouble, now_unix_ms));
            }
            return;
        };
        let known = keys.as_ref().map_or((now_unix_ms, 1), |t| (t.since_unix_ms, t.failures.saturating_add(1)));
        let (since_unix_ms, failures) = known;
        let (kind, error) = (Kind::Credentials, text(&why));
        *keys = Some(Trouble { kind, error, since_unix_ms, last_unix_ms: now_unix_ms, failures });
    }

    /// Present and last trouble at `now_unix_ms`.
    pub fn standing(&self, now_unix_ms: u64) -> Standing {
        let mut state = self.state.locked();
        let stale = |t: &Trouble| now_unix_ms.saturating_sub(t.last_unix_ms) > OBJECT_TROUBLE_MS;
        if let Some((_, trouble)) = state.object.take_if(|(_, trouble)| stale(trouble)) {
            let at = trouble.last_unix_ms;
            end(&self.label, &mut state.last, &trouble, at);
        }
        let others = || state.object.as_ref().map(|(_, trouble)| trouble).into_iter().chain(&state.keys);
        let all = || state.requests.values().map(|(_, trouble)| trouble).chain(others());
        // Recent trouble is more informative than trouble of a request that was not repeated: a refused swap is
        // repeated only after a read of the head, and that read may be throttled for hours.
        let newest = all().map(|trouble| trouble.last_unix_ms).max().unwrap_or(0);
        let leads = |t: &Trouble| t.kind.needs_operator() && newest.saturating_sub(t.last_unix_ms) <= LEADS_MS;
        let object = |t: &Trouble| matches!(t.kind, Kind::Missing | Kind::Damaged);
        let now = all().max_by_key(|trouble| (leads(trouble) || object(trouble), trouble.last_unix_ms)).cloned();
        Standing { now, last: state.last.clone() }
    }
}

fn end(label: &str, last: &mut Option<(Trouble, u64)>, trouble: &Trouble, now: u64) {
    if trouble.kind.needs_operator() {
        let lasted_ms = now.saturating_sub(trouble.since_unix_ms);
        tracing::info!(set = label, kind = trouble.kind.name(), lasted_ms, "the store works again");
    }
    *last = Some((trouble.clone(), now));
}

fn text(error: &dyn std::fmt::Display) -> String {
    error.to_string().chars().take(TEXT_CHARS_MAX).collect()
}

#[cfg(test)]
#[path = "health_tests.rs"]
mod tests;
