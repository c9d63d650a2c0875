//! A set that begins with its former life's content in the store; and how the epochs of a set's lives are kept apart.

use super::state::{Checkpoint, RootRef, SetState, Volume};
use holdfast_types::{Epoch, LogId, VolumeId};
use serde::{Deserialize, Serialize};

/// The generation of a set that was never recovered.
pub const FIRST_GENERATION: u64 = 1;

/// Most generations: each has 2^48 log indexes for its epochs, and all of them fit 63 bits.
pub const GENERATION_MAX: u64 = 1 << 15;

/// Bits of an epoch for a generation's log indexes: 2^48 entries are 89 years at 100,000 a second.
const INDEX_BITS: u32 = 48;

/// Lower bound of this generation's epochs; epochs of earlier generations are at or below it.
pub fn epoch_base(generation: u64) -> Epoch {
    Epoch(generation.saturating_sub(FIRST_GENERATION).min(GENERATION_MAX - 1) << INDEX_BITS)
}

/// Content of a set in a checkpoint, from which a set can begin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restored {
    /// By id, ascending.
    pub volumes: Vec<(VolumeId, Volume)>,
    /// The lowest unused volume id.
    pub next_volume: u32,
    /// The map; `None` where nothing was ever uploaded.
    pub root: Option<RootRef>,
}

impl Restored {
    /// The content of a checkpoint of `state`, except its map.
    pub fn of(state: &SetState, root: Option<RootRef>) -> Self {
        let volumes = state.volumes.iter().map(|(id, volume)| (*id, volume.clone())).collect();
        Self { volumes, next_volume: state.next_volume, root }
    }
}

impl SetState {
    /// A free set that begins with `restored`. Its log begins anew, so the root covers everything before the first
    /// entry; every epoch is above `base_epoch`.
    pub fn restored(base_epoch: Epoch, restored: &Restored) -> Self {
        let mut state = Self::new(base_epoch);
        state.volumes = restored.volumes.iter().cloned().collect();
        let above = restored.volumes.iter().map(|(id, _)| id.0.saturating_add(1)).max().unwrap_or(1);
        state.next_volume = restored.next_volume.max(above).max(1);
        state.checkpoint = restored.root.map(|root| Checkpoint { upto: LogId::default(), root });
        state
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::set::{SetAnswer, SetCommand, VolumeChange, acquire_set, create_volume};
    use holdfast_types::{MemberId, Name, ObjectId, RequestId, Term};

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    #[test]
    fn generations_do_not_share_epochs() {
        assert_eq!(epoch_base(0), Epoch(0));
        assert_eq!(epoch_base(FIRST_GENERATION), Epoch(0), "a set that was never recovered");
        for generation in [1, 2, 3, 100, GENERATION_MAX - 1] {
            let last = epoch_base(generation).0 + (1 << INDEX_BITS) - 1;
            assert!(epoch_base(generation + 1).0 > last, "R6: generation {generation}");
        }
        assert!(epoch_base(u64::MAX).0 < 1 << 63);
    }

    #[test]
    fn a_restored_set_goes_on_above_its_former_life() {
        let object = ObjectId { term: Term(9), member: MemberId(1), boot: 2, random: 3 };
        let root = RootRef { object, bytes: 77 };
        let mut old = SetState::new(epoch_base(1));
        for (index, volume) in [(1, "a"), (2, "b"), (3, "c")] {
            old.apply(LogId::new(4, index), &create_volume(volume, 8));
        }
        let gone = VolumeChange::Delete { volume: VolumeId(3), name: name("c"), epoch: old.epoch };
        old.apply(LogId::new(4, 4), &SetCommand::ChangeVolume { change: gone, request: RequestId(9) });
        let restored = Restored::of(&old, Some(root));
        let mut new = SetState::restored(epoch_base(2), &restored);
        new.self_check();
        assert_eq!(new.volumes, old.volumes);
        assert_eq!(new.checkpoint, Some(Checkpoint { upto: LogId::default(), root }));
        let created = new.apply(LogId::new(1, 3), &create_volume("c", 8));
        assert_eq!(
            created,
            SetAnswer::VolumeChanged { volume: VolumeId(4), discarded: None },
            "VOLUME-V1: not that of a deleted one either"
        );
        let acquire = acquire_set("db1", 1, 1, false);
        let SetAnswer::Granted(lease) = new.apply(LogId::new(1, 4), &acquire) else { panic!("not granted") };
        assert!(lease.epoch > Epoch(1 << 40), "R6: {}", lease.epoch);
        // The next checkpoint replaces the restored one.
        new.apply(LogId::new(1, 5), &SetCommand::CheckpointBegin { term: Term(1) });
        new.self_check();
    }

    #[test]
    fn an_empty_beginning_is_a_new_set() {
        assert_eq!(SetState::restored(Epoch(7), &Restored::default()), SetState::new(Epoch(7)));
    }
}
