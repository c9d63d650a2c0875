use super::*;
use crate::error::Disposition;
use std::sync::Arc;

fn judged(op: Op, status: u16, code: Option<&str>) -> StoreError {
    let at = At::new(&Arc::from("s3://bucket/"), op, "key");
    let date = Some("Tue, 01 Jan 2030 00:00:00 GMT".to_owned());
    let answer =
        Answer { status, code, message: "words", date, content_range: Some("bytes */5".to_owned()), region: None };
    judge(at, "bucket", None, answer)
}

#[test]
fn answers_mean_what_the_table_says() {
    use Disposition::*;
    let table = [
        (Op::Get, 404, Some("NoSuchKey"), NotFound),
        (Op::Head, 404, None, NotFound),
        (Op::Get, 404, Some("NoSuchBucket"), Denied),
        (Op::Get, 404, Some("InvalidAccessKeyId"), Denied),
        (Op::Get, 404, None, Denied),
        (Op::Put, 412, Some("PreconditionFailed"), Conflict),
        (Op::Swap, 412, None, Conflict),
        (Op::Swap, 404, Some("NoSuchKey"), Conflict),
        (Op::Put, 409, Some("ConditionalRequestConflict"), Unknown),
        (Op::Put, 503, Some("SlowDown"), Retry),
        (Op::Put, 429, None, Retry),
        (Op::Put, 507, None, Retry),
        (Op::Put, 400, Some("RequestTimeout"), Retry),
        (Op::Put, 500, Some("InternalError"), Unknown),
        (Op::Put, 503, Some("ServiceUnavailable"), Unknown),
        (Op::Delete, 504, None, Unknown),
        (Op::Get, 500, Some("InternalError"), Retry),
        (Op::List, 503, None, Retry),
        (Op::Range, 416, Some("InvalidRange"), Corrupt),
        (Op::Get, 403, Some("AccessDenied"), Denied),
        (Op::Head, 403, None, Denied),
        (Op::Get, 403, Some("RequestTimeTooSkewed"), Denied),
        (Op::Put, 501, Some("NotImplemented"), Denied),
        (Op::Get, 301, Some("PermanentRedirect"), Denied),
        (Op::Get, 400, Some("InvalidArgument"), Denied),
    ];
    for (op, status, code, disposition) in table {
        let error = judged(op, status, code);
        assert_eq!(error.disposition(), disposition, "{op:?} {status} {code:?}: {error}");
    }
}

#[test]
fn messages_say_what_was_found_expected_and_to_do() {
    for (op, status, code, words) in [
        (Op::Get, 404, Some("NoSuchBucket"), ["found no bucket \"bucket\"", "create it"]),
        (Op::Get, 403, Some("RequestTimeTooSkewed"), ["01 Jan 2030", "clock (NTP)"]),
        (Op::Put, 403, Some("AccessDenied"), ["HTTP 403 AccessDenied", "allow these credentials"]),
        (Op::Put, 403, Some("SignatureDoesNotMatch"), ["SignatureDoesNotMatch", "secret access key"]),
        (Op::Put, 501, None, ["HTTP 501", "conditional PUT"]),
        (Op::Range, 416, None, ["found 5 bytes", "expected"]),
    ] {
        let message = judged(op, status, code).to_string();
        for word in words {
            assert!(message.contains(word), "{message} lacks {word}");
        }
    }
}

fn said(op: Op, status: u16, code: &str, message: &str, region: Option<&str>) -> StoreError {
    let at = At::new(&Arc::from("s3://bucket/"), op, "key");
    let region = region.map(str::to_owned);
    judge(at, "bucket", None, Answer { status, code: Some(code), message, date: None, content_range: None, region })
}

/// Each case has its own error and advice, and none of them blames the keys.
#[test]
fn refusals_that_are_no_matter_of_rights_are_told_by_name() {
    let with = "the bucket is in region \"eu-west-1\": write ?region=eu-west-1";
    let malformed = "The authorization header is malformed; the region 'us-east-1' is wrong; expecting 'eu-west-1'";
    let lock =
        "Content-MD5 OR x-amz-checksum- HTTP header is required for Put Object requests with Object Lock parameters";
    for (error, says) in [
        (said(Op::Get, 301, "PermanentRedirect", "elsewhere", Some("eu-west-1")), with),
        (said(Op::Put, 400, "AuthorizationHeaderMalformed", malformed, None), with),
        (said(Op::Put, 301, "PermanentRedirect", "elsewhere", None), "in another region: correct ?region=NAME"),
        (
            said(Op::Put, 301, "PermanentRedirect", "elsewhere", Some("x\" y")),
            "in another region: correct ?region=NAME",
        ),
        (said(Op::Put, 403, "SecondLevelDomainForbidden", "words", None), "?path_style=false"),
        (said(Op::Put, 400, "VirtualHostDomainRequired", "words", None), "?path_style=false"),
        (said(Op::Put, 413, "", "too large", None), "client_max_body_size"),
        (said(Op::Put, 400, "EntityTooLarge", "too large", None), "client_max_body_size"),
        (said(Op::Range, 403, "InvalidObjectState", "archived", None), "storage class"),
        (said(Op::Put, 400, "InvalidRequest", lock, None), "Object Lock"),
    ] {
        let text = error.to_string();
        assert!(text.contains(says), "{says:?} in {text}");
        assert!(!text.contains("allow these credentials") && !text.contains("secret access key"), "{text}");
        assert_eq!((error.disposition(), error.kind()), (Disposition::Denied, Some(Kind::Denied)), "{text}");
    }
}

#[test]
fn other_keys_may_help_where_these_were_refused_and_nowhere_else() {
    for (op, status, code, helps) in [
        (Op::Put, 403, Some("InvalidAccessKeyId"), true),
        (Op::Get, 400, Some("ExpiredToken"), true),
        (Op::Get, 403, Some("InvalidTokenId"), true),
        (Op::List, 403, Some("SignatureDoesNotMatch"), true),
        (Op::Head, 403, None, true),
        (Op::Head, 400, None, true),
        (Op::Get, 403, None, false),
        (Op::Head, 404, None, false),
        (Op::Head, 501, None, false),
        (Op::Put, 403, Some("AccessDenied"), false),
        (Op::Put, 403, Some("RequestTimeTooSkewed"), false),
        (Op::Put, 503, Some("SlowDown"), false),
        (Op::Put, 500, Some("InternalError"), false),
    ] {
        let error = judged(op, status, code);
        assert_eq!(for_its_keys(&error), helps, "{op:?} {status} {code:?}: {error}");
    }
}

#[test]
fn content_ranges_are_read() {
    assert_eq!(content_range("bytes 0-9/100"), Some((0, 9, Some(100))));
    assert_eq!(content_range("bytes 5-9/*"), Some((5, 9, None)));
    for bad in ["", "bytes */100", "bytes 0-9", "items 0-9/100", "bytes x-9/100", "bytes 0-9/x"] {
        assert_eq!(content_range(bad), None, "{bad}");
    }
}
