//! Places of this gateway's journal that did not read back as they were written (R9): met by a client's read or by a checkpoint, at the leader. Each is
//! looked at again, named in `/healthz`, and brought to an end:
//!
//! ```text
//!   met ─▶ read twice more ─▶ good, or purged meanwhile ──▶ forgotten: it was memory, or the way here
//!                   │
//!                   ├─▶ the disk gives no answer (EIO), or what it gives is not the operation meant ──▶ leadership goes to another gateway: its copy
//!                   │                                          is right, and once its checkpoint has ended the place is purged here too
//!                   └─▶ a bad record ──▶ the same; and where the others are a quorum without this member: the group is quarantined,
//!                                        and the process ends. Its next start is healed from its peers (ADR 0011)
//! ```
//! I/O that failed or was slow ends nothing: there may be nothing wrong with what is on the disk.

use crate::cluster::Cluster;
use crate::server::SetServer;
use holdfast_control::cluster::{MemberRole, Standing};
use holdfast_log::CorruptRecord;
use holdfast_raft::{RaftNode, ReadLogError, ReadPlace};
use holdfast_types::sync::LockExt;
use holdfast_types::{LogIndex, MemberId, Term};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Places that are remembered; a checkpoint's batch has no more. What is beyond is met again.
const PLACES_MAX: usize = 256;

/// Between two reads of one place.
const READ_AGAIN: Duration = Duration::from_millis(100);

/// Between two looks at what is left.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Between two tries to give leadership away, which doubles with each: another gateway may find the same.
const HAND_OVER_AGAIN: Duration = Duration::from_secs(60);
const HAND_OVER_AGAIN_MAX: Duration = Duration::from_secs(3600);

/// A member is taken out only by a leader that has led for so long, in election timeouts: before, it takes one for there that has just ended.
const LED_ELECTIONS: u32 = 2;

/// An operation that is not the one meant is shown for so long after it was last met, unless its place is purged before.
const ODD_SHOWN: Duration = Duration::from_secs(600);

/// Entries that a candidate may be behind.
const LAG_MAX: u64 = 1024;

/// How long another gateway may take to lead, in election timeouts.
const HAND_OVER_ELECTIONS: u32 = 4;

/// Index, offset, length.
type Place = (LogIndex, u32, usize);

#[derive(Default)]
struct Inner {
    /// Met, and not done with. With words: the record is good, and the operation in it is not the one meant; when that was met last.
    places: BTreeMap<Place, Option<(Instant, String)>>,
    /// What a second look found, for people.
    found: Option<String>,
}

/// What was met. Shared by who reads and who looks again.
#[derive(Default)]
pub struct Suspects {
    inner: Mutex<Inner>,
    met: Notify,
}

impl Suspects {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.locked()
    }

    fn insert(&self, places: &[ReadPlace], odd: Option<&str>) {
        {
            let mut inner = self.inner();
            for at in places {
                let place = (at.index, at.offset, at.len);
                if inner.places.len() < PLACES_MAX || inner.places.contains_key(&place) {
                    inner.places.insert(place, odd.map(|why| (Instant::now(), why.to_string())));
                }
            }
        }
        self.met.notify_one();
    }

    /// One of `places` was not read. What was purged meanwhile is none.
    pub fn unread(&self, places: &[ReadPlace], error: &ReadLogError) {
        match error {
            ReadLogError::Purged { .. } | ReadLogError::Missing { .. } => {}
            ReadLogError::Corrupt(_) | ReadLogError::Io(_) | ReadLogError::OutOfBounds { .. } => {
                self.insert(places, None);
            }
        }
    }

    /// The record is good, and does not hold the operation that the index means.
    pub fn odd(&self, place: ReadPlace, why: &str) {
        self.insert(&[place], Some(why));
    }

    /// What is wrong with this gateway's journal, as far as one of the set's readers met it and a second look found the same.
    pub fn trouble(&self) -> Option<String> {
        self.inner().found.clone()
    }
}

/// What a second look at a place found.
enum Found {
    /// It reads well, or is not there any more.
    Done,
    /// No answer, or not the operation meant.
    Unread(String),
    /// Bytes that are not what was written.
    Bad(CorruptRecord),
}

/// Looks again at what the readers of one set met.
pub struct Inspector {
    server: Arc<SetServer>,
    cluster: Arc<Cluster>,
    raft: RaftNode,
    patience: Duration,
    /// When last, and how long not again.
    handed_over: Option<(Instant, Duration)>,
    /// The term that this gateway leads, and since when.
    led: Option<(Term, Instant)>,
    stop: CancellationToken,
}

impl Inspector {
    /// `election_max`: who has been silent for so long takes nothing over.
    pub fn new(
        server: Arc<SetServer>,
        cluster: Arc<Cluster>,
        raft: RaftNode,
        election_max: Duration,
        stop: CancellationToken,
    ) -> Self {
        Self { server, cluster, raft, patience: election_max, handed_over: None, led: None, stop }
    }

    /// Runs until told to stop, or until the process is to end.
    pub async fn run(mut self) {
        let stop = self.stop.clone();
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.inspect() => {}
        }
    }

    async fn inspect(&mut self) {
        let (server, mut leadership) = (self.server.clone(), self.server.group.leadership());
        loop {
            self.note_term();
            tokio::select! {
                () = server.reader.suspects().met.notified() => {}
                changed = leadership.changed() => match changed {
                    Ok(()) => continue,
                    // The group has ended.
                    Err(_) => return,
                },
            }
            self.note_term();
            while let Some(again) = self.look().await {
                tokio::time::sleep(again).await;
                self.note_term();
            }
        }
    }

    fn note_term(&mut self) {
        let term = self.server.group.leading_term();
        if self.led.map(|(led, _)| led) != term {
            self.led = term.map(|term| (term, Instant::now()));
        }
    }

    fn suspects(&self) -> &Suspects {
        self.server.reader.suspects()
    }

    /// One look at all of them; after how long the next, while something is left.
    async fn look(&mut self) -> Option<Duration> {
        let places: Vec<(Place, Option<(Instant, String)>)> =
            self.suspects().inner().places.iter().map(|(place, odd)| (*place, odd.clone())).collect();
        let (mut bad, mut unread) = (None, None);
        for ((index, offset, len), odd) in places {
            match self.look_at(ReadPlace { index, offset, len }, odd).await {
                Found::Done => {
                    self.suspects().inner().places.remove(&(index, offset, len));
                }
                Found::Unread(why) => unread = Some(format!("entry {index}: {why}")),
                Found::Bad(record) => bad = bad.or(Some((index, record))),
            }
        }
        let words = match (&bad, &unread) {
            (None, None) => None,
            (Some((index, record)), _) => Some(format!("entry {index} does not read back: {record}")),
            (None, Some(why)) => Some(why.clone()),
        };
        let words = words.map(|why| format!("set {}: this gateway's journal: {why}", self.server.name));
        let (said, left) = {
            let mut inner = self.suspects().inner();
            (std::mem::replace(&mut inner.found, words.clone()) == words, !inner.places.is_empty())
        };
        if let Some(words) = words {
            if !said {
                metrics::counter!("holdfast_journal_unread_total", "set" => self.server.name.to_string()).increment(1);
                tracing::error!(%words, "R9: a place of the journal does not read back");
            }
            let again = self.bring_to_an_end(bad.map(|(_, record)| record)).await;
            return left.then_some(again);
        }
        left.then_some(LOOK_AGAIN)
    }

    async fn look_at(&self, place: ReadPlace, odd: Option<(Instant, String)>) -> Found {
        let mut found = Found::Done;
        // A transient bad read, such as of memory, is no bad record.
        for again in [true, false] {
            found = match self.server.group.read_log(place.index, place.offset, place.len).await {
                Ok(_) => match &odd {
                    Some((met, why)) if met.elapsed() < ODD_SHOWN => Found::Unread(why.clone()),
                    _ => Found::Done,
                },
                Err(ReadLogError::Purged { .. } | ReadLogError::Missing { .. }) => Found::Done,
                Err(ReadLogError::Corrupt(record)) => Found::Bad(record),
                Err(e @ (ReadLogError::Io(_) | ReadLogError::OutOfBounds { .. })) => Found::Unread(e.to_string()),
            };
            if matches!(found, Found::Done) {
                return found;
            }
            if again {
                tokio::time::sleep(READ_AGAIN).await;
            }
        }
        found
    }

    /// Another gateway leads, where one can; and a bad record takes this member out of the group, where the others are a quorum without it. After how long to
    /// look again.
    async fn bring_to_an_end(&mut self, bad: Option<CorruptRecord>) -> Duration {
        if self.server.leading_ready().is_none() {
            return LOOK_AGAIN;
        }
        // Asked while this member leads: afterwards it does not know who answers. So a bad record keeps leadership here until it can be asked: handed over
        // before, the record would stay, with nobody to say that this member may go.
        if bad.is_some()
            && let Some(wait) = until_long(self.led.map_or(Duration::ZERO, |(_, since)| since.elapsed()), self.patience)
        {
            return wait;
        }
        let bad = bad.filter(|_| self.server.group.may_do_without_me());
        let mut others_lead = true;
        let lately = self.handed_over.is_some_and(|(at, again)| at.elapsed() < again);
        if !lately && let Some(heir) = self.heir() {
            let again = self.handed_over.map_or(HAND_OVER_AGAIN, |(_, again)| (again * 2).min(HAND_OVER_AGAIN_MAX));
            self.handed_over = Some((Instant::now(), again));
            others_lead = self.hand_over(heir).await;
        }
        // Where nobody took over, one that would have been needed may have failed meanwhile: this may be the only copy that is up to date then.
        let still = || self.server.group.leading_term().is_some() && self.server.group.may_do_without_me();
        if let Some(record) = bad.filter(|_| others_lead || still()) {
            self.raft.rotten(self.server.group.id(), record);
        }
        LOOK_AGAIN
    }

    /// Who can serve the set in this gateway's place, at once.
    fn heir(&self) -> Option<MemberId> {
        let (status, state) = (self.server.group.status(), self.cluster.state());
        let last = status.last.map_or(0, |last| last.0);
        let serves = |id: &MemberId| {
            state.members.get(id).is_some_and(|m| m.role == MemberRole::Gateway && m.standing == Standing::Active)
        };
        let fit = status.members.iter().filter(|m| {
            let behind = last.saturating_sub(m.matched.map_or(0, |at| at.0));
            m.voter
                && m.member != self.server.me()
                && m.silent.is_some_and(|silent| silent <= self.patience)
                && behind <= LAG_MAX
                && serves(&m.member)
        });
        fit.max_by_key(|m| m.matched).map(|m| m.member)
    }

    /// True once another one leads.
    async fn hand_over(&self, heir: MemberId) -> bool {
        let group = &self.server.group;
        tracing::warn!(set = %self.server.name, to = %heir, "leadership is handed over: its copy of the journal is another one");
        self.server.stop_serving_for_transfer();
        if let Err(error) = group.transfer_leader(heir).await {
            tracing::warn!(set = %self.server.name, %error, "leadership not handed over");
            return false;
        }
        let (mut leadership, me) = (group.leadership(), self.server.me());
        let taken = leadership.wait_for(|l| l.leader.is_some_and(|leader| leader != me) || l.stopped);
        let taken = tokio::time::timeout(self.patience * HAND_OVER_ELECTIONS, taken).await.is_ok();
        if !taken {
            tracing::warn!(set = %self.server.name, to = %heir, "leadership not taken over in time");
        }
        taken
    }
}

/// After how long a member that has led for `led` has led long enough; `None` where it has.
fn until_long(led: Duration, patience: Duration) -> Option<Duration> {
    let left = (patience * LED_ELECTIONS).saturating_sub(led);
    (!left.is_zero()).then_some(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_leader_waits_before_it_asks_who_is_there() {
        let ms = Duration::from_millis;
        assert_eq!(until_long(ms(0), ms(600)), Some(ms(1200)));
        assert_eq!(until_long(ms(1199), ms(600)), Some(ms(1)));
        assert_eq!(until_long(ms(1200), ms(600)), None);
    }

    fn at(index: u64) -> ReadPlace {
        ReadPlace { index: LogIndex(index), offset: 0, len: 512 }
    }

    #[test]
    fn what_was_purged_is_no_suspect_and_their_number_is_bounded() {
        let suspects = Suspects::default();
        let known = || suspects.inner().places.len();
        suspects.unread(&[at(1)], &ReadLogError::Purged { index: 1, purged: 7 });
        suspects.unread(&[at(1)], &ReadLogError::Missing { index: 1, next: 0 });
        assert_eq!(known(), 0);
        suspects.unread(&[at(1), at(2)], &ReadLogError::Io(std::io::Error::other("EIO")));
        assert_eq!(known(), 2);
        for index in 0..2 * PLACES_MAX as u64 {
            suspects.odd(at(index), "of another volume");
        }
        assert_eq!(known(), PLACES_MAX);
        assert_eq!(suspects.trouble(), None, "nothing is said before it was looked at again");
    }
}
