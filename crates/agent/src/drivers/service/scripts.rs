//! Commands of the settings of a service, as its system user.

use crate::config::{AgentConfig, ServiceConfig};
use crate::drivers::database::user;
use crate::process::{run, system};
use rustix::process::geteuid;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::process::Command;
use tokio::sync::OnceCell;

/// Enters the control group $1 and becomes the rest of the arguments. 0 is the process that writes it. The agent's unit
/// has OOMScoreAdjust=-900, which is for the agent alone.
const ENTER: &str =
    "echo 0 > \"$1/cgroup.procs\" && shift && { { echo 0 > /proc/self/oom_score_adj; } 2> /dev/null; exec \"$@\"; }";

/// See the module.
#[derive(Debug)]
pub(super) struct Scripts {
    name: String,
    set: String,
    data: PathBuf,
    user: String,
    /// Numbers of that user, once they are known.
    ids: OnceCell<(u32, u32)>,
}

impl Scripts {
    /// Of these settings; nothing is asked yet.
    pub(super) fn new(config: &AgentConfig, service: &ServiceConfig) -> Self {
        Self {
            name: config.name.clone(),
            set: config.set.clone(),
            data: config.data().into(),
            user: service.user.clone(),
            ids: OnceCell::new(),
        }
    }

    /// This text as a command of sh, as the user with all its groups; in `group`, if there is one.
    ///
    /// # Errors
    /// The user is not known.
    pub(super) async fn command(&self, text: &str, group: Option<&Path>) -> Result<Command, String> {
        let mut words: Vec<OsString> = Vec::new();
        if let Some(group) = group {
            words.extend(["/bin/sh", "-c", ENTER, "sh"].map(OsString::from));
            words.push(group.into());
        }
        if geteuid().is_root() && self.user != "root" {
            let (uid, gid) = self.ids.get_or_try_init(|| user::ids(&self.user)).await.copied()?;
            words.push(system("setpriv").as_std().get_program().into());
            words.extend([format!("--reuid={uid}"), format!("--regid={gid}")].map(OsString::from));
            words.extend([user::ALL_GROUPS, "--"].map(OsString::from));
        }
        words.extend(["/bin/sh", "-c", text].map(OsString::from));
        let mut words = words.into_iter();
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).current_dir("/");
        command.env("HOLDFAST_NAME", &self.name).env("HOLDFAST_SET", &self.set).env("HOLDFAST_DATA", &self.data);
        Ok(command)
    }

    /// Runs this stop command. `how`: `fast` or `immediate`, in its environment.
    ///
    /// # Errors
    /// It failed, or took longer than `limit`.
    pub(super) async fn stop(&self, text: &str, how: &str, limit: Duration) -> Result<(), String> {
        let mut command = self.command(text, None).await?;
        command.env("HOLDFAST_STOP", how);
        run(command, limit).await.map(drop)
    }
}
