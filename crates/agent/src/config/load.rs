//! Reads a settings file, and checks its values.

use super::AgentConfig;
use super::check::{self, ConfigError, Problem};
use holdfast_tls::files::{self, SETTINGS_BYTES_MAX};
use std::path::Path;

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
        config.validate()?;
        Ok(config)
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
