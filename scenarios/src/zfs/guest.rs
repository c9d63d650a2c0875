//! A guest: started, controlled through its guest agent, paused, and killed like by a power failure.
//!
//! QEMU's emulation without KVM: several times slower than a machine, but the same everywhere. Its user network opens
//! connections in the namespace of QEMU, so a guest is a node of [`crate::net`] like any other.

use super::base64;
use super::events::Events;
use super::guest_agent::{GuestAgent, LOOK, Said, socket_of};
use super::{guest_logs, last_words};
use crate::cmd::tail_of;
use crate::net::{Net, address};
use crate::process::{self, Proc, Signal, wait_until};
use anyhow::{Context, Result, bail};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Memory of a guest in MiB: for PostgreSQL, ZFS and little else.
const MEMORY: &str = "1536";

/// On a busy machine a guest boots for a minute and more.
const BOOT_LIMIT: Duration = Duration::from_secs(300);

/// Parts of a guest.
#[derive(Clone, Debug)]
pub struct Parts {
    /// Kernel, first file system, disk: see deploy/vm/build.sh.
    pub image: PathBuf,
    /// The program as a disk.
    pub program: PathBuf,
    /// Its length.
    pub bytes: u64,
}

/// The guest's first process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    /// The script of deploy/vm/init.
    Script,
    /// systemd, with that script as two units.
    Systemd,
}

impl First {
    /// Its parameters on the kernel's command line.
    fn told(self) -> &'static str {
        match self {
            First::Script => "",
            First::Systemd => " holdfast.init=systemd systemd.condition-needs-update=no",
        }
    }
}

/// An additional disk of a guest: empty at boot like that of another machine, or as the last guest of that name left
/// it.
#[derive(Clone, Copy, Debug)]
pub struct Disk {
    /// Its name in the guest.
    pub serial: &'static str,
    pub bytes: u64,
    pub kept: bool,
}

impl Disk {
    /// Creates it with one partition: ZFS uses that as it is, but would partition a whole disk. An MBR table is one
    /// sector.
    fn make(self, path: &Path) -> Result<()> {
        const BEGIN: u32 = 2048;
        if self.kept {
            return Ok(());
        }
        let sectors = u32::try_from(self.bytes / 512)?.checked_sub(BEGIN).context("a disk of more than 1 MiB")?;
        let mut table = [0; 512];
        // Linux's type; the CHS addresses are beyond their range.
        table[446..454].copy_from_slice(&[0, 0xfe, 0xff, 0xff, 0x83, 0xfe, 0xff, 0xff]);
        table[454..458].copy_from_slice(&BEGIN.to_le_bytes());
        table[458..462].copy_from_slice(&sectors.to_le_bytes());
        table[510..].copy_from_slice(&[0x55, 0xaa]);
        let mut file = std::fs::File::create(path)?;
        file.write_all(&table)?;
        Ok(file.set_len(self.bytes)?)
    }
}

/// One guest.
#[derive(Debug)]
pub struct Guest {
    pub name: &'static str,
    /// Address of its node: its PostgreSQL and agent are reached there.
    pub address: String,
    agent: GuestAgent,
    proc: Proc,
}

impl Guest {
    /// Starts it on a fresh disk; data of an earlier guest of that name is gone. Fails when its agent does not answer
    /// in time.
    pub fn boot(
        name: &'static str,
        node: usize,
        net: &Net,
        (parts, first, disks): (&Parts, First, &[Disk]),
        dir: &Path,
    ) -> Result<Self> {
        std::fs::create_dir_all(dir)?;
        let (socket, at) = (socket_of(dir), address(node));
        let _ = std::fs::remove_file(&socket);
        // From the node, so that each guest has its own.
        let host_id = format!("{:08x}", 0x0ff1_ce00 + node);
        let told = format!(
            "console=ttyS0 quiet panic=-1 mitigations=off nokaslr tsc=reliable no_timer_check net.ifnames=0 audit=0 apparmor=0 \
             holdfast.name={name} holdfast.hostid={host_id} holdfast.ip=10.0.2.15,10.0.2.2 holdfast.bytes={}{}",
            parts.bytes,
            first.told()
        );
        let disk = |file: &Path, id: &str, more: &str| {
            format!("file={},format=raw,if=none,id={id},cache=unsafe,{more}", file.display())
        };
        let image = |file: &str| parts.image.join(file);
        let network = format!("user,id=net,hostfwd=tcp:{at}:5432-:5432,hostfwd=tcp:{at}:8008-:8008");
        let command =
            net.within(node, "nice").args(["-n", "15", "qemu-system-x86_64", "-name", name, "-machine", "q35"]);
        let command =
            command.args(["-accel", "tcg,thread=multi,tb-size=256", "-cpu", "max", "-smp", "2", "-m", MEMORY]);
        let command = command.args(["-nodefaults", "-display", "none"]);
        let command = command.arg("-serial").arg(format!("file:{}", dir.join("console.log").display()));
        let command = command.arg("-kernel").arg(image("vmlinuz")).arg("-initrd").arg(image("initrd.gz"));
        let command = command.args(["-append", &told]);
        let command = command.args(["-drive", &disk(&image("rootfs.img"), "root", "snapshot=on")]);
        let command = command.args(["-drive", &disk(&parts.program, "program", "readonly=on")]);
        let mut command =
            command.args(["-device", "virtio-blk-pci,drive=root", "-device", "virtio-blk-pci,drive=program"]);
        for disk in disks {
            let (serial, path) = (disk.serial, dir.join(format!("{}.img", disk.serial)));
            disk.make(&path)?;
            // A flush syncs the file: needed to compare log devices.
            let drive = format!("file={},format=raw,if=none,id={serial},cache=writeback", path.display());
            let device = format!("virtio-blk-pci,drive={serial},serial={serial}");
            command = command.args(["-drive", &drive, "-device", &device]);
        }
        let command = command.args(["-netdev", &network, "-device", "virtio-net-pci,netdev=net,romfile="]);
        let command = command.args(["-device", "virtio-rng-pci", "-device", "virtio-serial-pci"]);
        let command =
            command.arg("-chardev").arg(format!("socket,id=agent,path={},server=on,wait=off", socket.display()));
        let command = command.args(["-device", "virtserialport,chardev=agent,name=org.qemu.guest_agent.0"]);
        let command = command.arg("-qmp").arg(format!("unix:{},server=on,wait=off", events_of(dir).display()));
        let proc = Proc::spawn(name, command.into_command(), &dir.join("qemu.log"))?;
        let mut guest = Self { name, address: at, agent: GuestAgent { name, dir: dir.into() }, proc };
        let begun = Instant::now();
        while guest.agent.talk("guest-ping", None, Duration::from_secs(5)).is_err() {
            guest.proc.must_run()?;
            let console = || tail_of(&guest.agent.dir.join("console.log"), 5);
            anyhow::ensure!(begun.elapsed() < BOOT_LIMIT, "{name}: not up after {BOOT_LIMIT:?}: {}", console());
            std::thread::sleep(LOOK);
        }
        Ok(guest)
    }

    /// Runs a script to its end; returns its output, which is also appended to the guest's log. Fails when it ends with
    /// another status than 0, or not within `limit`.
    pub fn run(&self, script: &str, limit: Duration) -> Result<String> {
        let (code, out, err) = self.ran(script, limit)?;
        anyhow::ensure!(
            code == 0,
            "{}: exit code {code}: {}",
            self.name,
            crate::cmd::tail(&format!("{out}\n{err}"), 12)
        );
        Ok(out)
    }

    /// The same for any status: code, output, errors. Fails when it does not end within `limit`.
    pub fn ran(&self, script: &str, limit: Duration) -> Result<Said> {
        let begun = Instant::now();
        let Some((code, out, err)) = self.agent.finished(script, limit)? else {
            self.log(script, "still running")?;
            bail!("{}: still running after {limit:?}: {}", self.name, crate::cmd::tail(script, 3));
        };
        self.log(script, &format!("{out}{err}[{code}, {:.1} s]", begun.elapsed().as_secs_f64()))?;
        Ok((code, out, err))
    }

    /// Starts a script without waiting for it. Fails when the agent refuses it.
    pub fn leave_running(&self, script: &str) -> Result<()> {
        self.log(script, "left running")?;
        self.agent.start(script, false).map(drop)
    }

    /// Writes a small file.
    pub fn put(&self, path: &str, text: &str) -> Result<()> {
        let text = base64::encode(text.as_bytes());
        let script = format!("mkdir -p \"$(dirname {path})\" && echo {text} | base64 -d > {path}");
        self.run(&script, Duration::from_secs(60)).map(drop)
    }

    fn log(&self, script: &str, said: &str) -> Result<()> {
        let path = self.agent.dir.join("script.log");
        let mut log = std::fs::File::options().create(true).append(true).open(path)?;
        Ok(writeln!(log, "--- {}\n{script}\n{said}", crate::ledger::unix_ms())?)
    }

    /// Kills it, like a power failure. Fails when it survives that.
    pub fn kill(mut self) -> Result<Instant> {
        let moment = Instant::now();
        self.proc.signal(Signal::KILL);
        self.proc.wait(Duration::from_secs(20))?;
        Ok(moment)
    }

    /// Events of its machine from now on. One listener at a time. Fails when QEMU does not answer.
    pub fn events(&self) -> Result<Events> {
        Events::listen(self.name, &events_of(&self.agent.dir))
    }

    /// Waits until it has switched itself off. Fails when it runs on, or its QEMU has failed.
    pub fn off(mut self, limit: Duration) -> Result<()> {
        let status = self.proc.wait(limit)?;
        anyhow::ensure!(status.success(), "{}: found {status} of its QEMU, expected 0", self.name);
        Ok(())
    }

    /// Stops the whole guest. Fails when it keeps running.
    pub fn pause(&mut self) -> Result<Instant> {
        let moment = Instant::now();
        self.proc.signal(Signal::STOP);
        let pid = self.proc.pid();
        anyhow::ensure!(
            wait_until(Duration::from_secs(20), || process::is_stopped(pid)),
            "{} does not stop",
            self.name
        );
        Ok(moment)
    }

    /// Resumes it.
    pub fn resume(&mut self) {
        self.proc.signal(Signal::CONT);
    }

    /// The last lines of what it said while it was shut down, if the unit of `last_words` listened.
    pub fn last_words(&self, lines: usize) -> Vec<String> {
        let console = std::fs::read(self.agent.dir.join("console.log")).unwrap_or_default();
        last_words::of(&String::from_utf8_lossy(&console), lines).into_iter().map(str::to_string).collect()
    }

    /// The end of its console, for messages.
    pub fn console(&self) -> String {
        tail_of(&self.agent.dir.join("console.log"), 6)
    }
}

impl Drop for Guest {
    /// A check that fails ends its part, and with it the guest. Nobody can ask it afterwards, so each guest that still
    /// answers is asked here, whatever ends it.
    fn drop(&mut self) {
        // Not by the process itself: that would count as a look at its end.
        let resume = || process::signal(self.proc.pid(), Signal::CONT);
        if let Err(why) = guest_logs::keep(&self.agent, resume) {
            let _ = self.log("# the logs of its programs", &format!("not kept: {why:#}"));
        }
    }
}

/// QEMU's socket for events.
fn events_of(dir: &Path) -> PathBuf {
    dir.join("events.sock")
}
