//! Debug forms of messages with a token, without it: a logged request must not contain the right to write.

use crate::v1;
use std::fmt;

/// Replacement for a token in logs; an empty token stays empty, to show that none was sent.
fn hidden(token: &str) -> &'static str {
    if token.is_empty() { "" } else { "***" }
}

impl fmt::Debug for v1::GrantReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("GrantReply");
        shown.field("lease", &self.lease).field("token", &hidden(&self.token)).field("volumes", &self.volumes);
        shown.field("cuts", &self.cuts).field("as_of", &self.as_of).finish()
    }
}

impl fmt::Debug for v1::ContinueLeaseRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("ContinueLeaseRequest");
        shown.field("set", &self.set).field("owner", &self.owner).field("token", &hidden(&self.token));
        shown.field("request_id", &self.request_id).field("locality", &self.locality).finish()
    }
}

impl fmt::Debug for v1::RenewLeaseRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("RenewLeaseRequest");
        shown.field("set", &self.set).field("epoch", &self.epoch).field("token", &hidden(&self.token)).finish()
    }
}

impl fmt::Debug for v1::ReleaseLeaseRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("ReleaseLeaseRequest");
        shown.field("set", &self.set).field("epoch", &self.epoch).field("token", &hidden(&self.token)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_debug_form_shows_a_token() {
        let token = "0123456789abcdef0123456789abcdef".to_string();
        let grant = v1::GrantReply { token: token.clone(), ..Default::default() };
        let shown = [
            format!("{:?}", v1::MoveReply { granted: Some(grant.clone()), ..Default::default() }),
            format!("{grant:?}"),
            format!("{:?}", v1::ContinueLeaseRequest { token: token.clone(), ..Default::default() }),
            format!("{:?}", v1::RenewLeaseRequest { token: token.clone(), ..Default::default() }),
            format!("{:?}", v1::ReleaseLeaseRequest { token: token.clone(), ..Default::default() }),
        ];
        for text in shown {
            assert!(!text.contains(&token) && text.contains("***"), "{text}");
        }
    }
}
