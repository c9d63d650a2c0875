//! Several builds where one would be too large: the compiler takes more than its share of time for a function with
//! hundreds of bodies, and of memory for a crate that is many times as long as its sources.

use super::rewrite::{Numbered, Source, change, sources};
use anyhow::{Context, Result};
use std::collections::BTreeMap;

/// Bounds of one build.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Most bugs in all.
    pub(crate) bugs: usize,
    /// Most bodies of one function, beside the original.
    pub(crate) bodies: usize,
    /// Most bytes of all bodies beside the originals. A single bug may have more.
    pub(crate) bytes: usize,
}

/// One build so far.
#[derive(Default)]
struct Group<'a> {
    bugs: Vec<Numbered<'a>>,
    bytes: usize,
    /// Number of bodies by file and begin of the function.
    bodies: BTreeMap<(&'a str, usize), usize>,
}

/// Shares the bugs out to as few builds as a simple rule finds: each goes into the first one that has room. `read`
/// returns the text of a file of the tree.
///
/// # Errors
/// When a file cannot be read or is no Rust, or an edit is not in its file.
pub(crate) fn groups<'a>(
    bugs: &[Numbered<'a>],
    bounds: Bounds,
    read: impl Fn(&str) -> Result<String>,
) -> Result<Vec<Vec<Numbered<'a>>>> {
    let sources = sources(bugs, read)?;
    let mut groups: Vec<Group<'a>> = Vec::new();
    for one in bugs {
        let bodies = bodies(one, &sources)?;
        let bytes: usize = bodies.values().sum();
        let has_room = |group: &Group<'a>| {
            group.bugs.len() < bounds.bugs
                && group.bytes + bytes <= bounds.bytes
                && bodies.keys().all(|place| group.bodies.get(place).is_none_or(|count| *count < bounds.bodies))
        };
        let at = groups.iter().position(has_room).unwrap_or_else(|| {
            groups.push(Group::default());
            groups.len() - 1
        });
        let group = &mut groups[at];
        group.bugs.push(*one);
        group.bytes += bytes;
        bodies.into_keys().for_each(|place| *group.bodies.entry(place).or_default() += 1);
    }
    Ok(groups.into_iter().map(|group| group.bugs).collect())
}

/// The functions that get a body for this bug, and the length of each body in bytes. Of nested functions it is the
/// outermost one: it chooses if another bug is in it, and then has the longer body. A bug without a function has none.
fn bodies<'a>(one: &Numbered<'_>, sources: &BTreeMap<&'a str, Source>) -> Result<BTreeMap<(&'a str, usize), usize>> {
    let mut bodies = BTreeMap::new();
    for piece in one.bug.pieces() {
        let Some((&file, source)) = sources.get_key_value(piece.file) else { continue };
        let change = change(&source.text, &piece).with_context(|| format!("{}: {file}", one.bug.name()))?;
        let around = source.functions.iter().filter(|f| f.refused.is_none() && f.holds(&change.part));
        if let Some(outermost) = around.max_by_key(|f| f.body.len()) {
            *bodies.entry((file, outermost.body.start)).or_insert(outermost.body.len()) += piece.new.len();
        }
    }
    Ok(bodies)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bug::{Edit, Mutation};

    const TEXT: &str = "fn f() -> u8 {\n    1\n}\nfn g() -> u8 {\n    fn h() -> u8 { 2 }\n    h() + 3\n}\n";

    /// Numbers of the bugs of each build, for bugs that replace these texts.
    fn shared(old: &[&'static str], bounds: Bounds) -> Vec<Vec<u32>> {
        let edits: Vec<[Edit; 1]> = old.iter().map(|&old| [Edit { file: "a/src/f.rs", old, new: "9" }]).collect();
        let bug = |edits: &'static [Edit]| Mutation { name: "a", bug: "", rule: "", edits, tests: &[], smoke: false };
        let bugs: Vec<Mutation> = edits.into_iter().map(|edits| bug(Box::leak(Box::new(edits)))).collect();
        let numbered: Vec<Numbered<'_>> = bugs.iter().zip(1..).map(|(bug, number)| Numbered { number, bug }).collect();
        let groups = groups(&numbered, bounds, |_| Ok(TEXT.into())).unwrap();
        groups.iter().map(|group| group.iter().map(|one| one.number).collect()).collect()
    }

    const WIDE: Bounds = Bounds { bugs: 100, bodies: 100, bytes: 10_000 };

    #[test]
    fn one_build_takes_all_as_long_as_it_has_room() {
        assert_eq!(shared(&["1", "2", "3"], WIDE), [vec![1, 2, 3]]);
        assert!(shared(&[], WIDE).is_empty());
        assert_eq!(shared(&["1", "2", "3"], Bounds { bugs: 2, ..WIDE }), [vec![1, 2], vec![3]]);
    }

    #[test]
    fn a_function_has_so_many_bodies_and_those_of_inner_ones_count_as_its_own() {
        let found = shared(&["1", "1", "2", "3", "2", "1"], Bounds { bodies: 2, ..WIDE });
        assert_eq!(found, [vec![1, 2, 3, 4], vec![5, 6]]);
    }

    #[test]
    fn bodies_have_so_many_bytes_but_a_single_one_may_be_longer() {
        // The body of f has 7 bytes, and the new text 1.
        assert_eq!(shared(&["1", "1", "1"], Bounds { bytes: 16, ..WIDE }), [vec![1, 2], vec![3]]);
        assert_eq!(shared(&["3", "1", "3"], Bounds { bytes: 10, ..WIDE }), [vec![1], vec![2], vec![3]]);
    }

    /// It is refused later, with the reason.
    #[test]
    fn what_is_in_no_function_takes_no_room() {
        assert_eq!(shared(&["fn f", "fn g"], Bounds { bytes: 0, bodies: 0, ..WIDE }), [vec![1, 2]]);
    }
}
