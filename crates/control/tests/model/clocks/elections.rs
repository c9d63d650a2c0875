//! Elections of the model: heartbeats, votes, hand-overs, restarts, voters. openraft's part is imitated, the rest is
//! the product's code.

use super::{Beat, Clocks, Entry, Handover, LONG, NODES, Step, TIMING, What, World, bit};
use crate::guards::Guard;
use holdfast_control::serve::GateEvent;
use holdfast_types::pledge::{Pledge, reads_until};
use holdfast_types::{MonoTime, Term};
use std::time::Duration;

impl Clocks {
    /// Whether `number` may vote for another, or stand itself. `asked_to`: by a transfer, which overrides the
    /// followers' silence.
    fn may_elect(&self, world: &World, number: u8, asked_to: bool) -> bool {
        let node = &world.nodes[usize::from(number)];
        let now = self.clock(world, number);
        let silent = node.pledge.left(now).is_some();
        let embargoed = node.embargo.left(now).is_some();
        (asked_to || !silent || self.lacks(Guard::FollowersKeepSilence))
            && (!embargoed || self.lacks(Guard::VoteEmbargo))
            && world.voters & bit(number) != 0
    }

    pub(super) fn steps_of_elections(&self, world: &World, steps: &mut Vec<Step>) {
        let numbers = 0..NODES as u8;
        let last_term = world.log.last().map_or(0, |entry| entry.term);
        for number in numbers.clone() {
            let node = &world.nodes[usize::from(number)];
            if node.leads.is_some() && world.left.beats > 0 && world.voters != bit(number) {
                steps.push(Step::Beat(number));
            }
            if node.leads.is_some_and(|term| term < last_term) {
                steps.push(Step::Lose(number));
            }
            if world.left.restarts > 0 {
                steps.push(Step::Restart(number));
            }
            if world.left.retimes > 0 && number != 0 {
                steps.push(Step::Retime(number));
            }
            if node.leads.is_some() && world.left.handovers > 0 && world.handover.is_none() {
                let others = numbers.clone().filter(|to| *to != number);
                steps.extend(others.map(|to| Step::Handover { from: number, to }));
            }
        }
        for (place, beat) in world.beats.iter().enumerate() {
            for by in self.followers(world, beat.from) {
                if beat.heard_by & bit(by) == 0 && world.nodes[usize::from(by)].term <= beat.term {
                    steps.push(Step::Hear { beat: place as u8, by });
                }
            }
            // Two of three are a quorum, and the sender is one of them.
            if beat.heard_by != 0 && world.nodes[usize::from(beat.from)].leads.is_some() {
                steps.push(Step::Ack { beat: place as u8 });
            }
        }
        if let Some(Handover { from, to, term }) = world.handover {
            steps.push(Step::GiveUpHandover(from));
            let target = &world.nodes[usize::from(to)];
            let stands = target.leads.is_none() && target.term <= term && self.may_elect(world, to, true);
            if world.left.elections > 0 && stands {
                let voters = numbers.clone().filter(|voter| *voter != to && self.may_elect(world, *voter, true));
                steps.extend(voters.map(|voter| Step::ElectByHandover { voter }));
            }
        }
        if world.left.elections > 0 {
            let free = |number: &u8| {
                world.nodes[usize::from(*number)].leads.is_none() && self.may_elect(world, *number, false)
            };
            for candidate in numbers.clone().filter(free) {
                let voters = numbers.clone().filter(|voter| *voter != candidate).filter(free);
                steps.extend(voters.map(|voter| Step::Elect { candidate, voter }));
            }
        }
        if self.course.alone && world.voters == bit(0) && world.nodes[0].leads.is_some() {
            steps.push(Step::AddVoters);
        }
    }

    pub(super) fn take_election_step(&self, world: &mut World, step: Step) {
        match step {
            Step::Beat(from) => {
                let sent = self.clock(world, from);
                let term = world.nodes[usize::from(from)].term;
                world.beats.push(Beat { from, term, sent, heard_by: 0, reads: Duration::ZERO });
            }
            Step::Hear { beat, by } => {
                world.beats[usize::from(beat)].heard_by |= bit(by);
                let term = world.beats[usize::from(beat)].term;
                let now = self.clock(world, by);
                self.adopt_term(world, by, term);
                let promised = world.nodes[usize::from(by)].pledge.give(now);
                let beat = &mut world.beats[usize::from(beat)];
                // The leader and either of the others are a quorum.
                beat.reads = beat.reads.max(promised);
            }
            Step::Ack { beat } => self.acknowledge(world, beat),
            Step::Elect { candidate, voter } => self.elect(world, candidate, voter),
            Step::Handover { from, to } => {
                if self.lacks(Guard::TransferFinal) {
                    world.nodes[usize::from(from)].holds_back = true;
                } else if !self.lacks(Guard::TransferTold) {
                    self.tell(world, from, GateEvent::TransferStarted);
                }
                let term = world.nodes[usize::from(from)].term;
                world.handover = Some(Handover { from, to, term });
            }
            // It continues to lead its term, as far as it knows; the request to stand may still be in flight.
            Step::GiveUpHandover(from) => {
                world.nodes[usize::from(from)].holds_back = false;
                if let Some(term) = world.nodes[usize::from(from)].leads {
                    self.tell(world, from, GateEvent::TermStarted { term: Term(term) });
                }
            }
            Step::ElectByHandover { voter } => {
                if let Some(Handover { to, .. }) = world.handover.take() {
                    self.elect(world, to, voter);
                }
            }
            Step::Lose(number) => self.lose(world, number),
            Step::Restart(number) => {
                let now = self.clock(world, number);
                let before = world.nodes[usize::from(number)].clone();
                let mut node = self.node(number, now, self.monotonic(world, number), now);
                (node.term, node.lost_ms) = (before.term, before.lost_ms);
                world.nodes[usize::from(number)] = node;
                self.apply_all(world, number);
                world.beats.retain(|beat| beat.from != number);
                world.handover = world.handover.filter(|handover| handover.from != number);
                world.read = world.read.filter(|read| read.node != number);
            }
            Step::Retime(number) => {
                let node = &mut world.nodes[usize::from(number)];
                node.long = !node.long;
                let promise = if node.long { LONG.promise() } else { TIMING.promise() };
                if self.lacks(Guard::PromiseOutlivesItsTimes) {
                    node.pledge = Pledge::new(promise);
                } else {
                    node.pledge.change(promise);
                }
            }
            Step::AddVoters => {
                if !self.lacks(Guard::SoleVoterTold) {
                    self.tell(world, 0, GateEvent::SoleVoter(false));
                }
                world.voters = 0b111;
                self.commit(world, 0, What::Voters);
            }
            other => unreachable!("{other:?} is no step of elections"),
        }
    }

    fn acknowledge(&self, world: &mut World, beat: u8) {
        let Beat { from, sent, mut reads, .. } = world.beats.remove(usize::from(beat));
        let mut sent = sent;
        if self.lacks(Guard::AnswerSaysHowLong) {
            reads = self.longest().read_lease();
        }
        if self.lacks(Guard::AckCountsFromSending) {
            sent = self.clock(world, from);
        }
        if self.lacks(Guard::AckOfOwnTerm) {
            // As late as the gate needs to let it pass.
            sent = sent.max(world.nodes[usize::from(from)].led_since);
        }
        let until = reads_until(sent, self.longest().read_lease(), reads);
        self.tell(world, from, GateEvent::QuorumAcked { sent, until });
    }

    fn adopt_term(&self, world: &mut World, number: u8, term: u64) {
        if world.nodes[usize::from(number)].term < term {
            self.lose(world, number);
            let node = &mut world.nodes[usize::from(number)];
            node.term = term;
            node.pledge = Pledge::new(if node.long { LONG.promise() } else { TIMING.promise() });
        }
    }

    fn lose(&self, world: &mut World, number: u8) {
        if world.nodes[usize::from(number)].leads.take().is_some() {
            self.tell(world, number, GateEvent::LeadershipLost);
            world.nodes[usize::from(number)].judge.leadership_lost();
        }
    }

    fn elect(&self, world: &mut World, candidate: u8, voter: u8) {
        let term = world.nodes[usize::from(candidate)].term.max(world.nodes[usize::from(voter)].term) + 1;
        self.adopt_term(world, voter, term);
        self.adopt_term(world, candidate, term);
        world.log.push(Entry { term, what: What::Blank });
        let now = self.clock(world, candidate);
        self.tell(world, candidate, GateEvent::TermStarted { term: Term(term) });
        let node = &mut world.nodes[usize::from(candidate)];
        node.leads = Some(term);
        node.led_since = now;
        node.holds_back = false;
        let since = if self.lacks(Guard::JudgeFromElection) { MonoTime(0) } else { now };
        if self.course.left.judgements > 0 {
            node.judge.elected(since);
        }
        world.chances = 0;
    }
}
