//! Errors in a store's URL, options and credentials file.

use std::path::PathBuf;

/// Maximum size of a credentials file in bytes: hundreds of profiles need some 100 KiB.
pub(crate) const CREDENTIALS_BYTES_MAX: u64 = 1 << 20;

/// Maximum size of a bundle of certificates in bytes: that of a system has some 250 KiB.
pub(crate) const CA_BUNDLE_BYTES_MAX: u64 = 8 << 20;

pub(crate) const ID: &str = "aws_access_key_id";
pub(crate) const SECRET: &str = "aws_secret_access_key";

/// What to do if nobody has credentials.
pub(crate) const NO_CREDENTIALS: &str = "give this machine, task or pod a role that may use the store, or set store.credentials_file, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY";

/// A store's URL or one of its options cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreUrlError {
    /// It has no known form.
    #[error("store URL: found {found:?}, expected {expected}")]
    Form {
        /// The URL, without parts that might be secret.
        found: String,
        /// The expected form.
        expected: &'static str,
    },
    /// An option cannot be used.
    #[error("store option {name}: found {found:?}, expected {expected}")]
    Option {
        /// Its name.
        name: &'static str,
        /// Its value.
        found: String,
        /// The expected value.
        expected: &'static str,
    },
    /// There are no keys to sign with.
    #[error(
        "store credentials: found no {missing}, expected access_key_id and secret_access_key in the store's options, \
         AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment, or a credentials file"
    )]
    Credentials {
        /// What is missing.
        missing: &'static str,
    },
    /// The SDK's providers have given none.
    #[error("store credentials: {tried}; {}", NO_CREDENTIALS)]
    NoCredentials {
        /// Who was asked, and why there were none.
        tried: String,
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
        /// The problem.
        found: String,
    },
    /// The credentials file cannot be used.
    #[error("store credentials: {}: {problem}", path.display())]
    CredentialsFile {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: CredentialsProblem,
    },
}

/// A credentials file cannot be used. Shows names and line numbers, never the content of a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CredentialsProblem {
    /// The system's error.
    #[error("cannot be read ({found}), expected a file that this process may read")]
    Unreadable {
        /// The system's message.
        found: String,
    },
    /// Other users of this machine can use it (SECRET-F1).
    #[error("{found}")]
    Exposed {
        /// What makes it so, and what to do.
        found: String,
    },
    /// A directory, a pipe or a device.
    #[error("found no regular file, expected one, because it is read repeatedly")]
    NoFile,
    /// Longer than any credentials file.
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
    /// A line does not have the form of such a file.
    #[error("line {line}: found something else, expected {expected}")]
    Line {
        /// From 1 on.
        line: usize,
        /// The expected form.
        expected: &'static str,
    },
    /// The file has only other profiles.
    #[error("found {found}, expected a profile [{expected}]")]
    NoProfile {
        /// The profiles in the file.
        found: String,
        /// The requested profile.
        expected: String,
    },
    /// A profile without complete keys.
    #[error("profile [{profile}]: found no {missing}, expected {} and {}", ID, SECRET)]
    Incomplete {
        /// Its name.
        profile: String,
        /// The missing value.
        missing: &'static str,
    },
    /// A value that cannot be sent or cannot be a key.
    #[error("profile [{profile}]: found {found_bytes} bytes as {name}, expected {expected}")]
    Value {
        /// The profile.
        profile: String,
        /// Name of the value.
        name: &'static str,
        /// Its length.
        found_bytes: usize,
        /// The expected form.
        expected: &'static str,
    },
}
