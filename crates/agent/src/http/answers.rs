//! What the paths of Patroni's REST API are answered from, beside the agent's own view: PostgreSQL here, and the other
//! agents.
//!
//! Both are asked only when a client wants to know: one question at a time, and at most one within [`FRESH`], however
//! many clients ask. A question goes on when its client hangs up. Otherwise a client that hangs up again and again
//! could start any number of questions. The code of a health check waits for neither.

use super::patroni::HostReport;
use crate::clock;
use crate::machine::AttachPhase;
use crate::server::ServerView;
use crate::view::View;
use holdfast_types::MonoTime;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, OwnedMutexGuard};

/// An answer that is younger is not asked for again.
const FRESH: Duration = Duration::from_secs(1);

/// An answer that is younger may stand in the body of a health check.
const KNOWN: Duration = Duration::from_secs(5);

/// Asks PostgreSQL. Ends within a bound of its own.
pub(crate) type AskServer = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Option<ServerView>> + Send>> + Send + Sync>;

/// An answer, and when it came.
struct Cached<T>(Arc<Mutex<Option<(MonoTime, T)>>>);

impl<T: Clone + Send + 'static> Cached<T> {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(None)))
    }

    /// The answer, asked for unless it is fresh.
    async fn get<F: Future<Output = T> + Send + 'static>(&self, ask: impl FnOnce() -> F) -> T {
        let kept = self.0.clone().lock_owned().await;
        if let Some((at, answer)) = &*kept
            && clock::now().saturating_since(*at) < FRESH
        {
            return answer.clone();
        }
        match tokio::spawn(asked(kept, ask())).await {
            Ok(answer) => answer,
            Err(ended) => match ended.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The process ends.
                Err(_) => std::future::pending().await,
            },
        }
    }

    /// The last answer, if it is young and nobody asks just now.
    fn last(&self) -> Option<T> {
        let kept = self.0.try_lock().ok()?;
        let (at, answer) = kept.as_ref()?;
        (clock::now().saturating_since(*at) < KNOWN).then(|| answer.clone())
    }
}

/// Asks, and keeps the answer. Nobody else asks before.
async fn asked<T: Clone>(mut kept: OwnedMutexGuard<Option<(MonoTime, T)>>, ask: impl Future<Output = T>) -> T {
    let answer = ask.await;
    *kept = Some((clock::now(), answer.clone()));
    answer
}

/// See the module.
pub(crate) struct Answers {
    ask: AskServer,
    server: Cached<Option<ServerView>>,
    members: Cached<Vec<HostReport>>,
}

impl Answers {
    /// `ask`: what PostgreSQL is asked by.
    pub fn new(ask: AskServer) -> Self {
        Self { ask, server: Cached::new(), members: Cached::new() }
    }

    /// What PostgreSQL says of itself. It is not asked while its device waits for a gateway: each session that begins
    /// then would wait as well, and use up its connections. It is not asked by an old view either, which knows nothing
    /// of the device (HEALTH-H1).
    pub async fn server(&self, view: &View) -> Option<ServerView> {
        let well = view.database_runs() && view.attach.is_none_or(|phase| phase == AttachPhase::Serving);
        if well && view.is_fresh(clock::now()) { self.server.get(|| (self.ask)()).await } else { None }
    }

    /// What it said a short while ago, without asking.
    pub fn known(&self) -> Option<ServerView> {
        self.server.last().flatten()
    }

    /// What the hosts of the set tell, asked for by `gather`.
    pub async fn members<F>(&self, gather: impl FnOnce() -> F) -> Vec<HostReport>
    where
        F: Future<Output = Vec<HostReport>> + Send + 'static,
    {
        self.members.get(gather).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Role, StateName};
    use std::sync::atomic::{AtomicU32, Ordering};
    use tokio::sync::Notify;

    /// However many load balancers and checks ask at once: one question.
    #[tokio::test]
    async fn many_who_ask_at_once_make_one_question() {
        let (kept, count) = (Cached::new(), Arc::new(AtomicU32::new(0)));
        let ask = async || {
            let count = count.clone();
            let asking = async move {
                tokio::task::yield_now().await;
                count.fetch_add(1, Ordering::Relaxed)
            };
            kept.get(|| asking).await
        };
        assert_eq!(tokio::join!(ask(), ask(), ask()), (0, 0, 0));
        assert_eq!((kept.last(), count.load(Ordering::Relaxed)), (Some(0), 1));
        // Old, by the clock of leases.
        *kept.0.lock().await = Some((MonoTime(clock::now().0.saturating_sub(10_000_000_000)), 7));
        assert_eq!(kept.last(), None);
        assert_eq!(ask().await, 1);
    }

    /// A client that hangs up again and again must not make a session of PostgreSQL each time.
    #[tokio::test]
    async fn a_question_goes_on_when_the_one_who_asked_hangs_up() {
        let (kept, count, answered) = (Cached::new(), Arc::new(AtomicU32::new(0)), Arc::new(Notify::new()));
        let ask = async || {
            let (count, answered) = (count.clone(), answered.clone());
            let asking = async move {
                answered.notified().await;
                count.fetch_add(1, Ordering::Relaxed)
            };
            kept.get(|| asking).await
        };
        for _ in 0..3 {
            assert!(tokio::time::timeout(Duration::ZERO, ask()).await.is_err(), "it hangs up at once");
        }
        // One answer; of another question there would be none.
        assert!(kept.0.try_lock().is_err(), "the question goes on");
        answered.notify_one();
        assert_eq!((ask().await, count.load(Ordering::Relaxed)), (0, 1));
    }

    /// An agent that hangs does not know that its device waits.
    #[tokio::test]
    async fn a_server_is_not_asked_by_an_old_view() {
        let answers = Answers::new(Arc::new(|| Box::pin(async { Some(ServerView::default()) })));
        let mut view = View::for_test("db1", StateName::Primary, Role::Primary, "ready");
        view.attach = Some(AttachPhase::Reconnecting);
        assert_eq!(answers.server(&view).await, None);
        view.attach = Some(AttachPhase::Serving);
        view.at = MonoTime(clock::now().0.saturating_sub(10_000_000_000));
        assert_eq!(answers.server(&view).await, None);
        view.at = clock::now();
        assert_eq!(answers.server(&view).await, Some(ServerView::default()));
    }
}
