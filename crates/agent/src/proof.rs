//! How the sender of a command proves over TCP that it has the agents' token, without sending it. Any user of a host
//! may listen at the agent's port while no agent does.
//!
//! ```text
//!   sender ── GET /challenge ─────────────────────────────────▶ agent
//!          ◀─ CHALLENGE ───────────────────────────────────────       only this process takes it
//!          ── POST, Authorization: Holdfast CHALLENGE NONCE MAC ─▶    HMAC-SHA256 by the token over both and the command
//!          ◀─ answer, holdfast-proof: MAC ─────────────────────       the same over the command's MAC and the answer
//! ```
//! PROOF-P1  A challenge is good for one command, for [`CHALLENGE_LIFE`], and for the process that gave it.
//! PROOF-P2  Memory is bounded: a challenge is remembered only once a command with the token's proof has used it, and
//!     at most [`USED_MAX`] are. Beyond that commands are refused.
//! PROOF-P3  The sender believes an agent that a command was carried out only if the answer proves the token too, for
//!     this command.
//!
//! The clocks of two hosts need not agree. Not protected: contents, which everybody on the way can read; and a command
//! from being passed on to another agent with the same token. So a claim names its target.

use hmac::{Hmac, KeyInit, Mac};
use holdfast_types::MonoTime;
use holdfast_types::sync::LockExt;
use sha2::Sha256;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Mutex;
use std::time::Duration;

/// Where a challenge is asked for.
pub(crate) const PATH: &str = "/challenge";

/// The header of an answer with its proof.
pub(crate) const HEADER: &str = "holdfast-proof";

/// Scheme of the header Authorization.
const SCHEME: &str = "Holdfast ";

/// How long a challenge is good: longer than any sender waits for its answer.
pub(crate) const CHALLENGE_LIFE: Duration = Duration::from_secs(60);

/// Maximum number of used challenges that are remembered.
pub(crate) const USED_MAX: usize = 4096;

/// Length of a challenge's first part: its time and a random number.
const HEAD_BYTES: usize = 48;

/// Longest challenge that a sender takes, in bytes: it comes from anybody.
const CHALLENGE_BYTES_MAX: usize = 256;

/// Over these parts, each with its length ahead of it: no other parts are the same bytes.
fn mac(key: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("R10: HMAC-SHA256 refused a key");
    for part in parts {
        mac.update(&(part.len() as u64).to_be_bytes());
        mac.update(part);
    }
    mac
}

fn hex(mac: Hmac<Sha256>) -> String {
    let mut text = String::new();
    for byte in mac.finalize().into_bytes() {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Whether `given` is this MAC. In constant time.
fn is(mac: Hmac<Sha256>, given: &str) -> bool {
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let bytes: Option<Vec<u8>> = given.as_bytes().chunks(2).map(pair).collect();
    bytes.is_some_and(|bytes| given.len() == 2 * bytes.len() && mac.verify_slice(&bytes).is_ok())
}

/// A command whose sender has the token.
#[derive(Clone, Debug)]
pub(crate) struct Proof {
    /// Of the command: one that is answered with it is this very one.
    mac: String,
}

impl Proof {
    fn over(token: &str, challenge: &str, nonce: &str, path: &str, body: &[u8]) -> Hmac<Sha256> {
        mac(token.as_bytes(), &[b"command", challenge.as_bytes(), nonce.as_bytes(), b"POST", path.as_bytes(), body])
    }

    /// Of a POST, with the value of its header Authorization. `None`: that is no challenge.
    pub(crate) fn new(token: &str, challenge: &str, path: &str, body: &str) -> Option<(String, Self)> {
        // It becomes part of a header.
        if challenge.len() > CHALLENGE_BYTES_MAX || !challenge.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let nonce = format!("{:032x}", rand::random::<u128>());
        let mac = hex(Self::over(token, challenge, &nonce, path, body.as_bytes()));
        Some((format!("{SCHEME}{challenge} {nonce} {mac}"), Self { mac }))
    }

    fn over_answer(&self, token: &str, code: u16, body: &str) -> Hmac<Sha256> {
        mac(token.as_bytes(), &[b"answer", self.mac.as_bytes(), &code.to_be_bytes(), body.as_bytes()])
    }

    /// The value of [`HEADER`] of the answer to this command.
    pub(crate) fn of_answer(&self, token: &str, code: u16, body: &str) -> String {
        hex(self.over_answer(token, code, body))
    }

    /// PROOF-P3.
    pub(crate) fn is_answered(&self, token: &str, code: u16, body: &str, given: Option<&str>) -> bool {
        given.is_some_and(|given| is(self.over_answer(token, code, body), given))
    }
}

/// Reason why a command with the token's proof is refused: nothing was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stale(pub(crate) &'static str);

/// The challenges of this process.
pub(crate) struct Challenges {
    /// Of this process alone: after a restart no earlier challenge is taken.
    key: [u8; 32],
    /// Used challenges, each with its time.
    used: Mutex<BTreeMap<String, MonoTime>>,
}

impl Default for Challenges {
    fn default() -> Self {
        Self { key: rand::random(), used: Mutex::default() }
    }
}

impl Challenges {
    /// A new one. Nothing is remembered for it.
    pub(crate) fn give(&self, now: MonoTime) -> String {
        let head = format!("{:016x}{:032x}", now.0, rand::random::<u128>());
        let mac = hex(self.over(&head));
        head + &mac
    }

    fn over(&self, head: &str) -> Hmac<Sha256> {
        mac(&self.key, &[b"challenge", head.as_bytes()])
    }

    /// The time of one that this process gave.
    fn given_at(&self, challenge: &str) -> Option<MonoTime> {
        let (head, tag) = challenge.split_at_checked(HEAD_BYTES)?;
        let at = u64::from_str_radix(head.get(..16)?, 16).ok()?;
        is(self.over(head), tag).then_some(MonoTime(at))
    }

    /// The proof of a POST with this header Authorization; `None` if the header has none by this token. The challenge
    /// is used up.
    ///
    /// # Errors
    /// The sender has the token, but its challenge is not good (PROOF-P1).
    pub(crate) fn check(
        &self,
        token: &str,
        authorization: &str,
        (path, body): (&str, &[u8]),
        now: MonoTime,
    ) -> Result<Option<Proof>, Stale> {
        let Some(parts) = authorization.strip_prefix(SCHEME) else { return Ok(None) };
        let mut parts = parts.split(' ');
        let (Some(challenge), Some(nonce), Some(mac), None) = (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Ok(None);
        };
        // First: who has no token causes nothing to be remembered.
        if !is(Proof::over(token, challenge, nonce, path, body), mac) {
            return Ok(None);
        }
        let fresh = |at: MonoTime| now.saturating_since(at) < CHALLENGE_LIFE;
        let Some(at) = self.given_at(challenge).filter(|at| fresh(*at)) else {
            return Err(Stale("found a command that took too long, or that the agent before this one was asked for"));
        };
        let mut used = self.used.locked();
        used.retain(|_, at| fresh(*at));
        if used.len() >= USED_MAX {
            return Err(Stale("found too many commands within a minute"));
        }
        match used.insert(challenge.to_string(), at) {
            None => Ok(Some(Proof { mac: mac.to_string() })),
            Some(_) => Err(Stale("found a command that was received before")),
        }
    }
}

#[cfg(test)]
#[path = "proof_tests.rs"]
mod tests;
