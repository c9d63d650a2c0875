//! Door for the fuzz target of register entries (package `fuzz`, ADR 0051). Nothing of the product calls it.

use super::moves::moved_to;
use super::register::{Ballot, RegisterEntry, Restarts, SUM_BYTES, Seat, Stored, decode, encode, encode_mark, seat_of};
use bytes::Bytes;
use sha2::{Digest, Sha256};

/// For objects that are encoded again.
const TOKEN: u128 = 7;

/// Reads an object in place of an entry of the store `index` of `n`. The object is `body` with its checksum. Returns
/// the body of the entry or mark, encoded again; `None`: refused. `index` is below `n`, and `n` at most five.
pub fn register_entry(index: u8, n: u8, w: u8, body: &[u8]) -> Option<Vec<u8>> {
    let seat = Seat { index, n, w };
    let object = Bytes::from([body, &Sha256::digest(body)[..SUM_BYTES]].concat());
    let _ = (moved_to(&object), seat_of(&object));
    let again = match decode(seat, &object).ok()? {
        Stored::Entry(entry) => encode(seat, &entry, TOKEN),
        Stored::Mark(restart) => encode_mark(seat, restart, TOKEN),
    };
    Some(again[..again.len() - SUM_BYTES].to_vec())
}

/// Examples for [`register_entry`] of the second store of three, two of which are a quorum.
pub fn example_register_entries() -> [Vec<u8>; 2] {
    let seat = Seat { index: 1, n: 3, w: 2 };
    let ballot = Ballot { number: 4, token: 9 };
    let accepted = Some((ballot, Bytes::from_static(b"a head")));
    let entry = RegisterEntry { promised: ballot, accepted, restarts: Restarts::default() };
    let body = |object: Bytes| object[..object.len() - SUM_BYTES].to_vec();
    [body(encode(seat, &entry, TOKEN)), body(encode_mark(seat, 2, TOKEN))]
}
