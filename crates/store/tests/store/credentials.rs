//! Keys from a file that changes: the keys that sign each request, as a server sees them.

use crate::support::server::{Answer, Request, Server, error, ok};
use bytes::Bytes;
use holdfast_store::{Disposition, Health, Kind, StoreOptions, open, open_observed};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const BODY: Bytes = Bytes::from_static(b"0123456789");
const EAST: &str = "s3://bucket/pre?profile=east";

/// A credentials file, and a way to change it as tools do: a new file beside it is renamed over it.
struct Keys {
    dir: tempfile::TempDir,
}

impl Keys {
    fn new(content: &str) -> Self {
        let keys = Self { dir: tempfile::tempdir().expect("temporary directory") };
        keys.replace(content);
        keys
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("credentials")
    }

    fn replace(&self, content: &str) {
        let beside = self.dir.path().join("beside");
        std::fs::write(&beside, content).expect("write");
        self.mode(&beside, 0o600);
        std::fs::rename(&beside, self.path()).expect("rename");
    }

    fn mode(&self, path: &Path, mode: u32) {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("chmod");
    }

    /// Options with these keys; the file is checked before each request, or, except after refusals, never again.
    fn options(&self, server: &Server, each_request: bool) -> StoreOptions {
        StoreOptions {
            access_key_id: None,
            secret_access_key: None,
            credentials_file: Some(self.path()),
            credentials_look: if each_request { Duration::ZERO } else { Duration::from_secs(86_400) },
            ..server.options.clone()
        }
    }
}

fn profile(name: &str, id: &str) -> String {
    format!("[{name}]\naws_access_key_id = {id}\naws_secret_access_key = hunter2-{id}\n")
}

/// The key id in a request's signature.
fn signer(request: &Request) -> String {
    let text = request.header("authorization").expect("signed");
    let (_, credential) = text.split_once("Credential=").expect("a credential");
    credential.split('/').next().unwrap_or_default().to_owned()
}

fn signers(server: &Server) -> Vec<String> {
    server.asked().iter().map(signer).collect()
}

#[tokio::test]
async fn a_file_that_was_replaced_signs_the_next_request() {
    let keys = Keys::new(&format!("{}aws_session_token = a-token\n", profile("east", "first")));
    let server = Server::start((0..3).map(|_| ok(BODY))).await;
    let store = open(EAST, &keys.options(&server, true)).expect("open");
    store.get("k").await.expect("get");
    keys.replace(&profile("east", "other"));
    store.get("k").await.expect("get");
    store.put_new("k", BODY).await.expect("put");
    assert_eq!(signers(&server), ["first", "other", "other"]);
    let tokens: Vec<Option<String>> =
        server.asked().iter().map(|request| request.header("x-amz-security-token").map(str::to_owned)).collect();
    assert_eq!(tokens, [Some("a-token".to_owned()), None, None], "the token goes with its keys");
}

#[tokio::test]
async fn keys_that_are_refused_are_replaced_within_the_request_where_the_file_has_others() {
    for code in ["ExpiredToken", "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken"] {
        let keys = Keys::new(&profile("east", "old"));
        let server = Server::start([error(403, code), ok(Bytes::new()), ok(BODY)]).await;
        let health = Arc::new(Health::new("demo"));
        let store = open_observed(EAST, &keys.options(&server, false), health.clone()).expect("open");
        keys.replace(&profile("east", "new"));
        store.put_new("k", BODY).await.expect(code);
        store.get("k").await.expect(code);
        assert_eq!(signers(&server), ["old", "new", "new"], "{code}");
        assert!(server.asked()[..2].iter().all(|request| request.body == BODY), "{code}: the same bytes again");
        let standing = health.standing(0);
        assert_eq!((standing.now, standing.last), (None, None), "{code}: nobody had to act");
    }
}

#[tokio::test]
async fn an_answer_to_head_needs_no_word_for_it() {
    let keys = Keys::new(&profile("east", "old"));
    let head = Answer::Send(200, "etag: \"1\"\r\n", BODY);
    let server = Server::start([Answer::Send(403, "", Bytes::new()), head]).await;
    let store = open(EAST, &keys.options(&server, false)).expect("open");
    keys.replace(&profile("east", "new"));
    assert_eq!(store.head("k").await.expect("head").bytes, 10);
    assert_eq!(signers(&server), ["old", "new"]);
}

#[tokio::test]
async fn keys_that_are_refused_and_not_replaced_are_trouble_and_asked_for_once() {
    let keys = Keys::new(&profile("east", "old"));
    let script = [error(403, "ExpiredToken"), error(403, "ExpiredToken"), error(403, "ExpiredToken"), ok(BODY)];
    let server = Server::start(script).await;
    let health = Arc::new(Health::new("demo"));
    let store = open_observed(EAST, &keys.options(&server, false), health.clone()).expect("open");
    let refused = store.put_new("k", BODY).await.expect_err("expired");
    assert_eq!(refused.disposition(), Disposition::Denied, "{refused}");
    assert!(refused.to_string().contains("profile east"), "{refused}");
    assert_eq!(server.lines().len(), 1, "the same keys are not tried twice");
    assert_eq!(health.standing(0).now.map(|trouble| trouble.kind), Some(Kind::Credentials));
    // If the new keys are refused too, this call ends.
    keys.replace(&profile("east", "newer"));
    let refused = store.get("k").await.expect_err("expired");
    assert_eq!(refused.disposition(), Disposition::Denied, "{refused}");
    assert_eq!(signers(&server), ["old", "old", "newer"]);
    store.get("k").await.expect("let through");
    assert!(!format!("{refused} {refused:?} {store:?}").contains("hunter2"));
}

#[tokio::test]
async fn a_file_that_is_no_use_leaves_the_last_keys_and_is_trouble_until_it_is() {
    let keys = Keys::new(&profile("east", "first"));
    let server = Server::start((0..4).map(|_| ok(BODY))).await;
    let health = Arc::new(Health::new("demo"));
    let store = open_observed(EAST, &keys.options(&server, true), health.clone()).expect("open");
    keys.replace("[east]\naws_access_key_id = half\naws_secr");
    store.get("k").await.expect("half-written");
    let trouble = health.standing(0).now.expect("told");
    assert_eq!(trouble.kind, Kind::Credentials);
    assert!(trouble.error.contains("line 3") && trouble.error.contains("profile [east]"), "{}", trouble.error);
    std::fs::remove_file(keys.path()).expect("remove");
    store.get("k").await.expect("gone");
    assert!(health.standing(0).now.expect("told").error.contains("cannot be read"));
    keys.replace(&profile("west", "elsewhere"));
    store.get("k").await.expect("another profile");
    assert!(health.standing(0).now.expect("told").error.contains("found profiles [west]"));
    keys.replace(&profile("east", "last"));
    store.get("k").await.expect("whole");
    assert_eq!(health.standing(0).now, None);
    assert_eq!(signers(&server), ["first", "first", "first", "last"]);
}

#[tokio::test]
async fn stores_at_several_providers_have_keys_of_their_own() {
    let keys = Keys::new(&[profile("default", "anyone"), profile("east", "e"), profile("west", "w")].concat());
    let server = Server::start((0..3).map(|_| ok(BODY))).await;
    let mut options = keys.options(&server, true);
    // Independent of the environment of this test.
    options.profile = Some("default".to_owned());
    for url in [EAST, "s3://bucket/pre?profile=west", "s3://bucket/pre"] {
        open(url, &options).expect(url).get("k").await.expect(url);
    }
    assert_eq!(signers(&server), ["e", "w", "anyone"]);
    // Each of several stores is opened with its own profile, and one without a profile fails the whole list.
    let list = |last: &str| format!("w=2 s3://aaa?profile=east s3://bbb?profile=west s3://ccc?profile={last}");
    open(&list("default"), &options).expect("three");
    let error = open(&list("south"), &options).expect_err("no such profile").to_string();
    assert!(error.contains("expected a profile [south]"), "{error}");
}

#[tokio::test]
async fn opening_refuses_what_has_no_such_keys() {
    let keys = Keys::new(&profile("west", "w"));
    let server = Server::start([]).await;
    let mut options = keys.options(&server, true);
    let path = keys.path().display().to_string();
    let error = open(EAST, &options).expect_err("no such profile").to_string();
    assert_eq!(error, format!("store credentials: {path}: found profiles [west], expected a profile [east]"));
    keys.replace("[east]\naws_access_key_id = e\n");
    let error = open(EAST, &options).expect_err("no secret").to_string();
    assert!(error.contains("profile [east]: found no aws_secret_access_key"), "{error}");
    keys.replace(&profile("east", "e"));
    keys.mode(&keys.path(), 0o644);
    let error = open(EAST, &options).expect_err("others can read it").to_string();
    assert!(error.contains("found mode 0644") && error.contains("chmod 600"), "SECRET-F2: {error}");
    // Everything is right, except that no such file is so long.
    keys.replace(&format!("{}# {}\n", profile("east", "e"), "x".repeat(1 << 20)));
    let error = open(EAST, &options).expect_err("too long").to_string();
    assert!(error.contains("expected at most 1048576"), "{error}");
    std::fs::remove_file(keys.path()).expect("remove");
    let error = open(EAST, &options).expect_err("no file").to_string();
    assert!(error.contains(&path) && error.contains("cannot be read"), "{error}");
    options.credentials_file = Some(keys.dir.path().to_owned());
    let error = open(EAST, &options).expect_err("a folder").to_string();
    assert!(error.contains("found no regular file"), "{error}");
    for bad in
        ["s3://bucket?profile=", "s3://bucket?profile=a/b", "s3://bucket?profile=%65ast", "s3://bucket?%70rofile=east"]
    {
        let error = open(bad, &options).expect_err(bad).to_string();
        assert!(error.contains("expected profile=NAME"), "{bad}: {error}");
    }
    assert!(server.asked().is_empty(), "opening asks the store nothing");
}
