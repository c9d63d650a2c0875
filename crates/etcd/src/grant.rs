//! A set's lease as it is mirrored in an etcd, and whether it is newer than what is there.
//!
//! GRANT-G1  A record is replaced only by a newer one: of a later life of the set, or of a later entry of its log. A
//!     leader that was stopped and resumes takes nothing back.
//! GRANT-G2  A record that is not ours stays.

use serde::{Deserialize, Serialize};

/// The format version of [`Grant`] that this build writes.
const FORM: u32 = 1;

/// A set's lease as others see it. No secret is in it: a token opens the set, and stays with its owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Format version of this record; a reader ignores versions that it does not know.
    form: u32,
    /// The set's name.
    pub set: String,
    /// The cluster's id.
    pub cluster: String,
    /// The holder; absent if the set is free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<Held>,
    /// The set's life: a recovered set's log begins anew in a later one.
    pub generation: u64,
    /// Index of the entry, in the log of that life, up to which this is true.
    pub index: u64,
    /// The set's number: a set that was created after the deletion of one of the same name has a higher number.
    pub number: u64,
}

/// A lease that somebody holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The owner.
    pub owner: String,
    /// Fencing token of the grant: grows with each (R2).
    pub epoch: u64,
    /// Name of the gateway that serves it.
    pub gateway: String,
    /// Where that gateway serves NBD, `HOST:PORT`.
    pub nbd: String,
    /// Time to live without a renewal, in milliseconds.
    pub ttl_ms: u32,
    /// When it was granted, by the granting gateway's wall clock, in Unix milliseconds: for people.
    pub since_unix_ms: u64,
}

/// What to do about the existing record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Write ours.
    Put,
    /// Nothing: it says the same.
    Same,
    /// Nothing: it is newer (GRANT-G1).
    Newer,
    /// Nothing: it has another format (GRANT-G2). With what was found.
    Foreign(String),
}

impl Grant {
    /// As of entry `index` of life `generation` of set `number`.
    pub fn new(set: String, number: u64, cluster: String, held: Option<Held>, generation: u64, index: u64) -> Self {
        Self { form: FORM, set, cluster, held, generation, index, number }
    }

    /// Whether both say the same; the index is ignored.
    pub fn says_the_same(&self, other: &Self) -> bool {
        Self { index: 0, ..self.clone() } == Self { index: 0, ..other.clone() }
    }

    /// Whether the record there belongs to this very set and cluster, in this life or an earlier one (GRANT-G2), so
    /// that it is deleted with the set. A record of a newer set of the same name stays, however late this call arrives.
    pub(crate) fn was_told_of(there: &[u8], set: &str, number: u64, cluster: &str, generation: u64) -> bool {
        let found = serde_json::from_slice::<Grant>(there);
        found.is_ok_and(|found| {
            found.form == FORM
                && found.set == set
                && found.number == number
                && found.cluster == cluster
                && found.generation <= generation
        })
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        // A struct of numbers and texts with string keys can always be written as JSON.
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub(crate) fn next(&self, there: Option<&[u8]>) -> Next {
        let Some(there) = there else { return Next::Put };
        let Ok(found) = serde_json::from_slice::<Grant>(there) else {
            let start = String::from_utf8_lossy(&there[..there.len().min(64)]).into_owned();
            return Next::Foreign(format!("{start:?}"));
        };
        if found.form != FORM || found.set != self.set {
            return Next::Foreign(format!("form {} of set {:?}", found.form, found.set));
        }
        // A recovery makes a new cluster of the old one's sets, each in a later life. If two clusters in the same life
        // use the same key, somebody has made a mistake.
        if found.cluster != self.cluster && found.generation == self.generation {
            return Next::Foreign(format!("a grant of cluster {}", found.cluster));
        }
        // Numbers only grow within a cluster.
        if (found.generation, found.number, found.index) > (self.generation, self.number, self.index) {
            return Next::Newer;
        }
        if self.says_the_same(&found) { Next::Same } else { Next::Put }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(owner: &str, epoch: u64) -> Option<Held> {
        let (gateway, nbd) = ("g1".to_string(), "10.0.0.1:10809".to_string());
        Some(Held { owner: owner.into(), epoch, gateway, nbd, ttl_ms: 3000, since_unix_ms: 7 })
    }

    fn grant(held: Option<Held>, generation: u64, index: u64) -> Grant {
        Grant::new("demo".into(), 4, "c1".into(), held, generation, index)
    }

    #[test]
    fn a_set_that_came_after_a_deleted_one_of_its_name_begins_anew() {
        let old = grant(held("db1", 4), 1, 100_000);
        let new = Grant { number: 9, index: 7, ..old.clone() };
        assert_eq!(new.next(Some(&old.to_bytes())), Next::Put);
        assert_eq!(old.next(Some(&new.to_bytes())), Next::Newer, "GRANT-G1: of a gateway that was cut off");
        assert!(!Grant::was_told_of(&new.to_bytes(), "demo", 4, "c1", 1), "the newer set's");
    }

    #[test]
    fn only_what_is_newer_replaces_what_is_there() {
        let there = grant(held("db1", 4), 1, 100).to_bytes();
        let next = |ours: Grant| ours.next(Some(&there));
        assert_eq!(next(grant(held("db2", 5), 1, 101)), Next::Put);
        assert_eq!(next(grant(None, 1, 101)), Next::Put, "free");
        assert_eq!(next(grant(held("db1", 4), 1, 160)), Next::Same, "nothing but time has passed");
        assert_eq!(next(grant(held("db0", 3), 1, 99)), Next::Newer, "GRANT-G1: of a leader that stood still");
        assert_eq!(next(grant(None, 1, 99)), Next::Newer);
        assert_eq!(next(grant(held("db3", 5), 2, 3)), Next::Put, "a recovered set's log begins anew");
        assert_eq!(grant(held("db1", 9), 1, 900).next(Some(&grant(None, 2, 1).to_bytes())), Next::Newer);
        assert_eq!(grant(None, 1, 1).next(None), Next::Put);
    }

    #[test]
    fn of_a_deleted_set_only_what_was_told_of_it_goes() {
        let there = grant(held("db1", 4), 2, 100).to_bytes();
        assert!(Grant::was_told_of(&there, "demo", 4, "c1", 2) && Grant::was_told_of(&there, "demo", 4, "c1", 3));
        assert!(!Grant::was_told_of(&there, "demo", 4, "c1", 1), "a later life's");
        assert!(!Grant::was_told_of(&there, "demo", 4, "c2", 2), "another cluster's");
        assert!(
            !Grant::was_told_of(&there, "other", 4, "c1", 2) && !Grant::was_told_of(b"10.0.0.1", "demo", 4, "c1", 2)
        );
    }

    #[test]
    fn what_is_not_ours_stays() {
        let ours = grant(held("db1", 4), 1, 100);
        for foreign in [
            &b"10.0.0.1"[..],
            b"",
            b"{}",
            b"{\"form\":2,\"set\":\"demo\",\"cluster\":\"c1\",\"generation\":0,\"index\":0}",
        ] {
            assert!(matches!(ours.next(Some(foreign)), Next::Foreign(_)), "{foreign:?}");
        }
        let other = Grant::new("other".into(), 4, "c1".into(), None, 1, 1).to_bytes();
        assert_eq!(ours.next(Some(&other)), Next::Foreign("form 1 of set \"other\"".into()));
        let elsewhere = |generation| Grant::new("demo".into(), 4, "c2".into(), None, generation, 1).to_bytes();
        assert_eq!(ours.next(Some(&elsewhere(1))), Next::Foreign("a grant of cluster c2".into()));
        assert_eq!(ours.next(Some(&elsewhere(2))), Next::Newer, "the set was recovered there");
        assert_eq!(ours.next(Some(&elsewhere(0))), Next::Put);
    }

    #[test]
    fn its_text_is_what_the_page_says() {
        let text = String::from_utf8(grant(held("db1", 4), 1, 100).to_bytes()).unwrap();
        let expected = "{\"form\":1,\"set\":\"demo\",\"cluster\":\"c1\",\"held\":{\"owner\":\"db1\",\"epoch\":4,\"gateway\":\"g1\",\"nbd\":\"10.0.0.1:10809\",\
                        \"ttl_ms\":3000,\"since_unix_ms\":7},\"generation\":1,\"index\":100,\"number\":4}";
        assert_eq!(text, expected);
        assert_eq!(
            grant(None, 1, 100).to_bytes(),
            b"{\"form\":1,\"set\":\"demo\",\"cluster\":\"c1\",\"generation\":1,\"index\":100,\"number\":4}"
        );
    }
}
