//! A PostgreSQL server on a given folder, reached over a Unix socket only; and pgbench.

use crate::cmd::{Cmd, cmd};
use crate::pgwire::{Client, PgError, Reach};
use crate::process::{Proc, Signal};
use anyhow::{Context, Result};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The environment variable that names the folder of PostgreSQL's programs. A chore that runs itself again in another
/// namespace gives it to itself.
pub const BIN_VAR: &str = "HOLDFAST_POSTGRESQL_BIN";

/// The folder in Debian's package.
const DEBIAN: &str = "/usr/lib/postgresql/15/bin";

/// The folder of PostgreSQL's programs.
pub fn bin() -> &'static Path {
    static BIN: OnceLock<PathBuf> = OnceLock::new();
    BIN.get_or_init(|| std::env::var_os(BIN_VAR).map_or_else(|| DEBIAN.into(), PathBuf::from))
}

/// What the server's program says of its version, such as `PostgreSQL 15.14`. Fails when it does not run.
pub fn version() -> Result<String> {
    let said = cmd(bin().join("postgres")).arg("--version").out()?;
    let number = said.split_whitespace().nth(2).with_context(|| format!("postgres --version: {said}"))?;
    Ok(format!("PostgreSQL {number}"))
}

/// Number in the socket's name; there is no TCP port.
const PORT: u16 = 5432;

/// Name of the user of pgbench and initdb, in the system and in the database.
const USER: &str = "postgres";

/// A data folder and its server, if it runs.
#[derive(Debug)]
pub struct Postgres {
    data: PathBuf,
    sockets: PathBuf,
    log: PathBuf,
    uid: u32,
    gid: u32,
    server: Option<Proc>,
}

fn id_of(what: &str) -> Result<u32> {
    let text = cmd("id").arg(what).arg(USER).out().context("the system user postgres (package postgresql-15)")?;
    Ok(text.trim().parse()?)
}

impl Postgres {
    /// Sets the folders and starts nothing. `data` is on the volume, `sockets` is not. Fails when the system user
    /// postgres does not exist.
    pub fn new(data: &Path, sockets: &Path, log: &Path) -> Result<Self> {
        let (uid, gid) = (id_of("-u")?, id_of("-g")?);
        std::fs::create_dir_all(sockets)?;
        std::os::unix::fs::chown(sockets, Some(uid), Some(gid))?;
        Ok(Self { data: data.into(), sockets: sockets.into(), log: log.into(), uid, gid, server: None })
    }

    fn program(&self, name: &str) -> Command {
        // The server does not run as root; `uid` also drops root's other groups.
        let mut command = cmd(bin().join(name)).dir("/").env("LC_ALL", "C.UTF-8").into_command();
        command.uid(self.uid).gid(self.gid).env("PGHOST", &self.sockets).env("PGPORT", PORT.to_string());
        command
    }

    /// Creates the data folder, with page checksums, and the settings.
    pub fn initdb(&self, settings: &str) -> Result<()> {
        self.initdb_with(&[], settings)
    }

    /// The same without a sync of each file: the files are safe after the file system was unmounted. For a device with
    /// slow syncs.
    pub fn initdb_unsynced(&self, settings: &str) -> Result<()> {
        self.initdb_with(&["--no-sync"], settings)
    }

    fn initdb_with(&self, more: &[&str], settings: &str) -> Result<()> {
        std::fs::create_dir_all(&self.data)?;
        std::os::unix::fs::chown(&self.data, Some(self.uid), Some(self.gid))?;
        let mut command = self.program("initdb");
        command.args(["--data-checksums", "--auth=trust", "-U", USER, "-E", "UTF8", "--locale=C.UTF-8", "-D"]);
        command.arg(&self.data).args(more);
        Cmd::of(command).run()?;
        let path = self.data.join("postgresql.conf");
        let mut conf = std::fs::read_to_string(&path)?;
        conf.push_str(&format!("\nlisten_addresses = ''\nport = {PORT}\n"));
        conf.push_str(&format!("unix_socket_directories = '{}'\n", self.sockets.display()));
        conf.push_str(settings);
        std::fs::write(&path, conf)?;
        Ok(())
    }

    /// Copies the data folder of the PostgreSQL at `host`. When started, the copy is a standby of that server under the
    /// name `name`.
    pub fn basebackup(&self, host: &str, name: &str) -> Result<()> {
        // Left by an earlier run.
        match std::fs::remove_dir_all(&self.data) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => std::fs::create_dir_all(&self.data)?,
        }
        std::fs::set_permissions(&self.data, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
        std::os::unix::fs::chown(&self.data, Some(self.uid), Some(self.gid))?;
        let mut command = self.program("pg_basebackup");
        let from = format!("host={host} port={PORT} user={USER} application_name={name}");
        command.args(["--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast", "-d", &from, "-D"]);
        command.arg(&self.data);
        Cmd::of(command).run()
    }

    /// Allows clients from `network` without a password. Fails when pg_hba.conf cannot be written.
    pub fn trust(&self, network: &str) -> Result<()> {
        let path = self.data.join("pg_hba.conf");
        let rules = std::fs::read_to_string(&path)? + &format!("host all all {network} trust\n");
        Ok(std::fs::write(&path, rules)?)
    }

    /// Requires a password from `user` over TCP, whatever the other rules say. Fails when pg_hba.conf cannot be
    /// written.
    pub fn wants_password_of(&self, user: &str) -> Result<()> {
        let path = self.data.join("pg_hba.conf");
        // The first matching rule counts.
        let rules = format!("host all {user} all scram-sha-256\n") + &std::fs::read_to_string(&path)?;
        Ok(std::fs::write(&path, rules)?)
    }

    /// Starts the server and waits until it answers a query, recovery included. Returns the time that took. Fails when
    /// it ends, or is not ready after three minutes.
    pub fn start(&mut self) -> Result<Duration> {
        let begun = Instant::now();
        let mut command = self.program("postgres");
        command.arg("-D").arg(&self.data);
        let mut server = Proc::spawn("postgres", command, &self.log)?;
        server.ready_when("ready", Duration::from_secs(180), || {
            let ready = self.client().is_ok_and(|mut c| c.query("select 1").is_ok());
            if !ready {
                // During recovery each attempt costs the server a process, and its log two lines.
                std::thread::sleep(Duration::from_millis(45));
            }
            ready
        })?;
        self.server = Some(server);
        Ok(begun.elapsed())
    }

    /// Stops the server: `INT` is a fast shutdown with a checkpoint, `QUIT` an immediate one, like a crash. Fails when
    /// it does not end.
    pub fn stop(&mut self, how: Signal) -> Result<()> {
        match self.server.take() {
            Some(mut server) => server.stop(how, Duration::from_secs(60)),
            None => Ok(()),
        }
    }

    /// A new session. Fails when the server is not there or not ready.
    pub fn client(&self) -> Result<Client, PgError> {
        client(&self.reach())
    }

    /// Its Unix socket.
    pub fn reach(&self) -> Reach {
        Reach::Socket(self.sockets.join(format!(".s.PGSQL.{PORT}")))
    }

    /// Runs pgbench over TCP in the background and restarts it whenever it ends: a load that continues after its server
    /// failed. Each start is a line `run N` in `log`, and its connections have the name [`run_name`] of N. Fails when
    /// it cannot start.
    pub fn pgbench_again(&self, args: &[&str], at: SocketAddr, log: &Path) -> Result<Proc> {
        let name = run_name("$n");
        let script =
            format!("n=0; while :; do n=$((n+1)); echo \"run $n\"; PGAPPNAME=\"{name}\" \"$@\"; sleep 0.2; done");
        let mut command = Command::new("sh");
        command.current_dir("/").env("LC_ALL", "C.UTF-8").uid(self.uid).gid(self.gid);
        command.env("PGHOST", at.ip().to_string()).env("PGPORT", at.port().to_string());
        command.args(["-c", &script, "sh"]).arg(bin().join("pgbench"));
        command.args(["-n", "-T", "86400"]).args(args).arg(USER);
        Proc::spawn("pgbench", command, log)
    }

    /// Fills pgbench's tables: about 15 MB for each unit of `scale`.
    pub fn pgbench_init(&self, scale: u32) -> Result<()> {
        let mut command = self.program("pgbench");
        command.args(["-i", "-q", "-s", &scale.to_string(), USER]);
        Cmd::of(command).run()
    }

    /// Runs pgbench to its end. Returns the transactions per second, without the time to connect. Fails when pgbench
    /// does, or when its report cannot be read.
    pub fn pgbench(&self, args: &[&str], time: Duration) -> Result<f64> {
        self.pgbench_with(args, "", time)
    }

    /// As [`Postgres::pgbench`], with server settings for its sessions.
    pub fn pgbench_with(&self, args: &[&str], options: &str, time: Duration) -> Result<f64> {
        let mut command = self.program("pgbench");
        command.env("PGOPTIONS", options);
        command.args(["-n", "-T", &time.as_secs().max(1).to_string()]).args(args).arg(USER);
        tps_of(&Cmd::of(command).out()?)
    }

    /// Starts pgbench in the background. Fails when it cannot start.
    pub fn pgbench_forever(&self, args: &[&str], log: &Path) -> Result<Proc> {
        let mut command = self.program("pgbench");
        command.args(["-n", "-T", "86400"]).args(args).arg(USER);
        Proc::spawn("pgbench", command, log)
    }

    /// Checks every table and index with amcheck, heap against index included. Fails when it finds an error.
    pub fn amcheck(&self) -> Result<()> {
        let mut command = self.program("pg_amcheck");
        command.args(["--install-missing", "--heapallindexed", "--on-error-stop", "-d", USER]);
        let said = Cmd::of(command).out()?;
        anyhow::ensure!(said.trim().is_empty(), "pg_amcheck: {}", crate::cmd::tail(&said, 6));
        Ok(())
    }

    /// Checks that pgbench's four sums are equal, as each of its transactions keeps them. Fails when they differ, or
    /// cannot be read.
    pub fn pgbench_balances(&self) -> Result<()> {
        let sums = "select (select sum(abalance) from pgbench_accounts), (select sum(tbalance) from pgbench_tellers), \
                    (select sum(bbalance) from pgbench_branches), (select coalesce(sum(delta), 0) from pgbench_history)";
        let rows = self.client()?.query(sums)?;
        let row = rows.first().context("no sums")?;
        anyhow::ensure!(row.iter().all(|v| *v == row[0]), "pgbench's sums differ: {row:?}");
        Ok(())
    }
}

/// The application name of the connections in a run of [`Postgres::pgbench_again`].
pub fn run_name(run: impl std::fmt::Display) -> String {
    format!("pgbench run {run}")
}

/// A new session as the tests' user. Fails when the server is not there or not ready.
pub fn client(reach: &Reach) -> Result<Client, PgError> {
    Client::connect(reach, USER, USER)
}

fn tps_of(report: &str) -> Result<f64> {
    let line = report.lines().find(|l| l.starts_with("tps = ") && l.contains("without initial"));
    let line = line.with_context(|| format!("pgbench's report: {}", crate::cmd::tail(report, 5)))?;
    let number = line.trim_start_matches("tps = ").split(' ').next().context("no number")?;
    Ok(number.parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tps_is_read_from_the_report() -> Result<()> {
        let report =
            "transaction type: <builtin: TPC-B (sort of)>\ntps = 1234.500000 (without initial connection time)\n";
        assert!((tps_of(report)? - 1234.5).abs() < 1e-9);
        assert!(tps_of("nothing").is_err());
        Ok(())
    }
}
