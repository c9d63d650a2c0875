//! Carries heartbeats of several groups to one peer in one call (ADR 0059).

use crate::beats::{BEATS_MAX, MOMENT, Outcome, Waiting};
use crate::channels::Channels;
use crate::clock::boot_now;
use crate::proto::{self, beat_reply::Result as Said, peer_client::PeerClient};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use holdfast_types::limits::PEER_MESSAGE_BYTES_MAX;
use holdfast_types::{GroupId, MemberId};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tonic::{Code, Status};

/// The answer to what is at one place of a call, until it has come.
type Tell = Option<oneshot::Sender<Outcome>>;

/// Takes what waits for a peer, once.
pub(crate) struct Carrier {
    pub(crate) channels: Arc<Channels>,
    /// One of those that wait.
    pub(crate) group: GroupId,
    pub(crate) target: MemberId,
    pub(crate) addr: String,
    /// For the last answer. Who waits for one has a limit of its own.
    pub(crate) limit: Duration,
}

impl Carrier {
    /// Waits a moment for others, and then for all answers.
    pub(crate) async fn run(self) {
        tokio::time::sleep(MOMENT).await;
        let mut waiting = self.channels.beats.take(self.target);
        let mut calls = FuturesUnordered::new();
        while !waiting.is_empty() {
            let rest = waiting.split_off(waiting.len().min(BEATS_MAX));
            calls.push(self.carry(std::mem::replace(&mut waiting, rest)));
        }
        while calls.next().await.is_some() {}
    }

    async fn carry(&self, some: Vec<Waiting>) {
        let (beats, mut tells): (Vec<proto::Beat>, Vec<Tell>) =
            some.into_iter().map(|Waiting { beat, tell }| (beat, Some(tell))).unzip();
        let status = match tokio::time::timeout(self.limit, self.call(beats, &mut tells)).await {
            Ok(Ok(())) => return,
            Ok(Err(status)) => status,
            Err(_) => {
                self.channels.trips.late(self.target);
                Status::deadline_exceeded(format!("heartbeats: no answer within {:?}", self.limit))
            }
        };
        if status.code() == Code::Unimplemented {
            self.channels.beats.go_singly(self.target, boot_now());
        }
        for tell in tells.into_iter().flatten() {
            // Whoever waits no more needs no answer.
            let _ = tell.send(Err(status.clone()));
        }
    }

    /// Hands out each answer as it comes: a group that has much to sync answers late, and the others must not wait.
    async fn call(&self, beats: Vec<proto::Beat>, tells: &mut [Tell]) -> Result<(), Status> {
        let unreachable = |e: openraft::errors::Unreachable<_>| Status::unavailable(e.to_string());
        let channel = self.channels.get(self.target, &self.addr, false).map_err(unreachable)?;
        let mut peer = PeerClient::new(channel)
            .max_decoding_message_size(PEER_MESSAGE_BYTES_MAX)
            .max_encoding_message_size(PEER_MESSAGE_BYTES_MAX);
        self.channels.beats.count(beats.len());
        let request = self.channels.request(proto::BeatsRequest { beats }, self.group, self.target);
        let begun = boot_now();
        let reply = peer.beats(request).await?;
        self.channels.lives.check(self.target, reply.metadata()).map_err(Status::permission_denied)?;
        self.channels.promises.heard(self.target, reply.metadata());
        let mut replies = reply.into_inner();
        let (mut first, mut last) = (None, None);
        while let Some(reply) = replies.message().await? {
            last = Some(boot_now().saturating_since(begun));
            first = first.or(last);
            let place = usize::try_from(reply.place).unwrap_or(usize::MAX);
            if let Some(tell) = tells.get_mut(place).and_then(Option::take) {
                let _ = tell.send(outcome(reply));
            }
        }
        // The first shows the way; the last, how long answers have to be waited for.
        let took = first.into_iter().chain(last.filter(|last| Some(*last) != first));
        took.for_each(|took| self.channels.trips.answered(self.target, took));
        Ok(())
    }
}

fn outcome(reply: proto::BeatReply) -> Outcome {
    match reply.result {
        Some(Said::Reply(answer)) => Ok((answer, Duration::from_millis(reply.read_lease_ms))),
        Some(Said::Refused(refused)) => Err(Status::new(Code::from(refused.code), refused.message)),
        None => Err(Status::internal("an answer without a result")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_says_what_it_promises_or_why_not() {
        let answer = proto::AppendReply { result: None };
        let said = Some(Said::Reply(answer));
        let told = outcome(proto::BeatReply { place: 3, read_lease_ms: 480, result: said });
        assert_eq!(told.ok(), Some((answer, Duration::from_millis(480))));
        let refused = proto::BeatRefusal { code: Code::NotFound as i32, message: "not here".to_string() };
        let told = outcome(proto::BeatReply { place: 3, read_lease_ms: 0, result: Some(Said::Refused(refused)) });
        let why = told.expect_err("refused");
        assert_eq!((why.code(), why.message()), (Code::NotFound, "not here"));
        assert!(outcome(proto::BeatReply { place: 3, read_lease_ms: 480, result: None }).is_err());
    }
}
