//! The agent's process on a host: the real code over a simulated network, with [`super::fake_drivers`] as its host.

use super::bug::Bug;
use super::fake_drivers::{FakeDrivers, FakeHost};
use crate::attached::wires::{self, TTL};
use crate::client::SET;
use crate::host::{self, machine_of};
use crate::net::{Door, Net};
use crate::slices::Slices;
use crate::sync::lock;
use holdfast_agent::Gateways;
use holdfast_agent::config::{AgentConfig, FenceAction};
use holdfast_agent::seams::{Dial, Seams, Wire};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Token that agents and operators share.
pub const TOKEN: &str = "simulated";
/// Exit text of an agent that was told to end.
pub const IN_GOOD_ORDER: &str = "in good order";

/// Settings of all hosts, drawn from the seed.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The hosts' names, and their places in the network.
    pub hosts: Vec<(String, usize)>,
    pub stop_margin_ms: u64,
    pub drift_ppm: u64,
    /// Clocks lose far more than that: `Broken::SlowHosts`.
    pub slow: bool,
    /// How long hosts leave a free lease to better ones; with 0 all compete at once.
    pub priority_step_ms: u64,
    /// Pools that are suspended with their device.
    pub suspends: bool,
    pub timeout_ms: u64,
    pub bug: Option<Bug>,
}

/// Where an agent listens.
pub fn agent_address(at: usize) -> String {
    format!("10.0.0.{}:8008", at + 1)
}

/// How agents are reached from `from`.
pub fn dial(from: usize, net: &Net) -> Dial {
    let net = net.clone();
    Arc::new(move |address: String| {
        let net = net.clone();
        Box::pin(async move {
            let to = address.rsplit_once(':').and_then(|(host, _)| machine_of(host));
            let to = to.ok_or(std::io::ErrorKind::InvalidInput)?;
            let stream = net.connect(from, to, Door::Agent).await?;
            Ok(Box::new(stream) as Box<dyn Wire>)
        })
    })
}

/// Where an agent runs.
pub struct Seat<'a> {
    pub index: usize,
    pub name: &'a str,
    pub at: usize,
    pub dir: &'a Path,
    pub net: &'a Net,
}

/// See the module.
pub struct Agent {
    slices: Slices,
    stop: CancellationToken,
    ended: Arc<Mutex<Option<String>>>,
    /// Stopped, as by SIGSTOP, before this moment of the world.
    pub hung_until: u64,
    /// Start of its present activity.
    pub since: u64,
}

fn config(seat: &Seat<'_>, plan: &Plan, gateways: usize) -> AgentConfig {
    let mut config = AgentConfig { name: seat.name.into(), set: SET.into(), ..AgentConfig::default() };
    config.gateways = wires::doors(gateways);
    (config.dir, config.run_dir) = (seat.dir.join("agent"), seat.dir.join("run"));
    config.priority = 100 - 20 * seat.index as u32;
    config.takeover.priority_step_ms = plan.priority_step_ms;
    // Settings for hosts that fail all the time: a decision that is left to an operator after some failures is made at
    // once here.
    (config.takeover.flap_delay_s, config.takeover.per_hour_max) = (1, 1000);
    (config.takeover.backoff_min_ms, config.takeover.backoff_max_ms) = (200, 1_500);
    config.takeover.switchover_hold_s = 3;
    (config.lease.ttl_ms, config.lease.stop_margin_ms) = (TTL.as_millis() as u64, plan.stop_margin_ms);
    (config.attach.acquire_timeout_ms, config.attach.device_timeout_ms) = (6_000, 8_000);
    config.attach.detach_timeout_ms = 3_000;
    (config.database.start_timeout_s, config.database.stop_timeout_s) = (15, 3);
    (config.database.probe_ms, config.database.health_timeout_s) = (200, 2);
    (config.database.restarts_max, config.database.restart_window_s) = (2, 20);
    config.watchdog.timeout_ms = plan.timeout_ms;
    config.pool.fence_action = Some(FenceAction::Reboot);
    let others = plan.hosts.iter().filter(|(name, _)| *name != seat.name);
    config.peers.0 = others.map(|(name, at)| (name.clone(), agent_address(*at))).collect();
    config
}

impl Agent {
    /// Starts it.
    pub fn start(
        now: u64,
        seat: &Seat<'_>,
        plan: &Plan,
        gateways: usize,
        drivers: &Arc<Mutex<FakeDrivers>>,
    ) -> std::io::Result<Self> {
        let slices = Slices::new(now)?;
        let (stop, ended) = (CancellationToken::new(), Arc::<Mutex<Option<String>>>::default());
        let (guests, incoming) = mpsc::unbounded_channel();
        let mut listened = seat.net.listen(seat.at, Door::Agent);
        slices.spawn(async move {
            while let Some(Ok(stream)) = listened.recv().await {
                let from = stream.peer().map_or(0, |peer| peer as u8 + 1);
                let guest: (Box<dyn Wire>, SocketAddr) = (Box::new(stream), ([10, 0, 0, from], 40_000).into());
                if guests.send(guest).is_err() {
                    return;
                }
            }
        });
        let config = config(seat, plan, gateways);
        let (dialer, dial) = (host::dialer(seat.at, seat.net), dial(seat.at, seat.net));
        let (drivers, name, bug) = (drivers.clone(), seat.name.to_string(), plan.bug);
        let (stopped, said) = (stop.clone(), ended.clone());
        slices.spawn(async move {
            let watched = !matches!(bug, Some(Bug::NeverStops | Bug::NoWatchdog));
            let of_helper = drivers.clone();
            let helper = move || {
                lock(&of_helper).helper = watched;
                Ok(())
            };
            let outcome = match Gateways::new(SET, &config.gateways, &dialer) {
                Err(why) => why,
                Ok(gateways) => {
                    let driver = FakeHost {
                        name,
                        drivers,
                        gateways,
                        attach_dir: config.run_dir.join("attach"),
                        detach_limit: Duration::from_millis(config.attach.detach_timeout_ms),
                        stop_limit: Duration::from_secs(config.database.stop_timeout_s),
                        bug,
                    };
                    let seams = Seams { incoming, dial, token: Some(TOKEN.into()) };
                    let stop = async move { stopped.cancelled().await };
                    let ended = holdfast_agent::run_over(config, Arc::new(driver), seams, stop, helper).await;
                    ended.map_or_else(|error| error.to_string(), |()| IN_GOOD_ORDER.to_string())
                }
            };
            *lock(&said) = Some(outcome);
        });
        Ok(Self { slices, stop, ended, hung_until: 0, since: now })
    }

    /// Runs everything ready; returns its exit text, once it has ended.
    pub fn run(&mut self, now: u64) -> Option<String> {
        self.slices.run(now, false);
        lock(&self.ended).take()
    }

    /// Tells it to end, like its service.
    pub fn end(&self) {
        self.stop.cancel();
    }

    /// Whether it has been active for this long.
    pub fn has_gone_on(&self, now: u64, time: u64) -> bool {
        self.hung_until <= now && self.since + time <= now
    }
}
