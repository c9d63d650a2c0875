//! The table: each call, who may make it, and whether it is noted in the audit log (ACCESS-A1).
//!
//! | | role |
//! | --- | --- |
//! | `V` | viewer: looks, and gets no data of volumes |
//! | `O` | operator: runs what is there, and destroys nothing |
//! | `A` | admin: everything that a person may do |
//! | `H` | host: its own lease, on its own sets |
//! | `G` | gateway: what gateways ask each other at the admin door |
//!
//! `docs/operating/roles.md` is printed from it.

use holdfast_api::METHODS;
use holdfast_raft::PEER_METHODS;
use holdfast_tls::Role::{self, Admin as A, Gateway as G, Host as H, Operator as O, Viewer as V};

/// One call.
#[derive(Debug)]
pub(crate) struct Rule {
    /// Its name in the proto file.
    pub method: &'static str,
    /// Who may make it.
    pub roles: &'static [Role],
    /// Whether it leaves a line in the audit log.
    pub noted: bool,
    /// Whether hosts repeat it many times a second until a gateway carries it out.
    pub repeated: bool,
}

/// It changes nothing, or nothing that lasts.
const fn reads(method: &'static str, roles: &'static [Role]) -> Rule {
    Rule { method, roles, noted: false, repeated: false }
}

/// It changes something, or gives somebody access to data.
const fn changes(method: &'static str, roles: &'static [Role]) -> Rule {
    Rule { method, roles, noted: true, repeated: false }
}

/// The same, of a host that asks again and again until it is carried out (ACCESS-A3).
const fn repeats(method: &'static str, roles: &'static [Role]) -> Rule {
    Rule { method, roles, noted: true, repeated: true }
}

/// The admin API, in the order of `proto/admin.proto`.
pub(crate) const ADMIN: &[Rule] = &[
    reads("GetNode", &[V, O, A, H, G]),
    changes("Adopt", &[A]),
    changes("InitCluster", &[A]),
    changes("JoinMember", &[A]),
    changes("RemoveMember", &[A]),
    changes("DrainMember", &[O, A]),
    changes("UpdateMember", &[A]),
    reads("ClusterStatus", &[V, O, A, H, G]),
    changes("CreateSet", &[A]),
    changes("DeleteSet", &[A, G]),
    changes("CreateVolume", &[O, A]),
    changes("ChangeVolume", &[O, A]),
    reads("GetSpace", &[V, O, A]),
    changes("RestoreSet", &[A]),
    changes("ChangeStores", &[A]),
    // Asks for what happens every few seconds anyway, and is repeated until it has.
    reads("CheckpointSet", &[O, A]),
    reads("ListSets", &[V, O, A]),
    reads("GetSet", &[V, O, A, H]),
    changes("CreateSnapshot", &[O, A]),
    reads("ListSnapshots", &[V, O, A, H]),
    // Its token opens the data.
    changes("GetSnapshotToken", &[O, A, H]),
    changes("DeleteSnapshot", &[A]),
    changes("RollbackSnapshot", &[A]),
    reads("DiffSnapshots", &[V, O, A]),
    // A shorter one expires snapshots.
    changes("SetSchedule", &[A]),
    repeats("AcquireLease", &[O, A, H]),
    repeats("ContinueLease", &[O, A, H]),
    // Every host, every second. Its grant and its end are noted.
    reads("RenewLease", &[O, A, H]),
    repeats("ReleaseLease", &[O, A, H]),
    reads("GetLease", &[V, O, A, H]),
    changes("Switchover", &[O, A]),
    changes("Failover", &[O, A]),
    reads("ListKeys", &[V, O, A]),
    changes("RotateClusterKey", &[A]),
    changes("RotateDataKey", &[A]),
    changes("RewrapNodeKey", &[A, G]),
    changes("ScrubSet", &[O, A]),
    changes("PinSnapshot", &[A]),
    changes("CloneSet", &[A]),
    changes("ChangePolicy", &[A]),
    reads("GetPlacing", &[V, O, A]),
];

/// The protocol between gateways, in the order of `proto/peer.proto`.
pub(crate) const PEER: &[Rule] = &[
    reads("Append", &[G]),
    reads("Vote", &[G]),
    reads("Snapshot", &[G]),
    reads("Transfer", &[G]),
    reads("Readmit", &[G]),
    reads("Register", &[G]),
    reads("Roll", &[G]),
    reads("Denied", &[G]),
    reads("Ended", &[G]),
    reads("Placing", &[G]),
    reads("Leave", &[G]),
];

const fn same(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let (mut at, mut same) = (0, a.len() == b.len());
    while same && at < a.len() {
        same = a[at] == b[at];
        at += 1;
    }
    same
}

// ACCESS-A1.
const _: () = {
    assert!(ADMIN.len() == METHODS.len(), "each call of proto/admin.proto needs one line in ADMIN");
    let mut at = 0;
    while at < ADMIN.len() {
        assert!(same(ADMIN[at].method, METHODS[at].name), "ADMIN must be in the order of proto/admin.proto");
        at += 1;
    }
    assert!(PEER.len() == PEER_METHODS.len(), "each call of proto/peer.proto needs one line in PEER");
    let mut at = 0;
    while at < PEER.len() {
        assert!(same(PEER[at].method, PEER_METHODS[at]), "PEER must be in the order of proto/peer.proto");
        at += 1;
    }
};
