//! Carries a change of the set's stores through, at the set's leader (ADR 0018). Group 0 says what is to be; this sees to what each step needs, and says when
//! it is there (`PlacingBoard`). Which list of stores counts, their heads say (`store`, L1 to L4).
//!
//! ```text
//!   A | B    a checkpoint, if there is none ─▶ the stores of B have all that kept roots name ─▶ ready for A => B
//!   A => B   V1 a checkpoint of this leader's ─▶ V2 no checkpoint from here on ─▶ everything compared once more ─▶ V3 the list ends
//!            ─▶ checkpoints again ─▶ what was left lets go of the head ─▶ ready for B
//! ```
//! V1  The head that ends the list is of a checkpoint that this leader began, and ended, after its stores became both lists: another gateway that leads
//!     meanwhile, and has not heard of them, replaces the head, and V3 fails (it names the head's version).
//! V2  While the list is ended nothing is uploaded here, and the comparison begins after that: so everything that the head names was looked for in the
//!     stores of B, also what was put before these were known.
//! V3  Every store of B has all of it, and answers: B's head begins only where all of them do (Q3).
//!
//! All of it may be done again, by this leader or the next one.

use crate::leader_task::{self, Failed, LeaderTask, Pauses};
use crate::mapping::Mapping;
use crate::server::SetServer;
use crate::wall_clock::unix_ms;
use holdfast_control::set::RootRef;
use holdfast_raft::Placing;
use holdfast_store::{Disposition, ObjectStore, Part, Quorum, ReplicaStanding, StoreError, Switch, keys};
use holdfast_types::sync::LockExt;
use holdfast_types::{Placement, PlacementPhase, Term};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Between two turns.
const TURN: Duration = Duration::from_millis(300);
/// The same after one that failed.
const PAUSE: Duration = Duration::from_secs(3);
/// Checkpoints are held up for so long the first time that everything is compared once more, and twice as long each time that this was not enough.
const HOLD: Duration = Duration::from_secs(60);
/// … up to this. The journal takes the writes meanwhile; where it fills, the hold ends at once.
const HOLD_MAX: Duration = Duration::from_secs(900);
/// Between two holds that came to nothing.
const HOLD_AGAIN: Duration = Duration::from_secs(20);

/// What the set's leader says of a change of its stores; `None` while there is none, or where this gateway does not lead.
#[derive(Debug, Default)]
pub struct PlacingBoard {
    said: Mutex<Option<Placing>>,
}

impl PlacingBoard {
    /// What is said now.
    pub fn said(&self) -> Option<Placing> {
        self.said.locked().clone()
    }

    fn say(&self, said: Option<Placing>) {
        *self.said.locked() = said;
    }

    fn waits(&self, why: impl Into<String>) {
        self.say(Some(Placing { step: None, waits: why.into() }));
    }
}

/// V3: whether the stores that are to be have everything; else what is waited for, for people.
fn filled(standings: &[ReplicaStanding]) -> Result<(), String> {
    let full = |one: &ReplicaStanding| one.backlog.compared && one.backlog.named == 0 && one.standing.now.is_none();
    let say = |one: &ReplicaStanding| match &one.standing.now {
        Some(trouble) => format!("{} does not answer well: {}", one.place, trouble.error),
        None if !one.backlog.compared => format!("{} is compared with what is kept", one.place),
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

/// What one leader has done for one placement.
struct Work {
    term: Term,
    text: String,
    /// The current root when no checkpoint was under way here any more: the next one is begun after that (V1).
    before: Option<Option<RootRef>>,
    hold: Duration,
    again_at: Option<Instant>,
    /// Since when the next list is known to count.
    ended_at: Option<Instant>,
    /// It was said that a store that is left keeps what it has.
    warned: bool,
}

/// See the module.
pub struct Mover {
    server: Arc<SetServer>,
    mapping: Arc<Mapping>,
    switch: Arc<Switch>,
    /// The stores that are left may take so long to let go of the head.
    lets_go_within: Duration,
    /// What this leader has done for the placement that there is now.
    work: Option<Work>,
    stop: CancellationToken,
}

impl LeaderTask for Mover {
    async fn turn(&mut self, term: Term) -> Result<(), Failed> {
        self.step(term).await
    }

    async fn idle(&mut self) {
        self.work = None;
        self.server.placing.say(None);
    }
}

impl Mover {
    /// For `server`'s set, whose stores `switch` has; those that are left may take so long to let go of the head.
    pub fn new(
        server: Arc<SetServer>,
        mapping: Arc<Mapping>,
        switch: Arc<Switch>,
        lets_go_within: Duration,
        stop: CancellationToken,
    ) -> Self {
        Self { server, mapping, switch, lets_go_within, work: None, stop }
    }

    /// Runs until told to stop.
    pub async fn run(self) {
        let (server, stop) = (self.server.clone(), self.stop.clone());
        leader_task::run(server, self, Pauses::fixed(TURN, PAUSE), stop).await;
    }

    async fn step(&mut self, term: Term) -> Result<(), Failed> {
        let text = self.switch.text();
        let placement = Placement::parse(&text);
        let Some((phase, to)) = &placement.next else {
            self.idle().await;
            return Ok(());
        };
        // A change that is seen as it was: the text and what is in place belong together, or the next turn has it.
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
                self.server.placing.say(Some(Placing { step, waits: String::new() }));
            }
            Ok(Err(waits)) | Err(EndError::NotYet(waits)) => self.server.placing.waits(waits),
            Err(EndError::Store(error)) => {
                tracing::debug!(set = %self.server.name, %error, "a change of stores does not get on; tried again");
                self.server.placing.waits(error.to_string());
                return Err(Failed);
            }
        }
        Ok(())
    }

    fn filled(&self, several: &Quorum) -> Result<(), String> {
        filled(&several.standings(unix_ms()))
    }

    fn fill(&self, several: &Quorum) -> Result<(), String> {
        // Nothing to compare with before the first checkpoint.
        if self.server.host.with(|m| m.state().current_root()).is_none() {
            self.server.head.want_checkpoint();
            return Err("the first checkpoint is made".to_owned());
        }
        self.filled(several)
    }

    /// Whether the next list counts, and what was left has let go of the head.
    async fn end(&self, several: &Arc<Quorum>, work: &mut Work) -> Result<Result<(), String>, EndError> {
        let set = self.mapping.key.set;
        if several.list_ended(set).await? {
            // L3. A list that does not answer any more keeps what it has; the new one goes on without it.
            let since = *work.ended_at.get_or_insert_with(Instant::now);
            let let_go = async {
                several.let_go_of_head(set).await?;
                several.mend_left_heads(set).await
            };
            // A store that hangs is waited for by its own patience, and no longer than that.
            let let_go = tokio::time::timeout(self.lets_go_within, let_go).await;
            let why = match let_go {
                Ok(Ok(true)) => return Ok(Ok(())),
                Ok(Ok(false)) => "not all of the stores that are left have let go of the head".to_owned(),
                Ok(Err(error)) => error.to_string(),
                Err(_) => "the stores that are left do not answer".to_owned(),
            };
            if since.elapsed() < self.lets_go_within {
                return Ok(Err(why));
            }
            if !std::mem::replace(&mut work.warned, true) {
                tracing::warn!(set = %self.server.name, why, "a store that is left may keep a head with the set's wrapped keys: empty it, also before a key counts as changed or forgotten");
            }
            return Ok(Ok(()));
        }
        let current = || self.server.host.with(|m| m.state().current_root());
        // V1.
        let Some(before) = work.before else {
            let _none = self.server.head.checkpoint_turn().await;
            work.before = Some(current());
            self.server.head.want_checkpoint();
            return Ok(Err("a checkpoint that all stores have is made".to_owned()));
        };
        if current() == before {
            self.server.head.want_checkpoint();
            return Ok(Err("a checkpoint that all stores have is made".to_owned()));
        }
        if let Err(waits) = self.filled(several) {
            return Ok(Err(waits));
        }
        if work.again_at.is_some_and(|at| Instant::now() < at) {
            return Ok(Err("checkpoints go on for a while before everything is compared once more".to_owned()));
        }
        let ended = self.compare_and_end(several, work.hold).await;
        if ended.is_err() {
            (work.before, work.again_at) = (None, Some(Instant::now() + HOLD_AGAIN));
            work.hold = (work.hold * 2).min(HOLD_MAX);
        }
        ended.map(|()| Err("the stores that are left let go of the head".to_owned()))
    }

    /// V2 and V3.
    async fn compare_and_end(&self, several: &Arc<Quorum>, hold: Duration) -> Result<(), EndError> {
        let _none = self.server.head.checkpoint_turn().await;
        let began = Instant::now();
        let not_yet = |why: &str| Err(EndError::NotYet(why.to_owned()));
        let set = self.mapping.key.set;
        let head = several.get_object(&keys::head(set)).await?;
        if !self.server.head.names_current(&head.body, self.server.host.with(|m| m.state().current_root())) {
            return not_yet("the head is of another checkpoint than the last one");
        }
        several.compare_anew();
        loop {
            tokio::time::sleep(TURN).await;
            if self.server.leading_ready().is_none() {
                return not_yet("this gateway leads no more");
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
                    self.server.placing.waits(format!("compared once more, before the new stores count: {waits}"))
                }
            }
        }
        match several.end_list(set, &head.version).await {
            Ok(()) => {
                tracing::info!(set = %self.server.name, took = ?began.elapsed(), "the new stores count from here on");
                Ok(())
            }
            Err(error) if error.disposition() == Disposition::Conflict => {
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
    use holdfast_store::{Backlog, Kind, Standing, Trouble};

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
        assert_eq!(filled(&all), Ok(()), "what leaves may lack what it will");
        let cases = [
            (one(Joins, false, 0, false), "it was not compared"),
            (one(Joins, true, 1, false), "it lacks one"),
            (one(Stays, true, 1, false), "it lacks one, and was there before"),
            (one(Joins, true, 0, true), "it is away: its head cannot begin"),
        ];
        for (last, why) in cases {
            let stores = [full(Leaves), full(Stays), full(Joins), last];
            assert!(filled(&stores).is_err(), "{why}");
        }
    }
}
