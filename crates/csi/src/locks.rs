//! One call at a time for each set: CSI lets a driver answer ABORTED to a second one.

use crate::refused::Refused;
use holdfast_types::sync::LockExt;
use std::collections::BTreeSet;
use std::sync::Mutex;

/// The sets that a call works on.
#[derive(Debug, Default)]
pub(crate) struct Locks(Mutex<BTreeSet<String>>);

/// A set that is taken until this is dropped.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    locks: &'a Locks,
    set: String,
}

impl Locks {
    /// Takes a set.
    pub(crate) fn take(&self, set: &str) -> Result<Held<'_>, Refused> {
        if !self.0.locked().insert(set.to_string()) {
            return Err(Refused::pending(format!("another call for {set} is under way: repeat this one")));
        }
        Ok(Held { locks: self, set: set.to_string() })
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.locks.0.locked().remove(&self.set);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_call_at_a_time_for_each_set() {
        let locks = Locks::default();
        let held = locks.take("a").unwrap();
        assert_eq!(locks.take("a").unwrap_err().code, tonic::Code::Aborted);
        let _other = locks.take("b").unwrap();
        drop(held);
        let _again = locks.take("a").unwrap();
    }
}
