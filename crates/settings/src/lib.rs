//! Settings structs and their sample files, from one source: each field is declared once with its type, default and
//! comment.
//!
//! Owns: the macro [`settings!`] and the printing of sample files. Does not own: any setting. Used by gateway, agent
//! and standby. Depends on: nothing of ours.

use std::fmt::Write as _;

/// A field as the sample file shows it.
pub struct FieldDoc {
    /// Its name in TOML.
    pub name: &'static str,
    /// Its comment, line by line.
    pub lines: &'static [&'static str],
    /// The value to show, commented out, where the default is "none".
    pub sample: &'static [&'static str],
}

/// A settings struct with its comments.
pub trait Documented {
    /// The struct's comment.
    const ABOUT: &'static [&'static str];
    /// Its fields in order.
    const FIELDS: &'static [FieldDoc];
}

/// Defines a settings struct: comment, field, type, default, and a sample value for an optional field. The caller
/// imports serde's derive macros.
#[macro_export]
macro_rules! settings {
    ($(#[doc = $about:literal])* pub struct $name:ident {
        $($(#[doc = $line:literal])* $field:ident: $kind:ty = $default:expr $(, sample $sample:literal)?;)*
    }) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name { $($(#[doc = $line])* pub $field: $kind,)* }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        impl $crate::Documented for $name {
            const ABOUT: &'static [&'static str] = &[$($about),*];
            const FIELDS: &'static [$crate::FieldDoc] = &[$($crate::FieldDoc {
                name: stringify!($field),
                lines: &[$($line),*],
                sample: &[$($sample)?],
            }),*];
        }
    };
}

fn comment(out: &mut String, lines: &[&str]) {
    for line in lines {
        let _ = writeln!(out, "# {}", line.trim());
    }
}

/// Fields of one table that are not tables themselves, with their values or samples. A field with neither is a table
/// that is left out ([`off_section_of`]).
fn fields(out: &mut String, docs: &[FieldDoc], values: &toml::Table) {
    let is_shown = |doc: &&FieldDoc| match values.get(doc.name) {
        Some(value) => !value.is_table(),
        None => !doc.sample.is_empty(),
    };
    for doc in docs.iter().filter(is_shown) {
        out.push('\n');
        comment(out, doc.lines);
        let _ = match (values.get(doc.name), doc.sample) {
            (Some(value), _) => writeln!(out, "{} = {value}", doc.name),
            (None, sample) => writeln!(out, "# {} = {:?}", doc.name, sample.first().unwrap_or(&"")),
        };
    }
}

/// The sample file of `T`: `note` below the struct's comment, then all fields with their comments. `section` gives the
/// fields of each table; the entries of a table without documented fields, such as the names of hosts, are printed as
/// they are.
pub fn sample_of<T: Documented>(note: &str, values: &toml::Table, section: fn(&str) -> &'static [FieldDoc]) -> String {
    let mut out = String::new();
    comment(&mut out, T::ABOUT);
    comment(&mut out, &[note]);
    fields(&mut out, T::FIELDS, values);
    for doc in T::FIELDS {
        if let Some(table) = values.get(doc.name).and_then(toml::Value::as_table) {
            out.push('\n');
            comment(&mut out, doc.lines);
            let _ = writeln!(out, "[{}]", doc.name);
            let docs = section(doc.name);
            if docs.is_empty() {
                for (name, value) in table {
                    let _ = writeln!(out, "{name} = {value}");
                }
            }
            fields(&mut out, docs, table);
        }
    }
    out
}

/// The table `name` of `T` for the end of a sample file, commented out: whoever takes the `#` ahead of its name and of
/// its values has it. The lines of its comments stay comments.
pub fn off_section_of<T: Documented>(name: &str, values: &toml::Table) -> String {
    let mut out = "\n".to_string();
    comment(&mut out, T::ABOUT);
    let _ = writeln!(out, "#[{name}]");
    for doc in T::FIELDS {
        out.push('\n');
        comment(&mut out, doc.lines);
        let _ = match (values.get(doc.name), doc.sample) {
            (Some(value), _) => writeln!(out, "#{} = {value}", doc.name),
            (None, sample) => writeln!(out, "#{} = {:?}", doc.name, sample.first().unwrap_or(&"")),
        };
    }
    out
}
