//! The simulated disk keeps the contract that the journal relies on.

use super::*;

fn block(byte: u8) -> AlignedBuf {
    let mut block = AlignedBuf::zeroed(4096);
    block.fill(byte);
    block
}

fn read(disk: &SimDisk, offset: u64) -> u8 {
    let mut byte = [0];
    disk.open("a").expect("there").read_at(&mut byte, offset).expect("reads");
    byte[0]
}

#[test]
fn a_crash_keeps_the_synced_and_any_part_of_the_rest() {
    let disk = SimDisk::new();
    let file = disk.create("a", 12288).expect("room");
    disk.sync_dir().expect("syncs");
    file.write_at(&block(1), 0).expect("writes");
    file.sync_data().expect("syncs");
    file.write_at(&block(2), 4096).expect("writes");
    assert_eq!(disk.unsynced_bytes(), 4096);
    let lost = disk.crashed(Survives::Nothing);
    assert_eq!((read(&lost, 0), read(&lost, 4096)), (1, 0));
    let kept = disk.crashed(Survives::Everything);
    assert_eq!(read(&kept, 8191), 2);
    let torn = disk.crashed(Survives::Prefix(700));
    assert_eq!((read(&torn, 4096 + 699), read(&torn, 4096 + 700)), (2, 0));
    let mut number = 0;
    let odd = disk.crashed(Survives::Some(&mut || {
        number += 1;
        number % 2 == 0
    }));
    assert_eq!((read(&odd, 4096), read(&odd, 4096 + 512)), (0, 2));
}

#[test]
fn a_synced_write_makes_nothing_else_durable() {
    let disk = SimDisk::new();
    let file = disk.create("a", 12288).expect("room");
    disk.sync_dir().expect("syncs");
    file.write_at(&block(1), 0).expect("writes");
    file.write_synced_at(&block(2), 4096).expect("writes");
    let lost = disk.crashed(Survives::Nothing);
    assert_eq!((read(&lost, 0), read(&lost, 4096)), (0, 2));
    assert_eq!((disk.unsynced_bytes(), disk.writes(), disk.syncs()), (4096, 2, 1));
    file.sync_data().expect("syncs");
    assert_eq!(read(&disk.crashed(Survives::Nothing), 0), 1);
    disk.fail_sync_after(0);
    file.write_synced_at(&block(3), 8192).expect_err("its sync fails");
    assert_eq!((read(&disk, 8192), read(&disk.crashed(Survives::Everything), 8192)), (3, 0));
}

#[test]
fn each_is_asked_only_what_makes_a_difference() {
    let disk = SimDisk::new();
    let file = disk.create("a", 8192).expect("room");
    disk.sync_dir().expect("syncs");
    file.write_at(&block(1), 0).expect("writes");
    file.write_at(&block(0), 4096).expect("writes");
    disk.create("b", 4096).expect("room");
    let ask = |answer: bool| {
        let mut asked = 0;
        let left = disk.crashed(Survives::Each(&mut || {
            asked += 1;
            answer
        }));
        (asked, left)
    };
    let (asked, kept) = ask(true);
    assert_eq!(asked, 1 + 4096 / SECTOR_BYTES, "a name, and sectors that are not as they were");
    assert_eq!((kept.names().len(), read(&kept, 4095)), (2, 1));
    let (_, lost) = ask(false);
    assert_eq!((lost.names().len(), read(&lost, 0)), (1, 0));
    // Now another file than the durable one: that is one question.
    disk.remove("a").expect("there");
    disk.create("a", 8192).expect("room");
    assert_eq!(ask(true).0, 2);
}

#[test]
fn names_need_their_own_sync() {
    let disk = SimDisk::new();
    disk.create("a", 4096).expect("room");
    assert!(disk.crashed(Survives::Nothing).names().is_empty());
    disk.sync_dir().expect("syncs");
    disk.rename("a", "b").expect("renames");
    assert_eq!(disk.crashed(Survives::Nothing).names(), ["a"]);
    assert_eq!(disk.crashed(Survives::Everything).names(), ["b"]);
}

#[test]
fn a_full_disk_has_room_again_once_a_file_is_removed() {
    let disk = SimDisk::new();
    disk.create("a", 4096).expect("room");
    disk.set_files_max(Some(1));
    let refused = disk.create("b", 4096).map(drop).expect_err("full");
    assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
    disk.remove("a").expect("there");
    disk.create("b", 4096).expect("room again");
    assert!(disk.create("c", 4096).is_err());
    disk.set_files_max(None);
    disk.create("c", 4096).expect("no limit");
}

#[test]
fn a_failed_sync_loses_for_good_and_the_next_lies() {
    let disk = SimDisk::new();
    let file = disk.create("a", 4096).expect("room");
    disk.sync_dir().expect("syncs");
    disk.fail_sync_after(0);
    file.write_at(&block(1), 0).expect("writes");
    assert!(file.sync_data().is_err());
    assert!(file.sync_data().is_ok());
    assert_eq!(read(&disk, 0), 1, "a reader still sees it");
    assert_eq!(read(&disk.crashed(Survives::Everything), 0), 0);
}

#[test]
fn a_write_that_was_begun_is_durable_at_its_end_and_not_before() {
    let disk = SimDisk::new();
    let file = disk.create("a", 8192).expect("room");
    disk.sync_dir().expect("syncs");
    file.begin_synced_at(block(1), 0).expect_err("it takes none");
    disk.take_begun();
    file.begin_synced_at(block(1), 4096).expect("begun");
    assert!(disk.is_writing() && disk.ended(false).is_none(), "it is under way");
    assert_eq!(read(&disk.crashed(Survives::Nothing), 4096), 0);
    assert_eq!(read(&disk.crashed(Survives::Everything), 4096), 1);
    disk.end_write();
    let (data, result) = disk.ended(false).expect("it has ended");
    result.expect("durable");
    assert_eq!(&data[..], &block(1)[..], "the buffer comes back");
    assert!(!disk.is_writing() && disk.ended(true).is_none(), "told once");
    assert_eq!(read(&disk.crashed(Survives::Nothing), 4096), 1);
    disk.fail_sync_after(0);
    file.begin_synced_at(block(2), 0).expect("begun");
    disk.ended(true).expect("somebody waits").1.expect_err("its sync fails");
    assert_eq!(read(&disk.crashed(Survives::Everything), 0), 0);
}
