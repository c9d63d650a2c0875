//! The task that reads the head while the set runs here.

use super::freshness::LOOK_LIMIT;
use super::{HeadKeeper, HeadState};
use crate::host::SetHost;
use futures_util::future::BoxFuture;
use holdfast_control::set::{Links, Restored};
use holdfast_raft::{Group, boot_now, boot_reading};
use holdfast_store::Switch;
use holdfast_types::{Epoch, Term};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How often a gateway that does not lead checks whether it leads now.
const IDLE_LOOK: Duration = Duration::from_millis(200);

/// Time between two attempts to replace the keys in the head.
const REPLACE_EVERY: Duration = Duration::from_secs(1);

impl HeadKeeper {
    /// Reads the head at the start, at the beginning of each leadership, and while this gateway leads: as often as
    /// `looks` requires or a caller waits for it.
    pub fn watch(
        self: Arc<Self>,
        group: Group,
        host: Arc<SetHost>,
        switch: Arc<Switch>,
        stop: CancellationToken,
    ) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let (mut chance, mut led_in, mut waited_for) = (rand::random::<f64>(), None, false);
            let mut tried = None;
            let mut stores = switch.changes();
            while self.fenced().is_none() {
                if stores.has_changed().is_ok_and(|changed| changed) {
                    stores.borrow_and_update();
                    self.looks.other_stores();
                }
                let led = group.ready_term();
                self.note_here(&group, &host, led);
                let begins = led.is_some() && led != led_in;
                led_in = led.or(led_in);
                let due = led.is_some() && self.looks.due(boot_now(), chance, self.stores());
                if begins || due || waited_for || *self.seen.borrow() == HeadState::NotYet {
                    let looked = self.look().await;
                    self.seen.send_if_modified(|seen| {
                        let first = *seen == HeadState::NotYet;
                        if first {
                            *seen = HeadState::Go;
                        }
                        first
                    });
                    if let (Some(Ok(None)), Some(term)) = (&looked, group.ready_term()) {
                        self.begin(&host, term).await;
                    }
                    if let (Some(Ok(Some(_))), Some(term)) = (&looked, group.ready_term()) {
                        // The read took time, so the state is noted again.
                        self.note_here(&group, &host, Some(term));
                        self.replace_around(term).await;
                    }
                    chance = rand::random::<f64>();
                }
                waited_for = tokio::select! {
                    () = stop.cancelled() => return,
                    () = self.wake.notified() => !self.looks.may_answer(boot_reading()),
                    () = tokio::time::sleep(IDLE_LOOK) => false,
                };
                let waits = tried.is_none_or(|at: Instant| at.elapsed() >= REPLACE_EVERY);
                if waits && self.to_replace() && group.ready_term().is_some() {
                    tried = Some(Instant::now());
                    waited_for = true;
                }
            }
        })
    }

    /// There is no head: a new set's leader writes the first one, or the next checkpoint if there was one.
    async fn begin(&self, host: &SetHost, term: Term) {
        if host.with(|m| m.state().checkpoint.is_some()) {
            self.want_checkpoint();
            return;
        }
        let head = self.head(Epoch(0), None, Restored::default(), self.beside.links(&Links::default(), true));
        let body = self.seal(&head, &self.keyring(), term);
        let key = self.key();
        match tokio::time::timeout(LOOK_LIMIT, self.parts.store.swap(&key, None, body)).await {
            Ok(Ok(_)) => {
                tracing::info!(set = %self.parts.name, generation = self.parts.life.generation, "first head written")
            }
            // R12: the next read shows the result.
            Ok(Err(error)) => tracing::debug!(set = %self.parts.name, %error, "first head not written yet"),
            Err(_) => {}
        }
    }
}
