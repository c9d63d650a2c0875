use super::*;
use crate::keyring::ClusterKeys;
use crate::recovery;
use holdfast_control::set::{Pin, RootRef, SetState, Volume};
use holdfast_seal::DataKey;
use holdfast_store::{Faults, Faulty, Memory, Quorum, RetryPolicy, Retrying, Switch};
use holdfast_types::{GroupId, LogId, Placement, RequestId, Sectors, VolumeId};
use holdfast_volume::head::Argon2id;

pub(crate) mod hooked;
mod looks;
mod snapshots;

use hooked::{Hook, Hooked};

pub const SET: holdfast_types::SetId = GroupId(3);
pub const FIRST: SetLife = SetLife { cluster: 7, generation: 1 };

fn cluster_key() -> ClusterKeys {
    ClusterKeys::of_bytes(5, None)
}

fn keyring() -> Keyring {
    let wrapped_key = cluster_key().current().wrap(&DataKey::from_bytes([6; 32]), SET, 1, [7; 24]);
    Keyring { wrapped_key, passphrase: Argon2id::ours(crate::keyring::PASSPHRASE_SALT) }
}

fn keeper(store: Arc<dyn ObjectStore>, life: SetLife, dir: &std::path::Path) -> Arc<HeadKeeper> {
    keeper_of(store, life, dir, None)
}

pub fn keeper_of(
    store: Arc<dyn ObjectStore>,
    life: SetLife,
    dir: &std::path::Path,
    pair: Option<Arc<Authority>>,
) -> Arc<HeadKeeper> {
    HeadKeeper::new(HeadParts {
        name: Name::new("demo").unwrap(),
        life,
        keyring: keyring().into(),
        key: SetKey::of(SET, 1, DataKey::from_bytes([6; 32])),
        store,
        member: MemberId(1),
        boot: 1,
        note: dir.join("fenced"),
        clone_of: None,
        by_own_keyring: Some(by_own_keyring()),
        pair,
    })
    .unwrap()
}

/// Opens a head as a gateway without its data key does.
fn by_own_keyring() -> super::ByOwnKeyring {
    Arc::new(|body| {
        let (header, keyring) = read_keyring(body).ok()?;
        let key = cluster_key().open_keyring(&keyring, SET, header.key_id).ok()?;
        open(&key, body).ok()
    })
}

fn covered(index: u64) -> Covered {
    Covered { upto: LogId::new(2, index), generation: 1, at_unix_ms: index }
}

fn content(random: u128) -> Restored {
    let object = ObjectId { term: Term(2), member: MemberId(1), boot: 1, random };
    let volume = Volume { name: Name::new("vol1").unwrap(), size: Sectors(8) };
    Restored { volumes: vec![(VolumeId(1), volume)], next_volume: 2, root: Some(RootRef { object, bytes: 9 }) }
}

async fn commit(keeper: &HeadKeeper, index: u64) -> Result<(), KeepError> {
    keeper.commit(keeper.store(), Term(2), covered(index), Epoch(4), content(index.into())).await
}

/// Another cluster takes the set over in its store, and the gateway with this head reads that there.
pub async fn take_over(keeper: &HeadKeeper) {
    commit(keeper, 10).await.unwrap();
    recovery::raise(&found(&keeper.parts.store).await, 8, 99).await.unwrap();
    assert!(matches!(keeper.look().await, Some(Err(KeepError::Taken(_)))));
}

async fn found(store: &Arc<dyn ObjectStore>) -> recovery::Found {
    let mut survey = recovery::survey("memory", store.clone(), &cluster_key()).await.unwrap();
    assert!(survey.bad.is_empty(), "{:?}", survey.bad);
    survey.sets.remove(0)
}

/// Another cluster recovers the set. The last look was before that, and still allows answers.
pub async fn recovered_elsewhere(keeper: &HeadKeeper, store: &Arc<dyn ObjectStore>) {
    commit(keeper, 10).await.unwrap();
    raised_elsewhere(store).await;
}

/// Another cluster recovers the set whose head is in this store.
pub async fn raised_elsewhere(store: &Arc<dyn ObjectStore>) {
    recovery::raise(&found(store).await, 8, 99).await.unwrap();
}

/// The leader of `term` makes a checkpoint, and the head names its root. The terms of several calls have to grow.
pub async fn checkpointed(keeper: &HeadKeeper, term: Term, root: RootRef) {
    let content = Restored { root: Some(root), ..content(1) };
    keeper.commit(keeper.store(), term, covered(10 + term.0), Epoch(4), content).await.unwrap();
}

/// From now on the last look allows no answer, as after a long time.
pub fn look_is_old(keeper: &HeadKeeper) {
    keeper.looks.forget();
}

/// A look found the head in stores that this gateway does not know.
pub fn it_is_elsewhere(keeper: &HeadKeeper) {
    keeper.looks.told(boot_now(), Word::Elsewhere);
}

fn pin(random: u128, at: LogId) -> Pin {
    let object = ObjectId { term: Term(2), member: MemberId(1), boot: 1, random };
    let (root, snapshot) = (RootRef { object, bytes: 9 }, Name::new("monday").unwrap());
    Pin { clone: GroupId(9), root, upto: LogId::new(1, 4), snapshot, at }
}

/// The links of a state with these pins, each made by the given log entry.
fn know(keeper: &HeadKeeper, pins: &[(u128, LogId)], index: u64) -> SetState {
    let mut state = SetState::new(Epoch(0));
    state.pins_at = LogId::new(u64::from(index > 0), index);
    state.pins = pins.iter().map(|(request, at)| (RequestId(*request), pin(*request, *at))).collect();
    keeper.note(&state, None, Some(Term(2)));
    state
}

async fn pinned(store: &Arc<dyn ObjectStore>) -> Vec<u128> {
    found(store).await.head.links.pins.keys().map(|request| request.0).collect()
}

/// A recovery must find every pin that a clone may depend on: the head names it before the clone is made, whichever
/// checkpoint it names, and whoever writes it next.
#[tokio::test]
async fn a_head_names_pins_and_who_was_cut_off_changes_none() {
    let dir = tempfile::tempdir().unwrap();
    let store: Arc<dyn ObjectStore> = Arc::new(Memory::new());
    let (old, new) = (keeper(store.clone(), FIRST, dir.path()), keeper(store.clone(), FIRST, dir.path()));
    let state = know(&old, &[], 0);
    commit(&old, 10).await.unwrap();
    assert!(!old.behind() && old.links_settled(&state, Term(2)));
    let first = (5, LogId::new(2, 12));
    let state = know(&old, &[first], 12);
    assert!(old.behind() && !old.links_settled(&state, Term(2)), "known here, but not in the store");
    assert!(!old.names_pin(RequestId(5), &pin(5, first.1)).await.unwrap());
    old.replace_around(Term(2)).await;
    assert!(!old.behind() && old.names_pin(RequestId(5), &pin(5, first.1)).await.unwrap());
    assert_eq!(found(&store).await.head.covered, Some(covered(10)), "the checkpoint is what it was");
    // Another leader adds a pin; the old one does not know of it and ends its checkpoint.
    let second = (6, LogId::new(3, 20));
    new.read().await.unwrap();
    know(&new, &[first, second], 20);
    new.replace_around(Term(3)).await;
    commit(&old, 15).await.unwrap();
    assert_eq!(pinned(&store).await, [5, 6], "R12, HEAD-H1: pins that it cannot know stay");
    // The new leader releases the first pin.
    let state = know(&new, &[second], 25);
    know(&new, &[first, second], 20);
    assert!(!new.links_settled(&state, Term(2)));
    commit(&new, 25).await.unwrap();
    assert!(new.links_settled(&state, Term(2)));
    assert_eq!(pinned(&store).await, [6], "applied, and released");
    // The old one restores nothing, neither with a checkpoint nor without: it finds that the head is newer.
    know(&old, &[first, second], 20);
    commit(&old, 26).await.unwrap();
    old.replace_around(Term(2)).await;
    assert_eq!((pinned(&store).await, old.behind()), (vec![6], false), "R7: its objects may be deleted");
    // The same if no pin is left.
    know(&new, &[], 28);
    new.replace_around(Term(3)).await;
    know(&old, &[second], 25);
    commit(&old, 27).await.unwrap();
    assert_eq!(pinned(&store).await, [0; 0]);
    know(&new, &[second], 29);
    new.replace_around(Term(3)).await;
    // The next life begins with it, and keeps it whatever its log says.
    let raised = recovery::raise(&found(&store).await, 8, 99).await.unwrap();
    let third = keeper(store.clone(), raised.head.life, &dir.path().join("new"));
    let next = Covered { upto: LogId::new(1, 3), generation: 2, at_unix_ms: 1 };
    third.commit(third.store(), Term(1), next, Epoch(5), content(30)).await.unwrap();
    assert_eq!(pinned(&store).await, [6], "before anything is known of the state");
    let state = know(&third, &[(6, LogId::default())], 0);
    assert!(third.links_settled(&state, Term(2)));
}

#[tokio::test]
async fn a_recovery_fences_whoever_lived_before() {
    let dir = tempfile::tempdir().unwrap();
    let store: Arc<dyn ObjectStore> = Arc::new(Memory::new());
    let old = keeper(store.clone(), FIRST, dir.path());
    commit(&old, 10).await.unwrap();
    let before = found(&store).await;
    assert_eq!((before.head.covered, before.head.content.clone()), (Some(covered(10)), content(10)));
    let raised = recovery::raise(&before, 8, 99).await.unwrap();
    assert_eq!(raised.head.life, SetLife { cluster: 8, generation: 2 });
    // The old leader does not know of it, and its next checkpoint is ready.
    let error = commit(&old, 20).await.unwrap_err().to_string();
    assert!(error.contains("found generation 2") && error.contains("expected generation 1"), "{error}");
    assert_eq!(found(&store).await.head, raised.head, "HEAD-H1: the raised head stands");
    assert!(old.fenced().is_some());
    assert!(old.before_answer().await.is_err(), "no answer leaves any more");
    // The fence is permanent, even if the store does not answer at the next start.
    let again = keeper(Arc::new(Memory::new()), FIRST, dir.path());
    assert_eq!(again.fenced(), old.fenced());
    // The new life continues from what it found.
    let new = keeper(store.clone(), raised.head.life, &dir.path().join("new"));
    let next = Covered { upto: LogId::new(1, 3), generation: 2, at_unix_ms: 1 };
    new.commit(new.store(), Term(1), next, Epoch(5), content(30)).await.unwrap();
    assert_eq!(found(&store).await.head.raised_for, 0);
    assert!(new.fenced().is_none());
}

/// HEAD-H4: a gateway that served a deleted set finds the tombstone, whatever it was doing, and a recovery finds
///     nothing.
#[tokio::test]
async fn a_tombstone_ends_every_life_and_stays() {
    let dir = tempfile::tempdir().unwrap();
    for checkpoints in [0, 1] {
        let store: Arc<dyn ObjectStore> = Arc::new(Memory::new());
        let old = keeper(store.clone(), FIRST, &dir.path().join(checkpoints.to_string()));
        for index in 1..=checkpoints {
            commit(&old, index).await.unwrap();
        }
        let (key, name) = (old.parts.key.clone(), Name::new("demo").unwrap());
        let id = || ObjectId { term: Term(9), member: MemberId(2), boot: 3, random: crate::random::random_u128() };
        assert!(!crate::tombstone::bury(&*store, &key, FIRST, &name, id).await.unwrap());
        let tombstone = store.get(&keys::head(SET)).await.unwrap();
        let error = commit(&old, 20).await.unwrap_err();
        assert!(matches!(&error, KeepError::Taken(why) if why.contains("is deleted")), "{error}");
        assert!(old.before_answer().await.is_err(), "no answer leaves any more");
        assert_eq!(store.get(&keys::head(SET)).await.unwrap(), tombstone, "TOMB-T2");
        let survey = recovery::survey("memory", store.clone(), &cluster_key()).await.unwrap();
        assert_eq!((survey.sets.len(), survey.bad.len(), survey.deleted), (0, 0, vec![SET]));
    }
}

/// The old leader reads the head, the recovery raises it, then the old leader's PUT arrives: only a conditional PUT is
/// refused.
#[tokio::test]
async fn a_put_that_was_on_its_way_does_not_undo_a_recovery() {
    let dir = tempfile::tempdir().unwrap();
    let store: Arc<dyn ObjectStore> = Arc::new(Memory::new());
    let old = keeper(store.clone(), FIRST, dir.path());
    commit(&old, 10).await.unwrap();
    let hook = Recovery { store: store.clone(), armed: AtomicBool::new(false), cluster: 8 };
    let gate = Arc::new(Hooked { within: store.clone(), hook });
    let paused = keeper(gate.clone(), FIRST, dir.path());
    gate.hook.armed.store(true, Ordering::Release);
    let error = commit(&paused, 20).await.unwrap_err();
    assert!(matches!(error, KeepError::Taken(_)), "{error}");
    assert_eq!(found(&store).await.head.life, SetLife { cluster: 8, generation: 2 }, "HEAD-H1");
}

#[tokio::test]
async fn of_two_recoveries_one_wins_and_the_other_is_fenced() {
    let dir = tempfile::tempdir().unwrap();
    let store: Arc<dyn ObjectStore> = Arc::new(Memory::new());
    commit(&keeper(store.clone(), FIRST, dir.path()), 10).await.unwrap();
    let seen = found(&store).await;
    let won = recovery::raise(&seen, 8, 99).await.unwrap();
    let lost = recovery::raise(&seen, 9, 98).await.unwrap_err().to_string();
    assert!(lost.contains("run it again"), "{lost}");
    let loser = keeper(store.clone(), SetLife { cluster: 9, generation: 2 }, &dir.path().join("b"));
    assert!(matches!(loser.look().await, Some(Err(KeepError::Taken(_)))));
    assert_eq!(found(&store).await.head, won.head);
}

/// No answer waits for a read that a commit has replaced, or while the store is silent (R8); and the next read finds a
/// raised head.
#[tokio::test]
async fn an_answer_leaves_after_a_commit_and_without_a_word() {
    let dir = tempfile::tempdir().unwrap();
    let faulty = Arc::new(Faulty::new(Memory::new(), 1, Faults::default()));
    let store: Arc<dyn ObjectStore> = faulty.clone();
    let keeper = keeper(store.clone(), FIRST, dir.path());
    assert!(!keeper.looks.may_answer(boot_now()), "the head was not read yet");
    commit(&keeper, 10).await.unwrap();
    keeper.before_answer().await.unwrap();
    faulty.set(Faults { down: true, ..Faults::default() });
    assert!(matches!(keeper.look().await, Some(Err(KeepError::Store(_)))));
    keeper.before_answer().await.unwrap();
    faulty.set(Faults::default());
    recovery::raise(&found(&store).await, 8, 99).await.unwrap();
    keeper.look().await;
    assert!(keeper.before_answer().await.unwrap_err().contains("fenced in its store"));
}

/// For a process that was paused, every wait is over when it resumes: that is no reason to answer.
#[tokio::test]
async fn without_the_end_of_a_look_nothing_is_answered_however_long_it_was_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let keeper = keeper(Arc::new(Memory::new()), FIRST, dir.path());
    // Nobody reads the head: as after a pause, when the timer of the wait fires first.
    let waited = keeper.before_answer_within(Duration::from_millis(5)).await;
    assert!(waited.unwrap_err().contains("no read of the"));
    commit(&keeper, 10).await.unwrap();
    keeper.before_answer().await.unwrap();
}

/// A sweep would take another life's objects for orphans: only a clear yes of the store allows it.
#[tokio::test]
async fn only_the_stores_plain_yes_lets_a_sweep_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let store: Arc<dyn ObjectStore> = Arc::new(Memory::new());
    let old = keeper(store.clone(), FIRST, dir.path());
    assert!(!old.still_ours().await, "no head");
    assert!(!old.committed_in(Term(2)));
    commit(&old, 10).await.unwrap();
    assert!(old.committed_in(Term(2)) && !old.committed_in(Term(3)), "each term has to commit its own");
    assert!(old.still_ours().await);
    let key = keys::head(SET);
    let good = store.get_object(&key).await.unwrap();
    store.swap(&key, Some(&good.version), Bytes::from_static(b"a head of a later release")).await.unwrap();
    assert!(!old.still_ours().await, "an unreadable head may be another life's");
    assert!(old.fenced().is_none());
    let odd = store.get_object(&key).await.unwrap();
    store.swap(&key, Some(&odd.version), good.body).await.unwrap();
    assert!(old.still_ours().await);
    recovery::raise(&found(&store).await, 8, 99).await.unwrap();
    assert!(!old.still_ours().await, "another life's");
    assert!(old.fenced().is_some());
}

#[tokio::test]
async fn what_is_covered_never_goes_back() {
    let dir = tempfile::tempdir().unwrap();
    let store: Arc<dyn ObjectStore> = Arc::new(Memory::new());
    let (newer, older) = (keeper(store.clone(), FIRST, dir.path()), keeper(store.clone(), FIRST, dir.path()));
    commit(&newer, 20).await.unwrap();
    assert!(matches!(commit(&older, 10).await, Err(KeepError::Superseded)), "HEAD-H2");
    commit(&newer, 20).await.unwrap();
    // Of two checkpoints that cover the same, only the one that the head names has been committed.
    let other = newer.commit(newer.store(), Term(2), covered(20), Epoch(4), content(21)).await;
    assert!(matches!(other, Err(KeepError::Superseded)), "HEAD-H2: {other:?}");
    let head = found(&store).await.head;
    assert_eq!((head.covered, head.content), (Some(covered(20)), content(20)));
}

/// R12: at random, a PUT is done and its answer is lost, or it is done and answered as another writer's, or it is not
/// done, and some reads return wrong bytes. The final head is the last commit, and it was written once.
#[tokio::test]
async fn lost_answers_are_found_out_about() {
    for seed in 0..30 {
        let faults = Faults {
            fail_before: 300,
            fail_after: 300,
            own_conflict: 200,
            missing_once: 300,
            flip_bit: 30,
            ..Faults::default()
        };
        let policy = RetryPolicy { attempts_max: 3, backoff_first_ms: 1, backoff_max_ms: 1, ..RetryPolicy::default() };
        let lossy = Arc::new(Retrying::new(Faulty::new(Memory::new(), seed, faults), policy));
        let store: Arc<dyn ObjectStore> = lossy.clone();
        let dir = tempfile::tempdir().unwrap();
        let keeper = keeper(store, FIRST, dir.path());
        for index in [5, 9, 12] {
            let mut tries = 0;
            while let Err(e) = commit(&keeper, index).await {
                assert!(e.may_pass(), "seed {seed}: {e}");
                tries += 1;
                assert!(tries < 1000, "seed {seed}: {e}");
            }
        }
        lossy.within().set(Faults::default());
        let quiet: Arc<dyn ObjectStore> = lossy;
        assert_eq!(found(&quiet).await.head.covered, Some(covered(12)), "seed {seed}");
    }
}

#[tokio::test]
async fn another_clusters_set_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let store: Arc<dyn ObjectStore> = Arc::new(Memory::new());
    let mut other = HeadParts { key: SetKey::of(SET, 1, DataKey::from_bytes([1; 32])), ..parts(&store, dir.path()) };
    other.keyring.get_mut().unwrap().wrapped_key = vec![1; 108];
    commit(&HeadKeeper::new(other).unwrap(), 10).await.unwrap();
    let before = store.get(&keys::head(SET)).await.unwrap();
    let ours = keeper(store.clone(), FIRST, dir.path());
    let error = commit(&ours, 20).await.unwrap_err();
    assert!(matches!(error, KeepError::Unreadable { .. }) && !error.may_pass(), "{error}");
    ours.look().await;
    assert!(ours.trouble().is_some() && ours.fenced().is_none());
    assert_eq!(store.get(&keys::head(SET)).await.unwrap(), before);
    let survey = recovery::survey("memory", store, &cluster_key()).await.unwrap();
    assert_eq!((survey.sets.len(), survey.bad.len()), (0, 1));
}

/// A change of the cluster key reaches the head without a checkpoint, and a commit keeps it: from then on only the new
/// key opens it.
#[tokio::test]
async fn the_head_follows_a_change_of_the_cluster_key() {
    let dir = tempfile::tempdir().unwrap();
    let store: Arc<dyn ObjectStore> = Arc::new(Memory::new());
    let keeper = keeper(store.clone(), FIRST, dir.path());
    commit(&keeper, 10).await.unwrap();
    let before = found(&store).await.head;
    let (old, new) = (cluster_key(), ClusterKeys::of_bytes(9, None));
    let by = |keys: &ClusterKeys, nonce| Keyring {
        wrapped_key: keys.current().wrap(&DataKey::from_bytes([6; 32]), SET, 1, [nonce; 24]),
        ..keyring()
    };
    keeper.set_keyring(by(&new, 8));
    assert!(keeper.behind());
    keeper.look().await;
    keeper.replace_around(Term(2)).await;
    assert!(!keeper.behind());
    let opened = async |keys: &ClusterKeys| {
        let survey = recovery::survey("memory", store.clone(), keys).await.unwrap();
        (survey.sets.into_iter().map(|found| found.head).collect::<Vec<_>>(), survey.bad)
    };
    assert_eq!(opened(&new).await, (vec![before], vec![]), "nothing else of it changed");
    let (sets, bad) = opened(&old).await;
    assert!(sets.is_empty() && bad[0].1.contains("another passphrase or key file"), "{bad:?}");
    // The change happens between two checkpoints: the next one includes it.
    keeper.set_keyring(by(&old, 10));
    commit(&keeper, 20).await.unwrap();
    assert!(!keeper.behind());
    assert_eq!(opened(&old).await.0.len(), 1);
    // Another gateway's checkpoint with the previous keys is noticed and corrected.
    keeper.set_keyring(by(&new, 11));
    keeper.look().await;
    assert!(keeper.behind());
    keeper.replace_around(Term(2)).await;
    assert_eq!(opened(&new).await.0[0].covered, Some(covered(20)));
}

/// DATAKEY-Z1, DATAKEY-Z2: a gateway that lags behind in group 0 neither replaces a head under a key that it does not
/// know, nor counts it as damaged. A gateway with the key seals the next head under it, even if group 0 has not told it
/// to.
#[tokio::test]
async fn a_head_is_never_under_an_older_data_key_than_the_one_before() {
    let dir = tempfile::tempdir().unwrap();
    let store: Arc<dyn ObjectStore> = Arc::new(Memory::new());
    let cluster = cluster_key();
    let wrapped = |id: u32| cluster.current().wrap(&DataKey::from_bytes([5 + id as u8; 32]), SET, id, [7; 24]);
    let ring = |ids: &[u32]| Keyring {
        wrapped_key: holdfast_seal::join_ring(ids.iter().map(|id| wrapped(*id)).collect()),
        ..keyring()
    };
    let with = |ids: &[u32], seals: u32| {
        let keys = ids.iter().map(|id| (*id, DataKey::from_bytes([5 + *id as u8; 32]))).collect();
        let key = SetKey::of_ring(SET, keys, seals).unwrap();
        let parts = HeadParts {
            name: Name::new("demo").unwrap(),
            life: FIRST,
            keyring: ring(ids).into(),
            key,
            ..parts(&store, dir.path())
        };
        HeadKeeper::new(parts).unwrap()
    };
    let under = async || read_keyring(&store.get(&keys::head(SET)).await.unwrap()).unwrap().0.key_id;
    commit(&with(&[1, 2], 2), 10).await.unwrap();
    assert_eq!(under().await, 2);
    let before = store.get(&keys::head(SET)).await.unwrap();
    let late = with(&[1], 1);
    let error = commit(&late, 20).await.unwrap_err();
    assert!(matches!(error, KeepError::OtherKey { key_id: 2, .. }) && error.may_pass(), "{error}");
    late.look().await;
    late.replace_around(Term(2)).await;
    assert!(late.trouble().is_none() && late.fenced().is_none());
    assert_eq!(store.get(&keys::head(SET)).await.unwrap(), before);
    late.before_answer().await.expect("it is this life's: a gateway that lags behind keeps serving (R8)");
    // Another life of the set that has changed the key since is still another life (HEAD-H1).
    let found_now = found(&store).await;
    let gone = with(&[1], 1);
    let raised = recovery::raise(&found_now, 99, 7).await.unwrap();
    gone.look().await;
    assert!(gone.fenced().is_some(), "it was taken over under a key that this gateway never had");
    assert!(gone.before_answer().await.is_err());
    assert_eq!(raised.head.life.generation, 2);
    std::fs::remove_file(dir.path().join("other")).unwrap();
    let version = store.get_object(&keys::head(SET)).await.unwrap().version;
    store.swap(&keys::head(SET), Some(&version), before).await.unwrap();
    // It has the key, and does not know that it is in use.
    commit(&with(&[1, 2], 1), 30).await.unwrap();
    assert_eq!(under().await, 2);
    // The cluster key alone opens it, with all keys of the ring.
    assert_eq!(found(&store).await.key.ids(), [1, 2].into());
}

/// LIST-L1: nobody compared objects that a checkpoint wrote before a change of the set's stores with the new stores.
///     The checkpoint fails, even if its gateway knows of the change by the time of the commit.
#[tokio::test]
async fn a_checkpoint_stays_in_the_stores_where_it_began() {
    let dir = tempfile::tempdir().unwrap();
    let all: [Arc<dyn ObjectStore>; 2] = [Arc::new(Memory::new()), Arc::new(Memory::new())];
    let over = |text: &str| -> Arc<dyn ObjectStore> {
        let open = |url: &str| Ok((all[usize::from(url.ends_with('b'))].clone(), None));
        Arc::new(Arc::new(Quorum::over(&Placement::parse(text), open).unwrap()))
    };
    let switch = Arc::new(Switch::new("file:///a", all[0].clone()));
    let keeper = keeper(switch.clone(), FIRST, dir.path());
    commit(&keeper, 10).await.unwrap();
    let began_at = switch.pinned();
    // Another gateway ends the list meanwhile, and this one learns of it.
    let both = over("file:///a => c=2 file:///b");
    let head = both.get_object(&keys::head(SET)).await.unwrap();
    both.several().unwrap().end_list(SET, &head.version).await.unwrap();
    switch.set("file:///a => c=2 file:///b", both.clone());
    let error = keeper.commit(&*began_at, Term(2), covered(20), Epoch(4), content(20)).await.unwrap_err();
    assert!(matches!(error, KeepError::Moved { .. }) && !error.may_pass(), "all of it is done anew: {error}");
    assert_eq!(both.get(&keys::head(SET)).await.unwrap(), head.body, "the earlier decision stands");
    commit(&keeper, 20).await.expect("a checkpoint that begins with the current stores");
}

/// R4: whatever else is in the store, a recovery takes what the head names and nothing newer.
#[tokio::test]
async fn segments_that_no_head_names_are_not_taken() {
    let dir = tempfile::tempdir().unwrap();
    let store: Arc<dyn ObjectStore> = Arc::new(Memory::new());
    commit(&keeper(store.clone(), FIRST, dir.path()), 10).await.unwrap();
    let before = found(&store).await.head;
    for random in 1..20u128 {
        let id = ObjectId { term: Term(9), member: MemberId(1), boot: 1, random };
        for key in [keys::segment(SET, id), keys::root(SET, id), keys::map_pack(SET, id)] {
            store.put_new(&key, Bytes::from_static(b"of a checkpoint that never ended")).await.unwrap();
        }
    }
    assert_eq!(found(&store).await.head, before);
}

fn parts(store: &Arc<dyn ObjectStore>, dir: &std::path::Path) -> HeadParts {
    HeadParts {
        name: Name::new("other").unwrap(),
        life: SetLife { cluster: 1, generation: 1 },
        keyring: keyring().into(),
        key: SetKey::of(SET, 1, DataKey::from_bytes([6; 32])),
        store: store.clone(),
        member: MemberId(1),
        boot: 1,
        note: dir.join("other"),
        clone_of: None,
        by_own_keyring: Some(by_own_keyring()),
        pair: None,
    }
}

/// Once armed, a recovery happens between the read of a head and its next swap.
#[derive(Debug)]
struct Recovery {
    store: Arc<dyn ObjectStore>,
    armed: AtomicBool,
    cluster: u128,
}

impl Hook for Recovery {
    async fn before_swap(&self) {
        if self.armed.swap(false, Ordering::AcqRel) {
            let seen = found(&self.store).await;
            recovery::raise(&seen, self.cluster, 99).await.unwrap();
        }
    }
}

/// A note that is there and cannot be read is a fence: only a note that is not there means that nothing was noted.
#[tokio::test]
async fn a_note_that_cannot_be_read_is_not_taken_for_none() {
    let dir = tempfile::tempdir().unwrap();
    let store: Arc<dyn ObjectStore> = Arc::new(Memory::new());
    assert_eq!(keeper(store.clone(), FIRST, dir.path()).fenced(), None);
    let note = dir.path().join("fenced");
    // A directory in its place: the read fails, and not because nothing is there.
    std::fs::create_dir(&note).unwrap();
    assert!(HeadKeeper::new(HeadParts { note: note.clone(), ..parts(&store, dir.path()) }).is_err());
    std::fs::remove_dir(&note).unwrap();
    std::fs::write(&note, b"replaced by \xff\n").unwrap();
    let fenced = keeper(store, FIRST, dir.path()).fenced();
    assert_eq!(fenced.as_deref(), Some("replaced by \u{fffd}"), "also if it is no text");
}
