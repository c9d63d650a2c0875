//! What happens to the promises and votes of one voter, in every order (PACER-E1), while the times of its group change:
//! a heartbeat is promised for, then taken by openraft; a vote is looked at, cast by openraft, and looked at again.
//! openraft's part is imitated, and what waits for it may overtake.

use crate::config::RaftTiming;
use crate::pacing::Pacing;
use holdfast_types::MonoTime;
use std::collections::HashSet;
use std::time::Duration;

const TICK: Duration = Duration::from_millis(600);
/// The leader's term. Votes are asked for in the two after it.
const LED: u64 = 1;

/// The times with this leader lease.
fn times(lease: Duration) -> RaftTiming {
    RaftTiming {
        heartbeat: lease / 6,
        election_min: lease / 2,
        election_max: lease,
        read_lease: lease * 4 / 5,
        embargo: Duration::ZERO,
    }
}

fn long() -> RaftTiming {
    times(TICK * 2)
}

#[derive(Clone, Copy, Debug)]
enum Beat {
    Sent,
    /// Until when the leader may read because of the answer.
    Promised(MonoTime),
    Over,
}

#[derive(Clone, Copy, Debug)]
enum Vote {
    Asked,
    /// On its way to openraft. `bound`: a promise was in force at the first look.
    PassedOn {
        disregards: bool,
        bound: bool,
    },
    Cast,
    Over,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Tick,
    Retime,
    Beat,
    Vote(usize),
}

#[derive(Clone, Debug)]
struct World {
    now: MonoTime,
    ticks: u8,
    retimes: u8,
    pacing: Pacing,
    /// The term of openraft's vote, and the end of openraft's own lease if that vote is the leader's.
    term: u64,
    lease: Option<MonoTime>,
    beat: Beat,
    votes: [Vote; 2],
    reads_until: MonoTime,
    /// A candidate has learnt of a vote.
    told: bool,
    kept_back: bool,
    /// It has voted although it was bound when it was asked.
    deposes: bool,
}

impl World {
    fn new() -> Self {
        Self {
            now: MonoTime(0),
            ticks: 3,
            retimes: 3,
            pacing: Pacing::new(long()),
            term: LED,
            lease: None,
            beat: Beat::Sent,
            votes: [Vote::Asked; 2],
            reads_until: MonoTime(0),
            told: false,
            kept_back: false,
            deposes: false,
        }
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        if self.ticks > 0 {
            steps.push(Step::Tick);
        }
        if self.retimes > 0 {
            steps.push(Step::Retime);
        }
        if !matches!(self.beat, Beat::Over) {
            steps.push(Step::Beat);
        }
        let under_way = (0..self.votes.len()).filter(|at| !matches!(self.votes[*at], Vote::Over));
        steps.extend(under_way.map(Step::Vote));
        steps
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Tick => {
                self.ticks -= 1;
                self.now = self.now.saturating_add(TICK);
            }
            Step::Retime => {
                self.retimes -= 1;
                let to = if self.pacing.is_short() { long() } else { times(TICK) };
                self.pacing.change(to, self.now);
            }
            Step::Beat => self.beat = self.beat_goes_on(),
            Step::Vote(at) => self.votes[at] = self.vote_goes_on(at),
        }
    }

    fn beat_goes_on(&mut self) -> Beat {
        match self.beat {
            Beat::Sent => {
                // Nothing is promised to a leader that it has voted against.
                let reads = if self.term > LED { Duration::ZERO } else { self.pacing.give(self.now) };
                return Beat::Promised(self.now.saturating_add(reads));
            }
            Beat::Promised(until) if self.term == LED => {
                self.lease = Some(self.now.saturating_add(long().election_max));
                self.reads_until = until;
            }
            Beat::Promised(_) | Beat::Over => {}
        }
        Beat::Over
    }

    fn vote_goes_on(&mut self, at: usize) -> Vote {
        match self.votes[at] {
            Vote::Asked => {
                let bound = self.pacing.left(self.now).is_some();
                let looked = self.pacing.first_look(false, self.now);
                return looked.map_or(Vote::Over, |disregards| Vote::PassedOn { disregards, bound });
            }
            Vote::PassedOn { disregards, bound } => {
                let term = LED + 1 + at as u64;
                let leased = self.lease.is_some_and(|until| self.now <= until);
                if self.term < term && (disregards || !leased) {
                    (self.term, self.lease) = (term, None);
                    self.deposes |= bound;
                    return Vote::Cast;
                }
            }
            Vote::Cast if self.pacing.second_look(self.now).is_some() => self.kept_back = true,
            Vote::Cast => self.told = true,
            Vote::Over => {}
        }
        Vote::Over
    }
}

/// R3: nobody learns of a vote while the leader may read by the promise. R8: who is bound when it is asked deposes
/// nobody.
#[test]
fn in_no_order_does_a_vote_leave_while_the_leader_reads() {
    let (mut seen, mut open) = (HashSet::new(), vec![(World::new(), Vec::<Step>::new())]);
    let (mut told, mut kept_back) = (0, 0);
    while let Some((world, history)) = open.pop() {
        if !seen.insert(format!("{world:?}")) {
            continue;
        }
        assert!(!world.told || world.now >= world.reads_until, "R3: {history:?}");
        assert!(!world.deposes, "R8: {history:?}");
        told += usize::from(world.told && world.reads_until > MonoTime(0));
        kept_back += usize::from(world.kept_back);
        for step in world.steps() {
            let (mut next, mut history) = (world.clone(), history.clone());
            next.take(step);
            history.push(step);
            open.push((next, history));
        }
    }
    let states = seen.len();
    assert!(states > 10_000 && told > 100 && kept_back > 1000, "{states}, {told} told, {kept_back} kept back");
}
