//! The front over pipes and real sockets, against our own client and those of others.

#[cfg(test)]
mod faults;
#[cfg(test)]
mod gate;
pub mod harness;
#[cfg(test)]
mod real;
#[cfg(test)]
mod serving;
#[cfg(test)]
mod slots;
