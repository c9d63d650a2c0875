//! A real S3 server on loopback: versitygw over a folder. Its port stays the same when it is stopped and started.

use crate::cluster::free_ports;
use crate::cmd::cmd;
use crate::process::{Proc, Signal};
use anyhow::Result;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

const ACCESS: &str = "holdfast-test";
const SECRET: &str = "holdfast-test-secret";
/// The server's only bucket.
pub const BUCKET: &str = "bucket";

/// The server's folder, and its process if it runs.
#[derive(Debug)]
pub struct S3 {
    dir: PathBuf,
    host: String,
    port: u16,
    /// The only keys that it accepts.
    keys: (String, String),
    /// The file in which it logs each request, if any.
    access_log: Option<PathBuf>,
    server: Option<Proc>,
}

impl S3 {
    /// Starts a server with one empty bucket below `dir`. Fails when it does not listen within 20 s.
    pub fn start(dir: &Path) -> Result<Self> {
        Self::start_on(dir, "127.0.0.1")
    }

    /// The same, with an access log in the file `access_log` (an absolute path, because the server changes its working
    /// directory).
    pub fn start_noting(dir: &Path, access_log: &Path) -> Result<Self> {
        Self::start_with(dir, "127.0.0.1", Some(access_log.into()))
    }

    /// The same on another local address.
    pub fn start_on(dir: &Path, host: &str) -> Result<Self> {
        Self::start_with(dir, host, None)
    }

    fn start_with(dir: &Path, host: &str, access_log: Option<PathBuf>) -> Result<Self> {
        // A folder is a bucket for this server.
        std::fs::create_dir_all(dir.join("s3").join(BUCKET))?;
        let keys = (ACCESS.into(), SECRET.into());
        let mut s3 = Self { dir: dir.into(), host: host.into(), port: free_ports(1)?, keys, access_log, server: None };
        s3.resume()?;
        Ok(s3)
    }

    /// Starts it again on the same folder and port.
    pub fn resume(&mut self) -> Result<()> {
        let addr = format!("{}:{}", self.host, self.port);
        let (access, secret) = &self.keys;
        let command = cmd("versitygw").args(["--port", &addr, "--access", access, "--secret", secret]);
        let mut command = command.args(["--keep-alive", "--quiet"]);
        if let Some(log) = &self.access_log {
            command = command.arg("--access-log").arg(log);
        }
        let command = command.arg("posix").arg(self.dir.join("s3"));
        let mut server = Proc::spawn("versitygw", command.into_command(), &self.dir.join("s3.log"))?;
        server.ready_when("listening", Duration::from_secs(20), || TcpStream::connect(&addr).is_ok())?;
        self.server = Some(server);
        Ok(())
    }

    /// Stops it: connections break, and new ones are refused. Fails when it does not end.
    pub fn stop(&mut self) -> Result<()> {
        self.server.take().map_or(Ok(()), |mut s| s.stop(Signal::KILL, Duration::from_secs(5)))
    }

    /// Restarts it with other keys; the old ones are no longer valid.
    pub fn rekey(&mut self, access: &str, secret: &str) -> Result<()> {
        self.stop()?;
        self.keys = (access.into(), secret.into());
        self.resume()
    }

    /// Whether it was started and not stopped since.
    pub fn is_running(&self) -> bool {
        self.server.is_some()
    }

    /// Its process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.server.as_ref().map(Proc::pid)
    }

    /// The store URL for `holdfast`.
    pub fn url(&self) -> String {
        self.url_by(&self.address())
    }

    /// The store URL through a proxy at `address`.
    pub fn url_by(&self, address: &str) -> String {
        format!("s3://{BUCKET}/e2e?endpoint=http://{address}&region=us-east-1")
    }

    /// HOST:PORT.
    pub fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// The keys as environment variables.
    pub fn env(&self) -> Vec<(String, String)> {
        let (access, secret) = &self.keys;
        [("AWS_ACCESS_KEY_ID", access), ("AWS_SECRET_ACCESS_KEY", secret)].map(|(k, v)| (k.into(), v.clone())).into()
    }

    /// The keys in the format of a credentials file.
    pub fn credentials(&self, profile: &str) -> String {
        let (access, secret) = &self.keys;
        format!("[{profile}]\naws_access_key_id = {access}\naws_secret_access_key = {secret}\n")
    }

    /// The folder that is the store of [`S3::url`].
    pub fn folder(&self) -> PathBuf {
        self.dir.join("s3").join(BUCKET).join("e2e")
    }

    /// Number of bytes in the bucket.
    pub fn stored_bytes(&self) -> u64 {
        bytes_below(&self.dir.join("s3").join(BUCKET))
    }
}

fn bytes_below(dir: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    entries
        .filter_map(Result::ok)
        .map(|e| match e.metadata() {
            Ok(m) if m.is_dir() => bytes_below(&e.path()),
            Ok(m) => m.len(),
            // Deleted since it was listed.
            Err(_) => 0,
        })
        .sum()
}
