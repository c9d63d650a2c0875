//! From the seat to served sets: a fresh node of one member takes over the sets in the pair's stores.
//!
//! 1. Make the fresh node a cluster of one, whose id is the tenure's. Permanent errors then show up before any head is
//!    touched; each head has a limited number of generations.
//! 2. Read the heads of all sets in the pair's stores, and find out which tenure or cluster owns each (PAIR-P3).
//! 3. Raise each head that an earlier tenure has left, or a cluster that the operator gave up, by a conditional PUT.
//!    From then on no flush of its former holder succeeds (PAIR-P4). After a cluster that was given up: wait until its
//!    gateways, if one still runs, have noticed, as `cluster recover` does (ADR 0013).
//! 4. Restore the sets into the node, with the snapshots and the schedule in their heads.
//!
//! After a crash between two steps, another tenure follows, on this gateway or the other one, and begins at 1. If step
//! 3 is repeated for one tenure, it finds its own id in the head, raised for this same disk (R12). An etcd that was
//! restored to an old state may issue the same revision twice: then the head names another disk, or none.

use super::error::PairError;
use holdfast_api::{Disposition, Refusal, hex128, member_of, v1};
use holdfast_control::pair::Whose;
use holdfast_gateway::admin::AdminDoor;
use holdfast_gateway::config::GatewayConfig;
use holdfast_gateway::node::Node;
use holdfast_gateway::store_options::open_store;
use holdfast_gateway::{Begin, RunError};
use holdfast_set::authority::Authority;
use holdfast_set::head::NOTICED_AFTER;
use holdfast_set::random::random_u128;
use holdfast_set::recovery::{self, Found, Leaves, RecoveryError};
use holdfast_store::Health;
use holdfast_types::MemberId;
use holdfast_types::sync::LockExt;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

/// Time limit from the seat to served sets; after that, the other gateway gets its chance.
const LIMIT: Duration = Duration::from_secs(60);

/// Pause between two attempts after an error that may pass.
const RETRY: Duration = Duration::from_millis(100);

/// The member id of a tenure's only gateway.
const MEMBER: MemberId = MemberId(1);

/// Work of a tenure's node before its listeners open.
pub(super) fn begin(config: GatewayConfig, authority: Arc<Authority>) -> Begin {
    Box::new(move |node| {
        Box::pin(async move {
            let (until, gave_up) = (Instant::now() + LIMIT, Mutex::default());
            let takeover = Takeover { config, authority, node, until, gave_up };
            // Even a hanging step ends after this: the other gateway may want the seat.
            let run = tokio::time::timeout(LIMIT * 2, takeover.run()).await;
            let slow = |_| PairError::Slow { limit: LIMIT * 2, last: "a step that does not end".to_owned() };
            run.map_err(slow).and_then(|outcome| outcome).map_err(RunError::from)
        })
    })
}

struct Takeover {
    /// The gateway's own settings, with the data directory of all tenures.
    config: GatewayConfig,
    authority: Arc<Authority>,
    node: Arc<Node>,
    until: Instant,
    /// When the first head of a given-up cluster was raised.
    gave_up: Mutex<Option<Instant>>,
}

impl Takeover {
    async fn run(&self) -> Result<(), PairError> {
        let begun = Instant::now();
        self.found_cluster().await?;
        let taken = self.take_all().await?;
        self.await_notice().await?;
        let took = begun.elapsed();
        let mut found = Vec::new();
        for set in taken {
            match self.restore(&set).await {
                Ok(()) => found.push(set),
                // A set that cannot be restored must not keep the others from being served.
                Err(PairError::Refused(refusal)) => {
                    tracing::error!(set = %set.head.name, error = %refusal, "a set of the pair was refused and is not served");
                }
                Err(error) => return Err(error),
            }
        }
        for set in &found {
            self.await_leader(set).await?;
        }
        tracing::info!(sets = found.len(), heads = ?took, all = ?begun.elapsed(), "the pair's sets are served here");
        Ok(())
    }

    /// If a gateway of a given-up cluster still runs, it answers until it has checked the heads (ADR 0013), as after a
    /// manual recovery. Until then both would serve.
    async fn await_notice(&self) -> Result<(), PairError> {
        let raised = *self.gave_up.locked();
        let Some(raised) = raised else { return Ok(()) };
        tracing::info!(
            seconds = NOTICED_AFTER.as_secs(),
            "a cluster was given up: waiting so that its gateways, if one still runs, can notice"
        );
        tokio::time::sleep_until(raised + NOTICED_AFTER).await;
        self.authority.may_answer().map_err(PairError::Over)
    }

    /// Pauses before `last` is retried.
    async fn again(&self, last: String) -> Result<(), PairError> {
        self.authority.may_answer().map_err(PairError::Over)?;
        if Instant::now() >= self.until {
            return Err(PairError::Slow { limit: LIMIT, last });
        }
        tracing::debug!(last, "taking over: retrying");
        tokio::time::sleep(RETRY).await;
        Ok(())
    }

    /// Steps 2 and 3, until both are done.
    async fn take_all(&self) -> Result<Vec<Found>, PairError> {
        loop {
            match self.take_once().await {
                Ok(found) => return Ok(found),
                Err(PairError::Recovery(e)) if e.may_pass() || matches!(e, RecoveryError::Changed { .. }) => {
                    self.again(e.to_string()).await?;
                }
                Err(e) => return Err(e),
            }
        }
    }

    async fn take_once(&self) -> Result<Vec<Found>, PairError> {
        let (mut all, mut unopened): (Vec<Found>, Vec<String>) = (Vec::new(), Vec::new());
        for url in &self.config.pair.stores {
            let opened = open_store(&self.config, url, Arc::new(Health::new("pair"))).await;
            let store = opened.map_err(RecoveryError::Store)?;
            let survey = recovery::survey(url, store, self.node.keys()).await?;
            for (set, why) in &survey.bad {
                tracing::error!(%set, url, why, "a set of the pair's store cannot be opened: it is left unchanged and not served");
            }
            unopened.extend(survey.bad.into_iter().map(|(_, why)| why));
            for found in survey.sets {
                let name = &found.head.name;
                if let Some(other) = all.iter().find(|o| o.set == found.set || o.head.name == *name) {
                    tracing::error!(set = %name, url, other = other.url, "two sets of the pair have the same name or number: this one is not served");
                    continue;
                }
                all.push(found);
            }
        }
        if all.is_empty()
            && let Some(first) = unopened.first()
        {
            return Err(PairError::Unopened { sets: unopened.len(), first: first.clone() });
        }
        all.sort_by_key(|found| found.set);
        let mut taken = Vec::new();
        for found in all {
            if let Some(found) = self.take(found).await? {
                taken.push(found);
            }
        }
        Ok(taken)
    }

    /// `None`: the set is not this pair's, or cannot be used.
    async fn take(&self, found: Found) -> Result<Option<Found>, PairError> {
        let (id, name) = (self.authority.id, found.head.name.clone());
        let whose = id.judge(found.head.life.cluster, self.adopted());
        let gives_up = matches!(whose, Whose::GivenUp);
        let leaves = match whose {
            // R12: raised by this takeover, for this disk, and without a checkpoint since. Otherwise another life has
            // used the same tenure id before.
            Whose::Ours if found.head.raised_for == self.node.identity().disk() => return Ok(Some(found)),
            Whose::Ours => return Err(PairError::Repeated { set: name.to_string(), revision: id.revision }),
            Whose::Later { revision } => {
                return Err(PairError::Later { set: name.to_string(), found: revision, ours: id.revision });
            }
            Whose::Foreign => {
                let cluster = hex128(found.head.life.cluster);
                tracing::error!(
                    set = %name, cluster,
                    "a set in the pair's store belongs to another cluster: it is left unchanged and not served. \
                     If that cluster is gone for good, name it in pair.adopt"
                );
                return Ok(None);
            }
            // A takeover must be fast. It takes nothing from a running gateway, because that tenure is over in any
            // case. So it is enough to check that nobody has deleted the root's leaves: one small request for each
            // pack, many at once. Reading them would transfer all their bytes, which the first checkpoint does anyway;
            // it reports a damaged one.
            Whose::Earlier { .. } => Leaves::There,
            // Once, and from a cluster that could be started again instead: read everything, as in a manual recovery.
            Whose::GivenUp => Leaves::Read,
        };
        if let Some(obstacle) = recovery::obstacle(&found, leaves, &mut Vec::new()).await? {
            tracing::error!(set = %name, ?obstacle, "a set of the pair cannot be read: it is left unchanged and not served");
            return Ok(None);
        }
        // Listed snapshots are restored unchecked. Their objects existed when they were listed, and nobody has deleted
        // them since (SET-S15). A snapshot that has lost an object is in the same state as without a takeover: present,
        // but unreadable. Garbage collection reports it and stops before it deletes anything. This check does not keep
        // an older tenure out; the condition of the PUT does. It keeps a tenure that stood still from fencing a later
        // one needlessly.
        self.authority.may_answer().map_err(PairError::Over)?;
        let raised = match recovery::raise(&found, id.cluster(), self.node.identity().disk()).await {
            Err(error @ RecoveryError::LastGeneration { .. }) => {
                tracing::error!(set = %name, %error, "a set of the pair cannot be taken over any more: it is left unchanged and not served");
                return Ok(None);
            }
            raised => raised?,
        };
        if gives_up {
            *self.gave_up.locked() = Some(Instant::now());
        }
        let covered = found.head.covered.map(|covered| covered.upto);
        let (generation, snapshots) = (raised.head.life.generation, raised.head.links.snapshots.snapshots.len());
        tracing::info!(set = %name, generation, ?covered, snapshots, "taken over");
        Ok(Some(raised))
    }

    fn adopted(&self) -> Option<u128> {
        let text = self.config.pair.adopt.as_deref()?;
        holdfast_api::disk_from_text("pair.adopt", text).ok()
    }

    /// Step 1.
    async fn found_cluster(&self) -> Result<(), PairError> {
        let cluster = self.authority.id.cluster();
        self.node.adopt(cluster, MEMBER).await?;
        let door = AdminDoor::new(self.node.clone());
        let us = door.get_node(v1::GetNodeRequest {}).await.map_err(PairError::Refused)?;
        let request = v1::InitClusterRequest {
            cluster_id: hex128(cluster),
            members: vec![member_of(&us)],
            request_id: hex128(random_u128()),
        };
        loop {
            match door.init_cluster(request.clone()).await {
                Ok(_) => break,
                Err(refusal) if may_pass(&refusal) => self.again(refusal.to_string()).await?,
                Err(refusal) => return Err(PairError::Refused(refusal)),
            }
        }
        Ok(())
    }

    /// Step 4, one set.
    async fn restore(&self, found: &Found) -> Result<(), PairError> {
        let door = AdminDoor::new(self.node.clone());
        loop {
            let request = v1::RestoreSetRequest {
                store: found.url.clone(),
                set: found.set.0,
                generation: found.head.life.generation,
                request_id: hex128(random_u128()),
            };
            match door.restore_set(request).await {
                Ok(_) => return Ok(()),
                Err(refusal) if may_pass(&refusal) => self.again(refusal.to_string()).await?,
                Err(refusal) => return Err(PairError::Refused(refusal)),
            }
        }
    }

    async fn await_leader(&self, found: &Found) -> Result<(), PairError> {
        loop {
            let served = self.node.set(&found.head.name).is_some_and(|set| set.leading_ready().is_some());
            if served {
                return Ok(());
            }
            self.again(format!("set {} has no leader yet", found.head.name)).await?;
        }
    }
}

fn may_pass(refusal: &Refusal) -> bool {
    matches!(refusal.code.disposition(), Disposition::Retry | Disposition::Unknown)
}

#[cfg(test)]
mod tests;
