//! What gateways say to one another, late: in front of each one's peer door stands a jepsen/between, at the address that it tells the others.
//!
//! ```text
//!   other gateways ──▶ :7402 between ──▶ :7401 gateway        in the gateway's own namespace, so that partitions and losses reach it too
//!   this program   ──▶ :7403 (turns it)
//! ```

use crate::gateways::{GATEWAYS, name};
use crate::net::{Net, address};
use crate::process::Proc;
use crate::web;
use anyhow::{Context, Result};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

const PEER: u16 = 7401;
const BETWEEN: u16 = 7402;
const CONTROL: u16 = 7403;

/// One way, each piece; the answer is late as well.
const LATE: &str = "delay=30ms&jitter=40ms";
const AT_ONCE: &str = "delay=0s&jitter=0s";

/// Until it listens.
const STARTS: Duration = Duration::from_secs(20);

/// One for each gateway.
#[derive(Debug)]
pub struct Late {
    procs: Vec<Proc>,
}

impl Late {
    /// Starts them; they hand on at once until told otherwise.
    ///
    /// # Errors
    /// When one does not listen.
    pub fn start(net: &Net, between: &Path, log: &Path) -> Result<Self> {
        let mut procs = Vec::new();
        for gateway in 0..GATEWAYS {
            let (listen, control) = (format!(":{BETWEEN}"), format!(":{CONTROL}"));
            let command = net.within(gateway, between).args(["-listen", &listen, "-control", &control]);
            let command = command.args(["-to", &format!("{}:{PEER}", address(gateway))]);
            let mut proc = Proc::spawn("between", command.into_command(), log)?;
            let door = door(gateway);
            proc.ready_when("listening", STARTS, || TcpStream::connect(&door).is_ok())?;
            procs.push(proc);
        }
        Ok(Self { procs })
    }

    /// The section of a gateway's settings by which the others come to it this way.
    pub fn settings(gateway: usize) -> String {
        format!("[advertise]\npeer = \"{}:{BETWEEN}\"\n", address(gateway))
    }

    /// Late from now on, or only said to be. How many pieces each has held back before.
    ///
    /// # Errors
    /// When one cannot be turned, or has ended.
    pub fn begin(&mut self, really: bool) -> Result<Vec<u64>> {
        self.procs.iter_mut().try_for_each(Proc::must_run)?;
        turn_all(if really { LATE } else { AT_ONCE })
    }

    /// At once again; how many pieces each has held back, and whether all have.
    ///
    /// # Errors
    /// As [`Late::begin`].
    pub fn end(&mut self, before: &[u64]) -> Result<(String, bool)> {
        self.procs.iter_mut().try_for_each(Proc::must_run)?;
        let held: Vec<u64> = turn_all(AT_ONCE)?.iter().zip(before).map(|(now, was)| now.saturating_sub(*was)).collect();
        let told: Vec<String> = held.iter().enumerate().map(|(g, n)| format!("{} {n}", name(g))).collect();
        Ok((format!("pieces held back: {}", told.join(", ")), held.iter().all(|n| *n > 0)))
    }
}

fn door(gateway: usize) -> String {
    format!("{}:{CONTROL}", address(gateway))
}

fn turn_all(query: &str) -> Result<Vec<u64>> {
    (0..GATEWAYS).map(|gateway| delayed(&web::page(&door(gateway), &format!("/?{query}"))?)).collect()
}

/// Of an answer, how many pieces were held back so far.
fn delayed(page: &str) -> Result<u64> {
    let body = page.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let said: serde_json::Value = serde_json::from_str(body).with_context(|| format!("between: found {page:?}"))?;
    said["delayed"].as_u64().with_context(|| format!("between: found no delayed in {body:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_held_back_is_read() {
        let page =
            "HTTP/1.1 200 OK\r\nContent-Length: 54\r\n\r\n{\"pieces\":9,\"delayed\":4,\"requests\":0,\"refused\":0}\n";
        assert_eq!(delayed(page).ok(), Some(4));
        assert!(delayed("HTTP/1.1 400 Bad Request\r\n\r\ndelay: found \"x\"").is_err());
    }
}
