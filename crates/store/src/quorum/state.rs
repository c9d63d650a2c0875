//! The stores, their lists, and the state of each.

use super::missing::Missing;
use super::speed::{Doubts, Speed};
use crate::error::{At, Disposition, Op, StoreError};
use crate::health::Health;
use crate::keys;
use crate::object_store::ObjectStore;
use crate::several::Stores;
use crate::url_error::StoreUrlError;
use holdfast_types::{Placement, SetId};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::Semaphore;

/// Maximum number of PUTs to one store that continue after their caller has its quorum. Each holds an object in memory,
/// and a store that hangs keeps this many.
pub(super) const BEHIND_MAX: usize = 4;
/// Maximum number of concurrent steps of the register at one store.
const HEADS_MAX: usize = 4;

/// A store, and the health that records its attempts.
pub type Observed = (Arc<dyn ObjectStore>, Option<Arc<Health>>);

/// One of the stores.
pub(crate) struct Replica {
    pub(super) index: usize,
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) health: Option<Arc<Health>>,
    pub(super) speed: Speed,
    pub(super) missing: Mutex<Missing>,
    pub(super) behind: Arc<Semaphore>,
    pub(super) heads: Arc<Semaphore>,
}

/// The part of a store in a change of the stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Part {
    /// Nothing.
    #[default]
    Stays,
    /// It is being filled, and will count later.
    Joins,
    /// It will not count later.
    Leaves,
}

/// One list of stores, and the head that they hold together.
pub(crate) struct Register {
    /// Number of the list: part of the name of its head.
    pub(super) number: u32,
    /// The text of the list.
    pub(super) text: String,
    /// In the list's order.
    pub(super) replicas: Vec<Arc<Replica>>,
    pub(super) w: usize,
    pub(super) place: Arc<str>,
}

impl Register {
    fn new(all: &[Arc<Replica>], stores: &Stores, seats: &[usize]) -> Self {
        let (n, w) = (seats.len(), stores.write_quorum());
        assert!(2 * w > n && w <= n, "w = {w} of {n}: two quorums must meet (QUORUM-Q1)");
        let replicas: Vec<Arc<Replica>> = seats.iter().map(|at| all[*at].clone()).collect();
        let places: Vec<&str> = replicas.iter().map(|replica| replica.store.place()).collect();
        let place = match places.as_slice() {
            [one] => Arc::from(*one),
            places => Arc::from(format!("{w} of [{}]", places.join(", "))),
        };
        Self { number: stores.configuration(), text: stores.to_string(), replicas, w, place }
    }

    /// Key of its head.
    pub(super) fn key(&self, set: SetId) -> String {
        keys::head_of(set, self.number, &self.text)
    }

    pub(super) fn has(&self, replica: &Replica) -> bool {
        self.replicas.iter().any(|other| other.index == replica.index)
    }

    /// Number of this list's stores in `of`, which has a flag for every store.
    pub(super) fn count(&self, of: &[bool]) -> usize {
        self.replicas.iter().filter(|replica| of[replica.index]).count()
    }
}

/// See the module.
pub struct Quorum {
    pub(super) replicas: Vec<Arc<Replica>>,
    /// The list that counts, until its head says otherwise; and the next one while the stores are changed (LIST-L1 to
    /// LIST-L4).
    pub(super) registers: Vec<Register>,
    /// The first of two lists has ended, and the next one has begun. Never reset.
    pub(super) ended: AtomicBool,
    pub(super) place: Arc<str>,
    pub(super) doubts: Doubts,
}

impl std::fmt::Debug for Quorum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Quorum({})", self.place)
    }
}

impl Quorum {
    /// Opens the stores of `placement`, each with `open`. Each has its own health, which the caller records.
    ///
    /// # Errors
    /// A placement that does not parse, and the errors of `open`.
    pub fn over(
        placement: &Placement,
        mut open: impl FnMut(&str) -> Result<Observed, StoreError>,
    ) -> Result<Self, StoreError> {
        let mut lists = vec![Stores::parse(&placement.stores).map_err(StoreError::Url)?];
        if let Some((_, to)) = &placement.next {
            let to = Stores::parse(to).map_err(StoreError::Url)?;
            let expected = "the list after the one that counts";
            if Some(to.configuration()) != lists[0].configuration().checked_add(1) {
                let found = placement.to_string();
                return Err(StoreError::Url(StoreUrlError::Option { name: "stores", found, expected }));
            }
            lists.push(to);
        }
        let mut urls: Vec<&String> = Vec::new();
        for url in lists.iter().flat_map(|list| list.urls()) {
            if !urls.contains(&url) {
                urls.push(url);
            }
        }
        let stores = urls.iter().map(|url| open(url)).collect::<Result<Vec<_>, _>>()?;
        let seats = |list: &Stores| -> Vec<usize> {
            list.urls().iter().filter_map(|url| urls.iter().position(|other| *other == url)).collect()
        };
        let seats: Vec<Vec<usize>> = lists.iter().map(seats).collect();
        Ok(Self::of_lists(stores, &lists, &seats))
    }

    /// Uses these stores as the set's first list, of which `w` must have an object: for callers without a text.
    ///
    /// # Panics
    /// Two quorums need not meet (QUORUM-Q1), or there are more stores than a set may have.
    pub fn new(stores: Vec<Observed>, w: usize) -> Arc<Self> {
        let urls = (0..stores.len()).map(|at| format!("file:///{at}")).collect();
        let list = Stores::new(urls, Some(w)).unwrap_or_else(|e| panic!("two quorums must meet (QUORUM-Q1): {e}"));
        let seats = (0..stores.len()).collect();
        Arc::new(Self::of_lists(stores, &[list], &[seats]))
    }

    fn of_lists(stores: Vec<Observed>, lists: &[Stores], seats: &[Vec<usize>]) -> Self {
        let replica = |(index, (store, health))| {
            Arc::new(Replica {
                index,
                store,
                health,
                speed: Speed::default(),
                missing: Mutex::default(),
                behind: Arc::new(Semaphore::new(BEHIND_MAX)),
                heads: Arc::new(Semaphore::new(HEADS_MAX)),
            })
        };
        let replicas: Vec<Arc<Replica>> = stores.into_iter().enumerate().map(replica).collect();
        let registers: Vec<Register> =
            lists.iter().zip(seats).map(|(list, seats)| Register::new(&replicas, list, seats)).collect();
        let places: Vec<&str> = registers.iter().map(|register| &*register.place).collect();
        let place = Arc::from(places.join(" to "));
        Self { replicas, registers, ended: AtomicBool::new(false), place, doubts: Doubts::default() }
    }

    /// The lists that must agree (LIST-L4).
    pub(super) fn counting(&self) -> &[Register] {
        &self.registers[usize::from(self.ended.load(Ordering::Acquire) && self.registers.len() > 1)..]
    }

    pub(super) fn enough(&self, done: &[bool]) -> bool {
        self.counting().iter().all(|register| register.count(done) >= register.w)
    }

    pub(super) fn part(&self, replica: &Replica) -> Part {
        match self.registers.as_slice() {
            [first, next] if !next.has(replica) && first.has(replica) => Part::Leaves,
            [first, next] if !first.has(replica) && next.has(replica) => Part::Joins,
            _ => Part::Stays,
        }
    }

    /// The number of stores of the list that counts that must have an object.
    pub fn write_quorum(&self) -> usize {
        self.registers[0].w
    }

    pub(super) fn at(&self, op: Op, key: &str) -> Box<At> {
        At::new(&self.place, op, key)
    }
}

/// Combines several failed answers to one request: a transient error if there is one, otherwise an error that is more
/// informative than "not here".
pub(super) fn worst(errors: Vec<StoreError>) -> Option<StoreError> {
    let weight = |error: &StoreError| match error.disposition() {
        _ if error.may_pass() => 3,
        Disposition::NotFound => 0,
        Disposition::Corrupt => 2,
        _ => 1,
    };
    errors.into_iter().max_by_key(weight)
}
