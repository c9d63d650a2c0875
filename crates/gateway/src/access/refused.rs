//! How many lines refused calls may leave in the audit log: who is refused again and again must not wash out the lines
//! of others (ACCESS-A4).

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// A certificate's refusals by one method leave one line in this time.
const EVERY: Duration = Duration::from_secs(60);

/// Most certificates and methods that are told apart. Those beyond share one entry.
const KEYS_MAX: usize = 1024;

/// The serial number of a certificate, and the method.
type Key = (String, &'static str);

struct Entry {
    /// When its last line was written.
    written: Instant,
    /// Refusals since, without a line.
    left_out: u64,
}

/// What was refused of late.
#[derive(Default)]
pub(super) struct Refused {
    entries: HashMap<Key, Entry>,
    /// All that find no room in `entries`.
    others: Option<Entry>,
}

impl Refused {
    /// Whether this refusal leaves a line: `Some` with the number of refusals before it that left none.
    pub(super) fn line(&mut self, certificate: &str, method: &'static str, now: Instant) -> Option<u64> {
        let key = (certificate.to_string(), method);
        if let Some(entry) = self.entries.get_mut(&key) {
            return entry.again(now);
        }
        if self.entries.len() >= KEYS_MAX {
            // One that has refusals to tell of stays until it has told.
            self.entries.retain(|_, entry| entry.left_out > 0 || !entry.is_over(now));
        }
        if self.entries.len() < KEYS_MAX {
            self.entries.insert(key, Entry { written: now, left_out: 0 });
            return Some(0);
        }
        match &mut self.others {
            Some(entry) => entry.again(now),
            None => {
                self.others = Some(Entry { written: now, left_out: 0 });
                Some(0)
            }
        }
    }
}

impl Entry {
    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.written) >= EVERY
    }

    fn again(&mut self, now: Instant) -> Option<u64> {
        if !self.is_over(now) {
            self.left_out = self.left_out.saturating_add(1);
            return None;
        }
        self.written = now;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_minute_says_how_many_there_were() {
        let mut refused = Refused::default();
        let begin = Instant::now();
        let at = |seconds: u64| begin + Duration::from_secs(seconds);
        assert_eq!(refused.line("db1", "DeleteSet", at(0)), Some(0));
        for second in 1..60 {
            assert_eq!(refused.line("db1", "DeleteSet", at(second)), None, "ACCESS-A4");
        }
        assert_eq!(refused.line("db1", "CreateSet", at(1)), Some(0), "another method");
        assert_eq!(refused.line("db2", "DeleteSet", at(1)), Some(0), "another certificate");
        assert_eq!(refused.line("db1", "DeleteSet", at(60)), Some(59));
        assert_eq!(refused.line("db1", "DeleteSet", at(61)), None);
        assert_eq!(refused.line("db1", "DeleteSet", at(120)), Some(1));
    }

    #[test]
    fn many_certificates_take_no_more_room() {
        let mut refused = Refused::default();
        let begin = Instant::now();
        for n in 0..KEYS_MAX {
            assert_eq!(refused.line(&format!("c{n}"), "DeleteSet", begin), Some(0));
        }
        assert_eq!(refused.line("d0", "DeleteSet", begin), Some(0), "the first of the others");
        assert_eq!(refused.line("d1", "DeleteSet", begin), None);
        assert_eq!(refused.line("c0", "DeleteSet", begin), None);
        assert_eq!(refused.entries.len(), KEYS_MAX);
        let later = begin + EVERY;
        assert_eq!(refused.line("d2", "DeleteSet", later), Some(0), "it has room of its own again");
        assert_eq!(refused.entries.len(), 2, "c0 has one to tell of");
        assert_eq!(refused.line("c0", "DeleteSet", later), Some(1));
    }
}
