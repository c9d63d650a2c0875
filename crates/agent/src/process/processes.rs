//! The processes of what runs on the set, PostgreSQL or another service.

use super::cgroup::Group;
use super::postgres::{kill_postgres, look_for_postgres};
use super::server::Server;
use super::table::ProcessSearch;
use crate::config::AgentConfig;
use std::time::{Duration, Instant};

/// How they are recognised.
#[derive(Clone, Debug)]
pub enum Processes {
    /// By the data directory of a PostgreSQL.
    Postgres(Server),
    /// By the control group of another service.
    Service(Group),
}

impl Processes {
    /// Of these settings.
    pub fn of(config: &AgentConfig) -> Self {
        match &config.service {
            None => Self::Postgres(Server::of(&config.database)),
            Some(service) => Self::Service(Group::of(config, service)),
        }
    }

    /// All of them that can be found.
    pub fn look(&self) -> ProcessSearch {
        match self {
            Self::Postgres(server) => look_for_postgres(server),
            Self::Service(group) => group.look(),
        }
    }

    /// Whether it is certain that none is left.
    pub fn none_is_left(&self) -> bool {
        self.look().whole().is_ok_and(|left| left.is_empty())
    }

    /// Sends SIGKILL to all of them, also to new ones, until none is left. Blocks. `struck`: see [`Group::kill`].
    ///
    /// # Errors
    /// Some are left after `limit`: they wait for the device. Or not all processes could be inspected.
    pub fn kill(&self, limit: Duration, struck: &mut Option<Instant>) -> Result<(), String> {
        match self {
            Self::Postgres(server) => kill_postgres(server, limit),
            Self::Service(group) => group.kill(limit, struck),
        }
    }
}
