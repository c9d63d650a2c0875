//! Membership changes under faults: an administrator's requests, one after the other, through the admin API of group
//! 0's leader; which machine is which member; and the rules for both.
//!
//! The machine of a removed gateway gets an empty disk, and may come back as another member.

mod acts;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

/// A request of the administrator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// The gateway of this machine joins, in place of a member or of none (0).
    Join {
        host: usize,
        replaces: u64,
    },
    Leave {
        member: u64,
        force: bool,
    },
    Drain {
        member: u64,
        drained: bool,
    },
}

struct Asked {
    wish: Wish,
    request: u128,
    attempt: u64,
    due: u64,
    until: u64,
}

type Answers = Arc<Mutex<Vec<(u64, Result<u64, tonic::Status>)>>>;

/// See the module.
#[derive(Default)]
pub struct Administrator {
    current: Option<Asked>,
    /// The gateway of this machine is to become this member.
    adopting: Option<(usize, u64, u64)>,
    answers: Answers,
    attempts: u64,
    /// Members that were asked to leave: only they may be told that they are out.
    leaving: BTreeSet<u64>,
    /// Machines whose gateway is started at a time.
    empty: Vec<(u64, usize)>,
}

impl Administrator {
    /// Nothing is asked for, nothing is half done.
    pub fn is_idle(&self) -> bool {
        self.current.is_none() && self.adopting.is_none()
    }
}
