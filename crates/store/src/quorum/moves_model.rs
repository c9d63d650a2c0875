//! A model of a change of lists, searched step by step: each list's head is one register here, whose rules have a model
//! of their own (`register_model`).
//!
//! There are writers that know of the change or do not, one process that ends the list, and several that begin the next
//! one; each may stop at any step.

use stateright::{Checker, HasDiscoveries, Model, Property};

/// The possible values of the first list's head: a version, or the last value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum First {
    Head(u8),
    Moved(Option<u8>),
}

/// The processes, and what they have seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Actor {
    /// Replaces the head that it has read by one of its own; `knows`: it knows of the change.
    Writer { knows: bool, own: u8, at: At },
    /// Ends the first list, and then removes the head from the last value.
    Ender { at: At },
    /// Only begins the next list, as any reader does.
    Beginner { at: At },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    Start,
    /// Has read this head in the first list, to replace it there.
    ReadFirst(u8),
    /// Has seen the last value with this head, and no head in the next list.
    ToBegin(u8),
    /// Has read this head in the next list.
    ReadNext(u8),
    /// The next list has begun: the ender may remove the head from the last value.
    Begun,
    Done,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    first: First,
    next: Option<u8>,
    actors: Vec<Actor>,
    /// The last value for which a writer got a success: the set's head.
    last: u8,
    lost: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// The next list's head is written unconditionally.
    BeginOverAll,
    /// The next list begins with the head from before the end of the list.
    BeginTooSoon,
    /// The list is ended with the head that was read, even if there is a later one.
    EndOverAll,
    /// The head is removed from the last value before the next list has begun.
    LetGoTooSoon,
}

struct Change {
    actors: Vec<Actor>,
    bug: Bug,
}

impl Change {
    fn new(bug: Bug) -> Self {
        let writer = |knows, own| Actor::Writer { knows, own, at: At::Start };
        let actors = vec![
            writer(false, 1),
            writer(true, 2),
            writer(true, 3),
            Actor::Ender { at: At::Start },
            Actor::Beginner { at: At::Start },
        ];
        Self { actors, bug }
    }

    /// One step of a look.
    fn look(&self, state: &State, knows: bool) -> At {
        match (state.first, state.next) {
            (First::Head(head), _) if self.bug == Bug::BeginTooSoon && knows && state.next.is_none() => {
                At::ToBegin(head)
            }
            (First::Head(head), _) => At::ReadFirst(head),
            // A process that does not know the next list waits.
            (First::Moved(_), _) if !knows => At::Start,
            (First::Moved(_), Some(head)) => At::ReadNext(head),
            (First::Moved(Some(head)), None) => At::ToBegin(head),
            (First::Moved(None), None) => At::Done,
        }
    }

    fn begin(&self, state: &mut State, head: u8) {
        if state.next.is_none() || self.bug == Bug::BeginOverAll {
            state.next = Some(head);
        }
    }

    fn step(&self, state: &mut State, at: usize) {
        let actor = state.actors[at];
        let to = match actor {
            Actor::Writer { knows, own, at } => {
                let to = match at {
                    At::Start => self.look(state, knows),
                    At::ReadFirst(head) if state.first == First::Head(head) => {
                        (state.first, state.last) = (First::Head(own), own);
                        At::Done
                    }
                    At::ReadNext(head) if state.next == Some(head) => {
                        (state.next, state.last) = (Some(own), own);
                        At::Done
                    }
                    At::ToBegin(head) => {
                        self.begin(state, head);
                        At::Start
                    }
                    // Another process was faster: it looks again.
                    At::ReadFirst(_) | At::ReadNext(_) => At::Start,
                    At::Begun | At::Done => At::Done,
                };
                Actor::Writer { knows, own, at: to }
            }
            Actor::Ender { at } => {
                let to = match at {
                    At::Start => self.look(state, true),
                    At::ReadFirst(head) if state.first == First::Head(head) || self.bug == Bug::EndOverAll => {
                        state.first = First::Moved(Some(head));
                        if self.bug == Bug::LetGoTooSoon { At::Begun } else { At::Start }
                    }
                    At::ReadFirst(_) => At::Start,
                    At::ToBegin(head) => {
                        self.begin(state, head);
                        At::Start
                    }
                    At::ReadNext(_) => At::Begun,
                    At::Begun => {
                        state.first = First::Moved(None);
                        At::Done
                    }
                    At::Done => At::Done,
                };
                Actor::Ender { at: to }
            }
            Actor::Beginner { at } => {
                let to = match at {
                    At::Start => self.look(state, true),
                    At::ToBegin(head) => {
                        self.begin(state, head);
                        At::Done
                    }
                    _ => At::Done,
                };
                Actor::Beginner { at: to }
            }
        };
        state.actors[at] = to;
    }
}

impl Model for Change {
    type State = State;
    type Action = usize;

    fn init_states(&self) -> Vec<State> {
        vec![State { first: First::Head(0), next: None, actors: self.actors.clone(), last: 0, lost: false }]
    }

    // A process that never acts again has stopped there.
    fn actions(&self, state: &State, actions: &mut Vec<usize>) {
        actions.extend(0..state.actors.len());
    }

    fn next_state(&self, before: &State, at: usize) -> Option<State> {
        let mut state = before.clone();
        self.step(&mut state, at);
        let head = match (state.first, state.next) {
            (First::Moved(_), Some(head)) | (First::Head(head) | First::Moved(Some(head)), _) => Some(head),
            (First::Moved(None), None) => None,
        };
        // From a success on, every reader finds that value, until it is replaced.
        state.lost |= head != Some(state.last);
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("the head is what was written last", |_, state: &State| !state.lost),
            Property::sometimes("all of it is done", |_, state: &State| {
                state.first == First::Moved(None) && state.next.is_some_and(|head| head != 0)
            }),
            Property::sometimes("one that had not heard of it writes before", |_, state: &State| {
                matches!(state.actors[0], Actor::Writer { at: At::Done, .. }) && state.next == Some(1)
            }),
        ]
    }
}

#[test]
fn what_was_written_last_is_the_head_whichever_list_counts() {
    let checker = Change::new(Bug::None).checker().spawn_bfs().join();
    eprintln!("a change of lists: {} states, {} steps", checker.unique_state_count(), checker.max_depth());
    assert!(checker.unique_state_count() > 500);
    checker.assert_properties();
}

#[test]
fn each_part_of_the_rule_is_needed() {
    for bug in [Bug::BeginOverAll, Bug::BeginTooSoon, Bug::EndOverAll, Bug::LetGoTooSoon] {
        let checker = Change::new(bug).checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
        let found = checker.discovery("the head is what was written last");
        let steps = found.unwrap_or_else(|| panic!("{bug:?}: the model did not notice")).into_actions().len();
        eprintln!("{bug:?}: {steps} steps");
    }
}
