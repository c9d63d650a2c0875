//! Makes an export a block device without nbd in the kernel: nbdfuse shows it as a file, and a loop device makes that
//! file a device.
//!
//! ```text
//!  NBD export ── nbdfuse ──▶ FILE ── losetup --direct-io=on ──▶ /dev/loopN ── ext4 ──▶ mount point
//! ```
//! nbdfuse never reconnects: after its server died the device only returns errors, and must be detached and created
//! again.

use crate::cmd::cmd;
use crate::ends;
use crate::nbd::Uri;
use crate::process::{Proc, wait_until};
use crate::undo::{Stack, Undo};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A loop device over an export or over a local file.
#[derive(Debug)]
pub struct Device {
    // Order of fields is order of dropping: mount, loop device, FUSE mount, then nbdfuse itself.
    stack: Stack,
    fuse: Option<Proc>,
    path: PathBuf,
    uri: Option<Uri>,
}

impl Device {
    /// Attaches an export through nbdfuse with `connections` connections. `work` holds the FUSE mount point and the
    /// log. Fails when nbdfuse cannot connect within 30 s, or there is no free loop device.
    pub fn nbd(uri: &Uri, connections: u32, work: &Path) -> Result<Self> {
        Self::fused(uri, &[uri.to_string()], connections, work)
    }

    /// The same through TLS, with the certificate in this folder, under the file names that libnbd expects. nbdfuse
    /// refuses a URI that names files (libnbd 1.14), so nbdkit stands between: it speaks TLS to the gateway.
    pub fn nbds(uri: &Uri, certificate: &Path, connections: u32, work: &Path) -> Result<Self> {
        let (host, port) = uri.addr.rsplit_once(':').with_context(|| format!("{uri}: expected HOST:PORT"))?;
        let mut through: Vec<String> =
            ["--socket-activation", "nbdkit", "-f", "nbd", "tls=require"].map(String::from).into();
        through.push(format!("tls-certificates={}", certificate.display()));
        through.extend([format!("hostname={host}"), format!("port={port}"), format!("export={}", uri.export)]);
        Self::fused(uri, &through, connections, work)
    }

    /// `address`: the same export, as nbdfuse is told it.
    fn fused(uri: &Uri, address: &[String], connections: u32, work: &Path) -> Result<Self> {
        let mount = work.join("nbd");
        std::fs::create_dir_all(&mount)?;
        let file = mount.join("device");
        let mut stack = Stack::default();
        // Registered before mounting, so that an interrupted start leaves nothing behind.
        stack.push(Undo::Umount(mount))?;
        let command = cmd("nbdfuse").arg("-C").arg(connections.to_string()).arg(&file).args(address);
        let mut fuse = Proc::spawn("nbdfuse", command.into_command(), &work.join("nbdfuse.log"))?;
        // A program of libnbd: it may abort when its server is gone, and users of the device see the errors.
        ends::expect_abort(fuse.pid());
        let limit = Duration::from_secs(30);
        fuse.ready_when("connected", limit, || std::fs::metadata(&file).is_ok_and(|m| m.len() > 0))?;
        Ok(Self { uri: Some(uri.clone()), ..Self::over(&file, stack, Some(fuse))? })
    }

    /// The same over a local file, as a comparison for the attach path. Fails when there is no free loop device.
    pub fn file(file: &Path) -> Result<Self> {
        Self::over(file, Stack::default(), None)
    }

    fn over(file: &Path, mut stack: Stack, fuse: Option<Proc>) -> Result<Self> {
        let out = cmd("losetup").args(["--direct-io=on", "--find", "--show"]).arg(file).out();
        let out = out.context("no loop device (inside a container, /dev/loop-control must be there)")?;
        let path = PathBuf::from(out.trim());
        stack.push(Undo::Loop(path.clone()))?;
        Ok(Self { stack, fuse, path, uri: None })
    }

    /// `/dev/loopN`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its export, if there is one.
    pub fn uri(&self) -> Option<&Uri> {
        self.uri.as_ref()
    }

    /// Makes an ext4 file system on it.
    pub fn mkfs(&self) -> Result<()> {
        cmd("mkfs.ext4").args(["-q", "-F", "-m", "0"]).arg(&self.path).run()
    }

    /// Mounts it until this device is dropped.
    pub fn mount(&mut self, at: &Path) -> Result<()> {
        std::fs::create_dir_all(at)?;
        self.stack.push(Undo::Umount(at.to_path_buf()))?;
        cmd("mount").args(["-t", "ext4", "-o", "noatime"]).arg(&self.path).arg(at).run()
    }

    /// Unmounts it and checks the whole file system without writing. Fails when it is busy, or e2fsck finds a fault.
    pub fn unmount_and_check(&self, at: &Path) -> Result<()> {
        cmd("umount").arg(at).run()?;
        cmd("e2fsck").args(["-f", "-n"]).arg(&self.path).run()
    }

    /// Detaches everything, whether its server runs or not. Fails when nbdfuse does not end.
    pub fn detach(self) -> Result<()> {
        let Self { stack, fuse, path, .. } = self;
        drop(stack);
        // A busy loop device disappears with its last user; the next attach uses another one meanwhile.
        wait_until(Duration::from_secs(2), || !cmd("losetup").arg(&path).succeeds());
        if let Some(mut fuse) = fuse {
            fuse.stop(rustix::process::Signal::TERM, Duration::from_secs(5))?;
        }
        Ok(())
    }
}
