//! What changed between two roots of one set, without reading any data.
//!
//! A page that both roots find at the same place is the same page: it is not looked at. Where the places differ, the two pages are compared
//! extent by extent: the same sealed extent at the same sector is the same content. What collection has moved in between is found at another
//! place with the same content, and counts as changed: the answer may say more than changed, never less.

use super::{MapPiece, PAGE_SECTORS, Page, PageRef, Root};
use holdfast_types::limits::VOLUME_SECTORS_MAX;
use holdfast_types::{Lba, Sectors, VolumeId};

/// A range in which the later root may show something else than the earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changed {
    /// First sector.
    pub lba: Lba,
    /// Length.
    pub sectors: Sectors,
    /// In the later root all of it reads as zeroes.
    pub zero: bool,
}

/// A page that two roots have at different places: its number, where the earlier has it, where the later has it.
pub type Differing = (u32, Option<PageRef>, Option<PageRef>);

/// The pages of a volume, from page `from` on, that the two roots do not share, in order. Takes no memory in proportion to the volume.
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
    std::iter::from_fn(move || {
        loop {
            let number = match (a.peek(), b.peek()) {
                (Some((a, _)), Some((b, _))) => *a.min(b),
                (Some((a, _)), None) => *a,
                (None, Some((b, _))) => *b,
                (None, None) => return None,
            };
            let before = a.next_if(|(found, _)| *found == number).map(|(_, place)| place);
            let after = b.next_if(|(found, _)| *found == number).map(|(_, place)| place);
            if before != after {
                return Some((number, before, after));
            }
        }
    })
}

/// Where two pages of one number differ within a range of theirs; `None` is a page of zeroes. In order, neighbours of one kind merged.
///
/// # Panics
/// R9: as [`Page::lookup`], when the range is not within the page.
pub fn changes(earlier: Option<&Page>, later: Option<&Page>, lba: Lba, sectors: Sectors) -> Vec<Changed> {
    let pieces = |page: Option<&Page>| match page {
        Some(page) => page.lookup(lba, sectors),
        None => vec![MapPiece::Zero { lba, sectors }],
    };
    let (before, after) = (pieces(earlier), pieces(later));
    let (mut a, mut b) = (before.iter().peekable(), after.iter().peekable());
    let mut found: Vec<Changed> = Vec::new();
    let mut at = lba.0;
    while let (Some(left), Some(right)) = (a.peek(), b.peek()) {
        let end = end_of(left).min(end_of(right));
        if !same(left, right) {
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
    match piece {
        MapPiece::Zero { lba, sectors } => lba.0 + sectors.0,
        MapPiece::Stored(extent) => extent.lba.0 + extent.sectors.0,
    }
}

/// Whether both show the same where they overlap.
fn same(a: &MapPiece, b: &MapPiece) -> bool {
    match (a, b) {
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
    use crate::segment::{Codec, ExtentPlace};
    use holdfast_types::{LogId, MemberId, ObjectId, SECTOR_BYTES, Term};
    use proptest::collection::vec;
    use proptest::prelude::*;

    const V: VolumeId = VolumeId(1);

    fn object(random: u128) -> ObjectId {
        ObjectId { term: Term(1), member: MemberId(1), boot: 1, random }
    }

    fn extent(lba: u64, sectors: u64, random: u128) -> MapExtent {
        let raw_len = (sectors * SECTOR_BYTES) as u32;
        let place = ExtentPlace { number: 0, offset: 104, sealed_len: raw_len + 16, raw_len, codec: Codec::None };
        MapExtent::whole(object(random), Lba(lba), place)
    }

    /// Per sector: which sealed extent, and which sector of it.
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
