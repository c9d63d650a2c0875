//! Settings files. They are the operator's own; a typo must still get an answer, and soon.

use holdfast_agent::config::AgentConfig;
use holdfast_gateway::config::{self, GatewayConfig};
use holdfast_standby::config::StandbyConfig;

pub(super) fn settings(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let gateway = config::read(text);
    if let Err(mistakes) = &gateway {
        assert!(!mistakes.is_empty(), "refused without a mistake");
        assert!(mistakes.iter().all(|mistake| mistake.line > 0), "a line before the first");
    }
    let parsed = GatewayConfig::parse(text);
    assert!(parsed.is_ok() || gateway.is_err(), "read one way, and not the other");
    let _ = parsed.map(|config| config.validate().is_ok());
    let agent = AgentConfig::parse(text).map(|config| config.validate().is_ok());
    let standby = toml::from_str::<StandbyConfig>(text).map(|config| config.validate().is_ok());
    gateway.is_ok() || agent.is_ok() || standby.is_ok()
}

pub(super) fn all_settings() -> Vec<Vec<u8>> {
    let tables = [
        toml::Table::try_from(GatewayConfig::example()),
        toml::Table::try_from(AgentConfig::example()),
        toml::Table::try_from(StandbyConfig::default()),
    ];
    tables.into_iter().filter_map(|table| Some(table.ok()?.to_string().into_bytes())).collect()
}
