//! A scheduled switchover: kept on disk until it is due, then carried out once or dropped with a reason.
//!
//! TIMED-T1  At most once: it is removed from the disk before it begins. An agent that ends in between has not done it,
//!     and only its log says so. A loss of power brings nothing back that was removed.
//! TIMED-T2  Never later than [`LATE_MAX`]: an operator who chose a time meant that time.
//! TIMED-T3  An obstacle that may go away by itself does not drop it. It is tried again until [`LATE_MAX`] has passed.

use crate::pause::{SyncAbove, sync_above};
use holdfast_types::sync::LockExt;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

/// Maximum delay: the agent may restart meanwhile.
pub const LATE_MAX: Duration = Duration::from_secs(60);

/// Maximum time ahead.
pub const AHEAD_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// A scheduled switchover.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scheduled {
    /// Its time, Unix milliseconds.
    pub at_unix_ms: u64,
    /// The target host; `None`: the only other one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}

/// Reason why a scheduled switchover does not begin now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// What was found, and the remedy.
    pub why: String,
    /// It may go away by itself within [`LATE_MAX`].
    pub transient: bool,
}

impl Obstacle {
    /// One that may go away by itself.
    pub fn transient(why: impl Into<String>) -> Self {
        Self { why: why.into(), transient: true }
    }

    /// One that a person has to remove.
    pub fn lasting(why: impl Into<String>) -> Self {
        Self { why: why.into(), transient: false }
    }
}

/// Its next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Due {
    /// Nothing yet.
    Later,
    /// It begins.
    Now,
    /// It is due and stays scheduled, because of an obstacle that may go away.
    Waits,
    /// It is dropped, with the reason.
    Dropped(String),
}

/// The next step at `now_unix_ms`. `obstacle`: what keeps it from beginning now, if anything is known. `last`: the
/// reason why it did not begin when it was tried last.
pub fn due(scheduled: &Scheduled, now_unix_ms: u64, obstacle: Option<&Obstacle>, last: Option<&str>) -> Due {
    if now_unix_ms < scheduled.at_unix_ms {
        return Due::Later;
    }
    let late = Duration::from_millis(now_unix_ms - scheduled.at_unix_ms);
    if late > LATE_MAX {
        let (late, most) = (late.as_secs(), LATE_MAX.as_secs());
        let words = format!("it was due {late} s ago, at most {most} s late are allowed: request it again");
        return Due::Dropped(match obstacle.map(|obstacle| obstacle.why.as_str()).or(last) {
            Some(why) => format!("{words}; the last obstacle: {why}"),
            None => words,
        });
    }
    match obstacle {
        None => Due::Now,
        // TIMED-T3
        Some(obstacle) if obstacle.transient => Due::Waits,
        Some(obstacle) => Due::Dropped(obstacle.why.clone()),
    }
}

/// Reason why a time is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Untimely {
    /// The found and the expected value.
    pub found: String,
    /// The remedy.
    pub next: String,
}

/// Whether a time is accepted.
///
/// # Errors
/// The reason, and the remedy.
pub fn may_ask(at_unix_ms: u64, now_unix_ms: u64) -> Result<(), Untimely> {
    if at_unix_ms <= now_unix_ms {
        let ago = (now_unix_ms - at_unix_ms) / 1000;
        return Err(Untimely {
            found: format!("that time was {ago} s ago by the clock of this host, expected one to come"),
            next: "leave it out to switch over now".into(),
        });
    }
    let ahead = Duration::from_millis(at_unix_ms - now_unix_ms);
    if ahead > AHEAD_MAX {
        let (found, days) = (ahead.as_secs() / 86_400, AHEAD_MAX.as_secs() / 86_400);
        return Err(Untimely {
            found: format!("found a time {found} days ahead, at most {days} are allowed"),
            next: format!("ask for it again when it is {days} days ahead"),
        });
    }
    Ok(())
}

/// The scheduled switchover of an agent. [`Schedule::get`] waits for no disk; everything else does, and is called
/// beside the runtime's own threads.
#[derive(Debug)]
pub struct Schedule {
    path: PathBuf,
    sync: SyncAbove,
    /// Held by whoever changes it, also while the disk is waited for.
    change: Mutex<()>,
    kept: Mutex<Option<Scheduled>>,
}

impl Schedule {
    /// Reads it from this directory. A file that cannot be read counts as absent, and the log says so.
    pub fn open(dir: &Path) -> Self {
        let path = dir.join("scheduled.json");
        let parsed = |text: Vec<u8>| serde_json::from_slice::<Scheduled>(&text).map_err(std::io::Error::from);
        let read = std::fs::read(&path).and_then(parsed);
        if let Err(error) = &read
            && error.kind() != std::io::ErrorKind::NotFound
        {
            let path = path.display();
            tracing::error!(%path, %error, "a scheduled switchover cannot be read, and is not carried out: request it again");
        }
        Self { path, sync: sync_above, change: Mutex::default(), kept: Mutex::new(read.ok()) }
    }

    /// The scheduled switchover.
    pub fn get(&self) -> Option<Scheduled> {
        self.kept.locked().clone()
    }

    /// Stores it and returns the earlier one that it replaces.
    ///
    /// # Errors
    /// It could not be written, and is not stored.
    pub fn set(&self, scheduled: Scheduled) -> std::io::Result<Option<Scheduled>> {
        let _change = self.change.locked();
        self.write(&scheduled)?;
        Ok(self.kept.locked().replace(scheduled))
    }

    /// Stores it again after [`Schedule::take_if`], unless another one was stored meanwhile. Says whether it is stored.
    ///
    /// # Errors
    /// It could not be written, and is not stored.
    pub fn put_back(&self, scheduled: Scheduled) -> std::io::Result<bool> {
        let _change = self.change.locked();
        if self.get().is_some() {
            return Ok(false);
        }
        self.write(&scheduled)?;
        *self.kept.locked() = Some(scheduled);
        Ok(true)
    }

    fn write(&self, scheduled: &Scheduled) -> std::io::Result<()> {
        self.replace(scheduled)?;
        self.sync_or_undo()
    }

    /// Under another name first: the file is whole at any time.
    fn replace(&self, scheduled: &Scheduled) -> std::io::Result<()> {
        let new = self.path.with_extension("new");
        let file = std::fs::File::create(&new)?;
        serde_json::to_writer(&file, scheduled)?;
        file.sync_all()?;
        std::fs::rename(&new, &self.path)
    }

    /// A change that does not reach the disk is refused. Then the file becomes what it was: a later agent carries out
    /// what this one goes on with, and nothing else.
    fn sync_or_undo(&self) -> std::io::Result<()> {
        let synced = (self.sync)(&self.path);
        if synced.is_err() {
            let undone = match self.get() {
                Some(earlier) => self.replace(&earlier),
                None => self.remove_file(),
            };
            if let Err(error) = undone {
                let path = self.path.display();
                tracing::error!(%path, %error, "a refused change of a scheduled switchover may take effect after a restart");
            }
        }
        synced
    }

    /// Removes it (TIMED-T1).
    ///
    /// # Errors
    /// It could not be removed, and is still stored.
    pub fn take(&self) -> std::io::Result<Option<Scheduled>> {
        let _change = self.change.locked();
        self.remove()?;
        Ok(self.kept.locked().take())
    }

    /// Removes it if it is still this one (TIMED-T1). Says whether it was: a person may have cancelled or replaced it.
    ///
    /// # Errors
    /// It could not be removed, and is still stored.
    pub fn take_if(&self, scheduled: &Scheduled) -> std::io::Result<bool> {
        let _change = self.change.locked();
        if self.get().as_ref() != Some(scheduled) {
            return Ok(false);
        }
        self.remove()?;
        *self.kept.locked() = None;
        Ok(true)
    }

    fn remove(&self) -> std::io::Result<()> {
        self.remove_file()?;
        self.sync_or_undo()
    }

    fn remove_file(&self) -> std::io::Result<()> {
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(at_unix_ms: u64) -> Scheduled {
        Scheduled { at_unix_ms, to: Some("db2".into()) }
    }

    #[test]
    fn it_begins_in_time_or_not_at_all() {
        let moved = Obstacle::lasting("db2 holds the lease");
        assert_eq!(due(&at(1000), 999, None, None), Due::Later);
        assert_eq!(due(&at(1000), 999, Some(&moved), None), Due::Later, "it may run there by then");
        assert_eq!(due(&at(1000), 1000, None, None), Due::Now);
        assert_eq!(due(&at(1000), 61_000, None, None), Due::Now);
        assert!(matches!(due(&at(1000), 61_001, None, None), Due::Dropped(why) if why.ends_with("request it again")));
        assert_eq!(due(&at(1000), 1000, Some(&moved), None), Due::Dropped("db2 holds the lease".into()));
    }

    /// TIMED-T3
    #[test]
    fn an_obstacle_that_may_go_away_is_waited_for_and_named_in_the_end() {
        let gateway = Obstacle::transient("db2 reaches no gateway");
        for late_ms in [0, 500, 60_000] {
            assert_eq!(due(&at(1000), 1000 + late_ms, Some(&gateway), None), Due::Waits, "{late_ms} ms late");
        }
        assert_eq!(due(&at(1000), 4000, None, Some("db2 reaches no gateway")), Due::Now, "it is tried again");
        for (obstacle, last) in [(Some(&gateway), None), (None, Some("db2 reaches no gateway"))] {
            let Due::Dropped(why) = due(&at(1000), 61_001, obstacle, last) else { panic!("not dropped") };
            assert!(
                why.contains("due 60 s ago") && why.ends_with("the last obstacle: db2 reaches no gateway"),
                "{why}"
            );
        }
    }

    #[test]
    fn only_times_to_come_and_near_ones() {
        assert!(may_ask(1000, 1000).unwrap_err().next.contains("leave it out"));
        assert_eq!(may_ask(1001, 1000), Ok(()));
        let month = u64::try_from(AHEAD_MAX.as_millis()).unwrap();
        assert_eq!(may_ask(1000 + month, 1000), Ok(()));
        let far = may_ask(1001 + month, 1000).unwrap_err();
        assert!(far.found.contains("at most 30") && !far.next.is_empty(), "{far:?}");
    }

    /// `/status` and the agent's own looks go on while the disk hangs.
    #[test]
    fn it_is_seen_while_another_one_waits_for_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        let schedule = std::sync::Arc::new(Schedule::open(dir.path()));
        schedule.set(at(5)).unwrap();
        // A pipe that nobody reads: whoever writes to it waits for a reader.
        let pipe = dir.path().join("scheduled.new");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let there = schedule.clone();
        let sets = std::thread::spawn(move || there.set(at(7)).map_err(|error| error.kind()));
        // It holds the lock of changes by now.
        let begun = std::time::Instant::now();
        while schedule.change.try_lock().is_ok() {
            assert!(begun.elapsed() < Duration::from_secs(20));
            std::thread::yield_now();
        }
        let (sees, seen) = std::sync::mpsc::channel();
        let there = schedule.clone();
        std::thread::spawn(move || sees.send(there.get()));
        let seen = seen.recv_timeout(Duration::from_secs(20));
        // Now there is a reader. A pipe cannot be synced.
        let _reads = std::fs::File::options().read(true).write(true).open(&pipe).unwrap();
        assert!(sets.join().unwrap().is_err());
        assert_eq!(seen.expect("it waits for no disk"), Some(at(5)));
    }

    /// Asked for or taken back, and refused: this agent and a later one go on with what was there.
    #[test]
    fn a_directory_that_does_not_sync_leaves_the_schedule_as_it_was() {
        for before in [None, Some(at(5))] {
            let dir = tempfile::tempdir().unwrap();
            let mut schedule = Schedule::open(dir.path());
            if let Some(before) = before.clone() {
                schedule.set(before).unwrap();
            }
            schedule.sync = |_| Err(std::io::ErrorKind::StorageFull.into());
            let unchanged = |what: &str| {
                assert_eq!(schedule.get(), before, "{what}");
                assert_eq!(Schedule::open(dir.path()).get(), before, "{what}, a later agent");
            };
            schedule.set(at(7)).unwrap_err();
            unchanged("set");
            schedule.take().unwrap_err();
            unchanged("taken");
            match &before {
                Some(before) => drop(schedule.take_if(before).unwrap_err()),
                None => drop(schedule.put_back(at(7)).unwrap_err()),
            }
            unchanged("begun");
        }
    }

    #[test]
    fn it_survives_the_agent_and_is_taken_once() {
        let dir = tempfile::tempdir().unwrap();
        let schedule = Schedule::open(dir.path());
        assert_eq!(schedule.get(), None);
        assert_eq!(schedule.set(at(5)).unwrap(), None);
        assert_eq!(schedule.set(at(7)).unwrap(), Some(at(5)), "one at a time");
        let schedule = Schedule::open(dir.path());
        assert_eq!(schedule.take().unwrap(), Some(at(7)));
        assert_eq!((schedule.get(), schedule.take().unwrap()), (None, None));
        assert_eq!(Schedule::open(dir.path()).get(), None);
        // A person may cancel or replace it while it is about to begin.
        schedule.set(at(8)).unwrap();
        assert!(!schedule.take_if(&at(7)).unwrap() && schedule.get() == Some(at(8)));
        assert!(schedule.take_if(&at(8)).unwrap() && !schedule.take_if(&at(8)).unwrap());
        assert!(schedule.put_back(at(8)).unwrap() && !schedule.put_back(at(9)).unwrap());
        assert_eq!(Schedule::open(dir.path()).get(), Some(at(8)));
        schedule.take().unwrap();
        std::fs::write(dir.path().join("scheduled.json"), "{").unwrap();
        assert_eq!(Schedule::open(dir.path()).get(), None);
    }
}
