//! Checks that the snapshot of this name is still the one that was copied.
//!
//! SCRATCH-W5  A name is no identity: a snapshot can be deleted and another one taken under its name. So a new
//!     connection is read only after the set's leader has listed the snapshot with the id that it had at the start. The
//!     list is fetched after the handshake, which binds the connection to one snapshot. An id is never used again, so
//!     if it is listed then, the connection shows that snapshot.

use crate::admin_client::{self, AdminClients, call};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use holdfast_api::{Refusal, v1};
use holdfast_types::Name;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// Time limit of one look. Longer than most elections.
const LOOK_LIMIT: Duration = Duration::from_secs(5);

/// Result of a look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// The snapshot exists.
    Same,
    /// It was deleted.
    Gone(String),
    /// No gateway answered.
    Unknown(String),
}

/// Looks for the snapshot of this name and id in the leader's list.
fn judge(name: &Name, id: &str, listed: &[v1::Snapshot]) -> Presence {
    match listed.iter().find(|found| found.name == name.as_str()) {
        None => Presence::Gone(format!("found no snapshot {name}, expected the one with id {id}")),
        Some(found) if found.id != id => {
            Presence::Gone(format!("found snapshot {name} with id {}, expected {id}", found.id))
        }
        Some(_) => Presence::Same,
    }
}

/// The snapshots of a set as its leader lists them. Asks until one answers: the caller sets the time limit.
pub(super) async fn list(doors: &AdminClients, set: &Name) -> Result<Vec<v1::Snapshot>, Refusal> {
    let call = call!(list_snapshots, v1::ListSnapshotsRequest { set: set.to_string() });
    let (_, listed) = doors.ask_all(call, admin_client::is_final).await;
    Ok(listed?.snapshots)
}

/// Checks whether the snapshot still exists.
#[derive(Clone)]
pub(crate) struct Identity {
    look: Arc<dyn Fn() -> BoxFuture<'static, Presence> + Send + Sync>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

impl Identity {
    /// With a function that looks.
    pub(crate) fn by<F: Future<Output = Presence> + Send + 'static>(
        look: impl Fn() -> F + Send + Sync + 'static,
    ) -> Self {
        Self { look: Arc::new(move || look().boxed()) }
    }

    /// Looks at the gateways' list.
    pub(crate) fn listed(doors: &Arc<AdminClients>, set: &Name, snapshot: &v1::Snapshot, name: &Name) -> Self {
        let known = (doors.clone(), set.clone(), name.clone(), snapshot.id.clone());
        Self::by(move || {
            let (doors, set, name, id) = known.clone();
            async move {
                match tokio::time::timeout(LOOK_LIMIT, list(&doors, &set)).await {
                    Ok(Ok(listed)) => judge(&name, &id, &listed),
                    Ok(Err(refusal)) => Presence::Unknown(format!("snapshots of {set}: {refusal}")),
                    Err(_) => {
                        Presence::Unknown(format!("no gateway listed the snapshots of {set} within {LOOK_LIMIT:?}"))
                    }
                }
            }
        })
    }

    pub(crate) async fn look(&self) -> Presence {
        (self.look)().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_name_and_id_together_are_the_snapshot() {
        let snapshot = |name: &str, id: &str, pending| v1::Snapshot {
            name: name.to_string(),
            id: id.to_string(),
            pending,
            ..v1::Snapshot::default()
        };
        let see = |listed: &[v1::Snapshot]| judge(&Name::new("monday").unwrap(), "a1", listed);
        assert_eq!(see(&[snapshot("sunday", "00", false), snapshot("monday", "a1", false)]), Presence::Same);
        assert!(matches!(see(&[]), Presence::Gone(_)));
        assert!(matches!(see(&[snapshot("sunday", "a1", false)]), Presence::Gone(_)));
        assert!(matches!(see(&[snapshot("monday", "b2", false)]), Presence::Gone(_)));
        assert!(matches!(see(&[snapshot("monday", "b2", true)]), Presence::Gone(_)), "another one is being taken");
    }
}
