//! `holdfast verify`: reads and authenticates the data of sets in their store.

use super::store_access::{MOVED, checkpoint_text, survey};
use crate::cli::{Common, VerifyArgs};
use crate::exit::CliError;
use crate::output;
use holdfast_set::recovery::Found;
use holdfast_set::verify::{Damage, LISTED_MAX, Report, Sample, verify};
use holdfast_types::SetId;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;

/// Damaged places of a set in a table; `--output json` lists more.
const SHOWN_MAX: usize = 100;

/// Part of the error for a head that needs another cluster key.
const OTHER_KEY: &str = "wrapped under cluster key";

/// `holdfast verify`.
pub async fn run(common: &Common, args: &VerifyArgs) -> Result<(), CliError> {
    let (found, bad) = survey(&args.key, &args.access, std::slice::from_ref(&args.store)).await?;
    check_survey(args, &found, &bad)?;
    let (reports, unreached) = read_sets(common, args, &found).await;
    // A head that cannot be decrypted is damage too, unless only other sets are checked.
    let heads: Vec<String> =
        if args.sets.is_empty() { bad.into_iter().map(|(_, why)| why).collect() } else { Vec::new() };
    let damaged = heads.len() as u64 + reports.iter().map(|(report, _)| report.damaged_total).sum::<u64>();
    let sets: Vec<&Report> = reports.iter().map(|(report, _)| report).collect();
    let json = serde_json::json!({ "clean": damaged == 0 && unreached.is_empty(), "sets": sets, "bad_heads": heads, "unreached": unreached });
    output::show(common.output, &json, || {
        let mut text: Vec<String> =
            reports.iter().map(|(report, checkpoint_text)| describe(report, checkpoint_text)).collect();
        text.extend(heads.iter().map(|why| format!("DAMAGED {why}")));
        text.extend(unreached.iter().map(|why| format!("NOT READ {why}")));
        text.join("\n\n")
    })?;
    match damaged {
        0 if unreached.is_empty() => Ok(()),
        0 => Err(CliError::unreachable(unreached.join("; ")).next("its state is unknown; run it again")),
        _ if args.each_store => Err(CliError::damaged(format!("found {damaged} damaged places, expected none"))
            .next("objects that are intact in another store are repaired while a gateway leads the set; for others, read the ranges through a gateway, or restore them")),
        _ => Err(CliError::damaged(format!("found {damaged} damaged places, expected none"))
            .next("read these ranges through a gateway: if its journal or cache still has them, write them again; otherwise restore them from a backup")),
    }
}

/// Fails if the store has nothing to check, or not what was asked for. `bad`: heads that cannot be read, and why.
fn check_survey(args: &VerifyArgs, found: &[Found], bad: &[(SetId, String)]) -> Result<(), CliError> {
    if let Some(missing) = args.sets.iter().find(|name| !found.iter().any(|f| f.head.name == **name)) {
        let error = CliError::refused(format!("{} has no set {missing} that this key can decrypt", args.store));
        return Err(error.next(bad.first().map_or("check the URL and the name".to_string(), |(_, why)| why.clone())));
    }
    if !found.is_empty() {
        return Ok(());
    }
    if bad.is_empty() {
        let error = CliError::refused(format!("found no set in {}: nothing was checked", args.store));
        return Err(
            error.next("check the URL: it must be the one that `holdfast set list` showed, including the prefix")
        );
    }
    if let Some((_, why)) = bad.iter().find(|(_, why)| why.contains(OTHER_KEY)) {
        return Err(
            CliError::refused(why.clone()).next("use the cluster key that it was created with; nothing was checked")
        );
    }
    // A store that the set has left is not damaged.
    if let Some((set, why)) = bad.iter().find(|(_, why)| why.contains(MOVED)) {
        return Err(CliError::refused(format!("set {set}: {why}"))
            .next("nothing was checked, because the data here is old: use the new stores of the set"));
    }
    Ok(())
}

/// Reads the chosen sets. Returns a report of each, with its checkpoint as text, and which stores did not answer.
async fn read_sets(common: &Common, args: &VerifyArgs, found: &[Found]) -> (Vec<(Report, String)>, Vec<String>) {
    let chosen = |f: &&Found| args.sets.is_empty() || args.sets.contains(&f.head.name);
    let seed = args.seed.unwrap_or_else(rand::random);
    let sample = args.sample.map_or(Sample::ALL, |millionths| Sample { millionths, seed });
    let (mut reports, mut unreached) = (Vec::new(), Vec::new());
    for one in found.iter().filter(chosen) {
        let copies = one.store.several().filter(|_| args.each_store).map_or(0, |several| several.copies());
        let copies = if copies == 0 { vec![None] } else { (0..copies).map(Some).collect() };
        for copy in copies {
            let bar = bar(common, one.head.name.as_str());
            let progress = |done: u64, total: u64| {
                bar.set_length(total);
                bar.set_position(done);
            };
            let checked = verify(one, found, sample, copy, args.list_max, &progress).await;
            bar.finish_and_clear();
            match checked {
                Ok(report) => reports.push((report, checkpoint_text(one))),
                // The results of the other stores are still shown.
                Err(error) => {
                    let which = copy.map_or(String::new(), |at| format!(" {}", at + 1));
                    unreached.push(format!("set {}: store{which}: {error}", one.head.name));
                }
            }
        }
    }
    (reports, unreached)
}

/// A progress bar; hidden if standard error is no terminal.
fn bar(common: &Common, set: &str) -> ProgressBar {
    if common.output == output::Format::Json || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(0);
    // If the template were wrong, the default style would be used.
    if let Ok(style) = ProgressStyle::with_template("{prefix} [{bar:40}] {pos}/{len} pages, {eta} left") {
        bar.set_style(style);
    }
    bar.with_prefix(set.to_string())
}

fn describe(report: &Report, checkpoint_text: &str) -> String {
    let share = match report.seed {
        None => String::new(),
        Some(seed) => format!(" (a sample, --seed {seed})"),
    };
    let store = report.store.as_ref().map_or(String::new(), |store| format!(" in {store}"));
    let with = match report.snapshots {
        0 => String::new(),
        1 => "with 1 snapshot, ".to_string(),
        count => format!("with {count} snapshots, "),
    };
    let head = format!(
        "set {}{store}: {checkpoint_text}\n{with}{} of {} pages{share}, {} extents, {} read: {}",
        report.set,
        report.pages_checked,
        report.pages,
        report.extents,
        output::bytes(report.bytes),
        if report.damaged_total == 0 {
            "clean".to_string()
        } else {
            format!("{} DAMAGED places", report.damaged_total)
        }
    );
    let head = match report.overcounted_segments {
        0 => head,
        count => format!(
            "{head}\n{count} segments count {} as live that no map page refers to, left by a damaged page that was given up: wasted space, no damage",
            output::bytes(report.overcounted_sectors * 512)
        ),
    };
    let head = if report.sums_skipped {
        format!("{head}\nthe counters of the map were not compared with its pages, because not all pages can be read")
    } else {
        head
    };
    if report.damaged.is_empty() {
        return head;
    }
    let rows = report.damaged.iter().take(SHOWN_MAX).map(|d| {
        let place = |d: &Damage| format!("{}+{}", d.lba, d.sectors);
        let bytes = d.object_bytes.map_or("all".to_string(), |[from, to]| format!("{from}..{to}"));
        let volume = d.snapshot.as_ref().map_or(d.volume.clone(), |snapshot| format!("{}@{snapshot}", d.volume));
        [volume, place(d), d.part.to_string(), d.key.clone(), bytes, d.reason.clone()]
    });
    let table = output::table(["VOLUME", "LBA+SECTORS", "PART", "OBJECT", "BYTES", "REASON"], rows);
    match rest(report.damaged_total, report.damaged.len() as u64) {
        None => format!("{head}\n{table}"),
        Some(rest) => format!("{head}\n{table}\n{rest}"),
    }
}

/// A note on damaged places that the table leaves out. The report has `listed` of `total`.
fn rest(total: u64, listed: u64) -> Option<String> {
    let left_out = total.checked_sub(listed.min(SHOWN_MAX as u64)).filter(|left_out| *left_out > 0)?;
    let max = u64::from(LISTED_MAX);
    let how = match total {
        _ if total <= listed => "`--output json` lists all".to_string(),
        _ if total <= max => format!("`--output json --list-max {total}` lists all"),
        _ => {
            format!("`--output json --list-max {max}` lists the first {max}; the others appear when those are repaired")
        }
    };
    Some(format!("and {left_out} more: {how}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_that_the_table_leaves_out_are_counted() {
        assert_eq!((rest(1, 1), rest(100, 100)), (None, None));
        assert_eq!(rest(101, 101).unwrap(), "and 1 more: `--output json` lists all");
        assert_eq!(rest(10_000, 10_000).unwrap(), "and 9900 more: `--output json` lists all");
        let text = rest(10_001, 10_000).unwrap();
        assert_eq!(text, "and 9901 more: `--output json --list-max 10001` lists all");
        assert_eq!(rest(60, 50).unwrap(), "and 10 more: `--output json --list-max 60` lists all", "a short list");
        let text = rest(2_000_000, 10_000).unwrap();
        let begin = "and 1999900 more: `--output json --list-max 1000000` lists the first 1000000;";
        assert!(text.starts_with(begin), "{text}");
    }
}
