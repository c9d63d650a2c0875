//! A root as an object in the frame of [`crate::object`]. It has only the main part: the root or its top.

use super::top::{Opened, PartialRoot, Top};
use super::{MapError, Root};
use crate::object::{OBJECT_HEADER_BYTES, ObjectHeader, ObjectKind};
use crate::segment::seal_frame;
use bytes::Bytes;
use holdfast_seal::{ObjectOpener, ObjectSealer, Part};

/// Seals a root as one object: all of it, or its top if its leaves were written.
///
/// # Panics
/// R10: when the sealer has another data key than the root was made for: the keys of unlisted objects would be wrong.
/// MAP-M3: where the root is in leaves, and one has changed since they were written.
pub fn seal_root(root: &Root, sealer: ObjectSealer) -> Bytes {
    let plain = if root.is_in_leaves() { root.encode_top() } else { root.encode() };
    seal_encoded(root.key_id(), &plain, sealer)
}

/// As [`seal_root`], for a root of which leaves may be absent.
///
/// # Panics
/// As [`seal_root`].
pub fn seal_partial(root: &PartialRoot, sealer: ObjectSealer) -> Bytes {
    seal_encoded(root.key_id(), &root.encode(), sealer)
}

fn seal_encoded(made_for: u32, plain: &[u8], mut sealer: ObjectSealer) -> Bytes {
    let found = sealer.key_id();
    assert!(made_for == 0 || made_for == found, "R10: a root for data key {made_for} is sealed under {found}");
    let mut object = vec![0; OBJECT_HEADER_BYTES];
    seal_frame(ObjectKind::Root, &mut sealer, Part::Root, plain, &mut object);
    Bytes::from(object)
}

/// Opens an object of [`seal_root`].
///
/// # Errors
/// [`MapError`] where the object is not this root.
pub fn open_top(opener: &ObjectOpener, object: &[u8]) -> Result<Opened, MapError> {
    let (header, main) = ObjectHeader::of_whole(ObjectKind::Root, opener, object)?;
    if header.main_offset != OBJECT_HEADER_BYTES as u64 {
        let object = header.object;
        return Err(MapError::Pages { object, found: OBJECT_HEADER_BYTES as u64, expected: header.main_offset });
    }
    let plain = opener.open_part_by(header.key_id, Part::Root, main)?;
    if Top::is_one(&plain) {
        return Top::decode(&plain, header.key_id).map(Opened::Leaves);
    }
    let mut root = Root::decode(&plain)?;
    root.objects.opened_under(header.key_id).map_err(|error| MapError::Wire { what: "root", error })?;
    Ok(Opened::Whole(root))
}

/// Opens an object of [`seal_root`] with a whole root.
///
/// # Errors
/// As [`open_top`], and [`MapError::Leaf`] where it is in leaves.
pub fn open_root(opener: &ObjectOpener, object: &[u8]) -> Result<Root, MapError> {
    open_top(opener, object)?.complete(|_| None)
}
