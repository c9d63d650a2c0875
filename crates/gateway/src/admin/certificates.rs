//! Calls about certificates: which are in use, which count no more (ADR 0049).

use super::AdminDoor;
use super::member::invalid;
use crate::node::{Adopted, bearer, revoked_list};
use holdfast_api::{Refusal, RefusalCode, v1};
use holdfast_control::cluster::{Bearer, ClusterCommand, ClusterState, Revocation, RevokedBy};
use holdfast_host::unix_ms;
use holdfast_tls::{Caller, Revoked, serial_of};
use holdfast_types::Term;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const DAY_SECONDS: i64 = 24 * 3600;

/// Whole days until then, below zero once it is past.
fn days_left(ends: u64, now: SystemTime) -> i64 {
    let now = now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    let signed = |seconds: u64| i64::try_from(seconds).unwrap_or(i64::MAX);
    signed(ends).saturating_sub(signed(now)).div_euclid(DAY_SECONDS)
}

fn what(serial: &str, name: &str) -> Result<RevokedBy, Refusal> {
    match (serial, name) {
        ("", "") => Err(invalid("found neither a serial number nor a name, expected one of them")),
        (serial, "") => serial_of(serial).map(RevokedBy::Serial).map_err(invalid),
        ("", name) => Ok(RevokedBy::Name(name.to_string())),
        _ => Err(invalid("found a serial number and a name, expected one of them")),
    }
}

/// The gateways of this cluster.
struct InUse {
    /// Those that answer, with their certificate; an empty one where there is none.
    answer: Vec<(String, Bearer)>,
    /// Those that do not: their certificates are not known.
    silent: Vec<String>,
}

/// What speaks against a revocation that may shut out gateways that do not answer.
fn doubt(what: &RevokedBy, in_use: &InUse) -> Option<String> {
    let (answer, silent) = (in_use.answer.len(), in_use.silent.join(", "));
    if let RevokedBy::Name(name) = what
        && in_use.silent.contains(name)
    {
        return Some(format!(
            "{what} is that of a gateway that does not answer, and may be that of its certificate; --force revokes it nevertheless"
        ));
    }
    (answer <= in_use.silent.len()).then(|| {
        format!(
            "{silent} do not answer, and {answer} gateways are no majority: {what} may be that of certificates in use there. \
             Ask again; --force revokes it nevertheless"
        )
    })
}

/// What speaks against a revocation that shuts gateways of this cluster out.
fn objection(what: &RevokedBy, in_use: &InUse, force: bool) -> Option<String> {
    let members = in_use.answer.len() + in_use.silent.len();
    let hit = |(_, own): &&(String, Bearer)| what.covers(own);
    let names: Vec<&str> = in_use.answer.iter().filter(hit).map(|(name, _)| name.as_str()).collect();
    if names.is_empty() {
        return doubt(what, in_use).filter(|_| !force);
    }
    let names_text = names.join(", ");
    let left = in_use.answer.len() - names.len();
    if left * 2 <= members {
        return Some(format!(
            "{what} is that of the certificate in use at {names_text}: of {members} gateways {left} would be left, which is no majority. \
             Give these gateways other certificates first"
        ));
    }
    (!force).then(|| {
        format!(
            "{what} is that of the certificate in use at {names_text}: no other gateway would talk to it. \
             Give it another certificate first, or remove the gateway; --force revokes it nevertheless"
        )
    })
}

impl AdminDoor {
    /// The certificate of this gateway.
    pub(super) fn node_certificate(&self) -> Option<v1::NodeCertificate> {
        let tls = self.node.tls.as_ref()?;
        let (shown, expiry) = (tls.shown(), tls.expiry());
        Some(v1::NodeCertificate {
            name: shown.name,
            serial: shown.serial,
            names: shown.names,
            issuer: shown.issuer,
            expires_unix: expiry.own.unwrap_or_default(),
            days_left: expiry.own.map(|ends| days_left(ends, SystemTime::now())),
            authority_expires_unix: expiry.authority.unwrap_or_default(),
            trouble: tls.trouble().unwrap_or_default(),
            expires_soon: Some(expiry.is_soon(SystemTime::now())),
        })
    }

    /// The gateways, and what is known of their certificates.
    async fn in_use(&self) -> Result<InUse, Refusal> {
        let status = self.cluster_status(v1::ClusterStatusRequest {}).await?;
        let mut found = InUse { answer: Vec::new(), silent: Vec::new() };
        for member in status.members {
            let Some(node) = member.node else {
                found.silent.push(member.member.unwrap_or_default().name);
                continue;
            };
            let own = node.certificate.unwrap_or_default();
            found.answer.push((node.name, Bearer { name: own.name, serial: own.serial }));
        }
        Ok(found)
    }

    pub(super) async fn list_certificates(
        &self,
        _: v1::ListCertificatesRequest,
    ) -> Result<v1::CertificatesReply, Refusal> {
        let status = self.cluster_status(v1::ClusterStatusRequest {}).await?;
        let gateways = status.members.into_iter().map(|member| {
            let known = member.member.unwrap_or_default();
            let certificate = member.node.and_then(|node| node.certificate);
            v1::GatewayCertificate { member: known.id, name: known.name, certificate, error: member.error }
        });
        let gateways = gateways.collect();
        Ok(v1::CertificatesReply { gateways, revoked: self.node.cluster.read(revoked_messages) })
    }

    pub(super) async fn revoke_certificate(
        &self,
        request: v1::RevokeCertificateRequest,
        caller: Option<Caller>,
    ) -> Result<v1::RevokedReply, Refusal> {
        let what = what(&request.serial, &request.name)?;
        let Some(caller) = caller else {
            let message =
                "found a caller without a certificate, expected an administrator's: that one stays valid (CLUSTER-C5)";
            return Err(Refusal::new(RefusalCode::Precondition, message));
        };
        let by = bearer(caller.identity());
        // One after the other: together they could leave no majority.
        let (force, reason) = (request.force, request.reason);
        let command = ClusterCommand::Revoke { what: what.clone(), by, at_unix_ms: unix_ms(), reason };
        let revoke = move |door: Self, adopted, term| async move {
            door.revoke_alone(&what, &command, force, &adopted, term).await
        };
        self.alone(&self.node.turns.members, revoke).await
    }

    async fn revoke_alone(
        &self,
        what: &RevokedBy,
        command: &ClusterCommand,
        force: bool,
        adopted: &Adopted,
        term: Term,
    ) -> Result<v1::RevokedReply, Refusal> {
        let in_use = self.in_use().await?;
        if let Some(why) = objection(what, &in_use, force) {
            return Err(Refusal::new(RefusalCode::Precondition, why));
        }
        let done = self.node.cluster.command_in(&adopted.group, Some(term), command).await;
        done.map_err(|error| self.of_cluster(&adopted.group, &error))?;
        tracing::warn!(%what, "certificates revoked");
        Ok(v1::RevokedReply { revoked: self.node.cluster.read(revoked_messages) })
    }

    pub(super) async fn unrevoke_certificate(
        &self,
        request: v1::UnrevokeCertificateRequest,
    ) -> Result<v1::RevokedReply, Refusal> {
        let adopted = self.led_cluster()?;
        let what = what(&request.serial, &request.name)?;
        let command = ClusterCommand::Unrevoke { what: what.clone() };
        let done = self.node.cluster.command(&adopted.group, &command).await;
        done.map_err(|error| self.of_cluster(&adopted.group, &error))?;
        tracing::warn!(%what, "certificate revocation removed");
        Ok(v1::RevokedReply { revoked: self.node.cluster.read(revoked_messages) })
    }
}

impl AdminDoor {
    pub(super) async fn list_revoked(&self, request: v1::ListRevokedRequest) -> Result<v1::ListRevokedReply, Refusal> {
        // Whoever has no state yet does not know, which is not the same as an empty list (REVOKE-V3).
        self.adopted()?;
        if self.node.cluster.read(|state| state.cluster_id) == 0 {
            return Err(Refusal::new(
                RefusalCode::Busy,
                "this gateway has not applied the cluster's state yet: ask again",
            ));
        }
        Ok(listed(self.node.cluster.read(revoked_list), &request.known))
    }
}

/// The list for somebody who may know it already.
fn listed(list: Revoked, known: &str) -> v1::ListRevokedReply {
    let digest = list.digest();
    if digest == known {
        return v1::ListRevokedReply { digest, ..Default::default() };
    }
    let (serials, names) = (list.serials.into_iter().collect(), list.names.into_iter().collect());
    v1::ListRevokedReply { digest, serials, names }
}

fn revoked_messages(state: &ClusterState) -> Vec<v1::RevokedCertificate> {
    let message = |(what, known): (&RevokedBy, &Revocation)| {
        let (serial, name) = match what {
            RevokedBy::Serial(serial) => (serial.clone(), String::new()),
            RevokedBy::Name(name) => (String::new(), name.clone()),
        };
        let (at_unix_ms, by, reason) = (known.at_unix_ms, known.by.clone(), known.reason.clone());
        v1::RevokedCertificate { serial, name, at_unix_ms, by, reason }
    };
    state.revoked.iter().map(message).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_whole_ones_and_end_below_zero() {
        let at = |seconds: u64| UNIX_EPOCH + Duration::from_secs(seconds);
        let day = 24 * 3600;
        assert_eq!(days_left(30 * day, at(0)), 30);
        assert_eq!(days_left(30 * day, at(1)), 29);
        assert_eq!(days_left(30 * day, at(30 * day)), 0);
        assert_eq!(days_left(30 * day, at(30 * day + 1)), -1);
    }

    #[test]
    fn a_revocation_names_one_certificate_or_all_of_a_name() {
        assert_eq!(what("serial=0A:ff", "").ok(), Some(RevokedBy::Serial("0aff".to_string())));
        assert_eq!(what("", "db1").ok(), Some(RevokedBy::Name("db1".to_string())));
        for (serial, name) in [("", ""), ("0a", "db1"), ("x", "")] {
            assert_eq!(what(serial, name).expect_err("neither").code, RefusalCode::Invalid);
        }
    }

    #[test]
    fn a_list_is_told_whole_and_once() {
        let list = Revoked { names: ["ann".to_string()].into(), ..Revoked::default() };
        let none = Revoked::default().digest();
        for known in ["", "other", none.as_str()] {
            let told = listed(list.clone(), known);
            assert_eq!((told.names, told.serials, told.digest), (vec!["ann".to_string()], vec![], list.digest()));
        }
        let again = listed(list.clone(), &list.digest());
        assert_eq!((again.names.len(), again.digest), (0, list.digest()));
        // It has a digest, too: an answer that is none is told apart.
        assert_ne!(listed(Revoked::default(), "").digest, "");
    }

    /// `answer` of g1, g2 and g3, each with its own certificate.
    fn gateways(answer: usize) -> InUse {
        let name = |n: usize| format!("g{n}");
        let own = |n: usize| (name(n), Bearer { name: name(n), serial: format!("0{n}") });
        InUse { answer: (1..=answer).map(own).collect(), silent: (answer + 1..=3).map(name).collect() }
    }

    /// The own gateways: none goes by mistake, and never a majority.
    #[test]
    fn a_gateway_is_not_shut_out_by_mistake_and_a_majority_never() {
        let (serial, name) = (RevokedBy::Serial("02".to_string()), RevokedBy::Name("g2".to_string()));
        for what in [&serial, &name] {
            let why = objection(what, &gateways(3), false).expect("it is in use");
            assert!(why.contains("in use at g2") && why.contains("--force"), "{why}");
            assert_eq!(objection(what, &gateways(3), true), None);
            // One of the three does not answer.
            let why = objection(what, &gateways(2), true).expect("no majority");
            assert!(why.contains("of 3 gateways 1 would be left"), "{why}");
        }
        assert_eq!(objection(&RevokedBy::Serial("04".to_string()), &gateways(2), false), None);
        let alone = InUse { silent: Vec::new(), ..gateways(1) };
        assert!(objection(&RevokedBy::Serial("01".to_string()), &alone, true).is_some(), "the only one");
    }

    /// What a gateway uses that does not answer in time is not known, and it is not taken for something else.
    #[test]
    fn a_gateway_that_does_not_answer_is_not_shut_out_by_mistake_either() {
        let (stolen, third) = (RevokedBy::Name("ann".to_string()), RevokedBy::Name("g3".to_string()));
        assert_eq!(objection(&stolen, &gateways(2), false), None, "a majority answers");
        let why = objection(&third, &gateways(2), false).expect("it may be the third one's");
        assert!(why.contains("does not answer") && why.contains("--force"), "{why}");
        let why = objection(&stolen, &gateways(1), false).expect("it may be that of a majority");
        assert!(why.contains("g2, g3 do not answer"), "{why}");
        for (what, answer) in [(&third, 2), (&stolen, 1)] {
            assert_eq!(objection(what, &gateways(answer), true), None);
        }
    }
}
