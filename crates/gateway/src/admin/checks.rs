//! What is checked before a set is created: new stores, before it relies on them (ADR 0008; `store/src/check.rs` has
//! the requirements), and the cluster key. Only the leader of group 0 does this: it decides which sets are created, and
//! in which stores.

use super::AdminDoor;
use super::stores::not_opened;
use futures_util::future::join_all;
use holdfast_api::{Refusal, RefusalCode, different_places, v1};
use holdfast_control::cluster::ClusterState;
use holdfast_seal::ClusterKey;
use holdfast_set::random::random_u128;
use holdfast_store::{CheckError, ObjectStore, check};
use holdfast_types::SetId;
use std::sync::Arc;

/// Most different lists of allowed stores that a refusal names.
const TOLD_MAX: usize = 4;

impl AdminDoor {
    /// Checks each of these stores by itself, all at once: each of them is in some write quorum. Returns the problems
    /// by URL.
    pub(super) async fn check_each(&self, stores: &[(String, Arc<dyn ObjectStore>)]) -> Vec<(String, CheckError)> {
        let Some(limit) = self.node.check_limit() else { return Vec::new() };
        let checks = stores.iter().map(|(url, store)| async move {
            let problem = check(&**store, random_u128(), limit).await.err()?;
            Some((url.clone(), problem))
        });
        join_all(checks).await.into_iter().flatten().collect()
    }

    /// Checks stores before a set is created in them. If a store does not answer, the set is created all the same (R8):
    /// its journal takes the writes meanwhile. If a store answers but refuses, or behaves in a way that sets cannot
    /// rely on, the set is not created.
    pub(super) async fn check_for_new_set(&self, urls: &[String], set: SetId) -> Result<(), Refusal> {
        if self.node.check_limit().is_none() {
            return Ok(());
        }
        let mut stores = Vec::new();
        for url in urls {
            let opened = self.node.open_place(url, set).await;
            stores.push((url.clone(), opened.map_err(|e| not_opened(&e, format!("store: {e}")))?));
        }
        for (url, problem) in self.check_each(&stores).await {
            if !problem.is_undecided() {
                return Err(Refusal::new(RefusalCode::Precondition, format!("store: {problem}")));
            }
            tracing::warn!(
                store = %url, %problem,
                "a set is created in a store that could not be checked for conditional PUTs: run `holdfast store check` once it answers"
            );
        }
        Ok(())
    }

    /// ACCESS-A8, before a set is put into stores where it is not yet. Who does not answer is not compared: one gateway
    /// that is down must keep nobody from making sets, and whichever leads has compared those that it reaches.
    pub(super) async fn places_agree(&self) -> Result<(), Refusal> {
        let status = self.cluster_status(v1::ClusterStatusRequest {}).await?;
        let told = different_places(&status);
        if told.is_empty() {
            return Ok(());
        }
        let all: Vec<String> = told.iter().take(TOLD_MAX).map(|[names, places]| format!("{names}: {places}")).collect();
        let message = format!(
            "store: found different lists of allowed stores (store.allowed) at the gateways, expected the same at all of \
             them (ACCESS-A8): {}. Give all of them the same list, and ask again",
            all.join("; ")
        );
        Err(Refusal::new(RefusalCode::Precondition, message))
    }

    /// The cluster key that wraps the data key of a new set.
    pub(super) fn wrapping_key(&self, state: &ClusterState) -> Result<&ClusterKey, Refusal> {
        let key = self.node.keys().for_new_set(&state.sets);
        key.map_err(|why| Refusal::new(RefusalCode::Precondition, why.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::{Asked, asked};
    use crate::config::{GatewayConfig, KeyConfig};
    use crate::node::{Node, Seams};
    use crate::run::serve_api;
    use holdfast_api::v1::admin_server::Admin;
    use holdfast_api::{hex128, member_of};
    use holdfast_store::{Faults, Faulty, Memory, RetryPolicy, Retrying, StoreError};
    use holdfast_tls::Role;
    use holdfast_types::{ByteSize, GroupId, MemberId, Name};
    use std::path::PathBuf;
    use std::time::{Duration, Instant};
    use tokio::net::TcpListener;
    use tokio_util::sync::CancellationToken;
    use tonic::Request;

    /// Longer than any test.
    const PATIENCE: Duration = Duration::from_secs(60);
    const CLUSTER: u128 = 9;

    type Store = Arc<Retrying<Faulty<Memory>>>;

    fn store(faults: Faults) -> Store {
        let retry = RetryPolicy { attempts_max: 4, backoff_first_ms: 1, backoff_max_ms: 2, ..RetryPolicy::default() };
        Arc::new(Retrying::new(Faulty::new(Memory::new(), 1, faults), retry))
    }

    /// A cluster of one gateway with two stores: one that works, and one with these faults, for each URL that ends in
    /// `bad`. A store whose URL ends in `hangs` is never opened.
    struct Lab {
        dir: tempfile::TempDir,
        node: Arc<Node>,
        good: Store,
        bad: Store,
    }

    impl Lab {
        async fn new(faults: Faults, limit: Duration) -> Self {
            Self::with_limit(faults, Some(limit)).await
        }

        async fn with_limit(faults: Faults, check_limit: Option<Duration>) -> Self {
            let by_file = |key| KeyConfig { file: Some(key), ..KeyConfig::default() };
            Self::by(by_file, faults, check_limit).await
        }

        /// `source`: how the cluster key comes from a file.
        async fn by(source: impl FnOnce(PathBuf) -> KeyConfig, faults: Faults, check_limit: Option<Duration>) -> Self {
            let dir = tempfile::tempdir().unwrap();
            crate::node_key::write_key(&dir.path().join("key"));
            let mut config = GatewayConfig { data_dir: dir.path().join("node"), ..GatewayConfig::default() };
            config.key = source(dir.path().join("key"));
            config.journal.bound = ByteSize(256 << 20);
            config.journal.reserve = ByteSize(64 << 20);
            config.journal.file = ByteSize(16 << 20);
            config.cache.memory = ByteSize(32 << 20);
            config.cache.disk = ByteSize(0);
            // Valid, as those of each gateway that runs; nothing listens there.
            config.nbd_listen = GatewayConfig::example().nbd_listen;
            config.upload.bytes = ByteSize(16 << 20);
            let (good, bad) = (store(Faults::default()), store(faults));
            let (well, spoilt) = (good.clone(), bad.clone());
            let seams = Seams {
                store: Arc::new(move |_, url: &str, _| {
                    if url.ends_with("hangs") {
                        return Box::pin(std::future::pending());
                    }
                    let store: Arc<dyn ObjectStore> = if url.ends_with("bad") { spoilt.clone() } else { well.clone() };
                    Box::pin(std::future::ready(Ok::<_, StoreError>(store)))
                }),
                check_limit,
                ..Seams::default()
            };
            let node = Node::open_over(config, CancellationToken::new(), seams).await.unwrap();
            node.adopt(CLUSTER, MemberId(1)).await.unwrap();
            let lab = Self { dir, node, good, bad };
            let us = lab.door().get_node(v1::GetNodeRequest {}).await.unwrap();
            let (members, request_id) = (vec![member_of(&us)], hex128(random_u128()));
            let init = v1::InitClusterRequest { cluster_id: hex128(CLUSTER), members, request_id };
            let begun = Instant::now();
            while let Err(refusal) = lab.door().init_cluster(init.clone()).await {
                assert!(begun.elapsed() < PATIENCE, "{refusal}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            lab
        }

        fn door(&self) -> AdminDoor {
            AdminDoor::new(self.node.clone())
        }

        fn url(&self, name: &str) -> String {
            format!("file://{}", self.dir.path().join(name).display())
        }

        async fn create(&self, stores: &str) -> Result<bool, Refusal> {
            self.create_named("demo", stores).await
        }

        async fn create_named(&self, name: &str, stores: &str) -> Result<bool, Refusal> {
            let request_id = hex128(random_u128());
            let request = v1::CreateSetRequest { name: name.into(), store: stores.into(), request_id, policy: None };
            self.door().create_set(request).await.map(|reply| reply.created)
        }

        async fn change(&self, store: &str, check_only: bool) -> Result<bool, Refusal> {
            let stores = vec![store.to_string()];
            let request = v1::ChangeStoresRequest { set: "demo".into(), stores, check_only, ..Default::default() };
            self.door().change_stores(request).await.map(|reply| reply.changed)
        }

        async fn close(self) {
            self.node.stop.cancel();
            self.node.close().await;
        }
    }

    fn refused<T: std::fmt::Debug>(outcome: Result<T, Refusal>, says: &str) {
        let refusal = outcome.expect_err(says);
        assert_eq!(refusal.code, RefusalCode::Precondition, "{refusal}");
        assert!(refusal.message.contains(says), "{says:?} in {refusal}");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_set_comes_into_a_store_that_ignores_conditions() {
        for (faults, word) in [
            (Faults { ignores_if_none_match: true, ..Faults::default() }, "If-None-Match"),
            (Faults { ignores_if_match: true, ..Faults::default() }, "If-Match"),
        ] {
            let lab = Lab::new(faults, PATIENCE).await;
            let (good, bad) = (lab.url("good"), lab.url("bad"));
            refused(lab.create(&bad).await, word);
            // The same if it is one of several: it would be in some write quorum.
            refused(lab.create(&format!("w=2 {good} {} {bad}", lab.url("better"))).await, word);
            assert!(lab.node.cluster.state().sets.is_empty(), "nothing was created");
            assert_eq!(lab.create(&good).await, Ok(true));
            // R12: when the request is repeated, the set exists, and its store is not asked.
            assert_eq!(lab.create(&good).await, Ok(false));
            for check_only in [true, false] {
                refused(lab.change(&bad, check_only).await, word);
            }
            assert!(lab.bad.within().within().is_empty(), "a check deletes what it wrote");
            assert!(lab.good.list("check/", None).await.unwrap().objects.is_empty());
            lab.close().await;
        }
    }

    /// R2: a lease's time is in its grant, so that all gateways judge its end alike, whatever their settings say.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_lease_in_force_keeps_its_time_when_the_setting_changes() {
        let lab = Lab::new(Faults::default(), PATIENCE).await;
        assert_eq!(lab.create(&lab.url("good")).await, Ok(true));
        let acquired = async |owner: &str| {
            let (set, owner, request_id) = ("demo".to_string(), owner.to_string(), hex128(random_u128()));
            let ask = v1::AcquireLeaseRequest { set, owner, request_id, force: true, ..Default::default() };
            let begun = Instant::now();
            loop {
                match lab.door().acquire_lease(ask.clone()).await {
                    Ok(grant) => return grant.lease.unwrap().ttl_ms,
                    Err(refusal) => assert!(begun.elapsed() < PATIENCE, "{refusal}"),
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        assert_eq!(acquired("pg1").await, 3000);
        let changed = GatewayConfig { lease_ttl_ms: 1500, ..lab.node.config.clone() };
        lab.node.settings.take(Ok(changed), 1).unwrap();
        let held = lab.node.set(&Name::new("demo").unwrap()).unwrap().lease().unwrap();
        assert_eq!(held.ttl_ms, 3000, "as it was granted");
        assert_eq!(acquired("pg2").await, 1500, "the next one");
        lab.close().await;
    }

    /// ACCESS-A8: the others are told what the door goes by, after a reload too.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn allowed_stores_that_change_count_at_once() {
        let lab = Lab::new(Faults::default(), PATIENCE).await;
        let mut changed = lab.node.config.clone();
        changed.store.allowed = vec!["s3://bucket/".to_string()];
        lab.node.settings.take(Ok(changed), 1).unwrap();
        let us = lab.door().get_node(v1::GetNodeRequest {}).await.unwrap();
        assert_eq!(us.allowed_stores.unwrap().places, ["s3://bucket/"]);
        let (name, store, request_id) = ("demo".to_string(), lab.url("good"), hex128(random_u128()));
        let ask = Request::new(v1::CreateSetRequest { name, store, request_id, policy: None });
        let refusal = Admin::create_set(&lab.door(), ask).await.expect_err("it is not allowed any more");
        assert!(refusal.message().contains("store.allowed"), "{refusal}");
        lab.close().await;
    }

    /// A gateway that has joined the cluster of `lab` and allows these stores, as it serves its admin door.
    async fn beside(lab: &Lab, allowed: &[&str]) -> (Arc<Node>, tokio::task::JoinHandle<crate::run::DoorEnd>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut config = GatewayConfig { data_dir: lab.dir.path().join("beside"), ..GatewayConfig::default() };
        config.name = Name::new("g2").unwrap();
        config.key.file = Some(lab.dir.path().join("key"));
        (config.api_listen, config.peer_listen) = (listener.local_addr().unwrap(), "127.0.0.1:1".parse().unwrap());
        config.cache.memory = ByteSize(32 << 20);
        config.cache.disk = ByteSize(0);
        config.store.allowed = allowed.iter().map(ToString::to_string).collect();
        let node = Node::open_over(config, CancellationToken::new(), Seams::default()).await.unwrap();
        let serving = tokio::spawn(serve_api(
            listener,
            node.clone(),
            crate::admin::guarded_admin(node.clone(), None),
            node.stop.clone(),
        ));
        let us = AdminDoor::new(node.clone()).get_node(v1::GetNodeRequest {}).await.unwrap();
        let (gateway, request_id) = (Some(member_of(&us)), hex128(random_u128()));
        let join = v1::JoinMemberRequest { gateway, replaces: 0, request_id };
        lab.door().join_member(join).await.unwrap();
        (node, serving)
    }

    /// ACCESS-A8: a set, and a place that is new to a set.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_set_is_put_into_a_store_while_the_gateways_allow_different_ones() {
        for allowed in [&["s3://bucket/"][..], &[]] {
            let lab = Lab::new(Faults::default(), PATIENCE).await;
            let [good, second, third] = ["good", "second", "third"].map(|name| lab.url(name));
            let stores = format!("w=2 {good} {second} {third}");
            assert_eq!(lab.create(&stores).await, Ok(true));
            let (node, serving) = beside(&lab, allowed).await;
            if allowed.is_empty() {
                // Nor is this one created, until the other one has started; for another reason.
                let refusal = lab.create_named("second", &lab.url("good")).await.expect_err("it does not run");
                assert_eq!(refusal.code, RefusalCode::Busy, "{refusal}");
                let change = lab.change(&lab.url("better"), true).await;
                assert!(!change.is_err_and(|refusal| refusal.message.contains("ACCESS-A8")));
            } else {
                refused(lab.create_named("second", &lab.url("good")).await, "g2: s3://bucket/");
                refused(lab.change(&lab.url("better"), true).await, "g1: anywhere");
                assert_eq!(lab.change(&good, true).await, Ok(true), "stores are taken from it, and none is new to it");
                let restore = v1::RestoreSetRequest { store: lab.url("good"), set: 44, ..Default::default() };
                refused(lab.door().restore_set(restore).await, "ACCESS-A8");
                assert_eq!(lab.create(&stores).await, Ok(false), "R12: it is there");
            }
            node.stop.cancel();
            node.close().await;
            assert_eq!(serving.await.unwrap().1, Ok(()));
            lab.close().await;
        }
    }

    /// A call that has passed the door.
    fn by<M>(asked: &Asked, message: M) -> Request<M> {
        let mut request = Request::new(message);
        request.extensions_mut().insert(asked.clone());
        request
    }

    /// ACCESS-A7, through the calls.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_host_of_one_set_is_told_no_other_name() {
        let lab = Lab::new(Faults::default(), PATIENCE).await;
        for name in ["demo", "secret"] {
            assert_eq!(lab.create_named(name, &lab.url(&format!("{name}-good"))).await, Ok(true));
        }
        let begun = Instant::now();
        while ["demo", "secret"].iter().any(|name| lab.node.set(&Name::new(*name).unwrap()).is_none()) {
            assert!(begun.elapsed() < PATIENCE, "the sets do not start");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let certificates = tempfile::tempdir().unwrap();
        let all = asked(certificates.path()).await;
        for (role, sees) in [(Role::Viewer, true), (Role::Admin, true), (Role::Host, false)] {
            let status = by(&all[&role], v1::ClusterStatusRequest {});
            let status = Admin::cluster_status(&lab.door(), status).await.unwrap().into_inner();
            let node = Admin::get_node(&lab.door(), by(&all[&role], v1::GetNodeRequest {})).await.unwrap().into_inner();
            assert_eq!(status.groups.len(), 3, "numbers are told");
            let told = [format!("{status:?}"), format!("{node:?}")];
            assert!(told[0].contains("demo"), "{role}: {told:?}");
            assert_eq!(told.each_ref().map(|told| told.contains("secret")), [sees; 2], "{role}: {told:?}");
        }
        lab.close().await;
    }

    /// KEYRING-W1, at the door. The file is a passphrase as well.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_new_cluster_with_a_weak_passphrase_gets_no_set() {
        let weak = |file| KeyConfig { passphrase_file: Some(file), ..KeyConfig::default() };
        let lab = Lab::by(weak, Faults::default(), Some(PATIENCE)).await;
        refused(lab.create(&lab.url("good")).await, "holdfast key kdf");
        assert!(lab.node.cluster.state().sets.is_empty(), "nothing was created");
        let said = lab.door().get_node(v1::GetNodeRequest {}).await.unwrap().keys.unwrap_or_default();
        assert!(said.not_for_new.contains("m=65536"), "{said:?}");
        lab.close().await;
    }

    /// The journal takes the writes meanwhile (R8).
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_store_that_loses_answers_or_is_away_keeps_nobody_from_making_a_set() {
        let lossy = Faults { fail_before: 300, fail_after: 300, own_conflict: 100, ..Faults::default() };
        let down = Faults { down: true, ..Faults::default() };
        for (faults, limit) in [(lossy, PATIENCE), (down, Duration::from_millis(300))] {
            let lab = Lab::new(faults, limit).await;
            assert_eq!(lab.create(&lab.url("bad")).await, Ok(true));
            lab.bad.within().set(Faults::default());
            assert!(lab.bad.list("check/", None).await.unwrap().objects.is_empty());
            lab.close().await;
        }
    }

    /// Before anything is made. A set of one gateway that asks for nothing violates nothing.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_policy_that_one_gateway_cannot_meet_is_refused() {
        let lab = Lab::new(Faults::default(), PATIENCE).await;
        let policy = || Some(v1::Policy { survive: "host".into(), ..Default::default() });
        let (name, store, request_id) = ("demo".to_string(), lab.url("good"), hex128(random_u128()));
        let create = v1::CreateSetRequest { name, store, request_id, policy: policy() };
        refused(lab.door().create_set(create).await, "needs 3 gateways or witnesses, found 1: g1; add a gateway");
        assert!(lab.node.cluster.state().sets.is_empty(), "nothing was created");
        assert_eq!(lab.create(&lab.url("good")).await, Ok(true));
        let change = v1::ChangePolicyRequest { set: "demo".into(), policy: policy(), ..Default::default() };
        refused(lab.door().change_policy(change).await, "needs 3 gateways");
        let home = Some(v1::Policy { home: "local".into(), ..Default::default() });
        let change = v1::ChangePolicyRequest { set: "demo".into(), policy: home.clone(), ..Default::default() };
        let placing = lab.door().change_policy(change.clone()).await.unwrap();
        assert_eq!((placing.voters, placing.violations), (vec![1], vec![]));
        assert_eq!(lab.door().change_policy(change.clone()).await.map(|_| ()), Ok(()), "R12");
        let stale = v1::ChangePolicyRequest { policy: None, expected: Some(v1::Policy::default()), ..change };
        refused(lab.door().change_policy(stale).await, "it was changed meanwhile");
        let policy = Some(v1::Policy { forbidden_regions: vec!["mars".into()], ..Default::default() });
        let change = v1::ChangePolicyRequest { set: "demo".into(), policy, ..Default::default() };
        lab.door().change_policy(change).await.unwrap();
        let gateway = Some(v1::Member {
            name: "g2".into(),
            disk: hex128(77),
            locality: "region=mars,zone=a".into(),
            addresses: Some(v1::Addresses { peer: "a:1".into(), api: "a:2".into(), ..Default::default() }),
            level: holdfast_control::cluster::FEATURE_LEVEL,
            ..Default::default()
        });
        let join = v1::JoinMemberRequest { gateway, replaces: 1, request_id: hex128(random_u128()) };
        refused(lab.door().join_member(join).await, "which the policy of set demo forbids");
        lab.close().await;
    }

    /// Meanwhile, the task that starts the sets of group 0 continues.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_set_whose_store_hangs_keeps_no_other_set_from_starting() {
        let lab = Lab::with_limit(Faults::default(), None).await;
        assert_eq!(lab.create_named("first", &lab.url("hangs")).await, Ok(true));
        assert_eq!(lab.create_named("second", &lab.url("good")).await, Ok(true));
        let [first, second] = ["first", "second"].map(|name| Name::new(name).unwrap());
        let begun = Instant::now();
        while lab.node.set(&second).is_none() {
            assert!(begun.elapsed() < PATIENCE / 2, "the second set does not start");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(lab.node.set(&first).is_none(), "its store is there: nothing is tested");
        lab.close().await;
    }

    /// The place may be taken, for example, by a head from before a recovery. The same if the stores themselves are not
    /// checked.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_number_that_is_taken_in_the_store_is_passed_over() {
        for limit in [Some(PATIENCE), None] {
            let lab = Lab::with_limit(Faults::default(), limit).await;
            let next = lab.node.cluster.state().next_set;
            let head = holdfast_store::keys::head(GroupId(next));
            lab.good.put_new(&head, bytes::Bytes::from_static(b"of another life")).await.unwrap();
            assert_eq!(lab.create(&lab.url("good")).await, Ok(true));
            let numbers: Vec<_> = lab.node.cluster.state().sets.into_keys().collect();
            assert_eq!(numbers, [GroupId(next + 1)], "limit {limit:?}");
            lab.close().await;
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_store_that_refuses_or_is_away_is_named_in_its_own_words() {
        let denies = Faults { deny: 1000, ..Faults::default() };
        let lab = Lab::new(denies, PATIENCE).await;
        refused(lab.create(&lab.url("bad")).await, "ExpiredToken");
        assert_eq!(lab.create(&lab.url("good")).await, Ok(true));
        lab.close().await;
        let lab = Lab::new(Faults { down: true, ..Faults::default() }, Duration::from_millis(300)).await;
        assert_eq!(lab.create(&lab.url("good")).await, Ok(true));
        refused(lab.change(&lab.url("bad"), true).await, "a store can be added only while it works");
        lab.close().await;
    }
}
