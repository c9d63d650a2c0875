//! Partitions among the gateways: which gateway receives nothing from which. Hosts, clients and the store reach all
//! gateways.
//!
//! Owns: the shapes. Does not own: packet rules (`net`), the schedule.

use crate::gateway_names::{GATEWAYS, name};
use std::fmt;

/// A partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One gateway and the others do not hear each other.
    Alone(usize),
    /// No two hear each other.
    AllAlone,
    /// One link is cut; the third gateway hears both ends.
    Cut(usize, usize),
    /// Each hears only the next one.
    Ring,
    /// One gateway hears nothing, and is heard.
    Deaf(usize),
    /// One gateway is not heard, and hears.
    Mute(usize),
}

impl Shape {
    /// Pairs of gateways of which the first receives nothing from the second.
    pub fn deaf(self) -> Vec<(usize, usize)> {
        let pairs = (0..GATEWAYS).flat_map(|who| (0..GATEWAYS).map(move |from| (who, from)));
        pairs.filter(|(who, from)| who != from && self.cuts(*who, *from)).collect()
    }

    fn cuts(self, who: usize, from: usize) -> bool {
        match self {
            Shape::Alone(one) => who == one || from == one,
            Shape::AllAlone => true,
            Shape::Cut(a, b) => (who, from) == (a, b) || (who, from) == (b, a),
            Shape::Ring => from != (who + 1) % GATEWAYS,
            Shape::Deaf(one) => who == one,
            Shape::Mute(one) => from == one,
        }
    }
}

impl fmt::Display for Shape {
    /// `g1 hears g2 g3, g2 hears g1, g3 hears nobody`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let deaf = self.deaf();
        for who in 0..GATEWAYS {
            let heard: Vec<String> =
                (0..GATEWAYS).filter(|from| *from != who && !deaf.contains(&(who, *from))).map(name).collect();
            let heard = if heard.is_empty() { "nobody".into() } else { heard.join(" ") };
            write!(f, "{}{} hears {heard}", if who == 0 { "" } else { ", " }, name(who))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shape_cuts_what_it_says() {
        assert_eq!(Shape::Alone(0).deaf(), [(0, 1), (0, 2), (1, 0), (2, 0)]);
        assert_eq!(Shape::AllAlone.deaf().len(), GATEWAYS * (GATEWAYS - 1));
        assert_eq!(Shape::Cut(2, 1).deaf(), [(1, 2), (2, 1)]);
        assert_eq!(Shape::Ring.deaf(), [(0, 2), (1, 0), (2, 1)]);
        assert_eq!(Shape::Deaf(1).deaf(), [(1, 0), (1, 2)]);
        assert_eq!(Shape::Mute(1).deaf(), [(0, 1), (2, 1)]);
    }

    #[test]
    fn a_shape_is_told_by_who_hears_whom() {
        assert_eq!(Shape::Alone(2).to_string(), "g1 hears g2, g2 hears g1, g3 hears nobody");
        assert_eq!(Shape::Mute(0).to_string(), "g1 hears g2 g3, g2 hears g3, g3 hears g2");
    }
}
