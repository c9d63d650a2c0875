//! The head of a set: what a recovery reads first, in part before it has a key.

use super::sealed::{self, framed, joined, parted};
use holdfast_control::set::{Links, Restored};
use holdfast_seal::{Argon2id, ClusterKey, DataKey, Part, ring_ids, ring_wrapped_by, split_ring};
use holdfast_types::{Epoch, LogId, Name};
use holdfast_volume::head::{
    Covered, Head, Keyring, SetLife, is_tombstone, open_head, read_keyring, seal_head, seal_tombstone,
};
use holdfast_volume::object::ObjectKind;

/// The keyring in clear, and the sealed part.
pub(super) fn heads(data: &[u8]) -> bool {
    let Some((clear, plain)) = parted(data) else { return false };
    let object = framed(ObjectKind::Head, clear, Part::Header, plain);
    let Ok((_, keyring)) = read_keyring(&object) else { return false };
    let _ = (is_tombstone(&object), keyring.passphrase.check());
    let ring = &keyring.wrapped_key;
    let _ = (split_ring(ring).is_ok(), ring_ids(ring), ring_wrapped_by(ring));
    let Ok(head) = open_head(&sealed::opener(), &object) else { return false };
    let again = open_head(&sealed::opener(), &seal_head(&head, &keyring, sealed::sealer()));
    assert_eq!(again.ok().as_ref(), Some(&head), "sealed again, it is another");
    true
}

pub(super) fn all_heads() -> Vec<Vec<u8>> {
    let name = Name::new("tank").expect("a name of letters");
    let cluster = ClusterKey::from_key_file(&[7; 32]).expect("a key of 32 bytes");
    let wrapped_key = cluster.wrap(&DataKey::from_bytes([1; 32]), sealed::SET, sealed::KEY_ID, [3; 24]);
    let keyring = Keyring { wrapped_key, passphrase: Argon2id::ours([5; 16]) };
    let covered = Covered { upto: LogId::new(2, 30), generation: 4, at_unix_ms: 1_700_000_000_000 };
    let head = Head {
        life: SetLife { cluster: 11, generation: 4 },
        raised_for: 0,
        name: name.clone(),
        epoch: Epoch(9),
        covered: Some(covered),
        content: Restored::default(),
        links: Links::default(),
    };
    let objects = [seal_head(&head, &keyring, sealed::sealer()), seal_tombstone(11, name, sealed::sealer())];
    objects.iter().map(|object| joined(object, Part::Header)).collect()
}
