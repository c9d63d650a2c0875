//! The machine against a world that applies, delays, repeats and loses its requests.

use super::*;
use crate::machine::{Lane, Ticket, VolumeFacts};
use bytes::Bytes;
use holdfast_nbd::client::CommandOut;
use holdfast_nbd::server::{ReadPart, ReplyTo};
use holdfast_types::{Name, Token};
use proptest::prelude::*;

#[path = "change_tests.rs"]
mod changes;
#[path = "loss_tests.rs"]
mod losses;

fn grant(epoch: u64) -> Grant {
    Grant {
        epoch: Epoch(epoch),
        token: Token(u128::from(epoch)),
        ttl: Duration::from_secs(3),
        gateway: format!("g{epoch}"),
        api: format!("h{epoch}:1"),
        nbd: format!("h{epoch}:2"),
    }
}

fn intake(client: u64, cookie: u64, offset: u64, len: u64, command: CommandOut, data: Vec<u8>) -> Intake {
    let to = ReplyTo { cookie, offset, is_read: matches!(command, CommandOut::Read { .. }) };
    Intake { ticket: Ticket { client, to, narrow: false, len }, offset, command, data: Bytes::from(data) }
}

fn write(cookie: u64, offset: u64, data: Vec<u8>) -> Intake {
    intake(0, cookie, offset, data.len() as u64, CommandOut::Write { fua: false }, data)
}

/// One line per action, as the tests below expect them.
fn tell(actions: &[Action]) -> Vec<String> {
    let line = |action: &Action| {
        Some(match action {
            Action::Acquire { request, force } => format!("acquire r{} force={force}", request.0),
            Action::Continue { request, token } => format!("continue r{} token={}", request.0, token.0),
            Action::Renew { number, epoch, api, .. } => format!("renew #{number} {epoch} at {api}"),
            Action::Connect { lane, nbd, .. } => {
                format!("connect gen={} vol={} slot={} to {nbd}", lane.incarnation, lane.volume, lane.slot)
            }
            Action::Shut { incarnation } => format!("shut gen={incarnation}"),
            Action::Send { lane, out, .. } => {
                format!("send {} gen={} slot={}", out.cookie, lane.incarnation, lane.slot)
            }
            Action::Answer { ticket, outcome } => match outcome {
                Ok(_) => format!("answer {} ok", ticket.to.cookie),
                Err(errno) => format!("answer {} {errno:?}", ticket.to.cookie),
            },
            Action::Release { epoch, .. } => format!("release {epoch}"),
            Action::LookWho => "look who".to_string(),
            Action::Room { .. } | Action::Show => return None,
        })
    };
    actions.iter().filter_map(line).collect()
}

/// A machine with one volume, connected under epoch 1.
fn serving(slots: u8) -> Machine {
    let mut machine = Machine::new(RequestId(100), slots, Bounds::default());
    let mut out = Vec::new();
    machine.begin(Moment(0), false, &mut out);
    machine.granted(Moment(1), RequestId(101), grant(1), 1, &mut out);
    for slot in 0..slots {
        machine.connected(Moment(2), Lane { incarnation: 1, volume: 0, slot }, &mut out);
    }
    assert_eq!(machine.phase(), Phase::Serving);
    machine.tick(Moment(2), &mut out);
    machine.renewed(Moment(3), 1, &mut out);
    machine
}

fn renewed(machine: &mut Machine, at: u64) {
    let number = machine.renewals.number;
    step(|out| machine.renewed(Moment(at), number, out));
}

fn step(run: impl FnOnce(&mut Vec<Action>)) -> Vec<String> {
    let mut out = Vec::new();
    run(&mut out);
    tell(&out)
}

#[test]
fn what_was_unanswered_is_sent_again_in_order_before_anything_new() {
    let mut m = serving(2);
    let conn = |machine: &mut Machine, slot| {
        step(|out| machine.connected(Moment(40), Lane { incarnation: 2, volume: 0, slot }, out))
    };
    assert_eq!(step(|out| m.request(Moment(5), 0, write(7, 0, vec![1; 512]), out)), ["send 1 gen=1 slot=0"]);
    // It overlaps the first: held back (ATTACH-M1), and all writes behind it keep their order.
    assert!(step(|out| m.request(Moment(5), 0, write(8, 0, vec![2; 512]), out)).is_empty());
    let read = intake(1, 9, 0, 512, CommandOut::Read { unfragmented: false }, vec![]);
    assert_eq!(step(|out| m.request(Moment(5), 0, read, out)), ["send 3 gen=1 slot=1"]);
    let lost = step(|out| m.lost(Moment(10), 1, &Lost::Connection("reset".into()), out));
    assert_eq!(lost, ["shut gen=1", "continue r102 token=1"]);
    // Late news of the same loss, and a late answer (ATTACH-M4).
    assert!(step(|out| m.lost(Moment(11), 1, &Lost::Connection("reset".into()), out)).is_empty());
    assert!(step(|out| m.answered(Moment(11), 1, 1, Ok(Reply::Done), out)).is_empty());
    // What comes meanwhile waits.
    assert!(step(|out| m.request(Moment(12), 0, write(10, 4096, vec![3; 512]), out)).is_empty());
    let granted = step(|out| m.granted(Moment(30), RequestId(102), grant(2), 1, out));
    assert_eq!(granted, ["connect gen=2 vol=0 slot=0 to h2:2", "connect gen=2 vol=0 slot=1 to h2:2"]);
    assert!(conn(&mut m, 1).is_empty());
    assert_eq!(conn(&mut m, 0), ["send 1 gen=2 slot=0", "send 3 gen=2 slot=1"]);
    assert_eq!(m.view().last_outage_ms, Some(30));
    let answered = step(|out| m.answered(Moment(41), 2, 1, Ok(Reply::Done), out));
    assert_eq!(answered, ["answer 7 ok", "send 2 gen=2 slot=0", "send 4 gen=2 slot=0"]);
}

#[test]
fn only_a_final_word_or_an_error_answer_fences_and_that_is_for_good() {
    let mut m = serving(1);
    step(|out| m.request(Moment(5), 0, write(7, 0, vec![1; 512]), out));
    step(|out| m.lost(Moment(10), 1, &Lost::Connection("reset".into()), out));
    // A refusal of another request than the current one says nothing.
    assert!(step(|out| m.refused(RequestId(101), "stale", out)).is_empty());
    assert_eq!(m.phase(), Phase::Reconnecting);
    let refused = step(|out| m.refused(RequestId(102), "held by db2", out));
    assert_eq!(refused, ["shut gen=1", "answer 7 Io", "look who"]);
    assert_eq!(step(|out| m.request(Moment(20), 0, write(8, 0, vec![1; 512]), out)), ["answer 8 Io"]);
    assert!(step(|out| m.granted(Moment(30), RequestId(102), grant(2), 1, out)).is_empty(), "ATTACH-M5");
    assert!(m.has_room(0));

    for errno in [Errno::Io, Errno::Shutdown] {
        let mut m = serving(1);
        step(|out| m.request(Moment(5), 0, write(7, 0, vec![1; 512]), out));
        assert!(step(|out| m.answered(Moment(6), 1, 1, Err(Errno::NoSpace), out)).contains(&"answer 7 NoSpace".into()));
        step(|out| m.request(Moment(7), 0, write(8, 0, vec![1; 512]), out));
        let fenced = step(|out| m.answered(Moment(8), 1, 2, Err(errno), out));
        assert_eq!(fenced, ["shut gen=1", "answer 8 Io", "look who"]);
    }
}

#[test]
fn a_new_process_takes_requests_at_once_and_sends_them_under_the_continued_lease() {
    let mut m = Machine::new(RequestId(100), 1, Bounds::default());
    assert_eq!(step(|out| m.resume(Moment(0), Token(7), 2, out)), ["continue r101 token=7"]);
    // What waited in the kernel comes before anybody serves; and it waits for as long as it takes.
    assert!(m.has_room(1));
    assert!(step(|out| m.request(Moment(1), 1, write(7, 0, vec![1; 512]), out)).is_empty());
    assert!(step(|out| m.tick(Moment(60_000), out)).is_empty());
    assert!(step(|out| m.request(Moment(60_001), 0, write(8, 0, vec![2; 512]), out)).is_empty());
    let granted = step(|out| m.granted(Moment(60_100), RequestId(101), grant(9), 2, out));
    assert_eq!(granted, ["connect gen=1 vol=0 slot=0 to h9:2", "connect gen=1 vol=1 slot=0 to h9:2"]);
    assert!(step(|out| m.connected(Moment(60_110), Lane { incarnation: 1, volume: 0, slot: 0 }, out)).is_empty());
    let served = step(|out| m.connected(Moment(60_120), Lane { incarnation: 1, volume: 1, slot: 0 }, out));
    assert_eq!(served, ["send 1 gen=1 slot=0", "send 2 gen=1 slot=0"]);
    assert_eq!((m.phase(), m.view().reconnects), (Phase::Serving, 0));

    // Another owner was granted the set in between: what the kernel still holds must not go over what that owner wrote.
    let mut m = Machine::new(RequestId(100), 1, Bounds::default());
    step(|out| m.resume(Moment(0), Token(7), 1, out));
    step(|out| m.request(Moment(1), 0, write(7, 0, vec![1; 512]), out));
    let refused = step(|out| m.refused(RequestId(101), "stale token", out));
    assert_eq!(refused, ["shut gen=0", "answer 7 Io", "look who"]);
    assert_eq!(step(|out| m.request(Moment(2), 0, write(8, 0, vec![1; 512]), out)), ["answer 8 Io"]);
}

#[test]
fn silence_to_a_renewal_is_a_loss_and_an_old_request_alone_is_none() {
    let mut m = serving(1);
    step(|out| m.request(Moment(5), 0, write(7, 0, vec![1; 512]), out));
    assert!(step(|out| m.tick(Moment(100), out)).is_empty());
    // Old enough to ask whether the gateway is there (ATTACH-M7).
    assert_eq!(step(|out| m.tick(Moment(600), out)), ["renew #2 e1 at h1:1"]);
    renewed(&mut m, 610);
    let mut asked = 0;
    for at in (650..5000).step_by(50) {
        for line in step(|out| m.tick(Moment(at), out)) {
            assert!(line.starts_with("renew"), "{line}: the gateway answers, however old the request");
            asked += 1;
            renewed(&mut m, at);
        }
    }
    assert!((6..=10).contains(&asked), "asked {asked} times");
    step(|out| m.tick(Moment(5600), out));
    let asked = m.renewals.outstanding.unwrap().first;
    let noticed = asked.plus(PATIENCE_MIN);
    let silent = step(|out| m.tick(noticed, out));
    assert_eq!(silent, ["shut gen=1", "continue r102 token=1"]);
    step(|out| m.granted(noticed.plus(Duration::from_millis(5)), RequestId(102), grant(2), 1, out));
    let lane = Lane { incarnation: 2, volume: 0, slot: 0 };
    step(|out| m.connected(noticed.plus(Duration::from_millis(10)), lane, out));
    assert_eq!(m.view().last_outage_ms, Some(760), "since it fell silent");
}

#[test]
fn a_lease_is_as_young_as_the_renewal_that_succeeded() {
    let mut m = serving(1);
    assert_eq!(m.view().renewed, Some(Moment(2)));
    // A try that was not heard of renews nothing; the next one counts from when it was sent itself.
    assert_eq!(step(|out| m.tick(Moment(600), out)), ["renew #2 e1 at h1:1"]);
    step(|out| m.renew_failed(Moment(610), 2, None, out));
    assert_eq!(step(|out| m.tick(Moment(800), out)), ["renew #3 e1 at h1:1"]);
    step(|out| m.renewed(Moment(820), 2, out));
    assert_eq!(m.view().renewed, Some(Moment(2)), "an answer to the older try comes too late to say when");
    let mut out = Vec::new();
    m.renewed(Moment(830), 3, &mut out);
    assert_eq!(m.view().renewed, Some(Moment(800)));
    assert_eq!(out, [Action::Show], "whoever stops PostgreSQL by it sees it at once");

    // An election takes two seconds. The grant counts from the first request for it, since an earlier attempt may have
    // been applied (R12).
    step(|out| m.lost(Moment(1000), 1, &Lost::Connection("reset".into()), out));
    assert!(step(|out| m.tick(Moment(2000), out)).is_empty(), "nobody to ask while it is being continued");
    step(|out| m.granted(Moment(3000), RequestId(102), grant(2), 1, out));
    assert_eq!(m.view().renewed, Some(Moment(1000)));
    // ... and so it is renewed at once, before its connections are there.
    assert_eq!(step(|out| m.tick(Moment(3010), out)), ["renew #4 e2 at h2:1"]);
    step(|out| m.renewed(Moment(3020), 4, out));
    assert_eq!(m.view().renewed, Some(Moment(3010)));
    let lane = Lane { incarnation: 2, volume: 0, slot: 0 };
    step(|out| m.connected(Moment(3030), lane, out));
    assert!(step(|out| m.tick(Moment(3500), out)).is_empty());
    // Six times within a time to live: two that are lost leave half of it.
    assert_eq!(step(|out| m.tick(Moment(3510), out)), ["renew #5 e2 at h2:1"]);
}

#[test]
fn a_gateway_that_falls_silent_between_grant_and_connections_is_given_up() {
    let mut m = serving(1);
    step(|out| m.lost(Moment(10), 1, &Lost::Connection("reset".into()), out));
    step(|out| m.granted(Moment(20), RequestId(102), grant(2), 1, out));
    assert_eq!(step(|out| m.tick(Moment(50), out)), ["renew #2 e2 at h2:1"]);
    assert!(step(|out| m.tick(Moment(700), out)).is_empty());
    assert_eq!(step(|out| m.tick(Moment(800), out)), ["shut gen=2"]);
    assert_eq!(step(|out| m.tick(Moment(830), out)), ["continue r103 token=2"]);
}

#[test]
fn a_reconnect_that_comes_to_nothing_is_tried_again_with_pauses() {
    let mut m = serving(1);
    step(|out| m.lost(Moment(10), 1, &Lost::Connection("reset".into()), out));
    step(|out| m.granted(Moment(20), RequestId(102), grant(2), 1, out));
    assert_eq!(step(|out| m.lost(Moment(30), 2, &Lost::Connection("refused".into()), out)), ["shut gen=2"]);
    assert!(step(|out| m.tick(Moment(40), out)).is_empty());
    // Under a request id of its own, with the token of the grant that came last.
    assert_eq!(step(|out| m.tick(Moment(60), out)), ["continue r103 token=2"]);
    assert!(step(|out| m.tick(Moment(100), out)).is_empty(), "one at a time");
}

#[test]
fn detaching_waits_for_answers_then_gives_the_lease_back() {
    let mut m = serving(1);
    step(|out| m.request(Moment(5), 0, write(7, 0, vec![1; 512]), out));
    assert!(step(|out| m.detach(out)).is_empty());
    // Even through a loss.
    step(|out| m.lost(Moment(10), 1, &Lost::Connection("reset".into()), out));
    step(|out| m.granted(Moment(20), RequestId(102), grant(2), 1, out));
    let lane = Lane { incarnation: 2, volume: 0, slot: 0 };
    assert_eq!(step(|out| m.connected(Moment(30), lane, out)), ["send 1 gen=2 slot=0"]);
    let done = step(|out| m.answered(Moment(31), 2, 1, Ok(Reply::Done), out));
    assert_eq!(done, ["answer 7 ok", "shut gen=2", "release e2"]);
    assert!(
        step(|out| m.request(Moment(32), 0, write(8, 0, vec![1; 512]), out)).is_empty(),
        "too late: unanswered (R8)"
    );
    step(|out| m.released(true, out));
    assert_eq!(m.phase(), Phase::Detached);
}

/// Requests that waited in the kernel are carried out, and the lease is given back. Only then has it ended in good
/// order.
#[test]
fn a_resumed_set_that_is_told_to_end_first_continues_its_lease() {
    let mut m = Machine::new(RequestId(100), 1, Bounds::default());
    step(|out| m.resume(Moment(0), Token(7), 1, out));
    step(|out| m.request(Moment(1), 0, write(7, 0, vec![1; 512]), out));
    assert!(step(|out| m.detach(out)).is_empty());
    assert_eq!(m.phase(), Phase::Detaching);
    let granted = step(|out| m.granted(Moment(50), RequestId(101), grant(9), 1, out));
    assert_eq!(granted, ["connect gen=1 vol=0 slot=0 to h9:2"]);
    assert_eq!(m.phase(), Phase::Detaching);
    assert!(step(|out| m.granted(Moment(51), RequestId(101), grant(9), 1, out)).is_empty(), "once");
    let lane = Lane { incarnation: 1, volume: 0, slot: 0 };
    assert_eq!(step(|out| m.connected(Moment(60), lane, out)), ["send 1 gen=1 slot=0"]);
    let done = step(|out| m.answered(Moment(61), 1, 1, Ok(Reply::Done), out));
    assert_eq!(done, ["answer 7 ok", "shut gen=1", "release e9"]);
    step(|out| m.released(true, out));
    assert_eq!(m.phase(), Phase::Detached);

    // Where nothing waits: the lease is to be had before it can be given back.
    let mut m = Machine::new(RequestId(100), 1, Bounds::default());
    step(|out| m.resume(Moment(0), Token(7), 1, out));
    assert!(step(|out| m.detach(out)).is_empty());
    step(|out| m.granted(Moment(50), RequestId(101), grant(9), 1, out));
    assert_eq!(step(|out| m.connected(Moment(60), lane, out)), ["shut gen=1", "release e9"]);

    // Nobody continues it, and somebody else was granted the set.
    let mut m = Machine::new(RequestId(100), 1, Bounds::default());
    step(|out| m.resume(Moment(0), Token(7), 1, out));
    step(|out| m.detach(out));
    assert_eq!(step(|out| m.refused(RequestId(101), "stale token", out)), ["shut gen=0", "look who"]);
    assert_eq!(m.phase(), Phase::Fenced);
}

/// Sectors of the world's volume.
const SECTORS: u64 = 12;
const SECTOR: u64 = 512;

/// A request on its way in an incarnation.
#[derive(Clone, Debug)]
struct Flying {
    incarnation: u64,
    number: u64,
    out: holdfast_nbd::client::RequestOut,
    data: Bytes,
    /// Its answer, once it is carried out.
    reply: Option<Reply>,
}

/// A volume whose sectors hold the number of their last write, and everything that may happen to requests.
struct World {
    machine: Machine,
    now: u64,
    sectors: Vec<u8>,
    flying: Vec<Flying>,
    /// Answers of incarnations that have ended. They may still arrive.
    late: Vec<Flying>,
    unconnected: Vec<Lane>,
    asked: Option<RequestId>,
    epoch: u64,
    cookie: u64,
    /// Last requested write, per sector.
    asked_for: Vec<u8>,
    /// The oldest write that a later read may show, per sector.
    floor: Vec<u8>,
    /// The same at the time of a read's request, by cookie.
    reads: BTreeMap<u64, (usize, Vec<u8>)>,
    writes: BTreeMap<u64, (usize, usize, u8)>,
    answered: usize,
}

use std::collections::BTreeMap;

impl World {
    fn new(slots: u8) -> Self {
        Self {
            machine: serving(slots),
            now: 10,
            sectors: vec![0; SECTORS as usize],
            flying: Vec::new(),
            late: Vec::new(),
            unconnected: Vec::new(),
            asked: None,
            epoch: 1,
            cookie: 0,
            asked_for: vec![0; SECTORS as usize],
            floor: vec![0; SECTORS as usize],
            reads: BTreeMap::new(),
            writes: BTreeMap::new(),
            answered: 0,
        }
    }

    fn act(&mut self, run: impl FnOnce(&mut Machine, Moment, &mut Vec<Action>)) {
        let mut out = Vec::new();
        run(&mut self.machine, Moment(self.now), &mut out);
        for action in out {
            self.perform(action);
        }
        self.machine.self_check();
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Send { lane, out, data } => {
                let incarnation = lane.incarnation;
                assert_eq!(incarnation, self.machine.incarnation());
                self.flying.push(Flying { incarnation, number: out.cookie, out, data, reply: None });
            }
            Action::Connect { lane, .. } => self.unconnected.push(lane),
            Action::Continue { request, .. } => self.asked = Some(request),
            Action::Shut { .. } => self.unconnected.clear(),
            Action::Answer { ticket, outcome } => self.heard(&ticket, &outcome.expect("nobody else wants the set")),
            _ => {}
        }
    }

    fn heard(&mut self, ticket: &Ticket, reply: &Reply) {
        self.answered += 1;
        let cookie = ticket.to.cookie;
        if let Some((from, to, value)) = self.writes.remove(&cookie) {
            self.floor[from..to].iter_mut().for_each(|floor| *floor = value.max(*floor));
        }
        if let Some((from, floor)) = self.reads.remove(&cookie) {
            let Reply::Read(parts) = reply else { panic!("a read's answer is {reply:?}") };
            let [ReadPart::Data(seen)] = &parts[..] else { panic!("one part") };
            for (index, (seen, floor)) in seen.iter().zip(&floor).enumerate() {
                let sector = from + index;
                assert!(seen >= floor, "R3: sector {sector} read as {seen}, and was {floor} before");
                self.floor[sector] = self.floor[sector].max(*seen);
            }
        }
    }

    /// Carries a request out: here its data is one byte per sector.
    fn apply(&mut self, index: usize) {
        let flying = &mut self.flying[index];
        if flying.reply.is_some() {
            return;
        }
        let (from, to) = (flying.out.offset / SECTOR, (flying.out.offset + flying.out.len) / SECTOR);
        let range = from as usize..to as usize;
        flying.reply = Some(match flying.out.command {
            // A trim and a zeroing leave a number here as well, so that their order can be seen.
            CommandOut::Write { .. } | CommandOut::Zero { .. } | CommandOut::Trim { .. } => {
                self.sectors[range].fill(flying.data[0]);
                Reply::Done
            }
            CommandOut::Read { .. } => Reply::Read(vec![ReadPart::Data(Bytes::copy_from_slice(&self.sectors[range]))]),
            _ => Reply::Done,
        });
    }

    fn answer(&mut self, index: usize) {
        self.apply(index);
        let flying = self.flying.remove(index);
        let reply = flying.reply.unwrap();
        self.act(|m, now, out| m.answered(now, flying.incarnation, flying.number, Ok(reply), out));
    }

    fn step(&mut self, kind: u8, a: u64, b: u64) {
        self.now += 1;
        let pick = |len: usize| (a % len.max(1) as u64) as usize;
        match kind {
            0..=5 => {
                let from = a % SECTORS;
                let len = 1 + b % 4.min(SECTORS - from);
                self.cookie += 1;
                let cookie = self.cookie;
                let span = from as usize..(from + len) as usize;
                let request = if kind < 4 {
                    let value = u8::try_from(cookie % 251).unwrap();
                    if value == 0 || cookie > 250 {
                        return;
                    }
                    self.asked_for[span.clone()].fill(value);
                    self.writes.insert(cookie, (span.start, span.end, value));
                    let command = match value % 3 {
                        0 => CommandOut::Trim { fua: false },
                        1 => CommandOut::Zero { punch: true, fast: false, fua: false },
                        _ => CommandOut::Write { fua: false },
                    };
                    intake(b, cookie, from * SECTOR, len * SECTOR, command, vec![value])
                } else {
                    self.reads.insert(cookie, (span.start, self.floor[span].to_vec()));
                    let read = CommandOut::Read { unfragmented: false };
                    intake(b, cookie, from * SECTOR, len * SECTOR, read, vec![])
                };
                self.act(|m, now, out| m.request(now, 0, request, out));
            }
            6..=8 if !self.flying.is_empty() => self.apply(pick(self.flying.len())),
            9..=11 if !self.flying.is_empty() => {
                let index = pick(self.flying.len());
                // A closed socket hands nothing over.
                if self.flying[index].incarnation == self.machine.incarnation() && self.asked.is_none() {
                    self.answer(index);
                }
            }
            12 => {
                let incarnation = self.machine.incarnation();
                self.act(|m, now, out| m.lost(now, incarnation, &Lost::Connection("cut".into()), out));
            }
            13 if !self.late.is_empty() => {
                let late = self.late.swap_remove(pick(self.late.len()));
                let reply = late.reply.unwrap_or(Reply::Done);
                self.act(|m, now, out| m.answered(now, late.incarnation, late.number, Ok(reply), out));
            }
            14..=16 => self.reconnect(),
            17 => {
                self.now += b % 600;
                self.act(|m, now, out| m.tick(now, out));
            }
            _ => {}
        }
    }

    fn reconnect(&mut self) {
        if let Some(request) = self.asked.take() {
            self.epoch += 1;
            let granted = grant(self.epoch);
            // R6: from this grant on nothing of an older epoch is carried out.
            self.late.append(&mut self.flying);
            self.act(|m, now, out| m.granted(now, request, granted, 1, out));
        } else if let Some(lane) = self.unconnected.pop() {
            self.act(|m, now, out| m.connected(now, lane, out));
        }
    }

    /// Runs until all requests are answered.
    fn finish(&mut self) {
        for _ in 0..10_000 {
            self.now += 50;
            self.act(|m, now, out| {
                m.tick(now, out);
            });
            self.act(|m, now, out| m.renewed(now, m.renewals.number, out));
            self.reconnect();
            while self.machine.carries() && !self.flying.is_empty() {
                self.answer(0);
            }
            if self.machine.unanswered() == 0 && self.machine.phase() == Phase::Serving {
                return;
            }
        }
        panic!("never drained: {:?}", self.machine);
    }
}

proptest! {
    #[test]
    fn every_sector_is_a_register_through_all_losses(
        slots in 1u8..4,
        steps in proptest::collection::vec((0u8..18, any::<u64>(), any::<u64>()), 1..300),
    ) {
        let mut world = World::new(slots);
        for (kind, a, b) in steps {
            world.step(kind, a, b);
        }
        world.finish();
        prop_assert!(world.writes.is_empty() && world.reads.is_empty(), "unanswered: {:?}", world.writes);
        prop_assert_eq!(&world.sectors, &world.asked_for, "the last write asked for is what stays");
    }
}

/// ATTACH-M8: one of two volumes was deleted under its device.
#[test]
fn a_lost_volume_fails_alone_and_for_good() {
    let mut m = Machine::new(RequestId(100), 1, Bounds::default());
    let mut out = Vec::new();
    m.begin(Moment(0), false, &mut out);
    m.granted(Moment(1), RequestId(101), grant(1), 2, &mut out);
    let lane = |incarnation, volume| Lane { incarnation, volume, slot: 0 };
    (0..2).for_each(|volume| m.connected(Moment(2), lane(1, volume), &mut out));
    for (volume, cookie) in [(0, 1), (1, 2), (1, 3)] {
        m.request(Moment(3), volume, write(cookie, 0, vec![1]), &mut out);
    }
    m.lost(Moment(4), 1, &Lost::Connection("gone".to_string()), &mut out);
    let lost = |volume| BTreeMap::from([(volume, "volume vol2 is gone".to_string())]);
    let told = step(|out| m.granted_without(Moment(5), RequestId(102), grant(2), 2, lost(1), out));
    assert_eq!(told, ["answer 2 Io", "answer 3 Io", "connect gen=2 vol=0 slot=0 to h2:2"]);
    m.self_check();
    assert!(m.has_room(1), "whoever asks is told");
    assert_eq!(step(|out| m.request(Moment(6), 1, write(4, 0, vec![1]), out)), ["answer 4 Io"]);
    assert_eq!(step(|out| m.connected(Moment(7), lane(2, 0), out)), ["send 1 gen=2 slot=0"], "the other goes on");
    assert_eq!(m.phase(), Phase::Serving);
    assert_eq!(step(|out| m.answered(Moment(8), 2, 1, Ok(Reply::Done), out)), ["answer 1 ok"]);
    // Whatever the volume is by the next grant.
    m.lost(Moment(9), 2, &Lost::Connection("gone".to_string()), &mut out);
    let told = step(|out| m.granted(Moment(10), RequestId(103), grant(3), 2, out));
    assert_eq!(told, ["connect gen=3 vol=0 slot=0 to h3:2"]);
    m.lost(Moment(11), 3, &Lost::Connection("gone".to_string()), &mut out);
    m.tick(Moment(1000), &mut out);
    let told = step(|out| m.granted_without(Moment(1001), RequestId(104), grant(4), 2, lost(0), out));
    assert_eq!((m.phase(), told), (Phase::Fenced, vec!["shut gen=3".to_string()]), "none is left, and nobody took it");
    assert_eq!(m.view().fenced_by.as_deref(), Some("the loss of its last volume: volume vol2 is gone"));
}

/// A device continues with its own volume, not with another of the same name. The set's other volumes do not matter.
#[test]
fn a_device_goes_on_with_the_volume_that_it_was_made_of() {
    let named = |id, name: &str, size| VolumeFacts { id, name: Name::new(name).unwrap(), size };
    let ours = named(1, "vol1", 100);
    let lost = |granted: &[VolumeFacts]| ours.lost_in(granted).unwrap_or_default();
    assert_eq!(lost(&[named(1, "vol1", 100)]), "");
    assert_eq!(lost(&[named(2, "vol2", 7), named(1, "vol1", 200)]), "", "another came, ours grew");
    assert!(lost(&[named(1, "vol1", 99)]).contains("found 99 bytes, expected 100"));
    assert!(lost(&[named(1, "other", 100)]).contains("is other now"));
    assert!(lost(&[named(3, "vol1", 100)]).contains("gone"), "deleted and made anew under its name");
    let grown = |granted: &[VolumeFacts]| ours.grown_in(granted);
    assert_eq!(grown(&[named(2, "vol2", 700), named(1, "vol1", 200)]), Some(200));
    assert_eq!((grown(&[named(1, "vol1", 100)]), grown(&[named(1, "vol1", 99)])), (None, None), "GROWTH-G3");
    assert_eq!((grown(&[named(3, "vol1", 200)]), grown(&[named(1, "other", 200)])), (None, None), "another");
}

#[test]
fn a_renewal_counts_until_it_is_answered_or_the_gateway_is_lost() {
    let mut m = serving(1);
    assert!(!m.awaits_renewal(1), "it was answered");
    assert_eq!(step(|out| m.tick(Moment(600), out)), ["renew #2 e1 at h1:1"]);
    assert!(m.awaits_renewal(2));
    step(|out| m.lost(Moment(610), 1, &Lost::Connection("reset".into()), out));
    assert!(!m.awaits_renewal(2), "what it says is of before");
}
