//! The program of the scenarios; see the library. `cargo xtask CHORE` builds and runs it.

use std::process::ExitCode;

fn main() -> ExitCode {
    holdfast_scenarios::main()
}
