//! Settings with which a node's journal is opened.

use holdfast_journal::RecoverError;
use holdfast_types::limits::APPEND_BYTES_MAX;
use std::io;
use std::path::{Path, PathBuf};

/// How batches are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JournalIo {
    /// By the journal's thread.
    #[default]
    Thread,
    /// Small batches by io_uring, from the runtime that the journal is opened on, which MUST have I/O and time, and
    /// MUST be driven until the journal is closed or the runtime has ended. By the thread where that cannot be durable,
    /// or is forbidden, and without a runtime.
    Uring,
    /// As `Uring` where the kernel needs no thread of its own either (ext4), else by the journal's thread.
    Auto,
}

/// Settings of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// Directory of the journal's files; created if missing. It must contain nothing else.
    pub dir: PathBuf,
    /// Size of one file in bytes, 16 MiB to 1 GiB. Larger files are begun less often and freed later.
    pub file_bytes: u64,
    /// Maximum space of the journal on disk, in bytes.
    pub bound_bytes: u64,
    /// Part of the bound that client data must leave free for control entries, in bytes.
    pub reserve_bytes: u64,
    /// Durable entries kept in memory, over all groups, in bytes of payload.
    pub tail_bytes: u64,
    /// How batches are written on a real disk.
    pub io: JournalIo,
}

/// Minimum size of a file: an append of the largest size is one batch, and several of them must fit.
const FILE_BYTES_MIN: u64 = 4 * APPEND_BYTES_MAX as u64;
/// Maximum size of a file: offsets have 32 bits in memory.
const FILE_BYTES_MAX: u64 = 1 << 30;

impl LogConfig {
    /// Defaults for a journal in `dir`: files of 64 MiB, bound 8 GiB, reserve 512 MiB, memory tail 128 MiB, written by
    /// a thread.
    pub fn new(dir: impl AsRef<Path>) -> Self {
        Self {
            dir: dir.as_ref().to_path_buf(),
            file_bytes: 64 << 20,
            bound_bytes: 8 << 30,
            reserve_bytes: 512 << 20,
            tail_bytes: 128 << 20,
            io: JournalIo::default(),
        }
    }

    /// Number of dropped files that are kept for reuse: a quarter of the journal's bound.
    pub(crate) fn ready_files_max(&self) -> usize {
        (self.bound_bytes / self.file_bytes / 4).clamp(2, 64) as usize
    }

    pub(crate) fn validate(&self) -> Result<(), OpenError> {
        let check = |good: bool, what: &'static str, found: u64, expected: String| {
            if good { Ok(()) } else { Err(OpenError::Setting { what, found, expected }) }
        };
        check(
            (FILE_BYTES_MIN..=FILE_BYTES_MAX).contains(&self.file_bytes) && self.file_bytes.is_multiple_of(1 << 20),
            "file_bytes",
            self.file_bytes,
            format!("whole MiB between {FILE_BYTES_MIN} and {FILE_BYTES_MAX}"),
        )?;
        let files = 2 * self.file_bytes;
        check(
            self.reserve_bytes >= files,
            "reserve_bytes",
            self.reserve_bytes,
            format!("two files, {files}, or more"),
        )?;
        let least = self.reserve_bytes + files;
        check(
            self.bound_bytes >= least,
            "bound_bytes",
            self.bound_bytes,
            format!("the reserve and two files, {least}, or more"),
        )
    }
}

/// The owner of a journal; written into each file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The node's disk uuid. Files of another disk are refused, unless either uuid is 0.
    pub disk_uuid: u128,
    /// The node's boot counter, shown by offline checkers.
    pub boot: u64,
}

/// A journal could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A setting is out of its range.
    #[error("journal setting {what}: found {found}, expected {expected}")]
    Setting {
        /// Name of the setting.
        what: &'static str,
        /// Its value.
        found: u64,
        /// The expected values.
        expected: String,
    },
    /// Another process has the folder open.
    #[error("journal folder {dir}: another process holds its lock")]
    Locked {
        /// The folder.
        dir: PathBuf,
    },
    /// The disk returned an error.
    #[error("journal folder {dir}: {source}")]
    Io {
        /// The folder.
        dir: PathBuf,
        /// The error.
        #[source]
        source: io::Error,
    },
    /// The files are not a journal that this node may use.
    #[error("journal: {0}")]
    Recover(#[from] RecoverError),
}
