//! Writes lines to the end of a file: at once, or on a thread of its own, so that nobody waits for a disk.

use holdfast_types::sync::LockExt;
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Maximum number of lines in memory, of those that wait for the disk, and in the file after the next start: enough for
/// years of failovers.
pub const LINES_MAX: usize = 2000;

/// See the module. The thread ends with it, once it has tried to write every line.
#[derive(Debug)]
pub struct Writer {
    shared: Arc<Shared>,
    /// A thread writes.
    beside: bool,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    queue: Mutex<Queue>,
    /// The queue is another one.
    changed: Condvar,
    /// Locked while the disk is waited for. The queue is not.
    disk: Mutex<Disk>,
}

/// Lines that are not in the file.
#[derive(Debug, Default)]
struct Queue {
    lines: VecDeque<String>,
    /// Number of lines that were ever added, and one more if the file is to be written anew.
    added: u64,
    /// So many of these were in a try to write.
    tried: u64,
    /// No more will come.
    closed: bool,
}

#[derive(Debug)]
struct Disk {
    /// `None`: it could not be opened, or not be written to, or it was replaced.
    file: Option<File>,
    /// The file may end within a line.
    torn: bool,
    /// What the file becomes before anything follows.
    anew: Option<String>,
}

impl Disk {
    /// Writes the file anew, if it has to be. A full disk does not matter: then the file stays as it is, and new lines
    /// follow.
    fn renew(&mut self, path: &Path) {
        let Some(text) = self.anew.take() else { return };
        match replace(path, &text) {
            Ok(()) => (self.file, self.torn) = (None, false),
            Err(error) => {
                self.torn = true;
                tracing::warn!(path = %path.display(), %error, "cannot compact the history: it is long, or a line cannot be read");
            }
        }
    }

    /// Appends these lines. Afterwards they are in the file, or there is no file.
    fn append(&mut self, path: &Path, lines: &[String]) -> io::Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        let mut file = match self.file.take() {
            Some(file) => file,
            None => appending(path)?,
        };
        let mut text = if self.torn { "\n".to_string() } else { String::new() };
        for line in lines {
            text.push_str(line);
            text.push('\n');
        }
        self.torn = true;
        file.write_all(text.as_bytes())?;
        self.torn = false;
        let synced = file.sync_data();
        self.file = Some(file);
        synced
    }
}

impl Shared {
    /// Writes all lines of the queue. Those that the disk does not take stay in it.
    fn write(&self) {
        let mut disk = self.disk.locked();
        let (lines, added) = {
            let queue = self.queue.locked();
            (queue.lines.iter().cloned().collect::<Vec<_>>(), queue.added)
        };
        disk.renew(&self.path);
        let done = disk.append(&self.path, &lines);
        let wrote = disk.file.is_some();
        drop(disk);
        if let Err(error) = done {
            tracing::error!(
                path = %self.path.display(),
                %error,
                "a line of the history cannot be written and is kept in memory: make room in this directory, or make it writable"
            );
        }
        let mut queue = self.queue.locked();
        if wrote {
            let later = usize::try_from(queue.added - added).unwrap_or(usize::MAX);
            let written = queue.lines.len().saturating_sub(later);
            queue.lines.drain(..written);
        }
        queue.tried = added;
        self.changed.notify_all();
    }

    /// Writes whatever comes, until no more can come.
    fn write_on(&self) {
        loop {
            let queue = self.queue.locked();
            let idle = |queue: &mut Queue| queue.tried == queue.added && !queue.closed;
            let queue = self.changed.wait_while(queue, idle).unwrap_or_else(PoisonError::into_inner);
            if queue.tried == queue.added {
                return;
            }
            drop(queue);
            self.write();
        }
    }
}

/// The file, opened for appending.
pub(super) fn appending(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

/// To a new file, which is renamed: nothing is lost if the agent ends meanwhile.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file = File::create(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&new, path)
}

impl Writer {
    /// Writes to the end of this file, at once. Without a file each line tries to open it, and it may end within a
    /// line. `anew`: what the file becomes with the first write.
    pub(super) fn new(path: PathBuf, file: Option<File>, anew: Option<String>) -> Self {
        let queue = Mutex::new(Queue { added: u64::from(anew.is_some()), ..Queue::default() });
        let disk = Mutex::new(Disk { torn: file.is_none(), file, anew });
        let shared = Shared { path, queue, changed: Condvar::new(), disk };
        Self { shared: Arc::new(shared), beside: false }
    }

    /// Writes what waits, without the thread.
    pub(super) fn write(&self) {
        self.shared.write();
    }

    /// From now on a thread writes.
    pub(super) fn beside(mut self) -> Self {
        let shared = self.shared.clone();
        match std::thread::Builder::new().name("history".into()).spawn(move || shared.write_on()) {
            Ok(_) => self.beside = true,
            Err(error) => {
                tracing::error!(%error, "cannot start the history thread; the agent writes it itself");
                self.write();
            }
        }
        self
    }

    /// Adds a line. If a thread writes, this waits for no disk.
    pub(super) fn add(&self, line: String) {
        let mut queue = self.shared.queue.locked();
        queue.lines.push_back(line);
        let oldest = queue.lines.len().saturating_sub(LINES_MAX);
        queue.lines.drain(..oldest);
        queue.added += 1;
        drop(queue);
        if self.beside {
            self.shared.changed.notify_all();
        } else {
            self.shared.write();
        }
    }

    /// Waits until it was tried to write every line, for at most `limit`. Says whether it was. Blocks.
    pub fn settled(&self, limit: Duration) -> bool {
        let queue = self.shared.queue.locked();
        let waited = self.shared.changed.wait_timeout_while(queue, limit, |queue| queue.tried != queue.added);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.queue.locked().closed = true;
        self.shared.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    /// The agent's task adds lines, and must give signs of life while a backup keeps the disk busy.
    #[test]
    fn nobody_waits_for_a_disk_that_hangs() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lines");
        let writer = Arc::new(Writer::new(path.clone(), Some(appending(&path).unwrap()), None).beside());
        let hangs = writer.shared.disk.lock().unwrap();
        let (adds, added) = std::sync::mpsc::channel();
        let there = writer.clone();
        std::thread::spawn(move || {
            for line in ["one", "two"] {
                there.add(line.into());
            }
            adds.send(())
        });
        added.recv_timeout(LIMIT).expect("lines are taken meanwhile");
        assert!(!writer.settled(Duration::ZERO));
        drop(hangs);
        assert!(writer.settled(LIMIT));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\ntwo\n");
    }

    /// Of too many lines the newest are kept, each of them once.
    #[test]
    fn the_queue_has_a_bound() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lines");
        // A directory cannot be written to.
        std::fs::create_dir(&path).unwrap();
        let writer = Writer::new(path.clone(), None, None);
        for line in 0..LINES_MAX + 3 {
            writer.add(line.to_string());
        }
        assert_eq!(writer.shared.queue.lock().unwrap().lines.len(), LINES_MAX);
        std::fs::remove_dir(&path).unwrap();
        writer.add("last".into());
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
        assert_eq!((lines.len(), lines[0], lines[LINES_MAX - 1]), (LINES_MAX, "4", "last"));
        assert!(writer.settled(Duration::ZERO) && writer.shared.queue.lock().unwrap().lines.is_empty());
    }
}
