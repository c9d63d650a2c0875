//! Sorts of trouble with a store.

/// Kind of trouble. The names are shown, and used as labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// It asks for fewer requests (503 SlowDown, 429).
    Throttled,
    /// No connection comes about.
    Unreachable,
    /// No answer in time.
    NoAnswer,
    /// The connection broke, or a body ended early.
    Broken,
    /// It answers that it has a fault of its own (5xx).
    Failing,
    /// No room, or a quota is used up.
    Full,
    /// Rights.
    Denied,
    /// Keys that are unknown, wrong, or ran out.
    Credentials,
    /// Its clock and ours differ too much for signatures.
    Clock,
    /// Its TLS certificate is not trusted.
    Certificate,
    /// No such bucket.
    BucketMissing,
    /// It does not understand something that we rely on.
    Unsupported,
    /// An object that must be there is not.
    Missing,
    /// An object is there and is not what was written.
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

    /// Whether it lasts until a person acts.
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

    /// Whether another request of the same sort that works proves that it is over.
    pub(crate) fn ends_with_kin(self) -> bool {
        // The small head may fit where a segment does not; a policy may allow one request and not the other.
        !matches!(self, Kind::Full | Kind::Denied | Kind::Unsupported)
    }
}
