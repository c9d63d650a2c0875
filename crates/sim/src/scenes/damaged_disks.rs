//! Scenes: what a gateway has on disk is damaged, one gateway at a time (R9). Seeds flip single bits of journals; here
//! are whole files that are gone, blocks that cannot be read, and damage beside the journal. Each time the gateway has
//! to find it, to leave the groups that are damaged, and to come back as a voter, while clients write; then everything
//! is read, after a power cut of all.

use crate::host::name;
use crate::rng::Rng;
use crate::world::World;
use anyhow::{Context, Result};
use holdfast_api::v1::{self, admin_server::Admin as _};
use holdfast_testkit::SimDisk;
use holdfast_types::{GroupId, MemberId, Name};
use std::fs;

/// At the beginning of each journal file (docs/formats.md).
const FILE_HEADER_BYTES: usize = 4096;
/// Head of a record with one chunk of payload, of which the kind 1 is an entry and 2 a vote (docs/formats.md).
const RECORD_HEAD_BYTES: usize = 68;
const ENTRY: u8 = 1;
const VOTE: u8 = 2;
/// Where a record's head has the number of its group.
const GROUP_AT: usize = 8;
/// Old files of a journal before one is damaged.
const OLD_FILES: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    SnapshotGone,
    SnapshotRotten,
    OldestFileGone,
    FileGone,
    BlockUnreadable,
    HeaderUnreadableOnce,
    VoteRotten,
    RecordHeadRotten,
    JournalGone,
}

const ALL: [Damage; 9] = [
    Damage::SnapshotGone,
    Damage::SnapshotRotten,
    Damage::OldestFileGone,
    Damage::FileGone,
    Damage::BlockUnreadable,
    Damage::HeaderUnreadableOnce,
    Damage::VoteRotten,
    Damage::RecordHeadRotten,
    Damage::JournalGone,
];

impl Damage {
    /// Whether some group is damaged for certain. The oldest file may have nothing that is still needed, a vote may be
    /// followed by a later one, and a read that fails once is made again.
    fn is_found(self) -> bool {
        !matches!(self, Damage::OldestFileGone | Damage::HeaderUnreadableOnce | Damage::VoteRotten)
    }
}

/// Where the last record of a kind lies in a journal file: a record has its own offset.
fn last_record(bytes: &[u8], kind: u8) -> Option<usize> {
    let end = bytes.len().saturating_sub(RECORD_HEAD_BYTES);
    (FILE_HEADER_BYTES..end).step_by(8).rev().find(|at| {
        let head = &bytes[*at..*at + RECORD_HEAD_BYTES];
        head[4] == kind && head[6..8] == [1, 0] && head[40..48] == (*at as u64).to_le_bytes()
    })
}

/// The last record of a kind in these files.
fn last_of(disk: &SimDisk, files: &[String], kind: u8) -> Option<(String, usize)> {
    files.iter().rev().find_map(|name| Some((name.clone(), last_record(&disk.contents(name)?, kind)?)))
}

impl World {
    /// See the module.
    pub(super) fn damaged_disks(&mut self) -> Result<()> {
        let mut rng = Rng::new(self.seed, 10);
        self.busy = true;
        self.works("the first writes")?;
        let mut damages = ALL;
        rng.shuffle(&mut damages);
        for damage in damages {
            let host = self.seasoned_member(&mut rng)?;
            self.damage(host, damage)?;
        }
        // At the end: later damage would have to be healed in the new sets as well.
        let host = self.seasoned_member(&mut rng)?;
        self.damage(host, Damage::FileGone)?;
        self.sets_after_two_losses(host)?;
        self.works("writes and reads after all damage")?;
        self.all_in_the_store()?;
        self.power_and_read_back()?;
        // What was lost may still show in the journals: the next start must not take the new sets for lost.
        self.until(180_000, "the new sets run after it", |w| w.all_run("unknown") && w.all_run("younger"))
    }

    /// A gateway is killed between the steps of its readmission (QUARANTINE-Q3): when its state snapshot is removed and
    /// its log is not dropped yet, and when that is dropped and the note does not say so yet.
    pub(super) fn healing_cut_short(&mut self) -> Result<()> {
        let mut rng = Rng::new(self.seed, 10);
        self.busy = true;
        self.works("the first writes")?;
        for is_dropped in [false, true] {
            let host = self.seasoned_member(&mut rng)?;
            let set = self.set(host).context("no set")?.id;
            let snapshot = self.hosts[host].state_snapshot(set);
            let (now, rtt) = (self.now, self.rtt_ms);
            self.hosts[host].kill(now);
            rot(&snapshot)?;
            // The disk takes no time: its turn is the one below, and none before.
            let delay = std::mem::take(&mut self.hosts[host].disk_delay);
            self.hosts[host].start(now, rtt)?;
            self.until(60_000, "it is out of the group, and its snapshot is removed", |_| !snapshot.exists())?;
            let now = self.now;
            if is_dropped {
                self.hosts[host].slice_and_stop_after(now, 0);
            }
            self.hosts[host].kill(now);
            self.hosts[host].disk_delay = delay;
            self.hosts[host].start(now, rtt)?;
            self.note(format!("{} is killed between two steps; its log was dropped: {is_dropped}", name(host)));
            self.until(180_000, "every member whole again", |w| w.is_whole())?;
        }
        self.works("writes and reads after both")?;
        self.all_in_the_store()?;
        self.power_and_read_back()
    }

    /// A member, once all are whole and it has a state snapshot and old journal files, which it keeps while the store
    /// is away.
    pub(super) fn seasoned_member(&mut self, rng: &mut Rng) -> Result<usize> {
        self.until(180_000, "every member whole", |w| w.is_whole())?;
        let members: Vec<usize> = (0..self.hosts.len()).filter(|host| self.places[*host].is_some()).collect();
        let host = rng.pick(&members);
        self.seasoned(host)?;
        Ok(host)
    }

    /// Waits until `host` has a state snapshot and old journal files.
    fn seasoned(&mut self, host: usize) -> Result<()> {
        self.until(120_000, "a state snapshot, and a purge up to it", |w| w.has_purged(host))?;
        self.lose_store(0);
        self.until(120_000, "old journal files", |w| w.old_files(host).len() >= OLD_FILES)?;
        self.calm_stores();
        self.until(60_000, "every member whole", |w| w.is_whole())
    }

    fn has_purged(&self, host: usize) -> bool {
        let Some(id) = self.set(host).map(|set| set.id) else { return false };
        let log = self.node(host).and_then(|node| node.adopted()).map(|adopted| adopted.raft.log().group(id));
        self.hosts[host].state_snapshot(id).exists() && log.is_some_and(|log| log.state().purged.is_some())
    }

    /// The journal's files with batches, but for the newest: what no later batch confirms passes for a torn tail.
    fn old_files(&self, host: usize) -> Vec<String> {
        let disk = &self.hosts[host].disk;
        let written = |bytes: Vec<u8>| bytes.iter().skip(FILE_HEADER_BYTES).any(|byte| *byte != 0);
        let mut names: Vec<String> =
            disk.names().into_iter().filter(|name| disk.contents(name).is_some_and(written)).collect();
        names.pop();
        names
    }

    fn damage(&mut self, host: usize, damage: Damage) -> Result<()> {
        self.hurt(host, damage)?;
        self.start_hurt(host, damage)?;
        self.until(180_000, "every member whole again", |w| w.is_whole())?;
        self.liar = None;
        Ok(())
    }

    /// The gateway is killed, and something on its disk is damaged.
    fn hurt(&mut self, host: usize, damage: Damage) -> Result<()> {
        let set = self.set(host).context("no set")?.id;
        let now = self.now;
        self.hosts[host].kill(now);
        let (old, snapshot) = (self.old_files(host), self.hosts[host].state_snapshot(set));
        let disk = &self.hosts[host].disk;
        let oldest = old.first().context("no old file")?;
        match damage {
            Damage::SnapshotGone => fs::remove_file(&snapshot)?,
            Damage::SnapshotRotten => rot(&snapshot)?,
            Damage::OldestFileGone => disk.lose(oldest),
            // One with a file on either side.
            Damage::FileGone => disk.lose(old.get(1).context("one old file only")?),
            Damage::BlockUnreadable => disk.make_unreadable(oldest, FILE_HEADER_BYTES as u64),
            Damage::HeaderUnreadableOnce => disk.fail_read_after(0),
            // Of each group only its state snapshot shows that there was a log.
            Damage::JournalGone => disk.names().iter().for_each(|name| disk.lose(name)),
            Damage::VoteRotten => {
                if let Some((name, at)) = last_of(disk, &old, VOTE) {
                    disk.damage(&name, |bytes| bytes[at + RECORD_HEAD_BYTES] ^= 1);
                }
            }
            // Where the next record begins is unknown then, and so is whose the rest of the batch was.
            Damage::RecordHeadRotten => {
                let (name, at) = last_of(disk, &old, ENTRY).context("no entry in the old files")?;
                disk.damage(&name, |bytes| bytes[at + GROUP_AT] ^= 1);
            }
        }
        self.note(format!("{damage:?} at {}", name(host)));
        Ok(())
    }

    /// It starts again, and the damage is found where it has to be.
    fn start_hurt(&mut self, host: usize, damage: Damage) -> Result<()> {
        // No file is before the oldest one, so nothing in the journal shows that it was there. If it had the newest
        // entry of a group, the leader says so (REVERSION-V1). The same goes for a group without a state snapshot whose
        // whole log is gone.
        let untold = matches!(damage, Damage::OldestFileGone | Damage::JournalGone);
        (self.liar, self.told) = (untold.then_some(host), 0);
        let (now, rtt) = (self.now, self.rtt_ms);
        self.hosts[host].start(now, rtt)?;
        if damage.is_found() {
            self.until(60_000, "the damage is found", |w| w.heals(host))?;
        }
        Ok(())
    }

    pub(super) fn heals(&self, host: usize) -> bool {
        self.node(host).and_then(|node| node.raft()).is_some_and(|raft| !raft.healing().is_empty())
    }

    /// The journal at `host` has lost a file, as its present process has found. So has that of another gateway, by the
    /// end. Of a group that it does not know, either may have lost a vote (R9): of one that was created while the
    /// gateway was down, and not of one that is younger than its process (QUARANTINE-Q5). Without that difference, two
    /// of three could not begin a new set.
    fn sets_after_two_losses(&mut self, host: usize) -> Result<()> {
        let other = (0..self.hosts.len()).find(|other| *other != host && self.places[*other].is_some());
        let other = other.context("no other member")?;
        self.until(60_000, "the start is registered", |w| w.is_registered(host))?;
        self.seasoned(other)?;
        self.hurt(other, Damage::FileGone)?;
        let unknown = self.new_set("unknown", 7200)?;
        self.start_hurt(other, Damage::FileGone)?;
        self.until(60_000, "the unknown group is healed there first", |w| w.heals_group(other, unknown))?;
        self.until(180_000, "every member whole again", |w| w.is_whole() && w.all_run("unknown"))?;
        self.until(60_000, "the other start is registered", |w| w.is_registered(other))?;
        let younger = self.new_set("younger", 7201)?;
        let mut heals = false;
        self.until(60_000, "two gateways that have lost a file begin a new set", |w| {
            heals |= [host, other].into_iter().any(|host| w.heals_group(host, younger));
            w.all_run("younger") && w.leader_of(younger).is_some()
        })?;
        anyhow::ensure!(!heals, "QUARANTINE-Q5: the group of a younger set is healed, which a quorum is needed for");
        Ok(())
    }

    /// A new set beside the checked one, in the same store.
    fn new_set(&mut self, name: &str, request: u128) -> Result<GroupId> {
        let store = self.cluster().and_then(|state| state.sets.into_values().next()).map(|set| set.store_url);
        let (store, request_id) = (store.context("no set")?, holdfast_api::hex128(request));
        let create = v1::CreateSetRequest { name: name.into(), store, request_id, policy: None };
        self.anywhere("another set", create, |door, request| async move { door.create_set(request).await })?;
        self.note(format!("set {name} is there"));
        let named = Name::new(name)?;
        let id = |w: &World| w.cluster()?.set_named(&named).map(|(id, _)| id);
        self.until(60_000, "the new set is known", |w| id(w).is_some())?;
        id(self).context("no such set")
    }

    /// Whether the last start or renewal of this process is registered, as far as it knows itself.
    fn is_registered(&self, host: usize) -> bool {
        let (Some(node), Some(member)) = (self.node(host), self.places[host]) else { return false };
        let Some(life) = node.raft().map(|raft| raft.lineage().life) else { return false };
        let last = node.cluster.state().boots.get(&MemberId(member)).copied();
        last.is_some_and(|last| (last.boot, last.nonce) == (life.boot, life.nonce))
    }

    fn heals_group(&self, host: usize, group: GroupId) -> bool {
        let healing = self.node(host).and_then(|node| node.raft()).map(|raft| raft.healing());
        healing.is_some_and(|healing| healing.iter().any(|healing| healing.group == group))
    }

    /// Whether the set of this name runs at every member.
    fn all_run(&self, set: &str) -> bool {
        let Ok(set) = Name::new(set) else { return false };
        let mut members = (0..self.hosts.len()).filter(|host| self.places[*host].is_some());
        members.all(|host| self.node(host).is_some_and(|node| node.set(&set).is_some()))
    }
}

/// Flips a bit in the middle of a file.
pub(super) fn rot(file: &std::path::Path) -> Result<()> {
    let mut bytes = fs::read(file)?;
    let at = bytes.len() / 2;
    *bytes.get_mut(at).context("an empty file")? ^= 1;
    fs::write(file, bytes)?;
    Ok(())
}
