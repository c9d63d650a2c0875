//! Which voter of a set should lead it: the one nearest to the set's owner, or to its home if nobody knows where the
//! owner stands (ADR 0055). The set's leader asks this again and again. Pure: the same view gives the same choice.
//!
//! FOLLOW-F1  Leadership goes only to a voter that is strictly nearer, may serve, answers, and has nearly all entries.
//!     So for one place it is passed on at most three times (to the region, the zone, the host), and never back.
//! FOLLOW-F2  Not before a leadership has lasted for [`Rules::calm`], whatever began it: a move, a failover, an
//!     election. So there is at most one move in that time, also if the owner moves all the time or the voters flap.
//! FOLLOW-F3  Not while something else is under way that a move would break ([`Busy`]). A set that is being deleted is
//!     not asked about.
//! FOLLOW-F4  Of all sets of the cluster at most [`TURNS_MAX`] move in the time of a [`TURN`]: the leader of group 0
//!     gives turns ([`Turns`]). Without one nothing moves. It gives none for one turn after its election.

use holdfast_types::{Locality, MemberId, SetId};
use std::collections::BTreeMap;
use std::time::Duration;

/// The place must have been the same for so long: an owner that comes and goes moves nothing.
pub const STEADY: Duration = Duration::from_secs(3);

/// A checkpoint under way is waited for until the place has been the same for so many times [`Rules::calm`]: a set that
/// is written to all the time has one all the time.
const CHECKPOINT_CALMS: u32 = 2;

/// Most leaderships that are on the way to a nearer voter at the same time, of all sets.
pub const TURNS_MAX: usize = 4;

/// How long a turn counts. A move takes some round trips and an election; one that hangs keeps no other set waiting.
pub const TURN: Duration = Duration::from_secs(5);

/// The turns that a leader of group 0 has given (FOLLOW-F4). Times are since its leadership began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turns {
    given: BTreeMap<SetId, Duration>,
}

impl Turns {
    /// Whether leadership of `set` may move now. One that has a turn keeps it, to its end.
    pub fn ask(&mut self, set: SetId, now: Duration) -> bool {
        self.given.retain(|_, at| now.saturating_sub(*at) < TURN);
        if self.given.contains_key(&set) {
            return true;
        }
        // Those that an earlier leader gave are not known here.
        let free = now >= TURN && self.given.len() < TURNS_MAX;
        if free {
            self.given.insert(set, now);
        }
        free
    }
}

/// How near a voter is to a place, the farthest first. What the place does not name does not count: then all voters of
/// its region, or of its zone, are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Nearness {
    /// Another region.
    Elsewhere,
    /// The same region.
    Region,
    /// The same zone of it.
    Zone,
    /// The same machine.
    Host,
}

impl Nearness {
    /// Of a voter at `at` to `place`.
    pub fn of(at: &Locality, place: &Locality) -> Self {
        if at.region != place.region {
            return Self::Elsewhere;
        }
        let zone = at.zone == place.zone;
        match (&place.host, &place.zone) {
            (Some(_), _) if zone && at.host == place.host => Self::Host,
            (_, Some(_)) if zone => Self::Zone,
            _ => Self::Region,
        }
    }
}

/// A voter as the leader sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Voter {
    /// The member.
    pub id: MemberId,
    /// Where it stands.
    pub locality: Locality,
    /// It may serve the set: no witness, not drained, not leaving, and the set is to stay on it.
    pub serves: bool,
    /// It answered a moment ago and has nearly all entries.
    pub close: bool,
}

/// What a move would break. The text is for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Busy {
    /// The group gets other members.
    #[error("its voters are being changed")]
    Members,
    /// Another move has begun.
    #[error("its clients are being moved already")]
    Moving,
    /// A rollback holds grants back.
    #[error("it is being rolled back")]
    Rollback,
    /// A plain export never continues elsewhere: its client would lose the device.
    #[error("a plain export is in use, which cannot move")]
    Plain,
    /// There is an owner, and it is not served here: it may be on its way.
    #[error("its owner is not connected to this gateway")]
    OwnerAway,
    /// A checkpoint would be begun again by the new leader.
    #[error("a checkpoint is under way")]
    Checkpoint,
}

/// A set as its leader sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The leader.
    pub me: MemberId,
    /// All voters, the leader too.
    pub voters: Vec<Voter>,
    /// Where the set is to be served: at its owner, else at home.
    pub place: Option<Locality>,
    /// How long this place has been the same.
    pub steady: Duration,
    /// How long this leadership has lasted.
    pub led: Duration,
    /// What is under way.
    pub busy: Option<Busy>,
}

/// Limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// A leadership lasts at least so long. `None`: leadership never follows.
    pub calm: Option<Duration>,
}

/// The decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// This voter is to lead.
    HandOver(MemberId),
    /// No move now.
    Stay(Stay),
}

/// Why leadership stays. The text is for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stay {
    /// By the settings.
    #[error("leadership does not follow owners here")]
    Off,
    /// Neither the owner's place nor a home is known.
    #[error("the place of its owner is unknown, and it has no home region")]
    NoPlace,
    /// The leader should serve nothing: `members` hands over (MEMBER-M3).
    #[error("this gateway is to serve nothing")]
    Aside,
    /// No voter that could lead is nearer.
    #[error("no voter that could lead is nearer")]
    Nearest,
    /// FOLLOW-F2.
    #[error("this gateway became the leader a short while ago")]
    Young,
    /// The place is not steady.
    #[error("its owner has been there only a short while")]
    Fresh,
    /// FOLLOW-F3.
    #[error("{0}")]
    Busy(Busy),
}

/// What the leader should do now.
pub fn decide(view: &View, rules: &Rules) -> Choice {
    let Some(calm) = rules.calm else { return Choice::Stay(Stay::Off) };
    let Some(place) = &view.place else { return Choice::Stay(Stay::NoPlace) };
    let Some(me) = view.voters.iter().find(|voter| voter.id == view.me && voter.serves) else {
        return Choice::Stay(Stay::Aside);
    };
    let Some((nearest, voter)) = best(view, place) else { return Choice::Stay(Stay::Nearest) };
    if nearest <= Nearness::of(&me.locality, place) {
        return Choice::Stay(Stay::Nearest);
    }
    if view.led < calm {
        holdfast_reached::reached!("following: a nearer voter waits while the leadership is young");
        return Choice::Stay(Stay::Young);
    }
    if view.steady < STEADY {
        return Choice::Stay(Stay::Fresh);
    }
    match view.busy {
        Some(Busy::Checkpoint) if view.steady >= calm * CHECKPOINT_CALMS => {}
        Some(busy) => return Choice::Stay(Stay::Busy(busy)),
        None => {}
    }
    holdfast_reached::reached!("following: leadership goes to a nearer voter");
    Choice::HandOver(voter)
}

/// The other voter that could lead now and is nearest, the lowest id of several.
fn best(view: &View, place: &Locality) -> Option<(Nearness, MemberId)> {
    let able = view.voters.iter().filter(|voter| voter.id != view.me && voter.serves && voter.close);
    let near = able.map(|voter| (Nearness::of(&voter.locality, place), voter.id));
    near.min_by_key(|(nearness, id)| (std::cmp::Reverse(*nearness), *id))
}

/// The heir of a leadership that has begun to be handed over: nothing is served in its term any more, so if `first`
/// cannot take it, any other that could lead is better than none. `None`: nobody could now; ask again.
pub fn heir(view: &View, first: MemberId) -> Option<MemberId> {
    let able = || view.voters.iter().filter(|voter| voter.id != view.me && voter.serves && voter.close);
    let other = || match &view.place {
        Some(place) => best(view, place).map(|(_, id)| id),
        None => able().map(|voter| voter.id).min(),
    };
    if able().any(|voter| voter.id == first) { Some(first) } else { other() }
}

#[cfg(test)]
mod tests;
