//! Compares the volumes of two snapshots of a set. A reader of a difference needs this before it applies any range.
//!
//! Names may be reused, ids never are (VOLUME-V1), so volumes are compared by id.
//!
//! ```text
//!   earlier:  id 1 a     id 2 b                    id 3 c
//!   later:    id 1 a     id 2 x                               id 4 c                          id 5 d
//!             same       same, renamed from b      gone       anew: another volume was called c  new
//! ```
//! DIFF-D1  An unchanged volume starts from its image in the earlier snapshot, cut or extended with zeroes to its new
//!     size; every other volume starts from zeroes. Applying the listed ranges then gives the later snapshot.

use crate::v1;
use std::collections::{BTreeMap, BTreeSet};

/// Relation of a volume of the later snapshot to the earlier one.
#[derive(Clone, Debug, PartialEq)]
pub enum Relation {
    /// The same volume; here as in the earlier snapshot.
    Same(v1::Volume),
    /// Another volume than that of this name in the earlier snapshot, which is given here; none of its content is kept.
    Anew(v1::Volume),
    /// The earlier snapshot has neither the volume nor its name.
    New,
}

/// A volume of the later snapshot.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// The volume in the later snapshot.
    pub volume: v1::Volume,
    /// Its relation to the earlier snapshot.
    pub relation: Relation,
}

impl Compared {
    /// The volume in the earlier snapshot, from which its image starts (DIFF-D1). `None`: zeroes.
    pub fn before(&self) -> Option<&v1::Volume> {
        match &self.relation {
            Relation::Same(before) => Some(before),
            Relation::Anew(_) | Relation::New => None,
        }
    }

    /// Its former name, if that differs.
    pub fn renamed_from(&self) -> Option<&str> {
        self.before().map(|before| before.name.as_str()).filter(|name| *name != self.volume.name)
    }

    /// Its relation, for programs.
    pub fn relation_text(&self) -> &'static str {
        match self.relation {
            Relation::Same(_) => "same",
            Relation::Anew(_) => "anew",
            Relation::New => "new",
        }
    }

    /// Its difference, for display. `None`: the same volume, with the same name and size.
    fn unlike(&self) -> Option<String> {
        let name = &self.volume.name;
        match &self.relation {
            Relation::Anew(_) => Some(format!("{name} is another volume of that name")),
            Relation::New => Some(format!("{name} is new")),
            Relation::Same(before) if before.name != *name => Some(format!("{name} was called {}", before.name)),
            Relation::Same(before) if before.size_bytes != self.volume.size_bytes => {
                Some(format!("{name} had {} bytes and has {}", before.size_bytes, self.volume.size_bytes))
            }
            Relation::Same(_) => None,
        }
    }
}

/// The volumes of two snapshots, see the module.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Volumes {
    /// Volumes that the later snapshot lacks, as in the earlier one.
    pub gone: Vec<v1::Volume>,
    /// Volumes of the later snapshot, in its order.
    pub there: Vec<Compared>,
}

impl Volumes {
    /// Compares the volume lists of two snapshots.
    pub fn compare(earlier: &[v1::Volume], later: &[v1::Volume]) -> Self {
        // By maps: the lists come from a gateway, and may be as long as a message can be.
        let (mut by_id, mut by_name) = (BTreeMap::new(), BTreeMap::new());
        for volume in earlier {
            by_id.entry(volume.id).or_insert(volume);
            by_name.entry(volume.name.as_str()).or_insert(volume);
        }
        let relation = |volume: &v1::Volume| match (by_id.get(&volume.id), by_name.get(volume.name.as_str())) {
            (Some(before), _) => Relation::Same((*before).clone()),
            (None, Some(before)) => Relation::Anew((*before).clone()),
            (None, None) => Relation::New,
        };
        let there = later.iter().map(|volume| Compared { volume: volume.clone(), relation: relation(volume) });
        let kept: BTreeSet<u32> = later.iter().map(|volume| volume.id).collect();
        let gone = earlier.iter().filter(|before| !kept.contains(&before.id));
        Self { gone: gone.cloned().collect(), there: there.collect() }
    }

    /// The first difference, for display. `None`: the same volumes, with the same names and sizes, so ranges by name
    /// are enough.
    pub fn unlike(&self) -> Option<String> {
        let gone = self.gone.first().map(|volume| format!("{} is gone", volume.name));
        // If the name of a missing volume belongs to another one now, report that.
        self.there.iter().find_map(Compared::unlike).or(gone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(id: u32, name: &str, size_bytes: u64) -> v1::Volume {
        v1::Volume { id, name: name.to_string(), size_bytes }
    }

    #[test]
    fn each_volume_is_told_by_its_id() {
        let earlier = [volume(1, "a", 10), volume(2, "b", 10), volume(3, "c", 10), volume(4, "e", 10)];
        let later = [volume(1, "a", 20), volume(2, "x", 10), volume(5, "c", 10), volume(6, "d", 10)];
        let found = Volumes::compare(&earlier, &later);
        assert_eq!(found.gone, [volume(3, "c", 10), volume(4, "e", 10)]);
        let told: Vec<_> = found
            .there
            .iter()
            .map(|one| (one.relation_text(), one.renamed_from(), one.before().map(|before| before.size_bytes)))
            .collect();
        let expected =
            [("same", None, Some(10)), ("same", Some("b"), Some(10)), ("anew", None, None), ("new", None, None)];
        assert_eq!(told, expected);
    }

    #[test]
    fn only_what_is_all_the_same_is_told_by_ranges_alone() {
        let all = [volume(1, "a", 10), volume(2, "b", 10)];
        let unlike = |later: &[v1::Volume]| Volumes::compare(&all, later).unlike().unwrap_or_default();
        assert_eq!(unlike(&all), "");
        for (later, words) in [
            ([volume(1, "a", 10), volume(3, "b", 10)], "b is another volume of that name"),
            ([volume(1, "b", 10), volume(2, "a", 10)], "b was called a"),
            ([volume(1, "a", 11), volume(2, "b", 10)], "a had 10 bytes and has 11"),
            ([volume(1, "a", 10), volume(3, "c", 10)], "c is new"),
        ] {
            assert_eq!(unlike(&later), words);
        }
        assert_eq!(unlike(&all[..1]), "b is gone");
        assert_eq!(Volumes::compare(&[], &all).unlike().as_deref(), Some("a is new"), "of nothing");
    }

    /// All ways to give up to three volumes names of three.
    fn all_lists() -> Vec<Vec<v1::Volume>> {
        const NAMES: [Option<&str>; 4] = [None, Some("a"), Some("b"), Some("c")];
        let mut all = Vec::new();
        for choice in 0..64_usize {
            let names = [NAMES[choice % 4], NAMES[choice / 4 % 4], NAMES[choice / 16]];
            let list: Vec<v1::Volume> = (1..).zip(names).filter_map(|(id, name)| Some(volume(id, name?, 10))).collect();
            let twice = list.iter().any(|one| list.iter().filter(|other| other.name == one.name).count() > 1);
            if !twice {
                all.push(list);
            }
        }
        all
    }

    /// Images by name store the id of their volume. A reader that follows DIFF-D1 ends with the volumes of the later
    /// snapshot and no others, whatever happened to names.
    #[test]
    fn images_by_name_become_those_of_the_later_snapshot() {
        let images = |list: &[v1::Volume]| -> BTreeMap<String, u32> {
            list.iter().map(|volume| (volume.name.clone(), volume.id)).collect()
        };
        let all = all_lists();
        assert_eq!(all.len(), 34, "1 of none, 9 of one, 18 of two, 6 of three");
        for earlier in &all {
            for later in &all {
                let (before, told) = (images(earlier), Volumes::compare(earlier, later));
                let start = |one: &Compared| match &one.relation {
                    Relation::Same(_) => before[one.renamed_from().unwrap_or(&one.volume.name)],
                    // All of its content is in the listed ranges.
                    Relation::Anew(other) => {
                        assert_eq!(before.get(&one.volume.name), Some(&other.id));
                        one.volume.id
                    }
                    Relation::New => {
                        assert_eq!(before.get(&one.volume.name), None);
                        one.volume.id
                    }
                };
                let made: BTreeMap<String, u32> =
                    told.there.iter().map(|one| (one.volume.name.clone(), start(one))).collect();
                assert_eq!(made, images(later), "{earlier:?} to {later:?}");
                let kept = told.there.iter().filter(|one| one.before().is_some()).count();
                assert_eq!(
                    kept + told.gone.len(),
                    earlier.len(),
                    "expected each earlier volume among the kept or the gone ones"
                );
                assert_eq!(told.unlike().is_none(), earlier == later, "{earlier:?} to {later:?}");
            }
        }
    }
}
