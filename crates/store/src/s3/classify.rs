//! What an answer from S3, or its absence, means. All knowledge of status and error codes is in this file.

use crate::error::{At, Cause, Op, StoreError};
use crate::health::Kind;
use crate::version::Version;
use aws_sdk_s3::error::{DisplayErrorContext, ProvideErrorMetadata, SdkError};
use aws_sdk_s3::primitives::{DateTime, DateTimeFormat};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use std::error::Error;
use std::io;
use std::time::SystemTime;

/// Turns a failed attempt into what it means for the caller.
pub(super) fn classify<E>(at: Box<At>, bucket: &str, expected: Option<&Version>, error: &SdkError<E>) -> StoreError
where
    E: Error + ProvideErrorMetadata + 'static,
{
    let context = || DisplayErrorContext(error).to_string();
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

/// Whether no byte of the request can have reached the store: there never was a connection.
fn never_sent<E: Error + 'static>(error: &SdkError<E, HttpResponse>) -> bool {
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
}

fn judge(at: Box<At>, bucket: &str, expected: Option<&Version>, answer: Answer<'_>) -> StoreError {
    let cause = Box::new(Cause {
        status: Some(answer.status),
        code: answer.code.map(str::to_owned),
        message: answer.message.chars().take(300).collect(),
        kind: None,
    });
    let denied = |at, cause, hint| StoreError::Denied { at, cause, hint };
    let not_done = |at, cause| StoreError::Unavailable { at, attempts: 1, cause };
    match (answer.code.unwrap_or_default(), answer.status) {
        ("NoSuchBucket", _) => StoreError::BucketMissing { at, bucket: bucket.to_owned(), cause },
        ("RequestTimeTooSkewed", _) => {
            let found = answer.date.unwrap_or_else(|| "no date".to_owned());
            let ours = DateTime::from(SystemTime::now()).fmt(DateTimeFormat::HttpDate);
            StoreError::ClockSkew { at, found, expected: ours.unwrap_or_else(|_| "no date".to_owned()) }
        }
        ("PreconditionFailed", _) | (_, 412) => conflict(at, expected),
        // If-Match on an object that is not there.
        ("NoSuchKey" | "NotFound", _) if at.op == Op::Swap => conflict(at, expected),
        // By the store's word, not by 404 alone: that is also what a wrong endpoint answers, and some stores to an
        // unknown access key. Only an answer to HEAD has no room for the word.
        ("NoSuchKey" | "NotFound", _) => StoreError::NotFound { at },
        ("", 404) if at.op == Op::Head => StoreError::NotFound { at },
        ("InvalidRange", _) | (_, 416) => {
            // `bytes */1234`: what length there is. The caller knows what it expected.
            let whole = answer.content_range.as_deref().and_then(|text| text.strip_prefix("bytes */")?.parse().ok());
            StoreError::Length { at, found_bytes: whole.unwrap_or(0), expected_bytes: 0 }
        }
        // "Another request was under way": that may have been an attempt of ours, which may have been done.
        ("ConditionalRequestConflict" | "OperationAborted", _) | (_, 409) => {
            let perhaps = at.op.writes();
            lost(at, cause, perhaps)
        }
        ("SlowDown" | "Throttling" | "ThrottlingException" | "RequestLimitExceeded" | "TooManyRequests", _)
        | (_, 429) => not_done(at, cause),
        // The store did not get all of the body, so it wrote nothing.
        ("RequestTimeout" | "IncompleteBody" | "BadDigest" | "XAmzContentSHA256Mismatch", 400) => not_done(at, cause),
        ("QuotaExceeded" | "XMinioStorageFull", _) | (_, 507) => not_done(at, cause),
        ("InvalidAccessKeyId" | "XAdminUserNotFound", _) => {
            denied(at, cause, "the store does not know this access key id")
        }
        ("SignatureDoesNotMatch", _) => {
            denied(at, cause, "the secret access key is not that of the access key id, or a proxy changes requests")
        }
        ("ExpiredToken" | "InvalidToken" | "InvalidTokenId" | "TokenRefreshRequired", _) => {
            denied(at, cause, "the session token ran out: these credentials are temporary, give new ones")
        }
        (
            "PermanentRedirect"
            | "TemporaryRedirect"
            | "AuthorizationHeaderMalformed"
            | "IllegalLocationConstraintException",
            _,
        )
        | (_, 301 | 307 | 308) => denied(at, cause, "the bucket is in another region: correct region or endpoint"),
        ("NotImplemented", _) | (_, 501) => {
            denied(at, cause, "the store lacks something we rely on (conditional PUT): use another, or a newer version")
        }
        (_, 401 | 403) => denied(at, cause, "allow these credentials to get, put, delete and list in this bucket"),
        (_, 408 | 500..) => {
            let perhaps = at.op.writes();
            lost(at, cause, perhaps)
        }
        _ => denied(at, cause, "the store does not understand the request: correct endpoint, bucket or options"),
    }
}

/// 412, or its like. Who or what is there is for [`crate::Retrying`] to find out.
fn conflict(at: Box<At>, expected: Option<&Version>) -> StoreError {
    match at.op {
        Op::Swap => StoreError::Changed { at, found: None, expected: expected.cloned() },
        _ => StoreError::Exists { at, found_bytes: 0, expected_bytes: 0 },
    }
}

/// Whether other keys may be let through. An answer to HEAD has no room for the word, and the number alone may say it.
pub(super) fn for_its_keys(error: &StoreError) -> bool {
    match error {
        StoreError::Denied { at, cause, .. } => {
            let wordless = at.op == Op::Head && cause.code.is_none() && matches!(cause.status, Some(400 | 401 | 403));
            wordless || error.kind() == Some(Kind::Credentials)
        }
        _ => false,
    }
}

/// First, last and whole length of `bytes 0-9/100`; the whole may be `*`.
pub(super) fn content_range(text: &str) -> Option<(u64, u64, Option<u64>)> {
    let (range, whole) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let whole = if whole == "*" { None } else { Some(whole.parse().ok()?) };
    Some((first.parse().ok()?, last.parse().ok()?, whole))
}

#[cfg(test)]
#[path = "classify_tests.rs"]
mod tests;
