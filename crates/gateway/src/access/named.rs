//! What a request names: for the audit log, and for what depends on it who may make the call (ACCESS-A2).

use holdfast_api::v1;
use holdfast_api::v1::change_volume_request::Change;
use holdfast_tls::{Caller, Role};
use serde::Serialize;

/// Longest text of a request in the audit log, in characters: a request may be 4 MiB long.
const CHARS_MAX: usize = 256;

/// Most stores of a request in the audit log.
const STORES_MAX: usize = 8;

/// What ends the part of a URL that has the user info.
const PLAIN_END: &[&str] = &["/", "?", "#"];

/// Like `PLAIN_END`, in a query, where the URL is percent-encoded.
const ENCODED_END: &[&str] = &["%2f", "%3f", "%23", "/", "?", "#", "&"];

/// What a request names; empty where it names nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Named {
    /// The set's name; a restored one is named by its number.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub set: String,
    /// The volume's name, or its id.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub volume: String,
    /// The snapshot.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub snapshot: String,
    /// The clone that is made.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub clone: String,
    /// The gateway, by name or by number.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub gateway: String,
    /// Who is to hold the lease.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub owner: String,
    /// Stores that the set is put in, as its placement is written.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stores: Vec<String>,
    /// What is done to it, where the call alone does not say so.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub change: String,
    /// Whether what speaks against it is to be passed over.
    #[serde(skip_serializing_if = "is_false")]
    pub force: bool,
    /// Whether it destroys data of a volume.
    #[serde(skip)]
    pub destroys: bool,
    /// Whether its answer has a token, which opens a volume.
    #[serde(skip)]
    pub grants: bool,
    /// Whether it is the deletion of a set that nobody has checked yet.
    #[serde(skip)]
    pub unchecked: bool,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

impl Named {
    fn of_set(set: &str) -> Self {
        Self { set: set.to_string(), ..Self::default() }
    }

    fn of_gateway(gateway: String) -> Self {
        Self { gateway, ..Self::default() }
    }

    fn of_snapshot(set: &str, snapshot: &str) -> Self {
        Self { snapshot: snapshot.to_string(), ..Self::of_set(set) }
    }

    fn of_owner(set: &str, owner: &str) -> Self {
        Self { owner: owner.to_string(), ..Self::of_set(set) }
    }

    /// The same as a line of the audit log may have it: not too long, and without passwords.
    pub(crate) fn shortened(&self) -> Self {
        let short = |text: &String| -> String { text.chars().take(CHARS_MAX).collect() };
        Self {
            set: short(&self.set),
            volume: short(&self.volume),
            snapshot: short(&self.snapshot),
            clone: short(&self.clone),
            gateway: short(&self.gateway),
            owner: short(&self.owner),
            stores: self.stores.iter().take(STORES_MAX).map(|store| short(&masked(store))).collect(),
            change: short(&self.change),
            ..*self
        }
    }

    /// ACCESS-A2: whether a caller may make the call by this one of its roles.
    pub(crate) fn may(&self, role: Role, caller: &Caller) -> Result<(), String> {
        let whose = &caller.name;
        match role {
            Role::Viewer | Role::Admin => Ok(()),
            Role::Operator if self.destroys => Err(format!(
                "found role operator of certificate {whose}, expected admin: data of volume {} would be destroyed",
                self.volume
            )),
            Role::Operator if self.grants => Err(format!(
                "found role operator of certificate {whose}, expected admin: the answer would have a token for owner {}",
                self.owner
            )),
            Role::Operator => Ok(()),
            Role::Gateway if self.unchecked => Err(format!(
                "found role gateway of certificate {whose}, expected admin: the leader of set {} has not checked it",
                self.set
            )),
            Role::Gateway => Ok(()),
            Role::Host if !self.set.is_empty() && !caller.may_use(&self.set) => Err(format!(
                "found set {} in a call of host {whose}, expected one of {}: the sets in its certificate",
                self.set,
                caller.sets_text()
            )),
            Role::Host if !self.owner.is_empty() && !caller.may_own(&self.owner) => Err(format!(
                "found owner {} in a call of host {whose}, expected {}: the owners in its certificate",
                self.owner,
                caller.owners_text()
            )),
            Role::Host => Ok(()),
        }
    }
}

/// A store without the user info of its URLs: also of those in its query (`endpoint=`), which may be percent-encoded.
/// May mask more than that. Of a very long one only the beginning is left.
fn masked(store: &str) -> String {
    let store: String = store.chars().take(4 * CHARS_MAX).collect();
    // Of the same length: only ASCII changes.
    let lower = store.to_ascii_lowercase();
    let mut out = String::with_capacity(store.len());
    let mut at = 0;
    loop {
        let rest = &lower[at..];
        let plain = rest.find("//").map(|found| (found, found + 2, PLAIN_END));
        let encoded = rest.find("%2f%2f").map(|found| (found, found + 6, ENCODED_END));
        let Some((_, begin, ends)) = plain.into_iter().chain(encoded).min_by_key(|(found, ..)| *found) else {
            out.push_str(&store[at..]);
            return out;
        };
        out.push_str(&store[at..at + begin]);
        at += begin;
        let place = &lower[at..];
        let end = ends.iter().filter_map(|&end| place.find(end)).min().unwrap_or(place.len());
        let user = ["@", "%40"].iter().filter_map(|&sign| place[..end].rfind(sign)).max();
        if let Some(user) = user {
            out.push_str("***");
            at += user;
        }
    }
}

/// What becomes of a volume.
fn change_of(change: Option<&Change>) -> String {
    match change {
        Some(Change::Grow(to)) => format!("grow to {}", to.size_bytes),
        Some(Change::Shrink(to)) if to.discard_data => format!("shrink to {}, discard data", to.size_bytes),
        Some(Change::Shrink(to)) => format!("shrink to {}", to.size_bytes),
        Some(Change::Rename(to)) => format!("rename {} to {}", to.from, to.to),
        Some(Change::Delete(volume)) => format!("delete {}", volume.name),
        None => String::new(),
    }
}

/// What clients are to be limited to.
fn limit_of(limit: Option<&v1::Limit>) -> String {
    let none = v1::Limit::default();
    let v1::Limit { iops, bytes_per_second, burst_ms } = limit.unwrap_or(&none);
    format!("limit {iops} IOPS, {bytes_per_second} bytes/s, burst {burst_ms} ms")
}

/// What is revoked, or no more.
fn revoked_text(serial: &str, name: &str) -> String {
    if name.is_empty() { format!("serial number {serial}") } else { format!("name {name}") }
}

/// What a set is to ask of its voters.
fn policy_of(policy: &v1::Policy) -> String {
    let v1::Policy { survive, voters, home, forbidden_regions } = policy;
    format!("survive {survive:?}, voters {voters}, home {home:?}, not in {forbidden_regions:?}")
}

/// A request that says what it names.
pub(crate) trait Names {
    fn named(&self) -> Named;
}

macro_rules! names {
    ($($request:ident($message:ident) => $named:expr;)*) => {
        $(impl Names for v1::$request {
            fn named(&self) -> Named {
                let $message = self;
                $named
            }
        })*
    };
}

names! {
    GetNodeRequest(_m) => Named::default();
    AdoptRequest(m) => Named::of_gateway(m.member.to_string());
    InitClusterRequest(_m) => Named::default();
    JoinMemberRequest(m) => Named::of_gateway(m.gateway.as_ref().map(|new| new.name.clone()).unwrap_or_default());
    RemoveMemberRequest(m) => Named { force: m.force, ..Named::of_gateway(m.member.to_string()) };
    DrainMemberRequest(m) => Named {
        change: if m.drained { "drain" } else { "undrain" }.to_string(),
        force: m.force,
        ..Named::of_gateway(m.member.to_string())
    };
    PlanDrainRequest(m) => Named { force: m.force, ..Named::of_gateway(m.member.to_string()) };
    UpdateMemberRequest(m) => Named {
        // Voters of sets follow from where a gateway stands.
        change: m.gateway.as_ref().map(|now| format!("locality {}", now.locality)).unwrap_or_default(),
        ..Named::of_gateway(m.member.to_string())
    };
    ClusterStatusRequest(_m) => Named::default();
    CreateSetRequest(m) => Named {
        stores: vec![m.store.clone()],
        change: m.policy.as_ref().map(policy_of).unwrap_or_default(),
        ..Named::of_set(&m.name)
    };
    DeleteSetRequest(m) => Named {
        unchecked: !m.looked,
        change: if m.with_snapshots { "with snapshots" } else { "" }.to_string(),
        force: m.force,
        ..Named::of_set(&m.set)
    };
    CreateVolumeRequest(m) => Named { volume: m.name.clone(), ..Named::of_set(&m.set) };
    ChangeVolumeRequest(m) => Named {
        volume: m.volume.to_string(),
        change: change_of(m.change.as_ref()),
        force: m.force,
        destroys: !matches!(m.change, Some(Change::Grow(_) | Change::Rename(_))),
        ..Named::of_set(&m.set)
    };
    ChangeLimitRequest(m) => Named {
        volume: if m.volume == 0 { String::new() } else { m.volume.to_string() },
        change: limit_of(m.limit.as_ref()),
        ..Named::of_set(&m.set)
    };
    GetSpaceRequest(m) => Named::of_set(&m.set);
    RestoreSetRequest(m) => Named { stores: vec![m.store.clone()], ..Named::of_set(&m.set.to_string()) };
    ChangeStoresRequest(m) => Named { stores: m.stores.clone(), ..Named::of_set(&m.set) };
    CheckpointSetRequest(m) => Named::of_set(&m.set);
    ListSetsRequest(_m) => Named::default();
    GetSetRequest(m) => Named::of_set(&m.set);
    CreateSnapshotRequest(m) => Named::of_snapshot(&m.set, &m.name);
    ListSnapshotsRequest(m) => Named::of_set(&m.set);
    GetSnapshotTokenRequest(m) => Named::of_snapshot(&m.set, &m.name);
    DeleteSnapshotRequest(m) => Named::of_snapshot(&m.set, &m.name);
    RollbackSnapshotRequest(m) => Named { force: m.force, ..Named::of_snapshot(&m.set, &m.name) };
    DiffSnapshotsRequest(m) => Named::of_snapshot(&m.set, &m.later);
    SetScheduleRequest(m) => Named { change: m.schedule.clone(), ..Named::of_set(&m.set) };
    AcquireLeaseRequest(m) => Named { force: m.force, ..Named::of_owner(&m.set, &m.owner) };
    ContinueLeaseRequest(m) => Named::of_owner(&m.set, &m.owner);
    RenewLeaseRequest(m) => Named::of_set(&m.set);
    ReleaseLeaseRequest(m) => Named::of_set(&m.set);
    GetLeaseRequest(m) => Named::of_set(&m.set);
    SwitchoverRequest(m) => Named { gateway: m.to_gateway.clone(), ..Named::of_set(&m.set) };
    FailoverRequest(m) => Named {
        gateway: m.candidate.clone(),
        change: m.reason.clone(),
        grants: !m.owner.is_empty(),
        ..Named::of_owner(&m.set, &m.owner)
    };
    ListKeysRequest(_m) => Named::default();
    RotateClusterKeyRequest(_m) => Named::default();
    RotateDataKeyRequest(m) => Named::of_set(&m.set);
    RewrapNodeKeyRequest(_m) => Named::default();
    ScrubSetRequest(m) => Named::of_set(&m.set);
    PinSnapshotRequest(m) => Named { clone: m.clone_name.clone(), ..Named::of_snapshot(&m.set, &m.snapshot) };
    ChangePolicyRequest(m) => Named {
        change: m.policy.as_ref().map(policy_of).unwrap_or_default(),
        ..Named::of_set(&m.set)
    };
    GetPlacingRequest(m) => Named::of_set(&m.set);
    CloneSetRequest(m) => Named { clone: m.clone_name.clone(), ..Named::of_snapshot(&m.set, &m.snapshot) };
    ListCertificatesRequest(_m) => Named::default();
    RevokeCertificateRequest(m) => Named {
        change: format!("{} {}", revoked_text(&m.serial, &m.name), m.reason),
        force: m.force,
        ..Named::default()
    };
    UnrevokeCertificateRequest(m) => Named { change: revoked_text(&m.serial, &m.name), ..Named::default() };
    ListRevokedRequest(_m) => Named::default();
}
