//! The sections of the settings, and the sample file.

use super::{
    AdvertiseConfig, CacheConfig, EtcdConfig, GatewayConfig, InFlightConfig, JournalConfig, KeyConfig, PairConfig,
    ScrubConfig, SpaceConfig, StoreConfig, TlsConfig, UploadConfig,
};
use holdfast_settings::{Documented, FieldDoc, sample_of};

/// Below the comment of the sample file.
const NOTE: &str =
    "Sizes are whole numbers with B, KiB, MiB, GiB or TiB. Print this file: holdfast gateway sample-config";

/// The fields of a section; none where there is no such section.
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
/// Never for the example as it is; a value that TOML cannot hold would be one.
pub fn sample() -> Result<String, toml::ser::Error> {
    let values = toml::Table::try_from(GatewayConfig::example())?;
    Ok(sample_of::<GatewayConfig>(NOTE, &values, section))
}
