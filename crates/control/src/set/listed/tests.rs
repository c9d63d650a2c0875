//! Which snapshots are listed, when and for how long; and the initial state of a recovered set.

use super::*;
use crate::cluster::{ClusterAnswer, ClusterCommand, ClusterState, member};
use crate::set::create_volume;
use crate::set::{
    Begin, Links, PendingSnapshot, Restored, RetireOf, SNAPSHOTS_MAX, SetAnswer, SetCommand, SetRefusal, SnapshotId,
    VolumeChange,
};
use holdfast_types::{Epoch, GroupId, MemberId, ObjectId, Sectors};
use proptest::collection::vec;
use proptest::prelude::*;

fn name(text: impl Into<String>) -> Name {
    Name::new(text).unwrap()
}

fn root(term: u64, random: u128) -> RootRef {
    RootRef { object: ObjectId { term: Term(term), member: MemberId(1), boot: 1, random }, bytes: 9 }
}

/// Applies commands as consecutive entries of this term.
fn applies(term: u64) -> impl FnMut(&mut SetState, SetCommand) -> SetAnswer {
    let mut index = 0;
    move |state: &mut SetState, command: SetCommand| {
        index += 1;
        let answer = state.apply(LogId::new(term, index), &command);
        state.self_check();
        answer
    }
}

fn volumes(names: &[&str]) -> OrdMap<VolumeId, Volume> {
    let of = |(id, text): (u32, &&str)| (VolumeId(id), Volume { name: name(*text), size: Sectors(u64::MAX >> 14) });
    (1..).zip(names).map(of).collect()
}

fn snapshot(number: u64, names: &[&str]) -> Snapshot {
    Snapshot {
        upto: LogId::new(1, number),
        root: root(1, number.into()),
        volumes: volumes(names),
        request: RequestId(u128::MAX - u128::from(number)),
        at_unix_ms: 1_000 + number,
        scheduled: number % 2 == 1,
    }
}

fn list(snapshots: impl IntoIterator<Item = (&'static str, Snapshot)>) -> SnapshotList {
    let snapshots = snapshots.into_iter().map(|(text, snapshot)| (name(text), snapshot)).collect();
    SnapshotList { snapshots, schedule: "1hx24".parse().unwrap(), as_of: LogIndex(77) }
}

fn bytes(list: &SnapshotList) -> usize {
    postcard::to_stdvec(list).unwrap().len()
}

#[test]
fn a_list_reads_back_and_says_volumes_once() {
    let (one, two) = (["data", "wal"], ["data", "wal", "more"]);
    // Their order by name differs from that by time.
    let mixed =
        list([("c", snapshot(3, &one)), ("a", snapshot(4, &one)), ("b", snapshot(5, &two)), ("d", snapshot(6, &[]))]);
    let written = postcard::to_stdvec(&mixed).unwrap();
    assert_eq!(postcard::from_bytes::<SnapshotList>(&written).unwrap(), mixed);
    assert_eq!(written.windows(4).filter(|found| *found == b"data").count(), 2, "once for each change");
    assert_eq!(
        postcard::from_bytes::<SnapshotList>(&postcard::to_stdvec(&SnapshotList::default()).unwrap()).unwrap(),
        SnapshotList::default()
    );
    assert!(SnapshotList::default().is_blank() && !mixed.is_empty());
    let schedule_only = SnapshotList { snapshots: OrdMap::new(), ..mixed.clone() };
    assert!(!schedule_only.is_empty(), "a schedule comes back as well");
    let left = mixed.without(&[name("a"), name("x")].into());
    assert_eq!(left.snapshots.keys().map(Name::as_str).collect::<Vec<_>>(), ["b", "c", "d"]);
}

/// The largest number of snapshots and volumes, with the longest names, different each time.
#[test]
fn a_list_is_bounded_and_the_oldest_are_left_out() {
    let text = |number: usize, volume: usize| format!("{volume:03}-{number:03}-{}", "x".repeat(55));
    let mut state = SetState::new(Epoch(0));
    for number in 0..SNAPSHOTS_MAX {
        let names: Vec<String> = (0..VOLUMES_PER_SET_MAX).map(|volume| text(number, volume)).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        state.snapshots.insert(name(format!("{:03}", SNAPSHOTS_MAX - number)), snapshot(number as u64, &names));
    }
    let all = SnapshotList::of(&state, LogIndex(9), None);
    let left_out = SNAPSHOTS_MAX - all.snapshots.len();
    assert!(
        all.snapshots.len() >= 8 && left_out > 0 && bytes(&all) <= LIST_BYTES_MAX,
        "{left_out}, {} bytes",
        bytes(&all)
    );
    assert!(all.snapshots.values().all(|listed| listed.upto.index.0 as usize >= left_out), "the newest stay");
    let mut listing = Listing::default();
    assert_eq!(listing.note(&state, LogIndex(9), Some(Term(1))), Some(left_out));
    assert_eq!(listing.note(&state, LogIndex(10), Some(Term(2))), None, "told once");
    // A snapshot listed ahead, for the checkpoint that a head is about to name, displaces another.
    let (begin, ahead) = (LogId::new(1, 900), snapshot(900, &[]));
    let names: Vec<String> = (0..VOLUMES_PER_SET_MAX).map(|volume| text(900, volume)).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let Snapshot { root: to, request, at_unix_ms, scheduled, .. } = ahead;
    let waits = PendingSnapshot { request, at_unix_ms, sealed: Some((begin, volumes(&names))), scheduled };
    state.pending.insert(name("new"), waits);
    state.begin = Some(Begin { at: begin, base: None });
    listing.note_root(begin, to);
    assert_eq!(listing.note(&state, LogIndex(900), Some(Term(2))), Some(left_out + 1));
    state.pending.remove(&name("new"));
    // With the same volumes all of them fit.
    let same = state.snapshots.values().next().unwrap().volumes.clone();
    let same =
        state.snapshots.iter().map(|(name, one)| (name.clone(), Snapshot { volumes: same.clone(), ..one.clone() }));
    state.snapshots = same.collect();
    let all = SnapshotList::of(&state, LogIndex(9), None);
    assert!(all.snapshots.len() == SNAPSHOTS_MAX && bytes(&all) <= LIST_BYTES_MAX, "{} bytes", bytes(&all));
}

#[test]
fn a_set_goes_on_with_the_snapshots_of_its_former_life() {
    let mut old = SetState::new(Epoch(0));
    let mut apply = applies(4);
    for text in ["a", "b"] {
        apply(&mut old, create_volume(text, 8));
    }
    let ask = |text: &str, request| SetCommand::SnapshotCreate {
        name: name(text),
        request: RequestId(request),
        at_unix_ms: 7,
        scheduled: text == "auto",
    };
    apply(&mut old, ask("monday", 5));
    apply(&mut old, ask("auto", 6));
    let schedule = "1hx24".parse().unwrap();
    apply(&mut old, SetCommand::SetSchedule { schedule, request: RequestId(8) });
    apply(&mut old, SetCommand::CheckpointBegin { term: Term(4) });
    let begin = old.begin.unwrap().at;
    let before = SnapshotList::of(&old, LogIndex(9), None);
    assert!(before.snapshots.is_empty(), "expected no snapshot before its checkpoint");
    let ahead = Some((begin, root(4, 1)));
    let listed = SnapshotList::of(&old, LogIndex(9), ahead);
    assert_eq!(listed.snapshots.keys().map(Name::as_str).collect::<Vec<_>>(), ["auto", "monday"]);
    apply(&mut old, SetCommand::CheckpointEnd { term: Term(4), begin, root: root(4, 1) });
    assert!(listed.lists_as(&SnapshotList::of(&old, LogIndex(10), ahead)), "SET-S15: it was listed as it is");
    // The volume is deleted, and its number was the last: the new life must not reuse it.
    let gone = VolumeChange::Delete { volume: VolumeId(2), name: name("b"), epoch: old.epoch };
    apply(&mut old, SetCommand::ChangeVolume { change: gone, request: RequestId(9) });
    let restored = Restored { next_volume: 2, ..Restored::of(&old, Some(root(4, 2))) };
    let links = Links { snapshots: listed, ..Links::default() };
    let mut new = SetState::restored(Epoch(1 << 48), &restored).with_links(&links);
    new.self_check();
    assert_eq!((new.snapshots.len(), &new.schedule), (2, &old.schedule));
    let monday = new.snapshots.get(&name("monday")).cloned().unwrap();
    assert_eq!((monday.request, monday.root, monday.upto), (RequestId(5), root(4, 1), LogId::default()));
    assert_eq!(
        (monday.volumes.len(), new.next_volume),
        (2, 3),
        "VOLUME-V1: what a rollback brings back has its number for itself"
    );
    assert_eq!(new.kept_roots(), [root(4, 2), root(4, 1)], "SET-S7");
    let mut apply = applies(1);
    // A log position of the former life means nothing in this one: the snapshot is no safety snapshot of newer writes.
    new.last_change = LogIndex(3);
    let id = |text: &str, made_by| SnapshotId { name: name(text), made_by: RequestId(made_by) };
    let back = SetCommand::Rollback { to: id("monday", 5), safety: id("auto", 6), request: RequestId(20) };
    let refused = apply(&mut new, back);
    let changed = SetRefusal::ChangedSinceSnapshot { name: name("auto"), upto: LogIndex(0), changed: LogIndex(3) };
    assert_eq!(refused, SetAnswer::Refused(changed), "SET-S12");
    // It is deleted as any other: by its own request only, and its root is dropped once nothing retains it.
    for (text, made_by, existed) in [("monday", 6, false), ("monday", 5, true), ("auto", 6, true)] {
        let delete = SetCommand::SnapshotDelete { name: name(text), made_by: RequestId(made_by) };
        assert_eq!(apply(&mut new, delete), SetAnswer::SnapshotDeleted { existed });
    }
    assert_eq!(new.dropped.keys().copied().collect::<Vec<_>>(), [root(4, 1).object]);
}

/// SET-S16 within one gateway: several tasks note states that they read some time before, without waiting for one
/// another.
#[test]
fn a_note_that_comes_late_takes_no_later_ones_place() {
    let none = SetState::new(Epoch(0));
    let mut before = none.clone();
    before.snapshots.insert(name("monday"), snapshot(3, &[]));
    let stored = SnapshotList::of(&before, LogIndex(9), None);
    let mut listing = Listing::default();
    listing.note(&none, LogIndex(12), Some(Term(4)));
    let expected = SnapshotList::of(&none, LogIndex(12), None);
    // An earlier entry; as leader of an earlier term; as no leader.
    let late =
        [(&before, 10, Some(Term(4))), (&before, 10, Some(Term(3))), (&none, 12, Some(Term(3))), (&before, 10, None)];
    for (number, (state, applied, led)) in late.into_iter().enumerate() {
        assert_eq!(listing.note(state, LogIndex(applied), led), None);
        assert_eq!(listing.for_head(&stored, false), expected, "note {number}");
        assert!(listing.settled(&none, Term(4), &expected), "note {number}");
    }
    // A newer state is noted.
    listing.note(&before, LogIndex(13), Some(Term(4)));
    assert_eq!(listing.for_head(&expected, false), SnapshotList::of(&before, LogIndex(13), None));
}

/// SET-S15: the head that names a root lists the snapshots of that root, also where nothing was applied since the last
/// note.
#[test]
fn a_state_is_noted_again_for_the_root_that_a_head_is_about_to_name() {
    let mut state = SetState::new(Epoch(0));
    let ask =
        SetCommand::SnapshotCreate { name: name("monday"), request: RequestId(5), at_unix_ms: 7, scheduled: false };
    state.apply(LogId::new(1, 1), &ask);
    state.apply(LogId::new(1, 2), &SetCommand::CheckpointBegin { term: Term(1) });
    let begin = state.begin.unwrap().at;
    let (mut listing, blank) = (Listing::default(), SnapshotList::default());
    listing.note(&state, LogIndex(2), Some(Term(1)));
    assert!(listing.for_head(&blank, true).snapshots.is_empty(), "its checkpoint is not in the store");
    listing.note_root(begin, root(1, 1));
    listing.note(&state, LogIndex(2), Some(Term(1)));
    let listed = listing.for_head(&blank, true);
    assert_eq!(listed.snapshots.get(&name("monday")).map(|found| found.root), Some(root(1, 1)));
}

/// A new leader may be asked before it has noted its state.
#[test]
fn what_a_follower_has_settles_nothing() {
    let (none, blank) = (SetState::new(Epoch(0)), SnapshotList::default());
    let mut listing = Listing::default();
    listing.note(&none, LogIndex(6), None);
    assert!(!listing.settled(&none, Term(2), &blank), "SET-S15: another leader may have listed something");
    listing.note(&none, LogIndex(7), Some(Term(2)));
    assert!(!listing.settled(&none, Term(2), &blank), "noted, and not seen in the head");
    assert!(listing.settled(&none, Term(2), &listing.for_head(&blank, false)));
}

/// SET-S12: a life begins without a change, and so do its volumes: its log cannot rule out an older snapshot with
/// another root.
#[test]
fn what_an_earlier_life_left_is_no_safety_snapshot() {
    let left = list([("monday", snapshot(3, &["data"])), ("auto", snapshot(4, &["data"]))]);
    let restored =
        Restored { volumes: volumes(&["data"]).into_iter().collect(), next_volume: 2, root: Some(root(4, 9)) };
    let links = Links { snapshots: left.clone(), ..Links::default() };
    let mut new = SetState::restored(Epoch(1 << 48), &restored).with_links(&links);
    assert_eq!(
        (new.last_change, &new.volumes),
        (LogIndex(0), &volumes(&["data"])),
        "expected only the log position to be dropped"
    );
    let mut apply = applies(1);
    let id = |text: &str, made_by| SnapshotId { name: name(text), made_by };
    let of = |text: &str| id(text, left.snapshots.get(&name(text)).unwrap().request);
    let back = |safety| SetCommand::Rollback { to: of("monday"), safety, request: RequestId(20) };
    let changed = SetRefusal::ChangedSinceSnapshot { name: name("auto"), upto: LogIndex(0), changed: LogIndex(0) };
    assert_eq!(apply(&mut new, back(of("auto"))), SetAnswer::Refused(changed.clone()));
    // It may be the way back from a rollback of the former life; this was a late copy of that request.
    assert!(!new.takes_up_space(&of("auto"), &changed), "a late copy must not delete the way back");
    assert_eq!(new.current_root(), Some(root(4, 9)), "R4: what the head named is nowhere else");
    // With a safety snapshot of this life it rolls back to one of the former life.
    let ask =
        SetCommand::SnapshotCreate { name: name("safe"), request: RequestId(21), at_unix_ms: 7, scheduled: false };
    assert_eq!(apply(&mut new, ask), SetAnswer::SnapshotAsked);
    apply(&mut new, SetCommand::CheckpointBegin { term: Term(1) });
    let begin = new.begin.unwrap().at;
    let end = SetCommand::CheckpointEnd { term: Term(1), begin, root: root(1, 10) };
    assert_eq!(apply(&mut new, end), SetAnswer::CheckpointEnded);
    assert!(
        new.takes_up_space(&id("safe", RequestId(21)), &changed),
        "its own safety snapshot is useless if nothing was done"
    );
    assert_eq!(apply(&mut new, back(id("safe", RequestId(21)))), SetAnswer::RolledBack { now: true });
    assert_eq!(new.current_root(), Some(root(1, 3)));
}

/// The proposer's state and a follower's decoded state are the same.
#[test]
fn group_0_keeps_what_a_set_began_with() {
    let mut state = ClusterState::new();
    let member = member(1, "g1", 5);
    state.apply(LogId::new(1, 1), &ClusterCommand::AddMember { member, replaces: None, request: RequestId(6) });
    let snapshots = list([("monday", snapshot(3, &["data"]))]);
    let command = ClusterCommand::RestoreSet {
        set: GroupId(3),
        name: name("demo"),
        store: "file:///s".to_owned(),
        wrapped_key: vec![2, 3],
        key_id: 1,
        created_by: MemberId(1),
        generation: 2,
        restored: Restored::default(),
        links: Links { snapshots: snapshots.clone(), ..Links::default() },
    };
    let sent: ClusterCommand = postcard::from_bytes(&postcard::to_stdvec(&command).unwrap()).unwrap();
    let mut other = state.clone();
    for (state, command) in [(&mut state, &command), (&mut other, &sent)] {
        assert_eq!(state.apply(LogId::new(1, 3), command), ClusterAnswer::SetCreated { set: GroupId(3) });
        state.self_check();
    }
    assert_eq!(state, other);
    assert_eq!(state.links.get(&GroupId(3)).map(|links| &links.snapshots), Some(&snapshots.inherited()));
    assert_eq!(state.apply(LogId::new(1, 4), &command), ClusterAnswer::SetCreated { set: GroupId(3) }, "R12");
}

/// As [`Listing::settled`], with a freshly made list.
fn settled_anew(listing: &Listing, state: &SetState, term: Term, stored: &SnapshotList) -> bool {
    let mut listing = listing.clone();
    if let Some(Noted { made_of, .. }) = &mut listing.noted {
        // No entry has this place.
        made_of.under_way = Some(LogId::new(u64::MAX, u64::MAX));
    }
    listing.settled(state, term, stored)
}

/// A list is reused for the same parts, and made again for any others.
#[test]
fn whatever_a_list_is_made_of_is_seen_to_change() {
    let mut base = SetState::new(Epoch(0));
    let apply = |state: &mut SetState, index: u64, command: SetCommand| {
        let answer = state.apply(LogId::new(1, index), &command);
        assert!(!matches!(answer, SetAnswer::Refused(_)), "{answer:?}");
    };
    let ask = |text: &str, request| SetCommand::SnapshotCreate {
        name: name(text),
        request: RequestId(request),
        at_unix_ms: 7,
        scheduled: false,
    };
    let begin = SetCommand::CheckpointBegin { term: Term(1) };
    apply(&mut base, 1, ask("monday", 5));
    apply(&mut base, 2, begin.clone());
    let at = base.begin.unwrap().at;
    apply(&mut base, 3, SetCommand::CheckpointEnd { term: Term(1), begin: at, root: root(1, 1) });
    let mut listing = Listing::default();
    listing.note(&base, LogIndex(3), Some(Term(1)));
    let known = |listing: &Listing, state: &SetState| match &listing.noted {
        Some(Noted { made_of, .. }) => made_of.are_of(state, listing.ahead),
        other => panic!("{other:?}"),
    };
    assert!(known(&listing, &base.clone()));
    let after = |command: SetCommand| {
        let mut state = base.clone();
        apply(&mut state, 4, command);
        state
    };
    let volume = create_volume("data", 8);
    assert!(known(&listing, &after(volume)), "the change does not affect a list");
    let schedule = "1hx24".parse().unwrap();
    for command in [
        SetCommand::SetSchedule { schedule, request: RequestId(8) },
        ask("tuesday", 6),
        SetCommand::SnapshotDelete { name: name("monday"), made_by: RequestId(5) },
        begin,
    ] {
        assert!(!known(&listing, &after(command.clone())), "{command:?}");
    }
    listing.note_root(LogId::new(1, 4), root(1, 2));
    assert!(!known(&listing, &base), "a head is about to name another root");
}

/// A gateway in a history of heads.
struct At {
    state: SetState,
    applied: usize,
    /// It leads in this term, or believes so: then it applies nothing any more.
    leads: Option<u64>,
    listing: Listing,
    /// The list that it last saw in the head.
    stored: SnapshotList,
    /// The head that it is about to replace: its version, and whether for a checkpoint.
    read: Option<u64>,
    commits: bool,
    under_way: Option<(LogId, RootRef)>,
    /// Root in its head.
    named: Option<(LogId, RootRef)>,
    /// The last term in which a checkpoint of its own has ended.
    ended: Option<u64>,
}

/// Two gateways, the log, and the head, which is replaced by conditional PUT.
struct World {
    log: Vec<(LogId, SetCommand)>,
    term: u64,
    leader: usize,
    at: [At; 2],
    head: (u64, SnapshotList),
    roots: Vec<RootRef>,
    /// Roots whose objects may be deleted by now.
    gone: BTreeSet<ObjectId>,
    requests: u128,
}

impl World {
    fn new() -> Self {
        let at = || At {
            state: SetState::new(Epoch(0)),
            applied: 0,
            leads: None,
            listing: Listing::default(),
            stored: SnapshotList::default(),
            read: None,
            commits: false,
            under_way: None,
            named: None,
            ended: None,
        };
        let (log, roots, gone) = (Vec::new(), Vec::new(), BTreeSet::new());
        let head = (0, SnapshotList::default());
        Self { log, term: 0, leader: 0, at: [at(), at()], head, roots, gone, requests: 0 }
    }

    fn catch_up(&mut self, who: usize) {
        let at = &mut self.at[who];
        for (id, command) in &self.log[at.applied..] {
            at.state.apply(*id, command);
        }
        at.applied = self.log.len();
    }

    fn propose(&mut self, command: SetCommand) {
        self.log.push((LogId::new(self.term, self.log.len() as u64 + 1), command));
        self.catch_up(self.leader);
    }

    fn note_and_read(&mut self, who: usize, commits: bool) {
        let at = &mut self.at[who];
        at.listing.note(&at.state, LogIndex(at.applied as u64), at.leads.map(Term));
        (at.read, at.commits, at.stored) = (Some(self.head.0), commits, self.head.1.clone());
    }

    fn step(&mut self, op: u8, who: usize) {
        let (leader, term) = (self.leader, self.term);
        let leads = self.at[leader].leads == Some(term);
        match op {
            // A former leader still believes to lead until it is told.
            0 => {
                self.catch_up(who);
                (self.term, self.leader) = (term + 1, who);
                let at = &mut self.at[who];
                (at.leads, at.under_way, at.named) = (Some(term + 1), None, None);
            }
            1 if who != leader => {
                self.at[who].leads = None;
                self.catch_up(who);
            }
            2 if leads => {
                self.requests += 1;
                let (name, request) = (name(format!("s{}", self.requests % 3)), RequestId(self.requests));
                self.propose(SetCommand::SnapshotCreate { name, request, at_unix_ms: 1, scheduled: false });
            }
            3 if leads => {
                let state = &self.at[leader].state;
                let there = state.snapshots.iter().map(|(name, found)| (name.clone(), found.request));
                let wait = state.pending.iter().map(|(name, found)| (name.clone(), found.request));
                let all: Vec<(Name, RequestId)> = there.chain(wait).collect();
                if let Some((name, made_by)) = all.into_iter().nth(who) {
                    self.propose(SetCommand::SnapshotDelete { name, made_by });
                }
            }
            4 if leads => self.propose(SetCommand::CheckpointBegin { term: Term(term) }),
            // A commit begins, possibly at a leader that was cut off.
            5 | 6 => {
                let at = &mut self.at[who];
                let (Some(term), Some(begin)) = (at.leads, at.state.begin) else { return };
                if begin.at.term != Term(term) {
                    return;
                }
                let root = root(term, self.roots.len() as u128);
                self.roots.push(root);
                at.under_way = Some((begin.at, root));
                at.listing.note_root(begin.at, root);
                self.note_and_read(who, true);
            }
            // … or a head is replaced only for its list.
            7 if self.at[who].leads.is_some() => self.note_and_read(who, false),
            8 | 9 => {
                let at = &mut self.at[who];
                if at.read.take() == Some(self.head.0) {
                    self.head = (self.head.0 + 1, at.listing.for_head(&at.stored, at.commits));
                    (at.stored, at.named) = (self.head.1.clone(), at.under_way);
                }
            }
            10 if leads => {
                if let Some((begin, root)) = self.at[leader].named.take() {
                    self.at[leader].under_way = None;
                    self.propose(SetCommand::CheckpointEnd { term: Term(term), begin, root });
                    if self.at[leader].state.begin.is_none() {
                        self.at[leader].ended = Some(term);
                    }
                }
            }
            11 if leads => self.retire(),
            _ => {}
        }
    }

    fn retire(&mut self) {
        let (at, term) = (&self.at[self.leader], self.term);
        let state = at.state.clone();
        if !at.listing.settled(&state, Term(term), &at.stored) {
            return;
        }
        if at.ended == Some(term) {
            let kept = state.kept_roots();
            let orphans = self.roots.iter().filter(|root| root.object.term < Term(term) && !kept.contains(root));
            self.gone.extend(orphans.map(|root| root.object));
        }
        for root in state.dropped.keys().copied() {
            self.gone.insert(root);
            let of = RetireOf::Root { root, last: true };
            self.propose(SetCommand::Retire { term: Term(term), of, objects: Vec::new() });
        }
    }

    fn check(&self) {
        let (_, listed) = &self.head;
        for (name, snapshot) in listed.snapshots.iter() {
            assert!(!self.gone.contains(&snapshot.root.object), "SET-S15: {name} is listed, and its root is retired");
        }
        for at in &self.at {
            let Some(term) = at.leads.map(Term) else { continue };
            let settled = at.listing.settled(&at.state, term, &at.stored);
            let anew = settled_anew(&at.listing, &at.state, term, &at.stored);
            assert_eq!(settled, anew, "SET-S15: expected the reused list to equal a fresh one: {:?}", at.listing);
        }
        let state = &self.at[self.leader].state;
        for (name, snapshot) in state.snapshots.iter() {
            let found = listed.snapshots.get(name);
            assert!(
                found.is_some_and(|found| found.request == snapshot.request),
                "SET-S15: snapshot {name} exists and is not listed"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// SET-S15, SET-S16: for any writer of a head, however late, and whatever it has missed.
    #[test]
    fn what_is_there_is_listed_and_what_is_listed_is_there(steps in vec((0u8..12, 0usize..2), 1..120)) {
        let mut world = World::new();
        world.step(0, 0);
        for (op, who) in steps {
            world.step(op, who);
            world.at[world.leader].state.self_check();
            world.check();
        }
    }
}

/// The property above is not vacuous: there are histories in which a snapshot is made, listed and deleted, and its root
/// retired.
#[test]
fn a_history_of_heads_comes_to_its_end() {
    let mut world = World::new();
    let all = |world: &mut World, ops: &[u8]| ops.iter().for_each(|op| world.step(*op, 0));
    all(&mut world, &[0, 2, 4, 5, 8, 10]);
    assert_eq!((world.head.1.snapshots.len(), world.at[0].state.snapshots.len()), (1, 1));
    all(&mut world, &[4, 5, 8, 10, 3, 11]);
    assert!(world.gone.is_empty(), "retired while it is still listed");
    all(&mut world, &[7, 11]);
    assert!(world.gone.is_empty(), "retired before the head was replaced");
    all(&mut world, &[8, 11]);
    assert_eq!(world.gone.len(), 1);
    world.check();
}
