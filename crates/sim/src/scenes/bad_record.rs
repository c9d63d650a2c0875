//! Scene: a record of group 0 in an old file of a running gateway's journal rots. The journal moves on, and has to
//! carry that record forward before it drops the file: it must not carry what it cannot read, so the file stays, and
//! the gateway says so. Its next start finds the damage, and the group is healed (R9).

use crate::host::name;
use crate::rng::Rng;
use crate::world::{MS, World};
use anyhow::{Context, Result, ensure};
use holdfast_types::GroupId;
use std::collections::BTreeMap;

/// At the beginning of each journal file (docs/formats.md).
const FILE_HEADER_BYTES: usize = 4096;
/// Head of a record with one chunk of payload, of which the kind 1 is an entry (docs/formats.md).
const RECORD_HEAD_BYTES: usize = 68;
const ENTRY: u8 = 1;
/// The newest files stay as they are.
const NEW_FILES: usize = 3;
/// Most entries that group 0 has since its last state snapshot: the next one, after 256, is not near, and the record is
/// needed until then.
const ENTRIES_MAX: u64 = 100;
/// Interval between two searches.
const LOOK_EVERY: u64 = 200 * MS;

/// Group 0's entries in a journal file: index and place. A record has its own offset.
fn entries_of_group_0(bytes: &[u8]) -> Vec<(u64, usize)> {
    let number = |head: &[u8], at: usize| head[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let end = bytes.len().saturating_sub(RECORD_HEAD_BYTES);
    let is_one = |at: &usize| {
        let head = &bytes[*at..*at + RECORD_HEAD_BYTES];
        head[4] == ENTRY
            && head[6..8] == [1, 0]
            && number(head, 8) == GroupId::CLUSTER.0
            && number(head, 40) == *at as u64
    };
    let found = (FILE_HEADER_BYTES..end).step_by(8).filter(is_one);
    found.map(|at| (number(&bytes[at..], 24), at)).collect()
}

impl World {
    /// See the module.
    pub(super) fn bad_record(&mut self) -> Result<()> {
        let mut rng = Rng::new(self.seed, 18);
        self.busy = true;
        self.works("the first writes")?;
        self.until(180_000, "every member whole", |w| w.is_whole())?;
        let members: Vec<usize> = (0..self.hosts.len()).filter(|host| self.places[*host].is_some()).collect();
        let host = rng.pick(&members);
        self.lose_store(0);
        self.until(120_000, "a record of group 0 in an old file", |w| {
            w.now.is_multiple_of(LOOK_EVERY) && w.old_record_of_group_0(host).is_some()
        })?;
        let (file, at) = self.old_record_of_group_0(host).context("the record has moved")?;
        self.hosts[host].disk.damage(&file, |bytes| bytes[at + RECORD_HEAD_BYTES] ^= 1);
        self.note(format!("a record of group 0 in {file} of {} rots while it runs", name(host)));
        self.calm_stores();
        self.until(120_000, "the file is kept, and its gateway says so", |w| w.journal_is_blocked(host))?;
        self.works("writes and reads with a bad record")?;
        ensure!(self.journal_is_blocked(host), "R9: the file of a bad record is freed");
        let (now, rtt) = (self.now, self.rtt_ms);
        self.hosts[host].kill(now);
        self.hosts[host].start(now, rtt)?;
        self.until(60_000, "the damage is found", |w| w.heals(host))?;
        self.until(180_000, "every member whole again", |w| w.is_whole())?;
        self.works("writes and reads after it")?;
        self.all_in_the_store()?;
        self.power_and_read_back()
    }

    fn journal_is_blocked(&self, host: usize) -> bool {
        let usage = self.node(host).and_then(|node| node.adopted()).map(|adopted| adopted.raft.log().usage());
        usage.is_some_and(|usage| usage.blocked.is_some())
    }

    /// An entry of group 0 that is still needed, and of which the only record is in an old file: its name, and where.
    fn old_record_of_group_0(&self, host: usize) -> Option<(String, usize)> {
        let log = self.node(host)?.adopted()?.raft.log().group(GroupId::CLUSTER).state();
        let disk = &self.hosts[host].disk;
        let names = disk.names();
        // The last record of an index counts.
        let mut last = BTreeMap::new();
        for (number, name) in names.iter().enumerate() {
            for (index, at) in entries_of_group_0(&disk.contents(name)?) {
                last.insert(index, (number, at));
            }
        }
        let (first, newest) = (log.first?.0, log.last?.index.0);
        if newest - first > ENTRIES_MAX {
            return None;
        }
        let (number, at) = last.range(first..).map(|(_, place)| *place).min()?;
        (number + NEW_FILES < names.len()).then(|| (names[number].clone(), at))
    }
}
