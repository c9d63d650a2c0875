//! Commits a checkpoint: from then on a recovery starts from it.

use super::freshness::Word;
use super::{HeadKeeper, KeepError};
use holdfast_control::set::{Links, Restored, RootRef, SetState};
use holdfast_raft::boot_now;
use holdfast_store::{Disposition, ObjectStore};
use holdfast_types::{Epoch, LogId, Term};
use holdfast_volume::head::Covered;
use std::sync::atomic::{AtomicBool, Ordering};

/// Number of read-and-swap attempts before the caller gets an error. Each failed attempt means that another gateway was
/// faster.
const SWAPS_MAX: u32 = 8;

/// Content of the head for a checkpoint at `at`; `None` if another checkpoint has begun since.
pub fn content_at(begun: Option<(LogId, &SetState)>, at: LogId, root: RootRef) -> Option<(Epoch, Restored)> {
    let (_, state) = begun.filter(|(begin, _)| *begin == at)?;
    Some((state.epoch, Restored::of(state, Some(root))))
}

/// A commit in progress, until it ends or is dropped. It also writes everything else that the head should say.
struct Committing<'a>(&'a AtomicBool);

impl<'a> Committing<'a> {
    fn begin(under_way: &'a AtomicBool) -> Self {
        under_way.store(true, Ordering::Release);
        Self(under_way)
    }
}

impl Drop for Committing<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl HeadKeeper {
    /// Makes `content` the start of a recovery. Everything that its root names must be in `store`, which is the set's
    /// store as of the upload. If the set's stores were changed meanwhile, the commit fails (LIST-L1), because these
    /// objects were not compared with the other stores.
    ///
    /// # Errors
    /// [`KeepError`]. If it may pass, try again with the same content.
    pub async fn commit(
        &self,
        store: &dyn ObjectStore,
        term: Term,
        covered: Covered,
        epoch: Epoch,
        content: Restored,
    ) -> Result<(), KeepError> {
        let _committing = Committing::begin(&self.committing);
        let mut head = self.head(epoch, Some(covered), content, self.beside.links(&Links::default(), true));
        let mut keyring = self.keyring();
        let mut sealed_under = self.parts.key.sealing().key_id;
        let mut body = self.seal(&head, &keyring, term);
        let key = self.key();
        for _ in 0..SWAPS_MAX {
            let sent = boot_now();
            let found = self.read_in(store).await?;
            if let Some((found, _)) = &found {
                self.judge(found)?;
                // This read also counts as a periodic read of the head.
                self.looks.told(sent, Word::Ours);
                if found.covered == head.covered && found.content == head.content {
                    holdfast_reached::reached!("head: its own commit whose answer was lost");
                    // R12: this is our own head, from an attempt whose answer was lost.
                    self.note_committed(term, covered);
                    return Ok(());
                }
                if found.covers(&covered) {
                    holdfast_reached::reached!("head: a newer checkpoint is there already");
                    return Err(KeepError::Superseded);
                }
            }
            // Pins and links do not belong to the checkpoint: what a newer leader pinned or released stays.
            let links = self.beside.links(found.as_ref().map_or(&Links::default(), |(found, _)| &found.links), true);
            let version = found.map(|(_, version)| version);
            let sealing = self.parts.key.sealing().key_id;
            if keyring != self.keyring() || links != head.links || sealing != sealed_under {
                holdfast_reached::reached!("head: keys or links change during a commit");
                keyring = self.keyring();
                (head.links, sealed_under) = (links, sealing);
                body = self.seal(&head, &keyring, term);
            }
            let sent = boot_now();
            match store.swap(&key, version.as_ref(), body.clone()).await {
                Ok(_) => {
                    // The head it replaced was this life's, or there was none.
                    self.looks.told(sent, Word::Ours);
                    self.beside.note_stored(keyring, head.links);
                    self.note_committed(term, covered);
                    return Ok(());
                }
                // Another gateway was faster: read again and decide by that.
                Err(e) if e.disposition() == Disposition::Conflict => {}
                Err(e) => return Err(e.into()),
            }
        }
        Err(KeepError::Superseded)
    }
}
