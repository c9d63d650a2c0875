use super::*;
use crate::object::tests::assert_kept;
use holdfast_seal::TAG_BYTES;
use holdfast_types::Term;
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

fn builder() -> EntryBuilder {
    let mut entry = EntryBuilder::new(Epoch(0x0102), WriteSeq(3)).of(SET);
    assert!(entry.try_push(OpKind::Write, VolumeId(1), Lba(8), Sectors(1), data(1, 5)));
    assert!(entry.try_push(OpKind::Trim, VolumeId(2), Lba(0), Sectors(1 << 32), Bytes::new()));
    assert!(entry.try_push(OpKind::Zero, VolumeId(1), Lba(16), Sectors(8), Bytes::new()));
    entry
}

const SET: SetId = GroupId(9);

fn sample() -> Bytes {
    builder().finish()
}

fn key(byte: u8) -> EntryKey {
    EntryKey::new([byte; ENTRY_KEY_BYTES])
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The format on disks and wires, computed with another implementation: this test changes only together with the
/// version.
#[test]
fn golden_bytes() {
    let entry = sample();
    assert_eq!(entry.len(), 160 + 32 + 512);
    assert_eq!(hex(&entry[..72]), GOLDEN_HEADER);
    assert_eq!(hex(&entry[72..160]), GOLDEN_OPS);
    assert_eq!(hex(&entry[160..192]), GOLDEN_BLOCK);
    let sealed = builder().finish_sealed(key(4));
    assert_eq!(hex(&sealed[..72]), GOLDEN_SEALED_HEADER);
    assert_eq!(hex(&sealed[160..208]), GOLDEN_SEALED_BLOCK);
    assert_eq!(crc32c::crc32c(&sealed), 0x913f_fc05);
    let mut large = EntryBuilder::new(Epoch(1), WriteSeq(1)).of(SET);
    assert!(large.try_push(OpKind::Write, VolumeId(1), Lba(0), Sectors(80), data(80, 9)));
    let large = large.finish_sealed(key(4));
    assert_eq!((large.len(), crc32c::crc32c(&large)), (41_120, 0x8d00_98b8), "three units");
    let control = encode_control(&SetCommand::CheckpointBegin { term: Term(7) }).map(|bytes| hex(&bytes));
    assert_eq!(control.as_deref(), Ok(GOLDEN_CONTROL));
}

/// Journals have entries of earlier releases (docs/formats.md).
#[test]
fn entries_of_each_release_are_read() {
    type Found = (Epoch, WriteSeq, Vec<(OpKind, VolumeId, Lba, Sectors, Bytes)>);
    let read = |bytes: &[u8]| -> Result<Found, EntryError> {
        let view = writes(&Bytes::copy_from_slice(bytes));
        let ops = view.ops()?.into_iter().map(|op| (op.kind, op.volume, op.lba, op.sectors, op.data));
        Ok((view.epoch, view.seq, ops.collect()))
    };
    let ops = vec![
        (OpKind::Write, VolumeId(1), Lba(8), Sectors(1), data(1, 5)),
        (OpKind::Trim, VolumeId(2), Lba(0), Sectors(1 << 32), Bytes::new()),
        (OpKind::Zero, VolumeId(1), Lba(16), Sectors(8), Bytes::new()),
    ];
    let expected = Ok((Epoch(0x0102), WriteSeq(3), ops));
    assert_kept("entry-clear", &sample(), &expected, read);
    assert_kept("entry-sealed", &builder().finish_sealed(key(4)), &expected, read);
    let command = SetCommand::CheckpointBegin { term: Term(7) };
    let control = |bytes: &[u8]| match decode(&Bytes::copy_from_slice(bytes)) {
        Ok(EntryPayload::Control(command)) => Some(command),
        _ => None,
    };
    assert_kept("entry-control", &encode_control(&command).expect("short"), &Some(command), control);
}

const GOLDEN_HEADER: &str = "01020300c0020000020100000000000003000000000000000900000000000000\
    000000000000000000000000000000000000000000000000000000000000000095c7dd8100000000";
const GOLDEN_OPS: &str = "010000000100000008000000000000000100000000000000\
    020000000200000000000000000000000000000001000000030000000100000010000000000000000800000000000000\
    00000000000000000000000000000000";
const GOLDEN_BLOCK: &str = "6f7000007f2c562c000000000000000001000000080000000000000001000000";
const GOLDEN_SEALED_HEADER: &str = "01020300c0020000020100000000000003000000000000000900000000000000\
    0404040404040404040404040404040404040404040404040404040404040404ccc8563f00000000";
const GOLDEN_SEALED_BLOCK: &str = "6f700000b2cf999500000000000000001c13c454287b5fd7ca7a69d9145a752d\
    000ad19355584e7e2bc06f41e249dfdf";
const GOLDEN_CONTROL: &str = "02010000e572216b0407";

#[test]
fn ops_come_back_and_share_the_entry_s_memory_if_they_are_in_clear() {
    let payload = sample();
    let view = writes(&payload);
    assert_eq!((view.set, view.epoch, view.seq, view.len()), (SET, Epoch(0x0102), WriteSeq(3), 3));
    let ops = view.ops().expect("in clear");
    assert_eq!(ops.iter().map(|op| op.header_offset).collect::<Vec<_>>(), vec![160, 704, 704]);
    for ((offset, header), op) in view.headers().zip(&ops) {
        assert_eq!(offset, op.header_offset);
        assert_eq!((header.kind, header.volume, header.lba, header.sectors), (op.kind, op.volume, op.lba, op.sectors));
    }
    assert_eq!(ops[0].data, data(1, 5));
    assert!(payload.as_ptr_range().contains(&ops[0].data.as_ptr()), "no copy");
    assert_eq!(writes(&builder().finish_sealed(key(4))).ops(), Ok(ops), "sealed, it is the same");
}

/// Ops are added under the lock of the sequencer's queue, and the entry is finished without it.
#[test]
fn data_is_not_looked_at_before_the_entry_is_finished() {
    let (mut entry, data) = (EntryBuilder::new(Epoch(1), WriteSeq(1)), data(1, 5));
    assert!(entry.try_push(OpKind::Write, VolumeId(1), Lba(0), Sectors(1), data.clone()));
    assert_eq!(entry.ops[0].1.as_ptr(), data.as_ptr(), "no copy");
    assert!(decode(&entry.finish()).is_ok());
}

#[test]
fn an_empty_entry_is_an_entry() {
    let payload = EntryBuilder::new(Epoch(1), WriteSeq(1)).finish();
    assert!(writes(&payload).is_empty());
}

/// An entry with one write of 80 sectors, which are three units, at sector 100 of volume 3.
fn one_write(key: Option<EntryKey>, seq: u64, fill: u8) -> Bytes {
    let mut entry = EntryBuilder::new(Epoch(1), WriteSeq(seq)).of(SET);
    assert!(entry.try_push(OpKind::Write, VolumeId(3), Lba(100), Sectors(80), data(80, fill)));
    match key {
        Some(key) => entry.finish_sealed(key),
        None => entry.finish(),
    }
}

const AT: JournalRef = JournalRef { index: LogIndex(5), header_offset: 96, op_sectors: 80, skip: 2 };

/// A piece of the op at `at`, by the header of `head` and the block of `block`. Read alone and behind other data alike.
fn piece_of(
    head: &Bytes,
    block: &Bytes,
    volume: u32,
    (lba, sectors): (u64, u64),
    at: &JournalRef,
) -> Result<Bytes, EntryError> {
    let (offset, len) = at.byte_range();
    let block = block.slice(offset as usize..(offset as usize + len).min(block.len()));
    let (volume, lba, sectors) = (VolumeId(volume), Lba(lba), Sectors(sectors));
    let head = &head[..ENTRY_HEADER_BYTES];
    let alone = read_piece(volume, lba, sectors, at, head, &block);
    let mut joined = vec![7; 5];
    let behind = CheckedOp::new(EntryHead::read(head)?, at, block)
        .and_then(|op| op.append_piece(volume, lba, sectors, at, &mut joined));
    match &alone {
        Ok(piece) => assert_eq!((behind, &joined[..5], &joined[5..]), (Ok(()), &[7; 5][..], &piece[..])),
        Err(error) => assert_eq!(behind.as_ref(), Err(error)),
    }
    alone
}

#[test]
fn a_piece_is_served_only_from_the_op_that_the_index_meant() {
    for payload in [one_write(None, 1, 9), one_write(Some(key(4)), 1, 9)] {
        let read = |volume, piece, at: &JournalRef| piece_of(&payload, &payload, volume, piece, at);
        for (lba, sectors) in [(102, 3), (102, 78), (102, 1), (102, 32), (130, 40), (179, 1)] {
            let at = JournalRef { skip: (lba - 100) as u32, ..AT };
            let from = (lba as usize - 100) * 512;
            let expected = data(80, 9).slice(from..from + sectors as usize * 512);
            assert_eq!(read(3, (lba, sectors), &at), Ok(expected), "{sectors} at {lba}");
        }
        for wrong in [
            read(4, (102, 3), &AT),
            read(3, (103, 3), &AT),
            read(3, (1, 3), &AT),
            read(3, (102, 79), &AT),
            read(3, (102, u64::MAX), &AT),
            read(3, (102, 3), &JournalRef { op_sectors: 79, ..AT }),
            read(3, (102, 3), &JournalRef { op_sectors: 81, ..AT }),
        ] {
            assert!(wrong.is_err(), "{wrong:?}");
        }
        let elsewhere = read(4, (102, 3), &AT).unwrap_err();
        assert!(matches!(elsewhere, EntryError::Misplaced { .. } | EntryError::NotAuthentic { .. }), "{elsewhere:?}");
    }
}

/// ENTRY-E5: a follower keeps the sealed bytes and does not look at their tags. What does not belong to the entry is
/// found when it is read, whatever was made to fit: checksums, places, lengths.
#[test]
fn data_of_another_entry_set_or_unit_is_never_served() {
    let payload = one_write(Some(key(4)), 1, 9);
    let read = |head: &Bytes, block: &Bytes| piece_of(head, block, 3, (102, 78), &AT);
    assert!(read(&payload, &payload).is_ok());
    let not_authentic = |found: Result<Bytes, EntryError>, unit: usize, what: &str| match found {
        Err(EntryError::NotAuthentic { unit: found, .. }) => assert_eq!(found, unit, "{what}"),
        other => panic!("{what}: {other:?}"),
    };
    // The same op at the same place of another entry, under its own key: an older content of the same sectors.
    not_authentic(read(&payload, &one_write(Some(key(5)), 1, 8)), 0, "a block of another entry");
    // Even if a key came twice, it would not open what was sealed with another number, epoch or set.
    not_authentic(read(&payload, &one_write(Some(key(4)), 2, 9)), 0, "of another number");
    let changed = |at: usize| {
        let mut head = payload.to_vec();
        head[at] ^= 1;
        Bytes::from(head)
    };
    for (at, what) in [(8, "epoch"), (16, "number"), (24, "set"), (32, "key")] {
        not_authentic(read(&changed(at), &payload), 0, what);
    }
    // Two units exchanged with their tags, and the checksum made to fit.
    let mut bytes = payload.to_vec();
    let (head_bytes, unit) = (block_bytes(80 * 512) - 80 * 512, UNIT_BYTES);
    for n in 0..TAG_BYTES {
        bytes.swap(96 + 16 + n, 96 + 32 + n);
    }
    for n in 0..unit {
        bytes.swap(96 + head_bytes + n, 96 + head_bytes + unit + n);
    }
    let crc = crc32c::crc32c(&bytes[104..]);
    bytes[100..104].copy_from_slice(&crc.to_le_bytes());
    not_authentic(read(&payload, &Bytes::from(bytes)), 0, "units exchanged");
    // A flipped bit of the last unit, likewise.
    let mut bytes = payload.to_vec();
    *bytes.last_mut().unwrap() ^= 1;
    assert!(matches!(read(&payload, &Bytes::from(bytes.clone())), Err(EntryError::Checksum { .. })));
    let crc = crc32c::crc32c(&bytes[104..]);
    bytes[100..104].copy_from_slice(&crc.to_le_bytes());
    not_authentic(read(&payload, &Bytes::from(bytes)), 2, "a flipped bit");
}

/// SEAL-S4: what is equal in clear is different when it is sealed, within an entry and between two.
#[test]
fn equal_data_is_never_sealed_alike() {
    let mut entry = EntryBuilder::new(Epoch(1), WriteSeq(1)).of(SET);
    let zeroes = Bytes::from(vec![0; 2 * UNIT_BYTES]);
    for _ in 0..2 {
        let sectors = Sectors(2 * UNIT_BYTES as u64 / SECTOR_BYTES);
        assert!(entry.try_push(OpKind::Write, VolumeId(1), Lba(0), sectors, zeroes.clone()));
    }
    let sealed = entry.finish_sealed(key(4));
    assert!(!sealed[front_bytes(2)..].windows(64).any(|part| part.iter().all(|byte| *byte == 0)), "readable");
    let mut seen = std::collections::BTreeSet::new();
    let mut at = front_bytes(2);
    for _ in 0..2 {
        let data = at + block_bytes(zeroes.len()) - zeroes.len();
        for unit in 0..2 {
            assert!(seen.insert(sealed[data + unit * UNIT_BYTES..][..64].to_vec()), "unit {unit} of the block at {at}");
        }
        at += block_bytes(zeroes.len());
    }
}

/// ENTRY-E4.
#[test]
fn an_entry_of_another_set_is_refused() {
    let refused = EntryError::OtherSet { found: SET, expected: GroupId(8) };
    for payload in [sample(), builder().finish_sealed(key(4))] {
        assert!(decode_of(SET, &payload).is_ok());
        assert_eq!(decode_of(GroupId(8), &payload).map(drop), Err(refused.clone()));
    }
    let command = encode_control(&SetCommand::Renew { epoch: Epoch(9) }).expect("control");
    assert!(decode_of(GroupId(8), &command).is_ok(), "commands name no set");
}

/// ENTRY-E6: a journal seals the front, in which the key is, and everything that it is not sure of.
#[test]
fn what_is_in_clear_is_known_by_the_front() {
    let sealed = builder().finish_sealed(key(4));
    assert_eq!(clear_bytes(&sealed), 160);
    assert_eq!(clear_bytes(&sample()), sample().len());
    for at in 0..160 {
        let mut bytes = sealed.to_vec();
        bytes[at] ^= 0x10;
        assert_eq!(clear_bytes(&bytes), bytes.len(), "byte {at}");
    }
    assert_eq!(clear_bytes(&sealed[..159]), 159);
    let command = encode_control(&SetCommand::Renew { epoch: Epoch(9) }).expect("control");
    assert_eq!(clear_bytes(&command), command.len());
    assert_eq!(clear_bytes(b""), 0);
}

/// R9: a part that a read takes from the journal is checked by itself.
#[test]
fn a_changed_byte_of_an_op_in_the_journal_is_found() {
    for payload in [one_write(None, 1, 9), one_write(Some(key(4)), 1, 9)] {
        let read = |block: &[u8]| {
            let block = Bytes::copy_from_slice(block);
            read_piece(VolumeId(3), Lba(102), Sectors(1), &AT, &payload[..ENTRY_HEADER_BYTES], &block)
        };
        let block = &payload[96..];
        assert!(read(block).is_ok());
        for at in (0..block.len()).filter(|at| *at < 200 || at % 97 == 0) {
            let mut bytes = block.to_vec();
            bytes[at] ^= 0x10;
            assert!(read(&bytes).is_err(), "byte {at}");
            assert!(read(&block[..at]).is_err(), "cut at {at}");
        }
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

/// What a kernel without random bytes would give.
#[test]
#[should_panic(expected = "R10")]
fn a_key_of_zeroes_seals_nothing() {
    drop(builder().finish_sealed(key(0)));
}

/// `bytes` with valid checksums again, as a hostile or newer writer could make them: of the front, and of the block of
/// [`sample`].
fn reseal(mut bytes: Vec<u8>) -> Bytes {
    let ops = usize::from(u16::from_le_bytes([bytes[2], bytes[3]]));
    let front = front_bytes(ops).min(bytes.len());
    let crc = front_crc(&bytes[..front]);
    bytes[64..68].copy_from_slice(&crc.to_le_bytes());
    if bytes.len() == 704 {
        let crc = crc32c::crc32c(&bytes[168..]);
        bytes[164..168].copy_from_slice(&crc.to_le_bytes());
    }
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
    assert_eq!(change(1, &[1]), Err(EntryError::Version { found: 1, expected: 2 }));
    assert_eq!(change(68, &[1]), Err(EntryError::Reserved { at: 68 }));
    assert_eq!(change(150, &[1]), Err(EntryError::Reserved { at: 150 }));
    assert_eq!(change(2, &1025_u16.to_le_bytes()), Err(EntryError::Ops { found: 1025 }));
    assert!(change(2, &4_u16.to_le_bytes()).is_err());
    assert!(change(2, &2_u16.to_le_bytes()).is_err());
    assert!(matches!(change(4, &705_u32.to_le_bytes()), Err(EntryError::Short { expected: 705, .. })));
    assert!(matches!(change(4, &703_u32.to_le_bytes()), Err(EntryError::Trailing { .. })));
    assert_eq!(change(72, &[4]), Err(EntryError::Kind { at: 72, found: 4 }));
    assert_eq!(change(73, &[1]), Err(EntryError::Reserved { at: 73 }));
    for lba in [u64::MAX, VOLUME_SECTORS_MAX, u64::MAX - 1] {
        assert!(matches!(change(80, &lba.to_le_bytes()), Err(EntryError::Range { at: 72, .. })), "{lba}");
    }
    for sectors in [0, WRITE_SECTORS_MAX + 1, u64::MAX] {
        assert!(matches!(change(88, &sectors.to_le_bytes()), Err(EntryError::Range { at: 72, .. })), "{sectors}");
    }
    // Within bounds, but longer than the remaining bytes.
    assert!(matches!(change(88, &2048_u64.to_le_bytes()), Err(EntryError::Short { .. })));
    assert!(matches!(change(160, &[0]), Err(EntryError::Magic { at: 160, .. })));
    assert_eq!(change(162, &[1]), Err(EntryError::Reserved { at: 162 }));
    assert_eq!(change(175, &[1]), Err(EntryError::Reserved { at: 175 }));
    // A block in clear names its place.
    assert!(matches!(change(176, &[2]), Err(EntryError::Misplaced { at: 160, .. })));
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

fn build(specs: &[Spec], sealed: bool) -> Bytes {
    let mut entry = EntryBuilder::new(Epoch(11), WriteSeq(22)).of(SET);
    for Spec { kind, volume, lba, sectors, fill } in specs {
        let data = if *kind == OpKind::Write { data(*sectors, *fill) } else { Bytes::new() };
        assert!(entry.try_push(*kind, VolumeId(*volume), Lba(*lba), Sectors(*sectors), data));
    }
    let bytes = entry.bytes();
    let payload = if sealed { entry.finish_sealed(key(7)) } else { entry.finish() };
    assert_eq!(payload.len(), bytes);
    payload
}

proptest! {
    #[test]
    fn round_trip(specs in prop::collection::vec(spec(), 0..12), sealed: bool) {
        let payload = build(&specs, sealed);
        let view = writes(&payload);
        prop_assert_eq!((view.epoch, view.seq, view.len()), (Epoch(11), WriteSeq(22), specs.len()));
        let mut count = 0;
        for (op, spec) in view.ops().expect("opens").into_iter().zip(&specs) {
            let found = (op.kind, op.volume.0, op.lba.0, op.sectors.0);
            prop_assert_eq!(found, (spec.kind, spec.volume, spec.lba, spec.sectors));
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
        sealed: bool,
    ) {
        let mut bytes = build(&specs, sealed).to_vec();
        let at = at.index(bytes.len());
        bytes[at] ^= change;
        prop_assert!(decode(&Bytes::from(bytes)).is_err(), "byte {at}");
    }

    #[test]
    fn a_cut_entry_is_found(specs in prop::collection::vec(spec(), 0..4), at in any::<prop::sample::Index>()) {
        let payload = build(&specs, true);
        prop_assert!(decode(&payload.slice(..at.index(payload.len()))).is_err());
    }

    #[test]
    fn any_bytes_are_an_error_or_an_entry(bytes in prop::collection::vec(any::<u8>(), 0..400), tag in 0_u8..4) {
        let at = JournalRef { index: LogIndex(1), header_offset: 96, op_sectors: 1, skip: 0 };
        let block = Bytes::copy_from_slice(&bytes);
        let _ = read_piece(VolumeId(1), Lba(0), Sectors(1), &at, &bytes, &block);
        let _ = clear_bytes(&bytes);
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
        changes in prop::collection::vec((0_usize..96, any::<u8>()), 1..6),
        sealed: bool,
    ) {
        let mut bytes = build(&specs, sealed).to_vec();
        for (at, with) in changes {
            bytes[at] = with;
        }
        bytes[0] = TAG_WRITES;
        if let Ok(EntryPayload::Writes(view)) = decode(&reseal(bytes)) {
            prop_assert_eq!(view.headers().count(), view.len());
            // A changed key or number opens nothing; that is no panic.
            let _ = view.ops();
        }
    }

    /// The same for commands: postcard decodes or refuses any bytes.
    #[test]
    fn any_command_bytes_are_an_error_or_a_command(body in prop::collection::vec(any::<u8>(), 0..120)) {
        let mut bytes = vec![TAG_CONTROL, VERSION_CONTROL, 0, 0];
        bytes.extend_from_slice(&crc32c::crc32c(&body).to_le_bytes());
        bytes.extend_from_slice(&body);
        if let Ok(EntryPayload::Control(command)) = decode(&Bytes::from(bytes)) {
            let again = encode_control(&command).expect("encodes");
            prop_assert!(matches!(decode(&again), Ok(EntryPayload::Control(same)) if same == command));
        }
    }
}
