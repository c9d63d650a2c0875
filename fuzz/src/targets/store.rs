//! Stores: the texts by which people and other gateways name them, and the register entry of each of several stores.

use holdfast_store::fuzz::{example_register_entries, register_entry};
use holdfast_store::{Location, Stores, check_allowed, keys};
use holdfast_types::Placement;

pub(super) fn urls(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let location = Location::parse(text);
    if let Ok(Location::Directory(path)) = &location {
        assert!(path.is_absolute() && path.parent().is_some(), "a store at {}", path.display());
    }
    if let Ok(stores) = Stores::parse(text) {
        assert_eq!(Stores::parse(&stores.to_string()).as_ref(), Ok(&stores), "written again, they are others");
    }
    let _ = Placement::parse(text);
    let places = ["s3://bucket/sets".to_string(), "file:///srv/holdfast".to_string()];
    let allowed = check_allowed(text, &places).is_ok();
    if let (true, Ok(Location::Directory(path))) = (allowed, &location) {
        assert!(path.starts_with("/srv/holdfast"), "a directory elsewhere is allowed: {}", path.display());
    }
    let key = keys::parse(text);
    if let Some((set, kind, object)) = key {
        assert_eq!(keys::object(set, kind, object), text, "an object with two keys");
    }
    let _ = (keys::check(text).is_ok(), keys::set_of(text));
    location.is_ok() || key.is_some() || Stores::parse(text).is_ok()
}

pub(super) fn all_urls() -> Vec<Vec<u8>> {
    let key = keys::root(super::sealed::SET, super::sealed::OBJECT);
    let texts = [
        "s3://bucket/sets/a?endpoint=http://10.0.0.1:9000&region=eu&path_style=true&profile=east",
        "file:///srv/holdfast/a",
        "w=2 s3://east/p s3://west/p s3://south/p",
        "c=2 w=2 file:///srv/a file:///srv/b file:///srv/c",
        &key,
    ];
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

pub(super) fn slots(data: &[u8]) -> bool {
    // The second of three stores, of which two are a quorum.
    let Some(again) = register_entry(1, 3, 2, data) else { return false };
    assert_eq!(register_entry(1, 3, 2, &again), Some(again.clone()), "encoded again, it is another");
    true
}

pub(super) fn all_slots() -> Vec<Vec<u8>> {
    example_register_entries().to_vec()
}
