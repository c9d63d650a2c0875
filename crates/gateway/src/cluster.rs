//! Group 0 on this node: who is a member, which sets there are.

use bytes::Bytes;
use holdfast_control::cluster::{ClusterAnswer, ClusterCommand, ClusterRefusal, ClusterState, Member, SetEntry};
use holdfast_raft::{Group, ProposeError, StateMachine};
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

    /// Takes a state that did not come by group 0's log: histories have one of their own.
    pub fn adopt(&self, state: ClusterState) {
        self.inner.write().unwrap_or_else(PoisonError::into_inner).state = state;
        self.version.send_modify(|v| *v += 1);
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
        encode(&inner.state).ok().map(|bytes| (inner.applied, Bytes::from(bytes)))
    }

    fn check(&self, _: LogId, data: &[u8]) -> Result<(), String> {
        decode(data).map(drop)
    }

    fn install(&self, last: LogId, data: &[u8]) -> Result<(), String> {
        let state = decode(data)?;
        *self.inner.write().unwrap_or_else(PoisonError::into_inner) = Inner { state, applied: last };
        self.version.send_modify(|v| *v += 1);
        Ok(())
    }
}

/// The state, and behind it how sets hang together, where any do: without clones it is what a build before clones reads.
fn encode(state: &ClusterState) -> Result<Vec<u8>, postcard::Error> {
    let mut bytes = postcard::to_stdvec(state)?;
    if !state.links.is_empty() {
        bytes.extend(postcard::to_stdvec(&state.links)?);
    }
    Ok(bytes)
}

fn decode(data: &[u8]) -> Result<ClusterState, String> {
    let (mut state, rest): (ClusterState, &[u8]) = postcard::take_from_bytes(data).map_err(|e| e.to_string())?;
    if !rest.is_empty() {
        state.links = postcard::from_bytes(rest).map_err(|e| e.to_string())?;
    }
    Ok(state)
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_control::set::{CloneOf, Links, RootRef};
    use holdfast_types::{GroupId, ObjectId, RequestId, Term};

    #[test]
    fn links_are_kept_and_cost_nothing_where_there_are_none() -> Result<(), Box<dyn std::error::Error>> {
        let mut state = ClusterState::new();
        assert_eq!(encode(&state)?, postcard::to_stdvec(&state)?, "as before there were clones");
        let object = ObjectId { term: Term(1), member: MemberId(1), boot: 1, random: 9 };
        let clone_of = CloneOf {
            origin: GroupId(1),
            snapshot: Name::new("monday")?,
            root: RootRef { object, bytes: 7 },
            request: RequestId(3),
        };
        state.links.insert(GroupId(2), Links { clone_of: Some(clone_of), ..Links::default() });
        assert_eq!(decode(&encode(&state)?)?, state);
        let cut = encode(&state)?;
        assert!(decode(&cut[..cut.len() - 1]).is_err());
        Ok(())
    }
}
