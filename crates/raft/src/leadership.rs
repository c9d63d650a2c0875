//! Follows openraft's reports and publishes changes of leadership only.
//!
//! openraft reports twice in each pass of its core, several times for each write. First comes the *server* report
//! (vote, role, leader, members), which wakes its readers only if it has changed. Then comes the *whole* report, which
//! always wakes them. So this module waits for the first and reads the second. It must not read a whole report that is
//! older: whoever is woken by a change of leadership asks `RaftGroup::leading_term`, which reads the whole report.

use crate::config::TypeConfig;
use crate::status::Leadership;
use holdfast_types::{MemberId, Term};
use openraft::RaftMetrics;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::metrics::RaftServerMetrics;
use openraft::type_config::alias::WatchReceiverOf;
use tokio::sync::watch;

type Server = WatchReceiverOf<TypeConfig, RaftServerMetrics<TypeConfig>>;
type Whole = WatchReceiverOf<TypeConfig, RaftMetrics<TypeConfig>>;

/// Which member asks, and the term that its process started in.
#[derive(Clone, Copy)]
pub(crate) struct Asks {
    pub me: MemberId,
    /// See `RaftGroup::leading_term`.
    pub started_in: Term,
}

impl Asks {
    /// The leadership of one report.
    fn read(self, whole: &RaftMetrics<TypeConfig>) -> Leadership {
        let stopped = whole.running_state.is_err();
        // As in `RaftGroup::leading_term`.
        let restored = whole.current_leader == Some(self.me.0) && Term(whole.current_term) <= self.started_in;
        let leader = whole.current_leader.map(MemberId).filter(|_| !restored);
        Leadership { term: Term(whole.current_term), leader, mine: leader == Some(self.me) && !stopped, stopped }
    }
}

/// Starts a task that follows the reports until the group has stopped.
pub(crate) fn watch_leadership(asks: Asks, server: Server, whole: Whole) -> watch::Receiver<Leadership> {
    let (tx, rx) = watch::channel(asks.read(&whole.borrow_watched()));
    tokio::spawn(publish(asks, server, whole, tx));
    rx
}

async fn publish(asks: Asks, mut server: Server, mut whole: Whole, tx: watch::Sender<Leadership>) {
    // openraft says in the whole report that it stops, then closes both.
    while server.changed().await.is_ok() {
        let Some(now) = next(asks, &server, &mut whole).await else { break };
        tx.send_if_modified(|old| std::mem::replace(old, now) != now);
        if now.stopped || tx.is_closed() {
            return;
        }
    }
    tx.send_modify(|l| {
        l.mine = false;
        l.stopped = true;
    });
}

/// The leadership of the first whole report that is not older than the server report; nothing if there will be none.
async fn next(asks: Asks, server: &Server, whole: &mut Whole) -> Option<Leadership> {
    loop {
        let now = {
            let (server, whole) = (server.borrow_watched(), whole.borrow_and_update());
            let same = whole.vote == server.vote && whole.current_leader == server.current_leader;
            same.then(|| asks.read(&whole))
        };
        if now.is_some() {
            return now;
        }
        whole.changed().await.ok()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::RaftVote;
    use futures_util::FutureExt;
    use openraft::async_runtime::watch::WatchSender;
    use openraft::errors::Fatal;
    use openraft::type_config::TypeConfigExt;
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Wake, Waker};

    const ASKS: Asks = Asks { me: MemberId(1), started_in: Term(4) };

    /// Both reports of a moment, with the vote of `leader` in `term`.
    fn reports(term: u64, leader: u64) -> (RaftServerMetrics<TypeConfig>, RaftMetrics<TypeConfig>) {
        let mut whole = RaftMetrics::<TypeConfig>::new_initial(ASKS.me.0);
        whole.current_term = term;
        whole.vote = RaftVote::new_committed(term, leader);
        whole.current_leader = Some(leader);
        let server = RaftServerMetrics {
            id: whole.id,
            vote: whole.vote,
            state: whole.state,
            current_leader: whole.current_leader,
            membership_config: whole.membership_config.clone(),
            committed_membership_config: whole.committed_membership_config.clone(),
        };
        (server, whole)
    }

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn only_a_change_of_the_server_report_wakes_and_the_whole_report_is_read() {
        let (server, whole) = reports(5, 2);
        let (server_tx, server_rx) = TypeConfig::watch_channel(server);
        let (whole_tx, whole_rx) = TypeConfig::watch_channel(whole);
        let (tx, rx) = watch::channel(ASKS.read(&whole_rx.borrow_watched()));
        let by_other = Leadership { term: Term(5), leader: Some(MemberId(2)), mine: false, stopped: false };
        assert_eq!(*rx.borrow(), by_other);

        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let mut context = Context::from_waker(&waker);
        let mut task = pin!(publish(ASKS, server_rx, whole_rx, tx));
        assert!(task.poll_unpin(&mut context).is_pending());
        for applied in 1..10 {
            let mut whole = reports(5, 2).1;
            whole.last_log_index = Some(applied);
            whole_tx.send(whole).expect("it listens");
        }
        assert_eq!(woken.0.load(Ordering::Relaxed), 0, "a pass of openraft's core that changes nothing here");

        // Whoever is woken by the change reads the whole report, which is not there yet.
        let (server, whole) = reports(6, 1);
        server_tx.send(server).expect("it listens");
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        assert!(task.poll_unpin(&mut context).is_pending());
        assert_eq!(*rx.borrow(), by_other, "the whole report is older");
        whole_tx.send(whole.clone()).expect("it listens");
        assert!(task.poll_unpin(&mut context).is_pending());
        let mine = Leadership { term: Term(6), leader: Some(MemberId(1)), mine: true, stopped: false };
        assert_eq!(*rx.borrow(), mine);

        // As openraft ends: the reason in the whole report, then both close.
        let mut ended = whole;
        ended.running_state = Err(Fatal::Stopped);
        whole_tx.send(ended).expect("it listens");
        drop((server_tx, whole_tx));
        assert!(task.poll_unpin(&mut context).is_ready());
        assert_eq!(*rx.borrow(), Leadership { mine: false, stopped: true, ..mine });
    }

    /// What openraft says of the vote on disk before it has processed it.
    #[test]
    fn a_leadership_of_before_the_start_is_none() {
        let leadership = ASKS.read(&reports(4, 1).1);
        assert_eq!(leadership, Leadership { term: Term(4), leader: None, mine: false, stopped: false });
        assert_eq!(ASKS.read(&reports(4, 2).1).leader, Some(MemberId(2)));
    }
}
