//! Common code of the programs of chores (`xtask`, `scenarios`, `bench`, `mutations`): running commands and background
//! processes, building programs, installing missing packages, printing progress, and undoing changes to the machine.
//!
//! Owns: helpers that know nothing of gateways. Does not own: scenarios, code of the product.

pub mod binary;
mod by_id;
pub mod cmd;
pub mod ends;
pub mod pages;
mod poll;
pub mod process;
pub mod proof;
pub mod reached;
pub mod report;
pub mod room;
pub mod say;
pub mod setup;
pub mod stats;
pub mod times;
pub mod undo;

use std::process::ExitCode;

/// The exit status of a program of chores. Prints the error, unless it was printed already.
pub fn status(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            // The closing count, if there is one, stays the last line.
            if !e.is::<say::Failed>() {
                eprintln!("error: {e:#}");
            }
            ExitCode::FAILURE
        }
    }
}
