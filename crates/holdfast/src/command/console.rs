//! Questions and notes on the terminal.

use crate::cli::Common;
use crate::exit::CliError;
use crate::output;
use std::io::{BufRead, IsTerminal, Write};

/// Asks for confirmation on the terminal; denied if standard input is no terminal.
pub fn confirm(question: &str) -> Result<(), CliError> {
    confirm_or(question, "confirmation is needed, and standard input is no terminal", "--yes")
}

/// Like `confirm`, with another option than `--yes`, and the message `alone` if standard input is no terminal.
pub fn confirm_or(question: &str, alone: &str, option: &str) -> Result<(), CliError> {
    if !std::io::stdin().is_terminal() {
        return Err(CliError::declined(alone).next(format!("add {option} to skip the question")));
    }
    answered(question, &mut std::io::stdin().lock(), &mut std::io::stderr().lock())
}

/// Anything but a clear yes is a no, including end of file.
fn answered(question: &str, from: &mut impl BufRead, to: &mut impl Write) -> Result<(), CliError> {
    let _ = write!(to, "{question} [y/N] ").and_then(|()| to.flush());
    let mut answer = String::new();
    let read = from.read_line(&mut answer);
    if read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes") {
        return Ok(());
    }
    Err(CliError::declined("not confirmed; nothing was changed"))
}

/// A note for people, omitted in JSON output.
pub fn tell(common: &Common, text: &str) {
    if common.output == output::Format::Table {
        output::remark(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    #[test]
    fn only_a_clear_yes_is_one() {
        let ask = |answer: &str| {
            let mut shown = Vec::new();
            let result = answered("Delete it?", &mut answer.as_bytes(), &mut shown);
            assert_eq!(String::from_utf8(shown).unwrap(), "Delete it? [y/N] ");
            result
        };
        for yes in ["y\n", "Y\n", "yes\n", " y \n", "y"] {
            ask(yes).unwrap();
        }
        for no in ["", "\n", "n\n", "no\n", "yy\n", "\ny\n"] {
            let refused = ask(no).unwrap_err();
            assert_eq!(
                (refused.exit, refused.message.as_str()),
                (Exit::Declined, "not confirmed; nothing was changed"),
                "{no:?}"
            );
        }
    }
}
