//! The driver of what runs on the set: PostgreSQL, or another service (ADR 0076). The rest of the drivers, and the
//! machine, do not distinguish between them here.

use super::database::Database;
use super::service::Service;
use crate::config::AgentConfig;
use crate::machine::{DatabaseView, Stop};
use crate::server::ServerView;

/// See the module. Each method is that of [`crate::Host`] with a name like its own.
#[derive(Debug)]
pub enum Driver {
    /// For `[database]`.
    PostgreSql(Box<Database>),
    /// For `[service]`.
    Service(Box<Service>),
}

impl Driver {
    /// For these settings; nothing is started.
    pub fn new(config: &AgentConfig) -> Self {
        match &config.service {
            None => Self::PostgreSql(Box::new(Database::new(config))),
            Some(service) => Self::Service(Box::new(Service::new(config, service))),
        }
    }

    /// Whether anything of it is there when an agent begins. Checks also whether it can be started in the way that the
    /// settings say.
    ///
    /// # Errors
    /// That is not known; or nothing is there, and it would come up by itself.
    pub async fn found(&self) -> Result<bool, String> {
        match self {
            Self::PostgreSql(database) => database.found().await,
            Self::Service(service) => service.found().await,
        }
    }

    /// Starts it; `hooks.before_start` was asked.
    ///
    /// # Errors
    /// Why not.
    pub async fn start(&self) -> Result<(), String> {
        match self {
            Self::PostgreSql(database) => database.start_unasked().await,
            Self::Service(service) => service.start().await,
        }
    }

    /// Stops it.
    ///
    /// # Errors
    /// Something of it is left.
    pub async fn stop(&self, how: Stop) -> Result<(), String> {
        match self {
            Self::PostgreSql(database) => database.stop(how).await,
            Self::Service(service) => service.stop(how).await,
        }
    }

    /// Its state; `None` if that is not known.
    pub async fn probe(&self) -> Option<DatabaseView> {
        match self {
            Self::PostgreSql(database) => database.probe().await,
            Self::Service(service) => service.probe().await,
        }
    }

    /// What a PostgreSQL says of itself.
    pub async fn told(&self) -> Option<ServerView> {
        match self {
            Self::PostgreSql(database) => database.told().await,
            Self::Service(_) => None,
        }
    }

    /// The other data directory of a PostgreSQL that answers, and the remedy; "" for none (DB-D5).
    pub fn elsewhere(&self) -> String {
        match self {
            Self::PostgreSql(database) => database.elsewhere(),
            Self::Service(_) => String::new(),
        }
    }

    /// Makes a checkpoint. A service has none.
    ///
    /// # Errors
    /// Not in time.
    pub async fn checkpoint(&self) -> Result<(), String> {
        match self {
            Self::PostgreSql(database) => database.checkpoint().await,
            Self::Service(_) => Ok(()),
        }
    }

    /// Makes a commit that is flushed. A service has none: the machine does not ask for it.
    ///
    /// # Errors
    /// It may have happened or not.
    pub async fn first_write(&self) -> Result<(), String> {
        match self {
            Self::PostgreSql(database) => database.first_write().await,
            Self::Service(_) => Ok(()),
        }
    }
}
