//! The log on a real disk, and the members that share it.

use crate::bug::{Edit, Layer, Mutation, SIMULATION, Test, file, lib, scene};

const GROUPS: Test = lib(Layer::Cluster, "holdfast-raft", &["group_tests::"]);
const STARTS: Test = lib(Layer::Cluster, "holdfast-raft", &["start_tests::"]);
const PRE_VOTE: Test = lib(Layer::Cluster, "holdfast-raft", &["pre_vote_tests::"]);
const SNAPSHOTS: Test = lib(Layer::Unit, "holdfast-raft", &["machine::tests::"]);
const COPIED: Test =
    lib(Layer::Cluster, "holdfast-raft", &["a_second_process_on_a_copied_disk_is_refused_by_the_first"]);
const HEALING: Test = lib(Layer::Cluster, "holdfast-raft", &["heal_tests::a_damaged_member"]);
/// Started repeatedly, while all members with its later acknowledgements are down.
const RESTORED: Test =
    file(Layer::Simulation, "holdfast-sim", &["--test", "scenes"], &["a_machine_that_goes_back_to_an_older_copy"]);
/// The writer with its threads on a simulated disk: its callbacks, and failing disks.
const CALLED_BACK: Test = file(Layer::Crash, "holdfast-log", &["--test", "log"], &["what_was_called_back_survives"]);
const FAILING: Test = file(Layer::Unit, "holdfast-log", &["--test", "log"], &["a_failed_"]);
const DISK: Test = file(Layer::Unit, "holdfast-log", &["--test", "log"], &["real_disk::"]);

const SPEAKS: Test = file(Layer::Unit, "holdfast-log", &["--test", "log"], &["speaks_for_those_before_it"]);
const FULL: Test = file(Layer::Unit, "holdfast-log", &["--test", "log"], &["on_a_full_disk"]);

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "vote-keeps-leading",
        bug: "a member that has voted in a later term leads on until openraft says otherwise: it may answer reads beside the new leader",
        rule: "R3",
        edits: &[Edit {
            file: "crates/raft/src/log_store.rs",
            old: "        self.votes.raise(Term(vote.leader_id.term));
",
            new: "",
        }],
        tests: &[GROUPS, SIMULATION],
        smoke: false,
    },
    Mutation {
        name: "vote-not-persisted",
        bug: "a vote is kept in memory only: after a restart the member votes again in the same term",
        rule: "R2",
        edits: &[Edit {
            file: "crates/log/src/group.rs",
            old: "Ok((Some(Op::Vote { group: self.group.id, payload: vote }), Removed::default()))",
            new: "Ok((None, Removed::default()))",
        }],
        tests: &[DISK, GROUPS],
        smoke: false,
    },
    Mutation {
        name: "acknowledged-before-sync",
        bug: "the writer reports completion before it writes",
        rule: "R1",
        edits: &[Edit {
            file: "crates/log/src/writer.rs",
            old: "            let Job { ops, bytes: job_bytes, evictable, done } = job;
",
            new: "            let Job { ops, bytes: job_bytes, evictable, done } = job;
            done.call(Ok(()));
            let done = Done::each(|_| ());
",
        }],
        tests: &[CALLED_BACK, FAILING],
        smoke: false,
    },
    Mutation {
        name: "failed-disk-acknowledges",
        bug: "after a failed write or sync the node continues to acknowledge",
        rule: "R1",
        edits: &[Edit {
            file: "crates/log/src/writer.rs",
            old: "                Some(why) => done.call(Err(stopped(Some(why)))),
",
            new: "                Some(_) => done.call(Ok(())),
",
        }],
        tests: &[FAILING, CALLED_BACK],
        smoke: false,
    },
    Mutation {
        name: "voter-under-embargo",
        bug: "a member answers votes right after its start, at the door between gateways",
        rule: "R3",
        edits: &[Edit {
            file: "crates/raft/src/server.rs",
            old: "            return Err(Status::unavailable(format!(\"vote embargo after a start: {left:?} left; asked by {from}\")));
",
            new: "            tracing::debug!(%from, ?left, \"votes all the same\");
",
        }],
        tests: &[STARTS],
        smoke: false,
    },
    Mutation {
        name: "pre-vote-off",
        bug: "a member that is cut off raises its term again and again, and deposes the leader when it comes back",
        rule: "R8",
        edits: &[Edit {
            file: "crates/raft/src/config.rs",
            old: "enable_pre_vote: Some(true),",
            new: "enable_pre_vote: Some(false),",
        }],
        tests: &[PRE_VOTE],
        smoke: false,
    },
    Mutation {
        name: "stopped-group-leads",
        bug: "a stopped group still reports itself as leader: requests for the set are refused there although another gateway leads it",
        rule: "R8",
        edits: &[Edit {
            file: "crates/raft/src/group.rs",
            old: "if self.raft().metrics().borrow_watched().running_state.is_err() {",
            new: "if false {",
        }],
        tests: &[GROUPS],
        smoke: false,
    },
    Mutation {
        name: "snapshot-goes-back",
        bug: "an older snapshot replaces a newer one",
        rule: "R4",
        edits: &[Edit {
            file: "crates/raft/src/machine.rs",
            old: "        && current.last() >= snapshot.last()
",
            new: "        && current.last() == snapshot.last()
",
        }],
        tests: &[SNAPSHOTS],
        smoke: false,
    },
    Mutation {
        name: "snapshot-not-synced-first",
        bug: "a snapshot from the leader is adopted in memory and not made durable before the log is purged",
        rule: "R1",
        edits: &[Edit {
            file: "crates/raft/src/machine.rs",
            old: "        save_patiently(&self.shared, snapshot, lacks_room).await?;
",
            new: "        *self.shared.current.locked() = Some(snapshot);
",
        }],
        tests: &[SNAPSHOTS],
        smoke: false,
    },
    Mutation {
        name: "lost-log-unnoticed",
        bug: "a follower that lost entries which it had acknowledged simply gets them again",
        rule: "R9",
        edits: &[Edit {
            file: "crates/raft/src/reversion.rs",
            old: "*t == term && conflict.index <= acked.index",
            new: "*t == term && conflict.index > acked.index",
        }],
        tests: &[lib(Layer::Unit, "holdfast-raft", &["reversion::"])],
        smoke: false,
    },
    Mutation {
        name: "restored-disk-accepted",
        bug: "a member restored from an older copy of its disk may vote",
        rule: "R9",
        edits: &[Edit {
            file: "crates/raft/src/lives.rs",
            old: "Some((seen, _)) if life.boot < seen => Err(format!(",
            new: "Some((seen, _)) if life.boot > seen.saturating_mul(2) => Err(format!(",
        }],
        tests: &[lib(Layer::Unit, "holdfast-raft", &["lives::"])],
        smoke: false,
    },
    Mutation {
        name: "restored-disk-starts-again",
        bug: "a member restored from an older copy of its disk may vote after enough restarts",
        rule: "CLUSTER-C3",
        edits: &[Edit {
            file: "crates/raft/src/lives.rs",
            old: "                    && !before.contains(&(seen, nonce)) =>",
            new: "                    && !before.contains(&(seen, nonce)) && life.nonce == nonce =>",
        }],
        tests: &[lib(Layer::Unit, "holdfast-raft", &["lives::"]), RESTORED],
        smoke: false,
    },
    Mutation {
        name: "lives-forgotten-at-a-start",
        bug: "a disk forgets at each start which instance of it was registered: only the counter distinguishes it from a copy",
        rule: "CLUSTER-C3",
        edits: &[Edit {
            file: "crates/gateway/src/lives.rs",
            old: "        if !self.used {
            self.lives.pop();
        }",
            new: "        self.lives.clear();",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["lives::"]), RESTORED],
        smoke: false,
    },
    Mutation {
        name: "headless-log-believed",
        bug: "a group takes part although its oldest journal file is missing",
        rule: "R9",
        edits: &[Edit {
            file: "crates/raft/src/quarantine.rs",
            old: "state.purged.is_none() && first.0 > 0",
            new: "state.purged.is_some() && first.0 > 0",
        }],
        tests: &[lib(Layer::Unit, "holdfast-raft", &["quarantine::"])],
        smoke: false,
    },
    Mutation {
        name: "taken-out-and-votes-for-the-left-behind",
        bug: "a member that was removed and added again as a learner votes for an outdated candidate",
        rule: "R1",
        edits: &[Edit { file: "crates/raft/src/server.rs", old: ".filter(|since| last < Some((since.term.0, since.index.0)))", new: ".filter(|since| last < Some((0, since.index.0)))" },],
        tests: &[HEALING],
        smoke: false,
    },
    Mutation {
        name: "copied-disk-registered",
        bug: "a second process on a copied disk is registered while the first lives",
        rule: "R1",
        edits: &[Edit {
            file: "crates/raft/src/register.rs",
            old: "if let Some(addr) = peers.get(&self.member())\n",
            new: "if let Some(addr) = peers.get(&self.member()).filter(|_| false)\n",
        }],
        tests: &[COPIED],
        smoke: false,
    },
    Mutation {
        name: "longer-than-promised",
        bug: "a leader bases its lease on the answer of a follower that is configured with a shorter promise",
        rule: "R3",
        edits: &[Edit {
            file: "crates/raft/src/network.rs",
            old: "self.net.acks.note(self.target, term, sent, until);",
            new: "self.net.acks.note(self.target, term, sent, until.max(sent.saturating_add(self.net.timing.read_lease)));",
        }],
        tests: &[PRE_VOTE],
        smoke: false,
    },
    Mutation {
        name: "promise-forgotten",
        bug: "a restart with a shorter lease forgets what was promised under the longer one",
        rule: "R3",
        edits: &[Edit {
            file: "crates/gateway/src/vote_embargo.rs",
            old: "let longest = before.max(rtt_ms(own));",
            new: "let longest = rtt_ms(own);",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["vote_embargo::"])],
        smoke: false,
    },
    Mutation {
        name: "leadership-before-its-report",
        bug: "a change of leadership is published before openraft's report of it can be read: whoever is woken by it still finds the old leader",
        rule: "R8",
        edits: &[Edit {
            file: "crates/raft/src/leadership.rs",
            old: "let same = whole.vote == server.vote && whole.current_leader == server.current_leader;",
            new: "let same = server.vote == server.vote;",
        }],
        tests: &[lib(Layer::Unit, "holdfast-raft", &["leadership::"])],
        smoke: false,
    },
    Mutation {
        name: "nobody-speaks-for-a-batch",
        bug: "of the appends that one batch made durable none is told to openraft: a commit waits until the next batch",
        rule: "R8",
        edits: &[Edit {
            file: "crates/log/src/writer.rs",
            old: "is_some_and(|group| speakers.get(&group) > Some(&at));",
            new: "is_some_and(|group| speakers.get(&group) >= Some(&at));",
        }],
        tests: &[SPEAKS],
        smoke: false,
    },
    Mutation {
        name: "purge-behind-what-has-no-room",
        bug: "on a full disk, the purge that would free space waits behind writes that have no space",
        rule: "R8",
        edits: &[Edit {
            file: "crates/log/src/writer.rs",
            old: "if self.purge_ahead() {",
            new: "if false {",
        }],
        tests: &[FULL],
        smoke: false,
    },
    Mutation {
        name: "overtaken-purge-takes-back",
        bug: "a purge that was overtaken by a later one restores purged entries",
        rule: "R1",
        edits: &[Edit {
            file: "crates/journal/src/index.rs",
            old: "if self.purged.is_some_and(|(purged, _)| purged.index > upto.index) {",
            new: "if false {",
        }],
        tests: &[lib(Layer::Unit, "holdfast-journal", &["index::"])],
        smoke: false,
    },
    Mutation {
        name: "purged-entry-takes-a-place",
        bug: "a gateway that stopped on a full disk, where a purge went ahead of what two leaders wrote, finds a sound group damaged",
        rule: "R8",
        edits: &[Edit {
            file: "crates/journal/src/index.rs",
            old: "                if self.is_purged(id.index.0) {\n                    return Ok(());\n                }\n",
            new: "",
        }],
        tests: &[file(
            Layer::Crash,
            "holdfast-journal",
            &["--test", "journal"],
            &["a_purge_that_goes_ahead_of_two_leaders_damages_nothing"],
        )],
        smoke: false,
    },
    Mutation {
        name: "empty-journal-passes",
        bug: "the journal's files are missing and its lock file is there: the member votes as if it had never voted",
        rule: "R1",
        edits: &[Edit {
            file: "crates/raft/src/quarantine.rs",
            old: "None if state.last.max(snapshot).is_some_and",
            new: "None if state.last.is_some_and",
        }],
        tests: &[lib(Layer::Unit, "holdfast-raft", &["quarantine::"])],
        smoke: false,
    },
    Mutation {
        name: "state-no-longer-than-an-append",
        bug: "a group's state that is larger than one append message never reaches a follower",
        rule: "R9",
        edits: &[Edit {
            file: "crates/raft/src/snapshot_pieces.rs",
            old: "data.split_to(data.len().min(PIECE_BYTES))",
            new: "data.split_to(data.len())",
        }],
        tests: &[lib(Layer::Unit, "holdfast-raft", &["a_state_of_any_size_arrives_as_it_was"]), GROUPS],
        smoke: false,
    },
    Mutation {
        name: "answer-of-an-earlier-stream",
        bug: "an answer of an earlier append stream, or to another request, acknowledges what its follower may not have",
        rule: "FRAME-F2",
        edits: &[Edit {
            file: "crates/raft/src/append_sender.rs",
            old: "if stream == wire.stream && number == expected && !self.unanswered.is_empty() =>",
            new: "if number != u64::MAX && !self.unanswered.is_empty() =>",
        }],
        tests: &[lib(Layer::Unit, "holdfast-raft", &["an_answer_counts_for_the_request_that_it_answers"])],
        smoke: false,
    },
    Mutation {
        name: "connection-with-an-answer-under-way",
        bug: "an append stream begins on a connection on which an answer of the one before it is still to come",
        rule: "FRAME-F2",
        edits: &[Edit {
            file: "crates/raft/src/append_sender.rs",
            old: "let idle = self.unanswered.is_empty() && !self.pinged && wire.outgoing.bytes() == 0;",
            new: "let idle = !self.pinged && wire.outgoing.bytes() == 0;",
        }],
        tests: &[lib(Layer::Unit, "holdfast-raft", &["a_connection_is_used_again_after_a_stream_in_good_order"])],
        smoke: false,
    },
    Mutation {
        name: "append-of-an-old-connection",
        bug: "a request that was left in an old connection reaches the group after those of a newer stream",
        rule: "FRAME-F3",
        edits: &[Edit {
            file: "crates/raft/src/newest_stream.rs",
            old: "(*newest == self.number).then(what)",
            new: "(*newest >= self.number).then(what)",
        }],
        tests: &[
            lib(Layer::Unit, "holdfast-raft", &["newest_stream::"]),
            lib(Layer::Cluster, "holdfast-raft", &["no_request_of_an_older_stream_comes_after_a_newer_one"]),
        ],
        smoke: false,
    },
    Mutation {
        name: "append-frame-not-checked",
        bug: "an append whose head or entries were changed on the way is taken",
        rule: "FRAME-F1",
        edits: &[Edit {
            file: "crates/raft/src/append_frames.rs",
            old: "if found == expected { Ok(()) } else {",
            new: "if found == expected || kind == APPEND { Ok(()) } else {",
        }],
        tests: &[lib(Layer::Unit, "holdfast-raft", &["append_frames_tests::"])],
        smoke: false,
    },
    Mutation {
        name: "append-payload-not-covered",
        bug: "a payload that was changed on the way without TLS is stored and acknowledged: a membership then names other voters at one member, and nothing finds it",
        rule: "FRAME-F1",
        edits: &[
            Edit {
                file: "crates/raft/src/append_frames.rs",
                old: "    let crc = payloads.iter().fold(crc, |crc, payload| crc32c::crc32c_append(crc, payload));\n",
                new: "",
            },
            Edit {
                file: "crates/raft/src/append_frames.rs",
                old: "crc32c::crc32c_append(crc32c::crc32c(&head[..12]), body);",
                new: "crc32c::crc32c_append(
        crc32c::crc32c(&head[..12]),
        &body[..if kind == APPEND {
            body.len().min(APPEND_HEAD + ENTRY_HEAD * number_u32(body, 56) as usize)
        } else {
            body.len()
        }],
    );",
            },
        ],
        tests: &[lib(Layer::Unit, "holdfast-raft", &["append_frames_tests::"])],
        smoke: false,
    },
    Mutation {
        name: "last-index-of-a-peer-taken",
        bug: "a vote with a term just below the largest is taken: elections count past it, which ends the gateway, at each start if it is on disk",
        rule: "FRAME-F1",
        edits: &[Edit {
            file: "crates/raft/src/wire.rs",
            old: "if found > u64::MAX / 2 { Err(",
            new: "if found == u64::MAX { Err(",
        }],
        tests: &[lib(Layer::Unit, "holdfast-raft", &["with_none_behind_them_are_refused"])],
        smoke: false,
    },
    Mutation {
        name: "append-stream-of-a-host",
        bug: "an append stream is taken from whoever has a certificate of the cluster: a host can act as a gateway",
        rule: "R10",
        edits: &[Edit {
            file: "crates/raft/src/append_receiver.rs",
            old: "        self.may_append.clone().map_err(Status::permission_denied)?;\n",
            new: "        let _ = self.may_append.clone().map_err(Status::permission_denied);\n",
        }],
        tests: &[lib(Layer::Cluster, "holdfast-raft", &["with_tls_only_gateways_of_the_cluster_append"])],
        smoke: false,
    },
    Mutation {
        name: "old-connection-waits-for-the-disk",
        bug: "a connection whose append waits for the disk stays when a newer stream has begun: each change of leader leaves one",
        rule: "FRAME-F3",
        edits: &[Edit {
            file: "crates/raft/src/append_receiver.rs",
            old: "        Some(turn) => turn.over().await,",
            new: "        Some(_) => std::future::pending().await,",
        }],
        tests: &[lib(Layer::Cluster, "holdfast-raft", &["of_streams_that_wait_for_the_disk_the_newest_is_left"])],
        smoke: false,
    },
    Mutation {
        name: "each-group-dials",
        bug: "a peer that stays away is dialled as often as there are groups",
        rule: "R8",
        edits: &[Edit {
            file: "crates/raft/src/dials.rs",
            old: "&& failed.at.elapsed() < FAILED_FOR",
            new: "&& failed.at.elapsed() > FAILED_FOR",
        }],
        tests: &[lib(Layer::Unit, "holdfast-raft", &["dials::"])],
        smoke: false,
    },
    Mutation {
        name: "long-frame-copied",
        bug: "a long append of which little is missing is copied into another buffer",
        rule: "R8",
        edits: &[Edit {
            file: "crates/raft/src/append_frames.rs",
            old: "let least = if self.wanted > HEAD { rest } else { least };",
            new: "let least = rest.max(least);",
        }],
        tests: &[lib(Layer::Unit, "holdfast-raft", &["append_frames_tests::"])],
        smoke: false,
    },
    Mutation {
        name: "idle-connection-keeps-its-buffer",
        bug: "each idle append connection keeps a buffer of up to 1 MiB after its follower has caught up",
        rule: "R8",
        edits: &[Edit {
            file: "crates/raft/src/append_frames.rs",
            old: "(self.bytes, self.longest) = (BytesMut::new(), 0);",
            new: "self.longest = 0;",
        }],
        tests: &[lib(Layer::Unit, "holdfast-raft", &["append_frames_tests::"])],
        smoke: false,
    },
    Mutation {
        name: "reason-lost-behind-garbage",
        bug: "a sender of bytes that are no frame does not learn why its connection ends: what it sent after them is not read",
        rule: "FRAME-F1",
        edits: &[Edit {
            file: "crates/raft/src/append_receiver.rs",
            old: "                reader.drain().await;\n",
            new: "",
        }],
        tests: &[lib(
            Layer::Unit,
            "holdfast-raft",
            &["what_comes_after_garbage_is_read_and_its_sender_told_why"],
        )],
        smoke: false,
    },
    Mutation {
        name: "refusal-behind-a-broken-write",
        bug: "a peer's reason is lost if its connection ended before the request was written",
        rule: "R8",
        edits: &[Edit {
            file: "crates/raft/src/append_sender.rs",
            old: "while let Poll::Ready(Ok(Some(frame))) = self.poll_frame(context) {",
            new: "while let Poll::Ready(Err(frame)) = Poll::<Result<(), Frame>>::Pending {",
        }],
        tests: &[lib(Layer::Unit, "holdfast-raft", &["a_refusal_says_why"])],
        smoke: false,
    },
    Mutation {
        name: "stopped-group-asked",
        bug: "appends are handed to a group that has stopped: one that is given up while it waits makes the next one panic",
        rule: "R8",
        edits: &[Edit {
            file: "crates/raft/src/appender.rs",
            old: "running.map_err(|e| fatal(format!(\"the group has stopped here: {e}\")))?;",
            new: "drop(running);",
        }],
        tests: &[lib(Layer::Unit, "holdfast-raft", &["a_group_that_has_stopped_is_not_asked"])],
        smoke: false,
    },
    Mutation {
        name: "append-connections-without-a-limit",
        bug: "append connections are not counted apart: those of many sets take the places of votes and heartbeats",
        rule: "R8",
        edits: &[Edit {
            file: "crates/raft/src/append_door.rs",
            old: "let Ok(_place) = places.free.try_acquire() else {",
            new: "let Ok(_place) = Ok::<_, ()>(&places.free) else {",
        }],
        tests: &[lib(Layer::Cluster, "holdfast-raft", &["append_connections_take_no_place_of_calls"])],
        smoke: false,
    },
    Mutation {
        name: "append-stream-of-another-life",
        bug: "an append stream goes on although the receiver's answer comes from another life of its disk",
        rule: "CLUSTER-C3",
        edits: &[Edit {
            file: "crates/raft/src/network.rs",
            old: "        self.net.believe(target, &theirs)?;\n",
            new: "        drop(theirs);\n",
        }],
        tests: &[lib(Layer::Cluster, "holdfast-raft", &["a_stream_to_another_life_ends"])],
        smoke: false,
    },
    Mutation {
        name: "covered-and-not-purged",
        bug: "entries covered by a snapshot, whose purge a crash prevented, are not purged before openraft reads the log",
        rule: "R8",
        edits: &[Edit {
            file: "crates/raft/src/start_group.rs",
            old: "log.purge_later(covered).map_err(io)?;",
            new: "tracing::debug!(%covered);",
        }],
        tests: &[GROUPS],
        smoke: false,
    },
    Mutation {
        name: "snapshot-written-after-the-end",
        bug: "a state snapshot that had no room is written after the group of a deleted set has ended",
        rule: "R10",
        edits: &[Edit {
            file: "crates/raft/src/machine.rs",
            old: "if shared.over.load(Ordering::Acquire) {",
            new: "if shared.over.load(Ordering::Acquire) && shared.snapshot_last().is_none() {",
        }],
        tests: &[scene(&["a_state_snapshot_without_room_is_saved_later"])],
        smoke: false,
    },
    Mutation {
        name: "begun-over-an-unseen-file",
        bug: "a journal file is begun over a name that cannot be looked at",
        rule: "R1",
        edits: &[Edit {
            file: "crates/log/src/disk.rs",
            old: "if path.try_exists()? {",
            new: "if path.exists() {",
        }],
        tests: &[DISK],
        smoke: false,
    },
];
