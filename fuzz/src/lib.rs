//! Fuzz targets (ADR 0051): bytes as a stranger sends them, or as a store or disk returns them, for one decoder each.
//!
//! ```text
//!   cargo test -p holdfast-fuzz   seeds and kept inputs ─┐
//!   cargo xtask fuzz              libFuzzer's inputs ────┴▶ Target::check ─▶ a decoder, what must hold of it, its heap
//! ```
//! A target panics where something does not hold: a decoder panics; what was accepted and encoded again decodes to
//! something else; the memory is out of proportion to the input. Checksums stand in the way of an engine, so targets
//! put right ones into the input; seals likewise, with a key of their own. Whether checksums and seals are checked is a
//! matter of unit tests.
//!
//! Owns: the targets, their seeds. Does not own: any decoder; the count of memory (`testkit::heap`); the engine and its
//! runs (`xtask/src/fuzz.rs`).

mod target;
mod targets;

use holdfast_testkit::heap::Counting;
use std::path::{Path, PathBuf};
pub use target::{Bound, Target};
pub use targets::TARGETS;

#[global_allocator]
static HEAP: Counting = Counting;

/// The variable that names the target to the engine's program.
pub const TARGET: &str = "HOLDFAST_FUZZ_TARGET";

/// The target of that name. Fails when there is none; the error names those that exist.
pub fn find(name: &str) -> Result<&'static Target, String> {
    let names = || TARGETS.iter().map(|target| target.name).collect::<Vec<_>>().join(", ");
    let found = TARGETS.iter().find(|target| target.name == name);
    found.ok_or_else(|| format!("found no target {name:?}, expected one of {}", names()))
}

/// The inputs kept in `fuzz/corpus/TARGET`, with their names: findings of earlier runs, and what was worth keeping.
/// Fails when a file cannot be read.
pub fn kept(target: &str) -> std::io::Result<Vec<(String, Vec<u8>)>> {
    let dir = corpus().join(target);
    if !dir.exists() {
        return Ok(Vec::new());
    }
    let mut kept = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        kept.push((entry.file_name().to_string_lossy().into_owned(), std::fs::read(entry.path())?));
    }
    kept.sort();
    Ok(kept)
}

/// The folder of kept inputs.
pub fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}
