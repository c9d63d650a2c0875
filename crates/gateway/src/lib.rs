//! gateway

pub mod front;
