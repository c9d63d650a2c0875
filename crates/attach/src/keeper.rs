//! I/O shell of the attach state machine: calls gateways, connects, listens, starts devices, writes the status.

mod growing;
mod growth;
mod lease_rpc;
mod progress;
mod resume;
mod sockets;
mod state;
mod types;

use crate::admin_client::{self, AdminClients, call};
use crate::device::{self, Devices, SYNC_LIMIT};
use crate::dir::RunDir;
use crate::lease_file::Lease;
use crate::machine::{Action, Machine, Phase};
use crate::revoked;
use crate::seams::Seams;
use crate::shared::Shared;
use crate::status::{Status, VolumeStatus};
use futures_util::future::BoxFuture;
use growing::Growing;
use holdfast_api::v1;
use holdfast_host::unix_ms;
use holdfast_types::{Name, RequestId};
use lease_rpc::{LOOK_LIMIT, acquire, carry_on, holder, renew};
use resume::earlier;
use sockets::{Listener, RemoveFile, accept, run_lane};
use state::{Keeper, News};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use types::RELEASE_LIMIT;

pub use resume::abandon;
pub use types::{AttachError, Ended, Options};

/// The time of day that was `age` ago; 0 if the clock shows an earlier time than that.
fn before(unix_ms: u64, age: Duration) -> u64 {
    unix_ms.saturating_sub(u64::try_from(age.as_millis()).unwrap_or(u64::MAX))
}

/// Pause between two looks while devices with a cache wait for a gateway.
const FLUSH_LOOK: Duration = Duration::from_millis(20);

/// Waits until requests are answered, if only with errors; returns whether they are. A flush that nobody answers hangs
/// in the kernel: this process could not be killed, and so its devices not be removed. While it waits here, it can.
async fn are_answered(shared: &Shared, until: Instant) -> bool {
    while !shared.look(|machine| matches!(machine.phase(), Phase::Serving | Phase::Fenced)) {
        if Instant::now() >= until {
            return false;
        }
        tokio::time::sleep(FLUSH_LOOK).await;
    }
    true
}

/// Called once the devices can be used.
type OnReady<'a> = Box<dyn FnOnce(&Status) + Send + 'a>;

/// Attaches a set, calls `on_ready` once its devices can be used, and runs until `stop`. The future is boxed, so that
/// its code is generated only in this crate.
///
/// # Errors
/// [`AttachError`]. Then at most a lease is left, which expires.
pub fn run<'a>(
    options: Options,
    stop: CancellationToken,
    on_ready: impl FnOnce(&Status) + Send + 'a,
) -> BoxFuture<'a, Result<Ended, AttachError>> {
    boxed(options, stop, Box::new(on_ready))
}

fn boxed(
    options: Options,
    stop: CancellationToken,
    on_ready: OnReady<'_>,
) -> BoxFuture<'_, Result<Ended, AttachError>> {
    Box::pin(run_over(options, Seams::default(), stop, on_ready))
}

/// Like `run`, with other seams than those of a real host.
///
/// # Errors
/// As [`run`].
pub async fn run_over(
    options: Options,
    seams: Seams,
    stop: CancellationToken,
    on_ready: impl FnOnce(&Status),
) -> Result<Ended, AttachError> {
    let dir = RunDir::take(&options.dir)?;
    let mut options = options;
    options.device = device::choose(options.device).await?;
    let (kept, left) = earlier(&options, dir.path()).await?;
    let machine = Machine::new(RequestId(rand::random()), options.connections, options.bounds);
    let (shared, actions) = Shared::new(options.set.clone(), machine, seams.boot_ns);
    let doors = Arc::new(AdminClients::new(options.dialer.clone(), &options.api));
    let (news, told) = mpsc::unbounded_channel();
    let end = CancellationToken::new();
    let _ends = end.clone().drop_guard();
    if let Some(following) = revoked::follow(&options.dialer, &doors, dir.path()) {
        let ended = end.clone();
        tokio::spawn(async move {
            ended.cancelled().await;
            following.abort();
        });
    }
    let keeper = Keeper {
        sockets: Vec::new(),
        seams,
        options,
        dir,
        shared,
        doors,
        news,
        end,
        phase: Phase::Acquiring,
        since: unix_ms(),
        ready: false,
        unshown: false,
        devices: None,
        growing: Growing::default(),
        kept,
        left,
    };
    keeper.run(actions, told, stop, on_ready).await
}

impl Keeper {
    async fn run(
        mut self,
        mut actions: mpsc::UnboundedReceiver<Action>,
        mut told: mpsc::UnboundedReceiver<News>,
        stop: CancellationToken,
        on_ready: impl FnOnce(&Status),
    ) -> Result<Ended, AttachError> {
        let mut progress = self.begin()?;
        let mut on_ready = Some(on_ready);
        let mut ticks = tokio::time::interval(Machine::TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                Some(action) = actions.recv() => self.perform(action)?,
                Some(news) = told.recv() => self.handle(news, &mut progress)?,
                _ = ticks.tick() => self.shared.act(|machine, now, out| machine.tick(now, out)),
                () = stop.cancelled(), if progress.stop_by.is_none() => self.stop(&mut progress),
            }
            let phase = self.shared.look(Machine::phase);
            progress.served |= phase == Phase::Serving;
            if progress.served && !progress.listening {
                progress.listening = true;
                self.listen()?;
                self.make_devices(None);
            }
            if progress.served
                && self.devices.is_some()
                && progress.stop_by.is_none()
                && let Some(tell) = on_ready.take()
            {
                self.ready = true;
                self.show()?;
                tell(&self.status());
            }
            if let Some(ended) = self.ended(phase, &progress)? {
                return Ok(ended);
            }
            let late = progress.ready_by.is_some_and(|limit| Instant::now() >= limit);
            if on_ready.is_some() && phase != Phase::Serving && late {
                return Err(self.unreachable());
            }
            self.keep_current(&mut progress)?;
        }
    }

    fn unreachable(&self) -> AttachError {
        let last = self.shared.look(|machine| match (machine.phase(), &machine.view().last_loss) {
            (Phase::Acquiring, _) => {
                format!("no gateway of {} granted the lease", self.doors.known().join(", "))
            }
            (phase, Some(loss)) => format!("{phase}: {loss}"),
            (phase, None) => phase.to_string(),
        });
        AttachError::Unreachable { set: self.options.set.clone(), limit: self.options.patience, last }
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let end = self.end.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = end.cancelled() => {}
                () = task => {}
            }
        });
    }

    fn perform(&mut self, action: Action) -> Result<(), AttachError> {
        let (shared, doors, options) = (self.shared.clone(), self.doors.clone(), self.options.clone());
        let kept = self.kept.clone();
        match action {
            Action::Acquire { request, force } => {
                let news = self.news.clone();
                self.spawn(async move {
                    if let Err(refusal) = acquire(&shared, &doors, &options, kept.as_deref(), request, force).await {
                        let _ = news.send(News::Refused(refusal));
                    }
                });
            }
            Action::Continue { request, token } => {
                self.spawn(async move {
                    carry_on(&shared, &doors, &options, kept.as_deref(), request, token).await;
                });
            }
            Action::Renew { number, epoch, token, api } => {
                let news = self.news.clone();
                self.spawn(async move { renew(&shared, &doors, &news, number, epoch, token, &api).await });
            }
            Action::Connect { lane, nbd, token } => {
                let (way, end) = ((self.seams.connect.clone(), options.dialer.connector()), self.end.clone());
                tokio::spawn(async move { run_lane(shared, way, lane, nbd, token, end).await });
            }
            Action::Release { epoch, token } => {
                self.spawn(async move {
                    let request = v1::ReleaseLeaseRequest {
                        set: options.set.to_string(),
                        epoch: epoch.0,
                        token: token.to_text(),
                    };
                    let call = call!(release_lease, request);
                    let released = doors.ask_all(call, admin_client::is_final);
                    let said = tokio::time::timeout(RELEASE_LIMIT, released).await;
                    let given = said
                        .is_ok_and(|(_, said)| said.map_or_else(|refusal| admin_client::is_gone(&refusal), |_| true));
                    if !given {
                        tracing::warn!(set = %options.set, "cannot release the lease: it expires by itself");
                    }
                    shared.act(|machine, _, out| machine.released(given, out));
                });
            }
            Action::LookWho => self.spawn(async move {
                if let Some(who) = holder(&doors, &options.set).await {
                    shared.act(|machine, _, out| machine.fenced_by(who, out));
                }
            }),
            Action::Show => self.show()?,
            // Handled where they arise.
            Action::Send { .. } | Action::Answer { .. } | Action::Room { .. } | Action::Shut { .. } => {}
        }
        Ok(())
    }

    /// One listener per volume.
    fn listen(&mut self) -> Result<(), AttachError> {
        for (volume, facts) in self.shared.all_facts().into_iter().enumerate() {
            let mut listener = match &self.seams.clients {
                Some(clients) => Listener::Given(clients(&facts.name)),
                None => Listener::Unix(self.bind(&facts.name)?),
            };
            let (shared, end) = (self.shared.clone(), self.end.clone());
            tokio::spawn(async move {
                tokio::select! {
                    () = end.cancelled() => {}
                    () = accept(&mut listener, volume, &shared, &end) => {}
                }
            });
        }
        Ok(())
    }

    fn bind(&mut self, volume: &Name) -> Result<UnixListener, AttachError> {
        let path = self.dir.socket(volume)?;
        let listener = self.dir.listen(&path);
        let listener = listener.map_err(|source| AttachError::Listen { path: path.clone(), source })?;
        self.sockets.push(RemoveFile(path));
        Ok(listener)
    }

    /// Makes devices, or uses those of an earlier process again.
    fn make_devices(&self, left: Option<Lease>) {
        let (news, options, shared) = (self.news.clone(), self.options.clone(), self.shared.clone());
        let (dir, ended) = (self.dir.path().to_path_buf(), self.news.clone());
        self.spawn(async move {
            let on_end = move |which: String| drop(ended.send(News::DeviceEnded(which)));
            let devices = match left {
                Some(lease) => Devices::resume(&lease, &dir, &shared, on_end).await,
                None => {
                    let Options { device: kind, ref set, connections, kernel, .. } = options;
                    let plan = device::Plan { kind, set, dir: &dir, connections, kernel };
                    Devices::make(plan, &shared, on_end).await
                }
            };
            let _ = news.send(News::Devices(devices));
        });
    }

    /// From now on another process may use them again.
    fn keep_devices(&self, devices: &Devices) {
        let (Some(file), Some(numbers)) = (&self.kept, devices.numbers()) else { return };
        // The number of sockets of a device is fixed when it is made.
        let before = file.lease().map_or(0, |lease| lease.sockets);
        let sockets = if before > 0 { before } else { self.options.kernel.sockets };
        if let Err(error) = file.made(&numbers, sockets) {
            tracing::error!(set = %self.options.set, %error, "cannot save the devices' state: if this process ends, they are lost");
        }
    }

    fn stop_devices(&mut self) {
        let (news, devices, kept) = (self.news.clone(), self.devices.take(), self.kept.clone());
        let shared = self.shared.clone();
        self.spawn(async move {
            let has_cache = devices.as_ref().is_some_and(Devices::has_cache);
            // The wait and the flush have one limit: the devices must be gone before the end is given up.
            let until = Instant::now() + SYNC_LIMIT;
            let answered = !has_cache || are_answered(&shared, until).await;
            if !answered {
                tracing::warn!(set = %shared.set, "no gateway answers: removing the devices; writes in their cache are lost");
            }
            if let Some(file) = kept {
                // Before the first device goes: a later process must not find half of them.
                file.close();
            }
            if let Some(devices) = devices {
                devices.stop(until).await;
            }
            let _ = news.send(News::DevicesStopped);
        });
    }

    /// Finds gateways that are not in the settings.
    fn learn(&self) {
        let doors = self.doors.clone();
        self.spawn(async move {
            let call = call!(cluster_status, v1::ClusterStatusRequest {});
            let Some(status) = doors.first_beside(LOOK_LIMIT / 2, LOOK_LIMIT, &call).await else { return };
            let members = status.members.iter().filter_map(|m| m.member.as_ref()?.addresses.as_ref());
            members.filter(|a| holdfast_api::host_port(&a.api).is_some()).for_each(|a| doors.learn(&a.api));
        });
    }

    fn status(&self) -> Status {
        let now = self.shared.now();
        let volumes = self.shared.all_facts().into_iter().enumerate().map(|(index, facts)| VolumeStatus {
            socket: self.dir.socket(&facts.name).map(|path| path.display().to_string()).unwrap_or_default(),
            device: self.devices.as_ref().and_then(|devices| devices.path(index)),
            device_bytes: self.devices.as_ref().and_then(|d| d.size(index)).filter(|size| *size < facts.size),
            name: facts.name.to_string(),
            size_bytes: facts.size,
            lost: self.shared.look(|machine| machine.lost_volumes().get(&index).cloned()),
        });
        let volumes: Vec<_> = volumes.collect();
        let whole = volumes.iter().all(|volume| volume.lost.is_none());
        self.shared.look(|machine| {
            let view = machine.view().clone();
            let renewed = view.renewed.map(|at| before(unix_ms(), now.since(at)));
            Status {
                set: self.options.set.to_string(),
                phase: machine.phase(),
                since_unix_ms: self.since,
                owner: self.options.owner.to_string(),
                epoch: machine.epoch().map_or(0, |epoch| epoch.0),
                gateway: machine.grant().map(|grant| grant.gateway.clone()).unwrap_or_default(),
                pid: std::process::id(),
                volumes,
                ready: self.ready && whole,
                others_ready: self.ready,
                reconnects: view.reconnects,
                last_outage_ms: view.last_outage_ms,
                longest_outage_ms: view.longest_outage_ms,
                last_loss: view.last_loss,
                unanswered: machine.unanswered(),
                lease_renewed_at: renewed,
                lease_renewed_boot_ns: view.renewed.map(|at| self.shared.boot_ns(at)),
                lease_ttl_ms: machine.grant().and_then(|grant| u64::try_from(grant.ttl.as_millis()).ok()),
                fenced_by: view.fenced_by,
            }
        })
    }

    fn show(&mut self) -> Result<(), AttachError> {
        if let Some(Ok(())) = self.kept.as_ref().and_then(|file| file.catch_up()) {
            tracing::info!(set = %self.options.set, "the lease file can be written again");
        }
        let phase = self.shared.look(Machine::phase);
        if phase != self.phase {
            (self.phase, self.since) = (phase, unix_ms());
            let loss = self.shared.look(|machine| machine.view().last_loss.clone()).unwrap_or_default();
            match phase {
                Phase::Reconnecting => {
                    tracing::warn!(set = %self.options.set, loss, "the gateway is lost; requests wait")
                }
                Phase::Fenced => {
                    let by = self.shared.look(|machine| machine.view().fenced_by.clone());
                    let by = by.unwrap_or_else(|| "another owner".to_string());
                    tracing::error!(set = %self.options.set, by, "fenced: every request fails from now on");
                }
                phase => tracing::info!(set = %self.options.set, %phase, "phase changed"),
            }
        }
        match self.dir.show(&self.status()) {
            // A full or read-only /run is no reason to end devices that are in use.
            Err(error) if self.ready => {
                if !std::mem::replace(&mut self.unshown, true) {
                    tracing::error!(set = %self.options.set, %error, "cannot update status.json; everything else works");
                }
                Ok(())
            }
            shown => {
                self.unshown = false;
                Ok(shown?)
            }
        }
    }
}

#[cfg(test)]
#[path = "keeper/tests.rs"]
mod tests;
