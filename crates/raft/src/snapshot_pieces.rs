//! State snapshots between gateways: a head, then the bytes in pieces (ADR 0048).
//!
//! - **PIECES-S1** What is collected is bounded: by the length that the head names, which is at most
//!   [`PEER_SNAPSHOT_BYTES_MAX`]. More, or less, is no snapshot.
//!   Over all groups they take at most [`STATES_BYTES_MAX`] at a time: others wait in their sockets.
//! - **PIECES-S2** Nothing is installed whose checksum over all pieces, the head's own fields among them, is
//!   another one than the head's: a snapshot replaces the group's members too.
//! - **PIECES-S3** A sender waits longer for a larger state: on a slow line it would never arrive otherwise, and be
//!   sent again and again. States of several groups for the same member count together, and large ones wait for each
//!   other. A ping on their connection may take as long: it waits behind the pieces before it, and a line on which
//!   pieces make progress is not dead.

use crate::proto::{LogId, SnapshotHead, SnapshotPiece, snapshot_piece::Part};
use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt};
use holdfast_types::limits::{PEER_MESSAGE_BYTES_MAX, PEER_SNAPSHOT_BYTES_MAX};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tonic::Status;

/// Data of one piece at most, in bytes: votes and other calls wait for no more than one on their way out.
const PIECE_BYTES: usize = 256 << 10;

/// Data of all states that arrive at a time, in bytes: two of the largest, or thousands of the usual ones.
const STATES_BYTES_MAX: usize = 2 * PEER_SNAPSHOT_BYTES_MAX;

/// A part of it: permits are counted in these.
const UNIT_BYTES: usize = 4 << 10;

/// The slowest line between gateways over which a state still arrives, in bytes a second.
const LINE_BYTES_PER_SECOND: u64 = 512 << 10;

/// Shortest time of a sender for the smallest state, in milliseconds.
const SEND_MS_MIN: u64 = 5_000;

const _: () = assert!(PIECE_BYTES < PEER_MESSAGE_BYTES_MAX);

/// How long a sender waits until a state of so many bytes is installed (PIECES-S3): several election timeouts, and the
/// time that its bytes take on a slow line.
pub const fn snapshot_time(election_max: Duration, bytes: usize) -> Duration {
    let several_ms = 10 * election_max.as_millis() as u64;
    let begin_ms = if several_ms < SEND_MS_MIN { SEND_MS_MIN } else { several_ms };
    Duration::from_millis(begin_ms + bytes as u64 * 1000 / LINE_BYTES_PER_SECOND)
}

/// How long a ping may take on the connection of state snapshots, which has a window of so many bytes (PIECES-S3): the
/// time on any other connection, plus the time that a full window takes on a slow line. A peer that is gone is noticed
/// sooner elsewhere, by the connection of heartbeats.
pub(crate) const fn ping_time(election_max: Duration, window: u32) -> Duration {
    let behind_ms = window as u64 * 1000 / LINE_BYTES_PER_SECOND;
    Duration::from_millis(4 * election_max.as_millis() as u64 + behind_ms)
}

/// Room for the states that arrive (PIECES-S1).
pub(crate) struct Room(Semaphore);

impl Default for Room {
    fn default() -> Self {
        Self(Semaphore::new(STATES_BYTES_MAX / UNIT_BYTES))
    }
}

impl Room {
    /// Waits until there is room for this state. The caller's deadline limits that.
    ///
    /// # Errors
    /// More than any state has.
    pub(crate) async fn wait_for(&self, head: &SnapshotHead) -> Result<SemaphorePermit<'_>, Status> {
        let units = head.length.div_ceil(UNIT_BYTES as u64);
        let units = u32::try_from(units).map_err(|_| Status::out_of_range("snapshot: too long"))?;
        self.0.acquire_many(units).await.map_err(|error| Status::unavailable(error.to_string()))
    }
}

/// Units of the states that are on their way to one member at a time, at most: one of the largest.
const WAY_UNITS: usize = PEER_SNAPSHOT_BYTES_MAX / UNIT_BYTES;

const _: () = assert!(PEER_SNAPSHOT_BYTES_MAX.is_multiple_of(UNIT_BYTES) && WAY_UNITS <= u32::MAX as usize);

/// The way of states to one member: they share its line (PIECES-S3).
pub(crate) struct Way(Arc<Semaphore>);

impl Default for Way {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(WAY_UNITS)))
    }
}

impl Way {
    /// Waits for the turn of a state of so many bytes; with 0 for none. Its place on the way, and the bytes that are
    /// under way with it. Those before it have their time limits.
    pub(crate) async fn turn(&self, bytes: usize) -> (Option<OwnedSemaphorePermit>, usize) {
        let units = bytes.div_ceil(UNIT_BYTES).min(WAY_UNITS) as u32;
        // It is never closed.
        let place = self.0.clone().acquire_many_owned(units).await.ok();
        (place, (WAY_UNITS - self.0.available_permits().min(WAY_UNITS)) * UNIT_BYTES)
    }
}

/// Checksum of what a head names, and of the bytes behind it (PIECES-S2). Their length is compared by itself.
pub(crate) fn checksum(head: &SnapshotHead, data: &[u8]) -> u32 {
    let vote = head.vote.unwrap_or_default();
    let id = |id: Option<LogId>| (id.is_some(), id.map_or([0, 0], |id| [id.term, id.index]));
    let mut named = Vec::with_capacity(51 + head.membership.len());
    for (flag, numbers) in [(vote.committed, [vote.term, vote.member]), id(head.last), id(head.membership_id)] {
        named.push(u8::from(flag));
        numbers.iter().for_each(|number| named.extend_from_slice(&number.to_le_bytes()));
    }
    named.extend_from_slice(&head.membership);
    crc32c::crc32c_append(crc32c::crc32c(&named), data)
}

/// `data` behind its head, as it is sent. No copy is made here.
pub(crate) fn pieces(head: SnapshotHead, mut data: Bytes) -> impl Stream<Item = SnapshotPiece> + Send + 'static {
    let rest = std::iter::from_fn(move || {
        let next = data.split_to(data.len().min(PIECE_BYTES));
        (!next.is_empty()).then_some(Part::Data(next))
    });
    let parts = std::iter::once(Part::Head(head)).chain(rest);
    futures_util::stream::iter(parts.map(|part| SnapshotPiece { part: Some(part) }))
}

/// The head, which comes first.
///
/// # Errors
/// There is none, or it names more bytes than a state may have.
pub(crate) async fn head<S>(pieces: &mut S) -> Result<SnapshotHead, Status>
where
    S: Stream<Item = Result<SnapshotPiece, Status>> + Unpin,
{
    let first = pieces.next().await.transpose()?.and_then(|piece| piece.part);
    let Some(Part::Head(head)) = first else {
        return Err(Status::invalid_argument("snapshot: found no head, expected it as the first piece"));
    };
    if head.length > PEER_SNAPSHOT_BYTES_MAX as u64 {
        let found = head.length;
        return Err(Status::out_of_range(format!(
            "snapshot: found {found} bytes, expected at most {PEER_SNAPSHOT_BYTES_MAX}"
        )));
    }
    Ok(head)
}

/// The bytes behind `head`.
///
/// # Errors
/// More or fewer bytes than the head names (PIECES-S1), another checksum (PIECES-S2), or the stream's own error.
pub(crate) async fn data<S>(pieces: &mut S, head: &SnapshotHead) -> Result<Bytes, Status>
where
    S: Stream<Item = Result<SnapshotPiece, Status>> + Unpin,
{
    let wrong = |found: usize| {
        let expected = head.length;
        Status::invalid_argument(format!("snapshot: found {found} bytes of data, expected {expected}"))
    };
    let length = usize::try_from(head.length).map_err(|_| wrong(0))?;
    let mut data = BytesMut::with_capacity(length.min(PEER_SNAPSHOT_BYTES_MAX));
    while let Some(piece) = pieces.next().await {
        let Some(Part::Data(next)) = piece?.part else {
            return Err(Status::invalid_argument("snapshot: found a piece without data, expected data"));
        };
        if next.len() > length - data.len() {
            return Err(wrong(data.len() + next.len()));
        }
        data.extend_from_slice(&next);
    }
    if data.len() != length {
        return Err(wrong(data.len()));
    }
    let found = checksum(head, &data);
    if found != head.crc {
        holdfast_reached::reached!("peer: a state snapshot is damaged on the way");
        return Err(Status::data_loss(format!("snapshot: found checksum {found:08x}, expected {:08x}", head.crc)));
    }
    Ok(data.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::Vote;
    use futures_util::stream::iter;

    fn head_of(data: &[u8]) -> SnapshotHead {
        let vote = Some(Vote { term: 3, member: 1, committed: true });
        let (last, membership_id) = (Some(LogId { term: 2, index: 9 }), Some(LogId { term: 1, index: 4 }));
        let (membership, length) = (Bytes::from_static(b"the members"), data.len() as u64);
        let head = SnapshotHead { vote, last, membership_id, membership, length, crc: 0 };
        SnapshotHead { crc: checksum(&head, data), ..head }
    }

    async fn sent(parts: Vec<Part>) -> Result<Bytes, Status> {
        let mut pieces = iter(parts.into_iter().map(|part| Ok(SnapshotPiece { part: Some(part) })));
        let head = head(&mut pieces).await?;
        data(&mut pieces, &head).await
    }

    async fn all(head: SnapshotHead, data: &[u8]) -> Vec<Part> {
        pieces(head, Bytes::copy_from_slice(data)).filter_map(|piece| std::future::ready(piece.part)).collect().await
    }

    #[tokio::test]
    async fn a_state_of_any_size_arrives_as_it_was() {
        for length in [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES + 7] {
            let state: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
            let parts = all(head_of(&state), &state).await;
            assert_eq!(parts.len(), 1 + length.div_ceil(PIECE_BYTES));
            assert_eq!(sent(parts).await.expect("arrives"), state, "{length} bytes");
        }
    }

    #[tokio::test]
    async fn s1_more_or_less_than_the_head_names_is_no_snapshot() {
        let state = vec![7; PIECE_BYTES + 100];
        let parts = all(head_of(&state), &state).await;
        let more = [parts.clone(), vec![Part::Data(Bytes::from_static(b"more"))]].concat();
        let less = parts[..2].to_vec();
        let headless = parts[1..].to_vec();
        let twice = [parts.clone(), parts[..1].to_vec()].concat();
        for (parts, said) in [
            (more, "found 262248 bytes of data, expected 262244"),
            (less, "found 262144 bytes of data, expected 262244"),
            (headless, "found no head"),
            (twice, "found a piece without data"),
            (vec![], "found no head"),
        ] {
            let why = sent(parts).await.expect_err(said);
            assert!(why.message().contains(said), "{why}");
        }
        let huge = SnapshotHead { length: PEER_SNAPSHOT_BYTES_MAX as u64 + 1, ..Default::default() };
        let why = sent(vec![Part::Head(huge)]).await.expect_err("too large");
        assert_eq!(why.code(), tonic::Code::OutOfRange, "before anything is taken: {why}");
    }

    #[tokio::test]
    async fn s1_large_states_wait_for_each_other() {
        let room = Room::default();
        let large = SnapshotHead { length: PEER_SNAPSHOT_BYTES_MAX as u64, ..Default::default() };
        let small = SnapshotHead { length: 1, ..Default::default() };
        let first = room.wait_for(&large).await.expect("room");
        let _second = room.wait_for(&large).await.expect("room");
        let mut third = std::pin::pin!(room.wait_for(&small));
        assert!(futures_util::poll!(&mut third).is_pending());
        drop(first);
        assert!(third.await.is_ok());
    }

    #[test]
    fn s3_a_large_state_has_time_on_a_slow_line() {
        let (fast, slow) = (Duration::from_millis(600), Duration::from_secs(20));
        assert_eq!(snapshot_time(fast, 0), Duration::from_secs(6));
        assert_eq!(snapshot_time(Duration::from_millis(1), 0), Duration::from_secs(5));
        assert_eq!(snapshot_time(slow, 0), Duration::from_secs(200));
        assert_eq!(snapshot_time(fast, PEER_SNAPSHOT_BYTES_MAX), Duration::from_secs(6 + 130));
    }

    #[test]
    fn s3_a_ping_behind_a_full_window_has_time_on_a_slow_line() {
        let (fast, slow, window) = (Duration::from_millis(600), Duration::from_secs(20), 4 << 20);
        let full = Duration::from_secs(u64::from(window) / LINE_BYTES_PER_SECOND);
        assert!(ping_time(fast, window) >= full + fast, "while pieces arrive, the connection is not given up");
        assert_eq!(ping_time(fast, window), Duration::from_millis(2_400 + 8_000));
        assert_eq!(ping_time(slow, 0), Duration::from_secs(80));
        assert!(ping_time(fast, window) < snapshot_time(fast, PEER_SNAPSHOT_BYTES_MAX), "a dead line ends it first");
    }

    #[tokio::test]
    async fn s3_states_for_the_same_member_share_its_line() {
        let way = Way::default();
        let (large, under_way) = way.turn(PEER_SNAPSHOT_BYTES_MAX).await;
        assert_eq!(under_way, PEER_SNAPSHOT_BYTES_MAX);
        let mut waits = std::pin::pin!(way.turn(1));
        assert!(futures_util::poll!(&mut waits).is_pending(), "the line is full");
        let _none = way.turn(0).await;
        drop(large);
        let (_small, under_way) = waits.await;
        assert_eq!(under_way, UNIT_BYTES);
        let (_other, under_way) = way.turn(UNIT_BYTES + 1).await;
        assert_eq!(under_way, 3 * UNIT_BYTES, "small ones go together, and have the time of all of them");
    }

    #[tokio::test]
    async fn s2_a_damaged_state_is_not_taken() {
        let mut state = vec![7; PIECE_BYTES + 100];
        let head = head_of(&state);
        state[PIECE_BYTES + 1] ^= 1;
        let why = sent(all(head, &state).await).await.expect_err("damaged");
        assert!(why.message().starts_with("snapshot: found checksum"), "{why}");
    }

    /// The members that a state brings along replace those that are known here.
    #[tokio::test]
    async fn s2_a_state_with_a_damaged_head_is_not_taken() {
        let (state, good) = (b"state", head_of(b"state"));
        assert!(sent(all(good.clone(), state).await).await.is_ok());
        let other = Some(LogId { term: 2, index: 8 });
        for damaged in [
            SnapshotHead { vote: Some(Vote { term: 4, member: 1, committed: true }), ..good.clone() },
            SnapshotHead { vote: Some(Vote { term: 3, member: 1, committed: false }), ..good.clone() },
            SnapshotHead { last: other, ..good.clone() },
            SnapshotHead { membership_id: None, ..good.clone() },
            SnapshotHead { membership_id: other, ..good.clone() },
            SnapshotHead { membership: Bytes::from_static(b"the numbers"), ..good.clone() },
        ] {
            let why = sent(all(damaged.clone(), state).await).await.err().map(|why| why.code());
            assert_eq!(why, Some(tonic::Code::DataLoss), "{damaged:?}");
        }
    }
}
