//! Carries out a change of the set's stores, at the set's leader (ADR 0018). Group 0 holds the plan. This task prepares
//! each step and reports when it is ready (`MigrationBoard`). The heads decide which list of stores counts
//! (`store`, LIST-L1 to LIST-L4).
//!
//! ```text
//!   A | B    a checkpoint, if there is none ─▶ the stores of B have everything that kept roots name ─▶ ready for A => B
//!   A => B   MOVE-V1 a checkpoint of this leader ─▶ MOVE-V2 no checkpoint from here on ─▶ everything is compared again ─▶ MOVE-V3 the list ends
//!            ─▶ checkpoints again ─▶ the old stores release the head ─▶ ready for B
//! ```
//! MOVE-V1  The head that ends the list belongs to a checkpoint that this leader began and ended after both lists
//!     counted: another gateway that leads meanwhile, and does not know them, replaces the head, and MOVE-V3 fails (it
//!     names the head's version).
//! MOVE-V2  While the list ends, nothing is uploaded here, and the comparison begins after that. So everything that the
//!     head names was looked for in the stores of B, even objects written before these were known.
//! MOVE-V3  Every store of B has everything, and answers: B's head begins only if all of them take part (QUORUM-Q3).
//!
//! Every step may be repeated, by this leader or the next one.

use crate::leader_task::{self, Failed, LeaderTask, Pauses};
use crate::mapping::Mapping;
use crate::server::SetServer;
use futures_util::future::BoxFuture;
use holdfast_control::set::RootRef;
use holdfast_host::unix_ms;
use holdfast_raft::MigrationStatus;
use holdfast_store::{Disposition, ObjectStore, Part, Quorum, ReplicaStanding, StoreError, Switch, keys};
use holdfast_types::{Placement, PlacementPhase, Term};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Time between two turns.
const TURN: Duration = Duration::from_millis(300);
/// Time after a failed turn.
const PAUSE: Duration = Duration::from_secs(3);
/// How long checkpoints are held up for the first final comparison; doubled each time that this was too short.
const HOLD: Duration = Duration::from_secs(60);
/// … up to this. The journal takes the writes meanwhile; if it fills, the hold ends immediately.
const HOLD_MAX: Duration = Duration::from_secs(900);
/// Time between two holds that failed.
const HOLD_AGAIN: Duration = Duration::from_secs(20);

/// MOVE-V3: whether the new stores have everything; otherwise what is missing, as text for users.
fn filled(standings: &[ReplicaStanding]) -> Result<(), String> {
    let full = |one: &ReplicaStanding| one.backlog.compared && one.backlog.named == 0 && one.standing.now.is_none();
    let say = |one: &ReplicaStanding| match &one.standing.now {
        Some(trouble) => format!("{} has problems: {}", one.place, trouble.error),
        None if !one.backlog.compared => format!("{} is being compared with the kept objects", one.place),
        None if one.backlog.stuck > 0 => format!(
            "{} lacks {} objects, {} of which no other store has whole: see `holdfast verify --each-store`",
            one.place, one.backlog.named, one.backlog.stuck
        ),
        None => format!(
            "{} lacks {} objects, {:.1} MiB",
            one.place,
            one.backlog.named,
            one.backlog.bytes as f64 / f64::from(1 << 20)
        ),
    };
    let lacking = |one: &&ReplicaStanding| one.part != Part::Leaves && !full(one);
    let waits: Vec<String> = standings.iter().filter(lacking).map(say).collect();
    if waits.is_empty() { Ok(()) } else { Err(waits.join("; ")) }
}

/// Why the list was not ended.
#[derive(Debug, thiserror::Error)]
enum EndError {
    #[error("store: {0}")]
    Store(#[from] StoreError),
    #[error("{0}")]
    NotYet(String),
}

/// Progress of one leader with one placement.
struct Work {
    term: Term,
    text: String,
    /// The current root at a moment without a running checkpoint here: the next checkpoint begins after that (MOVE-V1).
    before: Option<Option<RootRef>>,
    hold: Duration,
    again_at: Option<Instant>,
    /// When this leader learned that the next list counts.
    ended_at: Option<Instant>,
    /// Whether the warning about a store that keeps its data was logged.
    warned: bool,
}

/// See the module.
pub struct StoreMigration {
    server: Arc<SetServer>,
    mapping: Arc<Mapping>,
    switch: Arc<Switch>,
    /// Time limit for the old stores to release the head.
    lets_go_within: Duration,
    /// Progress of this leader with the current placement.
    work: Option<Work>,
    stop: CancellationToken,
}

impl LeaderTask for StoreMigration {
    async fn turn(&mut self, term: Term) -> Result<(), Failed> {
        self.step(term).await
    }

    async fn idle(&mut self) {
        self.work = None;
        self.server.migration.say(None);
    }
}

impl StoreMigration {
    /// Creates the task for `server`'s set, whose stores are in `switch`. The old stores get `lets_go_within` to
    /// release the head.
    pub fn new(
        server: Arc<SetServer>,
        mapping: Arc<Mapping>,
        switch: Arc<Switch>,
        lets_go_within: Duration,
        stop: CancellationToken,
    ) -> Self {
        Self { server, mapping, switch, lets_go_within, work: None, stop }
    }

    /// Runs until stopped.
    pub fn run(self) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let (server, stop) = (self.server.clone(), self.stop.clone());
            leader_task::run(server, self, Pauses::fixed(TURN, PAUSE), stop).await;
        })
    }

    async fn step(&mut self, term: Term) -> Result<(), Failed> {
        let text = self.switch.text();
        let placement = Placement::parse(&text);
        let Some((phase, to)) = &placement.next else {
            self.idle().await;
            return Ok(());
        };
        // Text and stores must belong to the same change; if not, the next turn handles it.
        let Some(several) = self.switch.several() else { return Ok(()) };
        let mut mine = self.work.take().filter(|work| work.term == term && work.text == text).unwrap_or_else(|| Work {
            term,
            text: text.clone(),
            before: None,
            hold: HOLD,
            again_at: None,
            ended_at: None,
            warned: false,
        });
        let (turn, next) = match phase {
            PlacementPhase::Filling => {
                let next = Placement { next: Some((PlacementPhase::Ending, to.clone())), ..placement.clone() };
                (Ok(self.fill(&several)), next)
            }
            PlacementPhase::Ending => {
                (self.end(&several, &mut mine).await, Placement { stores: to.clone(), next: None })
            }
        };
        self.work = Some(mine);
        match turn {
            Ok(Ok(())) => {
                let step = Some((text, next.to_string()));
                self.server.migration.say(Some(MigrationStatus { step, waits: String::new() }));
            }
            Ok(Err(waits)) | Err(EndError::NotYet(waits)) => self.server.migration.waits(waits),
            Err(EndError::Store(error)) => {
                tracing::debug!(set = %self.server.name, %error, "a change of stores makes no progress; will retry");
                self.server.migration.waits(error.to_string());
                return Err(Failed);
            }
        }
        Ok(())
    }

    fn filled(&self, several: &Quorum) -> Result<(), String> {
        filled(&several.standings(unix_ms()))
    }

    fn fill(&self, several: &Quorum) -> Result<(), String> {
        // Nothing to compare before the first checkpoint.
        if self.server.host.with(|m| m.state().current_root()).is_none() {
            self.server.head.want_checkpoint();
            return Err("the first checkpoint is being made".to_owned());
        }
        self.filled(several)
    }

    /// Whether the next list counts and the old stores have released the head.
    async fn end(&self, several: &Arc<Quorum>, work: &mut Work) -> Result<Result<(), String>, EndError> {
        let set = self.mapping.key.set;
        if several.list_ended(set).await? {
            // LIST-L3. Old stores that do not answer any more keep their data; the new list continues without them.
            holdfast_reached::reached!("migration: the new stores count already");
            let since = *work.ended_at.get_or_insert_with(Instant::now);
            let let_go = async {
                several.let_go_of_head(set).await?;
                several.mend_left_heads(set).await
            };
            // A hanging store is waited for with this limit only.
            let let_go = tokio::time::timeout(self.lets_go_within, let_go).await;
            let why = match let_go {
                Ok(Ok(true)) => return Ok(Ok(())),
                Ok(Ok(false)) => "not all old stores have released the head".to_owned(),
                Ok(Err(error)) => error.to_string(),
                Err(_) => "the old stores do not answer".to_owned(),
            };
            if since.elapsed() < self.lets_go_within {
                return Ok(Err(why));
            }
            if !std::mem::replace(&mut work.warned, true) {
                tracing::warn!(set = %self.server.name, why, "an old store may keep a head with the set's wrapped keys: empty it, also before a key counts as changed or forgotten");
            }
            return Ok(Ok(()));
        }
        let current = || self.server.host.with(|m| m.state().current_root());
        // MOVE-V1.
        let Some(before) = work.before else {
            let _none = self.server.head.checkpoint_turn().await;
            work.before = Some(current());
            self.server.head.want_checkpoint();
            return Ok(Err("a checkpoint for all stores is being made".to_owned()));
        };
        if current() == before {
            self.server.head.want_checkpoint();
            return Ok(Err("a checkpoint for all stores is being made".to_owned()));
        }
        if let Err(waits) = self.filled(several) {
            return Ok(Err(waits));
        }
        if work.again_at.is_some_and(|at| Instant::now() < at) {
            return Ok(Err("checkpoints continue for a while before everything is compared once more".to_owned()));
        }
        let ended = self.compare_and_end(several, work.hold).await;
        if ended.is_err() {
            (work.before, work.again_at) = (None, Some(Instant::now() + HOLD_AGAIN));
            work.hold = (work.hold * 2).min(HOLD_MAX);
        }
        ended.map(|()| Err("the old stores are releasing the head".to_owned()))
    }

    /// MOVE-V2 and MOVE-V3.
    async fn compare_and_end(&self, several: &Arc<Quorum>, hold: Duration) -> Result<(), EndError> {
        let _none = self.server.head.checkpoint_turn().await;
        let began = Instant::now();
        let not_yet = |why: &str| Err(EndError::NotYet(why.to_owned()));
        let set = self.mapping.key.set;
        let head = several.get_object(&keys::head(set)).await?;
        if !self.server.head.names_current(&head.body, self.server.host.with(|m| m.state().current_root())) {
            holdfast_reached::reached!("migration: the head names another checkpoint");
            return not_yet("the head names another checkpoint than the last one");
        }
        several.compare_anew();
        loop {
            tokio::time::sleep(TURN).await;
            if self.server.leading_ready().is_none() {
                holdfast_reached::reached!("migration: the leadership ended under it");
                return not_yet("this gateway no longer leads");
            }
            match self.filled(several) {
                Ok(()) => break,
                Err(_) if self.server.journal_pressed() => {
                    return not_yet("the journal fills: a checkpoint goes first");
                }
                Err(waits) if began.elapsed() >= hold => {
                    return Err(EndError::NotYet(format!("a checkpoint goes first; then again: {waits}")));
                }
                Err(waits) => {
                    self.server.migration.waits(format!("compared once more, before the new stores count: {waits}"))
                }
            }
        }
        match several.end_list(set, &head.version).await {
            Ok(()) => {
                tracing::info!(set = %self.server.name, took = ?began.elapsed(), "the new stores count from here on");
                Ok(())
            }
            Err(error) if error.disposition() == Disposition::Conflict => {
                holdfast_reached::reached!("migration: another checkpoint was committed meanwhile");
                not_yet("another checkpoint was committed meanwhile")
            }
            // R12: the next turn finds out.
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::tests::World;
    use crate::head::tests::{FIRST, SET, checkpointed, keeper_of};
    use crate::mapping::SetKey;
    use holdfast_cache::{Cache, MEMORY_BYTES_MIN};
    use holdfast_front::tests::harness::soon;
    use holdfast_seal::DataKey;
    use holdfast_store::{Backlog, Health, Kind, Memory, Standing, Trouble};
    use holdfast_types::{MemberId, ObjectId, Sectors};

    fn one(part: Part, compared: bool, named: u64, trouble: bool) -> ReplicaStanding {
        let now = trouble.then(|| Trouble {
            kind: Kind::NoAnswer,
            error: "away".into(),
            since_unix_ms: 0,
            last_unix_ms: 0,
            failures: 1,
        });
        let standing = Standing { now, last: None };
        ReplicaStanding {
            place: "s".into(),
            part,
            standing,
            backlog: Backlog { objects: named + 1, named, compared, ..Backlog::default() },
        }
    }

    #[test]
    fn the_list_ends_only_once_every_store_that_is_to_be_answers_and_has_all() {
        use Part::{Joins, Leaves, Stays};
        let full = |part| one(part, true, 0, false);
        let all = [one(Leaves, false, 9, true), full(Stays), full(Stays), full(Joins)];
        assert_eq!(filled(&all), Ok(()), "a leaving store may lack objects");
        let cases = [
            (one(Joins, false, 0, false), "it was not compared"),
            (one(Joins, true, 1, false), "it lacks one"),
            (one(Stays, true, 1, false), "it lacks one, though it is an old store"),
            (one(Joins, true, 0, true), "it is away: its head cannot begin"),
        ];
        for (last, why) in cases {
            let stores = [full(Leaves), full(Stays), full(Joins), last];
            assert!(filled(&stores).is_err(), "{why}");
        }
    }

    /// MOVE-V3: what was compared is what the head named before the comparison. Another gateway has replaced it since.
    /// If the list ended over that head, nobody would have looked for its objects in the new stores.
    #[tokio::test]
    async fn v3_the_list_does_not_end_over_a_head_that_was_not_compared() {
        let root =
            |random| RootRef { object: ObjectId { term: Term(1), member: MemberId(1), boot: 1, random }, bytes: 9 };
        for replaced in [true, false] {
            let text = "file:///a => c=2 file:///b";
            let stores: [Arc<dyn ObjectStore>; 2] = [Arc::new(Memory::new()), Arc::new(Memory::new())];
            let open = |url: &str| Ok((stores[usize::from(url.ends_with('b'))].clone(), None));
            let several = Arc::new(Quorum::over(&Placement::parse(text), open).unwrap());
            let store: Arc<dyn ObjectStore> = Arc::new(several.clone());
            let dir = tempfile::tempdir().unwrap();
            let head = keeper_of(store.clone(), FIRST, dir.path(), None);
            checkpointed(&head, Term(1), root(1)).await;
            let world = World::over(true, Some(root(1))).await;
            let (key, stop) = (SetKey::of(SET, 1, DataKey::from_bytes([6; 32])), CancellationToken::new());
            let (health, cache) = (Arc::new(Health::new("demo")), Cache::open(MEMORY_BYTES_MIN, None).await.unwrap());
            let mapping =
                Mapping::new(key, store.clone(), health, cache, MEMORY_BYTES_MIN, Sectors(0), stop.clone()).unwrap();
            let switch = Arc::new(Switch::new(text, store));
            let migration =
                StoreMigration::new(world.server.clone(), Arc::new(mapping), switch, Duration::from_secs(60), stop);
            // In place of the repair, which compares and copies.
            let compare = || {
                for at in 0..several.copies() {
                    several.compare_begins(at);
                    several.compared(at, true);
                }
            };
            compare();
            let meanwhile = async {
                while !several.must_compare(0) {
                    tokio::task::yield_now().await;
                }
                if replaced {
                    checkpointed(&head, Term(2), root(2)).await;
                }
                compare();
            };
            let (ended, ()) =
                tokio::join!(migration.compare_and_end(&several, Duration::from_secs(60)), soon(meanwhile));
            match (&ended, replaced) {
                (Ok(()), false) => {}
                (Err(EndError::NotYet(why)), true) => assert_eq!(why, "another checkpoint was committed meanwhile"),
                _ => panic!("replaced: {replaced}, {ended:?}"),
            }
            assert_eq!(several.list_ended(SET).await.unwrap(), !replaced);
        }
    }
}
