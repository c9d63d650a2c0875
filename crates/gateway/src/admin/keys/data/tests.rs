use super::*;
use holdfast_set::keyring::ClusterKeys;
use holdfast_types::{GroupId, MemberId};

const SET: SetId = GroupId(3);

fn entry(ids: &[u32], key_id: u32) -> SetEntry {
    let keys = ClusterKeys::of_bytes(1, None);
    let wrap = |id: &u32| keys.current().wrap(&DataKey::from_bytes([*id as u8; 32]), SET, *id, [7; 24]);
    SetEntry::new(&Name::new("demo").unwrap(), &join_ring(ids.iter().map(wrap).collect()), key_id, MemberId(1))
}

fn swapped(command: Option<ClusterCommand>) -> (Vec<u8>, u32) {
    let Some(ClusterCommand::SwapKeys { wrapped_key, key_id, .. }) = command else { panic!("{command:?}") };
    (wrapped_key, key_id)
}

#[test]
fn what_was_decided_is_one_entry_that_compares() {
    let before = entry(&[1, 2, 3], 2);
    let (ring, key_id) = swapped(command_for(SET, &before, &Next::Seal(3)));
    assert_eq!((ring, key_id), (before.wrapped_key.clone(), 3));
    let (ring, key_id) = swapped(command_for(SET, &before, &Next::Drop([1].into())));
    assert_eq!((ring_ids(&ring), key_id), ([2, 3].into(), 2));
    assert!(command_for(SET, &before, &Next::Nothing).is_none());
    // The ring never becomes empty, whatever the decision was.
    assert!(command_for(SET, &before, &Next::Drop([1, 2, 3].into())).is_none());
}

#[test]
fn a_ring_opens_with_every_key_in_it_and_seals_with_the_one_that_is_said() {
    let keys = ClusterKeys::of_bytes(1, None);
    let set_key = keys.set_key(SET, &entry(&[1, 2], 1)).unwrap();
    assert_eq!(set_key.ring(), Ring { keys: [1, 2].into(), seals: 1 });
    let error = keys.set_key(SET, &entry(&[1, 2], 3)).unwrap_err().to_string();
    assert!(error.contains("found data key 2, expected 3"), "{error}");
    // A recovery opens with the keys in the head.
    let keyring = keys.keyring_of(&entry(&[1, 2], 2));
    assert_eq!(keys.open_keyring(&keyring, SET, 2).unwrap().ring(), Ring { keys: [1, 2].into(), seals: 2 });
    assert!(keys.open_keyring(&keyring, SET, 3).is_err());
}
