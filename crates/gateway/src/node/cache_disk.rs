//! The cache's disk: taken once this process holds the journal's lock, and opened beside the groups.
//!
//! A second process on the same data directory is refused by the journal before it reaches the cache. The cache's own
//! lock (CACHE-C8) is for folders that links or mounts lead two data directories to.

use super::{Node, NodeError};
use std::time::Duration;

/// How long a start waits for the cache's disk, so that the first reads find it. A large disk is opened further while
/// the groups run: this member votes meanwhile, and reads ask the store.
const DISK_PATIENCE: Duration = Duration::from_secs(1);

impl Node {
    /// Takes the folder of the cache's disk, if there is one, and begins to open it. Called with the journal open.
    pub(super) async fn begin_cache_disk(&self) -> Result<(), NodeError> {
        let (dir, bytes) = (self.config.data_dir.join("cache"), self.config.cache.disk.0);
        if bytes == 0 {
            return Ok(());
        }
        let opening = self.cache.begin_disk(dir, bytes).map_err(|e| NodeError::Cache(e.to_string()))?;
        if tokio::time::timeout(DISK_PATIENCE, tokio::spawn(opening)).await.is_err() {
            tracing::info!("the cache's disk is still being opened: reads ask the store until then");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::config::GatewayConfig;
    use crate::node::Node;
    use holdfast_types::{ByteSize, MemberId};
    use std::os::unix::fs::MetadataExt;
    use std::time::{Duration, Instant};
    use tokio_util::sync::CancellationToken;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Its cache has another size: a second process would drop the files.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_second_process_touches_no_cache_of_a_running_gateway() {
        let dir = tempfile::tempdir().unwrap();
        let key = dir.path().join("key");
        crate::node_key::write_key(&key);
        let open = |data: &str, disk| {
            let mut config = GatewayConfig { data_dir: dir.path().join(data), ..GatewayConfig::default() };
            config.key.file = Some(key.clone());
            config.cache.disk = ByteSize(disk);
            config.journal.file = ByteSize(16 << 20);
            Node::open(config, CancellationToken::new())
        };
        let node = open("data", 64 << 20).await.unwrap();
        let cache = dir.path().join("data/cache");
        assert!(!cache.exists(), "nothing is locked before the journal is there");
        node.adopt(7, MemberId(1)).await.unwrap();
        let begun = Instant::now();
        while !node.cache().stats().disk {
            assert!(begun.elapsed() < PATIENCE, "the cache has no disk");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let ring = || std::fs::metadata(cache.join("ring")).map(|meta| (meta.ino(), meta.len())).unwrap();
        let before = ring();
        let refused = open("data", 128 << 20).await.err().expect("the journal is in use").to_string();
        assert!(refused.contains("another process holds its lock"), "{refused}");
        assert_eq!(ring(), before);

        // Another data directory, with a link to the same cache.
        let other = open("other", 128 << 20).await.unwrap();
        std::os::unix::fs::symlink(&cache, dir.path().join("other/cache")).unwrap();
        let refused = other.adopt(7, MemberId(2)).await.expect_err("the cache is in use").to_string();
        assert!(refused.contains("other/cache: found its lock held"), "{refused}");
        assert_eq!(ring(), before);
        for node in [node, other] {
            node.stop.cancel();
            node.close().await;
        }
    }
}
