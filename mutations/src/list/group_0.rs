//! Group 0 on three or five voters: the decision, its steps, and who follows without a vote.

use crate::bug::{Edit, Layer, Mutation, Test, file, lib};

const CHOICE: &str = "crates/control/src/placing/cluster.rs";
const MEMBERS: &str = "crates/control/src/members.rs";
const REQUESTS: &str = "crates/control/src/members/requests.rs";

const WALKS: Test = lib(Layer::Property, "holdfast-control", &["placing::tests::group_0::"]);
const STEPS: Test = lib(Layer::Property, "holdfast-control", &["members::tests::group_0::"]);
const LEARNS: Test = lib(Layer::Cluster, "holdfast-raft", &["change_tests::b3_"]);
const CLOSE: Test =
    lib(Layer::Unit, "holdfast-gateway", &["only_who_answers_and_has_nearly_everything_may_get_a_vote"]);
const HEAD: Test =
    lib(Layer::Unit, "holdfast-gateway", &["a_clone_is_made_from_the_head_where_the_origin_is_elsewhere"]);

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "out-of-group-0-with-its-vote",
        bug: "a gateway that loses its vote in group 0 is taken out of the group: it hears of no set, key or revocation",
        rule: "CHANGE-B3",
        edits: &[Edit {
            file: "crates/raft/src/change.rs",
            old: "if group == GroupId::CLUSTER { Self::Learns } else { Self::Goes }",
            new: "if group == GroupId(u64::MAX) { Self::Learns } else { Self::Goes }",
        }],
        tests: &[lib(Layer::Unit, "holdfast-raft", &["change::tests::"]), LEARNS],
        smoke: false,
    },
    Mutation {
        name: "healed-without-a-vote-for-ever",
        bug: "a gateway that was healed and is to learn group 0 waits for a vote there: its note of quarantine stays for ever",
        rule: "CHANGE-B3",
        edits: &[Edit {
            file: "crates/raft/src/readmit.rs",
            old: "voter || listed && group.id() == GroupId::CLUSTER;",
            new: "voter || !listed && group.id() == GroupId::CLUSTER;",
        }],
        tests: &[LEARNS],
        smoke: false,
    },
    Mutation {
        name: "every-member-votes-in-group-0",
        bug: "group 0 waits for the votes of all members, whoever is to vote in it",
        rule: "MEMBER-M6",
        edits: &[Edit {
            file: MEMBERS,
            old: ".filter(|id| voting.contains(id) && (voters",
            new: ".filter(|id| (voting.len() < 64 || voting.contains(id)) && (voters",
        }],
        tests: &[STEPS],
        smoke: false,
    },
    Mutation {
        name: "group-0-shrinks-while-one-is-away",
        bug: "group 0 drops voters for the number while one of those that stay is away: fewer can be lost, although nobody was",
        rule: "MEMBER-M1",
        edits: &[Edit {
            file: MEMBERS,
            old: "|| !to.is_subset(&voters) || !spares_less(",
            new: "|| !to.is_subset(&voters) || !to.is_empty() || !spares_less(",
        }],
        tests: &[STEPS],
        smoke: false,
    },
    Mutation {
        name: "group-0-waits-a-quarter-of-an-hour",
        bug: "a lost voter of group 0 is replaced as late as that of a set: two losses within 15 minutes stop all changes",
        rule: "ADR 0075",
        edits: &[Edit {
            file: CHOICE,
            old: "limit.min(CLUSTER_REPLACE_AFTER)",
            new: "limit.max(CLUSTER_REPLACE_AFTER)",
        }],
        tests: &[WALKS],
        smoke: false,
    },
    Mutation {
        name: "leaving-voter-of-group-0-goes-first",
        bug: "of two gateways the one that leaves loses its vote before its sets have let it go: the next loss stops the removal",
        rule: "ADR 0019",
        edits: &[Edit { file: CHOICE, old: "if next.len() < ENOUGH {", new: "if next.len() > 64 + ENOUGH {" }],
        tests: &[WALKS],
        smoke: false,
    },
    Mutation {
        name: "vote-for-one-that-does-not-follow",
        bug: "a gateway that lacks most of group 0 gets a vote: the next change waits until it has caught up",
        rule: "CLUSTERVOTERS-V2",
        edits: &[Edit {
            file: "crates/gateway/src/node/members/group_0.rs",
            old: "peer.answers && is_close(peer.behind, peer.behind_bytes)",
            new: "peer.answers && (peer.behind > 0 || is_close(peer.behind, peer.behind_bytes))",
        }],
        tests: &[CLOSE],
        smoke: false,
    },
    Mutation {
        name: "all-may-vote-in-group-0",
        bug: "the planner takes each member for one that follows group 0, also one that has never come up",
        rule: "CLUSTERVOTERS-V2",
        edits: &[Edit {
            file: "crates/gateway/src/node/planned.rs",
            old: "busy: !close.contains(id),",
            new: "busy: close.len() > 64,",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["who_does_not_follow_group_0_gets_no_vote_there"])],
        smoke: false,
    },
    Mutation {
        name: "new-set-waits-for-all-votes",
        bug: "no set is created any more where a member learns group 0",
        rule: "MEMBER-M6",
        edits: &[Edit {
            file: REQUESTS,
            old: "voters.contains(id) || learns(id);",
            new: "voters.contains(id) || learns(id) && state.next_member == 0;",
        }],
        tests: &[STEPS],
        smoke: false,
    },
    Mutation {
        name: "new-set-with-one-that-is-not-reached",
        bug: "beside one gateway, a new set gets a second voter that has registered a start and is never reached: no leader",
        rule: "MEMBER-M6",
        edits: &[Edit {
            file: REQUESTS,
            old: "voters.len() >= VOTERS_ENOUGH && state.boots",
            new: "voters.len() * 64 >= VOTERS_ENOUGH && state.boots",
        }],
        tests: &[STEPS],
        smoke: false,
    },
    Mutation {
        name: "healing-takes-others-out-of-group-0",
        bug: "a member that heals during a change of group 0's voters takes those out that only lose their votes",
        rule: "CHANGE-B3",
        edits: &[Edit {
            file: "crates/raft/src/change.rs",
            old: "== Fate::Learns && members.get_joint_config().len() > 1 {",
            new: "== Fate::Learns && members.get_joint_config().len() > 64 {",
        }],
        tests: &[LEARNS],
        smoke: false,
    },
    Mutation {
        name: "healed-before-its-disk-says-so",
        bug: "the note of quarantine goes before the log is on disk: after a crash an empty log votes for whoever asks",
        rule: "QUARANTINE-Q4",
        edits: &[Edit {
            file: "crates/raft/src/readmit.rs",
            old: "if back && past && is_durable(group).await {",
            new: "if back && past && (listed || is_durable(group).await) {",
        }],
        tests: &[LEARNS],
        smoke: false,
    },
    Mutation {
        name: "removal-without-the-learner",
        bug: "a voter of group 0 cannot be removed although a learner gets its vote",
        rule: "MEMBER-M6",
        edits: &[Edit {
            file: REQUESTS,
            old: "!group.voters.contains(&id) || substitute(state, group, id).is_some()",
            new: "!group.voters.contains(&id)",
        }],
        tests: &[STEPS],
        smoke: false,
    },
    Mutation {
        name: "clone-of-a-snapshot-of-that-name",
        bug: "a clone is made from another snapshot that has the name of the one that was asked for",
        rule: "ADR 0028",
        edits: &[Edit {
            file: "crates/gateway/src/admin/clone.rs",
            old: "listed.request == snapshot.made_by",
            new: "listed.request == snapshot.made_by || !listed.scheduled",
        }],
        tests: &[HEAD],
        smoke: false,
    },
    Mutation {
        name: "add-waits-for-a-vote-in-group-0",
        bug: "`gateway add` waits for a vote that the new gateway never gets, until the time limit",
        rule: "ADR 0075",
        edits: &[Edit {
            file: "crates/holdfast/src/command/members.rs",
            old: "(votes || learns) && knows && behind",
            new: "votes && knows && behind",
        }],
        tests: &[file(
            Layer::Unit,
            "holdfast",
            &["--bin", "holdfast"],
            &["gateway_add_ends_where_the_newcomer_is_to_learn_group_0"],
        )],
        smoke: false,
    },
];
