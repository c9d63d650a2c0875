//! A proxy in front of a real S3 server that injects faults: into some requests, drawn from a seed, or into all
//! requests of one kind for a while.
//!
//! Otherwise it forwards byte for byte: signatures stay valid, because nothing signed is changed (except where that is
//! the fault).

pub mod http;

use anyhow::{Context, Result};
use http::{Message, read_reply, read_request};
use std::collections::{BTreeMap, VecDeque};
use std::io::{BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// 503 SlowDown; the request is not executed.
    SlowDown,
    /// 500, but the request is executed.
    Failing,
    /// Answered late.
    Slow,
    /// Never answered; the request is not executed.
    Hang,
    /// Never answered; the request is executed.
    HangAfter,
    /// The connection breaks before the request is read; it is not executed.
    Reset,
    /// The connection breaks instead of the answer; the request is executed.
    LostReply,
    /// The answer's body ends early.
    Truncated,
    /// One bit of the answer's body is flipped.
    Corrupted,
    /// One bit of the request's body is flipped on its way.
    CorruptedUpload,
    /// A conditional PUT that is executed and answered with 412.
    Own412,
    /// A conditional PUT that is executed and answered with 409.
    Own409,
    /// 404 for an object that may exist.
    Missing,
    /// An old answer to the same listing.
    StaleList,
    /// 403 ExpiredToken.
    Expired,
    /// 403 RequestTimeTooSkewed.
    Skewed,
    /// 507 to a PUT.
    Full,
}

use Fault::{
    Corrupted, CorruptedUpload, Expired, Failing, Full, Hang, HangAfter, LostReply, Missing, Own409, Own412, Reset,
    Skewed, Slow, SlowDown, StaleList, Truncated,
};

impl Fault {
    /// The faults of a mixed plan.
    pub const MIXED: [Fault; 14] = [
        SlowDown,
        Failing,
        Slow,
        Hang,
        HangAfter,
        Reset,
        LostReply,
        Truncated,
        Corrupted,
        CorruptedUpload,
        Own412,
        Own409,
        Missing,
        StaleList,
    ];

    /// Whether the fault applies to this request.
    fn fits(self, request: &Message) -> bool {
        let put = request.method() == "PUT";
        let conditional = put && ["if-match", "if-none-match"].iter().any(|name| request.header(name).is_some());
        let list = request.method() == "GET" && request.target().contains("list-type=2");
        let get = request.method() == "GET" && !list;
        match self {
            SlowDown | Failing | Slow | Hang | HangAfter | Reset | LostReply | Expired | Skewed => true,
            Truncated | Corrupted | Missing => get,
            CorruptedUpload => put && !request.body.is_empty(),
            Own412 | Own409 => conditional,
            StaleList => list,
            Full => put,
        }
    }
}

/// The current plan: faults with their rates, in thousandths of the requests to which they apply.
pub type Weather = Vec<(Fault, u64)>;

/// Every mixed fault at the same rate; faults that make a caller wait for its timeout at a fifth of it.
pub fn mixed(thousandths: u64) -> Weather {
    let rate = |fault| if matches!(fault, Hang | HangAfter) { thousandths.div_ceil(5) } else { thousandths };
    Fault::MIXED.iter().map(|fault| (*fault, rate(*fault))).collect()
}

/// Only this fault, in every request to which it applies.
pub fn only(fault: Fault) -> Weather {
    vec![(fault, 1000)]
}

/// A hanging request is dropped after this time; its caller has given up by then.
const HANG_MAX: Duration = Duration::from_secs(20);
/// An idle connection is closed after this time.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// Number of recent requests that are kept.
const RECENT_MAX: usize = 64;
/// One request in this many gets a fault that applies to it and did not occur yet.
const OWED_ONE_IN: u64 = 4;
const SLOW_BY: Duration = Duration::from_millis(300);

#[derive(Debug)]
struct Shared {
    upstream: String,
    weather: Mutex<Weather>,
    dice: AtomicU64,
    asked: AtomicU64,
    /// The last requests.
    recent: Mutex<VecDeque<String>>,
    played: Mutex<BTreeMap<Fault, u64>>,
    /// Objects whose replies were damaged recently. A gateway asks three times; if all three replies are damaged, it
    /// rightly treats the object as damaged.
    spoilt: Mutex<VecDeque<String>>,
    listings: Mutex<BTreeMap<String, Vec<u8>>>,
    ended: AtomicBool,
}

/// The proxy. Ends when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: String,
    shared: Arc<Shared>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Proxy {
    /// Starts a proxy on a free port of loopback, in front of `upstream` (HOST:PORT). It injects no faults yet. Fails
    /// when no port is free.
    pub fn start(upstream: &str, seed: u64) -> Result<Self> {
        Self::start_on("127.0.0.1", upstream, seed)
    }

    /// The same on another local address.
    pub fn start_on(host: &str, upstream: &str, seed: u64) -> Result<Self> {
        let listener = TcpListener::bind((host, 0)).context("a port for the proxy")?;
        let address = listener.local_addr()?.to_string();
        let shared = Arc::new(Shared {
            upstream: upstream.into(),
            weather: Mutex::default(),
            dice: AtomicU64::new(seed),
            asked: AtomicU64::new(0),
            recent: Mutex::default(),
            played: Mutex::default(),
            spoilt: Mutex::default(),
            listings: Mutex::default(),
            ended: AtomicBool::new(false),
        });
        let accepting = shared.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if accepting.ended.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(client) = client else { continue };
                let shared = accepting.clone();
                std::thread::spawn(move || {
                    // Broken connections are expected here.
                    let _ = serve(client, &shared);
                });
            }
        });
        Ok(Self { address, shared })
    }

    /// HOST:PORT.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Changes the plan.
    pub fn set(&self, weather: Weather) {
        *lock(&self.shared.weather) = weather;
    }

    /// Number of requests so far.
    pub fn asked(&self) -> u64 {
        self.shared.asked.load(Ordering::Relaxed)
    }

    /// Method and path of the last `count` requests, as far as they are kept.
    pub fn recent(&self, count: u64) -> Vec<String> {
        let recent = lock(&self.shared.recent);
        let skip = recent.len().saturating_sub(usize::try_from(count).unwrap_or(usize::MAX));
        recent.iter().skip(skip).cloned().collect()
    }

    /// How often each fault occurred.
    pub fn played(&self) -> BTreeMap<Fault, u64> {
        self.shared.played()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(&self.address);
    }
}

impl Shared {
    /// SplitMix64. Which request gets which number depends on the order of arrival: a seed repeats the numbers, not the
    /// run.
    fn draw(&self) -> u64 {
        let mut z = self.dice.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed).wrapping_add(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn fault(&self, request: &Message) -> Option<Fault> {
        let weather = lock(&self.weather).clone();
        // A listing that was asked for before is rare, so the first one is it.
        let wanted = weather.iter().any(|(fault, _)| *fault == StaleList) && !self.played().contains_key(&StaleList);
        if wanted && StaleList.fits(request) && lock(&self.listings).contains_key(request.target()) {
            return Some(StaleList);
        }
        // Makes sure that every fault occurs: one that did not occur yet is soon chosen without chance.
        if self.draw().is_multiple_of(OWED_ONE_IN) {
            let played = self.played();
            let owed = weather.iter().map(|(fault, _)| *fault).find(|f| f.fits(request) && !played.contains_key(f));
            if owed.is_some_and(|fault| fault != Fault::Corrupted || self.spoils(request.target())) {
                return owed;
            }
        }
        let mut dice = self.draw() % 1000;
        for (fault, rate) in weather.into_iter().filter(|(fault, _)| fault.fits(request)) {
            if dice < rate {
                return Some(fault).filter(|fault| *fault != Fault::Corrupted || self.spoils(request.target()));
            }
            dice -= rate;
        }
        None
    }

    /// Whether to damage a reply: not twice in a row for the same object.
    fn spoils(&self, target: &str) -> bool {
        let mut spoilt = lock(&self.spoilt);
        let before = spoilt.len();
        spoilt.retain(|earlier| earlier != target);
        if spoilt.len() < before {
            return false;
        }
        if before == RECENT_MAX {
            spoilt.pop_front();
        }
        spoilt.push_back(target.to_owned());
        true
    }

    fn remember(&self, request: &Message) {
        let mut recent = lock(&self.recent);
        if recent.len() == RECENT_MAX {
            recent.pop_front();
        }
        recent.push_back(format!("{} {}", request.method(), request.target()));
    }

    fn played(&self) -> BTreeMap<Fault, u64> {
        lock(&self.played).clone()
    }

    fn note(&self, fault: Fault) {
        *lock(&self.played).entry(fault).or_default() += 1;
    }

    /// Answers nothing and waits until the caller has closed the connection.
    fn hang(&self, client: &TcpStream) {
        let begun = Instant::now();
        let _ = client.set_read_timeout(Some(Duration::from_millis(100)));
        while begun.elapsed() < HANG_MAX && !self.ended.load(Ordering::Relaxed) {
            match client.peek(&mut [0]) {
                Err(e) if matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {}
                _ => return,
            }
        }
    }
}

fn serve(client: TcpStream, shared: &Shared) -> Result<()> {
    client.set_nodelay(true)?;
    client.set_read_timeout(Some(IDLE_MAX))?;
    let mut reader = BufReader::new(client.try_clone()?);
    let mut upstream: Option<TcpStream> = None;
    loop {
        let Some(mut request) = read_request(&mut reader, &client)? else { return Ok(()) };
        shared.asked.fetch_add(1, Ordering::Relaxed);
        shared.remember(&request);
        let fault = shared.fault(&request);
        // A stale listing needs an older answer to show.
        if let Some(fault) = fault.filter(|fault| *fault != StaleList) {
            shared.note(fault);
        }
        match fault {
            Some(SlowDown) => refuse(&client, &request, 503, "SlowDown")?,
            Some(Expired) => refuse(&client, &request, 403, "ExpiredToken")?,
            Some(Skewed) => refuse(&client, &request, 403, "RequestTimeTooSkewed")?,
            Some(Missing) => refuse(&client, &request, 404, "NoSuchKey")?,
            Some(Full) => refuse(&client, &request, 507, "XMinioStorageFull")?,
            Some(Hang) => {
                shared.hang(&client);
                return Ok(());
            }
            Some(Reset) => return Ok(client.shutdown(Shutdown::Both)?),
            Some(CorruptedUpload) => {
                let (len, draw) = (request.body.len(), shared.draw());
                request.body[draw as usize % len] ^= 1 << (draw >> 61);
                forward(&mut upstream, shared, &request)?.send(&client)?;
            }
            Some(Slow) => {
                std::thread::sleep(SLOW_BY);
                forward(&mut upstream, shared, &request)?.send(&client)?;
            }
            None | Some(Failing | HangAfter | LostReply | Truncated | Corrupted | Own412 | Own409 | StaleList) => {
                let mut reply = forward(&mut upstream, shared, &request)?;
                match fault {
                    Some(Failing) => refuse(&client, &request, 500, "InternalError")?,
                    Some(HangAfter) => {
                        shared.hang(&client);
                        return Ok(());
                    }
                    Some(LostReply) => return Ok(client.shutdown(Shutdown::Both)?),
                    Some(Own412) => refuse(&client, &request, 412, "PreconditionFailed")?,
                    Some(Own409) => refuse(&client, &request, 409, "ConditionalRequestConflict")?,
                    Some(Truncated) => {
                        reply.body.truncate(reply.body.len() / 2);
                        reply.send(&client)?;
                        return Ok(client.shutdown(Shutdown::Both)?);
                    }
                    Some(Corrupted) if !reply.body.is_empty() => {
                        let (len, draw) = (reply.body.len(), shared.draw());
                        reply.body[draw as usize % len] ^= 1 << (draw >> 61);
                        reply.send(&client)?;
                    }
                    Some(StaleList) => {
                        let old = lock(&shared.listings).get(request.target()).cloned();
                        match old {
                            Some(old) => {
                                shared.note(StaleList);
                                (&client).write_all(&old)?;
                            }
                            None => reply.send(&client)?,
                        }
                    }
                    _ => reply.send(&client)?,
                }
                if request.target().contains("list-type=2") {
                    match fault {
                        None => drop(lock(&shared.listings).insert(request.target().to_owned(), reply.bytes())),
                        Some(StaleList) => {
                            lock(&shared.listings).entry(request.target().to_owned()).or_insert_with(|| reply.bytes());
                        }
                        _ => {}
                    }
                }
            }
        }
    }
}

/// Sends the request to the server. Reconnects once if the server has closed the connection.
fn forward(upstream: &mut Option<TcpStream>, shared: &Shared, request: &Message) -> Result<Message> {
    let reused = upstream.is_some();
    for fresh in [false, true] {
        let stream = match upstream.take().filter(|_| !fresh) {
            Some(stream) => stream,
            None => {
                let stream = TcpStream::connect(&shared.upstream)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(IDLE_MAX))?;
                stream
            }
        };
        let asked = request.send(&stream).and_then(|()| read_reply(&mut BufReader::new(&stream), request.method()));
        match asked {
            Ok(reply) => {
                if !reply.closes() {
                    *upstream = Some(stream);
                }
                return Ok(reply);
            }
            Err(_) if reused && !fresh => {}
            Err(e) => return Err(e),
        }
    }
    anyhow::bail!("{} does not answer", shared.upstream)
}

/// An error answer in S3's format.
fn refuse(mut client: &TcpStream, request: &Message, status: u16, code: &str) -> Result<()> {
    let body =
        format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>played by the proxy</Message></Error>");
    let shown = if request.method() == "HEAD" { "" } else { &body };
    let head = format!(
        "HTTP/1.1 {status} Played\r\ncontent-type: application/xml\r\ndate: Tue, 01 Jan 2030 00:00:00 GMT\r\ncontent-length: {}\r\n\r\n{shown}",
        body.len()
    );
    client.write_all(head.as_bytes())?;
    Ok(())
}
