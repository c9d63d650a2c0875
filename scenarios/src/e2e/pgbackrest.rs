//! Backups by pgBackRest of a PostgreSQL that moves, by the README and with the files of deploy/examples/pgbackrest.
//! The repository is a folder.
//!
//! 1. The archive and a full backup are set up on the first host.
//! 2. That host is killed. On the other one the hook finds that WAL arrives, the archive goes on, and the backup of
//!    cron is made there.
//! 3. A moment between two commits is restored: the one before it is there, the one after it is not.

use super::Lab;
use super::agent::{AGENT, Pair, TAKEOVER, pair};
use crate::binary::{public_dir, root};
use crate::cmd::{Cmd, cmd};
use crate::hosts::{Host, Way};
use crate::pg::Postgres;
use crate::pgwire::Reach;
use crate::process::{Signal, wait_until};
use crate::say::note;
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub(super) const NEEDS: &[&str] =
    &["pgbackrest", "nbdfuse", "unshare", "nsenter", "setpriv", "/usr/lib/postgresql/15/bin/postgres"];

const EXAMPLE: &str = "deploy/examples/pgbackrest";
const STANZA: &str = "--stanza=pg";
/// Until a segment has arrived, or the hook has looked.
const ARRIVES: Duration = Duration::from_secs(90);

pub(super) fn run(lab: &Lab) -> Result<()> {
    let (open, _guard) = public_dir("pgbackrest")?;
    let repository = Repository::make(&open, &lab.dir)?;
    let settings = format!("{AGENT}{}", repository.hook());
    let Pair { cluster, mut db1, mut db2 } = pair(lab, Way::Ext4, &settings)?;
    repository.set_up(&db1)?;
    let first = repository.backups(&db1)?;
    anyhow::ensure!(first.len() == 1, "found the backups {first:?}, expected a full one");

    db1.pg.client()?.query("create table kept (what text)")?;
    db1.pg.client()?.query("insert into kept values ('before')")?;
    let (killed, _) = db1.kill()?;
    note(format!("host db1 killed: db2 is primary after {} ms", db2.becomes_primary(killed, TAKEOVER)?.as_millis()));
    let looked = wait_until(ARRIVES, || repository.hook_said().contains("db2 primary 0"));
    anyhow::ensure!(looked, "the hook at db2 did not find that WAL arrives: {:?}", repository.hook_said());
    let moment = one(&db2, "select clock_timestamp()::text")?;
    // Another second, whatever the clock's resolution in the text.
    std::thread::sleep(Duration::from_millis(1100));
    db2.pg.client()?.query("insert into kept values ('after')")?;
    goes_on(&repository, &db2)?;
    repository.by_cron(&db2)?;
    let both = repository.backups(&db2)?;
    anyhow::ensure!(both.len() == 2, "found the backups {both:?}, expected a full one and one of db2");
    note(format!("backups: {}", both.join(", ")));

    restored(&repository, &open, lab, &moment)?;
    db2.kill()?;
    cluster.stop()?;
    Ok(())
}

/// The only value of a query.
fn one(host: &Host, sql: &str) -> Result<String> {
    let rows = host.pg.client()?.query(sql)?;
    rows.into_iter().flatten().flatten().next().with_context(|| format!("{sql}: nothing"))
}

/// A segment that is written on the host arrives in the repository.
fn goes_on(repository: &Repository, host: &Host) -> Result<()> {
    let segment = one(host, "select pg_walfile_name(pg_switch_wal())")?;
    let mut newest = String::new();
    let arrived = wait_until(ARRIVES, || {
        newest = repository.newest(host).unwrap_or_else(|error| format!("{error:#}"));
        newest == segment || (newest.len() == segment.len() && newest > segment)
    });
    anyhow::ensure!(
        arrived,
        "found {newest} as the newest segment in the repository, expected {segment} of {}",
        host.name
    );
    note(format!("{segment} of {} is in the repository", host.name));
    Ok(())
}

/// Restores the moment into a folder, and looks at it.
fn restored(repository: &Repository, open: &Path, lab: &Lab, moment: &str) -> Result<()> {
    let (data, sockets) = (open.join("restored"), open.join("restored-sockets"));
    cmd("install").args(["-d", "-o", "postgres", "-g", "postgres", "-m", "700"]).arg(&data).run()?;
    let target = format!("--target={moment}");
    let path = format!("--pg1-path={}", data.display());
    let config = format!("--config={}", repository.config("db2").display());
    let (config, path, target) = (config.as_str(), path.as_str(), target.as_str());
    let args = [config, STANZA, path, "--type=time", target, "--target-action=promote", "restore"];
    as_postgres(cmd("setpriv"), &args).run()?;
    let mut pg = Postgres::new(&data, &sockets, &lab.dir.join("restored.log"))?;
    let changed = data.join("postgresql.auto.conf");
    let settings = std::fs::read_to_string(&changed)?;
    // The last line of a name counts.
    let own = format!("archive_mode = off\nlisten_addresses = ''\nunix_socket_directories = '{}'\n", sockets.display());
    std::fs::write(&changed, settings + &own)?;
    pg.start()?;
    let promoted = wait_until(ARRIVES, || {
        let said = pg.client().ok().and_then(|mut client| client.query("select not pg_is_in_recovery()").ok());
        said.is_some_and(|rows| rows.iter().flatten().flatten().any(|value| value == "t"))
    });
    anyhow::ensure!(promoted, "the restored PostgreSQL is still in recovery");
    let rows = pg.client()?.query("select what from kept order by what")?;
    let found: Vec<String> = rows.into_iter().flatten().flatten().collect();
    anyhow::ensure!(found == ["before"], "restored to {moment}: found {found:?}, expected [\"before\"]");
    note(format!("restored to {moment}: {found:?}"));
    pg.stop(Signal::INT)
}

/// The command, as PostgreSQL's user.
fn as_postgres(setpriv: Cmd, args: &[&str]) -> Cmd {
    let setpriv = setpriv.args(["--reuid=postgres", "--regid=postgres", "--init-groups", "--", "pgbackrest"]);
    setpriv.dir("/").args(args)
}

/// A repository in a folder, and the settings of both hosts for it: they differ in the paths, which on machines of
/// their own would be the same.
struct Repository {
    open: PathBuf,
}

impl Repository {
    fn make(open: &Path, hosts: &Path) -> Result<Self> {
        let repository = Self { open: open.to_path_buf() };
        for folder in ["repository", "lock", "log"] {
            cmd("install").args(["-d", "-o", "postgres", "-g", "postgres"]).arg(open.join(folder)).run()?;
        }
        let example = std::fs::read_to_string(root().join(EXAMPLE).join("pgbackrest.conf"))?;
        for name in ["db1", "db2"] {
            std::fs::write(repository.config(name), repository.changed(&example, &hosts.join(name))?)?;
        }
        Ok(repository)
    }

    fn config(&self, name: &str) -> PathBuf {
        self.open.join(format!("{name}.conf"))
    }

    /// The example with a folder in place of the bucket, and with a host's paths.
    fn changed(&self, example: &str, host: &Path) -> Result<String> {
        let data = std::path::absolute(host.join("mnt/data"))?;
        let place = |name: &str| format!("{name}-path={}", self.open.join(name).display());
        let mut lines = Vec::new();
        for line in example.lines() {
            let key = line.split('=').next().unwrap_or_default();
            match key {
                "repo1-type" => lines.push("repo1-type=posix".to_owned()),
                "repo1-path" => lines.push(format!("repo1-path={}", self.open.join("repository").display())),
                "pg1-path" => lines.push(format!("pg1-path={}", data.display())),
                // Given where it is used.
                "pg1-socket-path" => {}
                key if key.starts_with("repo1-s3") => {}
                _ => lines.push(line.to_owned()),
            }
            if line == "[global]" {
                lines.extend([place("lock"), place("log")]);
            }
        }
        Ok(lines.join("\n") + "\n")
    }

    /// The section of the agents' settings: the example's hook, and what it came to.
    fn hook(&self) -> String {
        let script = root().join(EXAMPLE).join("pgbackrest-on-role-change");
        let (open, script) = (self.open.display(), script.display());
        let config = format!("PGBACKREST_CONFIG={open}/$HOLDFAST_NAME.conf");
        let env = format!("{config} PGBACKREST_PG1_SOCKET_PATH=$(cat {open}/$HOLDFAST_NAME.sockets)");
        let line = format!("{env} {script}; echo $HOLDFAST_NAME $HOLDFAST_ROLE $? >> {open}/hook-said");
        format!("[hooks]\non_role_change = {line:?}\ntimeout_s = 120\n")
    }

    fn hook_said(&self) -> String {
        std::fs::read_to_string(self.open.join("hook-said")).unwrap_or_default()
    }

    /// The folder of a host's socket.
    fn sockets(host: &Host) -> Result<PathBuf> {
        let Reach::Socket(path) = host.pg.reach() else { anyhow::bail!("{}: no socket", host.name) };
        Ok(path.parent().context("a folder")?.to_path_buf())
    }

    /// pgBackRest on a host, where its data directory is mounted, as PostgreSQL's user.
    fn on(&self, host: &Host, args: &[&str]) -> Result<Cmd> {
        let into = cmd("nsenter").arg(format!("--target={}", host.postmaster()?)).args(["--mount", "--", "setpriv"]);
        let config = format!("--config={}", self.config(host.name).display());
        let sockets = format!("--pg1-socket-path={}", Self::sockets(host)?.display());
        Ok(as_postgres(into, &[&[config.as_str(), STANZA, sockets.as_str()][..], args].concat()))
    }

    /// By the README: the settings of the archive, the stanza, a full backup.
    fn set_up(&self, host: &Host) -> Result<()> {
        // Each host has one, and the hook of either may ask for it.
        let sockets = Self::sockets(host)?;
        let other = PathBuf::from(sockets.display().to_string().replace("/db1/", "/db2/"));
        std::fs::write(self.open.join("db1.sockets"), sockets.display().to_string())?;
        std::fs::write(self.open.join("db2.sockets"), other.display().to_string())?;
        let config = self.config(host.name);
        // The hosts' data directories have different paths here; the command runs in that of its server.
        let push = format!("pgbackrest --config={} {STANZA} --pg1-path=\"$PWD\" archive-push %p", config.display());
        for (name, value) in [("archive_mode", "on"), ("archive_command", push.as_str()), ("archive_timeout", "60")] {
            host.pg.client()?.query(&format!("alter system set {name} = '{value}'"))?;
        }
        host.holdfast(&["agent", "restart", "--yes"])?;
        let archives = wait_until(TAKEOVER, || one(host, "show archive_mode").is_ok_and(|mode| mode == "on"));
        anyhow::ensure!(archives, "{}: PostgreSQL was not restarted with archive_mode = on", host.name);
        host.becomes_primary(Instant::now(), TAKEOVER)?;
        self.on(host, &["stanza-create"])?.run()?;
        self.on(host, &["check"])?.run()?;
        self.on(host, &["--type=full", "backup"])?.run()
    }

    /// What cron runs: the example's script, which makes a backup on the primary.
    fn by_cron(&self, host: &Host) -> Result<()> {
        let script = root().join(EXAMPLE).join("pgbackrest-if-primary");
        // A copy that PostgreSQL's user can read.
        let here = self.open.join("pgbackrest-if-primary");
        std::fs::copy(&script, &here)?;
        let sockets = Self::sockets(host)?;
        let env = [
            format!("PGBACKREST_CONFIG={}", self.config(host.name).display()),
            format!("PGBACKREST_PG1_SOCKET_PATH={}", sockets.display()),
            format!("PGHOST={}", sockets.display()),
        ];
        let into = cmd("nsenter").arg(format!("--target={}", host.postmaster()?)).args(["--mount", "--", "setpriv"]);
        let into = into.args(["--reuid=postgres", "--regid=postgres", "--init-groups", "--", "env"]).args(&env);
        into.arg("sh").arg(&here).arg("diff").dir("/").run()
    }

    fn info(&self, host: &Host) -> Result<Value> {
        let said = self.on(host, &["--output=json", "info"])?.out()?;
        serde_json::from_str(&said).with_context(|| format!("pgbackrest info: {said}"))
    }

    /// Labels of the backups.
    fn backups(&self, host: &Host) -> Result<Vec<String>> {
        let info = self.info(host)?;
        let backups = info[0]["backup"].as_array().with_context(|| format!("no backups: {info}"))?;
        Ok(backups.iter().filter_map(|backup| backup["label"].as_str().map(str::to_owned)).collect())
    }

    /// The newest segment in it.
    fn newest(&self, host: &Host) -> Result<String> {
        let info = self.info(host)?;
        let newest = info[0]["archive"][0]["max"].as_str();
        newest.map(str::to_owned).with_context(|| format!("no archive: {info}"))
    }
}
