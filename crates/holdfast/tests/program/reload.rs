//! A gateway reads its settings again at SIGHUP.

use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Longest wait for a line of the log.
const PATIENCE: Duration = Duration::from_secs(60);

/// A gateway that belongs to no cluster, and its log.
struct Gateway {
    child: Child,
    log: Receiver<String>,
    file: PathBuf,
    fixed: String,
    http: SocketAddr,
}

impl Gateway {
    /// Its files are in `dir`.
    fn start(dir: &Path) -> Self {
        // All at once, so that they differ.
        let free: Vec<TcpListener> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let ports: Vec<SocketAddr> = free.iter().map(|listener| listener.local_addr().unwrap()).collect();
        drop(free);
        let (key, file) = (dir.join("key"), dir.join("g1.toml"));
        std::fs::write(&key, [7; 32]).unwrap();
        std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
        let at = dir.display();
        let fixed = format!(
            "data_dir = \"{at}/data\"\nnbd_unix = \"{at}/nbd\"\napi_listen = \"{}\"\npeer_listen = \"{}\"\n\
             http_listen = \"{}\"\n",
            ports[0], ports[1], ports[2]
        );
        let tables = format!("\n[key]\nfile = \"{}\"\n\n[cache]\ndisk = \"0B\"\n", key.display());
        std::fs::write(&file, format!("{fixed}{tables}")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
        command.env_clear().args(["gateway", "run", "--config"]).arg(&file);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (tell, log) = channel();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| tell.send(line)));
        let gateway = Self { child, log, file, fixed: format!("{fixed}LINE{tables}"), http: ports[2] };
        gateway.until("gateway runs");
        gateway
    }

    /// All lines of the log up to one with this part.
    fn until(&self, part: &str) -> Vec<String> {
        let mut lines = Vec::new();
        while !lines.last().is_some_and(|line: &String| line.contains(part)) {
            match self.log.recv_timeout(PATIENCE) {
                Ok(line) => lines.push(line),
                Err(error) => panic!("expected {part:?} ({error}): {lines:?}"),
            }
        }
        lines
    }

    /// Has it read its file again, with `line` in it.
    fn reload(&self, line: &str) {
        std::fs::write(&self.file, self.fixed.replace("LINE", line)).unwrap();
        kill_process(Pid::from_child(&self.child), Signal::HUP).unwrap();
    }

    fn metrics(&self) -> String {
        let mut stream = TcpStream::connect(self.http).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n").unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        page
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn settings_are_read_again_and_a_bad_file_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let gateway = Gateway::start(dir.path());
    let good = "holdfast_settings_last_reload_successful 1";
    assert!(gateway.metrics().contains(good));
    gateway.reload("lease_ttl_ms = 4000\nrtt_ms = 2\nlog = \"error\"\n");
    let told = gateway.until("the settings were read again").pop().unwrap();
    assert!(told.contains("lease_ttl_ms 3000 -> 4000") && told.contains("rtt_ms"), "{told}");
    gateway.reload("lease_ttl_ms = 4\n");
    let told = gateway.until("nothing was changed").pop().unwrap();
    assert!(told.contains("lease_ttl_ms: found 4"), "{told}");
    let page = gateway.metrics();
    assert!(page.contains("holdfast_settings_last_reload_successful 0"), "{page}");
    // By now the log has errors only.
    gateway.reload("no_such = 4\n");
    let told = gateway.until("nothing was changed");
    assert!(told.len() == 1 && told[0].contains("no_such"), "{told:?}");
    gateway.reload("lease_ttl_ms = 4000\nlog = \"info\"\n");
    let begun = Instant::now();
    while !gateway.metrics().contains(good) {
        assert!(begun.elapsed() < PATIENCE, "the good file is not in use");
        std::thread::yield_now();
    }
    gateway.reload("lease_ttl_ms = 5000\n");
    let told = gateway.until("the settings were read again").pop().unwrap();
    assert!(told.contains("lease_ttl_ms 4000 -> 5000"), "{told}");
}
