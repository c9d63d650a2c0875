//! Switchovers at a time that is to come: planned, cancelled, begun or dropped.

use super::door::{Door, Reply};
use super::moves::{self, planned, refused};
use crate::clock;
use crate::machine::Event;
use crate::plan::{self, When};
use crate::schedule::{self, Due, Obstacle, Schedule, Scheduled};
use axum::http::StatusCode;
use std::io;
use std::time::Duration;
use tokio::time::Instant;

/// Interval of the looks at the scheduled switchover.
const SCHEDULE_INTERVAL: Duration = Duration::from_millis(500);

/// Pause between two tries of one that is due. Each try asks all agents.
const RETRY_PAUSE: Duration = if cfg!(test) { Duration::from_millis(200) } else { Duration::from_secs(3) };

/// Changes the stored switchover, which waits for the disk: beside the runtime's own threads (TASK-N4).
async fn beside<T: Send + 'static>(
    door: &Door,
    change: impl FnOnce(&Schedule) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let schedule = door.schedule.clone();
    let changed = tokio::task::spawn_blocking(move || change(&schedule)).await;
    changed.unwrap_or_else(|error| Err(io::Error::other(error)))
}

/// Removes this one, if it is still stored. Says whether it was.
async fn taken(door: &Door, scheduled: &Scheduled) -> io::Result<bool> {
    let scheduled = scheduled.clone();
    beside(door, move |schedule| schedule.take_if(&scheduled)).await
}

/// Stores a switchover for later. Its target is checked now, and again at its time.
pub(super) async fn plan_ahead(
    door: &Door,
    to: Option<String>,
    dry_run: bool,
    at_unix_ms: u64,
) -> Result<Reply, Reply> {
    let when = When { at_unix_ms, now_unix_ms: clock::unix_ms() };
    let plan = planned(door, to.as_deref(), Some(when), Duration::ZERO).await;
    let (set, host, seconds) = (&door.config.set, &plan.to, when.seconds());
    let may_go = plan.may_go(false, "");
    if dry_run {
        return Ok(Reply::would(&plan, may_go, &format!("would move {set} to {host} in {seconds} s")));
    }
    may_go.map_err(|why| refused(why).with(&plan))?;
    let stored = beside(door, move |schedule| schedule.set(Scheduled { at_unix_ms, to })).await;
    let failed = |error: std::io::Error| {
        let dir = door.config.dir.display();
        let words = format!("not scheduled, {dir}: {error}: make room there, or correct `dir` in the settings");
        Reply::no(StatusCode::INTERNAL_SERVER_ERROR, words)
    };
    let earlier = stored.map_err(failed)?;
    let instead = if earlier.is_some() { ", in the place of an earlier one" } else { "" };
    door.note(Event::Scheduled, &format!("switchover to {host} in {seconds} s{instead}"));
    let words =
        format!("{set} moves to {host} in {seconds} s{instead}; `holdfast agent switchover --cancel` ends that");
    Ok(Reply::yes(words).with(&plan))
}

/// Removes the scheduled switchover.
pub(super) async fn cancel(door: &Door) -> Result<Reply, Reply> {
    let failed = |error: std::io::Error| {
        let words = format!("not cancelled, {}: {error}: ask again once it can be written", door.config.dir.display());
        Reply::no(StatusCode::INTERNAL_SERVER_ERROR, words)
    };
    match beside(door, Schedule::take).await.map_err(failed)? {
        Some(_) => {
            door.note(Event::Scheduled, "cancelled by command");
            Ok(Reply::yes("cancelled"))
        }
        None => Err(refused(format!(
            "no switchover is scheduled at {}: `holdfast agent status` shows where one is",
            door.config.name
        ))),
    }
}

/// Checks the scheduled switchover from time to time, for as long as the agent runs.
pub(crate) async fn keep_schedule(door: Door) {
    let mut ticks = tokio::time::interval(SCHEDULE_INTERVAL);
    let mut tries = Tries::default();
    loop {
        ticks.tick().await;
        match door.schedule.get() {
            Some(scheduled) => look(&door, &scheduled, &mut tries).await,
            None => tries = Tries::default(),
        }
    }
}

/// The tries of one scheduled switchover.
#[derive(Debug, Default)]
struct Tries {
    of: Option<Scheduled>,
    /// Reason why it did not begin when it was looked at last.
    why: Option<String>,
    /// Not before this.
    next: Option<Instant>,
}

impl Tries {
    /// A person may have replaced it.
    fn follow(&mut self, scheduled: &Scheduled) {
        if self.of.as_ref() != Some(scheduled) {
            *self = Self { of: Some(scheduled.clone()), ..Self::default() };
        }
    }

    fn meet(&mut self, why: String) {
        if self.why.as_ref() != Some(&why) {
            tracing::warn!(why, "a scheduled switchover is due, but cannot begin yet; retrying");
        }
        self.why = Some(why);
    }

    fn rest(&mut self) {
        self.next = Some(Instant::now() + RETRY_PAUSE);
    }

    fn rests(&self) -> bool {
        self.next.is_some_and(|next| Instant::now() < next)
    }

    /// The line of the history for one that has begun.
    fn begun(&self) -> String {
        self.why.as_ref().map_or("begun in time".into(), |why| format!("begun in time, although at first {why}"))
    }
}

/// The next step of this switchover.
async fn look(door: &Door, scheduled: &Scheduled, tries: &mut Tries) {
    tries.follow(scheduled);
    let here = plan::obstacle_here(&door.view());
    match schedule::due(scheduled, clock::unix_ms(), here.as_ref(), tries.why.as_deref()) {
        Due::Later => {}
        Due::Now if tries.rests() => {}
        Due::Now => match begin(door, scheduled).await {
            Outcome::Begun => door.note(Event::Scheduled, &tries.begun()),
            Outcome::Withdrawn => {}
            Outcome::Given(why) => door.note(Event::Scheduled, &format!("dropped: {why}")),
            Outcome::Stored(obstacle) => match schedule::due(scheduled, clock::unix_ms(), Some(&obstacle), None) {
                Due::Dropped(why) => drop_it(door, scheduled, &why, tries).await,
                _ => {
                    tries.meet(obstacle.why);
                    tries.rest();
                }
            },
        },
        Due::Waits => {
            if let Some(obstacle) = here {
                tries.meet(obstacle.why);
            }
        }
        Due::Dropped(why) => drop_it(door, scheduled, &why, tries).await,
    }
}

/// What became of a switchover that was due.
#[derive(Debug)]
enum Outcome {
    /// It has begun.
    Begun,
    /// A person has cancelled or replaced it meanwhile; the history has a line for that.
    Withdrawn,
    /// It has not begun, and is still stored.
    Stored(Obstacle),
    /// It is stored no more. It has not begun, as far as is known.
    Given(String),
}

async fn begin(door: &Door, scheduled: &Scheduled) -> Outcome {
    let plan = match moves::proposed(door, scheduled.to.as_deref()).await {
        Ok(plan) => plan,
        Err(not) => return Outcome::Stored(not.obstacle()),
    };
    if let Err(not) = moves::claimed(door, &plan).await {
        return Outcome::Stored(not.obstacle());
    }
    // TIMED-T2
    if schedule::due(scheduled, clock::unix_ms(), None, None) != Due::Now {
        return Outcome::Stored(Obstacle::transient("the checks took too long"));
    }
    // TIMED-T1
    match taken(door, scheduled).await {
        Ok(true) => {}
        Ok(false) => return Outcome::Withdrawn,
        Err(error) => return Outcome::Stored(Obstacle::transient(unwritten(door, &error))),
    }
    let Err(not) = moves::handed_over(door, &plan).await else { return Outcome::Begun };
    let obstacle = not.obstacle();
    if !obstacle.transient {
        return Outcome::Given(obstacle.why);
    }
    let again = scheduled.clone();
    match beside(door, move |schedule| schedule.put_back(again)).await {
        Ok(true) => Outcome::Stored(obstacle),
        Ok(false) => Outcome::Withdrawn,
        Err(error) => Outcome::Given(format!("{}; {}", obstacle.why, unwritten(door, &error))),
    }
}

fn unwritten(door: &Door, error: &std::io::Error) -> String {
    format!("{}: {error}: make room there, or correct `dir` in the settings", door.config.dir.display())
}

/// Drops it, unless a person has cancelled or replaced it meanwhile.
async fn drop_it(door: &Door, scheduled: &Scheduled, why: &str, tries: &mut Tries) {
    match taken(door, scheduled).await {
        Ok(true) => door.note(Event::Scheduled, &format!("dropped: {why}")),
        Ok(false) => {}
        Err(error) if tries.rests() => tracing::debug!(%error, "a scheduled switchover is still on the disk"),
        Err(error) => {
            tracing::error!(why, error = unwritten(door, &error), "cannot delete a scheduled switchover");
            tries.rest();
        }
    }
}
