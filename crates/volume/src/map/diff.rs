//! Changes between two roots of one set, found without reading data.
//!
//! A page at the same place in both roots is the same page and is skipped. Otherwise the two pages are compared extent
//! by extent: the same sealed extent at the same sector is the same content. Data that garbage collection moved counts
//! as changed: the answer may report too much, never too little. Parts that both take from one base are equal.

use super::{MapPiece, PAGE_SECTORS, Page, PageRef, Root};
use holdfast_types::limits::VOLUME_SECTORS_MAX;
use holdfast_types::{Lba, Sectors, VolumeId};

/// A range that may differ between the two roots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changed {
    /// First sector.
    pub lba: Lba,
    /// Length.
    pub sectors: Sectors,
    /// All of it reads as zeroes in the later root.
    pub zero: bool,
}

/// A page at different places in two roots: number, place in the earlier one, place in the later one.
pub type Differing = (u32, Option<PageRef>, Option<PageRef>);

/// The pages of a volume, from page `from` on, that the two roots do not share, in order: their places differ, or the
/// base is visible through only one of them. Memory does not grow with the volume.
pub fn differing_pages<'a>(
    earlier: &'a Root,
    later: &'a Root,
    volume: VolumeId,
    from: u32,
) -> impl Iterator<Item = Differing> + 'a {
    let first = Lba(u64::from(from) * PAGE_SECTORS);
    let rest = Sectors(VOLUME_SECTORS_MAX.saturating_sub(first.0));
    let mut a = earlier.pages_in(volume, first, rest).peekable();
    let mut b = later.pages_in(volume, first, rest).peekable();
    let mut below = told_by_base(earlier, later, volume, from).peekable();
    let mut above = told_by_base(later, earlier, volume, from).peekable();
    std::iter::from_fn(move || {
        loop {
            let pages = [a.peek().map(|(number, _)| *number), b.peek().map(|(number, _)| *number)];
            let number = pages.into_iter().chain([below.peek().copied(), above.peek().copied()]).flatten().min()?;
            let before = a.next_if(|(found, _)| *found == number).map(|(_, place)| place);
            let after = b.next_if(|(found, _)| *found == number).map(|(_, place)| place);
            below.next_if_eq(&number);
            above.next_if_eq(&number);
            if before != after || earlier.below(volume, number) != later.below(volume, number) {
                return Some((number, before, after));
            }
        }
    })
}

/// Pages from `from` on for which `root` may treat its base otherwise than `other`: the pages that it hides; if `other`
/// has no base, all visible ones.
fn told_by_base<'a>(root: &'a Root, other: &Root, volume: VolumeId, from: u32) -> impl Iterator<Item = u32> + 'a {
    let alone = root.base().filter(|_| other.base().is_none());
    let shown = alone
        .into_iter()
        .flat_map(move |base| (from..base.pages(volume)).filter(move |n| base.shows(volume, *n).is_some()));
    let hidden = root.base().filter(|_| alone.is_none()).into_iter().flat_map(move |base| base.hidden(volume));
    shown.chain(hidden.flat_map(move |(first, end)| first.max(from)..end))
}

/// Differences of two roots within a range of one page, given both opened pages. In order; adjacent ones of one kind
/// are merged.
///
/// # Panics
/// R9: as [`Root::lookup`].
pub fn changes(
    earlier: (&Root, Option<&Page>),
    later: (&Root, Option<&Page>),
    volume: VolumeId,
    lba: Lba,
    sectors: Sectors,
) -> Vec<Changed> {
    let pieces = |(root, page): (&Root, Option<&Page>)| root.lookup(page, volume, lba, sectors);
    let (before, after) = (pieces(earlier), pieces(later));
    let of = |root: &Root| root.base().map(|base| (base.set, base.root));
    let one_base = of(earlier.0) == of(later.0);
    let (mut a, mut b) = (before.iter().peekable(), after.iter().peekable());
    let mut found: Vec<Changed> = Vec::new();
    let mut at = lba.0;
    while let (Some(left), Some(right)) = (a.peek(), b.peek()) {
        let end = end_of(left).min(end_of(right));
        if !same(left, right, one_base) {
            push(&mut found, at, end, matches!(right, MapPiece::Zero { .. }));
        }
        at = end;
        a.next_if(|piece| end_of(piece) == end);
        b.next_if(|piece| end_of(piece) == end);
    }
    found
}

fn push(found: &mut Vec<Changed>, from: u64, to: u64, zero: bool) {
    match found.last_mut() {
        Some(last) if last.zero == zero && last.lba.0 + last.sectors.0 == from => last.sectors.0 = to - last.lba.0,
        _ => found.push(Changed { lba: Lba(from), sectors: Sectors(to - from), zero }),
    }
}

fn end_of(piece: &MapPiece) -> u64 {
    piece.lba().0 + piece.sectors().0
}

/// Whether both show the same where they overlap.
fn same(a: &MapPiece, b: &MapPiece, one_base: bool) -> bool {
    match (a, b) {
        (MapPiece::Below { .. }, MapPiece::Below { .. }) => one_base,
        (MapPiece::Zero { .. }, MapPiece::Zero { .. }) => true,
        (MapPiece::Stored(a), MapPiece::Stored(b)) => {
            a.object == b.object && a.place == b.place && a.sealed_lba() == b.sealed_lba()
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::MapExtent;
    use crate::segment::ExtentPlace;
    use holdfast_types::{LogId, MemberId, ObjectId, SECTOR_BYTES, Term};
    use proptest::collection::vec;
    use proptest::prelude::*;

    const V: VolumeId = VolumeId(1);

    /// Of roots without a base.
    fn changes(earlier: Option<&Page>, later: Option<&Page>, lba: Lba, sectors: Sectors) -> Vec<Changed> {
        let root = Root::default();
        super::changes((&root, earlier), (&root, later), V, lba, sectors)
    }

    fn object(random: u128) -> ObjectId {
        ObjectId { term: Term(1), member: MemberId(1), boot: 1, random }
    }

    fn extent(lba: u64, sectors: u64, random: u128) -> MapExtent {
        let raw_len = (sectors * SECTOR_BYTES) as u32;
        let place = ExtentPlace::uncompressed(0, 104, raw_len);
        MapExtent::whole(object(random), Lba(lba), place)
    }

    /// For each sector: the sealed extent, and the sector in it.
    fn shown(page: Option<&Page>, sectors: u64) -> Vec<Option<(u128, u64)>> {
        let mut all = vec![None; sectors as usize];
        for piece in page.into_iter().flat_map(|page| page.lookup(Lba(0), Sectors(sectors))) {
            if let MapPiece::Stored(extent) = piece {
                for n in 0..extent.sectors.0 {
                    all[(extent.lba.0 + n) as usize] = Some((extent.object.random, extent.skip.0 + n));
                }
            }
        }
        all
    }

    #[test]
    fn pages_at_the_same_place_are_not_looked_at() {
        let place = |number: u32, random: u128| PageRef {
            object: object(random),
            number,
            offset: 0,
            sealed_len: 1,
            raw_len: 1,
        };
        let (mut a, mut b) = (Root::new(LogId::new(1, 1)), Root::new(LogId::new(1, 2)));
        let none = crate::map::Live::new();
        for (number, before, after) in [
            (1, Some(1), Some(1)),
            (3, Some(1), Some(2)),
            (4, None, Some(2)),
            (9, Some(1), None),
            (12, Some(5), Some(5)),
        ] {
            for (root, random) in [(&mut a, before), (&mut b, after)] {
                root.replace_page(V, number, random.map(|random| place(number, random)), &none, &none).unwrap();
            }
        }
        let found = |from| differing_pages(&a, &b, V, from).map(|(number, ..)| number).collect::<Vec<_>>();
        assert_eq!(found(0), [3, 4, 9]);
        assert_eq!(found(4), [4, 9]);
        assert!(found(10).is_empty());
        assert_eq!(differing_pages(&a, &b, VolumeId(2), 0).count(), 0);
    }

    #[test]
    fn zeroes_are_told_apart_and_neighbours_are_one() {
        let (mut a, mut b) = (Page::new(V, 0), Page::new(V, 0));
        a.overlay(&extent(0, 64, 1));
        b.overlay(&extent(0, 64, 1));
        b.overlay(&extent(8, 4, 2));
        b.overlay(&extent(12, 4, 3));
        b.unmap(Lba(16), Sectors(8));
        let of = |lba, sectors, zero| Changed { lba: Lba(lba), sectors: Sectors(sectors), zero };
        assert_eq!(changes(Some(&a), Some(&b), Lba(0), Sectors(128)), [of(8, 8, false), of(16, 8, true)]);
        assert_eq!(changes(None, Some(&a), Lba(0), Sectors(128)), [of(0, 64, false)]);
        assert_eq!(changes(Some(&a), None, Lba(10), Sectors(100)), [of(10, 54, true)]);
        assert!(changes(None, None, Lba(0), Sectors(128)).is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn what_differs_is_listed_and_nothing_else(
            common in vec((0_u64..250, 1_u64..6), 0..12),
            left in vec((0_u64..250, 1_u64..6, any::<bool>()), 0..8),
            right in vec((0_u64..250, 1_u64..6, any::<bool>()), 0..8),
        ) {
            let mut base = Page::new(V, 0);
            for (n, (lba, sectors)) in common.iter().enumerate() {
                base.overlay(&extent(*lba, *sectors, n as u128));
            }
            let with = |ops: &[(u64, u64, bool)], tag: u128| {
                let mut page = base.clone();
                for (n, (lba, sectors, zero)) in ops.iter().enumerate() {
                    match zero {
                        true => page.unmap(Lba(*lba), Sectors(*sectors)),
                        false => page.overlay(&extent(*lba, *sectors, tag + n as u128)),
                    }
                }
                page
            };
            let (a, b) = (with(&left, 100), with(&right, 200));
            let found = changes(Some(&a), Some(&b), Lba(0), Sectors(256));
            prop_assert!(found.windows(2).all(|w| w[0].lba.0 + w[0].sectors.0 <= w[1].lba.0));
            let (before, after) = (shown(Some(&a), 256), shown(Some(&b), 256));
            for at in 0..256_u64 {
                let listed = found.iter().find(|c| c.lba.0 <= at && at < c.lba.0 + c.sectors.0);
                prop_assert_eq!(listed.is_some(), before[at as usize] != after[at as usize], "sector {}", at);
                if let Some(listed) = listed {
                    prop_assert_eq!(listed.zero, after[at as usize].is_none());
                }
            }
        }
    }
}
