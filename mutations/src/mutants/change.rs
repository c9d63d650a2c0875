//! The change that a run is about: the commit after which it began, and which of its mutants are tried where the time
//! is short.

use super::results::Mutant;
use crate::binary::root;
use crate::cmd::cmd;
use std::collections::BTreeSet;

/// The commit that the change begins after: where this branch left `origin/main` or `main`. On these branches
/// themselves the last commit is the change. `None` where the history here has no such commit, as in a shallow clone.
///
/// Not the last tag: what came since then is the work of weeks, and a few minutes would try next to nothing of the
/// change that is about to land.
pub(super) fn base() -> Option<String> {
    chosen(|args| cmd("git").args(args).dir(root()).out().ok().map(|said| said.trim().to_owned()))
}

fn chosen(git: impl Fn(&[&str]) -> Option<String>) -> Option<String> {
    let head = git(&["rev-parse", "--verify", "HEAD"])?;
    let mut left = ["origin/main", "main"].into_iter().filter_map(|branch| git(&["merge-base", branch, "HEAD"]));
    left.find(|commit| *commit != head).or_else(|| git(&["rev-parse", "--verify", "HEAD^"]))
}

/// At most `most` of the mutants: an equal share of each crate, spread over its mutants.
pub(super) fn spread<'a>(mutants: &[&'a Mutant], most: usize) -> Vec<&'a Mutant> {
    if mutants.len() <= most {
        return mutants.to_vec();
    }
    let crates: BTreeSet<&str> = mutants.iter().map(|mutant| mutant.crate_name).collect();
    let share = (most / crates.len()).max(1);
    let mut taken = Vec::new();
    for name in crates {
        let of_crate: Vec<&'a Mutant> = mutants.iter().copied().filter(|mutant| mutant.crate_name == name).collect();
        let share = share.min(of_crate.len());
        taken.extend((0..share).map(|at| of_crate[at * of_crate.len() / share]));
    }
    taken.truncate(most);
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A history in which these commands have these answers, and all others fail.
    fn history(answers: &[(&str, &str)]) -> Option<String> {
        chosen(|args| {
            let asked = args.join(" ");
            answers.iter().find(|(command, _)| *command == asked).map(|(_, answer)| (*answer).to_owned())
        })
    }

    #[test]
    fn a_change_begins_where_its_branch_left_main_or_with_the_last_commit() {
        let head = ("rev-parse --verify HEAD", "c3");
        let before = ("rev-parse --verify HEAD^", "c2");
        let upstream = ("merge-base origin/main HEAD", "c1");
        let main = |commit| ("merge-base main HEAD", commit);
        assert_eq!(history(&[head, before, upstream, main("c0")]).as_deref(), Some("c1"));
        assert_eq!(history(&[head, before, main("c0")]).as_deref(), Some("c0"), "a clone without a remote");
        assert_eq!(history(&[head, before, main("c3")]).as_deref(), Some("c2"), "on main itself");
        assert_eq!(history(&[head, main("c3")]), None, "a shallow clone");
        assert_eq!(history(&[]), None, "no repository");
    }

    #[test]
    fn a_few_mutants_are_of_each_crate_and_from_its_beginning_to_its_end() {
        let mutant = |crate_name: &'static str, n: usize| Mutant::named(&format!("{crate_name}{n}"), crate_name);
        let mut all: Vec<Mutant> = (0..9).map(|n| mutant("seal", n)).collect();
        all.extend((0..2).map(|n| mutant("log", n)));
        let all: Vec<&Mutant> = all.iter().collect();
        let names = |most| spread(&all, most).iter().map(|one| one.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(6), ["log0", "log1", "seal0", "seal3", "seal6"]);
        assert_eq!(names(11).len(), 11);
        assert_eq!(names(1).len(), 1);
        assert!(names(0).is_empty());
    }
}
