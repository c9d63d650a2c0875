//! The lease token and the list of kernel devices, kept for the next process.
//!
//! ```text
//!   DIR/lease.json   only root may read it; written before a grant is used, removed when the devices are let go of;
//!                    beside it the files of `holdfast_host::rewritten`, which have earlier tokens
//! ```
//! TOKEN-P1  A token is in the file before it is first used, since that use ends the one before it. So whenever a
//!     process dies, the file holds a token that the gateways still accept, unless the set was granted to another
//!     owner. On a full /run it is written too (REWRITE-F2), once it was before. If the file cannot be written, the
//!     token is used all the same, so that no devices are taken away, and is written as soon as possible.
//! TOKEN-P2  A process that finds devices continues with them only by continuing that very lease. With a grant of its
//!     own, another owner might have written in between, and the requests that the kernel still holds for these devices
//!     would overwrite that.

use crate::dir::DirError;
use crate::machine::VolumeFacts;
use holdfast_host::rewritten::Rewritten;
use holdfast_types::sync::LockExt;
use holdfast_types::{Name, Owner, Token};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

/// Content of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lease {
    pub(crate) set: String,
    pub(crate) owner: String,
    /// As text: [`Token::from_text`].
    token: String,
    volumes: Vec<Volume>,
    /// Sockets per device.
    pub(crate) sockets: u8,
    /// N of /dev/nbdN per volume; empty until all exist.
    pub(crate) devices: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Volume {
    id: u32,
    name: String,
    size_bytes: u64,
    /// The volume was deleted, shrunk or renamed under its device, which fails for good, even if the volume has grown
    /// again.
    lost: bool,
}

impl Lease {
    pub(crate) fn new(set: &Name, owner: &Owner, token: Token, volumes: &[(VolumeFacts, bool)]) -> Self {
        let volume = |(facts, lost): &(VolumeFacts, bool)| Volume {
            id: facts.id,
            name: facts.name.to_string(),
            size_bytes: facts.size,
            lost: *lost,
        };
        Self {
            set: set.to_string(),
            owner: owner.to_string(),
            token: token.to_text(),
            volumes: volumes.iter().map(volume).collect(),
            sockets: 0,
            devices: Vec::new(),
        }
    }

    pub(crate) fn token(&self) -> Option<Token> {
        Token::from_text(&self.token)
    }

    /// In the order of the grant; `None` if a name is invalid.
    pub(crate) fn volumes(&self) -> Option<Vec<VolumeFacts>> {
        let facts = |volume: &Volume| {
            Some(VolumeFacts { id: volume.id, name: Name::new(volume.name.clone()).ok()?, size: volume.size_bytes })
        };
        self.volumes.iter().map(facts).collect()
    }

    /// Volumes, by their place in that order, whose devices fail for good.
    pub(crate) fn lost(&self) -> impl Iterator<Item = (usize, String)> {
        let lost = self.volumes.iter().enumerate().filter(|(_, volume)| volume.lost);
        lost.map(|(n, volume)| (n, format!("volume {} was lost under an earlier process", volume.name)))
    }
}

/// The file in a run directory.
#[derive(Debug)]
pub(crate) struct LeaseFile {
    file: Rewritten,
    lease: Mutex<Option<Lease>>,
    closed: AtomicBool,
    /// A grant is in use that the file does not have.
    behind: AtomicBool,
}

impl LeaseFile {
    /// With the lease of an earlier process; without one if the file has another form.
    ///
    /// # Errors
    /// The file exists but cannot be read. Devices that wait for their next process must not be disconnected for that
    /// reason.
    pub(crate) fn open(dir: &Path) -> Result<Self, DirError> {
        let file = Self::unread(dir);
        let path = file.file.path();
        // Nobody writes it meanwhile: this process has the lock of the run directory.
        let left = match std::fs::read(path) {
            Ok(bytes) => match serde_json::from_slice(&bytes) {
                Ok(lease) => Some(lease),
                Err(error) => {
                    let path = path.display();
                    tracing::warn!(%path, %error, "found no lease of this build, expected one: the devices of an earlier process are not used again");
                    None
                }
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(source) => return Err(DirError::Lease { path: path.to_path_buf(), source }),
        };
        *file.lock() = left;
        Ok(file)
    }

    /// Without the lease of an earlier process.
    pub(crate) fn unread(dir: &Path) -> Self {
        let (file, lease) = (Rewritten::secret(dir.join("lease.json")), Mutex::new(None));
        Self { file, lease, closed: AtomicBool::new(false), behind: AtomicBool::new(false) }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Lease>> {
        self.lease.locked()
    }

    pub(crate) fn lease(&self) -> Option<Lease> {
        self.lock().clone()
    }

    /// TOKEN-P1: call this before the grant is used.
    pub(crate) fn granted(
        &self,
        set: &Name,
        owner: &Owner,
        token: Token,
        volumes: &[(VolumeFacts, bool)],
    ) -> io::Result<()> {
        let mut lease = self.lock();
        if self.closed.load(Ordering::Relaxed) {
            holdfast_reached::reached!("attach: a grant comes when the devices are released");
            return Ok(());
        }
        let mut new = Lease::new(set, owner, token, volumes);
        if let Some(before) = &*lease {
            (new.sockets, new.devices) = (before.sockets, before.devices.clone());
            // The grant may have been read before a growth or a loss that was stored meanwhile.
            for (volume, before) in new.volumes.iter_mut().zip(&before.volumes) {
                volume.size_bytes = volume.size_bytes.max(before.size_bytes);
                volume.lost |= before.lost;
            }
        }
        self.behind.store(true, Ordering::Relaxed);
        self.write(lease.insert(new))
    }

    /// Writes a grant that could not be written at its time. Returns whether the file has it now; `None` if none was
    /// missing.
    pub(crate) fn catch_up(&self) -> Option<io::Result<()>> {
        let lease = self.lock();
        let lease = lease.as_ref().filter(|_| self.behind.load(Ordering::Relaxed))?;
        Some(self.write(lease))
    }

    /// The devices exist: from now on another process may use them again.
    pub(crate) fn made(&self, devices: &[u32], sockets: u8) -> io::Result<()> {
        let mut lease = self.lock();
        let Some(lease) = lease.as_mut() else { return Err(io::ErrorKind::NotFound.into()) };
        (lease.sockets, lease.devices) = (sockets, devices.to_vec());
        self.write(lease)
    }

    /// Volumes, by their place in the lease, have grown (GROWTH-G1): call this before the kernel is told.
    pub(crate) fn grew(&self, sizes: &[(usize, u64)]) -> io::Result<()> {
        self.change(|volumes| {
            for (place, size) in sizes {
                if let Some(volume) = volumes.get_mut(*place) {
                    volume.size_bytes = volume.size_bytes.max(*size);
                }
            }
        })
    }

    /// Devices of volumes, by their place in the lease, fail for good from now on (ATTACH-M8), in the next process too.
    pub(crate) fn lose(&self, places: impl IntoIterator<Item = usize>) -> io::Result<()> {
        self.change(|volumes| {
            for place in places {
                if let Some(volume) = volumes.get_mut(place) {
                    volume.lost = true;
                }
            }
        })
    }

    /// A value that cannot be written is not kept in memory either: the next grant starts from the value in memory, and
    /// would write it after all.
    fn change(&self, change: impl FnOnce(&mut [Volume])) -> io::Result<()> {
        let mut lease = self.lock();
        // The devices are being released.
        let Some(mut new) = lease.clone() else { return Ok(()) };
        change(&mut new.volumes);
        self.write(&new)?;
        *lease = Some(new);
        Ok(())
    }

    /// Atomic.
    fn write(&self, lease: &Lease) -> io::Result<()> {
        self.file.write(&serde_json::to_vec(lease)?)?;
        self.behind.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// The devices are being released: a later grant is not stored.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.remove();
    }

    /// No process may use the devices again.
    pub(crate) fn remove(&self) {
        *self.lock() = None;
        if let Err(error) = self.file.remove() {
            let path = self.file.path().display();
            tracing::warn!(%path, %error, "cannot remove the lease file: a later process will look for its devices");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn what_was_kept_is_what_is_left_and_nobody_else_reads_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = LeaseFile::open(dir.path()).unwrap();
        assert_eq!(file.lease(), None);
        let volumes = [VolumeFacts { id: 1, name: Name::new("vol1").unwrap(), size: 1 << 30 }];
        let (set, owner) = (Name::new("demo").unwrap(), Owner::new("db1").unwrap());
        let (facts, volumes) = (volumes.to_vec(), volumes.map(|facts| (facts, true)));
        assert!(file.made(&[3], 1).is_err(), "devices without a lease");
        for token in [Token(7), Token(8)] {
            file.granted(&set, &owner, token, &volumes).unwrap();
            file.made(&[3], 2).unwrap();
            file.granted(&set, &owner, token, &volumes).unwrap();
            let left = LeaseFile::open(dir.path()).unwrap().lease().unwrap();
            assert_eq!((left.token(), left.volumes()), (Some(token), Some(facts.clone())));
            assert_eq!(left.lost().map(|(n, _)| n).collect::<Vec<_>>(), [0], "for good, also for the next process");
            assert_eq!((left.devices, left.sockets), (vec![3], 2), "a new grant is of the same devices");
        }
        let path = dir.path().join("lease.json");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::write(&path, "{").unwrap();
        assert_eq!(LeaseFile::open(dir.path()).unwrap().lease(), None);
        // One that cannot be read is not one that is not there: devices may wait for it.
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        let unread = LeaseFile::open(dir.path()).unwrap_err().to_string();
        assert!(unread.contains("lease.json") && unread.contains("--abandon"), "{unread}");
        std::fs::remove_dir(&path).unwrap();
        file.remove();
        assert!(!path.exists() && file.lease().is_none());
        file.granted(&set, &owner, Token(9), &volumes).unwrap();
        assert!(path.exists());
        file.close();
        file.granted(&set, &owner, Token(10), &volumes).unwrap();
        assert!(!path.exists(), "what is being let go of is not kept");
    }

    /// TOKEN-P1: the token in the file is invalid from the first use of the next one.
    #[test]
    fn a_grant_that_could_not_be_kept_is_kept_as_soon_as_it_can_be() {
        let dir = tempfile::tempdir().unwrap();
        let file = LeaseFile::open(dir.path()).unwrap();
        let (set, owner) = (Name::new("demo").unwrap(), Owner::new("db1").unwrap());
        let volumes = [(VolumeFacts { id: 1, name: Name::new("vol1").unwrap(), size: 1 << 30 }, false)];
        file.granted(&set, &owner, Token(7), &volumes).unwrap();
        assert!(file.catch_up().is_none(), "nothing is missing");
        let kept = || LeaseFile::open(dir.path()).unwrap().lease().unwrap().token();
        // REWRITE-F2: as on a full /run, no new file can be made.
        std::fs::create_dir(dir.path().join("lease.json.next")).unwrap();
        for token in [Token(5), Token(6), Token(7)] {
            file.granted(&set, &owner, token, &volumes).unwrap();
            assert_eq!(kept(), Some(token));
        }
        // The spares cannot be written either.
        let in_the_way = ["lease.json.spare1", "lease.json.spare2"].map(|name| dir.path().join(name));
        let block = || {
            for spare in &in_the_way {
                std::fs::remove_file(spare).unwrap();
                std::fs::create_dir(spare).unwrap();
            }
        };
        block();
        file.granted(&set, &owner, Token(8), &volumes).unwrap_err();
        file.catch_up().unwrap().unwrap_err();
        assert_eq!(kept(), Some(Token(7)));
        for path in in_the_way.iter().chain([&dir.path().join("lease.json.next")]) {
            std::fs::remove_dir(path).unwrap();
        }
        file.catch_up().unwrap().unwrap();
        assert_eq!(kept(), Some(Token(8)));
        assert!(file.catch_up().is_none(), "written once");
        block();
        std::fs::create_dir(dir.path().join("lease.json.next")).unwrap();
        file.granted(&set, &owner, Token(9), &volumes).unwrap_err();
        file.close();
        assert!(file.catch_up().is_none(), "what is being let go of is not kept");
    }

    /// GROWTH-G1: devices may be as large by then.
    #[test]
    fn a_growth_outlives_a_grant_that_was_read_before_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = LeaseFile::open(dir.path()).unwrap();
        let (set, owner) = (Name::new("demo").unwrap(), Owner::new("db1").unwrap());
        let volumes = [(VolumeFacts { id: 1, name: Name::new("vol1").unwrap(), size: 1 << 30 }, false)];
        file.granted(&set, &owner, Token(7), &volumes).unwrap();
        file.made(&[3], 1).unwrap();
        file.grew(&[(0, 2 << 30)]).unwrap();
        file.granted(&set, &owner, Token(8), &volumes).unwrap();
        let left = LeaseFile::open(dir.path()).unwrap().lease().unwrap();
        let size = left.volumes().unwrap()[0].size;
        assert_eq!((left.token(), size, left.devices), (Some(Token(8)), 2 << 30, vec![3]));
        file.lose([0]).unwrap();
        file.granted(&set, &owner, Token(9), &volumes).unwrap();
        let left = LeaseFile::open(dir.path()).unwrap().lease().unwrap();
        assert_eq!(left.lost().map(|(n, _)| n).collect::<Vec<_>>(), [0], "and so does a loss (ATTACH-M8)");
        file.close();
        file.grew(&[(0, 3 << 30)]).unwrap();
        file.lose([0]).unwrap();
        assert!(!dir.path().join("lease.json").exists(), "what is being let go of is not kept");
    }
}
