//! Records all TCP that crosses the bridge between the nodes: what somebody on the network sees.
//!
//! A packet socket of this network namespace gets each frame on every link of the bridge, so no connection can be
//! forgotten. Each segment is seen once or twice, and is put in its place by its sequence number. Bytes that are
//! missing between others are counted.

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, eth, recv, socket_with, sockopt};
use std::collections::{BTreeMap, HashMap};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes of frames that the kernel keeps until they are read.
const QUEUE_BYTES: usize = 128 << 20;

/// Longest frame in bytes: the kernel hands over several segments of a connection as one.
const FRAME_BYTES_MAX: usize = 128 << 10;

/// Most bytes that are kept. A scenario stays far below.
const KEPT_BYTES_MAX: u64 = 1 << 30;

/// How long one read waits for a frame, and how long the last frames may take to be read.
const LOOK: Duration = Duration::from_millis(100);
const LAST: Duration = Duration::from_secs(20);

const ETHERNET: usize = 14;
const TCP: u8 = 6;
const SYN: u8 = 2;

/// One direction of one connection.
#[derive(Clone, Debug)]
pub struct Stream {
    pub from: SocketAddrV4,
    pub to: SocketAddrV4,
    pub bytes: Vec<u8>,
    /// Bytes between others that were not recorded.
    pub missing: u64,
}

/// A part of one direction.
#[derive(Debug)]
struct Segment<'a> {
    from: SocketAddrV4,
    to: SocketAddrV4,
    number: u32,
    begins: bool,
    bytes: &'a [u8],
}

/// Reads an Ethernet frame; `None` if it holds no TCP over IPv4.
fn segment(frame: &[u8]) -> Option<Segment<'_>> {
    let (head, packet) = frame.split_at_checked(ETHERNET)?;
    let version = *packet.first()?;
    if head[12..] != [0x08, 0x00] || version >> 4 != 4 || *packet.get(9)? != TCP {
        return None;
    }
    let short = |bytes: &[u8], at: usize| Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    let long = |bytes: &[u8], at: usize| Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let tcp = packet.get(usize::from(version & 0x0f) * 4..usize::from(short(packet, 2)?))?;
    let end =
        |at: usize, port: usize| Some(SocketAddrV4::new(Ipv4Addr::from_bits(long(packet, at)?), short(tcp, port)?));
    let data = usize::from(*tcp.get(12)? >> 4) * 4;
    Some(Segment {
        from: end(12, 0)?,
        to: end(16, 2)?,
        number: long(tcp, 4)?,
        begins: *tcp.get(13)? & SYN != 0,
        bytes: tcp.get(data..)?,
    })
}

/// The segments of one direction by their distance from the first.
#[derive(Debug)]
struct Parts {
    first: u32,
    parts: BTreeMap<u32, Vec<u8>>,
}

impl Parts {
    /// Bytes in order, and the number of missing ones.
    fn joined(&self) -> (Vec<u8>, u64) {
        let (mut bytes, mut next, mut missing) = (Vec::new(), 0u64, 0u64);
        for (at, part) in &self.parts {
            let at = u64::from(*at);
            if at > next {
                missing += at - next;
                next = at;
                // So that nothing is found across a hole that was not sent like that.
                bytes.push(0);
            }
            let known = usize::try_from(next - at).unwrap_or(usize::MAX);
            if let Some(fresh) = part.get(known..) {
                bytes.extend_from_slice(fresh);
                next += fresh.len() as u64;
            }
        }
        (bytes, missing)
    }
}

/// All that was recorded.
#[derive(Debug, Default)]
struct Record {
    /// Several where both ends used the same ports again.
    streams: HashMap<(SocketAddrV4, SocketAddrV4), Vec<Parts>>,
    kept: u64,
}

impl Record {
    fn take(&mut self, frame: &[u8]) -> Result<()> {
        let Some(Segment { from, to, number, begins, bytes }) = segment(frame) else { return Ok(()) };
        let all = self.streams.entry((from, to)).or_default();
        // The first byte after a SYN has the next number.
        let first = number.wrapping_add(u32::from(begins));
        if all.last().is_none_or(|last| begins && last.first != first) {
            all.push(Parts { first, parts: BTreeMap::new() });
        }
        let Some(last) = all.last_mut() else { return Ok(()) };
        let at = first.wrapping_sub(last.first);
        // Before the first: recorded from the middle of a connection, or a probe of an idle one.
        if bytes.is_empty() || at > u32::MAX / 2 {
            return Ok(());
        }
        let known = last.parts.get(&at).map_or(0, Vec::len);
        if bytes.len() > known {
            self.kept += (bytes.len() - known) as u64;
            anyhow::ensure!(self.kept <= KEPT_BYTES_MAX, "more than {KEPT_BYTES_MAX} bytes crossed the network");
            last.parts.insert(at, bytes.to_vec());
        }
        Ok(())
    }

    fn streams(self) -> Vec<Stream> {
        let all = self.streams.into_iter().flat_map(|(ends, all)| all.into_iter().map(move |parts| (ends, parts)));
        all.map(|((from, to), parts)| {
            let (bytes, missing) = parts.joined();
            Stream { from, to, bytes, missing }
        })
        .collect()
    }
}

/// Records until [`Recorder::end`].
#[derive(Debug)]
pub struct Recorder {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Record>>,
}

impl Recorder {
    /// Starts in this process's network namespace. Fails when the kernel gives no packet socket.
    pub fn start() -> Result<Self> {
        let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, Some(eth::ALL))
            .context("a packet socket")?;
        sockopt::set_socket_recv_buffer_size_force(&socket, QUEUE_BYTES).context("SO_RCVBUFFORCE")?;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(LOOK)).context("SO_RCVTIMEO")?;
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        let thread = std::thread::spawn(move || record(&socket, &told));
        Ok(Self { stop, thread })
    }

    /// Everything that was recorded. Call it when nothing is sent any more. Fails when not all could be recorded.
    pub fn end(self) -> Result<Vec<Stream>> {
        self.stop.store(true, Ordering::Relaxed);
        let record = self.thread.join().map_err(|_| anyhow::anyhow!("the recorder panicked"))?;
        Ok(record?.streams())
    }
}

fn record(socket: &OwnedFd, stop: &AtomicBool) -> Result<Record> {
    let (mut record, mut frame) = (Record::default(), vec![0u8; FRAME_BYTES_MAX]);
    let mut until: Option<Instant> = None;
    loop {
        if until.is_none() && stop.load(Ordering::Relaxed) {
            until = Some(Instant::now() + LAST);
        }
        match recv(socket.as_fd(), frame.as_mut_slice(), RecvFlags::empty()) {
            Ok((len, _)) => record.take(&frame[..len])?,
            // The queue is empty.
            Err(Errno::AGAIN) if until.is_some() => return Ok(record),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(error).context("reading from the network"),
        }
        if until.is_some_and(|until| Instant::now() > until) {
            return Ok(record);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEAR: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 98, 0, 11), 40_000);
    const FAR: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 98, 0, 12), 7401);

    fn frame(number: u32, flags: u8, bytes: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x45, 0];
        packet.extend(u16::try_from(40 + bytes.len()).unwrap().to_be_bytes());
        packet.extend([0, 0, 0, 0, 64, TCP, 0, 0]);
        packet.extend(NEAR.ip().octets());
        packet.extend(FAR.ip().octets());
        packet.extend(NEAR.port().to_be_bytes());
        packet.extend(FAR.port().to_be_bytes());
        packet.extend(number.to_be_bytes());
        packet.extend([0, 0, 0, 0, 0x50, flags, 0, 0, 0, 0, 0, 0]);
        packet.extend(bytes);
        // A short frame is padded.
        [&[0u8; 12][..], &[8, 0], &packet, &[0xee; 6]].concat()
    }

    fn recorded(frames: &[Vec<u8>]) -> Vec<Stream> {
        let mut record = Record::default();
        frames.iter().for_each(|frame| record.take(frame).unwrap());
        let mut all = record.streams();
        all.sort_by(|a, b| a.bytes.cmp(&b.bytes));
        all
    }

    #[test]
    fn segments_are_joined_in_their_order_and_once() {
        let first = u32::MAX - 3;
        let all = recorded(&[
            frame(first, SYN, b""),
            frame(first.wrapping_add(4), 0, b"defg"),
            frame(first.wrapping_add(1), 0, b"abc"),
            frame(first.wrapping_add(1), 0, b"abcde"),
            frame(first.wrapping_add(8), 0, b"hi"),
            frame(first.wrapping_add(8), 0, b"h"),
        ]);
        assert_eq!((all.len(), all[0].from, all[0].to), (1, NEAR, FAR));
        assert_eq!((all[0].bytes.as_slice(), all[0].missing), (&b"abcdefghi"[..], 0));
    }

    #[test]
    fn a_hole_is_counted_and_a_new_connection_is_another_stream() {
        let all = recorded(&[
            frame(7, 0, b"abc"),
            frame(3, 0, b"xyz"),
            frame(14, 0, b"def"),
            frame(900, SYN, b""),
            frame(900, SYN, b""),
            frame(901, 0, b"second"),
        ]);
        assert_eq!(all.iter().map(|one| one.missing).collect::<Vec<_>>(), [4, 0]);
        assert_eq!([all[0].bytes.as_slice(), all[1].bytes.as_slice()], [&b"abc\0def"[..], b"second"]);
    }

    #[test]
    fn what_is_no_tcp_is_left_out() {
        let mut other = frame(7, 0, b"abc");
        other[ETHERNET + 9] = 17;
        let mut version_6 = frame(7, 0, b"abc");
        version_6[12..14].copy_from_slice(&[0x86, 0xdd]);
        let cut = frame(7, 0, b"abc")[..50].to_vec();
        assert!(recorded(&[other, version_6, cut, Vec::new()]).is_empty());
    }
}
