//! A group that is ended on this node for ever, because what it was for is deleted: what is removed of it, in which order, and the note that
//! keeps it from ever starting again (docs/adr/0029-deletion-of-sets.md).
//!
//! ```text
//!   running, or not ──▶ note Ending ──▶ stopped ──▶ note Ending{voters} ──▶ snapshot, quarantine, log dropped ──▶ note Ended{voters}
//!                           │ no start from here on, also after a crash; done again from here
//! ```
//! E1  The note is durable before anything is dropped: an emptied log without one would pass for a healthy new group, and could be given
//!     its first members again by a node that has not heard of the deletion.
//! E2  Whoever asks is told of the end only when nothing of the group is left here, and nothing of it runs.
//! E3  What is told of the voters is what the log said when nothing was appended to it any more: who has agreed to a change of voters, tells of it. The note stays: it costs a few dozen bytes, and a group's number never
//!     comes back.

use crate::node::{NodeError, RaftNode};
use crate::proto::{self, peer_client::PeerClient};
use crate::wire::{MEMBERSHIP_MARK, RaftMembership, membership_from_bytes};
use crate::{quarantine, snapshot_file};
use holdfast_log::GroupLog;
use holdfast_types::{GroupId, LogId, MemberId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

const MAGIC: &[u8; 8] = b"HFENDED1";

/// How long a peer may take to say whether it has ended a group.
const ASK_LIMIT: Duration = Duration::from_secs(2);

/// Entries that one look for a membership reads at once, from the newest on.
const LOOK_BACK: u64 = 64;

/// What a member that has ended a group says of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// The newest entry in its log that named voters, and these: one set, or two while they were being changed. `None`: it had none, or none could be read.
    pub voters: Option<(LogId, Vec<BTreeSet<MemberId>>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Stage {
    Ending,
    Ended,
}

#[derive(Serialize, Deserialize)]
struct Image {
    group: u64,
    stage: Stage,
    voters: Option<(LogId, Vec<BTreeSet<MemberId>>)>,
}

fn path(dir: &Path, group: GroupId) -> PathBuf {
    dir.join(format!("group-{}.ended", group.0))
}

fn save(dir: &Path, group: GroupId, stage: Stage, ended: &Ended) -> io::Result<()> {
    let image = Image { group: group.0, stage, voters: ended.voters.clone() };
    let body = postcard::to_stdvec(&image).map_err(io::Error::other)?;
    let target = path(dir, group);
    let beside = target.with_extension("ended.new");
    let mut file = std::fs::File::create(&beside)?;
    file.write_all(MAGIC)?;
    file.write_all(&crc32c::crc32c(&body).to_le_bytes())?;
    file.write_all(&body)?;
    file.sync_all()?;
    std::fs::rename(&beside, &target)?;
    std::fs::File::open(dir)?.sync_all()
}

/// The note of `group`. One that cannot be read stands for `Ending`: it was written for a reason, and what it asks for may be done again.
fn load(dir: &Path, group: GroupId) -> io::Result<Option<(Stage, Ended)>> {
    let bytes = match std::fs::read(path(dir, group)) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let decoded = bytes.strip_prefix(MAGIC).and_then(|rest| rest.split_first_chunk::<4>()).and_then(|(crc, body)| {
        let whole = u32::from_le_bytes(*crc) == crc32c::crc32c(body);
        postcard::from_bytes::<Image>(body).ok().filter(|image| whole && image.group == group.0)
    });
    Ok(Some(decoded.map_or((Stage::Ending, Ended::default()), |image| (image.stage, Ended { voters: image.voters }))))
}

/// Whether `group` may not be started in `dir` any more.
pub(crate) fn is_over(dir: &Path, group: GroupId) -> io::Result<bool> {
    load(dir, group).map(|note| note.is_some())
}

fn sets_of(membership: &RaftMembership) -> Vec<BTreeSet<MemberId>> {
    let sets = membership.get_joint_config().iter();
    sets.map(|set| set.iter().copied().map(MemberId).collect()).collect()
}

/// The newest membership among the entries of `log`. As openraft counts: from the entry's being there, committed or not.
async fn newest_in(log: &GroupLog) -> io::Result<Option<(LogId, Vec<BTreeSet<MemberId>>)>> {
    let state = log.state();
    let (Some(first), Some(last)) = (state.first, state.last) else { return Ok(None) };
    let mut end = last.index.0 + 1;
    while end > first.0 {
        let begin = end.saturating_sub(LOOK_BACK).max(first.0);
        let mut at = begin;
        let mut found = None;
        while at < end {
            let entries = log.entries(at..end, usize::MAX).await?;
            let Some(newest) = entries.last().map(|entry| entry.id.index.0) else { break };
            for entry in entries.iter().filter(|entry| entry.payload.first() == Some(&MEMBERSHIP_MARK)) {
                let membership = membership_from_bytes(entry.payload.get(1..).unwrap_or_default())
                    .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e.to_string()))?;
                found = Some((entry.id, sets_of(&membership)));
            }
            at = newest + 1;
        }
        if found.is_some() {
            return Ok(found);
        }
        end = begin;
    }
    Ok(None)
}

impl RaftNode {
    /// What this member knows of the voters of a group that does not run here any more, from its log and its snapshot. What cannot be read says nothing.
    async fn voters_of(&self, id: GroupId) -> Ended {
        let in_log = match newest_in(&self.log().group(id)).await {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(group = %id, %error, "the voters of a group that is ended cannot be read here");
                return Ended::default();
            }
        };
        let stored = || snapshot_file::load(self.snapshots_dir(), id, self.sealing()).ok().flatten();
        let in_snapshot = || {
            let stored = stored()?;
            let membership = &stored.meta.last_membership;
            Some((membership.log_id().as_ref().map(crate::wire::id_from_raft)?, sets_of(membership.membership())))
        };
        // Where a crash came between a snapshot and its purge, the log begins before it.
        let all = [in_log, in_snapshot()];
        Ended { voters: all.into_iter().flatten().max_by_key(|(at, _)| *at) }
    }

    /// Ends group `id` here, for ever: it does not run any more, nothing of it is left on this disk but a note, and it is never started again. May be
    /// called again, and must be after an error. The caller MUST have ended what uses the group.
    ///
    /// # Errors
    /// [`NodeError::Io`] when the disk or the journal refuses.
    ///
    /// # Panics
    /// For group 0, which nobody ends.
    pub async fn end_group(&self, id: GroupId) -> Result<(), NodeError> {
        assert!(id != GroupId::CLUSTER, "R11: group 0 is not ended");
        let io = |source| NodeError::Io { group: id, source };
        let dir = self.snapshots_dir().to_path_buf();
        let known = match load(&dir, id).map_err(io)? {
            Some((Stage::Ended, _)) => return Ok(()),
            Some((Stage::Ending, ended)) => ended,
            None => Ended::default(),
        };
        // E1, and first of all: a crash after the stop must not be followed by a start.
        save(&dir, id, Stage::Ending, &known).map_err(io)?;
        self.stop_group(id).await;
        // E3: now that nothing is appended any more. A crash between the next note and the end finds them in the note.
        let ended = if known.voters.is_some() { known } else { self.voters_of(id).await };
        save(&dir, id, Stage::Ending, &ended).map_err(io)?;
        let from = dir.clone();
        let removed = holdfast_log::spawn_blocking(move || {
            snapshot_file::remove(&from, id)?;
            quarantine::clear(&from, id)
        });
        removed.await.map_err(|e| io(io::Error::other(e)))?.map_err(io)?;
        self.forget_healing(id);
        self.log().group(id).drop_group().await.map_err(io)?;
        save(&dir, id, Stage::Ended, &ended).map_err(io)?;
        tracing::info!(group = %id, voters = ?ended.voters, "group ended here, for ever");
        Ok(())
    }

    /// Whether group `id` is ended here, or has begun to be: it is not to be started (E1). What cannot be read says so when it is.
    pub fn is_over(&self, id: GroupId) -> bool {
        is_over(self.snapshots_dir(), id).unwrap_or(false)
    }

    /// What this member says of group `id`, if it has ended it (E2).
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn ended(&self, id: GroupId) -> io::Result<Option<Ended>> {
        let note = load(self.snapshots_dir(), id)?;
        Ok(note.and_then(|(stage, ended)| (stage == Stage::Ended).then_some(ended)))
    }

    /// Asks `peer`, at `addr` (`HOST:PORT`), whether it has ended group `id`; `None` where it has not.
    ///
    /// # Errors
    /// It could not be asked, for people. Nothing is known then.
    pub async fn ask_ended(&self, id: GroupId, peer: MemberId, addr: &str) -> Result<Option<Ended>, String> {
        if peer == self.member() {
            return self.ended(id).map_err(|e| e.to_string());
        }
        let channel = self.channels().get(peer, addr, false).map_err(|e| e.to_string())?;
        let request = self.addressed(proto::EndedRequest {}, id, peer);
        let mut client = PeerClient::new(channel);
        let reply = tokio::time::timeout(ASK_LIMIT, client.ended(request)).await;
        let reply = reply.map_err(|_| format!("no answer within {ASK_LIMIT:?}"))?;
        let reply = reply.map_err(|status| status.message().to_string())?;
        // An older or a cloned life of the member must not be believed (C3).
        self.channels().lives.check(peer, reply.metadata())?;
        let reply = reply.into_inner();
        let set = |set: proto::EndedVoters| set.members.into_iter().map(MemberId).collect();
        let at = reply.at.map(|at| LogId::new(at.term, at.index));
        let voters = at.map(|at| (at, reply.sets.into_iter().map(set).collect()));
        Ok(reply.ended.then_some(Ended { voters }))
    }

    /// The asked side.
    pub(crate) fn ended_reply(&self, id: GroupId) -> io::Result<proto::EndedReply> {
        let Some(ended) = self.ended(id)? else { return Ok(proto::EndedReply::default()) };
        let (at, sets) = ended.voters.unzip();
        let set = |set: BTreeSet<MemberId>| proto::EndedVoters { members: set.into_iter().map(|id| id.0).collect() };
        Ok(proto::EndedReply {
            ended: true,
            at: at.map(|at| proto::LogId { term: at.term.0, index: at.index.0 }),
            sets: sets.unwrap_or_default().into_iter().map(set).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_comes_back_and_a_bad_one_ends_the_group_all_the_same() -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?;
        let group = GroupId(5);
        assert!(!is_over(dir.path(), group)?);
        let voters = vec![BTreeSet::from([MemberId(1), MemberId(2)])];
        let ended = Ended { voters: Some((LogId::new(3, 77), voters)) };
        save(dir.path(), group, Stage::Ended, &ended)?;
        assert_eq!(load(dir.path(), group)?, Some((Stage::Ended, ended)));
        assert!(is_over(dir.path(), group)? && !is_over(dir.path(), GroupId(6))?);
        let good = std::fs::read(path(dir.path(), group))?;
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            std::fs::write(path(dir.path(), group), &bad)?;
            let stage = load(dir.path(), group)?.map(|(stage, _)| stage);
            assert_eq!(stage, Some(Stage::Ending), "E1: byte {at} flipped");
            assert!(is_over(dir.path(), group)?);
        }
        Ok(())
    }
}
