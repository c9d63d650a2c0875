//! Serving follows the owner (ADR 0055). Of each set that this gateway leads: notes in the set's state where its owner
//! stands, and hands leadership to a voter that is nearer, by the same planned move as a drain. `control::following`
//! decides.

use super::near::is_near;
use super::{Adopted, Node};
use holdfast_control::cluster::{ClusterState, Member};
use holdfast_control::following::{Busy, Choice, Stay, View, Voter, decide, heir};
use holdfast_raft::{GroupStatus, MemberStatus, TurnGiver};
use holdfast_set::server::SetServer;
use holdfast_types::sync::{LockExt, RwLockExt};
use holdfast_types::{Locality, MemberId, SetId, Term};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Pause between two looks at all sets.
const TURN: Duration = Duration::from_secs(1);

/// Pause of one set between two requests for a turn: perhaps a thousand ask.
const ASK_PAUSE: Duration = Duration::from_secs(3);

/// A begun move is tried again after so many election timeouts without another leader, as in `members`.
const HAND_OVER_ELECTIONS: u32 = 2;

/// What this gateway remembers of one leadership.
struct Led {
    term: Term,
    /// When it was seen first: not before it began.
    since: Instant,
    place: Option<Locality>,
    /// When the place was seen first.
    place_since: Instant,
    said: Option<Stay>,
    /// Not before then a turn is asked for again.
    asks: Instant,
    /// What is being done for the set: one thing at a time.
    job: Option<JoinHandle<()>>,
}

impl Led {
    fn new(term: Term, now: Instant) -> Self {
        Self { term, since: now, place: None, place_since: now, said: None, asks: now, job: None }
    }

    fn is_at_work(&self) -> bool {
        self.job.as_ref().is_some_and(|job| !job.is_finished())
    }
}

/// A set that this gateway leads, as it is now.
struct Sight {
    voters: Vec<Voter>,
    place: Option<Locality>,
    busy: Option<Busy>,
}

/// Says which sets' leaderships may move, while this gateway leads group 0 (FOLLOW-F4).
pub(super) fn turn_giver(node: Weak<Node>) -> TurnGiver {
    Box::new(move |set| {
        let node = node.upgrade()?;
        let group = node.adopted()?.group;
        let term = group.ready_term()?;
        let mut planned = node.planned.locked();
        planned.enter(Some(term));
        Some(planned.gives_turn(set, Instant::now()))
    })
}

/// Follows the owners of the sets that this gateway leads.
pub(super) async fn run(node: Arc<Node>, adopted: Adopted) {
    // A pair has no votes: its seat decides who serves.
    if node.pair().is_some() {
        return;
    }
    let mut all: BTreeMap<SetId, Led> = BTreeMap::new();
    let mut tick = tokio::time::interval(TURN);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = node.stop.cancelled() => return,
            _ = tick.tick() => {}
        }
        let sets: Vec<Arc<SetServer>> = node.sets.reading().values().cloned().collect();
        let mut still = BTreeMap::new();
        for set in sets {
            let Some(term) = set.leads() else { continue };
            let now = Instant::now();
            let before = all.remove(&set.id).filter(|led| led.term == term);
            let mut led = before.unwrap_or_else(|| Led::new(term, now));
            if !led.is_at_work() {
                led.job = work(&node, adopted.member, &set, &mut led, now);
            }
            still.insert(set.id, led);
        }
        // What is left was led here and is not any more.
        all = still;
    }
}

/// The next thing to do for a set, begun.
fn work(node: &Arc<Node>, me: MemberId, set: &Arc<SetServer>, led: &mut Led, now: Instant) -> Option<JoinHandle<()>> {
    if set.has_place_to_note() {
        return Some(tokio::spawn(note_place(set.clone())));
    }
    let Sight { voters, place, busy } = look(node, me, set)?;
    if led.place != place {
        led.place.clone_from(&place);
        led.place_since = now;
    }
    let (steady, lasted) = (now - led.place_since, now - led.since);
    let view = View { me, voters, place, steady, led: lasted, busy };
    match decide(&view, &node.live().placing.following()) {
        Choice::Stay(why) => {
            if led.said != Some(why) {
                tracing::debug!(set = %set.name, %why, "leadership stays");
                led.said = Some(why);
            }
            None
        }
        Choice::HandOver(_) if now < led.asks => None,
        Choice::HandOver(to) => {
            led.asks = now + ASK_PAUSE;
            let place = led.place.clone();
            Some(tokio::spawn(move_in_turn(node.clone(), me, set.clone(), led.term, place, to)))
        }
    }
}

/// Whether a move that was decided on before the set had its turn is still right (FOLLOW-F1, FOLLOW-F3).
fn still_goes(sight: &Sight, place: Option<&Locality>, to: MemberId) -> bool {
    let able = sight.voters.iter().any(|voter| voter.id == to && voter.serves && voter.close);
    able && sight.place.as_ref() == place && matches!(sight.busy, None | Some(Busy::Checkpoint))
}

/// The move, if the leader of group 0 gives the set its turn (FOLLOW-F4), and nothing has come between meanwhile.
async fn move_in_turn(
    node: Arc<Node>,
    me: MemberId,
    set: Arc<SetServer>,
    term: Term,
    place: Option<Locality>,
    to: MemberId,
) {
    let Some(raft) = node.raft() else { return };
    match raft.ask_follow_turn(set.id).await {
        Ok(true) => {}
        Ok(false) => {
            tracing::debug!(set = %set.name, %to, "leadership waits for its turn: other sets are moving");
            return;
        }
        Err(why) => {
            tracing::debug!(set = %set.name, %to, %why, "no turn for leadership to move");
            return;
        }
    }
    let right = |sight: &Sight| still_goes(sight, place.as_ref(), to);
    let Some(sight) = look(&node, me, &set).filter(right) else { return };
    if set.group.leading_term() != Some(term) {
        return;
    }
    let at = sight.place.as_ref().map(Locality::to_string).unwrap_or_default();
    tracing::info!(set = %set.name, %to, %at, "moving leadership to a voter nearer to where the set is used");
    hand_over(node, me, set, term, to).await;
}

async fn note_place(set: Arc<SetServer>) {
    if let Err(error) = set.note_place().await {
        tracing::debug!(set = %set.name, %error, "the owner's place is not noted yet");
    }
}

/// The set as it is now; `None` while group 0 here does not have it, also once it is being deleted.
fn look(node: &Node, me: MemberId, set: &SetServer) -> Option<Sight> {
    let status = set.group.status();
    let patience = node.timing.election_max();
    let (home, voters) = node.cluster.read(|state| {
        let entry = state.sets.get(&set.id)?;
        Some((entry.policy.home.clone(), voters(state, set.id, me, &status, patience)))
    })?;
    let lease = set.lease();
    let at = lease.as_ref().and_then(|lease| set.place_of(lease));
    let busy = busy(set, &status, lease.is_some());
    Some(Sight { voters, place: at.or_else(|| home.map(Locality::of_region)), busy })
}

fn voters(state: &ClusterState, set: SetId, me: MemberId, status: &GroupStatus, patience: Duration) -> Vec<Voter> {
    let has_place = |id: MemberId| state.sets.get(&set).is_some_and(|entry| entry.has_place_for(id));
    let close = |seen: &MemberStatus| {
        let answers = seen.silent.is_some_and(|silent| silent <= patience);
        seen.member == me || answers && is_near(status, seen)
    };
    let voter = |seen: &MemberStatus| {
        let member: &Member = state.members.get(&seen.member)?;
        let serves = member.serves() && has_place(member.id);
        Some(Voter { id: member.id, locality: member.locality.clone(), serves, close: close(seen) })
    };
    status.members.iter().filter(|seen| seen.voter).filter_map(voter).collect()
}

/// What a move would break now.
fn busy(set: &SetServer, status: &GroupStatus, held: bool) -> Option<Busy> {
    let serving = set.serving();
    if set.group.is_changing() || status.next.is_some() {
        return Some(Busy::Members);
    }
    if set.is_held_off() {
        return Some(Busy::Rollback);
    }
    match &serving {
        Some(serving) if serving.draining.is_cancelled() => return Some(Busy::Moving),
        Some(serving) if serving.plain => return Some(Busy::Plain),
        None if held => return Some(Busy::OwnerAway),
        _ => {}
    }
    set.host.with(|machine| machine.state().begin.is_some()).then_some(Busy::Checkpoint)
}

/// The planned move: what has begun is answered, nothing is served in this term any more, leadership goes on. From then
/// on it is tried until another gateway leads, with another heir if the first one cannot take it.
async fn hand_over(node: Arc<Node>, me: MemberId, set: Arc<SetServer>, term: Term, to: MemberId) {
    let begun = Instant::now();
    let left = set.drain(node.timing.election_max()).await;
    // A later leadership of this gateway must not be ended by a move of this one.
    if set.group.leading_term() != Some(term) {
        return;
    }
    set.stop_serving_for_transfer();
    let pause = node.timing.election_max() * HAND_OVER_ELECTIONS;
    let mut next = Some(to);
    loop {
        if let Some(heir) = next
            && let Err(error) = set.group.transfer_leader(heir).await
        {
            tracing::warn!(set = %set.name, to = %heir, %error, "leadership not handed over; trying again");
        }
        let mut leadership = set.group.leadership();
        let taken =
            async { leadership.wait_for(|now| now.stopped || now.leader.is_some_and(|id| id != me)).await.is_ok() };
        tokio::select! {
            () = node.stop.cancelled() => return,
            _ = tokio::time::timeout(pause, taken) => {}
        }
        if set.group.leading_term() != Some(term) {
            break;
        }
        next = look(&node, me, &set).and_then(|Sight { voters, place, .. }| {
            let view =
                View { me, voters, place, steady: Duration::ZERO, led: Duration::ZERO, busy: Some(Busy::Moving) };
            heir(&view, to)
        });
    }
    let (took, leader) = (begun.elapsed(), set.group.leadership().borrow().leader);
    metrics::histogram!("holdfast_follow_pause_seconds").record(took.as_secs_f64());
    tracing::info!(set = %set.name, ?leader, left, ?took, "leadership was handed to a nearer voter");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The leader of group 0 may take seconds to answer: meanwhile the heir was drained, or the owner went elsewhere.
    #[test]
    fn a_move_that_waited_for_its_turn_is_looked_at_again() {
        let at = |text: &str| text.parse::<Locality>().unwrap();
        let (eu, us, to) = (at("region=eu"), at("region=us"), MemberId(2));
        let voter = |id: u64, locality: &Locality| {
            let (id, locality) = (MemberId(id), locality.clone());
            Voter { id, locality, serves: true, close: true }
        };
        let sight = || Sight { voters: vec![voter(1, &us), voter(2, &eu)], place: Some(eu.clone()), busy: None };
        let goes = |sight: Sight| still_goes(&sight, Some(&eu), to);
        assert!(goes(sight()));
        assert!(goes(Sight { busy: Some(Busy::Checkpoint), ..sight() }), "it was long enough");
        assert!(!goes(Sight { busy: Some(Busy::Members), ..sight() }));
        assert!(!goes(Sight { place: Some(us.clone()), ..sight() }), "the owner went");
        assert!(!goes(Sight { voters: vec![voter(1, &us)], ..sight() }), "it votes no more");
        let (mut drained, mut behind) = (sight(), sight());
        drained.voters[1].serves = false;
        behind.voters[1].close = false;
        assert!(!goes(drained) && !goes(behind), "FOLLOW-F1");
    }
}
