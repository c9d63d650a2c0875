//! `holdfast snapshot diff`.
//!
//! 1. The volumes of both snapshots, compared by id.
//! 2. The ranges of each volume of the later snapshot, line by line: the command holds one answer at a time,
//!    independent of the volumes' size.
//! 3. An end line, so that a program can detect an incomplete list.
//!
//! The volumes are compared here: a gateway answers for one volume at a time.

use super::connect::{connect, incomplete};
use super::snapshot_calls::find;
use crate::cli::{Common, SnapshotArg};
use crate::client::{Client, ClusterClient, Effect};
use crate::exit::CliError;
use crate::output;
use holdfast_api::compared::{Compared, Volumes};
use holdfast_api::v1;
use holdfast_types::Name;
use serde_json::{Value, json};

/// Prints the differences of the volumes, and the ranges of the later snapshot that may differ from the earlier one.
pub async fn run(common: &Common, set: &Name, earlier: &Name, later: &Name) -> Result<(), CliError> {
    let mut api = connect(common);
    let of = |name: &Name| SnapshotArg { set: set.clone(), name: name.clone() };
    let (a, b) = (known(&mut api, &of(earlier)).await?, known(&mut api, &of(later)).await?);
    let volumes = Volumes::compare(&a.volumes, &b.volumes);
    let mut printer = Printer { json: common.output == output::Format::Json, data: 0, zeroes: 0 };
    printer.volumes(&volumes)?;
    for one in &volumes.there {
        let mut from_page = 0;
        let mut open: Option<v1::ChangedRange> = None;
        loop {
            let request = v1::DiffSnapshotsRequest {
                set: set.to_string(),
                earlier: earlier.to_string(),
                earlier_id: a.id.clone(),
                later: later.to_string(),
                later_id: b.id.clone(),
                volume: one.volume.id,
                from_page,
                compares_volumes: true,
            };
            let call = async |mut client: Client| client.diff_snapshots(request.clone()).await;
            let what = format!("compare {set}@{earlier} and {set}@{later}");
            let reply = api.call(&what, Effect::Reads, call).await?;
            of_this_volume(one, &reply)?;
            for range in reply.ranges {
                open = match open {
                    // Adjacent ranges from different map pages are merged.
                    Some(last) if last.zero == range.zero && last.offset + last.length == range.offset => {
                        Some(v1::ChangedRange { length: last.length + range.length, ..last })
                    }
                    Some(last) => {
                        printer.range(&one.volume, &last)?;
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
            printer.range(&one.volume, &last)?;
        }
    }
    printer.end()
}

async fn known(api: &mut ClusterClient, snapshot: &SnapshotArg) -> Result<v1::Snapshot, CliError> {
    match find(api, snapshot).await? {
        Some(found) if !found.pending => Ok(found),
        found => {
            let why = if found.is_some() { "is pending: it waits for its checkpoint" } else { "does not exist" };
            let error = CliError::refused(format!("snapshot {snapshot} {why}"));
            Err(error.next(format!("`holdfast snapshot list {}` shows all", snapshot.set)))
        }
    }
}

/// Checks that the gateway compared the volume with the same sizes as in the list of snapshots.
fn of_this_volume(one: &Compared, reply: &v1::DiffSnapshotsReply) -> Result<(), CliError> {
    let expected = (one.before().map_or(0, |before| before.size_bytes), one.volume.size_bytes);
    let found = (reply.size_before, reply.size_after);
    if found == expected {
        return Ok(());
    }
    Err(CliError::failed(format!(
        "volume {}: found ranges from {} bytes to {}, expected from {} to {} as the snapshots are listed",
        one.volume.name, found.0, found.1, expected.0, expected.1
    )))
}

/// One volume line of the result.
fn volume_json(one: &Compared) -> Value {
    json!({
        "kind": "volume", "volume": one.volume.name, "id": one.volume.id, "relation": one.relation_text(),
        "renamed_from": one.renamed_from(), "size_before": one.before().map(|before| before.size_bytes),
        "size_after": one.volume.size_bytes,
    })
}

/// Like `volume_json`, for a volume that the later snapshot does not have.
fn gone_json(volume: &v1::Volume) -> Value {
    json!({
        "kind": "volume", "volume": volume.name, "id": volume.id, "relation": "gone",
        "renamed_from": null, "size_before": volume.size_bytes, "size_after": null,
    })
}

/// The same as cells of a table.
fn row(volume: &Value) -> [String; 5] {
    let cell = |name: &str| match &volume[name] {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    ["volume", "relation", "size_before", "size_after", "renamed_from"].map(cell)
}

struct Printer {
    json: bool,
    data: u64,
    zeroes: u64,
}

impl Printer {
    fn format(&self) -> output::Format {
        if self.json { output::Format::Json } else { output::Format::Table }
    }

    /// Deleted volumes first: a program that applies the lines in order frees a name before another volume uses it.
    fn volumes(&self, volumes: &Volumes) -> Result<(), CliError> {
        let all: Vec<Value> = volumes.gone.iter().map(gone_json).chain(volumes.there.iter().map(volume_json)).collect();
        if self.json {
            return all.iter().try_for_each(|one| output::show(self.format(), one, String::new));
        }
        let header = ["VOLUME", "RELATION", "SIZE BEFORE", "SIZE AFTER", "RENAMED FROM"];
        output::say(&output::table(header, all.iter().map(row)));
        output::say(&format!("\n{:<20} {:>16} {:>14}  CONTENT", "VOLUME", "OFFSET", "LENGTH"));
        Ok(())
    }

    fn range(&mut self, volume: &v1::Volume, range: &v1::ChangedRange) -> Result<(), CliError> {
        *(if range.zero { &mut self.zeroes } else { &mut self.data }) += range.length;
        let content = if range.zero { "zero" } else { "data" };
        let (offset, length) = (range.offset, range.length);
        let json = json!({
            "kind": "range", "volume": volume.name, "id": volume.id, "offset": offset, "length": length,
            "content": content,
        });
        output::show(self.format(), &json, || format!("{:<20} {offset:>16} {length:>14}  {content}", volume.name))
    }

    fn end(&self) -> Result<(), CliError> {
        if self.json {
            let json = json!({ "kind": "end", "data_bytes": self.data, "zero_bytes": self.zeroes });
            return output::show(self.format(), &json, String::new);
        }
        let (data, zeroes) = (output::bytes(self.data), output::bytes(self.zeroes));
        output::remark(&format!("{data} of data may differ, and another {zeroes} are zeroes now"));
        Ok(())
    }
}
