//! Lease, epochs and the right to serve.

use crate::bug::{Edit, Layer, Mutation, Test, file, lib, scene};

const CHECKPOINT: &str = "crates/control/src/set/checkpoint.rs";
const LEASE: &str = "crates/control/src/set/lease.rs";
const GATE: &str = "crates/control/src/serve/gate.rs";
const EXPIRY: &str = "crates/control/src/serve/expiry.rs";

const STORIES: Test = file(Layer::Story, "holdfast-control", &["--test", "stories"], &[]);
const LEASES: Test = lib(Layer::Property, "holdfast-control", &["r2_r6_s3_like_a_list_of_what_happened"]);
const CHECKPOINTS: Test =
    lib(Layer::Property, "holdfast-control", &["r4_replay_from_a_checkpoint_is_the_straight_run"]);
const GRANTS: Test = file(Layer::Model, "holdfast-control", &["--test", "model"], &["grants_keep_the_rules"]);
const CLOCKS: Test = file(Layer::Model, "holdfast-control", &["--test", "model"], &["clocks_keep_the_rules"]);
const TOLD: Test = lib(Layer::Property, "holdfast-control", &["r3_the_gate_like_a_list_of_what_was_told"]);
const CLOCK_BACK: Test = scene(&["a_boot_clock_that_goes_back_makes_no_read_lease_longer"]);
const VOTERS: Test = lib(Layer::Property, "holdfast-control", &["r3_no_reads_once_a_voter_is_free"]);

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "epoch-check-gone",
        bug: "apply accepts a write of any epoch",
        rule: "R2",
        edits: &[Edit {
            file: LEASE,
            old: "        if current != Some(epoch) {
            return Admit::Refused(SetRefusal::WrongEpoch { found: epoch, current });
        }
",
            new: "        let epoch = current.unwrap_or(epoch);
",
        }],
        tests: &[GRANTS, LEASES, STORIES],
        smoke: false,
    },
    Mutation {
        name: "gap-accepted",
        bug: "apply accepts a write although an earlier one is missing",
        rule: "R4",
        edits: &[Edit { file: LEASE, old: "if seq.0 == 0 || seq > expected {", new: "if seq.0 == 0 {" }],
        tests: &[GRANTS, LEASES],
        smoke: false,
    },
    Mutation {
        name: "applied-twice",
        bug: "a retried proposal is applied twice",
        rule: "R2",
        edits: &[Edit {
            file: LEASE,
            old: "            return Admit::Duplicate;
",
            new: "            return Admit::Apply;
",
        }],
        tests: &[GRANTS, LEASES],
        smoke: false,
    },
    Mutation {
        name: "judgement-not-compared",
        bug: "a lease is taken from an owner who renewed it after it was judged expired",
        rule: "R2",
        edits: &[Edit {
            file: LEASE,
            old: "j.epoch == lease.epoch && j.renewed == lease.renewed",
            new: "j.epoch == lease.epoch",
        }],
        tests: &[GRANTS, LEASES],
        smoke: false,
    },
    Mutation {
        name: "late-copy-granted",
        bug: "a late copy of a lease request, whose lease has ended already, takes the set again",
        rule: "R12",
        edits: &[Edit {
            file: LEASE,
            old: "if self.granted_requests.contains(&request) {",
            new: "if self.granted_requests.is_empty() && request.0 == 0 {",
        }],
        tests: &[GRANTS, LEASES, STORIES],
        smoke: false,
    },
    Mutation {
        name: "older-token-lives",
        bug: "an old token opens the set although a newer one was used",
        rule: "R2",
        edits: &[Edit {
            file: LEASE,
            old: "                lease.earlier_tokens.clear();
",
            new: "",
        }],
        tests: &[GRANTS, LEASES],
        smoke: false,
    },
    Mutation {
        name: "stale-release",
        bug: "a late release of an old epoch ends the lease of a newer one",
        rule: "R2",
        edits: &[Edit {
            file: LEASE,
            old: "        if lease.epoch != epoch {
            return Err(SetRefusal::WrongEpoch { found: epoch, current: Some(lease.epoch) });
        }
",
            new: "",
        }],
        tests: &[GRANTS, LEASES],
        smoke: false,
    },
    Mutation {
        name: "old-begin-ended",
        bug: "the end of a checkpoint is accepted although a later checkpoint has begun",
        rule: "R4",
        edits: &[Edit { file: CHECKPOINT, old: "self.begin.filter(|latest| latest.at == begin)", new: "self.begin" }],
        tests: &[CHECKPOINTS, STORIES],
        smoke: false,
    },
    Mutation {
        name: "work-of-an-older-term",
        bug: "a checkpoint's entry is accepted in a later term than its own",
        rule: "R4",
        edits: &[Edit {
            file: CHECKPOINT,
            old: "if id.term == found { Ok(()) }",
            new: "if id.term >= found { Ok(()) }",
        }],
        tests: &[CHECKPOINTS, STORIES],
        smoke: false,
    },
    Mutation {
        name: "serves-without-grant",
        bug: "a new leader continues under the grant of an earlier term",
        rule: "R6",
        edits: &[Edit { file: GATE, old: "if grant.id.term != term {", new: "if grant.id.term > term {" }],
        tests: &[GRANTS, TOLD],
        smoke: false,
    },
    Mutation {
        name: "no-drift-margin",
        bug: "reads are answered until the followers' silence ends, on the leader's own clock",
        rule: "R3",
        edits: &[Edit {
            file: GATE,
            old: "sent.saturating_add(timing.read_lease())",
            new: "sent.saturating_add(timing.leader_lease())",
        }],
        tests: &[CLOCKS, VOTERS, TOLD],
        smoke: false,
    },
    Mutation {
        name: "old-acknowledgement-counts",
        bug: "a heartbeat sent in an earlier term renews the read lease of this one",
        rule: "R3",
        edits: &[Edit {
            file: GATE,
            old: "let fresh = sent >= self.term_started && self.suspected",
            new: "let fresh = self.suspected",
        }],
        tests: &[CLOCKS, TOLD],
        smoke: false,
    },
    Mutation {
        name: "suspected-clock-believed",
        bug: "the read lease outlives a suspended clock",
        rule: "R3",
        edits: &[Edit {
            file: GATE,
            old: "            GateEvent::ClockSuspicion => {
                self.end_read_lease(now);
",
            new: "            GateEvent::ClockSuspicion => {
",
        }],
        tests: &[CLOCKS, TOLD],
        smoke: false,
    },
    Mutation {
        name: "serves-through-a-transfer",
        bug: "the old leader still answers during a handover",
        rule: "R3",
        edits: &[Edit {
            file: GATE,
            old: "GateEvent::TransferStarted => self.transfer_started = true,",
            new: "GateEvent::TransferStarted => self.transfer_started = false,",
        }],
        tests: &[CLOCKS, TOLD],
        smoke: false,
    },
    Mutation {
        name: "restarted-voter-votes",
        bug: "a member votes right after its start, although it may have promised a lease before",
        rule: "R3",
        edits: &[Edit {
            file: "crates/types/src/pledge.rs",
            old: "        let left = self.until.saturating_since(now);\n",
            new: "        let left = self.until.min(now).saturating_since(now);\n",
        }],
        tests: &[CLOCKS, VOTERS, STORIES],
        smoke: false,
    },
    Mutation {
        name: "judged-before-its-time",
        bug: "a new leader judges the owner's lease by time in which it was not leader",
        rule: "R8",
        edits: &[Edit {
            file: EXPIRY,
            old: "Some(self.seen?.at.max(self.watching_since?))",
            new: "Some(self.seen?.at.min(self.watching_since?))",
        }],
        tests: &[CLOCKS, lib(Layer::Property, "holdfast-control", &["a_judgement_waits_the_whole_time"])],
        smoke: false,
    },
    Mutation {
        name: "late-continuation-locks-out",
        bug: "a late request with an earlier token makes the newest token invalid, which its owner never used",
        rule: "SET-S3",
        edits: &[Edit {
            file: "crates/control/src/set/state.rs",
            old: "        tokens.push(self.token);\n        tokens\n",
            new: "        tokens.clear();\n        tokens.push(token);\n        tokens\n",
        }],
        tests: &[GRANTS, LEASES],
        smoke: false,
    },
    Mutation {
        name: "overtaken-continuation-refused",
        bug: "a continuation that another one overtook is refused although its token is valid: the devices fail for good",
        rule: "R8",
        edits: &[Edit {
            file: "crates/control/src/set/lease.rs",
            old: "        if self.granted_requests.contains(&request) || earlier_tokens.len() > EARLIER_TOKENS_MAX {\n",
            new: "        self.check_not_granted_before(request)?;\n        if earlier_tokens.len() > EARLIER_TOKENS_MAX {\n",
        }],
        tests: &[LEASES, STORIES],
        smoke: false,
    },
    Mutation {
        name: "read-lease-outlives-a-step-back",
        bug: "the boot clock goes back, and a leader counts its read lease on from there: it reads while others may vote",
        rule: "R3",
        edits: &[Edit {
            file: GATE,
            old: "            self.event(reading.now, GateEvent::ClockSuspicion);\n",
            new: "",
        }],
        tests: &[VOTERS, CLOCK_BACK],
        smoke: false,
    },
    Mutation {
        name: "promise-ends-with-a-leap",
        bug: "a follower's boot clock leaps ahead, and it votes for another leader while the one it promised itself to reads on",
        rule: "R3",
        edits: &[Edit {
            file: "crates/raft/src/clock.rs",
            old: "        Self(promise_now())\n",
            new: "        Self(boot_now())\n",
        }],
        tests: &[scene(&["a_boot_clock_that_leaps_ahead_ends_no_promise"])],
        smoke: false,
    },
    Mutation {
        name: "processors-make-the-clock-run-ahead",
        bug: "each reading of a processor that is a little behind the others counts as a step back: time flies, and promises end early",
        rule: "R3",
        edits: &[Edit {
            file: "crates/types/src/steady.rs",
            old: "pub const JITTER_NS: u64 = 1_000_000;",
            new: "pub const JITTER_NS: u64 = 0;",
        }],
        tests: &[lib(Layer::Unit, "holdfast-types", &["steady::"])],
        smoke: true,
    },
    Mutation {
        name: "clock-waits-to-catch-up",
        bug: "the boot clock goes back, and a leader has no read lease before the clock is where it was",
        rule: "R8",
        edits: &[Edit {
            file: "crates/types/src/steady.rs",
            old: "        self.machine = machine;\n",
            new: "        self.machine = self.machine.max(machine);\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-types", &["steady::"]), CLOCK_BACK],
        smoke: false,
    },
];
