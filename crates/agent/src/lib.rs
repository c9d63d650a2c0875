//! The agent on a PostgreSQL host. It takes the set's lease when it is this host's turn, brings up device, pool and
//! PostgreSQL, watches them, and releases them.
//!
//! ```text
//!   gateways ◀─ who holds the lease? ─┐            ┌─▶ attach (child)      takes and renews the lease, makes the devices
//!   load balancers ◀── http ──▶ run (one task) ──▶ │   pool                mount, import
//!   operators, peers ◀────┘      └▶ Machine, pure  └─▶ PostgreSQL          start, look, stop
//!                                       └─ signs of life ─▶ watchdog (second process) ─SIGKILL─▶ PostgreSQL, attach
//! ```
//! Owns: the decisions ([`machine`], pure) and the drivers that carry them out: attach as a child process, ZFS or a
//! file system, PostgreSQL, watchdog, hooks, health over HTTP, history. Does not own: the lease protocol and the device
//! (the attach process has both), the right to write (the gateways decide, R2). Depends on: api, host, settings, tls,
//! traces, types. docs/adr/0010-agent.md has the reasons.

pub mod attach_process;
pub mod client;
pub mod clock;
mod cluster;
pub mod config;
pub mod drivers;
pub mod facts;
#[doc(hidden)]
pub mod fuzz;
pub mod history;
mod host;
mod hostid;
mod http;
pub mod listen;
pub mod local;
pub mod machine;
mod pause;
pub mod plan;
pub mod process;
mod proof;
mod run;
pub mod run_dir;
pub mod schedule;
pub mod seams;
pub mod server;
mod traced;
mod view;
pub mod watchdog;

pub use attach_process::Status as AttachStatus;
pub use clock::replace as replace_clock;
pub use cluster::Gateways;
pub use host::{AttachLook, Ended, Host, NotDone, PoolLook, PoolUsers};
pub use run::{RunError, check_files, run, run_over};
pub use view::{Added, LeaseShown, PoolShown, SettingsShown, View};
