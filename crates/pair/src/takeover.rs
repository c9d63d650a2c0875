//! From the seat to served sets: what the pair's stores have becomes what a fresh node of one member serves.
//!
//! 1. Make the fresh node a cluster of one, whose id is the tenure's: what fails for good does so before a head is touched, and each has few generations.
//! 2. Look: the heads of all sets in the pair's stores, and whose each is (P3).
//! 3. Raise each that an earlier tenure, or a cluster that a person gave up, has left: by conditional PUT. From then on no flush of its former holder succeeds (P4).
//!    After a cluster that was given up: wait until a gateway of it that runs after all has noticed, as `cluster recover` does (ADR 0013).
//! 4. Restore the sets into the node, with the snapshots and the schedule that their heads list.
//!
//! A crash between any two of them is followed by another tenure, here or at the other gateway, which begins at 1. Step 3 done twice for one tenure finds its own
//! id in the head, raised for this very disk (R12). An etcd that was set back may give the same revision twice: then the head says another disk, or none.

use super::PairError;
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

/// From the seat to served sets; after that the other gateway is given a chance.
const LIMIT: Duration = Duration::from_secs(60);

/// Between two tries of what may pass.
const RETRY: Duration = Duration::from_millis(100);

/// The member that a tenure's only gateway is.
const MEMBER: MemberId = MemberId(1);

/// What a tenure's node does before it opens its doors.
pub(super) fn begin(config: GatewayConfig, authority: Arc<Authority>) -> Begin {
    Box::new(move |node| {
        Box::pin(async move {
            let (until, gave_up) = (Instant::now() + LIMIT, Mutex::default());
            let takeover = Takeover { config, authority, node, until, gave_up };
            // What hangs, hangs no longer than this: the seat is wanted elsewhere.
            let run = tokio::time::timeout(LIMIT * 2, takeover.run()).await;
            let slow = |_| PairError::Slow { limit: LIMIT * 2, last: "a step that does not end".to_owned() };
            run.map_err(slow).and_then(|outcome| outcome).map_err(RunError::from)
        })
    })
}

struct Takeover {
    /// The gateway's own, with the data directory of all tenures.
    config: GatewayConfig,
    authority: Arc<Authority>,
    node: Arc<Node>,
    until: Instant,
    /// When the head of a set was raised whose cluster the settings give up.
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
                // One set that cannot be had keeps the others from nobody.
                Err(PairError::Refused(refusal)) => {
                    tracing::error!(set = %set.head.name, error = %refusal, "a set of the pair was refused: it is not served");
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

    /// A gateway of a cluster that was given up while it runs answers until it has looked at the heads (ADR 0013), as after a recovery by hand: both would serve
    /// until then.
    async fn await_notice(&self) -> Result<(), PairError> {
        let raised = *self.gave_up.locked();
        let Some(raised) = raised else { return Ok(()) };
        tracing::info!(
            seconds = NOTICED_AFTER.as_secs(),
            "a cluster was given up: its gateways, if any runs, have so long to notice"
        );
        tokio::time::sleep_until(raised + NOTICED_AFTER).await;
        self.authority.may_answer().map_err(PairError::Over)
    }

    /// Waits a little before `last` is tried again.
    async fn again(&self, last: String) -> Result<(), PairError> {
        self.authority.may_answer().map_err(PairError::Over)?;
        if Instant::now() >= self.until {
            return Err(PairError::Slow { limit: LIMIT, last });
        }
        tracing::debug!(last, "taking over: again");
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
        let mut all: Vec<Found> = Vec::new();
        for url in &self.config.pair.stores {
            let opened = open_store(&self.config, url, Arc::new(Health::new("pair"))).await;
            let store = opened.map_err(RecoveryError::Store)?;
            let survey = recovery::survey(url, store, self.node.keys()).await?;
            for (set, why) in &survey.bad {
                tracing::error!(%set, url, why, "a set of the pair's store cannot be opened: it is left as it is, and not served");
            }
            for found in survey.sets {
                let name = &found.head.name;
                if let Some(other) = all.iter().find(|o| o.set == found.set || o.head.name == *name) {
                    tracing::error!(set = %name, url, other = other.url, "the pair's stores have two sets of that name or number: this one is left as it is, and not served");
                    continue;
                }
                all.push(found);
            }
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

    /// `None`: not this pair's to touch, or of no use.
    async fn take(&self, found: Found) -> Result<Option<Found>, PairError> {
        let (id, name) = (self.authority.id, found.head.name.clone());
        let whose = id.judge(found.head.life.cluster, self.adopted());
        let gives_up = matches!(whose, Whose::GivenUp);
        let leaves = match whose {
            // R12, of this takeover: raised for this disk, and no checkpoint since. Anything else has lived under this very name before.
            Whose::Ours if found.head.raised_for == self.node.identity().disk() => return Ok(Some(found)),
            Whose::Ours => return Err(PairError::Repeated { set: name.to_string(), revision: id.revision }),
            Whose::Later { revision } => {
                return Err(PairError::Later { set: name.to_string(), found: revision, ours: id.revision });
            }
            Whose::Foreign => {
                let cluster = hex128(found.head.life.cluster);
                tracing::error!(
                    set = %name, cluster,
                    "a set in the pair's store is another cluster's: it is left as it is, and not served. If that cluster is gone for good, name it in pair.adopt"
                );
                return Ok(None);
            }
            // A takeover is to be quick, and takes nothing from anybody: that tenure is over in any case. So of a root's leaves it is enough that nobody has deleted them:
            // a small request for each pack, many at once. To read them is all their bytes as well, which the first checkpoint fetches anyway; it names one that is damaged.
            Whose::Earlier { .. } => Leaves::There,
            // Once, and from a cluster that could be started instead: as a recovery by hand.
            Whose::GivenUp => Leaves::Read,
        };
        if let Some(obstacle) = recovery::obstacle(&found, leaves, &mut Vec::new()).await? {
            tracing::error!(set = %name, ?obstacle, "a set of the pair cannot be read: it is left as it is, and not served");
            return Ok(None);
        }
        // Listed snapshots come back as they are listed, unlooked at: what they name was there when they were listed, and nobody has deleted it since (S15). One of which
        // something was lost is then what it would have been without a takeover: there, unreadable, and named once garbage is looked for, which comes to a stop before
        // anything is deleted.
        // Not what keeps an older tenure out: that is the condition of the PUT. It keeps one that stood still from fencing a later one for nothing.
        self.authority.may_answer().map_err(PairError::Over)?;
        let raised = match recovery::raise(&found, id.cluster(), self.node.identity().disk()).await {
            Err(error @ RecoveryError::LastGeneration { .. }) => {
                tracing::error!(set = %name, %error, "a set of the pair cannot be taken over any more: it is left as it is, and not served");
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
