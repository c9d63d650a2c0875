//! A root in leaves of which some cannot be opened: checks leaf by leaf, and keeps the rest. Only for the search for
//! damage.

use super::{ObjectsAt, Top, take, wrong};
use crate::map::leaf::{Leaf, LeafOf, LeafRef, ObjectLeaf};
use crate::map::root::PlacedLeaf;
use crate::map::sums::Known;
use crate::map::table::Table;
use crate::map::under::Under;
use crate::map::{Base, MapError, PageRef, Root};
use holdfast_types::VolumeId;

/// The readable part of a root. If it is not complete, it is no [`Root`]: it must not serve reads, checkpoints or
/// deletions, since a page that is missing here may exist (LEAF-L4).
#[derive(Clone, Debug)]
pub struct Remains {
    found: Root,
    /// Number of objects that the root names, if some are missing here.
    named: Option<u64>,
}

impl From<Root> for Remains {
    /// A complete root.
    fn from(found: Root) -> Self {
        Self { found, named: None }
    }
}

impl Remains {
    /// The root, if it is complete.
    pub fn whole(&self) -> Option<&Root> {
        self.named.is_none().then_some(&self.found)
    }

    /// Like `whole`.
    pub fn into_whole(self) -> Option<Root> {
        self.named.is_none().then_some(self.found)
    }

    /// The base, which shows where the root has nothing; `None` if the set is no clone.
    pub fn base(&self) -> Option<&Base> {
        self.found.base()
    }

    /// As [`Root::is_in_leaves`].
    pub fn is_in_leaves(&self) -> bool {
        self.found.is_in_leaves()
    }

    /// How many objects the root names, itself not counted.
    pub fn object_count(&self) -> u64 {
        self.named.unwrap_or_else(|| self.found.names().count() as u64)
    }

    /// The readable pages, sorted by volume and number.
    pub fn pages(&self) -> impl Iterator<Item = (VolumeId, u32, PageRef)> + '_ {
        self.found.pages()
    }

    /// Place of a page; `None` also if its leaf cannot be opened.
    pub fn page(&self, volume: VolumeId, number: u32) -> Option<PageRef> {
        self.found.page(volume, number)
    }
}

impl Top {
    /// The first leaf of pages that may list this page or a later one.
    pub fn leaf_from(&self, volume: VolumeId, number: u32) -> Option<LeafRef> {
        let found = self.pages.range((volume, number / self.width)..).next();
        found.map(|((volume, range), found)| self.pages_ref(*volume, *range, found))
    }

    /// Compares a leaf with the top's entry of it. Sums over all leaves are not compared.
    ///
    /// # Errors
    /// [`MapError::Leaf`] where it is another leaf.
    pub fn check_leaf(&self, leaf: &LeafRef, found: &Leaf) -> Result<(), MapError> {
        let checked = match (leaf.of, found) {
            (LeafOf::Pages { volume, first, .. }, Leaf::Pages(found)) => {
                let named = self.pages.get(&(volume, first / self.width)).filter(|named| named.at == leaf.at);
                let (pages, expected) = (found.len() as u64, named.map_or(0, |named| named.pages));
                if pages == expected { Ok(()) } else { Err(("pages", pages, expected)) }
            }
            (LeafOf::Segments, Leaf::Segments(found)) => check_objects(&self.segments, leaf, found),
            (LeafOf::Packs, Leaf::Packs(found)) => check_objects(&self.packs, leaf, found),
            _ => Err(("leaves of its kind", 0, 1)),
        };
        checked.map_err(|(what, found, expected)| wrong(&leaf.at, what, found, expected))
    }

    /// The readable part of the root: leaves that open and that [`Top::check_leaf`] accepts.
    pub fn remains(&self, leaf: impl Fn(&LeafRef) -> Option<Leaf>) -> Remains {
        let mut found = Root { width: self.width, base: self.base.clone(), ..Root::new(self.upto) };
        for ((volume, range), named) in &self.pages {
            if let Some(Leaf::Pages(leaf)) = leaf(&self.pages_ref(*volume, *range, named)) {
                found.leaves.insert((*volume, *range), PlacedLeaf { at: Some(Box::new(named.at)), leaf });
            }
        }
        found.objects.leaf_packs = self.leaf_packs.clone();
        let objects: u64 = self.segments.iter().chain(&self.packs).map(|named| named.sums.objects).sum();
        Remains { found, named: Some(self.leaf_packs.len() as u64 + objects) }
    }
}

/// Compares a leaf of objects with the top's entry of it, among all entries of its kind.
fn check_objects<V: Known>(
    all: &[ObjectsAt],
    at: &LeafRef,
    leaf: &ObjectLeaf<V>,
) -> Result<(), (&'static str, u64, u64)> {
    let first = leaf.entries.first().map(|(object, _)| *object);
    let place = all.binary_search_by_key(&first, |named| Some(named.first)).ok();
    let named = place.and_then(|place| Some((all.get(place)?, all.get(place + 1))));
    let Some((named, next)) = named.filter(|(named, _)| named.at == at.at) else {
        return Err(("objects in their place", 0, leaf.entries.len() as u64));
    };
    take(&mut Table::default(), &mut Under::default(), named, next.map(|next| next.first), leaf)
}
