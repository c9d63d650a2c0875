//! What a call may take, of all callers together (ACCESS-A5, ACCESS-A6).

use crate::doors::Standing;
use holdfast_types::sync::LockExt;
use http_body::{Body, Frame, SizeHint};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;
use tonic::codegen::{Bytes, StdError};

/// The bounds of one method at one door.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Calls at a time. As many again are kept for connections that are proven.
    pub at_once: usize,
    /// Bytes of a request, with gRPC's five.
    pub bytes: usize,
    /// From the headers to the answer.
    pub deadline: Duration,
}

impl Bounds {
    /// Bytes of requests that are in this gateway at a time, at most.
    pub(super) const fn bytes_at_once(&self) -> usize {
        2 * self.at_once * self.bytes
    }
}

/// Calls of one method that run at a door.
pub(super) struct Running {
    /// For everybody.
    open: Arc<Semaphore>,
    /// For those who are proven.
    kept: Arc<Semaphore>,
    shares: Arc<Shares>,
}

/// What each certificate has of the places.
struct Shares {
    /// Calls of one certificate at a time, at most.
    most: usize,
    /// By the name of a certificate: its calls that run.
    running: Mutex<BTreeMap<String, usize>>,
}

/// One call of a certificate.
struct Share {
    all: Arc<Shares>,
    name: String,
}

impl Share {
    /// `None`: the certificate has its share.
    fn begin(all: &Arc<Shares>, name: &str) -> Option<Self> {
        let mut running = all.running.locked();
        let calls = running.entry(name.to_string()).or_default();
        if *calls >= all.most {
            return None;
        }
        *calls += 1;
        drop(running);
        Some(Self { all: all.clone(), name: name.to_string() })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut running = self.all.running.locked();
        if let Some(calls) = running.get_mut(&self.name) {
            *calls -= 1;
            if *calls == 0 {
                running.remove(&self.name);
            }
        }
    }
}

/// The place of a call, held while it runs.
pub(super) struct CallPlace {
    _permit: OwnedSemaphorePermit,
    _share: Option<Share>,
}

impl Running {
    pub(super) fn new(bounds: &Bounds) -> Self {
        let places = || Arc::new(Semaphore::new(bounds.at_once));
        let shares = Shares { most: (bounds.at_once / 2).max(1), running: Mutex::default() };
        Self { open: places(), kept: places(), shares: Arc::new(shares) }
    }

    /// A place for one more call. `certificate`: the name of one that has only a share of the places. `None`: there is
    /// none for such a caller.
    pub(super) fn begin(&self, standing: Standing, certificate: Option<&str>) -> Option<CallPlace> {
        let share = match certificate {
            Some(name) => Some(Share::begin(&self.shares, name)?),
            None => None,
        };
        let open = self.open.clone().try_acquire_owned().ok();
        let permit = open.or_else(|| {
            let kept = (standing == Standing::Proven).then(|| self.kept.clone())?;
            kept.try_acquire_owned().ok()
        })?;
        Some(CallPlace { _permit: permit, _share: share })
    }
}

/// The body of a request, which fails once it has more bytes than its method may have.
pub(crate) struct Counted<B> {
    body: B,
    left: usize,
}

impl<B> Counted<B> {
    pub(super) fn new(body: B, bounds: &Bounds) -> Self {
        Self { body, left: bounds.bytes }
    }
}

impl<B> Body for Counted<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<StdError>,
{
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let Some(next) = ready!(Pin::new(&mut self.body).poll_frame(context)) else { return Poll::Ready(None) };
        let frame = next.map_err(Into::<StdError>::into)?;
        let bytes = frame.data_ref().map_or(0, Bytes::len);
        let Some(left) = self.left.checked_sub(bytes) else {
            let why = "found a longer request than this call may have (ACCESS-A6)";
            return Poll::Ready(Some(Err(Status::out_of_range(why).into())));
        };
        self.left = left;
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use std::future::poll_fn;

    struct Pieces(VecDeque<usize>);

    impl Body for Pieces {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            Poll::Ready(self.0.pop_front().map(|length| Ok(Frame::data(Bytes::from(vec![7; length])))))
        }
    }

    const BOUNDS: Bounds = Bounds { at_once: 2, bytes: 1000, deadline: Duration::from_secs(1) };

    async fn taken(pieces: &[usize]) -> Result<usize, String> {
        let mut body = Counted::new(Pieces(pieces.iter().copied().collect()), &BOUNDS);
        let mut taken = 0;
        while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            taken += frame.map_err(|error| error.to_string())?.data_ref().map_or(0, Bytes::len);
        }
        Ok(taken)
    }

    #[tokio::test]
    async fn a6_a_request_has_the_length_that_its_call_may_have() {
        assert_eq!(taken(&[5, 995]).await, Ok(1000));
        assert_eq!(taken(&[]).await, Ok(0));
        for long in [&[1001][..], &[5, 996], &[1000, 0, 1]] {
            let why = taken(long).await.expect_err("too long");
            assert!(why.contains("ACCESS-A6"), "{why}");
        }
    }

    #[test]
    fn a5_those_who_are_proven_find_a_place_beside_a_flood() {
        let running = Running::new(&BOUNDS);
        let flood: Vec<_> = std::iter::from_fn(|| running.begin(Standing::Asked, None)).take(100).collect();
        assert_eq!(flood.len(), 2);
        let proven: Vec<_> = std::iter::from_fn(|| running.begin(Standing::Proven, None)).take(100).collect();
        assert_eq!(proven.len(), 2);
        drop(flood);
        assert!(running.begin(Standing::New, None).is_some());
    }

    #[test]
    fn a5_one_certificate_has_a_share_of_the_places() {
        let running = Running::new(&Bounds { at_once: 4, ..BOUNDS });
        let of = |name: &str| -> Vec<CallPlace> {
            std::iter::from_fn(|| running.begin(Standing::Proven, Some(name))).take(100).collect()
        };
        let one = of("db1");
        assert_eq!((one.len(), of("db2").len()), (2, 2));
        drop(one);
        assert_eq!(of("db1").len(), 2);
    }
}
