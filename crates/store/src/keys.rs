//! All object keys, in one place. A test fixes the texts: existing objects must always be found under their keys.
//!
//! ```text
//!   sets/<set>/seg/<object>     segment: sealed extents
//!   sets/<set>/map/<object>     page pack: sealed pages of the map
//!   sets/<set>/root/<object>    map root of a checkpoint or snapshot
//!   sets/<set>/head             what a recovery starts from, and the fence between lives: swapped at each checkpoint
//!   sets/<set>/head.<list>      the same of a later list of the set's stores, its number and a sum of its text; the one before says that it was left (ADR 0018)
//!   sets/<set>/joined           in a store that was added later: the cluster whose set it is
//!   sets/<set>/manifest         who holds the set in etcd mode: swapped by the holder
//!   check/<nonce>-...           written, read and deleted again by `store::check`
//! ```
//!
//! `<set>` is the set's number, `<object>` the text of its [`ObjectId`] (maker's term, member, boot counter, 128 random
//! bits), so a key is never drawn twice (R7), and an orphan's term can be read from its key.

use holdfast_types::{GroupId, ObjectId, SetId};
use sha2::{Digest, Sha256};

/// Longest key in bytes, without the store's prefix. S3 allows 1024 including the prefix.
pub const KEY_BYTES_MAX: usize = 512;

/// A key does not have a form that every store can hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "object key: found {found:?}, expected at most {KEY_BYTES_MAX} bytes of a-z A-Z 0-9 . _ - in parts between single \
     slashes, no part beginning with a dot"
)]
pub struct KeyError {
    /// The key, cut to a length that can be shown.
    pub found: String,
}

/// Checks a key. Parts that begin with a dot are refused: `..` would leave a directory store, and the others belong to
/// the store.
///
/// # Errors
/// The key does not have the form that [`KeyError`] describes.
pub fn check(key: &str) -> Result<(), KeyError> {
    let part = |part: &str| !part.is_empty() && !part.starts_with('.') && part.bytes().all(allowed);
    let good = key.len() <= KEY_BYTES_MAX && key.split('/').all(part);
    if good { Ok(()) } else { Err(KeyError { found: key.chars().take(120).collect() }) }
}

/// Checks the prefix of a listing: empty, a key, or the beginning of one.
///
/// # Errors
/// No key can begin with it.
pub fn check_prefix(prefix: &str) -> Result<(), KeyError> {
    // Any beginning of a key becomes a valid key when a letter is appended.
    if prefix.is_empty() || (prefix.len() < KEY_BYTES_MAX && check(&format!("{prefix}x")).is_ok()) {
        return Ok(());
    }
    Err(KeyError { found: prefix.chars().take(120).collect() })
}

fn allowed(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')
}

/// The kind of an object, from its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Sealed extents.
    Segment,
    /// Sealed pages of the map.
    MapPack,
    /// The root of a map.
    Root,
}

impl Kind {
    /// All kinds of immutable objects, for a scan for orphans.
    pub const ALL: [Kind; 3] = [Kind::Segment, Kind::MapPack, Kind::Root];

    fn part(self) -> &'static str {
        match self {
            Kind::Segment => "seg",
            Kind::MapPack => "map",
            Kind::Root => "root",
        }
    }
}

/// Key of an immutable object.
pub fn object(set: SetId, kind: Kind, object: ObjectId) -> String {
    format!("{}{object}", objects(set, kind))
}

/// Key of a segment.
pub fn segment(set: SetId, id: ObjectId) -> String {
    object(set, Kind::Segment, id)
}

/// Key of a pack of map pages.
pub fn map_pack(set: SetId, id: ObjectId) -> String {
    object(set, Kind::MapPack, id)
}

/// Key of a map root.
pub fn root(set: SetId, id: ObjectId) -> String {
    object(set, Kind::Root, id)
}

/// Key of the set's head.
pub fn head(set: SetId) -> String {
    format!("sets/{}/head", set.0)
}

/// Key of the head of the set's `configuration`th list of stores, whose text is `text`. Two lists that compete for the
/// same number have different keys, because one of them may have been abandoned. Readers of a set's head use [`head`]:
/// the stores know which list counts.
pub fn head_of(set: SetId, configuration: u32, text: &str) -> String {
    if configuration <= 1 {
        return head(set);
    }
    let sum: String = Sha256::digest(text)[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}.{configuration}-{sum}", head(set))
}

/// Whether the key is that of a head of the set, for any list of its stores.
pub fn is_head(set: SetId, key: &str) -> bool {
    let Some(rest) = key.strip_prefix(&head(set)) else { return false };
    let list = || {
        let (number, sum) = rest.strip_prefix('.')?.split_once('-')?;
        let number: u32 = number.parse().ok().filter(|n: &u32| *n > 1 && n.to_string() == number)?;
        (number > 1 && sum.len() == 16 && sum.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))).then_some(())
    };
    rest.is_empty() || list().is_some()
}

/// The set that a key of ours belongs to, whatever its kind. `None` for other keys.
pub fn set_of(key: &str) -> Option<SetId> {
    let mut parts = key.split('/');
    (parts.next() == Some("sets")).then_some(())?;
    set_from(parts.next()?)
}

/// Key of the set's manifest (etcd mode).
pub fn manifest(set: SetId) -> String {
    format!("sets/{}/manifest", set.0)
}

/// Key of the note in a store that was added to a set; it says to which cluster the set belongs.
pub fn joined(set: SetId) -> String {
    format!("sets/{}/joined", set.0)
}

/// Prefix of all objects of one kind, for listings.
pub fn objects(set: SetId, kind: Kind) -> String {
    format!("sets/{}/{}/", set.0, kind.part())
}

/// Prefix of everything that a set writes.
pub fn of_set(set: SetId) -> String {
    format!("sets/{}/", set.0)
}

/// Whether a set wrote this key and its deletion includes it: all keys that gateways write, except the head. Other keys
/// must not be deleted.
pub fn is_of(set: SetId, key: &str) -> bool {
    parse(key).is_some_and(|(of, _, _)| of == set) || key == manifest(set) || key == joined(set)
}

/// Parses the key of an immutable object. `None` for any other key: it is not ours, and must not be deleted.
pub fn parse(key: &str) -> Option<(SetId, Kind, ObjectId)> {
    let parts: Vec<&str> = key.split('/').collect();
    let ["sets", set, kind, id] = parts.as_slice() else { return None };
    let set = set_from(set)?;
    let kind = Kind::ALL.into_iter().find(|k| k.part() == *kind)?;
    Some((set, kind, id.parse().ok()?))
}

/// The only accepted text form of a set's number in a key: `07` and `+7` would give an object a second key.
fn set_from(text: &str) -> Option<SetId> {
    let number: u64 = text.parse().ok()?;
    (number.to_string() == text).then_some(GroupId(number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_types::{MemberId, Term};

    const ID: ObjectId = ObjectId { term: Term(7), member: MemberId(2), boot: 3, random: 0xabcd };

    #[test]
    fn key_texts_are_pinned_for_ever() {
        let id = "0000000000000007-0000000000000002-0000000000000003-0000000000000000000000000000abcd";
        let set = GroupId(12);
        assert_eq!(segment(set, ID), format!("sets/12/seg/{id}"));
        assert_eq!(map_pack(set, ID), format!("sets/12/map/{id}"));
        assert_eq!(root(set, ID), format!("sets/12/root/{id}"));
        assert_eq!(head(set), "sets/12/head");
        assert_eq!(of_set(set), "sets/12/");
        for (key, goes) in [(segment(set, ID), true), (root(set, ID), true), (manifest(set), true), (head(set), false)]
        {
            assert!(key.starts_with(&of_set(set)));
            assert_eq!(is_of(set, &key), goes, "{key}");
        }
        assert!(!is_of(set, &segment(GroupId(1), ID)) && !is_of(set, "sets/12/notes.txt"));
        assert_eq!(set_of(&head(set)), Some(set));
        assert_eq!((set_of("sets/012/head"), set_of("check/1/x")), (None, None));
        assert_eq!(manifest(set), "sets/12/manifest");
        assert_eq!((joined(set).as_str(), is_of(set, &joined(set))), ("sets/12/joined", true));
        assert_eq!(head_of(set, 1, "file:///x"), "sets/12/head");
        let second = head_of(set, 2, "c=2 file:///x");
        assert_eq!(second, "sets/12/head.2-36f296cbfbab9c56");
        assert_ne!(second, head_of(set, 2, "c=2 file:///y"), "one of them may have been abandoned");
        assert!(set_of(&second) == Some(set) && is_head(set, &second) && is_head(set, &head(set)));
        for other in ["head.1-0123456789abcdef", "head.02-0123456789abcdef", "head.2", "head.2-0123", "header", "seg"] {
            assert!(!is_head(set, &format!("sets/12/{other}")), "{other}");
        }
        for key in [segment(set, ID), map_pack(set, ID), root(set, ID), head(set), second, manifest(set)] {
            assert_eq!(check(&key), Ok(()));
        }
    }

    #[test]
    fn parse_reads_what_was_written_and_nothing_else() {
        for kind in Kind::ALL {
            assert_eq!(parse(&object(GroupId(12), kind, ID)), Some((GroupId(12), kind, ID)));
        }
        let id = ID.to_string();
        for other in [
            head(GroupId(1)),
            format!("sets/012/seg/{id}"),
            format!("sets/+1/seg/{id}"),
            format!("sets/1/other/{id}"),
            format!("sets/1/seg/{id}/x"),
            format!("x/sets/1/seg/{id}"),
            "sets/1/seg/".to_owned(),
        ] {
            assert_eq!(parse(&other), None, "{other}");
        }
    }

    #[test]
    fn keys_that_could_leave_a_directory_are_refused() {
        let long = "x".repeat(KEY_BYTES_MAX + 1);
        for bad in
            ["", "/", "a/", "/a", "a//b", "..", "a/../b", "a/.", ".tmp/x", "a/.b", "a\\b", "a\0b", "ä", "a b", &long]
        {
            assert!(check(bad).is_err(), "{bad:?}");
        }
        for good in ["a", "a/b", "a..b/c-d_e.f", &"x".repeat(KEY_BYTES_MAX)] {
            assert_eq!(check(good), Ok(()), "{good:?}");
        }
    }

    #[test]
    fn prefixes_are_beginnings_of_keys() {
        for good in ["", "a", "a/", "sets/1/seg/0000"] {
            assert_eq!(check_prefix(good), Ok(()), "{good:?}");
        }
        for bad in ["/", "a//", "../", "a/..", "ä"] {
            assert!(check_prefix(bad).is_err(), "{bad:?}");
        }
    }
}
