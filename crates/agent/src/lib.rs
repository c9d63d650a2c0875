//! The agent on a PostgreSQL host: takes the set's lease when it is this host's turn, brings up device, pool and PostgreSQL, watches over them, and lets go.
//!
//! Owns: the decisions ([`machine`], pure) and the drivers that carry them out: attach as a child process, ZFS or a file system, PostgreSQL, watchdog,
//! hooks, health over HTTP, history. Does not own: the lease protocol and the device (the attach process has both), who may write (the gateways',
//! R2). Depends on: api, types.

pub mod config;
pub mod machine;
