//! Kinds of trouble with a store.

/// Kind of trouble. The names are shown, and used as metric labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// It asks for fewer requests (503 SlowDown, 429).
    Throttled,
    /// No connection can be made.
    Unreachable,
    /// No answer in time.
    NoAnswer,
    /// The connection broke, or a body ended early.
    Broken,
    /// It reports an internal error (5xx).
    Failing,
    /// No space, or the quota is used up.
    Full,
    /// Missing rights.
    Denied,
    /// Keys that are unknown, wrong, or expired.
    Credentials,
    /// Its clock and ours differ too much for signatures.
    Clock,
    /// Its TLS certificate is not trusted.
    Certificate,
    /// The bucket does not exist.
    BucketMissing,
    /// It does not support something that we rely on.
    Unsupported,
    /// An object is missing that must be there.
    Missing,
    /// An object differs from what was written.
    Damaged,
}

impl Kind {
    /// For people, JSON and labels.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Throttled => "throttled",
            Kind::Unreachable => "unreachable",
            Kind::NoAnswer => "no-answer",
            Kind::Broken => "broken",
            Kind::Failing => "failing",
            Kind::Full => "full",
            Kind::Denied => "denied",
            Kind::Credentials => "credentials",
            Kind::Clock => "clock",
            Kind::Certificate => "certificate",
            Kind::BucketMissing => "bucket-missing",
            Kind::Unsupported => "unsupported",
            Kind::Missing => "object-missing",
            Kind::Damaged => "object-damaged",
        }
    }

    /// Whether the trouble lasts until a person acts.
    pub fn needs_operator(self) -> bool {
        match self {
            Kind::Throttled | Kind::Unreachable | Kind::NoAnswer | Kind::Broken | Kind::Failing => false,
            Kind::Full
            | Kind::Denied
            | Kind::Credentials
            | Kind::Clock
            | Kind::Certificate
            | Kind::BucketMissing
            | Kind::Unsupported
            | Kind::Missing
            | Kind::Damaged => true,
        }
    }

    /// Whether the success of another request of the same kind proves that the trouble is over.
    pub(crate) fn ends_with_kin(self) -> bool {
        // The small head may be accepted while a segment is not; a policy may allow one request and not the other.
        !matches!(self, Kind::Full | Kind::Denied | Kind::Unsupported)
    }
}
