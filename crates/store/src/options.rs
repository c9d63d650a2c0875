//! How to reach a store: settings, secrets, and the URL.

use crate::retry::RetryPolicy;
use crate::url_error::StoreUrlError;
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;
use url::Url;

/// A text that is never printed: it is shown and serialised as `***`.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Secret(String);

const HIDDEN: &str = "***";

impl Secret {
    /// Wraps a secret.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The secret itself, only for signing.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Secret {
    type Error = &'static str;

    /// `***` is refused: somebody has copied the output of a gateway.
    fn try_from(text: String) -> Result<Self, Self::Error> {
        if text == HIDDEN {
            Err("found ***, expected the secret itself (this is how secrets print)")
        } else {
            Ok(Self(text))
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(HIDDEN)
    }
}

/// Proxies for the stores, from the environment; a URL may contain a password.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proxies {
    /// For `https://` endpoints and AWS: `HTTPS_PROXY`, `https_proxy`.
    pub https: Option<Secret>,
    /// For `http://` endpoints: `HTTP_PROXY`, `http_proxy`.
    pub http: Option<Secret>,
    /// If neither is set: `ALL_PROXY`, `all_proxy`.
    pub all: Option<Secret>,
    /// Hosts, domains and networks that are reached directly, separated by commas: `NO_PROXY`, `no_proxy`.
    pub except: Option<String>,
}

/// Settings of an S3 store. A value comes from the URL's query, otherwise from the environment, otherwise from here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StoreOptions {
    /// URL of the service, `http://` or `https://`. Left out: AWS itself, by region. Environment:
    /// `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Region to sign for. Left out: `us-east-1` with an endpoint; without, that of the cloud that gives the
    /// credentials, else an error. Environment: `AWS_REGION`, `AWS_DEFAULT_REGION`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// `https://host/bucket/key` instead of `https://bucket.host/key`. Left out: yes with an endpoint, no without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_style: Option<bool>,
    /// Without keys and without a credentials file, the providers of clouds are asked. Environment:
    /// `AWS_ACCESS_KEY_ID`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_key_id: Option<String>,
    /// Environment: `AWS_SECRET_ACCESS_KEY`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_access_key: Option<Secret>,
    /// Environment: `AWS_SESSION_TOKEN`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_token: Option<Secret>,
    /// AWS credentials file; read again when it changes. A file named here has priority over keys in the environment.
    /// Environment: `AWS_SHARED_CREDENTIALS_FILE`, used if there are no keys in the environment, and for a URL that
    /// names a profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credentials_file: Option<PathBuf>,
    /// Profile of that file for a URL that names none. Left out: `default`. Environment: `AWS_PROFILE`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// Limit for a TCP and TLS connection to be made, in milliseconds.
    pub connect_timeout_ms: u64,
    /// When requests are repeated, and how long they may take.
    pub retry: RetryPolicy,
    /// Refuse a directory that is not a store yet, instead of making it one: for readers.
    #[serde(skip)]
    pub existing: bool,
    /// File of certificates (PEM) to trust in place of the system's. Environment: `AWS_CA_BUNDLE`.
    #[serde(skip)]
    pub ca_bundle: Option<PathBuf>,
    /// File of certificates (PEM), among those that stand for the system's. Environment: `SSL_CERT_FILE`.
    #[serde(skip)]
    pub cert_file: Option<PathBuf>,
    /// Proxies. From the environment only.
    #[serde(skip)]
    pub proxies: Proxies,
    /// Time between two checks of the credentials file; a refusal of its keys checks it at once.
    #[serde(skip)]
    pub credentials_look: Duration,
}

/// Short enough to pick up new keys before the old ones end, and cheap for a file system.
const CREDENTIALS_LOOK: Duration = Duration::from_secs(3);

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            endpoint: None,
            region: None,
            path_style: None,
            access_key_id: None,
            secret_access_key: None,
            session_token: None,
            credentials_file: None,
            profile: None,
            connect_timeout_ms: 3_000,
            retry: RetryPolicy::default(),
            existing: false,
            ca_bundle: None,
            cert_file: None,
            proxies: Proxies::default(),
            credentials_look: CREDENTIALS_LOOK,
        }
    }
}

impl StoreOptions {
    /// Fills missing values from the environment, which `variable` reads.
    #[must_use]
    pub fn filled_from(mut self, variable: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        self.endpoint = self.endpoint.or_else(|| set("AWS_ENDPOINT_URL_S3")).or_else(|| set("AWS_ENDPOINT_URL"));
        self.region = self.region.or_else(|| set("AWS_REGION")).or_else(|| set("AWS_DEFAULT_REGION"));
        // An id is never combined with the secret or token of another source, nor with the environment's if a file is
        // named.
        let given = self.access_key_id.is_some() || self.secret_access_key.is_some() || self.session_token.is_some();
        if !given && self.credentials_file.is_none() {
            self.access_key_id = set("AWS_ACCESS_KEY_ID");
            self.secret_access_key = set("AWS_SECRET_ACCESS_KEY").map(Secret::new);
            self.session_token = set("AWS_SESSION_TOKEN").map(Secret::new);
        }
        self.credentials_file = self.credentials_file.or_else(|| set("AWS_SHARED_CREDENTIALS_FILE").map(PathBuf::from));
        self.profile = self.profile.or_else(|| set("AWS_PROFILE"));
        self.ca_bundle = self.ca_bundle.or_else(|| set("AWS_CA_BUNDLE").map(PathBuf::from));
        self.cert_file = self.cert_file.or_else(|| set("SSL_CERT_FILE").map(PathBuf::from));
        // Both spellings are common.
        let either = |name: &str| set(name).or_else(|| set(&name.to_ascii_lowercase()));
        let proxies = &mut self.proxies;
        proxies.https = proxies.https.take().or_else(|| either("HTTPS_PROXY").map(Secret::new));
        proxies.http = proxies.http.take().or_else(|| either("HTTP_PROXY").map(Secret::new));
        proxies.all = proxies.all.take().or_else(|| either("ALL_PROXY").map(Secret::new));
        proxies.except = proxies.except.take().or_else(|| either("NO_PROXY"));
        self
    }

    /// Checks the relations between the fields.
    ///
    /// # Errors
    /// The field, what was found and what was expected.
    pub fn validate(&self) -> Result<(), StoreUrlError> {
        if self.connect_timeout_ms == 0 || self.connect_timeout_ms > self.retry.read_timeout_ms {
            return Err(StoreUrlError::Option {
                name: "connect_timeout_ms",
                found: self.connect_timeout_ms.to_string(),
                expected: "1 up to retry.read_timeout_ms, which includes it",
            });
        }
        self.retry.validate()
    }

    /// [`Self::connect_timeout_ms`] as a duration.
    pub(crate) fn connect_timeout(&self) -> Duration {
        Duration::from_millis(self.connect_timeout_ms)
    }
}

/// Maximum length of a profile's name in a URL, in bytes: URLs are replicated, and five of them share a limit.
const PROFILE_BYTES_MAX: usize = 64;

/// Location of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// `file:///dir`
    Directory(PathBuf),
    /// `s3://bucket/prefix?endpoint=...&region=...&path_style=...&profile=...`
    S3(S3Target),
}

/// A bucket and a prefix in it. Values in the query have priority over the options: they are part of the set's URL, so
/// sets of one cluster may use different services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct S3Target {
    /// The bucket.
    pub bucket: String,
    /// Empty, or ending in `/`.
    pub prefix: String,
    /// As [`StoreOptions::endpoint`].
    pub endpoint: Option<String>,
    /// As [`StoreOptions::region`].
    pub region: Option<String>,
    /// As [`StoreOptions::path_style`].
    pub path_style: Option<bool>,
    /// As [`StoreOptions::profile`]. Only the name: the process that opens the store knows the file, and nobody else
    /// learns its content.
    pub profile: Option<String>,
}

/// Whether a URL may contain this profile name. The name is part of a text that is replicated and compared, so there is
/// only one way to write it, without escapes.
pub(crate) fn is_profile(name: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    (1..=PROFILE_BYTES_MAX).contains(&name.len()) && name.bytes().all(allowed)
}

impl Location {
    /// Parses a store's URL.
    ///
    /// # Errors
    /// It has no known form. The URL is shown without user name, password and query.
    pub fn parse(text: &str) -> Result<Self, StoreUrlError> {
        let bare = text.split(['?', '#']).next().unwrap_or_default();
        let form = |expected| StoreUrlError::Form { found: bare.chars().take(200).collect(), expected };
        let known = "s3://BUCKET[/PREFIX] or file:///DIRECTORY";
        let url = Url::parse(text).map_err(|_| form(known))?;
        if !url.username().is_empty() || url.password().is_some() {
            let found = format!("{}://***@...", url.scheme());
            return Err(StoreUrlError::Form { found, expected: "no user or password: URLs are shown and shared" });
        }
        if url.fragment().is_some() {
            return Err(form("no #fragment"));
        }
        match url.scheme() {
            "file" => {
                let local = url.host_str().is_none_or(str::is_empty) && url.query().is_none();
                let path =
                    url.to_file_path().ok().filter(|path| local && path.is_absolute() && path.parent().is_some());
                path.map(Location::Directory).ok_or_else(|| form("file:///DIRECTORY, absolute, not the root"))
            }
            "s3" => Self::parse_s3(&url, bare).map(Location::S3),
            _ => Err(form(known)),
        }
    }

    fn parse_s3(url: &Url, bare: &str) -> Result<S3Target, StoreUrlError> {
        let form = |expected| StoreUrlError::Form { found: bare.chars().take(200).collect(), expected };
        let bucket = url.host_str().unwrap_or_default();
        let name = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'-');
        if url.port().is_some() || !(3..=63).contains(&bucket.len()) || !bucket.bytes().all(name) {
            return Err(form("s3://BUCKET with 3 to 63 of a-z 0-9 . - as the bucket"));
        }
        let prefix = url.path().trim_matches('/');
        if !prefix.is_empty() && crate::keys::check(prefix).is_err() {
            return Err(form("a prefix of a-z A-Z 0-9 . _ - in parts between single slashes"));
        }
        let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        let mut target = S3Target { bucket: bucket.to_owned(), prefix, ..S3Target::default() };
        // The same pairs with their escapes.
        let mut written = url.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        for (name, value) in url.query_pairs() {
            let written = written.next().unwrap_or_default();
            match name.as_ref() {
                "endpoint" | "region" if value.is_empty() => {
                    return Err(form("a value after endpoint= and region=; without them, the settings count"));
                }
                "endpoint" => target.endpoint = Some(value.into_owned()),
                "region" => target.region = Some(value.into_owned()),
                "path_style" => {
                    let flag = value.parse().map_err(|_| form("path_style=true or path_style=false"))?;
                    target.path_style = Some(flag);
                }
                "profile" => {
                    // Without escapes, because group 0 detects a profile by the letters of the URL.
                    if written.strip_prefix("profile=") != Some(&*value) || !is_profile(&value) {
                        return Err(form("profile=NAME, a name of 1 to 64 of a-z A-Z 0-9 . _ -"));
                    }
                    target.profile = Some(value.into_owned());
                }
                _ => return Err(form("only endpoint, region, path_style and profile in the query")),
            }
        }
        Ok(target)
    }
}

#[cfg(test)]
#[path = "options_tests.rs"]
mod tests;
