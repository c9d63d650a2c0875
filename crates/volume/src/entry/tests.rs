use super::*;
use holdfast_types::{LogIndex, Term};
use proptest::prelude::*;

fn data(sectors: u64, fill: u8) -> Bytes {
    Bytes::from((0..sectors * SECTOR_BYTES).map(|n| fill.wrapping_add((n / 7) as u8)).collect::<Vec<u8>>())
}

fn writes(payload: &Bytes) -> WritesView {
    match decode(payload) {
        Ok(EntryPayload::Writes(view)) => view,
        other => panic!("expected writes, found {other:?}"),
    }
}

fn sample() -> Bytes {
    let mut entry = EntryBuilder::new(Epoch(0x0102), WriteSeq(3));
    assert!(entry.try_push(OpKind::Write, VolumeId(1), Lba(8), Sectors(1), data(1, 5)));
    assert!(entry.try_push(OpKind::Trim, VolumeId(2), Lba(0), Sectors(1 << 32), Bytes::new()));
    assert!(entry.try_push(OpKind::Zero, VolumeId(1), Lba(16), Sectors(8), Bytes::new()));
    entry.finish()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The format on disks and wires: this test changes only together with the version.
#[test]
fn golden_bytes() {
    let entry = sample();
    assert_eq!(entry.len(), 32 + 32 + 512 + 32 + 32);
    assert_eq!(hex(&entry[..32]), GOLDEN_HEADER);
    assert_eq!(hex(&entry[32..64]), GOLDEN_WRITE);
    assert_eq!(hex(&entry[576..608]), GOLDEN_TRIM);
    assert_eq!(hex(&entry[608..]), GOLDEN_ZERO);
    let control = encode_control(&SetCommand::CheckpointBegin { term: Term(7) }).map(|bytes| hex(&bytes));
    assert_eq!(control.as_deref(), Ok(GOLDEN_CONTROL));
}

const GOLDEN_HEADER: &str = "010103008002000002010000000000000300000000000000000000004d957128";
const GOLDEN_WRITE: &str = "01006f70010000000800000000000000010000000000000094b80fc4632496b5";
const GOLDEN_TRIM: &str = "02006f700200000000000000000000000000000001000000000000006ca1de5b";
const GOLDEN_ZERO: &str = "03006f70010000001000000000000000080000000000000000000000ae51a28f";
const GOLDEN_CONTROL: &str = "02010000e572216b0407";

#[test]
fn ops_are_found_by_their_header_alone_and_share_the_entry_s_memory() {
    let payload = sample();
    let view = writes(&payload);
    assert_eq!((view.epoch, view.seq, view.len()), (Epoch(0x0102), WriteSeq(3), 3));
    let ops: Vec<Op> = view.ops().collect();
    assert_eq!(ops.iter().map(|op| op.header_offset).collect::<Vec<_>>(), vec![32, 576, 608]);
    for op in &ops {
        let (header, found) = check_op(&payload[op.header_offset as usize..]).expect("op");
        assert_eq!((header.kind, header.volume, header.lba, header.sectors), (op.kind, op.volume, op.lba, op.sectors));
        assert_eq!(found, &op.data[..]);
    }
    assert_eq!(ops[0].data, data(1, 5));
    assert!(payload.as_ptr_range().contains(&ops[0].data.as_ptr()), "no copy");
}

/// Ops are added under the lock of the sequencer's queue, and the entry is finished without it.
#[test]
fn checksums_of_data_are_calculated_when_the_entry_is_finished() {
    let mut entry = EntryBuilder::new(Epoch(1), WriteSeq(1));
    assert!(entry.try_push(OpKind::Write, VolumeId(1), Lba(0), Sectors(1), data(1, 5)));
    assert_eq!(entry.ops[0].0.data_crc, 0);
    assert!(check_op(&entry.finish()[ENTRY_HEADER_BYTES..]).is_ok());
}

#[test]
fn an_empty_entry_is_an_entry() {
    let payload = EntryBuilder::new(Epoch(1), WriteSeq(1)).finish();
    assert!(writes(&payload).is_empty());
}

#[test]
fn a_piece_is_served_only_from_the_op_that_the_index_meant() {
    let mut entry = EntryBuilder::new(Epoch(1), WriteSeq(1));
    assert!(entry.try_push(OpKind::Write, VolumeId(3), Lba(100), Sectors(8), data(8, 9)));
    let payload = entry.finish();
    let at = JournalRef { index: LogIndex(5), header_offset: 32, op_sectors: 8, skip: 2 };
    let (offset, len) = at.byte_range();
    let bytes = payload.slice(offset as usize..offset as usize + len);
    let read = |volume, lba, sectors, at: &JournalRef| read_piece(volume, Lba(lba), Sectors(sectors), at, &bytes);
    assert_eq!(read(VolumeId(3), 102, 3, &at), Ok(data(8, 9).slice(2 * 512..5 * 512)));
    assert_eq!(read(VolumeId(3), 102, 6, &at), Ok(data(8, 9).slice(2 * 512..)));
    for wrong in [
        read(VolumeId(4), 102, 3, &at),
        read(VolumeId(3), 103, 3, &at),
        read(VolumeId(3), 102, 7, &at),
        read(VolumeId(3), 102, u64::MAX, &at),
        read(VolumeId(3), 102, 3, &JournalRef { op_sectors: 9, ..at }),
    ] {
        assert!(matches!(wrong, Err(EntryError::Misplaced { .. })), "{wrong:?}");
    }
    // A zeroed range is valid, with the same place and length, but has nothing to read.
    let zero = sample().slice(608..);
    let at = JournalRef { index: LogIndex(5), header_offset: 608, op_sectors: 8, skip: 0 };
    assert!(matches!(read_piece(VolumeId(1), Lba(16), Sectors(8), &at, &zero), Err(EntryError::Misplaced { .. })));
}

/// R9: a part that a read takes from the journal is checked by itself.
#[test]
fn a_changed_byte_of_an_op_in_the_journal_is_found() {
    let op = sample().slice(32..576);
    assert!(check_op(&op).is_ok());
    for at in 0..op.len() {
        let mut bytes = op.to_vec();
        bytes[at] ^= 0x10;
        assert!(check_op(&bytes).is_err(), "byte {at}");
        assert!(check_op(&op[..at]).is_err(), "cut at {at}");
    }
}

#[test]
fn a_changed_byte_of_a_command_is_found() {
    let renew = SetCommand::Renew { epoch: Epoch(1 << 40) };
    let payload = encode_control(&renew).expect("control");
    assert!(matches!(decode(&payload), Ok(EntryPayload::Control(same)) if same == renew));
    for at in 0..payload.len() {
        let mut bytes = payload.to_vec();
        bytes[at] ^= 0x10;
        assert!(decode(&Bytes::from(bytes)).is_err(), "byte {at}");
        assert!(decode(&payload.slice(..at)).is_err(), "cut at {at}");
    }
}

#[test]
fn an_entry_is_full_by_bytes_or_by_ops() {
    let mut entry = EntryBuilder::new(Epoch(1), WriteSeq(1));
    assert!(entry.try_push(OpKind::Write, VolumeId(1), Lba(0), Sectors(WRITE_SECTORS_MAX), data(WRITE_SECTORS_MAX, 0)));
    let before = entry.bytes();
    assert!(!entry.try_push(
        OpKind::Write,
        VolumeId(1),
        Lba(0),
        Sectors(WRITE_SECTORS_MAX),
        data(WRITE_SECTORS_MAX, 0)
    ));
    assert_eq!((entry.bytes(), entry.ops()), (before, 1));
    let payload = entry.finish();
    assert_eq!(payload.len(), before);
    assert_eq!(writes(&payload).len(), 1);

    let mut entry = EntryBuilder::new(Epoch(1), WriteSeq(2));
    for n in 0..ENTRY_OPS_MAX as u64 {
        assert!(entry.try_push(OpKind::Trim, VolumeId(1), Lba(n), Sectors(1), Bytes::new()));
    }
    assert!(!entry.try_push(OpKind::Trim, VolumeId(1), Lba(0), Sectors(1), Bytes::new()));
    assert_eq!(writes(&entry.finish()).len(), ENTRY_OPS_MAX);
}

#[test]
#[should_panic(expected = "R5")]
fn a_write_of_other_length_than_its_data_is_our_own_mistake() {
    EntryBuilder::new(Epoch(1), WriteSeq(1)).try_push(OpKind::Write, VolumeId(1), Lba(0), Sectors(2), data(1, 0));
}

/// `bytes` with valid checksums again, as a hostile or newer writer could make them.
fn reseal(mut bytes: Vec<u8>) -> Bytes {
    let crc = crc32c::crc32c(&bytes[..28]);
    bytes[28..32].copy_from_slice(&crc.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[32..60]);
    bytes[60..64].copy_from_slice(&crc.to_le_bytes());
    Bytes::from(bytes)
}

#[test]
fn what_no_builder_writes_is_refused_even_with_right_checksums() {
    let change = |at: usize, with: &[u8]| {
        let mut bytes = sample().to_vec();
        bytes[at..at + with.len()].copy_from_slice(with);
        decode(&reseal(bytes)).map(|_| ())
    };
    assert_eq!(change(0, &[]), Ok(()));
    assert_eq!(change(1, &[2]), Err(EntryError::Version { found: 2 }));
    assert_eq!(change(24, &[1]), Err(EntryError::Reserved { at: 24 }));
    assert_eq!(change(2, &1025_u16.to_le_bytes()), Err(EntryError::Ops { found: 1025 }));
    assert!(matches!(change(2, &4_u16.to_le_bytes()), Err(EntryError::Short { at: 640, .. })));
    assert!(matches!(change(2, &2_u16.to_le_bytes()), Err(EntryError::Trailing { found: 640, expected: 608 })));
    assert!(matches!(change(4, &641_u32.to_le_bytes()), Err(EntryError::Short { expected: 641, .. })));
    assert!(matches!(change(4, &639_u32.to_le_bytes()), Err(EntryError::Trailing { .. })));
    assert_eq!(change(32, &[4]), Err(EntryError::Kind { at: 32, found: 4 }));
    assert_eq!(change(33, &[1]), Err(EntryError::Reserved { at: 33 }));
    assert!(matches!(change(34, &[0]), Err(EntryError::Magic { at: 32, .. })));
    for lba in [u64::MAX, VOLUME_SECTORS_MAX, u64::MAX - 1] {
        assert!(matches!(change(40, &lba.to_le_bytes()), Err(EntryError::Range { at: 32, .. })), "{lba}");
    }
    for sectors in [0, WRITE_SECTORS_MAX + 1, u64::MAX] {
        assert!(matches!(change(48, &sectors.to_le_bytes()), Err(EntryError::Range { at: 32, .. })), "{sectors}");
    }
    // Within bounds, but longer than the remaining bytes.
    assert!(matches!(change(48, &2048_u64.to_le_bytes()), Err(EntryError::Short { at: 64, .. })));
}

#[test]
fn entries_beyond_the_limit_and_trailing_bytes_are_refused() {
    let large = Bytes::from(vec![TAG_WRITES; ENTRY_BYTES_MAX + 1]);
    assert_eq!(decode(&large).map(|_| ()), Err(EntryError::TooLarge { found: ENTRY_BYTES_MAX + 1 }));
    let mut longer = sample().to_vec();
    longer.push(0);
    assert!(matches!(decode(&Bytes::from(longer)), Err(EntryError::Trailing { .. })));
    let mut control = encode_control(&SetCommand::Renew { epoch: Epoch(9) }).expect("control").to_vec();
    control.push(0);
    let crc = crc32c::crc32c(&control[CONTROL_HEADER_BYTES..]);
    control[4..8].copy_from_slice(&crc.to_le_bytes());
    assert!(matches!(decode(&Bytes::from(control)), Err(EntryError::Trailing { .. })));
}

#[derive(Clone, Debug)]
struct Spec {
    kind: OpKind,
    volume: u32,
    lba: u64,
    sectors: u64,
    fill: u8,
}

fn spec() -> impl Strategy<Value = Spec> {
    let kind = prop_oneof![3 => Just(OpKind::Write), 1 => Just(OpKind::Trim), 1 => Just(OpKind::Zero)];
    (kind, any::<u32>(), 0..VOLUME_SECTORS_MAX - 64, 1_u64..=64, any::<u8>()).prop_map(
        |(kind, volume, lba, sectors, fill)| {
            let sectors = if kind == OpKind::Write { sectors.min(5) } else { sectors };
            Spec { kind, volume, lba, sectors, fill }
        },
    )
}

fn build(specs: &[Spec]) -> Bytes {
    let mut entry = EntryBuilder::new(Epoch(11), WriteSeq(22));
    for Spec { kind, volume, lba, sectors, fill } in specs {
        let data = if *kind == OpKind::Write { data(*sectors, *fill) } else { Bytes::new() };
        assert!(entry.try_push(*kind, VolumeId(*volume), Lba(*lba), Sectors(*sectors), data));
    }
    let bytes = entry.bytes();
    let payload = entry.finish();
    assert_eq!(payload.len(), bytes);
    payload
}

proptest! {
    #[test]
    fn round_trip(specs in prop::collection::vec(spec(), 0..12)) {
        let payload = build(&specs);
        let view = writes(&payload);
        prop_assert_eq!((view.epoch, view.seq, view.len()), (Epoch(11), WriteSeq(22), specs.len()));
        let mut count = 0;
        for (op, spec) in view.ops().zip(&specs) {
            prop_assert_eq!((op.kind, op.volume.0, op.lba.0, op.sectors.0), (spec.kind, spec.volume, spec.lba, spec.sectors));
            let expected = if spec.kind == OpKind::Write { data(spec.sectors, spec.fill) } else { Bytes::new() };
            prop_assert_eq!(&op.data, &expected);
            prop_assert!(op.header_offset.is_multiple_of(32), "ENTRY-E2");
            count += 1;
        }
        prop_assert_eq!(count, specs.len());
    }

    /// R9: no byte is outside of a checksum.
    #[test]
    fn a_changed_byte_anywhere_is_found(
        specs in prop::collection::vec(spec(), 0..4),
        at in any::<prop::sample::Index>(),
        change in 1_u8..,
    ) {
        let mut bytes = build(&specs).to_vec();
        let at = at.index(bytes.len());
        bytes[at] ^= change;
        prop_assert!(decode(&Bytes::from(bytes)).is_err(), "byte {at}");
    }

    #[test]
    fn a_cut_entry_is_found(specs in prop::collection::vec(spec(), 0..4), at in any::<prop::sample::Index>()) {
        let payload = build(&specs);
        prop_assert!(decode(&payload.slice(..at.index(payload.len()))).is_err());
    }

    #[test]
    fn any_bytes_are_an_error_or_an_entry(bytes in prop::collection::vec(any::<u8>(), 0..400), tag in 0_u8..4) {
        let _ = check_op(&bytes);
        let _ = decode(&Bytes::from(bytes.clone()));
        let mut tagged = bytes;
        if let Some(first) = tagged.first_mut() {
            *first = tag;
        }
        let _ = decode(&Bytes::from(tagged));
    }

    /// With valid checksums, so that the fuzz reaches the code behind them.
    #[test]
    fn changed_headers_with_right_checksums_never_panic(
        specs in prop::collection::vec(spec(), 1..3),
        changes in prop::collection::vec((0_usize..64, any::<u8>()), 1..6),
    ) {
        let mut bytes = build(&specs).to_vec();
        for (at, with) in changes {
            bytes[at] = with;
        }
        bytes[0] = TAG_WRITES;
        if let Ok(EntryPayload::Writes(view)) = decode(&reseal(bytes)) {
            prop_assert_eq!(view.ops().count(), view.len());
        }
    }

    /// The same for commands: postcard decodes or refuses any bytes.
    #[test]
    fn any_command_bytes_are_an_error_or_a_command(body in prop::collection::vec(any::<u8>(), 0..120)) {
        let mut bytes = vec![TAG_CONTROL, VERSION, 0, 0];
        bytes.extend_from_slice(&crc32c::crc32c(&body).to_le_bytes());
        bytes.extend_from_slice(&body);
        if let Ok(EntryPayload::Control(command)) = decode(&Bytes::from(bytes)) {
            let again = encode_control(&command).expect("encodes");
            prop_assert!(matches!(decode(&again), Ok(EntryPayload::Control(same)) if same == command));
        }
    }
}
