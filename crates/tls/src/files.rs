//! Reads files that a person names: settings, certificates, keys, passphrases, tokens. All of them are small.
//!
//! Reads at most a bound: a setting that names a device, a log or an image by mistake is reported at once and does not
//! fill the memory. A pipe works too, for handing over a secret.
//!
//! - **SECRET-F1** A cluster key, a passphrase, a token or an authority's private key is read from a regular file only
//!   if no other user of the machine can use that file ([`read_secret`]).
//! - **SECRET-F2** So are the private key of a certificate and access keys of a store, but a file of root may be read
//!   by its group ([`read_key`], [`check_live`]): what is read again while the process runs cannot be handed over by
//!   systemd, which makes a copy. Kubernetes hands secrets over like this, too.

use rustix::fs::OFlags;
use rustix::process::geteuid;
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

/// Maximum size of a cluster key, a passphrase or a token.
pub const SECRET_BYTES_MAX: u64 = 64 << 10;

/// Maximum size of a PEM file. All authorities that a system trusts, in one file, take a quarter of it.
pub const PEM_BYTES_MAX: u64 = 1 << 20;

/// Maximum size of a settings file, or of a cluster's plan. A sample with all its comments takes a fraction of it.
pub const SETTINGS_BYTES_MAX: u64 = 1 << 20;

/// Where systemd has the credentials of the services that run. Root alone makes files there.
const CREDENTIALS: &str = "/run/credentials";

/// Room behind the end of a file for the read that finds the end.
const PROBE_BYTES: usize = 64;

/// Reads the whole file at `path`.
///
/// # Errors
/// The file system's error; [`ErrorKind::FileTooLarge`] if it has more than `bytes_max` bytes.
pub fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    whole(&File::open(path)?, bytes_max)
}

/// Like `read`, for a text file.
///
/// # Errors
/// As [`read`]; [`ErrorKind::InvalidData`] if it is not UTF-8.
pub fn read_text(path: &Path, bytes_max: u64) -> io::Result<String> {
    text(read(path, bytes_max)?)
}

/// Like `read_text`, for a file that a less mighty user can replace, where this process is root: a regular file, by no
/// link. To open another one may be to use it: a watchdog device begins to count, a pipe is waited for.
///
/// # Errors
/// As [`read_text`]; it is a link, or no regular file.
pub fn read_text_of_user(path: &Path, bytes_max: u64) -> io::Result<String> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "found something else, expected a regular file"));
    }
    text(whole(&file, bytes_max)?)
}

/// A file with a secret was not read.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// As [`read`].
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Others may read or change it (SECRET-F1).
    #[error("found mode {mode:04o}, expected 0600 or less, because other users could read or replace it: {next}")]
    Exposed {
        /// The mode found.
        mode: u32,
        /// Advice for the user.
        next: &'static str,
    },
    /// Another user may read and change it (SECRET-F1).
    #[error("it belongs to user {owner}, expected user {expected}, who runs this process, or root: chown")]
    Owner {
        /// The user who owns it.
        owner: u32,
        /// The user of this process.
        expected: u32,
    },
}

impl From<SecretError> for io::Error {
    fn from(error: SecretError) -> Self {
        match error {
            SecretError::Io(error) => error,
            exposed => Self::new(ErrorKind::PermissionDenied, exposed.to_string()),
        }
    }
}

/// Reads a file with a secret (SECRET-F1). The caller wipes what it gets.
pub fn read_secret(path: &Path, bytes_max: u64) -> Result<Vec<u8>, SecretError> {
    let file = File::open(path)?;
    check_secret(path, &file)?;
    Ok(whole(&file, bytes_max)?)
}

/// The same for a text file.
///
/// # Errors
/// As [`read_secret`]; [`ErrorKind::InvalidData`] if it is not UTF-8.
pub fn read_secret_text(path: &Path, bytes_max: u64) -> Result<String, SecretError> {
    Ok(text(read_secret(path, bytes_max)?)?)
}

/// Reads a file with the private key of a certificate (SECRET-F2).
///
/// # Errors
/// As [`read_secret_text`].
pub fn read_key(path: &Path, bytes_max: u64) -> Result<String, SecretError> {
    let file = File::open(path)?;
    check_live(&file)?;
    Ok(text(whole(&file, bytes_max)?)?)
}

/// SECRET-F2 for a file that was opened.
///
/// # Errors
/// As [`read_secret`].
pub fn check_live(file: &File) -> Result<(), SecretError> {
    check(file, true)
}

/// SECRET-F1 for a file that was opened at `path`.
///
/// # Errors
/// As [`read_secret`].
fn check_secret(path: &Path, file: &File) -> Result<(), SecretError> {
    let ours = std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from);
    check(file, is_credential(path, ours.as_deref()))
}

fn check(file: &File, group_reads: bool) -> Result<(), SecretError> {
    let found = file.metadata()?;
    // Nobody else reads or changes what is in a pipe of this process.
    if found.is_file() {
        fit(&Facts::of(&found), geteuid().as_raw(), group_reads)?;
    }
    Ok(())
}

/// What decides whether a file may have a secret.
struct Facts {
    mode: u32,
    owner: u32,
}

impl Facts {
    fn of(found: &Metadata) -> Self {
        Self { mode: found.mode() & 0o7777, owner: found.uid() }
    }
}

/// Whether systemd has handed the file over: in `ours`, the directory of this service's credentials, or in that of
/// another service, where only root can read it: it checks a gateway's settings, verifies or recovers with them.
fn is_credential(path: &Path, ours: Option<&Path>) -> bool {
    let mut dirs = [ours, Some(Path::new(CREDENTIALS))].into_iter().flatten();
    let within = dirs.any(|dir| dir.is_absolute() && path.starts_with(dir));
    within && !path.components().any(|part| part == Component::ParentDir)
}

/// SECRET-F1, SECRET-F2. `group_reads`: of a file of root the group may read. A credential of systemd is root's, with
/// the mode 0440: the bit for the group is the mask of the entry that lets the service's user read it.
fn fit(file: &Facts, me: u32, group_reads: bool) -> Result<(), SecretError> {
    let (mode, owner) = (file.mode, file.owner);
    // Root may use a file of the person who runs the command.
    if owner != me && owner != 0 && me != 0 {
        return Err(SecretError::Owner { owner, expected: me });
    }
    let others = if group_reads && owner == 0 { 0o037 } else { 0o077 };
    if mode & others == 0 {
        return Ok(());
    }
    // With the mode alone, this process could not read a file of root any more.
    let next = if owner == me {
        "chmod 600"
    } else if group_reads && owner == 0 {
        "chgrp it to the group of the user who runs this process, and chmod 640"
    } else {
        "chown it to the user who runs this process, and chmod 600"
    };
    Err(SecretError::Exposed { mode, next })
}

fn text(bytes: Vec<u8>) -> io::Result<String> {
    let bad = |_| io::Error::new(ErrorKind::InvalidData, "found bytes that are no text, expected UTF-8");
    String::from_utf8(bytes).map_err(bad)
}

/// Reads only as much as shows that the file is too long, whatever its length is said to be.
fn whole(file: &File, bytes_max: u64) -> io::Result<Vec<u8>> {
    // As long as the file is: a buffer that grows leaves copies of a secret behind.
    let expected = file.metadata()?.len().min(bytes_max);
    let mut bytes = Vec::with_capacity(usize::try_from(expected).unwrap_or(0).saturating_add(PROBE_BYTES));
    let mut bounded = file.take(bytes_max.saturating_add(1));
    bounded.read_to_end(&mut bytes)?;
    let read = bytes.len() as u64;
    if read <= bytes_max {
        return Ok(bytes);
    }
    // A device reports a length of 0.
    let found = file.metadata()?.len().max(read);
    let text = format!("found at least {found} bytes, expected at most {bytes_max}");
    Err(io::Error::new(ErrorKind::FileTooLarge, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_file_is_read_up_to_its_bound_and_not_beyond() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file");
        let of = |bytes: usize| std::fs::write(&path, vec![b'x'; bytes]).expect("written");
        of(100);
        assert_eq!(read(&path, 100).expect("as long as it may be").len(), 100);
        assert_eq!(read_text(&path, 100).expect("text"), "x".repeat(100));
        of(300);
        let error = read(&path, 100).expect_err("too long");
        assert_eq!(error.kind(), ErrorKind::FileTooLarge);
        assert_eq!(error.to_string(), "found at least 300 bytes, expected at most 100");
        std::fs::write(&path, [0xff, 0xfe]).expect("written");
        let error = read_text(&path, 100).expect_err("no text");
        assert!(error.to_string().contains("expected UTF-8"), "{error}");
    }

    #[test]
    fn a_secret_is_read_only_from_a_file_of_nobody_else() {
        const ME: u32 = 1000;
        const OTHER: u32 = 1001;
        let judge =
            |mode, owner, me, group_reads| fit(&Facts { mode, owner }, me, group_reads).map_err(|e| e.to_string());
        for (mode, owner) in [(0o600, ME), (0o400, ME), (0o600, 0)] {
            assert_eq!(judge(mode, owner, ME, false), Ok(()), "{mode:o} of {owner}");
        }
        for mode in [0o640, 0o604, 0o620, 0o602, 0o644, 0o660, 0o4440, 0o610] {
            let told = judge(mode, ME, ME, false).expect_err("open to others");
            assert!(told.contains(&format!("found mode {mode:04o}")) && told.contains("chmod 600"), "{told}");
        }
        let told = judge(0o600, OTHER, ME, false).expect_err("another user's");
        assert!(told.contains("belongs to user 1001, expected user 1000"), "{told}");
        assert_eq!(judge(0o600, OTHER, 0, false), Ok(()), "root");
        // A credential of systemd or the key of a certificate, and what is none.
        assert_eq!(judge(0o440, 0, ME, true), Ok(()));
        for (mode, owner) in [(0o444, 0), (0o460, 0), (0o440, ME)] {
            assert!(judge(mode, owner, ME, true).is_err(), "{mode:o} of {owner}");
        }
        // A file that root shares with a group, as in a container: the mode alone is not enough.
        let told = judge(0o640, 0, ME, false).expect_err("root's, for a group");
        assert!(told.contains("chown it to the user who runs this process, and chmod 600"), "{told}");
        let told = judge(0o644, 0, ME, true).expect_err("a key for everybody");
        assert!(told.contains("and chmod 640"), "{told}");
        assert!(judge(0o640, 0, 0, false).expect_err("root's own").contains("chmod 600"));
    }

    #[test]
    fn a_credential_of_systemd_is_known_by_its_place() {
        let service = "/run/credentials/holdfast-gateway.service/cluster.key";
        let is = |path: &str, ours: Option<&str>| is_credential(Path::new(path), ours.map(Path::new));
        assert!(is("/elsewhere/of.service/key", Some("/elsewhere/of.service")));
        // Root checks a gateway's settings, verifies or recovers with them: in no unit, or in another one.
        for ours in [None, Some("/elsewhere/of.service"), Some("")] {
            assert!(is(service, ours), "{ours:?}");
            for other in ["/etc/holdfast/cluster.key", "/run/credentials/../../etc/key", "run/credentials/a/key"] {
                assert!(!is(other, ours), "{other} {ours:?}");
            }
        }
    }

    #[test]
    fn a_secret_that_others_can_read_is_not_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("key");
        std::fs::write(&path, b"secret").expect("written");
        let set = |mode| std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("a mode");
        set(0o640);
        assert!(matches!(read_secret(&path, 100), Err(SecretError::Exposed { mode: 0o640, .. })));
        set(0o604);
        assert!(matches!(read_key(&path, 100), Err(SecretError::Exposed { mode: 0o604, .. })));
        set(0o600);
        assert_eq!(read_secret(&path, 100).expect("ours"), b"secret");
        assert_eq!(read_key(&path, 100).expect("ours"), "secret");
        assert!(matches!(read_secret(&path, 5), Err(SecretError::Io(e)) if e.kind() == ErrorKind::FileTooLarge));
        assert!(matches!(read_secret(&dir.path().join("none"), 5), Err(SecretError::Io(_))));
    }

    #[test]
    fn of_what_another_user_can_replace_only_a_regular_file_is_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("file"), "15\n").expect("written");
        assert_eq!(read_text_of_user(&at("file"), 10).expect("a file"), "15\n");
        assert_eq!(read_text_of_user(&at("file"), 2).expect_err("too long").kind(), ErrorKind::FileTooLarge);
        std::os::unix::fs::symlink(at("file"), at("link")).expect("linked");
        assert!(read_text_of_user(&at("link"), 10).is_err(), "it may lead to a device");
        // Nobody writes to it: to open it would take for ever.
        assert!(std::process::Command::new("mkfifo").arg(at("pipe")).status().expect("started").success());
        assert_eq!(read_text_of_user(&at("pipe"), 10).expect_err("a pipe").kind(), ErrorKind::InvalidInput);
    }

    /// It has no end, and reports no length.
    #[test]
    fn a_device_is_not_read_for_ever() {
        let error = read(Path::new("/dev/zero"), 100).expect_err("without an end");
        assert_eq!(error.to_string(), "found at least 101 bytes, expected at most 100");
    }
}
