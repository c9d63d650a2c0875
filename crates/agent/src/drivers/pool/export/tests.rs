use super::*;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const ROOT: &str = "1 0 8:1 / / rw - ext4 /dev/sda1 rw";
const PG: &str = "2 1 0:50 / /tank/pg rw - zfs tank/pg rw";
const WAL: &str = "3 2 0:51 / /tank/pg/wal rw - zfs tank/pg/wal rw";
const STATS: &str = "4 2 0:54 / /tank/pg/data/pg_stat_tmp rw - tmpfs tmpfs rw";

fn says(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.arg("-c").arg(script);
    command
}

fn of_tank() -> AgentConfig {
    let mut config = AgentConfig::default();
    (config.pool.kind, config.pool.name) = (PoolKind::Zfs, Some("tank".into()));
    config.database.data = "/tank/pg/data".into();
    config
}

/// Programs of a host in a directory. Each changes the lines of the file `mounts`.
struct Stage {
    dir: tempfile::TempDir,
    system: System,
    config: AgentConfig,
    before: Before,
}

impl Stage {
    fn new(mounted: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let system = System { of_test: Some(dir.path().into()), busy: Duration::ZERO, leaving: Duration::ZERO };
        let stage = Self { system, config: of_tank(), before: Before::default(), dir };
        std::fs::write(stage.file("mounts"), format!("{ROOT}\n{}\n", mounted.join("\n"))).unwrap();
        stage.program("umount", "grep -v \" $1 \" mounts > new; mv new mounts; echo \"umount $1\" >> did");
        stage.program("mount", "echo legacy >> did; exit 1");
        let table = format!("case $2 in tank/pg) echo '{PG}';; tank/pg/wal) echo '{WAL}';; *) exit 1;; esac >> mounts");
        stage.program("zfs", &format!("{table}; echo \"mount $2\" >> did"));
        stage
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn program(&self, name: &str, script: &str) {
        let (text, path) = (self.file("text"), self.file(name));
        std::fs::write(&text, format!("#!/bin/sh\ncd {}\n{script}\n", self.dir.path().display())).unwrap();
        std::fs::set_permissions(&text, std::fs::Permissions::from_mode(0o755)).unwrap();
        // By a process of its own: a program that this one has open for writing does not start ("text file busy").
        let copied = std::process::Command::new("cp").arg("-p").args([&text, &path]).status().unwrap();
        assert!(copied.success());
    }

    async fn export(&self) -> Result<(), NotDone> {
        export_by(&self.system, &self.config, &self.before).await
    }

    fn did(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.file("did")).unwrap_or_default();
        text.lines().map(str::to_string).collect()
    }

    fn mounted(&self) -> Vec<String> {
        mounts_of(&self.system.table().unwrap()).into_iter().map(|mount| mount.source).collect()
    }
}

/// A process in the pool has some seconds to leave it; no host is fenced for it.
#[tokio::test]
async fn what_is_in_use_is_tried_again_and_then_refused() {
    let dir = tempfile::tempdir().unwrap();
    let count = dir.path().join("count").display().to_string();
    let (limit, busy) = (Duration::from_secs(60), Duration::from_secs(30));
    let leaves = format!("echo >> {count}; [ $(wc -l < {count}) -ge 3 ] || {{ echo 'target is busy.' >&2; exit 32; }}");
    assert_eq!(let_go(|| says(&leaves), limit, busy).await, Ok(()));
    assert_eq!(std::fs::read_to_string(&count).unwrap().lines().count(), 3);
    let stays = let_go(|| says("echo 'cannot export tank: pool is busy'; exit 1"), limit, Duration::ZERO).await;
    assert_eq!(stays, Err(NotDone::Refused("cannot export tank: pool is busy".into())));
    let fails = let_go(|| says("echo 'pool I/O is currently suspended' >&2; exit 1"), limit, busy).await;
    assert_eq!(fails, Err(NotDone::Failed("pool I/O is currently suspended".into())));
    let hangs = let_go(|| says("echo busy; exec sleep 63"), Duration::from_millis(50), busy).await;
    assert!(matches!(&hangs, Err(NotDone::Failed(why)) if why.contains("not within")), "{hangs:?}");
}

/// An export that is refused has unmounted the datasets that nobody used, and PostgreSQL is started again over them.
#[test]
fn datasets_that_a_refused_export_unmounted_are_known() {
    let config = of_tank();
    let table = |lines: &[&str]| mounts_of(format!("{ROOT}\n{}\n", lines.join("\n")).as_bytes());
    let others = ["5 1 0:52 / /other rw - zfs other rw", "6 2 0:53 / /tank/pg/.zfs/snapshot/a rw - zfs tank/pg@a rw"];
    let before = Before::default();
    before.note(&config, table(&[WAL, PG, others[0], others[1]]));
    let gone = |now: &[&str]| before.missing(&table(now)).into_iter().map(|mount| mount.source).collect::<Vec<_>>();
    assert_eq!(gone(&[]), ["tank/pg", "tank/pg/wal"]);
    assert_eq!(gone(&[PG]), ["tank/pg/wal"]);
    // Mounted anew meanwhile, as another mount.
    assert_eq!(gone(&[PG, "9 2 0:60 / /tank/pg/wal rw - zfs tank/pg/wal rw"]), Vec::<String>::new());
    // An earlier try has unmounted the WAL already.
    before.note(&config, table(&[PG]));
    assert_eq!(gone(&[PG]), ["tank/pg/wal"]);
    before.clear();
    assert_eq!(gone(&[]), Vec::<String>::new());
}

/// The first try fails after it has unmounted the WAL, the second one is refused: PostgreSQL is started in its place,
/// over both datasets.
#[tokio::test]
async fn what_a_failed_export_unmounted_is_mounted_before_the_next_start() {
    let stage = Stage::new(&[PG, WAL]);
    stage.program("zpool", "grep -v tank/pg/wal mounts > new; mv new mounts; echo 'I/O error' >&2; exit 1");
    assert_eq!(stage.export().await, Err(NotDone::Failed("I/O error".into())));
    assert_eq!(stage.mounted(), ["/dev/sda1", "tank/pg"]);
    stage.program("zpool", "grep -v tank/pg mounts > new; mv new mounts; echo 'pool is busy' >&2; exit 1");
    let refused = stage.export().await;
    assert!(matches!(&refused, Err(NotDone::Refused(why)) if why.contains("pool tank is in use")), "{refused:?}");
    assert_eq!(stage.mounted(), ["/dev/sda1", "tank/pg", "tank/pg/wal"]);
    assert_eq!(stage.did(), ["mount tank/pg", "mount tank/pg/wal"]);
    // All is as it was: what a person unmounts from now on stays so.
    assert!(stage.before.missing(&[]).is_empty());
}

/// After an export that failed, the next start mounts what is missing.
#[tokio::test]
async fn a_start_after_a_failed_export_mounts_what_is_missing() {
    let stage = Stage::new(&[PG, WAL]);
    stage.program("zpool", "grep -v tank/pg/wal mounts > new; mv new mounts; echo 'I/O error' >&2; exit 1");
    stage.export().await.unwrap_err();
    mount_again_by(&stage.system, &stage.before).await;
    assert_eq!(stage.mounted(), ["/dev/sda1", "tank/pg", "tank/pg/wal"]);
}

/// ZFS did not say whether the pool is there, so its export is tried. It was gone.
#[tokio::test]
async fn a_pool_that_is_gone_is_let_go_of() {
    let stage = Stage::new(&[]);
    stage.program("zpool", "echo \"cannot open 'tank': no such pool\" >&2; exit 1");
    assert_eq!(stage.export().await, Ok(()));
    stage.program("zpool", "echo 'internal error: out of memory' >&2; exit 1");
    assert!(matches!(stage.export().await, Err(NotDone::Failed(why)) if why.contains("out of memory")));
}

/// An archiver that is at its last segments is waited for. One process that stays is enough not to.
#[tokio::test]
async fn a_pool_whose_users_all_end_by_themselves_is_waited_for() {
    assert_eq!(System::of_host().leaving, LEAVING_LIMIT);
    let mut stage = Stage::new(&[PG]);
    let third = "echo >> tries; [ $(wc -l < tries) -ge 3 ] || { echo 'pool is busy' >&2; exit 1; }";
    stage.program("zpool", &format!("{third}; grep -v tank/pg mounts > new; mv new mounts"));
    let tries = |stage: &Stage| std::fs::read_to_string(stage.file("tries")).unwrap().lines().count();
    std::fs::write(stage.file("leaving"), "pgbackrest (pid 12) has /tank/pg/data/pg_wal/1 open\n").unwrap();
    std::fs::write(stage.file("staying"), "bash (pid 20) works in /tank/pg\n").unwrap();
    stage.system.leaving = Duration::from_secs(60);
    let refused = stage.export().await;
    let named = |why: &str| why.contains("bash (pid 20)") && why.contains("pgbackrest (pid 12)");
    assert!(matches!(&refused, Err(NotDone::Refused(why)) if named(why)), "{refused:?}");
    assert_eq!((tries(&stage), stage.mounted().len()), (1, 2));
    std::fs::remove_file(stage.file("staying")).unwrap();
    assert_eq!(stage.export().await, Ok(()));
    assert_eq!((tries(&stage), stage.mounted().len()), (3, 1));
}

/// A namespace may be made while PostgreSQL is being stopped. `umount` would succeed, and the file system would live on
/// in it over a device that is removed. ZFS says so itself.
#[tokio::test]
async fn a_file_system_that_somebody_keeps_mounted_is_not_unmounted() {
    let mut stage = Stage::new(&[PG]);
    let keeper = "sleep (pid 31) keeps /tank/pg mounted, in a mount namespace of its own";
    for file in ["keepers", "staying"] {
        std::fs::write(stage.file(file), format!("{keeper}\n")).unwrap();
    }
    stage.config.pool.mount = Path::new("/tank/pg").into();
    for kind in [PoolKind::Ext4, PoolKind::Xfs] {
        stage.config.pool.kind = kind;
        let refused = stage.export().await;
        let named = |why: &str| why.contains("/tank/pg is in use: ") && why.contains(keeper);
        assert!(matches!(&refused, Err(NotDone::Refused(why)) if named(why)), "{refused:?}");
        assert_eq!((stage.did(), stage.mounted().len()), (Vec::new(), 2));
    }
    std::fs::remove_file(stage.file("keepers")).unwrap();
    assert_eq!(stage.export().await, Ok(()));
    assert_eq!(stage.did(), ["umount /tank/pg"]);
}

/// With a tmpfs in it the pool could not be unmounted: a switchover would be refused each time.
#[tokio::test]
async fn a_tmpfs_for_statistics_is_unmounted_with_the_pool() {
    let stage = Stage::new(&[PG, STATS]);
    stage.program("zpool", "echo \"zpool $*\" >> did; grep -v tank/pg mounts > new; mv new mounts");
    assert_eq!(stage.export().await, Ok(()));
    assert_eq!(stage.did(), ["umount /tank/pg/data/pg_stat_tmp", "zpool export tank"]);
    assert_eq!(stage.mounted(), ["/dev/sda1"]);
}

#[test]
fn only_what_postgresql_can_lose_is_unmounted() {
    let mut config = of_tank();
    let table = |lines: &[&str]| format!("{ROOT}\n{}\n", lines.join("\n")).into_bytes();
    let lines = [
        PG,
        WAL,
        STATS,
        "5 2 0:55 / /tank/pg/space/PG_15_202209061/pgsql_tmp rw - ext4 /dev/sdb rw",
        "6 2 0:56 / /tank/pg/data/base rw - ext4 /dev/sdc rw",
        "7 2 0:57 / /tank/pg/data/log rw - zfs tank/pg/log rw",
        "8 1 0:58 / /elsewhere/pgsql_tmp rw - tmpfs tmpfs rw",
    ];
    let found = scratch_mounts(&config, &table(&lines));
    assert_eq!(found, ["/tank/pg/space/PG_15_202209061/pgsql_tmp", "/tank/pg/data/pg_stat_tmp"].map(PathBuf::from));
    (config.pool.kind, config.pool.mount) = (PoolKind::Ext4, Path::new("/tank/pg").into());
    assert_eq!(scratch_mounts(&config, &table(&[STATS])), [PathBuf::from("/tank/pg/data/pg_stat_tmp")]);
    config.pool.kind = PoolKind::None;
    assert!(scratch_mounts(&config, &table(&lines)).is_empty());
}
