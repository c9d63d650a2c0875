//! Simulates latency and bandwidth: forwards TCP connections with a delay, or with a rate limit. Bytes stay in order. A
//! [`Line`] can change its delay and be down while connections use it.

use anyhow::Result;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Size of a piece in bytes.
const PIECE: usize = 64 << 10;
/// Pieces that one direction of a connection buffers; further ones wait at the sender.
const PIECES_MAX: usize = 256;

/// One direction of a link. Its delay can change, and it can be down, also while connections use it. While it is down,
/// bytes and ends of connections wait; nothing is lost, as TCP sends again what a line has lost.
#[derive(Debug)]
pub struct Line {
    delay_us: AtomicU64,
    down: Mutex<bool>,
    changed: Condvar,
    bytes: AtomicU64,
}

impl Line {
    /// A line that is up.
    pub fn new(delay: Duration) -> Self {
        let line = Self {
            delay_us: AtomicU64::new(0),
            down: Mutex::new(false),
            changed: Condvar::new(),
            bytes: AtomicU64::new(0),
        };
        line.set_delay(delay);
        line
    }

    /// Changes the delay of what arrives from now on.
    pub fn set_delay(&self, delay: Duration) {
        self.delay_us.store(u64::try_from(delay.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Takes it down, or up again.
    pub fn set_down(&self, down: bool) {
        *self.down.lock().unwrap_or_else(PoisonError::into_inner) = down;
        self.changed.notify_all();
    }

    /// Bytes that have arrived at it so far.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn delay(&self) -> Duration {
        Duration::from_micros(self.delay_us.load(Ordering::Relaxed))
    }

    fn wait_until_up(&self) {
        let down = self.down.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_while(down, |down| *down).unwrap_or_else(PoisonError::into_inner));
    }
}

/// How a link forwards a piece.
#[derive(Clone, Debug)]
enum Way {
    /// After this delay.
    Later(Duration),
    /// All pieces of all connections one after the other, at this rate in bytes per second; and the time at which the
    /// link is free again.
    Narrow(u64, Arc<Mutex<Instant>>),
    /// As this line does now.
    Line(Arc<Line>),
}

impl Way {
    /// Time at which a piece of this size that arrives now reaches the other end.
    fn due(&self, bytes: usize) -> Instant {
        let now = Instant::now();
        match self {
            Self::Later(delay) => now + *delay,
            Self::Narrow(rate, free) => {
                let mut free = free.lock().unwrap_or_else(PoisonError::into_inner);
                *free = now.max(*free) + Duration::from_secs_f64(bytes as f64 / *rate as f64);
                *free
            }
            Self::Line(line) => {
                line.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
                now + line.delay()
            }
        }
    }

    /// Waits while the link is down.
    fn wait_until_up(&self) {
        if let Self::Line(line) = self {
            line.wait_until_up();
        }
    }
}

/// A local port that stands for a distant server. It exists until this process ends.
#[derive(Debug)]
pub struct Relay {
    /// The address to connect to.
    pub addr: String,
    pieces: Arc<AtomicU64>,
}

impl Relay {
    /// Forwards to `far` with `delay` in each direction. Fails when there is no port for it.
    pub fn to(far: String, delay: Duration) -> Result<Self> {
        Self::by(far, || Way::Later(delay))
    }

    /// Forwards to `far` over a link with `rate` bytes per second in each direction, shared by all connections. Fails
    /// when there is no port for it.
    pub fn over_link(far: String, rate: u64) -> Result<Self> {
        Self::by(far, || Way::Narrow(rate.max(1), Arc::new(Mutex::new(Instant::now()))))
    }

    /// Forwards to `far` over lines that `choose` names for each connection, by who has connected: the line of what it
    /// sends, and the line of the answers. Fails when there is no port for it.
    pub fn along(far: String, choose: impl Fn(&TcpStream) -> [Arc<Line>; 2] + Send + Sync + 'static) -> Result<Self> {
        Self::serve(far, move |near| choose(near).map(Way::Line))
    }

    fn by(far: String, way: impl Fn() -> Way) -> Result<Self> {
        let ways = [way(), way()];
        Self::serve(far, move |_| ways.clone())
    }

    fn serve(far: String, choose: impl Fn(&TcpStream) -> [Way; 2] + Send + Sync + 'static) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let addr = listener.local_addr()?.to_string();
        let pieces = Arc::new(AtomicU64::new(0));
        let (count, link) = (pieces.clone(), Arc::new((far, choose)));
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let (count, link) = (count.clone(), link.clone());
                // In a thread of its own: a line that is down holds up only its own connections.
                std::thread::spawn(move || connect(near, &link.0, &link.1, &count));
            }
        });
        Ok(Self { addr, pieces })
    }

    /// Number of pieces delayed so far.
    pub fn pieces(&self) -> u64 {
        self.pieces.load(Ordering::Relaxed)
    }
}

fn connect(near: TcpStream, far: &str, choose: &impl Fn(&TcpStream) -> [Way; 2], count: &Arc<AtomicU64>) {
    let ways = choose(&near);
    ways.iter().for_each(Way::wait_until_up);
    // If `far` cannot be reached, the connection is closed.
    let Ok(far) = TcpStream::connect(far) else { return };
    hand_on(near, far, &ways, count);
}

fn hand_on(near: TcpStream, far: TcpStream, ways: &[Way; 2], count: &Arc<AtomicU64>) {
    let (Ok(near_again), Ok(far_again)) = (near.try_clone(), far.try_clone()) else { return };
    for ((from, to), way) in [(near, far), (far_again, near_again)].into_iter().zip(ways.clone()) {
        let _ = to.set_nodelay(true);
        let Ok(from_again) = from.try_clone() else { return };
        let (tell, told) = sync_channel(PIECES_MAX);
        let (count, link) = (count.clone(), way.clone());
        std::thread::spawn(move || take(from, &tell, &way, &count));
        std::thread::spawn(move || give(&from_again, to, &told, &link));
    }
}

fn take(mut from: TcpStream, tell: &SyncSender<(Instant, Vec<u8>)>, way: &Way, count: &AtomicU64) {
    let mut piece = vec![0; PIECE];
    while let Ok(len @ 1..) = from.read(&mut piece) {
        count.fetch_add(1, Ordering::Relaxed);
        if tell.send((way.due(len), piece[..len].to_vec())).is_err() {
            return;
        }
    }
}

/// Closes both directions at the end of the stream, or when the other end does not accept bytes.
fn give(from: &TcpStream, mut to: TcpStream, told: &Receiver<(Instant, Vec<u8>)>, way: &Way) {
    for (due, piece) in told {
        // This sleep is the simulated latency.
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        way.wait_until_up();
        if to.write_all(&piece).is_err() {
            break;
        }
    }
    way.wait_until_up();
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_whole_in_order_and_late() {
        let far = TcpListener::bind("127.0.0.1:0").unwrap();
        let delay = Duration::from_millis(30);
        let relay = Relay::to(far.local_addr().unwrap().to_string(), delay).unwrap();
        let mut near = TcpStream::connect(&relay.addr).unwrap();
        let (mut far, _) = far.accept().unwrap();
        let sent: Vec<u8> = (0..300_000u32).map(|n| n as u8).collect();
        let begun = Instant::now();
        let bytes = sent.clone();
        let writer = std::thread::spawn(move || {
            near.write_all(&bytes).unwrap();
            let mut answer = [0; 3];
            near.read_exact(&mut answer).unwrap();
            answer
        });
        let mut found = vec![0; sent.len()];
        far.read_exact(&mut found).unwrap();
        assert!(begun.elapsed() >= delay && found == sent);
        far.write_all(b"yes").unwrap();
        assert_eq!(&writer.join().unwrap(), b"yes");
        assert!(begun.elapsed() >= 2 * delay && relay.pieces() > 1);
        assert_eq!(far.read(&mut found).unwrap(), 0, "what one end closed is closed at the other");
    }

    #[test]
    fn a_line_that_is_down_holds_everything_and_loses_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let lines = [5, 5].map(|ms| Arc::new(Line::new(Duration::from_millis(ms))));
        let chosen = lines.clone();
        let relay = Relay::along(listener.local_addr().unwrap().to_string(), move |_| chosen.clone()).unwrap();
        let mut near = TcpStream::connect(&relay.addr).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        lines[0].set_down(true);
        near.write_all(b"late").unwrap();
        far.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        assert!(far.read(&mut [0; 1]).is_err(), "a line that is down carries nothing");
        // The answers have another line.
        far.write_all(b"up").unwrap();
        let mut found = [0; 2];
        near.read_exact(&mut found).unwrap();
        assert_eq!(&found, b"up");
        // The end of a connection waits as well.
        near.shutdown(Shutdown::Write).unwrap();
        lines[0].set_down(false);
        far.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut found = [0; 4];
        far.read_exact(&mut found).unwrap();
        assert_eq!(&found, b"late");
        assert_eq!(far.read(&mut found).unwrap(), 0);
        assert_eq!(lines.each_ref().map(|line| line.bytes()), [4, 2]);
    }

    #[test]
    fn a_line_has_the_delay_that_it_was_given_last() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let lines = [0, 0].map(|ms| Arc::new(Line::new(Duration::from_millis(ms))));
        let chosen = lines.clone();
        let relay = Relay::along(listener.local_addr().unwrap().to_string(), move |_| chosen.clone()).unwrap();
        let mut near = TcpStream::connect(&relay.addr).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        let (delay, mut found) = (Duration::from_millis(40), [0; 1]);
        lines[0].set_delay(delay);
        let begun = Instant::now();
        near.write_all(b"x").unwrap();
        far.read_exact(&mut found).unwrap();
        assert!(begun.elapsed() >= delay);
    }

    /// Connections share the rate; the two directions do not.
    #[test]
    fn a_link_carries_so_much_and_no_more() {
        let far = TcpListener::bind("127.0.0.1:0").unwrap();
        let relay = Relay::over_link(far.local_addr().unwrap().to_string(), 2 << 20).unwrap();
        let mut pairs = Vec::new();
        for _ in 0..2 {
            let near = TcpStream::connect(&relay.addr).unwrap();
            pairs.push((near, far.accept().unwrap().0));
        }
        let begun = Instant::now();
        let sent = vec![7; 256 << 10];
        for (near, far) in &mut pairs {
            near.write_all(&sent).unwrap();
            far.write_all(&sent).unwrap();
        }
        for (near, far) in &mut pairs {
            let mut found = vec![0; sent.len()];
            far.read_exact(&mut found).unwrap();
            assert!(found == sent);
            near.read_exact(&mut found).unwrap();
            assert!(found == sent);
        }
        // 512 KiB each way.
        assert!(begun.elapsed() >= Duration::from_millis(245), "{:?}", begun.elapsed());
    }
}
