//! A database in place of PostgreSQL: numbered commits, one block each, in a ring over the set's volumes. It begins by
//! reading everything. It acknowledges a commit once that and all before it are flushed. An error of its device ends it
//! (no fsync is retried).
//!
//! Its processes end only once the kernel has answered their device requests: killed while the device waits, they
//! remain, and do nothing more.

use super::attaching::{Attaching, By, Outcome};
use super::bug::Bug;
use super::ledger::{End, Meaning, UNDER_WAY_MAX, place_of};
use super::lent::Lent;
use crate::model::{self, BLOCK_BYTES, BLOCKS, Broken, Id, Place, VOLUMES};
use crate::rng::Rng;
use crate::world::MS;
use holdfast_agent::machine::{DatabaseView, Stop};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Gone,
    /// It is being started; from the given time on it reads.
    Launching(Option<u64>),
    /// This many volumes remain to be read.
    Recovering(usize),
    Ready,
    /// A fast stop: nothing new is begun.
    Ending,
    /// Killed, or ending: it only waits for the kernel's answers.
    Dying,
}

/// See the module.
pub struct Database {
    phase: Phase,
    rng: Rng,
    /// The host's name.
    who: String,
    bug: Option<Bug>,
    /// Number of this run: answers to an earlier run are ignored.
    serial: u64,
    epoch: u64,
    /// Not heard or seen before this moment of the world.
    hung_until: u64,
    hangs: bool,
    found: BTreeMap<Place, Id>,
    /// Last acknowledged commit when it began to read.
    least: u64,
    end: End,
    acknowledged: u64,
    /// By number: the write, and whether it is flushed.
    under_way: BTreeMap<u64, (Id, bool)>,
    /// Requests without an answer from the kernel.
    in_flight: usize,
    reads: usize,
    next_at: u64,
    /// A commit is wanted, even without clients; and the number that it got.
    wanted: bool,
    wanted_number: Option<u64>,
    /// Everything is to be read again; the remaining volumes, and the number of completed passes.
    pub sweep: bool,
    sweeping: usize,
    pub swept: u64,
}

impl Database {
    pub fn new(who: &str, rng: Rng, bug: Option<Bug>) -> Self {
        Self {
            phase: Phase::Gone,
            rng,
            who: who.into(),
            bug,
            serial: 0,
            epoch: 0,
            hung_until: 0,
            hangs: false,
            found: BTreeMap::new(),
            least: 0,
            end: End::default(),
            acknowledged: 0,
            under_way: BTreeMap::new(),
            in_flight: 0,
            reads: 0,
            next_at: 0,
            wanted: false,
            wanted_number: None,
            sweep: false,
            sweeping: 0,
            swept: 0,
        }
    }

    /// Whether it can still begin something, or tell a client something.
    pub fn lives(&self) -> bool {
        !matches!(self.phase, Phase::Gone | Phase::Dying)
    }

    /// Whether a process of it exists.
    pub fn is_there(&self) -> bool {
        self.phase != Phase::Gone
    }

    pub fn is_ready(&self) -> bool {
        self.phase == Phase::Ready
    }

    /// Whether all clients' device requests are answered.
    pub fn is_quiet(&self) -> bool {
        self.in_flight == 0 && !matches!(self.phase, Phase::Launching(_) | Phase::Recovering(_))
    }

    /// It does nothing until then.
    pub fn hang(&mut self, until: u64) {
        (self.hung_until, self.hangs) = (until, true);
    }

    /// Starts it on the pool.
    pub fn start(&mut self) -> Result<(), String> {
        if self.phase != Phase::Gone {
            return Err(format!("the database is there already: {:?}", self.phase));
        }
        self.serial += 1;
        (self.phase, self.hung_until, self.hangs, self.next_at) = (Phase::Launching(None), 0, false, 0);
        self.under_way.clear();
        self.found.clear();
        (self.reads, self.sweeping, self.wanted, self.wanted_number) = (0, 0, false, None);
        Ok(())
    }

    /// As a signal.
    pub fn stop(&mut self, how: Stop) {
        match (self.phase, how) {
            (Phase::Gone | Phase::Dying, _) => {}
            (Phase::Ready | Phase::Ending, Stop::Fast) => self.phase = Phase::Ending,
            _ => self.die(),
        }
        self.settle();
    }

    fn die(&mut self) {
        self.sweep |= self.sweeping > 0;
        self.phase = Phase::Dying;
    }

    /// It ends by itself, or is killed.
    pub fn crash(&mut self) {
        if self.is_there() {
            self.die();
            self.settle();
        }
    }

    /// The machine lost its power.
    pub fn lost_power(&mut self) {
        self.in_flight = 0;
        self.crash();
    }

    /// All its device requests are answered with an error.
    pub fn device_gone(&mut self) {
        let waited = self.in_flight > 0;
        self.in_flight = 0;
        // Without an open request it notices at its next one.
        if waited {
            self.die();
        }
        self.settle();
    }

    fn settle(&mut self) {
        let over = match self.phase {
            Phase::Dying => self.in_flight == 0,
            Phase::Ending => self.in_flight == 0 && self.under_way.is_empty(),
            _ => false,
        };
        if over {
            self.phase = Phase::Gone;
        }
    }

    /// The agent's view of it.
    pub fn look(&self) -> DatabaseView {
        match self.phase {
            Phase::Gone => DatabaseView::Gone,
            Phase::Ready if self.hangs => DatabaseView::Silent,
            Phase::Ready => DatabaseView::Ready,
            Phase::Ending => DatabaseView::Ending,
            Phase::Launching(_) | Phase::Recovering(_) | Phase::Dying => DatabaseView::Busy,
        }
    }

    /// Asks for a commit without a client. False: it takes none.
    pub fn want(&mut self) -> bool {
        (self.wanted, self.wanted_number) = (self.phase == Phase::Ready, None);
        self.wanted
    }

    /// Whether that commit is done; none if it never will be.
    pub fn has_done(&self) -> Option<bool> {
        if self.phase != Phase::Ready {
            return None;
        }
        Some(!self.wanted && self.wanted_number.is_some_and(|number| number <= self.acknowledged))
    }

    /// Runs it up to now. True: it has just ended, since its device is gone.
    pub fn tick(&mut self, device: Option<&Attaching>, lent: &mut Lent<'_>) -> Result<bool, Broken> {
        self.hangs = lent.now < self.hung_until;
        if !self.lives() || self.hangs {
            return Ok(false);
        }
        let Some(device) = device else {
            let needs = self.phase != Phase::Ready || lent.busy || self.wanted;
            if needs {
                self.in_flight = 0;
                self.crash();
            }
            return Ok(needs);
        };
        if !device.is_there() {
            return Ok(false);
        }
        match self.phase {
            Phase::Launching(None) => self.phase = Phase::Launching(Some(lent.now + self.rng.range(5, 80) * MS)),
            Phase::Launching(Some(at)) if lent.now >= at => {
                (self.epoch, self.least) = (device.epoch, lent.ledger.acknowledged());
                self.phase = Phase::Recovering(VOLUMES);
                self.read_all(device, lent);
            }
            Phase::Ready => self.serve(device, lent)?,
            Phase::Launching(_) | Phase::Recovering(_) | Phase::Ending | Phase::Gone | Phase::Dying => {}
        }
        Ok(false)
    }

    fn read_all(&mut self, device: &Attaching, lent: &mut Lent<'_>) {
        for volume in 0..VOLUMES {
            self.in_flight += 1;
            device.read(lent.model, By::Database(self.serial), (volume, 0), BLOCKS);
        }
    }

    fn serve(&mut self, device: &Attaching, lent: &mut Lent<'_>) -> Result<(), Broken> {
        if self.sweep && self.sweeping == 0 {
            (self.sweep, self.sweeping) = (false, VOLUMES);
            self.read_all(device, lent);
        }
        if !self.wanted && (!lent.busy || lent.now < self.next_at) {
            return Ok(());
        }
        let room = self.end.number < self.acknowledged + UNDER_WAY_MAX;
        if room && lent.decided(self.epoch) && (self.wanted || self.rng.chance(500)) {
            self.commit(device, lent);
            if self.bug == Some(Bug::ToldUnflushed) {
                self.under_way.values_mut().for_each(|(_, flushed)| *flushed = true);
                self.tell(lent)?;
            }
        }
        if lent.busy && self.reads < 4 && self.rng.chance(400) {
            let blocks = self.rng.range(1, 6) as usize;
            let first = self.rng.below((BLOCKS - blocks + 1) as u64) as usize;
            let volume = self.rng.below(VOLUMES as u64) as usize;
            (self.in_flight, self.reads) = (self.in_flight + 1, self.reads + 1);
            device.read(lent.model, By::Database(self.serial), (volume, first), blocks);
        }
        self.next_at = lent.now + self.rng.range(0, 12 * MS);
        Ok(())
    }

    fn commit(&mut self, device: &Attaching, lent: &mut Lent<'_>) {
        let number = self.end.number + 1;
        let place = place_of(number);
        let id = lent.model.hand_in(self.epoch, place.0, place.1, 1);
        lent.ledger.mean(id, Meaning::Commit { number, before: self.end.id });
        device.write(lent.model, By::Database(self.serial), id, place);
        self.in_flight += 1;
        self.under_way.insert(number, (id, false));
        self.end = End { number, id };
        if self.wanted {
            (self.wanted, self.wanted_number) = (false, Some(number));
        }
    }

    /// Handles an answer of its device. True: it has ended because of it.
    pub fn done(&mut self, serial: u64, asked: u64, outcome: Outcome, lent: &mut Lent<'_>) -> Result<bool, Broken> {
        if serial != self.serial {
            return Ok(false);
        }
        self.in_flight = self.in_flight.saturating_sub(1);
        let mut failed = false;
        match outcome {
            Outcome::Failed => {
                failed = self.lives();
                self.crash();
            }
            Outcome::Wrote(id) => {
                if let Some((_, flushed)) = self.under_way.values_mut().find(|(write, _)| *write == id) {
                    *flushed = true;
                }
                if self.lives() {
                    self.tell(lent)?;
                }
            }
            Outcome::Read { place, data } => self.has_read(asked, place, &data, lent)?,
        }
        self.settle();
        Ok(failed)
    }

    /// Acknowledges flushed commits, in order.
    fn tell(&mut self, lent: &mut Lent<'_>) -> Result<(), Broken> {
        while let Some(first) = self.under_way.first_entry().filter(|first| first.get().1) {
            let (number, (id, _)) = first.remove_entry();
            lent.ledger.acknowledge(&self.who, self.epoch, number, id)?;
            self.acknowledged = number;
        }
        Ok(())
    }

    fn has_read(&mut self, asked: u64, (volume, first): Place, data: &[u8], lent: &mut Lent<'_>) -> Result<(), Broken> {
        let mut found = BTreeMap::new();
        for (at, bytes) in data.chunks(BLOCK_BYTES).enumerate() {
            let id = model::id_of(bytes, volume, first + at)?;
            lent.model.read(asked, volume, first + at, id)?;
            found.insert((volume, first + at), id);
        }
        match self.phase {
            Phase::Recovering(missing) => {
                self.found.extend(found);
                self.phase = Phase::Recovering(missing - 1);
                if missing == 1 {
                    self.recovered(lent)?;
                }
            }
            Phase::Ready | Phase::Ending if data.len() == BLOCKS * BLOCK_BYTES => {
                self.sweeping = self.sweeping.saturating_sub(1);
                self.swept += u64::from(self.sweeping == 0);
            }
            Phase::Ready | Phase::Ending => self.reads = self.reads.saturating_sub(1),
            Phase::Gone | Phase::Launching(_) | Phase::Dying => {}
        }
        Ok(())
    }

    fn recovered(&mut self, lent: &mut Lent<'_>) -> Result<(), Broken> {
        let (mut end, mut log) = lent.ledger.read(&std::mem::take(&mut self.found));
        if self.bug == Some(Bug::SkipsCommits) && log.len() > 1 {
            log.pop_last();
            end = log.last_key_value().map_or(End::default(), |(number, id)| End { number: *number, id: *id });
        }
        lent.ledger.recover(&self.who, self.epoch, end, &log, self.least)?;
        lent.log
            .push(format!("the database of {} has recovered up to commit {} (e{})", self.who, end.number, self.epoch));
        (self.end, self.acknowledged, self.phase) = (end, end.number, Phase::Ready);
        Ok(())
    }
}
