//! Which lease is served here: one that was granted at this gateway in its own term, and whose epoch nobody has served
//! (R2, R6).

use super::*;
use holdfast_control::set::Limit;
use holdfast_front::Rates;
use holdfast_traces::Traces;
use holdfast_types::Locality;

fn served(server: &SetServer) -> Option<Epoch> {
    server.serving().map(|serving| serving.epoch)
}

/// Grants the lease at `gateway` to a holder of token 7. Nobody looks at that yet.
async fn grant_at(world: &World, gateway: MemberId) -> Epoch {
    let command = SetCommand::Acquire {
        owner: Owner::new("host").unwrap(),
        gateway,
        token: Token(7),
        ttl_ms: 30_000,
        request: RequestId(1),
        judged_expired: None,
        force: false,
        plain: false,
        at_unix_ms: 0,
    };
    match world.server.command("a grant", &command).await {
        Ok(SetAnswer::Granted(lease)) => lease.epoch,
        other => panic!("{other:?}"),
    }
}

/// This gateway leads again, in the next term, and has applied its first entry.
fn next_term(seat: &Seat) {
    let applied = {
        let mut at = seat.at();
        at.term = Term(at.term.0 + 1);
        at.entries.push(Bytes::new());
        at.applied = LogId::new(at.term.0, at.entries.len() as u64);
        at.applied
    };
    seat.host.observe(applied);
}

/// Its owner continues the lease, under a new epoch.
async fn continued(server: &SetServer) -> Epoch {
    let owner = Owner::new("host").unwrap();
    server.continue_lease(owner, Token(7), Token(8), RequestId(2)).await.expect("it is the owner's").epoch
}

/// Another process of this gateway, with the same log and state.
pub(super) fn started_anew(world: &World, traces: Option<Traces>) -> Arc<SetServer> {
    let server = &world.server;
    let (file_bytes, bound_bytes, reserve_bytes) = (1 << 20, 64 << 20, 2 << 20);
    let config = LogConfig { file_bytes, bound_bytes, reserve_bytes, ..LogConfig::new("simulated") };
    let (log, _) = NodeLog::open_on(SimDisk::new(), config, Identity::default()).unwrap();
    SetServer::new(SetParts {
        id: SET,
        name: server.name.clone(),
        group: world.seat.clone(),
        host: server.host.clone(),
        reader: server.reader.clone(),
        pace: Arc::new(JournalPace::new(log, server.host.clone())),
        head: server.head.clone(),
        health: server.health.clone(),
        switch: server.switch.clone(),
        timing: Timing::from_rtt(Duration::from_secs(1)),
        traces,
        stop: world.stop.clone(),
    })
}

/// R6: between the two terms another gateway may have led, and served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r6_a_lease_that_was_granted_here_in_an_earlier_term_waits_for_its_owner() {
    let world = World::new(true).await;
    let granted = grant_at(&world, ME).await;
    next_term(&world.seat);
    for _ in 0..2 {
        world.server.follow();
        assert_eq!(served(&world.server), None, "it names this gateway, and is of the term before");
    }
    let epoch = continued(&world.server).await;
    assert!(epoch > granted);
    assert_eq!(served(&world.server), Some(epoch));

    // In its own term it is served.
    let world = World::new(true).await;
    let granted = grant_at(&world, ME).await;
    world.server.follow();
    assert_eq!(served(&world.server), Some(granted));
    // A new term ends that as well.
    next_term(&world.seat);
    world.server.follow();
    assert_eq!(served(&world.server), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_was_granted_at_another_gateway_is_not_served() {
    let world = World::new(true).await;
    grant_at(&world, OTHER).await;
    world.server.follow();
    assert_eq!(served(&world.server), None);
    let epoch = continued(&world.server).await;
    assert_eq!(served(&world.server), Some(epoch), "its owner has come here");
}

/// R2: a second sequencer would begin with number 1 again, and its writes would be taken for those that were applied.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r2_an_epoch_is_served_once() {
    let world = World::new(true).await;
    let granted = grant_at(&world, ME).await;
    world.server.follow();
    assert_eq!(served(&world.server), Some(granted));
    world.seat.at().leads = false;
    world.server.follow();
    assert_eq!(served(&world.server), None, "it does not lead");
    world.seat.at().leads = true;
    world.server.follow();
    assert_eq!(served(&world.server), None, "it leads in the same term, or it seems so, and the epoch is over");
    let epoch = continued(&world.server).await;
    assert!(epoch > granted && served(&world.server) == Some(epoch));
}

/// The same for a process that does not know what the one before it has served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r2_an_epoch_that_has_writes_is_not_begun() {
    let world = World::new(true).await;
    let device = world.open().await;
    let epoch = served(&world.server);
    let anew = started_anew(&world, None);
    anew.follow();
    assert_eq!((served(&anew), epoch.is_some()), (epoch, true), "nothing was written under it");
    assert_eq!(soon(device.clone().write(0, written().0, false)).await, Ok(()));
    let anew = started_anew(&world, None);
    anew.follow();
    assert_eq!(served(&anew), None);
}

/// VOTERS-V2: a client of a set that is on other gateways is told which, and not that there is no such set.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_without_a_place_here_is_named_with_its_gateways() {
    let world = World::new(false).await;
    let entry = |voters: &[MemberId]| SetEntry {
        name: name("demo"),
        store_url: "memory".into(),
        wrapped_key: Vec::new(),
        key_id: 1,
        created_by: ME,
        initial_members: vec![ME],
        base_epoch: Epoch(0),
        generation: 1,
        restored: None,
        policy: holdfast_control::policy::Policy::default(),
        voters: voters.iter().copied().collect(),
    };
    world.exports.sets.writing().clear();
    let (there, none) = (RefusalKind::NotHere, RefusalKind::Unknown);
    let cases = [
        (Some(entry(&[OTHER])), there, "set demo is not on this gateway; try gateway g2 at 192.0.2.2:10809"),
        (Some(entry(&[])), there, "set demo does not run at this gateway yet; try again, or another gateway"),
        (None, none, "there is no set demo"),
    ];
    for (entry, kind, message) in cases {
        let mut state = world.exports.cluster.state();
        state.sets = entry.into_iter().map(|entry| (SET, entry)).collect();
        world.exports.cluster.adopt(state);
        let export = ExportName::plain(name("demo"), name("vol1"));
        let refused = world.exports.open(&export, ConnInfo { id: 1, peer: Peer::Unix }).await.err();
        assert!(refused.is_some_and(|found| found.kind == kind && found.message == message), "{message}");
    }
}

/// Who holds a set is not told to a made-up token either; the token of the grant finds everything, also where another
/// gateway leads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_is_answered_once_it_is_that_of_a_grant() {
    let world = World::new(true).await;
    let exports = NodeExports { plain_exports: false, ..(*world.exports).clone() };
    let told = async |token: u128, volume: &str| {
        let name: ExportName = format!("demo/{volume}?token={token:032x}&conn=0&gen=1").parse().unwrap();
        exports.describe(&name, ConnInfo { id: 1, peer: Peer::Unix }).await.map(|told| told.size)
    };
    world.acquire(1).await;
    assert_eq!(told(7, "vol1").await, Ok(2048 * 512));
    for volume in ["vol1", "vol9"] {
        let refusal = told(9, volume).await.expect_err("a made-up token");
        assert_eq!(refusal.kind, RefusalKind::NotPermitted, "{volume}");
        assert!(refusal.message.contains("no volume is open under this name") && !refusal.message.contains("host"));
    }
    let refusal = told(7, "vol9").await.expect_err("there is no such volume");
    assert_eq!(refusal.message, "set demo has no volume vol9");
    world.seat.at().leads = false;
    world.seat.leadership.send_modify(|seen| seen.leader = Some(OTHER));
    let refusal = told(7, "vol1").await.expect_err("it does not lead");
    assert!(refusal.message.ends_with("connect there"), "{}", refusal.message);
    assert!(told(9, "vol1").await.is_err_and(|refusal| refusal.kind == RefusalKind::NotPermitted));
}

/// SET-S17: what an owner says of its place is noted under its own grant, and a continuation keeps it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_the_owner_stands_is_noted_under_its_own_grant() {
    let world = World::new(true).await;
    let server = &world.server;
    world.acquire(1).await;
    let lease = server.lease().expect("granted");
    let noted = || server.host.with(|machine| machine.state().owner_at.clone());
    let place = |text: &str| text.parse::<Locality>().ok();
    server.owner_stands(lease.epoch, None);
    server.owner_stands(Epoch(0), place("us"));
    assert!(!server.has_place_to_note() && server.place_of(&lease).is_none(), "nobody has said so for this grant");
    server.owner_stands(lease.epoch, place("region=eu,zone=a"));
    server.owner_stands(Epoch(0), place("us"));
    assert!(server.has_place_to_note() && noted().is_none());
    assert_eq!(server.place_of(&lease), place("region=eu,zone=a"), "it counts at once");
    server.note_place().await.expect("it leads");
    assert!(!server.has_place_to_note());
    assert_eq!(noted(), place("region=eu,zone=a"));
    let next = world.continued(7, 2).await.expect("it is the owner's");
    assert_eq!(server.place_of(&next), place("region=eu,zone=a"), "a continuation that says nothing keeps it");
}

/// SET-S18: it is told to the connections that are there, and to those that come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_is_for_all_connections_whenever_they_came() {
    let world = World::new(true).await;
    let (server, volume) = (&world.server, VolumeId(1));
    world.acquire(1).await;
    let before = server.throttles(volume);
    assert_eq!((before.volume.rates(), before.set.rates()), (Rates::default(), Rates::default()));
    let limit = |iops| Limit { iops, bytes_per_s: 0, burst_ms: 500 };
    for (volume, iops, request) in [(None, 200, 5), (Some(volume), 100, 6)] {
        let command = SetCommand::SetLimit { volume, limit: limit(iops), request: RequestId(request) };
        assert_eq!(server.command("a limit", &command).await.ok(), Some(SetAnswer::LimitSet));
    }
    server.follow();
    let rates = |requests| Rates { requests, bytes: 0, burst: Duration::from_millis(500) };
    assert_eq!((before.volume.rates(), before.set.rates()), (rates(100), rates(200)), "of who was connected");
    let after = server.throttles(volume);
    assert_eq!((after.volume.rates(), after.set.rates()), (rates(100), rates(200)));
    assert!(Arc::ptr_eq(&before.volume, &after.volume), "they share one limit");
    let other = server.throttles(VolumeId(2));
    assert_eq!((other.volume.rates(), other.set.rates()), (Rates::default(), rates(200)));
    assert_eq!(server.throttled(), (0, Duration::ZERO));
}
