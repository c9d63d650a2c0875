//! Connections that end again and again, and clients that leave.

use super::*;

/// If a gateway ends its connections because of one request under every grant, reconnects have pauses. Each reconnect
/// is a new grant, and the set's other volumes wait for it.
#[test]
fn connections_that_end_over_the_same_request_are_made_again_with_pauses() {
    // With and without answers to others in between.
    for others in [false, true] {
        let mut m = serving(1);
        let read = intake(1, 9, 0, 512, CommandOut::Read { unfragmented: false }, vec![]);
        step(|out| m.request(Moment(5), 0, read, out));
        let (mut now, mut continued, mut epoch) = (10, 0, 1);
        let mut request = None;
        while now < 3010 {
            let mut out = Vec::new();
            match request.take() {
                None if m.carries() => {
                    if others {
                        m.request(Moment(now), 0, write(100 + now, 4096, vec![1; 512]), &mut out);
                        let (incarnation, number) = (m.incarnation(), m.table.len() as u64);
                        let last = m.table.sendable().pop().unwrap_or(number);
                        m.answered(Moment(now), incarnation, last, Ok(Reply::Done), &mut out);
                        out.clear();
                    }
                    let incarnation = m.incarnation();
                    m.lost(Moment(now), incarnation, &Lost::Connection("closed".into()), &mut out);
                }
                None => m.tick(Moment(now), &mut out),
                Some(id) => {
                    epoch += 1;
                    m.granted(Moment(now), id, grant(epoch), 1, &mut out);
                    let lane = Lane { incarnation: m.incarnation(), volume: 0, slot: 0 };
                    m.connected(Moment(now), lane, &mut out);
                }
            }
            for action in out {
                if let Action::Continue { request: id, .. } = action {
                    (request, continued) = (Some(id), continued + 1);
                }
            }
            now += 2;
        }
        assert!((5..=14).contains(&continued), "others {others}: continued {continued} times in three seconds");
        // Once it has served for a while, the next loss is followed at once.
        while !m.carries() {
            let mut out = Vec::new();
            m.tick(Moment(now), &mut out);
            if let Some(id) = request.take() {
                m.granted(Moment(now), id, grant(epoch + 1), 1, &mut out);
                let lane = Lane { incarnation: m.incarnation(), volume: 0, slot: 0 };
                m.connected(Moment(now), lane, &mut out);
            }
            request = out.iter().find_map(|action| match action {
                Action::Continue { request, .. } => Some(*request),
                _ => None,
            });
            now += 50;
        }
        let incarnation = m.incarnation();
        step(|out| m.answered(Moment(now), incarnation, 1, Ok(Reply::Read(Vec::new())), out));
        let lost = step(|out| m.lost(Moment(now + 2000), incarnation, &Lost::Connection("reset".into()), out));
        assert!(lost.iter().any(|line| line.starts_with("continue")), "{lost:?}");
    }
}

/// CLIENT-F2: reads of a client that left are not sent again, and their late answers are ignored. Its writes are sent
/// again.
#[test]
fn reads_of_a_client_that_left_are_dropped_and_its_writes_are_not() {
    let mut m = serving(1);
    let read = |client, cookie| intake(client, cookie, 0, 512, CommandOut::Read { unfragmented: false }, vec![]);
    step(|out| m.request(Moment(5), 0, read(7, 1), out));
    step(|out| m.request(Moment(5), 0, intake(7, 2, 0, 512, CommandOut::Cache, vec![]), out));
    step(|out| m.request(Moment(5), 0, intake(7, 3, 0, 512, CommandOut::BlockStatus { one: false }, vec![]), out));
    let kept = intake(7, 4, 0, 512, CommandOut::Write { fua: false }, vec![1; 512]);
    step(|out| m.request(Moment(5), 0, kept, out));
    step(|out| m.request(Moment(5), 0, read(8, 5), out));
    let mut out = Vec::new();
    m.forget(7, &mut out);
    assert_eq!(out, [Action::Room { volume: 0 }]);
    m.self_check();
    assert_eq!(m.unanswered(), 2);
    assert!(step(|out| m.answered(Moment(6), 1, 1, Ok(Reply::Read(Vec::new())), out)).is_empty(), "late");
    step(|out| m.lost(Moment(10), 1, &Lost::Connection("reset".into()), out));
    step(|out| m.granted(Moment(20), RequestId(102), grant(2), 1, out));
    let again = step(|out| m.connected(Moment(30), Lane { incarnation: 2, volume: 0, slot: 0 }, out));
    assert_eq!(again, ["send 4 gen=2 slot=0", "send 5 gen=2 slot=0"]);
    // Nobody waits for what is left of one that leaves in the end.
    step(|out| m.answered(Moment(31), 2, 4, Ok(Reply::Done), out));
    m.detach(&mut Vec::new());
    assert_eq!(step(|out| m.forget(8, out)), ["shut gen=2", "release e2"]);
    step(|out| m.released(false, out));
    assert!(m.view().lease_left && m.phase() == Phase::Detached);
}

/// ATTACH-M8, found out while everything is connected: the answer to a renewal has an effect before the next grant.
#[test]
fn a_volume_that_is_lost_while_it_is_connected_fails_at_once() {
    let connected = || {
        let (mut m, mut out) = (Machine::new(RequestId(100), 1, Bounds::default()), Vec::new());
        m.begin(Moment(0), false, &mut out);
        m.granted(Moment(1), RequestId(101), grant(1), 2, &mut out);
        (0..2).for_each(|volume| m.connected(Moment(2), Lane { incarnation: 1, volume, slot: 0 }, &mut out));
        m.request(Moment(3), 1, write(1, 0, vec![1]), &mut out);
        m
    };
    let lost = |volume| BTreeMap::from([(volume, "volume vol2 is gone".to_string())]);
    let mut m = connected();
    step(|out| m.request(Moment(3), 0, write(2, 0, vec![1]), out));
    assert_eq!(step(|out| m.lose_volumes(lost(1), out)), ["answer 1 Io"]);
    m.self_check();
    assert!(m.flows(Moment(4), 0) && !m.flows(Moment(4), 1));
    assert!(step(|out| m.answered(Moment(4), 1, 1, Ok(Reply::Done), out)).is_empty(), "late");
    assert_eq!(step(|out| m.request(Moment(5), 1, write(3, 0, vec![1]), out)), ["answer 3 Io"]);
    assert_eq!(step(|out| m.answered(Moment(6), 1, 2, Ok(Reply::Done), out)), ["answer 2 ok"], "the other goes on");
    step(|out| m.lost(Moment(7), 1, &Lost::Connection("reset".into()), out));
    let granted = step(|out| m.granted(Moment(8), RequestId(102), grant(2), 2, out));
    assert_eq!(granted, ["connect gen=2 vol=0 slot=0 to h2:2"]);
    assert_eq!(step(|out| m.lose_volumes(lost(0), out)), ["shut gen=2"]);
    assert_eq!(m.phase(), Phase::Fenced, "none is left");
    assert_eq!(m.view().fenced_by.as_deref(), Some("the loss of its last volume: volume vol2 is gone"));
    assert!(step(|out| m.lose_volumes(lost(0), out)).is_empty());

    // Nobody waits for what will not be answered.
    let mut m = connected();
    assert!(step(|out| m.detach(out)).is_empty());
    assert_eq!(step(|out| m.lose_volumes(lost(1), out)), ["answer 1 Io", "shut gen=1", "release e1"]);
    assert!(step(|out| m.lose_volumes(lost(0), out)).is_empty());
    assert_eq!(m.phase(), Phase::Detaching, "it is being given back");
}

#[test]
fn what_was_said_before_a_loss_stands_no_more() {
    let mut m = serving(1);
    assert!(m.stands(1) && !m.stands(0));
    step(|out| m.lost(Moment(10), 1, &Lost::Connection("reset".into()), out));
    assert!(!m.stands(1), "the lease is being continued");
    step(|out| m.granted(Moment(20), RequestId(102), grant(2), 1, out));
    assert!(!m.stands(1) && m.stands(2), "also before it is connected");
}

#[test]
fn a_volume_whose_oldest_request_waits_for_long_does_not_flow() {
    let mut m = serving(1);
    let mut out = Vec::new();
    assert!(m.flows(Moment(5), 0) && m.flows(Moment(60_000), 0), "nothing is asked for");
    m.request(Moment(5), 0, write(7, 0, vec![1; 512]), &mut out);
    m.request(Moment(4_000), 0, write(8, 4096, vec![1; 512]), &mut out);
    assert!(m.flows(Moment(5_000), 0) && !m.flows(Moment(5_100), 0));
    assert!(m.flows(Moment(5_100), 1), "another volume");
    m.answered(Moment(5_100), 1, 1, Ok(Reply::Done), &mut out);
    assert!(m.flows(Moment(5_100), 0));
    m.lost(Moment(5_200), 1, &Lost::Connection("reset".into()), &mut out);
    assert!(!m.flows(Moment(5_200), 0), "nobody serves");
    m.granted(Moment(8_900), RequestId(102), grant(2), 1, &mut out);
    let lane = Lane { incarnation: 2, volume: 0, slot: 0 };
    assert_eq!(step(|out| m.connected(Moment(9_000), lane, out)), ["send 2 gen=2 slot=0"]);
    assert!(m.flows(Moment(8_999), 0) && !m.flows(Moment(9_000), 0), "it is as old as before it was sent again");
    m.answered(Moment(9_010), 2, 2, Ok(Reply::Done), &mut out);
    assert!(m.flows(Moment(9_010), 0));
}
