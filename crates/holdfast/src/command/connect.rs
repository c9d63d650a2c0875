//! The client of a command, and its error for an incomplete answer.

use crate::cli::Common;
use crate::client::ClusterClient;
use crate::exit::CliError;

/// A client of the cluster of `--api`, with the time limit of `--timeout` from now.
pub fn connect(common: &Common) -> ClusterClient {
    ClusterClient::new(&common.dialer, &common.api, common.timeout())
}

/// The error for an incomplete answer of a gateway.
pub fn incomplete(what: &str) -> CliError {
    CliError::failed(format!("the gateway's answer lacks {what}"))
        .next("check that the gateways run the same version as this program")
}
