//! Faults and their times, drawn from the seed. Each run has its own mix of faults, so that some combine without
//! others.

use crate::broken::Broken;
use crate::host::name;
use crate::members::Wish;
use crate::net::Link;
use crate::rng::Rng;
use crate::world::{MS, World};
use anyhow::Result;
use holdfast_api::v1::{self, admin_server::Admin};
use holdfast_control::cluster::Standing;
use holdfast_gateway::admin::AdminDoor;
use holdfast_store::Faults;

/// At the beginning of each journal file (docs/formats.md).
const FILE_HEADER_BYTES: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Kill,
    Power,
    PowerAll,
    Stop,
    Cut,
    CutOneWay,
    Lossy,
    SlowDisk,
    SyncFails,
    StoreFaults,
    StoreDown,
    Switchover,
    OtherOwner,
    ForcedOwner,
    Elect,
    Drain,
    Join,
    Leave,
    Rot,
    Suspend,
    WallClock,
    Snapshot,
    Forget,
    /// Not in [`ALL`]: a shape adds it to the mix.
    ClockBack,
}

const ALL: &[Fault] = &[
    Fault::Kill,
    Fault::Power,
    Fault::PowerAll,
    Fault::Stop,
    Fault::Cut,
    Fault::CutOneWay,
    Fault::Lossy,
    Fault::SlowDisk,
    Fault::SyncFails,
    Fault::StoreFaults,
    Fault::StoreDown,
    Fault::Switchover,
    Fault::OtherOwner,
    Fault::ForcedOwner,
    Fault::Elect,
    Fault::Drain,
    Fault::Join,
    Fault::Leave,
    Fault::Rot,
    Fault::Suspend,
    Fault::WallClock,
    Fault::Snapshot,
    Fault::Forget,
];

/// Members at most: more machines are hardly ever there.
const MEMBERS_MAX: usize = 5;

/// Interval between two checks for a leader in a change of voters.
const HALVES_EVERY: u64 = 3 * MS;

/// Something to be undone, or done, later.
enum Later {
    Start(usize),
    Kill(usize),
    Links,
    Disk(usize),
    Store,
}

/// See the module.
pub struct Nemesis {
    rng: Rng,
    mix: Vec<Fault>,
    next_at: u64,
    pause: u64,
    later: Vec<(u64, Later)>,
    /// Probability in thousandths per check ([`HALVES_EVERY`]) that a leader in a change of voters is killed.
    halves: u64,
}

impl Nemesis {
    /// `dense`: for a short run.
    pub fn new(world: &mut World, dense: bool) -> Self {
        let mut rng = Rng::new(world.seed, 4);
        let mut mix = world.shape.mix(&mut rng, 500, ALL);
        if mix.is_empty() {
            mix.push(Fault::Kill);
        }
        if world.shape.clocks_back {
            mix.push(Fault::ClockBack);
        }
        if world.broken == Some(Broken::SlowHosts) {
            // A new leader judges leases from the start, which gives slow hosts the time that they need.
            mix = vec![Fault::Snapshot, Fault::Forget];
        }
        let pause = if dense { rng.pick(&[150, 300, 700]) } else { rng.pick(&[400, 1000, 2500]) };
        let pause = world.shape.pause(pause);
        let halves = rng.pick(&[0, 100, 400]);
        if rng.chance(400) {
            world.keep_schedule(&mut rng);
        }
        world.note(format!("faults: {mix:?}, one in about {pause} ms; {halves} of 1000 between two sets of voters"));
        Self { rng, mix, next_at: world.now, pause, later: Vec::new(), halves }
    }

    fn after(&mut self, world: &World, low: u64, high: u64, what: Later) {
        let at = world.now + self.rng.range(low, high) * MS;
        self.later.push((at, what));
    }

    /// Runs everything due, and may inject something new.
    pub fn tick(&mut self, world: &mut World) -> Result<()> {
        while let Some(at) = self.later.iter().position(|(at, _)| *at <= world.now) {
            let (_, what) = self.later.remove(at);
            self.undo(world, what)?;
        }
        if self.halves > 0
            && world.now.is_multiple_of(HALVES_EVERY)
            && let Some(host) = world.between_two_sets()
            && self.rng.chance(self.halves)
        {
            world.note(format!("{} leads between two sets of voters", host + 1));
            world.stats.halves += 1;
            let power = self.rng.chance(300);
            self.kill(world, host, power);
        }
        if world.now < self.next_at {
            return Ok(());
        }
        self.next_at = world.now + self.rng.range(self.pause / 4, self.pause * 2) * MS;
        let fault = self.rng.pick(&self.mix);
        let victim = self.victim(world);
        world.stats.faults += 1;
        self.play(world, fault, victim);
        Ok(())
    }

    /// Often the leader.
    fn victim(&mut self, world: &World) -> usize {
        match world.leader() {
            Some(leader) if self.rng.chance(500) => leader,
            _ => self.rng.below(world.hosts.len() as u64) as usize,
        }
    }

    fn undo(&mut self, world: &mut World, what: Later) -> Result<()> {
        match what {
            Later::Start(host) => {
                if world.hosts[host].process.is_none() {
                    world.note(format!("{} starts", host + 1));
                    let (now, rtt) = (world.now, world.rtt_ms);
                    world.hosts[host].start(now, rtt)?;
                }
            }
            Later::Kill(host) => self.kill(world, host, false),
            Later::Links => {
                world.note("links are calm again");
                all_links(world, Link::CALM);
            }
            Later::Disk(host) => {
                world.note(format!("disk of {} is fast again", host + 1));
                world.hosts[host].disk_delay = (MS / 5, 2 * MS);
            }
            Later::Store => {
                world.note("the store is calm again");
                world.calm_stores();
            }
        }
        Ok(())
    }

    /// Killed now, or after a few polls more of its tasks.
    fn kill(&mut self, world: &mut World, host: usize, power: bool) {
        if world.hosts[host].process.is_none() {
            return;
        }
        world.stats.kills += 1;
        let (now, polls) = (world.now, self.rng.below(40));
        world.note(format!("{} is killed after {polls} polls (power {power})", host + 1));
        if world.hosts[host].runs(now) {
            world.hosts[host].slice_and_stop_after(now, polls);
        }
        match power {
            true => world.hosts[host].cut_power(now),
            false => world.hosts[host].kill(now),
        }
        self.after(world, 10, 4_000, Later::Start(host));
    }

    fn play(&mut self, world: &mut World, fault: Fault, victim: usize) {
        match fault {
            Fault::Kill => self.kill(world, victim, false),
            Fault::Power => self.kill(world, victim, true),
            Fault::PowerAll => self.cut_all_power(world),
            Fault::Stop | Fault::Suspend if !world.hosts[victim].runs(world.now) => {}
            Fault::Suspend => self.suspend(world, victim),
            Fault::Stop => self.stop(world, victim),
            Fault::WallClock => self.set_wall_clocks(world, victim),
            Fault::ClockBack => self.set_back(world, victim),
            Fault::Snapshot => world.take_snapshot(&mut self.rng),
            Fault::Forget => world.drop_snapshot(&mut self.rng),
            Fault::Cut | Fault::CutOneWay => self.cut(world, victim, fault),
            Fault::Lossy => self.lose_packets(world),
            Fault::SlowDisk => self.slow_disk(world, victim),
            // A start would be refused, and nothing learnt.
            Fault::SyncFails if world.node(victim).is_none() => {}
            Fault::SyncFails => self.fail_sync(world, victim),
            Fault::StoreFaults => self.spoil_stores(world),
            Fault::StoreDown => {
                world.note("store: down");
                world.spoil_stores(&Faults { down: true, ..Faults::default() });
                self.after(world, 500, 8_000, Later::Store);
            }
            Fault::Switchover => self.switchover(world),
            Fault::Rot => self.rot(world, victim),
            Fault::Drain | Fault::Join | Fault::Leave => self.change_members(world, fault),
            Fault::OtherOwner | Fault::ForcedOwner => {
                world.want_other_owner(fault == Fault::ForcedOwner);
                world.note(format!("another owner is wanted ({fault:?})"));
            }
            Fault::Elect => elect(world, victim),
        }
    }

    fn cut_all_power(&mut self, world: &mut World) {
        if self.rng.chance(300) {
            for host in 0..world.hosts.len() {
                self.kill(world, host, true);
            }
        }
    }

    fn suspend(&mut self, world: &mut World, victim: usize) {
        let ms = self.rng.pick(&[200, 700, 1_500, 4_000]);
        world.note(format!("{} sleeps for {ms} ms", victim + 1));
        world.stats.sleeps += 1;
        let now = world.now;
        world.hosts[victim].time.suspend(now, now + ms * MS);
    }

    fn stop(&mut self, world: &mut World, victim: usize) {
        let ms = self.rng.pick(&[20, 150, 400, 900, 3_000]);
        world.note(format!("{} is stopped for {ms} ms", victim + 1));
        world.hosts[victim].time.stop(world.now + ms * MS);
    }

    fn lose_packets(&mut self, world: &mut World) {
        let (link, words) = Link::lossy(&mut self.rng);
        world.note(format!("links: {words}"));
        all_links(world, link);
        self.after(world, 500, 6_000, Later::Links);
    }

    fn slow_disk(&mut self, world: &mut World, victim: usize) {
        let ms = self.rng.pick(&[10, 60, 400, 1_500]);
        world.note(format!("disk of {} takes up to {ms} ms", victim + 1));
        world.hosts[victim].disk_delay = (ms * MS / 4, ms * MS);
        self.after(world, 200, 4_000, Later::Disk(victim));
    }

    fn fail_sync(&mut self, world: &mut World, victim: usize) {
        world.note(format!("a sync of {} is to fail", victim + 1));
        let after = self.rng.below(4);
        world.hosts[victim].disk.fail_sync_after(after);
        // It acknowledges nothing any more; it is noticed and restarted.
        self.after(world, 100, 3_000, Later::Kill(victim));
    }

    /// Cuts links between two sides, in both directions or in one.
    fn cut(&mut self, world: &mut World, victim: usize, fault: Fault) {
        let count = world.hosts.len();
        let side: Vec<bool> = match self.rng.below(3) {
            0 => (0..count).map(|host| host == victim).collect(),
            _ => (0..count).map(|_| self.rng.chance(500)).collect(),
        };
        let names: Vec<usize> = (0..count).filter(|host| side[*host]).map(|host| host + 1).collect();
        world.note(format!("{fault:?}: {names:?} from the others"));
        // In both directions or in one; with a bridge some links stay.
        let bridge = self.rng.chance(200);
        for from in 0..count {
            for to in 0..count {
                let across = side[from] != side[to] && (fault == Fault::Cut || side[from]);
                let cut = across && !(bridge && self.rng.chance(300));
                world.net.set(from, to, Link { cut, ..world.net.get(from, to) });
            }
        }
        self.after(world, 200, 6_000, Later::Links);
    }

    /// Stores fail, are slow, lose answers and show stale lists for a while.
    fn spoil_stores(&mut self, world: &mut World) {
        let drawn = self.rng.pick(&[20, 150, 400]);
        let rate = world.shape.store_rate.unwrap_or(drawn);
        let faults = Faults {
            fail_before: rate,
            fail_after: rate,
            slow: rate,
            slow_by: std::time::Duration::from_millis(self.rng.pick(&[50, 800, 3_000])),
            truncate: rate / 4,
            missing_once: rate / 4,
            stale_list: rate,
            ..Faults::default()
        };
        world.note(format!("store: {rate} of 1000 fail, and as many lose their answer"));
        world.spoil_stores(&faults);
        self.after(world, 500, 8_000, Later::Store);
    }

    /// Sets the wall clock of one machine, or of all.
    fn set_wall_clocks(&mut self, world: &mut World, victim: usize) {
        let all = self.rng.chance(200);
        let seconds = self.rng.pick(&[2, 70, 3_700, 40_000]);
        let seconds = if self.rng.chance(500) { -seconds } else { seconds };
        world.note(format!("the wall clock of {} is set by {seconds} s", if all { 0 } else { victim + 1 }));
        world.stats.walls += 1;
        for host in world.hosts.iter_mut().filter(|host| all || host.index == victim) {
            host.time.clock.wall += seconds * 1_000_000_000;
        }
    }

    /// The boot clock of one machine goes back.
    fn set_back(&mut self, world: &mut World, victim: usize) {
        let ms: i64 = self.rng.pick(&[100, 600, 3_000, 10_000]);
        world.note(format!("the boot clock of {} goes back by {ms} ms", victim + 1));
        world.hosts[victim].time.leap(-ms);
    }

    /// Flips a synced bit for the next start (R9). Only if the others can heal that: all of them are complete. Not in
    /// the newest file with a batch: there, data that no later batch notes as synced counts as a torn tail.
    fn rot(&mut self, world: &mut World, host: usize) {
        if world.places[host].is_none() || !world.is_whole() {
            return;
        }
        let disk = &world.hosts[host].disk;
        let mut names = disk.names();
        // A file without batches has no information on the one before it.
        while let Some(name) = names.pop() {
            let mut batches = false;
            disk.damage(&name, |bytes| batches = bytes.iter().skip(FILE_HEADER_BYTES).any(|byte| *byte != 0));
            if batches {
                break;
            }
        }
        if names.is_empty() {
            return;
        }
        self.kill(world, host, false);
        let name = self.rng.pick(&names);
        let draw = self.rng.draw();
        let mut at = 0;
        world.hosts[host].disk.damage(&name, |bytes| {
            // Mostly in the written part: the rest of a file is zeroes.
            let used = bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0) + 1;
            at = draw as usize % used;
            bytes[at] ^= 1 << (draw >> 61);
        });
        world.stats.rots += 1;
        world.note(format!("a bit of {} rots in {name} at {at}", host + 1));
    }

    /// A request of an administrator; often rightly refused.
    fn change_members(&mut self, world: &mut World, fault: Fault) {
        let Some(state) = world.cluster() else { return };
        let members: Vec<_> = state.members.values().filter(|m| m.standing != Standing::Leaving).collect();
        let Some(any) = (!members.is_empty()).then(|| self.rng.pick(&members)) else { return };
        let empty: Vec<usize> = (0..world.hosts.len())
            .filter(|host| world.places[*host].is_none() && world.node(*host).is_some())
            .collect();
        let wish = match fault {
            Fault::Drain => Wish::Drain { member: any.id.0, drained: any.standing != Standing::Drained },
            Fault::Leave => Wish::Leave { member: any.id.0, force: self.rng.chance(300) },
            _ if empty.is_empty() => return,
            _ => {
                let replaces = if members.len() >= MEMBERS_MAX || self.rng.chance(600) { any.id.0 } else { 0 };
                Wish::Join { host: self.rng.pick(&empty), replaces }
            }
        };
        world.want(&mut self.rng, wish);
    }

    /// Once everything has healed, no gateway is to stay drained.
    pub fn want_all_active(&mut self, world: &mut World) {
        world.want_all_active(&mut self.rng);
    }

    fn switchover(&mut self, world: &mut World) {
        let Some(leader) = world.leader() else { return };
        let to = self.rng.below(world.hosts.len() as u64) as usize;
        let (Some(node), Some(process)) = (world.node(leader), &world.hosts[leader].process) else { return };
        let request = v1::SwitchoverRequest {
            set: crate::client::SET.into(),
            to_gateway: name(to),
            request_id: holdfast_api::hex128(u128::from(self.rng.draw()) | 1),
        };
        process.spawn(async move {
            // If the candidate is unfit it is refused, and nothing happens.
            drop(AdminDoor::new(node).switchover(tonic::Request::new(request)).await);
        });
        world.note(format!("switchover from {} to {}", leader + 1, to + 1));
    }

    /// Ends all faults, and starts everything.
    pub fn heal(&mut self, world: &mut World) -> Result<()> {
        for (_, what) in std::mem::take(&mut self.later) {
            self.undo(world, what)?;
        }
        for (_, what) in std::mem::take(&mut self.later) {
            self.undo(world, what)?;
        }
        all_links(world, Link::CALM);
        let now = world.now;
        for host in &mut world.hosts {
            host.time.wake(now);
            host.disk_delay = (MS / 5, 2 * MS);
        }
        world.heal_stores();
        // A sync that was to fail may have failed late: then every process is restarted. Otherwise mostly none.
        let anew = self.mix.contains(&Fault::SyncFails);
        let again: Vec<bool> =
            world.hosts.iter().map(|host| anew || host.process.is_none() || self.rng.chance(300)).collect();
        for host in (0..world.hosts.len()).filter(|host| again[*host]) {
            let (now, rtt) = (world.now, world.rtt_ms);
            world.hosts[host].kill(now);
            world.hosts[host].start(now, rtt)?;
        }
        Ok(())
    }
}

/// Gateway `victim` stands for election in the set's group.
fn elect(world: &mut World, victim: usize) {
    let Some(set) = world.set(victim) else { return };
    let Some(process) = &world.hosts[victim].process else { return };
    let group = set.group.clone();
    process.spawn(async move {
        // If refused, nothing happens.
        drop(group.stand_for_election().await);
    });
    world.note(format!("{} stands for election", victim + 1));
}

fn all_links(world: &World, link: Link) {
    for from in 0..world.hosts.len() {
        for to in 0..world.hosts.len() {
            world.net.set(from, to, link);
        }
    }
}
