//! Who keeps a place at a listener, and who makes room for others (DOOR-D1, DOOR-D5).

use futures_util::task::AtomicWaker;
use holdfast_types::sync::LockExt;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::Waker;

/// What a connection has shown of its client. Connections of a lower standing make room for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Standing {
    /// Nothing yet.
    New,
    /// It may ask here, and has.
    Asked,
    /// It is a gateway of this cluster or a host with a lease: its place is its own.
    Proven,
}

impl Standing {
    fn of(number: u8) -> Self {
        match number {
            0 => Self::New,
            1 => Self::Asked,
            _ => Self::Proven,
        }
    }
}

/// The places of one listener.
pub(super) struct Places {
    /// Connections at most.
    most: usize,
    /// Those among them that have shown nothing yet, at most.
    newcomers: usize,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    next: u64,
    /// Sockets that are open, with those that were told to close.
    open: usize,
    /// Connections that are proven.
    proven: usize,
    /// Those of each certificate that has only a share.
    proven_by: BTreeMap<String, usize>,
    /// Connections with a place. The first one makes room first.
    by_standing: BTreeMap<(Standing, u64), Arc<Seat>>,
}

impl Held {
    /// Who makes room. `newcomers_have_places`: one that has asked, if there is any. At a door that is full of those,
    /// newcomers would close each other otherwise, before any of them could show who it is.
    fn first_below_proven(&self, newcomers_have_places: bool) -> Option<(Standing, u64)> {
        let from = if newcomers_have_places { Standing::Asked } else { Standing::New };
        let first_from =
            |from: Standing| self.by_standing.range((from, 0)..(Standing::Proven, 0)).next().map(|(key, _)| *key);
        first_from(from).or_else(|| first_from(Standing::New))
    }
}

/// What a connection and those who learn something of its client share.
struct Seat {
    number: u64,
    /// Changed under the lock of the places only.
    standing: AtomicU8,
    /// The name in the certificate by which it is proven, if that one has only a share.
    by: OnceLock<String>,
    evicted: AtomicBool,
    /// Of the task that reads, as long as the connection is not proven.
    reader: AtomicWaker,
}

impl Seat {
    fn standing(&self) -> Standing {
        Standing::of(self.standing.load(Ordering::Acquire))
    }
}

impl Places {
    pub(super) fn new(most: usize, newcomers: usize) -> Self {
        Self { most, newcomers, held: Mutex::default() }
    }

    /// Connections that may be proven: some places are always left. Otherwise a single stolen certificate of a host
    /// could hold all of them, also against the administrator who comes to revoke it.
    fn proven_most(&self) -> usize {
        self.most.saturating_sub(self.newcomers / 4)
    }

    /// Connections that one certificate may prove, if it has only a share: enough for each attach of a node of
    /// Kubernetes.
    fn share(&self) -> usize {
        self.most / 4
    }

    /// A place for a new connection, and whether another one makes room for it. `None`: nobody may make room, or those
    /// that were told to close have not closed yet.
    pub(super) fn take(self: &Arc<Self>) -> Option<(Taken, bool)> {
        let mut held = self.held.locked();
        if held.open >= self.most + self.newcomers {
            return None;
        }
        let newcomers = held.by_standing.range(..(Standing::Asked, 0)).count();
        let full = newcomers >= self.newcomers || held.by_standing.len() >= self.most;
        if full {
            let first = held.first_below_proven(newcomers < self.newcomers)?;
            let seat = held.by_standing.remove(&first)?;
            seat.evicted.store(true, Ordering::Release);
            seat.reader.wake();
        }
        let number = held.next;
        held.next += 1;
        held.open += 1;
        let standing = AtomicU8::new(Standing::New as u8);
        let (evicted, reader) = (AtomicBool::new(false), AtomicWaker::new());
        let seat = Arc::new(Seat { number, standing, by: OnceLock::new(), evicted, reader });
        held.by_standing.insert((Standing::New, number), seat.clone());
        drop(held);
        Some((Taken(Place { seat, places: self.clone() }), full))
    }

    /// Connections that have no place any more are not counted.
    #[cfg(test)]
    pub(super) fn taken(&self) -> usize {
        self.held.locked().by_standing.len()
    }
}

/// The place of a connection, for those who learn something of its client.
#[derive(Clone)]
pub(crate) struct Place {
    seat: Arc<Seat>,
    places: Arc<Places>,
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Place({:?})", self.standing())
    }
}

impl Place {
    pub(crate) fn standing(&self) -> Standing {
        self.seat.standing()
    }

    /// Notes that the client has shown this much. A standing never sinks. If too many are proven already, it stays one
    /// that has asked.
    pub(crate) fn shows(&self, standing: Standing) {
        self.shows_of(standing, None);
    }

    /// Like `shows`, of a client whose certificate of this name has only a share of the places. Otherwise a single one
    /// of a host could hold all, and the connections of other hosts would make room for newcomers.
    pub(crate) fn shows_of(&self, standing: Standing, certificate: Option<&str>) {
        if self.standing() >= standing {
            return;
        }
        let mut held = self.places.held.locked();
        let before = self.standing();
        let by_it = |name: &str| held.proven_by.get(name).copied().unwrap_or(0);
        let many = held.proven >= self.places.proven_most()
            || certificate.is_some_and(|name| by_it(name) >= self.places.share());
        let too_many = standing == Standing::Proven && many;
        let standing = if too_many { Standing::Asked } else { standing };
        if before >= standing {
            return;
        }
        // It had to make room, or has ended.
        let Some(seat) = held.by_standing.remove(&(before, self.seat.number)) else { return };
        held.by_standing.insert((standing, self.seat.number), seat);
        if standing == Standing::Proven {
            held.proven += 1;
            if let Some(name) = certificate {
                let _ = self.seat.by.set(name.to_string());
                *held.proven_by.entry(name.to_string()).or_default() += 1;
            }
        }
        self.seat.standing.store(standing as u8, Ordering::Release);
        drop(held);
        self.seat.reader.wake();
    }
}

/// The place itself. It is free once this is dropped.
pub(super) struct Taken(Place);

impl Taken {
    pub(super) fn place(&self) -> &Place {
        &self.0
    }

    /// `reader` is woken when the standing changes, or when the connection has to make room. Look again after this.
    pub(super) fn wakes(&self, reader: &Waker) {
        self.0.seat.reader.register(reader);
    }

    /// Whether it has to close: another connection has its place.
    pub(super) fn is_evicted(&self) -> bool {
        self.0.seat.evicted.load(Ordering::Acquire)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut held = self.0.places.held.locked();
        held.open = held.open.saturating_sub(1);
        let standing = self.0.standing();
        if held.by_standing.remove(&(standing, self.0.seat.number)).is_some() && standing == Standing::Proven {
            held.proven = held.proven.saturating_sub(1);
            let Some(name) = self.0.seat.by.get() else { return };
            let left = held.proven_by.get(name).map_or(0, |proven| proven - 1);
            match left {
                0 => held.proven_by.remove(name),
                left => held.proven_by.insert(name.clone(), left),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(places: &Arc<Places>, shows: Standing) -> Taken {
        let (taken, _) = places.take().expect("a place");
        taken.place().shows(shows);
        taken
    }

    fn evicted(all: &[Taken]) -> Vec<usize> {
        (0..all.len()).filter(|&at| all[at].is_evicted()).collect()
    }

    #[test]
    fn d5_a_flood_of_newcomers_takes_no_place_of_those_who_are_known() {
        let places = Arc::new(Places::new(10, 3));
        let known: Vec<_> = [Standing::Asked, Standing::Proven].map(|standing| take(&places, standing)).into();
        let mut flood = Vec::new();
        for _ in 0..100 {
            flood.push(take(&places, Standing::New));
            // Told to close, and closed.
            flood.retain(|one| !one.is_evicted());
            assert!(flood.len() <= 3);
        }
        assert!(evicted(&known).is_empty());
        // A newcomer of the flood that shows who it is keeps its place.
        let newest = flood.len() - 1;
        flood[newest].place().shows(Standing::Asked);
        let _more: Vec<_> = (0..3).map(|_| take(&places, Standing::New)).collect();
        assert_eq!(evicted(&flood), [0, 1]);
    }

    #[test]
    fn d5_who_has_asked_makes_room_for_newcomers_and_who_is_proven_does_not() {
        let places = Arc::new(Places::new(4, 2));
        let all: Vec<_> =
            [Standing::Proven, Standing::Asked, Standing::Asked, Standing::Proven].map(|one| take(&places, one)).into();
        let late = take(&places, Standing::Proven);
        let later = take(&places, Standing::Proven);
        assert_eq!(evicted(&all), [1, 2], "the oldest first");
        let all: Vec<_> = all.into_iter().filter(|one| !one.is_evicted()).collect();
        assert!(places.take().is_none(), "all are proven (DOOR-D1)");
        assert!(evicted(&all).is_empty());
        drop(late);
        drop(later);
        assert!(places.take().is_some());
    }

    /// Otherwise a few connections a second would close each newcomer before it has shown who it is.
    #[test]
    fn d5_newcomers_of_a_door_that_is_full_of_known_ones_do_not_close_each_other() {
        let places = Arc::new(Places::new(6, 3));
        let known: Vec<_> = (0..6).map(|_| take(&places, Standing::Asked)).collect();
        let newcomers: Vec<_> = (0..3).map(|_| take(&places, Standing::New)).collect();
        assert_eq!((evicted(&known), evicted(&newcomers)), (vec![0, 1, 2], vec![]));
        let known: Vec<_> = known.into_iter().filter(|one| !one.is_evicted()).collect();
        let _fourth = take(&places, Standing::New);
        assert_eq!((evicted(&known), evicted(&newcomers)), (vec![], vec![0]), "no more than their own places");
    }

    /// Whoever comes to revoke a stolen certificate needs a place.
    #[test]
    fn d5_those_who_are_proven_leave_places_for_others() {
        let places = Arc::new(Places::new(8, 4));
        let mut hosts: Vec<_> = (0..8).map(|_| take(&places, Standing::Proven)).collect();
        let standing: Vec<_> = hosts.iter().map(|one| one.place().standing()).collect();
        assert_eq!((&standing[..7], standing[7]), (&[Standing::Proven; 7][..], Standing::Asked));
        let administrator = take(&places, Standing::Asked);
        assert_eq!(evicted(&hosts), [7]);
        assert!(!administrator.is_evicted());
        // A place of one that has gone can be proven again.
        let late = hosts.pop().map(|late| late.place().standing());
        assert_eq!((late, hosts.pop().is_some()), (Some(Standing::Asked), true));
        administrator.place().shows(Standing::Proven);
        assert_eq!(administrator.place().standing(), Standing::Proven);
    }

    #[test]
    fn d5_one_certificate_proves_a_share_of_the_places() {
        let places = Arc::new(Places::new(8, 4));
        let of = |name: &str| {
            let (taken, _) = places.take().expect("a place");
            taken.place().shows_of(Standing::Proven, Some(name));
            taken
        };
        let mut all: Vec<_> = (0..3).map(|_| of("db1")).collect();
        let standing: Vec<_> = all.iter().map(|one| one.place().standing()).collect();
        assert_eq!(standing, [Standing::Proven, Standing::Proven, Standing::Asked]);
        assert_eq!(of("db2").place().standing(), Standing::Proven, "another host");
        all.remove(0);
        all[1].place().shows_of(Standing::Proven, Some("db1"));
        assert_eq!(all[1].place().standing(), Standing::Proven, "in the place of one that has gone");
        drop(all);
        assert!(places.held.locked().proven_by.is_empty());
    }

    #[test]
    fn d1_connections_that_were_told_to_close_and_have_not_are_bounded_too() {
        let places = Arc::new(Places::new(4, 2));
        let slow: Vec<_> = std::iter::from_fn(|| places.take()).take(100).collect();
        assert_eq!(slow.len(), 6);
        assert_eq!(places.taken(), 2);
        drop(slow);
        assert!(places.take().is_some());
    }

    #[test]
    fn a_standing_never_sinks_and_a_place_that_was_lost_is_not_regained() {
        let places = Arc::new(Places::new(4, 1));
        let first = take(&places, Standing::New);
        let place = first.place().clone();
        let second = take(&places, Standing::Proven);
        assert!(first.is_evicted());
        place.shows(Standing::Proven);
        assert_eq!((place.standing(), places.taken()), (Standing::New, 1));
        second.place().shows(Standing::Asked);
        assert_eq!(second.place().standing(), Standing::Proven);
        let place = second.place().clone();
        drop(second);
        place.shows(Standing::Proven);
        assert_eq!(places.taken(), 0);
    }
}
