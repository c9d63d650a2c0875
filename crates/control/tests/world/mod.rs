//! World of the stories: one set's log, group 0's log, and gateways that apply entries and read their clocks.

mod words;

use holdfast_control::Utc;
use holdfast_control::cluster::{
    ClusterAnswer, ClusterCommand, ClusterState, GroupVoters, Member, MemberRole, Standing,
};
use holdfast_control::pair::{Ended, Tenure, TenureId};
use holdfast_control::serve::{ClockWatch, ExpiryJudge, GateEvent, ServeGate, Timing};
use holdfast_control::set::{Admit, Judged, Lease, RootRef, SetAnswer, SetCommand, SetState, SnapshotId, VolumeChange};
use holdfast_types::pledge::VoteEmbargo;
use holdfast_types::{
    Epoch, GroupId, LogId, LogIndex, MemberId, MonoTime, Name, ObjectId, Owner, RequestId, Sectors, Term, Token,
    VolumeId, WriteSeq,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use words::Words;

/// One gateway's own decisions by its clock (here all clocks are right).
struct Gateway {
    gate: ServeGate,
    judge: ExpiryJudge,
    embargo: VoteEmbargo,
    watch: ClockWatch,
    /// Paused by the hypervisor: events reach it only when it resumes.
    paused: bool,
    backlog: Vec<Happening>,
}

#[derive(Clone)]
enum Happening {
    Gate(GateEvent),
    Lease(Option<Lease>),
}

pub struct World {
    now: MonoTime,
    term: Term,
    index: u64,
    set: SetState,
    copy: Option<SetState>,
    cluster: ClusterState,
    gateways: BTreeMap<MemberId, Gateway>,
    /// Of gateway pairs, by gateway.
    tenures: BTreeMap<u64, (Tenure, TenureId)>,
}

impl Default for World {
    fn default() -> Self {
        Self {
            now: MonoTime(0),
            term: Term(1),
            index: 0,
            set: SetState::new(Epoch(0)),
            copy: None,
            cluster: ClusterState::new(),
            gateways: BTreeMap::new(),
            tenures: BTreeMap::new(),
        }
    }
}

const MS: u64 = 1_000_000;

impl World {
    /// Runs one line. The answer ends with a line break, unless the command is silent.
    pub fn run(&mut self, line: &str) -> String {
        let words = Words::new(line);
        let answer = self.set_command(&words).or_else(|| self.cluster_command(&words)).or_else(|| self.other(&words));
        let answer = answer.unwrap_or_else(|| panic!("no such command: {line:?}"));
        words.all_used();
        if answer.is_empty() { answer } else { format!("{answer}\n") }
    }

    /// Under a request of its own.
    fn change(&self, change: VolumeChange) -> SetCommand {
        SetCommand::ChangeVolume { change, request: RequestId(1 << 80 | u128::from(self.index)) }
    }

    fn set_command(&mut self, w: &Words) -> Option<String> {
        let cmd = match w.verb() {
            "create-volume" => {
                self.change(VolumeChange::Create { name: name(w, "name"), size: Sectors(w.number("sectors")) })
            }
            "grow-volume" => self.change(VolumeChange::Grow {
                volume: VolumeId(w.number("volume") as u32),
                size: Sectors(w.number("sectors")),
            }),
            "acquire" => SetCommand::Acquire {
                owner: Owner::new(w.text("owner")).unwrap(),
                gateway: MemberId(w.number("gw")),
                token: token(w.number("token")),
                ttl_ms: w.number_or("ttl", 3000) as u32,
                request: RequestId(u128::from(w.number("req"))),
                judged_expired: w.maybe("judged").map(|text| {
                    let (epoch, renewed) = text.split_once('/').unwrap();
                    Judged { epoch: Epoch(epoch.parse().unwrap()), renewed: LogIndex(renewed.parse().unwrap()) }
                }),
                force: w.flag("force"),
                plain: w.flag("plain"),
                at_unix_ms: 1_795_000_000_000 + self.now.0 / MS,
            },
            "continue" => SetCommand::Continue {
                owner: Owner::new(w.text("owner")).unwrap(),
                gateway: MemberId(w.number("gw")),
                token: token(w.number("token")),
                new_token: token(w.number("new")),
                request: RequestId(u128::from(w.number("req"))),
                at_unix_ms: 1_795_000_000_000 + self.now.0 / MS,
            },
            "renew" => SetCommand::Renew { epoch: Epoch(w.number("epoch")) },
            "release" => SetCommand::Release {
                epoch: Epoch(w.number("epoch")),
                token: w.maybe("token").map(|text| token(text.parse().unwrap())),
            },
            "begin" => SetCommand::CheckpointBegin { term: Term(w.number("term")) },
            "segment" => SetCommand::SegmentCommitted {
                term: Term(w.number("term")),
                object: object(w.number("object")),
                stored_bytes: 100,
                raw_bytes: 200,
            },
            "end" => SetCommand::CheckpointEnd {
                term: Term(w.number("term")),
                begin: log_id(w.text("begin")),
                root: RootRef { object: object(w.number("root")), bytes: 4096 },
            },
            "snapshot" => SetCommand::SnapshotCreate {
                name: name(w, "name"),
                request: RequestId(u128::from(w.number("req"))),
                at_unix_ms: 0,
                scheduled: false,
            },
            "delete-snapshot" => SetCommand::SnapshotDelete {
                name: name(w, "name"),
                made_by: RequestId(u128::from(w.number("made-by"))),
            },
            "pin" => SetCommand::Pin {
                clone: GroupId(w.number("clone")),
                snapshot: SnapshotId { name: name(w, "snapshot"), made_by: RequestId(u128::from(w.number("made-by"))) },
                request: RequestId(u128::from(w.number("req"))),
            },
            "unpin" => {
                SetCommand::Unpin { clone: GroupId(w.number("clone")), request: RequestId(u128::from(w.number("req"))) }
            }
            "write" => {
                let id = self.next_id();
                let (epoch, seq) = (Epoch(w.number("epoch")), WriteSeq(w.number("seq")));
                let said = match self.set.admit_write(id, epoch, seq) {
                    Admit::Apply => "applied".to_owned(),
                    Admit::Duplicate => "success, nothing changed (applied before)".to_owned(),
                    Admit::Refused(refusal) => format!("refused: {refusal}"),
                };
                self.applied(id, None);
                return Some(format!("{}: {said}", id.index));
            }
            _ => return None,
        };
        let id = self.next_id();
        let answer = self.set.apply(id, &cmd);
        if let SetAnswer::CheckpointBegun { .. } = answer {
            self.copy = Some(self.set.clone());
        }
        self.applied(id, Some(&answer));
        Some(format!("{}: {}", id.index, set_answer(&answer)))
    }

    fn cluster_command(&mut self, w: &Words) -> Option<String> {
        let cmd = match w.verb() {
            "init" => ClusterCommand::Init { cluster_id: u128::from(w.number("cluster")) },
            "join" => ClusterCommand::AddMember {
                member: Member {
                    id: MemberId(w.number_or("id", 0)),
                    name: name(w, "name"),
                    locality: "region=eu".parse().unwrap(),
                    disk: u128::from(w.number("disk")),
                    peer_addr: "10.0.0.1:7001".to_owned(),
                    api_addr: "10.0.0.1:7002".to_owned(),
                    nbd_addr: "10.0.0.1:10809".to_owned(),
                    role: MemberRole::Gateway,
                    standing: Standing::Active,
                },
                replaces: w.maybe("replaces").map(|id| MemberId(id.parse().unwrap())),
                request: RequestId(u128::from(w.number("req"))),
            },
            "remove" => ClusterCommand::RemoveMember { id: MemberId(w.number("id")) },
            "drain" => ClusterCommand::SetStanding { id: MemberId(w.number("id")), standing: Standing::Drained },
            "undrain" => ClusterCommand::SetStanding { id: MemberId(w.number("id")), standing: Standing::Active },
            "leave" => ClusterCommand::SetStanding { id: MemberId(w.number("id")), standing: Standing::Leaving },
            "update" => ClusterCommand::UpdateMember {
                id: MemberId(w.number("id")),
                peer_addr: w.text("peer").to_owned(),
                api_addr: "10.0.0.2:7002".to_owned(),
                nbd_addr: "10.0.0.2:10809".to_owned(),
                locality: "region=eu".parse().unwrap(),
            },
            "boot" => ClusterCommand::RegisterBoot {
                member: MemberId(w.number("id")),
                disk: u128::from(w.number("disk")),
                boot: w.number("count"),
                nonce: w.number("nonce"),
                level: w.number_or("level", 1) as u32,
            },
            "raise" => ClusterCommand::RaiseLevel { level: w.number("level") as u32 },
            "create-set" => ClusterCommand::CreateSet {
                name: name(w, "name"),
                policy: holdfast_control::policy::Policy::default(),
                store: w.maybe("store").unwrap_or("s3://bucket/prefix").to_owned(),
                wrapped_key: vec![7; 64],
                key_id: 1,
                members: w
                    .maybe("members")
                    .map_or(vec![], |list| list.split(',').map(|id| MemberId(id.parse().unwrap())).collect()),
                created_by: MemberId(w.number("by")),
                base_epoch: Epoch(w.number_or("base", 0)),
                request: RequestId(u128::from(w.number("req"))),
            },
            "swap-keys" => ClusterCommand::SwapKeys {
                set: GroupId(w.number("set")),
                expected: vec![7; 64],
                wrapped_key: vec![8; w.number_or("bytes", 64) as usize],
                key_id: w.number("key") as u32,
            },
            "place" => ClusterCommand::PlaceVoters {
                set: GroupId(w.number("set")),
                from: ids(w.text("from")),
                to: ids(w.text("to")),
            },
            "delete-set" => ClusterCommand::DeleteSet {
                set: GroupId(w.number("set")),
                name: name(w, "name"),
                request: RequestId(u128::from(w.number("req"))),
            },
            "set-ended" => ClusterCommand::SetEnded {
                set: GroupId(w.number("set")),
                member: member(w),
                voters: w.maybe("voters").map(|list| GroupVoters { at: log_id(w.text("at")), sets: vec![ids(list)] }),
            },
            "forget-set" => {
                ClusterCommand::ForgetSet { set: GroupId(w.number("set")), store_left: w.flag("store-left") }
            }
            "set-emptied" => ClusterCommand::SetEmptied { set: GroupId(w.number("set")), ended: ids(w.text("ended")) },
            _ => return None,
        };
        let id = self.next_id();
        let answer = self.cluster.apply(id, &cmd);
        self.cluster.self_check();
        Some(match answer {
            ClusterAnswer::Initialized => "the cluster has its id".to_owned(),
            ClusterAnswer::MemberAdded { id } => format!("added {id}"),
            ClusterAnswer::MemberRemoved => "removed".to_owned(),
            ClusterAnswer::LevelRaised => format!("feature level {}", self.cluster.level),
            ClusterAnswer::StandingSet => "so it is".to_owned(),
            ClusterAnswer::MemberUpdated => "updated".to_owned(),
            ClusterAnswer::BootRegistered => "may take part".to_owned(),
            ClusterAnswer::SetCreated { set } => format!("created {set}, voters {:?}", voters(&self.cluster, set)),
            ClusterAnswer::KeyRewrapped => "rewrapped".to_owned(),
            ClusterAnswer::SetDeleting { set } => format!("{set} is being deleted, or was"),
            ClusterAnswer::DeletionNoted => "noted".to_owned(),
            ClusterAnswer::Placed => "so it lies".to_owned(),
            ClusterAnswer::SetsPassed => "passed".to_owned(),
            ClusterAnswer::Revoked => "so the list is".to_owned(),
            ClusterAnswer::VotersPlaced => "these are its voters".to_owned(),
            ClusterAnswer::PolicySet => "this is its policy".to_owned(),
            ClusterAnswer::Refused(refusal) => format!("refused: {refusal}"),
        })
    }

    /// Of a gateway pair with an etcd (ADR 0031).
    fn seat(&mut self, verb: &str, w: &Words) -> String {
        let (now, gw) = (self.now, w.number("gw"));
        let ttl = Duration::from_millis(w.number_or("ttl", 10_000));
        if verb == "seat-won" {
            let id = TenureId::new(7, "/holdfast/pairs/db/seat", w.number("revision"));
            self.tenures.insert(gw, (Tenure::begin(MonoTime(w.number("sent") * MS), ttl), id));
        }
        let Some((tenure, id)) = self.tenures.get_mut(&gw) else { return "it never had the seat".into() };
        match verb {
            "seat-won" => return format!("answers until {} ms", tenure.until().0 / MS),
            "seat-kept" => tenure.renewed(now, MonoTime(w.number("sent") * MS), ttl),
            "seat-lost" => tenure.end(Ended::Lost("its key is gone".into())),
            "seat-head" => {
                let of = TenureId::new(w.number_or("etcd", 7), "/holdfast/pairs/db/seat", w.number("revision"));
                return format!("{:?}", id.judge(of.cluster(), None));
            }
            "seat-asks" => {}
            _ => panic!("no such command: {verb:?}"),
        }
        match tenure.may_answer(now) {
            Ok(()) => format!("answers until {} ms", tenure.until().0 / MS),
            Err(why) => format!("no answer: {why}"),
        }
    }

    fn other(&mut self, w: &Words) -> Option<String> {
        match w.verb() {
            "now" => {
                let to = MonoTime(w.number("ms") * MS);
                assert!(to >= self.now, "expected a time that is not before the present one");
                self.now = to;
            }
            "index" => self.index = w.number("next") - 1,
            verb if verb.starts_with("seat-") => return Some(self.seat(verb, w)),
            "new-set" => self.set = SetState::new(Epoch(w.number("base"))),
            "state" => return Some(self.state()),
            "deletions" => return Some(self.deletions()),
            "kept" => {
                let roots: Vec<u128> = self.set.kept_roots().iter().map(|root| root.object.random).collect();
                return Some(format!("kept roots {roots:?}"));
            }
            "replay-from-snapshot" => return Some(self.snapshot_state()),
            "timing" => return Some(timing_text(&timing(w))),
            "gateway" => {
                let timing = quick(w);
                let gateway = Gateway {
                    gate: ServeGate::new(member(w), timing, self.now),
                    judge: ExpiryJudge::new(),
                    embargo: VoteEmbargo::new(self.now, None, timing.embargo()),
                    watch: ClockWatch::with_timing(&timing),
                    paused: false,
                    backlog: Vec::new(),
                };
                self.gateways.insert(member(w), gateway);
            }
            // From here on entries carry this term; the leader is told, and its first (empty) entry is applied.
            "leader" => {
                self.term = Term(w.number("term"));
                for id in self.gateways.keys().copied().collect::<Vec<_>>() {
                    let leads = id == member(w);
                    let event =
                        if leads { GateEvent::TermStarted { term: self.term } } else { GateEvent::LeadershipLost };
                    self.tell(id, Happening::Gate(event));
                }
                let id = self.next_id();
                self.applied(id, None);
                return Some(format!("{id}: first entry of the term"));
            }
            "tell" => {
                let event = match w.text("event") {
                    "transfer" => GateEvent::TransferStarted,
                    "lost" => GateEvent::LeadershipLost,
                    "sole" => GateEvent::SoleVoter(true),
                    "not-sole" => GateEvent::SoleVoter(false),
                    "term" => GateEvent::TermStarted { term: Term(w.number("term")) },
                    other => panic!("no such event: {other}"),
                };
                self.tell(member(w), Happening::Gate(event));
            }
            "acked" => {
                let sent = MonoTime(w.number("sent") * MS);
                self.tell(member(w), Happening::Gate(GateEvent::acked(&quick(w), sent)));
            }
            "pause" => self.gateway(w).paused = true,
            "resume" => {
                self.gateway(w).paused = false;
                let backlog = std::mem::take(&mut self.gateway(w).backlog);
                for happening in backlog {
                    self.tell(member(w), happening);
                }
            }
            "look" => {
                let (boot, monotonic) = (MonoTime(w.number("boot") * MS), MonoTime(w.number("mono") * MS));
                let now = self.now;
                let gateway = self.gateway(w);
                let Some(suspicion) = gateway.watch.sample(boot, monotonic) else { return Some("trusted".to_owned()) };
                gateway.gate.event(now, GateEvent::ClockSuspicion);
                gateway.judge.clock_suspected(now, suspicion.lost());
                return Some(format!("suspected: {suspicion}"));
            }
            "read" => return Some(answer(self.at(w).gate.may_read(self.now))),
            "take-write" => return Some(answer(self.at(w).gate.may_write(self.now))),
            "cut-off" => return Some(if self.at(w).gate.cut_off(self.now) { "yes" } else { "no" }.to_owned()),
            "vote" => {
                let embargoed = self.at(w).embargo.left(self.now).is_some();
                return Some(if embargoed { "must not" } else { "may" }.to_owned());
            }
            "judge" => {
                return Some(match self.at(w).judge.judge(self.now) {
                    Some(judged) => format!("expired: judged={}/{}", judged.epoch.0, judged.renewed.0),
                    None => "not expired".to_owned(),
                });
            }
            _ => return None,
        }
        Some(String::new())
    }

    fn next_id(&mut self) -> LogId {
        self.index += 1;
        LogId { term: self.term, index: LogIndex(self.index) }
    }

    /// An entry was applied, at every gateway that runs.
    fn applied(&mut self, id: LogId, answer: Option<&SetAnswer>) {
        self.set.self_check();
        let mut facts = vec![Happening::Gate(GateEvent::FirstEntryApplied { term: id.term })];
        match answer {
            Some(SetAnswer::Granted(lease)) if lease.granted == id.index => {
                let (epoch, gateway) = (lease.epoch, lease.gateway);
                facts.push(Happening::Gate(GateEvent::GrantApplied { id, epoch, gateway }));
            }
            Some(SetAnswer::Released) => {
                facts.push(Happening::Gate(GateEvent::LeaseReleased { epoch: self.set.epoch }));
            }
            _ => {}
        }
        facts.push(Happening::Lease(self.set.lease.clone()));
        for gateway in self.gateways.keys().copied().collect::<Vec<_>>() {
            for fact in &facts {
                self.tell(gateway, fact.clone());
            }
        }
    }

    fn tell(&mut self, id: MemberId, happening: Happening) {
        let now = self.now;
        let gateway = self.gateways.get_mut(&id).unwrap_or_else(|| panic!("no gateway {id}"));
        if gateway.paused {
            gateway.backlog.push(happening);
            return;
        }
        match happening {
            Happening::Gate(event) => {
                gateway.gate.event(now, event);
                match event {
                    GateEvent::TermStarted { .. } => gateway.judge.elected(now),
                    GateEvent::LeadershipLost => gateway.judge.leadership_lost(),
                    _ => {}
                }
            }
            Happening::Lease(lease) => gateway.judge.observe(now, lease.as_ref()),
        }
    }

    fn at(&self, w: &Words) -> &Gateway {
        &self.gateways[&member(w)]
    }

    fn gateway(&mut self, w: &Words) -> &mut Gateway {
        self.gateways.get_mut(&member(w)).unwrap()
    }

    fn state(&self) -> String {
        let set = &self.set;
        let lease = set.lease.as_ref().map_or("free".to_owned(), lease_text);
        let begin = set.begin.map_or("none under way".to_owned(), |begin| format!("under way since {}", begin.at));
        let done = set.checkpoint.map_or("none".to_owned(), |done| format!("upto {}", done.upto));
        format!(
            "{lease}; last {} of {}; checkpoint {done}, {begin}, {} segments",
            set.last_seq,
            set.epoch,
            set.segments.len()
        )
    }

    fn deletions(&self) -> String {
        let told = self.cluster.deletions.under_way.iter().map(|(id, found)| {
            let members = self.cluster.members.keys().copied();
            let waits: Vec<String> = found.waits_for(members).iter().map(MemberId::to_string).collect();
            let key = if found.entry.wrapped_key.is_empty() { "no key" } else { "its key" };
            format!("{id} {:?}, {key}, waits for [{}]", found.stage, waits.join(" "))
        });
        let told: Vec<String> = told.collect();
        if told.is_empty() { "none".to_owned() } else { told.join("; ") }
    }

    fn snapshot_state(&self) -> String {
        let (Some(copy), Some(done)) = (&self.copy, self.set.checkpoint) else { return "no snapshot".to_owned() };
        let snapshot = SetState::after_checkpoint(copy, done.root, done.upto);
        let epoch = snapshot.epoch;
        format!("snapshot upto {}, epoch {epoch}", done.upto)
    }
}

fn name(w: &Words, key: &str) -> Name {
    Name::new(w.text(key)).unwrap()
}

fn member(w: &Words) -> MemberId {
    MemberId(w.number("gw"))
}

/// Times of most stories: short, so that their moments are short numbers.
fn quick(w: &Words) -> Timing {
    Timing::with_floor(Duration::from_millis(w.number_or("rtt", 1)), Duration::from_millis(150))
}

fn timing(w: &Words) -> Timing {
    Timing::from_rtt(Duration::from_millis(w.number_or("rtt", 1)))
}

/// A story shows the first 32 bits of a token as a small number.
fn token(number: u64) -> Token {
    Token(u128::from(number) << 96)
}

fn object(random: u64) -> ObjectId {
    ObjectId { term: Term(1), member: MemberId(1), boot: 1, random: u128::from(random) }
}

fn log_id(text: &str) -> LogId {
    let (term, index) = text.split_once('-').unwrap();
    LogId::new(term.parse().unwrap(), index.parse().unwrap())
}

fn ids(list: &str) -> BTreeSet<MemberId> {
    list.split(',').map(|id| MemberId(id.parse().unwrap())).collect()
}

fn voters(cluster: &ClusterState, set: GroupId) -> Vec<u64> {
    cluster.sets[&set].initial_members.iter().map(|id| id.0).collect()
}

fn answer(result: Result<Epoch, holdfast_control::serve::WhyNot>) -> String {
    match result {
        Ok(epoch) => format!("yes, under {epoch}"),
        Err(why) => format!("no, {}: {why}", if why.may_pass() { "wait" } else { "close" }),
    }
}

fn lease_text(lease: &Lease) -> String {
    let previous =
        lease.earlier_tokens.iter().map(|token| format!(" (or token {})", token.0 >> 96)).collect::<String>();
    format!(
        "{} at {} under {}, token {}{previous}, renewed {}, since {}{}",
        lease.owner,
        lease.gateway,
        lease.epoch,
        lease.token.0 >> 96,
        lease.renewed,
        Utc(lease.since_unix_ms),
        if lease.plain { ", plain" } else { "" }
    )
}

fn set_answer(answer: &SetAnswer) -> String {
    match answer {
        SetAnswer::Granted(lease) => format!("granted {}", lease_text(lease)),
        SetAnswer::Renewed => "renewed".to_owned(),
        SetAnswer::Released => "released".to_owned(),
        SetAnswer::CheckpointBegun { at } => format!("begun at {at}"),
        SetAnswer::SegmentNoted => "noted".to_owned(),
        SetAnswer::CheckpointEnded => "ended".to_owned(),
        SetAnswer::Written => "written".to_owned(),
        SetAnswer::SnapshotAsked => "snapshot asked for".to_owned(),
        SetAnswer::SnapshotDeleted { existed } => format!("snapshot deleted, was there: {existed}"),
        SetAnswer::Retired => "retired".to_owned(),
        SetAnswer::DeletionNoted => "deletion noted".to_owned(),
        SetAnswer::ScheduleSet => "schedule set".to_owned(),
        SetAnswer::RolledBack { now } => format!("rolled back, by this entry: {now}"),
        SetAnswer::VolumeChanged { volume, discarded: None } => format!("changed {volume}"),
        SetAnswer::VolumeChanged { volume, discarded: Some(from) } => {
            format!("changed {volume}, discarded from {from}")
        }
        SetAnswer::VolumeChangedBefore => "changed before".to_owned(),
        SetAnswer::Pinned { root } => format!("pinned root {}", root.object.random),
        SetAnswer::Unpinned => "not pinned for that number by that request".to_owned(),
        SetAnswer::Located => "it is known where the owner stands".to_owned(),
        SetAnswer::LimitSet => "limit set".to_owned(),
        SetAnswer::Retimed => "the group has other times".to_owned(),
        SetAnswer::WrittenExcept { outside } => format!("written except {outside:?}"),
        SetAnswer::Refused(refusal) => format!("refused: {refusal}"),
    }
}

fn timing_text(timing: &Timing) -> String {
    let ms = |d: Duration| d.as_millis();
    format!(
        "rtt {} heartbeat {} election {}-{} lease {} margin {} read {} embargo {} look {} gap {} takeover {}",
        ms(timing.rtt()),
        ms(timing.heartbeat()),
        ms(timing.election_min()),
        ms(timing.election_max()),
        ms(timing.leader_lease()),
        ms(timing.drift_margin()),
        ms(timing.read_lease()),
        ms(timing.embargo()),
        ms(timing.clock_tick()),
        ms(timing.gap_max()),
        ms(timing.takeover_max())
    )
}
