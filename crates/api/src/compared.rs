//! What became of each volume between two snapshots of a set: what has to be known before any range of a difference is applied.
//!
//! A name is no volume: it may be another one's by now. Ids are never used again (VOLUME-V1), so volumes are compared by them.
//!
//! ```text
//!   earlier:  id 1 a     id 2 b                    id 3 c
//!   later:    id 1 a     id 2 x                               id 4 c                          id 5 d
//!             same       same, renamed from b      gone       anew: another one was called c  new
//! ```
//! DIFF-D1  A volume that is the same starts from its image as the earlier snapshot has it, cut or made longer with zeroes to its size; every other one
//!     starts from zeroes. With the ranges that are listed that is the later snapshot.

use crate::v1;

/// What a volume of the later snapshot is to the earlier one.
#[derive(Clone, Debug, PartialEq)]
pub enum Relation {
    /// The same volume; here as the earlier one has it.
    Same(v1::Volume),
    /// Another volume than the one that the earlier snapshot has under this name, which is here: nothing of that one's content is in it.
    Anew(v1::Volume),
    /// The earlier snapshot has neither the volume nor its name.
    New,
}

/// A volume of the later snapshot.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// As the later one has it.
    pub volume: v1::Volume,
    /// What it is to the earlier one.
    pub relation: Relation,
}

impl Compared {
    /// The volume as the earlier snapshot has it: what its image starts from (DIFF-D1). `None`: zeroes.
    pub fn before(&self) -> Option<&v1::Volume> {
        match &self.relation {
            Relation::Same(before) => Some(before),
            Relation::Anew(_) | Relation::New => None,
        }
    }

    /// The name that it had, where it has another one now.
    pub fn renamed_from(&self) -> Option<&str> {
        self.before().map(|before| before.name.as_str()).filter(|name| *name != self.volume.name)
    }

    /// Its relation, as programs read it.
    pub fn relation_text(&self) -> &'static str {
        match self.relation {
            Relation::Same(_) => "same",
            Relation::Anew(_) => "anew",
            Relation::New => "new",
        }
    }

    /// What is not as it was, for people. `None`: the same volume, of the same name and size.
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
    /// Those that the later one has no more, as the earlier one has them.
    pub gone: Vec<v1::Volume>,
    /// Those of the later one, in its order.
    pub there: Vec<Compared>,
}

impl Volumes {
    /// Compares what two snapshots are listed with.
    pub fn compare(earlier: &[v1::Volume], later: &[v1::Volume]) -> Self {
        let relation = |volume: &v1::Volume| {
            let same = earlier.iter().find(|before| before.id == volume.id);
            let named = || earlier.iter().find(|before| before.name == volume.name);
            match same {
                Some(before) => Relation::Same(before.clone()),
                None => named().map_or(Relation::New, |before| Relation::Anew(before.clone())),
            }
        };
        let there = later.iter().map(|volume| Compared { volume: volume.clone(), relation: relation(volume) });
        let gone = earlier.iter().filter(|before| later.iter().all(|volume| volume.id != before.id));
        Self { gone: gone.cloned().collect(), there: there.collect() }
    }

    /// The first thing that is not as it was, for people. `None`: the same volumes, of the same names and sizes, so that ranges alone, by name, say
    /// everything.
    pub fn unlike(&self) -> Option<String> {
        let gone = self.gone.first().map(|volume| format!("{} is gone", volume.name));
        // Of a name that is another volume's by now, that is what matters.
        self.there.iter().find_map(Compared::unlike).or(gone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

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

    /// Images by name hold the id of their volume. Whoever goes by DIFF-D1 has those of the later snapshot, whatever the names did, and nothing else.
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
                    // All that is in it is listed.
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
                assert_eq!(kept + told.gone.len(), earlier.len(), "each volume stays or goes");
                assert_eq!(told.unlike().is_none(), earlier == later, "{earlier:?} to {later:?}");
            }
        }
    }
}
