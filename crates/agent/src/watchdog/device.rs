//! The kernel's watchdog device (`/dev/watchdog`): open, set the timeout, feed, close. Decides nothing.

// Two questions and one word to the kernel by ioctl, of whose arguments the types are the kernel's (linux/watchdog.h).
// Nothing else here is unsafe.
#![expect(unsafe_code, reason = "ioctl takes it")]

use rustix::ioctl::{Getter, Opcode, Updater, ioctl, opcode};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The group letter of its ioctls.
const W: u8 = b'W';

/// WDIOC_GETSUPPORT.
const GET_SUPPORT: Opcode = opcode::read::<Info>(W, 0);

/// WDIOC_SETTIMEOUT. Returns the timeout that the device now has.
const SET_TIMEOUT: Opcode = opcode::read_write::<i32>(W, 6);

/// WDIOC_GETTIMEOUT.
const GET_TIMEOUT: Opcode = opcode::read::<i32>(W, 7);

/// WDIOF_SETTIMEOUT.
const CAN_SET_TIMEOUT: u32 = 0x0080;

/// WDIOF_MAGICCLOSE.
const CAN_LET_GO: u32 = 0x0100;

/// `struct watchdog_info`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Info {
    options: u32,
    _firmware: u32,
    identity: [u8; 32],
}

/// An open watchdog: it counts down. If dropped without [`Dog::let_go`] it continues to count, as when its process
/// dies.
pub trait Dog {
    /// Sets the number of seconds without a feed after which it resets the machine. Returns the number that the device
    /// took.
    ///
    /// # Errors
    /// The kernel's error.
    fn set_timeout(&mut self, seconds: u32) -> Result<u32, String>;
    /// Feeds it: the count begins again.
    ///
    /// # Errors
    /// The kernel refused it.
    fn feed(&mut self) -> Result<(), String>;
    /// Ends the count, and closes it.
    ///
    /// # Errors
    /// It may still count.
    fn let_go(self: Box<Self>) -> Result<(), String>;
}

/// Source of a watchdog.
pub trait Kennel {
    /// Opens it, which begins the count.
    ///
    /// # Errors
    /// There is none, another program has it, or it is of no use: it cannot be stopped, or its timeout cannot be set.
    /// Then nothing counts down.
    fn open(&self) -> Result<Box<dyn Dog>, String>;
}

/// The kernel's device at this path.
#[derive(Debug)]
pub struct Device(pub PathBuf);

#[derive(Debug)]
struct Opened {
    file: File,
    path: PathBuf,
}

/// Its name in sysfs. `/dev/watchdog` is the first of the numbered devices; a link made by udev is followed to its
/// target.
fn name_of(path: &Path) -> Option<String> {
    let real = path.canonicalize().ok()?;
    let name = real.file_name()?.to_str()?;
    Some(if name == "watchdog" { "watchdog0" } else { name }.to_string())
}

/// Its attribute in sysfs.
fn says(path: &Path, what: &str) -> Option<String> {
    let name = name_of(path)?;
    let text = std::fs::read_to_string(Path::new("/sys/class/watchdog").join(name).join(what)).ok()?;
    Some(text.trim().to_string())
}

/// The error for a device that cannot be stopped once open.
fn no_way_out(path: &Path) -> Result<(), String> {
    if says(path, "nowayout").as_deref() == Some("1") {
        return Err(format!(
            "{}: found nowayout=1, expected a watchdog that can be released: load its module with nowayout=0, or set watchdog.mode to \"off\"",
            path.display()
        ));
    }
    Ok(())
}

fn not_opened(path: &Path, error: &std::io::Error) -> String {
    format!(
        "{}: {error}: is there one (`modprobe softdog`), and does no other program have it (systemd's RuntimeWatchdogSec)?",
        path.display()
    )
}

/// Checks what can be checked without opening it, because opening begins the count. Only opening shows whether another
/// program has it.
///
/// # Errors
/// There is none, or it could not be stopped once open.
pub fn looked_at(path: &Path) -> Result<(), String> {
    std::fs::metadata(path).map_err(|error| not_opened(path, &error))?;
    no_way_out(path)
}

impl Kennel for Device {
    fn open(&self) -> Result<Box<dyn Dog>, String> {
        let path = &self.0;
        // Checked before it counts, because afterwards the count could not be ended.
        no_way_out(path)?;
        let file = OpenOptions::new().write(true).open(path).map_err(|error| not_opened(path, &error))?;
        let dog = Box::new(Opened { file, path: path.clone() });
        // SAFETY: the opcode is the kernel's for a `struct watchdog_info`, which `Info` is.
        let info = unsafe { ioctl(&dog.file, Getter::<GET_SUPPORT, Info>::new()) };
        let info = match info {
            Ok(info) => info,
            Err(error) => {
                let why = format!("{}: WDIOC_GETSUPPORT: {error}: expected a watchdog device", path.display());
                return Err(dog.let_go().err().map_or(why.clone(), |and| format!("{why}; {and}")));
            }
        };
        let name = String::from_utf8_lossy(&info.identity).trim_end_matches('\0').to_string();
        for (option, what) in [(CAN_SET_TIMEOUT, "takes no timeout"), (CAN_LET_GO, "cannot be released")] {
            if info.options & option == 0 {
                let why = format!("{}: {name} {what}: set watchdog.mode to \"off\"", path.display());
                return Err(dog.let_go().err().map_or(why.clone(), |and| format!("{why}; {and}")));
            }
        }
        Ok(dog)
    }
}

impl Dog for Opened {
    fn set_timeout(&mut self, seconds: u32) -> Result<u32, String> {
        let failed =
            |what: &str, error: rustix::io::Errno| format!("{}: {what} to {seconds} s: {error}", self.path.display());
        let mut value = i32::try_from(seconds).unwrap_or(i32::MAX);
        // SAFETY: the opcode is the kernel's for an int that it reads and writes.
        let set = unsafe { ioctl(&self.file, Updater::<SET_TIMEOUT, i32>::new(&mut value)) };
        set.map_err(|error| failed("WDIOC_SETTIMEOUT", error))?;
        // SAFETY: the opcode is the kernel's for an int that it writes.
        let got = unsafe { ioctl(&self.file, Getter::<GET_TIMEOUT, i32>::new()) };
        let got = got.map_err(|error| failed("WDIOC_GETTIMEOUT after setting it", error))?;
        u32::try_from(got).map_err(|_| format!("{}: found a timeout of {got} s", self.path.display()))
    }

    fn feed(&mut self) -> Result<(), String> {
        self.file.write_all(b"1").map_err(|error| format!("{}: {error}", self.path.display()))
    }

    fn let_go(mut self: Box<Self>) -> Result<(), String> {
        // The magic letter: the kernel's watchdog stops counting once it is closed.
        self.file.write_all(b"V").map_err(|error| format!("{}: it still counts: {error}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device with nowayout, taken for one without, would reset the machine after it is closed.
    #[test]
    fn a_link_to_a_device_is_that_device() {
        let dir = tempfile::tempdir().unwrap();
        for (device, link, name) in [("watchdog1", "hardware", "watchdog1"), ("watchdog", "first", "watchdog0")] {
            let (device, link) = (dir.path().join(device), dir.path().join(link));
            std::fs::write(&device, "").unwrap();
            std::os::unix::fs::symlink(&device, &link).unwrap();
            assert_eq!([name_of(&device), name_of(&link)], [Some(name.to_string()), Some(name.to_string())]);
        }
    }
}
