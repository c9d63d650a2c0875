//! Snapshots under faults: taken and deleted through the leader's admin API, one request after the other, repeated if
//! the answer is lost (R12). Checks their content (R4), and a schedule that jumps of the wall clock must not upset.

mod acts;

use crate::model::Id;
use crate::rng::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

#[derive(Clone, Debug, PartialEq, Eq)]
enum Wish {
    Take { name: String },
    Drop { name: String, made_by: String },
    Schedule,
}

struct Asked {
    wish: Wish,
    request: u128,
    attempt: u64,
    due: u64,
    until: u64,
    /// The latest write answered before its request.
    least: Id,
}

/// An existing snapshot: it contains every write up to `least`, and none after `most`.
struct KnownSnapshot {
    made_by: String,
    least: Id,
    most: Id,
}

enum Heard {
    Answer { attempt: u64, answer: Result<(), tonic::Status> },
    Shown { attempt: u64, name: String, data: Option<Vec<Vec<u8>>> },
}

/// See the module.
#[derive(Default)]
pub struct Keeper {
    rng: Rng,
    current: Option<Asked>,
    heard: Arc<Mutex<Vec<Heard>>>,
    attempts: u64,
    names: u64,
    kept: BTreeMap<String, KnownSnapshot>,
    /// The running read: number of the attempt, and its start.
    showing: Option<(u64, u64)>,
    show_at: u64,
    scheduled: bool,
    /// Snapshots that were read and compared since this was cleared.
    seen: BTreeSet<String>,
}

impl Keeper {
    pub fn new(seed: u64) -> Self {
        Self { rng: Rng::new(seed, 5), ..Self::default() }
    }
}
