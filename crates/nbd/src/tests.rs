//! Client and server against each other, and each against arbitrary bytes (NBD-N1 to NBD-N3).

mod handshake;
mod reply;
mod request;
mod tls;

use bytes::BytesMut;

/// Cuts `bytes` at the given places (modulo the length) and returns the pieces in order.
fn pieces(bytes: &[u8], cuts: &[usize]) -> Vec<Vec<u8>> {
    let mut at: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).chain([0, bytes.len()]).collect();
    at.sort_unstable();
    at.dedup();
    at.windows(2).map(|pair| bytes[pair[0]..pair[1]].to_vec()).collect()
}

/// Feeds `bytes` piece by piece: `step` sees the buffer after each piece; false stops the feed.
fn feed(bytes: &[u8], cuts: &[usize], mut step: impl FnMut(&mut BytesMut) -> bool) {
    let mut input = BytesMut::new();
    for piece in pieces(bytes, cuts) {
        input.extend_from_slice(&piece);
        if !step(&mut input) {
            return;
        }
    }
}
