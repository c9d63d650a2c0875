//! What the agent can do on its host, as a trait: [`crate::drivers::Real`] is the real one, tests have their own.

use crate::machine::{AttachEnd, AttachView, DatabaseView, Found, LeaseView, Role, Stop};
use std::future::Future;

/// How the attach process is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttachLook {
    /// It runs.
    Runs(AttachView),
    /// It ran and has ended; told until the next start.
    Ended(AttachEnd),
    /// None was started or found.
    None,
}

/// What there is to say of the pool beside whether it is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolLook {
    /// Host id of ZFS, "" where the pool is no ZFS pool, or it is not known.
    pub host_id: String,
    /// The pool is imported only under a host id that no other host has (`pool.multihost`).
    pub multihost: bool,
    /// Why it could not be imported on this host as it is, and what would make it possible; "" for nothing.
    pub unable: String,
    /// What is not as it should be; "" for nothing.
    pub warning: String,
    /// What of PostgreSQL's files does not lie on the set while it runs, and what to do about it; "" for nothing.
    pub off_set: String,
}

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotDone {
    /// Nothing was done, and another try on this host ends the same until a person does something.
    Refused(String),
    /// Anything else: what was asked for may have happened in part.
    Failed(String),
}

impl From<String> for NotDone {
    fn from(why: String) -> Self {
        NotDone::Failed(why)
    }
}

/// A host.
///
/// Every call MUST end within a bound of its own. A call may be dropped only where its effect may then have happened or not. What changes something
/// is called by one task at a time and MUST be idempotent: stopping what is stopped, exporting what is not there and detaching what is not
/// attached succeed.
pub trait Host: Send + Sync + 'static {
    /// What an earlier agent left.
    ///
    /// # Errors
    /// What is there is not ours, or could not be looked at: nothing may be touched.
    fn found(&self) -> impl Future<Output = Result<Found, String>> + Send;
    /// Asks the cluster who holds the lease. Reads only.
    fn lease(&self) -> impl Future<Output = LeaseView> + Send;
    /// Starts the attach process and returns; [`Host::attach_look`] says how it goes.
    ///
    /// # Errors
    /// It could not be started.
    fn attach(&self, force: bool) -> impl Future<Output = Result<(), String>> + Send;
    /// How it is. Reads only, and is called several times a second.
    fn attach_look(&self) -> impl Future<Output = AttachLook> + Send;
    /// Ends it; with `hard` by all means, without waiting for what is on its way.
    ///
    /// # Errors
    /// It did not end in good order. With `hard` it is gone all the same.
    fn detach(&self, hard: bool) -> impl Future<Output = Result<(), String>> + Send;
    /// Mounts the file system, or imports the pool.
    ///
    /// # Errors
    /// Why not.
    fn import(&self, force: bool) -> impl Future<Output = Result<(), String>> + Send;
    /// What there is to say of the pool. Asks nobody, waits for no disk, and is called several times a second.
    fn pool_look(&self) -> PoolLook {
        PoolLook::default()
    }
    /// Processes other than PostgreSQL that have something of the pool open, by name, number and path. Reads only, and waits for no device.
    fn openers(&self) -> impl Future<Output = Vec<String>> + Send {
        std::future::ready(Vec::new())
    }
    /// Unmounts, or exports.
    ///
    /// # Errors
    /// It is still there. [`NotDone::Refused`]: somebody uses it, and it is as it was.
    fn export(&self, hard: bool) -> impl Future<Output = Result<(), NotDone>> + Send;
    /// Waits until the machine's watchdog counts, which [`Host::alive`] has asked for.
    ///
    /// # Errors
    /// It does not, and why.
    fn arm(&self) -> impl Future<Output = Result<(), String>> + Send;
    /// Gives the start to PostgreSQL, of which no process is left.
    ///
    /// # Errors
    /// Why not.
    fn start_database(&self) -> impl Future<Output = Result<(), NotDone>> + Send;
    /// Stops it. Success MUST mean that none of its processes is left.
    ///
    /// # Errors
    /// Some are left.
    fn stop_database(&self, how: Stop) -> impl Future<Output = Result<(), String>> + Send;
    /// How it is; `None` where that could not be found out, which is no news. Reads only.
    fn probe(&self) -> impl Future<Output = Option<DatabaseView>> + Send;
    /// A checkpoint while clients go on.
    ///
    /// # Errors
    /// Not in time.
    fn checkpoint(&self) -> impl Future<Output = Result<(), String>> + Send;
    /// A commit that is durable once this succeeded.
    ///
    /// # Errors
    /// It may have happened or not.
    fn first_write(&self) -> impl Future<Output = Result<(), String>> + Send;
    /// Tells scripts of a role. Returns at once.
    fn hook_role(&self, role: Role, epoch: u64);
    /// Tells scripts of a line of the history. Returns at once.
    fn hook_event(&self, line: &str, role: Role, epoch: u64);
    /// Reboots the machine at once.
    fn reboot(&self, why: &str);
    /// A sign of life for whoever watches over the agent, and until when PostgreSQL may run, in nanoseconds of CLOCK_BOOTTIME; 0 where it does not;
    /// and whether the machine's watchdog has to count (`guarded`).
    fn alive(&self, may_run_until_ns: u64, ttl_ms: u64, guarded: bool);
    /// The last sign of an agent that ends and leaves PostgreSQL running: from here on only the lease ends it.
    fn left_alone(&self, may_run_until_ns: u64, ttl_ms: u64, guarded: bool);
}
