//! Reads a settings file, and checks its values.

use super::GatewayConfig;
use super::check::{self, ConfigError};
use super::source::{self, Mistake};
use holdfast_tls::files::{self, SETTINGS_BYTES_MAX};
use std::path::Path;

impl GatewayConfig {
    /// Reads and validates `path`.
    ///
    /// # Errors
    /// Unreadable, not valid TOML for these settings, or an error of [`GatewayConfig::validate`].
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = files::read_text(path, SETTINGS_BYTES_MAX)
            .map_err(|source| ConfigError::Read { path: path.into(), source })?;
        let wrong = |mistakes| ConfigError::Parse { path: path.into(), mistakes };
        source::read(&text).map_err(wrong)?;
        let config = Self::parse(&text).map_err(|error| wrong(vec![Mistake { line: 1, what: error.to_string() }]))?;
        config.validate()?;
        Ok(config)
    }

    /// Checks ranges and the relations between fields.
    ///
    /// # Errors
    /// All problems, not only the first.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let problems = check::problems(self);
        if problems.is_empty() { Ok(()) } else { Err(ConfigError::Invalid { problems }) }
    }
}
