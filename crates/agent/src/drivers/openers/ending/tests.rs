use super::*;
use std::os::unix::fs::symlink;
use std::process::{Child, Command, Stdio};

/// Not so long for a process that ignores the first signal.
const QUICK: [(Signal, &str, Duration); 2] =
    [(Signal::TERM, "SIGTERM", Duration::from_secs(2)), (Signal::KILL, "SIGKILL", Duration::from_secs(20))];

/// A directory as a pool.
fn pool_at(at: &Path) -> Pool {
    let found = device(std::fs::metadata(at).unwrap().dev());
    Pool { roots: vec![at.to_path_buf()], devices: BTreeSet::from([found]), scratch: Vec::new() }
}

/// Nobody is spared, not even the children of this test.
fn nobody() -> Spared {
    Spared { above: BTreeSet::new(), families: BTreeSet::new(), parents: parents(Path::new(PROC)) }
}

fn sh(script: &str, at: &Path) -> Child {
    Command::new("sh").args(["-c", script]).current_dir(at).stdin(Stdio::null()).spawn().unwrap()
}

fn pid(child: &Child) -> i32 {
    child.id().cast_signed()
}

fn handle(child: &Child) -> OwnedFd {
    pidfd_open(Pid::from_raw(pid(child)).unwrap(), PidfdFlags::empty()).unwrap()
}

/// Waits until each of them runs `sleep`.
async fn sleep_all(children: &[&Child]) {
    let begun = Instant::now();
    let comm = |child: &&Child| std::fs::read_to_string(format!("/proc/{}/comm", child.id())).unwrap();
    while !children.iter().all(|child| comm(child) == "sleep\n") {
        assert!(begun.elapsed() < Duration::from_secs(20), "no sleep");
        tokio::time::sleep(END_PAUSE).await;
    }
}

/// Ends what a test has started.
fn clear(children: impl IntoIterator<Item = Child>) {
    for mut child in children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

/// A shell that was forgotten in the pool, one that ignores SIGTERM, and one beside the pool.
#[tokio::test]
async fn processes_in_the_pool_are_ended_and_named_and_others_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().canonicalize().unwrap();
    let (inside, beside) = (at.join("pg"), at.join("pg2"));
    for place in [&inside, &beside] {
        std::fs::create_dir(place).unwrap();
    }
    let works = sh("exec sleep 600", &inside);
    let ignores = sh("trap '' TERM; exec sleep 600", &inside);
    let mut other = sh("exec sleep 600", &beside);
    sleep_all(&[&works, &ignores, &other]).await;
    let (proc, pool, nobody) = (Path::new(PROC), pool_at(&inside), nobody());
    assert_eq!(handles(proc, &pool, &nobody, 1).len(), 1, "no more than it is told");
    let found = handles(proc, &pool, &nobody, 64);
    let users: Vec<User> =
        found.into_iter().filter_map(|(pid, handle)| User::looked_at(proc, pid, handle, &pool, &nobody)).collect();
    let ended = Ended::default();
    end(users, QUICK, &ended).await;
    let uid = rustix::process::getuid().as_raw();
    let at = inside.display();
    let text = |child: &Child, by: &str| format!("sleep (pid {}, uid {uid}) works in {at}, by {by}", pid(child));
    assert_eq!(*ended.locked(), [text(&works, "SIGTERM"), text(&ignores, "SIGKILL")]);
    assert!(other.try_wait().unwrap().is_none(), "it is not in the pool");
    clear([works, ignores, other]);
}

/// Between the search and the signal its process ended, and the number is another one's.
#[tokio::test]
async fn a_number_that_is_used_again_is_not_ended() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().canonicalize().unwrap();
    let (works, mut other) = (sh("exec sleep 600", &at), sh("exec sleep 600", Path::new("/")));
    sleep_all(&[&works, &other]).await;
    let (proc, pool, nobody) = (Path::new(PROC), pool_at(&at), nobody());
    let seen = User::looked_at(proc, pid(&other), handle(&other), &pool, &nobody);
    assert!(seen.is_none(), "it has nothing of the pool open");
    let user = User::looked_at(proc, pid(&works), handle(&works), &pool, &nobody).unwrap();
    assert!(!user.has_ended());
    clear([works]);
    // From now on its number may be anybody's.
    assert!(user.has_ended() && pidfd_send_signal(&user.handle, Signal::KILL).is_err());
    let ended = Ended::default();
    end(vec![user], QUICK, &ended).await;
    assert!(ended.locked().is_empty(), "it went by itself");
    assert!(other.try_wait().unwrap().is_none());
    clear([other]);
}

/// The path of the pool, and another file system: below the mount, or in a mount namespace of its own.
#[tokio::test]
async fn a_process_at_that_path_on_another_file_system_is_not_ended() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().canonicalize().unwrap();
    let works = sh("exec sleep 600", &at);
    sleep_all(&[&works]).await;
    let pool = Pool { devices: BTreeSet::from(["0:0".to_string()]), ..pool_at(&at) };
    assert!(handles(Path::new(PROC), &pool, &nobody(), 64).is_empty());
    clear([works]);
    assert_eq!((mapped("07:1f"), mapped("x")), (Some("7:31".to_string()), None));
    let map = "7f00-7f01 r--s 00000000 00:00 12 /tank/pg/a";
    let has = |map: &str| pool.has(Path::new("/tank/pg/a"), &OpenPath::Map(map));
    assert!(has(map) && !has(&map.replace("00:00", "00:32")));
}

/// PostgreSQL's log is a directory of the host's own disk that is bound into the pool: an operator of a standby, whose
/// shell stands in the place of the pool below the mount, is on the same disk, and keeps no pool.
#[tokio::test]
async fn a_process_on_the_disk_of_a_directory_that_is_bound_into_the_pool_is_not_ended() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().canonicalize().unwrap();
    let log = at.join("data/log");
    std::fs::create_dir_all(&log).unwrap();
    let (below, reads) = (sh("exec sleep 600", &at), sh("exec sleep 600", &log));
    sleep_all(&[&below, &reads]).await;
    let mut config = AgentConfig::default();
    (config.pool.kind, config.pool.name) = (crate::config::PoolKind::Zfs, Some("tank".into()));
    config.database.data = at.join("data");
    let (root, disk) = (at.display(), device(std::fs::metadata(&at).unwrap().dev()));
    let table = format!(
        "1 0 {disk} / / rw - ext4 /dev/sda1 rw\n2 1 0:9999 / {root} rw - zfs tank/pg rw\n\
        3 2 {disk} /var/log/pg {root}/data/log rw - ext4 /dev/sda1 rw\n"
    );
    let pool = Pool::of(&config, table.as_bytes());
    let found: Vec<i32> = handles(Path::new(PROC), &pool, &nobody(), 64).into_iter().map(|(pid, _)| pid).collect();
    assert_eq!(found, [pid(&reads)]);
    clear([below, reads]);
}

/// A container with a PostgreSQL of its own at the same path, on the disk that the log is bound from.
#[test]
fn a_process_of_a_container_with_another_disk_at_that_path_is_not_ended() {
    let dir = tempfile::tempdir().unwrap();
    let proc = dir.path().join("proc");
    let log = dir.path().canonicalize().unwrap().join("pg/data/log");
    std::fs::create_dir_all(&log).unwrap();
    let disk = device(std::fs::metadata(&log).unwrap().dev());
    let root = dir.path().canonicalize().unwrap().join("pg");
    let pool = Pool {
        roots: vec![root.clone()],
        devices: BTreeSet::from(["0:9999".to_string()]),
        scratch: vec![(log.clone(), disk.clone())],
    };
    let at = root.display();
    let inside = ("40", "pid:[2]", disk.as_str());
    for (pid, space, mounted) in [("self", "pid:[1]", "0:9999"), inside, ("41", "pid:[1]", "0:9999")] {
        let of = proc.join(pid);
        std::fs::create_dir_all(of.join("ns")).unwrap();
        symlink(space, of.join("ns/pid")).unwrap();
        symlink(&log, of.join("cwd")).unwrap();
        let table = format!("1 0 8:1 / / rw - ext4 a rw\n2 1 {mounted} / {at} rw - zfs b rw\n");
        std::fs::write(of.join("mountinfo"), table).unwrap();
    }
    assert_eq!(pool.open_of(&proc, 40), None);
    assert!(pool.open_of(&proc, 41).is_some(), "a process of the host");
}

#[test]
fn the_pools_file_systems_are_known_by_their_devices() {
    let mut config = AgentConfig::default();
    (config.pool.kind, config.pool.name) = (crate::config::PoolKind::Zfs, Some("tank".into()));
    config.database.data = "/tank/pg/data".into();
    let table = b"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:50 / /tank/pg rw - zfs tank/pg rw\n\
        3 2 0:54 / /tank/pg/data/pg_stat_tmp rw - tmpfs tmpfs rw\n4 2 0:55 / /tank/pg/tmp rw - tmpfs tmpfs rw\n\
        5 1 0:56 / /other rw - zfs other/a rw\n";
    let pool = Pool::of(&config, table);
    assert_eq!(pool.roots, [PathBuf::from("/tank/pg")]);
    assert_eq!(pool.devices, BTreeSet::from(["0:50".to_string()]));
    // What else is mounted there keeps the pool in any case.
    assert_eq!(pool.scratch, [(PathBuf::from("/tank/pg/data/pg_stat_tmp"), "0:54".to_string())]);
    // Another file system at the pool's own place, below it or over it.
    let stacked = [&b"6 1 8:3 / /tank/pg rw - xfs /dev/sdc rw\n"[..], table].concat();
    assert_eq!(Pool::of(&config, &stacked).devices, pool.devices);
}

/// The agent's own, whatever they have open: it would end itself, or the device below the pool.
#[test]
fn the_agent_and_those_around_it_are_spared() {
    let dir = tempfile::tempdir().unwrap();
    let proc = dir.path();
    let shown = |pid: &str, parent: i32, program: &str| {
        let of = proc.join(pid);
        std::fs::create_dir_all(&of).unwrap();
        std::fs::write(of.join("stat"), format!("{pid} (p) S {parent} 7 7 0 -1 4194304 0")).unwrap();
        symlink(program, of.join("exe")).unwrap();
    };
    shown("1", 0, "/sbin/init");
    // A terminal in which the agent was started by hand, and its other shell.
    shown("5", 1, "/bin/sh");
    shown("6", 5, "/bin/sh");
    shown("10", 5, "/usr/bin/holdfast");
    shown("self", 5, "/usr/bin/holdfast");
    // A hook, and what it started.
    shown("11", 10, "/bin/sh");
    shown("12", 11, "/bin/sleep");
    // Attach of an earlier version, and its helper; the watchdog's helper; a known one.
    shown("20", 1, "/usr/bin/holdfast (deleted)");
    shown("21", 20, "/usr/bin/nbdfuse");
    shown("22", 1, "/usr/bin/holdfast");
    shown("30", 1, "/usr/bin/nbdfuse");
    shown("40", 1, "/bin/bash");
    let spared = Spared::around(proc, 10, BTreeSet::from([30]));
    let goes_on: Vec<i32> = spared.parents.keys().copied().filter(|pid| spared.has(*pid)).collect();
    assert_eq!(goes_on, [1, 5, 10, 11, 12, 20, 21, 22, 30]);
    assert!(!spared.has(6) && !spared.has(40));
}
