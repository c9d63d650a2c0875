//! Errors of reading, writing and opening a journal.

use holdfast_seal::KeyFingerprint;
use std::io;

/// A record, batch or header that was synced and cannot be read back as written (R9).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("journal file {file} at byte {offset}: found {found}, expected {expected}")]
pub struct CorruptRecord {
    /// Name of the file inside the journal's folder.
    pub file: String,
    /// Offset of the bad bytes, or of their record.
    pub offset: u64,
    /// Expected content.
    pub expected: String,
    /// Found content.
    pub found: String,
}

/// A read of an entry failed.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The entry is not there any more.
    #[error("index {index}: purged up to {purged}")]
    Purged {
        /// The requested index.
        index: u64,
        /// The last index that was purged.
        purged: u64,
    },
    /// The entry is not there (yet), or was truncated.
    #[error("index {index}: not in the log, next is {next}")]
    Missing {
        /// The requested index.
        index: u64,
        /// The index after the last.
        next: u64,
    },
    /// The range asked for lies outside the payload.
    #[error("index {index}: bytes {offset}..{end} asked of a payload of {len} bytes", end = *offset as u64 + *wanted as u64)]
    OutOfBounds {
        /// The requested index.
        index: u64,
        /// First byte asked for.
        offset: u32,
        /// Bytes asked for.
        wanted: usize,
        /// The payload's length in bytes.
        len: usize,
    },
    /// R9: found, never served.
    #[error(transparent)]
    Corrupt(#[from] CorruptRecord),
    /// The disk refused.
    #[error("journal read: {0}")]
    Io(#[from] io::Error),
}

/// A batch could not be made durable.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// No further file can be created now: the disk is full, or the system has no file descriptor or memory left. The
    /// rest was not written; it may be retried.
    #[error("cannot begin another journal file: {0}")]
    NoRoom(#[source] io::Error),
    /// JOURNAL-J2: a write, a sync or the creation of a file failed, now or earlier. Nothing more becomes durable in
    /// this process.
    #[error("journal file {file}: {what}: {source}")]
    Failed {
        /// File that was written.
        file: String,
        /// The failed operation.
        what: &'static str,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// JOURNAL-J2: an earlier write failed.
    #[error("the journal failed earlier")]
    FailedEarlier,
    /// The record does not fit into a file.
    #[error("record of {found} bytes, expected {max} at most")]
    TooLarge {
        /// Bytes of the record.
        found: usize,
        /// Bytes that fit.
        max: usize,
    },
}

/// `ENFILE` and `EMFILE`: the system or the process has no file descriptor left. [`io::ErrorKind`] names neither.
const NO_DESCRIPTOR: [i32; 2] = [23, 24];

/// Whether the disk has no room, or its user no more of it.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

impl WriteError {
    /// A file could not be created. Nothing of it is left ([`crate::Disk::create`]), so a lack that passes is waited
    /// for. Any other error says that the disk fails: to wait for its end would hold up all writes for ever, and no
    /// other gateway would take over (JOURNAL-J2).
    pub(crate) fn of_create(file: &str, error: io::Error) -> Self {
        let lacks = matches!(error.kind(), io::ErrorKind::OutOfMemory | io::ErrorKind::Interrupted)
            || error.raw_os_error().is_some_and(|errno| NO_DESCRIPTOR.contains(&errno));
        match is_full(&error) || lacks {
            true => Self::NoRoom(error),
            false => Self::Failed { file: file.to_string(), what: "create", source: error },
        }
    }
}

/// The files are no journal that this node may use. Damaged records are no such error: see the recovery report.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    /// The disk refused.
    #[error("{what}: {source}")]
    Io {
        /// The failed operation.
        what: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Files of another node's disk.
    #[error("file {file}: found disk uuid {found:032x}, expected {expected:032x}")]
    WrongDisk {
        /// The file.
        file: String,
        /// Uuid in its header.
        found: u128,
        /// This node's.
        expected: u128,
    },
    /// Sealed under another node key, or sealed while no key is given.
    #[error(
        "file {file}: found it sealed under node key {found}, expected {}; give this node the node.key that it was started with",
        .expected.map_or("one that is not sealed".to_string(), |key| format!("node key {key}"))
    )]
    WrongKey {
        /// The file.
        file: String,
        /// Fingerprint in its header.
        found: KeyFingerprint,
        /// Of the key at hand.
        expected: Option<KeyFingerprint>,
    },
    /// In clear, while files are sealed: anybody could have written it (JOURNAL-J10).
    #[error(
        "file {file}: found it in clear, expected it sealed under node key {expected}, because journal.seal is on. If \
         this gateway has run with journal.seal = false before, set journal.read_clear = true until /healthz says that \
         no such file is left. Otherwise somebody has put the file there: stop this gateway, move its data_dir away, \
         start it empty, and join it in place of this member (holdfast gateway replace)"
    )]
    InClear {
        /// The file.
        file: String,
        /// Fingerprint of the key at hand.
        expected: KeyFingerprint,
    },
    /// Written by another version of this program.
    #[error("file {file}: found format version {found}, expected {expected}")]
    Version {
        /// The file.
        file: String,
        /// Its version.
        found: u32,
        /// The version that this program reads.
        expected: u32,
    },
    /// A file size that the format does not support.
    #[error("file size: found {found}, expected {expected}")]
    FileBytes {
        /// The size asked for.
        found: u64,
        /// Allowed sizes.
        expected: String,
    },
    /// The new file could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// A record that has to be rewritten could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}
