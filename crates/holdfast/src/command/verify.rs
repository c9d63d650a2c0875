//! `holdfast verify`: sets as their store has them, checked to the last tag.

use super::stored::{KeyArgs, MOVED, StoreArgs, moment, survey};
use crate::cli::{Common, stores_text, with_codes};
use crate::exit::CliError;
use crate::output;
use clap::Args;
use holdfast_set::recovery::Found;
use holdfast_set::verify::{Damage, LISTED, LISTED_MAX, Report, Sample, verify};
use holdfast_types::Name;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;

/// Damaged places of a set that a table shows; `--output json` has more.
const SHOWN_MAX: usize = 100;

/// Of a head that opens with another cluster key only, in words.
const OTHER_KEY: &str = "wrapped under cluster key";

/// `holdfast verify`.
#[derive(Debug, Args)]
#[command(after_long_help = with_codes(VERIFY))]
pub struct VerifyArgs {
    /// Sets to check [default: all in the store]
    sets: Vec<Name>,
    /// The store; of a set over several stores, or whose stores were changed, the whole text that `set stores show` gave for a recovery
    #[arg(long, value_name = "URL", value_parser = stores_text)]
    store: String,
    #[command(flatten)]
    key: KeyArgs,
    #[command(flatten)]
    access: StoreArgs,
    /// Check a share of the map's pages only, chosen by chance
    #[arg(long, value_name = "PERCENT", value_parser = share)]
    sample: Option<u32>,
    /// Of a set in several stores, read every store's own copies, one store after the other [default: of each object the copy that answers first]
    #[arg(long)]
    each_store: bool,
    /// Choose the same pages as an earlier run that printed this seed
    #[arg(long, requires = "sample")]
    seed: Option<u64>,
    /// Damaged places of each set that `--output json` lists; more are counted
    #[arg(long, value_name = "COUNT", default_value_t = LISTED, value_parser = clap::value_parser!(u32).range(1..=i64::from(LISTED_MAX)))]
    list_max: u32,
}

const VERIFY: &str = "\
Examples:
  holdfast verify --store s3://bucket/prefix --key-file cluster.key
  holdfast verify demo --store s3://bucket/prefix --key-file cluster.key --sample 1%
  holdfast verify --store file:///srv/store --passphrase-file pass --output json | jq '.sets[].damaged[]'

Read is what the last checkpoint of each set shows: head, root with its leaves, pages of the map, and every sealed extent that a read of the set can meet; of
a clone also what it shows of its origin; and of the snapshots that the head lists what they show besides. With
--sample only that share of the pages, and the extents that those name.
Not read is what none of these shows: objects that nothing names (orphans, what waits for its deletion, former checkpoints), extents of which all was
overwritten or trimmed, and what is in the gateways' journals only. Damage there is not found, and no read from the store meets it.

Gateways may run or not; where they replace objects meanwhile, run it again. Each damaged range is named with volume, sectors of 512 bytes, object and bytes
in it; `VOLUME@SNAPSHOT` where only snapshots show it, by the newest of them. Of a page that does not open all of its 32 MiB are named, and of a `leaf` of a
large map all 4 GiB of the volume that it stands for, whether anything was written there or not: what a leaf lists nobody else knows. A leaf without a
volume makes nothing unreadable, but no checkpoint can be made over it.
A table has the first 100 damaged places of a set, --output json as many as --list-max says; `damaged_total` there is how many there are.
With --each-store, what one of several stores lacks or has damaged is named with that store; the repair copies it from another. A store that does
not answer is named at the end, and the others are read. Of a set in several stores the head may have to be written before it can be read: where one
store lags behind, with credentials that may only read this ends with what the store said.
";

/// Reads `1%` or `0.5%` as millionths.
fn share(text: &str) -> Result<u32, String> {
    let bad = || format!("found {text:?}, expected a share above 0% and up to 100%, such as 1%");
    let percent: f64 = text.strip_suffix('%').and_then(|number| number.parse().ok()).ok_or_else(bad)?;
    if percent > 0.0 && percent <= 100.0 { Ok(((percent * 10_000.0) as u32).max(1)) } else { Err(bad()) }
}

/// `holdfast verify`.
pub async fn run(common: &Common, args: &VerifyArgs) -> Result<(), CliError> {
    let (found, bad) = survey(&args.key, &args.access, std::slice::from_ref(&args.store)).await?;
    if let Some(missing) = args.sets.iter().find(|name| !found.iter().any(|f| f.head.name == **name)) {
        let error = CliError::refused(format!("{} has no set {missing} that opens with this key", args.store));
        return Err(error.next(bad.first().map_or("check the URL and the name".to_string(), |(_, why)| why.clone())));
    }
    if found.is_empty() && bad.is_empty() {
        let error = CliError::refused(format!("found no set in {}: nothing was checked", args.store));
        return Err(error.next("check the URL: it must be the one that `holdfast set list` showed, prefix included"));
    }
    if found.is_empty()
        && let Some((_, why)) = bad.iter().find(|(_, why)| why.contains(OTHER_KEY))
    {
        return Err(
            CliError::refused(why.clone()).next("use the cluster key that it was made with; nothing was checked")
        );
    }
    // A place that was left is not damaged.
    if found.is_empty()
        && let Some((set, why)) = bad.iter().find(|(_, why)| why.contains(MOVED))
    {
        return Err(CliError::refused(format!("set {set}: {why}")).next("nothing was checked: what is here is old"));
    }
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
            let checked = verify(one, &found, sample, copy, args.list_max, &progress).await;
            bar.finish_and_clear();
            match checked {
                Ok(report) => reports.push((report, moment(one))),
                // What the other stores have was worth reading, and is worth showing.
                Err(error) => {
                    let which = copy.map_or(String::new(), |at| format!(" {}", at + 1));
                    unreached.push(format!("set {}: store{which}: {error}", one.head.name));
                }
            }
        }
    }
    // A head that does not open is damage too, unless other sets were asked for.
    let heads: Vec<String> =
        if args.sets.is_empty() { bad.into_iter().map(|(_, why)| why).collect() } else { Vec::new() };
    let damaged = heads.len() as u64 + reports.iter().map(|(report, _)| report.damaged_total).sum::<u64>();
    let sets: Vec<&Report> = reports.iter().map(|(report, _)| report).collect();
    let json = serde_json::json!({ "clean": damaged == 0 && unreached.is_empty(), "sets": sets, "bad_heads": heads, "unreached": unreached });
    output::show(common.output, &json, || {
        let mut text: Vec<String> = reports.iter().map(|(report, moment)| describe(report, moment)).collect();
        text.extend(heads.iter().map(|why| format!("DAMAGED {why}")));
        text.extend(unreached.iter().map(|why| format!("NOT READ {why}")));
        text.join("\n\n")
    })?;
    match damaged {
        0 if unreached.is_empty() => Ok(()),
        0 => Err(CliError::unreachable(unreached.join("; ")).next("nothing is known of it; run it again")),
        _ if args.each_store => Err(CliError::damaged(format!("found {damaged} damaged places, expected none"))
            .next("what another store has whole, the repair copies while a gateway leads the set; what none has, read through a gateway, or restore")),
        _ => Err(CliError::damaged(format!("found {damaged} damaged places, expected none"))
            .next("read those ranges through a gateway: what its journal or cache still holds can be written again; else restore them")),
    }
}

/// Nothing where nobody looks.
fn bar(common: &Common, set: &str) -> ProgressBar {
    if common.output == output::Format::Json || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(0);
    // The template is ours; were it wrong, the default style would do.
    if let Ok(style) = ProgressStyle::with_template("{prefix} [{bar:40}] {pos}/{len} pages, {eta} left") {
        bar.set_style(style);
    }
    bar.with_prefix(set.to_string())
}

fn describe(report: &Report, moment: &str) -> String {
    let share = match report.seed {
        None => String::new(),
        Some(seed) => format!(" (a sample, --seed {seed})"),
    };
    let store = report.store.as_ref().map_or(String::new(), |store| format!(" in {store}"));
    let with = match report.snapshots {
        0 => String::new(),
        1 => "with its snapshot, ".to_string(),
        count => format!("with its {count} snapshots, "),
    };
    let head = format!(
        "set {}{store}: {moment}\n{with}{} of {} pages{share}, {} extents, {} read: {}",
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
            "{head}\n{count} segments count {} as in use that no page names, as a damaged page leaves them that was given up: space, no damage",
            output::bytes(report.overcounted_sectors * 512)
        ),
    };
    let head = if report.sums_skipped {
        format!("{head}\nwhat the map counts was not compared with its pages, for not all of them can be read")
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

/// What a table leaves out of so many damaged places, and how it is had: of all there are, `listed` are in the report.
fn rest(total: u64, listed: u64) -> Option<String> {
    let left_out = total.checked_sub(listed.min(SHOWN_MAX as u64)).filter(|left_out| *left_out > 0)?;
    let max = u64::from(LISTED_MAX);
    let how = match total {
        _ if total <= listed => "`--output json` lists all".to_string(),
        _ if total <= max => format!("`--output json --list-max {total}` lists all"),
        _ => format!("`--output json --list-max {max}` lists the first {max}; the others show when those are mended"),
    };
    Some(format!("and {left_out} more: {how}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_table_leaves_out_is_counted_and_it_says_where_it_is() {
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

    #[test]
    fn shares() {
        assert_eq!((share("1%"), share("100%"), share("0.5%")), (Ok(10_000), Ok(1_000_000), Ok(5_000)));
        for bad in ["1", "0%", "101%", "-1%", "x%", "%"] {
            assert!(share(bad).is_err(), "{bad}");
        }
    }
}
