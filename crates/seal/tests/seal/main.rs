//! Seal, from outside: what its users rely on and its unit tests do not reach.

mod keys;
mod parameters;
