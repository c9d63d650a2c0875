//! The S3 client against a server that misbehaves on the wire, byte by byte as the test says.

use crate::support::server::{Answer, Server, error, ok};
use bytes::Bytes;
use holdfast_store::{Disposition, StoreError};
use std::time::{Duration, Instant};

const BODY: Bytes = Bytes::from_static(b"0123456789");
const PUT: &str = "PUT /bucket/pre/k?x-id=PutObject";
const GET: &str = "GET /bucket/pre/k?x-id=GetObject";

#[tokio::test]
async fn a_put_is_conditional_signed_and_free_of_checksum_trailers() {
    let server = Server::start([ok(Bytes::new()), ok(Bytes::new())]).await;
    let store = server.store();
    store.put_new("k", BODY).await.expect("put");
    let version = holdfast_store::ObjectStore::swap(&*store, "k", None, BODY).await.expect("swap");
    assert_eq!(version.to_string(), "\"1\"");
    for request in server.asked() {
        assert_eq!(request.line, PUT, "path style");
        assert_eq!(request.body, BODY);
        assert_eq!(request.header("if-none-match"), Some("*"));
        assert!(request.header("authorization").is_some_and(|text| text.starts_with("AWS4-HMAC-SHA256")));
        let unwanted = |name: &str| name.starts_with("x-amz-checksum") || name.contains("trailer");
        assert!(!request.headers.iter().any(|(name, _)| unwanted(name)), "{request:?}");
        assert_eq!(request.header("content-encoding"), None);
    }
}

#[tokio::test]
async fn a_put_whose_answer_is_lost_is_found_by_its_content() {
    let taken = || error(412, "PreconditionFailed");
    let server = Server::start([Answer::Close, taken(), ok(BODY)]).await;
    server.store().put_new("k", BODY).await.expect("our own");
    assert_eq!(server.lines(), [PUT, PUT, GET]);

    let other = ok(Bytes::from_static(b"something else"));
    let server = Server::start([Answer::Close, taken(), other]).await;
    let error = server.store().put_new("k", BODY).await.expect_err("another's");
    assert!(matches!(error, StoreError::Exists { found_bytes: 14, expected_bytes: 10, .. }), "{error}");
}

#[tokio::test]
async fn a_swap_whose_answer_is_lost_is_ours_or_unknown() {
    let script = |found: Bytes| [Answer::Close, error(412, "PreconditionFailed"), ok(found)];
    let server = Server::start(script(BODY)).await;
    let version = server.store().swap("k", None, BODY).await.expect("our own");
    assert_eq!(version.to_string(), "\"1\"");
    let server = Server::start(script(Bytes::from_static(b"later"))).await;
    let error = server.store().swap("k", None, BODY).await.expect_err("overtaken, or never done");
    assert_eq!(error.disposition(), Disposition::Unknown, "{error}");
    let server = Server::start([self::error(412, "PreconditionFailed"), ok(Bytes::from_static(b"other"))]).await;
    let error = server.store().swap("k", None, BODY).await.expect_err("other");
    assert!(matches!(error, StoreError::Changed { found: Some(_), expected: None, .. }), "{error}");
}

#[tokio::test]
async fn a_body_cut_short_is_read_again() {
    let server = Server::start([Answer::Cut(BODY, 4), Answer::Cut(BODY, 0), ok(BODY)]).await;
    assert_eq!(server.store().get("k").await, Ok(BODY));
    assert_eq!(server.lines().len(), 3);
}

#[tokio::test]
async fn a_busy_store_is_asked_again() {
    let script = [error(503, "SlowDown"), error(500, "InternalError"), Answer::Close, ok(BODY)];
    let server = Server::start(script).await;
    assert_eq!(server.store().get("k").await, Ok(BODY));

    let mut server = Server::start([error(503, "SlowDown"), error(503, "SlowDown")]).await;
    server.options.retry.attempts_max = 2;
    let error = server.store().put_new("k", BODY).await.expect_err("busy");
    assert!(matches!(error, StoreError::Unavailable { attempts: 2, .. }), "refused is not unknown: {error}");

    let mut server = Server::start([self::error(500, "InternalError"), self::error(503, "SlowDown")]).await;
    server.options.retry.attempts_max = 2;
    let error = server.store().put_new("k", BODY).await.expect_err("busy");
    assert_eq!(error.disposition(), Disposition::Unknown, "500 may come after the fact: {error}");
}

#[tokio::test]
async fn silence_is_bounded() {
    let mut server = Server::start((0..4).map(|_| Answer::Hang)).await;
    let retry = &mut server.options.retry;
    (retry.attempts_max, retry.read_timeout_ms, retry.write_timeout_ms) = (2, 100, 100);
    server.options.connect_timeout_ms = 100;
    let store = server.store();
    let began = Instant::now();
    assert_eq!(store.get("k").await.expect_err("silent").disposition(), Disposition::Retry);
    assert_eq!(store.put_new("k", BODY).await.expect_err("silent").disposition(), Disposition::Unknown);
    // Four attempts of 100 ms; the limit is generous for a busy machine, and far below the defaults.
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_wrong_clock_is_named() {
    let server = Server::start([error(403, "RequestTimeTooSkewed")]).await;
    let error = server.store().get("k").await.expect_err("skewed");
    let StoreError::ClockSkew { found, expected, .. } = &error else { panic!("{error}") };
    assert_eq!(found, "Tue, 01 Jan 2030 00:00:00 GMT");
    assert!(expected.ends_with("GMT"), "{expected}");
    assert!(error.to_string().contains("set this host's clock"), "{error}");
}

#[tokio::test]
async fn ranges_must_be_answered_as_ranges() {
    let part = |headers| Answer::Send(206, headers, BODY.slice(2..5));
    let server = Server::start([part("content-range: bytes 2-4/10\r\netag: \"1\"\r\n")]).await;
    assert_eq!(server.store().get_range("k", 2..5).await, Ok(BODY.slice(2..5)));
    assert_eq!(server.asked()[0].header("range"), Some("bytes=2-4"));

    let server = Server::start([ok(BODY)]).await;
    let error = server.store().get_range("k", 2..5).await.expect_err("everything came");
    assert!(error.to_string().contains("use a store that answers range requests"), "{error}");

    let server = Server::start([part("content-range: bytes 3-5/10\r\n")]).await;
    let error = server.store().get_range("k", 2..5).await.expect_err("another range");
    assert_eq!(error.disposition(), Disposition::Denied, "{error}");

    let server = Server::start([part("content-range: bytes 2-4/5\r\n")]).await;
    let error = server.store().get_range("k", 2..8).await.expect_err("short object");
    assert!(matches!(error, StoreError::Length { found_bytes: 5, expected_bytes: 8, .. }), "{error}");
}

#[tokio::test]
async fn an_endless_object_is_not_taken_in() {
    let server =
        Server::start([Answer::Send(200, "x-big: 1\r\netag: \"1\"\r\n", Bytes::from(vec![0; (64 << 20) + 1]))]).await;
    let error = server.store().get("k").await.expect_err("too large");
    assert!(matches!(error, StoreError::TooLarge { .. }), "{error}");
}

/// A page of a listing.
fn page(truncated: bool, keys: &[&str]) -> Answer {
    let list = |key: &&str| format!("<Contents><Key>{key}</Key><Size>1</Size></Contents>");
    let keys: String = keys.iter().map(list).collect();
    let body = format!("<ListBucketResult><IsTruncated>{truncated}</IsTruncated>{keys}</ListBucketResult>");
    Answer::Send(200, "content-type: application/xml\r\n", body.into())
}

#[tokio::test]
async fn a_listing_without_progress_is_refused() {
    // Keys that are not ours are skipped, but paging continues after them.
    let server = Server::start([page(true, &["pre/a", "pre/not a key"]), page(false, &["pre/z", "elsewhere"])]).await;
    let store = server.store();
    let first = store.list("", None).await.expect("list");
    assert_eq!(first.objects.len(), 1);
    assert_eq!(first.more.as_deref(), Some("not a key"));
    let second = store.list("", first.more.as_deref()).await.expect("list");
    assert_eq!((second.objects[0].key.as_str(), second.more), ("z", None));
    assert!(server.lines()[1].contains("start-after=pre%2Fnot%20a%20key"), "{:?}", server.lines());

    let mut server = Server::start([page(true, &[])]).await;
    server.options.retry.attempts_max = 1;
    let error = server.store().list("", None).await.expect_err("no progress");
    assert!(error.to_string().contains("without progress"), "{error}");
}

/// PAGE-O1. Refused after one request: such a store would answer the same again.
#[tokio::test]
async fn a_listing_in_another_order_is_refused() {
    for (after, keys, says) in [
        // Amazon S3 Express One Zone.
        (Some("b"), &["pre/a", "pre/b", "pre/c"][..], "ignores start-after"),
        (Some("b"), &["pre/b"], "ignores start-after"),
        (None, &["pre/b", "pre/a"], "not sorted"),
        // Keys of others count: the next page begins after the last key, whatever it is.
        (None, &["pre/a", "pre/z z", "pre/c"], "not sorted"),
    ] {
        for truncated in [true, false] {
            let server = Server::start([page(truncated, keys)]).await;
            let error = server.store().list("", after).await.expect_err(says);
            assert!(matches!(error, StoreError::Listing { .. }) && error.to_string().contains(says), "{error}");
            assert_eq!(error.disposition(), Disposition::Denied, "{error}");
            assert_eq!(server.lines().len(), 1);
        }
    }
}

/// A bucket with Object Lock: one PUT is refused, and from then on each PUT has a checksum in a header of its own.
#[tokio::test]
async fn a_bucket_that_asks_for_a_checksum_gets_one() {
    let asks = || {
        let message = "Content-MD5 OR x-amz-checksum- HTTP header is required for Put Object requests with Object Lock parameters";
        let body = format!("<Error><Code>InvalidRequest</Code><Message>{message}</Message></Error>");
        Answer::Send(400, "content-type: application/xml\r\n", body.into())
    };
    let server = Server::start([asks(), ok(Bytes::new()), ok(Bytes::new())]).await;
    let store = server.store();
    store.put_new("k", BODY).await.expect("put");
    store.swap("k", None, BODY).await.expect("swap");
    let sums: Vec<Option<String>> =
        server.asked().iter().map(|r| r.header("x-amz-checksum-sha256").map(str::to_owned)).collect();
    // sha256sum of 0123456789, in base64.
    let sum = Some("hNiYd/DUBB77a/kaFvAkjy/Vc+avBcGflr7bn4gveII=".to_owned());
    assert_eq!(sums, [None, sum.clone(), sum]);
    for request in server.asked() {
        let trailer = |name: &str| name.contains("trailer") || name == "content-encoding";
        assert!(!request.headers.iter().any(|(name, _)| trailer(name)), "{request:?}");
        assert_eq!(request.body, BODY);
    }

    let server = Server::start([asks(), asks()]).await;
    let error = server.store().put_new("k", BODY).await.expect_err("it takes none");
    assert!(error.to_string().contains("use a bucket without Object Lock"), "{error}");
    assert_eq!(server.lines().len(), 2);
}
