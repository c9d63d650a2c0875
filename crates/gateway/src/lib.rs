//! gateway

pub mod config;
pub mod front;
