//! Tests of [`super`].

use super::*;
use holdfast_agent::config::DatabaseConfig;
use holdfast_agent::process::{self, of_postgres};
use std::process::{Child, Command};

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process that looks like a PostgreSQL in `data`.
fn server(data: &Path) -> Server {
    std::fs::create_dir_all(data).unwrap();
    // A process has the name of its file.
    let program = data.join("postgres");
    std::os::unix::fs::symlink("/bin/sleep", &program).unwrap();
    let server = Server(Command::new(&program).arg("600").current_dir(data).spawn().unwrap());
    let began = Instant::now();
    let of = process::Server::of(&DatabaseConfig { data: data.into(), ..DatabaseConfig::default() });
    while of_postgres(&of).unwrap().is_empty() && began.elapsed() < Duration::from_secs(20) {
        std::thread::yield_now();
    }
    assert_eq!(of_postgres(&of).unwrap().len(), 1);
    server
}

#[tokio::test]
async fn what_another_standby_mounted_there_is_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().canonicalize().unwrap();
    let mut config = StandbyConfig { dir: place.join("lib"), run_dir: place.join("run"), ..StandbyConfig::default() };
    config.pool.mount = place.join("copies");
    let mut slot = Slot::new(&config, StandbySlot::A);
    let mut theirs = server(&slot.config.database.data);
    slot.mounted = |_| Ok(Some(Mounted { id: "41 8:1".into(), source: "/dev/sda1".into() }));
    for done in [slot.down().await, slot.quiet().await] {
        let why = done.unwrap_err();
        assert!(why.contains("/dev/sda1") && why.contains("nothing is touched"), "{why}");
    }
    // Any mount will do.
    slot.mounted = |_| Err("/proc/self/mountinfo: no".into());
    assert!(slot.down().await.is_err() && slot.quiet().await.is_err());
    // Nothing is mounted: a process there works on the disk below the mount point, and is not ours either.
    slot.mounted = |_| Ok(None);
    slot.down().await.unwrap();
    assert!(theirs.0.try_wait().unwrap().is_none(), "the other one's PostgreSQL was ended");
}

#[tokio::test]
async fn what_does_not_end_in_good_order_is_ended_by_force() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().canonicalize().unwrap();
    let mut config = StandbyConfig { dir: place.join("lib"), run_dir: place.join("run"), ..StandbyConfig::default() };
    config.pool.mount = place.join("copies");
    let slot = Slot::new(&config, StandbySlot::B);
    let mut server = server(&slot.config.database.data);
    slot.force_down().await.unwrap();
    assert!(begun(i32::try_from(server.0.id()).unwrap()).unwrap().is_none());
    assert!(server.0.wait().unwrap().code().is_none(), "by a signal");
}

/// STANDBY-U2: the number of a process that has ended may belong to another one by the time of the next signal.
#[test]
fn only_a_process_that_is_known_to_be_the_noted_one_gets_a_signal() {
    let noted = (4711, "100".to_string());
    assert_eq!(left_of(&noted, Ok(Some("100".into()))), Some((4711, true)));
    assert_eq!(left_of(&noted, Ok(Some("101".into()))), None, "another process");
    assert_eq!(left_of(&noted, Ok(None)), None, "it has ended");
    let unread = io::Error::other("no descriptors are left");
    assert_eq!(left_of(&noted, Err(unread)), Some((4711, false)), "unknown is not ended");
}

/// Stands in for zpool, zfs and zdb; its first lines tell what it does.
const STAND_IN: &str = include_str!("../../agent/src/drivers/zfs/copy.sh");

fn stand_ins(place: &Path) -> Zfs {
    let (state, text) = (place.join("state"), place.join("text"));
    std::fs::create_dir_all(&state).unwrap();
    std::fs::write(&text, STAND_IN.replace("@STATE@", state.to_str().unwrap())).unwrap();
    for name in ["zpool", "zfs", "zdb"] {
        // Another process writes the file. If this process did, a child that another test starts meanwhile would
        // inherit the file open for writing, and it could not be run.
        let mut install = std::process::Command::new("install");
        assert!(install.args(["-m", "0755"]).args([&text, &place.join(name)]).status().unwrap().success());
    }
    Zfs::below(place)
}

/// A slot of a ZFS pool that the stand-in reports as imported, with this health.
fn of_pool(place: &Path, health: &str) -> Slot {
    let mut config = StandbyConfig { dir: place.join("lib"), run_dir: place.join("run"), ..StandbyConfig::default() };
    (config.pool.kind, config.pool.mount) = (PoolKind::Zfs, place.join("copies"));
    let mut slot = Slot::new(&config, StandbySlot::A);
    slot.zfs = stand_ins(place);
    std::fs::create_dir_all(slot.attach().dir()).unwrap();
    let pools = format!("tank\t11\tONLINE\nholdfast-standby-report1-a\t12\t{health}\n");
    std::fs::write(place.join("state/pools"), pools).unwrap();
    slot
}

fn asked(place: &Path, what: &str) -> bool {
    let did = std::fs::read_to_string(place.join("state/did")).unwrap();
    did.lines().any(|line| line.starts_with(what))
}

#[tokio::test]
async fn a_pool_whose_copy_has_ended_is_lost_and_its_export_is_not_asked_for() {
    for health in ["ONLINE", "SUSPENDED"] {
        let dir = tempfile::tempdir().unwrap();
        let slot = of_pool(dir.path(), health);
        ownership::note_copy(&slot.config, "12");
        let why = slot.down().await.unwrap_err();
        assert!(why.contains("holdfast-standby-report1-a") && why.contains("reboot"), "{why}");
        assert!(!asked(dir.path(), "zpool sync") && !asked(dir.path(), "zpool export"));
    }
}

#[tokio::test]
async fn a_copy_is_not_ended_under_a_pool_that_does_not_go() {
    let dir = tempfile::tempdir().unwrap();
    let slot = of_pool(dir.path(), "ONLINE");
    ownership::note_copy(&slot.config, "12");
    // The lock is held as by the process that keeps a copy.
    let _copy = holdfast_host::lock::lock(slot.attach().dir(), "attach.lock").unwrap();
    std::fs::write(dir.path().join("state/busy"), "").unwrap();
    let why = slot.down().await.unwrap_err();
    assert!(why.contains("pool is busy"), "{why}");
    assert!(asked(dir.path(), "zpool export") && running(slot.attach().dir()).unwrap());
}

#[tokio::test]
async fn a_copy_is_not_ended_under_an_import_or_a_pool_that_is_not_listed() {
    let dir = tempfile::tempdir().unwrap();
    let slot = of_pool(dir.path(), "ONLINE");
    std::fs::write(dir.path().join("state/mute"), "").unwrap();
    let why = slot.down().await.unwrap_err();
    assert!(why.contains("not in the list of pools"), "{why}");
    std::fs::write(dir.path().join("state/pools"), "").unwrap();
    let import = holdfast_host::lock::lock(&slot.config.run_dir, IMPORT_LOCK).unwrap();
    let why = slot.down().await.unwrap_err();
    assert!(why.contains("an import of it still runs"), "{why}");
    drop(import);
    slot.down().await.unwrap();
}

#[tokio::test]
async fn a_suspended_pool_is_lost_and_its_copy_gives_its_disk_back() {
    let dir = tempfile::tempdir().unwrap();
    // The list of pools does not show it.
    let slot = of_pool(dir.path(), "ONLINE");
    ownership::note_copy(&slot.config, "12");
    std::fs::write(dir.path().join("state/suspended"), "").unwrap();
    let (copy, begun) = (slot.attach().dir().to_path_buf(), Instant::now());
    let lock = copy.join("attach.lock");
    let process = Server(Command::new("flock").arg("--no-fork").arg(&lock).args(["sleep", "600"]).spawn().unwrap());
    while !running(&copy).unwrap() && begun.elapsed() < Duration::from_secs(20) {
        std::thread::yield_now();
    }
    std::fs::write(&lock, process.0.id().to_string()).unwrap();
    let why = slot.down().await.unwrap_err();
    assert!(why.contains("suspended") && why.contains("reboot"), "{why}");
    assert!(!asked(dir.path(), "zpool export") && !running(&copy).unwrap());
}

#[tokio::test]
async fn another_standbys_pool_of_the_same_name_is_not_touched_and_the_real_one_never() {
    let dir = tempfile::tempdir().unwrap();
    let slot = of_pool(dir.path(), "ONLINE");
    let _copy = holdfast_host::lock::lock(slot.attach().dir(), "attach.lock").unwrap();
    // An earlier pool of this slot had this name too.
    ownership::note_copy(&slot.config, "9");
    let why = slot.down().await.unwrap_err();
    assert!(why.contains("/dev/loop99") && why.contains("expected devices of the attach"), "{why}");
    assert!(!asked(dir.path(), "zpool export"));
    // STANDBY-U8, by the guid that an earlier refresh has seen.
    assert!(slot.may_copy(Some("11")).await.unwrap_err().contains("pool tank"));
    assert_eq!((slot.may_copy(Some("13")).await, slot.may_copy(None).await), (Ok(()), Ok(())));
}

#[tokio::test]
async fn without_a_pool_the_copy_goes_and_what_was_noted_is_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let slot = of_pool(dir.path(), "ONLINE");
    ownership::note_copy(&slot.config, "12");
    std::fs::write(dir.path().join("state/pools"), "").unwrap();
    slot.down().await.unwrap();
    assert!(!slot.config.run_dir.join("pool.noted").exists());
}
