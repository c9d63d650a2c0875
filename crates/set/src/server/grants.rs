//! Whether this gateway may grant the set: one grant at a time, none while another gateway should serve the set, and
//! none while an operation needs a free set.

use super::error::SetError;
use holdfast_types::sync::LockExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Default)]
pub(super) struct Grants {
    /// One grant is requested here at a time.
    pub(super) one: tokio::sync::Mutex<()>,
    /// Reason why this gateway serves nothing although it may lead for a moment (`control::members`, MEMBER-M3).
    aside: Mutex<Option<&'static str>>,
    /// Number of callers that currently block grants.
    held_off: AtomicUsize,
}

impl Grants {
    pub(super) fn stand_aside(&self, why: Option<&'static str>) {
        *self.aside.locked() = why;
    }

    /// Refuses to serve a set that another gateway should serve.
    pub(super) fn may_begin(&self) -> Result<(), SetError> {
        let why = *self.aside.locked();
        why.map_or(Ok(()), |why| Err(SetError::NotReady(format!("it {why}, and gives leadership to another gateway"))))
    }

    /// Blocks grants until [`Grants::allow`].
    pub(super) fn hold_off(&self) {
        self.held_off.fetch_add(1, Ordering::AcqRel);
    }

    /// Ends one [`Grants::hold_off`].
    pub(super) fn allow(&self) {
        self.held_off.fetch_sub(1, Ordering::AcqRel);
    }

    pub(super) fn is_held_off(&self) -> bool {
        self.held_off.load(Ordering::Acquire) > 0
    }
}
