//! What a group's voters violate of its policy now, and why they are these.

use super::board::Board;
use super::{Candidate, Domain, Placed, Rules, View};
use crate::cluster::{MemberRole, Standing};
use crate::policy::Survive;
use holdfast_types::{MemberId, Name};
use std::collections::BTreeSet;

/// Something that a policy asks for and that is not so. The text is for people.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Violation {
    /// The loss of one domain would stop the set. Voters that do not answer, or do not run it, count as gone.
    #[error("the loss of {domain} leaves {left} of its voters, and {needed} are needed")]
    Survival {
        /// The domain, the worst of all.
        domain: String,
        /// Voters that are left.
        left: u32,
        /// A majority.
        needed: u32,
    },
    /// The loss of one domain leaves witnesses only.
    #[error("the loss of {domain} leaves no gateway that could serve")]
    Unserved {
        /// The domain.
        domain: String,
    },
    /// Fewer voters than asked for.
    #[error("it has {found} voters, expected {expected}")]
    Number {
        /// Its voters.
        found: u32,
        /// Those of the policy.
        expected: u32,
    },
    /// A voter where none may be.
    #[error("{name} votes in region {region}, which is forbidden")]
    Forbidden {
        /// The voter.
        name: Name,
        /// Its region.
        region: Name,
    },
    /// No voter at home.
    #[error("no voter is in the home region {home}")]
    Away {
        /// The home region.
        home: Name,
    },
    /// A voter does not answer.
    #[error("{name} in {place} does not answer")]
    Silent {
        /// The voter.
        name: Name,
        /// Its locality.
        place: String,
    },
    /// A voter answers and does not run the group.
    #[error("{name} in {place} answers, but does not run the set: see its log and its /healthz")]
    Absent {
        /// The voter.
        name: Name,
        /// Its locality.
        place: String,
    },
    /// A newcomer is late ([`super::LATE`]).
    #[error(
        "{name} was to become a voter more than an hour ago, but is none yet: see its log, its disk and its network"
    )]
    Late {
        /// The newcomer.
        name: Name,
    },
}

/// Those that are members.
fn known<'a>(view: &'a View, of: &'a BTreeSet<MemberId>) -> impl Iterator<Item = (MemberId, &'a Candidate)> {
    of.iter().filter_map(move |id| Some((*id, view.members.get(id)?)))
}

/// What the voters that the group has violate now, in a fixed order: those that it is to have protect nothing yet.
/// Without a policy's `survive`, only what the present members could do better.
pub fn violations(view: &View, placed: &Placed, rules: &Rules) -> Vec<Violation> {
    let board = Board::new(view, placed, rules.replace_after);
    let choice = board.choice(&placed.now);
    let mut found = Vec::new();
    let loss = board.worst_loss(choice, true).filter(|(_, left, needed)| board.promised && left < needed);
    if let Some((domain, left, needed)) = loss {
        found.push(Violation::Survival { domain: domain.to_string(), left, needed });
    }
    if board.promised {
        let unserved = board.unserved(choice);
        found.extend(unserved.into_iter().map(|domain| Violation::Unserved { domain: domain.to_string() }));
    }
    let voters = choice.count_ones();
    let expected = placed.policy.survive.map_or(board.wanted(), |_| placed.policy.voters.into());
    if voters < expected {
        found.push(Violation::Number { found: voters, expected });
    }
    let forbidden = known(view, &placed.now).filter(|(_, m)| placed.policy.forbidden.contains(&m.locality.region));
    found.extend(forbidden.map(|(_, member)| {
        let (name, region) = (member.name.clone(), member.locality.region.clone());
        Violation::Forbidden { name, region }
    }));
    let at_home = |home: &&Name| known(view, &placed.now).any(|(_, member)| member.locality.region == **home);
    if let Some(home) = placed.policy.home.as_ref().filter(|home| !at_home(home)) {
        found.push(Violation::Away { home: home.clone() });
    }
    let silent = known(view, &placed.now).filter(|(_, member)| member.silent.is_some());
    found.extend(
        silent.map(|(_, member)| Violation::Silent { name: member.name.clone(), place: member.locality.to_string() }),
    );
    let absent = known(view, &placed.absent).filter(|(id, m)| placed.now.contains(id) && m.silent.is_none());
    found.extend(
        absent.map(|(_, member)| Violation::Absent { name: member.name.clone(), place: member.locality.to_string() }),
    );
    let late = known(view, &placed.late);
    found.extend(late.map(|(_, member)| Violation::Late { name: member.name.clone() }));
    found
}

/// Why the voters are these: one line for the whole, then one for each voter.
pub fn reasons(view: &View, placed: &Placed, rules: &Rules) -> Vec<String> {
    let board = Board::new(view, placed, rules.replace_after);
    let choice = board.choice(&placed.voters);
    let (voters, level) = (choice.count_ones(), board.level);
    let most = voters.saturating_sub(1) / 2;
    let holds = board.worst_loss(choice, false).is_some_and(|(_, left, needed)| left >= needed);
    let whole = match (holds, board.promised) {
        (true, _) => {
            format!("at most {most} of {voters} voters in one {level}: it survives the loss of any one {level}")
        }
        (false, true) => format!("it does not survive the loss of every {level} now"),
        (false, false) => format!("all that there are: {voters} voters survive no loss of a {}", Survive::Host),
    };
    let whole = if placed.now == placed.voters { whole } else { format!("once its group has these voters: {whole}") };
    let line = |(id, member): (MemberId, &Candidate)| {
        let mut facts = vec![Domain::of(level, id, member).to_string()];
        if placed.policy.home.as_ref() == Some(&member.locality.region) {
            facts.push("home".to_owned());
        }
        if placed.leader == Some(id) {
            facts.push("leads".to_owned());
        }
        if member.role == MemberRole::Witness {
            facts.push("witness".to_owned());
        }
        match member.standing {
            Standing::Active => {}
            Standing::Drained => facts.push("drained".to_owned()),
            Standing::Leaving => facts.push("leaving".to_owned()),
        }
        format!("{}: {}", member.name, facts.join(", "))
    };
    std::iter::once(whole).chain(known(view, &placed.voters).map(line)).collect()
}
