//! Exit codes, and errors that say what to do next.

use holdfast_api::{Refusal, RefusalCode};
use std::error::Error;

/// How a command ends. The numbers are part of the interface: scripts branch on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done, or there was nothing to do.
    Done = 0,
    /// Tried, and it failed.
    Failed = 1,
    /// The command line or an input file is wrong; nothing was asked of anyone.
    Usage = 2,
    /// A gateway decided against it; nothing happened.
    Refused = 3,
    /// Nobody who could have done it was reached in time; nothing happened.
    Unreachable = 4,
    /// It may have happened: look before repeating (R12).
    Unknown = 5,
    /// A question was answered with no, or nobody was there to answer it.
    Declined = 6,
    /// Another owner took the set: what is attached here can do nothing more, for good.
    Fenced = 7,
    /// What was checked is damaged: the result names what.
    Damaged = 8,
}

/// Shown below every `--help`.
pub const EXIT_CODES: &str = "\
Exit codes:
  0  done, or there was nothing to do
  1  tried, and it failed
  2  the command line or an input file is wrong
  3  refused by a gateway; nothing happened
  4  nobody who could do it was reached in time; nothing happened
  5  unknown: it may have happened, look before repeating
  6  a question was answered with no (or --yes is missing where nobody can answer)
  7  fenced: another owner took the set that is attached here
  8  what was checked is damaged: the result names what";

/// Why a command did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CliError {
    /// The process's exit code.
    pub exit: Exit,
    /// For scripts: a refusal's code, or the exit code's name.
    pub code: &'static str,
    /// What was found and what was expected.
    pub message: String,
    /// What to do about it.
    pub next: Option<String>,
}

impl CliError {
    fn new(exit: Exit, code: &'static str, message: impl Into<String>) -> Self {
        Self { exit, code, message: message.into(), next: None }
    }

    /// Tried, and it failed.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(Exit::Failed, "failed", message)
    }

    /// The command line or an input file is wrong.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, "usage", message)
    }

    /// Decided against here, on what gateways said.
    pub fn refused(message: impl Into<String>) -> Self {
        Self::new(Exit::Refused, "refused", message)
    }

    /// Nobody was reached in time; nothing happened.
    pub fn unreachable(message: impl Into<String>) -> Self {
        Self::new(Exit::Unreachable, "unreachable", message)
    }

    /// It may have happened.
    pub fn unknown(message: impl Into<String>) -> Self {
        Self::new(Exit::Unknown, "unknown", message)
            .next("look with `holdfast cluster status` and `holdfast set show SET` before repeating it")
    }

    /// Answered with no.
    pub fn declined(message: impl Into<String>) -> Self {
        Self::new(Exit::Declined, "declined", message)
    }

    /// Another owner took the set.
    pub fn fenced(message: impl Into<String>) -> Self {
        Self::new(Exit::Fenced, "fenced", message)
    }

    /// Checked, and found damaged.
    pub fn damaged(message: impl Into<String>) -> Self {
        Self::new(Exit::Damaged, "damaged", message)
    }

    /// Adds what to do about it.
    pub fn next(mut self, next: impl Into<String>) -> Self {
        self.next = Some(next.into());
        self
    }

    /// Adds the causes, outermost first.
    pub fn because(mut self, error: &dyn Error) -> Self {
        let mut cause = Some(error);
        while let Some(error) = cause {
            let text = error.to_string();
            // Many say what caused them themselves.
            if !self.message.contains(text.trim_end()) {
                if !self.message.is_empty() {
                    self.message.push_str(": ");
                }
                self.message.push_str(text.trim_end());
            }
            cause = error.source();
        }
        self
    }

    /// What a gateway's final refusal means for the process.
    pub fn from_refusal(refusal: &Refusal) -> Self {
        let exit = match refusal.code {
            RefusalCode::Unknown => Exit::Unknown,
            RefusalCode::Failed => Exit::Failed,
            RefusalCode::NotLeader | RefusalCode::Busy => Exit::Unreachable,
            _ => Exit::Refused,
        };
        let mut error = Self::new(exit, refusal.code.as_str(), refusal.message.clone());
        error.next = advice(refusal.code).map(str::to_string);
        error
    }
}

fn advice(code: RefusalCode) -> Option<&'static str> {
    Some(match code {
        RefusalCode::NotAdopted => {
            "this gateway has no cluster yet: `holdfast cluster bootstrap --config FILE` makes one, `holdfast gateway add` lets it into one"
        }
        RefusalCode::Adopted => {
            "a data directory belongs to one cluster for ever: give the gateway an empty one to use it elsewhere"
        }
        RefusalCode::OtherCluster | RefusalCode::OtherDisk => {
            "check that --api and the gateway's address mean the same cluster and machine"
        }
        RefusalCode::Held => {
            "wait for the owner to release it, or take it from him: --force of the command where it has one, else `holdfast failover` (both fence the owner: \
             his writes are refused from then on)"
        }
        RefusalCode::StaleToken | RefusalCode::WrongEpoch => {
            "the lease was granted anew since: `holdfast lease show SET` says to whom"
        }
        RefusalCode::NotContinuable => "a plain export's lease ends with its connection: connect again",
        RefusalCode::NotFound => "`holdfast set list` and `holdfast cluster status` show what there is",
        RefusalCode::Unknown => "look with `holdfast cluster status` and `holdfast set show SET` before repeating it",
        RefusalCode::NotLeader | RefusalCode::Busy => {
            "`holdfast cluster status` shows which gateways are reachable; a group needs more than half of them"
        }
        RefusalCode::Failed => "the gateway's own log says more",
        RefusalCode::Exists | RefusalCode::Invalid | RefusalCode::Precondition => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_documented() {
        let all = [
            Exit::Done,
            Exit::Failed,
            Exit::Usage,
            Exit::Refused,
            Exit::Unreachable,
            Exit::Unknown,
            Exit::Declined,
            Exit::Fenced,
            Exit::Damaged,
        ];
        let documented =
            EXIT_CODES.lines().skip(1).map(|line| line.trim_start().split(' ').next().unwrap().parse::<u8>().unwrap());
        assert_eq!(documented.collect::<Vec<_>>(), all.map(|exit| exit as u8));
    }

    #[test]
    fn a_cause_is_said_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("key: {0}")]
        struct Outer(#[source] std::io::Error);
        let error = CliError::failed("start").because(&Outer(std::io::Error::other("no such file")));
        assert_eq!(error.message, "start: key: no such file");
    }

    #[test]
    fn unknown_is_never_refused_or_failed() {
        for &code in RefusalCode::ALL {
            let error = CliError::from_refusal(&Refusal::new(code, "x"));
            let unknown = code.disposition() == holdfast_api::Disposition::Unknown;
            assert_eq!(error.exit == Exit::Unknown, unknown, "{code:?}");
        }
    }
}
