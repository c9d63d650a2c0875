//! An audit log: one line of JSON for each call of a gateway, or command of an agent, that its door notes.
//!
//! ```text
//!   calls ─▶ try_send ─▶ queue of QUEUE_MAX lines ─▶ thread ─▶ FILE; at its size limit renamed to FILE.1
//! ```
//! No call waits for it. A line that finds the queue full is dropped and counted. A line that cannot be written is lost
//! and counted; the first such error of a series is logged.

use serde::Serialize;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;
use tokio::sync::oneshot;

/// Most lines that wait to be written. A line has about 2 KiB at most, or 4 KiB with stores.
const QUEUE_MAX: usize = 4096;

/// Only the process's own user reads it.
const MODE: u32 = 0o600;

enum Job {
    Line(String),
    /// From here on into this file, which is open already, up to this many bytes.
    MoveTo(PathBuf, u64, (File, u64)),
    /// Answered once all lines before it are written.
    Written(oneshot::Sender<()>),
}

/// Why a line is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// Too many wait to be written.
    Dropped,
    /// It could not be written.
    Unwritten,
}

/// Takes lines. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Audit {
    jobs: SyncSender<Job>,
    /// Counts lost lines.
    lost: fn(Lost),
}

impl Audit {
    /// Opens the file at `path` and starts the thread that writes. At `bytes_max` bytes the file is renamed, and begun
    /// anew. `lost` is called for each line that is lost.
    ///
    /// # Errors
    /// The file cannot be opened or is no regular file: found at the start, not by the lines that are missing later. Or
    /// the thread cannot be started.
    pub fn start(path: &Path, bytes_max: u64, lost: fn(Lost)) -> io::Result<Self> {
        let (jobs, queue) = sync_channel(QUEUE_MAX);
        let path = path.to_path_buf();
        let mut writer = Writer { path, bytes_max, lost, open: None, torn: false, failing: false };
        let opened = writer.open_file();
        writer.open = Some(opened.map_err(|error| of(&writer.path, &error))?);
        std::thread::Builder::new().name("holdfast-audit".to_string()).spawn(move || writer.run(&queue))?;
        Ok(Self { jobs, lost })
    }

    /// Goes on in the file at `path`, which is renamed at `bytes_max` bytes. Lines that were queued before are still
    /// written into the file of now. Opens a file: may block.
    ///
    /// # Errors
    /// As [`Audit::start`], or too many lines wait. Nothing has changed then.
    pub fn move_to(&self, path: &Path, bytes_max: u64) -> io::Result<()> {
        let opened = open(path).map_err(|error| of(path, &error))?;
        let job = Job::MoveTo(path.to_path_buf(), bytes_max, opened);
        self.jobs.try_send(job).map_err(|_| io::Error::other("too many lines wait to be written"))
    }

    /// Queues one line. Never waits.
    pub fn write(&self, record: &impl Serialize) {
        let line = match serde_json::to_string(record) {
            Ok(line) => line + "\n",
            Err(error) => {
                tracing::error!(%error, "a line of the audit log cannot be written as JSON");
                return (self.lost)(Lost::Unwritten);
            }
        };
        if self.jobs.try_send(Job::Line(line)).is_err() {
            (self.lost)(Lost::Dropped);
        }
    }

    /// Waits until the lines so far are written, for at most `limit`. Returns whether they are.
    pub async fn written(&self, limit: Duration) -> bool {
        let (tell, told) = oneshot::channel();
        if self.jobs.try_send(Job::Written(tell)).is_err() {
            return false;
        }
        matches!(tokio::time::timeout(limit, told).await, Ok(Ok(())))
    }
}

struct Writer {
    path: PathBuf,
    bytes_max: u64,
    lost: fn(Lost),
    /// The file and its length.
    open: Option<(File, u64)>,
    /// The last line may have been written in part.
    torn: bool,
    /// The last line failed, and that was logged.
    failing: bool,
}

impl Writer {
    /// Until the last [`Audit`] is gone.
    fn run(mut self, queue: &Receiver<Job>) {
        for job in queue {
            match job {
                Job::Line(line) => self.take(&line),
                Job::MoveTo(path, bytes_max, (file, bytes)) => self.go_on_in(path, bytes_max, file, bytes),
                Job::Written(tell) => {
                    // Whoever asked may not wait any more.
                    let _ = tell.send(());
                }
            }
        }
    }

    fn go_on_in(&mut self, path: PathBuf, bytes_max: u64, file: File, bytes: u64) {
        if path == self.path {
            // It may have been renamed since it was opened.
            self.bytes_max = bytes_max;
            return;
        }
        (self.path, self.bytes_max) = (path, bytes_max);
        // If its end cannot be read, the next line looks again.
        self.open = self.whole_lines(file, bytes).ok();
    }

    fn take(&mut self, line: &str) {
        let failing = match self.write(line) {
            Ok(()) => false,
            Err(error) => {
                (self.lost)(Lost::Unwritten);
                if !self.failing {
                    let file = self.path.display();
                    tracing::error!(%file, %error, "the audit log cannot be written: lines are lost until it can");
                }
                true
            }
        };
        if self.failing && !failing {
            tracing::info!(file = %self.path.display(), "the audit log is written again");
        }
        self.failing = failing;
    }

    /// Leaves the file closed after an error, so that the next line opens it anew.
    fn write(&mut self, line: &str) -> io::Result<()> {
        let (mut file, mut bytes) = match self.open.take() {
            Some(open) => open,
            None => self.open_file()?,
        };
        let needs = line.len() as u64;
        if bytes > 0 && bytes.saturating_add(needs) > self.bytes_max {
            let mut older = self.path.clone().into_os_string();
            older.push(".1");
            std::fs::rename(&self.path, older)?;
            (file, bytes) = self.open_file()?;
        }
        if self.torn && bytes > 0 {
            file.write_all(b"\n")?;
            bytes += 1;
        }
        self.torn = true;
        file.write_all(line.as_bytes())?;
        self.torn = false;
        self.open = Some((file, bytes + needs));
        Ok(())
    }

    /// The file and its length. A process that died may have left its last line without an end.
    fn open_file(&mut self) -> io::Result<(File, u64)> {
        let (file, bytes) = open(&self.path)?;
        self.whole_lines(file, bytes)
    }

    /// Notes whether the last line of the file has its end.
    fn whole_lines(&mut self, file: File, bytes: u64) -> io::Result<(File, u64)> {
        let mut last = *b"\n";
        if bytes > 0 {
            file.read_exact_at(&mut last, bytes - 1)?;
        }
        self.torn = last != *b"\n";
        Ok((file, bytes))
    }
}

/// Whether a log can be written at `path`. Makes the file, as [`Audit::move_to`] would. May block.
///
/// # Errors
/// As [`Audit::move_to`].
pub fn can_be_at(path: &Path) -> io::Result<()> {
    open(path).map(drop).map_err(|error| of(path, &error))
}

/// An error that names its file.
fn of(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn open(path: &Path) -> io::Result<(File, u64)> {
    // Before it is opened: that of a pipe waits for a reader, and the mode of a device is not ours to change.
    match std::fs::metadata(path) {
        Ok(found) if !found.is_file() => return Err(io::Error::other("expected a regular file, or none yet")),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(_) | Err(_) => {}
    }
    let file = OpenOptions::new().read(true).append(true).create(true).mode(MODE).open(path)?;
    let found = file.metadata()?;
    if found.permissions().mode() & 0o777 != MODE {
        file.set_permissions(Permissions::from_mode(MODE))?;
    }
    Ok((file, found.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    const PATIENCE: Duration = Duration::from_secs(60);

    fn audit(path: &Path, rotate: u64) -> Audit {
        Audit::start(path, rotate, |_| {}).expect("a file and a thread")
    }

    fn lines(path: &Path) -> Vec<String> {
        std::fs::read_to_string(path).unwrap_or_default().lines().map(str::to_string).collect()
    }

    #[tokio::test]
    async fn lines_are_kept_in_a_file_of_ones_own_and_one_before_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("audit.log");
        std::fs::write(&path, "{}\n").expect("written");
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("chmod");
        let audit = audit(&path, 9);
        // Three bytes each, as the line that is there.
        for n in [10, 20, 30, 40, 50] {
            audit.write(&n);
        }
        assert!(audit.written(PATIENCE).await);
        let older = dir.path().join("audit.log.1");
        assert_eq!(lines(&path), ["30", "40", "50"]);
        assert_eq!(lines(&older), ["{}", "10", "20"]);
        for file in [&path, &older] {
            let mode = std::fs::metadata(file).expect("a file").permissions().mode() & 0o777;
            assert_eq!(mode, 0o600, "{}", file.display());
        }
        audit.write(&60);
        assert!(audit.written(PATIENCE).await);
        assert_eq!((lines(&path), lines(&older)), (vec!["60".into()], vec!["30".into(), "40".into(), "50".into()]));
    }

    #[tokio::test]
    async fn it_goes_on_in_another_file_and_loses_no_line() {
        let dir = tempfile::tempdir().expect("a directory");
        let (first, second) = (dir.path().join("a.log"), dir.path().join("b.log"));
        let audit = audit(&first, 100);
        audit.write(&10);
        audit.move_to(&second, 6).expect("a file");
        for n in [20, 30, 40] {
            audit.write(&n);
        }
        assert!(audit.written(PATIENCE).await);
        assert_eq!((lines(&first), lines(&second)), (vec!["10".into()], vec!["40".into()]), "its own limit, too");
        assert_eq!(lines(&dir.path().join("b.log.1")), ["20", "30"]);
        // A place that cannot be written to changes nothing.
        let none = dir.path().join("none/c.log");
        let why = audit.move_to(&none, 100).expect_err("no directory").to_string();
        assert!(why.starts_with(&none.display().to_string()), "{why}");
        audit.write(&50);
        assert!(audit.written(PATIENCE).await);
        assert_eq!(lines(&second), ["40", "50"]);
    }

    #[tokio::test]
    async fn an_error_loses_lines_and_ends() {
        let dir = tempfile::tempdir().expect("a directory");
        let within = dir.path().join("within");
        std::fs::create_dir(&within).expect("made");
        let path = within.join("audit.log");
        static UNWRITTEN: AtomicU32 = AtomicU32::new(0);
        let lost = |why: Lost| {
            assert_eq!(why, Lost::Unwritten);
            UNWRITTEN.fetch_add(1, Ordering::Relaxed);
        };
        let audit = Audit::start(&path, 9, lost).expect("a file and a thread");
        audit.write(&"first");
        assert!(audit.written(PATIENCE).await);
        std::fs::remove_dir_all(&within).expect("removed");
        // There is no room for it in the file that is open.
        audit.write(&"lost");
        assert!(audit.written(PATIENCE).await, "nobody waits for a file that cannot be written");
        std::fs::create_dir(&within).expect("made");
        audit.write(&"kept");
        assert!(audit.written(PATIENCE).await);
        assert_eq!(lines(&path), ["\"kept\""]);
        assert_eq!(UNWRITTEN.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_file_that_cannot_be_written_is_found_at_the_start() {
        let dir = tempfile::tempdir().expect("a directory");
        let told =
            |path: &Path| Audit::start(path, 1 << 20, |_| {}).map(drop).expect_err("it cannot be written").to_string();
        let missing = dir.path().join("missing").join("audit.log");
        let why = told(&missing);
        assert!(why.starts_with(&missing.display().to_string()), "{why}");
        for path in [dir.path(), Path::new("/dev/null")] {
            let why = told(path);
            assert!(why.contains("expected a regular file"), "{why}");
        }
    }

    #[tokio::test]
    async fn a_line_that_was_cut_by_the_end_of_a_process_is_ended() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("audit.log");
        std::fs::write(&path, "{}\n{\"method\":").expect("written");
        let audit = audit(&path, 1 << 20);
        audit.write(&1);
        audit.write(&2);
        assert!(audit.written(PATIENCE).await);
        assert_eq!(lines(&path), ["{}", "{\"method\":", "1", "2"]);
    }

    #[tokio::test]
    async fn a_full_queue_drops_lines_and_keeps_nobody_waiting() {
        let (jobs, queue) = sync_channel(2);
        static DROPPED: AtomicU32 = AtomicU32::new(0);
        let lost = |why: Lost| {
            assert_eq!(why, Lost::Dropped);
            DROPPED.fetch_add(1, Ordering::Relaxed);
        };
        let audit = Audit { jobs, lost };
        for n in 0..5 {
            audit.write(&n);
        }
        assert!(!audit.written(PATIENCE).await, "there is no room for the question either");
        drop(audit);
        assert_eq!((queue.into_iter().count(), DROPPED.load(Ordering::Relaxed)), (2, 3));
    }
}
