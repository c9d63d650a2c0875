//! What `holdfast dev --secure` switches on at each gateway.

use crate::command::bootstrap::Plan;
use holdfast_gateway::config::{GatewayConfig, NbdTls, SnapshotExports};
use holdfast_tls::HttpTls;
use std::path::Path;

/// Tokens for every export, TLS for every NBD and HTTP client, an audit log, no core dumps. The files of the
/// certificate are the caller's.
pub fn switch_on(config: &mut GatewayConfig, dir: &Path) {
    config.plain_exports = false;
    config.snapshot_exports = SnapshotExports::Token;
    config.plaintext_network = false;
    config.tls.nbd = Some(NbdTls::Required);
    config.tls.http = Some(HttpTls::Required);
    config.core_dumps = false;
    config.audit.log = Some(dir.join(format!("{}.audit.log", config.name)));
}

/// Whether nobody is served in plain text or without a token: so a directory stays secure when it is started again.
pub fn is_on(config: &GatewayConfig) -> bool {
    config.tls.nbd == Some(NbdTls::Required) && !config.plain_exports
}

/// Allows the stores of the plan. Places that are there stay.
pub fn allow(config: &mut GatewayConfig, plan: &Plan) {
    // Several stores are written as "w=2 URL URL URL".
    let urls = plan.sets.iter().flat_map(|set| set.store.split_whitespace()).filter(|word| word.contains("://"));
    for url in urls {
        if !config.store.allowed.iter().any(|place| place == url) {
            config.store.allowed.push(url.to_string());
        }
    }
}
