//! Scene: commands that come too late. Whoever proposes a command has looked before; between that look and the entry
//! another one is applied, or the command is a second copy (R12). Seeds hardly ever meet these moments, so the entries
//! are proposed here as they are. Apply has to refuse each, at every gateway, and clients go on.

use crate::client::{SET, VOLUME_NAMES};
use crate::world::World;
use anyhow::{Context, Result, anyhow, bail, ensure};
use bytes::Bytes;
use holdfast_api::v1::{self, admin_server::Admin as _};
use holdfast_control::cluster::{ClusterAnswer, ClusterCommand, ClusterRefusal, Member};
use holdfast_control::set::{
    Judged, Lease, RetireOf, SetAnswer, SetCommand, SetRefusal, SetState, StoredKind, StoredObject, TTL_MS_MAX,
    VolumeChange,
};
use holdfast_gateway::admin::AdminDoor;
use holdfast_gateway::node::Node;
use holdfast_set::cluster::ClusterError;
use holdfast_set::host::decode_answer;
use holdfast_set::server::{SetError, SetServer};
use holdfast_types::{
    Epoch, GroupId, Lba, MemberId, Name, ObjectId, Owner, RequestId, Sectors, SetId, Term, Token, VolumeId, WriteSeq,
};
use holdfast_volume::entry::{EntryBuilder, OpKind};
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// For an entry, from its proposal to its answer.
const LIMIT: Duration = Duration::from_secs(5);
/// The set that is deleted.
const LATE_SET: &str = "late";

/// The set's leader, as the proposer of these commands.
struct Proposer(Arc<SetServer>);

impl Proposer {
    fn state(&self) -> SetState {
        self.0.host.with(|m| m.state().clone())
    }

    /// What a refused command must leave as it is. Checkpoints and collection go on beside it.
    fn seen(&self) -> impl PartialEq + Debug + use<> {
        let state = self.state();
        (state.lease, state.epoch, state.last_seq, state.volumes, state.snapshots)
    }

    async fn done(&self, command: &SetCommand) -> Result<SetAnswer> {
        self.0.command("a late command", command).await.map_err(|e| anyhow!("{command:?}: {e}"))
    }

    async fn granted(&self, command: &SetCommand) -> Result<Lease> {
        match self.done(command).await? {
            SetAnswer::Granted(lease) => Ok(lease),
            other => bail!("{command:?}: {other:?}"),
        }
    }

    /// It is refused for a reason that `fits`, and changes nothing.
    async fn refused(&self, command: SetCommand, fits: impl Fn(&SetRefusal) -> bool) -> Result<()> {
        let before = self.seen();
        match self.0.command("a late command", &command).await {
            Err(SetError::Refused(found)) if fits(&found) => {}
            found => bail!("R12: {command:?}: {found:?}"),
        }
        let after = self.seen();
        ensure!(before == after, "R12: {command:?} was refused: found {after:?} after it, expected {before:?}");
        Ok(())
    }

    /// The answer to an entry with one trim, which no sequencer sent.
    async fn write(&self, volume: VolumeId, epoch: Epoch, seq: u64, lba: u64) -> Result<SetAnswer> {
        let group = &self.0.group;
        let mut entry = EntryBuilder::new(epoch, WriteSeq(seq)).of(group.id());
        ensure!(entry.try_push(OpKind::Trim, volume, Lba(lba), Sectors(1), Bytes::new()), "one op fits an entry");
        let done = group.propose(group.leading_term(), entry.finish(), LIMIT).await.map_err(|e| anyhow!("{e}"))?;
        decode_answer(&done.answer).context("an answer to writes")
    }

    fn acquire(&self, owner: &str, token: u128, request: u128, plain: bool) -> Result<SetCommand> {
        Ok(SetCommand::Acquire {
            owner: Owner::new(owner)?,
            gateway: self.0.me(),
            token: Token(token),
            ttl_ms: TTL_MS_MAX,
            request: RequestId(request),
            judged_expired: None,
            force: false,
            plain,
            at_unix_ms: 0,
        })
    }

    fn continued(&self, token: u128, new_token: u128, request: u128) -> Result<SetCommand> {
        Ok(SetCommand::Continue {
            owner: Owner::new("late-1")?,
            gateway: self.0.me(),
            token: Token(token),
            new_token: Token(new_token),
            request: RequestId(request),
            at_unix_ms: 0,
        })
    }

    /// SET-S3, SET-S4 and SET-S10. Returns the lease that is left.
    async fn leases(&self) -> Result<Lease> {
        let plain = self.acquire("late-1", 1, 101, true)?;
        let Lease { epoch, .. } = self.granted(&plain).await?;
        self.refused(self.continued(1, 2, 102)?, |why| matches!(why, SetRefusal::NotContinuable { .. })).await?;
        self.done(&SetCommand::Release { epoch, token: None }).await?;
        self.refused(plain, |why| matches!(why, SetRefusal::RequestEnded { .. })).await?;

        let held = self.granted(&self.acquire("late-1", 11, 103, false)?).await?;
        let seen = Judged { epoch: held.epoch, renewed: held.renewed };
        self.done(&SetCommand::Renew { epoch: held.epoch }).await?;
        let mut other = self.acquire("late-2", 12, 104, false)?;
        if let SetCommand::Acquire { judged_expired, .. } = &mut other {
            *judged_expired = Some(seen);
        }
        self.refused(other, |why| matches!(why, SetRefusal::Held { .. })).await?;
        let mut forced = self.acquire("late-2", 11, 105, false)?;
        if let SetCommand::Acquire { force, .. } = &mut forced {
            *force = true;
        }
        self.refused(forced, |why| matches!(why, SetRefusal::TokenReused)).await?;
        self.refused(self.continued(99, 13, 106)?, |why| matches!(why, SetRefusal::StaleToken { .. })).await?;
        self.refused(self.continued(11, 11, 106)?, |why| matches!(why, SetRefusal::TokenReused)).await?;

        let next = self.granted(&self.continued(11, 13, 107)?).await?;
        // A copy of the request that this one overtook.
        let present = self.granted(&self.continued(11, 14, 103)?).await?;
        ensure!(present.epoch == next.epoch, "SET-S10: found a grant of {}, expected {}", present.epoch, next.epoch);
        let release = SetCommand::Release { epoch: next.epoch, token: Some(Token(99)) };
        self.refused(release, |why| matches!(why, SetRefusal::StaleToken { .. })).await?;
        Ok(next)
    }

    /// R2: each number once, and in order; and a copy of an entry that was left out in part is not answered as written.
    async fn writes(&self, epoch: Epoch) -> Result<()> {
        let name = Name::new(VOLUME_NAMES[0])?;
        let state = self.state();
        let (volume, size) = state.volume_named(&name).map(|(id, volume)| (id, volume.size)).context("a volume")?;
        let gap = |answer: &SetAnswer| matches!(answer, SetAnswer::Refused(SetRefusal::SeqGap { .. }));
        for _ in 0..2 {
            let answer = self.write(volume, epoch, 1, 0).await?;
            ensure!(answer == SetAnswer::Written, "R2: entry 1: {answer:?}");
        }
        let answer = self.write(volume, epoch, 5, 0).await?;
        ensure!(gap(&answer), "R2: entry 5 after entry 1: {answer:?}");
        let answer = self.write(volume, epoch, 2, size.0).await?;
        ensure!(matches!(answer, SetAnswer::WrittenExcept { .. }), "an entry outside of its volume: {answer:?}");
        let answer = self.write(volume, epoch, 2, size.0).await?;
        ensure!(gap(&answer), "R2: a copy of an entry that was left out in part: {answer:?}");
        let last = self.state().last_seq;
        ensure!(last == WriteSeq(2), "R2: found {last} as the last entry, expected 2");
        Ok(())
    }

    /// VOLUME-V3.
    async fn volumes(&self) -> Result<()> {
        let (name, epoch) = (Name::new("late")?, self.state().epoch);
        let change =
            |change: VolumeChange, request: u128| SetCommand::ChangeVolume { change, request: RequestId(request) };
        let made = VolumeChange::Create { name: name.clone(), size: Sectors(100) };
        let SetAnswer::VolumeChanged { volume, .. } = self.done(&change(made, 201)).await? else {
            bail!("the volume was not made");
        };
        let shrunk = |to| VolumeChange::Shrink { volume, from: Sectors(100), to, epoch };
        self.done(&change(shrunk(Sectors(50)), 202)).await?;
        let late = change(shrunk(Sectors(25)), 203);
        self.refused(late, |why| matches!(why, SetRefusal::VolumeNotAsSeen { .. })).await?;
        let earlier = VolumeChange::Delete { volume, name: name.clone(), epoch: Epoch(epoch.0 - 1) };
        self.refused(change(earlier, 204), |why| matches!(why, SetRefusal::WrongEpoch { .. })).await?;
        self.done(&change(VolumeChange::Delete { volume, name, epoch }, 205)).await.map(|_| ())
    }

    /// RESIZE-U1: whoever asked for a change goes while its entry is on its way.
    async fn abandoned_change(&self, door: AdminDoor) -> Result<()> {
        let (name, new) = (Name::new("late")?, Name::new("later")?);
        let change =
            |change: VolumeChange, request: u128| SetCommand::ChangeVolume { change, request: RequestId(request) };
        let made = VolumeChange::Create { name: name.clone(), size: Sectors(100) };
        let SetAnswer::VolumeChanged { volume, .. } = self.done(&change(made, 206)).await? else {
            bail!("the volume was not made");
        };
        let rename = v1::RenameVolume { from: name.to_string(), to: new.to_string() };
        let request = v1::ChangeVolumeRequest {
            set: SET.into(),
            request_id: holdfast_api::hex128(207),
            volume: volume.0,
            force: false,
            change: Some(v1::change_volume_request::Change::Rename(rename)),
        };
        let free = || self.0.use_volume(volume, &name).is_ok();
        let mut call = door.change_volume(tonic::Request::new(request));
        let mut tick = tokio::time::interval(Duration::from_millis(1));
        // Until the change has begun. At the moment in which it begins nothing is applied yet.
        poll_fn(|cx| {
            if call.as_mut().poll(cx).is_ready() || !free() {
                return Poll::Ready(());
            }
            while tick.poll_tick(cx).is_ready() {}
            Poll::Pending
        })
        .await;
        drop(call);
        ensure!(!free(), "RESIZE-U1: a client may use {name}, and an entry that takes its name is on its way");
        let renamed = || self.0.host.with(|m| m.state().volume_named(&new).is_some());
        while !renamed() {
            tick.tick().await;
        }
        let gone = VolumeChange::Delete { volume, name: new.clone(), epoch: self.state().epoch };
        self.done(&change(gone, 208)).await.map(|_| ())
    }

    /// SET-S5 and SET-S8, while no checkpoint is under way.
    async fn checkpoints(&self) -> Result<()> {
        let _none = self.0.head.checkpoint_turn().await;
        let state = self.state();
        ensure!(state.begin.is_none(), "a checkpoint is under way: {:?}", state.begin);
        let done = state.checkpoint.context("no checkpoint")?;
        let term = self.0.group.leading_term().context("it leads no more")?;
        let object = ObjectId { random: done.root.object.random ^ 1, ..done.root.object };
        let begin = SetCommand::CheckpointBegin { term: Term(term.0 - 1) };
        self.refused(begin, |why| matches!(why, SetRefusal::WrongTerm { .. })).await?;
        let segment = SetCommand::SegmentCommitted { term, object, stored_bytes: 1, raw_bytes: 1 };
        self.refused(segment, |why| matches!(why, SetRefusal::NoBegin)).await?;
        let end = SetCommand::CheckpointEnd { term, begin: done.upto, root: done.root };
        self.refused(end, |why| matches!(why, SetRefusal::NotLatestBegin { .. })).await?;
        let used = StoredObject { kind: StoredKind::Root, object: done.root.object };
        let of = RetireOf::Root { root: object, last: false };
        let retire = SetCommand::Retire { term, of, objects: vec![used] };
        self.refused(retire, |why| matches!(why, SetRefusal::StillInUse { .. })).await
    }
}

/// Group 0 refuses the command for a reason that `fits`, and its members stay as they are.
pub(super) async fn cluster_refuses(
    node: &Node,
    command: ClusterCommand,
    fits: impl Fn(&ClusterRefusal) -> bool,
) -> Result<()> {
    let group = node.adopted().context("not adopted")?.group;
    let before = node.cluster.state().members;
    match node.cluster.command(&group, &command).await {
        Err(ClusterError::Refused(found)) if fits(&found) => {}
        found => bail!("R12: {command:?}: {found:?}"),
    }
    ensure!(node.cluster.state().members == before, "R12: {command:?} was refused, and members have changed");
    Ok(())
}

/// CLUSTER-C2 to CLUSTER-C4: a disk that is a member's, and starts that rest on an earlier state of a disk.
async fn members(node: Arc<Node>, member: MemberId) -> Result<()> {
    let state = node.cluster.state();
    let known = state.members.get(&member).context("no such member")?.clone();
    let boot = state.boots.get(&member).copied().context("no start of it")?;
    let (disk, nonce, level) = (known.disk, boot.nonce, boot.level);
    let twice = Member { id: MemberId(0), name: Name::new("late")?, ..known };
    let join = ClusterCommand::AddMember { member: twice, replaces: None, request: RequestId(301) };
    cluster_refuses(&node, join, |why| matches!(why, ClusterRefusal::DiskInUse { .. })).await?;
    let start = |boot, nonce, level| ClusterCommand::RegisterBoot { member, disk, boot, nonce, level };
    let restored = start(boot.boot - 1, nonce, level);
    cluster_refuses(&node, restored, |why| matches!(why, ClusterRefusal::BootReplayed { .. })).await?;
    // It may have renewed its life meanwhile.
    let copied =
        |why: &ClusterRefusal| matches!(why, ClusterRefusal::BootCopied { .. } | ClusterRefusal::BootReplayed { .. });
    cluster_refuses(&node, start(boot.boot, nonce ^ 1, level), copied).await?;
    let too_old = start(boot.boot + 1, nonce, 0);
    cluster_refuses(&node, too_old, |why| matches!(why, ClusterRefusal::TooOld { .. })).await
}

/// DELETE-D2 and DELETE-D3: asked for twice, and with the steps behind it in the same breath, before any gateway has
/// ended the group.
async fn deletion(node: Arc<Node>, set: SetId) -> Result<()> {
    let group = node.adopted().context("not adopted")?.group;
    let delete = ClusterCommand::DeleteSet { set, name: Name::new(LATE_SET)?, request: RequestId(401) };
    let forget = ClusterCommand::ForgetSet { set, store_left: false };
    let emptied = ClusterCommand::SetEmptied { set, ended: BTreeSet::new() };
    let cluster = &node.cluster;
    let (first, again, forgotten, gone) = futures_util::join!(
        cluster.command(&group, &delete),
        cluster.command(&group, &delete),
        cluster.command(&group, &forget),
        cluster.command(&group, &emptied),
    );
    for answer in [first, again] {
        ensure!(matches!(answer, Ok(ClusterAnswer::SetDeleting { .. })), "R12: {delete:?}: {answer:?}");
    }
    let refused = matches!(forgotten, Err(ClusterError::Refused(ClusterRefusal::SetNotFenced { .. })));
    ensure!(refused, "DELETE-D2: the key is forgotten too early: {forgotten:?}");
    let refused = matches!(gone, Err(ClusterError::Refused(ClusterRefusal::KeyNotForgotten { .. })));
    ensure!(refused, "DELETE-D3: the store is said to be empty too early: {gone:?}");
    Ok(())
}

impl World {
    /// See the module.
    pub(super) fn late_commands(&mut self) -> Result<()> {
        self.until(60_000, "members settled", |w| w.members_missing().is_none())?;
        self.until(60_000, "a leader", |w| w.leader().is_some())?;
        // Until the end: a client would take the set.
        let clients = std::mem::take(&mut self.clients);
        let at = self.leader().context("no leader")?;
        let set = self.set(at).context("no set")?;
        let proposer = Proposer(set.clone());
        let door = AdminDoor::new(self.node(at).context("no node")?);
        let course = async move {
            let lease = proposer.leases().await?;
            proposer.writes(lease.epoch).await?;
            proposer.done(&SetCommand::Release { epoch: lease.epoch, token: None }).await?;
            proposer.volumes().await?;
            proposer.abandoned_change(door).await
        };
        self.call(at, 60_000, course)??;
        self.note("late commands of leases, writes and volumes are refused, and a volume waits for its change");
        set.head.want_checkpoint();
        self.until(60_000, "a checkpoint of everything", |_| {
            set.host.with(|m| {
                let state = m.state();
                state.checkpoint.is_some() && state.begin.is_none() && m.sealed().is_none() && m.data_bytes() == 0
            })
        })?;
        let proposer = Proposer(set);
        self.call(at, 60_000, async move { proposer.checkpoints().await })??;
        self.note("late commands of checkpoints and collection are refused");
        self.late_commands_of_the_cluster()?;
        self.clients = clients;
        self.busy = true;
        self.works("writes and reads after all late commands")?;
        self.all_in_the_store()
    }

    fn late_commands_of_the_cluster(&mut self) -> Result<()> {
        let at = self.leader_of(GroupId::CLUSTER).context("no leader of group 0")?;
        let node = self.node(at).context("no node")?;
        let member = MemberId(self.places[at].context("a member")?);
        self.call(at, 60_000, members(node.clone(), member))??;
        let store = node.cluster.state().sets.values().next().map(|set| set.store_url.clone()).context("no set")?;
        let request_id = holdfast_api::hex128(7100);
        let create = v1::CreateSetRequest { name: LATE_SET.into(), store, request_id, policy: None };
        let door = AdminDoor::new(node.clone());
        let made = self.call(at, 60_000, async move { door.create_set(tonic::Request::new(create)).await })??;
        let id = GroupId(made.into_inner().set.context("no set was made")?.id);
        self.call(at, 60_000, deletion(node, id))??;
        self.note("late commands of group 0 are refused");
        self.until(60_000, "the deleted set is gone", |w| {
            let state = w.cluster();
            state.is_some_and(|state| state.was_deleted(id) && !state.deletions.under_way.contains_key(&id))
        })
    }
}
