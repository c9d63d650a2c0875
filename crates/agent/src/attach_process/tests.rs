//! The driver with an attach of shell.

use super::*;
use holdfast_tls::Revoked;

/// An attach of shell: takes the lock, shows a status, and stays.
fn fake(dir: &Path, body: &str) -> Attach {
    let program = dir.join("attach.sh");
    std::fs::create_dir_all(dir.join("run/attach")).unwrap();
    let lock = dir.join("run/attach/attach.lock");
    let script = format!(
        "#!/bin/bash\ncd {}/run/attach\nexec 9>{}\nflock 9\necho $$ >&9\n{body}\n",
        dir.display(),
        lock.display()
    );
    // Copied by another process: no thread of ours may have a file open for writing that is to be run.
    let text = program.with_extension("text");
    std::fs::write(&text, script).unwrap();
    assert!(Command::new("cp").arg(&text).arg(&program).status().unwrap().success());
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let mut config = AgentConfig { run_dir: dir.join("run"), ..AgentConfig::default() };
    config.attach.program = Some(program);
    Attach::new(&config)
}

fn wait_for(attach: &Attach, fits: impl Fn(&AttachLook) -> bool) -> AttachLook {
    let begun = Instant::now();
    loop {
        let look = attach.look();
        if fits(&look) || begun.elapsed() > Duration::from_secs(20) {
            return look;
        }
        std::thread::sleep(LOOK_PAUSE);
    }
}

const SERVING: &str = r#"echo "{\"phase\":\"serving\",\"pid\":$$,\"epoch\":7,\"ready\":true,\"lease_renewed_boot_ns\":5}" >s; mv s status.json"#;

#[tokio::test]
async fn it_is_started_watched_and_detached() {
    let dir = tempfile::tempdir().unwrap();
    let attach = fake(dir.path(), &format!("trap 'exit 0' TERM\n{SERVING}\nwhile :; do sleep 0.05 9>&-; done"));
    assert_eq!(attach.look(), AttachLook::None);
    attach.start(false).await.unwrap();
    let serving = |look: &AttachLook| matches!(look, AttachLook::Runs(view) if view.phase == AttachPhase::Serving);
    let AttachLook::Runs(view) = wait_for(&attach, serving) else { panic!("does not serve") };
    assert_eq!((view.epoch, view.phase), (7, AttachPhase::Serving));
    assert_eq!(attach.look(), AttachLook::Runs(view), "the same renewal is the same moment");
    assert!(attach.start(false).await.is_err(), "one at a time");
    attach.detach(false).await.unwrap();
    assert_eq!(attach.look(), AttachLook::None);
    attach.detach(true).await.unwrap();
}

/// WATCHDOG-W3: the machine's watchdog is fed from there, or it resets a machine of which nothing but a device is left.
#[test]
fn whoever_ends_attach_is_called_while_it_ends() {
    let dir = tempfile::tempdir().unwrap();
    let config = AgentConfig { run_dir: dir.path().into(), ..AgentConfig::default() };
    std::fs::create_dir_all(dir.path().join("attach")).unwrap();
    // Held by nobody that a signal could reach, so it is still there when it was killed.
    let mut held = Some(holdfast_host::lock::lock(&dir.path().join("attach"), "attach.lock").unwrap());
    let mut called = 0;
    kill(&config, || {
        called += 1;
        held = None;
    });
    assert!(called > 0);
    assert!(held.is_none() && !may_run(&dir.path().join("attach")));
}

/// What of attach's status is the agent's business when one of two volumes was deleted under its device.
#[test]
fn an_attach_that_lost_a_volume_serves_and_says_so() {
    let status = |ready, others| {
        let text = format!(
            r#"{{"phase":"serving","pid":1,"ready":{ready},"others_ready":{others},"volumes":[{{"name":"vol1"}},{{"name":"vol2","lost":"volume vol2 is gone"}}]}}"#
        );
        serde_json::from_str::<Status>(&text).unwrap()
    };
    assert_eq!(status(false, true).phase(), AttachPhase::Serving);
    assert_eq!(status(false, false).phase(), AttachPhase::Connecting, "the devices are only being made");
    let dir = tempfile::tempdir().unwrap();
    let attach = fake(dir.path(), "");
    let text =
        r#"{"phase":"serving","pid":1,"others_ready":true,"volumes":[{"name":"vol2","lost":"volume vol2 is gone"}]}"#;
    std::fs::create_dir_all(&attach.dir).unwrap();
    std::fs::write(attach.dir.join("status.json"), text).unwrap();
    attach.inner().expected = true;
    let (AttachLook::Ended(_) | AttachLook::Runs(_)) = attach.look() else { panic!("not looked at") };
    let view = attach.inner().last.clone().unwrap();
    assert_eq!((view.phase, view.lost), (AttachPhase::Serving, vec!["volume vol2 is gone".to_string()]));
}

/// The machine was suspended for a minute: by the time of day as attach reckons it the renewal is young, by the clock
/// of leases it is not.
#[test]
fn a_renewal_is_as_old_as_the_clock_of_leases_says() {
    let dir = tempfile::tempdir().unwrap();
    let attach = fake(dir.path(), "");
    attach.inner().expected = true;
    // Of a machine that has just been switched on, as long as it has run.
    let age = clock::now().0.min(60_000_000_000);
    let renewed = clock::now().0 - age;
    let show = |boot_ns: u64| {
        let (by_day, at) = (clock::unix_ms(), boot_ns);
        let text = format!(
            r#"{{"phase":"serving","pid":1,"ready":true,"lease_renewed_at":{by_day},"lease_renewed_boot_ns":{at}}}"#
        );
        std::fs::write(attach.dir.join("status.json"), text).unwrap();
        attach.look();
        attach.inner().last.clone().unwrap().renewed
    };
    assert_eq!(show(renewed), Some(MonoTime(renewed)));
    // Later than now: of before the machine's clock went back. PostgreSQL is not stopped for it at once.
    assert_eq!(show(u64::MAX), Some(MonoTime(renewed)), "the one before counts");
    // Of another boot of this machine.
    *attach.inner() = Inner { expected: true, ..Inner::default() };
    assert_eq!(show(u64::MAX), None);
}

#[tokio::test]
async fn a_stubborn_one_is_killed_and_that_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let mut attach = fake(dir.path(), &format!("trap '' TERM\n{SERVING}\nwhile :; do sleep 0.05 9>&-; done"));
    attach.detach_limit = Duration::from_millis(100);
    attach.start(false).await.unwrap();
    wait_for(&attach, |look| matches!(look, AttachLook::Runs(view) if view.phase == AttachPhase::Serving));
    let why = attach.detach(false).await.unwrap_err();
    assert!(why.contains("was killed"), "{why}");
    assert!(!running(&attach.dir).unwrap());
}

#[tokio::test]
async fn what_a_killed_one_left_in_the_kernel_is_taken_away() {
    let dir = tempfile::tempdir().unwrap();
    let kept = "touch lease.json";
    let begin = "case \" $* \" in *--abandon*) echo \"$*\" > abandoned; rm lease.json; exit 0;; esac";
    let attach = fake(dir.path(), &format!("{begin}\n{kept}\n{SERVING}\nwhile :; do sleep 0.05 9>&-; done"));
    let attach_dir = dir.path().join("run/attach");
    attach.start(false).await.unwrap();
    wait_for(&attach, |look| matches!(look, AttachLook::Runs(view) if view.phase == AttachPhase::Serving));
    // It runs: its devices are its own.
    attach.clear().await;
    assert!(!attach_dir.join("abandoned").exists());
    signal(&attach_dir, Signal::KILL);
    wait_for(&attach, |look| matches!(look, AttachLook::Ended(_)));
    attach.detach(true).await.unwrap();
    let told = std::fs::read_to_string(attach_dir.join("abandoned")).unwrap();
    assert!(told.contains("--owner db1 --abandon --dir"), "{told}");
    assert!(!attach_dir.join("lease.json").exists());
}

/// It was killed while it gave its devices up, and so without a lease. Processes that use the device would hang for the
/// `dead_timeout`, after their SIGKILL too.
#[test]
fn a_device_that_the_kernel_shows_was_left() {
    let (sys, dir) = (tempfile::tempdir().unwrap(), Path::new("/run/holdfast-agent/attach"));
    assert!(!kernel_has_one(sys.path(), dir), "there is no list of devices");
    let show = |name: &str, backend: Option<&str>, size: &str| {
        let device = sys.path().join("block").join(name);
        std::fs::create_dir_all(&device).unwrap();
        std::fs::write(device.join("size"), size).unwrap();
        match backend {
            Some(backend) => std::fs::write(device.join("backend"), backend).unwrap(),
            None => drop(std::fs::remove_file(device.join("backend"))),
        }
        kernel_has_one(sys.path(), dir)
    };
    assert!(!show("sda", Some("holdfast /run/holdfast-agent/attach/vol1\n"), "8\n"), "it is no nbd device");
    assert!(!show("nbd0", None, "0\n"), "it is not connected");
    assert!(!show("nbd0", Some("holdfast /run/holdfast-agent/attach2/vol1\n"), "8\n"), "of another attach");
    assert!(!show("nbd0", Some("holdfast /run/holdfast-agent/attach/deeper/vol1\n"), "8\n"), "of another attach");
    assert!(!show("nbd0", Some("holdfast /run/holdfast-agent/attach/vol1\n"), "0\n"), "it is only held open");
    assert!(show("nbd0", Some("holdfast /run/holdfast-agent/attach/vol1\n"), "8\n"));
    assert!(kernel_has_one(sys.path(), Path::new("/run//holdfast-agent/./attach")), "attach has no such name for it");
    assert!(!show("nbd0", None, "8\n"));
    // What cannot be read may be one.
    std::fs::create_dir_all(sys.path().join("block/nbd1/backend")).unwrap();
    assert!(kernel_has_one(sys.path(), dir));
}

#[tokio::test]
async fn its_end_tells_refused_from_fenced_from_failed() {
    for (body, expected) in [
        ("echo held by db9; exit 3", AttachEnd::Refused("held by db9".into())),
        (
            r#"echo "{\"phase\":\"fenced\",\"pid\":$$,\"fenced_by\":\"db9\"}" >status.json; exit 1"#,
            AttachEnd::Fenced("db9".into()),
        ),
        ("echo no; exit 1", AttachEnd::Failed("exit code 1: no".into())),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let attach = fake(dir.path(), body);
        attach.start(false).await.unwrap();
        let look = wait_for(&attach, |look| matches!(look, AttachLook::Ended(_)));
        assert_eq!(look, AttachLook::Ended(expected));
    }
}

/// The helper outlives upgrades, and has to end devices in the kernel all the same: else what waits on them outlives
/// the lease.
#[test]
fn a_program_that_was_replaced_is_run_by_its_path() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("holdfast");
    let deleted = dir.path().join("holdfast (deleted)");
    assert_eq!(by_path(deleted.clone()), program);
    assert_eq!(by_path(program.clone()), program);
    // That is its name.
    std::fs::write(&deleted, "").unwrap();
    assert_eq!(by_path(deleted.clone()), deleted);
}

#[test]
fn attach_is_told_where_the_host_stands() {
    let place = "region=eu,zone=a";
    let args = |config: &AgentConfig| Attach::new(config).args;
    let told = args(&AgentConfig { locality: place.parse().ok(), ..AgentConfig::default() });
    assert!(told.windows(2).any(|pair| pair[0] == "--locality" && pair[1] == place), "{told:?}");
    let silent = args(&AgentConfig::default());
    assert!(!silent.contains(&"--locality".to_string()), "{silent:?}");
}

/// REVOKE-V4: a reboot deletes attach's list, and the agent's is newer than that of an earlier attach.
#[tokio::test]
async fn it_begins_with_the_agents_list_of_revoked_certificates() {
    let dir = tempfile::tempdir().unwrap();
    let (run_dir, own) = (dir.path().join("run"), dir.path().join("lib"));
    let config = AgentConfig { run_dir, dir: own.clone(), ..AgentConfig::default() };
    let attach = Attach::new(&config);
    let handed = attach.dir().join(REVOKED_FILE);
    attach.hand_over_revoked().await;
    assert!(!handed.exists(), "nothing was ever revoked");
    std::fs::create_dir_all(&own).unwrap();
    let list = |name: &str| {
        let names = std::collections::BTreeSet::from([name.to_string()]);
        let digest = Revoked { names: names.clone(), ..Revoked::default() }.digest();
        serde_json::json!({ "g1:7400": { "digest": digest, "serials": [], "names": names } }).to_string()
    };
    for list in [list("one"), list("two")] {
        std::fs::write(own.join(REVOKED_FILE), &list).unwrap();
        attach.hand_over_revoked().await;
        assert_eq!(std::fs::read_to_string(&handed).unwrap(), list);
    }
    let whole = list("one");
    for damaged in ["", &whole[..20], whole.replace("\"one\"", "").as_str()] {
        std::fs::write(own.join(REVOKED_FILE), damaged).unwrap();
        attach.hand_over_revoked().await;
        assert_eq!(std::fs::read_to_string(&handed).unwrap(), list("two"), "its own is whole");
    }
}
