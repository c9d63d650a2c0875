//! A device for kernels without nbd: nbdfuse shows the volume's socket as a file, and a loop device makes it a block
//! device.
//!
//! ```text
//!   VOLUME.sock ── nbdfuse ──▶ DIR/VOLUME/device ── losetup --direct-io=on ──▶ /dev/loopN
//! ```

use super::error::DeviceError;
use super::flush::flush;
use holdfast_types::Name;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::process::{Child, Command};
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Time limit for nbdfuse to show its file.
const START_LIMIT: Duration = Duration::from_secs(15);
/// Time limit for its end.
const STOP_LIMIT: Duration = Duration::from_secs(5);
/// Pause between two looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// One volume as a loop device. Dropped, its nbdfuse is killed.
#[derive(Debug)]
pub(crate) struct Device {
    path: String,
    /// Size of nbdfuse's file in bytes. It never changes.
    size: u64,
    mount: PathBuf,
    /// It is being removed, so the end of its process is expected.
    stopping: Arc<AtomicBool>,
    /// Tells the task that owns the process to end it. The task answers when that is done.
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

fn losetup() -> &'static str {
    if Path::new("/usr/sbin/losetup").is_file() { "/usr/sbin/losetup" } else { "losetup" }
}

fn mounted(point: &Path) -> Result<bool, DeviceError> {
    let found = holdfast_host::mounts::mount_at(point);
    found.map(|found| found.is_some()).map_err(|why| DeviceError::Program { program: "nbdfuse", why })
}

/// Names of loop devices over a file below `dir`, as `sys` (/sys/block) shows them.
fn loops_over(sys: &Path, dir: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(sys) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let backing = |name: &String| std::fs::read_to_string(sys.join(name).join("loop/backing_file"));
    names.filter(|name| backing(name).is_ok_and(|file| Path::new(file.trim_end()).starts_with(dir))).collect()
}

/// Processes of nbdfuse that show the file below `mount`.
fn nbdfuses_at(mount: &Path) -> Vec<rustix::process::Pid> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let fits = |pid: &i32| {
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let args = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let file = mount.join("device");
        comm.trim_end() == "nbdfuse" && args.split(|b| *b == 0).any(|arg| arg == file.as_os_str().as_encoded_bytes())
    };
    pids.filter(fits).filter_map(rustix::process::Pid::from_raw).collect()
}

/// The path without links, as the kernel has it. Does not touch the mount, if there is one.
fn real(mount: &Path) -> PathBuf {
    let dir = mount.parent().and_then(|dir| dir.canonicalize().ok());
    dir.zip(mount.file_name()).map_or_else(|| mount.into(), |(dir, name)| dir.join(name))
}

/// Removes what a killed process left at this mount: its nbdfuse, its loop devices, the mount. A loop device in use
/// keeps the old mount busy. A device that is made over that mount would use the dead one.
async fn clear_left(mount: &Path) -> Result<(), DeviceError> {
    let real = real(mount);
    let left: Vec<_> = nbdfuses_at(mount);
    for pid in &left {
        let _ = rustix::process::kill_process(*pid, rustix::process::Signal::KILL);
    }
    let mut loops = Vec::new();
    for dir in [mount, &real] {
        loops.extend(loops_over(Path::new("/sys/block"), dir));
    }
    loops.sort();
    loops.dedup();
    for name in &loops {
        // A loop device in use goes with its last user. Until then the mount is busy, which is checked below.
        if let Err(error) = output("losetup", Command::new(losetup()).arg("--detach").arg(format!("/dev/{name}"))).await
        {
            tracing::warn!(device = name, %error, "cannot remove a loop device of an earlier process");
        }
    }
    let begun = Instant::now();
    while mounted(&real)? {
        if !unmount(mount).await && begun.elapsed() >= STOP_LIMIT {
            let over = if loops.is_empty() { "it".to_string() } else { format!("/dev/{}", loops.join(", /dev/")) };
            let why = format!(
                "{}: found the mount of an earlier process in use, expected none: unmount what is on {over} first, then attach again",
                mount.display()
            );
            return Err(DeviceError::Program { program: "umount", why });
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
    Ok(())
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
        clear_left(&mount).await?;
        std::fs::create_dir_all(&mount).map_err(|error| failed(format!("{}: {error}", mount.display())))?;
        let file = mount.join("device");
        let socket = dir.join(format!("{volume}.sock"));
        let uri = format!("nbd+unix:///{set}/{volume}?socket={}", socket.display());
        let mut command = Command::new("nbdfuse");
        command.arg("-C").arg(connections.to_string()).arg(&file).arg(uri);
        // In a process group of its own: a Ctrl-C is for us, and we end nbdfuse when the device is no longer in use.
        command.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0).kill_on_drop(true);
        let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
        let (path, size) = match Self::come_up(&mut child, &mount, &file).await {
            Ok(made) => made,
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
        Ok(Self { path, size, mount, stopping, stop })
    }

    /// Waits for nbdfuse, and makes the loop device. Returns its path and size.
    async fn come_up(child: &mut Child, mount: &Path, file: &Path) -> Result<(String, u64), DeviceError> {
        let failed = |why: String| DeviceError::Program { program: "nbdfuse", why };
        let there = async {
            loop {
                if let Ok(Some(status)) = child.try_wait() {
                    return Err(failed(format!("ended with {status}")));
                }
                // There was no mount before, so this one is ours, and so is the file in it.
                if mounted(&real(mount))?
                    && let Ok(meta) = tokio::fs::metadata(file).await
                    && meta.len() > 0
                {
                    return Ok(meta.len());
                }
                tokio::time::sleep(LOOK_INTERVAL).await;
            }
        };
        let limit = tokio::time::timeout(START_LIMIT, there).await;
        let size = limit.map_err(|_| failed(format!("shows no file within {START_LIMIT:?}")))??;
        let mut command = Command::new(losetup());
        command.args(["--direct-io=on", "--find", "--show"]).arg(file);
        Ok((output("losetup", &mut command).await?, size))
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Detaches the loop device, which waits for requests on their way, unmounts, and ends nbdfuse.
    pub(super) async fn stop(self, flush_until: Instant) {
        self.stopping.store(true, Ordering::Relaxed);
        // The device's page cache goes to the gateways while they can still be reached.
        flush(&self.path, flush_until).await;
        if let Err(error) = output("losetup", Command::new(losetup()).arg("--detach").arg(&self.path)).await {
            tracing::warn!(device = self.path, %error, "cannot remove the loop device");
        }
        let gone = async {
            while !unmount(&self.mount).await {
                tokio::time::sleep(LOOK_INTERVAL).await;
            }
        };
        if tokio::time::timeout(STOP_LIMIT, gone).await.is_err() {
            tracing::warn!(mount = %self.mount.display(), "still in use: the device is removed; its users get errors");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_earlier_process_left_is_found() {
        let sys = tempfile::tempdir().unwrap();
        for (name, file) in [("loop0", "/run/h/vol1/device\n"), ("loop1", "/run/h/vol10/device\n"), ("loop2", "/x\n")] {
            std::fs::create_dir_all(sys.path().join(name).join("loop")).unwrap();
            std::fs::write(sys.path().join(name).join("loop/backing_file"), file).unwrap();
        }
        std::fs::create_dir(sys.path().join("sda")).unwrap();
        assert_eq!(loops_over(sys.path(), Path::new("/run/h/vol1")), ["loop0"]);
    }
}
