//! One volume set: its journal index, its map in the store, and its plans for checkpoints and garbage collection. Pure.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod ahead;
pub mod entry;
pub mod head;
pub mod index;
pub mod machine;
pub mod map;
pub mod object;
pub mod plan;
pub mod segment;
pub mod space;
pub mod warm;
mod wire;
