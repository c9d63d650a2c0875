//! Importing a ZFS pool, asked of `zpool`; its host id and `multihost`.
//!
//! Imported by force always: the pool says whether its last host let go of it in good order, and without -f it refuses for ever one that did not. Whether that host can
//! still write is the lease's business: it cannot (R2), or these devices would not be here. What -f also passes over is another host's id on the pool; so where
//! `multihost` is wanted as a second line, the ids have to be right (`hostid`, H1). Copies of pools, for standbys, are imported in another way ([`copy`]).

mod copy;
pub mod rules;

use crate::config::PoolConfig;
use crate::hostid::{self, Told};
use crate::process::{run, system};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::process::Command;

/// For a question to the pool, or a property of it.
const ASK_LIMIT: Duration = Duration::from_secs(5);

/// Lock in a slot's run directory, of the programs that import its copy: they may outlive whoever started them.
pub const IMPORT_LOCK: &str = "import.lock";

/// The programs of ZFS, and the files that it reads.
#[derive(Clone, Debug)]
pub struct Zfs {
    zpool: PathBuf,
    zfs: PathBuf,
    zdb: PathBuf,
    /// What /sys and /etc lie below.
    root: PathBuf,
    /// Of whoever imports a copy.
    turn: Arc<tokio::sync::Mutex<()>>,
}

fn of(program: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    // Some of its words decide ([`rules::is_suspended`]).
    command.args(args).env("LC_ALL", "C");
    command
}

/// Why an import failed. ZFS says so itself where it wants a host id, in some of its versions in other words.
fn hinted(id: &Result<String, String>, why: String) -> String {
    match id {
        Ok(id) if id == hostid::NONE => {
            format!("{why} (the host id of this host is not set: {})", hostid::GENERATE)
        }
        _ => why,
    }
}

impl Zfs {
    /// This system's.
    pub fn of_system() -> Self {
        let program = |name: &str| PathBuf::from(system(name).as_std().get_program());
        Self {
            zpool: program("zpool"),
            zfs: program("zfs"),
            zdb: program("zdb"),
            root: "/".into(),
            turn: Arc::default(),
        }
    }

    /// `zpool` with these arguments.
    pub fn zpool(&self, args: &[&str]) -> Command {
        of(&self.zpool, args)
    }

    /// Host id of this host.
    ///
    /// # Errors
    /// It could not be read.
    pub fn host_id(&self) -> Result<String, String> {
        hostid::read_in(&self.root)
    }

    /// Imports the pool from these devices, beside the hosts that told their ids; what is not as it should be then, "" for nothing.
    ///
    /// # Errors
    /// Why not. Before anything was done where the host ids are in the way.
    pub async fn import(&self, pool: &PoolConfig, devices: &[&str], others: &[Told]) -> Result<String, String> {
        let name = pool.name.as_deref().unwrap_or_default();
        let id = self.host_id();
        if pool.multihost {
            let id =
                id.as_deref().map_err(|why| format!("pool {name}: the host id of this host is not known: {why}"))?;
            hostid::may_import(id, others).map_err(|why| format!("pool {name} is not imported: {why}"))?;
        }
        let mut command = self.zpool(&["import", "-f", "-o", "cachefile=none"]);
        for device in devices {
            command.args(["-d", device]);
        }
        command.arg(name);
        let limit = Duration::from_secs(pool.import_timeout_s);
        run(command, limit).await.map_err(|why| hinted(&id, why))?;
        Ok(if pool.multihost { self.multihost(name).await } else { String::new() })
    }

    /// Sees to it that the pool has `multihost=on`. It is imported, and the lease decides who writes: what is in the way is told, and stops nothing.
    async fn multihost(&self, name: &str) -> String {
        let told = |why: String| {
            format!(
                "pool {name}: multihost is wanted (pool.multihost) and not on: {why}; try `zpool set multihost=on {name}`"
            )
        };
        match run(self.zpool(&["get", "-H", "-o", "value", "multihost", name]), ASK_LIMIT).await {
            Ok(value) if value == "on" => String::new(),
            Ok(value) => match run(self.zpool(&["set", "multihost=on", name]), ASK_LIMIT).await {
                Ok(_) => {
                    tracing::info!(pool = name, found = value, "multihost is on now");
                    String::new()
                }
                Err(why) => told(why),
            },
            Err(why) => told(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// Stands in for zpool; what it does is told in its head.
    const STAND_IN: &str = include_str!("zpool.sh");

    struct Stage {
        dir: tempfile::TempDir,
        zfs: Zfs,
        pool: PoolConfig,
    }

    fn stage(host_id: u32, multihost: bool) -> Stage {
        let dir = tempfile::tempdir().unwrap();
        let (state, root) = (dir.path().join("state"), dir.path().join("root"));
        for dir in [&state, &root.join("etc")] {
            std::fs::create_dir_all(dir).unwrap();
        }
        let program = dir.path().join("zpool");
        std::fs::write(&program, STAND_IN.replace("@STATE@", state.to_str().unwrap())).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        if host_id != 0 {
            std::fs::write(root.join("etc/hostid"), host_id.to_ne_bytes()).unwrap();
        }
        let pool = PoolConfig { name: Some("tank".into()), multihost, ..PoolConfig::default() };
        Stage { dir, zfs: Zfs { zpool: program, root, ..Zfs::of_system() }, pool }
    }

    impl Stage {
        fn file(&self, name: &str) -> PathBuf {
            self.dir.path().join("state").join(name)
        }

        fn has(&self, name: &str) {
            std::fs::write(self.file(name), "").unwrap();
        }

        fn did(&self) -> Vec<String> {
            read(&self.file("did")).lines().map(str::to_string).collect()
        }

        async fn import(&self, others: &[Told]) -> Result<String, String> {
            self.zfs.import(&self.pool, &["/dev/nbd0", "/dev/nbd1"], others).await
        }
    }

    fn read(path: &Path) -> String {
        std::fs::read_to_string(path).unwrap_or_default()
    }

    const IMPORT: &str = "import -f -o cachefile=none -d /dev/nbd0 -d /dev/nbd1 tank";
    const GET: &str = "get -H -o value multihost tank";
    const SET: &str = "set multihost=on tank";

    fn told(name: &str, id: u32) -> Told {
        (name.into(), Ok(format!("{id:08x}")))
    }

    #[tokio::test]
    async fn without_multihost_any_host_id_does() {
        for id in [0, 7] {
            let stage = stage(id, false);
            assert_eq!(stage.import(&[told("db2", id)]).await, Ok(String::new()));
            assert_eq!(stage.did(), [IMPORT]);
        }
    }

    #[tokio::test]
    async fn with_multihost_no_pool_is_touched_under_a_host_id_that_is_none_or_two_hosts() {
        let none = stage(0, true);
        let why = none.import(&[told("db2", 7)]).await.unwrap_err();
        assert!(why.contains("pool tank is not imported") && why.contains("zgenhostid"), "{why}");
        let two = stage(7, true);
        let why = two.import(&[told("db2", 7)]).await.unwrap_err();
        assert!(why.contains("is that of db2 too") && why.contains("zgenhostid"), "{why}");
        let unread = stage(0, true);
        std::fs::create_dir(unread.zfs.root.join("etc/hostid")).unwrap();
        let why = unread.import(&[]).await.unwrap_err();
        assert!(why.contains("is not known"), "{why}");
        for stage in [none, two, unread] {
            assert_eq!(stage.did(), Vec::<String>::new());
        }
    }

    #[tokio::test]
    async fn multihost_is_looked_at_after_the_import_and_set_where_it_is_off() {
        let off = stage(7, true);
        let silent = ("db3".to_string(), Err("no route".to_string()));
        assert_eq!(off.import(&[told("db2", 8), silent]).await, Ok(String::new()));
        assert_eq!(off.did(), [IMPORT, GET, SET]);
        let on = stage(7, true);
        on.has("multihost");
        assert_eq!(on.import(&[told("db2", 8)]).await, Ok(String::new()));
        assert_eq!(on.did(), [IMPORT, GET]);
    }

    #[tokio::test]
    async fn a_pool_that_takes_no_multihost_is_imported_and_that_is_told() {
        for trouble in ["unset", "unasked"] {
            let stage = stage(7, true);
            stage.has(trouble);
            let warning = stage.import(&[]).await.unwrap();
            assert!(warning.contains("not on") && warning.contains("zpool set multihost=on tank"), "{warning}");
            assert!(stage.file("imported").exists());
        }
    }

    /// The pool has it, the settings do not: ZFS refuses, and what would help is said all the same.
    #[tokio::test]
    async fn an_import_that_fails_without_a_host_id_names_it() {
        let zero = stage(0, false);
        zero.has("multihost");
        let why = zero.import(&[]).await.unwrap_err();
        assert!(why.contains("stand-in") && why.contains("zgenhostid"), "{why}");
        let set = stage(7, false);
        set.has("broken");
        let why = set.import(&[]).await.unwrap_err();
        assert!(why.contains("no such pool") && !why.contains("zgenhostid"), "{why}");
    }
}
