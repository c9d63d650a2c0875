//! The doors with real certificates; what is behind them answers `Aborted` to show that a call has passed.

use super::guard::{Asked, ClusterCheck, Guard, Guarded};
use super::named::{Named, Names};
use super::rules::{ADMIN, PEER, Rule};
use crate::admin::AdminDoor;
use crate::audit::{self, Audit};
use crate::config::{AuditConfig, GatewayConfig};
use crate::doors::{self, Client, Door, Standing};
use crate::node::{Node, Seams};
use holdfast_api::v1::admin_server::{Admin, AdminServer};
use holdfast_api::v1::{self, change_volume_request::Change};
use holdfast_api::{METHODS, Refusal, RefusalCode};
use holdfast_tls::make::{Wanted, certificates};
use holdfast_tls::{Caller, Dialer, EitherInfo, Revocations, Revoked, Role, Tls, TlsFiles};
use holdfast_types::ByteSize;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::future::Ready;
use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;
use tonic::transport::server::{Connected, TlsConnectInfo};
use tonic::{Code, Request, Status};

mod behalf;
mod limits;
mod noted;

const PATIENCE: Duration = Duration::from_secs(60);
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operating/roles.md");

/// What is behind the door.
#[derive(Clone)]
struct Fake {
    /// What a request names, once it is decoded.
    named: Named,
    answer: Code,
}

impl NamedService for Fake {
    const NAME: &'static str = <AdminServer<AdminDoor> as NamedService>::NAME;
}

impl<B> Service<http::Request<B>> for Fake {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<http::Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let asked = request.extensions().get::<Asked>().expect("it has passed the door");
        let status = match asked.about(&self.named) {
            Ok(()) => Status::new(self.answer, "passed"),
            Err(refusal) => refusal.into(),
        };
        std::future::ready(Ok(status.into_http()))
    }
}

fn fake() -> Fake {
    Fake { named: Named::default(), answer: Code::Aborted }
}

type Via = TlsConnectInfo<Client>;

fn load(dir: &Path, name: &str, role: Role) -> Tls {
    let at = |end: &str| Some(dir.join(format!("{name}.{end}")));
    let files = TlsFiles { ca: Some(dir.join("ca.pem")), certificate: at("pem"), key: at("key") };
    files.load(role).expect("good files").expect("some")
}

/// What a door knows of a connection by the client with this certificate.
async fn connected(dir: &Path, name: &str) -> Via {
    let gateway = load(dir, "gateway", Role::Gateway);
    let client = Dialer::from(&load(dir, name, Role::Admin));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let mut door = Door::new("a test's door", listener, doors::ADMIN);
    let accepts = async {
        let (socket, _) = door.next().await;
        gateway.acceptor().accept(socket).await.expect("a handshake")
    };
    let (client, accepted) = tokio::join!(client.stream(&address, PATIENCE), accepts);
    // The kernel forgets the address of a client that has reset its connection.
    let info = accepted.connect_info();
    drop(client.expect("connected"));
    info
}

/// One certificate for each role, of the role's name; host `db1` may use set `demo` only.
async fn cluster(dir: &Path) -> BTreeMap<Role, Via> {
    let mut wanted = Role::ALL.map(|role| Wanted::new(role.name(), role)).to_vec();
    for host in wanted.iter_mut().filter(|one| one.role == Role::Host) {
        (host.owners, host.sets) = (vec!["db1".to_string()], vec!["demo".to_string()]);
    }
    certificates(dir, &wanted, 30).expect("made");
    let mut all = BTreeMap::new();
    for role in Role::ALL {
        all.insert(role, connected(dir, role.name()).await);
    }
    all
}

/// What a door has found out about a call by each of them.
pub(crate) async fn asked(dir: &Path) -> BTreeMap<Role, Asked> {
    let all = cluster(dir).await.into_iter();
    all.map(|(role, via)| {
        let shown = via.peer_certs().expect("certificates");
        (role, Asked::by(Caller::of(&shown[0]).expect("a caller")))
    })
    .collect()
}

fn request(method: &str, from: Option<&Via>) -> http::Request<()> {
    let mut request = http::Request::new(());
    *request.uri_mut() = format!("/{}/{method}", Fake::NAME).parse().expect("a path");
    if let Some(from) = from {
        request.extensions_mut().insert(from.clone());
    }
    request
}

/// The answer of a door with this guard to one call.
async fn told(guard: &Guard, fake: &Fake, method: &str, from: Option<&Via>) -> Status {
    let mut door = Guarded::new(fake.clone(), guard.clone());
    let Ok(response) = door.call(request(method, from)).await;
    Status::from_header_map(response.headers()).expect("a status")
}

fn audit(path: &Path) -> Audit {
    let config = AuditConfig { log: Some(path.to_path_buf()), rotate: ByteSize(64 << 20) };
    audit::start(&config).expect("a thread").expect("a file is named")
}

async fn lines(audit: &Audit, path: &Path) -> Vec<serde_json::Value> {
    assert!(audit.written(PATIENCE).await);
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn text(line: &serde_json::Value, field: &str) -> String {
    line[field].as_str().unwrap_or_default().to_string()
}

/// What a method may take, in the table of the page.
fn bounds(rule: &Rule) -> String {
    let bounds = &rule.bounds;
    format!("{} | {} KiB | {} s", bounds.at_once, bounds.bytes >> 10, bounds.deadline.as_secs())
}

/// The columns of the page.
const COLUMNS: [Role; 5] = [Role::Viewer, Role::Operator, Role::Admin, Role::Host, Role::Gateway];

fn table(rules: &[Rule], may: impl Fn(&Rule, Role) -> bool) -> String {
    let mut table =
        "| call | viewer | operator | admin | host | gateway | noted | at once | request | deadline |\n".to_string();
    table.push_str("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
    for rule in rules {
        let cells = COLUMNS.map(|role| if may(rule, role) { "yes" } else { "" });
        let noted = if rule.noted { "yes" } else { "" };
        let _ = writeln!(table, "| `{}` | {} | {noted} | {} |", rule.method, cells.join(" | "), bounds(rule));
    }
    table
}

#[test]
fn golden_page() {
    let mut page = "# Who may what\n\n\
        The calls of the admin API, the roles that may make them, and whether a call is noted in the\n\
        [audit log](tls.md#the-audit-log). How a certificate gets its role: [TLS](tls.md). Without TLS, everybody\n\
        who reaches the door is an administrator.\n\n\
        - A **host** takes and continues leases only under its owner names. If its certificate names sets, it names\n  \
        only these in a call, and is told no name of another one.\n\
        - An **operator** grows and renames volumes; who shrinks or deletes one has to be an administrator. It fails a set\n  \
        over without a new owner: whoever names one gets a token, which opens the data.\n\
        - A **gateway** passes on a deletion that the leader of the set has checked.\n\n\
        Also without TLS, a call may take so much ([limits of doors](doors.md)): as many **at once**, of all callers,\n\
        and as many again of hosts that have a lease, and of gateways, but half as many of one certificate of a host,\n\
        a viewer or an operator; a **request** so long; and so much time until its **deadline**.\n\n\
        The [page](page.md#actions) of a gateway makes `CreateSnapshot`, `Switchover`, `PlanDrain` and `DrainMember` by\n\
        forms: as calls of its visitor's certificate, by the same rows, counted and noted with the others. Without TLS it\n\
        makes none.\n\n"
        .to_string();
    page.push_str(&table(ADMIN, |rule, role| rule.roles.contains(&role)));
    page.push_str("\nThe protocol between gateways is for gateways alone.\n\n");
    page.push_str("| call between gateways | at once | request | deadline |\n| --- | --- | --- | --- |\n");
    for rule in PEER {
        let _ = writeln!(page, "| `{}` | {} |", rule.method, bounds(rule));
    }
    assert!(PEER.iter().all(|rule| rule.roles == [Role::Gateway]));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(PAGE, &page).expect("the page");
    }
    let found = std::fs::read_to_string(PAGE).unwrap_or_default();
    assert!(found == page, "docs/operating/roles.md: UPDATE_GOLDEN=1 writes it anew");
}

/// Every call with every role; the table that this prints is what was answered.
#[tokio::test]
async fn each_role_makes_its_calls_and_no_other_one() {
    let dir = tempfile::tempdir().expect("a directory");
    let from = cluster(dir.path()).await;
    let path = dir.path().join("audit.log");
    let audit = audit(&path);
    let guard = Guard::admin(Some(Revocations::default()), Some(audit.clone()));
    let (mut passed, mut noted) = (Vec::new(), Vec::new());
    for rule in ADMIN {
        for role in COLUMNS {
            let status = told(&guard, &fake(), rule.method, Some(&from[&role])).await;
            let may = rule.roles.contains(&role);
            let code = if may { Code::Aborted } else { Code::PermissionDenied };
            assert_eq!(status.code(), code, "{} by {role}: {status}", rule.method);
            if may {
                passed.push((rule.method, role));
            } else {
                let found = format!("{}: found role {role} of certificate {role}, expected one of ", rule.method);
                assert!(status.message().starts_with(&found), "{status}");
                assert!(status.message().contains("holdfast cluster certificates"), "{status}");
                assert_eq!(Refusal::from_status(&status).map(|refusal| refusal.code), Some(RefusalCode::Denied));
            }
            if !may || rule.noted {
                noted.push((rule.method.to_string(), role.to_string(), format!("{code:?}")));
            }
        }
    }
    println!("{}", table(ADMIN, |rule, role| passed.contains(&(rule.method, role))));
    let written: Vec<_> = lines(&audit, &path)
        .await
        .iter()
        .map(|line| {
            assert!(line["time_unix_ms"].is_u64() && line["duration_ms"].is_u64(), "{line}");
            assert!(text(line, "peer").starts_with("127.0.0.1:"), "{line}");
            assert_eq!(line["roles"], serde_json::json!([text(line, "certificate")]));
            (text(line, "method"), text(line, "certificate"), text(line, "outcome"))
        })
        .collect();
    assert_eq!(written, noted, "ACCESS-A3");
}

/// TLS-T3.
#[tokio::test]
async fn only_gateways_make_the_calls_between_gateways() {
    let dir = tempfile::tempdir().expect("a directory");
    let from = cluster(dir.path()).await;
    for rule in PEER {
        for role in COLUMNS {
            let code = if role == Role::Gateway { Code::Aborted } else { Code::PermissionDenied };
            let guard = Guard::peer(Some(Revocations::default()), None, None);
            let status = told(&guard, &fake(), rule.method, Some(&from[&role])).await;
            assert_eq!(status.code(), code, "{} by {role}: {status}", rule.method);
        }
    }
}

#[tokio::test]
async fn a_call_without_a_rule_or_a_certificate_is_not_made() {
    let dir = tempfile::tempdir().expect("a directory");
    let from = cluster(dir.path()).await;
    let guard = Guard::admin(Some(Revocations::default()), None);
    for unknown in ["", "getnode", "GetNodes", "GetNode/", "Append"] {
        let status = told(&guard, &fake(), unknown, Some(&from[&Role::Admin])).await;
        assert_eq!(status.code(), Code::Unimplemented, "{unknown:?}");
        assert!(status.message().contains("ACCESS-A1"), "{unknown:?}: {status}");
    }
    let status = told(&guard, &fake(), "GetNode", None).await;
    assert_eq!(status.code(), Code::Unauthenticated);
}

/// While a cluster comes to TLS: plain text as without TLS, and a certificate as with it.
#[tokio::test]
async fn a_door_that_takes_both_still_checks_who_has_a_certificate() {
    let dir = tempfile::tempdir().expect("a directory");
    let from = cluster(dir.path()).await;
    let guard = Guard::admin(Some(Revocations::default()), None);
    let mut door = Guarded::new(fake(), guard);
    let below = from[&Role::Host].get_ref().clone();
    for (info, code) in [
        (EitherInfo::Tls(from[&Role::Host].clone()), Code::PermissionDenied),
        (EitherInfo::Tls(from[&Role::Admin].clone()), Code::Aborted),
        (EitherInfo::Plain(below), Code::Aborted),
    ] {
        let mut request = request("DeleteSet", None);
        request.extensions_mut().insert(info);
        let Ok(response) = door.call(request).await;
        let status = Status::from_header_map(response.headers()).expect("a status");
        assert_eq!(status.code(), code, "{status}");
    }
}

#[tokio::test]
async fn without_tls_everybody_is_an_administrator_and_noted_as_such() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("audit.log");
    let audit = audit(&path);
    let guard = Guard::admin(None, Some(audit.clone()));
    for rule in ADMIN {
        assert_eq!(told(&guard, &fake(), rule.method, None).await.code(), Code::Aborted, "{}", rule.method);
    }
    let lines = lines(&audit, &path).await;
    assert_eq!(lines.len(), ADMIN.iter().filter(|rule| rule.noted).count());
    assert!(lines.iter().all(|line| line["roles"] == serde_json::json!(["admin"])));
    assert!(lines.iter().all(|line| line["certificate"].is_null() && line["serial"].is_null()));
}

/// REVOKE-V1, for a call on a connection that was open before; the refusal is noted.
#[tokio::test]
async fn a_revoked_certificate_makes_no_call() {
    let dir = tempfile::tempdir().expect("a directory");
    let from = cluster(dir.path()).await;
    let path = dir.path().join("audit.log");
    let audit = audit(&path);
    let revocations = Revocations::default();
    let admin = Guard::admin(Some(revocations.clone()), Some(audit.clone()));
    let peer = Guard::peer(Some(revocations.clone()), None, Some(audit.clone()));
    let all = [Role::Operator.name().to_string(), Role::Gateway.name().to_string()];
    revocations.replace(Revoked { names: all.into(), ..Revoked::default() });
    for (guard, method, role, code) in [
        (&admin, "GetNode", Role::Operator, Code::PermissionDenied),
        (&admin, "GetNode", Role::Admin, Code::Aborted),
        (&peer, "Vote", Role::Gateway, Code::PermissionDenied),
    ] {
        let status = told(guard, &fake(), method, Some(&from[&role])).await;
        assert_eq!(status.code(), code, "{method} by {role}: {status}");
        let revoked = status.message().starts_with(&format!("{method}: found certificate {role} (serial number "));
        assert_eq!(revoked, code == Code::PermissionDenied, "{status}");
    }
    let lines = lines(&audit, &path).await;
    let told: Vec<_> = lines.iter().map(|line| text(line, "certificate") + " " + &text(line, "outcome")).collect();
    assert_eq!(told, ["operator PermissionDenied", "gateway PermissionDenied"]);
}

/// ACCESS-A2: who holds a token may write, and NBD serves operators neither.
#[tokio::test]
async fn an_operator_gets_no_token() {
    let dir = tempfile::tempdir().expect("a directory");
    let from = cluster(dir.path()).await;
    let guard = Guard::admin(Some(Revocations::default()), None);
    let operator = Some(&from[&Role::Operator]);
    for method in ["AcquireLease", "ContinueLease", "RenewLease", "ReleaseLease", "GetSnapshotToken"] {
        assert_eq!(told(&guard, &fake(), method, operator).await.code(), Code::PermissionDenied, "{method}");
    }
    for (owner, code) in [("", Code::Aborted), ("db1", Code::PermissionDenied)] {
        let message = v1::FailoverRequest { set: "demo".into(), owner: owner.into(), ..Default::default() };
        let asked = Fake { named: message.named(), ..fake() };
        assert_eq!(told(&guard, &asked, "Failover", operator).await.code(), code, "owner {owner:?}");
        assert_eq!(told(&guard, &asked, "Failover", Some(&from[&Role::Admin])).await.code(), Code::Aborted);
    }
}

/// ACCESS-A2.
#[tokio::test]
async fn a_host_is_bound_to_its_owner_and_sets() {
    let dir = tempfile::tempdir().expect("a directory");
    let from = cluster(dir.path()).await;
    let path = dir.path().join("audit.log");
    let audit = audit(&path);
    let guard = Guard::admin(Some(Revocations::default()), Some(audit.clone()));
    let acquire = |set: &str, owner: &str| {
        let message = v1::AcquireLeaseRequest { set: set.into(), owner: owner.into(), ..Default::default() };
        Fake { named: message.named(), ..fake() }
    };
    let (host, admin) = (Some(&from[&Role::Host]), Some(&from[&Role::Admin]));
    let call = "AcquireLease";
    assert_eq!(told(&guard, &acquire("demo", "db1"), call, host).await.code(), Code::Aborted);
    for (set, owner, found) in [
        ("demo", "db2", "found owner db2 in a call of host host, expected db1"),
        ("other", "db1", "found set other in a call of host host, expected one of demo"),
    ] {
        let status = told(&guard, &acquire(set, owner), call, host).await;
        assert_eq!(status.code(), Code::PermissionDenied, "{set} {owner}");
        assert!(status.message().starts_with(found), "{status}");
        assert_eq!(told(&guard, &acquire(set, owner), call, admin).await.code(), Code::Aborted);
    }
    // Also where the call is only a look.
    let look = v1::GetSetRequest { set: "other".into(), any_view: true };
    let look = Fake { named: look.named(), ..fake() };
    assert_eq!(told(&guard, &look, "GetSet", host).await.code(), Code::PermissionDenied);
    let lines = lines(&audit, &path).await;
    let told: Vec<_> =
        lines.iter().map(|line| [text(line, "set"), text(line, "owner"), text(line, "outcome")].join(" ")).collect();
    let expected = [
        "demo db1 Aborted",
        "demo db2 PermissionDenied",
        "demo db2 Aborted",
        // ACCESS-A4: the second refusal leaves no line.
        "other db1 Aborted",
        "other  PermissionDenied",
    ];
    assert_eq!(told, expected);
}

#[tokio::test]
async fn an_operator_destroys_no_volume_and_a_gateway_deletes_no_set_that_nobody_checked() {
    let dir = tempfile::tempdir().expect("a directory");
    let from = cluster(dir.path()).await;
    let guard = Guard::admin(Some(Revocations::default()), None);
    let change = |change: Option<Change>| {
        let message = v1::ChangeVolumeRequest { set: "demo".into(), volume: 3, change, ..Default::default() };
        Fake { named: message.named(), ..fake() }
    };
    let (operator, admin) = (Some(&from[&Role::Operator]), Some(&from[&Role::Admin]));
    for (asked, code) in [
        (change(Some(Change::Grow(v1::GrowVolume::default()))), Code::Aborted),
        (change(Some(Change::Rename(v1::RenameVolume::default()))), Code::Aborted),
        (change(Some(Change::Shrink(v1::ShrinkVolume::default()))), Code::PermissionDenied),
        (change(Some(Change::Delete(v1::DeleteVolume::default()))), Code::PermissionDenied),
        (change(None), Code::PermissionDenied),
    ] {
        assert_eq!(told(&guard, &asked, "ChangeVolume", operator).await.code(), code, "{:?}", asked.named);
        assert_eq!(told(&guard, &asked, "ChangeVolume", admin).await.code(), Code::Aborted);
    }
    for (looked, code) in [(true, Code::Aborted), (false, Code::PermissionDenied)] {
        let message = v1::DeleteSetRequest { set: "demo".into(), looked, ..Default::default() };
        let asked = Fake { named: message.named(), ..fake() };
        let gateway = Some(&from[&Role::Gateway]);
        assert_eq!(told(&guard, &asked, "DeleteSet", gateway).await.code(), code, "looked {looked}");
        assert_eq!(told(&guard, &asked, "DeleteSet", admin).await.code(), Code::Aborted);
    }
}

/// Snapshots are what is left after a stolen certificate; a new schedule can expire them.
#[test]
fn only_an_administrator_can_make_snapshots_go() {
    for method in ["DeleteSnapshot", "RollbackSnapshot", "SetSchedule"] {
        let rule = ADMIN.iter().find(|rule| rule.method == method).expect("a rule");
        assert_eq!(rule.roles, [Role::Admin], "{method}");
    }
}

/// ACCESS-A3.
#[tokio::test]
async fn a_call_that_nobody_waits_for_is_noted_and_one_that_a_host_repeats_is_not() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("audit.log");
    let audit = audit(&path);
    let guard = Guard::admin(None, Some(audit.clone()));
    let elsewhere = Fake { answer: Code::Unavailable, ..fake() };
    for method in ["AcquireLease", "ContinueLease", "ReleaseLease", "CreateSet"] {
        assert_eq!(told(&guard, &elsewhere, method, None).await.code(), Code::Unavailable);
    }
    drop(Guarded::new(fake(), guard).call(request("DeleteSet", None)));
    let lines = lines(&audit, &path).await;
    let told: Vec<_> = lines.iter().map(|line| text(line, "method") + " " + &text(line, "outcome")).collect();
    assert_eq!(told, ["CreateSet Unavailable", "DeleteSet NotAwaited"]);
}

/// ACCESS-A4.
#[tokio::test]
async fn refusals_of_one_certificate_do_not_wash_out_the_log() {
    let dir = tempfile::tempdir().expect("a directory");
    let from = cluster(dir.path()).await;
    let path = dir.path().join("audit.log");
    let audit = audit(&path);
    let guard = Guard::admin(Some(Revocations::default()), Some(audit.clone()));
    // Few: they end well within a minute.
    for _ in 0..10 {
        let status = told(&guard, &fake(), "DeleteSet", Some(&from[&Role::Host])).await;
        assert_eq!(status.code(), Code::PermissionDenied);
        assert_eq!(told(&guard, &fake(), "DeleteSet", Some(&from[&Role::Admin])).await.code(), Code::Aborted);
    }
    let lines = lines(&audit, &path).await;
    let of = |outcome: &str| lines.iter().filter(|line| text(line, "outcome") == outcome).count();
    assert_eq!((of("PermissionDenied"), of("Aborted")), (1, 10));
}

/// A line is bounded, whatever a caller sends.
#[test]
fn what_a_request_names_is_shortened_for_the_log_only() {
    let long = "x".repeat(1 << 20);
    let message = v1::CreateSetRequest { name: long.clone(), store: long.clone(), ..Default::default() };
    let named = message.named();
    assert_eq!(named.stores, std::slice::from_ref(&long), "the check sees all of it");
    assert_eq!((named.shortened().set.len(), named.shortened().stores[0].len()), (256, 256));
    let many = v1::ChangeStoresRequest { stores: vec![long; 100], ..Default::default() }.named();
    assert_eq!(many.shortened().stores.len(), 8);
}

/// The log is shipped to others.
#[test]
fn no_password_of_a_store_is_in_the_log() {
    for (store, shown) in [
        ("s3://bucket/a", "s3://bucket/a"),
        ("file:///srv/a@b", "file:///srv/a@b"),
        ("s3://key:secret@bucket/a", "s3://***@bucket/a"),
        ("s3://key:sec%2fret@bucket", "s3://***@bucket"),
        ("s3://b/a?endpoint=https://u:p@s3.example:9000", "s3://b/a?endpoint=https://***@s3.example:9000"),
        ("s3://u:p@b/a?endpoint=http%3A%2F%2Fu%3Ap%40h%3A1&x=y", "s3://***@b/a?endpoint=http%3A%2F%2F***%40h%3A1&x=y"),
        ("s3://u:ü@b", "s3://***@b"),
    ] {
        let named = v1::CreateSetRequest { store: store.into(), ..Default::default() }.named();
        assert_eq!(named.stores, [store], "the check sees all of it");
        assert_eq!(named.shortened().stores, [shown]);
    }
}

#[test]
fn a_line_says_what_was_done() {
    let line = |named: Named| serde_json::to_value(named.shortened()).expect("JSON");
    let acquire =
        v1::AcquireLeaseRequest { set: "demo".into(), owner: "db1".into(), force: true, ..Default::default() };
    assert_eq!(line(acquire.named()), serde_json::json!({ "set": "demo", "owner": "db1", "force": true }));
    let acquire = v1::AcquireLeaseRequest { force: false, ..acquire };
    assert_eq!(line(acquire.named()), serde_json::json!({ "set": "demo", "owner": "db1" }));
    let schedule = v1::SetScheduleRequest { set: "demo".into(), schedule: "keep none".into(), ..Default::default() };
    assert_eq!(line(schedule.named()), serde_json::json!({ "set": "demo", "change": "keep none" }));
    let delete = Change::Delete(v1::DeleteVolume { name: "vol1".into() });
    let delete = v1::ChangeVolumeRequest { set: "demo".into(), volume: 3, change: Some(delete), ..Default::default() };
    let expected = serde_json::json!({ "set": "demo", "volume": "3", "change": "delete vol1" });
    assert_eq!(line(delete.named()), expected);
    let drain = v1::DrainMemberRequest { member: 2, drained: true, ..Default::default() };
    assert_eq!(line(drain.named()), serde_json::json!({ "gateway": "2", "change": "drain" }));
    let gateway = Some(v1::Member { locality: "region=eu,zone=a".into(), ..Default::default() });
    let update = v1::UpdateMemberRequest { member: 2, gateway, ..Default::default() };
    let expected = serde_json::json!({ "gateway": "2", "change": "locality region=eu,zone=a" });
    assert_eq!(line(update.named()), expected);
}

/// The setting is checked for each call that has a store in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_call_that_names_a_store_is_held_to_the_allowed_places() {
    let with_store = |method: &&holdfast_api::Method| method.fields.iter().any(|field| field.starts_with("store"));
    let methods: Vec<&str> = METHODS.iter().filter(with_store).map(|method| method.name).collect();
    assert_eq!(methods, ["CreateSet", "RestoreSet", "ChangeStores"], "each of them is asked below");

    let dir = tempfile::tempdir().expect("a directory");
    crate::node_key::write_key(&dir.path().join("key"));
    let mut config = GatewayConfig { data_dir: dir.path().join("node"), ..GatewayConfig::default() };
    config.key.file = Some(dir.path().join("key"));
    config.cache.memory = ByteSize(32 << 20);
    config.cache.disk = ByteSize(0);
    config.store.allowed = vec!["s3://bucket/".to_string(), "file:///srv/".to_string()];
    let node = Node::open_over(config, CancellationToken::new(), Seams::default()).await.expect("a node");
    let door = AdminDoor::new(node.clone());
    // What is allowed is refused for another reason: the gateway has no cluster.
    for (store, code) in [
        ("file:///srv/a", RefusalCode::NotAdopted),
        ("s3://bucket/a", RefusalCode::NotAdopted),
        ("file:///etc", RefusalCode::Denied),
        ("s3://bucket2/a", RefusalCode::Denied),
        ("s3://bucket/a?endpoint=http://10.0.0.1:80", RefusalCode::Denied),
    ] {
        let store = store.to_string();
        let create = v1::CreateSetRequest { name: "demo".into(), store: store.clone(), ..Default::default() };
        let restore = v1::RestoreSetRequest { store: store.clone(), set: 4, ..Default::default() };
        let stores = vec!["file:///srv/b".to_string(), store.clone()];
        let change = v1::ChangeStoresRequest { set: "demo".into(), stores, check_only: true, ..Default::default() };
        let answers = [
            Admin::create_set(&door, Request::new(create)).await.map(drop),
            Admin::restore_set(&door, Request::new(restore)).await.map(drop),
            Admin::change_stores(&door, Request::new(change)).await.map(drop),
        ];
        for (method, answer) in methods.iter().zip(answers) {
            let status = answer.expect_err("there is no cluster");
            let refusal = Refusal::from_status(&status).expect("a gateway's refusal");
            assert_eq!(refusal.code, code, "{method} {store}: {refusal}");
        }
    }
    node.stop.cancel();
    node.close().await;
}
