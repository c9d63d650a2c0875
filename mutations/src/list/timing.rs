//! Times of a group that change while it runs.

use crate::bug::{Edit, Layer, Mutation, Test, file, lib};

const PLEDGE: &str = "crates/types/src/pledge.rs";
const PACING: &str = "crates/raft/src/pacing.rs";
const PACER: &str = "crates/raft/src/pacer.rs";
const TUNING: &str = "crates/control/src/tuning.rs";

const PROMISES: Test = lib(Layer::Unit, "holdfast-types", &["pledge::"]);
const CHANGING: Test = lib(Layer::Property, "holdfast-control", &["serve::changing_tests::"]);
const MODEL: Test =
    file(Layer::Model, "holdfast-control", &["--test", "model"], &["clocks_keep_the_rules_with_changed_times"]);
const PACED: Test = lib(Layer::Unit, "holdfast-raft", &["pacing::"]);
const ASKED: Test = lib(Layer::Unit, "holdfast-raft", &["pacer::"]);
const LOOKS: Test = lib(Layer::Model, "holdfast-raft", &["vote_looks_tests::"]);
const CLUSTER: Test = lib(Layer::Cluster, "holdfast-raft", &["pacer_tests::"]);
const TOGETHER: Test = lib(Layer::Cluster, "holdfast-raft", &["beats_tests::"]);
const CARRIED: Test = lib(Layer::Unit, "holdfast-raft", &["beat_carrier::"]);
const COUNTED: Test = lib(Layer::Unit, "holdfast-raft", &["acks::"]);
const CHOSEN: Test = lib(Layer::Unit, "holdfast-control", &["tuning::"]);
const STATE: Test = lib(Layer::Unit, "holdfast-control", &["set::times::"]);
const WATCHED: Test =
    lib(Layer::Unit, "holdfast-control", &["serve::tests::shorter_times_make_no_gap_of_the_pause_before"]);
const SERVED: Test = lib(Layer::Unit, "holdfast-set", &["server::times::"]);

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "heartbeats-each-at-its-moment",
        bug: "groups with the same times send their heartbeats at different moments: as many calls as groups",
        rule: "ADR 0059",
        edits: &[Edit {
            file: PACING,
            old: "let left = Duration::from_nanos(step - now.0 % step);",
            new: "let left = Duration::from_nanos(step);",
        }],
        tests: &[PACED],
        smoke: false,
    },
    Mutation {
        name: "shorter-times-free-a-voter",
        bug: "with shorter times a voter forgets what it promised under longer ones: it elects another leader while the old one reads",
        rule: "PLEDGE-P1",
        edits: &[Edit {
            file: PLEDGE,
            old: "        self.promise = promise;\n",
            new: "        self.promise = promise;\n        self.until = None;\n",
        }],
        tests: &[PROMISES, CHANGING, MODEL],
        smoke: false,
    },
    Mutation {
        name: "newest-promise-alone-kept",
        bug: "an answer under shorter times ends the longer promise before it",
        rule: "PLEDGE-P1",
        edits: &[Edit {
            file: PLEDGE,
            old: "self.until = self.until.max(Some(until));",
            new: "self.until = Some(until);",
        }],
        tests: &[PROMISES, CHANGING],
        smoke: false,
    },
    Mutation {
        name: "leader-reads-by-its-own-times",
        bug: "a leader reads for as long as its own settings allow, not for as long as its voters have promised",
        rule: "PLEDGE-P3",
        edits: &[Edit {
            file: PLEDGE,
            old: "sent.saturating_add(theirs.min(longest))",
            new: "sent.saturating_add(theirs.max(longest))",
        }],
        tests: &[PROMISES, CHANGING],
        smoke: false,
    },
    Mutation {
        name: "bound-for-half-as-long",
        bug: "a voter is bound for half as long as its answer lets the leader believe",
        rule: "PLEDGE-P2",
        edits: &[Edit {
            file: PLEDGE,
            old: "        let until = now.saturating_add(self.promise.silence);\n",
            new: "        let until = now.saturating_add(self.promise.silence / 2);\n",
        }],
        tests: &[PROMISES, CHANGING],
        smoke: false,
    },
    Mutation {
        name: "times-beyond-the-embargo",
        bug: "a group gets longer times than a start waits out: a member that was started again breaks its promise",
        rule: "PLEDGE-P4",
        edits: &[Edit {
            file: PACING,
            old: "let to = if to.election_max < self.longest.election_max { to } else { self.longest };",
            new: "let to = if to.election_max > Duration::ZERO { to } else { self.longest };",
        }],
        tests: &[PACED],
        smoke: false,
    },
    Mutation {
        name: "slower-heartbeats-at-once",
        bug: "a leader sends fewer heartbeats before its voters know the longer times: needless elections",
        rule: "R8",
        edits: &[Edit {
            file: PACING,
            old: "        if before < to.heartbeat {",
            new: "        if before > to.heartbeat {",
        }],
        tests: &[PACED],
        smoke: false,
    },
    Mutation {
        name: "stands-while-bound",
        bug: "with shorter times a member stands for election while its promise is in force",
        rule: "PLEDGE-P1",
        edits: &[Edit {
            file: PACING,
            old: "        Some(since.saturating_add(self.timeout(me)))",
            new: "        Some(MonoTime(since.0 / 2).saturating_add(self.timeout(me)))",
        }],
        tests: &[PACED],
        smoke: false,
    },
    Mutation {
        name: "stands-against-whom-it-elected",
        bug: "a member that has just voted for another, or was deposed, stands for election at once: leaders change again and again",
        rule: "R8",
        edits: &[Edit {
            file: PACING,
            old: "self.tried.map_or(promised, |tried| promised.max(tried)).max(voted);",
            new: "self.tried.map_or(promised, |tried| promised.max(tried)).max(MonoTime(voted.0.min(0)));",
        }],
        tests: &[PACED],
        smoke: false,
    },
    Mutation {
        name: "votes-while-bound",
        bug: "a voter with shorter times does not look at its promise: openraft was told to disregard its own lease",
        rule: "PACER-E1",
        edits: &[Edit {
            file: PACING,
            old: "let bound = leads || self.left(now).is_some();",
            new: "let bound = leads || self.left(now).is_some_and(|left| left > Duration::MAX / 2);",
        }],
        tests: &[LOOKS, CLUSTER],
        smoke: false,
    },
    Mutation {
        name: "kept-back-vote-frees-the-voter",
        bug: "a voter that kept a vote back leaves the next request to openraft once the times are openraft's: it has no lease any more",
        rule: "PACER-E1",
        edits: &[Edit {
            file: PACING,
            old: "let bound = leads || self.left(now).is_some();",
            new: "let bound = leads || (self.is_short() && self.left(now).is_some());",
        }],
        tests: &[LOOKS, CLUSTER],
        smoke: false,
    },
    Mutation {
        name: "cast-vote-looked-at-by-present-times",
        bug: "a vote that was cast is not looked at again once the times are openraft's: one that was kept back before it has ended openraft's lease",
        rule: "PACER-E1",
        edits: &[Edit {
            file: PACING,
            old: "second_look(&self, now: MonoTime) -> Option<Duration> {\n        self.left(now)\n",
            new: "second_look(&self, now: MonoTime) -> Option<Duration> {\n        self.left(now).filter(|_| self.is_short())\n",
        }],
        tests: &[LOOKS],
        smoke: false,
    },
    Mutation {
        name: "vote-not-looked-at-again",
        bug: "a voter answers a candidate although it has heard a leader since it looked at its promise",
        rule: "PACER-E1",
        edits: &[Edit {
            file: PACER,
            old: ".filter(|_| !transfer && reply.vote_granted);",
            new: ".filter(|_| transfer && reply.vote_granted);",
        }],
        tests: &[ASKED],
        smoke: false,
    },
    Mutation {
        name: "started-again-and-never-stands",
        bug: "a member that was started again stands for election by the set's shorter times only after the next change of leaders",
        rule: "R8",
        edits: &[Edit {
            file: PACER,
            old: "            return self.pacing().is_short().then_some(election_min);\n",
            new: "            return None;\n",
        }],
        tests: &[ASKED],
        smoke: false,
    },
    Mutation {
        name: "candidate-asks-while-bound",
        bug: "a candidate that heard a leader after it had decided to stand asks for votes all the same",
        rule: "PACER-E2",
        edits: &[Edit {
            file: "crates/raft/src/network.rs",
            old: "left(promise_now()).filter(|_| !rpc.leadership_transfer);",
            new: "left(promise_now()).filter(|_| rpc.leadership_transfer);",
        }],
        tests: &[CLUSTER],
        smoke: false,
    },
    Mutation {
        name: "one-part-of-a-joint-membership-elects",
        bug: "a member stands for election with the votes of one part of a joint membership",
        rule: "PACER-E3",
        edits: &[Edit { file: PACER, old: "self.sets.iter().all(won)", new: "self.sets.iter().any(won)" }],
        tests: &[ASKED],
        smoke: false,
    },
    Mutation {
        name: "longest-promise-of-a-quorum",
        bug: "a leader counts the longest promise of its quorum: the voter with the shortest is free before",
        rule: "PLEDGE-P3",
        edits: &[Edit {
            file: "crates/raft/src/status.rs",
            old: "until: self.until.min(other.until)",
            new: "until: self.until.max(other.until)",
        }],
        tests: &[COUNTED],
        smoke: false,
    },
    Mutation {
        name: "clocks-watched-by-own-times",
        bug: "a leader that has longer times than its voters watches its clocks by these: a clock that loses more than their margin lets it read beyond a promise",
        rule: "R3",
        edits: &[Edit {
            file: "crates/set/src/server/times.rs",
            old: "promised.filter(|timing| timing.election_max() < present.election_max())",
            new: "promised.filter(|timing| timing.election_max() > present.election_max())",
        }],
        tests: &[SERVED],
        smoke: false,
    },
    Mutation {
        name: "margin-of-the-longest-promise",
        bug: "of several answers the one that promises the most says how exact the leader's clock has to be",
        rule: "R3",
        edits: &[Edit {
            file: "crates/raft/src/status.rs",
            old: "shortest: self.shortest.min(other.shortest)",
            new: "shortest: self.shortest.max(other.shortest)",
        }],
        tests: &[COUNTED],
        smoke: false,
    },
    Mutation {
        name: "longer-pause-is-a-gap",
        bug: "when a set's times get shorter, the last pause of the clock watch counts as time in which the process did not run: all read leases of the gateway are void",
        rule: "R8",
        edits: &[Edit {
            file: "crates/control/src/serve/clock.rs",
            old: "(timing.drift_margin(), timing.drift_margin().saturating_add(pause));",
            new: "(timing.drift_margin(), timing.gap_max().min(timing.drift_margin().saturating_add(pause)));",
        }],
        tests: &[WATCHED],
        smoke: false,
    },
    Mutation {
        name: "promises-of-former-voters",
        bug: "after a change of voters a leader reads by what those before it have promised",
        rule: "R3",
        edits: &[Edit {
            file: "crates/control/src/serve/gate.rs",
            old: "self.promised = Some(until);",
            new: "self.promised = self.promised.max(Some(until));",
        }],
        tests: &[CHANGING],
        smoke: false,
    },
    Mutation {
        name: "silent-voters-end-no-lease",
        bug: "a leader reads on although none of the present voters has answered it",
        rule: "R3",
        edits: &[Edit {
            file: "crates/control/src/serve/gate.rs",
            old: "                self.end_read_lease(now);\n            }\n            GateEvent::SoleVoter(sole) => {",
            new: "            }\n            GateEvent::SoleVoter(sole) => {",
        }],
        tests: &[CHANGING],
        smoke: false,
    },
    Mutation {
        name: "times-of-a-former-leader",
        bug: "a late entry of a deposed leader changes the times of the group",
        rule: "SET-S19",
        edits: &[Edit {
            file: "crates/control/src/set/times.rs",
            old: "        check_term(id, term)?;\n",
            new: "        check_term(id, id.term.max(term))?;\n",
        }],
        tests: &[STATE],
        smoke: false,
    },
    Mutation {
        name: "set-beyond-the-settings",
        bug: "a gateway that was started with a shorter round trip has the longer times of the set's state",
        rule: "PLEDGE-P4",
        edits: &[Edit {
            file: "crates/set/src/server/times.rs",
            old: "timing.election_max() < longest.election_max()",
            new: "timing.election_max() != longest.election_max()",
        }],
        tests: &[SERVED],
        smoke: false,
    },
    Mutation {
        name: "nearest-voter-decides",
        bug: "a set's times are those of its nearest voters: the far one makes elections again and again",
        rule: "TUNE-T1",
        edits: &[Edit { file: TUNING, old: "known.sort_unstable_by(|a, b| b.cmp(a));", new: "known.sort_unstable();" }],
        tests: &[CHOSEN],
        smoke: false,
    },
    Mutation {
        name: "shorter-times-without-a-calm",
        bug: "one short look at near voters makes a set's times shorter",
        rule: "TUNE-T2",
        edits: &[Edit {
            file: TUNING,
            old: "if now.saturating_since(since) < bounds.calm {",
            new: "if now.saturating_since(since) > bounds.calm {",
        }],
        tests: &[CHOSEN],
        smoke: false,
    },
    Mutation {
        name: "unmeasured-voter-is-near",
        bug: "a voter that was never measured counts as near",
        rule: "TUNE-T3",
        edits: &[Edit {
            file: TUNING,
            old: "view.trips.iter().all(Option::is_some)",
            new: "view.trips.iter().any(Option::is_some)",
        }],
        tests: &[CHOSEN],
        smoke: false,
    },
    Mutation {
        name: "all-beats-promise-the-same",
        bug: "the answer to one of several heartbeats says the promise of another group's times",
        rule: "PLEDGE-P2",
        edits: &[Edit {
            file: "crates/raft/src/server.rs",
            old: "let read_lease_ms = u64::try_from(promised.as_millis()).unwrap_or(u64::MAX);",
            new: "let _ = promised;\n            let read_lease_ms = u64::try_from(node.config().timing.read_lease.as_millis()).unwrap_or(u64::MAX);",
        }],
        tests: &[TOGETHER],
        smoke: false,
    },
    Mutation {
        name: "answer-of-another-group",
        bug: "answers to heartbeats that travelled together are handed to the groups in the order in which they come",
        rule: "R3",
        edits: &[Edit {
            file: "crates/raft/src/server.rs",
            old: "let taken = (0_u32..).zip(beats)",
            new: "let taken = (1_u32..).zip(beats)",
        }],
        tests: &[TOGETHER],
        smoke: false,
    },
    Mutation {
        name: "conflict-that-was-not-asked-for",
        bug: "a peer that denies a position which a heartbeat did not name ends the leader's process: openraft unwraps it",
        rule: "R8",
        edits: &[Edit {
            file: "crates/raft/src/wire.rs",
            old: "Err(E::Conflict(found)) if prev != Some(found) => Err(",
            new: "Err(E::Conflict(found)) if prev > Some(found) => Err(",
        }],
        tests: &[lib(Layer::Unit, "holdfast-raft", &["a_conflict_at_a_position_that_was_not_sent_is_no_answer"])],
        smoke: false,
    },
    Mutation {
        name: "one-group-makes-its-peer-late",
        bug: "a group that does not answer makes its peer count as late, and the answers of others are not measured",
        rule: "R8",
        edits: &[Edit {
            file: "crates/raft/src/beat_carrier.rs",
            old: "took.for_each(|took| trips.answered(self.target, took));",
            new: "took.filter(|_| called.is_some()).for_each(|took| trips.answered(self.target, took));",
        }],
        tests: &[CARRIED],
        smoke: false,
    },
    Mutation {
        name: "older-build-asked-again",
        bug: "a peer whose build does not know the call gets heartbeats together all the same, and answers none of them",
        rule: "R8",
        edits: &[Edit {
            file: "crates/raft/src/beat_carrier.rs",
            old: "if status.code() == Code::Unimplemented {",
            new: "if status.code() == Code::Unknown {",
        }],
        tests: &[CARRIED],
        smoke: false,
    },
    Mutation {
        name: "beats-answered-as-one",
        bug: "heartbeats that travel together are answered once all groups have an answer: a slow disk under one takes the read leases of all",
        rule: "R3",
        edits: &[Edit {
            file: "crates/raft/src/server.rs",
            old: "        Ok(self.answer(answers.map(Ok).boxed()))",
            new: "        let all: Vec<_> = answers.map(Ok).collect().await;
        Ok(self.answer(futures_util::stream::iter(all).boxed()))",
        }],
        tests: &[TOGETHER],
        smoke: false,
    },
    Mutation {
        name: "beats-of-another-life",
        bug: "heartbeats that travel together are believed, whichever life of the peer's disk answers",
        rule: "CLUSTER-C3",
        edits: &[Edit {
            file: "crates/raft/src/beat_carrier.rs",
            old: "        self.channels.lives.check(self.target, reply.metadata()).map_err(Status::permission_denied)?;\n",
            new: "",
        }],
        tests: &[TOGETHER],
        smoke: false,
    },
];
