//! Images are read and written without a network in between.

use super::*;
use std::collections::BTreeMap;
use std::io::Cursor;

const ROOM: u64 = 64 << 20;

fn nothing() -> Done {
    (0, String::new())
}

/// All pieces of a source, and its result.
fn pieces(source: Source, done: &Done, volume_bytes: u64) -> (Vec<Piece>, Result<Whole, SourceError>) {
    let (tx, mut rx) = mpsc::channel(1 << 14);
    let whole = source.run(done, volume_bytes, &tx);
    drop(tx);
    let mut pieces = Vec::new();
    while let Ok(piece) = rx.try_recv() {
        pieces.push(piece);
    }
    (pieces, whole)
}

/// Small numbers that depend only on their position.
fn noise(at: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|n| (((at + n).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8) | 1).collect()
}

/// Data at unaligned offsets, and holes; returned with its bytes.
fn image(len: usize) -> (tempfile::TempDir, File, Vec<u8>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let file = File::create(&path).unwrap();
    file.set_len(len as u64).unwrap();
    let mut plain = vec![0; len];
    for (at, size) in [(0, 10), (70_000, 5), (1 << 20, 3 << 20), (9 << 20, 200_000), (len - 100, 100)] {
        let data = noise(at as u64, size);
        file.write_all_at(&data, at as u64).unwrap();
        plain[at..at + size].copy_from_slice(&data);
    }
    // Zeroes that are not a hole.
    file.write_all_at(&[0; 300_000], 12 << 20).unwrap();
    (dir, File::open(path).unwrap(), plain)
}

fn put_together(pieces: &[Piece], len: usize, from: u64) -> Vec<u8> {
    let mut plain = vec![0xee; len];
    let mut at = from;
    for piece in pieces {
        assert_eq!(piece.offset, at, "in order, without gaps");
        let place = &mut plain[at as usize..(at + piece.content.bytes()) as usize];
        match &piece.content {
            Content::Data(data) => {
                assert!(data.len() <= PIECE_BYTES);
                place.copy_from_slice(data);
            }
            Content::Zeroes(_) => place.fill(0),
        }
        at += piece.content.bytes();
    }
    assert_eq!(at, len as u64);
    plain
}

#[test]
fn a_file_and_a_stream_of_it_are_the_same_and_zeroes_are_not_sent() {
    let len = (20 << 20) + 77;
    let (_dir, file, plain) = image(len);
    let (from_file, whole) = pieces(Source::File(file, len as u64), &nothing(), ROOM);
    let whole = whole.unwrap();
    assert_eq!(whole.sha256, hex(&Sha256::digest(&plain)));
    assert!(put_together(&from_file, len, 0) == plain);
    assert!(whole.data_bytes < 5 << 20, "{} bytes of data in an image of holes", whole.data_bytes);
    let stream = Source::Stream(Box::new(Cursor::new(plain.clone())));
    let (from_stream, again) = pieces(stream, &nothing(), ROOM);
    assert!(put_together(&from_stream, len, 0) == plain);
    assert_eq!(again.unwrap().sha256, whole.sha256);
}

#[test]
fn an_interrupted_copy_goes_on_where_it_was_or_not_at_all() {
    let len = (20 << 20) + 77;
    let (_dir, file, plain) = image(len);
    for at in [1, 4096, 70_002, (1 << 20) + 5, 13 << 20, len as u64] {
        let digest = hex(&Sha256::digest(&plain[..at as usize]));
        let (rest, whole) = pieces(Source::File(file.try_clone().unwrap(), len as u64), &(at, digest), ROOM);
        assert!(put_together(&rest, len, at)[at as usize..] == plain[at as usize..], "from {at}");
        assert_eq!(whole.unwrap().sha256, hex(&Sha256::digest(&plain)));
        let other = (at, hex(&Sha256::digest(b"something else")));
        let (sent, refused) = pieces(Source::File(file.try_clone().unwrap(), len as u64), &other, ROOM);
        assert!(matches!(refused, Err(SourceError::Changed { .. })) && sent.is_empty(), "another image, from {at}");
    }
    let short = (1 << 30, hex(&Sha256::digest(b"")));
    let (_, refused) = pieces(Source::File(file, len as u64), &short, 2 << 30);
    assert!(matches!(refused, Err(SourceError::Changed { .. })), "an image that ends before");
}

#[test]
fn what_does_not_fit_is_refused() {
    let (_dir, file, plain) = image(20 << 20);
    let (_, refused) = pieces(Source::File(file, 20 << 20), &nothing(), (20 << 20) - 512);
    assert!(matches!(refused, Err(SourceError::TooLong { .. })));
    let stream = Source::Stream(Box::new(Cursor::new(plain)));
    let (sent, refused) = pieces(stream, &nothing(), 5 << 20);
    assert!(matches!(refused, Err(SourceError::TooLong { .. })));
    assert!(sent.iter().all(|piece| piece.offset + piece.content.bytes() <= 5 << 20), "never beyond the volume");
}

#[test]
fn what_is_written_is_what_came_and_marks_are_true() {
    let len = 200_u64 << 20;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out");
    let file = File::options().create(true).truncate(true).read(true).write(true).open(&path).unwrap();
    file.set_len(len).unwrap();
    let (tx, mut rx) = mpsc::channel(64);
    let contents = [
        Content::Data(noise(0, 1 << 20).into()),
        Content::Zeroes((70 << 20) - 3),
        Content::Data(noise(7, 1 << 20).into()),
        Content::Zeroes((128 << 20) + 3),
    ];
    assert_eq!(contents.iter().map(Content::bytes).sum::<u64>(), len);
    for content in contents {
        tx.try_send(content).unwrap();
    }
    drop(tx);
    let mut marks = BTreeMap::new();
    let note = |at, digest| {
        marks.insert(at, digest);
        Ok(())
    };
    let hash = Sink::Sparse(file.try_clone().unwrap()).run(Hash::new(), &mut rx, note).unwrap();
    let plain = std::fs::read(&path).unwrap();
    assert_eq!((hash.bytes, hash.text()), (len, hex(&Sha256::digest(&plain))));
    assert!(!marks.is_empty());
    for (at, digest) in marks {
        assert_eq!(digest, hex(&Sha256::digest(&plain[..at as usize])), "the mark at {at}");
    }
    use std::os::unix::fs::MetadataExt;
    assert!(file.metadata().unwrap().blocks() * 512 < 8 << 20, "zeroes stay holes");
}
