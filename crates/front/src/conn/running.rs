//! A request that has begun, until it has its outcome.

use super::Asked;
use crate::budget::{Charge, Place};
use crate::device::{DeviceError, Extent, ReadPart};
use futures_util::future::BoxFuture;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

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
