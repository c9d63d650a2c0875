//! `holdfast attach` for each staged set: a process of its own, which survives this one and is started again if it
//! ends.

use super::options::{DeviceChoice, NodeOptions};
use super::program;
use super::record::Records;
use crate::locks::Locks;
use crate::refused::Refused;
use holdfast_attach::{Phase, RunDir, Status, VolumeStatus};
use holdfast_reached::reached;
use holdfast_types::Name;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tonic::Code;

/// Time limit for a set to be attached. Also while the lease of a node that has died expires (3 s by default).
const READY_LIMIT: Duration = Duration::from_secs(45);

/// How long a set that another node holds is asked for again: longer than a lease, shorter than the patience of
/// Kubernetes.
const HELD_LIMIT: Duration = Duration::from_secs(20);

/// Pause before it is asked for again.
const HELD_PAUSE: Duration = Duration::from_millis(500);

/// Time limit that `holdfast attach` has for finding a gateway, in its own form.
const PATIENCE: &str = "30s";

/// How long a device may be in use after it was unmounted.
const IN_USE_LIMIT: Duration = Duration::from_secs(5);

/// Time limit of `--detach`, `--abandon` and SIGTERM, above their own.
const END_LIMIT: Duration = Duration::from_secs(45);

/// Pause between two looks at a process that is not ready.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// How long a process may take to lock its directory.
const SEEN_LIMIT: Duration = Duration::from_secs(10);

/// Pauses before an ended process is started again; doubled each time, until one has run for a while.
const AGAIN_MIN: Duration = Duration::from_secs(1);
const AGAIN_MAX: Duration = Duration::from_secs(15);

/// Exit codes of `holdfast attach` (docs/operating/attach.md).
const EXIT_DONE: i32 = 0;
const EXIT_REFUSED: i32 = 3;
const EXIT_FENCED: i32 = 7;

/// The processes of this node.
#[derive(Debug)]
pub(super) struct Attached {
    options: NodeOptions,
    pub(super) records: Arc<Records>,
    /// Of the node: nothing is started while a call works on the set.
    locks: Arc<Locks>,
}

/// Arguments of `holdfast attach` for a set. STAGED-S1: the owner is this node, and it never takes a set by force.
fn arguments(options: &NodeOptions, set: &Name, dir: &str) -> Vec<String> {
    let device = match options.device {
        DeviceChoice::Kernel => "kernel",
        DeviceChoice::Nbdfuse => "nbdfuse",
    };
    let mut args: Vec<String> =
        ["attach", set.as_str(), "--owner", options.node.as_str(), "--dir", dir].map(String::from).into();
    args.extend(["--device", device, "--timeout", PATIENCE, "--output", "json"].map(String::from));
    if let Some(at) = &options.locality {
        args.extend(["--locality".to_string(), at.to_string()]);
    }
    args.extend(options.connection.iter().cloned());
    args
}

/// The error of an ended process: the last of its lines that is one.
fn error_of(log: &str) -> Refused {
    let errors = log.lines().rev().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let Some(error) = errors.map(|line| line["error"].clone()).find(|error| error.is_object()) else {
        let last = log.lines().last().unwrap_or("it said nothing");
        return Refused::failed(format!("holdfast attach ended: {last}"));
    };
    let text = |field: &str| error[field].as_str().unwrap_or_default().to_string();
    let (message, next) = (text("message"), text("next"));
    let text_of_all = if next.is_empty() { message } else { format!("{message}; {next}") };
    Refused::of_cluster(&text("code"), text_of_all)
}

fn is_held(log: &str) -> bool {
    log.lines().any(|line| line.contains("\"code\":\"held\""))
}

/// Whether a block device is mounted or opened exclusively.
fn is_in_use(device: &str) -> bool {
    use rustix::fs::{Mode, OFlags};
    let exclusive = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
    rustix::fs::open(device, exclusive, Mode::empty()).is_err_and(|error| error == rustix::io::Errno::BUSY)
}

/// Ends a process by a signal that lets it release the lease, and by force if it does not end in time.
fn end(child: &mut Child, limit: Duration) {
    if let Some(pid) = rustix::process::Pid::from_raw(child.id().cast_signed()) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
    let begun = Instant::now();
    while matches!(child.try_wait(), Ok(None)) {
        if begun.elapsed() >= limit {
            let _ = child.kill();
            return;
        }
        std::thread::sleep(LOOK_PAUSE);
    }
}

impl Attached {
    pub(super) fn new(options: NodeOptions, records: Arc<Records>, locks: Arc<Locks>) -> Self {
        Self { options, records, locks }
    }

    fn dir(&self, set: &Name) -> PathBuf {
        self.records.of_set(set).join("attach")
    }

    fn log(&self, set: &Name) -> PathBuf {
        self.records.of_set(set).join("attach.log")
    }

    fn said(&self, set: &Name) -> String {
        std::fs::read_to_string(self.log(set)).unwrap_or_default()
    }

    /// The process of a set and its state. `None`: none runs.
    pub(super) fn look(&self, set: &Name) -> Result<Option<(u32, Option<Status>)>, Refused> {
        let dir = self.dir(set);
        match holdfast_attach::running(&dir) {
            Ok(pid) => Ok(Some((pid, RunDir::status(&dir).ok().filter(|status| status.pid == pid)))),
            Err(holdfast_attach::DirError::NotAttached { .. }) => Ok(None),
            Err(error) => Err(Refused::failed(error.to_string())),
        }
    }

    /// The state of a volume that is attached here.
    pub(super) fn volume(&self, set: &Name, volume: &Name) -> Result<VolumeStatus, Refused> {
        let none = || Refused::precondition(format!("{set} is not attached on this node: stage the volume first"));
        let (_, status) = self.look(set)?.ok_or_else(none)?;
        let status = status.ok_or_else(none)?;
        if status.phase == Phase::Fenced {
            let by = status.fenced_by.as_deref().unwrap_or("another node");
            reached!("csi: a volume that another node took was refused here");
            return Err(Refused::precondition(format!(
                "{set} was taken by {by}: what this node has written since is not in it; unstage it here"
            )));
        }
        let found = status.volumes.into_iter().find(|found| found.name == volume.as_str());
        found.ok_or_else(|| crate::names::no_volume(format!("{set}/{volume}")))
    }

    fn is_fenced(&self, set: &Name) -> Result<bool, Refused> {
        let status = self.look(set)?.and_then(|(_, status)| status);
        Ok(status.is_some_and(|status| status.phase == Phase::Fenced))
    }

    /// The block device of a volume, which is attached if it is not.
    pub(super) fn device(&self, set: &Name, volume: &Name) -> Result<PathBuf, Refused> {
        if self.look(set)?.is_none() {
            self.attach(set)?;
        }
        let begun = Instant::now();
        loop {
            let found = self.volume(set, volume);
            if let Ok(VolumeStatus { lost: Some(why), .. }) = &found {
                return Err(Refused::precondition(format!("{why}: unstage {set}/{volume}, then stage it again")));
            }
            if let Ok(VolumeStatus { device: Some(device), .. }) = &found {
                return Ok(PathBuf::from(device));
            }
            // It stays fenced, and meanwhile no call could unstage it.
            if let Err(refused) = &found
                && self.is_fenced(set)?
            {
                return Err(refused.clone());
            }
            if begun.elapsed() >= READY_LIMIT {
                let late = format!("{set}/{volume} has no device after {READY_LIMIT:?}: repeat this call");
                return Err(found.err().unwrap_or_else(|| Refused::new(Code::DeadlineExceeded, late)));
            }
            std::thread::sleep(LOOK_PAUSE);
        }
    }

    fn spawn(&self, set: &Name) -> Result<Child, Refused> {
        let path = self.log(set);
        let at = |error: std::io::Error| Refused::failed(format!("{}: {error}", path.display()));
        // A new one each time: its size is bounded by the life of one process, at its default level of logging.
        let log = File::create(&path).map_err(at)?;
        let dir = self.dir(set).display().to_string();
        let mut command = Command::new(&self.options.program);
        command.args(arguments(&self.options, set, &dir)).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(log);
        // A signal to the driver's group does not end the devices of running pods.
        command.process_group(0);
        command.spawn().map_err(|error| Refused::failed(format!("{}: {error}", self.options.program.display())))
    }

    /// Attaches a set. While another node holds it, asks again: the lease of a node that has died ends by itself.
    fn attach(&self, set: &Name) -> Result<(), Refused> {
        let begun = Instant::now();
        loop {
            let mut child = self.spawn(set)?;
            match self.ready(set, &mut child)? {
                None => {
                    self.keep(set, Some(child));
                    return Ok(());
                }
                Some(_) if is_held(&self.said(set)) && begun.elapsed() < HELD_LIMIT => {
                    reached!("csi: a volume of another node was asked for again");
                    std::thread::sleep(HELD_PAUSE);
                }
                Some(_) => return Err(error_of(&self.said(set))),
            }
        }
    }

    /// Waits until the devices are there, or the process has ended: then with its exit code. After an error no process
    /// is left that nobody watches.
    fn ready(&self, set: &Name, child: &mut Child) -> Result<Option<Option<i32>>, Refused> {
        let ready = self.seen(set, child);
        if ready.is_err() {
            end(child, END_LIMIT);
        }
        ready
    }

    fn seen(&self, set: &Name, child: &mut Child) -> Result<Option<Option<i32>>, Refused> {
        let begun = Instant::now();
        loop {
            let ended = child.try_wait().map_err(|error| Refused::failed(error.to_string()))?;
            if let Some(status) = ended {
                return Ok(Some(status.code()));
            }
            let status = self.look(set)?.and_then(|(pid, status)| status.filter(|_| pid == child.id()));
            if status.is_some_and(|status| status.phase == Phase::Serving && (status.ready || status.others_ready)) {
                return Ok(None);
            }
            if begun.elapsed() >= READY_LIMIT {
                let late = format!("{set} was not attached within {READY_LIMIT:?}: does a gateway serve it?");
                return Err(Refused::new(Code::DeadlineExceeded, late));
            }
            std::thread::sleep(LOOK_PAUSE);
        }
    }

    /// Starts the process of a set again whenever it ends, as long as a volume of it is staged. Kernel devices wait for
    /// the new one. `child` is the process, if it is a child of this one.
    fn keep(&self, set: &Name, child: Option<Child>) {
        let (keeper, set) = (Self::new(self.options.clone(), self.records.clone(), self.locks.clone()), set.clone());
        let kept = std::thread::Builder::new().name("attach".to_string()).spawn(move || keeper.watch(&set, child));
        if let Err(error) = kept {
            tracing::error!(%error, "cannot start a thread: an attach process will not be restarted");
        }
    }

    fn watch(&self, set: &Name, child: Option<Child>) {
        let ended = |mut child: Child| child.wait().ok().and_then(|status| status.code());
        let mut code = child.map_or_else(|| self.wait_for_another(set), ended);
        let mut pause = AGAIN_MIN;
        while self.is_wanted(set, code) {
            tracing::warn!(%set, ?code, ?pause, "attach has ended: restarting it, the device waits");
            std::thread::sleep(pause);
            pause = (pause * 2).min(AGAIN_MAX);
            let begun = Instant::now();
            match self.again(set) {
                Ok(None) => return,
                Ok(Some(child)) => code = ended(child),
                Err(error) => tracing::error!(%set, %error, "cannot start attach"),
            }
            if begun.elapsed() >= AGAIN_MAX {
                pause = AGAIN_MIN;
            }
        }
    }

    /// Whether a process that ended with this code is started again.
    fn is_wanted(&self, set: &Name, code: Option<i32>) -> bool {
        // If the records cannot be read, a volume may be staged.
        let is_unstaged = matches!(self.records.volumes(set), Ok(volumes) if volumes.is_empty());
        if is_unstaged || matches!(self.look(set), Ok(Some(_))) {
            return false;
        }
        if code == Some(EXIT_DONE) {
            tracing::info!(%set, "attach was ended");
            return false;
        }
        if matches!(code, Some(EXIT_REFUSED | EXIT_FENCED)) || self.options.device != DeviceChoice::Kernel {
            tracing::error!(%set, ?code, "attach has ended: the volume fails until it is unstaged");
            return false;
        }
        true
    }

    /// Starts the process of a set again. `None`: the set was unstaged meanwhile, or a call has started one, which is
    /// watched already. The set is taken until the new process is seen, so that no call takes it for ended.
    fn again(&self, set: &Name) -> Result<Option<Child>, Refused> {
        let _held = self.locks.take(set.as_str())?;
        if self.records.volumes(set)?.is_empty() {
            reached!("csi: a set that was unstaged meanwhile was not attached again");
            return Ok(None);
        }
        if self.look(set)?.is_some() {
            return Ok(None);
        }
        self.start(set).map(Some)
    }

    /// Starts a process, and waits until it is seen: then no other one is started beside it.
    fn start(&self, set: &Name) -> Result<Child, Refused> {
        let mut child = self.spawn(set)?;
        let begun = Instant::now();
        while begun.elapsed() < SEEN_LIMIT {
            if !matches!(child.try_wait(), Ok(None)) || !matches!(self.look(set), Ok(None)) {
                break;
            }
            std::thread::sleep(LOOK_PAUSE);
        }
        Ok(child)
    }

    /// Before an unmount: starts a process that has ended, which the kernel's device and its unwritten data wait for.
    pub(super) fn revive(&self, set: &Name) -> Result<(), Refused> {
        if self.options.device != DeviceChoice::Kernel || self.look(set)?.is_some() || !self.has_lease(set)? {
            return Ok(());
        }
        let child = self.start(set)?;
        self.keep(set, Some(child));
        Ok(())
    }

    /// Whether a process that was killed has left its lease here.
    fn has_lease(&self, set: &Name) -> Result<bool, Refused> {
        let lease = self.dir(set).join("lease.json");
        lease.try_exists().map_err(|error| Refused::failed(format!("{}: {error}", lease.display())))
    }

    /// Waits for the end of a process that is no child of this one.
    fn wait_for_another(&self, set: &Name) -> Option<i32> {
        while !matches!(self.look(set), Ok(None)) {
            std::thread::sleep(AGAIN_MIN);
        }
        None
    }

    /// At the start of the driver: watches what an earlier one has left, and starts what has ended since.
    pub(super) fn adopt(&self) -> Result<(), Refused> {
        for set in self.records.sets()? {
            tracing::info!(%set, "found a staged volume of an earlier process");
            self.keep(&set, None);
        }
        Ok(())
    }

    /// Detaches a set: writes are answered, then the lease is released.
    pub(super) fn detach(&self, set: &Name) -> Result<(), Refused> {
        if self.look(set)?.is_none() {
            return self.abandon(set);
        }
        let begun = Instant::now();
        loop {
            let ended = self.order(set, "--detach")?;
            match ended.status.code() {
                Some(EXIT_DONE | EXIT_FENCED) => return Ok(()),
                // It ended meanwhile.
                _ if self.look(set)?.is_none() => return self.abandon(set),
                // A device that was just unmounted may be read for a moment, by udev for example.
                Some(EXIT_REFUSED) if begun.elapsed() < IN_USE_LIMIT => std::thread::sleep(HELD_PAUSE),
                _ => return Err(error_of(&ended.err)),
            }
        }
    }

    /// Removes kernel devices that a killed process has left.
    fn abandon(&self, set: &Name) -> Result<(), Refused> {
        if !self.has_lease(set)? {
            return Ok(());
        }
        // A file system that is not mounted any more may still be written.
        let volumes = RunDir::status(&self.dir(set)).map(|status| status.volumes).unwrap_or_default();
        if let Some(device) = volumes.iter().filter_map(|volume| volume.device.as_deref()).find(|at| is_in_use(at)) {
            return Err(Refused::new(
                Code::Unavailable,
                format!("{device} of {set} is in use, and nothing serves it: what is not written yet would be lost"),
            ));
        }
        let ended = self.order(set, "--abandon")?;
        if ended.status.success() { Ok(()) } else { Err(error_of(&ended.err)) }
    }

    fn order(&self, set: &Name, order: &str) -> Result<program::Ended, Refused> {
        let mut command = Command::new(&self.options.program);
        command.args(["attach", set.as_str(), order, "--timeout", PATIENCE, "--output", "json", "--dir"]);
        command.arg(self.dir(set));
        if order == "--abandon" {
            command.args(["--owner", self.options.node.as_str()]);
        }
        program::run(command, END_LIMIT)
    }
}

/// What a process of this one's number shows of these volumes.
#[cfg(test)]
pub(super) fn status_for_test(set: &Name, phase: Phase, volumes: &[&str]) -> Status {
    let volume = |name: &&str| VolumeStatus {
        name: (*name).to_string(),
        size_bytes: 1 << 30,
        socket: String::new(),
        device: None,
        device_bytes: None,
        lost: None,
    };
    Status {
        set: set.to_string(),
        phase,
        since_unix_ms: 0,
        owner: "node1".into(),
        epoch: 3,
        gateway: String::new(),
        pid: std::process::id(),
        volumes: volumes.iter().map(volume).collect(),
        ready: false,
        others_ready: false,
        reconnects: 0,
        last_outage_ms: None,
        longest_outage_ms: None,
        last_loss: None,
        unanswered: 0,
        lease_renewed_at: None,
        lease_renewed_boot_ns: None,
        lease_ttl_ms: None,
        fenced_by: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_types::Owner;
    use std::path::Path;

    fn options(node: &str) -> NodeOptions {
        NodeOptions {
            node: Owner::new(node).unwrap(),
            locality: None,
            dir: PathBuf::from("/run/x"),
            device: DeviceChoice::Kernel,
            program: Path::new("holdfast").to_path_buf(),
            connection: vec!["--api".into(), "10.0.0.1:7400".into()],
            volumes_max: 8,
        }
    }

    /// STAGED-S1.
    #[test]
    fn each_node_is_an_owner_of_its_own_and_uses_no_force() {
        let set = Name::new("csi-a").unwrap();
        let of = |node: &str| arguments(&options(node), &set, "/run/x/csi-a/attach");
        let owner = |args: &[String]| args.iter().skip_while(|arg| *arg != "--owner").nth(1).cloned();
        assert_eq!(owner(&of("node1")).as_deref(), Some("node1"));
        assert_ne!(owner(&of("node1")), owner(&of("node2")));
        assert!(!of("node1").iter().any(|arg| arg.starts_with("--force")));
    }

    /// STAGED-S2: a lease that nobody would release.
    #[test]
    fn a_set_that_was_unstaged_meanwhile_is_not_attached_again() {
        let dir = tempfile::tempdir().unwrap();
        let (records, locks) = (Arc::new(Records::open(dir.path()).unwrap()), Arc::new(Locks::default()));
        let program = PathBuf::from("/no/such/program");
        let attached = Attached::new(NodeOptions { program, ..options("node1") }, records.clone(), locks.clone());
        let id = crate::names::VolumeId::of("csi-a/data").unwrap();
        records.write(&id, &records.new_of(Path::new("/staging"), crate::capability::Access::Block)).unwrap();
        let held = locks.take("csi-a").unwrap();
        assert_eq!(attached.again(&id.set).unwrap_err().code, Code::Aborted, "a call works on it");
        drop(held);
        assert!(attached.again(&id.set).unwrap_err().text.contains("/no/such/program"));
        assert!(attached.is_wanted(&id.set, None) && !attached.is_wanted(&id.set, Some(EXIT_FENCED)));
        attached.revive(&id.set).unwrap();
        std::fs::create_dir(attached.dir(&id.set)).unwrap();
        std::fs::write(attached.dir(&id.set).join("lease.json"), "{}").unwrap();
        assert!(attached.revive(&id.set).unwrap_err().text.contains("/no/such/program"), "its device waits");
        records.remove(&id).unwrap();
        assert!(attached.again(&id.set).unwrap().is_none());
        assert!(!attached.is_wanted(&id.set, None));
        std::fs::write(records.of_set(&id.set).join("data.json"), "{").unwrap();
        assert!(attached.is_wanted(&id.set, None), "what cannot be read is not unstaged");
    }

    #[test]
    fn a_fenced_volume_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let records = Arc::new(Records::open(dir.path()).unwrap());
        let attached = Attached::new(options("node1"), records, Arc::new(Locks::default()));
        let (set, volume) = (Name::new("csi-a").unwrap(), Name::new("data").unwrap());
        let held = RunDir::take(&attached.dir(&set)).unwrap();
        let status = Status { fenced_by: Some("held by node2".into()), ..status_for_test(&set, Phase::Fenced, &[]) };
        held.show(&status).unwrap();
        let begun = Instant::now();
        let refused = attached.device(&set, &volume).unwrap_err();
        assert!(refused.code == Code::FailedPrecondition && refused.text.contains("held by node2"), "{refused}");
        assert!(begun.elapsed() < READY_LIMIT);
    }

    #[test]
    fn a_process_that_does_not_end_is_ended() {
        let mut child = Command::new("sh").args(["-c", "trap '' TERM; exec sleep 600"]).spawn().unwrap();
        end(&mut child, Duration::from_millis(50));
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    fn the_error_of_a_process_is_its_last_one() {
        let log =
            "a line\n{\"error\":{\"code\":\"held\",\"exit\":3,\"message\":\"held by node2\",\"next\":\"wait\"}}\n";
        assert!(is_held(log));
        let refused = error_of(log);
        assert_eq!((refused.code, refused.text.as_str()), (Code::FailedPrecondition, "held by node2; wait"));
        assert_eq!(error_of("panic\n").code, Code::Internal);
        assert_eq!(error_of("{\"error\":{\"code\":\"not-found\",\"message\":\"no set\"}}").code, Code::NotFound);
    }
}
