//! Groups as the kernel shows them, in a directory.

use super::*;
use std::os::unix::process::ExitStatusExt;

/// A group below `root`.
fn shown(root: &Path, name: &str, populated: &str, pids: &str) -> PathBuf {
    let dir = root.join(name);
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("cgroup.events"), format!("{populated}\nfrozen 0\n")).unwrap();
    std::fs::write(dir.join("cgroup.procs"), pids).unwrap();
    dir
}

fn unit(root: &Path) -> Group {
    Group { name: Name::Unit("nfs.service".into()), root: Some(root.into()) }
}

fn own(root: &Path) -> Group {
    Group { name: Name::Own("holdfast-demo-db1".into()), root: Some(root.into()) }
}

/// CGROUP-C1: with all groups below it, in whatever slice. A user's own group of that name is somebody else's.
#[test]
fn a_unit_is_found_in_its_slice_and_not_among_those_of_users() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    assert!(!unit(root).any().unwrap());
    shown(root, "system.slice/system-nfs.slice/nfs.service", "populated 1", "7\n8\n");
    shown(root, "system.slice/system-nfs.slice/nfs.service/workers", "populated 1", "9\n");
    shown(root, "system.slice/ssh.service", "populated 1", "5\n");
    shown(root, "user.slice/user-1000.slice/nfs.service", "populated 1", "66\n");
    assert_eq!(unit(root).look().whole().unwrap(), BTreeSet::from([7, 8, 9]));
}

/// CGROUP-C2: after "none is left" the agent gives the lease back.
#[test]
fn only_the_kernels_word_is_none_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let group = own(root);
    assert!(!group.any().unwrap(), "it was never made");
    let at = shown(root, "holdfast-demo-db1", "populated 0", "");
    assert!(!group.any().unwrap());
    for (populated, pids, why) in [
        ("populated 1", "", "it shows none of them"),
        ("populated 1", "0\n", "one that is out of sight"),
        ("something 0", "", "it says nothing"),
    ] {
        shown(root, "holdfast-demo-db1", populated, pids);
        assert!(group.any().is_err(), "{why}");
        assert!(group.kill(Duration::ZERO, &mut None).is_err(), "{why}");
    }
    // A directory that is no control group.
    std::fs::remove_file(at.join("cgroup.events")).unwrap();
    assert!(group.any().is_err());
    // One that cannot be read.
    std::fs::create_dir(at.join("cgroup.events")).unwrap();
    assert!(group.any().is_err());
    shown(root, "holdfast-demo-db2", "populated 1", "7\n");
    assert!(!Group { name: Name::Own("holdfast-demo".into()), root: Some(root.into()) }.any().unwrap());
}

/// On a kernel that cannot kill a whole group.
#[test]
fn processes_of_a_group_have_sigkill() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    shown(dir.path(), "holdfast-demo-db1", "populated 1", &format!("{}\n", server.id()));
    let why = own(dir.path()).kill(Duration::ZERO, &mut None).unwrap_err();
    let (begun, mut ended) = (Instant::now(), None);
    while ended.is_none() && begun.elapsed() < Duration::from_secs(20) {
        ended = server.try_wait().unwrap();
        std::thread::sleep(LOOK_PAUSE);
    }
    let _ = server.kill();
    let _ = server.wait();
    assert_eq!(ended.and_then(|status| status.signal()), Some(Signal::KILL.as_raw()));
    assert_eq!(why, "1 processes of the service are left after SIGKILL");
}

/// The whole group at once where the kernel can, and then not again at once: what a unit does last has some time.
#[test]
fn a_group_is_killed_as_a_whole_and_then_has_a_moment() {
    let dir = tempfile::tempdir().unwrap();
    let at = shown(dir.path(), "holdfast-demo-db1", "populated 1", "2147483646\n");
    std::fs::write(at.join("cgroup.kill"), "").unwrap();
    let mut struck = None;
    own(dir.path()).round(&mut struck).unwrap_err();
    assert_eq!(std::fs::read_to_string(at.join("cgroup.kill")).unwrap(), "1");
    let first = struck.expect("the whole group had it");
    own(dir.path()).round(&mut struck).unwrap_err();
    assert_eq!(struck, Some(first));
}

/// The watchdog's helper kills anew at each look: the command that takes the address from this host was killed as well,
/// a hundredth of a second after it had begun.
#[test]
fn a_last_command_of_a_unit_has_its_moment_from_one_kill_to_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let (of_unit, of_own) = (unit(dir.path()), own(dir.path()));
    for (group, name, again) in [(of_unit, "system.slice/nfs.service", ""), (of_own, "holdfast-demo-db1", "1")] {
        let at = shown(dir.path(), name, "populated 1", "2147483646\n");
        let told = at.join("cgroup.kill");
        std::fs::write(&told, "").unwrap();
        let mut struck = None;
        group.kill(Duration::ZERO, &mut struck).unwrap_err();
        assert_eq!(std::fs::read_to_string(&told).unwrap(), "1");
        // Long from now, so that nothing here depends on the speed of the machine.
        struck = struck.map(|at| at + Duration::from_secs(3600));
        std::fs::write(&told, "").unwrap();
        group.kill(Duration::ZERO, &mut struck).unwrap_err();
        assert_eq!(std::fs::read_to_string(&told).unwrap(), again, "{name}");
    }
}

/// CGROUP-C3: a mistake in the settings is no reason to end the agent, and all that stands beside it.
#[test]
fn a_group_that_holds_the_agent_is_no_services() {
    let dir = tempfile::tempdir().unwrap();
    let mut beside = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    let pids = format!("{}\n{}\n", std::process::id(), beside.id());
    let at = shown(dir.path(), "system.slice/nfs.service", "populated 1", &pids);
    std::fs::write(at.join("cgroup.kill"), "").unwrap();
    let group = unit(dir.path());
    let why = group.any().unwrap_err();
    assert!(why.contains("found the agent itself in it") && why.contains("service.unit"), "{why}");
    group.tell_to_end();
    assert!(group.kill(Duration::ZERO, &mut None).is_err());
    let lives = beside.try_wait().unwrap().is_none();
    let _ = beside.kill();
    let _ = beside.wait();
    assert!(lives, "it had a signal");
    assert_eq!(std::fs::read_to_string(at.join("cgroup.kill")).unwrap(), "");
}

/// CGROUP-C3: two agents of one machine would kill each other's service.
#[test]
fn each_set_and_host_has_a_group_of_its_own() {
    let service = ServiceConfig { kind: ServiceKind::Command, ..ServiceConfig::default() };
    let of = |set: &str, name: &str| {
        Group::of(&AgentConfig { set: set.into(), name: name.into(), ..AgentConfig::default() }, &service).name
    };
    assert_eq!(of("files", "db1"), Name::Own("holdfast-files:db1".into()));
    let all = [of("a", "b-c"), of("a-b", "c"), of("a", "b/c"), of("a", "b_c"), of("a", "b:c")];
    for (at, name) in all.iter().enumerate() {
        assert!(!all[..at].contains(name), "{name:?}");
        assert!(matches!(name, Name::Own(name) if !name.contains('/')), "{name:?}");
    }
}

/// systemd calls the group of `io.service` `_io.service`: the kernel's own files begin with `io.`.
#[test]
fn a_unit_with_the_name_of_a_kernels_file_is_found() {
    let dir = tempfile::tempdir().unwrap();
    shown(dir.path(), "system.slice/_io.service", "populated 1", "7\n");
    shown(dir.path(), "system.slice/__io.service", "populated 1", "8\n");
    let io = Group { name: Name::Unit("io.service".into()), root: Some(dir.path().into()) };
    assert_eq!(io.look().whole().unwrap(), BTreeSet::from([7]));
}

/// What a service has made in its group goes with it.
#[test]
fn groups_that_a_service_has_left_behind_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("holdfast-demo-db1");
    std::fs::create_dir_all(at.join("workers/one")).unwrap();
    own(dir.path()).remove();
    assert!(!at.exists());
}
