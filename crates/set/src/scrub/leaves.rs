//! The scrub's way through a root (ADR 0034): its object, then leaf after leaf. What does not open is told, and what lies behind it is read all the same.
//!
//! No more of a root in leaves is in memory than its top and one of them: a checkpoint that comes meanwhile costs its top anew, and no leaf but that one.

use super::book::{BEGIN, Place, Target};
use super::{DAMAGED_TRIES, PAGES_PER_TURN, Reading, Scrubber};
use crate::roots::Known;
use crate::verify::{Damage, LeavesRead, Subject};
use holdfast_control::set::RootRef;
use holdfast_store::StoreError;
use holdfast_types::VolumeId;
use holdfast_volume::map::{Leaf, LeafOf, LeafRef, Opened, PageLeaf, PageRef, Top};
use std::sync::Arc;

/// What a look at a target's root came to.
pub(super) enum Look {
    /// A root: the one that was asked for, or the one that took its place meanwhile.
    Opens(RootRef, Arc<Opened>),
    /// There is nothing to read: the target is gone, or its root does not open, which is told.
    Nothing,
    /// Another root took its place, and that is not to be had either.
    Moved,
}

/// What comes next in a root.
pub(super) enum Next {
    /// These pages.
    Pages(Vec<(VolumeId, u32, PageRef)>),
    /// A leaf was passed, or replaced by another: it is to be asked again.
    Again,
    /// Nothing any more.
    End,
}

/// What is read, and by what.
#[derive(Clone, Copy)]
pub(super) struct Reads<'a> {
    pub subject: &'a Subject,
    pub target: &'a Target,
    /// The root that is gone through.
    pub at: RootRef,
    /// That of the set as it is, where the target is another one: what it shows was read with it.
    pub now: Option<&'a Known>,
}

impl Scrubber {
    /// The target's root as its store has it, each once; that of one in leaves is its top.
    ///
    /// # Errors
    /// The store did not answer.
    pub(super) async fn root_of(
        &mut self,
        subject: &Subject,
        target: &Target,
        at: RootRef,
    ) -> Result<Look, StoreError> {
        if let Some(reading) = &self.root
            && reading.at == at
        {
            return Ok(Look::Opens(at, reading.root.clone()));
        }
        let first = self.book.round.as_ref().is_some_and(|round| round.next == BEGIN);
        let mut tries = 1;
        loop {
            let (opened, _) = subject.open_root(at).await?;
            let damage = match opened {
                Ok(root) => return Ok(Look::Opens(at, self.keep(at, root))),
                Err(damage) => damage,
            };
            let Some((now, _)) = self.place_of(target) else { return Ok(Look::Nothing) };
            // Replaced meanwhile, and perhaps deleted; or, beyond the first of a round, not in this store yet. That in memory is as good.
            if (!first || now != at)
                && let Ok(root) = self.mapping.opened_once(now).await
            {
                return Ok(Look::Opens(now, self.keep(now, root)));
            }
            if now != at {
                return Ok(Look::Moved);
            }
            if tries == DAMAGED_TRIES {
                let place = self.told(target, at, damage);
                self.book.note(place);
                return Ok(Look::Nothing);
            }
            tries += 1;
            tokio::time::sleep(self.again).await;
        }
    }

    fn keep(&mut self, at: RootRef, root: Opened) -> Arc<Opened> {
        self.pages = root.page_count();
        let root = Arc::new(root);
        self.root = Some(Reading { at, root: root.clone(), leaf: None });
        root
    }

    /// What comes next in a root: some pages, of one in leaves those of one leaf. At the end of such a one its other leaves are read as well.
    ///
    /// # Errors
    /// The store did not answer.
    pub(super) async fn next_of(&mut self, reads: Reads<'_>, root: &Opened) -> Result<Next, StoreError> {
        let Some(next) = self.book.round.as_ref().map(|round| round.next) else { return Ok(Next::Again) };
        let top = match root {
            Opened::Whole(root) => {
                let pages: Vec<_> = root.pages_from(next.0, next.1).take(PAGES_PER_TURN).collect();
                return Ok(if pages.is_empty() { Next::End } else { Next::Pages(pages) });
            }
            Opened::Leaves(top) => top,
        };
        let mut from = next;
        while let Some(leaf) = top.leaf_from(from.0, from.1) {
            let LeafOf::Pages { volume, first, width } = leaf.of else { break };
            // A page number has room above it, as in `Book::page_done`.
            let behind = (volume, first.saturating_add(width));
            let Some(found) = self.leaf(reads, top, leaf, behind).await? else { return Ok(Next::Again) };
            let pages = found.iter().map(|(number, place)| (volume, number, place));
            let pages: Vec<_> = pages.filter(|page| (page.0, page.1) >= next).take(PAGES_PER_TURN).collect();
            if !pages.is_empty() {
                return Ok(Next::Pages(pages));
            }
            from = behind;
        }
        self.other_leaves(reads, top).await?;
        Ok(Next::End)
    }

    /// A leaf of pages. `None`: there is no going by it. Either it does not open, then that is told, and what lies `behind` it is next; or the target has another
    /// one in its place by now.
    async fn leaf(
        &mut self,
        reads: Reads<'_>,
        top: &Top,
        leaf: LeafRef,
        behind: (VolumeId, u32),
    ) -> Result<Option<Arc<PageLeaf>>, StoreError> {
        let known = self.root.as_ref().and_then(|reading| reading.leaf.as_ref());
        if let Some((_, found)) = known.filter(|(at, _)| *at == leaf.at) {
            return Ok(Some(found.clone()));
        }
        let mut read = self.lasting(reads.subject, top, vec![leaf]).await?;
        if let Some(Leaf::Pages(found)) = read.leaves.remove(&(leaf.at.object, leaf.at.number)) {
            if let Some(reading) = &mut self.root {
                reading.leaf = Some((leaf.at, found.clone()));
            }
            return Ok(Some(found));
        }
        if !self.names(reads, &leaf).await {
            return Ok(None);
        }
        let damaged = read.damaged.into_iter().filter(|(leaf, _)| !shown(reads, leaf));
        let damaged: Vec<Place> = damaged.map(|(_, damage)| self.told(reads.target, reads.at, damage)).collect();
        let any = !damaged.is_empty();
        self.book.leaf_passed(behind, damaged);
        self.publish();
        self.note(any);
        Ok(None)
    }

    /// The leaves of a root that list no pages: nothing that is read depends on them, but no checkpoint can be made over one that does not open.
    async fn other_leaves(&mut self, reads: Reads<'_>, top: &Top) -> Result<(), StoreError> {
        let read = self.lasting(reads.subject, top, top.object_leaves().collect()).await?;
        let mut damaged: Vec<Damage> = Vec::new();
        for (leaf, damage) in read.damaged {
            if !shown(reads, &leaf) && self.names(reads, &leaf).await {
                damaged.push(damage);
            }
        }
        // All at once, with the end of the target: who is stopped before tells none of them twice.
        for damage in damaged {
            let place = self.told(reads.target, reads.at, damage);
            self.book.note(place);
        }
        Ok(())
    }

    /// Reads leaves. As damaged counts what looks so each time: bytes may be spoilt on their way.
    async fn lasting(&self, subject: &Subject, top: &Top, leaves: Vec<LeafRef>) -> Result<LeavesRead, StoreError> {
        let mut all = subject.check_leaves(top, leaves).await?;
        for _ in 1..DAMAGED_TRIES {
            if all.damaged.is_empty() {
                break;
            }
            tokio::time::sleep(self.again).await;
            let damaged = all.damaged.iter().map(|(leaf, _)| *leaf).collect();
            let read = subject.check_leaves(top, damaged).await?;
            all.leaves.extend(read.leaves);
            all.damaged = read.damaged;
        }
        Ok(all)
    }

    /// Whether the target still names that very leaf. What was replaced meanwhile may be deleted: nobody needs it any more.
    async fn names(&self, reads: Reads<'_>, leaf: &LeafRef) -> bool {
        match self.place_of(reads.target) {
            None => false,
            Some((at, _)) if at == reads.at => true,
            Some((at, _)) => match self.mapping.known_once(at).await {
                Ok(root) => root.has_leaf(leaf),
                // Its root is lost as well: what was read stands.
                Err(_) => true,
            },
        }
    }
}

/// Whether the set as it is has that very leaf: then it was read with that, and told.
fn shown(reads: Reads<'_>, leaf: &LeafRef) -> bool {
    reads.now.is_some_and(|now| now.has_leaf(leaf))
}
