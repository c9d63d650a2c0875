//! Random histories against a flat model: writes, trims, resized and deleted volumes, snapshots, rollbacks, checkpoints
//! with collection, deletion, restarts, takeovers, and former leaders that do not know. Checkpoints fail: their objects
//! arrive in part, or late; their ends are lost, late, or applied unnoticed. At the end the store holds exactly what
//! the state names, cleaned up by the present leader and by a new one.
//!
//! `HOLDFAST_SPACE_HISTORIES=N` runs N of them, `HOLDFAST_SPACE_SEED=S` only the one of that seed; a failure names its
//! seed.

mod world;

use crate::entry::OpKind;
use crate::space::{Confirmed, Garbage, Orphans};
use holdfast_control::set::{
    RetireOf, SetAnswer, SetCommand, SetRefusal, SnapshotId, StoredKind, Volume, VolumeChange,
};
use holdfast_types::{Name, ObjectId, RequestId, Sectors, VolumeId};
use std::collections::BTreeSet;
use std::time::Duration;
use world::{Dice, GRACE, NODES, PAGE, PAGES, USED, VALID, World};

const HISTORIES: u64 = 150;
const STEPS: u64 = 120;

/// A leader processes one dropped root, or one that it believes to be dropped.
fn judge_dropped(world: &mut World, node: usize) {
    if world.leading_ready(node).is_none() {
        return;
    }
    let state = world.nodes[node].machine.state().clone();
    let Some((object, bytes)) = state.dropped.iter().next().map(|(o, b)| (*o, *b)) else { return };
    // Objects of a root that this gateway wrongly believes to be waiting may be gone.
    let at = holdfast_control::set::RootRef { object, bytes };
    if !world.has_root(at) {
        assert!(!world.is_leader(node), "SET-S7: a dropped root is there until it was looked through");
        return;
    }
    let mut garbage = Garbage::of(object, &world.root(at));
    for kept in state.kept_roots() {
        if !world.is_leader(node) && !world.has_root(kept) {
            return;
        }
        garbage.keep(&world.root(kept));
    }
    let entries = garbage.entries(3, None);
    if let Some(led) = &mut world.nodes[node].led {
        led.queue = entries;
    }
}

/// A leader lists the store.
fn sweep(world: &mut World, node: usize) {
    let Some(term) = world.leading_ready(node) else { return };
    let state = world.nodes[node].machine.state().clone();
    // The head may name a root that an earlier leader could not report to the group any more.
    let named = world.head.is_some_and(|(_, _, of)| of == term);
    if !state.dropped.is_empty() || state.rolled_back.is_some() || !named {
        return;
    }
    let Some(led) = &world.nodes[node].led else { return };
    let mut orphans = Orphans::new(term, state.retired.keys().copied(), led.given_up.lapsed(term, &state));
    for kept in state.kept_roots() {
        if !world.is_leader(node) && !world.has_root(kept) {
            return;
        }
        orphans.keep(kept.object, &world.root(kept));
    }
    let found: Vec<(StoredKind, ObjectId)> =
        world.store.keys().copied().filter(|(_, object)| orphans.is_orphan(*object)).collect();
    if let Some(led) = &mut world.nodes[node].led {
        led.given_up.forget(orphans.named_after_all());
        led.queue = orphans.entries(&found, 4);
    }
}

fn propose_queue(world: &mut World, node: usize) {
    let Some(led) = &mut world.nodes[node].led else { return };
    let (term, queue) = (led.term, std::mem::take(&mut led.queue));
    for (of, objects) in queue {
        let answer = world.command(node, &SetCommand::Retire { term, of, objects: objects.clone() });
        if answer == Some(SetAnswer::Retired)
            && matches!(of, RetireOf::GivenUp { .. })
            && let Some(led) = &mut world.nodes[node].led
        {
            led.given_up.forget(objects.iter().map(|stored| stored.object));
            world.given_up += objects.len() as u64;
        }
        // Judged before a rollback, proposed after it: judged again later.
        if matches!(answer, Some(SetAnswer::Refused(SetRefusal::NotCheckpointed { .. }))) {
            return;
        }
        assert!(!matches!(answer, Some(SetAnswer::Refused(_))), "{answer:?}");
    }
}

fn delete(world: &mut World, node: usize, most: usize) {
    let leading = world.leading_ready(node);
    let Some(term) = leading else { return };
    let (now, state) = (world.now, world.nodes[node].machine.state().clone());
    let Some(led) = &mut world.nodes[node].led else { return };
    let due = led.reaper.due(term, now, GRACE, &state, most);
    let Some(confirmed) = led.confirmed else { return };
    let mut gone = Vec::new();
    for stored in due {
        if confirmed.may_delete(now, VALID, leading, &state, stored.object).is_err() {
            continue;
        }
        assert!(world.is_leader(node), "a leader of {term} deletes in {}", world.term);
        assert!(world.truth.retired.contains_key(&stored.object), "{stored:?} was not retired");
        world.store.remove(&(stored.kind, stored.object));
        world.deleted += 1;
        gone.push(stored.object);
    }
    if !gone.is_empty() {
        world.command(node, &SetCommand::Deleted { term, objects: gone });
    }
    world.check_roots();
}

fn confirm(world: &mut World, node: usize) {
    // A quorum answers the leader only.
    let (sent, real) = (world.now, world.is_leader(node));
    if let Some(led) = &mut world.nodes[node].led
        && real
    {
        led.confirmed = Some(Confirmed { term: led.term, sent });
    }
}

fn begin(world: &mut World, node: usize) {
    let Some(term) = world.leading_ready(node) else { return };
    if let Some(SetAnswer::CheckpointBegun { at }) = world.command(node, &SetCommand::CheckpointBegin { term })
        && let Some(led) = &mut world.nodes[node].led
    {
        led.job = Some((at, None));
        led.given_up.begin(at);
    }
}

/// `room`: number of objects that the store accepts.
fn upload(world: &mut World, node: usize, room: u64) {
    let Some((at, None)) = world.nodes[node].led.as_ref().and_then(|led| led.job) else { return };
    if !world.is_leader(node) {
        return;
    }
    world.room = room;
    let root = world.upload(node, at);
    world.room = u64::MAX;
    if let Some(led) = &mut world.nodes[node].led {
        led.job = root.map(|root| (at, Some(root)));
    }
}

/// Fate of a checkpoint's end, after the head names its root.
#[derive(Clone, Copy, Debug)]
enum Ends {
    /// It is applied, and its proposer knows.
    Well,
    /// It is applied, and its proposer does not know (R12).
    Unheard,
    /// It arrives later.
    Late,
    /// It is never proposed.
    Not,
}

/// The head, then the end.
fn end(world: &mut World, node: usize, ends: Ends) {
    let Some(led) = world.nodes[node].led.as_mut().filter(|led| matches!(led.job, Some((_, Some(_))))) else { return };
    let (term, Some((begin, Some(root)))) = (led.term, led.job.take()) else { return };
    let end = SetCommand::CheckpointEnd { term, begin, root };
    if world.commit_head(node, begin, root) {
        match ends {
            Ends::Not => {}
            Ends::Late => world.nodes[node].led.iter_mut().for_each(|led| led.late = Some(end.clone())),
            Ends::Well | Ends::Unheard => {
                let ended = world.command(node, &end) == Some(SetAnswer::CheckpointEnded);
                let heard = ended && matches!(ends, Ends::Well);
                world.nodes[node].led.iter_mut().filter(|_| heard).for_each(|led| led.given_up.ended(begin));
            }
        }
    }
    world.check_roots();
}

/// A late end arrives. Its proposer has given it up.
fn late_end(world: &mut World, node: usize) {
    if let Some(end) = world.nodes[node].led.as_mut().and_then(|led| led.late.take()) {
        world.command(node, &end);
        world.check_roots();
    }
}

/// The set is rolled back to one of its snapshots. `stale`: an earlier checkpoint is under way and continues
/// afterwards: 1 it has only begun, 2 it is uploaded, 3 the head names it. `careless`: a write comes between the safety
/// snapshot and the rollback.
fn rollback(world: &mut World, dice: &mut Dice, stale: u64, careless: bool) {
    let node = world.leader;
    world.catch_up(node, usize::MAX);
    let count = world.truth.snapshots.len() as u64;
    if count == 0 || world.leading_ready(node).is_none() {
        return;
    }
    let id = |(name, found): (&Name, &holdfast_control::set::Snapshot)| SnapshotId {
        name: name.clone(),
        made_by: found.request,
    };
    let Some(to) = world.truth.snapshots.iter().nth(dice.below(count) as usize).map(id) else { return };
    let drawn = RequestId(u128::from(dice.below(1 << 40)));
    let safety = SnapshotId { name: Name::new(format!("safe{}", drawn.0)).unwrap(), made_by: drawn };
    let (name, epoch) = (safety.name.clone(), world.truth.epoch);
    world.command(
        node,
        &SetCommand::SnapshotCreate { name: name.clone(), request: drawn, at_unix_ms: 0, scheduled: false },
    );
    if !careless {
        world.command(node, &SetCommand::Release { epoch, token: None });
    }
    begin(world, node);
    upload(world, node, u64::MAX);
    end(world, node, Ends::Well);
    if careless {
        world.write(VolumeId(1), 0, 8, OpKind::Write);
        world.command(node, &SetCommand::Release { epoch, token: None });
    }
    if stale > 0 {
        begin(world, node);
    }
    if stale > 1 {
        upload(world, node, u64::MAX);
    }
    let mut late = None;
    if stale > 2
        && let Some((begin, Some(root))) = world.nodes[node].led.as_mut().and_then(|led| led.job.take())
        && world.commit_head(node, begin, root)
    {
        late = Some(SetCommand::CheckpointEnd { term: world.term, begin, root });
    }
    let before = world.live.clone();
    let upto = world.truth.snapshots.get(&name).map(|found| found.upto);
    let request = RequestId(1 << 70 | drawn.0);
    let command = SetCommand::Rollback { to, safety: safety.clone(), request };
    if world.command(node, &command) == Some(SetAnswer::RolledBack { now: true }) {
        let shown = upto.map(|upto| &world.at[&upto]);
        assert!(shown == Some(&before), "R4: rolled back over a write that no snapshot shows");
    }
    // On its way since before the rollback.
    if let Some(late) = late {
        world.command(node, &late);
    }
    // A copy of the request, late.
    if dice.below(2) == 0 {
        world.command(node, &command);
    }
    assert!(world.content_of_leader() == world.live, "after a rollback the volumes read as something else");
    // The way back is sometimes deleted, before any checkpoint includes the rollback.
    if dice.below(3) > 0 {
        world.command(node, &SetCommand::SnapshotDelete { name, made_by: safety.made_by });
    }
    if dice.below(2) == 0 {
        world.grant();
    }
}

/// Everything that an undisturbed leader does in the end.
fn settle(world: &mut World) {
    world.land();
    let node = world.leader;
    world.grant();
    world.catch_up(node, usize::MAX);
    begin(world, node);
    upload(world, node, u64::MAX);
    end(world, node, Ends::Well);
    late_end(world, node);
    while !world.nodes[node].machine.state().dropped.is_empty() {
        judge_dropped(world, node);
        propose_queue(world, node);
    }
    sweep(world, node);
    propose_queue(world, node);
    for _ in 0..2 {
        confirm(world, node);
        delete(world, node, usize::MAX);
        world.now = world.now.saturating_add(GRACE);
    }
    confirm(world, node);
    delete(world, node, usize::MAX);
    let state = world.truth.clone();
    assert!(state.retired.is_empty() && state.dropped.is_empty(), "{} retired objects left", state.retired.len());
    let mut named = BTreeSet::new();
    for kept in state.kept_roots() {
        named.insert((StoredKind::Root, kept.object));
        named.extend(world.root(kept).names().map(|named| (named.kind, named.object)));
    }
    let there: BTreeSet<_> = world.store.keys().copied().collect();
    let leaked: Vec<_> = there.difference(&named).collect();
    let lost: Vec<_> = named.difference(&there).collect();
    assert!(leaked.is_empty() && lost.is_empty(), "leaked {leaked:?}, lost {lost:?}");
    assert!(world.content_of_leader() == world.live, "the volumes read as something else");
}

/// The leader has seen the retired objects and was confirmed; then it is paused for the whole grace period while
/// `other` is elected. When it resumes, it believes to lead.
fn paused(world: &mut World, other: usize) {
    let old = world.leader;
    world.catch_up(old, usize::MAX);
    delete(world, old, 0);
    confirm(world, old);
    world.now = world.now.saturating_add(GRACE);
    if other != old {
        world.takeover(other);
    }
    delete(world, old, usize::MAX);
    sweep(world, old);
    judge_dropped(world, old);
    propose_queue(world, old);
}

/// A volume is made, resized or deleted; or a late copy of such a request arrives.
fn volumes(world: &mut World, dice: &mut Dice) {
    let there: Vec<(VolumeId, Volume)> = world.truth.volumes.iter().map(|(id, v)| (*id, v.clone())).collect();
    let (epoch, again) = (world.truth.epoch, dice.below(3) == 0);
    let Some((volume, Volume { name, size: from })) = there.get(dice.below(4) as usize).cloned() else {
        let name = Name::new(format!("v{}", dice.below(6))).unwrap();
        world.change(VolumeChange::Create { name, size: Sectors(PAGES * PAGE) }, false);
        return;
    };
    // Anywhere: in the middle of an extent, of a page, at its end.
    let size = 1 + dice.below(PAGES) * PAGE + dice.below(USED);
    match dice.below(8) {
        0..=3 if size <= from.0 => {
            world.change(VolumeChange::Shrink { volume, from, to: Sectors(size), epoch }, again);
        }
        0..=4 => world.change(VolumeChange::Grow { volume, size: Sectors(PAGES * PAGE) }, again),
        5..=6 => {
            if let Some(command) = world.late.pop() {
                let before = world.live.clone();
                let answer = world.command(world.leader, &command);
                assert!(
                    matches!(answer, None | Some(SetAnswer::VolumeChangedBefore | SetAnswer::Refused(_))),
                    "{answer:?}"
                );
                assert!(before == world.live, "R12: a late copy took something away");
            }
        }
        _ => world.change(VolumeChange::Delete { volume, name, epoch }, again),
    }
}

fn step(world: &mut World, dice: &mut Dice) {
    let (leader, any) = (world.leader, dice.below(NODES as u64) as usize);
    match dice.below(104) {
        0..=2 => volumes(world, dice),
        3..=29 => {
            // Mostly an existing one.
            let there: Vec<VolumeId> = world.truth.volumes.keys().copied().collect();
            let volume = there.get(dice.below(3) as usize).copied().unwrap_or(VolumeId(1));
            let lba = dice.below(PAGES) * PAGE + dice.below(USED / 8) * 8;
            let room = USED - lba % PAGE;
            let kind = if dice.below(4) == 0 { OpKind::Trim } else { OpKind::Write };
            let sectors = (1 + dice.below(40)).min(room);
            // Now and then a trim of everything.
            if kind == OpKind::Trim && dice.below(8) == 0 {
                world.write(volume, 0, PAGES * PAGE, kind);
            } else {
                world.write(volume, lba, sectors, kind);
            }
        }
        30..=34 => {
            let name = Name::new(format!("s{}", dice.below(4))).unwrap();
            let request = RequestId(u128::from(dice.below(1 << 40)));
            world.command(leader, &SetCommand::SnapshotCreate { name, request, at_unix_ms: 0, scheduled: false });
        }
        35..=38 => {
            let name = Name::new(format!("s{}", dice.below(4))).unwrap();
            let made_by = world.truth.snapshots.get(&name).map_or(RequestId(0), |found| found.request);
            world.command(leader, &SetCommand::SnapshotDelete { name, made_by });
        }
        39..=46 => begin(world, leader),
        47..=56 => {
            let room = if dice.below(4) == 0 { dice.below(4) } else { u64::MAX };
            upload(world, leader, room);
        }
        57..=65 => {
            let node = if dice.below(8) == 0 { any } else { leader };
            let ends = match dice.below(12) {
                0..=1 => Ends::Not,
                2 => Ends::Late,
                3 => Ends::Unheard,
                _ => Ends::Well,
            };
            end(world, node, ends);
        }
        66..=67 => {
            let (stale, careless) = (dice.below(4), dice.below(8) == 0);
            rollback(world, dice, stale, careless);
        }
        68..=71 => judge_dropped(world, any),
        72..=76 => propose_queue(world, any),
        77..=79 => sweep(world, any),
        80..=83 => confirm(world, leader),
        84..=88 => delete(world, any, 1 + dice.below(6) as usize),
        89 => world.now = world.now.saturating_add(Duration::from_millis(200)),
        90..=91 => world.now = world.now.saturating_add(GRACE / 2),
        92 => world.takeover(any),
        93 => paused(world, any),
        94 => world.restart(any),
        95..=97 => {
            world.catch_up(any, dice.below(20) as usize);
        }
        98 => world.grant(),
        99..=100 => late_end(world, leader),
        101..=102 => world.land(),
        _ => {
            let root = world.truth.checkpoint.map(|c| c.root);
            let now = world.now;
            world.readers.extend(root.map(|root| (now, root)));
        }
    }
}

fn history(seed: u64) -> [u64; 6] {
    // A third of them with whole roots, a third always in leaves, a third alternating.
    let in_leaves: fn(u128) -> bool = match seed % 3 {
        0 => |_| false,
        1 => |_| true,
        _ => |drawn| drawn % 3 != 0,
    };
    let mut world = World::new(in_leaves);
    let mut dice = Dice(seed);
    for _ in 0..STEPS {
        step(&mut world, &mut dice);
        world.truth.self_check();
    }
    world.catch_up(world.leader, usize::MAX);
    assert!(world.content_of_leader() == world.live, "the volumes read as something else");
    // SPACE-G4: the leader finds the objects that it gave up itself, and a new leader those of others.
    settle(&mut world);
    world.takeover((world.leader + 1) % NODES);
    settle(&mut world);
    [world.moved, world.deleted, world.rolled_back, world.discarded, world.leaves, world.given_up]
}

#[expect(clippy::disallowed_methods, reason = "the environment says which history is run, and how many")]
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

#[test]
fn the_store_holds_what_the_state_names() {
    if let Some(seed) = number("HOLDFAST_SPACE_SEED") {
        println!("seed {seed}: {:?}", history(seed));
        return;
    }
    let mut sums = [0; 6];
    for seed in 0..number("HOLDFAST_SPACE_HISTORIES").unwrap_or(HISTORIES) {
        let done = std::panic::catch_unwind(|| history(seed));
        let Ok(done) = done else { panic!("history of seed {seed}: HOLDFAST_SPACE_SEED={seed} runs it alone") };
        sums.iter_mut().zip(done).for_each(|(sum, more)| *sum += more);
    }
    let [moved, deleted, rolled_back, discarded, leaves, given_up] = sums;
    println!(
        "{moved} sectors moved, {deleted} objects deleted, {rolled_back} rollbacks, {discarded} shrinks and deletions, {leaves} leaves, \
         {given_up} objects of failed checkpoints"
    );
    let few = number("HOLDFAST_SPACE_HISTORIES").is_some_and(|most| most < 2);
    assert!(
        few || sums.iter().all(|sum| *sum > 0),
        "expected moves and deletions in this test, found none of some kind"
    );
}
