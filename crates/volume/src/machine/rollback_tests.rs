//! A rollback while a checkpoint is under way.

use super::*;
use holdfast_control::set::SnapshotId;

/// Its uploader may have all objects by then. The head must not name what was there before the rollback: a recovery
/// would bring it back.
#[test]
fn a_rollback_leaves_nothing_of_the_checkpoint_under_way() {
    let (mut machine, mut index) = (SetMachine::new(SetState::new(Epoch(1000))), 0);
    let mut apply = |machine: &mut SetMachine, command: &SetCommand| {
        index += 1;
        let id = LogId::new(1, index);
        (id, machine.apply(id, &control(command)).expect("command"))
    };
    let begin = SetCommand::CheckpointBegin { term: Term(1) };
    let end = |begin, n| {
        let root = RootRef { object: object(n), bytes: 9 };
        SetCommand::CheckpointEnd { term: Term(1), begin, root }
    };
    let name = |text| Name::new(text).expect("name");
    apply(&mut machine, &create(1, SECTORS));
    for (n, text) in [(1, "monday"), (2, "safety")] {
        let request = RequestId(u128::from(n));
        let asked = SetCommand::SnapshotCreate { name: name(text), request, at_unix_ms: 0, scheduled: false };
        apply(&mut machine, &asked);
        let (at, _) = apply(&mut machine, &begin);
        assert_eq!(apply(&mut machine, &end(at, n)).1.answer, SetAnswer::CheckpointEnded);
    }
    let (at, _) = apply(&mut machine, &begin);
    assert!(machine.begun().is_some_and(|(begun, _)| begun == at) && machine.sealed().is_some());
    let of = |text, made_by| SnapshotId { name: name(text), made_by: RequestId(made_by) };
    let rollback = SetCommand::Rollback { to: of("monday", 1), safety: of("safety", 2), request: RequestId(9) };
    assert_eq!(apply(&mut machine, &rollback).1.event, Some(Event::RolledBack));
    assert!(machine.begun().is_none(), "its content is that of before the rollback");
    assert!(machine.sealed().is_none());
    let ended = apply(&mut machine, &end(at, 3)).1.answer;
    assert!(matches!(ended, SetAnswer::Refused(SetRefusal::NotLatestBegin { .. })), "{ended:?}");
    assert_eq!(machine.state().current_root().map(|root| root.object), Some(object(1)));
}
