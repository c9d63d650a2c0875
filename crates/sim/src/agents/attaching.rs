//! The attach process of a host, and the users of its devices.

use crate::attached::kernel::{Habits, User, VolumeDoor};
use crate::attached::wires::{Said, USERS, use_devices, way};
use crate::libc;
use crate::model::{self, BLOCK_BYTES, BLOCKS, Id, Model, Place};
use crate::net::Net;
use crate::slices::Slices;
use crate::sync::lock;
use bytes::Bytes;
use holdfast_attach::requests::{Errno, RequestError};
use holdfast_attach::{AttachError, Ended, Options, Seams};
use holdfast_types::Name;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// The user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// A job of the pool's, by its number.
    Pool(u64),
    /// A run of the database, by its number.
    Database(u64),
}

/// Result of a request, for its user.
pub enum Outcome {
    Wrote(Id),
    Read {
        place: Place,
        data: Vec<u8>,
    },
    /// EIO.
    Failed,
}

enum What {
    Wrote { id: Id, outcome: Result<(), RequestError> },
    Read { place: Place, outcome: Result<Vec<u8>, RequestError> },
}

struct Done {
    by: By,
    /// Model stamp of the request.
    asked: u64,
    what: What,
}

/// See the module.
pub struct Attaching {
    slices: Slices,
    said: Arc<Mutex<Said>>,
    stop: CancellationToken,
    /// It was told to end, or has ended: its devices' connections may end.
    told: bool,
    done: Arc<Mutex<Vec<Done>>>,
    devices: Vec<Vec<User>>,
    /// Of its grant when its devices were there; 0 before.
    pub epoch: u64,
    /// The model's stamp of the first error.
    failed_at: Option<u64>,
}

impl Attaching {
    /// Starts it.
    pub fn start(now: u64, at: usize, net: &Net, options: Options) -> std::io::Result<Self> {
        let slices = Slices::new(now)?;
        let (said, stop): (Arc<Mutex<Said>>, _) = (Arc::default(), CancellationToken::new());
        let doors: Arc<Mutex<BTreeMap<Name, VolumeDoor>>> = Arc::default();
        let listened = doors.clone();
        let clients = move |volume: &Name| {
            let (tx, rx) = mpsc::unbounded_channel();
            lock(&listened).insert(volume.clone(), tx);
            rx
        };
        let seams = Seams { connect: way(at, net, None), clients: Some(Arc::new(clients)), boot_ns: libc::boot };
        let (ready, ended, stopped) = (said.clone(), said.clone(), stop.clone());
        slices.spawn(async move {
            let outcome = holdfast_attach::run_over(options, seams, stopped, move |status| {
                lock(&ready).ready = Some(status.epoch);
                let doors = std::mem::take(&mut *lock(&doors));
                tokio::spawn(use_devices(doors, ready, Habits::default()));
            });
            let outcome = outcome.await;
            lock(&ended).ended = Some(outcome);
        });
        let (done, devices) = (Arc::default(), Vec::new());
        Ok(Self { slices, said, stop, told: false, done, devices, epoch: 0, failed_at: None })
    }

    /// Runs everything ready.
    pub fn slice(&mut self, now: u64) {
        self.slices.run(now, false);
    }

    /// As SIGTERM.
    pub fn end(&mut self) {
        self.told = true;
        self.stop.cancel();
    }

    /// Whether it was told to end.
    pub fn is_told(&self) -> bool {
        self.told
    }

    /// How it ended; returned once.
    pub fn ended(&mut self) -> Option<Result<Ended, AttachError>> {
        let ended = lock(&self.said).ended.take();
        self.told |= ended.is_some();
        ended
    }

    /// The epoch of its devices; returned once.
    pub fn began(&mut self) -> Option<u64> {
        let mut said = lock(&self.said);
        if said.devices.is_empty() {
            return None;
        }
        self.devices = std::mem::take(&mut said.devices);
        self.epoch = said.ready.unwrap_or(0);
        Some(self.epoch)
    }

    /// Its devices can be used.
    pub fn is_there(&self) -> bool {
        !self.devices.is_empty()
    }

    fn user(&self, (volume, block): Place) -> Option<User> {
        // Overlapping places use one connection.
        self.devices.get(volume)?.get(block * USERS / BLOCKS).cloned()
    }

    /// Submits a write of one block, then a flush.
    pub fn write(&self, model: &mut Model, by: By, id: Id, place: Place) {
        let Some(device) = self.user(place) else { return };
        let (done, asked) = (self.done.clone(), model.stamp());
        let mut data = Vec::with_capacity(BLOCK_BYTES);
        model::fill(&mut data, id, place.0, place.1);
        self.slices.spawn(async move {
            let mut outcome = device.write((place.1 * BLOCK_BYTES) as u64, Bytes::from(data)).await;
            if outcome.is_ok() {
                outcome = device.flush().await;
            }
            lock(&done).push(Done { by, asked, what: What::Wrote { id, outcome } });
        });
    }

    /// Asks for some blocks.
    pub fn read(&self, model: &mut Model, by: By, place: Place, blocks: usize) {
        let Some(device) = self.user(place) else { return };
        let (done, asked) = (self.done.clone(), model.stamp());
        self.slices.spawn(async move {
            let read = device.read((place.1 * BLOCK_BYTES) as u64, (blocks * BLOCK_BYTES) as u32).await;
            let outcome = read.map(model::bytes_of);
            lock(&done).push(Done { by, asked, what: What::Read { place, outcome } });
        });
    }

    /// Answers since the last call, each with its user and the time of its request. `taken`: gateways have granted the
    /// set to another owner after this epoch.
    pub fn answers(
        &mut self,
        who: &str,
        model: &mut Model,
        taken: impl Fn(u64) -> bool,
    ) -> Result<Vec<(By, u64, Outcome)>, model::Broken> {
        let done = std::mem::take(&mut *lock(&self.done));
        let mut answers = Vec::with_capacity(done.len());
        for Done { by, asked, what } in done {
            let error = match &what {
                What::Wrote { outcome, .. } => outcome.as_ref().err().cloned(),
                What::Read { outcome, .. } => outcome.as_ref().err().cloned(),
            };
            match error {
                None if self.failed_at.is_some_and(|failed| failed < asked) => {
                    return Err(format!("R8, ATTACH-M5: {who}'s device answered again after it had failed"));
                }
                None => {}
                Some(RequestError::Refused(Errno::Io)) if taken(self.epoch) => {
                    self.failed_at.get_or_insert(model.stamp());
                }
                Some(RequestError::Refused(errno)) => {
                    let epoch = self.epoch;
                    return Err(format!("R8: {who}'s device (e{epoch}) answered {errno:?}, and nobody took the set"));
                }
                // It ends with the process.
                Some(RequestError::Lost(_)) if self.told => {}
                Some(RequestError::Lost(why)) => return Err(format!("R8: {who}'s device was closed: {why}")),
            }
            let outcome = match what {
                What::Wrote { id, outcome: Ok(()) } => {
                    model.answered(id)?;
                    Outcome::Wrote(id)
                }
                What::Read { place, outcome: Ok(data) } => Outcome::Read { place, data },
                What::Wrote { .. } | What::Read { .. } => Outcome::Failed,
            };
            answers.push((by, asked, outcome));
        }
        Ok(answers)
    }
}
