//! Imports a ZFS pool with `zpool`; handles its host id and `multihost`.
//!
//! Always imports by force. The pool records whether its last host exported it, and without -f an unexported pool is
//! refused for ever. Whether that host can still write is decided by the lease: it cannot (R2), or these devices would
//! not exist here. But -f also ignores another host's id on the pool, so if `multihost` is wanted as a second
//! protection, the ids must be right (`hostid`, HOSTID-H1). Copies of pools, for standbys, are imported in another way
//! (`copy`).
//!
//! -f does not skip the activity check of ZFS for a pool with `multihost=on` that another host did not export: `zpool
//! import` first watches the pool for writes, for as long as that host's settings say (20 to 25 s with ZFS's defaults).
//! It may be killed meanwhile; every other `zpool` of this host waits for it.
//!
//! Never without its devices: without -d, ZFS searches every disk of this host for a pool of that name, and -f would
//! take one that is somebody else's.
//!
//! Never with -m, by which ZFS leaves out a log device (SLOG) that it does not find: acknowledged commits may be there
//! and nowhere else, and only a person may give them up.

mod copy;
pub mod datasets;
pub mod rules;
pub mod vdevs;

use crate::config::PoolConfig;
use crate::hostid::{self, PeerHostId};
use crate::process::{Ran, run, run_explained, system};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::process::Command;

/// Time limit of a question about the pool.
const ASK_LIMIT: Duration = Duration::from_secs(5);

/// Time limit to set a property: it is written with the pool's next transaction group, which is larger just after an
/// import.
const SET_LIMIT: Duration = Duration::from_secs(20);

/// Possible reasons why an import took too long.
const WATCHED_FIRST: &str = "a pool with multihost=on that another host did not export is watched before it is \
                             imported (ZFS's activity check), by default for 20 to 25 s, longer with a larger \
                             zfs_multihost_fail_intervals at that host: pool.import_timeout_s must leave time for that";

/// `zpool import` prints this above the names of missing log devices, on standard output; its error text is the same
/// for any device.
const LOG_IS_MISSING: &str = "use '-m' to import";

/// Parameters of the ZFS module, below the root.
const PARAMETERS: &str = "sys/module/zfs/parameters";

/// Number of intervals for which ZFS accepts that nothing can be written to a pool with `multihost=on`; 0: for ever.
const FAIL_INTERVALS: &str = "zfs_multihost_fail_intervals";

/// The interval of these writes in milliseconds: parameter, default, and minimum (ZFS raises a smaller value to it).
const INTERVAL: &str = "zfs_multihost_interval";
const INTERVAL_DEFAULT_MS: u64 = 1000;
const INTERVAL_MIN_MS: u64 = 100;

/// Lock in a slot's run directory, held by the programs that import its copy: they may outlive the process that started
/// them.
pub const IMPORT_LOCK: &str = "import.lock";

/// What a person should know about a pool that was imported all the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning(pub String);

/// The programs of ZFS, and the files that ZFS reads.
#[derive(Clone, Debug)]
pub struct Zfs {
    zpool: PathBuf,
    zfs: PathBuf,
    zdb: PathBuf,
    /// What /sys and /etc lie below.
    root: PathBuf,
    /// Held while a copy is imported.
    turn: Arc<tokio::sync::Mutex<()>>,
}

fn of(program: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    // Some of its messages are parsed ([`rules::is_suspended`]).
    command.args(args).env("LC_ALL", "C");
    command
}

/// The error of a failed import. ZFS itself reports a missing host id, in different words in different versions.
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

    /// The programs in `dir`, with the system's files below `dir/root`: for tests with fake programs.
    pub fn below(dir: &Path) -> Self {
        let program = |name: &str| dir.join(name);
        Self {
            zpool: program("zpool"),
            zfs: program("zfs"),
            zdb: program("zdb"),
            root: program("root"),
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

    /// Imports the pool from these devices, given the other hosts' ids.
    ///
    /// # Errors
    /// The reason. If the devices or the host ids are the obstacle, nothing was done.
    pub async fn import(
        &self,
        pool: &PoolConfig,
        devices: &[&str],
        others: &[PeerHostId],
    ) -> Result<Option<Warning>, String> {
        let name = pool.name.as_deref().unwrap_or_default();
        if devices.is_empty() {
            return Err(format!(
                "pool {name} is not imported: found no device of the set's volumes, expected one for each volume \
                 (attach.device must not be \"none\", and the agent must be able to read attach's status)"
            ));
        }
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
        run_explained(command, limit, WATCHED_FIRST, missing_log).await.map_err(|why| hinted(&id, why))?;
        Ok(if pool.multihost { self.multihost(name).await } else { None })
    }

    /// Sets `multihost=on` if it is missing. The pool is imported, and the lease decides which host writes: an obstacle
    /// is reported and stops nothing.
    async fn multihost(&self, name: &str) -> Option<Warning> {
        let not_on = |why: String| {
            Some(Warning(format!(
                "pool {name}: multihost is wanted (pool.multihost) and not on: {why}; \
                 try `zpool set multihost=on {name}`"
            )))
        };
        match self.is_multihost(name).await {
            Ok(true) => return self.impatience(name),
            Ok(false) => {}
            Err(why) => return not_on(why),
        }
        let set = run(self.zpool(&["set", "multihost=on", name]), SET_LIMIT).await;
        // R12: a command that failed may have had its effect.
        match (self.is_multihost(name).await, set) {
            (Ok(true), _) => {
                tracing::info!(pool = name, "multihost was turned on");
                self.impatience(name)
            }
            (_, Err(why)) | (Err(why), _) => not_on(why),
            (Ok(false), Ok(_)) => not_on("multihost was set to on, but ZFS still reports off".into()),
        }
    }

    async fn is_multihost(&self, name: &str) -> Result<bool, String> {
        let value = run(self.zpool(&["get", "-H", "-o", "value", "multihost", name]), ASK_LIMIT).await?;
        Ok(value == "on")
    }

    /// Warning about a pool with `multihost=on` that cannot be written to for a while; none if ZFS accepts that or does
    /// not say. R8 lets a device wait for as long as necessary; ZFS by default does not, and suspends the pool until a
    /// reboot. It does so to protect a pool from two writers, which the lease does here.
    fn impatience(&self, name: &str) -> Option<Warning> {
        let read = |parameter: &str| {
            let text = std::fs::read_to_string(self.root.join(PARAMETERS).join(parameter)).ok()?;
            text.trim().parse::<u64>().ok()
        };
        let intervals = read(FAIL_INTERVALS).filter(|intervals| *intervals > 0)?;
        let ms = intervals.saturating_mul(read(INTERVAL).unwrap_or(INTERVAL_DEFAULT_MS).max(INTERVAL_MIN_MS));
        Some(Warning(format!(
            "pool {name}: ZFS suspends it until a reboot once nothing could be written to it for {ms} ms \
             ({FAIL_INTERVALS}: found {intervals}, expected 0): a loss of gateways, or of attach, may take longer; \
             set that parameter of the module zfs to 0 and zfs_multihost_import_intervals to 1 on each host"
        )))
    }
}

/// Text about missing log devices for a failed import, of which the error says too little; "" if it failed for another
/// reason.
fn missing_log(import: &Ran) -> String {
    let said = [&import.out, &import.err].into_iter().find_map(|said| said.split_once(LOG_IS_MISSING));
    let Some((_, below)) = said else { return String::new() };
    let names = below.lines().skip(1).map(str::trim).filter(|name| !name.is_empty() && !name.starts_with("cannot "));
    format!(
        "its log device (SLOG) is not found on this host: {}; commits that were acknowledged may be there and nowhere \
         else, so the agent does not import without it: \
         bring that device here, or its host back; `zpool import -f -m` by hand gives up what is on it",
        names.collect::<Vec<_>>().join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A fake zpool; its head comment describes it.
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

        fn parameter(&self, name: &str, value: &str) {
            let dir = self.zfs.root.join(PARAMETERS);
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(dir.join(name), value).unwrap();
        }

        fn did(&self) -> Vec<String> {
            read(&self.file("did")).lines().map(str::to_string).collect()
        }

        async fn import(&self, others: &[PeerHostId]) -> Result<Option<Warning>, String> {
            self.zfs.import(&self.pool, &["/dev/nbd0", "/dev/nbd1"], others).await
        }
    }

    fn read(path: &Path) -> String {
        std::fs::read_to_string(path).unwrap_or_default()
    }

    const IMPORT: &str = "import -f -o cachefile=none -d /dev/nbd0 -d /dev/nbd1 tank";
    const GET: &str = "get -H -o value multihost tank";
    const SET: &str = "set multihost=on tank";

    fn id_of(name: &str, id: u32) -> PeerHostId {
        (name.into(), Ok(format!("{id:08x}")))
    }

    #[tokio::test]
    async fn without_multihost_any_host_id_does() {
        for id in [0, 7] {
            let stage = stage(id, false);
            assert_eq!(stage.import(&[id_of("db2", id)]).await, Ok(None));
            assert_eq!(stage.did(), [IMPORT]);
        }
    }

    /// OWN-P1. Without -d, ZFS would search every disk of this host, and -f would take a pool that is not of the set.
    #[tokio::test]
    async fn without_a_device_no_pool_is_looked_for() {
        for multihost in [false, true] {
            let stage = stage(7, multihost);
            let why = stage.zfs.import(&stage.pool, &[], &[]).await.unwrap_err();
            assert!(why.contains("found no device of the set's volumes"), "{why}");
            assert_eq!(stage.did(), Vec::<String>::new());
        }
    }

    #[tokio::test]
    async fn with_multihost_no_pool_is_touched_under_a_host_id_that_is_none_or_two_hosts() {
        let none = stage(0, true);
        let why = none.import(&[id_of("db2", 7)]).await.unwrap_err();
        assert!(why.contains("pool tank is not imported") && why.contains("zgenhostid"), "{why}");
        let two = stage(7, true);
        let why = two.import(&[id_of("db2", 7)]).await.unwrap_err();
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
        assert_eq!(off.import(&[id_of("db2", 8), silent]).await, Ok(None));
        assert_eq!(off.did(), [IMPORT, GET, SET, GET]);
        let on = stage(7, true);
        on.has("multihost");
        assert_eq!(on.import(&[id_of("db2", 8)]).await, Ok(None));
        assert_eq!(on.did(), [IMPORT, GET]);
    }

    #[tokio::test]
    async fn a_pool_that_takes_no_multihost_is_imported_and_that_is_told() {
        for (trouble, words) in
            [("unset", "permission denied"), ("unasked", "no answer"), ("forgets", "still reports off")]
        {
            let stage = stage(7, true);
            stage.has(trouble);
            let Warning(warning) = stage.import(&[]).await.unwrap().unwrap();
            assert!(warning.contains("not on") && warning.contains("zpool set multihost=on tank"), "{warning}");
            assert!(warning.contains(words), "{warning}");
            assert!(stage.file("imported").exists());
        }
    }

    /// R12: the set command failed, and had its effect.
    #[tokio::test]
    async fn what_counts_is_what_the_pool_has_then() {
        let stage = stage(7, true);
        stage.has("unsure");
        assert_eq!(stage.import(&[]).await, Ok(None));
        assert_eq!(stage.did(), [IMPORT, GET, SET, GET]);
    }

    /// R8 lets a device wait; ZFS by default then suspends the pool until a reboot.
    #[tokio::test]
    async fn a_pool_that_zfs_would_suspend_soon_is_told_about() {
        for (intervals, interval, ms) in
            [("10\n", "1000\n", "10000 ms"), ("3\n", "20\n", "300 ms"), ("10\n", "", "10000 ms")]
        {
            for is_on in [true, false] {
                let stage = stage(7, true);
                stage.parameter(FAIL_INTERVALS, intervals);
                if !interval.is_empty() {
                    stage.parameter(INTERVAL, interval);
                }
                if is_on {
                    stage.has("multihost");
                }
                let Warning(warning) = stage.import(&[]).await.unwrap().unwrap();
                assert!(warning.contains(ms) && warning.contains("expected 0"), "{warning}");
                assert!(warning.contains("zfs_multihost_import_intervals"), "{warning}");
            }
        }
        let patient = stage(7, true);
        patient.parameter(FAIL_INTERVALS, "0\n");
        assert_eq!(patient.import(&[]).await, Ok(None));
        // Without multihost ZFS has no such limit.
        let off = stage(7, false);
        off.parameter(FAIL_INTERVALS, "10\n");
        assert_eq!(off.import(&[]).await, Ok(None));
    }

    /// `zpool import` prints nothing while ZFS watches the pool, and is killed at its time limit.
    #[tokio::test]
    async fn an_import_that_takes_too_long_says_what_it_may_have_been_at() {
        let mut slow = stage(7, true);
        slow.has("slow");
        slow.pool.import_timeout_s = 1;
        let why = slow.import(&[]).await.unwrap_err();
        assert!(why.contains("not within 1000 ms") && why.contains("pool.import_timeout_s"), "{why}");
        assert!(!slow.file("imported").exists());
    }

    /// ZFS proposes -m, which gives up acknowledged commits.
    #[tokio::test]
    async fn a_pool_without_its_log_is_not_imported_and_the_way_out_is_told() {
        let logless = stage(7, false);
        logless.has("logless");
        let why = logless.import(&[]).await.unwrap_err();
        for words in
            ["devices is currently unavailable", "(SLOG) is not found on this host: vdd1 [log];", "by hand gives up"]
        {
            assert!(why.contains(words), "{why}");
        }
        assert_eq!(logless.did(), [IMPORT], "never with -m");
        assert!(!logless.file("imported").exists());
    }

    /// The pool has multihost, the settings do not: ZFS refuses, and the remedy is reported all the same.
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
        assert!(!why.contains("pool.import_timeout_s"), "it was not late: {why}");
        assert!(!why.contains("SLOG"), "nor is it the log: {why}");
    }
}
