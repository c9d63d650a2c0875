//! State transitions of an attached set: lease, incarnations, losses.

mod accessors;
mod ending;
mod volumes;

use super::table::{Bounds, Intake, Table};
use super::{Action, Grant, Lane, Moment, Phase, Reply};
use holdfast_nbd::Errno;
use holdfast_types::{Epoch, RequestId, Token};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long the gateway may leave a renewal unanswered before it counts as lost.
const PATIENCE_MIN: Duration = Duration::from_millis(750);
/// Maximum of that time: each false alarm doubles it. A machine that is only slow must not cause reconnects for ever
/// (ATTACH-M7).
const PATIENCE_MAX: Duration = Duration::from_secs(8);
/// After this time without a loss, the patience is back at its first value.
const CALM: Duration = Duration::from_secs(60);
/// A request of this age makes us ask the gateway whether it is there.
const SUSPICION: Duration = Duration::from_millis(250);
/// Between two such questions.
const ASK_INTERVAL: Duration = Duration::from_millis(500);
/// Renewals within one time to live: after one lost renewal and an election, enough of the lease is left to continue.
const RENEWALS_PER_TTL: u32 = 6;
/// Pause after a renewal that could not be sent.
const RENEW_PAUSE: Duration = Duration::from_millis(100);
/// First and longest pause after a useless reconnect.
const RETRY_MIN: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_millis(500);
/// A reconnect was useful if its connections lasted this long and, if anything was requested, something was answered.
const STEADY: Duration = Duration::from_secs(1);

const _: () = assert!(SUSPICION.as_millis() + PATIENCE_MIN.as_millis() <= 1000);

/// Reason why a gateway counts as lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lost {
    /// A connection ended, or could not be made.
    Connection(String),
    /// It does not answer renewals.
    Silent(Duration),
    /// It refused a renewal: it does not lead any more, or the token is not the current one. Continuing the lease shows
    /// which.
    Refused(String),
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Lost::Connection(why) => write!(f, "a connection ended: {why}"),
            Lost::Silent(time) => write!(f, "no answer to a renewal for {} ms", time.as_millis()),
            Lost::Refused(why) => write!(f, "a renewal was refused: {why}"),
        }
    }
}

/// Status for people and scripts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Times that the set was reconnected.
    pub reconnects: u64,
    /// How long requests waited at the last reconnect, in milliseconds.
    pub last_outage_ms: Option<u64>,
    /// The longest of them.
    pub longest_outage_ms: Option<u64>,
    /// Reason for the last reconnect.
    pub last_loss: Option<String>,
    /// When the last acknowledged renewal or grant was sent: the lease lasts at least for its time to live from then
    /// on.
    pub renewed: Option<Moment>,
    /// The owner that took the set.
    pub fenced_by: Option<String>,
    /// The set ended, and no gateway took the lease back: it expires by itself.
    pub lease_left: bool,
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    number: u64,
    /// The first attempt: the gateway has been silent since then.
    first: Moment,
    /// The try with this number. It renews nothing before it is sent.
    sent: Moment,
    /// The last attempt failed at this time; the next one comes later.
    failed: Option<Moment>,
}

/// The lease, and the last request for it.
#[derive(Debug)]
struct Lease {
    request: RequestId,
    asked_at: Moment,
    grant: Option<Grant>,
    /// An earlier process's token is being continued: a lease must be given back even before there is a grant.
    resumed: bool,
}

/// Renewals of the lease.
#[derive(Debug)]
struct Renewals {
    number: u64,
    outstanding: Option<Asked>,
    next_at: Moment,
    asked_last: Moment,
    patience: Duration,
    /// Admin address of a gateway that was given up because it did not answer.
    silent: Option<String>,
}

/// Losses and reconnects.
#[derive(Debug)]
struct Reconnects {
    lost_at: Option<Moment>,
    calm_since: Moment,
    /// A request was answered in this incarnation.
    answered: bool,
    /// The pause before the next reconnect if the last one was useless; zero if it was useful.
    retry: Duration,
    retry_at: Option<Moment>,
}

/// The state of an attached set. Every method appends its actions to `out`, in order.
#[derive(Debug)]
pub struct Machine {
    phase: Phase,
    detach: bool,
    /// The lease is being given back: closed connections are expected now.
    releasing: bool,
    slots: u8,
    volumes: usize,
    /// ATTACH-M8: the reason, by the volume's index.
    lost_volumes: BTreeMap<usize, String>,
    lease: Lease,
    renewals: Renewals,
    reconnects: Reconnects,
    incarnation: u64,
    missing: BTreeSet<(usize, u8)>,
    table: Table,
    view: View,
}

impl Machine {
    /// A set to be attached, with `slots` connections per volume. `base` is random: request ids are counted up from it.
    pub fn new(base: RequestId, slots: u8, bounds: Bounds) -> Self {
        Self {
            phase: Phase::Acquiring,
            detach: false,
            releasing: false,
            slots: slots.max(1),
            volumes: 0,
            lost_volumes: BTreeMap::new(),
            lease: Lease { request: base, asked_at: Moment(0), grant: None, resumed: false },
            renewals: Renewals {
                number: 0,
                outstanding: None,
                next_at: Moment(0),
                asked_last: Moment(0),
                patience: PATIENCE_MIN,
                silent: None,
            },
            reconnects: Reconnects {
                lost_at: None,
                calm_since: Moment(0),
                answered: false,
                retry: Duration::ZERO,
                retry_at: None,
            },
            incarnation: 0,
            missing: BTreeSet::new(),
            table: Table::new(bounds),
            view: View::default(),
        }
    }

    fn go(&mut self, phase: Phase, out: &mut Vec<Action>) {
        self.phase = phase;
        out.push(Action::Show);
    }

    fn next_request(&mut self, now: Moment) -> RequestId {
        self.lease.request = RequestId(self.lease.request.0.wrapping_add(1));
        self.lease.asked_at = now;
        self.lease.request
    }

    /// Begins: asks for the lease; with `force` even if another owner holds it.
    pub fn begin(&mut self, now: Moment, force: bool, out: &mut Vec<Action>) {
        let request = self.next_request(now);
        out.push(Action::Acquire { request, force });
        out.push(Action::Show);
    }

    /// Continues where an earlier process of this host ended: its lease is continued with the token that it left, and
    /// its clients' requests are accepted at once. They wait until a gateway serves. A definite refusal fences the set,
    /// as always (ATTACH-M5, ATTACH-M6).
    pub fn resume(&mut self, now: Moment, token: Token, volumes: usize, out: &mut Vec<Action>) {
        self.volumes = volumes;
        self.lease.resumed = true;
        self.table.set_volumes(volumes);
        let request = self.next_request(now);
        out.push(Action::Continue { request, token });
        out.push(Action::Show);
    }

    /// ATTACH-M8: volumes that were changed under their devices, with the reason.
    pub fn lost_volumes(&self) -> &BTreeMap<usize, String> {
        &self.lost_volumes
    }

    /// Whether an answer to this request still counts. A late answer to an abandoned request does not: neither here nor
    /// for the file for the next process (TOKEN-P1).
    pub fn awaits(&self, request: RequestId) -> bool {
        let asking = matches!(self.phase, Phase::Acquiring | Phase::Reconnecting) || self.detach_waits();
        request == self.lease.request && asking
    }

    /// A gateway granted `request`, with `volumes` volumes in the set.
    pub fn granted(&mut self, now: Moment, request: RequestId, grant: Grant, volumes: usize, out: &mut Vec<Action>) {
        self.granted_without(now, request, grant, volumes, BTreeMap::new(), out);
    }

    /// Like `granted`, if some of the volumes, by their index, were changed under their devices, with the reason
    /// (ATTACH-M8).
    pub fn granted_without(
        &mut self,
        now: Moment,
        request: RequestId,
        grant: Grant,
        volumes: usize,
        lost: BTreeMap<usize, String>,
        out: &mut Vec<Action>,
    ) {
        if !self.awaits(request) {
            holdfast_reached::reached!("attach: a grant of an earlier request");
            return;
        }
        for (volume, why) in lost {
            self.lose(volume, why, out);
        }
        if self.none_left(volumes, out) {
            return;
        }
        let first = self.lease.grant.is_none();
        if self.renewals.silent.take().is_some_and(|silent| silent == grant.api) {
            holdfast_reached::reached!("attach: a gateway that was given up serves after all");
            self.renewals.patience = (self.renewals.patience * 2).min(PATIENCE_MAX);
        }
        // The grant counts only from its first request: an earlier attempt may have been applied (R12), and elections
        // take time. An immediate renewal shows that the lease is fresh.
        self.renewals.next_at = now;
        self.renewals.outstanding = None;
        self.view.renewed = Some(self.lease.asked_at);
        self.lease.grant = Some(grant);
        if first {
            self.volumes = volumes;
            self.table.set_volumes(volumes);
            self.go(if self.detach { Phase::Detaching } else { Phase::Connecting }, out);
        }
        self.connect(out);
    }

    fn detach_waits(&self) -> bool {
        self.phase == Phase::Detaching && (self.reconnects.lost_at.is_some() || self.lease.grant.is_none())
    }

    fn connect(&mut self, out: &mut Vec<Action>) {
        let Some(grant) = &self.lease.grant else { return };
        self.incarnation += 1;
        self.reconnects.answered = false;
        self.missing.clear();
        for volume in (0..self.volumes).filter(|volume| !self.lost_volumes.contains_key(volume)) {
            for slot in 0..self.slots {
                self.missing.insert((volume, slot));
                let lane = Lane { incarnation: self.incarnation, volume, slot };
                out.push(Action::Connect { lane, nbd: grant.nbd.clone(), token: grant.token });
            }
        }
    }

    /// A lane is connected.
    pub fn connected(&mut self, now: Moment, lane: Lane, out: &mut Vec<Action>) {
        if lane.incarnation != self.incarnation || !self.missing.remove(&(lane.volume, lane.slot)) {
            return;
        }
        if !self.missing.is_empty() {
            return;
        }
        self.reconnects.calm_since = now;
        if let Some(lost_at) = self.reconnects.lost_at.take() {
            let outage = u64::try_from(now.since(lost_at).as_millis()).unwrap_or(u64::MAX);
            self.view.reconnects += 1;
            self.view.last_outage_ms = Some(outage);
            self.view.longest_outage_ms = self.view.longest_outage_ms.max(Some(outage));
        }
        self.go(if self.detach { Phase::Detaching } else { Phase::Serving }, out);
        // ATTACH-M3: before any new request.
        for number in self.table.sendable() {
            self.send(now, number, out);
        }
        self.end_if_drained(out);
    }

    /// Whether there is a valid grant, with or without its connections.
    fn holds(&self) -> bool {
        let phase = matches!(self.phase, Phase::Connecting | Phase::Reconnecting | Phase::Serving | Phase::Detaching);
        let continuing = self.reconnects.lost_at.is_some() && self.missing.is_empty();
        phase && self.lease.grant.is_some() && !self.releasing && !continuing
    }

    fn carries(&self) -> bool {
        let phase = matches!(self.phase, Phase::Serving | Phase::Detaching);
        // With an earlier process's lease there is no grant yet, even if the set is already to end.
        phase
            && self.lease.grant.is_some()
            && !self.releasing
            && self.reconnects.lost_at.is_none()
            && self.missing.is_empty()
    }

    fn send(&mut self, now: Moment, number: u64, out: &mut Vec<Action>) {
        let (incarnation, slots) = (self.incarnation, self.slots);
        let Some(entry) = self.table.get_mut(number) else { return };
        assert!(
            entry.sent.is_none_or(|before| before < incarnation),
            "ATTACH-M2: request {number} twice in one incarnation"
        );
        holdfast_reached::reached!("attach: a request is sent again", entry.sent.is_some());
        holdfast_reached::reached!(
            "attach: a trim is sent again",
            entry.sent.is_some() && matches!(entry.intake.command, holdfast_nbd::client::CommandOut::Trim { .. })
        );
        entry.sent = Some(incarnation);
        entry.since = now;
        let slot = (entry.intake.ticket.client % u64::from(slots)) as u8;
        let lane = Lane { incarnation, volume: entry.volume, slot };
        out.push(Action::Send { lane, out: entry.out(number), data: entry.intake.data.clone() });
    }

    /// Whether requests of clients of `volume` may be read.
    pub fn has_room(&self, volume: usize) -> bool {
        // A set that ends accepts no new requests: clients wait for the end of the connection.
        let fails = self.phase == Phase::Fenced || self.lost_volumes.contains_key(&volume);
        fails || (!self.detach && self.table.has_room(volume))
    }

    /// A client's request. Its length is above zero, and it lies within the volume.
    pub fn request(&mut self, now: Moment, volume: usize, intake: Intake, out: &mut Vec<Action>) {
        if self.phase == Phase::Fenced || self.lost_volumes.contains_key(&volume) {
            out.push(Action::Answer { ticket: intake.ticket, outcome: Err(Errno::Io) });
            return;
        }
        if self.releasing {
            holdfast_reached::reached!("attach: a request while the lease is given back");
            // R8: our end is no reason for an error; the client's connection closes with us.
            return;
        }
        let (number, free) = self.table.take(now, volume, intake);
        if free && self.carries() {
            self.send(now, number, out);
        }
    }

    /// A gateway answered request `number`, over a lane of `incarnation`.
    pub fn answered(
        &mut self,
        now: Moment,
        incarnation: u64,
        number: u64,
        outcome: Result<Reply, Errno>,
        out: &mut Vec<Action>,
    ) {
        holdfast_reached::reached!("attach: an answer of an earlier incarnation", incarnation != self.incarnation);
        // ATTACH-M4.
        if incarnation != self.incarnation || !self.carries() {
            return;
        }
        if self.table.get_mut(number).is_none_or(|entry| entry.sent != Some(incarnation)) {
            return;
        }
        if matches!(outcome, Err(Errno::Io | Errno::Shutdown)) {
            // R8: a gateway gives this error only if another owner holds the set.
            holdfast_reached::reached!("attach: a gateway says that another owner has the set");
            return self.fence(None, out);
        }
        let mut freed = Vec::new();
        let Some(entry) = self.table.remove(number, &mut freed) else { return };
        self.reconnects.answered = true;
        out.push(Action::Answer { ticket: entry.intake.ticket, outcome });
        for number in freed {
            self.send(now, number, out);
        }
        out.push(Action::Room { volume: entry.volume });
        self.end_if_drained(out);
    }

    /// A connection of `incarnation` is lost: all connections of the set are shut, and the lease is continued
    /// elsewhere.
    pub fn lost(&mut self, now: Moment, incarnation: u64, why: &Lost, out: &mut Vec<Action>) {
        let over = matches!(self.phase, Phase::Acquiring | Phase::Fenced | Phase::Detached);
        // While the lease is being continued nothing can be lost: this is a late report of a socket that was shut.
        let asking = self.reconnects.lost_at.is_some() && self.missing.is_empty();
        if incarnation != self.incarnation || over || asking || self.releasing {
            holdfast_reached::reached!("attach: a loss is reported late");
            return;
        }
        let Some(grant) = &self.lease.grant else { return };
        let token = grant.token;
        self.renewals.silent = matches!(why, Lost::Silent(_)).then(|| grant.api.clone());
        self.view.last_loss = Some(why.to_string());
        let pause = self.pause_after(now);
        self.missing.clear();
        // Requests to a silent gateway have waited since it fell silent.
        let since =
            self.renewals.outstanding.filter(|_| matches!(why, Lost::Silent(_))).map_or(now, |asked| asked.first);
        self.reconnects.lost_at.get_or_insert(since);
        self.renewals.outstanding = None;
        out.push(Action::Shut { incarnation });
        if !self.detach {
            self.go(Phase::Reconnecting, out);
        }
        if !pause.is_zero() {
            holdfast_reached::reached!("attach: a reconnect was useless, the next one waits");
            self.reconnects.retry_at = Some(now.plus(pause));
            return;
        }
        let request = self.next_request(now);
        out.push(Action::Continue { request, token });
    }

    /// How long to wait after the loss of this incarnation. After a useful one: not at all. If no connection was made,
    /// the gateway that was just listed is not there, so an immediate attempt is useless. If connections end again and
    /// again over the same request, they must not be made forty times a second: each is a new grant, and interrupts the
    /// set's other volumes.
    fn pause_after(&mut self, now: Moment) -> Duration {
        let connected = self.missing.is_empty();
        let worked = self.reconnects.answered || self.table.len() == 0;
        if connected && worked && now.since(self.reconnects.calm_since) >= STEADY {
            self.reconnects.retry = Duration::ZERO;
            return Duration::ZERO;
        }
        let pause = match connected {
            false => self.reconnects.retry.max(RETRY_MIN),
            // Two gateways may be lost one right after the other.
            true if worked && self.reconnects.retry <= RETRY_MIN => Duration::ZERO,
            true => self.reconnects.retry,
        };
        self.reconnects.retry = (self.reconnects.retry.max(pause) * 2).clamp(RETRY_MIN, RETRY_MAX);
        pause
    }

    /// A client left. Its reads are dropped: a read that no gateway can answer would otherwise be sent again for ever.
    /// Its writes are carried out all the same.
    pub fn forget(&mut self, client: u64, out: &mut Vec<Action>) {
        let mut volumes = BTreeSet::new();
        for number in self.table.asked_only(client) {
            holdfast_reached::reached!("attach: a read of a client that left is dropped");
            // A read holds no write back (ATTACH-M1).
            volumes.extend(self.table.remove(number, &mut Vec::new()).map(|entry| entry.volume));
        }
        out.extend(volumes.into_iter().map(|volume| Action::Room { volume }));
        self.end_if_drained(out);
    }

    /// A gateway's definite answer to `request`: the lease is no longer ours (ATTACH-M6).
    pub fn refused(&mut self, request: RequestId, why: &str, out: &mut Vec<Action>) {
        holdfast_reached::reached!("attach: a refusal of an earlier request", request != self.lease.request);
        if request == self.lease.request && !matches!(self.phase, Phase::Fenced | Phase::Detached) {
            holdfast_reached::reached!("attach: the lease is refused for good");
            self.fence(Some(why.to_string()), out);
        }
    }

    /// The owner that took the set, found out later.
    pub fn fenced_by(&mut self, who: String, out: &mut Vec<Action>) {
        if self.phase == Phase::Fenced {
            self.view.fenced_by = Some(who);
            out.push(Action::Show);
        }
    }

    fn fence(&mut self, by: Option<String>, out: &mut Vec<Action>) {
        self.over(by, out);
        out.push(Action::LookWho);
    }

    fn over(&mut self, by: Option<String>, out: &mut Vec<Action>) {
        self.view.fenced_by = by;
        self.renewals.outstanding = None;
        self.missing.clear();
        self.reconnects.retry_at = None;
        out.push(Action::Shut { incarnation: self.incarnation });
        self.go(Phase::Fenced, out);
        for entry in self.table.drain() {
            out.push(Action::Answer { ticket: entry.intake.ticket, outcome: Err(Errno::Io) });
        }
        out.extend((0..self.volumes).map(|volume| Action::Room { volume }));
    }

    /// Renewal `number` was acknowledged.
    pub fn renewed(&mut self, now: Moment, number: u64, out: &mut Vec<Action>) {
        if let Some(asked) = self.renewals.outstanding.take_if(|asked| asked.number == number) {
            self.view.renewed = Some(asked.sent);
            // PostgreSQL may be stopped by this time, so an old value must not be used.
            out.push(Action::Show);
            if now.since(self.reconnects.calm_since) >= CALM {
                self.renewals.patience = PATIENCE_MIN;
            }
        }
    }

    /// Renewal `number` failed: `refused` by the gateway, or not delivered.
    pub fn renew_failed(&mut self, now: Moment, number: u64, refused: Option<String>, out: &mut Vec<Action>) {
        holdfast_reached::reached!(
            "attach: an old renewal fails",
            self.renewals.outstanding.is_none_or(|asked| asked.number != number)
        );
        let Some(asked) = self.renewals.outstanding.as_mut().filter(|asked| asked.number == number) else { return };
        match refused {
            Some(why) => self.lost(now, self.incarnation, &Lost::Refused(why), out),
            None => asked.failed = Some(now),
        }
    }

    /// Time passes. To be called about every [`Machine::TICK`].
    pub fn tick(&mut self, now: Moment, out: &mut Vec<Action>) {
        if self.reconnects.retry_at.is_some_and(|at| now >= at) {
            self.reconnects.retry_at = None;
            if let Some(token) = self.lease.grant.as_ref().map(|grant| grant.token) {
                let request = self.next_request(now);
                out.push(Action::Continue { request, token });
            }
        }
        if !self.holds() {
            return;
        }
        let Some(grant) = &self.lease.grant else { return };
        let (epoch, token, api, ttl) = (grant.epoch, grant.token, grant.api.clone(), grant.ttl);
        match &mut self.renewals.outstanding {
            Some(asked) => {
                let silence = now.since(asked.first);
                if silence >= self.renewals.patience {
                    holdfast_reached::reached!("attach: a gateway does not answer a renewal");
                    return self.lost(now, self.incarnation, &Lost::Silent(silence), out);
                }
                if asked.failed.is_some_and(|at| now.since(at) >= RENEW_PAUSE) {
                    self.renewals.number += 1;
                    asked.number = self.renewals.number;
                    asked.sent = now;
                    asked.failed = None;
                    out.push(Action::Renew { number: self.renewals.number, epoch, token, api });
                }
            }
            None => {
                let old = self.table.oldest().is_some_and(|since| now.since(since) >= SUSPICION);
                let suspicious = old && now.since(self.renewals.asked_last) >= ASK_INTERVAL;
                if now >= self.renewals.next_at || suspicious {
                    self.renewals.number += 1;
                    self.renewals.asked_last = now;
                    self.renewals.next_at = now.plus(ttl / RENEWALS_PER_TTL);
                    self.renewals.outstanding =
                        Some(Asked { number: self.renewals.number, first: now, sent: now, failed: None });
                    out.push(Action::Renew { number: self.renewals.number, epoch, token, api });
                }
            }
        }
    }

    /// How often time is to be told.
    pub const TICK: Duration = Duration::from_millis(50);

    /// The epoch held, if any.
    pub fn epoch(&self) -> Option<Epoch> {
        self.lease.grant.as_ref().map(|grant| grant.epoch)
    }

    #[cfg(test)]
    pub(super) fn self_check(&self) {
        self.table.self_check();
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
