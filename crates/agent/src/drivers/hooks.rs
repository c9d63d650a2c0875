//! Programs that are told what happens. Nothing waits for them, and nothing depends on them.

use crate::config::AgentConfig;
use crate::machine::Role;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::sync::Semaphore;

/// Hooks that run at once at most; beyond that one is left out, and the log says so.
const AT_ONCE_MAX: usize = 8;

/// The hooks of one agent.
#[derive(Debug)]
pub(super) struct Hooks {
    on_role_change: Option<String>,
    on_event: Option<String>,
    name: String,
    set: String,
    limit: Duration,
    places: Arc<Semaphore>,
}

impl Hooks {
    pub(super) fn new(config: &AgentConfig) -> Self {
        Self {
            on_role_change: config.hooks.on_role_change.clone(),
            on_event: config.hooks.on_event.clone(),
            name: config.name.clone(),
            set: config.set.clone(),
            limit: Duration::from_secs(config.hooks.timeout_s),
            places: Arc::new(Semaphore::new(AT_ONCE_MAX)),
        }
    }

    pub(super) fn role(&self, role: Role, epoch: u64) {
        if let Some(script) = &self.on_role_change {
            self.run(script.clone(), role, epoch, String::new());
        }
    }

    pub(super) fn event(&self, line: &str, role: Role, epoch: u64) {
        if let Some(script) = &self.on_event {
            self.run(script.clone(), role, epoch, format!("{line}\n"));
        }
    }

    fn run(&self, script: String, role: Role, epoch: u64, input: String) {
        let Ok(place) = self.places.clone().try_acquire_owned() else {
            tracing::warn!(script, "{AT_ONCE_MAX} hooks run already: this one is left out");
            return;
        };
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(&script).env("HOLDFAST_NAME", &self.name).env("HOLDFAST_SET", &self.set);
        let role = match role {
            Role::Primary => "primary",
            Role::Standby => "standby",
        };
        command.env("HOLDFAST_ROLE", role).env("HOLDFAST_EPOCH", epoch.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        let limit = self.limit;
        tokio::spawn(async move {
            let work = async {
                let mut child = command.spawn()?;
                if let Some(mut stdin) = child.stdin.take() {
                    // One that does not read has heard enough.
                    let _ = stdin.write_all(input.as_bytes()).await;
                }
                child.wait().await
            };
            match tokio::time::timeout(limit, work).await {
                Ok(Ok(status)) if status.success() => {}
                Ok(Ok(status)) => tracing::warn!(script, %status, "a hook failed"),
                Ok(Err(error)) => tracing::warn!(script, %error, "a hook could not be run"),
                Err(_) => tracing::warn!(script, ?limit, "a hook took too long and was killed"),
            }
            drop(place);
        });
    }
}
