use super::*;
use holdfast_types::{Lba, LogIndex};
use holdfast_volume::index::JournalRef;
use holdfast_volume::map::PAGE_SECTORS;

const V: VolumeId = VolumeId(1);

/// In operations of 1 MiB at most.
fn written(generation: &mut Memtable, from: u64, sectors: u64) {
    for at in (0..sectors).step_by(2048) {
        let op = (sectors - at).min(2048);
        let op_sectors = u32::try_from(op).unwrap();
        let place = JournalRef { index: LogIndex(7 + at), header_offset: 0, op_sectors, skip: 0 };
        generation.insert(V, Lba(from + at), Sectors(op), Source::Journal(place));
    }
}

/// R9: a damaged page is given up only where nobody can read anything of it any more; that ends with the volume.
#[test]
fn a_page_is_covered_up_to_the_end_of_its_volume_and_not_less() {
    let page = |generation: &Memtable, size| covered(generation, V, 1, size);
    let end = PAGE_SECTORS + 1000;
    let mut generation = Memtable::new();
    assert!(!page(&generation, Some(Sectors(end))));
    assert!(page(&generation, None), "of a volume that is gone");
    assert!(page(&generation, Some(Sectors(PAGE_SECTORS))), "beyond the end");
    written(&mut generation, PAGE_SECTORS, 999);
    assert!(!page(&generation, Some(Sectors(end))), "one sector is missing");
    generation.insert(V, Lba(end - 1), Sectors(1), Source::Zero);
    assert!(page(&generation, Some(Sectors(end))));
    assert!(!page(&generation, Some(Sectors(end + 1))), "it grew before the checkpoint began");
    assert!(!page(&generation, Some(Sectors(4 * PAGE_SECTORS))));
    written(&mut generation, PAGE_SECTORS, PAGE_SECTORS);
    assert!(page(&generation, Some(Sectors(4 * PAGE_SECTORS))));
}

/// What a retry does not mend must not write the whole generation every few seconds.
#[test]
fn a_checkpoint_that_meets_damage_waits_for_minutes_and_one_that_meets_an_outage_does_not() {
    let bad = || UploadError::Read(ReadError::Operation { index: LogIndex(7), reason: "of another volume".into() });
    let after = |error: &UploadError| (0..20).fold(Duration::from_millis(100), |pause, _| next_pause(pause, error));
    assert_eq!(after(&bad()), LASTING_PAUSE_MAX);
    assert_eq!(after(&UploadError::Superseded), RETRY_PAUSE_MAX);
    assert_eq!(next_pause(LASTING_PAUSE_MAX, &UploadError::Superseded), RETRY_PAUSE_MAX, "the damage is gone");
    assert_eq!(next_pause(Duration::from_millis(100), &bad()), Duration::from_millis(200), "at first as ever");
}
