//! Steps of the serving gateway, and the rules that must hold.

use super::{Clocks, JUDGED, NODES, READ_BY_ANOTHER, READ_STOPPED, Read, Step, TICK_MS, TIMING, TTL_MS, What, World};
use crate::guards::Guard;
use holdfast_control::serve::DRIFT_PERCENT_MAX;
use holdfast_types::{Epoch, MonoTime, WriteSeq};

impl Clocks {
    pub(super) fn steps_of_time(&self, world: &World, steps: &mut Vec<Step>) {
        if world.left.ticks == 0 {
            return;
        }
        steps.push(Step::Tick);
        for number in 0..NODES as u8 {
            if world.left.frozen > 0 && world.nodes[usize::from(number)].leads.is_some() {
                steps.push(Step::TickFrozen(number));
            }
            if world.left.asleep > 0 && world.nodes[usize::from(number)].leads.is_some() {
                steps.push(Step::TickAsleep(number));
            }
        }
    }

    /// The epoch that `number` believes to serve now.
    fn serving(&self, world: &World, number: u8) -> Option<Epoch> {
        let node = &world.nodes[usize::from(number)];
        node.gate.serving().ok().filter(|_| !node.holds_back)
    }

    fn may_read(&self, world: &World, number: u8) -> Option<Epoch> {
        let node = &world.nodes[usize::from(number)];
        let now = self.moment_of_asking(world, number);
        node.gate.may_read(now).ok().filter(|_| !node.holds_back)
    }

    /// The time passed to the gate: now, or earlier by the margin if that guard is missing.
    fn moment_of_asking(&self, world: &World, number: u8) -> MonoTime {
        let now = self.clock(world, number);
        if self.lacks(Guard::DriftMargin) {
            MonoTime(now.0.saturating_sub(TIMING.drift_margin().as_nanos() as u64))
        } else {
            now
        }
    }

    pub(super) fn steps_of_serving(&self, world: &World, steps: &mut Vec<Step>) {
        for number in 0..NODES as u8 {
            let node = &world.nodes[usize::from(number)];
            // A follower's applied entries matter only once it leads, and it serves nothing before it has applied its
            // own grant.
            if node.leads.is_some() && node.applied < world.log.len() {
                steps.push(Step::Apply(number));
            }
            if node.leads.is_some() && self.can_commit(world, number) {
                if world.left.grants > 0 && !node.holds_back {
                    steps.push(Step::Grant(number));
                }
                let now = self.clock(world, number);
                if world.left.writes > 0 && node.gate.may_write(now).is_ok() && !node.holds_back {
                    steps.push(Step::Write(number));
                }
                if world.left.renewals > 0 {
                    steps.push(Step::Renew(number));
                }
                if world.left.judgements > 0 && !node.asleep && node.judge.judge(now).is_some() {
                    steps.push(Step::Judge(number));
                }
            }
            if world.left.reads > 0 && world.read.is_none() && self.serving(world, number).is_some() {
                steps.push(Step::Read(number));
            }
        }
        if world.read.is_some() {
            steps.push(Step::Answer);
        }
    }

    pub(super) fn take_serving_step(&self, world: &mut World, step: Step) -> Option<()> {
        match step {
            Step::Grant(number) => self.commit(world, number, What::Grant(number)),
            Step::Write(number) => {
                let epoch = self.serving(world, number)?;
                let (set, _) = self.set_at(world, world.nodes[usize::from(number)].applied);
                self.commit(world, number, What::Write(epoch, WriteSeq(set.last_seq.0 + 1)));
            }
            Step::Renew(number) => {
                let (set, _) = self.set_at(world, world.nodes[usize::from(number)].applied);
                self.commit(world, number, What::Renew(set.epoch));
            }
            Step::Judge(number) => self.judge(world, number)?,
            Step::Read(number) => {
                let asked = if self.lacks(Guard::LeaseAfterData) {
                    self.may_read(world, number)
                } else {
                    self.serving(world, number)
                };
                let (_, data) = self.set_at(world, world.nodes[usize::from(number)].applied);
                world.read = Some(Read { node: number, epoch: asked?, data, due: world.acked });
            }
            Step::Answer => self.answer(world)?,
            other => unreachable!("{other:?} is no step of serving"),
        }
        Some(())
    }

    /// R3: an answer shows every write acknowledged before its request, and none leaves after a later epoch has
    /// acknowledged a write. (The second is stricter than linearizability, which allows an answer of a paused process
    /// hours later, if its request is as old.)
    fn answer(&self, world: &mut World) -> Option<()> {
        let read = world.read.take()?;
        let allowed =
            if self.lacks(Guard::LeaseAfterData) { Some(read.epoch) } else { self.may_read(world, read.node) };
        let same = allowed == Some(read.epoch) || (self.lacks(Guard::EpochUnchanged) && allowed.is_some());
        if !same {
            self.hit(READ_STOPPED);
            return Some(());
        }
        if read.node != 0 {
            self.hit(READ_BY_ANOTHER);
        }
        if read.data < read.due {
            world.broken = Some("R3");
        } else if world.acked_epoch > read.epoch {
            world.broken = Some("R3, late");
        }
        Some(())
    }

    /// SET-S4: no owner is judged before its time to live has passed, on the fastest clock allowed, with a leader to
    /// renew at.
    fn judge(&self, world: &mut World, number: u8) -> Option<()> {
        let now = self.clock(world, number);
        let judged = world.nodes[usize::from(number)].judge.judge(now)?;
        let chances_ms = u64::from(world.chances) * TICK_MS * (100 + DRIFT_PERCENT_MAX) / 100;
        let before = world.log.len();
        self.commit(world, number, What::Judged(number, judged));
        let (old, _) = self.set_at(world, before);
        let (new, _) = self.set_at(world, world.log.len());
        if new.epoch > old.epoch {
            self.hit(JUDGED);
            if chances_ms < u64::from(TTL_MS) {
                world.broken = Some("SET-S4");
            }
            world.chances = 0;
        }
        Some(())
    }
}
