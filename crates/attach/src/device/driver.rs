//! The kernel's nbd driver: requests to it, and its devices as sysfs shows them.
//!
//! Owns: the netlink socket and its errors. Does not own: which devices there should be.

use super::netlink::{Ask, Connect, Heard, decode, encode};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, netlink as address, recv, send, socket_with,
};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time limit of an answer. The kernel answers at once unless something is wrong with it.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Buffer for an answer: longer than any of them.
const ANSWER_BYTES: usize = 16 << 10;
/// Once a device's socket is dead, requests of this age are sent again on a new one. While it lives, the kernel only
/// logs them. The kernel's default is 30 s.
const REQUEST_TIMER: Duration = Duration::from_secs(5);
/// Folder of the kernel's block devices.
const SYS: &str = "/sys/block";
/// Bytes of a sector in sysfs, which may differ from that of the device.
const SYS_SECTOR_BYTES: u64 = 512;

/// The driver could not be used.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// Generic netlink has no such family.
    #[error(
        "found no nbd driver in the kernel, expected the module nbd: modprobe nbd (Debian: in linux-image, other systems: linux-modules-extra or \
         kernel-modules-extra). In a network namespace of its own it cannot be reached. --device nbdfuse needs none"
    )]
    NoDriver,
    /// Not allowed to.
    #[error(
        "the nbd driver refuses this process, expected CAP_SYS_ADMIN in the machine's first user namespace: run it as root"
    )]
    NotAllowed,
    /// It refused.
    #[error("the nbd driver: {what}: {errno}{hint}")]
    Refused {
        /// The request.
        what: String,
        /// The answer.
        errno: Errno,
        /// What may help.
        hint: &'static str,
    },
    /// The answer is not one that the driver should give.
    #[error("the nbd driver answered in a way that was not expected: {0}")]
    Answer(String),
    /// The device is there but has no node.
    #[error(
        "found no {node} within {limit:?}, though the kernel made the device: mount devtmpfs on /dev, or make the node (mknod {node} b 43 ...)"
    )]
    NoNode {
        /// The node.
        node: String,
        /// How long it was waited for.
        limit: Duration,
    },
    /// It is unknown whether there are devices.
    #[error("{}: cannot be read: {source}; expected to see there which nbd devices an earlier process left: repair the cause and try again", path.display())]
    Unread {
        /// What.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The kernel does not store a device's name.
    #[error("found no {path}, expected a kernel of 5.14 or later: --device nbdfuse works with this one", path = path.display())]
    TooOld {
        /// The file that such a kernel has.
        path: PathBuf,
    },
}

/// A socket to the driver.
#[derive(Debug)]
pub(super) struct Driver {
    socket: OwnedFd,
    family: u16,
    sequence: u32,
}

fn refused(what: &str, errno: Errno) -> DriverError {
    let hint = match errno {
        Errno::PERM | Errno::ACCESS => return DriverError::NotAllowed,
        Errno::BUSY => " (it is in use)",
        Errno::INVAL => " (its log, dmesg, says more)",
        _ => "",
    };
    DriverError::Refused { what: what.to_string(), errno, hint }
}

fn socket() -> Result<OwnedFd, Errno> {
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(address::GENERIC))?;
    bind(&socket, &address::SocketAddrNetlink::new(0, 0))?;
    set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_LIMIT))?;
    Ok(socket)
}

impl Driver {
    /// Finds the driver.
    pub(super) fn open() -> Result<Self, DriverError> {
        let socket = socket().map_err(|errno| refused("a netlink socket", errno))?;
        let mut driver = Self { socket, family: 0, sequence: 0 };
        let heard = driver.ask(&Ask::Family, "looking for it").map_err(|error| match error {
            DriverError::Refused { errno: Errno::NOENT, .. } => DriverError::NoDriver,
            other => other,
        })?;
        driver.family = heard.family().ok_or_else(|| DriverError::Answer("a family without a number".into()))?;
        Ok(driver)
    }

    fn ask(&mut self, ask: &Ask<'_>, what: &str) -> Result<Heard, DriverError> {
        self.sequence += 1;
        let failed = |errno| refused(what, errno);
        send(&self.socket, &encode(ask, self.family, self.sequence), SendFlags::empty()).map_err(failed)?;
        let mut heard = Heard::default();
        let mut buffer = vec![0; ANSWER_BYTES];
        loop {
            let (_, length) = recv(&self.socket, &mut buffer[..], RecvFlags::empty()).map_err(failed)?;
            let bytes = buffer.get(..length).ok_or_else(|| DriverError::Answer(format!("{length} bytes")))?;
            decode(bytes, self.sequence, &mut heard).map_err(DriverError::Answer)?;
            match heard.end {
                None => {}
                Some(0) => return Ok(heard),
                Some(errno) => return Err(failed(Errno::from_raw_os_error(errno))),
            }
        }
    }

    /// Makes a device. Returns its number, which the kernel chooses.
    pub(super) fn connect(&mut self, plan: Connect<'_>) -> Result<u32, DriverError> {
        let what = format!("connecting {}", plan.backend);
        let one = plan.sockets.len() == 1;
        let heard = self.ask(&Ask::Connect(plan), &what)?;
        let index = heard.index().ok_or_else(|| DriverError::Answer("a device without a number".into()))?;
        if one {
            // With several sockets, this timer would end a living one whose requests only wait.
            let timer = sys(index).join("queue/io_timeout");
            if let Err(error) = std::fs::write(&timer, REQUEST_TIMER.as_millis().to_string()) {
                tracing::warn!(path = %timer.display(), %error, "if this process dies, requests wait for 30 s, not 5");
            }
        }
        Ok(index)
    }

    /// Gives a device new sockets.
    pub(super) fn reconfigure(&mut self, index: u32, backend: &str, sockets: &[u32]) -> Result<(), DriverError> {
        self.ask(&Ask::Reconfigure { index, backend, sockets }, &format!("new sockets for nbd{index}")).map(drop)
    }

    /// Tells a device its new size, and checks that it has it. From Linux 6.9 on this waits for all requests on their
    /// way to the device.
    pub(super) fn resize(&mut self, index: u32, backend: &str, size: u64) -> Result<(), DriverError> {
        self.ask(&Ask::Resize { index, backend, size }, &format!("{size} bytes for nbd{index}"))?;
        let found = device_bytes(index);
        if found == size {
            return Ok(());
        }
        Err(DriverError::Answer(format!("nbd{index}: found {found} bytes, expected {size}")))
    }

    /// Takes the sockets of a device away.
    pub(super) fn disconnect(&mut self, index: u32) -> Result<(), DriverError> {
        self.ask(&Ask::Disconnect { index }, &format!("disconnecting nbd{index}")).map(drop)
    }
}

fn sys(index: u32) -> PathBuf {
    Path::new(SYS).join(format!("nbd{index}"))
}

/// The node of a device.
pub(super) fn node(index: u32) -> String {
    format!("/dev/nbd{index}")
}

/// Size of a device in bytes; 0 if there is no device, or its size is not known.
pub(super) fn device_bytes(index: u32) -> u64 {
    bytes_below(Path::new(SYS), &format!("nbd{index}")).ok().flatten().unwrap_or(0)
}

fn bytes_below(sys: &Path, name: &str) -> Result<Option<u64>, DriverError> {
    let path = sys.join(name).join("size");
    let Some(text) = shown(path.clone(), |path| std::fs::read_to_string(path))? else { return Ok(None) };
    match text.trim().parse::<u64>() {
        Ok(sectors) => Ok(Some(sectors.saturating_mul(SYS_SECTOR_BYTES))),
        Err(_) => {
            let what = format!("found {text:?}, expected a number of sectors");
            Err(DriverError::Unread { path, source: std::io::Error::new(std::io::ErrorKind::InvalidData, what) })
        }
    }
}

/// Reads something of sysfs; `None` if it does not exist.
fn shown<T>(path: PathBuf, read: impl FnOnce(&Path) -> std::io::Result<T>) -> Result<Option<T>, DriverError> {
    match read(&path) {
        Ok(found) => Ok(Some(found)),
        // NODEV: the device goes away while it is read.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => Ok(None),
        Err(source) => Err(DriverError::Unread { path, source }),
    }
}

/// A device that is connected, or still held open since it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// N of /dev/nbdN.
    pub(super) index: u32,
    /// The name that it was connected with.
    pub(super) backend: String,
    /// Its size in bytes; 0 once it was disconnected.
    pub(super) size: u64,
}

/// The devices that sysfs shows with a backend.
///
/// # Errors
/// [`DriverError::Unread`]: there may be devices that cannot be seen.
pub(super) fn found() -> Result<Vec<Found>, DriverError> {
    found_below(Path::new(SYS))
}

fn found_below(sys: &Path) -> Result<Vec<Found>, DriverError> {
    let mut found = Vec::new();
    let Some(entries) = shown(sys.to_path_buf(), |path| std::fs::read_dir(path))? else { return Ok(found) };
    for entry in entries {
        let entry = entry.map_err(|source| DriverError::Unread { path: sys.to_path_buf(), source })?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let Some(index) = name.strip_prefix("nbd").and_then(|index| index.parse().ok()) else { continue };
        let backend = shown(sys.join(&name).join("backend"), |path| std::fs::read_to_string(path))?;
        if let (Some(backend), Some(size)) = (backend, bytes_below(sys, &name)?) {
            found.push(Found { index, backend: backend.trim_end().to_string(), size });
        }
    }
    found.sort_by_key(|found| found.index);
    Ok(found)
}

/// Whether sysfs shows the name that a device was connected with. Older kernels do not store it.
pub(super) fn shows_backend(index: u32) -> Result<(), DriverError> {
    let path = sys(index).join("backend");
    if path.exists() { Ok(()) } else { Err(DriverError::TooOld { path }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_found_by_what_they_were_connected_with() {
        let dir = tempfile::tempdir().unwrap();
        for (name, backend, size) in [
            ("nbd10", Some("holdfast /run/a/vol1\n"), "2048\n"),
            ("nbd2", Some("holdfast /run/a/vol2\n"), "0\n"),
            ("nbd3", None, "0\n"),
            ("loop0", Some("x"), "8\n"),
        ] {
            let path = dir.path().join(name);
            std::fs::create_dir(&path).unwrap();
            std::fs::write(path.join("size"), size).unwrap();
            if let Some(backend) = backend {
                std::fs::write(path.join("backend"), backend).unwrap();
            }
        }
        let found = found_below(dir.path()).unwrap();
        let shown: Vec<_> = found.iter().map(|f| (f.index, f.backend.as_str(), f.size)).collect();
        assert_eq!(shown, [(2, "holdfast /run/a/vol2", 0), (10, "holdfast /run/a/vol1", 1 << 20)]);
        assert!(found_below(&dir.path().join("nothing")).unwrap().is_empty());
        // An entry that cannot be read may be a device.
        std::fs::create_dir(dir.path().join("nbd3/backend")).unwrap();
        let error = found_below(dir.path()).unwrap_err().to_string();
        assert!(error.contains("nbd3/backend"), "{error}");
        assert!(found_below(&dir.path().join("nbd2/size")).is_err(), "no directory");
    }

    #[test]
    fn a_device_of_unknown_size_is_not_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nbd4");
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("backend"), "holdfast /run/a/vol1\n").unwrap();
        assert!(found_below(dir.path()).unwrap().is_empty(), "it goes away while it is looked at");
        std::fs::write(path.join("size"), "many\n").unwrap();
        let error = found_below(dir.path()).unwrap_err().to_string();
        assert!(error.contains("nbd4/size") && error.contains("expected a number of sectors"), "{error}");
        std::fs::remove_file(path.join("size")).unwrap();
        std::fs::create_dir(path.join("size")).unwrap();
        assert!(found_below(dir.path()).is_err(), "it cannot be read");
    }

    #[test]
    fn what_is_missing_is_said_with_what_to_do() {
        assert!(refused("x", Errno::PERM).to_string().contains("CAP_SYS_ADMIN"));
        assert!(DriverError::NoDriver.to_string().contains("modprobe nbd"));
        assert!(refused("new sockets for nbd3", Errno::INVAL).to_string().contains("nbd3"));
    }

    /// Where the kernel has the driver this only shows that it is found.
    #[test]
    fn without_a_driver_that_is_what_is_said() {
        match Driver::open() {
            Ok(driver) => assert!(driver.family >= 16),
            Err(error) => assert!(matches!(error, DriverError::NoDriver), "{error}"),
        }
    }
}
