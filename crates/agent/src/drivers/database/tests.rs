use super::*;
use std::path::Path;

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

/// PostgreSQL's user owns the file, and could make it a link: to a device without an end, and root would read until
/// there is no memory left; or to the machine's watchdog, which begins to count when it is opened.
#[tokio::test]
async fn a_version_is_a_short_file_and_no_link() {
    let dir = tempfile::tempdir().unwrap();
    let (mut config, _) = with_commands(dir.path());
    (config.database.start, config.database.stop) = (Some("true".into()), Some("true".into()));
    let (version, real) = (config.database.data.join("PG_VERSION"), config.dir.join("real"));
    let refused = async |what: &str| {
        let why = Database::new(&config).start().await.unwrap_err();
        assert!(why.contains("PG_VERSION: ") && !why.contains("ended at once"), "{what}: {why}");
    };
    std::fs::write(&version, "1".repeat(64 << 10)).unwrap();
    refused("long").await;
    std::fs::rename(&version, &real).unwrap();
    std::fs::write(&real, "15\n").unwrap();
    std::os::unix::fs::symlink(&real, &version).unwrap();
    refused("a link").await;
}

/// AGENT-A3: threads that hang, on a disk or on names that are asked for, keep no SIGKILL waiting.
#[test]
fn a_kill_does_not_wait_for_threads_that_hang() {
    let dir = tempfile::tempdir().unwrap();
    let (mut config, server) = with_commands(dir.path());
    config.database.start = Some(format!("cd /; {server} >/dev/null 2>&1 &"));
    config.database.stop = Some("true".into());
    let database = Database::new(&config);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap();
    let (stopped, runs) = runtime.block_on(async {
        database.start().await.unwrap();
        let (release, held) = std::sync::mpsc::channel::<()>();
        let hangs = tokio::task::spawn_blocking(move || held.recv().ok());
        let stopped = tokio::time::timeout(Duration::from_secs(10), database.stop(Stop::Kill)).await;
        let runs = database.runs();
        drop(release);
        hangs.await.unwrap();
        (stopped, runs)
    });
    process::kill_postgres(&database.processes, KILL_LIMIT).unwrap();
    assert_eq!((stopped, runs), (Ok(Ok(())), Ok(false)));
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

/// A stand-in for PostgreSQL, started beside the agent as by a unit, and one for systemctl.
struct OfUnit {
    config: AgentConfig,
    place: std::path::PathBuf,
    server: tokio::task::JoinHandle<Option<i32>>,
    _input: tokio::process::ChildStdin,
}

/// Exit code of the stand-in after a fast stop.
const IN_GOOD_ORDER: i32 = 10;

impl OfUnit {
    /// `show` and `stop` are what the stand-in for systemctl does first, before it answers as systemctl does. Files of
    /// the place: `pid`; `asked` has a line for each question.
    async fn begin(dir: &Path, kind: DatabaseKind, show: &str, stop: &str) -> Self {
        let place = dir.canonicalize().unwrap();
        let (mut config, _) = with_commands(dir);
        let ready = place.join("ready");
        // It waits for input, which never comes: its forks would be looked at as servers too. A stop takes it a moment,
        // as a checkpoint does.
        let moment = "n=0; while [ $n -lt 300000 ]; do n=$((n+1)); done";
        let ends = format!("{moment}; exit {IN_GOOD_ORDER}");
        let server = format!("trap '{ends}' INT; : > {}; while :; do read -r _; done", ready.display());
        // A shell cannot trap a signal that was ignored when it began, as SIGINT is if these tests run behind `&`.
        let mut command = tokio::process::Command::new("env");
        command.arg("--default-signal=INT").arg(place.join("postgres")).args(["-c", &server, "-D"]);
        command.arg(&config.database.data).stdin(std::process::Stdio::piped());
        let mut child = command.kill_on_drop(true).spawn().unwrap();
        std::fs::write(place.join("pid"), child.id().unwrap().to_string()).unwrap();
        let input = child.stdin.take().unwrap();
        let begun = Instant::now();
        while !ready.exists() && begun.elapsed() < Duration::from_secs(20) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let at = place.display();
        script(
            &place.join("systemctl"),
            &format!(
                "#!/bin/sh\ncd {at}\npid=$(cat pid)\ncase $1 in\nshow) echo >> asked\n{show}\n\
                 state=inactive\n[ ! -e /proc/$pid/exe ] || state=active\n\
                 printf 'LoadState=loaded\\nActiveState=%s\\nJob=\\n' $state ;;\n\
                 stop) {stop}\nkill -INT $pid\nwhile [ -e /proc/$pid/exe ]; do sleep 0.02; done ;;\nesac\n"
            ),
        );
        config.database.kind = kind;
        config.database.stop = Some(format!("{at}/systemctl stop"));
        config.database.stop_timeout_s = 60;
        let server = tokio::spawn(async move { child.wait().await.unwrap().code() });
        Self { config, place, server, _input: input }
    }

    /// Stops it in good order; returns the result, and the stand-in's exit code.
    async fn stop(self) -> (Result<(), String>, Option<i32>) {
        let mut database = Database::new(&self.config);
        database.unit = Systemd::new(&self.config).with_program(self.place.join("systemctl"));
        let stopped = database.stop(Stop::Fast).await;
        drop(database.stop(Stop::Kill).await);
        (stopped, self.server.await.unwrap())
    }
}

/// UNIT-U4: on a machine that was shut down while it was busy, systemd did not answer within five seconds. The agent
/// took that for a stop that had failed, and PostgreSQL was stopped as in a crash.
#[tokio::test]
async fn a_stop_in_good_order_does_not_depend_on_an_answer() {
    let late = "echo 'Failed to get properties: Connection timed out' >&2; exit 1";
    let first = format!("[ $(wc -l < asked) != 1 ] || {{ {late}; }}");
    let second = format!("[ $(wc -l < asked) != 2 ] || {{ {late}; }}");
    for (kind, show, stop, what) in [
        (DatabaseKind::Systemd, "", "", "everything is answered"),
        (DatabaseKind::Systemd, first.as_str(), "", "the question before the order is not answered"),
        (DatabaseKind::Systemd, second.as_str(), "", "the question after the order is not answered"),
        (DatabaseKind::Systemd, "", late, "the order is not answered"),
        (DatabaseKind::Command, "", late, "the command of the settings fails"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let found = OfUnit::begin(dir.path(), kind, show, stop).await.stop().await;
        assert_eq!(found, (Ok(()), Some(IN_GOOD_ORDER)), "{what}");
    }
}

/// UNIT-U4: a systemd that hangs lets neither a question nor an order end.
#[tokio::test]
async fn a_stop_in_good_order_does_not_wait_for_an_order_that_hangs() {
    let hangs = "exec sleep 600";
    let first = format!("[ $(wc -l < asked) != 1 ] || {hangs}");
    for (show, what) in [("", "the order"), (first.as_str(), "the question before it too")] {
        let dir = tempfile::tempdir().unwrap();
        let mut of = OfUnit::begin(dir.path(), DatabaseKind::Systemd, show, hangs).await;
        of.config.database.stop_timeout_s = 8;
        assert_eq!(of.stop().await, (Ok(()), Some(IN_GOOD_ORDER)), "{what} hangs");
    }
}

/// UNIT-U4: an answer that is missing once does not end a start that goes on.
#[tokio::test]
async fn a_start_of_a_unit_does_not_depend_on_an_answer() {
    let dir = tempfile::tempdir().unwrap();
    let (mut config, server) = with_commands(dir.path());
    config.database.kind = DatabaseKind::Systemd;
    let at = config.dir.display();
    // PostgreSQL comes up after a question that was not answered.
    let show = format!(
        "[ -e late ] || {{ : > late; exit 1; }}\n[ -e given ] || {{ : > given; {server} >/dev/null 2>&1 & }}\n\
         printf 'LoadState=loaded\\nActiveState=activating\\nJob=7\\n'"
    );
    script(&config.dir.join("systemctl"), &format!("#!/bin/sh\ncd {at}\ncase $1 in show) {show} ;; esac\n"));
    let unit = Systemd::new(&config).with_program(config.dir.join("systemctl"));
    let started = unit.start(Duration::from_secs(60)).await;
    let asked_again = config.dir.join("given").exists();
    process::kill_postgres(&Server::of(&config.database), KILL_LIMIT).unwrap();
    assert_eq!((started, asked_again), (Ok(()), true));
}
