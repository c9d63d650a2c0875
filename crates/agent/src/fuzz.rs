//! Doors for the fuzz target of hosts' HTTP (package `fuzz`, ADR 0051): bytes of whoever listens at another agent's
//! address, or sends this one a command. Nothing of the product calls them.

use crate::client;
use crate::facts::{Facts, compare};
use crate::plan::{self, When};
use crate::proof::Challenges;
use crate::view::View;
use holdfast_types::MonoTime;

/// Reads what came in place of an agent's answer, and uses what it says of another host. Returns the code of the
/// answer; `None`: it is none.
pub fn answer(bytes: &[u8]) -> Option<u16> {
    let (answer, _) = client::parse(bytes)?;
    let _ = answer.words();
    if let Ok(view) = serde_json::from_str::<View>(&answer.body) {
        used(&view);
    }
    Some(answer.code)
}

/// Plans moves to a host that shows this, and compares it.
fn used(view: &View) {
    let peers = [("db2".to_string(), Ok(view.clone()))];
    let when = When { at_unix_ms: view.since_unix_ms, now_unix_ms: 1 };
    for plan in [plan::failover(view, &peers), plan::switchover(view, None, &peers, Some(when))] {
        let _ = (plan.may_go(true, "a reason").is_ok(), plan.may_pass());
    }
    if let Some(theirs) = &view.added.facts {
        let ours = Facts { unix_ms: 1, ..Facts::default() };
        let _ = compare("db1", &ours, "db2", theirs, 0);
    }
}

/// Whether the header Authorization of a command proves a token, which its sender does not know.
pub fn is_proven(authorization: &str) -> bool {
    let command = ("/pause", &b"{}"[..]);
    let proof = Challenges::default().check("a token that nobody knows", authorization, command, MonoTime(1));
    !matches!(proof, Ok(None))
}
