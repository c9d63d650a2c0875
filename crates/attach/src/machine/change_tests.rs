//! Trims and zeroings: they change what is read, and have no payload.

use super::*;

/// Each of the commands that change something without a payload.
fn clears() -> [CommandOut; 2] {
    [CommandOut::Trim { fua: false }, CommandOut::Zero { punch: true, fast: false, fua: false }]
}

fn lane(incarnation: u64) -> Lane {
    Lane { incarnation, volume: 0, slot: 0 }
}

/// ATTACH-M1, ATTACH-M2: carried out out of order, a trim would take away what was written and answered after it.
#[test]
fn a_trim_keeps_its_place_among_the_writes_that_it_overlaps() {
    for command in clears() {
        let mut m = serving(1);
        let clear = |cookie, offset, len| intake(0, cookie, offset, len, command, vec![]);
        let sent = step(|out| m.request(Moment(5), 0, write(1, 1024, vec![1; 512]), out));
        assert_eq!(sent, ["send 1 gen=1 slot=0"]);
        assert!(step(|out| m.request(Moment(5), 0, clear(2, 0, 4096), out)).is_empty(), "{command:?} goes ahead");
        assert!(step(|out| m.request(Moment(5), 0, write(3, 512, vec![3; 512]), out)).is_empty());
        let read = intake(1, 4, 1024, 512, CommandOut::Read { unfragmented: false }, vec![]);
        assert_eq!(step(|out| m.request(Moment(5), 0, read, out)), ["send 4 gen=1 slot=0"], "a read waits for nothing");
        let answered = step(|out| m.answered(Moment(6), 1, 1, Ok(Reply::Done), out));
        assert_eq!(answered, ["answer 1 ok", "send 2 gen=1 slot=0"]);
        m.self_check();

        // Nobody knows whether it was carried out: it is again, and what is behind it waits still.
        let lost = step(|out| m.lost(Moment(10), 1, &Lost::Connection("reset".into()), out));
        assert_eq!(lost, ["shut gen=1", "continue r102 token=1"]);
        step(|out| m.granted(Moment(20), RequestId(102), grant(2), 1, out));
        let again = step(|out| m.connected(Moment(30), lane(2), out));
        assert_eq!(again, ["send 2 gen=2 slot=0", "send 4 gen=2 slot=0"], "{command:?}");
        assert!(step(|out| m.answered(Moment(31), 1, 2, Ok(Reply::Done), out)).is_empty(), "of before (ATTACH-M4)");
        let answered = step(|out| m.answered(Moment(31), 2, 2, Ok(Reply::Done), out));
        assert_eq!(answered, ["answer 2 ok", "send 3 gen=2 slot=0"]);
        m.self_check();
    }
}

/// CLIENT-F2: what its client was not told may have been carried out; a later write of the file system rests on it.
#[test]
fn a_trim_of_a_client_that_left_is_carried_out() {
    for command in clears() {
        let mut m = serving(1);
        step(|out| m.request(Moment(5), 0, intake(7, 1, 0, 4096, command, vec![]), out));
        step(|out| m.request(Moment(5), 0, write(2, 0, vec![2; 512]), out));
        step(|out| m.forget(7, out));
        assert_eq!(m.unanswered(), 2, "{command:?}");
        let answered = step(|out| m.answered(Moment(6), 1, 1, Ok(Reply::Done), out));
        assert_eq!(answered, ["answer 1 ok", "send 2 gen=1 slot=0"]);
    }
}

/// What only touches is no reason to wait: a file system trims next to what it writes.
#[test]
fn changes_beside_one_another_do_not_wait() {
    for command in clears() {
        let mut m = serving(1);
        let clear = |cookie, offset, len| intake(0, cookie, offset, len, command, vec![]);
        let changes =
            [write(1, 1024, vec![1; 512]), clear(2, 0, 1024), clear(3, 1536, 512), write(4, 2048, vec![4; 512])];
        for (number, change) in (1..).zip(changes) {
            let sent = step(|out| m.request(Moment(5), 0, change, out));
            assert_eq!(sent, [format!("send {number} gen=1 slot=0")], "{command:?}");
        }
        // One sector of each is enough.
        assert!(step(|out| m.request(Moment(5), 0, clear(5, 512, 1024), out)).is_empty());
        m.self_check();
        let freed: Vec<String> = [1, 2]
            .into_iter()
            .flat_map(|number| step(|out| m.answered(Moment(6), 1, number, Ok(Reply::Done), out)))
            .collect();
        assert_eq!(freed, ["answer 1 ok", "answer 2 ok", "send 5 gen=1 slot=0"], "with the last of the two");
    }
}
