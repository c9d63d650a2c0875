//! Whatever happens in whatever order: the invariants of the machine's head comment.

use super::story_tests::policy;
use super::*;
use proptest::prelude::*;

/// The world as the actions left it, as far as the machine can know.
#[derive(Debug, Default)]
struct World {
    attached: bool,
    mounted: bool,
    running: bool,
    wrote: bool,
    /// The machine's watchdog was seen to count, for the start to come.
    armed: bool,
    /// Jobs under way, with the effect of their success.
    jobs: Vec<(Job, Action)>,
    renewed: MonoTime,
    told_to_stop_since: Option<MonoTime>,
    /// A takeover or a person's restart is under way, and its start is still to come.
    begun: bool,
    /// What runs is not PostgreSQL.
    service: bool,
}

#[derive(Clone, Debug)]
enum Happens {
    Time(u64),
    Lease(LeaseView),
    Attach(AttachPhase, bool),
    AttachDies(u8),
    Database(DatabaseView),
    Answer(bool),
    /// The newest job is refused, with nothing done.
    Refuse,
    Command(Command),
}

fn happens() -> impl Strategy<Value = Happens> {
    let held = (any::<bool>(), 0u64..3000, 1u64..20).prop_map(|(other, remaining, epoch)| LeaseView::Held {
        owner: if other { "db-a".into() } else { "db-b".into() },
        epoch,
        remaining: Duration::from_millis(if remaining < 1500 { 0 } else { remaining }),
        ttl: Duration::from_secs(3),
    });
    let lease = prop_oneof![3 => Just(LeaseView::Free), 1 => Just(LeaseView::Unreachable), 1 => held];
    let phase = prop_oneof![
        1 => Just(AttachPhase::Acquiring),
        2 => Just(AttachPhase::Connecting),
        8 => Just(AttachPhase::Serving),
        2 => Just(AttachPhase::Reconnecting),
        1 => Just(AttachPhase::Fenced),
    ];
    let database = prop_oneof![
        6 => Just(DatabaseView::Ready),
        1 => Just(DatabaseView::Busy),
        1 => Just(DatabaseView::Ending),
        1 => Just(DatabaseView::Silent),
        1 => Just(DatabaseView::Elsewhere),
        1 => Just(DatabaseView::Gone),
        1 => Just(DatabaseView::Standby),
    ];
    let command = prop_oneof![
        2 => Just(Command::Pause),
        4 => Just(Command::Resume),
        1 => Just(Command::Restart),
        1 => Just(Command::Switchover { to: "db-a".into() }),
        1 => Just(Command::Claim { from: "db-a".into(), within: Duration::from_secs(9) }),
        2 => Just(Command::Failover { reason: "why not".into() }),
    ];
    prop_oneof![
        6 => (1u64..1500).prop_map(Happens::Time),
        4 => lease.prop_map(Happens::Lease),
        8 => (phase, prop::bool::weighted(0.8)).prop_map(|(phase, renews)| Happens::Attach(phase, renews)),
        1 => (0u8..3).prop_map(Happens::AttachDies),
        5 => database.prop_map(Happens::Database),
        12 => prop::bool::weighted(0.9).prop_map(Happens::Answer),
        1 => Just(Happens::Refuse),
        1 => command.prop_map(Happens::Command),
    ]
}

impl World {
    fn take(&mut self, now: MonoTime, out: Vec<Action>, machine: &Machine) -> Result<(), TestCaseError> {
        for action in out {
            match &action {
                Action::Attach { .. } => {
                    prop_assert!(
                        !self.attached && !self.mounted && !self.running,
                        "AGENT-A1: attach over rests: {self:?}"
                    );
                    prop_assert!(
                        !machine.paused() || machine.way.as_ref().is_some_and(|way| way.event != Event::Start),
                        "AGENT-A4"
                    );
                    self.attached = true;
                    self.renewed = now;
                    self.told_to_stop_since = None;
                }
                Action::Import { job, .. } => {
                    prop_assert!(self.attached && !self.running, "AGENT-A1: {self:?}");
                    self.mounted = true;
                    self.begun = true;
                    self.jobs.push((*job, action));
                }
                Action::Arm { job } => {
                    prop_assert!(machine.guarded() && !self.running, "AGENT-A7: {self:?}");
                    self.armed = false;
                    self.jobs.push((*job, action));
                }
                Action::StartDatabase { job } => {
                    prop_assert!(self.armed || machine.policy.guard != Guard::Required, "AGENT-A7: {self:?}");
                    prop_assert!(self.attached && self.mounted, "AGENT-A1: {self:?}");
                    prop_assert!(!machine.paused() || self.begun, "AGENT-A4: started by itself: {self:?}");
                    self.begun = false;
                    self.running = true;
                    self.wrote = false;
                    self.told_to_stop_since = None;
                    self.jobs.push((*job, action));
                }
                Action::StopDatabase { job, .. } => {
                    self.told_to_stop_since.get_or_insert(now);
                    self.jobs.push((*job, action));
                }
                Action::Export { job, hard } => {
                    prop_assert!(*hard || !self.running, "AGENT-A2: export under a running PostgreSQL: {self:?}");
                    self.jobs.push((*job, action));
                }
                Action::EndUsers { job, .. } => {
                    let demotes = machine.state() == StateName::Demoting && !machine.paused();
                    prop_assert!(demotes && !self.running, "AGENT-A9: {}: {self:?}", machine.state());
                    self.jobs.push((*job, action));
                }
                Action::Detach { job, hard } => {
                    prop_assert!(
                        *hard || !self.mounted && !self.running,
                        "AGENT-A2: given back while mounted: {self:?}"
                    );
                    self.jobs.push((*job, action));
                }
                Action::Checkpoint { job } | Action::FirstWrite { job } => {
                    prop_assert!(!self.service, "of PostgreSQL only: {action:?}");
                    self.jobs.push((*job, action));
                }
                Action::Reboot(_) => prop_assert_eq!(machine.state(), StateName::Fencing, "AGENT-A9"),
                Action::Hook(_) | Action::Record(_) => {}
            }
        }
        self.begun &= !matches!(machine.state(), StateName::CutOff | StateName::Standby);
        if machine.role() == Role::Primary {
            prop_assert!(self.wrote, "AGENT-A5: primary before a durable write: {self:?}");
            prop_assert!(self.running && self.mounted && self.attached, "AGENT-A1: {self:?}");
        }
        let holds = machine.holds_until().is_some_and(|end| now < end);
        let lost = matches!(machine.state(), StateName::Standby | StateName::CutOff | StateName::Fencing);
        prop_assert!(!holds || !lost && self.attached, "HEALTH-H4: holds the lease, {}: {self:?}", machine.state());
        // AGENT-A3: at every moment that the machine was given.
        let stop_at = self.renewed.saturating_add(Duration::from_millis(2700));
        if self.running && now >= stop_at && machine.state() != StateName::Standby {
            prop_assert!(
                self.told_to_stop_since.is_some(),
                "AGENT-A3: still running at {now:?}, {}: {self:?}",
                machine.state()
            );
        }
        Ok(())
    }

    /// A PostgreSQL that appears without a start of the agent was started by a person, as in a pause.
    fn seen(&mut self, view: DatabaseView, machine: &Machine) {
        let waits = machine.state() == StateName::Starting && self.jobs.is_empty() && self.mounted;
        if view != DatabaseView::Gone && !self.running && waits {
            (self.running, self.wrote, self.told_to_stop_since) = (true, false, None);
        }
    }

    /// AGENT-A5: the successful check of a service counts as its first write.
    fn checked(&mut self, view: DatabaseView, machine: &Machine) {
        let waits = matches!(machine.state, State::Starting(Rising::Recovering));
        self.wrote |= self.service && view == DatabaseView::Ready && waits;
    }

    fn refuse(&mut self) -> Option<Input> {
        let job = match self.jobs.last()? {
            (job, Action::StartDatabase { .. }) => {
                self.running = false;
                *job
            }
            // By force it is not refused.
            (job, Action::Export { hard: false, .. }) => *job,
            _ => return self.answer(false),
        };
        self.jobs.clear();
        Some(Input::Refused { job, why: "somebody has it open".into() })
    }

    fn answer(&mut self, good: bool) -> Option<Input> {
        let (job, action) = self.jobs.pop()?;
        // What the newest one overtook ends with it, at the latest.
        self.jobs.clear();
        if good {
            match action {
                Action::StopDatabase { .. } => self.running = false,
                Action::Export { .. } => self.mounted = false,
                Action::FirstWrite { .. } => self.wrote = true,
                Action::Arm { .. } => self.armed = true,
                _ => {}
            }
        }
        if let Action::Detach { hard, .. } = action
            && (good || hard)
        {
            self.attached = false;
        }
        Some(Input::Done { job, result: if good { Ok(()) } else { Err("it failed".into()) } })
    }
}

fn run(story: Vec<Happens>) -> Result<StateName, TestCaseError> {
    run_with(story, Guard::Off)
}

/// With as many takeovers within an hour as a story has.
fn unlimited() -> Policy {
    let mut policy = policy();
    policy.takeover.per_hour_max = 1000;
    policy
}

fn run_with(story: Vec<Happens>, guard: Guard) -> Result<StateName, TestCaseError> {
    run_under(story, Policy { guard, ..unlimited() })
}

fn run_under(story: Vec<Happens>, policy: Policy) -> Result<StateName, TestCaseError> {
    run_from(Found::default(), story, policy)
}

/// With what an earlier agent left.
fn run_from(found: Found, story: Vec<Happens>, policy: Policy) -> Result<StateName, TestCaseError> {
    let mut now = MonoTime(1_000_000_000_000);
    let service = !policy.workload.is_postgresql();
    let mut machine = Machine::new(policy, now, Vec::new());
    let mut world = World {
        service,
        attached: found.attach,
        mounted: found.mounted,
        running: found.database,
        renewed: now,
        begun: found.mounted && !found.database,
        ..World::default()
    };
    let mut out = Vec::new();
    machine.step(now, Input::Found(found), &mut out);
    world.take(now, out, &machine)?;
    for happens in story {
        let mut out = Vec::new();
        let input = match happens {
            Happens::Time(ms) => {
                let mut left = ms;
                // The shell ticks at least this often.
                while left > 0 {
                    let step = left.min(100);
                    left -= step;
                    now = now.saturating_add(Duration::from_millis(step));
                    let mut out = Vec::new();
                    machine.step(now, Input::Tick, &mut out);
                    world.take(now, out, &machine)?;
                }
                Input::Tick
            }
            Happens::Lease(view) => Input::Lease(view),
            Happens::Attach(phase, renews) => {
                if !world.attached {
                    continue;
                }
                let alive = matches!(phase, AttachPhase::Connecting | AttachPhase::Serving);
                if alive && renews {
                    world.renewed = now;
                }
                let epoch = if phase == AttachPhase::Acquiring { 0 } else { 10 };
                Input::Attach(AttachView {
                    phase,
                    epoch,
                    renewed: Some(world.renewed),
                    ttl: None,
                    fenced_by: String::new(),
                    lost: Vec::new(),
                })
            }
            Happens::AttachDies(how) => {
                if !world.attached {
                    continue;
                }
                world.attached = false;
                Input::AttachEnded(match how {
                    0 => AttachEnd::Refused("held".into()),
                    1 => AttachEnd::Fenced("by db-a".into()),
                    _ => AttachEnd::Failed("signal 9".into()),
                })
            }
            Happens::Database(view) => {
                world.seen(view, &machine);
                world.checked(view, &machine);
                Input::Database(view)
            }
            Happens::Answer(good) => match world.answer(good) {
                Some(input) => input,
                None => continue,
            },
            Happens::Refuse => match world.refuse() {
                Some(input) => input,
                None => continue,
            },
            Happens::Command(command) => {
                // Of a switchover that is given up PostgreSQL is started again by the same word.
                let asked = matches!(command, Command::Restart | Command::Switchover { .. });
                world.begun |= machine.command(now, command, &mut out).is_ok() && asked;
                world.take(now, out, &machine)?;
                continue;
            }
        };
        machine.step(now, input, &mut out);
        world.take(now, out, &machine)?;
    }
    // Left alone with a free lease, and everything answered: it ends up as primary, or waits for a reason.
    let mut out = Vec::new();
    let _ = machine.command(now, Command::Resume, &mut out);
    world.take(now, out, &machine)?;
    for _ in 0..2000 {
        now = now.saturating_add(Duration::from_millis(100));
        let mut out = Vec::new();
        machine.step(now, Input::Tick, &mut out);
        world.take(now, out, &machine)?;
        let mut inputs = vec![Input::Lease(LeaseView::Free)];
        if world.attached {
            world.renewed = now;
            let (phase, epoch) = (AttachPhase::Serving, 10);
            inputs.push(Input::Attach(AttachView {
                phase,
                epoch,
                renewed: Some(now),
                ttl: None,
                fenced_by: String::new(),
                lost: Vec::new(),
            }));
        }
        if world.running && world.told_to_stop_since.is_none() {
            inputs.push(Input::Database(DatabaseView::Ready));
        } else if machine.database_may_run() && !world.running && world.jobs.is_empty() {
            inputs.push(Input::Database(DatabaseView::Gone));
        }
        inputs.extend(world.answer(true));
        for input in inputs {
            if let Input::Database(view) = &input {
                world.checked(*view, &machine);
            }
            let mut out = Vec::new();
            machine.step(now, input, &mut out);
            world.take(now, out, &machine)?;
        }
    }
    Ok(machine.state())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn invariants_hold_and_it_gets_there(story in prop::collection::vec(happens(), 1..120)) {
        prop_assert_eq!(run(story)?, StateName::Primary);
    }

    #[test]
    fn invariants_hold_under_the_machines_watchdog(
        story in prop::collection::vec(happens(), 1..120),
        guard in prop_oneof![Just(Guard::Automatic), Just(Guard::Required)],
    ) {
        prop_assert_eq!(run_with(story, guard)?, StateName::Primary);
    }

    #[test]
    fn invariants_hold_for_a_service(story in prop::collection::vec(happens(), 1..120)) {
        let policy = Policy { workload: Workload::Service("nfs".into()), ..unlimited() };
        prop_assert_eq!(run_under(story, policy)?, StateName::Primary);
    }

    #[test]
    fn invariants_hold_after_an_earlier_agent(
        story in prop::collection::vec(happens(), 1..120),
        runs in any::<bool>(),
    ) {
        let found = Found { attach: true, mounted: true, database: runs };
        prop_assert_eq!(run_from(found, story, unlimited())?, StateName::Primary);
    }
}

/// AGENT-A9, AGENT-A10: whatever an agent finds, and however long its device does not serve: it does not stay so.
#[test]
fn a_dead_device_is_no_reason_to_keep_the_lease() {
    for runs in [false, true] {
        let mut now = MonoTime(1_000_000_000_000);
        let mut machine = Machine::new(policy(), now, Vec::new());
        let mut out = Vec::new();
        machine.step(now, Input::Found(Found { attach: true, mounted: true, database: runs }), &mut out);
        for _ in 0..210 {
            now = now.saturating_add(Duration::from_millis(100));
            let view = AttachView {
                phase: AttachPhase::Reconnecting,
                epoch: 10,
                renewed: Some(now),
                ttl: None,
                fenced_by: String::new(),
                lost: Vec::new(),
            };
            machine.step(now, Input::Attach(view), &mut out);
        }
        assert_eq!(machine.state(), StateName::Demoting, "{runs}: {}", machine.why());
    }
}

/// How a job of a planned move ends.
#[derive(Clone, Copy, Debug)]
enum Ends {
    Well,
    Fails,
    Refused,
}

/// AGENT-A9: a machine that is primary on ZFS is ordered to hand over or to end. Its lease is renewed all the time, and
/// each job ends in some way. Returns its actions.
fn planned(command: Command, ends: Vec<(u64, Ends)>) -> (Machine, Vec<Action>) {
    let mut now = MonoTime(1_000_000_000_000);
    let policy = Policy { fence_reboot: true, ends_users: true, ..policy() };
    let mut machine = Machine::new(policy, now, Vec::new());
    let renewed = |now| {
        Input::Attach(AttachView {
            phase: AttachPhase::Serving,
            epoch: 10,
            renewed: Some(now),
            ttl: None,
            fenced_by: String::new(),
            lost: Vec::new(),
        })
    };
    let job_of = |out: &[Action]| {
        out.iter().rev().find_map(|action| match action {
            Action::Checkpoint { job }
            | Action::StopDatabase { job, .. }
            | Action::Export { job, .. }
            | Action::EndUsers { job, .. }
            | Action::Detach { job, .. }
            | Action::Import { job, .. }
            | Action::StartDatabase { job }
            | Action::FirstWrite { job } => Some(*job),
            _ => None,
        })
    };
    let mut job = Job(0);
    let step = |machine: &mut Machine, now, input, job: &mut Job| {
        let mut out = Vec::new();
        machine.step(now, input, &mut out);
        *job = job_of(&out).unwrap_or(*job);
        out
    };
    step(&mut machine, now, Input::Found(Found::default()), &mut job);
    step(&mut machine, now, Input::Lease(LeaseView::Free), &mut job);
    step(&mut machine, now, renewed(now), &mut job);
    for _ in 0..2 {
        step(&mut machine, now, Input::Done { job, result: Ok(()) }, &mut job);
    }
    step(&mut machine, now, Input::Database(DatabaseView::Ready), &mut job);
    step(&mut machine, now, Input::Done { job, result: Ok(()) }, &mut job);
    assert_eq!(machine.state(), StateName::Primary);
    let mut did = Vec::new();
    machine.command(now, command, &mut did).unwrap();
    job = job_of(&did).unwrap();
    let jobs = |did: &[Action]| did.iter().filter(|action| job_of(std::slice::from_ref(action)).is_some()).count();
    let mut ended = 0;
    for (ms, end) in ends {
        for _ in 0..ms / 100 {
            now = now.saturating_add(Duration::from_millis(100));
            did.extend(step(&mut machine, now, renewed(now), &mut job));
        }
        // From here on it is on its way up again, or the pool is let go of.
        let let_go = did.iter().any(|action| matches!(action, Action::Detach { .. }));
        if machine.state() != StateName::Demoting || let_go {
            break;
        }
        // Each job ends once; between two rounds none is under way.
        if jobs(&did) == ended {
            continue;
        }
        ended = jobs(&did);
        let refused = Input::Refused { job, why: "somebody has it open".into() };
        let is_export = did
            .iter()
            .rev()
            .find_map(|action| job_of(std::slice::from_ref(action)).map(|_| matches!(action, Action::Export { .. })));
        did.extend(match end {
            Ends::Well => step(&mut machine, now, Input::Done { job, result: Ok(()) }, &mut job),
            Ends::Refused if is_export == Some(true) => step(&mut machine, now, refused, &mut job),
            Ends::Refused | Ends::Fails => {
                step(&mut machine, now, Input::Done { job, result: Err("it failed".into()) }, &mut job)
            }
        });
    }
    (machine, did)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn invariants_hold_where_fencing_ends_in_a_reboot(story in prop::collection::vec(happens(), 1..120)) {
        let policy = Policy { fence_reboot: true, ends_users: true, ..unlimited() };
        prop_assert_eq!(run_under(story, policy)?, StateName::Primary);
    }

    #[test]
    fn a_planned_move_under_its_own_lease_ends_without_force(
        ends in prop::collection::vec((0u64..3000, prop_oneof![Just(Ends::Well), Just(Ends::Fails), Just(Ends::Refused)]), 1..40),
        moves in any::<bool>(),
    ) {
        let command = if moves { Command::Switchover { to: "db-a".into() } } else { Command::Shutdown };
        let (machine, did) = planned(command, ends);
        prop_assert_ne!(machine.state(), StateName::Fencing);
        for action in did {
            let by_force = matches!(
                action,
                Action::Reboot(_)
                    | Action::EndUsers { .. }
                    | Action::Export { hard: true, .. }
                    | Action::Detach { hard: true, .. }
            );
            prop_assert!(!by_force, "AGENT-A9: {action:?}");
        }
    }
}

/// Found by the property: attach ended by itself while it was being asked to end, the next campaign began, and the old
/// job then took the new attach away.
#[test]
fn a_detach_under_way_does_not_meet_the_next_attach() {
    let story = vec![
        Happens::Lease(LeaseView::Free),
        Happens::Attach(AttachPhase::Serving, false),
        Happens::Answer(false),
        Happens::Answer(true),
        Happens::AttachDies(0),
        Happens::Time(900),
    ];
    assert_eq!(run(story).expect("the invariants"), StateName::Primary);
}

/// AGENT-A4, where the property may not draw it: a cut-off in a pause.
#[test]
fn a_cut_off_in_a_pause_starts_nothing() {
    let story = vec![
        Happens::Lease(LeaseView::Free),
        Happens::Attach(AttachPhase::Serving, true),
        Happens::Answer(true),
        Happens::Answer(true),
        Happens::Database(DatabaseView::Ready),
        Happens::Answer(true),
        Happens::Command(Command::Pause),
        Happens::Time(2800),
        Happens::Answer(true),
        Happens::Attach(AttachPhase::Serving, true),
        Happens::Time(100),
    ];
    assert_eq!(run(story).expect("the invariants"), StateName::Primary);
}
