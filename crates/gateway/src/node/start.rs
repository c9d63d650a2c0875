//! Opens the journal, and starts group 0 with the tasks that follow it.

use super::{
    Adopted, Node, NodeError, clear_warning, clock, deletion, following, heal, reconcile, registration, retiming,
    revoked, store_migration,
};
use crate::disk_space;
use crate::identity::Identity;
use crate::node_key;
use crate::vote_embargo;
use holdfast_log::{LogConfig, RecoveryReport, Sealing};
use holdfast_raft::{NodeConfig, PROTOCOL, RaftNode};
use holdfast_set::server::raft_timing;
use holdfast_types::sync::{LockExt, RwLockExt};
use holdfast_types::{GroupId, MemberId};
use std::sync::Arc;
use std::time::Duration;

/// Entries of group 0 between two of its snapshots.
const CLUSTER_SNAPSHOT_ENTRIES: u64 = 256;

/// Logs what the journal's recovery found, and counts its bad records.
fn log_recovery(report: &RecoveryReport) {
    tracing::info!(?report, "journal opened");
    for bad in &report.corrupt {
        tracing::error!(
            file = %bad.file, offset = bad.offset, found = %bad.found, expected = %bad.expected,
            "R9: the journal has a bad record that was synced"
        );
    }
    metrics::counter!("holdfast_journal_corrupt_records_total").increment(report.corrupt.len() as u64);
}

impl Node {
    pub(super) async fn start(self: &Arc<Self>) -> Result<(), NodeError> {
        let identity = self.identity();
        let member = MemberId(identity.member);
        let journal = LogConfig {
            dir: self.config.data_dir.join("journal"),
            file_bytes: self.config.journal.file.0,
            bound_bytes: self.config.journal.bound.0,
            reserve_bytes: self.config.journal.reserve.0,
            tail_bytes: self.config.journal.tail.0,
            io: self.config.journal.io.into(),
        };
        identity.check_journal(&journal.dir)?;
        let (dir, bound) = (journal.dir.clone(), journal.bound_bytes);
        let owner = holdfast_log::Identity { disk_uuid: identity.disk(), boot: identity.boot };
        let settings = &self.config.journal;
        let sealing = node_key::open(&self.config.data_dir, identity.disk(), &self.keys, settings.seal)?;
        let sealing = sealing.map(|sealing| Sealing { reads_clear: settings.read_clear, ..sealing });
        let (open, of_journal) = (self.seams.journal.clone(), sealing.clone());
        let (log, report) = holdfast_log::spawn_blocking(move || open(journal, owner, of_journal))
            .await
            .map_err(|e| NodeError::Refused(format!("opening the journal: {e}")))??;
        self.identity.locked().journal_begun(&self.config.data_dir)?;
        log_recovery(&report);
        if let Some(why) = clear_warning(settings, log.clear_files()) {
            tracing::warn!("{why}");
        }
        if let Some(why) = disk_space::lacking(&dir, bound) {
            tracing::warn!(dir = %dir.display(), "{why}");
            // The journal is opened once per process.
            let _ = self.lacks_room.set(why);
        }
        self.begin_cache_disk().await?;
        let embargo = vote_embargo::embargo(&self.config.data_dir, self.timing)?;
        let config = NodeConfig {
            member,
            cluster: identity.cluster().unwrap_or_default(),
            snapshots: self.config.data_dir.join("raft"),
            sealing,
            timing: raft_timing(self.timing, embargo),
            dialer: self.dialer(),
            lineage: self.change_identity(Identity::life_used).await?,
            protocol: PROTOCOL,
            abort: self.seams.abort,
        };
        let raft = RaftNode::new(config, log)?;
        if embargo > self.timing.embargo() {
            let (dir, stop) = (self.config.data_dir.clone(), self.stop.clone());
            tokio::spawn(vote_embargo::settle_later(raft.clone(), dir, self.timing, stop));
        }
        *self.raft.writing() = Some(raft.clone());
        tokio::spawn(clock::run(self.clone()));
        match self.start_cluster_group(&raft, member).await {
            Err(e) if heal::healable(&e).is_some() => {
                tracing::error!(error = %e, "group 0 is damaged and starts only after it is healed");
                tokio::spawn(heal_cluster_group(self.clone(), raft, member));
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// Starts group 0, and the tasks that follow it.
    pub(super) async fn start_cluster_group(
        self: &Arc<Self>,
        raft: &RaftNode,
        member: MemberId,
    ) -> Result<(), NodeError> {
        let group = raft.start_group(GroupId::CLUSTER, self.cluster.clone(), Some(CLUSTER_SNAPSHOT_ENTRIES)).await?;
        // Before any door opens: what this member has applied counts from the start.
        self.follow_revoked();
        tokio::spawn(revoked::run(self.clone()));
        raft.set_registrar(registration::registrar(self.cluster.clone(), group.clone()));
        raft.set_migration_reporter(store_migration::reporter(Arc::downgrade(self)));
        raft.set_turn_giver(following::turn_giver(Arc::downgrade(self)));
        let adopted = Adopted { raft: raft.clone(), group, member };
        *self.adopted.writing() = Some(adopted.clone());
        tokio::spawn(registration::follow(self.clone(), adopted.clone()));
        tokio::spawn(registration::register(self.clone(), adopted.clone()));
        tokio::spawn(deletion::run(self.clone(), adopted.clone()));
        tokio::spawn(store_migration::run(self.clone(), adopted.clone()));
        (self.seams.tasks)(self.clone(), adopted.clone());
        tokio::spawn(following::run(self.clone(), adopted.clone()));
        tokio::spawn(retiming::run(self.clone(), adopted.clone()));
        tokio::spawn(reconcile::run(self.clone(), adopted));
        Ok(())
    }
}

/// Group 0 is damaged: this member asks its peers to let it rejoin, then starts the group.
async fn heal_cluster_group(node: Arc<Node>, raft: RaftNode, member: MemberId) {
    while heal::readmit(&node, &raft, GroupId::CLUSTER).await {
        match node.start_cluster_group(&raft, member).await {
            Ok(()) => return,
            Err(e) => tracing::error!(error = %e, "group 0 cannot be started"),
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

#[cfg(test)]
mod tests {
    use crate::config::GatewayConfig;
    use crate::node::Node;
    use holdfast_types::{ByteSize, MemberId};
    use tokio_util::sync::CancellationToken;

    /// JOURNAL-J10, by the settings of a gateway.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_journal_in_clear_is_read_by_a_gateway_that_seals_only_if_it_is_told_to() {
        let dir = tempfile::tempdir().unwrap();
        let key = dir.path().join("key");
        crate::node_key::write_key(&key);
        let open = |seal, read_clear| {
            let mut config = GatewayConfig { data_dir: dir.path().join("data"), ..GatewayConfig::default() };
            config.key.file = Some(key.clone());
            config.cache.disk = ByteSize(0);
            config.journal.file = ByteSize(16 << 20);
            (config.journal.seal, config.journal.read_clear) = (seal, read_clear);
            Node::open(config, CancellationToken::new())
        };
        let node = open(false, false).await.unwrap();
        node.adopt(7, MemberId(1)).await.unwrap();
        assert!(node.raft().unwrap().log().clear_files() > 0);
        node.stop.cancel();
        node.close().await;
        let refused = open(true, false).await.err().expect("anybody could have written it").to_string();
        assert!(refused.contains("in clear") && refused.contains("journal.read_clear"), "{refused}");
        let node = open(true, true).await.unwrap();
        let warnings = node.warnings();
        assert!(warnings.iter().any(|line| line.starts_with("journal.read_clear is on")), "{warnings:?}");
        node.stop.cancel();
        node.close().await;
    }
}
