//! What came of the page's actions (WEB-H7, WEB-H8).

use holdfast_types::sync::LockExt;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// Actions that go on at a time.
pub(super) const AT_ONCE: usize = 8;

/// Actions that are kept, with those that go on. Of the others the oldest leave.
const KEPT: usize = 64;

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

/// The actions of this process.
#[derive(Default)]
pub(super) struct Outcomes(Mutex<VecDeque<Entry>>);

/// The answer to an action that wants to begin.
pub(super) enum Begun {
    Now(Going),
    /// Its form was sent before: nothing begins again.
    Before,
    /// Too many go on.
    Crowded,
}

/// An action that goes on. If this is dropped without an outcome, its outcome is not known.
pub(super) struct Going {
    all: Arc<Outcomes>,
    id: String,
}

impl Outcomes {
    /// Begins an action.
    pub(super) fn begin(self: &Arc<Self>, id: &str, certificate: [u8; 32], what: String) -> Begun {
        let mut kept = self.0.locked();
        if kept.iter().any(|entry| entry.id == id) {
            return Begun::Before;
        }
        if kept.iter().filter(|entry| entry.outcome.is_none()).count() >= AT_ONCE {
            return Begun::Crowded;
        }
        if kept.len() >= KEPT
            && let Some(oldest) = kept.iter().position(|entry| entry.outcome.is_some())
        {
            kept.remove(oldest);
        }
        kept.push_back(Entry { id: id.to_string(), certificate, what, outcome: None });
        Begun::Now(Going { all: self.clone(), id: id.to_string() })
    }

    /// What the action is, and its outcome once it has one; `None` for whoever has not asked for it.
    pub(super) fn of(&self, id: &str, certificate: &[u8; 32]) -> Option<(String, Option<Outcome>)> {
        let kept = self.0.locked();
        let found = kept.iter().find(|entry| entry.id == id && entry.certificate == *certificate)?;
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
        let mut kept = self.all.0.locked();
        if let Some(entry) = kept.iter_mut().find(|entry| entry.id == self.id && entry.outcome.is_none()) {
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
        match all.begin(id, ANN, format!("action {id}")) {
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
        assert!(matches!(all.begin("f1", ANN, String::new()), Begun::Before), "while it goes on");
        assert_eq!(all.of("f1", &ANN), Some(("action f1".to_string(), None)));
        going.ends(done());
        assert_eq!(all.of("f1", &ANN), Some(("action f1".to_string(), Some(done()))));
        assert!(matches!(all.begin("f1", ANN, String::new()), Begun::Before), "afterwards");
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
            assert!(all.0.locked().len() <= KEPT, "{number}");
        }
        assert_eq!(all.of("f0", &ANN), Some(("action f0".to_string(), None)));
        assert_eq!(all.of("f100", &ANN), None, "the oldest has left");
        assert!(all.of("f299", &ANN).is_some());
    }

    #[test]
    fn h7_an_action_that_is_lost_has_an_unknown_outcome() {
        let all = Arc::new(Outcomes::default());
        drop(begun(&all, "f1"));
        let (_, outcome) = all.of("f1", &ANN).expect("it is kept");
        assert_eq!(outcome.map(|outcome| outcome.kind), Some(Kind::Unknown));
    }
}
