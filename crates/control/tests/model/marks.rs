//! What a walk came to: counted beside the states, so that it does not multiply them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counters with names. A mark that no history comes to means that the model has become empty there.
#[derive(Clone)]
pub struct Marks(Arc<Vec<(&'static str, AtomicUsize)>>);

impl Marks {
    pub fn new(names: &[&'static str]) -> Self {
        Self(Arc::new(names.iter().map(|name| (*name, AtomicUsize::new(0))).collect()))
    }

    /// One history more came to `name`.
    pub fn hit(&self, name: &str) {
        let (_, count) = self.0.iter().find(|(mark, _)| *mark == name).unwrap_or_else(|| panic!("no mark {name:?}"));
        count.fetch_add(1, Ordering::Relaxed);
    }

    pub fn counts(&self) -> Vec<(&'static str, usize)> {
        self.0.iter().map(|(name, count)| (*name, count.load(Ordering::Relaxed))).collect()
    }
}
