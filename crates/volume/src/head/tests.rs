use super::*;
use crate::object::tests::{OBJECT, assert_golden, assert_kept, framed, from_hex, object, opener, sealer};
use holdfast_control::set::{CloneOf, Pin, RootRef, Snapshot, SnapshotList, Volume};
use holdfast_types::{GroupId, LogIndex, RequestId, Sectors, VolumeId};
use proptest::prelude::*;

fn keyring() -> Keyring {
    Keyring { wrapped_key: vec![7; 5], passphrase: Argon2id { memory_kib: 300, passes: 2, lanes: 1, salt: [9; 16] } }
}

fn head() -> Head {
    let volume = Volume { name: Name::new("vol1").unwrap(), size: Sectors(300) };
    Head {
        life: SetLife { cluster: 77, generation: 2 },
        raised_for: 0,
        name: Name::new("demo").unwrap(),
        epoch: Epoch(1 << 48),
        covered: Some(Covered { upto: LogId::new(3, 400), generation: 1, at_unix_ms: 5 }),
        content: Restored {
            volumes: vec![(VolumeId(1), volume)],
            next_volume: 2,
            root: Some(RootRef { object: object(4), bytes: 500 }),
        },
        links: Links::default(),
    }
}

/// The head of a clone with a clone of its own.
fn linked() -> Head {
    let (root, request) = (RootRef { object: object(4), bytes: 500 }, RequestId(11));
    let snapshot = Name::new("monday").unwrap();
    let pin =
        Pin { clone: GroupId(9), root, upto: LogId::new(3, 40), snapshot: snapshot.clone(), at: LogId::new(3, 300) };
    let clone_of = CloneOf { origin: GroupId(1), snapshot, root, request: RequestId(12) };
    let (pins, pins_at) = ([(request, pin)].into_iter().collect(), LogId::new(3, 300));
    Head { links: Links { pins, pins_at, clone_of: Some(clone_of), ..Links::default() }, ..head() }
}

/// The head of a clone with snapshots of equal volumes, and one of others.
fn listed() -> Head {
    let volumes = |last: u32| {
        let one = |id| (VolumeId(id), Volume { name: Name::new(format!("vol{id}")).unwrap(), size: Sectors(300) });
        (1..=last).map(one).collect::<Vec<_>>()
    };
    let snapshot = |number: u64, last, scheduled| Snapshot {
        upto: LogId::new(3, 100 + number),
        root: RootRef { object: object(number.into()), bytes: 500 + number },
        volumes: volumes(last).into_iter().collect(),
        request: RequestId(number.into()),
        at_unix_ms: 1000 * number,
        scheduled,
    };
    let all = [("b", snapshot(1, 2, true)), ("c", snapshot(2, 2, false)), ("a", snapshot(3, 1, true))];
    let snapshots = SnapshotList {
        snapshots: all.into_iter().map(|(name, snapshot)| (Name::new(name).unwrap(), snapshot)).collect(),
        schedule: "15mx8,1dx30".parse().unwrap(),
        as_of: LogIndex(420),
    };
    Head { links: Links { snapshots, ..linked().links }, ..head() }
}

#[test]
fn bytes_of_a_head_with_snapshots_are_pinned() {
    let kept = include_str!("../../golden/head_snapshots.hex");
    assert_golden("head_snapshots", &seal_head(&listed(), &keyring(), sealer(OBJECT)), kept);
    assert_eq!(open_head(&opener(OBJECT), &from_hex(kept)).unwrap(), listed());
    assert_kept("head_snapshots", &from_hex(kept), &Some(listed()), |bytes| open_head(&opener(OBJECT), bytes).ok());
}

/// A snapshot's log position means nothing in the next life, whose log begins anew.
#[test]
fn the_next_life_inherits_the_snapshots() {
    let (before, raised) = (listed().links.snapshots, listed().raised(99, 5).links.snapshots);
    assert_eq!((raised.as_of, &raised.schedule), (LogIndex(0), &before.schedule));
    assert!(raised.snapshots.values().all(|snapshot| snapshot.upto == LogId::default()));
    let rest = |list: &SnapshotList| {
        let of = |(name, s): (&Name, &Snapshot)| (name.clone(), s.root, s.request, s.at_unix_ms, s.volumes.clone());
        list.snapshots.iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(rest(&raised), rest(&before));
}

#[test]
fn bytes_of_a_head_with_links_are_pinned() {
    let kept = include_str!("../../golden/head_links.hex");
    assert_golden("head_links", &seal_head(&linked(), &keyring(), sealer(OBJECT)), kept);
    assert_eq!(open_head(&opener(OBJECT), &from_hex(kept)).unwrap(), linked());
    assert_kept("head_links", &from_hex(kept), &Some(linked()), |bytes| open_head(&opener(OBJECT), bytes).ok());
}

/// A log position of the former life means nothing in the next: pins with one are known to be of an earlier life.
#[test]
fn the_next_life_inherits_the_links() {
    let raised = linked().raised(99, 5);
    let pins: Vec<_> = raised.links.pins.iter().map(|(request, pin)| (*request, pin.at, pin.clone)).collect();
    assert_eq!(pins, [(RequestId(11), LogId::default(), GroupId(9))]);
    assert_eq!((raised.links.pins_at, raised.links.clone_of), (LogId::default(), linked().links.clone_of));
}

#[test]
fn head_bytes_are_pinned() {
    let kept = include_str!("../../golden/head.hex");
    assert_golden("head", &seal_head(&head(), &keyring(), sealer(OBJECT)), kept);
    let bytes = from_hex(kept);
    assert_eq!(read_keyring(&bytes).unwrap().1, keyring());
    assert_eq!(open_head(&opener(OBJECT), &bytes).unwrap(), head());
    assert_kept("head", &bytes, &Some(head()), |bytes| open_head(&opener(OBJECT), bytes).ok());
}

#[test]
fn a_head_says_whose_it_is() {
    let ours = SetLife { cluster: 77, generation: 2 };
    assert_eq!(head().standing(ours), Standing::Ours);
    assert_eq!(head().standing(SetLife { generation: 1, ..ours }), Standing::Taken, "HEAD-H1: a recovery raised it");
    assert_eq!(head().standing(SetLife { cluster: 78, ..ours }), Standing::Taken, "HEAD-H1: another recovery won");
    assert_eq!(head().standing(SetLife { generation: 3, ..ours }), Standing::Older, "a stale read is no proof");
    let raised = head().raised(99, 5);
    assert_eq!(raised.life, SetLife { cluster: 99, generation: 3 });
    assert_eq!((raised.content.clone(), raised.covered, raised.raised_for), (head().content, head().covered, 5));
    assert_eq!(raised.standing(ours), Standing::Taken);
}

#[test]
fn what_is_covered_only_grows() {
    let next = |generation, index| Covered { upto: LogId::new(3, index), generation, at_unix_ms: 9 };
    assert!(head().covers(&next(1, 400)) && head().covers(&next(1, 399)));
    assert!(!head().covers(&next(1, 401)), "HEAD-H2");
    assert!(!head().covers(&next(2, 1)), "another life's log begins anew");
}

#[test]
fn a_keyring_in_clear_is_bound_to_the_sealed_one() {
    let mut forged = vec![0; OBJECT_HEADER_BYTES];
    let other = Keyring { wrapped_key: vec![8; 5], ..keyring() };
    forged.extend_from_slice(&write(KEYRING_MAGIC, &other));
    let plain = write(HEAD_MAGIC, &(keyring(), head()));
    seal_frame(ObjectKind::Head, &mut sealer(OBJECT), Part::Header, &plain, &mut forged);
    let error = open_head(&opener(OBJECT), &forged).unwrap_err().to_string();
    assert_eq!(error, "keyring of a head: found another one in clear, expected the one that was sealed with it");
}

#[test]
fn another_object_is_no_head() {
    let root = framed(ObjectKind::Root, Part::Root, &write(KEYRING_MAGIC, &keyring()), b"x");
    let error = open_head(&opener(OBJECT), &root).unwrap_err().to_string();
    assert!(error.ends_with("found a root, expected a head"), "{error}");
    let error = read_keyring(&vec![0; HEAD_BYTES_MAX + 1]).unwrap_err().to_string();
    assert!(error.contains("expected at most 512 KiB"), "{error}");
}

proptest! {
    #[test]
    fn a_flipped_bit_is_found(at in 0usize..600, bit in 0u8..8) {
        let whole = seal_head(&head(), &keyring(), sealer(OBJECT)).to_vec();
        let mut damaged = whole.clone();
        let at = at % whole.len();
        damaged[at] ^= 1 << bit;
        prop_assert!(open_head(&opener(OBJECT), &damaged).is_err(), "byte {}", at);
        prop_assert!(open_head(&opener(OBJECT), &whole[..at]).is_err(), "cut to {}", at);
    }
}
