//! How the scrub reads a root (ADR 0034): its object, then leaf after leaf. Objects that do not open are reported, and
//! the reading continues after them.
//!
//! Of a root with leaves, only the top and one leaf are in memory: a checkpoint meanwhile costs another read of the top
//! and of that leaf at most.

use super::book::{BEGIN, Place, Target};
use super::state::{DAMAGED_TRIES, Reading, Scrubber};
use crate::roots::Known;
use crate::verify::{Damage, LeavesRead, Subject};
use holdfast_control::set::RootRef;
use holdfast_store::StoreError;
use holdfast_types::VolumeId;
use holdfast_volume::map::{Leaf, LeafOf, LeafRef, Opened, PageLeaf, PageRef, Top};
use std::sync::Arc;

/// Number of pages read before the root is looked up again.
const PAGES_PER_TURN: usize = 16;

/// Result of reading a target's root.
pub(super) enum Look {
    /// A root: the requested one, or the one that replaced it meanwhile.
    Opens(RootRef, Arc<Opened>),
    /// Nothing to read: the target is deleted, or its root does not open, which is reported.
    Nothing,
    /// Another root replaced it, and that cannot be read either.
    Moved,
}

/// The next step in a root.
pub(super) enum Next {
    /// These pages.
    Pages(Vec<(VolumeId, u32, PageRef)>),
    /// A leaf was skipped or replaced: ask again.
    Again,
    /// The end.
    End,
}

/// What is read, and through which root.
#[derive(Clone, Copy)]
pub(super) struct Reads<'a> {
    pub subject: &'a Subject,
    pub target: &'a Target,
    /// The root being read.
    pub at: RootRef,
    /// The root of the set's current state, if the target is another one: shared data was read with it.
    pub now: Option<&'a Known>,
}

impl Scrubber {
    /// Reads the target's root from its store, each time once; only the top of one with leaves.
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
            // It was replaced and perhaps deleted meanwhile; or, after the first of a round, not yet in this store. The
            // copy in memory is equivalent.
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

    /// The next step in a root: some pages, from one leaf if the root has leaves. At the end the root's other leaves
    /// are read as well.
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
            // Page numbers have room above, as in `Book::page_done`.
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

    /// Reads a leaf of pages. `None` if it cannot be used: it does not open, which is reported, and the reading
    /// continues at `behind`; or the target has replaced it.
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

    /// Reads the leaves of a root that list no pages. No data depends on them, but no checkpoint can be made on top of
    /// one that does not open.
    async fn other_leaves(&mut self, reads: Reads<'_>, top: &Top) -> Result<(), StoreError> {
        let read = self.lasting(reads.subject, top, top.object_leaves().collect()).await?;
        let mut damaged: Vec<Damage> = Vec::new();
        for (leaf, damage) in read.damaged {
            if !shown(reads, &leaf) && self.names(reads, &leaf).await {
                damaged.push(damage);
            }
        }
        // Recorded together at the end of the target, so that a stop before it reports none of them twice.
        for damage in damaged {
            let place = self.told(reads.target, reads.at, damage);
            self.book.note(place);
        }
        Ok(())
    }

    /// Reads leaves. Damage counts only if it lasts: bytes may be damaged in transit.
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

    /// Whether the target still names this same leaf. A replaced one may be deleted: it is not needed any more.
    async fn names(&self, reads: Reads<'_>, leaf: &LeafRef) -> bool {
        match self.place_of(reads.target) {
            None => false,
            Some((at, _)) if at == reads.at => true,
            Some((at, _)) => match self.mapping.known_once(at).await {
                Ok(root) => root.has_leaf(leaf),
                // Its root is lost too: the damage stands.
                Err(_) => true,
            },
        }
    }
}

/// Whether the set's current state has this same leaf: then it was read and reported with that.
fn shown(reads: Reads<'_>, leaf: &LeafRef) -> bool {
    reads.now.is_some_and(|now| now.has_leaf(leaf))
}
