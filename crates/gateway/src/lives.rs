//! The lives of this disk (CLUSTER-C3), stored on the disk itself. A life is a counter and a random nonce. A life
//! begins with each start, and whenever a running gateway renews it. So a copy of the disk that is older than the last
//! renewal is detected, however often it is started.
//!
//! ```text
//!   registered ── start ──▶ begun ──▶ used ── registered ──▶ earlier lives are dropped
//!                             │         │
//!                             │         └── start, renewal: one more life, none is dropped
//!                             └── start: no peer knows the life, so it is dropped
//! ```
//!
//! LIFE-V1  A life is on the disk before it is used with any peer, and its counter is above that of every used life of
//!     this disk.
//! LIFE-V2  The disk remembers every used life since the last one that is known to be registered. Once `LIVES_MAX`
//!     lives are unconfirmed, no further one begins: later starts reuse the last one. So a life that may be the
//!     registered one is never forgotten.
//! LIFE-V3  A start that is cut short, or cannot save its life, has told nobody of it. It may have raised the counter
//!     of starts. The remembered lives stay, and the next life's counter is above them and not below the counter of
//!     starts.

use crate::identity_file::{IdentityError, save};
use holdfast_raft::LIVES_MAX;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::Path;

/// The file's name inside the data directory.
const FILE: &str = "lives.json";

/// Layout of the file that this version writes and reads.
const VERSION: u32 = 1;

/// One life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Past {
    counter: u64,
    /// As text: JSON readers may treat numbers as floating point.
    #[serde(with = "hex64")]
    nonce: u64,
}

/// Content of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Lives {
    version: u32,
    /// The start that wrote them, for people. It decides nothing.
    boot: u64,
    /// Oldest first; the last one is the current one.
    lives: Vec<Past>,
    /// A peer may know the last life.
    used: bool,
    /// The counter of the last life that an earlier process of this disk has used. Later ones are of this process.
    #[serde(skip)]
    earlier: Option<u64>,
}

impl Default for Lives {
    fn default() -> Self {
        Self { version: VERSION, boot: 0, lives: Vec::new(), used: false, earlier: None }
    }
}

impl Lives {
    /// Reads the lives of `dir`; none if there is no file yet.
    pub(crate) fn read(dir: &Path) -> Result<Self, IdentityError> {
        let path = dir.join(FILE);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(source) => return Err(IdentityError::Io { path, source }),
        };
        let bad = |reason: String| IdentityError::Bad { path: path.clone(), reason };
        let lives: Lives = serde_json::from_slice(&bytes).map_err(|e| bad(e.to_string()))?;
        if lives.version != VERSION {
            return Err(bad(format!("found version {}, expected {VERSION}", lives.version)));
        }
        if !lives.lives.is_sorted_by(|a, b| a.counter < b.counter) || lives.lives.len() > LIVES_MAX {
            return Err(bad(format!("found {:?}, expected up to {LIVES_MAX} lives with rising counters", lives.lives)));
        }
        Ok(lives)
    }

    /// Start number `boot` on this disk.
    pub(crate) fn begin(&mut self, boot: u64, nonce: u64) {
        self.boot = boot;
        if !self.used {
            self.lives.pop();
        }
        self.earlier = self.lives.last().map(|last| last.counter);
        if self.lives.len() >= LIVES_MAX {
            // LIFE-V2
            return;
        }
        // LIFE-V3
        let counter = self.lives.last().map_or(boot, |last| boot.max(last.counter.saturating_add(1)));
        self.lives.push(Past { counter, nonce });
        self.used = false;
    }

    /// The current life is about to be sent to peers. Returns whether this is a change.
    pub(crate) fn used(&mut self) -> bool {
        !std::mem::replace(&mut self.used, true)
    }

    /// The running gateway continues under a new life, unless too many lives are remembered already.
    pub(crate) fn renew(&mut self, nonce: u64) -> bool {
        let Some(last) = self.lives.last().copied() else { return false };
        if self.lives.len() >= LIVES_MAX || last.counter == u64::MAX {
            return false;
        }
        self.lives.push(Past { counter: last.counter + 1, nonce });
        self.used = true;
        true
    }

    /// The life with this counter is registered: no earlier life can be the last registered one any more. Returns
    /// whether this is a change.
    pub(crate) fn registered(&mut self, counter: u64) -> bool {
        let before = self.lives.len();
        if self.lives.iter().any(|past| past.counter == counter) {
            self.lives.retain(|past| past.counter >= counter);
        }
        self.lives.len() != before
    }

    /// Whether this process has drawn the life with this counter and this nonce, at its start or later. A life that an
    /// earlier process used, or that another disk drew, is not of it (LIFE-V1, LIFE-V2).
    pub(crate) fn is_of_this_process(&self, counter: u64, nonce: u64) -> bool {
        let known = self.lives.iter().any(|past| past.counter == counter && past.nonce == nonce);
        known && self.earlier.is_none_or(|earlier| counter > earlier)
    }

    /// Counter and nonce of the current life, and of the earlier ones.
    pub(crate) fn told(&self) -> ((u64, u64), Vec<(u64, u64)>) {
        let mut all: Vec<(u64, u64)> = self.lives.iter().map(|past| (past.counter, past.nonce)).collect();
        (all.pop().unwrap_or_default(), all)
    }

    /// On disk before it returns; a crash leaves either the old or the new lives.
    ///
    /// # Errors
    /// [`IdentityError::Io`].
    pub(crate) fn save(&self, dir: &Path) -> Result<(), IdentityError> {
        save(dir, FILE, self)
    }
}

mod hex64 {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(value: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&format!("{value:016x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        let text = String::deserialize(from)?;
        let whole = u64::from_str_radix(&text, 16).ok().filter(|value| format!("{value:016x}") == text);
        whole.ok_or_else(|| D::Error::custom(format!("found {text:?}, expected 16 hex digits")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_testkit::golden::{Written, kept};

    fn told(lives: &Lives) -> Vec<(u64, u64)> {
        let (last, mut all) = lives.told();
        all.push(last);
        all
    }

    /// What an earlier build has written is read, and this one writes the same.
    #[test]
    fn the_text_is_pinned() -> Result<(), Box<dyn std::error::Error>> {
        let life = |counter: u64, nonce: &str| {
            format!("    {{\n      \"counter\": {counter},\n      \"nonce\": \"{nonce}\"\n    }}")
        };
        let both = format!("{},\n{}", life(4, "0000000000000028"), life(5, "0000000000000032"));
        let text = format!("{{\n  \"version\": 1,\n  \"boot\": 5,\n  \"lives\": [\n{both}\n  ],\n  \"used\": true\n}}");
        let dir = tempfile::tempdir()?;
        std::fs::write(dir.path().join(FILE), &text)?;
        let lives = Lives::read(dir.path())?;
        assert_eq!(told(&lives), [(4, 40), (5, 50)]);
        lives.save(dir.path())?;
        assert_eq!(std::fs::read_to_string(dir.path().join(FILE))?, text);
        let read = |bytes: &[u8]| {
            std::fs::write(dir.path().join(FILE), bytes).ok()?;
            Lives::read(dir.path()).ok().map(|lives| told(&lives))
        };
        let expected = Some(vec![(4, 40), (5, 50)]);
        kept(env!("CARGO_MANIFEST_DIR"), FILE, Written::Pinned(text.as_bytes()), &expected, read);
        Ok(())
    }

    #[test]
    fn what_was_told_is_remembered_until_a_later_one_is_registered() -> Result<(), Box<dyn std::error::Error>> {
        let dir = tempfile::tempdir()?;
        let mut lives = Lives::read(dir.path())?;
        lives.begin(1, 10);
        assert!(lives.used() && !lives.used());
        lives.save(dir.path())?;
        assert_eq!(Lives::read(dir.path())?, lives);
        lives.begin(2, 20);
        assert_eq!(told(&lives), [(1, 10), (2, 20)]);
        // A start that has sent its life to no peer.
        lives.begin(3, 30);
        assert_eq!(told(&lives), [(1, 10), (3, 30)], "LIFE-V1: above every used life");
        lives.used();
        lives.begin(4, 40);
        lives.used();
        assert!(lives.registered(3));
        assert_eq!(told(&lives), [(3, 30), (4, 40)], "LIFE-V2");
        assert!(!lives.registered(3) && !lives.registered(2) && !lives.registered(9));
        assert!(lives.registered(4));
        assert_eq!(told(&lives), [(4, 40)]);
        // It is renewed while it runs: its counter is then ahead of the counter of starts, and stays ahead.
        assert!(lives.renew(50));
        assert_eq!(told(&lives), [(4, 40), (5, 50)]);
        lives.begin(5, 60);
        assert_eq!(told(&lives), [(4, 40), (5, 50), (6, 60)]);
        // A start knows only what an earlier start has saved: this one sent its life to no peer.
        lives.begin(6, 61);
        assert_eq!(told(&lives), [(4, 40), (5, 50), (6, 61)]);
        Ok(())
    }

    #[test]
    fn a_start_that_was_cut_short_makes_no_life_forgotten() {
        let mut lives = Lives::default();
        lives.begin(7, 70);
        lives.used();
        // Of start 8 only the counter of starts was saved.
        lives.begin(9, 90);
        assert_eq!(told(&lives), [(7, 70), (9, 90)], "LIFE-V3");
        // Renewed lives are ahead of the starts, and stay ahead if a start or two could not be saved.
        lives.used();
        assert!((0..20).all(|nonce| lives.renew(nonce)) && lives.registered(29));
        lives.begin(12, 120);
        assert_eq!(told(&lives), [(29, 19), (30, 120)], "LIFE-V1: above every used life");
        let mut lives = Lives::default();
        lives.begin(9, 90);
        // Ten starts that have sent their life to no peer are noticed, although none of their lives remains.
        lives.used();
        (10..20).for_each(|boot| lives.begin(boot, boot * 10));
        assert_eq!(told(&lives), [(9, 90), (19, 190)]);
    }

    /// QUARANTINE-Q5 counts on it: what was registered under such a life was registered after this process had begun.
    #[test]
    fn a_life_is_of_the_process_that_drew_it() {
        let of_this = |lives: &Lives| {
            let of_this = |(counter, nonce): &(u64, u64)| lives.is_of_this_process(*counter, *nonce);
            told(lives).into_iter().filter(of_this).collect::<Vec<_>>()
        };
        let mut lives = Lives::default();
        lives.begin(1, 10);
        assert_eq!(of_this(&lives), [(1, 10)]);
        lives.used();
        assert!(lives.renew(11));
        assert_eq!(of_this(&lives), [(1, 10), (2, 11)]);
        lives.begin(2, 20);
        assert_eq!(of_this(&lives), [(3, 20)], "the next start");
        assert!(!lives.is_of_this_process(3, 21), "of another disk that counts like this one");
        assert!(!lives.is_of_this_process(4, 20), "of no disk");
        // Nobody was told of it: the next start has a life of the same counter, and another nonce.
        lives.begin(3, 30);
        assert_eq!((of_this(&lives), lives.is_of_this_process(3, 20)), (vec![(3, 30)], false));
        lives.used();
        assert!(lives.renew(31) && lives.registered(4));
        assert_eq!(of_this(&lives), [(4, 31)]);
        let mut lives = Lives::default();
        (1..=100).for_each(|boot| {
            lives.begin(boot, boot);
            lives.used();
        });
        assert!(of_this(&lives).is_empty(), "LIFE-V2: it goes on under the life of an earlier process");
    }

    #[test]
    fn there_are_never_too_many() {
        let mut lives = Lives::default();
        for boot in 1..=200 {
            lives.begin(boot, boot * 10);
            lives.used();
        }
        let all = told(&lives);
        assert_eq!(
            (all.len(), all[0], all[LIVES_MAX - 1]),
            (LIVES_MAX, (1, 10), (64, 640)),
            "LIFE-V2: the last life is used again"
        );
        assert!(!lives.renew(1) && told(&lives) == all);
        assert!(lives.registered(64) && lives.renew(2010));
        assert_eq!(told(&lives), [(64, 640), (65, 2010)]);
        lives.begin(201, 2020);
        assert_eq!(told(&lives), [(64, 640), (65, 2010), (201, 2020)]);
    }

    #[test]
    fn what_is_not_of_its_form_is_refused_by_name() -> Result<(), Box<dyn std::error::Error>> {
        let dir = tempfile::tempdir()?;
        let read = |text: &str| -> Result<String, Box<dyn std::error::Error>> {
            std::fs::write(dir.path().join(FILE), text)?;
            Ok(Lives::read(dir.path()).err().map_or(String::new(), |e| e.to_string()))
        };
        let one = |counter: u64| format!(r#"{{"counter":{counter},"nonce":"00000000000000ff"}}"#);
        let file = |lives: &[String]| format!(r#"{{"version":1,"boot":9,"used":true,"lives":[{}]}}"#, lives.join(","));
        assert_eq!(read(&file(&[one(1), one(2)]))?, "");
        assert!(read(&file(&[one(2), one(2)]))?.contains("rising counters"));
        let many: Vec<String> = (0..=LIVES_MAX as u64).map(one).collect();
        assert!(read(&file(&many))?.contains("up to 64 lives"));
        assert!(read(&file(&[one(1)]).replace("ff", "f"))?.contains("expected 16 hex digits"));
        assert!(read(&file(&[]).replace("\"version\":1", "\"version\":2"))?.contains("found version 2, expected 1"));
        assert!(read("{}")?.contains("lives.json"));
        Ok(())
    }
}
