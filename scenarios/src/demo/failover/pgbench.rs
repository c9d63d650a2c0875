//! Parses pgbench's log: its present run, and its broken connections. No I/O.
//!
//! The log does not say when a connection broke. So nothing is counted before pgbench is complete: the primary has as
//! many connections of its present run as that run has clients left. By then every earlier break has been logged, and
//! breaks logged later are later.

use std::collections::BTreeSet;

/// Its clients.
pub const CLIENTS: usize = 4;

/// What it is started with: one thread, so that a client that lost its connection is noticed while the others wait.
pub const ARGS: [&str; 4] = ["-c", "4", "-j", "1"];

/// State according to the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// Number of its present run; none before the first.
    pub run: u64,
    /// Clients of that run with a broken connection: it continues without them.
    lost: BTreeSet<u32>,
    /// Broken connections and restarts, of all runs together.
    pub broken: u64,
}

impl Said {
    /// Reads the whole log.
    pub fn read(log: &str) -> Self {
        let mut said = Self::default();
        for line in log.lines() {
            if let Some(run) = line.strip_prefix("run ").and_then(|run| run.parse().ok()) {
                said = Self { run, lost: BTreeSet::new(), broken: said.broken + 1 };
            } else if let Some(client) = aborted(line) {
                // Some breaks have two lines.
                said.broken += u64::from(said.lost.insert(client));
            }
        }
        said
    }

    /// Remaining clients of its present run.
    pub fn left(&self) -> usize {
        CLIENTS.saturating_sub(self.lost.len())
    }
}

/// The client of a line such as `pgbench: error: client 2 aborted in command 5 (SQL) of script 0; perhaps the backend
/// died while processing`.
fn aborted(line: &str) -> Option<u32> {
    let (client, rest) = line.split_once(" client ")?.1.split_once(' ')?;
    rest.contains("aborted").then(|| client.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_and_lost_connections_are_read() {
        assert_eq!(ARGS[1].parse::<usize>(), Ok(CLIENTS));
        assert_eq!(Said::read(""), Said::default());
        let first = "run 1\npgbench (15.10 (Debian 15.10-0+deb12u1))\n";
        assert_eq!(Said::read(first), Said { run: 1, lost: BTreeSet::new(), broken: 1 });
        let one = format!(
            "{first}pgbench: error: client 2 script 0 aborted in command 4 query 0: FATAL:  terminating connection due to administrator command\n\
             pgbench: error: client 2 aborted in command 5 (SQL) of script 0; perhaps the backend died while processing\n"
        );
        let said = Said::read(&one);
        assert_eq!((said.run, said.broken, said.left()), (1, 2, 3));
        let anew = format!(
            "{one}pgbench: error: client 0 aborted in command 5 (SQL) of script 0; perhaps the backend died while processing\n\
             pgbench: error: Run was aborted; the above results are incomplete.\nrun 2\n\
             pgbench: error: connection to server at \"10.98.0.1\", port 5000 failed: server closed the connection unexpectedly\n\
             pgbench: error: could not create connection for client 1\nrun 3\n"
        );
        let said = Said::read(&anew);
        assert_eq!((said.run, said.broken, said.left()), (3, 5, 4));
    }
}
