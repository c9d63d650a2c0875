//! Records of staged volumes: what a new process of the driver must know. One file for each, `DIR/SET/VOLUME.json`.

use crate::capability::Access;
use crate::names::VolumeId;
use crate::refused::Refused;
use holdfast_types::Name;
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Number of this start of the machine. Mounts and devices of an earlier one are gone.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// Most paths at which one volume is published.
pub(super) const TARGETS_MAX: usize = 64;

/// A staged volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// The start of the machine in which it was staged.
    pub(super) boot: String,
    /// Where it is staged.
    pub(super) staging: PathBuf,
    /// How.
    pub(super) access: Access,
    /// Where it is published.
    pub(super) targets: Vec<PathBuf>,
}

/// The folder of all records.
#[derive(Debug)]
pub(super) struct Records {
    dir: PathBuf,
    boot: String,
}

fn at(path: &Path) -> impl FnOnce(std::io::Error) -> Refused + '_ {
    |error| Refused::failed(format!("{}: {error}", path.display()))
}

fn names(dir: &Path) -> Result<Vec<String>, Refused> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(at(dir)(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry.map_err(at(dir))?.file_name().into_string().ok());
    }
    names.sort();
    Ok(names)
}

impl Records {
    /// Those below `dir`, which is created.
    pub(super) fn open(dir: &Path) -> Result<Self, Refused> {
        std::fs::create_dir_all(dir).map_err(at(dir))?;
        let boot = std::fs::read_to_string(BOOT).map_err(at(Path::new(BOOT)))?.trim().to_string();
        Ok(Self { dir: dir.to_path_buf(), boot })
    }

    /// The folder of a set.
    pub(super) fn of_set(&self, set: &Name) -> PathBuf {
        self.dir.join(set.as_str())
    }

    fn file(&self, id: &VolumeId) -> PathBuf {
        self.of_set(&id.set).join(format!("{}.json", id.volume))
    }

    /// A new record, not written yet.
    pub(super) fn new_of(&self, staging: &Path, access: Access) -> Record {
        Record { boot: self.boot.clone(), staging: staging.to_path_buf(), access, targets: Vec::new() }
    }

    /// The record of a volume. `None` if it is not staged; a record of an earlier start of the machine counts as none.
    pub(super) fn read(&self, id: &VolumeId) -> Result<Option<Record>, Refused> {
        let file = self.file(id);
        let bytes = match std::fs::read(&file) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(at(&file)(error)),
        };
        let record: Record = serde_json::from_slice(&bytes).map_err(|error| at(&file)(error.into()))?;
        Ok((record.boot == self.boot).then_some(record))
    }

    /// Writes a record, whole or not at all.
    pub(super) fn write(&self, id: &VolumeId, record: &Record) -> Result<(), Refused> {
        let (file, next) = (self.file(id), self.of_set(&id.set).join(format!("{}.next", id.volume)));
        let dir = self.of_set(&id.set);
        std::fs::create_dir_all(&dir).map_err(at(&dir))?;
        let bytes = serde_json::to_vec_pretty(record).map_err(|error| at(&file)(error.into()))?;
        std::fs::write(&next, bytes).map_err(at(&next))?;
        std::fs::rename(&next, &file).map_err(at(&file))
    }

    /// Removes a record.
    pub(super) fn remove(&self, id: &VolumeId) -> Result<(), Refused> {
        let file = self.file(id);
        match std::fs::remove_file(&file) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(at(&file)(error)),
            _ => Ok(()),
        }
    }

    /// The staged volumes of a set.
    pub(super) fn volumes(&self, set: &Name) -> Result<Vec<VolumeId>, Refused> {
        let mut staged = Vec::new();
        for name in names(&self.of_set(set))? {
            let Some(Ok(volume)) = name.strip_suffix(".json").map(Name::new) else { continue };
            let id = VolumeId { set: set.clone(), volume };
            if self.read(&id)?.is_some() {
                staged.push(id);
            }
        }
        Ok(staged)
    }

    /// The sets with staged volumes.
    pub(super) fn sets(&self) -> Result<Vec<Name>, Refused> {
        let mut sets = Vec::new();
        for name in names(&self.dir)? {
            let Ok(set) = Name::new(name) else { continue };
            if self.of_set(&set).is_dir() && !self.volumes(&set)?.is_empty() {
                sets.push(set);
            }
        }
        Ok(sets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_found_again_in_this_start_of_the_machine_only() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(dir.path()).unwrap();
        let id = VolumeId::of("csi-a/data").unwrap();
        assert_eq!(records.read(&id).unwrap(), None);
        let mut record = records.new_of(Path::new("/staging"), Access::Block);
        record.targets.push("/target".into());
        records.write(&id, &record).unwrap();
        let again = Records::open(dir.path()).unwrap();
        assert_eq!(again.read(&id).unwrap().as_ref(), Some(&record));
        assert_eq!(again.sets().unwrap(), std::slice::from_ref(&id.set));
        record.boot = "an earlier one".into();
        records.write(&id, &record).unwrap();
        assert_eq!(again.read(&id).unwrap(), None);
        assert!(again.sets().unwrap().is_empty());
        again.remove(&id).unwrap();
        again.remove(&id).unwrap();
        assert!(again.volumes(&id.set).unwrap().is_empty());
    }

    #[test]
    fn a_record_that_cannot_be_read_is_not_none() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(dir.path()).unwrap();
        let id = VolumeId::of("csi-a/data").unwrap();
        std::fs::create_dir(records.of_set(&id.set)).unwrap();
        std::fs::write(records.file(&id), "{").unwrap();
        assert!(records.read(&id).is_err() && records.sets().is_err());
    }
}
