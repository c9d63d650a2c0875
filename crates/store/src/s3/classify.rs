//! The meaning of an answer from S3, or of its absence. All knowledge of status and error codes is in this file.

use crate::error::{At, Cause, Op, StoreError};
use crate::health::Kind;
use crate::version::Version;
use aws_sdk_s3::error::{DisplayErrorContext, ProvideErrorMetadata, SdkError};
use aws_sdk_s3::primitives::{DateTime, DateTimeFormat};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use std::error::Error;
use std::io;
use std::time::SystemTime;

/// Translates a failed attempt into its meaning for the caller.
pub(super) fn classify<E>(at: Box<At>, bucket: &str, expected: Option<&Version>, error: &SdkError<E>) -> StoreError
where
    E: Error + ProvideErrorMetadata + 'static,
{
    let context = || DisplayErrorContext(error).to_string();
    if let Some(denied) = refused_on_the_way(&at, error) {
        return denied;
    }
    match error {
        SdkError::ConstructionFailure(_) => {
            StoreError::Denied { at, cause: Cause::text(context()), hint: "correct the store's options" }
        }
        SdkError::DispatchFailure(_) | SdkError::TimeoutError(_) => {
            let never = never_sent(error);
            let kind = match error {
                _ if never => Kind::Unreachable,
                SdkError::TimeoutError(_) => Kind::NoAnswer,
                SdkError::DispatchFailure(failure) if failure.is_timeout() => Kind::NoAnswer,
                _ => Kind::Broken,
            };
            let perhaps = at.op.writes() && !never;
            lost(at, Cause::of_kind(kind, context()), perhaps)
        }
        SdkError::ResponseError(answer) => {
            let cause = Box::new(Cause {
                status: Some(answer.raw().status().as_u16()),
                ..*Cause::of_kind(Kind::Broken, context())
            });
            let perhaps = at.op.writes();
            lost(at, cause, perhaps)
        }
        SdkError::ServiceError(answer) => {
            let meta = answer.err().meta();
            let raw = answer.raw();
            let header = |name| raw.headers().get(name).map(str::to_owned);
            let answer = Answer {
                status: raw.status().as_u16(),
                code: meta.code(),
                message: meta.message().unwrap_or_default(),
                date: header("date"),
                content_range: header("content-range"),
                region: header("x-amz-bucket-region"),
            };
            judge(at, bucket, expected, answer)
        }
        _ => {
            let perhaps = at.op.writes();
            lost(at, Cause::of_kind(Kind::Broken, context()), perhaps)
        }
    }
}

fn lost(at: Box<At>, cause: Box<Cause>, perhaps: bool) -> StoreError {
    if perhaps {
        StoreError::Unknown { at, attempts: 1, cause }
    } else {
        StoreError::Unavailable { at, attempts: 1, cause }
    }
}

/// The texts of a chain of errors, the outermost first.
fn chain<E: Error + 'static>(error: &SdkError<E, HttpResponse>) -> impl Iterator<Item = String> {
    let first: &(dyn Error + 'static) = error;
    std::iter::successors(Some(first), |&error| error.source()).map(ToString::to_string)
}

/// The beginning of rustls' message about a refused certificate. Its types are not available to us; a test compares the
/// text.
const BAD_CERTIFICATE: &str = "invalid peer certificate";

/// A certificate that is not trusted, or a proxy that wants credentials: nothing was sent, and nothing will be before a
/// person changes something.
fn refused_on_the_way<E: Error + 'static>(at: &At, error: &SdkError<E, HttpResponse>) -> Option<StoreError> {
    if !matches!(error, SdkError::DispatchFailure(_)) {
        return None;
    }
    let at = || Box::new(at.clone());
    let words: Vec<String> = chain(error).collect();
    if let Some(text) = words.iter().find(|text| text.starts_with(BAD_CERTIFICATE)) {
        let hint = certificate_hint(text);
        return Some(StoreError::Denied { at: at(), cause: Cause::of_kind(Kind::Certificate, text.clone()), hint });
    }
    let asks = words.iter().find(|text| text.ends_with("proxy authorization required"))?;
    let hint = "the proxy wants a user and a password: write them into its URL in the environment, http://USER:PASSWORD@HOST:PORT";
    Some(StoreError::Denied { at: at(), cause: Cause::of_kind(Kind::Denied, asks.clone()), hint })
}

/// rustls' reasons for refusing a certificate, and what to do about each.
const CERTIFICATE_HINTS: [(&str, &str); 7] = [
    (
        "UnknownIssuer",
        "no certificate that is trusted here has signed it: name the file of the one that has (PEM) in AWS_CA_BUNDLE or SSL_CERT_FILE of every gateway and command, and start them again",
    ),
    (
        "BadSignature",
        "another certificate of the same name is trusted here: if it was renewed, put the new one into the file that AWS_CA_BUNDLE or SSL_CERT_FILE names, and start again",
    ),
    (
        "CaUsedAsEndEntity",
        "it is an authority's own (CA:TRUE), as `openssl req -x509` makes it, and taken only if the file that AWS_CA_BUNDLE or SSL_CERT_FILE names has this very certificate: put it there and start again, or give the server one that the authority has signed",
    ),
    (
        "not valid for name",
        "it is another host's: correct the endpoint, or give the server a certificate whose subjectAltName has this name",
    ),
    ("expired", "renew the server's certificate; if it is new, set this host's clock (NTP)"),
    ("not valid yet", "set this host's clock (NTP), or that of the host that made the certificate"),
    (
        "UnsupportedCertVersion",
        "it is of version 1: make one with extensions, -addext subjectAltName=DNS:NAME or IP:ADDRESS",
    ),
];

fn certificate_hint(text: &str) -> &'static str {
    let known = CERTIFICATE_HINTS.iter().find(|(says, _)| text.contains(says));
    known.map_or(
        "give the server a certificate that is trusted here; AWS_CA_BUNDLE names a file of those",
        |(_, hint)| hint,
    )
}

/// Whether no byte of the request can have reached the store: there never was a connection.
fn never_sent<E: Error + 'static>(error: &SdkError<E, HttpResponse>) -> bool {
    // The proxy did not connect us.
    if chain(error).any(|text| text.starts_with("tunnel error")) {
        return true;
    }
    let mut next: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            use io::ErrorKind as Kind;
            let kinds =
                [Kind::ConnectionRefused, Kind::HostUnreachable, Kind::NetworkUnreachable, Kind::AddrNotAvailable];
            if kinds.contains(&error.kind()) {
                return true;
            }
        }
        next = error.source();
    }
    false
}

struct Answer<'a> {
    status: u16,
    code: Option<&'a str>,
    message: &'a str,
    date: Option<String>,
    content_range: Option<String>,
    /// The bucket's region, from a header.
    region: Option<String>,
}

/// The bucket's region: from a header, or from a text such as "the region 'us-east-1' is wrong; expecting 'eu-west-1'".
fn region_of(answer: &Answer<'_>) -> Option<String> {
    let said = || Some(answer.message.split_once("expecting '")?.1.split_once('\'')?.0.to_owned());
    let name = |region: &String| {
        (1..=64).contains(&region.len()) && region.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    answer.region.clone().or_else(said).filter(name)
}

fn judge(at: Box<At>, bucket: &str, expected: Option<&Version>, answer: Answer<'_>) -> StoreError {
    let cause = Box::new(Cause {
        status: Some(answer.status),
        code: answer.code.map(str::to_owned),
        message: answer.message.chars().take(300).collect(),
        kind: None,
    });
    let not_done = |at, cause| StoreError::Unavailable { at, attempts: 1, cause };
    match (answer.code.unwrap_or_default(), answer.status) {
        ("NoSuchBucket", _) => StoreError::BucketMissing { at, bucket: bucket.to_owned(), cause },
        ("RequestTimeTooSkewed", _) => {
            let found = answer.date.clone().unwrap_or_else(|| "no date".to_owned());
            let ours = DateTime::from(SystemTime::now()).fmt(DateTimeFormat::HttpDate);
            StoreError::ClockSkew { at, found, expected: ours.unwrap_or_else(|_| "no date".to_owned()) }
        }
        ("PreconditionFailed", _) | (_, 412) => conflict(at, expected),
        // If-Match on an object that does not exist.
        ("NoSuchKey" | "NotFound", _) if at.op == Op::Swap => conflict(at, expected),
        // The store's error code decides, not 404 alone: a wrong endpoint answers 404 too, and so do some stores for an
        // unknown access key. Only an answer to HEAD cannot contain the code.
        ("NoSuchKey" | "NotFound", _) => StoreError::NotFound { at },
        ("", 404) if at.op == Op::Head => StoreError::NotFound { at },
        ("InvalidRange", _) | (_, 416) => {
            // `bytes */1234`: the actual length. The caller knows the expected one.
            let whole = answer.content_range.as_deref().and_then(|text| text.strip_prefix("bytes */")?.parse().ok());
            StoreError::Length { at, found_bytes: whole.unwrap_or(0), expected_bytes: 0 }
        }
        // "Another request was under way": that may have been an attempt of ours, and it may have been done.
        ("ConditionalRequestConflict" | "OperationAborted", _) | (_, 409) => {
            let perhaps = at.op.writes();
            lost(at, cause, perhaps)
        }
        ("SlowDown" | "Throttling" | "ThrottlingException" | "RequestLimitExceeded" | "TooManyRequests", _)
        | (_, 429) => not_done(at, cause),
        // The store did not receive the whole body, so it wrote nothing.
        ("RequestTimeout" | "IncompleteBody" | "BadDigest" | "XAmzContentSHA256Mismatch", 400) => not_done(at, cause),
        ("QuotaExceeded" | "XMinioStorageFull", _) | (_, 507) => not_done(at, cause),
        _ => refused(at, &answer, cause),
    }
}

/// For answers that tell nothing about the object: why the store did not do it, and what to do about it.
fn refused(at: Box<At>, answer: &Answer<'_>, cause: Box<Cause>) -> StoreError {
    let hint = match (answer.code.unwrap_or_default(), answer.status) {
        ("InvalidAccessKeyId" | "XAdminUserNotFound", _) => "the store does not know this access key id",
        ("SignatureDoesNotMatch", _) => {
            "the secret access key is not that of the access key id, or a proxy changes requests"
        }
        ("ExpiredToken" | "InvalidToken" | "InvalidTokenId" | "TokenRefreshRequired", _) => {
            "the session token ran out: these credentials are temporary, give new ones"
        }
        (
            "SecondLevelDomainForbidden"
            | "PathStyleDomainForbidden"
            | "InvalidPathAccess"
            | "VirtualHostDomainRequired",
            _,
        ) => {
            "the store refuses path-style addresses (https://host/bucket/key): write ?path_style=false in the store's URL"
        }
        (
            "PermanentRedirect"
            | "TemporaryRedirect"
            | "AuthorizationHeaderMalformed"
            | "IllegalLocationConstraintException",
            _,
        )
        | (_, 301 | 307 | 308) => return StoreError::WrongRegion { at, region: region_of(answer), cause },
        ("EntityTooLarge" | "MaxMessageLengthExceeded", _) | (_, 413) => {
            "the store or a proxy before it refuses a body of this length: allow PUTs of 32 MiB there (nginx: client_max_body_size)"
        }
        ("InvalidObjectState", _) => {
            "the object is in a storage class that is not read from (Glacier): restore it into the standard class, and end the lifecycle rule that moves objects below the set's prefix"
        }
        _ if asks_for_checksum(answer) => {
            "the bucket asks for a checksum with each PUT (Object Lock), and does not take x-amz-checksum-sha256: use a bucket without Object Lock"
        }
        ("NotImplemented", _) | (_, 501) => {
            "the store lacks something we rely on (conditional PUT): use another, or a newer version"
        }
        (_, 401 | 403) => "allow these credentials to get, put, delete and list in this bucket",
        (_, 408 | 500..) => {
            let perhaps = at.op.writes();
            return lost(at, cause, perhaps);
        }
        _ => "the store does not understand the request: correct endpoint, bucket or options",
    };
    StoreError::Denied { at, cause, hint }
}

/// Whether a PUT was refused because it had no checksum: a bucket with Object Lock and a default retention requires
/// one.
fn asks_for_checksum(answer: &Answer<'_>) -> bool {
    let said = answer.message.to_ascii_lowercase();
    answer.status == 400
        && matches!(answer.code, Some("InvalidRequest" | "MissingContentMD5" | "MissingChecksum"))
        && (said.contains("content-md5") || said.contains("x-amz-checksum"))
}

/// Whether the same PUT may succeed with a checksum.
pub(super) fn for_its_checksum(error: &StoreError) -> bool {
    match error {
        StoreError::Denied { at, cause, .. } if matches!(at.op, Op::Put | Op::Swap) => asks_for_checksum(&Answer {
            status: cause.status.unwrap_or(0),
            code: cause.code.as_deref(),
            message: &cause.message,
            date: None,
            content_range: None,
            region: None,
        }),
        _ => false,
    }
}

/// 412, or a similar answer. [`crate::Retrying`] must find out which object is there.
fn conflict(at: Box<At>, expected: Option<&Version>) -> StoreError {
    match at.op {
        Op::Swap => StoreError::Changed { at, found: None, expected: expected.cloned() },
        _ => StoreError::Exists { at, found_bytes: 0, expected_bytes: 0 },
    }
}

/// Whether the request may succeed with other keys. An answer to HEAD cannot contain the code, so the status alone may
/// say it.
pub(super) fn for_its_keys(error: &StoreError) -> bool {
    match error {
        StoreError::Denied { at, cause, .. } => {
            let wordless = at.op == Op::Head && cause.code.is_none() && matches!(cause.status, Some(400 | 401 | 403));
            wordless || error.kind() == Some(Kind::Credentials)
        }
        _ => false,
    }
}

/// First byte, last byte and total length of `bytes 0-9/100`; the total may be `*`.
pub(super) fn content_range(text: &str) -> Option<(u64, u64, Option<u64>)> {
    let (range, whole) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let whole = if whole == "*" { None } else { Some(whole.parse().ok()?) };
    Some((first.parse().ok()?, last.parse().ok()?, whole))
}

#[cfg(test)]
#[path = "classify_tests.rs"]
mod tests;
