//! Real processes in real control groups, where this machine has them; a stand-in for systemctl.

use super::*;
use holdfast_testkit::skipped;
use std::path::Path;

/// A service by commands in `dir`, known by a control group of its own; `None` if this machine has none that this test
/// may make.
fn service(dir: &Path, test: &str, change: impl FnOnce(&mut ServiceConfig)) -> Option<Service> {
    let mut settings =
        ServiceConfig { kind: ServiceKind::Command, check: Some("true".into()), ..ServiceConfig::default() };
    change(&mut settings);
    let name = format!("{test}-{}", std::process::id());
    let config = AgentConfig { name, dir: dir.into(), service: Some(settings.clone()), ..AgentConfig::default() };
    let service = Service::new(&config, &settings);
    match service.group.make() {
        Ok(_) => Some(service),
        Err(why) => {
            skipped(&format!("no control group can be made: {why}"));
            None
        }
    }
}

/// The start command may be the service itself. Its group goes with it.
#[tokio::test]
async fn a_command_that_stays_is_the_service() {
    let dir = tempfile::tempdir().unwrap();
    let Some(service) = service(dir.path(), "stays", |it| it.start = Some("exec sleep 600".into())) else { return };
    service.start().await.unwrap();
    assert_eq!(service.probe().await, Some(DatabaseView::Ready));
    assert!(service.start().await.unwrap_err().contains("runs already"));
    service.stop(Stop::Kill).await.unwrap();
    assert_eq!(service.probe().await, Some(DatabaseView::Gone));
    let group = service.group.make().unwrap();
    assert!(std::fs::remove_dir(&group).is_ok(), "nothing lives in it");
    service.stop(Stop::Kill).await.unwrap();
    service.stop(Stop::Fast).await.unwrap();
}

/// SERVICE-S1: another session, no environment, another directory, and the first process gone.
#[tokio::test]
async fn what_a_start_leaves_behind_is_known_whatever_it_changes() {
    let dir = tempfile::tempdir().unwrap();
    let start = "setsid env -i sh -c 'cd /; exec sleep 600' > /dev/null 2>&1 &";
    let made = service(dir.path(), "leaves", |it| {
        (it.start, it.check) = (Some(start.into()), Some("echo no answer; exit 1".into()));
    });
    let Some(service) = made else { return };
    service.start().await.unwrap();
    assert_eq!(service.found().await, Ok(true));
    // SERVICE-S3: it lives, and does not serve.
    assert_eq!(service.probe().await, Some(DatabaseView::Silent));
    assert_eq!(*service.failing.locked(), "exit code 1: no answer");
    service.stop(Stop::Fast).await.unwrap();
    assert_eq!(service.found().await, Ok(false));
}

#[tokio::test]
async fn a_start_that_fails_is_told_with_its_words() {
    let dir = tempfile::tempdir().unwrap();
    for (start, words) in [("echo no room; exit 3", "no room"), ("true", "left no process behind")] {
        let Some(service) = service(dir.path(), "fails", |it| it.start = Some(start.into())) else { return };
        // Otherwise this check would end the wait for it.
        let service = Service { settings: ServiceConfig { check: None, ..service.settings.clone() }, ..service };
        let why = service.start().await.unwrap_err();
        assert!(why.contains(words), "{start}: {why}");
        service.stop(Stop::Kill).await.unwrap();
    }
}

/// A stop in good order has a limit, and says what is left; by force it ends.
#[tokio::test]
async fn a_service_that_does_not_end_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let made = service(dir.path(), "deaf", |it| {
        it.start = Some("trap '' TERM; while :; do sleep 0.05; done".into());
        it.stop_timeout_s = 1;
    });
    let Some(service) = made else { return };
    service.start().await.unwrap();
    let why = service.stop(Stop::Fast).await.unwrap_err();
    assert!(why.contains("processes of service nfs are left after a stop of 1 s"), "{why}");
    service.stop(Stop::Immediate).await.unwrap();
    assert_eq!(service.probe().await, Some(DatabaseView::Gone));
}

/// SERVICE-S4: the lease ends. The script waits until the service is gone: if it came first, it would hold the SIGKILL
/// back.
#[tokio::test]
async fn a_stop_in_a_hurry_does_not_wait_for_the_script() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().display();
    let made = service(dir.path(), "hurry", |it| {
        it.start = Some(format!("echo $$ > {at}/pid; exec sleep 600"));
        it.stop = Some(format!(
            "while kill -0 $(cat {at}/pid) 2> /dev/null; do sleep 0.01; done; echo $HOLDFAST_STOP > {at}/told; exec sleep 600"
        ));
    });
    let Some(service) = made else { return };
    service.start().await.unwrap();
    let begun = Instant::now();
    service.stop(Stop::Immediate).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert_eq!(service.probe().await, Some(DatabaseView::Gone));
    let told = std::fs::read_to_string(dir.path().join("told")).unwrap_or_default();
    assert!(matches!(told.as_str(), "immediate\n" | ""), "on a busy machine the script may not come so far: {told:?}");
}

/// SERVICE-S3: no answer in time is none. A check that cannot be run says nothing.
#[tokio::test]
async fn a_check_that_hangs_is_no_answer_and_one_that_cannot_run_says_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let made = service(dir.path(), "hangs", |it| {
        it.start = Some("sleep 600 > /dev/null 2>&1 &".into());
        (it.check, it.check_timeout_ms) = (Some("exec sleep 601".into()), 100);
    });
    let Some(service) = made else { return };
    service.start().await.unwrap();
    assert_eq!(service.probe().await, Some(DatabaseView::Silent));
    service.stop(Stop::Kill).await.unwrap();
    if rustix::process::geteuid().is_root() {
        let settings = ServiceConfig { user: "holdfast-no-such-user".into(), ..service.settings.clone() };
        let config = AgentConfig { service: Some(settings.clone()), ..AgentConfig::default() };
        assert_eq!(Service::new(&config, &settings).check().await, None);
    }
}

/// SERVICE-S2
#[tokio::test]
async fn a_start_that_is_given_up_before_it_has_entered_ends() {
    let child = tokio::process::Command::new("sleep").arg("602").spawn().unwrap();
    let pid = child.id().unwrap().cast_signed();
    drop(Entering(Some(child)));
    let begun = Instant::now();
    while process::of_name("sleep", "602").contains(&pid) {
        assert!(begun.elapsed() < Duration::from_secs(20), "it lives");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A unit without processes, as that of the kernel's NFS server (SERVICE-S1).
#[tokio::test]
async fn a_unit_without_processes_runs_while_it_is_active() {
    let dir = tempfile::tempdir().unwrap();
    let (at, systemctl) = (dir.path().display(), dir.path().join("systemctl"));
    std::fs::write(dir.path().join("state"), "inactive").unwrap();
    let text = format!(
        "#!/bin/sh\ncase $1 in\nshow) printf 'Id=%s\\nLoadState=loaded\\nActiveState=%s\\nRestart=no\\nJob=\\n' $(cat {at}/id) $(cat {at}/state) ;;\n\
         start) echo active > {at}/state ;;\nstop) echo inactive > {at}/state ;;\nesac\n"
    );
    // By a process of its own: a program that this one has open for writing does not start ("text file busy").
    std::fs::write(dir.path().join("text"), text).unwrap();
    let mut install = std::process::Command::new("install");
    install.args(["-m", "755"]).args([&dir.path().join("text"), &systemctl]);
    assert!(install.status().unwrap().success());
    let settings = ServiceConfig { check: Some("true".into()), ..ServiceConfig::default() };
    std::fs::write(dir.path().join("id"), &settings.unit).unwrap();
    let config = AgentConfig { service: Some(settings.clone()), dir: dir.path().into(), ..AgentConfig::default() };
    let service = Service::new(&config, &settings);
    // Nothing is in any group.
    let (group, unit) =
        (service.group.clone().at(dir.path()), Systemd::of_unit(&settings.unit).with_program(systemctl));
    let service = Service { group, unit: Some(unit), ..service };
    assert_eq!((service.found().await, service.probe().await), (Ok(false), Some(DatabaseView::Gone)));
    service.start().await.unwrap();
    assert_eq!((service.found().await, service.probe().await), (Ok(true), Some(DatabaseView::Ready)));
    service.stop(Stop::Immediate).await.unwrap();
    assert_eq!((service.found().await, service.probe().await), (Ok(false), Some(DatabaseView::Gone)));
    service.start().await.unwrap();
    service.stop(Stop::Fast).await.unwrap();
    assert_eq!(service.probe().await, Some(DatabaseView::Gone));
    // CGROUP-C1: by an alias, what runs in the unit's group would not be found.
    std::fs::write(dir.path().join("id"), "nfs-server.service").unwrap();
    assert!(service.found().await.unwrap_err().contains("nfs-server.service"));
    assert!(service.start().await.is_err());
    assert_eq!(service.probe().await, Some(DatabaseView::Gone), "nothing was started");
}
