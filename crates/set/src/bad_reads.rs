//! Handles places of this gateway's journal that do not read back as written (R9), as found by a client's read or a
//! checkpoint at the leader. Each place is read again, reported in `/healthz`, and resolved:
//!
//! ```text
//!   found ─▶ read twice more ─▶ good, or purged meanwhile ──▶ dropped: the error was in memory or in transit
//!                   │
//!                   ├─▶ the disk fails (EIO), or another operation is there ──▶ leadership goes to another gateway: its copy is
//!                   │                                       good, and after its checkpoint the place is purged here too
//!                   └─▶ a bad record ──▶ the same; and if the others are a quorum without this member: the group is
//!                                        quarantined, and the process ends. Its next start is healed from its peers (ADR 0011)
//! ```
//! Failed or slow I/O ends nothing: the data on the disk may be good.

pub use crate::bad_places::BadPlaces;
use crate::bad_places::Place;
use crate::cluster::Cluster;
use crate::server::SetServer;
use futures_util::future::BoxFuture;
use holdfast_control::cluster::{MemberRole, Standing};
use holdfast_control::members::is_close;
use holdfast_log::CorruptRecord;
use holdfast_raft::{RaftNode, ReadLogError, ReadPlace};
use holdfast_types::{MemberId, Term};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Time between two reads of one place.
const READ_AGAIN: Duration = Duration::from_millis(100);

/// Time between two checks of the remaining places.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Time between two attempts to hand over leadership, doubled each time: another gateway may find the same.
const HAND_OVER_AGAIN: Duration = Duration::from_secs(60);
const HAND_OVER_AGAIN_MAX: Duration = Duration::from_secs(3600);

/// Election timeouts that a leader must have led before it may remove a member. Earlier it may still count a member
/// that just failed.
const LED_ELECTIONS: u32 = 2;

/// How long a wrong operation is reported after it was last found, unless its place is purged before.
const ODD_SHOWN: Duration = Duration::from_secs(600);

/// Time for another gateway to become leader, in election timeouts.
const HAND_OVER_ELECTIONS: u32 = 4;

/// Result of the second read of a place.
enum Found {
    /// It is good, or gone.
    Done,
    /// It cannot be read, or holds another operation.
    Unread(String),
    /// Its bytes differ from what was written.
    Bad(CorruptRecord),
}

/// Reads again the places that one set's readers reported.
pub struct Inspector {
    server: Arc<SetServer>,
    cluster: Arc<Cluster>,
    raft: RaftNode,
    patience: Duration,
    /// Time of the last handover, and the pause after it.
    handed_over: Option<(Instant, Duration)>,
    /// The term in which this gateway leads, and its beginning.
    led: Option<(Term, Instant)>,
    stop: CancellationToken,
}

impl Inspector {
    /// `election_max`: a member that was silent for this long is no candidate.
    pub fn new(
        server: Arc<SetServer>,
        cluster: Arc<Cluster>,
        raft: RaftNode,
        election_max: Duration,
        stop: CancellationToken,
    ) -> Self {
        Self { server, cluster, raft, patience: election_max, handed_over: None, led: None, stop }
    }

    /// Runs until stopped, or until the process should end.
    pub fn run(mut self) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let stop = self.stop.clone();
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.inspect() => {}
            }
        })
    }

    async fn inspect(&mut self) {
        let (server, mut leadership) = (self.server.clone(), self.server.group.leadership());
        loop {
            self.note_term();
            tokio::select! {
                () = server.reader.bad_places().met.notified() => {}
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

    fn bad_places(&self) -> &BadPlaces {
        self.server.reader.bad_places()
    }

    /// Checks all places once. Returns the pause until the next check, if any place remains.
    async fn look(&mut self) -> Option<Duration> {
        let places: Vec<(Place, Option<(Instant, String)>)> =
            self.bad_places().inner().places.iter().map(|(place, odd)| (*place, odd.clone())).collect();
        let (mut bad, mut unread) = (None, None);
        for ((index, offset, len), odd) in places {
            match self.look_at(ReadPlace { index, offset, len }, odd).await {
                Found::Done => {
                    self.bad_places().inner().places.remove(&(index, offset, len));
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
            let mut inner = self.bad_places().inner();
            (std::mem::replace(&mut inner.found, words.clone()) == words, !inner.places.is_empty())
        };
        if let Some(words) = words {
            if !said {
                metrics::counter!("holdfast_journal_unread_total", "set" => self.server.name.to_string()).increment(1);
                tracing::error!(%words, "R9: a record of the journal cannot be read back");
            }
            let again = self.bring_to_an_end(bad.map(|(_, record)| record)).await;
            return left.then_some(again);
        }
        left.then_some(LOOK_AGAIN)
    }

    async fn look_at(&self, place: ReadPlace, odd: Option<(Instant, String)>) -> Found {
        let mut found = Found::Done;
        // A transient error, such as in memory, is not a bad record.
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

    /// Hands leadership over if another gateway can take it. For a bad record, also removes this member from the group
    /// if the others are a quorum without it. Returns the pause until the next check.
    async fn bring_to_an_end(&mut self, bad: Option<CorruptRecord>) -> Duration {
        if self.server.leading_ready().is_none() {
            return LOOK_AGAIN;
        }
        // Checked while this member leads: afterwards it does not know who answers. So with a bad record, leadership
        // stays here until this check succeeds: after a handover, no leader could confirm that this member may leave.
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
        // If no member took over, a needed one may have failed meanwhile: then this copy may be the only current one.
        let still = || self.server.group.leading_term().is_some() && self.server.group.may_do_without_me();
        if let Some(record) = bad.filter(|_| others_lead || still()) {
            self.raft.rotten(self.server.group.id(), record);
        }
        LOOK_AGAIN
    }

    /// A member that can take over the set at once.
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
                && is_close(behind, m.lacks_bytes)
                && serves(&m.member)
        });
        fit.max_by_key(|m| m.matched).map(|m| m.member)
    }

    /// Returns true once another member leads.
    async fn hand_over(&self, heir: MemberId) -> bool {
        let group = &self.server.group;
        tracing::warn!(set = %self.server.name, to = %heir, "leadership is handed over to a gateway with another copy of the journal");
        self.server.stop_serving_for_transfer();
        if let Err(error) = group.transfer_leader(heir).await {
            tracing::warn!(set = %self.server.name, %error, "leadership not handed over");
            return false;
        }
        let (mut leadership, me) = (group.leadership(), self.server.me());
        let taken = leadership.wait_for(|l| l.leader.is_some_and(|leader| leader != me) || l.stopped);
        let taken = tokio::time::timeout(self.patience * HAND_OVER_ELECTIONS, taken).await.is_ok();
        if !taken {
            tracing::warn!(set = %self.server.name, to = %heir, "no other gateway took over leadership in time");
        }
        taken
    }
}

/// Time until a member that has led for `led` has led long enough; `None` if it has.
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
}
