//! The stores from outside. One program for all of it: `cargo test -p holdfast-store --test store -- contract::`.

mod contract;
mod credentials;
mod s3_refusals;
mod support;
mod tls;
mod wire;
