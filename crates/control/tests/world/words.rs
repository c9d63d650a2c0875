//! A line of a story: a verb, then `key=value` and bare flags.

use std::cell::RefCell;
use std::collections::BTreeSet;

pub struct Words<'a> {
    line: &'a str,
    verb: &'a str,
    pairs: Vec<(&'a str, &'a str)>,
    used: RefCell<BTreeSet<String>>,
}

impl<'a> Words<'a> {
    pub fn new(line: &'a str) -> Self {
        let mut words = line.split_whitespace();
        let verb = words.next().unwrap_or("");
        let pairs = words.map(|word| word.split_once('=').unwrap_or((word, ""))).collect();
        Self { line, verb, pairs, used: RefCell::default() }
    }

    pub fn verb(&self) -> &'a str {
        self.verb
    }

    pub fn maybe(&self, key: &str) -> Option<&'a str> {
        self.used.borrow_mut().insert(key.to_owned());
        self.pairs.iter().find(|(found, _)| *found == key).map(|(_, value)| *value)
    }

    pub fn text(&self, key: &str) -> &'a str {
        self.maybe(key).unwrap_or_else(|| panic!("{key}= is missing in {:?}", self.line))
    }

    pub fn number(&self, key: &str) -> u64 {
        self.text(key).parse().unwrap_or_else(|e| panic!("{key}= in {:?}: {e}", self.line))
    }

    pub fn number_or(&self, key: &str, otherwise: u64) -> u64 {
        if self.maybe(key).is_some() { self.number(key) } else { otherwise }
    }

    pub fn flag(&self, key: &str) -> bool {
        self.maybe(key).is_some()
    }

    /// A misspelt word must not be passed over.
    pub fn all_used(&self) {
        for (key, _) in &self.pairs {
            assert!(self.used.borrow().contains(*key), "{key} means nothing in {:?}", self.line);
        }
    }
}
