//! A snapshot copy's volume over real sockets, with small test gateways, one of which dies.

use super::super::base::{Gateways, Patience};
use super::super::identity::{Identity, Presence};
use super::super::serve::serve;
use super::*;
use crate::requests::Requests;
use bytes::BytesMut;
use holdfast_nbd::client::{CommandOut, RequestOut, encode_request};
use holdfast_nbd::server::{
    Decoded, Handshake, Negotiated, Question, ReplyQueue, ReplyTo, RequestDecoder, Step, TlsMode,
};
use holdfast_nbd::{HeaderStyle, SnapshotExport};
use std::io::IoSlice;
use std::os::unix::fs::{MetadataExt, symlink};
use std::sync::atomic::AtomicUsize;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

const SIZE: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(20);

fn byte(offset: u64) -> u8 {
    (offset / 512 % 251) as u8 + 1
}

fn name() -> ExportName {
    let name = |text: &str| Name::new(text).unwrap();
    let snapshot = Some(SnapshotExport { name: name("monday"), token: None });
    ExportName { snapshot, ..ExportName::plain(name("demo"), name("vol1")) }
}

/// Behaviour of a test gateway, and its counts.
#[derive(Debug, Default)]
struct Fake {
    /// A read of this offset ends the connection, as if the store did not have the data.
    bad: Option<u64>,
    /// Completed handshakes.
    shaken: watch::Sender<usize>,
    /// Requested reads.
    reads: AtomicUsize,
    /// Connections in use by other reads that the bad read ended.
    shared_ends: AtomicUsize,
}

async fn gateway() -> (String, JoinHandle<()>) {
    gateway_like(Arc::default()).await
}

/// A gateway with the snapshot. It takes only reads, one after the other; anything else ends it.
async fn gateway_like(fake: Arc<Fake>) -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap().to_string();
    let task = tokio::spawn(async move {
        let mut clients = tokio::task::JoinSet::new();
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            clients.spawn(client(socket, fake.clone()));
        }
    });
    (at, task)
}

async fn client(mut socket: TcpStream, fake: Arc<Fake>) {
    let (mut input, mut out) = (BytesMut::new(), BytesMut::from(&Handshake::greeting()[..]));
    let mut handshake = Handshake::new(TlsMode::Off);
    let facts = ExportFacts { size: SIZE, read_only: true, description: String::new() };
    let negotiated: Negotiated = loop {
        let step = handshake.step(&mut input, &mut out).unwrap();
        socket.write_all_buf(&mut out).await.unwrap();
        match step {
            Step::NeedBytes => {
                if socket.read_buf(&mut input).await.unwrap() == 0 {
                    return;
                }
            }
            Step::Ask(Question::Open(asked)) => {
                assert_eq!(asked, name());
                let negotiated = handshake.answer_export(Ok(&facts), &mut out).unwrap();
                if let Some(negotiated) = negotiated {
                    socket.write_all_buf(&mut out).await.unwrap();
                    fake.shaken.send_modify(|count| *count += 1);
                    break negotiated;
                }
            }
            other => panic!("{other:?}"),
        }
    };
    let mut decoder = RequestDecoder::new(negotiated.style, negotiated.allocation);
    let mut replies = ReplyQueue::new(negotiated.style);
    let mut used = false;
    loop {
        match decoder.next(&mut input).unwrap() {
            Decoded::Need(_) => {
                if socket.read_buf(&mut input).await.unwrap_or(0) == 0 {
                    return;
                }
            }
            Decoded::Request(request) => {
                // SCRATCH-W4.
                assert!(matches!(request.command, Command::Read { .. }), "{request:?}");
                fake.reads.fetch_add(1, Ordering::Relaxed);
                if fake.bad == Some(request.offset) {
                    fake.shared_ends.fetch_add(used.into(), Ordering::Relaxed);
                    return;
                }
                used = true;
                let data: Vec<u8> = (request.offset..request.offset + request.len).map(byte).collect();
                let to = ReplyTo { cookie: request.cookie, offset: request.offset, is_read: true };
                replies.read(to, vec![ReadPart::Data(data.into())], false);
            }
        }
        while !replies.is_empty() {
            let mut slices = [IoSlice::new(&[]); 8];
            let count = replies.slices(&mut slices);
            let sent = socket.write_vectored(&slices[..count]).await.unwrap();
            replies.advance(sent);
        }
    }
}

fn disk(gateways: &[&str], max: u64) -> (Arc<Disk>, Arc<Gateways>, tempfile::TempDir) {
    let same = Identity::by(|| async { Presence::Same });
    disk_of(gateways, max, same, Patience::USUAL)
}

fn disk_of(
    gateways: &[&str],
    max: u64,
    identity: Identity,
    patience: Patience,
) -> (Arc<Disk>, Arc<Gateways>, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let known = Arc::new(Gateways::default());
    known.set(gateways.iter().map(|at| at.to_string()).collect());
    let base = Base::new(name(), SIZE, known.clone(), identity, patience);
    let export = ExportName { snapshot: None, ..name() };
    (Arc::new(Disk::new(export, base, SIZE, dir.path(), max).unwrap()), known, dir)
}

async fn read(disk: &Disk, offset: u64, len: u64) -> Vec<u8> {
    let parts = tokio::time::timeout(LIMIT, disk.read(offset, len)).await.expect("in time").unwrap();
    let bytes = parts.into_iter().flat_map(|part| match part {
        ReadPart::Data(data) => data.to_vec(),
        ReadPart::Zeroes(len) => vec![0; len as usize],
    });
    bytes.collect()
}

fn snapshot(offset: u64, len: u64) -> Vec<u8> {
    (offset..offset + len).map(byte).collect()
}

#[tokio::test]
async fn reads_go_on_at_another_gateway() {
    let ((one, first), (two, _second)) = (gateway().await, gateway().await);
    let (disk, known, dir) = disk(&[&one, &two], 1 << 20);
    assert_eq!(read(&disk, 4096, 8192).await, snapshot(4096, 8192));
    assert_eq!(known.source().gateway, one);
    disk.write(8192, Bytes::from(vec![0xaa; 512])).await.unwrap();
    disk.zero(512, 4096).await;

    first.abort();
    let _ = first.await;
    let mut expected = snapshot(0, 16384);
    expected[8192..8704].fill(0xaa);
    expected[512..4608].fill(0);
    assert_eq!(read(&disk, 0, 16384).await, expected);
    assert_eq!(known.source().gateway, two);
    assert_eq!(disk.held_bytes(), 4096);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "SCRATCH-W3: the scratch file has no name");
}

#[tokio::test]
async fn a_full_scratch_file_says_no_space_and_goes_on() {
    let (at, _gateway) = gateway().await;
    let (disk, _, _dir) = disk(&[&at], 8192);
    disk.write(0, Bytes::from(vec![1; 8192])).await.unwrap();
    assert_eq!(disk.write(8192, Bytes::from(vec![2; 512])).await, Err(Errno::NoSpace));
    assert_eq!(read(&disk, 8192, 512).await, snapshot(8192, 512), "nothing of it is seen");
    disk.write(512, Bytes::from(vec![3; 512])).await.unwrap();
    disk.zero(4096, 4096).await;
    disk.write(8192, Bytes::from(vec![2; 512])).await.unwrap();
    assert_eq!(read(&disk, 8192, 512).await, vec![2; 512]);
}

#[tokio::test]
async fn its_socket_speaks_nbd() {
    let (at, _gateway) = gateway().await;
    let (disk, _, dir) = disk(&[&at], 1 << 20);
    let path = dir.path().join("vol1.sock");
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    let served = disk.clone();
    tokio::spawn(async move {
        let (socket, _) = listener.accept().await.unwrap();
        serve(socket, &served).await;
    });
    // Bridged: the client of this crate speaks TCP.
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let bridge = tcp.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        let (mut from, _) = tcp.accept().await.unwrap();
        let mut to = UnixStream::connect(&path).await.unwrap();
        let _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
    });
    let export = ExportName { snapshot: None, ..name() };
    let client = Requests::connect(&bridge, &export, None).await.unwrap();
    assert_eq!(client.size(), SIZE);
    client.write(1024, Bytes::from(vec![9; 2048])).await.unwrap();
    client.zero(4096, 512).await.unwrap();
    client.flush().await.unwrap();
    let parts = client.read(0, 8192).await.unwrap();
    let bytes: Vec<u8> = parts
        .into_iter()
        .flat_map(|part| match part {
            ReadPart::Data(data) => data.to_vec(),
            ReadPart::Zeroes(len) => vec![0; len as usize],
        })
        .collect();
    let mut expected = snapshot(0, 8192);
    expected[1024..3072].fill(9);
    expected[4096..4608].fill(0);
    assert!(bytes == expected);
}

/// A client after its handshake, and the task that serves it.
async fn shaken(disk: &Arc<Disk>) -> (UnixStream, JoinHandle<()>) {
    let (mut client, served) = UnixStream::pair().unwrap();
    let serving = tokio::spawn({
        let disk = disk.clone();
        async move { serve(served, &disk).await }
    });
    // The shortest handshake: no zeroes as padding, NBD_OPT_EXPORT_NAME.
    let export = disk.export.to_wire();
    let (flags, option, len) = (3_u32.to_be_bytes(), 1_u32.to_be_bytes(), (export.len() as u32).to_be_bytes());
    let asked: [&[u8]; 5] = [&flags, b"IHAVEOPT", &option, &len, export.as_bytes()];
    client.write_all(&asked.concat()).await.unwrap();
    client.read_exact(&mut [0; 28]).await.unwrap();
    (client, serving)
}

/// CLIENT-F4, although there was room.
#[tokio::test]
async fn a_write_of_a_client_that_is_gone_is_not_carried_out() {
    let (disk, _, _dir) = disk(&[], 1 << 20);
    let (mut client, serving) = shaken(&disk).await;
    let mut sent = BytesMut::new();
    let request = RequestOut { cookie: 1, offset: 0, len: 512, command: CommandOut::Write { fua: false } };
    encode_request(&mut sent, HeaderStyle::Simple, &request).unwrap();
    sent.extend_from_slice(&[8; 512]);
    client.write_all_buf(&mut sent).await.unwrap();
    drop(client);
    tokio::time::timeout(LIMIT, serving).await.expect("it ends").unwrap();
    // Whatever was taken in is carried out by then.
    drop(disk.room(u64::MAX).await);
    assert_eq!(disk.held_bytes(), 0, "CLIENT-F4");
}

/// CLIENT-F5.
#[tokio::test]
async fn a_client_that_disconnects_and_closes_its_sending_side_is_answered() {
    let (disk, _, _dir) = disk(&[], 1 << 20);
    let (mut client, serving) = shaken(&disk).await;
    let all_room = disk.room(u64::MAX).await;
    let mut sent = BytesMut::new();
    for cookie in 0..2 {
        let request = RequestOut { cookie, offset: cookie * 512, len: 512, command: CommandOut::Write { fua: false } };
        encode_request(&mut sent, HeaderStyle::Simple, &request).unwrap();
        sent.extend_from_slice(&[8; 512]);
    }
    let leave = RequestOut { cookie: 0, offset: 0, len: 0, command: CommandOut::Disconnect };
    encode_request(&mut sent, HeaderStyle::Simple, &leave).unwrap();
    client.write_all_buf(&mut sent).await.unwrap();
    client.shutdown().await.unwrap();
    // The first request waits for room meanwhile.
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    drop(all_room);
    let mut answers = Vec::new();
    tokio::time::timeout(LIMIT, client.read_to_end(&mut answers)).await.expect("in time").unwrap();
    assert_eq!(answers.len(), 2 * 16, "CLIENT-F5");
    tokio::time::timeout(LIMIT, serving).await.expect("it ends").unwrap();
    assert_eq!(read(&disk, 0, 1024).await, vec![8; 1024]);
}

#[tokio::test]
async fn a_read_that_fails_everywhere_ends_and_leaves_the_others_alone() {
    const BAD: u64 = 65536;
    let fake = Arc::new(Fake { bad: Some(BAD), ..Fake::default() });
    let (at, _gateway) = gateway_like(fake.clone()).await;
    let patience = Patience { wait_max: Duration::from_secs(3), pause: Duration::from_millis(10) };
    let (disk, _, _dir) = disk_of(&[&at], 1 << 20, Identity::by(|| async { Presence::Same }), patience);
    let mut shaken = fake.shaken.subscribe();
    let bad = tokio::spawn({
        let disk = disk.clone();
        async move { disk.read(BAD, 4096).await }
    });
    // It has a connection of its own by now, and then tries on beside reads that succeed.
    for tries in [8, 16, 24] {
        tokio::time::timeout(LIMIT, shaken.wait_for(|count| *count >= tries)).await.expect("it tries on").unwrap();
        assert_eq!(read(&disk, 0, 4096).await, snapshot(0, 4096));
    }
    let ended = tokio::time::timeout(LIMIT, bad).await.expect("SCRATCH-W2: not for ever").unwrap();
    assert_eq!(ended, Err(Errno::Io));
    assert_eq!(fake.shared_ends.load(Ordering::Relaxed), 0, "SCRATCH-W6: other reads' connections stay");
    let tries = *shaken.borrow();
    assert!(tries <= 310, "{tries} tries in three seconds: there is a pause between two");
}

#[tokio::test]
async fn a_read_that_fails_at_one_gateway_is_answered_by_the_other() {
    let fake = Arc::new(Fake { bad: Some(512), ..Fake::default() });
    let ((one, _first), (two, _second)) = (gateway_like(fake).await, gateway().await);
    let (disk, _, _dir) = disk(&[&one, &two], 1 << 20);
    assert_eq!(read(&disk, 512, 4096).await, snapshot(512, 4096));
}

#[tokio::test]
async fn those_who_wait_for_a_gateway_share_one_try() {
    // The kernel connects whoever comes, and nobody says anything.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap().to_string();
    let (disk, _, _dir) = disk(&[&at], 1 << 20);
    let tries = futures_util::future::join_all((0..4).map(|_| disk.reach()));
    let ended = tokio::time::timeout(LIMIT, tries).await.expect("in time");
    assert!(ended.iter().all(Result::is_err), "{ended:?}");
    let last = TcpStream::connect(&at).await.unwrap().local_addr().unwrap();
    let mut tries = 0;
    while listener.accept().await.unwrap().1 != last {
        tries += 1;
    }
    assert_eq!(tries, 1);
}

#[tokio::test]
async fn another_snapshot_of_the_same_name_is_never_read() {
    let ((one, first), (two, _second)) = (gateway().await, gateway().await);
    let now = Arc::new(Mutex::new(Presence::Same));
    let identity = Identity::by({
        let now = now.clone();
        move || std::future::ready(now.lock().unwrap().clone())
    });
    let (disk, known, _dir) = disk_of(&[&one, &two], 1 << 20, identity, Patience::USUAL);
    assert_eq!(read(&disk, 0, 512).await, snapshot(0, 512));
    disk.write(0, Bytes::from(vec![7; 512])).await.unwrap();

    *now.lock().unwrap() = Presence::Gone("another monday".to_string());
    first.abort();
    let _ = first.await;
    let ended = tokio::time::timeout(LIMIT, disk.read(512, 512)).await.expect("SCRATCH-W5: at once");
    assert_eq!(ended, Err(Errno::Io));
    assert_eq!(tokio::time::timeout(LIMIT, known.ended()).await.expect("the copy is told"), "another monday");
    // An id that is gone stays gone, whatever is said later.
    *now.lock().unwrap() = Presence::Same;
    assert_eq!(tokio::time::timeout(LIMIT, disk.read(512, 512)).await.expect("at once"), Err(Errno::Io));
    assert_eq!(read(&disk, 0, 512).await, vec![7; 512], "what was written here is here");
}

#[tokio::test]
async fn a_connection_is_not_used_before_the_snapshot_was_listed() {
    let fake = Arc::new(Fake::default());
    let (at, _gateway) = gateway_like(fake.clone()).await;
    let looks = Arc::new(AtomicUsize::new(0));
    let identity = Identity::by({
        let (fake, looks) = (fake.clone(), looks.clone());
        move || {
            let look = looks.fetch_add(1, Ordering::Relaxed) + 1;
            assert_eq!(*fake.shaken.borrow(), look, "the handshake comes first, and each has its look");
            assert_eq!(fake.reads.load(Ordering::Relaxed), 0);
            // An election: nobody lists.
            std::future::ready(if look < 3 { Presence::Unknown("no leader".to_string()) } else { Presence::Same })
        }
    });
    let patience = Patience { pause: Duration::from_millis(1), ..Patience::USUAL };
    let (disk, known, _dir) = disk_of(&[&at], 1 << 20, identity, patience);
    assert_eq!(read(&disk, 512, 512).await, snapshot(512, 512));
    assert_eq!((looks.load(Ordering::Relaxed), known.source().connections), (3, 1));
    assert_eq!(known.gone(), None);
}

#[test]
fn the_scratch_file_follows_nobodys_link() {
    let dir = tempfile::tempdir().unwrap();
    let volume = Name::new("vol1").unwrap();
    let victim = dir.path().join("victim");
    std::fs::write(&victim, b"of somebody else").unwrap();
    symlink(&victim, dir.path().join(format!("{volume}.{}.scratch", std::process::id()))).unwrap();
    for file in [nameless(dir.path(), &volume, SIZE).unwrap(), named(dir.path(), &volume).unwrap()] {
        file.write_all_at(b"ours", 0).unwrap();
        let meta = file.metadata().unwrap();
        assert_eq!((meta.mode() & 0o777, meta.nlink()), (0o600, 0));
    }
    assert_eq!(std::fs::read(&victim).unwrap(), b"of somebody else");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "SCRATCH-W3");
}
