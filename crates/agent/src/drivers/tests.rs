use super::*;

#[test]
fn with_multihost_a_host_without_an_id_of_its_own_is_unable() {
    let told = |multihost, id: Result<&str, &str>| {
        let mut looked = PoolState::of(multihost, false);
        assert_eq!(looked.look.unable.contains("not read yet"), multihost);
        looked.hears(Vec::new());
        assert_eq!(looked.look.unable.contains("not read yet"), multihost);
        looked.is_told(id.map(Into::into).map_err(Into::into));
        looked.look
    };
    assert!(told(true, Ok(hostid::NONE)).unable.contains("zgenhostid"));
    let unread = told(true, Err("/etc/hostid: Is a directory"));
    assert!(unread.unable.contains("/etc/hostid: Is a directory") && unread.host_id.is_empty(), "{unread:?}");
    let own = PoolLook { host_id: "00000007".into(), multihost: true, ..PoolLook::default() };
    assert_eq!(told(true, Ok("00000007")), own);
    for id in [Ok(hostid::NONE), Err("no")] {
        assert_eq!(told(false, id).unable, "", "without multihost any id does");
    }
}

/// A host whose import would be refused takes no lease: it would give it back, again and again.
#[test]
fn with_multihost_a_host_with_the_id_of_another_that_answers_is_unable() {
    let told = |id: &str| ("db2".to_string(), Ok(id.to_string()));
    let silent = ("db3".to_string(), Err("no route".to_string()));
    let mut looked = PoolState::of(true, false);
    looked.is_told(Ok("00000007".into()));
    assert_eq!(looked.look.unable, NOT_HEARD, "it does not know the other ids yet");
    looked.hears(vec![told("00000007"), silent.clone()]);
    let why = looked.look.unable.clone();
    assert!(why.contains("00000007, is that of db2 too") && why.contains("zgenhostid"), "{why}");
    // The remedy, on either host.
    looked.hears(vec![told("00000008"), silent.clone()]);
    assert_eq!(looked.look.unable, "");
    looked.is_told(Ok("00000008".into()));
    assert!(looked.look.unable.contains("00000008, is that of db2 too"), "{}", looked.look.unable);
    // The other host is lost: this one has to take over.
    looked.hears(vec![("db2".into(), Err("no route".into())), silent]);
    assert_eq!(looked.look.unable, "");
    let mut careless = PoolState::of(false, false);
    careless.is_told(Ok("00000007".into()));
    careless.hears(vec![told("00000007")]);
    assert_eq!(careless.look.unable, "", "without multihost any id does");
}

/// AGENT-A7 before the lease is taken: without its watchdog this host would give it back, again and again.
#[test]
fn a_host_without_the_watchdog_that_it_requires_is_unable() {
    let mut looked = PoolState::of(false, true);
    assert_eq!(looked.look.unable, NOT_LOOKED);
    looked.is_guarded(Err("/dev/watchdog: not there".into()));
    assert_eq!(looked.look.unable, "the machine's watchdog is required (watchdog.mode): /dev/watchdog: not there");
    looked.is_guarded(Ok(()));
    assert_eq!(looked.look.unable, "");
    assert_eq!(PoolState::of(false, false).look.unable, "", "it is not required");
}

#[tokio::test]
async fn a_watchdog_that_is_required_is_looked_at_while_it_stands_by() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = AgentConfig { run_dir: dir.path().into(), ..AgentConfig::default() };
    config.watchdog.mode = WatchdogMode::Required;
    config.watchdog.device = dir.path().join("watchdog-of-this-test");
    let real = Real::new(&config).unwrap();
    let becomes = async |is: fn(&str) -> bool| {
        let begun = Instant::now();
        while !is(&real.pool_look().unable) {
            assert!(begun.elapsed() < Duration::from_secs(30), "found {:?}", real.pool_look().unable);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    becomes(|why| why.contains("watchdog-of-this-test: No such file") && why.contains("modprobe softdog")).await;
    std::fs::write(&config.watchdog.device, "").unwrap();
    becomes(str::is_empty).await;
    std::fs::remove_file(&config.watchdog.device).unwrap();
    becomes(|why| why.contains("modprobe softdog")).await;
}

/// Its import was given up, and may still end: this host would take a lease only to give it back.
#[test]
fn a_host_whose_import_hangs_is_unable() {
    let import = "/usr/sbin/zpool import -f -o cachefile=none -d /dev/nbd0 tank".to_string();
    assert!(is_of_pool(PoolKind::Zfs, &import) && is_of_pool(PoolKind::Ext4, "/sbin/e2fsck -p /dev/loop0"));
    assert!(!is_of_pool(PoolKind::Ext4, &import) && !is_of_pool(PoolKind::None, &import));
    assert!(!is_of_pool(PoolKind::Zfs, "/usr/bin/pg_ctl -D /tank/zpool"));
    let mut looked = PoolState::of(false, false);
    looked.are_left(std::slice::from_ref(&import));
    let why = looked.look.unable.clone();
    assert!(why.starts_with(&import) && why.contains("hangs in the kernel") && why.contains("reboot"), "{why}");
    looked.are_left(&[]);
    assert_eq!(looked.look.unable, "");
}

/// Answers every question as the agent of host db2, with this host id.
async fn db2(id: Arc<Mutex<&'static str>>) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut question = [0; 1024];
            let _ = stream.read(&mut question).await;
            let view = serde_json::json!({
                "name": "db2", "set": "demo", "state": "standby", "since_unix_ms": 0, "role": "standby", "why": "", "paused": false,
                "mode": "automatic", "nofailover": false, "priority": 100, "epoch": 0, "lease_owner": "", "cluster_answers": true,
                "database": "gone", "attach": null, "renewed_ms_ago": null, "obstacle": "", "host_id": *id.lock().unwrap(),
                "version": "",
            });
            let _ = stream.write_all(format!("HTTP/1.1 200 OK\r\n\r\n{view}").as_bytes()).await;
        }
    });
    address
}

#[tokio::test]
async fn the_others_are_asked_while_it_stands_by() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("etc")).unwrap();
    std::fs::write(dir.path().join("etc/hostid"), 7_u32.to_ne_bytes()).unwrap();
    let theirs = Arc::new(Mutex::new("00000007"));
    let mut config = AgentConfig { run_dir: dir.path().into(), ..AgentConfig::default() };
    (config.pool.kind, config.pool.name, config.pool.multihost) = (PoolKind::Zfs, Some("tank".into()), true);
    config.peers.0.insert("db2".into(), db2(theirs.clone()).await);
    let mut real = Real::new(&config).unwrap();
    real.root = dir.path().into();
    let begun = Instant::now();
    while !real.pool_look().unable.contains("is that of db2 too") {
        assert!(begun.elapsed() < Duration::from_secs(30), "found {:?}, expected db2's id", real.pool_look().unable);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    *theirs.lock().unwrap() = "00000008";
    let begun = Instant::now();
    while !real.pool_look().unable.is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(30), "found {:?}, expected nothing", real.pool_look().unable);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// No test calls `reboot` of the real host: a mistake in it would end the machine. If one did, the path would not
/// exist.
#[tokio::test]
async fn a_tests_host_is_not_the_machine_that_it_runs_on() {
    let dir = tempfile::tempdir().unwrap();
    let real = Real::new(&AgentConfig { run_dir: dir.path().into(), ..AgentConfig::default() }).unwrap();
    assert_eq!(real.sysrq(), PathBuf::from("/nonexistent/proc/sysrq-trigger"));
}

/// Without a pool nothing can be missing beside a running attach.
#[tokio::test]
async fn without_a_pool_whatever_is_attached_is_mounted() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = AgentConfig { run_dir: dir.path().into(), ..AgentConfig::default() };
    config.pool.kind = PoolKind::None;
    config.database.data = dir.path().join("data");
    std::fs::create_dir_all(dir.path().join("attach")).unwrap();
    let real = Real::new(&config).unwrap();
    assert_eq!(real.found().await, Ok(Found::default()));
    let _attach = holdfast_host::lock::lock(&dir.path().join("attach"), "attach.lock").unwrap();
    assert_eq!(real.found().await, Ok(Found { attach: true, mounted: true, database: false }));
}

/// After this the device is removed.
#[test]
fn a_pool_that_could_not_be_looked_for_is_not_let_go_of() {
    assert_eq!(to_export(Err(NotOurs::Unlooked("no".into()))), Err("no".into()));
    assert_eq!(to_export(Err(NotOurs::Foreign("theirs".into()))), Ok(None));
    assert_eq!((to_export(Ok(true)), to_export(Ok(false))), (Ok(Some(true)), Ok(Some(false))));
}

/// OWN-P1: a later pool of its name belongs to a person who works by hand in a pause.
#[tokio::test]
async fn what_was_let_go_of_is_noted_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = AgentConfig { run_dir: dir.path().into(), ..AgentConfig::default() };
    config.pool.mount = dir.path().join("pool");
    let (real, noted) = (Real::new(&config).unwrap(), dir.path().join("pool.noted"));
    ownership::note(&config);
    assert!(noted.is_file());
    assert_eq!(real.export(false).await, Ok(()));
    assert!(!noted.exists());
}

/// Settings of a host with a data directory on its own disk, as Debian has one below a dataset that is not mounted; and
/// its directory.
fn off_the_set() -> (tempfile::TempDir, AgentConfig) {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().canonicalize().unwrap();
    let mut config = AgentConfig { dir: at.clone(), run_dir: at.join("run"), ..AgentConfig::default() };
    (config.pool.mount, config.database.data) = (at.clone(), at.join("data"));
    std::fs::create_dir_all(at.join("data/pg_wal")).unwrap();
    std::fs::create_dir_all(&config.run_dir).unwrap();
    std::fs::write(at.join("data/PG_VERSION"), "15\n").unwrap();
    std::fs::write(at.join("data/postmaster.pid"), "1\n").unwrap();
    (dir, config)
}

/// ONSET-L1: checked before anything is touched, and after the hook, which may mount what is missing.
#[tokio::test]
async fn what_is_not_on_the_set_is_not_started() {
    let (dir, mut config) = off_the_set();
    config.hooks.before_start = Some(format!("touch {}/asked", dir.path().display()));
    let refused = Real::new(&config).unwrap().start_database().await.unwrap_err();
    let NotDone::Refused(why) = refused else { panic!("{refused:?}") };
    assert!(why.contains("expected a file system over the devices of set demo"), "{why}");
    assert!(dir.path().join("asked").exists() && dir.path().join("data/postmaster.pid").exists());
    config.hooks.before_start = Some("echo no >&2; exit 1".into());
    let failed = Real::new(&config).unwrap().start_database().await.unwrap_err();
    assert!(matches!(&failed, NotDone::Failed(why) if why.contains("hooks.before_start")), "{failed:?}");
}

/// ONSET-L2: checked again while PostgreSQL runs, and no longer once it does not.
#[tokio::test]
async fn what_runs_off_the_set_is_told_while_it_runs() {
    let (_dir, config) = off_the_set();
    let real = Real::new(&config).unwrap();
    assert_eq!(real.pool_look().off_set, "");
    real.alive(Some(MonoTime(1)), 3000, false);
    let begun = Instant::now();
    while real.pool_look().off_set.is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(30));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(real.pool_look().off_set.contains("data: found"));
    real.alive(None, 3000, false);
    assert_eq!(real.pool_look().off_set, "");
    // If an earlier agent started PostgreSQL, it is known before the first sign.
    let adopts = Real::new(&config).unwrap();
    adopts.places_adopted().await;
    assert!(adopts.pool_look().off_set.contains("data: found"));
}
