//! Hands appends of peers to a group, in whichever way they came: unary (heartbeats) or in a stream.

use crate::config::TypeConfig;
use crate::group::RaftGroup;
use crate::node::RaftNode;
use crate::proto;
use crate::stored::{self, Told};
use crate::wire::ticket_of;
use holdfast_types::{LogId, MemberId, Term};
use openraft::async_runtime::watch::WatchReceiver;
use openraft::raft::{AppendEntriesRequest, StreamAppendResult};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use tonic::Status;

/// The answer to an append, once what it carries is durable here.
pub(crate) type Taken = Pin<Box<dyn Future<Output = Result<StreamAppendResult<TypeConfig>, Status>> + Send>>;

/// Hands the appends of one sender to one group.
pub(crate) struct Appender {
    pub(crate) node: RaftNode,
    pub(crate) group: Arc<RaftGroup>,
    pub(crate) from: MemberId,
}

impl Appender {
    /// The answer to `request`. The group has the request once the answer was polled for the first time.
    ///
    /// # Errors
    /// The sender is a leader of before the removal of this member (QUARANTINE-Q4).
    pub(crate) fn take(&self, mut request: AppendEntriesRequest<TypeConfig>) -> Result<Taken, Status> {
        of_before(self.node.floor(self.group.id()), Some(&(&request.vote).into()), self.from)?;
        let group = self.group.clone();
        let term = Term(request.vote.leader_id.term);
        let (before, last) = (request.prev_log_id, request.entries.last().map(|entry| entry.log_id));
        let told = request.entries.last_mut().and_then(ticket_of).map(|place| {
            let (ticket, told) = stored::ticket();
            *place = Some(ticket);
            told
        });
        Ok(Box::pin(async move {
            // A call to a core that has stopped joins its task. If that call is dropped meanwhile (its connection
            // ends), openraft panics in the next one.
            let running = group.raft().metrics().borrow_watched().running_state.clone();
            running.map_err(|e| fatal(format!("the group has stopped here: {e}")))?;
            // PLEDGE-P2: before the group has it. A vote that is cast at this moment must find the promise.
            group.promise(term);
            let runs = || group.raft().metrics().borrow_watched().running_state.is_ok();
            match unless_told(told, runs, group.raft().append_entries(request)).await {
                None => Ok(Ok(last)),
                // openraft denies the position before the entries, and acknowledges the last one.
                Some(answer) => Ok(answer.map_err(fatal)?.into_stream_result(before, last.or(before))),
            }
        }))
    }
}

/// The core's answer; `None` if the ticket was told first (STORED-T2). The answer is dropped then: the core finds
/// nobody who waits for it, and wakes nobody.
///
/// `runs`: whether the core runs. Where it does not, its answer may be joining the core's task. It is not dropped then,
/// for the reason above, and says that the group has stopped.
async fn unless_told<A: Future>(mut told: Option<Told>, runs: impl Fn() -> bool, answer: A) -> Option<A::Output> {
    let mut answer = std::pin::pin!(answer);
    let first = poll_fn(|context| {
        if let Some(waiting) = &mut told
            && let Poll::Ready(word) = Pin::new(waiting).poll(context)
        {
            if word.is_ok() && runs() {
                return Poll::Ready(None);
            }
            // It is not polled again; only the core knows more (STORED-T3).
            told = None;
        }
        answer.as_mut().poll(context).map(Some)
    });
    first.await
}

/// The group's Raft has stopped here.
pub(crate) fn fatal(e: impl std::fmt::Display) -> Status {
    Status::internal(e.to_string())
}

/// Refuses a leader of a term before `floor` (QUARANTINE-Q4).
#[allow(clippy::result_large_err, reason = "tonic's own")]
pub(crate) fn of_before(floor: Option<LogId>, vote: Option<&proto::Vote>, from: MemberId) -> Result<(), Status> {
    let term = vote.map_or(0, |vote| vote.term);
    match floor.filter(|since| term < since.term.0) {
        None => Ok(()),
        Some(since) => Err(Status::unavailable(format!(
            "found term {term} of {from}, expected at least that of {since}, at which this member was taken out of the group (QUARANTINE-Q4)"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::append_tests::Teller;
    use crate::group_tests::{GROUP, Host, List};
    use crate::stored::Tickets;
    use futures_util::FutureExt;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_group_that_has_stopped_is_not_asked() -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?;
        let node = Host::node(dir.path(), 1)?;
        let group = node.start_local(GROUP, Arc::new(List::default()), None).await?;
        group.stop().await;
        let appender = Appender { node: node.clone(), group, from: MemberId(9) };
        let answer = appender.take(Teller::request(3, &["zero"]))?.await;
        let why = answer.err().map(|status| status.message().to_string());
        assert_eq!(why.as_deref(), Some("the group has stopped here: raft stopped"));
        node.stop().await;
        Ok(())
    }

    /// A call to a core that has stopped joins its task, and MUST NOT be dropped then.
    #[test]
    fn the_answer_of_a_core_that_has_stopped_is_waited_for() {
        for (is_told, runs, expected) in [
            (Some(true), true, Some(None)),
            (Some(true), false, None),
            (Some(false), true, None),
            (Some(false), false, None),
            (None, true, None),
        ] {
            let (sender, answer) = tokio::sync::oneshot::channel();
            let told = is_told.map(|is_told| {
                let ((ticket, told), tickets) = (stored::ticket(), Tickets::default());
                let number = tickets.begin(vec![ticket]);
                tickets.settle(number, is_told);
                told
            });
            let mut first = Box::pin(unless_told(told, || runs, answer));
            let found = (&mut first).now_or_never();
            assert_eq!(found, expected, "told {is_told:?}, runs {runs}");
            assert_eq!(sender.is_closed(), expected.is_some(), "told {is_told:?}, runs {runs}");
            if expected.is_none() {
                sender.send("the core's").expect("it is waited for");
                assert_eq!(first.now_or_never(), Some(Some(Ok("the core's"))));
            }
        }
    }

    /// QUARANTINE-Q4: of the term of the removal there is one leader, and it has the entry.
    #[test]
    fn a_leader_of_a_term_before_the_removal_is_refused() {
        let (floor, from) = (Some(LogId::new(3, 77)), MemberId(2));
        let refused = |floor, term| {
            let vote = proto::Vote { term, member: from.0, committed: true };
            of_before(floor, Some(&vote), from).is_err()
        };
        assert_eq!([1, 2, 3, 4].map(|term| refused(floor, term)), [true, true, false, false]);
        assert!(!refused(None, 1), "nothing is learnt anew here");
        assert!(of_before(floor, None, from).is_err() && of_before(None, None, from).is_ok());
    }
}
