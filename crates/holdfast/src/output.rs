//! Output for people and for programs.

use crate::exit::CliError;
use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;
use std::io::Write;
use std::sync::OnceLock;

/// Form of what a command prints to standard output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Tables and sentences.
    #[default]
    Table,
    /// One JSON value on one line; errors as one JSON value on standard error.
    Json,
}

/// Why a result could not be printed, if so.
static UNPRINTED: OnceLock<String> = OnceLock::new();

/// Prints `text` and a newline. A reader that has gone away is no error of ours; a full disk is ([`unprinted`]).
pub fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let said = out.write_all(text.trim_end().as_bytes()).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush());
    if let Err(error) = said
        && error.kind() != std::io::ErrorKind::BrokenPipe
    {
        let _ = UNPRINTED.set(error.to_string());
    }
}

/// What was asked for has happened, and nobody has the result: a token that was granted, a file that is empty now.
pub fn unprinted() -> Option<CliError> {
    let why = UNPRINTED.get()?;
    let error = CliError::unknown(format!("the result could not be written to standard output: {why}"));
    Some(error.next("what was asked for has happened; look before repeating it"))
}

/// Prints progress and remarks: to standard error, so that standard output has the result only.
pub fn remark(text: &str) {
    let mut out = std::io::stderr().lock();
    let _ = writeln!(out, "{}", text.trim_end());
}

/// Prints a result in the form that was asked for.
pub fn show(format: Format, json: &impl Serialize, table: impl FnOnce() -> String) -> Result<(), CliError> {
    match format {
        Format::Table => say(&table()),
        Format::Json => {
            let text = serde_json::to_string(json)
                .map_err(|error| CliError::failed("the result has no JSON form").because(&error))?;
            say(&text);
        }
    }
    Ok(())
}

/// Prints an error to standard error.
pub fn complain(format: Format, error: &CliError) {
    match format {
        Format::Table => {
            remark(&format!("error: {}", error.message));
            if let Some(next) = &error.next {
                remark(&format!("next:  {next}"));
            }
        }
        Format::Json => {
            let value = serde_json::json!({ "error": {
                "code": error.code, "exit": error.exit as u8, "message": error.message, "next": error.next,
            }});
            remark(&value.to_string());
        }
    }
}

/// A table without lines: easy on the eye, and on `awk`.
pub fn table<const N: usize>(header: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header.map(str::to_string).to_vec());
    for row in rows {
        // An empty cell would shift the columns of whoever splits at blanks.
        table.add_row(row.map(|cell| if cell.is_empty() { "-".to_string() } else { cell }).to_vec());
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.trim_fmt()
}

/// A number of bytes for people: exact in binary units where it is whole, else one decimal.
pub fn bytes(count: u64) -> String {
    let exact = holdfast_types::ByteSize(count).to_string();
    if exact.len() <= 7 {
        return exact;
    }
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = "B";
    for name in UNITS {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = name;
    }
    format!("{value:.1}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_can_be_split_at_blanks() {
        let text = table(["NAME", "OWNER"], [["demo".into(), String::new()], ["a-longer-name".into(), "db1".into()]]);
        assert_eq!(text, "NAME           OWNER\ndemo           -\na-longer-name  db1");
    }

    #[test]
    fn sizes() {
        let shown = [0, 512, 1 << 30, 3 << 20, (1 << 30) + 1, 1_234_567].map(bytes);
        assert_eq!(shown, ["0B", "512B", "1GiB", "3MiB", "1.0GiB", "1.2MiB"]);
    }
}
