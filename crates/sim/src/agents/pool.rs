//! Pool on the devices, with a label that names its importing host. Some drivers import by force
//! (`agent::drivers::zfs`); without force, a label of another host is refused. After an error of its device some pools
//! are suspended, and only a reboot helps.

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
    /// This many volumes remain to be read.
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
    /// An error of its device suspends it (ZFS). Otherwise it can always be exported.
    suspends: bool,
    imported: bool,
    suspended: bool,
    job: Option<Job>,
    /// Number of the job: answers to an earlier one are ignored.
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

    /// Whether a process uses it: then even force cannot export it.
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

    /// Begins to import it; see [`Pool::outcome`] for the result.
    pub fn import(&mut self, force: bool) {
        if self.suspended {
            self.serial += 1;
            return self.end(Err(SUSPENDED.into()));
        }
        self.imported = false;
        self.begin(What::Import { force }, Step::Begin);
    }

    /// Begins to export it. With `hard`, and unless it may be suspended, at once.
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

    /// Result of the last job, once it is over.
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

    /// Handles an answer of its device.
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
                // The first reading of an epoch defines the content before it, also for the model.
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
