//! The codecs, by number and by name.

use std::fmt;
use std::str::FromStr;

/// How an extent is compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Codec {
    /// Not compressed; also used by the other two codecs for an extent without a compressible block.
    None,
    /// lz4 block format: quick both ways.
    #[default]
    Lz4,
    /// zstd at [`super::ZSTD_LEVEL`].
    Zstd,
}

impl Codec {
    /// The codec's number in formats; it is bound into the extent.
    pub fn number(self) -> u8 {
        match self {
            Codec::None => 0,
            Codec::Lz4 => 1,
            Codec::Zstd => 2,
        }
    }

    /// The codec of a number.
    pub fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Codec::None),
            1 => Some(Codec::Lz4),
            2 => Some(Codec::Zstd),
            _ => None,
        }
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Codec::None => "none",
            Codec::Lz4 => "lz4",
            Codec::Zstd => "zstd",
        })
    }
}

/// A codec's name is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("codec: found {found:?}, expected none, lz4 or zstd")]
pub struct CodecError {
    found: String,
}

impl FromStr for Codec {
    type Err = CodecError;

    fn from_str(text: &str) -> Result<Self, CodecError> {
        match text {
            "none" => Ok(Codec::None),
            "lz4" => Ok(Codec::Lz4),
            "zstd" => Ok(Codec::Zstd),
            _ => Err(CodecError { found: text.chars().take(40).collect() }),
        }
    }
}
