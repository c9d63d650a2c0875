//! Real folders and links, below a table of mounts and a /sys of the tests' own.

use super::*;
use std::os::unix::fs::symlink;

struct Stage {
    _dir: tempfile::TempDir,
    at: PathBuf,
    config: AgentConfig,
    /// Lines of the table, below a root on this host's disk.
    mounts: Vec<String>,
    noted: Option<String>,
}

impl Stage {
    /// The set's file system at `set`, with PostgreSQL in it; this host's disk has `ssd`. Devices: `nbd0` and `loop0` are of the agent's attach, `sda`,
    /// `nbd7` and `loop7` are not.
    fn new(kind: PoolKind) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().canonicalize().unwrap();
        for made in ["set/data/pg_wal", "set/data/pg_tblspc", "set/space", "ssd/wal", "ssd/tmp/a", "run/attach"] {
            std::fs::create_dir_all(at.join(made)).unwrap();
        }
        let mut config = AgentConfig { run_dir: at.join("run"), ..AgentConfig::default() };
        (config.pool.kind, config.pool.mount, config.database.data) = (kind, at.join("set"), at.join("set/data"));
        config.pool.name = Some("tank".into());
        let stage = Self { _dir: dir, at, config, mounts: Vec::new(), noted: None };
        let ours = stage.at.join("run/attach/vol1");
        for (number, name, file, text) in [
            ("8:1", "sda", "size", "1".to_string()),
            ("43:0", "nbd0", "backend", format!("holdfast {}\n", ours.display())),
            ("43:7", "nbd7", "backend", "holdfast /run/other/vol1\n".into()),
            ("7:0", "loop0", "loop/backing_file", format!("{}\n", ours.join("device").display())),
            ("7:7", "loop7", "loop/backing_file", "/var/lib/images/a.img\n".into()),
            ("253:0", "dm-0", "size", "1".into()),
        ] {
            stage.shows(number, name, file, &text);
        }
        stage
    }

    fn shows(&self, number: &str, name: &str, file: &str, text: &str) {
        let sys = self.at.join("sys");
        let device = sys.join("block").join(name);
        for dir in [device.join(file).parent().unwrap(), &sys.join("dev/block"), &sys.join("class/block")] {
            std::fs::create_dir_all(dir).unwrap();
        }
        std::fs::write(device.join(file), text).unwrap();
        symlink(&device, sys.join("dev/block").join(number)).unwrap();
        symlink(&device, sys.join("class/block").join(name)).unwrap();
    }

    /// `over`: names of the devices below the device `name`.
    fn stands(&self, name: &str, over: &[&str]) {
        let slaves = self.at.join("sys/block").join(name).join("slaves");
        let _ = std::fs::remove_dir_all(&slaves);
        over.iter().for_each(|over| std::fs::create_dir_all(slaves.join(over)).unwrap());
    }

    /// Mounts at a place below the stage; on the root, which is mount 1.
    fn mount(&mut self, device: &str, at: &str, kind: &str, source: &str) {
        let number = self.mounts.len() + 2;
        self.mounts.push(format!("{number} 1 {device} / {} rw - {kind} {source} rw", self.at.join(at).display()));
    }

    fn set(&mut self, device: &str) {
        self.mounts.clear();
        self.mount(device, "set", "ext4", "/dev/whatever");
    }

    fn link(&self, link: &str, to: impl AsRef<Path>) {
        let link = self.config.database.data.join(link);
        let _ = std::fs::remove_dir(&link);
        let _ = std::fs::remove_file(&link);
        symlink(to, &link).unwrap();
    }

    fn off(&self) -> Vec<OffSet> {
        let table = format!("1 0 8:1 / / rw - ext4 /dev/sda1 rw\n{}\n", self.mounts.join("\n"));
        let (sys, attach_dirs) = (self.at.join("sys"), ownership::attach_dirs(&self.config));
        Set { config: &self.config, sys: &sys, table: table.as_bytes(), attach_dirs, noted: self.noted.clone() }
            .off()
            .unwrap()
    }

    fn told(&self) -> String {
        self.off().iter().map(|off| off.told(&self.config, "")).collect::<Vec<_>>().join("; ")
    }
}

#[test]
fn only_devices_of_the_agents_own_attach_are_the_sets() {
    let mut stage = Stage::new(PoolKind::Ext4);
    for (device, on) in [("43:0", true), ("7:0", true), ("8:1", false), ("43:7", false), ("7:7", false), ("9:9", false)]
    {
        stage.set(device);
        assert_eq!(stage.told().is_empty(), on, "{device}: {}", stage.told());
    }
    // What was mounted by this agent, though its device has lost its name.
    (stage.noted, stage.mounts) = (Some("9:9".into()), Vec::new());
    stage.mount("9:9", "set", "xfs", "/dev/loop9");
    assert_eq!(stage.told(), "");
    stage.noted = Some("9:8".into());
    assert!(
        stage.told().contains("(xfs, /dev/loop9), expected a file system over the devices of set demo"),
        "{}",
        stage.told()
    );
}

#[test]
fn devices_over_devices_are_looked_through_and_all_have_to_be_the_sets() {
    let mut stage = Stage::new(PoolKind::None);
    stage.set("253:0");
    for (over, on) in [(&["nbd0"][..], true), (&["nbd0", "loop0"], true), (&["nbd0", "sda"], false), (&[], false)] {
        stage.stands("dm-0", over);
        assert_eq!(stage.told().is_empty(), on, "{over:?}");
    }
    // A partition is shown below its device, and has no backend of its own.
    let part = stage.at.join("sys/block/nbd0/nbd0p1");
    std::fs::create_dir_all(&part).unwrap();
    std::fs::write(part.join("partition"), "1").unwrap();
    symlink(&part, stage.at.join("sys/class/block/nbd0p1")).unwrap();
    stage.stands("dm-0", &["nbd0p1"]);
    assert_eq!(stage.told(), "");
    // One that stands on itself ends nobody's look.
    stage.stands("dm-0", &["dm-0"]);
    assert!(!stage.told().is_empty());
}

/// `zpool import` succeeds, and Debian's own cluster lies where the dataset is not mounted.
#[test]
fn a_dataset_that_is_not_mounted_leaves_the_hosts_own_disk() {
    let mut stage = Stage::new(PoolKind::Zfs);
    let told = stage.told();
    let data = stage.config.database.data.display();
    assert!(told.starts_with(&format!("{data}: found {data} on / (ext4, /dev/sda1), expected")), "{told}");
    assert!(told.contains("keystatus -r tank` shows the datasets"), "{told}");
    let off = stage.off().remove(0);
    assert!(off.told(&stage.config, "`zfs mount tank/pg`").ends_with(": `zfs mount tank/pg`"));
    for (source, on) in [("tank/pg", true), ("tank", true), ("tank2/pg", false), ("other/tank", false)] {
        stage.mounts.clear();
        stage.mount("0:50", "set", "zfs", source);
        assert_eq!(stage.told().is_empty(), on, "{source}");
    }
    // A snapshot that somebody looks at.
    stage.mounts.clear();
    stage.mount("0:50", "set/data", "zfs", "tank/pg");
    stage
        .mounts
        .push(format!("9 2 0:51 / {}/.zfs/snapshot/s rw - zfs tank/pg@s rw", stage.config.database.data.display()));
    assert_eq!(stage.told(), "");
}

/// `initdb -X /ssd/wal`: the first write passes, and all is gone with the host.
#[test]
fn wal_and_tablespaces_over_a_link_are_looked_at_where_they_lie() {
    let mut stage = Stage::new(PoolKind::Ext4);
    stage.set("43:0");
    stage.link("pg_tblspc/16384", stage.at.join("set/space"));
    stage.link("postgresql.conf", "/etc/hostname");
    stage.link("log", stage.at.join("ssd/tmp"));
    std::fs::create_dir(stage.at.join("set/data/base")).unwrap();
    stage.link("base/pgsql_tmp", stage.at.join("ssd/tmp"));
    assert_eq!(stage.told(), "", "what is only read, or may be lost, is elsewhere");
    let ssd = stage.at.join("ssd");
    stage.link("pg_wal", ssd.join("wal"));
    let told = stage.told();
    assert!(
        told.contains(&format!("pg_wal (a link to {0}/wal): found {0}/wal on / (ext4, /dev/sda1)", ssd.display())),
        "{told}"
    );
    assert!(told.contains("commits there are lost with this host"), "{told}");
    // On the other host.
    stage.link("pg_wal", ssd.join("gone"));
    let told = stage.told();
    assert!(told.contains("found nothing there") && told.contains("the host where PostgreSQL ran before"), "{told}");
    std::fs::create_dir(stage.at.join("set/wal")).unwrap();
    stage.link("pg_wal", "../wal");
    assert_eq!(stage.told(), "");
    stage.link("pg_xact", ssd.join("wal"));
    stage.link("pg_tblspc/16385", ssd.join("tmp/a"));
    stage.link("base/16384", ssd.join("tmp/a"));
    let told = stage.told();
    assert!(told.contains("base/16384 (a link to"), "{told}");
    assert!(told.contains("pg_xact (a link to") && told.contains("pg_tblspc/16385 (a link to"), "{told}");
    assert!(told.contains(&format!("if database.allow_off_set names {}/tmp/a", ssd.display())), "{told}");
    // All of them, whatever was found first.
    assert_eq!(stage.off().len(), 3);
}

#[test]
fn a_folder_that_may_be_lost_is_for_tablespaces_only() {
    let mut stage = Stage::new(PoolKind::Ext4);
    stage.set("43:0");
    let ssd = stage.at.join("ssd");
    stage.config.database.allow_off_set = vec![ssd.join("tmp")];
    stage.link("pg_tblspc/16384", ssd.join("tmp/a"));
    stage.link("pg_tblspc/16385", ssd.join("tmp/not-on-this-host"));
    assert_eq!(stage.told(), "");
    stage.link("pg_tblspc/16386", ssd.join("wal"));
    assert!(stage.told().contains("pg_tblspc/16386 (a link to"), "{}", stage.told());
    stage.config.database.allow_off_set = vec![ssd.clone()];
    assert_eq!(stage.told(), "");
    stage.link("pg_wal", ssd.join("wal"));
    assert!(stage.told().contains("commits there are lost"), "{}", stage.told());
    stage.mounts.clear();
    stage.config.database.allow_off_set = vec![stage.at.clone()];
    assert!(stage.told().contains("data: found"), "{}", stage.told());
}

/// No link, but a disk of the host that is mounted there.
#[test]
fn a_file_system_that_is_mounted_in_the_data_directory_is_seen() {
    let mut stage = Stage::new(PoolKind::Ext4);
    for (device, at, seen) in [
        ("8:2", "set/data/pg_wal", "commits there are lost with this host"),
        ("8:2", "set/data/base", "data/base: found"),
        ("43:0", "set/data/base", ""),
        ("8:2", "set/data/pg_stat_tmp", ""),
        ("8:2", "set/space", ""),
        ("8:2", "set", "data: found"),
    ] {
        stage.set("43:0");
        stage.mounts.push(format!("9 2 {device} / {} rw - xfs /dev/sdb rw", stage.at.join(at).display()));
        let told = stage.told();
        assert!(if seen.is_empty() { told.is_empty() } else { told.contains(seen) }, "{at}: {told}");
    }
    // A tablespace's folder on it.
    stage.set("43:0");
    stage.mounts.push(format!("9 2 8:2 / {} rw - xfs /dev/sdb rw", stage.at.join("set/space").display()));
    stage.link("pg_tblspc/16384", stage.at.join("set/space"));
    assert!(stage.told().contains("pg_tblspc/16384 (a link to"), "{}", stage.told());
}

/// The kernel's own table and devices: a loop device over a file of the attach's folder, as with nbdfuse. Without root, or loop devices, nothing is tested,
/// and that is said.
#[tokio::test]
async fn a_real_loop_device_over_a_file_of_attachs_is_the_sets() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().canonicalize().unwrap();
    let sh = |script: &str| {
        let said = std::process::Command::new("sh").arg("-c").arg(script).current_dir(&at).output().unwrap();
        said.status.success().then(|| String::from_utf8_lossy(&said.stdout).trim().to_string())
    };
    let image = "mkdir -p run/attach/vol1 set ssd/wal && truncate -s 32M run/attach/vol1/device && mkfs.ext4 -q run/attach/vol1/device";
    let mounted = sh(&format!("{image} && losetup -f --show run/attach/vol1/device")).and_then(|device| {
        let done = sh(&format!("mount {device} set && mkdir -p set/data/pg_wal set/data/pg_tblspc"));
        if done.is_none() {
            sh(&format!("losetup -d {device}"));
        }
        done.map(|_| device)
    });
    let Some(device) = mounted else { return holdfast_testkit::skipped("no loop device could be mounted here") };
    let mut config = AgentConfig { run_dir: at.join("run"), ..AgentConfig::default() };
    (config.pool.mount, config.database.data) = (at.join("set"), at.join("set/data"));
    let good = may_start(&config).await;
    sh("rmdir set/data/pg_wal && ln -s ../../ssd/wal set/data/pg_wal");
    let wal = may_start(&config).await;
    config.run_dir = at.join("other");
    let foreign = may_start(&config).await;
    looks_end().await;
    sh(&format!("umount set; losetup -d {device}"));
    assert_eq!(good, Ok(()));
    let Err(NotDone::Refused(why)) = wal else { panic!("{wal:?}") };
    assert!(why.contains("pg_wal (a link to ../../ssd/wal): found"), "{why}");
    let Err(NotDone::Refused(why)) = foreign else { panic!("{foreign:?}") };
    assert!(why.contains(&device), "{why}");
}
