//! Connections, requests and answers: the gateway's NBD front, its serving of a set, and the device on a host.

use crate::bug::{Edit, Layer, Mutation, SIMULATION, Test, lib};

const DEVICE: &str = "crates/set/src/device.rs";
const SLOTS: &str = "crates/front/src/slots.rs";
const HANDSHAKE: &str = "crates/front/src/handshake.rs";

const REGISTERS: Test = lib(Layer::Property, "holdfast-attach", &["machine::"]);
const CLIENT: Test = lib(Layer::Property, "holdfast-nbd", &[]);
const DEVICES: Test = lib(Layer::Unit, "holdfast-set", &["device::"]);
const AGENT: Test = lib(Layer::Property, "holdfast-agent", &["machine::"]);
const OF_SLOTS: Test = lib(Layer::Unit, "holdfast-front", &["tests::"]);

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "lease-checked-before-the-read",
        bug: "the read lease is checked before the data is read and not after",
        rule: "R3",
        edits: &[Edit {
            file: DEVICE,
            old: "    let data = data.await?;\n    check.await?;\n",
            new: "    check.await?;\n    let data = data.await?;\n",
        }],
        tests: &[DEVICES],
        smoke: false,
    },
    Mutation {
        name: "lease-not-checked",
        bug: "a read is answered without a check of the read lease",
        rule: "R3",
        edits: &[Edit {
            file: DEVICE,
            old: "checked(shown, self.check_read()).await?",
            new: "checked(shown, async { Ok(()) }).await?",
        }],
        tests: &[DEVICES, Test::Scenario("paused-gateway")],
        smoke: false,
    },
    Mutation {
        name: "extents-without-the-lease",
        bug: "block status (allocated ranges) is answered without a check of the read lease",
        rule: "R3",
        edits: &[Edit {
            file: DEVICE,
            old: "checked(async { self.allocated(offset, len, extents_max) }, self.check_read()).await?",
            new: "checked(async { self.allocated(offset, len, extents_max) }, async { Ok(()) }).await?",
        }],
        tests: &[DEVICES],
        smoke: false,
    },
    Mutation {
        name: "nobody-wakes-what-waits",
        bug: "writes that wait for the entries in flight are not sent when these have come back: they hang until somebody else writes",
        rule: "R8",
        edits: &[Edit { file: "crates/set/src/sequencer.rs", old: "        if leaves {", new: "        if false {" }],
        tests: &[lib(Layer::Unit, "holdfast-set", &["sequencer::"])],
        smoke: false,
    },
    Mutation {
        name: "one-small-entry-at-a-time",
        bug: "a write that comes right behind another one waits until that is back: over a network, few writers get half the rate",
        rule: "R8",
        edits: &[Edit {
            file: "crates/set/src/sequencer/queue.rs",
            old: "const AT_ONCE: usize = 2;",
            new: "const AT_ONCE: usize = 1;",
        }],
        tests: &[lib(Layer::Unit, "holdfast-set", &["sequencer::"])],
        smoke: false,
    },
    Mutation {
        name: "goes-on-after-an-unknown",
        bug: "after an entry with unknown outcome the next one is answered as written",
        rule: "R12",
        edits: &[Edit {
            file: "crates/set/src/sequencer/queue.rs",
            old: "let outcome = self.failed.map_or(came, Err);",
            new: "let outcome = came;",
        }],
        tests: &[lib(Layer::Unit, "holdfast-set", &["sequencer::"])],
        smoke: false,
    },
    Mutation {
        name: "acknowledged-before-commit",
        bug: "a write is answered when the sequencer has it, before it is committed",
        rule: "R1",
        edits: &[Edit {
            file: DEVICE,
            old: "        for answer in pending {
            match answer.await {
",
            new: "        for mut answer in pending {
            let now = answer.try_recv().unwrap_or(Ok(()));
            match Ok::<_, tokio::sync::oneshot::error::RecvError>(now) {
",
        }],
        tests: &[SIMULATION, Test::Scenario("flush-kill-all")],
        smoke: false,
    },
    Mutation {
        name: "named-before-the-put",
        bug: "the map names a segment that the store did not accept",
        rule: "R7",
        edits: &[Edit {
            file: "crates/set/src/uploader/objects.rs",
            old: "                // Also waits for errors that last until an operator acts",
            new: "                Err(e) if e.disposition() == holdfast_store::Disposition::Retry => return Ok(()),
                // Also waits for errors that last until an operator acts",
        }],
        tests: &[SIMULATION, Test::Scenario("s3-outage")],
        smoke: false,
    },
    Mutation {
        name: "token-not-checked",
        bug: "a connection is accepted with any token",
        rule: "R2",
        edits: &[Edit {
            file: "crates/set/src/server.rs",
            old: "self.join(|s| !s.plain && s.token == token)",
            new: "self.join(|s| !s.plain)",
        }],
        tests: &[Test::Scenario("two-owners")],
        smoke: false,
    },
    Mutation {
        name: "continued-without-a-look",
        bug: "a gateway continues a lease although the set was recovered elsewhere, which it has not looked for",
        rule: "HEAD-H1",
        edits: &[Edit {
            file: "crates/set/src/server.rs",
            old: "        self.before_continuing().await?;
        let looked =",
            new: "        let looked =",
        }],
        tests: &[lib(Layer::Unit, "holdfast-set", &["device::"])],
        smoke: false,
    },
    Mutation {
        name: "continuation-waits-for-the-store",
        bug: "while the store is away, a host's lease is not continued after the loss of its gateway: a healthy database is stopped",
        rule: "R8",
        edits: &[Edit {
            file: "crates/set/src/server/hold.rs",
            old: "const CONTINUATION_WAITS: Duration = Duration::from_millis(300);",
            new: "const CONTINUATION_WAITS: Duration = Duration::from_secs(300);",
        }],
        tests: &[lib(Layer::Unit, "holdfast-set", &["device::"])],
        smoke: false,
    },
    Mutation {
        name: "refused-by-an-older-life",
        bug: "a gateway of an older life refuses a continuation after a slow proposal, and a host ends its devices for good",
        rule: "HEAD-H1",
        edits: &[Edit {
            file: "crates/set/src/server.rs",
            old: "        self.before_telling(command, &answered).await?;\n",
            new: "",
        }],
        tests: &[lib(Layer::Unit, "holdfast-set", &["device::"])],
        smoke: false,
    },
    Mutation {
        name: "session-refused-by-an-older-life",
        bug: "a gateway of an older life refuses a session by its own lease, without a look at the head, and a host ends its devices for good",
        rule: "HEAD-H1",
        edits: &[Edit {
            file: "crates/set/src/server.rs",
            old: "        self.before_answer().await?;
        let Lease { owner,",
            new: "        let Lease { owner,",
        }],
        tests: &[DEVICES],
        smoke: false,
    },
    Mutation {
        name: "kept-back-plain-lease-stays",
        bug: "a plain lease whose grant was kept back for want of a look at the head is not released: nobody uses it, and others are refused",
        rule: "R12",
        edits: &[Edit {
            file: "crates/set/src/server.rs",
            old: "unused.end(WriteFailure::Gone);",
            new: "drop(unused);",
        }],
        tests: &[DEVICES],
        smoke: false,
    },
    Mutation {
        name: "older-connection-takes-the-slot",
        bug: "a late connection replaces a newer one of its device",
        rule: "R6",
        edits: &[Edit { file: SLOTS, old: "(known && found <= newest)", new: "(known && found == newest)" }],
        tests: &[OF_SLOTS],
        smoke: false,
    },
    Mutation {
        name: "slots-by-name",
        bug: "a set that was deleted and created again under its name cannot be attached: its connections are measured by the epochs of the first",
        rule: "R6",
        edits: &[
            Edit {
                file: "crates/set/src/device.rs",
                old: "                slots: set.slots(volume),\n",
                new: "                slots: this.slots_of(&name),\n",
            },
            Edit {
                file: "crates/set/src/device.rs",
                old: "    /// Refuses a plain export before any lookup of the set",
                new: "    fn slots_of(&self, name: &ExportName) -> Slots {
        static ALL: std::sync::Mutex<BTreeMap<String, Slots>> = std::sync::Mutex::new(BTreeMap::new());
        let key = format!(\"{}/{}\", name.set, name.volume);
        ALL.lock().unwrap_or_else(std::sync::PoisonError::into_inner).entry(key).or_default().clone()
    }

    /// Refuses a plain export before any lookup of the set",
            },
        ],
        tests: &[DEVICES],
        smoke: false,
    },
    Mutation {
        name: "two-connections-of-a-slot",
        bug: "a new connection of a device reads requests while the old one still executes some",
        rule: "R6",
        edits: &[Edit {
            file: SLOTS,
            old: "            living.ended.cancelled().await;
",
            new: "            let _ = &living.ended;
",
        }],
        tests: &[OF_SLOTS],
        smoke: false,
    },
    Mutation {
        name: "newer-generation-not-settled",
        bug: "a newer incarnation of a slot is served while requests of the older one have no outcome yet",
        rule: "R3",
        edits: &[Edit {
            file: HANDSHAKE,
            old: "if place.as_ref().is_some_and(SlotPlace::follows) {",
            new: "if place.as_ref().is_some_and(|place| place.follows() && false) {",
        }],
        tests: &[lib(Layer::Unit, "holdfast-front", &["tests::slots"])],
        smoke: false,
    },
    Mutation {
        name: "reply-to-the-wrong-request",
        bug: "the server answers with the cookie of another request",
        rule: "R3",
        edits: &[Edit {
            file: "crates/nbd/src/server/reply.rs",
            old: "        head.put_u32(error);
        head.put_u64(to.cookie);
",
            new: "        head.put_u32(error);
        head.put_u64(to.cookie ^ 1);
",
        }],
        tests: &[CLIENT],
        smoke: false,
    },
    Mutation {
        name: "half-a-read-is-a-read",
        bug: "the client accepts a read with missing pieces",
        rule: "R9",
        edits: &[Edit {
            file: "crates/nbd/src/client/transmission.rs",
            old: "None if request.is_read && request.covered != request.len => return",
            new: "None if request.is_read && request.covered > request.len => return",
        }],
        tests: &[CLIENT],
        smoke: false,
    },
    Mutation {
        name: "beyond-the-end",
        bug: "a request may access one sector beyond the end of its volume",
        rule: "R5",
        edits: &[Edit {
            file: "crates/nbd/src/server/request.rs",
            old: "is_none_or(|end| end > size)",
            new: "is_none_or(|end| end > size + SECTOR_BYTES)",
        }],
        tests: &[CLIENT],
        smoke: false,
    },
    Mutation {
        name: "replay-out-of-order",
        bug: "after a reconnect the youngest unanswered request is sent first",
        rule: "R4",
        edits: &[Edit {
            file: "crates/attach/src/machine/table.rs",
            old: "!held(number, entry)).map(|(number, _)| *number).collect()",
            new: "!held(number, entry)).map(|(number, _)| *number).rev().collect()",
        }],
        tests: &[REGISTERS],
        smoke: false,
    },
    Mutation {
        name: "overlapping-writes-in-flight",
        bug: "a write is sent while an overlapping one is unanswered: a replay may reverse their order",
        rule: "R4",
        edits: &[Edit {
            file: "crates/attach/src/machine/table.rs",
            old: "free = place.held.is_empty() && !place.overlaps(intake.offset, intake.end());",
            new: "free = place.held.is_empty();",
        }],
        tests: &[REGISTERS],
        smoke: false,
    },
    Mutation {
        name: "answer-of-an-older-connection",
        bug: "a late answer on an abandoned connection is accepted",
        rule: "R3",
        edits: &[Edit {
            file: "crates/attach/src/machine/state.rs",
            old: "        if incarnation != self.incarnation || !self.carries() {
            return;
        }
        if self.table.get_mut(number).is_none_or(|entry| entry.sent != Some(incarnation)) {
            return;
        }
        if matches!",
            new: "        if self.table.get_mut(number).is_none_or(|entry| entry.sent.is_none()) {
            return;
        }
        if matches!",
        }],
        tests: &[REGISTERS],
        smoke: false,
    },
    Mutation {
        name: "error-at-a-failover",
        bug: "a gateway that loses leadership answers with errors, which a file system takes for a broken disk",
        rule: "R8",
        edits: &[Edit {
            file: DEVICE,
            old: "            DeviceError::Fenced
        } else {
            DeviceError::Disconnect
        }
",
            new: "            DeviceError::Fenced
        } else {
            DeviceError::Fenced
        }
",
        }],
        tests: &[DEVICES, Test::Scenario("moves"), Test::Scenario("attach-failover")],
        smoke: false,
    },
    Mutation {
        name: "replaced-cluster-answers",
        bug: "a gateway whose set was recovered elsewhere continues to answer by an old read of the head",
        rule: "R6",
        edits: &[Edit {
            file: "crates/set/src/head/freshness.rs",
            old: "(counts(&self.ours) && within(&self.ours, reading.now, FRESH_FOR))",
            new: "self.ours.load(Ordering::Acquire) != 0",
        }],
        tests: &[lib(Layer::Property, "holdfast-set", &["head::freshness::"])],
        smoke: false,
    },
    Mutation {
        name: "drained-unanswered",
        bug: "a planned move closes connections with requests under way, as a failover does: each client has to send them again",
        rule: "R8",
        edits: &[Edit {
            file: "crates/front/src/conn.rs",
            old: "            self.incoming.close();\n        }\n",
            new: "            return Err(End::Closed);\n        }\n",
        }],
        tests: &[OF_SLOTS],
        smoke: false,
    },
    Mutation {
        name: "store-not-checked",
        bug: "a set is created in a store that ignores conditional PUTs: two generations of it would silently overwrite each other's heads",
        rule: "R6",
        edits: &[Edit {
            file: "crates/gateway/src/admin/member.rs",
            old: "        self.check_for_new_set(stores.urls(), GroupId(state.next_set)).await?;\n",
            new: "",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["admin::checks::"])],
        smoke: false,
    },
    Mutation {
        name: "verify-ends-at-a-leaf",
        bug: "verify stops at the first leaf that it cannot open: damage after it is found only when the data is read",
        rule: "R9",
        edits: &[Edit {
            file: "crates/set/src/verify/root.rs",
            old: "                Err(reason) => read.damaged.push((*leaf, self.leaf_damage(leaf, reason))),\n",
            new: "                Err(reason) => {
                    read.damaged.push((*leaf, self.leaf_damage(leaf, reason)));
                    return Ok(read);
                }
",
        }],
        tests: &[lib(Layer::Unit, "holdfast-set", &["verify::tests::"])],
        smoke: false,
    },
    Mutation {
        name: "another-volume-of-the-name",
        bug: "a device continues with a new volume that has the old one's name",
        rule: "R3",
        edits: &[Edit {
            file: "crates/attach/src/machine.rs",
            old: "|other: &&VolumeFacts| other.id == self.id;",
            new: "|other: &&VolumeFacts| other.name == self.name;",
        }],
        tests: &[lib(Layer::Unit, "holdfast-attach", &["machine::state::tests::a_device_goes_on"])],
        smoke: false,
    },
    Mutation {
        name: "unkept-lease-forgotten",
        bug: "a grant that could not be saved for the next process is never saved: that process uses a dead token, and its devices fail",
        rule: "R8",
        edits: &[Edit {
            file: "crates/attach/src/lease_file.rs",
            old: "self.behind.store(true, Ordering::Relaxed);",
            new: "self.behind.store(false, Ordering::Relaxed);",
        }],
        tests: &[lib(Layer::Unit, "holdfast-attach", &["lease_file::"])],
        smoke: false,
    },
    Mutation {
        name: "kernel-device-without-its-lease",
        bug: "a kernel device left by an earlier process is used for another owner",
        rule: "R6",
        edits: &[Edit {
            file: "crates/attach/src/device/kernel.rs",
            old: " && lease.owner == owner.to_string();",
            new: " && !owner.to_string().is_empty();",
        }],
        tests: &[lib(Layer::Unit, "holdfast-attach", &["device::kernel::"])],
        smoke: false,
    },
    Mutation {
        name: "any-certificate-is-let-in",
        bug: "a listener accepts any certificate of the cluster: a host can act as a gateway",
        rule: "R10",
        edits: &[Edit {
            file: "crates/tls/src/role.rs",
            old: "if roles.iter().any(|role| allowed.contains(role)) {",
            new: "if !roles.is_empty() {",
        }],
        tests: &[lib(Layer::Unit, "holdfast-tls", &["a_door_lets_in_who_has_the_role"])],
        smoke: false,
    },
    Mutation {
        name: "primary-before-a-write",
        bug: "PostgreSQL is shown as primary before a write was durable under its own start",
        rule: "AGENT-A5",
        edits: &[Edit {
            file: "crates/agent/src/machine/shown.rs",
            old: "            State::Primary => true,\n            State::Demoting",
            new: "            State::Primary | State::Starting(super::Rising::Writing(_)) => true,\n            State::Demoting",
        }],
        tests: &[AGENT],
        smoke: false,
    },
    Mutation {
        name: "lease-runs-out-under-postgresql",
        bug: "without a renewal PostgreSQL is stopped when the lease has ended, and not before",
        rule: "AGENT-A3",
        edits: &[Edit {
            file: "crates/agent/src/machine/shown.rs",
            old: "self.renewed().saturating_add(self.lease.ttl.saturating_sub(self.stop_margin()))",
            new: "self.renewed().saturating_add(self.lease.ttl)",
        }],
        tests: &[AGENT],
        smoke: false,
    },
    Mutation {
        name: "given-back-while-mounted",
        bug: "the lease is given back before the pool is exported",
        rule: "AGENT-A2",
        edits: &[Edit {
            file: "crates/agent/src/machine/step_down.rs",
            old: "            Step::Stop => Step::EndUsers,\n",
            new: "            Step::Stop => Step::Detach,\n",
        }],
        tests: &[AGENT],
        smoke: false,
    },
    Mutation {
        name: "replies-nobody-paid-for",
        bug: "replies of cheap requests are queued without a limit while the client does not read",
        rule: "R8",
        edits: &[Edit {
            file: "crates/front/src/budget.rs",
            old: "self.unpaid(sent, queued) < self.unpaid_max",
            new: "self.unpaid(sent, queued) < u64::MAX",
        }],
        tests: &[OF_SLOTS],
        smoke: false,
    },
    Mutation {
        name: "handshake-ends-before-the-exports",
        bug: "a client that shows all exports of a gateway with many is cut off after 256 options",
        rule: "R8",
        edits: &[Edit {
            file: "crates/nbd/src/server/handshake.rs",
            old: "pub const OPTIONS_MAX: u32 = OPTIONS_BESIDE + EXPORTS_LISTED_MAX as u32 * OPTIONS_PER_EXPORT;",
            new: "pub const OPTIONS_MAX: u32 = if EXPORTS_LISTED_MAX as u32 > OPTIONS_BESIDE * OPTIONS_PER_EXPORT { 256 } else { 64 };",
        }],
        tests: &[lib(Layer::Unit, "holdfast-nbd", &["a_client_may_ask_about_every_listed_export"])],
        smoke: false,
    },
    Mutation {
        name: "snapshot-under-its-volumes-name",
        bug: "a client that opens a snapshot again by the name that it was told gets the volume, which can be written",
        rule: "R4",
        edits: &[Edit {
            file: "crates/nbd/src/server/handshake.rs",
            old: "plain_name: name.path(),",
            new: "plain_name: format!(\"{}/{}\", name.set, name.volume),",
        }],
        tests: &[lib(Layer::Unit, "holdfast-nbd", &["a_snapshot_is_told_its_own_name"])],
        smoke: false,
    },
    Mutation {
        name: "info-and-go-differ",
        bug: "an export is described in one way before it is opened, and in another when it is",
        rule: "R8",
        edits: &[Edit {
            file: "crates/set/src/device.rs",
            old: "                epoch,\n                description: described(&set, false),",
            new: "                epoch,\n                description: String::new(),",
        }],
        tests: &[DEVICES],
        smoke: false,
    },
    Mutation {
        name: "unread-fence-is-none",
        bug: "a note that another life has taken the set, and that cannot be read, counts as none: the gateway serves it",
        rule: "R6",
        edits: &[Edit {
            file: "crates/set/src/head.rs",
            old: "            Err(error) => return Err(error),\n        };\n        holdfast_reached",
            new: "            Err(_) => HeadState::NotYet,\n        };\n        holdfast_reached",
        }],
        tests: &[lib(Layer::Unit, "holdfast-set", &["a_note_that_cannot_be_read_is_not_taken_for_none"])],
        smoke: false,
    },
    Mutation {
        name: "slow-set-delays-the-others",
        bug: "a set whose store hangs keeps every later set from starting",
        rule: "R8",
        edits: &[Edit {
            file: "crates/gateway/src/node/reconcile.rs",
            old: "starts.begin(*id, &stop, |stop| start_or_depart(order, stop)).await;",
            new: "start_or_depart(order, stop.child_token()).await;",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["a_set_whose_store_hangs_keeps_no_other_set_from_starting"])],
        smoke: false,
    },
    Mutation {
        name: "default-check-unanswered",
        bug: "the check that HAProxy makes if it is told nothing is refused by a gateway that can serve",
        rule: "R8",
        edits: &[Edit { file: "crates/gateway/src/http.rs", old: "        .route(\"/\", options(health))\n", new: "" }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["checks_of_load_balancers_get_their_status"])],
        smoke: false,
    },
    Mutation {
        name: "alive-only-while-it-serves",
        bug: "the check of the process alone fails while the gateway waits for others: it is started again for nothing",
        rule: "R8",
        edits: &[Edit {
            file: "crates/gateway/src/http.rs",
            old: "\"/livez\", get(alive).options(alive)",
            new: "\"/livez\", get(health).options(alive)",
        }],
        tests: &[lib(Layer::Unit, "holdfast-gateway", &["checks_of_load_balancers_get_their_status"])],
        smoke: false,
    },
    Mutation {
        name: "handshake-time-for-all-options",
        bug: "all options of a handshake together have the time of one: a client that shows many exports is cut off",
        rule: "R8",
        edits: &[Edit {
            file: HANDSHAKE,
            old: "options = handshake.options();\n            progress.asked();\n",
            new: "options = handshake.options();\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-front", &["options_that_go_on_keep_a_handshake_open"])],
        smoke: false,
    },
];
