//! Group 0 on this node: who is a member, which sets there are.

use bytes::Bytes;
use holdfast_control::cluster::{ClusterAnswer, ClusterCommand, ClusterRefusal, ClusterState, Member, SetEntry};
use holdfast_raft::{Group, ProposeError, StateMachine, Unfit};
use holdfast_types::{LogId, MemberId, Name, SetId};
use std::sync::{PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::watch;

/// How long a command to group 0 may take before its outcome counts as unknown.
const COMMAND_LIMIT: Duration = Duration::from_secs(10);

/// Marks a payload of group 0, so that it can never be taken for a set's.
const MARK: u8 = 0xC0;

struct Inner {
    state: ClusterState,
    applied: LogId,
}

/// The cluster as this node has applied it. Shared between group 0 and everybody who asks.
pub struct Cluster {
    inner: RwLock<Inner>,
    version: watch::Sender<u64>,
}

/// A command to group 0 did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// Group 0 refused.
    #[error(transparent)]
    Refused(#[from] ClusterRefusal),
    /// Group 0 did not take it, or its outcome is unknown.
    #[error(transparent)]
    Propose(#[from] ProposeError),
    /// Encoding or answer.
    #[error("cluster command: {0}")]
    Wire(String),
}

impl Default for Cluster {
    fn default() -> Self {
        let inner = Inner { state: ClusterState::new(), applied: LogId::default() };
        Self { inner: RwLock::new(inner), version: watch::channel(0).0 }
    }
}

impl Cluster {
    fn read<T>(&self, look: impl FnOnce(&ClusterState) -> T) -> T {
        look(&self.inner.read().unwrap_or_else(PoisonError::into_inner).state)
    }

    /// A copy of the whole state.
    pub fn state(&self) -> ClusterState {
        self.read(ClusterState::clone)
    }

    /// A member by id.
    pub fn member(&self, id: MemberId) -> Option<Member> {
        self.read(|s| s.members.get(&id).cloned())
    }

    /// A member by name.
    pub fn member_named(&self, name: &Name) -> Option<Member> {
        self.read(|s| s.member_named(name).cloned())
    }

    /// A set by name.
    pub fn set_named(&self, name: &Name) -> Option<(SetId, SetEntry)> {
        self.read(|s| s.set_named(name).map(|(id, set)| (id, set.clone())))
    }

    /// Changes with every applied entry.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Proposes a command to group 0 at this node.
    ///
    /// # Errors
    /// [`ClusterError`].
    pub async fn command(&self, group: &Group, command: &ClusterCommand) -> Result<ClusterAnswer, ClusterError> {
        // C4: a member of an older build could not read it.
        let (needed, found) = (command.level(), self.read(|s| s.level));
        if needed > found {
            return Err(ClusterRefusal::LevelNeeded { needed, found }.into());
        }
        let payload = postcard::to_stdvec(&(MARK, command)).map_err(|e| ClusterError::Wire(e.to_string()))?;
        let done = group.propose(None, Bytes::from(payload), COMMAND_LIMIT).await?;
        match postcard::from_bytes(&done.answer).map_err(|e| ClusterError::Wire(e.to_string()))? {
            ClusterAnswer::Refused(refusal) => Err(refusal.into()),
            answer => Ok(answer),
        }
    }
}

/// Group 0's state as a snapshot has it. It has no version of its own, and needs no checksum: the file and the message that it comes in have one. So
/// bytes that do not decode, or go on behind the state, are not rotten: another build, whose state has other fields, wrote them.
fn decode(data: &[u8]) -> Result<ClusterState, Unfit> {
    match postcard::take_from_bytes::<ClusterState>(data) {
        Ok((state, [])) => Ok(state),
        Ok((_, rest)) => {
            let known = data.len() - rest.len();
            Err(Unfit::OtherBuild(format!("group 0's state: found {} bytes, expected {known}", data.len())))
        }
        Err(error) => Err(Unfit::OtherBuild(format!("group 0's state, {} bytes: {error}", data.len()))),
    }
}

impl StateMachine for Cluster {
    fn apply(&self, id: LogId, payload: Bytes) -> Bytes {
        let answer = match postcard::from_bytes::<(u8, ClusterCommand)>(&payload) {
            Ok((MARK, command)) => {
                let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
                inner.applied = id;
                inner.state.apply(id, &command)
            }
            other => {
                // R11: a committed entry that this replica cannot read.
                tracing::error!(%id, found = ?other.map(|(mark, _)| mark), "R11: an entry of group 0 does not decode; this gateway stops");
                std::process::abort();
            }
        };
        self.version.send_modify(|v| *v += 1);
        postcard::to_stdvec(&answer).map(Bytes::from).unwrap_or_default()
    }

    fn observe(&self, id: LogId) {
        self.inner.write().unwrap_or_else(PoisonError::into_inner).applied = id;
        self.version.send_modify(|v| *v += 1);
    }

    fn snapshot(&self) -> Option<(LogId, Bytes)> {
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        if inner.applied == LogId::default() {
            return None;
        }
        postcard::to_stdvec(&inner.state).ok().map(|bytes| (inner.applied, Bytes::from(bytes)))
    }

    fn check(&self, _: LogId, data: &[u8]) -> Result<(), Unfit> {
        decode(data).map(drop)
    }

    fn install(&self, last: LogId, data: &[u8]) -> Result<(), Unfit> {
        let state = decode(data)?;
        *self.inner.write().unwrap_or_else(PoisonError::into_inner) = Inner { state, applied: last };
        self.version.send_modify(|v| *v += 1);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_with_other_fields_is_of_another_build_and_changes_nothing() -> Result<(), Box<dyn std::error::Error>> {
        let mut state = ClusterState::new();
        state.cluster_id = 7;
        let bytes = postcard::to_stdvec(&state)?;
        let cluster = Cluster::default();
        let at = LogId::new(1, 1);
        let longer = [&bytes[..], &[1]].concat();
        for foreign in [&longer[..], &bytes[..bytes.len() - 1]] {
            assert!(matches!(cluster.check(at, foreign), Err(Unfit::OtherBuild(_))), "{foreign:?}");
            assert!(matches!(cluster.install(at, foreign), Err(Unfit::OtherBuild(_))), "{foreign:?}");
            assert_eq!(cluster.state(), ClusterState::new());
        }
        cluster.install(at, &bytes)?;
        assert_eq!(cluster.state(), state);
        Ok(())
    }
}
