//! Whether the members can meet a policy, and what is missing if they cannot.

use super::{Candidate, Domain};
use crate::cluster::MemberRole;
use crate::policy::{Policy, Survive};
use holdfast_types::{MemberId, Name};
use std::collections::{BTreeMap, BTreeSet};

/// A policy cannot be met by the present members. The text says what is missing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Impossible {
    /// It contradicts itself.
    #[error("{0}")]
    Policy(String),
    /// Too few members.
    #[error(
        "needs {needed} gateways or witnesses{}, found {}; add a gateway{}",
        outside(.forbidden), listed(.found), fewer(.needed, .found)
    )]
    Members {
        /// Voters of the policy.
        needed: usize,
        /// The members that may be voters.
        found: Vec<Name>,
        /// Where none may be.
        forbidden: Vec<Name>,
    },
    /// No gateway may be a voter.
    #[error(
        "needs a gateway{}, since a witness cannot serve, found none; add a gateway there or forbid fewer regions",
        outside(.forbidden)
    )]
    Nobody {
        /// Where none may be.
        forbidden: Vec<Name>,
    },
    /// No gateway at home.
    #[error(
        "needs a gateway in its home region {home}, found regions: {}; add a gateway there or choose another --home",
        text(.found)
    )]
    Home {
        /// The home region.
        home: Name,
        /// Regions with gateways that may be voters.
        found: Vec<Name>,
    },
    /// A voter would stay in a region that is to be forbidden.
    #[error(
        "needs another gateway{} in the place of {name} in region {region}: without that voter the set would survive less than now, so it \
         would stay; add a gateway{}",
        outside(.forbidden), outside(.forbidden)
    )]
    Stays {
        /// The voter.
        name: Name,
        /// Its region.
        region: Name,
        /// Where none may be.
        forbidden: Vec<Name>,
    },
    /// Too few domains.
    #[error(
        "needs {needed} {level}s, found {}; add a gateway {}{}",
        listed(.found), another(.level), or_narrower(.level)
    )]
    Domains {
        /// The level.
        level: Survive,
        /// How many.
        needed: usize,
        /// The domains, without the word for the level.
        found: Vec<String>,
    },
    /// Enough domains, and too few members in most of them.
    #[error(
        "needs {needed} voters with at most {most} in one {level}, found room for {room} in {}; add a gateway {} than the largest{}",
        text(.found), another(.level), or_narrower(.level)
    )]
    Crowded {
        /// The level.
        level: Survive,
        /// Voters of the policy.
        needed: usize,
        /// Most voters in one domain.
        most: usize,
        /// Voters that can be placed.
        room: usize,
        /// The domains.
        found: Vec<String>,
    },
    /// Witnesses alone cannot serve.
    #[error(
        "needs gateways in 2 {level}s, since a witness cannot serve, found {}; add a gateway {}{}",
        listed(.found), another(.level), or_narrower(.level)
    )]
    Witnesses {
        /// The level.
        level: Survive,
        /// The domains with gateways.
        found: Vec<String>,
    },
}

fn text<T: ToString>(found: &[T]) -> String {
    match found {
        [] => "none".to_owned(),
        found => found.iter().map(T::to_string).collect::<Vec<_>>().join(", "),
    }
}

fn listed<T: ToString>(found: &[T]) -> String {
    if found.is_empty() { "0".to_owned() } else { format!("{}: {}", found.len(), text(found)) }
}

fn outside(forbidden: &[Name]) -> String {
    if forbidden.is_empty() { String::new() } else { format!(" outside of {}", text(forbidden)) }
}

/// What is possible with those that were found.
fn fewer(needed: &usize, found: &[Name]) -> &'static str {
    if *needed > 3 && found.len() >= 3 { " or choose --voters 3" } else { " or choose --survive auto" }
}

fn another(level: &Survive) -> String {
    let at = if *level == Survive::Host { "on" } else { "in" };
    format!("{at} another {level}")
}

fn or_narrower(level: &Survive) -> String {
    let other = level.narrower().map_or("auto", Survive::as_str);
    format!(" or choose --survive {other}")
}

/// A domain without the word for its level.
fn bare(domain: &Domain) -> String {
    let text = domain.to_string();
    text.split_once(' ').map_or(text.clone(), |(_, bare)| bare.to_owned())
}

/// Whether `voters` of these can be chosen so that the loss of one domain leaves a majority, with a gateway.
pub(super) fn room(level: Survive, usable: &[(MemberId, &Candidate)], voters: usize) -> Result<(), Impossible> {
    let most = voters.saturating_sub(1) / 2;
    let mut each: BTreeMap<Domain, usize> = BTreeMap::new();
    for (id, member) in usable {
        *each.entry(Domain::of(level, *id, member)).or_default() += 1;
    }
    let found = || each.keys().map(bare).collect::<Vec<String>>();
    let needed = voters.div_ceil(most.max(1));
    if each.len() < needed {
        return Err(Impossible::Domains { level, needed, found: found() });
    }
    let room: usize = each.values().map(|members| (*members).min(most)).sum();
    if room < voters {
        return Err(Impossible::Crowded { level, needed: voters, most, room, found: found() });
    }
    let gateways = usable.iter().filter(|(_, member)| member.role == MemberRole::Gateway);
    let serving: BTreeSet<Domain> = gateways.map(|(id, member)| Domain::of(level, *id, member)).collect();
    match serving.len() {
        0 | 1 => Err(Impossible::Witnesses { level, found: serving.iter().map(bare).collect() }),
        _ => Ok(()),
    }
}

/// Whether these members can meet the policy. Who is silent counts: it may come back.
///
/// # Errors
/// [`Impossible`]. Never for a policy without `survive`, `home` and forbidden regions.
pub fn possible(members: &BTreeMap<MemberId, Candidate>, policy: &Policy) -> Result<(), Impossible> {
    policy.check().map_err(Impossible::Policy)?;
    let allowed: Vec<(MemberId, &Candidate)> =
        members.iter().filter(|(_, member)| member.allowed(policy)).map(|(id, member)| (*id, member)).collect();
    let gateways = || allowed.iter().filter(|(_, member)| member.role == MemberRole::Gateway);
    let regions: BTreeSet<&Name> = gateways().map(|(_, member)| &member.locality.region).collect();
    if let Some(home) = policy.home.as_ref().filter(|home| !regions.contains(home)) {
        return Err(Impossible::Home { home: home.clone(), found: regions.into_iter().cloned().collect() });
    }
    let needed: usize = policy.survive.map_or(1, |_| policy.voters.into());
    let forbidden = || policy.forbidden.iter().cloned().collect();
    if gateways().next().is_none() {
        return Err(Impossible::Nobody { forbidden: forbidden() });
    }
    if allowed.len() < needed {
        let found = allowed.iter().map(|(_, member)| member.name.clone()).collect();
        return Err(Impossible::Members { needed, found, forbidden: forbidden() });
    }
    match policy.survive {
        Some(level) => room(level, &allowed, needed),
        None => Ok(()),
    }
}
