//! Errors of calls and streams to peers, in openraft's form.

use crate::config::TypeConfig;
use openraft::errors::{NetworkError, RPCError, Unreachable};
use std::time::Duration;
use tonic::Status;

/// Why a peer gave no answer.
pub(crate) type Rpc = RPCError<TypeConfig>;

/// The peer's refusal. openraft waits before it repeats what a peer cannot do now.
pub(crate) fn from_status(status: &Status) -> Rpc {
    match status.code() {
        tonic::Code::Unavailable
        | tonic::Code::NotFound
        | tonic::Code::PermissionDenied
        | tonic::Code::FailedPrecondition => RPCError::Unreachable(Unreachable::new(status)),
        _ => RPCError::Network(NetworkError::new(status)),
    }
}

/// A broken connection, or bytes that are not understood. Whether the peer has done what was asked is not known.
pub(crate) fn broken<E: std::error::Error + 'static>(e: &E) -> Rpc {
    RPCError::Network(NetworkError::new(e))
}

/// No answer in time. Whether the peer has done what was asked is not known.
pub(crate) fn late(what: &str, after: Duration) -> Rpc {
    RPCError::Network(NetworkError::from_string(format!("{what}: no answer within {after:?}")))
}
