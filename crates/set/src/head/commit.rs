//! A checkpoint becomes what a recovery starts from.

use super::freshness::Word;
use super::{HeadKeeper, KeepError};
use holdfast_control::set::{Links, Restored};
use holdfast_raft::boot_now;
use holdfast_store::{Disposition, ObjectStore};
use holdfast_types::{Epoch, Term};
use holdfast_volume::head::Covered;
use std::sync::atomic::{AtomicBool, Ordering};

/// Times that a commit reads and swaps anew before its caller hears of it: each time another gateway was quicker.
const SWAPS_MAX: u32 = 8;

/// A commit that is under way, until it ends or nobody waits for it any more. What the head is to say beside the checkpoint it says as well.
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
    /// Makes `content` what a recovery starts from. Everything that its root names must be in `store`, which is the set's as it was when that was put there: where the
    /// set's stores were changed meanwhile this comes to nothing (L1), since nobody has compared it with what the others have.
    ///
    /// # Errors
    /// [`KeepError`]; one that may pass is to be tried again with the same content.
    pub async fn commit(
        &self,
        store: &dyn ObjectStore,
        term: Term,
        covered: Covered,
        epoch: Epoch,
        content: Restored,
    ) -> Result<(), KeepError> {
        let _committing = Committing::begin(&self.committing);
        let mut head = self.head(epoch, Some(covered), content, self.links(&Links::default(), true));
        let mut keyring = self.keyring();
        let mut sealed_under = self.parts.key.sealing().key_id;
        let mut body = self.seal(&head, &keyring, term);
        let key = self.key();
        for _ in 0..SWAPS_MAX {
            let sent = boot_now();
            let found = self.read_in(store).await?;
            if let Some((found, _)) = &found {
                self.judge(found)?;
                // As good as a look: it spares one.
                self.looks.told(sent, Word::Ours);
                if found.covered == head.covered && found.content == head.content {
                    // R12: our own, from an attempt whose answer was lost.
                    self.note_committed(term, covered);
                    return Ok(());
                }
                if found.covers(&covered) {
                    return Err(KeepError::Superseded);
                }
            }
            // What it says of clones is not the checkpoint's: what a newer leader has pinned, or let go, stands.
            let links = self.links(found.as_ref().map_or(&Links::default(), |(found, _)| &found.links), true);
            let version = found.map(|(_, version)| version);
            let sealing = self.parts.key.sealing().key_id;
            if keyring != self.keyring() || links != head.links || sealing != sealed_under {
                keyring = self.keyring();
                (head.links, sealed_under) = (links, sealing);
                body = self.seal(&head, &keyring, term);
            }
            let sent = boot_now();
            match store.swap(&key, version.as_ref(), body.clone()).await {
                Ok(_) => {
                    // What it replaced was this life's, or nothing.
                    self.looks.told(sent, Word::Ours);
                    self.note_stored(keyring, head.links);
                    self.note_committed(term, covered);
                    return Ok(());
                }
                // Somebody was quicker: what is there now decides.
                Err(e) if e.disposition() == Disposition::Conflict => {}
                Err(e) => return Err(e.into()),
            }
        }
        Err(KeepError::Superseded)
    }
}
