//! Encoding of a snapshot of the replicated state, for lagging replicas and for restarts.
//!
//! ```text
//!   0 magic 8   8 crc of 16.. u32   12 body bytes u32   16 term u64   24 index u64   32 postcard of SetState
//!   behind it, only if anything follows: postcard of Locality, where the lease's owner stands, or a byte 0 if unknown
//!   behind that, only if something is limited or the round trip follows: postcard of Limits
//!   behind that, only if it is known: postcard of u32, the round trip for the group's times
//! ```
//! Little-endian, CRC32C. The magic's last byte is the version. The log id binds the bytes to their position in the
//! log. Nothing behind the state: nothing of this is known or limited, as in a snapshot of an older build.

use holdfast_control::set::{Limits, SetState};
use holdfast_types::{Locality, LogId};

const MAGIC: [u8; 8] = *b"HFSETST1";
const HEADER_BYTES: usize = 32;
/// In the place of the owner's place, if more follows. No place begins with it: it is a text that is never empty.
const NO_PLACE: u8 = 0;

/// Upper bound of a snapshot's bytes: far above the need of 256 volumes; it bounds the memory that a peer can make us
/// allocate.
pub const SNAPSHOT_BYTES_MAX: usize = 64 << 20;

/// Bytes are not a valid snapshot, or not the expected one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are what each message says: what was found, what was expected")]
pub enum SnapshotError {
    /// The length differs from the one it states, or exceeds the limit.
    #[error("snapshot of {found} bytes, expected {expected}")]
    Length { found: usize, expected: usize },
    /// Not a snapshot, or one of another version.
    #[error("snapshot begins with {found:02x?}, expected {MAGIC:02x?}")]
    Magic { found: [u8; 8] },
    /// A checksum does not match (R9).
    #[error("snapshot: found checksum {found:#010x}, expected {expected:#010x}")]
    Checksum { found: u32, expected: u32 },
    /// A whole snapshot, but of another place in the log.
    #[error("snapshot of {found}, expected {expected}")]
    Place { found: LogId, expected: LogId },
    /// The state could not be read although the checksum matched.
    #[error("snapshot with the right checksum could not be read")]
    State(#[source] postcard::Error),
    /// Bytes behind all that belongs to a snapshot, although the checksum matched.
    #[error("snapshot with the right checksum has {found} bytes, expected it to end at {expected}")]
    Longer { found: usize, expected: usize },
}

impl SnapshotError {
    /// Whether another build wrote it, as opposed to damage: another version, or another form of the state under a
    /// valid checksum.
    pub fn of_another_build(&self) -> bool {
        match self {
            Self::Magic { .. } | Self::State(_) | Self::Longer { .. } => true,
            Self::Length { .. } | Self::Checksum { .. } | Self::Place { .. } => false,
        }
    }
}

/// The state, and what stands behind it.
fn body_of(state: &SetState) -> postcard::Result<Vec<u8>> {
    let mut body = postcard::to_stdvec(state)?;
    let limits = !state.limits.is_empty() || state.rtt_ms.is_some();
    match &state.owner_at {
        Some(at) => body = postcard::to_extend(at, body)?,
        None if limits => body.push(NO_PLACE),
        None => {}
    }
    if limits {
        body = postcard::to_extend(&state.limits, body)?;
    }
    match state.rtt_ms {
        Some(rtt_ms) => postcard::to_extend(&rtt_ms, body),
        None => Ok(body),
    }
}

/// Reads what stands behind the state into it. Returns the bytes that do not belong there.
fn read_behind<'a>(state: &mut SetState, rest: &'a [u8]) -> postcard::Result<&'a [u8]> {
    let rest = match rest {
        // Nothing, or the mark with nothing behind it, which is never written.
        [] | [NO_PLACE] => return Ok(rest),
        [NO_PLACE, rest @ ..] => rest,
        _ => {
            let (at, rest): (Locality, &[u8]) = postcard::take_from_bytes(rest)?;
            state.owner_at = Some(at);
            rest
        }
    };
    if rest.is_empty() {
        return Ok(rest);
    }
    let (limits, rest): (Limits, &[u8]) = postcard::take_from_bytes(rest)?;
    state.limits = limits;
    if rest.is_empty() {
        return Ok(rest);
    }
    let (rtt_ms, rest): (u32, &[u8]) = postcard::take_from_bytes(rest)?;
    state.rtt_ms = Some(rtt_ms);
    Ok(rest)
}

pub(super) fn encode(upto: LogId, state: &SetState) -> Vec<u8> {
    let mut out = vec![0_u8; HEADER_BYTES];
    let body = body_of(state);
    // Postcard refuses only sequences of unknown length; the state has none.
    assert!(body.is_ok(), "R4: state at {upto} cannot be written: {:?}", body.err());
    let body = body.unwrap_or_default();
    out[..8].copy_from_slice(&MAGIC);
    out[12..16].copy_from_slice(&(body.len() as u32).to_le_bytes());
    out[16..24].copy_from_slice(&upto.term.0.to_le_bytes());
    out[24..32].copy_from_slice(&upto.index.0.to_le_bytes());
    out.extend_from_slice(&body);
    let crc = crc32c::crc32c(&out[16..]);
    out[8..12].copy_from_slice(&crc.to_le_bytes());
    out
}

pub(super) fn decode(upto: LogId, bytes: &[u8]) -> Result<SetState, SnapshotError> {
    let Some((header, body)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return Err(SnapshotError::Length { found: bytes.len(), expected: HEADER_BYTES });
    };
    let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    let mut magic = [0_u8; 8];
    magic.copy_from_slice(&header[..8]);
    if magic != MAGIC {
        return Err(SnapshotError::Magic { found: magic });
    }
    let expected = HEADER_BYTES + word(12) as usize;
    if bytes.len() != expected || bytes.len() > SNAPSHOT_BYTES_MAX {
        return Err(SnapshotError::Length { found: bytes.len(), expected: expected.min(SNAPSHOT_BYTES_MAX) });
    }
    let found = crc32c::crc32c(&bytes[16..]);
    if found != word(8) {
        return Err(SnapshotError::Checksum { found, expected: word(8) });
    }
    let place = LogId::new(long(16), long(24));
    if place != upto {
        return Err(SnapshotError::Place { found: place, expected: upto });
    }
    let (mut state, rest): (SetState, &[u8]) = postcard::take_from_bytes(body).map_err(SnapshotError::State)?;
    let rest = read_behind(&mut state, rest).map_err(SnapshotError::State)?;
    if !rest.is_empty() {
        return Err(SnapshotError::Longer { found: bytes.len(), expected: bytes.len() - rest.len() });
    }
    Ok(state)
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_control::set::Limit;
    use holdfast_types::{Epoch, VolumeId};

    fn with_checksum(mut bytes: Vec<u8>) -> Vec<u8> {
        let body = (bytes.len() - HEADER_BYTES) as u32;
        bytes[12..16].copy_from_slice(&body.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[16..]);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// On damage a replica drops the group and fetches it again from peers, which may have the same bytes; so another
    /// build's bytes must not count as damage.
    #[test]
    fn what_another_build_wrote_is_not_called_damaged() {
        let upto = LogId::new(1, 4);
        let good = encode(upto, &SetState::new(Epoch(0)));
        assert!(decode(upto, &good).is_ok());
        let of_another_build = |bytes: &[u8]| decode(upto, bytes).expect_err("not ours to read").of_another_build();
        let mut newer = good.clone();
        newer[7] += 1;
        assert!(of_another_build(&newer), "another version");
        let mut longer = good.clone();
        longer.push(1);
        assert!(of_another_build(&with_checksum(longer)), "a field more");
        let shorter = good[..good.len() - 1].to_vec();
        assert!(of_another_build(&with_checksum(shorter)), "a field less");

        assert!(!of_another_build(&good[..good.len() - 1]), "cut off");
        let mut flipped = good.clone();
        flipped[HEADER_BYTES + 1] ^= 1;
        assert!(!of_another_build(&flipped), "rotten");
        assert!(!decode(LogId::new(1, 5), &good).expect_err("another place").of_another_build());
    }

    /// Disks have snapshots of earlier releases (docs/formats.md), without what stands behind the state and with it.
    #[test]
    fn snapshots_of_each_release_are_read() {
        let upto = LogId::new(1, 4);
        let plain = SetState::new(Epoch(0));
        let owner_at = Some("region=eu,zone=a,host=h1".parse().expect("a place"));
        let limit = Limit { iops: 300, bytes_per_s: 1 << 20, burst_ms: 1000 };
        let limits = Limits { set: limit, volumes: [(VolumeId(7), limit)].into_iter().collect() };
        let whole = SetState { owner_at, limits, rtt_ms: Some(300), ..plain.clone() };
        for (name, state) in [("set-snapshot", plain), ("set-snapshot-whole", whole)] {
            let written = encode(upto, &state);
            crate::object::tests::assert_kept(name, &written, &Ok(state), |bytes| decode(upto, bytes));
        }
    }

    /// SET-S17: a snapshot without the place reads as before, and one with it loses nothing.
    #[test]
    fn the_place_of_the_owner_stands_behind_the_state() {
        let upto = LogId::new(1, 4);
        let mut state = SetState::new(Epoch(0));
        let without = encode(upto, &state);
        state.owner_at = Some("region=eu,zone=a,host=h1".parse().expect("a place"));
        let with = encode(upto, &state);
        assert_eq!(decode(upto, &with).expect("whole"), state);
        assert_eq!(with[HEADER_BYTES..without.len()], without[HEADER_BYTES..], "the state's own bytes are the same");
        let mut longer = with.clone();
        // No limits of the set and of none of its volumes, times, and what is too much.
        longer.extend([0, 0, 0, 0, 1, 1]);
        let error = decode(upto, &with_checksum(longer)).expect_err("a byte more than limits and times need");
        assert!(matches!(error, SnapshotError::Longer { .. }), "{error}");
        for cut in without.len() + 1..with.len() {
            let error = decode(upto, &with_checksum(with[..cut].to_vec())).expect_err("cut off");
            assert!(error.of_another_build(), "cut at {cut}: {error}");
        }
    }

    /// SET-S18: with a place and without one; a snapshot without limits reads as before.
    #[test]
    fn limits_stand_behind_the_place_of_the_owner() {
        let upto = LogId::new(1, 4);
        for place in [None, "region=eu,zone=a,host=h1".parse().ok()] {
            let mut state = SetState::new(Epoch(0));
            state.owner_at = place;
            let without = encode(upto, &state);
            let limit = Limit { iops: 300, bytes_per_s: 1 << 20, burst_ms: 1000 };
            state.limits = Limits { set: limit, volumes: [(VolumeId(7), limit)].into_iter().collect() };
            let with = encode(upto, &state);
            assert_eq!(decode(upto, &with).expect("whole"), state);
            assert_eq!(with[HEADER_BYTES..without.len()], without[HEADER_BYTES..], "what was there before is the same");
            let mut longer = with.clone();
            longer.extend([1, 1]);
            let error = decode(upto, &with_checksum(longer)).expect_err("a byte more than the times need");
            assert!(matches!(error, SnapshotError::Longer { .. }), "{error}");
            for cut in without.len() + 1..with.len() {
                let error = decode(upto, &with_checksum(with[..cut].to_vec())).expect_err("cut off");
                assert!(error.of_another_build(), "cut at {cut}: {error}");
            }
        }
    }

    /// SET-S19: the same for the times; place and limits may be unknown meanwhile.
    #[test]
    fn the_times_stand_behind_the_limits() {
        let upto = LogId::new(1, 4);
        let plain = encode(upto, &SetState::new(Epoch(0)));
        let limit = Limit { iops: 300, bytes_per_s: 1 << 20, burst_ms: 1000 };
        let limited = Limits { set: limit, ..Limits::default() };
        for place in [None, Some("region=eu,zone=a,host=h1")] {
            for limits in [Limits::default(), limited.clone()] {
                let owner_at = place.map(|at| at.parse().expect("a place"));
                let state = SetState { owner_at, limits, rtt_ms: Some(300), ..SetState::new(Epoch(0)) };
                let with = encode(upto, &state);
                assert_eq!(decode(upto, &with).expect("whole"), state);
                assert_eq!(
                    with[HEADER_BYTES..plain.len()],
                    plain[HEADER_BYTES..],
                    "the state's own bytes are the same"
                );
                let mut longer = with.clone();
                longer.push(1);
                let error = decode(upto, &with_checksum(longer)).expect_err("a byte more");
                assert!(matches!(error, SnapshotError::Longer { .. }), "{error}");
                let cut = with[..with.len() - 1].to_vec();
                let error = decode(upto, &with_checksum(cut)).expect_err("cut off");
                assert!(error.of_another_build(), "{error}");
            }
        }
        let mut nothing = plain.clone();
        nothing.push(NO_PLACE);
        let error = decode(upto, &with_checksum(nothing)).expect_err("the mark alone");
        assert!(matches!(error, SnapshotError::Longer { .. }), "{error}");
    }
}
