//! Limits of volumes at the connections that they are for (CONN-C9).

use super::gate::GateDevice;
use super::harness::{Client, front, pipe, soon};
use crate::device::Peer;
use crate::memory::{MemoryDevice, MemoryExports};
use crate::{FrontLimits, Rates, left_by_client};
use holdfast_nbd::client::CommandOut;
use holdfast_types::Epoch;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::UnixStream;

const MIB: usize = 1 << 20;
const WRITE: CommandOut = CommandOut::Write { fua: false };
/// One more request of some bytes would wait for minutes.
const SLOW: Rates = Rates { requests: 0, bytes: 1, burst: Duration::from_millis(100) };
/// Long enough for a request to reach its wait.
const A_WHILE: Duration = Duration::from_millis(100);

fn memory() -> Arc<MemoryExports> {
    let exports = Arc::new(MemoryExports::default());
    for name in ["s/v", "s/w"] {
        exports.put(name, Arc::new(MemoryDevice::new(64 << 20)), Epoch(1), false);
    }
    exports
}

#[tokio::test]
async fn who_waits_for_a_limit_holds_nothing_and_other_volumes_go_on() {
    let exports = memory();
    let limits = FrontLimits { connections: 4, gateway_bytes: 72 << 20, ..FrontLimits::default() };
    let front = front(limits, &exports);
    let of_v = exports.throttles("s/v");
    of_v.volume.set(SLOW);
    let (mut busy, mut other) =
        (Client::connect(pipe(&front), "s/v").await, Client::connect(pipe(&front), "s/w").await);
    let data = vec![7; 8 * MIB];
    assert_eq!(busy.write(0, &data).await, Ok(vec![]), "a request of any size begins");
    let sent = data.clone();
    let waits = tokio::spawn(async move { (busy.write(0, &sent).await, busy) });
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(front.shared_bytes_held(), 0, "CONN-C9: bytes of a request that waits");
    assert_eq!(other.write(0, &data).await, Ok(vec![]));
    assert!(!waits.is_finished(), "a write began against its limit");
    assert_eq!(of_v.waited.requests(), 0);
    // A change of the limit is for those that wait, too.
    of_v.volume.set(Rates::default());
    let (answer, mut busy) = soon(waits).await.unwrap();
    assert_eq!(answer, Ok(vec![]));
    assert_eq!(of_v.waited.requests(), 1);
    assert!(of_v.waited.time() >= A_WHILE, "{:?}", of_v.waited.time());
    // Small requests that lie in the buffer, and reads, wait as well.
    of_v.set.set(SLOW);
    assert_eq!(busy.write(0, &[7; 512]).await, Ok(vec![]));
    let read = tokio::spawn(async move { busy.read(0, 512).await });
    tokio::time::sleep(A_WHILE).await;
    assert!(!read.is_finished(), "a read began against the limit of its set");
    of_v.set.set(Rates::default());
    assert_eq!(soon(read).await.unwrap(), Ok(vec![7; 512]));
}

#[tokio::test]
async fn what_waits_for_a_limit_ends_with_its_socket() {
    let (device, mut begun) = GateDevice::new(1 << 20);
    let exports = Arc::new(MemoryExports::default());
    exports.put("s/v", device, Epoch(1), false);
    let front = front(FrontLimits::default(), &exports);
    exports.throttles("s/v").volume.set(SLOW);
    let (near, far) = UnixStream::pair().unwrap();
    let served = front.clone();
    let serving = tokio::spawn(async move { served.serve(far, Peer::Unix, left_by_client).await });
    let mut client = Client::connect(near, "s/v").await;
    client.send(0, 512, WRITE, &[1; 512]).await.unwrap();
    assert!(soon(begun.recv()).await.unwrap().go(Ok(())));
    assert_eq!(soon(client.answer()).await.unwrap().1, Ok(vec![]));
    client.send(0, 512, WRITE, &[2; 512]).await.unwrap();
    tokio::time::sleep(A_WHILE).await;
    let gone = Instant::now();
    drop(client);
    soon(serving).await.unwrap();
    // Much earlier than any other reason to look at the connection.
    assert!(gone.elapsed() < Duration::from_secs(15), "CONN-C7: noticed after {:?}", gone.elapsed());
    assert!(begun.try_recv().is_err(), "CONN-C9: a request that waited was begun after its client was gone");
}
