//! What a check found.

use serde::Serialize;

/// The result of a check, the worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// The check could not be made. That says nothing about what it is for.
    Unknown,
    /// It works, and will cost something: speed, or a problem later.
    Warning,
    /// It does not work.
    Bad,
}

impl Verdict {
    /// The word in the table; those that somebody must read are loud.
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Unknown => "unknown",
            Verdict::Warning => "WARNING",
            Verdict::Bad => "BAD",
        }
    }
}

/// A check, what it found, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was checked.
    pub check: &'static str,
    pub verdict: Verdict,
    pub found: String,
    /// What to do; empty if there is nothing to do.
    pub next: String,
}

impl Finding {
    pub fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Ok, found: found.into(), next: String::new() }
    }

    pub fn unknown(check: &'static str, why: impl Into<String>, next: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Unknown, found: why.into(), next: next.into() }
    }

    pub fn warning(check: &'static str, found: impl Into<String>, next: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Warning, found: found.into(), next: next.into() }
    }

    pub fn bad(check: &'static str, found: impl Into<String>, next: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Bad, found: found.into(), next: next.into() }
    }
}
