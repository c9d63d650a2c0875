//! Changes by an administrator's operation that have to be reversed.

use crate::process::Proc;
use std::path::PathBuf;

/// A change that has to be reversed.
#[derive(Debug)]
pub(super) enum Changed {
    /// It is drained.
    Drained(usize),
    /// Its disk is empty; it was this member.
    Emptied { gateway: usize, member: u64 },
    /// Its disk is in use, and the copy is an old state of it.
    Copied { gateway: usize, copy: PathBuf },
    /// A second process runs on a copy of its disk.
    Twin { gateway: usize, member: u64, twin: Proc, copy: PathBuf, log: PathBuf },
}

impl Changed {
    /// Whether it is reversed after all gateways run. A twin is judged before: a refused process must not be restarted
    /// first.
    pub fn wants_all(&self) -> bool {
        !matches!(self, Self::Twin { .. })
    }
}
