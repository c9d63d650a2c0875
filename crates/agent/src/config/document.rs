//! The sections of the settings, and the sample file.

use super::{
    AgentConfig, AttachConfig, AuditConfig, DatabaseConfig, HooksConfig, HttpConfig, LeaseConfig, PoolConfig,
    ServiceConfig, TakeoverConfig, TlsConfig, TracesConfig, WatchdogConfig,
};
use holdfast_settings::{Documented, FieldDoc, off_section_of, sample_of};

fn section(name: &str) -> &'static [FieldDoc] {
    match name {
        "takeover" => TakeoverConfig::FIELDS,
        "lease" => LeaseConfig::FIELDS,
        "attach" => AttachConfig::FIELDS,
        "pool" => PoolConfig::FIELDS,
        "database" => DatabaseConfig::FIELDS,
        "watchdog" => WatchdogConfig::FIELDS,
        "http" => HttpConfig::FIELDS,
        "audit" => AuditConfig::FIELDS,
        "traces" => TracesConfig::FIELDS,
        "hooks" => HooksConfig::FIELDS,
        "tls" => TlsConfig::FIELDS,
        _ => &[],
    }
}

/// The documented sample file: [`AgentConfig::example`] with every field and its comment. The section of a service
/// other than PostgreSQL stands at its end, commented out.
///
/// # Errors
/// Never for the present example. A value that TOML cannot hold would be an error.
pub fn sample() -> Result<String, toml::ser::Error> {
    let values = toml::Table::try_from(AgentConfig::example())?;
    let service = toml::Table::try_from(ServiceConfig::default())?;
    let sample = sample_of::<AgentConfig>("Print this file: holdfast agent config", &values, section);
    Ok(sample + &off_section_of::<ServiceConfig>("service", &service))
}
