//! Forms that are sent by each role, from elsewhere, with a foreign ticket, twice, and too long. Behind them is the
//! guard of a gateway without a cluster: a call that has passed it is refused for that.

use super::*;
use crate::access::asked as each_role;
use crate::admin::guarded_admin;
use crate::audit::{self, Audit};
use crate::config::{AuditConfig, GatewayConfig, TlsConfig};
use axum::body::Body;
use axum::http::Method;
use holdfast_tls::{HttpClient, Role};
use holdfast_types::ByteSize;
use tokio_util::sync::CancellationToken;
use tonic::codegen::Service;

const PATIENCE: Duration = Duration::from_secs(60);
const HOST: &str = "g1.example:7402";

/// A gateway without a cluster, and one caller of each role.
struct Lab {
    dir: tempfile::TempDir,
    node: Arc<Node>,
    audit: Audit,
    actions: Arc<Actions>,
    callers: BTreeMap<Role, Arc<Caller>>,
}

impl Lab {
    async fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let callers = each_role(dir.path()).await;
        let callers = callers.into_iter().map(|(role, asked)| {
            let caller = asked.caller().expect("a caller");
            (role, Arc::new(caller.clone()))
        });
        let callers = callers.collect();
        crate::node_key::write_key(&dir.path().join("key"));
        let mut config = GatewayConfig { data_dir: dir.path().join("node"), ..GatewayConfig::default() };
        config.key.file = Some(dir.path().join("key"));
        config.cache.disk = ByteSize(0);
        let at = |file: &str| Some(dir.path().join(file));
        let (ca, certificate, key) = (at("ca.pem"), at("gateway.pem"), at("gateway.key"));
        config.tls = TlsConfig { ca, certificate, key, ..TlsConfig::default() };
        let node = Node::open(config, CancellationToken::new()).await.expect("a node");
        let log = AuditConfig { log: at("audit.log"), rotate: ByteSize(64 << 20) };
        let audit = audit::start(&log).expect("a thread").expect("a file is named");
        let admin = guarded_admin(node.clone(), Some(audit.clone()));
        let actions = Actions::new(node.clone(), admin);
        Self { dir, node, audit, actions, callers }
    }

    /// Status, headers and body of the answer to whoever this is.
    async fn answer(&self, client: HttpClient, mut request: Request) -> (StatusCode, HeaderMap, String) {
        request.extensions_mut().insert(ConnectInfo(Asker::for_test(client)));
        let Ok(answer) = routes(self.actions.clone()).call(request).await;
        let (parts, body) = answer.into_parts();
        let body = to_bytes(body, 1 << 20).await.expect("a body");
        (parts.status, parts.headers, String::from_utf8_lossy(&body).into_owned())
    }

    fn client(&self, role: Role) -> HttpClient {
        HttpClient::Named(self.callers[&role].clone())
    }

    async fn get(&self, role: Role, path: &str) -> (StatusCode, String) {
        let (status, _, body) = self.answer(self.client(role), request(Method::GET, path, &[], String::new())).await;
        (status, body)
    }

    /// A form of this role, as a browser sends it.
    async fn send(&self, role: Role, body: String) -> (StatusCode, HeaderMap, String) {
        self.answer(self.client(role), request(Method::POST, "/page/act", &FROM_HERE, body)).await
    }

    /// Where the browser is led to, and what is there.
    async fn outcome(&self, role: Role, headers: &HeaderMap) -> String {
        let place = headers[header::LOCATION].to_str().expect("text");
        let begun = Instant::now();
        loop {
            let (status, body) = self.get(role, &format!("/page/{place}")).await;
            assert_eq!(status, StatusCode::OK, "{body}");
            if !body.contains("goes on") {
                return body;
            }
            assert!(begun.elapsed() < PATIENCE, "{body}");
            tokio::task::yield_now().await;
        }
    }

    async fn audited(&self) -> Vec<String> {
        assert!(self.audit.written(PATIENCE).await);
        let text = std::fs::read_to_string(self.dir.path().join("audit.log")).unwrap_or_default();
        let line = |line: &str| {
            let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
            let text = |field: &str| line[field].as_str().unwrap_or_default().to_string();
            ["method", "certificate", "outcome", "set", "snapshot", "peer"].map(text).join(" ")
        };
        text.lines().map(line).collect()
    }

    async fn close(self) {
        self.node.stop.cancel();
        self.node.close().await;
    }
}

/// What a browser says of a form of this page.
const FROM_HERE: [(&str, &str); 2] = [("origin", "https://g1.example:7402"), ("sec-fetch-site", "same-origin")];

fn request(method: Method, path: &str, headers: &[(&str, &str)], body: String) -> Request {
    let mut request = axum::http::Request::builder().method(method).uri(path).header("host", HOST);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Body::from(body)).expect("a request")
}

fn body(form: &Form, fields: &str) -> String {
    format!("id={}&ticket={}&{fields}", form.id, form.ticket)
}

const SNAPSHOT: &str = "action=snapshot&set=demo&name=first";

/// WEB-H5: also with a form that such a role never gets.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h5_each_role_acts_as_the_table_of_the_admin_api_says() {
    let lab = Lab::new().await;
    let mut noted = Vec::new();
    for role in Role::ALL {
        let may = [Role::Operator, Role::Admin].contains(&role);
        let (status, page) = lab.get(role, "/page/actions").await;
        assert_eq!((status, page.contains("<h2>Gateways</h2>")), (expected(may), may), "{role}: {page}");
        for asked in ["/page/move?set=demo&to=g2", "/page/drain?member=2"] {
            let (status, page) = lab.get(role, asked).await;
            let expected = if may { StatusCode::NOT_FOUND } else { StatusCode::FORBIDDEN };
            assert_eq!((status, page.contains("<form")), (expected, false), "{role} {asked}: {page}");
        }
        let form = lab.actions.form(&lab.callers[&role]);
        let (status, headers, answer) = lab.send(role, body(&form, SNAPSHOT)).await;
        assert_eq!(status, StatusCode::SEE_OTHER, "{role}: {answer}");
        let outcome = lab.outcome(role, &headers).await;
        let found = if may { "this gateway has no cluster yet" } else { "found role " };
        assert!(outcome.contains("nothing was changed") && outcome.contains(found), "{role}: {outcome}");
        let code = if may { "FailedPrecondition" } else { "PermissionDenied" };
        let named = if may { "demo first" } else { " " };
        noted.push(format!("CreateSnapshot {role} {code} {named} 192.0.2.7:4711"));
    }
    assert_eq!(lab.audited().await, noted, "ACCESS-A3");
    lab.close().await;
}

fn expected(may: bool) -> StatusCode {
    if may { StatusCode::OK } else { StatusCode::FORBIDDEN }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h5_nobody_acts_without_a_certificate() {
    let lab = Lab::new().await;
    let form = lab.actions.form(&lab.callers[&Role::Admin]);
    for client in [HttpClient::Plain, HttpClient::Unnamed] {
        let request = request(Method::POST, "/page/act", &FROM_HERE, body(&form, SNAPSHOT));
        let (status, _, answer) = lab.answer(client, request).await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{answer}");
    }
    assert_eq!(lab.audited().await, Vec::<String>::new());
    lab.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h6_a_form_that_is_not_ours_begins_nothing() {
    let lab = Lab::new().await;
    let ours = lab.actions.form(&lab.callers[&Role::Operator]);
    let of_admin = lab.actions.form(&lab.callers[&Role::Admin]);
    let mixed = Form { id: of_admin.id.clone(), ticket: ours.ticket.clone() };
    for form in [&of_admin, &mixed, &Form { ticket: String::new(), ..ours.clone() }] {
        let (status, _, answer) = lab.send(Role::Operator, body(form, SNAPSHOT)).await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{answer}");
        assert!(answer.contains("for this certificate"), "{answer}");
    }
    let evil = "https://evil.example";
    for headers in [
        &[("origin", evil)][..],
        &[],
        &[("origin", "null")],
        &[("origin", "http://g1.example:7402")],
        &[("origin", "https://g1.example")],
        &[FROM_HERE[0], ("origin", evil)],
        &[FROM_HERE[0], ("sec-fetch-site", "cross-site")],
        &[FROM_HERE[0], ("sec-fetch-site", "none")],
        &[FROM_HERE[0], FROM_HERE[1], ("sec-fetch-site", "same-site")],
        &[FROM_HERE[0], FROM_HERE[1], ("x-forwarded-for", "192.0.2.9")],
    ] {
        let sent = request(Method::POST, "/page/act", headers, body(&ours, SNAPSHOT));
        let (status, _, answer) = lab.answer(lab.client(Role::Operator), sent).await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{headers:?}: {answer}");
    }
    let path = format!("/page/act?{}", body(&ours, SNAPSHOT));
    assert_eq!(lab.get(Role::Operator, &path).await.0, StatusCode::METHOD_NOT_ALLOWED, "a GET changes nothing");
    assert_eq!(lab.audited().await, Vec::<String>::new());
    lab.close().await;
}

/// Browsers that say nothing of the site still say the origin.
#[test]
fn h6_a_form_of_this_page_is_ours() {
    let foreign = |all: &[(&'static str, &'static str)]| {
        let mut headers = HeaderMap::new();
        for (name, value) in all {
            headers.append(HeaderName::from_static(name), header::HeaderValue::from_static(value));
        }
        super::foreign(&headers)
    };
    let host = ("host", HOST);
    assert_eq!(foreign(&[host, FROM_HERE[0], FROM_HERE[1]]), None);
    assert_eq!(foreign(&[host, FROM_HERE[0]]), None);
    assert_eq!(foreign(&[host, ("origin", "https://G1.example:7402")]), None);
    assert!(foreign(&[FROM_HERE[0]]).is_some(), "no host");
    assert!(foreign(&[host, ("host", "evil.example"), FROM_HERE[0]]).is_some(), "two hosts");
}

/// WEB-H7.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h7_a_form_that_is_sent_again_begins_nothing_again() {
    let lab = Lab::new().await;
    let form = lab.actions.form(&lab.callers[&Role::Operator]);
    let (status, first, _) = lab.send(Role::Operator, body(&form, SNAPSHOT)).await;
    assert_eq!(status, StatusCode::SEE_OTHER);
    let outcome = lab.outcome(Role::Operator, &first).await;
    assert!(outcome.contains("Snapshot demo@first"), "{outcome}");
    let other = "action=snapshot&set=demo&name=second";
    let (status, again, _) = lab.send(Role::Operator, body(&form, other)).await;
    assert_eq!((status, &again[header::LOCATION]), (StatusCode::SEE_OTHER, &first[header::LOCATION]));
    assert_eq!(lab.outcome(Role::Operator, &again).await, outcome);
    assert_eq!(lab.audited().await.len(), 1, "one call");
    let place = format!("/page/done?id={}", form.id);
    assert_eq!(lab.get(Role::Admin, &place).await.0, StatusCode::NOT_FOUND, "it is for who sent the form");
    lab.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h8_a_long_or_broken_form_begins_nothing() {
    let lab = Lab::new().await;
    let form = lab.actions.form(&lab.callers[&Role::Operator]);
    let long = format!("action=snapshot&set=demo&name={}", "a".repeat(BODY_BYTES_MAX));
    for (fields, code) in [
        (long.as_str(), StatusCode::PAYLOAD_TOO_LARGE),
        ("action=delete&set=demo", StatusCode::BAD_REQUEST),
        ("action=snapshot&set=demo", StatusCode::BAD_REQUEST),
        ("action=snapshot&set=demo&set=other&name=first", StatusCode::BAD_REQUEST),
        ("action=drain&member=g2", StatusCode::BAD_REQUEST),
        ("set=demo&name=first", StatusCode::BAD_REQUEST),
    ] {
        let (status, _, answer) = lab.send(Role::Operator, body(&form, fields)).await;
        assert_eq!(status, code, "{fields:.60}: {answer}");
    }
    assert_eq!(lab.audited().await, Vec::<String>::new());
    lab.close().await;
}

/// WEB-H3, WEB-H6: what a browser may do with these pages, and that it says from where a form is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h6_pages_with_forms_are_shown_in_no_other_one() {
    let lab = Lab::new().await;
    let asked = request(Method::GET, "/page/actions", &[], String::new());
    let (_, headers, _) = lab.answer(lab.client(Role::Operator), asked).await;
    let policy = headers[header::CONTENT_SECURITY_POLICY].to_str().expect("text");
    for part in ["default-src 'none'", "form-action 'self'", "frame-ancestors 'none'", "base-uri 'none'"] {
        assert!(policy.contains(part), "{part}");
    }
    assert!(!policy.contains("script-src") && !policy.contains("unsafe"));
    assert_eq!(headers[header::X_FRAME_OPTIONS], "DENY");
    assert_eq!(headers[header::REFERRER_POLICY], "same-origin", "with no-referrer a form's origin is null");
    lab.close().await;
}
