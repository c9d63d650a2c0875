//! The admin API: messages as a caller sends them, and as a gateway answers, and the texts in them.

use holdfast_api::v1;
use holdfast_api::{disk_from_text, host_port, name, owner, request_id, token};
use prost::Message;

fn again<M: Message + Default + PartialEq>(bytes: &[u8]) -> bool {
    let Ok(message) = M::decode(bytes) else { return false };
    let found = M::decode(&message.encode_to_vec()[..]);
    assert!(found.is_ok_and(|found| found == message), "encoded again, it is another");
    true
}

macro_rules! messages {
    ($($name:ident)*) => {
        /// Each message by its name.
        const MESSAGES: &[(&str, fn(&[u8]) -> bool)] = &[$((stringify!($name), again::<v1::$name>)),*];
    };
}

messages! {
    GetNodeRequest
    Node
    ListCertificatesRequest
    CertificatesReply
    RevokeCertificateRequest
    UnrevokeCertificateRequest
    ListRevokedRequest
    ListRevokedReply
    RevokedReply
    ChangePolicyRequest
    GetPlacingRequest
    Placing
    AdoptRequest
    InitClusterRequest
    InitClusterReply
    JoinMemberRequest
    JoinMemberReply
    RemoveMemberRequest
    RemoveMemberReply
    DrainMemberRequest
    DrainMemberReply
    UpdateMemberRequest
    UpdateMemberReply
    ClusterStatusRequest
    ClusterStatusReply
    CreateSetRequest
    CreateSetReply
    DeleteSetRequest
    DeleteSetReply
    CreateVolumeRequest
    CreateVolumeReply
    ChangeVolumeRequest
    ChangeVolumeReply
    GetSpaceRequest
    GetSpaceReply
    RestoreSetRequest
    RestoreSetReply
    ChangeStoresRequest
    ChangeStoresReply
    CheckpointSetRequest
    CheckpointSetReply
    ListSetsRequest
    ListSetsReply
    GetSetRequest
    SetStatus
    CreateSnapshotRequest
    CreateSnapshotReply
    ListSnapshotsRequest
    ListSnapshotsReply
    GetSnapshotTokenRequest
    GetSnapshotTokenReply
    DeleteSnapshotRequest
    DeleteSnapshotReply
    RollbackSnapshotRequest
    RollbackSnapshotReply
    DiffSnapshotsRequest
    DiffSnapshotsReply
    SetScheduleRequest
    SetScheduleReply
    AcquireLeaseRequest
    GrantReply
    ContinueLeaseRequest
    RenewLeaseRequest
    RenewLeaseReply
    ReleaseLeaseRequest
    ReleaseLeaseReply
    GetLeaseRequest
    GetLeaseReply
    SwitchoverRequest
    MoveReply
    FailoverRequest
    ListKeysRequest
    ListKeysReply
    RotateClusterKeyRequest
    RotateDataKeyRequest
    RewrapNodeKeyRequest
    RewrapNodeKeyReply
    ScrubSetRequest
    Scrub
    PinSnapshotRequest
    PinSnapshotReply
    CloneSetRequest
    CloneSetReply
    ChangeLimitRequest
    ChangeLimitReply
    PlanDrainRequest
    DrainPlan
}

/// A text field of a request.
fn text(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    if let Ok(name) = name("set", text) {
        assert_eq!(name.as_str(), text);
    }
    if let Some((host, port)) = host_port(text) {
        assert!(text.starts_with(host) && text.ends_with(&port.to_string()), "{text}: {host} and {port}");
    }
    let ids = [request_id(text).is_ok(), token(text).is_ok(), disk_from_text("disk", text).is_ok()];
    ids.contains(&true) || name("set", text).is_ok() || owner(text).is_ok() || host_port(text).is_some()
}

/// The first byte chooses the message; the largest, a text.
pub(super) fn messages(data: &[u8]) -> bool {
    match data {
        [u8::MAX, bytes @ ..] => text(bytes),
        [kind, bytes @ ..] => MESSAGES[usize::from(*kind) % MESSAGES.len()].1(bytes),
        [] => false,
    }
}

fn seed<M: Message>(message: &str, value: &M) -> Option<Vec<u8>> {
    let kind = MESSAGES.iter().position(|(name, _)| *name == message)?;
    Some([&[u8::try_from(kind).ok()?][..], &value.encode_to_vec()].concat())
}

pub(super) fn all_messages() -> Vec<Vec<u8>> {
    let create = v1::CreateSetRequest { name: "tank".into(), ..v1::CreateSetRequest::default() };
    let node = v1::Node { member: 2, name: "g2".into(), ..v1::Node::default() };
    let acquire = v1::AcquireLeaseRequest { set: "tank".into(), owner: "db1".into(), ..Default::default() };
    let texts = ["tank", "db-1.example:7402", "000102030405060708090a0b0c0d0e0f"];
    let texts = texts.map(|text| [&[u8::MAX][..], text.as_bytes()].concat());
    let messages = [seed("CreateSetRequest", &create), seed("Node", &node), seed("AcquireLeaseRequest", &acquire)];
    messages.into_iter().flatten().chain(texts).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_is_a_message_here() {
        for method in holdfast_api::METHODS {
            let known = MESSAGES.iter().any(|(name, _)| *name == method.request);
            assert!(known, "{}: {} is not in the list of this file", method.name, method.request);
        }
        assert!(MESSAGES.len() < usize::from(u8::MAX));
    }
}
