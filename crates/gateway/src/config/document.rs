//! Each field's type, default and comment are written once: the struct and the sample file are both made from it.

use super::{
    AdvertiseConfig, CacheConfig, EtcdConfig, GatewayConfig, InFlightConfig, JournalConfig, KeyConfig, PairConfig,
    ScrubConfig, SpaceConfig, StoreConfig, TlsConfig, UploadConfig,
};
use std::fmt::Write as _;

/// One field, for the sample file.
pub(super) struct FieldDoc {
    /// Its name in TOML.
    pub name: &'static str,
    /// Its comment, line by line.
    pub lines: &'static [&'static str],
    /// A value to show (commented out) if the default is "none".
    pub sample: &'static [&'static str],
}

/// A settings struct with its comments.
pub(super) trait Documented {
    /// The struct's comment.
    const ABOUT: &'static [&'static str];
    /// Its fields in order.
    const FIELDS: &'static [FieldDoc];
}

/// Defines a settings struct: comment, field, type, default, and for an optional field a sample value.
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

        impl document::Documented for $name {
            const ABOUT: &'static [&'static str] = &[$($about),*];
            const FIELDS: &'static [FieldDoc] = &[$(FieldDoc {
                name: stringify!($field),
                lines: &[$($line),*],
                sample: &[$($sample)?],
            }),*];
        }
    };
}
pub(super) use settings;

fn comment(out: &mut String, lines: &[&str]) {
    for line in lines {
        let _ = writeln!(out, "# {}", line.trim());
    }
}

/// The fields of one table, except nested tables, with their values or samples.
fn fields(out: &mut String, docs: &[FieldDoc], values: &toml::Table) {
    for doc in docs.iter().filter(|doc| !values.get(doc.name).is_some_and(toml::Value::is_table)) {
        out.push('\n');
        comment(out, doc.lines);
        let _ = match (values.get(doc.name), doc.sample) {
            (Some(value), _) => writeln!(out, "{} = {value}", doc.name),
            (None, sample) => writeln!(out, "# {} = {:?}", doc.name, sample.first().unwrap_or(&"")),
        };
    }
}

/// The fields of a section; none if the section does not exist.
pub(super) fn section(name: &str) -> &'static [FieldDoc] {
    match name {
        "advertise" => AdvertiseConfig::FIELDS,
        "journal" => JournalConfig::FIELDS,
        "cache" => CacheConfig::FIELDS,
        "in_flight" => InFlightConfig::FIELDS,
        "upload" => UploadConfig::FIELDS,
        "space" => SpaceConfig::FIELDS,
        "scrub" => ScrubConfig::FIELDS,
        "key" | "key_previous" => KeyConfig::FIELDS,
        "store" => StoreConfig::FIELDS,
        "tls" => TlsConfig::FIELDS,
        "etcd" => EtcdConfig::FIELDS,
        "pair" => PairConfig::FIELDS,
        _ => &[],
    }
}

/// The documented sample file: [`GatewayConfig::example`] with every field and its comment.
///
/// # Errors
/// A value that TOML cannot hold. The current example has none.
pub fn sample() -> Result<String, toml::ser::Error> {
    let values = toml::Table::try_from(GatewayConfig::example())?;
    let mut out = String::new();
    comment(&mut out, GatewayConfig::ABOUT);
    comment(
        &mut out,
        &["Sizes are whole numbers with B, KiB, MiB, GiB or TiB. Print this file: holdfast gateway sample-config"],
    );
    fields(&mut out, GatewayConfig::FIELDS, &values);
    for doc in GatewayConfig::FIELDS {
        if let Some(table) = values.get(doc.name).and_then(toml::Value::as_table) {
            out.push('\n');
            comment(&mut out, doc.lines);
            let _ = writeln!(out, "[{}]", doc.name);
            fields(&mut out, section(doc.name), table);
        }
    }
    Ok(out)
}
