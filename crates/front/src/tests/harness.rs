//! A client for tests: the sans-I/O client of crate `nbd` on any stream.

use crate::device::Peer;
use crate::memory::MemoryExports;
use crate::{Front, FrontLimits};
use bytes::BytesMut;
use futures_util::FutureExt;
use holdfast_nbd::client::{
    Aim, ClientError, CommandOut, Connected, Event, Handshake, Outcome, ReplyDecoder, RequestOut,
};
use holdfast_nbd::{Errno, Extent, HeaderStyle};
use holdfast_tls::{Checked, ClientStream, Connector};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

/// No test step takes this long; a test that waits longer hangs.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for something that must happen.
pub async fn soon<T>(future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(done) => done,
        Err(_) => panic!("did not happen within {PATIENCE:?}"),
    }
}

/// Waits until a condition is true that nothing signals.
pub(super) async fn until(mut come_about: impl FnMut() -> bool) {
    soon(async {
        while !come_about() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// A front without listeners; connections come through pipes.
pub(super) fn front(limits: FrontLimits, exports: &Arc<MemoryExports>) -> Arc<Front> {
    Arc::new(Front::new(limits, exports.clone()).unwrap())
}

/// Connects a pipe to the front.
pub fn pipe(front: &Arc<Front>) -> DuplexStream {
    pipe_of(front, 64 << 10)
}

/// The same with room for `bytes` in each direction.
pub(super) fn pipe_of(front: &Arc<Front>, bytes: usize) -> DuplexStream {
    let (near, far) = tokio::io::duplex(bytes);
    let front = front.clone();
    tokio::spawn(async move { front.serve(far, Peer::Unix, |_| None).await });
    near
}

/// Why a test's client could not continue.
#[derive(Debug)]
pub enum Broken {
    /// The server closed the connection.
    Closed,
    /// The server refused, or broke the protocol during the handshake.
    Handshake(ClientError),
    /// The TLS handshake failed.
    Tls(io::Error),
}

/// A client through TLS.
type TlsClient<S> = Client<Checked<ClientStream<S>>>;

pub struct Client<S = DuplexStream> {
    pub(super) socket: S,
    pub(super) connected: Connected,
    input: BytesMut,
    decoder: ReplyDecoder,
    events: VecDeque<Event>,
    next_cookie: u64,
}

/// The result of a request.
pub(super) type Answer = Result<Vec<u8>, Errno>;

impl<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin> Client<S> {
    pub async fn shake(socket: S, aim: Aim, style: HeaderStyle) -> Result<(S, BytesMut, Outcome), Broken> {
        Self::shake_on(socket, &mut Handshake::new(aim, style, true), BytesMut::new()).await
    }

    /// Continues a handshake whose next bytes are in `out`, up to its next outcome.
    async fn shake_on(
        mut socket: S,
        handshake: &mut Handshake,
        mut out: BytesMut,
    ) -> Result<(S, BytesMut, Outcome), Broken> {
        let mut input = BytesMut::new();
        loop {
            let outcome = handshake.step(&mut input, &mut out).map_err(Broken::Handshake)?;
            if socket.write_all_buf(&mut out).await.is_err() || socket.flush().await.is_err() {
                return Err(Broken::Closed);
            }
            if let Some(outcome) = outcome {
                return Ok((socket, input, outcome));
            }
            if !matches!(socket.read_buf(&mut input).await, Ok(1..)) {
                return Err(Broken::Closed);
            }
        }
    }

    pub(super) async fn connect_as(socket: S, name: &str, style: HeaderStyle) -> Result<Self, Broken> {
        Ok(Self::begin(Self::shake(socket, Aim::Go(name.into()), style).await?))
    }

    fn begin((socket, input, outcome): (S, BytesMut, Outcome)) -> Self {
        let Outcome::Connected(connected) = outcome else { panic!("{outcome:?}") };
        let decoder = ReplyDecoder::new(&connected);
        Self { socket, connected, input, decoder, events: VecDeque::new(), next_cookie: 1 }
    }

    /// Through TLS.
    pub(super) async fn connect_tls(socket: S, name: &str, tls: &Connector) -> Result<TlsClient<S>, Broken> {
        let mut handshake = Handshake::new(Aim::Go(name.into()), HeaderStyle::Structured, true).over_tls();
        let (socket, _, outcome) = Self::shake_on(socket, &mut handshake, BytesMut::new()).await?;
        assert_eq!(outcome, Outcome::StartTls);
        let socket = tls.connect(socket).await.map_err(Broken::Tls)?;
        let mut out = BytesMut::new();
        handshake.tls_started(&mut out);
        Ok(Client::begin(Client::shake_on(socket, &mut handshake, out).await?))
    }

    pub(super) async fn connect(socket: S, name: &str) -> Self {
        soon(Self::connect_as(socket, name, HeaderStyle::Structured)).await.unwrap()
    }

    /// Sends a request without waiting for its answer. Returns its cookie.
    pub(super) async fn send(&mut self, offset: u64, len: u64, command: CommandOut, payload: &[u8]) -> io::Result<u64> {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        let request = RequestOut { cookie, offset, len, command };
        assert!(self.decoder.sent(&request));
        let mut out = BytesMut::new();
        holdfast_nbd::client::encode_request(&mut out, self.connected.style, &request).unwrap();
        out.extend_from_slice(payload);
        self.socket.write_all_buf(&mut out).await?;
        self.socket.flush().await?;
        Ok(cookie)
    }

    /// Sends `count` flushes in one piece.
    pub(super) async fn send_flushes(&mut self, count: u64) {
        let mut out = BytesMut::new();
        for _ in 0..count {
            let request = RequestOut { cookie: self.next_cookie, offset: 0, len: 0, command: CommandOut::Flush };
            self.next_cookie += 1;
            assert!(self.decoder.sent(&request));
            holdfast_nbd::client::encode_request(&mut out, self.connected.style, &request).unwrap();
        }
        self.socket.write_all_buf(&mut out).await.unwrap();
    }

    /// As [`Client::send`], but also receives what the server sends meanwhile: with narrow pipes, both sides would
    /// otherwise wait for room.
    pub(super) async fn send_and_listen(&mut self, offset: u64, len: u64, command: CommandOut, payload: &[u8]) -> u64 {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        let request = RequestOut { cookie, offset, len, command };
        assert!(self.decoder.sent(&request));
        let mut out = BytesMut::new();
        holdfast_nbd::client::encode_request(&mut out, self.connected.style, &request).unwrap();
        out.extend_from_slice(payload);
        self.send_rest(out).await;
        cookie
    }

    /// Sends `out`, and receives what the server sends meanwhile.
    pub(super) async fn send_rest(&mut self, mut out: BytesMut) {
        let (mut reader, mut writer) = tokio::io::split(&mut self.socket);
        while !out.is_empty() {
            tokio::select! {
                biased;
                sent = writer.write_buf(&mut out) => assert!(sent.unwrap() > 0),
                received = reader.read_buf(&mut self.input) => assert!(received.unwrap() > 0),
            }
        }
    }

    /// Sends a request `count` times without receiving anything. Returns what the server did not accept, for
    /// [`Client::send_rest`]. Only for a runtime with one thread: there, a server that got many turns and accepted
    /// nothing is waiting for us.
    pub(super) async fn flood(&mut self, count: u64, offset: u64, len: u64, command: CommandOut) -> BytesMut {
        let mut out = BytesMut::new();
        for _ in 0..count {
            let request = RequestOut { cookie: self.next_cookie, offset, len, command };
            self.next_cookie += 1;
            assert!(self.decoder.sent(&request));
            holdfast_nbd::client::encode_request(&mut out, self.connected.style, &request).unwrap();
        }
        let mut idle = 0;
        while idle < 100 && !out.is_empty() {
            idle = match self.socket.write_buf(&mut out).now_or_never() {
                Some(sent) => {
                    assert!(sent.unwrap() > 0);
                    0
                }
                None => idle + 1,
            };
            tokio::task::yield_now().await;
        }
        out
    }

    pub(super) async fn event(&mut self) -> Result<Event, Broken> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            match self.decoder.next(&mut self.input).expect("the server keeps to the protocol") {
                Some(event) => return Ok(event),
                None if matches!(self.socket.read_buf(&mut self.input).await, Ok(1..)) => {}
                None => return Err(Broken::Closed),
            }
        }
    }

    /// The next complete answer, with its cookie. Our server never interleaves parts of different reads.
    pub(super) async fn answer(&mut self) -> Result<(u64, Answer), Broken> {
        let mut data = Vec::new();
        loop {
            match self.event().await? {
                Event::Data { data: piece, .. } => data.extend_from_slice(&piece),
                Event::Hole { len, .. } => data.resize(data.len() + len as usize, 0),
                Event::Status { .. } => {}
                Event::Done { cookie, result } => return Ok((cookie, result.map(|()| data))),
            }
        }
    }

    /// One request and its answer, nothing else in flight.
    pub(super) async fn call(&mut self, offset: u64, len: u64, command: CommandOut, payload: &[u8]) -> Answer {
        let cookie = soon(self.send(offset, len, command, payload)).await.unwrap();
        let (answered, answer) = soon(self.answer()).await.unwrap();
        assert_eq!(answered, cookie);
        answer
    }

    pub(super) async fn read(&mut self, offset: u64, len: u64) -> Answer {
        self.call(offset, len, CommandOut::Read { unfragmented: false }, &[]).await
    }

    pub(super) async fn write(&mut self, offset: u64, data: &[u8]) -> Answer {
        self.call(offset, data.len() as u64, CommandOut::Write { fua: false }, data).await
    }

    pub(super) async fn extents(&mut self, offset: u64, len: u64, one: bool) -> Vec<Extent> {
        self.send(offset, len, CommandOut::BlockStatus { one }, &[]).await.unwrap();
        let Event::Status { extents, .. } = soon(self.event()).await.unwrap() else { panic!("no status") };
        assert!(matches!(soon(self.event()).await, Ok(Event::Done { result: Ok(()), .. })));
        extents
    }

    /// Waits until the server has closed the connection; fails if it answers anything before.
    pub(super) async fn closed_unanswered(&mut self) {
        match soon(self.event()).await {
            Err(Broken::Closed) => {}
            other => panic!("R8: expected a closed connection, found {other:?}"),
        }
    }
}
