//! Steps of a set's server after every event. Each step is safe to repeat.

use super::verdict::LeaseVerdict;
use super::{Serving, SetServer};
use crate::gate::GatedPace;
use crate::host::GrantSeen;
use crate::sequencer::{Sequencer, WriteFailure};
use futures_util::future::BoxFuture;
use holdfast_control::set::Lease;
use holdfast_raft::boot_now;
use holdfast_types::sync::LockExt;
use holdfast_types::{Epoch, Term};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

impl SetServer {
    /// Follows leadership, applied entries and time until stopped.
    pub fn run(self: Arc<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let mut leadership = self.group.leadership();
            let mut next = Instant::now();
            loop {
                let ticked = tokio::select! {
                    () = self.stop.cancelled() => break,
                    changed = leadership.changed() => {
                        if changed.is_err() {
                            break;
                        }
                        false
                    }
                    () = self.host.changed().notified() => false,
                    () = tokio::time::sleep_until(next) => true,
                };
                if ticked {
                    next = Instant::now() + self.timing().heartbeat() / 2;
                    self.gate.look_at_members();
                    self.follow_checkpoint().await;
                }
                self.follow();
                self.end_orphaned_plain_lease();
                self.close_when_cut_off();
            }
            self.end_serving(WriteFailure::Gone);
        })
    }

    /// Follows the group and the lease: runs the same steps after every event. Reporting a fact to the gate twice is
    /// harmless, but reporting an old fact after a newer one is not: an outdated "no leader" would end the new term for
    /// good, and nothing would be served in it. So only one call runs at a time.
    pub fn follow(&self) {
        let _alone = self.following.locked();
        self.follow_limits();
        let leading = self.group.leading_term();
        let applied = self.group.applied();
        self.traced.follow(leading, applied.term);
        // Before the gate may open: how closely the clocks are watched depends on it, see `shortest_timing`.
        self.follow_timing();
        let (lease, grant) = self.host.lease_and_grant();
        self.gate.tell(leading, applied.term, grant, lease.as_ref().map(|l| l.epoch));
        self.expiry.locked().watch(leading, lease.as_ref(), boot_now());
        // A set that was recovered elsewhere is never served here again, whichever gateway leads the rest of its group.
        let Some(term) = leading.filter(|t| applied.term == *t && self.head.fenced().is_none()) else {
            self.end_serving(WriteFailure::Gone);
            return;
        };
        self.follow_lease(term, lease, grant);
    }

    /// Makes the Raft snapshot follow the checkpoints on every replica. Only then is the journal freed here too.
    async fn follow_checkpoint(&self) {
        let upto = self.host.with(|m| m.snapshot_upto());
        if upto > self.group.snapshot_last()
            && let Err(e) = self.group.trigger_snapshot().await
        {
            tracing::debug!(set = %self.name, error = %e, "no snapshot");
        }
    }

    /// The clock is not reliable: `lost` of the time was not observed.
    pub fn clock_suspected(&self, lost: Duration) {
        self.gate.clock_suspected();
        self.expiry.locked().judge.clock_suspected(boot_now(), lost);
    }

    /// Serves the lease if it is ours and was granted in this term; otherwise ends the current serving.
    fn follow_lease(&self, term: Term, lease: Option<Lease>, grant: Option<GrantSeen>) {
        let mut serving = self.serving.locked();
        let current = serving.as_ref().map(|s| (s.epoch, s.term));
        match lease {
            Some(lease) if current == Some((lease.epoch, term)) => {}
            Some(lease) => {
                if let Some(old) = serving.take() {
                    holdfast_reached::reached!("serving: the same owner gets a new epoch", old.owner == lease.owner);
                    holdfast_reached::reached!("serving: the lease goes to another owner", old.owner != lease.owner);
                    // R8: an error only if another owner holds the set.
                    old.end(if old.owner == lease.owner { WriteFailure::Gone } else { WriteFailure::Fenced });
                }
                if self.granted_here(term, &lease, grant) && self.never_served(&lease) {
                    *serving = Some(Arc::new(self.start_serving(term, lease)));
                }
            }
            None => {
                if let Some(old) = serving.take() {
                    old.end(WriteFailure::Gone);
                }
            }
        }
    }

    /// Whether the lease was granted to this gateway by an entry of its own term (R6). A grant of an older term belongs
    /// to an earlier leadership, even if that was ours.
    fn granted_here(&self, term: Term, lease: &Lease, grant: Option<GrantSeen>) -> bool {
        let of_this_term = grant.is_some_and(|g| g.epoch == lease.epoch && g.id.term == term);
        holdfast_reached::reached!(
            "serving: a grant of an earlier term names this gateway",
            lease.gateway == self.me() && !of_this_term
        );
        lease.gateway == self.me() && of_this_term
    }

    /// R2: an epoch has only one sequencer, ever. After serving ends, the owner continues only under a new epoch: a
    /// second sequencer would begin at number 1 again, and its writes would be taken for already applied ones.
    fn never_served(&self, lease: &Lease) -> bool {
        holdfast_reached::reached!("serving: this epoch was served here before", lease.epoch <= *self.served.locked());
        holdfast_reached::reached!(
            "serving: this epoch has writes already",
            self.host.with(|m| m.state().last_seq.0 > 0)
        );
        lease.epoch > *self.served.locked() && self.host.with(|m| m.state().last_seq.0 == 0)
    }

    fn start_serving(&self, term: Term, lease: Lease) -> Serving {
        *self.served.locked() = lease.epoch;
        tracing::info!(set = %self.name, epoch = %lease.epoch, owner = %lease.owner, "serving");
        let closed = CancellationToken::new();
        let verdict = Arc::new(LeaseVerdict { owner: lease.owner.clone(), host: self.host.clone() });
        let group = self.group.clone();
        let pace = Arc::new(GatedPace { journal: self.pace.clone(), gate: self.gate.clone() });
        let sequencer = Sequencer::start(group, term, lease.epoch, pace, verdict, closed.clone());
        Serving {
            epoch: lease.epoch,
            term,
            owner: lease.owner,
            plain: lease.plain,
            token: lease.token,
            sequencer,
            closed,
            draining: CancellationToken::new(),
            fenced: AtomicBool::new(false),
            connections: AtomicUsize::new(0),
            emptied: Notify::new(),
        }
    }

    fn end_serving(&self, why: WriteFailure) {
        if let Some(old) = self.serving.locked().take() {
            tracing::info!(set = %self.name, epoch = %old.epoch, ?why, "serving ends");
            old.end(why);
        }
    }

    /// A plain lease ends with its connections, and those ended with the serving.
    fn end_orphaned_plain_lease(self: &Arc<Self>) {
        let Ok(_one) = self.grants.one.try_lock() else { return };
        if self.leading_ready().is_none() {
            return;
        }
        let Some(epoch) = self.orphan() else { return };
        let server = self.clone();
        tokio::spawn(async move {
            let _one = server.grants.one.lock().await;
            if server.orphan() == Some(epoch)
                && let Err(e) = server.release(epoch, None).await
            {
                tracing::debug!(set = %server.name, error = %e, "orphaned plain lease not released yet");
            }
        });
    }

    /// Epoch of a plain lease that is not served here; it can never be served again.
    fn orphan(&self) -> Option<Epoch> {
        let lease = self.lease().filter(|l| l.plain)?;
        let serving = self.serving.locked();
        let alive = serving.as_ref().is_some_and(|s| s.epoch == lease.epoch && !s.closed.is_cancelled());
        (!alive).then_some(lease.epoch)
    }

    /// After a loss of the quorum, disconnects clients so that they try other gateways instead of hanging on a
    /// minority.
    fn close_when_cut_off(&self) {
        if self.serving().is_some() && self.gate.cut_off() {
            holdfast_reached::reached!("serving: ended by the cut-off");
            tracing::warn!(set = %self.name, "no quorum for longer than an election takes: closing the connections");
            self.end_serving(WriteFailure::Gone);
        }
    }

    /// Begins a planned move: refuses new connections, and closes the open ones once their pending requests are
    /// answered. Waits at most `limit`; the caller continues the move in any case. Returns the number of clients that
    /// are left.
    pub async fn drain(&self, limit: Duration) -> usize {
        let Some(serving) = self.serving() else { return 0 };
        serving.draining.cancel();
        // Connections that need longer are closed unanswered, as in any other move (R8).
        let _ = tokio::time::timeout(limit, serving.empty()).await;
        serving.connected()
    }

    /// Called before a transfer of leadership: nothing more is served in this term, even if the transfer fails.
    pub fn stop_serving_for_transfer(&self) {
        // The gate must know the term that the transfer ends. Otherwise a later event of that term would open it again.
        self.follow();
        self.gate.transfer_started();
        self.end_serving(WriteFailure::Gone);
    }
}
