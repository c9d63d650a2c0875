//! The program as people run it, against gateways that have only an admin door: following the leader, exit codes,
//! output formats.

use crate::fake::{self, Mood, Shared};
use serde_json::Value;
use std::process::Output;
use std::time::{Duration, Instant};

/// Runs the program; nobody is there to answer questions.
pub async fn run(api: &str, args: &[&str]) -> Output {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_holdfast"));
    command.env_clear().args(args).env("HOLDFAST_API", api).stdin(std::process::Stdio::null()).kill_on_drop(true);
    command.output().await.unwrap()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Runs the program, expects this exit code, and returns standard output.
pub async fn expect(code: i32, api: &str, args: &[&str]) -> String {
    let output = run(api, args).await;
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{args:?}\nstdout: {out}\nstderr: {err}");
    out
}

/// Runs the program with `--output json` and expects success.
pub async fn json(api: &str, args: &[&str]) -> Value {
    let out = expect(0, api, &[args, &["--output", "json"]].concat()).await;
    assert_eq!(out.trim_end().lines().count(), 1, "one line: {out}");
    serde_json::from_str(&out).unwrap()
}

/// Runs the program with `--output json`, expects failure, and returns the error.
pub async fn error(code: i32, api: &str, args: &[&str]) -> Value {
    let output = run(api, &[args, &["--output", "json"]].concat()).await;
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {err}");
    let value: Value = serde_json::from_str(err.lines().last().unwrap_or("")).unwrap();
    assert_eq!(value["error"]["exit"], code);
    value["error"].clone()
}

fn set_mood(world: &Shared, at: usize, mood: Mood) {
    world.lock().unwrap().gateways[at].mood = mood;
}

pub fn calls(world: &Shared) -> Vec<String> {
    std::mem::take(&mut world.lock().unwrap().calls)
}

const DEMO: &str =
    "[[sets]]\nname = \"demo\"\nstore = \"file:///srv/store\"\nvolumes = { vol1 = \"1GiB\", vol2 = \"64MiB\" }\n";

/// Three gateways with a cluster and a set; g1 leads the cluster group, g3 the set.
pub async fn cluster() -> (Shared, String) {
    let world = fake::start(3).await;
    let api = fake::api(&world);
    bootstrap(&world, &api, DEMO, 0).await;
    calls(&world);
    (world, api)
}

async fn bootstrap(world: &Shared, api: &str, sets: &str, code: i32) -> String {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("cluster.toml");
    std::fs::write(&file, fake::plan(world, sets)).unwrap();
    expect(code, api, &["cluster", "bootstrap", "--timeout", "3s", "--config", file.to_str().unwrap()]).await
}

#[tokio::test]
async fn bootstrap_makes_what_is_missing_and_nothing_twice() {
    let world = fake::start(3).await;
    let api = fake::api(&world);
    let out = bootstrap(&world, &api, DEMO, 0).await;
    for line in [
        "gateway g2               adopted as m2",
        "volume demo/vol2         created with 64MiB",
        "set demo                 served by g3",
    ] {
        assert!(out.contains(line), "{line:?} in {out}");
    }
    let again = bootstrap(&world, &api, DEMO, 0).await;
    assert!(again.contains("nothing was changed") && !again.contains("\n+"), "{again}");
    assert!(world.lock().unwrap().changes.values().all(|&times| times == 1));
}

#[tokio::test]
async fn bootstrap_goes_on_after_a_crash_between_any_two_steps() {
    // Some gateways are adopted already: their ids are kept, and the others get free ids.
    let world = fake::start(3).await;
    {
        let mut world = world.lock().unwrap();
        world.gateways[1].cluster_id = holdfast_api::hex128(77);
        world.gateways[1].member = 1;
    }
    let out = bootstrap(&world, &fake::api(&world), "", 0).await;
    assert!(out.contains("g2               is m1 already") && out.contains("g1               adopted as m2"), "{out}");
    let ids: Vec<u64> = world.lock().unwrap().gateways.iter().map(|gateway| gateway.member).collect();
    assert_eq!(ids, [2, 1, 3]);
    assert_eq!(world.lock().unwrap().gateways[0].cluster_id, holdfast_api::hex128(77));
}

#[tokio::test]
async fn bootstrap_founds_nothing_while_a_gateway_is_silent() {
    let world = fake::start(3).await;
    set_mood(&world, 2, Mood::Silent);
    bootstrap(&world, &fake::api(&world), DEMO, 4).await;
    assert!(world.lock().unwrap().gateways.iter().all(|gateway| gateway.member == 0));
}

#[tokio::test]
async fn bootstrap_refuses_gateways_of_two_clusters() {
    let world = fake::start(2).await;
    for (at, gateway) in world.lock().unwrap().gateways.iter_mut().enumerate() {
        gateway.cluster_id = holdfast_api::hex128(at as u128 + 1);
        gateway.member = 1;
    }
    bootstrap(&world, &fake::api(&world), DEMO, 3).await;
}

#[tokio::test]
async fn bootstrap_leaves_a_wiped_disk_to_a_person_who_joins_it() {
    let (world, api) = cluster().await;
    {
        let mut world = world.lock().unwrap();
        let gateway = &mut world.gateways[1];
        (gateway.disk, gateway.cluster_id, gateway.member, gateway.initialised) =
            (holdfast_api::hex128(99), String::new(), 0, false);
    }
    bootstrap(&world, &api, DEMO, 3).await;
    assert_eq!(world.lock().unwrap().gateways[1].member, 0, "not adopted by itself");
    let gateway = world.lock().unwrap().gateways[1].api.clone();
    let refused = error(3, &api, &["gateway", "add", &gateway]).await;
    assert_eq!(refused["code"], "exists");
    let joined = json(&api, &["gateway", "replace", "m2", "--by", &gateway, "--yes"]).await;
    assert_eq!((joined["member"].as_u64(), joined["caught_up"].as_bool()), (Some(4), Some(true)));
    assert_eq!(world.lock().unwrap().gateways[1].member, 4);
    bootstrap(&world, &api, DEMO, 0).await;
}

#[tokio::test]
async fn bootstrap_lets_a_new_gateway_of_the_plan_join() {
    let (world, _) = cluster().await;
    fake::add(&world, "127.0.0.1:0").await;
    let out = bootstrap(&world, &fake::api(&world), DEMO, 0).await;
    assert!(out.contains("gateway g4               joined as m4"), "{out}");
    assert_eq!(world.lock().unwrap().gateways[3].member, 4);
}

#[tokio::test]
async fn any_gateway_finds_the_leader() {
    let (world, api) = cluster().await;
    let g1 = api.split(',').next().unwrap().to_string();
    let shown = json(&g1, &["set", "show", "demo"]).await;
    assert_eq!(shown["leader"]["name"], "g3");
    assert_eq!(calls(&world), ["g1 get_set", "g3 get_set"]);
    let grant = json(&g1, &["lease", "acquire", "demo", "--owner", "db1"]).await;
    assert_eq!(calls(&world), ["g1 acquire_lease", "g3 acquire_lease"]);
    let token = grant["token"].as_str().unwrap();
    assert_eq!(grant["exports"][0], format!("nbd://127.0.0.1:10811/demo/vol1%3Ftoken={token}&conn=0&gen=1"));
}

#[tokio::test]
async fn without_a_hint_the_others_are_asked_in_turn() {
    let (world, api) = cluster().await;
    set_mood(&world, 0, Mood::NoHint);
    set_mood(&world, 1, Mood::NoHint);
    json(&api, &["lease", "show", "demo"]).await;
    assert_eq!(calls(&world), ["g1 get_lease", "g2 get_lease", "g3 get_lease"]);
}

#[tokio::test]
async fn a_dead_first_gateway_is_passed_over() {
    let (world, api) = cluster().await;
    // Nobody listens on port 1.
    json(&format!("127.0.0.1:1,{api}"), &["set", "list"]).await;
    assert_eq!(calls(&world), ["g1 list_sets"]);
}

#[tokio::test]
async fn a_stopped_gateway_is_noticed_and_passed_over() {
    let (world, api) = cluster().await;
    set_mood(&world, 0, Mood::Silent);
    let started = Instant::now();
    json(&api, &["set", "list"]).await;
    assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
    assert_eq!(calls(&world), ["g1 list_sets", "g2 list_sets"]);
}

#[tokio::test]
async fn a_busy_gateway_is_asked_again() {
    let (world, api) = cluster().await;
    set_mood(&world, 2, Mood::Busy(2));
    json(&api, &["lease", "show", "demo"]).await;
    assert_eq!(calls(&world), ["g1 get_lease", "g3 get_lease", "g3 get_lease", "g3 get_lease"]);
}

#[tokio::test]
async fn two_gateways_that_name_each_other_end_in_unreachable() {
    let (world, api) = cluster().await;
    let doors: Vec<String> = api.split(',').map(str::to_string).collect();
    set_mood(&world, 0, Mood::Hint(doors[1].clone()));
    set_mood(&world, 1, Mood::Hint(doors[0].clone()));
    let error = error(4, &doors[..2].join(","), &["lease", "show", "demo", "--timeout", "1s"]).await;
    assert_eq!(error["code"], "unreachable");
    let asked = calls(&world).len();
    assert!((6..60).contains(&asked), "bounded retries: {asked}");
}

#[tokio::test]
async fn a_lost_answer_is_asked_for_again_under_the_same_request_id() {
    let (world, api) = cluster().await;
    set_mood(&world, 2, Mood::Forgets(1));
    json(&api, &["lease", "acquire", "demo", "--owner", "db1"]).await;
    let world = world.lock().unwrap();
    assert_eq!(world.sets["demo"].epoch, 10, "one grant");
    assert_eq!(world.calls.iter().filter(|call| *call == "g3 acquire_lease").count(), 2);
}

/// The first attempt may be the reason why the second is refused.
#[tokio::test]
async fn a_refusal_after_a_lost_answer_does_not_say_that_nothing_happened() {
    let (world, api) = cluster().await;
    let grant = json(&api, &["lease", "acquire", "demo", "--owner", "db1"]).await;
    set_mood(&world, 2, Mood::Forgets(1));
    let token = grant["token"].as_str().unwrap();
    let again = error(5, &api, &["lease", "continue", "demo", "--owner", "db1", "--token", token]).await;
    assert_eq!(again["code"], "stale-token");
    assert!(again["message"].as_str().unwrap().contains("an earlier attempt of this command had no answer"), "{again}");
}

#[tokio::test]
async fn an_answer_that_never_comes_is_unknown_for_a_change_and_unreachable_for_a_question() {
    let (world, api) = cluster().await;
    set_mood(&world, 2, Mood::Silent);
    let change = error(5, &api, &["lease", "acquire", "demo", "--owner", "db1", "--timeout", "1s"]).await;
    assert_eq!(change["code"], "unknown");
    let question = error(4, &api, &["lease", "show", "demo", "--timeout", "1s"]).await;
    assert_eq!(question["code"], "unreachable");
    let nobody = error(4, "127.0.0.1:1", &["lease", "acquire", "demo", "--owner", "db1", "--timeout", "300ms"]).await;
    assert_eq!(nobody["code"], "unreachable", "never sent: nothing can have happened");
}

#[tokio::test]
async fn refusals_keep_their_code_and_say_what_to_do() {
    let (_world, api) = cluster().await;
    expect(0, &api, &["lease", "acquire", "demo", "--owner", "db1"]).await;
    let held = error(3, &api, &["lease", "acquire", "demo", "--owner", "db2"]).await;
    assert_eq!((held["code"].as_str(), held["message"].as_str()), (Some("held"), Some("demo is held by db1 at g3")));
    assert!(held["next"].as_str().unwrap().contains("holdfast failover"));
    assert_eq!(error(3, &api, &["set", "show", "nothing"]).await["code"], "not-found");
    assert_eq!(error(3, &api, &["lease", "release", "demo", "--token", &"0".repeat(32)]).await["code"], "stale-token");
    let fresh = fake::start(1).await;
    assert_eq!(error(3, &fake::api(&fresh), &["cluster", "status"]).await["code"], "not-adopted");
    let output = run(&api, &["set", "show", "nothing"]).await;
    assert_eq!(
        text(&output.stderr),
        "error: there is no set nothing\nnext:  list what exists: `holdfast set list`, `holdfast gateway list`, `holdfast snapshot list SET`, `holdfast volume list SET`\n"
    );
}

#[tokio::test]
async fn a_lease_is_continued_and_renewed_by_its_newest_token() {
    let (world, api) = cluster().await;
    let grant = json(&api, &["lease", "acquire", "demo", "--owner", "db1"]).await;
    let old = grant["token"].as_str().unwrap();
    let renewed = json(&api, &["lease", "renew", "demo", "--token", old]).await;
    assert_eq!(renewed["lease"]["remaining_ms"], grant["lease"]["ttl_ms"]);
    let goes_on = json(&api, &["lease", "continue", "demo", "--owner", "db1", "--token", old]).await;
    let new = goes_on["token"].as_str().unwrap();
    assert_ne!(new, old);
    assert!(goes_on["lease"]["epoch"].as_u64() > grant["lease"]["epoch"].as_u64());
    assert!(goes_on["exports"][0].as_str().unwrap().contains(new), "{goes_on}");
    for stale in [
        &["lease", "renew", "demo", "--token", old][..],
        &["lease", "renew", "demo", "--token", new, "--epoch", "1"],
        &["lease", "continue", "demo", "--owner", "db1", "--token", old],
        &["lease", "continue", "demo", "--owner", "db2", "--token", new],
    ] {
        assert_eq!(error(3, &api, stale).await["code"], "stale-token", "{stale:?}");
    }
    let text_of = run(&api, &["lease", "renew", "demo", "--token", new]).await;
    assert!(text(&text_of.stdout).starts_with("set demo is held by db1"), "{}", text(&text_of.stdout));
    json(&api, &["lease", "release", "demo", "--token", new]).await;
    assert_eq!(error(3, &api, &["lease", "renew", "demo", "--token", new]).await["code"], "stale-token");
    assert!(world.lock().unwrap().sets["demo"].lease.is_none());
}

#[tokio::test]
async fn a_lease_is_released_by_its_token_once() {
    let (_world, api) = cluster().await;
    let grant = json(&api, &["lease", "acquire", "demo", "--owner", "db1"]).await;
    let token = grant["token"].as_str().unwrap();
    assert_eq!(json(&api, &["lease", "show", "demo"]).await["lease"]["owner"], "db1");
    assert_eq!(
        error(3, &api, &["lease", "release", "demo", "--token", token, "--epoch", "9"]).await["code"],
        "stale-token"
    );
    assert_eq!(json(&api, &["lease", "release", "demo", "--token", token]).await["released"], true);
    assert_eq!(json(&api, &["lease", "release", "demo", "--token", token]).await["released"], false);
}

#[tokio::test]
async fn usage_errors_ask_nobody() {
    let (world, api) = cluster().await;
    for args in [
        &["set", "create", "demo", "--store", "ftp://x", "--volume", "v=1GiB"][..],
        &["set", "create", "demo", "--store", "file:///x", "--volume", "v=1GB"],
        &["set", "create", "demo", "--store", "file:///x", "--volume", "v=1000B"],
        &["set", "create", "a/b", "--store", "file:///x", "--volume", "v=1GiB"],
        &["failover", "demo"],
        &["failover", "demo", "--candidate", "g1", "--ttl", "3s"],
        &["gateway", "add", "nowhere"],
        &["cluster", "bootstrap", "--config", "/nonexistent/file"],
        &["set", "list", "--timeout", "soon"],
        &["set", "list", "--api", "nowhere"],
        &["nonsense"],
    ] {
        expect(2, &api, args).await;
    }
    assert_eq!(calls(&world), [""; 0]);
}

/// Nobody listens on port 1.
#[tokio::test]
async fn stores_are_checked_without_a_gateway_and_keep_nothing() {
    let (dir, nobody) = (tempfile::tempdir().unwrap(), "127.0.0.1:1");
    let url = |path: &str| format!("file://{}", dir.path().join(path).display());
    let good = url("store");
    let shown = json(nobody, &["store", "check", &good]).await["stores"][0].clone();
    assert!(shown["store"] == good.as_str() && shown["fit"] == true && shown["put_ms"].is_number(), "{shown}");
    assert_eq!(std::fs::read_dir(dir.path().join("store/check")).unwrap().count(), 0);
    assert!(expect(0, nobody, &["store", "check", &good]).await.contains("yes"));
    // A directory that cannot be created.
    std::fs::write(dir.path().join("file"), "").unwrap();
    let bad = url("file/store");
    let refused = error(1, nobody, &["store", "check", &good, &bad]).await;
    assert!(refused["message"].as_str().unwrap().starts_with(&format!("{bad}: not checked: ")), "{refused}");
    assert_eq!(error(2, nobody, &["store", "check", "ftp://x"]).await["code"], "usage");
}

#[tokio::test]
async fn switchover_shows_before_and_after() {
    let (world, api) = cluster().await;
    let moved = json(&api, &["switchover", "demo", "--to", "g2"]).await;
    assert_eq!(
        (moved["before"]["leader"]["name"].as_str(), moved["after"]["leader"]["name"].as_str()),
        (Some("g3"), Some("g2"))
    );
    assert_eq!(moved["already"], false);
    let again = expect(0, &api, &["switchover", "demo", "--to", "g2"]).await;
    assert!(again.contains("g2 already serves demo."), "{again}");
    assert_eq!(world.lock().unwrap().sets["demo"].term, 4);
}

#[tokio::test]
async fn failover_asks_and_fences() {
    let (world, api) = cluster().await;
    expect(0, &api, &["lease", "acquire", "demo", "--owner", "db1"]).await;
    calls(&world);
    let declined = error(6, &api, &["failover", "demo", "--candidate", "g2"]).await;
    assert!(declined["next"].as_str().unwrap().contains("--yes"));
    assert!(!calls(&world).iter().any(|call| call.ends_with("failover")), "nothing was done");
    let out = expect(0, &api, &["failover", "demo", "--candidate", "g2", "--owner", "db2", "--yes"]).await;
    let rows: Vec<Vec<&str>> = out.lines().take(3).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[1], ["before", "g3", "eu", "3", "e10", "db1", "token"]);
    assert_eq!(rows[2], ["after", "g2", "eu", "4", "e30", "db2", "token"]);
    assert!(out.contains("db1 was fenced (epoch e10)."), "{out}");
    let token = world.lock().unwrap().sets["demo"].lease.as_ref().unwrap().1.clone();
    assert!(
        out.contains(&format!("nbd://127.0.0.1:10810/demo/vol1%3Ftoken={token}&conn=0&gen=1")),
        "at g2, by the token that counts there: {out}"
    );
}

#[tokio::test]
async fn failover_shows_an_old_view_when_nobody_leads() {
    let (world, api) = cluster().await;
    for at in 0..3 {
        // Each gateway names another leader, as while a quorum is lost.
        set_mood(&world, at, Mood::Hint(api.split(',').nth((at + 1) % 3).unwrap().to_string()));
    }
    let error = error(4, &api, &["failover", "demo", "--candidate", "g2", "--yes", "--timeout", "1s"]).await;
    assert!(
        error["message"].as_str().unwrap().starts_with("fail demo over to g2"),
        "got as far as the failover itself: {error}"
    );
}

#[tokio::test]
async fn status_names_who_is_unreachable() {
    let (world, api) = cluster().await;
    set_mood(&world, 1, Mood::Silent);
    let out = expect(0, &api, &["cluster", "status"]).await;
    let row = |start: &str| {
        out.lines()
            .find(|line| line.starts_with(start))
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            .unwrap_or_default()
    };
    // With the whole message the table would be too wide.
    assert_eq!(row("m2")[5], "unreachable…", "{out}");
    assert_eq!(out.lines().filter(|line| *line == "m2 g2: unreachable: no answer").count(), 1, "{out}");
    let widest = out.lines().map(|line| line.chars().count()).max();
    assert!(widest <= Some(100), "{widest:?}: {out}");
    assert_eq!(row("m1")[5..], ["ready", "1", "cluster", "3MiB", "of", "8GiB"], "{out}");
    let status = json(&api, &["cluster", "status"]).await;
    assert_eq!(status["members"][0]["node"]["groups"][0]["role"], "leader", "roles are words");
}

#[tokio::test]
async fn removing_a_member_asks() {
    let (world, api) = cluster().await;
    expect(6, &api, &["gateway", "remove", "m3"]).await;
    expect(3, &api, &["gateway", "remove", "m9", "--yes"]).await;
    expect(0, &api, &["gateway", "remove", "3", "--yes"]).await;
    assert_eq!(world.lock().unwrap().members.len(), 2);
}

#[tokio::test]
async fn replacing_a_member_asks() {
    let (world, api) = cluster().await;
    let gateway = fake::add(&world, "127.0.0.1:0").await;
    let replace = ["gateway", "replace", "m2", "--by", &gateway];
    let declined = error(6, &api, &replace).await;
    assert!(declined["next"].as_str().unwrap().contains("--yes"), "{declined}");
    let changes = ["join_member", "adopt"];
    let done = calls(&world).into_iter().filter(|call| changes.iter().any(|change| call.ends_with(change)));
    assert_eq!(done.collect::<Vec<_>>(), [""; 0], "nothing was done");
    // If it cannot be done, the command says so before it asks for confirmation.
    expect(3, &api, &["gateway", "replace", "m9", "--by", &gateway]).await;
    let replaced = json(&api, &[&replace[..], &["--yes"]].concat()).await;
    assert_eq!((&replaced["member"], &replaced["replaced"]), (&Value::from(4), &Value::from(2)));
    // Adding a gateway loses nothing, so no confirmation is needed.
    let another = fake::add(&world, "127.0.0.1:0").await;
    assert_eq!(json(&api, &["gateway", "add", &another]).await["member"], 5);
}

#[tokio::test]
async fn deleting_a_snapshot_asks() {
    let (world, api) = cluster().await;
    let snapshot =
        |id: &str, name: &str| holdfast_api::v1::Snapshot { id: id.into(), name: name.into(), ..Default::default() };
    world.lock().unwrap().sets.get_mut("demo").unwrap().snapshots = vec![snapshot("a", "monday"), snapshot("b", "two")];
    let names = || -> Vec<String> {
        world.lock().unwrap().sets["demo"].snapshots.iter().map(|snapshot| snapshot.name.clone()).collect()
    };
    let delete = ["snapshot", "delete", "demo@monday"];
    let declined = error(6, &api, &delete).await;
    assert!(declined["next"].as_str().unwrap().contains("--yes"), "{declined}");
    assert_eq!(names(), ["monday", "two"], "nothing was done");
    assert_eq!(json(&api, &[&delete[..], &["--yes"]].concat()).await["deleted"], true);
    assert_eq!(names(), ["two"]);
    // Nothing can be lost, so no confirmation is needed.
    assert_eq!(json(&api, &delete).await["deleted"], false);
}

#[tokio::test]
async fn a_checkpoint_is_waited_for() {
    let (_world, api) = cluster().await;
    let said = json(&api, &["set", "checkpoint", "demo"]).await;
    assert_eq!((&said["at_index"], &said["checkpoint_index"]), (&Value::from(40), &Value::from(42)));
    let text = expect(0, &api, &["set", "checkpoint", "demo"]).await;
    assert_eq!(text.trim_end(), "set demo is in the store up to log index 42 of generation 0");
    let error = error(3, &api, &["set", "checkpoint", "other"]).await;
    assert_eq!(error["code"], "not-found");
}

/// No gateway is asked before the stores have been read.
#[tokio::test]
async fn a_recovery_needs_a_set_and_a_key() {
    let (world, api) = cluster().await;
    let dir = tempfile::tempdir().unwrap();
    let (key, plan) = (dir.path().join("key"), dir.path().join("plan.toml"));
    crate::keys::write_key(&key);
    std::fs::write(&plan, fake::plan(&world, "")).unwrap();
    let (key, plan) = (key.to_str().unwrap(), plan.to_str().unwrap());
    let store = format!("file://{}", dir.path().join("store").display());
    calls(&world);
    let recover = ["cluster", "recover", "--from-store", &store, "--config", plan];
    let recover_by_key = [&recover[..], &["--key-file", key]].concat();
    let verify = ["verify", "--store", &store, "--key-file", key];
    // A wrong path, or one that is not mounted: the command does not create it.
    for wrong in [&recover_by_key[..], &verify[..]] {
        let none = error(2, &api, wrong).await;
        assert!(none["message"].as_str().unwrap().contains("is not there"), "{none}");
    }
    assert!(!dir.path().join("store").exists());
    // A store without any set: nothing was checked, so nothing is reported as clean.
    std::fs::create_dir_all(dir.path().join("store/.holdfast")).unwrap();
    for empty in [&recover_by_key[..], &verify[..]] {
        let none = error(3, &api, empty).await;
        assert!(none["message"].as_str().unwrap().contains("found no set"), "{none}");
    }
    assert_eq!(calls(&world), Vec::<String>::new());
    expect(2, &api, &recover).await;
}

#[tokio::test]
async fn a_gateway_is_drained_listed_and_undrained() {
    let (world, api) = cluster().await;
    let drained = json(&api, &["gateway", "drain", "g3"]).await;
    assert_eq!((&drained["member"], &drained["idle"]), (&Value::from(3), &Value::from(true)));
    let listed = json(&api, &["gateway", "list"]).await;
    let g3 = &listed["gateways"][2];
    assert_eq!((&g3["name"], &g3["standing"]), (&Value::from("g3"), &Value::from("drained")));
    assert_eq!(g3["leads"].as_array().map(Vec::len), Some(0));
    assert_eq!(listed["gateways"][0]["leads"], serde_json::json!(["cluster", "demo"]));
    let shown = expect(0, &api, &["gateway", "list"]).await;
    assert!(shown.contains("m3      g3       eu      gateway  drained"), "{shown}");
    json(&api, &["gateway", "undrain", "m3"]).await;
    assert_eq!(world.lock().unwrap().members[2].standing, "active");
    let none = error(3, &api, &["gateway", "drain", "g7"]).await;
    assert!(none["message"].as_str().unwrap().contains("expected one of g1 (m1), g2 (m2), g3 (m3)"), "{none}");
}

#[tokio::test]
async fn only_the_same_disk_moves_to_another_address() {
    let (world, api) = cluster().await;
    let g2 = world.lock().unwrap().gateways[1].api.clone();
    assert_eq!(error(3, &api, &["gateway", "update", "g1", "--address", &g2]).await["code"], "other-disk");
    let said = json(&api, &["gateway", "update", "g2", "--address", &g2]).await;
    assert_eq!(said["addresses"]["api"], g2.as_str());
}

/// Progress goes to standard error, one JSON value per line for programs; only the result goes to standard output.
#[tokio::test]
async fn progress_is_json_for_programs() {
    let (world, api) = cluster().await;
    let gateway = fake::add(&world, "127.0.0.1:0").await;
    let output = run(&api, &["gateway", "add", &gateway, "--output", "json"]).await;
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    let progress: Value = serde_json::from_str(err.lines().last().unwrap()).unwrap();
    assert_eq!(progress["progress"]["groups_done"], 2, "{err}");
    assert_eq!(serde_json::from_str::<Value>(&out).unwrap()["caught_up"], true);
}

/// The stores of the set in the fake world.
fn lies(world: &Shared) -> String {
    world.lock().unwrap().sets["demo"].store.clone()
}

#[tokio::test]
async fn stores_are_changed_by_their_whole_list_and_waited_for() {
    let (world, api) = cluster().await;
    let to = ["--store", "file:///srv/store", "--store", "file:///b", "--store", "file:///c"];
    let change = [&["set", "stores", "change", "demo"][..], &to].concat();
    let looked = json(&api, &[&change[..], &["--dry-run"]].concat()).await;
    assert_eq!((looked["changed"].as_bool(), looked["done"].as_bool()), (Some(true), Some(false)), "{looked}");
    assert_eq!(lies(&world), "file:///srv/store", "only looked");
    // No store is removed, so no confirmation is needed.
    let done = json(&api, &[&change[..], &["--wait"]].concat()).await;
    let three = "c=2 w=2 file:///srv/store file:///b file:///c";
    assert_eq!((done["done"].as_bool(), done["placement"].as_str()), (Some(true), Some(three)), "{done}");
    assert_eq!(lies(&world), three);
    let again = json(&api, &change).await;
    assert_eq!((again["changed"].as_bool(), again["done"].as_bool()), (Some(false), Some(true)), "{again}");
    assert!(calls(&world).iter().all(|call| !call.contains("g2")), "group 0's leader and the set's");
}

#[tokio::test]
async fn a_store_is_let_go_only_when_somebody_says_so() {
    let (world, api) = cluster().await;
    let replace = ["set", "stores", "replace", "demo", "file:///srv/store", "file:///b"];
    assert_eq!(error(6, &api, &replace).await["code"], "declined");
    assert_eq!(lies(&world), "file:///srv/store");
    world.lock().unwrap().hold_stores = true;
    let out = expect(0, &api, &[&replace[..], &["--yes"]].concat()).await;
    assert!(out.starts_with("the change has started: ") && out.contains("set stores abandon demo"), "{out}");
    assert_eq!(lies(&world), "file:///srv/store | c=2 file:///b");
    let late = error(5, &api, &[&replace[..], &["--yes", "--wait=700ms"]].concat()).await;
    assert!(late["message"].as_str().unwrap().contains("is not complete yet"), "{late}");
    let other = error(3, &api, &["set", "stores", "add", "demo", "file:///c", "file:///d"]).await;
    assert_eq!(other["message"], "one change at a time");
    let shown = json(&api, &["set", "stores", "show", "demo"]).await;
    assert_eq!((shown["phase"].as_str(), shown["from_store"].as_str()), (Some("filling"), Some("file:///srv/store")));
    assert_eq!(shown["stores"][1]["part"], "joins");
    for looks in [["set", "list"], ["cluster", "status"]] {
        let out = expect(0, &api, &looks).await;
        assert!(out.contains("\ndemo: stores filling: "), "{out}");
    }
    assert!(expect(0, &api, &["set", "show", "demo"]).await.contains("change of stores      filling: "));
    json(&api, &["set", "stores", "abandon", "demo"]).await;
    assert_eq!(lies(&world), "file:///srv/store");
    assert!(expect(0, &api, &["set", "stores", "abandon", "demo"]).await.contains("are not being changed"));
}

#[tokio::test]
async fn what_makes_no_list_is_refused_before_anybody_is_asked() {
    let (world, api) = cluster().await;
    let two = error(3, &api, &["set", "stores", "add", "demo", "file:///b"]).await;
    assert!(two["next"].as_str().unwrap().contains("holdfast set stores change demo"), "{two}");
    let gone = error(3, &api, &["set", "stores", "drain", "demo", "file:///b"]).await;
    assert!(gone["message"].as_str().unwrap().contains("its stores are file:///srv/store"), "{gone}");
    error(2, &api, &["set", "stores", "change", "demo", "--store", "file:///a", "--store", "file:///b"]).await;
    error(3, &api, &["set", "stores", "show", "nosuch"]).await;
    assert!(calls(&world).iter().all(|call| !call.contains("change_stores")));
}
