//! Certificates that change while the process runs (ADR 0046).
//!
//! - **LIVE-C1** Each handshake, of a door and of a client, uses the files as they were read last. A connection that is
//!   open goes on as it was agreed.
//! - **LIVE-C2** Files that cannot be read or do not fit together change nothing: those that were read before stay in
//!   use. This is logged once, and told until it is over.
//! - **LIVE-C3** Certificate, key and authority change together, with all that was remembered of earlier connections:
//!   who was trusted before must show its certificate again.
//! - **LIVE-C4** A process that must not end for it begins without files that cannot be used. Until they can, every
//!   handshake of its doors and its clients fails with the reason; nothing goes on without TLS in their place.

use crate::error::TlsError;
use crate::expiry::{Expiry, Reminder};
use crate::load::{Loaded, Paths, Stamp};
use crate::revoked::Revocations;
use holdfast_types::sync::LockExt;
use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};

/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(3);

/// What handshakes use, and what is wrong with the files since.
#[derive(Clone)]
pub(crate) struct Current {
    /// `None`: they could not be used since the start (LIVE-C4).
    pub(crate) loaded: Option<Loaded>,
    pub(crate) trouble: Option<String>,
}

/// Files that are read again when they change.
pub(crate) struct Live {
    paths: Paths,
    current: watch::Sender<Current>,
    seen: Mutex<FileStamps>,
    /// Not of the files: they stay while these change.
    revocations: Revocations,
}

/// The files as they were.
struct FileStamps {
    /// When they were read.
    read: [Option<Stamp>; 3],
    /// When they were looked at last.
    looked: [Option<Stamp>; 3],
}

impl Live {
    /// Reads the files. They are not looked at again before [`Self::follow`].
    pub(crate) fn load(paths: Paths) -> Result<Arc<Self>, TlsError> {
        let (live, error) = Self::begin(paths);
        error.map_or(Ok(live), Err)
    }

    /// Like `load`; files that cannot be used are looked at until they can (LIVE-C4).
    pub(crate) fn load_or_later(paths: Paths) -> Arc<Self> {
        Self::begin(paths).0
    }

    fn begin(paths: Paths) -> (Arc<Self>, Option<TlsError>) {
        // Before they are read: a change meanwhile is found by the next look.
        let stamps = paths.stamps();
        let revocations = Revocations::default();
        let (loaded, error) = match paths.load(&revocations) {
            Ok(loaded) => (Some(loaded), None),
            Err(error) => (None, Some(error)),
        };
        let current = Current { loaded, trouble: error.as_ref().map(ToString::to_string) };
        let seen = Mutex::new(FileStamps { read: stamps, looked: stamps });
        (Arc::new(Self { paths, current: watch::Sender::new(current), seen, revocations }), error)
    }

    /// The certificates that count no more.
    pub(crate) fn revocations(&self) -> &Revocations {
        &self.revocations
    }

    /// What a handshake uses.
    ///
    /// # Errors
    /// LIVE-C4, for people.
    pub(crate) fn current(&self) -> io::Result<Loaded> {
        let current = self.current.borrow();
        current.loaded.clone().ok_or_else(|| {
            let why = current.trouble.as_deref().unwrap_or_default();
            io::Error::other(format!("the TLS files cannot be used: {why}"))
        })
    }

    /// When the certificates in use expire; of none nothing is known.
    pub(crate) fn expiry(&self) -> Expiry {
        let now = SystemTime::now();
        self.current.borrow().loaded.as_ref().map(|loaded| loaded.lives.expiry(now)).unwrap_or_default()
    }

    /// Why the files on the disk are not in use.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.current.borrow().trouble.clone()
    }

    /// What to tell a person now.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let now = SystemTime::now();
        let current = self.current.borrow();
        let changed = if current.loaded.is_some() { " changed and" } else { "" };
        let trouble = current.trouble.as_ref().map(|why| format!("the TLS files{changed} cannot be used: {why}"));
        let expiry = current.loaded.as_ref().map(|loaded| loaded.lives.expiry(now)).unwrap_or_default();
        trouble.into_iter().chain(expiry.warnings(now)).collect()
    }

    /// Reads the files if they have changed, or if `asked` to. Blocks.
    ///
    /// Files that change while they are looked at are being written: they are read once two looks have found the same.
    /// Bad ones are read at every look, since the reason may lie elsewhere (no file descriptors).
    pub(crate) fn look(&self, asked: bool) {
        let found = self.paths.stamps();
        let mut seen = self.seen.locked();
        let settled = found == seen.looked;
        seen.looked = found;
        let before = self.trouble();
        let due = asked || settled && (found != seen.read || before.is_some());
        if !due {
            return;
        }
        seen.read = found;
        let certificate = self.paths.certificate.display();
        match self.paths.load(&self.revocations) {
            Ok(loaded) => {
                let expires_unix = loaded.lives.expiry(SystemTime::now()).own;
                self.current.send_replace(Current { loaded: Some(loaded), trouble: None });
                tracing::info!(%certificate, expires_unix, "the TLS files were read again: new connections use them");
            }
            Err(error) => {
                let why = error.to_string();
                if before.as_ref() != Some(&why) {
                    let any = self.current.borrow().loaded.is_some();
                    let kept = if any { "those read before stay in use" } else { "no handshake succeeds" };
                    tracing::warn!(%certificate, why, "the TLS files cannot be used: {kept}");
                }
                self.current.send_modify(|current| current.trouble = Some(why));
            }
        }
    }

    /// Looks at the files again and again, and at once on SIGHUP; warns of certificates that expire soon.
    pub(crate) async fn follow(self: &Arc<Self>) -> Infallible {
        self.follow_every(LOOK_EVERY).await
    }

    async fn follow_every(self: &Arc<Self>, every: Duration) -> Infallible {
        let failed = |error: &std::io::Error| {
            tracing::warn!(%error, "cannot listen for SIGHUP: TLS files are not reloaded by it");
        };
        let mut hangup = signal(SignalKind::hangup()).inspect_err(failed).ok();
        let mut ticks = tokio::time::interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut reminder = Reminder::default();
        loop {
            let asked = tokio::select! {
                () = heard(&mut hangup) => true,
                _ = ticks.tick() => false,
            };
            let live = self.clone();
            if let Err(ended) = tokio::task::spawn_blocking(move || live.look(asked)).await
                && let Ok(panic) = ended.try_into_panic()
            {
                std::panic::resume_unwind(panic);
            }
            for why in reminder.due(self.expiry(), SystemTime::now(), Instant::now()) {
                tracing::warn!(certificate = %self.paths.certificate.display(), "{why}");
            }
        }
    }
}

/// Ends with the next SIGHUP.
async fn heard(hangup: &mut Option<Signal>) {
    if let Some(signal) = hangup
        && signal.recv().await.is_some()
    {
        return;
    }
    std::future::pending().await
}

#[cfg(test)]
#[path = "live_tests.rs"]
mod tests;
