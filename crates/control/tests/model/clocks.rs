//! Model of three gateways with clocks of their own: heartbeats, elections, hand-overs, restarts, suspended clocks, and
//! the reads meanwhile.
//!
//! Raft is assumed to keep its promises, as in [`crate::grants`]: one committed log, a quorum for each entry and
//! election. Who may vote when is imitated; gate, promises, embargo, judge and clock watch are the product's code.
//! Followers may change their times at any moment, in any order: the set's log would allow only some of that. Any step
//! may be delayed for ever: a paused process, a lost message and a slow message are the same here.

mod course;
mod elections;
mod serving;

pub use course::{COURSES, Course, course};

use crate::guards::Guard;
use crate::marks::Marks;
use course::Left;
use holdfast_control::serve::{ClockWatch, ExpiryJudge, GateEvent, ServeGate, Timing};
use holdfast_control::set::{Admit, Judged, SetCommand, SetState};
use holdfast_types::pledge::{Pledge, VoteEmbargo};
use holdfast_types::{Epoch, LogId, MemberId, MonoTime, Owner, RequestId, Term, Token, WriteSeq};
use stateright::{Model, Property};
use std::time::Duration;

pub const NODES: usize = 3;
/// The smallest times: leader lease 600 ms, drift margin 120 ms, embargo 660 ms.
const TIMING: Timing = Timing::from_rtt(Duration::from_millis(1));
/// Where times change: leader lease 720 ms, drift margin 144 ms, embargo 792 ms.
const LONG: Timing = Timing::with_floor(Duration::from_millis(1), Duration::from_millis(360));
/// Real time goes on in steps of this many milliseconds.
pub const TICK_MS: u64 = 120;
/// A lease's time to live, in milliseconds.
pub const TTL_MS: u32 = 480;
/// Initial time of every clock.
const START_MS: u64 = 10_000;

const READ_BY_ANOTHER: &str = "a read is answered by another gateway than the first";
const JUDGED: &str = "a lease is judged expired and granted anew";
const READ_STOPPED: &str = "a read is kept back because its read lease ran out";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum What {
    Blank,
    /// Forced, so that it needs no help of the owner.
    Grant(u8),
    Judged(u8, Judged),
    Renew(Epoch),
    Write(Epoch, WriteSeq),
    Voters,
}

/// A committed entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Entry {
    term: u64,
    what: What,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Node {
    gate: ServeGate,
    judge: ExpiryJudge,
    watch: ClockWatch,
    embargo: VoteEmbargo,
    term: u64,
    /// What it has promised to the leader of `term`, on its own clock; forgotten by a restart.
    pledge: Pledge,
    /// Its times are [`LONG`].
    long: bool,
    leads: Option<u64>,
    /// When it became leader, on its own clock.
    led_since: MonoTime,
    applied: usize,
    /// Time that its boot clock missed, in milliseconds of that clock.
    lost_ms: u64,
    /// It did not run during the last tick, and has not sampled its clocks since.
    asleep: bool,
    /// Only without the guard `TransferFinal`: it holds back only during its transfer.
    holds_back: bool,
}

/// A heartbeat under way, or its answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Beat {
    from: u8,
    term: u64,
    sent: MonoTime,
    /// One bit per follower that heard it.
    heard_by: u8,
    /// For how long the leader may read, by the answer of a follower.
    reads: Duration,
}

/// A transfer under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Handover {
    from: u8,
    to: u8,
    /// The term that it ends. A node that has seen a later one does not stand for it.
    term: u64,
}

/// A read that has its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Read {
    node: u8,
    epoch: Epoch,
    /// Number of writes that it shows.
    data: u8,
    /// Number of writes acknowledged when it was asked for.
    due: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    tick: u8,
    log: Vec<Entry>,
    voters: u8,
    nodes: Vec<Node>,
    beats: Vec<Beat>,
    handover: Option<Handover>,
    /// Node 1 or 2 has acted. Before that they are equal, so steps of node 2 need no exploration.
    told_apart: bool,
    read: Option<Read>,
    left: Left,
    /// Writes acknowledged to a client.
    acked: u8,
    /// The highest epoch of these.
    acked_epoch: Epoch,
    /// Whole ticks with an awake leader since the last renewal or election: the owner could have renewed.
    chances: u8,
    broken: Option<&'static str>,
}

/// A step; epoch, node and so on are those of the state in which it is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    Tick,
    /// A tick that this node's boot clock does not count.
    TickFrozen(u8),
    /// A tick during which this node does not run.
    TickAsleep(u8),
    Beat(u8),
    Hear {
        beat: u8,
        by: u8,
    },
    Ack {
        beat: u8,
    },
    Elect {
        candidate: u8,
        voter: u8,
    },
    Handover {
        from: u8,
        to: u8,
    },
    GiveUpHandover(u8),
    ElectByHandover {
        voter: u8,
    },
    Lose(u8),
    Restart(u8),
    /// This follower has the longer times from now on, or the shorter ones again.
    Retime(u8),
    Apply(u8),
    Grant(u8),
    Write(u8),
    Renew(u8),
    Judge(u8),
    AddVoters,
    Read(u8),
    Answer,
}

impl Step {
    /// Whether node `number` is the first of nodes 1 and 2 that it names.
    fn begins_with(self, number: u8) -> bool {
        let named = match self {
            Step::Hear { by, .. } => [by, by],
            Step::Elect { candidate, voter } => [candidate, voter],
            Step::Handover { to, .. } => [to, to],
            Step::ElectByHandover { voter } => [voter, voter],
            Step::Restart(node) | Step::Retime(node) | Step::TickFrozen(node) | Step::TickAsleep(node) => [node, node],
            _ => return false,
        };
        named.into_iter().find(|node| *node != 0) == Some(number)
    }
}

pub struct Clocks {
    course: Course,
    without: Option<Guard>,
    pub marks: Marks,
}

fn bit(node: u8) -> u8 {
    1 << node
}

impl Clocks {
    pub fn new(course: &Course) -> Self {
        Self { course: *course, without: None, marks: Marks::new(course.marks) }
    }

    pub fn without(course: &Course, guard: Guard) -> Self {
        Self { without: Some(guard), ..Self::new(course) }
    }

    fn lacks(&self, guard: Guard) -> bool {
        self.without == Some(guard)
    }

    /// The longest times that a node may have.
    fn longest(&self) -> Timing {
        if self.course.left.retimes > 0 { LONG } else { TIMING }
    }

    fn hit(&self, mark: &'static str) {
        if self.course.marks.contains(&mark) {
            self.marks.hit(mark);
        }
    }

    /// CLOCK_MONOTONIC at `node`.
    fn monotonic(&self, world: &World, node: u8) -> MonoTime {
        let speed = self.course.speeds[usize::from(node)];
        // One nanosecond more per entry, so that the moments before and after an election differ.
        MonoTime((START_MS * 100 + u64::from(world.tick) * TICK_MS * speed) * 10_000 + world.log.len() as u64)
    }

    /// CLOCK_BOOTTIME at `node`, which it uses.
    fn clock(&self, world: &World, node: u8) -> MonoTime {
        MonoTime(self.monotonic(world, node).0 - world.nodes[usize::from(node)].lost_ms * 1_000_000)
    }

    fn node(&self, number: u8, now: MonoTime, monotonic: MonoTime, started: MonoTime) -> Node {
        let mut watch = ClockWatch::with_timing(&TIMING);
        watch.sample(now, monotonic);
        Node {
            gate: ServeGate::new(MemberId(u64::from(number)), self.longest(), now),
            judge: ExpiryJudge::new(),
            watch,
            embargo: VoteEmbargo::new(started, None, self.longest().embargo()),
            term: 1,
            pledge: Pledge::new(TIMING.promise()),
            long: false,
            leads: None,
            led_since: now,
            applied: 0,
            lost_ms: 0,
            asleep: false,
            holds_back: false,
        }
    }

    fn tell(&self, world: &mut World, node: u8, event: GateEvent) {
        let now = self.clock(world, node);
        world.nodes[usize::from(node)].gate.event(now, event);
    }

    /// Time advances. Every running process samples its clocks.
    fn tick(&self, world: &mut World, frozen: Option<u8>, asleep: Option<u8>) {
        world.tick += 1;
        if let Some(node) = frozen {
            world.nodes[usize::from(node)].lost_ms += TICK_MS * self.course.speeds[usize::from(node)] / 100;
        }
        let latest = self.latest_leader(world);
        if self.course.left.judgements > 0 && latest.is_some() && latest != asleep {
            world.chances += 1;
        }
        for number in 0..NODES as u8 {
            let (boot, monotonic) = (self.clock(world, number), self.monotonic(world, number));
            let node = &mut world.nodes[usize::from(number)];
            node.asleep = asleep == Some(number);
            if node.asleep {
                continue;
            }
            let Some(suspicion) = node.watch.sample(boot, monotonic) else { continue };
            if !self.lacks(Guard::SuspicionEndsReadLease) {
                node.gate.event(boot, GateEvent::ClockSuspicion);
            }
            if !self.lacks(Guard::JudgeSleepsNot) && self.course.left.judgements > 0 {
                node.judge.clock_suspected(boot, suspicion.lost());
            }
        }
    }

    /// The leader of the last term, if it still leads it.
    fn latest_leader(&self, world: &World) -> Option<u8> {
        let term = world.log.last()?.term;
        (0..NODES as u8).find(|number| world.nodes[usize::from(*number)].leads == Some(term))
    }

    /// The set after the first `upto` entries, and its number of writes.
    fn set_at(&self, world: &World, upto: usize) -> (SetState, u8) {
        let mut set = SetState::new(Epoch(0));
        let mut writes = 0;
        for (place, entry) in world.log[..upto].iter().enumerate() {
            let id = LogId::new(entry.term, place as u64 + 1);
            match entry.what {
                What::Blank | What::Voters => {}
                What::Write(epoch, seq) => {
                    let admit = set.admit_write(id, epoch, seq);
                    writes += u8::from(admit == Admit::Apply);
                }
                What::Grant(gateway) => {
                    set.apply(id, &acquire(id, gateway, None));
                }
                What::Judged(gateway, judged) => {
                    set.apply(id, &acquire(id, gateway, Some(judged)));
                }
                What::Renew(epoch) => {
                    set.apply(id, &SetCommand::Renew { epoch });
                }
            }
        }
        (set, writes)
    }

    /// `number` applies the next entry, and answers its client if it proposed it.
    fn apply_one(&self, world: &mut World, number: u8) {
        let place = world.nodes[usize::from(number)].applied;
        let entry = world.log[place];
        let id = LogId::new(entry.term, place as u64 + 1);
        let (before, writes_before) = self.set_at(world, place);
        let (after, writes) = self.set_at(world, place + 1);
        let node = &mut world.nodes[usize::from(number)];
        node.applied += 1;
        let leads = node.leads == Some(entry.term);
        if let What::Blank = entry.what {
            self.tell(world, number, GateEvent::FirstEntryApplied { term: Term(entry.term) });
        }
        if let What::Grant(gateway) | What::Judged(gateway, _) = entry.what
            && after.epoch > before.epoch
        {
            let gateway = MemberId(u64::from(gateway));
            self.tell(world, number, GateEvent::GrantApplied { id, epoch: after.epoch, gateway });
        }
        if let What::Write(epoch, _) = entry.what
            && leads
            && writes > writes_before
        {
            if epoch < world.acked_epoch {
                world.broken = Some("R6");
            }
            world.acked = world.acked.max(writes);
            world.acked_epoch = world.acked_epoch.max(epoch);
        }
        if self.course.left.judgements > 0 {
            let now = self.clock(world, number);
            world.nodes[usize::from(number)].judge.observe(now, after.lease.as_ref());
        }
    }

    fn apply_all(&self, world: &mut World, number: u8) {
        while world.nodes[usize::from(number)].applied < world.log.len() {
            self.apply_one(world, number);
        }
    }

    /// Whether `leader` can bring an entry to a quorum.
    fn can_commit(&self, world: &World, leader: u8) -> bool {
        let Some(term) = world.nodes[usize::from(leader)].leads else { return false };
        world.voters == bit(leader) || self.followers(world, leader).any(|f| world.nodes[usize::from(f)].term <= term)
    }

    fn followers(&self, world: &World, leader: u8) -> impl Iterator<Item = u8> {
        let voters = world.voters;
        (0..NODES as u8).filter(move |number| *number != leader && voters & bit(*number) != 0)
    }

    /// `leader` commits an entry with a quorum and applies it.
    fn commit(&self, world: &mut World, leader: u8, what: What) {
        let Some(term) = world.nodes[usize::from(leader)].leads else { return };
        world.log.push(Entry { term, what });
        self.apply_all(world, leader);
        if matches!(what, What::Grant(_) | What::Renew(_) | What::Write(..)) {
            world.chances = 0;
        }
    }
}

fn acquire(id: LogId, gateway: u8, judged_expired: Option<Judged>) -> SetCommand {
    SetCommand::Acquire {
        owner: Owner::new("a").unwrap(),
        gateway: MemberId(u64::from(gateway)),
        token: Token(u128::from(id.index.0)),
        ttl_ms: TTL_MS,
        request: RequestId(u128::from(id.index.0)),
        judged_expired,
        force: judged_expired.is_none(),
        plain: false,
        at_unix_ms: 0,
    }
}

impl Model for Clocks {
    type State = World;
    type Action = Step;

    /// Gateway 0 leads, serves its first epoch, and was just heard by the others.
    fn init_states(&self) -> Vec<World> {
        // As `clock` shows it with the first two entries in the log.
        let now = MonoTime(START_MS * 1_000_000 + 2);
        let mut world = World {
            tick: 0,
            log: vec![Entry { term: 1, what: What::Blank }, Entry { term: 1, what: What::Grant(0) }],
            voters: if self.course.alone { bit(0) } else { 0b111 },
            nodes: (0..NODES as u8).map(|number| self.node(number, now, now, MonoTime(0))).collect(),
            beats: Vec::new(),
            handover: None,
            told_apart: false,
            read: None,
            left: self.course.left,
            acked: 0,
            acked_epoch: Epoch(0),
            chances: 0,
            broken: None,
        };
        world.nodes[0].leads = Some(1);
        self.tell(&mut world, 0, GateEvent::TermStarted { term: Term(1) });
        world.nodes[0].judge.elected(now);
        if self.course.alone {
            self.tell(&mut world, 0, GateEvent::SoleVoter(true));
        } else {
            self.tell(&mut world, 0, GateEvent::acked(&TIMING, now));
            world.nodes[1].pledge.give(now);
            world.nodes[2].pledge.give(now);
        }
        (0..NODES as u8).for_each(|number| self.apply_all(&mut world, number));
        vec![world]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        if world.broken.is_none() {
            self.steps_of_time(world, steps);
            self.steps_of_elections(world, steps);
            self.steps_of_serving(world, steps);
        }
        if !world.told_apart && self.course.speeds[1] == self.course.speeds[2] {
            steps.retain(|step| !step.begins_with(2));
        }
    }

    fn next_state(&self, before: &World, step: Step) -> Option<World> {
        let mut world = before.clone();
        world.left.spend(step);
        world.told_apart |= step.begins_with(1);
        match step {
            Step::Tick => self.tick(&mut world, None, None),
            Step::TickFrozen(node) => self.tick(&mut world, Some(node), None),
            Step::TickAsleep(node) => self.tick(&mut world, None, Some(node)),
            Step::Beat(_)
            | Step::Hear { .. }
            | Step::Ack { .. }
            | Step::Elect { .. }
            | Step::Handover { .. }
            | Step::GiveUpHandover(_)
            | Step::ElectByHandover { .. }
            | Step::Lose(_)
            | Step::Restart(_)
            | Step::Retime(_)
            | Step::AddVoters => self.take_election_step(&mut world, step),
            Step::Apply(node) => self.apply_all(&mut world, node),
            Step::Grant(_) | Step::Write(_) | Step::Renew(_) | Step::Judge(_) | Step::Read(_) | Step::Answer => {
                self.take_serving_step(&mut world, step)?;
            }
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("R3", |_, world: &World| world.broken != Some("R3")),
            Property::always("R3, late", |_, world: &World| world.broken != Some("R3, late")),
            Property::always("R6", |_, world: &World| world.broken != Some("R6")),
            Property::always("SET-S4", |_, world: &World| world.broken != Some("SET-S4")),
        ]
    }
}
