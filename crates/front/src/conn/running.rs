//! A request that has begun, until it has its outcome.

use crate::budget::{Charge, Place};
use crate::device::{DeviceError, Extent, ReadPart};
use crate::measure::Kind;
use futures_util::future::BoxFuture;
use holdfast_nbd::server::ReplyTo;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

/// State of a request until it is answered.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    pub(super) to: ReplyTo,
    pub(super) len: u64,
    pub(super) kind: Kind,
    /// DF of a read, REQ_ONE of a block status.
    pub(super) narrow: bool,
    pub(super) since: Instant,
}

pub(super) enum Work {
    Plain(BoxFuture<'static, Result<(), DeviceError>>),
    Read(BoxFuture<'static, Result<Vec<ReadPart>, DeviceError>>),
    Status(BoxFuture<'static, Result<Vec<Extent>, DeviceError>>),
}

pub(super) enum Outcome {
    Plain,
    Read(Vec<ReadPart>),
    Status(Vec<Extent>),
}

pub(super) struct Running {
    pub(super) asked: Asked,
    /// Number of the attempt, from 0.
    pub(super) tries: u32,
    pub(super) charge: Charge,
    /// Returned at the end of the operation, before its answer is sent.
    pub(super) _place: Place,
    pub(super) work: Work,
}

pub(super) struct Finished {
    pub(super) asked: Asked,
    pub(super) tries: u32,
    pub(super) charge: Charge,
    pub(super) outcome: Result<Outcome, DeviceError>,
}

impl Future for Running {
    type Output = Finished;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Finished> {
        let outcome = match &mut self.work {
            Work::Plain(work) => ready!(work.as_mut().poll(cx)).map(|()| Outcome::Plain),
            Work::Read(work) => ready!(work.as_mut().poll(cx)).map(Outcome::Read),
            Work::Status(work) => ready!(work.as_mut().poll(cx)).map(Outcome::Status),
        };
        let (asked, tries) = (self.asked, self.tries);
        Poll::Ready(Finished { asked, tries, charge: std::mem::take(&mut self.charge), outcome })
    }
}
