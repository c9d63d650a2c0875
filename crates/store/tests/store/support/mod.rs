//! Starts the S3 server that the tests need, if it is installed.
#![allow(dead_code, reason = "each test file uses its own part")]

pub mod server;

use holdfast_store::{RetryPolicy, Secret, StoreOptions};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A versitygw on loopback over a temporary directory; ends when dropped.
pub struct Versitygw {
    child: Child,
    address: SocketAddr,
    dir: tempfile::TempDir,
}

pub const ID: &str = "holdfast-test";
pub const SECRET: &str = "holdfast-test-secret";

impl Versitygw {
    /// `Err` tells why there is none.
    pub fn start() -> Result<Self, String> {
        let program = find()?;
        let dir = tempfile::tempdir().expect("temporary directory");
        // Between our search for a free port and its use, another process may take it; then the server exits and we try
        // again.
        for _ in 0..5 {
            let address = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("free port");
            let mut child = Command::new(&program)
                .args(["--access", ID, "--secret", SECRET, "--port", &address.to_string(), "--keep-alive", "--quiet"])
                .arg("posix")
                .arg(dir.path())
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .map_err(|error| format!("{} cannot be started: {error}", program.display()))?;
            let deadline = Instant::now() + Duration::from_secs(20);
            while Instant::now() < deadline && child.try_wait().expect("wait").is_none() {
                if TcpStream::connect(address).is_ok() {
                    return Ok(Self { child, address, dir });
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        panic!("{} did not begin to listen", program.display());
    }

    /// The bucket is a directory of this name.
    pub fn create_bucket(&self, name: &str) {
        std::fs::create_dir(self.dir.path().join(name)).expect("bucket");
    }

    pub fn options(&self) -> StoreOptions {
        options(self.address)
    }
}

impl Drop for Versitygw {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Options for a server on loopback, with short waits.
pub fn options(address: SocketAddr) -> StoreOptions {
    StoreOptions {
        endpoint: Some(format!("http://{address}")),
        access_key_id: Some(ID.to_owned()),
        secret_access_key: Some(Secret::new(SECRET)),
        retry: quick(),
        ..StoreOptions::default()
    }
}

/// Many attempts, short waits.
pub fn quick() -> RetryPolicy {
    RetryPolicy { attempts_max: 30, backoff_first_ms: 1, backoff_max_ms: 2, ..RetryPolicy::default() }
}

fn find() -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os("HOLDFAST_VERSITYGW") {
        let path = PathBuf::from(path);
        // It was requested by name: its absence is an error of the test run, not a reason to skip.
        assert!(path.is_file(), "HOLDFAST_VERSITYGW: found no file {}", path.display());
        return Ok(path);
    }
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let mut found = std::env::split_paths(&paths).map(|dir| dir.join("versitygw"));
    found
        .find(|path| path.is_file())
        .ok_or_else(|| "versitygw is not on PATH, HOLDFAST_VERSITYGW is not set".to_owned())
}
