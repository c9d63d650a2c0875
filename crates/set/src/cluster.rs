//! Group 0 on this node: who is a member, which sets there are.

use bytes::Bytes;
use holdfast_control::cluster::{ClusterAnswer, ClusterCommand, ClusterRefusal, ClusterState, Member, SetEntry};
use holdfast_control::set::SnapshotList;
use holdfast_raft::{Group, ProposeError, StateMachine, Unfit};
use holdfast_types::{LogId, MemberId, Name, SetId, Term};
use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::watch;

/// How long a command to group 0 may take before its outcome counts as unknown.
const COMMAND_LIMIT: Duration = Duration::from_secs(10);

/// No number of 128 bits begins like this, which the state does: a build of before level 3 refuses it.
const LATER: [u8; 20] = [0xFF; 20];
/// Of what follows the state in a snapshot: the deletions.
const DELETIONS: u8 = 1;
/// … how sets hang together by clones.
const LINKS: u8 = 2;
/// … the snapshots that recovered sets began with.
const SNAPSHOTS: u8 = 3;

/// A state as a snapshot has it: in the form that it always had, then a section for each thing that came later and is there: its mark, its length
/// (4 bytes, little-endian), its content. A build that does not know a section knows no entry that could have led to it (C4).
///
/// Where there is any section the whole begins with [`LATER`]: a build that knows no sections would read over them, and lose what keeps other sets' data.
fn image(state: &ClusterState) -> Result<Vec<u8>, postcard::Error> {
    let mut bytes = Vec::new();
    if !state.deletions.is_empty() || !state.links.is_empty() {
        bytes.extend_from_slice(&LATER);
    }
    bytes.extend(postcard::to_stdvec(state)?);
    let mut append = |mark: u8, section: Vec<u8>| {
        bytes.push(mark);
        bytes.extend_from_slice(&u32::try_from(section.len()).unwrap_or(u32::MAX).to_le_bytes());
        bytes.extend_from_slice(&section);
    };
    if !state.deletions.is_empty() {
        append(DELETIONS, postcard::to_stdvec(&state.deletions)?);
    }
    if !state.links.is_empty() {
        append(LINKS, postcard::to_stdvec(&state.links)?);
    }
    // Behind the links of the same sets, which are written without them.
    let listed = state.links.iter().filter(|(_, links)| !links.snapshots.is_blank());
    let listed: BTreeMap<&SetId, &SnapshotList> = listed.map(|(set, links)| (set, &links.snapshots)).collect();
    if !listed.is_empty() {
        append(SNAPSHOTS, postcard::to_stdvec(&listed)?);
    }
    Ok(bytes)
}

fn of_image(data: &[u8]) -> Result<ClusterState, String> {
    let data = data.strip_prefix(&LATER).unwrap_or(data);
    let (mut state, mut rest) = postcard::take_from_bytes::<ClusterState>(data).map_err(|e| e.to_string())?;
    while let Some((mark, more)) = rest.split_first() {
        let section = more.split_first_chunk::<4>().and_then(|(len, more)| {
            more.split_at_checked(usize::try_from(u32::from_le_bytes(*len)).unwrap_or(usize::MAX))
        });
        let Some((section, more)) = section else {
            return Err(format!("found {} bytes of section {mark}, expected a whole one", more.len()));
        };
        match *mark {
            DELETIONS => state.deletions = postcard::from_bytes(section).map_err(|e| e.to_string())?,
            LINKS => state.links = postcard::from_bytes(section).map_err(|e| e.to_string())?,
            SNAPSHOTS => {
                let listed: BTreeMap<SetId, SnapshotList> = postcard::from_bytes(section).map_err(|e| e.to_string())?;
                for (set, snapshots) in listed {
                    state.links.entry(set).or_default().snapshots = snapshots;
                }
            }
            other => {
                return Err(format!(
                    "found section {other}, expected {DELETIONS} to {SNAPSHOTS}: written by a newer build"
                ));
            }
        }
        rest = more;
    }
    Ok(state)
}

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

    /// Its feature level.
    pub fn level(&self) -> u32 {
        self.read(|s| s.level)
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

    /// The term in which this node leads, once everything in its log is applied, an entry of that term among it. What is read after that and decides
    /// what is proposed *in this term* is up to date: only this leader adds to the log. `None`: it does not lead, or does not get there within `limit`.
    pub async fn settled(&self, group: &Group, limit: Duration) -> Option<Term> {
        let deadline = tokio::time::Instant::now() + limit;
        let mut changes = self.changes();
        loop {
            let term = group.leading_term()?;
            let applied = self.inner.read().unwrap_or_else(PoisonError::into_inner).applied;
            if applied.term == term && group.status().last.is_none_or(|last| applied.index >= last) {
                return Some(term);
            }
            tokio::time::timeout_at(deadline, changes.changed()).await.ok()?.ok()?;
        }
    }

    /// Proposes a command to group 0 at this node.
    ///
    /// # Errors
    /// [`ClusterError`].
    pub async fn command(&self, group: &Group, command: &ClusterCommand) -> Result<ClusterAnswer, ClusterError> {
        self.command_in(group, None, command).await
    }

    /// The same, with `term` only in just that term of this leader.
    ///
    /// # Errors
    /// [`ClusterError`].
    pub async fn command_in(
        &self,
        group: &Group,
        term: Option<Term>,
        command: &ClusterCommand,
    ) -> Result<ClusterAnswer, ClusterError> {
        // C4: a member of an older build could not read it.
        let (needed, found) = (command.level(), self.level());
        if needed > found {
            return Err(ClusterRefusal::LevelNeeded { needed, found }.into());
        }
        let payload = postcard::to_stdvec(&(MARK, command)).map_err(|e| ClusterError::Wire(e.to_string()))?;
        let done = group.propose(term, Bytes::from(payload), COMMAND_LIMIT).await?;
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
        image(&inner.state).ok().map(|bytes| (inner.applied, Bytes::from(bytes)))
    }

    fn check(&self, _: LogId, data: &[u8]) -> Result<(), Unfit> {
        of_image(data).map(drop).map_err(Unfit::OtherBuild)
    }

    fn install(&self, last: LogId, data: &[u8]) -> Result<(), Unfit> {
        let state = of_image(data).map_err(Unfit::OtherBuild)?;
        *self.inner.write().unwrap_or_else(PoisonError::into_inner) = Inner { state, applied: last };
        self.version.send_modify(|v| *v += 1);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_control::cluster::{Deletion, DeletionStage};
    use holdfast_control::set::{CloneOf, Links, RootRef, Snapshot};
    use holdfast_types::{Epoch, GroupId, ObjectId, RequestId, Term};
    use std::collections::BTreeSet;

    #[test]
    fn a_snapshot_without_deletions_is_what_it_always_was_and_one_with_them_comes_back()
    -> Result<(), Box<dyn std::error::Error>> {
        let mut state = ClusterState { level: 3, next_set: 9, ..ClusterState::new() };
        assert_eq!(image(&state)?, postcard::to_stdvec(&state)?, "a build of before reads it");
        assert_eq!(of_image(&image(&state)?)?, state);
        let entry = SetEntry {
            name: Name::new("demo")?,
            store_url: "file:///s".into(),
            wrapped_key: vec![7; 9],
            key_id: 1,
            created_by: MemberId(1),
            initial_members: vec![MemberId(1)],
            base_epoch: Epoch(0),
            generation: 1,
            restored: None,
        };
        let (stage, ended) = (DeletionStage::Ending, BTreeSet::from([MemberId(1)]));
        let deletion = Deletion { entry, request: RequestId(5), stage, ended, voters: None, store_left: false };
        state.deletions.under_way.insert(GroupId(4), deletion);
        state.deletions.finished.push_back(GroupId(3));
        let whole = image(&state)?;
        assert_eq!(of_image(&whole)?, state);
        assert!(postcard::take_from_bytes::<ClusterState>(&whole).is_err(), "a build of before must not read over it");
        let old = LATER.len() + postcard::to_stdvec(&state)?.len();
        for cut in old + 1..whole.len() {
            assert!(of_image(&whole[..cut]).is_err(), "cut at {cut}");
        }
        let mut unknown = whole;
        unknown[old] = 77;
        assert!(of_image(&unknown).is_err_and(|why| why.contains("section 77")));
        Ok(())
    }

    #[test]
    fn links_are_kept_and_cost_nothing_where_there_are_none() -> Result<(), Box<dyn std::error::Error>> {
        let mut state = ClusterState::new();
        assert_eq!(image(&state)?, postcard::to_stdvec(&state)?, "as before there were clones");
        let object = ObjectId { term: Term(1), member: MemberId(1), boot: 1, random: 9 };
        let clone_of = CloneOf {
            origin: GroupId(1),
            snapshot: Name::new("monday")?,
            root: RootRef { object, bytes: 7 },
            request: RequestId(3),
        };
        state.links.insert(GroupId(2), Links { clone_of: Some(clone_of), ..Links::default() });
        assert_eq!(of_image(&image(&state)?)?, state);
        let cut = image(&state)?;
        assert!(of_image(&cut[..cut.len() - 1]).is_err());
        Ok(())
    }

    #[test]
    fn the_snapshots_that_a_recovered_set_began_with_are_kept() -> Result<(), Box<dyn std::error::Error>> {
        let mut state = ClusterState::new();
        state.links.insert(GroupId(2), Links::default());
        let without = image(&state)?;
        let object = ObjectId { term: Term(1), member: MemberId(1), boot: 1, random: 9 };
        let snapshot = Snapshot {
            upto: LogId::default(),
            root: RootRef { object, bytes: 7 },
            volumes: Default::default(),
            request: RequestId(3),
            at_unix_ms: 4,
            scheduled: true,
        };
        let links = state.links.entry(GroupId(2)).or_default();
        links.snapshots.snapshots.insert(Name::new("monday")?, snapshot);
        let whole = image(&state)?;
        assert_eq!(of_image(&whole)?, state);
        assert_eq!((&whole[..without.len()], whole[without.len()]), (&without[..], SNAPSHOTS), "behind the rest");
        assert!(of_image(&whole[..whole.len() - 1]).is_err());
        Ok(())
    }

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
