//! Histories with clones: a set and a clone of it over one store, each with its own world; a group 0 that numbers sets;
//! and sometimes the loss of all gateways, after which both come back from the store (ADR 0028).
//!
//! ```text
//!   origin: its steps ─▶ a snapshot ─▶ pin ─▶ the head names it ─▶ root, group 0 ─▶ clone: its steps, from the snapshot's content on
//!                                       └─▶ the clone is not made: the pin is released once its number is passed
//!   all gateways lost ─▶ each set continues from its head, in a new group 0, with a new log; pins, clones and snapshots as before
//! ```

use super::gateway::{Common, Others, name};
use super::keys::{set_key, wrapped};
use super::model::Volumes;
use super::store::Weather;
use super::sums::Sums;
use super::units::{GATEWAYS, STEP, STEPS};
use super::world::{PATIENCE, World};
use crate::rng::Rng;
use crate::sync::lock;
use holdfast_control::cluster::{ClusterAnswer, ClusterCommand, ClusterState, Member, MemberRole, Standing};
use holdfast_control::set::{
    CloneOf, Pin, PinStanding, Restored, RootRef, SetAnswer, SetCommand, Snapshot, SnapshotId,
};
use holdfast_seal::ring_ids;
use holdfast_set::clones::first_root;
use holdfast_set::head;
use holdfast_set::mapping::SetKey;
use holdfast_store::{Health, StoreError, keys};
use holdfast_types::{Epoch, GroupId, LogId, MemberId, Name, ObjectId, RequestId, SetId, Term};
use holdfast_volume::head::{Head, Keyring, read_keyring, seal_head};
use holdfast_volume::map::seal_root;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::time::sleep;

/// One in this many histories has clones.
const ONE_IN: u64 = 4;
/// Tries to see a pin in the store's head before the caller gives up.
const NAMED_TRIES: u32 = 100;
/// Tries of a raise, like an administrator who repeats it.
const RAISE_TRIES: u32 = 20;
/// Of a thousand losses of all gateways, how many are none: a recovery was asked for, and they go on for a while.
const OUTLIVES: u64 = 250;
/// First write number of a clone: it distinguishes its writes from its origin's.
const CLONE_TAGS: u32 = 1 << 24;

/// Whether the history of this seed has clones.
pub fn in_history(seed: u64) -> bool {
    seed % ONE_IN == 3
}

struct Pair {
    seed: u64,
    rng: Rng,
    others: Arc<Others>,
    origin: World,
    clone: Option<World>,
    loud: bool,
    /// First term of the next clone: its number may be that of one that was lost before it had a head.
    clone_term: Term,
    clones: u64,
    recoveries: u64,
    came_back: u64,
    sums: Sums,
}

/// The history of `seed`, whose origin is `world`.
pub async fn history(seed: u64, world: World, steps: Option<u64>, loud: bool) -> Result<Sums, String> {
    let mut pair = Pair::new(seed, world, loud).await;
    let drawn = pair.rng.range(STEPS.0, STEPS.1) * 2;
    let steps = steps.map_or(drawn, |steps| steps.min(drawn));
    for step in 0..steps {
        STEP.store(step, Relaxed);
        pair.step().await.map_err(|e| format!("step {step} of {steps}: {e}"))?;
    }
    STEP.store(steps, Relaxed);
    pair.come_to_rest().await.map_err(|e| format!("after {steps} steps: {e}"))?;
    Ok(pair.sums())
}

fn first_state() -> ClusterState {
    let mut state = ClusterState::new();
    for id in (1..=GATEWAYS).map(MemberId) {
        let member = Member {
            id,
            name: name(format!("g{}", id.0)),
            locality: holdfast_types::Locality::of_region(name("region")),
            disk: id.0.into(),
            peer_addr: "a:1".to_string(),
            api_addr: "a:2".to_string(),
            nbd_addr: "a:3".to_string(),
            role: MemberRole::Gateway,
            standing: Standing::Active,
        };
        let add = ClusterCommand::AddMember { member, replaces: None, request: RequestId(id.0.into()) };
        state.apply(LogId::default(), &add);
    }
    state
}

/// The head before and after it is raised. The former life's last request may come in between, and of several stores
/// one may answer first and be late with the rest: an administrator repeats the request, as the refusal advises.
async fn raise(world: &World, rng: &mut Rng) -> Result<(Head, Head, Keyring, SetKey), String> {
    let set = world.common.set;
    let store = world.common.open_store(&Arc::new(Health::new("recovery")));
    let mut last = None;
    for _ in 0..RAISE_TRIES {
        let object = store.get_object(&keys::head(set)).await.map_err(|e| e.to_string())?;
        let (header, keyring): (_, Keyring) = read_keyring(&object.body).map_err(|e| e.to_string())?;
        // HISTKEY-K2: nothing else is there.
        let key = set_key(set, &ring_ids(&keyring.wrapped_key), header.key_id);
        let head = head::open(&key, &object.body).map_err(|e| e.to_string())?;
        let raised = match &last {
            // The swap whose answer was lost.
            Some((before, raised)) if head == *raised => return Ok((Head::clone(before), head, keyring, key)),
            _ => head.raised(world.common.life.cluster, 0),
        };
        let id = ObjectId { term: Term(0), member: MemberId(0), boot: 0, random: rng.draw().into() };
        let body = seal_head(&raised, &keyring, key.sealer(id));
        match store.swap(&keys::head(set), Some(&object.version), body).await {
            Ok(_) => return Ok((head, raised, keyring, key)),
            Err(StoreError::Unknown { .. } | StoreError::Changed { .. }) => last = Some((head, raised)),
            Err(e) => return Err(e.to_string()),
        }
    }
    Err(format!("set {set} is not raised in {RAISE_TRIES} tries"))
}

/// The snapshots in a head, with their content: all existing ones, and possibly one that was pending or deleted at the
/// end.
fn listed(world: &World, head: &Head) -> Result<Vec<(Name, RequestId, Volumes)>, String> {
    let order = world.common.journal.order();
    let list = &head.links.snapshots.snapshots;
    for (name, asked) in &order.model.snapshots {
        if list.get(name).is_none_or(|found| found.request != asked.request) {
            return Err(format!("SET-S15: snapshot {name} was there, and the head does not list it"));
        }
    }
    let shown = |(name, found): (&Name, &Snapshot)| {
        (name.clone(), found.request, order.model.shown(found.request, found.upto.index.0))
    };
    Ok(list.iter().map(shown).collect())
}

/// The beginning of a set's next life.
struct Begin {
    set: SetId,
    then: Volumes,
    snapshots: Vec<(Name, RequestId, Volumes)>,
    term: Term,
    tag: u32,
}

/// Brings a set back from its head in the store, in a new group 0.
async fn restore(world: &mut World, others: &Others, rng: &mut Rng) -> Result<Begin, String> {
    world.forget_ghost();
    world.set_weather(Weather::default());
    // With a key that it has not heard of yet, a gateway cannot open the new head, and nobody tells it here.
    let goes_on = rng.chance(OUTLIVES) && !lock(&world.common.ledger).changes();
    let client = if goes_on { world.some_device().await? } else { None };
    world.common.store.keep_for_stale_reads(&keys::head(world.common.set));
    let (head, raised, keyring, key) = raise(world, rng).await?;
    let covered = head.covered.ok_or("no checkpoint")?;
    let then = if covered.generation == world.common.life.generation {
        world.common.journal.order().model.at.get(&covered.upto.index.0).cloned().unwrap_or_default()
    } else {
        world.first.clone()
    };
    let set = world.common.set;
    let snapshots = listed(world, &head)?;
    let key_id = key.ring().seals;
    others.note_key(key);
    let command = ClusterCommand::RestoreSet {
        set,
        name: raised.name.clone(),
        store: "history".to_string(),
        wrapped_key: keyring.wrapped_key,
        key_id,
        created_by: MemberId(1),
        generation: raised.life.generation,
        restored: raised.content,
        links: raised.links,
    };
    let answer = others.apply(&command);
    if answer != (ClusterAnswer::SetCreated { set }) {
        return Err(format!("R4: set {set} does not come back: {answer:?}"));
    }
    if let Some(client) = client {
        world.outlive(client).await?;
    }
    Ok(Begin { set, then, snapshots, term: Term(world.term().0 + 1), tag: world.tag })
}

fn create(text: &str, request: u128) -> ClusterCommand {
    ClusterCommand::CreateSet {
        name: name(text),
        policy: holdfast_control::policy::Policy::default(),
        store: "history".to_string(),
        wrapped_key: wrapped([1]),
        key_id: 1,
        members: Vec::new(),
        created_by: MemberId(1),
        base_epoch: Epoch(0),
        request: RequestId(request),
    }
}

impl Pair {
    /// The origin starts again, as a set that group 0 knows.
    async fn new(seed: u64, world: World, loud: bool) -> Self {
        let others = Others::new(first_state());
        // Numbers below the origin's are others'.
        for number in 1..world.common.set.0 {
            others.apply(&create(&format!("other-{number}"), 100 + u128::from(number)));
        }
        others.apply(&create("set", 200));
        others.note_key(world.common.key.clone());
        let common = world.common.next(seed, &others, world.common.set, Volumes::new());
        drop(world.gateway);
        let origin = World::begin(common, [world.rng, world.rot], Term(2), loud).await;
        let rng = Rng::new(seed, 11);
        Self {
            seed,
            rng,
            others,
            origin,
            clone: None,
            loud,
            clone_term: Term(1),
            clones: 0,
            recoveries: 0,
            came_back: 0,
            sums: Sums::default(),
        }
    }

    async fn step(&mut self) -> Result<(), String> {
        match (self.rng.below(100), &mut self.clone) {
            (0..=11, None) => self.make_clone().await?,
            (0..=3, Some(_)) => self.pin_for_nothing().await?,
            (4, _) => self.another_set(),
            (5..=6, _) => self.lose_all().await?,
            (7..=55, Some(clone)) => clone.step().await?,
            _ => self.origin.step().await?,
        }
        // Whatever one set did, the other still has all that it needs.
        self.origin.check_named()?;
        self.clone.as_mut().map_or(Ok(()), World::check_named)
    }

    fn another_set(&mut self) {
        let request = self.rng.draw();
        self.others.apply(&create(&format!("other-{request}"), request.into()));
    }

    fn a_snapshot(&mut self) -> Option<SnapshotId> {
        let all: Vec<SnapshotId> = self
            .origin
            .state()
            .snapshots
            .iter()
            .map(|(name, found)| SnapshotId { name: name.clone(), made_by: found.request })
            .collect();
        (!all.is_empty()).then(|| self.rng.pick(&all))
    }

    /// The pin of a snapshot for the next number; `None` if there is no snapshot.
    async fn pin(&mut self) -> Result<Option<(SnapshotId, RequestId, SetId)>, String> {
        let Some(snapshot) = self.a_snapshot() else { return Ok(None) };
        let (request, clone) = (RequestId(self.rng.draw().into()), GroupId(self.others.state().next_set));
        let command = SetCommand::Pin { clone, snapshot: snapshot.clone(), request };
        let answer = self.origin.command(&command).await?;
        self.origin.say(|| format!("{command:?}: {answer:?}"));
        Ok(matches!(answer, Some(SetAnswer::Pinned { .. })).then_some((snapshot, request, clone)))
    }

    /// The caller ends right after the pin. Sometimes another set takes the number.
    async fn pin_for_nothing(&mut self) -> Result<(), String> {
        if self.pin().await?.is_some() && self.rng.chance(500) {
            self.another_set();
        }
        Ok(())
    }

    /// As the admin API does it.
    async fn make_clone(&mut self) -> Result<(), String> {
        let next = GroupId(self.others.state().next_set);
        if self.origin.common.store.present().contains(&keys::head(next)) {
            // The number of a clone of a former life, which remains in the store after everything was lost.
            let answer = self.others.apply(&ClusterCommand::PassSets { upto: next });
            self.origin.say(|| format!("{next} is taken in the store: {answer:?}"));
            return Ok(());
        }
        let Some((snapshot, request, clone)) = self.pin().await? else { return Ok(()) };
        let Some((pin, found)) = self.named_pin(&snapshot, request).await else { return Ok(()) };
        let key = set_key(clone, &[1].into(), 1);
        let next_volume = self.origin.state().next_volume;
        let Some(root) = self.put_first_root(clone, &key, &pin, &found).await else { return Ok(()) };
        let volumes = found.volumes.iter().map(|(id, volume)| (*id, volume.clone())).collect();
        let clone_of = CloneOf { origin: self.origin.common.set, snapshot: snapshot.name, root: pin.root, request };
        let command = ClusterCommand::CloneSet {
            set: clone,
            name: name(format!("clone-{}", clone.0)),
            clone_of,
            wrapped_key: wrapped([1]),
            key_id: 1,
            created_by: MemberId(1),
            restored: Restored { volumes, next_volume, root: Some(root) },
        };
        let answer = self.others.apply(&command);
        self.origin.say(|| format!("clone {clone}: {answer:?}"));
        if answer != (ClusterAnswer::SetCreated { set: clone }) {
            return Ok(());
        }
        self.others.note_key(key);
        self.clones += 1;
        let then = self.origin.common.journal.order().model.shown(found.request, found.upto.index.0);
        let common = self.origin.common.next(self.seed + 1, &self.others, clone, then);
        let mut world = self.begin(common, self.clone_term, CLONE_TAGS).await;
        world.set_weather(self.origin.weather);
        self.clone = Some(world);
        Ok(())
    }

    /// The pin of a request and its snapshot, once the store's head names the pin and while the snapshot is there.
    async fn named_pin(&self, snapshot: &SnapshotId, request: RequestId) -> Option<(Pin, Snapshot)> {
        let server = &self.origin.gateway.server;
        let pin = server.host.with(|m| m.state().pins.get(&request).cloned())?;
        let mut named = false;
        for _ in 0..NAMED_TRIES {
            named = matches!(server.head.names_pin(request, &pin).await, Ok(true));
            if named {
                break;
            }
            sleep(Duration::from_millis(50)).await;
        }
        let state = self.origin.state();
        let found = state.finished(snapshot).ok().filter(|found| named && found.root == pin.root).cloned();
        let Some(found) = found else {
            self.origin.say(|| {
                "the store does not name the pin, or the snapshot is gone: nothing more comes of it".to_string()
            });
            return None;
        };
        Some((pin, found))
    }

    /// Puts the clone's first root into the store. `None`: the store does not take it.
    async fn put_first_root(&mut self, clone: SetId, key: &SetKey, pin: &Pin, found: &Snapshot) -> Option<RootRef> {
        let object = ObjectId { term: Term(0), member: MemberId(1), boot: 1, random: u128::from(self.rng.draw()) };
        let body = seal_root(&first_root(self.origin.common.set, pin, found), key.sealer(object));
        let at = keys::root(clone, object);
        let store = self.origin.common.open_store(&Arc::new(Health::new("admin door")));
        let mut tries = 0;
        while store.put_new(&at, body.clone()).await.is_err() {
            tries += 1;
            if tries > NAMED_TRIES {
                return None;
            }
            sleep(Duration::from_millis(20)).await;
        }
        Some(RootRef { object, bytes: body.len() as u64 })
    }

    async fn begin(&mut self, common: Common, term: Term, tag: u32) -> World {
        let rngs = [Rng::new(self.rng.draw(), 1), Rng::new(self.rng.draw(), 7)];
        let mut world = World::begin(common, rngs, term, self.loud).await;
        world.tag = tag;
        world
    }

    /// All gateways and disks are lost. What the heads name comes back in a new cluster, with the heads' pins and
    /// snapshots.
    async fn lose_all(&mut self) -> Result<(), String> {
        let (Some(head), clone) = (self.origin.head()?, self.clone.as_mut()) else { return Ok(()) };
        if head.covered.is_none() {
            return Ok(());
        }
        // A new cluster's terms would begin anew; here they continue, so that remains of the former life are swept
        // before the end.
        self.clone_term = clone.as_ref().map_or(self.clone_term, |clone| Term(clone.term().0 + 1));
        // A clone without head or checkpoint is lost: its origin retains its objects, and nobody asks for them.
        let clone_head = match clone {
            Some(clone) => clone.head()?.filter(|head| head.covered.is_some()),
            None => None,
        };
        self.origin.say(|| "everything is lost but the store".to_string());
        self.recoveries += 1;
        let mut sets = vec![&mut self.origin];
        sets.extend(self.clone.as_mut().filter(|_| clone_head.is_some()));
        let others = Others::new(first_state());
        let mut begins = Vec::new();
        for world in sets {
            let begin = restore(world, &others, &mut self.rng).await?;
            self.came_back += begin.snapshots.len() as u64;
            begins.push(begin);
        }
        // The rest of the former life ends here.
        self.others = others;
        let (seed, mut worlds) = (self.seed + 2 + self.recoveries, Vec::new());
        for Begin { set, then, snapshots, term, tag } in begins {
            let common = self.origin.common.next(seed, &self.others, set, then);
            common.journal.order().model.inherit(snapshots);
            worlds.push(self.begin(common, term, tag).await);
        }
        let mut worlds = worlds.into_iter();
        let origin = worlds.next().ok_or("no origin")?;
        let old =
            [Some(std::mem::replace(&mut self.origin, origin)), std::mem::replace(&mut self.clone, worlds.next())];
        for world in old.into_iter().flatten() {
            self.sums.add(Sums::of(world.stats, world.counts(), [0; 8]));
        }
        Ok(())
    }

    /// Both come to rest, and nothing is pinned except for existing clones.
    async fn come_to_rest(&mut self) -> Result<(), String> {
        self.another_set();
        self.origin.come_to_rest().await.map_err(|e| format!("origin: {e}"))?;
        if let Some(clone) = &mut self.clone {
            clone.come_to_rest().await.map_err(|e| format!("clone: {e}"))?;
        }
        let mut waited = Duration::ZERO;
        loop {
            let (cluster, state) = (self.others.state(), self.origin.state());
            let standings: Vec<PinStanding> =
                state.pins().map(|(request, pin)| pin.standing(&cluster, self.origin.common.set, request)).collect();
            let settled = self.origin.gateway.server.head.links_settled(&state, self.origin.term());
            if settled && standings.iter().all(|standing| *standing == PinStanding::Needed) {
                break;
            }
            if waited > PATIENCE {
                return Err(format!(
                    "SET-S14: pins are not looked after: {:?}, the head says so: {settled}",
                    state.pins
                ));
            }
            sleep(Duration::from_millis(200)).await;
            waited += Duration::from_millis(200);
        }
        // Released objects are deleted by now, and nothing else.
        self.origin.come_to_rest().await.map_err(|e| format!("origin, without what no clone needs: {e}"))?;
        match &mut self.clone {
            Some(clone) => clone.come_to_rest().await.map_err(|e| format!("clone, at the end: {e}")),
            None => Ok(()),
        }
    }

    fn sums(&mut self) -> Sums {
        let mut stats = self.origin.stats;
        (stats.clones, stats.recoveries, stats.came_back) = (self.clones, self.recoveries, self.came_back);
        self.sums.add(Sums::of(stats, self.origin.counts(), self.origin.common.store.played()));
        if let Some(clone) = &self.clone {
            self.sums.add(Sums::of(clone.stats, clone.counts(), [0; 8]));
        }
        // One history, of any number of lives.
        self.sums.0[0] = 1;
        self.sums
    }
}
