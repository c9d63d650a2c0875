//! Sets on some of the members: where a set runs, how it is left and come back to.

use crate::bug::{Edit, Layer, Mutation, Test, file, lib};

const VOTERS: Test = lib(Layer::Unit, "holdfast-control", &["cluster::voters::tests::"]);
const STEPS: Test = lib(Layer::Unit, "holdfast-control", &["members::tests::placed::a_set_that_names_voters"]);
const CLONES: Test = lib(Layer::Unit, "holdfast-control", &["cluster::tests::a_policy_is_changed_once"]);
const SUCCESSOR: Test = lib(Layer::Unit, "holdfast-control", &["members::tests::m3_a_leader_that_is_to_serve_no_more"]);
const DEPARTS: Test = lib(Layer::Unit, "holdfast-gateway", &["node::depart::tests::"]);
const LEAVES: Test = lib(Layer::Cluster, "holdfast-raft", &["leave_tests::a_member_leaves_only_when_it_is_out"]);
const CUT_SHORT: Test = lib(Layer::Cluster, "holdfast-raft", &["leave_tests::what_a_crash_leaves"]);
const STOPPED: Test = lib(Layer::Cluster, "holdfast-raft", &["leave_tests::r3_a_group_that_was_stopped"]);
const DURABLE: Test = lib(Layer::Cluster, "holdfast-raft", &["leave_tests::r1_what_a_group_had_appended"]);
const ASKED: Test = lib(Layer::Cluster, "holdfast-raft", &["leave_tests::v3_the_leader_is_asked"]);
const TOLD: Test = lib(Layer::Cluster, "holdfast-raft", &["change_tests::v3_a_membership_that_is_not_committed"]);
const DECIDED: Test = lib(Layer::Cluster, "holdfast-raft", &["change_tests::b2_a_removal_that_was_decided"]);
const REPLAYED: Test = lib(Layer::Cluster, "holdfast-raft", &["leave_tests::v4_an_old_membership"]);
const CHANGING: Test = lib(Layer::Property, "holdfast-control", &["serve::changing_tests::"]);
const LONG_AGO: Test = lib(Layer::Cluster, "holdfast-raft", &["leave_tests::a_membership_of_long_ago"]);
/// Moves under faults, with everything read back.
const MOVED: Test = file(Layer::Simulation, "holdfast-sim", &["--test", "scenes"], &["the_voters_of_a_set_are_moved"]);

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "voters-placed-from-an-old-view",
        bug: "a late copy of a change of a set's voters takes a newer change back",
        rule: "VOTERS-V1",
        edits: &[Edit {
            file: "crates/control/src/cluster/voters.rs",
            old: "        if !seen {",
            new: "        if false && !seen {",
        }],
        tests: &[VOTERS],
        smoke: false,
    },
    Mutation {
        name: "clone-where-its-origin-is-not",
        bug: "a clone begins at every gateway, also where its origin must not be",
        rule: "VOTERS-V1",
        edits: &[Edit {
            file: "crates/control/src/cluster/clones.rs",
            old: "        if !of.voters.is_empty() {",
            new: "        if false && !of.voters.is_empty() {",
        }],
        tests: &[CLONES],
        smoke: false,
    },
    Mutation {
        name: "set-on-witnesses-alone",
        bug: "a set is placed on witnesses only: nobody can serve it",
        rule: "VOTERS-V1",
        edits: &[Edit {
            file: "crates/control/src/cluster/voters.rs",
            old: "        if !self.one_serves(to) {",
            new: "        if false && !self.one_serves(to) {",
        }],
        tests: &[VOTERS],
        smoke: false,
    },
    Mutation {
        name: "last-gateway-of-a-set-leaves",
        bug: "the last gateway that a set names leaves the cluster: the group follows nobody, and shrinks to its leader",
        rule: "VOTERS-V1",
        edits: &[Edit {
            file: "crates/control/src/cluster/voters.rs",
            old: "entry.voters.contains(&id) && !others(entry);",
            new: "entry.voters.is_empty() && !others(entry);",
        }],
        tests: &[VOTERS],
        smoke: false,
    },
    Mutation {
        name: "every-member-votes-in-every-set",
        bug: "a set's group follows all members, whatever its record names",
        rule: "VOTERS-V1",
        edits: &[Edit {
            file: "crates/control/src/members.rs",
            old: "Standing::Active | Standing::Drained => named(member.id),",
            new: "Standing::Active | Standing::Drained => true || named(member.id),",
        }],
        tests: &[STEPS],
        smoke: false,
    },
    Mutation {
        name: "successor-that-is-to-go",
        bug: "a leader that is to leave a set stops granting it for a voter that is to leave it as well",
        rule: "MEMBER-M3",
        edits: &[Edit {
            file: "crates/control/src/members.rs",
            old: "let serves = |id: MemberId| wanted.contains(&id) && ",
            new: "let serves = |id: MemberId| !wanted.is_empty() && ",
        }],
        tests: &[SUCCESSOR],
        smoke: false,
    },
    Mutation {
        name: "left-set-begun-again",
        bug: "one of a set's first members starts its group again after it has left it, with an empty log",
        rule: "VOTERS-V2",
        edits: &[Edit {
            file: "crates/gateway/src/node/depart.rs",
            old: "        Part::Left => false,",
            new: "        Part::Left => first,",
        }],
        tests: &[DEPARTS],
        smoke: false,
    },
    Mutation {
        name: "leader-of-long-ago-that-stays",
        bug: "a gateway that led a set long ago, and whose followers have all left it, waits for ever to hand over",
        rule: "VOTERS-V2",
        edits: &[Edit {
            file: "crates/gateway/src/node/depart.rs",
            old: "    ago.is_some_and(|ago| ago <= patience)",
            new: "    ago.is_some_and(|ago| ago <= patience || true)",
        }],
        tests: &[DEPARTS],
        smoke: false,
    },
    Mutation {
        name: "left-without-the-leaders-word",
        bug: "a member drops its log and its vote although it is a voter: its group 0 was old",
        rule: "VOTERS-V3",
        edits: &[Edit {
            file: "crates/raft/src/change.rs",
            old: "        if members.get_node(&member.0).is_some() {
            return Err(not_now(format!(\"{member} is a member of the group\")));",
            new: "        if false && members.get_node(&member.0).is_some() {
            return Err(not_now(format!(\"{member} is a member of the group\")));",
        }],
        tests: &[LEAVES, MOVED],
        smoke: false,
    },
    Mutation {
        name: "returned-without-a-floor",
        bug: "a member that comes back to a group votes for a candidate of before it left: its vote of then is forgotten",
        rule: "VOTERS-V4",
        edits: &[Edit {
            file: "crates/raft/src/node.rs",
            old: "        healing.max(returning)",
            new: "        healing.max(returning.filter(|_| false))",
        }],
        tests: &[CUT_SHORT, LEAVES],
        smoke: false,
    },
    Mutation {
        name: "elected-by-a-membership-of-long-ago",
        bug: "a member that learns a group again stands for election on the way: an early membership may name it alone",
        rule: "VOTERS-V4",
        edits: &[Edit {
            file: "crates/raft/src/group.rs",
            old: "self.candidacy.set_learning(self.last() < Some(since));",
            new: "self.candidacy.set_learning(false && self.last() < Some(since));",
        }],
        tests: &[LONG_AGO, LEAVES],
        smoke: false,
    },
    Mutation {
        name: "left-and-no-voters-reported",
        bug: "a member that has left a group reports no voters when the set is deleted: older ones may pass for the newest",
        rule: "VOTERS-V4",
        edits: &[Edit {
            file: "crates/raft/src/end_group.rs",
            old: "let all = [lost, left, in_log, in_snapshot()];",
            new: "let all = [lost, left.filter(|_| false), in_log, in_snapshot()];",
        }],
        tests: &[CUT_SHORT],
        smoke: false,
    },
    Mutation {
        name: "stopped-group-without-an-embargo",
        bug: "a group that was stopped and starts again in one process votes at once: it has forgotten its promise to the leader",
        rule: "R3",
        edits: &[Edit {
            file: "crates/types/src/pledge.rs",
            old: "stopped.map_or(started, |stopped| stopped.max(started));",
            new: "stopped.map_or(started, |stopped| stopped.min(started));",
        }],
        tests: &[CUT_SHORT, CHANGING],
        smoke: false,
    },
    Mutation {
        name: "stop-to-leave-not-noted",
        bug: "a group that was stopped to leave it, and starts again in one process, is under no embargo: it votes while its leader reads by its promise",
        rule: "R3",
        edits: &[Edit {
            file: "crates/raft/src/leave.rs",
            old: "            self.note_stopped(id);
",
            new: "",
        }],
        tests: &[STOPPED],
        smoke: false,
    },
    Mutation {
        name: "started-again-before-the-disk",
        bug: "a group that was stopped to leave it starts again while entries wait for the disk: it acknowledges them, and a power cut takes them back",
        rule: "R1",
        edits: &[Edit {
            file: "crates/raft/src/leave.rs",
            old: "            if let Some(vote) = log.state().vote {",
            new: "            if let Some(vote) = log.state().vote.filter(|_| false) {",
        }],
        tests: &[DURABLE],
        smoke: false,
    },
    Mutation {
        name: "asked-before-the-stop",
        bug: "a member drops its log because of an answer of before it stopped the group: it may have been let in again, and have acknowledged entries",
        rule: "VOTERS-V3",
        edits: &[
            Edit {
                file: "crates/raft/src/leave.rs",
                old: "            self.stop_group(id).await;
",
                new: "            let Out { since, voters } = self.ask_whether_out(id, peers).await?;
            self.stop_group(id).await;
",
            },
            Edit {
                file: "crates/raft/src/leave.rs",
                old: "            self.end_return(id).await;
            let Out { since, voters } = self.ask_whether_out(id, peers).await?;
",
                new: "            self.end_return(id).await;
",
            },
        ],
        tests: &[ASKED],
        smoke: false,
    },
    Mutation {
        name: "told-before-it-is-committed",
        bug: "the leader tells a membership that the next leader may take back: a member that is out of it drops its log and its vote",
        rule: "VOTERS-V3",
        edits: &[Edit {
            file: "crates/raft/src/change.rs",
            old: ".map(id_from_raft).filter(|at| at.index <= self.applied().index);",
            new: ".map(id_from_raft);",
        }],
        tests: &[TOLD],
        smoke: false,
    },
    Mutation {
        name: "removed-by-an-old-view",
        bug: "a late request for its own removal takes out a member that has been let in again meanwhile",
        rule: "CHANGE-B2",
        edits: &[Edit {
            file: "crates/raft/src/change.rs",
            old: "        match self.carry_through(change, Fate::Goes, seen, limit).await {
",
            new: "        let _ = seen;
        let done = self.raft().change_membership(change, false).await.map_err(|e| not_now(e.to_string()))?;
        let done = done.membership.map(|members| (id_from_raft(&done.log_id), members));
        match done.ok_or(ChangeError::Late) {
",
        }],
        tests: &[DECIDED],
        smoke: false,
    },
    Mutation {
        name: "returned-by-a-membership-of-long-ago",
        bug: "a member that learns a group again loses its floor while an old membership is replayed: it votes with an almost empty log, without its vote",
        rule: "VOTERS-V4",
        edits: &[Edit {
            file: "crates/raft/src/readmit.rs",
            old: "            if back && past && is_durable",
            new: "            if back && is_durable",
        }],
        tests: &[REPLAYED],
        smoke: false,
    },
];
