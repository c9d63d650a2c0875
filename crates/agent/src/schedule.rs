//! A scheduled switchover: kept on disk until it is due, then carried out once or dropped with a reason.
//!
//! TIMED-T1  At most once: it is removed from the disk before it begins. An agent that ends in between has not done it,
//!     and only its log says so.
//! TIMED-T2  Never later than [`LATE_MAX`]: an operator who chose a time meant that time.

use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
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

/// Its next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Due {
    /// Nothing yet.
    Later,
    /// It begins.
    Now,
    /// It is dropped, with the reason.
    Dropped(String),
}

/// The next step at `now_unix_ms`, on a host that runs PostgreSQL (`is_primary`) or does not.
pub fn due(scheduled: &Scheduled, now_unix_ms: u64, is_primary: bool) -> Due {
    if now_unix_ms < scheduled.at_unix_ms {
        return Due::Later;
    }
    let late = Duration::from_millis(now_unix_ms - scheduled.at_unix_ms);
    if late > LATE_MAX {
        return Due::Dropped(format!(
            "it was due {} s ago, at most {} s late are allowed: ask for it anew",
            late.as_secs(),
            LATE_MAX.as_secs()
        ));
    }
    if !is_primary {
        return Due::Dropped("PostgreSQL does not run on this host now: ask the agent of the one that is".into());
    }
    Due::Now
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

/// The scheduled switchover of an agent.
#[derive(Debug)]
pub struct Schedule {
    path: PathBuf,
    kept: Mutex<Option<Scheduled>>,
}

impl Schedule {
    /// Reads it from this directory. A file that cannot be read counts as absent.
    pub fn open(dir: &Path) -> Self {
        let path = dir.join("scheduled.json");
        let kept = std::fs::read(&path).ok().and_then(|text| serde_json::from_slice(&text).ok());
        Self { path, kept: Mutex::new(kept) }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Scheduled>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The scheduled switchover.
    pub fn get(&self) -> Option<Scheduled> {
        self.lock().clone()
    }

    /// Stores it and returns the earlier one that it replaces.
    ///
    /// # Errors
    /// It could not be written, and is not stored.
    pub fn set(&self, scheduled: Scheduled) -> std::io::Result<Option<Scheduled>> {
        let mut kept = self.lock();
        let new = self.path.with_extension("new");
        let file = std::fs::File::create(&new)?;
        serde_json::to_writer(&file, &scheduled)?;
        file.sync_all()?;
        std::fs::rename(&new, &self.path)?;
        Ok(kept.replace(scheduled))
    }

    /// Removes it (TIMED-T1).
    ///
    /// # Errors
    /// It could not be removed, and is still stored.
    pub fn take(&self) -> std::io::Result<Option<Scheduled>> {
        let mut kept = self.lock();
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(kept.take()),
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
    fn it_begins_in_time_at_the_primary_or_not_at_all() {
        assert_eq!(due(&at(1000), 999, true), Due::Later);
        assert_eq!(due(&at(1000), 999, false), Due::Later, "it may run there by then");
        assert_eq!(due(&at(1000), 1000, true), Due::Now);
        assert_eq!(due(&at(1000), 61_000, true), Due::Now);
        assert!(matches!(due(&at(1000), 61_001, true), Due::Dropped(why) if why.contains("anew")));
        assert!(matches!(due(&at(1000), 1000, false), Due::Dropped(why) if why.contains("does not run on this host")));
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
        std::fs::write(dir.path().join("scheduled.json"), "{").unwrap();
        assert_eq!(Schedule::open(dir.path()).get(), None);
    }
}
