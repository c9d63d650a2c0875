//! Which stores a set may be put in.
//!
//! A place is the URL of a bucket, of a prefix in one, or of a directory. Whoever may create a set could otherwise make
//! a gateway write to any directory that it can write to, or send signed requests to any service that it can reach.

use crate::options::Location;
use crate::several::Stores;
use crate::url_error::StoreUrlError;
use holdfast_types::Placement;
use std::iter::once;
use std::path::Component;
use url::Url;

/// The store is in none of the places.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAllowed {
    /// It is elsewhere.
    #[error("store: found {found}, expected one within {expected} (the setting store.allowed of the gateways)")]
    Elsewhere {
        /// The store.
        found: String,
        /// The places.
        expected: String,
    },
    /// It or a place is no URL of a store.
    #[error(transparent)]
    Url(#[from] StoreUrlError),
}

/// Checks that all stores in `text` lie in one of `places`; `text` is what a set's placement is written as, one URL in
/// the simplest case. Without places, all may be used.
///
/// # Errors
/// The first store that does not, or the URL that is none.
pub fn check_allowed(text: &str, places: &[String]) -> Result<(), NotAllowed> {
    if places.is_empty() {
        return Ok(());
    }
    let all: Vec<Location> = places.iter().map(|place| Location::parse(place)).collect::<Result<_, _>>()?;
    let placement = Placement::parse(text);
    for stores in once(placement.stores).chain(placement.next.map(|(_, to)| to)) {
        for url in Stores::parse(&stores)?.urls() {
            let at = Location::parse(url)?;
            if !all.iter().any(|place| within(&at, place)) {
                return Err(NotAllowed::Elsewhere { found: url.clone(), expected: places.join(", ") });
            }
        }
    }
    Ok(())
}

/// Compares whole parts between slashes. A symbolic link in a directory is followed all the same.
fn within(at: &Location, place: &Location) -> bool {
    match (at, place) {
        (Location::Directory(at), Location::Directory(place)) => {
            // An escaped slash can hide `..` from the parser of URLs.
            at.starts_with(place) && at.components().all(|part| part != Component::ParentDir)
        }
        (Location::S3(at), Location::S3(place)) => {
            // Prefixes end in a slash, or are empty.
            at.bucket == place.bucket
                && at.prefix.starts_with(&place.prefix)
                && same_service(at.endpoint.as_deref(), place.endpoint.as_deref())
                && in_region(at.region.as_deref(), place.region.as_deref())
        }
        _ => false,
    }
}

/// Whether both name the same service; none is that of the gateway's settings.
fn same_service(at: Option<&str>, place: Option<&str>) -> bool {
    match (at, place) {
        (None, None) => true,
        (Some(at), Some(place)) => at == place || Url::parse(at).is_ok_and(|at| Url::parse(place) == Ok(at)),
        _ => false,
    }
}

/// Whether a store may be in its region: a place without one allows all. A store that names none is wherever the
/// settings of whichever gateway opens it say, so a place with a region does not allow it.
fn in_region(at: Option<&str>, place: Option<&str>) -> bool {
    place.is_none_or(|region| at == Some(region))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(text: &str, places: &[&str]) -> bool {
        let places: Vec<String> = places.iter().map(ToString::to_string).collect();
        check_allowed(text, &places).is_ok()
    }

    #[test]
    fn a_store_lies_within_a_place_by_whole_parts() {
        let places = ["s3://bucket/", "s3://other/sets/", "file:///srv/"];
        for good in [
            "s3://bucket",
            "s3://bucket/prefix",
            "s3://bucket/p?region=eu&profile=east",
            "s3://other/sets",
            "s3://other/sets/a",
            "file:///srv",
            "file:///srv/a/../b",
            "w=2 file:///srv/a s3://bucket/b s3://other/sets/c",
            "c=2 file:///srv/a",
            "file:///srv/a | c=2 file:///srv/b",
        ] {
            assert!(allowed(good, &places), "{good}");
        }
        for bad in [
            "s3://bucket2/a",
            "s3://a-bucket",
            "s3://buc/ket",
            "s3://other",
            "s3://other/setsuna",
            "s3://other/x/sets/a",
            "file:///srv2",
            "file:///etc/srv/x",
            "file:///srv/../etc",
            "file:///srv/%2e%2e/etc",
            "file:///srv/a%2f..%2f..%2fetc",
            "w=2 file:///srv/a file:///srv/b file:///etc",
            "file:///srv/a | c=2 file:///etc",
            "file:///srv/a => c=2 file:///etc",
            "file:///etc | c=2 file:///srv/a",
            "nonsense",
            "",
        ] {
            assert!(!allowed(bad, &places), "{bad}");
            assert!(allowed(bad, &[]), "without places all may be used: {bad}");
        }
    }

    #[test]
    fn a_service_of_its_own_is_allowed_by_name_only() {
        let named = "s3://bucket/?endpoint=https://s3.example:9000";
        assert!(allowed("s3://bucket/a?endpoint=https://s3.example:9000/", &[named]));
        for bad in ["s3://bucket/a", "s3://bucket/a?endpoint=http://s3.example:9000", "s3://bucket/a?endpoint=x"] {
            assert!(!allowed(bad, &[named]), "{bad}");
        }
        assert!(!allowed("s3://bucket/a?endpoint=http://10.0.0.1:80", &["s3://bucket/"]));
    }

    /// Where data may be by law is a matter of the region too, which services with an endpoint take from the URL.
    #[test]
    fn a_place_with_a_region_allows_no_other_region() {
        let there = "s3://bucket/?region=eu-west-1";
        assert!(allowed("s3://bucket/a?region=eu-west-1", &[there]));
        for bad in ["s3://bucket/a?region=us-east-1", "s3://bucket/a", "c=2 s3://bucket/a?region=us-east-1"] {
            assert!(!allowed(bad, &[there]), "{bad}");
            assert!(allowed(bad, &[there, "s3://bucket/"]), "another place allows all regions: {bad}");
        }
        let both = "s3://bucket/a?endpoint=https://s3.example&region=eu";
        assert!(allowed(both, &["s3://bucket/?endpoint=https://s3.example&region=eu"]));
        assert!(!allowed(both, &["s3://bucket/?endpoint=https://s3.example&region=us"]));
    }

    #[test]
    fn the_error_names_the_store_and_the_places() {
        let places = ["s3://bucket/".to_string(), "file:///srv/".to_string()];
        let error = check_allowed("w=2 file:///srv/a file:///etc file:///srv/b", &places).unwrap_err().to_string();
        let expected = "found file:///etc, expected one within s3://bucket/, file:///srv/";
        assert!(error.contains(expected), "{error}");
    }
}
