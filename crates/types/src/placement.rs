//! Where a set's objects lie, and where they are to lie, as one text: group 0 keeps it, gateways open it, a recovery is
//! given it.
//!
//! ```text
//!   A            the set lies in the stores A
//!   A | B        they are being changed to B: what is written goes to both, B is filled, A counts
//!   A => B       the change is decided, and cannot be abandoned: A counts until its head says that it has moved, then B
//! ```
//! `A` and `B` are texts of their own, of one store or several, which this module does not read. Neither holds ` | ` or
//! ` => `: URLs have no blanks.
//!
//! PLACE-P1  A change goes these ways only: `A` to `A | B`, that to `A` (abandoned) or `A => B`, that to `B`
//!     ([`Placement::may_become`]). So a reader that has seen `A => B` knows that B follows, even if it has missed
//!     other changes.

use std::fmt;

/// How far a change of stores is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PlacementPhase {
    /// The stores that are to be are filled. It may be abandoned.
    Filling,
    /// It will be done.
    Ending,
}

impl PlacementPhase {
    fn between(self) -> &'static str {
        match self {
            PlacementPhase::Filling => " | ",
            PlacementPhase::Ending => " => ",
        }
    }
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The stores that count, until their head says otherwise.
    pub stores: String,
    /// Those that are to be, while they are changed.
    pub next: Option<(PlacementPhase, String)>,
}

impl Placement {
    /// Reads a text. What cannot be read as a change is a place without one: it is opened, or refused, as such.
    pub fn parse(text: &str) -> Self {
        let split = |phase: PlacementPhase| text.split_once(phase.between()).map(|(from, to)| (phase, from, to));
        let parts = split(PlacementPhase::Filling).or_else(|| split(PlacementPhase::Ending));
        let whole = |text: &str| {
            !text.is_empty()
                && !text.contains(PlacementPhase::Filling.between())
                && !text.contains(PlacementPhase::Ending.between())
        };
        match parts {
            Some((phase, from, to)) if whole(from) && whole(to) => {
                Self { stores: from.to_owned(), next: Some((phase, to.to_owned())) }
            }
            _ => Self { stores: text.to_owned(), next: None },
        }
    }

    /// PLACE-P1: whether this may be followed by `next`.
    pub fn may_become(&self, next: &Placement) -> bool {
        match (&self.next, &next.next) {
            (None, Some((PlacementPhase::Filling, to))) => next.stores == self.stores && *to != self.stores,
            (Some((PlacementPhase::Filling, to)), Some((PlacementPhase::Ending, too))) => {
                next.stores == self.stores && to == too
            }
            (Some((PlacementPhase::Filling, _)), None) => next.stores == self.stores,
            (Some((PlacementPhase::Ending, to)), None) => next.stores == *to,
            _ => false,
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.stores)?;
        match &self.next {
            Some((phase, to)) => write!(f, "{}{to}", phase.between()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXTS: [&str; 6] = ["a", "b", "a | b", "a => b", "a | c", "c => b"];

    #[test]
    fn a_text_comes_back_as_it_was_written() {
        for text in TEXTS.iter().chain(&["w=2 x y z | c=2 w=2 y z q", "a | b | c", " | ", "a | ", ""]) {
            assert_eq!(Placement::parse(text).to_string(), **text);
        }
        assert_eq!(Placement::parse("a | b | c").next, None, "a change of a change is none");
    }

    /// PLACE-P1.
    #[test]
    fn a_change_goes_its_ways_only() {
        let ways = [
            ("a", "a | b"),
            ("a", "a | c"),
            ("a | b", "a"),
            ("a | b", "a => b"),
            ("a | c", "a"),
            ("a => b", "b"),
            ("c => b", "b"),
        ];
        for from in TEXTS {
            for to in TEXTS {
                let may = Placement::parse(from).may_become(&Placement::parse(to));
                assert_eq!(may, ways.contains(&(from, to)), "{from:?} to {to:?}");
            }
        }
        assert!(!Placement::parse("a").may_become(&Placement::parse("a | a")), "to where it is");
    }
}
