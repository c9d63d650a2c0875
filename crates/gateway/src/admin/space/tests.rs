//! Tests which part of a set's store is kept for which root.

use super::*;
use holdfast_control::set::{Checkpoint, Pin, Snapshot};
use holdfast_seal::DataKey;
use holdfast_set::device::tests::World as Served;
use holdfast_set::head::tests::SET;
use holdfast_set::mapping::SetKey;
use holdfast_store::{Faults, Faulty, Memory, ObjectStore, keys};
use holdfast_types::{Epoch, GroupId, LogId, MemberId, Name, RequestId, Sectors, Term};
use holdfast_volume::map::seal_root;

fn id(random: u128) -> ObjectId {
    ObjectId { term: Term(1), member: MemberId(1), boot: 1, random }
}

fn at(root: u128) -> RootRef {
    RootRef { object: id(root), bytes: 9 }
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// Snapshots by their names and roots, and a checkpoint with a root of its own.
fn state(current: u128, snapshots: &[(&str, u128)]) -> SetState {
    let (mut state, upto) = (SetState::new(Epoch(0)), LogId::new(1, 5));
    state.checkpoint = Some(Checkpoint { upto, root: at(current) });
    for (text, root) in snapshots {
        let (root, request, volumes) = (at(*root), RequestId(1), Default::default());
        let snapshot = Snapshot { upto, root, volumes, request, at_unix_ms: 0, scheduled: false };
        state.snapshots.insert(name(text), snapshot);
    }
    state
}

fn pinned(mut state: SetState, root: u128) -> SetState {
    let (clone, root, upto, at) = (GroupId(9), at(root), LogId::new(1, 5), LogId::new(1, 6));
    state.pins.insert(RequestId(77), Pin { clone, root, upto, snapshot: name("monday"), at });
    state
}

/// A root with its segments, each with its bytes in the store.
fn root(number: u128, segments: &[(u128, u64)]) -> (ObjectId, MapSummary) {
    let mut root = Root::new(LogId::new(1, 5));
    for (object, bytes) in segments {
        root.add_segment(id(1000 + *object), *bytes, Sectors(8));
    }
    (id(number), MapSummary::of(root.objects()))
}

/// The total of all kept bytes, and for each snapshot, by name, the bytes that its deletion frees.
fn kept(state: &SetState, roots: Vec<(ObjectId, MapSummary)>) -> (u64, Vec<(String, u64)>) {
    let mut reply = v1::GetSpaceReply::default();
    tell_kept(state, &roots.into_iter().collect(), &mut reply);
    let own = reply.snapshots.into_iter().map(|found| (found.name, found.unique_bytes));
    (reply.kept_stored_bytes, own.collect())
}

fn expected(of: &[(&str, u64)]) -> Vec<(String, u64)> {
    of.iter().map(|(name, bytes)| ((*name).to_string(), *bytes)).collect()
}

#[test]
fn what_only_a_snapshot_names_is_its_own() {
    let state = state(1, &[("monday", 2), ("tuesday", 3)]);
    let roots = || vec![root(1, &[(1, 10)]), root(2, &[(1, 10), (2, 200), (3, 50)]), root(3, &[(3, 50), (4, 7)])];
    assert_eq!(kept(&state, roots()), (267, expected(&[("monday", 200), ("tuesday", 7)])));
    // A snapshot whose map was not read is left out, and data shared with it counts as the others' own. The caller
    // reports that the answer is not complete.
    let some = roots().into_iter().take(2).collect();
    assert_eq!(kept(&state, some), (260, expected(&[("monday", 250)])));
}

#[test]
fn of_one_checkpoint_no_snapshot_has_anything_of_its_own() {
    let twins = state(1, &[("monday", 2), ("twin", 2)]);
    let roots = || vec![root(1, &[(1, 10)]), root(2, &[(2, 200)])];
    assert_eq!(kept(&twins, roots()), (210, expected(&[("monday", 0), ("twin", 0)])));
    let current = state(2, &[("monday", 2)]);
    assert_eq!(kept(&current, vec![root(2, &[(2, 200)])]), (200, expected(&[("monday", 0)])));
}

/// SET-S13: the clone of a snapshot keeps all its data. The clone of a deleted earlier snapshot keeps the data that
///     both use.
#[test]
fn what_a_clone_shows_goes_with_no_snapshot() {
    let roots = || vec![root(1, &[(1, 10)]), root(2, &[(2, 200), (3, 50)])];
    let cloned = pinned(state(1, &[("monday", 2)]), 2);
    assert_eq!(kept(&cloned, roots()), (260, expected(&[("monday", 0)])));
    let earlier = pinned(state(1, &[("monday", 2)]), 3);
    assert_eq!(earlier.kept_roots(), [at(1), at(2), at(3)], "what is read");
    let all = roots().into_iter().chain([root(3, &[(3, 50), (4, 7)])]).collect();
    assert_eq!(kept(&earlier, all), (267, expected(&[("monday", 200)])));
}

/// One after the other, these reads would take 2.4 s. Those that are not finished in time are left out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn maps_of_snapshots_are_read_several_at_once() {
    let served = Served::over(true, None).await;
    let store = Arc::new(Faulty::new(Memory::new(), 1, Faults::default()));
    let key = SetKey::of(SET, 1, DataKey::from_bytes([6; 32]));
    let empty = Root::new(LogId::new(1, 5));
    let names: Vec<String> = (2..14).map(|number| format!("s{number}")).collect();
    let snapshots: Vec<(&str, u128)> = names.iter().map(String::as_str).zip(2..14).collect();
    for (_, number) in &snapshots {
        store.put_new(&keys::root(SET, id(*number)), seal_root(&empty, key.sealer(id(*number)))).await.unwrap();
    }
    served.server.switch.set("memory", store.clone());
    store.set(Faults { slow: 1000, slow_by: Duration::from_millis(200), ..Faults::default() });
    let (current, mut reply) = (Map::All(Arc::new(empty)), v1::GetSpaceReply::default());
    snapshots_space(&served.server, &state(1, &snapshots), Some(&current), &mut reply).await;
    assert_eq!((reply.snapshots.len(), reply.incomplete), (snapshots.len(), false));
}
