//! Connection slots of attached devices: they decide which of several connections counts.
//!
//! A device that reconnects does not know what happened to its old connection. Requests may still be in that
//! connection's receive buffer. Executing one of them after its retry would undo later writes. So:
//!
//! SLOT-S1  A connection of a slot reads its first request only after every earlier connection of that slot has ended:
//!     its reader is gone and its unfinished operations are dropped. (Operations that are sequenced by then remain, and
//!     are ordered before everything new.)
//! SLOT-S2  A slot never goes back: a connection that is not newer than the newest one ever seen is refused, however
//!     late it arrives.
//! SLOT-S3  Newer means a later epoch, or the same epoch and a higher incarnation: each owner starts its own count of
//!     incarnations.
//! SLOT-S4  A connection that follows an older incarnation of the same epoch is served only once all requests of that
//!     one have an outcome. Its client uses what it reads to find out what happened to its unanswered requests, and a
//!     request that is still in progress in the log could be applied after that read. (Requests of an older epoch have
//!     no effect after the grant of a later one: R2.)

use holdfast_nbd::Session;
use holdfast_types::Epoch;
use holdfast_types::sync::LockExt;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;

/// A connection of a slot came too late (SLOT-S2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "connection slot: found epoch {found_epoch} incarnation {found}, expected newer than epoch {newest_epoch} incarnation {newest}"
)]
pub struct StaleIncarnation {
    found_epoch: Epoch,
    found: u64,
    newest_epoch: Epoch,
    newest: u64,
}

/// All slots of one volume at one gateway. The volume's owner keeps them, and drops them with the volume: a set that
/// was deleted and created again under its name begins with epoch 1, and must not be measured by the epochs of the
/// first.
#[derive(Clone, Debug, Default)]
pub struct Slots {
    volume: Arc<Mutex<Volume>>,
}

#[derive(Debug, Default)]
struct Volume {
    /// The latest epoch of any connection of a slot.
    epoch: Epoch,
    slots: BTreeMap<u8, Slot>,
}

#[derive(Debug, Default)]
struct Slot {
    newest: (Epoch, u64),
    /// Connections that have not ended yet, oldest first. There is more than one only while a newer one waits for older
    /// ones.
    living: Vec<Living>,
}

#[derive(Clone, Debug)]
struct Living {
    stop: CancellationToken,
    ended: CancellationToken,
}

/// A place in a slot. Dropping it means that the connection has ended: its reader is gone, its operations are dropped.
#[derive(Debug)]
pub struct SlotPlace {
    slots: Slots,
    slot: u8,
    ended: CancellationToken,
    follows: bool,
}

impl SlotPlace {
    /// Whether an earlier incarnation had this slot under the same epoch (SLOT-S4).
    #[must_use]
    pub const fn follows(&self) -> bool {
        self.follows
    }
}

impl Slots {
    fn lock(&self) -> MutexGuard<'_, Volume> {
        self.volume.locked()
    }

    /// Takes the slot that `session` asks for. Refuses a stale connection (SLOT-S2), tells the older connections to
    /// stop through their `stop`, and returns once they have ended (SLOT-S1). Returns `None` for a plain export, which
    /// has no slots. `stop` is cancelled when a newer connection arrives. A caller that is cancelled while it waits
    /// just drops the future.
    ///
    /// # Errors
    /// The connection is not newer than the newest one seen.
    pub async fn take(
        &self,
        session: Option<Session>,
        epoch: Epoch,
        stop: &CancellationToken,
    ) -> Result<Option<SlotPlace>, StaleIncarnation> {
        let Some(session) = session else { return Ok(None) };
        let ended = CancellationToken::new();
        let (place, older) = {
            let mut volume = self.lock();
            if epoch > volume.epoch {
                volume.epoch = epoch;
                // Connections of an earlier epoch are now refused by the volume's epoch, so ended ones need not be
                // remembered.
                volume.slots.retain(|_, slot| !slot.living.is_empty());
            }
            let newest = volume.slots.get(&session.slot).map_or((volume.epoch, 0), |slot| slot.newest);
            let known = volume.slots.contains_key(&session.slot);
            let found = (epoch, session.incarnation);
            if epoch < volume.epoch || (known && found <= newest) {
                holdfast_reached::reached!("slot: a connection of an earlier epoch", epoch < volume.epoch);
                holdfast_reached::reached!("slot: a connection of an earlier incarnation", epoch == volume.epoch);
                let (newest_epoch, newest) = newest.max((volume.epoch, 0));
                return Err(StaleIncarnation { found_epoch: epoch, found: session.incarnation, newest_epoch, newest });
            }
            let slot = volume.slots.entry(session.slot).or_default();
            let follows = known && slot.newest.0 == epoch;
            slot.newest = found;
            let older = slot.living.clone();
            slot.living.push(Living { stop: stop.clone(), ended: ended.clone() });
            (SlotPlace { slots: self.clone(), slot: session.slot, ended, follows }, older)
        };
        for living in &older {
            holdfast_reached::reached!("slot: a newer connection ends an older one");
            living.stop.cancel();
        }
        for living in &older {
            holdfast_reached::reached!(
                "slot: a newer connection waits for the end of an older one",
                !living.ended.is_cancelled()
            );
            living.ended.cancelled().await;
        }
        Ok(Some(place))
    }
}

impl Drop for SlotPlace {
    fn drop(&mut self) {
        if let Some(slot) = self.slots.lock().slots.get_mut(&self.slot) {
            // Tokens have no identity to compare, so cancel this one first and then remove the cancelled ones.
            self.ended.cancel();
            slot.living.retain(|living| !living.ended.is_cancelled());
        }
        self.ended.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_types::Token;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn session(slot: u8, incarnation: u64) -> Option<Session> {
        Some(Session { token: Token(1), slot, incarnation })
    }

    type Taken = Result<Option<SlotPlace>, StaleIncarnation>;

    /// Polls once. Only tokens wake anything here, so no wake-up is missed.
    fn poll(future: std::pin::Pin<&mut impl Future<Output = Taken>>) -> Poll<Taken> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    fn take(slots: &Slots, session: Option<Session>, epoch: u64, stop: &CancellationToken) -> Taken {
        match poll(pin!(slots.take(session, Epoch(epoch), stop))) {
            Poll::Ready(taken) => taken,
            Poll::Pending => panic!("waits for an older connection"),
        }
    }

    #[test]
    fn s1_a_newer_incarnation_waits_for_the_end_of_all_older_ones() {
        let slots = Slots::default();
        let stops: Vec<CancellationToken> = (0..3).map(|_| CancellationToken::new()).collect();
        let first = take(&slots, session(0, 1), 1, &stops[0]).unwrap();
        let mut third = pin!(slots.take(session(0, 3), Epoch(1), &stops[2]));
        {
            let mut second = pin!(slots.take(session(0, 2), Epoch(1), &stops[1]));
            assert!(poll(second.as_mut()).is_pending());
            assert!(stops[0].is_cancelled(), "the older one is told to stop");
            assert!(poll(third.as_mut()).is_pending());
            assert!(stops[1].is_cancelled());
            // The second one gives up; the third must still wait for the first.
        }
        assert!(poll(third.as_mut()).is_pending(), "SLOT-S1: the first has not ended");
        drop(first);
        let Poll::Ready(Ok(Some(_place))) = poll(third.as_mut()) else { panic!("all have ended") };
        assert!(!stops[2].is_cancelled());
    }

    /// SLOT-S1, from one epoch to the next: the device is the same, and so is its client.
    #[test]
    fn s1_a_later_epoch_waits_for_the_connections_of_the_earlier_one() {
        let slots = Slots::default();
        let stops: Vec<CancellationToken> = (0..2).map(|_| CancellationToken::new()).collect();
        let older = take(&slots, session(0, 50), 7, &stops[0]).unwrap();
        let mut newer = pin!(slots.take(session(0, 1), Epoch(8), &stops[1]));
        assert!(poll(newer.as_mut()).is_pending(), "SLOT-S1: the older one has not ended");
        assert!(stops[0].is_cancelled() && !stops[1].is_cancelled());
        drop(older);
        let Poll::Ready(Ok(Some(place))) = poll(newer.as_mut()) else { panic!("it has ended") };
        assert!(!place.follows(), "SLOT-S4 is about one epoch");
    }

    #[test]
    fn s2_a_slot_never_goes_back() {
        let slots = Slots::default();
        let stop = CancellationToken::new();
        let place = take(&slots, session(3, 5), 7, &stop).unwrap();
        assert!(take(&slots, session(3, 5), 7, &stop).is_err());
        drop(place);
        assert!(take(&slots, session(3, 5), 7, &stop).is_err(), "even after the newer one has ended");
        assert!(take(&slots, session(3, 4), 7, &stop).is_err());
        assert!(take(&slots, session(2, 0), 7, &stop).is_ok(), "another slot has its own count");
    }

    #[test]
    fn s4_an_incarnation_knows_whether_it_follows_one_of_its_epoch() {
        let slots = Slots::default();
        let stop = CancellationToken::new();
        let follows = |slot, incarnation, epoch| {
            take(&slots, session(slot, incarnation), epoch, &stop).unwrap().unwrap().follows()
        };
        assert!(!follows(0, 1, 7), "the first");
        assert!(follows(0, 2, 7), "also when the first one has ended");
        assert!(!follows(1, 2, 7), "another slot");
        assert!(!follows(0, 1, 8), "a later epoch");
        assert!(follows(0, 2, 8));
    }

    #[test]
    fn s3_a_later_epoch_counts_from_anew() {
        let slots = Slots::default();
        let stop = CancellationToken::new();
        drop(take(&slots, session(0, 50), 7, &stop).unwrap());
        drop(take(&slots, session(1, 50), 7, &stop).unwrap());
        drop(take(&slots, session(0, 1), 8, &stop).unwrap());
        assert!(take(&slots, session(0, 51), 7, &stop).is_err());
        let late = take(&slots, session(1, 51), 7, &stop).unwrap_err();
        assert_eq!((late.newest_epoch, late.found_epoch), (Epoch(8), Epoch(7)));
        assert!(take(&slots, session(1, 0), 8, &stop).is_ok());
        assert_eq!(slots.lock().slots.len(), 2, "ended connections of old epochs are dropped");
    }

    #[test]
    fn plain_exports_have_no_slots() {
        let slots = Slots::default();
        for _ in 0..2 {
            assert!(take(&slots, None, 1, &CancellationToken::new()).unwrap().is_none());
        }
        assert!(slots.lock().slots.is_empty());
    }
}
