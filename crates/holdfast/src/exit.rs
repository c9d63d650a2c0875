//! Exit codes, and errors that say what to do next.

use holdfast_api::{Refusal, RefusalCode};
use std::error::Error;
use std::io::ErrorKind;

/// How a command ends. The numbers are part of the interface: scripts branch on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done, or there was nothing to do.
    Done = 0,
    /// Tried, and it failed.
    Failed = 1,
    /// The command line or an input file is wrong; no request was sent.
    Usage = 2,
    /// A gateway refused; nothing happened.
    Refused = 3,
    /// No gateway that could do it was reached in time; nothing happened.
    Unreachable = 4,
    /// It may have happened: check before repeating (R12).
    Unknown = 5,
    /// The confirmation was denied, or standard input is no terminal and `--yes` is missing.
    Declined = 6,
    /// Another owner acquired the set: what is attached here is useless for good.
    Fenced = 7,
    /// The checked data is damaged; the result lists the damage.
    Damaged = 8,
}

/// Shown by `holdfast --help`.
pub const EXIT_CODES: &str = "\
Exit codes:
  0  done, or there was nothing to do
  1  failed
  2  the command line or an input file is wrong
  3  refused; nothing was changed
  4  no gateway that could do it was reached in time; nothing was changed
  5  unknown: it may have taken effect; check before repeating it
  6  not confirmed: answered with no, or --yes is missing and standard input is no terminal
  7  fenced: another owner acquired the set that is attached here
  8  the checked data is damaged; the result lists the damage";

/// Why a command did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CliError {
    /// The process's exit code.
    pub exit: Exit,
    /// For scripts: a refusal's code, or the exit code's name.
    pub code: &'static str,
    /// The problem: what was found and what was expected.
    pub message: String,
    /// What the user can do about it.
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

    /// Refused by this program, based on answers of gateways or stores.
    pub fn refused(message: impl Into<String>) -> Self {
        Self::new(Exit::Refused, "refused", message)
    }

    /// No gateway was reached in time; nothing happened.
    pub fn unreachable(message: impl Into<String>) -> Self {
        Self::new(Exit::Unreachable, "unreachable", message)
    }

    /// It may have happened.
    pub fn unknown(message: impl Into<String>) -> Self {
        Self::new(Exit::Unknown, "unknown", message)
            .next("check with `holdfast cluster status` and `holdfast set show SET` before repeating it")
    }

    /// Not confirmed.
    pub fn declined(message: impl Into<String>) -> Self {
        Self::new(Exit::Declined, "declined", message)
    }

    /// Another owner acquired the set.
    pub fn fenced(message: impl Into<String>) -> Self {
        Self::new(Exit::Fenced, "fenced", message)
    }

    /// The checked data is damaged.
    pub fn damaged(message: impl Into<String>) -> Self {
        Self::new(Exit::Damaged, "damaged", message)
    }

    /// Adds advice.
    pub fn next(mut self, next: impl Into<String>) -> Self {
        self.next = Some(next.into());
        self
    }

    /// Adds the causes, outermost first, and advice if one is about a file and there is no other advice.
    pub fn because(mut self, error: &(dyn Error + 'static)) -> Self {
        let mut cause = Some(error);
        while let Some(error) = cause {
            if let Some(error) = error.downcast_ref::<std::io::Error>() {
                self.next = self.next.or_else(|| advice_on_path(error.kind()).map(str::to_string));
            }
            let text = error.to_string();
            // Many errors include the text of their cause.
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

    /// A refusal of a repeated request: an earlier attempt had no answer and may have changed something.
    #[must_use]
    pub fn after_an_unanswered_attempt(mut self) -> Self {
        self.exit = Exit::Unknown;
        self.message.push_str("; an earlier attempt of this command had no answer, and may have changed something");
        self
    }

    /// What came after a step of this command that has changed something. It must not say that nothing was changed.
    #[must_use]
    pub fn after_a_change(mut self, changed: &str) -> Self {
        if matches!(self.exit, Exit::Refused | Exit::Unreachable) {
            self.exit = Exit::Unknown;
        }
        self.message.push_str("; ");
        self.message.push_str(changed);
        self
    }

    /// Translates a gateway's final refusal.
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

fn advice_on_path(kind: ErrorKind) -> Option<&'static str> {
    Some(match kind {
        ErrorKind::NotFound => "check the path: this file or directory does not exist",
        ErrorKind::PermissionDenied => "run this as a user who may do this, or change the owner or mode of the path",
        ErrorKind::IsADirectory => "name a file, not a directory",
        ErrorKind::NotADirectory => "check the path: a part of it is not a directory",
        ErrorKind::ReadOnlyFilesystem => "name a path on a file system that can be written",
        ErrorKind::StorageFull => "free space on this file system, or name a path on another one",
        _ => return None,
    })
}

fn advice(code: RefusalCode) -> Option<&'static str> {
    Some(match code {
        RefusalCode::NotAdopted => {
            "this gateway belongs to no cluster yet: create one with `holdfast cluster bootstrap --config FILE`, or add it to one with `holdfast gateway add`"
        }
        RefusalCode::Adopted => {
            "a data directory belongs to one cluster permanently: give the gateway an empty data_dir to use it in another one"
        }
        RefusalCode::OtherCluster | RefusalCode::OtherDisk => {
            "check that --api and the gateway's address belong to the same cluster and machine"
        }
        RefusalCode::Held => {
            "wait until the owner releases it, or take it by force: with --force if this command has it, else with `holdfast failover`. Both fence the owner: its \
             further writes are refused"
        }
        RefusalCode::StaleToken | RefusalCode::WrongEpoch => {
            "the lease was granted again since then: `holdfast lease show SET` shows the present owner"
        }
        RefusalCode::NotContinuable => "a plain export's lease ends with its connection: connect again",
        RefusalCode::NotFound => {
            "list what exists: `holdfast set list`, `holdfast gateway list`, `holdfast snapshot list SET`, `holdfast volume list SET`"
        }
        RefusalCode::Unknown => "check with `holdfast cluster status` and `holdfast set show SET` before repeating it",
        RefusalCode::NotLeader | RefusalCode::Busy => {
            "`holdfast cluster status` shows which gateways are reachable; a Raft group needs more than half of its members"
        }
        RefusalCode::Failed => "see the log of the gateway",
        RefusalCode::Denied => {
            "`holdfast cluster certificates` issues certificates of other roles; docs/operating/roles.md says which role may do what"
        }
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
    fn an_error_of_a_path_says_what_to_do_unless_the_command_knows_better() {
        let missing = || std::io::Error::from(ErrorKind::NotFound);
        let advised = |error: CliError| error.next.unwrap_or_default();
        assert!(advised(CliError::usage("a").because(&missing())).starts_with("check the path"));
        assert_eq!(advised(CliError::usage("a").because(&missing()).next("b")), "b");
        assert_eq!(CliError::usage("a").because(&std::io::Error::other("c")).next, None);
    }

    #[test]
    fn after_a_change_nothing_says_that_nothing_was_changed() {
        let exit = |error: CliError| error.after_a_change("the set was made").exit;
        assert_eq!(exit(CliError::unreachable("no answer")), Exit::Unknown);
        assert_eq!(exit(CliError::refused("no room")), Exit::Unknown);
        assert_eq!(exit(CliError::failed("no")), Exit::Failed);
        assert_eq!(exit(CliError::fenced("gone")), Exit::Fenced);
        assert_eq!(CliError::failed("no").after_a_change("the set was made").message, "no; the set was made");
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
