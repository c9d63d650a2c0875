use super::*;
use crate::device::tests::World;
use crate::server::SetError;
use holdfast_control::set::{SetRefusal, TTL_DEFAULT};
use holdfast_raft::boot_now;
use holdfast_types::sync::LockExt;
use holdfast_types::{Owner, RequestId, Token};
use std::time::Duration;

fn owner(name: &str) -> Owner {
    Owner::new(name).unwrap()
}

/// While the leader sleeps, no renewal can arrive. If that time counted against the owner, another host would get the
/// lease of a healthy one when the leader wakes up.
#[tokio::test]
async fn time_in_which_the_leader_slept_does_not_count_against_the_owner() {
    let world = World::over(true, None).await;
    let (server, ttl) = (&world.server, Duration::from_secs(30));
    server.acquire(owner("host"), Token(7), ttl, RequestId(1), false, false).await.expect("the lease is free");
    let granted = boot_now();
    while boot_now() <= granted {
        tokio::task::yield_now().await;
    }
    let awake = boot_now();
    let expires = || server.expiry.locked().judge.expires_at().expect("it leads, and there is a lease");
    assert!(expires() < awake.saturating_add(ttl), "its time runs from the grant on");
    // All of it, as far as anybody knows.
    server.clock_suspected(Duration::from_secs(3600));
    assert!(expires() >= awake.saturating_add(ttl), "the owner has its whole time from here on");
}

/// Nobody renews a plain lease: it lives as long as its connections. Judged by its time alone, the device of an idle
/// client would be given to another host after a few seconds.
#[tokio::test]
async fn a_plain_lease_with_a_connection_is_not_judged_however_long_that_is_idle() {
    let world = World::over(true, None).await;
    let server = &world.server;
    let connection = server.open_plain(owner("host")).await.expect("the lease is free");
    let lease = server.lease().expect("it was granted");
    // As if nothing had happened since the machine started.
    let mut idle = ExpiryJudge::new();
    idle.elected(MonoTime(0));
    idle.observe(MonoTime(0), Some(&lease));
    assert!(idle.judge(boot_now()).is_some(), "its time is over");
    server.expiry.locked().judge = idle.clone();
    let said = server.acquire(owner("other"), Token(8), TTL_DEFAULT, RequestId(2), false, true).await;
    assert!(matches!(said, Err(SetError::Refused(SetRefusal::Held { .. }))), "{said:?}");
    assert_eq!(server.expiry.locked().judge, idle, "nothing has renewed it meanwhile");
    assert_eq!(server.lease().map(|now| now.epoch), Some(lease.epoch));
    assert_eq!(connection.serving.connected(), 1);
}
