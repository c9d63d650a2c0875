//! Credentials of clouds, asked for by the SDK's own providers, one after the other:
//!
//! ```text
//!   profile ──▶ web identity ──▶ container ──▶ instance          a profile in the URL: that one alone
//!   AWS's files  AWS_WEB_…_FILE   AWS_CONTAINER_…  IMDSv2
//!      └── STS ──────┴── the connector of stores: proxies, certificates
//!                                 └────────────────┴── directly: what is on this machine is behind no proxy
//! ```
//! What is promised: CREDS-K3 and CREDS-K4 (`signing`). Settings are the process's environment and the files that it
//! names, as the SDK reads them. All is read anew with each search, since the SDK keeps a file that it has read for
//! ever.

use super::http;
use crate::BoxFuture;
use crate::credentials::Keys;
use crate::options::{Secret, StoreOptions};
use crate::url_error::StoreUrlError;
use aws_config::ecs::EcsCredentialsProvider;
use aws_config::imds;
use aws_config::imds::credentials::ImdsCredentialsProvider;
use aws_config::imds::region::ImdsRegionProvider;
use aws_config::meta::region::ProvideRegion;
use aws_config::profile::{ProfileFileCredentialsProvider, ProfileFileRegionProvider};
use aws_config::provider_config::ProviderConfig;
use aws_config::web_identity_token::WebIdentityTokenCredentialsProvider;
use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{self, ProvideCredentials};
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::config::{Region, SharedHttpClient};
use aws_sdk_s3::primitives::{DateTime, DateTimeFormat};
use std::error::Error;
use std::time::{Duration, UNIX_EPOCH};
use tokio::time::timeout;

/// The region of STS if nothing names one.
const REGION: &str = "us-east-1";

/// Limits for STS: one attempt, and all of a request's.
const STS_ATTEMPT_LIMIT: Duration = Duration::from_secs(3);
const STS_LIMIT: Duration = Duration::from_secs(7);

/// Limits for the metadata server of an instance. It answers within milliseconds; elsewhere nobody does.
const IMDS_ATTEMPT_LIMIT: Duration = Duration::from_secs(1);
const IMDS_LIMIT: Duration = Duration::from_secs(3);
const IMDS_ATTEMPTS: u32 = 3;

/// Limit for a profile: a `credential_process` may ask an identity provider over the network.
const PROFILE_LIMIT: Duration = Duration::from_secs(45);
/// Limit for each of the others, with all their requests.
const OTHERS_LIMIT: Duration = Duration::from_secs(10);

/// Characters of one provider's reason, at most.
const REASON_CHARS_MAX: usize = 240;

const WEB_IDENTITY: &str = "web identity";

/// The SDK names a feature of its own; a person needs to know what to do.
const SSO: &str = "an SSO profile, which is not read here: write a profile with credential_process = aws configure export-credentials --profile NAME --format process";

/// What was found.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub keys: Keys,
    /// Unix milliseconds; none: they do not end.
    pub ends: Option<u64>,
    /// The source, for a person.
    by: String,
    /// For the store, if none is named for it.
    pub region: Option<String>,
}

impl Found {
    /// The source, the key's id and the end, without secrets.
    pub(crate) fn about(&self) -> String {
        format!("{}, key {}, until {}", self.by, self.keys.id, self.ends.map_or("further notice".to_owned(), date))
    }
}

fn date(unix_ms: u64) -> String {
    let date = DateTime::from_secs(i64::try_from(unix_ms / 1000).unwrap_or(i64::MAX));
    date.fmt(DateTimeFormat::DateTime).unwrap_or_else(|_| "a date that cannot be shown".to_owned())
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Chain {
    profile: Option<String>,
    /// The profile is in the URL: nobody else is asked.
    alone: bool,
    /// Named for the store.
    region: Option<String>,
    /// An endpoint needs no region.
    regional: bool,
    through: SharedHttpClient,
    direct: SharedHttpClient,
}

/// One of the SDK's providers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Provider {
    Profile,
    WebIdentity,
    Container,
    Instance,
}

impl Provider {
    const ALL: [Self; 4] = [Self::Profile, Self::WebIdentity, Self::Container, Self::Instance];

    fn limit(self) -> Duration {
        if self == Self::Profile { PROFILE_LIMIT } else { OTHERS_LIMIT }
    }
}

impl Chain {
    /// Asks nobody yet. Reads certificates: may block. `region`: the one that is named for the store. `endpoint`: of
    /// the store; none for AWS itself.
    ///
    /// # Errors
    /// A proxy or the trusted certificates cannot be used.
    pub(crate) fn new(
        profile: Option<String>,
        alone: bool,
        region: Option<String>,
        endpoint: Option<&str>,
        options: &StoreOptions,
    ) -> Result<Self, StoreUrlError> {
        let (through, direct) = (http::through(options)?, http::direct(options)?);
        Ok(Self { profile, alone, region, regional: endpoint.is_none(), through, direct })
    }

    /// Asks the providers.
    ///
    /// # Errors
    /// Who was asked, and why there were no credentials.
    ///
    /// The future is erased here: the SDK's are so deep that their layout overflows in the crates above.
    pub(crate) fn ask(&self) -> BoxFuture<'_, Result<Found, String>> {
        Box::pin(self.ask_in_turn())
    }

    async fn ask_in_turn(&self) -> Result<Found, String> {
        let mut direct = self.config(&self.direct);
        let imds = imds::Client::builder()
            .configure(&direct)
            .max_attempts(IMDS_ATTEMPTS)
            .operation_attempt_timeout(IMDS_ATTEMPT_LIMIT)
            .operation_timeout(IMDS_LIMIT)
            .build();
        let region = self.region(&direct, &imds).await;
        let sts = Region::new(region.clone().unwrap_or_else(|| REGION.to_owned()));
        direct = direct.with_region(Some(sts.clone()));
        let through = self.config(&self.through).with_region(Some(sts));
        let mut tried = Vec::new();
        for provider in Provider::ALL {
            if self.alone && provider != Provider::Profile {
                break;
            }
            let name = self.name(provider);
            let asked = self.asked(provider, &through, &direct, &imds);
            match timeout(provider.limit(), asked).await {
                Ok(Ok(credentials)) => return self.found(&credentials, name, region),
                Ok(Err(error)) => {
                    tried.push(format!("{name}: {}", reason(&error)));
                    // CREDS-K3.
                    if !matches!(error, CredentialsError::CredentialsNotLoaded(_)) {
                        break;
                    }
                }
                Err(_) => {
                    tried.push(format!("{name}: no answer within {} s", provider.limit().as_secs()));
                    break;
                }
            }
        }
        Err(format!("found no credentials: {}", tried.join("; ")))
    }

    fn found(&self, credentials: &Credentials, by: String, region: Option<String>) -> Result<Found, String> {
        let by = match variable("AWS_ROLE_ARN") {
            Some(role) if by == WEB_IDENTITY => format!("{by}, role {role}"),
            _ => by,
        };
        if self.regional && region.is_none() {
            return Err(format!(
                "found credentials ({by}), but no region: write ?region=NAME into the store's URL, or set store.region or AWS_REGION"
            ));
        }
        let token = credentials.session_token().filter(|token| !token.is_empty()).map(Secret::new);
        let secret = Secret::new(credentials.secret_access_key());
        let keys = Keys { id: credentials.access_key_id().to_owned(), secret, token };
        let ends = credentials.expiry().map(|ends| {
            let since = ends.duration_since(UNIX_EPOCH).unwrap_or_default();
            u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
        });
        let region = region.filter(|_| self.regional && self.region.is_none());
        Ok(Found { keys, ends, by, region })
    }

    fn config(&self, client: &SharedHttpClient) -> ProviderConfig {
        let limits = TimeoutConfig::builder()
            .connect_timeout(STS_ATTEMPT_LIMIT)
            .operation_attempt_timeout(STS_ATTEMPT_LIMIT)
            .operation_timeout(STS_LIMIT)
            .build();
        ProviderConfig::without_region()
            .with_http_client(client.clone())
            .with_timeout_config(limits)
            .with_retry_config(RetryConfig::standard().with_max_attempts(2))
    }

    /// The region that is named, else that of the profile, else, for AWS itself, that of the instance.
    async fn region(&self, direct: &ProviderConfig, imds: &imds::Client) -> Option<String> {
        // The name of a region at another service tells STS nothing, but the environment's does.
        let of_environment = || variable("AWS_REGION").or_else(|| variable("AWS_DEFAULT_REGION"));
        let named = if self.regional { self.region.clone() } else { of_environment() };
        if named.is_some() {
            return named;
        }
        let mut profile = ProfileFileRegionProvider::builder().configure(direct);
        if let Some(name) = &self.profile {
            profile = profile.profile_name(name.clone());
        }
        if let Some(region) = ProvideRegion::region(&profile.build()).await {
            return Some(region.as_ref().to_owned());
        }
        if !self.regional {
            return None;
        }
        let instance = ImdsRegionProvider::builder().configure(direct).imds_client(imds.clone()).build();
        instance.region().await.map(|region| region.as_ref().to_owned())
    }

    fn name(&self, provider: Provider) -> String {
        match provider {
            Provider::Profile => match &self.profile {
                Some(name) => format!("profile [{name}] of AWS's files"),
                None => "the default profile of AWS's files".to_owned(),
            },
            Provider::WebIdentity => WEB_IDENTITY.to_owned(),
            Provider::Container => "container (ECS, EKS Pod Identity)".to_owned(),
            Provider::Instance => "instance (EC2 metadata)".to_owned(),
        }
    }

    /// CREDS-K4.
    async fn asked(
        &self,
        provider: Provider,
        through: &ProviderConfig,
        direct: &ProviderConfig,
        imds: &imds::Client,
    ) -> provider::Result {
        let instance = || ImdsCredentialsProvider::builder().configure(direct).imds_client(imds.clone()).build();
        let container = || EcsCredentialsProvider::builder().configure(direct).build();
        match provider {
            Provider::Profile => {
                // A profile may name one of these as the source of a role.
                let mut profile = ProfileFileCredentialsProvider::builder()
                    .configure(through)
                    .with_custom_provider("Ec2InstanceMetadata", instance())
                    .with_custom_provider("EcsContainer", container());
                if let Some(name) = &self.profile {
                    profile = profile.profile_name(name.clone());
                }
                profile.build().provide_credentials().await
            }
            Provider::WebIdentity => {
                let web = WebIdentityTokenCredentialsProvider::builder().configure(through).build();
                web.provide_credentials().await
            }
            Provider::Container => container().provide_credentials().await,
            Provider::Instance => instance().provide_credentials().await,
        }
    }
}

/// A variable of the environment that the SDK reads too.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Why a provider gave nothing: the errors below the outermost, which says only that it did.
fn reason(error: &CredentialsError) -> String {
    let mut words: Vec<String> = Vec::new();
    let mut next = error.source();
    while let Some(cause) = next {
        let text = cause.to_string();
        // Some errors repeat the text of those below them.
        if !words.iter().any(|word| word.contains(&text)) {
            words.push(text);
        }
        next = cause.source();
    }
    let text = words.join(": ");
    if text.contains("enabled: sso") {
        return SSO.to_owned();
    }
    let text = match error {
        _ if !text.is_empty() => text,
        CredentialsError::CredentialsNotLoaded(_) => "there is none".to_owned(),
        _ => error.to_string(),
    };
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(REASON_CHARS_MAX).collect()
}

#[cfg(test)]
#[path = "chain_tests.rs"]
mod tests;
