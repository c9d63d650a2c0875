//! Membership and votes, valid disks, and changes of the cluster key.

use crate::bug::{Edit, Layer, Mutation, Test, file, lib};

const MEMBERS: &str = "crates/control/src/members.rs";
const REQUESTS: &str = "crates/control/src/members/requests.rs";
const BOOTS: &str = "crates/control/src/cluster/members.rs";
const KEYS: &str = "crates/control/src/keys.rs";

const WALKS: Test = lib(Layer::Property, "holdfast-control", &["members::"]);
const REGISTERED: Test = lib(Layer::Property, "holdfast-control", &["cluster::tests::"]);
const KEY_CHANGES: Test = lib(Layer::Unit, "holdfast-control", &["keys::tests::"]);

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "voters-without-their-quorum",
        bug: "voters are changed to a set without a majority that answers: the group stops for ever",
        rule: "R8",
        edits: &[Edit { file: MEMBERS, old: "for set in [&voters, &target] {", new: "for set in [&voters] {" }],
        tests: &[WALKS],
        smoke: false,
    },
    Mutation {
        name: "a-gibibyte-is-nearly-nothing",
        bug: "a voter that lacks a thousand entries of 1 MiB counts as close: it takes over, and clients wait for all of them",
        rule: "MEMBER-M1",
        edits: &[Edit {
            file: MEMBERS,
            old: "entries <= CLOSE_ENTRIES && bytes <= CLOSE_BYTES",
            new: "entries <= CLOSE_ENTRIES && bytes < u64::MAX",
        }],
        tests: &[WALKS],
        smoke: false,
    },
    Mutation {
        name: "health-without-bytes",
        bug: "a gateway may be drained or removed although another voter lacks hundreds of MiB: nobody could take over at once",
        rule: "MEMBER-M1",
        edits: &[Edit {
            file: "crates/gateway/src/admin/status.rs",
            old: "is_close(peer.entries, peer.bytes)",
            new: "is_close(peer.entries, 0)",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["admin::drain::tests::"])],
        smoke: false,
    },
    Mutation {
        name: "bad-disk-gives-its-group-to-who-lacks-much",
        bug: "a leader whose disk fails leaves although a voter that it counts on lacks a gibibyte, which perhaps nobody else has",
        rule: "R9",
        edits: &[Edit {
            file: "crates/raft/src/change.rs",
            old: "entries <= NEAR_ENTRIES && bytes <= NEAR_BYTES",
            new: "entries <= NEAR_ENTRIES && bytes < u64::MAX",
        }],
        tests: &[lib(Layer::Unit, "holdfast-raft", &["change::tests::"])],
        smoke: false,
    },
    Mutation {
        name: "bytes-behind-without-what-was-purged",
        bug: "a member that first needs a snapshot counts as nearly complete: only the entries that are left are counted",
        rule: "MEMBER-M1",
        edits: &[Edit {
            file: "crates/log/src/group.rs",
            old: "range.is_empty() || range.start >= memory.first()",
            new: "range.is_empty() || range.start < u64::MAX",
        }],
        tests: &[file(Layer::Property, "holdfast-log", &["--test", "log"], &["a_group_is_what_was_asked_of_it"])],
        smoke: false,
    },
    Mutation {
        name: "newcomer-votes-before-it-has-learnt",
        bug: "a new member becomes a voter before it has the log",
        rule: "R1",
        edits: &[Edit {
            file: MEMBERS,
            old: "partition(|id| voters.contains(id) || group.close(*id));",
            new: "partition(|id| voters.contains(id) || group.peer(*id).is_some());",
        }],
        tests: &[WALKS],
        smoke: false,
    },
    Mutation {
        name: "last-gateway-replaced-by-a-witness",
        bug: "a witness may replace the last gateway that can serve: the old one never leaves and the sets have no leader",
        rule: "R8",
        edits: &[Edit {
            file: REQUESTS,
            old: "leads_nothing || others_could_serve(state, groups, member.id)",
            new: "leads_nothing || member.serves()",
        }],
        tests: &[WALKS],
        smoke: false,
    },
    Mutation {
        name: "leaving-leader-of-group-0-stays",
        bug: "a leaving gateway leads group 0 on, with witnesses beside it: nobody asks whether it is out of all sets, and it never leaves",
        rule: "MEMBER-M3",
        edits: &[Edit {
            file: MEMBERS,
            old: "let goes = leaves(group.me) || !wanted.contains(&group.me);",
            new: "let goes = !wanted.contains(&group.me);",
        }],
        tests: &[WALKS],
        smoke: false,
    },
    Mutation {
        name: "set-given-to-a-witness",
        bug: "the last gateway gives its sets to a witness before the gateway that replaces it can serve: nobody serves them",
        rule: "R8",
        edits: &[Edit { file: MEMBERS, old: "|| awaits && witness(id))", new: "|| awaits && witness(id) && false)" }],
        tests: &[WALKS],
        smoke: false,
    },
    Mutation {
        name: "last-gateway-grants-nothing",
        bug: "a gateway that is being replaced grants nothing from the start on, also while its successor has not come up",
        rule: "R8",
        edits: &[Edit {
            file: MEMBERS,
            old: "peer.id != group.me && peer.voter && peer.close() && serves(peer.id)",
            new: "peer.id != group.me && peer.voter && serves(peer.id)",
        }],
        tests: &[WALKS],
        smoke: false,
    },
    Mutation {
        name: "change-of-voters-left-open",
        bug: "a new leader begins other changes before it has completed a half-done change of voters",
        rule: "R8",
        edits: &[Edit {
            file: MEMBERS,
            old: "    if let Some(next) = &group.next {",
            new: "    if let Some(next) = group.next.as_ref().filter(|_| false) {",
        }],
        tests: &[WALKS],
        smoke: false,
    },
    Mutation {
        name: "leaderless-set-keeps-everybody",
        bug: "one set whose gateways are down keeps every gateway of the cluster from being drained or removed",
        rule: "VOTERS-V2",
        edits: &[Edit {
            file: REQUESTS,
            old: "if !group.perhaps.contains(&id) {",
            new: "if group.perhaps.is_empty() {",
        }],
        tests: &[WALKS],
        smoke: false,
    },
    Mutation {
        name: "forecast-without-the-drain",
        bug: "`gateway drain --dry-run` looks at the cluster as if nobody was drained: each vote seems to stay",
        rule: "ADR 0052",
        edits: &[Edit {
            file: "crates/control/src/members/forecast.rs",
            old: "member.standing = Standing::Drained;",
            new: "member.standing = Standing::Active;",
        }],
        tests: &[WALKS],
        smoke: false,
    },
    Mutation {
        name: "named-voter-may-go-unasked",
        bug: "a set has no leader, and a gateway that its record names may be removed: its group 0 was old when it said that it has no part",
        rule: "R1",
        edits: &[Edit {
            file: "crates/gateway/src/admin/drain.rs",
            old: "named(*id) || !away.contains(id)",
            new: "named(*id) && !away.contains(id) || !away.contains(id)",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["admin::drain::tests::"])],
        smoke: false,
    },
    Mutation {
        name: "away-of-a-set-that-came-back",
        bug: "a gateway says that it has no part in a set that was placed on it since: it can be removed with a vote",
        rule: "R1",
        edits: &[Edit {
            file: "crates/gateway/src/node/depart.rs",
            old: "|id: &SetId| state.sets.get(id).is_some_and(|entry| !entry.has_place_for(me));",
            new: "|id: &SetId| state.sets.contains_key(id);",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["node::depart::tests::"])],
        smoke: false,
    },
    Mutation {
        name: "away-before-it-leaves",
        bug: "what a gateway said before it knew that it leaves counts for good: a set is placed on it, and it goes with a vote",
        rule: "R1",
        edits: &[Edit {
            file: "crates/gateway/src/admin/placing.rs",
            old: "node.away.as_ref().filter(|away| away.leaving)?",
            new: "node.away.as_ref()?",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["only_a_leaving_gateway_is_away_for_good"])],
        smoke: false,
    },
    Mutation {
        name: "vote-still-counts-somewhere",
        bug: "a member can be removed although it is unknown whether it still votes in a group",
        rule: "R1",
        edits: &[Edit {
            file: MEMBERS,
            old: "away.get(id).is_some_and(|sets| sets.contains(&set))",
            new: "away.get(id).is_none_or(|sets| sets.contains(&set))",
        }],
        tests: &[WALKS],
        smoke: false,
    },
    Mutation {
        name: "removal-loses-the-quorum",
        bug: "a gateway can be removed although a group then has too few members that answer",
        rule: "R8",
        edits: &[Edit {
            file: REQUESTS,
            old: "    if answering.len() < needed {",
            new: "    if answering.len() + 1 < needed {",
        }],
        tests: &[WALKS],
        smoke: false,
    },
    Mutation {
        name: "cloned-disk-registered",
        bug: "a copy of a gateway, with its disk and its boot counter, is registered as that gateway",
        rule: "R9",
        edits: &[Edit {
            file: BOOTS,
            old: "if boot.boot == seen.boot && boot.nonce != seen.nonce {",
            new: "if boot.boot < seen.boot && boot.nonce != seen.nonce {",
        }],
        tests: &[REGISTERED],
        smoke: false,
    },
    Mutation {
        name: "older-build-takes-part",
        bug: "a gateway is registered although its version does not know entries that the cluster writes",
        rule: "R11",
        edits: &[Edit {
            file: BOOTS,
            old: "if boot.level < self.level {",
            new: "if boot.level.saturating_add(1) < self.level {",
        }],
        tests: &[REGISTERED],
        smoke: false,
    },
    Mutation {
        name: "silent-gateway-counts-as-ready",
        bug: "a change of the cluster key begins although a gateway did not confirm that it has the new key",
        rule: "R8",
        edits: &[Edit {
            file: KEYS,
            old: "                found.push(Objection::Silent { name, why: why.clone() });\n                continue;",
            new: "                let _ = (name, why);\n                continue;",
        }],
        tests: &[KEY_CHANGES],
        smoke: false,
    },
    Mutation {
        name: "old-key-given-up-too-early",
        bug: "a change of the cluster key counts as done although the head in an unreachable store may still be under the old key",
        rule: "R1",
        edits: &[Edit { file: KEYS, old: "set.head != Some(target)", new: "set.head.is_some_and(|by| by != target)" }],
        tests: &[KEY_CHANGES],
        smoke: false,
    },
    Mutation {
        name: "new-set-with-a-member-that-joins",
        bug: "a new set needs the vote of a member that may never have come up: it has no leader, and no member can leave any more",
        rule: "R8",
        edits: &[Edit {
            file: REQUESTS,
            old: "member.standing != Standing::Leaving && !came_up(&member.id)",
            new: "member.standing == Standing::Leaving && !came_up(&member.id)",
        }],
        tests: &[WALKS],
        smoke: false,
    },
    Mutation {
        name: "refused-after-a-lost-answer",
        bug: "a command whose first attempt had no answer ends with exit code 3, nothing happened: the second attempt was refused for what the first had done",
        rule: "R12",
        edits: &[Edit {
            file: "crates/holdfast/src/client.rs",
            old: "let unknown = effect == Effect::Changes && route.maybe_happened();",
            new: "let unknown = effect == Effect::Reads && route.maybe_happened();",
        }],
        tests: &[file(
            Layer::Unit,
            "holdfast",
            &["--test", "program"],
            &["a_refusal_after_a_lost_answer_does_not_say_that_nothing_happened"],
        )],
        smoke: false,
    },
    Mutation {
        name: "nothing-changed-after-a-change",
        bug: "a command whose first step was done and whose second was not answered ends with exit code 4: nothing was changed",
        rule: "R12",
        edits: &[Edit {
            file: "crates/holdfast/src/exit.rs",
            old: "if matches!(self.exit, Exit::Refused | Exit::Unreachable) {",
            new: "if matches!(self.exit, Exit::Unknown) {",
        }],
        tests: &[
            file(
                Layer::Unit,
                "holdfast",
                &["--bin", "holdfast"],
                &["after_a_change_nothing_says_that_nothing_was_changed"],
            ),
            file(Layer::Unit, "holdfast", &["--test", "program"], &["after::"]),
        ],
        smoke: false,
    },
    Mutation {
        name: "late-snapshot-changed-nothing",
        bug: "a snapshot that is ordered and not finished yet is told as one that changed nothing",
        rule: "R12",
        edits: &[Edit {
            file: "crates/gateway/src/admin/snapshot.rs",
            old: "    Refusal::new(RefusalCode::Unknown, text)\n}\n\n/// Whether the head",
            new: "    Refusal::new(RefusalCode::Busy, text)\n}\n\n/// Whether the head",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["a_snapshot_that_comes_later_is_not_said"])],
        smoke: false,
    },
    Mutation {
        name: "stopped-rollback-changed-nothing",
        bug: "a rollback that has ended the lease and then stops is told as one that changed nothing",
        rule: "R12",
        edits: &[Edit {
            file: "crates/gateway/src/admin/rollback.rs",
            old: "Disposition::FollowLeader | Disposition::Retry | Disposition::Unknown => RefusalCode::Unknown,",
            new: "Disposition::FollowLeader | Disposition::Retry | Disposition::Unknown => refusal.code,",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["a_refusal_after_a_change_is_not_taken"])],
        smoke: false,
    },
    Mutation {
        name: "far-gateway-has-no-time",
        bug: "a gateway at 400 ms has as much time to answer as one in the same zone, and counts as silent",
        rule: "ADR 0052",
        edits: &[Edit {
            file: "crates/gateway/src/node/others.rs",
            old: "ANSWER_LIMIT + trip.min(RTT_MAX) * ROUND_TRIPS",
            new: "ANSWER_LIMIT + trip.min(RTT_MAX) / ROUND_TRIPS",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["node::others::tests::"])],
        smoke: false,
    },
    Mutation {
        name: "connection-for-each-question",
        bug: "each look at all gateways makes new connections to them: several round trips, and a handshake, every 5 s",
        rule: "ADR 0052",
        edits: &[Edit {
            file: "crates/gateway/src/node/others.rs",
            old: "        kept.insert(address.to_string(), channel.clone());\n",
            new: "",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["node::others::tests::"])],
        smoke: false,
    },
    Mutation {
        name: "word-of-another-gateway",
        bug: "another gateway answers where a leaving one stood: that one's part in a set counts as nothing, and it goes with a vote",
        rule: "R1",
        edits: &[Edit {
            file: "crates/gateway/src/admin/status.rs",
            old: "node.member == 0 || node.member == member.id && node.cluster_id == cluster",
            new: "node.member == 0 || node.member != u64::MAX || node.cluster_id == cluster",
        }],
        tests: &[
            lib(Layer::Unit, "holdfast-gateway", &["admin::drain::tests::"]),
            lib(Layer::Unit, "holdfast-gateway", &["only_a_leaving_gateway_is_away_for_good"]),
        ],
        smoke: false,
    },
    Mutation {
        name: "away-of-a-set-that-runs",
        bug: "a gateway goes on to say that it has no part in a set that it has started since: it can be removed with a vote",
        rule: "R1",
        edits: &[Edit {
            file: "crates/gateway/src/node/depart.rs",
            old: "pub(super) fn runs(&mut self, id: SetId) {\n        self.away.remove(&id);",
            new: "pub(super) fn runs(&mut self, id: SetId) {\n        let _ = id;",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["node::depart::tests::"])],
        smoke: false,
    },
    Mutation {
        name: "away-where-records-are-lost",
        bug: "the journal has lost records, and a gateway says that it has nothing of a set to which it had come back",
        rule: "R1",
        edits: &[Edit {
            file: "crates/gateway/src/node/depart.rs",
            old: "filter(|(_, certain)| **certain)",
            new: "filter(|(_, certain)| **certain || !**certain)",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["node::depart::tests::"])],
        smoke: false,
    },
];
