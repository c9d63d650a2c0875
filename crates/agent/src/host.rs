//! Everything that the agent does on its host, as a trait. [`crate::drivers::Real`] implements it; tests have their
//! own.

use crate::machine::{AttachEnd, AttachView, DatabaseView, Found, LeaseView, Role, Stop};
use crate::server::ServerView;
use holdfast_types::MonoTime;
use std::future::Future;
use std::sync::{Arc, Mutex};

/// State of the attach process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttachLook {
    /// It runs.
    Runs(AttachView),
    /// It ran and has ended; reported until the next start.
    Ended(AttachEnd),
    /// None was started or found.
    None,
}

/// State of the pool, except whether it is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolLook {
    /// Host id of ZFS; "" if the pool is no ZFS pool, or the id is not known.
    pub host_id: String,
    /// The pool is imported only under a host id that no other host has (`pool.multihost`).
    pub multihost: bool,
    /// Reason why it could not be imported on this host, with the remedy; "" for none.
    pub unable: String,
    /// A fault that keeps nothing from working; "" for none.
    pub warning: String,
    /// Files of a running PostgreSQL that do not lie on the set, and the remedy; "" for none.
    pub off_set: String,
}

/// Processes other than PostgreSQL that have something of the pool open, by name, number and path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolUsers {
    /// Those that stay until they or a person end them.
    pub staying: Vec<String>,
    /// Those that end by themselves once PostgreSQL is stopped, such as an archiver of WAL that is at its last
    /// segments.
    pub leaving: Vec<String>,
}

impl PoolUsers {
    /// Whether all of them end by themselves, and there is any.
    pub fn all_leave(&self) -> bool {
        self.staying.is_empty() && !self.leaving.is_empty()
    }

    /// All of them.
    pub fn all(&self) -> Vec<String> {
        [self.staying.as_slice(), &self.leaving].concat()
    }
}

/// Processes that were ended, each by name, number and user, until the agent's task takes them out.
pub type Ended = Arc<Mutex<Vec<String>>>;

/// Reason why something was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotDone {
    /// Nothing was done, and another try on this host fails in the same way until a person does something.
    Refused(String),
    /// Anything else: a part of it may have happened.
    Failed(String),
}

impl From<String> for NotDone {
    fn from(why: String) -> Self {
        NotDone::Failed(why)
    }
}

/// A host.
///
/// Every call MUST end within a bound of its own. A call may be dropped only if its effect may then have happened or
/// not. Calls that change something come from one task at a time and MUST be idempotent: to stop a stopped PostgreSQL,
/// to export an absent pool and to detach a detached device succeed.
pub trait Host: Send + Sync + 'static {
    /// The state that an earlier agent left.
    ///
    /// # Errors
    /// The state is not ours, or could not be read: nothing may be touched.
    fn found(&self) -> impl Future<Output = Result<Found, String>> + Send;
    /// Asks the cluster who holds the lease. Reads only.
    fn lease(&self) -> impl Future<Output = LeaseView> + Send;
    /// Starts the attach process and returns; [`Host::attach_look`] says how it goes.
    ///
    /// # Errors
    /// It could not be started.
    fn attach(&self, force: bool) -> impl Future<Output = Result<(), String>> + Send;
    /// State of the attach process. Reads only, and is called several times a second.
    fn attach_look(&self) -> impl Future<Output = AttachLook> + Send;
    /// Ends it. With `hard` it is killed if necessary, and pending I/O is not waited for.
    ///
    /// # Errors
    /// It did not end in good order. With `hard` it is gone all the same.
    fn detach(&self, hard: bool) -> impl Future<Output = Result<(), String>> + Send;
    /// Mounts the file system, or imports the pool.
    ///
    /// # Errors
    /// The reason.
    fn import(&self, force: bool) -> impl Future<Output = Result<(), String>> + Send;
    /// State of the pool. Makes no request, waits for no disk, and is called several times a second.
    fn pool_look(&self) -> PoolLook {
        PoolLook::default()
    }
    /// Processes other than PostgreSQL that have something of the pool open. Reads only, and waits for no device.
    fn openers(&self) -> impl Future<Output = PoolUsers> + Send {
        std::future::ready(PoolUsers::default())
    }
    /// Ends processes that have something of the pool open, `most` at most, and adds them to `ended`. Never the agent,
    /// attach, their helpers, or the machine's first process. Some may be left.
    ///
    /// # Errors
    /// They could not be found.
    fn end_users(&self, most: usize, ended: Ended) -> impl Future<Output = Result<(), String>> + Send {
        let _ = (most, ended);
        std::future::ready(Ok(()))
    }
    /// Unmounts, or exports.
    ///
    /// # Errors
    /// It is still there. [`NotDone::Refused`]: a process uses it, and it is as before.
    fn export(&self, hard: bool) -> impl Future<Output = Result<(), NotDone>> + Send;
    /// Waits until the machine's watchdog counts, which [`Host::alive`] has asked for.
    ///
    /// # Errors
    /// It does not; the reason.
    fn arm(&self) -> impl Future<Output = Result<(), String>> + Send;
    /// Starts PostgreSQL. No process of it is left from before.
    ///
    /// # Errors
    /// The reason.
    fn start_database(&self) -> impl Future<Output = Result<(), NotDone>> + Send;
    /// Stops it. Success MUST mean that none of its processes is left.
    ///
    /// # Errors
    /// Some are left.
    fn stop_database(&self, how: Stop) -> impl Future<Output = Result<(), String>> + Send;
    /// Its state; `None` if that could not be found out, which is not an event. Reads only.
    fn probe(&self) -> impl Future<Output = Option<DatabaseView>> + Send;
    /// What a running PostgreSQL says of itself, for Patroni's clients; `None` if it does not answer soon. Reads only.
    fn server(&self) -> impl Future<Output = Option<ServerView>> + Send {
        std::future::ready(None)
    }
    /// A checkpoint while clients continue.
    ///
    /// # Errors
    /// Not in time.
    fn checkpoint(&self) -> impl Future<Output = Result<(), String>> + Send;
    /// A commit that is durable once this succeeded.
    ///
    /// # Errors
    /// It may have happened or not.
    fn first_write(&self) -> impl Future<Output = Result<(), String>> + Send;
    /// Runs the hooks of a role. Returns at once.
    fn hook_role(&self, role: Role, epoch: u64);
    /// Runs the hooks of a line of the history. Returns at once.
    fn hook_event(&self, line: &str, role: Role, epoch: u64);
    /// Reboots the machine at once.
    fn reboot(&self, why: &str);
    /// A sign of life for the watchdog: until when PostgreSQL may run (`None` if it does not run), and whether the
    /// machine's watchdog has to count down (`guarded`).
    fn alive(&self, may_run_until: Option<MonoTime>, ttl_ms: u64, guarded: bool);
    /// The last sign of life of an agent that ends and leaves PostgreSQL running: from then on only the end of the
    /// lease stops PostgreSQL.
    fn left_alone(&self, may_run_until: Option<MonoTime>, ttl_ms: u64, guarded: bool);
}
