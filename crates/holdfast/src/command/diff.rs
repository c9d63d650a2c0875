//! `holdfast snapshot diff`.

use super::snapshot::{SnapshotArg, find};
use super::{door, incomplete};
use crate::cli::Common;
use crate::door::{Client, Door, Effect};
use crate::exit::CliError;
use crate::output;
use holdfast_api::v1;
use holdfast_types::Name;

/// Prints the ranges of each volume of the later snapshot that may hold something else than in the earlier one. Line by line as they come: the
/// command holds one answer at a time, however large the volumes are.
pub async fn run(common: &Common, set: &Name, earlier: &Name, later: &Name) -> Result<(), CliError> {
    let mut door = door(common);
    let of = |name: &Name| SnapshotArg { set: set.clone(), name: name.clone() };
    let (a, b) = (known(&mut door, &of(earlier)).await?, known(&mut door, &of(later)).await?);
    let mut printer = Printer { json: common.output == output::Format::Json, bytes: 0, zeroes: 0 };
    if !printer.json {
        output::say(&format!("{:<20} {:>16} {:>14}  CONTENT", "VOLUME", "OFFSET", "LENGTH"));
    }
    for volume in &b.volumes {
        let mut from_page = 0;
        let mut open: Option<v1::ChangedRange> = None;
        loop {
            let request = v1::DiffSnapshotsRequest {
                set: set.to_string(),
                earlier: earlier.to_string(),
                earlier_id: a.id.clone(),
                later: later.to_string(),
                later_id: b.id.clone(),
                volume: volume.id,
                from_page,
            };
            let call = async |mut client: Client| client.diff_snapshots(request.clone()).await;
            let what = format!("compare {set}@{earlier} and {set}@{later}");
            let reply = door.call(&what, Effect::Reads, call).await?;
            for range in reply.ranges {
                open = match open {
                    // Ranges end at map pages; for people and programs they go on.
                    Some(last) if last.zero == range.zero && last.offset + last.length == range.offset => {
                        Some(v1::ChangedRange { length: last.length + range.length, ..last })
                    }
                    Some(last) => {
                        printer.range(volume, &last)?;
                        Some(range)
                    }
                    None => Some(range),
                };
            }
            if reply.next_page == 0 {
                break;
            }
            if reply.next_page <= from_page {
                return Err(incomplete("progress"));
            }
            from_page = reply.next_page;
        }
        if let Some(last) = open {
            printer.range(volume, &last)?;
        }
    }
    if !printer.json {
        let (bytes, zeroes) = (output::bytes(printer.bytes), output::bytes(printer.zeroes));
        output::remark(&format!("{bytes} may be different, and {zeroes} more are zeroes now"));
    }
    Ok(())
}

async fn known(door: &mut Door, snapshot: &SnapshotArg) -> Result<v1::Snapshot, CliError> {
    match find(door, snapshot).await? {
        Some(found) if !found.pending => Ok(found),
        found => {
            let why = if found.is_some() { "waits for its checkpoint" } else { "does not exist" };
            let error = CliError::refused(format!("snapshot {snapshot} {why}"));
            Err(error.next(format!("`holdfast snapshot list {}` shows them", snapshot.set)))
        }
    }
}

struct Printer {
    json: bool,
    bytes: u64,
    zeroes: u64,
}

impl Printer {
    fn range(&mut self, volume: &v1::Volume, range: &v1::ChangedRange) -> Result<(), CliError> {
        *(if range.zero { &mut self.zeroes } else { &mut self.bytes }) += range.length;
        let format = if self.json { output::Format::Json } else { output::Format::Table };
        let content = if range.zero { "zero" } else { "data" };
        let (offset, length) = (range.offset, range.length);
        let json = serde_json::json!({ "volume": volume.name, "offset": offset, "length": length, "content": content });
        output::show(format, &json, || format!("{:<20} {offset:>16} {length:>14}  {content}", volume.name))
    }
}
