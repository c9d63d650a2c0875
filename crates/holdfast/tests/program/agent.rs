//! `holdfast agent switchover` and `failover` as people run them, against stand-ins that answer over HTTP like agents,
//! with plans made by the agents' own code.

use holdfast_agent::View;
use holdfast_agent::plan::{self, Peer, Plan};
use holdfast_agent::watchdog::{AGENT_LOCK, HELPER_LOCK};
use holdfast_host::lock::{is_locked, lock};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Two hosts, and the commands that they received.
#[derive(Debug)]
struct World {
    views: [Value; 2],
    told: Vec<(String, Value)>,
    /// Somebody uses the pool of db1 when it is to be exported.
    in_use: bool,
}

type Shared = Arc<Mutex<World>>;

struct Lab {
    world: Shared,
    agents: String,
}

fn view(name: &str, state: &str, peers: &Value) -> Value {
    let primary = state == "primary";
    json!({
        "name": name, "set": "demo", "state": state, "since_unix_ms": 0, "role": if primary { "primary" } else { "standby" },
        "why": "", "paused": false, "mode": "automatic", "nofailover": false, "priority": 100, "epoch": if primary { 17 } else { 0 },
        "lease_owner": "db1", "cluster_answers": true, "database": if primary { "ready" } else { "gone" }, "attach": null,
        "renewed_ms_ago": null, "obstacle": "", "peers": peers, "version": "x",
    })
}

/// Two agents: db1 is primary, db2 has this state.
fn lab(state: &str) -> Lab {
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [a, b] = [0, 1].map(|at| listeners[at].local_addr().unwrap().to_string());
    let views = [view("db1", "primary", &json!({ "db2": b })), view("db2", state, &json!({ "db1": a }))];
    let world = Arc::new(Mutex::new(World { views, told: Vec::new(), in_use: false }));
    for (at, listener) in listeners.into_iter().enumerate() {
        let world = world.clone();
        // It ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                serve(&world, at, stream.unwrap());
            }
        });
    }
    Lab { world, agents: a }
}

fn serve(world: &Shared, at: usize, mut stream: TcpStream) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first).unwrap();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        match line.trim().split_once(": ") {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => length = value.parse().unwrap(),
            Some(_) => {}
            None => break,
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let path = first.split(' ').nth(1).unwrap().to_string();
    let (code, answer) = answer(&mut world.lock().unwrap(), at, &path, body);
    let answer = answer.to_string();
    let head = format!("HTTP/1.1 {code} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", answer.len());
    stream.write_all(format!("{head}{answer}").as_bytes()).unwrap();
}

fn answer(world: &mut World, at: usize, path: &str, body: Value) -> (u16, Value) {
    let parsed = |at: usize| serde_json::from_value::<View>(world.views[at].clone()).unwrap();
    let other = parsed(1 - at);
    let peers: [Peer; 1] = [(other.name.clone(), Ok(other))];
    let made: Plan = match path {
        "/status" => return (200, world.views[at].clone()),
        "/history" => return (200, json!([])),
        "/switchover" => plan::switchover(&parsed(at), body["candidate"].as_str(), &peers, None),
        "/failover" => plan::failover(&parsed(at), &peers),
        // A standby has no PostgreSQL to restart.
        "/restart" if at == 1 => return (412, json!({ "message": "db2 is in state standby, expected primary" })),
        "/pause" | "/restart" => {
            world.told.push((path.to_string(), body));
            return (200, json!({ "message": "taken" }));
        }
        path => return (404, json!({ "message": format!("found {path}") })),
    };
    let (allow, reason) = (body["allow_data_loss"] == true, body["reason"].as_str().unwrap_or_default());
    let may_go = made.may_go(allow, reason);
    let dry = body["dry_run"] == true;
    world.told.push((path.to_string(), body));
    match may_go {
        Err(why) if dry => (200, json!({ "message": format!("would be refused: {why}"), "plan": made })),
        Err(why) => (412, json!({ "message": why, "plan": made })),
        Ok(()) if dry => (200, json!({ "message": "it would be done", "plan": made })),
        Ok(()) if world.in_use => {
            world.views[0]["switchover_refused"] = json!("switchover to db2 refused: bash (pid 7) works in /tank/pg");
            (200, json!({ "message": "on its way", "plan": made }))
        }
        Ok(()) => {
            // The stand-ins do it at once: the duration is not tested here.
            let [a, b] = [0, 1].map(|at| world.views[at]["peers"].clone());
            world.views = [view("db1", "standby", &a), view("db2", "primary", &b)];
            (200, json!({ "message": "on its way", "plan": made }))
        }
    }
}

impl Lab {
    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
        command.env_clear().env("HOLDFAST_AGENT", &self.agents).stdin(Stdio::null());
        command.arg("agent").args(args).output().unwrap()
    }

    /// Standard output and standard error of a command that ends with this code.
    fn expect(&self, code: i32, args: &[&str]) -> (String, String) {
        let output = self.run(args);
        let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said:?}");
        let [out, err] = said;
        (out, err)
    }

    fn json(&self, args: &[&str]) -> Value {
        let (out, _) = self.expect(0, &[args, &["--output", "json"]].concat());
        serde_json::from_str(&out).unwrap()
    }

    /// The commands received since the last call, and whether each was a dry run.
    fn told(&self) -> Vec<(String, bool)> {
        let told = std::mem::take(&mut self.world.lock().unwrap().told);
        told.into_iter().map(|(path, body)| (path, body["dry_run"] == true)).collect()
    }
}

/// The line of a table about this host, without padding.
fn row(text: &str, host: &str) -> Vec<String> {
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(host));
    line.unwrap_or_else(|| panic!("no line of {host} in {text}")).split_whitespace().map(str::to_string).collect()
}

/// The role of each host in a list of hosts.
fn states(hosts: &Value) -> Vec<(&str, &str)> {
    hosts.as_array().unwrap().iter().map(state).collect()
}

fn state(host: &Value) -> (&str, &str) {
    let text = |key: &str| host["view"][key].as_str().unwrap();
    (text("name"), text("state"))
}

/// The events of a host that cannot be asked are not told as none.
#[test]
fn a_history_says_which_agents_it_lacks() {
    let lab = lab("standby");
    // Nobody listens on port 1.
    let agents = format!("{},127.0.0.1:1", lab.agents);
    let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
    command.env_clear().stdin(Stdio::null()).args(["history", "--agent", &agents, "--output", "json"]);
    let output = command.output().unwrap();
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!((output.status.code(), out.trim_end()), (Some(0), "[]"), "{err}");
    let lacks: Value = serde_json::from_str(err.lines().last().unwrap_or_default()).unwrap();
    assert!(lacks["not_included"][0].as_str().unwrap().contains("127.0.0.1:1"), "{err}");
}

#[test]
fn a_dry_run_shows_hosts_checks_and_steps_and_does_nothing() {
    let lab = lab("standby");
    let (out, _) = lab.expect(0, &["switchover", "--dry-run"]);
    assert_eq!(row(&out, "db1")[2..4], ["primary", "primary"]);
    assert_eq!(row(&out, "db2")[2..4], ["standby", "standby"]);
    for words in
        ["CHECK", "db1 is primary", "db2 stands by", "steps of the switchover of demo from db1 to db2:", "  1. "]
    {
        assert!(out.contains(words), "{words:?} is not in {out}");
    }
    assert!(out.ends_with("it would be done\n"), "{out}");
    let said = lab.json(&["switchover", "--dry-run", "--to", "db2"]);
    assert_eq!(
        (&said["may_go"], &said["plan"]["kind"], &said["plan"]["to"]),
        (&json!(true), &json!("switchover"), &json!("db2"))
    );
    assert_eq!(states(&said["before"]), [("db1", "primary"), ("db2", "standby")]);
    assert!(
        said["plan"]["checks"].as_array().unwrap().len() >= 3 && said["plan"]["steps"].as_array().unwrap().len() >= 4
    );
    // The format is the same for both.
    let forced = lab.json(&["failover", "--dry-run", "--candidate", "db2"]);
    assert_eq!((&forced["may_go"], &forced["plan"]["kind"]), (&json!(false), &json!("failover")));
    let keys = |said: &Value| said.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&said), keys(&forced));
    assert!(lab.told().iter().all(|(_, dry)| *dry));
}

#[test]
fn a_switchover_shows_the_hosts_before_and_after_also_where_nobody_is_asked() {
    let one = lab("standby");
    let (out, err) = one.expect(0, &["switchover", "--yes"]);
    assert!(err.starts_with("before:\n"), "{err}");
    assert_eq!((row(&err, "db1")[2].as_str(), row(&err, "db2")[2].as_str()), ("primary", "standby"));
    assert!(out.trim_start().starts_with("after:\n"), "{out}");
    assert_eq!((row(&out, "db1")[2].as_str(), row(&out, "db2")[2].as_str()), ("standby", "primary"));
    assert!(out.trim_end().lines().last().unwrap().starts_with("db2 is primary (epoch e17) after "), "{out}");
    assert_eq!(one.told(), [("/switchover".to_string(), false)]);

    let two = lab("standby");
    let said = two.json(&["switchover", "--yes"]);
    assert_eq!((&said["primary"], &said["epoch"]), (&json!("db2"), &json!(17)));
    assert!(said["took_ms"].is_u64());
    assert_eq!(states(&said["before"]), [("db1", "primary"), ("db2", "standby")]);
    assert_eq!(states(&said["after"]), [("db1", "standby"), ("db2", "primary")]);
    assert_eq!((&said["plan"]["from"], &said["plan"]["to"]), (&json!("db1"), &json!("db2")));

    // Nobody can confirm here: the plan was shown, and nothing was done.
    let asked = lab("standby");
    let (_, err) = asked.expect(6, &["switchover"]);
    assert!(err.contains("db2 stands by") && err.contains("steps of the switchover of demo from db1 to db2"), "{err}");
    assert_eq!(asked.told(), [("/switchover".to_string(), true)]);
}

#[test]
fn a_failover_shows_the_hosts_before_and_after() {
    let lab = lab("standby");
    let words = ["failover", "--candidate", "db2", "--yes"];
    let (_, err) = lab.expect(3, &words);
    assert!(err.contains("before:\n") && err.contains("LOSES DATA") && err.contains("--allow-data-loss"), "{err}");
    assert_eq!(lab.told(), [("/failover".to_string(), true)], "refused before it was asked for");
    let said = lab.json(&[&words[..], &["--allow-data-loss", "--reason", "smoke"]].concat());
    assert_eq!(states(&said["before"]), [("db1", "primary"), ("db2", "standby")]);
    assert_eq!(states(&said["after"]), [("db1", "standby"), ("db2", "primary")]);
    assert_eq!((&said["plan"]["kind"], &said["primary"]), (&json!("failover"), &json!("db2")));
}

/// If one host is lost or refuses, the others are still paused.
#[test]
fn orders_to_several_agents_go_to_all_of_them() {
    let lab = lab("standby");
    let b = lab.world.lock().unwrap().views[0]["peers"]["db2"].as_str().unwrap().to_string();
    // The port is free again, and nobody listens on it.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let agents = format!("{closed},{},{b}", lab.agents);
    let (out, err) = lab.expect(4, &["pause", "--agent", &agents]);
    assert_eq!(row(&out, &closed)[1..3], ["not", "done"]);
    assert_eq!(
        (&row(&out, &lab.agents)[1..], &row(&out, &b)[1..]),
        (&["done", "taken"].map(str::to_string)[..], &["done", "taken"].map(str::to_string)[..])
    );
    assert!(err.contains("1 of 3 agents did not execute it") && err.contains("check --agent"), "{err}");
    assert_eq!(lab.told(), [("/pause".to_string(), false), ("/pause".to_string(), false)]);

    let agents = format!("{b},{}", lab.agents);
    let (out, err) = lab.expect(3, &["restart", "--yes", "--agent", &agents, "--output", "json"]);
    let said: Value = serde_json::from_str(&out).unwrap();
    let shown = [
        (&said[0]["agent"], &said[0]["exit"], &said[0]["done"]),
        (&said[1]["agent"], &said[1]["exit"], &said[1]["done"]),
    ];
    let (refused, done) = (json!(3), json!(0));
    assert_eq!(shown, [(&json!(b), &refused, &json!(false)), (&json!(lab.agents), &done, &json!(true))]);
    assert!(err.contains("db2 is in state standby"), "{err}");
    assert_eq!(lab.told(), [("/restart".to_string(), false)]);
    let (out, err) = lab.expect(3, &["restart", "--yes", "--agent", &b]);
    assert_eq!(out, "", "alone it says no more than its own words");
    assert!(err.contains("error: db2 is in state standby, expected primary\n"), "{err}");
}

/// PostgreSQL was stopped for the move and runs again on its old host: the command does not wait for the other host to
/// become primary.
#[test]
fn a_switchover_that_is_given_up_on_the_way_is_refused_with_who_is_in_the_way() {
    let lab = lab("standby");
    lab.world.lock().unwrap().in_use = true;
    let (out, err) = lab.expect(3, &["switchover", "--yes"]);
    assert!(err.contains("switchover to db2 refused: bash (pid 7) works in /tank/pg"), "{err}");
    assert!(err.contains("end what uses the pool"), "{err}");
    assert_eq!(out, "");
}

#[test]
fn a_refused_switchover_shows_its_checks_and_what_would_make_it_possible() {
    let lab = lab("fencing");
    let next = "wait until it stands by";
    for args in [&["switchover", "--yes"][..], &["switchover"]] {
        let (out, err) = lab.expect(3, args);
        assert!(err.contains("NOT POSSIBLE") && err.contains("db2 is in state fencing") && err.contains(next), "{err}");
        assert_eq!(out, "");
    }
    let (_, err) = lab.expect(3, &["switchover", "--yes", "--output", "json"]);
    let error: Value = serde_json::from_str(&err).unwrap();
    assert!(error["error"]["message"].as_str().unwrap().contains(next), "{error}");
    let said = lab.json(&["switchover", "--dry-run"]);
    assert_eq!(said["may_go"], json!(false));
    let checks = said["plan"]["checks"].as_array().unwrap();
    let refusing: Vec<&Value> = checks.iter().filter(|check| check["finding"] == "impossible").collect();
    assert!(
        !refusing.is_empty()
            && refusing.iter().all(|check| check["next"].as_str().is_some_and(|next| !next.is_empty()))
    );
    assert_eq!(states(&said["before"]), [("db1", "primary"), ("db2", "fencing")]);
}

/// A restart of the agent may fit between two checks of its lock by the helper. The helper then keeps the old settings:
/// after `watchdog.mode` was turned on, each takeover failed because the watchdog device was not open, as long as the
/// agent ran.
#[test]
fn a_helper_that_outlived_its_agent_makes_room_for_the_next_ones() {
    let dir = tempfile::tempdir().unwrap();
    let (run_dir, settings) = (dir.path().join("run"), dir.path().join("agent.toml"));
    std::fs::create_dir(&run_dir).unwrap();
    std::fs::write(&settings, format!("dir = {run_dir:?}\nrun_dir = {run_dir:?}\n[database]\n")).unwrap();
    // The next agent runs already, and stands by.
    let _next = lock(&run_dir, AGENT_LOCK).unwrap();
    std::fs::write(run_dir.join("watchdog"), "1 0 3000 0\n").unwrap();
    let until = |what: &dyn Fn() -> bool| {
        let begun = Instant::now();
        while !what() && begun.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(10));
        }
        what()
    };
    let runs = || is_locked(&run_dir, HELPER_LOCK).unwrap();
    // In place of the agent that started the helper.
    let mut command = Command::new("sh");
    command.args(["-c", "\"$0\" agent watchdog --config \"$1\" & read _", env!("CARGO_BIN_EXE_holdfast")]);
    let mut first = command.arg(&settings).stdin(Stdio::piped()).process_group(0).spawn().unwrap();
    let group = Pid::from_child(&first);
    let began = until(&runs);
    drop(first.stdin.take());
    first.wait().unwrap();
    let ended = until(&|| !runs());
    if !ended {
        kill_process_group(group, Signal::KILL).unwrap();
    }
    assert!(began, "no helper came up");
    assert!(ended, "found the helper of the agent that is gone, expected it to end");
}

/// The process handles no signal, and SIGHUP ends a process without a handler. If two signals are pending, the kernel
/// delivers SIGHUP first.
#[test]
fn a_hangup_does_not_end_the_helper() {
    let dir = tempfile::tempdir().unwrap();
    let (run_dir, settings) = (dir.path().join("run"), dir.path().join("agent.toml"));
    std::fs::create_dir(&run_dir).unwrap();
    std::fs::write(&settings, format!("dir = {run_dir:?}\nrun_dir = {run_dir:?}\n[database]\n")).unwrap();
    let _agent = lock(&run_dir, AGENT_LOCK).unwrap();
    std::fs::write(run_dir.join("watchdog"), "1 0 3000 0\n").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
    let mut helper =
        command.args(["agent", "watchdog", "--config"]).arg(&settings).stdin(Stdio::null()).spawn().unwrap();
    let (begun, pid) = (Instant::now(), Pid::from_child(&helper));
    while !is_locked(&run_dir, HELPER_LOCK).unwrap() && begun.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(10));
    }
    let began = is_locked(&run_dir, HELPER_LOCK).unwrap();
    for signal in [Signal::HUP, Signal::TERM] {
        kill_process(pid, signal).unwrap();
    }
    let ended = helper.wait().unwrap();
    assert!(began, "no helper came up");
    assert_eq!(ended.signal(), Some(Signal::TERM.as_raw()), "{ended}");
}
