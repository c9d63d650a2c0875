//! What a gateway answers once another life has taken over its set in the store (HEAD-H1, ADR 0013): its group may go
//! on, and everything that it says would be of a life that is over.

use super::*;
use crate::head::tests::{it_is_elsewhere, take_over};
use futures_util::future::BoxFuture;
use holdfast_store::{Head, ListPage, Object, StoreError, Version};
use std::ops::Range;

/// Neither data, also not what needs none, nor that a change was carried out: the other life does not have it. And no
/// error either (R8): the client may find the set there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_answered_once_the_head_names_another_life() {
    let world = World::new(true).await;
    let device = world.open().await;
    let (data, parts, extents) = written();
    assert_eq!(soon(device.clone().write(0, data.clone(), false)).await, Ok(()));
    assert_eq!(soon(device.clone().read(0, 4096)).await, Ok(parts));
    assert_eq!(soon(device.clone().block_status(0, 8192, 8)).await, Ok(extents));
    assert_eq!(soon(device.clone().flush()).await, Ok(()));
    take_over(&world.server.head).await;
    for offset in [0, 8192] {
        assert_eq!(soon(device.clone().read(offset, 4096)).await, Err(DeviceError::Disconnect), "at {offset}");
    }
    assert_eq!(soon(device.clone().block_status(0, 8192, 8)).await, Err(DeviceError::Disconnect));
    for fua in [false, true] {
        assert_eq!(soon(device.clone().write(0, data.clone(), fua)).await, Err(DeviceError::Disconnect), "{fua}");
        assert_eq!(soon(device.clone().zero(0, 4096, true, fua)).await, Err(DeviceError::Disconnect), "{fua}");
        assert_eq!(soon(device.clone().trim(0, 4096, fua)).await, Err(DeviceError::Disconnect), "{fua}");
    }
    assert_eq!(soon(device.clone().flush()).await, Err(DeviceError::Disconnect));
}

/// The head is read between the data and its answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_read_is_not_handed_out_once_the_head_names_another_life() {
    let world = World::new(true).await;
    let device = world.open().await;
    let (data, parts, _) = written();
    assert_eq!(soon(device.clone().write(0, data, false)).await, Ok(()));
    assert_eq!(soon(device.clone().read(0, 4096)).await, Ok(parts));
    world.between(|server, _| {
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(take_over(&server.head)));
    });
    assert_eq!(soon(device.clone().read(0, 4096)).await, Err(DeviceError::Disconnect));
    assert!(world.is_done(), "the data was there");
}

/// R6: whoever leads the rest of its group, the set is granted and served here no more, not even by force.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_that_another_life_has_taken_over_is_granted_to_nobody() {
    let world = World::new(true).await;
    world.acquire(1).await;
    assert!(world.server.serving().is_some() && world.server.can_grant().is_ok());
    take_over(&world.server.head).await;
    world.server.follow();
    assert!(world.server.serving().is_none(), "connections are closed");
    assert!(world.server.leading_ready().is_some(), "it leads its group still");
    assert!(world.server.leads().is_none() && world.server.can_grant().is_err());
    let (owner, ttl) = (Owner::new("host").unwrap(), Duration::from_secs(30));
    let granted = world.server.acquire(owner.clone(), Token(8), ttl, RequestId(2), true, false).await;
    assert!(matches!(granted, Err(SetError::Fenced(_))), "{granted:?}");
    let granted = world.server.continue_lease(owner, Token(7), Token(9), RequestId(3)).await;
    assert!(matches!(granted, Err(SetError::Fenced(_))), "{granted:?}");
    let export = ExportName::plain(name("demo"), name("vol1"));
    assert!(world.exports.open(&export, ConnInfo { id: 1, peer: Peer::Unix }).await.is_err());
}

/// A store that answers nothing.
#[derive(Debug)]
struct Silent;

fn nothing<'a, T: 'a>() -> BoxFuture<'a, Result<T, StoreError>> {
    Box::pin(std::future::pending())
}

impl ObjectStore for Silent {
    fn place(&self) -> &str {
        "silent"
    }

    fn put_new<'a>(&'a self, _: &'a str, _: Bytes) -> BoxFuture<'a, Result<(), StoreError>> {
        nothing()
    }

    fn get_object<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Object, StoreError>> {
        nothing()
    }

    fn get_range<'a>(&'a self, _: &'a str, _: Range<u64>) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        nothing()
    }

    fn head<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Head, StoreError>> {
        nothing()
    }

    fn delete<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<(), StoreError>> {
        nothing()
    }

    fn list<'a>(&'a self, _: &'a str, _: Option<&'a str>) -> BoxFuture<'a, Result<ListPage, StoreError>> {
        nothing()
    }

    fn swap<'a>(&'a self, _: &'a str, _: Option<&'a Version>, _: Bytes) -> BoxFuture<'a, Result<Version, StoreError>> {
        nothing()
    }
}

/// R8: a gateway fails while the store is away. The host continues its lease at another one, which has not looked at
/// the head for long. If it waited for that, the lease would end, and a healthy database with it.
#[tokio::test]
async fn r8_a_lease_is_continued_while_the_store_is_away() {
    let world = World::new(true).await;
    world.acquire(1).await;
    world.server.switch.set("silent", Arc::new(Silent));
    look_is_old(&world.server.head);
    // An agent stops PostgreSQL 300 ms before its lease of three seconds ends.
    let limit = Duration::from_millis(2700);
    let continued = tokio::time::timeout(limit, world.continued(7, 2)).await.expect("the lease would have ended");
    let continued = continued.expect("the store is away, and no other life is known");
    assert_eq!(continued.token, Token(8));
}

/// R8: the stores that group 0 has named since are away. Only those that the head has left prove nothing by silence.
#[tokio::test]
async fn r8_silence_of_the_stores_that_group_0_has_named_counts() {
    let world = World::new(true).await;
    world.server.head.first_look().await;
    // Nothing is awaited in between: no look comes between the two.
    it_is_elsewhere(&world.server.head);
    world.server.switch.set("silent", Arc::new(Silent));
    let answers = tokio::time::timeout(Duration::from_secs(60), world.server.head.before_answer()).await;
    answers.expect("each look ends").expect("no other life is known");
}
