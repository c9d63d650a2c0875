//! Network namespaces: one per node (a gateway or a PostgreSQL host), and one with the bridge between them, in which
//! this program, its clients and the object store run.
//!
//! ```text
//!   hub (this process): bridge 10.98.0.1 ── veth ── n1 10.98.0.11
//!                                        ├─ veth ── n2 10.98.0.12     partitions: iptables in the namespace of a node
//!                                        └─ veth ── n3 10.98.0.13
//! ```
//! Owns: namespaces, links, packet rules. Does not own: what runs in them.
//!
//! NET-N1  No namespace has a name, and nothing is created in the machine's own namespace: two runs at once cannot
//!     collide.
//! NET-N2  A namespace exists as long as a process is in it. Ours is held by this process, a node's by one `sleep` that
//!     is registered in [`crate::undo`]. When these end, in whatever way, the kernel removes bridge, links and rules.

use crate::cmd::{Cmd, cmd};
use crate::process::{Proc, wait_until};
use crate::shape::Shape;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Required programs.
pub const NEEDS: &[&str] = &["ip", "iptables", "unshare", "nsenter", "sleep"];

/// Address of the clients and the store.
pub const HUB: &str = "10.98.0.1";

/// Address of a node.
pub fn address(node: usize) -> String {
    format!("10.98.0.{}", 11 + node)
}

/// The reason why namespaces cannot be made here, if there is one. Tries it in temporary namespaces.
pub fn why_not() -> Option<String> {
    if !crate::setup::is_root() {
        return Some("only root can make network namespaces".into());
    }
    let script = "ip link add br0 type bridge && ip link add v0 type veth peer name v1 && \
                  iptables -w 5 -A INPUT -s 10.98.0.99 -j DROP && iptables -w 5 -F INPUT";
    let tried = cmd("unshare").args(["--net", "--", "sh", "-c", script]).run();
    tried.err().map(|e| format!("no network namespaces with bridge, veth and iptables here: {e:#}"))
}

/// Number of packets that a node's rules have dropped since they were made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Packets dropped by a partition.
    pub cut: u64,
    /// Packets dropped at random.
    pub lost: u64,
}

/// The namespaces of the nodes. This process must be in its own namespace already.
#[derive(Debug)]
pub struct Net {
    holders: Vec<Proc>,
}

impl Net {
    /// Makes the bridge here, and a namespace with a link to it for each of `n` nodes. Fails when one of the commands
    /// fails.
    pub fn make(n: usize, log: &Path) -> Result<Self> {
        ip(&["link", "set", "lo", "up"])?;
        ip(&["link", "add", "br0", "type", "bridge"])?;
        ip(&["addr", "add", &format!("{HUB}/24"), "dev", "br0"])?;
        ip(&["link", "set", "br0", "up"])?;
        let mut net = Self { holders: Vec::new() };
        for node in 0..n {
            // Longer than any run; it ends when this process ends.
            let holder = cmd("unshare").args(["--net", "--", "sleep", "1000000"]).into_command();
            net.holders.push(Proc::spawn("namespace holder", holder, log)?);
            net.link(node)?;
        }
        Ok(net)
    }

    fn link(&self, node: usize) -> Result<()> {
        let (pid, name) = (self.holders[node].pid(), format!("n{}", node + 1));
        let space = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/net")).ok();
        let apart = || space(&pid.to_string()).is_some_and(|theirs| Some(theirs) != space("self"));
        anyhow::ensure!(wait_until(Duration::from_secs(5), apart), "process {pid} did not get a namespace of its own");
        ip(&["link", "add", &name, "type", "veth", "peer", "name", "eth0", "netns", &pid.to_string()])?;
        ip(&["link", "set", &name, "master", "br0", "up"])?;
        for args in [
            vec!["link", "set", "lo", "up"],
            vec!["addr", "add", &format!("{}/24", address(node)), "dev", "eth0"],
            vec!["link", "set", "eth0", "up"],
        ] {
            self.within(node, "ip").args(args).run().context("in a node's namespace")?;
        }
        Ok(())
    }

    /// The file of a node's namespace.
    pub fn space(&self, node: usize) -> PathBuf {
        PathBuf::from(format!("/proc/{}/ns/net", self.holders[node].pid()))
    }

    /// A command that runs in a node's namespace. The program has the pid of the command.
    pub fn within(&self, node: usize, program: impl AsRef<std::ffi::OsStr>) -> Cmd {
        cmd("nsenter").arg(format!("--net={}", self.space(node).display())).arg("--").arg(program)
    }

    /// The same in the mount namespace of another process, a file such as `/proc/PID/ns/mnt`. The working directory is
    /// then `/`.
    pub fn within_mounts(&self, node: usize, mounts: &Path, program: impl AsRef<std::ffi::OsStr>) -> Cmd {
        let spaces = cmd("nsenter").arg(format!("--net={}", self.space(node).display()));
        spaces.arg(format!("--mount={}", mounts.display())).arg("--").arg(program)
    }

    /// Cuts `node` off: it receives and sends no packet, and keeps running.
    pub fn isolate(&self, node: usize) -> Result<()> {
        for (chain, side) in [("INPUT", "-i"), ("OUTPUT", "-o")] {
            self.within(node, "iptables").args(["-w", "5", "-A", chain, "!", side, "lo", "-j", "DROP"]).run()?;
        }
        Ok(())
    }

    /// Drops all packets from `from` to `node`. One direction only, but no TCP connection survives that for long.
    pub fn deafen(&self, node: usize, from: &str) -> Result<()> {
        self.within(node, "iptables").args(["-w", "5", "-A", "INPUT", "-s", from, "-j", "DROP"]).run()
    }

    /// Partitions the gateways as in `shape`.
    pub fn part(&self, shape: Shape) -> Result<()> {
        shape.deaf().into_iter().try_for_each(|(who, from)| self.deafen(who, &address(from)))
    }

    /// Drops incoming TCP packets of `node` with this probability, from 0 to 1.
    pub fn lose(&self, node: usize, probability: &str) -> Result<()> {
        let rule = self.within(node, "iptables").args(["-w", "5", "-A", "INPUT", "-i", "eth0", "-p", "tcp"]);
        let rule = rule.args(["-m", "statistic", "--mode", "random", "--probability", probability]);
        rule.args(["-j", "DROP"]).run()
    }

    /// What the rules of `node` have dropped. [`Net::heal`] removes the rules and with them the counts.
    pub fn dropped(&self, node: usize) -> Result<Dropped> {
        let listed = self.within(node, "iptables").args(["-w", "5", "-n", "-v", "-x", "-L"]).out()?;
        Ok(count(&listed))
    }

    /// Number of nodes.
    pub fn nodes(&self) -> usize {
        self.holders.len()
    }

    /// Removes all rules: all nodes are connected again.
    pub fn heal(&self) -> Result<()> {
        (0..self.holders.len()).try_for_each(|node| self.within(node, "iptables").args(["-w", "5", "-F"]).run())
    }
}

fn ip(args: &[&str]) -> Result<()> {
    cmd("ip").args(args).run()
}

/// Parses `iptables -v -x -L`: the first column of each rule is its number of packets.
fn count(listed: &str) -> Dropped {
    let mut dropped = Dropped::default();
    for line in listed.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [packets, _, "DROP", ..] = words[..] else { continue };
        let packets: u64 = packets.parse().unwrap_or_default();
        if words.contains(&"statistic") {
            dropped.lost += packets;
        } else {
            dropped.cut += packets;
        }
    }
    dropped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_counted_by_why_they_were_dropped() {
        let listed = "Chain INPUT (policy ACCEPT 7 packets, 900 bytes)\n    \
             pkts      bytes target     prot opt in     out     source               destination\n     \
             31     1860 DROP       0    --  *      *       10.98.0.12           0.0.0.0/0\n      \
             5      300 DROP       6    --  eth0   *       0.0.0.0/0            0.0.0.0/0            statistic mode random probability 0.2\n\n\
             Chain OUTPUT (policy ACCEPT 3 packets, 100 bytes)\n    \
             pkts      bytes target     prot opt in     out     source               destination\n      \
             2      120 DROP       0    --  *      !lo     0.0.0.0/0            0.0.0.0/0\n";
        assert_eq!(count(listed), Dropped { cut: 33, lost: 5 });
        assert_eq!(count(""), Dropped::default());
    }
}
