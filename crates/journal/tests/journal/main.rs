//! The journal from outside. One program for all of it: `cargo test -p holdfast-journal --test journal -- crash::`.

mod common;
mod corruption;
mod crash;
mod cuts;
