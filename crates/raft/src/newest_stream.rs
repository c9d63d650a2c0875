//! Which append stream of a sender is the newest (FRAME-F3).

use holdfast_types::MemberId;
use holdfast_types::sync::LockExt;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tokio::sync::Notify;

/// The newest append stream of each sender to one group.
#[derive(Default)]
pub(crate) struct NewestStreams(Mutex<BTreeMap<MemberId, Arc<Newest>>>);

#[derive(Default)]
struct Newest {
    number: Mutex<u64>,
    /// Notified when another one begins.
    begun: Notify,
}

impl NewestStreams {
    /// A new stream of `from` begins: the ones before are over.
    pub(crate) fn begin(&self, from: MemberId) -> Turn {
        let newest = self.0.locked().entry(from).or_default().clone();
        let number = {
            let mut newest = newest.number.locked();
            *newest += 1;
            *newest
        };
        newest.begun.notify_waiters();
        Turn { newest, number }
    }
}

/// One of them.
#[derive(Clone)]
pub(crate) struct Turn {
    newest: Arc<Newest>,
    number: u64,
}

impl Turn {
    /// Does this, unless a newer stream has begun. None begins meanwhile.
    pub(crate) fn unless_over<T>(&self, what: impl FnOnce() -> T) -> Option<T> {
        let newest = self.newest.number.locked();
        (*newest == self.number).then(what)
    }

    /// Waits until a newer stream has begun.
    pub(crate) async fn over(&self) {
        loop {
            let mut begun = std::pin::pin!(self.newest.begun.notified());
            // From here on no notification is missed.
            begun.as_mut().enable();
            if self.unless_over(|| ()).is_none() {
                return;
            }
            begun.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn a_newer_stream_of_the_same_sender_ends_the_ones_before() {
        let streams = NewestStreams::default();
        let (first, other) = (streams.begin(MemberId(1)), streams.begin(MemberId(2)));
        assert_eq!(first.unless_over(|| 1), Some(1));
        let (mut of_first, mut of_other) = (std::pin::pin!(first.over()), std::pin::pin!(other.over()));
        assert!(of_first.as_mut().now_or_never().is_none() && of_other.as_mut().now_or_never().is_none());
        let second = streams.begin(MemberId(1));
        assert!(of_first.as_mut().now_or_never().is_some() && of_other.as_mut().now_or_never().is_none());
        assert_eq!((first.unless_over(|| 1), second.unless_over(|| 2)), (None, Some(2)));
        assert_eq!(other.unless_over(|| 3), Some(3), "of another sender");
        let third = streams.begin(MemberId(1));
        assert_eq!((first.unless_over(|| 1), second.unless_over(|| 2), third.unless_over(|| 3)), (None, None, Some(3)));
    }
}
