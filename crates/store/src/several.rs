//! The stores of a set as one text: the URL of one store, or several URLs with their write quorum.
//!
//! ```text
//!   s3://bucket/prefix                                   one store: as it always was
//!   w=2 s3://east/p s3://west/p?region=.. s3://south/p   three, two of which must have an object before it counts
//!   c=2 w=2 s3://east/p s3://west/p s3://north/p         the same after its stores were changed once: its second configuration
//! ```
//! It is one text because it is passed on as one: entry of group 0, admin protocol, plan, command line. URLs contain no
//! blanks. A build that knows only single stores refuses the second form, because it is no URL; a build without changes
//! of stores refuses the third.

use crate::options::Location;
use crate::url_error::StoreUrlError;
use std::fmt;

/// Maximum number of stores of a set.
pub const STORES_MAX: usize = 5;

/// The list of stores that a set was created with.
pub const FIRST_CONFIGURATION: u32 = 1;

/// The stores of a set in their order, and the number of them that must have an object before it counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stores {
    urls: Vec<String>,
    write_quorum: usize,
    configuration: u32,
}

impl Stores {
    /// Combines the parts. Without `write_quorum`: the smallest majority.
    ///
    /// # Errors
    /// [`StoreUrlError`] if they cannot be used together: two write quorums must share a store, otherwise two lives of
    /// a set could both commit.
    pub fn new(urls: Vec<String>, write_quorum: Option<usize>) -> Result<Self, StoreUrlError> {
        let n = urls.len();
        let bad = |name, found: String, expected| Err(StoreUrlError::Option { name, found, expected });
        if n == 0 || n > STORES_MAX {
            return bad("stores", n.to_string(), "1 to 5");
        }
        for (at, url) in urls.iter().enumerate() {
            Location::parse(url)?;
            // The text puts a blank between them; the text of a single store is its URL, whatever it contains.
            if n > 1 && url.contains(char::is_whitespace) {
                return bad("store", url.clone(), "a URL without blanks");
            }
            if urls[..at].contains(url) {
                return bad("stores", format!("{url} twice"), "different stores");
            }
        }
        let write_quorum = write_quorum.unwrap_or(n / 2 + 1);
        if write_quorum > n || 2 * write_quorum <= n {
            let found = format!("{write_quorum} of {n}");
            return bad("write quorum", found, "more than half of the stores, and not more than there are");
        }
        Ok(Self { urls, write_quorum, configuration: FIRST_CONFIGURATION })
    }

    /// Whether a new set may be placed there. Existing sets are opened all the same.
    ///
    /// # Errors
    /// [`StoreUrlError`] if every store must have everything. Then one store that is away stops checkpoints, which is
    /// worse than a single store; and one that lost its objects could not be filled again, since no quorum is left
    /// without it (ADR 0018).
    pub fn check_new(&self) -> Result<(), StoreUrlError> {
        let n = self.urls.len();
        if let Some(url) = self.urls.iter().find(|url| url.contains(char::is_whitespace)) {
            let expected = "a URL without blanks";
            return Err(StoreUrlError::Option { name: "store", found: url.clone(), expected });
        }
        if n == 1 || self.write_quorum < n {
            return Ok(());
        }
        let expected = "fewer than there are stores, of three stores or more: otherwise the loss of one store stops checkpoints and recovery, and a store that \
                        lost its objects is never filled again";
        Err(StoreUrlError::Option { name: "write quorum", found: format!("{n} of {n}"), expected })
    }

    /// Parses the output of [`fmt::Display`].
    pub fn parse(text: &str) -> Result<Self, StoreUrlError> {
        if let Some(rest) = text.strip_prefix("c=") {
            let expected =
                "c=NUMBER and the stores of that configuration, such as `c=2 w=2 s3://east/p s3://west/p s3://south/p`";
            let bad = || StoreUrlError::Option { name: "stores", found: text.chars().take(200).collect(), expected };
            let (number, stores) = rest.split_once(' ').ok_or_else(bad)?;
            let configuration =
                number.parse().ok().filter(|c: &u32| c.to_string() == number && *c > FIRST_CONFIGURATION);
            let configuration = configuration.ok_or_else(bad)?;
            return if stores.starts_with("c=") {
                Err(bad())
            } else {
                Ok(Self { configuration, ..Self::parse(stores)? })
            };
        }
        let Some(rest) = text.strip_prefix("w=") else {
            return Self::new(vec![text.to_owned()], None);
        };
        let mut parts = rest.split(' ');
        let quorum = parts.next().unwrap_or_default();
        let urls: Vec<String> = parts.map(str::to_owned).collect();
        let expected =
            "w=QUORUM and two to five URLs, single blanks between, such as `w=2 s3://east/p s3://west/p s3://south/p`";
        let bad = || StoreUrlError::Option { name: "stores", found: text.chars().take(200).collect(), expected };
        let write_quorum = quorum.parse().ok().filter(|w: &usize| w.to_string() == quorum).ok_or_else(bad)?;
        if urls.len() < 2 || urls.iter().any(String::is_empty) {
            return Err(bad());
        }
        Self::new(urls, Some(write_quorum))
    }

    /// The stores, in order.
    pub fn urls(&self) -> &[String] {
        &self.urls
    }

    /// The number of stores that must have an object before it counts.
    pub fn write_quorum(&self) -> usize {
        self.write_quorum
    }

    /// The URL, if there is and always was only one store: its objects then have the original names.
    pub fn single(&self) -> Option<&str> {
        match self.urls.as_slice() {
            [one] if self.configuration == FIRST_CONFIGURATION => Some(one),
            _ => None,
        }
    }

    /// The number of lists of stores that the set has had, including this one: each has a head of its own.
    pub fn configuration(&self) -> u32 {
        self.configuration
    }

    /// The same stores as the list that follows `before`.
    ///
    /// # Errors
    /// [`StoreUrlError`] at the highest number.
    pub fn after(self, before: &Stores) -> Result<Self, StoreUrlError> {
        let expected = "a number below 4294967295";
        let found = before.configuration;
        let configuration = found.checked_add(1);
        let configuration =
            configuration.ok_or(StoreUrlError::Option { name: "configuration", found: found.to_string(), expected })?;
        Ok(Self { configuration, ..self })
    }
}

impl fmt::Display for Stores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.configuration > FIRST_CONFIGURATION {
            write!(f, "c={} ", self.configuration)?;
        }
        match self.urls.as_slice() {
            [one] => f.write_str(one),
            urls => write!(f, "w={} {}", self.write_quorum, urls.join(" ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_store_is_its_url_and_several_come_back_as_they_were_written() {
        for text in [
            "s3://bucket/prefix",
            "file:///srv/store",
            "w=2 file:///a file:///b file:///c",
            "w=2 s3://store-a/p?endpoint=http://h:1&region=x s3://store-b/p",
            "w=3 s3://store-a s3://store-b s3://store-c s3://store-d s3://store-e",
            "c=2 s3://store-a",
            "c=17 w=2 file:///a file:///b file:///c",
        ] {
            assert_eq!(Stores::parse(text).expect(text).to_string(), text);
        }
        assert_eq!(Stores::parse("s3://store-b").expect("one").single(), Some("s3://store-b"));
        let moved = Stores::parse("c=2 s3://store-b").expect("one");
        assert_eq!((moved.single(), moved.configuration()), (None, 2), "its head has another name");
        let next = Stores::parse("s3://store-c").expect("one").after(&moved).expect("a number");
        assert_eq!(next.to_string(), "c=3 s3://store-c");
    }

    #[test]
    fn a_new_set_must_be_able_to_lose_a_store() {
        for good in ["s3://store-a", "w=2 s3://store-a s3://store-b s3://store-c"] {
            Stores::parse(good).expect(good).check_new().expect(good);
        }
        for bad in ["w=2 s3://store-a s3://store-b", "w=3 s3://store-a s3://store-b s3://store-c"] {
            let error =
                Stores::parse(bad).expect("one that is there is opened").check_new().expect_err(bad).to_string();
            assert!(error.contains("fewer than there are stores"), "{error}");
        }
    }

    #[test]
    fn quorums_that_need_not_meet_and_texts_with_a_second_form_are_refused() {
        for bad in [
            "",
            "w=1 s3://store-a",
            "w=1 s3://store-a s3://store-b",
            "w=2 s3://store-a s3://store-b s3://store-c s3://store-d",
            "w=4 s3://store-a s3://store-b s3://store-c",
            "w=0 s3://store-a s3://store-b",
            "w=02 s3://store-a s3://store-b s3://store-c",
            "w=2  s3://store-a s3://store-b",
            "w=2 s3://store-a s3://store-a s3://store-b",
            "w=2 s3://store-a s3://store-b other",
            "w=4 s3://store-a s3://store-b s3://store-c s3://store-d s3://store-e s3://store-f",
            "s3://store-a s3://store-b",
            "c=1 s3://store-a",
            "c=02 s3://store-a",
            "c=2",
            "c=2 c=3 s3://store-a",
            "c=2 w=1 s3://store-a",
            "w=2 c=2 s3://store-a s3://store-b s3://store-c",
        ] {
            assert!(Stores::parse(bad).is_err(), "{bad:?}");
        }
    }
}
