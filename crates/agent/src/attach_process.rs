//! `holdfast attach` as a child process that outlives the agent: started in its own process group, watched by its lock
//! and its status file.

use crate::clock;
use crate::cluster::REVOKED_FILE;
use crate::config::AgentConfig;
use crate::host::AttachLook;
use crate::machine::{AttachEnd, AttachPhase, AttachView};
use crate::process::{self, system};
use holdfast_host::{mounts, rewritten};
use holdfast_tls::RevocationCache;
use holdfast_types::MonoTime;
use holdfast_types::sync::LockExt;
use rustix::process::Signal;
use serde::Deserialize;
use std::fs::DirEntry;
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Exit code of attach if a gateway refused the lease.
const EXIT_REFUSED: i32 = 3;

/// Exit code of attach if another owner took the set.
const EXIT_FENCED: i32 = 7;

/// Time limit for it to end by itself, with its devices, before it is killed.
const HARD_DETACH_LIMIT: Duration = Duration::from_secs(2);

/// Time limit from SIGKILL until its lock is free.
const KILL_LIMIT: Duration = Duration::from_secs(5);

/// How long the start waits for the disk that has the list of revoked certificates.
const HAND_OVER_LIMIT: Duration = Duration::from_millis(500);

/// Attach's own output is cut beyond this many bytes.
const LOG_BYTES_MAX: u64 = 1 << 20;

/// Pause between two checks.
const LOOK_PAUSE: Duration = Duration::from_millis(10);

/// Time limit of umount and losetup when a killed process's remains are removed.
const CLEAR_LIMIT: Duration = Duration::from_secs(3);

/// What the agent reads in attach's `status.json`. Further fields are attach's own business.
#[derive(Clone, Debug, Deserialize)]
pub struct Status {
    /// acquiring, connecting, serving, reconnecting, fenced, detaching or detached.
    pub phase: String,
    /// Its process id.
    pub pid: u32,
    /// Epoch of its lease, 0 before the first grant.
    #[serde(default)]
    pub epoch: u64,
    /// All devices can be used.
    #[serde(default)]
    pub ready: bool,
    /// The devices can be used, except those of lost volumes.
    #[serde(default)]
    pub others_ready: bool,
    /// Its volumes.
    #[serde(default)]
    pub volumes: Vec<Volume>,
    /// When the last acknowledged renewal was sent, in nanoseconds of CLOCK_BOOTTIME.
    #[serde(default)]
    pub lease_renewed_boot_ns: Option<u64>,
    /// How long the lease lasts from there.
    #[serde(default)]
    pub lease_ttl_ms: Option<u64>,
    /// The owner that fenced it.
    #[serde(default)]
    pub fenced_by: Option<String>,
}

/// One volume.
#[derive(Clone, Debug, Deserialize)]
pub struct Volume {
    /// Its name.
    pub name: String,
    /// Its block device.
    #[serde(default)]
    pub device: Option<String>,
    /// Reason why its device fails for good: deleted, shrunk or renamed meanwhile.
    #[serde(default)]
    pub lost: Option<String>,
}

impl Status {
    /// The content of a run directory.
    pub fn read(dir: &Path) -> Option<Self> {
        serde_json::from_slice(&rewritten::read(&dir.join("status.json")).ok()?).ok()
    }

    /// When the last renewal was sent, by the clock of leases. `None` if that is later than now: it is from an earlier
    /// boot of this machine, or from before its clock went back.
    pub fn renewed(&self) -> Option<MonoTime> {
        self.lease_renewed_boot_ns.and_then(clock::told)
    }

    /// In the machine's terms.
    pub fn view(&self) -> AttachView {
        let fenced_by = self.fenced_by.clone().unwrap_or_default();
        let lost = self.volumes.iter().filter_map(|volume| volume.lost.clone()).collect();
        let ttl = self.lease_ttl_ms.filter(|ttl| *ttl > 0).map(Duration::from_millis);
        AttachView { phase: self.phase(), epoch: self.epoch, renewed: self.renewed(), ttl, fenced_by, lost }
    }

    pub(crate) fn phase(&self) -> AttachPhase {
        match self.phase.as_str() {
            "acquiring" => AttachPhase::Acquiring,
            // With a lost volume too: PostgreSQL shows whether the pool works without it, and is watched as always. On
            // another host the volume is lost as well.
            "serving" if self.ready || self.others_ready => AttachPhase::Serving,
            "serving" | "connecting" => AttachPhase::Connecting,
            "fenced" => AttachPhase::Fenced,
            "detached" => AttachPhase::Detached,
            // Another process ordered the detach: for us its requests wait until it has ended.
            _ => AttachPhase::Reconnecting,
        }
    }
}

/// Whether a process holds the lock of a run directory.
///
/// # Errors
/// It could not be checked (no more file descriptors).
pub fn running(dir: &Path) -> io::Result<bool> {
    holdfast_host::lock::is_locked(dir, "attach.lock")
}

/// Like `running`, for callers that must continue: unknown counts as present.
pub fn may_run(dir: &Path) -> bool {
    running(dir).unwrap_or(true)
}

fn unlooked(dir: &Path, error: &io::Error) -> String {
    format!("{}: cannot check whether attach runs: {error}", dir.display())
}

/// The driver.
#[derive(Debug)]
pub struct Attach {
    program: PathBuf,
    args: Vec<String>,
    /// Removes what a killed process left in the kernel.
    abandon: Vec<String>,
    dir: PathBuf,
    /// The agent's list of revoked certificates (REVOKE-V4).
    revoked: PathBuf,
    log: PathBuf,
    detach_limit: Duration,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    child: Option<Child>,
    /// It was started or found, and we have not detached it since.
    expected: bool,
    /// From the last look while it ran.
    last: Option<AttachView>,
}

impl Attach {
    /// For these settings; starts nothing.
    pub fn new(config: &AgentConfig) -> Self {
        let dir = config.run_dir.join("attach");
        let abandon = abandon_args(config);
        let mut args = vec!["attach".to_string(), config.set.clone(), "--owner".into(), config.name.clone()];
        args.extend(["--api".into(), config.gateways.join(","), "--dir".into(), dir.display().to_string()]);
        args.extend(["--device".into(), config.attach.device.as_str().into()]);
        if let Some(at) = &config.locality {
            args.extend(["--locality".into(), at.to_string()]);
        }
        for (flag, path) in config.tls.flags() {
            args.extend([flag.to_string(), path.display().to_string()]);
        }
        args.extend(config.attach.args.iter().cloned());
        Self {
            program: config.attach.program.clone().unwrap_or_else(own),
            args,
            abandon,
            revoked: config.dir.join(REVOKED_FILE),
            log: config.run_dir.join("attach.log"),
            dir,
            detach_limit: Duration::from_millis(config.attach.detach_timeout_ms),
            inner: Mutex::default(),
        }
    }

    /// A process that imitates attach and holds no lease, started with `args` instead of attach's.
    pub fn without_lease(config: &AgentConfig, args: Vec<String>) -> Self {
        Self { args, ..Self::new(config) }
    }

    /// Its run directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.locked()
    }

    /// Whether a process runs; from then on it counts as ours.
    ///
    /// # Errors
    /// It could not be checked.
    pub fn adopt(&self) -> Result<bool, String> {
        let runs = running(&self.dir).map_err(|error| unlooked(&self.dir, &error))?;
        self.inner().expected = runs;
        Ok(runs)
    }

    /// Starts it.
    ///
    /// # Errors
    /// It could not be started, or one runs already.
    pub async fn start(&self, force: bool) -> Result<(), String> {
        if running(&self.dir).map_err(|error| unlooked(&self.dir, &error))? {
            return Err(format!("{}: an attach process runs there already", self.dir.display()));
        }
        // A killed process had no chance to do this.
        self.clear().await;
        let _ = std::fs::remove_file(self.dir.join("status.json"));
        self.hand_over_revoked().await;
        let at = |error: std::io::Error| format!("{}: {error}", self.log.display());
        let log = process::log::begin(&self.log).map_err(at)?;
        let mut command = Command::new(&self.program);
        command.args(&self.args).args(force.then_some("--force"));
        command.stdin(Stdio::null()).stdout(log.try_clone().map_err(at)?).stderr(log);
        // In its own process group: a signal to the agent's group does not end the device of a running PostgreSQL.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let child = command.spawn().map_err(|error| format!("{}: {error}", self.program.display()))?;
        *self.inner() = Inner { child: Some(child), expected: true, last: None };
        Ok(())
    }

    /// Gives it the agent's list of revoked certificates, which is newer than its own of an earlier run, or of none
    /// after a reboot (REVOKE-V4). It is started in any case: a gateway tells it the list.
    async fn hand_over_revoked(&self) {
        let (from, dir) = (self.revoked.clone(), self.dir.clone());
        let copying = tokio::task::spawn_blocking(move || {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
            // A damaged one does not take the place of a whole one.
            RevocationCache::check(&from)?;
            let next = dir.join("revoked.copied");
            std::fs::copy(&from, &next)?;
            std::fs::rename(&next, dir.join(REVOKED_FILE))
        });
        let done = tokio::time::timeout(HAND_OVER_LIMIT, copying).await;
        let why = match done {
            Ok(Ok(Ok(()))) => return,
            // No TLS, or nothing was ever revoked.
            Ok(Ok(Err(error))) if error.kind() == ErrorKind::NotFound => return,
            Ok(Ok(Err(error))) => error.to_string(),
            Ok(Err(ended)) => ended.to_string(),
            Err(_) => format!("not within {HAND_OVER_LIMIT:?}"),
        };
        tracing::warn!(file = %self.revoked.display(), why, "attach begins without this list of revoked certificates");
    }

    /// Its state.
    pub fn look(&self) -> AttachLook {
        let mut inner = self.inner();
        if !inner.expected {
            return AttachLook::None;
        }
        // In memory, as the whole run directory: this is quick, and a long log would use up memory.
        let _ = process::log::bound(&self.log, LOG_BYTES_MAX);
        let exit = match &mut inner.child {
            Some(child) => match child.try_wait() {
                Ok(None) => None,
                Ok(Some(status)) => Some(status.code()),
                Err(_) => Some(None),
            },
            None if may_run(&self.dir) => None,
            None => Some(None),
        };
        let pid = inner.child.as_ref().map(Child::id);
        let status = Status::read(&self.dir).filter(|status| pid.is_none_or(|pid| pid == status.pid));
        if let Some(status) = &status {
            let mut view = status.view();
            // It tells of a renewal at an unknown time: the clock went back before we read it. The earlier one counts.
            if status.lease_renewed_boot_ns.is_some() && view.renewed.is_none() {
                let same = inner.last.as_ref().filter(|last| last.epoch == view.epoch);
                view.renewed = same.and_then(|last| last.renewed);
            }
            inner.last = Some(view);
        }
        let view = inner.last.clone();
        match exit {
            None => AttachLook::Runs(view.unwrap_or(AttachView {
                phase: AttachPhase::Acquiring,
                epoch: 0,
                renewed: None,
                ttl: None,
                fenced_by: String::new(),
                lost: Vec::new(),
            })),
            Some(code) => AttachLook::Ended(self.end(code, view.as_ref())),
        }
    }

    /// Its last error message, without its log lines.
    fn words(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let error = text.lines().rev().find_map(|line| line.strip_prefix("error: "));
        error.map_or_else(|| process::tail(&self.log, 1), str::to_string)
    }

    fn end(&self, code: Option<i32>, last: Option<&AttachView>) -> AttachEnd {
        let words = self.words();
        match last {
            Some(view) if view.phase == AttachPhase::Fenced => {
                AttachEnd::Fenced(if view.fenced_by.is_empty() { words } else { view.fenced_by.clone() })
            }
            _ if code == Some(EXIT_FENCED) => AttachEnd::Fenced(words),
            _ if code == Some(EXIT_REFUSED) => AttachEnd::Refused(words),
            _ => AttachEnd::Failed(match code {
                Some(code) => format!("exit code {code}: {words}"),
                None => "it was killed, or ended without a trace".to_string(),
            }),
        }
    }

    /// The device of each volume.
    pub fn devices(&self) -> Vec<Volume> {
        Status::read(&self.dir).map(|status| status.volumes).unwrap_or_default()
    }

    /// Ends it.
    ///
    /// # Errors
    /// See [`crate::host::Host::detach`].
    pub async fn detach(&self, hard: bool) -> Result<(), String> {
        // From here on its end is expected.
        self.inner().expected = false;
        let done = end(&self.dir, if hard { HARD_DETACH_LIMIT } else { self.detach_limit }).await;
        let child = self.inner().child.take();
        let code = match child {
            None => None,
            Some(mut child) => match reap(&mut child).await {
                Some(status) => status.code(),
                None => {
                    // It hangs in the kernel and does not react to SIGKILL: the next look reaps it.
                    self.inner().child = Some(child);
                    None
                }
            },
        };
        if hard || done.is_err() {
            self.clear().await;
        }
        match (done, code) {
            (Err(why), _) if !hard => Err(why),
            (Ok(()), Some(code)) if !hard && code != 0 => {
                Err(format!("attach ended with exit code {code}: {}", self.words()))
            }
            _ => Ok(()),
        }
    }
}

/// Prefix, before the run directory, of the name that attach gives to kernel nbd devices.
pub const BACKEND: &str = "holdfast ";

/// The kernel appends this to the path of a running program whose file was deleted.
const DELETED: &str = " (deleted)";

/// This program, by its path: after an upgrade, the new file.
fn own() -> PathBuf {
    std::env::current_exe().map_or_else(|_| PathBuf::from("holdfast"), by_path)
}

fn by_path(shown: PathBuf) -> PathBuf {
    let replaced = shown.to_str().filter(|_| !shown.exists()).and_then(|text| text.strip_suffix(DELETED));
    replaced.map(PathBuf::from).unwrap_or(shown)
}

/// Arguments of the program that disconnects the kernel's devices of an ended process.
fn abandon_args(config: &AgentConfig) -> Vec<String> {
    let dir = config.run_dir.join("attach").display().to_string();
    ["attach", &config.set, "--owner", &config.name, "--abandon", "--dir", &dir].map(String::from).to_vec()
}

/// Whether a process that is gone may have left devices in the kernel: attach keeps its lease there while it uses them,
/// and the kernel shows them if it died while it gave them up. What cannot be looked at may be one.
fn left_devices(dir: &Path) -> bool {
    !may_run(dir) && (dir.join("lease.json").try_exists().unwrap_or(true) || kernel_has_one(Path::new("/sys"), dir))
}

/// Whether the kernel has a device of the attach in `dir`, as `sys` shows it. One that is disconnected and only held
/// open has no size.
fn kernel_has_one(sys: &Path, dir: &Path) -> bool {
    // As attach names it.
    let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.to_path_buf());
    let ours = format!("{BACKEND}{}/", dir.display());
    let is_ours = |device: &Path| match std::fs::read_to_string(device.join("backend")) {
        Ok(backend) => {
            let volume = backend.trim_end().strip_prefix(&ours);
            let size = std::fs::read_to_string(device.join("size"));
            volume.is_some_and(|volume| !volume.contains('/')) && size.map_or(true, |size| size.trim() != "0")
        }
        Err(error) => error.kind() != ErrorKind::NotFound,
    };
    let nbd = |entry: &DirEntry| entry.file_name().as_encoded_bytes().starts_with(b"nbd");
    match std::fs::read_dir(sys.join("block")) {
        Ok(mut entries) => entries.any(|entry| entry.map_or(true, |entry| nbd(&entry) && is_ours(&entry.path()))),
        Err(error) => error.kind() != ErrorKind::NotFound,
    }
}

/// Number of the process that holds the lock of this run directory, or did last.
pub(crate) fn pid_in(dir: &Path) -> Option<i32> {
    std::fs::read_to_string(dir.join("attach.lock")).ok()?.trim().parse().ok()
}

fn signal(dir: &Path, what: Signal) {
    if let Some(pid) = pid_in(dir) {
        process::signal(pid, what);
    }
}

/// The end of a child whose lock is free or that was killed: it is about to exit, or hangs in the kernel for as long as
/// a device does not answer. `None` if it still exists after [`KILL_LIMIT`].
async fn reap(child: &mut Child) -> Option<std::process::ExitStatus> {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().ok()? {
            return Some(status);
        }
        if begun.elapsed() >= KILL_LIMIT {
            return None;
        }
        let _ = child.kill();
        tokio::time::sleep(LOOK_PAUSE).await;
    }
}

async fn gone(dir: &Path, limit: Duration) -> bool {
    let begun = Instant::now();
    while may_run(dir) {
        if begun.elapsed() >= limit {
            return false;
        }
        tokio::time::sleep(LOOK_PAUSE).await;
    }
    true
}

async fn end(dir: &Path, limit: Duration) -> Result<(), String> {
    if !may_run(dir) {
        return Ok(());
    }
    signal(dir, Signal::TERM);
    if gone(dir, limit).await {
        return Ok(());
    }
    signal(dir, Signal::KILL);
    if gone(dir, KILL_LIMIT).await {
        return Err(format!("attach did not end within {} ms and was killed", limit.as_millis()));
    }
    Err(format!("{}: attach is still there after SIGKILL", dir.display()))
}

/// Left by an earlier round of [`kill`], if it still exists.
static ABANDONING: Mutex<Option<Child>> = Mutex::new(None);

/// Ends attach and removes its devices, from a process without a runtime. Blocks, for seconds if the devices do not go;
/// calls `meanwhile` repeatedly while it waits.
pub fn kill(config: &AgentConfig, mut meanwhile: impl FnMut()) {
    let dir = &config.run_dir.join("attach");
    if may_run(dir) {
        signal(dir, Signal::KILL);
    }
    let begun = Instant::now();
    while may_run(dir) && begun.elapsed() < KILL_LIMIT {
        meanwhile();
        std::thread::sleep(LOOK_PAUSE);
    }
    if left_devices(dir) {
        // Processes that wait for the device, also PostgreSQL's after their SIGKILL, get errors and end.
        let mut command = Command::new(config.attach.program.clone().unwrap_or_else(own));
        command.args(abandon_args(config)).stdin(Stdio::null()).stdout(Stdio::null());
        let left = || tracing::error!("cannot remove the devices of an ended attach process from the kernel");
        let mut hung = ABANDONING.locked();
        // If one hangs, later rounds start no other.
        let begin = hung.as_mut().is_none_or(|earlier| !matches!(earlier.try_wait(), Ok(None)));
        match begin.then(|| command.spawn()) {
            None | Some(Err(_)) => left(),
            Some(Ok(mut child)) => {
                let begun = Instant::now();
                // The caller has a host to fence, and no time for a program that hangs.
                while matches!(child.try_wait(), Ok(None)) && begun.elapsed() < CLEAR_LIMIT {
                    meanwhile();
                    std::thread::sleep(LOOK_PAUSE);
                }
                let ended = child.try_wait();
                if !matches!(ended, Ok(Some(status)) if status.success()) {
                    left();
                }
                *hung = matches!(ended, Ok(None)).then(|| {
                    let _ = child.kill();
                    child
                });
            }
        }
    }
    for pid in process::of_name("nbdfuse", &dir.display().to_string()) {
        process::signal(pid, Signal::KILL);
    }
}

/// The backing file of a loop device (`loop0`), from the kernel; `None` for another device. After a lazy unmount, the
/// path is relative to the former mount.
pub fn backing_file(name: &str) -> Option<PathBuf> {
    let backing = std::fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")).ok()?;
    Some(PathBuf::from(backing.trim_end()))
}

/// Loop devices over files below `dir`.
fn loop_devices(dir: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir("/sys/block") else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let ours = |name: &String| backing_file(name).is_some_and(|backing| backing.starts_with(dir));
    names.filter(|name| name.starts_with("loop")).filter(ours).map(|name| format!("/dev/{name}")).collect()
}

impl Attach {
    /// Removes what a killed attach left in the kernel and in its directory. Users of the device get errors from then
    /// on.
    async fn clear(&self) {
        if left_devices(&self.dir) {
            let mut command = tokio::process::Command::new(&self.program);
            command.args(&self.abandon);
            if let Err(why) = process::run(command, CLEAR_LIMIT).await {
                tracing::warn!(why, "cannot remove the kernel devices of an earlier attach");
            }
        }
        clear(&self.dir).await;
    }
}

/// Ends nbdfuse, its loop device and its mount.
async fn clear(dir: &Path) {
    for pid in process::of_name("nbdfuse", &dir.display().to_string()) {
        process::signal(pid, Signal::KILL);
    }
    // The devices first: without its mount a backing file has no path.
    for device in loop_devices(dir) {
        let mut command = system("losetup");
        command.arg("--detach").arg(&device);
        if let Err(why) = process::run(command, CLEAR_LIMIT).await {
            tracing::warn!(why, "cannot remove the loop device of an earlier attach");
        }
    }
    let points = mounts::below(dir).unwrap_or_else(|why| {
        tracing::warn!(why, "cannot check whether mounts of an earlier attach are left");
        Vec::new()
    });
    for point in points {
        let mut command = system("umount");
        command.arg("-l").arg(&point);
        if let Err(why) = process::run(command, CLEAR_LIMIT).await {
            tracing::warn!(why, "cannot unmount the mount of an earlier attach");
        }
    }
}

#[cfg(test)]
#[path = "attach_process/tests.rs"]
mod tests;
