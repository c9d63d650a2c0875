//! Tests of the journal's public interface, in one program: `cargo test -p holdfast-journal --test journal -- crash::`.

mod common;
mod corruption;
mod crash;
mod cuts;
mod golden;
mod reads;
mod starts;
mod upkeep;
