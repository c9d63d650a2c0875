//! The program as people run it. All tests are one test program: `cargo test -p holdfast --test program -- dev::`.

mod after;
mod agent;
mod commands;
mod copies;
mod dev;
mod diff;
mod extras;
mod fake;
mod keys;
mod logs;
mod members;
mod reload;
mod support;
mod watch;
