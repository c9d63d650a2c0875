//! The table: each call, who may make it, and whether it is noted in the audit log (ACCESS-A1).
//!
//! | | role |
//! | --- | --- |
//! | `V` | viewer: looks, and gets no data of volumes |
//! | `O` | operator: runs what is there, destroys nothing, and gets no token for data |
//! | `A` | admin: everything that a person may do |
//! | `H` | host: its own lease, on its own sets |
//! | `G` | gateway: what gateways ask each other at the admin door |
//!
//! And what it may take ([`Bounds`]). `docs/operating/roles.md` is printed from it.

use super::bounds::Bounds;
use holdfast_api::METHODS;
use holdfast_control::serve::{RTT_MAX, Timing};
use holdfast_raft::{PEER_METHODS, snapshot_time};
use holdfast_tls::Caller;
use holdfast_tls::Role::{self, Admin as A, Gateway as G, Host as H, Operator as O, Viewer as V};
use holdfast_types::limits::{PEER_MESSAGE_BYTES_MAX, PEER_SNAPSHOT_BYTES_MAX};
use std::time::Duration;

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
    /// Whether its success shows that its caller is a member of the cluster or has a lease (DOOR-D5).
    pub proves: bool,
    /// What it may take.
    pub bounds: Bounds,
}

impl Rule {
    const fn within(mut self, bounds: Bounds) -> Self {
        self.bounds = bounds;
        self
    }

    const fn proves(mut self) -> Self {
        self.proves = true;
        self
    }
}

/// It names a set and little else, and is answered from memory. After a takeover all hosts ask at once.
const SHORT: Bounds = Bounds { at_once: 256, bytes: 8 << 10, deadline: Duration::from_secs(30) };
/// It waits for a quorum, a store or other gateways.
const WORK: Bounds = Bounds { at_once: 32, bytes: 64 << 10, deadline: Duration::from_secs(120) };
/// It waits for all that a store has not got yet, or for elections over a long way.
const LONG: Bounds = Bounds { deadline: Duration::from_secs(720), ..WORK };
/// It reads much from a store.
const HEAVY: Bounds = Bounds { at_once: 4, ..WORK };
/// About one group, between gateways. There are more than a thousand.
const GROUP: Bounds = Bounds { at_once: 4096, bytes: 64 << 10, deadline: Duration::from_secs(30) };
/// With entries, if there is no append stream.
const APPEND: Bounds = Bounds { bytes: PEER_MESSAGE_BYTES_MAX, ..GROUP };
/// A group's state, with the envelopes of its pieces. Their bytes at a time are bounded where they are collected.
const STATE: Bounds =
    Bounds { bytes: PEER_SNAPSHOT_BYTES_MAX + (1 << 20), deadline: Duration::from_secs(360), ..GROUP };

// A sender on the slowest line gives up before its receiver does (PIECES-S3).
const _: () = {
    let sends = snapshot_time(Timing::from_rtt(RTT_MAX).election_max(), PEER_SNAPSHOT_BYTES_MAX);
    assert!(sends.as_millis() < STATE.deadline.as_millis());
};

/// Bytes of requests in the admin door at a time.
const ADMIN_BYTES_AT_ONCE: usize = 256 << 20;

/// It changes nothing, or nothing that lasts.
const fn reads(method: &'static str, roles: &'static [Role]) -> Rule {
    Rule { method, roles, noted: false, repeated: false, proves: false, bounds: SHORT }
}

/// It changes something, or gives somebody access to data.
const fn changes(method: &'static str, roles: &'static [Role]) -> Rule {
    Rule { noted: true, bounds: WORK, ..reads(method, roles) }
}

/// Like `changes`, of a host that asks again and again until it is carried out (ACCESS-A3).
const fn repeats(method: &'static str, roles: &'static [Role]) -> Rule {
    Rule { repeated: true, bounds: SHORT, ..changes(method, roles) }
}

/// Between gateways.
const fn peers(method: &'static str, bounds: Bounds) -> Rule {
    reads(method, &[G]).within(bounds).proves()
}

/// The admin API, in the order of `proto/admin.proto`.
pub(crate) const ADMIN: &[Rule] = &[
    reads("GetNode", &[V, O, A, H, G]),
    changes("Adopt", &[A]),
    changes("InitCluster", &[A]),
    changes("JoinMember", &[A]),
    changes("RemoveMember", &[A]),
    changes("DrainMember", &[O, A]),
    // Asks the other gateways.
    reads("PlanDrain", &[V, O, A]).within(WORK),
    changes("UpdateMember", &[A]),
    // Asks the other gateways.
    reads("ClusterStatus", &[V, O, A, H, G]).within(Bounds { bytes: SHORT.bytes, at_once: SHORT.at_once, ..WORK }),
    changes("CreateSet", &[A]),
    changes("DeleteSet", &[A, G]),
    changes("CreateVolume", &[O, A]),
    changes("ChangeVolume", &[O, A]),
    changes("ChangeLimit", &[O, A]),
    reads("GetSpace", &[V, O, A]).within(WORK),
    changes("RestoreSet", &[A]),
    changes("ChangeStores", &[A]),
    // Asks for what happens every few seconds anyway, and is repeated until it has.
    reads("CheckpointSet", &[O, A]).within(WORK),
    reads("ListSets", &[V, O, A]),
    reads("GetSet", &[V, O, A, H]),
    changes("CreateSnapshot", &[O, A]),
    reads("ListSnapshots", &[V, O, A, H]),
    // Its token opens the data.
    changes("GetSnapshotToken", &[A, H]),
    changes("DeleteSnapshot", &[A]),
    // If it were cut off, hosts could take the set again before it is rolled back.
    changes("RollbackSnapshot", &[A]).within(LONG),
    reads("DiffSnapshots", &[V, O, A]).within(HEAVY),
    // A shorter one expires snapshots.
    changes("SetSchedule", &[A]),
    repeats("AcquireLease", &[A, H]).proves(),
    repeats("ContinueLease", &[A, H]).proves(),
    // Every host, every second. Its grant and its end are noted.
    reads("RenewLease", &[A, H]).proves(),
    repeats("ReleaseLease", &[A, H]),
    reads("GetLease", &[V, O, A, H]),
    changes("Switchover", &[O, A]).within(LONG),
    changes("Failover", &[O, A]).within(LONG),
    reads("ListKeys", &[V, O, A]),
    changes("RotateClusterKey", &[A]),
    changes("RotateDataKey", &[A]),
    changes("RewrapNodeKey", &[A, G]),
    changes("ScrubSet", &[O, A]),
    changes("PinSnapshot", &[A]),
    changes("CloneSet", &[A]),
    reads("ListCertificates", &[V, O, A]),
    changes("RevokeCertificate", &[A]),
    changes("UnrevokeCertificate", &[A]),
    // Agents, standbys and attaches follow the list (REVOKE-V3).
    reads("ListRevoked", &[V, O, A, H]),
    changes("ChangePolicy", &[A]),
    reads("GetPlacing", &[V, O, A]),
];

/// The protocol between gateways, in the order of `proto/peer.proto`.
pub(crate) const PEER: &[Rule] = &[
    peers("Append", APPEND),
    peers("Vote", GROUP),
    peers("Snapshot", STATE),
    peers("Transfer", GROUP),
    peers("Readmit", GROUP),
    peers("Register", GROUP),
    peers("Roll", GROUP),
    peers("Denied", GROUP),
    peers("Ended", GROUP),
    peers("Placing", GROUP),
    peers("Leave", GROUP),
    peers("FollowTurn", GROUP),
    peers("Beats", GROUP),
];

/// Whether the table lets a caller make a call of the admin API. What the call names is looked at when it is made.
pub(crate) fn may_make(method: &str, caller: &Caller) -> bool {
    ADMIN.iter().any(|rule| rule.method == method && caller.has_one_of(rule.roles).is_ok())
}

const fn same(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let (mut at, mut same) = (0, a.len() == b.len());
    while same && at < a.len() {
        same = a[at] == b[at];
        at += 1;
    }
    same
}

// ACCESS-A5.
const _: () = {
    let (mut bytes, mut at) = (0, 0);
    while at < ADMIN.len() {
        bytes += ADMIN[at].bounds.bytes_at_once();
        at += 1;
    }
    assert!(bytes <= ADMIN_BYTES_AT_ONCE, "all requests that the admin door takes at a time are too long together");
};

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
