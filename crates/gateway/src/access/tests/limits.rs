//! What a call may take, and what connections show by their calls.

use super::*;
use crate::admin::SAFETY_LIMIT;

/// ACCESS-A6.
#[tokio::test]
async fn a_call_of_another_cluster_is_refused_before_anything_of_it_is_read() {
    let check: ClusterCheck = Arc::new(|headers: &http::HeaderMap| match headers.get("cluster") {
        Some(_) => Ok(()),
        None => Err(Status::permission_denied("cluster: found none")),
    });
    let guard = Guard::peer(None, Some(check), None);
    for rule in PEER {
        let mut door = Guarded::new(fake(), guard.clone());
        for (named, code) in [(false, Code::PermissionDenied), (true, Code::Aborted)] {
            let mut request = request(rule.method, None);
            if named {
                request.headers_mut().insert("cluster", http::HeaderValue::from_static("ours"));
            }
            let Ok(response) = door.call(request).await;
            let status = Status::from_header_map(response.headers()).expect("a status");
            assert_eq!(status.code(), code, "{} {named}", rule.method);
        }
    }
}

/// Otherwise the lease would be ended and the set not rolled back, and hosts could take it again.
#[test]
fn a6_a_rollback_has_time_for_its_safety_snapshot() {
    let rule = ADMIN.iter().find(|rule| rule.method == "RollbackSnapshot").expect("a rule");
    assert!(rule.bounds.deadline > SAFETY_LIMIT);
}

/// ACCESS-A5.
#[tokio::test]
async fn one_method_takes_no_more_than_its_places() {
    let guard = Guard::admin(None, None);
    let mut door = Guarded::new(fake(), guard.clone());
    let all: Vec<_> = (0..4).map(|_| door.call(request("DiffSnapshots", None))).collect();
    let status = told(&guard, &fake(), "DiffSnapshots", None).await;
    let refusal = Refusal::from_status(&status).expect("a gateway's refusal");
    assert_eq!(refusal.code, RefusalCode::Busy, "{status}");
    assert_eq!(told(&guard, &fake(), "RenewLease", None).await.code(), Code::Aborted, "others have their own");
    drop(all);
    assert_eq!(told(&guard, &fake(), "DiffSnapshots", None).await.code(), Code::Aborted);
}

/// Otherwise a host with a certificate for one set keeps the hosts of all sets from renewing their leases, by calls
/// whose requests do not end.
#[tokio::test]
async fn a5_the_calls_of_one_host_leave_places_for_others() {
    let dir = tempfile::tempdir().expect("a directory");
    let from = cluster(dir.path()).await;
    let guard = Guard::admin(Some(Revocations::default()), None);
    let mut door = Guarded::new(fake(), guard.clone());
    let rule = ADMIN.iter().find(|rule| rule.method == "RenewLease").expect("a rule");
    let host = Some(&from[&Role::Host]);
    let all: Vec<_> = (0..rule.bounds.at_once / 2).map(|_| door.call(request(rule.method, host))).collect();
    let status = told(&guard, &fake(), rule.method, host).await;
    let refusal = Refusal::from_status(&status).expect("a gateway's refusal");
    assert_eq!(refusal.code, RefusalCode::Busy, "{status}");
    let other = told(&guard, &fake(), rule.method, Some(&from[&Role::Admin])).await;
    assert_eq!(other.code(), Code::Aborted, "another certificate");
    drop(all);
    assert_eq!(told(&guard, &fake(), rule.method, host).await.code(), Code::Aborted);
}

/// Otherwise a flood of calls that have no effect would wash out the lines of others.
#[tokio::test]
async fn a4_calls_that_find_no_place_leave_one_line() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("audit.log");
    let audit = audit(&path);
    let guard = Guard::admin(None, Some(audit.clone()));
    let mut door = Guarded::new(fake(), guard.clone());
    let rule = ADMIN.iter().find(|rule| rule.method == "CreateSnapshot").expect("a rule");
    let all: Vec<_> = (0..rule.bounds.at_once).map(|_| door.call(request(rule.method, None))).collect();
    for _ in 0..10 {
        assert_eq!(told(&guard, &fake(), rule.method, None).await.code(), RefusalCode::Busy.grpc());
    }
    assert_eq!(lines(&audit, &path).await.len(), 1);
    drop(all);
}

/// DOOR-D5.
#[tokio::test]
async fn a_connection_is_known_by_what_it_has_shown() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let mut door = Door::new("a test's door", listener, doors::ADMIN);
    let _client = tokio::net::TcpStream::connect(address).await.expect("connects");
    let (socket, _) = door.next().await;
    let guard = Guard::admin(None, None);
    let standing = || socket.connect_info().place.standing();
    let call = async |method: &str, answer: Code| {
        let mut request = request(method, None);
        request.extensions_mut().insert(socket.connect_info());
        let mut door = Guarded::new(Fake { answer, ..fake() }, guard.clone());
        let Ok(_) = door.call(request).await;
    };
    call("NoSuchCall", Code::Ok).await;
    assert_eq!(standing(), Standing::New);
    for (method, answer) in [("GetNode", Code::Ok), ("CreateSet", Code::Ok), ("RenewLease", Code::NotFound)] {
        call(method, answer).await;
        assert_eq!(standing(), Standing::Asked, "{method}");
    }
    call("RenewLease", Code::Ok).await;
    assert_eq!(standing(), Standing::Proven, "it has a lease");
}

/// DOOR-D5, with certificates.
#[tokio::test]
async fn gateways_and_hosts_are_proven_by_their_certificates() {
    let dir = tempfile::tempdir().expect("a directory");
    certificates(dir.path(), &Role::ALL.map(|role| Wanted::new(role.name(), role)), 30).expect("made");
    let gateway = load(dir.path(), "gateway", Role::Gateway);
    for role in Role::ALL {
        let client = Dialer::from(&load(dir.path(), role.name(), Role::Admin));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let mut door = Door::new("a test's door", listener, doors::ADMIN);
        let accepts = async {
            let (socket, _) = door.next().await;
            gateway.acceptor().accept(socket).await.expect("a handshake")
        };
        let (client, accepted) = tokio::join!(client.stream(&address, PATIENCE), accepts);
        let info = accepted.connect_info();
        let standing = || info.get_ref().place.standing();
        let guard = Guard::admin(Some(Revocations::default()), None);
        // Nobody but an administrator may.
        if role != Role::Admin {
            told(&guard, &fake(), "Adopt", Some(&info)).await;
            assert_eq!(standing(), Standing::New, "{role}: a refusal shows nothing");
        }
        told(&guard, &fake(), "GetNode", Some(&info)).await;
        let proven = [Role::Gateway, Role::Host].contains(&role);
        assert_eq!(standing(), if proven { Standing::Proven } else { Standing::Asked }, "{role}");
        drop(client.expect("connected"));
    }
}
