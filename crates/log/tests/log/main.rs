//! The log from outside, except `descriptors`, which needs a process of its own: `cargo test -p holdfast-log --test log
//! -- sim_disk::`.

mod begun;
mod model;
mod real_disk;
mod sim_disk;
mod turns;
