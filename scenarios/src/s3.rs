//! A real S3 server on loopback: versitygw over a folder, with a port that stays the same when it is stopped and started.

use crate::cluster::free_ports;
use crate::cmd::cmd;
use crate::process::{Proc, Signal};
use anyhow::Result;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

const ACCESS: &str = "holdfast-test";
const SECRET: &str = "holdfast-test-secret";
/// The bucket that it has.
pub const BUCKET: &str = "bucket";

/// The server's folder and, while it runs, its process.
#[derive(Debug)]
pub struct S3 {
    dir: PathBuf,
    host: String,
    port: u16,
    /// The only keys that it takes.
    keys: (String, String),
    /// Where it notes each request, if it does.
    access_log: Option<PathBuf>,
    server: Option<Proc>,
}

impl S3 {
    /// Starts a server with one empty bucket below `dir`.
    ///
    /// # Errors
    /// When it does not listen within 20 s.
    pub fn start(dir: &Path) -> Result<Self> {
        Self::start_on(dir, "127.0.0.1")
    }

    /// The same, and it notes each request that it has answered in the file `access_log` (an absolute path: it changes its folder).
    ///
    /// # Errors
    /// As [`S3::start`].
    pub fn start_noting(dir: &Path, access_log: &Path) -> Result<Self> {
        Self::start_with(dir, "127.0.0.1", Some(access_log.into()))
    }

    /// The same on another address of ours.
    ///
    /// # Errors
    /// As [`S3::start`].
    pub fn start_on(dir: &Path, host: &str) -> Result<Self> {
        Self::start_with(dir, host, None)
    }

    fn start_with(dir: &Path, host: &str, access_log: Option<PathBuf>) -> Result<Self> {
        // To this server a folder is a bucket.
        std::fs::create_dir_all(dir.join("s3").join(BUCKET))?;
        let keys = (ACCESS.into(), SECRET.into());
        let mut s3 = Self { dir: dir.into(), host: host.into(), port: free_ports(1)?, keys, access_log, server: None };
        s3.resume()?;
        Ok(s3)
    }

    /// Starts it again on the same folder and port.
    ///
    /// # Errors
    /// As [`S3::start`].
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

    /// Stops it: connections break, new ones are refused.
    ///
    /// # Errors
    /// When it does not end.
    pub fn stop(&mut self) -> Result<()> {
        self.server.take().map_or(Ok(()), |mut s| s.stop(Signal::KILL, Duration::from_secs(5)))
    }

    /// Starts it again with other keys, the only ones that it takes from then on.
    ///
    /// # Errors
    /// As [`S3::start`] and [`S3::stop`].
    pub fn rekey(&mut self, access: &str, secret: &str) -> Result<()> {
        self.stop()?;
        self.keys = (access.into(), secret.into());
        self.resume()
    }

    /// Whether it was started and not stopped since.
    pub fn is_running(&self) -> bool {
        self.server.is_some()
    }

    /// Its process, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.server.as_ref().map(Proc::pid)
    }

    /// As `holdfast` wants it.
    pub fn url(&self) -> String {
        self.url_by(&self.address())
    }

    /// The same by way of somebody in between, at `address`.
    pub fn url_by(&self, address: &str) -> String {
        format!("s3://{BUCKET}/e2e?endpoint=http://{address}&region=us-east-1")
    }

    /// HOST:PORT.
    pub fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Keys, as environment variables.
    pub fn env(&self) -> Vec<(String, String)> {
        let (access, secret) = &self.keys;
        [("AWS_ACCESS_KEY_ID", access), ("AWS_SECRET_ACCESS_KEY", secret)].map(|(k, v)| (k.into(), v.clone())).into()
    }

    /// Keys, as a credentials file has them.
    pub fn credentials(&self, profile: &str) -> String {
        let (access, secret) = &self.keys;
        format!("[{profile}]\naws_access_key_id = {access}\naws_secret_access_key = {secret}\n")
    }

    /// The folder that is the store of [`S3::url`].
    pub fn folder(&self) -> PathBuf {
        self.dir.join("s3").join(BUCKET).join("e2e")
    }

    /// Bytes in the bucket.
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
            // Gone since it was listed.
            Err(_) => 0,
        })
        .sum()
}
