//! What a scrubber has: its settings, its position, and the root that it reads.

use super::book::Book;
use super::brake::Brake;
use crate::live::Now;
use crate::mapping::Mapping;
use crate::pace::JournalPace;
use crate::server::SetServer;
use holdfast_control::set::RootRef;
use holdfast_types::sync::LockExt;
use holdfast_volume::map::{Opened, PageLeaf, PageRef};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Number of reads before damage is reported: bytes may be damaged in transit, and stale answers do not last.
pub(super) const DAMAGED_TRIES: u32 = 3;
/// Time between those reads, and after a store that did not answer.
pub(super) const AGAIN: Duration = Duration::from_secs(2);

/// Settings of the scrub.
#[derive(Clone, Copy, Debug)]
pub struct ScrubSettings {
    /// Maximum bytes per second; 0 disables the scrub.
    pub bytes_per_second: u64,
    /// Time from the end of one round to the begin of the next.
    pub interval: Duration,
}

/// A root that is being read.
pub(super) struct Reading {
    pub(super) at: RootRef,
    /// With leaves, only its top.
    pub(super) root: Arc<Opened>,
    /// The current leaf, and its place.
    pub(super) leaf: Option<(PageRef, Arc<PageLeaf>)>,
}

/// Scrubs one set while this gateway leads it.
pub struct Scrubber {
    pub(super) server: Arc<SetServer>,
    pub(super) mapping: Arc<Mapping>,
    pub(super) settings: ScrubSettings,
    /// Where the settings come from while they can change.
    pub(super) now: Option<Now<ScrubSettings>>,
    pub(super) file: PathBuf,
    pub(super) stop: CancellationToken,
    pub(super) throttle: Arc<Brake>,
    pub(super) book: Book,
    pub(super) noted: Option<Instant>,
    pub(super) root: Option<Reading>,
    /// Number of pages of `root`.
    pub(super) pages: u64,
    /// Time between repeated reads of apparently damaged objects.
    pub(super) again: Duration,
}

impl Scrubber {
    /// Creates the scrubber for `server`'s set; continues from the position in `file`.
    pub fn new(
        server: Arc<SetServer>,
        mapping: Arc<Mapping>,
        pace: Arc<JournalPace>,
        settings: ScrubSettings,
        file: PathBuf,
        stop: CancellationToken,
    ) -> Self {
        // An unreadable file counts as none: the round begins again.
        let book: Book =
            std::fs::read(&file).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        let rate = settings.bytes_per_second;
        let throttle = Arc::new(Brake::new(server.clone(), mapping.clone(), pace, rate));
        server.scrub.shown.locked().bytes_per_second = rate;
        let (now, noted, root) = (None, None, None);
        Self { server, mapping, settings, now, file, stop, throttle, book, noted, root, pages: 0, again: AGAIN }
    }

    /// Uses the settings that `now` tells, from the next turn on.
    #[must_use]
    pub fn following(self, now: Now<ScrubSettings>) -> Self {
        let settings = now.clone();
        self.throttle.follow(Arc::new(move || settings().bytes_per_second));
        Self { now: Some(now), ..self }
    }

    /// Takes the settings as they are now.
    pub(super) fn refresh(&mut self) {
        let Some(now) = &self.now else { return };
        self.settings = now();
        let rate = self.settings.bytes_per_second;
        self.throttle.limit(rate);
        self.server.scrub.shown.locked().bytes_per_second = rate;
    }
}
