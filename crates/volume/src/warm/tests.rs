use super::*;
use crate::index::JournalRef;
use crate::map::{Live, PageRef};
use crate::segment::{Codec, ExtentPlace};
use holdfast_types::{Lba, LogIndex, MemberId, Sectors, Term, VolumeId};

const V: VolumeId = VolumeId(1);
const MIB: u64 = 1 << 20;

fn id(random: u128) -> ObjectId {
    ObjectId { term: Term(2), member: MemberId(1), boot: 1, random }
}

fn at(index: u64) -> LogId {
    LogId { term: Term(2), index: LogIndex(index) }
}

fn root_ref(random: u128) -> RootRef {
    RootRef { object: id(random), bytes: 100 }
}

/// A root with a page in each of these packs, and these segments; each pack 1000 bytes, each segment 1 MiB.
fn root(packs: &[u128], segments: &[u128]) -> Root {
    let mut root = Root::new(at(7));
    for (number, pack) in packs.iter().enumerate() {
        root.add_pack(id(*pack), 1000);
        let number = u32::try_from(number).unwrap();
        let page = PageRef { object: id(*pack), number: 0, offset: 64, sealed_len: 116, raw_len: 100 };
        root.replace_page(V, number, Some(page), &Live::new(), &Live::new()).unwrap();
    }
    for segment in segments {
        root.add_segment(id(*segment), MIB, Sectors(2048));
    }
    root
}

fn named(plan: &Plan) -> Vec<(StoredKind, u128)> {
    plan.objects.iter().map(|wanted| (wanted.object.kind, wanted.object.object.random)).collect()
}

/// WARM-W1.
#[test]
fn what_a_root_names_and_the_one_before_did_not_is_read_pages_first() {
    let (pages, segment) = (StoredKind::Pages, StoredKind::Segment);
    let (old, new) = (root(&[10, 11], &[1, 3, 5]), root(&[10, 12], &[1, 2, 4, 5, 6]));
    let plan = Plan::between(&old, &new, u64::MAX);
    assert_eq!(named(&plan), [(pages, 12), (segment, 2), (segment, 4), (segment, 6)]);
    assert_eq!((plan.objects[0].bytes, plan.objects[1].bytes, plan.left_out_bytes), (1000, MIB, 0));
    assert_eq!(Plan::between(&new, &new, u64::MAX), Plan::default(), "the same again: nothing");
    assert_eq!(named(&Plan::between(&Root::new(at(0)), &old, u64::MAX)).len(), 5, "of a set without a root: all");
    assert_eq!(Plan::between(&new, &Root::new(at(9)), u64::MAX), Plan::default(), "what is gone is not read");
}

/// WARM-W2.
#[test]
fn what_there_is_no_room_for_is_left_out_and_counted() {
    let (old, new) = (Root::new(at(0)), root(&[10], &[1, 2, 3]));
    let plan = Plan::between(&old, &new, 2 * MIB + 1000);
    assert_eq!((named(&plan).len(), plan.left_out_bytes), (3, MIB));
    let plan = Plan::between(&old, &new, 2 * MIB + 999);
    assert_eq!((named(&plan).len(), plan.left_out_bytes), (2, 2 * MIB));
    let plan = Plan::between(&old, &new, 0);
    assert_eq!((named(&plan).len(), plan.left_out_bytes), (0, 3 * MIB + 1000));
}

#[test]
fn a_root_that_came_from_nowhere_is_not_read_as_a_whole() {
    let memtable = Arc::new(Memtable::new());
    let first = Begun { at: at(7), over: None, memtable };
    let later = Begun { over: Some(root_ref(1)), ..first.clone() };
    assert_eq!(since(Some(root_ref(1)), None, at(7)), Since::Root(root_ref(1)));
    assert_eq!(since(Some(root_ref(1)), Some(&first), at(7)), Since::Root(root_ref(1)));
    assert_eq!(since(None, Some(&first), at(7)), Since::Nothing);
    assert_eq!(since(None, Some(&first), at(8)), Since::Unknown, "another checkpoint's");
    assert_eq!(since(None, Some(&later), at(7)), Since::Unknown);
    assert_eq!(since(None, None, at(7)), Since::Unknown, "a state snapshot");
}

/// WARM-W3.
#[test]
fn what_was_moved_is_kept_only_where_it_was_at_hand() {
    let mut memtable = Memtable::new();
    let place = JournalRef { index: LogIndex(6), header_offset: 0, op_sectors: 64, skip: 0 };
    memtable.insert(V, Lba(1000), Sectors(64), Source::Journal(place));
    memtable.insert(V, Lba(2000), Sectors(64), Source::Zero);
    let begun = Begun { at: at(7), over: Some(root_ref(1)), memtable: Arc::new(memtable) };
    let table = |lba| {
        let place = ExtentPlace { number: 0, offset: 64, sealed_len: 100, raw_len: 32 * 512, codec: Codec::Lz4 };
        vec![TableEntry { volume: V, lba: Lba(lba), place }]
    };
    let (seen, last) = (Some(&begun), Some(root_ref(1)));
    assert_eq!(keep(seen, last, at(7), &table(1032)), Keep::All, "written");
    assert_eq!(keep(seen, last, at(7), &table(5000)), Keep::AtHand, "moved");
    assert_eq!(keep(seen, last, at(7), &table(2000)), Keep::AtHand, "zeroes are in no segment");
    assert_eq!(keep(seen, last, at(9), &table(5000)), Keep::All, "another checkpoint's");
    assert_eq!(keep(seen, Some(root_ref(2)), at(7), &table(5000)), Keep::All, "there was one in between");
    assert_eq!(keep(None, last, at(7), &table(5000)), Keep::All, "its begin was not seen");
    assert_eq!(keep(seen, last, at(7), &[]), Keep::All);
}
