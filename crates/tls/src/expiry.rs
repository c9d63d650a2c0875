//! When certificates expire.

use rustls_pki_types::{CertificateDer, UnixTime};
use std::time::{Duration, SystemTime};
use tokio::time::Instant;
use webpki::{EndEntityCert, Error, KeyUsage};

const DAY: u64 = 24 * 3600;

const HOUR: u64 = 3600;

/// A certificate that expires within this time is warned of, or in this part of its life if that is shorter. Where
/// certificates live a day (step-ca), a program renews them when that part begins.
const WARN_AHEAD: u64 = 30 * DAY;
const WARN_PART: u64 = 3;

/// The log is quiet for this part of what is left.
const QUIET_PART: u64 = 4;

/// When the certificates of a process expire, in seconds since 1970. `None`: no certificate can be read for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expiry {
    /// Of the process's certificate and what is sent along with it: the first that is warned of. Of several that are
    /// warned of already, the first to expire.
    pub own: Option<u64>,
    /// From when on that is warned of.
    pub own_warned: Option<u64>,
    /// It is an authority between, not the certificate itself.
    pub own_is_between: bool,
    /// The last to expire of the authorities: until then there is one.
    pub authority: Option<u64>,
    /// From when on that is warned of.
    pub authority_warned: Option<u64>,
}

/// The life of a certificate, in seconds since 1970.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Life {
    ends: u64,
    warned: u64,
}

impl Life {
    fn new(begins: u64, ends: u64) -> Self {
        let ahead = WARN_AHEAD.min(ends.saturating_sub(begins) / WARN_PART);
        Self { ends, warned: ends - ahead }
    }

    /// The parser gives a certificate's times to nobody but in these errors, which it finds before it looks for an
    /// issuer.
    fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let certificate = EndEntityCert::try_from(certificate).ok()?;
        let judged = |at: Duration| {
            let at = UnixTime::since_unix_epoch(at);
            certificate.verify_for_usage(&[], &[], &[], at, KeyUsage::client_auth(), None, None).err()
        };
        let Error::CertExpired { not_after, .. } = judged(Duration::MAX)? else { return None };
        let begins = match judged(Duration::ZERO)? {
            Error::CertNotValidYet { not_before, .. } => not_before.as_secs(),
            _ => 0,
        };
        Some(Self::new(begins, not_after.as_secs()))
    }
}

/// The lives of a process's certificates.
#[derive(Clone)]
pub(crate) struct Lives {
    /// Of its certificate, and then of what is sent along with it. `None`: it cannot be read.
    own: Vec<Option<Life>>,
    /// The last to end of the authorities.
    authority: Option<Life>,
}

impl Lives {
    pub(crate) fn of(own: &[CertificateDer<'_>], ca: &[CertificateDer<'_>]) -> Self {
        Self { own: own.iter().map(Life::of).collect(), authority: ca.iter().filter_map(Life::of).max() }
    }

    /// The first end of the own ones: then all of them are still valid.
    pub(crate) fn first_end(&self) -> Option<u64> {
        self.own.iter().flatten().map(|life| life.ends).min()
    }

    /// As of `now`. An authority between that ends soon, beside a shorter certificate that is renewed in time, is told;
    /// it does not hide that certificate once that was not renewed.
    pub(crate) fn expiry(&self, now: SystemTime) -> Expiry {
        let now = unix(now);
        let all = || self.own.iter().enumerate().filter_map(|(at, life)| life.map(|life| (at, life)));
        let warned = all().filter(|(_, life)| now >= life.warned).min_by_key(|(_, life)| life.ends);
        let own = warned.or_else(|| all().min_by_key(|(_, life)| life.warned));
        Expiry {
            own: own.map(|(_, life)| life.ends),
            own_warned: own.map(|(_, life)| life.warned),
            own_is_between: own.is_some_and(|(at, _)| at > 0),
            authority: self.authority.map(|life| life.ends),
            authority_warned: self.authority.map(|life| life.warned),
        }
    }
}

impl Expiry {
    /// Whether the own certificate is to be warned of at `now`.
    pub fn is_soon(self, now: SystemTime) -> bool {
        self.own_warned.is_some_and(|warned| unix(now) >= warned)
    }

    /// What is to be said, of what ends soon at `now`.
    pub(crate) fn warnings(self, now: SystemTime) -> impl Iterator<Item = String> {
        let now = unix(now);
        let own = if self.own_is_between { "authority that comes with the certificate" } else { "certificate" };
        let own = (own, self.own, self.own_warned);
        let all = [own, ("authority", self.authority, self.authority_warned)];
        all.into_iter().filter_map(move |(what, ends, warned)| {
            let (ends, warned) = (ends?, warned?);
            match ends.checked_sub(now) {
                None => Some(format!("the TLS {what} expired {} ago", span(now - ends))),
                Some(left) if now >= warned => Some(format!("the TLS {what} expires in {}", span(left))),
                Some(_) => None,
            }
        })
    }

    /// How long nothing is said again after it was said at `now`: a quarter of what is left, from an hour to a day, but
    /// not beyond the end. What has expired is told each hour.
    fn quiet(self, now: SystemTime) -> Duration {
        let now = unix(now);
        let all = [(self.own, self.own_warned), (self.authority, self.authority_warned)];
        let pauses = all.into_iter().filter_map(|(ends, warned)| {
            let ends = ends.zip(warned).filter(|(_, warned)| now >= *warned)?.0;
            let left = ends.checked_sub(now);
            Some(left.map_or(HOUR, |left| (left / QUIET_PART).clamp(HOUR, DAY).min(left + 1)))
        });
        Duration::from_secs(pauses.min().unwrap_or(DAY))
    }
}

/// What a log has said of certificates that end soon, so that it does not say it at each look.
#[derive(Default)]
pub(crate) struct Reminder {
    /// Of what it was said, and until when it is not said again.
    quiet: Option<(Expiry, Instant)>,
}

impl Reminder {
    /// What is to be said at `now`, which is this instant. Another certificate is told of at once when its time comes.
    pub(crate) fn due(&mut self, expiry: Expiry, now: SystemTime, instant: Instant) -> Vec<String> {
        let all: Vec<String> = expiry.warnings(now).collect();
        if all.is_empty() || self.quiet.is_some_and(|(of, until)| of == expiry && instant < until) {
            return Vec::new();
        }
        self.quiet = Some((expiry, instant + expiry.quiet(now)));
        all
    }
}

fn unix(at: SystemTime) -> u64 {
    at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn span(seconds: u64) -> String {
    if seconds < 2 * DAY { format!("{} hours", seconds / HOUR) } else { format!("{} days", seconds / DAY) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_warned_of_thirty_days_ahead_or_in_their_last_third() {
        let of = |begins, ends| {
            let life = Life::new(begins, ends);
            Expiry { own: Some(life.ends), own_warned: Some(life.warned), ..Expiry::default() }
        };
        let expiry = of(0, 100 * DAY);
        let said = |expiry: Expiry, now: u64| {
            expiry.warnings(SystemTime::UNIX_EPOCH + Duration::from_secs(now)).collect::<Vec<_>>()
        };
        assert_eq!(said(expiry, 70 * DAY - 1), Vec::<String>::new());
        assert_eq!(said(expiry, 70 * DAY), ["the TLS certificate expires in 30 days"]);
        assert_eq!(said(expiry, 70 * DAY + 1), ["the TLS certificate expires in 29 days"]);
        assert_eq!(said(expiry, 100 * DAY), ["the TLS certificate expires in 0 hours"]);
        assert_eq!(said(expiry, 103 * DAY), ["the TLS certificate expired 3 days ago"]);
        let both = Expiry { authority: Some(99 * DAY), authority_warned: Some(69 * DAY), ..expiry };
        assert_eq!(said(both, 98 * DAY).len(), 2);
        // A day, as step-ca's: most of its life nobody has to hear of it.
        let short = of(100 * DAY, 101 * DAY);
        assert_eq!(said(short, 100 * DAY + 15 * HOUR), Vec::<String>::new());
        assert!(!short.is_soon(SystemTime::UNIX_EPOCH + Duration::from_secs(100 * DAY)));
        assert_eq!(said(short, 100 * DAY + 17 * HOUR), ["the TLS certificate expires in 7 hours"]);
    }

    /// The minutes in which something is said while two looks are a minute apart, and what.
    fn minutes(
        reminder: &mut Reminder,
        expiry: Expiry,
        all: std::ops::Range<u64>,
        start: Instant,
    ) -> Vec<(u64, String)> {
        let said = all.flat_map(|minute| {
            let since = Duration::from_secs(minute * 60);
            let said = reminder.due(expiry, SystemTime::UNIX_EPOCH + since, start + since);
            said.into_iter().map(move |why| (minute, why))
        });
        said.collect()
    }

    #[test]
    fn the_log_speaks_more_often_near_the_end_and_at_it() {
        let of = |begins, ends| {
            let life = Life::new(begins, ends);
            Expiry { own: Some(life.ends), own_warned: Some(life.warned), ..Expiry::default() }
        };
        let (mut reminder, start) = (Reminder::default(), Instant::now());
        // A day, as step-ca's.
        let said = minutes(&mut reminder, of(0, DAY), 0..26 * 60, start);
        assert_eq!(said[0], (16 * 60, "the TLS certificate expires in 8 hours".to_string()));
        let expired: Vec<u64> =
            said.iter().filter(|(_, why)| why.contains("expired")).map(|(minute, _)| *minute).collect();
        assert_eq!(expired, [24 * 60 + 1, 25 * 60 + 1]);
        assert!(said.len() < 12, "{said:?}");
        // Where there is time, once a day.
        let (first, last) = (70 * 24 * 60, 79 * 24 * 60);
        let mut reminder = Reminder::default();
        let said = minutes(&mut reminder, of(0, 100 * DAY), first - 60..last + 1, start);
        assert_eq!((said[0].0, said.len()), (first, 10));
        // It was renewed, by one that comes near its end within a day.
        let said = minutes(&mut reminder, of(79 * DAY, 79 * DAY + 6 * HOUR), last + 1..last + 300, start);
        assert_eq!(said[0], (last + 240, "the TLS certificate expires in 2 hours".to_string()));
    }

    #[test]
    fn an_authority_between_that_ends_soon_is_told_beside_a_shorter_certificate() {
        let between = Life::new(0, 90 * DAY);
        let told = |begins: u64, now: u64| {
            let own = vec![Some(Life::new(begins, begins + DAY)), Some(between)];
            let (lives, now) = (Lives { own, authority: None }, SystemTime::UNIX_EPOCH + Duration::from_secs(now));
            assert_eq!(lives.first_end(), Some(begins + DAY));
            let expiry = lives.expiry(now);
            (expiry.own, expiry.is_soon(now), expiry.warnings(now).collect::<Vec<_>>())
        };
        let none = Vec::<String>::new();
        assert_eq!(told(10 * DAY, 10 * DAY), (Some(11 * DAY), false, none));
        let said = "the TLS authority that comes with the certificate expires in 10 days".to_string();
        assert_eq!(told(80 * DAY, 80 * DAY), (Some(90 * DAY), true, vec![said]));
        let said = "the TLS certificate expires in 7 hours".to_string();
        assert_eq!(told(80 * DAY, 80 * DAY + 17 * HOUR), (Some(81 * DAY), true, vec![said]), "it was not renewed");
    }

    #[test]
    fn both_ends_of_a_certificate_are_read() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut params = rcgen::CertificateParams::default();
        (params.not_before, params.not_after) = (at(20_000 * DAY).into(), at(20_001 * DAY).into());
        let made = params.self_signed(&key).expect("a certificate");
        let found = Lives::of(std::slice::from_ref(made.der()), &[]).expiry(at(0));
        assert_eq!((found.own, found.own_warned), (Some(20_001 * DAY), Some(20_001 * DAY - 8 * HOUR)));
        assert_eq!((found.authority, found.authority_warned), (None, None));
    }
}
