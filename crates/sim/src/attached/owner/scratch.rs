//! One block of each volume beside those of the model: its owner writes, trims and zeroes it, one change at a time, and
//! reads it in between. Attach sends trims and zeroings again as it does with writes (ATTACH-M1, ATTACH-M2), and what
//! they leave does not say of which one it is: so a second effect shows only where the order of all changes is known.

use super::{Block, Done, Lent, Owner, Step, What};
use crate::attached::wires::USERS;
use crate::model::{self, BLOCK_BYTES, BLOCKS, Model, VOLUMES};
use crate::sync::lock;
use bytes::Bytes;
use holdfast_attach::requests::RequestError;

const OFFSET: u64 = (BLOCKS * BLOCK_BYTES) as u64;
const LEN: u32 = BLOCK_BYTES as u32;

impl Owner {
    /// Its devices are there: the blocks are read.
    pub(super) fn begin_scratch(&mut self, model: &mut Model) {
        (0..VOLUMES).for_each(|volume| self.read_scratch(model, volume, Step::First));
    }

    /// May hand in requests. Nobody else has the set.
    pub(super) fn play_scratch(&mut self, model: &mut Model) {
        for volume in 0..VOLUMES {
            if self.scratch[volume] != Block::Idle || !self.rng.chance(250) {
                continue;
            }
            match self.rng.chance(400) {
                true => self.read_scratch(model, volume, Step::Read),
                false => self.change_scratch(model, volume),
            }
        }
    }

    fn read_scratch(&mut self, model: &mut Model, volume: usize, step: Step) {
        let user = self.rng.below(USERS as u64) as usize;
        let (device, done, life, asked) =
            (self.devices[volume][user].clone(), self.done.clone(), self.life, model.stamp());
        self.scratch[volume] = Block::Busy;
        self.spawn(async move {
            let outcome = device.read(OFFSET, LEN).await.map(model::bytes_of);
            lock(&done).push(Done { life, asked, what: What::Scratch { volume, step, outcome } });
        });
    }

    fn change_scratch(&mut self, model: &mut Model, volume: usize) {
        let (kind, user) = (self.rng.below(3), self.rng.below(USERS as u64) as usize);
        let (serial, to) = model.scratch[volume].change(kind > 0);
        let mut data = Vec::with_capacity(BLOCK_BYTES);
        if kind == 0 {
            model::fill(&mut data, to, volume, BLOCKS);
        }
        let (device, done, life, asked) =
            (self.devices[volume][user].clone(), self.done.clone(), self.life, model.stamp());
        self.scratch[volume] = Block::Busy;
        self.spawn(async move {
            let changed = match kind {
                0 => device.write(OFFSET, Bytes::from(data)).await,
                1 => device.trim(OFFSET, LEN).await,
                _ => device.zero(OFFSET, LEN).await,
            };
            let (step, outcome) = (Step::Change { serial }, changed.map(|()| Vec::new()));
            lock(&done).push(Done { life, asked, what: What::Scratch { volume, step, outcome } });
        });
    }

    /// An answer. The caller has judged an error.
    pub(super) fn scratch_answered(
        &mut self,
        lent: &mut Lent<'_>,
        volume: usize,
        step: Step,
        outcome: Result<Vec<u8>, RequestError>,
    ) -> Result<(), String> {
        self.scratch[volume] = Block::Unread;
        let Ok(data) = outcome else { return Ok(()) };
        let model = &mut *lent.model;
        match step {
            Step::Change { serial } => model.scratch[volume].answered(serial)?,
            Step::First if model.latest_epoch() != self.epoch => return Ok(()),
            Step::First => model.scratch[volume].resolve(model::id_of(&data, volume, BLOCKS)?)?,
            Step::Read if !model.is_current(self.epoch) => {}
            Step::Read => model.scratch[volume].read(model::id_of(&data, volume, BLOCKS)?)?,
        }
        self.scratch[volume] = Block::Idle;
        Ok(())
    }
}
