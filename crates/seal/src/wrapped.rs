//! What all wrapped keys have in common: magic, version and length, at the same places.

use crate::error::SealError;

/// The wrapped key, if its magic, version and length are the expected ones.
pub(crate) fn checked<const N: usize>(wrapped: &[u8], magic: [u8; 8], version: u32) -> Result<&[u8; N], SealError> {
    let wrapped: &[u8; N] =
        wrapped.try_into().map_err(|_| SealError::WrappedLength { found: wrapped.len(), expected: N })?;
    let found: [u8; 8] = field(wrapped, 0);
    if found != magic {
        return Err(SealError::WrappedMagic { found, expected: magic });
    }
    let found = u32::from_le_bytes(field(wrapped, 8));
    if found != version {
        return Err(SealError::WrappedVersion { found, expected: version });
    }
    let length = u32::from_le_bytes(field(wrapped, 12)) as usize;
    if length != N {
        return Err(SealError::WrappedLength { found: length, expected: N });
    }
    Ok(wrapped)
}

/// `N` bytes at `at` of a wrapped key with checked length; all offsets are constants of its layout.
pub(crate) fn field<const N: usize>(wrapped: &[u8], at: usize) -> [u8; N] {
    let mut out = [0u8; N];
    out.copy_from_slice(&wrapped[at..at + N]);
    out
}
