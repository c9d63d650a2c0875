//! What was logged, so that a lasting failure does not fill the log.

use std::time::{Duration, Instant};

/// Minimum time before a lasting failure is logged again.
const SAY_EVERY: Duration = Duration::from_secs(60);

/// Lets a message through when it changes, and now and then while it lasts.
#[derive(Default)]
pub(super) struct Said(Option<(String, Instant)>);

impl Said {
    pub(super) fn is_news(&mut self, what: &str) -> bool {
        let old = self.0.as_ref().is_some_and(|(said, at)| said == what && at.elapsed() < SAY_EVERY);
        if !old {
            self.0 = Some((what.to_string(), Instant::now()));
        }
        !old
    }
}
