//! Policies of sets, and the choice of their voters.

use crate::bug::{Edit, Layer, Mutation, Test, file, lib};

const PLACING: &str = "crates/control/src/placing.rs";
const BOARD: &str = "crates/control/src/placing/board.rs";
const CHOOSE: &str = "crates/control/src/placing/choose.rs";
const VIOLATIONS: &str = "crates/control/src/placing/violations.rs";
const PLANNED: &str = "crates/gateway/src/node/planned.rs";
const FOLLOWER: &str = "crates/gateway/src/node/members.rs";
const STEPS: &str = "crates/gateway/src/node/members/steps.rs";
const SETS: &str = "crates/control/src/cluster/sets.rs";
const DOOR: &str = "crates/gateway/src/admin/placing.rs";

const PLANS: Test = lib(Layer::Property, "holdfast-control", &["placing::"]);
const FEWER: Test = lib(Layer::Property, "holdfast-control", &["placing::tests::fewer::"]);
const MEMORY: Test = lib(Layer::Unit, "holdfast-gateway", &["node::planned::tests::"]);
const GROUP_0: Test = lib(Layer::Unit, "holdfast-control", &["a_policy_is_changed_once_and_by_who_saw_it"]);
const PASSED_ON: Test = lib(Layer::Unit, "holdfast-control", &["a_place_in_a_forbidden_region_is_not_passed_on"]);
const REFUSED: Test = lib(Layer::Unit, "holdfast-gateway", &["a_policy_that_one_gateway_cannot_meet_is_refused"]);

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "placing-forgets-survival",
        bug: "the planner moves voters as if each loss left a majority",
        rule: "PLACING-P1",
        edits: &[Edit {
            file: BOARD,
            old: "map_or(0, |(_, left, needed)| needed.saturating_sub(left))",
            new: "map_or(0, |_| 0)",
        }],
        tests: &[PLANS],
        smoke: false,
    },
    Mutation {
        name: "five-voters-stay-five",
        bug: "of five voters two are lost and nobody can take their places: all three that are left stay needed for ever",
        rule: "PLACING-P4",
        edits: &[Edit { file: CHOOSE, old: "shrinks && after.short == 0", new: "shrinks && after.short > 64" }],
        tests: &[FEWER],
        smoke: false,
    },
    Mutation {
        name: "fewer-voters-that-survive-nothing",
        bug: "a set gets fewer voters than it asks for although they survive no loss: writes that two of them in one region acknowledge can be lost",
        rule: "PLACING-P4",
        edits: &[Edit { file: CHOOSE, old: "shrinks && after.short == 0", new: "shrinks && after.short < 64" }],
        tests: &[FEWER],
        smoke: false,
    },
    Mutation {
        name: "placing-moves-what-moves",
        bug: "a set whose group has not followed its last move gets another one",
        rule: "PLACING-P3",
        edits: &[Edit {
            file: CHOOSE,
            old: "if placed.moving && board.unusable(choice) == 0 {",
            new: "if placed.moving && board.unusable(choice) > 64 {",
        }],
        tests: &[PLANS],
        smoke: false,
    },
    Mutation {
        name: "placing-moves-without-a-leader",
        bug: "a set without a leader gets other voters again and again, and nobody can follow",
        rule: "PLACING-P3",
        edits: &[Edit {
            file: CHOOSE,
            old: "if placed.leader.is_none() {",
            new: "if placed.leader.is_none() && placed.voters.is_empty() {",
        }],
        tests: &[PLANS],
        smoke: false,
    },
    Mutation {
        name: "placing-waits-for-a-late-move",
        bug: "two moves that never end keep every other set from moving",
        rule: "PLACING-P3",
        edits: &[Edit {
            file: CHOOSE,
            old: "placed.moving && placed.late.is_empty() && !placed.overdue",
            new: "placed.moving && !placed.overdue",
        }],
        tests: &[PLANS],
        smoke: false,
    },
    Mutation {
        name: "placing-waits-for-a-stalled-move",
        bug: "moves whose newcomers get nothing keep every other set from moving for an hour",
        rule: "PLACING-P3",
        edits: &[Edit { file: CHOOSE, old: " && !placed.stalled", new: "" }],
        tests: &[lib(Layer::Story, "holdfast-control", &["repairs_are_several_at_once_and_wait_for_no_stalled_move"])],
        smoke: false,
    },
    Mutation {
        name: "placing-slow-counts-as-stalled",
        bug: "a move over a slow line counts as stalled while it gets on: more and more copies share that line",
        rule: "PLACING-P3",
        edits: &[Edit { file: PLANNED, old: "(way.at, way.nearer) = (is_at, at);", new: "way.at = is_at;" }],
        tests: &[MEMORY],
        smoke: false,
    },
    Mutation {
        name: "repairs-two-at-a-time",
        bug: "of a gateway that is removed for good the sets are moved two at a time, with one voter too few meanwhile",
        rule: "PLACING-P3",
        edits: &[Edit {
            file: CHOOSE,
            old: "Why::Survival | Why::Unusable | Why::Fewer => true,",
            new: "Why::Survival | Why::Unusable | Why::Fewer => false,",
        }],
        tests: &[lib(Layer::Story, "holdfast-control", &["repairs_are_several_at_once_and_wait_for_no_stalled_move"])],
        smoke: false,
    },
    Mutation {
        name: "add-waits-for-every-small-set",
        bug: "`gateway add` waits for sets whose policy forbids the new gateway, until the time limit",
        rule: "ADR 0052",
        edits: &[Edit {
            file: "crates/holdfast/src/command/members.rs",
            old: "set.voters.is_empty() || set.voters.contains(&member.0)",
            new: "set.voters.len() < 3 || set.voters.contains(&member.0)",
        }],
        tests: &[file(
            Layer::Unit,
            "holdfast",
            &["--bin", "holdfast"],
            &["gateway_add_waits_only_for_votes_that_the_plan_wants"],
        )],
        smoke: false,
    },
    Mutation {
        name: "placing-by-an-older-cluster",
        bug: "a plan is noted and proposed although members or sets have changed while it was worked out",
        rule: "ADR 0052",
        edits: &[Edit {
            file: DOOR,
            old: "now.members == then.members && now.sets == then.sets",
            new: "now.members.len() == then.members.len() && now.sets == then.sets",
        }],
        tests: &[lib(
            Layer::Unit,
            "holdfast-gateway",
            &["what_was_planned_with_other_members_or_sets_is_not_proposed"],
        )],
        smoke: false,
    },
    Mutation {
        name: "placing-forgets-what-nobody-tells",
        bug: "a move counts as done because no leader reports the set: more sets move at once than may",
        rule: "PLACING-P3",
        edits: &[Edit {
            file: PLANNED,
            old: "seen.entry(set).or_insert(Seen { leader: None, ..last });",
            new: "let _ = (set, last);",
        }],
        tests: &[MEMORY],
        smoke: false,
    },
    Mutation {
        name: "placing-tells-what-is-planned",
        bug: "a violation is over as soon as a newcomer is named, before it has anything of the set",
        rule: "ADR 0052",
        edits: &[Edit {
            file: VIOLATIONS,
            old: "let choice = board.choice(&placed.now);",
            new: "let choice = board.choice(&placed.voters);",
        }],
        tests: &[PLANS],
        smoke: false,
    },
    Mutation {
        name: "placing-on-full-journals",
        bug: "a gateway whose journal has no room gets further voters",
        rule: "ADR 0052",
        edits: &[Edit {
            file: BOARD,
            old: "waits: member.silent.is_some() || member.busy && !placed.now.contains(id),",
            new: "waits: member.silent.is_some(),",
        }],
        tests: &[PLANS],
        smoke: false,
    },
    Mutation {
        name: "balance-into-further-regions",
        bug: "to make the load even, a voter goes to another region, and each write waits for that",
        rule: "ADR 0052",
        edits: &[Edit {
            file: CHOOSE,
            old: "let wider = board.preference(choice) > board.preference(now);",
            new: "let wider = board.preference(choice) > board.preference(choice);",
        }],
        tests: &[PLANS],
        smoke: false,
    },
    Mutation {
        name: "placing-weighs-this-moment",
        bug: "voters go to and fro with each checkpoint of a busy set",
        rule: "PLACING-P2",
        edits: &[Edit { file: PLANNED, old: "self.now.max(self.before)", new: "self.now" }],
        tests: &[MEMORY],
        smoke: false,
    },
    Mutation {
        name: "placing-replaces-at-once",
        bug: "a gateway that does not answer is replaced without waiting",
        rule: "ADR 0052",
        edits: &[Edit {
            file: PLACING,
            old: "replace_after.is_some_and(|limit| silent >= limit)",
            new: "replace_after.is_some_and(|_| silent >= Duration::ZERO)",
        }],
        tests: &[PLANS],
        smoke: false,
    },
    Mutation {
        name: "placing-in-forbidden-regions",
        bug: "voters are placed in regions where none may be",
        rule: "ADR 0052",
        edits: &[Edit {
            file: PLACING,
            old: "self.standing != Standing::Leaving && !policy.forbidden.contains(&self.locality.region)",
            new: "self.standing != Standing::Leaving && policy.voters > 0",
        }],
        tests: &[PLANS],
        smoke: false,
    },
    Mutation {
        name: "policy-changed-blindly",
        bug: "a change of a policy replaces one that its proposer has not seen",
        rule: "ADR 0052",
        edits: &[Edit { file: SETS, old: "if entry.policy != *expected {", new: "if expected.voters == 0 {" }],
        tests: &[GROUP_0],
        smoke: false,
    },
    Mutation {
        name: "votes-passed-into-a-forbidden-region",
        bug: "a gateway that replaces another one gets the votes of a set whose policy forbids its region",
        rule: "ADR 0052",
        edits: &[Edit {
            file: "crates/control/src/cluster/voters.rs",
            old: "entry.has_place_for(old) && entry.policy.forbidden.contains(region)",
            new: "entry.has_place_for(old) && entry.policy.forbidden.contains(region) && entry.policy.voters == 0",
        }],
        tests: &[PASSED_ON, REFUSED],
        smoke: false,
    },
    Mutation {
        name: "policy-not-checked",
        bug: "a set is made with a policy that the gateways cannot meet",
        rule: "ADR 0052",
        edits: &[Edit {
            file: DOOR,
            old: "possible(&view.members, &policy).map_err(|why| precondition(format!(\"policy ({policy}): it {why}\")))?;",
            new: "let _ = possible(&view.members, &policy);",
        }],
        tests: &[REFUSED],
        smoke: false,
    },
    Mutation {
        name: "leaving-voter-goes-first",
        bug: "a forced removal takes a set of three down to two voters before the planner gives the place to another gateway",
        rule: "MEMBER-M2",
        edits: &[Edit {
            file: "crates/control/src/members.rs",
            old: "    if enough || !state.members.values().any(takes) {\n",
            new: "    if enough || state.members.values().any(takes) {\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-control", &["a_leaving_voter_stays_until_its_place_is_given"])],
        smoke: false,
    },
    Mutation {
        name: "removal-waits-five-minutes-in-all",
        bug: "of a gateway with votes in many sets, the last ones go down to two voters although the planner is at work",
        rule: "MEMBER-M2",
        edits: &[Edit { file: FOLLOWER, old: "(self.named, self.last) = (named, now);", new: "self.named = named;" }],
        tests: &[lib(
            Layer::Unit,
            "holdfast-gateway",
            &["a_removal_waits_for_the_planner_while_it_gets_on_and_not_for_ever"],
        )],
        smoke: false,
    },
    Mutation {
        name: "two-steps-of-one-group",
        bug: "a second step of a group is begun while the first one waits: the set counts as unchanged in the middle of a change",
        rule: "CHANGE-B1",
        edits: &[Edit { file: STEPS, old: "!self.running.contains_key(&id) && ", new: "" }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["a_step_that_hangs_keeps_no_other_group_waiting"])],
        smoke: false,
    },
    Mutation {
        name: "members-one-group-at-a-time",
        bug: "a step that hangs keeps the members of every other group from being changed",
        rule: "MEMBER-M2",
        edits: &[Edit { file: STEPS, old: "of_sets() < STEPS_AT_ONCE", new: "of_sets() == 0" }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["a_step_that_hangs_keeps_no_other_group_waiting"])],
        smoke: false,
    },
    Mutation {
        name: "leaving-leader-gives-a-set-to-a-witness",
        bug: "a leader that leaves counts as wanted, and hands its set to a witness while a voter that serves is away: nobody serves it",
        rule: "MEMBER-M3",
        edits: &[Edit {
            file: "crates/control/src/members.rs",
            old: ".copied().filter(|id| *id != me).collect();",
            new: ".copied().filter(|id| *id != me || state.members.contains_key(id)).collect();",
        }],
        tests: &[lib(Layer::Unit, "holdfast-control", &["a_leader_that_leaves_hands_over_as_before"])],
        smoke: false,
    },
    Mutation {
        name: "planner-waits-for-who-leaves",
        bug: "the planner takes a set whose voter leaves for one that moves: it waits for the voter, which waits for it",
        rule: "MEMBER-M2",
        edits: &[Edit {
            file: PLANNED,
            old: "let moving = !now.difference(going).eq(&voters);",
            new: "let moving = now != voters && going.len() < 64;",
        }],
        tests: &[MEMORY],
        smoke: false,
    },
    Mutation {
        name: "newcomers-come-one-by-one",
        bug: "of two newcomers the first one votes alone: two of four voters are in one region, whose loss then stops the set",
        rule: "MEMBER-M2",
        edits: &[Edit {
            file: "crates/control/src/members.rs",
            old: "survives(level, now) && !survives(level, then)",
            new: "survives(level, now) && !survives(level, now)",
        }],
        tests: &[lib(Layer::Unit, "holdfast-control", &["newcomers_come_together_where_one_alone_survives_less"])],
        smoke: false,
    },
    Mutation {
        name: "first-voters-by-number",
        bug: "a new set gets a second voter in a region in place of a silent gateway that its policy needs",
        rule: "PLACING-P1",
        edits: &[Edit {
            file: CHOOSE,
            old: "others.min_by_key(|id| (with(*id), *id))",
            new: "others.min_by_key(|id| (with(*id) < with(*id), *id))",
        }],
        tests: &[lib(Layer::Unit, "holdfast-control", &["who_is_silent_completes_the_first_voters"])],
        smoke: false,
    },
    Mutation {
        name: "forbidden-where-a-voter-stays",
        bug: "a region is forbidden to a set whose voter there can never go: it stays for ever",
        rule: "PLACING-P1",
        edits: &[Edit {
            file: CHOOSE,
            old: "policy.forbidden.contains(region) && !before.contains(region)",
            new: "policy.forbidden.is_empty() && !before.contains(region)",
        }],
        tests: &[lib(Layer::Unit, "holdfast-control", &["a_region_that_a_voter_cannot_leave_is_not_forbidden"])],
        smoke: false,
    },
    Mutation {
        name: "absent-voter-counts",
        bug: "a policy counts as met although a gateway that answers does not run the set: one loss is too many, and nobody is told",
        rule: "ADR 0052",
        edits: &[Edit {
            file: PLANNED,
            old: "self.answers.contains(&id) && !self.groups.contains(&(set, id))",
            new: "self.answers.is_empty() && !self.groups.contains(&(set, id))",
        }],
        tests: &[MEMORY],
        smoke: false,
    },
    Mutation {
        name: "drain-advised-where-no-vote-can-go",
        bug: "a removal says to drain the gateway first, and its vote can never leave it: all others are in forbidden regions",
        rule: "ADR 0052",
        edits: &[Edit {
            file: "crates/control/src/members/requests.rs",
            old: "free(m) && !barred(m)",
            new: "free(m) && (true || barred(m))",
        }],
        tests: &[lib(Layer::Unit, "holdfast-control", &["a_drain_is_advised_only_where_a_vote_can_go"])],
        smoke: false,
    },
    Mutation {
        name: "waiting-newcomer-is-late",
        bug: "of two newcomers the one that has everything and waits for the other counts as late: it loses its place, and gets no vote in any set",
        rule: "MEMBER-M2",
        edits: &[Edit {
            file: PLANNED,
            old: "if behind.is_empty() { newcomers } else { behind }",
            new: "if behind.len() < 64 { newcomers } else { behind }",
        }],
        tests: &[MEMORY],
        smoke: false,
    },
    Mutation {
        name: "placing-forgets-the-group",
        bug: "a move that failed is replaced by one after which the set survives less than its group survives",
        rule: "PLACING-P1",
        edits: &[Edit {
            file: CHOOSE,
            old: "had.is_none_or(|had| survives_as_much(&had, after))",
            new: "had.is_none_or(|had| had.short < 64)",
        }],
        tests: &[PLANS],
        smoke: false,
    },
    Mutation {
        name: "busy-with-its-own-part",
        bug: "a voter that the group still has does not get its place back because its journal is full: another one in the region of a voter gets it",
        rule: "PLACING-P1",
        edits: &[Edit {
            file: BOARD,
            old: "member.busy && !placed.now.contains(id)",
            new: "member.busy && placed.policy.voters > 0",
        }],
        tests: &[PLANS],
        smoke: false,
    },
    Mutation {
        name: "placing-on-witnesses-only",
        bug: "the lost last gateway of a set is to be replaced by a witness: group 0 refuses that in each round",
        rule: "VOTERS-V1",
        edits: &[Edit {
            file: CHOOSE,
            old: "board.is_accepted(*choice) && *after < before",
            new: "(board.is_accepted(*choice) || *choice != 0) && *after < before",
        }],
        tests: &[PLANS],
        smoke: false,
    },
    Mutation {
        name: "placing-waits-for-lost-quorums",
        bug: "two sets that lost their quorum while voters were taken out keep all others from moving for ever",
        rule: "PLACING-P3",
        edits: &[Edit {
            file: CHOOSE,
            old: "placed.late.is_empty() && !placed.overdue",
            new: "placed.late.is_empty()",
        }],
        tests: &[PLANS],
        smoke: false,
    },
    Mutation {
        name: "first-voters-silent",
        bug: "a new set begins with a gateway that does not answer although another one would do as well",
        rule: "ADR 0052",
        edits: &[Edit {
            file: CHOOSE,
            old: "(board.cost(more), board.preference(more))",
            new: "(board.cost(more), board.preference(0))",
        }],
        tests: &[PLANS],
        smoke: false,
    },
    Mutation {
        name: "newcomer-takes-a-voter-with-it",
        bug: "a newcomer is removed from the cluster while it learns, and the voter that it was to replace goes at once: a set of three has two",
        rule: "MEMBER-M2",
        edits: &[Edit {
            file: "crates/control/src/members.rs",
            old: "if !leaving.is_empty() && !voters.is_subset(to) {",
            new: "if leaving.len() > 64 && !voters.is_subset(to) {",
        }],
        tests: &[lib(Layer::Unit, "holdfast-control", &["a_newcomer_that_leaves_takes_no_voter_with_it"])],
        smoke: false,
    },
    Mutation {
        name: "planner-leaves-the-place-of-a-newcomer",
        bug: "the place of a newcomer that leaves before it votes is given to nobody before the voter that it was to replace is gone",
        rule: "MEMBER-M2",
        edits: &[Edit {
            file: PLANNED,
            old: "voters.extend(going.difference(&now));",
            new: "voters.extend(going.difference(going));",
        }],
        tests: &[MEMORY],
        smoke: false,
    },
    Mutation {
        name: "late-newcomer-tried-again",
        bug: "a gateway that never takes its part of a set is named again each hour, and its moves keep others waiting",
        rule: "PLACING-P2",
        edits: &[Edit {
            file: CHOOSE,
            old: "board.slow(choice & !now) == 0 ||",
            new: "board.slow(choice & !now) < 64 ||",
        }],
        tests: &[PLANS],
        smoke: false,
    },
];
