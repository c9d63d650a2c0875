//! A block device of a host over several connections to attach, as the kernel's NBD driver has it.
//!
//! SIMKERNEL-D1  A connection with a request that waits for too long is given up: it is closed, with everything that
//!     lies in it. Its unanswered requests are sent again on another connection, in their order, before any new one.
//!     Then it is replaced. Of several such connections any may be the first, as the kernel looks at requests in the
//!     order of their tags. The kernel waits 30 s. Here it is less, since faults are shorter, too.
//! SIMKERNEL-D2  A device that does so has no overlapping writes in progress. Otherwise a second copy of the older one
//!     could be seen after the newer one.

use crate::rng::Rng;
use crate::sync::lock;
use bytes::Bytes;
use holdfast_attach::requests::{ExportName, ReadPart, RequestError, Requests};
use holdfast_attach::{GivenClient, Halves};
use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, poll_fn};
use std::io;
use std::ops::Range;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Bytes of a pipe between attach and the device.
const PIPE_BYTES: usize = 64 << 10;

/// Where new connections to a volume go.
pub type VolumeDoor = mpsc::UnboundedSender<GivenClient>;

/// Behaviour of a host's devices.
#[derive(Clone, Copy, Debug, Default)]
pub struct Habits {
    /// How long a request may wait before its connection is given up, in nanoseconds; `None`: for ever.
    pub patience: Option<u64>,
    /// A bug: attach does not see that a connection was closed before it has read everything in it.
    pub ends_unseen: bool,
    /// For the choice of the connection that is given up.
    pub seed: u64,
}

struct Connection {
    requests: Arc<Requests>,
    close: CancellationToken,
}

/// A request that is not answered yet.
struct Waiting {
    /// Its connection, and when it was sent there; `None`: not sent yet.
    sent: Option<(usize, u64)>,
    /// What a write, a trim or a zeroing covers.
    writes: Option<Range<u64>>,
}

struct State {
    now: u64,
    rng: Rng,
    /// `None`: given up, not replaced yet.
    connections: Vec<Option<Connection>>,
    /// The connection for each user's requests: one for all of them, so that their order is kept.
    routes: Vec<usize>,
    next: u64,
    /// By number, in the order of asking.
    waiting: BTreeMap<u64, Waiting>,
    /// Those to be sent again.
    again: BTreeSet<u64>,
}

impl State {
    /// Whether request `number` may be sent now.
    fn may_send(&self, number: u64, alone: bool) -> bool {
        let turn = self.again.first().is_none_or(|first| *first >= number);
        let writes = self.waiting.get(&number).and_then(|waiting| waiting.writes.as_ref());
        let overlaps = |ours: &Range<u64>| {
            let mut earlier = self.waiting.range(..number).filter_map(|(_, waiting)| waiting.writes.as_ref());
            earlier.any(|other| other.start < ours.end && ours.start < other.end)
        };
        turn && !(alone && writes.is_some_and(overlaps))
    }
}

/// See the module.
pub struct KernelDevice {
    export: ExportName,
    door: VolumeDoor,
    habits: Habits,
    state: Mutex<State>,
    /// Something was answered or sent again.
    moved: Notify,
    given_up: Notify,
}

/// A user of a device.
#[derive(Clone)]
pub struct User {
    device: Arc<KernelDevice>,
    number: usize,
}

#[derive(Clone)]
enum Request {
    Read { offset: u64, len: u32 },
    Write { offset: u64, data: Bytes },
    Trim { offset: u64, len: u32 },
    Zero { offset: u64, len: u32 },
    Flush,
}

impl Request {
    fn writes(&self) -> Option<Range<u64>> {
        match self {
            Self::Write { offset, data } => Some(*offset..*offset + data.len() as u64),
            Self::Trim { offset, len } | Self::Zero { offset, len } => Some(*offset..*offset + u64::from(*len)),
            Self::Read { .. } | Self::Flush => None,
        }
    }

    async fn send(self, over: Arc<Requests>) -> Result<Vec<ReadPart>, RequestError> {
        match self {
            Self::Read { offset, len } => over.read(offset, len).await,
            Self::Write { offset, data } => over.write(offset, data).await.map(|()| Vec::new()),
            Self::Trim { offset, len } => over.trim(offset, len).await.map(|()| Vec::new()),
            Self::Zero { offset, len } => over.zero(offset, len).await.map(|()| Vec::new()),
            Self::Flush => over.flush().await.map(|()| Vec::new()),
        }
    }
}

/// The reading half of a connection that can be closed at any time: it ends then.
struct Closable {
    inner: Box<dyn AsyncRead + Send + Unpin>,
    closed: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl AsyncRead for Closable {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.closed.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl KernelDevice {
    /// A device with a connection for each of `users`; `None` if attach ends meanwhile.
    pub async fn make(export: ExportName, door: VolumeDoor, users: usize, habits: Habits) -> Option<Vec<User>> {
        let state = State {
            now: 0,
            rng: Rng::new(habits.seed, 9),
            connections: Vec::new(),
            routes: (0..users).collect(),
            next: 0,
            waiting: BTreeMap::new(),
            again: BTreeSet::new(),
        };
        let (moved, given_up) = (Notify::new(), Notify::new());
        let device = Self { export, door, habits, state: Mutex::new(state), moved, given_up };
        for _ in 0..users {
            let connection = device.connect().await?;
            lock(&device.state).connections.push(Some(connection));
        }
        let device = Arc::new(device);
        tokio::spawn(device.clone().replace());
        Some((0..users).map(|number| User { device: device.clone(), number }).collect())
    }

    /// `None` if attach ends meanwhile.
    async fn connect(&self) -> Option<Connection> {
        let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
        let halves = |end| -> Halves {
            let (read, write) = tokio::io::split(end);
            (Box::new(read), Box::new(write))
        };
        let close = CancellationToken::new();
        let ended = if self.habits.ends_unseen { CancellationToken::new() } else { close.clone() };
        self.door.send(GivenClient { halves: halves(theirs), ended }).ok()?;
        let (read, write) = halves(ours);
        let read = Closable { inner: read, closed: Box::pin(close.clone().cancelled_owned()) };
        let requests = Requests::over((Box::new(read), write), &self.export).await.ok()?;
        Some(Connection { requests: Arc::new(requests), close })
    }

    /// Replaces connections that were given up.
    async fn replace(self: Arc<Self>) {
        loop {
            self.given_up.notified().await;
            loop {
                let missing = lock(&self.state).connections.iter().position(Option::is_none);
                let Some(missing) = missing else { break };
                let Some(connection) = self.connect().await else { return };
                lock(&self.state).connections[missing] = Some(connection);
            }
        }
    }

    /// Gives a connection up if one of its requests waits for too long and there is another connection. Returns how
    /// many requests are sent again.
    fn tick(&self, now: u64) -> u64 {
        let mut state = lock(&self.state);
        state.now = now;
        let Some(patience) = self.habits.patience else { return 0 };
        let sent = state.waiting.values().filter_map(|waiting| waiting.sent);
        let late: BTreeSet<usize> = sent.filter(|(_, since)| since + patience <= now).map(|(at, _)| at).collect();
        if late.is_empty() {
            return 0;
        }
        let late = state.rng.pick(&late.into_iter().collect::<Vec<_>>());
        let other = state.connections.iter().enumerate().find(|(at, there)| *at != late && there.is_some());
        let Some(other) = other.map(|(at, _)| at) else { return 0 };
        // `None`: it was given up already.
        let Some(given_up) = state.connections[late].take() else { return 0 };
        given_up.close.cancel();
        let State { routes, waiting, again, .. } = &mut *state;
        routes.iter_mut().filter(|route| **route == late).for_each(|route| *route = other);
        let mut count = 0;
        for (number, waiting) in waiting.iter_mut().filter(|(_, w)| w.sent.is_some_and(|(at, _)| at == late)) {
            waiting.sent = None;
            again.insert(*number);
            count += 1;
        }
        drop(state);
        self.given_up.notify_one();
        count
    }

    async fn turn(&self, number: u64) {
        let alone = self.habits.patience.is_some();
        loop {
            let mut moved = pin!(self.moved.notified());
            // Before the look, so that nothing is missed.
            moved.as_mut().enable();
            if lock(&self.state).may_send(number, alone) {
                return;
            }
            moved.await;
        }
    }

    /// The connection for a request of `user`.
    fn route(&self, user: usize, number: u64) -> Result<Arc<Requests>, RequestError> {
        let mut state = lock(&self.state);
        let (at, now) = (state.routes[user], state.now);
        if let Some(waiting) = state.waiting.get_mut(&number) {
            waiting.sent = Some((at, now));
        }
        let connection = state.connections[at].as_ref().map(|connection| connection.requests.clone());
        connection.ok_or_else(|| RequestError::Lost("its connection was given up, and it has no other".to_string()))
    }

    async fn send(&self, user: usize, number: u64, request: Request) -> Result<Vec<ReadPart>, RequestError> {
        loop {
            self.turn(number).await;
            let mut asking = pin!(request.clone().send(self.route(user, number)?));
            // By this it is sent.
            let first = poll_fn(|cx| Poll::Ready(asking.as_mut().poll(cx))).await;
            lock(&self.state).again.remove(&number);
            self.moved.notify_waiters();
            let outcome = match first {
                Poll::Ready(outcome) => outcome,
                Poll::Pending => asking.await,
            };
            match outcome {
                // SIMKERNEL-D1.
                Err(RequestError::Lost(_)) if lock(&self.state).again.contains(&number) => {}
                outcome => return outcome,
            }
        }
    }

    async fn ask(&self, user: usize, request: Request) -> Result<Vec<ReadPart>, RequestError> {
        let number = {
            let mut state = lock(&self.state);
            state.next += 1;
            let number = state.next;
            state.waiting.insert(number, Waiting { sent: None, writes: request.writes() });
            number
        };
        let outcome = self.send(user, number, request).await;
        let mut state = lock(&self.state);
        state.waiting.remove(&number);
        state.again.remove(&number);
        drop(state);
        self.moved.notify_waiters();
        outcome
    }
}

impl User {
    /// Time passes, for all users of the device. Returns how many requests are sent again.
    pub fn tick(&self, now: u64) -> u64 {
        self.device.tick(now)
    }

    /// As [`Requests::read`].
    pub async fn read(&self, offset: u64, len: u32) -> Result<Vec<ReadPart>, RequestError> {
        self.device.ask(self.number, Request::Read { offset, len }).await
    }

    /// As [`Requests::write`].
    pub async fn write(&self, offset: u64, data: Bytes) -> Result<(), RequestError> {
        self.device.ask(self.number, Request::Write { offset, data }).await.map(|_| ())
    }

    /// As [`Requests::trim`].
    pub async fn trim(&self, offset: u64, len: u32) -> Result<(), RequestError> {
        self.device.ask(self.number, Request::Trim { offset, len }).await.map(|_| ())
    }

    /// As [`Requests::zero`].
    pub async fn zero(&self, offset: u64, len: u32) -> Result<(), RequestError> {
        self.device.ask(self.number, Request::Zero { offset, len }).await.map(|_| ())
    }

    /// As [`Requests::flush`].
    pub async fn flush(&self) -> Result<(), RequestError> {
        self.device.ask(self.number, Request::Flush).await.map(|_| ())
    }
}
