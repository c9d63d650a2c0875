//! PgBouncer with the sample configuration of deploy/, and programs that reach PostgreSQL through it.

use crate::cmd::on_path;
use crate::pg;
use crate::process::Proc;
use crate::{binary, cmd};
use anyhow::{Context, Result, bail};
use std::fs::File;
use std::io::{BufRead, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Path in Debian's package, which is on root's PATH only.
const PROGRAM: &str = "/usr/sbin/pgbouncer";

/// Below the project's root.
const SAMPLE: &str = "deploy/pgbouncer/pgbouncer.ini";

/// The list of users named in that file.
const USERS: &str = "/etc/pgbouncer/userlist.txt";

/// The system user that it switches to: it refuses to run as root.
const SYSTEM_USER: &str = "postgres";

/// The database of all clients.
const DATABASE: &str = "postgres";

/// How long a client waits for one answer. With the sample's settings clients wait for a minute at most and then get an
/// error.
const ANSWER_LIMIT: Duration = Duration::from_secs(90);

/// Between two tries to connect.
const AGAIN: Duration = Duration::from_millis(50);

/// A database user with a password.
#[derive(Clone, Copy, Debug)]
pub struct User {
    pub name: &'static str,
    pub password: &'static str,
}

/// A running PgBouncer.
#[derive(Debug)]
pub struct Pool {
    proc: Proc,
    at: SocketAddr,
    user: User,
    dir: PathBuf,
}

impl Pool {
    /// Starts it in front of `behind`, with its files in `dir`; `secret` is PostgreSQL's stored form of the user's
    /// password. Changes only addresses and the path of the list of users in the sample. Fails when it does not start,
    /// or the sample lacks a text that is to be changed.
    pub fn start(dir: &Path, at: SocketAddr, behind: SocketAddr, user: User, secret: &str) -> Result<Self> {
        let users = dir.join("userlist.txt");
        std::fs::write(&users, format!("\"{}\" \"{secret}\"\n", user.name))?;
        let changes = [
            ("host=127.0.0.1 port=5002", format!("host={} port={}", behind.ip(), behind.port())),
            ("listen_addr = 127.0.0.1", format!("listen_addr = {}", at.ip())),
            ("listen_port = 6432", format!("listen_port = {}", at.port())),
            (USERS, users.display().to_string()),
        ];
        let mut config = std::fs::read_to_string(binary::root().join(SAMPLE))?;
        for (from, to) in &changes {
            anyhow::ensure!(config.contains(from), "{SAMPLE} names no {from}");
            config = config.replace(from, to);
        }
        let path = dir.join("pgbouncer.ini");
        std::fs::write(&path, config)?;
        let program = if on_path("pgbouncer") { "pgbouncer" } else { PROGRAM };
        let command = cmd::cmd(program).args(["-u", SYSTEM_USER]).arg(&path).into_command();
        let mut proc = Proc::spawn("pgbouncer", command, &dir.join("pgbouncer.log"))?;
        let listening = || std::net::TcpStream::connect(at).is_ok();
        proc.ready_when("listening", Duration::from_secs(30), listening)?;
        Ok(Self { proc, at, user, dir: dir.into() })
    }

    /// Checks that it still runs. Fails when it has ended.
    pub fn must_run(&mut self) -> Result<()> {
        self.proc.must_run()
    }

    /// A client of it. The first answer shows whether it was accepted.
    pub fn session(&self) -> Result<Session> {
        Session::open(self.at, self.user, &self.dir.join("psql.log"))
    }

    /// A client that writes rows into `table (n bigint)`, one after the other, and reconnects whenever it loses its
    /// connection.
    pub fn writer(&self, table: &'static str) -> Writer {
        let (at, user, log) = (self.at, self.user, self.dir.join("psql.log"));
        let stop = Arc::new(AtomicBool::new(false));
        let acknowledged = Arc::new(AtomicU64::new(0));
        let (told, count) = (stop.clone(), acknowledged.clone());
        let thread = std::thread::spawn(move || {
            let mut written = Written::default();
            let mut n = 0u64;
            while !told.load(Ordering::Relaxed) {
                let mut session = Session::open(at, user, &log)?;
                written.sessions += 1;
                while !told.load(Ordering::Relaxed) {
                    n += 1;
                    match session.ask(&format!("insert into {table} values ({n})")) {
                        Ok(_) => {
                            written.acknowledged.push(n);
                            count.fetch_add(1, Ordering::Relaxed);
                        }
                        // The outcome is unknown (R12): never retried under the same number.
                        Err(why) => {
                            written.in_doubt.push(n);
                            written.last_loss = format!("{why:#}");
                            std::thread::sleep(AGAIN);
                            break;
                        }
                    }
                }
            }
            Ok(written)
        });
        Writer { thread: Some(thread), stop, acknowledged }
    }
}

/// A client: a psql with one connection. It ends with its connection.
#[derive(Debug)]
pub struct Session {
    psql: Child,
    input: ChildStdin,
    said: Receiver<String>,
    asked: u64,
}

impl Session {
    /// Starts psql. The first answer shows whether it was accepted.
    pub fn open(at: SocketAddr, user: User, log: &Path) -> Result<Self> {
        let log = File::options().create(true).append(true).open(log)?;
        let program = pg::bin().join("psql");
        let command = cmd::cmd(program).env("PGPASSWORD", user.password).env("PGCONNECT_TIMEOUT", "30");
        let command = command.args(["-X", "-A", "-t", "-q", "-h", &at.ip().to_string(), "-p", &at.port().to_string()]);
        let mut command = command.args(["-U", user.name, "-d", DATABASE]).into_command();
        // It ends with its input, at the latest with us.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let mut psql = command.spawn().with_context(|| cmd::show(&command))?;
        let input = psql.stdin.take().context("no stdin")?;
        let out = psql.stdout.take().context("no stdout")?;
        let (tell, said) = mpsc::channel();
        std::thread::spawn(move || {
            let lines = std::io::BufReader::new(out).lines().map_while(std::io::Result::ok);
            lines.take_while(|line| tell.send(line.clone()).is_ok()).for_each(drop);
        });
        Ok(Self { psql, input, said, asked: 0 })
    }

    /// Runs one statement; returns its rows. Only over its one connection: psql does not reconnect. Fails with the
    /// server's error, a lost connection, or no answer within [`ANSWER_LIMIT`].
    pub fn ask(&mut self, sql: &str) -> Result<Vec<String>> {
        self.send(sql)?;
        self.answer().with_context(|| sql.to_owned())
    }

    /// Sends one statement and does not wait for its answer. Fails when psql has ended.
    pub fn send(&mut self, sql: &str) -> Result<()> {
        self.asked += 1;
        writeln!(self.input, "{sql};\n\\echo '{}' :SQLSTATE", mark(self.asked)).context("psql has ended")
    }

    /// The answer to the last statement.
    pub fn answer(&mut self) -> Result<Vec<String>> {
        let mark = mark(self.asked);
        let (begun, mut rows) = (Instant::now(), Vec::new());
        loop {
            let left = ANSWER_LIMIT.saturating_sub(begun.elapsed());
            match self.said.recv_timeout(left) {
                Ok(line) => match line.strip_prefix(&mark) {
                    Some(" 00000") => return Ok(rows),
                    Some(state) => bail!("SQLSTATE{state}"),
                    None => rows.push(line),
                },
                Err(mpsc::RecvTimeoutError::Timeout) => bail!("no answer after {ANSWER_LIMIT:?}"),
                Err(mpsc::RecvTimeoutError::Disconnected) => bail!("the connection was lost"),
            }
        }
    }
}

/// psql's output behind the rows of an answer.
fn mark(asked: u64) -> String {
    format!("-- answer {asked}")
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.psql.kill();
        let _ = self.psql.wait();
    }
}

/// A writer at work.
#[derive(Debug)]
pub struct Writer {
    thread: Option<JoinHandle<Result<Written>>>,
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
}

/// Results of a writer.
#[derive(Debug, Default)]
pub struct Written {
    /// Numbers of rows whose commit was acknowledged.
    pub acknowledged: Vec<u64>,
    /// Of rows whose connection was lost before.
    pub in_doubt: Vec<u64>,
    /// Number of connections.
    pub sessions: u64,
    /// Message of its last lost connection.
    pub last_loss: String,
}

impl Writer {
    /// Rows acknowledged so far.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Stops it and returns its results. Fails when psql could not be started.
    pub fn join(mut self) -> Result<Written> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().context("taken back already")?;
        thread.join().map_err(|_| anyhow::anyhow!("the writer panicked"))?
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
