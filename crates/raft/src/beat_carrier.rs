//! Carries heartbeats of several groups to one peer in one call (ADR 0059).

use crate::beats::{BEATS_MAX, MOMENT, Outcome, Waiting};
use crate::channels::Channels;
use crate::clock::boot_now;
use crate::proto::{self, beat_reply::Result as Said, peer_client::PeerClient};
use futures_util::stream::FuturesUnordered;
use futures_util::{Stream, StreamExt};
use holdfast_types::limits::PEER_MESSAGE_BYTES_MAX;
use holdfast_types::{GroupId, MemberId, MonoTime};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tonic::{Code, Status};

/// The answer to what is at one place of a call, until it has come.
type Tell = Option<oneshot::Sender<Outcome>>;

/// How long the first and the last answer of a call took.
#[derive(Default)]
struct Heard {
    first: Option<Duration>,
    last: Option<Duration>,
}

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
        let mut heard = Heard::default();
        let called = tokio::time::timeout(self.limit, self.call(beats, &mut tells, &mut heard)).await;
        self.ended(called.ok(), tells, &heard);
    }

    /// The call has ended; `None`: its time is over. Tells those who have no answer.
    fn ended(&self, called: Option<Result<(), Status>>, tells: Vec<Tell>, heard: &Heard) {
        let trips = &self.channels.trips;
        if called.is_none() {
            trips.late(self.target);
        }
        // The first shows the way; the last, how long answers have to be waited for. They count also if another one
        // never comes: the peer is there.
        let took = heard.first.into_iter().chain(heard.last.filter(|_| heard.last != heard.first));
        took.for_each(|took| trips.answered(self.target, took));
        let status = match called {
            Some(Ok(())) => return,
            Some(Err(status)) => status,
            None => Status::deadline_exceeded(format!("heartbeats: no answer within {:?}", self.limit)),
        };
        if status.code() == Code::Unimplemented {
            self.channels.beats.go_singly(self.target, boot_now());
        }
        for tell in tells.into_iter().flatten() {
            // Whoever waits no more needs no answer.
            let _ = tell.send(Err(status.clone()));
        }
    }

    async fn call(&self, beats: Vec<proto::Beat>, tells: &mut [Tell], heard: &mut Heard) -> Result<(), Status> {
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
        heard.hand_out(reply.into_inner(), begun, tells).await
    }
}

impl Heard {
    /// Hands out each answer as it comes: a group that has much to sync answers late, and the others must not wait.
    async fn hand_out(
        &mut self,
        mut replies: impl Stream<Item = Result<proto::BeatReply, Status>> + Unpin,
        begun: MonoTime,
        tells: &mut [Tell],
    ) -> Result<(), Status> {
        while let Some(reply) = replies.next().await {
            let reply = reply?;
            self.last = Some(boot_now().saturating_since(begun));
            self.first = self.first.or(self.last);
            let place = usize::try_from(reply.place).unwrap_or(usize::MAX);
            if let Some(tell) = tells.get_mut(place).and_then(Option::take) {
                let _ = tell.send(outcome(reply));
            }
        }
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
    use crate::group_tests::{GROUP, Host};
    use crate::lives::Life;
    use futures_util::stream;
    use holdfast_tls::Dialer;

    const PEER: MemberId = MemberId(2);
    const SECOND: Duration = Duration::from_secs(1);

    fn carrier() -> Carrier {
        let own = Life { disk: 1, boot: 1, nonce: 1 };
        let timing = Host::timing(Duration::ZERO);
        let channels = Channels::new(99, MemberId(1), timing, Dialer::plaintext(), own.into(), crate::PROTOCOL);
        let (group, addr) = (GROUP, "peer:1".to_string());
        Carrier { channels: Arc::new(channels), group, target: PEER, addr, limit: Duration::from_millis(5) }
    }

    /// The outcomes of a call with two heartbeats, to which these answers come, and no end.
    async fn carried(carrier: &Carrier, answers: Vec<proto::BeatReply>) -> [Outcome; 2] {
        let ((one, first), (two, second)) = (oneshot::channel(), oneshot::channel());
        let (mut tells, mut heard) = (vec![Some(one), Some(two)], Heard::default());
        let replies = stream::iter(answers.into_iter().map(Ok::<_, Status>)).chain(stream::pending());
        let handed = heard.hand_out(replies, boot_now(), &mut tells);
        let called = tokio::time::timeout(carrier.limit, handed).await;
        carrier.ended(called.ok(), tells, &heard);
        [first.await.expect("told"), second.await.expect("told")]
    }

    fn waits_long(carrier: &Carrier) -> bool {
        carrier.channels.trips.limit(PEER, SECOND, 2 * SECOND) == 2 * SECOND
    }

    /// A lost answer of any group would otherwise cost the next heartbeats, too.
    #[tokio::test]
    async fn a_group_that_does_not_answer_makes_its_peer_no_later() {
        let carrier = carrier();
        let said = Some(Said::Reply(proto::AppendReply { result: None }));
        for _ in 0..5 {
            let answer = proto::BeatReply { place: 1, read_lease_ms: 480, result: said.clone() };
            let [none, one] = carried(&carrier, vec![answer]).await;
            assert_eq!(none.err().map(|why| why.code()), Some(Code::DeadlineExceeded));
            assert!(one.is_ok(), "{one:?}");
        }
        assert!(carrier.channels.trips.all().contains_key(&PEER), "its answers were measured");
        assert!(!waits_long(&carrier), "it has answered each time");
        for _ in 0..3 {
            assert!(carried(&carrier, Vec::new()).await.iter().all(Result::is_err));
        }
        assert!(waits_long(&carrier), "it may be farther away");
    }

    #[tokio::test]
    async fn a_peer_whose_build_is_older_gets_them_one_by_one() {
        let carrier = carrier();
        let beats = &carrier.channels.beats;
        let _groups: Vec<_> = (0..8).map(|_| beats.join(PEER)).collect();
        let ended = |why| carrier.ended(Some(Err(why)), Vec::new(), &Heard::default());
        ended(Status::unavailable("it restarts"));
        assert!(beats.gathers(PEER, boot_now()));
        ended(Status::unimplemented("found a call that this gateway does not know"));
        assert!(!beats.gathers(PEER, boot_now()));
    }

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
