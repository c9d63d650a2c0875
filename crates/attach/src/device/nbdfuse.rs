//! A device where the kernel has no nbd: nbdfuse shows the volume's socket as a file, a loop device makes that a block device.
//!
//! ```text
//!   VOLUME.sock ── nbdfuse ──▶ DIR/VOLUME/device ── losetup --direct-io=on ──▶ /dev/loopN
//! ```

use super::DeviceError;
use holdfast_types::Name;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::process::{Child, Command};
use tokio::sync::oneshot;

/// How long nbdfuse may take to show its file.
const START_LIMIT: Duration = Duration::from_secs(15);
/// How long it may take to end.
const STOP_LIMIT: Duration = Duration::from_secs(5);
/// How long cached writes may take at the end.
const SYNC_LIMIT: Duration = Duration::from_secs(20);
/// Between two looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// One volume as a loop device. Dropped, its nbdfuse is killed.
#[derive(Debug)]
pub(crate) struct Device {
    path: String,
    mount: PathBuf,
    /// It is being taken down: an end of its process is no news.
    stopping: Arc<AtomicBool>,
    /// Tells the task that owns the process to end it; it answers when that is done.
    stop: oneshot::Sender<oneshot::Sender<()>>,
}

pub(super) fn is_there() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = |program: &str| std::env::split_paths(&path).any(|dir| dir.join(program).is_file());
    on_path("nbdfuse") && (on_path("losetup") || Path::new("/usr/sbin/losetup").is_file())
}

async fn output(program: &'static str, command: &mut Command) -> Result<String, DeviceError> {
    let failed = |why: String| DeviceError::Program { program, why };
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output().await;
    let output = output.map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim())));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_string())
}

async fn unmount(mount: &Path) -> bool {
    output("umount", Command::new("umount").arg(mount)).await.is_ok()
}

impl Device {
    pub(super) async fn make(
        set: &Name,
        volume: &Name,
        dir: &Path,
        connections: u8,
        on_end: impl Fn(String) + Send + 'static,
    ) -> Result<Self, DeviceError> {
        let failed = |why: String| DeviceError::Program { program: "nbdfuse", why };
        let mount = dir.join(volume.as_str());
        // What a killed process left behind.
        while unmount(&mount).await {}
        std::fs::create_dir_all(&mount).map_err(|error| failed(format!("{}: {error}", mount.display())))?;
        let file = mount.join("device");
        let socket = dir.join(format!("{volume}.sock"));
        let uri = format!("nbd+unix:///{set}/{volume}?socket={}", socket.display());
        let mut command = Command::new("nbdfuse");
        command.arg("-C").arg(connections.to_string()).arg(&file).arg(uri);
        // A group of its own: a Ctrl-C is for us, and we end it when the device is no longer in use.
        command.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0).kill_on_drop(true);
        let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
        let path = match Self::come_up(&mut child, &file).await {
            Ok(path) => path,
            Err(error) => {
                let _ = child.kill().await;
                unmount(&mount).await;
                return Err(error);
            }
        };
        let (stop, told) = oneshot::channel::<oneshot::Sender<()>>();
        let name = format!("{set}/{volume}");
        let stopping = Arc::new(AtomicBool::new(false));
        let known = stopping.clone();
        tokio::spawn(async move {
            tokio::select! {
                ended = child.wait() => {
                    if !known.load(Ordering::Relaxed) {
                        on_end(format!("{name}: nbdfuse ended: {ended:?}"));
                    }
                }
                told = told => {
                    end(&mut child).await;
                    if let Ok(done) = told {
                        let _ = done.send(());
                    }
                }
            }
        });
        Ok(Self { path, mount, stopping, stop })
    }

    async fn come_up(child: &mut Child, file: &Path) -> Result<String, DeviceError> {
        let failed = |why: String| DeviceError::Program { program: "nbdfuse", why };
        let there = async {
            loop {
                if let Ok(Some(status)) = child.try_wait() {
                    return Err(failed(format!("ended with {status}")));
                }
                if tokio::fs::metadata(file).await.is_ok_and(|meta| meta.len() > 0) {
                    return Ok(());
                }
                tokio::time::sleep(LOOK_INTERVAL).await;
            }
        };
        let limit = tokio::time::timeout(START_LIMIT, there).await;
        limit.map_err(|_| failed(format!("shows no file within {START_LIMIT:?}")))??;
        let losetup = if Path::new("/usr/sbin/losetup").is_file() { "/usr/sbin/losetup" } else { "losetup" };
        output("losetup", Command::new(losetup).args(["--direct-io=on", "--find", "--show"]).arg(file)).await
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// Detaches the loop device, which waits for what is on its way, unmounts, and ends nbdfuse.
    pub(super) async fn stop(self) {
        self.stopping.store(true, Ordering::Relaxed);
        let losetup = if Path::new("/usr/sbin/losetup").is_file() { "/usr/sbin/losetup" } else { "losetup" };
        // What the page cache holds of the device goes to the gateways while there is still a way.
        let cached = tokio::fs::File::open(&self.path).await;
        if let Ok(device) = cached
            && let Ok(Err(error)) = tokio::time::timeout(SYNC_LIMIT, device.sync_all()).await
        {
            tracing::warn!(device = self.path, %error, "cached writes were not taken");
        }
        if let Err(error) = output("losetup", Command::new(losetup).arg("--detach").arg(&self.path)).await {
            tracing::warn!(device = self.path, %error, "the loop device does not go");
        }
        let gone = async {
            while !unmount(&self.mount).await {
                tokio::time::sleep(LOOK_INTERVAL).await;
            }
        };
        if tokio::time::timeout(STOP_LIMIT, gone).await.is_err() {
            tracing::warn!(mount = %self.mount.display(), "still in use: the device is taken away from whoever uses it");
        }
        let (done, ended) = oneshot::channel();
        if self.stop.send(done).is_ok() {
            let _ = ended.await;
        }
        let _ = std::fs::remove_dir(&self.mount);
    }
}

async fn end(child: &mut Child) {
    if let Some(pid) = child.id().and_then(|pid| rustix::process::Pid::from_raw(pid.cast_signed())) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
    if tokio::time::timeout(STOP_LIMIT, child.wait()).await.is_err() {
        let _ = child.kill().await;
    }
}
