//! A copy of a pool, for a standby: imported under a name of this host's and with a guid of its own, mounted below one directory. What is decided is in
//! [`rules`](super::rules).
//!
//! 1. `zpool import -t -R`: the name is never on a disk, every mountpoint lies below that directory. By force: the labels say that the primary's host has it.
//!    `failmode=continue`: what waits for a copy that fails gets an error and can be ended.
//! 2. `zpool reguid`, next in the same process. An agent of this host that imports the pool itself in between is refused by ZFS, and tries again.
//! 3. `multihost=off` where it is on: nobody else can have this copy, and it would write all the time.
//! 4. The datasets.

use super::rules::{Dataset, Imported, Label, to_mount};
use super::{Zfs, hinted, of};
use crate::process::{NotRan, Ran, ran, run};
use std::path::Path;
use std::time::Duration;
use tokio::process::Command;
use tokio::sync::OwnedMutexGuard;

/// For a question: ZFS answers none while any pool of the host is being imported.
const LOOK_LIMIT: Duration = Duration::from_secs(30);

/// Steps 1 and 2, or neither. In the background of the shell: whoever ends that, at a limit or on the way out, does not leave a pool with the guid of another behind.
const IMPORT: &str = "\
name=$1
shift
(
  \"$0\" \"$@\" || exit
  \"$0\" reguid \"$name\" && exit
  \"$0\" export \"$name\"
  exit 1
) &
wait $!";

impl Zfs {
    /// Nobody of this process imports a copy while this is held.
    pub async fn turn(&self) -> OwnedMutexGuard<()> {
        self.turn.clone().lock_owned().await
    }

    /// The pools that are imported here.
    ///
    /// # Errors
    /// ZFS does not say it; that they are none is an answer.
    pub async fn pools(&self) -> Result<Vec<Imported>, String> {
        Imported::list(&run(self.zpool(&["list", "-H", "-p", "-o", "name,guid,health"]), LOOK_LIMIT).await?)
    }

    /// What the labels of these devices say, without an import.
    ///
    /// # Errors
    /// One has none.
    pub async fn labels(&self, devices: &[&str]) -> Result<Vec<Label>, String> {
        let mut labels = Vec::new();
        for device in devices {
            // Of its four copies some may be torn in a snapshot, which its exit code counts; one is enough.
            let said = ran(of(&self.zdb, &["-l", device]), LOOK_LIMIT).await?;
            let label = Label::read(&said.out)
                .ok_or_else(|| format!("{device}: found no label of ZFS, expected one (pool.kind): {}", said.err))?;
            labels.push(label);
        }
        Ok(labels)
    }

    /// Imports the pool of `label` from these devices as `name`, and mounts it below `root`; what is mounted, parents first.
    ///
    /// # Errors
    /// Why not; the pool may be there.
    pub async fn import_copy(
        &self,
        label: &Label,
        devices: &[&str],
        name: &str,
        root: &Path,
        limit: Duration,
    ) -> Result<Vec<Dataset>, String> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", IMPORT]).arg(&self.zpool).arg(name);
        command.args(["import", "-f", "-N", "-t", "-o", "failmode=continue", "-R"]).arg(root);
        for device in devices {
            command.args(["-d", device]);
        }
        command.arg(&label.guid).arg(name);
        let turn = self.turn().await;
        // Apart: a refresh that is given up does not give the turn away before this has ended.
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
        let datasets = to_mount(&run(of(&self.zfs, &list), LOOK_LIMIT).await?, root)?;
        for dataset in &datasets {
            run(of(&self.zfs, &["mount", &dataset.name]), limit).await?;
        }
        Ok(datasets)
    }

    /// Exports it, whoever still stands in it (U9).
    ///
    /// # Errors
    /// It is still there.
    pub async fn export_copy(&self, name: &str, limit: Duration) -> Result<(), String> {
        self.sync(name, limit).await?;
        run(self.zpool(&["export", "-f", name]), limit).await.map(drop)
    }

    /// Has it write what it has not written, and finds out so whether it can, where ZFS holds nothing that others need (U9).
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
    use std::fs::{read_to_string, write};
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;
    use std::time::Instant;

    /// Stands in for zpool, zfs and zdb; what it does is told in its head.
    const STAND_IN: &str = include_str!("copy.sh");

    const NAME: &str = "holdfast-standby-r-a";
    const LIMIT: Duration = Duration::from_secs(60);

    impl Zfs {
        /// Over stand-ins in `dir`, whose folder `state` has what they know and did.
        pub fn of_stand_ins(dir: &Path) -> Self {
            let state = dir.join("state");
            std::fs::create_dir_all(&state).unwrap();
            let [zpool, zfs, zdb] = ["zpool", "zfs", "zdb"].map(|name| {
                let program = dir.join(name);
                write(&program, STAND_IN.replace("@STATE@", state.to_str().unwrap())).unwrap();
                std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
                program
            });
            Self { zpool, zfs, zdb, root: dir.join("root"), ..Self::of_system() }
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

        fn has(&self, name: &str) {
            write(self.file(name), "").unwrap();
        }

        fn did(&self) -> Vec<String> {
            read_to_string(self.file("did")).unwrap_or_default().lines().map(str::to_string).collect()
        }

        fn import_line(&self) -> String {
            let root = self.root().display().to_string();
            format!("zpool import -f -N -t -o failmode=continue -R {root} -d /dev/loop0 -d /dev/loop1 11 {NAME}")
        }

        async fn guids(&self) -> Vec<String> {
            self.zfs.pools().await.unwrap().into_iter().map(|pool| pool.guid).collect()
        }

        /// An import waits for [`Self::go`].
        fn gate(&self) {
            assert!(std::process::Command::new("mkfifo").arg(self.file("gate")).status().unwrap().success());
        }

        fn go(&self) {
            write(self.file("gate"), "go\n").unwrap();
        }

        async fn did_begin(&self, what: &str) {
            let begun = Instant::now();
            while !self.did().iter().any(|line| line.starts_with(what)) {
                assert!(begun.elapsed() < LIMIT, "no {what}: {:?}", self.did());
                tokio::task::yield_now().await;
            }
        }
    }

    async fn import(zfs: &Zfs, root: &Path) -> Result<Vec<Dataset>, String> {
        let label = zfs.labels(&["/dev/loop0"]).await?.remove(0);
        zfs.import_copy(&label, &["/dev/loop0", "/dev/loop1"], NAME, root, LIMIT).await
    }

    #[tokio::test]
    async fn a_copy_has_a_guid_of_its_own_and_its_datasets_are_mounted_in_order() {
        let stage = stage();
        let mounted = import(&stage.zfs, &stage.root()).await.unwrap();
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
        import(&stage.zfs, &stage.root()).await.unwrap();
        assert!(stage.did().contains(&format!("zpool set multihost=off {NAME}")), "{:?}", stage.did());
    }

    #[tokio::test]
    async fn what_gets_no_guid_of_its_own_does_not_stay() {
        let stage = stage();
        stage.has("same");
        let why = import(&stage.zfs, &stage.root()).await.unwrap_err();
        assert!(why.contains("stand-in: no new guid"), "{why}");
        assert_eq!(stage.guids().await, Vec::<String>::new());
        let broken = self::stage();
        broken.has("broken");
        let why = import(&broken.zfs, &broken.root()).await.unwrap_err();
        assert!(why.contains("stand-in: no such pool"), "{why}");
        assert_eq!(broken.did()[1..], [broken.import_line()], "nothing came after it");
        // A device without a label.
        let why = stage.zfs.labels(&["/dev/loop0", "/dev/blank"]).await.unwrap_err();
        assert!(why.contains("/dev/blank: found no label"), "{why}");
    }

    #[tokio::test]
    async fn a_refresh_that_is_given_up_leaves_no_pool_with_the_real_ones_guid() {
        let stage = stage();
        stage.gate();
        let (zfs, root) = (stage.zfs.clone(), stage.root());
        let refresh = tokio::spawn(async move { import(&zfs, &root).await });
        stage.did_begin("zpool import").await;
        refresh.abort();
        assert!(refresh.await.unwrap_err().is_cancelled());
        stage.go();
        let _turn = stage.zfs.turn().await;
        assert_eq!(stage.guids().await, ["12"]);
    }

    #[tokio::test]
    async fn an_import_goes_on_to_its_guid_when_its_shell_is_killed() {
        let stage = stage();
        stage.gate();
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", IMPORT]).arg(&stage.zfs.zpool).args([NAME, "import", "11", NAME]);
        let mut shell = shell.spawn().unwrap();
        stage.did_begin("zpool import").await;
        shell.kill().await.unwrap();
        stage.go();
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
