use super::*;
use std::time::Instant;

/// Settings in `dir` with an empty data directory, and the command line of a server that remains a shell.
fn with_commands(dir: &Path) -> (AgentConfig, String) {
    let place = dir.canonicalize().unwrap();
    let (data, program) = (place.join("data"), place.join("postgres"));
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("PG_VERSION"), "15\n").unwrap();
    std::os::unix::fs::symlink("/bin/sh", &program).unwrap();
    let server = format!("{} -c 'while :; do sleep 0.05; done' -D {}", program.display(), data.display());
    let mut config = AgentConfig { dir: place, ..AgentConfig::default() };
    config.database.kind = DatabaseKind::Command;
    config.database.data = data;
    (config, server)
}

/// A PostgreSQL with a configuration that is slow to read has not "ended at once".
#[tokio::test]
async fn a_slow_start_is_a_start_and_can_be_ended() {
    let dir = tempfile::tempdir().unwrap();
    let (mut config, server) = with_commands(dir.path());
    config.database.start = Some(format!("cd /; {server} >/dev/null 2>&1 &"));
    config.database.stop = Some("true".into());
    let database = Database::new(&config);
    database.start().await.unwrap();
    assert_eq!(database.runs(), Ok(true));
    database.stop(Stop::Kill).await.unwrap();
    assert_eq!(database.runs(), Ok(false));
}

/// AGENT-A3: the lease ends, and a script may be slow. This one waits until the server is gone: if it came first, it
/// would time out before.
#[tokio::test]
async fn a_stop_in_a_hurry_does_not_wait_for_the_script() {
    let dir = tempfile::tempdir().unwrap();
    let (mut config, server) = with_commands(dir.path());
    let (pid, gone) = (config.dir.join("pid"), config.dir.join("gone"));
    config.database.start = Some(format!("cd /; {server} >/dev/null 2>&1 & echo $! > {}", pid.display()));
    let lives = format!("[ -e /proc/$(cat {})/exe ]", pid.display());
    config.database.stop =
        Some(format!("while {lives}; do sleep 0.02; done; echo $HOLDFAST_STOP > {}", gone.display()));
    let database = Database::new(&config);
    for how in [Stop::Immediate, Stop::Kill] {
        database.start().await.unwrap();
        database.stop(how).await.unwrap();
        assert_eq!(database.runs(), Ok(false), "{how:?}");
        assert_eq!(std::fs::read_to_string(&gone).unwrap(), "immediate\n", "{how:?}");
        std::fs::remove_file(&gone).unwrap();
    }
}

/// `pg_ctl start` ends once PostgreSQL is ready, and recovery may take longer than the limit of a command. The command
/// goes on meanwhile.
#[tokio::test]
async fn a_start_that_waits_for_recovery_is_a_start() {
    let dir = tempfile::tempdir().unwrap();
    let (mut config, server) = with_commands(dir.path());
    let (pid, waited) = (config.dir.join("pid"), config.dir.join("waited"));
    let lives = format!("[ -e /proc/$(cat {})/exe ]", pid.display());
    config.database.start = Some(format!(
        "cd /; {server} >/dev/null 2>&1 & echo $! > {}; while {lives}; do sleep 0.02; done; touch {}",
        pid.display(),
        waited.display()
    ));
    config.database.stop = Some("true".into());
    let database = Database::new(&config);
    let limit = Duration::from_secs(60);
    database.commands.start_within(limit, Duration::from_millis(200)).await.unwrap();
    assert_eq!(database.runs(), Ok(true));
    assert!(!waited.exists(), "it was not waited for");
    database.stop(Stop::Kill).await.unwrap();
    let begun = Instant::now();
    while !waited.exists() && begun.elapsed() < Duration::from_secs(20) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(waited.exists(), "it was ended before PostgreSQL was");
}

/// A command that waits for something else has not started anything, and it is ended with the start.
#[tokio::test]
async fn a_command_that_starts_nothing_is_no_start() {
    let dir = tempfile::tempdir().unwrap();
    let (mut config, _) = with_commands(dir.path());
    config.database.start = Some("exec sleep 100".into());
    config.database.stop = Some("true".into());
    let database = Database::new(&config);
    let error = database.commands.start_within(Duration::from_secs(1), Duration::from_millis(100)).await.unwrap_err();
    assert!(error.contains("not within 1000 ms"), "{error}");
    assert_eq!(database.runs(), Ok(false));
    let mark = database.commands.mark().unwrap();
    database.stop(Stop::Kill).await.unwrap();
    assert!(database.commands.of_start(&mark).whole().unwrap().is_empty());
}

fn script(path: &Path, text: &str) {
    // By a process of its own: a program that this one has open for writing, or a child that was forked in that moment,
    // does not start ("text file busy").
    let beside = path.with_extension("text");
    std::fs::write(&beside, text).unwrap();
    let installed = std::process::Command::new("install").args(["-m", "755"]).args([&beside, path]).status().unwrap();
    assert!(installed.success());
}

/// On an overloaded machine it takes longer than five seconds until the process of a start works in the data directory.
/// A second start would take the lock file of the first one away.
async fn one_start_is_enough(kind: DatabaseKind) {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().canonicalize().unwrap();
    let (data, bin, starts) = (place.join("data"), place.join("bin"), place.join("starts"));
    for dir in [&data, &bin] {
        std::fs::create_dir(dir).unwrap();
    }
    std::fs::write(data.join("PG_VERSION"), "15\n").unwrap();
    let loops = format!("echo $$ >> {}; while :; do sleep 0.05; done", starts.display());
    let (server, data_word) = (bin.join("postgres"), data.display());
    script(&server, &format!("#!/bin/sh\n{loops}\n"));
    // What pg_ctl and its like do: they leave a process behind that will become the server.
    let slowly = format!("(sleep 6; exec {} -D {data_word}) >/dev/null 2>&1 &", server.display());
    script(&bin.join("pg_ctl"), &format!("#!/bin/sh\n{slowly}\n"));
    let mut config = AgentConfig { dir: place.clone(), ..AgentConfig::default() };
    config.database.kind = kind;
    config.database.data = data.clone();
    config.database.bin_dir = bin;
    config.database.user = "root".into();
    config.database.start = Some(slowly);
    config.database.stop = Some("true".into());
    let database = Database::new(&config);
    database.start().await.unwrap();
    let again = database.start().await.unwrap_err();
    assert!(again.contains("work in") && again.contains("already"), "{again}");
    let begun = Instant::now();
    // The file exists before its content.
    let mut started = String::new();
    while started.is_empty() && begun.elapsed() < Duration::from_secs(20) {
        tokio::time::sleep(Duration::from_millis(10)).await;
        started = std::fs::read_to_string(&starts).unwrap_or_default();
    }
    database.stop(Stop::Kill).await.unwrap();
    assert_eq!(started.lines().count(), 1, "{started}");
    assert_eq!(database.runs(), Ok(false));
}

#[tokio::test]
async fn a_server_that_is_slow_to_show_itself_is_started_once() {
    one_start_is_enough(DatabaseKind::PgCtl).await;
}

#[tokio::test]
async fn what_a_command_starts_slowly_is_started_once() {
    one_start_is_enough(DatabaseKind::Command).await;
}

/// The start is given up (a person, or a lease that ends) before anything of PostgreSQL's is to be seen.
#[tokio::test]
async fn a_stop_ends_what_is_on_its_way() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().canonicalize().unwrap();
    let (data, came) = (place.join("data"), place.join("came"));
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("PG_VERSION"), "15\n").unwrap();
    let mut config = AgentConfig { dir: place.clone(), ..AgentConfig::default() };
    config.database.kind = DatabaseKind::Command;
    config.database.data = data;
    config.database.start =
        Some(format!("(sleep 2; touch {}) >/dev/null 2>&1 & touch {}", came.display(), place.join("given").display()));
    config.database.stop = Some("true".into());
    let database = std::sync::Arc::new(Database::new(&config));
    let starting = tokio::spawn({
        let database = database.clone();
        async move { database.start().await }
    });
    let begun = Instant::now();
    while !place.join("given").exists() && begun.elapsed() < Duration::from_secs(20) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mark = database.commands.mark().unwrap();
    starting.abort();
    let _ = starting.await;
    assert!(!database.commands.of_start(&mark).whole().unwrap().is_empty());
    database.stop(Stop::Kill).await.unwrap();
    let begun = Instant::now();
    while !database.commands.of_start(&mark).whole().unwrap().is_empty() && begun.elapsed() < Duration::from_secs(20) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(!came.exists(), "it was ended before it came as far");
}
