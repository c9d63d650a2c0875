//! Tests of the front over pipes and real sockets, with our own client and with others.

#[cfg(test)]
mod faults;
#[cfg(test)]
mod gate;
pub mod harness;
#[cfg(test)]
mod limits;
#[cfg(test)]
mod real;
#[cfg(test)]
mod serving;
#[cfg(test)]
mod slots;
#[cfg(test)]
mod tls;
