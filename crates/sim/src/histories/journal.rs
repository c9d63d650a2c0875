//! One order of entries in place of Raft's, and a gateway's seat at it.
//!
//! A proposal at the leader is committed and applied there at once; its answer comes later, or is lost. A gateway that
//! is cut off still believes to lead, and hears nothing. A starting gateway takes any state that was ever saved, or
//! none, and applies the entries behind it.

use super::model::{Model, Volumes};
use super::units::GATEWAYS;
use crate::rng::Rng;
use crate::sync::lock;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use holdfast_control::cluster::SetEntry;
use holdfast_control::set::{Links, SetCommand};
use holdfast_raft::{
    Consensus, GroupError, GroupStatus, Leadership, MemberStatus, ProposeError, Proposed, ReadLogError, ReadPlace,
    Reply, StateMachine, boot_now,
};
use holdfast_set::host::{SetHost, decode_answer};
use holdfast_types::{GroupId, LogId, LogIndex, MemberId, MonoTime, SetId, Term};
use holdfast_volume::entry::{self, EntryPayload};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::watch;

/// A copy of an entry arrives behind this many others at most: a set remembers 16 grants (SET-S10).
const REPEATED_MAX: usize = 24;

/// Whether its sender may send it again. What a leader says of its own uploads and deletions it says once, or at once
/// again: a later copy would speak of objects that are gone.
fn may_come_again(payload: &Bytes) -> bool {
    match entry::decode(payload) {
        Ok(EntryPayload::Writes(_)) => true,
        Ok(EntryPayload::Control(command)) => matches!(
            command,
            SetCommand::Acquire { .. }
                | SetCommand::Release { .. }
                | SetCommand::CheckpointBegin { .. }
                | SetCommand::CheckpointEnd { .. }
        ),
        Err(_) => false,
    }
}

/// The order of entries, and its model.
pub struct Order {
    entries: Vec<(LogId, Option<Bytes>)>,
    /// States saved by gateways, oldest first.
    pub saved: Vec<(LogId, Bytes)>,
    pub model: Model,
    pub rng: Rng,
    /// Lost answers, in thousandths.
    pub lost: u64,
    /// Late answers, in thousandths.
    pub late: u64,
}

/// Shared by all gateways of a history.
pub struct Journal {
    pub set: SetId,
    order: Mutex<Order>,
}

impl Journal {
    /// The order of a set that begins with these volumes.
    pub fn new(set: SetId, seed: u64, volumes: Volumes) -> Arc<Self> {
        let (entries, saved) = (Vec::new(), Vec::new());
        let model = Model::beginning(volumes);
        let order = Order { entries, saved, model, rng: Rng::new(seed, 2), lost: 0, late: 0 };
        Arc::new(Self { set, order: Mutex::new(order) })
    }

    pub fn order(&self) -> MutexGuard<'_, Order> {
        lock(&self.order)
    }
}

impl Order {
    /// Of the last entries those that may come a second time.
    pub fn repeatable(&self) -> Vec<Bytes> {
        let last = &self.entries[self.entries.len().saturating_sub(REPEATED_MAX)..];
        last.iter().filter_map(|(_, payload)| payload.clone()).filter(may_come_again).collect()
    }

    fn append(&mut self, term: Term, payload: Option<Bytes>) -> LogId {
        let id = LogId::new(term.0, self.entries.len() as u64 + 1);
        self.entries.push((id, payload));
        id
    }
}

#[derive(Default)]
struct At {
    leads: Option<Term>,
    connected: bool,
    /// The group takes no more entries, as after a failure of its journal.
    stopped: bool,
    /// When it last heard from the others.
    heard: MonoTime,
    applied: LogId,
    saved: Option<LogId>,
    /// Proposals that never get an answer.
    unheard: Vec<Reply>,
}

/// One life of a gateway at the order.
pub struct Seat {
    me: MemberId,
    journal: Arc<Journal>,
    pub host: Arc<SetHost>,
    at: Mutex<At>,
    leadership: watch::Sender<Leadership>,
    /// Done when a test asks what was applied.
    #[cfg(test)]
    pub asked: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Seat {
    /// A gateway that begins with `base`, a saved state, or without one, and has applied everything behind it.
    ///
    /// # Panics
    /// If the saved state does not load.
    pub fn new(
        me: MemberId,
        journal: Arc<Journal>,
        (entry, links): (&SetEntry, &Links),
        base: Option<(LogId, Bytes)>,
    ) -> Arc<Self> {
        let host = Arc::new(SetHost::new(journal.set, entry, links));
        let mut at = At::default();
        if let Some((last, bytes)) = base {
            if let Err(e) = host.install(last, &bytes) {
                panic!("the state saved at {last} does not load: {e}");
            }
            (at.applied, at.saved) = (last, Some(last));
        }
        for (id, payload) in &journal.order().entries[at.applied.index.0 as usize..] {
            match payload {
                Some(payload) => drop(host.apply(*id, payload.clone())),
                None => host.observe(*id),
            }
            at.applied = *id;
        }
        let leadership = watch::channel(Leadership::default()).0;
        Arc::new(Self {
            me,
            journal,
            host,
            at: Mutex::new(at),
            leadership,
            #[cfg(test)]
            asked: Mutex::default(),
        })
    }

    /// Makes it the leader of `term`, with the first entry applied.
    pub fn lead(&self, term: Term) {
        let id = self.journal.order().append(term, None);
        {
            let mut at = lock(&self.at);
            (at.leads, at.connected, at.applied) = (Some(term), true, id);
        }
        self.leadership.send_replace(Leadership { term, leader: Some(self.me), mine: true, stopped: false });
        self.host.observe(id);
    }

    /// It keeps its beliefs, and hears nothing any more.
    pub fn cut_off(&self) {
        let mut at = lock(&self.at);
        (at.heard, at.connected) = (boot_now(), false);
    }

    /// The group stops, and nobody has told the tasks of the gateway.
    pub fn stop_untold(&self) {
        lock(&self.at).stopped = true;
    }

    /// Tells it that it leads no more.
    pub fn depose(&self) {
        let unheard = {
            let mut at = lock(&self.at);
            at.leads = None;
            std::mem::take(&mut at.unheard)
        };
        drop(unheard);
        self.leadership.send_modify(|seen| (seen.leader, seen.mine) = (None, false));
    }
}

impl Seat {
    /// Looks at the moment in which a quorum has elected it in `term` and answers it, and nobody has told its tasks.
    pub fn elected_untold<T>(&self, term: Term, look: impl FnOnce() -> T) -> T {
        let mut then = (Some(term), true);
        let mut change = || {
            let mut at = lock(&self.at);
            let At { leads, connected, .. } = &mut *at;
            std::mem::swap(leads, &mut then.0);
            std::mem::swap(connected, &mut then.1);
        };
        change();
        let seen = look();
        change();
        seen
    }

    /// Looks at the moment in which it has applied entries up to `newer`, and nobody has told it that it leads no more.
    pub fn applied_untold<T>(&self, newer: LogId, look: impl FnOnce() -> T) -> T {
        let before = std::mem::replace(&mut lock(&self.at).applied, newer);
        let seen = look();
        lock(&self.at).applied = before;
        seen
    }

    /// Submits a payload whose sender does not wait for the answer.
    pub fn submit_unheard(&self, payload: Bytes) {
        self.take(None, payload, Reply::new(drop));
    }

    /// Commits a proposal and applies it here at once.
    fn take(&self, term: Option<Term>, payload: Bytes, reply: Reply) {
        let leads = {
            let mut at = lock(&self.at);
            let leads = at.leads.filter(|leads| term.is_none_or(|term| term == *leads));
            if leads.is_some() && !at.connected {
                at.unheard.push(reply);
                return;
            }
            leads
        };
        let Some(leads) = leads else { return reply.send(Err(ProposeError::NotLeader { leader: None })) };
        let mut order = self.journal.order();
        let id = order.append(leads, Some(payload.clone()));
        let answer = self.host.apply(id, payload.clone());
        lock(&self.at).applied = id;
        order.model.commit(id, &payload, decode_answer(&answer));
        let (lost, late) = (order.lost, order.late);
        let lost = order.rng.chance(lost);
        let delay = if order.rng.chance(late) { order.rng.range(1, 40) } else { 0 };
        // What a reply calls must find no lock of ours.
        drop(order);
        let outcome = match lost {
            true => Err(ProposeError::Unknown { reason: "played: the answer is lost".to_string() }),
            false => Ok(Proposed { id, answer }),
        };
        if delay == 0 {
            reply.send(outcome);
        } else {
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(delay)).await;
                reply.send(outcome);
            });
        }
    }

    fn read(&self, place: ReadPlace) -> Result<Bytes, ReadLogError> {
        let ReadPlace { index: LogIndex(index), offset, len } = place;
        let (purged, next) = {
            let at = lock(&self.at);
            (at.saved.map_or(0, |saved| saved.index.0), at.applied.index.0 + 1)
        };
        if index <= purged {
            return Err(ReadLogError::Purged { index, purged });
        }
        let order = self.journal.order();
        let payload =
            order.entries.get(index as usize - 1).filter(|_| index < next).and_then(|(_, payload)| payload.as_ref());
        let Some(payload) = payload else { return Err(ReadLogError::Missing { index, next }) };
        let range = offset as usize..offset as usize + len;
        if range.end > payload.len() {
            return Err(ReadLogError::OutOfBounds { index, offset, wanted: len, len: payload.len() });
        }
        Ok(payload.slice(range))
    }

    fn save(&self) {
        let Some((id, bytes)) = self.host.snapshot() else { return };
        let mut at = lock(&self.at);
        if at.saved >= Some(id) {
            return;
        }
        at.saved = Some(id);
        drop(at);
        let mut order = self.journal.order();
        if order.saved.last().is_none_or(|(last, _)| *last < id) {
            order.saved.push((id, bytes));
        }
    }
}

impl Consensus for Seat {
    fn id(&self) -> GroupId {
        self.journal.set
    }

    fn me(&self) -> MemberId {
        self.me
    }

    fn leadership(&self) -> watch::Receiver<Leadership> {
        self.leadership.subscribe()
    }

    fn leading_term(&self) -> Option<Term> {
        lock(&self.at).leads
    }

    fn quorum_acked(&self) -> Option<(Term, MonoTime)> {
        let at = lock(&self.at);
        at.leads.map(|term| (term, if at.connected { boot_now() } else { at.heard }))
    }

    fn applied(&self) -> LogId {
        #[cfg(test)]
        if let Some(asked) = { lock(&self.asked).take() } {
            asked();
        }
        lock(&self.at).applied
    }

    fn snapshot_last(&self) -> Option<LogId> {
        lock(&self.at).saved
    }

    fn live_bytes(&self) -> u64 {
        0
    }

    /// Every second gateway has `journal.seal = false`: each reads, and uploads, what the others made in either form.
    fn seals(&self) -> bool {
        self.me.0 % 2 == 1
    }

    fn submit(&self, term: Option<Term>, payload: Bytes, reply: Reply) -> BoxFuture<'_, Result<(), ProposeError>> {
        Box::pin(async move {
            if lock(&self.at).stopped {
                return Err(ProposeError::Stopped { reason: "played: the group has stopped".to_string() });
            }
            self.take(term, payload, reply);
            Ok(())
        })
    }

    fn read_log(&self, index: LogIndex, offset: u32, len: usize) -> BoxFuture<'_, Result<Bytes, ReadLogError>> {
        Box::pin(async move { self.read(ReadPlace { index, offset, len }) })
    }

    fn trigger_snapshot(&self) -> BoxFuture<'_, Result<(), GroupError>> {
        Box::pin(async {
            self.save();
            Ok(())
        })
    }

    fn status(&self) -> GroupStatus {
        let member = |number| MemberStatus {
            member: MemberId(number),
            voter: true,
            matched: None,
            lacks_bytes: u64::MAX,
            silent: None,
            addr: String::new(),
        };
        let at = lock(&self.at);
        GroupStatus {
            group: self.journal.set,
            leadership: *self.leadership.borrow(),
            voted: at.applied.term,
            last: Some(at.applied.index),
            applied: Some(at.applied),
            snapshot: at.saved,
            purged: at.saved,
            live_bytes: 0,
            members: (1..=GATEWAYS).map(member).collect(),
            settled: true,
            membership: None,
            next: None,
        }
    }
}
