//! `holdfast set scrub`: starts and shows the background verification of a set's objects.

use super::connect::connect;
use super::text::since;
use crate::cli::Common;
use crate::client::{Client, Effect};
use crate::exit::CliError;
use crate::output;
use holdfast_api::v1;
use holdfast_types::Name;

/// Starts or shows it. Damage is exit code 8, as in `verify`.
pub async fn run(common: &Common, set: &Name, start: bool) -> Result<(), CliError> {
    let request = v1::ScrubSetRequest { set: set.to_string(), start };
    let call = async |mut client: Client| client.scrub_set(request.clone()).await;
    let what = if start { "start the scrub of set" } else { "show the scrub of set" };
    let scrub = connect(common).call(&format!("{what} {set}"), Effect::Changes, call).await?;
    output::show(common.output, &scrub, || describe(&scrub, start))?;
    match scrub.damaged_total {
        0 => Ok(()),
        n => Err(CliError::damaged(format!("set {set}: {n} damaged places")).next(
            "damaged objects are not repaired by a scrub: write these sectors again from a copy; `holdfast verify` checks the whole set",
        )),
    }
}

/// In one line.
pub fn line(scrub: &v1::Scrub) -> String {
    let last = match scrub.complete_unix_ms {
        0 => "no completed scrub known to this gateway".to_string(),
        at => format!("last completed {}", since(at)),
    };
    let damage = match scrub.damaged_total {
        0 => String::new(),
        n => format!(", DAMAGED: {n} places"),
    };
    let now = match (scrub.running, scrub.bytes_per_second) {
        (_, 0) => "off; ".to_string(),
        (false, _) => String::new(),
        (true, _) => {
            let waits = if scrub.waits.is_empty() { String::new() } else { format!(", paused: {}", scrub.waits) };
            let whose =
                if scrub.store.is_empty() { String::new() } else { format!(" of the copies in {}", scrub.store) };
            let (done, all, read) = (scrub.pages_done, scrub.pages, output::bytes(scrub.bytes));
            format!("running, {done} of about {all} pages{whose}, {read} read{waits}; ")
        }
    };
    format!("{now}{last}{damage}")
}

fn describe(scrub: &v1::Scrub, start: bool) -> String {
    let begun = if start && !scrub.running { "requested; " } else { "" };
    let rows = scrub.damaged.iter().map(|place| {
        let volume = match place.snapshot.as_str() {
            "" => place.volume.clone(),
            snapshot => format!("{}@{snapshot}", place.volume),
        };
        let store = if place.store.is_empty() { String::new() } else { format!("in {}: ", place.store) };
        let clone = if place.clone == 0 { String::new() } else { format!("for its clone, set {}: ", place.clone) };
        [
            volume,
            place.lba.to_string(),
            place.sectors.to_string(),
            place.part.clone(),
            place.key.clone(),
            format!("{store}{clone}{}", place.reason),
        ]
    });
    let text = format!("{begun}{}", line(scrub));
    if scrub.damaged.is_empty() {
        return text;
    }
    format!("{text}\n\n{}", output::table(["VOLUME", "SECTOR", "SECTORS", "PART", "OBJECT", "REASON"], rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_and_damage_are_shown() {
        let mut scrub = v1::Scrub { bytes_per_second: 1 << 20, ..Default::default() };
        assert_eq!(line(&scrub), "no completed scrub known to this gateway");
        scrub.running = true;
        (scrub.pages_done, scrub.pages, scrub.bytes, scrub.waits) = (3, 9, 3 << 20, "the set is busy".into());
        assert_eq!(
            line(&scrub),
            "running, 3 of about 9 pages, 3MiB read, paused: the set is busy; no completed scrub known to this gateway"
        );
        let place = v1::DamagedPlace {
            volume: "vol1".into(),
            lba: 8,
            sectors: 16,
            part: "extent".into(),
            ..Default::default()
        };
        (scrub.damaged_total, scrub.damaged) = (1, vec![place]);
        let text = describe(&scrub, false);
        assert!(text.contains("DAMAGED: 1 places") && text.contains("vol1    8       16       extent"), "{text}");
        let place = &mut scrub.damaged[0];
        (place.snapshot, place.clone, place.store, place.reason) =
            ("monday".into(), 7, "store 2".into(), "found 3 bytes".into());
        let text = describe(&scrub, false);
        assert!(
            text.contains("vol1@monday") && text.contains("in store 2: for its clone, set 7: found 3 bytes"),
            "{text}"
        );
        assert_eq!(line(&v1::Scrub::default()), "off; no completed scrub known to this gateway");
    }
}
