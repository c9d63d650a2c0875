//! Tests beside the stories: wire format, limits, and conditions that must stop the gateway.

use super::{
    EARLIER_TOKENS_MAX, Judged, Limit, RetireOf, RootRef, SEGMENT_NOTES_MAX, SegmentNote, SetAnswer, SetCommand,
    SetRefusal, SetState, SnapshotId, StoredKind, StoredObject, TTL_MS_MAX, TTL_MS_MIN, VolumeChange, acquire_set,
    create_volume,
};
use holdfast_testkit::golden::{Written, kept};
use holdfast_types::limits::VOLUMES_PER_SET_MAX;
use holdfast_types::{
    Epoch, GroupId, LogId, LogIndex, MemberId, Name, ObjectId, Owner, RequestId, Sectors, Term, Token, VolumeId,
    WriteSeq,
};
use serde::Serialize;

fn acquire(owner: &str, token: u128) -> SetCommand {
    SetCommand::Acquire {
        owner: Owner::new(owner).unwrap(),
        gateway: MemberId(1),
        token: Token(token),
        ttl_ms: 3000,
        request: RequestId(token),
        judged_expired: Some(Judged { epoch: Epoch(5), renewed: LogIndex(6) }),
        force: false,
        plain: true,
        at_unix_ms: 300,
    }
}

fn go_on(shown: u128, new: u128, request: u128) -> SetCommand {
    SetCommand::Continue {
        owner: Owner::new("a").unwrap(),
        gateway: MemberId(1),
        token: Token(shown),
        new_token: Token(new),
        request: RequestId(request),
        at_unix_ms: 0,
    }
}

fn volume(change: VolumeChange) -> SetCommand {
    SetCommand::ChangeVolume { change, request: RequestId(11) }
}

fn object(random: u128) -> ObjectId {
    ObjectId { term: Term(1), member: MemberId(2), boot: 3, random }
}

fn snapshot(name: &str, made_by: u128) -> SnapshotId {
    SnapshotId { name: Name::new(name).unwrap(), made_by: RequestId(made_by) }
}

fn root() -> RootRef {
    RootRef { object: object(1), bytes: 9 }
}

/// One line per variant, in order of their numbers.
fn hex_lines<T: Serialize>(values: &[T]) -> String {
    let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    values.iter().map(|value| hex(postcard::to_stdvec(value).unwrap()) + "\n").collect()
}

/// Entries with these bytes are in journals: a change here needs a new version of the entry format.
#[test]
fn the_bytes_of_each_command_are_pinned() {
    let commands = [
        acquire("a", 7),
        SetCommand::Continue {
            owner: Owner::new("a").unwrap(),
            gateway: MemberId(2),
            token: Token(7),
            new_token: Token(8),
            request: RequestId(9),
            at_unix_ms: 300,
        },
        SetCommand::Renew { epoch: Epoch(5) },
        SetCommand::Release { epoch: Epoch(5), token: Some(Token(7)) },
        SetCommand::CheckpointBegin { term: Term(4) },
        SetCommand::SegmentCommitted { term: Term(4), object: object(1), stored_bytes: 5, raw_bytes: 6 },
        SetCommand::CheckpointEnd { term: Term(4), begin: LogId::new(3, 2), root: root() },
        SetCommand::SnapshotCreate {
            name: Name::new("s1").unwrap(),
            request: RequestId(9),
            at_unix_ms: 300,
            scheduled: true,
        },
        SetCommand::SnapshotDelete { name: Name::new("s1").unwrap(), made_by: RequestId(9) },
        SetCommand::Retire {
            term: Term(4),
            of: RetireOf::Root { root: object(1), last: true },
            objects: vec![StoredObject { kind: StoredKind::Pages, object: object(2) }],
        },
        SetCommand::Retire { term: Term(4), of: RetireOf::Orphans, objects: vec![] },
        SetCommand::Retire { term: Term(4), of: RetireOf::GivenUp { ended: LogId::new(3, 2) }, objects: vec![] },
        SetCommand::Deleted { term: Term(4), objects: vec![object(2)] },
        SetCommand::Rollback { to: snapshot("s1", 9), safety: snapshot("s2", 10), request: RequestId(11) },
        SetCommand::SetSchedule { schedule: "15mx8,1hx24".parse().unwrap(), request: RequestId(11) },
        volume(VolumeChange::Create { name: Name::new("vol1").unwrap(), size: Sectors(8) }),
        volume(VolumeChange::Grow { volume: VolumeId(1), size: Sectors(300) }),
        volume(VolumeChange::Shrink { volume: VolumeId(1), from: Sectors(300), to: Sectors(8), epoch: Epoch(5) }),
        volume(VolumeChange::Rename {
            volume: VolumeId(1),
            from: Name::new("a").unwrap(),
            to: Name::new("b").unwrap(),
            epoch: Epoch(5),
        }),
        volume(VolumeChange::Delete { volume: VolumeId(1), name: Name::new("b").unwrap(), epoch: Epoch(5) }),
        SetCommand::Pin { clone: GroupId(6), snapshot: snapshot("s1", 9), request: RequestId(11) },
        SetCommand::Unpin { clone: GroupId(6), request: RequestId(11) },
        SetCommand::Locate(Epoch(5), "region=eu,zone=a".parse().unwrap()),
        SetCommand::SetLimit {
            volume: Some(VolumeId(1)),
            limit: Limit { iops: 300, bytes_per_s: 1 << 20, burst_ms: 1000 },
            request: RequestId(11),
        },
        SetCommand::SetLimit { volume: None, limit: Limit::NONE, request: RequestId(11) },
        SetCommand::Retime(Term(4), 300),
    ];
    let expected = "\
0001610107b817070105060001ac02
01016102070809ac02
0205
03050107
0404
0504010203010506
060403020102030109
0702733109ac0201
0802733109
0904000102030101010101020302
09040100
090402030200
0a040101020302
0b027331090273320a0b
0c02840708901c180b
0d0004766f6c31080b
0d0101ac020b
0d0201ac0208050b
0d030101610162050b
0d04010162050b
0e06027331090b
0f060b
100510726567696f6e3d65752c7a6f6e653d61
110101ac02808040e8070b
11000000000b
1204ac02
";
    assert_eq!(hex_lines(&commands), expected);
    // Journals have commands of earlier releases: no kind of them changes or goes.
    let written = postcard::to_stdvec(&commands.to_vec()).unwrap();
    kept(env!("CARGO_MANIFEST_DIR"), "set-commands", Written::Pinned(&written), &true, |bytes| {
        let mut now = commands.iter();
        let old: Vec<SetCommand> = postcard::from_bytes(bytes).unwrap();
        old.iter().all(|old| now.any(|now| now == old))
    });
    for command in commands {
        let bytes = postcard::to_stdvec(&command).unwrap();
        assert_eq!(postcard::from_bytes::<SetCommand>(&bytes).unwrap(), command);
    }
}

/// Snapshots of these bytes are on disks: as above.
#[test]
fn the_bytes_of_a_state_are_pinned() {
    let mut state = SetState::new(Epoch(1000));
    for (index, command) in (1u64..).zip([
        volume(VolumeChange::Create { name: Name::new("vol1").unwrap(), size: Sectors(8) }),
        SetCommand::CheckpointBegin { term: Term(1) },
        SetCommand::SegmentCommitted { term: Term(1), object: object(1), stored_bytes: 5, raw_bytes: 6 },
        SetCommand::CheckpointEnd { term: Term(1), begin: LogId::new(1, 2), root: root() },
        acquire("a", 7),
        SetCommand::CheckpointBegin { term: Term(1) },
        SetCommand::SegmentCommitted { term: Term(1), object: object(2), stored_bytes: 5, raw_bytes: 6 },
    ]) {
        let answer = state.apply(LogId::new(1, index), &command);
        assert!(!matches!(answer, SetAnswer::Refused(_)), "{answer:?}");
    }
    state.admit_write(LogId::new(1, 9), Epoch(1005), WriteSeq(1));
    let expected = "e807010104766f6c310801016101ed070700b81707050901ac02ed070101010601010203010901010201020301090101020302050602010700000000010b090000000000\n";
    assert_eq!(hex_lines(std::slice::from_ref(&state)), expected);
    let bytes = postcard::to_stdvec(&state).unwrap();
    assert_eq!(postcard::from_bytes::<SetState>(&bytes).unwrap(), state);
    kept(env!("CARGO_MANIFEST_DIR"), "set-state", Written::Pinned(&bytes), &Some(state), |bytes| {
        postcard::from_bytes::<SetState>(bytes).ok()
    });
}

#[test]
fn a_set_has_so_many_volumes_and_no_more() {
    let mut state = SetState::new(Epoch(0));
    let create = |number: usize| create_volume(format!("v{number}"), 1);
    for number in 1..=VOLUMES_PER_SET_MAX {
        let answer = state.apply(LogId::new(1, number as u64), &create(number));
        assert_eq!(answer, SetAnswer::VolumeChanged { volume: VolumeId(number as u32), discarded: None });
    }
    let answer = state.apply(LogId::new(1, 1000), &create(1000));
    assert_eq!(answer, SetAnswer::Refused(SetRefusal::TooManyVolumes { max: 256 }));
    state.self_check();
}

#[test]
fn a_checkpoint_has_so_many_segments_and_no_more() {
    let mut state = SetState::new(Epoch(0));
    state.apply(LogId::new(1, 1), &SetCommand::CheckpointBegin { term: Term(1) });
    let note = |number: usize| SetCommand::SegmentCommitted {
        term: Term(1),
        object: object(number as u128),
        stored_bytes: 1,
        raw_bytes: 1,
    };
    // Filled directly: one by one, each compared with all before, would take long.
    let Some(SegmentNote { stored_bytes, raw_bytes, .. }) = ({
        state.apply(LogId::new(1, 2), &note(0));
        state.segments.front().copied()
    }) else {
        panic!("the first was noted");
    };
    let rest = (1..SEGMENT_NOTES_MAX).map(|n| SegmentNote { object: object(n as u128), stored_bytes, raw_bytes });
    state.segments.extend(rest);
    let full = SetAnswer::Refused(SetRefusal::TooManySegments { max: SEGMENT_NOTES_MAX as u32 });
    assert_eq!(state.apply(LogId::new(1, 3), &note(SEGMENT_NOTES_MAX)), full);
    assert_eq!(state.apply(LogId::new(1, 4), &note(5)), SetAnswer::SegmentNoted);
}

#[test]
fn a_lease_lives_neither_too_short_nor_too_long() {
    for (ttl, fine) in [(0, false), (TTL_MS_MIN - 1, false), (TTL_MS_MIN, true), (TTL_MS_MAX, true), (u32::MAX, false)]
    {
        let mut command = acquire_set("a", 7, 7, true);
        let SetCommand::Acquire { ttl_ms, .. } = &mut command else { panic!("an acquire") };
        *ttl_ms = ttl;
        let answer = SetState::new(Epoch(0)).apply(LogId::new(1, 1), &command);
        assert_eq!(matches!(answer, SetAnswer::Granted(_)), fine, "{ttl}: {answer:?}");
    }
}

/// A process that was started again and again shows the token that it found, and never hears an answer. The token of
/// each of its grants may be the one that somebody holds: a refusal of it ends the devices for good.
#[test]
fn no_unused_token_is_dropped_for_want_of_room() {
    let mut state = SetState::new(Epoch(0));
    state.apply(LogId::new(1, 1), &acquire_set("a", 1, 1, false));
    let all = EARLIER_TOKENS_MAX as u128 + 1;
    for token in 2..=all {
        let answer = state.apply(LogId::new(1, token as u64), &go_on(1, token, token));
        assert!(matches!(answer, SetAnswer::Granted(lease) if lease.token == Token(token)), "{token}");
    }
    // One more: it gets the newest grant, as does a copy of a request that was overtaken.
    let full = state.clone();
    for (new, request) in [(99, 99), (98, 3)] {
        let answer = state.apply(LogId::new(1, 50), &go_on(1, new, request));
        assert!(matches!(answer, SetAnswer::Granted(lease) if lease.token == Token(all)), "{request}");
        assert_eq!(state, full, "nothing is changed by request {request}");
    }
    state.self_check();
    for shown in 1..=all {
        let answer = full.clone().apply(LogId::new(1, 50), &go_on(shown, 99, 99));
        assert!(matches!(answer, SetAnswer::Granted(_)), "token {shown}: {answer:?}");
    }
    // A newer token makes room: those before it die.
    let answer = state.apply(LogId::new(1, 51), &go_on(2, 99, 99));
    assert!(matches!(&answer, SetAnswer::Granted(lease) if lease.token == Token(99)), "{answer:?}");
    let late = state.apply(LogId::new(1, 52), &go_on(1, 97, 97));
    assert!(matches!(late, SetAnswer::Refused(SetRefusal::StaleToken { .. })), "{late:?}");
}

/// SET-S3: with a token that opens the present lease somebody could open the next one who has lost the set by then.
#[test]
fn a_grant_with_a_known_token_is_refused() {
    let mut state = SetState::new(Epoch(0));
    let take = |owner: &str, token: u128, request: u128| acquire_set(owner, token, request, true);
    state.apply(LogId::new(1, 1), &take("a", 1, 1));
    let continued = state.apply(LogId::new(1, 2), &go_on(1, 2, 2));
    assert!(matches!(&continued, SetAnswer::Granted(lease) if lease.earlier_tokens == [Token(1)]), "{continued:?}");
    let before = state.clone();
    for known in [1, 2] {
        for command in [take("b", known, 10 + known), take("a", known, 20 + known), go_on(2, known, 30 + known)] {
            let answer = state.apply(LogId::new(1, 3), &command);
            assert_eq!(answer, SetAnswer::Refused(SetRefusal::TokenReused), "{command:?}");
            assert_eq!(state, before, "a refusal leaves no trace");
        }
    }
    assert!(matches!(state.apply(LogId::new(1, 3), &take("b", 3, 40)), SetAnswer::Granted(_)));
}

#[test]
#[should_panic(expected = "R6: the epoch must grow")]
fn entries_out_of_order_stop_the_gateway() {
    let mut state = SetState::new(Epoch(0));
    state.apply(LogId::new(1, 9), &acquire("a", 7));
    state.apply(LogId::new(1, 10), &SetCommand::Release { epoch: Epoch(9), token: None });
    state.apply(LogId::new(1, 9), &acquire("b", 8));
}

#[test]
#[should_panic(expected = "R6: the epoch must grow")]
fn epochs_end_before_they_wrap() {
    let mut state = SetState::new(Epoch(u64::MAX));
    state.apply(LogId::new(1, 1), &acquire("a", 7));
}

#[test]
#[should_panic(expected = "R4: the copy is not the state at the begin")]
fn a_root_is_not_joined_to_another_moment() {
    let mut state = SetState::new(Epoch(0));
    state.apply(LogId::new(1, 1), &SetCommand::CheckpointBegin { term: Term(1) });
    let copy = state.clone();
    state.apply(LogId::new(1, 2), &SetCommand::CheckpointBegin { term: Term(1) });
    SetState::after_checkpoint(&copy, root(), LogId::new(1, 2));
}

/// The refusal for an NBD client or another owner names holder, gateway, time and remedy.
#[test]
fn a_refusal_names_the_holder_its_gateway_and_since_when() {
    let held = |plain| SetRefusal::Held {
        owner: Owner::new("db1").unwrap(),
        gateway: MemberId(3),
        epoch: Epoch(17),
        since_unix_ms: 1_000_000_000_123,
        plain,
    };
    let text = held(false).to_string();
    for words in ["held by db1", "at gateway m3", "since 2001-09-09T01:46:40Z", "(epoch e17)", "released", "force"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(held(true).to_string().contains("(epoch e17, plain export)"));
    // A session with a stale token gets the same information.
    let stale = SetRefusal::StaleToken { epoch: Epoch(17), gateway: MemberId(3), since_unix_ms: 1_000_000_000_123 };
    let text = stale.to_string();
    assert!(text.contains("at gateway m3 since 2001-09-09T01:46:40Z"), "{text}");
}
