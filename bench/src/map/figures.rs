//! What `large_map` prints and `cargo xtask bench map` reads: both have this file.

use serde::{Deserialize, Serialize};

/// The map that was made, as one line of JSON.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Map {
    pub volume_bytes: u64,
    pub extents: u64,
    pub pages: u64,
    /// As stored.
    pub page_bytes: u64,
    /// Memory for all pages; a gateway never has all of them.
    pub page_memory_bytes: u64,
    pub packs: u64,
    pub segments: u64,
    pub live_bytes: u64,
    pub root_bytes: u64,
    /// Bytes of the packs of the root's leaves; 0 if it is one object.
    pub leaf_bytes: u64,
    /// Time to open the root in `large_map`; below, its memory.
    pub root_open_ms: f64,
    pub root_memory_bytes: u64,
    pub readable: u64,
    /// Time to make everything.
    pub seconds: f64,
}
