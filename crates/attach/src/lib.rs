//! A volume set on a host that uses it: block devices that outlive the gateway behind them.
//!
//! ```text
//!   kernel nbd (socket pairs)    nbdfuse + loop, or any NBD client
//!        │                            │ Unix socket per volume
//!   ┌────▼──── attach (one process per set and host) ──────────────┐
//!   │ client ─▶ Machine: table of unanswered requests ─▶ lane ─────┼─ TCP ─▶ the gateway that serves
//!   │              ▲ lease, epoch, incarnation                     │
//!   │           keeper ─▶ admin_client ────────────────────────────┼─ gRPC ▶ all gateways
//!   └──────────────────────────────────────────────────────────────┘
//! ```
//!
//! Owns: the lease of a set on behalf of its owner, reconnecting and replaying ([`machine`]), the run directory, the
//! devices. Does not own: any decision about the right to write (the gateways'), the NBD protocol (crate `nbd`), the
//! data on the devices. Depends on: api, host, nbd, tls, types. docs/adr/0009-attach.md has the reasons.
//! [`run_snapshot_copy`] keeps a copy of a snapshot, without a lease.

mod admin_client;
mod client;
mod client_replies;
mod device;
mod dir;
mod keeper;
mod lane;
mod lease_file;
pub mod machine;
mod outbox;
pub mod requests;
mod revoked;
mod seams;
mod shared;
mod snapshot_copy;
mod status;

pub use device::{DeviceError, DeviceKind, DriverError, KernelOptions};
pub use dir::{DirError, RunDir, default_dir, running};
pub use keeper::{AttachError, Ended, Options, abandon, run, run_over};
pub use machine::{Bounds, Phase};
pub use seams::{Clients, Connect, GivenClient, Halves, Seams};
pub use snapshot_copy::{SnapshotCopyError, SnapshotCopyOptions, SnapshotCopyStatus, Source, run_snapshot_copy};
pub use status::{Status, VolumeStatus};
