//! A client on its Unix socket, without a gateway: which requests are read, and how they are answered.

use super::*;
use crate::machine::{Bounds, Grant, Lane, Machine, Moment, Phase, Reply, VolumeFacts};
use holdfast_types::{Epoch, Name, RequestId, Token};
use std::time::Instant;
use tokio::task::JoinHandle;

const SECTOR: usize = 512;
const REQUESTS: usize = 3;
const LIMIT: Duration = Duration::from_secs(10);

/// A set of one volume that has its lease and waits for its connections.
fn shared() -> Arc<Shared> {
    let bounds = Bounds { requests: REQUESTS, bytes: 1 << 20 };
    let machine = Machine::new(RequestId(1), 1, bounds);
    let (shared, _actions) = Shared::new(Name::new("demo").unwrap(), machine, holdfast_host::boot_ns);
    shared.set_volumes(&[VolumeFacts { id: 1, name: Name::new("vol1").unwrap(), size: 1 << 20 }]);
    let grant = Grant {
        epoch: Epoch(1),
        token: Token(1),
        ttl: Duration::from_secs(3),
        gateway: "g1".into(),
        api: "h:1".into(),
        nbd: "h:2".into(),
    };
    shared.act(|machine, _, out| {
        machine.begin(Moment(0), false, out);
        machine.granted(Moment(0), RequestId(2), grant, 1, out);
    });
    shared
}

/// A client's socket, and the task that serves it.
fn served(shared: &Arc<Shared>) -> (UnixStream, JoinHandle<()>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let negotiated = Negotiated { style: HeaderStyle::Simple, allocation: false };
    (ours, tokio::spawn(transmit(theirs, 0, shared.clone(), negotiated, BytesMut::new())))
}

fn begin(shared: &Arc<Shared>) -> UnixStream {
    served(shared).0
}

/// A client that has sent one request more than there is room for, and one more behind it that is not even decoded.
async fn served_full(shared: &Arc<Shared>) -> (UnixStream, JoinHandle<()>) {
    let (mut socket, serving) = served(shared);
    for cookie in 0..REQUESTS as u64 + 2 {
        socket.write_all(&write(cookie, cookie * SECTOR as u64)).await.unwrap();
    }
    until("the queue is full", || shared.look(Machine::unanswered) == REQUESTS).await;
    (socket, serving)
}

/// A write of one sector, as bytes on the wire.
fn write(cookie: u64, offset: u64) -> Vec<u8> {
    let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
    bytes.extend([0, 0, 0, 1]);
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend((SECTOR as u32).to_be_bytes());
    bytes.extend([7; SECTOR]);
    bytes
}

fn disconnect() -> Vec<u8> {
    let mut bytes = read(0, 0);
    bytes[7] = 2;
    bytes
}

/// Cookie and error of a simple reply.
async fn reply(socket: &mut UnixStream) -> (u64, u32) {
    let mut bytes = [0; 16];
    tokio::time::timeout(LIMIT, socket.read_exact(&mut bytes)).await.expect("answered in time").unwrap();
    let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!(word(0), 0x6744_6698);
    (u64::from(word(8)) << 32 | u64::from(word(12)), word(4))
}

async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < LIMIT, "{what}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn while_nobody_serves_a_bounded_number_is_taken_and_a_fence_answers_all() {
    let shared = shared();
    let mut socket = begin(&shared);
    for cookie in 0..10 {
        socket.write_all(&write(cookie, cookie * SECTOR as u64)).await.unwrap();
    }
    until("requests are taken", || shared.look(Machine::unanswered) == REQUESTS).await;
    // A second client of the same volume shares its bounds.
    let mut other = begin(&shared);
    other.write_all(&write(99, 0)).await.unwrap();
    for _ in 0..1000 {
        tokio::task::yield_now().await;
        assert_eq!(shared.look(Machine::unanswered), REQUESTS, "CLIENT-F1");
    }
    shared.act(|machine, _, out| machine.refused(RequestId(2), "held by host-b", out));
    assert_eq!(shared.look(Machine::phase), Phase::Fenced);
    let mut answered = Vec::new();
    for _ in 0..10 {
        let (cookie, error) = reply(&mut socket).await;
        assert_eq!(error, 5, "ATTACH-M5");
        answered.push(cookie);
    }
    assert_eq!(answered, (0..10).collect::<Vec<_>>());
    assert_eq!(reply(&mut other).await, (99, 5));
}

#[tokio::test]
async fn wrong_requests_are_refused_at_once_and_alone() {
    let shared = shared();
    let mut socket = begin(&shared);
    // Behind the end.
    socket.write_all(&write(1, 1 << 20)).await.unwrap();
    assert_eq!(reply(&mut socket).await.0, 1);
    assert_eq!(shared.look(Machine::unanswered), 0);
    socket.write_all(&write(2, 0)).await.unwrap();
    until("the next one is taken", || shared.look(Machine::unanswered) == 1).await;
}

/// GROWTH-G1: requests of a client that connected before are accepted up to the new end. The kernel's driver is such a
/// client.
#[tokio::test]
async fn a_volume_that_grew_is_taken_up_to_its_new_end() {
    let shared = shared();
    let mut socket = begin(&shared);
    socket.write_all(&write(1, 1 << 20)).await.unwrap();
    assert_eq!(reply(&mut socket).await.0, 1, "beyond the end");
    shared.grow(0, 2 << 20);
    socket.write_all(&write(2, 1 << 20)).await.unwrap();
    until("it is taken", || shared.look(Machine::unanswered) == 1).await;
    shared.grow(0, 1 << 20);
    assert_eq!(shared.size(0), 2 << 20, "GROWTH-G3");
}

#[tokio::test]
async fn what_a_client_that_left_had_written_stays_asked_for() {
    let shared = shared();
    let mut socket = begin(&shared);
    socket.write_all(&write(1, 0)).await.unwrap();
    until("it is taken", || shared.look(Machine::unanswered) == 1).await;
    drop(socket);
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(shared.look(Machine::unanswered), 1, "CLIENT-F2");
}

/// A read, as bytes on the wire.
fn read(cookie: u64, offset: u64) -> Vec<u8> {
    let mut bytes = write(cookie, offset);
    bytes.truncate(28);
    bytes[7] = 0;
    bytes
}

#[tokio::test]
async fn what_a_client_that_left_had_asked_for_is_asked_for_no_more() {
    let shared = shared();
    let mut socket = begin(&shared);
    socket.write_all(&[read(1, 0), write(2, 512)].concat()).await.unwrap();
    until("both are taken", || shared.look(Machine::unanswered) == 2).await;
    drop(socket);
    until("the read is dropped", || shared.look(Machine::unanswered) == 1).await;
}

/// A write of zeros to one sector, as bytes on the wire.
fn zero(cookie: u64, offset: u64) -> Vec<u8> {
    let mut bytes = read(cookie, offset);
    bytes[7] = 6;
    bytes
}

struct Wakes(std::sync::atomic::AtomicUsize);

impl std::task::Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}

/// The client takes none of its answers. The task that sends them sleeps until it does.
#[tokio::test]
async fn a_writer_that_waits_for_its_client_does_not_wake_itself() {
    let replies = Outbox::new(ClientReplies::new(HeaderStyle::Simple));
    let (_theirs, mut ours) = UnixStream::pair().unwrap();
    let to = ReplyTo { cookie: 1, offset: 0, is_read: true };
    let answer = vec![holdfast_nbd::server::ReadPart::Data(Bytes::from(vec![7; 8 << 20]))];
    let ticket = Ticket { client: 1, to, narrow: false, len: 8 << 20 };
    replies.with(|replies| {
        replies.take();
        replies.clogged = true;
        replies.answer(&ticket, Ok(Reply::Read(answer)));
    });
    let wakes = Arc::new(Wakes(std::sync::atomic::AtomicUsize::new(0)));
    let waker = std::task::Waker::from(wakes.clone());
    let room = Notify::new();
    let mut writing = poll_fn(|_| {
        let cx = &mut Context::from_waker(&waker);
        Poll::Ready(poll_writing(cx, &replies, &mut ours, &room).is_pending())
    });
    for _ in 0..3 {
        assert!((&mut writing).await, "more than a socket takes");
    }
    assert_eq!(wakes.0.load(std::sync::atomic::Ordering::Relaxed), 0);
    assert!(!replies.look(|replies| replies.clogged), "less than the bound is left: it may be read from");
}

/// CLIENT-F4: the kernel's driver gives a socket up after 30 s without an answer, and sends its requests again on
/// another one.
#[tokio::test]
async fn what_waited_for_room_is_not_taken_once_its_client_is_gone() {
    let shared = shared();
    let (socket, serving) = served_full(&shared).await;
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    let mut sent = Vec::new();
    shared.act(|machine, now, out| {
        let incarnation = machine.incarnation();
        machine.connected(now, Lane { incarnation, volume: 0, slot: 0 }, out);
        sent.extend(out.iter().filter_map(|action| match action {
            Action::Send { out, .. } => Some((incarnation, out.cookie)),
            _ => None,
        }));
    });
    // The peer closes, and at the same moment there is room again: the reader sees both at once.
    drop(socket);
    let (incarnation, number) = sent[0];
    shared.act(|machine, now, out| machine.answered(now, incarnation, number, Ok(Reply::Done), out));
    tokio::time::timeout(LIMIT, serving).await.expect("it ends").unwrap();
    assert_eq!(shared.look(Machine::unanswered), REQUESTS - 1, "CLIENT-F4");
}

/// CLIENT-F4: the driver gave the socket up while its request was read, and nothing waited for room. The retry may be
/// answered by now, and a later write of the same place too.
#[tokio::test]
async fn a_write_of_a_client_that_is_gone_is_not_taken_although_there_is_room() {
    for (request, taken) in [(write(1, 0), 0), (zero(1, 0), 0), (read(1, 0), 1)] {
        let shared = shared();
        let (mut socket, theirs) = UnixStream::pair().unwrap();
        socket.write_all(&request).await.unwrap();
        drop(socket);
        let negotiated = Negotiated { style: HeaderStyle::Simple, allocation: false };
        let (mut client, _write) = theirs.into_split();
        let replies = Arc::new(Outbox::new(ClientReplies::new(HeaderStyle::Simple)));
        let room = shared.room(0);
        let id = shared.join(replies.clone());
        let reader = Reader { id, volume: 0, shared: &shared, replies: &replies, room, style: HeaderStyle::Simple };
        let why = reader.run(&mut client, negotiated, BytesMut::new()).await.unwrap_err();
        assert!(why.contains("it closed the connection"), "{why}");
        assert_eq!(shared.look(Machine::unanswered), taken, "CLIENT-F4: {request:?}");
    }
}

/// The end of the socket alone ends the wait.
#[tokio::test]
async fn a_client_that_is_gone_is_not_waited_for_until_there_is_room() {
    let shared = shared();
    let (socket, serving) = served_full(&shared).await;
    drop(socket);
    tokio::time::timeout(LIMIT, serving).await.expect("the end is seen").unwrap();
    assert_eq!(shared.look(Machine::unanswered), REQUESTS, "CLIENT-F2: what was taken is carried out");
}

/// CLIENT-F5: libnbd does this.
#[tokio::test]
async fn a_client_that_disconnects_and_closes_its_sending_side_is_answered() {
    let shared = shared();
    let (mut socket, theirs) = UnixStream::pair().unwrap();
    let negotiated = Negotiated { style: HeaderStyle::Simple, allocation: false };
    let serving = tokio::spawn(transmit(theirs, 0, shared.clone(), negotiated, BytesMut::new()));
    let incarnation = shared.look(Machine::incarnation);
    shared.act(|machine, now, out| machine.connected(now, Lane { incarnation, volume: 0, slot: 0 }, out));
    let all = REQUESTS as u64 + 2;
    for cookie in 1..=all {
        socket.write_all(&write(cookie, cookie * SECTOR as u64)).await.unwrap();
    }
    socket.write_all(&disconnect()).await.unwrap();
    until("the queue is full", || shared.look(Machine::unanswered) == REQUESTS).await;
    socket.shutdown().await.unwrap();
    // The machine numbers requests from 1 on, in the order in which it takes them.
    for number in 1..=all {
        shared.act(|machine, now, out| machine.answered(now, incarnation, number, Ok(Reply::Done), out));
        assert_eq!(reply(&mut socket).await, (number, 0), "CLIENT-F5");
        until("the next one is taken", || shared.look(Machine::unanswered) == REQUESTS.min((all - number) as usize))
            .await;
    }
    tokio::time::timeout(LIMIT, serving).await.expect("it ends").unwrap();
    assert_eq!(socket.read(&mut [0; 16]).await.unwrap(), 0);
}

/// CLIENT-F4: on a Unix socket this could be told from a closed one, but no driver does it.
#[tokio::test]
async fn a_client_that_closes_its_sending_side_is_gone() {
    let shared = shared();
    let (mut socket, serving) = served_full(&shared).await;
    socket.shutdown().await.unwrap();
    tokio::time::timeout(LIMIT, serving).await.expect("the end is seen").unwrap();
    assert_eq!(shared.look(Machine::unanswered), REQUESTS, "CLIENT-F2");
    assert_eq!(socket.read(&mut [0; 16]).await.unwrap(), 0, "closed without an answer");
}
