//! What a gateway does not say before it has looked at the head (HEAD-H1), and what becomes of it then.

use super::*;
use crate::authority::Authority;
use crate::head::tests::hooked::{Hook, Hooked};
use holdfast_control::pair::{Ended, TenureId};

fn tenure(durability: Durability) -> Arc<Authority> {
    let id = TenureId { pair: 1, revision: 1 };
    Arc::new(Authority::begin(id, durability, Vec::new(), boot_now(), Duration::from_secs(600)))
}

/// R12: the client of a plain export is sent away, and its lease may have been granted. No connection would ever end
/// it, and others would be refused until it expires.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plain_lease_whose_grant_was_kept_back_is_released() {
    let pair = tenure(Durability::Flush);
    let world = World::under(true, None, Some(pair.clone())).await;
    // A grant is kept back like this if no look at the head ends in time, which takes longer.
    world.seat.at().proposed = Some(Box::new(move || pair.end(Ended::Resigned("its time is over".into()))));
    let export = ExportName::plain(name("demo"), name("vol1"));
    let refused = world.exports.open(&export, ConnInfo { id: 1, peer: Peer::Unix }).await.err();
    assert!(refused.is_some_and(|refusal| refusal.kind == RefusalKind::NotHere), "it may try again");
    let lease = world.server.lease();
    assert!(lease.as_ref().is_some_and(|lease| lease.plain), "it was granted: {lease:?}");
    world.server.follow();
    let serving = world.server.serving();
    assert!(serving.is_none_or(|serving| serving.closed.is_cancelled()), "nobody is connected, and nobody can be");
    tokio::spawn(world.server.clone().run());
    soon(async {
        while world.server.lease().is_some() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// A host ends its devices for good on this refusal. The lease of an older life has nothing to do with its grant.
#[tokio::test]
async fn a_session_is_refused_only_after_a_recent_look_at_the_head() {
    let world = World::new(true).await;
    world.acquire(1).await;
    let said = world.server.open_session(Token(9)).await.err();
    assert!(matches!(said, Some(SetError::Refused(SetRefusal::Held { .. }))), "{said:?}");
    recovered_elsewhere(&world.server.head, &world.store()).await;
    look_is_old(&world.server.head);
    let said = world.server.open_session(Token(9)).await.err();
    assert!(matches!(&said, Some(SetError::Fenced(why)) if why.contains("recovered elsewhere")), "{said:?}");
}

/// PAIR-P4, R3: a read that shows anything that only this gateway has waits for the store, however little that is. The
/// other gateway of the pair would not show it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_sector_that_is_not_in_the_store_is_enough_to_wait_for_it() {
    let root = RootRef { object: ObjectId { term: TERM, member: ME, boot: 1, random: 7 }, bytes: 9 };
    for durability in [Durability::Write, Durability::Flush] {
        let world = World::under(true, Some(root), Some(tenure(durability))).await;
        let volume = VolumeId(1);
        let used = world.server.use_volume(volume, &name("vol1")).expect("there is one");
        let connection = world.server.open_plain(Owner::new("host").unwrap()).await.expect("served here");
        let device = VolumeDevice { connection, volume, _used: used };
        let data = Bytes::from(vec![7; 512]);
        let op = Op { kind: OpKind::Write, volume, lba: Lba(8), sectors: Sectors(1), data, moments: None };
        let pushed = soon(device.connection.serving.sequencer.push(op)).await;
        assert!(matches!(pushed, Ok(Ok(()))), "{pushed:?}");
        let waits = Ok(durability == Durability::Write);
        assert_eq!(device.shows_unsaved(4096, 512), waits, "all of it");
        assert_eq!(device.shows_unsaved(0, 8192), waits, "one sector of it");
        assert_eq!(device.shows_unsaved(0, 4096), Ok(false), "none of it");
    }
}

/// A store that is told when to answer a read.
#[derive(Debug, Default)]
struct Told {
    asked: CancellationToken,
    answers: CancellationToken,
}

impl Hook for Told {
    async fn before_get(&self) {
        self.asked.cancel();
        self.answers.cancelled().await;
    }
}

/// R3: an answer may wait for a look at the head, for as long as the store takes. Meanwhile the set is given away, or
/// another gateway turns out to lead. If the gate was asked before the wait and not after it, the client would get data
/// that another gateway may have replaced.
#[tokio::test]
async fn r3_what_waited_for_a_look_is_not_handed_out_if_the_gate_has_closed_meanwhile() {
    let given_away: fn(&SetServer, &Seat) = |server, _| server.gate().transfer_started();
    let lost: fn(&SetServer, &Seat) = |server, seat| {
        seat.at().leads = false;
        server.follow();
    };
    for (how, close) in [("given away", given_away), ("lost", lost)] {
        let world = World::new(true).await;
        let device = world.open().await;
        let (data, parts, extents) = written();
        assert_eq!(soon(device.clone().write(0, data, false)).await, Ok(()));
        assert_eq!(soon(device.clone().read(0, 4096)).await, Ok(parts));
        assert_eq!(soon(device.clone().block_status(0, 8192, 8)).await, Ok(extents));
        let store = Arc::new(Hooked { within: world.server.switch.pinned(), hook: Told::default() });
        world.server.switch.set("told", store.clone());
        // Until both have begun, nothing is awaited that is not ready: no look comes in between.
        look_is_old(&world.server.head);
        let (mut read, mut status) = (device.clone().read(0, 4096), device.clone().block_status(0, 8192, 8));
        let polled = std::future::poll_fn(|cx| Poll::Ready(read.as_mut().poll(cx))).await;
        assert!(polled.is_pending(), "it waits for a look: {polled:?}");
        let polled = std::future::poll_fn(|cx| Poll::Ready(status.as_mut().poll(cx))).await;
        assert!(polled.is_pending(), "it waits for a look: {polled:?}");
        soon(store.hook.asked.cancelled()).await;
        close(&world.server, &world.seat);
        store.hook.answers.cancel();
        assert_eq!(soon(read).await, Err(DeviceError::Disconnect), "R3, {how}");
        assert_eq!(soon(status).await, Err(DeviceError::Disconnect), "R3, {how}");
    }
}
