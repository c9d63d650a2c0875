//! Finds mistakes in the text of a settings file: their lines, and for an unknown setting the similar ones that exist.

use super::GatewayConfig;
use super::document;
use holdfast_settings::{Documented, FieldDoc};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use toml::de::{DeTable, DeValue};

/// Maximum number of suggestions for an unknown setting, if several are equally similar.
const NEAREST_MAX: usize = 3;

/// Maximum number of unknown settings that are told at once: each is compared with all that exist.
const UNKNOWN_MAX: usize = 20;

/// A mistake in the text of a settings file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Its line, from 1.
    pub line: usize,
    /// What was found, and what was expected.
    pub what: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}

/// Reads settings. Checks only the types of values.
///
/// # Errors
/// It is not TOML; otherwise the unknown settings, at most 20 of them; otherwise the first value of a wrong type. The
/// list is never empty.
pub fn read(text: &str) -> Result<toml::Table, Vec<Mistake>> {
    let at = |span: Option<Range<usize>>, what: String| {
        let start = span.map_or(0, |span| span.start).min(text.len());
        Mistake { line: 1 + text.as_bytes()[..start].iter().filter(|&&byte| byte == b'\n').count(), what }
    };
    let no_toml = |error: toml::de::Error| vec![at(error.span(), format!("is no TOML: {}", error.message()))];
    let parsed = DeTable::parse(text).map_err(no_toml)?;
    let parsed = parsed.get_ref();
    let mut places: Vec<(String, Range<usize>)> = Vec::new();
    let mut mistakes = Vec::new();
    for (key, value) in parsed {
        let name: &str = key.get_ref();
        places.push((name.to_string(), key.span().start..value.span().end));
        if mistakes.len() >= UNKNOWN_MAX {
            break;
        }
        if let Err(what) = known(name) {
            mistakes.push(at(Some(key.span()), what));
            continue;
        }
        let DeValue::Table(table) = value.get_ref() else { continue };
        for (field, value) in table.iter().filter(|_| !document::section(name).is_empty()) {
            let dotted = format!("{name}.{}", field.get_ref());
            if mistakes.len() < UNKNOWN_MAX
                && let Err(what) = known(&dotted)
            {
                mistakes.push(at(Some(field.span()), what));
            }
            places.push((dotted, field.span().start..value.span().end));
        }
    }
    if mistakes.is_empty()
        && let Err(error) = GatewayConfig::parse(text)
    {
        let span = error.span();
        // The section's own span includes those of its fields: the last match is the field.
        let place = span.as_ref().and_then(|span| places.iter().rfind(|(_, place)| place.contains(&span.start)));
        let name = place.map_or(String::new(), |(name, _)| format!("{name}: "));
        mistakes.push(at(span, format!("{name}{}", error.message())));
    }
    if !mistakes.is_empty() {
        mistakes.sort_by_key(|mistake| mistake.line);
        return Err(mistakes);
    }
    text.parse().map_err(no_toml)
}

/// The line of each setting and each section that a text names, from 1. Of a text that is no TOML: none.
pub fn lines(text: &str) -> BTreeMap<String, usize> {
    let line = |at: usize| 1 + text.as_bytes()[..at.min(text.len())].iter().filter(|&&byte| byte == b'\n').count();
    let mut lines = BTreeMap::new();
    let Ok(parsed) = DeTable::parse(text) else { return lines };
    for (key, value) in parsed.get_ref() {
        let name: &str = key.get_ref();
        lines.insert(name.to_string(), line(key.span().start));
        if let DeValue::Table(table) = value.get_ref() {
            for (field, _) in table.iter() {
                lines.insert(format!("{name}.{}", field.get_ref()), line(field.span().start));
            }
        }
    }
    lines
}

/// Whether `key` is a setting (`name`, `section.field`) or a section.
///
/// # Errors
/// It is neither. The text names similar ones.
pub fn known(key: &str) -> Result<(), String> {
    let all = all();
    if all.contains(key) {
        return Ok(());
    }
    let found = match key.split_once('.') {
        None => format!("unknown field `{key}`"),
        Some((section, field)) if !document::section(section).is_empty() => {
            format!("unknown field `{field}` in [{section}]")
        }
        Some((section, _)) if all.contains(section) => format!("{section} is no section"),
        Some((section, _)) => format!("unknown field `{section}`"),
    };
    let shown: Vec<String> = nearest(key, &all).iter().map(|near| show(near)).collect();
    Err(match shown.as_slice() {
        [] => found,
        [one] => format!("{found}; the nearest known one is {one}"),
        several => format!("{found}; the nearest known ones are {}", several.join(", ")),
    })
}

fn show(key: &str) -> String {
    if document::section(key).is_empty() { key.to_string() } else { format!("[{key}]") }
}

/// Every setting as `name` or `section.field`, and every section.
fn all() -> BTreeSet<String> {
    let names = |fields: &'static [FieldDoc]| fields.iter().map(|field| field.name);
    let mut all = BTreeSet::new();
    for name in names(GatewayConfig::FIELDS) {
        all.insert(name.to_string());
        all.extend(names(document::section(name)).map(|field| format!("{name}.{field}")));
    }
    all
}

/// The settings with the smallest edit distance to `key`, or with the same name in another section; none if the
/// distance is too large.
fn nearest<'a>(key: &str, all: &'a BTreeSet<String>) -> Vec<&'a str> {
    let last = |key: &str| key.rsplit('.').next().map(str::to_string);
    let length = key.chars().count();
    let most = (length / 3).max(2).min(length.saturating_sub(1));
    let cost = |other: &str| {
        // Words are at least as far apart as their lengths; to count the letters takes memory for each of them.
        let far = length.abs_diff(other.chars().count()) > most;
        let letters = if far { usize::MAX } else { distance(key, other) };
        if last(key) == last(other) { letters.min(2) } else { letters }
    };
    let costs: Vec<(usize, &str)> = all.iter().map(|other| (cost(other), other.as_str())).collect();
    let least = costs.iter().map(|(cost, _)| *cost).min().filter(|&cost| cost <= most);
    let near = costs.iter().filter(|(cost, _)| Some(*cost) == least).map(|(_, other)| *other);
    near.take(NEAREST_MAX).collect()
}

/// Number of letters to insert, delete, change, or swap with a neighbour, to turn one text into the other.
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let mut rows = vec![vec![0; other.len() + 1]; one.len() + 1];
    for i in 0..=one.len() {
        for j in 0..=other.len() {
            if i == 0 || j == 0 {
                rows[i][j] = i + j;
                continue;
            }
            let changed = rows[i - 1][j - 1] + usize::from(one[i - 1] != other[j - 1]);
            let mut best = changed.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && one[i - 1] == other[j - 2] && one[i - 2] == other[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[one.len()][other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mistakes(text: &str) -> Vec<String> {
        read(text).err().unwrap_or_default().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_typo_is_told_with_its_line_and_what_was_meant() {
        let text = "name = \"g1\"\n\n[journal]\nbuond = \"1GiB\"\nreserve = \"64MiB\"\n\n[uplaod]\nbytes = \"64MiB\"\n";
        assert_eq!(
            mistakes(text),
            [
                "line 4: unknown field `buond` in [journal]; the nearest known one is journal.bound",
                "line 7: unknown field `uplaod`; the nearest known one is [upload]",
            ]
        );
    }

    #[test]
    fn what_stands_in_the_wrong_section_is_found() {
        for (key, near) in [
            ("bound", "unknown field `bound`; the nearest known one is journal.bound"),
            ("advertise.nbd_listen", "unknown field `nbd_listen` in [advertise]; the nearest known one is nbd_listen"),
            ("ssl", "unknown field `ssl`; the nearest known one is [tls]"),
            ("jurnal.bound", "unknown field `jurnal`; the nearest known one is journal.bound"),
            (
                "interval_ms",
                "unknown field `interval_ms`; the nearest known ones are scrub.interval_ms, upload.interval_ms",
            ),
            ("colour", "unknown field `colour`"),
            ("x", "unknown field `x`"),
            ("name.first", "name is no section"),
        ] {
            let why = known(key).unwrap_err();
            assert!(why == near || key == "name.first" && why.starts_with(near), "{key}: {why}");
        }
        for good in ["name", "journal", "journal.bound", "key_previous.file"] {
            known(good).unwrap();
        }
    }

    #[test]
    fn however_much_is_unknown_the_first_of_it_is_told() {
        let text: String = (0..1000).map(|n| format!("unknown{n} = 1\n")).collect();
        assert_eq!(mistakes(&text).len(), UNKNOWN_MAX);
        assert_eq!(mistakes(&format!("[journal]\n{text}")).len(), UNKNOWN_MAX);
        let long = "x".repeat(200_000);
        assert_eq!(mistakes(&format!("{long} = 1\n")), [format!("line 1: unknown field `{long}`")]);
    }

    #[test]
    fn a_value_of_another_type_is_told_with_its_line_and_field() {
        for (text, expected) in [
            ("\n\n[journal]\nreserve = \"64MiB\"\nbound = \"1GB\"\n", "line 5: journal.bound: "),
            ("name = \"g1\"\nrtt_ms = \"soon\"\n", "line 2: rtt_ms: "),
            ("journal = { bound = 5 }\n", "line 1: journal.bound: "),
            ("name = \"g1\"\n\n[upload]\ncompression = \"zip\"\n", "line 4: upload.compression: unknown variant `zip`"),
        ] {
            let found = mistakes(text);
            assert!(found.len() == 1 && found[0].starts_with(expected), "expected {expected:?} in {found:?}");
        }
    }

    #[test]
    fn what_is_no_toml_is_told_with_its_line() {
        for (text, line) in [("name = ", 1), ("name = \"g1\"\n[journal\n", 2), ("rtt_ms = 1\nrtt_ms = 2\n", 2)] {
            let found = mistakes(text);
            assert!(found.len() == 1 && found[0].starts_with(&format!("line {line}: is no TOML: ")), "{found:?}");
        }
    }

    #[test]
    fn what_is_right_is_read() {
        let text = super::super::sample().unwrap();
        assert_eq!(read(&text).unwrap(), text.parse::<toml::Table>().unwrap());
        assert_eq!(mistakes(""), [""; 0]);
    }

    #[test]
    fn each_setting_is_found_at_its_line() {
        let found = lines("name = \"g1\"\n\n[journal]\nbound = \"1GiB\"\n\n[tls]\nca = \"/ca\"\n");
        for (setting, line) in [("name", 1), ("journal", 3), ("journal.bound", 4), ("tls.ca", 7)] {
            assert_eq!(found.get(setting), Some(&line), "{setting}: {found:?}");
        }
        assert_eq!(lines("name = "), BTreeMap::new());
    }

    #[test]
    fn letters_between_words() {
        for (one, other, letters) in
            [("", "abc", 3), ("bound", "bound", 0), ("buond", "bound", 1), ("jurnal", "journal", 1)]
        {
            assert_eq!((distance(one, other), distance(other, one)), (letters, letters), "{one} {other}");
        }
    }
}
