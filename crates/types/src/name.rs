//! Names that people give: sets, volumes, gateways, owners. They end up in export names, object keys and metrics,
//! so one narrow alphabet serves everywhere.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A name of a set, volume, gateway or region: 1 to 63 of `a-z A-Z 0-9 . _ -`, beginning with a letter or digit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

/// A name is not of the form that [`Name`] and [`Owner`] ask for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("name: found {found:?}, expected 1 to {limit} of a-z A-Z 0-9 . _ -{extra}, beginning with a letter or digit")]
pub struct NameError {
    found: String,
    limit: usize,
    extra: &'static str,
}

fn check(text: &str, limit: usize, extra: &'static str) -> Result<(), NameError> {
    let first = text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
    let rest = text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b) || extra.as_bytes().contains(&b));
    if first && rest && text.len() <= limit {
        return Ok(());
    }
    Err(NameError { found: text.chars().take(80).collect(), limit, extra })
}

impl Name {
    /// Checks `text`.
    ///
    /// # Errors
    /// When it is not of the form above.
    pub fn new(text: impl Into<String>) -> Result<Self, NameError> {
        let text = text.into();
        check(&text, 63, "")?;
        Ok(Self(text))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Name {
    type Error = NameError;
    fn try_from(text: String) -> Result<Self, NameError> {
        Self::new(text)
    }
}

impl std::str::FromStr for Name {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::new(text)
    }
}

impl From<Name> for String {
    fn from(name: Name) -> String {
        name.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Who holds a lease: a PostgreSQL host, or a connection of a plain export. Up to 127 characters, `/` and `:` as well.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Owner(String);

impl Owner {
    /// Checks `text`.
    ///
    /// # Errors
    /// When it is not of the form above.
    pub fn new(text: impl Into<String>) -> Result<Self, NameError> {
        let text = text.into();
        check(&text, 127, "/:")?;
        Ok(Self(text))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Owner {
    type Error = NameError;
    fn try_from(text: String) -> Result<Self, NameError> {
        Self::new(text)
    }
}

impl From<Owner> for String {
    fn from(owner: Owner) -> String {
        owner.0
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_refuse_what_would_break_a_key_or_an_export_name() {
        for good in ["demo", "vol1", "a.b_c-d", "9"] {
            assert!(Name::new(good).is_ok(), "{good}");
        }
        for bad in ["", ".x", "a/b", "a?b", "a b", "ä", "..", &"x".repeat(64)] {
            assert!(Name::new(bad).is_err(), "{bad}");
        }
        assert!(Owner::new("plain/g1:7").is_ok());
    }
}
