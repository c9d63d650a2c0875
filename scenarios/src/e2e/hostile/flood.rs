//! Thousands of hostile clients at once, in a few threads. Whoever is closed comes back after a second.

use super::ways::{Then, Way};
use anyhow::{Context, Result};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const THREADS: usize = 4;
/// Between two looks at all clients of a thread.
const ROUND: Duration = Duration::from_millis(20);
/// Before a client that was closed comes back.
const AGAIN: Duration = Duration::from_secs(1);
const CONNECT_LIMIT: Duration = Duration::from_millis(100);
/// Of one client in a round: thousands share two processors with those that they attack.
const ROUND_BYTES: usize = 64 << 10;

/// What has happened so far.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Connections that were made.
    pub(super) opened: AtomicU64,
    /// Those that the gateway has closed.
    pub(super) closed: AtomicU64,
    /// Attempts that found no connection.
    pub(super) refused: AtomicU64,
    /// Bytes that the gateway's kernel has taken.
    pub(super) bytes: AtomicU64,
}

/// Clients that are at work until this is dropped.
pub(super) struct Flood {
    stop: Arc<AtomicBool>,
    counts: Arc<Counts>,
    threads: Vec<JoinHandle<()>>,
}

/// A door, and how its clients behave: as many of each way.
pub(super) struct Target {
    pub(super) address: String,
    pub(super) ways: Vec<Way>,
}

impl Flood {
    /// `each` clients at each of the `targets`. Fails for a text that is no address.
    pub(super) fn start(targets: Vec<Target>, each: usize) -> Result<Self> {
        let (stop, counts) = (Arc::new(AtomicBool::new(false)), Arc::new(Counts::default()));
        let mut shares: Vec<Vec<Client>> = (0..THREADS).map(|_| Vec::new()).collect();
        for target in targets {
            let address = target.address.to_socket_addrs()?.next().with_context(|| target.address.clone())?;
            let ways: Vec<Arc<Way>> = target.ways.into_iter().map(Arc::new).collect();
            for (number, way) in ways.iter().cycle().take(each).enumerate() {
                shares[number % THREADS].push(Client::new(address, way.clone()));
            }
        }
        let threads = shares.into_iter().map(|mut clients| {
            let (stop, counts) = (stop.clone(), counts.clone());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    clients.iter_mut().for_each(|client| client.go_on(&counts));
                    std::thread::sleep(ROUND);
                }
            })
        });
        let threads = threads.collect();
        Ok(Self { stop, counts, threads })
    }

    pub(super) fn counts(&self) -> &Counts {
        &self.counts
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

struct Client {
    address: SocketAddr,
    way: Arc<Way>,
    stream: Option<TcpStream>,
    /// Bytes of the way that were sent on this connection.
    sent: u64,
    /// When to connect, or to send the next single byte.
    due: Instant,
}

impl Client {
    fn new(address: SocketAddr, way: Arc<Way>) -> Self {
        Self { address, way, stream: None, sent: 0, due: Instant::now() }
    }

    fn go_on(&mut self, counts: &Counts) {
        let Some(stream) = &self.stream else {
            if Instant::now() >= self.due {
                self.connect(counts);
            }
            return;
        };
        let lives = hears(stream).and_then(|()| self.send(stream, counts));
        match lives {
            Ok((sent, due)) => (self.sent, self.due) = (sent, due),
            Err(_) => {
                counts.closed.fetch_add(1, Ordering::Relaxed);
                self.stream = None;
                self.due = Instant::now() + AGAIN;
            }
        }
    }

    fn connect(&mut self, counts: &Counts) {
        let made = TcpStream::connect_timeout(&self.address, CONNECT_LIMIT);
        let made = made.and_then(|stream| stream.set_nonblocking(true).map(|()| stream));
        match made {
            Ok(stream) => {
                counts.opened.fetch_add(1, Ordering::Relaxed);
                (self.stream, self.sent, self.due) = (Some(stream), 0, Instant::now());
            }
            Err(_) => {
                counts.refused.fetch_add(1, Ordering::Relaxed);
                self.due = Instant::now() + AGAIN;
            }
        }
    }

    /// Sends as much as is taken. Returns the number of all bytes so far, and when to send the next single byte.
    fn send(&self, mut stream: &TcpStream, counts: &Counts) -> io::Result<(u64, Instant)> {
        let (mut sent, mut due) = (self.sent, self.due);
        let mut left = ROUND_BYTES;
        while left > 0 {
            let Some((bytes, alone)) = self.way.after(sent) else { break };
            if alone && Instant::now() < due {
                break;
            }
            let taken = match stream.write(&bytes[..bytes.len().min(left)]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(taken) => taken,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            };
            sent += taken as u64;
            left = left.saturating_sub(taken);
            counts.bytes.fetch_add(taken as u64, Ordering::Relaxed);
            if alone {
                due = Instant::now() + Duration::from_secs(1);
            }
        }
        Ok((sent, due))
    }
}

/// Reads and forgets some of what the gateway says.
fn hears(mut stream: &TcpStream) -> io::Result<()> {
    match stream.read(&mut [0; 4096]) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
        Err(error) => Err(error),
    }
}

impl Way {
    /// The bytes that come after the first `sent` ones, and whether they are sent one by one. `None`: nothing more.
    fn after(&self, sent: u64) -> Option<(&[u8], bool)> {
        let opening = self.opening.len() as u64;
        if sent < opening {
            return Some((&self.opening[usize::try_from(sent).ok()?..], false));
        }
        let beyond = sent - opening;
        let at = |bytes: &[u8]| usize::try_from(beyond % (bytes.len() as u64).max(1)).ok();
        match &self.then {
            Then::Nothing => None,
            Then::ByteBySecond(bytes) => Some((bytes.get(at(bytes)?..)?.get(..1)?, true)),
            Then::Endless { most, .. } if beyond >= *most => None,
            Then::Endless { chunk, .. } => Some((chunk.get(at(chunk)?..)?, false)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_goes_on_where_it_was() {
        let endless = Then::Endless { chunk: b"xy".to_vec(), most: 3 };
        let way = Way { name: "test", opening: b"ab".to_vec(), then: endless };
        let all: Vec<_> = (0..6).map(|sent| way.after(sent).map(|(bytes, _)| bytes.to_vec())).collect();
        let text = |text: &str| Some(text.as_bytes().to_vec());
        assert_eq!(all, [text("ab"), text("b"), text("xy"), text("y"), text("xy"), None]);
        let slow = Way { name: "test", opening: vec![], then: Then::ByteBySecond(b"ab".to_vec()) };
        assert_eq!([slow.after(0), slow.after(3)], [Some((&b"a"[..], true)), Some((&b"b"[..], true))]);
        assert_eq!(Way { then: Then::Nothing, ..slow }.after(0), None);
    }
}
