//! Real directories and links; the table of mounts and /sys are the tests' own.

use super::*;
use crate::host::NotDone;
use std::os::unix::fs::symlink;

struct Stage {
    _dir: tempfile::TempDir,
    at: PathBuf,
    config: AgentConfig,
    /// Lines of the table, below a root on this host's disk.
    mounts: Vec<String>,
    noted: Option<String>,
    pools: Pools,
}

impl Stage {
    /// The set's file system at `set`, with PostgreSQL in it; this host's disk has `ssd`. Devices: `nbd0` and `loop0`
    /// are of the agent's attach, `sda`, `nbd7` and `loop7` are not.
    fn new(kind: PoolKind) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().canonicalize().unwrap();
        for made in ["set/data/pg_wal", "set/data/pg_tblspc", "set/space", "ssd/wal", "ssd/tmp/a", "run/attach"] {
            std::fs::create_dir_all(at.join(made)).unwrap();
        }
        let mut config = AgentConfig { run_dir: at.join("run"), ..AgentConfig::default() };
        (config.pool.kind, config.pool.mount, config.database.data) = (kind, at.join("set"), at.join("set/data"));
        config.pool.name = Some("tank".into());
        let stage = Self { _dir: dir, at, config, mounts: Vec::new(), noted: None, pools: Pools::new() };
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

    /// A Btrfs file system over these devices is mounted, beside one of the host's.
    fn btrfs(&self, devices: &[&str]) {
        let systems = self.at.join("sys/fs/btrfs");
        let _ = std::fs::remove_dir_all(&systems);
        std::fs::create_dir_all(systems.join("features")).unwrap();
        for (system, devices) in [("6f0a", devices), ("77c1", &["sda"])] {
            std::fs::create_dir_all(systems.join(system).join("devices")).unwrap();
            devices
                .iter()
                .for_each(|name| std::fs::create_dir(systems.join(system).join("devices").join(name)).unwrap());
        }
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

    /// The pool has these devices, as `zpool list` shows them. `CLASS:NAME`: of a class other than data.
    fn pool(&mut self, name: &str, devices: &[&str]) {
        let mut listed = format!("{name}\t9.5G\n");
        for device in devices {
            let (class, device) = device.split_once(':').unwrap_or(("", device));
            let path = self.at.join(device);
            std::fs::write(&path, "").unwrap();
            let heading = if class.is_empty() { String::new() } else { format!("{class}\t-\t-\n") };
            listed.push_str(&format!("{heading}\t{}\t1G\n", path.display()));
        }
        self.pools.insert(name.into(), Ok(crate::drivers::zfs::vdevs::parse(&listed)));
    }

    fn found(&self) -> Result<Found, PlacementError> {
        let table = format!("1 0 8:1 / / rw - ext4 /dev/sda1 rw\n{}\n", self.mounts.join("\n"));
        let sys = self.at.join("sys");
        let disks = || Disks { sys: &sys, attach_dirs: ownership::attach_dirs(&self.config) };
        let noted = self.noted.clone();
        let seen = Places { config: &self.config, table: table.as_bytes(), disks: disks(), noted }.seen().unwrap();
        decided(own_pool(&self.config), seen, &self.pools, &disks())
    }

    fn off(&self) -> Vec<OffSet> {
        self.found().unwrap().files
    }

    /// Text about files.
    fn told(&self) -> String {
        self.off().iter().map(|off| off.told(&self.config, "")).collect::<Vec<_>>().join("; ")
    }

    /// Text about devices.
    fn devices(&self) -> String {
        let devices = self.found().unwrap().devices.unwrap();
        devices.iter().map(|device| device.told(&self.config.set)).collect::<Vec<_>>().join("; ")
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
    // A mount that this agent noted, whose device has lost its name.
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
    // A device below itself does not make the check endless.
    stage.stands("dm-0", &["dm-0"]);
    assert!(!stage.told().is_empty());
}

/// Btrfs puts data on all of its devices, and the table of mounts names one.
#[test]
fn each_device_of_a_btrfs_file_system_is_the_sets() {
    let mut stage = Stage::new(PoolKind::None);
    let named = stage.at.join("nbd0");
    std::fs::write(&named, "").unwrap();
    stage.mount("0:40", "set", "btrfs", &named.display().to_string());
    for (devices, on) in [
        (&["nbd0"][..], true),
        (&["nbd0", "loop0"], true),
        (&["nbd0", "sda"], false),
        (&["loop7", "nbd0"], false),
        // The kernel shows no file system with it.
        (&["loop0"], false),
        (&[], false),
    ] {
        stage.btrfs(devices);
        assert_eq!(stage.told().is_empty(), on, "{devices:?}: {}", stage.told());
    }
    stage.btrfs(&["nbd0", "dm-0"]);
    stage.stands("dm-0", &["loop0"]);
    assert_eq!(stage.told(), "");
    stage.stands("dm-0", &["loop0", "sda"]);
    assert!(stage.told().contains("(btrfs, "), "{}", stage.told());
}

/// Without its log an XFS is lost, also one that this agent mounted itself (`pool.options`).
#[test]
fn each_device_of_an_xfs_is_the_sets() {
    let mut stage = Stage::new(PoolKind::Xfs);
    for noted in [None, Some("43:0".to_string())] {
        stage.noted = noted;
        for (further, on) in [
            (&[("logdev", "loop0")][..], true),
            (&[("logdev", "sda")], false),
            (&[("logdev", "nbd0"), ("rtdev", "loop7")], false),
            (&[], true),
        ] {
            let mut options = "rw,noatime".to_string();
            for (option, device) in further {
                let path = stage.at.join(device);
                std::fs::write(&path, "").unwrap();
                options.push_str(&format!(",{option}={}", path.display()));
            }
            let set = stage.at.join("set");
            stage.mounts = vec![format!("2 1 43:0 / {} rw - xfs /dev/nbd0 {options},noquota", set.display())];
            let told = stage.told();
            assert_eq!(told.is_empty(), on, "{options}: {told}");
            assert!(on || told.contains("(xfs, /dev/nbd0, logdev=") && told.contains("create it again"), "{told}");
        }
    }
}

/// `zpool import` succeeds, and Debian's own cluster lies at the place of a dataset that is not mounted.
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
    // A snapshot that somebody reads.
    stage.mounts.clear();
    stage.mount("0:50", "set/data", "zfs", "tank/pg");
    stage
        .mounts
        .push(format!("9 2 0:51 / {}/.zfs/snapshot/s rw - zfs tank/pg@s rw", stage.config.database.data.display()));
    assert_eq!(stage.told(), "");
}

/// The dataset of a tablespace has no key: its directory is one of the dataset above, and all of it is on the set.
/// Crash recovery makes files there, which are hidden once the dataset is mounted (ONSET-L4).
#[test]
fn a_dataset_in_another_one_is_mounted_before_a_start() {
    let mut stage = Stage::new(PoolKind::Zfs);
    stage.mount("0:50", "set", "zfs", "tank");
    stage.link("pg_tblspc/16384", stage.at.join("set/space"));
    let found = stage.found().unwrap();
    assert!(found.files.is_empty(), "{found:?}");
    let mounted = holdfast_host::mounts::mounts_of(stage.mounts.join("\n").as_bytes());
    let told = |at: &str, canmount: &str| {
        let line = format!("tank/x\t{}\t{canmount}\tno\tunavailable\ttank/x", stage.at.join(at).display());
        unmounted::told(&found.on, &datasets::unmounted_of(&line), &mounted)
    };
    for (at, missing) in [
        ("set/space", "pg_tblspc/16384: found nothing mounted on"),
        ("set/space/PG_15_202209061", "pg_tblspc/16384: found"),
        ("set/data", "data: found nothing mounted on"),
        ("set/data/pg_wal", "data: found nothing mounted on"),
        ("set/data/pg_wal/archive_status", "data: found nothing mounted on"),
        ("set/data/base/16384", "data: found"),
        // It would lie below what is mounted.
        ("set", ""),
        ("", ""),
        // Not PostgreSQL's, or without worth.
        ("set/data/clone", ""),
        ("set/data/pg_wal/clone", ""),
        ("set/space/clone", ""),
        ("set/space/PG_15_202209061/pgsql_tmp", ""),
        ("set/data/pg_stat_tmp", ""),
        ("set/other", ""),
        ("set/data2", ""),
    ] {
        let told = told(at, "on");
        assert!(if missing.is_empty() { told.is_empty() } else { told.contains(missing) }, "{at}: {told}");
    }
    let noauto = told("set/space", "noauto");
    assert!(noauto.contains("`zfs load-key tank/x`, then `zfs mount tank/x`"), "{noauto}");
    assert!(noauto.contains("`zfs set canmount=off tank/x`"), "{noauto}");
    assert_eq!(told("set/space", "off"), "", "nobody can mount it");
    // A dataset of the write-ahead log, over a link, with a clone of it that somebody keeps below it.
    std::fs::create_dir(stage.at.join("set/wal")).unwrap();
    stage.link("pg_wal", stage.at.join("set/wal"));
    let found = stage.found().unwrap();
    for (at, missing) in [("set/wal", true), ("set/wal/summaries", true), ("set/wal/clone", false)] {
        let line = format!("tank/x\t{}\tnoauto\tno\t-\t-", stage.at.join(at).display());
        let told = unmounted::told(&found.on, &datasets::unmounted_of(&line), &mounted);
        assert_eq!(told.contains("pg_wal: found nothing mounted on"), missing, "{at}: {told}");
    }
    // Another one took its place.
    stage.mounts.push(format!("9 2 0:51 / {} rw - zfs tank/y rw", stage.at.join("set/space").display()));
    let found = stage.found().unwrap();
    let mounted = holdfast_host::mounts::mounts_of(stage.mounts.join("\n").as_bytes());
    let line = format!("tank/x\t{}\tnoauto\tno\t-\t-", stage.at.join("set/space").display());
    assert_eq!(unmounted::told(&found.on, &datasets::unmounted_of(&line), &mounted), "");
}

/// A dataset of the data directory is not mounted while PostgreSQL runs: a switchover, a restart or a crash would stop
/// it for good, so it is told before (ONSET-L4).
#[tokio::test]
async fn a_dataset_that_is_missing_while_postgresql_runs_is_told() {
    let mut stage = Stage::new(PoolKind::Zfs);
    stage.mount("0:50", "set", "zfs", "tank/pg");
    stage.pool("tank", &["nbd0"]);
    stage.link("pg_tblspc/16384", stage.at.join("set/space"));
    for (at, canmount, missing) in [
        ("set/space", "noauto", true),
        ("set/data/base", "on", true),
        ("set/space", "off", false),
        ("set/data/clone", "noauto", false),
    ] {
        let line = format!("tank/x\t{}\t{canmount}\tno\t-\t-", stage.at.join(at).display());
        let unmounted = async { Ok(datasets::unmounted_of(&line)) };
        let told = while_it_runs(&stage.config, stage.found().unwrap(), unmounted).await.unwrap();
        assert_eq!(told.contains("expected dataset tank/x"), missing, "{at} {canmount}: {told}");
        assert_eq!(told.is_empty(), !missing, "{at} {canmount}: {told}");
    }
    let late = async { Err("not within 5 s".to_string()) };
    let told = while_it_runs(&stage.config, stage.found().unwrap(), late).await;
    let why = told.expect_err("a ZFS that does not answer says nothing new").to_string();
    assert!(why.contains("not within 5 s"), "{why}");
}

/// `initdb -X /ssd/wal`: the first write passes, and all commits are lost with the host.
#[test]
fn wal_and_tablespaces_over_a_link_are_looked_at_where_they_lie() {
    let mut stage = Stage::new(PoolKind::Ext4);
    stage.set("43:0");
    stage.link("pg_tblspc/16384", stage.at.join("set/space"));
    stage.link("postgresql.conf", "/etc/hostname");
    stage.link("log", stage.at.join("ssd/tmp"));
    std::fs::create_dir(stage.at.join("set/data/base")).unwrap();
    stage.link("base/pgsql_tmp", stage.at.join("ssd/tmp"));
    assert_eq!(stage.told(), "", "files that are only read, or may be lost, may be elsewhere");
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
    // All of them are reported.
    assert_eq!(stage.off().len(), 3);
}

/// The tablespace is on the set, and one of its databases was moved to a disk of the host.
#[test]
fn a_database_that_was_moved_out_of_a_tablespace_is_seen() {
    let mut stage = Stage::new(PoolKind::Ext4);
    stage.set("43:0");
    let (ssd, space) = (stage.at.join("ssd"), stage.at.join("set/space"));
    std::fs::create_dir_all(space.join("PG_15_202209061/16384")).unwrap();
    std::fs::write(space.join("a file of a person"), "").unwrap();
    stage.link("pg_tblspc/16390", &space);
    stage.link("pg_tblspc/16390/PG_15_202209061/pgsql_tmp", ssd.join("tmp/a"));
    assert_eq!(stage.told(), "", "temporary files may be lost");
    stage.link("pg_tblspc/16390/PG_15_202209061/16385", ssd.join("wal"));
    let told = stage.told();
    assert!(told.contains("pg_tblspc/16390/PG_15_202209061/16385 (a link to"), "{told}");
    stage.config.database.allow_off_set = vec![ssd];
    assert_eq!(stage.told(), "");
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
    stage.link("pg_tblspc/16387", ssd.join("../elsewhere"));
    assert!(stage.told().contains("pg_tblspc/16387 (a link to"), "out of it again: {}", stage.told());
    stage.link("pg_wal", ssd.join("wal"));
    assert!(stage.told().contains("commits there are lost"), "{}", stage.told());
    stage.mounts.clear();
    stage.config.database.allow_off_set = vec![stage.at.clone()];
    assert!(stage.told().contains("data: found"), "{}", stage.told());
}

/// Without a link: a disk of the host is mounted there.
#[test]
fn a_file_system_that_is_mounted_in_the_data_directory_is_seen() {
    let mut stage = Stage::new(PoolKind::Ext4);
    for (device, at, seen) in [
        ("8:2", "set/data/pg_wal", "commits there are lost with this host"),
        ("8:2", "set/data/base", "data/base: found"),
        ("43:0", "set/data/base", ""),
        ("8:2", "set/data/pg_stat_tmp", ""),
        ("8:2", "set/data/base/pgsql_tmp", ""),
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

/// ONSET-L1 of another service: nothing below its directory is without worth, whatever PostgreSQL keeps under that
/// name.
#[test]
fn all_that_is_mounted_below_a_service_has_to_be_the_sets() {
    let mut stage = Stage::new(PoolKind::Ext4);
    let data = Some(stage.at.join("set/data"));
    stage.config.service = Some(crate::config::ServiceConfig { data, ..crate::config::ServiceConfig::default() });
    for (device, at, seen) in [
        ("8:2", "set/data/log", "unmount it there, or mount a file system of the set"),
        ("8:2", "set/data/pg_stat_tmp", "unmount it there"),
        ("43:0", "set/data/log", ""),
        ("8:2", "set/space", ""),
        ("8:2", "set", "correct service.data"),
    ] {
        stage.set("43:0");
        stage.mounts.push(format!("9 2 {device} / {} rw - xfs /dev/sdb rw", stage.at.join(at).display()));
        let told = stage.told();
        assert!(if seen.is_empty() { told.is_empty() } else { told.contains(seen) }, "{at}: {told}");
    }
}

/// A link to configuration outside: the text says how it may stay, and with the setting it does.
#[test]
fn configuration_outside_may_stay_where_the_settings_name_it() {
    let mut stage = Stage::new(PoolKind::Ext4);
    stage.set("43:0");
    let conf = stage.at.join("ssd/conf.d");
    std::fs::create_dir(&conf).unwrap();
    stage.link("conf.d", &conf);
    let told = stage.told();
    assert!(told.contains("data/conf.d (a link to"), "{told}");
    assert!(told.contains(&format!("write allow_off_set = [\"{}\"] below [database]", conf.display())), "{told}");
    stage.config.database.allow_off_set = vec![conf];
    assert_eq!(stage.told(), "");
}

/// No setting lets PostgreSQL run without its own directories, and none is proposed.
#[test]
fn postgresqls_own_directories_are_on_the_set_whatever_the_settings_say() {
    let mut stage = Stage::new(PoolKind::Ext4);
    stage.set("43:0");
    std::fs::create_dir(stage.at.join("set/data/base")).unwrap();
    let ssd = stage.at.join("ssd");
    stage.config.database.allow_off_set = vec![ssd.clone()];
    for own in ["pg_xact", "global", "base/16384"] {
        stage.link(own, ssd.join("wal"));
        let told = stage.told();
        assert!(told.contains(&format!("data/{own} (a link to")) && !told.contains("allow_off_set"), "{own}: {told}");
        std::fs::remove_file(stage.config.database.data.join(own)).unwrap();
    }
    assert_eq!(stage.told(), "");
}

/// `zpool add tank log /dev/nvme0n1p1`: the last commits are on that disk, and no other host has it (ONSET-L3).
#[test]
fn each_device_of_the_pool_that_holds_data_is_on_the_set() {
    let mut stage = Stage::new(PoolKind::Zfs);
    stage.mount("0:50", "set", "zfs", "tank/pg");
    for (device, seen) in [
        ("loop0", ""),
        ("cache:sda", ""),
        ("spare:sda", ""),
        ("logs:sda", "found its log device"),
        ("logs:loop0", ""),
        ("special:sda", "the whole pool is lost with it"),
        ("dedup:loop7", "found its dedup device"),
        ("nbd7", "found its data device"),
        // A plain file, and a device that is gone.
        ("logs:some.img", "found its log device"),
        ("logs:/dev/holdfast-no-such-disk", ""),
    ] {
        stage.pools.clear();
        if device.contains("/dev/") {
            let gone = Vdev { class: crate::drivers::zfs::vdevs::Class::Log, path: PathBuf::from(&device[5..]) };
            stage.pools.insert("tank".into(), Ok(vec![gone]));
        } else {
            stage.pool("tank", &["nbd0", device]);
        }
        let told = stage.devices();
        assert!(if seen.is_empty() { told.is_empty() } else { told.contains(seen) }, "{device}: {told}");
        assert_eq!(stage.told(), "");
    }
    stage.pool("tank", &["nbd0", "logs:sda"]);
    let (told, disk) = (stage.devices(), stage.at.join("sda"));
    for words in ["zpool remove tank", "holdfast agent pause", "holdfast agent failover", "holdfast agent resume"] {
        assert!(told.contains(words), "{told}");
    }
    assert!(
        told.contains(&format!("log device {} off the set, expected devices of set demo", disk.display())),
        "{told}"
    );
    // A device that is not connected at this moment.
    std::fs::remove_file(stage.at.join("sys/block/nbd0/backend")).unwrap();
    stage.pool("tank", &["nbd0"]);
    assert_eq!(stage.devices(), "");
    // Another pool of the host is none of it.
    stage.pool("other", &["sda"]);
    assert_eq!(stage.devices(), "");
    stage.pools.insert("tank".into(), Err(NotRan::Late("not within 5 s".into())));
    let unasked = stage.found().unwrap().devices.unwrap_err();
    assert_eq!(unasked.to_string(), "pool tank: could not ask for its devices: not within 5 s");
    assert_eq!(stage.told(), "", "that says nothing of the files");
}

/// `pool.kind = "none"`: the pool was made by a person, and its devices say whose it is.
#[test]
fn a_persons_own_pool_over_the_sets_devices_is_on_the_set() {
    let mut stage = Stage::new(PoolKind::None);
    stage.mount("0:50", "set", "zfs", "mine/pg");
    stage.pool("mine", &["nbd0", "loop0", "cache:sda"]);
    assert_eq!((stage.told().as_str(), stage.devices().as_str()), ("", ""));
    stage.pool("mine", &["nbd0", "logs:sda"]);
    assert_eq!(stage.told(), "");
    assert!(stage.devices().contains("pool mine: found its log device"), "{}", stage.devices());
    for devices in [&["sda"][..], &["nbd7"], &["sda", "cache:nbd0"], &[]] {
        stage.pool("mine", devices);
        assert!(stage.told().contains("data: found") && stage.devices().is_empty(), "{devices:?}: {}", stage.told());
    }
    stage.pools.insert("mine".into(), Err(NotRan::Late("not within 5 s".into())));
    let unasked = stage.found().unwrap_err().to_string();
    let expected = "pool mine: could not ask for its devices: not within 5 s";
    assert_eq!(unasked, expected, "nothing is known of these files");
    // A WAL dataset of another pool, on a disk of the host.
    stage.pool("mine", &["nbd0"]);
    stage.pool("local", &["sda"]);
    let wal = stage.at.join("set/data/pg_wal");
    stage.mounts.push(format!("9 2 0:51 / {} rw - zfs local/wal rw", wal.display()));
    assert!(stage.told().contains("commits there are lost with this host"), "{}", stage.told());
}

/// The kernel's own table and devices: a loop device over a file of the attach's folder, as with nbdfuse. Without root,
/// or loop devices, nothing is tested, and that is said.
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
    let checks = Arc::new(Checks::default());
    let good = may_start(&config, &checks).await.map_err(NotDone::from);
    sh("rmdir set/data/pg_wal && ln -s ../../ssd/wal set/data/pg_wal");
    let wal = may_start(&config, &checks).await.map_err(NotDone::from);
    config.run_dir = at.join("other");
    let foreign = may_start(&config, &checks).await.map_err(NotDone::from);
    checks.ended().await;
    sh(&format!("umount set; losetup -d {device}"));
    assert_eq!(good, Ok(()));
    let Err(NotDone::Refused(why)) = wal else { panic!("{wal:?}") };
    assert!(why.contains("pg_wal (a link to ../../ssd/wal): found"), "{why}");
    let Err(NotDone::Refused(why)) = foreign else { panic!("{foreign:?}") };
    assert!(why.contains(&device), "{why}");
}
