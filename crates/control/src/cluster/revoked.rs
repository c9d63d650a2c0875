//! Certificates that count no more (ADR 0049). Who has which certificate is not known here: only what was revoked.

use super::command::ClusterAnswer;
use super::refusal::ClusterRefusal;
use super::revocation::{Bearer, Revocation, RevokedBy};
use super::sets::check_length;
use super::state::ClusterState;

/// Most certificates and names that are revoked at a time.
pub const REVOKED_MAX: usize = 1024;
/// Most bytes of a serial number, a name or a reason.
pub const REVOKED_TEXT_BYTES_MAX: usize = 512;

impl ClusterState {
    /// Whether this certificate is revoked.
    pub fn is_revoked(&self, one: &Bearer) -> bool {
        self.revoked.keys().any(|what| what.covers(one))
    }

    /// CLUSTER-C5.
    pub(super) fn revoke(
        &mut self,
        what: &RevokedBy,
        by: &Bearer,
        at_unix_ms: u64,
        reason: &str,
    ) -> Result<ClusterAnswer, ClusterRefusal> {
        check_length("serial number or name", what.text().len(), REVOKED_TEXT_BYTES_MAX)?;
        check_length("name of the administrator", by.name.len(), REVOKED_TEXT_BYTES_MAX)?;
        if !reason.is_empty() {
            check_length("reason", reason.len(), REVOKED_TEXT_BYTES_MAX)?;
        }
        if self.is_revoked(by) {
            return Err(ClusterRefusal::RevokerRevoked { name: by.name.clone() });
        }
        if what.covers(by) {
            return Err(ClusterRefusal::OwnCertificate { what: what.to_string() });
        }
        if self.revoked.contains_key(what) {
            return Ok(ClusterAnswer::Revoked);
        }
        if self.revoked.len() >= REVOKED_MAX {
            return Err(ClusterRefusal::TooManyRevoked { max: REVOKED_MAX as u32 });
        }
        let revocation = Revocation { at_unix_ms, by: by.name.clone(), reason: reason.to_owned() };
        self.revoked.insert(what.clone(), revocation);
        Ok(ClusterAnswer::Revoked)
    }

    pub(super) fn unrevoke(&mut self, what: &RevokedBy) -> ClusterAnswer {
        self.revoked.remove(what);
        ClusterAnswer::Revoked
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ClusterAnswer, ClusterCommand, ClusterRefusal, ClusterState};
    use super::*;
    use holdfast_types::LogId;

    fn bearer(name: &str, serial: &str) -> Bearer {
        Bearer { name: name.to_owned(), serial: serial.to_owned() }
    }

    fn revoke(state: &mut ClusterState, what: RevokedBy, by: Bearer) -> ClusterAnswer {
        let command = ClusterCommand::Revoke { what, by, at_unix_ms: 7, reason: "lost".to_owned() };
        let answer = state.apply(LogId::new(1, 1), &command);
        state.self_check();
        answer
    }

    fn name(name: &str) -> RevokedBy {
        RevokedBy::Name(name.to_owned())
    }

    fn serial(serial: &str) -> RevokedBy {
        RevokedBy::Serial(serial.to_owned())
    }

    /// CLUSTER-C5: of two who revoke each other at the same moment, one is left.
    #[test]
    fn whoever_revokes_is_left_over() {
        let mut state = ClusterState::new();
        let (ann, bob) = (bearer("ann", "0a"), bearer("bob", "0b"));
        for own in [name("ann"), serial("0a")] {
            let refused = ClusterRefusal::OwnCertificate { what: own.to_string() };
            assert_eq!(revoke(&mut state, own, ann.clone()), ClusterAnswer::Refused(refused));
        }
        assert_eq!(revoke(&mut state, name("bob"), ann.clone()), ClusterAnswer::Revoked);
        let late = ClusterAnswer::Refused(ClusterRefusal::RevokerRevoked { name: "bob".to_owned() });
        assert_eq!(revoke(&mut state, name("ann"), bob.clone()), late);
        assert_eq!(revoke(&mut state, serial("0a"), bob.clone()), late);
        assert!(state.is_revoked(&bob) && !state.is_revoked(&ann));
        assert!(state.is_revoked(&bearer("bob", "0c")), "a name stands for all its certificates");
        // R12: again, and by somebody else.
        assert_eq!(revoke(&mut state, name("bob"), ann), ClusterAnswer::Revoked);
        assert_eq!(state.revoked.len(), 1);
        let unrevoke = ClusterCommand::Unrevoke { what: name("bob") };
        for _ in 0..2 {
            assert_eq!(state.apply(LogId::new(1, 2), &unrevoke), ClusterAnswer::Revoked);
        }
        assert!(!state.is_revoked(&bob));
    }

    #[test]
    fn the_list_and_its_texts_have_an_end() {
        let mut state = ClusterState::new();
        let ann = bearer("ann", "0a");
        for text in [String::new(), "x".repeat(REVOKED_TEXT_BYTES_MAX + 1)] {
            let answer = revoke(&mut state, RevokedBy::Name(text), ann.clone());
            assert!(matches!(answer, ClusterAnswer::Refused(ClusterRefusal::BadLength { .. })), "{answer:?}");
        }
        for number in 0..REVOKED_MAX {
            assert_eq!(revoke(&mut state, serial(&format!("{number:x}ff")), ann.clone()), ClusterAnswer::Revoked);
        }
        let full = ClusterAnswer::Refused(ClusterRefusal::TooManyRevoked { max: 1024 });
        assert_eq!(revoke(&mut state, name("one more"), ann.clone()), full);
        assert_eq!(revoke(&mut state, serial("0ff"), ann.clone()), ClusterAnswer::Revoked, "it is there");
        state.apply(LogId::new(1, 2), &ClusterCommand::Unrevoke { what: serial("0ff") });
        assert_eq!(revoke(&mut state, name("one more"), ann), ClusterAnswer::Revoked);
    }
}
