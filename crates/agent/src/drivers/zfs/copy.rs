//! A copy of a pool, for a standby: imported under a name of its own on this host and with a guid of its own, mounted
//! below one directory. [`rules`](super::rules) decides.
//!
//! 1. `zpool import -R` under a new name: the name is stored in the copy's scratch file only, and every mountpoint lies
//!    below that directory. Not a temporary name (`-t`): `zpool` checks the name on the disk when it looks for a name
//!    in use, and would refuse the pool itself beside its copy. By force, because the labels still name the primary's
//!    host. `failmode=continue`: processes that wait for a failed copy get an error and can end.
//! 2. `zpool reguid`, next in the same process. If an agent of this host imports the pool itself in between, ZFS
//!    refuses, and the agent tries again.
//! 3. `multihost=off` if it is on: no other host can have this copy, and it would write all the time.
//! 4. The datasets.

use super::rules::{Dataset, Imported, Label, to_mount};
use super::vdevs::{in_english, is_imported};
use super::{Zfs, hinted, of};
use crate::process::{NotRan, Ran, SAID_BYTES_MAX, ran, run};
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;
use tokio::process::Command;
use tokio::sync::OwnedMutexGuard;

/// Time limit of a question: ZFS answers none while it imports any pool of the host.
const LOOK_LIMIT: Duration = Duration::from_secs(30);

/// Steps 1 and 2, or neither. It runs in the background of the shell, and ignores signals that a terminal or a service
/// manager sends to a whole group: ending the shell, at a limit or at shutdown, must not leave a pool with another
/// pool's guid behind. The lock is held until the last of these programs has ended; whoever can open it can hold it.
/// A pool that cannot write is not exported (STANDBY-U9).
const IMPORT: &str = "\
lock=$1
name=$2
shift 2
(umask 077 && : >>\"$lock\" && chmod 600 \"$lock\")
(
  trap '' HUP INT PIPE TERM
  flock -n 3 || { echo \"$lock: found an earlier import that goes on, expected none\" >&2; exit 1; }
  \"$0\" \"$@\" || exit
  \"$0\" reguid \"$name\" && exit
  \"$0\" sync \"$name\" && \"$0\" export \"$name\"
  exit 1
) 3>>\"$lock\" &
wait $!";

/// Refuses a mountpoint with a link on its path from `root`: the mount would follow it to a directory of the host
/// (STANDBY-U10).
async fn no_link_to(at: &Path, root: &Path) -> Result<(), String> {
    let mut place = root.to_path_buf();
    for part in at.strip_prefix(root).map_err(|_| format!("{}: not below {}", at.display(), root.display()))? {
        place.push(part);
        match tokio::fs::symlink_metadata(&place).await {
            Ok(found) if found.is_symlink() => {
                return Err(format!(
                    "{}: found a link of the copy on the way to the mountpoint {}, expected directories: a mount would follow it off the copy",
                    place.display(),
                    at.display()
                ));
            }
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(format!("{}: {error}", place.display())),
        }
    }
    Ok(())
}

impl Zfs {
    /// While this is held, no other task of this process imports a copy.
    pub async fn turn(&self) -> OwnedMutexGuard<()> {
        self.turn.clone().lock_owned().await
    }

    /// The pools that are imported here.
    ///
    /// # Errors
    /// ZFS did not answer. No pool is an answer.
    pub async fn pools(&self) -> Result<Vec<Imported>, String> {
        Imported::list(&run(self.zpool(&["list", "-H", "-p", "-o", "name,guid,health"]), LOOK_LIMIT).await?)
    }

    /// Whether a pool of this name is imported here, by exit code and error text: a list may lack output that came late
    /// and was not waited for.
    ///
    /// # Errors
    /// No answer, or an error that says nothing about the pool.
    pub async fn has(&self, name: &str) -> Result<bool, String> {
        let mut list = self.zpool(&["list", "-H", "-o", "name", name]);
        in_english(&mut list);
        is_imported(&ran(list, LOOK_LIMIT).await?)
    }

    /// The labels of these devices, without an import.
    ///
    /// # Errors
    /// A device has none.
    pub async fn labels(&self, devices: &[&str]) -> Result<Vec<Label>, String> {
        let mut labels = Vec::new();
        for device in devices {
            // In a snapshot, some of its four copies may be torn, and the exit code counts them; one good copy is
            // enough.
            let said = ran(of(&self.zdb, &["-l", device]), LOOK_LIMIT).await?;
            let label = Label::read(&said.out)
                .ok_or_else(|| format!("{device}: found no label of ZFS, expected one (pool.kind): {}", said.err))?;
            labels.push(label);
        }
        Ok(labels)
    }

    /// Imports the pool of `label` from these devices as `name`, and mounts it below `root`. Returns the mounts,
    /// parents first. The programs that import it hold `lock` as long as one of them runs.
    ///
    /// # Errors
    /// The reason; the pool may be imported.
    pub async fn import_copy(
        &self,
        label: &Label,
        devices: &[&str],
        name: &str,
        root: &Path,
        lock: &Path,
        limit: Duration,
    ) -> Result<Vec<Dataset>, String> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", IMPORT]).arg(&self.zpool).arg(lock).arg(name);
        command.args(["import", "-f", "-N", "-o", "failmode=continue", "-o", "cachefile=none", "-R"]).arg(root);
        for device in devices {
            command.args(["-d", device]);
        }
        command.arg(&label.guid).arg(name);
        let turn = self.turn().await;
        // In a task of its own: a cancelled refresh must not release the turn before this has ended.
        let importing = tokio::spawn(async move {
            let _turn = turn;
            ran(command, limit).await
        });
        let failed = match importing.await.map_err(|error| error.to_string())? {
            Ok(Ran { code: Some(0), .. }) => None,
            Ok(Ran { out, err, .. }) => Some(if err.is_empty() { out } else { err }),
            Err(NotRan::Late(_)) => Some(format!("not within {} s; it may go on", limit.as_secs())),
            Err(NotRan::Unable(why)) => Some(why),
        };
        if let Some(why) = failed {
            return Err(hinted(&self.host_id(), format!("the import of pool {} as {name}: {why}", label.pool)));
        }
        if run(self.zpool(&["get", "-H", "-o", "value", "multihost", name]), LOOK_LIMIT).await? == "on" {
            run(self.zpool(&["set", "multihost=off", name]), LOOK_LIMIT).await?;
        }
        let list = ["list", "-H", "-p", "-r", "-t", "filesystem", "-o", "name,mountpoint,canmount", name];
        let listed = run(of(&self.zfs, &list), LOOK_LIMIT).await?;
        // The output was cut there, except for a line's end: a dataset may be missing.
        if listed.len() + 1 >= SAID_BYTES_MAX {
            return Err(format!(
                "zfs list {name}: found {SAID_BYTES_MAX} bytes or more, expected less: the pool has too many datasets for a standby"
            ));
        }
        let datasets = to_mount(&listed, root)?;
        for dataset in &datasets {
            // One by one: the first mount may contain the link.
            let looked = tokio::time::timeout(limit, no_link_to(&dataset.at, root)).await;
            looked.map_err(|_| format!("{}: no answer within {} s", dataset.at.display(), limit.as_secs()))??;
            run(of(&self.zfs, &["mount", &dataset.name]), limit).await?;
        }
        Ok(datasets)
    }

    /// Exports it, even if processes still use it (STANDBY-U9).
    ///
    /// # Errors
    /// It is still there.
    pub async fn export_copy(&self, name: &str, limit: Duration) -> Result<(), String> {
        self.sync(name, limit).await?;
        run(self.zpool(&["export", "-f", name]), limit).await.map(drop)
    }

    /// Makes it write its pending data, and so checks that it can, at a time when ZFS holds no lock that others need
    /// (STANDBY-U9).
    ///
    /// # Errors
    /// It cannot.
    pub async fn sync(&self, name: &str, limit: Duration) -> Result<(), String> {
        run(self.zpool(&["sync", name]), limit).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_host::lock::is_locked;
    use rustix::process::{Pid, Signal, kill_process_group};
    use std::fs::{File, create_dir_all, read_to_string, write};
    use std::io::Write;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;
    use std::time::Instant;

    /// Fake zpool, zfs and zdb; their head comment describes them.
    const STAND_IN: &str = include_str!("copy.sh");

    const NAME: &str = "holdfast-standby-r-a";
    const LIMIT: Duration = Duration::from_secs(60);

    impl Zfs {
        /// With fake programs in `dir`; their state and log are in its folder `state`.
        pub fn of_stand_ins(dir: &Path) -> Self {
            let state = dir.join("state");
            create_dir_all(&state).unwrap();
            let text = dir.join("text");
            write(&text, STAND_IN.replace("@STATE@", state.to_str().unwrap())).unwrap();
            for name in ["zpool", "zfs", "zdb"] {
                let program = dir.join(name);
                // Written by another process: if this one wrote it, a child started for another test meanwhile would
                // have it open for writing, and it could not be executed.
                let mut install = std::process::Command::new("install");
                assert!(install.args(["-m", "0755"]).args([&text, &program]).status().unwrap().success());
            }
            Self::below(dir)
        }
    }

    struct Stage {
        dir: tempfile::TempDir,
        zfs: Zfs,
    }

    fn stage() -> Stage {
        let dir = tempfile::tempdir().unwrap();
        let zfs = Zfs::of_stand_ins(dir.path());
        let stage = Stage { dir, zfs };
        let root = stage.root().display().to_string();
        let datasets = format!("{NAME}\tnone\ton\n{NAME}/wal\t{root}/tank/wal\ton\n{NAME}/pg\t{root}/tank\ton\n");
        write(stage.file("datasets"), datasets).unwrap();
        stage
    }

    impl Stage {
        fn root(&self) -> PathBuf {
            self.dir.path().join("copies/a")
        }

        fn file(&self, name: &str) -> PathBuf {
            self.dir.path().join("state").join(name)
        }

        fn lock(&self) -> PathBuf {
            self.dir.path().join("import.lock")
        }

        fn has(&self, name: &str) {
            write(self.file(name), "").unwrap();
        }

        fn did(&self) -> Vec<String> {
            read_to_string(self.file("did")).unwrap_or_default().lines().map(str::to_string).collect()
        }

        fn import_line(&self) -> String {
            let root = self.root().display().to_string();
            format!(
                "zpool import -f -N -o failmode=continue -o cachefile=none -R {root} -d /dev/loop0 -d /dev/loop1 11 {NAME}"
            )
        }

        async fn guids(&self) -> Vec<String> {
            self.zfs.pools().await.unwrap().into_iter().map(|pool| pool.guid).collect()
        }

        /// An import waits for [`Self::go`].
        fn gate(&self) {
            assert!(std::process::Command::new("mkfifo").arg(self.file("gate")).status().unwrap().success());
        }

        /// Opened for reading and writing: there may be no reader any more. Written data stays as long as this is open.
        fn go(&self) -> File {
            let mut gate = File::options().read(true).write(true).open(self.file("gate")).unwrap();
            gate.write_all(b"go\n").unwrap();
            gate
        }

        async fn did_begin(&self, what: &str) {
            let begun = Instant::now();
            while !self.did().iter().any(|line| line.starts_with(what)) {
                assert!(begun.elapsed() < LIMIT, "no {what}: {:?}", self.did());
                tokio::task::yield_now().await;
            }
        }
    }

    async fn import(zfs: &Zfs, root: &Path, lock: &Path) -> Result<Vec<Dataset>, String> {
        let label = zfs.labels(&["/dev/loop0"]).await?.remove(0);
        zfs.import_copy(&label, &["/dev/loop0", "/dev/loop1"], NAME, root, lock, LIMIT).await
    }

    #[tokio::test]
    async fn a_copy_has_a_guid_of_its_own_and_its_datasets_are_mounted_in_order() {
        let stage = stage();
        let mounted = import(&stage.zfs, &stage.root(), &stage.lock()).await.unwrap();
        let at: Vec<&Path> = mounted.iter().map(|dataset| dataset.at.as_path()).collect();
        assert_eq!(at, [stage.root().join("tank"), stage.root().join("tank/wal")]);
        assert_eq!(stage.guids().await, ["12"]);
        let did = stage.did();
        let [zdb, imported, reguid, rest @ ..] = did.as_slice() else { panic!("{did:?}") };
        assert_eq!((zdb.as_str(), imported), ("zdb -l /dev/loop0", &stage.import_line()));
        assert_eq!(*reguid, format!("zpool reguid {NAME}"));
        assert!(rest[0].starts_with("zpool get") && rest[1].starts_with("zfs list"), "{rest:?}");
        assert_eq!(rest[2..4], [format!("zfs mount {NAME}/pg"), format!("zfs mount {NAME}/wal")]);
    }

    #[tokio::test]
    async fn multihost_of_a_copy_is_switched_off() {
        let stage = stage();
        stage.has("multihost");
        import(&stage.zfs, &stage.root(), &stage.lock()).await.unwrap();
        assert!(stage.did().contains(&format!("zpool set multihost=off {NAME}")), "{:?}", stage.did());
    }

    #[tokio::test]
    async fn what_gets_no_guid_of_its_own_does_not_stay() {
        let stage = stage();
        stage.has("same");
        let why = import(&stage.zfs, &stage.root(), &stage.lock()).await.unwrap_err();
        assert!(why.contains("stand-in: no new guid"), "{why}");
        assert_eq!(stage.guids().await, Vec::<String>::new());
        let broken = self::stage();
        broken.has("broken");
        let why = import(&broken.zfs, &broken.root(), &broken.lock()).await.unwrap_err();
        assert!(why.contains("stand-in: no such pool"), "{why}");
        assert_eq!(broken.did()[1..], [broken.import_line()], "nothing came after it");
        // A device without a label.
        let why = stage.zfs.labels(&["/dev/loop0", "/dev/blank"]).await.unwrap_err();
        assert!(why.contains("/dev/blank: found no label"), "{why}");
    }

    #[tokio::test]
    async fn what_gets_no_guid_of_its_own_and_cannot_write_is_not_exported() {
        let stage = stage();
        stage.has("same");
        stage.has("suspended");
        let why = import(&stage.zfs, &stage.root(), &stage.lock()).await.unwrap_err();
        assert!(why.contains("stand-in: no new guid"), "{why}");
        assert!(!stage.did().iter().any(|line| line.contains("export")), "STANDBY-U9: {:?}", stage.did());
    }

    #[tokio::test]
    async fn a_list_of_datasets_that_was_cut_is_not_taken_for_whole() {
        let stage = stage();
        let line = format!("{NAME}/x\t{}/x\ton\n", stage.root().display());
        write(stage.file("datasets"), line.repeat(SAID_BYTES_MAX / line.len() + 1)).unwrap();
        let why = import(&stage.zfs, &stage.root(), &stage.lock()).await.unwrap_err();
        assert!(why.contains("too many datasets"), "{why}");
    }

    /// Whoever holds it stops each later import, and the end of each copy.
    #[tokio::test]
    async fn nobody_else_may_hold_the_lock_of_an_import() {
        use std::os::unix::fs::PermissionsExt;
        let stage = stage();
        // That of an earlier version.
        write(stage.lock(), "").unwrap();
        std::fs::set_permissions(stage.lock(), std::fs::Permissions::from_mode(0o644)).unwrap();
        import(&stage.zfs, &stage.root(), &stage.lock()).await.unwrap();
        assert_eq!(std::fs::metadata(stage.lock()).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[tokio::test]
    async fn nothing_is_mounted_through_a_link_of_the_copy() {
        let stage = stage();
        let live = stage.dir.path().join("live");
        create_dir_all(stage.root()).unwrap();
        create_dir_all(&live).unwrap();
        symlink(&live, stage.root().join("tank")).unwrap();
        let why = import(&stage.zfs, &stage.root(), &stage.lock()).await.unwrap_err();
        assert!(why.contains("found a link of the copy"), "{why}");
        assert!(!stage.did().iter().any(|line| line.starts_with("zfs mount")), "STANDBY-U10: {:?}", stage.did());
    }

    #[tokio::test]
    async fn a_refresh_that_is_given_up_leaves_no_pool_with_the_real_ones_guid() {
        let stage = stage();
        stage.gate();
        let (zfs, root, lock) = (stage.zfs.clone(), stage.root(), stage.lock());
        let refresh = tokio::spawn(async move { import(&zfs, &root, &lock).await });
        stage.did_begin("zpool import").await;
        refresh.abort();
        assert!(refresh.await.unwrap_err().is_cancelled());
        assert!(is_locked(stage.dir.path(), "import.lock").unwrap(), "other processes see that it goes on");
        let _gate = stage.go();
        let _turn = stage.zfs.turn().await;
        assert!(!is_locked(stage.dir.path(), "import.lock").unwrap());
        assert_eq!(stage.guids().await, ["12"]);
    }

    #[tokio::test]
    async fn an_import_goes_on_to_its_guid_when_its_shell_ends_with_its_terminal() {
        let stage = stage();
        stage.gate();
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", IMPORT]).arg(&stage.zfs.zpool).arg(stage.lock()).args([NAME, "import", "11", NAME]);
        let mut shell = shell.process_group(0).spawn().unwrap();
        stage.did_begin("zpool import").await;
        let group = Pid::from_raw(i32::try_from(shell.id().unwrap()).unwrap()).unwrap();
        for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
            kill_process_group(group, signal).unwrap();
        }
        assert!(shell.wait().await.unwrap().code().is_none(), "by a signal");
        let _gate = stage.go();
        stage.did_begin("zpool reguid").await;
    }

    #[tokio::test]
    async fn a_pool_that_writes_nothing_is_not_asked_to_go() {
        let stage = stage();
        write(stage.file("pools"), format!("{NAME}\t12\tONLINE\n")).unwrap();
        stage.has("still");
        let why = stage.zfs.export_copy(NAME, LIMIT).await.unwrap_err();
        assert!(why.contains("stand-in: does not sync"), "{why}");
        assert!(!stage.did().iter().any(|line| line.contains("export")), "{:?}", stage.did());
        std::fs::remove_file(stage.file("still")).unwrap();
        stage.zfs.export_copy(NAME, LIMIT).await.unwrap();
        assert_eq!(stage.guids().await, Vec::<String>::new());
    }
}
