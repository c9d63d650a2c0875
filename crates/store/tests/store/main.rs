//! The stores from outside. All tests are one program: `cargo test -p holdfast-store --test store -- contract::`.

mod clouds;
mod contract;
mod credentials;
mod s3_refusals;
mod support;
mod tls;
mod wire;
