//! A gateway of a life that is over goes on: it hears of the next one from the store alone.

use super::super::model::content;
use super::{Done, World};
use holdfast_front::device::Device;
use holdfast_types::SECTOR_BYTES;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// Late answers in thousandths: most writes are under way when the store's head is looked at.
const LATE: u64 = 900;
/// Time between two writes.
const PAUSE: Duration = Duration::from_millis(50);
/// Writes until the gateway must have looked: some 30 s, it looks every few.
const WRITES_MAX: u32 = 600;

impl World {
    /// A client's device that it keeps to the end of this life; `None` without a volume.
    pub async fn some_device(&mut self) -> Result<Option<Arc<dyn Device>>, String> {
        match self.some_volume() {
            Some((id, _)) => self.device(id).await.map(Some),
            None => Ok(None),
        }
    }

    /// The store's head names another life now. The client writes on until the gateway of this one has seen that; from
    /// then on it answers nothing (HEAD-H1). What it answered before is lost, as ADR 0013 says. Fails when it
    /// answers, or the gateway does not see the other life.
    pub async fn outlive(&mut self, device: Arc<dyn Device>) -> Done {
        let head = self.gateway.server.head.clone();
        {
            let mut order = self.common.journal.order();
            (order.lost, order.late) = (0, LATE);
        }
        let mut writes = 0;
        while head.fenced().is_none() {
            if writes == WRITES_MAX {
                return Err(format!("HEAD-H1: a life that is over goes on after {WRITES_MAX} writes"));
            }
            writes += 1;
            self.tag += 1;
            let _ = device.clone().write(0, content(self.tag, 0, 1), false).await;
            // Also where the connection is closed already: each question counts as use.
            drop(head.before_answer().await);
            sleep(PAUSE).await;
        }
        self.tag += 1;
        let sector = SECTOR_BYTES as u32;
        let asked = [
            ("a write", device.clone().write(0, content(self.tag, 0, 1), false).await),
            ("a trim", device.clone().trim(0, sector, false).await),
            ("zeroes", device.clone().zero(0, sector, true, false).await),
            ("a flush", device.clone().flush().await),
            ("a read", device.read(0, sector).await.map(|_| ())),
        ];
        self.say(|| format!("the former life has seen it after {writes} writes: {asked:?}"));
        match asked.iter().find(|(_, outcome)| outcome.is_ok()) {
            Some((what, _)) => Err(format!("HEAD-H1: {what} is answered by a life that knows that it is over")),
            None => Ok(()),
        }
    }
}
