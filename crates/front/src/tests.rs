//! The front over pipes and real sockets, against our own client and those of others.

mod faults;
mod gate;
pub(crate) mod harness;
mod real;
mod serving;
mod slots;
