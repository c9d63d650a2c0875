//! Volumes against a simple model: a list of all past changes.

use crate::set::{
    Limit, LimitError, SPACE_REQUESTS_REMEMBERED, SetAnswer, SetCommand, SetRefusal, SetState, VolumeChange,
    acquire_set,
};
use holdfast_types::limits::{VOLUME_SECTORS_MAX, VOLUMES_PER_SET_MAX};
use holdfast_types::{Epoch, Lba, LogId, LogIndex, Name, RequestId, Sectors, VolumeId};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// A set with consecutively numbered entries, in term 1.
struct Run {
    state: SetState,
    index: u64,
}

impl Run {
    fn new() -> Self {
        Self { state: SetState::new(Epoch(0)), index: 0 }
    }

    fn apply(&mut self, command: &SetCommand) -> SetAnswer {
        self.index += 1;
        let answer = self.state.apply(LogId::new(1, self.index), command);
        self.state.self_check();
        answer
    }

    fn change(&mut self, change: VolumeChange, request: u128) -> SetAnswer {
        self.apply(&SetCommand::ChangeVolume { change, request: RequestId(request) })
    }

    fn acquire(&mut self) {
        let token = u128::from(self.index) + 1;
        self.apply(&acquire_set("db", token, 1 << 60 | token, true));
    }
}

fn create(text: &str, size: u64) -> VolumeChange {
    VolumeChange::Create { name: name(text), size: Sectors(size) }
}

fn shrink(volume: u32, from: u64, to: u64, epoch: Epoch) -> VolumeChange {
    VolumeChange::Shrink { volume: VolumeId(volume), from: Sectors(from), to: Sectors(to), epoch }
}

fn done(volume: u32, discarded: Option<u64>) -> SetAnswer {
    SetAnswer::VolumeChanged { volume: VolumeId(volume), discarded: discarded.map(Lba) }
}

#[test]
fn a_late_copy_of_a_shrink_takes_nothing_from_what_grew_again() {
    let mut run = Run::new();
    assert_eq!(run.change(create("a", 100), 1), done(1, None));
    let less = shrink(1, 100, 10, Epoch(0));
    assert_eq!(run.change(less.clone(), 2), done(1, Some(10)));
    assert_eq!(run.state.last_change, LogIndex(2), "VOLUME-V4: no older safety snapshot shows this");
    assert_eq!(run.change(VolumeChange::Grow { volume: VolumeId(1), size: Sectors(100) }, 3), done(1, None));
    // VOLUME-V2: the size is as the copy has seen it.
    assert_eq!(run.change(less, 2), SetAnswer::VolumeChangedBefore);
    assert_eq!(run.state.volumes[&VolumeId(1)].size, Sectors(100));
}

#[test]
fn what_takes_away_is_compared_with_what_was_seen() {
    let mut run = Run::new();
    run.change(create("a", 100), 1);
    run.change(create("b", 100), 2);
    let refused = |answer| match answer {
        SetAnswer::Refused(refusal) => refusal,
        other => panic!("{other:?}"),
    };
    let other = |name_now: &str, size| SetRefusal::VolumeNotAsSeen {
        volume: VolumeId(1),
        name: name(name_now),
        size: Sectors(size),
    };
    assert_eq!(refused(run.change(shrink(1, 99, 10, Epoch(0)), 3)), other("a", 100));
    let delete = |seen: &str, epoch| VolumeChange::Delete { volume: VolumeId(1), name: name(seen), epoch };
    assert_eq!(refused(run.change(delete("b", Epoch(0)), 4)), other("a", 100));
    let rename = |from: &str, to: &str, epoch| VolumeChange::Rename {
        volume: VolumeId(1),
        from: name(from),
        to: name(to),
        epoch,
    };
    assert_eq!(refused(run.change(rename("x", "c", Epoch(0)), 5)), other("a", 100));
    let taken = SetRefusal::NameTaken { volume: VolumeId(2), size: Sectors(100) };
    assert_eq!(refused(run.change(rename("a", "b", Epoch(0)), 6)), taken);
    let grow = SetRefusal::GrowRefused { found: Sectors(101), current: Sectors(100) };
    assert_eq!(refused(run.change(shrink(1, 100, 101, Epoch(0)), 7)), grow);
    // Somebody took the set since.
    run.acquire();
    let (found, current) = (Epoch(0), Some(run.state.epoch));
    for change in [shrink(1, 100, 10, found), delete("a", found), rename("a", "c", found)] {
        assert_eq!(refused(run.change(change, 8)), SetRefusal::WrongEpoch { found, current });
    }
    assert_eq!(run.state.last_change, LogIndex(0), "nothing was taken away");
    assert_eq!(run.state.volumes[&VolumeId(1)].size, Sectors(100));
    assert_eq!(run.change(rename("a", "c", run.state.epoch), 9), done(1, None));
    assert_eq!(run.change(rename("c", "c", run.state.epoch), 10), done(1, None), "its own name is not taken");
}

/// SET-S18.
#[test]
fn a_limit_is_that_of_its_volume_and_ends_with_it() {
    let mut run = Run::new();
    run.change(create("a", 100), 1);
    run.change(create("b", 100), 2);
    let limit = |iops| Limit { iops, bytes_per_s: 0, burst_ms: 1000 };
    let set = |run: &mut Run, volume: Option<u32>, limit, request| {
        let command = SetCommand::SetLimit { volume: volume.map(VolumeId), limit, request: RequestId(request) };
        run.apply(&command)
    };
    assert_eq!(set(&mut run, Some(1), limit(100), 3), SetAnswer::LimitSet);
    assert_eq!(set(&mut run, None, limit(500), 4), SetAnswer::LimitSet);
    assert_eq!((run.state.limits.of(VolumeId(1)), run.state.limits.set), (limit(100), limit(500)));
    assert_eq!(run.state.limits.of(VolumeId(2)), Limit::NONE);
    let gone = SetRefusal::NoSuchVolume { volume: VolumeId(9) };
    assert_eq!(set(&mut run, Some(9), limit(100), 5), SetAnswer::Refused(gone));
    let bad = SetRefusal::BadLimit { error: LimitError::Iops { found: 1 } };
    assert_eq!(set(&mut run, None, limit(1), 6), SetAnswer::Refused(bad));
    // VOLUME-V2: a late copy of the first request.
    assert_eq!(set(&mut run, Some(1), limit(200), 7), SetAnswer::LimitSet);
    assert_eq!(set(&mut run, Some(1), limit(100), 3), SetAnswer::LimitSet);
    assert_eq!(run.state.limits.of(VolumeId(1)), limit(200));
    assert_eq!(run.state.last_change, LogIndex(0), "no content of a volume has changed");
    let delete = VolumeChange::Delete { volume: VolumeId(1), name: name("a"), epoch: run.state.epoch };
    assert_eq!(run.change(delete, 8), done(1, Some(0)));
    assert_eq!(run.change(create("a", 100), 9), done(3, None));
    assert_eq!(run.state.limits.of(VolumeId(3)), Limit::NONE, "another volume of that name");
    assert_eq!(set(&mut run, None, Limit::NONE, 10), SetAnswer::LimitSet);
    assert!(run.state.limits.is_empty(), "{:?}", run.state.limits);
}

#[derive(Clone, Copy, Debug)]
enum Ask {
    Create {
        name: u8,
        size: u64,
    },
    Grow {
        volume: u8,
        size: u64,
    },
    Shrink {
        volume: u8,
        to: u64,
        stale: bool,
    },
    Rename {
        volume: u8,
        to: u8,
        stale: bool,
    },
    Delete {
        volume: u8,
        stale: bool,
    },
    /// A copy of the request this many before the last.
    Copy {
        back: u8,
    },
    Acquire,
}

fn asks() -> impl Strategy<Value = Ask> {
    let size = || prop_oneof![8 => 1u64..100, 1 => Just(0), 1 => Just(VOLUME_SECTORS_MAX + 1)];
    let stale = || prop::bool::weighted(0.15);
    prop_oneof![
        4 => (0u8..6, size()).prop_map(|(name, size)| Ask::Create { name, size }),
        2 => (0u8..8, size()).prop_map(|(volume, size)| Ask::Grow { volume, size }),
        3 => (0u8..8, size(), stale()).prop_map(|(volume, to, stale)| Ask::Shrink { volume, to, stale }),
        2 => (0u8..8, 0u8..6, stale()).prop_map(|(volume, to, stale)| Ask::Rename { volume, to, stale }),
        3 => (0u8..8, stale()).prop_map(|(volume, stale)| Ask::Delete { volume, stale }),
        4 => (0u8..90).prop_map(|back| Ask::Copy { back }),
        1 => Just(Ask::Acquire),
    ]
}

/// A volume in the model.
type Plain = (String, u64);

#[derive(Default)]
struct Model {
    volumes: BTreeMap<u32, Plain>,
    ids: u32,
    carried_out: Vec<u128>,
}

impl Model {
    fn size_fits(size: u64) -> bool {
        (1..=VOLUME_SECTORS_MAX).contains(&size)
    }

    /// The volume, and the sector from which on its content was discarded; `None`: refused.
    fn expect(&mut self, change: &VolumeChange, now: Epoch) -> Option<(u32, Option<u64>)> {
        match change {
            VolumeChange::Create { name, size } => {
                let taken = self.volumes.values().any(|(other, _)| other == name.as_str());
                if taken || !Self::size_fits(size.0) || self.volumes.len() >= VOLUMES_PER_SET_MAX {
                    return None;
                }
                self.ids += 1;
                self.volumes.insert(self.ids, (name.to_string(), size.0));
                Some((self.ids, None))
            }
            VolumeChange::Grow { volume, size } => {
                let (_, present) = self.volumes.get_mut(&volume.0)?;
                if size.0 < *present || !Self::size_fits(size.0) {
                    return None;
                }
                *present = size.0;
                Some((volume.0, None))
            }
            VolumeChange::Shrink { volume, from, to, epoch } => {
                let (_, present) = self.volumes.get_mut(&volume.0)?;
                if *epoch != now || *present != from.0 || to > from || !Self::size_fits(to.0) {
                    return None;
                }
                *present = to.0;
                Some((volume.0, Some(to.0)))
            }
            VolumeChange::Rename { volume, from, to, epoch } => {
                let taken = self.volumes.iter().any(|(id, (other, _))| *id != volume.0 && other == to.as_str());
                let (present, _) = self.volumes.get_mut(&volume.0)?;
                if *epoch != now || present != from.as_str() || taken {
                    return None;
                }
                *present = to.to_string();
                Some((volume.0, None))
            }
            VolumeChange::Delete { volume, name, epoch } => {
                let (present, _) = self.volumes.get(&volume.0)?;
                if *epoch != now || present != name.as_str() {
                    return None;
                }
                self.volumes.remove(&volume.0);
                Some((volume.0, Some(0)))
            }
        }
    }
}

fn named(n: u8) -> Name {
    name(&format!("v{n}"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn volumes_are_what_was_asked_for_in_order(asks in prop::collection::vec(asks(), 1..160)) {
        let (mut run, mut model) = (Run::new(), Model::default());
        let mut asked: Vec<(VolumeChange, u128)> = Vec::new();
        let mut ever: Vec<u32> = Vec::new();
        for ask in asks {
            let epoch = run.state.epoch;
            let seen = |stale: bool| if stale { Epoch(epoch.0 + 1) } else { epoch };
            // Mostly an existing volume; deleted ids occur too.
            let pick = |model: &Model, n: u8| {
                let there: Vec<u32> = model.volumes.keys().copied().collect();
                let id = there.get(usize::from(n)).copied().unwrap_or(u32::from(n) + 1);
                let (name, size) = model.volumes.get(&id).cloned().unwrap_or(("v0".into(), 1));
                (VolumeId(id), Name::new(name).unwrap(), Sectors(size))
            };
            let fresh = 1000 + asked.len() as u128;
            let (change, request) = match ask {
                Ask::Acquire => { run.acquire(); continue; }
                Ask::Copy { back } => match asked.iter().rev().nth(usize::from(back)) {
                    Some((change, request)) => (change.clone(), *request),
                    None => continue,
                },
                Ask::Create { name, size } => (VolumeChange::Create { name: named(name), size: Sectors(size) }, fresh),
                Ask::Grow { volume, size } => {
                    let (volume, ..) = pick(&model, volume);
                    (VolumeChange::Grow { volume, size: Sectors(size) }, fresh)
                }
                Ask::Shrink { volume, to, stale } => {
                    let (volume, _, from) = pick(&model, volume);
                    (VolumeChange::Shrink { volume, from, to: Sectors(to), epoch: seen(stale) }, fresh)
                }
                Ask::Rename { volume, to, stale } => {
                    let (volume, from, _) = pick(&model, volume);
                    (VolumeChange::Rename { volume, from, to: named(to), epoch: seen(stale) }, fresh)
                }
                Ask::Delete { volume, stale } => {
                    let (volume, name, _) = pick(&model, volume);
                    (VolumeChange::Delete { volume, name, epoch: seen(stale) }, fresh)
                }
            };
            let before = run.state.volumes.clone();
            let copy = model.carried_out.iter().rev().take(SPACE_REQUESTS_REMEMBERED).any(|r| *r == request);
            let answer = run.change(change.clone(), request);
            if copy {
                prop_assert_eq!(answer, SetAnswer::VolumeChangedBefore, "VOLUME-V2: {:?}", change);
                prop_assert_eq!(&run.state.volumes, &before, "VOLUME-V2");
                continue;
            }
            match model.expect(&change, epoch) {
                None => prop_assert!(matches!(answer, SetAnswer::Refused(_)), "{change:?}: {answer:?}"),
                Some((volume, discarded)) => {
                    prop_assert_eq!(answer, done(volume, discarded), "{:?}", &change);
                    model.carried_out.push(request);
                    if matches!(change, VolumeChange::Create { .. }) {
                        prop_assert!(!ever.contains(&volume), "VOLUME-V1: id {volume} twice");
                        ever.push(volume);
                    }
                }
            }
            if asked.iter().all(|(_, r)| *r != request) {
                asked.push((change, request));
            }
            let there: BTreeMap<u32, Plain> =
                run.state.volumes.iter().map(|(id, v)| (id.0, (v.name.to_string(), v.size.0))).collect();
            prop_assert_eq!(&there, &model.volumes);
        }
    }
}
