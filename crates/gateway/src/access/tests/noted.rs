//! What a line of the audit log says of a certificate, and the lines of the door between gateways.

use super::*;

/// By their names they look alike, and the stolen one is revoked by its serial number.
#[tokio::test]
async fn two_certificates_of_one_name_are_told_apart() {
    let dir = tempfile::tempdir().expect("a directory");
    let ann = || Wanted::new("ann", Role::Operator);
    certificates(dir.path(), &[Wanted::new("gateway", Role::Gateway), ann()], 30).expect("made");
    let first = connected(dir.path(), "ann").await;
    for end in ["pem", "key"] {
        std::fs::remove_file(dir.path().join(format!("ann.{end}"))).expect("removed");
    }
    certificates(dir.path(), &[ann()], 30).expect("made");
    let second = connected(dir.path(), "ann").await;
    let path = dir.path().join("audit.log");
    let audit = audit(&path);
    let revocations = Revocations::default();
    let guard = Guard::admin(Some(revocations.clone()), Some(audit.clone()));
    for from in [&first, &second] {
        assert_eq!(told(&guard, &fake(), "DeleteSet", Some(from)).await.code(), Code::PermissionDenied);
        assert_eq!(told(&guard, &fake(), "DrainMember", Some(from)).await.code(), Code::Aborted);
    }
    let lines = lines(&audit, &path).await;
    let calls: Vec<_> = lines.iter().map(|line| text(line, "certificate") + " " + &text(line, "method")).collect();
    // ACCESS-A4: refusals of one do not hide those of the other.
    assert_eq!(calls, ["ann DeleteSet", "ann DrainMember", "ann DeleteSet", "ann DrainMember"]);
    let serials: Vec<String> = lines.iter().map(|line| text(line, "serial")).collect();
    assert_eq!(serials[..1], serials[1..2]);
    assert_eq!(serials[2..3], serials[3..]);
    assert_ne!(serials[0], serials[2]);
    // It is written as the list of revoked ones takes it.
    revocations.replace(Revoked { serials: [serials[0].clone()].into(), ..Revoked::default() });
    for (from, code) in [(&first, Code::PermissionDenied), (&second, Code::Aborted)] {
        assert_eq!(told(&guard, &fake(), "GetNode", Some(from)).await.code(), code);
    }
}

/// ACCESS-A3.
#[tokio::test]
async fn refusals_between_gateways_leave_a_line() {
    let dir = tempfile::tempdir().expect("a directory");
    let from = cluster(dir.path()).await;
    let path = dir.path().join("audit.log");
    let audit = audit(&path);
    let check: ClusterCheck = Arc::new(|headers: &http::HeaderMap| match headers.get("cluster") {
        Some(_) => Ok(()),
        None => Err(Status::permission_denied("cluster: found none")),
    });
    let guard = Guard::peer(Some(Revocations::default()), Some(check), Some(audit.clone()));
    for (method, role, named, answer) in [
        ("Vote", Role::Host, true, Code::Ok),
        ("Vote", Role::Gateway, false, Code::Ok),
        // A copy of a disk.
        ("Append", Role::Gateway, true, Code::PermissionDenied),
        ("Append", Role::Gateway, true, Code::Ok),
        ("Transfer", Role::Gateway, true, Code::Unavailable),
    ] {
        let mut request = request(method, Some(&from[&role]));
        if named {
            request.headers_mut().insert("cluster", http::HeaderValue::from_static("ours"));
        }
        let mut door = Guarded::new(Fake { answer, ..fake() }, guard.clone());
        let Ok(_) = door.call(request).await;
    }
    // Appends have connections of their own.
    let viewer = &from[&Role::Viewer];
    let shown = viewer.peer_certs().expect("certificates");
    guard.appends_refused(shown.first().map(|own| own.as_ref()), Some(viewer.get_ref()));
    let lines = lines(&audit, &path).await;
    assert!(lines.iter().all(|line| text(line, "peer").starts_with("127.0.0.1:") && !text(line, "serial").is_empty()));
    let told: Vec<_> = lines
        .iter()
        .map(|line| [text(line, "method"), text(line, "certificate"), text(line, "outcome")].join(" "))
        .collect();
    let expected = [
        "Vote host PermissionDenied",
        "Vote gateway PermissionDenied",
        "Append gateway PermissionDenied",
        "Append viewer PermissionDenied",
    ];
    assert_eq!(told, expected);
}
