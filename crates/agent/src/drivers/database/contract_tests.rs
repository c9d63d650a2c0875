//! What the machine expects of PostgreSQL's driver, asked of each way in which it can be started, with a real
//! PostgreSQL: by ourselves, by commands, and by a unit. The unit is a stand-in's (`systemctl.sh`), or with
//! HOLDFAST_TEST_SYSTEMD=1, as root, one of the systemd that runs here: a unit of the run directory, and where there is
//! `pg_createcluster` a cluster of Debian's; both are taken away afterwards. Without PostgreSQL on the machine nothing
//! is tested, and that is said.

use super::*;
use holdfast_testkit::{missing, skipped};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command as Blocking;

/// A fake systemctl; its head comment describes it.
const STAND_IN: &str = include_str!("systemctl.sh");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Ourselves,
    Command,
    StandIn,
    Systemd,
    /// Debian's own template, `postgresql@VERSION-NAME.service`.
    Debian,
}

struct Stage {
    _dir: tempfile::TempDir,
    place: PathBuf,
    config: AgentConfig,
    by: By,
}

fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let bins = versions.filter_map(|entry| Some(entry.ok()?.path().join("bin")));
    let found = bins.filter(|bin| bin.join("postgres").exists()).max();
    if found.is_none() {
        missing("no PostgreSQL in /usr/lib/postgresql");
    }
    found
}

fn tell(command: &mut Blocking) -> String {
    let said = command.output().unwrap();
    assert!(said.status.success(), "{command:?}: {said:?}");
    String::from_utf8_lossy(&said.stdout).trim().to_string()
}

impl Stage {
    /// A new data directory; `None` if there is no PostgreSQL, or no systemd that may be used.
    fn new(by: By) -> Option<Self> {
        if matches!(by, By::Systemd | By::Debian) && std::env::var_os("HOLDFAST_TEST_SYSTEMD").is_none() {
            skipped("HOLDFAST_TEST_SYSTEMD=1 uses the systemd of this machine");
            return None;
        }
        let bin_dir = programs()?;
        let dir = tempfile::Builder::new().permissions(std::fs::Permissions::from_mode(0o755)).tempdir().unwrap();
        let place = dir.path().canonicalize().unwrap();
        let root = rustix::process::geteuid().is_root();
        let user = if root { "postgres".to_string() } else { tell(Blocking::new("id").arg("-un")) };
        let as_user =
            if root { format!("setpriv --reuid={user} --regid={user} --clear-groups --") } else { String::new() };
        let inner = place.join("pg");
        std::fs::create_dir(&inner).unwrap();
        if root {
            tell(Blocking::new("chown").arg(&user).arg(&inner));
        }
        let data = inner.join("data");
        let sh = |script: &str| tell(Blocking::new("sh").arg("-c").arg(script).current_dir("/"));
        if by == By::Debian {
            return Self::debian(dir, place, &bin_dir);
        }
        sh(&format!("{as_user} {}/initdb -N -A trust -U {user} -D {} >/dev/null", bin_dir.display(), data.display()));
        let conf = format!("listen_addresses = ''\nunix_socket_directories = '{}'\nfsync = off\n", inner.display());
        std::fs::write(data.join("postgresql.auto.conf"), conf).unwrap();
        let mut config = AgentConfig { dir: place.clone(), ..AgentConfig::default() };
        config.database.data = data.clone();
        config.database.bin_dir = bin_dir.clone();
        config.database.user = user.clone();
        config.database.host = inner.display().to_string();
        config.database.stop_timeout_s = 60;
        let log = inner.join("log");
        let pg_ctl = format!("{as_user} {}/pg_ctl -s -D {}", bin_dir.display(), data.display());
        config.database.kind = match by {
            By::Ourselves => DatabaseKind::PgCtl,
            By::Command => {
                config.database.start = Some(format!("cd /; {pg_ctl} start -W -l {}", log.display()));
                config.database.stop = Some(format!("cd /; {pg_ctl} stop -m $HOLDFAST_STOP"));
                DatabaseKind::Command
            }
            By::StandIn | By::Systemd | By::Debian => DatabaseKind::Systemd,
        };
        let stage = Self { place, config, by, _dir: dir };
        match by {
            By::StandIn => {
                let text = STAND_IN.replace("@STATE@", &stage.place.display().to_string());
                let text = text.replace("@PG_CTL@", &pg_ctl).replace("@LOG@", &log.display().to_string());
                let path = stage.place.join("systemctl");
                std::fs::write(&path, text.replace("@DATA@", &data.display().to_string())).unwrap();
                std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            }
            By::Systemd => stage.make_unit(&bin_dir, &user, &log),
            By::Ourselves | By::Command | By::Debian => {}
        }
        Some(stage)
    }

    /// A cluster as an administrator makes it on Debian, for an agent.
    fn debian(dir: tempfile::TempDir, place: PathBuf, bin_dir: &Path) -> Option<Self> {
        let version = bin_dir.parent()?.file_name()?.to_str()?.to_string();
        let inner = place.join("pg");
        let name = place.file_name()?.to_str()?.replace('.', "");
        let mut create = Blocking::new("pg_createcluster");
        create.arg("--datadir").arg(inner.join("data")).arg("--socketdir").arg(&inner).args(["--start-conf=manual"]);
        if let Err(error) = create.args([&version, &name, "--", "-N"]).output() {
            skipped(&format!("pg_createcluster: {error}"));
            return None;
        }
        let conf = std::fs::read_to_string(format!("/etc/postgresql/{version}/{name}/postgresql.conf")).unwrap();
        let port = conf.lines().find_map(|line| line.strip_prefix("port = ")).unwrap();
        let mut config = AgentConfig { dir: place.clone(), ..AgentConfig::default() };
        config.database.kind = DatabaseKind::Systemd;
        config.database.data = inner.join("data");
        config.database.bin_dir = bin_dir.into();
        config.database.host = inner.display().to_string();
        config.database.port = port.split_whitespace().next().unwrap().parse().unwrap();
        config.database.stop_timeout_s = 60;
        config.database.unit = format!("postgresql@{version}-{name}.service");
        tell(Blocking::new("systemctl").arg("daemon-reload"));
        Some(Self { place, config, by: By::Debian, _dir: dir })
    }

    fn make_unit(&self, bin_dir: &Path, user: &str, log: &Path) {
        let (bin, data, place) = (bin_dir.display(), self.config.database.data.display(), self.place.display());
        // As Debian's template: after a failed start the unit is inactive.
        let text = format!(
            "[Unit]\nDescription=test\n[Service]\nType=forking\nUser={user}\n\
             ExecStartPre=/bin/sh -c 'sleep $(cat {place}/delay 2>/dev/null || echo 0); test ! -e {place}/broken'\n\
             ExecStart=-{bin}/pg_ctl start -w -s -D {data} -l {}\nExecStop={bin}/pg_ctl stop -m fast -s -D {data}\n\
             PIDFile={data}/postmaster.pid\nTimeoutStopSec=1h\n[Install]\nWantedBy=multi-user.target\n",
            log.display()
        );
        std::fs::write(Path::new("/run/systemd/system").join(self.unit()), text).unwrap();
        tell(Blocking::new("systemctl").arg("daemon-reload"));
    }

    fn unit(&self) -> String {
        if self.by == By::Debian {
            return self.config.database.unit.clone();
        }
        let name = self.place.file_name().unwrap().to_string_lossy().replace('.', "");
        format!("holdfast-test-{name}.service")
    }

    fn database(&self) -> Database {
        let mut config = self.config.clone();
        config.database.unit = self.unit();
        let mut database = Database::new(&config);
        if self.by == By::StandIn {
            database.unit = Systemd::new(&config).with_program(self.place.join("systemctl"));
        }
        database
    }

    /// Written into the place: `delay` (seconds until a start shows itself), `broken` (a start fails), `enabled`,
    /// `restart` (Restart=always).
    fn set(&self, name: &str, value: Option<&str>) {
        let path = self.place.join(name);
        match value {
            Some(value) => std::fs::write(&path, value).unwrap(),
            None => drop(std::fs::remove_file(&path)),
        }
        if self.by != By::Systemd {
            return;
        }
        let on = value.is_some();
        match name {
            "enabled" => drop(tell(
                Blocking::new("systemctl")
                    .args([if on { "enable" } else { "disable" }, "--runtime", "-q"])
                    .arg(self.unit()),
            )),
            "restart" => {
                let dir = Path::new("/run/systemd/system").join(format!("{}.d", self.unit()));
                std::fs::create_dir_all(&dir).unwrap();
                std::fs::write(dir.join("r.conf"), if on { "[Service]\nRestart=always\n" } else { "" }).unwrap();
                tell(Blocking::new("systemctl").arg("daemon-reload"));
            }
            _ => {}
        }
    }

    /// How the data directory says that it was left.
    fn left(&self) -> String {
        let mut command = Blocking::new(self.config.database.bin_dir.join("pg_controldata"));
        let said = tell(command.env("LC_ALL", "C").arg(&self.config.database.data));
        let line = said.lines().find_map(|line| line.strip_prefix("Database cluster state:")).unwrap();
        line.trim().to_string()
    }

    async fn until(&self, database: &Database, wanted: DatabaseView) {
        let begun = Instant::now();
        let mut last = None;
        while begun.elapsed() < Duration::from_secs(60) {
            last = database.probe().await;
            if last == Some(wanted) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{:?}: found {last:?}, expected {wanted:?}: {}", self.by, process::tail(&self.place.join("pg/log"), 5));
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = process::kill_postgres(&Server::of(&self.config.database), KILL_LIMIT);
        if self.by == By::Debian {
            let _ = Blocking::new("systemctl").arg("stop").arg(self.unit()).output();
            let unit = self.unit();
            let (version, name) =
                unit.trim_start_matches("postgresql@").trim_end_matches(".service").split_once('-').unwrap();
            let _ = Blocking::new("pg_dropcluster").args([version, name]).output();
            let _ = Blocking::new("systemctl").arg("daemon-reload").output();
        }
        if self.by == By::Systemd {
            let _ = Blocking::new("systemctl").args(["kill", "--signal=SIGKILL"]).arg(self.unit()).output();
            let _ = Blocking::new("systemctl").arg("stop").arg(self.unit()).output();
            let _ = std::fs::remove_file(Path::new("/run/systemd/system").join(self.unit()));
            let _ = std::fs::remove_dir_all(Path::new("/run/systemd/system").join(format!("{}.d", self.unit())));
            let _ = Blocking::new("systemctl").arg("daemon-reload").output();
        }
    }
}

/// The contract: what [`crate::host::Host`] says of starts, stops and looks.
async fn holds(by: By) {
    let Some(stage) = Stage::new(by) else { return };
    let database = stage.database();
    let gone = async |how: Stop| {
        assert_eq!(database.runs(), Ok(false), "{by:?} {how:?}: success means that none is left");
        assert_eq!(database.found().await, Ok(false), "{by:?} {how:?}: nor a start");
        assert_eq!(database.probe().await, Some(DatabaseView::Gone), "{by:?} {how:?}");
    };
    // A second stop succeeds.
    for how in [Stop::Fast, Stop::Immediate, Stop::Kill] {
        let stopped = database.stop(how).await;
        // A person's command for a planned stop may say that there is nothing.
        assert!(stopped.is_ok() || by == By::Command && how == Stop::Fast, "{by:?} {how:?}: {stopped:?}");
        gone(how).await;
    }
    for how in [Stop::Fast, Stop::Immediate, Stop::Kill] {
        // A pid file of another host, whose number belongs to a process here (DB-D2).
        let pid_file = stage.config.database.data.join("postmaster.pid");
        std::fs::write(&pid_file, format!("{}\n", std::process::id())).unwrap();
        database.start().await.unwrap_or_else(|why| panic!("{by:?}: {why}"));
        assert_eq!(database.runs(), Ok(true), "{by:?}: a start that was given shows itself");
        assert_eq!(database.found().await, Ok(true));
        stage.until(&database, DatabaseView::Ready).await;
        database.first_write().await.unwrap();
        database.checkpoint().await.unwrap();
        let again = database.start().await.unwrap_err();
        assert!(again.contains("already"), "{by:?}: {again}");
        let begun = Instant::now();
        database.stop(how).await.unwrap_or_else(|why| panic!("{by:?} {how:?}: {why}"));
        eprintln!("{by:?} {how:?} took {} ms", begun.elapsed().as_millis());
        if how == Stop::Immediate && matches!(by, By::Systemd | By::Debian) {
            // Counts as ended while systemd is still ending it; a stop in good order finds nothing to do.
            database.stop(Stop::Kill).await.unwrap();
        }
        gone(how).await;
        let left = stage.left();
        assert_eq!(left == "shut down", how == Stop::Fast, "{by:?} {how:?}: found {left:?}");
    }
}

#[tokio::test]
async fn started_by_ourselves() {
    holds(By::Ourselves).await;
}

#[tokio::test]
async fn started_by_commands() {
    holds(By::Command).await;
}

#[tokio::test]
async fn started_by_a_stand_in_for_systemd() {
    holds(By::StandIn).await;
}

#[tokio::test]
async fn started_by_systemd() {
    holds(By::Systemd).await;
}

/// As [`holds`] for the unit that the settings name by default; and the refusal of a cluster that Debian starts by
/// itself.
#[tokio::test]
async fn started_by_debians_template() {
    holds(By::Debian).await;
    let Some(stage) = Stage::new(By::Debian) else { return };
    let unit = stage.unit();
    let (version, name) = unit.trim_start_matches("postgresql@").trim_end_matches(".service").split_once('-').unwrap();
    let start = PathBuf::from(format!("/etc/postgresql/{version}/{name}/start.conf"));
    std::fs::write(&start, "auto\n").unwrap();
    tell(Blocking::new("systemctl").arg("daemon-reload"));
    let why = stage.database().start().await.unwrap_err();
    assert!(
        why.contains("WantedBy=postgresql.service") && why.contains("\"manual\" in the cluster's start.conf"),
        "{why}"
    );
}

/// DB-D5: a configuration with another `data_directory`, here an option of the start command. The first process is
/// known by its `-D`; the others work elsewhere, and are ended with it.
#[tokio::test]
async fn a_server_that_works_in_another_directory_is_not_the_sets() {
    let Some(mut stage) = Stage::new(By::Command) else { return };
    let other = stage.place.join("pg/other");
    tell(Blocking::new("cp").arg("-a").arg(&stage.config.database.data).arg(&other));
    let start = stage.config.database.start.take().unwrap();
    let told = start.replace("start -W", &format!("start -W -o '-c data_directory={}'", other.display()));
    assert_ne!(told, start);
    stage.config.database.start = Some(told);
    let database = stage.database();
    database.start().await.unwrap();
    stage.until(&database, DatabaseView::Elsewhere).await;
    let found = database.elsewhere();
    assert!(found.contains(&format!("works in {}", other.display())), "{found}");
    assert!(of_postgres(&Server::of(&stage.config.database)).unwrap().len() > 1, "the first process alone was found");
    database.stop(Stop::Kill).await.unwrap();
    // Nothing that was said of it is left.
    assert_eq!((database.probe().await, database.elsewhere()), (Some(DatabaseView::Gone), String::new()));
}

/// The same by the agent itself, whose own option comes last.
#[tokio::test]
async fn another_directory_in_the_options_does_not_count() {
    let Some(mut stage) = Stage::new(By::Ourselves) else { return };
    let other = stage.place.join("pg/other");
    tell(Blocking::new("cp").arg("-a").arg(&stage.config.database.data).arg(&other));
    stage.config.database.options = format!("-c data_directory={}", other.display());
    let database = stage.database();
    database.start().await.unwrap();
    stage.until(&database, DatabaseView::Ready).await;
    assert!(stage.config.database.data.join("postmaster.pid").exists() && !other.join("postmaster.pid").exists());
    database.stop(Stop::Kill).await.unwrap();
}

/// What only a unit can do wrong.
async fn unit_holds(by: By) {
    let Some(stage) = Stage::new(by) else { return };
    let database = stage.database();
    // It would come up by itself: refused before anything is touched, at the agent's start and at PostgreSQL's.
    for (setting, words) in [("enabled", "found UnitFileState=enabled"), ("restart", "found Restart=always")] {
        stage.set(setting, Some(""));
        for why in [database.found().await.map(drop), database.start().await] {
            let why = why.unwrap_err();
            assert!(why.contains(words) && why.contains("systemctl "), "{by:?}: {why}");
        }
        assert_eq!(database.runs(), Ok(false));
        stage.set(setting, None);
    }
    assert_eq!(database.found().await, Ok(false));
    // A start that fails is reported long before the time limit of a start.
    stage.set("broken", Some(""));
    let begun = Instant::now();
    // More often than systemd would start it within its limit of starts.
    for _ in 0..7 {
        let why = database.start().await.unwrap_err();
        assert!(why.contains("ended at once: unit ") && why.contains("journalctl"), "{by:?}: {why}");
    }
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    stage.set("broken", None);
    // A start that waits, and is no process of PostgreSQL's yet, is found, and ended by a stop of any kind (UNIT-U2).
    for how in [Stop::Fast, Stop::Immediate, Stop::Kill] {
        stage.set("delay", Some("3"));
        let starting = tokio::spawn({
            let database = stage.database();
            async move { database.start().await }
        });
        let begun = Instant::now();
        while !database.found().await.unwrap() {
            assert!(begun.elapsed() < Duration::from_secs(20));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(database.runs(), Ok(false), "{by:?}: it waits");
        starting.abort();
        let _ = starting.await;
        database.stop(how).await.unwrap_or_else(|why| panic!("{by:?} {how:?}: {why}"));
        // For longer than it would have waited.
        tokio::time::sleep(Duration::from_secs(4)).await;
        assert_eq!(database.found().await, Ok(false), "{by:?} {how:?}: it came up after its stop");
        stage.set("delay", None);
    }
    // PostgreSQL runs, and then somebody enables the unit: not left alone for that, and not started again.
    database.start().await.unwrap();
    stage.until(&database, DatabaseView::Ready).await;
    stage.set("enabled", Some(""));
    assert_eq!(database.found().await, Ok(true));
    // Whatever ends it, it stays ended.
    database.stop(Stop::Kill).await.unwrap();
    assert!(database.start().await.unwrap_err().contains("systemctl disable"));
    stage.set("enabled", None);
}

#[tokio::test]
async fn a_units_own_ways_with_a_stand_in() {
    unit_holds(By::StandIn).await;
}

#[tokio::test]
async fn a_units_own_ways() {
    unit_holds(By::Systemd).await;
}
