//! Authorisation of the clients: by a plain export, or by the token of the last grant. Also records the interval in
//! which a grant was certainly the only one.
//!
//! Owns: the current grant and its changes (all through the command line, one at a time). Does not own: the clients.

use super::history::History;
use crate::gateways::{Door, name};
use anyhow::{Context, Result};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The set.
pub const SET: &str = "chaos";

/// What a client presents to a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// 0 for all plain exports; each token has the next number.
    pub number: u64,
    /// `None`: plain.
    pub token: Option<String>,
}

/// The interval from the answer to a grant until the request for the next change: no other client may write in it (R2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    pub grant: u64,
    pub owner: String,
    /// In nanoseconds since the start of the history.
    pub from: u64,
    /// `None`: to the end.
    pub until: Option<u64>,
}

#[derive(Debug)]
struct State {
    current: Grant,
    owner: String,
    grants: u64,
    holds: Vec<Hold>,
}

/// Shared by the clients, the fault injector and the keeper.
#[derive(Debug)]
pub struct Access {
    door: Door,
    state: Mutex<State>,
    /// One change at a time.
    acting: Mutex<()>,
}

/// Time to live of the leases: long enough that none expires while in use.
const TTL: &str = "10m";

/// How long a change may take before its outcome counts as unknown.
const CHANGE_LIMIT: Duration = Duration::from_secs(8);

/// How long the owner of a token waits for progress before it acquires the lease again, at the gateway that serves now.
const STUCK: Duration = Duration::from_millis(2500);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Access {
    /// Plain exports.
    pub fn new(door: Door) -> Self {
        let state = State { current: Grant { number: 0, token: None }, owner: String::new(), grants: 0, holds: vec![] };
        Self { door, state: Mutex::new(state), acting: Mutex::new(()) }
    }

    /// What a client must present now.
    pub fn current(&self) -> Grant {
        lock(&self.state).current.clone()
    }

    /// All holds so far.
    pub fn holds(&self) -> Vec<Hold> {
        lock(&self.state).holds.clone()
    }

    /// Called before a change is requested: from now on the last grant is not certain any more.
    fn let_go(&self, now: u64) {
        if let Some(hold) = lock(&self.state).holds.last_mut() {
            hold.until.get_or_insert(now);
        }
    }

    fn granted(&self, history: &History, owner: &str, token: &str) {
        let mut state = lock(&self.state);
        state.grants += 1;
        let grant = state.grants;
        state.current = Grant { number: grant, token: Some(token.into()) };
        state.owner = owner.into();
        state.holds.push(Hold { grant, owner: owner.into(), from: history.now(), until: None });
    }

    /// The owner is unknown: no client can do anything until the keeper has acquired the lease again.
    fn lost(&self, owner: &str) {
        let mut state = lock(&self.state);
        state.grants += 1;
        state.current = Grant { number: state.grants, token: Some("0".repeat(32)) };
        state.owner = owner.into();
    }

    /// Takes the lease by force for `owner`. If the command fails, its outcome is unknown.
    pub fn usurp(&self, history: &History, owner: &str) -> Result<()> {
        let _one = lock(&self.acting);
        self.usurp_now(history, owner, &["lease", "acquire", SET, "--owner", owner, "--ttl", TTL, "--force"])
    }

    /// Forced failover to a gateway, for `owner`.
    pub fn fail_over(&self, history: &History, owner: &str, to: usize) -> Result<()> {
        let _one = lock(&self.acting);
        let to = name(to);
        self.usurp_now(history, owner, &["failover", SET, "--candidate", &to, "--owner", owner, "--ttl", TTL, "--yes"])
    }

    fn usurp_now(&self, history: &History, owner: &str, args: &[&str]) -> Result<()> {
        self.let_go(history.now());
        let done = self.door.holdfast(args, CHANGE_LIMIT).and_then(|said| {
            let token = said["token"].as_str().or_else(|| said["granted"]["token"].as_str());
            Ok(token.with_context(|| format!("no token in {said}"))?.to_owned())
        });
        match done {
            Ok(token) => {
                self.granted(history, owner, &token);
                Ok(())
            }
            Err(e) => {
                self.lost(owner);
                Err(e)
            }
        }
    }

    /// Ends the current lease and returns to plain exports: with the token, or by a forced failover to a gateway.
    pub fn free(&self, history: &History, to: Option<usize>) -> Result<()> {
        let _one = lock(&self.acting);
        self.let_go(history.now());
        let (token, owner) = {
            let state = lock(&self.state);
            (state.current.token.clone(), state.owner.clone())
        };
        let done = match (to, token) {
            (Some(to), _) => self.door.holdfast(&["failover", SET, "--candidate", &name(to), "--yes"], CHANGE_LIMIT),
            (None, Some(token)) => self.door.holdfast(&["lease", "release", SET, "--token", &token], CHANGE_LIMIT),
            (None, None) => return Ok(()),
        };
        match done {
            Ok(_) => {
                lock(&self.state).current = Grant { number: 0, token: None };
                Ok(())
            }
            Err(e) => {
                self.lost(if owner.is_empty() { "keeper" } else { &owner });
                Err(e)
            }
        }
    }

    /// Planned switchover: the lease stays, but its token is not valid at the new gateway until the lease is acquired
    /// again there.
    pub fn switch_over(&self, to: usize) -> Result<()> {
        let _one = lock(&self.acting);
        self.door.holdfast(&["switchover", SET, "--to", &name(to)], CHANGE_LIMIT).map(drop)
    }

    /// Call it regularly. If no request has succeeded for a while, the same owner acquires the lease again at the
    /// gateway that leads now.
    pub fn keep(&self, history: &History) {
        let patience = u64::try_from(STUCK.as_nanos()).unwrap_or(u64::MAX);
        let stuck = || !history.progressed_since(history.now().saturating_sub(patience));
        if self.current().token.is_none() || !stuck() {
            return;
        }
        let _one = lock(&self.acting);
        let owner = {
            let state = lock(&self.state);
            // Gives a new grant some time.
            let fresh = state.holds.last().is_some_and(|h| h.until.is_none() && h.from + patience > history.now());
            if state.current.token.is_none() || fresh {
                return;
            }
            state.owner.clone()
        };
        // A failure is an unknown outcome; the next call finds it stuck again.
        let _ = self.usurp_now(history, &owner, &["lease", "acquire", SET, "--owner", &owner, "--ttl", TTL, "--force"]);
    }
}
