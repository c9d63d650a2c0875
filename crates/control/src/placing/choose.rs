//! The moves: constraints first, then balance.

use super::board::{Board, Choice, Cost};
use super::possible::{Impossible, possible};
use super::{Candidate, Move, Placed, Rules, SET_WEIGHT, View, Why};
use crate::cluster::{MemberRole, Standing};
use crate::policy::Policy;
use holdfast_types::{GroupId, MemberId};
use std::collections::{BTreeMap, BTreeSet};

/// Weight of each member: the journals of the groups in which it votes, and the groups that it leads.
type Loads = BTreeMap<MemberId, u64>;

fn loads(view: &View) -> Loads {
    let mut loads: Loads = view.members.keys().map(|id| (*id, 0)).collect();
    let mut add = |id: &MemberId, weight: u64| {
        if let Some(load) = loads.get_mut(id) {
            *load = load.saturating_add(weight);
        }
    };
    // Group 0 weighs next to nothing.
    for (_, placed) in view.groups.iter().filter(|(group, _)| **group != GroupId::CLUSTER) {
        placed.voters.iter().for_each(|id| add(id, weight(placed)));
        placed.leader.iter().for_each(|id| add(id, SET_WEIGHT));
    }
    loads
}

fn weight(placed: &Placed) -> u64 {
    placed.bytes.saturating_add(SET_WEIGHT)
}

/// Whether its move counts against the limits of [`Rules`].
fn counts(placed: &Placed) -> bool {
    placed.moving && placed.late.is_empty() && !placed.overdue && !placed.stalled
}

/// Whether a move repairs: [`Rules::repairs`] is its limit.
fn repairs(why: Why) -> bool {
    match why {
        Why::Survival | Why::Unusable | Why::Fewer => true,
        Why::Number | Why::Drained | Why::Home | Why::Balance => false,
    }
}

/// The next moves. Those of an earlier plan that are not done count against the limits of [`Rules`], unless they are
/// stalled or have taken too long.
pub fn plan(view: &View, rules: &Rules) -> Vec<Move> {
    if rules.at_once == 0 {
        return Vec::new();
    }
    let under_way = view.groups.values().filter(|placed| counts(placed)).count();
    let mut loads = loads(view);
    let mut worst: Vec<(Cost, GroupId, Board)> = Vec::new();
    for (group, placed) in &view.groups {
        let board = Board::new(view, placed, rules.replace_after);
        let cost = board.cost(board.choice(&placed.voters));
        worst.push((cost, *group, board));
    }
    // The worst first; of equal ones the lower number.
    worst.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    let mut moves = Vec::new();
    for (cost, group, board) in &worst {
        let Some(placed) = view.groups.get(group) else { continue };
        // Nothing costs less: of a thousand sets that are well no step is looked at.
        if *cost == Cost::default() {
            continue;
        }
        let choice = board.choice(&placed.voters);
        // Without a leader nobody follows, and whether the last move is done is not known (PLACING-P3).
        if placed.leader.is_none() {
            continue;
        }
        // One move at a time, unless a voter that it waits for is lost: then it would wait for ever.
        if placed.moving && board.unusable(choice) == 0 {
            continue;
        }
        let full = |limit: usize| !counts(placed) && under_way + moves.len() >= limit;
        if full(rules.at_once.max(rules.repairs)) {
            continue;
        }
        let Some((to, after)) = better(board, placed, &loads) else { continue };
        let why = why(cost, &after);
        if full(if repairs(why) { rules.repairs } else { rules.at_once }) {
            continue;
        }
        let to = board.members(to);
        for id in to.difference(&placed.voters) {
            if let Some(load) = loads.get_mut(id) {
                *load = load.saturating_add(weight(placed));
            }
        }
        moves.push(Move { group: *group, from: placed.voters.clone(), to, why });
    }
    if rules.balance && moves.is_empty() && under_way == 0 {
        moves.extend(balance(view, &worst, &loads));
    }
    moves
}

/// What counts as surviving more.
fn survival(cost: &Cost) -> (u32, u32, u32, u32) {
    (cost.short, cost.unserved, cost.few, cost.crowded)
}

/// What a move improves most.
fn why(before: &Cost, after: &Cost) -> Why {
    if after.number > before.number {
        Why::Fewer
    } else if after.unusable < before.unusable {
        Why::Unusable
    } else if survival(after) < survival(before) {
        Why::Survival
    } else if after.number < before.number {
        Why::Number
    } else if after.drained < before.drained {
        Why::Drained
    } else {
        Why::Home
    }
}

/// PLACING-P1.
fn survives_as_much(before: &Cost, after: &Cost) -> bool {
    after.short <= before.short && after.unserved <= before.unserved
}

/// Whether fewer voters than asked for may be better (PLACING-P4): a loss would stop the group, as it is to be and as
/// it is. Newcomers that are late are no reason: it does not have them.
fn may_shrink(board: &Board, has: Choice, before: &Cost) -> bool {
    before.short > 0 && board.cost(has).short > 0 && board.has_majority(has)
}

/// The best choice that one step reaches, if it costs less than the present one.
///
/// After a failed move, the choice is compared with the voters the group still has: it must not survive less than with
/// these either (PLACING-P1).
fn better(board: &Board, placed: &Placed, loads: &Loads) -> Option<(Choice, Cost)> {
    let (now, had) = (board.choice(&placed.voters), board.choice(&placed.now));
    let before = board.cost(now);
    let shrinks = may_shrink(board, had, &before);
    let had = (had != 0).then(|| board.cost(had));
    let survives =
        |after: &Cost| survives_as_much(&before, after) && had.is_none_or(|had| survives_as_much(&had, after));
    let pressing = |cost: &Cost| (cost.short, cost.unserved, cost.unusable, cost.few);
    let tries = |choice: Choice, after: &Cost| board.slow(choice & !now) == 0 || pressing(after) < pressing(&before);
    let fewer = |choice: Choice| choice.count_ones() < now.count_ones() && now.count_ones() <= board.wanted();
    // A fourth voter makes each write wait for one more, and no more losses are survived. A new set is filled up.
    let fourth = |choice: Choice| placed.leader.is_some() && choice.count_ones() == 4 && now.count_ones() < 4;
    // A voter that is away or does not run the group now may be lost next. And those that count as lost may be cut off
    // from the leader of group 0 only, and be the group's quorum.
    let answers = |choice: Choice| board.preference(choice).0 == 0;
    // PLACING-P4: after the loss of one domain a majority is left, and so everything that was acknowledged.
    let number = |choice: Choice, after: &Cost| {
        if fewer(choice) { shrinks && after.short == 0 && answers(choice) } else { !fourth(choice) }
    };
    let fits = |(choice, after): &(Choice, Cost)| {
        let costs_less = board.is_accepted(*choice) && *after < before;
        costs_less && survives(after) && number(*choice, after) && tries(*choice, after)
    };
    let load = |choice: Choice| -> u64 {
        let of = |id: &MemberId| loads.get(id).copied().unwrap_or_default();
        board.members(choice).iter().map(of).fold(0, u64::saturating_add)
    };
    let leads = |choice: Choice| placed.leader.is_none_or(|leader| board.members(choice).contains(&leader));
    let steps = steps(board, now).into_iter().map(|choice| (choice, board.cost(choice))).filter(fits);
    steps.min_by_key(|(choice, cost)| {
        let (silent, regions, witnesses) = board.preference(*choice);
        let waits = (silent, board.slow(*choice));
        let rest = (waits, !leads(*choice), regions, witnesses, load(*choice), board.members(*choice));
        (fewer(*choice), *cost, rest)
    })
}

/// All choices that one step reaches: one or two more while there are too few, one or two fewer, one in place of
/// another. Three stay (PLACING-P4).
fn steps(board: &Board, now: Choice) -> Vec<Choice> {
    let (taken, free) = (board.taken(now), board.free(now));
    let bit = |at: &usize| 1_u64 << at;
    let singles = |of: &[usize]| of.iter().map(bit).collect::<Vec<Choice>>();
    let pairs = |of: &[usize]| {
        let pair =
            |(nth, one): (usize, &usize)| of[nth + 1..].iter().map(|two| bit(one) | bit(two)).collect::<Vec<_>>();
        of.iter().enumerate().flat_map(pair).collect::<Vec<Choice>>()
    };
    let mut all: Vec<Choice> = Vec::new();
    if now.count_ones() < board.wanted() {
        all.extend(singles(&free).into_iter().chain(pairs(&free)).map(|more| now | more));
    }
    let fewer = singles(&taken).into_iter().chain(pairs(&taken)).map(|less| now & !less);
    all.extend(fewer.filter(|choice| choice.count_ones() >= board.least()));
    for out in singles(&taken) {
        all.extend(singles(&free).into_iter().map(|into| (now & !out) | into));
    }
    all
}

/// One voter from a loaded member to one with less, if that is more than a small difference. It never takes the leader
/// and never brings in a further region: each write would wait for that.
fn balance(view: &View, boards: &[(Cost, GroupId, Board)], loads: &Loads) -> Option<Move> {
    let serving = view.members.values().filter(|m| m.role == MemberRole::Gateway && m.standing == Standing::Active);
    let total: u64 = loads.values().copied().fold(0, u64::saturating_add);
    // A tenth of what each has: less is not worth the copying, and more than a move back would need.
    let slack = (total / (serving.count() as u64).max(1) / 10).max(SET_WEIGHT);
    let of = |id: MemberId| loads.get(&id).copied().unwrap_or_default();
    let mut best: Option<(u64, Move)> = None;
    for (cost, group, board) in boards {
        let may = |placed: &&Placed| *group != GroupId::CLUSTER && placed.leader.is_some() && !placed.moving;
        let Some(placed) = view.groups.get(group).filter(may) else { continue };
        let now = board.choice(&placed.voters);
        for out in board.taken(now).into_iter().filter(|at| placed.leader != Some(board.id(*at))) {
            for into in board.free(now) {
                let least = of(board.id(into)).saturating_add(weight(placed)).saturating_add(slack);
                let gain = of(board.id(out)).saturating_sub(least);
                if gain == 0 || !board.alike(out, into) || best.as_ref().is_some_and(|(most, _)| *most >= gain) {
                    continue;
                }
                let choice = (now & !(1_u64 << out)) | (1_u64 << into);
                let after = board.cost(choice);
                let wider = board.preference(choice) > board.preference(now);
                if wider || after > *cost || !survives_as_much(cost, &after) {
                    continue;
                }
                let (from, to) = (placed.voters.clone(), board.members(choice));
                best = Some((gain, Move { group: *group, from, to, why: Why::Balance }));
            }
        }
    }
    best.map(|(_, found)| found)
}

/// The voters of a new set. A member that is busy or does not answer votes as well if there are too few others: its
/// journal empties again, and it may come back. Of several, the one with which the policy is met best; of equal ones,
/// one that answers.
pub fn first_voters(view: &View, policy: &Policy, rules: &Rules) -> BTreeSet<MemberId> {
    let (mut voters, board) = spread(view, policy, rules);
    let wanted = usize::try_from(board.wanted()).unwrap_or_default();
    if voters.len() < wanted && view.members.values().any(|member| member.busy) {
        let mut view = view.clone();
        view.members.values_mut().for_each(|member| member.busy = false);
        voters = spread(&view, policy, rules).0;
    }
    let allowed = view.members.iter().filter(|(_, member)| member.allowed(policy));
    let allowed: Vec<MemberId> = allowed.map(|(id, _)| *id).collect();
    while voters.len() < wanted {
        let with = |id: MemberId| {
            let more: BTreeSet<MemberId> = voters.iter().copied().chain([id]).collect();
            let more = board.choice(&more);
            (board.cost(more), board.preference(more))
        };
        let others = allowed.iter().copied().filter(|id| !voters.contains(id));
        let Some(next) = others.min_by_key(|id| (with(*id), *id)) else { break };
        voters.insert(next);
    }
    voters
}

/// The best voters among those that can take part now, and what they were judged by. Nobody has anything of the set
/// yet, so each step is free.
fn spread(view: &View, policy: &Policy, rules: &Rules) -> (BTreeSet<MemberId>, Board) {
    let loads = loads(view);
    let mut placed = Placed {
        policy: policy.clone(),
        voters: BTreeSet::new(),
        now: BTreeSet::new(),
        late: BTreeSet::new(),
        absent: BTreeSet::new(),
        leader: None,
        bytes: 0,
        moving: false,
        overdue: false,
        stalled: false,
    };
    let board = Board::new(view, &placed, rules.replace_after);
    // Each step costs less than the one before; the bound guards against a mistake in that.
    for _ in 0..4 * usize::from(policy.voters) {
        let now = board.choice(&placed.voters);
        let next = if now == 0 { first(&board, &loads) } else { better(&board, &placed, &loads).map(|(to, _)| to) };
        match next {
            Some(next) => placed.voters = board.members(next),
            None => break,
        }
    }
    (placed.voters, board)
}

/// Most steps of one set that are looked ahead. Each costs less than the one before; more are never needed.
const STEPS_MAX: usize = 64;

/// The voters that a group comes to, step by step, if no other group moves.
fn end_of(board: &Board, mut placed: Placed, loads: &Loads) -> BTreeSet<MemberId> {
    for _ in 0..STEPS_MAX {
        let Some((to, _)) = better(board, &placed, loads) else { break };
        placed.voters = board.members(to);
    }
    placed.voters
}

/// Of each group that has a leader, the voters that plans come to if nothing else changes. Moves for balance do not
/// count: nobody needs them. Nor do groups without a leader: they may stay so for long.
pub fn ends(view: &View, rules: &Rules) -> BTreeMap<GroupId, BTreeSet<MemberId>> {
    let loads = loads(view);
    let of = |(group, placed): (&GroupId, &Placed)| {
        let board = Board::new(view, placed, rules.replace_after);
        let moves = rules.at_once > 0 && placed.leader.is_some();
        moves.then(|| (*group, end_of(&board, placed.clone(), &loads)))
    };
    view.groups.iter().filter_map(of).collect()
}

/// Of each group, the members that plans would still make its voters ([`ends`]). `gateway add` waits for these.
pub fn newcomers(view: &View, rules: &Rules) -> BTreeMap<GroupId, BTreeSet<MemberId>> {
    let of = |(group, end): (GroupId, BTreeSet<MemberId>)| {
        let more: BTreeSet<MemberId> = end.difference(&view.groups.get(&group)?.voters).copied().collect();
        (!more.is_empty()).then_some((group, more))
    };
    ends(view, rules).into_iter().filter_map(of).collect()
}

/// Whether a set that has voters may get this policy: the members can meet it ([`possible`]), and no voter would stay
/// in a region that it forbids anew. Without `survive` fewer voters are enough for a new set; this one would have to
/// survive less than now, which no step does (PLACING-P1). Who is silent, busy or slow counts: that may end.
pub fn may_get(view: &View, group: GroupId, policy: &Policy) -> Result<(), Impossible> {
    possible(&view.members, policy)?;
    let Some(placed) = view.groups.get(&group).filter(|_| policy.survive.is_none()) else { return Ok(()) };
    let before = placed.policy.forbidden.clone();
    let placed = Placed { policy: policy.clone(), late: BTreeSet::new(), ..placed.clone() };
    let mut view = view.clone();
    for member in view.members.values_mut() {
        (member.silent, member.busy, member.slow) = (None, false, false);
    }
    let voters = end_of(&Board::new(&view, &placed, None), placed, &loads(&view));
    let barred = |member: &&Candidate| {
        let region = &member.locality.region;
        member.standing != Standing::Leaving && policy.forbidden.contains(region) && !before.contains(region)
    };
    match voters.iter().filter_map(|id| view.members.get(id)).find(barred) {
        None => Ok(()),
        Some(stays) => Err(Impossible::Stays {
            name: stays.name.clone(),
            region: stays.locality.region.clone(),
            forbidden: policy.forbidden.iter().cloned().collect(),
        }),
    }
}

/// Begins with one voter that costs least.
fn first(board: &Board, loads: &Loads) -> Option<Choice> {
    let load = |at: usize| loads.get(&board.id(at)).copied().unwrap_or_default();
    let key = |at: &usize| (board.cost(1_u64 << *at), board.preference(1_u64 << *at), load(*at), board.id(*at));
    let at = board.free(0).into_iter().min_by_key(key)?;
    Some(1_u64 << at)
}
