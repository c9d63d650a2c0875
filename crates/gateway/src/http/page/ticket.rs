//! Tickets of forms: what a form brings back, so that it is known to be one of this process for this visitor (WEB-H6).

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt::Write as _;

/// How long a form may stay open, in seconds.
pub(super) const LIFE_S: u64 = 1800;

/// Hex digits of a ticket that say when it ends.
const END_CHARS: usize = 16;

/// Gives tickets and knows them again. Nothing is remembered for one that is given.
pub(super) struct Tickets {
    /// Of this process alone: no form is good at another gateway, or after a start.
    key: [u8; 32],
}

impl Default for Tickets {
    fn default() -> Self {
        Self { key: rand::random() }
    }
}

impl Tickets {
    /// For the form `id` that whoever has this certificate gets. `certificate` is its SHA-256, `now_s` a time of this
    /// process in seconds.
    pub(super) fn give(&self, certificate: &[u8; 32], id: &str, now_s: u64) -> String {
        let mut ticket = format!("{:016x}", now_s.saturating_add(LIFE_S));
        let mac = self.over(certificate, &ticket, id);
        for byte in mac.finalize().into_bytes() {
            let _ = write!(ticket, "{byte:02x}");
        }
        ticket
    }

    /// Whether `ticket` was given for this form and this certificate, and still counts. In constant time.
    ///
    /// # Errors
    /// What was found.
    pub(super) fn check(&self, certificate: &[u8; 32], id: &str, ticket: &str, now_s: u64) -> Result<(), &'static str> {
        let foreign = "a form that this gateway has not made for this certificate since its start";
        let (Some(end), Some(mac)) = (ticket.get(..END_CHARS), ticket.get(END_CHARS..)) else { return Err(foreign) };
        let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let bytes: Option<Vec<u8>> = mac.as_bytes().chunks(2).map(pair).collect();
        let is_ours = bytes.is_some_and(|bytes| {
            mac.len() == 2 * bytes.len() && self.over(certificate, end, id).verify_slice(&bytes).is_ok()
        });
        if !is_ours {
            return Err(foreign);
        }
        let ends_s = u64::from_str_radix(end, 16).unwrap_or(0);
        if now_s >= ends_s {
            return Err("a form that was open for more than half an hour");
        }
        Ok(())
    }

    /// The certificate and the end have one length each, so no other three are the same bytes.
    fn over(&self, certificate: &[u8; 32], end: &str, id: &str) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.key).expect("R10: HMAC-SHA256 refused a key");
        mac.update(certificate);
        mac.update(end.as_bytes());
        mac.update(id.as_bytes());
        mac
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANN: [u8; 32] = [7; 32];

    #[test]
    fn h6_a_ticket_is_for_one_certificate_one_form_and_a_time() {
        let tickets = Tickets::default();
        let ticket = tickets.give(&ANN, "f1", 100);
        for now_s in [100, 100 + LIFE_S - 1] {
            assert_eq!(tickets.check(&ANN, "f1", &ticket, now_s), Ok(()));
        }
        assert!(tickets.check(&ANN, "f1", &ticket, 100 + LIFE_S).is_err_and(|found| found.contains("half an hour")));
        assert!(tickets.check(&[8; 32], "f1", &ticket, 100).is_err(), "another certificate");
        assert!(tickets.check(&ANN, "f2", &ticket, 100).is_err(), "another form");
        assert!(Tickets::default().check(&ANN, "f1", &ticket, 100).is_err(), "another process");
        let longer = format!("{:016x}{}", 100 + 2 * LIFE_S, &ticket[END_CHARS..]);
        assert!(tickets.check(&ANN, "f1", &longer, 100).is_err(), "a later end");
    }

    #[test]
    fn h6_what_is_no_ticket_is_refused() {
        let tickets = Tickets::default();
        let ticket = tickets.give(&ANN, "f1", 100);
        let cut = &ticket[..ticket.len() - 2];
        let odd = &ticket[..ticket.len() - 1];
        for bad in ["", "0", &ticket[..END_CHARS], cut, odd, &format!("{ticket}00"), "\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}"] {
            assert!(tickets.check(&ANN, "f1", bad, 100).is_err(), "{bad:?}");
        }
    }
}
