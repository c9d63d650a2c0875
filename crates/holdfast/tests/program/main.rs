//! The program as people run it. One program for all of its tests: `cargo test -p holdfast --test program -- dev::`.

mod agent;
mod commands;
mod copies;
mod dev;
mod diff;
mod extras;
mod fake;
mod watch;
