//! The network between machines: TCP connections over links that delay, lose, and are cut in any direction.
//!
//! A lost segment arrives later (TCP resends it), and data held back by a cut link arrives after the cut, unless the
//! connection ended before. So bytes of one connection keep their order; those of several connections do not. The
//! kernel of a dead process reports its end (FIN, RST); a machine without power does not, and answers with RST once it
//! is back.

use crate::rng::Rng;
use crate::sync::lock;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{mpsc, oneshot};
use tonic::transport::server::Connected;

const MS: u64 = 1_000_000;
/// Time until a lost segment is resent, in nanoseconds.
const RESEND: (u64, u64) = (100 * MS, 300 * MS);
/// Tries to connect over a cut link before giving up.
const CONNECT_TRIES: u32 = 6;

/// One direction between two gateways.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// Nothing passes.
    pub cut: bool,
    /// Delay in nanoseconds, from and to.
    pub delay: (u64, u64),
    /// Of a thousand segments, how many are lost at first.
    pub loss: u64,
}

impl Link {
    /// A quiet local network.
    pub const CALM: Link = Link { cut: false, delay: (MS / 5, MS), loss: 0 };

    /// A slow link with losses; also as text.
    pub fn lossy(rng: &mut Rng) -> (Link, String) {
        let (delay, loss) = (rng.pick(&[2, 10, 60]), rng.pick(&[5, 30, 150]));
        (Link { cut: false, delay: (MS / 5, delay * MS), loss }, format!("up to {delay} ms, {loss} of 1000 lost"))
    }
}

/// How a host is cut off from gateways: from all or some, in both directions or in one.
#[derive(Debug)]
pub struct CutOff {
    from: Vec<bool>,
    there: bool,
    back: bool,
}

impl CutOff {
    /// From all gateways, or from each by chance.
    pub fn drawn(rng: &mut Rng, gateways: usize, all: bool, one_way: bool) -> Self {
        let from = (0..gateways).map(|_| all || rng.chance(500)).collect();
        let out = rng.chance(500);
        let (there, back) = if one_way { (out, !out) } else { (true, true) };
        Self { from, there, back }
    }

    /// One direction of the host's link with a gateway.
    pub fn link(&self, gateway: usize, there: bool) -> Link {
        Link { cut: self.from[gateway] && if there { self.there } else { self.back }, ..Link::CALM }
    }
}

impl fmt::Display for CutOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, there {}, back {}", self.from, self.there, self.back)
    }
}

/// Ports of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Door {
    /// Other gateways, and the admin API.
    Rpc,
    /// NBD.
    Nbd,
    /// An agent's, over HTTP.
    Agent,
}

type Reply = oneshot::Sender<io::Result<Stream>>;

enum Event {
    /// Something may have arrived at this end of a connection.
    Flow { conn: u64, end: usize },
    /// `from` wants a connection to `to`.
    Syn { from: usize, to: usize, door: Door, tries: u32, reply: Reply },
    /// The answer to that has arrived.
    Answer { reply: Reply, outcome: io::Result<(u64, usize)> },
}

enum Segment {
    Data(Vec<u8>),
    Fin,
    Reset,
}

#[derive(Default)]
struct Half {
    under_way: VecDeque<(u64, Segment)>,
    arrived: VecDeque<u8>,
    fin: bool,
    reset: bool,
    reader: Option<Waker>,
    last_at: u64,
}

struct Conn {
    /// The machines at both ends.
    hosts: [usize; 2],
    open: [bool; 2],
    /// Data towards each end.
    towards: [Half; 2],
}

struct Inner {
    now: u64,
    sequence: u64,
    rng: Rng,
    events: BTreeMap<(u64, u64), Event>,
    links: BTreeMap<(usize, usize), Link>,
    doors: BTreeMap<(usize, Door), mpsc::UnboundedSender<io::Result<Stream>>>,
    powered: Vec<bool>,
    conns: BTreeMap<u64, Conn>,
    next_conn: u64,
    carried: u64,
    /// The segment to be damaged: its machine, and bytes that it has.
    damage: Option<(usize, Vec<u8>)>,
}

/// The network. Clones are the same.
#[derive(Clone)]
pub struct Net(Arc<Mutex<Inner>>);

/// Done after the lock is released, since the notified code may call the network again.
enum Then {
    Wake(Waker),
    Accept(mpsc::UnboundedSender<io::Result<Stream>>, Stream),
    Reply(Reply, io::Result<Stream>),
}

impl Inner {
    fn later(&mut self, at: u64, event: Event) {
        self.sequence += 1;
        self.events.insert((at, self.sequence), event);
    }

    fn link(&self, from: usize, to: usize) -> Link {
        let mut link = self.links.get(&(from, to)).copied().unwrap_or(Link::CALM);
        link.cut |= !self.powered[to] || !self.powered[from];
        link
    }

    fn delay(&mut self, from: usize, to: usize) -> u64 {
        let link = self.link(from, to);
        let lost = self.rng.chance(link.loss);
        self.rng.range(link.delay.0, link.delay.1) + if lost { self.rng.range(RESEND.0, RESEND.1) } else { 0 }
    }

    fn send(&mut self, id: u64, to_end: usize, mut segment: Segment) {
        let Some(hosts) = self.conns.get(&id).map(|conn| conn.hosts) else { return };
        if let Segment::Data(bytes) = &mut segment {
            self.spoil(hosts[to_end], bytes);
        }
        let at = self.now + self.delay(hosts[1 - to_end], hosts[to_end]);
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let half = &mut conn.towards[to_end];
        half.last_at = half.last_at.max(at);
        let at = half.last_at;
        half.under_way.push_back((at, segment));
        self.later(at, Event::Flow { conn: id, end: to_end });
    }

    fn spoil(&mut self, to: usize, bytes: &mut [u8]) {
        let Some((_, known_by)) = self.damage.as_ref().filter(|(host, _)| *host == to) else { return };
        let Some(at) = bytes.windows(known_by.len()).position(|window| window == known_by.as_slice()) else { return };
        bytes[at] ^= 1;
        self.damage = None;
    }

    fn flow(&mut self, id: u64, end: usize, then: &mut Vec<Then>) {
        let now = self.now;
        let Some(hosts) = self.conns.get(&id).map(|conn| conn.hosts) else { return };
        if self.link(hosts[1 - end], hosts[end]).cut {
            let at = now + self.rng.range(RESEND.0, RESEND.1);
            return self.later(at, Event::Flow { conn: id, end });
        }
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let open = conn.open[end];
        let half = &mut conn.towards[end];
        let mut refused = false;
        while half.under_way.front().is_some_and(|(at, _)| *at <= now) {
            let Some((_, segment)) = half.under_way.pop_front() else { break };
            match segment {
                Segment::Data(_) if !open => refused = true,
                Segment::Data(bytes) => {
                    self.carried += bytes.len() as u64;
                    half.arrived.extend(bytes);
                }
                Segment::Fin => half.fin = true,
                Segment::Reset => half.reset = true,
            }
        }
        then.extend(half.reader.take().map(Then::Wake));
        if refused && conn.open[1 - end] {
            self.send(id, 1 - end, Segment::Reset);
        }
    }

    fn syn(&mut self, (from, to, door): (usize, usize, Door), tries: u32, reply: Reply, then: &mut Vec<Then>) {
        if self.link(from, to).cut {
            let at = self.now + self.rng.range(500 * MS, 1000 * MS);
            if tries < CONNECT_TRIES {
                return self.later(at, Event::Syn { from, to, door, tries: tries + 1, reply });
            }
            return then.push(Then::Reply(reply, Err(io::ErrorKind::TimedOut.into())));
        }
        let at = self.now + self.delay(to, from);
        let Some(door) = self.doors.get(&(to, door)).cloned() else {
            return self.later(at, Event::Answer { reply, outcome: Err(io::ErrorKind::ConnectionRefused.into()) });
        };
        let id = self.next_conn;
        self.next_conn += 1;
        self.conns.insert(id, Conn { hosts: [from, to], open: [true, true], towards: Default::default() });
        then.push(Then::Accept(door, Stream { net: None, conn: id, end: 1 }));
        self.later(at, Event::Answer { reply, outcome: Ok((id, 0)) });
    }
}

impl Net {
    /// Between this many gateways.
    pub fn new(seed: u64, hosts: usize) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            now: 0,
            sequence: 0,
            rng: Rng::new(seed, 2),
            events: BTreeMap::new(),
            links: BTreeMap::new(),
            doors: BTreeMap::new(),
            powered: vec![true; hosts],
            conns: BTreeMap::new(),
            next_conn: 1,
            carried: 0,
            damage: None,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.0)
    }

    /// Sets one direction.
    pub fn set(&self, from: usize, to: usize, link: Link) {
        self.lock().links.insert((from, to), link);
    }

    /// Sets both directions between a host and each of these gateways: `true` is the way to the gateway.
    pub fn set_around(&self, host: usize, gateways: usize, link: impl Fn(usize, bool) -> Link) {
        for gateway in 0..gateways {
            self.set(host, gateway, link(gateway, true));
            self.set(gateway, host, link(gateway, false));
        }
    }

    /// One direction, as it is.
    pub fn get(&self, from: usize, to: usize) -> Link {
        self.lock().links.get(&(from, to)).copied().unwrap_or(Link::CALM)
    }

    /// Whether the machine has power.
    pub fn power(&self, host: usize, on: bool) {
        self.lock().powered[host] = on;
    }

    /// Flips a bit of the next segment to `host` that has these bytes, among them.
    pub fn damage_next(&self, host: usize, known_by: &[u8]) {
        self.lock().damage = Some((host, known_by.to_vec()));
    }

    /// Whether no segment is still to be damaged.
    pub fn has_damaged(&self) -> bool {
        self.lock().damage.is_none()
    }

    /// The process at `host` listens.
    pub fn listen(&self, host: usize, door: Door) -> mpsc::UnboundedReceiver<io::Result<Stream>> {
        let (tx, rx) = mpsc::unbounded_channel();
        self.lock().doors.insert((host, door), tx);
        rx
    }

    /// The process at `host` is gone.
    pub fn close(&self, host: usize) {
        let doors = [Door::Rpc, Door::Nbd, Door::Agent].map(|door| self.lock().doors.remove(&(host, door)));
        drop(doors);
    }

    /// The process at `host` with that port is gone; its other ports belong to other processes.
    pub fn shut(&self, host: usize, door: Door) {
        let gone = self.lock().doors.remove(&(host, door));
        drop(gone);
    }

    /// A fingerprint of events and bytes so far.
    pub fn fingerprint(&self) -> (u64, u64) {
        let inner = self.lock();
        (inner.sequence, inner.carried)
    }

    /// Carries out everything due at `now`.
    pub fn advance(&self, now: u64) {
        self.lock().now = now;
        loop {
            let mut then = Vec::new();
            {
                let mut inner = self.lock();
                let Some(entry) = inner.events.first_entry().filter(|entry| entry.key().0 <= now) else { return };
                match entry.remove() {
                    Event::Flow { conn, end } => inner.flow(conn, end, &mut then),
                    Event::Syn { from, to, door, tries, reply } => {
                        inner.syn((from, to, door), tries, reply, &mut then);
                    }
                    Event::Answer { reply, outcome } => {
                        let outcome = outcome.map(|(conn, end)| Stream { net: None, conn, end });
                        then.push(Then::Reply(reply, outcome));
                    }
                }
            }
            for then in then {
                match then {
                    Then::Wake(waker) => waker.wake(),
                    // No process there any more: the stream is dropped, which ends the connection.
                    Then::Accept(door, stream) => drop(door.send(Ok(stream.over(self)))),
                    Then::Reply(reply, outcome) => drop(reply.send(outcome.map(|stream| stream.over(self)))),
                }
            }
        }
    }

    /// Connects `from` to `to`; takes as long as the links need, so limit the time. Fails when refused, or without
    /// an answer.
    pub async fn connect(self, from: usize, to: usize, door: Door) -> io::Result<Stream> {
        let (reply, answer) = oneshot::channel();
        {
            let mut inner = self.lock();
            let at = inner.now + inner.delay(from, to);
            inner.later(at, Event::Syn { from, to, door, tries: 0, reply });
        }
        answer.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }
}

/// One end of a connection.
pub struct Stream {
    /// `None` only while the network itself holds it.
    net: Option<Net>,
    conn: u64,
    end: usize,
}

impl Stream {
    /// The machine at the other end, while the connection is known.
    pub fn peer(&self) -> Option<usize> {
        let inner = self.net.as_ref()?.lock();
        inner.conns.get(&self.conn).map(|conn| conn.hosts[1 - self.end])
    }

    fn over(mut self, net: &Net) -> Self {
        self.net = Some(net.clone());
        self
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let Some(net) = self.net.take() else { return };
        let mut inner = net.lock();
        let (id, end) = (self.conn, self.end);
        let Some(conn) = inner.conns.get_mut(&id) else { return };
        conn.open[end] = false;
        let (mine, other_open) = (conn.hosts[end], conn.open[1 - end]);
        if !other_open {
            inner.conns.remove(&id);
        } else if inner.powered[mine] {
            inner.send(id, 1 - end, Segment::Fin);
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Some(net) = &self.net else { return Poll::Ready(Ok(())) };
        let mut inner = net.lock();
        let Some(conn) = inner.conns.get_mut(&self.conn) else { return Poll::Ready(Ok(())) };
        let half = &mut conn.towards[self.end];
        if half.reset {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let len = half.arrived.len().min(buf.remaining());
        if len > 0 {
            let bytes: Vec<u8> = half.arrived.drain(..len).collect();
            buf.put_slice(&bytes);
            return Poll::Ready(Ok(()));
        }
        if half.fin {
            return Poll::Ready(Ok(()));
        }
        half.reader = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let gone = || Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        let Some(net) = &self.net else { return gone() };
        let mut inner = net.lock();
        if inner.conns.get(&self.conn).is_none_or(|conn| conn.towards[self.end].reset) {
            return gone();
        }
        inner.send(self.conn, 1 - self.end, Segment::Data(data.to_vec()));
        Poll::Ready(Ok(data.len()))
    }

    /// In one piece, as a kernel does with what is written at once.
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let whole: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        self.poll_write(context, &whole)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(net) = &self.net {
            net.lock().send(self.conn, 1 - self.end, Segment::Fin);
        }
        Poll::Ready(Ok(()))
    }
}

impl Connected for Stream {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}
