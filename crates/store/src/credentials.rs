//! Keys for S3: the format of an AWS credentials file, and the source of a store's keys. Opens no file.
//!
//! ```text
//!   # a comment; so is what follows a ;
//!   [east]
//!   aws_access_key_id     = ID
//!   aws_secret_access_key = SECRET
//!   aws_session_token     = TOKEN          temporary keys only
//! ```
//! Other names belong to other tools and are skipped. Any other line makes the whole file unusable, whichever profile
//! it is in: a half-written file must not pass for a complete one.

use crate::options::{Secret, StoreOptions};
use crate::url_error::{CredentialsProblem, ID, SECRET, StoreUrlError};
use std::path::PathBuf;

/// The profile if URL, settings and environment name none.
pub(crate) const DEFAULT_PROFILE: &str = "default";

/// Maximum number of profiles in a message, and of characters of each name.
const NAMES_SHOWN_MAX: usize = 8;
const NAME_CHARS_SHOWN_MAX: usize = 64;

/// Limits for values that are sent in headers, and for the secret. Higher than any service needs.
const ID_BYTES_MAX: usize = 256;
const SECRET_BYTES_MAX: usize = 4096;
const TOKEN_BYTES_MAX: usize = 16 << 10;

const TOKEN: &str = "aws_session_token";

/// The keys that sign requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    /// Names the secret; it is not secret itself.
    pub id: String,
    pub secret: Secret,
    /// Only temporary keys have one.
    pub token: Option<Secret>,
}

/// The keys of one profile.
///
/// # Errors
/// [`CredentialsProblem`], also if the part of another profile is malformed.
pub(crate) fn parse(text: &str, profile: &str) -> Result<Keys, CredentialsProblem> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let (mut section, mut there) = (None, false);
    let (mut id, mut secret, mut token) = ("", "", "");
    let mut names = Names::default();
    for (at, line) in text.lines().enumerate() {
        let bad = |expected| CredentialsProblem::Line { line: at + 1, expected };
        let bare = line.trim();
        if bare.is_empty() || bare.starts_with(['#', ';']) {
            continue;
        }
        if let Some(head) = bare.strip_prefix('[') {
            let (name, rest) = head.split_once(']').ok_or_else(|| bad("[PROFILE] with both brackets"))?;
            if !without_comment(&format!(" {rest}")).is_empty() {
                return Err(bad("nothing but a comment behind [PROFILE]"));
            }
            let name = name.trim();
            names.add(name);
            there |= name == profile;
            section = Some(name);
            continue;
        }
        let Some((name, value)) = bare.split_once('=') else {
            // The continuation of another tool's value.
            if section.is_some() && line.starts_with([' ', '\t']) {
                continue;
            }
            return Err(bad("[PROFILE], NAME = VALUE, or a comment behind #"));
        };
        let Some(section) = section else {
            return Err(bad("[PROFILE] before the first NAME = VALUE"));
        };
        if section != profile {
            continue;
        }
        // The last value counts, as in other tools.
        match name.trim() {
            name if name.eq_ignore_ascii_case(ID) => id = without_comment(value),
            name if name.eq_ignore_ascii_case(SECRET) => secret = without_comment(value),
            name if name.eq_ignore_ascii_case(TOKEN) => token = without_comment(value),
            _ => {}
        }
    }
    if !there {
        return Err(CredentialsProblem::NoProfile { found: names.to_string(), expected: shown(profile) });
    }
    checked(profile, id, secret, token)
}

/// Keys that can be sent: an id or token with a line break or a non-ASCII character cannot be a header.
fn checked(profile: &str, id: &str, secret: &str, token: &str) -> Result<Keys, CredentialsProblem> {
    let visible = |text: &str| text.bytes().all(|b| b.is_ascii_graphic());
    let printable = |text: &str| !text.chars().any(char::is_control);
    let values = [
        (ID, id, ID_BYTES_MAX, visible(id), "1 to 256 visible ASCII characters"),
        (SECRET, secret, SECRET_BYTES_MAX, printable(secret), "1 to 4096 bytes without control characters"),
        (TOKEN, token, TOKEN_BYTES_MAX, visible(token), "up to 16384 visible ASCII characters"),
    ];
    for (name, value, bytes_max, good, expected) in values {
        let profile = || shown(profile);
        if value.is_empty() && name != TOKEN {
            return Err(CredentialsProblem::Incomplete { profile: profile(), missing: name });
        }
        if value.len() > bytes_max || !good {
            let found_bytes = value.len();
            return Err(CredentialsProblem::Value { profile: profile(), name, found_bytes, expected });
        }
    }
    let token = (!token.is_empty()).then(|| Secret::new(token));
    Ok(Keys { id: id.to_owned(), secret: Secret::new(secret), token })
}

/// A value without the blanks around it, and without a comment that follows a blank.
fn without_comment(value: &str) -> &str {
    let begins = |(at, c): &(usize, char)| {
        matches!(*c, '#' | ';') && value[..*at].chars().next_back().is_some_and(char::is_whitespace)
    };
    value.char_indices().find(begins).map_or(value, |(at, _)| &value[..at]).trim()
}

fn shown(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(NAME_CHARS_SHOWN_MAX).collect()
}

/// The first profiles of a file, for a message.
#[derive(Default)]
struct Names {
    first: Vec<String>,
    more: bool,
}

impl Names {
    fn add(&mut self, name: &str) {
        let name = shown(name);
        if self.first.contains(&name) {
            return;
        }
        if self.first.len() < NAMES_SHOWN_MAX {
            self.first.push(name);
        } else {
            self.more = true;
        }
    }
}

impl std::fmt::Display for Names {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.first.is_empty() {
            return f.write_str("no profile");
        }
        write!(f, "profiles [{}]", self.first.join("] ["))?;
        if self.more { f.write_str(" and others") } else { Ok(()) }
    }
}

/// Source of a store's keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeySource {
    /// Fixed keys.
    Given(Keys),
    /// A profile of a file, which is read again when it changes.
    Profile {
        /// The file.
        path: PathBuf,
        /// The profile.
        name: String,
    },
    /// Asked for by the SDK's providers, and again before they end.
    Chain {
        /// The profile of AWS's files.
        profile: Option<String>,
        /// Nothing but that profile: the URL names it.
        alone: bool,
    },
}

impl StoreOptions {
    /// The source of the keys of a store whose URL names `profile`, or none. For options that were
    /// [filled](StoreOptions::filled_from).
    ///
    /// # Errors
    /// There is no such source.
    pub(crate) fn key_source(&self, profile: Option<&str>) -> Result<KeySource, StoreUrlError> {
        let given = self.access_key_id.is_some() || self.secret_access_key.is_some() || self.session_token.is_some();
        match (&self.credentials_file, profile) {
            (None, Some(profile)) => Ok(KeySource::Chain { profile: Some(profile.to_owned()), alone: true }),
            (Some(path), Some(profile)) => Ok(KeySource::Profile { path: path.clone(), name: profile.to_owned() }),
            (Some(path), None) if !given => {
                let name = self.profile.as_deref().unwrap_or(DEFAULT_PROFILE).to_owned();
                Ok(KeySource::Profile { path: path.clone(), name })
            }
            (None, None) if !given => Ok(KeySource::Chain { profile: self.profile.clone(), alone: false }),
            (_, None) => {
                let missing = |missing| StoreUrlError::Credentials { missing };
                let id = self.access_key_id.clone().ok_or_else(|| missing("access_key_id"))?;
                let secret = self.secret_access_key.clone().ok_or_else(|| missing("secret_access_key"))?;
                Ok(KeySource::Given(Keys { id, secret, token: self.session_token.clone() }))
            }
        }
    }
}

#[cfg(test)]
#[path = "credentials_tests.rs"]
mod tests;
