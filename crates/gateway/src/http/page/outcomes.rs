//! What came of the page's actions (WEB-H7, WEB-H8).

use super::ticket::LIFE_S;
use holdfast_types::sync::LockExt;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// Actions that go on at a time.
pub(super) const AT_ONCE: usize = 8;

/// Actions that are kept, with those that go on. Of the others the oldest leave.
const KEPT: usize = 64;

/// Forms that are known to have been sent. Once there are so many, no action begins until some are forgotten.
const SENT_MAX: usize = 1024;

/// How long a form is known to have been sent, in seconds: longer than its ticket is good.
const SENT_S: u64 = 2 * LIFE_S;

/// How an action ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It was carried out.
    Done,
    /// Nothing was changed.
    Refused,
    /// It may have happened (R12).
    Unknown,
}

/// The end of an action, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub kind: Kind,
    pub text: String,
}

/// One action.
struct Entry {
    /// Of its form.
    id: String,
    /// SHA-256 of the certificate of who asked for it. Nobody else is told.
    certificate: [u8; 32],
    /// What it is, for people.
    what: String,
    /// `None` while it goes on.
    outcome: Option<Outcome>,
}

/// What is known of actions.
#[derive(Default)]
struct Known {
    kept: VecDeque<Entry>,
    /// Ids of forms that began an action, each with the time at which it is forgotten, in the order of that time. They
    /// stay longer than the outcomes: a browser may send a form once more after its outcome has left.
    sent: VecDeque<(String, u64)>,
}

/// The actions of this process.
#[derive(Default)]
pub(super) struct Outcomes(Mutex<Known>);

/// The answer to an action that wants to begin.
pub(super) enum Begun {
    Now(Going),
    /// Its form was sent before: nothing begins again.
    Before,
    /// Too many go on, or were sent lately.
    Crowded,
}

/// An action that goes on. If this is dropped without an outcome, its outcome is not known.
pub(super) struct Going {
    all: Arc<Outcomes>,
    id: String,
}

impl Outcomes {
    /// Begins an action. `now_s` is a time of this process in seconds.
    pub(super) fn begin(self: &Arc<Self>, id: &str, certificate: [u8; 32], what: String, now_s: u64) -> Begun {
        let mut known = self.0.locked();
        while known.sent.front().is_some_and(|(_, until_s)| *until_s <= now_s) {
            known.sent.pop_front();
        }
        if known.sent.iter().any(|(sent, _)| sent == id) {
            return Begun::Before;
        }
        let going_on = known.kept.iter().filter(|entry| entry.outcome.is_none()).count();
        if going_on >= AT_ONCE || known.sent.len() >= SENT_MAX {
            return Begun::Crowded;
        }
        if known.kept.len() >= KEPT
            && let Some(oldest) = known.kept.iter().position(|entry| entry.outcome.is_some())
        {
            known.kept.remove(oldest);
        }
        known.sent.push_back((id.to_string(), now_s.saturating_add(SENT_S)));
        known.kept.push_back(Entry { id: id.to_string(), certificate, what, outcome: None });
        Begun::Now(Going { all: self.clone(), id: id.to_string() })
    }

    /// What the action is, and its outcome once it has one; `None` for whoever has not asked for it.
    pub(super) fn of(&self, id: &str, certificate: &[u8; 32]) -> Option<(String, Option<Outcome>)> {
        let known = self.0.locked();
        let found = known.kept.iter().find(|entry| entry.id == id && entry.certificate == *certificate)?;
        Some((found.what.clone(), found.outcome.clone()))
    }
}

impl Going {
    /// Its form's id.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Notes the outcome.
    pub(super) fn ends(self, outcome: Outcome) {
        self.note(outcome);
    }

    /// The first outcome counts.
    fn note(&self, outcome: Outcome) {
        let mut known = self.all.0.locked();
        if let Some(entry) = known.kept.iter_mut().find(|entry| entry.id == self.id && entry.outcome.is_none()) {
            entry.outcome = Some(outcome);
        }
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        self.note(Outcome { kind: Kind::Unknown, text: "the call has ended without an answer".to_string() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANN: [u8; 32] = [7; 32];

    fn begun(all: &Arc<Outcomes>, id: &str) -> Option<Going> {
        match all.begin(id, ANN, format!("action {id}"), 0) {
            Begun::Now(going) => Some(going),
            Begun::Before | Begun::Crowded => None,
        }
    }

    fn done() -> Outcome {
        Outcome { kind: Kind::Done, text: "done".to_string() }
    }

    #[test]
    fn h7_a_form_begins_once_and_its_outcome_is_for_who_sent_it() {
        let all = Arc::new(Outcomes::default());
        let going = begun(&all, "f1").expect("it begins");
        assert_eq!(going.id(), "f1");
        assert!(matches!(all.begin("f1", ANN, String::new(), 0), Begun::Before), "while it goes on");
        assert_eq!(all.of("f1", &ANN), Some(("action f1".to_string(), None)));
        going.ends(done());
        assert_eq!(all.of("f1", &ANN), Some(("action f1".to_string(), Some(done()))));
        assert!(matches!(all.begin("f1", ANN, String::new(), LIFE_S), Begun::Before), "afterwards");
        assert_eq!(all.of("f1", &[8; 32]), None, "another certificate");
        assert_eq!(all.of("f2", &ANN), None);
    }

    #[test]
    fn h8_few_go_on_at_once_and_few_are_kept() {
        let all = Arc::new(Outcomes::default());
        let mut going: Vec<Going> = (0..100).filter_map(|number| begun(&all, &format!("f{number}"))).collect();
        assert_eq!(going.len(), AT_ONCE);
        // The first one stays: it goes on.
        for number in 100..300 {
            going.pop().expect("one that goes on").ends(done());
            going.extend(begun(&all, &format!("f{number}")));
            assert!(all.0.locked().kept.len() <= KEPT, "{number}");
        }
        assert_eq!(all.of("f0", &ANN), Some(("action f0".to_string(), None)));
        assert_eq!(all.of("f100", &ANN), None, "the oldest has left");
        assert!(begun(&all, "f100").is_none(), "and is not begun again");
        assert!(all.of("f299", &ANN).is_some());
    }

    #[test]
    fn h8_few_forms_are_remembered_and_each_longer_than_it_is_good() {
        let all = Arc::new(Outcomes::default());
        for number in 0..SENT_MAX {
            begun(&all, &format!("f{number}")).expect("it begins").ends(done());
        }
        let at = |id: &str, now_s| all.begin(id, ANN, String::new(), now_s);
        assert!(matches!(at("f0", SENT_S - 1), Begun::Before));
        assert!(matches!(at("new", SENT_S - 1), Begun::Crowded));
        assert!(matches!(at("new", SENT_S), Begun::Now(_)));
        assert_eq!(all.0.locked().sent.len(), 1);
    }

    #[test]
    fn h7_an_action_that_is_lost_has_an_unknown_outcome() {
        let all = Arc::new(Outcomes::default());
        drop(begun(&all, "f1"));
        let (_, outcome) = all.of("f1", &ANN).expect("it is kept");
        assert_eq!(outcome.map(|outcome| outcome.kind), Some(Kind::Unknown));
    }
}
