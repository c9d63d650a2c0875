//! An S3 server as the set's store, with a proxy that counts requests and can answer 503.

use super::fault::Outage;
use crate::faults::{self, Proxy};
use crate::net::HUB;
use crate::process::{self, Signal, wait_until};
use crate::s3::S3;
use anyhow::{Context, Result};
use std::path::Path;
use std::time::Duration;

/// Limit until all threads of a server have stopped.
const STOPS: Duration = Duration::from_secs(10);

/// A lasting outage, and the number of requests before it.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    outage: Outage,
    asked: u64,
    refused: u64,
}

/// The server and its proxy.
#[derive(Debug)]
pub struct Store {
    server: S3,
    front: Proxy,
}

impl Store {
    /// Starts both in reach of the gateways. Fails when the server does not listen.
    pub fn start(dir: &Path, seed: u64) -> Result<Self> {
        let server = S3::start_on(dir, HUB)?;
        let front = Proxy::start_on(HUB, &server.address(), seed)?;
        Ok(Self { server, front })
    }

    /// URL for `holdfast`.
    pub fn url(&self) -> String {
        self.server.url_by(self.front.address())
    }

    /// Keys, as environment variables.
    pub fn env(&self) -> Vec<(String, String)> {
        self.server.env()
    }

    fn refused(&self) -> u64 {
        self.front.played().get(&faults::Fault::SlowDown).copied().unwrap_or_default()
    }

    /// Makes it, or only reports so. Fails when the server does not exit, or does not stop.
    pub fn begin(&mut self, outage: Outage, really: bool) -> Result<(Begun, String)> {
        let begun = Begun { outage, asked: self.front.asked(), refused: self.refused() };
        let what = match outage {
            Outage::Down => "the S3 server is killed",
            Outage::Slow => "the S3 server is stopped",
            Outage::Refuses => "the store answers with 503",
        };
        if really {
            match outage {
                Outage::Down => self.server.stop()?,
                Outage::Slow => {
                    let pid = self.server.pid().context("the S3 server does not run")?;
                    process::signal(pid, Signal::STOP);
                    if !wait_until(STOPS, || process::is_stopped(pid)) {
                        process::signal(pid, Signal::CONT);
                        anyhow::bail!("the S3 server (process {pid}) has not stopped after {STOPS:?}");
                    }
                }
                Outage::Refuses => self.front.set(faults::only(faults::Fault::SlowDown)),
            }
        }
        Ok((begun, what.into()))
    }

    /// Ends it; returns how many requests came meanwhile, and whether any was affected. Fails when the server does not
    /// start again.
    pub fn end(&mut self, begun: &Begun) -> Result<(String, bool)> {
        // Checked, not assumed: a server that keeps running has affected no request.
        let hit = match begun.outage {
            Outage::Down => !self.server.is_running(),
            Outage::Slow => self.server.pid().is_some_and(process::is_stopped),
            Outage::Refuses => self.refused() > begun.refused,
        };
        match begun.outage {
            Outage::Down if !self.server.is_running() => self.server.resume()?,
            Outage::Slow => {
                if let Some(pid) = self.server.pid() {
                    process::signal(pid, Signal::CONT);
                }
            }
            Outage::Refuses => self.front.set(Vec::new()),
            Outage::Down => {}
        }
        let asked = self.front.asked().saturating_sub(begun.asked);
        let refused = self.refused().saturating_sub(begun.refused);
        Ok((format!("{asked} requests to the store, {refused} of them refused"), hit && asked > 0))
    }
}
