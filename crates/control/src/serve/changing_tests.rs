//! R3 while the times of a group change (ADR 0058): gate, promises and embargo together, with members that have
//! different times, restarts, a change of voters, messages that come at any moment, and clocks that are wrong.

use super::{GateEvent, ServeGate, Timing};
use holdfast_types::pledge::{Pledge, VoteEmbargo, reads_until};
use holdfast_types::{Epoch, LogId, MemberId, MonoTime, Term};
use proptest::collection::vec;
use proptest::prelude::*;
use std::time::Duration;

const MS: u64 = 1_000_000;
const MEMBERS: usize = 5;
/// The leader, which also is the first of each set of voters.
const LEADER: usize = 0;
const OLD: &[usize] = &[0, 1, 2];
const NEW: &[usize] = &[0, 3, 4];

/// Leader leases of 600, 900 and 1900 ms.
fn class(number: usize) -> Timing {
    Timing::from_rtt(Duration::from_millis([1, 40, 90][number % 3]))
}

fn longest() -> Timing {
    class(2)
}

/// Voters that the leader counts, before a change of voters, in a joint membership, and after it.
fn of_leader(phase: usize) -> &'static [&'static [usize]] {
    match phase {
        0 => &[OLD],
        1 => &[OLD, NEW],
        _ => &[NEW],
    }
}

/// Voters that a candidate may count meanwhile: it may not have the newest entry yet.
fn of_candidates(phase: usize) -> &'static [&'static [&'static [usize]]] {
    match phase {
        0 => &[&[OLD]],
        1 => &[&[OLD], &[OLD, NEW]],
        _ => &[&[OLD, NEW], &[NEW]],
    }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    /// Milliseconds of real time.
    Pass(u64),
    Beat,
    /// A member takes a heartbeat, perhaps one of long ago, and its answer arrives.
    Hear(usize, usize),
    Retime(usize, usize),
    Restart(usize),
    /// Its group stops and starts again, its process goes on.
    StopAndStart(usize),
    ChangeVoters,
}

fn ops() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (1u64..120).prop_map(Op::Pass),
        1 => (120u64..2500).prop_map(Op::Pass),
        3 => Just(Op::Beat),
        6 => (0usize..4, 1..MEMBERS).prop_map(|(beat, by)| Op::Hear(beat, by)),
        3 => (1..MEMBERS, 0usize..3).prop_map(|(who, to)| Op::Retime(who, to)),
        1 => (1..MEMBERS).prop_map(Op::Restart),
        1 => (1..MEMBERS).prop_map(Op::StopAndStart),
        1 => Just(Op::ChangeVoters),
    ]
}

struct World {
    real: u64,
    speeds: [u64; MEMBERS],
    pledges: [Pledge; MEMBERS],
    /// When their processes started. Before the first restart that was long ago.
    started: [MonoTime; MEMBERS],
    embargoes: [Option<VoteEmbargo>; MEMBERS],
    beats: Vec<MonoTime>,
    /// The newest answer of each member: what it answers was sent, and until when the leader may read.
    acks: [Option<(MonoTime, MonoTime)>; MEMBERS],
    phase: usize,
    gate: ServeGate,
}

impl World {
    fn new(speeds: [u64; MEMBERS]) -> Self {
        let start = MonoTime(1 << 50);
        let mut gate = ServeGate::new(MemberId(LEADER as u64), longest(), start);
        gate.event(start, GateEvent::TermStarted { term: Term(1) });
        gate.event(start, GateEvent::FirstEntryApplied { term: Term(1) });
        let gateway = MemberId(LEADER as u64);
        gate.event(start, GateEvent::GrantApplied { id: LogId::new(1, 2), epoch: Epoch(2), gateway });
        Self {
            real: 0,
            speeds,
            pledges: [Pledge::new(longest().promise()); MEMBERS],
            started: [MonoTime(0); MEMBERS],
            embargoes: [None; MEMBERS],
            beats: Vec::new(),
            acks: [None; MEMBERS],
            phase: 0,
            gate,
        }
    }

    fn clock(&self, who: usize) -> MonoTime {
        MonoTime((1 << 50) + self.real / 100 * self.speeds[who])
    }

    /// Whether it may vote for another than the leader.
    fn is_free(&self, who: usize) -> bool {
        let now = self.clock(who);
        let embargoed = self.embargoes[who].is_some_and(|embargo| embargo.left(now).is_some());
        who != LEADER && !embargoed && self.pledges[who].left(now).is_none()
    }

    fn can_elect_another(&self) -> bool {
        let majority = |part: &&[usize]| part.iter().filter(|who| self.is_free(**who)).count() > part.len() / 2;
        of_candidates(self.phase).iter().any(|parts| parts.iter().all(majority))
    }

    /// The newest answers of a quorum, as the product counts them.
    fn quorum(&self, part: &[usize]) -> Option<(MonoTime, MonoTime)> {
        let now = self.clock(LEADER);
        let own = (now, now.saturating_add(longest().read_lease()));
        let of = |who: &usize| if *who == LEADER { Some(own) } else { self.acks[*who] };
        let mut newest: Vec<_> = part.iter().filter_map(of).collect();
        newest.sort_unstable_by_key(|ack| std::cmp::Reverse(*ack));
        newest.get(..=part.len() / 2)?.iter().copied().reduce(earlier)
    }

    fn tell_gate(&mut self) {
        let now = self.clock(LEADER);
        let parts: Option<Vec<_>> = of_leader(self.phase).iter().map(|part| self.quorum(part)).collect();
        let event = match parts.and_then(|parts| parts.into_iter().reduce(earlier)) {
            Some((sent, until)) => GateEvent::QuorumAcked { sent, until },
            None => GateEvent::NoQuorum,
        };
        self.gate.event(now, event);
    }

    fn forget(&mut self, who: usize, stopped: Option<MonoTime>) {
        self.pledges[who] = Pledge::new(longest().promise());
        self.embargoes[who] = Some(VoteEmbargo::new(self.started[who], stopped, longest().embargo()));
    }

    fn take(&mut self, op: Op) {
        match op {
            Op::Pass(ms) => self.real += ms * MS,
            Op::Beat => self.beats.push(self.clock(LEADER)),
            Op::Hear(ago, by) => {
                let Some(sent) = self.beats.iter().rev().nth(ago).copied() else { return };
                let now = self.clock(by);
                let promised = self.pledges[by].give(now);
                let until = reads_until(sent, longest().read_lease(), promised);
                if self.acks[by].is_none_or(|(known, _)| known < sent) {
                    self.acks[by] = Some((sent, until));
                }
            }
            Op::Retime(who, to) => self.pledges[who].change(class(to).promise()),
            Op::Restart(who) => {
                self.started[who] = self.clock(who);
                self.forget(who, None);
            }
            Op::StopAndStart(who) => self.forget(who, Some(self.clock(who))),
            Op::ChangeVoters => self.phase = (self.phase + 1).min(2),
        }
        self.tell_gate();
    }
}

fn earlier(a: (MonoTime, MonoTime), b: (MonoTime, MonoTime)) -> (MonoTime, MonoTime) {
    (a.0.min(b.0), a.1.min(b.1))
}

fn speed() -> impl Strategy<Value = u64> {
    prop_oneof![2 => Just(90u64), 2 => Just(110u64), 1 => 90u64..=110]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// At no moment can another leader be elected while this one may still read.
    #[test]
    fn r3_nobody_is_elected_while_a_leader_reads_though_times_change(
        speeds in [speed(), speed(), speed(), speed(), speed()], steps in vec(ops(), 1..60),
    ) {
        let mut world = World::new(speeds);
        for (number, op) in steps.into_iter().enumerate() {
            world.take(op);
            let reads = world.gate.may_read(world.clock(LEADER)).is_ok();
            prop_assert!(!reads || !world.can_elect_another(), "step {}, {:?}: it reads", number, op);
        }
    }
}

/// Both things happen, and not at once: the leader reads as long as was promised, and then others are free.
#[test]
fn a_leader_reads_until_shortly_before_others_are_free() {
    let mut world = World::new([100; MEMBERS]);
    world.take(Op::Retime(1, 0));
    world.take(Op::Beat);
    world.take(Op::Hear(0, 1));
    world.take(Op::Pass(479));
    assert!(world.gate.may_read(world.clock(LEADER)).is_ok());
    assert!(!world.can_elect_another());
    world.take(Op::Pass(1));
    assert!(world.gate.may_read(world.clock(LEADER)).is_err(), "its one voter has promised no more");
    world.take(Op::Pass(120));
    assert!(world.can_elect_another());
}

/// What was promised under longer times is kept under shorter ones, and a joint membership needs both parts.
#[test]
fn longer_promises_and_both_parts_count() {
    let mut world = World::new([100; MEMBERS]);
    world.take(Op::Beat);
    world.take(Op::Hear(0, 1));
    world.take(Op::Retime(1, 0));
    world.take(Op::Pass(601));
    assert!(world.gate.may_read(world.clock(LEADER)).is_ok() && !world.can_elect_another());
    world.take(Op::ChangeVoters);
    assert!(world.gate.may_read(world.clock(LEADER)).is_err(), "nobody of the newer part has answered");
    world.take(Op::Hear(0, 3));
    assert!(world.gate.may_read(world.clock(LEADER)).is_ok() && !world.can_elect_another());
    world.take(Op::Pass(1000));
    assert!(!world.can_elect_another(), "601 and 1000 ms are less than 1900 ms");
}

/// The voters before the change have promised for long, those after it for less: only the latter decide then.
#[test]
fn what_voters_of_before_a_change_have_promised_counts_no_more() {
    let mut world = World::new([100; MEMBERS]);
    world.take(Op::Beat);
    for by in [1, 2] {
        world.take(Op::Hear(0, by));
    }
    world.take(Op::Retime(3, 0));
    world.take(Op::Hear(0, 3));
    world.take(Op::ChangeVoters);
    world.take(Op::ChangeVoters);
    world.take(Op::Pass(500));
    assert!(world.gate.may_read(world.clock(LEADER)).is_err(), "member 3 has promised 480 ms");
    world.take(Op::Pass(100));
    assert!(world.can_elect_another(), "members 3 and 4 are free");
}
