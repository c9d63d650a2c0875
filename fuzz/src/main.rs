//! Lists the fuzz targets, writes their seeds, and runs inputs from files. `cargo xtask fuzz` uses it; for people it is
//! how a finding is run again.

use anyhow::{Context, Result};
use clap::Parser;
use std::path::{Path, PathBuf};

/// Fuzz targets without the engine
#[derive(Parser)]
#[command(name = "holdfast-fuzz", arg_required_else_help = true)]
enum Command {
    /// List the targets: name, longest input in bytes, what it decodes
    List,
    /// Write the seeds of a target into a folder, and the inputs kept in fuzz/corpus
    Seeds {
        /// The target
        target: String,
        /// The folder; made if it is not there
        dir: PathBuf,
    },
    /// Run a target with the inputs in these files
    Replay {
        /// The target
        target: String,
        /// The files
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
}

fn main() -> Result<()> {
    match Command::parse() {
        Command::List => {
            for target in holdfast_fuzz::TARGETS {
                println!("{}\t{}\t{}", target.name, target.bytes_max, target.about);
            }
        }
        Command::Seeds { target, dir } => {
            let target = holdfast_fuzz::find(&target).map_err(anyhow::Error::msg)?;
            std::fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
            for (number, seed) in target.seeds().into_iter().enumerate() {
                write(&dir.join(format!("seed-{number:02}")), &seed)?;
            }
            for (name, input) in holdfast_fuzz::kept(target.name)? {
                write(&dir.join(name), &input)?;
            }
        }
        Command::Replay { target, files } => {
            let target = holdfast_fuzz::find(&target).map_err(anyhow::Error::msg)?;
            for file in files {
                let input = std::fs::read(&file).with_context(|| file.display().to_string())?;
                let outcome = if target.check(&input) { "accepted" } else { "refused" };
                println!("{}: {outcome}", file.display());
            }
        }
    }
    Ok(())
}

fn write(file: &Path, bytes: &[u8]) -> Result<()> {
    std::fs::write(file, bytes).with_context(|| file.display().to_string())
}
