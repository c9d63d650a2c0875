//! Hosts of PostgreSQL, each with the code of agent and attach. They compete for the set by themselves; the simulation
//! never tells one to be primary. Faults hit gateways, agents, databases and whole hosts; an operator moves the
//! primary, planned and by force.
//!
//! Checked besides the rules of the [model](crate::model), of the [ledger] and of attached sets (R8):
//!
//! - AGENT-A3: by a host's own clock no database outlives the lease that it runs under. If its agent hangs or is gone,
//!   at most by the watchdog's interval (WATCHDOG-W1), and not longer than the watchdog waits for an agent
//!   (WATCHDOG-W2).
//! - The same by the simulation's clock: when gateways grant the set to another host unforced, the former host's
//!   database has ended already, if an agent was there to end it. (`lease.stop_margin_ms` covers the drift of clocks.)
//! - HOSTS-T1  An agent takes a lease by force only if ordered to, once per order ([asked]).
//! - At the end there is one primary, which takes commits, and after a planned move another one.

mod acts;
mod agent;
mod asked;
mod attaching;
mod bug;
mod database;
mod fake_drivers;
mod ledger;
mod lent;
mod pool;
mod station;

use crate::broken::Broken;
use crate::libc;
use crate::net::{Link, Net};
use crate::rng::Rng;
use crate::shape::Shape;
use crate::slices::Slices;
use crate::sync::lock;
use agent::{Plan, TOKEN};
use anyhow::Result;
use asked::{Freed, came_to_no_force};
use bug::Bug;
use holdfast_agent::client::ask_over;
use holdfast_agent::seams::Dial;
use ledger::Ledger;
use station::Station;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Most hosts.
pub const HOSTS_MAX: usize = 3;

/// Places in the network besides the gateways: the hosts and the operator.
pub const PLACES: usize = HOSTS_MAX + 1;

/// How long the operator waits for an answer.
const ASK_LIMIT: Duration = Duration::from_secs(8);

/// Faults of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    KillAgent,
    /// It is told to end: it releases everything first.
    EndAgent,
    HangAgent,
    CrashDatabase,
    HangDatabase,
    KillAttach,
    Power,
    Stop,
    Suspend,
    /// From all gateways, or from some.
    Cut,
    CutOneWay,
    Lossy,
    /// From the other hosts and the operator.
    CutPeers,
    /// Somebody ends the lease at a gateway's door.
    Freed,
}

const ALL: &[Fault] = &[
    Fault::KillAgent,
    Fault::EndAgent,
    Fault::HangAgent,
    Fault::CrashDatabase,
    Fault::HangDatabase,
    Fault::KillAttach,
    Fault::Power,
    Fault::Stop,
    Fault::Suspend,
    Fault::Cut,
    Fault::CutOneWay,
    Fault::Lossy,
    Fault::CutPeers,
    Fault::Freed,
];

/// Mean time between two faults of a narrowed mix, in milliseconds: most faults end before the next one.
const SELDOM: u64 = 2_500;

/// Longer than a lease, and than an agent may be silent for.
const LONG: u64 = 4_000;

/// For bugs that only few and lasting faults show: the faults of hosts, at least [`LONG`] each. In a full mix too many
/// faults would have to coincide, and any change of the code would need another seed.
fn narrowed(broken: Option<Broken>) -> Option<&'static [Fault]> {
    match broken {
        Some(Broken::NoWatchdog) => Some(&[Fault::KillAgent, Fault::HangAgent]),
        Some(Broken::SlowHosts) => Some(&[Fault::Cut]),
        _ => None,
    }
}

/// An operator with `holdfast agent` on a machine of its own.
struct Operator {
    at: usize,
    slices: Slices,
    dial: Dial,
    said: Arc<Mutex<Vec<String>>>,
    /// Hosts, once for each forced order that is known to have had no effect.
    settled: Arc<Mutex<Vec<usize>>>,
}

impl Operator {
    /// `order`: to this host, to take the lease by force.
    fn ask(&self, station: &Station, path: &'static str, body: serde_json::Value, order: Option<usize>) {
        let (dial, said, settled) = (self.dial.clone(), self.said.clone(), self.settled.clone());
        let (name, address) = (station.name.clone(), agent::agent_address(station.at));
        self.slices.spawn(async move {
            let answer = ask_over(&dial, &address, path, Some(&body), Some(TOKEN), ASK_LIMIT).await;
            if let Some(host) = order.filter(|_| came_to_no_force(&answer)) {
                lock(&settled).push(host);
            }
            let words = match answer {
                Ok(answer) => format!("{} {}", answer.code, answer.words()),
                Err(error) => error.to_string(),
            };
            lock(&said).push(format!("{path} of {name}: {words}"));
        });
    }
}

/// See the module.
pub struct Agents {
    stations: Vec<Station>,
    ledger: Ledger,
    /// Owner of each granted epoch, as far as gateways showed it; and leases that may have been ended by hand.
    grants: BTreeMap<u64, String>,
    freed: Freed,
    /// A broken rule, found at a grant.
    broken: Option<String>,
    operator: Operator,
    rng: Rng,
    mix: Vec<Fault>,
    pause: u64,
    /// Only lasting faults: see [`narrowed`].
    long: bool,
    next_at: u64,
    /// When the links of a host are calm again.
    calm_at: BTreeMap<usize, u64>,
    gateways: usize,
}

impl Agents {
    /// Hosts with agents, beside this many gateways. Their files are in `dir`.
    pub fn new(
        seed: u64,
        gateways: usize,
        net: &Net,
        dir: &Path,
        broken: Option<Broken>,
        shape: Shape,
    ) -> Result<Self> {
        let mut rng = Rng::new(seed, 8);
        let bug = match broken {
            Some(Broken::NeverStops) => Some(Bug::NeverStops),
            Some(Broken::TakesUnasked) => Some(Bug::TakesUnasked),
            Some(Broken::NoWatchdog) => Some(Bug::NoWatchdog),
            Some(Broken::SkipsCommits) => Some(Bug::SkipsCommits),
            Some(Broken::ToldUnflushed) => Some(Bug::ToldUnflushed),
            _ => None,
        };
        let count = rng.pick(&[2, 2, 3]);
        // Either clocks that differ much and a margin for it, or clocks that differ less: gateways' may be 8 % off,
        // whatever those of hosts.
        let (stop_margin_ms, drift_ppm) = rng.pick(&[(300, 20_000), (500, 80_000)]);
        let plan = Plan {
            hosts: (0..count).map(|index| (format!("db{}", index + 1), gateways + index)).collect(),
            stop_margin_ms,
            drift_ppm,
            slow: broken == Some(Broken::SlowHosts),
            // A host with a slow clock that waits for better hosts would come after the others have stopped.
            priority_step_ms: if broken == Some(Broken::SlowHosts) { 0 } else { Rng::new(seed, 9).pick(&[0, 20]) },
            suspends: rng.chance(500),
            timeout_ms: rng.pick(&[2_000, 4_000]),
            bug,
        };
        let station = |index: usize| Station::new(index, seed, &plan, net, dir.join(format!("host-{index}")));
        let stations = (0..count).map(station).collect();
        let at = gateways + HOSTS_MAX;
        libc::set_now(0);
        let (dial, said, settled) = (agent::dial(at, net), Arc::default(), Arc::default());
        let operator = Operator { at, slices: Slices::new(0)?, dial, said, settled };
        let mix = shape.mix(&mut rng, 400, ALL);
        let pause = shape.pause(rng.pick(&[400, 1_000, 2_500]));
        let narrow = narrowed(broken);
        let (mix, pause, long) = narrow.map_or((mix, pause, false), |faults| (faults.to_vec(), SELDOM, true));
        Ok(Self {
            stations,
            ledger: Ledger::default(),
            grants: BTreeMap::new(),
            freed: Freed::default(),
            broken: None,
            operator,
            rng,
            mix,
            pause,
            long,
            next_at: 0,
            calm_at: BTreeMap::new(),
            gateways,
        })
    }

    fn primary(&self) -> Option<usize> {
        self.stations.iter().position(Station::is_primary)
    }

    /// One primary, and no other database.
    fn is_settled(&self, now: u64) -> bool {
        let primaries = self.stations.iter().filter(|station| station.is_primary()).count();
        let serving = self.stations.iter().filter(|station| station.serves(now)).count();
        (primaries, serving) == (1, 1)
    }

    fn swept(&self) -> u64 {
        self.stations.iter().map(Station::swept).sum()
    }

    fn links(&self, station: usize, link: impl Fn(usize, bool) -> Link, net: &Net) {
        net.set_around(self.stations[station].at, self.gateways, link);
    }

    fn peer_links(&self, station: usize, cut: bool, net: &Net) {
        let at = self.stations[station].at;
        let others = self.stations.iter().map(|other| other.at).chain([self.operator.at]);
        for other in others.filter(|other| *other != at) {
            for (from, to) in [(at, other), (other, at)] {
                net.set(from, to, Link { cut, ..Link::CALM });
            }
        }
    }
}
