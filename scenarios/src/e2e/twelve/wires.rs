//! The lines between the gateways of the laboratory, on loopback. Each gateway advertises the address of a relay in
//! front of it. The relay finds out which gateway has connected, by the process that has the other end of the
//! connection, and so knows the line: one for each pair and direction.
//!
//! A connection is accepted at once, also over a line that is down; what it sends waits. Hosts and commands reach the
//! gateways directly.

use super::places::{GATEWAYS, Place, round_trip};
use crate::relay::{Line, Relay};
use anyhow::Result;
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Looks for the process of a connection. The kernel's table of connections changes while it is read.
const LOOKS: usize = 3;

/// The line from each gateway to each one.
type Lines = Vec<Vec<Arc<Line>>>;

/// All lines.
#[derive(Debug)]
pub(crate) struct Wires {
    lines: Arc<Lines>,
    peers: Arc<Peers>,
    /// Connections whose process was not found.
    strange: Arc<AtomicU64>,
}

impl Wires {
    /// Between `count` gateways of the cluster in this folder.
    pub(crate) fn new(count: usize, dir: &Path) -> Self {
        let line = |from: usize, to: usize| Arc::new(Line::new(round_trip(from, to) / 2));
        let lines: Lines = (0..count).map(|from| (0..count).map(|to| line(from, to)).collect()).collect();
        let dir = dir.canonicalize().unwrap_or_else(|_| dir.into());
        let peers = Peers { dir, known: Mutex::default() };
        Self { lines: Arc::new(lines), peers: Arc::new(peers), strange: Arc::default() }
    }

    /// A relay in front of a gateway that listens at `far`. Returns the address that it should advertise. Fails when
    /// there is no port for it.
    pub(crate) fn lead_to(&self, gateway: usize, far: String) -> Result<String> {
        let (lines, peers, strange) = (self.lines.clone(), self.peers.clone(), self.strange.clone());
        let farthest = (0..lines.len()).max_by_key(|from| round_trip(*from, gateway)).unwrap_or(0);
        let relay = Relay::along(far, move |near| {
            let from = peers.who(near).filter(|from| *from < lines.len()).unwrap_or_else(|| {
                strange.fetch_add(1, Ordering::Relaxed);
                farthest
            });
            [lines[from][gateway].clone(), lines[gateway][from].clone()]
        })?;
        Ok(relay.addr)
    }

    fn each(&self) -> impl Iterator<Item = (usize, usize, &Line)> {
        let from = self.lines.iter().enumerate();
        from.flat_map(|(from, lines)| lines.iter().enumerate().map(move |(to, line)| (from, to, &**line)))
    }

    /// Lines between two regions, in both directions.
    fn between(&self, one: usize, other: usize) -> impl Iterator<Item = &Line> {
        let joins = move |from: usize, to: usize| {
            let ends = (Place::of(from).region, Place::of(to).region);
            ends == (one, other) || ends == (other, one)
        };
        self.each().filter(move |(from, to, _)| joins(*from, *to)).map(|(_, _, line)| line)
    }

    /// Lines between a region and all others, in both directions, with their ends.
    fn around(&self, region: usize) -> impl Iterator<Item = (usize, usize, &Line)> {
        let is_in = move |gateway: usize| Place::of(gateway).region == region;
        self.each().filter(move |(from, to, _)| is_in(*from) != is_in(*to))
    }

    /// Takes the lines between a region and all others down, or up again.
    pub(crate) fn set_region_down(&self, region: usize, down: bool) {
        self.around(region).for_each(|(_, _, line)| line.set_down(down));
    }

    /// Takes the lines between two regions down, or up again.
    pub(crate) fn set_between_down(&self, one: usize, other: usize, down: bool) {
        self.between(one, other).for_each(|line| line.set_down(down));
    }

    /// Makes each round trip between a region and all others longer by this.
    pub(crate) fn slow_region(&self, region: usize, by: Duration) {
        self.around(region).for_each(|(from, to, line)| line.set_delay((round_trip(from, to) + by) / 2));
    }

    /// All lines are up, with their first delays.
    pub(crate) fn heal(&self) {
        for (from, to, line) in self.each() {
            line.set_delay(round_trip(from, to) / 2);
            line.set_down(false);
        }
    }

    /// Bytes on all lines so far, and those of them between regions.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        let across = |from: usize, to: usize| Place::of(from).region != Place::of(to).region;
        let far = self.each().filter(|(from, to, _)| across(*from, *to)).map(|(_, _, line)| line.bytes()).sum();
        (self.each().map(|(_, _, line)| line.bytes()).sum(), far)
    }

    /// Connections whose gateway was not found out. They had the delay of the farthest one.
    pub(crate) fn strange(&self) -> u64 {
        self.strange.load(Ordering::Relaxed)
    }
}

impl Drop for Wires {
    /// Otherwise threads of relays would wait until this program ends.
    fn drop(&mut self) {
        self.heal();
    }
}

/// Which process is which gateway.
#[derive(Debug)]
struct Peers {
    /// The folder of the cluster.
    dir: PathBuf,
    /// By process id, as last seen.
    known: Mutex<BTreeMap<u32, usize>>,
}

impl Peers {
    /// The gateway at the other end of a connection on loopback.
    fn who(&self, near: &TcpStream) -> Option<usize> {
        let (theirs, ours) = (near.peer_addr().ok()?, near.local_addr().ok()?);
        (0..LOOKS).find_map(|_| {
            let table = std::fs::read_to_string("/proc/net/tcp").ok()?;
            self.owner_of(inode_of(&table, theirs, ours)?)
        })
    }

    fn owner_of(&self, inode: u64) -> Option<usize> {
        let owner = |all: &BTreeMap<u32, usize>| all.iter().find(|(pid, _)| has(**pid, inode)).map(|(_, who)| *who);
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
        owner(&known).or_else(|| {
            // A gateway was started since.
            let now = gateways_of(&self.dir);
            let found = owner(&now);
            *self.known.lock().unwrap_or_else(PoisonError::into_inner) = now;
            found
        })
    }
}

/// An address as `/proc/net/tcp` has it.
fn hexed(address: SocketAddr) -> Option<String> {
    let SocketAddr::V4(address) = address else { return None };
    // The kernel prints the four bytes as one number of this machine.
    Some(format!("{:08X}:{:04X}", u32::from_ne_bytes(address.ip().octets()), address.port()))
}

/// The inode of the socket at `here` that is connected to `there`, in `/proc/net/tcp`.
fn inode_of(table: &str, here: SocketAddr, there: SocketAddr) -> Option<u64> {
    let (here, there) = (hexed(here)?, hexed(there)?);
    table.lines().skip(1).find_map(|line| {
        let mut words = line.split_whitespace();
        let ends = (words.nth(1)?, words.next()?);
        // Its state, queues, timers, retransmissions, user and timeout are between.
        let inode: u64 = words.nth(6)?.parse().ok()?;
        (ends == (here.as_str(), there.as_str()) && inode != 0).then_some(inode)
    })
}

/// Whether a process has this socket open.
fn has(pid: u32, inode: u64) -> bool {
    let wanted = format!("socket:[{inode}]");
    let Ok(open) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    open.flatten().any(|file| std::fs::read_link(file.path()).is_ok_and(|to| to.as_os_str() == wanted.as_str()))
}

/// The running gateways of a cluster.
fn gateways_of(dir: &Path) -> BTreeMap<u32, usize> {
    let Ok(all) = std::fs::read_dir("/proc") else { return BTreeMap::new() };
    let gateway = |pid: u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let args: Vec<String> = line.split(|byte| *byte == 0).map(|arg| String::from_utf8_lossy(arg).into()).collect();
        Some((pid, number_in(&args, dir)?))
    };
    let ids = all.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    ids.filter_map(gateway).collect()
}

/// The index of the gateway with this command line: by its last `--name`, or by the file of its settings.
fn number_in(args: &[String], dir: &Path) -> Option<usize> {
    let is_gateway = args.get(1).is_some_and(|arg| arg == "gateway") && args.get(2).is_some_and(|arg| arg == "run");
    let behind = |flag: &str| args.iter().rposition(|arg| arg == flag).and_then(|at| args.get(at + 1));
    let config = Path::new(behind("--config")?);
    if !is_gateway || config.parent() != Some(dir) {
        return None;
    }
    let name = behind("--name").map(String::as_str).or_else(|| config.file_stem()?.to_str())?;
    name.strip_prefix('g')?.parse::<usize>().ok()?.checked_sub(1).filter(|index| *index < 2 * GATEWAYS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_gateway_is_known_by_its_command_line() {
        let number = |line: &str| {
            let args: Vec<String> = line.split(' ').map(str::to_owned).collect();
            number_in(&args, Path::new("/lab/cluster"))
        };
        assert_eq!(number("holdfast gateway run --config /lab/cluster/g1.toml --die-with 7"), Some(0));
        assert_eq!(number("holdfast gateway run --config /lab/cluster/g1.toml --name g12 --data-dir x"), Some(11));
        assert_eq!(number("holdfast gateway run --config /other/cluster/g1.toml"), None);
        assert_eq!(number("holdfast dev --config /lab/cluster/g1.toml"), None);
        assert_eq!(number("sh"), None);
    }

    #[test]
    fn the_other_end_of_a_connection_is_found_in_the_table_of_the_kernel() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let (theirs, ours) = (accepted.peer_addr().unwrap(), accepted.local_addr().unwrap());
        let inode = inode_of(&table, theirs, ours).expect("a line");
        assert!(has(std::process::id(), inode));
        drop(near);
        assert_eq!(inode_of("sl local_address\n", theirs, ours), None);
    }

    #[test]
    fn a_region_is_cut_off_and_slowed_as_a_whole() {
        let wires = Wires::new(GATEWAYS, Path::new("/lab"));
        // Three gateways and nine others, both ways.
        assert_eq!(wires.around(0).count(), 54);
        // Three and three.
        assert_eq!(wires.between(0, 1).count(), 18);
        assert!(wires.around(2).all(|(from, to, _)| Place::of(from).region != Place::of(to).region));
    }
}
