//! Settings that change while a task uses them.

use std::sync::Arc;

/// Tells the settings as they are at the moment. A task asks at the begin of each turn, so that one turn has one word.
pub type Now<T> = Arc<dyn Fn() -> T + Send + Sync>;
