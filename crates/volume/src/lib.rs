//! One volume set: what is written where, and what goes to the store next.
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
