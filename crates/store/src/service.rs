//! Requests to the services that wrap a cluster key (crate `envelope`): a plain POST, and AWS KMS. They use what a
//! store uses: proxies, trusted certificates, access keys.
//!
//! One attempt each, within [`ANSWER_LIMIT`]; answers are bounded. What a service answers may be a key, so nothing of
//! it is in an error, except the words of a refusal.

use crate::credentials::{KeySource, Keys};
use crate::options::{Secret, StoreOptions};
use crate::s3;
use crate::url_error::StoreUrlError;
use aws_sdk_kms::Client;
use aws_sdk_kms::config::retry::RetryConfig;
use aws_sdk_kms::config::timeout::TimeoutConfig;
use aws_sdk_kms::config::{
    BehaviorVersion, Builder, Credentials, IdentityCache, Region, StalledStreamProtectionConfig,
};
use aws_sdk_kms::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_kms::primitives::Blob;
use aws_smithy_runtime_api::client::http::HttpConnector;
use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use aws_smithy_types::base64;
use aws_smithy_types::body::SdkBody;
use aws_smithy_types::byte_stream::ByteStream;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::time::Duration;

/// How long a service may take, from reading certificates to the last byte of its answer.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(20);

/// Maximum length of an answer in bytes: a wrapped key and what is around it needs a few hundred.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Characters of a service's own words in an error, at most.
const WORDS_SHOWN_MAX: usize = 300;

/// A key service has not done what was asked.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// Proxy, certificates or access keys cannot be used.
    #[error(transparent)]
    Options(#[from] StoreUrlError),
    /// It was not reached, or its answer did not come in time, or not whole.
    #[error("{at}: no answer: {why}")]
    NoAnswer {
        /// The service.
        at: String,
        /// The reason.
        why: String,
    },
    /// It has refused.
    #[error("{at}: refused: {code}: {message}")]
    Refused {
        /// The service.
        at: String,
        /// Its code.
        code: String,
        /// Its words.
        message: String,
    },
}

/// The answer to a POST.
pub struct Answer {
    /// The status of HTTP.
    pub status: u16,
    /// The body; the caller wipes it.
    pub body: Vec<u8>,
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Answer({}, {} bytes)", self.status, self.body.len())
    }
}

/// Words of a service, fit for a line of a log.
pub fn shown(words: &str) -> String {
    words.chars().filter(|c| !c.is_control()).take(WORDS_SHOWN_MAX).collect()
}

/// The texts of a chain of errors; the outer ones of HTTP libraries say little.
fn chain(error: &(dyn Error + 'static)) -> String {
    let all: Vec<String> =
        std::iter::successors(Some(error), |&error| error.source()).map(ToString::to_string).collect();
    shown(&all.join(": "))
}

async fn in_time<T>(at: &str, work: impl Future<Output = Result<T, ServiceError>>) -> Result<T, ServiceError> {
    let late = || ServiceError::NoAnswer { at: at.to_owned(), why: format!("nothing within {ANSWER_LIMIT:?}") };
    tokio::time::timeout(ANSWER_LIMIT, work).await.unwrap_or_else(|_| Err(late()))
}

/// Runs what reads files on a thread that may block.
async fn aside<T: Send + 'static>(
    at: &str,
    work: impl FnOnce() -> Result<T, StoreUrlError> + Send + 'static,
) -> Result<T, ServiceError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(outcome) => Ok(outcome?),
        Err(ended) => Err(ServiceError::NoAnswer { at: at.to_owned(), why: ended.to_string() }),
    }
}

/// POSTs `json` to `url`. Follows no redirection.
///
/// # Errors
/// [`ServiceError`], but not for a status that says no.
pub async fn post(
    url: &str,
    headers: &[(&'static str, Secret)],
    json: Vec<u8>,
    options: &StoreOptions,
) -> Result<Answer, ServiceError> {
    in_time(url, post_once(url, headers, json, options)).await
}

async fn post_once(
    url: &str,
    headers: &[(&'static str, Secret)],
    json: Vec<u8>,
    options: &StoreOptions,
) -> Result<Answer, ServiceError> {
    let failed = |why: String| ServiceError::NoAnswer { at: url.to_owned(), why };
    let (endpoint, options) = (url.to_owned(), options.clone());
    let connector = aside(url, move || s3::connector(Some(&endpoint), &options)).await?;
    let mut request = http::Request::post(url).header("content-type", "application/json");
    for (name, value) in headers {
        request = request.header(*name, value.reveal());
    }
    let request = request.body(SdkBody::from(json)).map_err(|e| failed(e.to_string()))?;
    let request = HttpRequest::try_from(request).map_err(|e| failed(chain(&e)))?;
    let answer = connector.call(request).await.map_err(|e| failed(chain(&e)))?;
    let status = answer.status().as_u16();
    let mut rest = ByteStream::new(answer.into_body());
    let mut body = Vec::with_capacity(ANSWER_BYTES_MAX);
    while let Some(chunk) = rest.next().await {
        let chunk = chunk.map_err(|e| failed(chain(&e)))?;
        if body.len() + chunk.len() > ANSWER_BYTES_MAX {
            return Err(failed(format!("found more than {ANSWER_BYTES_MAX} bytes")));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Answer { status, body })
}

/// A key of AWS KMS.
#[derive(Debug)]
pub struct Kms {
    client: Client,
    key: String,
}

impl Kms {
    /// For the key with this ARN, in this region. `endpoint`: none for AWS itself. Sends nothing.
    ///
    /// # Errors
    /// [`ServiceError::Options`].
    pub async fn connect(
        key: &str,
        region: &str,
        endpoint: Option<&str>,
        options: &StoreOptions,
    ) -> Result<Self, ServiceError> {
        let (region, endpoint, options) = (region.to_owned(), endpoint.map(str::to_owned), options.clone());
        let client = async {
            let keys = keys(key, &region, &options).await?;
            aside(key, move || client(region, endpoint, keys, &options)).await
        };
        Ok(Self { client: in_time(key, client).await?, key: key.to_owned() })
    }

    /// Decrypts what [`Kms::encrypt`], or `aws kms encrypt`, has made with this key and `context`. The caller wipes the
    /// answer.
    pub async fn decrypt(&self, wrapped: &[u8], context: (&str, &str)) -> Result<Vec<u8>, ServiceError> {
        let request = self.client.decrypt().key_id(&self.key).ciphertext_blob(Blob::new(wrapped));
        let sent = request.encryption_context(context.0, context.1).send();
        let answer = in_time(&self.key, async { sent.await.map_err(|error| self.failed(&error)) }).await?;
        answer.plaintext.map(Blob::into_inner).ok_or_else(|| self.without("plaintext"))
    }

    /// Encrypts `plain`.
    pub async fn encrypt(&self, plain: &[u8], context: (&str, &str)) -> Result<Vec<u8>, ServiceError> {
        let request = self.client.encrypt().key_id(&self.key).plaintext(Blob::new(plain));
        let sent = request.encryption_context(context.0, context.1).send();
        let answer = in_time(&self.key, async { sent.await.map_err(|error| self.failed(&error)) }).await?;
        answer.ciphertext_blob.map(Blob::into_inner).ok_or_else(|| self.without("ciphertext"))
    }

    fn without(&self, what: &str) -> ServiceError {
        ServiceError::NoAnswer { at: self.key.clone(), why: format!("found an answer without a {what}") }
    }

    fn failed<E>(&self, error: &SdkError<E>) -> ServiceError
    where
        E: Error + ProvideErrorMetadata + 'static,
    {
        let at = self.key.clone();
        if let SdkError::ServiceError(answer) = error {
            let meta = answer.err().meta();
            let code = shown(meta.code().unwrap_or("no code"));
            return ServiceError::Refused { at, code, message: shown(meta.message().unwrap_or_default()) };
        }
        ServiceError::NoAnswer { at, why: chain(error) }
    }
}

/// The keys to sign with: those of the settings or a file, else those that a cloud gives.
async fn keys(key: &str, region: &str, options: &StoreOptions) -> Result<Keys, ServiceError> {
    let (profile, alone) = match options.key_source(None)? {
        KeySource::Chain { profile, alone } => (profile, alone),
        source => return aside(key, move || s3::present(source)).await,
    };
    let (region, options) = (region.to_owned(), options.clone());
    let chain = aside(key, move || s3::Chain::new(profile, alone, Some(region), None, &options)).await?;
    let found = chain.ask().await.map_err(|tried| StoreUrlError::NoCredentials { tried })?;
    Ok(found.keys)
}

/// Reads certificates: may block.
fn client(
    region: String,
    endpoint: Option<String>,
    keys: Keys,
    options: &StoreOptions,
) -> Result<Client, StoreUrlError> {
    let token = keys.token.as_ref().map(|token| token.reveal().to_owned());
    let timeouts = TimeoutConfig::builder().connect_timeout(options.connect_timeout());
    let mut config = Builder::new()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new(region))
        .http_client(s3::client(endpoint.as_deref(), options)?)
        .timeout_config(timeouts.operation_attempt_timeout(ANSWER_LIMIT).build())
        .retry_config(RetryConfig::disabled())
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        .identity_cache(IdentityCache::no_cache())
        .credentials_provider(Credentials::new(&keys.id, keys.secret.reveal(), token, None, "holdfast"));
    if let Some(endpoint) = endpoint {
        config = config.endpoint_url(endpoint);
    }
    Ok(Client::from_conf(config.build()))
}

/// Base64, as these services have it in their JSON.
pub fn to_base64(bytes: &[u8]) -> String {
    base64::encode(bytes)
}

/// The bytes of a text in base64; `None` if it is none.
pub fn from_base64(text: &str) -> Option<Vec<u8>> {
    base64::decode(text).ok()
}
