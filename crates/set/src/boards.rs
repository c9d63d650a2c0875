//! What background tasks of a set show, and requests to them. The set's server has the boards and the tasks have the
//! server, so neither has to know the other's code.

pub mod book;
mod migration;
mod scrub;

pub use migration::MigrationBoard;
pub use scrub::{ScrubBoard, Shown};
