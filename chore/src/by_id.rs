//! Any process by its id: signals to it, and what `/proc` says of it.

use crate::ends;
pub use rustix::process::Signal;

/// Sends SIGKILL to the rest of a process group whose leader was one of our processes.
pub fn kill_group(first: u32) {
    ends::expect(first);
    if let Some(pid) = i32::try_from(first).ok().and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process_group(pid, Signal::KILL);
    }
}

/// Sends a signal to a process that we started. It is no error if the process has ended.
pub fn signal(pid: u32, what: Signal) {
    if ![Signal::STOP, Signal::CONT].contains(&what) {
        ends::expect(pid);
    }
    if let Some(pid) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, what);
    }
}

fn stat_field(pid: u32, field: usize) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in brackets and may contain spaces: count from the bracket on.
    let (_, rest) = text.rsplit_once(')')?;
    rest.split_whitespace().nth(field.checked_sub(3)?).map(str::to_owned)
}

/// When a process started, in clock ticks since boot. Together with the pid this identifies a process.
pub fn start_of(pid: u32) -> Option<u64> {
    stat_field(pid, 22)?.parse().ok()
}

/// The parent process: the one that started it, or that adopted it later.
pub fn parent_of(pid: u32) -> Option<u32> {
    stat_field(pid, 4)?.parse().ok()
}

/// Whether it has ended and only waits for its parent to collect its status. If its first thread has ended while others
/// still hold files and ports, it has not ended.
pub fn is_zombie(pid: u32) -> bool {
    let threads = || std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    stat_field(pid, 3).is_some_and(|s| s == "Z") && threads() <= 1
}

/// Whether all its threads are stopped, so that it receives nothing more.
pub fn is_stopped(pid: u32) -> bool {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    let ids = tasks.filter_map(|t| t.ok()?.file_name().to_str()?.parse::<u32>().ok());
    ids.map(|id| stat_field(id, 3)).all(|state| state.is_some_and(|s| s == "T"))
}

/// Whether it exists and has not ended.
pub fn is_alive(pid: u32) -> bool {
    start_of(pid).is_some() && !is_zombie(pid)
}

/// Its peak resident memory in bytes.
pub fn peak_resident_bytes(pid: u32) -> Option<u64> {
    status_bytes(pid, "VmHWM:")
}

/// Its resident memory in bytes.
pub fn resident_bytes(pid: u32) -> Option<u64> {
    status_bytes(pid, "VmRSS:")
}

fn status_bytes(pid: u32, field: &str) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find(|l| l.starts_with(field))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
}

/// Processor time that all its threads have used, in seconds.
pub fn processor_seconds(pid: u32) -> Option<f64> {
    let ticks = |field| stat_field(pid, field)?.parse::<u32>().ok();
    // The kernel reports hundredths of a second, whatever its internal clock.
    Some(f64::from(ticks(14)? + ticks(15)?) / 100.0)
}
