use super::*;
use crate::config::AgentConfig;
use crate::facts::Known;
use crate::history::History;
use crate::machine::{Refused, Role};
use crate::schedule::Schedule;
use crate::view::STALE;
use axum::http::header;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};

#[path = "flood_tests.rs"]
mod flood;
#[path = "noted_tests.rs"]
mod noted;
#[path = "told_tests.rs"]
mod told;

fn view(state: StateName, role: Role, database: &str) -> View {
    View::for_test("db1", state, role, database)
}

/// Each health check against each sort of host. `1` is 200, `0` is 503.
#[test]
fn load_balancers_see_one_primary() {
    let paths = ["/", "/primary", "/read-write", "/replica", "/read-only", "/health", "/readiness", "/liveness"];
    let codes = |view: &View| paths.map(|path| u8::from(healthy(view, path, clock::now()).unwrap()));
    let primary = view(StateName::Primary, Role::Primary, "ready");
    assert_eq!(codes(&primary), [1, 1, 1, 0, 1, 1, 1, 1]);
    let following = view(StateName::Following, Role::Standby, "standby");
    assert_eq!(codes(&following), [0, 0, 0, 1, 1, 1, 1, 1]);
    let recovering = view(StateName::Starting, Role::Standby, "busy");
    assert_eq!(codes(&recovering), [0, 0, 0, 0, 0, 0, 0, 1]);
    let mut cold = view(StateName::Standby, Role::Standby, "gone");
    assert_eq!(codes(&cold), [0, 0, 0, 0, 0, 0, 1, 1]);
    cold.obstacle = "paused".into();
    assert_eq!(codes(&cold), [0, 0, 0, 0, 0, 0, 0, 1]);
    assert_eq!(healthy(&cold, "/nothing", clock::now()), None);
}

/// A limit that is not checked must not be ignored.
#[test]
fn a_health_check_of_a_standby_with_a_condition_is_refused() {
    for (path, query) in [
        ("/replica", "lag=16MB"),
        ("/replica", "lag=1048576"),
        ("/async", "a=b&lag=1GB"),
        ("/read-only", "tag_site=west"),
    ] {
        let words = not_kept(path, Some(query)).unwrap();
        assert!(words.starts_with(&format!("found {path}?{query}, expected {path}: ")), "{words}");
    }
    for (path, query) in [
        ("/replica", None),
        ("/replica", Some("")),
        ("/primary", Some("lag=16MB")),
        ("/health", Some("lag=1")),
        ("/replica", Some("x=lag")),
    ] {
        assert_eq!(not_kept(path, query), None, "{path} {query:?}");
    }
}

/// HEALTH-H4: whoever routes by `/leader` or `/primary` must not be led to a host whose lease has ended.
#[test]
fn a_host_leads_until_its_lease_ends() {
    let mut primary = view(StateName::Primary, Role::Primary, "ready");
    let end = primary.at.saturating_add(Duration::from_secs(1));
    primary.holds_until = Some(end);
    let code = |view: &View, path: &str, at: MonoTime| checked(view, path, at).unwrap().as_u16();
    let before = end.0 - 1;
    for path in ["/", "/primary", "/master", "/read-write", "/leader", "/read-only", "/read-only-sync"] {
        assert_eq!(code(&primary, path, MonoTime(before)), 200, "{path}");
        assert_eq!(code(&primary, path, end), 503, "{path}");
    }
    primary.holds_until = None;
    assert_eq!(code(&primary, "/leader", primary.at), 503, "fenced");
    let mut following = view(StateName::Following, Role::Standby, "standby");
    following.holds_until = Some(end);
    for path in ["/leader", "/standby-leader", "/standby_leader", "/read-only-quorum"] {
        assert_eq!(code(&following, path, MonoTime(before)), 200, "{path}");
        assert_eq!(code(&following, path, end), 503, "{path}");
    }
    assert_eq!(code(&following, "/primary", following.at), 503);
}

/// `/leader` is for any holder, as Patroni has it; clients are led by `/primary`.
#[test]
fn a_holder_that_recovers_leads_and_takes_nothing() {
    let mut recovering = view(StateName::Starting, Role::Standby, "busy");
    recovering.holds_until = Some(recovering.at.saturating_add(Duration::from_secs(1)));
    let codes = ["/leader", "/primary", "/replica", "/read-only", "/standby-leader", "/health"]
        .map(|path| u8::from(healthy(&recovering, path, recovering.at).unwrap()));
    assert_eq!(codes, [1, 0, 0, 0, 0, 0]);
}

/// Nobody knows which standbys are synchronous, so none is said to be.
#[test]
fn no_host_is_a_synchronous_standby() {
    for (state, role, database) in [
        (StateName::Primary, Role::Primary, "ready"),
        (StateName::Following, Role::Standby, "standby"),
        (StateName::Standby, Role::Standby, "gone"),
    ] {
        let view = view(state, role, database);
        for path in ["/sync", "/synchronous", "/quorum"] {
            assert_eq!(checked(&view, path, view.at), Some(StatusCode::SERVICE_UNAVAILABLE), "{path} {state}");
        }
        assert!(not_kept("/sync", Some("lag=1MB")).is_some());
    }
}

/// HEALTH-H1, with times of the test. Over a socket the real clock counts, and on a busy machine the view may be too
/// old.
#[test]
fn an_old_state_is_not_used() {
    let primary = view(StateName::Primary, Role::Primary, "ready");
    let code = |path: &str, age: Duration| checked(&primary, path, primary.at.saturating_add(age));
    let young = STALE.saturating_sub(Duration::from_nanos(1));
    for path in ["/primary", "/liveness"] {
        assert_eq!(code(path, young), Some(StatusCode::OK), "{path}");
        assert_eq!(code(path, STALE), Some(StatusCode::SERVICE_UNAVAILABLE), "{path}");
    }
    assert_eq!(code("/replica", young), Some(StatusCode::SERVICE_UNAVAILABLE));
    assert_eq!(code("/nothing", young), None);
}

/// As in a simulation: without TCP.
#[tokio::test]
async fn requests_may_come_over_another_transport() {
    use crate::seams::{Dial, Wire};
    let (door, _asked, _dir) = door(Some("word"));
    let (guests, incoming) = mpsc::unbounded_channel();
    let serving = tokio::spawn(serve(incoming, door));
    let dial: Dial = Arc::new(move |_| {
        let guests = guests.clone();
        Box::pin(async move {
            let (ours, theirs) = tokio::io::duplex(4096);
            let guest: (Box<dyn Wire>, SocketAddr) = (Box::new(theirs), ([10, 0, 0, 2], 1).into());
            guests.send(guest).map_err(|_| std::io::Error::other("the server has ended"))?;
            Ok(Box::new(ours) as Box<dyn Wire>)
        })
    });
    let limit = Duration::from_secs(20);
    let status = crate::client::ask_over(&dial, "db1:8008", "/status", None, None, limit).await.unwrap();
    assert_eq!(status.code, 200);
    let nothing = crate::client::ask_over(&dial, "db1:8008", "/nothing", None, None, limit).await.unwrap();
    assert_eq!(nothing.code, 404);
    // HEALTH-H2: the sender's address comes with the connection.
    let body = serde_json::json!({});
    let refused = crate::client::ask_over(&dial, "db1:8008", "/pause", Some(&body), None, limit).await.unwrap();
    assert!(refused.code == 403 && refused.words().contains("10.0.0.2"), "{refused:?}");
    serving.abort();
}

fn door(token: Option<&str>) -> (Door, mpsc::Receiver<Asked>, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let (commands, asked) = mpsc::channel(1);
    let (shows, view) = watch::channel(Arc::new(view(StateName::Standby, Role::Standby, "gone")));
    // The receiver must stay readable.
    std::mem::forget(shows);
    let history = Arc::new(Mutex::new(History::open(dir.path()).unwrap()));
    let config = Arc::new(AgentConfig { name: "db1".into(), ..AgentConfig::default() });
    let schedule = Arc::new(Schedule::open(dir.path()));
    (
        Door {
            config,
            token: token.map(Into::into),
            challenges: Arc::default(),
            view,
            history,
            commands,
            schedule,
            dial: crate::client::over_tcp(),
            socket: None,
            known: Arc::default(),
            openers: Arc::new(|| Box::pin(std::future::ready(crate::host::PoolUsers::default()))),
            answers: Arc::new(Answers::new(Arc::new(|| Box::pin(std::future::ready(None))))),
            audit: None,
            tls: None,
        },
        asked,
        dir,
    )
}

#[test]
fn commands_are_for_the_socket_or_the_token() {
    let [here, far] = ["127.0.0.1:5", "10.0.0.9:5"].map(|from| Asker::Remote(from.parse().unwrap()));
    let (door, _asked, _dir) = door(Some("secret"));
    let with = |value: &str| HeaderMap::from_iter([(header::AUTHORIZATION, value.parse().unwrap())]);
    let may = |who: &Asker, headers: &HeaderMap| door.may_command(who, "/pause", headers);
    assert!(may(&Asker::Local, &HeaderMap::new()));
    assert!(!may(&here, &HeaderMap::new()), "any user of this host reaches loopback");
    assert!(!may(&far, &HeaderMap::new()));
    assert!(may(&here, &with("Bearer secret")));
    assert!(!may(&far, &with("Bearer secrex")));
    assert!(!may(&far, &with("secret")));
    assert!(may(&far, &with("Bearer secret")));
    let (open, _asked, _dir) = self::door(None);
    assert!(!open.may_command(&far, "/pause", &with("Bearer ")));
}

/// HEALTH-H1, HEALTH-H4: alerts go by these.
#[tokio::test]
async fn the_metrics_of_an_agent_that_hangs_claim_nothing() {
    let (mut door, _asked, _dir) = door(None);
    let well = || view(StateName::Primary, Role::Primary, "ready");
    let mut hangs = well();
    hangs.holds_until = Some(hangs.at);
    hangs.at = MonoTime(hangs.at.0.saturating_sub(10_000_000_000));
    for (shown, yes) in [(well(), 1), (hangs, 0)] {
        let (_shows, seen) = watch::channel(Arc::new(shown));
        door.view = seen;
        let text = metrics(State(door.clone())).await;
        for name in ["primary", "ready"] {
            let line = format!("holdfast_agent_{name}{{name=\"db1\",set=\"demo\"}} {yes}\n");
            assert!(text.contains(&line), "{line}: {text}");
        }
    }
}

#[tokio::test]
async fn differences_of_hosts_are_shown_and_counted() {
    use crate::facts::Difference;
    let (door, _asked, _dir) = door(None);
    let (host, fact, words) = ("db2".to_string(), "libc".to_string(), "2.36 on db1, 2.31 on db2".to_string());
    let difference = Difference { weight: Weight::Damage, host, fact, words };
    let own = Facts { libc: "2.36".into(), ..Facts::default() };
    *door.known.locked() = Known { own: Some(own.clone()), differences: vec![difference.clone()] };
    let text = metrics(State(door.clone())).await;
    let line = |weight: &str, count: u32| {
        format!("holdfast_agent_host_differences{{name=\"db1\",set=\"demo\",weight=\"{weight}\"}} {count}\n")
    };
    assert!(text.contains(&line("damage", 1)) && text.contains(&line("note", 0)), "{text}");
    let body = axum::body::to_bytes(status(State(door)).await.into_body(), 1 << 20).await.unwrap();
    let seen: View = serde_json::from_slice(&body).unwrap();
    assert_eq!(seen.added.differences, [difference]);
    let told = seen.added.facts.unwrap();
    assert!(told.libc == own.libc && told.unix_ms > 0, "the clock is that of the answer: {told:?}");
}

fn plan_of(answer: &crate::client::Answer) -> crate::plan::Plan {
    let body: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
    serde_json::from_value(body["plan"].clone()).unwrap()
}

#[tokio::test]
async fn asked_over_a_real_socket() {
    let (door, mut asked, _dir) = door(Some("secret"));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serving = tokio::spawn(serve(listener, door));
    let limit = Duration::from_secs(20);
    let get = async |path: &str| crate::client::ask(&address, path, None, None, limit).await.unwrap();
    assert_eq!(get("/primary").await.code, 503);
    assert_eq!(get("/nothing").await.code, 404);
    let lag = get("/replica?lag=16MB").await;
    assert_eq!(lag.code, 400);
    assert!(lag.words().contains("expected /replica:"), "{}", lag.words());
    assert_eq!((get("/replica").await.code, get("/primary?lag=16MB").await.code), (503, 503));
    assert_eq!(get("/nothing?lag=16MB").await.code, 404);
    assert_eq!(get("/history").await.body, "[]");
    assert!(get("/metrics").await.body.contains("holdfast_agent_primary{name=\"db1\",set=\"demo\"} 0"));
    let status = get("/status").await;
    assert_eq!(status.code, 200);
    let seen: View = serde_json::from_str(&status.body).unwrap();
    assert_eq!(seen.state, StateName::Standby);
    tokio::spawn(async move {
        while let Some((command, answer)) = asked.recv().await {
            let said = match command {
                Command::Pause => Ok("paused".to_string()),
                _ => Err(Refused("not now".into())),
            };
            let _ = answer.send(said);
        }
    });
    let post = async |path: &str, body: serde_json::Value| {
        crate::client::ask(&address, path, Some(&body), Some("secret"), limit).await.unwrap()
    };
    let answer = post("/pause", serde_json::json!({})).await;
    assert_eq!((answer.code, answer.words().as_str()), (200, "paused"));
    let answer = post("/failover", serde_json::json!({ "reason": "x" })).await;
    assert_eq!((answer.code, answer.words().as_str()), (412, "not now"));
    let answer = post("/switchover", serde_json::json!({ "candidate": "db2" })).await;
    assert_eq!(answer.code, 412);
    assert!(answer.words().contains("expected primary"), "{}", answer.words());
    assert_eq!(plan_of(&answer).to, "", "a refusal has its plan with it");
    assert_eq!(post("/claim", serde_json::json!({ "from": 1 })).await.code, 400);
    // A plan is told whether or not it may be carried out.
    let answer = post("/failover", serde_json::json!({ "dry_run": true, "candidate": "db1" })).await;
    assert_eq!(answer.code, 200);
    let plan = plan_of(&answer);
    assert_eq!((plan.to.as_str(), plan.checks.is_empty()), ("db1", false));
    // The same for a switchover: this host is not primary, and knows of no other.
    let answer = post("/switchover", serde_json::json!({ "dry_run": true })).await;
    assert_eq!(answer.code, 200);
    assert!(answer.words().contains("would be refused: db1 is in state standby"), "{}", answer.words());
    let plan = plan_of(&answer);
    assert_eq!((plan.kind, plan.from.as_str()), (crate::plan::Move::Switchover, "db1"));
    let answer = post("/switchover", serde_json::json!({ "leader": "db9" })).await;
    assert!(answer.code == 412 && answer.words().contains("`holdfast agent status`"), "{}", answer.words());
    let claim = serde_json::json!({ "from": "db9", "to": "db1", "set": "other", "within_ms": 1 });
    let answer = post("/claim", claim).await;
    assert!(answer.code == 412 && answer.words().contains("[peers] in the settings of db9"), "{}", answer.words());
    let claim = serde_json::json!({ "from": "db9", "to": "db3", "set": "demo", "within_ms": 1 });
    let answer = post("/claim", claim).await;
    assert!(answer.code == 412 && answer.words().contains("found a claim for db3"), "{}", answer.words());
    let answer = post("/switchover/cancel", serde_json::json!({})).await;
    assert!(answer.code == 412 && answer.words().contains("no switchover"), "{}", answer.words());
    serving.abort();
}

/// Of three other hosts one answers, one does not, and at the address of the third answers another one.
#[tokio::test]
async fn the_cluster_is_what_its_hosts_tell() {
    use crate::seams::{Dial, Wire};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let (mut door, _asked, _dir) = door(None);
    let mut config = AgentConfig::clone(&door.config);
    config.peers.0 = ["db2", "db3", "db4"].map(|name| (name.to_string(), format!("{name}:8008"))).into();
    door.config = Arc::new(config);
    let dial: Dial = Arc::new(|address| {
        Box::pin(async move {
            let name = match address.as_str() {
                "db2:8008" => "db2",
                "db4:8008" => "db9",
                _ => return Err(std::io::ErrorKind::ConnectionRefused.into()),
            };
            let body = serde_json::json!({
                "state": "running", "role": "primary", "timeline": 4,
                "patroni": { "name": name, "scope": "demo" },
                "holdfast": { "leader": true, "epoch": 9, "port": 5433 },
            });
            let (ours, mut wire) = tokio::io::duplex(4096);
            tokio::spawn(async move {
                let mut request = [0; 1024];
                let read = wire.read(&mut request).await.unwrap();
                assert!(request[..read].starts_with(b"GET /patroni "));
                wire.write_all(format!("HTTP/1.1 200 OK\r\n\r\n{body}").as_bytes()).await.unwrap();
            });
            Ok(Box::new(ours) as Box<dyn Wire>)
        })
    });
    door.dial = dial;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serving = tokio::spawn(serve(listener, door));
    let limit = Duration::from_secs(20);
    let get = async |path: &str| {
        let answer = crate::client::ask(&address, path, None, None, limit).await.unwrap();
        assert_eq!(answer.code, 200, "{path}");
        serde_json::from_str::<serde_json::Value>(&answer.body).unwrap()
    };
    let cluster = get("/cluster").await;
    let members = cluster["members"].as_array().unwrap();
    let shown: Vec<_> = members.iter().map(|one| (one["name"].as_str(), one["role"].as_str())).collect();
    assert_eq!(shown, [(Some("db1"), Some("replica")), (Some("db2"), Some("leader"))], "{cluster}");
    assert_eq!((&members[1]["host"], &members[1]["port"]), (&"db2".into(), &5433.into()), "{cluster}");
    assert_eq!(cluster["unanswered"], serde_json::json!(["db3", "db4"]));
    assert_eq!(get("/patroni").await["patroni"]["name"], "db1");
    assert_eq!(get("/config").await["ttl"], 3);
    // As Patroni's PATCH, which changes its settings: a success would be a lie.
    let body = serde_json::json!({ "ttl": 30 });
    for path in ["/config", "/cluster", "/patroni"] {
        let answer = crate::client::ask(&address, path, Some(&body), None, limit).await.unwrap();
        assert_eq!(answer.code, 405, "{path}");
    }
    serving.abort();
}

/// R12: a command without an answer may have been executed or not. One that was never accepted has not.
#[tokio::test]
async fn a_task_that_does_not_answer_leaves_the_outcome_unknown_and_one_that_takes_nothing_does_not() {
    let (door, mut asked, _dir) = door(None);
    let (one, mut others) = (door.command(Command::Pause), Vec::new());
    let code = |done: Result<String, Reply>| done.map_err(|reply| reply.code);
    assert_eq!(code(one.await), Err(StatusCode::GATEWAY_TIMEOUT));
    let (command, answer) = asked.recv().await.unwrap();
    assert!(command == Command::Pause && answer.is_closed(), "the task sees that nobody waits any more");
    for _ in 0..door.commands.capacity() {
        let (answer, answered) = oneshot::channel();
        door.commands.try_send((Command::Resume, answer)).unwrap();
        others.push(answered);
    }
    assert_eq!(code(door.command(Command::Pause).await), Err(StatusCode::SERVICE_UNAVAILABLE));
}

/// A client that opens connections and sends nothing uses up neither file descriptors nor the places of load balancers.
#[tokio::test]
async fn hundreds_of_idle_connections_do_not_block_others() {
    let (door, _asked, _dir) = door(None);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(serve(listener, door));
    let mut idle = Vec::new();
    for round in 0..6 {
        for _ in 0..100 {
            idle.push(tokio::net::TcpStream::connect(address).await.unwrap());
        }
        let limit = Duration::from_secs(20);
        let answer = crate::client::ask(&address.to_string(), "/status", None, None, limit).await.unwrap();
        assert_eq!(answer.code, 200, "round {round}");
    }
    // All but the newest were closed: their ends are to be seen here.
    let mut closed = 0;
    for socket in &mut idle[..600 - crate::listen::CONNECTIONS_MAX] {
        let mut byte = [0];
        let read = tokio::io::AsyncReadExt::read(socket, &mut byte);
        let read = tokio::time::timeout(Duration::from_secs(20), read).await.expect("closed");
        closed += usize::from(!matches!(read, Ok(1)));
    }
    assert_eq!(closed, 600 - crate::listen::CONNECTIONS_MAX);
    serving.abort();
}

/// A certificate of each of these.
fn certificates() -> tempfile::TempDir {
    use holdfast_tls::Role;
    use holdfast_tls::make::{Wanted, certificates};
    let dir = tempfile::tempdir().unwrap();
    let [one, two, ann, vic] = [("db1", Role::Host), ("db2", Role::Host), ("ann", Role::Admin), ("vic", Role::Viewer)]
        .map(|(name, role)| Wanted::new(name, role));
    certificates(dir.path(), &[one, two, ann, vic], 30).unwrap();
    dir
}

fn tls(dir: &std::path::Path, name: &str) -> holdfast_tls::Tls {
    let at = |name: String| Some(dir.join(name));
    let (certificate, key) = (at(format!("{name}.pem")), at(format!("{name}.key")));
    let files = holdfast_tls::TlsFiles { ca: at("ca.pem".into()), certificate, key };
    files.load(holdfast_tls::Role::Admin).unwrap().unwrap()
}

/// How the bearer of a certificate reaches agents, with the name that it expects there.
fn dial(dir: &std::path::Path, name: &str, address: &str, expects: &str) -> crate::seams::Dial {
    let connector = holdfast_tls::Dialer::from(&tls(dir, name)).connector().unwrap();
    crate::client::over_tls(connector, [(address.to_string(), expects.to_string())].into())
}

/// An agent db1 whose door has TLS, which answers every command.
async fn secured(dir: &std::path::Path, mode: holdfast_tls::HttpTls) -> (String, tokio::task::JoinHandle<()>) {
    secured_by(dir, mode, &tls(dir, "db1"), None).await
}

/// The same with this certificate and audit log.
async fn secured_by(
    dir: &std::path::Path,
    mode: holdfast_tls::HttpTls,
    own: &holdfast_tls::Tls,
    audit: Option<AgentAudit>,
) -> (String, tokio::task::JoinHandle<()>) {
    let (mut door, mut asked, kept) = door(Some("secret"));
    door.audit = audit;
    let mut config = AgentConfig::clone(&door.config);
    (config.tls.ca, config.http.tls) = (Some(dir.join("ca.pem")), Some(mode));
    config.peers.0 = ["db2", "db3"].map(|name| (name.to_string(), "127.0.0.1:1".to_string())).into();
    door.config = Arc::new(config);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let listener = Bounded::new(listener).secured(Some(own.acceptor()));
    door.tls = Some(own.clone());
    let serving = tokio::spawn(async move {
        let _kept = kept;
        let answering = async {
            while let Some((_, answer)) = asked.recv().await {
                let _ = answer.send(Ok("done".to_string()));
            }
        };
        let _ = tokio::join!(serve(listener, door), answering);
    });
    (address, serving)
}

/// HEALTH-H3 through the door: who gets what.
#[tokio::test]
async fn a_door_with_tls_answers_by_certificate() {
    use holdfast_tls::HttpTls;
    let dir = certificates();
    let (address, serving) = secured(dir.path(), HttpTls::Required).await;
    let limit = Duration::from_secs(20);
    let empty = serde_json::json!({});
    let claim = |from: &str| serde_json::json!({ "from": from, "to": "db1", "set": "demo", "within_ms": 1 });
    // LISTEN-L5: one that begins a handshake and goes no further keeps nobody waiting.
    let mut silent = tokio::net::TcpStream::connect(&address).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut silent, &[0x16]).await.unwrap();
    for (name, path, body, code) in [
        ("vic", "/status", None, 200),
        ("vic", "/primary", None, 503),
        ("vic", "/pause", Some(empty.clone()), 403),
        ("ann", "/pause", Some(empty.clone()), 200),
        ("ann", "/claim", Some(claim("db2")), 403),
        ("db2", "/status", None, 200),
        ("db2", "/pause", Some(empty.clone()), 403),
        ("db2", "/claim", Some(claim("db2")), 200),
        ("db2", "/claim", Some(claim("db3")), 403),
    ] {
        let dial = dial(dir.path(), name, &address, "db1");
        let answer = crate::client::ask_over(&dial, &address, path, body.as_ref(), None, limit).await.unwrap();
        assert_eq!(answer.code, code, "{name} {path} {body:?}: {answer:?}");
    }
    // The token goes on working beside certificates.
    let dial = dial(dir.path(), "vic", &address, "db1");
    let with_token = crate::client::ask_over(&dial, &address, "/pause", Some(&empty), Some("secret"), limit).await;
    assert_eq!(with_token.unwrap().code, 200);
    // Without TLS nothing is answered, whatever comes with it.
    for (path, body) in [("/primary", None), ("/status", None), ("/pause", Some(&empty))] {
        let answer = crate::client::ask(&address, path, body, None, limit).await.unwrap();
        assert!(answer.code == 403 && answer.words().contains("use https"), "{path}: {answer:?}");
    }
    serving.abort();
}

/// A load balancer without TLS learns whether the host is primary, no name, and changes nothing.
#[tokio::test]
async fn plain_checks_are_for_health_alone() {
    let dir = certificates();
    let (address, serving) = secured(dir.path(), holdfast_tls::HttpTls::Checks).await;
    let limit = Duration::from_secs(20);
    let check = crate::client::ask(&address, "/primary", None, None, limit).await.unwrap();
    assert!(check.code == 503 && !check.body.contains("db1") && !check.body.contains("demo"), "{check:?}");
    let viewer = dial(dir.path(), "vic", &address, "db1");
    let told = crate::client::ask_over(&viewer, &address, "/primary", None, None, limit).await.unwrap();
    assert!(told.body.contains("db1"), "{told:?}");
    let page = crate::client::ask_over(&viewer, &address, "/metrics", None, None, limit).await.unwrap().body;
    for what in ["expires_timestamp_seconds", "warned_timestamp_seconds"] {
        let line = format!("holdfast_certificate_{what}{{name=\"db1\",set=\"demo\",kind=\"own\"}} ");
        assert!(page.contains(&line), "{line}: {page}");
    }
    assert!(page.contains("holdfast_certificate_files_unusable{name=\"db1\",set=\"demo\"} 0\n"), "{page}");
    for path in ["/status", "/patroni", "/cluster", "/config", "/history", "/metrics", "/challenge"] {
        assert_eq!(crate::client::ask(&address, path, None, None, limit).await.unwrap().code, 403, "{path}");
    }
    // Not with the token in clear either.
    let mut stream = tokio::net::TcpStream::connect(&address).await.unwrap();
    let request = "POST /pause HTTP/1.0\r\nAuthorization: Bearer secret\r\nContent-Length: 2\r\n\r\n{}";
    tokio::io::AsyncWriteExt::write_all(&mut stream, request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let read = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut answer);
    tokio::time::timeout(limit, read).await.unwrap().unwrap();
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.0 403 ") || answer.starts_with("HTTP/1.1 403 "), "{answer}");
    serving.abort();
}

/// PEER-N1: a host of this cluster that listens at the address of another one is not believed, and gets no request.
#[tokio::test]
async fn another_host_is_no_peer() {
    let dir = certificates();
    let (address, serving) = secured(dir.path(), holdfast_tls::HttpTls::Required).await;
    let limit = Duration::from_secs(20);
    let wrong = dial(dir.path(), "ann", &address, "db2");
    let error = crate::client::ask_over(&wrong, &address, "/pause", Some(&serde_json::json!({})), None, limit).await;
    let error = error.unwrap_err();
    let is_named = error.to_string().contains("found the certificate of host db1, expected that of db2");
    assert!(matches!(error, crate::client::ClientError::NotSent { .. }) && is_named, "{error}");
    serving.abort();
}
