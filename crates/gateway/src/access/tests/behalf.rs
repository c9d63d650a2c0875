//! Calls that another door makes for its client: the same answers and lines as if it had come itself (WEB-H5).

use super::*;
use crate::access::{OnBehalf, may_make};

/// One caller of each role, by a certificate as [`cluster`] makes them.
fn callers(from: &BTreeMap<Role, Via>) -> BTreeMap<Role, Arc<Caller>> {
    let caller = |via: &Via| {
        let shown = via.peer_certs().expect("certificates");
        Arc::new(Caller::of(&shown[0]).expect("a caller"))
    };
    from.iter().map(|(role, via)| (*role, caller(via))).collect()
}

async fn told_for(guard: &Guard, method: &str, caller: &Arc<Caller>) -> Status {
    let mut request = request(method, None);
    let from = "192.0.2.7:4711".parse().expect("an address");
    request.extensions_mut().insert(OnBehalf { caller: caller.clone(), from });
    let mut door = Guarded::new(fake(), guard.clone());
    let Ok(response) = door.call(request).await;
    Status::from_header_map(response.headers()).expect("a status")
}

#[tokio::test]
async fn a_call_for_a_certificate_is_judged_by_its_roles_and_noted() {
    let dir = tempfile::tempdir().expect("a directory");
    let callers = callers(&cluster(dir.path()).await);
    let path = dir.path().join("audit.log");
    let audit = audit(&path);
    let guard = Guard::admin(Some(Revocations::default()), Some(audit.clone()));
    let mut noted = Vec::new();
    for method in ["CreateSnapshot", "Switchover", "DrainMember", "PlanDrain", "DeleteSet"] {
        let rule = ADMIN.iter().find(|rule| rule.method == method).expect("a rule");
        for role in COLUMNS {
            let status = told_for(&guard, method, &callers[&role]).await;
            let may = rule.roles.contains(&role);
            let code = if may { Code::Aborted } else { Code::PermissionDenied };
            assert_eq!((status.code(), may_make(method, &callers[&role])), (code, may), "{method} by {role}: {status}");
            if !may || rule.noted {
                noted.push(format!("{method} {role} {code:?} 192.0.2.7:4711"));
            }
        }
    }
    let lines = lines(&audit, &path).await;
    let of = |line: &serde_json::Value| ["method", "certificate", "outcome", "peer"].map(|field| text(line, field));
    assert_eq!(lines.iter().map(|line| of(line).join(" ")).collect::<Vec<_>>(), noted, "ACCESS-A3");
    assert!(!may_make("NoSuchCall", &callers[&Role::Admin]), "ACCESS-A1");
}

/// REVOKE-V1: also where the connection of the other door is still open.
#[tokio::test]
async fn a_call_for_a_revoked_certificate_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let callers = callers(&cluster(dir.path()).await);
    let revocations = Revocations::default();
    let guard = Guard::admin(Some(revocations.clone()), None);
    let operator = &callers[&Role::Operator];
    assert_eq!(told_for(&guard, "CreateSnapshot", operator).await.code(), Code::Aborted);
    revocations.replace(Revoked { serials: [operator.serial.clone()].into(), ..Revoked::default() });
    assert_eq!(told_for(&guard, "CreateSnapshot", operator).await.code(), Code::PermissionDenied);
}

/// Otherwise a viewer would be an administrator there.
#[tokio::test]
async fn without_tls_no_call_is_made_for_a_certificate() {
    let dir = tempfile::tempdir().expect("a directory");
    let callers = callers(&cluster(dir.path()).await);
    let guard = Guard::admin(None, None);
    for role in COLUMNS {
        assert_eq!(told_for(&guard, "CreateSnapshot", &callers[&role]).await.code(), Code::Unauthenticated, "{role}");
    }
}

/// ACCESS-A5: calls of both doors are counted together.
#[tokio::test]
async fn a_certificate_has_one_share_of_both_doors() {
    let dir = tempfile::tempdir().expect("a directory");
    let from = cluster(dir.path()).await;
    let callers = callers(&from);
    let guard = Guard::admin(Some(Revocations::default()), None);
    let mut door = Guarded::new(fake(), guard.clone());
    let rule = ADMIN.iter().find(|rule| rule.method == "CreateSnapshot").expect("a rule");
    let operator = Some(&from[&Role::Operator]);
    let all: Vec<_> = (0..rule.bounds.at_once / 2).map(|_| door.call(request(rule.method, operator))).collect();
    let status = told_for(&guard, rule.method, &callers[&Role::Operator]).await;
    assert_eq!(Refusal::from_status(&status).map(|refusal| refusal.code), Some(RefusalCode::Busy), "{status}");
    drop(all);
    assert_eq!(told_for(&guard, rule.method, &callers[&Role::Operator]).await.code(), Code::Aborted);
}
