//! Golden stories: what happens, and below `----` what the machine does about it. `UPDATE_GOLDEN=1 cargo test -p
//! holdfast-agent stories` rewrites the answers; the difference is read like code.
//!
//! ```text
//!   settings KEY=VALUE ...        before the first input
//!   found nothing|all|attach|mounted|pool    pool: all but PostgreSQL
//!   lease free | unreachable | OWNER EPOCH REMAINING_MS [TTL_MS]
//!   attach PHASE EPOCH [ttl=MS] [by=OWNER] [lost=VOLUME]  renewed just now; `stale` keeps the last renewal
//!   attach-ended refused|fenced|failed TEXT
//!   db ready|standby|busy|ending|silent|elsewhere|gone
//!   ok | fail TEXT                 the newest job
//!   pause | resume | restart | shutdown | failover REASON | switchover HOST | claim HOST MS
//!   refuse TEXT                    the newest job: nothing was done
//!   ended TEXT                     a process that had the pool open was ended
//!   off-set [TEXT]                 files that do not lie on the set; without text: none
//!   unable [TEXT]                  why this host could not take over, also by command; without text: no obstacle
//!   wait MS                        ticks every 100 ms
//! ```

use super::*;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

pub(super) fn policy() -> Policy {
    Policy {
        name: "db-b".into(),
        takeover: TakeoverPolicy {
            automatic: true,
            nofailover: false,
            campaign_wait: Duration::ZERO,
            flap_delay: Duration::from_secs(30),
            per_hour_max: 4,
            backoff_min: Duration::from_secs(1),
            backoff_max: Duration::from_secs(60),
            switchover_hold: Duration::from_secs(10),
        },
        timeouts: Timeouts {
            acquire: Duration::from_secs(10),
            attach: Duration::from_secs(20),
            start: Duration::from_secs(60),
            health: Duration::from_secs(10),
        },
        lease: LeasePolicy { stop_margin: Duration::from_millis(300), ttl: Duration::from_secs(3) },
        restarts: RestartPolicy { max: 2, window: Duration::from_secs(300) },
        fence_reboot: false,
        ends_users: false,
        workload: Workload::PostgreSql,
        follows: false,
        guard: Guard::Off,
    }
}

struct Teller {
    machine: Machine,
    now: MonoTime,
    job: Job,
    renewed: MonoTime,
    text: String,
    told: (StateName, String),
}

fn is_gone(volume: &str) -> String {
    format!("volume {volume} is gone")
}

fn ms(text: &str) -> Duration {
    Duration::from_millis(text.parse().unwrap())
}

impl Teller {
    fn new(policy: Policy) -> Self {
        let now = MonoTime(1_000_000_000_000);
        let machine = Machine::new(policy, now, Vec::new());
        let told = (machine.state(), String::new());
        Self { machine, now, job: Job(0), renewed: now, text: String::new(), told }
    }

    fn at(&self) -> String {
        format!("{:>6}", (self.now.0 - 1_000_000_000_000) / 1_000_000)
    }

    fn tell(&mut self, out: Vec<Action>) {
        for action in out {
            let at = self.at();
            let words = match &action {
                Action::Record(record) => {
                    let mut words = format!("history {}: {}", record.event, record.reason);
                    if let Some(phases) = &record.phases {
                        let _ = write!(words, " {}", serde_json::to_string(phases).unwrap().replace('"', ""));
                    }
                    words
                }
                Action::Hook(role) => format!("hook {role:?}"),
                other => format!("{other:?}"),
            };
            self.job = match action {
                Action::Detach { job, .. }
                | Action::Import { job, .. }
                | Action::Export { job, .. }
                | Action::EndUsers { job, .. }
                | Action::Arm { job }
                | Action::StartDatabase { job }
                | Action::StopDatabase { job, .. }
                | Action::Checkpoint { job }
                | Action::FirstWrite { job } => job,
                _ => self.job,
            };
            let words = words.replace("job: Job", "job ");
            let _ = writeln!(self.text, "{at}  {words}");
        }
        let state = self.machine.state();
        if state != self.told.0 {
            let _ = writeln!(self.text, "{}  = {state} ({})", self.at(), self.machine.why());
            self.told = (state, self.machine.why().to_string());
        }
    }

    fn input(&mut self, input: Input) {
        let mut out = Vec::new();
        self.machine.step(self.now, input, &mut out);
        self.tell(out);
    }

    fn command(&mut self, command: Command) {
        let mut out = Vec::new();
        let said = self.machine.command(self.now, command, &mut out);
        let said = said.unwrap_or_else(|refused| format!("refused: {refused}"));
        let _ = writeln!(self.text, "{}  \"{said}\"", self.at());
        self.tell(out);
    }

    fn line(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let rest = |from: usize| words[from..].join(" ");
        match words[0] {
            "found" => {
                let all = words[1] == "all";
                self.input(Input::Found(Found {
                    attach: all || matches!(words[1], "attach" | "pool"),
                    mounted: all || matches!(words[1], "mounted" | "pool"),
                    database: all,
                }));
            }
            "lease" => self.input(Input::Lease(match words[1] {
                "free" => LeaseView::Free,
                "unreachable" => LeaseView::Unreachable,
                owner => LeaseView::Held {
                    owner: owner.into(),
                    epoch: words[2].parse().unwrap(),
                    remaining: ms(words[3]),
                    ttl: ms(words.get(4).unwrap_or(&"3000")),
                },
            })),
            "attach" => {
                if !line.contains("stale") {
                    self.renewed = self.now;
                }
                let phase = serde_json::from_str(&format!("\"{}\"", words[1])).unwrap();
                let by = words.iter().find_map(|word| word.strip_prefix("by=")).unwrap_or("");
                self.input(Input::Attach(AttachView {
                    phase,
                    epoch: words[2].parse().unwrap(),
                    renewed: Some(self.renewed),
                    ttl: words
                        .iter()
                        .find_map(|word| word.strip_prefix("ttl="))
                        .map(|ms| Duration::from_millis(ms.parse().unwrap())),
                    fenced_by: by.into(),
                    lost: words.iter().filter_map(|word| word.strip_prefix("lost=")).map(is_gone).collect(),
                }));
            }
            "attach-ended" => self.input(Input::AttachEnded(match words[1] {
                "refused" => AttachEnd::Refused(rest(2)),
                "fenced" => AttachEnd::Fenced(rest(2)),
                _ => AttachEnd::Failed(rest(2)),
            })),
            "db" => self.input(Input::Database(match words[1] {
                "ready" => DatabaseView::Ready,
                "standby" => DatabaseView::Standby,
                "busy" => DatabaseView::Busy,
                "ending" => DatabaseView::Ending,
                "silent" => DatabaseView::Silent,
                "elsewhere" => DatabaseView::Elsewhere,
                "gone" => DatabaseView::Gone,
                other => panic!("db {other}"),
            })),
            "ok" => self.input(Input::Done { job: self.job, result: Ok(()) }),
            "fail" => self.input(Input::Done { job: self.job, result: Err(rest(1)) }),
            "refuse" => self.input(Input::Refused { job: self.job, why: rest(1) }),
            "ended" => self.input(Input::UsersEnded(vec![rest(1)])),
            "off-set" => {
                let mut out = Vec::new();
                self.machine.set_off_set(&rest(1), &mut out);
                self.tell(out);
            }
            "pause" => self.command(Command::Pause),
            "resume" => self.command(Command::Resume),
            "restart" => self.command(Command::Restart),
            "shutdown" => self.command(Command::Shutdown),
            "failover" => self.command(Command::Failover { reason: rest(1) }),
            "switchover" => self.command(Command::Switchover { to: words[1].into() }),
            "claim" => self.command(Command::Claim { from: words[1].into(), within: ms(words[2]) }),
            "unable" => {
                self.machine.set_unable(&rest(1));
                self.input(Input::Tick);
            }
            "wait" => {
                let end = self.now.saturating_add(ms(words[1]));
                while self.now < end {
                    self.now = end.min(self.now.saturating_add(Duration::from_millis(100)));
                    self.input(Input::Tick);
                }
            }
            // Primary already, without the words.
            "primary" => {
                for line in PRIMARY.lines() {
                    self.line(line);
                }
                self.text.clear();
            }
            other => panic!("unknown word {other:?}"),
        }
    }
}

const PRIMARY: &str = "found nothing\nlease free\nattach connecting 5\nattach serving 5\nok\nok\ndb ready\nok";

fn settings(policy: &mut Policy, words: &str) {
    for word in words.split_whitespace() {
        let (key, value) = word.split_once('=').unwrap();
        match key {
            "name" => policy.name = value.into(),
            "automatic" => policy.takeover.automatic = value == "true",
            "nofailover" => policy.takeover.nofailover = value == "true",
            "reboot" => policy.fence_reboot = value == "true",
            "ends_users" => policy.ends_users = value == "true",
            "start_timeout" => policy.timeouts.start = ms(value),
            "follows" => policy.follows = value == "true",
            "service" => policy.workload = Workload::Service(value.into()),
            "watchdog" => {
                policy.guard = match value {
                    "required" => Guard::Required,
                    "automatic" => Guard::Automatic,
                    _ => Guard::Off,
                }
            }
            "stop_margin" => policy.lease.stop_margin = ms(value),
            "restarts_max" => policy.restarts.max = value.parse().unwrap(),
            "wait" => policy.takeover.campaign_wait = ms(value),
            "per_hour" => policy.takeover.per_hour_max = value.parse().unwrap(),
            other => panic!("unknown setting {other:?}"),
        }
    }
}

/// One story with its answers made anew.
fn retell(story: &str) -> String {
    let mut policy = policy();
    let mut teller = None;
    let mut out = String::new();
    let mut answers = false;
    for line in story.lines() {
        if line == "----" {
            out.push_str("----\n");
            let told = teller.as_mut().map(|teller: &mut Teller| std::mem::take(&mut teller.text));
            out.push_str(&told.unwrap_or_default());
            answers = true;
            continue;
        }
        if line.trim().is_empty() {
            answers = false;
        }
        if answers {
            continue;
        }
        out.push_str(line);
        out.push('\n');
        if let Some(words) = line.strip_prefix("settings ") {
            settings(&mut policy, words);
        } else if !line.starts_with('#') && !line.trim().is_empty() {
            teller.get_or_insert_with(|| Teller::new(policy.clone())).line(line);
        }
    }
    out
}

/// HEALTH-H4: `/leader` goes by this.
#[test]
fn the_lease_is_held_from_its_grant_until_it_is_lost() {
    let holds = |teller: &Teller| teller.machine.holds_until().is_some_and(|end| teller.now < end);
    let mut teller = Teller::new(policy());
    for line in ["found nothing", "lease free"] {
        teller.line(line);
        assert!(!holds(&teller), "{line}");
    }
    // PostgreSQL takes no writes before the last of these.
    for line in ["attach connecting 5", "attach serving 5", "ok", "ok", "db ready", "ok", "wait 2600"] {
        teller.line(line);
        assert!(holds(&teller), "{line}: {}", teller.machine.state());
    }
    // The margin of AGENT-A3 has begun: the next owner may be near.
    teller.line("wait 200");
    assert!(!holds(&teller) && teller.machine.state() == StateName::CutOff, "{}", teller.machine.state());
    for line in ["attach fenced 5 by=db-a", "lease db-a 9 3000", "attach-ended fenced by db-a"] {
        let mut teller = Teller::new(policy());
        teller.line("primary");
        assert!(holds(&teller));
        teller.line(line);
        assert!(!holds(&teller), "{line}: {}", teller.machine.state());
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("stories")
}

#[test]
fn stories_are_told_as_they_are_kept() {
    let mut stale = Vec::new();
    let mut count = 0;
    let mut paths: Vec<_> = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        let kept = std::fs::read_to_string(&path).unwrap();
        let told = retell(&kept);
        if told != kept {
            if std::env::var_os("UPDATE_GOLDEN").is_some() {
                std::fs::write(&path, &told).unwrap();
            } else {
                stale.push(format!("{}:\n{told}", path.display()));
            }
        }
        count += 1;
    }
    assert!(stale.is_empty(), "UPDATE_GOLDEN=1 rewrites; told now:\n{}", stale.join("\n"));
    assert!(count >= 8, "{count} stories in {}", folder().display());
}
