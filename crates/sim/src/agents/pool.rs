//! What stands on the devices: a pool with a label on one of them that says who has it imported. Imported by force by drivers that do so (`agent::drivers::zfs`), refused else
//! while the label names another host; after an error of its device some pools are suspended, and nothing but a reboot helps.

use super::attaching::{Attaching, By, Outcome};
use super::ledger::{LABEL, Meaning};
use super::lent::Lent;
use crate::model::{self, BLOCK_BYTES, BLOCKS, Broken, Id, Place, VOLUMES};
use std::collections::BTreeMap;

const SUSPENDED: &str = "the pool is suspended: only a reboot lets go of it";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Nothing was asked of the device yet.
    Begin,
    /// So many volumes are still to be read.
    Reading(usize),
    /// The label is to be written.
    Label,
    Writing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Import { force: bool },
    Export,
}

struct Job {
    what: What,
    step: Step,
    found: BTreeMap<Place, Id>,
}

/// See the module.
pub struct Pool {
    /// The host's number.
    host: usize,
    /// An error of its device suspends it: ZFS. Else it can always be let go of.
    suspends: bool,
    imported: bool,
    suspended: bool,
    job: Option<Job>,
    /// Of the job: what comes back of an earlier one is nobody's.
    serial: u64,
    outcome: Option<Result<(), String>>,
}

impl Pool {
    pub fn new(host: usize, suspends: bool) -> Self {
        Self { host, suspends, imported: false, suspended: false, job: None, serial: 0, outcome: None }
    }

    pub fn imported(&self) -> bool {
        self.imported
    }

    /// Imported, and its device does not fail.
    pub fn is_well(&self) -> bool {
        self.imported && !self.suspended
    }

    /// A process that uses it keeps it, by force too.
    pub fn is_kept_by_users(&self) -> bool {
        self.imported && self.suspends
    }

    fn begin(&mut self, what: What, step: Step) {
        self.serial += 1;
        self.outcome = None;
        self.job = Some(Job { what, step, found: BTreeMap::new() });
    }

    fn end(&mut self, outcome: Result<(), String>) {
        self.job = None;
        self.outcome = Some(outcome);
    }

    /// Begins to import it; [`Pool::outcome`] says how that went.
    pub fn import(&mut self, force: bool) {
        if self.suspended {
            self.serial += 1;
            return self.end(Err(SUSPENDED.into()));
        }
        self.imported = false;
        self.begin(What::Import { force }, Step::Begin);
    }

    /// Begins to export it, or, where there is no pool that could be suspended, lets go of it at once (`hard`).
    pub fn export(&mut self, hard: bool) {
        if !self.imported || hard && !self.suspends {
            self.serial += 1;
            self.imported = false;
            return self.end(Ok(()));
        }
        if self.suspended {
            self.serial += 1;
            return self.end(Err(SUSPENDED.into()));
        }
        self.begin(What::Export, Step::Label);
    }

    /// How the last of them went, once it is over.
    pub fn outcome(&mut self) -> Option<Result<(), String>> {
        self.outcome.take()
    }

    /// The device answers with errors, or is gone.
    pub fn failed(&mut self) {
        self.suspended |= self.imported && self.suspends;
        if self.job.is_some() {
            self.end(Err("the device failed".into()));
        }
    }

    /// Goes on.
    pub fn tick(&mut self, device: Option<&Attaching>, lent: &mut Lent<'_>) {
        if self.job.is_none() {
            return;
        }
        let Some(device) = device else {
            return self.end(Err("there is no device".into()));
        };
        if !device.is_there() {
            return;
        }
        let by = By::Pool(self.serial);
        let Some(job) = &mut self.job else { return };
        match job.step {
            Step::Begin => {
                job.step = Step::Reading(VOLUMES);
                for volume in 0..VOLUMES {
                    device.read(lent.model, by, (volume, 0), BLOCKS);
                }
            }
            Step::Label if lent.decided(device.epoch) => {
                job.step = Step::Writing;
                let host = (job.what != What::Export).then_some(self.host);
                let id = lent.model.hand_in(device.epoch, LABEL.0, LABEL.1, 1);
                lent.ledger.mean(id, Meaning::Label { host });
                device.write(lent.model, by, id, LABEL);
            }
            Step::Reading(_) | Step::Label | Step::Writing => {}
        }
    }

    /// Something that it asked of the device came back.
    ///
    /// # Errors
    /// A broken rule.
    pub fn done(
        &mut self,
        serial: u64,
        asked: u64,
        outcome: Outcome,
        epoch: u64,
        lent: &mut Lent<'_>,
    ) -> Result<(), Broken> {
        let of_this = serial == self.serial;
        match outcome {
            Outcome::Failed if of_this => self.failed(),
            Outcome::Failed => {}
            Outcome::Wrote(_) => {
                if let Some(what) = self.job.as_ref().filter(|_| of_this).map(|job| job.what) {
                    self.imported = what != What::Export;
                    self.end(Ok(()));
                }
            }
            Outcome::Read { place: (volume, first), data } => {
                // The first reading of an epoch says what was there before, to the model too.
                let resolves = lent.model.latest_epoch() == epoch && !lent.model.is_current(epoch);
                let mut found = BTreeMap::new();
                for (at, bytes) in data.chunks(BLOCK_BYTES).enumerate() {
                    let id = model::id_of(bytes, volume, first + at)?;
                    if !resolves {
                        lent.model.read(asked, volume, first + at, id)?;
                    }
                    found.insert((volume, first + at), id);
                }
                if of_this {
                    self.has_read(found, epoch, resolves, lent)?;
                }
            }
        }
        Ok(())
    }

    fn has_read(
        &mut self,
        found: BTreeMap<Place, Id>,
        epoch: u64,
        resolves: bool,
        lent: &mut Lent<'_>,
    ) -> Result<(), Broken> {
        let Some(job) = &mut self.job else { return Ok(()) };
        let (Step::Reading(missing), What::Import { force }) = (job.step, job.what) else { return Ok(()) };
        job.found.extend(found);
        if missing > 1 {
            job.step = Step::Reading(missing - 1);
            return Ok(());
        }
        if resolves {
            lent.model.resolve(epoch, &job.found)?;
        }
        let label = job.found.get(&LABEL).and_then(|id| lent.ledger.label(*id)).filter(|host| *host != self.host);
        match label {
            Some(host) if !force => {
                self.end(Err(format!("pool: found it imported by host {}, expected it to be exported", host + 1)));
            }
            label => {
                lent.stats.taken_pools += u64::from(label.is_some());
                job.step = Step::Label;
            }
        }
        Ok(())
    }
}
