//! Output for people and for programs.

use crate::exit::CliError;
use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;
use std::io::Write;
use std::sync::OnceLock;

/// Format of what a command prints to standard output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Tables and sentences.
    #[default]
    Table,
    /// One JSON value on one line; errors as one JSON value on standard error.
    Json,
}

/// Format of the log on standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// One JSON object per line, for programs that collect logs.
    Json,
}

/// Why a result could not be printed, if it could not.
static UNPRINTED: OnceLock<String> = OnceLock::new();

/// Prints `text` and a newline. A closed pipe is not an error; a full disk is ([`unprinted`]).
pub fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let said = out.write_all(text.trim_end().as_bytes()).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush());
    if let Err(error) = said
        && error.kind() != std::io::ErrorKind::BrokenPipe
    {
        let _ = UNPRINTED.set(error.to_string());
    }
}

/// The error for a result that could not be printed: the command took effect, but its result (such as a token) is lost.
pub fn unprinted() -> Option<CliError> {
    let why = UNPRINTED.get()?;
    let error = CliError::unknown(format!(
        "the command succeeded, but its result could not be written to standard output: {why}"
    ));
    Some(error.next("do not repeat the command before you have checked its effect"))
}

/// Prints progress and notes to standard error; standard output has the result only.
pub fn remark(text: &str) {
    let mut out = std::io::stderr().lock();
    let _ = writeln!(out, "{}", text.trim_end());
}

/// Prints a result in the requested format.
pub fn show(format: Format, json: &impl Serialize, table: impl FnOnce() -> String) -> Result<(), CliError> {
    match format {
        Format::Table => say(&table()),
        Format::Json => {
            let text = serde_json::to_string(json)
                .map_err(|error| CliError::failed("the result cannot be encoded as JSON").because(&error))?;
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

/// A table without lines, for people and for `awk`.
pub fn table<const N: usize>(header: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header.map(str::to_string).to_vec());
    for row in rows {
        // An empty cell would shift the columns for programs that split at blanks.
        table.add_row(row.map(|cell| if cell.is_empty() { "-".to_string() } else { cell }).to_vec());
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.trim_fmt()
}

/// Preferred width of a table or a line of facts, in characters: long error messages are shortened or wrapped to keep
/// it.
pub const WIDTH: usize = 100;

/// Cells up to this many characters are never shortened: ordinary values such as `65.0MiB of 1024GiB`.
const CELL_WHOLE: usize = 20;

/// Shortest width of a shortened cell.
const CELL_MIN: usize = 12;

/// A table in which the `long` columns (numbers from 0) may hold error messages of any length. If the table is wider
/// than [`WIDTH`], such a message is shortened in its cell and repeated in full below the table, after the first
/// `names` cells of its row.
pub fn table_with_messages<const N: usize>(
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
    long: &[usize],
    names: usize,
) -> String {
    let mut rows: Vec<[String; N]> = rows.into_iter().collect();
    let width = |text: &str| text.chars().count();
    let column = |at: usize| rows.iter().map(|row| width(&row[at])).chain([width(header[at])]).max().unwrap_or(0);
    let mut widths: Vec<usize> = (0..N).map(column).collect();
    let whole = |at: usize| rows.iter().map(|row| width(&row[at])).filter(|&width| width <= CELL_WHOLE).max();
    let least = |at: usize| CELL_MIN.max(width(header[at])).max(whole(at).unwrap_or(0));
    let mut over = (widths.iter().sum::<usize>() + 2 * (N - 1)).saturating_sub(WIDTH);
    while over > 0 {
        // The widest column first.
        let Some(&at) = long.iter().filter(|&&at| widths[at] > least(at)).max_by_key(|&&at| widths[at]) else {
            break;
        };
        let less = over.min(widths[at] - least(at));
        widths[at] -= less;
        over -= less;
    }
    let mut below = String::new();
    for row in &mut rows {
        for &at in long.iter().filter(|&&at| at < N) {
            if width(&row[at]) <= widths[at] {
                continue;
            }
            let short: String = row[at].chars().take(widths[at] - 1).collect();
            let message = std::mem::replace(&mut row[at], format!("{}…", short.trim_end_matches([' ', ':', ','])));
            below.push_str(&format!("\n{}: {message}", row[..names].join(" ")));
        }
    }
    table(header, rows) + &below
}

/// A name and its value in two columns. A long value is wrapped within the second column.
pub fn fact(name: &str, value: &str) -> String {
    const COLUMN: usize = 22;
    let mut text = format!("{name:<COLUMN$}");
    let mut used = text.chars().count();
    let value = if value.is_empty() { "-" } else { value };
    for (at, word) in value.split(' ').enumerate() {
        let len = word.chars().count();
        if at > 0 && used + 1 + len > WIDTH && used > COLUMN {
            text.push_str(&format!("\n{:COLUMN$}", ""));
            used = COLUMN;
        } else if at > 0 {
            text.push(' ');
            used += 1;
        }
        text.push_str(word);
        used += len;
    }
    text
}

/// A number of bytes for people, in binary units: exact if the exact number is short, otherwise with one decimal.
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

    fn messages(rows: &[[&str; 4]]) -> String {
        let rows = rows.iter().map(|row| row.map(str::to_string));
        table_with_messages(["MEMBER", "GATEWAY", "STATE", "JOURNAL"], rows, &[2, 3], 2)
    }

    #[test]
    fn a_long_message_does_not_widen_the_table() {
        let why = "unreachable: connect to 10.0.0.2:7400: Connection refused (os error 111), tried 4 times within 1.2 seconds";
        let text = messages(&[["m1", "g1", "ready", "3MiB of 8GiB"], ["m2", "g2", why, ""]]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1].split_whitespace().collect::<Vec<_>>(), ["m1", "g1", "ready", "3MiB", "of", "8GiB"]);
        assert!(lines[2].starts_with("m2      g2       unreachable: connect to 10.0.0.2:7400: Conn"), "{text}");
        assert!(lines[2].contains("…") && lines[2].ends_with("  -"), "{text}");
        assert!(lines[..3].iter().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert_eq!(lines[3..], [format!("m2 g2: {why}")]);
    }

    #[test]
    fn short_messages_stay_in_their_cells() {
        let rows = [["m1", "g1", "unreachable: no answer", "FAILED: no space"]];
        let plain = table(["MEMBER", "GATEWAY", "STATE", "JOURNAL"], rows.map(|row| row.map(str::to_string)));
        assert_eq!(messages(&rows), plain);
    }

    /// Seen with three gateways: the table has `65.0MiB of 4G…`, and the whole value is below it.
    #[test]
    fn ordinary_values_are_never_shortened() {
        let name = "a-gateway-with-a-long-name-that-makes-its-table-wider-than-a-terminal-of-a-hundred-columns";
        let text = messages(&[["m1", name, "ready", "65.0MiB of 1024GiB"]]);
        assert!(text.ends_with("  ready  65.0MiB of 1024GiB") && text.lines().count() == 2, "{text}");
    }

    #[test]
    fn two_long_messages_share_the_width() {
        let (long, longer) = ("x".repeat(90), format!("FAILED: {}", "ä ".repeat(90)));
        let text = messages(&[["m1", "g1", &long, &longer]]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[..2].iter().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert_eq!(lines[2..], [format!("m1 g1: {long}"), format!("m1 g1: {longer}")], "all of both");
    }

    #[test]
    fn a_long_value_is_wrapped_in_its_column() {
        assert_eq!(fact("owner", ""), format!("{:<22}-", "owner"));
        assert_eq!(fact("store", "s3://b/p"), "store                 s3://b/p");
        let value = format!("full since 2 min ago: put {} HTTP 507 {}", "a word and ".repeat(12), "y".repeat(120));
        let text = fact("store health", &value);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.len() > 2 && lines[1..].iter().all(|line| line.starts_with(&" ".repeat(22))), "{text}");
        let wide: Vec<&&str> = lines.iter().filter(|line| line.chars().count() > WIDTH).collect();
        assert!(wide.iter().all(|line| line.trim().len() == 120), "only what has no blank: {text}");
        let words: Vec<&str> = text.split_whitespace().skip(2).collect();
        assert_eq!(words, value.split_whitespace().collect::<Vec<_>>(), "nothing is lost");
    }

    #[test]
    fn sizes() {
        let shown = [0, 512, 1 << 30, 3 << 20, (1 << 30) + 1, 1_234_567].map(bytes);
        assert_eq!(shown, ["0B", "512B", "1GiB", "3MiB", "1.0GiB", "1.2MiB"]);
    }
}
