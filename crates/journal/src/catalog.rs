//! State shared by readers and the journal's owner: open files and the groups' indexes. Locks are held for look-ups
//! only.

use crate::DiskFile;
use crate::format::Seed;
use crate::index::SharedIndex;
use holdfast_seal::FileKey;
use holdfast_types::GroupId;
use holdfast_types::sync::LockExt;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// A file that records are read from. It stays readable while a handle exists, also after the journal dropped it.
pub struct JournalFile {
    pub(crate) number: u64,
    pub(crate) name: String,
    pub(crate) seed: Seed,
    /// The key that payloads are sealed under.
    pub(crate) key: Option<FileKey>,
    pub(crate) bytes: u64,
    pub(crate) file: Box<dyn DiskFile>,
}

impl std::fmt::Debug for JournalFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JournalFile").field("name", &self.name).field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// Name of file `number` inside the journal's folder.
pub(crate) fn file_name(number: u64) -> String {
    format!("journal-{number:016x}")
}

/// Number of a journal file by its name. Files count from 1, and each has a number behind it: a stray file of another
/// number is none of the journal's.
pub(crate) fn file_number(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("journal-")?;
    let number = u64::from_str_radix(digits, 16).ok()?;
    (file_name(number) == name && (1..u64::MAX).contains(&number)).then_some(number)
}

/// Open files and group indexes.
#[derive(Debug, Default)]
pub struct Catalog {
    files: Mutex<BTreeMap<u64, Arc<JournalFile>>>,
    groups: Mutex<BTreeMap<GroupId, SharedIndex>>,
}

impl Catalog {
    /// The index of a group; created empty if there is none.
    pub fn index(&self, group: GroupId) -> SharedIndex {
        self.groups.locked().entry(group).or_default().clone()
    }

    /// Groups that have an index.
    pub fn groups(&self) -> Vec<GroupId> {
        self.groups.locked().keys().copied().collect()
    }

    pub(crate) fn file(&self, number: u64) -> Option<Arc<JournalFile>> {
        self.files.locked().get(&number).cloned()
    }

    pub(crate) fn add_file(&self, file: Arc<JournalFile>) {
        self.files.locked().insert(file.number, file);
    }

    pub(crate) fn remove_file(&self, number: u64) -> Option<Arc<JournalFile>> {
        self.files.locked().remove(&number)
    }

    pub(crate) fn oldest(&self) -> Option<Arc<JournalFile>> {
        self.files.locked().values().next().cloned()
    }

    /// Files that are not sealed.
    pub fn clear_files(&self) -> usize {
        self.files.locked().values().filter(|file| file.key.is_none()).count()
    }

    pub(crate) fn file_count(&self) -> usize {
        self.files.locked().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_numbers_with_one_before_and_one_behind() {
        for number in [1, 16, u64::MAX - 1] {
            assert_eq!(file_number(&file_name(number)), Some(number));
        }
        for name in [&file_name(0), &file_name(u64::MAX), "journal-1", "journal-+000000000000001", "begin-1"] {
            assert_eq!(file_number(name), None, "{name}");
        }
    }
}
