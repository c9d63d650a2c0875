//! The messages for a person when a real S3 server refuses.

use crate::support::{self, Versitygw};
use bytes::Bytes;
use holdfast_store::{CHECK_LIMIT, Disposition, Secret, StoreError, open};

#[tokio::test]
async fn refusals_say_what_to_do() {
    let server = match Versitygw::start() {
        Ok(server) => server,
        Err(reason) => return holdfast_testkit::missing(&reason),
    };
    server.create_bucket("there");

    let missing = open("s3://not-there", &server.options()).expect("open asks nothing");
    let error = missing.put_new("x", Bytes::from("x")).await.expect_err("no bucket");
    assert!(matches!(error, StoreError::BucketMissing { .. }), "{error}");
    assert!(error.to_string().contains("found no bucket \"not-there\""), "{error}");
    let error = missing.list("", None).await.expect_err("no bucket");
    assert!(matches!(error, StoreError::BucketMissing { .. }), "{error}");

    let mut wrong = server.options();
    wrong.secret_access_key = Some(Secret::new("hunter2"));
    let store = open("s3://there", &wrong).expect("open");
    let error = store.put_new("x", Bytes::from("x")).await.expect_err("wrong secret");
    assert_eq!(error.disposition(), Disposition::Denied, "{error}");
    assert!(error.to_string().contains("SignatureDoesNotMatch"), "{error}");
    assert!(error.to_string().contains("secret access key is not that of"), "{error}");
    assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");

    let mut unknown = server.options();
    unknown.access_key_id = Some("nobody".into());
    let error = open("s3://there", &unknown).expect("open").get("x").await.expect_err("unknown id");
    assert_eq!(error.disposition(), Disposition::Denied, "{error}");
    assert!(error.to_string().contains("does not know this access key id"), "{error}");

    let store = open("s3://there", &server.options()).expect("open");
    let report = holdfast_store::check(&*store, rand::random(), CHECK_LIMIT).await.expect("check");
    assert!(report.place.starts_with("s3://there/"), "{report:?}");
}

#[tokio::test]
async fn opening_refuses_what_cannot_work() {
    let mut options = support::options(([127, 0, 0, 1], 1).into());
    options.access_key_id = None;
    options.session_token = Some(Secret::new("x"));
    let error = open("s3://bucket", &options).expect_err("no id").to_string();
    assert!(error.contains("found no access_key_id"), "{error}");

    let mut options = support::options(([127, 0, 0, 1], 1).into());
    options.endpoint = Some("ftp://user:hunter2@host".into());
    let error = open("s3://bucket", &options).expect_err("endpoint").to_string();
    assert!(error.contains("expected http://HOST") && !error.contains("hunter2"), "{error}");

    // TLS must at least be set up without touching the network.
    let mut options = support::options(([127, 0, 0, 1], 1).into());
    options.endpoint = Some("https://127.0.0.1:1".into());
    open("s3://bucket", &options).expect("https");
}

#[tokio::test]
async fn a_store_that_is_down_is_not_an_unknown_outcome() {
    // The port is bound but nobody listens: connections are refused at once, so nothing can have been sent.
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("port");
    let mut options = support::options(port);
    options.retry.attempts_max = 2;
    let store = open("s3://bucket", &options).expect("open");
    let error = store.put_new("x", Bytes::from("x")).await.expect_err("down");
    assert_eq!(error.disposition(), Disposition::Retry, "{error}");
    let StoreError::Unavailable { attempts, .. } = error else { panic!("{error}") };
    assert_eq!(attempts, 2);
}
