//! Marks reached by a walk. They are counted outside of the states, so that they do not multiply them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Named counters. A mark that no history reaches means that the model has a gap there.
#[derive(Clone)]
pub struct Marks(Arc<Vec<(&'static str, AtomicUsize)>>);

impl Marks {
    pub fn new(names: &[&'static str]) -> Self {
        Self(Arc::new(names.iter().map(|name| (*name, AtomicUsize::new(0))).collect()))
    }

    /// One more history reached `name`.
    pub fn hit(&self, name: &str) {
        let (_, count) = self.0.iter().find(|(mark, _)| *mark == name).unwrap_or_else(|| panic!("no mark {name:?}"));
        count.fetch_add(1, Ordering::Relaxed);
    }

    pub fn counts(&self) -> Vec<(&'static str, usize)> {
        self.0.iter().map(|(name, count)| (*name, count.load(Ordering::Relaxed))).collect()
    }
}
