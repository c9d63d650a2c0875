//! Delayed messages between gateways: a jepsen/between stands in front of each one's peer port, at its advertised
//! address.
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

/// Delay of each piece in one direction; answers are delayed too.
const LATE: &str = "delay=30ms&jitter=40ms";
const AT_ONCE: &str = "delay=0s&jitter=0s";

/// Limit until it listens.
const STARTS: Duration = Duration::from_secs(20);

/// One relay per gateway.
#[derive(Debug)]
pub struct Late {
    procs: Vec<Proc>,
}

impl Late {
    /// Starts them; they forward at once until told otherwise. Fails when one does not listen.
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

    /// The settings with which the other gateways use this relay.
    pub fn settings(gateway: usize) -> String {
        format!("[advertise]\npeer = \"{}:{BETWEEN}\"\n", address(gateway))
    }

    /// Delays from now on, or only reports so. Returns how many pieces each has delayed before. Fails when one cannot
    /// be changed, or has ended.
    pub fn begin(&mut self, really: bool) -> Result<Vec<u64>> {
        self.procs.iter_mut().try_for_each(Proc::must_run)?;
        turn_all(if really { LATE } else { AT_ONCE })
    }

    /// Ends the delay; returns how many pieces each has delayed, and whether all have.
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

/// Number of delayed pieces in an answer.
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
