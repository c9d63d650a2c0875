//! The sections of the settings, and the sample file.

use super::{
    AdvertiseConfig, AuditConfig, CacheConfig, EtcdConfig, GatewayConfig, InFlightConfig, JournalConfig, KeyConfig,
    PairConfig, PlacingConfig, ScrubConfig, SpaceConfig, StoreConfig, TlsConfig, TracesConfig, UploadConfig,
};
use holdfast_settings::{Documented, FieldDoc, sample_of};

/// Below the comment of the sample file.
const NOTE: &str = "Sizes are numbers with B, KiB, MiB, GiB, TiB or PiB, such as 1.5GiB. Print this file: holdfast gateway sample-config";

/// The fields of a section; none if the section does not exist.
pub(super) fn section(name: &str) -> &'static [FieldDoc] {
    match name {
        "advertise" => AdvertiseConfig::FIELDS,
        "journal" => JournalConfig::FIELDS,
        "placing" => PlacingConfig::FIELDS,
        "cache" => CacheConfig::FIELDS,
        "in_flight" => InFlightConfig::FIELDS,
        "upload" => UploadConfig::FIELDS,
        "space" => SpaceConfig::FIELDS,
        "scrub" => ScrubConfig::FIELDS,
        "key" | "key_previous" => KeyConfig::FIELDS,
        "store" => StoreConfig::FIELDS,
        "tls" => TlsConfig::FIELDS,
        "audit" => AuditConfig::FIELDS,
        "traces" => TracesConfig::FIELDS,
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
    Ok(sample_of::<GatewayConfig>(NOTE, &values, section))
}
