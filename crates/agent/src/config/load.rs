//! Reads a settings file, and checks its values.

use super::AgentConfig;
use super::check::{self, ConfigError, Problem};
use holdfast_tls::files::{self, SETTINGS_BYTES_MAX};
use std::path::Path;

/// Whether the text says what runs on the set. Both sections have defaults, so this is seen in the text only: an agent
/// that is meant for another service must not look for a PostgreSQL because a section is missing.
fn sections(text: &str) -> Vec<Problem> {
    let table: toml::Table = toml::from_str(text).unwrap_or_default();
    let found = match (table.contains_key("database"), table.contains_key("service")) {
        (true, false) | (false, true) => return Vec::new(),
        (false, false) => "neither",
        (true, true) => "both",
    };
    let what = format!(
        "found {found}, expected exactly one: [database] for PostgreSQL (the line alone means all defaults), [service] for anything else"
    );
    vec![Problem { field: "database, service".into(), what }]
}

impl AgentConfig {
    /// Reads and validates `path`.
    ///
    /// # Errors
    /// Unreadable, not TOML of this form, or [`AgentConfig::validate`]'s.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = files::read_text(path, SETTINGS_BYTES_MAX)
            .map_err(|source| ConfigError::Read { path: path.into(), source })?;
        let config =
            Self::parse(&text).map_err(|source| ConfigError::Parse { path: path.into(), source: Box::new(source) })?;
        let mut problems = sections(&text);
        problems.extend(config.problems());
        if problems.is_empty() { Ok(config) } else { Err(ConfigError::Invalid { problems }) }
    }

    /// All faults: ranges, and the relations between fields.
    pub fn problems(&self) -> Vec<Problem> {
        check::problems(self)
    }

    /// Checks ranges, and the relations between fields.
    ///
    /// # Errors
    /// All faults, not only the first.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let problems = self.problems();
        if problems.is_empty() { Ok(()) } else { Err(ConfigError::Invalid { problems }) }
    }
}
