//! One set at its gateway: checks that are older than a wait, and facts that are not of one moment.

use crate::bug::{Edit, Layer, Mutation, lib};

const FOLLOW: &str = "crates/set/src/server/follow.rs";
const SPACE: &str = "crates/set/src/space.rs";

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "gate-asked-before-the-look",
        bug: "the gate is asked before a read waits for a look at the head: data is handed out that another gateway may have replaced meanwhile",
        rule: "R3",
        edits: &[Edit {
            file: "crates/set/src/device.rs",
            old: "            self.still_ours().await?;\n            match self.server().may_read() {\n",
            new: "            let allowed = self.server().may_read();\n            self.still_ours().await?;\n            match allowed {\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-set", &["device::tests::kept_back::r3_what_waited_for_a_look"])],
        smoke: false,
    },
    Mutation {
        name: "sweeps-what-the-head-names",
        bug: "a sweep retires a checkpoint that an earlier leader wrote into the head and did not report: a recovery would begin with it",
        rule: "R7",
        edits: &[Edit {
            file: SPACE,
            old: "since.elapsed() >= self.settings.sweep_interval && self.server.head.committed_in(term)",
            new: "since.elapsed() >= self.settings.sweep_interval",
        }],
        tests: &[lib(Layer::Unit, "holdfast-set", &["space::tests::r7_nothing_is_swept_before"])],
        smoke: false,
    },
    Mutation {
        name: "sweeps-what-another-life-wrote",
        bug: "a leader whose set was recovered elsewhere takes what the next life writes for orphans, and deletes it",
        rule: "R7",
        edits: &[Edit {
            file: SPACE,
            old: "if !found.is_empty() && !self.server.head.still_ours().await {",
            new: "if found.len() == usize::MAX {",
        }],
        tests: &[lib(Layer::Unit, "holdfast-set", &["space::tests::r7_nothing_is_swept_that_another_life"])],
        smoke: false,
    },
    Mutation {
        name: "list-ended-over-an-uncompared-head",
        bug: "a change of stores ends over a head that another gateway wrote during the comparison: its objects are not looked for in the new stores",
        rule: "MOVE-V3",
        edits: &[Edit {
            file: "crates/set/src/store_migration.rs",
            old: "        match several.end_list(set, &head.version).await {",
            new: "        let head = several.get_object(&keys::head(set)).await?;\n        match several.end_list(set, &head.version).await {",
        }],
        tests: &[lib(Layer::Unit, "holdfast-set", &["store_migration::tests::v3_"])],
        smoke: false,
    },
    // Found by a race of two threads, of which many rounds are run.
    Mutation {
        name: "root-older-than-its-pieces",
        bug: "a checkpoint that ends while a read looks up its pieces sends the read to the root before: it shows what was there before the last write",
        rule: "R3",
        edits: &[Edit {
            file: "crates/set/src/host.rs",
            old: "        let inner = self.inner();
        let root = inner.machine.state().checkpoint.as_ref().map(|c| c.root);
        (inner.machine.lookup(volume, lba, sectors), root)
",
            new: "        let root = self.root();
        (self.inner().machine.lookup(volume, lba, sectors), root)
",
        }],
        tests: &[lib(Layer::Unit, "holdfast-set", &["host::tests::r3_"])],
        smoke: false,
    },
    Mutation {
        name: "sleep-counts-against-the-owner",
        bug: "time in which the leader slept counts against the owner: another host gets the lease of a healthy one",
        rule: "SET-S4",
        edits: &[Edit {
            file: FOLLOW,
            old: "        self.expiry.locked().judge.clock_suspected(boot_now(), lost);\n",
            new: "        let _ = lost;\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-set", &["server::expiry::tests::time_in_which_the_leader_slept"])],
        smoke: false,
    },
    Mutation {
        name: "idle-device-is-taken-over",
        bug: "a plain lease is judged by its time although a client is connected: an idle device is given to another host",
        rule: "SET-S4",
        edits: &[Edit {
            file: "crates/set/src/server.rs",
            old: "        if self.held_by_connections(&lease) {\n            return None;\n        }\n",
            new: "        if self.held_by_connections(&lease) && lease.ttl_ms == 0 {\n            return None;\n        }\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-set", &["server::expiry::tests::a_plain_lease_with_a_connection"])],
        smoke: false,
    },
];
