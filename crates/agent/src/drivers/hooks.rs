//! Hooks: programs that are called on events. Nothing waits for them or depends on them, except for [`before_start`].
//!
//! Role hooks run one at a time, and only the newest role matters: roles that were replaced before their hook began are
//! skipped. Event hooks run concurrently, at most [`AT_ONCE_MAX`].

use crate::config::AgentConfig;
use crate::machine::Role;
use crate::process::run;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::sync::{Semaphore, watch};

/// Maximum number of event hooks that run at once; beyond that a hook is skipped, and the log says so.
const AT_ONCE_MAX: usize = 8;

/// Runs `hooks.before_start`, which may forbid the start of what runs on the set. This one is waited for.
///
/// # Errors
/// It does.
pub(super) async fn before_start(config: &AgentConfig) -> Result<(), String> {
    let Some(text) = &config.hooks.before_start else { return Ok(()) };
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(text).env("HOLDFAST_NAME", &config.name).env("HOLDFAST_SET", &config.set);
    command.env("HOLDFAST_DATA", config.data());
    let said = run(command, Duration::from_secs(config.hooks.timeout_s)).await;
    said.map(drop).map_err(|error| format!("hooks.before_start: {error}"))
}

/// The hooks of one agent.
#[derive(Debug)]
pub(super) struct Hooks {
    /// Sends roles to the task that runs their hooks.
    roles: Option<watch::Sender<Option<(Role, u64)>>>,
    on_event: Option<String>,
    facts: Facts,
    places: Arc<Semaphore>,
}

/// The variables of every hook, and its time limit.
#[derive(Clone, Debug)]
struct Facts {
    name: String,
    set: String,
    limit: Duration,
}

impl Hooks {
    /// Must be called on a runtime.
    pub(super) fn new(config: &AgentConfig) -> Self {
        let limit = Duration::from_secs(config.hooks.timeout_s);
        let facts = Facts { name: config.name.clone(), set: config.set.clone(), limit };
        let roles = config.hooks.on_role_change.clone().map(|script| {
            let (roles, told) = watch::channel(None);
            tokio::spawn(tell_roles(script, facts.clone(), told));
            roles
        });
        Self { roles, on_event: config.hooks.on_event.clone(), facts, places: Arc::new(Semaphore::new(AT_ONCE_MAX)) }
    }

    pub(super) fn role(&self, role: Role, epoch: u64) {
        if let Some(roles) = &self.roles {
            roles.send_replace(Some((role, epoch)));
        }
    }

    pub(super) fn event(&self, line: &str, role: Role, epoch: u64) {
        let Some(script) = self.on_event.clone() else { return };
        let Ok(place) = self.places.clone().try_acquire_owned() else {
            tracing::warn!(script, "{AT_ONCE_MAX} hooks are running: skipping this one");
            return;
        };
        let (facts, input) = (self.facts.clone(), format!("{line}\n"));
        tokio::spawn(async move {
            facts.run(&script, role, epoch, &input).await;
            drop(place);
        });
    }
}

/// Runs role hooks one at a time; ends with its [`Hooks`].
async fn tell_roles(script: String, facts: Facts, mut told: watch::Receiver<Option<(Role, u64)>>) {
    while told.changed().await.is_ok() {
        let newest = *told.borrow_and_update();
        if let Some((role, epoch)) = newest {
            facts.run(&script, role, epoch, "").await;
        }
    }
}

impl Facts {
    async fn run(&self, script: &str, role: Role, epoch: u64, input: &str) {
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(script).env("HOLDFAST_NAME", &self.name).env("HOLDFAST_SET", &self.set);
        let role = match role {
            Role::Primary => "primary",
            Role::Standby => "standby",
        };
        command.env("HOLDFAST_ROLE", role).env("HOLDFAST_EPOCH", epoch.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        let work = async {
            let mut child = command.spawn()?;
            if let Some(mut stdin) = child.stdin.take() {
                // A hook that does not read its input is not an error.
                let _ = stdin.write_all(input.as_bytes()).await;
            }
            child.wait().await
        };
        match tokio::time::timeout(self.limit, work).await {
            Ok(Ok(status)) if status.success() => {}
            Ok(Ok(status)) => tracing::warn!(script, %status, "a hook failed"),
            Ok(Err(error)) => tracing::warn!(script, %error, "a hook could not be run"),
            Err(_) => tracing::warn!(script, limit = ?self.limit, "a hook took too long and was killed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::time::Instant;

    async fn wait_for(path: &Path, text: &str) -> String {
        let begun = Instant::now();
        loop {
            let found = std::fs::read_to_string(path).unwrap_or_default();
            if found.contains(text) {
                return found;
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "expected {text:?}, found {found:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// The variables that a script gets for a line of the history, with host and set.
    #[tokio::test]
    async fn a_line_of_the_history_is_told_with_host_set_role_and_epoch() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().display();
        let mut config = AgentConfig { name: "db7".into(), set: "pg".into(), ..AgentConfig::default() };
        config.hooks.on_event = Some(format!(
            "cd {at}; read -r line; echo \"$line $HOLDFAST_NAME $HOLDFAST_SET $HOLDFAST_ROLE $HOLDFAST_EPOCH.\" >> said"
        ));
        let hooks = Hooks::new(&config);
        hooks.role(Role::Standby, 4);
        hooks.event("{\"event\":\"failover\"}", Role::Primary, 5);
        let said = wait_for(&dir.path().join("said"), ".").await;
        assert_eq!(said, "{\"event\":\"failover\"} db7 pg primary 5.\n");
    }

    #[tokio::test]
    async fn the_newest_role_is_the_last_word_whatever_else_runs() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().display();
        let mut config = AgentConfig::default();
        config.hooks.on_role_change = Some(format!(
            "cd {at}; echo begin $HOLDFAST_ROLE $HOLDFAST_EPOCH >> said; [ $HOLDFAST_EPOCH != 1 ] || until [ -e go ]; do sleep 0.01; done; \
             echo end $HOLDFAST_ROLE $HOLDFAST_EPOCH >> said"
        ));
        config.hooks.on_event = Some(format!("cd {at}; until [ -e go ]; do sleep 0.01; done"));
        let hooks = Hooks::new(&config);
        hooks.role(Role::Primary, 1);
        wait_for(&dir.path().join("said"), "begin primary 1").await;
        // All places are taken: a role hook needs none.
        (0..AT_ONCE_MAX).for_each(|_| hooks.event("a line", Role::Primary, 1));
        hooks.role(Role::Standby, 2);
        hooks.role(Role::Primary, 3);
        std::fs::write(dir.path().join("go"), "").unwrap();
        let said = wait_for(&dir.path().join("said"), "end primary 3").await;
        assert_eq!(said, "begin primary 1\nend primary 1\nbegin primary 3\nend primary 3\n");
    }
}
