//! Journal: the ordered, durable record of everything that a node's Raft groups must not forget.
//!
//! Owns: the file format (header, batch, record), recovery of a set of files, and when files are begun, carried forward
//! and dropped. It is synchronous code over the small [`Disk`] trait, so that a simulated disk can crash it at every
//! byte. Does not own: threads, queues, callbacks, the memory tail, the real disk (crate `log`), nor the meaning of a
//! payload. Depends on `seal` and `types` only.
//!
//! ```text
//!   file n                                         file n+1
//!  | header | batch | batch |idle| batch | unused | header | rewritten tail | batch | ...
//!     4 KiB   each padded to 4 KiB                           one batch, synced before the node is usable
//! ```
//!
//! - **JOURNAL-J1** A batch is written only after every batch before it was synced. Each names the offset that was
//!   synced before it, so a later batch proves an earlier one durable. Only an idle marker, which has no records, waits
//!   for the sync of the batch behind it. So that batch gets an fdatasync, which covers both; any other is written and
//!   synced in one call, which covers nothing else ([`DiskFile::write_synced_at`]). A batch may also be begun and ended
//!   apart ([`Journal::begin`]): until its end nothing else is written.
//! - **JOURNAL-J2** Nothing is reported durable before its batch was synced, and nothing at all after one sync failed.
//! - **JOURNAL-J3** A file gets its name only after its header is durable. A bad header is therefore corruption, never
//!   a torn write.
//! - **JOURNAL-J4** A file is never continued by a later boot: what was read back may never have reached the disk. It
//!   is read once no earlier boot writes to it any more ([`Disk::open`]).
//! - **JOURNAL-J5** Files are dropped oldest first, after their live records were rewritten forward and synced. A
//!   record that ends others (a truncation) is thus never dropped before the records that it ends.
//! - **JOURNAL-J6** A batch counts as a whole: a torn one is cut, all of it.
//! - **JOURNAL-J7** Every read checks the record's header (group, log id, place) and the checksum of each chunk it
//!   returns (R9).
//! - **JOURNAL-J9** In a sealed file payloads are readable with the node's key only (R10): a file's key is drawn from
//!   its uuid, and a place is written once (JOURNAL-J4; a failed write ends everything, JOURNAL-J2), so no nonce is
//!   used twice. The end of a payload that came sealed is stored as it came ([`Sealing::clear_bytes`]). What opens it
//!   is in front of it, which is sealed here and bound to the record's place and id.
//! - **JOURNAL-J10** Where files are sealed, a file in clear is refused, unless the opener says that it may be of the
//!   time before ([`Sealing::reads_clear`]). No tag is asked for in it, so anybody could have written it (R9).
//! - **JOURNAL-J8** While a group is damaged, nothing of it is rewritten and no file is dropped: its damage must be
//!   found again at every start, until the group is dropped and built anew. (In use again, it may also end with the bad
//!   record.)
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod aligned;
mod batch;
mod catalog;
mod disk;
mod error;
mod format;
mod index;
mod item;
mod op;
mod pool;
mod read;
mod recover;
mod replay;
mod scan;
mod write;

pub use aligned::{AlignedBuf, BLOCK_BYTES};
pub use catalog::{Catalog, JournalFile};
pub use disk::{Disk, DiskFile, Ended};
pub use error::{CorruptRecord, ReadError, RecoverError, WriteError, is_full};
pub use format::{FileHeader, HeaderError, PAYLOAD_BYTES_MAX, record_bytes};
pub use holdfast_seal::NodeKey;
pub use index::{GroupIndex, IndexEntry, Place, SharedIndex};
pub use op::Op;
pub use read::{read_entries, read_entry, read_part};
pub use recover::{Cut, RecoveryReport};
pub use write::{Journal, Params, Sealing};
