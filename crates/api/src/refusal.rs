//! The error model of the admin API.
//!
//! A refusal is a gRPC status with up to two metadata entries:
//!
//! ```text
//!   holdfast-refusal:    one of RefusalCode's texts        always
//!   holdfast-leader-api: HOST:PORT                         if another gateway must be asked and is known
//! ```
//!
//! [`Refusal::disposition`] tells the caller what to do. A status without `holdfast-refusal` does not come from a
//! gateway's decision: it is a transport error, or from a foreign server. Whether that call had an effect is unknown
//! (R12), so it is retried under the same request id, or reported as unknown.

use crate::FieldError;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Status};

/// Metadata key: `HOST:PORT` of the admin API of the gateway that must be asked instead.
pub const LEADER_API_KEY: &str = "holdfast-leader-api";

/// Metadata key: the text of a [`RefusalCode`].
pub const REFUSAL_KEY: &str = "holdfast-refusal";

/// Longest accepted `HOST:PORT`: no gateway sends a longer one.
const LEADER_API_CHARS_MAX: usize = 262;

/// A caller's reaction to a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Nothing happened; ask the leader named in the refusal, or any other gateway if none is named.
    FollowLeader,
    /// Nothing happened; the same gateway may succeed soon.
    Retry,
    /// It may have happened (R12): repeat it under the same request id, or report it as unknown.
    Unknown,
    /// Nothing happened, and asking again changes nothing.
    Reject,
}

macro_rules! refusal_codes {
    ($($(#[$doc:meta])* $name:ident, $text:literal, $grpc:ident, $disposition:ident;)*) => {
        /// Why a call was refused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum RefusalCode { $($(#[$doc])* $name,)* }

        impl RefusalCode {
            /// Every code.
            pub const ALL: &'static [RefusalCode] = &[$(RefusalCode::$name),*];

            /// The text on the wire and in `--output json`. Never changed once released.
            pub fn as_str(self) -> &'static str {
                match self { $(RefusalCode::$name => $text,)* }
            }

            /// The corresponding gRPC code, for other clients.
            pub fn grpc(self) -> Code {
                match self { $(RefusalCode::$name => Code::$grpc,)* }
            }

            /// The caller's reaction.
            pub fn disposition(self) -> Disposition {
                match self { $(RefusalCode::$name => Disposition::$disposition,)* }
            }
        }
    };
}

refusal_codes! {
    /// Another gateway leads the group; the refusal names it if known.
    NotLeader, "not-leader", Unavailable, FollowLeader;
    /// Starting, electing, draining, or without a quorum: nothing was proposed.
    Busy, "busy", Unavailable, Retry;
    /// Proposed, but the outcome was not known in time (R12).
    Unknown, "unknown", DeadlineExceeded, Unknown;
    /// The gateway has no cluster yet.
    NotAdopted, "not-adopted", FailedPrecondition, Reject;
    /// The gateway belongs to a cluster already, or has another member id.
    Adopted, "adopted", FailedPrecondition, Reject;
    /// The call names another cluster than the gateway's.
    OtherCluster, "other-cluster", FailedPrecondition, Reject;
    /// The call names another disk than the gateway's.
    OtherDisk, "other-disk", FailedPrecondition, Reject;
    /// A field is missing or malformed, or a limit is exceeded.
    Invalid, "invalid", InvalidArgument, Reject;
    /// No such set, volume, member or lease.
    NotFound, "not-found", NotFound, Reject;
    /// It exists with other properties.
    Exists, "exists", AlreadyExists, Reject;
    /// Another owner holds the set: the message has owner, gateway and time.
    Held, "held", FailedPrecondition, Reject;
    /// The token is not that of the current grant.
    StaleToken, "stale-token", PermissionDenied, Reject;
    /// The epoch is not that of the current grant.
    WrongEpoch, "wrong-epoch", FailedPrecondition, Reject;
    /// A plain export's lease is never continued.
    NotContinuable, "not-continuable", FailedPrecondition, Reject;
    /// The group's state does not allow it now: for example, a candidate cannot be reached, or a member is needed.
    Precondition, "precondition", FailedPrecondition, Reject;
    /// The caller's certificate does not allow it, or the gateways' settings do not.
    Denied, "denied", PermissionDenied, Reject;
    /// Something of the gateway's own failed: store, disk, key.
    Failed, "failed", Internal, Reject;
}

impl RefusalCode {
    /// Reads the text of [`RefusalCode::as_str`]. `None` for a code of a later version.
    pub fn from_text(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.as_str() == text)
    }

    /// Whether a lease is over for good if its continuation is refused with this code. The host then ends its devices,
    /// and nothing brings them back. So a gateway answers a continuation with one of these codes only if another owner
    /// holds the set, nobody holds it, the token is not that of the lease, or another life of the set has taken over.
    pub fn ends_lease(self) -> bool {
        use RefusalCode::{Held, NotContinuable, Precondition, StaleToken, WrongEpoch};
        matches!(self, Held | StaleToken | WrongEpoch | NotContinuable | Precondition)
    }
}

/// A gateway's refusal, or its statement that the outcome is unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// The reason.
    pub code: RefusalCode,
    /// For display: what was found and what was expected.
    pub message: String,
    /// `HOST:PORT` of the admin API to ask instead.
    pub leader_api: Option<String>,
}

impl Refusal {
    /// A refusal that names no other gateway.
    pub fn new(code: RefusalCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), leader_api: None }
    }

    /// [`RefusalCode::NotLeader`], with the leader's address if known.
    pub fn not_leader(message: impl Into<String>, leader_api: Option<String>) -> Self {
        Self { code: RefusalCode::NotLeader, message: message.into(), leader_api }
    }

    /// The caller's reaction.
    pub fn disposition(&self) -> Disposition {
        self.code.disposition()
    }

    /// The refusal in a status; `None` if no gateway made it.
    ///
    /// A code of a later version becomes [`RefusalCode::Unknown`] with its text in the message: an older client must
    /// not conclude that nothing happened.
    pub fn from_status(status: &Status) -> Option<Self> {
        let text = status.metadata().get(REFUSAL_KEY)?.to_str().ok()?;
        let (code, message) = match RefusalCode::from_text(text) {
            Some(code) => (code, status.message().to_string()),
            None => (RefusalCode::Unknown, format!("{text}: {}", status.message())),
        };
        let leader_api = status.metadata().get(LEADER_API_KEY).and_then(|value| value.to_str().ok());
        let leader_api = leader_api
            .filter(|text| text.len() <= LEADER_API_CHARS_MAX)
            .filter(|text| crate::host_port(text).is_some());
        Some(Self { code, message, leader_api: leader_api.map(str::to_string) })
    }
}

impl From<FieldError> for Refusal {
    fn from(error: FieldError) -> Refusal {
        Refusal::new(RefusalCode::Invalid, error.to_string())
    }
}

impl From<FieldError> for Status {
    fn from(error: FieldError) -> Status {
        Refusal::from(error).into()
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Status {
        let mut metadata = MetadataMap::new();
        metadata.insert(REFUSAL_KEY, MetadataValue::from_static(refusal.code.as_str()));
        if let Some(Ok(value)) = refusal.leader_api.as_deref().map(MetadataValue::try_from) {
            metadata.insert(LEADER_API_KEY, value);
        }
        Status::with_metadata(refusal.code.grpc(), refusal.message, metadata)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_survives_the_wire() {
        for &code in RefusalCode::ALL {
            let sent =
                Refusal { code, message: "found x, expected y".into(), leader_api: Some("127.0.0.1:7001".into()) };
            let status = Status::from(sent.clone());
            assert_eq!(status.code(), code.grpc());
            assert_eq!(Refusal::from_status(&status), Some(sent));
        }
    }

    #[test]
    fn texts_are_distinct_and_pinned() {
        let texts: Vec<&str> = RefusalCode::ALL.iter().map(|code| code.as_str()).collect();
        let pinned = "not-leader busy unknown not-adopted adopted other-cluster other-disk invalid not-found exists held \
                      stale-token wrong-epoch not-continuable precondition denied \
                      failed";
        assert_eq!(texts.join(" "), pinned);
    }

    /// A host ends its devices for good on these.
    #[test]
    fn few_codes_end_a_lease() {
        let ending: Vec<&str> =
            RefusalCode::ALL.iter().filter(|code| code.ends_lease()).map(|code| code.as_str()).collect();
        assert_eq!(ending, ["held", "stale-token", "wrong-epoch", "not-continuable", "precondition"]);
        assert!(RefusalCode::ALL.iter().all(|code| !code.ends_lease() || code.disposition() == Disposition::Reject));
    }

    #[test]
    fn a_foreign_status_is_no_refusal_and_a_later_code_is_unknown() {
        assert_eq!(Refusal::from_status(&Status::unavailable("connection refused")), None);
        let mut status = Status::aborted("whatever this means");
        status.metadata_mut().insert(REFUSAL_KEY, MetadataValue::from_static("code-of-2031"));
        let read = Refusal::from_status(&status).unwrap();
        assert_eq!(
            (read.disposition(), read.message.as_str()),
            (Disposition::Unknown, "code-of-2031: whatever this means")
        );
    }

    #[test]
    fn a_leader_hint_that_is_no_address_is_dropped() {
        for bad in ["", "nonsense", "host:0", "host:70000", "http://h:1", "a b:1", &format!("{}:1", "h".repeat(400))] {
            let status = Status::from(Refusal::not_leader("ask another", Some(bad.into())));
            assert_eq!(Refusal::from_status(&status).unwrap().leader_api, None, "{bad}");
        }
    }
}
