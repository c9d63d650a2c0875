//! `holdfast volume import` and `export`: several requests in flight, zeroes skipped, a digest at the end, and a place to go on from.

use super::image::{Content, Done, Hash, PIECE_BYTES, Piece, Sink, Source, Whole, ZEROES_MAX};
use super::link::Link;
use super::progress::bar;
use super::state::{Ends, State};
use super::{VolumePath, find};
use crate::cli::Common;
use crate::exit::CliError;
use crate::output;
use bytes::BytesMut;
use clap::Args;
use futures_util::StreamExt;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::{FuturesOrdered, FuturesUnordered};
use holdfast_attach::requests::ReadPart;
use holdfast_types::{Name, SECTOR_BYTES};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Instant;
use tokio::sync::mpsc;

pub const IMPORT: &str = "\
The image is raw. It must fit the volume; what the volume has beyond it becomes zeroes. Holes and runs of zeroes are not sent as data. The set must be free:
it is held while the import runs, through the loss of gateways. The digest printed at the end is that of the image (sha256sum).

With --state an import that was interrupted, also by a crash, goes on where it was: with the same command, as long as nobody else has held the set.

Examples:
  holdfast volume import disk.img demo/vol1
  holdfast volume import disk.img demo/vol1 --state disk.state
  nbdcopy -- [ qemu-nbd --read-only -f qcow2 disk.qcow2 ] - | holdfast volume import - demo/vol1
";

pub const EXPORT: &str = "\
A volume of a snapshot is exported while the set is used. A volume without @SNAPSHOT is exported as it is now: the set must be free, and is held meanwhile.
The image is raw and sparse. The digest printed at the end is that of the image (sha256sum).

With --state an export of a snapshot to a file that was interrupted goes on where it was, with the same command.

Examples:
  holdfast volume export demo/vol1@monday monday.img
  holdfast volume export demo/vol1@monday monday.img --state monday.state
  holdfast volume export demo/vol1@monday - | zstd > monday.img.zst
  qemu-img convert -f raw -O qcow2 monday.img monday.qcow2          what was exported, as qcow2
";

/// Requests in flight.
const PARALLEL: usize = 16;
const PARALLEL_MAX: i64 = 64;
/// How far ahead an export asks which ranges hold nothing.
const STATUS_BYTES: u64 = 1 << 30;

/// `holdfast volume import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// The image, or - for standard input
    #[arg(value_name = "FILE|-")]
    pub image: PathBuf,
    /// The set and the volume's name
    #[arg(value_name = "SET/VOLUME")]
    pub volume: VolumePath,
    #[command(flatten)]
    pub how: How,
}

/// `holdfast volume export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The set, the volume's name, and the snapshot
    #[arg(value_name = "SET/VOLUME[@SNAPSHOT]")]
    pub volume: ExportPath,
    /// The image to write, or - for standard output
    #[arg(value_name = "FILE|-")]
    pub image: PathBuf,
    /// Replace a file that is there
    #[arg(long)]
    pub overwrite: bool,
    #[command(flatten)]
    pub how: How,
}

/// What both take.
#[derive(Debug, Args)]
pub struct How {
    /// Note in this file how far it is, and go on from there where it says so; it is removed at the end
    #[arg(long, visible_alias = "resume", value_name = "FILE")]
    pub state: Option<PathBuf>,
    /// Requests in flight
    #[arg(long, value_name = "N", default_value_t = PARALLEL as i64, value_parser = clap::value_parser!(i64).range(1..=PARALLEL_MAX))]
    pub parallel: i64,
}

impl How {
    fn parallel(&self) -> usize {
        usize::try_from(self.parallel).unwrap_or(PARALLEL)
    }
}

/// `SET/VOLUME` or `SET/VOLUME@SNAPSHOT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportPath {
    /// The volume.
    pub volume: VolumePath,
    /// As it was then.
    pub snapshot: Option<Name>,
}

impl fmt::Display for ExportPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.snapshot {
            Some(snapshot) => write!(f, "{}@{snapshot}", self.volume),
            None => self.volume.fmt(f),
        }
    }
}

impl FromStr for ExportPath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (volume, snapshot) = match text.split_once('@') {
            Some((volume, snapshot)) => (volume, Some(Name::new(snapshot).map_err(|error| error.to_string())?)),
            None => (text, None),
        };
        Ok(Self { volume: volume.parse()?, snapshot })
    }
}

fn is_pipe(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn about(path: &Path, error: &std::io::Error) -> CliError {
    CliError::failed(format!("{}", path.display())).because(error)
}

fn seconds(since: Instant) -> f64 {
    (since.elapsed().as_secs_f64() * 1000.0).round() / 1000.0
}

// ---- import

/// Runs `holdfast volume import`.
pub async fn import(common: &Common, args: &ImportArgs) -> Result<(), CliError> {
    let begun = Instant::now();
    let (source, image_bytes) = if is_pipe(&args.image) {
        (Source::Stream(Box::new(std::io::stdin())), 0)
    } else {
        let file = File::open(&args.image)
            .map_err(|error| CliError::usage(format!("{}", args.image.display())).because(&error))?;
        let found = file.metadata().map_err(|error| about(&args.image, &error))?;
        if found.is_file() {
            (Source::File(file, found.len()), found.len())
        } else {
            (Source::Stream(Box::new(file)), 0)
        }
    };
    let found = find(&mut super::door(common), &args.volume).await?;
    if image_bytes > found.size_bytes {
        let text = format!("the image has {image_bytes} bytes, and volume {} has {}", args.volume, found.size_bytes);
        return Err(CliError::usage(text).next("`holdfast volume grow` makes the volume larger"));
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
        let epoch = super::status(&mut super::door(common), args.volume.set.as_str(), false).await?.epoch;
        if epoch != state.epoch {
            let text = format!(
                "set {} was held by somebody since: found epoch {epoch}, expected {}",
                args.volume.set, state.epoch
            );
            return Err(CliError::refused(text).next("delete the state file and import from the beginning"));
        }
    }
    let link = Link::volume(common, &args.volume, (found.id, found.size_bytes)).await?;
    let done = tokio::select! {
        done = fill(common, args, &link, source, &ends, earlier.as_ref()) => done,
        () = link.keep() => Err(CliError::failed("the lease is renewed no more")),
    };
    link.close().await;
    let Whole { bytes, data_bytes, sha256 } = done?;
    forget(args.how.state.as_deref())?;
    let (resumed, seconds) = (earlier.map_or(0, |state| state.done_bytes), seconds(begun));
    let json = serde_json::json!({
        "volume": args.volume.to_string(), "image": args.image.display().to_string(), "bytes": bytes, "data_bytes": data_bytes,
        "resumed_from": resumed, "sha256": sha256, "seconds": seconds,
    });
    output::show(common.output, &json, || {
        let from = if resumed > 0 { format!(", from {} on", output::bytes(resumed)) } else { String::new() };
        let (all, data) = (output::bytes(bytes), output::bytes(data_bytes));
        format!("{} holds {all}{from}, {data} of it data, in {seconds} s\nsha256 {sha256}", args.volume)
    })
}

/// What an interrupted copy between the same ends left.
fn earlier(path: Option<&Path>, ends: &Ends) -> Result<Option<State>, CliError> {
    let Some(state) = path.map(State::load).transpose()?.flatten() else { return Ok(None) };
    state.fits(ends)?;
    Ok(Some(state))
}

fn forget(path: Option<&Path>) -> Result<(), CliError> {
    match path.map(std::fs::remove_file) {
        Some(Err(error)) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(CliError::failed("the copy is whole, and its state file stays").because(&error))
        }
        _ => Ok(()),
    }
}

/// Pieces may be answered in any order; what counts as done is the run from the beginning on.
struct Tally {
    done: u64,
    behind: BTreeMap<u64, (u64, Option<String>)>,
}

impl Tally {
    /// The last mark that is done now.
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
    link: &Link,
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
    if let Some(state) = earlier {
        check_filled(link, state).await?;
    }
    // Before anything is written under it: the next one knows this lease as its own.
    let mut epoch = link.epoch();
    if done.0 == 0 {
        marked.1 = Hash::new().text();
    }
    save(&marked, epoch)?;
    let bar = bar(common.output, "import", ends.image_bytes);
    let (tx, mut rx) = mpsc::channel(args.how.parallel());
    let (from, volume_bytes) = (done.clone(), ends.volume_bytes);
    let reading = tokio::task::spawn_blocking(move || source.run(&from, volume_bytes, &tx));
    let mut tally = Tally { done: done.0, behind: BTreeMap::new() };
    let writing = async {
        let (mut flying, mut ended) = (FuturesUnordered::new(), false);
        loop {
            tokio::select! {
                piece = rx.recv(), if !ended && flying.len() < args.how.parallel() => match piece {
                    Some(piece) => flying.push(write(link, piece)),
                    None => ended = true,
                },
                Some(answered) = flying.next(), if !flying.is_empty() => {
                    let (offset, len, mark) = answered?;
                    bar.inc(len);
                    let last = tally.answered(offset, len, mark);
                    let now = link.epoch();
                    if last.is_some() || now != epoch {
                        marked = last.unwrap_or(marked.clone());
                        epoch = now;
                        save(&marked, epoch)?;
                    }
                }
                else => break,
            }
        }
        Ok::<(), CliError>(())
    };
    let written = writing.await;
    // The reader ends once nobody takes what it reads.
    drop(rx);
    written?;
    let whole = reading.await.map_err(|error| CliError::failed("the image's reader ended").because(&error))?;
    let whole = whole.map_err(|error| {
        CliError::failed(format!("image {}", args.image.display()))
            .because(&error)
            .next("nothing beyond the end of the volume was written; what was copied so far stays in the volume")
    })?;
    clear_rest(link, whole.bytes, ends.volume_bytes).await?;
    link.flush().await?;
    bar.finish_and_clear();
    Ok(whole)
}

/// What an interrupted import has written is read again under the new lease, not believed: a rollback, or a shrink and a growth, leave no epoch behind.
async fn check_filled(link: &Link, state: &State) -> Result<(), CliError> {
    let mut hash = Hash::new();
    while hash.bytes < state.done_bytes {
        let left = state.done_bytes - hash.bytes;
        let len = left.next_multiple_of(SECTOR_BYTES).min(PIECE_BYTES as u64);
        for part in link.read(hash.bytes, len as u32).await? {
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
        format!("the volume's first {bytes} bytes have SHA-256 {found}, expected {expected}: they were changed since");
    Err(CliError::refused(text).next("delete the state file and import from the beginning"))
}

/// What the volume has behind the image.
async fn clear_rest(link: &Link, image_bytes: u64, volume_bytes: u64) -> Result<(), CliError> {
    let mut at = image_bytes.next_multiple_of(SECTOR_BYTES);
    while at < volume_bytes {
        let len = (volume_bytes - at).min(ZEROES_MAX);
        link.zero(at, len as u32).await?;
        at += len;
    }
    Ok(())
}

/// Writes a piece: where, how long, and the mark that it carries.
async fn write(link: &Link, piece: Piece) -> Result<(u64, u64, Option<String>), CliError> {
    let Piece { offset, content, mark } = piece;
    let len = content.bytes();
    match content {
        Content::Data(data) if data.len().is_multiple_of(SECTOR_BYTES as usize) => link.write(offset, data).await?,
        // The image's last bytes: the rest of their sector is zeroes.
        Content::Data(data) => {
            let mut whole = BytesMut::zeroed(data.len().next_multiple_of(SECTOR_BYTES as usize));
            whole[..data.len()].copy_from_slice(&data);
            link.write(offset, whole.freeze()).await?;
        }
        Content::Zeroes(len) => link.zero(offset, len.next_multiple_of(SECTOR_BYTES) as u32).await?,
    }
    Ok((offset, len, mark))
}

// ---- export

/// Runs `holdfast volume export`.
pub async fn export(common: &Common, args: &ExportArgs) -> Result<(), CliError> {
    let begun = Instant::now();
    let volume = &args.volume.volume;
    if args.how.state.is_some() && (args.volume.snapshot.is_none() || is_pipe(&args.image)) {
        let error = CliError::usage(
            "--state is for the export of a snapshot to a file: anything else may not be the same when it goes on",
        );
        return Err(error.next(format!("`holdfast snapshot create {}@NAME`, then export {volume}@NAME", volume.set)));
    }
    let link = match &args.volume.snapshot {
        Some(snapshot) => Link::snapshot(common, volume, snapshot).await?,
        None => {
            let found = find(&mut super::door(common), volume).await?;
            Link::volume(common, volume, (found.id, found.size_bytes)).await?
        }
    };
    let ends = Ends {
        kind: "export".into(),
        volume: args.volume.to_string(),
        // The snapshot's id says which volume: its name in it.
        volume_id: 0,
        volume_bytes: link.size(),
        snapshot_id: link.snapshot_id().to_string(),
        image: args.image.display().to_string(),
        image_bytes: link.size(),
    };
    let copied = async {
        let earlier = earlier(args.how.state.as_deref(), &ends)?;
        let (sink, hash) = open_sink(args, link.size(), earlier.as_ref())?;
        let resumed = hash.bytes;
        let (hash, data_bytes) = drain(common, args, &link, &ends, sink, hash).await?;
        // A live volume: it was ours, and nobody else's, while it was read.
        if args.volume.snapshot.is_none() {
            link.flush().await?;
        }
        Ok::<_, CliError>((hash, data_bytes, resumed))
    };
    let copied = tokio::select! {
        copied = copied => copied,
        () = link.keep() => Err(CliError::failed("the lease is renewed no more")),
    };
    link.close().await;
    let (hash, data_bytes, resumed) = copied?;
    forget(args.how.state.as_deref())?;
    let (sha256, seconds) = (hash.text(), seconds(begun));
    let json = serde_json::json!({
        "volume": args.volume.to_string(), "image": args.image.display().to_string(), "bytes": hash.bytes, "data_bytes": data_bytes,
        "resumed_from": resumed, "sha256": sha256, "seconds": seconds,
    });
    let text = || {
        let from = if resumed > 0 { format!(", from {} on", output::bytes(resumed)) } else { String::new() };
        let (all, data) = (output::bytes(hash.bytes), output::bytes(data_bytes));
        format!("{} has {all}{from}, {data} of it data, in {seconds} s\nsha256 {sha256}", args.volume)
    };
    if !is_pipe(&args.image) {
        return output::show(common.output, &json, text);
    }
    // Standard output has the image.
    output::remark(&match common.output {
        output::Format::Table => text(),
        output::Format::Json => json.to_string(),
    });
    Ok(())
}

/// Where to write, and what is there of an interrupted export: read again, not believed.
fn open_sink(args: &ExportArgs, size: u64, earlier: Option<&State>) -> Result<(Sink, Hash), CliError> {
    let path = args.image.as_path();
    if is_pipe(path) {
        return Ok((Sink::Stream(Box::new(std::io::stdout())), Hash::new()));
    }
    let failed = |error: std::io::Error| about(path, &error);
    match std::fs::metadata(path) {
        Ok(found) if !found.is_file() => {
            let file = File::options().write(true).open(path).map_err(failed)?;
            Ok((Sink::Dense(file), Hash::new()))
        }
        Ok(_) if earlier.is_none() && !args.overwrite => {
            Err(CliError::usage(format!("{} is there already", path.display())).next("add --overwrite to replace it"))
        }
        _ => {
            let fresh = earlier.is_none();
            let mut options = File::options();
            let file = options.read(true).write(true).create(fresh).truncate(fresh).open(path).map_err(failed)?;
            let hash = match earlier {
                None => Hash::new(),
                Some(state) => check_written(&file, path, state)?,
            };
            // What lies behind is written anew: as holes, where it is zeroes.
            file.set_len(hash.bytes).and_then(|()| file.set_len(size)).map_err(failed)?;
            Ok((Sink::Sparse(file), hash))
        }
    }
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
    let text =
        format!("{}: its first {} bytes have SHA-256 {found}, expected {expected}", path.display(), state.done_bytes);
    Err(CliError::failed(text).next("it was changed since: delete the state file and export from the beginning"))
}

/// Ranges in order, and which of them need no reading.
struct Ahead {
    at: u64,
    end: u64,
    known: VecDeque<(u64, bool)>,
}

impl Ahead {
    async fn next(&mut self, link: &Link) -> Result<Option<(u64, u64, bool)>, CliError> {
        if self.at >= self.end {
            return Ok(None);
        }
        if self.known.is_empty() {
            let len = (self.end - self.at).min(STATUS_BYTES);
            let extents = link.block_status(self.at, len as u32).await?;
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
    link: &Link,
    ends: &Ends,
    sink: Sink,
    hash: Hash,
) -> Result<(Hash, u64), CliError> {
    let bar = bar(common.output, "export", link.size());
    bar.set_position(hash.bytes);
    let (tx, mut rx) = mpsc::channel(args.how.parallel());
    let mut ahead = Ahead { at: hash.bytes, end: link.size(), known: VecDeque::new() };
    let (state, ends, epoch) = (args.how.state.clone(), ends.clone(), link.epoch());
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
            && let Some((offset, len, hole)) = ahead.next(link).await?
        {
            flying.push_back(match hole {
                true => Box::pin(async move { Ok(vec![Content::Zeroes(len)]) }),
                false => Box::pin(async move {
                    link.read(offset, len as u32).await.map(|parts| parts.into_iter().map(content).collect())
                }),
            });
        }
        let Some(parts) = flying.next().await.transpose()? else { break };
        for content in parts {
            data_bytes += if matches!(content, Content::Data(_)) { content.bytes() } else { 0 };
            bar.inc(content.bytes());
            if tx.send(content).await.is_err() {
                // The writer says why.
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
    if hash.bytes != link.size() {
        return Err(CliError::failed(format!("found {} bytes, expected {}", hash.bytes, link.size())));
    }
    Ok((hash, data_bytes))
}

fn content(part: ReadPart) -> Content {
    match part {
        ReadPart::Data(data) => Content::Data(data),
        ReadPart::Zeroes(len) => Content::Zeroes(len.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        let found: ExportPath = "demo/vol1@monday".parse().unwrap();
        assert_eq!(found.to_string(), "demo/vol1@monday");
        assert_eq!("demo/vol1".parse::<ExportPath>().unwrap().snapshot, None);
        for bad in ["demo", "demo@a", "demo/vol@", "demo/vol@a@b"] {
            assert!(bad.parse::<ExportPath>().is_err(), "{bad}");
        }
    }

    #[test]
    fn only_what_is_whole_from_the_beginning_counts_as_done() {
        let mut tally = Tally { done: 0, behind: BTreeMap::new() };
        let mark = |text: &str| Some(text.to_string());
        assert_eq!(tally.answered(10, 10, mark("b")), None, "a hole before it");
        assert_eq!(tally.answered(30, 10, mark("d")), None);
        assert_eq!(tally.answered(0, 10, None), Some((20, "b".to_string())));
        assert_eq!(tally.answered(20, 10, mark("c")), Some((40, "d".to_string())));
        assert_eq!(tally.done, 40);
    }
}
