//! `holdfast volume export`: copies a volume, or a volume of a snapshot, to an image.

use super::connection::Connection;
use super::copy::{STATUS_BYTES, about, content, earlier, forget, is_pipe, seconds};
use super::image::{Content, Hash, PIECE_BYTES, Sink};
use super::part_file::{PartFile, check_state};
use super::path::find;
use super::progress::bar;
use super::state::{Ends, State};
use crate::cli::{Common, ExportArgs};
use crate::command::connect::connect;
use crate::exit::CliError;
use crate::output;
use futures_util::StreamExt;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::FuturesOrdered;
use std::collections::VecDeque;
use std::fs::File;
use std::path::Path;
use std::time::Instant;
use tokio::sync::mpsc;

/// Runs `holdfast volume export`.
pub async fn export(common: &Common, args: &ExportArgs) -> Result<(), CliError> {
    let begun = Instant::now();
    let volume = &args.volume.volume;
    if args.how.state.is_some() && (args.volume.snapshot.is_none() || is_pipe(&args.image)) {
        let error = CliError::usage("--state: found an export that cannot be resumed, expected a snapshot and a file");
        return Err(error.next(format!("`holdfast snapshot create {}@NAME`, then export {volume}@NAME", volume.set)));
    }
    let connection = match &args.volume.snapshot {
        Some(snapshot) => Connection::snapshot(common, volume, snapshot).await?,
        None => {
            let found = find(&mut connect(common), volume).await?;
            Connection::volume(common, volume, (found.id, found.size_bytes)).await?
        }
    };
    let ends = Ends {
        kind: "export".into(),
        volume: args.volume.to_string(),
        // The id of the snapshot and the name identify the volume.
        volume_id: 0,
        volume_bytes: connection.size(),
        snapshot_id: connection.snapshot_id().to_string(),
        image: args.image.display().to_string(),
        image_bytes: connection.size(),
    };
    let copied = tokio::select! {
        copied = copy_out(common, args, &connection, &ends) => copied,
        () = connection.keep() => Err(CliError::failed("the lease is not renewed any more").next(format!(
            "`holdfast set show {}` shows the owner; start again when the lease is released, or export a snapshot, which needs no lease",
            volume.set
        ))),
    };
    connection.close().await;
    let (hash, data_bytes, resumed) = copied?;
    forget(args.how.state.as_deref())?;
    let (sha256, seconds) = (hash.text(), seconds(begun));
    let json = serde_json::json!({
        "volume": args.volume.to_string(), "image": args.image.display().to_string(), "bytes": hash.bytes, "data_bytes": data_bytes,
        "resumed_from": resumed, "sha256": sha256, "seconds": seconds,
    });
    let text = || {
        let from = if resumed > 0 { format!(", resumed at {}", output::bytes(resumed)) } else { String::new() };
        let (all, data) = (output::bytes(hash.bytes), output::bytes(data_bytes));
        format!("exported {}: {all} ({data} of data){from}, in {seconds} s\nsha256 {sha256}", args.volume)
    };
    if !is_pipe(&args.image) {
        return output::show(common.output, &json, text);
    }
    // Standard output is the image.
    output::remark(&match common.output {
        output::Format::Table => text(),
        output::Format::Json => json.to_string(),
    });
    Ok(())
}

/// Copies everything. Returns the hash of all, how many bytes of data there are, and where the copy was resumed.
async fn copy_out(
    common: &Common,
    args: &ExportArgs,
    connection: &Connection,
    ends: &Ends,
) -> Result<(Hash, u64, u64), CliError> {
    let earlier = earlier(args.how.state.as_deref(), ends)?;
    let (sink, hash, part) = open_sink(args, ends, earlier.as_ref())?;
    let resumed = hash.bytes;
    let drained = drain(common, args, connection, ends, sink, hash).await;
    let (hash, data_bytes) = drained.map_err(|error| not_whole(error, part.as_ref()))?;
    // A live volume: proves that the lease was held during the export.
    if args.volume.snapshot.is_none() {
        connection.flush().await.map_err(|error| not_whole(error, part.as_ref()))?;
    }
    if let Some(part) = part {
        part.finish()?;
    }
    Ok((hash, data_bytes, resumed))
}

/// Adds the path of the incomplete file to an error.
fn not_whole(mut error: CliError, part: Option<&PartFile>) -> CliError {
    if let Some(part) = part {
        error.message.push_str(&format!("; the incomplete image is {}", part.path().display()));
    }
    error
}

/// Opens the target. The finished part of an interrupted export is read again and checked.
fn open_sink(
    args: &ExportArgs,
    ends: &Ends,
    earlier: Option<&State>,
) -> Result<(Sink, Hash, Option<PartFile>), CliError> {
    let path = args.image.as_path();
    if is_pipe(path) {
        return Ok((Sink::Stream(Box::new(std::io::stdout())), Hash::new(), None));
    }
    if std::fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        let file = File::options().write(true).open(path).map_err(|error| about(path, &error))?;
        return Ok((Sink::Dense(file), Hash::new(), None));
    }
    if let Some(state) = &args.how.state {
        check_state(path, state)?;
    }
    let part = PartFile::open(path, args.overwrite, earlier.map(|state| state.done_bytes))?;
    let failed = |error: std::io::Error| about(part.path(), &error);
    let hash = match earlier {
        None => Hash::new(),
        Some(state) => check_written(part.file(), part.path(), state)?,
    };
    // Removes everything after the finished part.
    part.file().set_len(hash.bytes).and_then(|()| part.file().set_len(ends.volume_bytes)).map_err(failed)?;
    // From here on it can be resumed.
    if let (Some(state), None) = (&args.how.state, earlier) {
        State::new(ends.clone(), 0, hash.text(), 0).save(state)?;
    }
    let file = part.file().try_clone().map_err(failed)?;
    Ok((Sink::Sparse(file), hash, Some(part)))
}

fn check_written(file: &File, path: &Path, state: &State) -> Result<Hash, CliError> {
    use std::os::unix::fs::FileExt;
    let mut hash = Hash::new();
    let mut buffer = vec![0; PIECE_BYTES];
    while hash.bytes < state.done_bytes {
        let part = &mut buffer[..(state.done_bytes - hash.bytes).min(PIECE_BYTES as u64) as usize];
        file.read_exact_at(part, hash.bytes).map_err(|error| about(path, &error))?;
        hash.content(&Content::Data(bytes::Bytes::copy_from_slice(part)));
    }
    if hash.text() == state.done_sha256 {
        return Ok(hash);
    }
    let (found, expected) = (hash.text(), &state.done_sha256);
    let text = format!(
        "{}: found SHA-256 {found} of its first {} bytes, expected {expected}",
        path.display(),
        state.done_bytes
    );
    Err(CliError::failed(text).next("the file was changed: delete the state file and export from the beginning"))
}

/// The ranges of the volume in order, with their block status.
struct Ahead {
    at: u64,
    end: u64,
    known: VecDeque<(u64, bool)>,
}

impl Ahead {
    async fn next(&mut self, connection: &Connection) -> Result<Option<(u64, u64, bool)>, CliError> {
        if self.at >= self.end {
            return Ok(None);
        }
        if self.known.is_empty() {
            let len = (self.end - self.at).min(STATUS_BYTES);
            let extents = connection.block_status(self.at, len as u32).await?;
            self.known.extend(extents.into_iter().map(|extent| (extent.len.min(len), extent.hole)));
            if self.known.is_empty() {
                self.known.push_back((len, false));
            }
        }
        let Some((left, hole)) = self.known.pop_front() else { return Ok(None) };
        let left = left.min(self.end - self.at);
        let len = if hole { left } else { left.min(PIECE_BYTES as u64) };
        if len < left {
            self.known.push_front((left - len, hole));
        }
        let offset = self.at;
        self.at += len;
        Ok(Some((offset, len, hole)))
    }
}

async fn drain(
    common: &Common,
    args: &ExportArgs,
    connection: &Connection,
    ends: &Ends,
    sink: Sink,
    hash: Hash,
) -> Result<(Hash, u64), CliError> {
    let bar = bar(common.output, "export", connection.size(), hash.bytes);
    let (tx, mut rx) = mpsc::channel(args.how.parallel());
    let mut ahead = Ahead { at: hash.bytes, end: connection.size(), known: VecDeque::new() };
    let (state, ends, epoch) = (args.how.state.clone(), ends.clone(), connection.epoch());
    let writing = tokio::task::spawn_blocking(move || {
        sink.run(hash, &mut rx, |bytes, digest| match &state {
            Some(path) => State::new(ends.clone(), bytes, digest, epoch)
                .save(path)
                .map_err(|error| std::io::Error::other(error.message)),
            None => Ok(()),
        })
    });
    let mut flying: FuturesOrdered<LocalBoxFuture<'_, Result<Vec<Content>, CliError>>> = FuturesOrdered::new();
    let mut data_bytes = 0;
    loop {
        while flying.len() < args.how.parallel()
            && let Some((offset, len, hole)) = ahead.next(connection).await?
        {
            flying.push_back(match hole {
                true => Box::pin(async move { Ok(vec![Content::Zeroes(len)]) }),
                false => Box::pin(async move {
                    connection.read(offset, len as u32).await.map(|parts| parts.into_iter().map(content).collect())
                }),
            });
        }
        let Some(parts) = flying.next().await.transpose()? else { break };
        for content in parts {
            data_bytes += if matches!(content, Content::Data(_)) { content.bytes() } else { 0 };
            bar.inc(content.bytes());
            if tx.send(content).await.is_err() {
                // The writer's result has the reason.
                break;
            }
        }
        if tx.is_closed() {
            break;
        }
    }
    drop(tx);
    let hash = writing.await.map_err(|error| CliError::failed("the image's writer ended").because(&error))?;
    let hash = hash.map_err(|error| about(&args.image, &error))?;
    bar.finish_and_clear();
    if hash.bytes != connection.size() {
        return Err(CliError::failed(format!("found {} bytes, expected {}", hash.bytes, connection.size())));
    }
    Ok((hash, data_bytes))
}
