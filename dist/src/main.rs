//! The program of the packages; see the library. `cargo xtask dist` and `cargo xtask packages` build and run it.

use std::process::ExitCode;

fn main() -> ExitCode {
    holdfast_dist::main()
}
