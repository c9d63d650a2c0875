//! Present faults of the gateways and their surroundings; and whether PostgreSQL must be served in spite of them. No
//! I/O.

use crate::gateways::GATEWAYS;
use std::collections::BTreeSet;

/// The present faults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trouble {
    /// Gateways that are down, stopped, or cut off from everything.
    pub away: BTreeSet<usize>,
    /// Pairs of gateways of which the first receives nothing from the second.
    pub deaf: BTreeSet<(usize, usize)>,
    /// Packets are lost: whether messages get through is random.
    pub lossy: bool,
    /// The store does not answer, or refuses.
    pub store_away: bool,
    /// PostgreSQL may have to start anew, on the other host.
    pub moved: bool,
}

impl Trouble {
    /// Whether transactions must succeed.
    pub fn served(&self) -> bool {
        let talk = |a: usize, b: usize| !self.deaf.contains(&(a, b)) && !self.deaf.contains(&(b, a));
        let here: Vec<usize> = (0..GATEWAYS).filter(|gateway| !self.away.contains(gateway)).collect();
        let majority = here.iter().any(|a| here.iter().filter(|b| talk(*a, **b)).count() > GATEWAYS / 2);
        // R8: without the store a set is served from journal and cache. Reads of other data wait; a starting host, or a
        // new serving gateway, may need just these.
        let stays = self.away.is_empty() && self.deaf.is_empty() && !self.moved;
        majority && !self.lossy && (!self.store_away || stays)
    }

    /// Whether it must be served even if any further gateway goes away for a moment.
    pub fn bears_one_more(&self) -> bool {
        (0..GATEWAYS).all(|gateway| {
            let mut more = self.clone();
            more.away.insert(gateway);
            more.served()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Shape;

    fn parted(shape: Shape, away: &[usize]) -> bool {
        let deaf = shape.deaf().into_iter().collect();
        Trouble { deaf, away: away.iter().copied().collect(), ..Trouble::default() }.served()
    }

    #[test]
    fn a_majority_that_talks_both_ways_serves() {
        assert!(Trouble::default().served());
        assert!(parted(Shape::Alone(0), &[]) && parted(Shape::Cut(0, 1), &[]));
        assert!(parted(Shape::Deaf(2), &[]) && parted(Shape::Mute(2), &[]));
        assert!(!parted(Shape::Ring, &[]) && !parted(Shape::AllAlone, &[]));
        assert!(parted(Shape::Alone(0), &[0]) && !parted(Shape::Alone(0), &[1]));
        let away = |away: &[usize]| Trouble { away: away.iter().copied().collect(), ..Trouble::default() }.served();
        assert!(away(&[1]) && !away(&[0, 1]) && !away(&[0, 1, 2]));
    }

    #[test]
    fn one_more_is_borne_by_three_and_by_no_two() {
        assert!(Trouble::default().bears_one_more());
        assert!(!Trouble { away: BTreeSet::from([2]), ..Trouble::default() }.bears_one_more());
        assert!(
            !Trouble { deaf: Shape::Cut(0, 1).deaf().into_iter().collect(), ..Trouble::default() }.bears_one_more()
        );
        assert!(!Trouble { store_away: true, ..Trouble::default() }.bears_one_more());
    }

    #[test]
    fn nothing_is_expected_of_luck_or_of_what_only_the_store_has() {
        assert!(!Trouble { lossy: true, ..Trouble::default() }.served());
        let without = Trouble { store_away: true, ..Trouble::default() };
        assert!(without.served());
        assert!(!Trouble { moved: true, ..without.clone() }.served());
        assert!(!Trouble { away: BTreeSet::from([0]), ..without }.served());
        assert!(Trouble { moved: true, ..Trouble::default() }.served());
    }
}
