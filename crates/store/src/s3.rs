//! S3, one attempt per call. [`classify()`] decides the meaning of an answer; [`crate::Retrying`] repeats requests.
//!
//! The SDK's own retries, default checksums and stream guards are off: many S3-compatible stores refuse CRC trailers,
//! and only `Retrying` may repeat a write, because it must know about the repetition. One thing is repeated here: a
//! request that was refused because of its keys, if the credentials file has other keys by now ([`signing`]). Nothing
//! was done then (STORE-S3).

mod chain;
mod classify;
mod cloud;
mod connect;
mod http;
mod signing;
mod trust;

pub(crate) use self::chain::Chain;
pub(crate) use self::http::{client, connector};
use crate::credentials::KeySource;
use crate::error::{At, Cause, Op, StoreError};
use crate::health::{Health, Kind};
use crate::memory::{admit, admit_range};
use crate::options::{S3Target, StoreOptions};
use crate::url_error::{NO_CREDENTIALS, StoreUrlError};
use crate::{BoxFuture, Head, ListPage, Listed, OBJECT_BYTES_MAX, Object, ObjectStore, Version, keys, page};
use aws_sdk_s3::Client;
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::config::{
    BehaviorVersion, Builder, Region, RequestChecksumCalculation, ResponseChecksumValidation,
    StalledStreamProtectionConfig,
};
use aws_sdk_s3::error::SdkError;
use aws_sdk_s3::primitives::ByteStream;
use aws_smithy_types::base64;
use bytes::{Bytes, BytesMut};
use classify::{classify, for_its_checksum, for_its_keys};
use sha2::{Digest, Sha256};
pub use signing::check_credentials_file;
pub(crate) use signing::present;
use signing::{Asking, Signer};
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Objects of one page of a listing; S3's own limit.
const LIST_PAGE_OBJECTS: i32 = 1000;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct S3 {
    signer: Arc<Signer>,
    bucket: String,
    prefix: String,
    place: Arc<str>,
    /// The bucket has refused a PUT because it had no checksum: from then on each PUT has one.
    checksums: Arc<AtomicBool>,
}

impl S3 {
    /// Prepares the client; sends nothing yet. `health` is told about the credentials file, if there is one.
    ///
    /// # Errors
    /// The options do not suffice, or that file cannot be used.
    pub(crate) fn connect(
        target: &S3Target,
        options: &StoreOptions,
        health: Option<Arc<Health>>,
    ) -> Result<Self, StoreError> {
        options.validate().map_err(StoreError::Url)?;
        let endpoint = target.endpoint.as_ref().or(options.endpoint.as_ref());
        if let Some(endpoint) = endpoint {
            check_endpoint(endpoint).map_err(StoreError::Url)?;
        }
        let source = options.key_source(target.profile.as_deref()).map_err(StoreError::Url)?;
        let named = target.region.as_ref().or(options.region.as_ref()).filter(|region| !region.is_empty()).cloned();
        let region = named.clone().or_else(|| endpoint.map(|_| "us-east-1".to_owned()));
        // Where a cloud has the keys, it also tells the region.
        if region.is_none() && !matches!(source, KeySource::Chain { .. }) {
            let expected = "a region (?region=NAME in the URL, or AWS_REGION in the environment), or the endpoint of another service";
            return Err(StoreError::Url(StoreUrlError::Option { name: "region", found: "none".to_owned(), expected }));
        }
        let path_style = target.path_style.or(options.path_style).unwrap_or(endpoint.is_some());
        let http_client = http::client(endpoint.map(String::as_str), options).map_err(StoreError::Url)?;

        let mut config = Builder::new()
            .behavior_version(BehaviorVersion::latest())
            .region(region.map(Region::new))
            .http_client(http_client)
            .timeout_config(
                TimeoutConfig::builder()
                    .connect_timeout(options.connect_timeout())
                    // The SDK counts an upload as waiting for the answer; `Retrying` sets the limits for each
                    // operation.
                    .read_timeout(options.retry.longest_attempt())
                    .operation_attempt_timeout(options.retry.longest_attempt())
                    .build(),
            )
            .retry_config(RetryConfig::disabled())
            .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
            .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
            .response_checksum_validation(ResponseChecksumValidation::WhenRequired)
            .force_path_style(path_style);
        if let Some(endpoint) = endpoint {
            config = config.endpoint_url(endpoint);
        }
        let profile = target.profile.as_ref().map(|profile| format!("profile {profile}"));
        let notes: Vec<String> = endpoint.cloned().into_iter().chain(profile).collect();
        let at = if notes.is_empty() { String::new() } else { format!(" ({})", notes.join(", ")) };
        let place = Arc::from(format!("s3://{}/{}{at}", target.bucket, target.prefix));
        let (bucket, prefix) = (target.bucket.clone(), target.prefix.clone());
        let asking = Asking { region: named, endpoint: endpoint.map(String::as_str), options };
        let signer = Signer::open(config, source, asking, &place, health).map_err(StoreError::Url)?;
        Ok(Self { signer, bucket, prefix, place, checksums: Arc::default() })
    }

    /// Sends a request with the present keys. If they are refused, it has not happened, and it is sent once more if
    /// there are other keys.
    async fn signed<T, E, F>(
        &self,
        at: impl Fn() -> Box<At>,
        request: impl Fn(Client) -> F,
        judge: impl Fn(SdkError<E>) -> StoreError,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, SdkError<E>>>,
    {
        let without = |why: String| StoreError::Denied {
            at: at(),
            cause: Cause::of_kind(Kind::Credentials, why),
            hint: NO_CREDENTIALS,
        };
        let signing = self.signer.signing().await.map_err(without)?;
        let error = match request(signing.client.clone()).await {
            Ok(answer) => return Ok(answer),
            Err(error) => judge(error),
        };
        if !for_its_keys(&error) {
            return Err(error);
        }
        match self.signer.instead_of(&signing).await {
            Some(other) => request(other.client.clone()).await.map_err(judge),
            None => Err(error),
        }
    }

    fn at(&self, op: Op, key: &str) -> Box<At> {
        At::new(&self.place, op, key)
    }

    fn full(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    async fn put(&self, op: Op, key: &str, expected: Option<&Version>, body: Bytes) -> Result<Version, StoreError> {
        admit(|| self.at(op, key), key, &body)?;
        let with = self.checksums.load(Ordering::Relaxed);
        match self.put_once(op, key, expected, &body, with).await {
            // Nothing was done (STORE-S3), and with a checksum it may be.
            Err(error) if !with && for_its_checksum(&error) => {
                let put = self.put_once(op, key, expected, &body, true).await;
                if !put.as_ref().is_err_and(for_its_checksum) && !self.checksums.swap(true, Ordering::Relaxed) {
                    tracing::info!(
                        store = &*self.place,
                        "the bucket asks for a checksum with each PUT (Object Lock): it gets one from now on"
                    );
                }
                put
            }
            put => put,
        }
    }

    async fn put_once(
        &self,
        op: Op,
        key: &str,
        expected: Option<&Version>,
        body: &Bytes,
        checksum: bool,
    ) -> Result<Version, StoreError> {
        // In a header of its own, not a trailer, because many stores refuse trailers.
        let sum = checksum.then(|| base64::encode(Sha256::digest(body)));
        let request = |client: Client| {
            let request = client
                .put_object()
                .bucket(&self.bucket)
                .key(self.full(key))
                .content_type("application/octet-stream")
                .set_checksum_sha256(sum.clone())
                .body(ByteStream::from(body.clone()));
            let request = match expected {
                Some(version) => request.if_match(&version.0),
                None => request.if_none_match("*"),
            };
            request.send()
        };
        let judge = |error: SdkError<_>| classify(self.at(op, key), &self.bucket, expected, &error);
        let answer = self.signed(|| self.at(op, key), request, judge).await?;
        // Without an ETag the next swap cannot name this version; when the request is repeated, the answer is found by
        // content.
        let cause = || Cause::text("the store answered without an ETag");
        let unknown = || StoreError::Unknown { at: self.at(op, key), attempts: 1, cause: cause() };
        answer.e_tag.map(Version).ok_or_else(unknown)
    }

    async fn put_new(&self, key: &str, body: Bytes) -> Result<(), StoreError> {
        self.put(Op::Put, key, None, body).await.map(|_| ())
    }

    async fn get_object(&self, key: &str) -> Result<Object, StoreError> {
        keys::check(key)?;
        let at = || self.at(Op::Get, key);
        let request = |client: Client| client.get_object().bucket(&self.bucket).key(self.full(key)).send();
        let answer = self.signed(at, request, |error| classify(at(), &self.bucket, None, &error)).await?;
        let len = answer.content_length.and_then(|len| u64::try_from(len).ok());
        let version = version(at(), answer.e_tag)?;
        let body = collect(at, answer.body, len, OBJECT_BYTES_MAX).await?;
        Ok(Object { body, version })
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        let at = || self.at(Op::Range, key);
        let Some(len) = admit_range(at, key, &range)? else { return Ok(Bytes::new()) };
        let bytes = format!("bytes={}-{}", range.start, range.end - 1);
        let request =
            |client: Client| client.get_object().bucket(&self.bucket).key(self.full(key)).range(&bytes).send();
        let judge = |error: SdkError<_>| match classify(at(), &self.bucket, None, &error) {
            // The range begins after the object's end.
            StoreError::Length { at, found_bytes, .. } => {
                StoreError::Length { at, found_bytes, expected_bytes: range.end }
            }
            other => other,
        };
        let answer = self.signed(at, request, judge).await?;
        match answer.content_range.as_deref().and_then(classify::content_range) {
            Some((first, _, whole)) if first == range.start && whole.is_none_or(|whole| whole >= range.end) => {}
            Some((first, _, Some(whole))) if first == range.start => {
                return Err(StoreError::Length { at: at(), found_bytes: whole, expected_bytes: range.end });
            }
            // A server without range support sends everything: a whole segment for each extent would be far too slow.
            found => {
                let cause = Cause::text(format!("asked for bytes {}-{}, found {found:?}", range.start, range.end - 1));
                return Err(StoreError::Denied { at: at(), cause, hint: "use a store that answers range requests" });
            }
        }
        let body = collect(at, answer.body, Some(len as u64), len).await?;
        Ok(body)
    }

    async fn head(&self, key: &str) -> Result<Head, StoreError> {
        keys::check(key)?;
        let at = || self.at(Op::Head, key);
        let request = |client: Client| client.head_object().bucket(&self.bucket).key(self.full(key)).send();
        let answer = self.signed(at, request, |error| classify(at(), &self.bucket, None, &error)).await?;
        let version = version(at(), answer.e_tag)?;
        let bytes = answer.content_length.and_then(|len| u64::try_from(len).ok()).ok_or_else(|| {
            StoreError::Unavailable { at: at(), attempts: 1, cause: Cause::text("the store answered without a length") }
        })?;
        Ok(Head { bytes, version })
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        keys::check(key)?;
        let request = |client: Client| client.delete_object().bucket(&self.bucket).key(self.full(key)).send();
        let at = || self.at(Op::Delete, key);
        let judge = |error: SdkError<_>| classify(at(), &self.bucket, None, &error);
        match self.signed(at, request, judge).await {
            Ok(_) | Err(StoreError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn list(&self, prefix: &str, after: Option<&str>) -> Result<ListPage, StoreError> {
        keys::check_prefix(prefix)?;
        let at = || self.at(Op::List, prefix);
        let request = |client: Client| {
            let request = client.list_objects_v2().bucket(&self.bucket).prefix(self.full(prefix));
            request.max_keys(LIST_PAGE_OBJECTS).set_start_after(after.map(|after| self.full(after))).send()
        };
        let answer = self.signed(at, request, |error| classify(at(), &self.bucket, None, &error)).await?;
        let ours = |object: &'_ aws_sdk_s3::types::Object| Some(object.key()?.strip_prefix(&self.prefix)?.to_owned());
        let shown: Vec<_> = answer.contents().iter().filter_map(|object| Some((ours(object)?, object))).collect();
        // PAGE-O1, for the keys as they were sent: skipped keys count for the marker too.
        page::must_ascend(at, after, shown.iter().map(|(key, _)| key.as_str()))?;
        let last = shown.last().map(|(key, _)| key.clone());
        let mut objects = Vec::new();
        for (key, object) in &shown {
            // Objects of others under our prefix are neither shown nor ever deleted.
            if keys::check(key).is_ok() && key.starts_with(prefix) {
                let bytes = object.size().and_then(|size| u64::try_from(size).ok()).unwrap_or(0);
                objects.push(Listed { key: key.clone(), bytes });
            }
        }
        if !answer.is_truncated().unwrap_or(false) {
            return Ok(ListPage { objects, more: None });
        }
        // PAGE-O2: an empty page that says that there is more names no marker for the next page.
        match last {
            Some(last) => Ok(ListPage { objects, more: Some(last) }),
            None => Err(page::without_progress(at())),
        }
    }
}

fn version(at: Box<At>, e_tag: Option<String>) -> Result<Version, StoreError> {
    let cause = Cause::text("the store answered without an ETag");
    e_tag.map(Version).ok_or(StoreError::Unavailable { at, attempts: 1, cause })
}

/// Reads a body of `expected` bytes, at most `max`.
async fn collect(
    at: impl Fn() -> Box<At>,
    mut body: ByteStream,
    expected: Option<u64>,
    max: usize,
) -> Result<Bytes, StoreError> {
    let too_large = |found_bytes| StoreError::TooLarge { at: at(), found_bytes };
    if let Some(expected) = expected.filter(|expected| *expected > max as u64) {
        return Err(too_large(expected));
    }
    let mut whole = BytesMut::new();
    let mut only: Option<Bytes> = None;
    while let Some(chunk) = body.next().await {
        let chunk = chunk.map_err(|error| {
            let cause = Cause::of_kind(Kind::Broken, format!("the body ended early: {error}"));
            StoreError::Unavailable { at: at(), attempts: 1, cause }
        })?;
        let have = whole.len() + only.as_ref().map_or(0, Bytes::len);
        if have + chunk.len() > max {
            return Err(too_large((have + chunk.len()) as u64));
        }
        match only.take() {
            // A single chunk needs no copy.
            None if whole.is_empty() => only = Some(chunk),
            first => {
                if let Some(first) = first {
                    whole.reserve(expected.unwrap_or(0).max((first.len() + chunk.len()) as u64) as usize);
                    whole.extend_from_slice(&first);
                }
                whole.extend_from_slice(&chunk);
            }
        }
    }
    let body = only.unwrap_or_else(|| whole.freeze());
    match expected {
        Some(expected) if expected != body.len() as u64 => {
            let cause = Cause::of_kind(
                Kind::Broken,
                format!("the body ended early: found {} bytes, expected {expected}", body.len()),
            );
            Err(StoreError::Unavailable { at: at(), attempts: 1, cause })
        }
        _ => Ok(body),
    }
}

fn check_endpoint(endpoint: &str) -> Result<(), StoreUrlError> {
    let good = url::Url::parse(endpoint).is_ok_and(|url| {
        matches!(url.scheme(), "http" | "https")
            && url.has_host()
            && url.username().is_empty()
            && url.password().is_none()
            && url.query().is_none()
            && url.fragment().is_none()
    });
    if good {
        return Ok(());
    }
    // The part before an @ may be a password.
    let found = if endpoint.contains('@') { "***".to_owned() } else { endpoint.chars().take(200).collect() };
    Err(StoreUrlError::Option { name: "endpoint", found, expected: "http://HOST[:PORT] or https://HOST[:PORT]" })
}

impl ObjectStore for S3 {
    fn place(&self) -> &str {
        &self.place
    }

    fn credentials(&self) -> Option<String> {
        self.signer.about()
    }

    fn put_new<'a>(&'a self, key: &'a str, body: Bytes) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(self.put_new(key, body))
    }

    fn get_object<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Object, StoreError>> {
        Box::pin(self.get_object(key))
    }

    fn get_range<'a>(&'a self, key: &'a str, range: Range<u64>) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        Box::pin(self.get_range(key, range))
    }

    fn head<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Head, StoreError>> {
        Box::pin(self.head(key))
    }

    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(self.delete(key))
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a str>) -> BoxFuture<'a, Result<ListPage, StoreError>> {
        Box::pin(self.list(prefix, after))
    }

    fn swap<'a>(
        &'a self,
        key: &'a str,
        expected: Option<&'a Version>,
        body: Bytes,
    ) -> BoxFuture<'a, Result<Version, StoreError>> {
        Box::pin(self.put(Op::Swap, key, expected, body))
    }
}
