//! What strangers can make a process hold: places, bytes and time at its doors.

use crate::bug::{Edit, Layer, Mutation, lib};

const PLACES: &str = "crates/gateway/src/doors/places.rs";
const DOORS: &str = "crates/gateway/src/doors.rs";
const BOUNDS: &str = "crates/gateway/src/access/bounds.rs";
const GUARD: &str = "crates/gateway/src/access/guard.rs";
const PIECES: &str = "crates/raft/src/snapshot_pieces.rs";

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "flood-closes-those-who-are-proven",
        bug: "at a full door a stranger takes the place of a host with a lease, or of a gateway",
        rule: "DOOR-D5",
        edits: &[Edit {
            file: PLACES,
            old: "first_from(from).or_else(|| first_from(Standing::New))",
            new: "first_from(from).or_else(|| first_from(Standing::New))
            .or_else(|| self.by_standing.keys().next().copied())",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["doors::places::"])],
        smoke: false,
    },
    Mutation {
        name: "strangers-have-all-places",
        bug: "connections that say nothing take all places of a door",
        rule: "DOOR-D5",
        edits: &[Edit {
            file: PLACES,
            old: "newcomers >= self.newcomers || held",
            new: "newcomers >= self.most || held",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["doors::places::"])],
        smoke: false,
    },
    Mutation {
        name: "newcomers-close-each-other",
        bug: "at a door that is full of connections which have asked once, each newcomer closes the one before it",
        rule: "DOOR-D5",
        edits: &[Edit {
            file: PLACES,
            old: "if newcomers_have_places { Standing::Asked } else { Standing::New }",
            new: "if newcomers_have_places { Standing::New } else { Standing::New }",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["doors::places::"])],
        smoke: false,
    },
    Mutation {
        name: "one-certificate-holds-a-door",
        bug: "a stolen certificate of a host holds all places of the admin door: nobody can come and revoke it",
        rule: "DOOR-D5",
        edits: &[Edit {
            file: PLACES,
            old: "held.proven >= self.places.proven_most()",
            new: "held.proven > self.places.most",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["doors::places::"])],
        smoke: false,
    },
    Mutation {
        name: "handshake-makes-known",
        bug: "who begins a TLS handshake at the HTTP door has a place like one that was answered, for minutes",
        rule: "DOOR-D5",
        edits: &[Edit { file: DOORS, old: "if self.limits.known_by_answer {", new: "if self.limits.answers {" }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["a_handshake_alone_makes_nobody_known"])],
        smoke: false,
    },
    Mutation {
        name: "closing-sockets-not-counted",
        bug: "sockets that were told to close and have not closed yet are not bounded: a flood takes all file descriptors",
        rule: "DOOR-D1",
        edits: &[Edit {
            file: PLACES,
            old: "held.open >= self.most + self.newcomers",
            new: "held.open >= usize::MAX - self.newcomers",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["doors::places::"])],
        smoke: false,
    },
    Mutation {
        name: "a-byte-now-and-then-is-enough",
        bug: "who sends one byte after the other, and never a whole call, keeps its connection for ever",
        rule: "DOOR-D5",
        edits: &[Edit {
            file: DOORS,
            old: "Standing::New => (self.accepted + self.limits.hello",
            new: "Standing::New => (self.heard + self.limits.hello",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["d5_who_shows_nothing_is_closed_however_much_it_says"])],
        smoke: false,
    },
    Mutation {
        name: "all-is-read-of-a-stranger",
        bug: "of a client that has not shown who it is, as much is read as the windows of HTTP/2 allow",
        rule: "DOOR-D6",
        edits: &[Edit {
            file: DOORS,
            old: "if self.unanswered < NEWCOMER_BYTES {",
            new: "if self.unanswered < NEWCOMER_BYTES || !self.limits.answers {",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["d6_little_is_read_of_a_newcomer"])],
        smoke: false,
    },
    Mutation {
        name: "http-header-without-an-end",
        bug: "an HTTP client that never ends its headers is read for ever",
        rule: "DOOR-D7",
        edits: &[Edit {
            file: DOORS,
            old: "if self.unanswered < NEWCOMER_BYTES {",
            new: "if self.unanswered < NEWCOMER_BYTES || self.limits.answers {",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["d7_a_request_without_an_end_is_not_read"])],
        smoke: false,
    },
    Mutation {
        name: "refusal-proves-a-host",
        bug: "who asks for a lease and is refused counts as a host that has one",
        rule: "DOOR-D5",
        edits: &[Edit {
            file: GUARD,
            old: "if self.outcome == Some(Code::Ok) && self.rule.proves {",
            new: "if self.rule.proves {",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["a_connection_is_known_by_what_it_has_shown"])],
        smoke: false,
    },
    Mutation {
        name: "refused-certificate-is-known",
        bug: "a connection whose certificate is refused counts as known: it is read without the bound for strangers",
        rule: "DOOR-D5",
        edits: &[Edit {
            file: GUARD,
            old: "        let caller = match revocations {\n",
            new: "        line.shows(Standing::Asked);
        let caller = match revocations {\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["gateways_and_hosts_are_proven_by_their_certificates"])],
        smoke: false,
    },
    Mutation {
        name: "body-of-another-cluster-is-read",
        bug: "between gateways the body of a call is read, whatever cluster it names",
        rule: "ACCESS-A6",
        edits: &[Edit {
            file: GUARD,
            old: "            cluster(headers)?;\n",
            new: "            let _ = cluster(headers);\n",
        }],
        tests: &[lib(
            Layer::Unit,
            "holdfast-gateway",
            &["a_call_of_another_cluster_is_refused_before_anything_of_it_is_read"],
        )],
        smoke: false,
    },
    Mutation {
        name: "flood-takes-the-places-of-calls",
        bug: "a flood of one call takes the places that are kept for hosts with a lease and for gateways",
        rule: "ACCESS-A5",
        edits: &[Edit {
            file: BOUNDS,
            old: "(standing == Standing::Proven).then(",
            new: "(standing <= Standing::Proven).then(",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["a5_those_who_are_proven_find_a_place_beside_a_flood"])],
        smoke: false,
    },
    Mutation {
        name: "audit-log-filled-by-a-flood",
        bug: "each call that finds no place leaves a line: whoever floods a method washes out the audit log",
        rule: "ACCESS-A4",
        edits: &[Edit { file: GUARD, old: "if self.refused || self.crowded {", new: "if self.refused {" }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["a4_calls_that_find_no_place_leave_one_line"])],
        smoke: false,
    },
    Mutation {
        name: "rollback-cut-off",
        bug: "a rollback whose safety snapshot takes minutes is cut off: its lease is ended, and hosts take the set again",
        rule: "ACCESS-A6",
        edits: &[Edit {
            file: "crates/gateway/src/access/rules.rs",
            old: "changes(\"RollbackSnapshot\", &[A]).within(LONG),",
            new: "changes(\"RollbackSnapshot\", &[A]),",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["a6_a_rollback_has_time_for_its_safety_snapshot"])],
        smoke: false,
    },
    Mutation {
        name: "request-of-any-length",
        bug: "the length of a request is not held against its method",
        rule: "ACCESS-A6",
        edits: &[Edit {
            file: BOUNDS,
            old: "self.left.checked_sub(bytes)",
            new: "self.left.checked_sub(bytes.min(self.left))",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["a6_a_request_has_the_length_that_its_call_may_have"])],
        smoke: false,
    },
    Mutation {
        name: "state-of-any-length",
        bug: "a gateway makes room for as many bytes of a group's state as another one names",
        rule: "PIECES-S1",
        edits: &[Edit {
            file: PIECES,
            old: "if head.length > PEER_SNAPSHOT_BYTES_MAX as u64 {",
            new: "if head.length == u64::MAX {",
        }],
        tests: &[lib(Layer::Unit, "holdfast-raft", &["s1_more_or_less_than_the_head_names_is_no_snapshot"])],
        smoke: false,
    },
    Mutation {
        name: "damaged-state-is-installed",
        bug: "a group's state that was damaged on its way is installed",
        rule: "PIECES-S2",
        edits: &[Edit {
            file: PIECES,
            old: "    if found != head.crc {\n",
            new: "    if found != head.crc && data.is_empty() {\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-raft", &["s2_a_damaged_state_is_not_taken"])],
        smoke: false,
    },
    Mutation {
        name: "head-of-a-state-not-covered",
        bug: "a state snapshot whose members were changed on the way without TLS is installed",
        rule: "PIECES-S2",
        edits: &[Edit {
            file: PIECES,
            old: "crc32c::crc32c_append(crc32c::crc32c(&named), data)",
            new: "crc32c::crc32c(data)",
        }],
        tests: &[lib(Layer::Unit, "holdfast-raft", &["s2_a_state_with_a_damaged_head_is_not_taken"])],
        smoke: false,
    },
    Mutation {
        name: "large-state-never-arrives",
        bug: "a large state gets no more time than a small one: on a slow line it is sent again and again",
        rule: "PIECES-S3",
        edits: &[Edit {
            file: PIECES,
            old: "begin_ms + bytes as u64 * 1000 / LINE",
            new: "begin_ms + bytes as u64 / LINE",
        }],
        tests: &[lib(Layer::Unit, "holdfast-raft", &["s3_a_large_state_has_time_on_a_slow_line"])],
        smoke: false,
    },
    Mutation {
        name: "large-states-share-a-slow-line",
        bug: "large states of several groups are sent to a member at the same time: on a slow line none arrives",
        rule: "PIECES-S3",
        edits: &[Edit { file: PIECES, old: ".acquire_many_owned(units)", new: ".acquire_many_owned(units.min(1))" }],
        tests: &[lib(Layer::Unit, "holdfast-raft", &["s3_states_for_the_same_member_share_its_line"])],
        smoke: false,
    },
    Mutation {
        name: "append-stream-stays-a-stranger",
        bug: "a door is not told that a connection carries appends of a member: it is closed after ten seconds",
        rule: "DOOR-D5",
        edits: &[Edit {
            file: "crates/raft/src/append_receiver.rs",
            old: "            known();\n",
            new: "            drop(known);\n",
        }],
        tests: &[lib(Layer::Cluster, "holdfast-raft", &["a_door_learns_who_is_a_member"])],
        smoke: false,
    },
    Mutation {
        name: "certificate-makes-room-like-a-stranger",
        bug: "a flood of NBD handshakes closes that of a host which has shown its certificate",
        rule: "FRONT-H1",
        edits: &[Edit {
            file: "crates/front/src/shared.rs",
            old: "connections.shaking.insert((true, id), stop);",
            new: "connections.shaking.insert((false, id), stop);",
        }],
        tests: &[lib(Layer::Unit, "holdfast-front", &["a_client_with_a_certificate_keeps_its_handshake_in_a_flood"])],
        smoke: false,
    },
    Mutation {
        name: "refusal-makes-a-stranger",
        bug: "a host with a certificate whose export is refused for the moment makes room like a stranger",
        rule: "FRONT-H1",
        edits: &[Edit {
            file: "crates/front/src/shared.rs",
            old: "connections.shaking.insert((secure, id), connection.stop);",
            new: "connections.shaking.insert((secure && id == u64::MAX, id), connection.stop);",
        }],
        tests: &[lib(Layer::Unit, "holdfast-front", &["a_refusal_makes_no_stranger_of_a_client_with_a_certificate"])],
        smoke: false,
    },
    Mutation {
        name: "log-filled-by-a-flood",
        bug: "each NBD client that is not served leaves a line in the log: a flood fills the disk",
        rule: "FRONT-H1",
        edits: &[Edit {
            file: "crates/front/src/shared.rs",
            old: "        said < LINES_MAX\n",
            new: "        said < u32::MAX\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-front", &["a_flood_does_not_fill_the_log"])],
        smoke: false,
    },
    Mutation {
        name: "other-build-fills-the-log",
        bug: "each call of a gateway of another build leaves a line in the log: with many groups it fills the disk",
        rule: "CLUSTER-C3",
        edits: &[Edit {
            file: "crates/raft/src/lives.rs",
            old: "now.saturating_since(at) >= SAY_AGAIN",
            new: "now.saturating_since(at) <= SAY_AGAIN",
        }],
        tests: &[lib(Layer::Unit, "holdfast-raft", &["refusals_of_another_build_leave_a_line_now_and_then"])],
        smoke: false,
    },
    Mutation {
        name: "garbage-fills-the-log",
        bug: "each stranger that sends garbage to the door between gateways leaves a line in the log: a flood fills the disk",
        rule: "FRAME-F4",
        edits: &[Edit {
            file: "crates/raft/src/append_receiver.rs",
            old: "from.is_some() && code == Code::InvalidArgument",
            new: "(from.is_some() || from.is_none()) && code == Code::InvalidArgument",
        }],
        tests: &[lib(Layer::Unit, "holdfast-raft", &["garbage_of_strangers_fills_no_log"])],
        smoke: false,
    },
    Mutation {
        name: "agent-reads-a-request-without-an-end",
        bug: "an agent reads headers that never end",
        rule: "LISTEN-L4",
        edits: &[Edit {
            file: "crates/agent/src/listen.rs",
            old: "if this.unanswered > UNANSWERED_BYTES_MAX {",
            new: "if this.unanswered > usize::MAX - UNANSWERED_BYTES_MAX {",
        }],
        tests: &[lib(Layer::Unit, "holdfast-agent", &["a_request_without_an_end_is_not_read"])],
        smoke: false,
    },
    Mutation {
        name: "ping-ends-states-on-slow-lines",
        bug: "a ping that waits behind the pieces of a state ends their connection on a slow line, and the state begins anew, for ever",
        rule: "PIECES-S3",
        edits: &[Edit {
            file: PIECES,
            old: "let behind_ms = window as u64 * 1000 / LINE_BYTES_PER_SECOND;",
            new: "let behind_ms = window as u64 / LINE_BYTES_PER_SECOND;",
        }],
        tests: &[lib(Layer::Unit, "holdfast-raft", &["s3_a_ping_behind_a_full_window"])],
        smoke: false,
    },
];
