//! `holdfast dev` with real gateways: it announces them, keeps them running, ends them with itself, and comes back with
//! the same cluster.

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Generous: a busy machine with two processors runs everything at once.
const PATIENCE: Duration = Duration::from_secs(120);

struct Dev {
    child: Child,
    ready: Value,
    out: BufReader<std::process::ChildStdout>,
    err: std::sync::mpsc::Receiver<String>,
}

fn holdfast() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
    command.env_remove("HOLDFAST_API").env_remove("HOLDFAST_LOG").stdin(Stdio::null());
    command
}

impl Dev {
    /// Starts it and waits for its one line of output.
    fn start(dir: &Path, more: &[&str]) -> Dev {
        let mut command = holdfast();
        command.args(["dev", "--output", "json", "--timeout", "110s", "--dir"]).arg(dir).args(more);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let err = BufReader::new(child.stderr.take().unwrap());
        let (tell, told) = std::sync::mpsc::channel();
        let reader =
            std::thread::spawn(move || err.lines().map_while(Result::ok).for_each(|line| drop(tell.send(line))));
        if line.is_empty() {
            let status = child.wait().unwrap();
            reader.join().unwrap();
            panic!("not ready: {status}: {:?}", told.try_iter().collect::<Vec<_>>());
        }
        let ready: Value = serde_json::from_str(&line).unwrap();
        Dev { child, ready, out, err: told }
    }

    fn pids(&self) -> Vec<i32> {
        self.ready["pids"].as_array().unwrap().iter().map(|pid| i32::try_from(pid.as_i64().unwrap()).unwrap()).collect()
    }

    fn list(&self, field: &str) -> Vec<String> {
        self.ready[field].as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_string()).collect()
    }

    /// Waits for a line on standard error that contains `text`.
    fn says(&self, text: &str) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            let line = self.err.recv_timeout(until.saturating_duration_since(Instant::now()));
            let line = line.unwrap_or_else(|_| panic!("never said {text:?}"));
            if line.contains(text) {
                return line;
            }
        }
    }

    /// A command for this cluster.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = holdfast();
        command.args(args).args(["--output", "json", "--api", &self.list("api").join(",")]);
        command
    }

    /// The error that it ends with.
    fn fails(&self, code: i32, args: &[&str]) -> Value {
        let output = self.command(args).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        serde_json::from_str::<Value>(said.lines().last().unwrap()).unwrap()["error"].clone()
    }

    fn ask(&self, args: &[&str]) -> Value {
        let output = self.command(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

impl Drop for Dev {
    /// A failed test leaves nothing behind.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// Whether the process has ended; it may still be a zombie.
fn is_gone(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']))
}

/// Limits the open files of this process and its children, as a login shell would; the hard limit stays.
fn lower_open_files() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(512), maximum: limit.maximum }).unwrap();
    limit.maximum
}

/// The limit of open files of a process.
fn open_files(pid: i32) -> Option<u64> {
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    line.split_whitespace().nth(3).and_then(|soft| soft.parse().ok())
}

fn wait_until_gone(pids: &[i32]) {
    let until = Instant::now() + PATIENCE;
    while !pids.iter().all(|&pid| is_gone(pid)) {
        assert!(Instant::now() < until, "still there: {pids:?}");
        std::thread::yield_now();
    }
}

#[test]
fn a_cluster_comes_goes_and_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let files = lower_open_files();
    let mut dev = Dev::start(dir.path(), &["--volume", "vol1=64MiB", "--volume", "vol2=32MiB"]);
    for pid in dev.pids() {
        assert_eq!(open_files(pid), files, "each raises its own limit again");
    }
    assert_eq!([dev.list("nbd").len(), dev.list("api").len(), dev.pids().len()], [3, 3, 3]);
    for nbd in dev.list("nbd") {
        let (door, export) = nbd.strip_prefix("nbd://").and_then(|rest| rest.split_once('/')).unwrap();
        assert_eq!(export, "demo/vol1");
        std::net::TcpStream::connect(door).unwrap();
    }
    let first = dev.ask(&["cluster", "status"]);
    assert_eq!(dev.ask(&["set", "show", "demo"])["volumes"].as_array().unwrap().len(), 2);
    let kept: Value = serde_json::from_str(&std::fs::read_to_string(dir.path().join("dev.json")).unwrap()).unwrap();
    assert_eq!(kept, dev.ready);

    // A killed gateway is not restarted, and is reported as missing.
    let victim = dev.pids()[2];
    signal(victim, Signal::KILL);
    assert_eq!(dev.says("gateway g3"), format!("gateway g3 (process {victim}) was ended by signal 9"));
    let status = dev.ask(&["cluster", "status"]);
    let reachable: Vec<bool> =
        status["members"].as_array().unwrap().iter().map(|member| member["reachable"].as_bool().unwrap()).collect();
    assert_eq!(reachable, [true, true, false]);

    // When it is killed itself, the gateways end too, also a stopped one.
    signal(dev.pids()[1], Signal::STOP);
    dev.child.kill().unwrap();
    dev.child.wait().unwrap();
    wait_until_gone(&dev.pids());

    // The same directory gives the same cluster at the same addresses.
    let mut again = Dev::start(dir.path(), &[]);
    assert_eq!([again.list("nbd"), again.list("api")], [dev.list("nbd"), dev.list("api")]);
    let second = again.ask(&["cluster", "status"]);
    assert_eq!([&second["cluster_id"], &second["sets"]], [&first["cluster_id"], &first["sets"]]);
    let boots = |status: &Value| {
        status["members"]
            .as_array()
            .unwrap()
            .iter()
            .map(|member| member["node"]["boot"].as_u64().unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(boots(&second), boots(&first).iter().map(|boot| boot + 1).collect::<Vec<_>>());

    // A gateway that is stopped hands over what it leads, and says so: nobody waits for an election.
    let name = again.ask(&["set", "show", "demo"])["leader"]["name"].as_str().unwrap().to_string();
    let place = usize::from(name.strip_prefix('g').unwrap().parse::<u8>().unwrap()) - 1;
    signal(again.pids()[place], Signal::TERM);
    let ended = again.says(&format!("gateway {name}"));
    assert_eq!(ended, format!("gateway {name} (process {}) ended with exit code 0", again.pids()[place]));
    let log = std::fs::read_to_string(dir.path().join(format!("{name}.log"))).unwrap();
    let handed = log.lines().find(|line| line.contains("leadership handed to g") && line.contains("demo"));
    assert!(handed.is_some(), "{log}");

    // After a signal it stops the gateways cleanly.
    signal(i32::try_from(again.child.id()).unwrap(), Signal::TERM);
    assert_eq!(again.child.wait().unwrap().code(), Some(0));
    assert!(again.pids().into_iter().all(is_gone), "ended before it");
    assert!(!dir.path().join("dev.json").exists());
    let mut rest = String::new();
    again.out.read_line(&mut rest).unwrap();
    assert_eq!(rest, "", "one line and no more");
}

/// R10, with the certificates that it makes.
#[test]
fn a_secure_cluster_serves_only_who_has_a_certificate_and_each_role_its_calls() {
    let above = tempfile::tempdir().unwrap();
    let dev = Dev::start(&above.path().join("hf"), &["--gateways", "1", "--secure", "--volume", "vol1=64MiB"]);
    assert!(dev.list("nbd")[0].starts_with("nbds://127.0.0.1:"), "{}", dev.ready);
    let plain = dev.command(&["cluster", "status", "--timeout", "3s"]).output().unwrap();
    assert!(!plain.status.success(), "a command without a certificate was answered");
    let by = |role: &str, args: &[&str]| {
        let (tls, files) = (&dev.ready["tls"], &dev.ready["tls"][role]);
        let mut command = dev.command(args);
        command.env("HOLDFAST_TLS_CA", tls["ca"].as_str().unwrap());
        command.env("HOLDFAST_TLS_CERTIFICATE", files[0].as_str().unwrap());
        command.env("HOLDFAST_TLS_KEY", files[1].as_str().unwrap());
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for role in ["admin", "operator", "viewer", "host"] {
        let (code, said) = by(role, &["cluster", "status"]);
        assert_eq!(code, Some(0), "{role}: {said}");
    }
    let elsewhere = ["set", "create", "elsewhere", "--store", "file:///srv/elsewhere", "--volume", "data=64MiB"];
    for (role, args, words) in [
        ("viewer", &["snapshot", "create", "demo@one"][..], "found role viewer"),
        ("operator", &elsewhere[..], "found role operator"),
        ("admin", &elsewhere[..], "expected one within file:///"),
        ("host", &["lease", "acquire", "demo", "--owner", "db2"][..], "found owner db2"),
    ] {
        let (code, said) = by(role, args);
        assert!(code == Some(3) && said.contains(words), "{role} {args:?}: {code:?}: {said}");
    }
    let (code, said) = by("host", &["lease", "acquire", "demo", "--owner", "db1"]);
    assert_eq!(code, Some(0), "{said}");
    // Written by a thread of the gateway, for which no call waits.
    let until = Instant::now() + PATIENCE;
    let audit = || std::fs::read_to_string(above.path().join("hf/g1.audit.log")).unwrap();
    while !audit().contains("\"certificate\":\"viewer\"") {
        assert!(Instant::now() < until, "{}", audit());
        std::thread::yield_now();
    }
}

#[test]
fn with_respawn_a_killed_gateway_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let dev = Dev::start(dir.path(), &["--gateways", "1", "--respawn", "--volume", "vol1=64MiB"]);
    signal(dev.pids()[0], Signal::KILL);
    dev.says("was ended by signal 9");
    dev.says("gateway g1 restarted as process");
    let status = dev.ask(&["set", "show", "demo", "--timeout", "100s"]);
    assert_eq!(status["leader"]["name"], "g1");
}

/// R8: a gateway must not depend on its log, which may be on a full disk or behind a pipe that nobody reads.
#[test]
fn a_gateway_whose_log_takes_nothing_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    // Every write to this device fails for lack of space.
    std::os::unix::fs::symlink("/dev/full", dir.path().join("g1.log")).unwrap();
    let dev = Dev::start(dir.path(), &["--gateways", "1", "--volume", "vol1=32MiB"]);
    assert_eq!(dev.ask(&["set", "show", "demo"])["volumes"].as_array().unwrap().len(), 1);
    // A start and an election write many log lines, a grant writes some more.
    dev.ask(&["lease", "acquire", "demo", "--owner", "alpha"]);
    assert!(dev.pids().into_iter().all(|pid| !is_gone(pid)));
}

#[test]
fn a_gateway_that_cannot_start_is_reported_with_its_own_words() {
    let dir = tempfile::tempdir().unwrap();
    let dev = Dev::start(dir.path(), &["--gateways", "1", "--volume", "vol1=64MiB"]);
    let pids = dev.pids();
    drop(dev);
    // The gateway ends by itself a little later, and writes until then.
    wait_until_gone(&pids);
    // A file in place of the data directory.
    let data = dir.path().join("g1");
    std::fs::remove_dir_all(&data).unwrap();
    std::fs::write(&data, "in the way").unwrap();
    let output = holdfast().args(["dev", "--dir"]).arg(dir.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("ended with exit code 1; the end of its log:\n") && said.contains("g1.log"), "{said}");
}

/// The number of bytes that a state file counts as done.
fn done(state: &Path) -> u64 {
    let text = std::fs::read(state).unwrap_or_default();
    serde_json::from_slice::<Value>(&text).unwrap_or_default()["done_bytes"].as_u64().unwrap_or(0)
}

/// Starts a copy and kills it once its state file counts something as done. Returns whether the copy was still running
/// then: it may have ended before.
fn kill_midway(mut copy: Command, state: &Path) -> bool {
    let mut copy = copy.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let until = Instant::now() + PATIENCE;
    while done(state) == 0 {
        if copy.try_wait().unwrap().is_some() {
            return false;
        }
        assert!(Instant::now() < until, "nothing was done");
        std::thread::sleep(Duration::from_millis(1));
    }
    copy.kill().unwrap();
    copy.wait().unwrap();
    done(state) > 0
}

#[test]
fn images_replace_nothing_without_a_word_and_look_whole_only_when_they_are() {
    const MIB: usize = 1 << 20;
    let dir = tempfile::tempdir().unwrap();
    let dev = Dev::start(dir.path(), &["--gateways", "1", "--volume", "vol1=1GiB"]);
    let at = |name: &str| dir.path().join(name);
    let text = |name: &str| at(name).to_str().unwrap().to_string();
    std::fs::write(at("one"), vec![1; MIB]).unwrap();
    std::fs::write(at("two"), vec![2; 80 * MIB]).unwrap();

    // Into an empty volume the import does not ask; later it refuses unless the user confirms.
    let import = |image: &str, more: &[&str]| -> Vec<String> {
        let args = ["volume", "import", image, "demo/vol1", "--timeout", "60s"];
        args.iter().chain(more).map(|arg| arg.to_string()).collect()
    };
    fn words(args: &[String]) -> Vec<&str> {
        args.iter().map(String::as_str).collect()
    }
    let (one, two, state) = (text("one"), text("two"), text("import.state"));
    assert_eq!(dev.ask(&words(&import(&one, &[])))["bytes"], MIB);
    for more in [Vec::new(), vec!["--state", state.as_str()]] {
        let declined = dev.fails(6, &words(&import(&two, &more)));
        assert!(declined["next"].as_str().unwrap().contains("--overwrite"), "{declined}");
        assert!(!at("import.state").exists(), "nothing to go on with");
    }
    let first = |name: &str, byte: u8| {
        let mut image = std::fs::File::open(at(name)).unwrap();
        assert_eq!(image.metadata().unwrap().len(), 1 << 30);
        let mut found = vec![0; MIB];
        image.read_exact(&mut found).unwrap();
        assert!(found.iter().all(|found| *found == byte), "{name}");
    };
    dev.ask(&["snapshot", "create", "demo@one", "--timeout", "60s"]);

    // The incomplete file has another name, and the same command continues it.
    let (out, export_state) = (text("out"), text("export.state"));
    let export = ["volume", "export", "demo/vol1@one", &out, "--state", &export_state, "--timeout", "60s"];
    // A copy that was done before it could be killed is started again.
    let midway = (0..20).any(|_| {
        let midway = kill_midway(dev.command(&export), &at("export.state")) && at("out.part").exists();
        if !midway {
            std::fs::remove_file(at("out")).unwrap();
            drop(std::fs::remove_file(at("export.state")));
        }
        midway
    });
    assert!(midway, "each of them ended before it could be killed");
    assert!(!at("out").exists() && at("out.part").exists());
    let said = dev.ask(&export);
    assert!(said["resumed_from"].as_u64() > Some(0), "{said}");
    assert!(at("out").exists() && !at("out.part").exists() && !at("export.state").exists());
    first("out", 1);
    assert!(dev.fails(2, &export[..4])["message"].as_str().unwrap().contains("out exists already"));

    // An interrupted import does not ask again. It reads from a pipe, so that it can be stopped in the middle for
    // certain.
    let pipe = text("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let going = import(&pipe, &["--overwrite", "--state", &state]);
    // Writes so many bytes of the image, and holds the pipe open until it is told to end.
    let feed = |bytes: usize| {
        let (pipe, image) = (pipe.clone(), std::fs::read(at("two")).unwrap());
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let fed = std::thread::spawn(move || {
            let mut pipe = std::fs::File::options().write(true).open(pipe).unwrap();
            // The reader may be killed before it has read everything.
            let _ = pipe.write_all(&image[..bytes]);
            let _ = ended.recv();
        });
        (end, fed)
    };
    let (end, fed) = feed(79 * MIB);
    // The import cannot end, because the pipe is open.
    assert!(kill_midway(dev.command(&words(&going)), &at("import.state")));
    drop(end);
    fed.join().unwrap();
    let (end, fed) = feed(80 * MIB);
    drop(end);
    let said = dev.ask(&words(&import(&pipe, &["--state", &state])));
    fed.join().unwrap();
    assert!(said["resumed_from"].as_u64() > Some(0), "{said}");
    dev.ask(&["volume", "export", "demo/vol1", &out, "--overwrite", "--timeout", "60s"]);
    first("out", 2);
}
