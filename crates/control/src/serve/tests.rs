//! The gate against a simple model, and the times against clocks with wrong rates.

use super::{ClockSuspicion, ClockWatch, ExpiryJudge, GateEvent, ServeGate, Timing, WhyNot};
use crate::set::Lease;
use holdfast_types::pledge::VoteEmbargo;
use holdfast_types::{Epoch, LogId, LogIndex, MemberId, MonoTime, Owner, RequestId, SteadyClock, Term, Token};
use proptest::collection::vec;
use proptest::prelude::*;
use std::time::Duration;

const MS: u64 = 1_000_000;
const ME: MemberId = MemberId(1);

fn lan() -> Timing {
    Timing::from_rtt(Duration::from_millis(1))
}

fn at(ms: u64) -> MonoTime {
    MonoTime(ms * MS)
}

/// Events, with small numbers so that they collide.
fn events() -> impl Strategy<Value = GateEvent> {
    let term = || (1u64..5).prop_map(Term);
    prop_oneof![
        4 => term().prop_map(|term| GateEvent::TermStarted { term }),
        4 => term().prop_map(|term| GateEvent::FirstEntryApplied { term }),
        6 => (1u64..5, 1u64..30, prop::bool::weighted(0.8)).prop_map(|(term, index, here)| GateEvent::GrantApplied {
            // Log ids in the same order by both parts, as in any log.
            id: LogId::new(term, term * 100 + index),
            epoch: Epoch(term * 100 + index),
            gateway: if here { ME } else { MemberId(2) },
        }),
        1 => (1u64..5, 1u64..30).prop_map(|(term, index)| GateEvent::LeaseReleased { epoch: Epoch(term * 100 + index) }),
        1 => Just(GateEvent::TransferStarted),
        1 => Just(GateEvent::LeadershipLost),
        1 => Just(GateEvent::ClockSuspicion),
        8 => (0u64..2000).prop_map(|ms| GateEvent::acked(&lan(), at(ms))),
        1 => Just(GateEvent::NoQuorum),
        1 => any::<bool>().prop_map(GateEvent::SoleVoter),
    ]
}

/// The whole history, searched for each question.
struct History(Vec<(MonoTime, GateEvent)>);

impl History {
    /// The latest term in which it led: position in the history, time, and number.
    fn term(&self) -> Option<(usize, MonoTime, Term)> {
        let mut latest: Option<(usize, MonoTime, Term)> = None;
        for (place, (now, event)) in self.0.iter().enumerate() {
            if let GateEvent::TermStarted { term } = event
                && latest.is_none_or(|(_, _, before)| *term > before)
            {
                latest = Some((place, *now, *term));
            }
        }
        latest
    }

    fn after(&self, place: usize, wanted: impl Fn(&GateEvent) -> bool) -> bool {
        self.0.iter().skip(place).any(|(_, event)| wanted(event))
    }

    fn serving(&self) -> Option<Epoch> {
        let (place, _, term) = self.term()?;
        let over = |event: &GateEvent| matches!(event, GateEvent::LeadershipLost | GateEvent::TransferStarted);
        let applied = self.0.iter().filter_map(|(_, event)| match event {
            GateEvent::FirstEntryApplied { term } => Some(*term),
            _ => None,
        });
        if self.after(place, over) || applied.max() != Some(term) {
            return None;
        }
        let grants = self.0.iter().enumerate().filter_map(|(place, (_, event))| match event {
            GateEvent::GrantApplied { id, epoch, gateway } => Some((*id, std::cmp::Reverse(place), *epoch, *gateway)),
            _ => None,
        });
        // The first copy of the latest.
        let (id, std::cmp::Reverse(place), epoch, gateway) = grants.max_by_key(|(id, place, ..)| (*id, *place))?;
        let released = self.after(place, |event| *event == GateEvent::LeaseReleased { epoch });
        (gateway == ME && id.term == term && !released).then_some(epoch)
    }

    fn read_lease(&self, now: MonoTime, timing: &Timing) -> bool {
        let Some((started_place, started, _)) = self.term() else { return false };
        if self.after(started_place, |event| *event == GateEvent::LeadershipLost) {
            return false;
        }
        let sole = self.0.iter().rev().find_map(|(_, event)| match event {
            GateEvent::SoleVoter(sole) => Some(*sole),
            _ => None,
        });
        let fresh = |place: usize, sent: MonoTime| {
            let suspected = self.0.iter().take(place).filter(|(_, event)| *event == GateEvent::ClockSuspicion);
            let newer = suspected.map(|(at, _)| *at).all(|at| sent > at);
            place > started_place && sent >= started && newer
        };
        // The newest word of the voters, unless that is that they have said nothing.
        let newest = self.0.iter().enumerate().rev().find_map(|(place, (_, event))| match event {
            GateEvent::QuorumAcked { sent, .. } if fresh(place, *sent) => Some(Some(*sent)),
            GateEvent::NoQuorum | GateEvent::ClockSuspicion => Some(None),
            _ => None,
        });
        let until = |sent: MonoTime| sent.saturating_add(timing.leader_lease() - timing.drift_margin());
        sole == Some(true) || newest.flatten().is_some_and(|sent| now < until(sent))
    }
}

/// Rate of a clock in percent: mostly at the limits.
fn speed() -> impl Strategy<Value = u64> {
    prop_oneof![2 => Just(90u64), 2 => Just(110u64), 1 => 90u64..=110]
}

/// Bounds are met where nothing comes late.
fn often_zero(end: u64) -> impl Strategy<Value = u64> {
    prop_oneof![1 => Just(0), 1 => 0..end]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// R3: serves exactly when all needed events arrived and no forbidding one.
    #[test]
    fn r3_the_gate_like_a_list_of_what_was_told(
        steps in vec((0u64..60, events()), 1..40), look_after in 0u64..400,
    ) {
        let timing = lan();
        let mut gate = ServeGate::new(ME, timing, at(0));
        let mut told = History(Vec::new());
        let mut now = at(0);
        for (wait, event) in steps {
            now = now.saturating_add(Duration::from_millis(wait));
            gate.event(now, event);
            told.0.push((now, event));
            for look in [now, now.saturating_add(Duration::from_millis(look_after))] {
                let (serving, lease) = (told.serving(), told.read_lease(look, &timing));
                prop_assert_eq!(gate.serving().ok(), serving);
                prop_assert_eq!(gate.may_read(look).ok(), serving.filter(|_| lease), "{:?}", gate.may_read(look));
                prop_assert!(!lease || !gate.cut_off(look), "a gateway with a read lease is not cut off");
                let expected = if gate.cut_off(look) { None } else { serving };
                prop_assert_eq!(gate.may_write(look).ok(), expected);
                if let Err(WhyNot::CutOff { without, max }) = gate.may_read(look) {
                    prop_assert!(without > max && gate.cut_off(look));
                }
            }
        }
    }

    /// Events of apply and of Raft's metrics arrive independently: their interleaving must not matter.
    #[test]
    fn facts_of_two_sources_come_in_any_mixture(
        raft in vec((1u64..5, 0u8..6), 1..10), applied in vec((1u64..5, 0u8..4), 1..10), mixture in vec(any::<bool>(), 20),
    ) {
        let raft: Vec<GateEvent> = raft.into_iter().map(|(term, kind)| match kind {
            0 => GateEvent::LeadershipLost,
            1 => GateEvent::TransferStarted,
            _ => GateEvent::TermStarted { term: Term(term) },
        }).collect();
        let mut entries = applied;
        entries.sort_unstable();
        let mut index = 0;
        let applied: Vec<GateEvent> = entries.into_iter().map(|(term, kind)| {
            index += 1;
            match kind {
                0 | 1 => GateEvent::FirstEntryApplied { term: Term(term) },
                _ => GateEvent::GrantApplied { id: LogId::new(term, index), epoch: Epoch(index), gateway: ME },
            }
        }).collect();
        let mut straight = ServeGate::new(ME, lan(), at(0));
        for event in raft.iter().chain(&applied) {
            straight.event(at(1), *event);
        }
        let mut mixed = ServeGate::new(ME, lan(), at(0));
        let (mut raft, mut applied) = (raft.into_iter(), applied.into_iter());
        for first in mixture {
            let event = if first { raft.next() } else { applied.next() };
            event.into_iter().for_each(|event| mixed.event(at(1), event));
        }
        raft.chain(applied).for_each(|event| mixed.event(at(1), event));
        prop_assert_eq!(mixed.serving(), straight.serving());
    }

    #[test]
    fn every_class_of_round_trip_has_sound_times(rtt_us in 0u64..5_000_000) {
        let timing = Timing::from_rtt(Duration::from_micros(rtt_us));
        prop_assert!(timing.relations_hold(), "{timing:?}");
        prop_assert_eq!(timing.leader_lease(), timing.election_max());
        prop_assert_eq!(timing.read_lease() + timing.drift_margin(), timing.leader_lease());
    }

    /// R3 with clocks that are wrong by up to the bound: there is no moment at which the old leader still answers reads
    /// and a voter that acknowledged it may vote for another. The voter may have heard the heartbeat arbitrarily late,
    /// or restarted right after it.
    #[test]
    fn r3_no_reads_once_a_voter_is_free(
        rtt_ms in 1u64..1000, leader_speed in speed(), other_speed in speed(),
        sent_ms in 0u64..100_000, delay_ms in often_zero(5_000), restarted: bool, later_ms in often_zero(10_000),
        leader_offset in 0u64..1_000_000_000_000, other_offset in 0u64..1_000_000_000_000,
    ) {
        let timing = Timing::from_rtt(Duration::from_millis(rtt_ms));
        // Real time is in nanoseconds; a clock shows offset + speed percent of it.
        let leader_clock = |real: u64| MonoTime(leader_offset + real / 100 * leader_speed);
        let other_clock = |real: u64| MonoTime(other_offset + real / 100 * other_speed);
        let real_after = |since: u64, on_clock: Duration| since + (on_clock.as_nanos() as u64).div_ceil(other_speed) * 100;

        let sent = sent_ms * MS;
        let mut gate = ServeGate::new(ME, timing, leader_clock(0));
        gate.event(leader_clock(0), GateEvent::TermStarted { term: Term(1) });
        gate.event(leader_clock(0), GateEvent::FirstEntryApplied { term: Term(1) });
        let grant = GateEvent::GrantApplied { id: LogId::new(1, 2), epoch: Epoch(2), gateway: ME };
        gate.event(leader_clock(0), grant);
        gate.event(leader_clock(sent), GateEvent::acked(&timing, leader_clock(sent)));
        prop_assert_eq!(gate.may_read(leader_clock(sent)), Ok(Epoch(2)));

        let heard = sent + delay_ms * MS;
        let free = if restarted {
            let embargo = VoteEmbargo::new(other_clock(heard), None, timing.embargo());
            let free = real_after(heard, timing.embargo());
            prop_assert!(embargo.left(other_clock(free).saturating_add(Duration::from_micros(1))).is_none());
            prop_assert!(embargo.left(other_clock(free.saturating_sub(MS))).is_some());
            free
        } else {
            real_after(heard, timing.leader_lease())
        };
        // A microsecond for the rounding of the clocks in this test.
        let answered = leader_clock(free + 1000 + later_ms * MS);
        prop_assert!(gate.may_read(answered).is_err(), "{timing:?} leader {leader_speed}% other {other_speed}%");
    }

    /// R3, also with clocks that go back, by more than passes between two looks at them: no voter is free while the old
    /// leader still answers reads. And the leader answers again as soon as a quorum has answered it, however far its
    /// clock went back.
    #[test]
    fn r3_no_reads_once_a_voter_is_free_though_clocks_go_back(
        rtt_ms in 1u64..1000, leader_speed in speed(), other_speed in speed(), heard in often_zero(20),
        leader_back in (0u64..60, 0u64..10_000), other_back in (0u64..60, 0u64..10_000),
    ) {
        let timing = Timing::from_rtt(Duration::from_millis(rtt_ms));
        // Real time, in steps from one look at the clocks to the next.
        let tick = timing.clock_tick().as_nanos() as u64;
        let machine = |step: u64, speed: u64, (from, by_ms): (u64, u64)| {
            let back = if step >= from { 2 * tick + by_ms * MS } else { 0 };
            MonoTime((1 << 50) + step * tick / 100 * speed - back)
        };
        let (mut leader, mut other) = (SteadyClock::new(), SteadyClock::new());
        let sent = leader.read(machine(0, leader_speed, leader_back)).now;
        let mut gate = ServeGate::new(ME, timing, sent);
        gate.event(sent, GateEvent::TermStarted { term: Term(1) });
        gate.event(sent, GateEvent::FirstEntryApplied { term: Term(1) });
        gate.event(sent, GateEvent::GrantApplied { id: LogId::new(1, 2), epoch: Epoch(2), gateway: ME });
        gate.event(sent, GateEvent::acked(&timing, sent));
        prop_assert_eq!(gate.may_read(sent), Ok(Epoch(2)));
        let mut promised = None;
        for step in 0..100 {
            let now = gate.read_clock(leader.read(machine(step, leader_speed, leader_back)));
            let voters = other.read(machine(step, other_speed, other_back)).now;
            if step == heard {
                promised = Some(voters.saturating_add(timing.leader_lease()));
            }
            let free = promised.is_some_and(|until| voters >= until);
            prop_assert!(!free || gate.may_read(now).is_err(), "step {step}: read at {now:?}, voter free");
        }
        let now = gate.read_clock(leader.read(machine(100, leader_speed, leader_back)));
        gate.event(now, GateEvent::acked(&timing, now));
        prop_assert_eq!(gate.may_read(now), Ok(Epoch(2)), "it must not wait until its clock has caught up");
    }

    /// A leader whose heartbeats are answered keeps its read lease, also if two in a row are lost.
    #[test]
    fn a_quiet_cluster_keeps_its_read_lease(rtt_ms in 1u64..1000, lost in vec(any::<bool>(), 1..60)) {
        let timing = Timing::from_rtt(Duration::from_millis(rtt_ms));
        let heartbeat = timing.heartbeat().as_nanos() as u64;
        let rtt = rtt_ms * MS;
        let mut gate = ServeGate::new(ME, timing, at(0));
        gate.event(at(0), GateEvent::TermStarted { term: Term(1) });
        gate.event(at(0), GateEvent::FirstEntryApplied { term: Term(1) });
        gate.event(at(0), GateEvent::GrantApplied { id: LogId::new(1, 2), epoch: Epoch(2), gateway: ME });
        gate.event(at(0), GateEvent::acked(&timing, at(0)));
        let mut in_a_row = 0;
        for (beat, lost) in (1u64..).zip(lost) {
            let arrives = MonoTime(beat * heartbeat + rtt);
            // Right before this answer arrives is the worst moment.
            prop_assert_eq!(gate.may_read(MonoTime(arrives.0 - 1)), Ok(Epoch(2)), "beat {}", beat);
            in_a_row = if lost && in_a_row < 2 { in_a_row + 1 } else { 0 };
            if in_a_row == 0 {
                gate.event(arrives, GateEvent::acked(&timing, MonoTime(beat * heartbeat)));
            }
        }
    }

    /// Clocks with equal rates are trusted at any offset; a suspend above the margin is always noticed, also in pieces.
    #[test]
    fn a_sleep_is_seen_once_it_adds_up(
        offset in 0u64..1_000_000, steps in vec((0u64..15, 0u64..30), 1..80),
    ) {
        let timing = lan();
        let mut watch = ClockWatch::with_timing(&timing);
        let (mut boot, mut monotonic) = (at(offset), at(0));
        prop_assert_eq!(watch.sample(boot, monotonic), None);
        let mut asleep = Duration::ZERO;
        for (ran, slept) in steps {
            monotonic = monotonic.saturating_add(Duration::from_millis(ran));
            boot = boot.saturating_add(Duration::from_millis(ran + slept));
            asleep += Duration::from_millis(slept);
            let found = watch.sample(boot, monotonic);
            prop_assert_eq!(found.is_some(), asleep > timing.drift_margin(), "asleep {:?}: {:?}", asleep, found);
            if let Some(found) = found {
                prop_assert_eq!(found.lost(), asleep);
                asleep = Duration::ZERO;
            }
        }
    }

    /// A lease is judged expired exactly when the leader has seen no renewal for its time to live.
    #[test]
    fn a_judgement_waits_the_whole_time(
        ttl_ms in 100u32..5000, elected_ms in 0u64..10_000, renewals in vec(0u64..10_000, 1..10),
    ) {
        let mut renewals = renewals;
        renewals.sort_unstable();
        let mut judge = ExpiryJudge::new();
        let mut elected = false;
        for (index, ms) in (10u64..).zip(&renewals) {
            if !elected && *ms >= elected_ms {
                judge.elected(at(elected_ms));
                elected = true;
            }
            prop_assert!(elected || judge.judge(at(u64::MAX / MS)).is_none(), "expected no judgement by a follower");
            judge.observe(at(*ms), Some(&lease(ttl_ms, index)));
            // A repeated observation of the same state must not restart the time.
            judge.observe(at(*ms + 1), Some(&lease(ttl_ms, index)));
        }
        if !elected {
            judge.elected(at(elected_ms));
        }
        let last = renewals.last().copied().unwrap_or(0).max(elected_ms);
        let expires = last + u64::from(ttl_ms);
        prop_assert_eq!(judge.expires_at(), Some(at(expires)));
        prop_assert!(judge.judge(at(expires - 1)).is_none());
        let judged = judge.judge(at(expires));
        prop_assert_eq!(judged.map(|judged| judged.renewed.0), Some(9 + renewals.len() as u64));
        judge.leadership_lost();
        prop_assert!(judge.judge(at(expires)).is_none());
    }
}

fn lease(ttl_ms: u32, renewed: u64) -> Lease {
    Lease {
        owner: Owner::new("a").unwrap(),
        gateway: ME,
        epoch: Epoch(10),
        token: Token(1),
        earlier_tokens: Vec::new(),
        ttl_ms,
        request: RequestId(1),
        granted: LogIndex(10),
        renewed: LogIndex(renewed),
        plain: false,
        since_unix_ms: 0,
    }
}

/// A vote since then carries no lease, so an acknowledgement of an earlier term of this gateway proves nothing in this
/// one.
#[test]
fn an_acknowledgement_of_an_earlier_term_does_not_count() {
    let mut gate = ServeGate::new(ME, lan(), at(0));
    gate.event(at(0), GateEvent::TermStarted { term: Term(1) });
    gate.event(at(10), GateEvent::acked(&lan(), at(10)));
    gate.event(at(20), GateEvent::TransferStarted);
    gate.event(at(30), GateEvent::LeadershipLost);
    gate.event(at(40), GateEvent::TermStarted { term: Term(3) });
    gate.event(at(41), GateEvent::FirstEntryApplied { term: Term(3) });
    gate.event(at(42), GateEvent::GrantApplied { id: LogId::new(3, 9), epoch: Epoch(9), gateway: ME });
    assert_eq!(gate.may_read(at(43)), Err(WhyNot::NoReadLease));
    gate.event(at(44), GateEvent::acked(&lan(), at(39)));
    assert_eq!(gate.may_read(at(45)), Err(WhyNot::NoReadLease));
    gate.event(at(46), GateEvent::acked(&lan(), at(40)));
    assert_eq!(gate.may_read(at(47)), Ok(Epoch(9)));
}

/// Nobody knows how long the clock stood still: what was asked for at that moment may have been asked for before it.
#[test]
fn an_acknowledgement_of_the_moment_of_a_suspicion_does_not_count() {
    let mut gate = ServeGate::new(ME, lan(), at(0));
    gate.event(at(0), GateEvent::TermStarted { term: Term(1) });
    gate.event(at(0), GateEvent::FirstEntryApplied { term: Term(1) });
    gate.event(at(0), GateEvent::GrantApplied { id: LogId::new(1, 2), epoch: Epoch(2), gateway: ME });
    gate.event(at(10), GateEvent::ClockSuspicion);
    gate.event(at(11), GateEvent::acked(&lan(), at(10)));
    assert_eq!(gate.may_read(at(12)), Err(WhyNot::NoReadLease));
    gate.event(at(12), GateEvent::acked(&lan(), at(11)));
    assert_eq!(gate.may_read(at(12)), Ok(Epoch(2)));
}

/// The owner may have renewed all the time that the leader has not seen.
#[test]
fn time_that_was_not_seen_is_given_back_from_the_last_renewal_on() {
    let mut judge = ExpiryJudge::new();
    judge.elected(at(0));
    judge.observe(at(1000), Some(&lease(3000, 10)));
    assert_eq!(judge.expires_at(), Some(at(4000)));
    judge.clock_suspected(at(2500), Duration::from_millis(1000));
    assert_eq!(judge.expires_at(), Some(at(5000)));
    // At most from now on.
    judge.clock_suspected(at(2600), Duration::from_secs(3600));
    assert_eq!(judge.expires_at(), Some(at(5600)));
}

/// A later leader's entry was applied here before the loss of leadership was reported.
#[test]
fn a_later_leaders_entry_closes_the_gate() {
    let mut gate = ServeGate::new(ME, lan(), at(0));
    gate.event(at(0), GateEvent::TermStarted { term: Term(1) });
    gate.event(at(0), GateEvent::FirstEntryApplied { term: Term(1) });
    gate.event(at(0), GateEvent::GrantApplied { id: LogId::new(1, 2), epoch: Epoch(2), gateway: ME });
    gate.event(at(1), GateEvent::acked(&lan(), at(1)));
    assert_eq!(gate.may_read(at(2)), Ok(Epoch(2)));
    gate.event(at(2), GateEvent::FirstEntryApplied { term: Term(2) });
    assert_eq!(gate.may_read(at(2)), Err(WhyNot::NotLeader));
    assert_eq!(gate.may_write(at(2)), Err(WhyNot::NotLeader));
}

#[test]
fn only_what_passes_by_itself_is_waited_for() {
    assert!(WhyNot::NoReadLease.may_pass());
    assert!(WhyNot::FirstEntryPending { term: Term(1) }.may_pass());
    for why in [
        WhyNot::NotLeader,
        WhyNot::NoGrant { term: Term(1) },
        WhyNot::GrantElsewhere { gateway: ME, epoch: Epoch(1) },
        WhyNot::Released { epoch: Epoch(1) },
        WhyNot::TransferStarted { term: Term(1) },
        WhyNot::CutOff { without: Duration::from_secs(1), max: Duration::ZERO },
    ] {
        assert!(!why.may_pass(), "{why}");
    }
}

/// What a task tells again and again must not put off the moment from which clients are sent elsewhere.
#[test]
fn what_is_told_again_does_not_put_off_the_cut_off() {
    let term = Term(1);
    for again in [
        GateEvent::SoleVoter(false),
        GateEvent::ClockSuspicion,
        GateEvent::NoQuorum,
        GateEvent::TermStarted { term },
        GateEvent::FirstEntryApplied { term },
        GateEvent::LeaseReleased { epoch: Epoch(1) },
    ] {
        let mut gate = ServeGate::new(ME, lan(), at(0));
        gate.event(at(0), GateEvent::TermStarted { term });
        gate.event(at(0), GateEvent::FirstEntryApplied { term });
        gate.event(at(0), GateEvent::GrantApplied { id: LogId::new(1, 2), epoch: Epoch(2), gateway: ME });
        (10..600).step_by(10).for_each(|ms| gate.event(at(ms), again));
        // Up to the election timeout it may still hear from a quorum.
        assert_eq!((gate.may_read(at(600)), gate.cut_off(at(600))), (Err(WhyNot::NoReadLease), false), "{again:?}");
        assert_eq!(gate.may_write(at(600)), Ok(Epoch(2)), "{again:?}");
        let over = WhyNot::CutOff { without: Duration::from_millis(601), max: lan().cut_off_after() };
        assert_eq!((gate.may_read(at(601)), gate.may_write(at(601))), (Err(over), Err(over)), "{again:?}");
    }
}

/// Shorter times may come with each answer of a voter: a pause that began under longer ones is no gap under them. Else
/// each time all read leases of the gateway were void. But clocks have to be as exact as the shorter ones need.
#[test]
fn shorter_times_make_no_gap_of_the_pause_before() {
    let (near, far) = (lan(), Timing::from_rtt(Duration::from_millis(300)));
    let (pause, margin) = (far.clock_tick(), near.drift_margin());
    assert!(pause > near.gap_max());
    let mut watch = ClockWatch::with_timing(&far);
    let mut now = at(1000);
    assert_eq!(watch.sample(now, now), None);
    for late in [Duration::ZERO, margin] {
        now = now.saturating_add(pause).saturating_add(late);
        watch.set_timing(&near, pause);
        assert_eq!(watch.sample(now, now), None, "late by {late:?}");
    }
    let more = margin + Duration::from_millis(1);
    now = now.saturating_add(pause).saturating_add(more);
    watch.set_timing(&near, pause);
    let found = watch.sample(now, now);
    assert!(matches!(found, Some(ClockSuspicion::Gap { .. })), "{found:?}");
    now = now.saturating_add(near.clock_tick());
    watch.set_timing(&near, near.clock_tick());
    let found = watch.sample(now.saturating_add(more), now);
    assert!(matches!(found, Some(ClockSuspicion::Apart { .. })), "{found:?}");
}
