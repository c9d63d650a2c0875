//! `holdfast volume import`: copies an image into a volume.

use super::connection::Connection;
use super::copy::{STATUS_BYTES, about, content, earlier, forget, is_pipe, seconds};
use super::image::{Content, Done, Hash, PIECE_BYTES, Piece, Source, Whole, ZEROES_MAX};
use super::path::find;
use super::progress::bar;
use super::state::{Ends, State};
use crate::cli::{Common, ImportArgs};
use crate::command::connect::connect;
use crate::command::console::confirm_or;
use crate::command::set_calls::status;
use crate::exit::CliError;
use crate::output;
use bytes::BytesMut;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use holdfast_attach::requests::Extent;
use holdfast_types::SECTOR_BYTES;
use std::collections::BTreeMap;
use std::fs::File;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Runs `holdfast volume import`.
pub async fn import(common: &Common, args: &ImportArgs) -> Result<(), CliError> {
    let begun = Instant::now();
    let (source, image_bytes) = open_image(args)?;
    let found = find(&mut connect(common), &args.volume).await?;
    if image_bytes > found.size_bytes {
        let text = format!(
            "the image is too large: found {image_bytes} bytes, expected at most {} of volume {}",
            found.size_bytes, args.volume
        );
        return Err(CliError::usage(text).next("enlarge the volume with `holdfast volume grow`"));
    }
    let ends = Ends {
        kind: "import".into(),
        volume: args.volume.to_string(),
        volume_id: found.id,
        volume_bytes: found.size_bytes,
        snapshot_id: String::new(),
        image: args.image.display().to_string(),
        image_bytes,
    };
    let earlier = earlier(args.how.state.as_deref(), &ends)?;
    if let Some(state) = &earlier {
        check_owner(common, args, state).await?;
    }
    let connection = Connection::volume(common, &args.volume, (found.id, found.size_bytes)).await?;
    let done = tokio::select! {
        done = fill(common, args, &connection, source, &ends, earlier.as_ref()) => done,
        () = connection.keep() => Err(CliError::failed("the lease is not renewed any more").next(format!(
            "`holdfast set show {}` shows the owner; run the same command again: with --state it resumes if the set had no other owner",
            args.volume.set
        ))),
    };
    connection.close().await;
    let Whole { bytes: whole, data_bytes, sha256 } = done?;
    forget(args.how.state.as_deref())?;
    let (resumed, seconds) = (earlier.map_or(0, |state| state.done_bytes), seconds(begun));
    let json = serde_json::json!({
        "volume": args.volume.to_string(), "image": args.image.display().to_string(), "bytes": whole, "data_bytes": data_bytes,
        "resumed_from": resumed, "sha256": sha256, "seconds": seconds,
    });
    output::show(common.output, &json, || {
        let from = if resumed > 0 { format!(", resumed at {}", output::bytes(resumed)) } else { String::new() };
        let (all, data) = (output::bytes(whole), output::bytes(data_bytes));
        format!("imported into {}: {all} ({data} of data){from}, in {seconds} s\nsha256 {sha256}", args.volume)
    })
}

/// The image, and its length if it is a file.
fn open_image(args: &ImportArgs) -> Result<(Source, u64), CliError> {
    if is_pipe(&args.image) {
        return Ok((Source::Stream(Box::new(std::io::stdin())), 0));
    }
    let file = File::open(&args.image)
        .map_err(|error| CliError::usage(format!("image {}", args.image.display())).because(&error))?;
    let found = file.metadata().map_err(|error| about(&args.image, &error))?;
    if found.is_file() {
        Ok((Source::File(file, found.len()), found.len()))
    } else {
        Ok((Source::Stream(Box::new(file)), 0))
    }
}

/// Fails if somebody else had the set since the interruption.
async fn check_owner(common: &Common, args: &ImportArgs, state: &State) -> Result<(), CliError> {
    let epoch = status(&mut connect(common), args.volume.set.as_str(), false).await?.epoch;
    if epoch == state.epoch {
        return Ok(());
    }
    let text = format!(
        "set {} had another owner since the interruption: found epoch {epoch}, expected {}",
        args.volume.set, state.epoch
    );
    Err(CliError::refused(text).next("delete the state file and import from the beginning"))
}

/// Answers may arrive in any order; finished is the range from the beginning without a gap.
struct Tally {
    done: u64,
    behind: BTreeMap<u64, (u64, Option<String>)>,
}

impl Tally {
    /// Adds an answer and returns the last finished mark.
    fn answered(&mut self, offset: u64, len: u64, mark: Option<String>) -> Option<(u64, String)> {
        self.behind.insert(offset, (len, mark));
        let mut last = None;
        while let Some((len, mark)) = self.behind.remove(&self.done) {
            self.done += len;
            last = mark.map(|mark| (self.done, mark)).or(last);
        }
        last
    }
}

async fn fill(
    common: &Common,
    args: &ImportArgs,
    connection: &Connection,
    source: Source,
    ends: &Ends,
    earlier: Option<&State>,
) -> Result<Whole, CliError> {
    let done: Done = earlier.map_or((0, String::new()), |state| (state.done_bytes, state.done_sha256.clone()));
    let state = args.how.state.as_deref();
    let mut marked = done.clone();
    let save = |(bytes, digest): &Done, epoch| match state {
        Some(path) => State::new(ends.clone(), *bytes, digest.clone(), epoch).save(path),
        None => Ok(()),
    };
    match earlier {
        Some(state) => check_filled(connection, state).await?,
        None if args.overwrite => {}
        None => ask_before_data_goes(args, connection, ends.volume_bytes).await?,
    }
    // Saved before the first write, so that a resumed import recognizes its own lease.
    let (mut epoch, mut tally) = (connection.epoch(), Tally { done: done.0, behind: BTreeMap::new() });
    if done.0 == 0 {
        marked.1 = Hash::new().text();
    }
    save(&marked, epoch)?;
    let begun = |error: CliError| error.after_a_change("a part of the image may be in the volume");
    let bar = bar(common.output, "import", ends.image_bytes, done.0);
    let (tx, rx) = mpsc::channel(args.how.parallel());
    let (from, volume_bytes) = (done.clone(), ends.volume_bytes);
    let reading = tokio::task::spawn_blocking(move || source.run(&from, volume_bytes, &tx));
    write_all(connection, args.how.parallel(), rx, |offset, len, mark| {
        bar.inc(len);
        let last = tally.answered(offset, len, mark);
        let now = connection.epoch();
        if last.is_some() || now != epoch {
            marked = last.unwrap_or(marked.clone());
            epoch = now;
            save(&marked, epoch)?;
        }
        Ok(())
    })
    .await
    .map_err(begun)?;
    let whole = reading.await.map_err(|error| CliError::failed("the image's reader ended").because(&error))?;
    let whole = whole.map_err(|error| {
        CliError::failed(format!("image {}", args.image.display()))
            .because(&error)
            .next("nothing was written beyond the end of the volume; the copied part stays in the volume")
    })?;
    clear_rest(connection, whole.bytes, ends.volume_bytes).await.map_err(begun)?;
    connection.flush().await.map_err(begun)?;
    bar.finish_and_clear();
    Ok(whole)
}

/// Writes the pieces, several at once, and calls `answered` with the offset, length and mark of each. The reader ends
/// when this returns, because its receiver is dropped.
async fn write_all(
    connection: &Connection,
    parallel: usize,
    mut pieces: mpsc::Receiver<Piece>,
    mut answered: impl FnMut(u64, u64, Option<String>) -> Result<(), CliError>,
) -> Result<(), CliError> {
    let (mut flying, mut ended) = (FuturesUnordered::new(), false);
    loop {
        tokio::select! {
            piece = pieces.recv(), if !ended && flying.len() < parallel => match piece {
                Some(piece) => flying.push(write(connection, piece)),
                None => ended = true,
            },
            Some(written) = flying.next(), if !flying.is_empty() => {
                let (offset, len, mark) = written?;
                answered(offset, len, mark)?;
            }
            else => return Ok(()),
        }
    }
}

/// Time limit of the search for data in the volume.
const LOOK_LIMIT: Duration = Duration::from_secs(10);

/// Bytes of one read of the search.
const LOOK_BYTES: u64 = 16 << 20;

/// Asks for confirmation if the volume may contain data.
async fn ask_before_data_goes(args: &ImportArgs, connection: &Connection, volume_bytes: u64) -> Result<(), CliError> {
    const OPTION: &str = "--overwrite";
    let status = async |at, len| connection.block_status(at, len).await;
    let read = async |at, len| {
        Ok(connection.read(at, len).await?.into_iter().map(content).all(|part| match part {
            Content::Data(data) => data.iter().all(|byte| *byte == 0),
            Content::Zeroes(_) => true,
        }))
    };
    let Some(at) = first_data(volume_bytes, Instant::now() + LOOK_LIMIT, status, read).await? else {
        return Ok(());
    };
    let text = format!(
        "volume {} may contain data, at offset {} or later, which the import would overwrite",
        args.volume,
        output::bytes(at)
    );
    if is_pipe(&args.image) {
        // Standard input is the image.
        return Err(CliError::declined(text).next(format!("add {OPTION} to skip the question")));
    }
    let question = format!("Volume {} ({}) may contain data. Overwrite it?", args.volume, output::bytes(volume_bytes));
    // In its own thread, so that the lease is renewed meanwhile.
    let asked = tokio::task::spawn_blocking(move || confirm_or(&question, &text, OPTION));
    asked.await.map_err(|error| CliError::failed("the confirmation failed").because(&error))?
}

/// Offset of the first possible data; `None` if the volume certainly reads as zeroes. `read` returns whether a range is
/// all zeroes; it is used where the block status is "allocated", as for everything in a checkpoint. A range that was
/// not checked by `until` counts as data.
async fn first_data(
    volume_bytes: u64,
    until: Instant,
    status: impl AsyncFn(u64, u32) -> Result<Vec<Extent>, CliError>,
    read: impl AsyncFn(u64, u32) -> Result<bool, CliError>,
) -> Result<Option<u64>, CliError> {
    let mut at = 0;
    while at < volume_bytes {
        let len = (volume_bytes - at).min(STATUS_BYTES);
        let before = at;
        for extent in status(at, len as u32).await? {
            let end = at + extent.len;
            while !extent.hole && at < end {
                let len = (end - at).min(LOOK_BYTES);
                if Instant::now() >= until || !read(at, len as u32).await? {
                    return Ok(Some(at));
                }
                at += len;
            }
            at = end;
        }
        // An empty answer does not mean zeroes.
        if at == before {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

/// Reads and checks the finished part of an interrupted import under the new lease: a rollback, or a shrink and a grow,
/// do not change the epoch.
async fn check_filled(connection: &Connection, state: &State) -> Result<(), CliError> {
    let mut hash = Hash::new();
    while hash.bytes < state.done_bytes {
        let left = state.done_bytes - hash.bytes;
        let len = left.next_multiple_of(SECTOR_BYTES).min(PIECE_BYTES as u64);
        for part in connection.read(hash.bytes, len as u32).await? {
            let left = state.done_bytes.saturating_sub(hash.bytes);
            hash.content(&match content(part) {
                Content::Data(data) if data.len() as u64 > left => Content::Data(data.slice(..left as usize)),
                Content::Zeroes(len) => Content::Zeroes(len.min(left)),
                whole => whole,
            });
        }
    }
    if hash.text() == state.done_sha256 {
        return Ok(());
    }
    let (bytes, found, expected) = (state.done_bytes, hash.text(), &state.done_sha256);
    let text =
        format!("the finished part was changed: found SHA-256 {found} of the first {bytes} bytes, expected {expected}");
    Err(CliError::refused(text).next("delete the state file and import from the beginning"))
}

/// Zeroes the volume after the end of the image.
async fn clear_rest(connection: &Connection, image_bytes: u64, volume_bytes: u64) -> Result<(), CliError> {
    let mut at = image_bytes.next_multiple_of(SECTOR_BYTES);
    while at < volume_bytes {
        let len = (volume_bytes - at).min(ZEROES_MAX);
        connection.zero(at, len as u32).await?;
        at += len;
    }
    Ok(())
}

/// Writes a piece; returns its offset, length and mark.
async fn write(connection: &Connection, piece: Piece) -> Result<(u64, u64, Option<String>), CliError> {
    let Piece { offset, content, mark } = piece;
    let len = content.bytes();
    match content {
        Content::Data(data) if data.len().is_multiple_of(SECTOR_BYTES as usize) => {
            connection.write(offset, data).await?
        }
        // The last bytes of the image, padded with zeroes to a sector.
        Content::Data(data) => {
            let mut whole = BytesMut::zeroed(data.len().next_multiple_of(SECTOR_BYTES as usize));
            whole[..data.len()].copy_from_slice(&data);
            connection.write(offset, whole.freeze()).await?;
        }
        Content::Zeroes(len) => connection.zero(offset, len.next_multiple_of(SECTOR_BYTES) as u32).await?,
    }
    Ok((offset, len, mark))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_range_without_gaps_counts_as_finished() {
        let mut tally = Tally { done: 0, behind: BTreeMap::new() };
        let mark = |text: &str| Some(text.to_string());
        assert_eq!(tally.answered(10, 10, mark("b")), None, "a hole before it");
        assert_eq!(tally.answered(30, 10, mark("d")), None);
        assert_eq!(tally.answered(0, 10, None), Some((20, "b".to_string())));
        assert_eq!(tally.answered(20, 10, mark("c")), Some((40, "d".to_string())));
        assert_eq!(tally.done, 40);
    }

    /// Answers of a gateway may end anywhere.
    #[tokio::test]
    async fn the_first_data_of_a_volume_is_found() {
        const GIB: u64 = 1 << 30;
        let of = async |size: u64, data: Option<u64>, step: u64| {
            let status = async |at: u64, len: u32| {
                assert!(at + u64::from(len) <= size, "asked beyond the end");
                let end = at + u64::from(len).min(step);
                Ok::<_, CliError>(match data.filter(|data| (at..end).contains(data)) {
                    Some(data) if data > at => {
                        vec![Extent { len: data - at, hole: true }, Extent { len: end - data, hole: false }]
                    }
                    Some(data) => vec![Extent { len: end - data, hole: false }],
                    None => vec![Extent { len: end - at, hole: true }],
                })
            };
            // Allocated ranges are read.
            let read =
                async |at: u64, len: u32| Ok(!data.is_some_and(|data| (at..at + u64::from(len)).contains(&data)));
            let later = Instant::now() + Duration::from_secs(600);
            let found = first_data(size, later, &status, &read).await.unwrap();
            let allocated = async |_, len: u32| Ok(vec![Extent { len: u64::from(len), hole: false }]);
            let read_all = first_data(size, later, allocated, &read).await.unwrap();
            assert_eq!(read_all.is_some(), found.is_some(), "a checkpoint knows all of it");
            assert!(read_all.is_none_or(|at| data.is_some_and(|data| at <= data && data - at < LOOK_BYTES)));
            let now = first_data(size, Instant::now(), allocated, read).await.unwrap();
            assert_eq!(now, Some(0), "no time to look");
            found
        };
        assert_eq!(of(3 * GIB + 512, None, GIB).await, None);
        assert_eq!(of(3 * GIB + 512, None, 4096 * 1000).await, None);
        for data in [0, 512, GIB - 512, GIB, 3 * GIB] {
            assert_eq!(of(3 * GIB + 512, Some(data), 100 << 20).await, Some(data));
        }
        let nothing = first_data(GIB, Instant::now(), async |_, _| Ok(Vec::new()), async |_, _| Ok(true)).await;
        assert_eq!(nothing.unwrap(), Some(0), "nothing was said");
    }
}
