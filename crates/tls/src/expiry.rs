//! When certificates expire.

use rustls_pki_types::{CertificateDer, UnixTime};
use std::time::{Duration, SystemTime};
use webpki::{EndEntityCert, Error, KeyUsage};

const DAY: u64 = 24 * 3600;

/// A certificate that expires within this time is warned of, in days.
const WARN_DAYS: u64 = 30;

/// When the certificates of a process expire, in seconds since 1970. `None`: no certificate can be read for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expiry {
    /// The first to expire of the process's certificate and what was sent along with it.
    pub own: Option<u64>,
    /// The last to expire of the authorities: until then there is one.
    pub authority: Option<u64>,
}

impl Expiry {
    pub(crate) fn of(own: &[CertificateDer<'_>], ca: &[CertificateDer<'_>]) -> Self {
        Self { own: own.iter().filter_map(not_after).min(), authority: ca.iter().filter_map(not_after).max() }
    }

    /// What is to be said, where less than 30 days are left at `now`.
    pub(crate) fn warnings(self, now: SystemTime) -> impl Iterator<Item = String> {
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let all = [("certificate", self.own), ("authority", self.authority)];
        all.into_iter().filter_map(move |(what, ends)| {
            let ends = ends?;
            match ends.checked_sub(now).map(|left| left / DAY) {
                None => Some(format!("the TLS {what} expired {} days ago", (now - ends) / DAY)),
                Some(days) if days < WARN_DAYS => Some(format!("the TLS {what} expires in {days} days")),
                Some(_) => None,
            }
        })
    }
}

/// The parser gives a certificate's time to nobody but in this error, which it finds before it looks for an issuer.
fn not_after(certificate: &CertificateDer<'_>) -> Option<u64> {
    let certificate = EndEntityCert::try_from(certificate).ok()?;
    let at_the_end = UnixTime::since_unix_epoch(Duration::MAX);
    let judged = certificate.verify_for_usage(&[], &[], &[], at_the_end, KeyUsage::client_auth(), None, None);
    match judged.err()? {
        Error::CertExpired { not_after, .. } => Some(not_after.as_secs()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_warned_of_thirty_days_ahead() {
        let expiry = Expiry { own: Some(100 * DAY), authority: None };
        let said = |expiry: Expiry, now: u64| {
            expiry.warnings(SystemTime::UNIX_EPOCH + Duration::from_secs(now)).collect::<Vec<_>>()
        };
        assert_eq!(said(expiry, 70 * DAY), Vec::<String>::new());
        assert_eq!(said(expiry, 70 * DAY + 1), ["the TLS certificate expires in 29 days"]);
        assert_eq!(said(expiry, 100 * DAY), ["the TLS certificate expires in 0 days"]);
        assert_eq!(said(expiry, 103 * DAY), ["the TLS certificate expired 3 days ago"]);
        let both = Expiry { authority: Some(99 * DAY), ..expiry };
        assert_eq!(said(both, 98 * DAY).len(), 2);
    }
}
