//! Group 0 on this node: the members and the sets.

use bytes::Bytes;
use holdfast_control::cluster::{
    ClusterAnswer, ClusterCommand, ClusterRefusal, ClusterState, Member, Places, SetEntry,
};
use holdfast_raft::{Group, ProposeError, StateMachine, Unfit};
use holdfast_types::sync::RwLockExt;
use holdfast_types::{LogId, MemberId, Name, SetId, Term};
use std::sync::RwLock;
use std::time::Duration;
use tokio::sync::watch;

/// How long a command to group 0 may take before its outcome counts as unknown.
const COMMAND_LIMIT: Duration = Duration::from_secs(10);

/// The state, and behind it the voters of the sets that name them, if there are such sets.
fn image_of(state: &ClusterState) -> Result<Vec<u8>, postcard::Error> {
    let mut image = postcard::to_stdvec(state)?;
    let places = state.places();
    if !places.is_empty() {
        image.extend(postcard::to_stdvec(&places)?);
    }
    Ok(image)
}

/// Nothing behind the state: no set names voters, and every member votes in each set.
fn of_image(data: &[u8]) -> Result<ClusterState, String> {
    let (state, behind) = postcard::take_from_bytes::<ClusterState>(data).map_err(|e| e.to_string())?;
    if behind.is_empty() {
        return Ok(state);
    }
    match postcard::take_from_bytes::<Places>(behind) {
        Ok((places, [])) if places.keys().all(|set| state.sets.contains_key(set)) => Ok(state.with_places(places)),
        _ => Err(format!(
            "found {} bytes behind a state, expected the voters of its sets: written by another build",
            behind.len()
        )),
    }
}

/// First byte of a payload of group 0, so that it can never be mistaken for a set's.
const MARK: u8 = 0xC0;

struct Inner {
    state: ClusterState,
    applied: LogId,
}

/// The cluster as applied on this node. Shared between group 0 and its readers.
pub struct Cluster {
    inner: RwLock<Inner>,
    version: watch::Sender<u64>,
}

/// A command to group 0 was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// Group 0 refused.
    #[error(transparent)]
    Refused(#[from] ClusterRefusal),
    /// Group 0 did not accept it, or its outcome is unknown.
    #[error(transparent)]
    Propose(#[from] ProposeError),
    /// The command or the answer could not be encoded or decoded.
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
    /// Looks at the state, without a copy of it.
    pub fn read<T>(&self, look: impl FnOnce(&ClusterState) -> T) -> T {
        look(&self.inner.reading().state)
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

    /// Whether a member has a place in a set, as far as this node knows (VOTERS-V1). In group 0 all have one.
    pub fn has_place(&self, set: SetId, member: MemberId) -> bool {
        self.read(|s| s.sets.get(&set).is_none_or(|entry| entry.has_place_for(member)))
    }

    /// Takes a state that did not come from group 0's log; used for histories, which have their own.
    pub fn adopt(&self, state: ClusterState) {
        self.inner.writing().state = state;
        self.version.send_modify(|v| *v += 1);
    }

    /// Counter that changes with every applied entry.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// The term in which this node leads, once everything in its log, including an entry of that term, is applied. A
    /// state read after that is current for proposals *in this term*: only this leader appends to the log. `None` if it
    /// does not lead, or not within `limit`.
    pub async fn settled(&self, group: &Group, limit: Duration) -> Option<Term> {
        let deadline = tokio::time::Instant::now() + limit;
        let mut changes = self.changes();
        loop {
            let term = group.leading_term()?;
            let applied = self.inner.reading().applied;
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

    /// The same; with `term`, only in that term of this leader.
    ///
    /// # Errors
    /// [`ClusterError`].
    pub async fn command_in(
        &self,
        group: &Group,
        term: Option<Term>,
        command: &ClusterCommand,
    ) -> Result<ClusterAnswer, ClusterError> {
        // CLUSTER-C4: a member with an older build could not read it.
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
                let mut inner = self.inner.writing();
                inner.applied = id;
                inner.state.apply(id, &command)
            }
            other => {
                // R11: this replica cannot read a committed entry.
                tracing::error!(%id, found = ?other.map(|(mark, _)| mark), "R11: an entry of group 0 does not decode; this gateway stops");
                std::process::abort();
            }
        };
        self.version.send_modify(|v| *v += 1);
        postcard::to_stdvec(&answer).map(Bytes::from).unwrap_or_default()
    }

    fn observe(&self, id: LogId) {
        self.inner.writing().applied = id;
        self.version.send_modify(|v| *v += 1);
    }

    fn snapshot(&self) -> Option<(LogId, Bytes)> {
        let inner = self.inner.reading();
        if inner.applied == LogId::default() {
            return None;
        }
        image_of(&inner.state).ok().map(|bytes| (inner.applied, Bytes::from(bytes)))
    }

    fn check(&self, _: LogId, data: &[u8]) -> Result<(), Unfit> {
        of_image(data).map(drop).map_err(Unfit::OtherBuild)
    }

    fn install(&self, last: LogId, data: &[u8]) -> Result<(), Unfit> {
        let state = of_image(data).map_err(Unfit::OtherBuild)?;
        *self.inner.writing() = Inner { state, applied: last };
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
    fn what_a_snapshot_has_comes_back_whole() -> Result<(), Box<dyn std::error::Error>> {
        let mut state = ClusterState { next_set: 9, ..ClusterState::new() };
        let entry = SetEntry {
            name: Name::new("demo")?,
            policy: holdfast_control::policy::Policy::default(),
            store_url: "file:///s".into(),
            wrapped_key: vec![7; 9],
            key_id: 1,
            created_by: MemberId(1),
            initial_members: vec![MemberId(1)],
            base_epoch: Epoch(0),
            generation: 1,
            restored: None,
            voters: Default::default(),
        };
        let (stage, ended) = (DeletionStage::Ending, BTreeSet::from([MemberId(1)]));
        let deletion = Deletion { entry, request: RequestId(5), stage, ended, voters: None, store_left: false };
        state.deletions.under_way.insert(GroupId(4), deletion);
        state.deletions.finished.push_back(GroupId(3));
        let object = ObjectId { term: Term(1), member: MemberId(1), boot: 1, random: 9 };
        let root = RootRef { object, bytes: 7 };
        let clone_of = CloneOf { origin: GroupId(1), snapshot: Name::new("monday")?, root, request: RequestId(3) };
        let mut links = Links { clone_of: Some(clone_of), ..Links::default() };
        let snapshot = Snapshot {
            upto: LogId::default(),
            root,
            volumes: Default::default(),
            request: RequestId(3),
            at_unix_ms: 4,
            scheduled: true,
        };
        links.snapshots.snapshots.insert(Name::new("monday")?, snapshot);
        state.links.insert(GroupId(2), links);
        let whole = postcard::to_stdvec(&state)?;
        assert_eq!(of_image(&whole)?, state);
        for cut in 0..whole.len() {
            assert!(of_image(&whole[..cut]).is_err(), "cut at {cut}");
        }
        Ok(())
    }

    /// VOTERS-V1: a state without voters reads, and no voter that is named gets lost.
    #[test]
    fn the_voters_of_sets_stand_behind_the_state() -> Result<(), Box<dyn std::error::Error>> {
        let mut state = ClusterState { next_set: 9, ..ClusterState::new() };
        let mut entry = SetEntry {
            name: Name::new("demo")?,
            policy: holdfast_control::policy::Policy::default(),
            store_url: "file:///s".into(),
            wrapped_key: vec![7; 9],
            key_id: 1,
            created_by: MemberId(1),
            initial_members: vec![MemberId(1)],
            base_epoch: Epoch(0),
            generation: 1,
            restored: None,
            voters: BTreeSet::new(),
        };
        state.sets.insert(GroupId(1), entry.clone());
        let older = postcard::to_stdvec(&state)?;
        assert_eq!(image_of(&state)?, older, "no set names voters");
        entry.voters = BTreeSet::from([MemberId(2), MemberId(5)]);
        state.sets.insert(GroupId(2), entry);
        let image = image_of(&state)?;
        assert_eq!(of_image(&image)?, state);
        let bare = postcard::to_stdvec(&state)?;
        for cut in bare.len() + 1..image.len() {
            assert!(of_image(&image[..cut]).is_err(), "cut at {cut}");
        }
        let of_no_set = postcard::to_stdvec(&Places::from([(GroupId(3), BTreeSet::from([MemberId(1)]))]))?;
        assert!(of_image(&[older, of_no_set].concat()).is_err(), "voters of a set that is not there");
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
