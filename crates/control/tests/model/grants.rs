//! Model of one set's lease over a log with several terms, without time: who may write, and the effect of each entry.
//!
//! Raft is assumed to keep its promises: committed entries have one order, terms do not decrease, and only the leader
//! of the last term appends. All else may happen: every request and write ever sent may arrive at any later moment, any
//! number of times, or never; a gateway learns of applied entries and of the loss of leadership arbitrarily late.

use crate::granted::{Granted, opens};
use crate::guards::Guard;
use crate::marks::Marks;
use holdfast_control::serve::{GateEvent, ServeGate, Timing, WhyNot};
use holdfast_control::set::{Admit, Judged, SetAnswer, SetCommand, SetState};
use holdfast_types::{Epoch, LogId, LogIndex, MemberId, MonoTime, Owner, RequestId, Term, Token, WriteSeq};
use stateright::{Model, Property};
use std::time::Duration;

/// How far histories go.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Entries in the log.
    pub entries: u64,
    /// Terms.
    pub terms: u64,
    /// Requests for the lease, copies not counted.
    pub requests: usize,
    /// Writes accepted by gateways, copies not counted.
    pub writes: usize,
}

impl Bounds {
    pub const SMALL: Self = Self { entries: 5, terms: 3, requests: 3, writes: 2 };
    /// Fewer states than this within `SMALL` mean that the model has shrunk.
    pub const SMALL_STATES: usize = 800_000;
    pub const WIDE: Self = Self { entries: 7, terms: 3, requests: 4, writes: 3 };
}

/// Two gateways serve in turn, and two owners want the set.
const GATEWAYS: usize = 2;
const OWNERS: [&str; 2] = ["a", "b"];
/// A recovered cluster's epochs are not its log indexes.
const BASE: u64 = 100;
/// Time stands still here.
const NOW: MonoTime = MonoTime(1_000_000_000);

/// Marks that some history must reach.
const CONTINUED: &str = "a write lands in an epoch that was continued";
const FENCED: &str = "a write of an old epoch is refused";
const AGAIN: &str = "a copy of a write is answered without effect";
const EXPIRED: &str = "a judged lease is granted to the other owner";
const LATE: &str = "a late copy of a granted request is refused";

/// A request for the lease. Copies carry the same id; the proposer draws the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    Acquire {
        owner: u8,
        how: How,
    },
    /// With the token of the grant of this place in the list of grants.
    Continue {
        owner: u8,
        grant: u8,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum How {
    Politely,
    Forced,
    Judged(Judged),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// This gateway is elected, in a new term.
    Elect(u8),
    /// It learns that it leads no longer.
    Lose(u8),
    /// It learns of the next applied entry.
    Hear(u8),
    /// It accepts a write, and numbers it.
    Accept(u8),
    /// It proposes a write with unknown outcome again.
    Retry(u8),
    /// A write is applied: the first copy, or another.
    Land(u8),
    /// A new request is applied.
    Ask(Request),
    /// A copy of a request is applied.
    Copy(u8),
    /// The owner of this grant shows itself alive.
    Renew(u8),
    /// Releases this grant: by the gateway, or with the token of that grant.
    Release(u8, Option<u8>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Gateway {
    gate: ServeGate,
    /// Applied entries that it knows.
    heard: usize,
    /// The last grant that it knows, if for this gateway.
    granted: Option<Epoch>,
    leads: Option<u64>,
    /// Leadership and epoch for which it numbers writes, and the next number.
    sequencer: Option<(u64, Epoch, u64)>,
}

/// A write entry and its author.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Write {
    gateway: u8,
    term: u64,
    epoch: Epoch,
    seq: WriteSeq,
    /// Its data; a retry writes the same.
    data: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    set: SetState,
    term: u64,
    index: u64,
    leader: u8,
    gateways: Vec<Gateway>,
    applied_facts: Vec<GateEvent>,
    requests: Vec<Request>,
    writes: Vec<Write>,
    /// States that a judge may have seen, at any time.
    seen: Vec<Judged>,
    grants: Vec<Granted>,
    landed: Vec<Write>,
    broken: Option<&'static str>,
}

pub struct Grants {
    bounds: Bounds,
    without: Option<Guard>,
    pub marks: Marks,
}

impl Grants {
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, without: None, marks: Marks::new(&[CONTINUED, FENCED, AGAIN, EXPIRED, LATE]) }
    }

    pub fn without(bounds: Bounds, guard: Guard) -> Self {
        Self { without: Some(guard), ..Self::new(bounds) }
    }

    fn lacks(&self, guard: Guard) -> bool {
        self.without == Some(guard)
    }

    /// The epoch that gateway `g` serves.
    fn serving(&self, gateway: &Gateway) -> Option<Epoch> {
        match gateway.gate.may_write(NOW) {
            Ok(epoch) => Some(epoch),
            Err(WhyNot::NoGrant { .. }) if self.lacks(Guard::ServesGrantOfOwnTerm) => gateway.granted,
            Err(_) => None,
        }
    }

    fn next_id(&self, world: &mut World) -> LogId {
        world.index += 1;
        LogId::new(world.term, world.index)
    }

    /// `SetState::apply`, or its result without the guard.
    fn apply(&self, set: &mut SetState, id: LogId, mut cmd: SetCommand) -> SetAnswer {
        let before = set.clone();
        if self.lacks(Guard::RequestsRemembered) {
            set.granted_requests.clear();
        }
        match (&mut cmd, &mut set.lease) {
            (SetCommand::Acquire { judged_expired: Some(judged), .. }, Some(lease))
                if self.lacks(Guard::JudgementCompared) =>
            {
                *judged = Judged { epoch: lease.epoch, renewed: lease.renewed };
            }
            (SetCommand::Acquire { force, .. }, Some(_)) if self.lacks(Guard::HolderKept) => *force = true,
            (SetCommand::Acquire { request, .. } | SetCommand::Continue { request, .. }, Some(lease))
                if self.lacks(Guard::RequestRecognised) && lease.request == *request =>
            {
                lease.request = RequestId(u128::MAX);
                set.granted_requests.clear();
            }
            (SetCommand::Continue { token, .. }, Some(lease)) if self.lacks(Guard::TokenCompared) => {
                *token = lease.token;
            }
            (SetCommand::Release { token, .. }, Some(_)) if self.lacks(Guard::ReleaseShowsToken) => *token = None,
            (SetCommand::Release { epoch, token }, Some(lease)) if self.lacks(Guard::ReleaseNamesEpoch) => {
                (*epoch, *token) = (lease.epoch, None);
            }
            _ => {}
        }
        let mut answer = set.apply(id, &cmd);
        match (&cmd, &mut answer, &before.lease, &mut set.lease) {
            (SetCommand::Continue { .. }, SetAnswer::Granted(granted), Some(was), Some(lease))
                if self.lacks(Guard::ContinueTakesNewEpoch) && lease.granted == id.index =>
            {
                (lease.epoch, granted.epoch) = (was.epoch, was.epoch);
                (set.epoch, set.last_seq) = (before.epoch, before.last_seq);
            }
            (SetCommand::Continue { token, .. }, SetAnswer::Granted(granted), Some(_), Some(lease))
                if self.lacks(Guard::UnusedTokensLast) && lease.granted == id.index =>
            {
                lease.earlier_tokens = vec![*token];
                granted.earlier_tokens = vec![*token];
            }
            (SetCommand::Renew { .. }, _, Some(was), Some(lease)) if self.lacks(Guard::OlderTokenDies) => {
                lease.earlier_tokens = was.earlier_tokens.clone();
            }
            _ => {}
        }
        answer
    }

    fn land(&self, world: &mut World, write: Write) {
        let id = self.next_id(world);
        let set = &mut world.set;
        let before = set.clone();
        let current = set.lease.as_ref().map(|lease| lease.epoch) == Some(write.epoch);
        if self.lacks(Guard::NumbersGapless) && current && write.seq.0 > set.last_seq.0 + 1 {
            set.last_seq = WriteSeq(write.seq.0 - 1);
        }
        let mut admit = set.admit_write(id, write.epoch, write.seq);
        if self.lacks(Guard::EpochCompared) && !current {
            admit = Admit::Apply;
        }
        if self.lacks(Guard::NumberOnce) && admit == Admit::Duplicate {
            admit = Admit::Apply;
        }
        if self.lacks(Guard::OlderTokenDies)
            && let (Some(was), Some(lease)) = (before.lease, &mut set.lease)
        {
            lease.earlier_tokens = was.earlier_tokens;
        }
        match admit {
            Admit::Apply => {
                self.judge_landing(world, write);
                world.landed.push(write);
                self.used(world, id.index);
            }
            Admit::Duplicate => {
                self.marks.hit(AGAIN);
                // R1: a client that got an answer must find its own write there.
                if !world.landed.contains(&write) {
                    world.broken = Some("R1");
                }
                self.used(world, id.index);
            }
            Admit::Refused(_) => {
                if world.grants.last().is_some_and(|last| last.epoch > write.epoch) {
                    self.marks.hit(FENCED);
                }
            }
        }
    }

    /// R2, R4, R6 on a write about to take effect, independent of the state.
    fn judge_landing(&self, world: &mut World, write: Write) {
        let Some(last) = world.grants.last() else {
            world.broken = Some("R2");
            return;
        };
        if last.from.is_some() {
            self.marks.hit(CONTINUED);
        }
        let before = world.landed.last();
        let same =
            |other: &&Write| (other.gateway, other.term, other.epoch) == (write.gateway, write.term, write.epoch);
        let next = before.filter(same).map_or(1, |before| before.seq.0 + 1);
        let twice = world.landed.iter().any(|other| other.data == write.data);
        world.broken = if last.epoch != write.epoch || last.over || twice {
            Some("R2")
        } else if before.is_some_and(|before| before.epoch == write.epoch && !same(&before)) {
            Some("R6")
        } else if write.seq.0 > next {
            Some("R4")
        } else if write.seq.0 < next {
            Some("R2")
        } else {
            None
        };
    }

    fn used(&self, world: &mut World, index: LogIndex) {
        if let Some(last) = world.grants.last_mut() {
            last.used = true;
            last.renewed = index;
            world.seen.push(Judged { epoch: last.epoch, renewed: index });
        }
    }

    fn ask(&self, world: &mut World, number: u8, request: Request) {
        let id = self.next_id(world);
        let gateway = MemberId(u64::from(world.leader));
        let token = Token(u128::from(id.index.0));
        let request_id = RequestId(u128::from(number) + 1);
        let cmd = match request {
            Request::Acquire { owner, how } => SetCommand::Acquire {
                owner: Owner::new(OWNERS[usize::from(owner)]).unwrap(),
                gateway,
                token,
                ttl_ms: 3000,
                request: request_id,
                judged_expired: match how {
                    How::Judged(judged) => Some(judged),
                    How::Politely | How::Forced => None,
                },
                force: how == How::Forced,
                plain: false,
                at_unix_ms: 0,
            },
            Request::Continue { owner, grant } => SetCommand::Continue {
                owner: Owner::new(OWNERS[usize::from(owner)]).unwrap(),
                gateway,
                token: world.grants[usize::from(grant)].token,
                new_token: token,
                request: request_id,
                at_unix_ms: 0,
            },
        };
        let answer = self.apply(&mut world.set, id, cmd);
        let SetAnswer::Granted(lease) = answer else {
            if world.grants.iter().any(|grant| grant.request == number) {
                self.marks.hit(LATE);
            }
            return;
        };
        if lease.granted != id.index {
            return;
        }
        self.judge_grant(world, number, request, lease.epoch);
        let (owner, from) = match request {
            Request::Acquire { owner, .. } => (owner, None),
            Request::Continue { owner, grant } => (owner, Some(world.grants[usize::from(grant)].token)),
        };
        if let Some(last) = world.grants.last_mut() {
            last.over = true;
        }
        if let Request::Continue { grant, .. } = request {
            world.grants[usize::from(grant)].shown = true;
        }
        let (epoch, renewed, used, shown, over) = (lease.epoch, id.index, false, false, false);
        world.grants.push(Granted { owner, epoch, request: number, token, from, used, shown, renewed, over });
        // Whoever got the answer to a grant that nothing overtook must be able to go on.
        let open = |grant: usize| opens(&world.grants, grant);
        let lease = world.set.lease.as_ref();
        let locked_out = |grant: usize| lease.is_none_or(|lease| !lease.opens(world.grants[grant].token));
        if world.broken.is_none() && (0..world.grants.len()).any(|grant| open(grant) && locked_out(grant)) {
            world.broken = Some("SET-S3");
        }
        world.seen.push(Judged { epoch, renewed });
        world.applied_facts.push(GateEvent::GrantApplied { id, epoch, gateway });
    }

    /// R6, R12, SET-S3, SET-S4 on a new grant.
    fn judge_grant(&self, world: &mut World, number: u8, request: Request, epoch: Epoch) {
        let last = world.grants.last();
        let held = last.filter(|last| !last.over);
        let taken_rightly = match (request, held) {
            (Request::Acquire { .. }, None) | (Request::Acquire { how: How::Forced, .. }, Some(_)) => Ok(()),
            (Request::Acquire { how: How::Judged(judged), .. }, Some(held))
                if judged.epoch == held.epoch && judged.renewed == held.renewed =>
            {
                if matches!(request, Request::Acquire { owner, .. } if owner != held.owner) {
                    self.marks.hit(EXPIRED);
                }
                Ok(())
            }
            (Request::Acquire { .. }, Some(_)) => Err("SET-S4"),
            (Request::Continue { .. }, None) => Err("SET-S3"),
            (Request::Continue { owner, grant }, Some(held)) => {
                let opens = opens(&world.grants, usize::from(grant));
                if owner == held.owner && opens { Ok(()) } else { Err("SET-S3") }
            }
        };
        let grows = last.is_none_or(|last| epoch > last.epoch) && epoch > Epoch(BASE);
        world.broken = if world.grants.iter().any(|grant| grant.request == number) {
            Some("R12")
        } else if let Err(rule) = taken_rightly {
            Some(rule)
        } else if !grows {
            Some("R6")
        } else {
            None
        };
    }

    fn release(&self, world: &mut World, grant: u8, token: Option<u8>) {
        let id = self.next_id(world);
        let named = world.grants[usize::from(grant)];
        let shown = token.map(|grant| world.grants[usize::from(grant)].token);
        let held = world.set.lease.is_some();
        let cmd = SetCommand::Release { epoch: named.epoch, token: shown };
        let answer = self.apply(&mut world.set, id, cmd);
        if answer != SetAnswer::Released || !held {
            return;
        }
        let opens = token.is_none_or(|grant| opens(&world.grants, usize::from(grant)));
        let Some(last) = world.grants.last_mut() else { return };
        if last.epoch != named.epoch || last.over {
            world.broken = Some("SET-S4");
        } else if !opens {
            world.broken = Some("SET-S3");
        }
        last.over = true;
        let epoch = last.epoch;
        world.applied_facts.push(GateEvent::LeaseReleased { epoch });
    }

    fn renew(&self, world: &mut World, grant: u8) {
        let id = self.next_id(world);
        let epoch = world.grants[usize::from(grant)].epoch;
        if self.apply(&mut world.set, id, SetCommand::Renew { epoch }) == SetAnswer::Renewed {
            self.used(world, id.index);
        }
    }

    fn elect(&self, world: &mut World, number: u8) {
        world.term += 1;
        world.leader = number;
        let term = Term(world.term);
        self.next_id(world);
        world.applied_facts.push(GateEvent::FirstEntryApplied { term });
        let gateway = &mut world.gateways[usize::from(number)];
        gateway.leads = Some(term.0);
        gateway.gate.event(NOW, GateEvent::TermStarted { term });
    }

    fn accept(&self, world: &mut World, number: u8) -> Option<()> {
        let gateway = &mut world.gateways[usize::from(number)];
        let epoch = self.serving(gateway)?;
        let term = gateway.leads?;
        let seq = match gateway.sequencer {
            Some((of_term, of_epoch, next)) if (of_term, of_epoch) == (term, epoch) => next,
            _ => 1,
        };
        gateway.sequencer = Some((term, epoch, seq + 1));
        let data = world.writes.iter().map(|write| write.data + 1).max().unwrap_or(0);
        world.writes.push(Write { gateway: number, term, epoch, seq: WriteSeq(seq), data });
        Some(())
    }

    /// Only without its guard: a retry under a new number.
    fn retry(&self, world: &mut World, number: u8) {
        let Write { gateway, term, epoch, data, .. } = world.writes[usize::from(number)];
        let Some((_, _, next)) = world.gateways[usize::from(gateway)].sequencer.as_mut() else { return };
        let seq = WriteSeq(*next);
        *next += 1;
        world.writes.push(Write { gateway, term, epoch, seq, data });
    }

    fn hear(&self, world: &mut World, number: u8) -> Option<()> {
        let gateway = &mut world.gateways[usize::from(number)];
        let fact = *world.applied_facts.get(gateway.heard)?;
        gateway.heard += 1;
        gateway.gate.event(NOW, fact);
        match fact {
            GateEvent::GrantApplied { epoch, gateway: at, .. } => {
                gateway.granted = Some(epoch).filter(|_| at.0 == u64::from(number));
            }
            GateEvent::LeaseReleased { .. } => gateway.granted = None,
            _ => {}
        }
        Some(())
    }
}

impl Model for Grants {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let gateway = |number: usize| Gateway {
            gate: ServeGate::new(MemberId(number as u64), Timing::from_rtt(Duration::from_millis(1)), NOW),
            heard: 0,
            granted: None,
            leads: None,
            sequencer: None,
        };
        let mut world = World {
            set: SetState::new(Epoch(BASE)),
            term: 0,
            index: 0,
            leader: 0,
            gateways: (0..GATEWAYS).map(gateway).collect(),
            applied_facts: Vec::new(),
            requests: Vec::new(),
            writes: Vec::new(),
            seen: Vec::new(),
            grants: Vec::new(),
            landed: Vec::new(),
            broken: None,
        };
        self.elect(&mut world, 0);
        vec![world]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        if world.broken.is_some() {
            return;
        }
        for number in 0..GATEWAYS as u8 {
            let gateway = &world.gateways[usize::from(number)];
            if gateway.heard < world.applied_facts.len() {
                steps.push(Step::Hear(number));
            }
            if gateway.leads.is_some_and(|term| term < world.term) {
                steps.push(Step::Lose(number));
            }
            if world.writes.len() < self.bounds.writes && self.serving(gateway).is_some() {
                steps.push(Step::Accept(number));
            }
        }
        if self.lacks(Guard::RetryKeepsNumber) && world.writes.len() < self.bounds.writes {
            steps.extend((0..world.writes.len()).map(|write| Step::Retry(write as u8)));
        }
        if world.index >= self.bounds.entries {
            return;
        }
        if world.term < self.bounds.terms {
            steps.extend((0..GATEWAYS as u8).map(Step::Elect));
        }
        steps.extend((0..world.writes.len()).map(|write| Step::Land(write as u8)));
        steps.extend((0..world.requests.len()).map(|request| Step::Copy(request as u8)));
        let grants = 0..world.grants.len() as u8;
        for grant in grants.clone() {
            steps.push(Step::Renew(grant));
            steps.push(Step::Release(grant, None));
            steps.extend(grants.clone().map(|shown| Step::Release(grant, Some(shown))));
        }
        if world.requests.len() < self.bounds.requests {
            for owner in 0..OWNERS.len() as u8 {
                let mut ask = |how| steps.push(Step::Ask(Request::Acquire { owner, how }));
                ask(How::Politely);
                ask(How::Forced);
                world.seen.iter().for_each(|judged| ask(How::Judged(*judged)));
                steps.extend(grants.clone().map(|grant| Step::Ask(Request::Continue { owner, grant })));
            }
        }
    }

    fn next_state(&self, before: &World, step: Step) -> Option<World> {
        let mut world = before.clone();
        match step {
            Step::Elect(number) => self.elect(&mut world, number),
            Step::Lose(number) => {
                let gateway = &mut world.gateways[usize::from(number)];
                gateway.leads = None;
                gateway.gate.event(NOW, GateEvent::LeadershipLost);
            }
            Step::Hear(number) => self.hear(&mut world, number)?,
            Step::Accept(number) => self.accept(&mut world, number)?,
            Step::Retry(number) => self.retry(&mut world, number),
            Step::Land(number) => {
                let write = world.writes[usize::from(number)];
                self.land(&mut world, write);
            }
            Step::Ask(request) => {
                world.requests.push(request);
                let number = world.requests.len() as u8 - 1;
                self.ask(&mut world, number, request);
            }
            Step::Copy(number) => {
                let request = world.requests[usize::from(number)];
                self.ask(&mut world, number, request);
            }
            Step::Renew(grant) => self.renew(&mut world, grant),
            Step::Release(grant, token) => self.release(&mut world, grant, token),
        }
        if self.without.is_none() {
            world.set.self_check();
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("R1", |_, world: &World| world.broken != Some("R1")),
            Property::always("R2", |_, world: &World| world.broken != Some("R2")),
            Property::always("R4", |_, world: &World| world.broken != Some("R4")),
            Property::always("R6", |_, world: &World| world.broken != Some("R6")),
            Property::always("R12", |_, world: &World| world.broken != Some("R12")),
            Property::always("SET-S3", |_, world: &World| world.broken != Some("SET-S3")),
            Property::always("SET-S4", |_, world: &World| world.broken != Some("SET-S4")),
        ]
    }
}
