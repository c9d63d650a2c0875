//! Why a call is refused, with the code that the CSI specification gives it.
//!
//! Kubernetes repeats every refused call. It takes most codes as final: nothing of the call goes on. UNAVAILABLE,
//! DEADLINE_EXCEEDED and ABORTED are not final: the call may have had an effect (R12), and the same call follows.

use tonic::{Code, Status};

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Refused {
    /// The code.
    pub code: Code,
    /// For people: what was found, what was expected, what to do.
    pub text: String,
}

impl Refused {
    /// A refusal with this code.
    pub fn new(code: Code, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    /// A field is missing or cannot be used.
    pub fn invalid(text: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, text)
    }

    /// There is no such volume, snapshot or path.
    pub fn not_found(text: impl Into<String>) -> Self {
        Self::new(Code::NotFound, text)
    }

    /// It exists with other properties.
    pub fn exists(text: impl Into<String>) -> Self {
        Self::new(Code::AlreadyExists, text)
    }

    /// The volume's state, or the host's, does not allow it now.
    pub fn precondition(text: impl Into<String>) -> Self {
        Self::new(Code::FailedPrecondition, text)
    }

    /// Another call for the same volume is under way.
    pub fn pending(text: impl Into<String>) -> Self {
        Self::new(Code::Aborted, text)
    }

    /// Something of this host failed.
    pub fn failed(text: impl Into<String>) -> Self {
        Self::new(Code::Internal, text)
    }

    /// The same where something was left behind: as a code that is not final, so that Kubernetes undoes the call.
    pub fn left_open(self) -> Self {
        match self.code {
            Code::Aborted | Code::DeadlineExceeded | Code::Unavailable => self,
            _ => Self::new(Code::Unavailable, self.text),
        }
    }

    /// From the code of an error of the `holdfast` program: that of a gateway's refusal (`RefusalCode::as_str`), or the
    /// program's own.
    ///
    /// A code that is not known becomes DEADLINE_EXCEEDED: nobody may conclude that nothing happened.
    pub fn of_cluster(code: &str, text: impl Into<String>) -> Self {
        let code = match code {
            "not-found" => Code::NotFound,
            "exists" => Code::AlreadyExists,
            "invalid" | "usage" => Code::InvalidArgument,
            "held" | "precondition" | "refused" | "wrong-epoch" | "not-continuable" | "fenced" => {
                Code::FailedPrecondition
            }
            "denied" | "stale-token" => Code::PermissionDenied,
            "busy" | "not-leader" | "unreachable" | "not-adopted" => Code::Unavailable,
            "failed" | "adopted" | "other-cluster" | "other-disk" | "damaged" => Code::Internal,
            _ => Code::DeadlineExceeded,
        };
        Self::new(code, text)
    }
}

impl From<Refused> for Status {
    fn from(refused: Refused) -> Status {
        Status::new(refused.code, refused.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_api::{Disposition, RefusalCode};

    /// What may have happened, or may work soon, is not final; what a gateway rejected is.
    #[test]
    fn unknown_is_never_final() {
        for code in RefusalCode::ALL {
            let refused = Refused::of_cluster(code.as_str(), "x");
            let open = matches!(refused.code, Code::Unavailable | Code::DeadlineExceeded | Code::Aborted);
            let expected = code.disposition() != Disposition::Reject || *code == RefusalCode::NotAdopted;
            assert_eq!(open, expected, "{code:?} became {:?}", refused.code);
        }
        assert_eq!(Refused::of_cluster("code-of-2031", "x").code, Code::DeadlineExceeded);
    }
}
