//! What the programs of chores share (`xtask`, `scenarios`, `bench`, `mutations`): running commands and background processes, building
//! programs, installing what is missing, saying what happens, and taking back what was done to the machine.
//!
//! Owns: helpers that know nothing of gateways. Does not own: any scenario, and no code of the product.

pub mod binary;
pub mod cmd;
pub mod ends;
pub mod process;
pub mod proof;
pub mod report;
pub mod room;
pub mod say;
pub mod setup;
pub mod stats;
pub mod times;
pub mod undo;

use std::process::ExitCode;

/// The exit status of a program of chores. Prints the error, unless everything about it has been said.
pub fn status(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            // The closing count stays the last line where there is one.
            if !e.is::<say::Failed>() {
                eprintln!("error: {e:#}");
            }
            ExitCode::FAILURE
        }
    }
}
