//! Decides which gateway to send a call to next. Pure: no clock, no sockets; [`crate::client`] sends, waits and reports
//! back.
//!
//! ```text
//!   step() ──► Ask(address) ──► heard(address, outcome) ──► Some(end)   final
//!          └─► Pause(time)                              └─► None       step() again
//! ```
//! - A leader hint is followed at once, up to [`HINTS_MAX`] in a row: during an election two gateways may name each
//!   other.
//! - A gateway that is busy, or does not know the outcome, is asked again after a pause, before the others. After
//!   [`AGAIN_MAX`] times the others follow: a leader in a minority partition answers "busy" while the others elect a
//!   new leader.
//! - Otherwise the known addresses are asked in turn. After each round there is a pause, which grows up to
//!   [`PAUSE_MAX`].
//! - "Not adopted" is final only when every known address answers so: the list may contain a gateway that has not
//!   joined yet.

use holdfast_api::{Disposition, Refusal, RefusalCode};
use std::collections::BTreeSet;
use std::time::Duration;

/// Hints followed without a pause.
const HINTS_MAX: u32 = 4;

/// How often in a row the same gateway is asked again if it is busy or does not know the outcome.
const AGAIN_MAX: u32 = 2;

/// First pause; doubled by every further one.
const PAUSE_MIN: Duration = Duration::from_millis(50);

/// Longest pause: about the duration of an election.
const PAUSE_MAX: Duration = Duration::from_millis(800);

/// Most addresses that are remembered, including those from hints.
const KNOWN_MAX: usize = 64;

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Ask the gateway at this address.
    Ask(String),
    /// Wait, then ask for the next step.
    Pause(Duration),
}

/// Result of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The gateway refused.
    Refused(Refusal),
    /// It was not reached: the call had no effect there.
    NotSent(String),
    /// It was reached and did not answer: whether the call had an effect is unknown.
    NoAnswer(String),
}

/// State of one call while it looks for the gateway that can do it.
#[derive(Debug)]
pub struct Route {
    known: Vec<String>,
    turn: usize,
    asked_this_round: usize,
    prefer: Option<String>,
    pause_first: bool,
    hints: u32,
    /// The gateway that was asked again last, and how often in a row.
    again: (String, u32),
    pause: Duration,
    not_adopted: BTreeSet<String>,
    maybe_happened: bool,
    last: Option<(String, Outcome)>,
    /// Kept for the error message: a refusal says more than an unreachable gateway.
    last_refusal: Option<(String, Refusal)>,
}

impl Route {
    /// Starts at the first of `addresses`.
    pub fn new(addresses: &[String]) -> Self {
        let mut known = Vec::new();
        for address in addresses.iter().take(KNOWN_MAX) {
            if !known.contains(address) {
                known.push(address.clone());
            }
        }
        Self {
            known,
            turn: 0,
            asked_this_round: 0,
            prefer: None,
            pause_first: false,
            hints: 0,
            again: (String::new(), 0),
            pause: PAUSE_MIN,
            not_adopted: BTreeSet::new(),
            maybe_happened: false,
            last: None,
            last_refusal: None,
        }
    }

    /// What to do next.
    pub fn step(&mut self) -> Step {
        let round_over = self.asked_this_round >= self.known.len() && self.prefer.is_none();
        if self.pause_first || round_over {
            self.pause_first = false;
            self.asked_this_round = 0;
            self.hints = 0;
            let pause = self.pause;
            self.pause = (pause * 2).min(PAUSE_MAX);
            return Step::Pause(pause);
        }
        if let Some(address) = self.prefer.take() {
            return Step::Ask(address);
        }
        self.asked_this_round += 1;
        let address = self.known[self.turn % self.known.len()].clone();
        self.turn += 1;
        Step::Ask(address)
    }

    /// Takes in the result of asking `from`. `Some` ends the call.
    pub fn heard(&mut self, from: &str, outcome: Outcome) -> Option<Refusal> {
        let end = self.judge(from, &outcome);
        if let Outcome::Refused(refusal) = &outcome {
            self.last_refusal = Some((from.to_string(), refusal.clone()));
        }
        self.last = Some((from.to_string(), outcome));
        end
    }

    fn judge(&mut self, from: &str, outcome: &Outcome) -> Option<Refusal> {
        let refusal = match outcome {
            Outcome::NotSent(_) => return None,
            Outcome::NoAnswer(_) => {
                self.maybe_happened = true;
                return None;
            }
            Outcome::Refused(refusal) => refusal,
        };
        if refusal.code == RefusalCode::NotAdopted {
            self.not_adopted.insert(from.to_string());
            let all = self.known.iter().all(|address| self.not_adopted.contains(address));
            return all.then(|| refusal.clone());
        }
        match refusal.disposition() {
            Disposition::Reject => return Some(refusal.clone()),
            Disposition::FollowLeader => {
                if let Some(leader) = refusal.leader_api.as_ref().filter(|leader| *leader != from) {
                    self.learn(leader);
                    self.prefer = Some(leader.clone());
                    self.hints += 1;
                    self.pause_first = self.hints > HINTS_MAX;
                }
            }
            Disposition::Retry => self.again(from),
            Disposition::Unknown => {
                self.maybe_happened = true;
                self.again(from);
            }
        }
        None
    }

    fn again(&mut self, from: &str) {
        if self.again.0 != from {
            self.again = (from.to_string(), 0);
        }
        if self.again.1 >= AGAIN_MAX {
            self.again.1 = 0;
            return;
        }
        self.again.1 += 1;
        self.prefer = Some(from.to_string());
        self.pause_first = true;
    }

    fn learn(&mut self, address: &str) {
        if self.known.len() < KNOWN_MAX && !self.known.iter().any(|known| known == address) {
            self.known.push(address.to_string());
        }
    }

    /// Whether a gateway may have executed the call without its answer arriving.
    pub fn maybe_happened(&self) -> bool {
        self.maybe_happened
    }

    /// The last answer and the last attempt, for an error message.
    pub fn last(&self) -> String {
        let mut parts = Vec::new();
        if let Some((from, refusal)) = &self.last_refusal {
            parts.push(format!("last answer, from {from}: {} ({})", refusal.message, refusal.code.as_str()));
        }
        match &self.last {
            None => parts.push("no gateway was contacted".to_string()),
            Some((_, Outcome::Refused(_))) => {}
            Some((from, Outcome::NotSent(why))) => parts.push(format!("last attempt, {from}: {why}")),
            Some((from, Outcome::NoAnswer(why))) => parts.push(format!("last attempt, {from}: no answer: {why}")),
        }
        parts.join("; ")
    }

    /// The addresses known by now, the last hint included.
    pub fn known(&self) -> &[String] {
        &self.known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(addresses: &[&str]) -> Route {
        Route::new(&addresses.iter().map(|a| a.to_string()).collect::<Vec<_>>())
    }

    fn asks(route: &mut Route) -> String {
        match route.step() {
            Step::Ask(address) => address,
            Step::Pause(pause) => format!("pause {}", pause.as_millis()),
        }
    }

    fn refused(code: RefusalCode, leader: Option<&str>) -> Outcome {
        Outcome::Refused(Refusal { code, message: "because".into(), leader_api: leader.map(str::to_string) })
    }

    #[test]
    fn a_hint_is_followed_and_remembered() {
        let mut route = route(&["a:1", "b:1"]);
        assert_eq!(asks(&mut route), "a:1");
        assert_eq!(route.heard("a:1", refused(RefusalCode::NotLeader, Some("c:1"))), None);
        assert_eq!(asks(&mut route), "c:1");
        assert_eq!(route.heard("c:1", Outcome::NotSent("refused".into())), None);
        assert_eq!([asks(&mut route), asks(&mut route), asks(&mut route)], ["b:1", "c:1", "pause 50"]);
        assert!(!route.maybe_happened());
    }

    #[test]
    fn two_that_name_each_other_do_not_spin() {
        let mut route = route(&["a:1"]);
        let mut steps = Vec::new();
        for _ in 0..12 {
            let step = asks(&mut route);
            let other = if step == "a:1" { "b:1" } else { "a:1" };
            if !step.starts_with("pause") {
                route.heard(&step, refused(RefusalCode::NotLeader, Some(other)));
            }
            steps.push(step);
        }
        assert_eq!(steps.join(" "), "a:1 b:1 a:1 b:1 a:1 pause 50 b:1 a:1 b:1 a:1 b:1 pause 100");
    }

    #[test]
    fn a_gateway_that_names_itself_is_not_believed_at_once() {
        let mut route = route(&["a:1"]);
        asks(&mut route);
        route.heard("a:1", refused(RefusalCode::NotLeader, Some("a:1")));
        assert_eq!(asks(&mut route), "pause 50");
    }

    #[test]
    fn busy_and_unknown_ask_the_same_again() {
        for (code, unknown) in [(RefusalCode::Busy, false), (RefusalCode::Unknown, true)] {
            let mut route = route(&["a:1", "b:1"]);
            asks(&mut route);
            assert_eq!(route.heard("a:1", refused(code, None)), None);
            assert_eq!([asks(&mut route), asks(&mut route), asks(&mut route)], ["pause 50", "a:1", "b:1"]);
            assert_eq!(route.maybe_happened(), unknown, "{code:?}");
        }
    }

    #[test]
    fn one_that_stays_busy_does_not_keep_the_others_from_being_asked() {
        for code in [RefusalCode::Busy, RefusalCode::Unknown] {
            let mut route = route(&["a:1", "b:1"]);
            let mut steps = Vec::new();
            for _ in 0..8 {
                let step = asks(&mut route);
                if step == "a:1" {
                    route.heard("a:1", refused(code, None));
                }
                steps.push(step);
            }
            assert_eq!(steps, ["a:1", "pause 50", "a:1", "pause 100", "a:1", "b:1", "a:1", "pause 200"]);
        }
    }

    #[test]
    fn rejections_end_it_and_not_adopted_only_when_all_say_so() {
        let mut route = route(&["a:1", "b:1"]);
        asks(&mut route);
        assert_eq!(route.heard("a:1", refused(RefusalCode::NotAdopted, None)), None);
        asks(&mut route);
        let end = route.heard("b:1", refused(RefusalCode::NotAdopted, None));
        assert_eq!(end.map(|refusal| refusal.code), Some(RefusalCode::NotAdopted));
        let end = route.heard("b:1", refused(RefusalCode::Held, None));
        assert_eq!(end.map(|refusal| refusal.code), Some(RefusalCode::Held));
    }

    #[test]
    fn no_answer_means_maybe() {
        let mut route = route(&["a:1"]);
        asks(&mut route);
        route.heard("a:1", Outcome::NoAnswer("timed out".into()));
        assert!(route.maybe_happened());
        assert_eq!(route.last(), "last attempt, a:1: no answer: timed out");
        route.heard("b:1", refused(RefusalCode::Busy, None));
        assert_eq!(route.last(), "last answer, from b:1: because (busy)");
        route.heard("a:1", Outcome::NotSent("refused".into()));
        assert_eq!(route.last(), "last answer, from b:1: because (busy); last attempt, a:1: refused");
    }
}
