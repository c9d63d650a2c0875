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
        assert!(group.kill(Duration::ZERO).is_err(), "{why}");
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
    let why = own(dir.path()).kill(Duration::ZERO).unwrap_err();
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
