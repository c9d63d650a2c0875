//! What reaches the door between gateways, and what the node keeps of its groups.

use holdfast_raft::fuzz::{self, PREFACE, Taken, take_frames};

/// Bytes of a frame's head.
const HEAD: usize = 16;
/// The kind of an append, and the bytes of its head in the body, and of each entry's.
const APPEND: u8 = 2;
const APPEND_HEAD: usize = 61;
const ENTRY_HEAD: usize = 20;

fn number(bytes: &[u8], at: usize) -> usize {
    let four = bytes.get(at..at + 4).and_then(|four| four.try_into().ok());
    four.map_or(0, |four| u32::from_le_bytes(four) as usize)
}

/// Puts the right checksum into each whole frame.
fn mend(mut frames: &mut [u8]) {
    while frames.len() >= HEAD {
        let length = number(frames, 4);
        if frames.len() - HEAD < length {
            return;
        }
        let (frame, rest) = frames.split_at_mut(HEAD + length);
        let (head, body) = frame.split_at_mut(HEAD);
        let covered = match head[0] {
            APPEND if body.len() >= APPEND_HEAD => (APPEND_HEAD + ENTRY_HEAD * number(body, 56)).min(body.len()),
            _ => body.len(),
        };
        let crc = crc32c::crc32c_append(crc32c::crc32c(&head[..12]), &body[..covered]);
        head[12..].copy_from_slice(&crc.to_le_bytes());
        frames = rest;
    }
}

/// The first byte chooses the side and how the bytes are cut.
pub(super) fn frames(data: &[u8]) -> bool {
    let [selector, stream @ ..] = data else { return false };
    let sender = selector & 1 == 0;
    let mut bytes = if sender { PREFACE.to_vec() } else { Vec::new() };
    let begin = bytes.len();
    bytes.extend_from_slice(stream);
    mend(&mut bytes[begin..]);
    let whole = take_frames(sender, &bytes, usize::MAX);
    assert_eq!(whole, take_frames(sender, &bytes, 1 + usize::from(selector >> 1)), "a cut changes what is taken");
    let again = [&bytes[..begin], &whole.again].concat();
    let expected = Taken { refused: false, ..whole.clone() };
    assert_eq!(take_frames(sender, &again, usize::MAX), expected, "encoded again, it is another");
    whole.frames > 0
}

pub(super) fn all_frames() -> Vec<Vec<u8>> {
    let seed = |(sender, bytes): (bool, Vec<u8>)| {
        let (selector, stream) = if sender { (8, &bytes[PREFACE.len()..]) } else { (9, &bytes[..]) };
        [&[selector][..], stream].concat()
    };
    fuzz::example_frames().into_iter().map(seed).collect()
}

/// The first byte chooses the message.
pub(super) fn messages(data: &[u8]) -> bool {
    let [kind, bytes @ ..] = data else { return false };
    let Some(again) = fuzz::message(*kind, bytes) else { return false };
    assert_eq!(fuzz::message(*kind, &again), Some(again.clone()), "encoded again, it is another");
    true
}

fn seeds(examples: Vec<(u8, Vec<u8>)>) -> Vec<Vec<u8>> {
    examples.into_iter().map(|(kind, bytes)| [&[kind][..], &bytes].concat()).collect()
}

pub(super) fn all_messages() -> Vec<Vec<u8>> {
    seeds(fuzz::example_messages())
}

/// The first byte chooses the file.
pub(super) fn files(data: &[u8]) -> bool {
    let [kind, body @ ..] = data else { return false };
    let Some(again) = fuzz::state_file(*kind, body) else { return false };
    // 0: a state snapshot's body.
    assert_eq!(fuzz::state_file(0, &again), Some(again.clone()), "encoded again, it is another");
    true
}

pub(super) fn all_files() -> Vec<Vec<u8>> {
    seeds(fuzz::example_files())
}
