//! What the paths of Patroni's REST API are answered from, beside the agent's own view: PostgreSQL here, and the other
//! agents.
//!
//! Both are asked only when somebody wants to know, once within [`FRESH`] and one question at a time, however many ask
//! at this door. The code of a health check waits for neither.

use super::patroni::Told;
use crate::clock;
use crate::machine::AttachPhase;
use crate::server::ServerView;
use crate::view::View;
use holdfast_types::MonoTime;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;

/// An answer that is younger is not asked for again.
const FRESH: Duration = Duration::from_secs(1);

/// An answer that is younger may stand in the body of a health check.
const KNOWN: Duration = Duration::from_secs(5);

/// Asks PostgreSQL. Ends within a bound of its own.
pub(crate) type AskServer = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Option<ServerView>> + Send>> + Send + Sync>;

/// An answer, and when it came.
struct Kept<T>(Mutex<Option<(MonoTime, T)>>);

impl<T: Clone> Kept<T> {
    fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// The answer, asked for unless it is fresh.
    async fn get<F: Future<Output = T>>(&self, ask: impl FnOnce() -> F) -> T {
        let mut kept = self.0.lock().await;
        if let Some((at, answer)) = &*kept
            && clock::now().saturating_since(*at) < FRESH
        {
            return answer.clone();
        }
        let answer = ask().await;
        *kept = Some((clock::now(), answer.clone()));
        answer
    }

    /// The last answer, if it is young and nobody asks just now.
    fn last(&self) -> Option<T> {
        let kept = self.0.try_lock().ok()?;
        let (at, answer) = kept.as_ref()?;
        (clock::now().saturating_since(*at) < KNOWN).then(|| answer.clone())
    }
}

/// See the module.
pub(crate) struct Asks {
    ask: AskServer,
    server: Kept<Option<ServerView>>,
    members: Kept<Vec<Told>>,
}

impl Asks {
    /// `ask`: what PostgreSQL is asked by.
    pub fn new(ask: AskServer) -> Self {
        Self { ask, server: Kept::new(), members: Kept::new() }
    }

    /// What PostgreSQL says of itself. It is not asked while its device waits for a gateway: each session that begins
    /// then would wait as well, and use up its connections.
    pub async fn server(&self, view: &View) -> Option<ServerView> {
        let well = view.database_runs() && view.attach.is_none_or(|phase| phase == AttachPhase::Serving);
        if well { self.server.get(|| (self.ask)()).await } else { None }
    }

    /// What it said a short while ago, without asking.
    pub fn known(&self) -> Option<ServerView> {
        self.server.last().flatten()
    }

    /// What the hosts of the set tell, asked for by `gather`.
    pub async fn members<F: Future<Output = Vec<Told>>>(&self, gather: impl FnOnce() -> F) -> Vec<Told> {
        self.members.get(gather).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// However many load balancers and checks ask at once: one question.
    #[tokio::test]
    async fn many_who_ask_at_once_make_one_question() {
        let (kept, count) = (Kept::new(), AtomicU32::new(0));
        let ask = async || {
            kept.get(|| async {
                tokio::task::yield_now().await;
                count.fetch_add(1, Ordering::Relaxed)
            })
            .await
        };
        assert_eq!(tokio::join!(ask(), ask(), ask()), (0, 0, 0));
        assert_eq!((kept.last(), count.load(Ordering::Relaxed)), (Some(0), 1));
        // Old, by the clock of leases.
        *kept.0.lock().await = Some((MonoTime(clock::now().0.saturating_sub(10_000_000_000)), 7));
        assert_eq!(kept.last(), None);
        assert_eq!(ask().await, 1);
    }
}
