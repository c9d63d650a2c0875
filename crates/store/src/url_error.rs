//! What can be wrong with a store's URL, options and credentials file.

use std::path::PathBuf;

/// A credentials file in bytes at most: hundreds of profiles have some 100 KiB.
pub(crate) const CREDENTIALS_BYTES_MAX: u64 = 1 << 20;

/// A bundle of certificates in bytes at most: that of a system has some 250 KiB.
pub(crate) const CA_BUNDLE_BYTES_MAX: u64 = 8 << 20;

pub(crate) const ID: &str = "aws_access_key_id";
pub(crate) const SECRET: &str = "aws_secret_access_key";

/// A store's URL or one of its options cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreUrlError {
    /// Not of a form we know.
    #[error("store URL: found {found:?}, expected {expected}")]
    Form {
        /// The URL, without what might be a secret.
        found: String,
        /// What would do.
        expected: &'static str,
    },
    /// An option cannot be used.
    #[error("store option {name}: found {found:?}, expected {expected}")]
    Option {
        /// Its name.
        name: &'static str,
        /// Its value.
        found: String,
        /// What would do.
        expected: &'static str,
    },
    /// There is nothing to sign with.
    #[error(
        "store credentials: found no {missing}, expected access_key_id and secret_access_key in the store's options, \
         AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment, or a credentials file"
    )]
    Credentials {
        /// What is missing.
        missing: &'static str,
    },
    /// A URL names a profile, and no file has any.
    #[error(
        "store credentials: found profile {profile:?} in the store's URL, expected a credentials file that has it: store.credentials_file of a gateway, \
         --credentials-file of a command, or AWS_SHARED_CREDENTIALS_FILE in the environment"
    )]
    NoCredentialsFile {
        /// The profile.
        profile: String,
    },
    /// The file of trusted certificates cannot be used.
    #[error(
        "AWS_CA_BUNDLE: {}: found {found}, expected a file of certificates (PEM) that this process may read; \
         correct the variable, or unset it to trust the system's certificates",
        path.display()
    )]
    CaBundle {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        found: String,
    },
    /// The file that the keys are to come from cannot be used.
    #[error("store credentials: {}: {problem}", path.display())]
    CredentialsFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: CredentialsProblem,
    },
}

/// A credentials file cannot be used. Shows names and line numbers, never what a line holds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CredentialsProblem {
    /// The system refuses.
    #[error("cannot be read ({found}), expected a file that this process may read")]
    Unreadable {
        /// What the system said.
        found: String,
    },
    /// A directory, a pipe or a device.
    #[error("found no regular file, expected one, because it is read repeatedly")]
    NoFile,
    /// Longer than any such file.
    #[error("found {found_bytes} bytes, expected at most {}", CREDENTIALS_BYTES_MAX)]
    TooLarge {
        /// Its length.
        found_bytes: u64,
    },
    /// Not UTF-8.
    #[error("found bytes that are no text, expected UTF-8")]
    NoText,
    /// It changed while it was read.
    #[error("it changed while it was read; it is read again")]
    Changing,
    /// Not a line of such a file.
    #[error("line {line}: found something else, expected {expected}")]
    Line {
        /// From 1 on.
        line: usize,
        /// What would do.
        expected: &'static str,
    },
    /// Other profiles only.
    #[error("found {found}, expected a profile [{expected}]")]
    NoProfile {
        /// The profiles that are there.
        found: String,
        /// The one that was looked for.
        expected: String,
    },
    /// A profile without keys.
    #[error("profile [{profile}]: found no {missing}, expected {} and {}", ID, SECRET)]
    Incomplete {
        /// Its name.
        profile: String,
        /// What is missing.
        missing: &'static str,
    },
    /// What cannot be sent or be a key.
    #[error("profile [{profile}]: found {found_bytes} bytes as {name}, expected {expected}")]
    Value {
        /// The profile.
        profile: String,
        /// Of which value.
        name: &'static str,
        /// Its length.
        found_bytes: usize,
        /// What would do.
        expected: &'static str,
    },
}
