//! How long the machine stood still beside a scenario: whether what failed may be the machine's doing.

use anyhow::Result;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(50);

/// Looks all the time: writes 4 KiB, waits for their `fdatasync`, and rests. What that takes longer than the rest is how long disk or processors stood still.
pub struct Stalls(Arc<Mutex<Looks>>);

struct Looks {
    longest: Duration,
    /// When the look under way, or the rest after it, began.
    begun: Instant,
    stop: bool,
}

impl Looks {
    /// The look that began last has taken until `now`.
    fn note(&mut self, now: Instant) {
        let took = now.saturating_duration_since(self.begun).saturating_sub(PAUSE);
        self.longest = self.longest.max(took);
    }
}

impl Stalls {
    /// Begins to look, with a file at this path.
    ///
    /// # Errors
    /// When there can be no such file.
    pub fn watch(path: &Path) -> Result<Self> {
        let file = File::create(path)?;
        let looks = Arc::new(Mutex::new(Looks { longest: Duration::ZERO, begun: Instant::now(), stop: false }));
        let of_thread = looks.clone();
        std::thread::spawn(move || {
            let lock = || of_thread.lock().unwrap_or_else(PoisonError::into_inner);
            while !lock().stop {
                lock().begun = Instant::now();
                // A disk that is full or gone is for the scenario to say.
                let _ = file.write_all_at(&[7; 4096], 0).and_then(|()| file.sync_data());
                std::thread::sleep(PAUSE);
                lock().note(Instant::now());
            }
        });
        Ok(Self(looks))
    }

    /// The longest that it stood still since the last call, the moment of the call included.
    pub fn longest(&self) -> Duration {
        let mut looks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        looks.note(Instant::now());
        std::mem::take(&mut looks.longest)
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).stop = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_beyond_the_rest_counts() {
        let begun = Instant::now();
        let mut looks = Looks { longest: Duration::ZERO, begun, stop: false };
        looks.note(begun + PAUSE);
        assert_eq!(looks.longest, Duration::ZERO);
        looks.note(begun + PAUSE + Duration::from_millis(700));
        looks.begun = begun + Duration::from_secs(1);
        looks.note(begun + Duration::from_secs(1) + 2 * PAUSE);
        assert_eq!(looks.longest, Duration::from_millis(700));
    }
}
