//! Completions and manual pages, generated from the command line itself.

use crate::cli::Cli;
use crate::exit::CliError;
use crate::output;
use clap::CommandFactory;
use std::path::Path;

/// `holdfast completions`.
pub fn completions(shell: clap_complete::Shell) -> Result<(), CliError> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "holdfast", &mut text);
    output::say(&String::from_utf8_lossy(&text));
    Ok(())
}

/// `holdfast man`.
pub fn man(dir: Option<&Path>) -> Result<(), CliError> {
    let Some(dir) = dir else {
        let mut page = Vec::new();
        let rendered = clap_mangen::Man::new(Cli::command()).render(&mut page);
        rendered.map_err(|error| CliError::failed("the manual page").because(&error))?;
        output::say(&String::from_utf8_lossy(&page));
        return Ok(());
    };
    // A page has all options, unlike the help.
    let shown = |arg: clap::Arg| arg.hide_short_help(false).hide_long_help(false);
    let command = Cli::command().mut_subcommands(|command| command.mut_args(shown));
    let written = std::fs::create_dir_all(dir).and_then(|()| clap_mangen::generate_to(command, dir));
    written.map_err(|error| {
        let failed = CliError::failed(format!("{}: manual pages", dir.display())).because(&error);
        failed.next("give a directory that this user may create or write to")
    })
}
