//! I/O shell of the agent's state machine: one task passes it inputs and carries out its actions.
//!
//! - TASK-N1 All inputs reach the machine through this task, in one order. A probe of PostgreSQL from before its last
//!   start or stop is dropped.
//! - TASK-N2 At most one job is at work. A later one ends the earlier one first: an abandoned job must not go on. If
//!   the earlier one hangs, the later one is done only after its end.
//! - TASK-N3 A sign of life is given before PostgreSQL is started, with the time until which it may run.
//! - TASK-N4 The task waits for no disk: without its signs the watchdog would end a healthy PostgreSQL. The history and
//!   pauses are written beside it. Only before a reboot, and at its end, it waits for the history, for a bounded time.
//! - TASK-N5 A pause, or its end, is answered only once it is on the disk, and refused if that fails.

mod beside;
mod error;
mod jobs;
mod opened;

use crate::client;
use crate::clock;
use crate::config::{AgentConfig, Device, PoolKind, WatchdogKind, WatchdogMode};
use crate::facts;
use crate::history::History;
use crate::host::{AttachLook, Host, NotDone};
use crate::http::{self, AgentAudit, Asked, Door};
use crate::listen::{self, Bounded};
use crate::local;
use crate::machine::{Action, AttachPhase, Command, Input, Job, Machine, Refused, StateName};
use crate::pause;
use crate::process;
use crate::run_dir;
use crate::schedule::Schedule;
use crate::seams::{Dial, Seams};
use crate::traced;
use crate::view::View;
use crate::watchdog;
use beside::{News, Probing, Tasks, answer, audit_in, end_audit, openers, poller, prober, questions};
pub use error::RunError;
use error::dir_error;
use holdfast_host::lock::{is_locked, lock};
use holdfast_tls::{HttpTls, Tls};
use holdfast_types::sync::LockExt;
use jobs::{For, Jobs};
pub use opened::check_files;
use opened::{check_mount, check_tls, history_in, token_of};
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

/// Interval of the machine's tick, and of the looks at attach.
const TICK: Duration = Duration::from_millis(50);

/// Interval of the probes while PostgreSQL starts.
const EAGER_PROBE: Duration = Duration::from_millis(100);

/// Interval of the checks that the helper runs.
const HELPER_INTERVAL: Duration = Duration::from_secs(1);

/// Length of the queue of events for the agent's task.
const NEWS_MAX: usize = 64;

/// Length of the queue of commands.
const COMMANDS_MAX: usize = 8;

/// How long the task waits for the history before a reboot, and at its end: the disk may hang.
const HISTORY_LIMIT: Duration = Duration::from_secs(2);

/// Runs an agent until `stop` ends. Then it first releases everything in good order, unless it is paused. `helper`
/// starts the watchdog's process; it may be called again whenever none runs.
///
/// # Errors
/// [`RunError`]; all of them come before anything was done.
pub fn run<'a>(
    config: AgentConfig,
    stop: impl Future<Output = ()> + Send + 'a,
    helper: impl Fn() -> std::io::Result<()> + Send + 'a,
) -> BoxFuture<'a, Result<(), RunError>> {
    // Boxed: its code is generated in this crate only.
    boxed(config, Box::pin(stop), Box::new(helper))
}

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Starts the watchdog's process.
type Helper<'a> = Box<dyn Fn() -> std::io::Result<()> + Send + 'a>;

fn boxed<'a>(config: AgentConfig, stop: BoxFuture<'a, ()>, helper: Helper<'a>) -> BoxFuture<'a, Result<(), RunError>> {
    Box::pin(run_on_this_host(config, stop, helper))
}

async fn run_on_this_host(config: AgentConfig, stop: BoxFuture<'_, ()>, helper: Helper<'_>) -> Result<(), RunError> {
    // Over a link no mount is found, also not that of an earlier agent.
    check_mount(&config)?;
    run_dir::make(&config.run_dir, watchdog::AGENT_LOCK).map_err(dir_error(&config.run_dir))?;
    let _lock = lock(&config.run_dir, watchdog::AGENT_LOCK).map_err(RunError::Locked)?;
    let address = config.http.listen;
    let host = Arc::new(crate::drivers::Real::new(&config).map_err(RunError::Settings)?);
    check_tls(host.tls(), &*host).await?;
    let secured = config.http_tls() != HttpTls::Off;
    let acceptor = host.tls().filter(|_| secured).map(Tls::acceptor);
    let token = token_of(&config);
    let tcp = listen::tcp(address, &*host).await.map_err(|source| RunError::Listen { address, source })?;
    let tcp = tcp.secured(acceptor);
    let socket = config.run_dir.join(local::SOCKET);
    let local = listen::local(&config.run_dir, &*host).await.map_err(dir_error(&socket))?;
    let (traces, exporter) = traced::open(&config).unzip();
    let history = history_in(&config.dir, &*host).await?.beside().traced(traces);
    // Ends with the agent. What was recorded in its last seconds is lost.
    let mut sending = Tasks::default();
    exporter.into_iter().for_each(|exporter| sending.add(exporter.run()));
    let watched = config.watchdog.kind != WatchdogKind::Off;
    log_settings(&config);
    let audit = audit_in(&config, &*host).await?;
    let tls = host.tls().cloned();
    let doors = Doors { tcp, local: Some((socket, local)), tls, compares: true, audit: audit.clone() };
    let dial = client::to_peers(&config, host.tls());
    let agent = Agent::over(config, host, history, doors, token, dial);
    let helper = move || if watched { helper() } else { Ok(()) };
    let ended = agent.run(stop, helper).await;
    end_audit(audit).await;
    ended
}

/// Logs settings with consequences that may surprise.
fn log_settings(config: &AgentConfig) {
    if config.watchdog.mode == WatchdogMode::Off && config.watchdog.device.exists() {
        tracing::info!(
            device = %config.watchdog.device.display(),
            "watchdog.mode is off, and this machine has a watchdog device: nothing ends PostgreSQL if the helper hangs, too"
        );
    }
    if let Some(by) = config.pool.reboots_by() {
        tracing::info!(
            by,
            "pool.fence_action is reboot: this machine is rebooted if device or pool cannot be released"
        );
    }
    if config.service.is_none() && !process::Server::of(&config.database).has_user() {
        tracing::warn!(
            user = config.database.user,
            "database.user is not in /etc/passwd: until `id` has told its number, every process that looks like this PostgreSQL counts as one of it, whichever user runs it"
        );
    }
    if config.tls.flags().next().is_some() {
        let (http, listen) = (config.http_tls().as_str(), config.http.listen);
        tracing::info!(http, %listen, "TLS of the HTTP door, and towards the other agents (http.tls)");
    }
    if config.pool.kind == PoolKind::None && config.attach.device == Device::None {
        tracing::warn!(
            "pool.kind and attach.device are none: the agent cannot see whether PostgreSQL's files lie on the set"
        );
    }
}

/// Like `run`, on another host than this machine, over other seams: for a simulation (ADR 0017). It takes no lock, and
/// starts `helper` whenever none runs for this run directory. Lines of its history are written at once: a thread would
/// bring an order of its own into the run.
///
/// # Errors
/// As [`run`].
pub async fn run_over<H: Host>(
    config: AgentConfig,
    host: Arc<H>,
    seams: Seams,
    stop: impl Future<Output = ()> + Send,
    helper: impl Fn() -> std::io::Result<()> + Send,
) -> Result<(), RunError> {
    let history = history_in(&config.dir, &*host).await?.at_once();
    let doors = Doors { tcp: seams.incoming.into(), local: None, tls: None, compares: false, audit: None };
    let agent = Agent::over(config, host, history, doors, seams.token, seams.dial);
    agent.run(stop, helper).await
}

/// Where the agent is asked.
struct Doors {
    tcp: Bounded,
    /// The Unix socket, and its path.
    local: Option<(PathBuf, Bounded)>,
    tls: Option<Tls>,
    /// This host is compared with the others.
    compares: bool,
    audit: Option<AgentAudit>,
}

/// What comes to the agent's task.
struct Inbox {
    commands: mpsc::Receiver<Asked>,
    told: mpsc::Receiver<News>,
    /// For jobs that end.
    news: mpsc::Sender<News>,
}

/// How often PostgreSQL is probed, and the gateways are asked for the lease.
struct Pace {
    probing: watch::Sender<Probing>,
    /// Interval of the questions for the lease, in milliseconds.
    poll_ms: Arc<AtomicU64>,
    /// Number of the run of PostgreSQL that is probed.
    life: u64,
}

/// What was logged last.
struct Logged {
    state: StateName,
    /// The stop margin in use.
    margin: Duration,
}

struct Agent<H: Host> {
    config: Arc<AgentConfig>,
    host: Arc<H>,
    machine: Machine,
    history: Arc<Mutex<History>>,
    shows: watch::Sender<Arc<View>>,
    inbox: Inbox,
    pace: Pace,
    jobs: Jobs,
    /// Writes the last pause, or its end, to the disk.
    storing: Option<JoinHandle<()>>,
    attach: Option<AttachPhase>,
    logged: Logged,
    _tasks: Tasks,
}

impl<H: Host> Agent<H> {
    fn over(
        config: AgentConfig,
        host: Arc<H>,
        history: History,
        doors: Doors,
        token: Option<Arc<str>>,
        dial: Dial,
    ) -> Self {
        let now = clock::now();
        let mut machine = Machine::new(config.policy(), now, history.takeovers(now));
        machine.set_paused(pause::was(&pause::file_in(&config.dir)));
        let (config, history) = (Arc::new(config), Arc::new(Mutex::new(history)));
        let (shows, view) = watch::channel(Arc::new(View::of(&machine, &config, now, None, host.pool_look())));
        let (asks, commands) = mpsc::channel(COMMANDS_MAX);
        let ((news, told), (probing, plan)) = (mpsc::channel(NEWS_MAX), watch::channel(None));
        let poll_ms = Arc::new(AtomicU64::new(config.lease.eager_poll_ms));
        let ((socket, local), known) = (doors.local.unzip(), Arc::<Mutex<facts::Known>>::default());
        let door = Door {
            config: config.clone(),
            token,
            challenges: Arc::default(),
            view,
            history: history.clone(),
            commands: asks,
            schedule: Arc::new(Schedule::open(&config.dir)),
            dial: dial.clone(),
            socket,
            known: known.clone(),
            openers: openers(host.clone()),
            answers: questions(host.clone()),
            audit: doors.audit,
            tls: doors.tls,
        };
        let mut tasks = Tasks::default();
        tasks.add(http::keep_schedule(door.clone()));
        // Each listener has its own places: a caller that opens many connections to one does not block the other.
        for listener in [Some(doors.tcp), local].into_iter().flatten() {
            tasks.add(answer(listener, door.clone()));
        }
        tasks.add(prober(host.clone(), plan, news.clone()));
        tasks.add(poller(host.clone(), poll_ms.clone(), config.lease.eager_poll_ms, news.clone()));
        // A simulated host has no programs that could be asked.
        if doors.compares {
            tasks.add(facts::keep(config.clone(), dial, known));
        }
        Self {
            logged: Logged { state: machine.state(), margin: Duration::from_millis(config.lease.stop_margin_ms) },
            config,
            host,
            machine,
            history,
            shows,
            inbox: Inbox { commands, told, news },
            pace: Pace { probing, poll_ms, life: 0 },
            jobs: Jobs::default(),
            storing: None,
            attach: None,
            _tasks: tasks,
        }
    }

    async fn run(
        mut self,
        stop: impl Future<Output = ()> + Send,
        helper: impl Fn() -> std::io::Result<()> + Send,
    ) -> Result<(), RunError> {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut helpers = tokio::time::interval(HELPER_INTERVAL);
        helpers.set_missed_tick_behavior(MissedTickBehavior::Delay);
        tokio::pin!(stop);
        let mut stopping = false;
        let found = self.host.found().await.map_err(RunError::Found)?;
        tracing::info!(name = self.config.name, set = self.config.set, ?found, "the agent starts");
        self.step(Input::Found(found)).await;
        while self.machine.state() != StateName::Ended {
            tokio::select! {
                biased;
                () = &mut stop, if !stopping => {
                    stopping = true;
                    let mut out = Vec::new();
                    let said = self.machine.command(clock::now(), Command::Shutdown, &mut out);
                    tracing::info!(said = said.as_deref().unwrap_or_default(), "the agent was asked to stop");
                    self.follow(out).await;
                }
                Some(news) = self.inbox.told.recv() => self.handle(news).await,
                Some(asked) = self.inbox.commands.recv() => self.obey(asked).await,
                _ = helpers.tick() => {
                    if matches!(is_locked(&self.config.run_dir, watchdog::HELPER_LOCK), Ok(false))
                        && let Err(error) = helper()
                    {
                        tracing::error!(%error, "the watchdog's helper could not be started");
                    }
                }
                _ = ticks.tick() => self.look_at_attach().await,
            }
        }
        tracing::info!(why = self.machine.why(), "the agent stops");
        self.history_is_written();
        Ok(())
    }

    async fn handle(&mut self, news: News) {
        match news {
            News::Done(job, result) => {
                let input = match result {
                    Ok(()) => Input::Done { job, result: Ok(()) },
                    Err(NotDone::Failed(why)) => {
                        tracing::warn!(state = %self.machine.state(), why, "a step failed");
                        Input::Done { job, result: Err(why) }
                    }
                    Err(NotDone::Refused(why)) => {
                        tracing::error!(state = %self.machine.state(), why, "a step was refused");
                        Input::Refused { job, why }
                    }
                };
                self.pace.life += 1;
                self.step(input).await;
            }
            // TASK-N1
            News::Database(life, view) if life == self.pace.life => self.step(Input::Database(view)).await,
            News::Database(..) => {}
            News::Lease(view) => self.step(Input::Lease(view)).await,
            // What is on the disk counts, also if its caller is gone: the outcome was unknown (R12).
            News::Stored(asked, Ok(())) => self.carry_out(asked).await,
            News::Stored((command, answer), Err(error)) => {
                let path = pause::file_in(&self.config.dir);
                let (name, path) = (&self.config.name, path.display());
                let not = if command == Command::Pause { "paused" } else { "resumed" };
                let words = format!(
                    "{name} is not {not}, {path}: {error}: make room there, or make it writable, and ask again"
                );
                tracing::error!(words, "a command is refused");
                let _ = answer.send(Err(Refused(words)));
            }
        }
    }

    /// Carries a command out. R12: if the caller's time ran out, it was told that the outcome is unknown, so the
    /// command is dropped.
    async fn obey(&mut self, asked: Asked) {
        if is_dropped(&asked) {
            return;
        }
        match asked.0 {
            Command::Pause | Command::Resume => self.store(asked),
            _ => self.carry_out(asked).await,
        }
    }

    /// TASK-N5. One after the other, in the order of the commands.
    fn store(&mut self, asked: Asked) {
        let (path, news) = (pause::file_in(&self.config.dir), self.inbox.news.clone());
        let (paused, earlier) = (asked.0 == Command::Pause, self.storing.take());
        self.storing = Some(tokio::spawn(async move {
            if let Some(earlier) = earlier {
                let _ = earlier.await;
            }
            if is_dropped(&asked) {
                return;
            }
            let stored = tokio::task::spawn_blocking(move || pause::store(&path, paused)).await;
            let stored = stored.unwrap_or_else(|error| Err(std::io::Error::other(error)));
            let _ = news.send(News::Stored(asked, stored)).await;
        }));
    }

    async fn carry_out(&mut self, (command, answer): Asked) {
        let mut out = Vec::new();
        let said = self.machine.command(clock::now(), command, &mut out);
        self.follow(out).await;
        let _ = answer.send(said);
    }

    async fn look_at_attach(&mut self) {
        let input = match self.host.attach_look().await {
            AttachLook::Runs(view) => {
                self.attach = Some(view.phase);
                Input::Attach(view)
            }
            AttachLook::Ended(end) => {
                self.attach = None;
                Input::AttachEnded(end)
            }
            AttachLook::None => {
                self.attach = None;
                Input::Tick
            }
        };
        self.step(input).await;
    }

    async fn step(&mut self, input: Input) {
        let mut out = Vec::new();
        let pool = self.host.pool_look();
        self.machine.set_unable(&pool.unable);
        self.machine.set_off_set(&pool.off_set, &mut out);
        let ended = std::mem::take(&mut *self.jobs.ended.locked());
        if !ended.is_empty() {
            self.machine.step(clock::now(), Input::UsersEnded(ended), &mut out);
        }
        self.machine.step(clock::now(), input, &mut out);
        self.follow(out).await;
    }

    /// Publishes the present state, then carries the actions out.
    async fn follow(&mut self, out: Vec<Action>) {
        let now = clock::now();
        if self.machine.state() != self.logged.state {
            tracing::info!(from = %self.logged.state, to = %self.machine.state(), why = self.machine.why(), epoch = self.machine.epoch(), "state");
        }
        self.logged.state = self.machine.state();
        let margin = self.machine.stop_margin();
        if margin != self.logged.margin {
            self.logged.margin = margin;
            let (found, used) = (self.config.lease.stop_margin_ms, margin.as_millis());
            tracing::warn!(
                "lease.stop_margin_ms: found {found} with leases of {} ms, expected half of one at most: {used} ms are used; see attach.args (--ttl)",
                self.machine.ttl().as_millis()
            );
        }
        // TASK-N3
        let until = self.machine.watchdog_deadline();
        let ttl_ms = u64::try_from(self.machine.ttl().as_millis()).unwrap_or(u64::MAX);
        match self.machine.state() {
            // Ordered to end while paused.
            StateName::Ended if until.is_some() => self.host.left_alone(until, ttl_ms, self.machine.guarded()),
            _ => self.host.alive(until, ttl_ms, self.machine.guarded()),
        }
        for action in out {
            self.perform(action).await;
        }
        let (calm, eager) = (self.config.lease.poll_ms, self.config.lease.eager_poll_ms);
        let poll = self.machine.poll_in(Duration::from_millis(calm), Duration::from_millis(eager));
        self.pace.poll_ms.store(u64::try_from(poll.as_millis()).unwrap_or(calm), Ordering::Relaxed);
        let pace = match self.machine.state() {
            StateName::Starting => EAGER_PROBE,
            _ => Duration::from_millis(self.config.limits().probe_ms),
        };
        let plan = self.machine.database_may_run().then_some((self.pace.life, pace));
        self.pace.probing.send_if_modified(|now| std::mem::replace(now, plan) != plan);
        let view = View::of(&self.machine, &self.config, now, self.attach, self.host.pool_look());
        self.shows.send_replace(Arc::new(view));
    }

    /// TASK-N4: nothing comes after this that has to be done in time.
    fn history_is_written(&self) {
        let writer = self.history.locked().writer();
        if !writer.settled(HISTORY_LIMIT) {
            tracing::error!("the last lines of the history were not written: the disk does not answer");
        }
    }

    async fn perform(&mut self, action: Action) {
        tracing::debug!(?action, "does");
        match action {
            Action::Attach { force } => {
                if let Err(why) = self.host.attach(force).await {
                    // Reported at once: no process exists whose end would report it.
                    let mut out = Vec::new();
                    let end = crate::machine::AttachEnd::Failed(why);
                    self.machine.step(clock::now(), Input::AttachEnded(end), &mut out);
                    for action in out {
                        Box::pin(self.perform(action)).await;
                    }
                }
            }
            Action::Detach { job, hard } => {
                self.start(For::Release, job, move |host| async move { host.detach(hard).await });
            }
            Action::Import { job, force } => {
                self.start(For::Use, job, move |host| async move { host.import(force).await });
            }
            Action::Export { job, hard } => {
                self.start(For::Release, job, move |host| async move { host.export(hard).await });
            }
            Action::EndUsers { job, most } => {
                let ended = self.jobs.ended.clone();
                self.start(For::Release, job, move |host| beside::end_users(host, most, ended.clone()));
            }
            Action::Arm { job } => self.start(For::Use, job, |host| async move { host.arm().await }),
            Action::StartDatabase { job } => {
                self.start(For::Use, job, |host| async move { host.start_database().await });
            }
            Action::StopDatabase { job, how } => {
                self.start(For::Release, job, move |host| async move { host.stop_database(how).await });
            }
            Action::Checkpoint { job } => self.start(For::Use, job, |host| async move {
                if let Err(why) = host.checkpoint().await {
                    tracing::warn!(why, "no checkpoint before the stop");
                }
                Ok::<(), NotDone>(())
            }),
            Action::FirstWrite { job } => {
                self.start(For::Use, job, |host| async move { host.first_write().await });
            }
            Action::Hook(role) => self.host.hook_role(role, self.machine.epoch()),
            Action::Record(record) => {
                tracing::info!(event = %record.event, reason = record.reason, epoch = record.epoch, "history");
                let mut history = self.history.locked();
                let line = history.add(&self.config.name, &self.config.set, *record);
                drop(history);
                self.host.hook_event(&line, self.machine.role(), self.machine.epoch());
            }
            Action::Reboot(why) => {
                self.history_is_written();
                self.host.reboot(&why);
            }
        }
    }

    /// TASK-N2
    fn start<W, F, E>(&mut self, what: For, job: Job, work: W)
    where
        W: Fn(Arc<H>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<NotDone> + 'static,
    {
        self.pace.life += 1;
        let host = self.host.clone();
        let working = self.jobs.begin(what, move || {
            let done = work(host.clone());
            async move { done.await.map_err(Into::<NotDone>::into) }
        });
        let news = self.inbox.news.clone();
        tokio::spawn(async move {
            match working.await {
                Ok(result) => drop(news.send(News::Done(job, result)).await),
                // Ended by a later one: nobody waits for it.
                Err(error) if error.is_cancelled() => {}
                Err(error) => drop(news.send(News::Done(job, Err(error.to_string().into()))).await),
            }
        });
    }
}

/// Whether nobody waits for the answer to this command any more.
fn is_dropped((command, answer): &Asked) -> bool {
    if answer.is_closed() {
        tracing::warn!(?command, "command dropped: it waited too long, and its caller is gone");
    }
    answer.is_closed()
}

#[cfg(test)]
#[path = "run/tests.rs"]
mod tests;
