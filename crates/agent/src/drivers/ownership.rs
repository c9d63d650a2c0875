//! Which existing pool an agent may touch: only its own.
//!
//! OWN-P1  Only a mount or pool over devices of this agent's attach is unmounted or exported, and only then is the
//!     PostgreSQL on it stopped; or the very mount, or the pool, that this agent noted when it made it (its device may
//!     have lost its name by now). With the pool the agent unmounts file systems on directories in it whose content
//!     PostgreSQL can lose. A cache device of a pool may be anybody's. A note that cannot be read counts neither as a
//!     note nor as none: until it can be read, nothing is touched, and the pool keeps its device. A pool whose import
//!     was given up may be ours, for as long as the kernel goes on with it.

use super::zfs::rules::COPY_POOL;
use super::zfs::vdevs;
use crate::attach_process::BACKEND;
use crate::config::{AgentConfig, PoolKind};
use crate::process::{self, NotRan, system};
use holdfast_host::mounts::{Mounted, mount_at};
use std::fmt;
use std::fs::read_to_string;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::process::Command;

/// File below the run directory with the noted mount or pool.
const NOTE: &str = "pool.noted";

/// Time limit of a question about a pool.
const ASK_LIMIT: Duration = Duration::from_secs(5);

/// Reason why the owner of a pool, or its existence, is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotOurs {
    /// It belongs to someone else.
    Foreign(String),
    /// The check failed: this agent's pool may be there.
    Unlooked(String),
}

impl fmt::Display for NotOurs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (NotOurs::Foreign(why) | NotOurs::Unlooked(why)) = self;
        f.write_str(why)
    }
}

impl From<NotOurs> for String {
    fn from(not: NotOurs) -> Self {
        not.to_string()
    }
}

/// What a block device reads from, as the kernel shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Behind {
    /// The name that an nbd device was connected with.
    Nbd(String),
    /// The file of a loop device.
    Loop(PathBuf),
}

fn behind(device: &Path) -> Option<Behind> {
    // A pool's devices may be partitions: /dev/nbd0p1.
    let name = device.file_name()?.to_str()?;
    let whole = match name.strip_prefix("nbd") {
        Some(rest) => format!("nbd{}", rest.split('p').next()?),
        None => name.to_string(),
    };
    behind_in(Path::new("/sys"), &whole)
}

/// Like `behind`, for a whole device by its name, as `sys` shows it.
pub(super) fn behind_in(sys: &Path, name: &str) -> Option<Behind> {
    let read = |file: &str| read_to_string(sys.join("block").join(name).join(file)).ok();
    let loops = read("loop/backing_file").map(|file| Behind::Loop(PathBuf::from(file.trim_end())));
    loops.or_else(|| read("backend").map(|text| Behind::Nbd(text.trim_end().into())))
}

/// Pure (OWN-P1). `attach_dirs`: the run directory of this agent's attach, by its names.
pub(super) fn is_ours(behind: Option<&Behind>, attach_dirs: &[PathBuf], noted: bool) -> bool {
    let of_attach = |place: &Path| attach_dirs.iter().any(|dir| place.starts_with(dir));
    noted
        || match behind {
            Some(Behind::Nbd(backend)) => {
                backend.strip_prefix(BACKEND).is_some_and(|place| of_attach(Path::new(place)))
            }
            Some(Behind::Loop(file)) => of_attach(file),
            None => false,
        }
}

/// The run directory of this agent's attach, by its names.
pub(super) fn attach_dirs(config: &AgentConfig) -> Vec<PathBuf> {
    let dir = config.run_dir.join("attach");
    // The kernel names a file without links.
    let real = config.run_dir.canonicalize().map(|run_dir| run_dir.join("attach"));
    std::iter::once(dir).chain(real).collect()
}

/// Text of the note. It names the boot: numbers of mounts are used again after the next one. `guid`: of a pool whose
/// name alone does not identify it.
///
/// # Errors
/// The id of the boot cannot be read: a note without it would seem valid after the next boot.
fn words(config: &AgentConfig, mounted: Option<&Mounted>, guid: Option<&str>) -> io::Result<String> {
    let boot = read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(match mounted {
        Some(mounted) => format!("{} {} {}", boot.trim(), mounted.id, mounted.source),
        None => {
            let name = config.pool.name.as_deref().unwrap_or_default();
            let guid = guid.map(|guid| format!(" {guid}")).unwrap_or_default();
            format!("{} pool {name}{guid}", boot.trim())
        }
    })
}

/// Notes what was just mounted or imported as ours. Without a note it is recognised by its devices.
pub fn note(config: &AgentConfig) {
    let mounted = match config.pool.kind {
        PoolKind::None => return,
        PoolKind::Ext4 | PoolKind::Xfs => match mount_at(&config.pool.mount) {
            Ok(mounted) => mounted,
            Err(why) => {
                tracing::warn!(why, "cannot record what was mounted");
                return;
            }
        },
        PoolKind::Zfs => None,
    };
    keep(config, words(config, mounted.as_ref(), None));
}

/// Like `note`, for a copy of a pool, which has its own guid.
pub fn note_copy(config: &AgentConfig, guid: &str) {
    keep(config, words(config, None, Some(guid)));
}

fn keep(config: &AgentConfig, words: io::Result<String>) {
    let path = config.run_dir.join(NOTE);
    if let Err(error) = words.and_then(|words| std::fs::write(&path, words)) {
        tracing::warn!(path = %path.display(), %error, "cannot record what was mounted");
    }
}

/// Forgets the note: a later mount or pool of this name may be someone else's.
pub fn forget(config: &AgentConfig) {
    let path = config.run_dir.join(NOTE);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "cannot remove the record of what was imported");
        }
        _ => {}
    }
}

/// Whether this agent has noted a mount or a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Noted {
    Yes,
    No,
    /// The note cannot be read, for this reason: it may be noted.
    Unread(String),
}

impl Noted {
    /// What is not recognised by its devices: `why` it is somebody else's, unless the note would have told better.
    fn foreign(&self, why: String) -> NotOurs {
        match self {
            Self::Unread(unread) => {
                NotOurs::Unlooked(format!("{why}; whether this agent made it is not known: {unread}"))
            }
            Self::Yes | Self::No => NotOurs::Foreign(why),
        }
    }
}

fn is_noted(config: &AgentConfig, mounted: Option<&Mounted>, guid: Option<&str>) -> Noted {
    let path = config.run_dir.join(NOTE);
    let unread = |error: &dyn fmt::Display| Noted::Unread(format!("{}: {error}", path.display()));
    let note = match std::fs::read(&path) {
        // A full disk takes the file, and not its content.
        Ok(note) if note.is_empty() => return unread(&"found an empty file"),
        Ok(note) => note,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Noted::No,
        Err(error) => return unread(&error),
    };
    match words(config, mounted, guid) {
        Ok(words) if words.as_bytes() == note => Noted::Yes,
        Ok(_) => Noted::No,
        Err(error) => unread(&error),
    }
}

/// Numbers of the device of the mount that was noted, if it is still mounted.
pub(super) fn noted_device(config: &AgentConfig) -> Option<String> {
    let mounted = mount_at(&config.pool.mount).ok().flatten().filter(|_| config.pool.kind != PoolKind::Zfs)?;
    let device = mounted.id.split(' ').nth(1).map(str::to_string);
    // ONSET-L1: for a start only what is known counts.
    device.filter(|_| is_noted(config, Some(&mounted), None) == Noted::Yes)
}

/// Whether the pool, or its file system, is there and is ours (OWN-P1).
///
/// # Errors
/// It belongs to someone else; or the check failed.
pub async fn there(config: &AgentConfig) -> Result<bool, NotOurs> {
    let dirs = attach_dirs(config);
    match config.pool.kind {
        PoolKind::None => Ok(false),
        PoolKind::Ext4 | PoolKind::Xfs => {
            let at = &config.pool.mount;
            let Some(mounted) = mount_at(at).map_err(NotOurs::Unlooked)? else { return Ok(false) };
            let behind = behind(Path::new(&mounted.source));
            let noted = is_noted(config, Some(&mounted), None);
            if is_ours(behind.as_ref(), &dirs, noted == Noted::Yes) {
                return Ok(true);
            }
            Err(noted.foreign(format!(
                "{}: found {} mounted there ({behind:?}), expected nothing, or a device of the attach in {}: unmount it, or see pool.mount and run_dir",
                at.display(),
                mounted.source,
                dirs[0].display()
            )))
        }
        PoolKind::Zfs => pool_there(config, system("zpool"), None).await,
    }
}

/// Like `there`, for a ZFS pool, with this `zpool`. `guid`: the guid of the pool that now has the name, if it is a copy
/// ([`note_copy`]).
///
/// # Errors
/// As [`there`].
pub async fn pool_there(config: &AgentConfig, zpool: Command, guid: Option<&str>) -> Result<bool, NotOurs> {
    pool_there_within(config, zpool, guid, ASK_LIMIT).await
}

async fn pool_there_within(
    config: &AgentConfig,
    zpool: Command,
    guid: Option<&str>,
    limit: Duration,
) -> Result<bool, NotOurs> {
    let Some(name) = config.pool.name.as_deref() else { return Ok(false) };
    let (dirs, noted) = (attach_dirs(config), is_noted(config, None, guid));
    let devices = match vdevs::of_pool(zpool, name, limit).await {
        Ok(Some(devices)) => devices,
        Ok(None) => return Ok(false),
        Err(not) => return unanswered(name, &noted, not),
    };
    // A cache device may be a disk of this host: it holds copies only.
    let mut needed = devices.iter().filter(|device| device.class.is_needed()).map(|device| device.path.as_path());
    let foreign = needed.find(|device| !is_ours(behind(device).as_ref(), &dirs, noted == Noted::Yes));
    // After the end of the copy the export of its pool hangs, and so do all imports that wait for it.
    let advice = if name.starts_with(COPY_POOL) {
        "see name and run_dir; do not export it where its copy has ended: it goes with a reboot of this host"
    } else {
        "export it, or see pool.name and run_dir"
    };
    match foreign {
        None => Ok(true),
        Some(device) => Err(noted.foreign(format!(
            "pool {name}: found it imported from {} ({:?}), expected devices of the attach in {}: {advice}",
            device.display(),
            behind(device),
            dirs[0].display()
        ))),
    }
}

/// Whether this command line imports the pool of this name.
fn imports(command: &str, name: &str) -> bool {
    let mut words = command.split(' ');
    let program = words.next().and_then(|path| path.rsplit('/').next());
    program == Some("zpool") && words.next() == Some("import") && words.next_back() == Some(name)
}

/// Whether the pool is there and ours, if `zpool` does not say.
fn unanswered(name: &str, noted: &Noted, not: NotRan) -> Result<bool, NotOurs> {
    let begun = process::hanging(|command| imports(command, name));
    match (not, noted) {
        // A suspended pool is there.
        (NotRan::Late(_), Noted::Yes) => Ok(true),
        // It is noted only once it is imported.
        (not, Noted::No) if !begun.is_empty() => Err(NotOurs::Unlooked(format!(
            "pool {name}: {}: it was killed and still runs in the kernel, so the pool may be there: {not}",
            begun.join("; ")
        ))),
        // This does not mean that the pool is there: ZFS answers no question while it imports any pool of the host.
        (NotRan::Late(why), noted) => Err(noted.foreign(format!(
            "pool {name}: found no answer to whether it is here, expected one: {why}. This agent has imported no pool of that name. ZFS does not answer while another import of this host goes on (a standby's copy too), or the export of \
             a suspended pool: the processes named zpool show which; wait for their end"
        ))),
        (NotRan::Unable(why), noted) => {
            let why = format!("pool {name}: could not look for it: {why}");
            // Without a note this agent has imported none.
            Err(if *noted == Noted::No { NotOurs::Foreign(why) } else { NotOurs::Unlooked(why) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_is_what_stands_on_our_attach_or_was_noted() {
        let dirs = [PathBuf::from("/run/holdfast-agent/attach")];
        let nbd = |text: &str| Some(Behind::Nbd(text.into()));
        let looped = |text: &str| Some(Behind::Loop(text.into()));
        for (behind, noted, ours) in [
            (nbd("holdfast /run/holdfast-agent/attach/vol1"), false, true),
            (nbd("holdfast /run/holdfast/other/vol1"), false, false),
            (nbd("holdfast /run/holdfast-agent/attach2/vol1"), false, false),
            (nbd("something /run/holdfast-agent/attach/vol1"), false, false),
            (looped("/run/holdfast-agent/attach/vol1/device"), false, true),
            (looped("/var/lib/images/a.img"), false, false),
            // Lazily unmounted: the file has lost its path.
            (looped("/device"), false, false),
            (looped("/device"), true, true),
            (None, false, false),
            (None, true, true),
        ] {
            assert_eq!(is_ours(behind.as_ref(), &dirs, noted), ours, "{behind:?} {noted}");
        }
    }

    /// A cache device on a disk of the host makes a pool no less ours; any other device there does.
    #[tokio::test]
    async fn a_pool_with_a_cache_on_a_local_disk_is_ours() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = AgentConfig { run_dir: dir.path().into(), ..AgentConfig::default() };
        (config.pool.kind, config.pool.name) = (PoolKind::Zfs, Some("tank".into()));
        let lists = |heading: &str| {
            let listed = format!("tank\\t9.5G\\n{heading}\\t-\\t-\\n\\t/dev/holdfast-no-such-disk\\t1G\\n");
            let mut zpool = Command::new("sh");
            zpool.arg("-c").arg(format!("printf '{listed}'"));
            zpool
        };
        assert_eq!(pool_there(&config, lists("cache"), None).await, Ok(true));
        let why = pool_there(&config, lists("logs"), None).await.unwrap_err().to_string();
        assert!(why.contains("found it imported from /dev/holdfast-no-such-disk"), "{why}");
    }

    /// ZFS answers no question while it imports any pool: that says nothing about this pool, unless this agent has
    /// noted it.
    #[tokio::test]
    async fn a_pool_that_is_not_answered_for_is_ours_where_it_was_noted() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = AgentConfig { run_dir: dir.path().into(), ..AgentConfig::default() };
        (config.pool.kind, config.pool.name) = (PoolKind::Zfs, Some("tank".into()));
        let silent = || {
            let mut zpool = Command::new("sh");
            zpool.args(["-c", "exec sleep 600"]);
            pool_there_within(&config, zpool, None, Duration::from_millis(50))
        };
        let why = silent().await.unwrap_err().to_string();
        assert!(why.contains("no answer to whether it is here") && why.contains("a standby's copy too"), "{why}");
        note(&config);
        assert_eq!(silent().await, Ok(true));
        std::fs::write(dir.path().join(NOTE), "").unwrap();
        assert!(matches!(silent().await, Err(NotOurs::Unlooked(_))), "the note cannot be read");
    }

    /// The device must not be removed under a pool because a check failed.
    #[tokio::test]
    async fn a_pool_that_was_noted_and_cannot_be_looked_for_is_not_somebody_elses() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = AgentConfig { run_dir: dir.path().into(), ..AgentConfig::default() };
        (config.pool.kind, config.pool.name) = (PoolKind::Zfs, Some("tank".into()));
        let asked = || pool_there(&config, Command::new(dir.path().join("no-zpool")), None);
        assert!(matches!(asked().await, Err(NotOurs::Foreign(why)) if why.contains("could not look")));
        note(&config);
        assert!(matches!(asked().await, Err(NotOurs::Unlooked(why)) if why.contains("could not look")));
    }

    /// After this the device is removed. `zpool` may fail without a look at the pool, and the note may not be readable.
    #[tokio::test]
    async fn a_pool_is_absent_only_if_zpool_says_so_and_its_note_only_if_it_is_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = AgentConfig { run_dir: dir.path().into(), ..AgentConfig::default() };
        (config.pool.kind, config.pool.name) = (PoolKind::Zfs, Some("tank".into()));
        let asked = async |script: &str| {
            let mut zpool = Command::new("sh");
            zpool.arg("-c").arg(script);
            pool_there(&config, zpool, None).await
        };
        let (absent, fails) =
            ("echo \"cannot open 'tank': no such pool\" >&2; exit 1", "echo 'out of memory' >&2; exit 1");
        let theirs = "printf 'tank\\t9.5G\\n\\t/dev/holdfast-no-such-disk\\t1G\\n'";
        note(&config);
        assert_eq!(asked(absent).await, Ok(false));
        assert!(matches!(asked(fails).await, Err(NotOurs::Unlooked(why)) if why.contains("out of memory")));
        assert_eq!(asked(theirs).await, Ok(true), "it was noted");
        // A directory cannot be read as a file; an empty file is what a full disk leaves.
        let note = dir.path().join(NOTE);
        std::fs::write(&note, "").unwrap();
        for kind in ["empty", "a directory"] {
            assert!(matches!(asked(fails).await, Err(NotOurs::Unlooked(_))), "{kind}");
            let why = asked(theirs).await.unwrap_err();
            assert!(matches!(&why, NotOurs::Unlooked(why) if why.contains("pool.noted: ")), "{kind}: {why:?}");
            assert_eq!(asked(absent).await, Ok(false), "{kind}");
            let _ = std::fs::remove_file(&note);
            let _ = std::fs::create_dir(&note);
        }
        std::fs::remove_dir(&note).unwrap();
        assert!(matches!(asked(theirs).await, Err(NotOurs::Foreign(_))), "there is no note");
    }

    /// The lease ended, or a person ended the agent, during the import: it was killed, but the kernel ends it, and the
    /// pool is there then.
    #[tokio::test]
    async fn a_pool_whose_import_was_given_up_may_be_there() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = AgentConfig { run_dir: dir.path().into(), ..AgentConfig::default() };
        (config.pool.kind, config.pool.name) = (PoolKind::Zfs, Some("given-up".into()));
        let import = "/usr/sbin/zpool import -f -o cachefile=none -d /dev/nbd0 given-up";
        let child = Command::new("sleep").arg("600").kill_on_drop(true).spawn().unwrap();
        let pid = child.id().unwrap().cast_signed();
        process::leave(import, child);
        let asked = async |script: &str, limit: Duration| {
            let mut zpool = Command::new("sh");
            zpool.arg("-c").arg(script);
            pool_there_within(&config, zpool, None, limit).await
        };
        let late = async || asked("exec sleep 600.5", Duration::from_millis(50)).await;
        let unable = async || pool_there(&config, Command::new(dir.path().join("no-zpool")), None).await;
        for answer in [late().await, unable().await] {
            assert!(matches!(&answer, Err(NotOurs::Unlooked(why)) if why.contains(import)), "{answer:?}");
        }
        let absent = "echo \"cannot open 'given-up': no such pool\" >&2; exit 1";
        assert_eq!(asked(absent, ASK_LIMIT).await, Ok(false));
        process::signal(pid, rustix::process::Signal::KILL);
        let begun = std::time::Instant::now();
        while !process::hanging(|command| command == import).is_empty() && begun.elapsed() < Duration::from_secs(20) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        for answer in [late().await, unable().await] {
            assert!(matches!(answer, Err(NotOurs::Foreign(_))), "it has ended without the pool: {answer:?}");
        }
    }

    #[test]
    fn an_import_is_known_by_its_words() {
        for (command, name, is) in [
            ("/sbin/zpool import -f -o cachefile=none -d /dev/nbd0 tank", "tank", true),
            ("zpool import -f tank", "tank", true),
            ("/sbin/zpool import -f -d /dev/nbd0 tank2", "tank", false),
            ("/sbin/zpool list -v tank", "tank", false),
            ("/sbin/zfs import tank", "tank", false),
            ("/sbin/zpool", "tank", false),
        ] {
            assert_eq!(imports(command, name), is, "{command}");
        }
    }

    #[tokio::test]
    async fn a_mount_that_is_not_ours_is_named() {
        // The root of this machine belongs to no agent.
        let dir = tempfile::tempdir().unwrap();
        let mut config = AgentConfig { run_dir: dir.path().into(), ..AgentConfig::default() };
        config.pool.mount = "/".into();
        let why = there(&config).await.unwrap_err().to_string();
        assert!(why.contains("/: found ") && why.contains("expected nothing, or a device of the attach in"), "{why}");
        // The very mount that was noted.
        note(&config);
        assert_eq!(there(&config).await, Ok(true));
        config.pool.mount = dir.path().join("nothing");
        assert_eq!(there(&config).await, Ok(false));
    }
}
