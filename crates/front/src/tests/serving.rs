//! Tests with well-behaved clients.

use super::gate::GateDevice;
use super::harness::{Broken, Client, front, pipe, pipe_of, soon, until};
use crate::FrontLimits;
use crate::device::{Device, DeviceError, ReadPart};
use crate::memory::{MemoryDevice, MemoryExports};
use bytes::BytesMut;
use holdfast_nbd::client::{Aim, ClientError, CommandOut, Outcome};
use holdfast_nbd::{Errno, Extent, HeaderStyle, TransmissionFlags};
use holdfast_types::Epoch;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const MIB: u64 = 1 << 20;
const READ: CommandOut = CommandOut::Read { unfragmented: false };
const WRITE: CommandOut = CommandOut::Write { fua: true };

fn memory(size: u64) -> Arc<MemoryExports> {
    let exports = Arc::new(MemoryExports::default());
    exports.put("s/v", Arc::new(MemoryDevice::new(size)), Epoch(1), false);
    exports
}

#[tokio::test]
async fn every_command_under_all_headers() {
    for style in [HeaderStyle::Simple, HeaderStyle::Structured, HeaderStyle::Extended] {
        let exports = memory(64 * MIB);
        let front = front(FrontLimits::default(), &exports);
        let mut client = soon(Client::connect_as(pipe(&front), "s/v", style)).await.unwrap();
        assert_eq!((client.connected.size, client.connected.style), (64 * MIB, style));
        assert!(client.connected.flags.has(TransmissionFlags::CAN_MULTI_CONN | TransmissionFlags::SEND_TRIM));

        assert_eq!(client.read(0, 8192).await, Ok(vec![0; 8192]));
        assert_eq!(client.write(512, &[7; 1024]).await, Ok(vec![]));
        let expected = [vec![0; 512], vec![7; 1024], vec![0; 8192 - 1536]].concat();
        assert_eq!(client.read(0, 8192).await, Ok(expected));
        assert_eq!(client.call(0, 0, CommandOut::Flush, &[]).await, Ok(vec![]));
        assert_eq!(client.call(0, 4096, CommandOut::Cache, &[]).await, Ok(vec![]));
        assert_eq!(client.call(1024, 512, CommandOut::Trim { fua: true }, &[]).await, Ok(vec![]));
        assert_eq!(client.read(512, 1024).await, Ok([vec![7; 512], vec![0; 512]].concat()));
        let zero = |punch, fast| CommandOut::Zero { punch, fast, fua: false };
        assert_eq!(client.call(0, 4096, zero(true, true), &[]).await, Ok(vec![]));
        assert_eq!(client.read(0, 4096).await, Ok(vec![0; 4096]));
        assert_eq!(client.call(4096, 4096, zero(false, false), &[]).await, Ok(vec![]), "NO_HOLE");
        if style != HeaderStyle::Simple {
            let hole = |len, hole| Extent { len, hole };
            let extents = client.extents(0, 64 * MIB, false).await;
            assert_eq!(extents, [hole(4096, true), hole(4096, false), hole(64 * MIB - 8192, true)]);
            assert_eq!(client.extents(0, 64 * MIB, true).await, [hole(4096, true)], "REQ_ONE");
            let whole = CommandOut::Read { unfragmented: true };
            assert_eq!(client.call(0, 65536, whole, &[]).await.map(|data| data.len()), Ok(65536));
        }
        client.send(0, 0, CommandOut::Disconnect, &[]).await.unwrap();
        client.closed_unanswered().await;
    }
}

#[tokio::test]
async fn wrong_requests_get_the_right_error_and_change_nothing() {
    let exports = memory(MIB);
    let read_only = Arc::new(MemoryDevice::new(MIB));
    exports.put("s/ro", read_only, Epoch(1), true);
    let front = front(FrontLimits::default(), &exports);
    let mut client = Client::connect(pipe(&front), "s/v").await;
    assert_eq!(client.read(100, 512).await, Err(Errno::Invalid));
    assert_eq!(client.read(MIB, 512).await, Err(Errno::Invalid));
    assert_eq!(client.read(0, 33 * MIB).await, Err(Errno::Invalid), "the end of the device is checked first");
    assert_eq!(client.write(MIB - 512, &[1; 1024]).await, Err(Errno::NoSpace));
    assert_eq!(client.write(10, &[1; 512]).await, Err(Errno::Invalid));
    assert_eq!(client.call(0, MIB * 2, CommandOut::Trim { fua: false }, &[]).await, Err(Errno::Invalid));
    // "MUST fail quickly with ENOTSUP unless the request can be serviced in less time": in memory, zeroing without a
    // hole is not fast.
    let fast = CommandOut::Zero { punch: false, fast: true, fua: false };
    assert_eq!(client.call(0, 4096, fast, &[]).await, Err(Errno::NotSupported));
    assert_eq!(client.write(0, &[]).await, Ok(vec![]), "nothing to write is no error");
    assert_eq!(client.read(0, MIB).await, Ok(vec![0; MIB as usize]));

    let mut client = Client::connect(pipe(&front), "s/ro").await;
    assert!(client.connected.flags.has(TransmissionFlags::READ_ONLY));
    assert_eq!(client.write(0, &[1; 512]).await, Err(Errno::NotPermitted));
    assert_eq!(client.call(0, 512, CommandOut::Trim { fua: false }, &[]).await, Err(Errno::NotPermitted));
    assert_eq!(client.read(0, 512).await, Ok(vec![0; 512]));
}

#[tokio::test]
async fn the_largest_payloads() {
    let exports = memory(128 * MIB);
    let front = front(FrontLimits::default(), &exports);
    for style in [HeaderStyle::Simple, HeaderStyle::Structured] {
        let mut client = soon(Client::connect_as(pipe(&front), "s/v", style)).await.unwrap();
        let data: Vec<u8> = (0..32 * MIB).map(|n| (n / 512 + n) as u8).collect();
        assert_eq!(client.write(MIB, &data).await, Ok(vec![]));
        assert!(client.read(MIB, 32 * MIB).await == Ok(data), "32 MiB read back unchanged");
        let sparse = client.read(60 * MIB, 32 * MIB).await.unwrap();
        assert!(sparse.iter().all(|byte| *byte == 0) && sparse.len() as u64 == 32 * MIB);
    }
    // Everything was returned to the pool.
    until(|| front.shared_bytes_held() == 0).await;
}

#[tokio::test]
async fn lengths_beyond_32_bits_go_in_steps() {
    let (device, mut begun) = GateDevice::new(1 << 40);
    let exports = Arc::new(MemoryExports::default());
    exports.put("s/v", device, Epoch(1), false);
    let front = front(FrontLimits::default(), &exports);
    let mut client = soon(Client::connect_as(pipe(&front), "s/v", HeaderStyle::Extended)).await.unwrap();
    let len = (5u64 << 30) + 512;
    let cookie = client.send(4096, len, CommandOut::Trim { fua: false }, &[]).await.unwrap();
    let mut steps = Vec::new();
    while steps.iter().map(|(_, len)| len).sum::<u64>() < len {
        let step = soon(begun.recv()).await.unwrap();
        steps.push((step.offset, step.len));
        assert!(step.go(Ok(())));
    }
    assert_eq!(steps, [(4096, 2 << 30), (4096 + (2 << 30), 2 << 30), (4096 + (4 << 30), (1 << 30) + 512)]);
    assert_eq!(soon(client.answer()).await.unwrap(), (cookie, Ok(vec![])));
    // A length that fits 32 bits is one operation.
    client.send(0, u64::from(!511u32), CommandOut::Trim { fua: false }, &[]).await.unwrap();
    let whole = soon(begun.recv()).await.unwrap();
    assert_eq!((whole.what, whole.len), ("trim", u64::from(!511u32)));
}

#[tokio::test]
async fn requests_begin_in_order_and_end_in_any() {
    let (device, mut begun) = GateDevice::new(MIB);
    device.memory.put(4096, &[9; 4096]);
    let exports = Arc::new(MemoryExports::default());
    exports.put("s/v", device, Epoch(1), false);
    let front = front(FrontLimits::default(), &exports);
    let mut client = Client::connect(pipe(&front), "s/v").await;
    let write = client.send(0, 4096, WRITE, &[1; 4096]).await.unwrap();
    let read = client.send(4096, 4096, READ, &[]).await.unwrap();
    let flush = client.send(0, 0, CommandOut::Flush, &[]).await.unwrap();
    let mut running = Vec::new();
    for what in ["write", "read", "flush"] {
        let operation = soon(begun.recv()).await.unwrap();
        assert_eq!(operation.what, what, "CONN-C1");
        running.push(operation);
    }
    for (cookie, data) in [(flush, vec![]), (read, vec![9; 4096]), (write, vec![])] {
        assert!(running.pop().unwrap().go(Ok(())));
        assert_eq!(soon(client.answer()).await.unwrap(), (cookie, Ok(data)));
    }
}

#[tokio::test]
async fn no_more_requests_run_than_may() {
    let (device, mut begun) = GateDevice::new(MIB);
    let exports = Arc::new(MemoryExports::default());
    exports.put("s/v", device, Epoch(1), false);
    let front = front(FrontLimits { connection_requests: 2, ..FrontLimits::default() }, &exports);
    let mut client = Client::connect(pipe(&front), "s/v").await;
    for n in 0..5 {
        client.send(n * 4096, 4096, READ, &[]).await.unwrap();
    }
    let mut running = vec![soon(begun.recv()).await.unwrap(), soon(begun.recv()).await.unwrap()];
    for n in 0..5 {
        // The third waits for the first: all requests were begun, as far as allowed.
        tokio::task::yield_now().await;
        assert!(begun.try_recv().is_err(), "CONN-C3: more than two run");
        assert!(running.remove(0).go(Ok(())));
        assert_eq!(soon(client.answer()).await.unwrap().0, n + 1);
        if n < 3 {
            running.push(soon(begun.recv()).await.unwrap());
        }
    }
}

/// Limits on bytes do not limit these requests: a trim holds no bytes. Waiting requests are not refused, and a new
/// connection has a place that no other connection can take.
#[tokio::test]
async fn no_more_requests_run_than_may_over_all_connections() {
    let (device, mut begun) = GateDevice::new(MIB);
    let exports = Arc::new(MemoryExports::default());
    exports.put("s/v", device, Epoch(1), false);
    let front = front(FrontLimits { connections: 2, gateway_requests: 4, ..FrontLimits::default() }, &exports);
    let mut clients = Vec::new();
    for _ in 0..2 {
        clients.push(Client::connect(pipe(&front), "s/v").await);
    }
    let trim = CommandOut::Trim { fua: false };
    // One place is guaranteed, and two are shared.
    let mut running = Vec::new();
    for n in 0..5 {
        clients[0].send(n * 512, 512, trim, &[]).await.unwrap();
    }
    for n in 0..3 {
        running.push(soon(begun.recv()).await.unwrap());
        assert_eq!(running[n].offset, n as u64 * 512);
    }
    for n in 8..10 {
        clients[1].send(n * 512, 512, trim, &[]).await.unwrap();
    }
    let own = soon(begun.recv()).await.unwrap();
    assert_eq!(own.offset, 8 * 512, "its own place");
    for _ in 0..10 {
        tokio::task::yield_now().await;
        assert!(begun.try_recv().is_err(), "CONN-C3: more than four run");
    }
    // The request that came first has waited longest.
    assert!(running.pop().unwrap().go(Ok(())));
    assert_eq!(soon(clients[0].answer()).await.unwrap(), (3, Ok(vec![])));
    running.push(soon(begun.recv()).await.unwrap());
    assert_eq!(running[2].offset, 3 * 512);
    assert!(own.go(Ok(())));
    assert_eq!(soon(clients[1].answer()).await.unwrap(), (1, Ok(vec![])));
    let own = soon(begun.recv()).await.unwrap();
    assert_eq!(own.offset, 9 * 512);
    // A connection that ends returns its places, and stops waiting for more.
    front.connections().into_iter().min_by_key(|connection| connection.info.id).unwrap().close();
    for operation in running {
        soon(operation.dropped()).await;
    }
    let mut running = Vec::new();
    for n in 10..12 {
        clients[1].send(n * 512, 512, trim, &[]).await.unwrap();
        running.push(soon(begun.recv()).await.unwrap());
    }
    assert_eq!(running.iter().map(|operation| operation.offset).collect::<Vec<_>>(), [10 * 512, 11 * 512]);
    assert!(own.go(Ok(())));
    assert_eq!(soon(clients[1].answer()).await.unwrap(), (2, Ok(vec![])));
}

/// The size is behind a lock that all requests of a set share.
#[tokio::test]
async fn a_request_asks_for_the_size_once_and_a_growth_is_seen() {
    let (device, mut begun) = GateDevice::new(2 * MIB);
    device.shown.store(MIB, Ordering::Relaxed);
    let exports = Arc::new(MemoryExports::default());
    exports.put("s/v", device.clone(), Epoch(1), false);
    let front = front(FrontLimits::default(), &exports);
    let mut client = Client::connect(pipe(&front), "s/v").await;
    let before = device.asked.load(Ordering::Relaxed);
    for n in 0..10 {
        client.send(n * 512, 512, READ, &[]).await.unwrap();
        assert!(soon(begun.recv()).await.unwrap().go(Ok(())));
        assert_eq!(soon(client.answer()).await.unwrap().1, Ok(vec![0; 512]));
    }
    assert_eq!(device.asked.load(Ordering::Relaxed) - before, 10, "times that ten requests asked for the size");
    assert_eq!(client.read(MIB, 512).await, Err(Errno::Invalid), "beyond the end");
    device.shown.store(2 * MIB, Ordering::Relaxed);
    client.send(MIB, 512, READ, &[]).await.unwrap();
    assert!(soon(begun.recv()).await.unwrap().go(Ok(())));
    assert_eq!(soon(client.answer()).await.unwrap().1, Ok(vec![0; 512]));
}

#[tokio::test]
async fn a_goodbye_waits_for_what_was_begun() {
    let (device, mut begun) = GateDevice::new(MIB);
    let exports = Arc::new(MemoryExports::default());
    exports.put("s/v", device.clone(), Epoch(1), false);
    let front = front(FrontLimits::default(), &exports);
    let mut client = Client::connect(pipe(&front), "s/v").await;
    let write = client.send(0, 512, WRITE, &[3; 512]).await.unwrap();
    client.send(0, 0, CommandOut::Disconnect, &[]).await.unwrap();
    client.send(0, 512, WRITE, &[4; 512]).await.unwrap();
    assert!(soon(begun.recv()).await.unwrap().go(Ok(())));
    assert_eq!(soon(client.answer()).await.unwrap(), (write, Ok(vec![])));
    client.closed_unanswered().await;
    assert!(begun.try_recv().is_err(), "nothing is read after NBD_CMD_DISC");
    let mut kept = vec![3; 512];
    kept.resize(4096, 0);
    assert_eq!(device.memory.get(0, 4096), [ReadPart::Data(kept.into())]);
}

#[tokio::test]
async fn names_are_listed_described_and_refused() {
    let exports = memory(MIB);
    exports.put("s/w", Arc::new(MemoryDevice::new(512)), Epoch(1), false);
    let front = front(FrontLimits::default(), &exports);
    let style = HeaderStyle::Structured;
    let (_, _, outcome) = soon(Client::shake(pipe(&front), Aim::List, style)).await.unwrap();
    let Outcome::Listed(listed) = outcome else { panic!("{outcome:?}") };
    assert_eq!(listed.iter().map(|export| export.name.as_str()).collect::<Vec<_>>(), ["s/v", "s/w"]);
    let (_, _, outcome) = soon(Client::shake(pipe(&front), Aim::Info("s/w".into()), style)).await.unwrap();
    let Outcome::Described(described) = outcome else { panic!("{outcome:?}") };
    assert_eq!((described.size, described.description.as_deref()), (512, Some("in memory")));
    let (_, _, outcome) = soon(Client::shake(pipe(&front), Aim::Go("s/w".into()), style)).await.unwrap();
    let Outcome::Connected(connected) = outcome else { panic!("{outcome:?}") };
    assert_eq!(connected.description.as_deref(), Some("in memory"), "the same as before it was opened");
    for name in ["s/x", "", "no slash", "s/v?token=1"] {
        let refused = soon(Client::shake(pipe(&front), Aim::Go(name.into()), style)).await;
        assert!(matches!(refused, Err(Broken::Handshake(ClientError::Refused { .. }))), "{name}");
    }
    let refused = soon(Client::shake(pipe(&front), Aim::GoOldStyle("s/x".into()), style)).await;
    assert!(matches!(refused, Err(Broken::Closed)), "that option has no error reply");
    let old = soon(Client::shake(pipe(&front), Aim::GoOldStyle("s/v".into()), style)).await;
    assert!(matches!(old, Ok((_, _, Outcome::Connected(_)))));
    assert!(front.connections().len() <= 1);
}

#[tokio::test]
async fn devices_errors_become_what_r8_allows() {
    let (device, mut begun) = GateDevice::new(MIB);
    let exports = Arc::new(MemoryExports::default());
    exports.put("s/v", device, Epoch(1), false);
    let front = front(FrontLimits::default(), &exports);
    let mut client = Client::connect(pipe(&front), "s/v").await;
    for (error, write, read) in [
        (DeviceError::Fenced, Errno::Io, Errno::Io),
        (DeviceError::Invalid, Errno::Invalid, Errno::Invalid),
        (DeviceError::OutOfRange, Errno::NoSpace, Errno::Invalid),
        (DeviceError::NotPermitted, Errno::NotPermitted, Errno::NotPermitted),
        (DeviceError::NotSupported, Errno::NotSupported, Errno::NotSupported),
    ] {
        let sent = client.send(0, 512, WRITE, &[0; 512]).await.unwrap();
        assert!(soon(begun.recv()).await.unwrap().go(Err(error)));
        assert_eq!(soon(client.answer()).await.unwrap(), (sent, Err(write)));
        let sent = client.send(0, 512, READ, &[]).await.unwrap();
        assert!(soon(begun.recv()).await.unwrap().go(Err(error)));
        assert_eq!(soon(client.answer()).await.unwrap(), (sent, Err(read)));
    }
    // And an error that must not reach the client: other requests in flight stay unanswered too.
    client.send(0, 512, WRITE, &[0; 512]).await.unwrap();
    client.send(0, 512, READ, &[]).await.unwrap();
    let (write, read) = (soon(begun.recv()).await.unwrap(), soon(begun.recv()).await.unwrap());
    assert!(write.go(Err(DeviceError::Disconnect)));
    client.closed_unanswered().await;
    soon(read.dropped()).await;
}

/// R9: its bytes are not known to be those that were asked for.
#[tokio::test]
async fn a_read_that_the_device_answers_too_short_ends_its_connection() {
    let (device, mut begun) = GateDevice::new(MIB);
    device.memory.put(0, &[7; 8192]);
    let exports = Arc::new(MemoryExports::default());
    exports.put("s/v", device.clone(), Epoch(1), false);
    let front = front(FrontLimits::default(), &exports);
    for short in [0, 512] {
        device.short.store(short, Ordering::Relaxed);
        let mut client = Client::connect(pipe(&front), "s/v").await;
        let sent = client.send(0, 4096, READ, &[]).await.unwrap();
        assert!(soon(begun.recv()).await.unwrap().go(Ok(())));
        if short > 0 {
            client.closed_unanswered().await;
        } else {
            assert_eq!(soon(client.answer()).await.unwrap(), (sent, Ok(vec![7; 4096])));
        }
    }
}

/// A small random number generator: the same seed gives the same run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % below
    }
}

/// Many requests in flight on several connections, each on sectors of its own, compared with a flat array.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_in_flight_against_a_flat_array() {
    const SHARE: u64 = 2 * MIB;
    let exports = memory(4 * SHARE);
    let front = front(FrontLimits { connection_requests: 16, ..FrontLimits::default() }, &exports);
    let mut workers = Vec::new();
    for worker in 0..4u64 {
        let style = [HeaderStyle::Simple, HeaderStyle::Structured, HeaderStyle::Extended][worker as usize % 3];
        // Narrow pipes: most requests and replies are cut somewhere.
        let socket = pipe_of(&front, 1000 + 7777 * worker as usize);
        workers.push(tokio::spawn(async move {
            let mut client = soon(Client::connect_as(socket, "s/v", style)).await.unwrap();
            let mut dice = Dice(worker + 1);
            let mut flat = vec![0u8; SHARE as usize];
            for _ in 0..150 {
                // A batch of pieces that do not overlap: their order does not matter, so the result is known.
                let mut expected = BTreeMap::new();
                let pieces = 1 + dice.roll(12);
                let piece = SHARE / pieces / 512 * 512;
                for n in 0..pieces {
                    let from = n * piece + dice.roll(piece / 512) * 512;
                    let len = 512 * (1 + dice.roll(((n + 1) * piece - from) / 512).min(dice.roll(200)));
                    let (at, offset) = (from as usize..(from + len) as usize, worker * SHARE + from);
                    let (command, payload, answer) = match dice.roll(6) {
                        0 | 1 => (READ, vec![], flat[at].to_vec()),
                        2 | 3 => {
                            let data = vec![dice.roll(255) as u8 + 1; len as usize];
                            flat[at].copy_from_slice(&data);
                            (WRITE, data, vec![])
                        }
                        4 => {
                            flat[at].fill(0);
                            (CommandOut::Zero { punch: dice.roll(2) == 0, fast: false, fua: false }, vec![], vec![])
                        }
                        _ => {
                            flat[at].fill(0);
                            (CommandOut::Trim { fua: false }, vec![], vec![])
                        }
                    };
                    // Earlier replies must be received while later requests are sent, or both sides wait for room.
                    let cookie = client.send_and_listen(offset, len, command, &payload).await;
                    expected.insert(cookie, answer);
                }
                while !expected.is_empty() {
                    let (cookie, answer) = soon(client.answer()).await.unwrap();
                    assert_eq!(Some(answer.unwrap()), expected.remove(&cookie));
                }
            }
            assert!(client.read(worker * SHARE, SHARE).await == Ok(flat), "worker {worker}");
        }));
    }
    for worker in workers {
        worker.await.unwrap();
    }
    until(|| front.shared_bytes_held() == 0).await;
}

/// CONN-C10. Not released: the device would keep a write until another one comes. Released too early: each write of a
/// burst would be one of its own.
#[tokio::test]
async fn c10_changes_that_come_together_are_held_together() {
    let (device, mut begun) = GateDevice::new(MIB);
    let exports = Arc::new(MemoryExports::default());
    exports.put("s/v", device.clone(), Epoch(1), false);
    let front = front(FrontLimits::default(), &exports);
    let mut client = Client::connect(pipe(&front), "s/v").await;
    let released = || device.released.load(Ordering::Relaxed);
    // The client gives the front no turn before it waits.
    for n in 0..3 {
        client.send(n * 4096, 512, WRITE, &[1; 512]).await.unwrap();
    }
    client.send(MIB / 2, 512, CommandOut::Trim { fua: false }, &[]).await.unwrap();
    for what in ["write", "write", "write", "trim"] {
        let operation = soon(begun.recv()).await.unwrap();
        assert_eq!((operation.what, operation.held), (what, true));
        assert!(operation.go(Ok(())));
    }
    assert_eq!(released(), 1, "once for all of them");
    for _ in 0..4 {
        assert_eq!(soon(client.answer()).await.unwrap().1, Ok(vec![]));
    }
    client.send(0, 512, READ, &[]).await.unwrap();
    let read = soon(begun.recv()).await.unwrap();
    assert_eq!((read.what, read.held, released()), ("read", false, 1), "a read changes nothing");
    assert!(read.go(Ok(())));
    // The poll that begins this write ends the connection.
    client.send(0, 512, WRITE, &[1; 512]).await.unwrap();
    client.send_rest(BytesMut::from(&[0u8; 28][..])).await;
    assert!(soon(begun.recv()).await.unwrap().held);
    until(|| released() == 2).await;
}

#[test]
fn a_device_can_be_an_object() {
    fn takes(_: Arc<dyn Device>) {}
    takes(Arc::new(MemoryDevice::new(512)));
}
