//! What a read makes of a journal that does not have what the index says (R8, R9), and how often it reads.

use super::*;

/// Waits for `done` in the middle of a read.
fn wait<T>(done: impl Future<Output = T>) -> T {
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(done))
}

fn block(byte: u8) -> Bytes {
    Bytes::from(vec![byte; 4096])
}

/// Writes a block, and returns its entry's place among the seat's.
async fn write(world: &World, device: &Arc<dyn Device>, offset: u64, byte: u8) -> usize {
    assert_eq!(soon(device.clone().write(offset, block(byte), false)).await, Ok(()));
    world.seat.at().entries.len() - 1
}

fn is_suspected(world: &World) -> bool {
    !world.server.reader.bad_places().inner().places.is_empty()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r9_an_operation_that_is_not_what_the_index_says_is_not_handed_out() {
    let world = World::new(true).await;
    let device = world.open().await;
    let (one, two) = (write(&world, &device, 0, 1).await, write(&world, &device, 8192, 2).await);
    let good = world.seat.at().entries.clone();
    let flipped: fn(&mut [Bytes], usize, usize) = |entries, one, _| {
        let mut bytes = entries[one].to_vec();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        entries[one] = bytes.into();
    };
    let exchanged: fn(&mut [Bytes], usize, usize) = |entries, one, two| entries.swap(one, two);
    for (how, spoil) in [("flipped", flipped), ("exchanged", exchanged)] {
        spoil(&mut world.seat.at().entries, one, two);
        // By itself, and together with another one.
        for len in [4096, 12_288] {
            let read = soon(device.clone().read(0, len)).await;
            assert_eq!(read, Err(DeviceError::Disconnect), "{how}, {len} bytes: another gateway may have it right");
            assert!(is_suspected(&world), "{how}, {len} bytes: nobody looks at it again");
            world.server.reader.bad_places().inner().places.clear();
        }
        world.seat.at().entries.clone_from(&good);
        assert_eq!(soon(device.clone().read(0, 4096)).await, Ok(vec![ReadPart::Data(block(1))]), "{how}");
    }
}

/// Purged is no damage: by then the data is elsewhere, and a newer look at the index shows where.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_whose_entry_is_purged_meanwhile_finds_what_is_there_now() {
    let world = World::new(true).await;
    let device = world.open().await;
    write(&world, &device, 0, 1).await;
    let old = write(&world, &device, 8192, 2).await;
    let writer = device.clone();
    // When the first of the two is read, the second one is written anew.
    world.between(move |_, seat| {
        assert_eq!(wait(soon(writer.write(8192, block(3), false))), Ok(()));
        seat.at().entries[old] = Bytes::new();
    });
    let found = soon(device.clone().read(0, 12_288)).await;
    assert_eq!(found, Ok(vec![ReadPart::Data(block(1)), ReadPart::Zeroes(4096), ReadPart::Data(block(3))]));
    assert!(world.is_done() && !is_suspected(&world));

    // One that stays away: neither zeroes nor an error may be made of it.
    let newest = world.seat.at().entries.len() - 1;
    let before = world.seat.at().reads.0;
    world.seat.at().entries[newest] = Bytes::new();
    assert_eq!(soon(device.clone().read(8192, 4096)).await, Err(DeviceError::Disconnect));
    assert!(world.seat.at().reads.0 - before > 1, "the index was asked again");
    assert!(!is_suspected(&world));
}

/// Read one after the other, the blocks would take as many disk accesses in a row.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_written_in_small_pieces_is_read_in_few_reads() {
    const BLOCK: u64 = 4096;
    let world = World::new(true).await;
    let device = world.open().await;
    // Every second block is written: the holes between are not in the journal.
    let data = |block: u64| Bytes::from(vec![u8::try_from(block).unwrap() + 1; BLOCK as usize]);
    for block in (0..64).step_by(2) {
        assert_eq!(soon(device.clone().write(block * BLOCK, data(block), false)).await, Ok(()));
    }
    let parts = soon(device.clone().read(0, 64 * BLOCK as u32)).await.unwrap();
    assert_eq!(parts.len(), 64, "{parts:?}");
    for (block, part) in (0..64).zip(parts) {
        match part {
            ReadPart::Data(found) => assert!(block % 2 == 0 && found == data(block), "block {block}"),
            ReadPart::Zeroes(len) => assert!(block % 2 == 1 && u64::from(len) == BLOCK, "block {block}"),
        }
    }
    // 32 operations, 128 KiB in all.
    assert_eq!(world.seat.at().reads, (0, 1));
    assert_eq!(soon(device.clone().read(0, BLOCK as u32)).await, Ok(vec![ReadPart::Data(data(0))]));
    assert_eq!(world.seat.at().reads, (1, 1), "one piece needs no batch");
}
